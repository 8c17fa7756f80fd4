"""A record as aligned tables: for each scenario and step the percentiles of every call, then each subject's totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.intervals import Spread
from benchmarks.report.record import Record, Trial
from benchmarks.report.summaries import (
    BASELINES,
    NAMES,
    call_names,
    calls_of,
    confidence,
    cpu_per_operation,
    disk,
    heading,
    percentile_spread,
    slowest,
    speedup,
    throughput,
)
from benchmarks.report.text import NOTHING, Table, between, duration, size

PERCENTILE_COLUMNS = ("subject", "call", "calls", "misses", "p50", "interval", "p90", "p99", "p99.9", "max", "total")
TOTAL_COLUMNS = (
    *("subject", "operations/s", "interval", "ratio", "interval"),
    *("misses", "timeouts", "unexpected", "wrong", "CPU/operation", "peak memory", "on disk"),
)


def scenario_tables(record: Record, scenario: str) -> Iterator[Table]:
    """Yield the tables of one scenario, step by step; one that nobody finished has a table without rows."""
    steps: list[int | None] = [*record.steps(scenario)]
    for step in steps or [None]:
        found = record.of(scenario, step)
        yield percentile_table(record, scenario, step, found)
        if found:
            yield totals_table(record, scenario, step, found)


def percentile_table(record: Record, scenario: str, step: int | None, found: dict[str, list[Trial]]) -> Table:
    """Show the percentiles of every kind of call, and below who is missing and why."""
    table = Table(f"{heading(record, scenario, step)}: time per call", PERCENTILE_COLUMNS, left=2)
    shown: list[Spread | None] = []
    for name, trials in found.items():
        for call in call_names({name: trials}) or [NOTHING]:
            spreads = [percentile_spread(trials, call, percentile) for percentile in NAMES]
            shown += spreads[:1]
            table.rows.append((record.label(name), call, *_percentile_cells(trials, call, spreads)))
    table.notes += [
        f"p50 to p99.9: medians over {confidence(shown)} (shown: of p50); max: the largest of all",
        "-: too few calls for one to be slower than this percentile",
        "total: the time that all calls of a kind took, in all processes and repetitions",
    ]
    for one in record.absences:
        if one.scenario in ("", scenario):
            why = "failed" if one.failed else "skipped"
            table.notes.append(f"{record.label(one.subject)} {why}: {one.reason}")
    return table


def _percentile_cells(trials: Sequence[Trial], call: str, spreads: Sequence[Spread | None]) -> list[str]:
    every = calls_of(trials, call)
    times = [NOTHING if one is None else duration(one.median) for one in spreads]
    return [
        f"{sum(one.count for one in every):,}",
        f"{sum(trial.misses + trial.unexpected for trial in trials):,}" if call == "get" else NOTHING,
        times[0],
        between(spreads[0], duration),
        *times[1:],
        duration(slowest(trials, call)) if every else NOTHING,
        duration(sum(one.total for one in every)) if every else NOTHING,
    ]


def totals_table(record: Record, scenario: str, step: int | None, found: dict[str, list[Trial]]) -> Table:
    """Show throughput, what went wrong, and what it took."""
    table = Table(f"{heading(record, scenario, step)}: totals", TOTAL_COLUMNS)
    base = next((name for name in BASELINES if name in found), "")
    speeds = {name: throughput(trials) for name, trials in found.items()}
    for name, trials in found.items():
        ratio = speedup(trials, found.get(base, []))
        table.rows.append((record.label(name), *_total_cells(trials, speeds[name], ratio)))
    table.notes.append(f"operations/s, CPU and bytes on disk: medians over {confidence(speeds.values())}")
    if base:
        told = f"ratio: operations/s as a multiple of {record.label(base)}'s in the same repetition (more is better)"
        table.notes.append(told)
    else:  # no columns for it
        table.columns = [*TOTAL_COLUMNS[:3], *TOTAL_COLUMNS[5:]]
        table.rows = [[*cells[:3], *cells[5:]] for cells in table.rows]
    table.notes += [
        "misses: by design; timeouts: calls that did not get a lock in time; both and the next two are sums",
        "CPU: worker processes and server; peak memory: the largest of all repetitions",
    ]
    return table


def _total_cells(trials: Sequence[Trial], speed: Spread | None, ratio: Spread | None) -> list[str]:
    counts = (sum(getattr(trial, name) for trial in trials) for name in ("misses", "timeouts", "unexpected", "wrong"))
    cpu = cpu_per_operation(trials)
    return [
        NOTHING if speed is None else _whole(speed.median),
        between(speed, _whole),
        NOTHING if ratio is None else _times(ratio.median),
        between(ratio, _times),
        *(f"{count:,}" for count in counts),
        NOTHING if cpu is None else duration(cpu.median),
        size(max(trial.peak_memory for trial in trials)),
        size(disk(trials).median),
    ]


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def machine_text(record: Record) -> str:
    """List the facts about machine and run."""
    facts = {**record.machine, **{name: str(value) for name, value in record.options.items()}}
    notes = [f"{facts.label}: {facts.note}" for facts in record.subjects.values() if facts.note]
    return "\n".join([*listed(facts), *notes]) + "\n"


def listed(facts: dict[str, str]) -> list[str]:
    """Return facts as lines, their values below each other."""
    width = max(map(len, facts), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in facts.items()]
