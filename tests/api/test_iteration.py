"""Iteration: iter, reversed, iterkeys and len, while the cache changes and after it was closed."""

from __future__ import annotations

import datetime as dt
import enum
import shutil
from collections import Counter, OrderedDict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, Index
from diskcache_like.errors import DirectoryError
from diskcache_like.operations.iteration import COMPLETIONS

from ..support.cache_kinds import Clock, Opener, exact, few, ordered
from .test_reading import identical


class Colour(enum.StrEnum):
    RED = "red"


def test_every_key_comes_once(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    keys = [f"key {number}" for number in range(330)]
    assert list(cache) == list(reversed(cache)) == list(cache.iterkeys()) == []
    cache.set_many(dict.fromkeys(keys, 1))
    for handle in (cache, other):
        assert sorted(handle) == sorted(keys)
        assert Counter(reversed(handle)) == Counter(keys)
        assert list(handle.iterkeys()) == sorted(keys)
        assert list(handle.iterkeys(reverse=True)) == sorted(keys, reverse=True)
    assert list(reversed(cache)) == list(reversed(list(cache)))


@ordered
def test_keys_come_in_order_of_insertion(cache: Cache) -> None:
    for number in (5, 3, 9, 1, 7):
        cache[number] = number
    cache[3] = "overwritten"
    cache.incr(9)
    cache.touch(5, 100)
    del cache[1]
    cache[1] = "again"
    assert list(cache) == [5, 3, 9, 7, 1]
    assert list(reversed(cache)) == [1, 7, 9, 3, 5]
    cache.close()
    assert list(cache) == [5, 3, 9, 7, 1]


def test_iteration_opens_a_closed_cache(cache: Cache) -> None:
    cache["key"] = 1
    for iterate in (iter, reversed, Cache.iterkeys):
        cache.close()
        for key in iterate(cache):  # a call of list() would ask for the length first
            assert key == "key"
    cache.close()
    assert len(cache) == 1


def test_what_comes_during_the_iteration_is_left_out(cache: Cache) -> None:
    cache.set_many({f"key {number}": number for number in range(150)})
    seen = []
    for key in cache:
        seen.append(key)
        cache[f"new {key}"] = 1
        cache[key] = "overwritten"
    assert sorted(seen) == sorted(f"key {number}" for number in range(150))
    assert len(cache) == 300


def test_what_goes_during_the_iteration_is_harmless(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    keys = [f"key {number}" for number in range(250)]
    cache.set_many(dict.fromkeys(keys, 1))
    seen = []
    for key in cache:
        seen.append(key)
        if len(seen) == 10:
            other.clear()
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(keys)
    assert len(seen) < 250, "only what was read already still comes"
    iterator = iter(cache)
    cache["key"] = 1
    cache.close()
    assert list(iterator) in ([], ["key"])


def test_a_loop_may_delete_what_it_sees(cache: Cache) -> None:
    cache.set_many({f"key {number}": number for number in range(120)})
    for key in cache:
        del cache[key]
    assert len(cache) == 0


def test_expired_entries_are_among_them_until_they_are_removed(cache: Cache, clock: Clock) -> None:
    cache.reset("cull_limit", 0)
    cache.set("key", 1, expire=1)
    clock.advance(1)
    assert list(cache) == list(cache.iterkeys()) == ["key"]
    assert len(cache) == 1
    assert cache.expire() == 1
    assert list(cache) == []


@exact
def test_keys_come_back_as_they_were_given(cache: Cache) -> None:
    keys: list[Any] = [
        1.0, True, -(2**70), "text", "\ud800", b"bytes", None, ..., (1, ("a", 2.0)), 2.5, Decimal("1.50"), Colour.RED,
        frozenset({1.0, "a"}), dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.date(2024, 1, 1), [1, 2], {"b": 1, "a": [2]}, bytearray(b"key"), OrderedDict(z=1),
    ]  # fmt: skip
    for key in keys:
        cache.clear()
        cache[key] = 1
        (back,) = cache
        assert identical(back, key), key
        assert next(iter(cache.iterkeys())) == key


@few
def test_in_a_transaction_its_own_writes_are_seen(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache["before"] = 1
    with cache.transact():
        cache["new"] = 2
        del cache["before"]
        assert list(cache) == list(cache.iterkeys()) == ["new"]
        assert list(other) == ["before"]
        assert len(cache) == len(other) == 1
        cache["second"] = 3
        assert (len(cache), len(other)) == (2, 1)
    assert sorted(other) == ["new", "second"]
    assert len(other) == 2


def test_a_dictionary_is_made_of_live_entries(cache: Cache, clock: Clock) -> None:
    cache.set_many({f"key {number}": number for number in range(5)})
    cache.set("over", 1, expire=5)
    wanted = {f"key {number}": number for number in range(5)}
    assert dict(cache) == {**cache} == {**wanted, "over": 1}
    clock.advance(6)
    assert "over" in list(cache)
    assert dict(cache) == dict(cache.items()) == wanted
    assert set(cache.keys()) == set(wanted)
    assert cache.keys() & {"over", "key 1"} == {"key 1"}
    assert list(reversed(cache.keys())) == list(reversed(list(cache.keys())))
    assert sorted(cache.values()) == sorted(reversed(cache.values())) == list(range(5))
    assert ("key 1", 1) in cache.items()
    assert ("over", 1) not in cache.items()
    assert 4 in cache.values()


def test_items_and_values_leave_out_what_is_removed_meanwhile(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    for view in (cache.items, cache.values):
        cache.set_many({f"key {number}": number for number in range(300)})
        found = iter(view())
        next(found)
        other.clear()
        assert len(list(found)) <= 300


def test_keys_are_offered_for_completion_the_newest_first(cache: Cache) -> None:
    assert cache._ipython_key_completions_() == []
    cache.set_many({f"key {number}": number for number in range(COMPLETIONS + 5)})
    offered = cache._ipython_key_completions_()
    assert offered == list(reversed(cache))[:COMPLETIONS]
    assert Index.fromcache(cache)._ipython_key_completions_() == offered


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_completion_raises_nothing(tmp_path: Path, kind: type[Cache]) -> None:
    cache = kind(tmp_path / "cache")
    cache["key"] = 1
    cache.close()
    shutil.rmtree(cache.directory)
    with Cache(cache.directory, compressor="zlib"):
        with pytest.raises(DirectoryError):
            list(cache)
        assert cache._ipython_key_completions_() == []
