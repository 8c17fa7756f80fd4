"""Measure frames and tables as such against msgpack of their rows, and pickle: `python -m benchmarks.codecs.frames`.

Five columns: two of integers, and one each of floats, booleans and text. The rows are dictionaries, made beforehand:
the time that a frame takes to become such a list, and back, is not counted.

Exit status: 0 good; 2 the command line is wrong; 3 a value came back as another one; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.codecs.matrix import Effort, Place, WrongValueError, alike
from benchmarks.codecs.matrix import measure as measure_places
from benchmarks.codecs.subjects import Opened, Subject
from benchmarks.codecs.values import VOCABULARY
from benchmarks.command import (
    FAILED,
    GOOD,
    add_amounts,
    amounts_of,
    follows,
    parser,
    positive,
    progress,
    run_as_command,
)
from benchmarks.intervals import Spread, ratio_spread
from benchmarks.measure import measure_costs
from benchmarks.peers.spec import BenchmarkError
from benchmarks.report.machine import machine_facts
from benchmarks.report.summaries import confidence
from benchmarks.report.text import Table, between, duration
from benchmarks.workspace import workspace

USUAL = Effort(60.0, 9)
ROWS = (1_000, 10_000, 100_000)
MARK = "frames"
RAW = "dictionaries"
MAKERS = {"pandas": ("pandas", "DataFrame"), "polars": ("polars", "DataFrame"), "Arrow": ("pyarrow", "table")}


def columns(rows: int) -> dict[str, list[Any]]:
    """Return the columns of a table."""
    dice = random.Random(rows)
    return {
        "id": list(range(rows)),
        "count": [dice.randrange(1000) for _ in range(rows)],
        "price": [dice.gauss(20, 5) for _ in range(rows)],
        "active": [dice.random() < 0.9 for _ in range(rows)],
        "name": dice.choices(VOCABULARY, k=rows),
    }


def prepare(opened: Mapping[str, Opened], rows: int) -> list[Place]:
    """Return what is to be timed of a table: its rows in msgpack, and every kind of frame as such and in pickle."""
    data, size = columns(rows), f"{rows:,} rows"
    raw = [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    found = [Place(Subject("msgpack"), RAW, size, opened["msgpack"], [raw], alike)]
    for kind, (module, name) in MAKERS.items():
        frame = getattr(importlib.import_module(module), name)(data)
        found += [Place(Subject(one), kind, size, opened[one], [frame], same_frame) for one in ("arrow", "pickle")]
    return found


def same_frame(value: Any, back: Any) -> bool:
    """Tell whether a frame came back as it was."""
    return type(back) is type(value) and bool(value.equals(back))


def measure(asked: argparse.Namespace) -> tuple[dict[int, list[Place]], dict[str, str]]:
    """Measure every table in every way, in turn."""
    with workspace(Path(tempfile.gettempdir())) as space, progress() as note, ExitStack() as stack:
        costs = measure_costs()
        facts = machine_facts(space.root.parent, costs)
        opened = {name: Opened(Subject(name), space.fresh(name)) for name in ("msgpack", "arrow", "pickle")}
        for one in opened.values():
            stack.enter_context(closing(one.cache))
        found = {rows: prepare(opened, rows) for rows in asked.rows or ROWS}
        every = [place for places in found.values() for place in places]
        measure_places(every, amounts_of(asked, USUAL), costs, note)
    return found, {name: facts[name] for name in ("CPU", "load", "Python")}


def frames_table(found: Mapping[int, Sequence[Place]]) -> Table:
    """Show every way of storing every table."""
    table = Table(
        "Frames and tables",
        ("rows", "of", "serializer", "encode", "decode", "size", "round trip", "interval"),
        left=0,
    )
    for rows, places in found.items():
        both = [[sum(pair) for pair in zip(one.encode.times, one.decode.times, strict=True)] for one in places]
        for place, mine in zip(places, both, strict=True):
            faster = ratio_spread(both[0], mine)
            times = [duration(Spread.of(timing.times).median) for timing in (place.encode, place.decode)]
            how = (f"{faster.median:.2f}x", between(faster, lambda value: f"{value:.2f}"))
            size = f"{place.stored / 1000:,.0f} KB"
            table.rows.append((f"{rows:,}", place.kind, place.subject.serializer, *times, size, *how))
    some = next(iter(found.values()))[0]
    table.notes += [
        "round trip: how many times faster encoding and decoding are than msgpack of the rows as dictionaries,",
        f"{confidence([Spread.of(some.encode.times)])}",
    ]
    return table


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.codecs.frames", __doc__, "docs")
    add = made.add_argument
    add("--rows", type=positive, action="append", help=f"of a table: {', '.join(map(str, ROWS))} (may be repeated)")
    add_amounts(made, USUAL)
    return made


def work(asked: argparse.Namespace) -> int:
    """Measure, print the table, and put it into the page that was asked for."""
    try:
        found, facts = measure(asked)
    except WrongValueError as error:
        print(f"FAILED: {error}")
        return FAILED
    except ImportError as error:
        raise BenchmarkError(f"cannot measure frames ({error}); install pandas, polars and pyarrow") from error
    table = frames_table(found)
    print(table.text())
    if asked.docs:
        told = "".join(f"- {name}: {fact}\n" for name, fact in facts.items())
        page.put(asked.docs, MARK, table.markdown().partition("\n\n")[2] + "\n" + told)
    return GOOD


main = follows(options, work, BenchmarkError, MARK)


if __name__ == "__main__":
    run_as_command(main)
