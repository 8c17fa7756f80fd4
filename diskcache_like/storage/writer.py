"""Write a shard: one row or many, in as few statements as can be; every write of one key is a decision on its entry."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import Any, Final, Literal
from zlib import crc32

from ..coherence.generations import MAX_WORD, NEVER, Header, microseconds
from ..coherence.ring import Written
from ..encoding import file_names
from ..encoding.record import RESIDUE
from ..errors import CorruptDatabase, DiskFull, StorageError
from ..system import paths
from .placement import Placement
from .shard.invalidation import WRITE_COST
from .shard.ownership import HOME
from .shard.reader import Reader, own_or_other
from .shard.row import Decide, Remove, Row, Touch
from .sqlite import statements as sql
from .sqlite.connection import PAGE_SIZE, corrupt
from .upkeep.checkpoints import is_due
from .upkeep.maintenance import Maintenance
from .write_buffer import WriteBuffer

_TICK, _NEXT_EXPIRE, _FILES = Header.TICK, Header.NEXT_EXPIRE, Header.FILES  # for the hot paths
_DISPLACED, _WRITTEN = Header.DISPLACED, Header.WRITTEN

# A BLOB is bound as a bytearray: for bytes the sqlite3 module looks for an adapter each time, which costs several times
# the copy (half a microsecond in Python 3.11).
_blob = bytearray
_ALONE = [0, None, None, None, None]  # of a row without file, original key and queue

# Runs a SELECT with parameters and returns its rows.
Select = Callable[[str, Sequence[object]], list[Any]]


class _None(Enum):
    MISSING = 0
    OTHER = 1  # what is there is known under the lock only


MISSING: Final = _None.MISSING
OTHER: Final = _None.OTHER


def _small(found: Written | None, h: int, stored: bytes, select: Select) -> bytes | Literal[_None.OTHER] | None:
    """Return the record of a key, None for none; OTHER if it is damaged, has a file or a queue, or another is in place.

    `found`: what the write buffer has of it.
    """
    if found is not None:
        return OTHER if found.is_damage else found.v
    rows = select(sql.SELECT_WHOLE, (stored, h, h + 3))
    for is_own, v, file, queue in rows:
        if is_own:
            return v if file is None and queue is None and type(v) is bytes else OTHER
    return OTHER if rows else None


class Writer:
    """Write entries of one shard. Every call is atomic, and is tried once more after damage or a full disk was mended.

    A call returns the slot's new generation, or 1 if nothing may be kept hot: within the caller's transaction the slot
    stays odd, and 1 never equals a settled slot.
    """

    def __init__(self, maintenance: Maintenance, reader: Reader) -> None:
        self._maintenance = maintenance
        self._reader = reader
        self._transactions = transactions = maintenance.transactions
        self._session = session = transactions.session
        self._connection = session.connection
        self._invalidation = invalidation = transactions.invalidation
        self._around, self._count = invalidation.around, invalidation.count
        self._placement = Placement(session, invalidation)
        self._data_keys = maintenance.data_keys
        self.buffer = maintenance.buffer = WriteBuffer(maintenance, self._placement, self._write_row)

    def upsert(self, h: int, stored: bytes, row: Row | bytes, timeout: float | None, known: bool = False) -> int:
        """Store a row, or a record alone (bytes) for a row without further columns, in one autocommitted statement.

        `known`: the key most likely has an entry, so the cheaper UPDATE is tried first.
        """
        stamp = self._append_alone(h, stored, row) if self._session.appender is not None else 0
        return stamp or self._locked(self._upsert, (h, stored, row, known), timeout)

    def remove(self, h: int, stored: bytes, timeout: float | None, seen: int = 0) -> int:
        """Remove a live entry in one autocommitted statement; return 0 if there was none.

        `seen`: the generation of the slot at which the caller has seen a live entry, 0 for none.
        """
        if self._session.appender is not None:
            stamp = (self._append_alone(h, stored, None, seen) if seen else 0) or self._remove_alone(h, stored)
            if stamp is not None:
                return stamp
        return self._locked(self._remove, (h, stored), timeout, (h, stored))

    def compute(self, h: int, stored: bytes, decide: Decide, timeout: float | None, pure: bool = False) -> int:
        """Read the entry, let `decide` say what becomes of it, and write that, under one hold of the write lock.

        `decide` gets the record or None; None leaves the entry as it is. It must not use the cache. `pure`: it has no
        effect and looks at nothing but the record, so it may be asked before the lock is taken, and then once more.
        """
        stamp = self._compute_alone(h, stored, decide) if pure and self._session.appender is not None else 0
        return stamp or self._locked(self._compute, (h, stored, decide), timeout)

    # -- without the lock until the record is appended ----------------------------------------------------------------
    #
    # What is read between two looks at one even generation is the newest entry (docs/coherence.md), and the second look
    # is that of the C core under the lock. So what was decided on it holds when the record is appended.

    def _append_alone(self, h: int, stored: bytes, row: Row | bytes | None, expected: int = 0) -> int:
        """Append to the write buffer in one call, if its slot has the `expected` generation; return 0 if not done."""
        try:
            return self.buffer.append_alone(h, stored, row, expected)
        except BaseException:
            self._transactions.abort_interrupted()
            raise

    def _stamp(self, h: int) -> int:
        """Return the slot's generation, 0 if it is odd or a transaction of this process is open."""
        session = self._session
        session.ready()
        stamp = session.slots[h % session.slot_prime]
        return 0 if stamp & 1 or self._connection.txn is not None else stamp

    def _compute_alone(self, h: int, stored: bytes, decide: Decide) -> int:
        """Do what `compute` does; return 0 if that takes the lock."""
        stamp = self._stamp(h)
        if not stamp:
            return 0
        v = _small(self._reader.buffered(h, stored), h, stored, self._reader.select)
        if v is OTHER or (v is not None and crc32(v, crc32(stored)) != RESIDUE):
            return 0  # under the lock alone is it known whether a file is lost, or replaced; and damage is counted once
        try:
            change = decide(v)
        except Exception:
            if self._stamp(h) == stamp:
                raise
            return 0
        if change is None:
            return int(self._stamp(h) == stamp)
        if isinstance(change, Touch):
            return 0  # it keeps the version, which the number of an appended write would replace
        return self._append_alone(h, stored, None if isinstance(change, Remove) else change, stamp)

    def _remove_alone(self, h: int, stored: bytes) -> int | None:
        """Do what `remove` does; return None if that takes the lock."""
        stamp = self._stamp(h)
        if not stamp:
            return None
        until = self._until(self._reader.buffered(h, stored), h, stored, self._reader.select)
        if isinstance(until, _None):
            return 0 if until is MISSING else None
        generation = self._append_alone(h, stored, None, stamp)
        return (generation if self._is_ahead(until) else 0) if generation else None

    @staticmethod
    def _until(found: Written | None, h: int, stored: bytes, select: Select) -> float | _None | None:
        """Return until when an entry is fresh, or why there is none; `found`: what the write buffer has of it."""
        if found is not None:
            if found.is_damage:
                return OTHER
            if found.v is None:
                return MISSING
            return found.expire if found.fresh is None else found.fresh
        rows = select(sql.SELECT_UNTIL, (stored, h, h + 3))
        for is_own, until in rows:
            if is_own:
                return until  # type: ignore[no-any-return]
        return OTHER if rows else MISSING

    def _is_ahead(self, until: float | None) -> bool:
        return until is None or until > self._session.config.clock()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _locked(
        self,
        step: Callable[[bool, Any], int],
        arguments: Any,
        timeout: float | None,
        removed: tuple[int, bytes] | None = None,
        again: bool = False,
    ) -> int:
        """Return `step(autocommit, arguments)`, called under the write lock or within the caller's transaction.

        After a damaged database or a full disk was mended it is called once more; `removed` is as for `Recovery.mend`.
        """
        transactions = self._transactions
        try:
            autocommit = transactions.acquire(timeout)
            try:
                return step(autocommit, arguments)
            finally:
                if autocommit:
                    transactions.release()
                else:
                    transactions.end_step()
        except (CorruptDatabase, DiskFull) as error:
            if again:
                raise
            self._maintenance.recovery.mend(error, timeout, removed)
        except BaseException:
            transactions.abort_interrupted()
            raise
        return self._locked(step, arguments, timeout, removed, again=True)

    # -- one row ------------------------------------------------------------------------------------------------------

    def _upsert(self, autocommit: bool, arguments: tuple[int, bytes, Row | bytes, bool]) -> int:
        """Do what `upsert` does, under the lock."""
        h, stored, row, known = arguments
        session = self._session
        if autocommit and session.ring is not None:
            if self.buffer.takes(stored, row):
                return self._append(h, stored, row)
            self.buffer.flush()
        header = session.header
        plain = type(row) is bytes
        size = len(row) if plain else self._announce(row)  # type: ignore[arg-type]
        header[_WRITTEN] = written = header[_WRITTEN] + WRITE_COST + size & MAX_WORD
        if is_due(session, written):
            self._maintenance.run(size)
        if plain and not session.policy.marks_frequency and not header[_DISPLACED]:
            return self._around(h, autocommit, self._store_record, (stored, row, known))
        step = self._store_row if session.disk.sealer is None else self._store_sealed
        return self._around(h, autocommit, step, (stored, Row(row) if plain else row, known))  # type: ignore[arg-type]

    def _append(self, h: int, stored: bytes, row: Row | bytes) -> int:
        if self._session.disk.sealer is not None:
            row = self._data_keys.present_row(stored, Row(row) if type(row) is bytes else row)  # type: ignore[arg-type]
        return self.buffer.write(h, stored, row)

    def _store_record(self, h: int, tick: int, arguments: tuple[bytes, bytes, bool]) -> bool:
        """Write a row that has nothing but a record."""
        stored, v, known = arguments
        connection = self._connection
        cursor = connection.cursor or connection.open_cursor()
        parameters = (tick, _blob(v), h, _blob(stored))
        inserted = connection.inserted
        if known or h == inserted:
            if cursor.execute(sql.UPDATE_RECORD, parameters).rowcount:
                return True
            done = cursor.execute(sql.UPSERT_RECORD, (*parameters, tick))
            added = True
        else:
            done = cursor.execute(sql.UPSERT_RECORD, (*parameters, tick))
            added = done.lastrowid != inserted
        if not done.rowcount:  # the place is another key's, or its row has more than a record
            self._write_row(self._placement.place(h, stored), stored, Row(v), tick)
        elif added:
            connection.inserted = h
            self._count(1)
        return True

    def _store_row(self, h: int, tick: int, arguments: tuple[bytes, Row, bool]) -> bool:
        """Write all columns of a row."""
        stored, row, known = arguments
        self._maintenance.trash.expect()  # for the file that the row may have had
        place = self._placement.place(h, stored) if self._session.header[_DISPLACED] else h
        if not (known and self._replace_value(place, stored, row, tick)):
            self._write_row(place, stored, row, tick)
        return True

    def _store_sealed(self, h: int, tick: int, arguments: tuple[bytes, Row, bool]) -> bool:
        """Write a row as the present data key seals it; if that made another value file, unlink the one not needed."""
        stored, row, known = arguments
        present = self._data_keys.present_row(stored, row)
        if present.file == row.file:
            return self._store_row(h, tick, (stored, present, known))
        unneeded = present.file
        try:
            self._store_row(h, tick, (stored, present, known))
            unneeded = row.file  # not before, since a second try needs it
        finally:
            self._maintenance.unlink_unused([unneeded] if unneeded is not None else [])
        return True

    def _write_row(
        self, place: int, stored: bytes, row: Row, tick: int, seq: int | None = None, placed: bool = False
    ) -> None:
        """Write all columns of a row at a place.

        `seq`: the write that made the entry, if it is new and that was not this one. `placed`: the place was looked for
        already; if it is taken all the same, rows are not where they belong.
        """
        session, connection = self._session, self._connection
        self._maintenance.trash.expect()
        execute = connection.open().execute
        inserted = connection.inserted
        same = place == inserted
        exists = same and execute(sql.SELECT_V, (place,)).fetchone() is not None
        rank, base = self._first_rank(place)
        v, *columns = row
        parameters = (place, _blob(stored), tick, rank, base, *columns, _blob(v), tick if seq is None else seq)
        done = execute(sql.UPSERT, parameters)
        if not done.rowcount:
            if placed:
                raise corrupt(f"{session.path!r}: a row is found at a place that is free", session.path)
            self._write_row(self._placement.place(place & HOME, stored), stored, row, tick, seq, placed=True)
        elif not exists if same else done.lastrowid != inserted:
            connection.inserted = place
            self._count(1)

    def _first_rank(self, place: int) -> tuple[int | None, int]:
        """Return the columns `rank` and `base` of a row that is stored now."""
        session = self._session
        by_uses = session.policy.marks_frequency
        return None, session.uses[(place & HOME) % session.slot_prime] & NEVER if by_uses else 0

    def _replace_value(self, place: int, stored: bytes, row: Row, tick: int) -> bool:
        """Replace record and expiry of a row whose other columns stay as they are; return False if they do not."""
        v, expire, fresh, tags, *others = row
        if others != _ALONE or self._session.policy.marks_frequency:
            return False
        connection = self._connection
        execute = (connection.cursor or connection.open_cursor()).execute
        if expire is None:
            return execute(sql.UPDATE_LASTING, (tick, _blob(v), place, _blob(stored), tags)).rowcount == 1
        parameters = (tick, _blob(v), expire, fresh, place, _blob(stored), tags)
        return execute(sql.UPDATE_EXPIRING, parameters).rowcount == 1

    def _announce(self, row: Row) -> int:
        """Note in the header, before the commit, that files or expiries may exist; return the row's bytes."""
        session = self._session
        if row.expire is not None:
            due = microseconds(row.expire)
            if due < session.header[_NEXT_EXPIRE]:
                session.header[_NEXT_EXPIRE] = due
        if row.file is not None:
            name = file_names.from_column(row.file)
            if not paths.mode_of(os.path.join(session.directory, name)):
                raise StorageError(f"{session.path!r}: a check removed value file {name!r} before its row was written")
            session.header[_FILES] = 1
            if self._connection.txn is not None:
                self._connection.txn.files.append(row.file)
        cost = len(row.v) + row.size
        return cost if row.tags is None else cost + WRITE_COST * (row.tags.count(" ") + 1)  # a page of the index each

    # -- many rows ----------------------------------------------------------------------------------------------------

    def upsert_many(self, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> None:
        """Store rows (place, stored key, row) within the caller's transaction; of equal keys the last one stays."""
        self._locked(self._upsert_many, rows, 0, again=True)

    def _upsert_many(self, _: bool, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> int:
        session = self._session
        plain = [(h, stored, row) for h, stored, row in rows if type(row) is bytes]
        special = len(plain) < len(rows) or session.policy.marks_frequency or session.header[_DISPLACED]
        if special or not self._upsert_plain(plain):
            for h, stored, row in rows:
                self._upsert(False, (h, stored, row, False))
        return 1

    def _upsert_plain(self, rows: Sequence[tuple[int, bytes, bytes]]) -> bool:
        """Store rows with one prepared statement; return False when a place belongs to another key."""
        incoming = sum(len(v) for _, _, v in rows)
        self._maintenance.before_write(incoming + len(rows) * PAGE_SIZE, incoming)
        session = self._session
        with self._invalidation.around_many([h for h, _, _ in rows], autocommit=False):
            first = session.generations.next_tick()
            session.header[_TICK] = first + len(rows) - 1
            parameters = [(first + i, _blob(v), h, _blob(stored)) for i, (h, stored, v) in enumerate(rows)]
            parameters.sort(key=itemgetter(2))  # stable: of equal keys the last one stays the last
            return self._write_sorted(parameters)

    def _write_sorted(self, parameters: list[tuple[int, bytearray, int, bytearray]]) -> bool:
        """Do `_upsert_plain` for rows in order of their places, which share pages."""
        present, execute_many = self._placement.present, self._connection.execute_many
        places = list(dict.fromkeys(h for _, _, h, _ in parameters))
        first = places[: sql.MANY]
        all_there = len(present(first)) == len(first)  # then most likely the rest is there too
        if all_there and execute_many(sql.UPDATE_RECORD, parameters).rowcount == len(parameters):
            return True
        new = len(places) - len(present(places))
        done = execute_many(sql.UPSERT_PLAIN, [(*one, one[0]) for one in parameters]).rowcount
        if new:
            self._connection.note_inserted()
        if done == len(parameters):
            self._count(new)
            return True
        # Another key's place: what was written stays within this transaction, and is written again with probing.
        self._count(len(present(places)) - (len(places) - new))
        return False

    # -- removal ------------------------------------------------------------------------------------------------------

    def _remove(self, autocommit: bool, arguments: tuple[int, bytes]) -> int:
        """Do what `remove` does, under the lock."""
        h, stored = arguments
        if autocommit and self._session.ring is not None:
            removed = self._remove_buffered(h, stored) if self.buffer.takes(stored, None) else None
            if removed is not None:
                return removed
            self.buffer.flush()
        place = self._placement.find_displaced(h, stored) if self._session.header[_DISPLACED] else h
        self._maintenance.before_write(WRITE_COST, 0)
        return self._around(h, autocommit, self._delete, (stored, place))

    def _remove_buffered(self, h: int, stored: bytes) -> int | None:
        """Do what `_remove` does where there is a write buffer; return None if that takes the database."""
        found = self._session.buffered(h, stored)
        if found is not None and found.is_damage:
            self.buffer.write(h, stored, None)  # else it would be back when what hides it has gone
            return 0
        until = self._until(found, h, stored, self._connection.select)
        if isinstance(until, _None):
            return 0 if until is MISSING else None
        generation = self.buffer.write(h, stored, None)  # what has expired goes, too, but counts as missing
        return generation if self._is_ahead(until) else 0

    def _delete(self, h: int, _: int, arguments: tuple[bytes, int]) -> bool:
        """Delete a live entry; return False if there was none."""
        stored, place = arguments
        session, connection = self._session, self._connection
        cursor = connection.cursor or connection.open_cursor()
        self._maintenance.trash.expect()
        if not cursor.execute(sql.DELETE, (place, _blob(stored), session.config.clock())).rowcount:
            self._placement.remove_unsound(h, stored)
            return False
        self._count(-1)
        return True

    # -- a decision on an entry ---------------------------------------------------------------------------------------

    def _compute(self, autocommit: bool, arguments: tuple[int, bytes, Decide]) -> int:
        h, stored, decide = arguments
        session = self._session
        if autocommit and session.ring is not None:
            found = session.buffered(h, stored)
            rows = [] if found is not None else self._connection.select(sql.SELECT_PROBES, (h, h + 3))
            v, is_other_there = own_or_other(rows, stored)
            if not is_other_there:
                return self._compute_buffered((h, stored, decide), v if found is None else found.v)
            self.buffer.flush()  # so that `find` may remove what is in the way
        place, v = self._placement.find(h, stored, autocommit)
        change = decide(v)
        if change is None:
            return 1
        if type(change) is bytes or type(change) is Row:
            return self._upsert(autocommit, (h, stored, change, v is not None))
        return self._change_recovering(h, place, change, autocommit)  # type: ignore[arg-type]

    def _compute_buffered(self, arguments: tuple[int, bytes, Decide], v: bytes | None) -> int:
        """Do what `_compute` does where there is a write buffer; `v`: the record, wherever it is."""
        h, stored, decide = arguments
        change = decide(v)
        if change is None:
            return 1
        if isinstance(change, bytes | Row):
            return self._upsert(True, (h, stored, change, v is not None))
        if isinstance(change, Remove) and v is not None and self.buffer.takes(stored, None):
            return self.buffer.write(h, stored, None)
        self.buffer.flush()
        place, v = self._placement.find(h, stored, True)
        if v is None:
            return 1  # the fifth key of this hash was flushed, too, and has taken its place; or it is damaged
        return self._change_recovering(h, place, change, True)

    def _change_recovering(self, h: int, place: int, change: Touch | Remove, autocommit: bool) -> int:
        """Do what `_change` does; a removal finds room on a full disk."""
        if autocommit and isinstance(change, Remove):
            step = partial(self._change, autocommit, h, place, change)
            return self._maintenance.recovery.run(step, removes=True)
        return self._change(autocommit, h, place, change)

    def _change(self, autocommit: bool, h: int, place: int, change: Touch | Remove) -> int:
        """Give the entry at `place` another expiry, or remove it."""
        if autocommit:
            self._maintenance.run_if_due(removes=type(change) is Remove)
        self._invalidation.note_written(2 * WRITE_COST)
        if type(change) is Touch:
            return self._around(h, autocommit, self._touch, (place, change))
        return self._around(h, autocommit, self._delete_place, (place,))

    def _touch(self, _: int, __: int, arguments: tuple[int, Touch]) -> bool:
        place, change = arguments
        self._data_keys.reserve_seals()
        if change.expire is not None:
            header = self._session.header
            header[_NEXT_EXPIRE] = min(header[_NEXT_EXPIRE], microseconds(change.expire))
        execute = self._connection.open().execute
        execute(sql.UPDATE_METADATA, (change.expire, change.fresh, change.tags, change.v, place))
        if change.unpins:
            execute(sql.RANK_UNPINNED, (*self._first_rank(place), place))
        return True

    def _delete_place(self, _: int, __: int, arguments: tuple[int]) -> bool:
        self._maintenance.trash.expect()
        self._count(-self._connection.open().execute(sql.DELETE_H, arguments).rowcount)
        return True
