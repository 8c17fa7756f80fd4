"""How the shards of one cache share its size limit.

Each shard notes in its header, for all to read, the bytes that it may use until it looks at its volume the next time:
its **claim**. When it looks, it takes a part of what the claims of the others leave. So the sum of the claims, and with
it the volume of the whole, stays below the limit, and a shard that is written more than the others may use what they
do not. What a shard is sure of is its even share: one that is below it, and finds nothing left, takes room back from
those above theirs (`room.take_back`).

Claims are read without the lock of the shard they belong to. What is read may be a moment old. Since a shard never
takes more than its part of what is left, all of them looking at once take no more than there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..coherence.generations import Header
from ..errors import CacheError

if TYPE_CHECKING:
    from .holding import Holder

MOST = 1 << 62
SLACKS = 200  # parts of the limit; one of them, divided among the shards, is what a shard may always write unlooked at


def slack(store: Holder) -> int:
    """Return the bytes that a shard may write before it looks again, however little is left."""
    return whole(store) // (SLACKS * _parts(store))


def whole(store: Holder) -> int:
    """Return the size limit of the cache."""
    return int(store.settings["size_limit"])


def left(store: Holder, volume: int) -> int:
    """Return the bytes that nobody uses or claims, if this shard uses `volume`; negative where it is too much."""
    return whole(store) - sum(claimed(other) for other in store.siblings) - volume


def claim(store: Holder, volume: int, free: int) -> int:
    """Note what this shard may use until it looks again, and return by how much it may grow; the lock is held."""
    growth = max(free // max(_parts(store), 2), slack(store))
    store.header[Header.CLAIM] = min(max(volume + growth, 1), MOST)  # sizes may have been planted
    return growth


def part(store: Holder, free: int) -> int:
    """Return this shard's even part of what is left."""
    return max(free, 0) // _parts(store)


def announce(store: Holder, incoming: int) -> None:
    """Claim what is about to be written, before this shard's volume and then the others' claims are read.

    The lock is held. Of two shards that look at once each has written before it reads, so one at least sees the
    other's; the mutex that SQLite takes to tell the volume keeps the processor from doing it the other way round.
    """
    header = store.header
    noted = header[Header.CLAIM] or store.volume()
    header[Header.CLAIM] = min(max(noted + incoming, 1), MOST)


def claimed(store: Holder) -> int:
    """Return the claim of another shard; where there is none yet, its volume, which is noted in its place.

    Noting it without the shard's lock can at worst replace a claim that its writer made just now by the volume of a
    moment ago; the next look of that writer mends it.
    """
    try:
        header = store.present_header()
        noted = header[Header.CLAIM]
        if noted == 0:
            noted = header[Header.CLAIM] = min(max(store.volume(), 1), MOST)
    except CacheError:
        return store.limit  # it cannot be read just now: what it is sure of
    return noted


def _parts(store: Holder) -> int:
    return len(store.siblings) + 1
