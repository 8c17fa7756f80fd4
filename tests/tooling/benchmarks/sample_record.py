"""A made-up benchmark run with everything that a real one may have: gaps, failures, zeros and enormous maxima."""

from __future__ import annotations

import random

from benchmarks.measure import Calls
from benchmarks.report.record import Absence, Record, ScenarioFacts, SubjectFacts, Trial

REPETITIONS = 5
LABELS = {
    "cache": "diskcache_like 0.1.0",
    "cache-cold": "diskcache_like 0.1.0 without hot layer",
    "fanout-8": "diskcache_like 0.1.0 FanoutCache(8)",
    "fanout-8-10ms": "diskcache_like 0.1.0 FanoutCache(8, timeout=0.01)",
    "diskcache": "DiskCache 5.6.3",
    "diskcache-fanout-8": "DiskCache 5.6.3 FanoutCache(8)",
    "memcached": "Memcached 1.6.18, pylibmc 1.6.3",
    "redis": "Redis 7.0.15, redis-py 7.1",
    "lmdb": "LMDB 1.7.5",
    "sqlitedict": "sqlitedict 2.1.0",
    "django-file": "Django 5.2 FileBasedCache",
    "lru_cache": "functools.lru_cache",
}
SCENARIOS = {
    "classic": ScenarioFacts("Classic workload", "How long do 90/9/1 get/set/delete on 100 keys take?", "processes"),
    "sizes": ScenarioFacts("Values of several sizes", "What does a larger value cost?", "bytes of a value"),
    "bulk": ScenarioFacts("Bulk of 1,000", "What does a key cost in a batch? Times are per key."),
    "memoize": ScenarioFacts("Memoized function", "What does a hit cost?"),
    "growth": ScenarioFacts("Growth", "Does an operation cost more in a large cache?", "entries"),
    "think": ScenarioFacts("Thinking between calls", "What changes when processes rest?", "µs of thinking"),
    "open-loop": ScenarioFacts("Open loop", "How late is an answer at a fixed rate?", "operations per second"),
    "queue": ScenarioFacts("Queue", "What do push and pull cost?"),
}
STEPS = {
    "classic": (1, 2, 4, 8),
    "sizes": (100, 10_000, 1_000_000),
    "growth": (10_000, 100_000, 1_000_000),
    "think": (0, 1000),
    "open-loop": (1_000, 10_000),
}
KINDS = {
    "bulk": {"get_many": 400, "set_many": 400},
    "memoize": {"hit": 1_500},
    "open-loop": {"get": 1_500, "set": 150},
}
OPERATIONS = {"get": 1_800, "set": 180, "delete": 20}
MICROSECONDS = {"get": 8.0, "set": 20.0, "delete": 15.0, "get_many": 2.0, "set_many": 6.0, "hit": 0.3}
ALONE = "memoize"  # a scenario of one subject


def sample_record(seed: int = 1) -> Record:
    """Make the run; the same seed makes the same run."""
    draw = random.Random(seed)
    record = Record(
        {"CPU": "Imagined, 2 cores usable", "Python": "CPython 3.11.2", "clock": "one pair of readings costs 80 ns"},
        {"repetitions": REPETITIONS, "seed": seed},
        {name: SubjectFacts(label) for name, label in LABELS.items()},
        dict(SCENARIOS),
    )
    record.subjects["sqlitedict"] = SubjectFacts(LABELS["sqlitedict"], "answers before its thread has written")
    for scenario in SCENARIOS:
        for repetition in range(REPETITIONS):
            for step in STEPS.get(scenario, (0,)):
                record.trials += [
                    trial(draw, scenario, name, repetition, step) for name in LABELS if takes_part(name, scenario, step)
                ]
    record.absences += [
        Absence("cachekit", "cannot import cachekit; install it with: python -m pip install cachekit"),
        Absence("redis", "redis-server ended with signal 9", "growth", failed=True),
        Absence("lmdb", "has no set_many()", "bulk"),
        Absence("cache", "the queue broke", "queue", failed=True),
    ]
    return record


def takes_part(name: str, scenario: str, step: int) -> bool:
    """Tell whether a subject was measured."""
    if scenario == ALONE:
        return name == "cache"
    if scenario == "queue":
        return False
    missing = {("redis", "growth"), ("lmdb", "bulk"), ("lru_cache", "bulk"), ("sqlitedict", "open-loop")}
    return (name, scenario) not in missing and not (name == "lru_cache" and scenario == "classic" and step > 1)


def trial(draw: random.Random, scenario: str, name: str, repetition: int, step: int) -> Trial:
    """Make one repetition."""
    slow = 0.02 if name == "lru_cache" else 1 + list(LABELS).index(name) * 0.7
    if scenario in {"classic", "growth", "sizes"}:
        slow *= 1 + (step / STEPS[scenario][0]) ** 0.4 * 0.2
    slow *= draw.lognormvariate(0, 0.06)
    calls = {
        kind: Calls.of(samples(draw, count, MICROSECONDS[kind] * 1e3 * slow), 0)
        for kind, count in KINDS.get(scenario, OPERATIONS).items()
    }
    if name == "memcached":
        calls["delete"] = Calls.of(())
    seconds = sum(one.count * one.p50 for one in calls.values()) / 1e9 * 1.3
    return Trial(
        scenario,
        name,
        repetition,
        processes=step if scenario == "classic" else 1,
        step=step,
        seconds=seconds,
        operations=sum(one.count for one in calls.values()),
        calls=calls,
        misses=draw.randrange(200),
        timeouts=draw.randrange(5) if "10ms" in name else 0,
        cpu_seconds=seconds * 0.9,
        server_cpu_seconds=seconds * 0.4 if name in {"memcached", "redis"} else 0,
        peak_memory=draw.randrange(1 << 20, 60 << 20),
        disk_bytes=0 if name in {"lru_cache", "memcached"} else draw.randrange(1 << 16, 40 << 20),
    )


def samples(draw: random.Random, count: int, middle: float) -> list[float]:
    """Make times with a long tail, one of them in a while enormous."""
    times = [middle * draw.lognormvariate(0, 0.25) + (draw.random() < 0.02) * middle * 40 for _ in range(count)]
    times[0] *= 1 if draw.random() < 0.7 else 30_000
    return times
