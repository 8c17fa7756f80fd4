"""How it is written: aligned tables of plain text or Markdown, durations, sizes, intervals, and the objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.budgets import Outcome
from benchmarks.intervals import Spread

NOTHING = "-"
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


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


def between(spread: Spread | None, show: Callable[[float], str]) -> str:
    """Write an interval; a single repetition has none."""
    if spread is None or spread.repetitions < 2:
        return NOTHING
    return f"{show(spread.interval.low)}..{show(spread.interval.high)}"


def objectives_table(outcomes: Sequence[Outcome], *notes: str) -> Table:
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
        *notes,
    ]
    return table


def _interval(outcome: Outcome) -> tuple[str, str]:
    """Write the interval and its confidence; a single value, such as a maximum, has none."""
    if outcome.low is None or outcome.high is None:
        return NOTHING, NOTHING
    if not outcome.coverage:
        return "one value", NOTHING
    show = outcome.budget.show
    return f"{show(outcome.low)}..{show(outcome.high)}", f"{outcome.coverage:.1%}"
