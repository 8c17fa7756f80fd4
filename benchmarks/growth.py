"""What a large cache costs, to open, to count and per operation, and what bulk calls save."""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.crew import Crew, Gate
from benchmarks.measure import Summary, combine, ratios, summarise, time_calls, time_keys, time_once
from benchmarks.operations import cold
from benchmarks.report import PERCENTILES, Table, duration, percentile_cells
from benchmarks.section import Findings, Run
from benchmarks.subjects import BenchmarkError, Spec, Subject, feature, load_items
from benchmarks.workloads import SEED, items_of, keys_of, value_of

SMALL = 10_000
BATCH = 1_000
BATCHES = 10
ROUNDS_PER_REPEAT = 3
PEER_SET = "peer_set"
OPENS_PER_REPEAT = 5
CALLS = ("get", "set", "delete")
OPENING = {"fresh": "open + get, new process", "open": "open + get", "len": "len"}


@dataclass(frozen=True)
class Opening:
    """What a fresh process opens, and the key that it reads."""

    spec: Spec
    directory: Path
    key: str


def open_once(_: Gate, plan: Opening) -> int:
    """Time opening and one get in this process, imports left out."""
    plan.spec.load()
    elapsed, subject = time_once(lambda: _open_and_get(plan))
    subject.close()
    return elapsed


def _open_and_get(plan: Opening) -> Subject:
    subject = plan.spec.open(plan.directory)
    if subject.get(plan.key) is None:
        raise BenchmarkError(f"{plan.spec.name} lost {plan.key!r}")
    return subject


def openings(plan: Opening, times: int) -> dict[str, list[float]]:
    """Time opening in a fresh process, opening again in this one, and `len`."""
    found: dict[str, list[float]] = {name: [] for name in OPENING}
    with Crew(1) as crew:
        found["fresh"] += crew.run(open_once, [plan])
    for _ in range(times):
        elapsed, subject = time_once(lambda: _open_and_get(plan))
        found["open"].append(elapsed)
        found["len"].append(time_once(feature(subject, "__len__"))[0])
        subject.close()
    return found


def calls(subject: Subject, keys: Sequence[str], seed: int, count: int) -> dict[str, array[int]]:
    """Time gets, sets and deletes of random keys; deleted keys are there again afterwards."""
    draw = random.Random(seed)
    gone = draw.sample(keys, count)
    items = [(key, value_of(key, seed)) for key in draw.sample(keys, count)]
    found = {
        "get": time_keys(subject.get, draw.sample(keys, count)),
        "set": time_calls(subject.set, items),
        "delete": time_keys(subject.delete, gone),
    }
    load_items(subject, items_of(gone, seed))
    return found


def growth(run: Run) -> Findings:
    """Measure a small and a large cache of each subject; only ours has budgets."""
    large = run.options.entries
    sizes = {"small": min(SMALL, max(large // 10, 1)), "large": large}
    places = {(role, name): run.workspace.fresh(f"{role}-{name}") for role in run.wanted for name in sizes}
    keys = {name: keys_of(count) for name, count in sizes.items()}
    for (role, name), directory in places.items():
        run.note(f"filling {run.pair[role].name} with {sizes[name]:,} entries", 0)
        with run.pair[role].opened(directory) as subject:
            load_items(subject, items_of(keys[name]))
    findings = Findings()
    _measure_openings(run, findings, {role: places[role, "large"] for role in run.wanted}, keys["large"])
    _measure_calls(run, findings, places, keys)
    run.workspace.discard(*places.values())
    return findings


def _measure_openings(run: Run, findings: Findings, places: dict[str, Path], keys: Sequence[str]) -> None:
    found: dict[str, dict[str, list[float]]] = {role: {name: [] for name in OPENING} for role in places}
    for number, role in run.rounds(run.options.repeats, list(places), "opening, "):
        plan = Opening(run.pair[role], places[role], keys[number * len(keys) // run.options.repeats])
        for name, values in openings(plan, OPENS_PER_REPEAT).items():
            found[role][name] += values
    table = Table(f"Opening a cache of {len(keys):,} entries", ("subject", *(f"{OPENING[name]}" for name in OPENING)))
    for role, values_of in found.items():
        table.rows.append((run.pair[role].label, *(duration(statistics.median(values_of[name])) for name in OPENING)))
    table.notes.append(
        f"medians of {run.options.repeats} new processes (modules imported already) and of "
        f"{run.options.repeats * OPENS_PER_REPEAT} openings in one process (the budget's number)"
    )
    findings.tables.append(table)
    findings.details["opening_ns"] = found
    findings.measured["open"] = [value / 1e6 for value in found["ours"]["open"]]
    findings.measured["len"] = [value / 1e6 for value in found["ours"]["len"]]


def _measure_calls(
    run: Run, findings: Findings, places: dict[tuple[str, str], Path], keys: dict[str, list[str]]
) -> None:
    found: dict[str, list[dict[str, Summary]]] = {" ".join(place): [] for place in places}
    count = min(max(run.options.operations // 20, 20), len(keys["small"]))
    with ExitStack() as stack:
        subjects = {
            " ".join(place): stack.enter_context(cold(run.pair[place[0]], run.ours).opened(directory))
            for place, directory in places.items()
        }
        for number, name in run.rounds(run.options.repeats * ROUNDS_PER_REPEAT, list(subjects), "growth, "):
            samples = calls(subjects[name], keys[name.split()[1]], SEED + number, count)
            found[name].append({call: summarise(times, run.costs.clock) for call, times in samples.items()})
    findings.tables.append(_growth_table(run, found, keys, count))
    findings.details["calls"] = {
        name: [{call: summary.as_dict() for call, summary in one.items()} for one in rounds]
        for name, rounds in found.items()
    }
    for call in CALLS:
        p50 = {name: [one[call].p50 for one in rounds] for name, rounds in found.items()}
        findings.measured[f"growth_{call}"] = ratios(p50["ours large"], p50["ours small"])


def _growth_table(
    run: Run, found: dict[str, list[dict[str, Summary]]], keys: dict[str, list[str]], count: int
) -> Table:
    rounds = len(found["ours large"])
    table = Table(
        f"Cost against entries, {rounds} rounds of {count:,} calls",
        ("subject", "call", "entries", "calls", *PERCENTILES),
        left=2,
    )
    for role, spec in run.wanted.items():
        for call in CALLS:
            for name, chosen in keys.items():
                summary = combine([one[call] for one in found[f"{role} {name}"]])
                table.rows.append((spec.label, call, f"{len(chosen):,}", *percentile_cells(summary)))
    table.notes.append("single calls on random keys, clock subtracted, hot layer off")
    return table


def bulk(run: Run) -> Findings:
    """Compare `get_many` and `set_many` in batches of 1,000 with calls one by one; what is written is always new."""
    keys = keys_of(BATCH * BATCHES)
    writers = {"set": run.ours, "set_many": run.ours, PEER_SET: run.peer}
    with ExitStack() as stack:
        opened = {name: stack.enter_context(spec.opened(run.workspace.fresh(name))) for name, spec in writers.items()}
        reading = stack.enter_context(cold(run.ours, run.ours).opened(run.workspace.fresh("bulk-cold")))
        calls: dict[str, Callable[[Any], object]] = {
            "get": partial(_get_each, reading),
            "get_many": feature(reading, "get_many"),
            "set": partial(_set_each, opened["set"]),
            "set_many": feature(opened["set_many"], "set_many"),
            PEER_SET: partial(_set_each, opened[PEER_SET]),
        }
        for subject in (reading, *opened.values()):
            load_items(subject, items_of(keys))
        found: dict[str, list[float]] = {name: [] for name in calls}
        for number, name in run.rounds(run.options.repeats * ROUNDS_PER_REPEAT, list(found), "bulk, "):
            batch = random.Random(SEED + number).sample(keys, BATCH)
            new = {f"{number}/{key}": value_of(key, number) for key in batch}
            reads = name.startswith("get")
            elapsed, result = time_once(partial(calls[name], batch if reads else new))
            if reads:
                _check_batch(name, result)
            found[name].append(elapsed / BATCH)
    return _bulk_findings(run, found)


def _get_each(subject: Subject, keys: Sequence[str]) -> dict[str, Any]:
    get = subject.get
    return {key: get(key) for key in keys}


def _set_each(subject: Subject, items: dict[str, bytes]) -> None:
    put = subject.set
    for key, value in items.items():
        put(key, value)


def _check_batch(name: str, result: object) -> None:
    if not isinstance(result, dict) or len(result) != BATCH or None in result.values():
        raise BenchmarkError(f"{name} did not return {BATCH} values as a dict but {type(result).__name__}")


def _bulk_findings(run: Run, found: dict[str, list[float]]) -> Findings:
    findings = Findings(details={"per_key_ns": found})
    table = Table(
        f"Bulk calls, {run.ours.label}, {len(found['get'])} batches of {BATCH:,}",
        ("call", "per key, median", "times as long"),
    )
    singles = {"get": "get, one by one", "set": "set, one by one", PEER_SET: f"{run.peer.label}: set, one by one"}
    for many, several in (("get_many", ("get",)), ("set_many", ("set", PEER_SET))):
        table.rows.append((many, duration(statistics.median(found[many])), ""))
        for one in several:
            times = f"{statistics.median(ratios(found[one], found[many])):.2f}x"
            table.rows.append((singles[one], duration(statistics.median(found[one])), times))
    findings.measured["get_many"] = ratios(found["get"], found["get_many"])
    findings.measured["set_many"] = ratios(found[PEER_SET], found["set_many"])
    table.notes.append(
        "whole batches timed and divided; what is read is not hot (hot_size_limit=0), what is set is new"
    )
    findings.tables.append(table)
    return findings
