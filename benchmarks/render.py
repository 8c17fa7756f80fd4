"""Print the tables of a recorded run and draw its plots again: `python -m benchmarks.render RECORD.json`.

Exit status: 0 good; 2 the record cannot be read, matplotlib is not installed or the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import fill
from benchmarks.plots import FORMATS, draw
from benchmarks.record import Record, load
from benchmarks.subjects import BenchmarkError
from benchmarks.tables import machine_text, tables

GOOD, UNUSABLE = 0, 2


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.render", description=(__doc__ or "").partition(":")[0] + ".")
    add = made.add_argument
    add("record", type=Path, metavar="RECORD.json", help="what a run of the benchmarks saved")
    add("--out", type=Path, metavar="DIRECTORY", help="where plots go (default: beside the record)")
    add("--formats", default=",".join(FORMATS), metavar="LIST", help="formats of plots, with commas (%(default)s)")
    add("--no-plots", dest="plots", action="store_false", help="print tables only")
    add(
        "--docs",
        type=Path,
        metavar="PAGE.md",
        help="fill the results of this page instead, with a choice of the plots beside it",
    )
    return made


def show(record: Record) -> None:
    """Print the facts and all tables."""
    print(machine_text(record))
    for table in tables(record):
        print(table.text())
    sys.stdout.flush()


def render(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    record = load(asked.record)
    show(record)
    if asked.docs:
        print(f"{len(fill(asked.docs, record))} plots and all tables put into {asked.docs}")
    if asked.plots and (asked.out or not asked.docs):
        directory = asked.out or asked.record.with_name(f"{asked.record.stem}-plots")
        drawn = draw(record, directory, [name.strip() for name in asked.formats.split(",")])
        print(f"{len(drawn)} plots drawn into {directory}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Render, and explain what prevents it."""
    try:
        render(parser().parse_args(arguments))
    except (BenchmarkError, OSError) as error:
        print(f"benchmarks.render: {error}", file=sys.stderr)
        return UNUSABLE
    return GOOD


if __name__ == "__main__":
    sys.exit(main())
