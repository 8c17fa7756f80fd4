"""The workloads: seeded items and scripts of calls, the same for every subject, and proof of what came back.

A script is a list of steps, each the index of a kind of call and its arguments, made before anything is timed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count
from typing import Any

from benchmarks.measure import BLOCK, Costs
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
    per key. `blocks`: those are calls in a loop of the benchmark's, whose cost is no part of them. `deletes`: a key
    that is read may have been deleted.
    """

    kinds: tuple[str, ...] = ()
    per_call = 1
    blocks = False
    deletes: bool = False

    def cost(self, costs: Costs) -> float:
        """Return what measuring one call costs."""
        return costs.clock + (costs.loop * self.per_call if self.blocks else 0)

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
    make = MADE.get(kind)
    return make(subject) if make else feature(subject, kind)


def _gets(subject: Subject, keys: Sequence[str]) -> Any:
    """Read each of some keys and return the last value."""
    get, found = subject.get, None
    for key in keys:
        found = get(key)
    return found


def _get_each(subject: Subject, keys: Sequence[str]) -> dict[str, Any]:
    get = subject.get
    return {key: get(key) for key in keys}


def _set_each(subject: Subject, items: Mapping[str, bytes]) -> None:
    put = subject.set
    for key, value in items.items():
        put(key, value)


def _delete_each(subject: Subject, keys: Sequence[str]) -> None:
    delete = subject.delete
    for key in keys:
        delete(key)


def _fill(subject: Subject) -> Callable[[bytes], Any]:
    """Return what stores under a key that no other call has."""
    put, numbers = subject.set, count(os.getpid() << 32)
    return lambda value: put(next(numbers), value)


def _set_tagged(subject: Subject) -> Callable[..., Any]:
    put: Callable[..., Any] = subject.set
    feature(subject, "evict")
    return lambda key, value, tag: put(key, value, tag=tag)


def _set_tags(subject: Subject) -> Callable[..., Any]:
    put: Callable[..., Any] = subject.set
    feature(subject, "retag")
    return lambda key, value, tags: put(key, value, tags=tags)


def _set_expiring(subject: Subject) -> Callable[..., Any]:
    put: Callable[..., Any] = subject.set
    return lambda key, value: put(key, value, expire=EXPIRE)


def _listed(subject: Subject, **options: Any) -> Callable[[], int]:
    """Return what counts the keys with some tags."""
    feature(subject, "retag")
    keys = feature(subject, "keys")
    return lambda: sum(1 for _ in keys(**options))


def _opened_again(subject: Subject) -> Callable[[str], Any]:
    """Return what opens the same store once more, reads a key and closes it."""
    directory, kind = feature(subject, "directory"), type(subject)

    def open_and_get(key: str) -> Any:
        again = kind(directory)  # type: ignore[call-arg]
        try:
            return again.get(key)
        finally:
            again.close()

    return open_and_get


# How kinds of calls are made that are not a method of that name.
MADE: dict[str, Callable[[Subject], Callable[..., Any]]] = {
    "insert": lambda subject: subject.set,
    "set_expiring": _set_expiring,
    "set_tagged": _set_tagged,
    "set_tags": _set_tags,
    "keys_small": lambda subject: _listed(subject, tags=["small"]),
    "keys_both": lambda subject: _listed(subject, tags=["small", "large"], match="all"),
    "open": _opened_again,
    "fill": _fill,
    "hit": lambda subject: feature(subject, "memoize")()(memoized),
    "get_many": lambda subject: bulk(subject, "get_many"),
    "set_many": lambda subject: bulk(subject, "set_many"),
    "hits": lambda subject: partial(_gets, subject),
    "get_each": lambda subject: partial(_get_each, subject),
    "set_each": lambda subject: partial(_set_each, subject),
    "delete_each": lambda subject: partial(_delete_each, subject),
}


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
class Singles(Workload):
    """Rounds of single calls on `entries` entries, in which a key that is deleted is also inserted.

    The keys that are deleted are never read, so no miss is by design.
    """

    entries: int
    round: tuple[str, ...] = ("get", "get", "set", "delete", "insert")

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return each kind of call of a round."""
        return tuple(dict.fromkeys(self.round))

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(self.entries))

    def steps(self, seed: int, count: int) -> Steps:
        """Return rounds on random keys."""
        draw, kinds, found = random.Random(seed), self.kinds, Steps()
        while len(found) < count:
            moving = self._key(draw, 1)
            for kind in self.round:
                key = moving if kind in ("delete", "insert", "add") else self._key(draw, 0)
                if kind == "incr":
                    key = f"count {key}"
                stored = (value_of(key, seed),) if kind in ("set", "insert", "add") else ()
                found.append((kinds.index(kind), (key, *stored)))
        return found

    def _key(self, draw: random.Random, parity: int) -> str:
        return key_of(2 * draw.randrange(self.entries // 2) + parity)


@dataclass(frozen=True)
class Hits(Workload):
    """Gets of a few keys, all of them in memory where a subject has a place for them, timed in blocks."""

    kinds = ("hits",)
    per_call = BLOCK
    blocks = True

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(BLOCK))

    def steps(self, seed: int, count: int) -> Steps:
        """Return blocks of a get of each key."""
        draw, keys = random.Random(seed), keys_of(BLOCK)
        return [(0, (draw.sample(keys, BLOCK),)) for _ in range(max(count // BLOCK, 10))]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return names(args[0][-1], result)


@dataclass(frozen=True)
class Bulk(Workload):
    """Calls on a thousand keys at once."""

    keys: int = 10_000
    kinds: tuple[str, ...] = field(default=("get_many", "set_many"), init=False)
    per_call = BULK

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(self.keys))

    def steps(self, seed: int, count: int) -> Steps:
        """Return reads and writes in turn."""
        draw, keys = random.Random(seed), keys_of(self.keys)
        found: Steps = []
        for number in range(max(count // BULK // len(self.kinds), 1)):
            found += self._round(draw, keys, seed, number)
        return found

    def _round(self, draw: random.Random, keys: Sequence[str], seed: int, number: int) -> Steps:
        mapping = {key: value_of(key, seed) for key in draw.sample(keys, BULK)}
        return [(0, (draw.sample(keys, BULK),)), (1, (mapping,))]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        if kind not in ("get_many", "get_each"):
            return True
        return len(result) == BULK and all(names(key, result[key] or b"") for key in args[0])


@dataclass(frozen=True)
class BulkOrEach(Bulk):
    """The same calls beside those that do it one by one; what is written is new, and removed again."""

    kinds: tuple[str, ...] = field(default=("get_many", "get_each", "set_many", "set_each", "delete_each"), init=False)

    def _round(self, draw: random.Random, keys: Sequence[str], seed: int, number: int) -> Steps:
        new = {key: value_of(key, number) for key in keys_of(BULK, f"new {seed} {number}")}
        some, gone = (draw.sample(keys, BULK),), (4, (list(new),))
        return [(0, some), (1, some), (2, (new,)), gone, (3, (new,)), gone]


@dataclass(frozen=True)
class Fill(Workload):
    """Writes of keys that are always new, 1 KB each, and each hundredth large enough for a value file."""

    loaded: int = 0
    kinds = ("fill",)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return ((number, self.value(number)) for number in range(self.loaded))

    def steps(self, seed: int, count: int) -> Steps:
        return [(0, (self.value(number),)) for number in range(count)]

    @staticmethod
    def value(number: int) -> bytes:
        """Return what is stored under a number."""
        return b"s" * 1_000 if number % 100 else b"l" * 64_000


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
        return items_of(keys_of(10_000, "untagged"))

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


@dataclass(frozen=True)
class Tagged(Workload):
    """Overwriting sets of the same few keys with the same tags: none, one, or eight."""

    tags: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the one kind of call."""
        return ("set" if not self.tags else "set_tagged" if self.tags == 1 else "set_tags",)

    def steps(self, seed: int, count: int) -> Steps:
        draw, keys = random.Random(seed), keys_of(TAGGED, f"tags {self.tags}")
        tags = ((), ("tag",), ([f"tag {number}" for number in range(self.tags)],))[min(self.tags, 2)]
        return [(0, (key, value_of(key), *tags)) for key in draw.choices(keys, k=count)]


@dataclass(frozen=True)
class Listed(Workload):
    """Lists of a hundred entries by their tag, and by that and one that a thousand have; the first steps store them."""

    kinds = ("set_tags", "keys_small", "keys_both")

    def steps(self, seed: int, count: int) -> Steps:
        keys = keys_of(10 * TAGGED, "listed")
        some = [(key, value_of(key), ["large"] if place % 10 else ["large", "small"]) for place, key in enumerate(keys)]
        return [(0, one) for one in some] + [(1, ()), (2, ())] * max(count // (2 * TAGGED), 1)

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return kind == "set_tags" or result == TAGGED


@dataclass(frozen=True)
class Opening(Workload):
    """Openings of a cache that is open already, as it mostly is, each with a get."""

    kinds = ("open",)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(1_000))

    def steps(self, seed: int, count: int) -> Steps:
        draw, keys = random.Random(seed), keys_of(1_000)
        return [(0, (key,)) for key in draw.choices(keys, k=max(count // TAGGED, 1))]

    def proves(self, kind: str, args: tuple[Any, ...], result: Any) -> bool:
        return names(args[0], result)
