"""The classic workload, alone and with other processes on the same cache.

Each repetition runs the script twice in every process: first without a clock inside, for the total time, then with
each call timed, for the percentiles. Both passes start together at a gate, after a warm-up.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.crew import Crew, Gate
from benchmarks.measure import Summary, clock, combine, ratios, summarise
from benchmarks.report import PERCENTILES, Table, duration, percentile_cells
from benchmarks.section import Findings, Run
from benchmarks.subjects import Spec, Subject
from benchmarks.workloads import DELETE, GET, SEED, SET, Step, absent_after, classic_keys, classic_script

NAMES = {GET: "get", SET: "set", DELETE: "delete"}


@dataclass(frozen=True)
class Plan:
    """What one worker does; worker 0 prepares the cache, and a worker that is alone knows every miss beforehand."""

    spec: Spec
    directory: Path
    operations: int
    number: int
    alone: bool


@dataclass
class Samples:
    """What one worker saw; times in nanoseconds, `began` and `ended` on the clock that all processes share."""

    began: int = 0
    ended: int = 0
    calls: dict[int, array[int]] = field(default_factory=lambda: {kind: array("q") for kind in NAMES})
    misses: int = 0
    unexpected: int = 0
    dropped: int = 0
    wrong: int = 0


@dataclass
class Repetition:
    """All workers of one subject together."""

    seconds: float
    summaries: dict[int, Summary]
    misses: int
    unexpected: int
    dropped: int
    wrong: int


def work(gate: Gate, plan: Plan) -> Samples:
    """Run the workload in this process."""
    warm_up = classic_script(SEED + 1000 + plan.number, max(plan.operations // 10, 100))
    script = classic_script(SEED + plan.number, plan.operations)
    samples = Samples()
    if plan.number == 0:
        with plan.spec.opened(plan.directory) as subject:
            for key in classic_keys():
                subject.set(key, key + b":")
    gate.wait()
    with plan.spec.opened(plan.directory) as subject:
        run_plain(subject, warm_up)
        gate.wait()
        samples.began = clock()
        run_plain(subject, script)
        samples.ended = clock()
        gate.wait()
        absent = absent_after([*warm_up, *script]) if plan.alone else set(classic_keys())
        run_timed(subject, script, samples, absent, plan.alone)
        gate.wait()
    return samples


def run_plain(subject: Subject, script: Sequence[Step]) -> None:
    """Run the script as fast as it goes."""
    get, put, delete = subject.get, subject.set, subject.delete
    for kind, key, value in script:
        if kind == GET:
            get(key)
        elif kind == SET:
            put(key, value)
        else:
            delete(key)


def run_timed(subject: Subject, script: Sequence[Step], samples: Samples, absent: set[bytes], alone: bool) -> None:
    """Time every call, and check outside the timed part what it returned."""
    get, put, delete = subject.get, subject.set, subject.delete
    keep = {kind: calls.append for kind, calls in samples.calls.items()}
    for kind, key, value in script:
        result: object
        if kind == GET:
            start = clock()
            result = get(key)
            stop = clock()
            _check_get(key, result, samples, key in absent)
        elif kind == SET:
            start = clock()
            result = put(key, value)
            stop = clock()
            samples.dropped += result is False
        else:
            start = clock()
            delete(key)
            stop = clock()
        keep[kind](stop - start)
        if alone and kind != GET:
            (absent.discard if kind == SET else absent.add)(key)


def _check_get(key: bytes, result: object, samples: Samples, may_miss: bool) -> None:
    if result is None:
        samples.misses += 1
        samples.unexpected += not may_miss
    elif not (isinstance(result, bytes) and result.startswith(key + b":")):
        samples.wrong += 1


def repetition(run: Run, crew: Crew, spec: Spec, processes: int) -> Repetition:
    """Run the workload once on a fresh cache."""
    directory = run.workspace.fresh("classic")
    alone = processes == 1
    plans = [Plan(spec, directory, run.options.operations, number, alone) for number in range(processes)]
    workers = crew.run(work, plans)
    run.workspace.discard(directory)
    calls = {kind: [call for worker in workers for call in worker.calls[kind]] for kind in NAMES}
    return Repetition(
        (max(worker.ended for worker in workers) - min(worker.began for worker in workers)) / 1e9,
        {kind: summarise(samples, run.costs.clock) for kind, samples in calls.items()},
        sum(worker.misses for worker in workers),
        sum(worker.unexpected for worker in workers),
        sum(worker.dropped for worker in workers),
        sum(worker.wrong for worker in workers),
    )


def measure(run: Run, pair: dict[str, Spec], processes: int) -> dict[str, list[Repetition]]:
    """Repeat the workload for both subjects in turn."""
    found: dict[str, list[Repetition]] = {role: [] for role in pair}
    with Crew(processes) as crew:
        for _, role in run.rounds(run.options.repeats, list(pair), f"{processes} process(es), "):
            found[role].append(repetition(run, crew, pair[role], processes))
    return found


def table(run: Run, pair: dict[str, Spec], found: dict[str, list[Repetition]], processes: int) -> Table:
    """Show percentiles per operation and the totals."""
    many = f"{processes} process{'es' if processes > 1 else ''} x {run.options.operations:,} operations"
    shown = Table(
        f"Classic workload, 90/9/1, 100 keys, {many}, {run.options.repeats} repetitions",
        ("subject", "call", "calls", *PERCENTILES),
        left=2,
    )
    for role, spec in pair.items():
        for kind, name in NAMES.items():
            summary = combine([one.summaries[kind] for one in found[role]])
            shown.rows.append((spec.label, name, *percentile_cells(summary)))
    for role, spec in pair.items():
        shown.notes.append(f"{spec.label}: {_totals(found[role], processes * run.options.operations)}")
    shown.notes.append(
        "single calls, clock subtracted; p50 to p99.9 are medians over the repetitions, max is the "
        "largest of all; the total is a pass of its own without a clock inside"
    )
    if processes > 1:
        shown.notes.append("a miss is by design here: any process may have deleted the key")
    return shown


def _totals(found: list[Repetition], operations: int) -> str:
    seconds = statistics.median(one.seconds for one in found)
    misses, unexpected = sum(one.misses for one in found), sum(one.unexpected for one in found)
    dropped, wrong = sum(one.dropped for one in found), sum(one.wrong for one in found)
    return (
        f"total {duration(seconds * 1e9)}, {operations / seconds:,.0f} operations/s; misses by design "
        f"{misses - unexpected:,}, unexpected misses {unexpected}, sets dropped {dropped}, wrong values {wrong}"
    )


def details(found: dict[str, list[Repetition]]) -> dict[str, object]:
    """Return every repetition for JSON."""
    return {
        role: [
            {
                "seconds": one.seconds,
                "calls": {NAMES[kind]: summary.as_dict() for kind, summary in one.summaries.items()},
                "misses": one.misses,
                "unexpected_misses": one.unexpected,
                "dropped_sets": one.dropped,
                "wrong_values": one.wrong,
            }
            for one in repetitions
        ]
        for role, repetitions in found.items()
    }


def problems(run: Run, found: dict[str, list[Repetition]], may_drop: bool = False) -> list[str]:
    """Say what our own subject did wrong, which no speed makes up for; a FanoutCache may drop sets in time of need."""
    counts = {
        "wrong values": sum(one.wrong for one in found["ours"]),
        "unexpected misses": sum(one.unexpected for one in found["ours"]),
        "dropped sets": 0 if may_drop else sum(one.dropped for one in found["ours"]),
    }
    return [f"{run.ours.name}: {count} {what}" for what, count in counts.items() if count]


def faster(found: dict[str, list[Repetition]]) -> list[float]:
    """Return how many times shorter our total time was, per repetition."""
    return ratios([one.seconds for one in found["peer"]], [one.seconds for one in found["ours"]])


def classic(run: Run) -> Findings:
    """Measure one process and many on the same cache."""
    findings = Findings()
    one, many = (measure(run, run.pair, processes) for processes in (1, run.options.processes))
    for found, processes in ((one, 1), (many, run.options.processes)):
        findings.tables.append(table(run, run.pair, found, processes))
        findings.details[f"{processes}_processes"] = details(found)
        findings.problems += problems(run, found)
    findings.measured["classic_one"] = faster(one)
    findings.measured["classic_many"] = faster(many)
    # Not p99, which lies on the edge between calls that waited for a processor and those that did not.
    tail = {role: [one.summaries[SET].tail for one in found] for role, found in many.items()}
    findings.measured["set_tail_many"] = ratios(tail["peer"], tail["ours"])
    return findings


def fanout(run: Run) -> Findings:
    """Measure many processes on a FanoutCache of 8 shards."""
    findings = Findings()
    pair = {role: spec.having("FanoutCache", shards=8) for role, spec in run.pair.items()}
    found = measure(run, pair, run.options.processes)
    findings.tables.append(table(run, pair, found, run.options.processes))
    findings.tables[0].title += ", FanoutCache(shards=8)"
    findings.details["fanout"] = details(found)
    findings.problems += problems(run, found, may_drop=True)
    findings.measured["fanout_many"] = faster(found)
    return findings
