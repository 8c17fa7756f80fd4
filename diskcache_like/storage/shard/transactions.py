"""The write lock and the transactions of a shard.

The lock (thread lock, then flock) is held round every commit, checkpoint and closing of a connection; it guards the
writing connection, its transaction, and every word of the generation file, except use marks and those that no reader
decides by: waiters and wake-ups, reservations, and what identifies the cache. One holder at a time is what makes plain
loads and stores of these words enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from ...coherence.generations import MAX_WORD, NEVER, UNCOUNTED, Header
from ...coherence.write_lock import WriteLock
from ...errors import CorruptDatabase, DirectoryError, DiskFull, TransactionError
from ...system.forks import token_word
from ...system.signal_safe import interrupts_a_call, signal_safe
from ..sqlite.connection import FAILURES
from .invalidation import Invalidation
from .ownership import Transaction
from .session import ShardSession

_EPOCH, _TICK, _NEXT_EXPIRE = Header.EPOCH, Header.TICK, Header.NEXT_EXPIRE  # for the hot path
_COUNT, _SETTLED, _CROSS_SHARD, _BUFFER = Header.COUNT, Header.SETTLED, Header.CROSS_SHARD, Header.BUFFER


class Upkeep(Protocol):
    """What rides on taking and releasing the write lock."""

    def flush_buffer(self) -> None:
        """Flush the write buffer to the database; the lock is held."""

    def remove_expired_if_due(self) -> None:
        """Remove some expired entries; the lock was just taken for a write."""

    def before_transaction(self) -> None:
        """Do what cannot be done within a transaction; the lock is held, and one is about to begin."""

    def unlink_unused(self, columns: list[bytes | str]) -> None:
        """Unlink the value files of writes that were rolled back."""

    def rolled_back(self, txn: Transaction, error: BaseException) -> None:
        """Clean up after a transaction that this error has ended."""

    def after_eviction(self) -> None:
        """Unlink the files of entries that a transaction evicted; it is committed and the lock is held."""


class Transactions:
    """Take and release the write lock of one shard, for single steps and for transactions."""

    upkeep: Upkeep  # set by the store
    # Set by the shard set of several shards: rolls forward a cross-shard transaction that was cut off. Called without
    # this lock; gets the timeout and returns what is left of it.
    roll_forward: Callable[[float | None], float | None] | None = None

    def __init__(self, session: ShardSession, invalidation: Invalidation) -> None:
        self.session = session
        self._connection = session.connection
        self.invalidation = invalidation
        # Set while there is something to do without the lock: unlink what upkeep found in the trash.
        self.after_release: Callable[[], None] | None = None

    # -- the lock -----------------------------------------------------------------------------------------------------

    def acquire(self, timeout: float | None, removes_expired: bool = True) -> bool:
        """Take the write lock; return False when the calling task's own transaction already holds it.

        With `removes_expired` some expired entries go first; a caller that counts entries passes False.
        """
        session = self.session
        if token_word[0] != session.token:
            session.ready()
        txn = self._connection.txn
        if txn is not None and txn.is_callers():
            self._connection.verify_open()
            txn.stepping = True  # until `end_step`
            return False
        lock = session.lock
        try:
            lock.acquire(timeout)
        except (DirectoryError, TransactionError) as error:
            if not self._may_retry(error, lock):
                raise
            return self.acquire(timeout, removes_expired)  # which opens a shard that was closed
        header = session.header
        try:
            if (
                (header[_NEXT_EXPIRE] != NEVER and session.removal_is_due())
                or header[_SETTLED] != header[_TICK]
                or header[_EPOCH] != session.epoch
                or header[_BUFFER] != session.buffer
                or header[_CROSS_SHARD]
                or session.config.on_write is not None
            ):
                return self._prepare(timeout, removes_expired)
        except BaseException:  # of the clock, which is the user's, or of a signal handler
            self.abort_interrupted()
            lock.abort_interrupted()  # in a handler that interrupts another call the line above does nothing
            raise
        return True

    def _prepare(self, timeout: float | None, removes_expired: bool) -> bool:
        """Do what is due before a write, under the lock."""
        session = self.session
        if not session.is_current():
            session.lock.release()
            session.follow()
            return self.acquire(timeout, removes_expired)
        if session.header[_CROSS_SHARD] and self.roll_forward is not None:
            session.lock.release()  # rolling forward takes the locks of all shards concerned, always in one order
            return self.acquire(self.roll_forward(timeout), removes_expired)
        session.header[_CROSS_SHARD] = 0  # where there are no other shards it is damage
        self.recover()
        if removes_expired and session.header[_NEXT_EXPIRE] != NEVER:
            with suppress(DiskFull):  # the write itself will fail if need be
                self.upkeep.remove_expired_if_due()
        if session.config.on_write is not None:
            session.config.on_write(self.count_uses)
        return True

    def _may_retry(self, error: DirectoryError | TransactionError, lock: WriteLock) -> bool:
        """Tell whether to try again: another thread has just closed the shard, or an interrupted call kept the lock."""
        if isinstance(error, DirectoryError):
            return not self.session.is_open_with(lock)
        left_over = self._is_left_over()
        if left_over:
            self.abort_interrupted()
        return left_over

    def recover(self) -> None:
        """Mend what a holder of the write lock left when it died; the lock is held, nothing is written under it yet."""
        session = self.session
        header = session.header
        if header[_SETTLED] != header[_TICK]:
            session.generations.correct_tick()
            if session.ring is not None:
                session.ring.mend()  # before the slots are even, since then readers keep what they find
            session.generations.recover()
            header[_COUNT] = UNCOUNTED  # the last holder died between its commit and the count
            header[_SETTLED] = header[_TICK]

    def acquire_to_close(self, timeout: float | None) -> bool:
        """Take the lock of an open shard to close it; return False if another thread has closed it just now."""
        lock = self.session.lock
        while True:
            try:
                lock.acquire(timeout)
                return True
            except (DirectoryError, TransactionError) as error:
                if not self._may_retry(error, lock):
                    raise
                if not self.session.is_open_with(lock):
                    return False

    def release(self) -> None:
        """Release the write lock, then do what was left for that moment."""
        session, connection = self.session, self._connection
        try:
            if connection.txn is not None:
                self._abort()  # a signal handler kept it from its end
            if connection.at_end is not None:
                connection.at_end()
        except BaseException:
            session.lock.release()  # SETTLED stays behind, so that the next holder mends what is left
            raise
        header = session.header
        header[_SETTLED] = header[_TICK]  # last: what this holder did to slots and count is complete
        session.lock.release()
        after_release = self.after_release  # once: another thread may have done it by now
        if after_release is not None:
            after_release()

    def end_step(self) -> None:
        """End a step that `acquire` began within the calling task's own transaction."""
        txn = self._connection.txn
        if txn is not None:
            txn.stepping = False

    def abort_interrupted(self) -> None:
        """End the step, transaction or hold of the lock that a call of this thread began and an exception interrupted.

        Every write that fails ends with this. Mostly it has ended all of that itself; but a signal handler may raise
        anywhere, also just where that was about to be done.
        """
        session = self.session
        lock = session.lock
        if session.inherited() or not lock.locked_by_me() or lock.is_quiesced() or interrupts_a_call():
            return
        txn = self._connection.txn
        if txn is not None and txn.entered:
            txn.stepping = False
            return
        try:
            self._abort()
        finally:
            lock.abort_interrupted()

    def _abort(self) -> None:
        """Roll back the transaction of a call that an exception ended, and settle what it had begun to write."""
        session, connection = self.session, self._connection
        txn, connection.txn = connection.txn, None
        header = session.header
        if txn is not None or header[_SETTLED] != header[_TICK]:  # else this hold has written nothing yet
            header[_COUNT] = UNCOUNTED
        connection.roll_back()
        session.generations.recover()
        if txn is not None:
            txn.ended = True
            session.generations.settle(txn.slots, session.generations.internal_tick())
            if not txn.decided:
                self.upkeep.unlink_unused(txn.files)

    def _is_left_over(self) -> bool:
        """Tell whether the calling thread holds the lock although no call, fork or transaction of it is going on."""
        lock = self.session.lock
        return (
            self._connection.txn is None and lock.locked_by_me() and not lock.is_quiesced() and not interrupts_a_call()
        )

    def count_uses(self, hits: int, misses: int) -> None:
        """Add to the shared counters; the write lock is held."""
        header = self.session.header
        header[Header.HITS] = (header[Header.HITS] + hits) & MAX_WORD
        header[Header.MISSES] = (header[Header.MISSES] + misses) & MAX_WORD

    # -- holding it for a body ----------------------------------------------------------------------------------------

    def _owns(self, recoveries: int) -> bool:
        """Tell whether this hold of the lock, begun at so many recoveries, still lasts."""
        session = self.session
        return not session.inherited() and recoveries == session.lock.recoveries

    @signal_safe
    def locked(self, timeout: float | None, flushes: bool = True) -> Generator[bool, None, None]:
        """Hold the write lock for a round of upkeep; the value says whether it was taken here.

        `flushes`: flush the write buffer first.
        """
        recoveries: int | None = None
        try:
            taken = self.acquire(timeout, removes_expired=False)
            recoveries = self.session.lock.recoveries
            try:
                if not taken:
                    self.end_step()
                elif flushes:
                    self.upkeep.flush_buffer()
                yield taken
            finally:
                if taken and self._owns(recoveries):
                    self.release()
        except BaseException as error:
            if recoveries in (None, self.session.lock.recoveries):  # else only this generator is late
                self.abort_interrupted()
            if isinstance(error, FAILURES):
                self._connection.fail(error)
            raise

    @signal_safe
    def locked_alone(self, timeout: float | None) -> Generator[None, None, None]:
        """Hold the write lock of the database in use, with everything flushed; never within a transaction."""
        try:
            self._acquire_alone(timeout)
            recoveries = self.session.lock.recoveries
            try:
                yield
            finally:
                if self._owns(recoveries):
                    self.release()
        except BaseException:
            self.abort_interrupted()
            raise

    def _acquire_alone(self, timeout: float | None) -> None:
        """Take the write lock of the database in use, and flush what waits, with no other upkeep."""
        session = self.session
        while True:
            session.ready()
            lock = session.lock
            try:
                lock.acquire(timeout)
            except DirectoryError:
                if session.is_open_with(lock):
                    raise
                continue  # closed by another thread just now
            if session.is_current():
                self.upkeep.flush_buffer()
                return
            lock.release()
            session.follow()

    # -- transactions -------------------------------------------------------------------------------------------------

    @signal_safe
    def transaction(self, timeout: float | None) -> Generator[None, None, None]:
        """Make the body one transaction of the calling task; nested, a savepoint of it.

        A timeout applies to the write lock. On any exception the innermost transaction is rolled back; if the database
        is corrupt it is quarantined after that.
        """
        recoveries: int | None = None
        outer, depth = None, 0
        try:
            with self.held(timeout) as taken:
                recoveries = self.session.lock.recoveries
                if not taken:
                    outer = self._connection.txn
                    assert outer is not None
                    depth = outer.depth
                    with self.savepoint():
                        yield
                    return
                with self.batch() as txn:
                    txn.entered, txn.stepping = True, False
                    try:
                        yield
                    finally:
                        txn.entered, txn.stepping = False, True
                if txn.evicted:
                    self.upkeep.after_eviction()
        except BaseException:
            # Where a signal handler raised before `savepoint` or `held` could end.
            if outer is not None:
                outer.break_below(depth)
            if recoveries == self.session.lock.recoveries:  # as in `locked`
                self.abort_interrupted()
            raise

    @signal_safe
    def held(self, timeout: float | None) -> Generator[bool, None, None]:
        """Hold the write lock for a transaction that begins in the body.

        The value is False where the calling task's own transaction holds it.
        """
        locked = False
        recoveries: int | None = None
        try:
            locked = self.acquire(timeout)
            recoveries = self.session.lock.recoveries
            if not locked:
                self.end_step()
                yield False
                return
            try:
                self.upkeep.before_transaction()
                yield True
            finally:
                if self._owns(recoveries):
                    self.release()
        except BaseException as error:
            if recoveries in (None, self.session.lock.recoveries):  # as in `locked`
                self.abort_interrupted()
            if isinstance(error, CorruptDatabase):
                self.session.recover(error)
            raise

    @signal_safe
    def savepoint(self) -> Generator[None, None, None]:
        """Roll back what the body does, within the calling task's transaction, if it ends with an exception."""
        connection = self._connection
        outer = connection.txn
        assert outer is not None
        name = f"nested_{outer.depth + 1}"
        added, files = outer.added, len(outer.files)
        connection.execute(f"SAVEPOINT {name}")
        outer.depth += 1
        try:
            yield
        except BaseException:
            if connection.txn is outer and not self.session.inherited():
                outer.depth -= 1
                if connection.in_transaction():
                    with _broken_unless_completed(outer):
                        connection.execute(f"ROLLBACK TO {name}")
                        outer.added = added
                        self.upkeep.unlink_unused(outer.files[files:])
                        del outer.files[files:]
                        connection.execute(f"RELEASE {name}")
            raise
        if connection.txn is outer:
            outer.depth -= 1
            with _broken_unless_completed(outer):
                connection.execute(f"RELEASE {name}")

    @signal_safe
    def batch(self) -> Generator[Transaction, None, None]:
        """Run BEGIN IMMEDIATE, the body and COMMIT; the caller holds the write lock and no transaction is open.

        Slots that the body touched are settled on one new even number after the commit or the rollback.
        """
        session, connection = self.session, self._connection
        txn = Transaction()
        txn.stepping = True
        try:
            connection.begin(txn)
            yield txn
            if session.inherited():
                raise TransactionError(
                    f"{session.directory!r}: this process was forked within the transaction of its parent"
                )
            if not txn.committed:
                connection.commit(txn)
            self.invalidation.count_committed(txn.added)
        except BaseException as error:
            if session.inherited() or txn.ended:
                raise
            session.header[_COUNT] = UNCOUNTED  # a signal handler may have raised just after the commit
            connection.roll_back()
            self.upkeep.rolled_back(txn, error)
            raise
        finally:
            # A handler may have raised as ROLLBACK began: then `release` does what is left.
            if not txn.ended and not session.inherited() and not connection.in_transaction():
                session.generations.settle(txn.slots, session.generations.internal_tick())
                connection.txn = None


@contextmanager
def _broken_unless_completed(txn: Transaction) -> Iterator[None]:
    """Break a transaction if the body, which ends a nested one, does not complete."""
    before, txn.broken = txn.broken, True
    yield
    txn.broken = before
