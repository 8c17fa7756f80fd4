"""Append a small write in one call of the C helper, which takes the write lock, and releases it, itself.

The call does what `WriteLock`, `Transactions.acquire` and `WriteBuffer.write` do together where nothing else is due, in
the same order, and nothing at all where anything is: then those do it. No signal handler runs within it.
"""

from __future__ import annotations

from .generations import TICK_LIMIT, Header, prime_below
from .native import NEWEST, NativeModule
from .ring import LONGEST_WALK, SMALLEST, Mark, Net, Ring, Word
from .write_lock import WriteLock

_WORDS = {
    "tick": Header.TICK,
    "settled": Header.SETTLED,
    "epoch": Header.EPOCH,
    "buffer": Header.BUFFER,
    "cross_shard": Header.CROSS_SHARD,
    "written": Header.WRITTEN,
    "volume_due": Header.VOLUME_DUE,
    "limit": Header.LIMIT,
    "claim": Header.FAIRNESS_CLAIM,
    "waiters": Header.WAITERS,
    "wake": Header.WAKE,
}
_RING_WORDS = {
    "reserved": Word.RESERVED,
    "last": Word.LAST,
    "head": Word.HEAD,
    "done": Word.DONE,
    "flushed": Word.FLUSHED,
    "flushed_last": Word.FLUSHED_LAST,
    "floor": Word.FLOOR,
}


class Appender:
    """Append to the ring of one shard as it is open now; what it points to stays mapped as long as this is in use."""

    __slots__ = ("_append", "_lock", "_native", "_ring", "_shard", "_views")

    def __init__(
        self,
        native: NativeModule,
        lock: WriteLock,
        generations: tuple[memoryview[int], memoryview[int]],
        ring: Ring,
        limits: dict[str, int],
    ) -> None:
        """Note where everything is.

        `generations`: words of the header, and the slots. `limits`, in bytes: `longest` record, `bound` of what waits,
        `due_limit` of what is written until upkeep; and `known_limit`, which `Header.LIMIT` may not exceed.
        """
        header, slots = generations
        ring_words, table, content = ring.views()
        words = {name: (header, index) for name, index in _WORDS.items()}
        words |= {name: (ring_words, index) for name, index in _RING_WORDS.items()}
        words |= {"slots": (slots, 0), "table": (table, 0), "content": (content, 0)}
        numbers = limits | {
            "slot_prime": prime_below(len(slots)),
            "table_prime": prime_below(len(table)),
            "capacity": ring.capacity,
            "tick_limit": TICK_LIMIT,
            "longest_walk": LONGEST_WALK,
            "known_epoch": header[Header.EPOCH],
            "known_buffer": header[Header.BUFFER],
            "lock": lock.fileno(),
        }
        self._native, self._append = native, native.append
        self._lock, self._ring = lock, ring
        self._shard = native.shard(words, numbers)
        self._views = header, slots, ring_words, table, content

    def belongs_to(self, lock: WriteLock, ring: Ring | None) -> bool:
        """Tell whether this is about these two, which a handle has open."""
        return self._lock is lock and self._ring is ring

    def append(
        self, h: int, expected: int, body: bytes, key_size: int, kind: int, columns: tuple[int, int, float, float]
    ) -> int:
        """Append a record and return the slot's new generation; return 0, with nothing done, if that is not possible.

        `expected`: the generation that the slot must have, 0 for any. `WriteLock.enter_alone` keeps other threads out.
        """
        return self._append(self._shard, h, expected, body, len(body), key_size, kind, *columns)

    def gather(self, most: int) -> tuple[dict[bytes | int, Net], Mark] | None:
        """Do what `Ring.gather` does; return None for damage, at which that has to look closer."""
        ring = self._ring
        found = self._native.gather(self._shard, min(most, ring.waiting() // SMALLEST + 1))
        if found is None:
            return None
        newest, end, last = found
        net: dict[bytes | int, Net] = {}
        for offset, first, was_removed in NEWEST.iter_unpack(newest):
            key, tick, h, what = ring.record_at(offset)
            net[key] = (first, tick, h, what, bool(was_removed))
        return net, Mark(ring.words[Word.ID], end, last)
