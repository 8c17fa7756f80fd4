"""Transactions: who owns one, and which slots it holds odd until it ends."""

from __future__ import annotations

import sys
import threading

from ..errors import TransactionError

HOME = ~3  # mask from the place of an entry to the hash of its key, which decides the slot (schema: multiples of four)
ALL_SLOTS = 4096  # beyond this many touched slots it is cheaper, and no less right, to mark every slot


def current_task() -> object | None:
    """Return the running asyncio task, or None; asyncio is not imported for the question."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        task: object | None = asyncio.current_task()
    except RuntimeError:  # no running event loop in this thread
        return None
    return task


class _Thread(threading.local):
    """Something that each thread has of its own; its number may be that of one which ended before."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class Transaction:
    """The one transaction that a shard's writer has open; it exists exactly while the write lock is held for it."""

    __slots__ = (
        "added",
        "broken",
        "committed",
        "decided",
        "depth",
        "ended",
        "entered",
        "evicted",
        "files",
        "homes",
        "names",
        "slots",
        "stepping",
        "task",
        "thread",
    )

    def __init__(self) -> None:
        self.thread = _thread.token
        self.task = current_task()
        self.slots: set[int] = set()
        self.depth = 1
        self.ended = False  # by another way than its own
        self.entered = False  # its body is the user's, and is being run
        self.stepping = False  # beginning, writing or ending: only a signal handler can come in between
        self.added = 0  # entries that the transaction adds to the count when it is committed
        self.evicted = False  # entries went for room; their files can go only when that is committed
        self.files: list[bytes | str] = []  # columns of the value files that its writes brought
        self.homes: set[int] | None = None  # of the places that it may have changed, where other shards have a part
        self.names: set[str] = set()  # of the settings that it may have changed
        self.decided = False  # another shard's part is committed, or about to be: this one is completed, not given up
        self.committed = False
        self.broken = False  # a nested one is neither part of it nor undone, so that it has to come to nothing

    def break_below(self, depth: int) -> None:
        """Let it come to nothing if a nested one was entered at this depth, and was never ended."""
        self.broken = self.broken or self.depth > depth

    def touch(self, slot: int, place: int) -> None:
        """Note that the entry at a place may change."""
        self.slots.add(slot)
        if self.homes is not None:
            self.homes.add(place & HOME)

    def is_callers(self) -> bool:
        """Tell whether the calling task owns this transaction; another thread does not, and has to wait.

        Raises TransactionError for another asyncio task on the owner's thread, which would wait for itself, and for a
        signal handler in the middle of a write.
        """
        if self.thread is not _thread.token:
            return False
        if self.task is not current_task():
            raise TransactionError(
                "another asyncio task on this thread is inside transact(): do not await other tasks that use the "
                "same cache within a transaction, or run the transaction in a thread of its own"
            )
        if self.stepping:
            raise TransactionError(
                "a write of this transaction is under way in this thread, and a signal handler interrupts it: it can "
                "read, and must leave writing for later"
            )
        return True

    def reads_here(self) -> bool:
        """Tell whether a read of the calling task belongs to this transaction; never raises."""
        return self.thread is _thread.token and self.task is current_task()
