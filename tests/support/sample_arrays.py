"""Values of NumPy, pandas, polars and Arrow, what makes two of them the same, and how a program would use them."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

NAN = math.nan
ZONE = "Europe/London"


def assert_same(one: Any, other: Any) -> None:
    """Assert that two values are of one type and equal in everything that a program could see of them."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray | np.generic):
        assert_same_array(one, other)
    elif isinstance(one, pd.DataFrame):
        assert_same_frame(one, other)
    elif isinstance(one, pd.Series):
        assert one.name == other.name
        assert_same_frame(one.to_frame(), other.to_frame())
        assert_same_state(one, other)
    elif isinstance(one, pl.DataFrame):
        assert one.schema == other.schema
        assert one.equals(other)
    elif isinstance(one, pl.Series):
        assert one.dtype == other.dtype
        assert one.equals(other, check_names=True)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, dict):
        assert_same(list(one.items()), list(other.items()))
    elif isinstance(one, pa.Table | pa.RecordBatch):
        assert one.schema.equals(other.schema, check_metadata=True)
        assert one.num_rows == other.num_rows
        assert str(one.to_pydict()) == str(other.to_pydict())  # in which NaN is NaN
    else:
        assert one == other


def assert_same_array(one: Any, other: Any) -> None:
    """Assert that two arrays or scalars have the same type, shape and bytes, and the same order of elements."""
    assert_same_types(one.dtype, other.dtype)
    assert one.shape == other.shape
    if one.dtype.names:  # by its fields: what lies between them may be anything
        for name in one.dtype.names:
            assert_same_array(one[name], other[name])
    elif isinstance(one.dtype, np.dtypes.StringDType):
        assert list(map(repr, one.ravel().tolist())) == list(map(repr, other.ravel().tolist()))
    else:
        assert one.tobytes() == other.tobytes()
    if isinstance(one, np.ndarray) and (one.flags.c_contiguous or one.flags.f_contiguous):
        assert one.flags.c_contiguous == other.flags.c_contiguous
        assert one.flags.f_contiguous == other.flags.f_contiguous


def assert_same_types(one: Any, other: Any) -> None:
    """Assert that two types of NumPy are the same, in what `==` passes over as well."""
    assert one == other
    assert (type(one), one.type, one.char) == (type(other), other.type, other.char)
    if isinstance(one, np.dtypes.StringDType):
        assert one.coerce == other.coerce
    if one.subdtype is not None:
        assert_same_types(one.subdtype[0], other.subdtype[0])
    assert one.isalignedstruct == other.isalignedstruct
    for name in one.names or ():
        assert_same_types(one[name], other[name])


def assert_same_frame(one: Any, other: Any) -> None:
    """Assert that two frames have the same columns, indexes and attributes, by type and value."""
    pd.testing.assert_frame_equal(one, other, check_exact=True, check_freq=True, check_flags=True)
    assert_same_index(one.columns, other.columns)
    for number in range(one.shape[1]):
        left, right = one.iloc[:, number], other.iloc[:, number]
        assert_same_dtype(left.dtype, right.dtype)
        if left.dtype == object:
            assert [(type(value), repr(value)) for value in left] == [(type(value), repr(value)) for value in right]
        elif isinstance(left.dtype, np.dtype) and left.dtype.kind == "f":
            assert (np.signbit(left) == np.signbit(right)).all()
    assert_same_state(one, other)


def assert_same_state(one: Any, other: Any) -> None:
    """Assert that what pandas keeps beside the values is the same."""
    assert_same_index(one.index, other.index)
    assert one.attrs == other.attrs
    assert one.flags.allows_duplicate_labels == other.flags.allows_duplicate_labels


def assert_same_index(one: Any, other: Any) -> None:
    """Assert that two indexes are of one type and equal."""
    assert type(one) is type(other)
    assert list(one.names) == list(other.names)
    pd.testing.assert_index_equal(one, other, exact=True, check_exact=True)
    if isinstance(one, pd.MultiIndex):
        assert one.sortorder == other.sortorder
        for left, right in zip(one.levels, other.levels, strict=True):
            assert_same_index(left, right)
    else:
        assert_same_dtype(one.dtype, other.dtype)
        assert getattr(one, "freq", None) == getattr(other, "freq", None)


def assert_same_dtype(one: Any, other: Any) -> None:
    """Assert that two types of columns are the same, categories and zones included."""
    assert one == other
    assert type(one) is type(other)
    if isinstance(one, pd.CategoricalDtype):
        assert one.ordered == other.ordered
        assert_same_index(one.categories, other.categories)
    if isinstance(one, pd.DatetimeTZDtype):
        assert type(one.tz) is type(other.tz)


def look_at(value: Any) -> None:
    """Use a value as a program would, so that one which is not sound has its chance to crash; whatever it raises.

    A moment that Python has no year for, for one, is an error only when it is looked at.
    """
    with suppress(Exception, pl.exceptions.PanicException):
        if isinstance(value, pl.DataFrame | pl.Series):
            value.to_arrow() if isinstance(value, pl.DataFrame) else value.to_list()
        elif isinstance(value, pa.Table | pa.RecordBatch):
            if value.num_rows < 1 << 16:
                value.to_pydict()
        elif isinstance(value, pd.DataFrame | pd.Series):
            if len(value) < 1 << 16:
                value.copy()
                repr(value)
        else:
            repr(value)
            np.asarray(value).tolist()


def strange_arrays() -> list[Any]:
    """Return arrays at the edges: without elements, without dimensions, in odd orders, types and widths."""
    return [
        np.array(5), np.zeros((0, 3)), np.zeros((2, 0), order="F"), np.zeros((1,) * 32), np.arange(10)[::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3).T[::-1], np.arange(3)[::-1],
        np.broadcast_to(np.arange(3), (2, 3)), np.array([0.0, -0.0, NAN, np.inf]), np.array([1, NAN], "f2"),
        np.zeros(2, ">i4"), np.zeros((2, 2), ">c16"), np.zeros(2, np.longdouble), np.zeros(2, np.clongdouble),
        np.array(["a", "bcd", "", "\U0010ffff"]), np.array(["x"], ">U3"), np.array([b"x\0y", b""]), np.zeros(2, "V5"),
        np.array(["NaT", "2020"], "M8[25us]"), np.array(["NaT"], "M8"), np.array([1, -(1 << 63)]).view("m8[ns]"),
        np.zeros(2, [("a", "i4"), ("é", ">f8", (2, 2)), ("ж", [("x", "S3"), ("y", "M8[s]")])]),
        np.zeros(2, [(("title", "a"), "i4")]), np.array([True, False]), np.arange(4).reshape(2, 2)[:, :1],
        np.zeros(2, np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [4, 12], "itemsize": 20})),
        *[np.zeros(2, dtype) for dtype in aligned_types()], np.arange(3, dtype=np.longlong), np.zeros((2, 2), ">Q", order="F"),
        np.zeros(2, [("a", "q", (2,)), ("b", [("c", ">q")])]),
    ]  # fmt: skip


def aligned_types() -> list[Any]:
    """Return types of structures made with `align=True`, with gaps and without, within others and around them."""
    inner = np.dtype([("x", "i1"), ("y", "i4")], align=True)
    return [
        np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True), np.dtype([("a", "i4"), ("b", "i4")], align=True),
        np.dtype([("a", "i1"), ("b", inner, (2,))]), np.dtype([("a", "i1"), ("b", [("x", "i1"), ("y", "i4")])], align=True),
        np.dtype([("a", "i1"), ("b", inner), (("title", "c"), "q")], align=True),
        np.dtype({"names": ["a", "b"], "formats": ["i2", "f4"], "offsets": [4, 8], "itemsize": 24}, align=True),
    ]  # fmt: skip


def string_arrays() -> list[Any]:
    """Return arrays of texts of any length, with every mark for missing ones that is data."""
    kind = np.dtypes.StringDType
    return [
        np.array(["a\0b\0", "", "é" * 100, "\U0010ffff"], kind()), np.array("x", kind()), np.zeros((0, 3), kind()),
        np.array([["a", None], ["b" * 50, ""]], kind(na_object=None)), np.array([["a", "b", "c"]] * 2, kind()).T,
        np.array(["a", NAN], kind(na_object=NAN)), np.array(["a", "b", "c"], kind(coerce=False))[::2],
    ]  # fmt: skip


def strange_scalars() -> list[Any]:
    """Return scalars of every kind."""
    return [
        np.float64(1.5), np.float64(NAN), np.float32(-0.0), np.float16(2), np.longdouble(1), np.complex64(1j), np.int8(-1),
        np.uint64(2**64 - 1), np.bool_(True), np.str_("é"), np.str_(""), np.bytes_(b"x"), np.bytes_(b""), np.void(b"abc"),
        np.datetime64("NaT"), np.datetime64(5, "ns"), np.timedelta64(3, "s"), np.zeros(1, "i4,f4")[0], np.clongdouble(2),
        np.longlong(3), np.ulonglong(2**64 - 1), *[np.zeros(1, dtype)[0] for dtype in aligned_types()],
    ]  # fmt: skip


def arrays_that_are_no_data() -> list[Any]:
    """Return arrays and scalars that would not come back as they are."""
    return [
        np.array([{1: 2}], object), np.zeros(2, [("a", object)]), np.zeros(2, "V0"),
        np.array(["a", "?"], np.dtypes.StringDType(na_object="?")), np.array(["a"], np.dtypes.StringDType(na_object=pd.NA)),
        np.zeros(2, np.dtype((np.record, [("a", "i4")]))),
        np.zeros(2, np.dtype("f8", metadata={"a": 1})), np.zeros(2, [("a", np.dtype("f8", metadata={"a": 1}))]),
        np.zeros(2, {"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 0]}), np.ma.masked_array([1, 2], [False, True]),
        np.zeros(2, [("a" * 500 + str(number), "i4") for number in range(40)]), np.str_("a\0"),
        np.rec.array([(1,)], dtype=[("a", "i4")]),
    ]  # fmt: skip


def strange_frames() -> dict[str, Any]:
    """Return frames and series of pandas with every kind of column, index and attribute that comes back as it is."""
    frame: Any = pd.DataFrame
    day = pd.date_range("2020", periods=2, freq="D", tz=ZONE)
    with_attributes = frame({"x": [1]})
    with_attributes.attrs = {"k": [1, (2,)], "n": None, 3: b"\xff"}
    return {
        "empty": frame(), "no rows": frame({"a": []}), "no columns": frame(index=range(3)), "one cell": frame([[1]]),
        "numbers": frame({kind: np.arange(3, dtype=kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}),
        "floats": frame({"a": [1.5, NAN, -0.0], "b": np.array([1, 2, NAN], "f2"), "c": np.array([1, np.inf, NAN], "f4")}),
        "booleans": frame({"a": [True, False]}), "complex": frame({"a": [1j, complex(NAN, -0.0)]}, dtype="c8"),
        "objects, None": frame({"a": ["x", None, ""]}, dtype=object), "objects, NA": frame({"a": pd.Series(["x", pd.NA], dtype=object)}),
        "objects, NaN": frame({"a": pd.Series(["x", NAN], dtype=object)}), "objects, none": frame({"a": pd.Series([], dtype=object)}),
        "objects, only None": frame({"a": pd.Series([None, None], dtype=object)}),
        "objects, bytes": frame({"a": pd.Series([b"x", b"\xff", None], dtype=object)}),
        "text": frame({"a": ["x", None, "\U0010ffff"]}, dtype="str"), "text, NA": frame({"a": ["x", None]}, dtype="string"),
        "text, Python": frame({"a": ["x", None]}, dtype=pd.StringDtype("python")),
        "text, Python, NaN": frame({"a": ["x", None]}, dtype=pd.StringDtype("python", na_value=NAN)),
        "moments": frame({"a": pd.to_datetime(["2020-01-01", None]), "b": np.array([1, -1], "M8[s]")}),
        "spans": frame({"a": pd.to_timedelta([1, None], unit="s"), "b": np.array([1, "NaT"], "m8[ms]")}),
        "zone": frame({"a": pd.to_datetime(["2020-07-01", None]).tz_localize(ZONE)}), "utc": frame({"a": pd.to_datetime(["2020"], utc=True)}),
        "fixed zone": frame({"a": pd.to_datetime(["2020"]).tz_localize(dt.timezone(dt.timedelta(hours=2)))}),
        "categories": frame({"a": pd.Categorical(["x", "y", None], categories=["z", "y", "x"], ordered=True)}),
        "categories of numbers": frame({"a": pd.Categorical([1, 2, None])}), "no categories": frame({"a": pd.Categorical([])}),
        "categories of moments": frame({"a": pd.Categorical(pd.to_datetime(["2020", "2021"]))}),
        "categories of objects": frame({"a": pd.Categorical(pd.Series(["x"], dtype=object))}),
        "many categories": frame({"a": pd.Categorical([str(number) for number in range(400)])}),
        "masked": frame({kind: pd.array([1, None, 0], dtype=kind) for kind in ("Int8", "UInt64", "Float32", "Float64", "boolean")}),
        "periods": frame({"a": pd.PeriodIndex(["2020-01", None], freq="M")}), "intervals": frame({"a": pd.arrays.IntervalArray.from_breaks([0, 1, 2])}),
        "missing interval": frame({"a": pd.arrays.IntervalArray.from_tuples([(0.0, 1.0), NAN], closed="both")}),
        "arrow": frame({"a": pd.array([1, None], dtype="int32[pyarrow]"), "b": pd.array([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int8())))}),
        "arrow text": frame({"a": pd.array(["x", None], dtype=pd.ArrowDtype(pa.string()))}),
        "same label twice": frame([[1, 2]], columns=["a", "a"]), "numbers as labels": frame([[1, 2]]),
        "mixed labels": frame([[1, 2, 3]], columns=["a", 1, None]), "named labels": frame([[1]], columns=pd.Index(["a"], name="cn")),
        "levels of labels": frame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", None])),
        "tuples as labels": frame([[1, 2]], columns=pd.Index([("a", 1), "b"], tupleize_cols=False)),
        "moments as labels": frame([[1, 2]], columns=pd.date_range("2020", periods=2)), "many labels": frame({str(n): [n] for n in range(300)}),
        "named index": frame({"a": [1, 2]}, index=pd.Index(["p", "q"], name=("n", 1))), "index of objects": frame({"a": [1, 2]}, index=pd.Index(["p", None], dtype=object)),
        "moments as index": frame({"a": [1, 2]}, index=day), "ends of months": frame({"a": [1, 2]}, index=pd.date_range("2020", periods=2, freq="ME")),
        "levels": frame({"a": [1, 2, 3]}, index=pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", None)], names=["k", ("t", 1)])),
        "levels that do not occur": frame({"a": range(4)}, index=pd.MultiIndex.from_product([["x", "y"], day])).iloc[:1],
        "range": frame({"a": [1, 2]}, index=pd.RangeIndex(2, 6, 2, name="r")), "index of categories": frame({"a": [1, 2]}, index=pd.CategoricalIndex(["x", "y"], name="c")),
        "index of intervals": frame({"a": [1, 2]}, index=pd.interval_range(0, 2)), "index of periods": frame({"a": [1, 2]}, index=pd.period_range("2020", periods=2, freq="Q")),
        "index of spans": frame({"a": [1, 2]}, index=pd.timedelta_range("1h", periods=2)), "index of floats": frame({"a": [1, 2]}, index=[0.5, NAN]),
        "no duplicates": frame({"a": [1]}).set_flags(allows_duplicate_labels=False), "attributes": with_attributes,
        "rows of an array": frame(np.arange(12.0).reshape(4, 3)), "some columns": frame(np.arange(24.0).reshape(4, 6))[[0, 2]],
        "some rows": frame({"a": range(10), "b": list("abcdefghij")}).query("a > 5"),
        "series": pd.Series([1, 2], name="s"), "series without a name": pd.Series(["a"], index=[5]), "series of objects": pd.Series(["a", None], dtype=object),
        "series named by a tuple": pd.Series([1.5], name=("a", 1)), "series of moments": pd.Series(day, name="d"), "empty series": pd.Series([], dtype="f4"),
    }  # fmt: skip


def frames_that_are_no_data() -> dict[str, Any]:
    """Return frames of pandas and polars that would not come back as they are."""
    odd = pd.DataFrame({"x": [1]})
    odd.attrs = {"k": object}
    both = pd.arrays.FloatingArray(np.array([1.0, NAN, 2.0]), np.array([False, False, True]))
    return {
        "objects of two kinds": pd.DataFrame({"a": pd.Series(["x", 1], dtype=object)}),
        "None and NaN": pd.DataFrame({"a": pd.Series(["x", None, NAN], dtype=object)}),
        "objects": pd.DataFrame({"a": [Decimal(1)], "b": [[1]]}), "NaN and NA": pd.DataFrame({"a": both}),
        "lone surrogates": pd.DataFrame({"a": pd.Series(["\ud800"], dtype=object)}), "attributes": odd,
        "sparse": pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1])}), "longdouble": pd.DataFrame({"a": np.array([1], np.longdouble)}),
        "other endianness": pd.DataFrame({"a": np.arange(3, dtype=">i4")}), "numbers among text": pd.Series(["a", 1.5], dtype=object),
        "holidays": pd.DataFrame({"a": [1]}, index=pd.bdate_range("2020", periods=1, freq="C", holidays=["2020-01-02"])),
        "subclass": type("Mine", (pd.DataFrame,), {"__module__": __name__})({"a": [1]}),
        "objects in polars": pl.DataFrame({"a": pl.Series([object], dtype=pl.Object)}),
    }  # fmt: skip


def polars_frames() -> dict[str, Any]:
    """Return frames and series of polars with every type of column."""
    frame, series = pl.DataFrame, pl.Series
    return {
        "empty": frame(), "numbers": frame({"a": [1, None]}), "floats": frame({"a": [1.5, NAN, None, -0.0]}), "no rows": frame(schema={"a": pl.Utf8}),
        "widths": frame({kind.__name__: series([1, 0], dtype=kind) for kind in (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt64, pl.Float32)}),
        "text": frame({"a": ["x", None, "\U0010ffff"], "b": [b"\xff", None, b""]}), "booleans": frame({"a": [True, None]}),
        "categories": frame({"a": series(["x", "y", None], dtype=pl.Categorical), "b": series(["b", "a", None], dtype=pl.Enum(["b", "a"]))}),
        "no categories": frame({"a": series([None], dtype=pl.Enum([]))}), "null": frame({"a": [None, None]}),
        "moments": frame({"a": [dt.datetime(2020, 1, 1)], "b": [dt.date(2020, 1, 1)], "c": [dt.time(1, 2, 3, 4)], "d": [dt.timedelta(1)]}),
        "zone": frame({"a": series([dt.datetime(2020, 7, 1)]).dt.replace_time_zone(ZONE).dt.cast_time_unit("ns")}),
        "nested": frame({"a": [[{"x": [1, None]}], None], "b": [{"y": "z"}, None]}), "arrays": frame({"a": series([[[1, 2], [3, 4]]], dtype=pl.Array(pl.Int8, (2, 2)))}),
        "decimals": frame({"a": [Decimal("1.10"), None]}), "pieces": pl.concat([frame({"a": ["x"]}), frame({"a": ["y"]})], rechunk=False),
        "null in lists": frame({"a": [[None], []], "b": [{"x": [None]}, None]}), "empty lists": series([[], []]),
        "series": series("n", [1, 2]), "series without a name": series([1.5]), "empty series": series("e", [], dtype=pl.Date),
    }  # fmt: skip


def tables() -> dict[str, Any]:
    """Return tables and record batches of Arrow."""
    table, array = pa.table, pa.array
    return {
        "empty": table({}), "numbers": table({"a": [1, None]}), "no rows": table({"a": array([], pa.int8())}), "slice": table({"a": [1, 2, 3, 4]}).slice(1, 2),
        "pieces": table({"a": pa.chunked_array([[1], [2, 3]])}), "dictionary": table({"a": array(["x", None, "x"]).dictionary_encode()}),
        "null": table({"a": array([None, None])}), "null in lists": table({"a": array([[None], None], pa.large_list(pa.null())), "b": [{"x": None}, None]}),
        "lists": table({"a": [[1], None, []]}), "structures": table({"a": [{"x": 1}, None]}),
        "map": table({"a": array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))}), "zone": table({"a": array([dt.datetime(2020, 1, 1)], pa.timestamp("ns", ZONE))}),
        "decimals": table({"a": [Decimal("1.10")]}), "floats": table({"a": [1.5, NAN], "b": array([1, None], pa.float16())}), "same name": table([[1], [2]], names=["a", "a"]),
        "metadata": table({"a": [1]}).replace_schema_metadata({"k": "v"}), "no name": table([[1]], names=[""]), "views": table({"a": array(["abc", "x" * 50], pa.string_view())}),
        "runs": table({"a": pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"])}), "fixed": table({"a": array([b"ab"], pa.binary(2)), "b": array([[1, 2]], pa.list_(pa.int8(), 2))}),
        "union": table({"a": pa.UnionArray.from_sparse(array([0, 1], pa.int8()), [array([1, 2]), array(["a", "b"])])}),
        "extensions": table({"a": array([uuid.UUID(int=5).bytes], pa.uuid())}), "times": table({"a": array([dt.time(1)], pa.time64("ns")), "b": [dt.timedelta(1)]}),
        "batch": pa.record_batch({"a": [1, 2]}), "empty batch": pa.record_batch({"a": array([], pa.int8())}), "no batch": pa.record_batch([], []),
        "batch with metadata": pa.record_batch({"a": [1]}).replace_schema_metadata({"z": "1"}),
    }  # fmt: skip


def samples() -> list[Any]:
    """Return all of the values that come back as they are."""
    return [
        *strange_arrays(),
        *string_arrays(),
        *strange_scalars(),
        *strange_frames().values(),
        *polars_frames().values(),
        *tables().values(),
    ]
