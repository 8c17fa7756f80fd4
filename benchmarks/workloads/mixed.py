"""The workloads of `calls` by one process or many, run by the harness for the budgets.

The classic workload is 90 % get, 9 % set and 1 % delete of 100 keys; its total time is that of a pass without a clock
inside, its percentiles are those of a second pass in which each call is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec

from benchmarks.measure import ratios
from benchmarks.peers.catalogue import SUBJECTS, Candidate
from benchmarks.peers.spec import Spec
from benchmarks.report.record import Record, ScenarioFacts, Trial
from benchmarks.report.tables import scenario_tables
from benchmarks.workloads.calls import READS, WRITES, Mix
from benchmarks.workloads.harness import Amounts, Harness
from benchmarks.workloads.scenarios import Scenario, always
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.values import Bytes

ENDLESS = 600.0  # seconds; a pass ends with its script
TITLE = "Classic workload, 90/9/1, 100 keys"
# The bytes of a value and how many there are, by what the budgets call them.
LARGE = {"large_100k": (100_000, 50), "large_1m": (1_000_000, 20), "large_10m": (10_000_000, 4)}
LARGE_OPERATIONS, LARGE_SECONDS = 200, 0.2


def compete(run: Run, findings: Findings, name: str, scenario: Scenario, candidates: Mapping[str, Candidate]) -> Record:
    """Let subjects take turns in one scenario, and tell what ours does wrong, which no speed makes up for."""
    large = scenario.facts.step == "bytes of a value"
    amounts = Amounts(
        repeats=run.options.repeats,
        operations=LARGE_OPERATIONS if large else run.options.operations,
        seconds=LARGE_SECONDS if large else ENDLESS,
        processes=run.options.processes,
    )
    facts = {subject: one.facts for subject, one in candidates.items()}
    record = Record({}, asdict(amounts), facts, {name: scenario.facts})
    harness = Harness(record, amounts, run.costs, run.workspace, run.note, candidates)
    for _ in harness.run({name: scenario}, list(candidates)):
        findings.tables += scenario_tables(record, name)
    findings.details[name] = {"trials": [asdict(one) for one in record.trials]}
    findings.problems += [f"{run.ours.name}: {one.reason}" for one in record.absences if one.subject == "ours"]
    for what in ("wrong", "unexpected"):
        if count := sum(getattr(one, what) for one in record.of(name).get("ours", ())):
            findings.problems.append(f"{run.ours.name}: {count} {what} answers in {name}")
    return record


def pair_of(specs: Mapping[str, Spec]) -> dict[str, Candidate]:
    """Return our subject and the peer as candidates."""
    return {role: Candidate(spec, spec.label) for role, spec in specs.items()}


def classic_by(
    run: Run, findings: Findings, processes: int, candidates: Mapping[str, Candidate], also: str = ""
) -> Record:
    """Run the classic workload in some processes at once."""
    many = f"{processes} process{'es' if processes > 1 else ''} x {run.options.operations:,} operations"
    facts = ScenarioFacts(f"{TITLE}, {many}{also}", "What does a usual mix cost?")
    scenario = Scenario(facts, always(Mix()), tuple(candidates), processes=lambda step, most: processes)
    return compete(run, findings, f"{processes}_processes", scenario, candidates)


def quotients(
    record: Record, measure: Callable[[Trial], float], top: str = "peer", bottom: str = "ours", step: int | None = None
) -> list[float]:
    """Return one subject's number by the other's, per repetition; none where one of the two failed."""
    (name,) = record.scenarios
    found = record.of(name, step)
    tops, bottoms = ([measure(one) for one in found.get(role, ())] for role in (top, bottom))
    return ratios(tops, bottoms) if len(tops) == len(bottoms) else []


def faster(record: Record) -> list[float]:
    """Return how many times shorter our total time was, per repetition."""
    return quotients(record, lambda trial: trial.seconds)


def classic(run: Run) -> Findings:
    """Measure one process and many on the same cache."""
    findings, pair = Findings(), pair_of(run.pair)
    findings.measured["classic_one"] = faster(classic_by(run, findings, 1, pair))
    record = classic_by(run, findings, run.options.processes, pair)
    findings.measured["classic_many"] = faster(record)
    # Not p99, which lies on the edge between calls that waited for a processor and those that did not.
    findings.measured["set_tail_many"] = quotients(record, lambda trial: trial.calls["set"].tail)
    return findings


def fanout(run: Run) -> Findings:
    """Measure many processes on a FanoutCache of 8 shards, where a call that waits too long for a shard is given up."""
    findings = Findings()
    pair = pair_of({role: spec.having("FanoutCache", shards=8) for role, spec in run.pair.items()})
    record = classic_by(run, findings, run.options.processes, pair, ", FanoutCache(shards=8)")
    findings.measured["fanout_many"] = faster(record)
    return findings


def beside_lmdb(run: Run, findings: Findings) -> None:
    """Measure many processes beside LMDB, if it is installed."""
    if find_spec("lmdb") is not None:
        pair = {**pair_of({"ours": run.ours}), "peer": SUBJECTS["lmdb"]}
        findings.measured["classic_lmdb"] = faster(classic_by(run, findings, run.options.processes, pair))


def large(run: Run) -> Findings:
    """Measure reads and writes of large values beside DiskCache, which verifies nothing; ours without its hot layer.

    Each trial has a process of its own, since the memory that one cache frees would serve the other.
    """
    findings, sizes = Findings(), dict(LARGE.values())
    for name, shares in (("get", READS), ("set", WRITES)):
        scenario = Scenario(
            ScenarioFacts(f"Large values, {name}", "What do large values cost?", "bytes of a value"),
            lambda size, shares=shares: Mix(sizes[size], shares, Bytes(size)),  # type: ignore[misc]
            ("ours", "peer"),
            steps=tuple(sizes),
        )
        record = compete(run, findings, f"large_{name}", scenario, pair_of(run.cold))
        for key, (size, _) in LARGE.items() if name == "get" else ():
            findings.measured[key] = quotients(record, lambda trial: trial.calls["get"].p50, "ours", "peer", size)
    return findings
