"""The command line: looking at caches and working on them from the shell."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest

from diskcache_like import Cache, Deque, FanoutCache, SecretError
from diskcache_like.cli import main, opening

from ..support.cache_kinds import NEEDS_CIPHER, SECRET

LIMIT = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass


class Shell:
    """Runs commands on the test's cache and keeps what they print."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capsys = capsys
        self.err = ""

    def run(self, command: str, *arguments: object, code: int = 0) -> str:
        """Run a command on the cache; return what it printed."""
        self._capsys.readouterr()
        found = main.main([command, str(self.directory), *map(str, arguments)])
        out, self.err = self._capsys.readouterr()
        assert found == code, self.err
        return out

    def json(self, command: str, *arguments: object, code: int = 0) -> list[Any]:
        """Run a command with `--json`; return the objects that it printed."""
        return [json.loads(line) for line in self.run(command, "--json", *arguments, code=code).splitlines()]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache") as made:
        made.set("user:1", {"name": "Ada"}, tag="users")
        made.set("user:2", "Grace\x1b[2J", tag="users", expire=3600)
        made[3] = b"\x00\xff"
        made["day"] = date(2026, 1, 2)
        yield made


@pytest.fixture
def shell(cache: Cache, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(Path(cache.directory), capsys)


def test_get_prints_the_value(shell: Shell) -> None:
    assert shell.run("get", "user:1") == '{"name": "Ada"}\n'
    assert shell.run("get", "user:2") == "Grace\\x1b[2J\n"
    assert shell.run("get", 3, "--key-type", "int") == "b'\\x00\\xff'\n"
    assert shell.run("get", "nothing", code=1) == ""


def test_get_with_json_prints_the_entry(shell: Shell, cache: Cache) -> None:
    (entry,) = shell.json("get", "user:2")
    assert entry == {
        "value": "Grace\x1b[2J",
        "expire_time": cache.get("user:2", expire_time=True)[1],
        "tag": "users",
        "size": cache.get_entry("user:2").size,
    }
    assert shell.json("get", "day")[0]["value"] == {"repr": "datetime.date(2026, 1, 2)"}


def test_get_raw_writes_the_bytes(shell: Shell) -> None:
    command = [sys.executable, "-m", "diskcache_like", "get", str(shell.directory), "3", "--key-type", "int", "--raw"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout == b"\x00\xff"


def test_get_raw_writes_any_text(shell: Shell, cache: Cache) -> None:
    cache["half"] = "\ud800"
    command = [sys.executable, "-m", "diskcache_like", "get", str(shell.directory), "half", "--raw"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout == b"\xed\xa0\x80"


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
    monkeypatch.setattr(sys, "stdin", io.StringIO("from the pipe"))
    shell.run("set", "piped", "-")
    assert cache["piped"] == "from the pipe"
    shell.run("delete", "piped")
    assert "piped" not in cache
    shell.run("delete", "piped", code=1)


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
    assert shell.run("keys", "--prefix", "user:").splitlines() == ["user:1", "user:2"]
    assert shell.run("keys", "--tag", "users", "--limit", 1).splitlines() == ["user:1"]
    assert [entry["key"] for entry in shell.json("keys")] == ["user:1", "user:2", 3, "day"]


def test_evict_by_tag(shell: Shell, cache: Cache) -> None:
    assert shell.json("evict", "--tag", "users") == [{"removed": 2}]
    assert list(cache) == [3, "day"]


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
    cache.stats(enable=True, reset=True)
    cache.reset("size_limit", 200_000)

    def work(seconds: float) -> None:
        assert seconds == 2.5
        cache["now"] = 1
        cache.get("now")
        cache.get("nothing")
        for number in range(5):
            cache[f"large {number}"] = os.urandom(60_000)

    monkeypatch.setattr("diskcache_like.cli.whole.time.sleep", work)
    first, second = shell.json("watch", "--interval", 2.5, "--count", 2)
    assert first["hits"] == second["hits"] == 1
    assert first["misses"] == second["misses"] == 1
    assert first["writes"] >= 5
    assert second["evictions"] > 0
    assert shell.run("watch", "--interval", 2.5, "--count", 1).splitlines()[0].split() == [
        "hits",
        "misses",
        "writes",
        "evictions",
    ]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_what_is_exported_is_imported_again(form: str, shell: Shell, cache: Cache, tmp_path: Path) -> None:
    file = tmp_path / "exported"
    left_out = [3, "day"] if form == "json" else []
    shell.run("export", "--format", form, "--output", file, code=1 if left_out else 0)
    assert shell.err.count("left out") == len(left_out) + 1
    other = tmp_path / "other"
    assert main.main(["import", str(other), "--input", str(file)]) == 0
    with Cache(other) as imported:
        assert list(imported) == [key for key in cache if key not in left_out]
        for key in imported:
            assert imported[key] == cache[key]
            assert imported.get(key, tag=True) == cache.get(key, tag=True)
            ours, theirs = (one.get(key, expire_time=True)[1] for one in (imported, cache))
            assert ours == (None if theirs is None else pytest.approx(theirs, abs=LIMIT))


def test_msgpack_holds_whatever_a_cache_holds(
    shell: Shell, cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = numpy.arange(30_000)
    cache["array"] = array
    cache["object"] = slice(1, 2)
    cache[Decimal("1.50")] = {1: (2, {3})}
    cache["bytes"] = b"\xff" * 100_000
    cache.push("first", prefix="jobs")
    file, other = tmp_path / "file", tmp_path / "other"
    shell.run("export", "--format", "msgpack", "--output", file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert main.main(["import", str(other), "--input", str(file)]) == 0
    with Cache(other) as imported:
        assert list(imported) == list(cache)
        assert list(map(type, imported)) == list(map(type, cache))
        assert imported["array"].tolist() == array.tolist()
        assert imported["object"] == slice(1, 2)
        assert imported[Decimal("1.5")] == {1: (2, {3})}
        assert imported["bytes"] == cache["bytes"]
        assert imported.pull(prefix="jobs")[1] == "first"


def test_a_pickle_that_another_secret_signed_is_not_imported(
    shell: Shell, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.clear()
    cache["object"] = slice(1, 2)
    shell.run("export", "--format", "msgpack", "--output", tmp_path / "file")
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    shell.directory = tmp_path / "other"
    shell.run("import", "--input", tmp_path / "file", code=2)
    assert "secret" in shell.err


def test_export_counts_what_it_cannot_read(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    cache["large"] = "x" * 100_000
    (value_file,) = Path(cache.directory).rglob("*.val")
    value_file.unlink()
    shell.run("export", "--format", "msgpack", "--output", tmp_path / "file", code=1)
    assert "4 entries written, 1 left out" in shell.err


def test_expired_entries_are_not_imported(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"key": "a", "value": 1, "expire_time": 5.0, "tag": null}\n')
    assert shell.json("import", "--input", file) == [{"stored": 0, "expired": 1, "left_out": 0}]


@pytest.mark.parametrize(
    "data",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"key": 1}\n',
        b'{"key": "a", "value": 1, "expire_time": "soon", "tag": null}\n',
        b"diskcache_like export 1\n\x00\x00",
        b"diskcache_like export 1\n\x00\x00\x00\x09short",
        b"diskcache_like export 1\n\x00\x00\x00\x01\xc1",
        b"diskcache_like export 1\n\x00\x00\x00\x01\x01",
    ],
)
def test_a_malformed_file_is_refused_with_the_number_of_the_entry(data: bytes, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    shell.run("import", "--input", file, code=2)
    assert "entry 1 of the file" in shell.err


def test_copy_takes_limits_and_codec_along_or_others(shell: Shell, cache: Cache, tmp_path: Path) -> None:
    cache.reset("size_limit", 1 << 25)
    target = tmp_path / "target"
    assert shell.json("copy", target) == [{"copied": 4, "left_out": 0, "children": []}]
    with Cache(target) as copied:
        assert copied.reset("size_limit") == 1 << 25
        assert list(copied) == list(cache)
    wide = tmp_path / "wide"
    shell.run("copy", wide, "--shards", 2, "--compressor", "zlib", "--set", "size_limit=30000000")
    with FanoutCache(wide) as copied:
        assert len(copied._shards.stores) == 2
        assert copied.reset("size_limit") == 30_000_000
        assert {key: copied[key] for key in copied} == {key: cache[key] for key in cache}


@NEEDS_CIPHER
def test_a_copy_of_an_encrypted_cache_is_encrypted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "source", secret=SECRET, encrypt=True) as source:
        source["key"] = "nobody shall read this"
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "target")]) == 0
    with Cache(tmp_path / "target", encrypt=True) as target:
        assert target["key"] == "nobody shall read this"
    assert not any(b"nobody" in path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file())
    with pytest.raises(SecretError):
        Cache(tmp_path / "target", secret="another secret than that")
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET")
    Cache(tmp_path / "clear").close()
    monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "clear")]) == 2


def test_a_copy_has_the_shards_and_the_length_limit_of_its_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FanoutCache(tmp_path / "wide", shards=3) as wide:
        wide["key"] = 1
    assert main.main(["copy", str(tmp_path / "wide"), str(tmp_path / "other")]) == 0
    with FanoutCache(tmp_path / "other") as copied:
        assert len(copied._shards.stores) == 3
    Deque("abc", str(tmp_path / "deque"), maxlen=3).cache.close()
    assert main.main(["copy", str(tmp_path / "deque"), str(tmp_path / "ends")]) == 0
    ends = Deque(directory=str(tmp_path / "ends"))
    assert (list(ends), ends.maxlen) == (["a", "b", "c"], 3)


def test_copy_tells_of_children_that_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FanoutCache(tmp_path / "source", shards=2) as source:
        source["key"] = 1
        source.cache("child")["key"] = 2
    assert main.main(["copy", str(tmp_path / "source"), str(tmp_path / "target")]) == 1
    assert "not copied: cache/child" in capsys.readouterr().err


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


LOOKS = (
    ["stats"],
    ["keys"],
    ["get", "user:1"],
    ["sizes"],
    ["check"],
    ["export", "--format", "msgpack", "--output", "/dev/null"],
)


@pytest.mark.parametrize("arguments", LOOKS, ids=lambda arguments: arguments[0])
def test_what_only_looks_needs_no_right_to_write(
    arguments: list[str], shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["large"] = "x" * 100_000
    cache.close()
    whole = shell.run(*arguments)
    access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode, **more: (
            not mode & os.W_OK and access(path, mode, **more)
            if os.fspath(path) == str(shell.directory)
            else access(path, mode, **more)
        ),
    )
    before = {path: path.stat().st_mtime_ns for path in shell.directory.rglob("*")}
    assert shell.run(*arguments) == whole
    assert "temporary copy" in shell.err
    assert {path: path.stat().st_mtime_ns for path in shell.directory.rglob("*")} == before


@pytest.fixture
def unwritable(shell: Shell, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the cache, closed and as if this user, whoever that is, could not write it."""
    cache.close()
    access = os.access

    def answer(path: Any, mode: int, **more: Any) -> bool:
        return not (mode & os.W_OK and os.fspath(path) == str(shell.directory)) and access(path, mode, **more)

    monkeypatch.setattr(os, "access", answer)
    return shell.directory


def test_looking_follows_no_link_and_waits_for_no_pipe(shell: Shell, unwritable: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    outside.chmod(0o644)
    (unwritable / "link").symlink_to(outside)
    (unwritable / "folder").symlink_to(tmp_path)
    os.mkfifo(unwritable / "pipe")
    assert "entries" in shell.run("stats")
    assert outside.stat().st_mode & 0o777 == 0o644


def test_the_directory_itself_may_be_given_by_a_link(
    shell: Shell, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.close()
    shell.directory = tmp_path / "link"
    shell.directory.symlink_to(cache.directory)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "link" not in os.fspath(path) and access(path, mode))
    assert len(shell.run("keys").splitlines()) == 4


def test_a_look_at_a_copy_names_the_original(shell: Shell, cache: Cache, unwritable: Path) -> None:
    cache["large"] = "x" * 100_000
    cache.close()
    (value_file,) = unwritable.rglob("*.val")
    value_file.unlink()
    found = shell.run("check", code=1)
    assert str(unwritable / "cache.db") in found
    assert "diskcache-" not in found
    (unwritable / "cache.db").write_bytes(b"\xff" * 8192)
    (unwritable / "cache.db-wal").unlink(missing_ok=True)
    shell.run("stats", code=2)
    assert str(unwritable) in shell.err
    assert "diskcache-" not in shell.err.splitlines()[-1].removeprefix("diskcache-like: ")


def test_a_database_that_changes_while_it_is_copied_is_copied_again(
    shell: Shell, unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = opening._copy
    turns: list[int] = []

    def interrupted(directory: str, target: str, values: bool) -> None:
        copy(directory, target, values)
        if len(turns) < changes:
            turns.append(len(turns))
            os.utime(unwritable / "cache.db", ns=(len(turns), len(turns)))

    monkeypatch.setattr(opening, "_copy", interrupted)
    changes = opening.COPIES - 1
    assert "entries" in shell.run("stats")
    turns.clear()
    changes = opening.COPIES
    shell.run("stats", code=2)
    assert "try again" in shell.err


def test_check_without_the_secret_needs_no_right_to_write(shell: Shell, unwritable: Path, tmp_path: Path) -> None:
    shutil.rmtree(unwritable)
    Cache(tmp_path / "signed", secret="a secret for tests only").close()
    (tmp_path / "signed").rename(unwritable)
    assert "looked at from outside only" in shell.run("check", code=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_stats_on_a_volume_that_is_mounted_read_only(shell: Shell, cache: Cache) -> None:
    cache.close()
    directory = str(shell.directory)
    looks = f'"{sys.executable}" -m diskcache_like stats "{directory}"'
    script = f'mount --bind "{directory}" "{directory}" && mount -o remount,ro,bind "{directory}" && {looks}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=LIMIT
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert "entries" in done.stdout


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "tcsh"])
def test_completion_knows_the_commands(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell_name]) == 0
    script = capsys.readouterr().out
    for command in ("stats", "watch", "export", "migrate"):
        assert command in script
