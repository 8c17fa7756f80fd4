"""Recipes: locks with owners and leases, averages, throttles and barriers, for threads and asyncio tasks."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import BoundedSemaphore, Cache, LeaseLost, Lock, NotOwner, RLock, TransactionError
from diskcache_like.coherence import futex
from diskcache_like.coherence._native import Words
from diskcache_like.recipes import locks

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.contention import everywhere, held, opened
from ..support.workers import Crew, Link, forked, in_thread

AnyLock = Lock | RLock | BoundedSemaphore
Maker = Callable[..., AnyLock]

FOREVER = 1e6  # seconds
MAKERS = (Lock, RLock, BoundedSemaphore)
each_lock = pytest.mark.parametrize("make", MAKERS)


# -- owners and leases ------------------------------------------------------------------------------------------------


@one
@each_lock
def test_what_a_lock_wrote_is_known_from_memory(cache: Cache, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(h: int) -> bytes:
        raise AssertionError("the database was asked")

    lock = make(cache, "lock")
    assert cache.get("lock") is None
    for store in cache._shards.stores:
        monkeypatch.setattr(store, "read", refuse)
    for _ in range(2):
        lock.acquire()
        assert lock.held()
        lock.release()
        assert cache.get("lock") is None


@each_lock
def test_a_transaction_that_is_rolled_back_takes_no_lock(cache: Cache, make: Maker) -> None:
    lock, free = make(cache, "lock"), make(cache, "free")
    lock.acquire()
    with pytest.raises(ZeroDivisionError), cache.transact():
        free.acquire()
        assert free.held()
        lock.release()
        assert not lock.held()
        raise ZeroDivisionError
    assert cache.get("free") is None
    assert cache.get("lock") is not None


@each_lock
def test_a_lock_is_held_by_one_and_then_by_the_next(cache: Cache, make: Maker) -> None:
    lock, other = make(cache, "lock"), make(cache, "lock")
    lock.acquire()
    assert lock.held()
    assert not in_thread(other.held)
    assert in_thread(other.try_acquire) is False
    lock.release()
    assert not lock.held()
    with other:
        assert in_thread(lock.try_acquire) is False
    assert in_thread(lock.try_acquire) is True
    assert not make(cache, "another").held()


@each_lock
def test_who_does_not_hold_a_lock_cannot_release_or_extend_it(cache: Cache, make: Maker) -> None:
    lock, stranger = make(cache, "lock"), make(cache, "lock")
    for use in (lock.release, lock.extend):
        with pytest.raises(NotOwner, match="'lock'"):
            use()
    with pytest.raises(AssertionError):  # as in DiskCache
        lock.release()
    with lock:
        with pytest.raises(NotOwner):
            in_thread(stranger.release)
        assert lock.held()


@few
def test_a_lock_belongs_to_its_thread_and_a_semaphores_slot_to_its_process(cache: Cache) -> None:
    for make in (Lock, RLock):
        lock = make(cache, make.__name__)
        lock.acquire()
        with pytest.raises(NotOwner):
            in_thread(lock.release)
        assert lock.held()
    semaphore = BoundedSemaphore(cache, "semaphore")
    in_thread(semaphore.acquire)
    semaphore.release()
    assert semaphore.try_acquire()


@each_lock
def test_a_lease_frees_itself_and_its_owner_learns_of_it(cache: Cache, clock: Clock, make: Maker) -> None:
    late, next_owner = make(cache, "lock", expire=10), make(cache, "lock", expire=10)
    late.acquire()
    clock.advance(9.5)
    assert late.held()
    assert in_thread(next_owner.try_acquire) is False
    clock.advance(0.5)
    assert not late.held()
    assert in_thread(lambda: (next_owner.acquire(), next_owner.held())) == (True, True)
    with pytest.raises(LeaseLost, match="expire=10"):
        late.extend()
    with pytest.raises(LeaseLost, match="lost"):
        late.release()
    with pytest.raises(NotOwner) as found:
        late.release()
    assert type(found.value) is NotOwner, "what was lost is told once"
    assert in_thread(late.try_acquire) is False, "the next owner has kept it"


@few
@each_lock
def test_leases_that_are_left_to_run_out_are_not_kept_for_ever(
    cache: Cache, clock: Clock, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "REMEMBERED", 5)
    lock = make(cache, "lock", expire=10)
    for number in range(100):
        assert in_thread(lock.try_acquire) if number % 2 else lock.try_acquire()
        clock.advance(10)
    assert len(lock._held) <= 12
    with lock:
        assert lock.held()
        assert in_thread(lock.try_acquire) is False
    with pytest.raises(LeaseLost):
        lock.release()


@few
def test_what_is_held_is_never_forgotten(cache: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "REMEMBERED", 2)
    again, slots = RLock(cache, "again", expire=10), BoundedSemaphore(cache, "slots", 30, expire=10)
    for lock in (again, slots):
        for _ in range(10):
            assert lock.try_acquire()
        clock.advance(10)
        for _ in range(30):
            assert lock.try_acquire()
        for _ in range(30):
            lock.release()
        assert lock.try_acquire()
        lock.release()


@each_lock
def test_a_lease_is_extended(cache: Cache, clock: Clock, make: Maker) -> None:
    lock = make(cache, "lock", expire=10, tag="locks")
    with lock:
        for seconds in (None, 20):
            clock.advance(9)
            lock.extend(seconds)
        clock.advance(19)
        assert lock.held()
        assert cache.get("lock", tag=True)[1] == "locks"
        assert in_thread(lock.try_acquire) is False
    assert "lock" not in cache


@few
def test_a_lost_lease_does_not_hide_what_went_wrong_within(cache: Cache, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError) as found, Lock(cache, "lock", expire=1):
        clock.advance(1)
        raise ZeroDivisionError
    assert "lost" in found.value.__notes__[0]

    async def main() -> None:
        async with Lock(cache, "lock", expire=1):
            clock.advance(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as found:
        asyncio.run(main())
    assert "lost" in found.value.__notes__[0]


def test_an_rlock_is_acquired_again_by_its_owner_alone(cache: Cache, clock: Clock) -> None:
    lock, same = RLock(cache, "lock", expire=10), RLock(cache, "lock", expire=10)
    with lock, same, lock:
        clock.advance(9)
        with lock:
            clock.advance(9)  # each acquisition has started the lease anew
        assert in_thread(lock.try_acquire) is False
    assert "lock" not in cache
    lock.acquire()
    same.release()
    assert in_thread(lock.try_acquire) is True


def test_to_release_an_rlock_once_of_twice_leaves_its_lease_alone(cache: Cache, clock: Clock) -> None:
    lock = RLock(cache, "lock", expire=10)
    with lock:
        with lock:
            lock.extend(1000)
        clock.advance(900)
        assert lock.held()
        with RLock(cache, "lock", expire=5), RLock(cache, "lock"):
            pass
        clock.advance(900)
        assert lock.held(), "the last acquisition was without a lease"


def test_a_semaphore_has_as_many_slots_as_it_says(cache: Cache, clock: Clock) -> None:
    semaphore = BoundedSemaphore(cache, "semaphore", 3, expire=10)
    for _ in range(2):
        semaphore.acquire()
        clock.advance(4)
    other = BoundedSemaphore(cache, "semaphore", value=3, expire=10)
    assert [other.try_acquire() for _ in range(2)] == [True, False]
    clock.advance(2)  # the first lease ends: one slot comes back, as of an owner that died
    assert [other.try_acquire() for _ in range(2)] == [True, False]
    semaphore.release()
    with pytest.raises(LeaseLost):
        semaphore.release()
    with pytest.raises(NotOwner):
        semaphore.release()
    other.release()
    other.release()
    assert "semaphore" not in cache
    with pytest.raises(NotOwner):
        other.release()


@one
def test_a_semaphore_without_slots_is_refused(cache: Cache) -> None:
    for value in (0, -1):
        with pytest.raises(ValueError, match="1 or more"):
            BoundedSemaphore(cache, "semaphore", value)


@few
@each_lock
def test_what_is_not_a_locks_entry_is_refused_or_waited_for(cache: Cache, make: Maker) -> None:
    cache["lock"] = 5
    if make is Lock:
        assert not make(cache, "lock").try_acquire()
    else:
        with pytest.raises(TypeError, match="'lock'"):
            make(cache, "lock").acquire()
    assert cache["lock"] == 5


@few
@each_lock
def test_acquire_takes_the_arguments_of_a_threading_lock(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")
    assert lock.acquire() is True
    ways: tuple[dict[str, Any], ...] = ({"blocking": False}, {"timeout": 0}, {"timeout": 0.001})
    assert in_thread(lambda: [lock.acquire(**way) for way in ways]) == [False, False, False]
    lock.release()
    assert lock.acquire(timeout=1) is True
    lock.release()
    for wrong in ({"timeout": -2}, {"timeout": float("nan")}, {"blocking": False, "timeout": 1}):
        with pytest.raises(ValueError, match="timeout is"):
            lock.acquire(**wrong)


@few
@each_lock
def test_a_lock_that_cannot_come_free_within_a_transaction_is_refused(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")
    in_thread(lock.acquire)
    with pytest.raises(TransactionError, match="'lock'"), cache.transact():
        lock.acquire()
    with cache.transact(), make(cache, "free") as nothing:
        assert nothing is None


@one
@each_lock
def test_a_forked_child_does_not_own_its_parents_locks(open_cache: Opener, make: Maker) -> None:
    lock = make(open_cache(), "lock")

    def child(link: Link) -> list[Any]:
        found: list[Any] = [lock.held(), lock.try_acquire()]
        try:
            lock.release()
        except NotOwner as error:
            found.append(type(error))
        return found

    with lock:
        with forked(child) as worker:
            assert worker.hear() == [False, False, NotOwner]
        assert lock.held()


@one
@each_lock
def test_locks_are_sent_to_other_processes(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock", expire=5)
    copy = pickle.loads(pickle.dumps(lock))
    with lock:
        assert not in_thread(copy.try_acquire)
    copy._cache.close()


# -- waiting ----------------------------------------------------------------------------------------------------------


def exclude(cache: Cache, number: int) -> None:
    """Count up under each lock, whose waiters sleep until they are woken."""
    futex.FIRST_SLICE = futex.LONGEST_SLICE = FOREVER  # type: ignore[misc]
    for make in MAKERS:
        name = make.__name__
        for _ in range(6):
            with make(cache, name):
                cache.set(f"{name} count", cache.get(f"{name} count", 0) + 1, retry=True)


@pytest.mark.parametrize("kind", ["one", "fanout"])
def test_locks_exclude_threads_and_processes(crew: Crew, tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        everywhere(crew, tmp_path / "cache", kind, (2, 6), exclude)
        assert {name: cache[name] for name in cache} == {f"{make.__name__} count": 72 for make in MAKERS}


@few
@each_lock
def test_who_waits_goes_on_when_the_lease_of_a_dead_owner_ends(
    cache: Cache, clock: Clock, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = make(cache, "lock", expire=10)
    in_thread(lock.acquire)
    slept: list[float] = []

    def sleep(slots: Any, index: int, seen: int, seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(futex, "sleep", sleep)
    lock.acquire()
    assert math.fsum(slept) == pytest.approx(10), "it slept to the end of the lease and no longer"
    assert len(slept) < 300
    lock.release()


@one
def test_a_wait_has_a_limit_if_asked(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock(cache, "lock")
    in_thread(lock.acquire)
    slept: list[float] = []
    monkeypatch.setattr(futex, "sleep", lambda *arguments: slept.append(arguments[-1]))
    assert lock.try_acquire(0) is False
    assert not slept
    assert lock.try_acquire(0.001) is False
    assert max(slept) <= 0.001


@one
@each_lock
def test_a_wait_for_who_writes_something_else_has_that_limit_too(cache: Cache, make: Maker) -> None:
    lock = make(cache, "lock")
    with held(cache) as done:
        assert lock.try_acquire(0) is False
        assert lock.try_acquire(0.001) is False
        assert not done.is_set(), "the writer was waited for"
    assert lock.try_acquire() is True
    lock.release()


@one
def test_a_wake_up_is_for_everyone_on_the_slot(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Slots(Words):
        def wake(self, *arguments: int) -> int:
            calls.append(arguments)
            return 0

    _, h, store = cache._rows.locate("lock")
    shard = store.shard
    monkeypatch.setattr(shard, "slots", Slots(bytearray(8 * len(shard.slots)), 0, len(shard.slots)))
    with Lock(cache, "lock"):
        pass
    assert calls == [(shard.slot_of(h), 2**31 - 1)], "other keys share it, and who is woken alone may be killed"


@one
def test_a_sleeper_leaves_a_closed_store_alone(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    _, h, store = cache._rows.locate("key")
    stamp = store.shard.slots[store.shard.slot_of(h)]
    cache.close()
    store.wake(h)
    store.sleep(h, stamp, 0.01)
    assert slept == [0.01]
    cache["key"] = 1
    store.sleep(h, stamp, FOREVER)  # changed since: the kernel does not let us sleep
