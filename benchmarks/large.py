"""What reads and writes of large values take beside DiskCache, which verifies nothing.

The same bytes lie in both caches, ours without its hot layer. Each cache has a process of its own, since the memory
that one frees would serve the other, and the two take turns. A repetition's ratio is that of the medians over its
calls.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.crew import Crew, Gate
from benchmarks.intervals import Spread, ratio_spread
from benchmarks.measure import alternate, measure_costs, ratios, time_calls, time_keys
from benchmarks.operations import cold
from benchmarks.repetitions import confidence
from benchmarks.report import Table, duration
from benchmarks.section import Findings, Run
from benchmarks.subjects import BenchmarkError, Spec
from benchmarks.tables import between
from benchmarks.workloads import SEED, keys_of

# The bytes of a value and how many there are, by what the budgets call them.
SIZES = MappingProxyType({"large_100k": (100_000, 50), "large_1m": (1_000_000, 20), "large_10m": (10_000_000, 4)})
NAMES = MappingProxyType({"large_100k": "100 KB", "large_1m": "1 MB", "large_10m": "10 MB"})
CALLS = ("get", "set")
ROUNDS = 4  # of gets for each of sets
PATIENCE = 60.0


@dataclass(frozen=True)
class Plan:
    """What a process measures."""

    spec: Spec
    directory: Path
    size: int
    count: int

    def items(self) -> dict[str, bytes]:
        """Return all entries; their bytes have no line ends, at which DiskCache takes a value apart."""
        dice = random.Random(f"{SEED} {self.size}")
        return {key: dice.randbytes(self.size).replace(b"\n", b".") for key in keys_of(self.count)}


def measure(gate: Gate, plan: Plan) -> dict[str, float]:
    """Return the median time of every call."""
    items, clock = plan.items(), measure_costs(1_000).clock
    with plan.spec.opened(plan.directory) as subject:
        for key, value in items.items():
            subject.set(key, value)
        for key, value in items.items():
            if subject.get(key) != value:
                raise BenchmarkError(f"get({key!r}) returned another value than was stored")
        timed: dict[str, Callable[[], Any]] = {
            "get": lambda: time_keys(subject.get, list(items) * ROUNDS),
            "set": lambda: time_calls(subject.set, items.items()),
        }
        return {call: statistics.median(timed[call]()) - clock for call in CALLS}


def large(run: Run) -> Findings:
    """Measure every size."""
    findings = Findings()
    table = Table(
        "Single calls with large values, ours without its hot layer",
        ("call", "value", run.ours.label, run.peer.label, "times", "interval"),
        left=2,
    )
    spreads = list[Spread]()
    with ExitStack() as stack:
        crews = {role: stack.enter_context(Crew(1)) for role in run.pair}
        for number, (name, (size, count)) in enumerate(SIZES.items()):
            run.note(f"values of {NAMES[name]}", number / len(SIZES))
            plans = {
                role: Plan(cold(spec, run.ours), run.workspace.fresh(f"{role}-{name}"), size, count)
                for role, spec in run.pair.items()
            }
            found: dict[str, dict[str, list[float]]] = {call: {role: [] for role in plans} for call in CALLS}
            for _, role in alternate(run.options.repeats, list(plans)):
                (times,) = crews[role].run(measure, [plans[role]], PATIENCE)
                for call, time in times.items():
                    found[call][role].append(time)
            for call, times_of in found.items():
                spreads.append(ratio_spread(times_of["ours"], times_of["peer"]))
                medians = [duration(statistics.median(times_of[role])) for role in ("ours", "peer")]
                interval = between(spreads[-1], lambda value: f"{value:.2f}")
                table.rows.append((call, NAMES[name], *medians, f"{spreads[-1].median:.2f}x", interval))
            findings.measured[name] = ratios(found["get"]["ours"], found["get"]["peer"])
            findings.details[name] = found
            run.workspace.discard(*(plan.directory for plan in plans.values()))
    table.notes.append(f"times: ours by {run.peer.name}'s, {confidence(spreads)}")
    findings.tables.append(table)
    return findings
