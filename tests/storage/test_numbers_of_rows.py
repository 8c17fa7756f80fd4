"""The numbers of rows, in whose order they are: they never fail a write, and never make a count wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.coherence.generations import Header
from diskcache_like.errors import CorruptDatabaseWarning

from ..support.tampering import plant

BUFFERED: dict[str, Any] = {}
DIRECT = {"write_buffer": 0}
each_way = pytest.mark.parametrize("settings", [BUFFERED, DIRECT], ids=["buffered", "direct"])


def header_of(cache: Cache) -> Any:
    (store,) = cache._shards.stores
    return store.shard.header


def has(cache: Cache, number: int) -> None:
    cache.flush()
    assert len(cache) == number == len(list(cache))
    assert cache.check() == []


WRITES: dict[str, Callable[[Cache], object]] = {
    "set": lambda cache: [cache.set(("new", number), number) for number in range(20)],
    "set with a tag": lambda cache: [cache.set(("new", number), number, tag="tag") for number in range(20)],
    "set_many": lambda cache: cache.set_many({("new", number): number for number in range(20)}),
    "push": lambda cache: [cache.push(number) for number in range(20)],
}


@each_way
@pytest.mark.parametrize("write", WRITES)
def test_a_row_that_has_the_number_of_the_next_write_is_in_nobodys_way(
    tmp_path: Path, settings: dict[str, Any], write: str
) -> None:
    with Cache(tmp_path, **settings) as cache:
        for key in "abc":
            cache[key] = key
        cache.flush()
        planted = header_of(cache)[Header.TICK] + 8
        cache.close()
        plant(tmp_path, "UPDATE entry SET id = ? WHERE k = ?", planted, cache.disk.stored_key("a"))
        WRITES[write](cache)
        has(cache, 23)


@each_way
def test_a_count_of_writes_that_went_back_fails_no_write(tmp_path: Path, settings: dict[str, Any]) -> None:
    """As where the control files are older than the database."""
    with Cache(tmp_path, **settings) as cache:
        cache["a"] = 1
        cache.close()
        shutil.copy(tmp_path / "cache.gen", tmp_path / "older")
        for number in range(50):
            cache[number] = number
        cache.close()
        (tmp_path / "older").rename(tmp_path / "cache.gen")
        for number in range(100, 140):
            cache[number] = number
        cache.flush()
        assert sorted(set(cache) - {"a"}) == [*range(50), *range(100, 140)]
        assert cache.check() == []


def test_a_touch_that_waits_counts_no_entry(tmp_path: Path) -> None:
    with Cache(tmp_path, eviction_policy="least-frequently-used") as rare, Cache(tmp_path) as cache:
        cache["other"] = 0
        cache.flush()
        rare["key"] = 1
        rare.flush()
        cache.reset("eviction_policy", "least-recently-stored")
        cache.touch("key", expire=100)
        rare.flush()
        has(cache, 2)


def test_keys_that_share_a_place_are_counted_once(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache._rows.modulus = 4
        places: dict[int, list[int]] = {}
        for key in range(100):
            places.setdefault(cache._rows.locate(key)[1], []).append(key)
        (first, second, *_), (other, *_), (before, *_), *_ = places.values()
        cache[before] = 0
        has(cache, 1)
        for key in (first, other, second):
            cache[key] = key
        has(cache, 4)


@pytest.mark.parametrize("number", [-(1 << 63), -1, 0])
def test_a_planted_number_ends_no_iteration(tmp_path: Path, number: int) -> None:
    with Cache(tmp_path) as cache:
        cache.set_many({"a": 1, "b": 2})
        cache.close()
        plant(tmp_path, "UPDATE entry SET id = ? WHERE k = ?", number, cache.disk.stored_key("a"))
        assert list(cache) == ["a", "b"] == list(reversed(list(reversed(cache))))
        assert cache.peekitem(last=False) == ("a", 1)


USES: dict[str, Callable[[Cache], object]] = {
    "iterate": list,
    "clear": Cache.clear,
    "cull": lambda cache: (cache.reset("size_limit", 1), cache.cull()),
}


@pytest.mark.parametrize("place", ["text", b"blob", 0.5])
@pytest.mark.parametrize("use", USES)
def test_a_place_that_is_no_number_is_damage(tmp_path: Path, place: object, use: str) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:
        cache.set_many({"a": 1, "b": 2})
    plant(tmp_path, "UPDATE entry SET h = ? WHERE k = ?", place, cache.disk.stored_key("a"))
    with Cache(tmp_path, hot_size_limit=0) as cache:
        with pytest.warns(CorruptDatabaseWarning):
            USES[use](cache)
        cache.reset("size_limit", 1 << 30)
        cache["a"] = 2
        assert list(cache) == ["a"]
        assert cache.check() == []
