"""How the shards of one cache share its size limit.

Each shard notes in its header, for all to read, the bytes that it may use until it looks at its volume the next time:
its **reservation**. When it looks, it takes a part of what the reservations of the others leave. So the sum of the
reservations, and with it the volume of the whole, stays below the limit, and a shard that is written more than the
others may use what they do not. What a shard is sure of is its even part: one that is below it, and finds nothing left,
takes room back from those above theirs (`Evictor.take_back`).

Reservations are read without the lock of their shard, so they may be a moment old. Since a shard never takes more than
its part of what is left, all of them looking at once take no more than there is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...coherence.generations import Header
from ...errors import CacheError
from ..shard.open_shard import OpenShard
from ..shard.reader import Reader

MOST = 1 << 62
SLACKS = 200  # parts of the limit; one of them, divided among the shards, is what a shard may always write unlooked at
FEW: int = 48  # entries that one write flushes, or evicts, where many writes have to: none of them takes long
RARE: int = 100  # entries, from which on a round of them comes to less than one in a hundred writes
_RESERVATION = Header.RESERVATION


class Quota:
    """Reserve one shard's part of the size limit."""

    def __init__(self, shard: OpenShard, reader: Reader) -> None:
        self._shard = shard
        self._reader = reader
        self.others: Sequence[Quota] = ()  # of the other shards, set by the shard set once all are open

    @property
    def _parts(self) -> int:
        return len(self.others) + 1

    @property
    def slack(self) -> int:
        """Return the bytes that a shard may write before it looks again, however little is left."""
        return self._whole // (SLACKS * self._parts)

    @property
    def _whole(self) -> int:
        return int(self._shard.settings["size_limit"])

    def left(self, volume: int) -> int:
        """Return the bytes that nobody uses or has reserved, if this shard uses `volume`; negative if too much.

        The others may have reserved more than the limit, if a handle has just changed it. Then only what they use
        counts.
        """
        whole, taken = self._whole, sum(other.reserved() for other in self.others)
        if taken > whole:
            taken = sum(other.reserved(anew=True) for other in self.others)
        return whole - taken - volume

    def is_used_up(self) -> bool:
        """Tell whether little is left beside what this shard has reserved, as it is where entries are evicted."""
        return self.left(self._shard.header[_RESERVATION]) < 2 * self.slack

    def holds_few(self, size: int) -> bool:
        """Tell whether so many bytes hold so few entries that rounds of them are not rare."""
        header = self._shard.header
        return size * header[Header.COUNT] < RARE * header[_RESERVATION]

    def reserve(self, volume: int, free: int) -> int:
        """Note what this shard may use until it looks again; return by how much it may grow. The lock is held."""
        growth = max(free // max(self._parts, 2), self.slack)
        self._shard.header[_RESERVATION] = min(max(volume + growth, 1), MOST)  # sizes may have been planted
        return growth

    def part_of(self, free: int) -> int:
        """Return this shard's even part of what is left."""
        return max(free, 0) // self._parts

    def announce(self, incoming: int) -> None:
        """Reserve what is about to be written, before this shard's volume and then the others' reservations are read.

        The lock is held. Of two shards that look at once each has written before it reads, so one at least sees the
        other's; the mutex that SQLite takes to tell the volume keeps the processor from doing it the other way round.
        """
        header = self._shard.header
        noted = header[_RESERVATION] or self._reader.volume()
        header[_RESERVATION] = min(max(noted + incoming, 1), MOST)

    def reserved(self, anew: bool = False) -> int:
        """Return this shard's reservation for another one; where there is none yet, its volume, which is noted then.

        Noting it without the shard's lock can at worst replace a reservation that its writer made just now by the
        volume of a moment ago; the next look of that writer mends it. `anew`: as if there were none.
        """
        try:
            header = self._shard.present_header()
            noted = header[_RESERVATION]
            if noted == 0 or anew:
                noted = header[_RESERVATION] = min(max(self._reader.volume(), 1), MOST)
        except CacheError:
            return self._shard.limit  # it cannot be read just now: what it is sure of
        return noted
