"""The process-wide mutex of opening: no two threads open, reopen or leave shards at once.

No thread waits for a shard's write lock for long while it has the mutex. Whoever holds that lock may be a thread of
this process, in a transaction, that needs the mutex to open another cache: the two would wait for each other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from ...coherence.write_lock import WriteLock
from ...errors import Timeout

# Seconds for which a thread with the mutex waits for a write lock: as long as other writers need, and then time enough
# for its fairness claim to count.
BRIEFLY = 0.1

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


class LockTaken(Timeout):
    """A step under the mutex needs a write lock that somebody holds."""


def take(lock: WriteLock, timeout: float) -> None:
    """Take a write lock in a step of `under_mutex`, which tries the step again if the lock is not free soon."""
    try:
        lock.acquire(min(timeout, BRIEFLY))
    except Timeout as error:
        raise LockTaken(str(error)) from error


def under_mutex(step: Callable[[], Result], lock_path: str, timeout: float, *, shared: bool) -> Result:
    """Run a step under the mutex, again and again while it finds its write lock taken; wait for that without the mutex.

    Only a step within another one, as in a signal handler, waits with it. Raises Timeout after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with mutex():
                return step()
        except LockTaken:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
        # By a lock of its own: another thread may close the shard's meanwhile.
        with closing(WriteLock(lock_path, shared=shared)) as lock:
            lock.acquire(left)
            lock.release()
