"""Measure diskcache_like against DiskCache in one run of about two minutes: `python -m benchmarks.quick`.

`--only` measures a section that does not run unasked, such as `awaited` or `machines`, whose tables `--docs PAGE.md`
puts into the place of that name.

Exit status: 0 good; 1 a "must" was missed and `--enforce` given; 2 a subject is not installed or the command line is
wrong; 3 a section failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
from dataclasses import fields

from benchmarks import page
from benchmarks.budgets import MISSED
from benchmarks.command import FAILED, GOOD, MISSED_ONE, add_only, amounts_of, follows, parser, positive, run_as_command
from benchmarks.objectives import measure, put_tables
from benchmarks.peers.spec import SPECS, BenchmarkError
from benchmarks.report.text import objectives_table
from benchmarks.workloads.section import Options
from benchmarks.workloads.sections import SECTIONS


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.quick", __doc__, "directory", "json", "docs")
    add_only(made, "section", SECTIONS)
    for each in fields(Options):
        told = f"{each.metadata['meaning']} (for most sections {each.default:,})"
        made.add_argument(f"--{each.name}", type=positive, help=told)
    told = "what to compare with DiskCache; diskcache itself shows the noise of this machine"
    made.add_argument("--subject", choices=list(SPECS), default="diskcache_like", help=told)
    made.add_argument("--enforce", action="store_true", help='exit with 1 when a "must" is missed')
    return made


def look(asked: argparse.Namespace) -> int:
    """Measure what the command line asks for, and put a section's tables into its page."""
    names = asked.only or [name for name, section in SECTIONS.items() if section.unasked]
    for name in names if asked.docs else ():
        page.marked(asked.docs, name)
    efforts = {name: amounts_of(asked, SECTIONS[name].usual) for name in names}
    facts, record, outcomes = measure(asked, SPECS[asked.subject], efforts)
    missed = [f"MISSED: {one.budget.label}" for one in outcomes if one.verdict == MISSED]
    print(objectives_table(outcomes).text(), *record.skipped, *record.failed, *missed, sep="\n")
    if asked.docs:  # what is demanded stands among all objectives, from one run
        put_tables(asked.docs, names, record, facts)
    return FAILED if record.failures else MISSED_ONE if asked.enforce and missed else GOOD


main = follows(options, look, BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
