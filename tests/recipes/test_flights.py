"""One computation for all who want a value: threads, tasks and processes, whatever becomes of the one that computes."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, CacheError, memoize_stampede
from diskcache_like.coherence import futex
from diskcache_like.memoizing import computing, flights, rules, steps

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.contention import finish_renewals, held, opened
from ..support.workers import PATIENCE, Crew, Link, in_threads, ready

FOREVER = 1e6  # seconds


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
    calls: list[int] = []

    @memoize_stampede(cache, name="work", expire=60)
    def work(number: int) -> int:
        for _ in range(19):
            assert asleep.acquire(timeout=PATIENCE)  # all others wait before this one is done
        calls.append(number)
        return number + 1

    assert in_threads(20, lambda _: work(5)) == [6] * 20
    assert calls == [5]
    assert work.cache_info()[:2] == (19, 1)


@few
def test_a_thousand_tasks_compute_a_hundred_keys_once_each(cache: Cache) -> None:
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

        return await asyncio.gather(*(one_(number % 100) for number in range(1000)))

    assert asyncio.run(main()) == [number % 100 for number in range(1000)]
    assert sorted(calls) == list(range(100))


@pytest.mark.parametrize("kind", ["one", "fanout"])
@pytest.mark.parametrize("state", ["missing", "stale"])
def test_eight_processes_compute_each_key_once(crew: Crew, tmp_path: Path, kind: str, state: str) -> None:
    keys = 100
    if state == "stale":
        with opened(tmp_path / "cache", kind, clock=lambda: time.time() - 5) as cache:
            for number in range(keys):
                cache.get_or_set(number, lambda: -1, 0.001, stale_while_revalidate=1000)
    workers = crew.start_many(8, compute_all, tmp_path / "cache", kind, keys)
    crew.together(workers)
    assert sum(crew.results(workers)) == keys


def compute_all(link: Link, _: int, directory: Path, kind: str, keys: int) -> int:
    """Get or compute all keys; return how many this process computed."""
    calls: list[int] = []

    def compute(number: int) -> int:
        calls.append(number)
        return number

    with opened(directory, kind) as cache:
        ready(link)
        for number in range(keys):
            found = cache.get_or_set(number, partial(compute, number), 1000, stale_while_revalidate=1000)
            assert found in (-1, number)
        finish_renewals()
    return len(calls)


@few
def test_when_the_one_that_computes_fails_the_next_one_does_it(cache: Cache) -> None:
    calls: list[None] = []

    @memoize_stampede(cache, expire=60)
    def work() -> str:
        calls.append(None)
        if len(calls) < 4:
            raise ZeroDivisionError(len(calls))
        return "done"

    def ask(_: int) -> str:
        try:
            return work()
        except ZeroDivisionError as error:
            return str(error)

    assert sorted(in_threads(8, ask)) == ["1", "2", "3", *["done"] * 5]
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
def test_after_a_soft_timeout_nobody_computes_a_second_time(cache: Cache, clock: Clock) -> None:
    calls: list[None] = []
    may_end = threading.Event()

    def slow() -> str:
        calls.append(None)
        assert may_end.wait(PATIENCE)
        return "new"

    cache.get_or_set("key", lambda: "old", 10, stale_if_error=100)
    clock.advance(11)
    for _ in range(2):
        found = in_threads(5, lambda _: cache.get_or_set("key", slow, 10, stale_if_error=100, soft_timeout=0))
        assert found == ["old"] * 5
    may_end.set()
    finish_renewals()
    assert cache["key"] == "new"
    assert len(calls) == 1


@few
def test_an_expiry_of_nothing_keeps_nothing_and_waits_for_nobody(cache: Cache) -> None:
    barrier = threading.Barrier(3)
    work = memoize_stampede(cache, name="work", expire=0)(lambda: barrier.wait(PATIENCE))
    in_threads(3, lambda _: work())
    assert len(cache) == 0


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


@few
def test_in_a_transaction_it_computes_and_waits_for_nobody(cache: Cache) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow() -> int:
        began.set()
        assert may_end.wait(PATIENCE)
        return 2

    thread = threading.Thread(target=cache.get_or_set, args=("key", slow, 60))
    thread.start()
    assert began.wait(PATIENCE)
    with pytest.raises(ZeroDivisionError), cache.transact():
        assert cache.get_or_set("key", lambda: 1, 60, stale_while_revalidate=5) == 1
        assert cache["key"] == 1
        raise ZeroDivisionError
    assert "key" not in cache
    may_end.set()
    thread.join(PATIENCE)


@few
def test_where_no_thread_starts_nobody_waits_for_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            cache.get_or_set("key", lambda: 1, hard_timeout=60)
    assert cache.get_or_set("key", lambda: 2, hard_timeout=60) == 2


@one
def test_where_a_signal_handler_raises_as_a_computation_begins(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = steps.under_way

    class Interrupted:
        """Sets the variable, and is interrupted just after."""

        get = under_way.get

        def set(self, value: Any) -> None:
            under_way.set(value)
            if value:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(computing, "under_way", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_set("key", lambda: 1)
    assert cache.get_or_set("key", lambda: 2) == 2


@few
def test_a_flight_that_is_dropped_is_free(cache: Cache) -> None:
    computation = computing.Computation(cache, rules.Rules(), "scope")
    assert computation.flight("key").begin()  # dropped at once, as when a signal handler raises
    flight = computation.flight("key")
    assert flight.begin()
    assert not computation.flight("key").begin()
    flight.finish()
    assert computation.flight("key").begin()


# -- tasks -------------------------------------------------------------------------------------------------------------


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


async def waited_for_by(tasks: int) -> None:
    while sum(job.waiters for job in steps._jobs.values()) < tasks:  # noqa: ASYNC110
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
@pytest.mark.parametrize("when", ["before", "within"])
def test_the_event_loop_runs_on_while_another_thread_writes(cache: Cache, when: str) -> None:
    with ExitStack() as writing:

        def start_to_write() -> None:
            done = writing.enter_context(held(cache))
            asyncio.get_running_loop().call_soon(done.set)  # never called if the next step blocks the loop

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
    assert work.__cache_key__(3) in cache
