"""Checkpoints: what has been committed goes from the WAL into the database, and the WAL begins anew.

Everything here runs under the shard's write lock, so that no commit and no second checkpoint meets a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator

from ...coherence.contexts import context
from ...coherence.generations import Header
from ...errors import DiskFull
from ...system.paths import left_on_disk
from ...system.signals import reraise_signal
from ..shard.open_shard import OpenShard
from ..sqlite import schema
from ..sqlite import statements as sql
from ..sqlite.connection import FAILURES, FRAME, FULL, NORMAL, PAGE_SIZE, synchronous

CHECKPOINT_BYTES = 16 << 20  # of WAL between checkpoints; 20 % faster sets than with 1,000 pages
LOOK_BITS = 16  # after so many bytes, 64 KiB, a write looks whether the directory is still there
LEAST_BYTES = 128 << 10  # the same on a disk that is nearly full
MOST_GROWTH = 16 * 16
WAL_LIMIT = (64 << 20) // PAGE_SIZE  # frames beyond which a checkpoint also truncates
VACUUM_PAGES = 2048  # at once, which takes some tens of milliseconds
RESERVE = 384 << 10  # bytes of the disk that are kept for removals: those of LEAST_BYTES, and as much to remove in
LATE_RESERVE = 160 << 10  # of these, for cutting free pages off
LAST_RESERVE = 80 << 10  # of these, for removing everything
RESERVE_PART = 8  # the shards take no more than this part of what is left


def is_due(shard: OpenShard, written: int) -> bool:
    """Tell whether a write looks for upkeep that is due, once so many bytes are written.

    The mark is never further ahead, unless a count was damaged. One that was set by a higher limit may let too much in.
    """
    if written >> LOOK_BITS != shard.looked:
        shard.looked = written >> LOOK_BITS
        shard.refuse_removed()
    header = shard.header
    due = header[Header.VOLUME_DUE]
    return not written <= due <= written + CHECKPOINT_BYTES or header[Header.LIMIT] > shard.limit_word()


class Checkpointer:
    """Keep the WAL of one shard short, and give free pages back."""

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self._connection = shard.connection
        self.shards = 1  # that share the disk; set by the shard set once all are open
        self.wal_bytes = CHECKPOINT_BYTES  # what there may be of WAL between two checkpoints, as measured
        self.blocked = False  # the last time that this was tried, what is in the WAL found no room in the database

    def interval(self) -> int:
        """Return by how much WRITTEN may grow between two checkpoints, if the WAL grows with it as it did last time."""
        return min(CHECKPOINT_BYTES, self.wal_bytes) * 16 // max(self._shard.header[Header.GROWTH], 16)

    def is_due(self) -> bool:
        """Tell whether the WAL has grown enough, or damage to the counts keeps that from being known."""
        header = self._shard.header
        return not 0 <= header[Header.WRITTEN] - header[Header.CHECKPOINTED] <= self.interval()

    def measure(self) -> int:
        """Keep the WAL so short that all shards at once have room for what a checkpoint adds to their databases.

        Returns the bytes that the disk has left.

        The limit shrinks with the disk's room, so the WAL was once longer than it may get now: on a full disk, removals
        are written into that length.
        """
        left = self.left_on_disk()
        self.wal_bytes = max(LEAST_BYTES, left // (4 * self.shards))
        reserve = min(RESERVE, left // (RESERVE_PART * self.shards)) & -PAGE_SIZE
        if reserve:
            self._shard.lock.keep_disk_reserve(reserve)
        return left

    def checkpoint_if_due(self) -> None:
        """Checkpoint if that is due; raise DiskFull if what is in the WAL finds no room in the database.

        Nothing may be added then: it would take the part of the WAL that removals need.
        """
        self.blocked = self.is_due()
        if self.blocked:
            self.fit()

    def unblock(self) -> None:
        """Let writes add something again: the WAL is short."""
        self.blocked = False

    def fit(self, shrink: bool = False) -> None:
        """Checkpoint; if that finds no room on the disk, cut off free pages and checkpoint then."""
        try:
            self.checkpoint(shrink)
        except DiskFull:
            if not self._cut_off(max(self._lacking(), 1)):
                raise
            self.checkpoint(shrink)
        self.blocked = False

    def _cut_off(self, pages: int) -> bool:
        """Vacuum, with the disk reserve if need be: once as many pages are cut off, the checkpoint needs no room."""
        try:
            return self.vacuum(pages)
        except DiskFull:
            if self.free_pages() < pages or not self._shard.lock.drop_disk_reserve(LAST_RESERVE):
                raise
        return self.vacuum(pages)

    def shorten(self, shrink: bool = False) -> None:
        """Give free pages back to a full disk, with `shrink` all of the WAL too, until there is room.

        Pages that move need room in the WAL: on a full disk only a few move at first, and their room serves the next.
        """
        pages = VACUUM_PAGES
        while pages and self.is_tight():
            try:
                if not self.vacuum(pages):
                    return
                self.fit(shrink)
                pages *= 8
            except DiskFull:
                pages //= 8

    def is_tight(self) -> bool:
        """Tell whether the disk has less left than what is kept on it for removals."""
        return self.left_on_disk() < RESERVE

    def fits(self, more: int = 0) -> bool:
        """Tell whether the disk, with `more` bytes, seems to have room for what a checkpoint adds to the database."""
        return self._lacking() * PAGE_SIZE <= self.left_on_disk() + more

    def free_pages(self) -> int:
        """Return the number of pages of the database that hold nothing."""
        ((free,),) = self._connection.select(sql.FREE_PAGES)
        return int(free)

    def _lacking(self) -> int:
        """Return the number of pages by which the next checkpoint lengthens the database's file."""
        ((pages,),) = self._connection.select(sql.PAGE_COUNT)
        try:
            return int(pages) - os.stat(self._shard.path).st_size // PAGE_SIZE
        except OSError as error:
            reraise_signal(error)
            return 0

    def left_on_disk(self) -> int:
        """Return the bytes that the disk has left."""
        return left_on_disk(self._shard.directory)

    def checkpoint(self, shrink: bool = False) -> None:
        """Copy the WAL into the database; with `shrink`, or if it is long, truncate it."""
        header, execute = self._shard.header, self._connection.open().execute
        try:  # without a WAL, whatever this handle's settings say, the answer is 0, -1, -1
            _, frames, done = execute(sql.CHECKPOINT).fetchone()
            if (shrink or frames > WAL_LIMIT) and frames == done:
                execute(sql.CHECKPOINT_TRUNCATE).fetchone()
        except FAILURES as error:
            self._connection.fail(error)
        if 0 < frames == done:  # all of the WAL is from after the checkpoint before, unless a reader held that one up
            counted = max(header[Header.WRITTEN] - header[Header.CHECKPOINTED], 1)
            header[Header.GROWTH] = min(16 * frames * FRAME // counted, MOST_GROWTH)
        # Where a reader held the checkpoint up it is tried again after half the usual amount, not at every write.
        early = self.interval() // 2 if done < frames else 0
        header[Header.CHECKPOINTED] = max(header[Header.WRITTEN] - early, 0)

    @context
    def durably(self) -> Generator[None, None, None]:
        """Have what the body commits outlast a power loss, whatever the cache's durability; no transaction is open.

        One more commit, which changes nothing, begins the -wal file anew and syncs it, unless somebody reads just then.
        If a later, unsynced commit did so, a power loss could bring back the old head of the file and pages from before
        the body.
        """
        execute = self._connection.execute
        execute(synchronous(FULL))
        try:
            yield
            self.checkpoint()
            execute(f"PRAGMA user_version = {schema.VERSION}")
        finally:
            execute(synchronous(self._shard.settings["sqlite_synchronous"]))

    def unsynced(self, step: Callable[[], object]) -> None:
        """Take a step whose commit need not wait for the disk, whatever the cache's durability; no transaction is open.

        With a rollback journal it has to wait: the journal is synced so that the database stays sound.
        """
        usual = self._shard.settings["sqlite_synchronous"]
        if usual < FULL or self._connection.select(sql.JOURNAL_MODE) != [("wal",)]:
            step()
            return
        # No call in Python, in which a handler may raise, may come between these two.
        execute, as_usual = self._connection.open().execute, synchronous(usual)
        try:
            execute(synchronous(NORMAL))
            step()
        finally:
            execute(as_usual)

    def vacuum(self, most: int = VACUUM_PAGES) -> bool:
        """Take free pages off the end of the database, if auto_vacuum is incremental; tell whether it got shorter."""
        connection, free = self._connection, self.free_pages()
        if self._shard.settings["sqlite_auto_vacuum"] != 2 or connection.txn is not None or not free:
            return False
        # executescript steps the pragma to its end on every version of Python; execute frees one page on some.
        try:
            connection.open().executescript(f"PRAGMA incremental_vacuum({min(most, VACUUM_PAGES)})")
        except FAILURES as error:
            connection.fail(error)
        return self.free_pages() < free

    def vacuum_within(self) -> None:
        """Cut all free pages off within the open transaction, so that its changes to them are not written."""
        before, free = 0, self.free_pages()
        while free and free != before:
            self._connection.select(f"PRAGMA incremental_vacuum({free})")  # frees one page on some versions of Python
            before, free = free, self.free_pages()

    def give_back(self, unused: int, tolerance: int) -> None:
        """Give the room of free pages back, but for `unused` bytes, once it is more than that by `tolerance` bytes.

        Free pages are not in the volume, since the next rows go there. But if files take the place of rows, the
        database would keep its size beside them. Mostly rows replace rows, and there is nothing to do.
        """
        excess = self.free_pages() * PAGE_SIZE - unused
        if excess > tolerance and self.vacuum(excess // PAGE_SIZE):
            self.checkpoint()  # only now does the file become shorter
