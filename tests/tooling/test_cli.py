"""The command line: looking at caches and working on them from the shell."""

from __future__ import annotations

import io
import os
import pty
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.cli import main

from ..support.command_line import LIMIT, Shell


@pytest.fixture
def cache(stocked: Cache) -> Cache:
    return stocked


def test_get_prints_the_value(shell: Shell) -> None:
    assert shell.run("get", "user:1") == '{"name": "Ada"}\n'
    assert shell.run("get", "user:2") == "Grace\\x1b[2J\n"
    assert shell.run("get", 3, "--key-type", "int") == "b'\\x00\\xff'\n"
    assert shell.run("get", "nothing", code=1) == ""
    assert "no entry under the text key 'nothing'; keys of other types need --key-type" in shell.err


def test_a_number_that_is_too_long_to_show_is_told(shell: Shell, cache: Cache) -> None:
    huge = 10**5000
    cache["huge"] = cache[huge] = huge
    for arguments in (("get", "huge"), ("get", "huge", "--json"), ("keys",), ("keys", "--json")):
        assert "<int with an integer too long to show>" in shell.run(*arguments)


def test_get_with_json_prints_the_entry(shell: Shell, cache: Cache) -> None:
    (entry,) = shell.json("get", "user:2")
    assert entry == {
        "value": "Grace\x1b[2J",
        "expire_time": cache.get("user:2", expire_time=True)[1],
        "tags": ["users"],
        "size": cache.get_entry("user:2").size,
        "version": cache.get_entry("user:2").version,
    }
    assert shell.json("get", "day")[0]["value"] == {"repr": "datetime.date(2026, 1, 2)"}


@pytest.mark.parametrize(("value", "written"), [(b"\x00\xff", b"\x00\xff"), ("\ud800", b"\xed\xa0\x80")])
def test_get_raw_writes_the_bytes(value: str | bytes, written: bytes, shell: Shell, cache: Cache) -> None:
    cache["raw"] = value
    command = [sys.executable, "-m", "diskcache_like", "get", str(shell.directory), "raw", "--raw"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout == written


@pytest.mark.parametrize(
    "arguments",
    [
        ("keys", "--limit", -1),
        ("watch", "--count", 0),
        ("watch", "--interval", -1),
        ("watch", "--interval", "nan"),
        ("watch", "--interval", "inf"),
        ("copy", "target", "--shards", 0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments: tuple[str, ...], shell: Shell) -> None:
    with pytest.raises(SystemExit, match="2"):
        shell.run(*arguments)


def test_set_stores_and_delete_removes(shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run("set", "new", "17", "--value-type", "int", "--expire", 100, "--tag", "numbers")
    value, expiry, tag = cache.get("new", expire_time=True, tag=True)
    assert (value, tag) == (17, "numbers")
    assert expiry is not None
    shell.run("set", "00ff", '{"a": [1]}', "--key-type", "bytes", "--value-type", "json")
    assert cache[b"\x00\xff"] == {"a": [1]}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("from the pipe, ü\r\n".encode())))
    shell.run("set", "piped", "-")
    assert cache["piped"] == "from the pipe, ü\r\n"
    shell.run("delete", "piped")
    assert "piped" not in cache
    shell.run("delete", "piped", code=1)


def test_binary_input_is_stored_as_it_is_or_refused(
    shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (b"\xff\x00\r\n", b"a\r\nb\r"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        shell.run("set", "blob", "-", "--value-type", "bytes")
        assert cache["blob"] == data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
    shell.run("set", "blob", "-", code=2)
    assert "not UTF-8 text" in shell.err
    assert "--value-type bytes" in shell.err
    for arguments in (("\udcff", "value"), ("blob", "\udcff")):  # as Python decodes an argument that is not text
        shell.run("set", *arguments, code=2)
        assert "in hexadecimal" in shell.err
    assert cache["blob"] == b"a\r\nb\r"


@pytest.mark.parametrize("arguments", [("x", "1", "--key-type", "int"), ("key", "{", "--value-type", "json")])
def test_what_is_not_of_its_type_is_named_and_nothing_stored(
    arguments: tuple[str, ...], shell: Shell, cache: Cache
) -> None:
    before = list(cache)
    shell.run("set", *arguments, code=2)
    assert "is not" in shell.err
    assert list(cache) == before


def test_set_makes_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["set", str(tmp_path / "typo"), "key", "value"]) == 2
    assert not (tmp_path / "typo").exists()


def test_keys_by_prefix_tag_and_limit(shell: Shell) -> None:
    assert shell.run("keys").splitlines() == ["user:1", "user:2", "3", "day"]
    assert sorted(shell.run("keys", "--prefix", "user:").splitlines()) == ["user:1", "user:2"]
    assert shell.run("keys", "--glob", "us*[^1]").splitlines() == ["user:2"]
    assert shell.run("keys", "--tag", "users", "--limit", 1).splitlines() == ["user:1"]
    assert [entry["key"] for entry in shell.json("keys")] == ["user:1", "user:2", 3, "day"]


def test_evict_by_tag(shell: Shell, cache: Cache) -> None:
    assert shell.json("evict", "--tag", "users") == [{"removed": 2}]
    assert list(cache) == [3, "day"]


def test_delete_by_prefix(shell: Shell, cache: Cache) -> None:
    cache.namespace("inner")["user:3"] = 1
    cache[b"user:4"] = 1
    assert shell.json("delete", "--prefix", "user:") == [{"removed": 2}]
    assert shell.run("delete", "--prefix", "user:") == "0 entries removed\n"
    assert len(cache) == 4
    assert shell.json("delete", "--prefix", "user:", "--namespace", "inner") == [{"removed": 1}]
    for arguments in (("--prefix", ""), ("--prefix", "1", "--key-type", "int")):
        shell.run("delete", *arguments, code=2)
        assert "text that is not empty" in shell.err
    shell.run("delete", "--key-type", "int", 3)
    assert set(cache) == {"day", b"user:4"}


def test_delete_by_prefix_goes_through_all_pages(shell: Shell, cache: Cache) -> None:
    cache.set_many({f"{'ab'[number % 2]}{number}": number for number in range(5000)})
    assert shell.json("delete", "--prefix", "a") == [{"removed": 2500}]
    assert cache.count(prefix="a") == 0
    assert cache.count(prefix="b") == 2500


def test_touch(shell: Shell, cache: Cache) -> None:
    shell.run("touch", "user:1", "--expire", 100)
    assert cache.get("user:1", expire_time=True)[1] is not None
    shell.run("touch", "user:2")
    assert cache.get("user:2", expire_time=True)[1] is None
    shell.run("touch", "nothing", code=1)
    shell.run("touch", "user:1", "--expire", -1, code=2)
    assert "expire" in shell.err


def test_expire_and_cull(shell: Shell, cache: Cache) -> None:
    cache.reset("cull_limit", 0)
    cache.set("gone", 1, expire=0)
    assert shell.json("expire") == [{"removed": 1}]
    assert shell.run("expire") == "0 entries removed\n"
    cache.set_many({number: bytes(1000) for number in range(500)})
    cache.reset("size_limit", 200_000, update=True)
    (found,) = shell.json("cull")
    assert found["removed"] > 250
    assert cache.volume() <= 200_000


def test_reset_shows_and_stores_settings(shell: Shell, cache: Cache) -> None:
    assert shell.run("reset", "cull_limit") == "10\n"
    assert shell.run("reset", "eviction_policy") == "second-chance\n"
    assert shell.json("reset", "cull_limit", 20) == [{"cull_limit": 20}]
    assert shell.json("reset", "eviction_policy", "none") == [{"eviction_policy": "none"}]
    assert shell.json("reset", "compress_level", "null") == [{"compress_level": None}]
    with Cache(cache.directory) as other:
        assert (other.cull_limit, other.eviction_policy) == (20, "none")
    for arguments, message in ((("cull_limt", 1), "cull_limit"), (("cull_limit", "many"), "expected an integer")):
        shell.run("reset", *arguments, code=2)
        assert message in shell.err


def test_stats_says_what_was_counted_and_how_full_it_is(shell: Shell, cache: Cache) -> None:
    cache.reset("size_limit", 4 * cache.volume())
    told = shell.json("stats")[0]
    assert (told["entries"], told["hits"], told["misses"]) == (4, 0, 0)
    assert (told["size_limit"], told["eviction_policy"]) == (4 * told["bytes"], "second-chance")
    assert "25% of size_limit" in shell.run("stats")
    cache.reset("eviction_policy", "none")
    cache.get("user:1")
    cache.get("nothing")
    assert [shell.json("stats")[0][name] for name in ("hits", "misses")] == [1, 1]
    assert "nothing is evicted" in shell.run("stats")


def test_version_says_what_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main.main(["--version"])
    assert f", SQLite {sqlite3.sqlite_version}, checksums by zlib" in capsys.readouterr().out


def test_what_the_terminal_cannot_show_is_escaped(shell: Shell, cache: Cache) -> None:
    cache["日本"] = "日本"
    command = [sys.executable, "-m", "diskcache_like", "keys", str(shell.directory)]
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=LIMIT, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert b"\\u65e5\\u672c\n" in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_closed_stream_is_an_empty_one(closed: str, shell: Shell) -> None:
    for command, code in (("stats", 0), ("set key - --value-type bytes", 0), ("clear", 2)):
        name, *rest = command.split()
        line = f'"{sys.executable}" -m diskcache_like {name} "{shell.directory}" {" ".join(rest)} {closed}'
        done = subprocess.run(
            ["sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


def test_set_only_if_nothing_changed(shell: Shell, cache: Cache) -> None:
    shell.run("set", "new", "1", "--if-version", 0)
    shell.run("set", "new", "2", "--if-version", 0, code=1)
    assert "another version" in shell.err
    version = shell.json("get", "new")[0]["version"]
    shell.run("set", "new", "3", "--if-version", version)
    shell.run("set", "new", "4", "--if-version", version, code=1)
    assert cache["new"] == "3"


def test_retag(shell: Shell, cache: Cache) -> None:
    shell.run("retag", "user:1", "--add", "admins", "--add", "active", "--remove", "users")
    assert cache.get_entry("user:1").tags == ("active", "admins")
    shell.run("retag", "nobody", "--add", "admins", code=1)
    shell.run("retag", 3, "--key-type", "int", "--add", 7, "--tag-type", "int")
    assert cache.get_entry(3).tags == (7,)


def test_within_a_namespace(shell: Shell, cache: Cache) -> None:
    outer = cache.namespace("outer")
    within = ("--namespace", "outer", "--namespace", "inner")
    shell.run("set", "key", "new", "--tag", "t", *within)
    inner = outer.namespace("inner")
    assert inner.get("key", tag=True) == ("new", "t")
    assert "key" not in cache
    inner["other"] = [1]
    assert shell.run("get", "key", *within) == "new\n"
    shell.run("get", "key", code=1)
    assert sorted(shell.run("keys", *within).splitlines()) == ["key", "other"]
    assert shell.run("keys", "--tag", "t", *within).splitlines() == ["key"]
    assert shell.run("keys", "--namespace", "outer") == ""
    sizes = {row["type"]: row["entries"] for row in shell.json("sizes", "--by", "type", *within)}
    assert sizes == {"str": 1, "list": 1}
    shell.run("retag", "other", "--add", "users", *within)
    assert shell.json("evict", "--tag", "users", *within) == [{"removed": 1}]
    assert cache.count(tags=["users"]) == 2
    shell.run("delete", "key", *within)
    shell.run("delete", "key", *within, code=1)
    inner["key"] = outer["key"] = 1
    assert shell.json("clear", "--yes", "--namespace", "outer") == [{"removed": 2}]
    assert len(cache) == 4
    shell.run("keys", "--namespace", "", code=2)
    assert "expected text that is not empty" in shell.err


def test_a_tag_may_be_a_number(shell: Shell, cache: Cache) -> None:
    cache.set("a", 1, tag=7)
    shell.run("set", "b", "2", "--tag", "7", "--tag-type", "int")
    shell.run("set", "c", "3", "--tag", "7")
    assert shell.run("keys", "--tag", "7", "--tag-type", "int").splitlines() == ["a", "b"]
    assert shell.json("evict", "--tag", "7", "--tag-type", "int") == [{"removed": 2}]
    assert shell.run("keys", "--tag", "7").splitlines() == ["c"]
    shell.run("keys", "--tag", "x", "--tag-type", "int", code=2)
    assert "'x' is not int" in shell.err


@pytest.mark.parametrize("by", ["prefix", "tag", "type"])
def test_a_look_at_sizes_counts_no_hit(by: str, shell: Shell, cache: Cache) -> None:
    before = shell.json("stats")
    shell.run("sizes", "--by", by)
    assert shell.json("stats") == before


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("prefix", {"user:": 2, "(int)": 1, "(none)": 1}),
        ("tag", {"users": 2, "(none)": 2}),
        ("type", {"dict": 1, "str": 1, "bytes": 1, "date": 1}),
    ],
)
def test_sizes_by_group(by: str, groups: dict[str, int], shell: Shell, cache: Cache) -> None:
    found = shell.json("sizes", "--by", by)
    assert {group[by]: group["entries"] for group in found} == groups
    assert sum(group["bytes"] for group in found) == sum(cache.get_entry(key).size for key in cache)
    assert shell.run("sizes", "--by", by).splitlines()[1].split() == [by, "entries", "bytes"]


def test_watch_counts_what_others_do(shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.reset("size_limit", 200_000)

    def work(seconds: float) -> None:
        assert seconds == 2.5
        cache["now"] = 1
        cache.get("now")
        cache.get("nothing")
        for number in range(5):
            cache[f"large {number}"] = os.urandom(60_000)

    monkeypatch.setattr("diskcache_like.cli.monitoring.time.sleep", work)
    first, second = shell.json("watch", "--interval", 2.5, "--count", 2)
    assert first["hits"] == second["hits"] == 1
    assert first["misses"] == second["misses"] == 1
    assert first["writes"] == second["writes"] == 6  # to which evictions do not add
    assert second["evictions"] > 0
    assert shell.run("watch", "--interval", 2.5, "--count", 1).splitlines()[0].split() == [
        "hits",
        "misses",
        "writes",
        "evictions",
    ]


def test_clear_asks(shell: Shell, cache: Cache) -> None:
    def answer(text: bytes) -> int:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "diskcache_like", "clear", str(shell.directory)]
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            os.write(ours, text)
            process.communicate(timeout=LIMIT)
        os.close(ours)
        return process.returncode

    assert answer(b"no\n") == 1
    assert len(cache) == 4
    assert answer(b"y\n") == 0
    assert len(cache) == 0


def test_clear_without_a_terminal_needs_yes(shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    shell.run("clear", code=2)
    assert "--yes" in shell.err
    assert len(cache) == 4
    assert shell.json("clear", "--yes") == [{"removed": 4}]


@pytest.mark.parametrize("shell_name", main.SHELLS)
def test_completion_knows_the_commands(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell_name]) == 0
    script = capsys.readouterr().out
    for command in ("stats", "watch", "reset", "expire", "cull", "touch", "export", "migrate"):
        assert command in script


def test_completion_says_what_to_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main.main(["completion", "bash"]) == 2
    assert "pip install 'diskcache-like[completion]'" in capsys.readouterr().err
