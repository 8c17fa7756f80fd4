"""What the demonstration measured, and the tables that show it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from diskcache_like.cli.terminal import print_table

MOST_COMPLEX = 8
NAMED_FAILURES = 3


@dataclass
class Tally:
    """How many look-ups were hits, and how many nanoseconds each call took."""

    gets: int = 0
    hits: int = 0
    computed: int = 0
    timings: dict[str, list[int]] = field(default_factory=dict)

    def record(self, call: str, start: int) -> None:
        """Record a call that began at `start` and has just ended."""
        elapsed = time.perf_counter_ns() - start
        self.timings.setdefault(call, []).append(elapsed)

    def add(self, other: Tally) -> None:
        """Add the numbers of another process."""
        self.gets += other.gets
        self.hits += other.hits
        self.computed += other.computed
        for call, timings in other.timings.items():
            self.timings.setdefault(call, []).extend(timings)


@dataclass(frozen=True)
class Pass:
    """One pass of all processes over all modules."""

    name: str
    seconds: float
    tally: Tally


@dataclass(frozen=True)
class Usage:
    """How many files and bytes a cache directory holds."""

    database: int
    value_files: int
    in_value_files: int
    other: int

    @classmethod
    def of(cls, directory: str) -> Self:
        """Count what is in `directory`."""
        database = value_files = in_value_files = other = 0
        for folder, _, names in os.walk(directory):
            for name in names:
                size = Path(folder, name).stat().st_size
                if name.endswith(".val"):
                    value_files += 1
                    in_value_files += size
                elif ".db" in name:
                    database += size
                else:
                    other += size
        return cls(database, value_files, in_value_files, other)


def print_passes(passes: Sequence[Pass], usage: Usage) -> None:
    """Print how long each pass and each call took, and what is on the disk."""
    first = passes[0]
    print_table(
        ("pass", "wall time", "speed-up", "hit rate", "computed"),
        [
            (
                one.name,
                f"{one.seconds:.2f} s" if one.seconds >= 1 else f"{one.seconds * 1_000:.0f} ms",
                f"{first.seconds / one.seconds:,.0f} x" if one is not first and first.tally.computed else "",
                f"{one.tally.hits / max(one.tally.gets, 1):.1%}",
                f"{one.tally.computed:,}",
            )
            for one in passes
        ],
    )
    if not first.tally.computed:
        print("The cache was warm already: nothing was left to compute.")
    elif first.tally.hits:
        print("Hits in the first run are modules that another process had measured a moment before.")
    together = Tally()
    for one in passes:
        together.add(one.tally)
    print_table(
        ("call, in µs", "calls", "p50", "p90", "p99", "max"),
        [(call, f"{len(times):,}", *percentiles(times)) for call, times in sorted(together.timings.items())],
    )
    print(
        f"\non disk: database {megabytes(usage.database)}, {usage.value_files:,} value files "
        f"{megabytes(usage.in_value_files)}, generations and lock {megabytes(usage.other)}"
    )


def print_modules(summaries: Mapping[str, object]) -> None:
    """Print what was measured: totals, files that do not parse, and the most complex modules."""
    parsed = {path: summary for path, summary in summaries.items() if isinstance(summary, tuple)}
    failed = [Path(path).name for path, summary in summaries.items() if isinstance(summary, str)]
    lines, functions = (sum(summary[column] for summary in parsed.values()) for column in (0, 1))
    print(f"\n{len(parsed):,} modules: {lines:,} lines, {functions:,} functions")
    if failed:
        more = ", ..." if len(failed) > NAMED_FAILURES else ""
        print(f"{len(failed):,} files do not parse: {', '.join(failed[:NAMED_FAILURES])}{more}")
    root = os.path.commonpath(summaries) if len(summaries) > 1 else ""
    ranked = sorted(parsed.items(), key=lambda item: item[1][3], reverse=True)[:MOST_COMPLEX]
    print_table(
        ("most branches", "branches", "lines", "functions", "imports", "longest function"),
        [
            (
                os.path.relpath(path, root) if root else path,
                *(f"{number:,}" for number in (branches, lines, functions, imports)),
                f"{longest} ({length} lines)",
            )
            for path, (lines, functions, imports, branches, longest, length) in ranked
        ],
    )


def print_coherence(stale: int, tally: Tally) -> int:
    """Print whether any read was older than a completed write; return 1 if one was."""
    before, after = tally.timings["before"], tally.timings["after"]
    print(
        f"\n{len(after):,} times process B wrote and process A read on its very next get: {stale:,} stale reads"
        f"\nA's get, p50: {percentiles(before)[0]} µs before the write, from memory; "
        f"{percentiles(after)[0]} µs after it, fetched anew"
    )
    return 1 if stale else 0


def percentiles(nanoseconds: Iterable[int]) -> tuple[str, ...]:
    """Return p50, p90, p99 and the maximum, in microseconds."""
    ordered = sorted(nanoseconds)
    picked = [ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99, 100)]
    return tuple(f"{number / 1_000:,.{number < 1_000_000:d}f}" for number in picked)  # a digit below a millisecond


def megabytes(size: int) -> str:
    """Return a size in bytes as text in megabytes."""
    return f"{size / 1_000_000:.1f} MB"
