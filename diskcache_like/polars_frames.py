"""Frames and series of polars as data: tables of Arrow, which polars makes and reads itself."""

from __future__ import annotations

from typing import Any

from . import arrow
from .codecs import NotData
from .errors import DecodeError, missing
from .interrupts import let_through

try:
    import polars as pl
except ImportError as reason:
    raise missing("polars", "polars", "a frame of polars") from reason

_SERIES, _FRAME = b"polars.Series", b"polars.DataFrame"


def pack_frame(value: Any) -> Any:
    """Return the IPC file, as one buffer, of a frame or series; raise NotData if it would not come back as it is."""
    frame = value.to_frame() if type(value) is pl.Series else value
    try:
        table = frame.to_arrow()
        again = _frame(table.slice(0, 0))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
        raise NotData(f"a {type(value).__name__} of polars is not data: {error}") from error
    if again.schema != frame.schema or (frame.height and not frame.width):
        raise NotData(f"a {type(value).__name__} of polars is not data: it would come back as {again.schema}")
    return arrow.write(table, _SERIES if type(value) is pl.Series else _FRAME)


def unpack_frame(kind: bytes, table: Any) -> Any:
    """Return the frame or series that `pack_frame` was given."""
    try:
        frame = _frame(table)
    except (Exception, pl.exceptions.PanicException) as error:
        let_through(error)
        raise DecodeError(f"not a frame of polars: {error}") from error
    if kind == _FRAME:
        return frame
    if kind != _SERIES or frame.width != 1:
        raise DecodeError(f"a table of {frame.width} columns stands for {kind[:40]!r}")
    return frame.to_series()


def _frame(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = table.column_names  # polars gives a name to a column that has none
    return frame
