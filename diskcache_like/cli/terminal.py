"""Output: text, JSON, tables, and how far a long command is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from ..encoding.json import Json
from ..encoding.values import NotSerializable
from ..errors import named

REDRAW_SECONDS = 0.1


def shown(text: str) -> str:
    """Return one line of text with unprintable characters escaped.

    Anyone may have made the names in it, which could otherwise control the terminal or imitate our output.
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def as_text(value: Any) -> str:
    """Return a value as a person reads it: text as it is, JSON where that says the same, else its `repr`."""
    if isinstance(value, str):
        return "\n".join(map(shown, value.split("\n")))
    told = as_json(value)
    return shown(json.dumps(told, ensure_ascii=False) if told is value else named(value))


def as_json(value: Any) -> Any:
    """Return the value if JSON expresses it exactly, otherwise its `repr` in an object."""
    try:
        Json().encode(value)
    except NotSerializable:
        return {"repr": named(value)}
    return value


def print_json(found: Mapping[str, Any]) -> None:
    """Print one object on one line, in ASCII."""
    print(json.dumps(found), flush=True)


def print_removed(removed: int, as_object: bool) -> None:
    """Print how many entries a command has removed, `as_object` as JSON."""
    if as_object:
        print_json({"removed": removed})
    else:
        print(f"{removed:,} entries removed")


class Progress:
    """How far a long command is: redrawn in place on a terminal, and a single line elsewhere."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if not sys.stdout.isatty():
            print(f"{self._name}: {self._total:,} {self._unit} ...", flush=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.advance(self._total - self._done)
        if sys.stdout.isatty():
            print(flush=True)

    def advance(self, number: int) -> None:
        """Count `number` more as done."""
        self._done += number
        if sys.stdout.isatty() and (self._done == self._total or time.monotonic() - self._drawn > REDRAW_SECONDS):
            self._drawn = time.monotonic()
            print(f"\r{self._name}: {self._done / max(self._total, 1):4.0%}", end="", flush=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print an empty line and a table with its first column aligned left and the others aligned right."""
    print()
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
