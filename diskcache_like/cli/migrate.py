"""The command `migrate`: copy a directory of DiskCache 5, show the progress, and list what was left out."""

from __future__ import annotations

import argparse
import sys

from ..migration.copy import Migration, Options, Summary
from .terminal import Progress, shown


def run(options: argparse.Namespace) -> int:
    """Copy `options.old` into `options.new`; return 1 if anything was skipped."""
    try:
        how = Options(options.disk, options.kind, options.queue, options.trust_pickles, options.dry_run)
        with Migration(options.old, options.new, how) as migration:
            for part in migration.parts:
                number = sum(database.count for database in part.databases)
                print(f"{part.kind}{f' {part.name!r}' if part.name else ''}: {number:,} entries")
            with Progress("reading" if options.dry_run else "copying", migration.total, "entries") as progress:
                summary = migration.run(progress.advance)
    except KeyboardInterrupt:
        print(f"\n{options.new}: not finished; run the same command again to go on", file=sys.stderr)
        raise
    report(summary, options.dry_run)
    return 1 if summary.skipped else 0


def report(summary: Summary, dry_run: bool) -> None:
    """Print what was skipped, then notes, then the numbers."""
    for key, reason in summary.skipped:
        print(shown(f"skipped {key}: {reason}"))
    for note in summary.notes:
        print(shown(f"note: {note}"))
    there = f", {summary.present:,} there already" if summary.present else ""
    print(
        f"{summary.copied:,} {'can be copied' if dry_run else 'copied'}{there}, {summary.expired:,} expired and left"
        f" out, {len(summary.skipped):,} skipped"
    )
    if any("pickle" in reason for _, reason in summary.skipped):
        print("--trust-pickles unpickles what is not plain data: only for a directory that nobody else could write")
