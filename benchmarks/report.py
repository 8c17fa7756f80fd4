"""How it is told: aligned tables of plain text, and the facts about the machine that produced them."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.budgets import Outcome
from benchmarks.measure import Costs, Summary

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
PERCENTILES = ("p50", "p90", "p99", "p99.9", "max")


@dataclass
class Table:
    """A titled table; the first `left` columns are aligned left, the others right, and notes follow below."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 1

    def text(self) -> str:
        """Return the table as lines of text."""
        lines = [list(map(str, row)) for row in (self.columns, *self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        drawn = [self._line(line, widths) for line in lines]
        rule = "  ".join("-" * width for width in widths)
        body = [self.title, "", drawn[0], rule, *drawn[1:]]
        return "\n".join(body + [f"  {note}" for note in self.notes]) + "\n"

    def markdown(self) -> str:
        """Return the table as Markdown."""
        marks = [":--" if column < self.left else "--:" for column in range(len(self.columns))]
        rows = [[str(cell).replace("|", r"\|") for cell in row] for row in (self.columns, marks, *self.rows)]
        lines = [f"### {self.title}", "", *(f"| {' | '.join(row)} |" for row in rows)]
        return "\n".join([*lines, *(["", " ".join(self.notes)] if self.notes else [])]) + "\n"

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = (
            cell.ljust(width) if column < self.left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()


def duration(nanoseconds: float) -> str:
    """Write a duration with three significant digits and its unit."""
    for scale, unit in UNITS:
        number = nanoseconds / scale
        if number >= 0.9995 or unit == "ns":
            break
    # The bounds are where rounding would add a digit.
    digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
    return f"{number:.{digits}f} {unit}"


def size(count: float) -> str:
    """Write a number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def percentile_cells(summary: Summary) -> list[str]:
    """Return count and percentiles as cells; an operation that did not occur shows dashes."""
    if not summary.count:
        return ["0", *("-" for _ in PERCENTILES)]
    picked = (summary.p50, summary.p90, summary.p99, summary.p999, summary.max)
    return [f"{summary.count:,}", *map(duration, picked)]


def budget_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of budgets with what was measured."""
    table = Table("Budgets", ("", "measured", "lowest..highest", "must", "aim", "verdict"))
    for outcome in outcomes:
        budget = outcome.budget
        spread = "-" if outcome.low is None else f"{budget.show(outcome.low)}..{budget.show(outcome.high)}"
        bounds = (budget.show(budget.must), budget.show(budget.aim))
        table.rows.append((budget.label, budget.show(outcome.value), spread, *bounds, outcome.verdict))
    table.notes += [
        "measured: median of the repetitions. x: times faster for speeds (more is better), times as costly for growth",
        "and size_limit (less is better). Memcached and Redis: --only peers.",
    ]
    return table


def objectives_table(outcomes: Sequence[Outcome]) -> Table:
    """Show every objective with the interval of what was measured."""
    columns = ("objective", "measured", "interval", "confidence", "must", "aim", "verdict")
    table = Table("Latency objectives", columns)
    for outcome in outcomes:
        budget = outcome.budget
        bounds = (budget.show(budget.must), budget.show(budget.aim))
        table.rows.append((budget.label, budget.show(outcome.value), *_interval(outcome), *bounds, outcome.verdict))
    table.notes += [
        "measured: median of the repetitions. x: times faster for speeds (more is better), times as costly for growth",
        "and size_limit (less is better). Met or missed only if the whole interval is; otherwise unclear.",
    ]
    return table


def _interval(outcome: Outcome) -> tuple[str, str]:
    """Write the interval and its confidence; a single value, such as a maximum, has none."""
    if outcome.low is None or outcome.high is None:
        return "-", "-"
    if not outcome.coverage:
        return "one value", "-"
    show = outcome.budget.show
    return f"{show(outcome.low)}..{show(outcome.high)}", f"{outcome.coverage:.1%}"


def machine_facts(directory: Path, costs: Costs) -> dict[str, str]:
    """Describe the machine, the interpreter and the clock."""
    kind, mount = file_system(directory)
    return {
        "CPU": f"{_cpu_model()}, {_cores()} cores usable",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " before the run",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "directory": f"{directory} ({kind} on {mount})",
        "clock": f"one pair of readings costs {costs.clock:.0f} ns, one turn of a block's loop {costs.loop:.1f} ns; "
        "both are subtracted",
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())


def file_system(directory: Path) -> tuple[str, str]:
    """Return type and mount point of the file system that holds `directory`."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown", "unknown"
    path, best = directory.resolve(), ("unknown", "")
    for line in mounts:
        _, mount, kind, *_rest = line.split()
        mount = mount.replace("\\040", " ")
        if path.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (kind, mount)
    return best
