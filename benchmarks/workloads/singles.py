"""What one call costs, on a few entries or many, beside the peers, in batches, and what LRU, LFU and statistics add."""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import BLOCK, Costs, awake, ratios, time_blocks, time_calls, time_keys, time_once
from benchmarks.peers.catalogue import SUBJECTS, available
from benchmarks.peers.spec import SPECS, BenchmarkError, Spec, Subject, feature, load_items
from benchmarks.report.text import Table, duration
from benchmarks.workloads.section import Findings, Rounds, Run, details, p50, rounds_table
from benchmarks.workloads.values import SEED, items_of, keys_of, names, value_of

ENTRIES = 10_000
BATCH = 1_000
BATCHES = 10
ROUNDS_PER_REPEAT = 5
BATCHES_PER_REPEAT = 3
POLICY_ROUNDS_PER_REPEAT = 20
PEER_CALLS = 200  # per round
SMALL_CALLS = 5_000  # of one subject in one turn
SMALL_KEYS = (100, 100_000)
CALLS = {
    "hot_get": "hot get, blocks",
    "hot_get_single": "hot get",
    "cold_get": "cold get",
    "delete": "delete",
    "set_new": "set, new key",
    "set": "set, overwriting",
}
POLICIES: dict[str, dict[str, Any]] = {
    "default": {},
    "lru": {"eviction_policy": "least-recently-used"},
    "lfu": {"eviction_policy": "least-frequently-used"},
    "statistics": {"statistics": 1},
}


class Single:
    """One subject that holds `keys`, and its calls, each timed by itself, clock subtracted."""

    def __init__(self, subject: Subject, keys: Sequence[str], costs: Costs) -> None:
        self.subject, self.keys, self.costs = subject, keys, costs
        load_items(subject, items_of(keys))

    def blocks(self, keys: Sequence[str], count: int, draw: random.Random) -> list[float]:
        """Time blocks of gets, each of all these keys, which are in memory where the subject has a place for them."""
        for key in [*keys] * 3:
            self.subject.get(key)
        return time_blocks(self.subject.get, [draw.sample(keys, len(keys)) for _ in range(count)], self.costs)

    def gets(self, keys: Sequence[str]) -> list[float]:
        return self._net(time_keys(self.subject.get, keys))

    def sets(self, keys: Sequence[str], version: int) -> list[float]:
        return self._net(time_calls(self.subject.set, [(key, value_of(key, version)) for key in keys]))

    def deletes(self, keys: Sequence[str]) -> list[float]:
        return self._net(time_keys(self.subject.delete, keys))

    def increments(self, keys: Sequence[str]) -> list[float]:
        return self._net(time_keys(feature(self.subject, "incr"), [f"count {key}" for key in keys]))

    def _net(self, samples: array[int]) -> list[float]:
        return [sample - self.costs.clock for sample in samples]

    def check(self, keys: Sequence[str]) -> None:
        """Make sure that hits were measured, not misses."""
        for key in keys:
            value = self.subject.get(key)
            if value is None or not names(key, value):
                raise BenchmarkError(f"{type(self.subject).__module__} returned {value!r} for {key!r}")


@contextmanager
def opened(run: Run, specs: Mapping[str, Spec], keys: Sequence[str]) -> Iterator[dict[str, Single]]:
    """Open subjects, with all of the keys in each."""
    with ExitStack() as stack:
        yield {
            name: Single(stack.enter_context(spec.opened(run.workspace.fresh("single"))), keys, run.costs)
            for name, spec in specs.items()
        }


def operations(run: Run) -> Findings:
    """Measure single operations of both subjects in turn."""
    count = min(max(run.options.operations // 10, BLOCK), ENTRIES // 2)
    keys = keys_of(ENTRIES)
    hot_keys = keys[:: ENTRIES // BLOCK]

    def measure(pair: tuple[Single, Single], number: int) -> Mapping[str, Sequence[float]]:
        hot, cold = pair
        draw = random.Random(SEED + number)
        gone, others = draw.sample(keys, count), draw.sample(keys, count)
        found = {
            "hot_get": hot.blocks(hot_keys, max(count // 10, 10), draw),
            "hot_get_single": hot.gets(draw.choices(hot_keys, k=count)),
            "cold_get": cold.gets(draw.sample(keys, count)),
            "delete": hot.deletes(gone),
            "set_new": hot.sets(gone, number),
            "set": hot.sets(others, number),
        }
        for one in pair:
            one.check([*hot_keys, *draw.sample(keys, BLOCK)])
        return found

    with opened(run, run.pair, keys) as hot, opened(run, run.cold, keys) as cold:
        pairs = {role: (hot[role], cold[role]) for role in run.pair}
        found = run.rounds(run.options.repeats * ROUNDS_PER_REPEAT, pairs, measure)
    rounds = len(found["ours"]["set"])
    title = f"Single operations, {ENTRIES:,} entries, values of 100 bytes, {rounds} rounds of {count:,} calls"
    table = rounds_table(title, found, {role: spec.label for role, spec in run.pair.items()}, CALLS)
    table.notes += [
        f"hot get, blocks: {BLOCK} gets of {BLOCK} keys between two clock readings, divided (the budget's number);",
        "cold get: hot layer off (hot_size_limit=0)",
    ]
    measured = {name: ratios(p50(found["peer"][name]), p50(found["ours"][name])) for name in CALLS}
    return Findings([table], measured, details(found))


def policies(run: Run) -> Findings:
    """Measure what eviction policies and statistics add to a hot get, and to the write after many of them."""
    keys = keys_of(BLOCK)
    chunk = max(run.options.operations // 10 // BLOCK, 2)

    def measure(single: Single, number: int) -> Mapping[str, Sequence[float]]:
        # The first blocks refill the processor's caches after the other settings had their turn.
        times = single.blocks(keys, chunk, random.Random(SEED + number))
        return {"get": [statistics.fmean(times)], "write": single.sets(keys[:1], number)}

    specs = {name: run.ours.having(**settings) for name, settings in POLICIES.items()}
    with opened(run, specs, keys) as singles:
        found = run.rounds(run.options.repeats * POLICY_ROUNDS_PER_REPEAT, singles, measure)
    gets = {name: p50(calls["get"]) for name, calls in found.items()}
    over = {name: [(ratio - 1) * 100 for ratio in ratios(gets[name], gets["default"])] for name in POLICIES}
    table = Table(
        f"Hot get under policies, {run.ours.label}, {len(gets['default'])} rounds of {chunk * BLOCK:,} gets",
        ("setting", "get, median", "over default", f"set after {chunk * BLOCK:,} gets, median"),
    )
    for name in POLICIES:
        extra = "-" if name == "default" else f"{statistics.median(over[name]):+.1f} %"
        write = statistics.median(p50(found[name]["write"]))
        table.rows.append((name, duration(statistics.median(gets[name])), extra, duration(write)))
    table.notes += [
        "median over rounds of the time of a whole round divided by its gets, so that batched work inside counts;",
        "rounds of the four settings alternate and are compared pairwise; the set that follows carries the batch",
    ]
    return Findings([table], {name: over[name] for name in POLICIES if name != "default"}, details(found))


def bulk(run: Run) -> Findings:
    """Compare `get_many` and `set_many` in batches of 1,000 with calls one by one; what is written is always new."""
    keys = keys_of(BATCH * BATCHES)
    specs = {"get": run.cold["ours"], "set": run.ours, "set_many": run.ours, "peer_set": run.peer}
    with opened(run, specs, keys) as singles:
        subject = {name: single.subject for name, single in singles.items()}
        calls: dict[str, Callable[[Any], Any]] = {
            "get": partial(_get_each, subject["get"].get),
            "get_many": feature(subject["get"], "get_many"),
            "set": partial(_set_each, subject["set"].set),
            "set_many": feature(subject["set_many"], "set_many"),
            "peer_set": partial(_set_each, subject["peer_set"].set),
        }

        def measure(name: str, number: int) -> Mapping[str, Sequence[float]]:
            batch = random.Random(SEED + number).sample(keys, BATCH)
            reads = name.startswith("get")
            new = {f"{number}/{key}": value_of(key, number) for key in batch}
            elapsed, result = time_once(partial(calls[name], batch if reads else new))
            if reads and not (isinstance(result, dict) and len(result) == BATCH and None not in result.values()):
                raise BenchmarkError(f"{name} did not return {BATCH} values as a dict but {type(result).__name__}")
            return {"per key": [elapsed / BATCH]}

        rounds = run.options.repeats * BATCHES_PER_REPEAT
        found = run.rounds(rounds, {name: name for name in calls}, measure, "bulk, ")
    times = {name: p50(one["per key"]) for name, one in found.items()}
    table = Table(
        f"Bulk calls, {run.ours.label}, {rounds} batches of {BATCH:,}", ("call", "per key, median", "times as long")
    )
    shown = {"get": "get, one by one", "set": "set, one by one", "peer_set": f"{run.peer.label}: set, one by one"}
    for many, several in (("get_many", ("get",)), ("set_many", ("set", "peer_set"))):
        table.rows.append((many, duration(statistics.median(times[many])), ""))
        for one in several:
            ratio = statistics.median(ratios(times[one], times[many]))
            table.rows.append((shown[one], duration(statistics.median(times[one])), f"{ratio:.2f}x"))
    table.notes.append(
        "whole batches timed and divided; what is read is not hot (hot_size_limit=0), what is set is new"
    )
    measured = {
        "get_many": ratios(times["get"], times["get_many"]),
        "set_many": ratios(times["peer_set"], times["set_many"]),
    }
    return Findings([table], measured, {"per_key_ns": times})


def _get_each(get: Callable[[str], Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: get(key) for key in keys}


def _set_each(put: Callable[[str, bytes], Any], items: Mapping[str, bytes]) -> None:
    for key, value in items.items():
        put(key, value)


def others() -> list[str]:
    """Return the names of the subjects beside the pair, but for those of which nothing can be changed."""
    pair = {spec.module for spec in SPECS.values()}
    return [name for name, one in SUBJECTS.items() if one.spec.module not in pair and not one.fixed]


@awake()
def peers(run: Run) -> Findings:
    """Measure single calls of every subject that is there."""
    keys = keys_of(BLOCK)

    def measure(single: Single, number: int) -> Mapping[str, Sequence[float]]:
        draw = random.Random(SEED + number)
        return {
            "hot_get": single.blocks(keys, PEER_CALLS // 10, draw),
            "set": single.sets(draw.choices(keys, k=PEER_CALLS), number),
            "delete": single.deletes(keys),
            "set_new": single.sets(keys, number),
        }

    with available(others(), run.workspace) as there:
        specs = {**run.pair, **there.specs}
        with opened(run, specs, keys) as singles:
            found = run.rounds(run.options.repeats * ROUNDS_PER_REPEAT, singles, measure, "peers, ")
        labels = {name: spec.label if name in run.pair else SUBJECTS[name].label for name, spec in specs.items()}
    skipped = [f"{SUBJECTS[one.subject].title} skipped: {one.reason}" for one in there.absences]
    table = rounds_table(
        f"Single calls beside the peers, {BLOCK} keys, values of 100 bytes, one process",
        found,
        labels,
        {name: CALLS[name] for name in ("hot_get", "set", "delete", "set_new")},
    )
    table.notes += [f"{SUBJECTS[name].title}: {SUBJECTS[name].note}" for name in there.specs] + skipped
    measured = {
        f"{call}_{peer}": ratios(p50(found[peer][call]), p50(found["ours"][call]))
        for peer in ("memcached", "redis")
        if peer in specs
        for call in ("hot_get", "set", "delete")
    }
    return Findings([table], measured, {"singles": details(found), "skipped": skipped})


def buffered(run: Run) -> Findings:
    """Measure small writes with and without a write buffer, beside DiskCache's and, where it is installed, LMDB's.

    Calls that flush what waits to the database show in the mean and in the last percentiles.
    """
    ours, lmdb = run.ours.having(size_limit=1 << 40), SUBJECTS["lmdb"]
    specs = {"without": ours.having(write_buffer=0), "with": ours, "peer": run.peer}
    labels = {"without": "write_buffer=0", "with": ours.label, "peer": run.peer.label}
    if find_spec("lmdb") is not None:
        specs |= {"lmdb": lmdb.spec, "mapped": lmdb.spec.having(writemap=True)}
        labels |= {"lmdb": lmdb.title, "mapped": f"{lmdb.title}, writemap"}
    findings = Findings()
    table = Table(
        "Small writes, with and without a write buffer",
        ("subject", "call", "keys", "p50", "p99", "p99.9", "mean"),
        left=2,
    )
    for count in SMALL_KEYS:
        found = _small_writes(run, specs, count)
        for call in ("set", "incr", "delete"):
            for name, label in labels.items():
                rounds = found[name][call]
                times = [statistics.median(getattr(one, part) for one in rounds) for part in ("p50", "p99", "p999")]
                mean = sum(one.total for one in rounds) / sum(one.count for one in rounds)
                table.rows.append((label, call, f"{count:,}", *map(duration, (*times, mean))))
        findings.details[f"{count} keys"] = details(found)
        if count == SMALL_KEYS[0]:
            findings.measured["incr"] = ratios(p50(found["peer"]["incr"]), p50(found["with"]["incr"]))
            if "lmdb" in specs:
                findings.measured["set_lmdb"] = ratios(p50(found["lmdb"]["set"]), p50(found["with"]["set"]))
    findings.tables.append(table)
    return findings


def _small_writes(run: Run, specs: Mapping[str, Spec], count: int) -> Rounds:
    keys = keys_of(count)

    def measure(single: Single, number: int) -> Mapping[str, Sequence[float]]:
        draw = random.Random(f"{SEED} {number}")
        chosen, gone = draw.choices(keys, k=SMALL_CALLS), draw.sample(keys, min(SMALL_CALLS, count))
        found = {
            "set": single.sets(chosen, number),
            "incr": single.increments(chosen),
            "delete": single.deletes(gone),
        }
        single.sets(gone, number)
        return found

    with opened(run, specs, keys) as singles:
        return run.rounds(run.options.repeats, singles, measure, f"writes of {count:,} keys: ")
