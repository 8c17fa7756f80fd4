"""What each revision is made to do when two are compared: short blocks of one call, in worker processes of its own.

A worker imports the package of its revision and keeps its caches open between blocks, so that the two revisions can
take turns every few milliseconds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.crew import Gate
from benchmarks.measure import clock
from benchmarks.subjects import OURS, BenchmarkError, Subject, feature, load_items
from benchmarks.workloads import SEED, items_of, keys_of, value_of

ENTRIES = 1_000
HOT_KEYS = 100
BATCH = 100
COUNTER = "counter"


@dataclass(frozen=True)
class Side:
    """One worker's part: the directory that holds its revision's package, and the caches that its crew shares."""

    package: Path
    caches: Path
    number: int


@dataclass(frozen=True)
class Block:
    """How many calls of which kind; the seed picks the keys, the same for both revisions."""

    call: str
    seed: int
    count: int


class Bench:
    """The caches of one worker, and the times of blocks of calls on them, in nanoseconds."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.keys = keys_of(ENTRIES)
        self.hot = OURS.open(side.caches / "hot")
        self._cold: Subject | None = None
        self._memoized: Callable[[int], int] | None = None
        self._is_listed = False

    @property
    def cold(self) -> Subject:
        """Return a cache without hot layer, opened when it is needed first."""
        if self._cold is None:
            self._cold = OURS.having(hot_size_limit=0).open(self.side.caches / "cold")
            load_items(self._cold, items_of(self.keys))
        return self._cold

    def hot_get(self, draw: random.Random, count: int) -> int:
        keys = draw.sample(self.keys, HOT_KEYS)
        time_each(self.hot.get, keys)
        return time_each(self.hot.get, (keys * -(-count // HOT_KEYS))[:count])

    def cold_get(self, draw: random.Random, count: int) -> int:
        return time_each(self.cold.get, draw.choices(self.keys, k=count))

    def set_new(self, draw: random.Random, count: int) -> int:
        keys = keys_of(count, "new")
        elapsed = time_pairs(self.hot.set, [(key, value_of(key)) for key in keys])
        self._remove(keys)
        return elapsed

    def set(self, draw: random.Random, count: int) -> int:
        return time_pairs(self.hot.set, [(key, value_of(key, count)) for key in draw.choices(self.keys, k=count)])

    def set_tagged(self, draw: random.Random, count: int) -> int:
        return self._set_with(draw, count, "tagged", tag="tag")

    def set_tags(self, draw: random.Random, count: int) -> int:
        return self._set_with(draw, count, "with tags", tags=[f"tag {number}" for number in range(8)])

    def set_untagged(self, draw: random.Random, count: int) -> int:
        """Do what the two above do, without tags."""
        return self._set_with(draw, count, "untagged")

    def _set_with(self, draw: random.Random, count: int, prefix: str, **options: Any) -> int:
        keys = keys_of(HOT_KEYS, prefix)
        put = partial(feature(self.hot, "set"), **options)
        time_pairs(put, [(key, value_of(key)) for key in keys])
        return time_pairs(put, [(key, value_of(key, count)) for key in draw.choices(keys, k=count)])

    def keys_of_small(self, draw: random.Random, count: int) -> int:
        """List what a tag of a hundred entries has, of which there are ten times as many with another one."""
        return self._list_small(count, tags=["small"])

    def keys_of_both(self, draw: random.Random, count: int) -> int:
        """List what has that tag and the other one."""
        return self._list_small(count, tags=["small", "large"], match="all")

    def _list_small(self, count: int, **options: Any) -> int:
        keys, put = feature(self.hot, "keys"), feature(self.hot, "set")
        if not self._is_listed:
            for number, key in enumerate(keys_of(10 * HOT_KEYS, "listed")):
                put(key, value_of(key), tags=["large"] if number % 10 else ["large", "small"])
            self._is_listed = True
        start = clock()
        for _ in range(count):
            found = list(keys(**options))
        elapsed = clock() - start
        if len(found) != HOT_KEYS:
            raise BenchmarkError(f"keys({options}) lists {len(found)} of {HOT_KEYS} entries")
        return elapsed

    def evict(self, draw: random.Random, count: int) -> int:
        """Remove so many entries by their tag, of ten times as many with others."""
        put = feature(self.hot, "set")
        keys = keys_of(10 * count, "evicted")
        for number, key in enumerate(keys):
            put(key, value_of(key), tag=number % 10)
        start = clock()
        removed = feature(self.hot, "evict")(7)
        elapsed = clock() - start
        if removed != count:
            raise BenchmarkError(f"evict removed {removed} of {count} entries")
        self._remove(keys)
        return elapsed

    def delete(self, draw: random.Random, count: int) -> int:
        keys = keys_of(count, "old")
        load_items(self.hot, items_of(keys))
        return time_each(self.hot.delete, keys)

    def incr(self, draw: random.Random, count: int) -> int:
        return time_each(feature(self.hot, "incr"), [COUNTER] * count)

    def add(self, draw: random.Random, count: int) -> int:
        keys = keys_of(count, "added")
        elapsed = time_pairs(feature(self.hot, "add"), [(key, value_of(key)) for key in keys])
        self._remove(keys)
        return elapsed

    def push_pull(self, draw: random.Random, count: int) -> int:
        push, pull = feature(self.hot, "push"), feature(self.hot, "pull")
        value = value_of("queue")
        start = clock()
        for _ in range(count):
            push(value)
            pull()
        return clock() - start

    def get_many(self, draw: random.Random, count: int) -> int:
        return time_each(feature(self.cold, "get_many"), [draw.sample(self.keys, BATCH) for _ in range(count)])

    def set_many(self, draw: random.Random, count: int) -> int:
        batches = [{key: value_of(key, count) for key in draw.sample(self.keys, BATCH)} for _ in range(count)]
        return time_each(feature(self.hot, "set_many"), batches)

    def memoize(self, draw: random.Random, count: int) -> int:
        if self._memoized is None:
            self._memoized = feature(self.hot, "memoize")()(square)
        assert self._memoized is not None
        time_each(self._memoized, range(HOT_KEYS))
        return time_each(self._memoized, draw.choices(range(HOT_KEYS), k=count))

    def open(self, draw: random.Random, count: int) -> int:
        """Open and read one key, closing untimed; the cache is open elsewhere, as it mostly is."""
        elapsed = 0
        for key in draw.choices(self.keys, k=count):
            start = clock()
            subject = OURS.open(self.side.caches / "hot")
            found = subject.get(key)
            elapsed += clock() - start
            subject.close()
            check(key, found)
        return elapsed

    def contended_set(self, draw: random.Random, count: int) -> int:
        return self.set(draw, count)

    def contended_get(self, draw: random.Random, count: int) -> int:
        """Read, but for the first worker, which writes a tenth as much meanwhile."""
        if self.side.number == 0:
            return self.set(draw, -(-count // 10))
        return time_each(self.hot.get, draw.choices(self.keys[:HOT_KEYS], k=count))

    def _remove(self, keys: Sequence[str]) -> None:
        """Delete what a block has added, in one transaction where there are any."""
        transact = getattr(self.hot, "transact", None)
        if transact is None:
            time_each(self.hot.delete, keys)
        else:
            with transact():
                time_each(self.hot.delete, keys)


@dataclass(frozen=True)
class Call:
    """A kind of call to compare: how a block of it is measured, the methods it needs, and whether by many at once."""

    measure: Callable[[Bench, random.Random, int], int]
    label: str
    needs: tuple[str, ...] = ()
    contended: bool = False


CALLS = {
    "hot-get": Call(Bench.hot_get, "hot get"),
    "cold-get": Call(Bench.cold_get, "cold get"),
    "set-new": Call(Bench.set_new, "set, new key"),
    "set": Call(Bench.set, "set, overwriting"),
    "set-untagged": Call(Bench.set_untagged, "set, overwriting, few keys"),
    "set-tagged": Call(Bench.set_tagged, "the same with one tag"),
    "set-tags": Call(Bench.set_tags, "the same with eight tags", ("retag",)),
    "keys-small": Call(Bench.keys_of_small, "keys of a tag", ("retag",)),
    "keys-both": Call(Bench.keys_of_both, "keys of that and a larger tag", ("retag",)),
    "evict": Call(Bench.evict, "evict, per entry", ("evict",)),
    "delete": Call(Bench.delete, "delete"),
    "incr": Call(Bench.incr, "incr", ("incr",)),
    "add": Call(Bench.add, "add, new key", ("add",)),
    "push-pull": Call(Bench.push_pull, "push and pull", ("push", "pull")),
    "get-many": Call(Bench.get_many, f"get_many of {BATCH}, cold", ("get_many",)),
    "set-many": Call(Bench.set_many, f"set_many of {BATCH}", ("set_many",)),
    "memoize": Call(Bench.memoize, "memoize, hit", ("memoize",)),
    "open": Call(Bench.open, "open and get"),
    "contended-set": Call(Bench.contended_set, "set, contended", contended=True),
    "contended-get": Call(Bench.contended_get, "get while one sets", contended=True),
}


@dataclass(frozen=True)
class Bound:
    """What a call may cost at most, as a multiple of another one of the same revision."""

    call: str
    over: str
    most: float

    def __str__(self) -> str:
        return f"{self.call} / {self.over}"


BOUNDS = (
    Bound("set-tagged", "set-untagged", 1.25),
    Bound("set-tags", "set-untagged", 3),
    Bound("keys-both", "keys-small", 2),
)

_benches: list[Bench] = []


def square(number: int) -> int:
    """Be memoized."""
    return number * number


def check(key: str, found: object) -> None:
    """Make sure that a hit was measured, not a miss."""
    if not (isinstance(found, bytes) and found.startswith(key.encode())):
        raise BenchmarkError(f"get({key!r}) returned {found!r}")


def time_each(function: Callable[[Any], Any], arguments: Sequence[Any]) -> int:
    """Time one call per argument, all together."""
    start = clock()
    for argument in arguments:
        function(argument)
    return clock() - start


def time_pairs(function: Callable[[Any, Any], Any], arguments: Sequence[tuple[Any, Any]]) -> int:
    """Time one call per pair of arguments, all together."""
    start = clock()
    for one, other in arguments:
        function(one, other)
    return clock() - start


def take_side(gate: Gate, side: Side) -> list[str]:
    """Import the revision's package, open its caches, and return the calls whose methods it lacks."""
    sys.path.insert(0, str(side.package))
    found = Path(OURS.load().__file__).resolve()
    if not found.is_relative_to(side.package.resolve()):
        raise BenchmarkError(f"{OURS.module} came from {found} instead of the revision in {side.package}")
    side.caches.mkdir(exist_ok=True)
    if side.number == 0:
        _benches.append(Bench(side))
        load_items(_benches[0].hot, items_of(_benches[0].keys))
        for key in _benches[0].keys:
            check(key, _benches[0].hot.get(key))
    gate.wait()
    if side.number:
        _benches.append(Bench(side))
    return [name for name, call in CALLS.items() if not all(hasattr(_benches[0].hot, need) for need in call.needs)]


def measure_block(gate: Gate, block: Block) -> tuple[int, int]:
    """Run one block alone and return when it began and ended, untimed parts left out."""
    call = CALLS[block.call]
    draw = random.Random(SEED + block.seed)
    elapsed = call.measure(_benches[0], draw, block.count)
    return 0, elapsed


def measure_together(gate: Gate, block: Block) -> tuple[int, int]:
    """Run one block at the same time as the rest of the crew; the clock is the same in all of them."""
    bench = _benches[0]
    draw = random.Random(SEED + block.seed * 1_000 + bench.side.number)
    gate.wait()
    began = clock()
    CALLS[block.call].measure(bench, draw, block.count)
    return began, clock()
