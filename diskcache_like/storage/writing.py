"""Writing a shard: one row or many, in as few statements as can be, and what that does to the words in the header."""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from .. import files
from ..coherence.board import NO_ENTRY, ROOM
from ..coherence.generations import NEVER, TICK_LIMIT, UNKNOWN, WORD, Header, microseconds
from ..errors import (
    CorruptDatabase,
    DecodeError,
    DiskFull,
    SignatureError,
    StorageError,
)
from ..record import unpack
from . import rekeying, room
from . import statements as sql
from .checkpoints import CHECKPOINT_BYTES  # the mark is never further ahead, unless one of the two counts was damaged
from .connection import FAILURES, PAGE_SIZE, corrupt
from .holding import WRITE_COST, Holder
from .rows import Row

_TICK, _MARK, _WRITTEN, _COUNT = Header.TICK, Header.MARK, Header.WRITTEN, Header.COUNT  # for the hot paths
_DISPLACED, _NEXT_EXPIRE, _FILES = Header.DISPLACED, Header.NEXT_EXPIRE, Header.FILES
_SHARED = Header.SHARED

# A BLOB is bound as a bytearray: for bytes the sqlite3 module looks for an adapter each time, which costs several times
# the copy (half a microsecond in Python 3.11).
_blob = bytearray


class Writer(Holder):
    """Write one shard."""

    def upsert(
        self, h: int, stored: bytes, row: Row | bytes, timeout: float | None, known: bool = False, again: bool = False
    ) -> int:
        """Store a row in one autocommitted statement and return the slot's new generation.

        A record alone (bytes) stands for a row without further columns. `known`: the key most likely has an entry, so
        that the cheaper UPDATE is tried first; `again`: this is the second try. Within the caller's transaction
        the slot stays odd and 1 is returned, which never equals a settled slot.
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
        except (CorruptDatabase, DiskFull) as error:
            if again:
                raise
            self._make_good(error, timeout)
        except BaseException:
            self.let_go()
            raise
        return self.upsert(h, stored, row, timeout, again=True)

    def upsert_many(self, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> None:
        """Store rows (place, stored key, row) within the caller's transaction; of equal keys the last one stays."""
        plain = [(h, stored, row) for h, stored, row in rows if type(row) is bytes]
        try:
            self.enter(0)  # a step of the transaction
            try:
                if len(plain) < len(rows) or self._special or self.header[_DISPLACED] or not self._upsert_plain(plain):
                    for h, stored, row in rows:
                        self._upsert(h, stored, row, locked=False)
            finally:
                self.leave_step()
        except BaseException:
            self.let_go()
            raise

    def _upsert_plain(self, rows: Sequence[tuple[int, bytes, bytes]]) -> bool:
        """Do `upsert_many` with one prepared statement; return False when a place belongs to another key."""
        header = self.header
        incoming = sum(len(v) for _, _, v in rows)
        written = header[_WRITTEN] + incoming + len(rows) * PAGE_SIZE
        header[_WRITTEN] = written & WORD
        if not written <= header[_MARK] <= written + CHECKPOINT_BYTES:
            room.housekeeping(self, incoming)
        with self.changing([h for h, _, _ in rows], locked=False):
            first = self.generations.next_tick()
            header[_TICK] = first + len(rows) - 1
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

    def _make_good(
        self, error: CorruptDatabase | DiskFull, timeout: float | None, removed: tuple[int, bytes] | None = None
    ) -> None:
        """Do what lets a write be tried again after `error`, or raise it; `removed`: see `relieved`."""
        again = self.recovered(error) if isinstance(error, CorruptDatabase) else self.relieved(timeout, removed)
        if not again:
            raise error

    def relieved(self, timeout: float | None, removed: tuple[int, bytes] | None = None, for_file: bool = False) -> bool:
        """Make room on a full disk without touching live entries; tell whether the write may be tried again.

        `removed`: place and stored key of an entry that is to go, whose file can go first. `for_file`: it is a value
        file that did not fit.
        """
        with self.locked(timeout) as locked:
            if not locked:
                return False
            columns = [] if removed is None else [column for (column,) in self.select_writer(sql.SELECT_FILE, removed)]
            return room.relieve(self, columns, for_file, removal=removed is not None)

    def _upsert(
        self, h: int, stored: bytes, row: Row | bytes, locked: bool, known: bool = False, again: bool = False
    ) -> int:
        """Do what `upsert` does, under the lock; `again`: most likely the value alone changes."""
        header = self.header
        plain = type(row) is bytes
        incoming = len(row) if plain else self._announced(row)  # type: ignore[arg-type]
        written = header[_WRITTEN] + WRITE_COST + incoming
        header[_WRITTEN] = written & WORD
        if not written <= header[_MARK] <= written + CHECKPOINT_BYTES:
            room.housekeeping(self, incoming)
        tick = header[_TICK] + 1
        if tick > TICK_LIMIT:
            tick = self.generations.next_tick()
        header[_TICK] = tick
        slot = h % self.slot_prime
        self.slots[slot] = 2 * tick + 1  # odd before the commit: no reader keeps what it reads from here on
        try:
            if plain and not self._special and not header[_DISPLACED]:
                added = self._upsert_at(h, stored, tick, row, known)  # type: ignore[arg-type]
            elif self.disk.sealer is None:
                added = self._upsert_row(h, stored, Row(row) if plain else row, tick, slot, again)  # type: ignore[arg-type]
            else:
                added, row = self._upsert_sealed(h, stored, row, tick, slot, again)  # type: ignore[arg-type]
            if added:
                self._count(added)
            if (again or header[_SHARED]) and locked and incoming <= ROOM and self.board is not None:
                self.board.post(h, 2 * tick + 2, row if plain else row.v)  # type: ignore[arg-type, union-attr]
        except BaseException as error:
            header[_COUNT] = UNKNOWN  # whether the statement was committed is not known here
            self.note_inserted()
            if isinstance(error, FAILURES):
                self.failed(error)
            raise
        finally:
            if locked:
                self.slots[slot] = 2 * tick + 2  # even after the commit (or its failure), still under the lock
            else:
                self.txn.touch(slot, h)  # type: ignore[union-attr]  # not locked means that the transaction is ours
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

    def _announced(self, row: Row) -> int:
        """Note in the header, before the commit, that files or expiries may exist; return the row's bytes."""
        if row.expire is not None:
            due = microseconds(row.expire)
            if due < self.header[_NEXT_EXPIRE]:
                self.header[_NEXT_EXPIRE] = due
        if row.file is not None:
            name = files.from_column(row.file)
            if not files.mode_of(os.path.join(self.directory, name)):
                raise StorageError(f"{self.path!r}: a check removed value file {name!r} before its row was written")
            self.header[_FILES] = 1
            if self.txn is not None:
                self.txn.files.append(row.file)
        return len(row.v) + row.size

    def _upsert_sealed(self, h: int, stored: bytes, row: Row, tick: int, slot: int, again: bool) -> tuple[int, Row]:
        """Do `_upsert_row` as the present data key seals it, and return that row too.

        Where that made another value file, one of them goes.
        """
        present = rekeying.present_row(self, self.disk.sealer, stored, row)  # type: ignore[arg-type]
        if present.file == row.file:
            return self._upsert_row(h, stored, present, tick, slot, again), present
        unneeded = present.file
        try:
            added = self._upsert_row(h, stored, present, tick, slot, again)
            unneeded = row.file  # not before, since a second try needs it
            return added, present
        finally:
            room.unlink_unused(self, [unneeded] if unneeded is not None else [])

    def _upsert_row(
        self, h: int, stored: bytes, row: Row, tick: int, slot: int, again: bool = False, placed: bool = False
    ) -> int:
        """Write all columns of a row at the place of its key; return 1 if that adds an entry.

        `placed`: the place was looked for already. If it is taken all the same, rows are not where they belong.
        """
        self.note_trash()  # of the file that the row may have had
        if self.header[_DISPLACED]:
            h = self._place(h, stored)
        if again and self._replace_value(h, stored, row, tick):
            return 0
        same = h == self._inserted
        exists = same and self.writer.execute(sql.SELECT_V, (h,)).fetchone() is not None
        rank, base = (0, self.uses[slot] & NEVER) if self.policy.marks_frequency else (2 * tick, 0)
        v, expire, tag, size, file, spelling, queue, num = row
        columns = (h, _blob(stored), tick, rank, base, expire, tag, size, file, spelling, queue, num, _blob(v))
        done = self.writer.execute(sql.UPSERT, columns)
        if not done.rowcount:
            if placed:
                raise corrupt(f"{self.path!r}: a row is found at a place that is free", self.path)
            return self._upsert_row(self._place(h, stored), stored, row, tick, slot, placed=True)
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
                    self.put_setting("displaced", 1)
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

    def remove(self, h: int, stored: bytes, timeout: float | None, again: bool = False) -> int:
        """Remove a live entry in one autocommitted statement; return 0 if there was none.

        Else the slot's new generation, under which the key is known to have no entry, or 1 if nothing may be kept hot.
        """
        try:
            locked = self.enter(timeout)
            try:
                return self._remove(h, stored, locked)
            finally:
                if locked:
                    self.leave()
                else:
                    self.leave_step()
        except (CorruptDatabase, DiskFull) as error:
            if again:
                raise
            self._make_good(error, timeout, (h, stored))
        except BaseException:
            self.let_go()
            raise
        return self.remove(h, stored, timeout, again=True)

    def _remove(self, h: int, stored: bytes, locked: bool) -> int:
        """Do what `remove` does, under the lock."""
        header = self.header
        slot = h % self.slot_prime
        if header[_DISPLACED]:
            rows = self.select_writer(sql.SELECT_PROBES, (h,))
            h = next((place for place, key, _ in rows if key == stored), h)
        written = header[_WRITTEN] + WRITE_COST
        header[_WRITTEN] = written & WORD
        if not written <= header[_MARK] <= written + CHECKPOINT_BYTES:
            room.housekeeping(self, 0)
        tick = header[_TICK] + 1
        if tick > TICK_LIMIT:
            tick = self.generations.next_tick()
        header[_TICK] = tick
        self.slots[slot] = 2 * tick + 1  # odd before, even after the commit, as in _upsert
        try:
            cursor = self._cursor or self._open_cursor()
            self.note_trash()
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
        except BaseException as error:
            header[_COUNT] = UNKNOWN
            if isinstance(error, FAILURES):
                self.failed(error)
            raise
        finally:
            if locked:
                self.slots[slot] = 2 * tick + 2
            else:
                self.txn.touch(slot, h)  # type: ignore[union-attr]
