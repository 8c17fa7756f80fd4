"""Run chosen tests and proofs with every Python and SQLite at hand, and print one table.

Each Python that is found runs with its own SQLite, and the first one with other versions too, which are compiled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import positive, run_as_command, seconds
from benchmarks.page import marked, put
from prove.proof import CannotRun
from prove.sqlite_builds import ORIGINS, library

from . import emulation
from .interpreters import MACHINE, Environment, Interpreter, environment, found
from .runs import Result, run_proofs, run_tests

MARK = "versions"
HELD, FAILED = 0, 1
# Storage, coherence, locks, crashes, transactions and codecs: what SQLite or the interpreter may treat differently.
CHOSEN = (
    "api/test_checking.py",
    "api/test_fanout.py",
    "api/test_queues.py",
    "api/test_reading.py",
    "api/test_removal_and_eviction.py",
    "api/test_settings.py",
    "api/test_streams.py",
    "api/test_transactions.py",
    "api/test_writing.py",
    "coherence/test_coherence.py",
    "coherence/test_exactness.py",
    "coherence/test_generations.py",
    "coherence/test_shared_words.py",
    "coherence/test_write_lock.py",
    "encoding/test_codecs.py",
    "encoding/test_objects.py",
    "faults/test_crash.py",
    "faults/test_full_disk.py",
    "integrations/test_library_values.py",
    "recipes/test_locks.py",
    "recipes/test_locks_async.py",
    "security/test_hostile_databases.py",
    "storage/test_fork.py",
    "storage/test_upkeep.py",
)
HEADS = ("Python", "SQLite", "tests", "proofs", "without")


class Row(NamedTuple):
    """One run of the matrix; without results where it was not possible, for a reason."""

    python: str
    sqlite: str
    missing: tuple[str, ...] = ()
    tests: Result | None = None
    proofs: Result | None = None
    reason: str = ""

    @property
    def failures(self) -> list[str]:
        """Return what failed."""
        return [text for result in (self.tests, self.proofs) if result for text in result.failed]

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        if self.reason:
            return self.python, self.sqlite, f"not run: {self.reason}", "-", "-"
        results = (str(result) if result else "-" for result in (self.tests, self.proofs))
        return self.python, self.sqlite, *results, ", ".join(self.missing) or "-"


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m tools.matrix", description=__doc__)
    add = made.add_argument
    add("--python", action="append", metavar="COMMAND", help="only this one; repeatable (default: all that are found)")
    add("--arm64", action="store_true", help="Debian's Python for ARM64 under qemu instead, with its own SQLite")
    add("--sqlite", action="append", choices=["own", *ORIGINS], help="only this one; repeatable")
    add(
        "--tests",
        action="append",
        metavar="PATH",
        help="only this file or folder in tests/; repeatable (default: a choice)",
    )
    add("--all", action="store_true", help="all tests instead")
    add("--prove", type=seconds, metavar="SECONDS", help="run the proofs too, for so long")
    add("--processes", type=positive, default=2, help="that run tests at once (%(default)s)")
    add("--docs", type=Path, metavar="PAGE", help="put the table into PAGE, between its marks")
    return made


def pythons(named: Sequence[str] | None) -> list[Interpreter]:
    """Return the Pythons that were named, or all there are."""
    if not named:
        return found()
    chosen = []
    for name in named:
        if (one := Interpreter.probe(name)) is None:
            raise SystemExit(f"--python {name}: it does not start, or has no sqlite3 module; name a command or a path")
        chosen.append(one)
    return chosen


def combinations(pythons: Sequence[Interpreter], versions: Sequence[str] | None) -> Iterator[tuple[Interpreter, str]]:
    """Yield what is run: each Python with its own SQLite, then the first one with the others; or all as named."""
    for number, python in enumerate(pythons):
        for version in versions or ["own", *(ORIGINS if number == 0 else [])]:
            yield python, version


def chosen(asked: argparse.Namespace) -> Iterator[tuple[Interpreter, str]]:
    """Return what the command line asks for."""
    if not asked.arm64:
        return combinations(pythons(asked.python), asked.sqlite)
    try:
        return combinations([emulation.interpreter()], ["own"])
    except CannotRun as reason:
        raise SystemExit(f"--arm64: {reason}") from reason


def run(python: Interpreter, version: str, asked: argparse.Namespace) -> Row:
    """Run one combination."""
    preload = None
    shown = python.sqlite if version == "own" else version
    try:
        place: Environment = environment(python) if python.machine == MACHINE else emulation.environment(python)
        if version != "own":
            preload = library(version)
            used = Interpreter.probe(str(place.python), preload)
            if used is None or used.sqlite != version:
                raise CannotRun("its sqlite3 module does not start with it" if used is None else "it has its own in it")
    except CannotRun as reason:
        return Row(str(python), shown, reason=str(reason))
    names = [] if asked.all else list(asked.tests or CHOSEN)
    left_out = emulation.BEYOND_QEMU if python.machine != MACHINE else {}
    tests = run_tests(place, preload, names, asked.processes, left_out)
    proofs = run_proofs(place, preload, asked.prove) if asked.prove else None
    return Row(str(python), shown, place.missing, tests, proofs)


def table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    lines = [HEADS, tuple("---" for _ in HEADS), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def details(rows: Sequence[Row]) -> Iterator[str]:
    """Tell each failure, and each reason for which something was skipped."""
    for row in rows:
        yield from (f"Python {row.python}, SQLite {row.sqlite}: {text}" for text in row.failures)
    reasons = {reason for row in rows for result in (row.tests, row.proofs) if result for reason in result.skipped}
    yield from (f"skipped: {reason}" for reason in sorted(reasons))


def main() -> int:
    """Run the command line; return 0 unless something failed."""
    asked = parser().parse_args()
    if asked.docs:
        marked(asked.docs, MARK)  # now, rather than after all has been run
    rows = []
    for python, version in chosen(asked):
        sys.stderr.write(f"Python {python}, SQLite {version} ...\n")
        rows.append(run(python, version, asked))
        sys.stderr.write(table(rows).splitlines()[-1] + "\n")
    sys.stdout.write(f"{table(rows)}\n" + "".join(f"{line}\n" for line in details(rows)))
    if asked.docs:
        put(asked.docs, MARK, table(rows))
    return FAILED if any(row.failures for row in rows) else HELD


if __name__ == "__main__":
    run_as_command(main)
