"""The command line on a whole cache: stats, clear, check; and what it says of what is no cache, and of wrong usage."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from diskcache_like import Cache, Index
from diskcache_like.cli import main
from diskcache_like.cli.migrate import report
from diskcache_like.compat.migration.copy import Skipped, Summary
from diskcache_like.errors import CorruptDatabase
from diskcache_like.storage.sqlite.connection import PAGE_SIZE

from ..support.tampering import database


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    with Cache(directory) as cache:
        cache["small"] = 1
        cache["large"] = b"x" * 100_000
    return directory


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


@pytest.mark.parametrize("arguments", [[], ["stats"]])
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
