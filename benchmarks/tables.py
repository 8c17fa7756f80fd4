"""A record as aligned tables: for each scenario and step the percentiles of every call, then each subject's totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.intervals import Spread
from benchmarks.record import Absence, Record, Trial
from benchmarks.repetitions import (
    BASELINE,
    NAMES,
    call_names,
    calls_made,
    confidence,
    cpu_per_operation,
    disk,
    heading,
    percentile_spread,
    slowest,
    speedup,
    throughput,
)
from benchmarks.report import Table, duration, size

NOTHING = "-"
PERCENTILE_COLUMNS = (
    "subject",
    "call",
    "calls",
    "misses",
    "p50",
    "interval",
    *list(NAMES.values())[1:],
    "max",
    "total",
)
TOTAL_COLUMNS = (
    *("subject", "operations/s", "interval", "ratio", "interval"),
    *("misses", "timeouts", "unexpected", "wrong", "CPU/operation", "peak memory", "on disk"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield all tables of a run, in the order of its scenarios."""
    for scenario in record.scenarios:
        yield from scenario_tables(record, scenario)


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
    table.notes += absent(record, scenario)
    return table


def _percentile_cells(trials: Sequence[Trial], call: str, spreads: Sequence[Spread | None]) -> list[str]:
    count = calls_made(trials, call)
    first, *others = spreads
    times = [NOTHING if one is None else duration(one.median) for one in others]
    return [
        f"{count:,}",
        f"{sum(trial.misses + trial.unexpected for trial in trials):,}" if call == "get" else NOTHING,
        NOTHING if first is None else duration(first.median),
        between(first, duration),
        *times,
        duration(slowest(trials, call)) if count else NOTHING,
        duration(sum(trial.calls[call].total for trial in trials if call in trial.calls)) if count else NOTHING,
    ]


def totals_table(record: Record, scenario: str, step: int | None, found: dict[str, list[Trial]]) -> Table:
    """Show throughput, what went wrong, and what it took."""
    table = Table(f"{heading(record, scenario, step)}: totals", TOTAL_COLUMNS)
    baseline = found.get(BASELINE, [])
    speeds = {name: throughput(trials) for name, trials in found.items()}
    for name, trials in found.items():
        table.rows.append((record.label(name), *_total_cells(trials, speeds[name], speedup(trials, baseline))))
    table.notes.append(f"operations/s, CPU and bytes on disk: medians over {confidence(speeds.values())}")
    if baseline:
        table.notes.append(
            f"ratio: operations/s as a multiple of {record.label(BASELINE)}'s in the same repetition (more is better)"
        )
    table.notes += [
        "misses: by design; timeouts: calls that did not get a lock in time; both and the next two are sums",
        "CPU: worker processes and server; peak memory: the largest of all repetitions",
    ]
    if not baseline:
        table.columns, table.rows = _without(table.columns, 3, 5), [_without(row, 3, 5) for row in table.rows]
    return table


def _without(cells: Sequence[str], start: int, stop: int) -> list[str]:
    return [*cells[:start], *cells[stop:]]


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


def between(spread: Spread | None, show: Callable[[float], str]) -> str:
    """Write an interval; a single repetition has none."""
    if spread is None or spread.repetitions < 2:
        return NOTHING
    return f"{show(spread.interval.low)}..{show(spread.interval.high)}"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


def absent(record: Record, scenario: str) -> list[str]:
    """Name each subject that was left out of a scenario, and say why."""
    return [_absence(record, one) for one in record.absences if one.scenario in ("", scenario)]


def _absence(record: Record, absence: Absence) -> str:
    return f"{record.label(absence.subject)} {'failed' if absence.failed else 'skipped'}: {absence.reason}"


def machine_text(record: Record) -> str:
    """List the facts about machine and run."""
    facts = {**record.machine, **{name: str(value) for name, value in record.options.items()}}
    width = max(map(len, facts), default=0)
    notes = [f"{facts.label}: {facts.note}" for facts in record.subjects.values() if facts.note]
    return "\n".join([*(f"{name.ljust(width)}  {value}" for name, value in facts.items()), *notes]) + "\n"
