"""A record as plots, each as PNG and SVG, and the same files from the same record every time.

For each scenario: dots at p50, p90 and p99 of every call, percentile curves up to the slowest call, memory and disk.
For a scenario with steps also: throughput and cost over the steps. Error bars are confidence intervals of the median
over repetitions (`benchmarks.intervals`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.intervals import Spread
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report import panels
from benchmarks.report.panels import Line, Quantity
from benchmarks.report.record import Record, Trial
from benchmarks.report.styles import Look, look_of, tick_count, tick_duration, tick_rate, tick_size
from benchmarks.report.summaries import (
    NAMES,
    call_names,
    confidence,
    curve_spreads,
    disk,
    heading,
    memory,
    percentile_spread,
    slowest,
    throughput,
)
from benchmarks.report.text import duration, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
SHADES = 256
SHOWN = ("p50", "p90", "p99")
TIME = Quantity("time per call", tick_duration, duration)
RATE = Quantity("operations per second, all processes", tick_rate, tick_rate)
BYTES = Quantity("size in bytes", tick_size, size, logarithmic=False)
BARS, CURVES, THROUGHPUT, COST, SIZE = "bars", "curves", "throughput", "cost", "size"
COLUMN_LIMIT = 3
Found = dict[str, list[Trial]]


@dataclass(frozen=True)
class Drawing:
    """One plot that a record has the numbers for; `figure` draws it."""

    title: str
    kind: str
    scenario: str
    step: int | None
    call: str
    figure: Callable[[str], Figure]

    @property
    def name(self) -> str:
        """Return the name of its files."""
        words = (self.scenario, "" if self.step is None else str(self.step), self.call, self.kind)
        return "-".join(re.sub(r"[^\w.]+", "-", word) for word in words if word)


def draw(
    record: Record,
    directory: Path,
    formats: Iterable[str] = FORMATS,
    chosen: Callable[[Drawing], bool] = lambda drawing: True,
) -> list[Drawing]:
    """Draw the chosen plots into `directory`, and return them."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise BenchmarkError(f"unknown format of plots: {', '.join(unknown)}; known: {', '.join(FORMATS)}")
    drawn = [drawing for drawing in drawings(record) if chosen(drawing)]
    with panels.styled():
        for drawing in drawn:
            save(drawing.figure(drawing.title), directory, drawing.name, formats)
    return drawn


def save(figure: Figure, directory: Path, name: str, formats: Iterable[str] = FORMATS) -> None:
    """Save a figure into `directory`, in each format the same arrangement."""
    directory.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # else each format arranges everything anew
    if "svg" in formats:
        figure.savefig(directory / f"{name}.svg", format="svg", metadata={"Date": None, "Creator": None})
    if "png" in formats:  # with a palette: a third of the size, and plots are kept under version control
        from PIL import Image  # which comes with matplotlib

        pixels = BytesIO()
        figure.savefig(pixels, format="png")
        with Image.open(pixels) as image:
            image.convert("RGB").quantize(SHADES).save(directory / f"{name}.png", format="png", optimize=True)


def drawings(record: Record) -> Iterator[Drawing]:
    """Yield every plot that the record has the numbers for."""
    for scenario in record.scenarios:
        steps = record.steps(scenario)
        for step in steps:
            yield from _of_step(record, scenario, step if record.scenarios[scenario].step else None)
        if len(steps) > 1:
            yield from _over_steps(record, scenario, steps)


def _of_step(record: Record, scenario: str, step: int | None) -> Iterator[Drawing]:
    found, title = record.of(scenario, step), heading(record, scenario, step)

    def made(what: str, kind: str, call: str, figure: Callable[[str], Figure]) -> Drawing:
        return Drawing(f"{title}: {what}", kind, scenario, step, call, figure)

    calls = call_names(found)
    for number in range(0, len(calls), COLUMN_LIMIT):
        some = calls[number : number + COLUMN_LIMIT]
        yield made("time per call", BARS, "-".join(some), partial(_bars, record, found, some))
    for call in calls:
        yield made(f"{call}, all percentiles", CURVES, call, partial(_curves, record, found, call))
    if any(trial.disk_bytes or trial.peak_memory for trials in found.values() for trial in trials):
        yield made("disk and memory", SIZE, "", partial(_sizes, record, found))


def _over_steps(record: Record, scenario: str, steps: Sequence[int]) -> Iterator[Drawing]:
    facts = record.scenarios[scenario]
    across = Quantity(facts.step or "step", tick_count, tick_count)
    found = {step: record.of(scenario, step) for step in steps}

    def made(what: str, kind: str, call: str, figure: Callable[[str], Figure]) -> Drawing:
        return Drawing(f"{facts.title}: {what} against {across.label}", kind, scenario, None, call, figure)

    if any(throughput(trials) for subjects in found.values() for trials in subjects.values()):
        yield made("throughput", THROUGHPUT, "", partial(_throughput, record, found, across))
    for call in call_names(record.of(scenario)):
        yield made(f"time of {call}", COST, call, partial(_cost, record, found, call, across))


def _note(spreads: Iterable[Spread | None], shown: str) -> str:
    return f"{shown}: medians over {confidence(spreads)}"


def _bars(record: Record, found: Found, calls: Sequence[str], title: str) -> Figure:
    columns = {
        call: {
            record.label(name): [percentile_spread(trials, call, percentile) for percentile in SHOWN]
            for name, trials in found.items()
        }
        for call in calls
    }
    first = [group[0] for column in columns.values() for group in column.values()]
    return panels.bars(title, _note(first, "dots"), columns, SHOWN, TIME, _looks(record))


def _curves(record: Record, found: Found, call: str, title: str) -> Figure:
    lines = [
        Line(record.label(name), _look(record, name), points, slowest(trials, call))
        for name, trials in found.items()
        if (points := curve_spreads(trials, call))
    ]
    note = _note((line.points[0][1] for line in lines), "curves") + "; slowest: of all repetitions"
    return panels.curves(title, note, lines, TIME)


def _sizes(record: Record, found: Found, title: str) -> Figure:
    columns = {
        heading: {record.label(name): [measure(trials)] for name, trials in found.items()}
        for heading, measure in (("on disk", disk), ("peak memory", memory))
    }
    first = [group[0] for group in columns["on disk"].values()]
    return panels.bars(title, _note(first, "bars"), columns, ("",), BYTES, _looks(record))


def _throughput(record: Record, found: dict[int, Found], across: Quantity, title: str) -> Figure:
    lines = _lines(record, found, throughput)
    note = _note((spread for line in lines for _, spread in line.points), "points")
    return panels.over_steps(title, note, {"": lines}, across, RATE)


def _cost(record: Record, found: dict[int, Found], call: str, across: Quantity, title: str) -> Figure:
    columns = {
        NAMES[name]: _lines(record, found, partial(percentile_spread, call=call, name=name)) for name in ("p50", "p99")
    }
    note = _note((spread for line in columns["p50"] for _, spread in line.points), "points")
    return panels.over_steps(title, note, {name: lines for name, lines in columns.items() if lines}, across, TIME)


def _lines(record: Record, found: dict[int, Found], measure: Callable[[list[Trial]], Spread | None]) -> list[Line]:
    """Return one line for each subject that has a point at more than one step."""
    points: dict[str, list[tuple[float, Spread]]] = {name: [] for name in record.subjects}
    for step, subjects in found.items():
        for name, trials in subjects.items():
            if spread := measure(trials):
                points[name].append((step, spread))
    return [Line(record.label(name), _look(record, name), some) for name, some in points.items() if len(some) > 1]


def _look(record: Record, name: str) -> Look:
    return look_of(name, list(record.subjects).index(name))


def _looks(record: Record) -> dict[str, Look]:
    return {record.label(name): _look(record, name) for name in record.subjects}
