"""What a large cache costs: to open, to count, and per operation."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.measure import ratios, time_once
from benchmarks.peers.spec import BenchmarkError, Subject, feature, load_items
from benchmarks.report.text import Table, duration
from benchmarks.workloads.section import Findings, Run, details, p50, rounds_table
from benchmarks.workloads.singles import Single
from benchmarks.workloads.values import SEED, items_of, keys_of

SMALL = 10_000
ROUNDS_PER_REPEAT = 3
OPENS_PER_REPEAT = 5
CALLS = ("get", "set", "delete")
OPENING = {"open": "open + get", "len": "len"}


def growth(run: Run) -> Findings:
    """Measure a small and a large cache of each subject; only ours has budgets."""
    large = run.options.entries
    sizes = {"small": min(SMALL, max(large // 10, 1)), "large": large}
    places = {f"{role} {name}": run.workspace.fresh(f"{role}-{name}") for role in run.wanted for name in sizes}
    keys = {place: keys_of(sizes[place.split()[1]]) for place in places}
    for place, directory in places.items():
        run.note(f"filling {place} with {len(keys[place]):,} entries", 0)
        with run.pair[place.split()[0]].opened(directory) as subject:
            load_items(subject, items_of(keys[place]))
    findings = Findings()
    _openings(run, findings, {role: places[f"{role} large"] for role in run.wanted}, keys["ours large"])
    _calls(run, findings, places, keys)
    run.workspace.discard(*places.values())
    return findings


def _openings(run: Run, findings: Findings, places: dict[str, Path], keys: Sequence[str]) -> None:
    """Time opening with one get, and `len`."""
    repeats = run.options.repeats
    found: dict[str, dict[str, list[float]]] = {role: {name: [] for name in OPENING} for role in places}

    def opened(role: str, key: str) -> Subject:
        subject = run.pair[role].open(places[role])
        if subject.get(key) is None:
            raise BenchmarkError(f"{run.pair[role].name} lost {key!r}")
        return subject

    for number, role in run.turns(repeats, list(places), "opening, "):
        key = keys[number * len(keys) // repeats]
        for _ in range(OPENS_PER_REPEAT):
            elapsed, subject = time_once(partial(opened, role, key))
            found[role]["open"].append(elapsed)
            found[role]["len"].append(time_once(feature(subject, "__len__"))[0])
            subject.close()
    table = Table(f"Opening a cache of {len(keys):,} entries", ("subject", *OPENING.values()))
    for role, times in found.items():
        table.rows.append((run.pair[role].label, *(duration(statistics.median(times[name])) for name in OPENING)))
    table.notes.append(f"medians of {repeats * OPENS_PER_REPEAT} openings in one process")
    findings.tables.append(table)
    findings.details["opening_ns"] = found
    for name in ("open", "len"):
        findings.measured[name] = [value / 1e6 for value in found["ours"][name]]


def _calls(run: Run, findings: Findings, places: dict[str, Path], keys: dict[str, list[str]]) -> None:
    """Time gets, sets and deletes of random keys, the hot layer off; deleted keys are there again afterwards."""
    count = min(max(run.options.operations // 20, 20), *map(len, keys.values()))

    def measure(place: str, number: int) -> Mapping[str, Sequence[float]]:
        draw, single = random.Random(SEED + number), singles[place]
        gone, chosen = draw.sample(keys[place], count), draw.sample(keys[place], count)
        found = {
            "get": single.gets(draw.sample(keys[place], count)),
            "set": single.sets(chosen, number),
            "delete": single.deletes(gone),
        }
        load_items(single.subject, items_of(gone, number))
        return found

    with ExitStack() as stack:
        opened = {place: run.cold[place.split()[0]].opened(directory) for place, directory in places.items()}
        singles = {place: Single(stack.enter_context(one), (), run.costs) for place, one in opened.items()}
        rounds = run.options.repeats * ROUNDS_PER_REPEAT
        found = run.rounds(rounds, {place: place for place in places}, measure, "growth, ")
    labels = {place: f"{run.pair[place.split()[0]].label}, {len(keys[place]):,} entries" for place in places}
    title = f"Cost against entries, {rounds} rounds of {count:,} calls, hot layer off"
    findings.tables.append(rounds_table(title, found, labels, {call: call for call in CALLS}))
    findings.details["calls"] = details(found)
    for call in CALLS:
        findings.measured[f"growth_{call}"] = ratios(p50(found["ours large"][call]), p50(found["ours small"][call]))
