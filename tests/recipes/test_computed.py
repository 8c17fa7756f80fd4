"""get_or_set and memoize: what a caller gets, in the table of docs/computed.md, and each option alone."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from diskcache_like import (
    Breaker,
    BreakerOpen,
    Cache,
    CacheError,
    ComputeTimeout,
    Computing,
    ExpiryError,
    Overloaded,
    SettingError,
    TagError,
)
from diskcache_like.operations import computing, flights, rules

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.workers import PATIENCE, Crew, Link, ready

FRESH, WITHIN, BEYOND = "fresh", "within a window", "absent"
STATES = (FRESH, WITHIN, BEYOND)
OUTCOMES = ("computed", "raises", "slow", "busy", "breaker open")
EXPIRE, WINDOW = 10.0, 5.0


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


def background() -> None:
    """Wait until what is computed behind its caller is there."""
    for thread in threading.enumerate():
        if thread.name == computing.RENEWAL:
            thread.join(PATIENCE)


class Caller:
    """Calls `get_or_set`, of a function or a coroutine function, with one outcome."""

    def __init__(self, cache: Cache, coroutine: bool) -> None:
        self.cache = cache
        self.coroutine = coroutine
        self.calls = 0
        self.may_end = threading.Event()

    def __call__(self, outcome: str, **options: Any) -> Any:
        def work() -> str:
            self.calls += 1
            if outcome == "raises":
                raise ZeroDivisionError
            if outcome == "slow":
                assert self.may_end.wait(PATIENCE)
            return "new"

        async def awork() -> str:
            self.calls += 1
            if outcome == "raises":
                raise ZeroDivisionError
            if outcome == "slow":
                await asyncio.to_thread(self.may_end.wait, PATIENCE)
            return "new"

        async def main() -> Any:
            try:
                return await self.cache.get_or_set("key", awork, EXPIRE, **options)
            finally:
                self.may_end.set()
                others = asyncio.all_tasks() - {asyncio.current_task()}
                if others:
                    await asyncio.wait(others)

        if self.coroutine:
            return asyncio.run(main())
        try:
            return self.cache.get_or_set("key", work, EXPIRE, **options)
        finally:
            self.may_end.set()
            background()


def expected(window: str, state: str, outcome: str) -> Any:
    """Return what the table in the documentation promises: a value, or an error."""
    if state == FRESH:
        return "old"
    if state == WITHIN and window == "stale_while_revalidate":
        return "old"
    if outcome == "computed":
        return "new"
    if state == WITHIN and window == "stale_if_error":
        return "old"
    return {
        "raises": ZeroDivisionError,
        "slow": ComputeTimeout,
        "busy": Overloaded,
        "breaker open": BreakerOpen,
    }[outcome]


@few
@pytest.mark.parametrize("coroutine", [False, True], ids=["function", "coroutine"])
@pytest.mark.parametrize("window", ["none", "stale_while_revalidate", "stale_if_error"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_table(
    open_cache: Opener, clock: Clock, coroutine: bool, window: str, state: str, outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cache = open_cache(timeout=0.05) if outcome == "busy" else open_cache()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # a renewal that fails tells so
    windows: dict[str, Any] = {} if window == "none" else {window: WINDOW}
    cache.get_or_set("key", lambda: "old", EXPIRE, **windows)
    clock.advance({FRESH: EXPIRE - 1, WITHIN: EXPIRE + 1, BEYOND: EXPIRE + WINDOW + 1}[state])
    caller = Caller(cache, coroutine)
    options: dict[str, Any] = dict(windows)
    if outcome == "slow":
        options |= {"soft_timeout": 0.02, "hard_timeout": 0.05}
    if outcome == "busy":
        options |= {"max_concurrent": 1}
        monkeypatch.setattr(flights.Flight, "begin", refuse_places(flights.Flight.begin))
    if outcome == "breaker open":
        options |= {"breaker": Breaker(errors=1)}
        monkeypatch.setattr(computing.Computation, "_pass_breaker", refuse_breaker)
    wanted = expected(window, state, outcome)
    if isinstance(wanted, str):
        assert caller(outcome, **options) == wanted
    else:
        with pytest.raises(wanted):
            caller(outcome, **options)
    if outcome in ("computed", "slow") and (wanted != "old" or state == WITHIN):
        assert cache.get("key") == "new", "what was computed is kept, however long it took"
    assert caller.calls <= 1
    assert cache.check() == []


class Options(NamedTuple):
    """The options of one call, drawn; `age` is that of the old value."""

    age: float
    outcome: str
    while_revalidating: float
    if_error: float
    soft_timeout: float | None
    hard_timeout: float | None
    others: dict[str, Any]

    def expected(self) -> Any:
        """Return what the table promises: values, or one error."""
        after = self.age - EXPIRE
        if after < 0 or after < self.while_revalidating:
            return {"old"}
        usable = after < self.if_error
        if self.outcome == "computed" or (self.outcome == "slow" and not self.times_out(usable)):
            return {"new"}
        return {"old"} if usable else expected("none", BEYOND, self.outcome)

    def times_out(self, usable: bool) -> bool:
        """Tell whether a caller has enough of waiting before a slow computation ends."""
        return (self.hard_timeout if self.soft_timeout is None or not usable else self.soft_timeout) is not None

    def given(self) -> dict[str, Any]:
        """Return them as `get_or_set` takes them; what is not slow has as much time as it may need."""
        timeouts = {"soft_timeout": self.soft_timeout, "hard_timeout": self.hard_timeout}
        if self.outcome != "slow":
            timeouts = {name: None if seconds is None else PATIENCE for name, seconds in timeouts.items()}
        return {
            "stale_while_revalidate": self.while_revalidating,
            "stale_if_error": self.if_error,
            **timeouts,
            **self.others,
        }


HARMLESS: dict[str, Any] = {  # what changes no answer in the table
    "tags": st.sampled_from([None, ["t"], lambda value: [value]]),
    "when": st.just(lambda value: value == "new"),
    "none_expire": st.sampled_from([0, 5]),
    "jitter": st.just(0.5),
    "cache_errors": st.just(LookupError),
    "max_concurrent": st.integers(1, 3),
    "breaker": st.integers(1, 3).map(Breaker),
}
WINDOWS = st.sampled_from([0.0, WINDOW, 3 * WINDOW])
OPTIONS = st.builds(
    Options,
    st.sampled_from([EXPIRE + step for step in (-EXPIRE, -0.5, 0, 0.5, WINDOW, WINDOW + 0.5, 3 * WINDOW, 4 * WINDOW)]),
    st.sampled_from(OUTCOMES),
    WINDOWS,
    WINDOWS,
    st.sampled_from([None, 0.01]),
    st.sampled_from([None, 0.02]),
    st.fixed_dictionaries({}, optional=HARMLESS),
)


@few
@pytest.mark.parametrize("coroutine", [False, True], ids=["function", "coroutine"])
@settings(
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),  # to shrink what waits in vain takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(options=OPTIONS)
@example(options=Options(EXPIRE + 1, "raises", WINDOW, 3 * WINDOW, None, None, {}))
@example(options=Options(EXPIRE + WINDOW, "raises", WINDOW, 3 * WINDOW, None, None, {}))
@example(options=Options(EXPIRE + WINDOW, "slow", 0.0, 3 * WINDOW, 0.01, None, {"breaker": Breaker(1)}))
def test_the_table_under_any_options(
    open_cache: Opener, clock: Clock, coroutine: bool, options: Options
) -> None:  # fmt: skip
    cache = open_cache(timeout=0.02) if options.outcome == "busy" else open_cache()
    cache.clear(retry=True)
    cache.get_or_set("key", lambda: "old", EXPIRE, stale_while_revalidate=4 * WINDOW)
    clock.advance(options.age)
    caller, given_ = Caller(cache, coroutine), options.given()
    if options.outcome == "slow" and options.expected() == {"new"}:
        caller.may_end.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)  # a renewal that fails tells so
        if options.outcome == "busy":
            given_["max_concurrent"] = 1
            patch.setattr(flights.Flight, "begin", refuse_places(flights.Flight.begin))
        if options.outcome == "breaker open":
            given_["breaker"] = Breaker(errors=1)
            patch.setattr(computing.Computation, "_pass_breaker", refuse_breaker)
        wanted = options.expected()
        if isinstance(wanted, set):
            assert {caller(options.outcome, **given_)} == wanted
        else:
            with pytest.raises(wanted):
                caller(options.outcome, **given_)
    is_fresh, can_be_had = options.age < EXPIRE, options.outcome in ("computed", "slow")
    assert caller.calls == (not is_fresh and options.outcome in ("computed", "slow", "raises"))
    assert cache.get("key") == ("old" if is_fresh else "new" if can_be_had else None)
    assert cache.check() == []


def refuse_places(begin: Callable[..., bool]) -> Callable[..., bool]:
    """Return what takes flights, but no place for a concurrent call."""
    return lambda flight, *arguments: flight.key.key[:1] != ("place",) and begin(flight, *arguments)


def refuse_breaker(computation: computing.Computation, held: list[Any]) -> Iterator[Any]:
    """Refuse a call as an open breaker does."""
    if not held:
        raise BreakerOpen("it is open")
    yield


# -- one for all ------------------------------------------------------------------------------------------------------


@few
def test_many_threads_compute_once(cache: Cache) -> None:
    calls: list[int] = []
    barrier = threading.Barrier(16)

    def compute() -> int:
        calls.append(1)
        return len(calls)

    def work() -> int:
        barrier.wait(PATIENCE)
        return cache.get_or_set("key", compute, 60)

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [1] * 16
    assert calls == [1]


@few
def test_ten_thousand_tasks_compute_a_hundred_keys_once_each(cache: Cache) -> None:
    calls: list[int] = []

    async def compute(number: int) -> int:
        calls.append(number)
        await asyncio.sleep(0.01)
        return number

    async def main() -> list[int]:
        async def one_(number: int) -> int:
            async def work() -> int:
                return await compute(number)

            return await cache.get_or_set(("key", number), work, 60)

        return await asyncio.gather(*(one_(number % 100) for number in range(10_000)))

    assert asyncio.run(main()) == [number % 100 for number in range(10_000)]
    assert sorted(calls) == list(range(100))


@pytest.mark.parametrize("state", ["missing", "stale"])
def test_eight_processes_compute_each_key_once(crew: Crew, tmp_path: Path, state: str) -> None:
    keys = 200
    if state == "stale":
        with Cache(tmp_path / "cache", clock=lambda: time.time() - 5) as cache:
            for number in range(keys):
                cache.get_or_set(number, lambda: -1, 0.001, stale_while_revalidate=1000)
    workers = crew.start_many(8, compute_all, tmp_path / "cache", keys)
    crew.together(workers)
    assert sum(crew.results(workers)) == keys


def compute_all(link: Link, _: int, directory: Path, keys: int) -> int:
    """Get or compute all keys; return how many this process computed."""
    calls: list[int] = []

    def compute(number: int) -> int:
        calls.append(number)
        return number

    with Cache(directory) as cache:
        ready(link)
        for number in range(keys):
            found = cache.get_or_set(number, partial(compute, number), 1000, stale_while_revalidate=1000)
            assert found in (-1, number)
        background()
    return len(calls)


@few
def test_the_same_key_within_its_own_computation(cache: Cache) -> None:
    def work() -> Any:
        return cache.get_or_set("key", work)

    with pytest.raises(CacheError, match="'key' is computed by a call that needs its value"):
        work()
    assert cache.get_or_set("key", lambda: cache.get_or_set("other", lambda: 1) + 1) == 2


@few
def test_what_is_written_during_a_computation_stays(cache: Cache) -> None:
    def compute() -> str:
        cache["key"] = "newer"
        return "older"

    assert cache.get_or_set("key", compute, tags=["t"]) == "older"
    assert cache["key"] == "newer"

    @cache.memoize(expire=60)
    def double(number: int) -> int:
        assert number == 1 or cache.set(double.key(number), -number)
        return number * 2

    assert [double(1), double(2)] == [2, 4]
    assert [double(1), double(2)] == [2, -2]
    assert double.refresh(2) == double(2) == 4, "asked for, it replaces whatever is there"


@one
def test_a_function_may_raise_what_ends_a_generator(cache: Cache) -> None:
    def exhausted() -> int:
        raise StopIteration("end")

    for timeout in (None, PATIENCE):
        with pytest.raises(StopIteration, match="end"):
            cache.get_or_set("key", exhausted, hard_timeout=timeout)
    with pytest.raises(StopIteration, match="end"):
        cache.memoize()(exhausted)()
    assert cache.get_or_set("key", lambda: 1) == 1


@one
def test_a_recursive_function_needs_one_place(open_cache: Opener) -> None:
    cache = open_cache(timeout=0)

    @cache.memoize(max_concurrent=1)
    def sum_to(number: int) -> int:
        return number + sum_to(number - 1) if number else 0

    assert sum_to(3) == 6
    assert sum_to(4) == 10, "the place is free again"


@one
def test_in_a_transaction_it_computes_without_a_flight(cache: Cache) -> None:
    with pytest.raises(ZeroDivisionError), cache.transact():
        assert cache.get_or_set("key", lambda: 1, 60, stale_while_revalidate=5) == 1
        assert cache["key"] == 1
        raise ZeroDivisionError
    assert "key" not in cache


@few
def test_where_no_thread_starts_nobody_waits_for_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            cache.get_or_set("key", lambda: 1, hard_timeout=60)
    assert cache.get_or_set("key", lambda: 2, hard_timeout=60) == 2


@few
def test_where_a_signal_handler_raises_as_a_thread_starts(
    cache: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`threading` keeps such a thread, and so what it was to compute, for ever."""
    kept: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        kept.append(thread)
        raise KeyboardInterrupt

    assert cache.get_or_set("key", lambda: 1, 10, stale_while_revalidate=100) == 1
    clock.advance(11)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_set("key", lambda: 2, 10, stale_while_revalidate=100)
    assert cache.get_or_set("key", lambda: 3, 10, stale_while_revalidate=100) == 1
    background()
    assert cache["key"] == 3


@one
def test_where_a_signal_handler_raises_as_a_computation_begins(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = computing._under_way

    class Interrupted:
        """Sets the variable, and is interrupted just after."""

        get = under_way.get

        def set(self, value: Any) -> None:
            under_way.set(value)
            if value:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(computing, "_under_way", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_set("key", lambda: 1)
    assert cache.get_or_set("key", lambda: 2) == 2


@few
@pytest.mark.parametrize("change", ["set", "delete", "evict", "expire", "nothing"])
def test_a_renewal_replaces_only_what_it_renews(cache: Cache, clock: Clock, change: str) -> None:
    may_end = threading.Event()

    def work() -> str:
        assert may_end.wait(PATIENCE)
        return "new"

    cache.get_or_set("key", lambda: "old", 10, stale_while_revalidate=100, tag="a")
    clock.advance(11)
    assert cache.get_or_set("key", work, 10, stale_while_revalidate=100) == "old"
    if change == "set":
        cache.set("key", "set")
    elif change == "delete":
        cache.delete("key")
    elif change == "evict":
        cache.evict("a")
    elif change == "expire":
        clock.advance(100)
        cache.expire()
    may_end.set()
    background()
    assert cache.get("key") == {"set": "set", "delete": None, "evict": None}.get(change, "new")


@few
def test_a_renewal_may_ask_for_its_own_key(cache: Cache, clock: Clock) -> None:
    """It gets the old value, and does not wait for itself."""

    def work() -> int:
        return 1 + cache.get_or_set("key", lambda: 0, 10, stale_while_revalidate=100)

    cache.get_or_set("key", lambda: 5, 10, stale_while_revalidate=100)
    clock.advance(11)
    assert cache.get_or_set("key", work, 10, stale_while_revalidate=100) == 5
    background()
    assert cache["key"] == 6


@few
def test_a_task_that_a_computation_began_may_ask_for_its_key_later(cache: Cache) -> None:
    async def main() -> None:
        later: list[asyncio.Task[int]] = []
        removed = asyncio.Event()

        async def ask() -> int:
            await removed.wait()
            return await cache.get_or_set("key", work, 60)

        async def work() -> int:
            later.append(asyncio.create_task(ask()))
            return len(later)

        assert await cache.get_or_set("key", work, 60) == 1
        cache.delete("key")
        removed.set()
        assert await later[0] == 2
        later[1].cancel()

    asyncio.run(main())


@few
def test_a_flight_that_is_dropped_is_free(cache: Cache) -> None:
    computation = computing.Computation(cache, rules.Rules(), "scope")
    assert computation.flight("key").begin()  # dropped at once, as when a signal handler raises
    flight = computation.flight("key")
    assert flight.begin()
    assert not computation.flight("key").begin()
    flight.finish()
    assert computation.flight("key").begin()


# -- each option ------------------------------------------------------------------------------------------------------


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
    broken = True

    def work() -> int:
        calls.append(1)
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
    broken = False
    assert cache.get_or_set("key", work, breaker=breaker) == 5
    assert len(calls) == 5
    broken = True
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

    threads = [
        threading.Thread(target=cache.get_or_set, args=(number, work), kwargs={"max_concurrent": 2})
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=PATIENCE)
    with pytest.raises(Overloaded, match="2 computations of"):
        cache.get_or_set("third", work, max_concurrent=2)
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE)
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
def test_the_function_has_an_old_value_of_its_own(cache: Cache, clock: Clock) -> None:
    def work(context: Computing) -> list[int]:
        old: list[int] = context.old
        old.append(2)
        return old

    cache.get_or_set("key", lambda: [1], 10, stale_while_revalidate=100)
    clock.advance(11)
    served = cache.get_or_set("key", work, 10, stale_while_revalidate=100)
    background()
    assert served == [1]
    assert cache["key"] == [1, 2]


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
