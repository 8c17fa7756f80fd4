"""What small writes take with a write buffer, beside those without one, DiskCache's and, where it is installed, LMDB's.

All of them have the same keys and take turns, a few thousand calls each. Calls that flush what waits to the database
show in the mean and in the last percentiles. The values are random, so that no page is written unchanged. LMDB runs the
classic workload in many processes, too.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from benchmarks import classic
from benchmarks.catalogue import SUBJECTS
from benchmarks.measure import ratios, time_calls
from benchmarks.report import Table, duration
from benchmarks.section import Findings, Run
from benchmarks.subjects import Spec, Subject, feature, load_items
from benchmarks.workloads import SEED, keys_of

KEYS = (100, 100_000)
CALLS = 5_000  # of one subject in one turn
VALUES = tuple(random.Random(SEED).randbytes(100) for _ in range(1_000))
WITHOUT, WITH, PEER, LMDB, MAPPED = "without", "with", "peer", "lmdb", "mapped"
BUDGETS = (("incr", "incr", PEER), ("set_lmdb", "set", LMDB))  # key, call, and beside whom


def _arguments(call: str, keys: list[str], dice: random.Random) -> Iterator[tuple[Any, ...]]:
    chosen = dice.sample(keys, min(CALLS, len(keys))) if call == "delete" else dice.choices(keys, k=CALLS)
    for number, key in enumerate(chosen):
        yield (key, VALUES[number % len(VALUES)]) if call == "set" else (f"count {key}",) if call == "incr" else (key,)


def _restore(subject: Subject, call: str, keys: list[str]) -> None:
    if call == "delete":
        load_items(subject, ((key, VALUES[number % len(VALUES)]) for number, key in enumerate(keys)))


def _row(call: str, count: int, samples: array[int], clock: float) -> tuple[str, ...]:
    ordered = sorted(samples)

    def at(part: float) -> str:
        return duration(ordered[min(int(len(ordered) * part), len(ordered) - 1)] - clock)

    return call, f"{count:,}", at(0.5), at(0.99), at(0.999), duration(statistics.fmean(ordered) - clock)


def buffered(run: Run) -> Findings:
    """Measure set, incr and delete."""
    findings = Findings()
    table = Table(
        "Small writes, with and without a write buffer",
        ("subject", "call", "keys", "p50", "p99", "p99.9", "mean"),
        left=2,
    )
    ours = run.ours.having(size_limit=1 << 40)
    specs: dict[str, Spec] = {WITHOUT: ours.having(write_buffer=0), WITH: ours, PEER: run.peer}
    labels = {WITHOUT: "write_buffer=0", WITH: ours.label, PEER: run.peer.label}
    if find_spec("lmdb") is not None:
        mapped, title = SUBJECTS["lmdb"].spec, SUBJECTS["lmdb"].title
        specs |= {LMDB: mapped, MAPPED: mapped.having(writemap=True)}
        labels |= {LMDB: title, MAPPED: f"{title}, writemap"}
        _measure_many(run, specs[LMDB], findings)
    for count in KEYS:
        keys = list(keys_of(count))
        with ExitStack() as stack:
            subjects = {
                role: stack.enter_context(spec.opened(run.workspace.fresh(f"{role}-{count}")))
                for role, spec in specs.items()
            }
            for subject in subjects.values():
                load_items(subject, ((key, VALUES[number % len(VALUES)]) for number, key in enumerate(keys)))
            for call in ("set", "incr", "delete"):
                _measure(run, (call, count, keys), subjects, labels, findings, table)
    findings.tables.append(table)
    return findings


def _measure_many(run: Run, lmdb: Spec, findings: Findings) -> None:
    """Run the classic workload in many processes beside LMDB."""
    pair = {"ours": run.ours, "peer": lmdb}
    found = classic.measure(run, pair, run.options.processes)
    findings.tables.append(classic.table(run, pair, found, run.options.processes))
    findings.details["beside_lmdb"] = classic.details(found)
    findings.problems += classic.problems(run, found)
    findings.measured["classic_lmdb"] = classic.faster(found)


def _measure(
    run: Run,
    what: tuple[str, int, list[str]],
    subjects: dict[str, Subject],
    labels: dict[str, str],
    findings: Findings,
    table: Table,
) -> None:
    call, count, keys = what
    samples: dict[str, array[int]] = {role: array("q") for role in subjects}
    medians: dict[str, list[float]] = {role: [] for role in subjects}
    for number, role in run.rounds(run.options.repeats, list(subjects), f"{call} of {count:,} keys: "):
        function: Callable[..., Any] = feature(subjects[role], call)
        found = time_calls(function, _arguments(call, keys, random.Random(f"{SEED} {number}")))
        samples[role].extend(found)
        medians[role].append(statistics.median(found) - run.costs.clock)
        _restore(subjects[role], call, keys)
    for role in subjects:
        table.rows.append((labels[role], *_row(call, count, samples[role], run.costs.clock)))
    for key, about, role in BUDGETS:
        if about == call and count == KEYS[0] and role in medians:
            findings.measured[key] = ratios(medians[role], medians[WITH])
