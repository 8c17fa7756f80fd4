"""Choose the module that packs and reads a type of another library.

A value of such a type is packed without a pickle, in one of two forms: `MODE_ARRAY` (by `numpy_arrays`, or by
`string_arrays` for texts of any length) or `MODE_ARROW` (by `arrow`, or for frames by `pandas` and `polars`). A small
value, or one inside another value, is an extension of the default serializer; a large one is a value file of its own,
which can be mapped. A library is imported only when a value of it is read; to write one, the program has imported it.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

from msgpack import ExtType

from ...encoding.msgpack_reader import Marks, Scalars
from ...encoding.record import MODE_ARRAY, MODE_ARROW
from ...encoding.values import NotSerializable
from ...errors import DecodeError, MissingDependency

Buffer = bytes | bytearray | memoryview | mmap.mmap

MODES: Final = frozenset((MODE_ARRAY, MODE_ARROW))
ARRAY, SCALAR, TABLE = range(32, 35)
"""Codes of the extensions: an array, a NumPy scalar, a table or frame."""
EXTENSION_LIMIT: Final = (1 << 32) - 1  # bytes; msgpack allows no more
_LIBRARIES: Final = frozenset(("numpy", "pandas", "polars", "pyarrow"))
_UNTRACKED: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # keep no descriptor open
_REMEMBERED: Final = 1024  # mapped files that are known to be valid


class Packed(NamedTuple):
    """A packed value: the code of its extension, its mode (0 if it has none), and its bytes in one or more pieces."""

    code: int
    mode: int
    pieces: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return sum(len(memoryview(piece).cast("B")) if len(piece) else 0 for piece in self.pieces)

    def content(self) -> bytes:
        """Return all bytes."""
        return b"".join(self.pieces)


def packer(kind: type) -> Callable[[Any], Packed] | None:
    """Return the function that packs values of exactly this type or raises NotSerializable; None for other types."""
    library = kind.__module__.partition(".")[0]
    if library not in _LIBRARIES or library not in sys.modules:
        return None
    try:
        return _PACKERS[library](kind)
    except MissingDependency as error:
        reason = str(error)

    def refuse(_: Any) -> Packed:
        raise NotSerializable(reason)

    return refuse


def _numpy_packer(kind: type) -> Callable[[Any], Packed] | None:
    from . import numpy_arrays, string_arrays

    if kind is numpy_arrays.ARRAY:
        return lambda value: Packed(
            ARRAY,
            MODE_ARRAY,
            string_arrays.pack_strings(value) if string_arrays.is_strings(value) else numpy_arrays.pack_array(value),
        )
    if issubclass(kind, numpy_arrays.SCALAR):
        return lambda value: Packed(SCALAR, 0, (numpy_arrays.pack_scalar(value),))
    return None


def _arrow_packer(kind: type) -> Callable[[Any], Packed] | None:
    from . import arrow

    return _table_packer(arrow.pack_table) if kind in arrow.KINDS else None


def _frame_packer(kind: type) -> Callable[[Any], Packed] | None:
    """Return the packer of a frame or series of pandas or polars."""
    library = kind.__module__.partition(".")[0]
    if all(kind is not getattr(sys.modules[library], name, None) for name in ("DataFrame", "Series")):
        return None
    return _table_packer(import_module(f".{library}", __package__).pack_frame)


def _table_packer(pack: Callable[[Any], Any]) -> Callable[[Any], Packed]:
    return lambda value: Packed(TABLE, MODE_ARROW, (memoryview(pack(value)),))


_PACKERS: Final = {
    "numpy": _numpy_packer,
    "pandas": _frame_packer,
    "polars": _frame_packer,
    "pyarrow": _arrow_packer,
}


def unpack(mode: int, content: Buffer, trusted: bool = False, copy: bool = True) -> Any:
    """Return the value that was packed; raise DecodeError for anything that was not written like this.

    `trusted`: the content was written by this program and is known to be intact. Without `copy` the value uses the
    memory of `content` if possible, and is then as writable as that.
    """
    if mode == MODE_ARRAY:
        return _unpack_array(content, trusted, copy)
    from . import arrow

    kind, table = arrow.read(content, trusted)
    if kind.startswith(b"pandas"):
        from . import pandas

        return pandas.unpack_frame(kind, table, copy)
    if kind.startswith(b"polars"):
        from . import polars

        return polars.unpack_frame(kind, table)
    return arrow.unpack_table(kind, table)


def memory(size: int) -> memoryview:
    """Return memory for the content of an array, in large pages where the system has them."""
    from . import numpy_arrays

    return numpy_arrays.memory(size)


def _unpack_array(content: Buffer, trusted: bool, copy: bool) -> Any:
    from . import numpy_arrays, string_arrays

    if content[: len(string_arrays.MAGIC)] == string_arrays.MAGIC:
        return string_arrays.read_strings(content, copy)
    array = numpy_arrays.read_array(content, copy)
    if not trusted:
        numpy_arrays.check_text(array)
    return array


_valid: dict[tuple[int, ...], None] = {}


def unpack_file(mode: int, file: BinaryIO) -> Any:
    """Return the value of an open value file, read-only and mapped from the file as long as the value exists.

    The content is not compared with its checksum. Offsets in a table could point anywhere, so they are verified when
    its file is first mapped in this process; the file's times show whether it has changed since.
    """
    status = os.fstat(file.fileno())
    try:
        content = mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ, **_UNTRACKED)
    except ValueError as error:  # empty, or cut short just now
        raise DecodeError(f"a value file of {status.st_size} bytes cannot be mapped: {error}") from error
    if mode == MODE_ARRAY:
        return unpack(mode, content, trusted=True, copy=False)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    value = unpack(mode, content, trusted=identity in _valid, copy=False)
    if len(_valid) >= _REMEMBERED:
        _valid.clear()
    _valid[identity] = None
    return value


def as_extension(packed: Packed) -> ExtType:
    """Return the extension that msgpack packs instead of the value."""
    if packed.size > EXTENSION_LIMIT:
        raise NotSerializable(f"a value of {packed.size} bytes is too large to be part of another")
    return ExtType(packed.code, packed.content())


def _read_scalar(data: bytes) -> Any:
    from . import numpy_arrays

    return numpy_arrays.read_scalar(data)


class ColumnarTypes:
    """The msgpack extensions for values of other libraries."""

    def __init__(self) -> None:
        self.scalars: Scalars = {
            ARRAY: lambda data: unpack(MODE_ARRAY, data),
            SCALAR: _read_scalar,
            TABLE: lambda data: unpack(MODE_ARROW, data),
        }
        self.marks: Marks = {}

    def writer(self, kind: type) -> Callable[[Any], Any] | None:
        """Return the function that turns a value of this type into an extension; None for any other type."""
        pack = packer(kind)
        return None if pack is None else lambda value: as_extension(pack(value))


COLUMNAR_TYPES: Final = ColumnarTypes()


class Tables:
    """The serializer 'arrow': only values of other libraries, each in its own format and not in msgpack."""

    takes_bytes = False
    _MAGICS: Final = ((b"\x93NUMPY", MODE_ARRAY), (b"\x93STRING", MODE_ARRAY), (b"ARROW1\0\0", MODE_ARROW))
    _SCALAR: Final = b"\x93SCALAR"

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value of another library, or raise `NotSerializable`."""
        pack = packer(type(value))
        if pack is None:
            raise NotSerializable("serializer='arrow' takes arrays, tables, data frames and series")
        return self.payload(pack(value))

    def payload(self, packed: Packed) -> bytes:
        """Return the payload of a packed value."""
        return packed.content() if packed.mode else self._SCALAR + packed.content()

    def decode(self, payload: Any) -> Any:
        """Return the value of a payload; raise DecodeError for anything that `encode` did not write."""
        for magic, mode in self._MAGICS:
            if payload[: len(magic)] == magic:
                return unpack(mode, payload)
        if payload[: len(self._SCALAR)] == self._SCALAR:
            return _read_scalar(payload[len(self._SCALAR) :])
        raise DecodeError("an entry of a cache with serializer='arrow' is not an array or a table")
