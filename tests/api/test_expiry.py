"""Expiry: the forms in which it is given, and what decides it beside the caller."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from diskcache_like import KEEP, Averager, Cache, ExpiryError, Lock

from ..support.cache_kinds import Clock, Kind, few, one

LARGE = b"x" * 100_000


def at(moment: float, hours: int = 0) -> datetime:
    return datetime.fromtimestamp(moment, timezone(timedelta(hours=hours)))


def expiry(cache: Cache, key: Any = "key") -> float | None:
    found: float | None = cache.get_entry(key).expire_time
    return found


# -- a moment ---------------------------------------------------------------------------------------------------------


WRITES: dict[str, Callable[[Cache, Any], object]] = {
    "set": lambda cache, expire: cache.set("key", 1, expire),
    "set large": lambda cache, expire: cache.set("key", LARGE, expire),
    "set if": lambda cache, expire: cache.set("key", 1, expire, if_version=None),
    "add": lambda cache, expire: cache.add("key", 1, expire),
    "set_many": lambda cache, expire: cache.set_many({"key": 1, "other": 2}, expire),
    "touch": lambda cache, expire: (cache.set("key", 1), cache.touch("key", expire)),
    "get_or_set": lambda cache, expire: cache.get_or_set("key", lambda: 1, expire),
    "result": lambda cache, expire: cache.get_or_set("key", lambda: 1, lambda _: expire),
    "none": lambda cache, expire: cache.get_or_set("key", lambda: None, none_expire=expire),
    "memoize": lambda cache, expire: cache.memoize(name="f", key="key", expire=expire)(lambda: 1)(),
    "lock": lambda cache, expire: Lock(cache, "key", expire).acquire(),
    "average": lambda cache, expire: Averager(cache, "key", expire).add(1),
}


@few
@pytest.mark.parametrize("name", WRITES)
def test_an_expiry_may_be_a_moment(name: str, cache: Cache, clock: Clock) -> None:
    moment = clock.now + 60
    WRITES[name](cache, at(moment, hours=5))
    key = next(key for key in cache if key != "other")
    assert expiry(cache, key) == pytest.approx(moment, abs=1e-6)
    clock.advance(61)
    assert key not in cache


@few
@pytest.mark.parametrize("name", WRITES)
def test_a_moment_needs_a_time_zone(name: str, cache: Cache, clock: Clock) -> None:
    for tried in (cache, cache.namespace("n")):
        with pytest.raises(ExpiryError, match=r"expire is datetime.*a time zone.*\.astimezone\(\)"):
            WRITES[name](tried, at(clock.now + 60).replace(tzinfo=None))
        assert tried.get_many(tried) in ({}, {"key": 1})  # which the test of `touch` has stored


@few
def test_what_is_to_expire_in_the_past_is_over_at_once(cache: Cache, clock: Clock) -> None:
    for moment in (at(clock.now), at(clock.now - 1), datetime(1, 1, 1, tzinfo=UTC)):
        cache.set("key", 1, moment)
        assert cache.get("key") is None
        assert cache.get_or_set("key", lambda: 2, moment) == 2
        assert "key" not in cache


@one
def test_a_time_that_must_last_is_no_moment(cache: Cache, clock: Clock) -> None:
    with pytest.raises(ExpiryError, match="stale_if_error is datetime"):
        cache.get_or_set("key", lambda: 1, 60, stale_if_error=at(clock.now + 60))


# -- the expiry that an entry has -------------------------------------------------------------------------------------


def _stream(cache: Cache, key: str, value: Any) -> None:
    with cache.open(key, "wb", KEEP, tag="new") as file:
        file.write(value if isinstance(value, bytes) else b"2")


KEEPING: dict[str, Callable[[Cache, str, Any], object]] = {
    "set": lambda cache, key, value: cache.set(key, value, KEEP, tag="new"),
    "set if": lambda cache, key, value: cache.set(
        key, value, KEEP, tag="new", if_version=cache.get_entry(key).version if key in cache else None
    ),
    "set_many": lambda cache, key, value: cache.set_many({key: value, "other": 1}, KEEP, tag="new"),
    "set_many of one": lambda cache, key, value: cache.set_many({key: value}, KEEP, tag="new"),
    "open": _stream,
}


@pytest.mark.parametrize("name", KEEPING)
def test_a_write_may_keep_the_expiry(name: str, cache: Cache, clock: Clock, kind: Kind) -> None:
    write, small = KEEPING[name], "2" if name != "open" else b"2"
    values = [small] if kind.json else [small, LARGE]  # whose JSON has no bytes
    if kind.json and name == "open":
        return
    for space in (cache, cache.namespace("n")):
        for old in ("1", "1" * 100_000):
            for value in values:
                end = clock.now + 50
                space.set("key", old, 50, tag="old")
                clock.advance(10)
                write(space, "key", value)
                assert space.get("key", expire_time=True, tag=True) == (value, end, "new")
                assert space.get("key") == space.get("key") == value
                clock.advance(40)
                assert space.get("key") is None
                write(space, "key", value)
                assert space.get("key", expire_time=True) == (value, None), "the expiry of what has expired is gone"
                write(space, "key", value)
                assert expiry(space) is None
                space.delete("key")
                write(space, "key", value)
                assert expiry(space) is None


@few
def test_a_file_object_may_keep_the_expiry(cache: Cache, clock: Clock) -> None:
    cache.set("key", 1, 50)
    assert cache.set("key", io.BytesIO(LARGE), KEEP, read=True)
    assert cache.get("key", expire_time=True) == (LARGE, clock.now + 50)


@few
def test_only_writes_that_replace_an_entry_keep_its_expiry(cache: Cache) -> None:
    cache["key"] = 1
    for write in (cache.touch, cache.push):
        with pytest.raises(ExpiryError, match="KEEP"):
            write("key", expire=KEEP)
    with pytest.raises(ExpiryError, match="KEEP"):
        cache.add("new", 1, KEEP)
    with pytest.raises(ExpiryError, match="KEEP"):
        cache.get_or_set("new", lambda: 1, KEEP)


@one
def test_what_is_too_large_is_not_stored_with_the_expiry_kept(cache: Cache) -> None:
    cache.size_limit = 1 << 20
    assert cache.set("key", bytes(2 << 20), KEEP) is False
    assert cache.set_many({"key": bytes(2 << 20), "other": 1}, KEEP) == 1
    assert cache.check() == []
