"""The policy second-chance: a new entry is on probation, and stays if it is used again after a while.

Rows are in order of insertion, and none ever moves. What is newer than a boundary is on probation, a tenth of all
entries. Where that is too much, the boundary passes the oldest of them: an entry that was used in the second half of
its time there, so that a burst does not count, stays and belongs to the main part from then on; any other is evicted
and leaves a ghost. An entry whose ghost was there when it came back stays, too. Otherwise a hand goes over the main
part, from the oldest row to the boundary and then again, evicts what is unmarked, and takes the mark from the rest.

That is S3-FIFO (J. Yang and others, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023) with the hand of
SIEVE (Y. Zhang and others, NSDI 2024) for its main queue. `python -m benchmarks.traces` compares it with others.

The write lock is held. Keys share slots, and with them marks and ghosts: an entry may count as used because of a read
or a write of another key. If these, or the words of the header that say where the hands are, are damaged, made anew
or out of date, other entries are evicted, and nothing else happens.
"""

from __future__ import annotations

from typing import Final

from ...coherence.generations import NEVER, Header
from ..shard.open_shard import OpenShard
from ..shard.ownership import HOME
from ..shard.reader import places_of
from ..sqlite import statements as sql

_BOUNDARY, _HAND, _PROBATION = Header.BOUNDARY, Header.HAND, Header.PROBATION
PART = 10  # of the entries, one is on probation
LEAST = 500  # entries on probation, or half of a small cache
_HALF: Final = 0xFFFF  # of a ghost: a fingerprint, and when the entry was evicted
UNIT = 6  # bits of the number of evictions that a ghost leaves out


class SecondChance:
    """Choose which entries of one shard go."""

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard

    def victims(self, count: int, wanted: int) -> list[int]:
        """Return the places of about `wanted` entries to evict, of `count`; fewer if damage hides the others."""
        header, found = self._shard.header, list[int]()
        if not header[_BOUNDARY]:
            self._begin()
        on_probation = max(count // PART, min(LEAST, count // 2))
        looks = 3 * count + wanted  # the hand goes around twice at most, since the first time it takes marks away
        while len(found) < wanted and looks > 0:
            if header[_PROBATION] > on_probation:
                looks -= self._pass_boundary(found, min(header[_PROBATION] - on_probation, wanted), count)
            else:
                looks -= self._move_hand(found, wanted - len(found), on_probation)
        return found

    def _begin(self) -> None:
        """Let everything that is there before the first eviction be the main part."""
        header = self._shard.header
        ((last,),) = self._shard.connection.select(sql.LAST_NUMBER, (NEVER,))
        header[_BOUNDARY], header[_HAND], header[_PROBATION] = max(last, 1), 0, 0

    def _rows(self, after: int, last: int, most: int) -> list[tuple[int, int]]:
        """Return (place, number) of the oldest rows behind one number, 0 for all, up to another.

        Damage may have made both more than SQLite can compare.
        """
        shard = self._shard
        low = min(after + 1, NEVER) if after else -NEVER - 1  # a planted number may be negative, and counts as 0
        rows = shard.connection.select(sql.IN_ORDER, (low, min(last, NEVER), most))
        return [(place, max(row[1], 0)) for place, row in zip(places_of(rows, shard.path), rows, strict=True)]

    def _pass_boundary(self, found: list[int], most: int, count: int) -> int:
        """Let the boundary pass some rows; return how many, 1 at least. What goes is added to `found`."""
        shard, header = self._shard, self._shard.header
        rows = self._rows(header[_BOUNDARY], NEVER, most)
        now, evicted = header[Header.TICK], header[Header.EVICTED] >> UNIT
        for place, number in rows:
            rest, slot = divmod(place & HOME, shard.slot_prime)
            ghost, fingerprint = self._ghost(slot), rest & _HALF
            was_gone = ghost >> 16 == fingerprint and (evicted - ghost & _HALF) << UNIT <= count + count // PART
            if not was_gone and 2 * (shard.uses[slot] >> 1) < number + now:
                found.append(place)
                self._leave_ghost(slot, fingerprint << 16 | evicted & _HALF)
        if rows:
            header[_BOUNDARY] = rows[-1][1]
            header[_PROBATION] = max(header[_PROBATION] - len(rows), 0)
        else:  # it was estimated too high, since entries were removed meanwhile
            header[_PROBATION] = 0
        return len(rows) or 1

    def _move_hand(self, found: list[int], most: int, on_probation: int) -> int:
        """Let the hand pass some rows of the main part; return how many, 1 at least. What goes is added to `found`."""
        shard, header = self._shard, self._shard.header
        rows = self._rows(header[_HAND], header[_BOUNDARY], most)
        for place, number in rows:
            slot = (place & HOME) % shard.slot_prime
            if shard.uses[slot] >> 1 > number:
                shard.uses[slot] = 0
            else:
                found.append(place)
        if rows:
            header[_HAND] = rows[-1][1]
        elif header[_HAND]:
            header[_HAND] = 0
        else:  # the main part is empty
            header[_PROBATION] = on_probation + 1
        return len(rows) or 1

    def _ghost(self, slot: int) -> int:
        return self._shard.ghosts[slot // 2] >> slot % 2 * 32 & 0xFFFFFFFF

    def _leave_ghost(self, slot: int, ghost: int) -> None:
        ghosts, shift = self._shard.ghosts, slot % 2 * 32
        ghosts[slot // 2] = ghosts[slot // 2] & ~(0xFFFFFFFF << shift) | ghost << shift
