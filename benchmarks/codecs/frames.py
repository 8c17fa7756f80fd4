"""Measure frames and tables as such against msgpack of their rows, and pickle: `python -m benchmarks.codecs.frames`.

Five columns: two of integers, and one each of floats, booleans and text. The rows are dictionaries, made beforehand:
the time that a frame takes to become such a list, and back, is not counted.

Exit status: 0 good; 2 the command line is wrong; 3 a value came back as another one; 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import page
from benchmarks.codecs.subjects import Opened, Subject
from benchmarks.codecs.trial import Timing, WrongValueError, share_out
from benchmarks.codecs.values import VOCABULARY
from benchmarks.command import FAILED, GOOD, explained, positive, progress, refuse_lost, run_as_command, seconds
from benchmarks.intervals import Spread, ratio_spread
from benchmarks.measure import alternate, measure_costs
from benchmarks.repetitions import confidence
from benchmarks.report import Table, duration, machine_facts
from benchmarks.subjects import BenchmarkError
from benchmarks.tables import between
from benchmarks.workspace import workspace

SECONDS, REPEATS = 60.0, 9
ROWS = (1_000, 10_000, 100_000)
MARK = "frames"
COMMAND = "python -m benchmarks.codecs.frames"
RAW, MSGPACK, ARROW, PICKLE = "rows", "msgpack", "arrow", "pickle"


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


def as_rows(data: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows as dictionaries."""
    return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]


def as_pandas(data: dict[str, list[Any]]) -> Any:
    """Return a frame of pandas."""
    import pandas as pd

    return pd.DataFrame(data)


def as_polars(data: dict[str, list[Any]]) -> Any:
    """Return a frame of polars."""
    import polars as pl

    return pl.DataFrame(data)


def as_arrow(data: dict[str, list[Any]]) -> Any:
    """Return a table of Arrow."""
    import pyarrow as pa

    return pa.table(data)


MAKERS: Mapping[str, Callable[[dict[str, list[Any]]], Any]] = MappingProxyType(
    {RAW: as_rows, "pandas": as_pandas, "polars": as_polars, "Arrow": as_arrow}
)
WAYS = (
    (RAW, MSGPACK),
    *((kind, serializer) for kind in ("pandas", "polars", "Arrow") for serializer in (ARROW, PICKLE)),
)
"""What is encoded, with which serializer."""


@dataclass
class Place:
    """One line of the table before it is measured."""

    kind: str
    serializer: str
    size: int
    encode: Timing
    decode: Timing

    @property
    def both(self) -> list[float]:
        """Return the time of encoding and decoding together, for each repetition."""
        return [there + back for there, back in zip(self.encode.times, self.decode.times, strict=True)]


def prepare(opened: Mapping[str, Opened], rows: int) -> list[Place]:
    """Encode and decode everything once, compare, and return what is to be timed."""
    data = columns(rows)
    values = {kind: make(data) for kind, make in MAKERS.items()}
    found = []
    for kind, serializer in WAYS:
        one, value = opened[serializer], values[kind]
        stored = one.encode(value)
        decode = one.decoder()
        back = decode(stored)
        if type(back) is not type(value) or not (back == value if kind == RAW else back.equals(value)):
            raise WrongValueError(f"{kind} of {rows:,} rows came back as another value with {serializer}")
        found.append(Place(kind, serializer, len(stored[1]), Timing(one.encoder(), [value]), Timing(decode, [stored])))
    return found


def measure(asked: argparse.Namespace) -> tuple[dict[int, list[Place]], dict[str, str]]:
    """Measure every table in every way, in turn."""
    with workspace(Path(tempfile.gettempdir())) as space, progress({"measure": 1}) as show, ExitStack() as stack:
        costs = measure_costs()
        facts = machine_facts(space.root.parent, costs)
        opened = {name: Opened(Subject(name, "none"), space.fresh(name)) for name in (MSGPACK, ARROW, PICKLE)}
        for one in opened.values():
            stack.enter_context(closing(one.cache))
        found = {rows: prepare(opened, rows) for rows in asked.rows or ROWS}
        timings = {
            f"{rows} {number} {name}": getattr(place, name)
            for rows, places in found.items()
            for number, place in enumerate(places)
            for name in ("encode", "decode")
        }
        share_out(list(timings.values()), asked.seconds * 1e9 / asked.repeats)
        note = show("measure")
        gc.freeze()  # what is held for the run is not looked through again and again while it decodes
        try:
            for step, (number, name) in enumerate(alternate(asked.repeats, list(timings))):
                note(f"repetition {number + 1} of {asked.repeats}", step / (asked.repeats * len(timings)))
                timings[name].measure(costs)
        finally:
            gc.unfreeze()
    return found, {name: facts[name] for name in ("CPU", "load", "Python")}


def frames_table(found: Mapping[int, Sequence[Place]]) -> Table:
    """Show every way of storing every table."""
    columns = ("rows", "of", "serializer", "encode", "decode", "size", "round trip", "interval")
    table = Table("Frames and tables", columns, left=0)
    for rows, places in found.items():
        for place in places:
            faster = ratio_spread(places[0].both, place.both)
            times = [duration(Spread.of(timing.times).median) for timing in (place.encode, place.decode)]
            kind = "dictionaries" if place.kind == RAW else place.kind
            how = (f"{faster.median:.2f}x", between(faster, lambda value: f"{value:.2f}"))
            table.rows.append((f"{rows:,}", kind, place.serializer, *times, f"{place.size / 1000:,.0f} KB", *how))
    some = next(iter(found.values()))[0]
    table.notes += [
        "round trip: how many times faster encoding and decoding are than msgpack of the rows as dictionaries,",
        f"{confidence([Spread.of(some.encode.times)])}",
    ]
    return table


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(COMMAND, description=(__doc__ or "").partition(":")[0] + ".")
    add = made.add_argument
    add("--rows", type=positive, action="append", help=f"of a table: {', '.join(map(str, ROWS))} (may be repeated)")
    add("--seconds", type=seconds, default=SECONDS, help="how long to measure, about (%(default)s)")
    add("--repeats", type=positive, default=REPEATS, help="repetitions, in each of which all take turns (%(default)s)")
    add("--docs", type=Path, metavar="PAGE.md", help="put the table into this page")
    return made


def work(asked: argparse.Namespace) -> int:
    """Measure, print the table, and put it into the page that was asked for."""
    if asked.docs:
        page.marked(asked.docs, MARK)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, Path(tempfile.gettempdir()), asked.docs)
    return explained(made, lambda: work(asked), BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
