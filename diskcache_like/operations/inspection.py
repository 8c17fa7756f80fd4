"""Inspection: what the command line tells of a cache and no operation of the API does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..encoding.record import Record
from .parts import Parts


def records_of(cache: Parts, keys: Iterable[Any]) -> Iterator[tuple[Any, Record]]:
    """Yield each key that has a live entry with the record of that, without reading the value."""
    rows = cache._rows
    for key in keys:
        own = cache._namespaced(key)
        stored_key, home, store = location = rows.locate(own)
        record = rows.verified(own, location, store.read(home, stored_key))
        if record is not None and rows.is_live(record):
            yield key, record


def work_of(cache: Parts) -> tuple[int, int]:
    """Return how many writes and evictions there were in all processes, as numbers that only grow."""
    counts = [store.work_counts() for store in cache._shards.stores]
    return sum(writes for writes, _ in counts), sum(evicted for _, evicted in counts)


def identity_of(cache: Parts) -> tuple[int, dict[str, Any]]:
    """Return the number of shards, and the options that make another cache with the same codec and encryption."""
    handle, identity = cache._handle, cache._shards.stores[0].identity
    options: dict[str, Any] = {"disk": type(handle.disk)}
    if handle.disk.own_values:
        options = {name: identity[name] for name in ("serializer", "compressor")}
    return len(cache._shards.stores), {**options, "encrypt": True} if handle.sealer else options
