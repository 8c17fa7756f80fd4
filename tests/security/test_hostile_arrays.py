"""Arrays and tables that were not written here: an error of their own or a miss, no code run, no crash, bounded memory."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from msgpack import ExtType, packb

from diskcache_like import Cache
from diskcache_like.disk.codec import new_codec
from diskcache_like.disk.columnar import arrow, pandas, registry, string_arrays
from diskcache_like.encoding.record import MODE_ARRAY, MODE_ARROW, pack
from diskcache_like.encoding.values import encode_value
from diskcache_like.errors import DecodeError
from diskcache_like.settings.definitions import DEFAULT_SETTINGS

from ..support.cache_kinds import QUICK
from ..support.hostile_content import HOSTILE_ARRAYS
from ..support.tampering import value_files

CODEC = new_codec("msgpack", "none", DEFAULT_SETTINGS, "never")


def packed(value: Any) -> bytes:
    pack = registry.packer(type(value))
    assert pack is not None
    return pack(value).content()


def i64(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


def strings(header: Any, *lengths: int, texts: bytes = b"", length: int | None = None) -> bytes:
    """Return what may be an array of texts of any length."""
    head = encode_value(header)
    size = (len(head) if length is None else length).to_bytes(4, "little")
    return string_arrays.MAGIC + size + head + i64(*lengths) + texts


HOSTILE_STRINGS = {
    "too few texts": strings(((2,), False, "", True), 0), "too many texts": strings(((1,), False, "", True), 0, 0),
    "too few bytes": strings(((1,), False, "", True), 5, texts=b"abcd"), "too many bytes": strings(((1,), False, "", True), 3, texts=b"abcd"),
    "negative": strings(((2,), False, "", True), -1, 1, texts=b"a"), "more negative": strings(((2,), False, "None", True), -2, 1, texts=b"a"),
    "huge": strings(((1 << 62,), False, "", True), 0), "huge product": strings(((1 << 40, 1 << 40), False, "", True)), "negative shape": strings(((-1, -1), False, "", True), 0),
    "huge text": strings(((2,), False, "", True), (1 << 63) - 1, (1 << 63) - 1), "no UTF-8": strings(((1,), False, "", True), 1, texts=b"\xff"),
    "text that is cut": strings(((2,), False, "", True), 1, 1, texts="é".encode()), "unknown mark": strings(((0,), False, "NA", True)),
    "flags": strings(((0,), 1, "", True)), "coerce": strings(((0,), False, "", "yes")), "no header": string_arrays.MAGIC, "long header": strings((), length=1 << 31),
    "too many dimensions": strings(((1,) * 65, False, "", True), 0), "no shape": strings((None, False, "", True)), "shape of texts": strings((("a",), False, "", True)), "objects": strings(((0,), False, ["None"], True)),
}  # fmt: skip


@pytest.mark.parametrize(
    "content", [*HOSTILE_ARRAYS.values(), *HOSTILE_STRINGS.values()], ids=[*HOSTILE_ARRAYS, *HOSTILE_STRINGS]
)
def test_a_hostile_header_is_an_error(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            registry.unpack(MODE_ARRAY, content)
        with pytest.raises(DecodeError):
            CODEC.decode(packb(ExtType(registry.ARRAY, content)))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


HOSTILE_SCALARS = [
    b"",
    b"\x05",
    b"\x04'|O'" + bytes(8),
    b"\x05'<f8'" + bytes(7),
    b"\x05'<U1'\xff\xff\xff\xff",
    b"\x06'|V0'",
    b"\xff" * 300,
]


@pytest.mark.parametrize("content", HOSTILE_SCALARS, ids=range(len(HOSTILE_SCALARS)))
def test_a_hostile_scalar_is_an_error(content: bytes) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(packb(ExtType(registry.SCALAR, content)))


def ipc(table: Any, kind: bytes = b"Table", **options: Any) -> bytes:
    """Return a file of Arrow's with whatever is in it, as its own writer makes it."""
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), b"diskcache_like": kind})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def forged(table: Any, old: bytes, new: bytes) -> bytes:
    """Return a file whose last `old` is replaced; Arrow itself would not make a table of such buffers."""
    content = ipc(table)
    place = content.rindex(old)
    return content[:place] + new + content[place + len(old) :]


def i32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def lists_of_nulls(count: int) -> Any:
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count))


def sharing(column: Any, count: int) -> bytes:
    """Return a file of as many columns that all have the bytes of the first one."""
    content = bytearray(ipc(pa.table({str(number): column for number in range(count)})))
    schema = 16 + int.from_bytes(content[12:16], "little")  # behind it the only batch
    start, size = schema + 8, int.from_bytes(content[schema + 4 : schema + 8], "little")
    meta = memoryview(content)[start : start + size]
    message = int.from_bytes(meta[:4], "little")
    batch = arrow._table_at(meta, arrow._field(meta, message, arrow._MESSAGE_HEADER))
    buffers = arrow._table_at(meta, arrow._field(meta, batch, 2))
    each = 16 * int.from_bytes(meta[buffers : buffers + 4], "little") // count
    first = bytes(meta[buffers + 4 : buffers + 4 + each])
    meta[buffers + 4 : buffers + 4 + each * count] = first * count
    ends = [int.from_bytes(first[at : at + 8], "little") + int.from_bytes(first[at + 8 : at + 16], "little") for at in range(0, each, 16)]  # fmt: skip
    body = (max(ends) + 63) // 64 * 64
    length = arrow._field(meta, message, 3)
    meta[length : length + 8] = i64(body)
    meta.release()
    return bytes(content[: start + size + body]) + b"\xff" * 4 + bytes(4)


def dictionary_in_pieces(count: int) -> bytes:
    """Return a file in which each batch is preceded by another value of its dictionary."""
    sink, values = pa.BufferOutputStream(), ["x" * 100_000]
    schema = pa.schema({"a": pa.dictionary(pa.int8(), pa.string())}, {"diskcache_like": "Table"})
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for number in range(count):
            column = pa.DictionaryArray.from_arrays(pa.array([number], pa.int8()), pa.array(values))
            writer.write_batch(pa.record_batch([column], schema=schema))
            values.append(str(number))
    return b"ARROW1\0\0" + bytes(sink.getvalue().to_pybytes())


CATEGORIES = pa.table({"a": pa.array(["x", "y", "z"]).dictionary_encode()})
_TURNS = pa.array([0, 1] * 8, pa.int8())
UNION = pa.table({"a": pa.UnionArray.from_sparse(_TURNS, [pa.array(range(16)), pa.array(["a"] * 16)])})
HOSTILE_TABLES = {
    "offsets beyond the end": forged(pa.table({"a": ["a", "b"]}), i32(0, 1, 2), i32(0, 1, 1 << 30)),
    "offsets backwards": forged(pa.table({"a": ["a", "a", "b"]}), i32(0, 1, 2, 3), i32(0, 3, 1, 3)),
    "large offsets": forged(pa.table({"a": pa.array(["a", "b"], pa.large_string())}), i64(0, 1, 2), i64(0, 1 << 40, 2)),
    "negative offsets": forged(pa.table({"a": ["a", "b"]}), i32(0, 1, 2), i32(-9, 1, 2)),
    "list offsets": forged(pa.table({"a": [[5], [6]]}), i32(0, 1, 2), i32(0, 1 << 20, 2)),
    "index of no category": forged(CATEGORIES, i32(0, 1, 2), i32(0, 7, 2)),
    "index one too high": forged(CATEGORIES, i32(0, 1, 2), i32(0, 3, 2)),
    "offset one too high": forged(pa.table({"a": ["a", "b"]}), i32(0, 1, 2), i32(0, 1, 3)),
    "negative index": forged(CATEGORIES, i32(0, 1, 2), i32(0, -7, 2)),
    "text that is none": forged(pa.table({"a": ["abcdefgh"]}), b"abcdefgh", b"abcdefg\xff"),
    "views elsewhere": forged(
        pa.table({"a": pa.array(["x" * 50], pa.string_view())}), b"xxxx" + i32(0, 0), b"xxxx" + i32(5, 0)
    ),
    "a name with NUL": ipc(pa.table({"a\0b": [1]}), b"polars.DataFrame"),
    "a name that is no text": ipc(pa.table({"columnname": [1]}), b"polars.DataFrame").replace(b"columnname", b"column\xffame"),
    "a name inside": ipc(pa.table({"a": [{"x\0y": 1}]}), b"polars.DataFrame"),
    "structures longer than their fields": forged(pa.table({"a": [{"x": None}] * 3}), i64(3, 3), i64(-3, 3)),
    "union of no type": forged(UNION, bytes([0, 1] * 8), bytes([0, 7] * 8)),
    "runs": forged(pa.table({"a": pa.RunEndEncodedArray.from_arrays([2, 3], ["x", "y"])}), i64(2, 3), i64(9, 3)),
    "columns that share their bytes": sharing(pa.array([True] * 100_000), 50), "columns that share their text": sharing(pa.array(["x" * 10_000] * 3), 50),
    "dictionary in pieces": dictionary_in_pieces(50),
    "compressed": ipc(pa.table({"a": [0] * 100_000}), compression="zstd"), "compressed, LZ4": ipc(pa.table({"a": [0] * 100_000}), compression="lz4"),
    "compressed dictionary": ipc(pa.table({"a": pa.array(["x" * 10_000] * 10).dictionary_encode()}), compression="zstd"),
    "rows of nothing": ipc(pa.table({"a": pa.Array.from_buffers(pa.null(), 1 << 40, [None])}), allow_64bit=True), "lists of nothing": ipc(pa.table({"a": lists_of_nulls(1 << 25)})), "deeper lists of nothing": ipc(pa.table({"a": pa.StructArray.from_arrays([lists_of_nulls(1 << 25)], ["x"])})),
    "lists of lists without width": ipc(pa.table({"a": pa.array([[[]]], pa.list_(pa.list_(pa.int8(), 0)))})), "pairs of nothing": ipc(pa.table({"a": pa.array([[None, None]], pa.list_(pa.null(), 2))})),
    "unknown kind": ipc(pa.table({"a": [1]}), b"numpy.load"), "no kind": ipc(pa.table({"a": [1]}), b""),
    "batch in pieces": ipc(pa.table({"a": pa.chunked_array([[1], [2]])}), b"RecordBatch"),
    "no frame of pandas": ipc(pa.table({"a": [1]}), b"pandas"), "no frame of pandas either": ipc(pa.table({"a": [1]}), b"pandas" + encode_value([1])),
    "series of two": ipc(pa.table({"a": [1], "b": [2]}), b"polars.Series"), "polars?": ipc(pa.table({"a": [1]}), b"polars.Lazy"),
    "nothing": b"", "only the magic": b"ARROW1\0\0", "a stream cut off": ipc(pa.table({"a": [1]}))[:100],
}  # fmt: skip


@pytest.mark.parametrize("large", [arrow._LARGE, 0])
@pytest.mark.parametrize("content", HOSTILE_TABLES.values(), ids=HOSTILE_TABLES)
def test_a_hostile_table_is_an_error(content: bytes, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_LARGE", large)
    before = pa.total_allocated_bytes()
    with pytest.raises(DecodeError):
        registry.unpack(MODE_ARROW, content)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_no_dictionary_is_put_together_for_each_batch() -> None:
    with pytest.raises(DecodeError, match="in pieces"):
        registry.unpack(MODE_ARROW, HOSTILE_TABLES["dictionary in pieces"])


def test_a_type_registered_by_others_is_refused() -> None:
    class Mine(pa.ExtensionType):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(pa.int8(), "tests.mine")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, _storage: Any, _data: bytes) -> Any:
            return cls()

    pa.register_extension_type(Mine())
    try:
        table = pa.table({"a": pa.ExtensionArray.from_storage(Mine(), pa.array([1], pa.int8()))})
        with pytest.raises(DecodeError, match="not Arrow's own"):
            registry.unpack(MODE_ARROW, ipc(table))
        with pytest.raises(Exception, match="not Arrow's own"):
            packed(table)
    finally:
        pa.unregister_extension_type("tests.mine")


def frame(*header: Any, **columns: Any) -> bytes:
    return ipc(pa.table(columns), b"pandas" + encode_value(list(header)))


RANGE = ["range", 0, 1, 1, None]
FAR = ["range", 0, 1 << 25, 1, None]
LABELS = [["values", ["labels", ["a"]], None, None], None]
HOSTILE_FRAMES = {
    "fewer columns": frame("DataFrame", [["numbers", "<i8"]] * 2, LABELS, RANGE, {}, True, a=[1]),
    "another type": frame("DataFrame", [["numbers", "<i8"]], LABELS, RANGE, {}, True, a=["x"]),
    "objects": frame("DataFrame", [["numbers", "|O"]], LABELS, RANGE, {}, True, a=[1]),
    "no such type": frame("DataFrame", [["numbers", "mine[int]"]], LABELS, RANGE, {}, True, a=[1]),
    "an accessor": frame("DataFrame", [["eval", "1"]], LABELS, RANGE, {}, True, a=[1]),
    "missing numbers": frame("DataFrame", [["numbers", "<i8"]], LABELS, RANGE, {}, True, a=[None]),
    "wrong length": frame("DataFrame", [["numbers", "<i8"]], LABELS, ["range", 0, 9, 1, None], {}, True, a=[1]),
    "no category": frame("DataFrame", [["categories", LABELS, False]], LABELS, RANGE, {}, True, a=pa.array([7], pa.int8())),
    "levels": frame("DataFrame", [], LABELS, ["levels", [LABELS], [None], None], {}, True, a=pa.array([5], pa.int8())),
    "a name that cannot be one": frame("Series", [["numbers", "<i8"]], [], RANGE, {}, True, a=[1]),
    "another frame": frame("eval", [["numbers", "<i8"]], LABELS, RANGE, {}, True, a=[1]),
    "text for numbers": frame("DataFrame", [["text", "python", "nan", None]], LABELS, RANGE, {}, True, a=[1]),
    "attributes": frame("DataFrame", [["numbers", "<i8"]], LABELS, RANGE, 5, True, a=[1]), "step of zero": frame("DataFrame", [], LABELS, ["range", 0, 1, 0, None], {}, True),
    "steps": frame("Series", [["numbers", "<i8"]], None, ["values", ["numbers", "<M8[ns]"], None, "X"], {}, True, a=[1], b=[1]),
    "masked as text": frame("Series", [["masked", "Int8"]], None, RANGE, {}, True, a=["x"]), "period": frame("Series", [["periods", "x"]], None, RANGE, {}, True, a=[1]),
    "intervals": frame("Series", [["intervals", RANGE, RANGE, "nowhere"]], None, RANGE, {}, True),
    "a zone elsewhere": frame("Series", [["numbers", "datetime64[ns, dateutil//etc/passwd]"]], None, RANGE, {}, True, a=[1]),
    "names without columns": frame("DataFrame", [], LABELS, FAR, {}, True), "a range of names": frame("DataFrame", [], [FAR, None], RANGE, {}, True),
    "a range of intervals": frame("Series", [["intervals", FAR, FAR, "left"]], None, FAR, {}, True),
    "a range of a level": frame("DataFrame", [], [["range", 0, 0, 1, None], None], ["levels", [[FAR, None]], [None], None], {}, True, a=[1]),
    "a range of categories": frame("Series", [["categories", [FAR, None], False]], None, RANGE, {}, True, a=[0]),
    "nothing for codes": frame("DataFrame", [], [["range", 0, 0, 1, None], None], ["levels", [LABELS], [None], None], {}, True, a=pa.nulls(1 << 20)),
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE_FRAMES.values(), ids=HOSTILE_FRAMES)
def test_a_hostile_frame_is_an_error(content: bytes) -> None:
    with pytest.raises(DecodeError):
        registry.unpack(MODE_ARROW, content)


def test_no_frame_opens_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of a type pandas looks for a time zone, which dateutil takes for a path."""
    opened: list[Any] = []
    monkeypatch.setattr("builtins.open", lambda path, *_rest, **_named: opened.append(path))
    with pytest.raises(DecodeError):
        registry.unpack(MODE_ARROW, HOSTILE_FRAMES["a zone elsewhere"])
    assert not opened


@pytest.mark.parametrize("name", ["names without columns", "a range of intervals", "nothing for codes"])
def test_no_frame_takes_memory_for_what_is_not_there(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            registry.unpack(MODE_ARROW, HOSTILE_FRAMES[name])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_frames_are_made_only_from_forms_that_are_known() -> None:
    """Arrow's own metadata for pandas, which names types to look up, is not looked at."""
    table = pa.Table.from_pandas(pd.DataFrame({"a": [1]}))
    assert b"pandas" in table.schema.metadata
    assert type(registry.unpack(MODE_ARROW, ipc(table))) is pa.Table
    assert set(pandas._READERS) == {
        *("numbers", "labels", "objects", "text", "masked", "categories", "zoned", "periods", "intervals", "arrow")
    }


@pytest.mark.parametrize("mode", [MODE_ARRAY, MODE_ARROW])
@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_a_planted_file_is_a_miss(tmp_path: Path, mode: int, mapped: bool) -> None:
    """A checksum is no protection from who can compute it, so what it fits is not trusted."""
    hostile = HOSTILE_ARRAYS["objects"] if mode == MODE_ARRAY else HOSTILE_TABLES["offsets beyond the end"]
    with Cache(tmp_path, hot_size_limit=0, mmap=mapped, disk_min_file_size=16, **QUICK) as cache:
        with cache.open("key", "wb") as writer:
            writer.write(hostile)
        plant_mode(cache, "key", mode)
        assert cache.get("key", 5) == 5
        assert cache.metrics().damaged == 1
        assert len(value_files(tmp_path)) == 1


def plant_mode(cache: Cache, key: Any, mode: int) -> None:
    """Rewrite the entry's record as someone would who knows the format: checksums fit, the mode is another."""
    stored, h, _ = location = cache._rows.locate(key)
    store = cache._shards.of(h)
    record = cache._rows.verified(key, location, store.read(h, stored))
    assert record is not None
    with store.locked(None):
        store.connection.open().execute(
            "UPDATE entry SET v = ? WHERE h = ?", (pack(stored, record._replace(mode=mode)), h)
        )


@pytest.mark.parametrize("mode", [MODE_ARRAY, MODE_ARROW])
def test_an_empty_file_is_a_miss(tmp_path: Path, mode: int) -> None:
    with Cache(tmp_path, hot_size_limit=0, mmap=True, **QUICK) as cache:
        cache.set("key", io.BytesIO(), read=True)
        plant_mode(cache, "key", mode)
        assert cache.get("key", 5) == 5
        assert cache.get("key", 5, mmap=False) == 5
        assert cache.metrics().damaged == 2


@pytest.mark.parametrize("mode", [MODE_ARRAY, MODE_ARROW])
def test_a_mode_in_the_row_is_a_miss(tmp_path: Path, mode: int) -> None:
    with Cache(tmp_path, hot_size_limit=0, **{**QUICK, "write_buffer": 0}) as cache:
        cache.set("key", np.arange(3), tag="t")
        plant_mode(cache, "key", mode)
        assert cache.get("key") is None


def test_a_cache_of_pickles_reads_no_other_mode(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0, serializer="pickle", **QUICK) as cache:
        with cache.open("key", "wb") as writer:
            writer.write(packed(np.arange(100_000)))
        plant_mode(cache, "key", MODE_ARRAY)
        assert cache.get("key") is None


def test_messages_are_read_in_order_whatever_the_footer_says() -> None:
    content = bytearray(packed(pa.table({"a": [1, 2, 3]})))
    footer = int.from_bytes(content[-10:-6], "little")
    content[-10 - footer : -10] = b"\xff" * footer
    _, table = arrow.read(bytes(content), trusted=False)
    assert table.column("a").to_pylist() == [1, 2, 3]
