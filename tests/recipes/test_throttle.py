"""Averages, throttles and barriers."""

from __future__ import annotations

import asyncio
import threading

import pytest

from diskcache_like import Averager, BoundedSemaphore, Cache, Lock, RLock, barrier, throttle

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.workers import in_threads
from .test_locks import Maker, each_lock


def test_an_average_is_of_what_was_added(cache: Cache, clock: Clock) -> None:
    average = Averager(cache, "average", expire=10, tag="numbers")
    assert average.get() is None
    assert average.pop() is None
    for number in (1, 2, 6):
        average.add(number)
    assert (average.get(), cache.get("average", tag=True)[1]) == (3, "numbers")
    assert (average.pop(), average.get()) == (3, None)
    average.add(1)
    clock.advance(10)
    assert average.get() is None


class Work:
    """A function that notes when it was called."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[float] = []

    def __call__(self, number: int = 0) -> int:
        self.calls.append(self.clock.now - 1_700_000_000.0)
        return number


def test_a_throttled_function_is_called_at_its_rate(open_cache: Opener, clock: Clock) -> None:
    def work(number: int) -> int:
        return log(number)

    log = Work(clock)
    limit = [
        throttle(cache, 2, 1, name="work", tag="t", time_func=clock, sleep_func=clock.advance)(work)
        for cache in (open_cache(), open_cache())
    ]
    assert [limit[number % 2](number) for number in range(8)] == list(range(8)), "two handles share one limit"
    assert log.calls == pytest.approx([0, 0, 0.5, 1, 1.5, 2, 2.5, 3], abs=1e-5)
    clock.advance(100)
    log.calls.clear()
    limit[0](1), limit[1](1), limit[0](1)
    assert log.calls == pytest.approx([103, 103, 103.5], abs=1e-5), "a long pause saves up no more than one burst"
    clock.advance(-1e6)
    log.calls.clear()
    limit[0](1), limit[0](1)
    start = 103.5 - 1e6
    assert log.calls == pytest.approx([start + 0.5, start + 1], abs=1e-5), "a clock set back is not waited for"
    assert open_cache().get("work", tag=True)[1] == "t"
    assert limit[0].__wrapped__ is work  # type: ignore[attr-defined]


@few
def test_a_throttled_coroutine_function_waits_without_blocking(cache: Cache, clock: Clock) -> None:
    log = Work(clock)

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    @throttle(cache, 1, 10, time_func=clock, sleep_func=sleep)
    async def work(number: int) -> int:
        return log(number)

    async def main() -> list[int]:
        return [await work(number) for number in range(3)]

    assert asyncio.run(main()) == [0, 1, 2]
    assert log.calls == pytest.approx([0, 10, 20], abs=1e-4)


@one
@pytest.mark.parametrize(("count", "seconds"), [(0, 1), (-1, 1), (1, 0), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_a_throttle_that_lets_nothing_through_is_refused(cache: Cache, count: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        throttle(cache, count, seconds)


@few
@each_lock
def test_a_barrier_lets_one_call_in_after_another(cache: Cache, make: Maker) -> None:
    inside, most = 0, 0

    @barrier(cache, make, name="barrier", expire=60, tag="t")
    def work(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        assert cache.get("barrier", tag=True)[1] == "t"
        inside -= 1
        return number

    @barrier(cache, make, name="barrier")
    async def task(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*map(task, range(5)))

    def run(number: int) -> list[int]:
        return [work(number)] if number else asyncio.run(main())

    assert in_threads(6, run) == [[0, 1, 2, 3, 4], [1], [2], [3], [4], [5]]
    assert most == 1
    assert work(7) == 7


@one
def test_a_barrier_and_a_throttle_of_one_function_do_not_meet(cache: Cache) -> None:
    @throttle(cache, 5, 1)
    @barrier(cache, Lock)
    def work() -> int:
        return 1

    assert (work(), work()) == (1, 1)

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="async with"):
        barrier(cache, lambda *_, **__: threading.Lock())(coroutine)


@one
def test_each_says_what_it_is_of(cache: Cache) -> None:
    kinds = Lock, RLock, BoundedSemaphore, Averager
    assert [repr(kind(cache, "jobs")) for kind in kinds] == [f"{kind.__name__}('jobs')" for kind in kinds]
