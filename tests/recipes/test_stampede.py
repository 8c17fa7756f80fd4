"""memoize_stampede: one computation per missing result, and a new one before the old expires."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, CacheError, memoize_stampede
from diskcache_like.coherence import futex
from diskcache_like.operations import computing, flights, rules

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.contention import opened
from ..support.workers import PATIENCE, Crew, Link, ready

FOREVER = 1e6  # seconds


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


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


def run_threads(number: int, work: Callable[[int], object]) -> None:
    """Run `work(number)` in threads at once, and end when they have."""
    barrier = threading.Barrier(number)

    def run(each: int) -> None:
        barrier.wait(PATIENCE)
        work(each)

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def background() -> None:
    """Wait until results that are made in the background are there."""
    for thread in threading.enumerate():
        if thread.name == computing.RENEWAL:
            thread.join(PATIENCE)


# -- single flight ----------------------------------------------------------------------------------------------------


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


@few
def test_twenty_threads_compute_one_result_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "FIRST_SLICE", FOREVER)  # nothing but a wake-up ends a wait
    monkeypatch.setattr(futex, "LONGEST_SLICE", FOREVER)
    asleep = threading.Semaphore(0)
    sleep = futex.sleep

    def announced(*arguments: Any) -> None:
        asleep.release()
        sleep(*arguments)

    monkeypatch.setattr(futex, "sleep", announced)
    calls, found = [], []

    @memoize_stampede(cache, name="work", expire=60)
    def work(number: int) -> int:
        for _ in range(19):
            assert asleep.acquire(timeout=PATIENCE)  # all others wait before this one is done
        calls.append(number)
        return number + 1

    run_threads(20, lambda _: found.append(work(5)))
    assert found == [6] * 20
    assert calls == [5]
    assert work.cache_info()[:2] == (19, 1)


def compute(link: Link, number: int, directory: Path, kind: str) -> int:
    """Ask for one missing result with seven others; return how many times this process computed it."""
    calls = 0
    with opened(directory, kind) as cache:

        @memoize_stampede(cache, expire=60, name="work")
        def work(each: int) -> int:
            nonlocal calls
            calls += 1
            return sum(range(each * 100_000))

        ready(link)
        for each in range(5):
            assert work(each) == sum(range(each * 100_000))
    return calls


@pytest.mark.parametrize("kind", ["one", "fanout"])
def test_eight_processes_compute_one_result_once(crew: Crew, tmp_path: Path, kind: str) -> None:
    workers = crew.start_many(8, compute, tmp_path / "cache", kind)
    crew.together(workers)
    assert sum(crew.results(workers)) == 5


@few
def test_when_the_one_that_computes_fails_the_next_one_does_it(cache: Cache) -> None:
    calls: list[None] = []
    found: list[str] = []

    @memoize_stampede(cache, expire=60)
    def work() -> str:
        calls.append(None)
        if len(calls) < 4:
            raise ZeroDivisionError(len(calls))
        return "done"

    def ask(_: int) -> None:
        try:
            found.append(work())
        except ZeroDivisionError as error:
            found.append(str(error))

    run_threads(8, ask)
    assert sorted(found) == ["1", "2", "3", *["done"] * 5]
    assert len(calls) == 4


def compute_and_hang(link: Link, directory: Path) -> None:
    """Begin to compute, say so, and never end."""
    with Cache(directory) as cache:

        @memoize_stampede(cache, expire=60, name="work")
        def work() -> str:
            link.tell("computing")
            link.hear()
            return "never"

        work()


@one
def test_when_the_one_that_computes_dies_the_next_one_does_it(crew: Crew, open_cache: Opener) -> None:
    cache = open_cache()

    @memoize_stampede(cache, expire=60, name="work")
    def work() -> str:
        return "done"

    worker = crew.start(compute_and_hang, Path(cache.directory))
    assert worker.hear() == "computing"
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(work()), daemon=True)
    waiting.start()
    assert not found
    worker.kill()
    waiting.join(PATIENCE)
    assert found == ["done"]


@few
def test_a_computation_that_takes_too_long_is_not_waited_for(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PATIENCE", 0.05)
    began, may_end, found = threading.Event(), threading.Event(), []

    @memoize_stampede(cache, expire=0.01, name="work")
    def slow() -> str:
        began.set()
        assert may_end.wait(PATIENCE)
        return "slow"

    @memoize_stampede(cache, expire=0.01, name="work")
    def quick() -> str:
        return "quick"

    thread = threading.Thread(target=lambda: found.append(slow()))
    thread.start()
    assert began.wait(PATIENCE)
    assert quick() == "quick"
    may_end.set()
    thread.join(PATIENCE)
    assert found == ["slow"]


@few
def test_a_result_may_last_for_ever(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[int] = []
    work = memoize_stampede(cache, None)(calls.append)
    work(1)
    clock.advance(1e9)
    chance.append(0.9999999)
    work(1)
    assert calls == [1], "None is a result, too"


@few
def test_a_call_within_the_computation_of_its_own_key_does_not_wait_for_itself(cache: Cache) -> None:
    @memoize_stampede(cache, expire=60, ignore={"again"})
    def work(number: int, again: bool = True) -> int:
        return work(number, again=False) + 1 if again else number

    @memoize_stampede(cache, expire=60)
    def fibonacci(number: int) -> int:
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    with pytest.raises(CacheError, match="it would wait for itself"):
        work(5)
    assert fibonacci(20) == 6765
    assert fibonacci.cache_info().misses == 21


@few
def test_a_call_in_a_transaction_does_not_wait(cache: Cache) -> None:
    began, may_end = threading.Event(), threading.Event()

    @memoize_stampede(cache, name="work", expire=60, ignore={0})
    def work(wait: bool) -> bool:
        began.set()
        assert not wait or may_end.wait(PATIENCE)
        return wait

    thread = threading.Thread(target=work, args=(True,))
    thread.start()
    assert began.wait(PATIENCE)
    with cache.transact():
        assert work(False) is False
    may_end.set()
    thread.join(PATIENCE)


@few
def test_an_expiry_of_nothing_keeps_nothing_and_waits_for_nobody(cache: Cache) -> None:
    barrier = threading.Barrier(3)
    work = memoize_stampede(cache, name="work", expire=0)(lambda: barrier.wait(PATIENCE))
    run_threads(3, lambda _: work())
    assert len(cache) == 0


# -- early recomputation ----------------------------------------------------------------------------------------------


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
    background()
    assert len(calls) == 1
    clock.advance(1)
    assert work() == 1, "nobody waits for the new result"
    background()
    assert work() == 2
    assert len(calls) == 2
    clock.advance(94)
    chance.append(0)
    assert work() == 2
    background()
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
    run_threads(8, lambda _: work())
    may_end.set()
    background()
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
    background()
    assert len(calls) == 2
    assert list(cache) == [work.__cache_key__()], "nobody is at it any more"


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
    background()
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
    background()
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
    background()
    assert told == [ZeroDivisionError]
    assert cache.metrics.failed_renewals == 1
    assert work() == 1
    background()
    assert len(calls) == 2, "not at once"
    clock.advance(rules.RENEWAL_PAUSE)
    assert work() == 1
    background()
    chance.append(0)
    assert work() == 3
    assert told == [ZeroDivisionError]


# -- tasks ------------------------------------------------------------------------------------------------------------


@few
def test_twenty_tasks_compute_one_result_once(cache: Cache) -> None:
    calls: list[int] = []

    @memoize_stampede(cache, expire=60)
    async def work(number: int) -> int:
        calls.append(number)
        for _ in range(5):
            await asyncio.sleep(0)
        return number + 1

    async def main() -> list[int]:
        return await asyncio.gather(*(work(5) for _ in range(20)))

    assert asyncio.run(main()) == [6] * 20
    assert calls == [5]
    assert work.cache_info()[:2] == (19, 1)


async def waited_for_by(tasks: int) -> None:
    while sum(job.waiters for job in computing._jobs.values()) < tasks:  # noqa: ASYNC110
        await asyncio.sleep(0)


@few
def test_a_computation_goes_on_while_one_task_waits_for_it(cache: Cache) -> None:
    calls: list[None] = []

    async def main() -> str:
        began, released = asyncio.Event(), asyncio.Event()

        @memoize_stampede(cache, expire=60)
        async def work() -> str:
            calls.append(None)
            began.set()
            await released.wait()
            return "done"

        first, *others = (asyncio.create_task(work()) for _ in range(4))
        await began.wait()
        await waited_for_by(4)
        for task in (first, others.pop()):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        released.set()
        return "".join(await asyncio.gather(*others))

    assert asyncio.run(main()) == "donedone"
    assert len(calls) == 1


@few
def test_a_computation_ends_with_the_last_task_that_waits_for_it(cache: Cache) -> None:
    calls: list[str] = []

    @memoize_stampede(cache, expire=60)
    async def work() -> str:
        calls.append("began")
        if len(calls) > 1:
            return "done"
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("cancelled")
        raise AssertionError("nothing sets that event")

    async def main() -> str:
        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await waited_for_by(3)
        for task in tasks:
            assert "cancelled" not in calls
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return await work()

    assert asyncio.run(main()) == "done"
    assert calls == ["began", "cancelled", "began"]


@few
def test_a_task_makes_a_result_anew_before_it_expires(cache: Cache, clock: Clock, chance: list[float]) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=100)
    async def work() -> int:
        calls.append(None)
        clock.advance(1)
        await asyncio.sleep(0)
        return len(calls)

    async def main() -> list[int]:
        chance.append(0.9)
        found = [await work()]
        clock.advance(98)
        found.append(await work())
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        chance.append(0)
        return [*found, await work()]

    assert asyncio.run(main()) == [1, 1, 2]


@few
@pytest.mark.parametrize("when", ["before", "within"])
def test_the_event_loop_runs_on_while_another_thread_writes(cache: Cache, when: str) -> None:
    began, may_end, writers = threading.Event(), threading.Event(), []

    def write() -> None:
        with cache.transact():
            began.set()
            assert may_end.wait(PATIENCE)

    def start_to_write() -> None:
        writers.append(threading.Thread(target=write))
        writers[0].start()
        assert began.wait(PATIENCE)
        asyncio.get_running_loop().call_soon(may_end.set)  # never called if the next step blocks the loop

    @memoize_stampede(cache, name="work", expire=60)
    async def work(number: int) -> int:
        if when == "within":
            start_to_write()
        return number

    async def main() -> int:
        if when == "before":
            start_to_write()
        return await work(3)

    assert asyncio.run(main()) == 3
    writers[0].join(PATIENCE)
    assert work.__cache_key__(3) in cache
