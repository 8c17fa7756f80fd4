"""The rows of one shard: where a key's row lies, and every way in which the row of one key is changed.

A row's place is its key's hash, or one of the three after it where other keys have the same hash. The write lock is
held, and the slots of what changes are odd (`Invalidation`) or, while the write buffer is flushed, do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from sqlite3 import IntegrityError
from typing import Any, Literal

from ..coherence.generations import FARTHEST, UNCOUNTED, Header, microseconds
from ..encoding.keys import queue_columns
from ..encoding.record import unpack
from ..errors import DecodeError, SignatureError, StorageError
from .shard.invalidation import Invalidation
from .shard.open_shard import OpenShard
from .shard.ownership import HOME
from .shard.reader import places_of
from .shard.row import Row, Touch
from .sqlite import statements as sql
from .sqlite.connection import corrupt
from .upkeep.trash import Trash

_COUNT, _DISPLACED, _NEXT_EXPIRE = Header.COUNT, Header.DISPLACED, Header.NEXT_EXPIRE  # for the hot paths

# A BLOB is bound as a bytearray: for bytes the sqlite3 module looks for an adapter each time, which costs several times
# the copy (half a microsecond in Python 3.11).
_blob = bytearray
_ALONE = [0, None, None, None, None]  # of a row without file, original key and queue

# NaN, which SQLite stores as NULL, is bound instead of None: for None, too, the module looks for an adapter, and five
# of them take a quarter of the time of the statement.
_NULL: Any = nan

# A row without a file, in the order of `sql.UPSERT_SMALL`: version, record, hash, stored key, first tick, which is all
# for a record alone; then expiry, freshness, tags, original key, queue, number there. None of them is None.
Small = tuple[Any, ...]
_ALL, _NO_COLUMNS = 11, (_NULL,) * 6
OPEN: int = 9  # columns of a row that lacks the last two
_ANY_NUMBER = None  # instead of the number of a new row: SQLite picks one


def small(home: int, stored_key: bytes, row: Row | bytes, version: int, number: int) -> Small:
    """Return a row without a file as `put_many` takes it."""
    if not isinstance(row, Row):
        return version, _blob(row), home, _blob(stored_key), number
    packed, expire, fresh, tags, _, _, original_key, queue, num = row
    others = _bound(expire, fresh, tags, original_key, queue, num)
    return version, _blob(packed), home, _blob(stored_key), number, *others


def _bound(*columns: object) -> list[object]:
    return [_NULL if each is None else each for each in columns]


def with_queue(stored_key: bytes, row: Small) -> Small:
    """Return a row that is `OPEN` with the queue that it is in, and its number there, if its key says so."""
    queue, num = queue_columns(stored_key)
    return (*row, *_NO_COLUMNS[:2]) if queue is None else (*row, queue, num)


def _whole(rows: Sequence[Small]) -> list[Small]:
    """Return the rows with all columns."""
    return [(*row, *_NO_COLUMNS)[:_ALL] for row in rows]


def original_key_in(row: Small | None) -> bytes | None:
    """Return the original key of a row as `put_many` takes it, None for a removal or a row that has none."""
    original = row[8] if row is not None and len(row) > 8 else None
    return bytes(original) if isinstance(original, bytes | bytearray) else None


class Rows:
    """Find and change the rows of keys through the writing connection."""

    def __init__(self, shard: OpenShard, invalidation: Invalidation, trash: Trash) -> None:
        self._shard = shard
        self._connection = shard.connection
        self._invalidation = invalidation
        self._trash = trash
        self.has_deleted = False  # whether a transaction has deleted rows that were in the way; a flush resets it
        self._expects_present = False  # most likely the next rows are there: then the cheaper UPDATE is tried alone

    # -- changing: `put`, `touch` and `delete` are steps of a commit (`invalidation.Commit`) --------------------------

    def put(
        self, home: int, tick: int, change: tuple[bytes, Row | bytes, bool], first: int | None = None
    ) -> Literal[True]:
        """Write the row of a stored key, or one that has nothing but a record.

        The third part of `change`: the key most likely has a row, so the cheaper UPDATE is tried first. `first`:
        the write that made the entry, if it is new, as a flush knows it; else that is this one.
        """
        number = tick if first is None else first
        # A flush may write a row for the second time, or give new metadata to a row that an earlier flush inserted.
        existed = first is not None and bool(self._connection.select(sql.SELECT_VERSIONED, (home, home + 3, change[0])))
        try:
            inserted = self._put(home, tick, change, number)
        except IntegrityError:
            self._put(home, tick, change, _ANY_NUMBER)
            self._catch_up()
            return True
        # The connection's last inserted number is this one only if the row is new.
        if inserted == number and not existed:
            self._invalidation.count(1)
        return True

    def _put(self, home: int, tick: int, change: tuple[bytes, Row | bytes, bool], number: int | None) -> int | None:
        """Do what `put` does for a row with this number, if it is new; return the number that was inserted last."""
        stored_key, row, known = change
        shard = self._shard
        displaced = shard.header[_DISPLACED]
        if type(row) is bytes:
            if not displaced:
                inserted = self._put_record(home, stored_key, row, tick, number, known)
                if inserted is not None:
                    return inserted
            row = Row(row)
        assert isinstance(row, Row)
        if row.expire is not None:
            self._expires_at(row.expire)
        self._trash.expect()  # for the file that the row may have had
        place = self._place(home, stored_key) if displaced else home
        if known and self._replace_value(place, stored_key, row, tick):
            return 0
        return self._put_columns(place, stored_key, row, tick, number)

    def _put_record(
        self, home: int, stored_key: bytes, packed: bytes, tick: int, number: int | None, known: bool
    ) -> int | None:
        """Write a record alone; return None if the place is another key's, or its row has more than a record.

        Else return as `_put` does.
        """
        connection = self._connection
        cursor = connection.cursor or connection.open_cursor()
        parameters = (tick, _blob(packed), home, _blob(stored_key))
        if known and cursor.execute(sql.UPDATE_RECORD, parameters).rowcount:
            return 0
        done = cursor.execute(sql.UPSERT_RECORD, (*parameters, number))
        return done.lastrowid if done.rowcount else None

    def _replace_value(self, place: int, stored_key: bytes, row: Row, tick: int) -> bool:
        """Replace record and expiry of a row whose other columns stay as they are; return False if they do not."""
        packed, expire, fresh, tags, *others = row
        if others != _ALONE:
            return False
        connection = self._connection
        execute = (connection.cursor or connection.open_cursor()).execute
        if expire is None:
            return execute(sql.UPDATE_LASTING, (tick, _blob(packed), place, _blob(stored_key), tags)).rowcount == 1
        parameters = (tick, _blob(packed), expire, fresh, place, _blob(stored_key), tags)
        return execute(sql.UPDATE_EXPIRING, parameters).rowcount == 1

    def _put_columns(
        self, place: int, stored_key: bytes, row: Row, tick: int, number: int | None, placed: bool = False
    ) -> int | None:
        """Write all columns of a row at a place; return as `_put` does.

        `placed`: the place was looked for already; if it is taken all the same, rows are not where they belong.
        """
        shard = self._shard
        packed, *columns = row
        done = self._connection.open().execute(
            sql.UPSERT, (place, _blob(stored_key), tick, *_bound(*columns), _blob(packed), number)
        )
        if done.rowcount:
            return done.lastrowid
        if placed:
            raise corrupt(f"{shard.path!r}: a row is found at a place that is free", shard.path)
        return self._put_columns(self._place(place & HOME, stored_key), stored_key, row, tick, number, placed=True)

    def put_many(self, rows: Sequence[Small]) -> bool:
        """Write rows without files, in order of insertion; of equal keys the last one stays.

        Returns False if some place is another key's: the caller writes each by itself then, in the same transaction.
        """
        if not rows:
            return True
        try:
            return self._put_many(rows)
        except StorageError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
        is_done = self._put_many([(*row[:4], _ANY_NUMBER, *row[5:]) for row in rows])
        self._catch_up()
        return is_done

    def put_small(self, row: Small) -> None:
        """Do what `put_many` does for one row, which may have another place than its hash."""
        version, packed, home, stored_key, number, *others = row
        expire, fresh, tags, *more = (None if each != each else each for each in others or _NO_COLUMNS)
        whole = Row(bytes(packed), expire, fresh, tags, 0, None, *more) if others else bytes(packed)
        self.put(home, version, (bytes(stored_key), whole, False), number)

    def _put_many(self, rows: Sequence[Small]) -> bool:
        execute_many = self._connection.execute_many
        full = [row for row in rows if len(row) == _ALL]
        expiries = [row[5] for row in full if row[5] == row[5]]
        if expiries:
            self._expires_at(min(expiries))
        tries = self._expects_present
        if tries and self._are_replaced(rows, full):
            return True
        self._trash.expect()
        first = 0 if rows[0][4] is _ANY_NUMBER else min(row[4] for row in rows)
        before = self._count_from(first)  # mostly none: they are there if an earlier flush was not noted
        done = 0 if full else execute_many(sql.UPSERT_RECORD, rows).rowcount
        if done < len(rows):
            done = execute_many(sql.UPSERT_SMALL, _whole(rows)).rowcount
        is_done = done == len(rows)
        added = self._count_from(first) - before
        self._invalidation.count(added)
        self._expects_present = not (added or tries)
        return is_done

    def _are_replaced(self, rows: Sequence[Small], full: Sequence[Small]) -> bool:
        """Replace records and expiries of rows that are most likely there; return False if any of them is not.

        A row that is not there, or differs in another column, stays as it is. `full`: the rows of more than a record.
        """
        execute_many = self._connection.execute_many
        if not full:
            done = execute_many(sql.UPDATE_RECORD, [row[:4] for row in rows])
        elif all(spelling != spelling and queue != queue for *_, spelling, queue, _ in full):  # NaN: it has neither
            parameters = [(row[0], row[1], row[5], row[6], row[2], row[3], row[7]) for row in _whole(rows)]
            done = execute_many(sql.UPDATE_EXPIRING, parameters)
        else:
            return False
        return done.rowcount == len(rows)

    def _count_from(self, number: int) -> int:
        """Return how many rows have this number or a higher one: no write of a row changes that of another."""
        ((count,),) = self._connection.select(sql.COUNT_FROM, (number,))
        return int(count)

    def _catch_up(self) -> None:
        """Let the next write be later than every row: another row has the number of this one.

        Damage may bring that about, or a count of writes that went back, as where the control files are older than
        the database. The number of entries is not known then.
        """
        header = self._shard.header
        header[_COUNT] = UNCOUNTED
        ((last,),) = self._connection.select(sql.LAST_NUMBER, (FARTHEST,))
        header[Header.TICK] = max(header[Header.TICK], last + 1)

    def _expires_at(self, expire: float) -> None:
        """Have entries that expire then removed in time."""
        header = self._shard.header
        header[_NEXT_EXPIRE] = min(header[_NEXT_EXPIRE], microseconds(expire))

    def touch(self, home: int, _: int, change: tuple[bytes, Touch]) -> bool:
        """Give the row of a stored key other metadata; return False if it has none."""
        stored_key, new = change
        if new.expire is not None:
            self._expires_at(new.expire)
        execute, place = self._connection.open().execute, self._found_place(home, stored_key)
        parameters = (new.expire, new.fresh, new.tags, new.packed, place, _blob(stored_key))
        return execute(sql.UPDATE_METADATA, parameters).rowcount > 0

    def delete(self, home: int, _: int, change: tuple[bytes, float]) -> bool:
        """Delete the row of a stored key; return whether it was live at the moment in `change`."""
        stored_key, now = change
        connection = self._connection
        cursor = connection.cursor or connection.open_cursor()
        self._trash.expect()
        if not cursor.execute(sql.DELETE, (self._found_place(home, stored_key), _blob(stored_key), now)).rowcount:
            self._remove_unsound(home, stored_key)
            return False
        self._invalidation.count(-1)
        return True

    def delete_all_of(self, home: int) -> None:
        """Delete the rows of all keys with a hash, where damage hides which of them is meant."""
        shard, txn = self._shard, self._connection.txn
        slot = home % shard.slot_prime
        shard.generations.begin({slot}, shard.generations.next_tick())  # no record said what is removed here
        if txn is not None:
            txn.touch(slot, home)
        self._trash.expect()
        execute = self._connection.execute
        self._invalidation.count(-sum(execute(sql.DELETE_H, (place,)).rowcount for place in range(home, home + 4)))

    # -- finding ------------------------------------------------------------------------------------------------------

    def find(self, home: int, stored_key: bytes, autocommit: bool) -> bytes | None:
        """Return the record of a key; remove rows in its way that belong to no key."""
        rows = self._probes(home)
        for _, key, packed in rows:
            if key == stored_key:
                return packed  # type: ignore[no-any-return]
        if rows:
            with self._invalidation.commit_many([home], autocommit):
                self._sound(rows)
        return None

    def present(self, places: Sequence[int]) -> set[int]:
        """Return those of the places that hold an entry."""
        select = self._connection.select
        return {home for batch in sql.batches(places) for (home,) in select(sql.SELECT_PRESENT, batch)}

    def _probes(self, home: int) -> list[Any]:
        rows = self._connection.select(sql.SELECT_PROBES, (home, home + 3))
        places_of(rows, self._shard.path)
        return rows

    def _found_place(self, home: int, stored_key: bytes) -> int:
        """Return the place of a key; its hash if it has no row."""
        if not self._shard.header[_DISPLACED]:
            return home
        return next((place for place, key, _ in self._probes(home) if key == stored_key), home)

    def _place(self, home: int, stored_key: bytes) -> int:
        """Return where the key lives or may live, evicting the first place if all four are taken; the slot is odd."""
        taken: dict[int, bytes] = {place: key for place, key, _ in self._sound(self._probes(home))}
        for place, key in taken.items():
            if key == stored_key:
                return place
        for place in range(home, home + 4):
            if place not in taken:
                if place != home:  # stored each time: an earlier note may have been rolled back
                    self._connection.put_setting("displaced", 1)
                    # Before the row is committed: readers look at all places from now on.
                    self._shard.header[_DISPLACED] = 1
                return place
        self._delete(home)
        return home

    def _remove_unsound(self, home: int, stored_key: bytes) -> None:
        """Remove what a deletion of a live entry left, which is expired or damaged; the slot is odd.

        A damaged column may call an entry expired whose record does not.
        """
        for place, key, _ in self._sound(self._probes(home)):
            if key == stored_key:
                self._delete(place)

    def _sound(self, rows: list[Any]) -> list[Any]:
        """Return the rows whose record belongs to their key, after removing the others; the slot is odd.

        If the key was changed on disk, a reader, who asks for the place alone, still finds the entry, but no write for
        its key would replace or remove it.
        """
        wrong = [place for place, key, packed in rows if not self._belongs(key, packed)]
        for place in wrong:
            self._delete(place)
        return [row for row in rows if row[0] not in wrong]

    def _delete(self, place: int) -> None:
        txn = self._connection.txn
        if txn is not None:  # where the write buffer is flushed the slot is not odd yet
            slot = (place & HOME) % self._shard.slot_prime
            self._shard.generations.begin([slot], self._shard.header[Header.TICK])
            txn.touch(slot, place)
            self.has_deleted = True
        self._invalidation.count(-self._connection.execute(sql.DELETE_H, (place,)).rowcount)

    def _belongs(self, key: bytes, packed: bytes) -> bool:
        disk = self._shard.disk
        try:
            if disk.sealer is not None:
                disk.sealer.open(key, packed)
            else:
                unpack(key, packed, disk.secret.verifier if disk.authenticates and disk.secret is not None else None)
        except SignatureError:
            return not disk.authenticates  # with another secret than the cache's it may be sound
        except DecodeError:
            return False
        return True
