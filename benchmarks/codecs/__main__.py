"""Measure every serializer with every compressor, and derive what to choose: `python -m benchmarks.codecs`.

Exit status: 0 good; 2 the command line is wrong; 3 a value came back as another one; 130 interrupted.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.codecs import heatmap, report
from benchmarks.codecs.matrix import Effort, Matrix, places
from benchmarks.codecs.matrix import measure as measure_places
from benchmarks.codecs.subjects import COMPRESSORS, SERIALIZERS, open_all, subjects
from benchmarks.codecs.values import KINDS, SIZES
from benchmarks.command import FAILED, GOOD, add_amounts, amounts_of, follows, parser, progress, run_as_command
from benchmarks.measure import measure_costs
from benchmarks.peers.spec import BenchmarkError, named
from benchmarks.report.machine import machine_facts
from benchmarks.workspace import workspace

PACKAGES = ("msgpack", "orjson", "lz4", "zstandard")
CHOICES = {"serializer": SERIALIZERS, "compressor": COMPRESSORS, "kind": KINDS, "size": SIZES}


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.codecs", __doc__, "docs")
    add = made.add_argument
    for name, known in CHOICES.items():
        add(f"--{name}", metavar="NAME", action="append", help=f"only this: {', '.join(known)} (may be repeated)")
    add_amounts(made, Effort())
    add("--out", type=Path, metavar="DIRECTORY", help="where heat maps go, as PNG and SVG")
    return made


def measure(asked: argparse.Namespace) -> tuple[Matrix, list[str]]:
    """Run what the command line asks for; return what was found, and which values came back as others."""
    chosen = {name: named(name, getattr(asked, name) or known, known) for name, known in CHOICES.items()}
    with workspace(Path(tempfile.gettempdir())) as space, progress() as note:
        costs = measure_costs()
        facts = machine_facts(space.root.parent, costs)
        matrix = Matrix(
            {name: facts[name] for name in ("CPU", "load", "kernel", "Python", "clock")},
            {"packages": packages(), "seconds": asked.seconds, "repetitions": asked.repeats},
        )
        opened, matrix.skipped = open_all(list(subjects(chosen["serializer"], chosen["compressor"])), space.fresh)
        try:
            found, wrong = places(opened, chosen["kind"], chosen["size"], note)
            measure_places(found, amounts_of(asked, Effort()), costs, note)
            matrix.cells = [place.cell() for place in found]
        finally:
            for one in opened.values():
                one.cache.close()
    return matrix, wrong


def packages() -> str:
    """Name the packages that do the work, with their versions."""
    found = [f"zlib {zlib.ZLIB_RUNTIME_VERSION}"]
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def work(asked: argparse.Namespace) -> int:
    """Measure, print tables, and draw or write what was asked for."""
    matrix, wrong = measure(asked)
    print(report.facts_text(matrix))
    for table in report.tables(matrix):
        print(table.text(), flush=True)
    print(report.rules_text(matrix))
    if asked.out:
        print(f"heat maps in {asked.out}: {', '.join(heatmap.draw(matrix, asked.out))}")
    if asked.docs:
        print(f"recommendation and {len(report.fill(asked.docs, matrix))} heat maps put into {asked.docs}")
    for line in wrong:
        print(f"FAILED: {line}")
    return FAILED if wrong else GOOD


main = follows(options, work, BenchmarkError, report.CHOICE, report.NUMBERS)


if __name__ == "__main__":
    run_as_command(main)
