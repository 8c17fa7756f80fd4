"""The table of scenarios: each asks one question with one workload of `calls` on the subjects that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report.record import ScenarioFacts
from benchmarks.workloads.calls import (
    HALF,
    READ_MOSTLY,
    READ_ONLY_ALMOST,
    READS,
    WRITES,
    Bulk,
    Counters,
    Memoized,
    Mix,
    Queue,
    Singles,
    Tags,
    Workload,
)
from benchmarks.workloads.trial import Pace
from benchmarks.workloads.values import Bytes, dict_of, records_of

OURS = ("cache", "cache-cold")
SERVERS = ("memcached", "redis")
FILES = ("diskcache-rs", "pysciqlop", "cachekit", "lmdb", "sqlitedict", "django-file")
MEMORY = ("django-memory", "lru-cache", "cachebox")
PEERS = ("diskcache", *SERVERS, *FILES)
MAIN = (*OURS, "diskcache", *SERVERS, "lmdb", "pysciqlop")
FANOUTS = ("fanout-4-1s", "diskcache-fanout-4-1s", "fanout-8-10ms", "diskcache-fanout-8")  # in pairs of one timeout
REST = tuple(name for name in FILES if name not in MAIN)
ROOM = 16  # MiB that caches may keep under constant eviction, a quarter of what is stored
EVICTED_VALUE = 1_000
LIMITED: dict[str, dict[str, Any]] = {
    **{name: {"size_limit": ROOM << 20} for name in ("cache", "cache-cold", "diskcache")},
    "cachebox": {"entries": ROOM * 1000},
}
THINK = 1_000  # microseconds


@dataclass(frozen=True)
class Scenario:
    """One row: what is asked, with which workload at each step, on which subjects, by how many processes at once."""

    facts: ScenarioFacts
    workload: Callable[[int], Workload]
    subjects: tuple[str, ...]
    steps: tuple[int, ...] = (0,)
    also: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # more subjects at some steps
    processes: Callable[[int, int], int] = lambda step, most: 1
    pace: Callable[[int], Pace] = lambda step: Pace()
    may_miss: bool = False
    objects: bool = False
    megabytes: int | None = None  # the most that a subject may keep
    weight: float = 1.0  # of the seconds of a pass
    settings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    own: Mapping[str, Workload] = field(default_factory=dict)  # of subjects that do something else

    def subjects_at(self, step: int) -> tuple[str, ...]:
        """Return the subjects that are measured at a step."""
        return self.subjects + self.also.get(step, ())

    def workload_of(self, subject: str, step: int) -> Workload:
        """Return what a subject does at a step."""
        return self.own.get(subject) or self.workload(step)


def always(workload: Workload) -> Callable[[int], Workload]:
    """Return the same workload at every step."""
    return lambda step: workload


def all_of(step: int, most: int) -> int:
    """Run as many processes as the run allows."""
    return most


def popular(mix: str, question: str, shares: Mapping[int, int]) -> Scenario:
    """Return a scenario in which few of many keys are popular."""
    return Scenario(
        ScenarioFacts(f"{mix}, 100,000 keys by Zipf's law, 2 processes", question),
        always(Mix(100_000, shares, skew=0.99)),
        MAIN,
        processes=lambda step, most: min(2, most),
    )


def objects(values: str, question: str, make: Callable[[str, int], Any]) -> Scenario:
    """Return a scenario of values that are not bytes."""
    facts = ScenarioFacts(f"80 % get, 20 % set, {values}", question)
    return Scenario(facts, always(Mix(100, READ_MOSTLY, make)), (*OURS, *PEERS), objects=True, weight=0.6)


SCENARIOS: dict[str, Scenario] = {
    "reads": Scenario(
        ScenarioFacts("Gets of 100 keys that are all there, one process", "What does reading alone cost?"),
        always(Mix(100, READS)),
        (*OURS, *PEERS, *MEMORY),
        weight=0.6,
    ),
    "classic": Scenario(
        ScenarioFacts(
            "90 % get, 9 % set, 1 % delete, 100 keys", "What does a usual mix cost, alone and in company?", "processes"
        ),
        always(Mix()),
        MAIN,
        steps=(1, 2, 4, 8),
        also={1: (*REST, "django-memory", "cachebox"), 8: (*REST, *FANOUTS)},
        processes=min,
    ),
    "expiring": Scenario(
        ScenarioFacts(
            "90 % get, 9 % set with an expiry, 1 % delete, 100 keys", "And with the expiry of web sites?", "processes"
        ),
        always(Mix(put="set_expiring")),
        ("cache", "fanout-8-10ms", "diskcache", "diskcache-fanout-8"),
        steps=(1, 8),
        processes=min,
    ),
    "zipf-80-20": popular("80 % get, 20 % set", "Do popular keys help?", READ_MOSTLY),
    "zipf-99-1": popular("99 % get, 1 % set", "And when little is written?", READ_ONLY_ALMOST),
    "sizes": Scenario(
        ScenarioFacts("80 % get, 20 % set, values of one size", "What do large values cost?", "bytes of a value"),
        lambda size: Mix(100 if size < 1_000_000 else 20, READ_MOSTLY, Bytes(size)),
        (*OURS, *PEERS),
        steps=(100, 10_000, 100_000, 1_000_000),
        weight=0.6,
    ),
    "dict-10k": objects("dictionaries of 10 KB", "What does coming back as an object cost?", dict_of),
    "records": objects("lists of 50 records", "And many small objects in one value?", records_of),
    "bulk": Scenario(
        ScenarioFacts("A thousand keys in one call, per key, 10,000 keys", "What do bulk calls save?"),
        always(Bulk()),
        (*OURS, "diskcache", *SERVERS, "lmdb"),
    ),
    "counters": Scenario(
        ScenarioFacts("Increments of 10 counters by all processes", "What does an atomic increment cost?"),
        always(Counters()),
        ("cache", "fanout-8-10ms", "diskcache", "diskcache-fanout-8", *SERVERS),
        processes=all_of,
    ),
    "queue": Scenario(
        ScenarioFacts("Push and pull in turn, 100 waiting", "What does a queue cost?"),
        always(Queue()),
        ("cache", "diskcache", "redis"),
    ),
    "tags": Scenario(
        ScenarioFacts("A hundred tagged sets, then their eviction, beside 10,000 entries", "What do tags cost?"),
        always(Tags()),
        ("cache", "diskcache", "pysciqlop"),
    ),
    "memoize": Scenario(
        ScenarioFacts("Calls of a memoized function, all hits", "What does a memoized call cost?"),
        always(Memoized()),
        (*OURS, "diskcache", "diskcache-rs", "pysciqlop", "cachekit", "lru-cache", "cachebox"),
        weight=0.6,
    ),
    "hot-key": Scenario(
        ScenarioFacts("99 % get, 1 % set of one key by all processes", "What if everybody wants the same key?"),
        always(Mix(1, READ_ONLY_ALMOST)),
        (*OURS, "fanout-8-10ms", "diskcache", *SERVERS, "lmdb", "pysciqlop"),
        processes=all_of,
    ),
    "eviction": Scenario(
        ScenarioFacts(
            f"50 % get, 50 % set of {4 * ROOM} MB in room for {ROOM} MB, values of 1 KB", "What does a full cache cost?"
        ),
        always(Mix(4 * ROOM * 1000, HALF, Bytes(EVICTED_VALUE), skew=0.99, loaded=2 * ROOM * 1000)),
        (*OURS, "diskcache", *SERVERS, "cachebox"),
        may_miss=True,
        megabytes=ROOM,
        settings=LIMITED,
    ),
    "growth": Scenario(
        ScenarioFacts("Gets, sets, deletes and insertions of random keys", "What does a large cache cost?", "entries"),
        Singles,
        (*OURS, "diskcache", "lmdb"),  # loading a million entries takes most others half a minute
        steps=(10_000, 100_000, 1_000_000),
        also=dict.fromkeys((10_000, 100_000), (*SERVERS, "pysciqlop")),
    ),
    "think": Scenario(
        ScenarioFacts("Sets by all processes, each resting between its calls", "Do writers meet?", "µs of rest"),
        always(Mix(100, WRITES)),
        ("cache", "fanout-8-10ms", "diskcache", "diskcache-fanout-8", *SERVERS, "lmdb", "pysciqlop"),
        steps=(0, THINK),
        processes=all_of,
        pace=lambda step: Pace(think=step / 1e6),
    ),
    "open-loop": Scenario(
        ScenarioFacts(
            "90/9/1 at a fixed rate by 4 processes, timed from when a call is due",
            "How long does a caller wait who does not wait for others?",
            "calls per second",
        ),
        always(Mix()),
        (*OURS, "diskcache", *SERVERS, "lmdb", "pysciqlop"),
        steps=(1_000, 5_000, 20_000),
        processes=lambda step, most: min(4, most),
        pace=lambda step: Pace(rate=step),
    ),
}
