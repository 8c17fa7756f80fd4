"""Eviction: live entries go when the size limit, or the number of entries that is allowed, is reached.

Everything here runs under the shard's write lock unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sqlite3 import IntegrityError

from ...coherence.generations import MAX_WORD, NEVER, Header
from ...errors import CacheError, DiskFull, StorageError
from ...settings.policies import RECENCY
from ...system.signals import suppress
from ..shard.reader import places_of
from ..sqlite import statements as sql
from ..sqlite.connection import PAGE_SIZE
from ..sqlite.schema import MOVED_BACK
from .checkpoints import CHECKPOINT_BYTES
from .quota import FEW, RARE, Quota
from .removal import BATCH, Remover
from .victims import Choice, Victims

SLICE: int = 128  # entries that one write evicts at most; that takes one to two milliseconds
MOST_SLACKS = 4  # by which a shard may exceed its part and still evict in slices; more did not come in bit by bit
AT_ONCE = -1  # instead of the bytes that may be written until the next look: the next write goes on

# Where `max_entries` is nearly reached, several go at once, so that not every write has to look: half a percent, or
# SPARE, but no more than one in SMALL_PARTS.
PARTS, SPARE, SMALL_PARTS = 200, 16, 16


class Evictor:
    """Keep one shard within its part of the limits."""

    def __init__(self, remover: Remover, quota: Quota) -> None:
        self.remover = remover
        self.quota = quota
        self._transactions = remover.recovery.transactions
        self._shard = self._transactions.shard
        self._connection = self._shard.connection
        self._trash = remover.recovery.trash
        self._checkpointer = remover.recovery.checkpointer
        self._victims = Victims(self._shard)
        self.evicted = 0  # live entries, by this handle
        self.others: Sequence[Evictor] = ()  # of the other shards, set by the shard set once all are open

    def look_at_volume(self, incoming: int) -> None:
        """Make room for `incoming` bytes if that is due, and set the mark at which this is looked at again.

        The mark counts bytes written into the WAL, which is more than the database grows by. A write takes a mark that
        is further ahead than CHECKPOINT_BYTES for damaged.
        """
        header = self._shard.header
        written = header[Header.WRITTEN]
        due = (header[Header.CHECKPOINTED] if self._connection.txn is None else written) + self._checkpointer.interval()
        if self._shard.evicts:
            self._shard.generations.grow_marks(header[Header.COUNT], self._shard.policy.marks == RECENCY)
            # Look again when the shard's part of what is left may be used up, or after half a percent of the limit.
            room = self._room_for(incoming)
            if room == AT_ONCE:
                header[Header.VOLUME_DUE] = max(written - 1, 0)
                return
            due = min(due, written + room)
        self._mark(due)

    def _mark(self, due: int) -> None:
        header = self._shard.header
        written = header[Header.WRITTEN]
        header[Header.VOLUME_DUE] = min(max(due, written), written + CHECKPOINT_BYTES, MAX_WORD)
        header[Header.LIMIT] = self._shard.limit_word()

    def _room_for(self, incoming: int) -> int:
        """Make room for `incoming` bytes if there is none; return the bytes that may be written before the next look.

        Entries beyond this shard's even part go first, then those by which others exceed theirs. If those shards are
        locked, more of this one's own have to go: the limit comes first.
        """
        quota = self.quota
        slack = quota.slack
        quota.announce(incoming)
        volume = self.remover.live_volume() + incoming
        free = quota.left(volume)
        if self._connection.txn is None and not incoming and volume > self._shard.limit - 2 * slack:
            while -MOST_SLACKS * slack < free < slack and self._evict_slice(3 * slack - free, volume):
                volume = self.remover.live_volume()
                free = quota.left(volume)
                if self._waiting() <= free < slack:
                    return AT_ONCE
        if free < slack and volume > self._shard.limit:
            volume, free = self._shrunk(incoming, volume + free - 2 * slack, self._shard.limit - 2 * slack)
        if free < slack:
            free += self.take_back(2 * slack - free)
        if free < slack:
            volume, free = self._shrunk(incoming, volume + free - 2 * slack, 0)
        self._checkpointer.give_back(quota.part_of(free), slack)
        return quota.reserve(volume, free)

    def _waiting(self) -> int:
        """Return the bytes that rows of what waits in the write buffer may take, but no more than the slack."""
        ring = self._shard.ring
        return 0 if ring is None else min(2 * ring.waiting(), self.quota.slack)

    def _evict_slice(self, excess: int, volume: int) -> int:
        """Remove entries which should free about `excess` bytes, but no more than one write may; return how many.

        `volume`: the bytes in use.

        What waits in the write buffer is newer than what goes, and stays there.
        """
        remover = self.remover
        most = remover.entries_in(excess, volume)
        most = min(most, SLICE if most >= RARE else FEW)
        places = remover.select(sql.SELECT_EXPIRED, (self._shard.now(),), most)
        removed = self._delete_expired(places) if places else self._evict(most)
        self._trash.empty()
        return removed

    def _shrunk(self, incoming: int, target: int, least: int) -> tuple[int, int]:
        """Make room until this shard, with what comes in, uses the larger of `target` and `least` bytes.

        Returns what it uses then and what is left for all.
        """
        # A row, however short, may need a page of its own.
        volume = self.make_room(max(0, max(target, least) - max(incoming, PAGE_SIZE))) + incoming
        return volume, self.quota.left(volume)

    def take_back(self, wanted: int) -> int:
        """Make room in shards that use more than their even part; return how many bytes they gave back.

        Their locks are only tried: this shard's is held, and two that waited for each other would wait for ever. A
        locked shard is being written, and will look for itself soon.
        """
        given = 0
        for other in sorted(self.others, key=lambda one: one.quota.reserved(), reverse=True):
            if given >= wanted or other.quota.reserved() <= other._shard.limit:
                break
            try:
                given += other.give_room(wanted - given)
            except CacheError as error:
                other._connection.verify_open(error)
        return given

    def give_room(self, wanted: int) -> int:
        """Make room for another shard, if this one's lock is free; return how many bytes were given back."""
        quota = self.quota
        with self._transactions.locked(0):
            header = self._shard.header
            before = header[Header.RESERVATION]
            least = max(self._shard.limit, before - max(wanted, 8 * quota.slack))
            volume = self.make_room(least)
            self._checkpointer.give_back(0, quota.slack)
            quota.reserve(volume, 0)
            self._mark(header[Header.WRITTEN] + quota.slack)
            return max(before - header[Header.RESERVATION], 0)

    def give_up_reservation(self) -> None:
        """Reserve no more than is in use, after much was removed; on a full disk, give the rest back at once.

        The next write looks how much it may take.
        """
        self.quota.reserve(self.remover.live_volume(), 0)
        self._shard.header[Header.VOLUME_DUE] = 0
        checkpointer = self._checkpointer
        if self._connection.txn is None and checkpointer.is_tight():
            with suppress(DiskFull):
                checkpointer.shorten(shrink=True)
                checkpointer.fit(shrink=True)
            checkpointer.measure()  # part of what was gained is the disk reserve again

    def make_room(self, target: int) -> int:
        """Remove expired entries, then live ones, until the volume is at most `target`; return the volume."""
        if self._connection.txn is None:
            self._trash.empty()
        volume = 0

        def excess() -> int:
            nonlocal volume
            volume = self.remover.live_volume()
            return self.remover.entries_in(volume - target, volume)

        self._remove(excess)
        return volume

    def keep_to_number(self) -> None:
        """Remove expired entries, then live ones, if there are too many.

        Nothing waits in the write buffer, and no transaction is open. Where many are allowed, a part of them goes at
        once, so that the next writes need not look. The newest stays in any case: it was just written.
        """
        shard, header = self._shard, self._shard.header
        newest = places_of(self._connection.select(sql.IN_REVERSE, (-NEVER - 1, NEVER, 1)), shard.path)
        spare = max(shard.most // PARTS, min(SPARE, shard.most // SMALL_PARTS))
        if self.remover.known_count() > shard.most - spare // 2:
            self._remove(lambda: self.remover.known_count() - shard.most + spare, newest)
        header[Header.SINCE] = header[Header.TICK]

    def _remove(self, excess: Callable[[], int], spared: Sequence[int] = ()) -> None:
        """Remove expired entries, then live ones but for those `spared`, as long as so many are in excess."""
        remover, txn = self.remover, self._connection.txn
        more_expired = True  # as far as is known
        while (wanted := excess()) > 0:
            places = remover.select(sql.SELECT_EXPIRED, (self._shard.now(),)) if more_expired else []
            more_expired = len(places) == BATCH
            if places:
                self._delete_expired(places)
            elif not self._evict(wanted, spared):
                break
            if txn is None:
                self._trash.empty()
            else:
                txn.evicted = True

    def _delete_expired(self, places: Sequence[int]) -> int:
        removed = len(self.remover.delete(places, locked=self._connection.txn is None))
        self._shard.count("evicted_expired", removed)
        return removed

    def evict_excess(self) -> int:
        """Remove a batch of live entries if there is too much; return how many."""
        volume = self.remover.live_volume()
        too_large = self.remover.entries_in(min(-self.quota.left(volume), volume - self._shard.limit), volume)
        excess = max(too_large, self.remover.known_count() - self._shard.most)
        evicted = self._evict(excess) if excess > 0 else 0
        if not evicted:
            self.give_up_reservation()
        return evicted

    def _evict(self, wanted: int, spared: Sequence[int] = ()) -> int:
        """Remove about `wanted` entries, half of all at most, and none at the `spared` places; return how many.

        Those that stay although they are at the head of the queue are moved.
        """
        count, header = self.remover.known_count(), self._shard.header
        if not count:
            return 0
        wanted = min(wanted, BATCH, max(count // 2, 1))
        choice, unmoved = self._victims.choose(count, wanted + len(spared)), header[Header.UNMOVED]
        choice.evicted[:] = [row for row in choice.evicted if row.place not in spared][:wanted]
        if choice.evicted:
            evicted = self._carry_out(choice)
            self._victims.settle(choice, unmoved)
            header[Header.EVICTED] = header[Header.EVICTED] + evicted & MAX_WORD
            self._shard.count("evicted_for_room", evicted)
            self.evicted += evicted
        return len(choice.evicted)

    def _carry_out(self, choice: Choice) -> int:
        """Remove what goes, and move what stays; return how many went.

        In the caller's transaction, on a full disk, and where damage has given another row a number that one would get,
        nothing is moved: it will be at the head of the queue again. Who iterates counts on a number that was given
        before the last release of the lock to be in the database.
        """
        places = [row.place for row in choice.evicted]
        if self._connection.txn is not None:
            choice.moved.clear()
            return len(self.remover.delete(places, locked=False))
        try:
            with self._transactions.batch():
                tick = self._shard.generations.internal_tick
                moves = [(tick() - MOVED_BACK, row.number) for row in choice.moved]
                self._connection.execute_many(sql.MOVE, moves)
                self.remover.delete_in_transaction(places)
            return len(places)
        except (DiskFull, StorageError) as error:
            if isinstance(error, StorageError) and not isinstance(error.__cause__, IntegrityError):
                raise
            self._connection.verify_open(error)
            choice.moved.clear()
            return len(self.remover.delete(places, locked=True))
