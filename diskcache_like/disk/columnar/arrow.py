"""Arrow tables as data: written as an Arrow IPC file, and read as the stream of messages in it.

The footer of such a file is for other programs, which can open a value file. This module reads the messages in order,
so that nothing can point outside of them, and checks what Arrow does not check by itself: there must be no compressed
buffers, which could expand to any size, no lengths without bytes, and no types that would run other code. Unless the
content is known to be this program's own, every offset, index and text is checked too. Nulls take no space, so a
payload could claim any number of them in lists and structures; therefore these are counted.

Whoever reads a column trusts its offsets and indices, and polars trusts that its text is UTF-8. So all of them are
checked before anybody reads one, at the speed of memory if possible.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ...encoding.values import NotSerializable
from ...errors import DecodeError, missing_dependency
from ...system.signals import reraise_signal

try:
    import pyarrow as pa
except ImportError as reason:
    raise missing_dependency("pyarrow", "arrow", "a table") from reason

__all__ = ["KINDS", "pa", "pack_table", "read", "unpack_table", "write"]

_MAGIC: Final = b"ARROW1\0\0"
_ROWS_WITHOUT_BYTES: Final = 1 << 24  # columns of nulls can claim any number of rows without taking space
_LARGE: Final = 1 << 20  # bytes of a column that Arrow takes a millisecond to validate, value by value
_OWN_KEY: Final = b"diskcache_like"  # key of this package's entry in the metadata of a schema
_BATCH, _DICTIONARY = "record batch", "dictionary"


KINDS: Final = frozenset((pa.Table, pa.RecordBatch))
"""The types of tables; they cannot be subclassed."""


def pack_table(value: Any) -> Any:
    """Return the IPC file, as one buffer, of a table or record batch."""
    if type(value) is pa.Table:
        return write(value, b"Table")
    return write(pa.Table.from_batches([value]), b"RecordBatch")


def unpack_table(kind: bytes, table: Any) -> Any:
    """Return the table or record batch that `pack_table` was given."""
    if kind == b"Table":
        return table
    batches = table.to_batches()
    if kind != b"RecordBatch" or len(batches) > 1:
        raise DecodeError(f"a table of {len(batches)} batches cannot be {kind[:40]!r}")
    if batches:
        return batches[0]
    return pa.RecordBatch.from_arrays([pa.array([], one) for one in table.schema.types], schema=table.schema)


def write(table: Any, kind: bytes) -> Any:
    """Return a table as an IPC file in one buffer, with `kind` in its metadata; raise NotSerializable if that fails."""
    schema = table.schema
    if _OWN_KEY in (schema.metadata or {}):
        raise NotSerializable("a table whose metadata has this package's key is not serializable")
    sink = pa.BufferOutputStream()
    marked = schema.with_metadata({**(schema.metadata or {}), _OWN_KEY: kind})
    try:
        _check_schema(schema)
        with pa.ipc.new_file(sink, marked) as writer:
            writer.write_table(table)
        content = sink.getvalue()
        _check_sizes(table, content.size)
        again = pa.ipc.open_stream(content.slice(len(_MAGIC))).schema
    except (pa.ArrowException, DecodeError, UnicodeError) as error:
        raise NotSerializable(f"a table is not serializable: {error}") from error
    if not again.equals(marked, check_metadata=True):
        raise NotSerializable(f"a table with the schema {schema} is not serializable: it would come back as {again}")
    return content


def read(content: Any, trusted: bool) -> tuple[bytes, Any]:
    """Return what a table stands for, and the table, which uses the memory of `content`.

    Unless `trusted`, this takes time in proportion to the size of the columns; of columns of plain numbers or times
    only one bit per value is read, and only if there are nulls. Raises DecodeError for what `write` did not write.
    """
    try:
        data = pa.py_buffer(content)
        if data.size < len(_MAGIC) or bytes(content[: len(_MAGIC)]) != _MAGIC:
            raise DecodeError("a table does not begin with the magic of one")
        stream = data.slice(len(_MAGIC))
        _check_messages(stream)
        with pa.ipc.open_stream(stream) as reader:
            _check_schema(reader.schema)
            table = reader.read_all()
        table.validate()  # validates lengths; with wrong ones Arrow would crash the process when a column is used
        _check_sizes(table, data.size)
        _check_buffers(table, data.size)
        if not trusted:
            for column in table.columns:
                _check_values(column)
        metadata = dict(table.schema.metadata or {})
        kind = metadata.pop(_OWN_KEY, b"")
        return kind, table.replace_schema_metadata(metadata or None)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        reraise_signal(error)
        raise DecodeError(f"not a table: {error}") from error


def _check_sizes(table: Any, size: int) -> None:
    """Refuse more rows or inner nulls than `size` bytes can hold, given that a value takes at least a bit."""
    claimed = max(table.num_rows, sum(_nulls_within(chunk) for column in table.columns for chunk in column.chunks))
    if claimed > max(8 * size, _ROWS_WITHOUT_BYTES):
        raise DecodeError(f"a table claims {claimed} values in {size} bytes")


def _check_buffers(table: Any, size: int) -> None:
    """Refuse columns that share their bytes: copying a small table of such columns could take any amount of memory."""
    claimed = sum(_bytes_of(column.chunks) for column in table.columns)
    if claimed > size:
        raise DecodeError(f"a table of {size} bytes claims {claimed} bytes in its columns")


def _bytes_of(chunks: list[Any]) -> int:
    """Return the size of a column in bytes; a dictionary that chunks share counts once."""
    dictionaries = {}
    total = 0
    for chunk in chunks:
        buffers = [one for one in chunk.buffers() if one is not None]
        total += sum(one.size for one in buffers)
        if pa.types.is_dictionary(chunk.type):
            values = chunk.dictionary
            dictionaries[tuple(one.address for one in values.buffers() if one is not None)] = values
    return total + (_bytes_of(list(dictionaries.values())) if dictionaries else 0)


def _nulls_within(array: Any) -> int:
    """Count the values of type null in the lists and structures of an array."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = [array.values]
    elif pa.types.is_struct(kind):
        inner = [array.field(index) for index in range(kind.num_fields)]
    else:
        return 0
    return sum(len(one) if pa.types.is_null(one.type) else _nulls_within(one) for one in inner)


def _check_schema(schema: Any) -> None:
    for field in schema:
        _check_name(field.name)
        _check_type(field.type, top=True)


def _check_name(name: str) -> None:
    """Refuse a name that contains NUL, where libraries that exchange columns in C would end it."""
    if "\0" in name:
        raise DecodeError(f"a column is called {name!r}")


def _check_type(kind: Any, top: bool = False, counted: bool = True) -> None:
    """Refuse types that are not Arrow's own, and inner types without width, because nothing bounds how many there are.

    `top`: this is the type of a column. `counted`: only lists and structures are around it, in which nulls are counted.
    """
    if isinstance(kind, pa.BaseExtensionType):
        if type(kind).__module__.partition(".")[0] != "pyarrow":
            raise DecodeError(f"the type {kind} is an extension that is not Arrow's own")
        _check_type(kind.storage_type, top, counted=False)
        return
    no_width = pa.types.is_null(kind) and not (top or counted)
    no_width = no_width or (pa.types.is_struct(kind) and not kind.num_fields and not top)
    no_width = no_width or (pa.types.is_fixed_size_list(kind) and not kind.list_size and not top)
    no_width = no_width or (pa.types.is_fixed_size_binary(kind) and not kind.byte_width and not top)
    if no_width:
        raise DecodeError(f"the type {kind} takes no space")
    if pa.types.is_dictionary(kind):
        _check_type(kind.value_type, counted=False)
    elif pa.types.is_nested(kind):
        counted = counted and (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind))
        for index in range(kind.num_fields):
            _check_name(kind.field(index).name)
            _check_type(kind.field(index).type, counted=counted)


def _may_mislead(kind: Any) -> bool:
    """Tell whether values of a type may point elsewhere or be invalid; plain numbers and times cannot."""
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_timestamp)
    return not (any(test(kind) for test in known) or pa.types.is_duration(kind) or pa.types.is_date32(kind))


def _check_values(column: Any) -> None:
    """Refuse a column with an offset or index that points outside, a text that is not UTF-8, or a wrong null count.

    Arrow can check that itself, value by value. For large columns of text and of categories it is a few times faster to
    check all offsets, bytes and indices at once, by functions that take long to import.
    """
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    for chunk in column.chunks:
        if not _may_mislead(kind):
            _check_nulls(chunk)
        elif chunk.get_total_buffer_size() >= _LARGE and is_text:
            _check_nulls(chunk)
            _check_texts(chunk)
        elif chunk.get_total_buffer_size() >= _LARGE and pa.types.is_dictionary(kind):
            _check_nulls(chunk)
            chunk.dictionary.validate(full=True)
            _check_indices(chunk.indices, len(chunk.dictionary))
        else:
            chunk.validate(full=True)


def _check_nulls(chunk: Any) -> None:
    """Refuse a wrong null count: whoever reads a column allocates memory by it."""
    claimed, valid = chunk.null_count, chunk.buffers()[0]
    present = len(chunk)
    if valid is not None:
        present = pa.Array.from_buffers(pa.bool_(), len(chunk), [None, valid], offset=chunk.offset).true_count
    if claimed != len(chunk) - present:
        raise DecodeError(f"a column of {len(chunk)} values claims {claimed} nulls and has {len(chunk) - present}")


def _check_texts(chunk: Any) -> None:
    """Refuse offsets that fall or point outside of the text; check each text by itself only if not all is ASCII."""
    from pyarrow import compute

    _, offsets, text = chunk.buffers()
    if not len(chunk) or text is None:
        chunk.validate(full=True)
        return
    width = pa.int32() if pa.types.is_string(chunk.type) else pa.int64()
    ends = pa.Array.from_buffers(width, len(chunk) + 1, [None, offsets], offset=chunk.offset)
    rises = compute.all(compute.less_equal(ends[:-1], ends[1:])).as_py()
    if not rises or ends[0].as_py() < 0 or ends[-1].as_py() > text.size:
        raise DecodeError(f"a column of {len(chunk)} texts has offsets that fall, or lead out of its {text.size} bytes")
    lowest = compute.min_max(pa.Array.from_buffers(pa.int8(), text.size, [None, text]))["min"].as_py()
    if lowest is not None and lowest < 0:
        chunk.validate(full=True)


def _check_indices(indices: Any, size: int) -> None:
    """Refuse an index beyond the values of a dictionary; the indices of nulls do not matter."""
    from pyarrow import compute

    found = compute.min_max(indices)
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    if lowest is not None and not 0 <= lowest <= highest < size:
        raise DecodeError(f"a column of categories has indices from {lowest} to {highest} of {size} values")


def _check_messages(stream: Any) -> None:
    """Refuse a stream with anything but a schema and uncompressed batches."""
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(stream)):
        if message.type != "schema" if number == 0 else message.type not in (_BATCH, _DICTIONARY):
            raise DecodeError(f"message {number} of a table is a {message.type}")
        if number and _is_compressed(memoryview(message.metadata), message.type == _DICTIONARY):
            raise DecodeError("a table has compressed buffers")
        if message.type == _DICTIONARY and _is_delta(memoryview(message.metadata)):
            raise DecodeError("a table has a dictionary in pieces, which Arrow would join again for each batch")


# The metadata of a message is a flatbuffer: tables of fields, reached by offsets. These are the numbers of the fields.
_MESSAGE_HEADER, _DICTIONARY_DATA, _DICTIONARY_DELTA, _BATCH_COMPRESSION = 2, 1, 2, 3


def _is_compressed(metadata: memoryview, is_dictionary: bool) -> bool:
    """Tell whether a batch is marked as compressed, as Message.fbs describes; Arrow has verified the offsets."""
    (root,) = struct.unpack_from("<I", metadata)
    table = _table_at(metadata, _field(metadata, root, _MESSAGE_HEADER))
    if is_dictionary:
        table = _table_at(metadata, _field(metadata, table, _DICTIONARY_DATA))
    return _field(metadata, table, _BATCH_COMPRESSION) != 0


def _is_delta(metadata: memoryview) -> bool:
    """Tell whether a dictionary's values extend the earlier ones."""
    (root,) = struct.unpack_from("<I", metadata)
    place = _field(metadata, _table_at(metadata, _field(metadata, root, _MESSAGE_HEADER)), _DICTIONARY_DELTA)
    return bool(place and metadata[place])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a table, or 0 if the table does not have it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, table - back + 4 + 2 * number)
    return table + int(offset) if offset else 0


def _table_at(metadata: memoryview, place: int) -> int:
    if not place:
        raise DecodeError("a batch has no header")
    (offset,) = struct.unpack_from("<I", metadata, place)
    return place + int(offset)
