"""Frames and series of pandas as data: an Arrow table, and a description of what each of its columns stands for.

Arrow's own conversion keeps only what Arrow can distinguish. Here each column has one of a fixed set of forms, so that
it comes back with exactly the same type: integers of every width, every kind of missing value, unused categories, time
zones, indexes of several levels. A column of objects is serializable if it holds only text, or only bytes, and one kind
of missing value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import time
from typing import Any, Final

from ...encoding.values import NotSerializable, decode_value, encode_value
from ...errors import DecodeError, missing_dependency
from ...system.signals import reraise_signal
from . import arrow

try:
    import pandas as pd
except ImportError as reason:
    raise missing_dependency("pandas", "pandas", "a frame of pandas") from reason

pa = arrow.pa
Arrays = list[Any]

_Numbers: Final = type(pd.Series([1]).to_numpy())  # NumPy's array
_NUMBERS: Final = frozenset("?bhilBHILefdFDmM")  # NumPy's characters for the types of a column
_NUMPYS: Final = re.compile(r"[<>|][biufcmM]\d{1,2}(\[\d{0,9}[A-Za-z]{1,2}\])?", re.ASCII)
"""NumPy's names for them. Pandas would look up any other name among its extensions, and a time zone's may be a file."""
_LONGEST_RANGE: Final = 1 << 24  # length of an axis that is a range, and so has no bytes to account for it
_LONGEST_ENDS: Final = 1 << 12  # the same for the ends of intervals, which pandas compares one by one
_INLINE: Final = 256  # an axis of at most so many text labels needs no table of its own
_MASKED: Final = {
    dtype.name: dtype
    for dtype in (
        *(pd.Int8Dtype(), pd.Int16Dtype(), pd.Int32Dtype(), pd.Int64Dtype(), pd.UInt8Dtype(), pd.UInt16Dtype()),
        *(pd.UInt32Dtype(), pd.UInt64Dtype(), pd.Float32Dtype(), pd.Float64Dtype(), pd.BooleanDtype()),
    )
}
_INDEXES: Final = frozenset(
    (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex, pd.IntervalIndex, pd.CategoricalIndex)
)
_MISSING: Final = {type(None): ("None", None), float: ("nan", float("nan")), type(pd.NA): ("NA", pd.NA)}
_MISSING_NAMED: Final = dict(_MISSING.values())
_NAMED: Final = {"nan": float("nan"), "NA": pd.NA}  # what a StringDtype takes for missing


def pack_frame(value: Any) -> Any:
    """Return a frame or series as an IPC file in one buffer; raise NotSerializable if it would come back changed."""
    arrays: Arrays = []
    try:
        if type(value) is pd.Series:
            header = ["Series", [_pack_values(value.array, arrays)], value.name]
        else:
            columns = [_pack_values(column.array, arrays) for _, column in value.items()]
            header = ["DataFrame", columns, _pack_axis(value.columns)]
        header += [_pack_index(value.index, arrays), dict(value.attrs), value.flags.allows_duplicate_labels]
        table = pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(arrays))])
        return arrow.write(table, b"pandas" + encode_value(header))
    except (NotSerializable, MemoryError):
        raise
    except Exception as error:
        reraise_signal(error)
        raise NotSerializable(f"a {type(value).__name__} of pandas is not serializable: {error}") from error


def unpack_frame(kind: bytes, table: Any, copy: bool) -> Any:
    """Return the frame or series that `pack_frame` was given; without `copy`, it uses the table's memory if it can."""
    try:
        name, columns, labels, index, attrs, duplicates = decode_value(kind.removeprefix(b"pandas"))
        arrays = map(_single, table.columns)
        values = [_unpack_values(column, arrays) for column in columns]
        rows = _unpack_index(index, arrays, copy)
        if name == "Series":
            (one,) = values
            result: Any = pd.Series(one, index=rows, name=labels, dtype=one.dtype, copy=copy)
        elif name == "DataFrame":
            result = _frame(values, rows, _unpack_axis(labels), copy)
        else:
            raise DecodeError(f"a frame of pandas has the unknown form {name!r}")
        result.attrs = attrs
        return result if duplicates is True else result.set_flags(allows_duplicate_labels=False)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        reraise_signal(error)
        raise DecodeError(f"not a frame of pandas: {error}") from error


def _frame(values: list[Any], rows: Any, labels: Any, copy: bool) -> Any:
    if len(values) != len(labels):  # pandas would fill absent columns with missing values
        raise DecodeError(f"a frame has {len(values)} columns and {len(labels)} names for them")
    if not values:
        return pd.DataFrame(index=rows, columns=labels)
    # A column of objects needs a series with an explicit dtype: from text objects a frame would make its own text type.
    columns = {
        number: pd.Series(one, dtype=object, copy=False) if one.dtype.kind == "O" and type(one) is _Numbers else one
        for number, one in enumerate(values)
    }
    frame = pd.DataFrame(columns, copy=copy)
    frame.index, frame.columns = rows, labels
    return frame


def _single(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


# -- indexes ----------------------------------------------------------------------------------------------------------


def _pack_index(index: Any, arrays: Arrays, inline: bool = False) -> list[Any]:
    kind = type(index)
    if kind is pd.RangeIndex:
        return ["range", index.start, index.stop, index.step, index.name]
    if kind is pd.MultiIndex:
        levels = [_pack_axis(level.rename(None)) for level in index.levels]
        arrays += [pa.array(codes) for codes in index.codes]
        return ["levels", levels, list(index.names), index.sortorder]
    if kind not in _INDEXES:
        raise NotSerializable(f"an index of type {kind.__qualname__} is not serializable")
    return ["values", _pack_values(index.array, arrays, inline), index.name, _pack_steps(index)]


def _pack_steps(index: Any) -> str | None:
    """Return the name of an index's frequency, or None if it has none."""
    steps = getattr(index, "freq", None)
    if steps is None or type(index) is pd.PeriodIndex:
        return None
    if pd.tseries.frequencies.to_offset(steps.freqstr) != steps:
        raise NotSerializable(f"an index in steps of {steps!r} is not serializable")
    return str(steps.freqstr)


def _unpack_index(form: list[Any], arrays: Iterator[Any], copy: bool) -> Any:
    if form[0] == "range":
        _, start, stop, step, name = form
        return pd.RangeIndex(start, stop, step, name=name)
    if form[0] == "levels":
        _, levels, names, sortorder = form
        codes = [_codes(next(arrays)) for _ in levels]
        return pd.MultiIndex([_unpack_axis(level) for level in levels], codes, sortorder=sortorder, names=names)
    _, described, name, steps = form
    values = _unpack_values(described, arrays)
    index = pd.Index(values, dtype=values.dtype, name=name, copy=copy, tupleize_cols=False)
    if steps is not None:
        index.freq = steps
    return index


def _codes(array: Any) -> Any:
    """Return a column's codes, which refer to levels or categories; other types could turn into any number of codes."""
    if not pa.types.is_integer(array.type):
        raise DecodeError(f"codes of labels are stored as {array.type}")
    return array.to_numpy(zero_copy_only=False)


def _pack_axis(index: Any) -> list[Any]:
    """Return the form of an index whose length is not the frame's: labels of columns, levels, categories."""
    if type(index) is pd.RangeIndex and len(index) > _LONGEST_RANGE:
        raise NotSerializable(f"an axis that is a range of {len(index)} labels is not serializable")
    arrays: Arrays = []
    form = _pack_index(index, arrays, inline=len(index) <= _INLINE)
    table = pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(arrays))])
    return [form, arrow.write(table, b"axis").to_pybytes() if arrays else None]


def _unpack_axis(packed: list[Any]) -> Any:
    form, content = packed
    columns = [] if content is None else arrow.read(content, trusted=False)[1].columns
    index = _unpack_index(form, map(_single, columns), copy=True)
    if type(index) is pd.RangeIndex and len(index) > _LONGEST_RANGE:
        raise DecodeError(f"an axis claims {len(index)} labels")
    return index


# -- columns ----------------------------------------------------------------------------------------------------------


def _pack_values(values: Any, arrays: Arrays, inline: bool = False) -> list[Any]:
    """Append the values of a column to `arrays`, and return their description."""
    if type(values) is pd.arrays.NumpyExtensionArray:
        values = values.to_numpy()
    dtype = values.dtype
    if type(values) is _Numbers:
        return _pack_objects(values, arrays, inline) if dtype.hasobject else _pack_numbers(values, dtype, arrays)
    for kind, pack in _FORMS:
        if type(dtype) is kind:
            return list(pack(values, dtype, arrays))
    if isinstance(dtype, pd.StringDtype):
        return _pack_text(values, dtype, arrays, inline)
    if dtype.name in _MASKED and dtype == _MASKED[dtype.name]:
        array = pa.array(values)
        if dtype.kind == "f" and pa.compute.any(pa.compute.is_nan(array)).as_py():
            raise NotSerializable("a column of nullable numbers that also contains NaN is not serializable")
        arrays.append(array)
        return ["masked", dtype.name]
    if dtype.kind in ("m", "M") and not isinstance(dtype, pd.api.extensions.ExtensionDtype):
        return _pack_numbers(values.to_numpy(), dtype, arrays)
    raise NotSerializable(f"a column of dtype {dtype} is not serializable")


def _unpack_values(form: list[Any], arrays: Iterator[Any]) -> Any:
    return _READERS[form[0]](form, arrays)


def _pack_numbers(numbers: Any, dtype: Any, arrays: Arrays) -> list[Any]:
    if dtype.char not in _NUMBERS or dtype.metadata is not None or not dtype.isnative:
        raise NotSerializable(f"a column of dtype {dtype!r} is not serializable")
    if dtype.kind in "mM":
        numbers = numbers.view("i8")
    elif dtype.kind == "c":
        arrays.append(pa.array(numbers.real.copy()))
        numbers = numbers.imag.copy()
    arrays.append(pa.array(numbers, from_pandas=False))
    return ["numbers", dtype.str]


def _read_numbers(form: list[Any], arrays: Iterator[Any]) -> Any:
    if not _NUMPYS.fullmatch(form[1]):
        raise DecodeError(f"a column of numbers is of the type {form[1]!r:.40}")
    dtype = pd.api.types.pandas_dtype(form[1])
    array = next(arrays)
    if array.null_count:
        raise DecodeError("a column of numbers has missing values")
    numbers = array.to_numpy(zero_copy_only=False)
    if dtype.kind in "mM" and numbers.dtype == "int64":
        return numbers.view(dtype)
    if dtype.kind == "c":
        whole = numbers.astype(dtype)
        whole.imag = next(arrays).to_numpy(zero_copy_only=False)
        return whole
    if numbers.dtype != dtype:
        raise DecodeError(f"a column of {dtype} is stored as {numbers.dtype}")
    return numbers


def _pack_objects(values: Any, arrays: Arrays, inline: bool) -> list[Any]:
    if inline:
        return ["labels", list(values)]
    kinds = set(map(type, values))
    contents = kinds & {str, bytes}
    absent = kinds - contents
    if len(contents) > 1 or len(absent) > 1 or not absent <= _MISSING.keys():
        raise NotSerializable(
            f"a column of objects of {', '.join(sorted(kind.__qualname__ for kind in kinds))} is not serializable"
        )
    name = _MISSING[next(iter(absent))][0] if absent else "None"
    kind = "bytes" if contents == {bytes} else "text"
    arrays.append(pa.array(values, pa.large_binary() if kind == "bytes" else pa.large_string(), mask=pd.isna(values)))
    return ["objects", kind, name]


def _read_labels(form: list[Any], _: Iterator[Any]) -> Any:
    return pd.Series(form[1], dtype=object).to_numpy()


def _read_objects(form: list[Any], arrays: Iterator[Any]) -> Any:
    _, kind, name = form
    array = next(arrays)
    if array.type != (pa.large_binary() if kind == "bytes" else pa.large_string()):
        raise DecodeError(f"a column of {kind} is stored as {array.type}")
    values = array.to_numpy(zero_copy_only=False)
    if name != "None" and array.null_count:
        values[pd.isna(values)] = _MISSING_NAMED[name]
    return values


def _pack_text(values: Any, dtype: Any, arrays: Arrays, inline: bool) -> list[Any]:
    name = "NA" if dtype.na_value is pd.NA else "nan"
    if inline and not values.isna().any():
        return ["text", dtype.storage, name, list(values)]
    array = pa.array(values, pa.large_string(), from_pandas=True)
    arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    return ["text", dtype.storage, name, None]


def _read_text(form: list[Any], arrays: Iterator[Any]) -> Any:
    _, storage, name, inline = form
    dtype = pd.StringDtype(storage, na_value=_NAMED[name])
    # Not by `pd.array`, in which another error takes the place of what a signal handler raises.
    array = next(arrays) if inline is None else pa.array(inline, pa.large_string())
    if array.type != pa.large_string():
        raise DecodeError(f"a column of text is stored as {array.type}")
    return dtype.__from_arrow__(array)


def _read_masked(form: list[Any], arrays: Iterator[Any]) -> Any:
    dtype = _MASKED[form[1]]
    array = next(arrays)
    wanted = pa.bool_() if form[1] == "boolean" else pa.from_numpy_dtype(dtype.numpy_dtype)
    if array.type != wanted:
        raise DecodeError(f"a column of {dtype} is stored as {array.type}")
    return dtype.__from_arrow__(array)


def _pack_categories(values: Any, dtype: Any, arrays: Arrays) -> list[Any]:
    arrays.append(pa.array(values.codes))
    return ["categories", _pack_axis(dtype.categories), dtype.ordered]


def _read_categories(form: list[Any], arrays: Iterator[Any]) -> Any:
    _, categories, ordered = form
    dtype = pd.CategoricalDtype(_unpack_axis(categories), ordered)
    return pd.Categorical.from_codes(_codes(next(arrays)), dtype=dtype)


def _pack_zoned(values: Any, dtype: Any, arrays: Arrays) -> list[Any]:
    arrays.append(pa.array(pd.DatetimeIndex(values).asi8))
    return ["zoned", dtype.unit, time(tzinfo=dtype.tz)]


def _read_zoned(form: list[Any], arrays: Iterator[Any]) -> Any:
    _, unit, zone = form
    moments = _read_numbers(["numbers", f"<M8[{unit}]"], arrays)
    return pd.DatetimeIndex(moments, copy=False).tz_localize("UTC").tz_convert(zone.tzinfo).array


def _pack_periods(values: Any, dtype: Any, arrays: Arrays) -> list[Any]:
    arrays.append(pa.array(pd.PeriodIndex(values).asi8))
    if pd.api.types.pandas_dtype(dtype.name) != dtype:
        raise NotSerializable(f"a column of dtype {dtype} is not serializable")
    return ["periods", dtype.name]


def _read_periods(form: list[Any], arrays: Iterator[Any]) -> Any:
    ordinals = _read_numbers(["numbers", "<i8"], arrays)
    return pd.PeriodIndex.from_ordinals(ordinals, freq=pd.PeriodDtype.construct_from_string(form[1]).freq).array


def _pack_intervals(values: Any, dtype: Any, arrays: Arrays) -> list[Any]:
    left, right = _pack_index(values.left, arrays), _pack_index(values.right, arrays)
    if _is_long(values.left, values.right):
        raise NotSerializable(
            f"a column of {len(values)} intervals between numbers that are only counted is not serializable"
        )
    return ["intervals", left, right, dtype.closed]


def _is_long(*ends: Any) -> bool:
    """Tell whether one of the ends of intervals is too long a range, for which there are no bytes."""
    return any(type(one) is pd.RangeIndex and len(one) > _LONGEST_ENDS for one in ends)


def _read_intervals(form: list[Any], arrays: Iterator[Any]) -> Any:
    _, left, right, closed = form
    ends = _unpack_index(left, arrays, copy=True), _unpack_index(right, arrays, copy=True)
    if _is_long(*ends):
        raise DecodeError(f"intervals claim {len(ends[0])} ends")
    return pd.arrays.IntervalArray.from_arrays(*ends, closed=closed)


def _pack_arrow(values: Any, _: Any, arrays: Arrays) -> list[Any]:
    array = pa.array(values)
    arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    return ["arrow"]


def _read_arrow(_: list[Any], arrays: Iterator[Any]) -> Any:
    array = next(arrays)
    return pd.ArrowDtype(array.type).__from_arrow__(array)


_FORMS: Final[tuple[tuple[type, Callable[[Any, Any, Arrays], list[Any]]], ...]] = (
    (pd.CategoricalDtype, _pack_categories),
    (pd.DatetimeTZDtype, _pack_zoned),
    (pd.PeriodDtype, _pack_periods),
    (pd.IntervalDtype, _pack_intervals),
    (pd.ArrowDtype, _pack_arrow),
)
_READERS: Final[dict[str, Callable[[list[Any], Iterator[Any]], Any]]] = {
    "numbers": _read_numbers,
    "labels": _read_labels,
    "objects": _read_objects,
    "text": _read_text,
    "masked": _read_masked,
    "categories": _read_categories,
    "zoned": _read_zoned,
    "periods": _read_periods,
    "intervals": _read_intervals,
    "arrow": _read_arrow,
}
