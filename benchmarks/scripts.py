"""What a scenario loads and calls: seeded items and scripts, the same for every subject, and proof of what came back.

A script is a list of steps, each the index of a kind of call and its arguments, made before anything is timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from benchmarks.subjects import Subject, bulk, feature
from benchmarks.workloads import CLASSIC_SHARES, DELETE, GET, SEED, SET, VALUE_SIZE, keys_of, value_of

Steps = list[tuple[int, tuple[Any, ...]]]

BULK = 1_000
TAGGED = 100
EXPIRE = 3600  # seconds
ZIPF = 0.99  # the skew of YCSB: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", 2010
RECORDS = 50
FIELDS = 160


class Workload(Protocol):
    """What is loaded before, what is called, and how an answer proves that it is right."""

    def __hash__(self) -> int: ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of calls, in the order of their indices."""
        ...

    @property
    def per_call(self) -> int:
        """Return how many keys one call works on; times are given per key."""
        ...

    @property
    def deletes(self) -> bool:
        """Tell whether a key that is read may have been deleted."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return what the subject holds before."""
        ...

    def steps(self, seed: int, count: int) -> Steps:
        """Return `count` steps for one process."""
        ...

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Tell whether `result`, which is not None, is a right answer to the call."""
        ...


def bound(subject: Subject, kind: str) -> Callable[..., Any]:
    """Return what one kind of call runs on a subject; raise MissingFeature where it has nothing like it."""
    if kind == "insert":
        return subject.set
    put: Callable[..., Any] = subject.set
    if kind == "set_expiring":
        return lambda key, value: put(key, value, expire=EXPIRE)
    if kind == "set_tagged":
        feature(subject, "evict")
        return lambda key, value, tag: put(key, value, tag=tag)
    if kind == "hit":
        return feature(subject, "memoize")()(memoized)  # type: ignore[no-any-return]
    if kind in ("get_many", "set_many"):
        return getattr(bulk(subject), kind)  # type: ignore[no-any-return]
    return feature(subject, kind)


def memoized(number: int) -> bytes:
    """Return what is memoized: a short value that names its argument."""
    return value_of(str(number))


@dataclass(frozen=True)
class Bytes:
    """Make byte strings of `size` bytes that start with their key."""

    size: int

    def __call__(self, key: str, version: int) -> bytes:
        """Return one value."""
        return value_of(key, version, self.size)


def dict_of(key: str, version: int) -> dict[str, Any]:
    """Return a dictionary of about 10 KB that names its key: text, numbers, lists, nested dictionaries."""
    draw = random.Random(f"{key}/{version}")
    return {"key": key, "version": version} | {
        f"field_{number:03d}": [draw.randrange(10**6), draw.random(), {"name": f"{draw.getrandbits(64):016x}"}]
        for number in range(FIELDS)
    }


def records_of(key: str, version: int) -> list[dict[str, Any]]:
    """Return a list of small records, as a query of a database gives them, each naming its key."""
    draw = random.Random(f"{key}/{version}")
    return [
        {
            "key": key,
            "id": number,
            "name": f"{draw.getrandbits(64):x}",
            "price": draw.random() * 100,
            "active": draw.random() < 0.5,
        }
        for number in range(RECORDS)
    ]


def names(key: str, value: Any) -> bool:
    """Tell whether a value of one of the makers above names its key."""
    if isinstance(value, list):
        return bool(value) and value[0]["key"] == key
    return bool(value["key"] == key) if isinstance(value, dict) else bool(value.startswith(f"{key}/".encode()))


@dataclass(frozen=True)
class Mix:
    """Single calls in given shares over `keys` keys, of which `loaded` (all, unless given) are there before.

    Keys are drawn uniformly, or by Zipf's law with the exponent `skew`.
    """

    keys: int = 100
    shares: Mapping[int, int] = field(default_factory=lambda: CLASSIC_SHARES, hash=False)
    make: Callable[[str, int], Any] = Bytes(VALUE_SIZE)
    skew: float = 0.0
    loaded: int | None = None
    per_call: int = 1
    put: str = "set"  # the kind of call that stores

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return get, set and delete, up to the last one that occurs."""
        return ("get", self.put, "delete")[: max(kind for kind, share in self.shares.items() if share) + 1]

    @property
    def deletes(self) -> bool:
        """Tell whether keys are deleted, each of which may be read."""
        return bool(self.shares.get(DELETE))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return the keys that are there, in shuffled order."""
        order = keys_of(self.keys)[: self.loaded]
        random.Random(SEED).shuffle(order)
        return ((key, self.make(key, 0)) for key in order)

    def steps(self, seed: int, count: int) -> Steps:
        """Return calls in random order."""
        draw = random.Random(seed)
        keys, values = keys_of(self.keys), {}
        random.Random(SEED + 1).shuffle(keys)  # so that neighbours are not equally popular
        kinds = draw.choices(list(self.shares), weights=list(self.shares.values()), k=count)
        found: Steps = []
        for kind, key in zip(kinds, self._draw(draw, keys, count), strict=True):
            if kind == SET:
                # A value takes longer to make than to store: each key has two in turn.
                version = draw.randrange(2)
                if (key, version) not in values:
                    values[key, version] = self.make(key, version)
                found.append((SET, (key, values[key, version])))
            else:
                found.append((kind, (key,)))
        return found

    def _draw(self, draw: random.Random, keys: Sequence[str], count: int) -> list[str]:
        if not self.skew:
            return draw.choices(keys, k=count)
        weights = list(accumulate(1 / rank**self.skew for rank in range(1, len(keys) + 1)))
        return draw.choices(keys, cum_weights=weights, k=count)

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Look for the key in the value."""
        return kind != "get" or names(args[0], result)


@dataclass(frozen=True)
class Growth:
    """Gets, overwriting sets, and deletes each followed by an insertion of the same key, on `entries` entries.

    The keys that are deleted are never read, so no miss is by design.
    """

    entries: int
    per_call: int = 1
    deletes: bool = False
    kinds: tuple[str, ...] = ("get", "set", "delete", "insert")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return every key in shuffled order."""
        order = keys_of(self.entries)
        random.Random(SEED).shuffle(order)
        return ((key, value_of(key)) for key in order)

    def steps(self, seed: int, count: int) -> Steps:
        """Return rounds of two gets, a set, a delete and an insertion of random keys."""
        draw = random.Random(seed)
        kept, moving = self._sample(draw, 0, 3 * count // 5 + 3), self._sample(draw, 1, count // 5 + 1)
        found: Steps = []
        for number, key in enumerate(moving):
            first, second, third = kept[3 * number : 3 * number + 3]
            found += [(0, (first,)), (0, (second,)), (1, (third, value_of(third, seed)))]
            found += [(2, (key,)), (3, (key, value_of(key, seed)))]
        return found

    def _sample(self, draw: random.Random, parity: int, count: int) -> list[str]:
        numbers = (2 * draw.randrange(self.entries // 2) + parity for _ in range(count))
        return [f"user:{number:08d}:profile" for number in numbers]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Look for the key in the value."""
        return kind != "get" or names(args[0], result)


@dataclass(frozen=True)
class Bulk:
    """Calls on a thousand keys at once."""

    keys: int = 10_000
    per_call: int = BULK
    deletes: bool = False
    kinds: tuple[str, ...] = ("get_many", "set_many")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return every key."""
        return ((key, value_of(key)) for key in keys_of(self.keys))

    def steps(self, seed: int, count: int) -> Steps:
        """Return reads and writes in turn."""
        draw, keys = random.Random(seed), keys_of(self.keys)
        found: Steps = []
        for _ in range(max(count // self.per_call // 2, 1)):
            mapping = {key: value_of(key, seed) for key in draw.sample(keys, self.per_call)}
            found += [(0, (draw.sample(keys, self.per_call),)), (1, (mapping,))]
        return found

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Look for every key."""
        return kind != "get_many" or (len(result) == self.per_call and all(names(key, result[key]) for key in args[0]))


@dataclass(frozen=True)
class Counters:
    """Increments of a few counters, which no process may lose."""

    keys: int = 10
    per_call: int = 1
    deletes: bool = False
    kinds: tuple[str, ...] = ("incr",)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return nothing: a counter begins with its first increment."""
        return ()

    def steps(self, seed: int, count: int) -> Steps:
        """Return increments of random counters."""
        draw = random.Random(seed)
        return [(0, (f"counter:{draw.randrange(self.keys)}",)) for _ in range(count)]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Look for a number."""
        return isinstance(result, int) and result > 0


@dataclass(frozen=True)
class Queue:
    """Pushes and pulls in turn, on a queue that is never empty."""

    loaded: int = 100
    per_call: int = 1
    deletes: bool = False
    kinds: tuple[str, ...] = ("push", "pull")

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return nothing: the first steps of every process fill the queue."""
        return ()

    def steps(self, seed: int, count: int) -> Steps:
        """Return a hundred pushes, then pushes and pulls in turn."""
        value = value_of(f"job:{seed}")
        return [(0, (value,))] * self.loaded + [(0, (value,)), (1, ())] * max((count - self.loaded) // 2, 1)

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Look for a value, which `pull` returns with its key."""
        return kind != "pull" or result[1].startswith(b"job:")


@dataclass(frozen=True)
class Tags:
    """A hundred tagged sets, then the eviction of all of them."""

    per_call: int = 1
    deletes: bool = False
    kinds: tuple[str, ...] = ("set_tagged", "evict")

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return entries without a tag, among which the tagged ones lie."""
        return ((key, value_of(key)) for key in keys_of(10_000, "untagged"))

    def steps(self, seed: int, count: int) -> Steps:
        """Return rounds with a tag each."""
        found: Steps = []
        for number in range(max(count // (TAGGED + 1), 1)):
            tag = f"tag:{seed}:{number}"
            found += [(0, (key, value_of(key), tag)) for key in keys_of(TAGGED, tag)] + [(1, (tag,))]
        return found

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Count what was evicted."""
        return kind != "evict" or result == TAGGED


@dataclass(frozen=True)
class Memoized:
    """Calls of a memoized function whose results are all there."""

    arguments: int = 100
    per_call: int = 1
    deletes: bool = False
    kinds: tuple[str, ...] = ("hit",)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return nothing: the warm-up calls the function."""
        return ()

    def steps(self, seed: int, count: int) -> Steps:
        """Return calls with random arguments."""
        draw = random.Random(seed)
        return [(0, (draw.randrange(self.arguments),)) for _ in range(count)]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Compare with what the function returns."""
        return bool(result == memoized(args[0]))


READ_MOSTLY = {GET: 80, SET: 20}
READ_ONLY_ALMOST = {GET: 99, SET: 1}
READS = {GET: 1}
WRITES = {SET: 1}
HALF = {GET: 50, SET: 50}
