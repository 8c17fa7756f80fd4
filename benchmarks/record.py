"""What a run found: plain data that is written as JSON, and read again to print tables and to draw plots.

All times are nanoseconds unless a name says otherwise, all sizes bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.measure import percentile
from benchmarks.subjects import BenchmarkError

FORMAT = 2
# Shares of calls, as calls in a million that are slower: 50 % down to one in a million, on a logarithmic axis.
CURVE: tuple[int, ...] = (1_000_000, 900_000, 750_000, 500_000, 250_000, 100_000, 50_000, 20_000, 10_000, 5_000, 2_000)
CURVE += (1_000, 500, 200, 100, 50, 20, 10, 5, 2, 1, 0)
MILLION = 1_000_000


@dataclass(frozen=True)
class Calls:
    """One kind of call in one trial: count, percentiles, what a share of `CURVE` is slower than, and the sum."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    curve: tuple[float, ...]
    total: float

    @classmethod
    def of(cls, samples: Iterable[float], cost: float = 0) -> Self:
        """Summarise samples, `cost` subtracted from each; no samples are all zeros."""
        ordered = sorted(max(sample - cost, 0) for sample in samples)
        if not ordered:
            return cls(0, 0, 0, 0, 0, 0, (), 0)
        p50, p90, p99, p999 = (percentile(ordered, milli) for milli in (500, 900, 990, 999))
        curve = tuple(ordered[_rank(len(ordered), slower)] for slower in CURVE)
        return cls(len(ordered), p50, p90, p99, p999, ordered[-1], curve, sum(ordered))


def _rank(count: int, slower: int) -> int:
    """Return the index of the smallest of `count` ordered samples that at most `slower` in a million exceed."""
    return max(-(-count * (MILLION - slower) // MILLION) - 1, 0)


@dataclass(frozen=True)
class Trial:
    """One repetition of one scenario on one subject.

    `misses` are by design, `timeouts` are calls that returned without having got a lock in time, whether a read that
    looks like a miss or a write that did nothing; `unexpected` misses and `wrong` values make a subject's numbers
    worthless. `peak_memory` is what the processes needed above what they had before opening the subject.
    `step` is the axis of a scenario that has one: processes, bytes of a value, entries.
    """

    scenario: str
    subject: str
    repetition: int
    processes: int
    step: int
    seconds: float
    operations: int
    calls: dict[str, Calls]
    misses: int = 0
    timeouts: int = 0
    unexpected: int = 0
    wrong: int = 0
    cpu_seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    peak_memory: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class SubjectFacts:
    """How a subject is shown, and what has to be known when reading its numbers."""

    label: str
    note: str = ""


@dataclass(frozen=True)
class ScenarioFacts:
    """What a scenario asks, how its tables and plots are titled, and the unit of its `step`, if it has one."""

    title: str
    question: str
    step: str = ""


@dataclass(frozen=True)
class Absence:
    """A subject that was left out of a scenario, or of all (`scenario` empty), and why; `failed` if it broke down."""

    subject: str
    reason: str
    scenario: str = ""
    failed: bool = False


@dataclass
class Record:
    """One whole run."""

    machine: dict[str, str]
    options: dict[str, Any]
    subjects: dict[str, SubjectFacts]
    scenarios: dict[str, ScenarioFacts]
    trials: list[Trial] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)

    def of(self, scenario: str, step: int | None = None) -> dict[str, list[Trial]]:
        """Return the trials of a scenario (at one step) by subject, in the order of `subjects`."""
        found: dict[str, list[Trial]] = {name: [] for name in self.subjects}
        for trial in self.trials:
            if trial.scenario == scenario and step in (None, trial.step):
                found[trial.subject].append(trial)
        return {name: trials for name, trials in found.items() if trials}

    def steps(self, scenario: str) -> list[int]:
        """Return the steps of a scenario that were measured, in order."""
        return sorted({trial.step for trial in self.trials if trial.scenario == scenario})

    def label(self, subject: str) -> str:
        """Return how a subject is shown; one that was never measured goes by its own name."""
        return self.subjects[subject].label if subject in self.subjects else subject

    def save(self, path: Path) -> None:
        """Write the run as JSON."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """Read a run that `save` wrote; raise BenchmarkError for any other file."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.pop("format") != FORMAT:
            raise BenchmarkError(f"{path} was written by another version of the benchmarks; measure again")
        record = Record(
            told["machine"],
            told["options"],
            {name: SubjectFacts(**facts) for name, facts in told["subjects"].items()},
            {name: ScenarioFacts(**facts) for name, facts in told["scenarios"].items()},
            [_trial(one) for one in told["trials"]],
            [Absence(**one) for one in told["absences"]],
        )
        for trial in record.trials:
            _check(record, trial)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchmarkError(f"{path} is not a record of a benchmark run: {error}") from error
    return record


def _check(record: Record, trial: Trial) -> None:
    """Refuse a trial that tables and plots could not place."""
    if trial.subject not in record.subjects or trial.scenario not in record.scenarios:
        raise ValueError(f"a trial of {trial.subject!r} in {trial.scenario!r}, which the record does not describe")
    for name, one in trial.calls.items():
        if len(one.curve) != (len(CURVE) if one.count else 0):
            raise ValueError(f"{len(one.curve)} points on the curve of {name!r}, expected {len(CURVE)}")


def _trial(told: dict[str, Any]) -> Trial:
    calls = {name: Calls(**{**one, "curve": tuple(one["curve"])}) for name, one in told.pop("calls").items()}
    return Trial(calls=calls, **told)
