"""What programs do, rather than one call repeated: rounds in which a write is followed by calls of other kinds."""

from __future__ import annotations

import importlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, islice
from statistics import median
from typing import Any

from benchmarks.peers.spec import MissingFeature, Subject, feature
from benchmarks.report.text import Table, duration
from benchmarks.workloads.calls import MADE, Steps, Workload
from benchmarks.workloads.contests import candidates_of, contest, faster, scenario_of
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.values import items_of, keys_of, value_of

KEYS = 1_000
FEW = 200  # keys that an iteration takes
THREADS, BURST = 4, 100
BIG = 20_000  # bytes of a value that SQLite's page cannot hold


@dataclass(frozen=True)
class Rounds(Workload):
    """Rounds of calls on a thousand keys; each write stores another value than the one before it."""

    round: tuple[str, ...]

    @property
    def kinds(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return each kind of call of a round."""
        return tuple(dict.fromkeys(self.round))

    def items(self) -> Iterable[tuple[Any, Any]]:
        return items_of(keys_of(KEYS))

    def steps(self, seed: int, count: int) -> Steps:
        """Return rounds on random keys, as many calls as asked for or a few more."""
        draw, keys, kinds, found = random.Random(seed), keys_of(KEYS), self.kinds, Steps()
        while len(found) < count:
            for kind in self.round:
                key = draw.choice(keys)
                found.append((kinds.index(kind), _arguments(kind, key, value_of(key, len(found)))))
        return found


def _arguments(kind: str, key: str, value: bytes) -> tuple[Any, ...]:
    if kind in ("set", "set_expiring", "two_at_once", "set_tagged", "burst"):
        return (key, value, "tag") if kind == "set_tagged" else (key, value)
    if kind == "set_big":
        return (key, value * (BIG // len(value)))
    if kind in ("push", "append", "fill"):
        return (value,)
    if kind == "touch":
        return (key, 600)
    return ("tag",) if kind == "evict" else ()


def _two_at_once(subject: Subject) -> Callable[[str, bytes], None]:
    transact, put = feature(subject, "transact"), subject.set

    def store(key: str, value: bytes) -> None:
        with transact():
            put(key, value)
            put("of two", value)

    return store


def _at_once(subject: Subject) -> Callable[[str, bytes], None]:
    """Return what has four threads store a hundred values each."""
    put, numbers = subject.set, range(THREADS)

    def burst(key: str, value: bytes) -> None:
        def work(number: int) -> None:
            for turn in range(BURST):
                put(f"{key} {turn}", b"%d %d %b" % (number, turn, value))

        threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return burst


def _collection(subject: Subject, kind: str, method: str) -> Callable[..., Any]:
    """Return a method of a Deque or an Index that keeps its items in the subject."""
    module = importlib.import_module(type(subject).__module__.partition(".")[0])
    if not hasattr(module, kind):
        raise MissingFeature(f"{module.__name__} has no {kind}")
    found: Callable[..., Any] = getattr(getattr(module, kind).fromcache(subject), method)
    return found


def _taken(subject: Subject) -> Callable[[], Any]:
    return lambda: deque(islice(iter(subject), FEW), maxlen=0)  # type: ignore[call-overload]


def _missed(subject: Subject) -> Callable[[], Any]:
    """Return what calls a memoized function with an argument that it has never had."""
    numbers = count(random.getrandbits(48))  # else those of the repetition before, which are there
    call = feature(subject, "memoize")()(lambda number: value_of("memoized", number))
    return lambda: call(next(numbers))


MADE |= {
    "two_at_once": _two_at_once,
    "take": _taken,
    "miss": _missed,
    "set_big": lambda subject: subject.set,
    "len": lambda subject: feature(subject, "__len__"),
    "burst": _at_once,
    "append": lambda subject: _collection(subject, "Deque", "append"),
    "popleft": lambda subject: _collection(subject, "Deque", "popleft"),
    "popitem": lambda subject: _collection(subject, "Index", "popitem"),
}

ROUNDS: dict[str, tuple[str, ...]] = {
    "touch": ("touch",),
    "set_touch": ("set", "touch"),
    "push_pull": ("push", "pull"),
    "set_push_pull": ("set", "push", "pull"),
    "set_len": ("set", "set", "set", "len"),
    "set_take": ("set",) * 20 + ("take",),
    "set_transact": ("set",) * 5 + ("two_at_once",),
    "set_evict": ("set_tagged",) * 50 + ("evict",),
    "set_big": ("set",) * 10 + ("set_big",),
    "set_expiring": ("set_expiring",),
    "set_tagged": ("set_tagged",),
    "memoize_miss": ("miss",),
    "deque": ("append", "popleft"),
    "index": ("fill", "popitem"),
    "threads": ("burst",),
}

CALLED = {
    "append": "Deque.append",
    "burst": "400 sets by 4 threads",
    "evict": "evict of 50 by a tag",
    "fill": "Index set",
    "miss": "memoize miss",
    "popitem": "Index.popitem",
    "popleft": "Deque.popleft",
    "set_big": "set of 20 KB",
    "set_expiring": "set with expire",
    "set_tagged": "set with tag",
    "take": "iteration over 200 keys",
    "two_at_once": "transact of 2 sets",
}


def _told(calls: tuple[str, ...]) -> str:
    """Describe a round in words."""
    numbers = {kind: calls.count(kind) for kind in dict.fromkeys(calls)}
    return " + ".join(
        f"{number} x {CALLED.get(kind, kind)}" if number > 1 else CALLED.get(kind, kind)
        for kind, number in numbers.items()
    )


def mixes(run: Run) -> Findings:
    """Compare rounds of mixed calls, by the time that they take as a whole."""
    findings, pair = Findings(), candidates_of(run.pair)
    names = run.peer.label, run.ours.label
    heads = "a round", *names, "times as fast", *(f"{name}, slowest call" for name in names)
    table = Table("Rounds of mixed calls", heads)
    for name, calls in ROUNDS.items():
        told = _told(calls)
        operations = run.options.operations // (THREADS * BURST if "burst" in calls else 1)
        found = Findings()
        record = contest(run, found, scenario_of(f"Rounds of {told}", Rounds(calls), pair), pair, operations)
        ratios = findings.measured[f"mix_{name}"] = faster(record)
        findings.details |= found.details
        findings.problems += found.problems
        findings.skipped += found.skipped
        trials = [record.of(scenario, None).get(role, []) for scenario in record.scenarios for role in ("peer", "ours")]
        times = [median(one.seconds / one.operations for one in some) * len(calls) * 1e9 for some in trials if some]
        most = [median(max(call.max for call in one.calls.values()) for one in some) for some in trials if some]
        if len(times) == len(trials):
            table.rows.append((told, *map(duration, times), f"{median(ratios):.1f}", *map(duration, most)))
    table.notes.append("Medians of interleaved repetitions.")
    findings.tables = [table]
    return findings
