"""Ghosts: which keys had an entry, or were asked for in vain, a short while ago.

A ghost is a fingerprint of a key's hash, and the number of evictions at that time. Four lie beside each other, the
newest first, and the oldest goes for a new one. They are in the generation file, so all processes share them. Whoever
leaves one need not hold the write lock: if a ghost is lost, or taken for that of another key, another entry is kept or
goes, and nothing else happens.
"""

from __future__ import annotations

from typing import Final

from ...coherence.generations import MARKING, Header, mark_place
from .open_shard import OpenShard
from .ownership import HOME

_HALF: Final = 0xFFFF  # of a ghost: its fingerprint, and its time
_MIX: Final = 0x9E3779B97F4A7C15  # so that similar hashes have other fingerprints (D. Knuth)
_UNIT: Final = 6  # bits of the number of evictions that a ghost leaves out


class Ghosts:
    """Look for ghosts, and leave some, at one moment; `entries` are in the shard, and a ghost is known for as long."""

    def __init__(self, shard: OpenShard, entries: int) -> None:
        self._cells = shard.generations.ghosts
        self._mask = MARKING[shard.header[Header.MARKS] & 15][0]
        self._prime = shard.slot_prime
        self._now = shard.header[Header.EVICTED] >> _UNIT & _HALF
        self._recent = entries + entries // 10 >> _UNIT

    def knows(self, home: int) -> bool:
        """Tell whether the ghost of a key is there."""
        fingerprint = _fingerprint(home)
        return any(
            ghost >> 16 == fingerprint and (self._now - ghost & _HALF) <= self._recent for ghost in self._around(home)
        )

    def leave(self, home: int) -> None:
        """Leave the ghost of a key."""
        ghosts = self._around(home)
        moved = (_fingerprint(home) << 16 | self._now, *ghosts[:-1])
        for index in range(len(ghosts)):  # none where the file was closed meanwhile
            ghosts[index] = moved[index]

    def _around(self, home: int) -> memoryview[int]:
        """Return the four ghosts among which that of a key is."""
        first = (mark_place(home & HOME, self._prime) & self._mask) >> 1 & ~7
        return self._cells[first + 1 : first + 8 : 2]


def _fingerprint(home: int) -> int:
    return (home & HOME) * _MIX >> 50 & _HALF
