"""The sections: each answers one question of the budgets, within its share of a run."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.budgets import Outcome
from benchmarks.command import progress
from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.workloads import awaited, machines, mixed, singles
from benchmarks.workloads.encrypted import encrypted
from benchmarks.workloads.growth import growth
from benchmarks.workloads.limit import limit
from benchmarks.workloads.section import Findings, Options, Run

FULL_WRITES = 100_000


@dataclass(frozen=True)
class Section:
    """A section with its share of a run, and whether it runs unasked.

    `effort` is what it takes to judge its budgets, `alone` whether that goes without the peer.
    """

    measure: Callable[[Run], Findings]
    weight: int
    effort: Options
    unasked: bool = True
    alone: bool = False


def buffered(run: Run) -> Findings:
    """Measure small writes, then the classic workload beside LMDB."""
    findings = singles.buffered(run)
    mixed.beside_lmdb(run, findings)
    return findings


# An interval of 95 % needs six ratios; the workloads of classic, fanout and limit give one per repetition.
SECTIONS = {
    "classic": Section(mixed.classic, 30, Options(repeats=7, operations=8_000)),
    "operations": Section(singles.operations, 10, Options(repeats=6, operations=10_000)),
    "policies": Section(singles.policies, 5, Options(repeats=5)),
    "bulk": Section(singles.bulk, 5, Options(repeats=6)),
    "growth": Section(growth, 20, Options(repeats=5, entries=1_000_000), alone=True),
    "limit": Section(limit, 20, Options(repeats=8, writes=FULL_WRITES), alone=True),
    "fanout": Section(mixed.fanout, 20, Options(repeats=7, operations=8_000), unasked=False),
    "large": Section(mixed.large, 10, Options(repeats=15), unasked=False),
    "buffered": Section(buffered, 20, Options(repeats=15), unasked=False),
    "encrypted": Section(encrypted, 10, Options(repeats=15), unasked=False, alone=True),
    "awaited": Section(awaited.awaited, 90, awaited.OPTIONS, unasked=False, alone=True),
    "machines": Section(machines.machines, 60, machines.OPTIONS, unasked=False, alone=True),
    "peers": Section(singles.peers, 20, Options(repeats=2), unasked=False),
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
        return [str(line) for one in self.findings.values() for line in one.details.get("skipped", ())]

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
    with progress({name: SECTIONS[name].weight for name in runs}) as show:
        for name, run in runs.items():
            run.note = show(name)
            began = time.monotonic()
            try:
                found = SECTIONS[name].measure(run)
            except MissingSubject:
                raise
            except BenchmarkError as error:
                record.failures[name] = str(error)
            except Exception as error:
                traceback.print_exc()
                record.failures[name] = f"{type(error).__name__}: {error}"
            else:
                record.findings[name] = found
                for table in found.tables:
                    print(table.text())
                if found.problems:
                    record.failures[name] = "; ".join(found.problems)
            record.seconds[name] = time.monotonic() - began
            if name in record.failures:
                print(f"section {name} FAILED: {record.failures[name]}\n")
            print(f"section {name} took {record.seconds[name]:.0f} s\n")
            sys.stdout.flush()
    return record
