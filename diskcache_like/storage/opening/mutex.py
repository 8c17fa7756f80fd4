"""The process-wide mutex of opening: no two threads open or reopen shards at once.

No thread that opens a shard waits for its write lock under the mutex, unless it does so in a signal handler that
interrupts another opening. Whoever holds that lock may be a thread of this process, in a transaction, that needs the
mutex to open another cache: the two would wait for each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TypeVar

from ...coherence.contexts import context
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


@context
def holding(lock: WriteLock) -> Generator[None, None, None]:
    """Hold a write lock in a step of `under_mutex`; raise LockTaken, which ends the step, if it is not free."""
    lock.refuse_holder()
    try:
        try:
            lock.acquire(0)
        except Timeout as error:
            raise LockTaken(lock) from error
        yield
    finally:
        lock.release()


def under_mutex(step: Callable[[WriteLock | None], Result], timeout: float) -> Result:
    """Run a step under the mutex; if it needs a write lock that is taken, wait for that, and run it again with both.

    The second time, the step is given the lock, which stays locked until the step has ended: otherwise a writer that
    takes it again and again could keep the step from ending. Transactions also take the lock first, then the mutex.
    Raises Timeout if the lock is not free within `timeout` seconds.
    """
    try:
        with mutex():
            return step(None)
    except LockTaken as taken:
        lock = taken.lock
    lock.refuse_holder()
    try:
        try:
            lock.acquire(timeout)
        except DirectoryError:
            if not lock.is_closed():
                raise
        else:
            with mutex():
                return step(lock)
    finally:
        lock.release()
    return under_mutex(step, timeout)  # another thread has closed the shard meanwhile
