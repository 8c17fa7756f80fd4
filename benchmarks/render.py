"""Print the tables of a recorded run and draw its plots again: `python -m benchmarks.render RECORD.json`.

Exit status: 0 good; 2 the record cannot be read, matplotlib is not installed or the command line is wrong.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.command import GOOD, follows, parser, run_as_command
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report.plots import FORMATS, draw
from benchmarks.report.record import load
from benchmarks.report.results import RESULTS, fill
from benchmarks.report.tables import machine_text, scenario_tables


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.render", __doc__, "docs")
    add = made.add_argument
    add("record", type=Path, metavar="RECORD.json", help="what a run of the benchmarks saved")
    add("--out", type=Path, metavar="DIRECTORY", help="where plots go (default: beside the record, unless --docs)")
    add("--formats", default=",".join(FORMATS), metavar="LIST", help="formats of plots, with commas (%(default)s)")
    add("--no-plots", dest="plots", action="store_false", help="print tables only")
    return made


def render(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    record = load(asked.record)
    print(machine_text(record))
    for scenario in record.scenarios:
        for table in scenario_tables(record, scenario):
            print(table.text(), flush=True)
    if asked.docs:
        print(f"{len(fill(asked.docs, record))} plots and all tables put into {asked.docs.parent}")
    if asked.plots and (asked.out or not asked.docs):
        directory = asked.out or asked.record.with_name(f"{asked.record.stem}-plots")
        drawn = draw(record, directory, [name.strip() for name in asked.formats.split(",")])
        print(f"{len(drawn)} plots drawn into {directory}")
    return GOOD


main = follows(options, render, BenchmarkError, RESULTS)


if __name__ == "__main__":
    run_as_command(main)
