"""Checkpoints: what has been committed goes from the WAL into the database, and the WAL begins anew.

Every function here runs under the store's write lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from ..coherence.generations import WORD, Header
from ..errors import DiskFull
from ..interrupts import let_through
from . import schema
from . import statements as sql
from .connection import FAILURES, FULL, NORMAL, PAGE_SIZE, synchronous
from .scopes import scope

if TYPE_CHECKING:
    from .holding import Holder

CHECKPOINT_BYTES = 16 << 20  # of WAL between checkpoints; 20 % faster sets than with 1,000 pages
LEAST_BYTES = 128 << 10  # the same on a disk that is nearly full
FRAME = PAGE_SIZE + 24  # bytes of a page in the WAL
MOST_GROWTH = 16 * 16
WAL_LIMIT = (64 << 20) // PAGE_SIZE  # frames beyond which a checkpoint also truncates
VACUUM_PAGES = 4096  # at once, which takes some tens of milliseconds
BALLAST = 256 << 10  # bytes of the disk that are kept for removals: those of LEAST_BYTES, and as much to remove in
LATE_BALLAST = 96 << 10  # of these, for cutting free pages off
LAST_BALLAST = 48 << 10  # of these, for removing everything; 16 to 32 KiB suffice
BALLAST_PART = 8  # the shards take no more than this part of what is left


def between(store: Holder) -> int:
    """Return by how much WRITTEN may grow until the WAL has grown by what is to be between two checkpoints.

    The length of the WAL is estimated as it was the last time.
    """
    return min(CHECKPOINT_BYTES, store.wal_bytes) * 16 // max(store.header[Header.GROWTH], 16)


def is_due(store: Holder) -> bool:
    """Tell whether the WAL has grown enough, or damage to the counts keeps that from being known."""
    header = store.header
    return not 0 <= header[Header.WRITTEN] - header[Header.CHECKPOINTED] <= between(store)


def measure(store: Holder) -> None:
    """Keep the WAL so short that there is room for what the next checkpoint lengthens the database by.

    All shards may have theirs to make at the same time. What is left for the WAL shrinks with the disk's room, so that
    it once was longer than it may get now: that length is what removals are written into where the disk is full.
    """
    left, shards = _left_on_disk(store), 1 + len(store.siblings)
    store.wal_bytes = max(LEAST_BYTES, left // (4 * shards))
    ballast = min(BALLAST, left // (BALLAST_PART * shards)) & -PAGE_SIZE
    if ballast:
        store.lock.keep_ballast(ballast)


def keep(store: Holder) -> None:
    """Checkpoint if that is due; raise DiskFull if what is in the WAL finds no room in the database.

    Then nothing may be added: it would take the part of the WAL that removals need.
    """
    store.cramped = is_due(store)
    if store.cramped:
        fit(store)


def fit(store: Holder, shrink: bool = False) -> None:
    """Do `checkpoint`, after cutting off the free pages that keep it from fitting on the disk, if there are any."""
    try:
        checkpoint(store, shrink)
    except DiskFull:
        if not _cut_off(store, max(_lacking(store), 1)):
            raise
        checkpoint(store, shrink)
    store.cramped = False


def _cut_off(store: Holder, pages: int) -> bool:
    """Do `vacuum`, with the ballast if need be: once as many pages are cut off, the checkpoint needs no room."""
    try:
        return vacuum(store, pages)
    except DiskFull:
        if free_pages(store) < pages or not store.lock.drop_ballast(LAST_BALLAST):
            raise
    return vacuum(store, pages)


def shorten(store: Holder, shrink: bool = False) -> None:
    """Give free pages of the database back to a full disk, with `shrink` all of the WAL too, until there is some room.

    That needs room in the WAL for pages that move: on a full disk few of them at first, whose room serves the next.
    """
    pages = VACUUM_PAGES
    while pages and is_tight(store):
        try:
            if not vacuum(store, pages):
                return
            fit(store, shrink)
            pages *= 8
        except DiskFull:
            pages //= 8


def is_tight(store: Holder) -> bool:
    """Tell whether the disk has less left than what is kept on it for removals."""
    return _left_on_disk(store) < BALLAST


def fits(store: Holder, more: int = 0) -> bool:
    """Tell whether the disk, with `more` bytes, seems to have the room by which a checkpoint lengthens the database."""
    return _lacking(store) * PAGE_SIZE <= _left_on_disk(store) + more


def free_pages(store: Holder) -> int:
    """Return the number of pages of the database that hold nothing."""
    ((free,),) = store.select_writer(sql.FREE_PAGES)
    return int(free)


def _lacking(store: Holder) -> int:
    """Return the number of pages by which the next checkpoint lengthens the database's file."""
    ((pages,),) = store.select_writer(sql.PAGE_COUNT)
    try:
        return int(pages) - os.stat(store.path).st_size // PAGE_SIZE
    except OSError as error:
        let_through(error)
        return 0


def _left_on_disk(store: Holder) -> int:
    """Return the bytes that the disk has left; as many as can be where it does not say."""
    try:
        disk = os.statvfs(store.directory)
    except OSError as error:
        let_through(error)
        return WORD
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else WORD


def checkpoint(store: Holder, shrink: bool = False) -> None:
    """Copy the WAL into the database; under the write lock, so that no commit and no second checkpoint meets it.

    With `shrink`, or where the WAL is long, its room is given back.
    """
    header = store.header
    try:  # without a WAL, whatever this handle's settings say, the answer is 0, -1, -1
        _, frames, done = store.writer.execute(sql.CHECKPOINT).fetchone()
        if (shrink or frames > WAL_LIMIT) and frames == done:
            store.writer.execute(sql.CHECKPOINT_TRUNCATE).fetchone()
    except FAILURES as error:
        store.failed(error)
    if 0 < frames == done:  # all of the WAL is from after the checkpoint before, unless a reader held that one up
        counted = max(header[Header.WRITTEN] - header[Header.CHECKPOINTED], 1)
        header[Header.GROWTH] = min(16 * frames * FRAME // counted, MOST_GROWTH)
    # Where a reader held the checkpoint up it is tried again after half the usual amount, not at every write.
    early = between(store) // 2 if done < frames else 0
    header[Header.CHECKPOINTED] = max(header[Header.WRITTEN] - early, 0)


@scope
def durably(store: Holder) -> Generator[None, None, None]:
    """Have what the body commits outlast a power loss, whatever the cache's durability; no transaction is open.

    One more commit, which changes nothing, begins the -wal file anew while it is synced, unless one reads just then.
    Where the next one did so that is not, a loss could bring back the head of the file with some of its first pages, of
    before the body.
    """
    store.writer.execute(synchronous(FULL))
    try:
        yield
        checkpoint(store)
        store.writer.execute(f"PRAGMA user_version = {schema.VERSION}")
    except FAILURES as error:
        store.failed(error)
    finally:
        store.writer.execute(synchronous(store.settings["sqlite_synchronous"]))


def unsynced(store: Holder, step: Callable[[], object]) -> None:
    """Do a step whose commit need not wait for the disk, whatever the cache's durability; no transaction is open.

    It has to wait where there is a rollback journal, which is synced for the database to stay sound.
    """
    usual = store.settings["sqlite_synchronous"]
    if usual < FULL or store.select_writer(sql.JOURNAL_MODE) != [("wal",)]:
        step()
        return
    execute, as_usual = store.writer.execute, synchronous(usual)  # no call in Python, in which a handler may raise, ...
    try:
        execute(synchronous(NORMAL))
        step()
    finally:
        execute(as_usual)  # ... may come before this one


def vacuum(store: Holder, most: int = VACUUM_PAGES) -> bool:
    """Take free pages off the end of the database; tell whether it got shorter, which takes incremental auto_vacuum."""
    free = free_pages(store)
    if store.settings["sqlite_auto_vacuum"] != 2 or store.txn is not None or not free:
        return False
    # executescript steps the pragma to its end on every version of Python; execute frees one page on some.
    try:
        store.writer.executescript(f"PRAGMA incremental_vacuum({min(most, VACUUM_PAGES)})")
    except FAILURES as error:
        store.failed(error)
    return free_pages(store) < free


def vacuum_within(store: Holder) -> None:
    """Cut all free pages off the database within the open transaction: what it has changed of them is not written.

    On some versions of Python `execute` frees one page, on others all that it is told to.
    """
    before, free = 0, free_pages(store)
    while free and free != before:
        store.select_writer(f"PRAGMA incremental_vacuum({free})")
        before, free = free, free_pages(store)
