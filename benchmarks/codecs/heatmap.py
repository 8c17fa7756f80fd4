"""The matrix as heat maps: a row for each codec, columns of sizes for each kind, the number in every field.

The colours are those of cividis, which look alike to everyone, and bright is good in each map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.codecs.matrix import Cell, Matrix
from benchmarks.codecs.values import unit_apart
from benchmarks.report import panels, plots
from benchmarks.report.styles import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "cividis"
ROW = 0.172  # inches
FIELD_FONT, LABEL_FONT = 6.0, 7.5
UNITS = ((1e6, "M"), (1e3, "k"), (1.0, ""))
DARK = 0.55  # of the range of colours; text is white below


@dataclass(frozen=True)
class Map:
    """One measure as a heat map: how a field is coloured (0 worst, 1 best) and written."""

    name: str
    title: str
    note: str
    measure: Callable[[Cell], float]
    write: Callable[[float], str]
    shade: Callable[[float], float]


def short(number: float) -> str:
    """Write a number with two digits or three, thousands as k and millions as M."""
    scale, unit = next((pair for pair in UNITS if number >= 0.9995 * pair[0]), UNITS[-1])
    number /= scale
    return f"{number:.0f}{unit}" if number >= 9.95 else f"{number:.1f}{unit}"


def _of_decades(speed: float) -> float:
    """Place 1 to 10,000 megabytes per second between 0 and 1."""
    return min(max(math.log10(max(speed, 1.0)) / 4, 0.0), 1.0)


SHARE_NOTE = "in per cent of the value's msgpack without compression; bright is small"
SPEED_NOTE = "megabytes of the value's uncompressed msgpack per second; k: thousands, M: millions; bright is fast"
MAPS = (
    Map(
        "share",
        "Bytes stored",
        SHARE_NOTE,
        lambda cell: cell.share,
        lambda share: f"{share * 100:.0f}",
        lambda share: 1 - min(share / 1.25, 1.0),
    ),
    Map("encode", "Speed of encoding", SPEED_NOTE, lambda cell: cell.speed("encode"), short, _of_decades),
    Map("decode", "Speed of decoding", SPEED_NOTE, lambda cell: cell.speed("decode"), short, _of_decades),
)


def draw(matrix: Matrix, directory: Path) -> list[str]:
    """Draw all heat maps into `directory` and return their names."""
    with panels.styled():
        for one in MAPS:
            plots.save(figure(matrix, one), directory, one.name)
    return [one.name for one in MAPS]


def figure(matrix: Matrix, one: Map) -> Figure:
    """Draw one heat map."""
    subjects, kinds, sizes = matrix.subjects, matrix.kinds(), matrix.sizes()
    made = panels.figure(one.title, one.note, ROW * len(subjects) + 1.35)
    grid: Any = made.subplots(1, len(kinds), sharey=True, squeeze=False)
    rows = {subject: row for row, subject in enumerate(subjects)}
    for axes, kind in zip(grid[0], kinds, strict=True):
        shades = [[math.nan] * len(sizes) for _ in subjects]
        for column, size in enumerate(sizes):
            for cell in matrix.of(kind, size):
                row, value = rows[cell.subject], one.measure(cell)
                shade = shades[row][column] = one.shade(value)
                colour = "white" if shade < DARK else INK
                axes.text(column, row, one.write(value), color=colour, fontsize=FIELD_FONT, ha="center", va="center")
        axes.imshow(shades, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_title(kind)
        axes.set_xticks(range(len(sizes)), [unit_apart(size) for size in sizes], rotation=90, fontsize=LABEL_FONT)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        for row in range(1, len(subjects)):
            if subjects[row].serializer != subjects[row - 1].serializer:
                axes.axhline(row - 0.5, color="white", linewidth=3)
    grid[0][0].set_yticks(range(len(subjects)), [subject.label for subject in subjects], fontsize=LABEL_FONT)
    return made
