"""Output: text, JSON, tables and progress bars, and the tables of the demonstration with the numbers behind them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..encoding.json import Json
from ..encoding.values import NotSerializable
from ..errors import named

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

MOST_COMPLEX = 8
NAMED_FAILURES = 3
REDRAW_SECONDS = 0.1
NAME_WIDTH = 24  # so that the bars of all passes begin at the same column


def shown(text: str) -> str:
    """Return one line of text with unprintable characters escaped.

    Anyone may have made the names in it, which could otherwise control the terminal or imitate our output.
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def as_text(value: Any) -> str:
    """Return a value as a person reads it: text as it is, JSON where that says the same, else its `repr`."""
    if isinstance(value, str):
        return "\n".join(map(shown, value.split("\n")))
    told = as_json(value)
    return shown(json.dumps(told, ensure_ascii=False) if told is value else named(value))


def as_json(value: Any) -> Any:
    """Return the value if JSON expresses it exactly, otherwise its `repr` in an object."""
    try:
        Json().encode(value)
    except NotSerializable:
        return {"repr": named(value)}
    return value


def print_json(found: Mapping[str, Any]) -> None:
    """Print one object on one line, in ASCII."""
    print(json.dumps(found), flush=True)


def print_removed(removed: int, as_object: bool) -> None:
    """Print how many entries a command has removed, `as_object` as JSON."""
    if as_object:
        print_json({"removed": removed})
    else:
        print(f"{removed:,} entries removed")


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


class Progress:
    """A progress bar on a terminal, drawn by rich if it is installed; a single line if there is no terminal."""

    def __init__(self, name: str, total: int, unit: str = "look-ups") -> None:
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._drawn = 0.0
        self._bar: Bar | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not sys.stdout.isatty():
            print(f"{self._name}: {self._total:,} {self._unit} ...", flush=True)
            return self
        try:
            from rich.progress import Progress as Bar
        except ImportError:
            return self
        self._bar = self._stack.enter_context(Bar())
        self._bar.add_task(self._name.ljust(NAME_WIDTH), total=self._total)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.advance(self._total - self._done)
        self._stack.close()
        if self._bar is None and sys.stdout.isatty():
            print(flush=True)

    def advance(self, number: int) -> None:
        """Count `number` more as done."""
        self._done += number
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], number)
        elif sys.stdout.isatty() and (self._done == self._total or time.monotonic() - self._drawn > REDRAW_SECONDS):
            self._drawn = time.monotonic()
            print(f"\r{self._name}: {self._done / max(self._total, 1):4.0%}", end="", flush=True)


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


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print an empty line and a table with its first column aligned left and the others aligned right."""
    print()
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def percentiles(nanoseconds: Iterable[int]) -> tuple[str, ...]:
    """Return p50, p90, p99 and the maximum, in microseconds."""
    ordered = sorted(nanoseconds)
    picked = [ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99, 100)]
    return tuple(f"{number / 1_000:,.{number < 1_000_000:d}f}" for number in picked)  # a digit below a millisecond


def megabytes(size: int) -> str:
    """Return a size in bytes as text in megabytes."""
    return f"{size / 1_000_000:.1f} MB"
