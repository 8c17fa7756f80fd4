"""Work for the power to fail in: random operations on a small cache, recorded, with what was acknowledged and when."""

from __future__ import annotations

import contextlib
import os
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import Cache, FanoutCache
from diskcache_like.errors import CorruptDatabaseWarning
from diskcache_like.storage.upkeep import bulk_removal, checkpoints, trash

from ..shim import Shim
from .disk_images import Disk, Event, parse, read

KEYS = tuple(f"key {number}" for number in range(20)) + tuple((number, b"pair") for number in range(4))
COUNTERS = ("hits", "misses")
QUEUE = "the queue"  # stands for all of its items, in order
TAG = "tagged"


class Lane(NamedTuple):
    """What one process writes, and no other."""

    keys: tuple[Any, ...] = KEYS
    counters: tuple[str, ...] = COUNTERS
    queue: str = QUEUE  # stands for all of its items, in order
    prefix: str | None = None  # of the queue
    tag: str = TAG


LANES = (Lane(), Lane(tuple(f"other {key}" for key in KEYS), ("others",), "the other queue", "other", "other tag"))

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

State = dict[Any, Any]  # values by key


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


@dataclass
class Work:
    """A cache at work, with what is expected of it after each operation."""

    kind: str
    place: Path
    log: Path
    random: Random
    settings: dict[str, Any]
    sizes: Sequence[int]  # of values, in bytes
    lane: Lane = LANES[0]
    alone: bool = True  # no other process writes meanwhile
    cache: Cache = field(init=False)
    secrets: list[str] = field(default_factory=lambda: list(SECRETS))
    expected: State = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    ever: dict[Any, list[Any]] = field(default_factory=dict)
    maps: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    written: int = 0
    was_damaged: bool = False
    began: int = 0

    def __post_init__(self) -> None:
        self.expected[self.lane.queue] = ()

    @property
    def evicts(self) -> bool:
        """Tell whether the cache is too small for what it is given."""
        return "size_limit" in self.settings

    def open(self) -> None:
        """Open the cache."""
        self.cache = open_cache(self.kind, self.place, self.secrets[0], **self.settings)

    def end(self) -> int:
        """Return the length of the log."""
        return self.log.stat().st_size if self.log.exists() else 0

    def mark(self, name: str, **what: bool) -> None:
        """Note that an operation was acknowledged, and with what result."""
        unevicted = dict(self.expected)
        if self.evicts:
            self.expected = self.still_there()
        self.marks.append(Mark(self.end(), dict(self.expected), name, began=self.began, unevicted=unevicted, **what))
        for store in self.cache._shards.stores:
            for name in ("cache.gen", "cache.buffer"):
                path = Path(store.directory, name)
                if path.exists():
                    seen = self.maps.setdefault(str(path.relative_to(self.place.parent)), [])
                    seen.append((self.end(), path.read_bytes()))

    def still_there(self) -> State:
        """Return of what is expected that of which the cache says that it has it, and the queue."""
        return {key: value for key, value in self.expected.items() if key == self.lane.queue or key in self.cache}

    def key(self) -> Any:
        """Return a key."""
        return self.random.choice(self.lane.keys)

    def value(self, key: Any, size: int | None = None) -> Any:
        """Return a value that the key never had, of `size` bytes or of any of the sizes."""
        self.written += 1
        text = f"{key} for the {self.written}th time; "
        size = self.random.choice(self.sizes) if size is None else size
        return (text * (size // len(text) + 1))[:size].encode() if size >= 300 else text

    def becomes(self, key: Any, value: Any) -> None:
        """Expect a value from now on."""
        self.ever.setdefault(key, []).append(value)
        self.expected[key] = value

    def gone(self, key: Any) -> None:
        """Expect a key to be missing from now on."""
        self.expected.pop(key, None)

    def assert_removed(self, found: Any, expected: Any, missing: Any) -> None:
        """Assert that a removal found what it removes; in a full cache, the upkeep before it may evict just that."""
        assert found == expected or (self.evicts and found is missing), f"found {found!r}, expected {expected!r}"


Operation = Callable[[Work], None]
OPERATIONS: dict[str, tuple[Operation, int]] = {}  # with how often they are drawn
IN_STEPS = frozenset({"set many", "delete many", "clear", "evict", "cull", "check", "rotate", "transact", "open"})
FOR_ALL = frozenset({"clear", "check", "open", "rotate"})  # what concerns the other process too


def operation(name: str, weight: int) -> Callable[[Operation], Operation]:
    """Register something that caches do."""

    def register(function: Operation) -> Operation:
        OPERATIONS[name] = function, weight
        return function

    return register


@operation("set", 30)
def do_set(work: Work) -> None:
    key = work.key()
    value = work.value(key)
    work.ever.setdefault(key, []).append(value)
    work.cache.set(key, value, tag=work.random.choice((None, work.lane.tag)))
    work.expected[key] = value


@operation("stream", 4)
def do_stream(work: Work) -> None:
    key = work.key()
    value = work.value(key, 2500)
    work.becomes(key, value)
    with work.cache.open(key, "wb") as stream:
        for start in range(0, len(value), 1500):
            stream.write(value[start : start + 1500])


@operation("delete", 6)
def do_delete(work: Work) -> None:
    key = work.key()
    work.assert_removed(work.cache.delete(key), key in work.expected, missing=False)
    work.gone(key)


@operation("pop", 3)
def do_pop(work: Work) -> None:
    key = work.key()
    work.assert_removed(work.cache.pop(key), work.expected.get(key), missing=None)
    work.gone(key)


@operation("add", 4)
def do_add(work: Work) -> None:
    key = work.key()
    value = work.value(key)
    if key not in work.expected:
        work.becomes(key, value)
    work.cache.add(key, value)


@operation("incr", 6)
def do_incr(work: Work) -> None:
    key = work.random.choice(work.lane.counters)
    work.becomes(key, work.expected.get(key, 0) + 1)
    work.cache.incr(key)


@operation("touch", 2)
def do_touch(work: Work) -> None:
    work.cache.touch(work.key(), 1e6)


@operation("push", 8)
def do_push(work: Work) -> None:
    work.written += 1
    item = f"item {work.written}"
    work.becomes(work.lane.queue, (*work.expected[work.lane.queue], item))
    work.cache.push(item, work.lane.prefix)


@operation("pull", 6)
def do_pull(work: Work) -> None:
    first, *rest = work.expected[work.lane.queue] or (None,)
    work.becomes(work.lane.queue, tuple(rest))
    assert work.cache.pull(work.lane.prefix)[1] == first


@operation("transact", 8)
def do_transact(work: Work) -> None:
    before = dict(work.expected)
    with contextlib.suppress(ZeroDivisionError), work.cache.transact():
        for _ in range(work.random.randint(1, 4)):
            work.random.choice((do_set, do_set, do_set, do_delete, do_incr, do_push, do_pull))(work)
        if work.random.random() < 0.2:
            work.expected = before
            raise ZeroDivisionError


@operation("set many", 3)
def do_set_many(work: Work) -> None:
    many = {key: work.value(key) for key in work.random.sample(work.lane.keys, work.random.randint(1, 12))}
    for key, value in many.items():
        work.becomes(key, value)
    work.cache.set_many(many)


@operation("delete many", 1)
def do_delete_many(work: Work) -> None:
    keys = work.random.sample(work.lane.keys, 6)
    work.cache.delete_many(keys)
    for key in keys:
        work.gone(key)


@operation("evict", 1)
def do_evict(work: Work) -> None:
    work.cache.evict(work.lane.tag)
    work.expected = work.still_there()


@operation("clear", 1)
def do_clear(work: Work) -> None:
    work.becomes(QUEUE, ())
    work.cache.clear()
    work.expected = {QUEUE: ()}


@operation("check", 1)
def do_check(work: Work) -> None:
    found = work.cache.check(fix=True)
    assert not found or work.was_damaged, [str(problem.message) for problem in found]


@operation("open", 3)
def do_open(work: Work) -> None:
    work.cache.close()
    work.open()


@operation("sync", 3)
def do_sync(work: Work) -> None:
    work.cache.sync()


@operation("rotate", 1)
def do_rotate(work: Work) -> None:
    if work.kind.startswith("sealed"):
        work.cache.rotate(work.secrets[1])
        work.secrets.append(work.secrets.pop(0))


def damage(work: Work) -> None:
    """Have a bad disk damage a database, which the next opening quarantines."""
    store = work.random.choice(work.cache._shards.stores)
    number = work.cache._shards.stores.index(store)
    lost = {key for key, shard in shards_of(work.cache, work.lane).items() if shard == number}
    work.cache.close()
    work.mark("close", is_closed=work.kind != "journal")
    descriptor = os.open(store.path, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"not a database", 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    work.expected = {key: value for key, value in work.expected.items() if key not in lost}
    work.expected.setdefault(QUEUE, ())
    work.mark("damage", is_loose=True)
    work.open()
    work.was_damaged = True
    work.mark("quarantine", in_steps=True)


def shard_of(cache: Cache, key: Any) -> int:
    """Return the number of the shard that holds a key."""
    return cache._shards.stores.index(cache._shards.of(cache._rows.locate(key)[1]))


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
    """Draw which cache is recorded."""
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
    work = Work(kind, root / PLACE, log, random, settings, focus.sizes)
    with fitted(random, focus.checkpoint), Shim(root).recording(log):
        do_work(work, focus.preferred)
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
    shards = {key: shard_of(cache, key) for key in (*lane.keys, *lane.counters)}
    return {**shards, lane.queue: cache._shards.stores.index(cache._rows.queue_store(lane.prefix))}


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


def do_work(work: Work, preferred: Mapping[str, int]) -> None:
    """Open the cache and do all of its work."""
    work.open()
    work.mark("made")
    names = [name for name in OPERATIONS if work.alone or name not in FOR_ALL]
    if work.evicts:
        names = [name for name in names if name not in ("push", "pull", "transact")]  # the queue would be evicted from
    weights = [preferred.get(name, OPERATIONS[name][1]) for name in names]
    number, damaged = work.random.randint(5, 120), work.random.choice((-1, -1, 4, 30)) if work.alone else -1
    for each in range(number):
        if each == damaged:
            damage(work)
        name = work.random.choices(names, weights)[0]
        work.began = work.end()
        OPERATIONS[name][0](work)
        is_synced = name == "sync"
        is_closed = is_synced or (name == "open" and work.kind != "journal")  # whose removal may be undone
        in_steps = name in IN_STEPS or work.evicts
        work.mark(name, in_steps=in_steps, evicts=work.evicts, is_closed=is_closed, is_synced=is_synced)


def is_mapped(path: str) -> bool:
    """Tell whether a file is written through shared memory."""
    return path.endswith((".gen", ".buffer", "-shm"))


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
