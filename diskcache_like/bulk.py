"""Arrays, tables and frames of other libraries as data: which module packs which type, and reads it.

A value of one of these types is packed without a pickle, in one of two forms: `MODE_ARRAY` (`arrays`, and for texts of
any length `string_arrays`) or `MODE_ARROW` (`arrow`, and for frames `pandas_frames` and `polars_frames`). A small one,
or one inside another value, is an extension of the default serializer; a large one is the whole of a value file, which
can be mapped. A library is imported when a value of it is met: to be written, it has been imported already.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NamedTuple

from msgpack import ExtType

from .codecs import NotData
from .errors import DecodeError, MissingDependency
from .record import MODE_ARRAY, MODE_ARROW
from .structure import Marks, Scalars

Buffer = bytes | bytearray | memoryview | mmap.mmap

MODES: Final = frozenset((MODE_ARRAY, MODE_ARROW))
ARRAY, SCALAR, TABLE = range(32, 35)
"""Codes of the extensions: an array, a scalar of NumPy, a table or frame."""
EXTENSION_LIMIT: Final = (1 << 32) - 1  # bytes, which is what msgpack can say
_LIBRARIES: Final = frozenset(("numpy", "pandas", "polars", "pyarrow"))
_UNTRACKED: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # else it keeps one open
_REMEMBERED: Final = 1024  # mapped files that are known to be valid


class Packed(NamedTuple):
    """A packed value: the code of its extension, its mode, 0 if it has none, and its bytes in one or more pieces."""

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
    """Return the function that packs values of exactly this type, or raises NotData; None for any other type."""
    library = kind.__module__.partition(".")[0]
    if library not in _LIBRARIES or library not in sys.modules:
        return None
    try:
        return _PACKERS[library](kind)
    except MissingDependency as error:
        reason = str(error)

    def refuse(_: Any) -> Packed:
        raise NotData(reason)

    return refuse


def _numpy_packer(kind: type) -> Callable[[Any], Packed] | None:
    from . import arrays, string_arrays

    if kind is arrays.ARRAY:
        return lambda value: Packed(
            ARRAY,
            MODE_ARRAY,
            string_arrays.pack_strings(value) if string_arrays.is_strings(value) else arrays.pack_array(value),
        )
    if issubclass(kind, arrays.SCALAR):
        return lambda value: Packed(SCALAR, 0, (arrays.pack_scalar(value),))
    return None


def _arrow_packer(kind: type) -> Callable[[Any], Packed] | None:
    from . import arrow

    return _table_packer(arrow.pack_table) if kind in arrow.KINDS else None


def _pandas_packer(kind: type) -> Callable[[Any], Packed] | None:
    pandas = sys.modules["pandas"]
    if kind is not getattr(pandas, "DataFrame", None) and kind is not getattr(pandas, "Series", None):
        return None
    from . import pandas_frames

    return _table_packer(pandas_frames.pack_frame)


def _polars_packer(kind: type) -> Callable[[Any], Packed] | None:
    polars = sys.modules["polars"]
    if kind is not getattr(polars, "DataFrame", None) and kind is not getattr(polars, "Series", None):
        return None
    from . import polars_frames

    return _table_packer(polars_frames.pack_frame)


def _table_packer(pack: Callable[[Any], Any]) -> Callable[[Any], Packed]:
    return lambda value: Packed(TABLE, MODE_ARROW, (memoryview(pack(value)),))


_PACKERS: Final = {
    "numpy": _numpy_packer,
    "pandas": _pandas_packer,
    "polars": _polars_packer,
    "pyarrow": _arrow_packer,
}


def unpack(mode: int, content: Buffer, trusted: bool = False, copy: bool = True) -> Any:
    """Return the value that was packed; what is not as it was written raises DecodeError.

    `trusted`: the content is this program's own, and known to be whole. Without `copy` the value lies on the memory of
    `content` where that is possible, and can be written to only where that can.
    """
    if mode == MODE_ARRAY:
        return _unpack_array(content, trusted, copy)
    from . import arrow

    kind, table = arrow.read(content, trusted)
    if kind.startswith(b"pandas"):
        from . import pandas_frames

        return pandas_frames.unpack_frame(kind, table, copy)
    if kind.startswith(b"polars"):
        from . import polars_frames

        return polars_frames.unpack_frame(kind, table)
    return arrow.unpack_table(kind, table)


def _unpack_array(content: Buffer, trusted: bool, copy: bool) -> Any:
    from . import arrays, string_arrays

    if content[: len(string_arrays.MAGIC)] == string_arrays.MAGIC:
        return string_arrays.read_strings(content, copy)
    array = arrays.read_array(content, copy)
    if not trusted:
        arrays.check_text(array)
    return array


_valid: dict[tuple[int, ...], None] = {}


def unpack_file(mode: int, file: BinaryIO) -> Any:
    """Return the value of an open value file, read-only and on a mapping of the file, which goes when the value does.

    The content is not compared with its checksum. A table with offsets, which could point anywhere, is looked through
    when its file is first mapped in this process; the file changing is seen by its times.
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
    """Return what msgpack packs in place of the value."""
    if packed.size > EXTENSION_LIMIT:
        raise NotData(f"a value of {packed.size} bytes is too large to be part of another")
    return ExtType(packed.code, packed.content())


def _read_scalar(data: bytes) -> Any:
    from . import arrays

    return arrays.read_scalar(data)


class LibraryTypes:
    """The extensions of msgpack that stand for values of other libraries."""

    def __init__(self) -> None:
        self.scalars: Scalars = {
            ARRAY: lambda data: unpack(MODE_ARRAY, data),
            SCALAR: _read_scalar,
            TABLE: lambda data: unpack(MODE_ARROW, data),
        }
        self.marks: Marks = {}

    def writer(self, kind: type) -> Callable[[Any], Any] | None:
        """Return the function that turns a value of this type into an extension, None for a type of no library."""
        pack = packer(kind)
        return None if pack is None else lambda value: as_extension(pack(value))


LIBRARY_TYPES: Final = LibraryTypes()


class Tables:
    """The serializer 'arrow': values of other libraries and nothing else, each in its own form without msgpack."""

    takes_bytes = False
    _MAGICS: Final = ((b"\x93NUMPY", MODE_ARRAY), (b"\x93STRING", MODE_ARRAY), (b"ARROW1\0\0", MODE_ARROW))
    _SCALAR: Final = b"\x93SCALAR"

    def encode(self, value: Any) -> bytes:
        """Return the packed value, or raise `NotData` for one that is not of another library."""
        pack = packer(type(value))
        if pack is None:
            raise NotData("serializer='arrow' takes arrays, tables, data frames and series")
        return self.payload(pack(value))

    def payload(self, packed: Packed) -> bytes:
        """Return the payload of a packed value."""
        return packed.content() if packed.mode else self._SCALAR + packed.content()

    def decode(self, payload: Any) -> Any:
        """Return the value of a payload; raise DecodeError for anything that was not written so."""
        for magic, mode in self._MAGICS:
            if payload[: len(magic)] == magic:
                return unpack(mode, payload)
        if payload[: len(self._SCALAR)] == self._SCALAR:
            return _read_scalar(payload[len(self._SCALAR) :])
        raise DecodeError("an entry of a cache with serializer='arrow' is not an array or a table")
