"""Reading: the numbers that monitoring gets of a cache, the same for each library, and none while the cache fails."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from ..cache import Cache, without_face
from ..coherence.counts import BUCKETS, INCIDENTS, OFF, PARTS, bounds_of
from ..entries.metrics import Metrics, Times
from ..errors import SettingError
from ..system.signals import reraise_signal

_TIERS: Final = ("hot", "disk", "remote")
_log: Final = logging.getLogger(__package__)


class Family(NamedTuple):
    """Numbers of one kind: whether they only grow, what tells them apart, and what they are."""

    grows: bool
    labels: tuple[str, ...]
    told: str


FAMILIES: Final = {
    "gets": Family(True, ("space", "tier", "result"), "Reads, by the tier that had the value, or why there was none."),
    "puts": Family(True, ("space",), "Entries that were stored or changed."),
    "deletes": Family(True, ("space",), "Entries that were removed by their keys."),
    "evictions": Family(True, ("reason",), "Entries that were removed for another reason."),
    "events": Family(True, ("event",), "What else happened, mostly rare; see Metrics of diskcache_like."),
    "entries": Family(False, (), "Entries that are there, with expired ones that are not removed yet."),
    "bytes": Family(False, (), "Bytes that the entries take."),
    "limit_bytes": Family(False, (), "Bytes that they may take."),
}


class Histogram(NamedTuple):
    """How long calls of one kind took: bounds as text, each with the number of calls that took no longer; seconds."""

    buckets: list[tuple[str, int]]
    seconds: float


class Reading:
    """What all processes have counted of a cache since its file was made, and what it holds now."""

    def __init__(self, metrics: Metrics, level: str) -> None:
        self._metrics, self._level = metrics, level

    def numbers(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield each number with the name of its family and the values of its labels.

        Where nothing is counted, there are only those that do not grow.
        """
        found = self._metrics
        yield "entries", (), found.entries
        yield "bytes", (), found.bytes
        yield "limit_bytes", (), found.size_limit
        if self._level == OFF:
            return
        for space, one in found.spaces.items():
            yield from (("gets", (space, tier, "hit"), getattr(one, tier)) for tier in _TIERS)
            yield "gets", (space, "", "miss"), max(0, one.misses - one.expired)
            yield "gets", (space, "", "expired"), one.expired
            yield "puts", (space,), one.sets
            yield "deletes", (space,), one.deletes
        yield from (("evictions", (reason,), number) for reason, number in found.evicted.items())
        yield from (("events", (event,), getattr(found, event)) for event in INCIDENTS)

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """Yield the times of each kind of call; none unless they are measured."""
        return ((operation, _histogram(times)) for operation, times in self._metrics.times.items())


def _histogram(times: Times) -> Histogram:
    octaves = [sum(times.buckets[first : first + PARTS]) for first in range(0, BUCKETS, PARTS)]
    ends = [repr(bounds_of(first + PARTS - 1)[1] / 1e9) for first in range(0, BUCKETS - PARTS, PARTS)]
    halves = sum(count * sum(bounds_of(bucket)) for bucket, count in enumerate(times.buckets) if count)
    return Histogram(list(zip((*ends, "+Inf"), itertools.accumulate(octaves), strict=True)), halves / 2e9)


def refuse_name(name: str, others: Collection[str]) -> None:
    """Raise SettingError if another cache that is monitored has this name."""
    if name in others:
        raise SettingError(f"name {name!r} is that of two caches: give one of them another name")


class Source:
    """A cache that is monitored, and its name; `cache` may be a face of one, or a backend of Django."""

    def __init__(self, cache: Any, name: str | None) -> None:
        self._given = cache
        found = self.cache()
        names = () if found._within is None else found._within.names
        name = "/".join((os.path.basename(found.directory), *names)) if name is None else name
        self.name = name.encode("utf-8", "replace").decode()  # a directory may be called what is no text
        self._fails = False

    def cache(self) -> Cache:
        """Return the cache itself; that of a backend of Django may be another one by now."""
        inner = None if isinstance(self._given, Cache) else getattr(self._given, "_cache", None)
        return inner if isinstance(inner, Cache) else without_face(self._given)

    def read(self) -> Reading | None:
        """Return what is counted, having opened the cache; None, and at first a line in the log, while that fails."""
        try:
            cache = self.cache()
            reading = Reading(cache._counted(anew=False), cache._handle.counts.level)
        except Exception as error:
            reraise_signal(error)
            if not self._fails:
                _log.warning(
                    "cache %r is left out of what is monitored: %r (said once until it works)", self.name, error
                )
            self._fails = True
            return None
        self._fails = False
        return reading


__all__ = ["FAMILIES", "Family", "Histogram", "Reading", "Source", "refuse_name"]
