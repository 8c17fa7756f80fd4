"""What all repetitions of one subject say together: medians with their intervals, largest maxima, sums of counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.intervals import Spread, ratio_spread
from benchmarks.measure import CURVE, MILLION, Calls
from benchmarks.report.record import Record, Trial

# A percentile is told only if one call in a trial can be slower; with fewer calls it would be the maximum in disguise.
ENOUGH = {"p50": 1, "p90": 10, "p99": 100, "p999": 1_000}
NAMES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
BASELINES = ("diskcache", "peer")  # whose throughput others are a multiple of


def call_names(found: dict[str, list[Trial]]) -> list[str]:
    """Return the kinds of calls that occurred, in the order of the first trial that has each."""
    every = (name for trials in found.values() for trial in trials for name, one in trial.calls.items() if one.count)
    return list(dict.fromkeys(every))


def calls_of(trials: Iterable[Trial], call: str) -> list[Calls]:
    """Return one kind of call in each repetition that made any."""
    return [one for trial in trials if (one := trial.calls.get(call)) and one.count]


def spread_of(values: Iterable[float]) -> Spread | None:
    """Summarise one value per repetition; None if there is none."""
    found = list(values)
    return Spread.of(found) if found else None


def percentile_spread(trials: Iterable[Trial], call: str, name: str) -> Spread | None:
    """Return the median over repetitions of one percentile of one kind of call; None where no trial has enough."""
    return spread_of(getattr(one, name) for one in calls_of(trials, call) if one.count >= ENOUGH[name])


def slowest(trials: Iterable[Trial], call: str) -> float:
    """Return the largest of all maxima."""
    return max((one.max for one in calls_of(trials, call)), default=0.0)


def curve_spreads(trials: Iterable[Trial], call: str) -> list[tuple[float, Spread]]:
    """Return pairs of a share of slower calls and the time that they exceed, as far as the number of calls carries."""
    found = calls_of(trials, call)
    points = []
    for place, slower in enumerate(CURVE):
        if spread := spread_of(one.curve[place] for one in found if slower * one.count >= MILLION):
            points.append((slower / MILLION, spread))
    return points


def rates(trials: Iterable[Trial]) -> dict[int, float]:
    """Return operations per second of each repetition, all processes together."""
    return {one.repetition: one.operations / one.seconds for one in trials if one.operations and one.seconds}


def throughput(trials: Iterable[Trial]) -> Spread | None:
    """Return operations per second, or None if nothing was counted."""
    return spread_of(rates(trials).values())


def speedup(trials: Sequence[Trial], baseline: Sequence[Trial]) -> Spread | None:
    """Return throughput as a multiple of the baseline's, paired by repetition; None without a common one."""
    return paired(rates(trials), rates(baseline))


def paired(top: dict[int, float], bottom: dict[int, float]) -> Spread | None:
    """Return the quotient of two values of each repetition that has both."""
    common = sorted(top.keys() & bottom.keys())
    return ratio_spread([top[one] for one in common], [bottom[one] for one in common]) if common else None


def cpu_per_operation(trials: Iterable[Trial]) -> Spread | None:
    """Return nanoseconds of processor time per operation, workers and server together."""
    some = (one for one in trials if one.operations)
    return spread_of((one.cpu_seconds + one.server_cpu_seconds) / one.operations * 1e9 for one in some)


def disk(trials: Iterable[Trial]) -> Spread:
    return Spread.of([trial.disk_bytes for trial in trials])


def memory(trials: Iterable[Trial]) -> Spread:
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


def heading(record: Record, scenario: str, step: int | None = None) -> str:
    """Title a scenario, or one step of it."""
    facts = record.scenarios[scenario]
    if step is None or not facts.step:
        return facts.title
    return f"{facts.title}, {step:,} {'process' if (facts.step, step) == ('processes', 1) else facts.step}"
