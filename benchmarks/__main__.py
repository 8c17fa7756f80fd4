"""Measure percentiles against Memcached, Redis and every peer that is installed, and plot them: `python -m benchmarks`.

Unless scenarios or subjects are chosen, the tables of the sections `awaited` and `machines` come last.

Exit status: 0 good; 2 the command line is wrong; 3 one of our own subjects failed or gave wrong values; 130
interrupted. What another subject failed with is printed below its tables and is no failure of the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.budgets import assess, of_sections
from benchmarks.command import FAILED, GOOD, add_amounts, amounts_of, follows, parser, run_as_command
from benchmarks.measure import awake, measure_costs
from benchmarks.peers.catalogue import SUBJECTS
from benchmarks.peers.spec import DISKCACHE, OURS, BenchmarkError, named
from benchmarks.report.plots import draw
from benchmarks.report.record import Record
from benchmarks.report.results import belongs
from benchmarks.report.tables import machine_text, scenario_tables
from benchmarks.report.text import objectives_table
from benchmarks.workloads.harness import Amounts, recorded, steps_of
from benchmarks.workloads.scenarios import SCENARIOS
from benchmarks.workloads.section import Run
from benchmarks.workloads.sections import SECTIONS, measure_all
from benchmarks.workspace import workspace

PARTS = ("awaited", "machines")  # sections that have peers of their own, and a page


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks", __doc__, "directory", "out")
    add = made.add_argument
    add("--scenario", metavar="NAME", action="append", help="measure only this scenario (may be repeated)")
    add("--subject", metavar="NAME", action="append", help="measure only this subject (may be repeated)")
    add("--list", action="store_true", help="list scenarios and subjects, and measure nothing")
    add_amounts(made, Amounts())
    return made


def listing() -> str:
    """Say what can be asked for."""
    scenarios = [f"  {name:<12} {one.facts.title}. {one.facts.question}" for name, one in SCENARIOS.items()]
    subjects = [f"  {name:<20} {one.label}" for name, one in SUBJECTS.items()]
    return "\n".join(["scenarios", *scenarios, "", "subjects", *subjects])


def measure(asked: argparse.Namespace) -> int:
    """Run what the command line asks for; what was measured is kept also if the run is interrupted."""
    if asked.list:
        print(listing())
        return GOOD
    amounts = amounts_of(asked, Amounts())
    scenarios = named("scenario", asked.scenario or SCENARIOS, SCENARIOS)
    subjects = named("subject", asked.subject or SUBJECTS, SUBJECTS)
    for name, scenario in scenarios.items() if asked.scenario else ():
        there = dict.fromkeys(each for step in steps_of(scenario, amounts) for each in scenario.subjects_at(step))
        if not subjects.keys() & there.keys():
            raise BenchmarkError(f"none of the chosen subjects is measured in {name!r}. It has: {', '.join(there)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "record.json"
    record = recorded(scenarios, subjects, amounts, asked.directory, path, show)
    failed = [] if asked.scenario or asked.subject else measure_parts(asked.directory)
    drawn = draw(record, asked.out, chosen=partial(belongs, record))
    print(f"{len(drawn)} plots drawn beside {path}; all of them: python -m benchmarks.render {path}")
    return judged(record, failed)


def show(record: Record, scenario: str) -> None:
    """Print the tables of a scenario as soon as they are there; before the first one, what is known of the machine."""
    if scenario == next(iter(record.scenarios)):
        print(machine_text(record))
    for table in scenario_tables(record, scenario):
        print(table.text(), flush=True)


def measure_parts(directory: Path) -> list[str]:
    """Measure the sections that have peers and a page of their own; return what failed."""
    with workspace(directory) as space, awake():
        costs = measure_costs()
        found = measure_all({name: Run(OURS, DISKCACHE, SECTIONS[name].usual, costs, space) for name in PARTS})
    print(objectives_table(assess(found.measured, of_sections(PARTS))).text(), *found.skipped, sep="\n")
    return found.failed


def judged(record: Record, problems: Sequence[str] = ()) -> int:
    """Return the exit status: our own subjects may neither fail nor answer wrongly, nor may anything else have."""
    ours = {name for name in record.subjects if SUBJECTS[name].spec.module == OURS.module}
    failed = (one for one in record.absences if one.failed and one.subject in ours)
    bad = [*problems, *(f"{one.scenario}, {one.subject}: {one.reason}" for one in failed)]
    for trial in record.trials:
        if trial.subject in ours and (trial.wrong or trial.unexpected):
            counts = f"{trial.wrong} wrong values, {trial.unexpected} unexpected misses"
            bad.append(f"{trial.scenario}, {trial.subject}, repetition {trial.repetition + 1}: {counts}")
    for line in bad:
        print(f"FAILED: {line}")
    return FAILED if bad else GOOD


main = follows(options, measure, BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
