"""A store reads and writes one shard: a database, its generations, its write lock and its value files.

The store is narrow: `read`, `read_many`, `upsert`, `compute`, `remove`, `scan`, `transaction`, `totals`, `close` and
the batches in `room` and `check`. What the operations of a cache mean is decided above it.

Locks. `self.lock` (thread lock, then flock) is held round every commit, checkpoint and closing of a connection; it
guards the writer connection, `self.txn`, and every word of the generation file except the use marks. Slots are odd
from before a commit until after it, under the same lock, so a reader that sees the same even number before and after
its SELECT has read the newest committed entry (docs/design.md, "Coherence").
"""

from __future__ import annotations

import contextlib
import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Never

from ..coherence import native
from ..coherence.forks import process_token, token_word
from ..coherence.generations import UNKNOWN, GenerationFile, Header
from ..coherence.lock import WriteLock
from ..disk import Disk
from ..errors import CorruptDatabase, DiskFull, Timeout
from ..policies import policy_named
from ..settings import DURABILITY, HANDLE_ONLY, checked
from . import opening, room, schema
from . import statements as sql
from .connection import ReaderPool, connect, mapped
from .transaction import ALL_SLOTS, Transaction

PAGE = 4096
WRITE_COST = 2 * PAGE  # bytes that the WAL grows by for a write, beside what is written
_EPOCH, _TICK, _MARK, _WRITTEN = Header.EPOCH, Header.TICK, Header.MARK, Header.WRITTEN  # for the hot paths
_DISPLACED, _NEXT_EXPIRE, _FILES = Header.DISPLACED, Header.NEXT_EXPIRE, Header.FILES
_COUNT, _SETTLED = Header.COUNT, Header.SETTLED
NO_EXPIRE = (1 << 63) - 1  # NEXT_EXPIRE when nothing expires
HOME = ~3  # mask from the place of an entry to the hash of its key, which decides the slot (schema: multiples of four)
PAGE_OF_ENTRIES = 512  # rows read per page of an iteration


class Row(NamedTuple):
    """What one entry puts into the columns of its row."""

    v: bytes
    expire: float | None = None
    tag: bytes | None = None
    size: int = 0
    file: bytes | str | None = None
    spelling: bytes | None = None
    queue: bytes | None = None
    num: int | None = None


class Found(NamedTuple):
    """A row found by position rather than by key."""

    h: int
    stored: bytes
    spelling: bytes | None
    v: bytes
    num: int | None = None


class Remove:
    """What a `decide` function returns to have the entry removed; `REMOVE` is the one instance."""


REMOVE = Remove()


class Touch(NamedTuple):
    """What a `decide` function returns to change nothing but the expiry."""

    expire: float | None
    v: bytes


Change = bytes | Row | Touch | Remove | None
Decide = Callable[[bytes | None], Change]


def microseconds(expire: float) -> int:
    """Return an expiry as the header holds it: microseconds since 1970, below `NO_EXPIRE`."""
    return int(max(0.0, min(expire, 9e12)) * 1e6)


class Store:
    """Read and write one shard."""

    def __init__(self, directory: str, config: opening.Config) -> None:
        self.directory = directory
        self.config = config
        self.settings: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.policy = policy_named("none")
        self.has_rank_index = False
        self.doomed: list[object] = []  # columns of trashed files to unlink after the lock is released
        self.unlinked: set[object] = set()  # columns of trashed files that are unlinked; their rows go next round
        self.txn: Transaction | None = None
        self.slot_prime = 1
        self.disk: Disk  # set by the shards once the settings are known
        self._token = 0  # of the process that opened; 0 when closed
        self._writer: sqlite3.Connection | None = None
        self.lock: WriteLock
        self.open()

    # -- opening and closing --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the shard, creating or repairing what has to be; waits for the write lock only in those cases."""
        with opening.mutex():
            if self._token == process_token():
                return  # another thread was first
            if self._token:
                self._abandon()
            self.lock = opening.new_lock(self.directory, self.config)
            try:
                self._load()
            except BaseException:
                self.lock.close()
                raise
            self._token = process_token()

    def _load(self) -> None:
        opened = opening.open_shard(self)
        self.generations: GenerationFile = opened.generations
        self.settings = opened.settings
        self.identity = opened.identity
        self.policy = policy_named(self.settings["eviction_policy"])
        # The rowid that the writer inserted last. SQLite tells an insert from an update by nothing else: after an upsert
        # of `h` it is another than before exactly if `h` was inserted, unless it was `h` before, where we have to look.
        self._inserted = 0
        self._cursor: sqlite3.Cursor | None = None  # of the writer, for the statement that matters most
        self._special = self.policy.marks_frequency  # rows need more than the plain upsert writes
        self.has_rank_index = self._has_seq_index = False
        self.path = opened.path
        self.slot_prime = opening.prime_below(len(opened.generations.slots))
        self._pool = ReaderPool(self.path, self.settings, self.config.timeout, opened.connection)
        self._writer = None
        self.header = opened.generations.header
        self.slots = opened.generations.slots
        self.uses = opened.generations.uses
        self.epoch = opened.epoch

    def _abandon(self) -> None:
        """Forget, without closing, all that a forked child inherited: closing would act on the parent's locks."""
        opening.keep_for_ever(self._pool.connections(), self._writer)
        self.lock.abandon()
        self._writer = self._cursor = None
        self.txn = None
        self._token = 0

    def ready(self) -> None:
        """Reopen after `close`, and after a fork in the child; otherwise do nothing."""
        if self._token != process_token():
            self.open()

    def close(self, timeout: float | None = None) -> None:
        """Close every connection under the write lock, since the last one to close checkpoints."""
        if self._token == 0:
            return
        if self._token != process_token():
            self._abandon()
            return
        self.lock.acquire(timeout)
        try:
            room.flush_trash(self, everything=False)
            self._close_connections()
        finally:
            self.lock.release()
        self.lock.close()
        self.generations.close()
        self.header = self.slots = self.uses = CLOSED  # a reader on its way finds odd slots and another epoch
        self._token = 0

    def close_soon(self) -> None:
        """Close if the lock is free now; else keep the connections open until the process ends.

        For caches dropped without `close`: this may run in the garbage collector, under any lock of this thread.
        """
        try:
            self.close(0)
        except Timeout:
            opening.keep_for_ever(self._pool.connections(), self._writer)

    def attach_lock(self, generations: GenerationFile) -> None:
        """Let waiters on the write lock be woken through the header, where the helper is there."""
        self.lock.attach(generations.header, native.load())

    def _close_connections(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._cursor = None
        self._pool.close()

    def follow(self) -> None:
        """Go to the database that the generation file names now, after another process set the old one aside.

        The old connections are closed by nobody but us and to a file nobody else writes any more.
        """
        with opening.mutex():
            if self.header[Header.EPOCH] != self.epoch:
                self._close_connections()
                self.generations.close()
                self._load()

    @property
    def writer(self) -> sqlite3.Connection:
        """Return the writing connection; the caller holds the write lock."""
        return self._writer or self._open_writer()

    def _open_writer(self) -> sqlite3.Connection:
        try:
            self._writer = connect(self.path, self.settings, self.config.timeout)
            self._inserted = 0
            self._cursor = None
        except sqlite3.Error as error:
            self.failed(error)
        return self._writer

    def _open_cursor(self) -> sqlite3.Cursor:
        self._cursor = cursor = self.writer.cursor()
        return cursor

    @property
    def limit(self) -> int:
        """Return the bytes that this shard may use: its even share of `size_limit`."""
        return int(self.settings["size_limit"]) // int(self.identity.get("shards", 1))

    def slot_of(self, h: int) -> int:
        """Return the generation slot of a key hash; modulo a prime, since short keys have regular hashes."""
        return h % self.slot_prime

    def now(self) -> float:
        """Return the present time in seconds since the Unix epoch, from the configured clock."""
        return self.config.clock()

    # -- the lock -------------------------------------------------------------------------------------------------

    def enter(self, timeout: float | None) -> bool:
        """Take the write lock; return False when the calling task's own transaction already holds it."""
        if token_word[0] != self._token:
            self.open()
        if self.txn is not None and self.txn.is_callers():
            return False
        self.lock.acquire(timeout)
        header = self.header
        if (
            header[_SETTLED] != header[_TICK]
            or header[_NEXT_EXPIRE] != NO_EXPIRE
            or header[_EPOCH] != self.epoch
            or self.config.on_write is not None
        ):
            return self._enter_slowly(timeout)
        return True

    def _enter_slowly(self, timeout: float | None) -> bool:
        """Do what has to be done on getting the lock, before a write; the lock is held."""
        if self.header[_EPOCH] != self.epoch:
            self.lock.release()
            self.follow()
            return self.enter(timeout)
        try:
            if self.header[_SETTLED] != self.header[_TICK]:
                self.generations.recover()
                self.header[_COUNT] = UNKNOWN  # the last holder died between its commit and the count
                self.header[_SETTLED] = self.header[_TICK]
            if self.header[_NEXT_EXPIRE] != NO_EXPIRE:
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

    def failed(self, error: sqlite3.Error) -> Never:
        """Raise the package's error for an error of SQLite."""
        raise mapped(error, self.path) from error

    def recovered(self, error: CorruptDatabase) -> bool:
        """Set a corrupt database aside if so configured; tell whether the operation may be tried again.

        Not within a transaction, which has to end with the error first. The caller does not hold the lock.
        """
        if not self.config.recover or (self.txn is not None and self.txn.reads_here()):
            return False
        opening.set_aside(self, error)
        return True

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, h: int) -> bytes | None:
        """Return the record at `h`; the caller verifies that it belongs to its key and calls `find` if not."""
        if token_word[0] != self._token:
            self.open()
        if self.header[_EPOCH] != self.epoch:
            self.follow()
        if self.txn is not None and self.txn.reads_here():
            rows = self.select_writer(sql.SELECT_V, (h,))
            return rows[0][0] if rows else None
        pool = self._pool
        try:
            cursor = pool.free.pop()
        except IndexError:
            cursor = pool.take()
        try:
            row = cursor.execute(sql.SELECT_V, (h,)).fetchone()
        except sqlite3.Error as error:
            pool.discard(cursor)
            self._read_failed(error)
            return None
        except BaseException:
            pool.discard(cursor)
            raise
        pool.free.append(cursor)
        if pool.watched:
            pool.settle()
        return None if row is None else row[0]

    def _read_failed(self, error: sqlite3.Error) -> None:
        """Return only if the database was corrupt and is replaced: its entries then read as missing."""
        problem = mapped(error, self.path)
        if not isinstance(problem, CorruptDatabase) or not self.recovered(problem):
            raise problem from error

    def select(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end on a reader, or on the writer within the caller's transaction."""
        self.ready()
        if self.header[Header.EPOCH] != self.epoch:
            self.follow()
        if self.txn is not None and self.txn.reads_here():
            return self.select_writer(statement, parameters)
        pool = self._pool
        cursor = pool.take()
        try:
            rows = cursor.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            pool.discard(cursor)
            self._read_failed(error)
            return self.select(statement, parameters)
        except BaseException:
            pool.discard(cursor)
            raise
        pool.give(cursor)
        return rows

    def select_writer(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end on the writing connection; the caller holds the write lock."""
        try:
            return self.writer.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            self.failed(error)

    def find(self, h: int, stored: bytes) -> bytes | None:
        """Return the record of the key, looking at every place that a hash collision may have sent it to."""
        for _, key, v in self.select(sql.SELECT_PROBES, (h,)):
            if key == stored:
                return bytes(v)
        return None

    def read_many(self, hashes: Sequence[int]) -> dict[int, bytes]:
        """Return the records at `hashes` that exist, `MANY` per statement."""
        found: dict[int, bytes] = {}
        for start in range(0, len(hashes), sql.MANY):
            batch = list(hashes[start : start + sql.MANY])
            batch += batch[-1:] * (sql.MANY - len(batch))
            found.update(self.select(sql.SELECT_MANY, batch))
        return found

    def scan(self, reverse: bool = False) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield (h, stored key, spelling) in order of insertion, without what is inserted after the start.

        The places (8 bytes each) are read at once, the rows in pages as the iteration comes to them, so that no read
        transaction stays open between steps. What is removed meanwhile is left out.
        """
        order = sql.IN_REVERSE if reverse else sql.IN_ORDER
        places = array("q", (h for (h,) in self.select(order, (self.header[_TICK],))))
        for start in range(0, len(places), sql.MANY):
            page = list(places[start : start + sql.MANY])
            padded = page + page[-1:] * (sql.MANY - len(page))
            rows = {h: (stored, spelling) for h, stored, spelling in self.select(sql.SELECT_KEYS, padded)}
            for h in page:
                if h in rows:
                    yield h, *rows[h]

    def queue_end(self, queue: bytes, last: bool) -> tuple[bytes, int, int, bytes] | None:
        """Return (stored key, number, place, record) at one end of a queue."""
        rows = self.select(sql.QUEUE_LAST if last else sql.QUEUE_FIRST, (queue,))
        return (rows[0][1], rows[0][2], rows[0][0], rows[0][3]) if rows else None

    def end(self, last: bool) -> tuple[int, bytes, bytes | None, bytes] | None:
        """Return (place, stored key, spelling, record) of the entry inserted last, or first.

        The caller has a transaction open: the first time, the index on insertion order is made in it.
        """
        if not self._has_seq_index:
            self._run(schema.CREATE_SEQ_INDEX)
            self._has_seq_index = True
        rows = self.select(sql.LAST if last else sql.FIRST)
        return rows[0] if rows else None

    @property
    def displaced(self) -> bool:
        """Tell whether any key lives beside its home place."""
        return self.header[Header.DISPLACED] != 0

    def count(self) -> int:
        """Return the number of entries, the expired ones that were not removed yet among them."""
        self.ready()
        header = self.header
        if header[_EPOCH] != self.epoch:
            self.follow()
        txn = self.txn
        if txn is not None and txn.reads_here():
            return header[_COUNT] + txn.added if header[_COUNT] != UNKNOWN else int(self.select(sql.COUNT)[0][0])
        if header[_COUNT] == UNKNOWN or header[_SETTLED] != header[_TICK]:
            # Either a writer is at work, and the count is that of before, or one died. Getting the lock tells.
            with contextlib.suppress(Timeout), self.locked(0) as locked:
                if locked and header[_COUNT] == UNKNOWN:
                    self.recount()
        return header[_COUNT] if header[_COUNT] != UNKNOWN else int(self.select(sql.COUNT)[0][0])

    def recount(self) -> None:
        """Bring the count in the header in line with the database; the write lock is held, no transaction is open."""
        ((number,),) = self.select_writer(sql.COUNT)
        self.header[_COUNT] = number

    def volume(self) -> int:
        """Return the bytes in use: database pages that hold something, value files, and files in the trash."""
        ((pages,),) = self.select(sql.PAGE_COUNT)
        ((free,),) = self.select(sql.FREE_PAGES)
        ((file_bytes, trash),) = self.select(sql.FILE_TOTALS)
        return (int(pages) - int(free)) * PAGE + int(file_bytes) + int(trash)

    # -- writing --------------------------------------------------------------------------------------------------

    def upsert(self, h: int, stored: bytes, row: Row | bytes, timeout: float | None) -> int:
        """Store a row in one autocommitted statement and return the slot's new generation.

        A record alone (bytes) stands for a row without further columns. Within the caller's transaction the slot stays
        odd and 1 is returned, which never equals a settled slot.
        """
        try:
            locked = self.enter(timeout)
            try:
                return self._upsert(h, stored, row, locked)
            finally:
                if locked:
                    self.leave()
        except CorruptDatabase as error:
            if not self.recovered(error):
                raise
        except DiskFull:
            if not self._relieved(timeout):
                raise
        with self.locked(timeout) as locked:
            return self._upsert(h, stored, row, locked)

    def upsert_many(self, rows: Sequence[tuple[int, bytes, Row | bytes]]) -> None:
        """Store rows (place, stored key, row) within the caller's transaction; of equal keys the last one stays."""
        plain = [(h, stored, row) for h, stored, row in rows if type(row) is bytes]
        if len(plain) < len(rows) or self._special or self.header[_DISPLACED] or not self._upsert_plain(plain):
            for h, stored, row in rows:
                self._upsert(h, stored, row, locked=False)

    def _upsert_plain(self, rows: Sequence[tuple[int, bytes, bytes]]) -> bool:
        """Do `upsert_many` with one prepared statement; return False when a place belongs to another key."""
        header = self.header
        incoming = sum(len(v) for _, _, v in rows)
        header[_WRITTEN] += incoming + len(rows) * PAGE
        if header[_WRITTEN] > header[_MARK]:
            room.housekeeping(self, incoming)
        with self.changing([h for h, _, _ in rows], locked=False):
            places = {h for h, _, _ in rows}
            new = len(places) - len(self.present(list(places)))
            first = header[_TICK] + 1
            header[_TICK] += len(rows)
            parameters = [(h, stored, first + i, v) for i, (h, stored, v) in enumerate(rows)]
            done = self.writer.executemany(sql.UPSERT_PLAIN, parameters).rowcount
            if new:
                self._inserted = self.writer.execute(sql.LAST_INSERTED).fetchone()[0]
            if done == len(rows):
                self._count(new)
                return True
        # Another key's place: what was written stays within this transaction, and is written again with probing.
        self._count(len(self.present(list(places))) - (len(places) - new))
        return False

    def present(self, places: Sequence[int]) -> set[int]:
        """Return those of the places that hold an entry, seen through the writer."""
        found: set[int] = set()
        for start in range(0, len(places), sql.MANY):
            batch = list(places[start : start + sql.MANY])
            found.update(h for (h,) in self.select_writer(sql.SELECT_PRESENT, batch + batch[-1:] * (sql.MANY - len(batch))))
        return found

    def _relieved(self, timeout: float | None) -> bool:
        """On a full disk, unlink every file in the trash; tell whether that freed anything.

        Even a DELETE needs room in the WAL, so value files are the only thing that can go first.
        """
        with self.locked(timeout) as locked:
            if not locked:
                return False
            names = [column for (column,) in self.select_writer(sql.SELECT_ALL_TRASH)]
            self.unlinked.difference_update(names)
            self.doomed = names
        return bool(names)

    def _upsert(self, h: int, stored: bytes, row: Row | bytes, locked: bool) -> int:
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
            if plain and h != self._inserted and not self._special and not header[_DISPLACED]:
                done = (self._cursor or self._open_cursor()).execute(sql.UPSERT_PLAIN, (h, stored, tick, row))
                if done.lastrowid != self._inserted:  # inserted, not updated
                    self._inserted = h
                    self._count(1)
                elif not done.rowcount:
                    self._count(self._upsert_row(self._place(h, stored), stored, Row(row), tick, slot))  # type: ignore[arg-type]
            else:
                self._count(self._upsert_row(h, stored, Row(row) if plain else row, tick, slot))  # type: ignore[arg-type]
        except BaseException as error:
            header[_COUNT] = UNKNOWN  # whether the statement was committed is not known here
            if isinstance(error, sqlite3.Error):
                self.failed(error)
            raise
        finally:
            if locked:
                self.slots[slot] = 2 * tick + 2  # even after the commit (or its failure), still under the lock
            else:
                self.txn.slots.add(slot)  # type: ignore[union-attr]  # not locked means that the transaction is ours
        return 2 * tick + 2 if locked else 1

    def _count(self, added: int) -> None:
        """Keep the number of entries in the header; in a transaction only when that is committed."""
        if added:
            if self.txn is not None:
                self.txn.added += added
            elif self.header[_COUNT] != UNKNOWN:
                self.header[_COUNT] += added

    def _announced(self, row: Row) -> int:
        """Note in the header, before the commit, that files or expiries may exist; return the row's bytes."""
        if row.expire is not None:
            due = microseconds(row.expire)
            if due < self.header[_NEXT_EXPIRE]:
                self.header[_NEXT_EXPIRE] = due
        if row.file is not None:
            self.header[_FILES] = 1
            if self.txn is not None:
                self.txn.files.append(row.file)
        return len(row.v) + row.size

    def _upsert_row(self, h: int, stored: bytes, row: Row, tick: int, slot: int) -> int:
        """Write all columns of a row at the place of its key; return 0 when another key lives at `h`."""
        if self.header[_DISPLACED]:
            h = self._place(h, stored)
        again = h == self._inserted
        exists = again and self.writer.execute(sql.SELECT_V, (h,)).fetchone() is not None
        rank, base = (0, self.uses[slot]) if self.policy.marks_frequency else (tick, 0)
        v, expire, tag, size, file, spelling, queue, num = row
        columns = (h, stored, tick, rank, base, expire, tag, size, file, spelling, v)
        done = self.writer.execute(sql.UPSERT, columns)
        if not done.rowcount:
            return self._upsert_row(self._place(h, stored), stored, row, tick, slot)
        added = not exists if again else done.lastrowid != self._inserted
        if added:
            self._inserted = h
        if queue is not None:
            self.writer.execute(sql.SET_QUEUE, (queue, num, h))
        return int(added)

    def _place(self, h: int, stored: bytes) -> int:
        """Return where the key lives or may live; when its four places are taken the first is evicted."""
        taken = {place: key for place, key, _ in self.select_writer(sql.SELECT_PROBES, (h,))}
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

    def compute(self, h: int, stored: bytes, decide: Decide, timeout: float | None) -> int:
        """Read the entry, let `decide` say what becomes of it, and write that, as one atomic step.

        `decide` gets the record or None and returns a Row, Touch, REMOVE or None (leave as it is). It runs under the
        write lock and must not use the cache. Returns the slot's new generation, or 1 if nothing may be kept hot.
        """
        try:
            return self._compute_locked(h, stored, decide, timeout)
        except CorruptDatabase as error:
            if not self.recovered(error):
                raise
        return self._compute_locked(h, stored, decide, timeout)

    def _compute_locked(self, h: int, stored: bytes, decide: Decide, timeout: float | None) -> int:
        locked = self.enter(timeout)
        try:
            rows = self.select_writer(sql.SELECT_PROBES, (h,))
            place, v = next(((place, v) for place, key, v in rows if key == stored), (h, None))
            change = decide(v)
            if change is None:
                return 1
            if isinstance(change, bytes | Row):
                return self._upsert(h, stored, change, locked)
            with self.changing([place], locked) as generation:
                if isinstance(change, Touch):
                    self._touch(place, change)
                else:
                    self._count(-self.writer.execute(sql.DELETE_H, (place,)).rowcount)
            return generation
        finally:
            if locked:
                self.leave()

    def _touch(self, place: int, change: Touch) -> None:
        if change.expire is not None:
            self.header[_NEXT_EXPIRE] = min(self.header[_NEXT_EXPIRE], microseconds(change.expire))
        self.writer.execute(sql.UPDATE_EXPIRE, (change.expire, change.v, place))

    def remove(self, h: int, stored: bytes, timeout: float | None) -> bool:
        """Remove a live entry in one autocommitted statement; return whether there was one."""
        try:
            return self._remove_locked(h, stored, timeout)
        except CorruptDatabase as error:
            if not self.recovered(error):
                raise
        return self._remove_locked(h, stored, timeout)

    def _remove_locked(self, h: int, stored: bytes, timeout: float | None) -> bool:
        locked = self.enter(timeout)
        try:
            header = self.header
            slot = h % self.slot_prime
            if header[_DISPLACED]:
                rows = self.select_writer(sql.SELECT_PROBES, (h,))
                h = next((place for place, key, _ in rows if key == stored), h)
            written = header[_WRITTEN] + 2 * WRITE_COST
            header[_WRITTEN] = written
            if written > header[_MARK]:
                room.housekeeping(self, 0)
            tick = header[_TICK] + 1
            header[_TICK] = tick
            self.slots[slot] = 2 * tick + 1  # odd before, even after the commit, as in _upsert
            try:
                cursor = self._cursor or self._open_cursor()
                removed = cursor.execute(sql.DELETE, (h, stored, self.config.clock())).rowcount
                self._count(-removed)
                return removed > 0
            except sqlite3.Error as error:
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
        except sqlite3.Error as error:
            self.header[_COUNT] = UNKNOWN
            self.failed(error)
        finally:
            if not locked and self.txn is not None:
                self.txn.slots.update(range(len(self.slots)) if everything else slots)
            elif everything:
                self.generations.settle_all(tick)
            else:
                self.generations.settle(slots, tick)

    def delete_places(self, places: Sequence[int]) -> None:
        """Delete rows by place in the open transaction, their slots odd until it has ended."""
        with self.changing(places, locked=False):
            self._count(-self.writer.executemany(sql.DELETE_H, [(h,) for h in places]).rowcount)

    def remove_places(self, places: Sequence[int]) -> None:
        """Remove rows by place within the caller's transaction."""
        room.delete_rows(self, places, locked=False)

    def remove_selected(self, which: Selection, parameters: tuple[object, ...], timeout: float | None) -> int:
        """Remove all entries of a kind in batches, each an atomic step; return how many went.

        A Timeout between batches carries the number so far in `count`.
        """
        removed = room.remove_selected(self, _SELECTIONS[which], parameters, timeout)
        if removed > PAGE_OF_ENTRIES:
            with self.locked(timeout) as locked:
                if locked:
                    room.vacuum(self)
        return removed

    def set_file_total(self, file_bytes: int) -> None:
        """Correct the total of bytes in value files; the write lock is held."""
        self._execute(sql.SET_FILES, (file_bytes,))

    def index_tags(self, wanted: bool, timeout: float | None) -> None:
        """Make or drop the index on tags."""
        with self.locked(timeout):
            self._run(schema.CREATE_TAG_INDEX if wanted else schema.DROP_TAG_INDEX)

    # -- settings and counters ------------------------------------------------------------------------------------

    def stored_setting(self, name: str) -> Any:
        """Return a setting as it is stored now; one that is not stored, as this handle has it."""
        for stored, value in self.select(sql.SELECT_SETTINGS):
            if stored == name:
                return checked(name, value)
        return self.settings.get(name)

    def change_setting(self, name: str, value: Any, update: bool, timeout: float | None) -> None:
        """Make a setting effective for this handle and, with `update`, store it for those that open later."""
        with self.locked(timeout):
            if update and name not in HANDLE_ONLY:
                self._execute(sql.SET_SETTING, (name, value))
            before = self.settings.get(name)
            self.settings[name] = value
            self.header[Header.MARK] = 0  # limits may have changed: the next write looks at the volume
            if name == "eviction_policy":
                self.policy = policy_named(value)
                self._special = self.policy.marks_frequency
                if update and before != value:
                    self._execute(sql.RESET_RANKS_TO_ZERO if self.policy.marks_frequency else sql.RESET_RANKS_BY_SEQ)
            elif name == "durability":
                self.settings["sqlite_synchronous"] = DURABILITY[value]
            if name in ("durability", "sqlite_synchronous", "sqlite_cache_size"):
                self._close_writer()

    def _close_writer(self) -> None:
        """Have the next write open a connection with the present settings; the write lock is held."""
        if self._writer is not None and self.txn is None:
            self._writer.close()
            self._writer = self._cursor = None

    def counters(self, reset: bool) -> tuple[int, int]:
        """Return (hits, misses) as all processes have noted them; the write lock is held."""
        header = self.header
        result = header[Header.HITS], header[Header.MISSES]
        if reset:
            header[Header.HITS] = header[Header.MISSES] = 0
        return result

    def count_uses(self, hits: int, misses: int) -> None:
        """Add to the shared counters; the write lock is held."""
        self.header[Header.HITS] += hits
        self.header[Header.MISSES] += misses

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, timeout: float | None) -> Iterator[None]:
        """Make the body one transaction of the calling task; nested, a savepoint of it.

        A timeout applies to the write lock. On any exception the innermost transaction is rolled back.
        """
        if self.enter(timeout):
            try:
                with self.batch():
                    yield
            finally:
                self.leave()
            return
        txn = self.txn
        assert txn is not None
        txn.depth += 1
        name = f"nested_{txn.depth}"
        self._run(f"SAVEPOINT {name}")
        added, files = txn.added, len(txn.files)
        try:
            yield
        except BaseException:
            self._run(f"ROLLBACK TO {name}")
            txn.added = added
            room.unlink_unused(self, txn.files[files:])
            del txn.files[files:]
            raise
        finally:
            if self.txn is txn:
                self._run(f"RELEASE {name}")
                txn.depth -= 1

    def _run(self, statement: str) -> None:
        self._execute(statement, ())

    def _execute(self, statement: str, parameters: tuple[object, ...]) -> None:
        try:
            self.writer.execute(statement, parameters)
        except sqlite3.Error as error:
            self.failed(error)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run BEGIN IMMEDIATE, the body and COMMIT; the caller holds the write lock and no transaction is open.

        Slots that the body touched are settled on one new even number after the commit or the rollback.
        """
        self._run("BEGIN IMMEDIATE")
        self.txn = txn = Transaction()
        done = False
        try:
            yield
            self._run("COMMIT")
            done = True
        except BaseException:
            self.has_rank_index = self._has_seq_index = False  # may have been made in this transaction
            if self._writer is not None and self._writer.in_transaction:
                self._run("ROLLBACK")
            room.unlink_unused(self, txn.files)
            raise
        finally:
            self.txn = None
            if done:
                self._count(txn.added)
            tick = self.header[Header.TICK] + 1
            self.header[Header.TICK] = tick
            self.generations.settle(txn.slots, tick)

    def locked(self, timeout: float | None) -> _Locked:
        """Return a context that holds the write lock for a round of housekeeping."""
        return _Locked(self, timeout)


class _Locked:
    """Hold a store's write lock for the length of a with-block; its value says whether it was taken here."""

    __slots__ = ("_store", "_taken", "_timeout")

    def __init__(self, store: Store, timeout: float | None) -> None:
        self._store = store
        self._timeout = timeout
        self._taken = False

    def __enter__(self) -> bool:
        self._taken = self._store.enter(self._timeout)
        return self._taken

    def __exit__(self, *_: object) -> None:
        if self._taken:
            self._store.leave()


class _Closed:
    """Words of a closed store: every generation is odd, so nothing read meanwhile is kept."""

    def __getitem__(self, index: int) -> int:
        return (1 << 63) | 1

    def __setitem__(self, index: int, value: int) -> None:
        return

    def __len__(self) -> int:
        return 1


CLOSED = _Closed()
Selection = Literal["any", "tagged", "expired"]
_SELECTIONS = {"any": sql.SELECT_ANY, "tagged": sql.SELECT_TAGGED, "expired": sql.SELECT_EXPIRED}
_NO_COLUMNS = Row(b"")[1:]

__all__ = ["REMOVE", "Change", "Decide", "Found", "Row", "Store", "Touch"]
