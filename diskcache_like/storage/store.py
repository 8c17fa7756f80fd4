"""A store reads and writes one shard: a database, its generations, its write lock and its value files.

What the operations of a cache mean is decided above it. It wires the parts, each of which owns what it changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ..coherence import futex
from ..coherence.contexts import end
from ..coherence.generations import UNCOUNTED, Header, Words
from ..disk import file_io
from ..disk.contract import Disk
from ..encoding import file_names
from ..errors import DirectoryError, DiskFull, StorageError, Timeout, TransactionError
from ..system.blocking import may_block
from ..system.forks import token_word
from .opening import opener
from .opening.identity import Config
from .shard.invalidation import Invalidation
from .shard.open_shard import OpenShard
from .shard.reader import Reader
from .shard.row import REMOVE, Change, Decide, Remove, Row, Touch
from .shard.transactions import Transactions
from .shard_settings import ShardSettings
from .sqlite import statements as sql
from .sqlite.connection import PAGE_SIZE
from .upkeep.bulk_removal import BulkRemoval
from .upkeep.checkpoints import Checkpointer
from .upkeep.data_keys import DataKeys
from .upkeep.eviction import Evictor
from .upkeep.maintenance import Maintenance
from .upkeep.quota import Quota
from .upkeep.recovery import Recovery
from .upkeep.removal import Remover
from .upkeep.trash import Trash
from .writer import Writer

READ_TIMEOUT = 60.0  # seconds that a read of many rows waits for the lock at least, so that it can flush
MANY_ENTRIES = 1 << 24  # larger counts are checked against the size of the database
LOOKS = 64  # for a moment between two writes; as long as a few writes take
_TICK, _COUNT, _SETTLED = Header.TICK, Header.COUNT, Header.SETTLED


class Store:
    """Read and write one shard."""

    disk: Disk  # an attribute of its own, since each operation asks for it several times

    def __init__(self, directory: str, config: Config) -> None:
        self.directory = directory
        self.shard = shard = OpenShard(directory, config)
        self.connection = shard.connection
        self.invalidation = Invalidation(shard)
        self.transactions = transactions = Transactions(shard, self.invalidation)
        self.reader = reader = Reader(shard)
        self.trash = Trash(transactions, reader)
        self.checkpointer = Checkpointer(shard)
        self.quota = Quota(shard, reader)
        self.recovery = Recovery(transactions, self.trash, self.checkpointer)
        self.remover = Remover(self.recovery)
        self.evictor = Evictor(self.remover, self.quota)
        self.data_keys = DataKeys(transactions, reader, self.checkpointer)
        self.maintenance = transactions.upkeep = Maintenance(self.evictor, self.data_keys)
        shard_settings = ShardSettings(reader, self.maintenance)
        self.writer = writer = Writer(self.maintenance, reader)
        reader.flush = self._flush_for_reading
        bulk = BulkRemoval(self.maintenance)
        # Bind the methods of the parts directly, to save a call.
        self.read, self.read_many, self.read_versioned = reader.read, reader.read_many, reader.read_versioned
        self.select, self.refers_to = reader.select, reader.refers_to
        self.end, self.end_alone = reader.end, reader.end_alone
        self.places, self.rows_at, self.tagged = reader.places, reader.rows_at, reader.tagged
        self.begun = reader.begun
        self.tagged_places, self.count_tagged = reader.tagged_places, reader.count_tagged
        self.queue_end, self.queue_page = reader.queue_end, reader.queue_page
        self.queue_end_alone, self.remove_at = reader.queue_end_alone, writer.remove_at
        self.smallest_first = reader.smallest_first
        self.put, self.put_many, self.push = writer.put, writer.put_many, writer.push
        self.remove, self.update = writer.remove, writer.update
        self.replace = writer.replace
        self.transaction, self.locked = transactions.transaction, transactions.locked
        self.attempts = self.recovery.attempts
        self.remove_selected, self.cull = bulk.remove, bulk.cull
        self.remove_places = self.remover.delete_in_transaction
        self.make_room = partial(self.recovery.reclaim_when_locked, for_file=True)
        self.stored_setting, self.change_setting = shard_settings.as_stored, shard_settings.change
        self.set_shards = shard_settings.set_shards
        self.keyring, self.keyring_version = self.data_keys.keyring, self.data_keys.version
        self.replace_keyring, self.quarantine_keys = self.data_keys.replace_keyring, shard.quarantine_keys
        self.config = config

    def encode_with(self, disk: Disk) -> None:
        """Encode this shard's keys and values with a disk from now on."""
        self.disk = self.shard.disk = disk

    @property
    def path(self) -> str:
        """Return the path of the database in use."""
        return self.shard.path

    @property
    def identity(self) -> dict[str, Any]:
        """Return what the cache is for good."""
        return self.shard.identity

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings in force."""
        return self.shard.settings

    @property
    def limit(self) -> int:
        """Return the bytes that the entries of this shard may use."""
        return self.shard.limit - self.shard.control_bytes

    @property
    def displaced(self) -> bool:
        """Tell whether any key lives beside its home place."""
        return self.shard.header[Header.DISPLACED] != 0

    def in_transaction(self) -> bool:
        """Tell whether the calling task is inside a transaction."""
        return self.connection.callers_transaction() is not None

    def remove_many(self, keys: Sequence[tuple[int, bytes]], wait: float | None) -> int:
        """Remove the entries of (place, stored key) in one transaction, and return how many there were."""
        removed = 0
        try:
            for attempt in self.attempts():
                with attempt, self.transaction(wait):
                    removed = sum(self.remove(home, stored_key, wait) > 0 for home, stored_key in keys)
        except DiskFull:
            # A single removal unlinks the value file first, and so makes the room that the next one needs.
            removed = sum(self.remove(home, stored_key, wait) > 0 for home, stored_key in keys)
        return removed

    def close(self, timeout: float | None = None) -> None:
        """Close every connection under the write lock, since the last one to close checkpoints."""
        shard = self.shard
        if shard.abandon_if_inherited():
            return
        shard.lock.refuse_holder()
        try:
            if not self.transactions.acquire(timeout):
                return
            is_mended = False
            with contextlib.suppress(DirectoryError, DiskFull, StorageError):
                if shard.is_current():  # else what waits is another database's
                    # The last handle to close flushes: each looks under the lock, and is gone before it releases that.
                    is_last = not shard.byte_locks.are_shared()
                    if is_last and shard.ring is not None and shard.ring.waiting():
                        self.connection.take_over_reader()
                    self.transactions.mend()
                    if is_last:
                        self.writer.buffer.flush()  # what is left stays in its file, where the next opening finds it
                    is_mended = True
            # What a full disk or a damaged file leaves undone here is done, or met again, after the next opening;
            # where the directory was removed under the cache, nothing is left to do.
            with contextlib.suppress(DirectoryError, DiskFull, StorageError):
                self.trash.empty_old()
            if is_mended:
                self.transactions.settle()  # last, so that the next opening has nothing to mend
            shard.close()
        finally:
            end((shard,), token_word[0])

    def close_soon(self) -> None:
        """Close if the lock is free now; else with the next opening in this process, or when the process ends.

        For caches dropped without `close`: this may run in the garbage collector, under any lock of this thread.
        """
        try:
            self.close(0)
        except (Timeout, TransactionError):
            opener.close_later(self.close_soon)

    def flush(self, timeout: float | None) -> None:
        """Flush what waits in the write buffer to the database; within a transaction nothing does."""
        txn = self.connection.callers_transaction()
        if txn is not None and txn.entered and not txn.stepping:  # else a signal handler is refused, which reads less
            return
        shard = self.shard
        shard.reopen_if_replaced()
        ring = shard.ring
        if ring is not None and not ring.waiting() and ring.is_closed():
            shard.reopen()  # waits until the other thread has opened the ring in use
            ring = shard.ring
        if ring is not None and ring.waiting():
            may_block()
            for attempt in self.attempts():
                with attempt, self.locked(timeout):
                    pass

    def sync(self, timeout: float | None) -> None:
        """Bring everything written so far to stable storage: what waits in the write buffer, rows and value files."""
        for attempt in self.attempts():
            with attempt, self.locked(timeout) as locked:
                if not locked:
                    raise TransactionError(
                        f"{self.directory!r}: sync() within a transaction has nothing to sync: call it when it is over"
                    )
                file_io.sync(self.directory, file_names.readable(self.connection.select(sql.ALL_FILES)))
                with self.checkpointer.durably():
                    pass
                file_io.sync_folder(self.directory)

    def _flush_for_reading(self) -> None:
        self.flush(max(self.shard.config.timeout, READ_TIMEOUT))

    def scan(self, reverse: bool = False) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Do what `Reader.scan` does."""
        return self.reader.scan(reverse)

    def volume(self) -> int:
        """Return the bytes of what is stored, what waits in the write buffer among them, since it is flushed before."""
        self._flush_for_reading()
        return self.reader.volume(trash=False)

    def version(self, home: int, stored_key: bytes) -> int:
        """Return the version of the key's row, 0 for no row, -1 for damage; the write lock is held."""
        found = self.shard.buffered(home, stored_key) if self.connection.txn is None else None
        if found is not None:
            return 0 if found.packed is None else found.tick
        rows = self.connection.select(sql.SELECT_VERSIONED, (home, home + 3, stored_key))
        if not rows:
            return 0
        return rows[0][1] if type(rows[0][1]) is int else -1

    def hold(self, home: int, owner: object) -> bool | None:
        """Hold the key of `home` if nobody does, until `let_go` or this process ends; None where that is impossible."""
        self.shard.ready()
        locks = self.shard.byte_locks
        return locks.hold(home >> 2, owner) if locks.available else None

    def let_go(self, home: int, owner: object) -> None:
        """Let go of the key of `home` if this owner holds it."""
        if not self.shard.inherited():  # else it is the parent's to free, or closed, and so the hold has ended
            self.shard.byte_locks.let_go(home >> 2, owner)

    def generation(self, home: int) -> int:
        """Return the generation of the slot of `home`; read it before looking at the entry, then sleep on it."""
        self.shard.ready()
        return self.shard.slots[self.shard.slot_of(home)]

    def was_missed(self, home: int) -> bool:
        """Tell whether this was called for a key, or its entry was evicted, a short while ago, as far as is known."""
        known = self.was_evicted(home)
        if not known:
            self.shard.marks.leave(home)
        return known

    def was_evicted(self, home: int) -> bool:
        """Tell the same, and remember nothing."""
        entries = self.shard.present_header()[Header.COUNT]
        return self.shard.marks.knows(home, entries)

    def sleep(self, home: int, stamp: int, seconds: float) -> None:
        """Sleep until `wake` is called for `home`, but not if its slot is no longer `stamp`, and `seconds` at most."""
        futex.sleep(self.shard.slots, self.shard.slot_of(home), stamp, seconds)

    def wake(self, home: int) -> None:
        """Wake those in all processes who sleep on `home`; call it after the write that they wait for."""
        futex.wake(self.shard.slots, self.shard.slot_of(home))

    def count(self) -> int:
        """Return the number of entries, the expired ones that were not removed yet among them."""
        header, ring = self.shard.present_header(), self.shard.ring
        if ring is not None and ring.waiting():
            counted = self.reader.count_alone()
            if counted is not None and self._is_possible(counted):
                return counted
        self._flush_for_reading()
        txn = self.connection.callers_transaction()
        if txn is not None:
            number: int | None = header[_COUNT] + txn.added
        else:
            number = self._settled_count(header)
        if number is None:
            may_block()
            # Somebody writes all the time, or a writer died, or the count is not known: taking the lock tells.
            for attempt in self.attempts():
                with attempt, contextlib.suppress(Timeout, DiskFull), self.locked(0) as locked:
                    if locked and self.shard.header[_COUNT] == UNCOUNTED:
                        self.recount()
            number = self._settled_count(self.shard.present_header())
        return number if number is not None and self._is_possible(number) else int(self.select(sql.COUNT)[0][0])

    def _is_possible(self, number: int) -> bool:
        """Tell whether the database has room for so many entries: not for UNCOUNTED, nor for most damaged counts."""
        return number >= 0 and (number < MANY_ENTRIES or number <= self.select(sql.PAGE_COUNT)[0][0] * PAGE_SIZE)

    @staticmethod
    def _settled_count(header: Words) -> int | None:
        """Return the count at a moment at which nobody wrote; None if there was none, or the count is not known.

        No lock: a write counts its tick first and settles last, so the count read between two looks at the same settled
        tick is that of what readers see. During a write they may see the entry before it is counted.
        """
        for _ in range(LOOKS):
            tick = header[_TICK]
            if header[_SETTLED] == tick:
                number = header[_COUNT]
                if header[_TICK] == tick:
                    return number if number < opener.MAX_COUNTED else None
            os.sched_yield()
        return None

    def recount(self) -> None:
        """Bring the count in the header in line with the database; the write lock is held, no transaction is open."""
        ((number,),) = self.connection.select(sql.COUNT)
        if not self.connection.in_doubt:
            self.shard.header[_COUNT] = number

    def work_counts(self) -> tuple[int, int]:
        """Return how many writes of keys, and how many evictions, there were, as numbers that only grow.

        A removal of many entries (eviction, expiry, `clear`) is not one. The lock is not held: a read between two
        words may be one write behind.
        """
        header = self.shard.present_header()
        return header[Header.TICK] - header[Header.INTERNAL], header[Header.EVICTED]

    def size(self) -> tuple[int, int]:
        """Return the number of entries, and the bytes of all but what waits in the write buffer; takes no lock."""
        header, ring = self.shard.present_header(), self.shard.ring
        waiting = self.reader.count_alone() if ring is not None and ring.waiting() else None
        number = header[_COUNT] if waiting is None else waiting
        return (number if self._is_possible(number) else self.select(sql.COUNT)[0][0]), self.reader.volume(trash=False)


__all__ = ["REMOVE", "Change", "Decide", "Remove", "Row", "Store", "Touch"]
