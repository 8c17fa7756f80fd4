"""The process-wide mutex of opening: no two threads open or reopen shards at once.

No thread waits under the mutex for a shard's write lock, but in a signal handler that interrupts its opening. Whoever
holds that lock may be a thread of this process, in a transaction, that needs the mutex to open another cache: the two
would wait for each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from ...coherence.write_lock import WriteLock
from ...errors import DirectoryError, Timeout

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


class LockTaken(Exception):
    """A step under the mutex needs a write lock that is not free."""

    def __init__(self, lock: WriteLock) -> None:
        super().__init__(lock.path)
        self.lock = lock


@contextmanager
def holding(lock: WriteLock) -> Iterator[None]:
    """Hold a write lock, if it is free, in a step of `under_mutex`; else leave the step."""
    try:
        lock.acquire(0)
    except Timeout as error:
        raise LockTaken(lock) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def held() -> Iterator[None]:
    """Do nothing, in place of `holding` a lock that `under_mutex` has waited for."""
    yield


def under_mutex(step: Callable[[WriteLock | None], Result], timeout: float) -> Result:
    """Run a step under the mutex; if it leaves for want of a write lock, wait for that, and run it again with both.

    The lock that was waited for, which the step gets, stays locked to its end, since a writer that takes it again and
    again could else keep the step from ending. Transactions take both in this order, too. Raises Timeout if the lock is
    not free within `timeout` seconds.
    """
    try:
        with mutex():
            return step(None)
    except LockTaken as taken:
        lock = taken.lock
    try:
        lock.acquire(timeout)
    except DirectoryError:
        if not lock.is_closed():
            raise
        return under_mutex(step, timeout)  # another thread has closed the shard meanwhile
    try:
        with mutex():
            return step(lock)
    finally:
        lock.release()
