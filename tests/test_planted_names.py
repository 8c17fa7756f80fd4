"""Planted file names: whatever a row, a record or the trash calls a file, nothing outside the directory is touched."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import Cache
from diskcache_like.record import MODE_BINARY

from .forging import plant
from .planting import NAMES
from .watching import Watch

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
