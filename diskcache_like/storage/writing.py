"""Writing a shard: the write lock, the two steps of the generations round each commit, and transactions.

Locks. `self.lock` (thread lock, then flock) is held round every commit, checkpoint and closing of a connection; it
guards the writer connection, `self.txn`, and every word of the generation file except the use marks. Slots are odd
from before a commit until after it, under the same lock, so a reader that sees the same even number before and after
its SELECT has read the newest committed entry (docs/design.md, "Coherence").
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any

from .. import files
from ..coherence.board import NO_ENTRY, ROOM
from ..coherence.forks import token_word
from ..coherence.generations import UNKNOWN, WORD, Header
from ..errors import (
    CorruptDatabase,
    DecodeError,
    DirectoryError,
    DiskFull,
    SignatureError,
    StorageError,
    TransactionError,
)
from ..record import unpack
from . import rekeying, room
from . import statements as sql
from .connection import FAILURES, PAGE_SIZE, corrupt
from .reading import Reader
from .rows import Row
from .transaction import ALL_SLOTS, Transaction

WRITE_COST = room.FRAME  # bytes that the WAL grows by for most writes
_EPOCH, _TICK, _MARK, _WRITTEN = Header.EPOCH, Header.TICK, Header.MARK, Header.WRITTEN  # for the hot paths
_DISPLACED, _NEXT_EXPIRE, _FILES = Header.DISPLACED, Header.NEXT_EXPIRE, Header.FILES
_COUNT, _SETTLED = Header.COUNT, Header.SETTLED
_SHARED = Header.SHARED
NO_EXPIRE = (1 << 63) - 1  # NEXT_EXPIRE when nothing expires
# A BLOB is bound as a bytearray: for bytes the sqlite3 module looks for an adapter each time, which costs several times
# the copy (half a microsecond in Python 3.11).
_blob = bytearray
HOME = ~3  # mask from the place of an entry to the hash of its key, which decides the slot (schema: multiples of four)


def microseconds(expire: float) -> int:
    """Return an expiry as the header holds it: microseconds since 1970, below `NO_EXPIRE`."""
    return int(max(0.0, min(expire, 9e12)) * 1e6)


class Writer(Reader):
    """Write one shard."""

    def enter(self, timeout: float | None, culls: bool = True) -> bool:
        """Take the write lock; return False when the calling task's own transaction already holds it.

        With `culls` some expired entries go first: not where they are counted.
        """
        if token_word[0] != self._token:
            self.open()
        txn = self.txn
        if txn is not None and txn.is_callers():
            txn.stepping = True  # until `leave_step`
            return False
        lock = self.lock
        try:
            lock.acquire(timeout)
        except DirectoryError:
            if self.is_open_with(lock):
                raise
            return self.enter(timeout, culls)  # closed by another thread just now: this opens it again
        header = self.header
        try:
            expires = header[_NEXT_EXPIRE] != NO_EXPIRE and header[_NEXT_EXPIRE] <= self.config.clock() * 1e6
        except BaseException:  # the clock is the user's
            lock.release()
            raise
        if (
            expires
            or header[_SETTLED] != header[_TICK]
            or header[_EPOCH] != self.epoch
            or self.config.on_write is not None
        ):
            return self._enter_slowly(timeout, culls)
        return True

    def _enter_slowly(self, timeout: float | None, culls: bool) -> bool:
        """Do what has to be done on getting the lock, before a write; the lock is held."""
        if self.header[_EPOCH] != self.epoch:
            self.lock.release()
            self.follow()
            return self.enter(timeout, culls)
        try:
            if self.header[_SETTLED] != self.header[_TICK]:
                self.generations.count_on()
                self.generations.recover()
                self.header[_COUNT] = UNKNOWN  # the last holder died between its commit and the count
                self.header[_SETTLED] = self.header[_TICK]
            if culls and self.header[_NEXT_EXPIRE] != NO_EXPIRE:
                with suppress(DiskFull):  # the write itself will tell
                    room.cull_due(self)
            if self.config.on_write is not None:
                self.config.on_write(self)
        except BaseException:
            self.lock.release()
            raise
        return True

    def leave(self) -> None:
        """Release the write lock, then unlink what housekeeping found in the trash."""
        header = self.header
        header[_SETTLED] = header[_TICK]  # last: what this holder did to slots and count is complete
        self.lock.release()
        if self.doomed:
            room.unlink_doomed(self)

    def leave_step(self) -> None:
        """End a step within the calling task's own transaction."""
        if self.txn is not None:
            self.txn.stepping = False

    def locked(self, timeout: float | None) -> _Locked:
        """Return a context that holds the write lock for a round of housekeeping."""
        return _Locked(self, timeout)

    def tidy(self) -> None:
        """Keep house if that is due; for writes that do so nowhere else. The lock is held, no transaction is open.

        Within a transaction neither a checkpoint nor a sweep is possible, so the next one begins with what is due.
        """
        if room.checkpoint_is_due(self):
            room.housekeeping(self, 0, makes_room=False)

    def upsert(self, h: int, stored: bytes, row: Row | bytes, timeout: float | None, known: bool = False) -> int:
        """Store a row in one autocommitted statement and return the slot's new generation.

        A record alone (bytes) stands for a row without further columns. `known`: the key most likely has an entry, so
        that the cheaper UPDATE is tried first. Within the caller's transaction the slot stays odd and 1 is returned,
        which never equals a settled slot.
        """
        try:
            locked = self.enter(timeout)
            try:
                return self._upsert(h, stored, row, locked, known)
            finally:
                if locked:
                    self.leave()
                else:
                    self.leave_step()
        except CorruptDatabase as error:
            if not self.recovered(error):
                raise
        except DiskFull:
            if not self.relieved(timeout):
                raise
        with self.locked(timeout) as locked:
            return self._upsert(h, stored, row, locked)

    def upsert_many(self, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> None:
        """Store rows (place, stored key, row) within the caller's transaction; of equal keys the last one stays."""
        plain = [(h, stored, row) for h, stored, row in rows if type(row) is bytes]
        self.enter(0)  # a step of the transaction
        try:
            if len(plain) < len(rows) or self._special or self.header[_DISPLACED] or not self._upsert_plain(plain):
                for h, stored, row in rows:
                    self._upsert(h, stored, row, locked=False)
        finally:
            self.leave_step()

    def _upsert_plain(self, rows: Sequence[tuple[int, bytes, bytes]]) -> bool:
        """Do `upsert_many` with one prepared statement; return False when a place belongs to another key."""
        header = self.header
        incoming = sum(len(v) for _, _, v in rows)
        header[_WRITTEN] += incoming + len(rows) * PAGE_SIZE
        if header[_WRITTEN] > header[_MARK]:
            room.housekeeping(self, incoming)
        with self.changing([h for h, _, _ in rows], locked=False):
            first = header[_TICK] + 1
            header[_TICK] += len(rows)
            parameters = [(h, _blob(stored), first + i, _blob(v)) for i, (h, stored, v) in enumerate(rows)]
            parameters.sort(key=itemgetter(0))  # stable: of equal keys the last one stays the last
            return self._write_sorted(parameters)

    def _write_sorted(self, parameters: list[tuple[int, bytearray, int, bytearray]]) -> bool:
        """Do `_upsert_plain` for rows in order of their places, which share pages."""
        places = list(dict.fromkeys(h for h, _, _, _ in parameters))
        first = places[: sql.MANY]
        all_there = len(self.present(first)) == len(first)  # then most likely the rest is there too
        if all_there and self.writer.executemany(sql.UPDATE_RECORD, parameters).rowcount == len(parameters):
            return True
        new = len(places) - len(self.present(places))
        done = self.writer.executemany(sql.UPSERT_PLAIN, parameters).rowcount
        if new:
            self.note_inserted()
        if done == len(parameters):
            self._count(new)
            return True
        # Another key's place: what was written stays within this transaction, and is written again with probing.
        self._count(len(self.present(places)) - (len(places) - new))
        return False

    def present(self, places: Sequence[int]) -> set[int]:
        """Return those of the places that hold an entry, seen through the writer."""
        found: set[int] = set()
        for start in range(0, len(places), sql.MANY):
            batch = list(places[start : start + sql.MANY])
            found.update(
                h for (h,) in self.select_writer(sql.SELECT_PRESENT, batch + batch[-1:] * (sql.MANY - len(batch)))
            )
        return found

    def relieved(self, timeout: float | None, removed: tuple[int, bytes] | None = None, for_file: bool = False) -> bool:
        """Make room on a full disk without touching live entries; tell whether the write may be tried again.

        `removed`: place and stored key of an entry that is to go, whose file can go first. `for_file`: it is a value
        file that did not fit.
        """
        with self.locked(timeout) as locked:
            if not locked:
                return False
            columns = [] if removed is None else [column for (column,) in self.select_writer(sql.SELECT_FILE, removed)]
            return room.relieve(self, columns, for_file)

    def _upsert(
        self, h: int, stored: bytes, row: Row | bytes, locked: bool, known: bool = False, again: bool = False
    ) -> int:
        """Do what `upsert` does, under the lock; `again`: most likely the value alone changes."""
        header = self.header
        plain = type(row) is bytes
        incoming = len(row) if plain else self._announced(row)  # type: ignore[arg-type]
        written = header[_WRITTEN] + WRITE_COST + incoming
        header[_WRITTEN] = written
        if written > header[_MARK]:
            room.housekeeping(self, incoming)
        tick = header[_TICK] + 1
        header[_TICK] = tick
        slot = h % self.slot_prime
        self.slots[slot] = 2 * tick + 1  # odd before the commit: no reader keeps what it reads from here on
        try:
            if plain and not self._special and not header[_DISPLACED]:
                added = self._upsert_at(h, stored, tick, row, known)  # type: ignore[arg-type]
            else:
                added = self._upsert_row(h, stored, Row(row) if plain else row, tick, slot, again)  # type: ignore[arg-type]
            if added:
                self._count(added)
            if (again or header[_SHARED]) and locked and incoming <= ROOM and self.board is not None:
                self.board.post(h, 2 * tick + 2, row if plain else row.v)  # type: ignore[arg-type, union-attr]
        except BaseException as error:
            header[_COUNT] = UNKNOWN  # whether the statement was committed is not known here
            if isinstance(error, FAILURES):
                self.note_inserted()
                self.failed(error)
            raise
        finally:
            if locked:
                self.slots[slot] = 2 * tick + 2  # even after the commit (or its failure), still under the lock
            else:
                self.txn.slots.add(slot)  # type: ignore[union-attr]  # not locked means that the transaction is ours
        return 2 * tick + 2 if locked else 1

    def _upsert_at(self, h: int, stored: bytes, tick: int, v: bytes, known: bool) -> int:
        """Write a row that has nothing but a record; return the number of entries added, 1 or 0."""
        cursor = self._cursor or self._open_cursor()
        parameters = (h, _blob(stored), tick, _blob(v))
        if known or h == self._inserted:
            if cursor.execute(sql.UPDATE_RECORD, parameters).rowcount:
                return 0
            if cursor.execute(sql.UPSERT_RECORD, parameters).rowcount:
                self._inserted = h
                return 1
        else:
            done = cursor.execute(sql.UPSERT_RECORD, parameters)
            if done.rowcount:
                if done.lastrowid == self._inserted:
                    return 0
                self._inserted = h
                return 1
        return self._upsert_row(self._place(h, stored), stored, Row(v), tick, h % self.slot_prime)

    def note_inserted(self) -> None:
        """Ask SQLite which rowid it inserted last: it remembers that of failed statements and other tables."""
        with suppress(sqlite3.Error):  # it reads no page, so this is a writer that can do nothing any more
            self._inserted = self.writer.execute(sql.LAST_INSERTED).fetchone()[0]

    def _count(self, added: int) -> None:
        """Keep the number of entries in the header; in a transaction only when that is committed."""
        if self.txn is not None:
            self.txn.added += added
        elif self.header[_COUNT] != UNKNOWN:
            count = self.header[_COUNT] + added
            self.header[_COUNT] = count if count >= 0 else UNKNOWN  # less than none is damage

    def _announced(self, row: Row) -> int:
        """Note in the header, before the commit, that files or expiries may exist; return the row's bytes."""
        if row.expire is not None:
            due = microseconds(row.expire)
            if due < self.header[_NEXT_EXPIRE]:
                self.header[_NEXT_EXPIRE] = due
        if row.file is not None:
            name = files.from_column(row.file)
            if not os.path.exists(os.path.join(self.directory, name)):
                raise StorageError(f"{self.path!r}: a check removed value file {name!r} before its row was written")
            self.header[_FILES] = 1
            if self.txn is not None:
                self.txn.files.append(row.file)
        return len(row.v) + row.size

    def _upsert_row(self, h: int, stored: bytes, row: Row, tick: int, slot: int, again: bool = False) -> int:
        """Write all columns of a row at the place of its key; return 0 when another key lives at `h`."""
        if self.disk.sealer is not None:
            row = rekeying.present_row(self, self.disk.sealer, stored, row)
        if self.header[_DISPLACED]:
            h = self._place(h, stored)
        if again and self._replace_value(h, stored, row, tick):
            return 0
        same = h == self._inserted
        exists = same and self.writer.execute(sql.SELECT_V, (h,)).fetchone() is not None
        rank, base = (0, self.uses[slot]) if self.policy.marks_frequency else (2 * tick, 0)
        v, expire, tag, size, file, spelling, queue, num = row
        columns = (h, _blob(stored), tick, rank, base, expire, tag, size, file, spelling, queue, num, _blob(v))
        done = self.writer.execute(sql.UPSERT, columns)
        if not done.rowcount:
            return self._upsert_row(self._place(h, stored), stored, row, tick, slot)
        added: bool = not exists if same else done.lastrowid != self._inserted
        if added:
            self._inserted = h
        return 1 if added else 0

    def _replace_value(self, h: int, stored: bytes, row: Row, tick: int) -> bool:
        """Replace the record of a row whose other columns stay as they are; return False if they do not."""
        if self._special or row.size or row.spelling is not None or row.queue is not None:
            return False
        parameters = (h, _blob(stored), tick, _blob(row.v), row.expire, row.tag)
        return self.writer.execute(sql.UPDATE_VALUE, parameters).rowcount == 1

    def _place(self, h: int, stored: bytes) -> int:
        """Return where the key lives or may live; when its four places are taken the first is evicted."""
        rows = self._sound(self.select_writer(sql.SELECT_PROBES, (h,)))
        taken: dict[int, bytes] = {place: key for place, key, _ in rows}
        for place, key in taken.items():
            if key == stored:
                return place
        for place in range(h, h + 4):
            if place not in taken:
                if place != h:  # stored each time: the note of before may have been rolled back
                    self.writer.execute(sql.SET_SETTING, ("displaced", 1))
                    self.header[Header.DISPLACED] = 1  # before the upsert commits: readers look at all places from now
                return place
        self.writer.execute(sql.DELETE_H, (h,))
        self._count(-1)
        return h

    def _remove_unsound(self, h: int, stored: bytes) -> None:
        """Remove what a deletion of a live entry left: the expired, and what is damaged; the slot is odd.

        Among it may be an entry that a damaged column calls expired, and its record does not.
        """
        for place, key, _ in self._sound(self.select_writer(sql.SELECT_PROBES, (h,))):
            if key == stored:
                self._count(-self.writer.execute(sql.DELETE_H, (place,)).rowcount)

    def _sound(self, rows: list[Any]) -> list[Any]:
        """Return the rows whose record belongs to their key, after removing the others; the slot is odd.

        Where the key was changed on disk, a reader, who asks for the place alone, still finds the entry, but no write
        for its key would replace or remove it.
        """
        wrong = [h for h, key, v in rows if not self._belongs(key, v)]
        for h in wrong:
            self._count(-self.writer.execute(sql.DELETE_H, (h,)).rowcount)
        return [row for row in rows if row[0] not in wrong]

    def _belongs(self, key: bytes, v: bytes) -> bool:
        disk = self.disk
        try:
            if disk.sealer is not None:
                disk.sealer.open(key, v)
            else:
                unpack(key, v, disk.secret.verifier if disk.authenticates and disk.secret is not None else None)
        except SignatureError:
            return not disk.authenticates  # with another secret than the cache's it may be sound
        except DecodeError:
            return False
        return True

    def remove(self, h: int, stored: bytes, timeout: float | None) -> int:
        """Remove a live entry in one autocommitted statement; return 0 if there was none.

        Else the slot's new generation, under which the key is known to have no entry, or 1 if nothing may be kept hot.
        """
        try:
            return self._remove_locked(h, stored, timeout)
        except CorruptDatabase as error:
            if not self.recovered(error):
                raise
        except DiskFull:
            if not self.relieved(timeout, (h, stored)):
                raise
        return self._remove_locked(h, stored, timeout)

    def _remove_locked(self, h: int, stored: bytes, timeout: float | None) -> int:
        locked = self.enter(timeout)
        try:
            header = self.header
            slot = h % self.slot_prime
            if header[_DISPLACED]:
                rows = self.select_writer(sql.SELECT_PROBES, (h,))
                h = next((place for place, key, _ in rows if key == stored), h)
            written = header[_WRITTEN] + WRITE_COST
            header[_WRITTEN] = written
            if written > header[_MARK]:
                room.housekeeping(self, 0)
            tick = header[_TICK] + 1
            header[_TICK] = tick
            self.slots[slot] = 2 * tick + 1  # odd before, even after the commit, as in _upsert
            try:
                cursor = self._cursor or self._open_cursor()
                removed = cursor.execute(sql.DELETE, (h, _blob(stored), self.config.clock())).rowcount
                if not removed:
                    self._remove_unsound(h, stored)
                    return 0
                self._count(-1)
                if not locked:
                    return 1
                if header[_SHARED] and self.board is not None:
                    self.board.post(h, 2 * tick + 2, NO_ENTRY)
                return 2 * tick + 2
            except FAILURES as error:
                header[_COUNT] = UNKNOWN
                self.failed(error)
            finally:
                if locked:
                    self.slots[slot] = 2 * tick + 2
                else:
                    self.txn.slots.add(slot)  # type: ignore[union-attr]
        finally:
            if locked:
                self.leave()
            else:
                self.leave_step()

    @contextmanager
    def changing(self, places: Sequence[int], locked: bool) -> Iterator[int]:
        """Hold the slots of `places` odd while the body commits; yield the generation that they settle on.

        The caller holds the write lock: `locked` says whether for this step alone or for its transaction.
        """
        header = self.header
        tick = header[Header.TICK] + 1
        header[Header.TICK] = tick
        written = header[_WRITTEN] + WRITE_COST * (1 + len(places))
        header[_WRITTEN] = written
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
            elif everything:
                self.generations.settle_all(tick)
            else:
                self.generations.settle(slots, tick)

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
        with self.changing(places, locked=False):
            removed = self.writer.executemany(sql.DELETE_H, [(h,) for h in places]).rowcount
            if places and not removed:
                raise corrupt(f"{self.path!r}: rows that are found cannot be deleted", self.path)
            self._count(-removed)

    def attempts(self) -> Iterator[_Attempt]:
        """Yield a context once, and a second time if its body met a corrupt database, which is set aside by then."""
        first = _Attempt(self)
        yield first
        if first.may_be_tried_again:
            yield _Attempt(None)

    @contextmanager
    def transaction(self, timeout: float | None) -> Iterator[None]:
        """Make the body one transaction of the calling task; nested, a savepoint of it.

        A timeout applies to the write lock. On any exception the innermost transaction is rolled back; if the database
        is corrupt it is set aside after that.
        """
        if self.enter(timeout):
            try:
                try:
                    self.tidy()
                    if self.disk.sealer is not None:
                        rekeying.reserve(self, self.disk.sealer)
                    with self.batch() as txn:
                        txn.stepping = False
                        try:
                            yield
                        finally:
                            txn.stepping = True
                    if txn.evicted:
                        room.unlink_evicted(self)
                finally:
                    if not self.inherited():
                        self.leave()
            except CorruptDatabase as error:
                self.recovered(error)
                raise
            return
        self.leave_step()
        outer = self.txn
        assert outer is not None
        outer.depth += 1
        name = f"nested_{outer.depth}"
        self._run(f"SAVEPOINT {name}")
        added, files = outer.added, len(outer.files)
        try:
            yield
        except BaseException:
            if self.inherited():
                raise
            self._run(f"ROLLBACK TO {name}")
            outer.added = added
            room.unlink_unused(self, outer.files[files:])
            del outer.files[files:]
            raise
        finally:
            if self.txn is outer:
                self._run(f"RELEASE {name}")
                outer.depth -= 1

    def _run(self, statement: str) -> None:
        self._execute(statement, ())

    def _execute(self, statement: str, parameters: tuple[object, ...]) -> None:
        try:
            self.writer.execute(statement, parameters)
        except FAILURES as error:
            self.failed(error)

    @contextmanager
    def batch(self) -> Iterator[Transaction]:
        """Run BEGIN IMMEDIATE, the body and COMMIT; the caller holds the write lock and no transaction is open.

        Slots that the body touched are settled on one new even number after the commit or the rollback.
        """
        self._run("BEGIN IMMEDIATE")
        self.txn = txn = Transaction()
        txn.stepping = True
        done = False
        try:
            yield txn
            if self.inherited():
                raise TransactionError(
                    f"{self.directory!r}: this process was forked within the transaction of its parent"
                )
            self._run("COMMIT")
            done = True
        except BaseException:
            if self.inherited():
                raise
            self.has_rank_index = self._has_seq_index = False  # may have been made in this transaction
            if self._writer is not None and self._writer.in_transaction:
                self._run("ROLLBACK")
            room.unlink_unused(self, txn.files)
            raise
        finally:
            if not self.inherited():
                self.txn = None
                if done:
                    self._count(txn.added)
                tick = self.header[Header.TICK] + 1
                self.header[Header.TICK] = tick
                self.generations.settle(txn.slots, tick)


class _Locked:
    """Hold a store's write lock for the length of a with-block; its value says whether it was taken here."""

    __slots__ = ("_store", "_taken", "_timeout")

    def __init__(self, store: Writer, timeout: float | None) -> None:
        self._store = store
        self._timeout = timeout
        self._taken = False

    def __enter__(self) -> bool:
        self._taken = self._store.enter(self._timeout, culls=False)
        if not self._taken:
            self._store.leave_step()
        return self._taken

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._taken:
            self._store.leave()
        if isinstance(error, FAILURES):
            self._store.failed(error)


class _Attempt:
    """Swallow CorruptDatabase if the database was set aside and the body may run once more on the new one."""

    __slots__ = ("_store", "may_be_tried_again")

    def __init__(self, store: Writer | None) -> None:
        self._store = store
        self.may_be_tried_again = False

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if self._store is not None and isinstance(error, CorruptDatabase):
            self.may_be_tried_again = self._store.recovered(error)
        return self.may_be_tried_again
