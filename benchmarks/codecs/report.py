"""The matrix as tables, and as the part of a page of documentation that is filled from the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import page
from benchmarks.codecs import heatmap
from benchmarks.codecs.choice import PLAIN, Recommendation, recommendations
from benchmarks.codecs.matrix import Cell, Matrix
from benchmarks.codecs.values import unit_apart
from benchmarks.intervals import Spread
from benchmarks.repetitions import confidence
from benchmarks.report import Table, duration
from benchmarks.tables import between

CHOICE, NUMBERS = "recommendation", "matrix"
IMAGES = Path("images", "codecs")
COLUMNS = ("codec", "encode", "interval", "decode", "interval", "encode MB/s", "decode MB/s", "bytes", "share")
COMPACT_SIZES = ("1KB", "100KB")
COMPACT_LEVELS = (None, 3)
"""Levels that the compact table shows of serializers other than the default."""


def tables(matrix: Matrix) -> Iterator[Table]:
    """Yield a table for each kind and size, and then what to choose."""
    for kind in matrix.kinds():
        for size in matrix.sizes():
            cells = matrix.of(kind, size)
            if cells:
                yield cells_table(kind, size, cells)
    yield recommendation_table(matrix)


def cells_table(kind: str, size: str, cells: list[Cell]) -> Table:
    """Show every codec on values of one kind and size."""
    table = Table(f"{kind}, {unit_apart(size)}", COLUMNS)
    for cell in cells:
        encode, decode = Spread.of(cell.encode), Spread.of(cell.decode)
        times = (text for one in (encode, decode) for text in (duration(one.median), between(one, duration)))
        speeds = (f"{cell.speed(name):,.1f}" for name in ("encode", "decode"))
        table.rows.append((cell.subject.label, *times, *speeds, f"{cell.stored:,.0f}", percent(cell.share)))
    table.notes += [
        f"per value; medians over {confidence([Spread.of(cells[0].encode)])}",
        f"MB/s and share: of the value's msgpack without compression, {cells[0].plain:,.0f} bytes",
    ]
    return table


def recommendation_table(matrix: Matrix) -> Table:
    """Show what the rules choose."""
    found = list(recommendations(matrix))
    table = Table("What to choose", ("for", "codec", "opened with", "time", "size"), left=3)
    for one in found:
        time = "-" if one.time is None else f"{one.time.median:.2f}x"
        table.rows.append((one.rule.goal, one.chosen.subject.label, opened_with(one), time, percent(one.share)))
    table.notes += [
        f"Time: of encoding and decoding, as a multiple of {PLAIN.label} in the same repetition.",
        "Size: as a share of msgpack without compression.",
        "Both: geometric means over the values that the rule looks at.",
    ]
    if not found:
        table.notes.append("No rule found all of the values that it looks at among those that were measured.")
    return table


def rules_text(matrix: Matrix) -> str:
    """List the rules that chose."""
    return "\n".join(f"- {one.rule.goal}: {one.rule.rule}" for one in recommendations(matrix))


def opened_with(one: Recommendation) -> str:
    """Write how a cache with a recommended codec is opened."""
    arguments = [f"{name}={value!r}" for name, value in one.chosen.subject.arguments.items()]
    return f"`Cache({', '.join(['directory', *arguments])})`"


def percent(share: float) -> str:
    """Write a share."""
    return f"{share * 100:.1f} %"


def compact_table(matrix: Matrix) -> Table:
    """Show records of two sizes: the default serializer with every compressor, the others with a choice."""
    sizes = [size for size in COMPACT_SIZES if matrix.of("records", size)]
    heads = [f"{unit_apart(size)}: {name}" for size in sizes for name in ("encode", "decode", "size")]
    table = Table("Records", ("codec", *heads))
    found = {(cell.subject, cell.size): cell for cell in matrix.cells if cell.kind == "records"}
    for subject in matrix.subjects:
        if subject.serializer == PLAIN.serializer or subject.level in COMPACT_LEVELS:
            texts = [text for size in sizes for text in _compact(found.get((subject, size)))]
            table.rows.append((subject.label, *texts))
    return table


def _compact(cell: Cell | None) -> tuple[str, ...]:
    if cell is None:
        return ("", "", "")
    return (*(duration(Spread.of(times).median) for times in (cell.encode, cell.decode)), percent(cell.share))


def facts_text(matrix: Matrix) -> str:
    """List the facts about machine and run, and what was left out."""
    facts = {**matrix.machine, **{name: str(value) for name, value in matrix.options.items()}}
    width = max(map(len, facts), default=0)
    lines = [f"{name.ljust(width)}  {value}" for name, value in facts.items()]
    return "\n".join([*lines, *skipped(matrix)]) + "\n"


def skipped(matrix: Matrix) -> list[str]:
    """Name the codecs that were left out, and what to install for them."""
    return [f"skipped: {', '.join(labels)}: {reason}" for reason, labels in matrix.skipped.items()]


def fill(path: Path, matrix: Matrix) -> list[str]:
    """Replace what a page says of codecs by what `matrix` does, and the heat maps beside it; return their names.

    A page without a place for each stays as it is.
    """
    for mark in (CHOICE, NUMBERS):
        page.marked(path, mark)
    drawn = heatmap.draw(matrix, path.parent / IMAGES)
    page.put(path, CHOICE, choice_text(matrix))
    page.put(path, NUMBERS, numbers_text(matrix))
    return drawn


def choice_text(matrix: Matrix) -> str:
    """Return the recommendation as Markdown, and folded up the rules."""
    table = recommendation_table(matrix).markdown().partition("\n\n")[2]  # the page has a heading of its own
    return "\n".join(
        [table, "<details>", "<summary>The rules that chose</summary>", "", rules_text(matrix), "", "</details>", ""]
    )


def numbers_text(matrix: Matrix) -> str:
    """Return the compact table, the heat maps, and the facts about the run as Markdown."""
    lines = [compact_table(matrix).markdown()]
    for one in heatmap.MAPS:
        place = (IMAGES / one.name).as_posix()
        lines += [f"### {one.title}", "", one.note.capitalize() + ".", ""]
        lines += [f"![{one.title}]({place}.svg)", "", f"[{one.title} (PNG)]({place}.png)", ""]
    return "\n".join([*lines, "### The run", "", "```text", facts_text(matrix).rstrip(), "```", ""])
