"""Measure diskcache_like against DiskCache in one run of about two minutes: `python -m benchmarks.quick`.

Exit status: 0 good; 1 a "must" was missed and `--enforce` given; 2 a subject is not installed or the command line is
wrong; 3 a section failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.awaited import awaited
from benchmarks.budgets import MISSED, Outcome, judge
from benchmarks.buffered import buffered
from benchmarks.classic import classic, fanout
from benchmarks.command import FAILED, GOOD, add_only, explained, positive, progress, refuse_lost, run_as_command
from benchmarks.encrypted import encrypted
from benchmarks.growth import bulk, growth
from benchmarks.large import large
from benchmarks.limit import limit
from benchmarks.machines import machines
from benchmarks.measure import measure_costs
from benchmarks.operations import operations, policies
from benchmarks.peers import peers
from benchmarks.report import budget_table, machine_facts
from benchmarks.section import Findings, Options, Run
from benchmarks.subjects import DISKCACHE, SPECS, BenchmarkError, MissingSubject
from benchmarks.workspace import workspace

ENFORCED = 1
FULL_WRITES = 100_000


@dataclass(frozen=True)
class Section:
    """A section with its share of the run and whether it runs unasked."""

    measure: Callable[[Run], Findings]
    weight: int
    unasked: bool = True


SECTIONS = {
    "classic": Section(classic, 30),
    "operations": Section(operations, 10),
    "policies": Section(policies, 5),
    "bulk": Section(bulk, 5),
    "growth": Section(growth, 20),
    "limit": Section(limit, 20),
    "fanout": Section(fanout, 20, unasked=False),
    "large": Section(large, 10, unasked=False),
    "buffered": Section(buffered, 20, unasked=False),
    "encrypted": Section(encrypted, 10, unasked=False),
    "awaited": Section(awaited, 90, unasked=False),
    "machines": Section(machines, 60, unasked=False),
    "peers": Section(peers, 60, unasked=False),
}
AMOUNTS = {
    "operations": "operations per process",
    "repeats": "repetitions per subject",
    "processes": "processes of the contended runs",
    "entries": "entries of the large cache",
    "writes": "writes under a full size_limit",
}
UNASKED = [name for name, section in SECTIONS.items() if section.unasked]


@dataclass
class Record:
    """What the whole run found."""

    findings: dict[str, Findings] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, list[float]]:
        """Return what was measured for the budgets."""
        return {key: values for one in self.findings.values() for key, values in one.measured.items()}

    @property
    def outcomes(self) -> list[Outcome]:
        """Judge everything that was measured."""
        return judge(self.measured)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.quick", description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add_only(made, "section", SECTIONS)
    for name, meaning in AMOUNTS.items():
        add(f"--{name}", type=positive, default=getattr(Options(), name), help=f"{meaning} (%(default)s)")
    add(
        "--full-limit",
        dest="writes",
        action="store_const",
        const=FULL_WRITES,
        help=f"the same as --writes {FULL_WRITES}",
    )
    add(
        "--subject",
        choices=list(SPECS),
        default="diskcache_like",
        help="what to compare with DiskCache; diskcache itself shows the noise of this machine",
    )
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where caches are made (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    add("--enforce", action="store_true", help='exit with 1 when a "must" is missed')
    return made


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
                if found.problems:
                    record.failures[name] = "; ".join(found.problems)
            record.seconds[name] = time.monotonic() - began
            _print_section(name, record)
    return record


def _print_section(name: str, record: Record) -> None:
    if name in record.findings:
        for table in record.findings[name].tables:
            print(table.text())
    if name in record.failures:
        print(f"section {name} FAILED: {record.failures[name]}\n")
    print(f"section {name} took {record.seconds[name]:.0f} s\n")
    sys.stdout.flush()


def write_json(
    path: Path, facts: dict[str, str], options: dict[str, Any], record: Record, outcomes: Sequence[Outcome]
) -> None:
    """Write everything that was measured."""
    everything = {
        "machine": facts,
        "options": options,
        "seconds": record.seconds,
        "sections": {name: asdict(one) for name, one in record.findings.items()},
        "failures": record.failures,
        "budgets": [asdict(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def conclude(record: Record, names: Sequence[str], options: Options, enforce: bool) -> int:
    """Print the budgets and return the exit status."""
    whole = set(names).issuperset(UNASKED)
    table = budget_table([one for one in record.outcomes if whole or one.budget.section in names])
    table.notes.append(f"this run: {', '.join(f'{name} {number:,}' for name, number in asdict(options).items())}")
    print(table.text())
    for name, failure in record.failures.items():
        print(f"section {name} FAILED: {failure}")
    missed = [one.budget.label for one in record.outcomes if one.verdict == MISSED]
    for label in missed:
        print(f"MISSED: {label}")
    if record.failures:
        return FAILED
    return ENFORCED if enforce and missed else GOOD


def measure(arguments: argparse.Namespace) -> int:
    """Run what the command line asks for."""
    options = Options(**{name: getattr(arguments, name) for name in Options.__dataclass_fields__})
    ours = SPECS[arguments.subject]
    labels = f"{ours.label} against {DISKCACHE.label}"
    names = arguments.only or UNASKED
    with workspace(arguments.directory) as space:
        costs = measure_costs()
        facts = machine_facts(space.root.parent, costs)
        print(labels, *(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
        run = Run(ours, DISKCACHE, options, costs, space)
        record = measure_all(dict.fromkeys(names, run))
    if arguments.json:
        write_json(arguments.json, {"subjects": labels, **facts}, asdict(options), record, record.outcomes)
    return conclude(record, names, options, arguments.enforce)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, asked.directory, asked.json)
    return explained(made, lambda: measure(asked), MissingSubject)


if __name__ == "__main__":
    run_as_command(main)
