"""Read a shard: every SELECT runs to its end on a connection of the pool, most of those of many rows after a flush."""

from __future__ import annotations

import errno
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, Literal

from ...coherence.generations import NEVER, UNCOUNTED, Header
from ...coherence.ring import Word, Written
from ...encoding import file_names, keys
from ...errors import CorruptDatabase, DecodeError, DirectoryError, KeyringError
from ...system.forks import token_word
from ..opening.identity import BUFFER_MARK
from ..opening.opener import mark_in
from ..sqlite import statements as sql
from ..sqlite.connection import FAILURES, PAGE_SIZE, Failure, corrupt, mapped, walked
from ..sqlite.reader_pool import ReaderPool
from ..sqlite.schema import MOVED_BACK
from .open_shard import OpenShard

PAGE_OF_ENTRIES = 512
ROUNDS = 100  # of looking for rows that were moved meanwhile, so that an iteration ends although others keep moving
_LOWEST = -NEVER - 1
_PLACE = itemgetter(0)
WALKED = 1 << 14  # bytes that wait, and that somebody goes through instead of flushing them
QUEUE_BOUND = 1 << 62  # of the numbers of a queue; what is beyond, or no number, was planted and is passed over
_EPOCH, _TICK, _BUFFER = Header.EPOCH, Header.TICK, Header.BUFFER  # for the hot path
# Statements that need no flush: about single keys, which are looked for in the write buffer before; about settings,
# which never wait; about the volume, which one shard asks of another while it holds its own lock, so that two would
# wait for each other; and about a file, since nothing that waits has one, and who asks may do so because the database
# cannot be written.
_WITHOUT_FLUSH = frozenset(
    {sql.SELECT_V, sql.SELECT_MANY, sql.SELECT_PROBES, sql.SELECT_VERSIONED, sql.SELECT_UNTIL, sql.SELECT_WHOLE}
    | {sql.SELECT_SETTING, sql.PAGE_COUNT, sql.FREE_PAGES, sql.FILE_TOTALS, sql.KNOWN_FILE}
)


class Reader:
    """Read one shard, on the pool or, within the caller's transaction, on the writing connection."""

    flush: Callable[[], None]  # flushes what waits in the write buffer; set by the store

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self._connection = shard.connection
        # Whether the database has a key, of those that were asked for since it was in a state.
        self._known: tuple[tuple[int, ...], dict[bytes, bool]] = (), {}
        self._gathered: tuple[tuple[int, ...], dict[bytes, Any]] = (), {}  # what waited in a state; nobody changes it

    def read(self, home: int, stored_key: bytes) -> bytes | None:
        """Return the record of a key, or one that lies at `home`; the caller calls `find` if that is another key's."""
        shard = self._shard
        if token_word[0] != shard.token or shard.header[_BUFFER] != shard.buffer:
            shard.reopen_if_replaced()
        if self._connection.txn is not None and self._is_in_transaction():
            return _first(*self._connection.select(sql.SELECT_V, (home,)))
        ring, pool = shard.ring, shard.pool
        if ring is not None:
            packed = ring.read(home, stored_key)
            if type(packed) is bytes:
                return packed
            if packed is True:
                return None
            found = None if packed is None else self._waiting(home, stored_key)  # where it is closed, or damaged
            if found is not None:
                return found.packed
        # After the look into the ring: what waited there may have gone to the next database meanwhile, to which another
        # thread may have gone, too.
        if shard.header[_EPOCH] != shard.epoch or shard.pool is not pool:
            return self.find(home, stored_key)
        return self._row_at(home, pool)

    def _row_at(self, home: int, pool: ReaderPool) -> bytes | None:
        try:
            cursor = pool.free.pop()
        except IndexError:
            try:
                cursor = pool.take()
            except FAILURES as error:
                return self._read_again(home, error, pool.path)
        try:
            row = cursor.execute(sql.SELECT_V, (home,)).fetchone()
        except FAILURES as error:
            pool.discard(cursor)
            return self._read_again(home, error, pool.path)
        except BaseException:
            pool.discard(cursor)
            raise
        pool.free.append(cursor)
        if pool.watched:
            pool.settle()
        return _first(row)

    def _read_again(self, home: int, error: Failure, path: str) -> bytes | None:
        """Do what `read` does once more if the corrupt database is replaced, or can be read after all.

        `path` is the database that was read: another thread may have replaced it by now.
        """
        problem = mapped(error, path, reads=True)
        if not isinstance(problem, CorruptDatabase) or not self._shard.recover(problem):
            raise problem from error
        return _first(*self._select(sql.SELECT_V, (home,)))

    def select(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end on a reader, or on the writer within the caller's transaction."""
        return self._retrying(partial(self._select, statement, parameters))

    def _retrying(self, read: Callable[[], list[Any]]) -> list[Any]:
        """Read, and once more if the corrupt database is replaced, or can be read after all."""
        try:
            return read()
        except CorruptDatabase as problem:
            if not self._shard.recover(problem):
                raise
        return read()

    def _select(self, statement: str, parameters: Sequence[object], flushes: bool = True) -> list[Any]:
        shard = self._shard
        shard.reopen_if_replaced()
        if flushes and shard.ring is not None and statement not in _WITHOUT_FLUSH:
            self.flush()
        if self._is_in_transaction():
            return self._connection.select(statement, parameters)
        pool, cursor = shard.pool, None
        try:
            cursor = pool.take()
            if statement in sql.WALKS:
                rows = walked(cursor.connection, pool.path, statement, parameters)
            else:
                rows = cursor.execute(statement, parameters).fetchall()
        except BaseException as error:
            if cursor is not None:
                pool.discard(cursor)
            if isinstance(error, FAILURES):
                raise mapped(error, pool.path, reads=True) from error
            raise
        pool.give(cursor)
        return rows

    def pages(self, statement: str, size: int) -> Iterator[list[Any]]:
        """Yield pages of `size` rows in order of their places; no read transaction stays open between them."""
        position = -inf
        while rows := self._select_placed(statement, (position, size), _beyond(position)):
            position = rows[-1][0]
            yield rows

    def _select_placed(
        self,
        statement: str,
        parameters: Sequence[object],
        is_ahead: Callable[[Sequence[Any]], bool] | None = None,
        flushes: bool = True,
    ) -> list[Any]:
        """Do `select` for rows that begin with their place; quarantine the database if one has none.

        `is_ahead`: also if the last row is not ahead of the page before, since such pages would be read for ever.
        """

        def read() -> list[Any]:
            rows, path = self._select(statement, parameters, flushes), self._shard.path
            places_of(rows, path)
            if is_ahead is not None and rows and not is_ahead(rows[-1]):
                raise corrupt(f"{path!r}: rows are not in their order", path)
            return rows

        return self._retrying(read)

    def find(self, home: int, stored_key: bytes) -> bytes | None:
        """Return the record of the key, looking at every place that a hash collision may have sent it to."""
        found = self.buffered(home, stored_key)
        return (
            found.packed
            if found is not None
            else own_or_other(self.select(sql.SELECT_PROBES, (home, home + 3)), stored_key)[0]
        )

    def read_versioned(self, home: int, stored_key: bytes) -> tuple[bytes | None, int]:
        """Return the record of the key and the version of its row; None and 0 for no row."""
        found = self.buffered(home, stored_key)
        if found is not None:
            return found.packed, 0 if found.packed is None else found.tick
        for packed, version in self.select(sql.SELECT_VERSIONED, (home, home + 3, stored_key)):
            return packed, version if type(version) is int else 0
        return None, 0

    def read_many(self, keys: Sequence[tuple[int, bytes]]) -> dict[int, bytes]:
        """Return the records of keys, or at their hashes, that exist, `MANY` per statement."""
        self._shard.reopen_if_replaced()
        ring = None if self._connection.txn is not None and self._is_in_transaction() else self._shard.ring
        places: list[int] = []
        waiting: list[tuple[int, bytes | Literal[True]]] = []
        for home, stored_key in keys:
            packed = None if ring is None else ring.read(home, stored_key)
            if packed is False:
                packed = self._unclear(home, stored_key)
            if packed is None:
                places.append(home)
            else:
                waiting.append((home, packed))
        found: dict[int, bytes] = {}
        for batch in sql.batches(sorted(places)):  # so that a statement finds many of its keys in one page of the index
            found.update(self.select(sql.SELECT_MANY, batch))
        for home, packed in waiting:
            if packed is not True:
                found[home] = packed
            elif home in found:  # another key has this hash: no record, so that each is looked for
                found[home] = b""
        return found

    def _unclear(self, home: int, stored_key: bytes) -> bytes | Literal[True] | None:
        """Return what `Ring.read` would return of a key, had it not met a closed ring, a commit under way or damage."""
        found = self._waiting(home, stored_key)
        return None if found is None else True if found.packed is None else found.packed

    def buffered(self, home: int, stored_key: bytes) -> Written | None:
        """Return what the write buffer has of a key; nothing within the caller's transaction, which has all of it."""
        self._shard.reopen_if_replaced()
        if self._connection.txn is not None and self._is_in_transaction():
            return None
        return self._waiting(home, stored_key)

    def _waiting(self, home: int, stored_key: bytes) -> Written | None:
        """Return what the write buffer has of a key, unless a commit under way has brought that into the database."""
        shard = self._shard
        ring = shard.ring
        if ring is None:
            return None
        carrying = ring.words[Word.CARRYING]  # before the walk
        found = shard.buffered(home, stored_key)
        if found is None or not carrying:
            return found
        mark = mark_in(self.select(sql.SELECT_SETTING, (BUFFER_MARK,)))
        return None if mark is not None and mark.flushed >= carrying else found

    def _is_in_transaction(self) -> bool:
        """Tell whether a read belongs to the transaction that is open.

        It does not if a signal handler has interrupted a flush, whose transaction lacks what waits.
        """
        txn, ring = self._connection.callers_transaction(), self._shard.ring
        return txn is not None and (txn.entered or txn.carried is not None or ring is None or not ring.waiting())

    def scan(self, reverse: bool = False) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Return an iterator of (place, stored key, original key) in order of insertion.

        What is inserted later is left out, and what is removed meanwhile as well, from the next page on. If more than a
        little waits in the write buffer, it is flushed first. No read transaction stays open between pages.
        """
        header = self._shard.present_header()
        net = self._waiting_or_flushed()
        last = min(header[_TICK], NEVER)  # more is damage, and too much for SQLite to compare
        return self._in_order(reverse, last, net, self._inserted(net, last))

    def _in_order(
        self, reverse: bool, last: int, net: dict[bytes, Any], waiting: dict[bytes, Any]
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        if reverse:
            yield from (row[:3] for _, row in sorted(waiting.values(), reverse=True))
        for rows in self._pages_in_order(reverse, last):
            for place, number, key, original in rows:
                if key in net and not _is_row_of(net[key], number):
                    continue  # it is removed by now
                # One that waited and was flushed meanwhile comes from here, unless it had its turn before.
                if key not in waiting or (waiting.pop(key) and not reverse):
                    yield place, key, original
            net = self._waiting_or_flushed()
        if not reverse:
            removed = {key for key, (_, _, _, what, _) in net.items() if what is None}
            yield from (row[:3] for _, row in sorted(waiting.values()) if row[1] not in removed)

    def _pages_in_order(self, reverse: bool, last: int) -> Iterator[list[Any]]:
        """Yield the rows in the order of their numbers up to `last`, page by page, and each entry once.

        Eviction may move rows meanwhile, behind all others with negative numbers. When everything was read, that end is
        read again for rows that were moved before they were seen; one that was seen is left out there. What is moved
        meanwhile gets a higher number than any that was given before the last release of the lock.
        """
        # The words are not kept: a paused iterator would keep their file mapped after the cache is closed.
        before = self._shard.present_header()[Header.SETTLED] - MOVED_BACK
        seen, there = array("q"), set[int]()

        def unseen(rows: list[Any]) -> list[Any]:
            if self._shard.evicts:
                if _has_moved(rows) and any(before < row[1] < 0 for row in rows):
                    there.update(seen[len(there) :])
                    rows = [row for row in rows if not before < row[1] < 0 or row[0] not in there]
                seen.extend(map(_PLACE, rows))
            return rows

        moved, top = (_LOWEST, -1), _LOWEST
        for low, high in ((0, last), moved) if reverse else (moved, (0, last)):
            for rows in self._range_in_order(reverse, low, high):
                if _has_moved(rows):
                    top = max([top, *(row[1] for row in rows if row[1] < 0)])
                yield unseen(rows)
        for _ in range(ROUNDS):
            reached = top
            end = min(self._shard.present_header()[_TICK], NEVER) - MOVED_BACK
            for rows in self._range_in_order(False, top + 1, end):
                top = rows[-1][1]
                yield unseen(rows)
            if top == reached:
                break

    def _range_in_order(self, reverse: bool, low: int, high: int) -> Iterator[list[Any]]:
        statement = sql.IN_REVERSE if reverse else sql.IN_ORDER
        while low <= high and (
            rows := self._select_placed(statement, (low, high, sql.MANY), _within(low, high), flushes=False)
        ):
            yield rows
            reached = rows[-1][1]
            low, high = (low, reached - 1) if reverse else (reached + 1, high)

    def end(self, last: bool, skip: int = 0) -> tuple[int, bytes, bytes | None, bytes] | None:
        """Return (place, stored key, original key, record) of the entry inserted last, or first, behind `skip` others.

        The caller has a transaction open.
        """
        rows = self._select_placed(sql.LAST if last else sql.FIRST, (1, skip))
        return rows[0] if rows else None

    def end_alone(self, last: bool) -> tuple[int, tuple[int, bytes, bytes | None, bytes] | None] | None:
        """Return what `end` does, without the lock and a flush, as `queue_end_alone` does."""
        seen = self._waiting_little()
        if seen is None:
            return None
        tick, net = seen
        waiting = self._inserted(net, tick).values()
        found = max(waiting)[1] if waiting and last else None  # it is behind all rows
        if found is None:
            rows = self._select_placed(sql.LAST if last else sql.FIRST, (1 + len(net), 0), flushes=False)
            found = next((row for row in rows if row[1] not in net or _is_row_of(net[row[1]])), None)
            if found is not None and found[1] in net:
                found = (*found[:2], *_original_and_record(net[found[1]][3]))
            elif found is None and waiting:
                found = min(waiting)[1]
        return (tick + 1, found) if self._shard.header[_TICK] == tick else None

    def _inserted(self, net: dict[bytes, Any], tick: int) -> dict[bytes, Any]:
        """Return the entries that wait and are not in the database, which they are all behind, with their numbers."""
        live = {key: seen for key, seen in net.items() if seen[3] is not None}
        there = self._present({key: seen for key, seen in live.items() if not seen[4]}, tick)
        return {
            key: (number, (home, key, *_original_and_record(what)))
            for key, (number, _, home, what, _) in live.items()
            if key not in there
        }

    def places(self, after: int | None = None) -> Iterator[int]:
        """Yield all places in order, behind `after`, page by page."""
        yield from self._placed(sql.PAGE_PLACES, (), after)

    def begun(self, start: str, after: int | None = None) -> Iterator[int]:
        """Yield, like `places`, those of all keys that are text which begins so, and of a few others."""
        encoded = start.encode("utf-8", "surrogatepass")
        yield from self._placed(sql.PAGE_BEGUN, (len(encoded) + 4, encoded), after)

    def tagged(self, name: str, others: Sequence[str], after: int | None = None) -> Iterator[int]:
        """Yield the places that the index has for one tag and for all of the others, in order, page by page."""
        yield from self._placed(sql.PAGE_TAGGED, (name, json.dumps(others)), after)

    def _placed(self, statement: str, parameters: tuple[object, ...], after: int | None) -> Iterator[int]:
        position = -inf if after is None else after
        while rows := self._select_placed(statement, (*parameters, position, PAGE_OF_ENTRIES), _beyond(position)):
            position = rows[-1][0]
            yield from (place for (place,) in rows)

    def count_tagged(self, name: str) -> int:
        """Return the number of entries, expired ones among them, that the index has for a tag."""
        return int(self.select(sql.COUNT_TAGGED, (name, -1))[0][0])

    def smallest_first(self, names: Sequence[str]) -> list[str]:
        """Return the names of tags, that with the fewest entries first, at the price of counting these, or double."""
        most = 64
        while True:
            counts = {name: self.select(sql.COUNT_TAGGED, (name, most))[0][0] for name in names}
            if min(counts.values()) < most:
                return sorted(names, key=counts.__getitem__)
            most *= 2

    def tagged_places(self, except_for: str) -> list[int]:
        """Return the places that the index has for any tag, in order, but for names of tags that match a GLOB."""
        return [place for (place,) in self._select_placed(sql.TAGGED_PLACES, (except_for,))]

    def rows_at(self, places: Sequence[int]) -> Iterator[tuple[int, Any, Any, Any]]:
        """Yield (place, stored key, original key, record) of the rows at some places, in their order."""
        for batch in sql.batches(places):
            yield from sorted(self._select_placed(sql.SELECT_RECORDS, batch), key=_PLACE)

    def queue_end(self, queue: bytes, last: bool, skip: int = 0) -> tuple[bytes, int, int, bytes] | None:
        """Return (stored key, number, place, record) at one end of a queue, behind `skip` others."""
        rows = self.queue_page(queue, last, -QUEUE_BOUND, QUEUE_BOUND, 1, skip)
        return (rows[0][1], rows[0][2], rows[0][0], rows[0][3]) if rows else None

    def queue_end_alone(
        self, queue: bytes, key_start: bytes, last: bool
    ) -> tuple[int, tuple[bytes, int, int, bytes] | None] | None:
        """Return what `queue_end` does, without the lock and a flush, and the number of the write that may follow it.

        If that is the next write, nothing was written since the look. None where only a look under the lock can tell.
        `key_start`: how the keys of the queue begin.
        """
        seen = self._waiting_little()
        if seen is None:
            return None
        tick, net = seen
        found, removed, size = list[tuple[bytes, int, int, bytes]](), 0, len(key_start) + 8
        for key, (_, _, home, what, _) in net.items():
            if len(key) == size and key.startswith(key_start):
                if what is None:
                    removed += 1  # and the database may still have it
                else:
                    found.append((key, keys.queue_number(key), home, _original_and_record(what)[1]))
        page = (queue, -QUEUE_BOUND, QUEUE_BOUND, 1 + removed, 0)
        rows = self._select_placed(sql.QUEUE_BACKWARD if last else sql.QUEUE_FORWARD, page, flushes=False)
        found += [(key, number, place, packed) for place, key, number, packed in rows if key not in net]
        if self._shard.header[_TICK] != tick:  # which comes before any other change
            return None
        return tick + 1, (max if last else min)(found, key=itemgetter(1), default=None)

    def count_alone(self) -> int | None:
        """Return the number of entries without the lock and a flush; None where only a look under the lock can tell."""
        header, seen = self._shard.header, self._waiting_little()
        if seen is None:
            return None
        number, (tick, net) = header[Header.COUNT], seen  # the count after the tick, which changes before it
        if number == UNCOUNTED:
            return None
        there = self._present(net, tick)
        number += sum((what is not None) - (key in there) for key, (_, _, _, what, _) in net.items())
        return number if header[_TICK] == tick else None

    def _present(self, net: dict[bytes, Any], tick: int) -> set[bytes]:
        """Return those of the keys that wait which the database has; they waited at this tick.

        What it answers is remembered if they waited all the time. From then on whatever changes the rows of the
        database moves FLUSHED, which never comes back, or, if its writer is killed, makes the count unknown.
        """
        shard = self._shard
        header, ring = shard.header, shard.ring
        if not net or ring is None:
            return set()
        state = shard.epoch, shard.buffer, ring.words[Word.FLUSHED], header[Header.COUNT]
        since, known = self._known
        known = known if since == state else {}
        asked = {key: home for key, (_, _, home, _, _) in net.items() if key not in known}
        if len(asked) == 1:  # as for each entry that is taken just after it was stored; twice as fast as with a page
            ((key, home),) = asked.items()
            there = {key: any(is_own for is_own, _ in self._select(sql.SELECT_UNTIL, (key, home, home + 3)))}
        else:
            pages = (self._select(sql.SELECT_KEYS, page, flushes=False) for page in sql.batches([*asked.values()]))
            found = {key for rows in pages for _, key, _ in rows}
            there = {key: key in found for key in asked}
        known = known | there
        if header[_TICK] == tick and state[-1] != UNCOUNTED:
            self._known = state, known
        return {key for key in net if known[key]}

    def _waiting_or_flushed(self) -> dict[bytes, Any]:
        """Return what waits, if that is little; else flush it, and return nothing."""
        seen = self._waiting_little()
        if seen is None:
            self.flush()
            return {}
        return seen[1]

    def _waiting_little(self) -> tuple[int, dict[bytes, Any]] | None:
        """Return the number of the last write, and what waits, if that is little and no write is under way.

        What is read of the database after it belongs to the same moment if that number is still the same then: a write,
        and a flush, stores its number before it changes anything else. Needs no lock.
        """
        shard = self._shard
        ring, header = shard.ring, shard.header
        tick = header[_TICK]
        if (
            ring is None
            or shard.disk.sealer is not None  # else a key tells its queue
            or header[Header.DISPLACED]
            or self._connection.txn is not None
            or header[Header.SETTLED] != tick
            or ring.words[Word.CARRYING]
            or ring.waiting() > WALKED
            or not shard.is_current()
        ):
            return None
        state, gathered = (shard.epoch, shard.buffer, tick), self._gathered
        if gathered[0] != state:  # what waits at this tick: whoever changes it stores a new tick first
            try:
                net, _ = ring.gather(WALKED)  # keys: there are fewer than bytes
            except DecodeError:
                return None
            # A damaged record may be about any key of its hash. The shard may have been closed and opened meanwhile.
            if int in map(type, net) or shard.ring is not ring or shard.header is not header:
                return None
            self._gathered = gathered = state, net  # type: ignore[assignment]
        return tick, gathered[1]

    def queue_page(
        self, queue: bytes, last: bool, low: int, high: int, limit: int, skip: int = 0
    ) -> list[tuple[int, bytes, int, bytes]]:
        """Return (place, stored key, number, record) of items numbered `low` to `high`, from one end of a queue."""
        return self._select_placed(sql.QUEUE_BACKWARD if last else sql.QUEUE_FORWARD, (queue, low, high, limit, skip))

    def refers_to(self, file: str) -> bool:
        """Tell whether an entry, or the trash, has this value file, or may have it after the next opening."""
        return self.refers_to_column(file_names.to_column(file))

    def refers_to_column(self, column: object) -> bool:
        """Do the same for a file as rows spell it."""
        connection = self._shard.connection
        if connection.in_doubt and connection.disk_failed:  # a commit in the WAL may refer to it
            return True
        try:
            return bool(self.select(sql.KNOWN_FILE, (column, column)))
        except (KeyringError, DirectoryError) as error:
            if isinstance(error, DirectoryError) and error.errno != errno.ESTALE:
                raise
            return False  # the handle cannot follow to the next database, or cache, which has no row for it

    def volume(self, trash: bool = True) -> int:
        """Return the bytes in use: database pages that hold something, value and control files, and the `trash`.

        What waits in the write buffer is not among them, and no lock is taken.
        """
        used, trashed = usage(self._shard, self.select)
        return used + trashed if trash else used


def _first(row: Sequence[Any] | None = None) -> bytes | None:
    """Return the record that is all of a row; None for no row."""
    return None if row is None else row[0]  # whoever unpacks it refuses what is no BLOB


def _beyond(position: float) -> Callable[[Sequence[Any]], bool]:
    """Return what tells whether the place of a row is beyond a position."""
    return lambda row: row[0] > position


def _within(low: int, high: int) -> Callable[[Sequence[Any]], bool]:
    """Return what tells whether the number of a row is within a range."""
    return lambda row: low <= row[1] <= high


def _original_and_record(what: Any) -> tuple[bytes | None, bytes]:
    """Return the original key and the record of a row that waits."""
    original = what[8] if len(what) > 8 else None
    return bytes(original) if isinstance(original, bytearray) else None, bytes(what[1])


def _has_moved(rows: Sequence[tuple[int, int, bytes, bytes | None]]) -> bool:
    """Tell whether any of these rows, which are sorted by their numbers, was moved."""
    return rows[0][1] < 0 or rows[-1][1] < 0


def _is_row_of(net: Any, number: int = 0) -> bool:
    """Tell whether an entry that waits keeps the place of its row, which the write with this number inserted."""
    first, _, _, what, is_removed = net
    return what is not None and (not is_removed or number == first)


def own_or_other(rows: Sequence[Sequence[Any]], stored_key: bytes) -> tuple[bytes | None, bool]:
    """Return the record of a key among the rows of its places; if it has none, None and whether there are rows."""
    for _, key, packed in rows:
        if key == stored_key:
            return packed, False  # whoever unpacks it refuses what is no BLOB
    return None, bool(rows)


def usage(shard: OpenShard, select: Callable[[str], list[Any]]) -> tuple[int, int]:
    """Return the bytes in database pages, value and control files, and those in the trash, as `select` sees them."""
    ((pages,),) = select(sql.PAGE_COUNT)
    ((free,),) = select(sql.FREE_PAGES)
    ((file_bytes, trash),) = select(sql.FILE_TOTALS)
    return (int(pages) - int(free)) * PAGE_SIZE + int(file_bytes) + shard.control_bytes, int(trash)


def places_of(rows: Sequence[Sequence[Any]], path: str) -> list[int]:
    """Return the places of rows, their first column; raise CorruptDatabase if one is no number.

    SQLite lets a column hold any type; because of a constraint, its integrity check reports such a row.
    """
    found = [row[0] for row in rows]
    if not set(map(type, found)) <= {int}:
        raise corrupt(f"{path!r}: a row has no number for its place", path)
    return found
