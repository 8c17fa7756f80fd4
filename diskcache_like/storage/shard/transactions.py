"""The write lock and the transactions of a shard.

The lock (thread lock, then flock) is held round every commit, checkpoint and closing of a connection; it guards the
writing connection, its transaction, and every word of the generation file, except use marks and those that no reader
decides by: waiters and wake-ups, reservations, and what identifies the cache. One holder at a time is what makes plain
loads and stores of these words enough.

Whoever takes the lock does so in four steps, so that a signal handler may raise anywhere (`coherence/contexts.py`):
`joined`, before the `try`; `take`; `settle`, when all is done; and `end`, in the `finally`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import NamedTuple, Protocol

from ...coherence import _native
from ...coherence.contexts import context, end
from ...coherence.generations import NEVER, UNCOUNTED, Header
from ...coherence.ring import Mark
from ...errors import CacheError, CorruptDatabase, DirectoryError, DiskFull, StorageError, Timeout, TransactionError
from ...system.blocking import may_block
from ...system.forks import process_token, token_word
from ...system.signals import suppress
from ..sqlite.connection import FAILURES
from .invalidation import Invalidation
from .open_shard import NOT_OPEN, OpenShard
from .ownership import Transaction

_EPOCH, _TICK, _NEXT_EXPIRE = Header.EPOCH, Header.TICK, Header.NEXT_EXPIRE  # for the hot path
_COUNT, _SETTLED, _CROSS_SHARD, _BUFFER = Header.COUNT, Header.SETTLED, Header.CROSS_SHARD, Header.BUFFER


class Flushable(Protocol):
    """The write buffer."""

    def flush(self) -> None:
        """Flush everything to the database."""

    def carriable(self) -> Carried | None:
        """Return what waits, and a new mark, if a transaction about to begin can take it along."""

    def carry(self, txn: Transaction, carried: Carried) -> None:
        """Write that as a part of a transaction that has just begun."""

    def mend(self) -> None:
        """Mend what a holder of the write lock left half done."""

    def discard(self, shrink: bool = False) -> int:
        """Remove every entry, and forget what waits; return how many entries the database had.

        `shrink`: cut their pages off in the same transaction.
        """


class Upkeep(Protocol):
    """What rides on taking and releasing the write lock."""

    buffer: Flushable

    def flush_buffer(self) -> None:
        """Flush the write buffer to the database; the lock is held."""

    def remove_expired_if_due(self) -> None:
        """Remove some expired entries; the lock was just taken for a write."""

    def keep_to_number(self) -> None:
        """Evict what is more than `max_entries` allows; the lock is held, and no transaction is open."""

    def before_transaction(self, carries: bool = True) -> Carried | None:
        """Do what cannot be done within a transaction; the lock is held, and one is about to begin.

        What waits in the write buffer is flushed, or, if the transaction `carries`, returned. Where it is flushed, a
        mark is returned alone.
        """

    def unlink_unused(self, columns: list[bytes | str]) -> None:
        """Unlink the value files of writes that were rolled back."""

    def rolled_back(self, txn: Transaction, error: BaseException) -> None:
        """Clean up after a transaction that this error has ended."""

    def after_eviction(self) -> None:
        """Unlink the files of entries that a transaction evicted; it is committed and the lock is held."""


class Carried(NamedTuple):
    """What waits in the write buffer: what the records of each key come to, and the mark behind them."""

    net: dict[bytes | int, _native.Net]
    mark: Mark


class Log(Protocol):
    """What makes the commits of several shards one: all or none (`redo_log.py`)."""

    def decide(self, txns: Sequence[tuple[Transactions, Transaction]]) -> Sequence[Transactions]:
        """Commit one of the open transactions, and so decide for the shards returned: none if one suffices."""

    def forget(self, decided: Sequence[Transactions]) -> None:
        """Remove what `decide` has stored: all of these are committed, and their locks are held."""

    def complete(self, error: BaseException, txns: Sequence[tuple[Transactions, Transaction]]) -> None:
        """Commit what this error left uncommitted after the decision; raise what the caller has to be told."""


class Transactions:
    """Take and release the write lock of one shard, for single steps and for transactions."""

    upkeep: Upkeep  # set by the store
    # Set by the shard set of several shards: rolls forward a cross-shard transaction that was cut off. Called without
    # this lock; gets the timeout and returns what is left of it.
    roll_forward: Callable[[float | None], float | None] | None = None

    def __init__(self, shard: OpenShard, invalidation: Invalidation) -> None:
        self.shard = shard
        self.connection = shard.connection
        self.invalidation = invalidation
        # Set while there is something to do without the lock: unlink what upkeep found in the trash.
        self.after_release: Callable[[], None] | None = None

    # -- the lock -----------------------------------------------------------------------------------------------------

    def joined(self) -> Transaction | None:
        """Return the calling task's own transaction, which what comes next is a part of; None where it has none.

        Raises TransactionError in a signal handler that interrupts a write, which would wait for itself.
        """
        shard = self.shard
        if token_word[0] != shard.token:
            shard.ready()
        txn = self.connection.txn
        if txn is not None and txn.is_callers():
            self.connection.verify_open()
            return txn
        shard.lock.refuse_holder()
        return None

    def take(self, timeout: float | None, removes_expired: bool = True) -> None:
        """Take the write lock, and do what is due before a write.

        With `removes_expired` some expired entries go first; a caller that counts entries passes False.
        """
        shard = self.shard
        while not self.acquire(timeout):
            shard.ready()
        header = shard.header
        if (
            (header[_NEXT_EXPIRE] != NEVER and shard.removal_is_due())
            or header[_SETTLED] != header[_TICK]
            or header[_EPOCH] != shard.epoch
            or header[_BUFFER] != shard.buffer
            or header[_CROSS_SHARD]
            or self.connection.cut_off is not None
        ):
            self._prepare(timeout, removes_expired)
        if shard.may_have_too_many(1):
            may_block()

    def acquire(self, timeout: float | None) -> bool:
        """Acquire the lock of an open shard; return False if another thread closes it, or opens it again, just now.

        Who opens a shard assigns its lock first and its token last, and who closes it holds the lock. So if the shard
        is open once the lock is held, it stays so.
        """
        shard, lock, token = self.shard, self.shard.lock, NOT_OPEN
        shard.refuse_opener()
        try:
            if lock.acquire(timeout):
                shard.count("lock_waits")
            token = shard.token
        except DirectoryError:
            if shard.is_open_with(lock):
                raise
            return False
        except Timeout:
            if timeout:
                shard.count("lock_waits")
                shard.count("timeouts")
            raise
        finally:
            if token == NOT_OPEN:  # `end` releases only what is open
                lock.release()
        return token_word[0] == token or process_token() == token

    def _prepare(self, timeout: float | None, removes_expired: bool) -> None:
        """Do what is due before a write, under the lock."""
        shard = self.shard
        if not shard.is_current():
            shard.lock.release()
            shard.reopen()
            self.take(timeout, removes_expired)
            return
        if shard.header[_CROSS_SHARD] and self.roll_forward is not None:
            shard.lock.release()  # rolling forward takes the locks of all shards concerned, always in one order
            self.take(self.roll_forward(timeout), removes_expired)
            return
        shard.header[_CROSS_SHARD] = 0  # where there are no other shards it is damage
        self.mend()
        if removes_expired and shard.header[_NEXT_EXPIRE] != NEVER:
            with suppress(DiskFull):  # the write itself will fail if need be
                self.upkeep.remove_expired_if_due()

    def mend(self) -> None:
        """Mend what a holder of the write lock left half done; the lock is held, nothing is written under it yet."""
        shard, connection = self.shard, self.connection
        header = shard.header
        if header[_SETTLED] != header[_TICK]:
            shard.generations.correct_tick()
            if shard.ring is not None:
                self.upkeep.buffer.mend()  # before the slots are even, since then readers keep what they find
            shard.generations.settle_unsettled()
            header[_COUNT] = UNCOUNTED  # the last holder may have ended between its commit and the count
            header[_SETTLED] = header[_TICK]
        txn = connection.cut_off
        if txn is not None:  # a signal handler ended it; another process may have mended the rest by now
            shard.generations.settle(txn.slots, shard.generations.internal_tick())
            connection.run_at_end()
            if not txn.decided:
                self.upkeep.unlink_unused(txn.files)
            connection.cut_off = None  # last, since all of this can be done again

    def settle(self) -> None:
        """Say that what was done under the lock is complete: the last thing before its end."""
        header = self.shard.header
        header[_SETTLED] = header[_TICK]

    def complete(self) -> None:
        """Keep to the number of entries that is allowed, and say that all is complete; no transaction is open."""
        if self.shard.may_have_too_many():
            self.upkeep.keep_to_number()
        self.settle()

    def released(self) -> None:
        """Do what was left for the moment after the release."""
        after_release = self.after_release  # once: another thread may have done it by now
        if after_release is not None:
            after_release()

    def take_alone(self, timeout: float | None) -> None:
        """Take the write lock of the database in use, mend it, and flush what waits, with no other upkeep."""
        shard = self.shard
        shard.ready()
        while not self.acquire(timeout):
            shard.ready()
        if not shard.is_current():
            shard.lock.release()
            shard.reopen()
            self.take_alone(timeout)
            return
        self.mend()
        self.upkeep.flush_buffer()

    @context
    def locked(self, timeout: float | None, flushes: bool = True) -> Generator[bool, None, None]:
        """Hold the write lock for a round of upkeep; the value is False within the calling task's own transaction.

        `flushes`: flush the write buffer first.
        """
        if self.joined() is not None:
            yield False
            return
        try:
            self.take(timeout, removes_expired=False)
            if flushes:
                self.upkeep.flush_buffer()
            yield True
            self.complete()
        except FAILURES as error:
            self.connection.fail(error)
        finally:
            end((self.shard,), token_word[0])
        self.released()

    # -- transactions -------------------------------------------------------------------------------------------------

    def transaction(self, timeout: float | None) -> AbstractContextManager[None]:
        """Make a short body one transaction of the calling task in this shard; see the function `transaction`.

        It carries what waits in the write buffer, so a reader of many rows, who flushes that, waits for its end.
        """
        return transaction([self], timeout, carries=True)

    def begin(self, carried: Carried | None = None) -> Transaction:
        """Begin a transaction; the caller holds the write lock and none is open.

        It takes along what waits in the write buffer, as `before_transaction` has returned it.
        """
        txn = Transaction()
        txn.stepping = True
        self.connection.begin(txn)
        if carried is not None:
            try:
                self.upkeep.buffer.carry(txn, carried)
            except BaseException as error:
                self.roll_back(txn, error)
                raise
        return txn

    def commit(self, txn: Transaction) -> None:
        """Commit, unless the redo log has done so, and settle on one new even number the slots that were touched."""
        self.refuse_inherited(txn)
        if not txn.committed:
            self._commit(txn)
        self.invalidation.count_committed(txn.added, txn.removed)
        self._finish(txn)

    def _commit(self, txn: Transaction) -> None:
        ring, mark = self.shard.ring, txn.carried
        if ring is None or mark is None:
            self.connection.commit(txn)
            return
        ring.carry(mark)  # before: a reader that finds a record asks from here on which of the two is newer
        self.connection.commit(txn)
        ring.carried(mark)  # before the slots are even, since then readers keep what they find

    def roll_back(self, txn: Transaction, error: BaseException) -> None:
        """Roll back what this error has ended."""
        if self.connection.txn is txn and not self.shard.inherited():
            # Its commit may have failed after the WAL had it, or a signal handler has raised just after the commit.
            self.shard.header[_COUNT] = UNCOUNTED
            self.connection.in_doubt = True
            carried, txn.carried = txn.carried, None  # from here on a signal handler reads what waits in the ring
            self.connection.roll_back()
            if carried is not None:
                self.upkeep.buffer.mend()  # as after a crash: it may be committed
            self._finish(txn)
            self.upkeep.rolled_back(txn, error)
            self.settle()  # nothing is left for the next holder to mend

    def refuse_inherited(self, txn: Transaction) -> None:
        """Raise if the transaction is the parent's of this forked process."""
        if self.connection.txn is not txn or self.shard.inherited():
            raise TransactionError(
                f"{self.shard.directory!r}: this process was forked within the transaction of its parent"
            )

    def _finish(self, txn: Transaction) -> None:
        generations = self.shard.generations
        if not generations.settle_unsettled():  # all slots, where the transaction has changed so many
            generations.settle(txn.slots, generations.internal_tick())
        self.connection.run_at_end()
        self.connection.txn = None

    @context
    def batch(self, carried: Carried | None = None) -> Generator[Transaction, None, None]:
        """Commit what the body does in one transaction, as `begin` begins it."""
        txn = self.begin(carried)
        try:
            yield txn
            self.commit(txn)
        except BaseException as error:
            self.roll_back(txn, error)
            raise


class Savepoint:
    """A transaction within the calling task's own: if it is rolled back, the outer one goes on."""

    def __init__(self, part: Transactions, txn: Transaction) -> None:
        self._part = part
        self._txn = txn
        self._depth = txn.depth
        self._counts, self._files = (txn.added, txn.removed), len(txn.files)
        self._name = f"nested_{self._depth + 1}"
        # Until it has ended, nothing around it may be committed. Set before it begins, so that this also holds if it is
        # interrupted there: its name may be used again.
        txn.depth = self._depth + 1
        part.connection.execute(f"SAVEPOINT {self._name}")

    def release(self) -> None:
        """Make what it did a part of the outer transaction."""
        self._part.refuse_inherited(self._txn)
        self._part.connection.verify_whole(self._txn, self._depth + 1)
        self._part.connection.execute(f"RELEASE {self._name}")
        self._txn.depth = self._depth

    def roll_back(self) -> None:
        """Take back what it did; where that is impossible, its depth stays, and so nothing around it is committed."""
        part, txn = self._part, self._txn
        if part.connection.txn is not txn or part.shard.inherited() or not part.connection.in_transaction():
            return
        if txn.depth == self._depth:  # released, but what other shards did in it is not
            txn.depth += 1
            return
        with suppress(CacheError):
            part.connection.execute(f"ROLLBACK TO {self._name}")
            txn.added, txn.removed = self._counts
            part.upkeep.unlink_unused(txn.files[self._files :])
            del txn.files[self._files :]
            part.connection.execute(f"RELEASE {self._name}")
            txn.depth = self._depth


class _Parts:
    """What one transaction has open: in each shard whose lock it takes a transaction, in the others a savepoint."""

    def __init__(self, parts: Sequence[Transactions], log: Log | None, carries: bool) -> None:
        self._log = log
        self._carries = carries
        self.taken: list[Transactions] = []
        self._joined: list[tuple[Transactions, Transaction]] = []
        open_shards = []
        for part in parts:
            txn = part.joined()
            if txn is None:
                self.taken.append(part)
                open_shards.append(part.shard)
            else:
                self._joined.append((part, txn))
        self.open_shards = tuple(open_shards)  # what `end` takes, which must be the first thing called in a `finally`
        self.txns: list[tuple[Transactions, Transaction]] = []
        self._savepoints: list[Savepoint] = []

    def begin(self, timeout: float | None) -> None:
        """Take the locks, begin in every shard, and let the calling task use it."""
        deadline = None if timeout is None else time.monotonic() + timeout
        carried = []
        for part in self.taken:
            part.take(left(deadline))
            carried.append(part.upkeep.before_transaction(self._carries))
        for part, txn in self._joined:
            self._savepoints.append(Savepoint(part, txn))
        for part, waiting in zip(self.taken, carried, strict=True):
            # Over several shards no mark is stored: the redo log would take it for a change of this shard.
            self.txns.append((part, part.begin(waiting if self._log is None else None)))
        for _, txn in self.txns:
            txn.homes = None if self._log is None else set()
            txn.entered, txn.stepping = True, False

    def commit(self) -> None:
        """Commit all or nothing."""
        decided: Sequence[Transactions] = ()
        self._leave()
        for savepoint in self._savepoints:
            savepoint.release()
        if self._log is not None:
            decided = self._log.decide(self.txns)
        for part, txn in self.txns:
            part.commit(txn)
        if self._log is not None and decided:
            self._log.forget(decided)
        for part, txn in self.txns:
            if txn.evicted:
                part.upkeep.after_eviction()
            part.complete()

    def roll_back(self, error: BaseException) -> None:
        """Take back what this error has ended."""
        self._leave()
        for savepoint in self._savepoints:
            savepoint.roll_back()
        for part, txn in self.txns:
            part.roll_back(txn, error)

    def _leave(self) -> None:
        for _, txn in self.txns:
            txn.entered, txn.stepping = False, True

    def is_decided(self) -> bool:
        """Tell whether a commit that decides for all was made, or was about to be."""
        return any(txn.decided for _, txn in self.txns)


@context
def transaction(
    parts: Sequence[Transactions], timeout: float | None, log: Log | None = None, carries: bool = False
) -> Generator[None, None, None]:
    """Make the body one transaction of the calling task over these shards; nested, a savepoint of it.

    A timeout applies to the write locks together, which are always taken in the same order, so that no two can wait for
    each other. On any exception the innermost transaction is rolled back; a corrupt database is quarantined after that.
    """
    thread = get_ident()  # it may end in another one, as where a framework resumes a generator
    body = _Parts(parts, log, carries)
    open_shards = body.open_shards
    try:
        try:
            body.begin(timeout)
            yield
            body.commit()
        except BaseException as error:
            body.roll_back(error)
            raise
        finally:
            end(open_shards, token_word[0], thread)
    except BaseException as error:
        problem = _after_recovery(body.taken, error) if isinstance(error, CorruptDatabase) else error
        if log is None or not body.is_decided():
            if problem is error:
                raise
            raise problem from error
        log.complete(error, body.txns)
    for part in body.taken:
        part.released()


def _after_recovery(parts: Sequence[Transactions], error: CorruptDatabase) -> CacheError:
    """Quarantine a corrupt database; return the error, another one if the database can be read after all.

    SQLite calls a database malformed if the system fails to read a page of it.
    """
    epochs = [part.shard.epoch for part in parts]
    recovered = [part.shard.recover(error) for part in parts]
    if all(recovered) and epochs == [part.shard.epoch for part in parts]:
        path = parts[0].shard.directory if error.path is None else error.path
        return StorageError(f"{path!r}: a page could not be read, though the database is sound; run it again")
    return error


def left(deadline: float | None) -> float | None:
    """Return how many seconds are left until a deadline, 0 if none."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
