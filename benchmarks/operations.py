"""What one call costs, and what LRU, LFU and statistics add to a hot get."""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack
from typing import Any

from benchmarks.measure import BLOCK, Costs, Summary, combine, ratios, summarise, time_blocks, time_calls, time_keys
from benchmarks.report import PERCENTILES, Table, duration, percentile_cells
from benchmarks.section import Findings, Run
from benchmarks.subjects import BenchmarkError, Spec, Subject, load_items
from benchmarks.workloads import SEED, blocks_of, items_of, keys_of, value_of

ENTRIES = 10_000
ROUNDS_PER_REPEAT = 5
POLICY_ROUNDS_PER_REPEAT = 20
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


def cold(spec: Spec, ours: Spec) -> Spec:
    """Return the subject without its hot layer; a peer has none."""
    return spec.having(hot_size_limit=0) if spec == ours else spec


class Bench:
    """One subject opened twice, with and without hot layer, and the calls to measure on it."""

    def __init__(self, hot: Subject, cold_one: Subject, costs: Costs) -> None:
        self.hot, self.cold, self.costs = hot, cold_one, costs
        self.keys = keys_of(ENTRIES)
        self.hot_keys = self.keys[:: ENTRIES // BLOCK]
        for subject in (hot, cold_one):
            load_items(subject, items_of(self.keys))

    def measure(self, seed: int, count: int) -> dict[str, Summary]:
        """Measure every call once; deleted keys are there again afterwards."""
        draw = random.Random(seed)
        hot_get, put = self.hot.get, self.hot.set
        chosen, others = draw.sample(self.keys, count), draw.sample(self.keys, count)
        for key in self.hot_keys * 3:
            hot_get(key)
        blocks = time_blocks(hot_get, blocks_of(self.hot_keys, max(count // 10, 10), draw), self.costs)
        singles = {
            "hot_get_single": time_keys(hot_get, draw.choices(self.hot_keys, k=count)),
            "cold_get": time_keys(self.cold.get, draw.sample(self.keys, count)),
            "delete": time_keys(self.hot.delete, chosen),
            "set_new": time_calls(put, [(key, value_of(key, seed)) for key in chosen]),
            "set": time_calls(put, [(key, value_of(key, seed)) for key in others]),
        }
        self.check(draw)
        return {"hot_get": summarise(blocks)} | {
            name: summarise(samples, self.costs.clock) for name, samples in singles.items()
        }

    def check(self, draw: random.Random) -> None:
        """Make sure that hits were measured, not misses."""
        for subject in (self.hot, self.cold):
            for key in [*self.hot_keys, *draw.sample(self.keys, BLOCK)]:
                value = subject.get(key)
                if value is None or not value.startswith(key.encode()):
                    raise BenchmarkError(f"{type(subject).__module__} returned {value!r} for {key!r}")


def operations(run: Run) -> Findings:
    """Measure single operations of both subjects in turn."""
    rounds = run.options.repeats * ROUNDS_PER_REPEAT
    count = min(max(run.options.operations // 10, BLOCK), ENTRIES // 2)
    found: dict[str, list[dict[str, Summary]]] = {role: [] for role in run.pair}
    with ExitStack() as stack:
        benches = {}
        for role, spec in run.pair.items():
            hot = stack.enter_context(spec.opened(run.workspace.fresh(f"{role}-hot")))
            other = stack.enter_context(cold(spec, run.ours).opened(run.workspace.fresh(f"{role}-cold")))
            benches[role] = Bench(hot, other, run.costs)
        for number, role in run.rounds(rounds, list(benches)):
            found[role].append(benches[role].measure(SEED + number, count))
    return _operations_findings(run, found, count)


def _operations_findings(run: Run, found: dict[str, list[dict[str, Summary]]], count: int) -> Findings:
    findings = Findings()
    table = Table(
        f"Single operations, {ENTRIES:,} entries, values of 100 bytes, {len(found['ours'])} rounds of {count:,} calls",
        ("subject", "call", "calls", *PERCENTILES),
        left=2,
    )
    for role, spec in run.pair.items():
        for name, label in CALLS.items():
            table.rows.append((spec.label, label, *percentile_cells(combine([one[name] for one in found[role]]))))
    table.notes += [
        f"hot get, blocks: {BLOCK} gets of {BLOCK} keys between two clock readings, divided (the budget's number);",
        "every other row: each call timed by itself, clock subtracted; cold get: hot layer off (hot_size_limit=0)",
    ]
    findings.tables.append(table)
    for name in CALLS:
        p50 = {role: [one[name].p50 for one in runs] for role, runs in found.items()}
        findings.measured[name] = ratios(p50["peer"], p50["ours"])
    findings.details = {
        role: [{name: summary.as_dict() for name, summary in one.items()} for one in runs]
        for role, runs in found.items()
    }
    return findings


def policies(run: Run) -> Findings:
    """Measure what eviction policies and statistics add to a hot get, and to the write after many of them."""
    keys = keys_of(BLOCK)
    chunk = max(run.options.operations // 10 // BLOCK, 2)
    gets: dict[str, list[float]] = {name: [] for name in POLICIES}
    writes: dict[str, list[float]] = {name: [] for name in POLICIES}
    with ExitStack() as stack:
        subjects = {}
        for name, settings in POLICIES.items():
            spec = run.ours.having(**settings)
            subjects[name] = stack.enter_context(spec.opened(run.workspace.fresh(f"policy-{name}")))
            load_items(subjects[name], items_of(keys))
            time_blocks(subjects[name].get, blocks_of(keys, 3, random.Random(SEED)), run.costs)
        for number, name in run.rounds(run.options.repeats * POLICY_ROUNDS_PER_REPEAT, list(POLICIES)):
            blocks = blocks_of(keys, chunk + 1, random.Random(SEED + number))
            # The first block refills the processor's caches after the other settings had their turn.
            times = time_blocks(subjects[name].get, blocks, run.costs)[1:]
            gets[name].append(sum(times) / len(times))
            write = time_calls(subjects[name].set, [(keys[0], value_of(keys[0], number))])
            writes[name].append(write[0] - run.costs.clock)
    return _policy_findings(run, gets, writes, chunk * BLOCK)


def _policy_findings(run: Run, gets: dict[str, list[float]], writes: dict[str, list[float]], chunk: int) -> Findings:
    findings = Findings(details={"hot_get_ns": gets, "write_after_chunk_ns": writes})
    rounds = len(gets["default"])
    table = Table(
        f"Hot get under policies, {run.ours.label}, {rounds} rounds of {chunk:,} gets",
        ("setting", "get, median", "over default", f"set after {chunk:,} gets, median"),
    )
    for name in POLICIES:
        over = [(ratio - 1) * 100 for ratio in ratios(gets[name], gets["default"])]
        middle = statistics.median(gets[name])
        extra = "-" if name == "default" else f"{statistics.median(over):+.1f} %"
        table.rows.append((name, duration(middle), extra, duration(statistics.median(writes[name]))))
        if name != "default":
            findings.measured[name] = over
    table.notes += [
        "median over rounds of the time of a whole round divided by its gets, so that batched work inside counts;",
        "rounds of the four settings alternate and are compared pairwise; the set that follows carries the batch",
    ]
    findings.tables.append(table)
    return findings
