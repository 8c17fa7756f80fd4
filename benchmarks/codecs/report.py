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
from benchmarks.report.results import image
from benchmarks.report.summaries import confidence
from benchmarks.report.tables import listed
from benchmarks.report.text import Table, between, duration

CHOICE, NUMBERS = "recommendation", "matrix"
IMAGES = Path("images", "codecs")
COLUMNS = ("codec", "encode", "interval", "decode", "interval", "encode MB/s", "decode MB/s", "bytes", "share")
COMPACT_SIZES = ("1KB", "100KB")
COMPACT_LEVELS = (None, 3)  # which the compact table shows of serializers other than the default


def tables(matrix: Matrix) -> Iterator[Table]:
    """Yield a table for each kind and size, and then what to choose."""
    for kind in matrix.kinds():
        for size in matrix.sizes():
            if cells := matrix.of(kind, size):
                yield cells_table(kind, size, cells)
    yield recommendation_table(matrix)


def cells_table(kind: str, size: str, cells: list[Cell]) -> Table:
    """Show every codec on values of one kind and size."""
    table = Table(f"{kind}, {unit_apart(size)}", COLUMNS)
    for cell in cells:
        spreads = [Spread.of(times) for times in (cell.encode, cell.decode)]
        times = (text for one in spreads for text in (duration(one.median), between(one, duration)))
        speeds = (f"{cell.speed(name):,.1f}" for name in ("encode", "decode"))
        table.rows.append((cell.subject.label, *times, *speeds, f"{cell.stored:,.0f}", percent(cell.share)))
    table.notes += [
        f"per value; medians over {confidence([Spread.of(cells[0].encode)])}",
        f"MB/s and share: of the value's msgpack without compression, {cells[0].plain:,.0f} bytes",
    ]
    return table


def recommendation_table(matrix: Matrix) -> Table:
    """Show what the rules choose."""
    table = Table("What to choose", ("for", "codec", "opened with", "time", "size"), left=3)
    for one in recommendations(matrix):
        time = "-" if one.time is None else f"{one.time.median:.2f}x"
        row = (one.rule.goal, one.chosen.subject.label, opened_with(one), time, percent(one.chosen.share))
        table.rows.append(row)
    table.notes += [
        f"Time: of encoding and decoding, as a multiple of {PLAIN.label} in the same repetition.",
        "Size: as a share of msgpack without compression.",
        "Both: geometric means over the values that the rule looks at.",
    ]
    if not table.rows:
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
    return f"{share * 100:.1f} %"


def compact_table(matrix: Matrix) -> Table:
    """Show records of two sizes: the default serializer with every compressor, the others with a choice."""
    sizes = [size for size in COMPACT_SIZES if matrix.of("records", size)]
    heads = [f"{unit_apart(size)}: {name}" for size in sizes for name in ("encode", "decode", "size")]
    table = Table("Records", ("codec", *heads))
    found = {(cell.subject, cell.size): cell for cell in matrix.cells if cell.kind == "records"}
    for subject in matrix.subjects:
        if subject.serializer == PLAIN.serializer or subject.level in COMPACT_LEVELS:
            row = [subject.label]
            for size in sizes:
                cell = found.get((subject, size))
                times = [cell.encode, cell.decode] if cell else []
                row += [*(duration(Spread.of(one).median) for one in times), percent(cell.share)] if cell else [""] * 3
            table.rows.append(row)
    return table


def facts_text(matrix: Matrix) -> str:
    """List the facts about machine and run, and what was left out."""
    facts = {**matrix.machine, **{name: str(value) for name, value in matrix.options.items()}}
    skipped = [f"skipped: {', '.join(labels)}: {reason}" for reason, labels in matrix.skipped.items()]
    return "\n".join([*listed(facts), *skipped]) + "\n"


def fill(path: Path, matrix: Matrix) -> list[str]:
    """Replace what a page says of codecs by what `matrix` does, and the heat maps beside it; return their names."""
    drawn = heatmap.draw(matrix, path.parent / IMAGES)
    table = recommendation_table(matrix).markdown().partition("\n\n")[2]  # the page has a heading of its own
    rules = ["<details>", "<summary>The rules that chose</summary>", "", rules_text(matrix), "", "</details>", ""]
    page.put(path, CHOICE, "\n".join([table, *rules]))
    lines = [compact_table(matrix).markdown()]
    for one in heatmap.MAPS:
        lines += [f"### {one.title}", "", one.note.capitalize() + ".", "", image(one.title, IMAGES / one.name), ""]
    page.put(path, NUMBERS, "\n".join([*lines, "### The run", "", "```text", facts_text(matrix).rstrip(), "```", ""]))
    return drawn
