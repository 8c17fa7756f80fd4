"""Values that are made anew before or after they expire, and memoize_stampede, which does so by default."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta
from typing import Any

import pytest

from diskcache_like import Cache, Computing, memoize_stampede
from diskcache_like.memoizing import flights, rules, steps

from ..support.cache_kinds import Clock, few, one
from ..support.contention import finish_renewals
from ..support.workers import PATIENCE, in_threads


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what decides by chance instead of a random number: its last item."""
    found = [0.0]
    monkeypatch.setattr("random.random", lambda: found[-1])
    return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of what threads end by, instead of having it printed."""
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: found.append(arguments.exc_type))
    return found


def test_results_are_kept_and_expire(cache: Cache, clock: Clock) -> None:
    calls: list[Any] = []

    @memoize_stampede(cache, expire=timedelta(seconds=10), name="f", tag="t", ignore={"log"})
    def work(number: int, log: object = None) -> list[int]:
        calls.append(number)
        return [number]

    for _ in range(2):
        assert work(1) == work(number=1, log="x") == [1]
        assert work(2) == [2]
    assert calls == [1, 2]
    assert work.cache_info()[:3] == (4, 2, None)
    assert work.__cache_key__(1)[0] == "f"
    assert cache.get(work.__cache_key__(1), tag=True)[1] == "t"
    clock.advance(10)
    assert work(1) == [1]
    assert (work.invalidate(1), work.invalidate(1)) == (True, False)
    assert work(1) == [1]
    assert calls == [1, 2, 1, 1]
    assert len(cache) <= 2, "nothing else is left behind"


# -- before a value expires --------------------------------------------------------------------------------------------


@few
def test_a_result_is_made_anew_before_it_expires(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[float] = []

    @memoize_stampede(cache, expire=100, beta=2)
    def work() -> int:
        calls.append(clock.now)
        clock.advance(5)
        return len(calls)

    chance.append(1 - math.exp(-1))  # early by cost * beta = 10 seconds
    assert work() == 1
    clock.advance(89)
    assert work() == 1
    finish_renewals()
    assert len(calls) == 1
    clock.advance(1)
    assert work() == 1, "nobody waits for the new result"
    finish_renewals()
    assert work() == 2
    assert len(calls) == 2
    clock.advance(94)
    chance.append(0)
    assert work() == 2
    finish_renewals()
    assert len(calls) == 2, "it has expired later since"


@few
def test_one_alone_makes_a_result_anew(cache: Cache, clock: Clock, chance: list[float]) -> None:
    may_end = threading.Event()
    calls: list[None] = []

    @memoize_stampede(cache, name="work", expire=100)
    def work() -> int:
        calls.append(None)
        clock.advance(1)
        assert len(calls) == 1 or may_end.wait(PATIENCE)
        return len(calls)

    chance.append(0.9)
    work()
    clock.advance(98)
    in_threads(8, lambda _: work())
    may_end.set()
    finish_renewals()
    assert len(calls) == 2


@few
def test_what_was_made_anew_meanwhile_is_not_made_again(cache: Cache, clock: Clock, chance: list[float]) -> None:
    """A caller that was about to renew a result, and finds it renewed once it has the flight, leaves it."""
    calls: list[None] = []

    @memoize_stampede(cache, expire=100)
    def work() -> int:
        calls.append(None)
        clock.advance(1)
        return len(calls)

    chance.append(0.9)
    work()
    clock.advance(98)
    begin = flights.Flight.begin

    def begin_late(flight: flights.Flight, *arguments: bool) -> bool:
        if len(calls) == 1:
            work.refresh()
        return begin(flight, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flights.Flight, "begin", begin_late)
        assert work() == 1
    finish_renewals()
    assert len(calls) == 2
    assert list(cache) == [work.__cache_key__()], "nobody is at it any more"


@few
def test_a_result_may_last_for_ever(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[int] = []
    work = memoize_stampede(cache, None)(calls.append)
    work(1)
    clock.advance(1e9)
    chance.append(0.9999999)
    work(1)
    assert calls == [1], "None is a result, too"


@one
def test_a_beta_of_nothing_makes_nothing_anew(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=100, beta=0)
    def work() -> None:
        calls.append(None)
        clock.advance(1)

    work()
    chance.append(0.999999)
    clock.advance(99)
    work()
    finish_renewals()
    assert len(calls) == 1
    clock.advance(1)
    work()
    assert len(calls) == 2


@few
def test_where_no_thread_starts_the_result_is_made_anew_later(
    cache: Cache, clock: Clock, chance: list[float], told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=100)
    def work() -> int:
        calls.append(None)
        clock.advance(1)
        return len(calls)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    chance.append(0.9)
    work()
    clock.advance(98)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert work() == 1, "there is a result"
    assert told == [RuntimeError]
    assert list(cache) == [work.__cache_key__()], "nobody is at it"
    assert work() == 1
    finish_renewals()
    assert work() == 2


@few
def test_a_task_that_is_cancelled_at_once_is_not_waited_for(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=100)
    async def work() -> int:
        calls.append(None)
        clock.advance(1)
        return len(calls)

    async def main() -> None:
        chance.append(0.9)
        await work()
        clock.advance(98)
        assert await work() == 1
        (renewal,) = asyncio.all_tasks() - {asyncio.current_task()}
        renewal.cancel()  # before its first step
        await asyncio.wait([renewal])
        assert list(cache) == [work.__cache_key__()], "nobody is at it"

    asyncio.run(main())


@one
def test_what_fails_in_the_background_is_told_and_tried_again(
    cache: Cache, clock: Clock, chance: list[float], told: list[Any]
) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=100)
    def work() -> int:
        calls.append(None)
        clock.advance(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return len(calls)

    chance.append(0.9999999)
    work()
    clock.advance(90)
    assert work() == 1
    finish_renewals()
    assert told == [ZeroDivisionError]
    assert cache.metrics().failed_renewals == 1
    assert work() == 1
    finish_renewals()
    assert len(calls) == 2, "not at once"
    clock.advance(rules.RENEWAL_PAUSE)
    assert work() == 1
    finish_renewals()
    chance.append(0)
    assert work() == 3
    assert told == [ZeroDivisionError]


@few
def test_a_renewal_goes_on_if_its_caller_is_cancelled(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[None] = []

    async def main() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def work() -> int:
            calls.append(None)
            if len(calls) == 2:
                begun.set()
                await asyncio.wait_for(may_end.wait(), PATIENCE)
            clock.advance(1)
            return len(calls)

        async def call() -> None:
            assert await cache.get_or_set("key", work, 20, beta=1) == 1
            await asyncio.Event().wait()

        chance.append(0.9999)
        await cache.get_or_set("key", work, 20, beta=1)
        clock.advance(15)
        caller = asyncio.create_task(call())
        await asyncio.wait_for(begun.wait(), PATIENCE)
        caller.cancel()
        await asyncio.wait([caller])
        may_end.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert cache["key"] == 2

    asyncio.run(main())


@few
def test_after_the_expiry_callers_wait_for_a_renewal(
    cache: Cache, clock: Clock, chance: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    begun, may_end, rest = threading.Event(), threading.Event(), steps.Rest.run

    def work() -> int:
        calls.append(None)
        if len(calls) == 2:
            begun.set()
            assert may_end.wait(PATIENCE)
        clock.advance(1)
        return len(calls)

    def release_and_rest(step: steps.Rest) -> None:
        may_end.set()
        rest(step)

    chance.append(0.9999)
    cache.get_or_set("key", work, 20, beta=1)
    clock.advance(15)
    assert cache.get_or_set("key", work, 20, beta=1) == 1
    assert begun.wait(PATIENCE)
    clock.advance(10)
    assert "key" not in cache
    monkeypatch.setattr(steps.Rest, "run", release_and_rest)
    assert cache.get_or_set("key", lambda: 99, 20, beta=1) == 2


# -- after it ----------------------------------------------------------------------------------------------------------


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
    finish_renewals()
    assert cache.get("key") == {"set": "set", "delete": None, "evict": None}.get(change, "new")


@few
def test_a_renewal_may_ask_for_its_own_key(cache: Cache, clock: Clock) -> None:
    """It gets the old value, and does not wait for itself."""

    def work() -> int:
        return 1 + cache.get_or_set("key", lambda: 0, 10, stale_while_revalidate=100)

    cache.get_or_set("key", lambda: 5, 10, stale_while_revalidate=100)
    clock.advance(11)
    assert cache.get_or_set("key", work, 10, stale_while_revalidate=100) == 5
    finish_renewals()
    assert cache["key"] == 6


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
    finish_renewals()
    assert cache["key"] == 3


@few
def test_the_function_has_an_old_value_of_its_own(cache: Cache, clock: Clock) -> None:
    def work(context: Computing) -> list[int]:
        old: list[int] = context.old
        old.append(2)
        return old

    cache.get_or_set("key", lambda: [1], 10, stale_while_revalidate=100)
    clock.advance(11)
    served = cache.get_or_set("key", work, 10, stale_while_revalidate=100)
    finish_renewals()
    assert served == [1]
    assert cache["key"] == [1, 2]
