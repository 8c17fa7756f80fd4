"""A store reads and writes one shard: a database, its generations, its write lock and its value files.

The store is narrow: `read`, `read_many`, `upsert`, `compute`, `remove`, `scan`, `transaction`, `volume`, `close` and
the batches in `room` and `check`. What the operations of a cache mean is decided above it. Built up in four steps:
`shard` (what is open), `reading`, `writing`, `computing`; this file adds what concerns the store as a whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from ..coherence import sleepers
from ..coherence.forks import process_token
from ..coherence.generations import UNKNOWN, Header
from ..coherence.words import Words
from ..errors import CacheError, DirectoryError, DiskFull, KeyringError, StorageError, Timeout, TransactionError
from ..keyring import is_whole
from ..policies import policy_named
from ..settings import DURABILITY, HANDLE_ONLY, OPTIONAL_SETTINGS, checked
from . import checkpoints, opening, room, schema
from . import statements as sql
from .computing import Computer
from .holding import WRITE_COST
from .rows import REMOVE, Change, Decide, Row, Touch
from .scopes import left_over
from .shard import CLOSED, NOT_OPEN

LOOKS = 64  # for a moment between two writes; as long as a few writes take
PAGE_OF_ENTRIES = 512  # removed entries from which on free pages are given back
Selection = Literal["any", "tagged", "expired"]
_SELECTIONS = {"any": sql.SELECT_ANY, "tagged": sql.SELECT_TAGGED, "expired": sql.SELECT_EXPIRED}
_OF_THE_WRITER = ("durability", "sqlite_synchronous", "sqlite_cache_size")
Told = Callable[[str, Any], None]
_EPOCH, _TICK, _COUNT, _SETTLED = Header.EPOCH, Header.TICK, Header.COUNT, Header.SETTLED


class Store(Computer):
    """Read and write one shard."""

    def close(self, timeout: float | None = None) -> None:
        """Close every connection under the write lock, since the last one to close checkpoints."""
        if self._token == NOT_OPEN:
            return
        if self._token != process_token():
            self._abandon()
            return
        lock = self.lock
        try:
            lock.acquire(timeout)
        except DirectoryError:
            if self.is_open_with(lock):
                raise
            return  # another thread closed it just now
        except TransactionError:
            if not left_over(self):
                raise
            self.let_go()
            self.close(timeout)
            return
        try:
            self._finish()
        except BaseException:
            self.let_go()
            raise
        try:
            self._close_connections()
            self.generations.close()
            if self.board is not None:
                self.board.close()
            self.header = self.slots = self.uses = CLOSED  # a reader on its way finds odd slots and another epoch
            lock.retire(self._note_closed)
        except BaseException:  # it is opened anew by the next call, and what is still open goes with the last reference
            self._token = NOT_OPEN
            lock.close()
            raise

    def _finish(self) -> None:
        """Note what was counted, and unlink what is due; the write lock is held."""
        if self.config.on_write is not None:
            self.config.on_write(self)
        # What a full disk or a damaged file leaves undone here is done, or met again, after the next opening; where
        # the directory was removed under the cache, nothing is left to do.
        with contextlib.suppress(DirectoryError, DiskFull, StorageError):
            room.flush_trash(self, everything=False)

    def _note_closed(self) -> None:
        self._token = NOT_OPEN  # from here on another thread may open the store again

    def sleep_on(self, h: int, stamp: int, seconds: float) -> None:
        """Sleep until `wake` is called for `h`, but not if its slot is no longer `stamp`, and `seconds` at most."""
        sleepers.sleep(self.slots, self.slot_of(h), stamp, seconds)

    def wake(self, h: int) -> None:
        """Wake those in all processes who sleep on `h`; call it after the write that they wait for."""
        sleepers.wake(self.slots, self.slot_of(h))

    def close_soon(self) -> None:
        """Close if the lock is free now; else with the next opening in this process, or when that ends.

        For caches dropped without `close`: this may run in the garbage collector, under any lock of this thread.
        """
        try:
            self.close(0)
        except (Timeout, TransactionError):
            opening.close_later(self.close_soon)

    def end(self, last: bool, skip: int = 0) -> tuple[int, bytes, bytes | None, bytes] | None:
        """Return (place, stored key, spelling, record) of the entry inserted last, or first, behind `skip` others.

        The caller has a transaction open: the first time, the index on insertion order is made in it.
        """
        if not self._has_seq_index:
            self.walk(schema.CREATE_SEQ_INDEX)
            self._has_seq_index = True
        rows = self.select(sql.LAST if last else sql.FIRST, (skip,))
        return rows[0] if rows else None

    def count(self) -> int:
        """Return the number of entries, the expired ones that were not removed yet among them."""
        header = self.present_header()
        txn = self.txn
        if txn is not None and txn.reads_here():
            return header[_COUNT] + txn.added if header[_COUNT] != UNKNOWN else int(self.select(sql.COUNT)[0][0])
        number = self._settled_count(header)
        if number is None:
            # Either somebody writes all the time, or one died, or the count is not known. Getting the lock tells.
            for attempt in self.attempts():
                with attempt, contextlib.suppress(Timeout, DiskFull), self.locked(0) as locked:
                    if locked and self.header[_COUNT] == UNKNOWN:
                        self.recount()
            number = self._settled_count(self.present_header())
        return number if number is not None else int(self.select(sql.COUNT)[0][0])

    def _settled_count(self, header: Words) -> int | None:
        """Return the count at a moment at which nobody wrote; None if there was none, or the count is not known.

        No lock: a write counts its tick first and settles last, so that the count between two looks at the same tick,
        settled, is that of what readers see. While one is made they may see it before it is counted.
        """
        for _ in range(LOOKS):
            tick = header[_TICK]
            if header[_SETTLED] == tick:
                number = header[_COUNT]
                if header[_TICK] == tick:
                    return number if number < opening.MAX_COUNTED else None
            os.sched_yield()
        return None

    def recount(self) -> None:
        """Bring the count in the header in line with the database; the write lock is held, no transaction is open."""
        ((number,),) = self.select_writer(sql.COUNT)
        self.header[_COUNT] = number

    def remove_places(self, places: Sequence[int]) -> None:
        """Remove rows by place within the caller's transaction."""
        room.delete_rows(self, places, locked=False)

    def remove_selected(self, which: Selection, parameters: tuple[object, ...], timeout: float | None) -> int:
        """Remove all entries of a kind in batches, each an atomic step; return how many went.

        A Timeout between batches carries the number so far in `count`.
        """
        removed = 0
        for attempt in self.attempts():
            with attempt:
                removed = room.remove_selected(self, _SELECTIONS[which], parameters, timeout)
        if removed > PAGE_OF_ENTRIES:
            # What is removed is removed, though nobody can give the room back just now: its pages take the next rows.
            with contextlib.suppress(Timeout, DiskFull), self.locked(timeout) as locked:
                if locked:
                    checkpoints.vacuum(self)
        return removed

    def cull(self, timeout: float | None) -> int:
        """Remove expired entries and, above the size limit, live ones by rank; return how many went."""
        removed = 0
        for attempt in self.attempts():
            with attempt:
                removed = room.cull(self, timeout)
        return removed

    def set_file_total(self, file_bytes: int) -> None:
        """Correct the total of bytes in value files; the write lock is held."""
        self._execute(sql.SET_FILES, (file_bytes,))
        self.note_inserted()

    def index_tags(self, wanted: bool, timeout: float | None) -> None:
        """Make or drop the index on tags."""
        for attempt in self.attempts():
            with attempt, self.locked(timeout):
                self.walk(schema.CREATE_TAG_INDEX if wanted else schema.DROP_TAG_INDEX)

    def stored_setting(self, name: str) -> Any:
        """Return a setting as it is stored now; one that no row holds, as this handle has it."""
        rows = self.select(sql.SELECT_SETTING, (name,))
        if rows:
            return checked(name, rows[0][0])
        return None if name in OPTIONAL_SETTINGS else self.settings.get(name)

    def blobs(self) -> Iterator[tuple[Any, Any]]:
        """Yield (stored key, record) of every row, page by page, in no useful order."""
        for page in self.pages(sql.PAGE_KEYS_AND_RECORDS, PAGE_OF_ENTRIES):
            for _, stored, blob in page:
                yield stored, blob

    def change_setting(self, name: str, value: Any, update: bool, timeout: float | None, told: Told) -> None:
        """Make a setting effective for this handle and, with `update`, store it for those that open later.

        `told` is called with name and value of each setting that goes back with a transaction that is rolled back.
        """
        for attempt in self.attempts():
            with attempt, self.locked(timeout) as locked:
                if locked:
                    self.note_written(WRITE_COST)
                    self.tidy()
                self._change_setting(name, value, update, told)

    def _change_setting(self, name: str, value: Any, update: bool, told: Told) -> None:
        before = self.settings.get(name)
        stored = update and name not in HANDLE_ONLY
        if self.txn is not None:
            if self.unsettled is None:
                self._tried = []
                self.unsettled = partial(self._settle_settings, {**self.settings}, told)
            self._tried += [(name, value)] if stored else []
        if stored:
            self.put_setting(name, value)
        self._take_setting(name, value)
        if name == "eviction_policy" and update and before != value:
            self.rank_anew()
        if self.txn is None and name in _OF_THE_WRITER:
            self._close_writer()

    def _take_setting(self, name: str, value: Any) -> None:
        """Make a setting effective for this handle, but for those of the writing connection."""
        self.settings[name] = value
        self.header[Header.MARK] = 0  # limits may have changed: the next write looks at the volume
        if name == "eviction_policy":
            self.policy = policy_named(value)
            self._special = self.policy.marks_frequency
        elif name == "durability":
            self.settings["sqlite_synchronous"] = DURABILITY[value]

    def _settle_settings(self, before: dict[str, Any], told: Told) -> None:
        """Make what a transaction changed effective for the writing connection, and take back what was rolled back.

        The transaction has ended, one way or the other, and the write lock is held.
        """
        tried, self._tried, self.unsettled = self._tried, [], None
        present = {**self.settings}  # one of them may bring another with it
        with contextlib.suppress(CacheError):  # of a damaged database: whoever uses it next is told
            for name in dict(tried):
                stored = self.select_writer(sql.SELECT_SETTING, (name,))
                kept = [value for other, value in tried if other == name and [(value,)] == stored]
                value = kept[-1] if kept else before.get(name)
                if value != present.get(name):
                    self._take_setting(name, value)
                    told(name, value)
        if any(before[name] != self.settings[name] for name in _OF_THE_WRITER):
            self._close_writer()

    def _close_writer(self) -> None:
        """Have the next write open a connection with the present settings; within the lock, outside a transaction."""
        if self._writer is not None:
            self._writer.close()
            self._writer = self._cursor = None

    def be_one_of(self, shards: int) -> None:
        """Store how many shards the cache has, where damage has this one say another number."""
        if self.identity.get("shards") == shards:
            return
        self.identity["shards"] = shards
        with contextlib.suppress(CacheError), self.locked(0):  # whoever opens it next finds that too
            self.put_setting("shards", shards)

    def keyring(self) -> bytes:
        """Return the sealed keyring as it is stored now; raise KeyringError if there is none."""
        rows = self.select(sql.SELECT_SETTING, ("keyring",))
        if not rows or type(rows[0][0]) is not bytes:
            raise KeyringError(f"{self.path!r}: the keyring of this encrypted cache is gone; no entry can be read")
        sealed: bytes = rows[0][0]
        if is_whole(sealed):  # for the database that takes the place of this one, should it break
            self.identity["keyring"] = sealed
            if "keyring" in self.config.identity:  # or be gone, or found broken, when this handle opens it again
                self.config.identity["keyring"] = sealed
        return sealed

    def keys_version(self) -> tuple[int, int]:
        """Return what is another value whenever the keyring may be; exact under the write lock."""
        return self.epoch, self.header[Header.KEYS]

    def counters(self, reset: bool) -> tuple[int, int]:
        """Return (hits, misses) as all processes have noted them; the write lock is held."""
        header = self.header
        result = header[Header.HITS], header[Header.MISSES]
        if reset:
            header[Header.HITS] = header[Header.MISSES] = 0
        return result


__all__ = ["REMOVE", "Change", "Decide", "Row", "Store", "Touch"]
