"""The shard's write lock: one writer at a time, among the threads of this process and among processes.

`_lock.c` takes it and waits for it: no signal handler runs in between, so a thread has all of the lock or nothing.
Those who find it taken sleep until it is released, and those who have waited long make a fairness claim, behind which
newcomers queue. This module opens the file that is locked, says why the lock cannot be had, and looks after forks.
"""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import DirectoryError, Timeout, TransactionError
from ..system.blocking import may_block
from ..system.forks import told_of_forks
from ..system.signals import reraise_signal, suppress
from . import _native
from .control_files import allocate, extend, open_control_file

# How often, and for how many seconds each time, `quiesce` waits for a lock that another thread holds.
QUIESCE_ATTEMPTS: Final = 10
QUIESCE_SLICE: Final = 5e-3


class WriteLock:
    """Hold a shard's write lock. It is not reentrant, and a forked child needs a WriteLock of its own.

    A flock belongs to the open file description, which parent and child share. So the child must abandon this object:
    after `os.fork` that happens by itself; after a fork made from C somebody calls `abandon`.
    """

    __slots__ = ("__weakref__", "attach", "contended", "core", "idle_here", "is_mine", "path", "release", "torn")

    def __init__(self, path: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.path = Path(path)
        self.core = _native.Lock(open_control_file(self.path, create=True, shared=shared))
        self.release = self.core.release  # itself in C, so that a `finally` can rely on it
        self.is_mine = self.core.is_mine  # whether the calling thread holds the lock
        self.attach = self.core.attach  # not before there is a generation file, which is made under this lock
        self.contended = self.core.contended
        self.idle_here = self.core.enter  # keeps the other threads out until `resume`, if none holds the lock now
        self.torn = False  # abandoned in the child of a process in which another thread held it
        _open_locks.add(self)

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, or raise Timeout after `timeout` seconds; 0 tries once, None waits without limit.

        Returns whether it had to wait. A signal handler may raise in here just after the lock was taken: whoever calls
        this ends it in a `finally`.
        """
        try:
            waits = timeout is None or timeout > 0
            outcome = self.core.try_acquire(not waits)
            waits = waits and outcome == _native.BUSY
            if waits:
                may_block()
                outcome = self.core.wait(timeout, may_block)  # whose caller may be cancelled meanwhile
        except OSError as error:
            raise self._cannot_lock(error) from error
        if outcome == _native.HELD:
            raise self._already_held()
        if outcome != _native.TAKEN:
            raise Timeout(f"write lock {self.path} was not free within {timeout} s")
        return waits

    def refuse_holder(self) -> None:
        """Raise TransactionError if the calling thread holds the lock: ask this before a `try` that releases it."""
        if self.is_mine():
            raise self._already_held()

    def is_closed(self) -> bool:
        """Tell whether nobody can take the lock by this object any more."""
        return self.core.fileno() < 0

    def release_and_close(self, before: Callable[[], object] = lambda: None) -> None:
        """Release and close the lock in one step: threads that wait for it find it closed, not free.

        `before` is called first. No signal handler runs between its end and the closing.
        """
        before()
        self.core.close(True)
        _open_locks.discard(self)

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        _open_locks.discard(self)
        self.core.close(False)

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without releasing a lock that the parent may hold.

        LOCK_UN would release the parent's lock, because parent and child share it; closing leaves it to the parent's
        descriptor. Keeping the descriptor open would be as bad: if the parent were killed, its lock would live on in
        the child.
        """
        self.torn = self.torn or not (self.core.owner() == 0 or self.is_mine())
        self.close()

    def keep_disk_reserve(self, size: int) -> None:
        """Have the file take up `size` bytes, which `drop_disk_reserve` frees; the caller holds the lock.

        Nobody reads them. They lie in this file because every handle has it open.
        """
        with suppress(OSError):
            if self.disk_reserve() < size and not allocate(self.core.fileno(), size):
                extend(self.core.fileno(), size)

    def disk_reserve(self) -> int:
        """Return the size of the disk reserve in bytes."""
        with suppress(OSError):
            return os.fstat(self.core.fileno()).st_blocks * 512
        return 0

    def drop_disk_reserve(self, kept: int = 0) -> bool:
        """Free the disk reserve but for `kept` bytes, and tell whether there was more; the caller holds the lock."""
        with suppress(OSError):
            if self.disk_reserve() > kept:
                os.ftruncate(self.core.fileno(), kept)
                return True
        return False

    def quiesce(self) -> bool:
        """Keep the other threads of this process from taking the lock until `resume`, while the caller forks.

        Returns False if the calling thread holds the lock itself. Raises Timeout, after a short wait, if another thread
        holds it.
        """
        if self.is_mine():
            return False
        for _ in range(QUIESCE_ATTEMPTS):
            if self.idle_here():
                return True
            time.sleep(QUIESCE_SLICE)
        raise Timeout(f"write lock {self.path} is held by another thread")

    def resume(self) -> None:
        """End what `quiesce` or `idle_here` began; do nothing if they returned False."""
        if self.is_mine():
            self.core.leave()

    def _already_held(self) -> TransactionError:
        return TransactionError(
            f"this thread already holds {self.path} and would wait for itself for ever; a signal handler that "
            "interrupts a write may read, but must leave writing for later"
        )

    def _cannot_lock(self, error: OSError) -> DirectoryError:
        reraise_signal(error)
        if self.is_closed():
            return DirectoryError(errno.EBADF, "the write lock is closed", self.path)
        code = error.errno or errno.ENOLCK
        return DirectoryError(code, f"the file system grants no lock, and a cache needs locks ({error})", self.path)


_open_locks: weakref.WeakSet[WriteLock] = told_of_forks(lambda lock: lock.abandon())
