"""The demonstration and the command line, run as a stranger would run them."""

from __future__ import annotations

import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from diskcache_like import Cache, Index
from diskcache_like.cli import demo, main, terminal
from diskcache_like.cli.migrate import report
from diskcache_like.errors import CorruptDatabase
from diskcache_like.migration.copy import Skipped, Summary
from diskcache_like.storage.sqlite.connection import PAGE_SIZE

from ..support.project import ROOT
from ..support.tampering import database

TIMEOUT = 120


def command(*arguments: str | int | Path) -> list[str]:
    return [sys.executable, "-m", "diskcache_like", *map(str, arguments)]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def run(*arguments: str | int | Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(temporary), timeout=TIMEOUT, check=False
    )


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Stand in for /tmp."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def test_demo_shows_its_work_and_cleans_up(temporary: Path) -> None:
    done = run("demo", "--limit", 30, "--processes", 3, temporary=temporary)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^fresh processes +\S+ m?s +[\d,]+ x +100\.0% +0$", done.stdout, re.MULTILINE)
    assert re.search(r"^Hits in the first run .* another process", done.stdout, re.MULTILINE)
    assert "read on its very next get: 0 stale reads" in done.stdout
    for word in ("set index", "get summary, disk", "get summary, memory", "value files", "longest function"):
        assert word in done.stdout
    assert list(temporary.iterdir()) == []


def test_demo_is_warm_the_second_time(tmp_path: Path, temporary: Path) -> None:
    directory = tmp_path / "kept"
    first = run("demo", directory, "--limit", 20, temporary=temporary)
    second = run("demo", directory, "--limit", 20, temporary=temporary)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "warm already" not in first.stdout
    assert "Hits in the first run" not in second.stdout
    assert "warm already" in second.stdout
    assert re.search(r"^first run +\S+ m?s +100\.0% +0$", second.stdout, re.MULTILINE)
    with Cache(directory) as cache:
        assert len(cache) == 40  # two entries a module, and nothing of the second part
        assert cache.check() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_nothing(number: signal.Signals, code: int, temporary: Path) -> None:
    with subprocess.Popen(
        command("demo"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(temporary),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("first run"):
            assert process.poll() is None
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        # Both pipes end only when every process that inherited them has ended.
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code
    assert errors == ("interrupted\n" if number == signal.SIGINT else "")
    assert list(temporary.iterdir()) == []


def test_tests_that_interrupt_pass_in_the_background_job_of_a_script(tmp_path: Path) -> None:
    test = f"{Path(__file__)}::{test_interrupted_demo_leaves_nothing.__name__}[{signal.SIGINT.value}-130]"
    job = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    job += [f"--basetemp={tmp_path / 'inner'}", test]
    done = subprocess.run(job, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("rich", [True, False])
def test_demo_on_a_terminal(rich: bool, temporary: Path) -> None:
    if rich:
        pytest.importorskip("rich")
    hide = "" if rich else "sys.modules['rich'] = None; "
    program = f"import sys; {hide}from diskcache_like.cli.main import main; sys.exit(main(['demo', '--limit', '15']))"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(temporary)
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours)
    assert process.returncode == 0, shown
    assert "100%" in shown
    assert "0 stale reads" in shown


def read_terminal(descriptor: int) -> str:
    """Return what is written to a terminal until its last writer is gone."""
    shown = b""
    with open(descriptor, "rb", buffering=0) as terminal:
        try:
            while piece := terminal.read(65536):
                shown += piece
        except OSError:  # how Linux says that nobody is at the other end any more
            pass
    return shown.decode()


def test_reader_of_the_output_may_leave(temporary: Path) -> None:
    with subprocess.Popen(
        command("demo", "--limit", 10), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(temporary)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0
    assert list(temporary.iterdir()) == []


def test_child_that_ends_early_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with demo.crew(demo.write, (str(tmp_path / "file"),)) as writer, pytest.raises(ChildProcessError, match="code 1"):
        writer.ask(1)
    assert "file" in capfd.readouterr().err


def test_measure_counts_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os, re\nfrom a import b\n\n\ndef f(x):\n    if x:\n        return os.name\n\n\ndef g(): ...\n"
    )
    summary, index = demo.measure(str(path))
    assert summary == (10, 2, 3, 1, "f", 3)
    assert index == "name 7:15\nos 7:15\nx 6:7\n"


def test_measure_says_why_a_file_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("print 'hello'\n")
    summary, index = demo.measure(str(path))
    assert isinstance(summary, str)
    assert summary.startswith("SyntaxError: ")
    assert index == ""


def test_percentiles() -> None:
    assert terminal.percentiles(range(1000, 101_000, 1000)) == ("51.0", "91.0", "100.0", "100.0")
    assert terminal.percentiles([200]) == ("0.2", "0.2", "0.2", "0.2")


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    with Cache(directory) as cache:
        cache["small"] = 1
        cache["large"] = b"x" * 100_000
    return directory


def test_stats(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["stats", str(filled)]) == 0
    assert re.search(r"^entries +2$", capsys.readouterr().out, re.MULTILINE)


def test_clear(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["clear", str(filled), "--yes"]) == 0
    assert capsys.readouterr().out == "2 entries removed\n"
    with Cache(filled) as cache:
        assert len(cache) == 0


def test_check_finds_and_fixes(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", str(filled)]) == 0
    (value_file,) = filled.rglob("*.val")
    value_file.unlink()
    assert main.main(["check", str(filled)]) == 1
    assert main.main(["check", str(filled), "--fix"]) == 1
    capsys.readouterr()
    assert main.main(["check", str(filled)]) == 0
    assert capsys.readouterr().out == "nothing found\n"


@pytest.mark.parametrize("tree", ["sqlite_schema", "entry"])
def test_a_look_at_a_database_that_cannot_be_read_tells_so_and_leaves_it_in_use(
    tree: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cache" / "cache.db"
    with Cache(path.parent) as cache:
        cache["key"] = "value"
    with database(path.parent) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchall()
    begin = (roots[0][0] - 1) * PAGE_SIZE if roots else 0
    data = bytearray(path.read_bytes())
    data[begin : begin + PAGE_SIZE] = b"\xff" * PAGE_SIZE
    path.write_bytes(data)
    with pytest.raises(CorruptDatabase):
        list(Index(str(path.parent)).items())
    for _ in range(2):
        assert main.main(["check", str(path.parent)]) == 1
        assert str(path) in capsys.readouterr().out
    assert main.main(["stats", str(path.parent)]) in (0, 2)
    with pytest.raises(CorruptDatabase):
        list(Index(str(path.parent)).items())
    capsys.readouterr()
    assert main.main(["check", str(path.parent), "--fix"]) == 1
    assert re.search(rf"^.*{path}.*goes on empty", capsys.readouterr().out, re.MULTILINE)
    assert main.main(["check", str(path.parent)]) == 0
    assert capsys.readouterr().out == "nothing found\n"


@pytest.mark.parametrize("name", ["stats", "check", "clear"])
@pytest.mark.parametrize("kind", ["nothing", "file", "empty", "another program's", "above a cache"])
def test_what_is_no_cache_is_named_and_left_alone(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "there"
    if kind == "file":
        path.touch()
    elif kind == "empty":
        path.mkdir()
    elif kind == "another program's":
        path.mkdir()
        (path / "songs.db").touch()
    elif kind == "above a cache":
        Cache(path / "cache").close()
    before = list(path.iterdir()) if path.is_dir() else []
    assert main.main([name, str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(rf"diskcache-like: .*{re.escape(str(path))}.*\n", shown.err)
    assert path.exists() == (kind != "nothing")
    assert not path.is_dir() or list(path.iterdir()) == before


def test_demo_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.touch()
    assert main.main(["demo", str(path), "--limit", "1"]) == 2
    assert re.search(rf"^diskcache-like: .*{re.escape(str(path))}.*\n\Z", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("arguments", [[], ["demo", "--processes", "0"], ["demo", "--limit", "many"], ["stats"]])
def test_wrong_usage_is_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main.main(arguments)
    assert raised.value.code == 2
    assert "usage: " in capsys.readouterr().err


def test_names_made_by_anyone_neither_steer_the_terminal_nor_end_a_line(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (b"\x1b]0;title\x07", b"line\nnothing found", b"\xff", b"\xe2\x80\xae"):
        Path(os.fsdecode(os.fsencode(filled) + b"/" + name)).touch()
    assert main.main(["check", str(filled)]) == 1
    told = capsys.readouterr().out
    assert told.replace("\n", "").isprintable()
    assert told.count("unknown file") == len(told.splitlines()) == 4
    (tmp_path / "old").mkdir()
    with closing(sqlite3.connect(tmp_path / "old" / "cache.db")) as connection:
        connection.execute('CREATE TABLE Cache ("\x1b[2J" INTEGER)')
    assert main.main(["migrate", str(tmp_path / "old"), str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()
    report(Summary(skipped=[Skipped("key", "pickle that calls os\x1b[2J.system")], notes=["\x1b"]), True)
    assert capsys.readouterr().out.replace("\n", "").isprintable()
