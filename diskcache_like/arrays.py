"""NumPy arrays and scalars as data: a header that names shape and type, then the raw bytes, never a pickle.

An array is written as NumPy's own .npy format (version 1, or 2 and 3 where the header needs them), so that a value file
is one that `numpy.load` reads. The header is not read by NumPy's reader but by one that takes no more than what is
written here: types without objects, lengths that are really there.

A scalar is its type, as in a header, after a byte that tells the length of that text, and its raw bytes.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from functools import lru_cache
from typing import Any, Final

from .codecs import NotData
from .errors import DecodeError, missing
from .interrupts import let_through

try:
    import numpy as np
except ImportError as reason:
    raise missing("numpy", "numpy", "an array of NumPy") from reason

__all__ = ["ARRAY", "SCALAR", "check_text", "np", "pack_array", "pack_scalar", "read_array", "read_scalar"]

ARRAY: Final = np.ndarray
"""The type of arrays; those of subclasses are no data."""
SCALAR: Final = np.generic
"""What the types of scalars have in common."""
_MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64  # of the raw bytes in the file, so that a mapped array is aligned for every type
_HEADER_LIMIT: Final = 10_000  # characters; NumPy reads no longer ones either, because its parser is Python's
_DEPTH_LIMIT: Final = 16  # structures within structures
_SIMPLE: Final = re.compile(
    r"[<>][qQ]|[<>|=][biufcmMSUV]\d{1,9}(\[([1-9]\d{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?", re.ASCII
)
_HEADER: Final = re.compile(
    r"\{'descr': (.+), 'fortran_order': (True|False), 'shape': \((|\d{1,19},|\d{1,19}(?:, \d{1,19})+)\), \} *\n",
    re.ASCII | re.DOTALL,
)
_TEXTS: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_BRACKETS: Final = dict.fromkeys(map(ord, "[](), 0123456789"))
_LENGTH: Final = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_ALIGNED: Final = ("", "|V0")  # the first field of a structure made with align=True
_LAST_CHARACTER: Final = 0x10FFFF
_OWN_NAMES: Final = frozenset("?bhilBHILefdFD")  # type characters whose spelling gives the very type back


def pack_array(value: np.ndarray[Any, Any]) -> tuple[bytes, memoryview]:
    """Return header and raw bytes of an array, the latter without a copy where its elements lie in order."""
    spelled = _spell(value.dtype)
    backwards = value.flags.f_contiguous and not value.flags.c_contiguous
    ordered = value.T if backwards else _whole(value) if value.flags.c_contiguous else _whole(value).copy("C")
    shape = repr(tuple(map(int, value.shape)))
    header = f"{{'descr': {spelled!r}, 'fortran_order': {backwards}, 'shape': {shape}, }}"
    data: Any = ordered.reshape(-1).view(np.uint8) if value.size else b""
    return _head(header), memoryview(data)


def _whole(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of structures with its gaps, which a copy would fill with what was in memory before."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def _head(header: str) -> bytes:
    try:
        text, version = header.encode("latin-1"), 1 if len(header) < (1 << 16) - _ALIGNMENT else 2
    except UnicodeEncodeError:
        text, version = header.encode(), 3
    start = len(_MAGIC) + 2 + _LENGTH[version].size
    padding = -(start + len(text) + 1) % _ALIGNMENT
    text += b" " * padding + b"\n"
    return _MAGIC + bytes((version, 0)) + _LENGTH[version].pack(len(text)) + text


def _spell(dtype: np.dtype[Any]) -> Any:
    """Return what a header says of a type, or raise NotData where that would not give the very type back."""
    if dtype.char in _OWN_NAMES and dtype.metadata is None:
        return dtype.str
    if dtype.hasobject or not dtype.itemsize or _has_metadata(dtype):
        raise NotData(f"NumPy's {dtype!r} is not data: it has objects, metadata or no width")
    try:
        spelled = _described(dtype)
        again = _type_of(ast.literal_eval(repr(spelled)))
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise NotData(f"NumPy's {dtype!r} is not data: {error}") from error
    if not _same(again, dtype) or len(repr(spelled)) > _HEADER_LIMIT // 2:
        raise NotData(f"NumPy's {dtype!r} is not data: it would come back as {again!r}")
    return spelled


def _described(dtype: np.dtype[Any]) -> Any:
    """Return the spelling of a type; raise ValueError for a structure whose fields overlap."""
    if dtype.subdtype is not None:
        return _described(dtype.subdtype[0]), dtype.subdtype[1]
    if dtype.names is None:
        by_character = dtype.char in "qQ" and np.dtype(dtype.str).char != dtype.char
        return dtype.str[0] + dtype.char if by_character else dtype.str
    fields: list[tuple[Any, ...]] = [_ALIGNED] if dtype.isalignedstruct else []
    end = 0
    for name, (kind, start, *title) in sorted(_fields_of(dtype).items(), key=lambda field: field[1][1]):
        if start < end:
            raise ValueError("its fields overlap")
        fields += [("", f"|V{start - end}")] if start > end else []
        spelled = _described(kind)
        fields.append(((title[0], name) if title else name, *(spelled if type(spelled) is tuple else (spelled,))))
        end = start + kind.itemsize
    return [*fields, ("", f"|V{dtype.itemsize - end}")] if end < dtype.itemsize else fields


def _fields_of(dtype: np.dtype[Any]) -> dict[str, tuple[Any, ...]]:
    assert dtype.names is not None
    assert dtype.fields is not None
    return {name: dtype.fields[name] for name in dtype.names}


def _has_metadata(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _has_metadata(dtype.subdtype[0])
    return dtype.metadata is not None or any(_has_metadata(dtype[name]) for name in dtype.names or ())


def _same(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Compare what `==` of two types passes over as well."""
    if one != other or type(one) is not type(other) or one.type is not other.type:
        return False
    if one.isalignedstruct != other.isalignedstruct:
        return False
    if one.subdtype is not None and other.subdtype is not None:
        return _same(one.subdtype[0], other.subdtype[0])
    return all(_same(one[name], other[name]) for name in one.names or ())


def _type_of(spelled: Any) -> np.dtype[Any]:
    """Return the type that a header names; raise DecodeError for one with objects or of no known kind."""
    _check_spelled(spelled, _DEPTH_LIMIT)
    dtype = _built(spelled)
    if dtype.hasobject or not dtype.itemsize:
        raise DecodeError(f"dtype {dtype} is not one of plain bytes")
    return dtype


def _built(spelled: Any) -> np.dtype[Any]:
    if isinstance(spelled, str):
        return np.dtype(spelled)
    if type(spelled) is tuple:
        return np.dtype((_built(spelled[0]), spelled[1]))
    parts: dict[str, list[Any]] = {"names": [], "formats": [], "offsets": [], "titles": []}
    end = 0
    for name, kind, *shape in spelled:
        dtype = _built((kind, *shape)) if shape else _built(kind)
        if name != "" or type(kind) is not str or not kind.startswith("|V"):  # else it fills a gap
            title, name = name if type(name) is tuple else (None, name)
            for part, value in zip(parts, (name, dtype, end, title), strict=True):
                parts[part].append(value)
        end += dtype.itemsize
    structure: Any = {**parts, "itemsize": end}
    made: np.dtype[Any] = np.dtype(structure, align=spelled[:1] == [_ALIGNED])
    return made


def _check_spelled(spelled: Any, depth: int) -> None:
    if isinstance(spelled, str):
        if not _SIMPLE.fullmatch(spelled):
            raise DecodeError(f"{spelled[:40]!r} is not the dtype of plain bytes")
    elif type(spelled) is tuple and len(spelled) == 2 and depth:
        _check_spelled(spelled[0], depth - 1)
    elif type(spelled) is list and depth and all(type(field) is tuple and len(field) in (2, 3) for field in spelled):
        for field in spelled:
            _check_spelled(field[1], depth - 1)
    else:
        raise DecodeError("the header of an array does not name a dtype")


def read_array(content: Any, copy: bool) -> np.ndarray[Any, Any]:
    """Return the array that `pack_array` wrote: a writable copy, or a view of `content` that is as writable as that.

    Raises DecodeError for anything else.
    """
    try:
        dtype, backwards, shape, start = _read_header(memoryview(content))
        if math.prod(shape) * dtype.itemsize != len(content) - start:
            raise DecodeError(f"an array of shape {shape} and dtype {dtype} does not have {len(content) - start} bytes")
        order: Any = "F" if backwards else "C"
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memoryview(content)[start:], order=order)
        return _whole(array).copy(order).view(dtype) if copy else array
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        let_through(error)
        raise DecodeError(f"not an array: {error}") from error


def check_text(array: np.ndarray[Any, Any]) -> None:
    """Raise DecodeError for text with characters that do not exist, which reading an element would stumble over."""
    if array.dtype.kind == "U" and array.size:
        points = array.reshape(-1).view(np.uint8).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if int(points.max()) > _LAST_CHARACTER:
            raise DecodeError("an array of text has characters that do not exist")


def _read_header(content: memoryview) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return type, order, shape, and where the raw bytes begin."""
    if bytes(content[:6]) != _MAGIC or content[6] not in _LENGTH or content[7]:
        raise DecodeError("an array does not begin as one")
    version = content[6]
    start = 8 + _LENGTH[version].size
    (length,) = _LENGTH[version].unpack_from(content, 8)
    if length > _HEADER_LIMIT or start + length > len(content):
        raise DecodeError(f"the header of an array claims {length} bytes")
    text = str(content[start : start + length], "utf-8" if version == 3 else "latin-1")
    return *_parse_header(text), start + length


@lru_cache(maxsize=64)
def _parse_header(text: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    found = _HEADER.fullmatch(text)
    if found is None:
        raise DecodeError("the header of an array is in an unknown form")
    spelled, backwards, lengths = found.groups()
    return _read_type(spelled), backwards == "True", tuple(map(int, filter(None, lengths.replace(" ", "").split(","))))


def _read_type(text: str) -> np.dtype[Any]:
    if _SIMPLE.fullmatch(text[1:-1]):
        dtype = np.dtype(text[1:-1])
        if dtype.itemsize:
            return dtype
    # Without operators: Python's parser fails on a long row of them for want of memory.
    if len(text) > _HEADER_LIMIT or _TEXTS.sub("", text).translate(_BRACKETS):
        raise DecodeError("the header of an array does not name a dtype")
    return _type_of(ast.literal_eval(text))


def pack_scalar(value: np.generic) -> bytes:
    """Return the bytes of a scalar, or raise NotData if it would not come back as it is."""
    dtype = value.dtype if value.dtype.itemsize else np.dtype(value.dtype.kind + "1")  # "" is one NUL, as in arrays
    spelled = repr(_spell(dtype)).encode()
    if len(spelled) > 255 or type(value) is not dtype.type:
        raise NotData(f"a scalar of type {type(value).__qualname__} and dtype {dtype} is not data")
    data = bytes((len(spelled),)) + spelled + (value.tobytes() or bytes(dtype.itemsize))
    if value.dtype.kind in "SU" and read_scalar(data) != value:  # NUL at the end is how NumPy pads
        raise NotData("text of NumPy that ends in NUL is not data")
    return data


def read_scalar(data: Any) -> Any:
    """Return the scalar that `pack_scalar` wrote; raise DecodeError for anything else."""
    try:
        start = data[0] + 1
        dtype = _read_type(bytes(data[1:start]).decode())
        if len(data) - start != dtype.itemsize:
            raise DecodeError(f"a scalar of dtype {dtype} does not have {len(data) - start} bytes")
        array: np.ndarray[Any, Any] = np.ndarray((), dtype, bytearray(data[start:]))
        check_text(array)
        return array[()]
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        let_through(error)
        raise DecodeError(f"not a scalar: {error}") from error
