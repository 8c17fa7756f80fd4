"""A section of the benchmark as a command of its own: `python -m benchmarks.NAME`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import page
from benchmarks.budgets import BUDGETS, assess
from benchmarks.command import FAILED, GOOD, explained, refuse_lost
from benchmarks.measure import Costs, measure_costs
from benchmarks.report import machine_facts, objectives_table
from benchmarks.section import Findings, Options, Run
from benchmarks.subjects import DISKCACHE, OURS, BenchmarkError
from benchmarks.workspace import Workspace, workspace


@dataclass(frozen=True)
class Part:
    """A section, whose name is also that of its module, of its budgets, and of its place on a page."""

    name: str
    about: str | None  # the docstring of its module
    options: Options
    find: Callable[[Run], Findings]

    def measured(self, space: Workspace, costs: Costs) -> Findings:
        """Measure, and print the tables, the last of which says whether the demands are met."""
        findings = self.find(Run(OURS, DISKCACHE, self.options, costs, space))
        budgets = [budget for budget in BUDGETS if budget.section == self.name]
        findings.tables.append(objectives_table(assess(findings.measured, budgets)))
        for table in findings.tables:
            print(table.text(), flush=True)
        print(*findings.details["skipped"], *findings.problems, sep="\n")
        return findings

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measure, and explain what prevents it."""
        made = argparse.ArgumentParser(
            f"python -m benchmarks.{self.name}", description=(self.about or "").partition("\n")[0]
        )
        add = made.add_argument
        add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where caches are made (%(default)s)")
        add("--docs", type=Path, metavar="PAGE.md", help="put the tables into the marked place of this page")
        asked = made.parse_args(arguments)
        refuse_lost(made, asked.directory)
        return explained(made, lambda: self._measure(asked.directory, asked.docs), BenchmarkError)

    def _measure(self, directory: Path, docs: Path | None) -> int:
        if docs:
            page.marked(docs, self.name)
        with workspace(directory) as space:
            costs = measure_costs()
            facts = machine_facts(space.root.parent, costs)
            findings = self.measured(space, costs)
        if docs:
            machine = ", ".join(facts[name] for name in ("CPU", "kernel", "Python") if name in facts)
            shown = findings.tables[:-1]  # what is demanded stands among all objectives, from one run
            page.put(docs, self.name, "\n".join([*(table.markdown() for table in shown), f"{machine}.\n"]))
        return FAILED if findings.problems else GOOD
