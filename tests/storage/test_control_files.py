"""What lies beside the entries counts in the limit, and is as large as the limit suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.storage.opening.identity import LEAST_SLOTS

from ..support.inspection import bytes_on_disk

MEBIBYTE = 1 << 20


def sizes(cache: Cache) -> tuple[int, int]:
    """Return the number of slots of a shard, and the bytes of its write buffer."""
    shard = cache._shards.stores[0].shard
    assert shard.ring is not None
    return len(shard.slots), shard.ring.capacity


def control_bytes(cache: Cache) -> int:
    return sum(
        512 * path.stat().st_blocks
        for path in Path(cache.directory).rglob("cache.*")
        if path.suffix in (".gen", ".buffer")
    )


@pytest.mark.parametrize(
    ("settings", "slots", "buffer"),
    [
        ({}, 1 << 16, 1 << 20),
        ({"size_limit": 128 * MEBIBYTE}, 1 << 16, 1 << 20),
        ({"size_limit": 64 * MEBIBYTE}, 1 << 16, 655 << 10 & -4096),
        ({"size_limit": 4 * MEBIBYTE}, 1 << 12, 40 << 10),
        ({"size_limit": 0}, LEAST_SLOTS, 1 << 14),
        ({"size_limit": 0, "eviction_policy": "none"}, 1 << 16, 1 << 20),
        ({"size_limit": 0, "cull_limit": 0}, 1 << 16, 1 << 20),
        ({"size_limit": 4 * MEBIBYTE, "write_buffer": 1 << 18, "generation_slots": 1 << 14}, 1 << 14, 1 << 18),
    ],
)
def test_control_files_are_made_by_the_limit(tmp_path: Path, settings: dict[str, Any], slots: int, buffer: int) -> None:
    with Cache(tmp_path, **settings) as cache:
        assert sizes(cache) == (slots, buffer)
        assert cache.write_buffer == buffer
    with Cache(tmp_path, size_limit=1 << 30) as cache:
        assert sizes(cache) == (slots, buffer), "those that are there keep their size"


def test_a_file_that_is_made_anew_goes_by_the_stored_limit(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=4 * MEBIBYTE) as cache:
        cache["key"] = "value"
        made = sizes(cache)
    for name in ("cache.gen", "cache.buffer"):
        (tmp_path / name).unlink()
    with Cache(tmp_path) as cache:
        assert (cache["key"], sizes(cache)) == ("value", made)


@pytest.mark.parametrize("size", [200, 1_000, 10_000, 40_000])
@pytest.mark.parametrize("shards", [1, 8])
def test_the_limit_counts_all_that_lies_there(tmp_path: Path, shards: int, size: int) -> None:
    limit = 4 * MEBIBYTE
    with FanoutCache(tmp_path, shards=shards, size_limit=limit, timeout=60, durability="process") as cache:
        assert control_bytes(cache) <= limit // 8
        for number in range(6 * MEBIBYTE // size):
            cache[number] = number.to_bytes(4, "big") * (size // 4)
            if number % 100 == 0:
                assert bytes_on_disk(cache) <= 1.02 * limit
        for store in cache._shards.stores:
            with store.locked(None):
                store.trash.empty()
        cache.sync()  # what is in the journal goes to the database
        assert 0.85 * limit < cache.volume() <= 1.01 * limit
        assert abs(bytes_on_disk(cache) - cache.volume()) < 0.05 * limit, "but for free pages"


def test_whoever_removes_until_the_volume_fits_removes_no_more_than_needed(tmp_path: Path) -> None:
    with Cache(tmp_path, clock=lambda: 1_000.0, eviction_policy="none") as cache:
        empty = cache.volume()
        cache.set_many({number: bytes(100_000) for number in range(50)})
        while cache.volume() > empty + 2_600_000:
            cache.pop(next(iter(cache)))
        assert 20 <= len(cache) <= 26
        assert len([*tmp_path.rglob("*.val")]) == 50, "their files stay for a while, for readers"


def test_control_files_take_no_more_than_a_quarter_of_a_limit_that_was_lowered(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["first"] = 1
        assert control_bytes(cache) > 1_500_000
        cache.reset("size_limit", MEBIBYTE)
        for number in range(2_000):
            cache[number] = bytes(1_000)
        assert len(cache) * 1_000 > 0.45 * MEBIBYTE
        assert cache.volume() <= 1.01 * MEBIBYTE
