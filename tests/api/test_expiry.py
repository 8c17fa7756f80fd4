"""Expiry: the forms in which it is given, and what decides it beside the caller."""

from __future__ import annotations

import asyncio
import io
import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import KEEP, Averager, Cache, ExpiryError, Lock, SettingError

from ..support.cache_kinds import Clock, Kind, Opener, few, one
from ..support.contention import held

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
    "set by another process": lambda cache, key, value: cache.set(
        key, value, pickle.loads(pickle.dumps(KEEP)), tag="new"
    ),
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


# -- what the cache says ----------------------------------------------------------------------------------------------


def _close(cache: Cache, expire: Any) -> None:
    with cache.open("key", "wb", **({} if expire is None else {"expire": expire})) as file:
        file.write(b"1")


STORES: dict[str, Callable[[Cache, Any], object]] = {
    **{name: write for name, write in WRITES.items() if name not in ("result", "none", "lock", "average")},
    "setitem": lambda cache, expire: cache.__setitem__("key", 1) if expire is None else cache.set("key", 1, expire),
    "tagged": lambda cache, expire: cache.set("key", 1, expire, tag="t"),
    "open": _close,
    "push": lambda cache, expire: cache.push(1, expire=expire),
    "keep": lambda cache, expire: cache.set("key", 1, KEEP if expire is None else expire),
    "keep many": lambda cache, expire: cache.set_many({"key": 1, "other": 2}, KEEP if expire is None else expire),
    "result": lambda cache, expire: cache.get_or_set("key", lambda: 1, lambda _: expire),
    "incr": lambda cache, expire: (cache.incr("key"), cache.touch("key", expire) if expire is not None else None),
}


@few
@pytest.mark.parametrize("name", STORES)
def test_entries_have_the_lifetime_of_the_cache(name: str, open_cache: Opener, clock: Clock) -> None:
    write, cache = STORES[name], open_cache()
    cache.reset("default_expire", 60)
    cache.reset("max_age", 3600)
    again = open_cache()
    assert (again.default_expire, again.max_age) == (60, 3600), "they are stored"
    for given, seconds in ((None, 60), (5, 5), (10**6, 3600), (math.inf, 3600), (timedelta(days=9), 3600)):
        again.clear()
        write(again, given)
        key = next(key for key in again if key != "other")
        assert expiry(again, key) == clock.now + seconds
        clock.advance(seconds)
        assert key not in again


@few
def test_a_default_alone_can_be_declined(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache()
    cache.default_expire = 60
    for space in (cache, cache.namespace("n")):
        space["key"] = 1
        assert expiry(space) == clock.now + 60
        space.set("key", 2, math.inf)
        assert expiry(space) is None
        space.incr("key")
        assert expiry(space) is None
        space.touch("key")
        assert expiry(space) == clock.now + 60
        space.set_many({"key": 3}, KEEP)
        assert expiry(space) == clock.now + 60
    cache.default_expire = None
    cache["key"] = 1
    assert expiry(cache) is None


@few
def test_nobody_makes_a_value_older_than_it_may_be(open_cache: Opener, clock: Clock) -> None:
    cache, start = open_cache(), clock.now
    cache.max_age = 100
    cache.set("key", 1, 50, tag="t")
    cache.set("large", LARGE, 50)
    for _ in range(3):
        clock.advance(30)
        for key in ("key", "large"):
            assert cache.touch(key, 50)
            assert cache.get_entry(key).expire_time == min(clock.now + 50, start + 100)
    cache.retag("key", ["u"])
    cache.incr("key")
    assert cache.get_entry("key").tags == ("t", "u")
    clock.advance(10)
    assert not cache.touch("key", 50)
    assert "large" not in cache


@few
def test_an_entry_from_before_is_as_old_as_its_next_touch(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache()
    cache["key"] = 1
    cache.max_age = 100
    start = clock.now
    for _ in range(3):
        assert cache.touch("key", math.inf)
        assert expiry(cache) == start + 100
        clock.advance(30)


@few
def test_stale_windows_end_when_the_value_is_too_old(cache: Cache, clock: Clock) -> None:
    cache.max_age, start, calls = 100, clock.now, []

    @cache.memoize(expire=60, stale_if_error=1000, stale_while_revalidate=1000)
    def counted() -> int:
        calls.append(1)
        if len(calls) > 1:
            raise ArithmeticError
        return 1

    assert counted() == 1
    entry = cache.get_entry(counted.key())
    assert entry.expire_time == start + 60
    clock.now = start + 99
    assert cache.get_entry(counted.key(), stale=True).stale
    clock.now = start + 100
    with pytest.raises(ArithmeticError):
        counted()
    forever = cache.memoize(name="forever", stale_if_error=1000)(lambda: 1)
    assert forever() == 1
    assert cache.get_entry(forever.key()).expire_time == clock.now + 100


@few
def test_errors_that_are_kept_have_the_default_lifetime(cache: Cache, clock: Clock) -> None:
    cache.default_expire = 60

    def failing() -> int:
        raise LookupError("no")

    for _ in range(2):
        with pytest.raises(LookupError):
            cache.get_or_set("key", failing, cache_errors=LookupError)
    assert expiry(cache) == clock.now + 60


@few
def test_what_is_no_value_lives_as_long_as_it_is_needed(cache: Cache, clock: Clock) -> None:
    cache.default_expire, cache.max_age = 1, 2
    lock, average = Lock(cache, "lock"), Averager(cache, "average")
    lock.acquire()
    average.add(5)
    clock.advance(1000)
    assert lock.locked()
    assert average.get() == 5
    lock.release()


@few
def test_a_copy_is_as_old_as_the_original(cache: Cache, clock: Clock, tmp_path: Path) -> None:
    cache["forever"] = 1
    cache.get_or_set("computed", lambda: 1)
    clock.advance(30)
    with Cache(tmp_path / "copy", clock=clock, max_age=100) as target:
        assert cache.copy_to(target) == 2
        assert expiry(target, "forever") == clock.now + 100
        assert expiry(target, "computed") == clock.now + 70


@few
@pytest.mark.parametrize("name", ["default_expire", "max_age"])
def test_a_lifetime_that_cannot_be(cache: Cache, name: str) -> None:
    wrong: Any
    for wrong in (0, -1, math.nan, math.inf, "soon", b"5", [5], datetime(2030, 1, 1, tzinfo=UTC)):
        with pytest.raises(SettingError, match=f"^{name} is .*expected seconds, more than 0"):
            cache.reset(name, wrong)
    for given, seconds in (("2h5m", 7500), (timedelta(minutes=1), 60), (0.5, 0.5), (None, None)):
        assert cache.reset(name, given) == seconds
        assert getattr(cache, name) == seconds


# -- while it is used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_hit_may_renew_the_expiry(cache: Cache, clock: Clock, size: int) -> None:
    value = "x" * size
    for space in (cache, cache.namespace("n")):
        start = clock.now
        space.set("key", value, 100, tag="t")
        for passed, seconds in ((5, 100), (9, 100), (11, 111), (12, 111), (110, 210)):
            clock.now = start + passed
            assert space.get_and_touch("key", 100) == value
            assert expiry(space) == start + seconds
        clock.now = start + 209
        assert space.get("key", tag=True) == (value, "t")
        clock.now = start + 210
        assert space.get_and_touch("key", 100, "gone") == "gone"
        assert "key" not in space


@few
def test_a_hit_gives_the_expiry_that_is_asked_for(cache: Cache, clock: Clock) -> None:
    cache["key"] = 1
    for expire, seconds in ((100, 100), ("1h", 3600), (timedelta(seconds=50), 50), (at(clock.now + 9), 9)):
        assert cache.get_and_touch("key", expire) == 1
        assert expiry(cache) == clock.now + seconds
    assert cache.get_and_touch("key", None) == 1
    assert expiry(cache) is None
    for key in ("key", "missing"):
        with pytest.raises(ExpiryError):
            cache.get_and_touch(key, "soon")
    assert cache.get_and_touch("missing", 5) is None
    with pytest.raises(TypeError, match="no argument 'ttl'"):
        cache.get_and_touch("key", 5, ttl=6)  # type: ignore[call-arg]


@few
def test_no_hit_makes_a_value_older_than_it_may_be(cache: Cache, clock: Clock) -> None:
    cache.max_age, start = 100, clock.now
    cache.set("key", 1, 30)
    for passed in range(20, 100, 20):
        clock.now = start + passed
        assert cache.get_and_touch("key", 30) == 1
        assert expiry(cache) == min(clock.now + 30, start + 100)
    clock.now = start + 100
    assert cache.get_and_touch("key", 30) is None


@few
def test_a_hit_whose_expiry_cannot_be_written_is_a_hit(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache(timeout=0)
    cache.set("key", 1, 100)
    clock.advance(50)
    with held(cache):
        assert cache.get_and_touch("key", 100) == 1
    assert expiry(cache) == clock.now + 50


@few
@pytest.mark.parametrize("options", [{}, {"beta": 1e-9}, {"stale_if_error": 50}, {"cache_errors": KeyError}], ids=str)
def test_a_result_may_stay_while_it_is_used(cache: Cache, clock: Clock, options: Any) -> None:
    calls: list[int] = []

    @cache.memoize(expire=100, sliding=True, **options)
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    @cache.memoize(expire="100s", sliding=True, **options)
    async def cube(number: int) -> int:
        calls.append(number)
        return number**3

    def get_or_set() -> Any:
        def compute() -> int:
            calls.append(5)
            return 125

        return cache.get_or_set("key", compute, 100, sliding=True, **options)

    for call in (lambda: square(5), lambda: asyncio.run(cube(5)), get_or_set):
        del calls[:]
        first = call()
        for _ in range(5):
            clock.advance(60)
            assert call() == first
        assert calls == [5]
        clock.advance(100)
        assert call() == first
        assert calls == [5, 5]
    assert square.cache_info()[:2] == (5, 2)


@few
@pytest.mark.parametrize("options", [{}, {"stale_if_error": 5}], ids=str)
def test_none_stays_for_its_own_lifetime(cache: Cache, clock: Clock, options: Any) -> None:
    @cache.memoize(expire=100, sliding=True, none_expire=10, **options)
    def find(name: str) -> int | None:
        calls.append(name)
        return None

    calls: list[str] = []
    for seconds in (5, 5, 10):
        assert find("ada") is None
        clock.advance(seconds)
    assert calls == ["ada"]
    assert find("ada") is None
    assert calls == ["ada", "ada"]


@one
def test_what_slides_needs_a_fixed_lifetime(cache: Cache) -> None:
    wrong: Any
    for wrong in (None, lambda _: 5, datetime(2030, 1, 1, tzinfo=UTC)):
        with pytest.raises(SettingError, match="sliding=True needs an expire"):
            cache.memoize(expire=wrong, sliding=True)
