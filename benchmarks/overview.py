"""Measure how many times as long other stores take for a call, and draw one picture: `python -m benchmarks.overview`.

Single calls, get, set and delete, from one process and from eight, on values of 100 bytes to 1 MB, all subjects in
turn. The picture has a cell for each peer, size, call and number of processes, with its ratio in it: blue where
diskcache_like is faster and orange where the peer is, the deeper the more. `--docs PAGE.md` draws it beside that page
and puts it and what it says into the page's marked place.

Exit status: as `python -m benchmarks` has it.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import page
from benchmarks.__main__ import judged
from benchmarks.command import GOOD, add_amounts, amounts_of, follows, parser, run_as_command
from benchmarks.intervals import Spread
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report import panels, plots
from benchmarks.report.record import Record, ScenarioFacts, Trial, load
from benchmarks.report.results import IMAGES, OVERVIEW
from benchmarks.report.styles import BLUE, GREY, INK, ORANGE
from benchmarks.report.summaries import paired
from benchmarks.report.tables import machine_text
from benchmarks.report.text import NOTHING, Table
from benchmarks.workloads.calls import DELETE, GET, SET, Mix
from benchmarks.workloads.harness import Amounts, recorded
from benchmarks.workloads.scenarios import Scenario
from benchmarks.workloads.values import Bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHOSEN = ("cache", "diskcache", "memcached", "redis", "lmdb")
SHARES = {GET: 80, SET: 15, DELETE: 5}
KEYS = 50
USUAL = Amounts(repeats=7, operations=20_000, seconds=0.25, processes=8)
TITLE = "How many times as long as diskcache_like other stores take for a call"
OURS = "cache"
CALLS = ("get", "set", "delete")
SIZES = (100, 10_000, 1_000_000)
ROW, CELL, LABEL = 0.44, 0.72, 1.15  # inches
PERCENTILES = {"p50": 11.5, "p99": 9.0}  # what a cell tells, from above, and the size of its text
DEEPEST, PALEST, SATURATED = 0.75, 0.08, 100  # shares of the colour, and the ratio from which it is deepest
TEXT = 11.5


def scenarios(processes: int) -> dict[str, Scenario]:
    """Return the calls of one process and those of several at once, each over the sizes of values."""

    def all_of(count: int, step: int, most: int) -> int:
        return count

    return {
        f"overview-{count}": Scenario(
            ScenarioFacts(f"80 % get, 15 % set, 5 % delete of {KEYS} keys, {count} process(es)", TITLE, "bytes"),
            lambda size: Mix(KEYS, SHARES, Bytes(size)),
            CHOSEN,
            steps=SIZES,
            processes=partial(all_of, count),
        )
        for count in sorted({1, processes})
    }


@dataclass(frozen=True)
class Grid:
    """The ratios, by size, peer, call and number of processes, and which of each there are."""

    rows: list[tuple[int, str]]
    columns: list[tuple[str, int]]
    cells: dict[tuple[int, str, str, int], dict[str, Spread]]  # by percentile


def grid(record: Record) -> Grid:
    """Return how many times as long as ours each peer's calls took, repetitions paired."""
    cells: dict[tuple[int, str, str, int], dict[str, Spread]] = {}
    for scenario in record.scenarios:
        for size in record.steps(scenario):
            found = record.of(scenario, size)
            for name in found.keys() - {OURS}:
                for call in CALLS:
                    for each in PERCENTILES:
                        ratio = paired(_times(found[name], call, each), _times(found.get(OURS, []), call, each))
                        if ratio:
                            cells.setdefault((size, name, call, found[name][0].processes), {})[each] = ratio
    counts = sorted({count for *_, count in cells})
    names = [name for name in record.subjects if any(name == cell[1] for cell in cells)]
    rows = [(size, name) for size in sorted({size for size, *_ in cells}) for name in names]
    return Grid(rows, [(call, count) for call in CALLS for count in counts], cells)


def _times(trials: list[Trial], call: str, percentile: str) -> dict[int, float]:
    return {
        one.repetition: time for one in trials if call in one.calls and (time := getattr(one.calls[call], percentile))
    }


def table(record: Record) -> Table:
    """Return the ratios as text, with their intervals."""
    found = grid(record)
    made = Table(TITLE, ("bytes", "peer", "", *(f"{call}, {count}" for call, count in found.columns)), left=3)

    def told(spread: Spread | None) -> str:
        return f"{spread.median:.2f}x ({spread.interval.low:.2f}..{spread.interval.high:.2f})" if spread else NOTHING

    for size, name in found.rows:
        for percentile in PERCENTILES:
            cells = [found.cells.get((size, name, *column), {}).get(percentile) for column in found.columns]
            made.rows.append((f"{size:,}", record.label(name), percentile, *map(told, cells)))
    made.notes += [explanation(record), "in brackets: interval of the median over the repetitions"]
    made.notes += [f"{record.label(one.subject)} left out: {one.reason}" for one in record.absences]
    return made


def publish(record: Record, target: Path) -> None:
    """Draw the picture beside a page, and put it into the page's marked place."""
    images = IMAGES if target.parent.name == "docs" else Path("docs") / IMAGES
    picture(record, target.parent / images)
    text = f"![{TITLE}]({(images / OVERVIEW).as_posix()}.svg)\n\n{explanation(record)}\n"
    page.put(target, OVERVIEW, text)


def explanation(record: Record) -> str:
    """Say in a sentence or two what the numbers are."""
    repeats = record.options.get("repeats", 1)
    return (
        "A call's time divided by diskcache_like's, at the median and, below it, at the 99th percentile: 1x is equal, "
        "above 1x (blue) diskcache_like is faster, below 1x (orange) the other one is; no colour where the interval of "
        "the repetitions contains 1x. "
        f"Medians of {repeats} interleaved repetitions, 80 % get, 15 % set, 5 % delete, 1 and "
        f"{record.options.get('processes', 1)} processes, on {record.machine.get('CPU', 'one machine')}; "
        "servers on Unix sockets, all processors kept awake."
    )


def size_text(count: int) -> str:
    """Write a number of bytes in decimal units, as the sizes of values are round in them."""
    for scale, unit in ((10**6, "MB"), (10**3, "KB")):
        if count >= scale:
            return f"{count / scale:g} {unit}"
    return f"{count} B"


def ratio_text(ratio: float) -> str:
    """Write a ratio with two digits, or all of those before the point."""
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2
    return f"{ratio:,.{digits}f}x"


def shade(spread: Spread) -> tuple[float, float, float]:
    """Return the colour of a cell as shares of red, green and blue; white if its interval contains 1."""
    if spread.interval.low <= 1 <= spread.interval.high:
        return (1.0, 1.0, 1.0)
    colour = BLUE if spread.median > 1 else ORANGE
    deep = PALEST + (DEEPEST - PALEST) * min(abs(math.log(spread.median)) / math.log(SATURATED), 1)
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return (1 - deep + deep * red, 1 - deep + deep * green, 1 - deep + deep * blue)


def picture(record: Record, directory: Path) -> None:
    """Draw the picture into `directory` as PNG and SVG."""
    found = grid(record)
    sizes = list(dict.fromkeys(size for size, _ in found.rows))
    lines = len(found.rows) + len(sizes)
    wide, high = LABEL + CELL * len(found.columns), ROW * (lines + 4)
    with panels.styled():
        from matplotlib.figure import Figure

        made = Figure(figsize=(wide, high))
        axes = made.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, wide), ylim=(high / ROW, 0))
        axes.set_axis_off()
        _words(axes, found)
        for place, size in enumerate(sizes):
            top = 3.8 + place * (len(found.rows) / len(sizes) + 1)
            axes.text(0.08, top + 0.55, f"values of {size_text(size)}", va="center", fontsize=TEXT, weight="bold")
            for number, row in enumerate(row for row in found.rows if row[0] == size):
                _row(axes, record, found, row, top + 1 + number)
        made.set_layout_engine("none")
        plots.save(made, directory, OVERVIEW)


def _words(axes: Axes, found: Grid) -> None:
    """Write title, headings, and what the colours mean."""
    title = "Time per call, as a multiple of diskcache_like's"
    axes.text(0.08, 0.75, title, va="center", fontsize=13, weight="bold")
    for at, colour, text in ((0.08, BLUE, "diskcache_like is faster"), (2.55, ORANGE, "the other one is faster")):
        axes.text(at, 1.75, "\u25a0", va="center", fontsize=TEXT + 3, color=colour)
        axes.text(at + 0.2, 1.75, text, va="center", fontsize=TEXT)
    axes.text(0.08, 3.7, "p50, below: p99", va="center", fontsize=8)
    counts = len({count for _, count in found.columns})
    centred: Any = {"ha": "center", "va": "center"}
    for place, (call, count) in enumerate(found.columns):
        middle = LABEL + CELL * (place + 0.5)
        if place % counts == 0:
            axes.text(middle + CELL * (counts - 1) / 2, 2.75, call, weight="bold", fontsize=12, **centred)
        axes.text(middle, 3.7, "1 process" if count == 1 else f"{count} proc.", fontsize=9.5, **centred)


def _row(axes: Axes, record: Record, found: Grid, row: tuple[int, str], top: float) -> None:
    from matplotlib.patches import Rectangle

    name = record.label(row[1]).split()[0]
    axes.text(0.08, top + 0.5, name, va="center", fontsize=TEXT)
    for place, (call, count) in enumerate(found.columns):
        told, left = found.cells.get((*row, call, count), {}), LABEL + CELL * place
        for half, (percentile, font) in enumerate(PERCENTILES.items()):
            above, spread = top + 0.05 + 0.45 * half, told.get(percentile)
            text, colour = (NOTHING, GREY) if spread is None else (ratio_text(spread.median), INK)
            if spread is not None:
                axes.add_patch(Rectangle((left + 0.02, above), CELL - 0.04, 0.45, color=shade(spread), lw=0))
            axes.text(left + CELL / 2, above + 0.24, text, ha="center", va="center", color=colour, fontsize=font)


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.overview", __doc__, "directory", "out", "docs")
    add_amounts(made, USUAL, "repeats", "operations", "seconds", "processes")
    told = "measure nothing; draw what an earlier run recorded"
    made.add_argument("--record", type=Path, metavar="FILE", help=told)
    return made


def run(asked: argparse.Namespace) -> int:
    """Measure or read, print the ratios, and draw them."""
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.record:
        record, status = load(asked.record), GOOD
    else:
        amounts = amounts_of(asked, USUAL)
        record = recorded(
            scenarios(amounts.processes), CHOSEN, amounts, asked.directory, asked.out / f"{OVERVIEW}.json"
        )
        status = judged(record)
    print(machine_text(record), table(record).text(), sep="\n")
    picture(record, asked.out)
    if asked.docs:
        publish(record, asked.docs)
    return status


main = follows(options, run, BenchmarkError, OVERVIEW)


if __name__ == "__main__":
    run_as_command(main)
