"""The demonstration, run as a stranger would run it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diskcache_like import Cache
from tools.demo import study
from tools.demo.__main__ import main
from tools.demo.report import percentiles

from ..support.project import ROOT

TIMEOUT = 120


def command(*arguments: str | int | Path) -> list[str]:
    return [sys.executable, "-m", "tools.demo", *map(str, arguments)]


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def run(*arguments: str | int | Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(temporary),
        timeout=TIMEOUT,
        check=False,
    )


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Stand in for /tmp."""
    path = tmp_path / "temporary"
    path.mkdir()
    return path


def test_demo_is_warm_the_second_time(tmp_path: Path, temporary: Path) -> None:
    directory = tmp_path / "kept"
    first, second = (run(directory, "--limit", 10, temporary=temporary) for _ in range(2))
    assert (first.returncode, second.returncode, first.stderr, second.stderr) == (0, 0, "", "")
    assert "warm already" not in first.stdout
    assert "Hits in the first run" not in second.stdout
    assert "warm already" in second.stdout
    assert re.search(r"^first run +\S+ m?s +100\.0% +0$", second.stdout, re.MULTILINE)
    with Cache(directory) as cache:
        assert len(cache) == 20  # two entries a module, and nothing of the second part
        assert cache.check() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_nothing(number: signal.Signals, code: int, temporary: Path) -> None:
    with subprocess.Popen(
        command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
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


def test_demo_on_a_terminal_shows_its_work_and_cleans_up(temporary: Path) -> None:
    ours, theirs = pty.openpty()
    asked = command("--limit", 15, "--processes", 3)
    with subprocess.Popen(
        asked, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment(temporary)
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours).replace("\r\n", "\n")
    assert process.returncode == 0, shown
    assert "100%" in shown
    assert re.search(r"^fresh processes +\S+ m?s +[\d,]+ x +100\.0% +0$", shown, re.MULTILINE)
    assert re.search(r"^Hits in the first run .* another process", shown, re.MULTILINE)
    assert "read on its very next get: 0 stale reads" in shown
    for word in ("set index", "get summary, disk", "get summary, memory", "value files", "longest function"):
        assert word in shown
    assert list(temporary.iterdir()) == []


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
        command("--limit", 10), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment(temporary)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0
    assert list(temporary.iterdir()) == []


def test_child_that_ends_early_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with study.crew(study.write, (str(tmp_path / "file"),)) as writer, pytest.raises(ChildProcessError, match="code 1"):
        writer.ask(1)
    assert "file" in capfd.readouterr().err


def test_measure_counts_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import os, re\nfrom a import b\n\n\ndef f(x):\n    if x:\n        return os.name\n\n\ndef g(): ...\n"
    )
    summary, index = study.measure(str(path))
    assert summary == (10, 2, 3, 1, "f", 3)
    assert index == "name 7:15\nos 7:15\nx 6:7\n"
    path.write_text("print 'hello'\n")
    summary, index = study.measure(str(path))
    assert str(summary).startswith("SyntaxError: ")
    assert index == ""


def test_percentiles() -> None:
    assert percentiles(range(1000, 101_000, 1000)) == ("51.0", "91.0", "100.0", "100.0")
    assert percentiles([200]) == ("0.2", "0.2", "0.2", "0.2")


def test_demo_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.touch()
    assert main([str(path), "--limit", "1"]) == 2
    assert re.search(rf"^diskcache-like: .*{re.escape(str(path))}.*\n\Z", capsys.readouterr().err, re.MULTILINE)
