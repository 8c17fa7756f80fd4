"""Work for the power to fail in: random operations on a small cache, recorded, with what was acknowledged and when."""

from __future__ import annotations

import contextlib
import os
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import Cache, FanoutCache
from diskcache_like.errors import CorruptDatabaseWarning
from diskcache_like.storage.upkeep import bulk_removal, checkpoints, trash
from tests.support.sample_writes import MISSING

from ..shim import Shim
from ..workload import LANES, Lane, State, Work
from .disk_images import Disk, Event, parse, read

IN_FILES = 1000  # bytes from which a value has a file of its own
SIZES = (0, 0, 0, 0, 0, 100, 300, 700, 2000, 5000)  # of values, in bytes
PLACE = "cache"  # where the cache is, below the recorded directory
SECRETS = ("the first secret of all", "another secret of ours", "a third, for good measure")

KINDS: dict[str, Callable[..., Cache]] = {
    "one": partial(Cache, write_buffer=0),
    "two": partial(FanoutCache, shards=2, write_buffer=0),
    "sealed": partial(Cache, encrypt=True, write_buffer=0),
    "buffered": partial(Cache, write_buffer=1 << 14),
    "sealed two": partial(FanoutCache, shards=2, encrypt=True, write_buffer=1 << 14),
    "journal": partial(Cache, sqlite_journal_mode="delete"),
}
SETTINGS: dict[str, Any] = {"generation_slots": 16, "disk_min_file_size": IN_FILES, "timeout": 20}


class Mark(NamedTuple):
    """The state after an operation that was acknowledged when the log was `end` bytes long."""

    end: int
    state: State
    name: str
    in_steps: bool = False  # the operation was made of several commits
    evicts: bool = False  # and some of them may have evicted anything
    unevicted: Mapping[Any, Any] = MappingProxyType({})  # the state if nothing had gone for room
    is_closed: bool = False  # the cache was closed or synced, and so all of its rows are on the disk
    is_synced: bool = False  # and its value files, too
    is_loose: bool = False  # the database is damaged
    began: int = 0  # how long the log was when the operation began


@dataclass
class Recording:
    """What was done to the files of a cache, and what it held meanwhile."""

    kind: str
    disk: Disk  # before all of it
    events: list[Event]
    marks: list[Mark]
    ever: dict[Any, list[Any]]  # every value that each key ever had
    shards: dict[Any, int]
    maps: dict[str, list[tuple[int, bytes]]]  # by path: what was seen in a map, when the log was how long
    was_damaged: bool

    def point(self, end: int) -> int:
        """Return how many operations had been acknowledged when the log was so long."""
        return bisect_right([mark.end for mark in self.marks], end)


def open_cache(kind: str, directory: Path, secret: str, **settings: Any) -> Cache:
    """Return a handle on the recorded cache, or on an image of it."""
    if kind.startswith("sealed"):
        settings["secret"] = secret
    return KINDS[kind](directory, **SETTINGS, **settings)


def is_in_file(value: Any) -> bool:
    """Tell whether a value has a file of its own."""
    return isinstance(value, bytes) and len(value) >= IN_FILES


class RecordedWork(Work):
    """Work on a cache that is recorded, with its state after each operation."""

    def __init__(
        self,
        kind: str,
        space: Path,
        random: Random,
        settings: dict[str, Any],
        sizes: Sequence[int] = SIZES,
        lane: Lane = LANES[0],
        alone: bool = True,
    ) -> None:
        """Work below `space`; `alone`: no other process does so meanwhile."""
        self.kind, self.root, self.log, self.alone = kind, space / "disk", space / "log", alone
        self.evicts = "size_limit" in settings
        self.secrets = list(SECRETS)
        self.marks: list[Mark] = []
        self.maps: dict[str, list[tuple[int, bytes]]] = {}
        self.was_damaged, self.began = False, 0
        super().__init__(lambda: open_cache(kind, self.root / PLACE, self.secrets[0], **settings), random, sizes, lane)

    def end(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def mark(self, name: str, **what: bool) -> None:
        """Note that an operation was acknowledged, and with what result."""
        unevicted = self.state
        for key in unevicted if self.evicts else ():
            if key != self.lane.queue and key not in self.cache:
                self.may_be[key] = [MISSING]
        self.marks.append(Mark(self.end(), self.state, name, began=self.began, unevicted=unevicted, **what))
        for store in self.cache._shards.stores:
            for file in ("cache.gen", "cache.buffer"):
                path = Path(store.directory, file)
                if path.exists():
                    seen = self.maps.setdefault(str(path.relative_to(self.root)), [])
                    seen.append((self.end(), path.read_bytes()))

    def check(self) -> None:
        found = self.cache.check(fix=True)
        assert not found or self.was_damaged, [str(problem.message) for problem in found]

    def rotate(self) -> None:
        if self.kind.startswith("sealed"):
            self.cache.rotate(self.secrets[1])
            self.secrets.append(self.secrets.pop(0))

    def damage(self) -> None:
        """Have a bad disk damage a database, which the next opening quarantines."""
        number = self.random.randrange(len(self.cache._shards.stores))
        path = self.cache._shards.stores[number].path
        lost = {key for key, shard in shards_of(self.cache, self.lane).items() if shard == number}
        self.cache.close()
        self.mark("close", is_closed=self.kind != "journal")
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.pwrite(descriptor, b"not a database", 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        for key in lost & self.may_be.keys():
            self.may_be[key] = [() if key == self.lane.queue else MISSING]
        self.mark("damage", is_loose=True)
        self.cache = self.make()
        self.was_damaged = True
        self.mark("quarantine", in_steps=True)

    def do(self, preferred: Mapping[str, int] = MappingProxyType({})) -> None:
        """Do any work."""
        self.mark("made")
        names = [name for name in WEIGHTS if self.alone or name not in FOR_ALL]
        if self.evicts:
            names = [
                name for name in names if name not in ("push", "pull", "transact")
            ]  # the queue would be evicted from
        weights = [preferred.get(name, WEIGHTS[name]) for name in names]
        number, damaged = self.random.randint(5, 120), self.random.choice((-1, -1, 4, 30)) if self.alone else -1
        for each in range(number):
            if each == damaged:
                self.damage()
            name = self.random.choices(names, weights)[0]
            self.began = self.end()
            getattr(self, name)()
            is_synced = name == "sync"
            is_closed = is_synced or (name == "reopen" and self.kind != "journal")  # whose removal may be undone
            in_steps = name in IN_STEPS or self.evicts
            self.mark(name, in_steps=in_steps, evicts=self.evicts, is_closed=is_closed, is_synced=is_synced)


WEIGHTS = {
    "set": 30,
    "stream": 4,
    "delete": 6,
    "pop": 3,
    "add": 4,
    "incr": 6,
    "touch": 2,
    "push": 8,
    "pull": 6,
    "transact": 8,
    "set_many": 3,
    "delete_many": 1,
    "evict": 1,
    "clear": 1,
    "check": 1,
    "reopen": 3,
    "sync": 3,
    "rotate": 1,
}
IN_STEPS = frozenset({"set_many", "delete_many", "clear", "evict", "check", "rotate", "transact", "reopen"})
FOR_ALL = frozenset({"clear", "check", "reopen", "rotate"})  # what concerns the other process too


class Focus(NamedTuple):
    """What a cache mostly does, so that one thing shows soon."""

    kind: str
    sizes: tuple[int, ...]  # of values, in bytes
    preferred: Mapping[str, int] = MappingProxyType({})  # operations, with how often they are drawn
    checkpoint: int | None = None  # bytes of WAL before each; drawn if None


ON_FILES = Focus("one", (0, 2000, 5000), checkpoint=4 << 10)
ON_TRANSACTIONS = Focus("two", SIZES, {"transact": 100})
ON_BUFFER = Focus("buffered", (0, 300, 700), {"set": 300})


def drawn_kind(random: Random) -> str:
    return random.choices([*KINDS], (5, 2, 2, 1, 3, 3))[0]


def record(random: Random, space: Path, durability: str, focus: Focus | None = None) -> Recording:
    """Have a cache work below `space`, and return what was recorded; without a `focus` it does any work."""
    if focus is None:
        focus = ON_TRANSACTIONS if random.random() < 0.15 else Focus(drawn_kind(random), SIZES)
    kind, root, log = focus.kind, space / "disk", space / "log"
    root.mkdir(parents=True)
    settings: dict[str, Any] = {"durability": durability}
    if random.random() < 0.2:
        settings |= {"size_limit": random.choice((60_000, 120_000)), "eviction_policy": "least-recently-used"}
    with fitted(random, focus.checkpoint), Shim(root).recording(log):
        work = RecordedWork(kind, space, random, settings, focus.sizes)
        work.do(focus.preferred)
    events = [*parse(log.read_bytes())]
    verify(root, Disk(str(root.resolve()), root.stat().st_ino), events)
    disk = Disk(str(root.resolve()), root.stat().st_ino)
    work.maps |= maps_in(root)
    shards = shards_of(work.cache, work.lane)
    work.cache.close()
    return Recording(kind, disk, events, work.marks, work.ever, shards, work.maps, work.was_damaged)


def maps_in(root: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return what is in the maps of which no earlier state is known."""
    return {str(path.relative_to(root)): [(0, path.read_bytes())] for path in root.rglob("*-shm")}


def shards_of(cache: Cache, lane: Lane) -> dict[Any, int]:
    """Return the number of the shard of everything that is written."""
    stores = cache._shards.stores
    shards = {key: stores.index(cache._shards.of(cache._rows.locate(key)[1])) for key in lane.every}
    return {**shards, lane.queue: stores.index(cache._rows.queue_store(lane.prefix))}


@contextlib.contextmanager
def fitted(random: Random, checkpoint: int | None = None) -> Iterator[None]:
    """Have upkeep come often, and everything random from one seed."""
    between = random.choice((4 << 10, 16 << 10, 64 << 10, 16 << 20))
    with (
        warnings.catch_warnings(action="ignore", category=CorruptDatabaseWarning),  # of damage done on purpose
        mock.patch.object(checkpoints, "CHECKPOINT_BYTES", checkpoint or between),
        mock.patch.object(trash, "GRACE", random.choice((-1.0, -1.0, 10.0))),
        mock.patch.object(bulk_removal, "MANY", random.choice((0, bulk_removal.MANY))),
        mock.patch.object(os, "urandom", random.randbytes),
    ):
        yield


def is_mapped(path: str) -> bool:
    """Tell whether a file is written through shared memory."""
    return path.endswith((".gen", ".buffer", ".metrics", "-shm"))


def verify(root: Path, disk: Disk, events: Sequence[Event]) -> None:
    """Compare what is on the disk with what the log says; another way to change files would have gone unseen."""
    for event in events:
        disk.apply(event)
    told, there = disk.complete(), read(root)
    assert told.keys() == there.keys(), "the log does not tell of every file"
    for path, content in there.items():
        wanted = told[path]
        if content is not None and wanted is not None and is_mapped(path):
            content, wanted = content[:0], wanted[:0]
        assert content == wanted, f"{path} is not what the log says"
