"""Holding a shard: the write lock, the two steps of the generations round each commit, and transactions.

Locks. `self.lock` (thread lock, then flock) is held round every commit, checkpoint and closing of a connection; it
guards the writer connection, `self.txn`, and every word of the generation file except the use marks. Slots are odd
from before a commit until after it, under the same lock, so a reader that sees the same even number before and after
its SELECT has read the newest committed entry (docs/design.md, "Coherence").
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..coherence.forks import token_word
from ..coherence.generations import NEVER, UNKNOWN, WORD, Header, microseconds
from ..errors import CacheError, CorruptDatabase, DirectoryError, DiskFull, StorageError, TransactionError
from . import checkpoints, journal, rekeying, room
from . import statements as sql
from .connection import FAILURES, corrupt, walked
from .reading import Reader
from .scopes import interrupts, left_over, scope
from .transaction import ALL_SLOTS, HOME, Transaction

WRITE_COST = checkpoints.FRAME  # bytes that the WAL grows by for most writes
_EPOCH, _TICK, _WRITTEN, _NEXT_EXPIRE = Header.EPOCH, Header.TICK, Header.WRITTEN, Header.NEXT_EXPIRE  # for hot paths
_COUNT, _SETTLED, _JOINT = Header.COUNT, Header.SETTLED, Header.JOINT
_FILES, _SWEEP = Header.FILES, Header.SWEEP


class Holder(Reader):
    """Take the write lock of one shard, and mark what changes under it."""

    def enter(self, timeout: float | None, culls: bool = True) -> bool:
        """Take the write lock; return False when the calling task's own transaction already holds it.

        With `culls` some expired entries go first: not where they are counted.
        """
        if token_word[0] != self._token:
            self.open()
        txn = self.txn
        if txn is not None and txn.is_callers():
            self.verify_open()
            txn.stepping = True  # until `leave_step`
            return False
        lock = self.lock
        try:
            lock.acquire(timeout)
        except DirectoryError:
            if self.is_open_with(lock):
                raise
            return self.enter(timeout, culls)  # closed by another thread just now: this opens it again
        except TransactionError:
            if not left_over(self):
                raise
            self.let_go()
            return self.enter(timeout, culls)
        header = self.header
        try:
            if (
                (header[_NEXT_EXPIRE] != NEVER and header[_NEXT_EXPIRE] <= self.config.clock() * 1e6)
                or header[_SETTLED] != header[_TICK]
                or header[_EPOCH] != self.epoch
                or header[_JOINT]
                or self.config.on_write is not None
            ):
                return self._enter_slowly(timeout, culls)
        except BaseException:  # of the clock, which is the user's, or of a signal handler
            self.let_go()
            lock.let_go()  # for a signal handler that interrupts another call, where the line above does nothing
            raise
        return True

    def _enter_slowly(self, timeout: float | None, culls: bool) -> bool:
        """Do what has to be done on getting the lock, before a write; the lock is held."""
        if self.header[_EPOCH] != self.epoch:
            self.lock.release()
            self.follow()
            return self.enter(timeout, culls)
        if self.header[_JOINT] and self.siblings:
            self.lock.release()  # completing takes the locks of all that are concerned, always in the same order
            return self.enter(journal.complete((self, *self.siblings), timeout), culls)
        self.header[_JOINT] = 0  # where there are no others it is damage
        self.settle()
        if culls and self.header[_NEXT_EXPIRE] != NEVER:
            with suppress(DiskFull):  # the write itself will tell
                room.cull_due(self)
        if self.config.on_write is not None:
            self.config.on_write(self)
        return True

    def settle(self) -> None:
        """Mend what a holder of the write lock left that died; the lock is held, nothing is written under it yet."""
        if self.header[_SETTLED] != self.header[_TICK]:
            self.generations.count_on()
            self.generations.recover()
            self.header[_COUNT] = UNKNOWN  # the last holder died between its commit and the count
            self.header[_SETTLED] = self.header[_TICK]

    @scope
    def taken(self, timeout: float | None) -> Generator[None, None, None]:
        """Hold the write lock of the database in use, and do nothing else; within a transaction use `held`."""
        try:
            self._take(timeout)
            turn = self.lock.recoveries
            try:
                yield
            finally:
                if not self.inherited() and turn == self.lock.recoveries:
                    self.leave()
        except BaseException:
            self.let_go()
            raise

    def _take(self, timeout: float | None) -> None:
        """Take the write lock of the database in use, and nothing else."""
        while True:
            self.ready()
            lock = self.lock
            try:
                lock.acquire(timeout)
            except DirectoryError:
                if self.is_open_with(lock):
                    raise
                continue  # closed by another thread just now
            if self.header[_EPOCH] == self.epoch:
                return
            lock.release()
            self.follow()

    def leave(self) -> None:
        """Release the write lock, then unlink what housekeeping found in the trash."""
        try:
            if self.txn is not None:
                self._abort()  # a signal handler kept it from its end
            if self.unsettled is not None:
                self.unsettled()
        except BaseException:
            self.lock.release()  # SETTLED stays behind, so that the next holder mends what is left
            raise
        header = self.header
        header[_SETTLED] = header[_TICK]  # last: what this holder did to slots and count is complete
        self.lock.release()
        if self.doomed:
            room.unlink_doomed(self)

    def let_go(self) -> None:
        """End what a call of this thread began and an exception kept it from ending: a step, a transaction, its lock.

        Every write ends so that fails. Mostly there is nothing to do, since it has ended all that itself; but a signal
        handler may raise anywhere, also where that is about to be done.
        """
        lock = self.lock
        if self.inherited() or not lock.locked_by_me() or lock.is_resting() or interrupts():
            return
        txn = self.txn
        if txn is not None and txn.entered:
            txn.stepping = False
            return
        try:
            self._abort()
        finally:
            lock.let_go()

    def _abort(self) -> None:
        """Roll back the transaction of a call that an exception ended, and settle what it had begun to write."""
        txn, self.txn = self.txn, None
        self.header[_COUNT] = UNKNOWN
        self.has_rank_index = self._has_seq_index = False
        self._roll_back()
        if self._writer is not None:
            self.note_inserted()
        self.generations.recover()
        if txn is not None:
            txn.ended = True
            self.generations.settle(txn.slots, self.generations.next_tick())
            if not txn.decided:
                room.unlink_unused(self, txn.files)

    def verify_open(self, error: CacheError | None = None) -> None:
        """Raise if the calling task's transaction is open no more, or must not be committed; `error`, if that ended it.

        SQLite rolls one back by itself after some errors, such as a full disk or a failed read, and would commit
        everything that is written after that at once. The body, or what makes room on the way, may let such an error
        pass; so this is called before each step, and before the commit.
        """
        txn = self.txn
        if txn is None or txn.committed or not txn.reads_here():  # another thread's is being committed, perhaps
            return
        if txn.broken:
            raise TransactionError(
                f"{self.path!r}: a nested transaction was interrupted while it ended, so nothing of the whole one can "
                "be stored; run it again"
            )
        if self._writer is None or not self._writer.in_transaction:
            raise error or StorageError(
                f"{self.path!r}: SQLite has rolled this transaction back after an earlier error, which was let pass; "
                "nothing of it is stored, run it again"
            )

    def _roll_back(self) -> None:
        """End the transaction of the writer, if it has one."""
        writer = self._writer
        if writer is None or not writer.in_transaction:
            return
        try:
            self._run("ROLLBACK")
        except CacheError:  # as where the directory is gone; closing ends it too, and the next write opens another
            self._writer = self._cursor = None
            writer.close()

    def leave_step(self) -> None:
        """End a step within the calling task's own transaction."""
        if self.txn is not None:
            self.txn.stepping = False

    @scope
    def locked(self, timeout: float | None) -> Generator[bool, None, None]:
        """Hold the write lock for a round of housekeeping; the value says whether it was taken here."""
        turn: int | None = None
        try:
            taken = self.enter(timeout, culls=False)
            turn = self.lock.recoveries
            try:
                if not taken:
                    self.leave_step()
                yield taken
            finally:
                if taken and not self.inherited() and turn == self.lock.recoveries:
                    self.leave()
        except BaseException as error:
            if turn in (None, self.lock.recoveries):  # as in `held`
                self.let_go()
            if isinstance(error, FAILURES):
                self.failed(error)
            raise

    def tidy(self) -> None:
        """Keep house if that is due; for writes that do so nowhere else. The lock is held, no transaction is open.

        Within a transaction neither a checkpoint nor a sweep is possible, so the next one begins with what is due.
        """
        if checkpoints.is_due(self):
            room.housekeeping(self, 0, makes_room=False)
        else:
            self.cramped = False

    @scope
    def changing(self, places: Sequence[int], locked: bool) -> Generator[int, None, None]:
        """Hold the slots of `places` odd while the body commits; yield the generation that they settle on.

        The caller holds the write lock: `locked` says whether for this step alone or for its transaction.
        """
        tick = self.generations.next_tick()
        self.note_written(WRITE_COST * (1 + len(places)))
        slots = {(place & HOME) % self.slot_prime for place in places}
        everything = len(slots) > ALL_SLOTS
        if everything:
            self.generations.begin_all(tick)
        else:
            self.generations.begin(slots, tick)
        try:
            yield 2 * tick + 2 if locked else 1
        except FAILURES as error:
            self.header[_COUNT] = UNKNOWN
            self.note_inserted()
            self.failed(error)
        finally:
            if not locked and self.txn is not None:
                self.txn.slots.update(range(len(self.slots)) if everything else slots)
                if self.txn.homes is not None:
                    self.txn.homes.update(place & HOME for place in places)
            elif everything:
                self.generations.settle_all(tick)
            else:
                self.generations.settle(slots, tick)

    def note_trash(self) -> None:
        """Have the trash looked at once the grace of what the next commit may put there is over."""
        header = self.header
        if header[_SWEEP] == NEVER and header[_FILES]:
            header[_SWEEP] = due = microseconds(self.now() + room.GRACE)
            header[_NEXT_EXPIRE] = min(header[_NEXT_EXPIRE], due)

    def note_written(self, size: int) -> None:
        """Add to the bytes written into the WAL, up to the number at which the next write finds that all is due."""
        self.header[_WRITTEN] = min(self.header[_WRITTEN] + size, WORD)

    def note_inserted(self) -> None:
        """Ask SQLite which rowid it inserted last: it remembers that of failed statements and other tables."""
        with suppress(sqlite3.Error):  # it reads no page, so this is a writer that can do nothing any more
            self._inserted = self.writer.execute(sql.LAST_INSERTED).fetchone()[0]

    def _count(self, added: int) -> None:
        """Keep the number of entries in the header; in a transaction only when that is committed."""
        if self.txn is not None:
            self.txn.added += added
        else:
            self._count_on(added)

    def _count_on(self, added: int) -> None:
        count = self.header[_COUNT]
        if count != UNKNOWN:
            count += added
            self.header[_COUNT] = count if 0 <= count < UNKNOWN else UNKNOWN  # less than none is damage

    def count_uses(self, hits: int, misses: int) -> None:
        """Add to the shared counters; the write lock is held."""
        header = self.header
        header[Header.HITS] = (header[Header.HITS] + hits) & WORD
        header[Header.MISSES] = (header[Header.MISSES] + misses) & WORD

    def delete_places(self, places: Sequence[int]) -> None:
        """Delete rows by place in the open transaction, their slots odd until it has ended.

        They were found under the lock that is held. If none of them can be deleted the database is damaged, and who
        deletes until nothing more is found would never end.
        """
        self.note_trash()
        with self.changing(places, locked=False):
            removed = self.writer.executemany(sql.DELETE_H, [(h,) for h in places]).rowcount
            if places and not removed:
                raise corrupt(f"{self.path!r}: rows that are found cannot be deleted", self.path)
            self._count(-removed)

    def attempts(self, removes: bool = False) -> Iterator[_Attempt]:
        """Yield a context once, and a second time if its body met a corrupt database, which is set aside by then.

        Or a full disk, if it `removes` something in a transaction: the second one gets the room that is kept for that.
        """
        first = _Attempt(self, removes)
        yield first
        if first.may_be_tried_again:
            yield _Attempt(None)

    @scope
    def transaction(self, timeout: float | None) -> Generator[None, None, None]:
        """Make the body one transaction of the calling task; nested, a savepoint of it.

        A timeout applies to the write lock. On any exception the innermost transaction is rolled back; if the database
        is corrupt it is set aside after that.
        """
        turn: int | None = None
        outer, depth = None, 0
        try:
            with self.held(timeout) as taken:
                turn = self.lock.recoveries
                if not taken:
                    outer = self.txn
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
                    room.unlink_removed(self)
        except BaseException:
            # Where a signal handler raised before `savepoint` or `held` could end.
            if outer is not None:
                outer.break_below(depth)
            if turn == self.lock.recoveries:  # as in `held`
                self.let_go()
            raise

    @scope
    def held(self, timeout: float | None) -> Generator[bool, None, None]:
        """Hold the write lock for a transaction that begins in the body.

        The value is False where the calling task's own transaction holds it.
        """
        locked = False
        turn: int | None = None
        try:
            locked = self.enter(timeout)
            turn = self.lock.recoveries
            if not locked:
                self.leave_step()
                yield False
                return
            try:
                self.tidy()
                if self.starved:
                    self.starved = False
                    room.relieve(self, [], removal=True)
                if self.disk.sealer is not None:
                    rekeying.reserve(self, self.disk.sealer)
                yield True
            finally:
                if not self.inherited() and turn == self.lock.recoveries:
                    self.leave()
        except BaseException as error:
            if turn in (None, self.lock.recoveries):  # else it was ended long ago, and only this generator is late
                self.let_go()
            if isinstance(error, CorruptDatabase):
                self.recovered(error)
            raise

    @scope
    def savepoint(self) -> Generator[None, None, None]:
        """Roll back what the body does, within the calling task's transaction, if it ends with an exception."""
        outer = self.txn
        assert outer is not None
        name = f"nested_{outer.depth + 1}"
        added, files = outer.added, len(outer.files)
        self._run(f"SAVEPOINT {name}")
        outer.depth += 1
        try:
            yield
        except BaseException:
            if self.txn is outer and not self.inherited():
                outer.depth -= 1
                if self.writer.in_transaction:
                    with _unbroken(outer):
                        self._run(f"ROLLBACK TO {name}")
                        outer.added = added
                        room.unlink_unused(self, outer.files[files:])
                        del outer.files[files:]
                        self._run(f"RELEASE {name}")
            raise
        if self.txn is outer:
            outer.depth -= 1
            with _unbroken(outer):
                self._run(f"RELEASE {name}")

    def put_setting(self, name: str, value: object) -> None:
        """Store a row beside the settings; the write lock is held."""
        if self.txn is not None:
            self.txn.names.add(name)
        self._execute(sql.SET_SETTING, (name, value))

    def drop_setting(self, name: str) -> None:
        """Remove a row beside the settings; the write lock is held."""
        if self.txn is not None:
            self.txn.names.add(name)
        self._execute(sql.DROP_SETTING, (name,))

    def _run(self, statement: str) -> None:
        self._execute(statement, ())

    def _execute(self, statement: str, parameters: tuple[object, ...]) -> None:
        try:
            self.writer.execute(statement, parameters)
        except FAILURES as error:
            self.failed(error)

    def walk(self, statement: str, parameters: tuple[object, ...] = ()) -> None:
        """Run a statement that changes, or reads, all of a table or an index; the write lock is held."""
        try:
            walked(self.writer, self.path, statement, parameters)
        except FAILURES as error:
            self.failed(error)

    @scope
    def batch(self) -> Generator[Transaction, None, None]:
        """Run BEGIN IMMEDIATE, the body and COMMIT; the caller holds the write lock and no transaction is open.

        Slots that the body touched are settled on one new even number after the commit or the rollback.
        """
        txn = Transaction()
        txn.stepping = True
        try:
            self._run("BEGIN IMMEDIATE")
            self.txn = txn
            yield txn
            if self.inherited():
                raise TransactionError(
                    f"{self.directory!r}: this process was forked within the transaction of its parent"
                )
            if not txn.committed:
                self.commit(txn)
            self._count_on(txn.added)
        except BaseException as error:
            if self.inherited() or txn.ended:
                raise
            self.header[_COUNT] = UNKNOWN  # a signal handler may have raised just after the commit
            self.has_rank_index = self._has_seq_index = False  # may have been made in this transaction
            self._roll_back()
            # Files of a damaged database stay, for a second try in the next one.
            if not txn.decided and not isinstance(error, CorruptDatabase):
                room.unlink_unused(self, txn.files)
            self.starved = isinstance(error, DiskFull) and txn.added < 0
            raise
        finally:
            # A handler may have raised as ROLLBACK began: then `leave` does what is left.
            if not txn.ended and not self.inherited() and not (self._writer and self._writer.in_transaction):
                self.generations.settle(txn.slots, self.generations.next_tick())
                self.txn = None

    def drop_journal(self) -> None:
        """Remove the journal of a transaction over several shards; the write lock is held."""
        self.walk(sql.DROP_JOURNAL)

    def rank_anew(self) -> None:
        """Give every row the rank that it has under another policy to begin with; the write lock is held."""
        self.walk(sql.RESET_RANKS_TO_ZERO if self.policy.marks_frequency else sql.RESET_RANKS_BY_SEQ)

    def commit(self, txn: Transaction) -> None:
        """Commit the open transaction; what is left for its end is to settle the slots."""
        self.verify_open()
        self._run("COMMIT")
        txn.committed = True


@contextmanager
def _unbroken(txn: Transaction) -> Iterator[None]:
    """Have a transaction come to nothing if the body, which ends a nested one, does not come to its end."""
    before, txn.broken = txn.broken, True
    yield
    txn.broken = before


class _Attempt:
    """Swallow CorruptDatabase if the database was set aside and the body may run once more on the new one.

    Or DiskFull, where `Holder.attempts` says so.
    """

    __slots__ = ("_removes", "_store", "may_be_tried_again")

    def __init__(self, store: Holder | None, removes: bool = False) -> None:
        self._store = store
        self._removes = removes
        self.may_be_tried_again = False

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if self._store is not None and isinstance(error, CorruptDatabase):
            self.may_be_tried_again = self._store.recovered(error)
        elif self._store is not None and isinstance(error, DiskFull):
            self.may_be_tried_again = self._removes and self._store.starved
        return self.may_be_tried_again
