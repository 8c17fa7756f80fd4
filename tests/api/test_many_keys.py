"""Operations on many keys at once beside set_many, get_many and delete_many, and a removal that depends on the version."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Breaker, BreakerOpen, Cache, CacheError, ExpiryError, FanoutCache, SettingError, Timeout
from diskcache_like.entries.atomic_key import AtomicKey

from ..support.cache_kinds import QUICK, Clock, Opener, few, one
from ..support.contention import held
from ..support.inspection import problems
from ..support.workers import PATIENCE, in_threads

LARGE = "x" * 50_000


# -- touch_many and incr_many -----------------------------------------------------------------------------------------


def test_many_keys_get_a_new_expiry(cache: Cache, clock: Clock) -> None:
    for space in (cache, cache.namespace("n")):
        space.set_many({"a": 1, "b": LARGE}, expire=5, tag="t")
        space.set("gone", 1, expire=0)
        assert space.touch_many(["a", "b", "gone", "missing"], 50) == 2
        for key in ("a", "b"):
            assert space.get(key, expire_time=True, tag=True)[1:] == (clock.now + 50, "t")
        assert space.touch_many(key for key in ["a"]) == 1
        assert space.get_entry("a").expire_time is None
        assert space.touch_many([]) == 0
    with pytest.raises(ExpiryError):
        cache.touch_many([], "soon")
    with pytest.raises(TypeError, match="keys_ is 'text', expected a list of keys"):
        cache.touch_many("text", 5)
    assert problems(cache) == []


def test_many_numbers_grow(cache: Cache, clock: Clock) -> None:
    for space in (cache, cache.namespace("n")):
        space.set("a", 5, expire=50)
        assert space.incr_many({"a": 2, "b": -1}) == {"a": 7, "b": -1}
        assert space.incr_many([("b", 1), ("b", 1)], default=100) == {"b": 1}
        assert space.incr_many({"c": 0.5}, default=100) == {"c": 100.5}
        assert space.get_many([*"abc"]) == {"a": 7, "b": 1, "c": 100.5}
        assert space.get_entry("a").expire_time == clock.now + 50
        assert space.incr_many({}) == {}


def test_an_error_takes_its_batch_back(cache: Cache) -> None:
    cache.set_many({"a": 1, "text": "t"})
    with pytest.raises(TypeError, match="expected a number"), cache.transact():
        cache.incr_many({"a": 1, "text": 1})
    assert cache["a"] == 1
    with pytest.raises(KeyError):
        cache.incr_many({"missing": 1}, default=None)
    assert "missing" not in cache
    with pytest.raises(TypeError, match="unhashable"):
        cache.incr_many([([1], 5)])
    assert [1] not in cache
    with pytest.raises(TypeError, match="expected"):
        cache.incr_many([5])  # type: ignore[list-item]


@one
def test_a_batch_is_atomic(cache: Cache) -> None:
    cache.set_many({"a": 1, "text": "t"})
    with pytest.raises(TypeError, match="expected a number"):
        cache.incr_many({"a": 1, "text": 1})
    assert cache["a"] == 1


def test_thousands_of_keys(cache: Cache) -> None:
    wanted = dict.fromkeys(range(2500), 2)
    assert cache.incr_many(wanted) == cache.incr_many(dict.fromkeys(wanted, 0)) == wanted
    assert cache.touch_many(wanted, 60) == 2500


def test_increments_by_several_threads_add_up(cache: Cache) -> None:
    def work(_: int) -> None:
        for _ in range(10):
            cache.incr_many(dict.fromkeys(range(20), 1), retry=True)

    in_threads(4, work)
    assert cache.get_many(range(20)) == dict.fromkeys(range(20), 40)


def test_a_lock_that_is_not_free(tmp_path: Path) -> None:
    with Cache(tmp_path / "plain", 0, **QUICK) as cache, held(cache):
        for call in (lambda: cache.touch_many(["a"]), lambda: cache.incr_many({"a": 1})):
            with pytest.raises(Timeout):
                call()
    with FanoutCache(tmp_path / "fanout", timeout=0, **QUICK) as fanout:
        fanout["a"] = 1
        with held(fanout):
            assert (fanout.touch_many(["a"]), fanout.incr_many({"a": 1})) == (0, {})


# -- delete(if_version=) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, LARGE])
def test_a_removal_that_depends_on_the_version(open_cache: Opener, clock: Clock, value: Any) -> None:
    whole, other = open_cache(), open_cache()
    for cache in (whole, whole.namespace("n")):
        cache["key"] = value
        version = cache.get_entry("key").version
        cache.touch("key", 5)
        assert not cache.delete("key", if_version=version + 1)
        assert cache["key"] == value
        assert cache.delete("key", if_version=version)
        assert "key" not in cache
        assert not cache.delete("key", if_version=version)
        cache.set("key", value, 5)
        version = cache.get_entry("key").version
        clock.advance(5)
        assert not cache.delete("key", if_version=version)
    whole["key"] = value
    version = whole.get_entry("key").version
    other["key"] = value
    assert not whole.delete("key", if_version=version), "the same value, written again"
    wrong: Any
    for wrong in (None, True, "5"):
        with pytest.raises(TypeError, match="if_version is"):
            whole.delete("key", if_version=wrong)
    assert problems(whole) == []


# -- get_or_set_many --------------------------------------------------------------------------------------------------


def test_what_is_missing_is_computed_with_one_call(cache: Cache, clock: Clock) -> None:
    calls: list[list[str]] = []

    def lengths(keys: list[str]) -> dict[str, int]:
        calls.append(keys)
        return {key: len(key) for key in keys if key != "unknown"} | {"unasked": 7}

    for space in (cache, cache.namespace("n")):
        del calls[:]
        space["aa"] = 20
        wanted = ["b", "aa", "unknown", "ccc", "b"]
        assert space.get_or_set_many(wanted, lengths, 60, tag="t") == {"b": 1, "aa": 20, "ccc": 3}
        assert calls == [["b", "unknown", "ccc"]]
        assert space.get("ccc", expire_time=True, tag=True) == (3, clock.now + 60, "t")
        assert "unasked" not in space
        assert space.get_or_set_many(["b", "ccc"], lengths) == {"b": 1, "ccc": 3}
        assert len(calls) == 1
        clock.advance(60)
        assert space.get_or_set_many((key for key in ["b"]), lengths) == {"b": 1}
        assert calls[1:] == [["b"]]
        assert space.get_or_set_many([], lengths) == {}
    assert problems(cache) == []


@few
def test_in_coroutines(cache: Cache) -> None:
    calls: list[list[int]] = []

    async def squares(keys: list[int]) -> dict[int, int]:
        calls.append(keys)
        await asyncio.sleep(0)
        return {key: key * key for key in keys}

    def cubes(keys: list[int]) -> dict[int, int]:
        return {key: key**3 for key in keys}

    async def main() -> Any:
        found = await cache.get_or_set_many([1, 2], squares)
        again = await asyncio.gather(*(cache.aio.get_or_set_many([2, 3, 4], squares) for _ in range(5)))
        return found, again, await cache.aio.get_or_set_many([4, 5], cubes)

    assert asyncio.run(main()) == ({1: 1, 2: 4}, [{2: 4, 3: 9, 4: 16}] * 5, {4: 16, 5: 125})
    assert calls[0] == [1, 2]
    assert sorted(sum(calls[1:], [])) == [3, 4], "whoever came first"


@few
def test_each_key_is_computed_once_for_all(open_cache: Opener) -> None:
    handles = open_cache(), open_cache()
    begun, calls, lock = threading.Barrier(4), list[int](), threading.Lock()

    def compute(keys: list[int]) -> dict[int, int]:
        with lock:
            calls.extend(keys)
        return {key: -key for key in keys}

    def work(number: int) -> Any:
        begun.wait(PATIENCE)
        return [
            handles[number % 2].get_or_set_many(range(first + number, first + number + 30), compute, 60)
            for first in range(0, 300, 30)
        ]

    for number, found in enumerate(in_threads(4, work)):
        assert found == [{key: -key for key in range(f + number, f + number + 30)} for f in range(0, 300, 30)]
    assert sorted(calls) == list(range(303))


@few
def test_what_fails_is_computed_by_the_next_one(cache: Cache) -> None:
    entered, leave = threading.Event(), threading.Event()
    calls: list[Any] = []

    def failing(keys: list[int]) -> dict[int, int]:
        entered.set()
        assert leave.wait(PATIENCE)
        raise LookupError("no")

    def compute(keys: list[int]) -> dict[int, int]:
        calls.append(keys)
        leave.set()
        return {key: -key for key in keys if key != 2}

    def work(number: int) -> Any:
        if number:
            entered.wait(PATIENCE)
            return cache.get_or_set_many([1, 2, 3], compute, 60)
        with pytest.raises(LookupError):
            cache.get_or_set_many([1, 2], failing, 60)
        return None

    assert in_threads(2, work)[1] == {3: -3, 1: -1}
    assert calls == [[3], [1], [2]]


@few
def test_what_is_not_kept_is_not_waited_for(cache: Cache) -> None:
    calls: list[list[int]] = []

    def compute(keys: list[int]) -> dict[int, int]:
        calls.append([*keys])
        if len(calls) == 1:
            cache.get_or_set_many([1, 2], compute, 0)
        return dict.fromkeys(keys, 0)

    assert cache.get_or_set_many([1, 2], compute, 0) == {1: 0, 2: 0}
    assert calls == [[1, 2], [1, 2]]


@few
def test_a_function_may_use_up_its_list(cache: Cache) -> None:
    def compute(keys: list[int]) -> dict[int, int]:
        found = {}
        while keys:
            key = keys.pop()
            found[key] = -key
        return found

    assert cache.get_or_set_many([1, 2], compute) == cache.get_many([1, 2]) == {1: -1, 2: -2}


@few
def test_what_is_stored_meanwhile_stays(cache: Cache) -> None:
    def compute(keys: list[int]) -> dict[int, int]:
        cache[1] = "meanwhile"
        return dict.fromkeys(keys, 0)

    assert cache.get_or_set_many([1, 2], compute) == {1: 0, 2: 0}
    assert cache.get_many([1, 2]) == {1: "meanwhile", 2: 0}


@few
def test_in_a_transaction_nobody_is_waited_for(cache: Cache) -> None:
    with cache.transact():
        assert cache.get_or_set_many([1], lambda keys: dict.fromkeys(keys, 5)) == {1: 5}
    assert cache[1] == 5


@few
def test_a_call_that_wants_its_own_keys(cache: Cache) -> None:
    def compute(keys: list[int]) -> dict[int, Any]:
        return {key: cache.get_or_set(key, lambda: 1, 60) for key in keys}

    with pytest.raises(CacheError, match="it would wait for itself"):
        cache.get_or_set_many([1, 2], compute, 60)

    def again(keys: list[int]) -> dict[int, Any]:
        return dict(cache.get_or_set_many(keys, again, 60))

    with pytest.raises(CacheError, match="it would wait for itself"):
        cache.get_or_set_many([1, 2], again, 60)
    assert cache.get_or_set_many([1], lambda keys: dict.fromkeys(keys, 5)) == {1: 5}


@few
def test_options_of_computing_many(cache: Cache, clock: Clock) -> None:
    assert cache.get_or_set_many([1, 2], lambda keys: {1: None, 2: 2}, 60, none_expire=5) == {1: None, 2: 2}
    assert cache.get_entry(1).expire_time == clock.now + 5
    cache.get_or_set_many([3, 4], lambda keys: {3: 3, 4: 4}, lambda value: value, when=lambda value: value > 3)
    assert (3 in cache, cache.get_entry(4).expire_time) == (False, clock.now + 4)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get_or_set_many([5], lambda keys: {5: 1 // 0}, breaker=Breaker(errors=2))
    with pytest.raises(BreakerOpen):
        cache.get_or_set_many([6], lambda keys: {5: 1 // 0}, breaker=Breaker(errors=2))
    for wrong in (5, [1], None):
        with pytest.raises(TypeError, match=r"compute_missing returned is .*, expected a mapping"):
            list(cache.get_or_set_many([9], partial(lambda found, _: found, wrong)))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="compute_missing is 5"):
        cache.get_or_set_many([9], 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no argument 'beta'"):
        cache.get_or_set_many([9], dict, beta=1)  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="jitter"):
        cache.get_or_set_many([9], dict.fromkeys, jitter=5)
    with pytest.raises(TypeError, match="keys_ is"):
        cache.get_or_set_many("text", dict.fromkeys)


@few
def test_without_kernel_locks(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtomicKey, "hold", lambda *_: None)
    assert cache.get_or_set_many([1, 2], lambda keys: dict.fromkeys(keys, 5), 60) == {1: 5, 2: 5}
    assert sorted(cache) == [1, 2]
