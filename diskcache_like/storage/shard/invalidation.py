"""How a commit becomes visible: the slots of what it changes are odd before it and even after it.

Slots change under the shard's write lock only. They are odd from before a commit until after it, so a reader that sees
the same even number before and after its SELECT has read the newest committed entry (docs/coherence.md).
The counts of writes, of bytes in the WAL and of entries change with them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ...coherence.contexts import context
from ...coherence.generations import MAX_WORD, TICK_LIMIT, UNCOUNTED, Header
from ..sqlite.connection import FAILURES, FRAME
from .open_shard import OpenShard
from .ownership import ALL_SLOTS, HOME

WRITE_COST = FRAME  # bytes that the WAL grows by for most writes
_TICK, _WRITTEN, _COUNT, _UNMOVED = Header.TICK, Header.WRITTEN, Header.COUNT, Header.UNMOVED  # for the hot paths
_SPREAD = 0x9E3779B97F4A7C15  # numbers that follow each other are far apart when multiplied by it (D. Knuth)

# What commits a change to one key's entry: gets the key's hash, the number of the write, and arguments of its own, in
# one tuple because a call with a star costs as much as two without.
Commit = Callable[[int, int, tuple[Any, ...]], bool]


class Invalidation:
    """Mark slots around commits, and keep the counts in the header."""

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard
        self._connection = shard.connection

    def commit_one(self, home: int, autocommit: bool, step: Commit, arguments: tuple[Any, ...]) -> int:
        """Call `step(home, tick, arguments)`, which commits a change to one key's entry; its slot is odd meanwhile.

        The step returns False if it has changed nothing. The caller holds the write lock: for this step alone if
        `autocommit`, else for its transaction, whose end settles the slot. Returns 0 if nothing was changed, 1 within a
        transaction, else the new generation.
        """
        shard = self._shard
        header = shard.header
        tick = header[_TICK] + 1
        if tick > TICK_LIMIT:
            tick = shard.generations.next_tick()
        header[_TICK] = tick
        slots, slot = shard.slots, home % shard.slot_prime
        if not autocommit:
            self._connection.txn.touch(slot, home)  # type: ignore[union-attr]  # the transaction is ours
        slots[slot] = 2 * tick + 1  # odd before the commit: no reader keeps what it reads from here on
        if shard.ring is not None:
            self.hide_flushed()  # before the commit, too
        try:
            if not step(home, tick, arguments):
                return 0
            if not autocommit:
                return 1
            self._connection.in_doubt = False
            return 2 * tick + 2
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            if autocommit:
                slots[slot] = 2 * tick + 2  # even after the commit (or its failure), still under the lock

    @context
    def commit_many(self, places: Sequence[int], autocommit: bool) -> Generator[None, None, None]:
        """Hold the slots of many places odd while the body commits; otherwise like `commit_one`."""
        shard, connection = self._shard, self._connection
        generations = shard.generations
        tick = generations.internal_tick()
        self.count_written(WRITE_COST * (1 + len(places)))
        slots = {(place & HOME) % shard.slot_prime for place in places}
        everything = len(slots) > ALL_SLOTS
        txn = None if autocommit else connection.txn  # whose end settles the slots
        if txn is not None:
            txn.slots.update(() if everything else slots)
            if txn.homes is not None:
                txn.homes.update(place & HOME for place in places)
        if everything:
            generations.begin_all(tick)
        else:
            generations.begin(slots, tick)
        if shard.ring is not None:
            self.hide_flushed()  # as in `commit_one`
        try:
            yield
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            if txn is None and everything:
                generations.settle_all(tick)
            elif txn is None:
                generations.settle(slots, tick)

    def _failed(self, error: BaseException) -> None:
        """Say that nobody knows whether a statement was committed; raise the package's error for one of SQLite's."""
        self._connection.in_doubt = True
        self._shard.header[_COUNT] = UNCOUNTED
        if isinstance(error, FAILURES):
            self._connection.fail(error)

    def hide_flushed(self) -> None:
        """Let no reader take what is in the write buffer's ring for newer than the commit to come.

        All is flushed, or what waits is newer than the commit, which only evicts.
        """
        if self._shard.ring is not None:
            self._shard.ring.hide_flushed()

    def count_written(self, size: int) -> None:
        """Add to the bytes written into the WAL; at the highest number, the next write finds everything due."""
        header = self._shard.header
        header[_WRITTEN] = min(header[_WRITTEN] + size, MAX_WORD)

    def count(self, added: int) -> None:
        """Add to the number of entries in the header; within a transaction, when that is committed."""
        txn, removed = self._connection.txn, max(-added, 0)
        if txn is not None:
            txn.added += added
            txn.removed += removed
        else:
            self.count_committed(added, removed)

    def count_committed(self, added: int, removed: int) -> None:
        """Add to the number of entries what a commit inserted less what it removed; `removed`: how many it removed."""
        header = self._shard.header
        count, unmoved = header[_COUNT], header[_UNMOVED]
        # Removed entries are taken to be as old as all entries are. The tick decides whether their number is rounded up
        # or down, so that many removals come to the right sum. Eviction knows the ages, and corrects this.
        if removed:
            of = max(removed, count if count != UNCOUNTED else unmoved)
            unmoved -= (removed * min(unmoved, of) + header[_TICK] * _SPREAD % of) // of
        header[_UNMOVED] = min(max(unmoved + added + removed, 0), MAX_WORD)
        if count != UNCOUNTED:
            count += added
            header[_COUNT] = count if 0 <= count < UNCOUNTED else UNCOUNTED  # less than none is damage
