"""Arrays, scalars, tables and data frames come back equal and of the same type without a pickle, or are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.extra import pandas as hpd

from diskcache_like import Cache
from diskcache_like.disk.codec import new_codec
from diskcache_like.disk.columnar import registry
from diskcache_like.encoding.record import MODE_ARRAY, MODE_ARROW, MODE_PICKLE
from diskcache_like.encoding.values import NotSerializable
from diskcache_like.errors import ValueEncodeError
from diskcache_like.settings.definitions import DEFAULT_SETTINGS

from ..support.cache_kinds import QUICK
from ..support.sample_arrays import (
    arrays_that_are_no_data,
    assert_same,
    frames_that_are_no_data,
    polars_frames,
    samples,
    strange_arrays,
    strange_frames,
    tables,
)
from ..support.tampering import value_files

LARGE: list[Any] = [
    np.arange(100_000.0),
    np.asfortranarray(np.ones((300, 200), "i4")),
    pd.DataFrame({"a": np.arange(50_000), "b": ["text"] * 50_000}),
    pa.table({"a": range(50_000), "b": ["x"] * 50_000}),
    polars_frames()["numbers"].select(a="a").sample(40_000, with_replacement=True, seed=1),
]


def codec(serializer: str) -> Any:
    return new_codec(serializer, "none", DEFAULT_SETTINGS, "never")


def packed(value: Any) -> registry.Packed:
    pack = registry.packer(type(value))
    assert pack is not None
    return pack(value)


def there_and_back(value: Any) -> None:
    """Assert that a value comes back from both serializers, and from a file in both ways."""
    for name in ("msgpack", "arrow"):
        one = codec(name)
        assert_same(value, one.decode(one.encode(value)))
    found = packed(value)
    if found.mode:
        content = found.content()
        assert found.size == len(content)
        assert_same(value, registry.unpack(found.mode, content))
        assert_same(value, registry.unpack(found.mode, content, trusted=True, copy=False))


@pytest.mark.parametrize("value", samples(), ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_is(value: Any) -> None:
    there_and_back(value)


dtypes = (
    hnp.scalar_dtypes()
    | hnp.nested_dtypes(max_itemsize=64)
    | hnp.array_dtypes(hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes())
)
arrays = hnp.arrays(
    dtypes.filter(lambda dtype: dtype.itemsize > 0), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)
)


@given(arrays, st.sampled_from("CFA"), st.booleans())
def test_any_array_comes_back(array: Any, order: Any, backwards: bool) -> None:
    value = np.array(array, order=order)
    value = value[::-1] if backwards and value.ndim else value
    assert type(value) is np.ndarray
    there_and_back(value)


@given(hnp.arrays(hnp.scalar_dtypes(), ()))
def test_any_scalar_comes_back(array: Any) -> None:
    value = array[()]
    assert_same(value, codec("msgpack").decode(codec("msgpack").encode(value)))


columns = [
    hpd.column("number", dtype=np.int64),
    hpd.column("float", elements=st.floats(width=64)),
    hpd.column("moment", dtype="M8[ns]"),
    hpd.column("text", elements=st.text(st.characters(exclude_categories=["Cs"])), dtype=object),
    hpd.column("flag", dtype=bool),
]


@given(hpd.data_frames(columns), st.sampled_from([None, "number", "text", "moment", ["text", "number"]]), st.booleans())
@settings(max_examples=50)
def test_any_frame_comes_back(frame: Any, index: Any, categories: bool) -> None:
    if categories:
        frame["text"] = frame["text"].astype("category")
    there_and_back(frame if index is None else frame.set_index(index))


@given(hpd.series(elements=st.none() | st.text(st.characters(exclude_categories=["Cs"])), dtype=object))
@settings(max_examples=50)
def test_any_series_of_text_comes_back(series: Any) -> None:
    there_and_back(series)


def test_values_inside_others_come_back() -> None:
    value = {"a": [np.arange(3), (np.int8(1), pd.Series([1]))], "b": {"c": pa.table({"x": [1]})}, "d": bytearray(b"x")}
    both = codec("msgpack")
    assert_same(value, both.decode(both.encode(value)))


@pytest.mark.parametrize(
    "value", [*arrays_that_are_no_data(), *frames_that_are_no_data().values()], ids=lambda value: type(value).__name__
)
def test_what_would_not_come_back_is_no_data(value: Any) -> None:
    for name in ("msgpack", "arrow"):
        with pytest.raises(NotSerializable):
            codec(name).encode(value)
        with pytest.raises(NotSerializable):
            codec("msgpack").encode([value])


def test_a_table_whose_pieces_have_different_dictionaries_is_no_data() -> None:
    pieces = [pa.array(["x"]).dictionary_encode(), pa.array(["y", "z"]).dictionary_encode()]
    with pytest.raises(NotSerializable, match="ictionary"):
        packed(pa.table({"a": pa.chunked_array(pieces)}))


def test_what_is_no_data_is_pickled_if_the_policy_allows(tmp_path: Path) -> None:
    value = np.array([{1: 2}], object)
    with Cache(tmp_path / "signed", **QUICK) as cache:
        cache["key"] = value
        assert cache["key"][0] == {1: 2}
        assert stored_mode(cache, "key") == MODE_PICKLE
    with Cache(tmp_path / "never", pickle="never", **QUICK) as cache:
        with pytest.raises(ValueEncodeError, match=r"ndarray is not plain data .*objects.* pickle='never'"):
            cache["key"] = value
        with pytest.raises(ValueEncodeError, match=r"column of objects of Decimal, list|objects of Decimal"):
            cache["key"] = frames_that_are_no_data()["objects"]
        cache["key"] = strange_frames()["categories"]
        assert len(cache) == 1
        assert cache.check() == []


def stored_mode(cache: Cache, key: Any) -> int:
    stored, h, store = location = cache._rows.locate(key)
    record = cache._rows.verified(key, location, store.read(h, stored))
    assert record is not None
    return record.mode


@pytest.mark.parametrize("options", [{}, {"disk_min_file_size": 0}, {"hot_size_limit": 0}, {"compressor": "zlib"},
                                     {"serializer": "arrow"}, {"secret": "s" * 16}], ids=str)  # fmt: skip
def test_a_cache_gives_values_back(tmp_path: Path, options: dict[str, Any]) -> None:
    values = [*samples(), *LARGE]
    with Cache(tmp_path, pickle="never", **{**QUICK, **options}) as cache:
        for number, value in enumerate(values):
            cache[number] = value
        for _ in range(2):  # from the database, then from memory
            for number, value in enumerate(values):
                assert_same(value, cache[number])
        assert cache.check() == []
        assert cache.metrics().damaged == 0


def test_each_reader_gets_a_value_of_its_own_to_change(tmp_path: Path) -> None:
    small, large = np.arange(4), np.arange(100_000)
    with Cache(tmp_path, **QUICK) as cache:
        for key, value in (("small", small), ("large", large)):
            cache[key] = value
            for _ in range(3):
                found = cache[key]
                assert found.flags.writeable
                assert found[1] == 1
                found[1] = 99
        frame = pd.DataFrame({"a": [1, 2], "b": pd.array([1, None], dtype="Int8"), "c": ["x", "y"]})
        cache["frame"] = frame
        for _ in range(3):
            found = cache["frame"]
            assert_same(frame, found)
            found.iloc[0] = [5, 6, "z"]


def test_what_is_written_later_does_not_change_what_is_stored(tmp_path: Path) -> None:
    array = np.arange(4)
    with Cache(tmp_path, **QUICK) as cache:
        cache["key"] = array
        array[0] = 99
        assert cache["key"][0] == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("signed", [False, True])
def test_an_array_that_is_read_into_its_memory_is_the_readers_own(tmp_path: Path, signed: bool, order: Any) -> None:
    array = np.asarray(np.arange(30_000.0).reshape(100, 300), order=order)
    given: Any = {"secret": b"s" * 32} if signed else {}
    with Cache(tmp_path, hot_size_limit=0, **given) as cache:
        cache["key"] = array
        cache["strings"] = np.array(["text", "more"] * 20_000)
        for _ in range(2):
            found = cache["key"]
            assert_same(array, found)
            assert (found.flags.writeable, found.flags.aligned) == (True, True)
            found[:] = 0
        assert cache["strings"][1] == "more"
        (file,) = [file for file in value_files(tmp_path) if file.stat().st_size < 300_000]
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        assert cache.get("key") is None
        file.write_bytes(content[:-8])
        assert cache.get("key") is None


def test_a_large_value_is_a_file_that_other_programs_read(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(60_000.0).reshape(200, 300))
    table = pa.table({"a": range(50_000)})
    with Cache(tmp_path, **QUICK) as cache:
        cache["array"] = array
        assert stored_mode(cache, "array") == MODE_ARRAY
        (file,) = value_files(tmp_path)
        assert_same(array, np.load(file, allow_pickle=False))
        assert_same(array, np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray))
        cache["table"] = table
        assert stored_mode(cache, "table") == MODE_ARROW
        (other,) = set(value_files(tmp_path)) - {file}
        with pa.ipc.open_file(other) as reader:
            assert reader.read_all().column("a").to_pylist() == list(range(50_000))


@pytest.mark.parametrize("array", strange_arrays(), ids=lambda array: str(array.dtype)[:20])
def test_an_array_is_written_as_numpy_writes_it(array: Any) -> None:
    loaded = np.load(io.BytesIO(packed(array).content()), allow_pickle=False)
    assert loaded.dtype == array.dtype
    assert_same(np.array(array, order="A"), loaded.view(array.dtype))  # it may be aligned, which .npy does not say


@pytest.mark.parametrize("table", tables().values(), ids=tables())
def test_a_table_is_read_as_arrow_reads_it(table: Any) -> None:
    with pa.ipc.open_file(pa.py_buffer(packed(table).content())) as reader:
        assert str(reader.read_all().to_pydict()) == str(table.to_pydict())


def test_the_serializer_arrow_takes_nothing_else(tmp_path: Path) -> None:
    with Cache(tmp_path, serializer="arrow", pickle="never", **QUICK) as cache:
        cache["bytes"] = b"bytes"
        assert cache["bytes"] == b"bytes"
        with pytest.raises(ValueEncodeError, match="arrays, tables"):
            cache["list"] = [np.arange(3)]
    with Cache(tmp_path, **QUICK) as cache:  # pickled where that is allowed
        cache["list"] = [1]
        assert cache["list"] == [1]


def test_the_serializer_pickle_pickles_these_too(tmp_path: Path) -> None:
    with Cache(tmp_path, serializer="pickle", **QUICK) as cache:
        cache["key"] = LARGE[0]
        assert stored_mode(cache, "key") == MODE_PICKLE
        assert_same(LARGE[0], cache["key"])


def test_types_that_only_call_themselves_so_are_no_data() -> None:
    class Array:
        __module__ = "numpy"

    class Frame:
        __module__ = "pandas.core"

    for value in (Array(), Frame()):
        assert registry.packer(type(value)) is None
        with pytest.raises(NotSerializable):
            codec("msgpack").encode(value)
