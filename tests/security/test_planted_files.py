"""Planted names, links and journals: whatever leads out of the directory, nothing there is touched."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import Cache, FanoutCache, UnsafeDirectory
from diskcache_like.encoding.record import MODE_BINARY

from ..support.audit_hooks import Watch
from ..support.hostile_content import NAMES
from ..support.tampering import plant

A = b"\xa1a"  # the stored key of "a"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a closed cache with the entries "a" and "b"."""
    with closing(Cache(tmp_path / "cache", durability="process", generation_slots=1 << 10)) as cache:
        cache["a"], cache["b"] = "one", "two"
    return tmp_path / "cache"


WATCH = Watch()  # a hook stays for the life of the process


def surround(directory: Path) -> Path:
    """Put things beside and into the cache directory that must not be touched; return the one outside."""
    outside = directory.parent / "outside"
    outside.write_text("precious")
    if not (directory / "link").is_symlink():
        (directory / "link").symlink_to(directory.parent)
        os.mkfifo(directory / "fifo")
        (directory / "dir").mkdir()
        (directory / "dir" / "file").touch()
    return outside


USES: list[Callable[[Cache], object]] = [
    lambda cache: cache.get("a"),
    lambda cache: cache.get("a", read=True),
    lambda cache: "a" in cache,
    lambda cache: cache.get_many(["a"]),
    lambda cache: cache.check(),
    lambda cache: cache.pop("a"),
    lambda cache: cache.set("a", "new"),
    lambda cache: cache.delete("b"),
    lambda cache: cache.reset("size_limit", 20_000),
    lambda cache: cache.set("more", "x" * 15_000),
    lambda cache: cache.cull(),
    lambda cache: cache.clear(),
    lambda cache: cache.reset("size_limit", 1 << 30),
]


@pytest.mark.parametrize("where", ["record", "column", "trash"])
def test_a_planted_file_name_leads_nowhere(directory: Path, where: str) -> None:
    outside = surround(directory)
    control = {name: (directory / name).stat().st_ino for name in ("cache.db", "cache.gen", "cache.lock")}
    columns: list[Any] = [*NAMES, *(name.encode() for name in NAMES), b"", b"x" * 15, b"x" * 17, 5, 1.5]
    for name in NAMES if where == "record" else columns:
        if where == "record":
            plant(directory, "UPDATE entry SET v = ? WHERE k = ?", forged_file(name), A)
        elif where == "column":
            plant(directory, "UPDATE entry SET file = ?, size = 8", name)
        else:
            plant(directory, "INSERT OR REPLACE INTO trash VALUES (?, 8, NULL)", name)
        with WATCH.watching(directory), closing(Cache(directory)) as cache:
            for use in USES:
                assert not hasattr(use(cache), "fileno"), name
        assert outside.read_text() == "precious"
        assert {each: (directory / each).stat().st_ino for each in control} == control
        with closing(Cache(directory)) as cache:
            cache["a"], cache["b"] = "one", "two"


def forged_file(name: str) -> bytes:
    """Return a record whose value lies in a file called `name`, with the digest of what lies outside."""
    content = b"precious"
    encoded = name.encode("utf-8", "surrogatepass")[: 2**16 - 1]
    head = struct.pack("<BBidQIH", 2, 0, MODE_BINARY, 0.0, len(content), 0, len(encoded))
    body = head + encoded + crc32(content).to_bytes(4, "little")
    return body + crc32(body, crc32(A)).to_bytes(4, "little")


def test_what_check_mends_stays_inside(directory: Path, tmp_path: Path) -> None:
    outside = surround(directory)
    plant(directory, "UPDATE entry SET v = ? WHERE k = ?", forged_file("link/outside"), A)
    with closing(Cache(directory)) as cache, WATCH.watching(directory):
        cache.check(fix=True)
        assert cache.check(fix=True) == []
    assert outside.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "outside"]


# -- links: our own, too, are refused, since an archive may bring one that leads anywhere ------------------------------


@pytest.mark.parametrize("make", [Cache, FanoutCache])
@pytest.mark.parametrize("content", ["nothing", "a shard"])
def test_a_shard_that_is_a_link_leads_nowhere(tmp_path: Path, make: type[Cache], content: str) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    FanoutCache(directory, shards=2).close()
    (directory / "001").rename(elsewhere)
    if content == "nothing":
        for path in elsewhere.iterdir():
            path.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()}
    (directory / "001").symlink_to(elsewhere)
    with pytest.raises(UnsafeDirectory, match="001"):
        make(directory)
    assert {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


@pytest.mark.parametrize("link", ["cache", "cache/a", "cache/a/b"])
def test_a_named_cache_that_is_a_link_leads_nowhere(tmp_path: Path, link: str) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with FanoutCache(directory, shards=2) as cache:
        (directory / link).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / link).symlink_to(elsewhere)
        with pytest.raises(UnsafeDirectory, match="symbolic link"):
            cache.cache("a/b")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_stands_where_value_files_belong_is_named_and_nothing_is_lost(tmp_path: Path, planted: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Cache(tmp_path / "cache") as cache:
        cache["key"] = "old"
        for number in range(256):
            path = tmp_path / "cache" / f"{number:02x}"
            path.symlink_to(elsewhere) if planted == "link" else path.write_bytes(b"")
        with pytest.raises(UnsafeDirectory, match="value files belong"):
            cache["key"] = "x" * 100_000
        assert cache["key"] == "old"
    assert list(elsewhere.iterdir()) == []


# -- a rollback journal: SQLite would remove the file that it names as its super-journal -------------------------------


MAGIC = bytes.fromhex("d9d505f920a163d7")


def journal(superior: Path, page: int, pages: int) -> bytes:
    """Return a journal of no pages that names a super-journal."""
    name = os.fsencode(superior)
    head = MAGIC + bytes(8) + pages.to_bytes(4, "big") + (512).to_bytes(4, "big") + page.to_bytes(4, "big")
    lock_page = 0x40000000 // page + 1
    tail = lock_page.to_bytes(4, "big") + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + MAGIC
    return head.ljust(512, b"\0") + tail


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_planted_journal_removes_no_file(tmp_path: Path, mode: str) -> None:
    victim, directory = tmp_path / "victim", tmp_path / "cache"
    victim.write_text("mine")
    with Cache(directory, sqlite_journal_mode=mode) as cache:
        cache["key"] = 1
    size = (directory / "cache.db").stat().st_size
    (directory / "cache.db-journal").write_bytes(journal(victim, 4096, size // 4096))
    with pytest.raises(UnsafeDirectory, match="journal"):
        Cache(directory)
    assert victim.read_text() == "mine"
