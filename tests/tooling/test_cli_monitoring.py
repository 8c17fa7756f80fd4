"""The command line for whoever runs a cache: top, bigkeys, hotkeys, tags and health."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.cli import main, monitoring
from diskcache_like.cli.monitoring import CLEAR
from diskcache_like.operations import inspection

from ..support.command_line import Shell
from ..support.contention import held
from ..support.tampering import database


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    assert main.main([*arguments, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_the_largest_values_come_first(kind: type[Cache], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kind(tmp_path) as cache:
        cache.set_many({f"key {number}": "x" * number for number in range(100)}, retry=True)
        cache.set(("a", 1), b"y" * 100_000, retry=True)
        cache.set("gone", b"z" * 100_000, expire=0, retry=True)
    found = told(capsys, "bigkeys", str(tmp_path), "--count", "3")
    assert [one["key"] for one in found] == [{"repr": "('a', 1)"}, "key 99", "key 98"]
    assert found[0]["bytes"] >= 100_000
    assert main.main(["bigkeys", str(tmp_path), "--count", "1"]) == 0
    assert capsys.readouterr().out.split("\n")[3].startswith("('a', 1)  100,0")


@pytest.mark.parametrize(
    ("policy", "what"),
    [("second-chance", "writes_ago"), ("least-recently-used", "writes_ago"), ("least-frequently-used", "uses")],
)
def test_what_was_used_last_or_most_comes_first(
    policy: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cache(tmp_path, eviction_policy=policy) as cache:
        cache.set_many(dict.fromkeys(range(200), 1))
        for _ in range(5):
            cache.get("third")
            assert (cache[7], cache[9]) == (1, 1)
        cache.set("between", 1)
        assert cache[9] == 1
    found = told(capsys, "hotkeys", str(tmp_path), "--count", "2")
    assert [(one["key"], set(one)) for one in found] == [(9, {"key", what}), (7, {"key", what})]
    assert found[0][what] != found[1][what]
    assert main.main(["hotkeys", str(tmp_path)]) == 0
    assert what.replace("_", " ") in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["none", "least-recently-stored"])
def test_without_marks_nobody_knows_what_is_hot(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Cache(tmp_path, eviction_policy=policy).close()
    assert main.main(["hotkeys", str(tmp_path)]) == 2
    assert f"uses leave no marks under eviction_policy '{policy}'" in capsys.readouterr().err


def test_tags_and_namespaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Cache(tmp_path) as cache:
        cache.set("a", "x" * 10, tags=["one", "two"])
        cache.namespace("inner").set("b", "x" * 50, tag="two")
    assert [(one["tag"], one["entries"]) for one in told(capsys, "tags", str(tmp_path))] == [("two", 2), ("one", 1)]
    assert [one["tag"] for one in told(capsys, "tags", str(tmp_path), "--namespace", "inner")] == ["two"]
    assert [one["key"] for one in told(capsys, "bigkeys", str(tmp_path), "--namespace", "inner")] == ["b"]


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_a_sound_cache_is_healthy(kind: type[Cache], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kind(tmp_path) as cache:
        cache.set_many(dict.fromkeys(range(300), 1), retry=True)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.db")}
        found = told(capsys, "health", str(tmp_path))
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.db")} == before
    assert [one["look"] for one in found] == ["volume", "disk", "journal", "quarantine", "entries", "write lock"]
    assert all(one["ok"] for one in found)
    assert main.main(["health", str(tmp_path), "--count", "5"]) == 0
    assert "ok    entries     5 read, 0 damaged or not readable here\n" in capsys.readouterr().out


def test_what_wants_a_look_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> set[str]:
        return {one["look"] for one in told(capsys, "health", str(tmp_path), code=1) if not one["ok"]}

    with Cache(tmp_path, size_limit=2_000_000) as cache:
        cache.set_many({number: "x" * 1_000 for number in range(1_000)})
    aside = tmp_path / "cache.7.db"
    aside.write_bytes(b"damaged")
    assert wrong() == {"quarantine"}
    aside.unlink()
    with database(tmp_path) as connection:
        connection.execute("UPDATE entry SET v = zeroblob(length(v)) WHERE id = (SELECT min(id) FROM entry)")
    assert wrong() == {"entries"}
    with Cache(tmp_path) as cache:
        cache.check(fix=True)
        cache.clear()
        cache["large"] = b"x" * 100_000
    next(tmp_path.rglob("*.val")).unlink()
    assert wrong() == {"entries"}
    with Cache(tmp_path) as cache:
        cache.clear()
        cache.set_many({number: "x" * 1_000 for number in range(1_000)})
        for module in (monitoring, inspection):
            monkeypatch.setattr(module, "PATIENCE", 0.01)
        with held(cache):
            assert wrong() == {"write lock"}
    monkeypatch.setattr(inspection, "FULL", 0.1)
    monkeypatch.setattr(inspection, "LONG_WAL", -1)
    assert wrong() == {"volume", "journal"}


def test_a_cache_that_cannot_be_used_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["health", str(tmp_path)]) == 2
    (tmp_path / "cache.db").write_bytes(b"no database" * 1_000)
    assert main.main(["health", str(tmp_path)]) == 2
    capsys.readouterr()


# -- top ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def screen(shell: Shell, stocked: Cache, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that has `top` fill a terminal once, and returns its lines."""

    def work(_: float) -> None:
        for number in range(30):
            stocked[f"space \x1b {number}:key"] = number
            assert stocked.get("nothing") is None

    def lines(width: int, height: int, term: str = "xterm") -> list[str]:
        monkeypatch.setattr("diskcache_like.cli.monitoring.time.sleep", work)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        for name, value in (("COLUMNS", width), ("LINES", height), ("TERM", term)):
            monkeypatch.setenv(name, str(value))
        return shell.run("top", "--count", 1, "--interval", 2).splitlines()

    return lines


@pytest.mark.parametrize("level", ["counts", "full"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 50), (1, 1)])
def test_top_fits_on_the_terminal(
    screen: Callable[..., list[str]], stocked: Cache, level: str, width: int, height: int
) -> None:
    stocked.reset("metrics_level", level)
    lines = screen(width, height)
    assert "".join(lines).count("\x1b") == 2
    assert len(lines) <= max(1, height - 1)
    assert max(map(len, lines)) <= width + len(CLEAR)
    if height == 24:
        assert len(lines) == 23, "it is full"
    if height == 50:
        assert sum(line.startswith("space \\x1b") for line in lines) == 30
        assert any(line.startswith("call ") for line in lines) == (level == "full")


def test_top_prints_lines_where_a_terminal_has_no_screen(screen: Callable[..., list[str]]) -> None:
    assert [line.split()[0] for line in screen(80, 24, "dumb")] == ["hits", "0"]
