"""Check the latency objectives: every "must" of the design, measured in one run: `python -m benchmarks.objectives`.

The sections of `benchmarks.quick` with enough repetitions for confidence intervals, a cache of 1 M entries, and a full
size limit of 100,000 writes.

Exit status: 0 no "must" is missed; 1 one is, or with `--complete` is not measured, or with `--strict` is either that or
unclear; 2 DiskCache is not installed or the command line is wrong; 3 a section failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import awaited, machines, page
from benchmarks.budgets import AIM, BUDGETS, MISSED, MUST, UNCLEAR, UNMEASURED, Outcome, assess
from benchmarks.command import FAILED, GOOD, add_only, explained, refuse_lost, run_as_command
from benchmarks.measure import measure_costs
from benchmarks.quick import FULL_WRITES, Record, measure_all, write_json
from benchmarks.report import machine_facts, objectives_table
from benchmarks.section import Options, Run
from benchmarks.subjects import DISKCACHE, OURS, MissingSubject
from benchmarks.workspace import workspace

MISSED_ONE = 1
MARK = "objectives"
SUMMARY = "GITHUB_STEP_SUMMARY"
VERDICTS = (AIM, MUST, UNCLEAR, MISSED, UNMEASURED)


@dataclass(frozen=True)
class Effort:
    """How much of a section is measured, and whether without the peer that none of its budgets is about."""

    options: Options
    alone: bool = False


# An interval of 95 % needs six ratios; the workloads of classic, fanout and limit give one per repetition.
EFFORTS = {
    "operations": Effort(Options(repeats=6, operations=10_000)),
    "policies": Effort(Options(repeats=5)),
    "bulk": Effort(Options(repeats=6)),
    "classic": Effort(Options(repeats=7, operations=8_000)),
    "fanout": Effort(Options(repeats=7, operations=8_000)),
    "encrypted": Effort(Options(repeats=15), alone=True),
    "large": Effort(Options(repeats=15)),
    "buffered": Effort(Options(repeats=15)),
    "growth": Effort(Options(repeats=5, entries=1_000_000), alone=True),
    "limit": Effort(Options(repeats=8, writes=FULL_WRITES), alone=True),
    "awaited": Effort(awaited.OPTIONS, alone=True),
    "machines": Effort(machines.OPTIONS, alone=True),
    # Only single calls have budgets here, five rounds of them per repetition; the rest is as short as it can be.
    "peers": Effort(Options(repeats=2, operations=200, processes=1)),
}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.objectives", description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add_only(made, "section", EFFORTS)
    add("--complete", action="store_true", help="fail also if an objective was not measured")
    add("--strict", action="store_true", help="fail also if an objective is unclear or was not measured")
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where caches are made (%(default)s)")
    add("--report", type=Path, metavar="FILE", help="write the report to FILE as Markdown")
    add("--docs", type=Path, metavar="PAGE.md", help="put the table into the marked place of this page")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    return made


def tally(outcomes: Sequence[Outcome]) -> str:
    """Count the verdicts in one sentence."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    return f"{len(outcomes)} objectives: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def markdown(outcomes: Sequence[Outcome], facts: Mapping[str, str], remarks: Sequence[str]) -> str:
    """Return the report as Markdown."""
    parts = [objectives_table(outcomes).markdown(), f"**{tally(outcomes)}**\n"]
    if remarks:
        parts.append("".join(f"- {' '.join(remark.split())}\n" for remark in remarks))
    parts.append("".join(f"- {name}: {fact}\n" for name, fact in facts.items()))
    return "\n".join(parts)


def filling(outcomes: Sequence[Outcome], facts: Mapping[str, str]) -> str:
    """Return what a page of documentation says; in a block of text no column is cut off, since it scrolls."""
    _, _, rest = objectives_table(outcomes).text().partition("\n\n")
    machine = ", ".join(facts[name] for name in ("CPU", "kernel", "Python") if name in facts)
    return f"```text\n{rest}```\n\n{tally(outcomes)}. {machine}, SQLite {facts['SQLite']}.\n"


def remarks_on(record: Record, outcomes: Sequence[Outcome]) -> list[str]:
    """Name what was missed, what is unclear, what failed, and what could not be measured."""
    found = [f"{one.verdict}: {one.budget.label}" for one in outcomes if one.verdict in (MISSED, UNCLEAR)]
    found += [f"section {name} FAILED: {failure}" for name, failure in record.failures.items()]
    skipped = [str(line) for one in record.findings.values() for line in one.details.get("skipped", ())]
    if any(one.verdict == UNMEASURED for one in outcomes):
        found += skipped
    return found


def fatal(asked: argparse.Namespace) -> set[str]:
    """Return the verdicts that fail the check."""
    if asked.strict:
        return {MISSED, UNCLEAR, UNMEASURED}
    return {MISSED, UNMEASURED} if asked.complete else {MISSED}


def status(record: Record, outcomes: Sequence[Outcome], fatal_verdicts: set[str]) -> int:
    """Return the exit status."""
    if record.failures:
        return FAILED
    return MISSED_ONE if any(outcome.verdict in fatal_verdicts for outcome in outcomes) else GOOD


def publish(text: str, report: Path | None) -> None:
    """Write the Markdown where it was asked for, and append it to the summary of a CI that has one."""
    if report:
        report.write_text(text, encoding="utf-8")
    summary = os.environ.get(SUMMARY)
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            print(f"benchmarks.objectives: {SUMMARY} could not be written: {error}", file=sys.stderr)


def check(asked: argparse.Namespace) -> int:
    """Measure what the command line asks for, and report."""
    if asked.docs:
        page.marked(asked.docs, MARK)
    names = [name for name in EFFORTS if not asked.only or name in asked.only]
    labels = f"{OURS.label} against {DISKCACHE.label}"
    with workspace(asked.directory) as space:
        costs = measure_costs()
        facts = {"subjects": labels, **machine_facts(space.root.parent, costs)}
        print(*(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n", flush=True)
        efforts = {name: EFFORTS[name] for name in names}
        record = measure_all(
            {name: Run(OURS, DISKCACHE, one.options, costs, space, alone=one.alone) for name, one in efforts.items()}
        )
    outcomes = assess(record.measured, [budget for budget in BUDGETS if budget.section in names])
    remarks = remarks_on(record, outcomes)
    took = ", ".join(f"{name} {seconds:.0f}" for name, seconds in record.seconds.items())
    facts["took"] = f"{sum(record.seconds.values()):.0f} s ({took})"
    if asked.json:
        write_json(asked.json, facts, {name: asdict(one) for name, one in efforts.items()}, record, outcomes)
    print(objectives_table(outcomes).text(), tally(outcomes), *remarks, f"took {facts['took']}", sep="\n")
    if asked.docs:
        page.put(asked.docs, MARK, filling(outcomes, facts))
    publish(markdown(outcomes, facts, remarks), asked.report)
    return status(record, outcomes, fatal(asked))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the objectives, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, asked.directory, asked.report, asked.json)
    return explained(made, lambda: check(asked), MissingSubject)


if __name__ == "__main__":
    run_as_command(main)
