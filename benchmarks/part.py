"""Measure one section beside its peers, and fill its place of a page: `python -m benchmarks.part awaited`.

Exit status: 0 good; 2 the command line is wrong; 3 what was measured tells nothing; 130 interrupted.
"""

from __future__ import annotations

import argparse

from benchmarks import page
from benchmarks.budgets import assess, of_sections
from benchmarks.command import FAILED, GOOD, follows, parser, run_as_command
from benchmarks.measure import Costs, measure_costs
from benchmarks.peers.spec import DISKCACHE, OURS, BenchmarkError
from benchmarks.report.machine import in_short, machine_facts
from benchmarks.report.text import objectives_table
from benchmarks.workloads.section import Findings, Run
from benchmarks.workloads.sections import SECTIONS
from benchmarks.workspace import Workspace, workspace

PARTS = ("awaited", "machines")  # which have peers of their own, and a place on the page


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.part", __doc__, "directory", "docs")
    made.add_argument("name", choices=PARTS, help="the section, which is also the name of the place on the page")
    return made


def measured(name: str, space: Workspace, costs: Costs) -> Findings:
    """Measure, and print the tables, the last of which says whether the demands are met."""
    findings = SECTIONS[name].measure(Run(OURS, DISKCACHE, SECTIONS[name].effort, costs, space))
    for table in (*findings.tables, objectives_table(assess(findings.measured, of_sections({name})))):
        print(table.text(), flush=True)
    print(*findings.details["skipped"], *findings.problems, sep="\n")
    return findings


def work(asked: argparse.Namespace) -> int:
    """Measure, and put the tables into the page that was asked for."""
    if asked.docs:
        page.marked(asked.docs, asked.name)
    with workspace(asked.directory) as space:
        costs = measure_costs()
        facts = machine_facts(space.root.parent, costs)
        findings = measured(asked.name, space, costs)
    if asked.docs:  # what is demanded stands among all objectives, from one run
        page.put(
            asked.docs, asked.name, "\n".join([*(one.markdown() for one in findings.tables), f"{in_short(facts)}.\n"])
        )
    return FAILED if findings.problems else GOOD


main = follows(options, work, BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
