"""The command `migrate`: copy a directory of DiskCache 5, show the progress, and list what was left out."""

from __future__ import annotations

import argparse
import sys

from ..compat.migration.copy import Migration, MigrationOptions, Summary
from .terminal import Progress, print_json, shown


def run(options: argparse.Namespace) -> int:
    """Copy `options.old` into `options.new`; return 1 if anything was skipped."""
    try:
        how = MigrationOptions(options.disk, options.kind, options.queue, options.trust_pickles, options.dry_run)
        with Migration(options.old, options.new, how) as migration:
            summary = migration.run() if options.json else _shown(migration, options.dry_run)
    except KeyboardInterrupt:
        print(f"\n{options.new}: not finished; run the same command again to go on", file=sys.stderr)
        raise
    if options.json:
        skipped = [{"key": key, "reason": reason} for key, reason in summary.skipped]
        counts = {"copied": summary.copied, "present": summary.present, "expired": summary.expired}
        print_json({**counts, "skipped": skipped, "notes": summary.notes})
    else:
        report(summary, options.dry_run, options.trust_pickles)
    return 1 if summary.skipped else 0


def _shown(migration: Migration, dry_run: bool) -> Summary:
    """Copy, and show what there is to copy and how far it is."""
    for part in migration.parts:
        number = sum(database.count for database in part.databases)
        print(f"{part.kind}{f' {part.name!r}' if part.name else ''}: {number:,} entries")
    with Progress("reading" if dry_run else "copying", migration.total, "entries") as progress:
        return migration.run(progress.advance)


def report(summary: Summary, dry_run: bool, trusted: bool = False) -> None:
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
    if not trusted and any("pickle" in reason for _, reason in summary.skipped):
        print("--trust-pickles unpickles what is not plain data: only for a directory that nobody else could write")
