"""Writing: set, add, incr, decr, touch, pop, delete and operations on many keys; what is refused changes nothing."""

from __future__ import annotations

import datetime as dt
import io
import math
import os
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import (
    Cache,
    FanoutCache,
    TransactionError,
    ValueEncodeError,
)
from diskcache_like.disk import file_io
from diskcache_like.system.paths import sync_file

from ..support.cache_kinds import Clock, Kind, Opener, exact, few

BIG = "x" * 300_000


def test_set_replaces_value_expiry_and_tag(cache: Cache, clock: Clock) -> None:
    assert cache.set("key", "first", expire=10, tag="tag") is True
    assert cache.set("key", BIG) is True
    assert cache.get("key", expire_time=True, tag=True) == (BIG, None, None)
    assert cache.set("key", "last", tag=5)
    cache.close()
    assert cache.get("key", expire_time=True, tag=True) == ("last", None, 5)
    clock.advance(10)
    assert cache["key"] == "last"
    assert len(cache) == 1


def test_an_expiry_is_seconds_a_timedelta_or_never(cache: Cache, clock: Clock) -> None:
    for expire, seconds in ((0.125, 0.125), (2, 2), (dt.timedelta(milliseconds=1500), 1.5), (1e9, 1e9)):
        cache.set("key", 1, expire=expire)
        assert cache.get("key", expire_time=True) == (1, clock.now + seconds)
        cache.add("other", 1, expire=expire)
        assert cache.get("other", expire_time=True) == (1, clock.now + seconds)
        cache.delete("other")
        cache.set_many({"other": 2}, expire=expire)
        assert cache.get("other", expire_time=True) == (2, clock.now + seconds)
        cache.touch("other", expire=expire)
        cache.delete("other")
    for never in (None, math.inf):
        cache.set("key", 1, expire=never)
        assert cache.get("key", expire_time=True) == (1, None)
    cache.set("key", 1, expire=0)
    assert cache.get("key") is None


def test_add_stores_only_where_there_is_no_live_entry(cache: Cache, clock: Clock) -> None:
    assert cache.add("key", "first", expire=1, tag="tag") is True
    assert cache.add("key", "second") is False
    assert cache.get("key", expire_time=True, tag=True) == ("first", clock.now + 1, "tag")
    clock.advance(1)
    assert cache.add("key", BIG) is True
    assert cache.add("key", BIG + "x") is False
    assert cache.get("key", expire_time=True) == (BIG, None)
    cache["none"] = None
    assert cache.add("none", 1) is False


@exact
def test_set_and_add_read_from_a_file_object(cache: Cache) -> None:
    content = bytes(range(256)) * 1000
    assert cache.set("key", io.BytesIO(content), read=True)
    assert cache["key"] == content
    assert cache.add("key", io.BytesIO(b"other"), read=True) is False
    assert cache.add("new", io.BytesIO(b"new"), read=True) is True
    assert (cache["key"], cache["new"]) == (content, b"new")
    assert cache.set("key", io.BytesIO(b""), read=True)
    assert cache["key"] == b""


def test_incr_and_decr_count(cache: Cache) -> None:
    assert cache.incr("key") == 1
    assert cache.incr("key", 5) == 6
    assert cache.decr("key", 10) == -4
    assert cache.decr("key") == -5
    assert cache["key"] == -5
    assert cache.incr("other", 2, default=10) == 12
    assert cache.decr("third", 2, default=10) == 8
    assert cache.incr("huge", 2**62, default=2**62) == 2**63
    assert cache.incr("huge", 2**70) == 2**63 + 2**70
    cache.close()
    assert cache["huge"] == 2**63 + 2**70
    half: Any = 0.5
    assert cache.incr("float", half, default=half) == 1.0


@few
def test_incr_of_a_missing_key_without_default_raises(cache: Cache, clock: Clock) -> None:
    for count in (cache.incr, cache.decr):
        with pytest.raises(KeyError, match="key"):
            count("key", default=None)
    cache.set("key", 5, expire=1)
    assert cache.incr("key", default=None) == 6
    clock.advance(1)
    with pytest.raises(KeyError, match="key"):
        cache.incr("key", default=None)


def test_incr_keeps_expiry_and_tag_and_starts_anew_after_expiry(cache: Cache, clock: Clock) -> None:
    cache.set("key", 5, expire=10, tag="tag")
    expiry = clock.now + 10
    clock.advance(4)
    assert cache.incr("key") == 6
    assert cache.get("key", expire_time=True, tag=True) == (6, expiry, "tag")
    clock.advance(6)
    assert cache.get("key") is None
    assert cache.incr("key", 2, default=40) == 42
    assert cache.get("key", expire_time=True, tag=True) == (42, None, None)


def test_a_clock_that_raises_leaves_the_lock_free(cache: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set("expiring", 1, expire=10)
    cache.flush()
    for store in cache._shards.stores:
        monkeypatch.setattr(store.shard.config, "clock", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cache.set("expiring", 2)
    monkeypatch.undo()
    cache.set("expiring", 3)
    assert cache["expiring"] == 3


def test_incr_of_what_is_no_number_raises_and_changes_nothing(cache: Cache) -> None:
    for value in ("5", None, [5], True):
        cache["key"] = value
        with pytest.raises(TypeError, match="key"):
            cache.incr("key")
        assert cache["key"] == value


@few
def test_a_counter_of_40_kb_goes_to_a_file_and_leaves_none_behind(cache: Cache) -> None:
    assert cache.incr("key", 10**4000) == 10**4000
    cache.reset("disk_min_file_size", 100)
    assert cache.incr("key", 10**4000) == 2 * 10**4000
    assert cache.incr("key", -2 * 10**4000 + 1) == 1
    assert cache["key"] == 1


def test_touch_changes_the_expiry_and_nothing_else(cache: Cache, clock: Clock) -> None:
    for key, value in (("short", 1), ("long", BIG)):
        assert cache.touch(key, 10) is False
        cache.set(key, value, expire=1, tag="tag")
        assert cache.touch(key, 10) is True
        assert cache.get(key, expire_time=True, tag=True) == (value, clock.now + 10, "tag")
    clock.advance(9)
    assert cache.touch("short") is True
    clock.advance(1)
    cache.close()
    assert cache.get("short", expire_time=True, tag=True) == (1, None, "tag")
    assert cache.get("long") is None
    assert cache.touch("long", 10) is False


def test_pop_removes_and_returns(cache: Cache, clock: Clock) -> None:
    for value in (1, BIG, None, [1, 2]):
        cache.set("key", value, expire=7, tag="tag")
        assert cache.pop("key", "default", expire_time=True, tag=True) == (value, clock.now + 7, "tag")
        assert cache.pop("key", "default", expire_time=True, tag=True) == ("default", None, None)
        assert cache.pop("key") is None
        assert "key" not in cache
    cache.set("key", 1, expire=1)
    clock.advance(1)
    assert cache.pop("key", "expired") == "expired"
    assert cache.pop("key", expire_time=True) == (None, None)


def test_delete_tells_whether_there_was_a_live_entry(cache: Cache, clock: Clock) -> None:
    assert cache.delete("key") is False
    cache["key"] = BIG
    assert cache.delete("key") is True
    assert cache.delete("key") is False
    cache["key"] = 1
    del cache["key"]
    with pytest.raises(KeyError, match="key"):
        del cache["key"]
    cache.set("key", 1, expire=1)
    clock.advance(1)
    assert cache.delete("key") is False
    with pytest.raises(KeyError):
        del cache["key"]


@few
@pytest.mark.parametrize("expire", [None, 1e6])
@pytest.mark.parametrize(
    "there", [range(0), range(300), range(0, 300, 2), range(299), range(1, 300), range(150), range(0, 300, 60)]
)
def test_set_many_over_what_is_there(cache: Cache, there: range, expire: float | None) -> None:
    for number in there:
        cache.set(number, "old", expire=expire)
    items = [(number, number) for number in range(300)] + [(number, "again") for number in range(0, 300, 50)]
    assert len(cache) == len(there)
    assert cache.set_many(items) == len(items)
    assert cache.get_many(range(300)) == dict(items)
    assert cache.get(7, expire_time=True) == (7, None)
    in_order = [*there, *(number for number in range(300) if number not in there)]
    assert list(cache) == in_order if not isinstance(cache, FanoutCache) else set(cache) == set(in_order)
    for key, number in ((3, 300), ("next", 301), (4, 301), ("next", 301), ("last", 302)):
        cache.set(key, "new")
        assert len(cache) == number
    assert cache.check() == []


def test_set_many_and_delete_many_do_what_one_by_one_would(cache: Cache, clock: Clock) -> None:
    items = {f"key {number}": number for number in range(1100)}  # more than a batch
    assert cache.set_many(items, expire=10, tag="tag") == 1100
    assert cache.set_many((key, value) for key, value in [("a", 1), ("b", BIG), ("a", 2)]) == 3
    assert len(cache) == 1102
    assert cache.get("key 1099", expire_time=True, tag=True) == (1099, clock.now + 10, "tag")
    assert cache.get("a", expire_time=True) == (2, None)
    assert cache.set_many({}) == 0
    assert cache.delete_many(["a", "missing", "b", "a"]) == 2
    assert cache.delete_many(iter(items)) == 1100
    assert cache.delete_many([]) == 0
    assert len(cache) == 0


@exact
def test_a_batch_is_stored_whole_or_not_at_all(cache: Cache, kind: Kind) -> None:
    cache["last"] = "before"
    with pytest.raises(ValueEncodeError):
        cache.set_many([*((number, BIG) for number in range(10)), ("last", "after"), (5, lambda: None)])
    assert list(cache.get_many([*range(10), "last"]).items()) == [("last", "before")]


def test_len_counts_entries(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    assert len(cache) == 0
    for number in range(5):
        cache[f"key {number}"] = number
        other[f"key {number}"] = -number
        assert len(cache) == len(other) == number + 1
    cache.add("key 1", 0)
    cache.incr("key 2")
    cache.touch("key 3", 5)
    assert len(other) == 5
    cache.pop("key 4")
    assert cache.delete("key 3")
    assert not cache.delete("key 3")
    assert len(other) == 3
    cache.close()
    assert len(cache) == 3


def test_a_tag_is_any_key_but_a_collection(cache: Cache, clock: Clock) -> None:
    for number, tag in enumerate(("text", 5, 1.5, dt.date(2024, 2, 29), b"bytes", "")):
        cache.set(f"key {number}", BIG, tag=tag)
        assert cache.get(f"key {number}", tag=True) == (BIG, tag)
    assert cache.evict(5.0) == 1
    assert cache.evict("") == 1


@pytest.mark.parametrize("durability", ["process", "system", "power"])
def test_sync_brings_value_files_and_rows_to_the_disk(
    tmp_path: Path, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FanoutCache(tmp_path / "cache", 2, durability=durability) as cache:
        for number in range(8):
            cache[number] = bytes([number]) * (1 << 16)
        synced = set()

        def watched(descriptor: int) -> None:
            synced.add(os.stat(descriptor).st_ino)
            sync_file(descriptor)

        monkeypatch.setattr(file_io, "sync_file", watched)
        cache.sync()
        files = [path.stat().st_ino for path in Path(cache.directory).rglob("*.val")]
        assert len(files) == 8
        assert synced.issuperset(files)
        with cache.transact(), pytest.raises(TransactionError, match=r"sync\(\) within a transaction"):
            cache.sync()
        assert len(cache) == 8
