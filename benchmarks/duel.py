"""What each revision is made to do when two are compared: short blocks of one call, in worker processes of its own.

A worker imports the package of its revision and keeps its caches open between blocks, so that the two revisions can
take turns every few milliseconds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks.crew import Gate
from benchmarks.measure import clock, time_once
from benchmarks.peers.spec import OURS, BenchmarkError, load_items
from benchmarks.workloads.values import SEED, items_of, keys_of, names, value_of

ENTRIES = 1_000
HOT_KEYS = 100
BATCH = 100


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
    """The caches of one worker; its methods return the nanoseconds of `count` calls of one kind."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.keys = keys_of(ENTRIES)
        self.hot: Any = OURS.open(side.caches / "hot")

    @cached_property
    def cold(self) -> Any:
        """Return a cache without hot layer, opened when it is needed first."""
        made = OURS.having(hot_size_limit=0).open(self.side.caches / "cold")
        load_items(made, items_of(self.keys))
        return made

    @cached_property
    def memoized(self) -> Callable[[int], int]:
        made: Callable[[int], int] = self.hot.memoize()(square)
        return made

    @cached_property
    def listed(self) -> Callable[..., Any]:
        """Return `keys`, a tag of a hundred entries being there, and ten times as many entries with another one."""
        for number, key in enumerate(keys_of(10 * HOT_KEYS, "listed")):
            self.hot.set(key, value_of(key), tags=["large"] if number % 10 else ["large", "small"])
        keys: Callable[..., Any] = self.hot.keys
        return keys

    def warm(self, function: Callable[[Any], Any], arguments: Sequence[Any], count: int) -> int:
        """Call with each argument once, untimed, then with all of them again and again."""
        time_each(function, arguments)
        return time_each(function, (list(arguments) * -(-count // len(arguments)))[:count])

    def put(self, draw: random.Random, count: int) -> int:
        """Overwrite random entries."""
        return time_pairs(self.hot.set, draw.choices(self.keys, k=count), count)

    def put_with(self, draw: random.Random, count: int, **options: Any) -> int:
        """Overwrite random ones of few entries that have the same options."""
        keys, put = keys_of(HOT_KEYS, f"with {' '.join(options)}"), partial(self.hot.set, **options)
        time_pairs(put, keys)
        return time_pairs(put, draw.choices(keys, k=count), count)

    def put_new(self, put: Callable[[Any, Any], Any], count: int) -> int:
        """Store new entries, and remove them, in one transaction where there are any."""
        keys = keys_of(count, "new")
        elapsed = time_pairs(put, keys)
        self.remove(keys)
        return elapsed

    def remove(self, keys: Sequence[str]) -> None:
        with getattr(self.hot, "transact", nullcontext)():
            time_each(self.hot.delete, keys)

    def remove_old(self, count: int) -> int:
        keys = keys_of(count, "old")
        load_items(self.hot, items_of(keys))
        return time_each(self.hot.delete, keys)

    def evict(self, count: int) -> int:
        """Remove so many entries by their tag, of ten times as many with others."""
        keys = keys_of(10 * count, "evicted")
        for number, key in enumerate(keys):
            self.hot.set(key, value_of(key), tag=number % 10)
        elapsed, removed = time_once(lambda: self.hot.evict(7))
        if removed != count:
            raise BenchmarkError(f"evict removed {removed} of {count} entries")
        self.remove(keys)
        return elapsed

    def list_small(self, count: int, **options: Any) -> int:
        """List a hundred entries by their tags."""
        keys = self.listed
        start = clock()
        for _ in range(count):
            found = list(keys(**options))
        elapsed = clock() - start
        if len(found) != HOT_KEYS:
            raise BenchmarkError(f"keys({options}) lists {len(found)} of {HOT_KEYS} entries")
        return elapsed

    def push_pull(self, count: int) -> int:
        push, pull, value = self.hot.push, self.hot.pull, value_of("queue")
        start = clock()
        for _ in range(count):
            push(value)
            pull()
        return clock() - start

    def open(self, keys: Sequence[str]) -> int:
        """Open and read one key, closing untimed; the cache is open elsewhere, as it mostly is."""
        elapsed = 0
        for key in keys:
            start = clock()
            subject = OURS.open(self.side.caches / "hot")
            found = subject.get(key)
            elapsed += clock() - start
            subject.close()
            check(key, found)
        return elapsed

    def batches(self, draw: random.Random, count: int) -> list[list[str]]:
        return [draw.sample(self.keys, BATCH) for _ in range(count)]

    def read_beside_writer(self, draw: random.Random, count: int) -> int:
        """Read, but for the first worker, which writes a tenth as much meanwhile."""
        if self.side.number == 0:
            return self.put(draw, -(-count // 10))
        return time_each(self.hot.get, draw.choices(self.keys[:HOT_KEYS], k=count))


def square(number: int) -> int:
    """Be memoized."""
    return number * number


def time_each(function: Callable[[Any], Any], arguments: Sequence[Any]) -> int:
    """Time one call per argument, all together."""
    start = clock()
    for argument in arguments:
        function(argument)
    return clock() - start


def time_pairs(function: Callable[[Any, Any], Any], keys: Sequence[str], version: int = 0) -> int:
    """Time one call per key with a value of that version, all together."""
    arguments = [(key, value_of(key, version)) for key in keys]
    start = clock()
    for one, other in arguments:
        function(one, other)
    return clock() - start


@dataclass(frozen=True)
class Call:
    """A kind of call to compare: how a block of it is measured, the methods it needs, and whether by many at once."""

    label: str
    measure: Callable[[Bench, random.Random, int], int]
    needs: tuple[str, ...] = ()
    contended: bool = False


EIGHT = [f"tag {number}" for number in range(8)]
BOTH: dict[str, Any] = {"tags": ["small", "large"], "match": "all"}
CALLS = {
    "hot-get": Call("hot get", lambda b, draw, n: b.warm(b.hot.get, draw.sample(b.keys, HOT_KEYS), n)),
    "cold-get": Call("cold get", lambda b, draw, n: time_each(b.cold.get, draw.choices(b.keys, k=n))),
    "set-new": Call("set, new key", lambda b, draw, n: b.put_new(b.hot.set, n)),
    "set": Call("set, overwriting", Bench.put),
    "set-untagged": Call("set, overwriting, few keys", Bench.put_with),
    "set-tagged": Call("the same with one tag", lambda b, draw, n: b.put_with(draw, n, tag="tag")),
    "set-tags": Call("the same with eight tags", lambda b, draw, n: b.put_with(draw, n, tags=EIGHT), ("retag",)),
    "keys-small": Call("keys of a tag", lambda b, draw, n: b.list_small(n, tags=["small"]), ("retag",)),
    "keys-both": Call("keys of that and a larger tag", lambda b, draw, n: b.list_small(n, **BOTH), ("retag",)),
    "evict": Call("evict, per entry", lambda b, draw, n: b.evict(n), ("evict",)),
    "delete": Call("delete", lambda b, draw, n: b.remove_old(n)),
    "incr": Call("incr", lambda b, draw, n: time_each(b.hot.incr, ["counter"] * n), ("incr",)),
    "add": Call("add, new key", lambda b, draw, n: b.put_new(b.hot.add, n), ("add",)),
    "push-pull": Call("push and pull", lambda b, draw, n: b.push_pull(n), ("push", "pull")),
    "get-many": Call(
        f"get_many of {BATCH}, cold", lambda b, draw, n: time_each(b.cold.get_many, b.batches(draw, n)), ("get_many",)
    ),
    "set-many": Call(
        f"set_many of {BATCH}",
        lambda b, draw, n: time_each(b.hot.set_many, [dict(items_of(some, n)) for some in b.batches(draw, n)]),
        ("set_many",),
    ),
    "memoize": Call("memoize, hit", lambda b, draw, n: b.warm(b.memoized, range(HOT_KEYS), n), ("memoize",)),
    "open": Call("open and get", lambda b, draw, n: b.open(draw.choices(b.keys, k=n))),
    "contended-set": Call("set, contended", Bench.put, contended=True),
    "contended-get": Call("get while one sets", Bench.read_beside_writer, contended=True),
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


def check(key: str, found: object) -> None:
    """Make sure that a hit was measured, not a miss."""
    if not (isinstance(found, bytes) and names(key, found)):
        raise BenchmarkError(f"get({key!r}) returned {found!r}")


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
    return [name for name, one in CALLS.items() if not all(hasattr(_benches[0].hot, need) for need in one.needs)]


def measure_block(gate: Gate, block: Block) -> tuple[int, int]:
    """Run one block and return when it began and ended: alone, untimed parts left out, or with the rest of the crew.

    The clock is the same in all processes.
    """
    one, bench = CALLS[block.call], _benches[0]
    if not one.contended:
        return 0, one.measure(bench, random.Random(SEED + block.seed), block.count)
    draw = random.Random(SEED + block.seed * 1_000 + bench.side.number)
    gate.wait()
    began = clock()
    one.measure(bench, draw, block.count)
    return began, clock()
