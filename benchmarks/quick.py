"""Measure diskcache_like against DiskCache in one run of about two minutes: `python -m benchmarks.quick`.

Exit status: 0 good; 1 a "must" was missed and `--enforce` given; 2 a subject is not installed or the command line is
wrong; 3 a section failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from benchmarks.budgets import BUDGETS, MISSED, assess, of_sections
from benchmarks.command import (
    FAILED,
    GOOD,
    MISSED_ONE,
    add_amounts,
    add_only,
    follows,
    parser,
    print_facts,
    run_as_command,
    write_json,
)
from benchmarks.measure import measure_costs
from benchmarks.peers.spec import DISKCACHE, SPECS, MissingSubject
from benchmarks.report.machine import machine_facts
from benchmarks.report.text import objectives_table
from benchmarks.workloads.section import Options, Run
from benchmarks.workloads.sections import FULL_WRITES, SECTIONS, measure_all
from benchmarks.workspace import workspace

AMOUNTS = {
    "operations": "operations per process",
    "repeats": "repetitions per subject",
    "processes": "processes of the contended runs",
    "entries": "entries of the large cache",
    "writes": "writes under a full size_limit",
}
UNASKED = [name for name, section in SECTIONS.items() if section.unasked]


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.quick", __doc__, "directory", "json")
    add = made.add_argument
    add_only(made, "section", SECTIONS)
    add_amounts(made, Options(), AMOUNTS)
    full = {"dest": "writes", "action": "store_const", "const": FULL_WRITES}
    add("--full-limit", help=f"the same as --writes {FULL_WRITES}", **full)  # type: ignore[arg-type]
    told = "what to compare with DiskCache; diskcache itself shows the noise of this machine"
    add("--subject", choices=list(SPECS), default="diskcache_like", help=told)
    add("--enforce", action="store_true", help='exit with 1 when a "must" is missed')
    return made


def measure(asked: argparse.Namespace) -> int:
    """Run what the command line asks for."""
    amounts = Options(**{name: getattr(asked, name) for name in AMOUNTS})
    ours, names = SPECS[asked.subject], asked.only or UNASKED
    with workspace(asked.directory) as space:
        costs = measure_costs()
        facts = {"subjects": f"{ours.label} against {DISKCACHE.label}", **machine_facts(space.root.parent, costs)}
        print_facts(facts)
        record = measure_all(dict.fromkeys(names, Run(ours, DISKCACHE, amounts, costs, space)))
    budgets = BUDGETS if set(names).issuperset(UNASKED) else of_sections(names)
    outcomes = assess(record.measured, budgets)
    if asked.json:
        write_json(asked.json, {"machine": facts, "options": asdict(amounts), **record.told(outcomes)})
    print(
        objectives_table(
            outcomes, f"this run: {', '.join(f'{name} {n:,}' for name, n in asdict(amounts).items())}"
        ).text()
    )
    missed = [one.budget.label for one in outcomes if one.verdict == MISSED]
    print(*record.failed, *(f"MISSED: {label}" for label in missed), sep="\n")
    return FAILED if record.failures else MISSED_ONE if asked.enforce and missed else GOOD


main = follows(options, measure, MissingSubject)


if __name__ == "__main__":
    run_as_command(main)
