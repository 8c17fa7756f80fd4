"""Drawing primitives: dots or bars for each subject, percentile curves, and lines over the steps of a scenario.

They know nothing of records, only of labels and spreads. matplotlib is imported where it is needed, so that tables need
none.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmarks.intervals import Spread
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report.styles import GREY, INK, SETTINGS, WIDTH, Look, tick_count, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FLOOR = 1.0  # a logarithmic axis has no zero; below a nanosecond, a byte or an operation per second is nothing to see
LINE_LIMIT = 10  # in a panel
ROOM = 0.11  # share of a figure's width that a value beside a dot takes on either side
MOST_ROOM = 0.28  # of a panel's width: the dots get the rest
TITLE_CHARACTERS, NOTE_CHARACTERS = 78, 120  # in a line of a figure, in the sizes of `figure`
MARKED = (0.5, 0.1, 0.01, 0.001)  # shares of slower calls that get a marker and an error bar
SHARES = {0.5: "50 %", 0.1: "90 %", 0.01: "99 %", 1e-3: "99.9 %", 1e-4: "99.99 %", 1e-5: "99.999 %"}


@dataclass(frozen=True)
class Quantity:
    """What an axis shows, and how its ticks and the values on it are written."""

    label: str
    tick: Callable[[float], str]
    value: Callable[[float], str]
    logarithmic: bool = True


@dataclass(frozen=True)
class Line:
    """One subject's line, and how it looks."""

    label: str
    look: Look
    points: Sequence[tuple[float, Spread]]
    slowest: float = 0.0


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the settings of this project and none of the user's."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise BenchmarkError(
            f"plots need matplotlib ({error}); install it with: pip install 'diskcache-like[plots]'"
        ) from error
    with style.context(["default", SETTINGS]):
        yield


def figure(title: str, note: str, height: float) -> Figure:
    """Return an empty figure with its title above and its note below."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH, height), layout="constrained")
    made.suptitle(textwrap.fill(title, TITLE_CHARACTERS), x=0.01, ha="left", fontsize=12, fontweight="bold")
    made.supxlabel(textwrap.fill(note, NOTE_CHARACTERS), x=0.01, ha="left", fontsize=8.5)
    return made


def beside(labels: Sequence[str], limit: int) -> list[list[str]]:
    """Split subjects into panels of about the same size, at most `limit`, the first one, the product, in each."""
    if len(labels) <= limit:
        return [list(labels)]
    first, *others = labels
    count = -(-len(others) // (limit - 1))
    ends = [len(others) * part // count for part in range(count + 1)]
    return [[first, *others[low:high]] for low, high in pairwise(ends)]


def bounds(spreads: Iterable[Spread | None], extra: Iterable[float] = ()) -> tuple[float, float]:
    """Return whole powers of ten around everything that is drawn."""
    ends = [end for spread in spreads if spread for end in (spread.median, *spread.interval[:2])]
    seen = [min(max(end, FLOOR), 1e300) for end in (*ends, *extra)] or [FLOOR]
    # The logarithm of what is next to a power of ten may be rounded to it.
    low = math.floor(math.log10(min(seen)))
    low -= 10.0**low > min(seen)
    high = max(math.ceil(math.log10(max(seen))), low + 1)
    return 10.0**low, 10.0 ** (high + (10.0**high < max(seen)))


def ticks(axis: Axis, quantity: Quantity, most: int) -> None:
    """Give an axis about `most` ticks with units: decades, a fine line for each, or multiples of a power of two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: quantity.tick(value)))
    if not quantity.logarithmic:
        axis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(axis.get_view_interval()[1] / (most + 1)))))
        return
    axis.set_major_locator(LogLocator(numticks=most))
    axis.set_minor_locator(LogLocator(numticks=99))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)
    axis.grid(which="minor", linewidth=0.4)


def whiskers(spreads: Sequence[Spread], floor: float) -> list[tuple[float, ...]] | None:
    """Return how far the intervals reach below and above the medians, as drawn."""
    drawn = [[max(value, floor) for value in (one.median, *one.interval[:2])] for one in spreads]
    return list(zip(*((median - low, high - median) for median, low, high in drawn), strict=True)) or None


Column = Mapping[str, Sequence[Spread | None]]


def bars(
    title: str,
    note: str,
    columns: Mapping[str, Column],
    names: Sequence[str],
    quantity: Quantity,
    looks: Mapping[str, Look],
) -> Figure:
    """Draw a row for each subject with its values: dots on a logarithmic axis, bars on one that begins at zero.

    `columns` has a panel for each of its keys; `looks` says by label which colour a subject has.
    """
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    lines = max(wrapped(label).count("\n") + 1 for label in labels)
    height = len(labels) * max(0.32, 0.16 * lines + 0.08) + 1.7
    named = f": {', '.join(names)} from left to right" if len(names) > 1 else ""
    made = figure(title, note + named, height)
    grid: Any = made.subplots(1, len(columns), sharey=True, squeeze=False)
    for axes, (heading, column) in zip(grid[0], columns.items(), strict=True):
        limits = bar_limits([one for group in column.values() for one in group], quantity, len(columns))
        axes.set(xscale="log" if quantity.logarithmic else "linear", xlim=limits, title=heading)
        axes.set_ylim(len(labels) - 0.5, -0.5)  # the first subject on top
        axes.set_yticks(range(len(labels)), [wrapped(label) for label in labels])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        for row, label in enumerate(labels):
            known = [spread for spread in column.get(label, ()) if spread]
            if any(spread.median > 0 for spread in known):
                (dots if quantity.logarithmic else bar)(axes, row, known, quantity, looks[label].colour)
            else:
                text = " 0" if known else " not measured"
                axes.text(limits[0], row, text, va="center", ha="left", color=GREY, fontsize=8.5)
        ticks(axes.xaxis, quantity, max(7 // len(columns), 2))
        axes.set_xlabel(quantity.label)
    return made


def bar_limits(spreads: Sequence[Spread | None], quantity: Quantity, columns: int) -> tuple[float, float]:
    """Return the ends of the axis, with room for the values beside the dots or bars."""
    if quantity.logarithmic:
        ends = [max(end, FLOOR) for spread in spreads if spread for end in spread.interval[:2]] or [FLOOR]
        low, high, share = min(ends), max(ends), min(ROOM * columns, MOST_ROOM)
        room: float = max(high / low, 10) ** (share / (1 - 2 * share))
        return low / room, high * room
    return 0, max([spread.interval.high for spread in spreads if spread] + [FLOOR]) * 1.4


def dots(axes: Axes, row: int, known: Sequence[Spread], quantity: Quantity, colour: str) -> None:
    """Draw one subject's values as dots, the first one full, and write the first and the last beside them."""
    ends, rows = [max(spread.median, FLOOR) for spread in known], [row] * len(known)
    axes.plot(ends, rows, color=colour, linewidth=1.2)
    axes.errorbar(ends, rows, xerr=whiskers(known, FLOOR), fmt="none", ecolor=colour, elinewidth=1, capsize=3)
    for place, end in enumerate(ends):
        fill = colour if place == 0 else "white"
        axes.plot([end], [row], marker="o", markersize=7 - 1.5 * (place == 1), color=colour, markerfacecolor=fill)
    written = {0: "right", len(ends) - 1: "left"} if len(ends) > 1 else {0: "left"}
    for place, side in written.items():
        end = known[place].interval[0 if side == "right" else 1]
        _write(axes, quantity.value(known[place].median), (max(end, FLOOR), row), side)


def bar(axes: Axes, row: int, known: Sequence[Spread], quantity: Quantity, colour: str) -> None:
    """Draw one subject's value as a bar from zero, and write it at its end."""
    axes.barh(row, known[0].median, 0.6, color=colour)
    reach = whiskers(known[:1], 0)
    axes.errorbar([known[0].median], [row], xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    _write(axes, quantity.value(known[0].median), (known[0].interval.high, row), "left")


def _write(axes: Axes, text: str, spot: tuple[float, float], side: str) -> None:
    away = (-6 if side == "right" else 6, 0)
    axes.annotate(text, spot, away, textcoords="offset points", va="center", ha=side, fontsize=8.5)


def line_rows(
    title: str, note: str, lines: Sequence[Line], columns: int = 1
) -> tuple[Figure, list[tuple[list[Any], list[Line]]]]:
    """Return a figure with a row of panels for each part of the lines, all on the same axes."""
    by_label = {line.label: line for line in lines}
    split = beside(list(by_label), LINE_LIMIT)
    made = figure(title, note, 3.1 * len(split) + 0.9)
    grid: Any = made.subplots(len(split), columns, sharex=True, sharey=True, squeeze=False)
    return made, [(list(row), [by_label[name] for name in part]) for row, part in zip(grid, split, strict=True)]


def legend_beside(axes: Axes) -> None:
    """Name the lines to the right of a panel, where they cover nothing."""
    handles, labels = axes.get_legend_handles_labels()
    places: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.02), "borderaxespad": 0}
    axes.legend(handles, [wrapped(label) for label in labels], handlelength=3.6, labelspacing=0.45, **places)


def draw_line(axes: Axes, line: Line, marked: Sequence[int]) -> None:
    """Draw one line, with markers and error bars at the marked points."""
    style, spreads = line.look, [spread for _, spread in line.points]
    across, up = [step for step, _ in line.points], [max(spread.median, FLOOR) for spread in spreads]
    shape = {"linestyle": style.dashes, "marker": style.marker, "markevery": list(marked)}
    axes.plot(across, up, color=style.colour, label=line.label, **shape)
    spots = [across[place] for place in marked], [up[place] for place in marked]
    reach = whiskers([spreads[place] for place in marked], FLOOR)
    axes.errorbar(*spots, yerr=reach, fmt="none", ecolor=style.colour, elinewidth=1, capsize=2.5)


def curves(title: str, note: str, lines: Sequence[Line], quantity: Quantity) -> Figure:
    """Draw percentile curves: to the right ever fewer calls, on a logarithmic axis, and last the slowest of all."""
    made, rows = line_rows(title, note, lines)
    rarest = min((share for line in lines for share, _ in line.points), default=0.5)
    end = rarest / 4
    limits = bounds((spread for line in lines for _, spread in line.points), [line.slowest for line in lines])
    for (axes,), part in rows:
        axes.set(xscale="log", yscale="log", xlim=(1.15, end / 1.4), ylim=limits)
        ticks(axes.yaxis, quantity, 7)
        shares = {share: text for share, text in SHARES.items() if share >= rarest} | {end: "slowest"}
        axes.set_xticks(list(shares), list(shares.values()))
        axes.xaxis.minorticks_off()
        axes.set_ylabel(quantity.label)
        for line in part:
            draw_line(axes, line, [place for place, (share, _) in enumerate(line.points) if share in MARKED])
            (share, spread), top = line.points[-1], max(line.slowest, FLOOR)
            way = [share, end], [max(spread.median, FLOOR), top]
            axes.plot(*way, color=line.look.colour, linestyle=":", linewidth=1)
            axes.plot([end], [top], color=line.look.colour, marker=line.look.marker, linestyle="none")
        legend_beside(axes)
    rows[-1][0][0].set_xlabel("percentile: this share of the calls was at least as fast (logarithmic in the rest)")
    return made


def over_steps(
    title: str, note: str, columns: Mapping[str, Sequence[Line]], across: Quantity, quantity: Quantity
) -> Figure:
    """Draw lines over the steps of a scenario, a column of panels for each key of `columns`."""
    every = [line for lines in columns.values() for line in lines]
    made, rows = line_rows(title, note, list({line.label: line for line in every}.values()), len(columns))
    steps = sorted({step for line in every for step, _ in line.points})
    limits = bounds(spread for line in every for _, spread in line.points)
    for row, part in rows:
        shown = {line.label for line in part}
        for axes, (heading, lines) in zip(row, columns.items(), strict=True):
            axes.set(yscale="log", ylim=limits, title=heading)
            ticks(axes.yaxis, quantity, 7)
            for line in lines:
                if line.label in shown:
                    draw_line(axes, line, range(len(line.points)))
            if min(steps) > 0:  # a logarithmic axis has no place for no rest
                axes.set_xscale("log")
            axes.set_xticks(list(steps), [tick_count(step) for step in steps])
            axes.xaxis.minorticks_off()
            axes.margins(x=0.08)
        row[0].set_ylabel(quantity.label)
        legend_beside(row[-1])
    for axes in rows[-1][0]:
        axes.set_xlabel(across.label)
    return made
