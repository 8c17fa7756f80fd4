"""Inspection: what the command line and the server tell of a cache and no operation of the API does."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..coherence.generations import Header
from ..encoding.record import Record
from ..entries.metrics import PERCENTILES, Metrics
from ..errors import Timeout
from ..settings.policies import FREQUENCY
from ..storage.opening.identity import is_database
from ..storage.upkeep.checkpoints import RESERVE, WAL
from ..system.paths import left_on_disk
from ..system.signals import suppress
from .parts import Parts

if TYPE_CHECKING:
    from ..cache import Cache

FULL = 1.02  # of the limit: a write that is under way may exceed it by a little,
LEAST = 64 << 10  # and each shard needs so many bytes in any case
LONG_WAL = 64 << 20  # bytes, four times those between two checkpoints
PATIENCE = 1.0  # seconds in which nobody should hold the write lock all the time


def records_of(cache: Parts, keys: Iterable[Any]) -> Iterator[tuple[Any, Record]]:
    """Yield each key that has a live entry with the record of that, without reading the value."""
    rows = cache._rows
    for key in keys:
        own = cache._namespaced(key)
        stored_key, home, store = location = rows.locate(own)
        record = rows.verified(own, location, store.read(home, stored_key))
        if record is not None and rows.is_live(record):
            yield key, record


def uses_of(cache: Parts, keys: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each key that has a mark, with the number of its uses, or minus the number of writes since the last one.

    Marks tell both roughly, and entries may share one (coherence/generations.py).
    """
    for key in keys:
        _, home, _ = cache._rows.locate(cache._namespaced(key))
        shard = cache._shards.of(home).shard
        marks, counts = shard.marks, shard.policy.marks == FREQUENCY
        if marks[home]:
            yield key, marks[home] if counts else marks.last_use(home, 0, 0) // 2 - shard.header[Header.TICK]


def disk_of(cache: Parts) -> tuple[list[str], int, int, bool]:
    """Return the names of quarantined databases, the bytes of all WALs, those that the disk has left, and one flag.

    The flag tells whether the disk has less left than removals need.
    """
    aside, wal, left = list[str](), 0, left_on_disk(cache._handle.directory)
    for store in cache._shards.stores:
        folder, name = os.path.split(store.path)
        aside += [each for each in os.listdir(folder) if is_database(each) and each != name]
        with suppress(FileNotFoundError):
            wal += os.stat(store.path + WAL).st_size
    return aside, wal, left, left < RESERVE


def is_writable(cache: Parts, timeout: float) -> bool:
    """Tell whether the write lock of every shard can be had within some seconds each."""
    try:
        for store in cache._shards.stores:
            with store.locked(timeout, flushes=False):
                pass
    except Timeout:
        return False
    return True


def identity_of(cache: Parts) -> tuple[int, dict[str, Any]]:
    """Return the number of shards, and the options that make another cache with the same codec and encryption."""
    handle, identity = cache._handle, cache._shards.stores[0].identity
    options: dict[str, Any] = {"disk": type(handle.disk)}
    if handle.disk.own_values:
        options = {name: identity[name] for name in ("serializer", "compressor")}
    return len(cache._shards.stores), {**options, "encrypt": True} if handle.sealer else options


def looks_at(cache: Cache, count: int) -> Iterator[tuple[str, bool, str]]:
    """Yield what is looked at, whether all is well with it, and what was found; `count`: entries to read."""
    limit, volume = cache.size_limit, cache.volume()
    evicts = cache.eviction_policy != "none"
    most = FULL * limit + LEAST * len(cache._shards.stores)
    yield "volume", not evicts or volume <= most, f"{volume:,} bytes, {volume / max(limit, 1):.0%} of the limit"
    aside, wal, left, is_tight = disk_of(cache)
    yield "disk", not is_tight, f"{left:,} bytes left"
    yield "journal", wal <= LONG_WAL, f"{wal:,} bytes"
    yield "quarantine", not aside, f"damaged databases that were put aside: {', '.join(aside)}" if aside else "none"
    found = [cache.why(key).reason for key in itertools.islice(cache, count)]
    bad = found.count("damaged")
    yield "entries", not bad, f"{len(found):,} read, {bad:,} damaged or not readable here"
    is_free = is_writable(cache, PATIENCE)
    yield "write lock", is_free, "free" if is_free else f"held by others for {PATIENCE:.0f} s"


def activity(done: Metrics) -> dict[str, Any]:
    """Return metrics as plain data, the busiest spaces first; a rate of no reads is None."""
    return {
        "hits": done.hits,
        "misses": done.misses,
        "writes": done.total.sets + done.total.deletes,
        "evictions": done.evicted["room"],
        "hit_rate": None if math.isnan(done.hit_rate) else done.hit_rate,
        "spaces": {name: one._asdict() for name, one in done.busiest()},
        "evicted": done.evicted,
        "times": {
            name: {"count": one.count} | {f"p{percent}": one.percentile(percent) for percent in PERCENTILES}
            for name, one in done.times.items()
            if one.count
        },
        **{name: getattr(done, name) for name in ("entries", "bytes", "size_limit", *_EVENTS)},
    }


_EVENTS = ("stale_served", "lock_waits", "timeouts", "damaged")
