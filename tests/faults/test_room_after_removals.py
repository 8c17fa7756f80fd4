"""What was removed from a full disk makes room, however many pages the disk has, and whichever call removed it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from diskcache_like import Cache, Deque, Index
from diskcache_like.errors import DiskFull

from ..support.small_disks import Disk

OPTIONS: dict[str, Any] = {"generation_slots": 16, "hot_size_limit": 0, "eviction_policy": "none"}
PAGE = 4096
SIZE = 200
NUMBER = 20  # entries that are removed


def by_key(cache: Cache, number: int) -> None:
    cache[number] = bytes(SIZE)


def by_queue(cache: Cache, _: int) -> None:
    cache.push(bytes(SIZE))


def in_one_transaction(cache: Cache) -> None:
    with cache.transact():
        for number in range(NUMBER):
            del cache[number]


# How the cache is filled, and what removes entries.
REMOVALS: dict[str, tuple[Callable[[Cache, int], None], Callable[[Cache], object]]] = {
    "delete": (by_key, lambda cache: [cache.delete(number) for number in range(NUMBER)]),
    "pop": (by_key, lambda cache: [cache.pop(number) for number in range(NUMBER)]),
    "popitem": (by_key, lambda cache: [Index.fromcache(cache).popitem(last=False) for _ in range(NUMBER)]),
    "transact": (by_key, in_one_transaction),
    "pull": (by_queue, lambda cache: [cache.pull() for _ in range(NUMBER)]),
    "popleft": (by_queue, lambda cache: [Deque.fromcache(cache).popleft() for _ in range(NUMBER)]),
}


def full(disk: Disk, store: Callable[[Cache, int], None]) -> Cache:
    """Return a cache whose entries have filled the disk to the last page."""
    cache = Cache(disk.path / "cache", **OPTIONS)
    with suppress(DiskFull):
        for number in range(100_000):
            store(cache, number)
    disk.fill()
    with suppress(DiskFull):
        cache["new"] = bytes(30_000)
    return cache


@pytest.mark.parametrize("removal", REMOVALS)
def test_what_is_removed_makes_room(disk: Disk, removal: str) -> None:
    store, remove = REMOVALS[removal]
    for pages in range(0, 24, 3):
        (disk.path / "others").write_bytes(bytes(PAGE * pages))
        with closing(full(disk, store)) as cache:
            before = len(cache)
            remove(cache)
            assert len(cache) == before - NUMBER
            for number in range(3):
                cache["new", number] = b"n" * (SIZE // 2)
            assert cache["new", 2] == b"n" * (SIZE // 2)
            assert cache.check() == []
        shutil.rmtree(disk.path / "cache")
        disk.empty()
