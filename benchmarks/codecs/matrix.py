"""What a run found: for every codec, kind and size the times of each repetition and the bytes stored.

Times are nanoseconds per value, sizes bytes per value. `plain` is the size without compression, in msgpack: the one
measure that speeds and shares of all codecs are told in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.codecs.subjects import Subject
from benchmarks.codecs.values import KINDS, SIZES
from benchmarks.intervals import Spread
from benchmarks.subjects import BenchmarkError

FORMAT = 1
MEGABYTE = 1_000_000
NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Cell:
    """One codec on values of one kind and size; a time for each repetition."""

    subject: Subject
    kind: str
    size: str
    plain: float
    stored: float
    encode: tuple[float, ...]
    decode: tuple[float, ...]

    @property
    def share(self) -> float:
        """Return the bytes stored as a share of the plain size."""
        return self.stored / self.plain

    @property
    def both(self) -> tuple[float, ...]:
        """Return the time of encoding and decoding together, for each repetition."""
        return tuple(there + back for there, back in zip(self.encode, self.decode, strict=True))

    def speed(self, operation: str) -> float:
        """Return the megabytes per second of "encode" or "decode", in bytes of the plain size."""
        return self.plain / MEGABYTE / max(Spread.of(getattr(self, operation)).median, 1.0) * NS_PER_SECOND


@dataclass
class Matrix:
    """One whole run."""

    machine: dict[str, str]
    options: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)
    """Labels of codecs that were left out, by the reason, which names what to install."""

    @property
    def subjects(self) -> list[Subject]:
        """Return the codecs that were measured, in the order of measuring."""
        return list(dict.fromkeys(cell.subject for cell in self.cells))

    def of(self, kind: str, size: str) -> list[Cell]:
        """Return the cells of every codec on one kind and size."""
        return [cell for cell in self.cells if (cell.kind, cell.size) == (kind, size)]

    def kinds(self) -> list[str]:
        """Return the kinds that were measured, in order."""
        found = {cell.kind for cell in self.cells}
        return [kind for kind in KINDS if kind in found]

    def sizes(self) -> list[str]:
        """Return the sizes that were measured, in order."""
        found = {cell.size for cell in self.cells}
        return [size for size in SIZES if size in found]

    def save(self, path: Path) -> None:
        """Write the run as JSON."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Matrix:
    """Read a run that `save` wrote; raise BenchmarkError for any other file."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told.pop("format") != FORMAT:
            raise BenchmarkError(f"{path} was written by another version of the benchmarks; measure again")
        matrix = Matrix(**{**told, "cells": [_cell(one) for one in told["cells"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchmarkError(f"{path} is not a record of a run of benchmarks.codecs: {error}") from error
    return matrix


def _cell(told: Mapping[str, Any]) -> Cell:
    times = {name: tuple(map(float, told[name])) for name in ("encode", "decode")}
    cell = Cell(**{**told, **times, "subject": Subject(**told["subject"])})
    if cell.kind not in KINDS or cell.size not in SIZES:
        raise ValueError(f"{cell.kind!r} of {cell.size!r} are not values that are measured")
    if not cell.encode or len(cell.encode) != len(cell.decode) or min(cell.plain, cell.stored) <= 0:
        raise ValueError(f"the numbers of {cell.subject.label} on {cell.kind} of {cell.size} are not complete")
    return cell


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the mean that gives every number the same weight, however large the others are."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))
