"""Inspection: what the command line tells of a cache and no operation of the API does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from ..coherence.generations import Header
from ..encoding.record import Record
from ..errors import Timeout
from ..settings.policies import FREQUENCY
from ..storage.opening.identity import is_database
from ..storage.upkeep.checkpoints import RESERVE, WAL
from ..system.paths import left_on_disk
from ..system.signals import suppress
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
