"""Measure what trained dictionaries save, and what any codec could: `python -m benchmarks.codecs.dictionaries`.

Three of four values of each kind are stored in a cache, which is trained; the others are what is measured. Nothing is
timed, so the numbers are the same in every run with the same packages.

Exit status: 0 good; 2 the command line is wrong; 3 a value came back as another one; 130 interrupted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.codecs.answers import KINDS, least_bytes, values_of
from benchmarks.codecs.subjects import NEVER_A_FILE
from benchmarks.codecs.trial import WrongValueError
from benchmarks.codecs.values import plain_size
from benchmarks.command import FAILED, GOOD, explained, positive, progress, refuse_lost, run_as_command
from benchmarks.report import Table
from benchmarks.subjects import BenchmarkError
from benchmarks.workspace import workspace
from diskcache_like import Cache
from diskcache_like.errors import MissingDependency

COUNT = 2_000
MARK = "dictionaries"
COMMAND = "python -m benchmarks.codecs.dictionaries"
USUAL = 3
MOST, MOST_BYTES = 19, 112 << 10
_MAGIC = b"\x28\xb5\x2f\xfd"
_MARK_AND_BLOCK_HEAD = 1 + 3


@dataclass
class Line:
    """What one kind of values takes, in bytes per value."""

    kind: str
    plain: float
    without: float
    trained: float
    frame: float
    most: float
    bound: float


def measure(kind: str, count: int, directory: Path) -> Line:
    """Train on three of four values, and return what the others take."""
    values, bits = values_of(kind, count)
    learnt, tried = [value for place, value in enumerate(values) if place % 4], values[::4]
    without, trained, frame = _stored(learnt, tried, directory / "usual", USUAL, None)
    _, most, _ = _stored(learnt, tried, directory / "most", MOST, MOST_BYTES)
    plain = sum(map(plain_size, tried)) / len(tried)
    return Line(kind, plain, without, trained, frame, most, least_bytes(bits))


def _stored(
    learnt: list[Any], tried: list[Any], directory: Path, level: int, size: int | None
) -> tuple[float, float, float]:
    """Return the bytes of a payload before and after training, and how many of those after are no content."""
    made = Cache(directory, compressor="zstd", compress_level=level, disk_min_file_size=NEVER_A_FILE)
    with closing(made) as cache:
        cache.set_many(enumerate(learnt))
        before = _payloads(cache, tried)
        version = (cache.train() if size is None else cache.train(size)).version
        after = _payloads(cache, tried)
        if not version:
            raise BenchmarkError(f"a dictionary trained from {len(learnt)} values makes none of them smaller")
    total = [sum(map(len, payloads)) / len(tried) for payloads in (before, after)]
    return total[0], total[1], sum(map(_frame_bytes, after)) / len(tried)


def _payloads(cache: Cache, values: list[Any]) -> list[bytes]:
    """Return the payloads that the cache makes, having read them back."""
    disk = cache.disk
    found = []
    for value in values:
        mode, payload, _, _ = disk.encode(value, False, None)
        if disk.fetch(mode, None, payload, False) != value:
            raise WrongValueError(f"a value came back as another one: {value!r}")
        found.append(payload)
    return found


def _frame_bytes(payload: bytes) -> int:
    """Return how many bytes of a compressed payload are no content: the mark, the frame's header and the block's."""
    import zstandard

    return int(zstandard.frame_header_size(_MAGIC + payload[1:])) - len(_MAGIC) + _MARK_AND_BLOCK_HEAD


def table_of(lines: Sequence[Line], count: int) -> Table:
    """Show every kind."""
    columns = ("values", "msgpack", "zstd 3", "trained", "times", "of it frame", "zstd 19", "times", "bound", "times")
    table = Table("What dictionaries save", columns)
    for line in lines:
        sizes = (line.plain, line.without, line.trained)
        cells = [*(f"{size:.0f} B" for size in sizes), f"{line.without / line.trained:.2f}x", f"{line.frame:.1f} B"]
        for size in (line.most, line.bound):
            cells += [f"{size:.0f} B", f"{line.without / size:.1f}x"]
        table.rows.append((line.kind, *cells))
    table.notes += [
        f"Bytes per payload: the mean of {count // 4:,} values that the dictionary has not seen, being made from",
        f"{count - count // 4:,} others. times: how many times smaller than zstd {USUAL} without a dictionary.",
        f"zstd {MOST}: trained as well, with {MOST_BYTES >> 10} KiB. bound: the information in a value, below which",
        "no codec stays in the mean.",
    ]
    return table


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(COMMAND, description=(__doc__ or "").partition(":")[0] + ".")
    made.add_argument("--count", type=positive, default=COUNT, help="values of each kind (%(default)s)")
    made.add_argument("--docs", type=Path, metavar="PAGE.md", help="put the table into this page")
    return made


def work(asked: argparse.Namespace) -> int:
    """Measure, print the table, and put it into the page that was asked for."""
    if asked.docs:
        page.marked(asked.docs, MARK)
    lines = []
    try:
        with workspace(Path(tempfile.gettempdir())) as space, progress({"measure": 1}) as show:
            note = show("measure")
            for place, kind in enumerate(KINDS):
                note(kind, place / len(KINDS))
                lines.append(measure(kind, asked.count, space.fresh("dictionary")))
    except WrongValueError as error:
        print(f"FAILED: {error}")
        return FAILED
    except MissingDependency as error:
        raise BenchmarkError(f"cannot measure dictionaries: {error}") from error
    table = table_of(lines, asked.count)
    print(table.text())
    if asked.docs:
        page.put(asked.docs, MARK, table.markdown().partition("\n\n")[2])
    return GOOD


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, Path(tempfile.gettempdir()), asked.docs)
    return explained(made, lambda: work(asked), BenchmarkError)


if __name__ == "__main__":
    run_as_command(main)
