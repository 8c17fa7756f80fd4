"""Eviction: live entries go by rank when the size limit is reached.

Everything here runs under the shard's write lock unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from ...coherence.generations import MAX_WORD, Header
from ...errors import CacheError, DiskFull
from ...settings.policies import MOST
from ...system.signals import suppress
from ..shard.ownership import HOME
from ..shard.reader import places_of
from ..sqlite import schema
from ..sqlite import statements as sql
from .checkpoints import CHECKPOINT_BYTES
from .quota import FEW, RARE, Quota
from .removal import BATCH, Remover
from .second_chance import SecondChance

SLICE: int = 320  # entries that one write evicts at the most; that takes one to two milliseconds
MOST_SLACKS = 4  # by which a shard may exceed its part, and still evicts in slices: more was not written bit by bit
AT_ONCE = -1  # instead of the bytes that may be written until the next look: the next write goes on


class Evictor:
    """Keep one shard within its part of the size limit."""

    def __init__(self, remover: Remover, quota: Quota) -> None:
        self.remover = remover
        self.quota = quota
        self._transactions = remover.recovery.transactions
        self._shard = self._transactions.shard
        self._connection = self._shard.connection
        self._trash = remover.recovery.trash
        self._checkpointer = remover.recovery.checkpointer
        self._second_chance = SecondChance(self._shard)
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
            while -MOST_SLACKS * slack < free < slack and self._evict_slice(3 * slack - free):
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

    def _evict_slice(self, excess: int) -> int:
        """Remove entries which should free about `excess` bytes, but no more than one write may; return how many.

        What waits in the write buffer is newer than what goes, and stays there.
        """
        remover = self.remover
        most = remover.entries_in(excess)
        most = min(most, SLICE if most >= RARE else FEW)
        places = remover.select(sql.SELECT_EXPIRED, (self._shard.now(),), most)
        removed = len(remover.delete(places, locked=True)) if places else self._evict(most)
        self._trash.empty()
        return removed

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
        remover, txn = self.remover, self._connection.txn
        if txn is None:
            self._trash.empty()
        volume = remover.live_volume()
        more_expired = True  # as far as is known
        while volume > target:
            places = remover.select(sql.SELECT_EXPIRED, (self._shard.now(),)) if more_expired else []
            more_expired = len(places) == BATCH
            if places:
                remover.delete(places, locked=txn is None)
            elif not self._evict(remover.entries_in(volume - target)):
                break
            if txn is None:
                self._trash.empty()
            else:
                txn.evicted = True
            volume = remover.live_volume()
        return volume

    def evict_excess(self) -> int:
        """Remove a batch of live entries by rank if there is too much; return how many."""
        volume = self.remover.live_volume()
        excess = min(-self.quota.left(volume), volume - self._shard.limit)
        evicted = self._evict(self.remover.entries_in(excess)) if excess > 0 else 0
        if not evicted:
            self.give_up_reservation()
        return evicted

    def _evict(self, wanted: int) -> int:
        """Remove about as many entries of lowest rank as are `wanted`; return how many."""
        places = self.victims(wanted)
        if places:
            evicted = len(self.remover.delete(places, locked=self._connection.txn is None))
            header = self._shard.header
            header[Header.EVICTED] = header[Header.EVICTED] + evicted & MAX_WORD
        return len(places)

    def victims(self, wanted: int) -> list[int]:
        """Return the places of as many entries of lowest rank as are `wanted`, but for half of all at the most.

        A full disk has room for neither an index nor new ranks: the stored ranks have to do.
        """
        count = self.remover.known_count()
        if not count:
            return []
        wanted = min(wanted, BATCH, max(count // 2, 1))
        if not self._shard.policy.ranks:
            return self._second_chance.victims(count, wanted)
        self._ensure_rank_index()
        for _ in range(count // wanted + 2):  # each round gives an entry its true rank, so this ends
            rows = self._connection.select(sql.SELECT_VICTIMS, (wanted,))
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
