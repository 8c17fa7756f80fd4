"""Metrics: what the counts of all processes (coherence/counts.py) mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import add
from typing import NamedTuple

from ..coherence.counts import HIDDEN, INCIDENTS, TIMED, bounds_of
from .handle import Handle

PERCENTILES = (50, 99, 99.9)


class SpaceMetrics(NamedTuple):
    """What was done with keys that are counted together."""

    hot: int = 0  # hits in the memory of the process
    disk: int = 0  # hits on this machine's disk, or in the write buffer
    remote: int = 0  # hits that were asked of a server, with `remote=`
    misses: int = 0
    expired: int = 0  # those misses that found an entry which had expired
    sets: int = 0  # entries that were stored or changed
    deletes: int = 0  # entries that were removed by their keys

    @property
    def hits(self) -> int:
        """Return the hits of all tiers."""
        return self.hot + self.disk + self.remote

    @property
    def hit_rate(self) -> float:
        """Return the part of all reads that were hits, from 0 to 1; NaN for none."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else math.nan

    def minus(self, other: SpaceMetrics) -> SpaceMetrics:
        """Return what was added since `other`."""
        return SpaceMetrics(*(max(0, one - two) for one, two in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Times:
    """How long calls took, in buckets that are 6 % wide (coherence/counts.py)."""

    buckets: Sequence[int] = field(repr=False, default=())

    @property
    def count(self) -> int:
        """Return the number of calls."""
        return sum(self.buckets)

    def percentile(self, percent: float) -> float:
        """Return the seconds within which so many percent of the calls ended; NaN for no calls."""
        wanted, seen = max(1, math.ceil(self.count * percent / 100)), 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if seen >= wanted:
                return sum(bounds_of(bucket)) / 2e9
        return math.nan

    def minus(self, other: Times) -> Times:
        """Return what was added since `other`."""
        return Times([max(0, one - two) for one, two in zip_longest(self.buckets, other.buckets, fillvalue=0)])


@dataclass(frozen=True)
class Metrics:
    """What all processes of a machine have counted of a cache since it was made, or since a `reset`.

    Counts of a namespace are about its keys, and `evicted` and what follows about the whole cache.
    """

    total: SpaceMetrics
    spaces: dict[str, SpaceMetrics]  # by prefix, a text up to its first colon, or by namespace, which ends in a slash
    entries: int
    bytes: int  # that they take, without what waits in the write buffer
    size_limit: int
    handles: int  # how often a process has begun to count
    evicted: dict[str, int]  # entries that were removed, by the reason: room, expiry, tag (or namespace), clear
    damaged: int  # entries that did not match their checksum or could not be decoded
    unauthenticated: int  # entries whose authentication failed or was missing
    missing_files: int  # rows whose value file was gone, or not to be read by this user
    not_kept: int  # times that the cache failed where a value was computed, and the caller was not told
    stale_served: int  # values that had expired and were served by `get_or_set` or `memoize`, as their windows allow
    renewals: int  # computations in the background
    failed_renewals: int  # of those, the ones that raised an error
    flights_waited: int  # calls that waited for a computation of somebody else's
    lock_waits: int  # writes that found the write lock taken, and waited
    timeouts: int  # of those, the ones that gave up
    times: dict[str, Times] = field(repr=False)  # of hot, get, set, delete, lock: what was timed

    @property
    def hits(self) -> int:
        """Return the hits of all tiers."""
        return self.total.hits

    @property
    def misses(self) -> int:
        """Return the misses."""
        return self.total.misses

    @property
    def hit_rate(self) -> float:
        """Return the part of all reads that were hits, from 0 to 1; NaN for none."""
        return self.total.hit_rate

    def since(self, earlier: Metrics) -> Metrics:
        """Return what was counted since an earlier look; entries, bytes and limits are those of this one."""
        spaces = {name: space.minus(earlier.spaces.get(name, SpaceMetrics())) for name, space in self.spaces.items()}
        return replace(
            self,
            total=self.total.minus(earlier.total),
            spaces={name: space for name, space in spaces.items() if any(space)},
            evicted={reason: max(0, count - earlier.evicted[reason]) for reason, count in self.evicted.items()},
            times={name: times.minus(earlier.times.get(name, Times())) for name, times in self.times.items()},
            **{name: max(0, getattr(self, name) - getattr(earlier, name)) for name in _EVENTS},
        )

    def _repr_html_(self) -> str:
        """Return tables for a notebook."""
        spaces = [
            (
                name or "(no prefix)",
                *map("{:,}".format, (one.hits, one.misses)),
                rate(one),
                f"{one.sets:,}",
                f"{one.deletes:,}",
            )
            for name, one in self.busiest()
        ]
        times = [
            (name, f"{one.count:,}", *(f"{one.percentile(percent) * 1e6:,.1f}" for percent in PERCENTILES))
            for name, one in self.times.items()
        ]
        facts = {"entries": self.entries, "bytes": self.bytes, "limit": self.size_limit}
        facts |= {f"evicted for {reason}": number for reason, number in self.evicted.items() if number}
        return "".join(
            (
                _table(("", ""), [(name, f"{number:,}") for name, number in facts.items()]),
                _table(("space", "hits", "misses", "hit rate", "sets", "deletes"), spaces),
                _table(("call", "number", *(f"p{percent} (µs)" for percent in PERCENTILES)), times) if times else "",
            )
        )

    def busiest(self) -> list[tuple[str, SpaceMetrics]]:
        """Return the spaces, those with the most reads and writes first."""
        return sorted(self.spaces.items(), key=lambda item: -sum(item[1]))


def rate(space: SpaceMetrics) -> str:
    """Return a hit rate as text."""
    return "" if math.isnan(space.hit_rate) else f"{space.hit_rate:.1%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    import html  # late: few show tables

    lines = [("th", head), *(("td", row) for row in rows)]
    cells = (f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in row)}</tr>" for tag, row in lines)
    return f"<table>{''.join(cells)}</table>"


def metrics_of(handle: Handle, within: str = "", anew: bool = True) -> Metrics:
    """Return the metrics of a cache, or of the namespace whose name `within` is; `anew` as for `Counts.totals`."""
    found = handle.counts.totals(anew)
    spaces: dict[str, SpaceMetrics] = {}
    for number, name in found.names.items():
        space = SpaceMetrics(*found.space(number))
        if number != HIDDEN and any(space) and name.startswith(within):
            spaces[name] = SpaceMetrics(*map(add, spaces.get(name, SpaceMetrics()), space))  # which two may be called
    sizes = [store.size() for store in handle.shards.stores]
    return Metrics(
        total=SpaceMetrics(*map(sum, zip(*spaces.values(), strict=True))) if spaces else SpaceMetrics(),
        spaces=spaces,
        entries=sum(number for number, _ in sizes),
        bytes=sum(volume for _, volume in sizes),
        size_limit=int(handle.settings["size_limit"]),
        evicted={reason: found.event(f"evicted_{how}") for reason, how in _REASONS.items()},
        times={name: Times(found.times(name)) for name in TIMED if any(found.times(name))},
        **{name: found.event(name) for name in _EVENTS},
    )


_REASONS = {"room": "for_room", "expiry": "expired", "tag": "by_tag", "clear": "by_clear"}
_EVENTS = ("handles", *INCIDENTS)
