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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import page
from benchmarks.budgets import AIM, MISSED, MUST, UNCLEAR, UNMEASURED, Outcome, assess, of_sections
from benchmarks.command import (
    FAILED,
    GOOD,
    MISSED_ONE,
    add_only,
    follows,
    parser,
    print_facts,
    run_as_command,
    write_json,
)
from benchmarks.measure import measure_costs
from benchmarks.peers.spec import DISKCACHE, OURS, MissingSubject, Spec
from benchmarks.report.machine import in_short, machine_facts
from benchmarks.report.text import objectives_table
from benchmarks.workloads.section import Options, Run
from benchmarks.workloads.sections import SECTIONS, Record, measure_all
from benchmarks.workspace import workspace

MARK = "objectives"
SUMMARY = "GITHUB_STEP_SUMMARY"
VERDICTS = (AIM, MUST, UNCLEAR, MISSED, UNMEASURED)


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.objectives", __doc__, "directory", "report", "docs", "json")
    add_only(made, "section", SECTIONS)
    made.add_argument("--complete", action="store_true", help="fail also if an objective was not measured")
    told = "put the tables of sections into the places that this page has for them"
    made.add_argument("--tables", type=Path, metavar="PAGE.md", help=told)
    told = "fail also if an objective is unclear or was not measured"
    made.add_argument("--strict", action="store_true", help=told)
    return made


def measure(
    asked: argparse.Namespace, ours: Spec, efforts: Mapping[str, Options], alone: Iterable[str] = ()
) -> tuple[dict[str, str], Record, list[Outcome]]:
    """Measure some sections with that effort; return what is known of the machine, what was found, and the verdicts."""
    with workspace(asked.directory) as space:
        costs = measure_costs()
        facts = {"subjects": f"{ours.label} against {DISKCACHE.label}", **machine_facts(space.root.parent, costs)}
        print_facts(facts)
        runs = {name: Run(ours, DISKCACHE, one, costs, space, alone=name in alone) for name, one in efforts.items()}
        record = measure_all(runs)
    outcomes = assess(record.measured, of_sections(efforts))
    if asked.json:
        amounts = {name: asdict(one) for name, one in efforts.items()}
        write_json(asked.json, {"machine": facts, "options": amounts, **record.told(outcomes)})
    return facts, record, outcomes


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
    return f"```text\n{rest}```\n\n{tally(outcomes)}. {in_short(facts)}, SQLite {facts['SQLite']}.\n"


def put_tables(place: Path, names: Iterable[str], record: Record, facts: Mapping[str, str]) -> None:
    """Put the tables of sections into their places on a page."""
    for name in names:
        tables = [table.markdown() for table in record.findings[name].tables]
        page.put(place, name, "\n".join([*tables, f"{in_short(facts)}.\n"]))


def remarks_on(record: Record, outcomes: Sequence[Outcome]) -> list[str]:
    """Name what was missed, what is unclear, what failed, and what could not be measured."""
    found = [f"{one.verdict}: {one.budget.label}" for one in outcomes if one.verdict in (MISSED, UNCLEAR)]
    found += record.failed
    return found + (record.skipped if any(one.verdict == UNMEASURED for one in outcomes) else [])


def publish(text: str, report: Path | None) -> None:
    """Write the Markdown where it was asked for, and append it to the summary of a CI that has one."""
    if report:
        report.write_text(text, encoding="utf-8")
    if summary := os.environ.get(SUMMARY):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            print(f"benchmarks.objectives: {SUMMARY} could not be written: {error}", file=sys.stderr)


def check(asked: argparse.Namespace) -> int:
    """Measure what the command line asks for, and report."""
    sections = {name: one for name, one in SECTIONS.items() if not asked.only or name in asked.only}
    alone = [name for name, one in sections.items() if one.alone]
    shown = [name for name in sections if asked.tables and page.has(asked.tables, name)]  # before minutes of measuring
    facts, record, outcomes = measure(asked, OURS, {name: one.effort for name, one in sections.items()}, alone)
    remarks = remarks_on(record, outcomes)
    took = ", ".join(f"{name} {seconds:.0f}" for name, seconds in record.seconds.items())
    facts["took"] = f"{sum(record.seconds.values()):.0f} s ({took})"
    print(objectives_table(outcomes).text(), tally(outcomes), *remarks, f"took {facts['took']}", sep="\n")
    if asked.docs:
        page.put(asked.docs, MARK, filling(outcomes, facts))
    put_tables(asked.tables, [name for name in shown if name in record.findings], record, facts)
    publish(markdown(outcomes, facts, remarks), asked.report)
    fatal = {MISSED, *([UNCLEAR] if asked.strict else []), *([UNMEASURED] if asked.strict or asked.complete else [])}
    if record.failures:
        return FAILED
    return MISSED_ONE if any(outcome.verdict in fatal for outcome in outcomes) else GOOD


main = follows(options, check, MissingSubject, MARK)


if __name__ == "__main__":
    run_as_command(main)
