"""Which entries are evicted: the table is a queue, and rows that were used go to its end.

The rows lie in the order of their numbers. A new row has the number of the write that inserted it. A row that came to
the head of the queue and stays is **moved back**: it gets the number of that moment less MOVED_BACK, which is negative,
so that the rows that were moved lie in their order as well. Moving fills whole pages and empties whole pages.

* `least-recently-stored`: what was overwritten since it was inserted or moved stays.
* `least-recently-used`: what was used since then stays, as with CLOCK (F. Corbató, 1968).
* `least-frequently-used`: what was used at all stays; counts are halved after eight turns of the queue.
* `second-chance`: rows that were inserted since the cache was first full, and not moved yet, are on probation, a tenth
  of all. One that was used in the second half of its time there, so that a burst does not count, stays; any other
  leaves a ghost, and one whose ghost was there when it came back stays, too. Of the others, those that were used since
  they were inserted or moved stay. That is S3-FIFO (J. Yang and others, "FIFO Queues are All You Need for Cache
  Eviction", SOSP 2023) with another rule for probation.

Of the few rows at the head that are looked at, those that were used least go, so nobody waits for a whole turn of the
queue. Where that is the whole queue, the order is exact, and nothing is moved.
`python -m benchmarks.traces` compares the policies.

The write lock is held. Some entries share marks, so one may count as used because another was. If marks, ghosts or
words of the header are damaged, made anew or out of date, other entries are evicted, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from ...coherence.generations import MARKING, MOST_MARK, NEVER, Header, mark_place
from ...settings.policies import FREQUENCY, NO_MARKS
from ..shard.ghosts import Ghosts
from ..shard.open_shard import OpenShard
from ..shard.ownership import HOME
from ..shard.reader import places_of
from ..sqlite import statements as sql
from ..sqlite.schema import MOVED_BACK

_BOUNDARY, _UNMOVED = Header.BOUNDARY, Header.UNMOVED
PART = 10  # of the entries, one is on probation
LEAST = 500  # entries on probation, or half of a small cache
LOOKS = 4  # rows that are looked at, at most, for one that goes
ALL = 100  # rows that are looked at in any case, if they were used
FEW = 20  # rows that are read at once
TURNS = 8  # after which a count is halved
_LOWEST: Final = -NEVER - 1


class Queued(NamedTuple):
    """A row as it lies in the queue."""

    place: int
    number: int
    written: int  # the write of its value

    @property
    def since(self) -> int:
        """Return the write at which it was inserted or moved."""
        return self.number if self.number > 0 else self.number + MOVED_BACK


class Choice(NamedTuple):
    """What goes, and what stays and has to be moved back."""

    evicted: list[Queued]
    moved: list[Queued]


class Victims:
    """Choose which entries of one shard go."""

    def __init__(self, shard: OpenShard) -> None:
        self._shard = shard

    def choose(self, count: int, wanted: int) -> Choice:
        """Choose about `wanted` of `count` entries to evict; fewer if damage hides the others."""
        choice, last, looks = Choice([], []), NEVER, max(LOOKS * wanted, ALL)
        if self._shard.policy.tries:
            last = self._boundary()
            excess = self._shard.header[_UNMOVED] - max(count // PART, min(LEAST, count // 2))
            new = islice(self._rows(last + 1, NEVER, wanted), min(max(excess, 0), looks))
            self._end_probation(new, count, wanted, choice)
        if len(choice.evicted) < wanted:
            queue = merge(self._rows(0, last, wanted), self._rows(_LOWEST, -1, wanted), key=attrgetter("since"))
            self._choose_least_used(islice(queue, looks), count, wanted, choice)
        if not choice.evicted:  # all are on probation and were used, or damage has made the boundary anything
            return Choice([*islice(self._rows(_LOWEST, NEVER, wanted), wanted)], [])
        return choice

    def _boundary(self) -> int:
        """Return the highest number that is not on probation: that of the newest row when the cache was first full."""
        header = self._shard.header
        if not header[_BOUNDARY]:
            ((last,),) = self._shard.connection.select(sql.LAST_NUMBER, (NEVER,))
            header[_BOUNDARY], header[_UNMOVED] = max(last, 1), 0
        return min(header[_BOUNDARY], NEVER - 1)  # more is damage, and too much for SQLite to compare

    def settle(self, choice: Choice, unmoved: int) -> None:
        """Count the rows on probation that a choice removed or moved; there were `unmoved` of them before."""
        boundary = self._shard.header[_BOUNDARY]
        left = sum(row.number > boundary for rows in choice for row in rows)
        self._shard.header[_UNMOVED] = max(unmoved - left, 0)

    def _rows(self, low: int, high: int, wanted: int) -> Iterator[Queued]:
        """Yield the rows whose numbers lie in a range, in their order; read as many at once as may be enough."""
        shard = self._shard
        while low <= high:
            rows = shard.connection.select(sql.OLDEST, (low, high, max(2 * wanted, FEW)))
            places_of(rows, shard.path)
            if not rows:
                break
            yield from map(Queued._make, rows)
            low = rows[-1][1] + 1

    def _choose_least_used(self, queue: Iterator[Queued], count: int, wanted: int, choice: Choice) -> None:
        """Evict what was used least at the head of the queue, and have the rest of what was used there moved."""
        counts, is_all = self._shard.policy.marks == FREQUENCY, count <= ALL
        lacking, unused = wanted - len(choice.evicted), 0
        head: list[tuple[int, int, Queued, int]] = []
        for row in queue:
            use, since = self._use(row), row.since
            head.append((use if counts else max(use, 2 * since), since, row, use))
            unused += not use
            if unused >= lacking and not is_all:
                break
        head.sort()
        choice.evicted.extend(row for _, _, row, _ in head[:lacking])
        if not is_all:
            choice.moved.extend(row for _, _, row, use in head[lacking:] if use)
        if counts:
            self._keep_counts(choice)

    def _use(self, row: Queued) -> int:
        """Return how often a row was used, or twice the time of its last use since it was inserted or moved; or 0.

        A use after a write, and before the next one, has an odd number.
        """
        marks = self._shard.policy.marks
        if marks == FREQUENCY:
            return self._uses(row)
        last = 2 * row.written if marks == NO_MARKS else max(2 * row.written, self._last_use(row))
        return last if last > 2 * row.since else 0

    def _mark_of(self, row: Queued) -> int:
        """Return the index of an entry's mark."""
        place = mark_place(row.place & HOME, self._shard.slot_prime)
        return place & MARKING[self._shard.header[Header.MARKS] & 15][0]

    def _last_use(self, row: Queued) -> int:
        """Return twice the time of the last use and one more; 0 if the mark tells of no use."""
        header = self._shard.header
        shift = MARKING[header[Header.MARKS] & 15][1]
        mark, now = self._shard.marks[self._mark_of(row)], header[Header.TICK] >> shift
        last = now - (now - mark & MOST_MARK)
        # A mark tells the time only roughly: a use at about the time of the row's insertion counts as a later one.
        return 2 * max(last << shift, row.since) + 1 if mark and last >= row.since >> shift else 0

    def _uses(self, row: Queued) -> int:
        """Return how often a row was used; half is forgotten after some turns of the queue."""
        header = self._shard.header
        period = TURNS * max(header[Header.COUNT], 1)
        turns = header[Header.TICK] // period - row.since // period  # none where the row's number was planted
        return self._shard.marks[self._mark_of(row)] >> max(turns, 0)

    def _keep_counts(self, choice: Choice) -> None:
        """Clear the counts of what goes, and store those of what stays, of which some is forgotten."""
        marks = self._shard.marks
        for row in choice.moved:
            marks[self._mark_of(row)] = self._uses(row)
        for row in choice.evicted:
            marks[self._mark_of(row)] = 0

    # -- probation ----------------------------------------------------------------------------------------------------

    def _end_probation(self, rows: Iterator[Queued], count: int, wanted: int, choice: Choice) -> None:
        """Evict some of the oldest rows that are on probation, or have them moved."""
        now, ghosts = self._shard.header[Header.TICK], Ghosts(self._shard, count)
        for row in rows:
            if ghosts.knows(row.place) or self._use(row) >= row.since + now:
                choice.moved.append(row)
                continue
            choice.evicted.append(row)
            ghosts.leave(row.place)
            if len(choice.evicted) >= wanted:
                break
