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

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from ...coherence.generations import NEVER, Header
from ...settings.policies import FREQUENCY, NO_MARKS, RECENCY
from ..shard.open_shard import OpenShard
from ..shard.reader import places_of
from ..sqlite import statements as sql

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
    since: int  # the write at which it was inserted or moved
    number: int
    written: int  # the write of its value


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
            most = min(max(excess, 0), looks)
            self._end_probation(islice(self._rows(last + 1, NEVER, wanted), most), count, wanted, choice)
            found = len(choice.evicted) + len(choice.moved)
            if found < most and len(choice.evicted) < wanted:  # there are no more
                self._shard.header[_UNMOVED] = found
        if len(choice.evicted) < wanted:
            lacking = wanted - len(choice.evicted)
            queue = merge(self._rows(0, last, lacking), self._rows(_LOWEST, -1, lacking), key=itemgetter(1))
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
        """Count the rows on probation that a choice removed or moved, of `unmoved`; leave ghosts of what was removed.

        A policy with probation leaves its ghosts there, since each means that probation was too short.
        """
        header, txn = self._shard.header, self._shard.connection.txn
        left = sum(row.number > header[_BOUNDARY] for rows in choice for row in rows)
        if txn is not None:  # which takes all that it has evicted away when it is committed
            txn.removed -= len(choice.evicted)
            left -= len(choice.evicted)
        header[_UNMOVED] = max(unmoved - left, 0)
        if not self._shard.policy.tries:
            for row in choice.evicted:
                self._shard.marks.leave(row.place)

    def _rows(self, low: int, high: int, wanted: int) -> Iterator[Queued]:
        """Yield the rows whose numbers lie in a range, in their order; read about as many at once as are wanted."""
        shard = self._shard
        while low <= high:
            rows = shard.connection.select(sql.OLDEST, (low, high, max(wanted, FEW)))
            places_of(rows, shard.path)
            if not rows:
                break
            yield from map(Queued._make, rows)
            low = rows[-1][2] + 1

    def _choose_least_used(self, queue: Iterator[Queued], count: int, wanted: int, choice: Choice) -> None:
        """Evict what was used least at the head of the queue, and have the rest of what was used there moved."""
        counts, is_all = self._shard.policy.marks == FREQUENCY, count <= ALL
        lacking, unused, use_of = wanted - len(choice.evicted), 0, self._use
        head: list[tuple[int, int, Queued, int]] = []
        for row in queue:
            use, since = use_of(row), row.since
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

    @property
    def _use(self) -> Callable[[Queued], int]:
        """Return the function that tells how a row was used, as the policy wants it."""
        uses = {NO_MARKS: self._last_write, RECENCY: self._last_use, FREQUENCY: self._count}
        return uses[self._shard.policy.marks]

    def _last_use(self, row: Queued) -> int:
        """Return twice the time of the last use since a row was inserted or moved, or 0.

        A use after a write, and before the next one, has an odd number.
        """
        place, since, _, written = row
        return self._shard.marks.last_use(place, written, since)

    def _last_write(self, row: Queued) -> int:
        """Return the same as if writes were the only uses."""
        return 2 * row.written if row.written > row.since else 0

    def _count(self, row: Queued) -> int:
        """Return how often a row was used; half is forgotten after some turns of the queue."""
        header = self._shard.header
        period = TURNS * max(header[Header.COUNT], 1)
        turns = header[Header.TICK] // period - row.since // period  # none where the row's number was planted
        return self._shard.marks[row.place] >> max(turns, 0)

    def _keep_counts(self, choice: Choice) -> None:
        """Clear the counts of what goes, and store those of what stays, of which some is forgotten."""
        marks = self._shard.marks
        for row in choice.moved:
            marks.put(row.place, self._count(row))
        for row in choice.evicted:
            marks.put(row.place, 0)

    # -- probation ----------------------------------------------------------------------------------------------------

    def _end_probation(self, rows: Iterator[Queued], count: int, wanted: int, choice: Choice) -> None:
        """Evict some of the oldest rows that are on probation, or have them moved."""
        now, marks, use_of = self._shard.header[Header.TICK], self._shard.marks, self._use
        for row in rows:
            if marks.knows(row.place, count) or use_of(row) >= row.since + now:
                choice.moved.append(row)
                continue
            choice.evicted.append(row)
            marks.leave(row.place)
            if len(choice.evicted) >= wanted:
                break
