"""The process-wide mutex of opening: no two threads open, reopen or leave shards at once.

Nobody who opens waits for a shard's write lock under the mutex. Whoever holds that lock may be a thread of this
process, in a transaction, that needs the mutex to open another cache: the two would wait for each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TypeVar

from ...coherence.write_lock import WriteLock
from ...errors import Timeout

Holding = Callable[[], AbstractContextManager[None]]  # within it the write lock is held
Result = TypeVar("Result")

# A forked child gets a new mutex, because a thread that does not exist there may have held the old one.
_mutex = threading.RLock()


def mutex() -> threading.RLock:
    """Return the lock that guards opening and reopening of shards in this process."""
    return _mutex


def _renew() -> None:
    global _mutex
    _mutex = threading.RLock()


os.register_at_fork(after_in_child=_renew)


class _LockTaken(Exception):
    """A step under the mutex needs a write lock that is not free."""


@contextmanager
def holding(lock: WriteLock) -> Iterator[None]:
    """Hold a write lock in a step of `under_mutex`, if it is free; else leave the step."""
    try:
        lock.acquire(0)
    except Timeout as error:
        raise _LockTaken from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _held() -> Iterator[None]:
    yield


def under_mutex(step: Callable[[Holding | None], Result], lock_path: str, timeout: float, *, shared: bool) -> Result:
    """Run a step under the mutex; if it leaves for want of its write lock, wait for that and run it again.

    The step gets what to do in place of `holding`, None for nothing. Raises Timeout if the lock is not free within
    `timeout` seconds.
    """
    try:
        with mutex():
            return step(None)
    except _LockTaken:
        pass
    # By a lock of its own: another thread may close the shard's meanwhile. It stays locked for the step, which a writer
    # that takes the lock again and again could otherwise keep from ending. Transactions take both in this order, too.
    with closing(WriteLock(lock_path, shared=shared)) as lock:
        lock.acquire(timeout)
        try:
            with mutex():
                return step(_held)
        finally:
            lock.release()
