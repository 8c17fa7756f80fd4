"""The shard's write lock: one writer at a time, among the threads of this process and among processes.

A `threading.RLock` comes first, so that one thread of each process waits outside it, then `flock` on a descriptor of
our own. The kernel drops a flock when its holder dies, however it dies, and it waits in no queue that a dead process
could clog. Who finds it taken tries again after a pause; the C helper lets the releaser end that pause. Who has waited
long claims a turn, and those who come after queue behind it.
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
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Final

from diskcache_like.coherence import words
from diskcache_like.coherence.generations import Header, open_private
from diskcache_like.coherence.native import NativeModule
from diskcache_like.coherence.words import Words
from diskcache_like.errors import DirectoryError, NotOwner, Timeout, TransactionError

from ..interrupts import let_through, suppress

_TRY: Final = LOCK_EX | LOCK_NB
_WAITERS: Final = Header.WAITERS
_WAKE: Final = Header.WAKE
_TURN: Final = Header.TURN
_FOREVER: Final = float("inf")

# Seconds between attempts without the helper: doubled each time, from the first to the longest.
FIRST_PAUSE: Final = 20e-6
LONGEST_PAUSE: Final = 1e-3

# The same with the helper, where a pause ends early when the lock is released. They only bound what is lost with a
# wake-up: one that went to a process that was killed before it could use or pass it on, or that was never sent because
# the releaser has no helper.
FIRST_SLICE: Final = 1e-3
LONGEST_SLICE: Final = 20e-3

# The longest that a thread sleeps before it looks again for a lock that another thread has: hundreds that wake often
# would take the interpreter from the one that holds it.
LONGEST_THREAD_SLICE: Final = 0.5

# Attempts in a row before the first pause. The first ones take about 50 microseconds together, as long as a small write
# holds the lock. Who has it for longer has most likely lost its processor, so the others offer theirs first, and cost
# little more than falling asleep and being woken. Repeating them after each pause would take it from the holder.
SPINS: Final = 50
OFFERS: Final = 50

# Seconds of waiting after which a turn is claimed, and for which at most a newcomer queues before its first attempt.
# Long against what a write holds the lock: a queue costs switches between processes that going on at once does not.
PATIENCE: Final = 20e-3

# Seconds for which a claim outlives the pause of who made it, so that it stands when the lock is released just before
# the pause ends. Also what is lost at most, once for each newcomer, if the claimant is killed.
GRACE: Final = 10e-3

# How often, and for how many seconds each time, `rest` waits for a lock that another thread has.
REST_LOOKS: Final = 10
REST_SLICE: Final = 5e-3


class _Wait:
    """One wait for the lock: since when, until when, and the turn that it has claimed."""

    __slots__ = ("claimed", "deadline", "started")

    def __init__(self, started: float, timeout: float | None) -> None:
        self.started = started
        self.deadline = _FOREVER if timeout is None else started + timeout
        self.claimed = 0


class WriteLock:
    """Hold a shard's write lock. Not reentrant; a forked child needs a WriteLock of its own.

    A flock belongs to the open file description, which fork shares: in the child this object is abandoned, by itself
    after `os.fork`, by `abandon` after a fork made from C.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_descriptor",
        "_header",
        "_helper",
        "_owner",
        "_rester",
        "_sleep",
        "_thread",
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
        # Reentrant only because such a lock knows its owner from the instant at which it is taken: a signal handler
        # that raises may come before any word of ours could say so.
        self._thread = threading.RLock()
        self._owner = 0
        self.recoveries = 0  # how often it was given back for a call that an exception had ended too early
        self._rester = 0  # the thread that keeps the others away while it forks
        self.torn = False  # abandoned in a child of a process in which another thread held it
        self._header: memoryview[int] | None = None
        # The helper, the address it is to use, and the memory there, which whoever has the address keeps mapped. One
        # attribute, because a waiting thread may read it during `attach`.
        self._helper: tuple[NativeModule, object, memoryview[int]] | None = None
        self._descriptor = open_private(self.path, create=True, shared=shared)
        _open_locks.add(self)

    def attach(self, header: Words, native: NativeModule | None) -> None:
        """Use the WAKE and WAITERS words of a generation file's header from now on.

        Later than the construction because the generation file is made under this lock. All that is held of the header
        is given back by `close`.
        """
        view = words.raw(header)
        self._helper = None if native is None else (native, native.pointer(view), view)
        self._header = view

    def acquire(self, timeout: float | None = None) -> None:
        """Take the lock, or raise Timeout after `timeout` seconds; 0 tries once, None waits without limit.

        Whatever a signal handler raises in here, the lock is not held then.
        """
        if self._thread._is_owned():  # type: ignore[attr-defined]  # of CPython's, and what its Condition builds on
            raise self._mine()
        try:
            header = self._header
            wait = self._queue(header, timeout) if header is not None and header[_TURN] else None
            if not self._thread.acquire(False):
                wait = self._wait_for_thread(wait or _Wait(self._clock(), timeout))
            try:
                flock(self._descriptor, _TRY)
            except BaseException as error:
                wait = self._refused(error, wait or _Wait(self._clock(), timeout))
            self._owner = get_ident()
            if wait is not None and wait.claimed:
                self._end_turn(wait)
        except BaseException:
            self.let_go()
            raise

    def release(self) -> None:
        """Give the lock back and wake one of those who wait."""
        if not self._owner:
            if self._descriptor < 0:
                return  # closed or abandoned while held; a forked child unwinds thus, whose lock is its parent's
            raise NotOwner(f"{self.path} is not held")
        try:
            flock(self._descriptor, LOCK_UN)
            header = self._header
            if header is not None and header[_WAITERS]:
                self._wake(header)
        except BaseException:  # of a signal handler, which may come before the call itself where there is an audit hook
            with suppress(OSError, ValueError):
                flock(self._descriptor, LOCK_UN)
            raise
        finally:
            self._owner = 0
            self._free_thread()

    def let_go(self) -> None:
        """Give back what the calling thread has of the lock, of an acquisition or a release that an exception ended."""
        if self.locked_by_me():
            self.recoveries += 1
            self._give_up()

    def locked_by_me(self) -> bool:
        """Tell whether the calling thread holds the lock, or is about to."""
        owned: bool = self._thread._is_owned()  # type: ignore[attr-defined]
        return owned

    def is_resting(self) -> bool:
        """Tell whether the calling thread keeps the others away while it forks."""
        return self._rester == get_ident()

    def contended(self) -> bool:
        """Tell whether another process has lately found the lock taken: a hint, always False before `attach`."""
        header = self._header
        return header is not None and header[_WAITERS] != 0

    def retire(self, before: Callable[[], object] = lambda: None) -> None:
        """Give the lock back and close it in one step: who waits for it in this process finds it closed, not free.

        `before` is called first: whatever it does, a signal handler that comes now is known to interrupt this step.
        """
        before()
        descriptor, self._descriptor = self._descriptor, -1
        header = self._header
        try:
            flock(descriptor, LOCK_UN)  # by itself: a child made by a fork from C keeps the lock open beyond the close
            if header is not None and header[_WAITERS]:
                self._wake(header)
        finally:
            os.close(descriptor)
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:  # a signal handler may have raised before there was one
            self.close()

    def close(self) -> None:
        """Close the descriptor, which also drops a lock that is held."""
        descriptor, self._descriptor = self._descriptor, -1
        self._header = self._helper = None
        _open_locks.discard(self)
        if descriptor >= 0:
            os.close(descriptor)
        if self._owner or self.locked_by_me():
            self._owner = 0
            self._free_thread()  # whoever waits for it must come and see that the lock is closed

    def abandon(self) -> None:
        """Let go in a forked child of what the parent may be holding.

        Closing is all that may be done: LOCK_UN would drop the lock of the parent, with whom the descriptor is shared,
        while closing leaves it to the parent's copy. Not closing would be as bad: the lock of a parent that is killed
        would live on in its child.
        """
        self.torn = self.torn or self._owner not in (0, get_ident())
        self.close()

    def keep_ballast(self, size: int) -> None:
        """Have the file take up `size` bytes of the disk, for `drop_ballast` to give back; the lock is held.

        Nobody reads them. They lie in this file because it is open, whoever needs the room.
        """
        with suppress(OSError, AttributeError):  # not every system can
            if self.ballast() < size:
                os.posix_fallocate(self._descriptor, 0, size)

    def ballast(self) -> int:
        """Return how many bytes of the disk `keep_ballast` has taken that were not given back."""
        with suppress(OSError):
            return os.fstat(self._descriptor).st_blocks * 512
        return 0

    def drop_ballast(self, kept: int = 0) -> bool:
        """Give the disk back what `keep_ballast` has taken but for `kept` bytes; tell whether that was anything.

        The lock is held.
        """
        with suppress(OSError):
            if self.ballast() > kept:
                os.ftruncate(self._descriptor, kept)
                return True
        return False

    def idle_here(self) -> bool:
        """Tell whether no thread of this process has the lock or waits for it; none gets it then until `resume`."""
        return not self.locked_by_me() and self._thread.acquire(False)

    def rest(self) -> bool:
        """Keep the other threads of this process from taking the lock until `resume`; for the time of a fork.

        Returns False where that is not needed: the calling thread holds it, or one that only waits for another process
        stands in the way. Raises Timeout soon if another thread holds it.
        """
        if self.locked_by_me():
            return False
        writing = False
        for _ in range(REST_LOOKS):
            if self._thread.acquire(True, REST_SLICE):
                self._rester = get_ident()
                return True
            writing = writing or self._owner != 0
        if writing:
            raise Timeout(f"write lock {self.path} is held by another thread")
        return False

    def resume(self) -> None:
        """Let the other threads go on after `rest` or `idle_here`; do nothing if these did not get the lock."""
        if self.locked_by_me():
            self._rester = 0
            self._thread.release()

    def _refused(self, error: BaseException, wait: _Wait) -> _Wait:
        """Go on after the first attempt failed with the thread lock held: return with both locks, or raise."""
        if isinstance(error, BlockingIOError):
            error.__traceback__ = None  # before CPython 3.13 `_is_interrupted` makes a cycle of it and its frames
            self._wait_for_process(wait)
            return wait
        self._give_up()
        if isinstance(error, (OSError, ValueError)):
            raise self._unusable(error) from error
        raise error

    def _wait_for_thread(self, wait: _Wait) -> _Wait:
        """Take the thread lock from another thread; return the wait, which may go on."""
        if get_ident() in (self._owner, self._rester) or self._is_interrupted():
            raise self._mine()
        now, pause = wait.started, PATIENCE
        while True:
            if self._thread.acquire(True, max(0.0, min(pause, wait.deadline - now))):
                return wait
            now, pause = self._clock(), min(2 * pause, LONGEST_THREAD_SLICE)
            if now >= wait.deadline:
                raise self._late(wait)
            self._claim_turn(wait, now, min(pause, LONGEST_SLICE))

    def _is_interrupted(self) -> bool:
        """Tell whether the calling thread is within the lock's own steps twice: a signal handler interrupts them.

        The lock may be taken there and `_owner` not be set yet, or no more. It may be that of a store which is closed
        just then, so that the handler has another object for the same file.
        """
        times = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and times < 2:
            if frame.f_code in _STEPS:
                times += frame.f_locals["self"].path == self.path
            frame = frame.f_back
        return times == 2

    def _wait_for_process(self, wait: _Wait) -> None:
        """Try until the deadline, with the thread lock held; whatever is raised, neither lock is held after it."""
        pause, longest = (FIRST_PAUSE, LONGEST_PAUSE) if self._helper is None else (FIRST_SLICE, LONGEST_SLICE)
        try:
            if wait.deadline > wait.started and (self._spin() or self._offer(wait)):
                return
            if self._is_interrupted():
                raise self._mine()
            while True:
                wake = self._announce()
                if self._attempt():
                    return
                now = self._clock()
                if now >= wait.deadline:
                    raise self._late(wait)
                pause = min(pause, wait.deadline - now)
                self._claim_turn(wait, now, pause)
                self._pause(pause, wake)
                pause = min(2 * pause, longest)
        except BaseException:
            self._give_up()
            raise

    def _spin(self) -> bool:
        """Try many times in a row; not again after a pause, since whoever has slept has lost its turn anyway."""
        descriptor = self._descriptor
        for _ in range(SPINS):
            try:
                flock(descriptor, _TRY)  # `_attempt`, without the call, so that the lock is seen free sooner
            except BlockingIOError:
                continue
            except (OSError, ValueError) as error:
                raise self._unusable(error) from error
            return True
        return False

    def _offer(self, wait: _Wait) -> bool:
        """Try some times more, having offered the processor to others each time; for no longer than PATIENCE."""
        end = min(wait.deadline, wait.started + PATIENCE)  # others may keep the processor for long: then claim a turn
        for _ in range(OFFERS):
            _yield()
            if self._attempt():
                return True
            if self._clock() >= end:
                break
        return False

    def _attempt(self) -> bool:
        try:
            flock(self._descriptor, _TRY)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error
        return True

    # How a wake-up is not missed. WAITERS is a flag: "somebody may be asleep". A waiter reads WAKE, raises the flag,
    # tries the lock, and sleeps only while WAKE is what it read. A releaser drops the lock, and if the flag is up
    # lowers it, changes WAKE, wakes one.
    # * The waiter's attempt failed before the releaser dropped the lock: the kernel orders the two, so the releaser
    #   sees the flag (or another has seen and lowered it), and WAKE changes after the waiter read it: no sleep.
    # * A releaser lowers the flag just after a waiter raised it: it changes WAKE only after that, and the waiter read
    #   WAKE before raising, so again it does not sleep.
    # * One is woken of many: it raises the flag again before its attempt, so the chain goes on whether it gets the
    #   lock or not. Who got the lock by waiting leaves the flag up; if nobody else waits, that costs one idle wake-up.
    # * A waiter is killed: asleep, it leaves at most a raised flag, and the next release lowers it; there is no count
    #   to get wrong. Just woken, it takes the wake-up with it: the others sleep to the end of their slice, then try.
    # WAKE is added to atomically because two releasers can be here at once, each having dropped the lock already.

    def _announce(self) -> int:
        header, helper = self._header, self._helper
        if header is None:
            return 0
        wake = helper[0].load(helper[1], _WAKE) if helper else 0
        header[_WAITERS] = 1
        return wake

    def _pause(self, seconds: float, wake: int) -> bool:
        """Sleep for so long at most; tell whether a release ended that, and passed the lock on to the caller."""
        helper = self._helper
        if helper is not None:
            native, pointer, _ = helper
            error = native.futex_wait(pointer, _WAKE, wake & 0xFFFFFFFF, int(seconds * 1e6))
            if error != errno.ENOSYS:
                return error != errno.ETIMEDOUT
        self._sleep(min(seconds, LONGEST_PAUSE))
        return False

    def _wake(self, header: memoryview[int]) -> None:
        header[_WAITERS] = 0
        helper = self._helper
        if helper is not None:
            native, pointer, _ = helper
            native.add(pointer, _WAKE, 1)
            native.futex_wake(pointer, _WAKE, 1)

    # How nobody starves. Who gives the lock back and takes it again at once is always sooner than one that has to be
    # woken for it, so after PATIENCE a waiter claims a turn: it writes into TURN until when newcomers are to queue, and
    # again before each pause. A newcomer then sleeps before its first attempt, until it is woken as one of those who
    # wait, in the order in which they fell asleep, or for PATIENCE. TURN only delays: of two claims at once one is lost
    # until the next pause; a claimant that is killed leaves a claim that runs out; and what stands there by damage, or
    # by the clock of another time namespace, is no claim unless it ends soon.

    def _queue(self, header: memoryview[int], timeout: float | None) -> _Wait:
        """Sleep while another's turn is claimed, before any part of the lock is taken; return the wait."""
        wait = _Wait(self._clock(), timeout)
        now, end = wait.started, min(wait.deadline, wait.started + PATIENCE)
        while now < end:
            wake = self._announce()
            turn = header[_TURN]
            left = turn / 1e6 - now
            if not 0 < left <= LONGEST_SLICE + GRACE:
                header[_TURN] = 0  # so that the next one need not look at the clock
                break
            if self._pause(min(left, end - now), wake):
                self._announce()  # for those who sleep behind this one
                break
            now = self._clock()
        return wait

    def _claim_turn(self, wait: _Wait, now: float, pause: float) -> None:
        """Make newcomers queue, if the wait has been long: until a while after the pause that begins now."""
        header = self._header
        if header is not None and now - wait.started >= PATIENCE:
            wait.claimed = header[_TURN] = int((now + pause + GRACE) * 1e6)

    def _end_turn(self, wait: _Wait) -> None:
        """Let newcomers try at once, unless another has claimed a turn since."""
        header = self._header
        if header is not None and header[_TURN] == wait.claimed:
            header[_TURN] = 0

    def _give_up(self) -> None:
        # An interrupt may come between the kernel granting the lock and our seeing it; unlocking what is not locked
        # does nothing, and this descriptor is locked by nobody else while we have the thread lock.
        with suppress(OSError, ValueError):
            flock(self._descriptor, LOCK_UN)
        self._owner = 0
        self._free_thread()

    def _free_thread(self) -> None:
        try:
            self._thread.release()
        except RuntimeError:
            # Another thread's, which has left its transaction to this one. Who waits for it looks again before long.
            self._thread = threading.RLock()

    def _mine(self) -> TransactionError:
        return TransactionError(
            f"this thread already holds {self.path} and would wait for itself for ever; a signal handler that "
            "interrupts a write can read, and must leave writing for later"
        )

    def _late(self, wait: _Wait) -> Timeout:
        if wait.claimed:
            self._end_turn(wait)
        return Timeout(f"write lock {self.path} was not free within {self._clock() - wait.started:.3f} s")

    def _unusable(self, error: OSError | ValueError) -> DirectoryError:
        let_through(error)
        if self._descriptor < 0:
            return DirectoryError(errno.EBADF, "the write lock is closed", self.path)
        code = getattr(error, "errno", None) or errno.ENOLCK
        return DirectoryError(code, f"the file system grants no lock, and a cache needs locks ({error})", self.path)


def _nothing() -> None:
    """Stand for what this platform does not have."""


_yield: Final[Callable[[], object]] = getattr(os, "sched_yield", _nothing)
_STEPS = frozenset(
    step.__code__
    for step in (
        WriteLock.acquire,
        WriteLock.release,
        WriteLock.retire,
        WriteLock.close,
        WriteLock.rest,
        WriteLock.resume,
    )
)
_open_locks: weakref.WeakSet[WriteLock] = weakref.WeakSet()


def _abandon_inherited() -> None:
    for lock in list(_open_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_inherited)
