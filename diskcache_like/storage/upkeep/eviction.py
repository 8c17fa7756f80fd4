"""Eviction: live entries go by rank when the size limit, or the number of entries that is allowed, is reached.

Everything here runs under the shard's write lock unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from ...coherence.generations import MAX_WORD, NEVER, Header
from ...errors import CacheError, DiskFull
from ...settings.policies import MOST
from ...system.signals import suppress
from ..shard.ownership import HOME
from ..shard.reader import places_of
from ..sqlite import schema
from ..sqlite import statements as sql
from .checkpoints import CHECKPOINT_BYTES
from .quota import Quota
from .removal import BATCH, Remover
from .second_chance import SecondChance

# Where `max_entries` is nearly reached, so many go at once that not each of the next writes looks: half a percent, or a
# few, but none of a few.
PARTS, FEW, SMALL_PARTS = 200, 16, 16


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
        self._second_chance = SecondChance(self._shard)
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
            # Look again when the shard's part of what is left may be used up, or after half a percent of the limit.
            due = min(due, written + self._room_for(incoming))
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
        if free < slack and volume > self._shard.limit:
            volume, free = self._shrunk(incoming, volume + free - 2 * slack, self._shard.limit - 2 * slack)
        if free < slack:
            free += self.take_back(2 * slack - free)
        if free < slack:
            volume, free = self._shrunk(incoming, volume + free - 2 * slack, 0)
        self._checkpointer.give_back(quota.part_of(free), slack)
        return quota.reserve(volume, free)

    def _shrunk(self, incoming: int, target: int, least: int) -> tuple[int, int]:
        """Make room until this shard, with what comes in, uses the larger of `target` and `least` bytes.

        Returns what it uses then and what is left for all.
        """
        volume = self.make_room(max(0, max(target, least) - incoming)) + incoming
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
        """Remove expired entries, then live ones by rank, until the volume is at most `target`; return the volume."""
        if self._connection.txn is None:
            self._trash.empty()
        self._remove(lambda: self._entries_in(self.remover.live_volume() - target))
        return self.remover.live_volume()

    def keep_to_number(self) -> None:
        """Remove expired entries, then live ones by rank, if there are too many; nothing waits, and none is open.

        Where there may be many, a part of them goes at once, so that the writes that follow need not look. The newest
        stays, whatever its rank: it was just written.
        """
        shard, header = self._shard, self._shard.header
        newest = places_of(self._connection.select(sql.IN_REVERSE, (-NEVER - 1, NEVER, 1)), shard.path)
        spare = max(shard.most // PARTS, min(FEW, shard.most // SMALL_PARTS))
        if self.remover.known_count() > shard.most - spare // 2:
            self._remove(lambda: self.remover.known_count() - shard.most + spare, newest)
        header[Header.SINCE] = header[Header.TICK]

    def _remove(self, excess: Callable[[], int], spared: Sequence[int] = ()) -> None:
        """Remove expired entries, then live ones by rank but for those `spared`, as long as so many are in excess."""
        remover, txn = self.remover, self._connection.txn
        more_expired = True  # as far as is known
        while (wanted := excess()) > 0:
            places = remover.select(sql.SELECT_EXPIRED, (self._shard.now(),)) if more_expired else []
            more_expired = len(places) == BATCH
            if places:
                remover.delete(places, locked=txn is None)
            elif not self._evict(wanted, spared):
                break
            if txn is None:
                self._trash.empty()
            else:
                txn.evicted = True

    def _entries_in(self, size: int) -> int:
        """Return about how many entries have to go to free so many bytes; 0 for none."""
        if size <= 0:
            return 0
        used = self.remover.live_volume() - self._shard.control_bytes
        return size // max(used // max(self.remover.known_count(), 1), 1) + 1

    def evict_excess(self) -> int:
        """Remove a batch of live entries by rank if there is too much; return how many."""
        volume = self.remover.live_volume()
        too_large = self._entries_in(min(-self.quota.left(volume), volume - self._shard.limit))
        excess = max(too_large, self.remover.known_count() - self._shard.most)
        evicted = self._evict(excess) if excess > 0 else 0
        if not evicted:
            self.give_up_reservation()
        return evicted

    def _evict(self, wanted: int, spared: Sequence[int] = ()) -> int:
        """Remove about so many entries of lowest rank, or a batch, but for those `spared`; return how many."""
        places = self.victims(wanted, spared)
        if places:
            evicted = len(self.remover.delete(places, locked=self._connection.txn is None))
            header = self._shard.header
            header[Header.EVICTED] = header[Header.EVICTED] + evicted & MAX_WORD
            self.evicted += evicted
        return len(places)

    def victims(self, wanted: int, spared: Sequence[int] = ()) -> list[int]:
        """Return the places of about so many entries of lowest rank, of a batch and of half of all at most.

        None of them is among those `spared`.

        A full disk has room for neither an index nor new ranks: the stored ranks have to do.
        """
        count = self.remover.known_count()
        if not count:
            return []
        wanted = min(wanted, BATCH, max(count // 2, 1))
        if not self._shard.policy.ranks:
            chosen = self._second_chance.victims(count, wanted + len(spared))
            return [place for place in chosen if place not in spared][:wanted]
        self._ensure_rank_index()
        for _ in range(count // wanted + 2):  # each round gives an entry its true rank, so this ends
            lowest = self._connection.select(sql.SELECT_VICTIMS, (wanted + len(spared),))
            rows = [row for row in lowest if row[0] not in spared][:wanted]
            places = places_of(rows, self._shard.path)
            ranked, evictable = self._second_look(rows)
            try:
                if ranked:  # values do not change, so no slot is marked
                    with self._transactions.batch() if self._connection.txn is None else nullcontext():
                        self._connection.execute_many(sql.UPDATE_RANK, ranked)
            except DiskFull as error:
                self._connection.verify_open(error)
                break
            if evictable or not ranked:
                return evictable
        return places

    def _second_look(self, rows: Sequence[tuple[int, int, int]]) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Split candidates into those that were used since their rank was written, with their new one, and the rest."""
        shard = self._shard
        ranked, evictable = [], []
        for home, rank, base in rows:
            mark = min(shard.uses[(home & HOME) % shard.slot_prime], MOST)
            now = shard.policy.rank_now(rank, base, mark)
            if now is None:
                evictable.append(home)
            else:
                ranked.append((*now, home))
        return ranked, evictable

    def _ensure_rank_index(self) -> None:
        """Make the index on rank the first time that an entry has to go, unless the disk is too full."""
        if not self._checkpointer.blocked:
            try:
                self._connection.ensure_index(schema.CREATE_RANK_INDEX)
            except DiskFull as error:
                self._connection.verify_open(error)

    def rank_anew(self) -> None:
        """Give every row the rank that it begins with, and forget its uses: another policy counts them otherwise."""
        uses = self._shard.uses
        for slot in range(len(uses)):
            uses[slot] = 0
        self._shard.header[Header.BOUNDARY] = 0
        self._connection.walk(sql.RESET_RANKS)
