"""What a run found: plain data that is written as JSON, and read again to print tables and to draw plots.

All times are nanoseconds unless a name says otherwise, all sizes bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Calls
from benchmarks.peers.spec import BenchmarkError

FORMAT = 2


@dataclass(kw_only=True)
class Counts:
    """What one process counted in a trial, or all of them together.

    `misses` are by design, `timeouts` are calls that returned without having got a lock in time, whether a read that
    looks like a miss or a write that did nothing; `unexpected` misses and `wrong` values make a subject's numbers
    worthless. `peak_memory` is what was needed above what there was before opening the subject.
    """

    misses: int = 0
    timeouts: int = 0
    unexpected: int = 0
    wrong: int = 0
    cpu_seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    peak_memory: int = 0


@dataclass
class Trial(Counts):
    """One repetition of one scenario on one subject.

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
        return _record(told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchmarkError(f"{path} is not a record of a benchmark run: {error}") from error


def _record(told: dict[str, Any]) -> Record:
    record = Record(
        told["machine"],
        told["options"],
        {name: SubjectFacts(**facts) for name, facts in told["subjects"].items()},
        {name: ScenarioFacts(**facts) for name, facts in told["scenarios"].items()},
        absences=[Absence(**one) for one in told["absences"]],
    )
    for one in told["trials"]:
        calls = {name: Calls(**{**found, "curve": tuple(found["curve"])}) for name, found in one["calls"].items()}
        record.trials.append(Trial(**{**one, "calls": calls}))
    return record
