"""The workloads: seeded items and scripts of calls, the same for every subject, and proof of what came back.

A script is a list of steps, each the index of a kind of call and its arguments, made before anything is timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from benchmarks.peers.spec import Subject, bulk, feature
from benchmarks.workloads.values import SEED, items_of, key_of, keys_of, names, value_of

Steps = list[tuple[int, tuple[Any, ...]]]

GET, SET, DELETE = 0, 1, 2
CLASSIC = {GET: 90, SET: 9, DELETE: 1}
READ_MOSTLY = {GET: 80, SET: 20}
READ_ONLY_ALMOST = {GET: 99, SET: 1}
READS = {GET: 1}
WRITES = {SET: 1}
HALF = {GET: 50, SET: 50}
BULK = 1_000
TAGGED = 100
EXPIRE = 3600  # seconds


class Workload:
    """What is loaded before, what is called, and how an answer proves that it is right.

    `kinds` are the kinds of calls, in the order of their indices; a call works on `per_call` keys, and times are given
    per key. `deletes`: a key that is read may have been deleted.
    """

    kinds: tuple[str, ...] = ()
    per_call = 1
    deletes: bool = False

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return what the subject holds before."""
        return ()

    def steps(self, seed: int, count: int) -> Steps:
        """Return `count` steps for one process."""
        raise NotImplementedError

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        """Tell whether `result`, which is not None, is a right answer to the call."""
        return kind != "get" or names(args[0], result)


def bound(subject: Subject, kind: str) -> Callable[..., Any]:
    """Return what one kind of call runs on a subject; raise MissingFeature where it has nothing like it."""
    put: Callable[..., Any] = subject.set
    if kind == "insert":
        return put
    if kind == "set_expiring":
        return lambda key, value: put(key, value, expire=EXPIRE)
    if kind == "set_tagged":
        feature(subject, "evict")
        return lambda key, value, tag: put(key, value, tag=tag)
    if kind == "hit":
        return feature(subject, "memoize")()(memoized)  # type: ignore[no-any-return]
    if kind in ("get_many", "set_many"):
        return bulk(subject, kind)
    return feature(subject, kind)


def memoized(number: int) -> bytes:
    """Return what is memoized: a short value that names its argument."""
    return value_of(str(number))


@dataclass(frozen=True)
class Mix(Workload):
    """Single calls in given shares over `keys` keys, of which `loaded` (all, unless given) are there before.

    Keys are drawn uniformly, or by Zipf's law with the exponent `skew`: 0.99 is that of YCSB (Cooper et al.,
    "Benchmarking Cloud Serving Systems with YCSB", 2010). `put` is the kind of call that stores.
    """

    keys: int = 100
    shares: Mapping[int, int] = field(default_factory=lambda: CLASSIC, hash=False)
    make: Callable[[str, int], Any] = value_of
    skew: float = 0.0
    loaded: int | None = None
    put: str = "set"

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return get, set and delete, up to the last one that occurs."""
        return ("get", self.put, "delete")[: max(kind for kind, share in self.shares.items() if share) + 1]

    @property
    def deletes(self) -> bool:  # type: ignore[override]
        """Tell whether keys are deleted, each of which may be read."""
        return bool(self.shares.get(DELETE))

    def items(self) -> Iterable[tuple[Any, Any]]:
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


@dataclass(frozen=True)
class Growth(Workload):
    """Gets, overwriting sets, and deletes each followed by an insertion of the same key, on `entries` entries.

    The keys that are deleted are never read, so no miss is by design.
    """

    entries: int
    kinds = ("get", "set", "delete", "insert")

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(self.entries))

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
        return [key_of(2 * draw.randrange(self.entries // 2) + parity) for _ in range(count)]


@dataclass(frozen=True)
class Bulk(Workload):
    """Calls on a thousand keys at once."""

    keys: int = 10_000
    kinds = ("get_many", "set_many")
    per_call = BULK

    def items(self) -> Iterable[tuple[Any, Any]]:
        return ((key, value_of(key)) for key in keys_of(self.keys))

    def steps(self, seed: int, count: int) -> Steps:
        """Return reads and writes in turn."""
        draw, keys = random.Random(seed), keys_of(self.keys)
        found: Steps = []
        for _ in range(max(count // BULK // 2, 1)):
            mapping = {key: value_of(key, seed) for key in draw.sample(keys, BULK)}
            found += [(0, (draw.sample(keys, BULK),)), (1, (mapping,))]
        return found

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return kind != "get_many" or (len(result) == BULK and all(names(key, result[key]) for key in args[0]))


@dataclass(frozen=True)
class Counters(Workload):
    """Increments of a few counters, which no process may lose; a counter begins with its first increment."""

    keys: int = 10
    kinds = ("incr",)

    def steps(self, seed: int, count: int) -> Steps:
        draw = random.Random(seed)
        return [(0, (f"counter:{draw.randrange(self.keys)}",)) for _ in range(count)]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return isinstance(result, int) and result > 0


@dataclass(frozen=True)
class Queue(Workload):
    """Pushes and pulls in turn, on a queue that is never empty, since the first steps of every process fill it."""

    loaded: int = 100
    kinds = ("push", "pull")

    def steps(self, seed: int, count: int) -> Steps:
        value = value_of(f"job:{seed}")
        return [(0, (value,))] * self.loaded + [(0, (value,)), (1, ())] * max((count - self.loaded) // 2, 1)

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return kind != "pull" or result[1].startswith(b"job:")


@dataclass(frozen=True)
class Tags(Workload):
    """A hundred tagged sets, then the eviction of all of them, beside entries without a tag."""

    kinds = ("set_tagged", "evict")

    def items(self) -> Iterable[tuple[Any, Any]]:
        return ((key, value_of(key)) for key in keys_of(10_000, "untagged"))

    def steps(self, seed: int, count: int) -> Steps:
        """Return rounds with a tag each."""
        found: Steps = []
        for number in range(max(count // (TAGGED + 1), 1)):
            tag = f"tag:{seed}:{number}"
            found += [(0, (key, value_of(key), tag)) for key in keys_of(TAGGED, tag)] + [(1, (tag,))]
        return found

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return kind != "evict" or result == TAGGED


@dataclass(frozen=True)
class Memoized(Workload):
    """Calls of a memoized function whose results are all there, since the warm-up calls it."""

    arguments: int = 100
    kinds = ("hit",)

    def steps(self, seed: int, count: int) -> Steps:
        draw = random.Random(seed)
        return [(0, (draw.randrange(self.arguments),)) for _ in range(count)]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return bool(result == memoized(args[0]))
