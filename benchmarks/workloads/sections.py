"""The sections: each answers one question of the budgets, within its share of a run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.budgets import Outcome
from benchmarks.command import progress
from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.workloads import awaited, contests, machines
from benchmarks.workloads.encrypted import encrypted
from benchmarks.workloads.everyday import everyday
from benchmarks.workloads.full import full
from benchmarks.workloads.mixes import mixes
from benchmarks.workloads.section import Findings, Options, Run

USUAL = Options()


@dataclass(frozen=True)
class Section:
    """A section, and whether it runs unasked.

    `effort` is what it takes to judge its budgets, `alone` whether that goes without the peer, and `usual` what is
    measured for a look.
    """

    measure: Callable[[Run], Findings]
    effort: Options
    unasked: bool = True
    alone: bool = False
    usual: Options = USUAL


# An interval of 95 % needs six repetitions.
SECTIONS = {
    "classic": Section(contests.classic, Options(repeats=7, operations=8_000)),
    "operations": Section(contests.operations, Options(repeats=15, operations=10_000)),
    "policies": Section(contests.policies, Options(repeats=25, operations=100_000), usual=Options(100_000, 9)),
    "bulk": Section(contests.bulk, Options(repeats=9)),
    "growth": Section(contests.growth, Options(repeats=9, operations=10_000, entries=1_000_000), alone=True),
    "limit": Section(contests.limit, Options(repeats=8, writes=100_000), alone=True),
    "full": Section(full, Options(repeats=7, writes=60_000), unasked=False, usual=Options(writes=60_000)),
    "fanout": Section(contests.fanout, Options(repeats=7, operations=8_000), unasked=False),
    "large": Section(contests.large, Options(repeats=15), unasked=False),
    "buffered": Section(contests.buffered, Options(repeats=15, operations=8_000), unasked=False),
    "encrypted": Section(encrypted, Options(repeats=15), unasked=False, alone=True),
    "mixes": Section(mixes, Options(repeats=9, operations=4_000), unasked=False),
    "everyday": Section(everyday, Options(repeats=7), unasked=False),
    "awaited": Section(awaited.awaited, awaited.OPTIONS, unasked=False, alone=True, usual=awaited.OPTIONS),
    "machines": Section(machines.machines, machines.OPTIONS, unasked=False, alone=True, usual=machines.OPTIONS),
    "peers": Section(contests.peers, Options(repeats=9, operations=4_000), unasked=False),
}


@dataclass
class Record:
    """What the sections of a run found, what failed, and how long each took."""

    findings: dict[str, Findings] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, list[float]]:
        """Return what was measured for the budgets."""
        return {key: values for one in self.findings.values() for key, values in one.measured.items()}

    @property
    def failed(self) -> list[str]:
        """Say what failed."""
        return [f"section {name} FAILED: {failure}" for name, failure in self.failures.items()]

    @property
    def skipped(self) -> list[str]:
        """Say what could not be measured."""
        return list(dict.fromkeys(line for one in self.findings.values() for line in one.skipped))

    def told(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "seconds": self.seconds,
            "sections": {name: asdict(one) for name, one in self.findings.items()},
            "failures": self.failures,
            "budgets": [asdict(outcome) for outcome in outcomes],
        }


def measure_all(runs: Mapping[str, Run]) -> Record:
    """Run the sections, each as its own run says, and print its tables as soon as they are there."""
    record = Record()
    with progress() as note:
        for name, run in runs.items():
            run.note = lambda text, fraction, name=name: note(f"{name}: {text}", fraction)  # type: ignore[misc]
            began = time.monotonic()
            try:
                found = record.findings[name] = SECTIONS[name].measure(run)
            except MissingSubject:
                raise
            except BenchmarkError as error:
                record.failures[name] = str(error)
            except Exception as error:
                traceback.print_exc()
                record.failures[name] = f"{type(error).__name__}: {error}"
            else:
                for table in found.tables:
                    print(table.text())
                if found.problems:
                    record.failures[name] = "; ".join(found.problems)
            record.seconds[name] = time.monotonic() - began
            told = f"section {name} FAILED: {record.failures[name]}\n\n" if name in record.failures else ""
            print(f"{told}section {name} took {record.seconds[name]:.0f} s\n", flush=True)
    return record
