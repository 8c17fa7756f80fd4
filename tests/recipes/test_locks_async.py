"""Locks as asyncio tasks use them: without blocking the event loop, and with nothing left behind."""

from __future__ import annotations

import asyncio

import pytest

from diskcache_like import Cache, LeaseLost, Lock, NotOwner, RLock, TransactionError, barrier, throttle

from ..support.cache_kinds import Clock, few, one
from ..support.contention import held
from ..support.workers import PATIENCE
from .test_locks import Maker, each_lock


@few
@each_lock
def test_tasks_take_turns_on_one_event_loop(cache: Cache, make: Maker) -> None:
    lock, inside, most, done = make(cache, "lock"), 0, 0, []

    async def work(number: int) -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
        done.append(number)

    async def main() -> None:
        await asyncio.gather(*map(work, range(6)))

    asyncio.run(main())
    assert (sorted(done), most) == ([0, 1, 2, 3, 4, 5], 1)
    assert lock.try_acquire()


@few
def test_an_rlock_is_reentrant_for_a_task_but_not_for_its_thread(cache: Cache) -> None:
    lock = RLock(cache, "lock")

    async def other() -> bool:
        return lock.try_acquire()

    async def main() -> bool:
        async with lock, lock:
            found = await asyncio.create_task(other())
        assert "lock" not in cache
        return found

    assert asyncio.run(main()) is False


@few
@each_lock
def test_a_task_extends_its_lease_and_learns_of_its_loss(cache: Cache, clock: Clock, make: Maker) -> None:
    async def main() -> None:
        lock = make(cache, "lock", expire=10)
        with pytest.raises(NotOwner):
            await lock.aextend()
        await lock.aacquire()
        for seconds in (None, 20):
            clock.advance(9)
            await lock.aextend(seconds)
        clock.advance(19)
        assert lock.held()
        clock.advance(1)
        with pytest.raises(LeaseLost):
            await lock.aextend()
        with pytest.raises(LeaseLost):
            await lock.arelease()

    asyncio.run(main())


@few
@each_lock
def test_a_task_that_is_cancelled_leaves_no_lock_behind(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")

    async def use() -> None:
        async with lock:
            inside.set()
            await asyncio.Event().wait()

    inside = asyncio.Event()

    async def main() -> None:
        await lock.aacquire()
        waiting = asyncio.create_task(use())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await lock.arelease()
        running = asyncio.create_task(use())
        await inside.wait()
        assert "lock" in cache
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert "lock" not in cache


@few
@each_lock
def test_the_event_loop_runs_on_while_another_thread_writes(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")

    async def main() -> None:
        for step in (lock.aacquire, lock.aextend, lock.arelease):
            with held(cache) as done:
                asyncio.get_running_loop().call_soon(done.set)  # never called if the step blocks the loop
                await step()

    asyncio.run(main())
    assert "lock" not in cache


@one
@each_lock
def test_a_release_that_is_cancelled_is_made_all_the_same(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")

    async def use() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        await lock.aacquire()
        with held(cache) as done:
            loop.call_soon(done.set)
            loop.call_soon(task.cancel)
            await lock.arelease()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(use())
    assert "lock" not in cache


@one
@each_lock
def test_a_lock_takes_the_face_of_its_cache(cache: Cache, make: Maker) -> None:
    async def main() -> None:
        face = cache.aio
        async with make(face, "lock"):
            assert await face.contains("lock")

        @throttle(face, count=1, seconds=1)
        @barrier(face, Lock)
        async def work() -> int:
            return 1

        assert await work() == 1

    asyncio.run(main())
    assert "lock" not in cache
    assert make(cache.aio, "lock").try_acquire()


@few
@each_lock
def test_a_lock_within_a_transaction_of_the_face_is_refused(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")

    @throttle(cache, count=1, seconds=1)
    async def work() -> None: ...

    async def main() -> None:
        face = cache.aio
        async with face.transact():
            for step in (lock.aacquire, work):
                with pytest.raises(TransactionError, match="use it outside"):
                    await step()
        await lock.aacquire()
        async with face.transact():
            for step in (lock.aextend, lock.arelease):
                with pytest.raises(TransactionError, match="use it outside"):
                    await step()
        await lock.arelease()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert "lock" not in cache
