"""get_or_set and memoize: what each option does."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import (
    Breaker,
    BreakerOpen,
    Cache,
    CacheError,
    Computing,
    ExpiryError,
    Overloaded,
    SettingError,
    TagError,
)
from diskcache_like.memoizing import rules

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.workers import PATIENCE, in_threads


@few
@pytest.mark.parametrize(
    ("expire", "seconds"),
    [(7, 7), (timedelta(minutes=2), 120), ("2h5m", 7500), ("1.5s", 1.5), ("1d 2h", 93600), (lambda value: value, 9)],
    ids=["number", "timedelta", "hours", "part", "days", "function"],
)
def test_an_expiry_in_any_form(cache: Cache, clock: Clock, expire: Any, seconds: float) -> None:
    cache.get_or_set("key", lambda: 9, expire)
    assert cache.get_entry("key").expire_time == clock.now + seconds


@few
def test_jitter_only_shortens(cache: Cache, clock: Clock) -> None:
    for number in range(30):
        cache.get_or_set(number, lambda: 1, 100, jitter=0.5)
        assert clock.now + 50 <= cache.get_entry(number).expire_time <= clock.now + 100


@few
def test_what_is_not_to_be_kept(cache: Cache, clock: Clock) -> None:
    assert cache.get_or_set("key", lambda: 1, when=lambda value: value > 1) == 1
    assert "key" not in cache
    assert cache.get_or_set("key", lambda: 2, when=lambda value: value > 1) == 2
    assert cache["key"] == 2
    assert cache.get_or_set("none", lambda: None, 100, none_expire=5) is None
    assert cache.get_entry("none").expire_time == clock.now + 5
    cache.get_or_set("never", lambda: None, 100, none_expire=0)
    assert "never" not in cache


@few
def test_with_second_miss_a_result_is_stored_when_its_key_was_missed_before(cache: Cache, clock: Clock) -> None:
    calls: list[int] = []

    @cache.memoize(expire=60, admit="second-miss")
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    for number in range(20):
        assert [square(number) for _ in range(3)] == 3 * [number * number]
    assert calls == [number for number in range(20) for _ in range(2)]
    clock.now += 60
    assert (square(0), square(0)) == (0, 0)
    assert calls[40:] == [0]  # one that was stored before is stored at once

    async def one() -> int:
        calls.append(1)
        return 1

    cubed = cache.memoize(name="one", admit="second-miss", max_concurrent=2)(one)
    del calls[:]
    assert [asyncio.run(cubed()) for _ in range(3)] == [1, 1, 1]
    assert len(calls) == 2


@few
def test_a_refresh_stores_its_result_in_any_case(cache: Cache) -> None:
    calls: list[int] = []

    @cache.memoize(admit="second-miss")
    def count(name: str) -> int:
        calls.append(1)
        return len(calls)

    assert count.refresh("key") == count("key") == 1
    for number in range(3_000):
        cache.get_or_set(number, lambda: 1, admit="second-miss")
    assert count.refresh("key") == count("key") == 2


@one
def test_what_was_asked_for_once_is_not_stored(cache: Cache) -> None:
    for number in range(10_000):
        cache.get_or_set(number, lambda: 1, admit="second-miss")
    assert len(cache) < 20  # some have the ghost of another
    for number in range(9_500, 10_000):
        cache.get_or_set(number, lambda: 1, admit="second-miss")
    assert len(cache) > 450  # and some have lost theirs


@few
def test_errors_that_are_kept(cache: Cache, clock: Clock) -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise Odd("text", 7)

    for _ in range(3):
        with pytest.raises(Odd) as caught:
            cache.get_or_set("key", work, 100, cache_errors=LookupError, error_expire=5)
        assert caught.value.args == ("text", 7)
    assert calls == [1]
    clock.advance(5)
    with pytest.raises(Odd):
        cache.get_or_set("key", work, 100)
    assert cache.get_or_set("other", lambda: 1, cache_errors=()) == 1

    def odd() -> None:
        raise LookupError(object())

    for _ in range(2):
        with pytest.raises(LookupError, match="object object"):
            cache.get_or_set("object", odd, 100, cache_errors=(LookupError, OSError))


class Parted(LookupError):
    """An error whose arguments are not those that it is made of."""

    def __init__(self, number: int, part: str) -> None:
        super().__init__(f"{number}: {part}")


@few
@pytest.mark.parametrize("fail", [lambda: json.loads("{"), lambda: raised(Parted(1, "x"))])
def test_an_error_of_any_class_is_raised_again(cache: Cache, fail: Callable[[], Any]) -> None:
    found: list[Exception] = []
    for _ in range(2):
        with pytest.raises((LookupError, ValueError)) as caught:
            cache.get_or_set("key", fail, 100, cache_errors=(LookupError, ValueError))
        found.append(caught.value)
    first, second = found
    assert (type(second), str(second)) == (type(first), str(first))


def raised(error: Exception) -> None:
    raise error


@few
def test_an_error_that_was_kept_is_no_result(cache: Cache) -> None:
    """The option may be gone with the next version of a program."""
    results: list[int] = []

    def work() -> int:
        return results.pop()

    with pytest.raises(IndexError):
        cache.memoize(name="work", expire=100, cache_errors=IndexError)(work)()
    results.append(1)
    assert cache.memoize(name="work", expire=100)(work)() == 1


@few
def test_after_an_error_the_old_value_is_served_for_a_while(cache: Cache, clock: Clock) -> None:
    calls: list[int] = []

    def fail() -> int:
        calls.append(1)
        raise ZeroDivisionError

    cache.get_or_set("key", lambda: 1, 10, stale_if_error=100)
    clock.advance(10)
    for _ in range(3):
        assert cache.get_or_set("key", fail, 10, stale_if_error=100) == 1
    assert calls == [1]
    assert cache.get_entry("key") is None, "get never sees a stale one"
    assert cache.get_entry("key", stale=True).stale
    clock.advance(rules.ERROR_PAUSE)
    assert cache.get_or_set("key", fail, 10, stale_if_error=100) == 1
    assert calls == [1, 1]
    clock.advance(rules.ERROR_PAUSE)
    assert cache.get_or_set("key", lambda: 2, 10, stale_if_error=100) == 2
    clock.advance(200)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("key", fail, 10, stale_if_error=100)
    assert cache.get_or_set("key", lambda: 3, 10, stale_if_error=100) == 3, "there is nothing to serve: no pause"


@few
def test_a_soft_eviction_leaves_what_can_be_had_stale(cache: Cache, clock: Clock) -> None:
    cache.get_or_set("kept", lambda: 1, 100, tags=["t"], stale_if_error=50)
    cache.set("plain", 1, expire=100, tags=["t"])
    assert cache.evict("t", soft=True) == 2
    assert "kept" not in cache
    assert "plain" not in cache
    assert cache.count(tags=["t"]) == 0
    assert cache.get_entry("kept", stale=True).value == 1
    assert not cache.delete("kept"), "it is not live"
    cache.get_or_set("kept", lambda: 1, 100, tags=["t"], stale_if_error=50)
    cache.evict("t", soft=True)

    def fail() -> int:
        raise ZeroDivisionError

    assert cache.get_or_set("kept", fail, 100, stale_if_error=50) == 1
    clock.advance(150)
    assert cache.get_entry("kept", stale=True) is None
    assert cache.expire() >= 1
    assert cache.check() == []


@one
def test_a_soft_eviction_counts_only_what_it_ended(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set_many(dict.fromkeys(range(10)), tag="t")
    store = cache._shards.stores[0]
    attempts = store.attempts

    def after_others(**options: Any) -> Any:  # between the look at the entries and the lock
        monkeypatch.undo()
        assert cache.delete_many(range(4)) == 4
        assert cache.retag(4, remove=["t"])
        return attempts(**options)

    monkeypatch.setattr(store, "attempts", after_others)
    assert cache.evict("t", soft=True) == 5
    assert list(cache) == [4]


@few
def test_the_breaker_opens_and_lets_a_probe_through(open_cache: Opener, clock: Clock) -> None:
    cache, other = open_cache(), open_cache()
    breaker = Breaker(errors=3, window=60, open=30)
    calls: list[int] = []
    broken, probed = True, False

    def work() -> int:
        calls.append(1)
        if probed:
            with pytest.raises(BreakerOpen):
                other.get_or_set("third", work, breaker=breaker)  # while the first probe is under way
        if broken:
            raise ZeroDivisionError
        return 5

    for handle in (cache, other, cache):
        with pytest.raises(ZeroDivisionError):
            handle.get_or_set("key", work, breaker=breaker)
    for handle in (cache, other):
        with pytest.raises(BreakerOpen, match="failed 3 times"):
            handle.get_or_set("key", work, breaker=breaker)
    clock.advance(30)
    with pytest.raises(ZeroDivisionError):
        other.get_or_set("key", work, breaker=breaker)
    with pytest.raises(BreakerOpen):
        cache.get_or_set("key", work, breaker=breaker)
    clock.advance(30)
    broken, probed = False, True
    assert cache.get_or_set("key", work, breaker=breaker) == 5
    assert len(calls) == 5
    broken, probed = True, False
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get_or_set("another", work, breaker=breaker)
    clock.advance(61)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("another", work, breaker=breaker)


SPAWNING = """
import multiprocessing, sys
from diskcache_like import Breaker, Cache

class Unlucky(Exception): pass

def fail():
    print("called", flush=True)
    raise Unlucky("text")

def attempt(key, **options):
    with Cache(sys.argv[1]) as cache:
        try:
            cache.get_or_set(key, fail, 100, cache_errors=Unlucky, **options)
        except Exception as error:
            print(type(error).__name__, flush=True)

if __name__ == "__main__":
    for key, options in (("a", {}), ("b", {"breaker": Breaker(errors=1)})):
        attempt(key, **options)
        key = key if key == "a" else "c"
        process = multiprocessing.get_context("spawn").Process(target=attempt, args=(key,), kwargs=options)
        process.start()
        process.join()
"""


def test_spawned_processes_share_the_breaker_and_the_errors_of_a_script(tmp_path: Path) -> None:
    """There its functions and classes are not those of `__main__`."""
    script = tmp_path / "script.py"
    script.write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "cache")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["called", "Unlucky", "Unlucky", "called", "Unlucky", "BreakerOpen"]


@few
def test_partials_of_two_functions_have_a_breaker_each(cache: Cache) -> None:
    def fail(_: int) -> None:
        raise ZeroDivisionError

    breaker = Breaker(errors=1)
    for error in (ZeroDivisionError, BreakerOpen):
        with pytest.raises(error):
            cache.get_or_set("key", partial(fail, 1), breaker=breaker)
    assert cache.get_or_set("other", partial(max, 1, 2), breaker=breaker) == 2


@few
def test_no_more_than_so_many_at_a_time(open_cache: Opener) -> None:
    cache = open_cache(timeout=0.05)
    inside, may_end = threading.Semaphore(0), threading.Event()

    def work() -> int:
        inside.release()
        assert may_end.wait(PATIENCE)
        return 1

    def ask(number: int) -> int:
        if number < 2:
            return cache.get_or_set(number, work, max_concurrent=2)
        for _ in range(2):
            assert inside.acquire(timeout=PATIENCE)
        with pytest.raises(Overloaded, match="2 computations of"):
            cache.get_or_set("third", work, max_concurrent=2)
        may_end.set()
        return 3

    assert in_threads(3, ask) == [1, 1, 3]
    assert cache.get_or_set("third", work, max_concurrent=2) == 1


@few
def test_the_context_knows_the_old_value(cache: Cache, clock: Clock) -> None:
    seen: list[Any] = []

    def work(context: Computing) -> Any:
        seen.append((context.old, context.age, context.etag))
        if context.etag == b"v2":
            return context.not_modified()
        context.etag = b"v%d" % (len(seen) + 1)
        context.tags = ["a", "b"]
        context.expire = 20
        return f"value {len(seen)}"

    assert cache.get_or_set("key", work, 10, stale_if_error=50) == "value 1"
    entry = cache.get_entry("key")
    assert (entry.etag, entry.tags, entry.expire_time) == (b"v2", ("a", "b"), clock.now + 20)
    clock.advance(21)
    assert cache.get_or_set("key", work, 10, stale_if_error=50) == "value 1"
    assert seen == [(None, None, b""), ("value 1", 21.0, b"v2")]
    assert cache.get_entry("key").expire_time == clock.now + 10
    assert cache.get_entry("key").age == 0
    assert cache.get_entry("key").tags == ("a", "b")

    def unkept(context: Computing) -> int:
        context.store = False
        return 1

    assert cache.get_or_set("unkept", unkept) == 1
    assert "unkept" not in cache


@few
def test_what_is_not_there_cannot_be_not_modified(cache: Cache) -> None:
    with pytest.raises(CacheError, match="'key': its function called not_modified"):
        cache.get_or_set("key", lambda context: context.not_modified(), 10, stale_if_error=5)
    assert "key" not in cache


@one
def test_a_timeout_may_be_any_number(cache: Cache) -> None:
    async def awork() -> int:
        return 2

    for seconds in (1e10, math.inf):
        assert cache.get_or_set(seconds, lambda: 1, hard_timeout=seconds) == 1
        assert asyncio.run(cache.get_or_set(-seconds, awork, hard_timeout=seconds)) == 2


@few
def test_tags_from_an_iterator(cache: Cache) -> None:
    cache.get_or_set("key", lambda: 1, tags=iter(["a", "b"]))
    assert cache.get_entry("key").tags == ("a", "b")

    @cache.memoize(tags=iter(["a", "b{number}"]))
    def double(number: int) -> int:
        return 2 * number

    for number in (1, 2):
        double(number)
        assert cache.get_entry(double.key(number)).tags == ("a", f"b{number}")


@few
def test_tags_of_the_result(cache: Cache) -> None:
    cache.get_or_set("key", lambda: ["x", "y"], tags=lambda value: value)
    cache.get_or_set("one", lambda: 1, tag="z")
    assert cache.get_entry("key").tags == ("x", "y")
    assert cache.get_entry("one").tags == ("z",)


@one
def test_options_that_cannot_be(cache: Cache) -> None:
    with pytest.raises(SettingError, match="admit is 'never', expected 'always' or 'second-miss'"):
        cache.memoize(admit="never")  # type: ignore[arg-type]
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (ExpiryError, {"expire": "soon"}),
        (ExpiryError, {"expire": -1}),
        (ExpiryError, {"stale_if_error": "x"}),
        (ExpiryError, {"stale_if_error": -1}),
        (ExpiryError, {"stale_while_revalidate": math.nan}),
        (ExpiryError, {"stale_while_revalidate": timedelta(-1)}),
        (ExpiryError, {"error_expire": lambda error: 5}),
        (SettingError, {"soft_timeout": -1}),
        (SettingError, {"hard_timeout": "1"}),
        (SettingError, {"beta": True}),
        (SettingError, {"jitter": 2}),
        (SettingError, {"jitter": True}),
        (SettingError, {"jitter": math.nan}),
        (SettingError, {"max_concurrent": 0}),
        (SettingError, {"breaker": 5}),
        (SettingError, {"breaker": Breaker(errors=0)}),
        (SettingError, {"breaker": Breaker(probes=0)}),
        (SettingError, {"breaker": Breaker(open=-1)}),
        (SettingError, {"breaker": Breaker(window=math.nan)}),
        (SettingError, {"cache_errors": [LookupError]}),
        (SettingError, {"cache_errors": KeyboardInterrupt}),
        (SettingError, {"when": 5}),
        (TagError, {"tags": "text"}),
        (TypeError, {"expires": 5}),
    ]
    for error, options in wrong:
        with pytest.raises(error, match=next(iter(options)).removesuffix("s")):
            cache.get_or_set("key", lambda: 1, **options)
        with pytest.raises(error):
            cache.memoize(**options)(len)
    with pytest.raises(TypeError, match="compute is 5"):
        cache.get_or_set("key", 5)  # type: ignore[call-overload]
    assert len(cache) == 0


# -- memoize ----------------------------------------------------------------------------------------------------------


class Odd(LookupError):
    """An error of the user's."""


class User:
    """Something with attributes."""

    def __init__(self, number: int) -> None:
        self.id = number


@few
def test_templates_of_keys_and_tags(cache: Cache) -> None:
    calls: list[int] = []

    @cache.memoize(key="user:{user.id}:{page!s:>3}", tags=["user:{user.id}", "users"], name="shown")
    def show(user: User, page: int = 1) -> int:
        calls.append(user.id)
        return page

    assert [show(User(1)), show(User(1)), show(User(2), page=5)] == [1, 1, 5]
    assert calls == [1, 2]
    assert show.key(User(2), 5) == ("shown", ("user:{user.id}:{page!s:>3}", 2, "  5"))
    assert cache.evict("user:1") == 1
    assert cache.count(tags=["users"]) == 1
    for text in ("{nobody}", "{user.__class__}", "{user[0]}", "{}", "{user.id.real()}"):
        with pytest.raises(TypeError, match="expected parameters of"):
            cache.memoize(key=text)(lambda user: user)
    for text in ("{user", "{user!x}", "{user:{user}}"):
        with pytest.raises(TypeError, match="user"):
            cache.memoize(key=text)(lambda user: user)


@few
def test_what_a_memoized_function_offers(cache: Cache) -> None:
    calls: list[int] = []

    @cache.memoize(expire=60)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    @cache.memoize(expire=60)
    def triple(number: int) -> int:
        return 3 * number

    assert double.peek(1) is None
    assert [double(1), double(2), triple(1)] == [2, 4, 3]
    assert double.peek(1) == 2
    assert double.refresh(1) == 2
    assert calls == [1, 2, 1]
    assert double.invalidate(1)
    assert double.peek(1) is None
    assert double(1) == 2
    assert double.cache_clear() == 2
    assert triple.peek(1) == 3
    assert double.cache_info()[:2] == (0, 3)


@few
def test_a_coroutine_function_with_options(cache: Cache, clock: Clock) -> None:
    calls: list[int] = []

    @cache.memoize(expire=10, stale_if_error=100, tags=["n{number}"])
    async def work(number: int) -> int:
        calls.append(number)
        if len(calls) == 2:
            raise ZeroDivisionError
        return number

    async def main() -> None:
        assert await work(1) == 1
        clock.advance(11)
        assert await work(1) == 1
        assert await work.refresh(1) == 1
        assert cache.get_entry(work.key(1)).tags == ("n1",)

    asyncio.run(main())
    assert calls == [1, 1, 1]


@few
def test_what_computing_notes_is_in_no_listing(cache: Cache, tmp_path: Path) -> None:
    breaker = Breaker(errors=1)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("key", lambda: 1 // 0, breaker=breaker)
    cache["other"] = 1
    with Cache(tmp_path / "copy") as copy:
        cache.copy_to(copy)
        for each in (cache, copy):
            assert list(each) == list(reversed(each)) == list(each.keys()) == list(each.keys(prefix="o")) == ["other"]
            assert dict(each) == {"other": 1}
            assert each.count() == 1


@few
@pytest.mark.parametrize(
    "options", [{}, {"stale_if_error": 60}, {"beta": 1e-9}, {"sliding": True}, {"max_concurrent": 2}], ids=str
)
def test_a_value_that_is_refused_is_computed_anew(cache: Cache, clock: Clock, options: Any) -> None:
    calls: list[int] = []
    good: set[int] = set()

    @cache.memoize(expire=60, valid=good.__contains__, **options)
    def count() -> int:
        calls.append(1)
        good.add(len(calls))
        return len(calls)

    @cache.memoize(expire=60, valid=good.__contains__, **options)
    async def counted() -> int:
        return count.__wrapped__()

    def got() -> Any:
        return cache.get_or_set("key", lambda: count.__wrapped__(), 60, valid=good.__contains__, **options)

    for call in (count, lambda: asyncio.run(counted()), got):
        first = call()
        assert call() == call() == first
        good.clear()
        assert call() == call() == first + 1
    good.clear()
    assert count.peek() is None
    assert count() == len(calls)
    assert count.cache_info().misses == 3


@few
def test_a_value_that_is_refused_is_not_served_in_need(cache: Cache) -> None:
    cache.set("key", "bad", 60)

    def failing() -> str:
        raise LookupError("no")

    with pytest.raises(LookupError):
        cache.get_or_set("key", failing, 60, stale_if_error=60, valid=lambda value: value != "bad")
    assert cache.get_or_set("key", lambda: "good", 60, valid=lambda value: value != "bad") == "good"
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("key", failing, 60, valid=lambda _: 1 // 0 > 0)
    assert cache["key"] == "good"
    with pytest.raises(SettingError, match="valid is 5, expected a function"):
        cache.memoize(valid=5)  # type: ignore[arg-type]
