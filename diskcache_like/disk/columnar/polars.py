"""Frames and series of polars as data: Arrow tables, which polars makes and reads itself."""

from __future__ import annotations

from typing import Any

from ...encoding.values import NotSerializable
from ...errors import DecodeError, missing_dependency
from ...system.signals import reraise_signal
from . import arrow

try:
    import polars as pl
except ImportError as reason:
    raise missing_dependency("polars", "polars", "a frame of polars") from reason

_SERIES, _FRAME = b"polars.Series", b"polars.DataFrame"


def pack_frame(value: Any) -> Any:
    """Return a frame or series as an IPC file in one buffer; raise NotSerializable if it would come back changed."""
    frame = value.to_frame() if type(value) is pl.Series else value
    try:
        table = frame.to_arrow()
        again = _frame(table.slice(0, 0))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, TypeError) as error:
        raise NotSerializable(f"a {type(value).__name__} of polars is not serializable: {error}") from error
    if again.schema != frame.schema or (frame.height and not frame.width):
        raise NotSerializable(
            f"a {type(value).__name__} of polars is not serializable: it would come back as {again.schema}"
        )
    return arrow.write(table, _SERIES if type(value) is pl.Series else _FRAME)


def unpack_frame(kind: bytes, table: Any) -> Any:
    """Return the frame or series that `pack_frame` was given."""
    try:
        frame = _frame(table)
    except (Exception, pl.exceptions.PanicException) as error:
        reraise_signal(error)
        raise DecodeError(f"not a frame of polars: {error}") from error
    if kind == _FRAME:
        return frame
    if kind != _SERIES or frame.width != 1:
        raise DecodeError(f"a table of {frame.width} columns cannot be {kind[:40]!r}")
    return frame.to_series()


def _frame(table: Any) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame.columns = table.column_names  # polars invents names for columns that have none
    return frame
