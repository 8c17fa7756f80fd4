"""The peers: Memcached, Redis and other stores beside both subjects, one at a time and from many processes."""

from __future__ import annotations

import random
import statistics
from contextlib import ExitStack

from benchmarks import classic
from benchmarks.catalogue import SUBJECTS, available
from benchmarks.crew import Crew, WorkerError
from benchmarks.measure import awake, ratios, summarise, time_blocks, time_calls, time_keys
from benchmarks.report import Table, duration
from benchmarks.section import Findings, Run
from benchmarks.subjects import SPECS, Spec, load_items
from benchmarks.workloads import SEED, blocks_of, items_of, keys_of, value_of

KEYS = 100
ROUNDS_PER_REPEAT = 5
CALLS = 200  # per round
COLUMNS = {"hot_get": "hot get", "set": "set", "delete": "delete"}


def others() -> list[str]:
    """Return the names of the subjects beside the pair, but for those of which nothing can be changed."""
    pair = {spec.module for spec in SPECS.values()}
    foreign = {name: one for name, one in SUBJECTS.items() if one.spec.module not in pair}
    return [name for name, one in foreign.items() if {"set", "delete"} <= one.offers]


@awake()
def peers(run: Run) -> Findings:
    """Measure every subject that is there."""
    findings = Findings()
    with available(others(), run.workspace) as found:
        specs = {**run.pair, **found.specs}
        skipped = [f"{SUBJECTS[one.subject].title} skipped: {one.reason}" for one in found.absences]
        singles = _singles(run, specs)
        findings.tables.append(_single_table(specs, singles, skipped))
        for peer in ("memcached", "redis"):
            for call in COLUMNS if peer in specs else ():
                findings.measured[f"{call}_{peer}"] = ratios(singles[peer][call], singles["ours"][call])
        # Every repetition opens a handle of its own, and what is in one handle's memory only is not there.
        chosen = {name: spec for name, spec in specs.items() if name in run.pair or SUBJECTS[name].shared}
        for processes in (1, run.options.processes):
            repetitions, failed = _classic(run, chosen, processes)
            skipped += failed
            table = classic.table(run, {name: chosen[name] for name in repetitions}, repetitions, processes)
            table.notes += failed
            findings.tables.append(table)
            findings.details[f"{processes}_processes"] = classic.details(repetitions)
            findings.problems += classic.problems(run, repetitions)
    findings.details["singles"] = singles
    findings.details["skipped"] = skipped
    return findings


def _classic(run: Run, specs: dict[str, Spec], processes: int) -> tuple[dict[str, list[classic.Repetition]], list[str]]:
    """Repeat the classic workload for all subjects in turn; one that fails is left out from there on, and named."""
    found: dict[str, list[classic.Repetition]] = {name: [] for name in specs}
    failed: list[str] = []
    with ExitStack() as crews:
        crew = crews.enter_context(Crew(processes))
        for _, name in run.rounds(run.options.repeats, list(specs), f"{processes} process(es), "):
            if name not in found:
                continue
            try:
                found[name].append(classic.repetition(run, crew, specs[name], processes))
            except WorkerError as error:
                if name in run.pair:
                    raise
                failed.append(
                    f"{specs[name].name} failed with {processes} process(es): {str(error).strip().splitlines()[-1]}"
                )
                del found[name]
                crews.close()  # its workers may be dead
                crew = crews.enter_context(Crew(processes))
    return found, failed


def _singles(run: Run, specs: dict[str, Spec]) -> dict[str, dict[str, list[float]]]:
    """Return the median nanoseconds of each call in each round, the subjects taking turns."""
    keys = keys_of(KEYS)
    found: dict[str, dict[str, list[float]]] = {name: {call: [] for call in COLUMNS} for name in specs}
    with ExitStack() as stack:
        subjects = {name: stack.enter_context(spec.opened(run.workspace.fresh(name))) for name, spec in specs.items()}
        for subject in subjects.values():
            load_items(subject, items_of(keys))
        for number, name in run.rounds(run.options.repeats * ROUNDS_PER_REPEAT, list(subjects), "peers, "):
            subject, draw = subjects[name], random.Random(SEED + number)
            chosen = draw.choices(keys, k=CALLS)
            time_keys(subject.get, keys)
            gets = time_blocks(subject.get, blocks_of(keys, CALLS // 10, draw), run.costs)
            sets = time_calls(subject.set, [(key, value_of(key, number)) for key in chosen])
            deletes = time_keys(subject.delete, keys)
            load_items(subject, items_of(keys, number))
            found[name]["hot_get"].append(statistics.median(gets))
            found[name]["set"].append(summarise(sets, run.costs.clock).p50)
            found[name]["delete"].append(summarise(deletes, run.costs.clock).p50)
    return found


def _single_table(specs: dict[str, Spec], found: dict[str, dict[str, list[float]]], skipped: list[str]) -> Table:
    rounds = len(found["ours"]["set"])
    table = Table(
        f"Single calls beside the peers, {KEYS} keys, values of 100 bytes, one process, {rounds} rounds",
        ("subject", *(f"{label}, p50" for label in COLUMNS.values())),
    )
    for name, spec in specs.items():
        table.rows.append((spec.label, *(duration(statistics.median(found[name][call])) for call in COLUMNS)))
    table.notes.append("medians over the rounds of each round's median, clock subtracted; the subjects take turns")
    table.notes += [f"{SUBJECTS[name].title}: {SUBJECTS[name].note}" for name in specs if name in SUBJECTS]
    table.notes += skipped
    return table
