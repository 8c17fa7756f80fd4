"""Transactions: who owns one, and which slots it holds odd until it ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ...coherence.ring import Mark
from ...errors import TransactionError
from ...system.tasks import current_task

HOME = ~3  # mask from the place of an entry to the hash of its key, which decides the slot (schema: multiples of four)
ALL_SLOTS = 4096  # beyond this many touched slots it is cheaper, and no less right, to mark every slot


class _Thread(threading.local):
    """A token that each thread has of its own; thread numbers are used again after a thread ends."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


@dataclass(slots=True, eq=False)
class Transaction:
    """The one transaction that a shard's writer has open; it exists exactly while the write lock is held for it."""

    thread: object = field(default_factory=lambda: _thread.token)
    task: object = field(default_factory=current_task)
    slots: set[int] = field(default_factory=set)
    depth: int = 1  # of the savepoint that is open, if it is more
    entered: bool = False  # its body is the user's, and is being run
    stepping: bool = False  # beginning, writing or ending: only a signal handler can come in between
    added: int = 0  # entries that were inserted less those that were removed, for the count when it is committed
    removed: int = 0  # entries that were removed other than by eviction
    evicted: bool = False  # entries went for room; their files can go only when that is committed
    files: list[bytes | str] = field(default_factory=list)  # columns of the value files that its writes brought
    homes: set[int] | None = None  # of the places that it may have changed, where other shards have a part
    names: set[str] = field(default_factory=set)  # of the settings that it may have changed
    decided: bool = False  # another shard's part is committed, or about to be: this one is completed, not given up
    committed: bool = False
    carried: Mark | None = None  # up to where it brings what waits in the write buffer into the database
    carried_added: int = 0  # how many of the `added` entries are among that

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
