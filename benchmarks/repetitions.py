"""What all repetitions of one subject say together: medians with their intervals, largest maxima, sums of counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.intervals import Spread, ratio_spread
from benchmarks.record import CURVE, MILLION, Record, ScenarioFacts, Trial

# A percentile is told only if one call in a trial can be slower; with fewer calls it would be the maximum in disguise.
ENOUGH = {"p50": 1, "p90": 10, "p99": 100, "p999": 1_000}
NAMES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
BASELINE = "diskcache"


def call_names(found: dict[str, list[Trial]]) -> list[str]:
    """Return the kinds of calls that occurred, in the order of the first trial that has each."""
    every = (name for trials in found.values() for trial in trials for name, one in trial.calls.items() if one.count)
    return list(dict.fromkeys(every))


def percentile_spread(trials: Iterable[Trial], call: str, name: str) -> Spread | None:
    """Return the median over repetitions of one percentile of one kind of call; None where no trial has enough."""
    found = [trial.calls[call] for trial in trials if call in trial.calls]
    values = [getattr(one, name) for one in found if one.count >= ENOUGH[name]]
    return Spread.of(values) if values else None


def calls_made(trials: Iterable[Trial], call: str) -> int:
    """Return how many calls of one kind all repetitions made."""
    return sum(trial.calls[call].count for trial in trials if call in trial.calls)


def slowest(trials: Iterable[Trial], call: str) -> float:
    """Return the largest of all maxima."""
    return max((trial.calls[call].max for trial in trials if call in trial.calls), default=0.0)


def curve_spreads(trials: Iterable[Trial], call: str) -> list[tuple[float, Spread]]:
    """Return pairs of a share of slower calls and the time that they exceed, as far as the number of calls carries."""
    found = [trial.calls[call] for trial in trials if call in trial.calls and trial.calls[call].count]
    points = []
    for place, slower in enumerate(CURVE):
        values = [one.curve[place] for one in found if slower * one.count >= MILLION]
        if values:
            points.append((slower / MILLION, Spread.of(values)))
    return points


def per_second(trial: Trial) -> float:
    """Return operations per second, all processes together."""
    return trial.operations / trial.seconds


def throughput(trials: Iterable[Trial]) -> Spread | None:
    """Return operations per second, or None if nothing was counted."""
    values = [per_second(trial) for trial in trials if trial.operations and trial.seconds]
    return Spread.of(values) if values else None


def speedup(trials: Sequence[Trial], baseline: Sequence[Trial]) -> Spread | None:
    """Return throughput as a multiple of the baseline's, paired by repetition; None without a common one."""
    ours, theirs = (
        {trial.repetition: per_second(trial) for trial in some if trial.operations and trial.seconds}
        for some in (trials, baseline)
    )
    common = sorted(ours.keys() & theirs.keys())
    return ratio_spread([ours[one] for one in common], [theirs[one] for one in common]) if common else None


def cpu_per_operation(trials: Iterable[Trial]) -> Spread | None:
    """Return nanoseconds of processor time per operation, workers and server together."""
    values = [
        (trial.cpu_seconds + trial.server_cpu_seconds) / trial.operations * 1e9 for trial in trials if trial.operations
    ]
    return Spread.of(values) if values else None


def disk(trials: Iterable[Trial]) -> Spread:
    """Return bytes on disk."""
    return Spread.of([trial.disk_bytes for trial in trials])


def memory(trials: Iterable[Trial]) -> Spread:
    """Return peak memory in bytes."""
    return Spread.of([trial.peak_memory for trial in trials])


def confidence(spreads: Iterable[Spread | None]) -> str:
    """Say how many repetitions stand behind medians, and how sure their intervals are."""
    behind = {one.repetitions: one.interval.coverage for one in spreads if one is not None}
    if max(behind, default=0) < 2:
        return "1 repetition" if behind else "no repetition"
    sure = f"{max(behind.values()):.2%}".replace("%", " %")
    if len(behind) == 1:
        return f"{max(behind)} repetitions with intervals of {sure} confidence"
    return f"{min(behind)} to {max(behind)} repetitions with intervals of up to {sure} confidence"


def step_text(facts: ScenarioFacts, step: int) -> str:
    """Name a step with its unit; empty for a scenario without steps."""
    if not facts.step:
        return ""
    unit = "process" if (facts.step, step) == ("processes", 1) else facts.step
    return f"{step:,} {unit}"


def heading(record: Record, scenario: str, step: int | None = None) -> str:
    """Title a scenario, or one step of it."""
    facts = record.scenarios[scenario]
    text = step_text(facts, step) if step is not None else ""
    return f"{facts.title}, {text}" if text else facts.title
