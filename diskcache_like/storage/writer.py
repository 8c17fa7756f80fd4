"""Write a shard: one row or many, in as few statements as possible."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from math import inf
from typing import Any, Final, Literal

from ..coherence.contexts import end
from ..coherence.counts import DELETE, SET
from ..coherence.generations import MAX_WORD, TICK_LIMIT, Header
from ..coherence.ring import Written, new_tuple
from ..encoding import file_names
from ..encoding.checksum import crc32
from ..encoding.record import RESIDUE
from ..errors import CorruptDatabase, DiskFull, StorageError
from ..system import paths
from ..system.forks import token_word
from ..system.signals import reraise_signal
from .rows import Rows, small
from .shard.invalidation import WRITE_COST
from .shard.reader import Reader, own_or_other
from .shard.row import REMOVE, Change, Decide, Remove, Row, Touch
from .sqlite import statements as sql
from .upkeep.checkpoints import is_due
from .upkeep.maintenance import Maintenance
from .write_buffer import WriteBuffer

_TICK, _FILES, _WRITTEN = Header.TICK, Header.FILES, Header.WRITTEN  # for the hot paths
_INTERNAL = Header.INTERNAL

PUSHES = 3  # tries to append before the lock is taken, since another write may come first

# Runs a SELECT with parameters and returns its rows.
Select = Callable[[str, Sequence[object]], list[Any]]


class _None(Enum):
    MISSING = 0
    OTHER = 1  # only a look under the lock tells what is there


MISSING: Final = _None.MISSING
OTHER: Final = _None.OTHER


class Writer:
    """Write entries of one shard; every call is atomic.

    A call outside a transaction is tried once more after damage or a full disk was mended.
    A call returns the slot's new generation, or 1 if nothing may be kept hot: within the caller's transaction the slot
    stays odd, and 1 never equals a settled slot.
    """

    def __init__(self, maintenance: Maintenance, reader: Reader) -> None:
        self._maintenance = maintenance
        self._reader = reader
        self._transactions = transactions = maintenance.transactions
        self._shard = shard = transactions.shard
        self._connection = shard.connection
        self._invalidation = invalidation = transactions.invalidation
        self._commit_one = invalidation.commit_one
        self._rows = Rows(shard, invalidation, maintenance.trash)
        self._data_keys = maintenance.data_keys
        self.buffer = maintenance.buffer = buffer = WriteBuffer(maintenance, self._rows)
        self._append_alone = buffer.append_alone

    def put(self, home: int, stored_key: bytes, row: Row | bytes, timeout: float | None, known: bool = False) -> int:
        """Store a row, or a record alone (bytes) for a row without further columns: appended if small, else committed.

        `known`: the key most likely has an entry, so the cheaper UPDATE is tried first.
        """
        stamp = self._append_alone(home, stored_key, row) if self._shard.appender is not None else 0
        stamp = stamp or self._locked(self._put, (home, stored_key, row, known), timeout)
        self._shard.marks.of(stored_key)[home] = SET
        return stamp

    def push(self, make: Callable[[int], tuple[int, bytes, Row]], timeout: float | None) -> None:
        """Store a row under a key that has the number of this very write, which no other has.

        `make` returns hash, stored key and row for a number. It may be called more than once; the last call counts.
        """
        for _ in range(PUSHES if self._shard.appender is not None else 0):
            number = self._shard.header[_TICK] + 1
            if number > TICK_LIMIT:  # another thread is closing the shard
                break
            home, stored_key, row = make(number)
            if self._append_alone(home, stored_key, row, expected=2 * number + 1):
                self._shard.marks.of(stored_key)[home] = SET
                return
        self._locked(self._push, make, timeout)

    def remove_at(self, home: int, stored_key: bytes, number: int) -> bool:
        """Remove an entry if that is the write with this number, and without the lock; tell whether it was."""
        return self._counted(self._append_alone(home, stored_key, None, expected=2 * number + 1), home, stored_key) != 0

    def remove(self, home: int, stored_key: bytes, timeout: float | None, seen: int = 0) -> int:
        """Remove a live entry; return 0 if there was none.

        `seen`: the generation of the slot at which the caller has seen a live entry, 0 for none.
        """
        if self._shard.appender is not None:
            stamp = (self._append_alone(home, stored_key, None, seen) if seen else 0) or self._remove_alone(
                home, stored_key
            )
            if stamp is not None:
                return self._counted(stamp, home, stored_key)
        stamp = self._locked(self._remove, (home, stored_key), timeout, (home, stored_key))
        return self._counted(stamp, home, stored_key)

    def _counted(self, stamp: int, home: int, stored_key: bytes, change: Change = REMOVE) -> int:
        """Count a change of an entry unless there was none; return the `stamp` that tells that."""
        if stamp:
            self._shard.marks.of(stored_key)[home] = DELETE if change is REMOVE else SET
        return stamp

    def update(
        self,
        home: int,
        stored_key: bytes,
        decide: Decide,
        timeout: float | None,
        early: bool = False,
        missing: int = 0,
    ) -> int:
        """Read the entry, let `decide` say what becomes of it, and write that, under one hold of the write lock.

        `decide` gets the record or None; None leaves the entry as it is. It must not use the cache. `early`: it has no
        effect and looks at nothing but the record, so it may be asked before the lock is taken, and then once more.
        `missing`: the generation of the slot at which the caller has found no entry, 0 for none.
        """
        is_alone = early and self._shard.appender is not None
        stamp = self._update_alone(home, stored_key, decide, missing) if is_alone else 0
        return stamp or self._locked(self._update, (home, stored_key, decide), timeout)

    # -- without the lock until the record is appended ----------------------------------------------------------------
    #
    # What is read between two looks at one even generation is the newest entry (docs/coherence.md), and the second look
    # is that of the C core under the lock. So what was decided on it holds when the record is appended.

    def replace(self, home: int, stored_key: bytes, row: Row | bytes, seen: int) -> int:
        """Append a row if the generation of the slot is still the one that was `seen`; return 0 otherwise."""
        return self._counted(self._append_alone(home, stored_key, row, seen), home, stored_key, row)

    def _stamp(self, home: int) -> int:
        """Return the slot's generation, 0 if it is odd or a transaction of this process is open."""
        shard = self._shard
        if token_word[0] != shard.token:
            shard.ready()
        stamp = shard.slots[home % shard.slot_prime]
        return 0 if stamp & 1 or self._connection.txn is not None else stamp

    def _update_alone(self, home: int, stored_key: bytes, decide: Decide, missing: int) -> int:
        """Do what `update` does; return 0 if that takes the lock."""
        stamp = self._stamp(home)
        if not stamp:
            return 0
        packed = None if stamp == missing else self._newest(home, stored_key)
        if packed is OTHER or (packed is not None and crc32(packed, crc32(stored_key)) != RESIDUE):
            return 0  # under the lock alone is it known whether a file is lost, or replaced; and damage is counted once
        try:
            change = decide(packed)
        except Exception as error:
            reraise_signal(error)
            if self._stamp(home) == stamp:
                raise
            return 0
        if change is None:
            return int(self._stamp(home) == stamp)
        if isinstance(change, Touch):
            touched = self._touched(home, stored_key, change, self._reader.select)
            stamp = 0 if touched is None else self._append_alone(home, stored_key, touched[0], stamp, touched[1])
        else:
            stamp = self._append_alone(home, stored_key, None if isinstance(change, Remove) else change, stamp)
        return self._counted(stamp, home, stored_key, change)

    def _newest(self, home: int, stored_key: bytes) -> bytes | Literal[_None.OTHER] | None:
        """Return the record of a key, None for none; OTHER if it has a file, or the lock has to be held.

        That is where it is damaged, another key is in its place, or another process has replaced what is open here.
        """
        shard = self._shard
        if not shard.is_current():
            return OTHER
        found = None if shard.ring is None else shard.ring.read(home, stored_key)
        if found is not None:
            return found if type(found) is bytes else None if found else OTHER
        rows = self._reader.select(sql.SELECT_WHOLE, (stored_key, home, home + 3))
        for is_own, packed, file, *_ in rows:
            if is_own:
                return packed if file is None and type(packed) is bytes else OTHER
        return OTHER if rows else None

    def _touched(self, home: int, stored_key: bytes, change: Touch, select: Select) -> tuple[Row, int] | None:
        """Return the row of an entry after a touch, and its version, which stays; None if the database has to tell."""
        found = self._shard.buffered(home, stored_key)
        if found is not None:
            version, original_key, queue = found.tick, found.original_key, None
        else:
            rows = [row for row in select(sql.SELECT_WHOLE, (stored_key, home, home + 3)) if row[0]]
            if not rows or rows[0][2] is not None:  # it has a file
                return None
            queue, version, original_key = rows[0][3:]
        has_spelling = type(original_key) is bytes
        if type(version) is not int or not 0 < version < TICK_LIMIT or not (has_spelling or original_key is None):
            return None
        if self._shard.disk.sealer is not None and not self._data_keys.is_present(original_key):
            return None  # to seal it again it would have to be opened, and it may be damaged
        return new_tuple(Row, (*change, 0, None, original_key, queue, None)), version

    def _remove_alone(self, home: int, stored_key: bytes) -> int | None:
        """Do what `remove` does; return None if that takes the lock."""
        stamp = self._stamp(home)
        if not stamp:
            return None
        until = self._until(self._reader.buffered(home, stored_key), home, stored_key, self._reader.select)
        if isinstance(until, _None):
            return 0 if until is MISSING else None
        generation = self._append_alone(home, stored_key, None, stamp)
        return (generation if self._is_ahead(until) else 0) if generation else None

    @staticmethod
    def _until(found: Written | None, home: int, stored_key: bytes, select: Select) -> float | _None | None:
        """Return until when an entry is fresh, or why there is none; `found`: what the write buffer has of it."""
        if found is not None:
            if found.is_damage:
                return OTHER
            if found.packed is None:
                return MISSING
            return found.expire if found.fresh is None else found.fresh
        rows = select(sql.SELECT_UNTIL, (stored_key, home, home + 3))
        for is_own, until in rows:
            if is_own:
                return until  # type: ignore[no-any-return]
        return OTHER if rows else MISSING

    def _is_ahead(self, until: float | None) -> bool:
        return until is None or until > self._shard.config.clock()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _locked(
        self,
        step: Callable[[bool, Any], int],
        arguments: Any,
        timeout: float | None,
        removed: tuple[int, bytes] | None = None,
        retries: bool = True,
    ) -> int:
        """Return `step(autocommit, arguments)`, called under the write lock or within the caller's transaction.

        After a damaged database or a full disk was mended it is called once more; `removed` is as for `Recovery.mend`.
        """
        transactions = self._transactions
        txn = transactions.joined()
        try:
            if txn is not None:
                try:
                    txn.stepping = True
                    return step(False, arguments)
                finally:
                    txn.stepping = False
            try:
                transactions.take(timeout)
                stamp = step(True, arguments)
                transactions.complete()
            finally:
                end((self._shard,), token_word[0])
        except (CorruptDatabase, DiskFull) as error:
            if not retries:
                raise
            self._maintenance.recovery.mend(error, timeout, removed)
            return self._locked(step, arguments, timeout, removed, retries=False)
        if transactions.after_release is not None:
            transactions.released()
        return stamp

    # -- one row ------------------------------------------------------------------------------------------------------

    def _put(self, autocommit: bool, arguments: tuple[int, bytes, Row | bytes, bool]) -> int:
        """Do what `put` does, under the lock."""
        home, stored_key, row, known = arguments
        shard = self._shard
        self._go_beyond(row)
        if autocommit and shard.ring is not None:
            if self.buffer.takes(stored_key, row):
                return self._append(home, stored_key, row)
            if shard.ring.waiting():
                return self._with_waiting(home, partial(self._put, False, arguments))
            self.buffer.flush()
        header = shard.header
        size = self._announce(row) if isinstance(row, Row) else len(row)
        header[_WRITTEN] = written = header[_WRITTEN] + WRITE_COST + size & MAX_WORD
        if is_due(shard, written):
            self._maintenance.run(size)
        step = self._rows.put if shard.disk.sealer is None else self._put_sealed_row
        return self._commit_one(home, autocommit, step, (stored_key, row, known))

    def _go_beyond(self, row: Row | bytes) -> None:
        """Give later writes numbers beyond that of an item of a queue, which another cache may have numbered."""
        if not isinstance(row, Row) or row.num is None:
            return
        header, number = self._shard.header, abs(row.num)
        skipped = number - 1 - header[_TICK]
        if skipped > 0 and number < TICK_LIMIT // 2:
            header[_INTERNAL] = header[_INTERNAL] + skipped & MAX_WORD  # they are no writes of keys
            header[_TICK] = number - 1

    def _with_waiting(self, home: int, step: Callable[[], int]) -> int:
        """Change the entry of a key by `step` in one transaction with what waits in the write buffer."""
        carried = self._maintenance.before_transaction()
        with self._transactions.batch(carried) as txn:
            is_changed = step()
        if txn.evicted:
            self._maintenance.after_eviction()
        return self._shard.slots[home % self._shard.slot_prime] if is_changed else 0

    def _push(self, autocommit: bool, make: Callable[[int], tuple[int, bytes, Row]]) -> int:
        """Do what `push` does, under the lock, where the next number is known."""
        home, stored_key, row = make(self._shard.header[_TICK] + 1)
        stamp = self._put(autocommit, (home, stored_key, row, False))
        return self._counted(stamp or 1, home, stored_key, row)

    def _append(self, home: int, stored_key: bytes, row: Row | bytes, version: int = 0) -> int:
        if self._shard.disk.sealer is not None:
            row = self._data_keys.present_row(stored_key, _columns_of(row))
        return self.buffer.write(home, stored_key, row, version)

    def _put_sealed_row(self, home: int, tick: int, arguments: tuple[bytes, Row | bytes, bool]) -> bool:
        """Write a row as the present data key seals it; if that made another value file, unlink the one not needed."""
        stored_key, given, known = arguments
        row = _columns_of(given)
        present = self._data_keys.present_row(stored_key, row)
        unneeded = present.file
        try:
            self._rows.put(home, tick, (stored_key, present, known))
            unneeded = row.file  # not before, since a second try needs it
        finally:
            if present.file != row.file and unneeded is not None:
                self._maintenance.unlink_unused([unneeded])
        return True

    def _announce(self, row: Row) -> int:
        """Note in the header, before the commit, that files may exist; return the row's bytes."""
        shard = self._shard
        if row.file is not None:
            name = file_names.from_column(row.file)
            if not paths.mode_of(os.path.join(shard.directory, name)):
                raise StorageError(f"{shard.path!r}: a check removed value file {name!r} before its row was written")
            shard.header[_FILES] = 1
            txn = self._connection.txn
            if txn is not None and txn.entered:  # else the step may be taken again, with the file
                txn.files.append(row.file)
        cost = len(row.packed) + row.size
        return cost if row.tags is None else cost + WRITE_COST * (row.tags.count(" ") + 1)  # a page of the index each

    # -- many rows ----------------------------------------------------------------------------------------------------

    def put_many(self, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> None:
        """Store rows (place, stored key, row) within the caller's transaction; of equal keys the last one stays."""
        self._locked(self._put_many, rows, 0, retries=False)
        marks = self._shard.marks
        for home, stored_key, _ in rows:
            marks.of(stored_key)[home] = SET

    def _put_many(self, _: bool, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> int:
        shard = self._shard
        full = [row for _, _, row in rows if isinstance(row, Row)]
        special = (
            shard.header[Header.DISPLACED] or shard.disk.sealer is not None or any(row.file is not None for row in full)
        )
        if special or not self._put_small(rows, full):
            for home, stored_key, row in rows:
                self._put(False, (home, stored_key, row, False))
        return 1

    def _put_small(self, rows: Sequence[tuple[int, bytes, Row | bytes]], full: Sequence[Row]) -> bool:
        """Store rows without files with one prepared statement; return False when a place belongs to another key.

        `full`: those that are more than a record.
        """
        incoming = sum([len(row) for _, _, row in rows if type(row) is bytes]) + sum(map(self._announce, full))
        self._maintenance.before_write(incoming, incoming)  # `commit_many` counts the pages
        shard = self._shard
        for row in full:
            self._go_beyond(row)
        with self._invalidation.commit_many([home for home, _, _ in rows], autocommit=False):
            first = shard.generations.next_tick()
            shard.header[_TICK] = first + len(rows) - 1
            parameters = [small(home, key, row, first + i, first + i) for i, (home, key, row) in enumerate(rows)]
            return self._rows.put_many(parameters)

    # -- removal ------------------------------------------------------------------------------------------------------

    def _remove(self, autocommit: bool, arguments: tuple[int, bytes]) -> int:
        """Do what `remove` does, under the lock."""
        home, stored_key = arguments
        if autocommit and self._shard.ring is not None:
            removed = self._remove_buffered(home, stored_key) if self.buffer.takes(stored_key, None) else None
            if removed is not None:
                return removed
            if self._shard.ring.waiting():
                return self._with_waiting(home, partial(self._remove, False, arguments))
            self.buffer.flush()
        self._maintenance.before_write(WRITE_COST, 0)
        return self._commit_one(home, autocommit, self._rows.delete, (stored_key, self._shard.config.clock()))

    def _remove_buffered(self, home: int, stored_key: bytes) -> int | None:
        """Do what `_remove` does where there is a write buffer; return None if that takes the database."""
        found = self._shard.buffered(home, stored_key)
        if found is not None and found.is_damage:
            self.buffer.write(home, stored_key, None)  # else it would be back when what hides it has gone
            return 0
        until = self._until(found, home, stored_key, self._connection.select)
        if isinstance(until, _None):
            return 0 if until is MISSING else None
        generation = self.buffer.write(home, stored_key, None)  # what has expired goes, too, but counts as missing
        return generation if self._is_ahead(until) else 0

    # -- a decision on an entry ---------------------------------------------------------------------------------------

    def _update(self, autocommit: bool, arguments: tuple[int, bytes, Decide]) -> int:
        """Do what `update` does, under the lock."""
        home, stored_key, decide = arguments
        packed = self._record(home, stored_key, autocommit)
        change = decide(packed)
        if change is None:
            return 1
        stamp = self._make(autocommit, (home, stored_key), change, packed is not None)
        self._counted(1, home, stored_key, change)
        return stamp

    def _make(self, autocommit: bool, key: tuple[int, bytes], change: Row | bytes | Touch | Remove, known: bool) -> int:
        """Make the change that was decided on an entry."""
        home, stored_key = key
        if isinstance(change, bytes | Row):
            return self._put(autocommit, (home, stored_key, change, known))
        ring, step = self._shard.ring, partial(self._change, autocommit, home, stored_key, change)
        if autocommit and ring is not None:
            if isinstance(change, Remove) and known and self.buffer.takes(stored_key, None):
                return self.buffer.write(home, stored_key, None)
            touched = isinstance(change, Touch) and self._touched(home, stored_key, change, self._connection.select)
            if touched and self.buffer.takes(stored_key, touched[0]):
                return self._append(home, stored_key, *touched)
            if ring.waiting():
                step = partial(self._with_waiting, home, partial(self._change, False, home, stored_key, change))
            else:
                self.buffer.flush()
        if autocommit and isinstance(change, Remove):
            return self._maintenance.recovery.run(step, removes=True)
        return step()

    def _record(self, home: int, stored_key: bytes, autocommit: bool) -> bytes | None:
        """Return the record of a key, wherever it is."""
        if autocommit and self._shard.ring is not None:
            found = self._shard.buffered(home, stored_key)
            if found is not None:
                return found.packed
            packed, is_other_there = own_or_other(
                self._connection.select(sql.SELECT_PROBES, (home, home + 3)), stored_key
            )
            if not is_other_there:
                return packed
            self.buffer.flush()  # so that `find` may remove what is in the way
        return self._rows.find(home, stored_key, autocommit)

    def _change(self, autocommit: bool, home: int, stored_key: bytes, change: Touch | Remove) -> int:
        """Give an entry other metadata, or remove it."""
        if autocommit:
            self._maintenance.run_if_due(removes=type(change) is Remove)
        self._invalidation.count_written(2 * WRITE_COST)
        if isinstance(change, Remove):
            return self._commit_one(home, autocommit, self._rows.delete, (stored_key, -inf)) or 1
        self._data_keys.reserve_seals()
        return self._commit_one(home, autocommit, self._rows.touch, (stored_key, change)) or 1


def _columns_of(row: Row | bytes) -> Row:
    return row if isinstance(row, Row) else Row(row)
