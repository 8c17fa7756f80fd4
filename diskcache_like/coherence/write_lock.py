"""The shard's write lock: one writer at a time, among the threads of this process and among processes.

First comes a `threading.RLock`, so that only one thread of each process competes with other processes, then `flock` on
a descriptor of our own. The kernel drops a flock when its holder dies, however it dies, and there is no queue that a
dead process could clog. A process that finds the lock taken tries again after a pause, which the releaser ends. A
process that has waited long makes a fairness claim, and newcomers queue behind it.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from operator import itemgetter
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Final

from ..errors import DirectoryError, NotOwner, Timeout, TransactionError
from ..system.blocking import may_block
from ..system.signals import reraise_signal, suppress
from . import _native
from .control_files import allocate, extend, open_control_file
from .generations import Header

_TRY: Final = LOCK_EX | LOCK_NB
_WAITERS: Final = Header.WAITERS
_WAKE: Final = Header.WAKE
_FAIRNESS_CLAIM: Final = Header.FAIRNESS_CLAIM
_FOREVER: Final = float("inf")

# Seconds between attempts where the system can wake nobody.
LONGEST_PAUSE: Final = 1e-3

# Seconds between attempts, twice as long each time, up to the longest. A release ends the pause. They only bound the
# delay when a wake-up is lost, because it went to a process that was killed before it could use it or pass it on.
FIRST_SLICE: Final = 1e-3
LONGEST_SLICE: Final = 20e-3

# The longest that a thread sleeps before it looks again for a lock that another thread holds: hundreds of threads that
# woke often would keep the interpreter from the holder.
LONGEST_THREAD_SLICE: Final = 0.5

# Attempts before the first pause. The spins take about 50 microseconds together, which is how long a small write holds
# the lock. A holder that takes longer has most likely lost its processor, so the next attempts each yield ours first;
# they cost little more than going to sleep and being woken. After a pause neither is repeated: that would keep the
# processor from the holder.
SPINS: Final = 50
YIELDS: Final = 50

# Seconds of waiting after which a process makes a claim, and for which a newcomer queues at most before its first
# attempt. Long compared to the time that a write holds the lock, because a queue costs context switches.
PATIENCE: Final = 20e-3

# Seconds for which a claim outlives its claimant's pause, so that it still stands if the lock is released just before
# the pause ends. If the claimant is killed, this is also what each newcomer loses at most.
GRACE: Final = 10e-3

# How often, and for how many seconds each time, `quiesce` waits for a lock that another thread holds.
QUIESCE_ATTEMPTS: Final = 10
QUIESCE_SLICE: Final = 5e-3


class _Wait:
    """One wait for the lock: since when, until when, and the fairness claim that it has made (0: none)."""

    __slots__ = ("claim", "deadline", "started")

    def __init__(self, started: float, timeout: float | None) -> None:
        self.started = started
        self.deadline = _FOREVER if timeout is None else started + timeout
        self.claim = 0

    def begin_pause(self) -> None:
        """End the call if it must not wait; one that tries only once does not."""
        if self.deadline > self.started:
            may_block()


class WriteLock:
    """Hold a shard's write lock. It is not reentrant, and a forked child needs a WriteLock of its own.

    A flock belongs to the open file description, which parent and child share. So the child must abandon this object:
    after `os.fork` that happens by itself; after a fork made from C somebody calls `abandon`.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_descriptor",
        "_header",
        "_owner",
        "_quiescer",
        "_sleep",
        "_thread",
        "_waiting_threads",
        "path",
        "recoveries",
        "torn",
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._descriptor = -1
        self.path = Path(path)
        self._clock = clock
        self._sleep = sleep
        # An RLock only because it knows its owner from the instant at which it is taken: a signal handler may raise
        # before an attribute of ours could record the owner.
        self._thread = threading.RLock()
        self._owner = 0
        self._waiting_threads: dict[int, float] = {}  # since when each thread that has not got it at once waits
        self.recoveries = 0  # how often `abort_interrupted` released it for a call that an exception ended too early
        self._quiescer = 0  # the thread that keeps the others away while it forks
        self.torn = False  # abandoned in the child of a process in which another thread held it
        self._header: _native.Words | None = None
        self._descriptor = open_control_file(self.path, create=True, shared=shared)
        _open_locks.add(self)

    def attach(self, header: _native.Words) -> None:
        """Use the words of a generation file's header from now on.

        This comes after the construction because the generation file is made under this lock. `close` drops the header.
        """
        self._header = header

    def acquire(self, timeout: float | None = None) -> None:
        """Take the lock, or raise Timeout after `timeout` seconds; 0 tries once, None waits without limit.

        If a signal handler raises in here, the lock is not held afterwards.
        """
        if self._thread._is_owned():  # type: ignore[attr-defined]  # CPython's own; its Condition relies on it
            raise self._already_held()
        try:
            header = self._header
            wait = self._queue_behind_claim(header, timeout) if header is not None and header[_FAIRNESS_CLAIM] else None
            if self._waiting_threads:
                wait = self._let_threads_run(wait or _Wait(self._clock(), timeout))
            if not self._thread.acquire(False):
                wait = self._wait_for_thread(wait or _Wait(self._clock(), timeout))
            try:
                flock(self._descriptor, _TRY)
            except BaseException as error:
                wait = self._after_failed_attempt(error, wait or _Wait(self._clock(), timeout))
            self._owner = get_ident()
            if wait is not None and wait.claim:
                self._withdraw_claim(wait)
        except BaseException:
            self.abort_interrupted()
            raise

    def release(self) -> None:
        """Release the lock and wake one waiter."""
        if not self._owner:
            if self._descriptor < 0:
                return  # closed or abandoned while held, as when a forked child unwinds a block of its parent's
            raise NotOwner(f"{self.path} is not held")
        try:
            flock(self._descriptor, LOCK_UN)
            header = self._header
            if header is not None and header[_WAITERS]:
                self._wake(header)
        except BaseException:  # from a signal handler, which an audit hook lets run even before the call itself
            with suppress(OSError, ValueError):
                flock(self._descriptor, LOCK_UN)
            raise
        finally:
            self._owner = 0
            self._release_thread_lock()

    def enter_alone(self) -> bool:
        """Keep the other threads of this process out until `leave`, if none is there or waits; tell whether it is done.

        Within it the C helper takes the lock, and releases it: of one descriptor, two threads would both get it.
        """
        thread = self._thread
        if self._waiting_threads or thread._is_owned() or not thread.acquire(False):  # type: ignore[attr-defined]
            return False
        if self._descriptor < 0:  # closed just now
            thread.release()
            return False
        return True

    def leave(self) -> None:
        """Let the other threads in again."""
        self._release_thread_lock()

    def fileno(self) -> int:
        """Return the descriptor that is locked."""
        return self._descriptor

    def regain(self) -> bool:
        """Make sure that the calling thread, which keeps the others out, has the whole lock; tell whether it does.

        An exception may have ended `enter_alone`, or an `acquire`, before the part that keeps other processes out.
        """
        try:
            flock(self._descriptor, _TRY)  # changes nothing if it is held already
        except (OSError, ValueError) as error:
            reraise_signal(error)
            return False
        return True

    def abort_interrupted(self) -> None:
        """Release what the calling thread still holds after an exception ended its `acquire` or `release`."""
        if self.locked_by_me():
            self.recoveries += 1
            self._unlock_both()

    def locked_by_me(self) -> bool:
        """Tell whether the calling thread holds the lock, or is about to."""
        owned: bool = self._thread._is_owned()  # type: ignore[attr-defined]
        return owned

    def is_closed(self) -> bool:
        """Tell whether nobody can take the lock by this object any more."""
        return self._descriptor < 0

    def is_quiesced(self) -> bool:
        """Tell whether the calling thread keeps the others away while it forks."""
        return self._quiescer == get_ident()

    def contended(self) -> bool:
        """Tell whether another process has recently found the lock taken: a hint, always False before `attach`."""
        header = self._header
        return header is not None and header[_WAITERS] != 0

    def release_and_close(self, before: Callable[[], object] = lambda: None) -> None:
        """Release and close the lock in one step: threads that wait for it find it closed, not free.

        `before` is called first, in here so that a signal handler that runs meanwhile is known to interrupt this step.
        """
        before()
        descriptor, self._descriptor = self._descriptor, -1
        header = self._header
        try:
            flock(descriptor, LOCK_UN)  # closing is not enough: a child made by a fork from C keeps the lock open
            if header is not None and header[_WAITERS]:
                self._wake(header)
        finally:
            os.close(descriptor)
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:  # a signal handler may have raised before it was set
            self.close()

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        self._header = None
        _open_locks.discard(self)
        if descriptor >= 0:
            os.close(descriptor)
        if self._owner or self.locked_by_me():
            self._owner = 0
            self._release_thread_lock()  # waiting threads must find out that the lock is closed

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without releasing a lock that the parent may hold.

        LOCK_UN would release the parent's lock, because parent and child share it; closing leaves it to the parent's
        descriptor. Keeping the descriptor open would be as bad: if the parent were killed, its lock would live on in
        the child.
        """
        self.torn = self.torn or self._owner not in (0, get_ident())
        self.close()

    def keep_disk_reserve(self, size: int) -> None:
        """Have the file take up `size` bytes, which `drop_disk_reserve` frees; the caller holds the lock.

        Nobody reads them. They lie in this file because every handle has it open.
        """
        with suppress(OSError):
            if self.disk_reserve() < size and not allocate(self._descriptor, size):
                extend(self._descriptor, size)

    def disk_reserve(self) -> int:
        """Return the size of the disk reserve in bytes."""
        with suppress(OSError):
            return os.fstat(self._descriptor).st_blocks * 512
        return 0

    def drop_disk_reserve(self, kept: int = 0) -> bool:
        """Free the disk reserve but for `kept` bytes, and tell whether there was more; the caller holds the lock."""
        with suppress(OSError):
            if self.disk_reserve() > kept:
                os.ftruncate(self._descriptor, kept)
                return True
        return False

    def idle_here(self) -> bool:
        """Keep the other threads from taking the lock until `resume` if none holds it now; tell whether that is so."""
        return not self.locked_by_me() and self._thread.acquire(False)

    def quiesce(self) -> bool:
        """Keep the other threads of this process from taking the lock until `resume`, while the caller forks.

        Returns False if the calling thread holds the lock itself, or if another thread stands in the way but only waits
        for another process. Raises Timeout, after a short wait, if another thread holds the lock.
        """
        if self.locked_by_me():
            return False
        writing = False
        for _ in range(QUIESCE_ATTEMPTS):
            if self._thread.acquire(True, QUIESCE_SLICE):
                self._quiescer = get_ident()
                return True
            writing = writing or self._owner != 0
        if writing:
            raise Timeout(f"write lock {self.path} is held by another thread")
        return False

    def resume(self) -> None:
        """End what `quiesce` or `idle_here` began; do nothing if they returned False."""
        if self.locked_by_me():
            self._quiescer = 0
            self._thread.release()

    def _after_failed_attempt(self, error: BaseException, wait: _Wait) -> _Wait:
        """Wait if the first attempt found the lock taken; return with both locks held, or raise."""
        if isinstance(error, BlockingIOError):
            error.__traceback__ = None  # before CPython 3.13 it and the frames in `_is_interrupted` would form a cycle
            self._wait_for_process(wait)
            return wait
        self._unlock_both()
        if isinstance(error, (OSError, ValueError)):
            raise self._cannot_lock(error) from error
        raise error

    def _wait_for_thread(self, wait: _Wait) -> _Wait:
        """Wait for the thread lock and take it."""
        if get_ident() in (self._owner, self._quiescer) or self._is_interrupted():
            raise self._already_held()
        now, pause = wait.started, PATIENCE
        try:
            while True:
                wait.begin_pause()
                self._waiting_threads[get_ident()] = wait.started
                if self._thread.acquire(True, max(0.0, min(pause, wait.deadline - now))):
                    return wait
                now, pause = self._clock(), min(2 * pause, LONGEST_THREAD_SLICE)
                if now >= wait.deadline:
                    raise self._timed_out(wait)
                self._claim_fairness(wait, now, min(pause, LONGEST_SLICE))
        finally:
            self._waiting_threads.pop(get_ident(), None)

    # Why no thread starves for want of the interpreter. A waiter that is woken, or whose pause ends, needs the GIL
    # before it can take the lock or make a claim. It asks for the GIL only when nobody has let it go for a whole switch
    # interval, and a thread that takes the lock again and again lets it go for a microsecond at every system call: too
    # short for the waiter to be there in time, and enough to begin its interval anew. So a newcomer that finds a thread
    # which has waited for PATIENCE sleeps, which gives the GIL away for certain. `_waiting_threads` can only delay
    # others: each thread changes its own item, in one step of the interpreter's, and an item that a signal handler left
    # behind costs one newcomer PATIENCE.

    def _let_threads_run(self, wait: _Wait) -> _Wait:
        """Sleep for at most PATIENCE while a thread of this process waits that has waited for as long as that."""
        wait.begin_pause()
        waiting = self._waiting_threads
        began = now = self._clock()
        # Copied in one step: making a tuple for each item may start a garbage collection, in which other threads run.
        thread, since = min(waiting.copy().items(), key=itemgetter(1), default=(0, now))
        while waiting.get(thread) == since <= now - PATIENCE and now < wait.deadline:
            if now - began >= PATIENCE:
                waiting.pop(thread, None)  # a waiter that is there puts it back when it looks again
                break
            self._sleep(min(LONGEST_PAUSE, wait.deadline - now))
            now = self._clock()
        return wait

    def _is_interrupted(self) -> bool:
        """Tell whether a signal handler has interrupted one of the lock's own steps and now begins another.

        Then the thread may hold the lock although `_owner` is not set yet, or no longer. Paths are compared, because
        the interrupted step may belong to a store that is being closed, and the handler to a new one of the same file.
        """
        times = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and times < 2:
            if frame.f_code in _STEPS:
                times += frame.f_locals["self"].path == self.path
            frame = frame.f_back
        return times == 2

    def _wait_for_process(self, wait: _Wait) -> None:
        """Try until the deadline, holding the thread lock; if this raises, neither lock is held afterwards."""
        pause = FIRST_SLICE
        try:
            wait.begin_pause()
            if wait.deadline > wait.started and (self._spin() or self._yield_and_try(wait)):
                return
            if self._is_interrupted():
                raise self._already_held()
            while True:
                wake = self._flag_waiter()
                if self._try_flock():
                    return
                now = self._clock()
                if now >= wait.deadline:
                    raise self._timed_out(wait)
                pause = min(pause, wait.deadline - now)
                self._claim_fairness(wait, now, pause)
                wait.begin_pause()
                self._pause(pause, wake)
                pause = min(2 * pause, LONGEST_SLICE)
        except BaseException:
            self._unlock_both()
            raise

    def _spin(self) -> bool:
        """Try many times in a row."""
        descriptor = self._descriptor
        for _ in range(SPINS):
            try:
                flock(descriptor, _TRY)  # as `_try_flock`, without the call, so as to notice a free lock sooner
            except BlockingIOError:
                continue
            except (OSError, ValueError) as error:
                raise self._cannot_lock(error) from error
            return True
        return False

    def _yield_and_try(self, wait: _Wait) -> bool:
        """Try some more times, yielding the processor before each, for at most PATIENCE seconds."""
        end = min(wait.deadline, wait.started + PATIENCE)  # others may keep the processor for long: then make a claim
        for _ in range(YIELDS):
            _yield()
            if self._try_flock():
                return True
            if self._clock() >= end:
                break
        return False

    def _try_flock(self) -> bool:
        try:
            flock(self._descriptor, _TRY)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            raise self._cannot_lock(error) from error
        return True

    # Why no wake-up is missed. WAITERS is a flag: "somebody may be asleep". A waiter reads WAKE, raises the flag, tries
    # the lock, and sleeps only as long as WAKE is what it read. A releaser drops the lock; if the flag is up, it lowers
    # the flag, changes WAKE and wakes one waiter.
    # * The waiter's attempt fails before the releaser drops the lock: the kernel orders the two, so the releaser sees
    #   the flag (or another releaser saw and lowered it), and WAKE changes after the waiter read it: no sleep.
    # * A releaser lowers the flag just after a waiter raised it: the releaser changes WAKE after that, and the waiter
    #   read WAKE before it raised the flag, so again it does not sleep.
    # * One of many waiters is woken: it raises the flag again before its attempt, so the chain continues whether it
    #   gets the lock or not. A waiter that gets the lock leaves the flag up; if nobody else waits, that costs one
    #   useless wake-up.
    # * A waiter is killed. In its sleep: it leaves at most a raised flag, which the next release lowers; there is no
    #   count that could be wrong. Just after it was woken: the wake-up is lost, so the others sleep to the end of their
    #   slice and then try.
    # WAKE is incremented atomically because two releasers can be here at once, each having dropped the lock already.

    def _flag_waiter(self) -> int:
        header = self._header
        if header is None:
            return 0
        wake = header[_WAKE]
        header[_WAITERS] = 1
        return wake

    def _pause(self, seconds: float, wake: int) -> bool:
        """Sleep at most `seconds`; tell whether a release ended the sleep, and so passed the lock on to the caller."""
        header = self._header
        if header is not None:
            error = header.wait(_WAKE, wake, int(seconds * 1e6))
            if error != errno.ENOSYS:
                return error != errno.ETIMEDOUT
        self._sleep(min(seconds, LONGEST_PAUSE))
        return False

    def _wake(self, header: _native.Words) -> None:
        header[_WAITERS] = 0
        header.add(_WAKE, 1)
        header.wake(_WAKE, 1)

    # Why nobody starves. A holder that releases the lock and takes it again at once always beats a waiter that must be
    # woken first. So after PATIENCE a waiter makes a fairness claim: it writes into FAIRNESS_CLAIM the time until which
    # newcomers must queue, and renews the claim before each pause. A newcomer then sleeps before its first attempt,
    # for at most PATIENCE, until it is woken as one of the waiters, in the order in which they fell asleep. The word is
    # a hint that can only delay: of two claims at once, one is lost until the next pause; the claim of a killed process
    # runs out; and a value left by damage, or by the clock of another time namespace, counts only if it ends soon.

    def _queue_behind_claim(self, header: _native.Words, timeout: float | None) -> _Wait:
        """Sleep while another process's claim stands, before taking any part of the lock; return the wait."""
        wait = _Wait(self._clock(), timeout)
        now, end = wait.started, min(wait.deadline, wait.started + PATIENCE)
        while now < end:
            wait.begin_pause()
            wake = self._flag_waiter()
            left = header[_FAIRNESS_CLAIM] / 1e6 - now
            if not 0 < left <= LONGEST_SLICE + GRACE:
                header[_FAIRNESS_CLAIM] = 0  # so that the next newcomer need not look at the clock
                break
            if self._pause(min(left, end - now), wake):
                self._flag_waiter()  # for those who sleep behind this thread
                break
            now = self._clock()
        return wait

    def _claim_fairness(self, wait: _Wait, now: float, pause: float) -> None:
        """Claim that newcomers queue until GRACE after the pause that begins now, if the wait has been long."""
        header = self._header
        if header is not None and now - wait.started >= PATIENCE:
            wait.claim = header[_FAIRNESS_CLAIM] = int((now + pause + GRACE) * 1e6)

    def _withdraw_claim(self, wait: _Wait) -> None:
        """Let newcomers try at once, unless another process has made a claim since."""
        header = self._header
        if header is not None and header[_FAIRNESS_CLAIM] == wait.claim:
            header[_FAIRNESS_CLAIM] = 0

    def _unlock_both(self) -> None:
        # A signal may come between the kernel granting the lock and our seeing it. Unlocking when it is not locked does
        # nothing, and nobody else uses this descriptor while we hold the thread lock.
        with suppress(OSError, ValueError):
            flock(self._descriptor, LOCK_UN)
        self._owner = 0
        self._release_thread_lock()

    def _release_thread_lock(self) -> None:
        try:
            self._thread.release()
        except RuntimeError:
            # It belongs to another thread, which left its transaction to this one. Its waiters look again before long.
            self._thread = threading.RLock()

    def _already_held(self) -> TransactionError:
        return TransactionError(
            f"this thread already holds {self.path} and would wait for itself for ever; a signal handler that "
            "interrupts a write may read, but must leave writing for later"
        )

    def _timed_out(self, wait: _Wait) -> Timeout:
        if wait.claim:
            self._withdraw_claim(wait)
        return Timeout(f"write lock {self.path} was not free within {self._clock() - wait.started:.3f} s")

    def _cannot_lock(self, error: OSError | ValueError) -> DirectoryError:
        reraise_signal(error)
        if self._descriptor < 0:
            return DirectoryError(errno.EBADF, "the write lock is closed", self.path)
        code = getattr(error, "errno", None) or errno.ENOLCK
        return DirectoryError(code, f"the file system grants no lock, and a cache needs locks ({error})", self.path)


_yield: Final[Callable[[], object]] = getattr(os, "sched_yield", lambda: None)  # not every platform has it
_STEPS = frozenset(
    step.__code__
    for step in (
        WriteLock.acquire,
        WriteLock.release,
        WriteLock.release_and_close,
        WriteLock.close,
        WriteLock.quiesce,
        WriteLock.resume,
    )
)
_open_locks: weakref.WeakSet[WriteLock] = weakref.WeakSet()


def _abandon_inherited() -> None:
    for lock in list(_open_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_inherited)
