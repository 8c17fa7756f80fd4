"""NumPy arrays and scalars as data: a header with shape and type, then the raw bytes, never a pickle.

An array is written in NumPy's own .npy format (version 1, or 2 or 3 if the header needs it), so `numpy.load` can read
the value file. The header is not read by NumPy's reader, but by one that accepts only what is written here: types
without objects, and lengths that match the bytes.

A scalar is one byte with the length of its type's description, that description as in a header, and its raw bytes.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from functools import lru_cache
from typing import Any, Final

from ...encoding.values import NotSerializable
from ...errors import DecodeError, missing_dependency
from ...system.signals import reraise_signal

try:
    import numpy as np
except ImportError as reason:
    raise missing_dependency("numpy", "numpy", "an array of NumPy") from reason

__all__ = ["ARRAY", "SCALAR", "check_text", "np", "pack_array", "pack_scalar", "read_array", "read_scalar"]

ARRAY: Final = np.ndarray
"""The type of arrays; instances of subclasses are not serializable."""
SCALAR: Final = np.generic
"""The base class of scalars."""
_MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64  # of the raw bytes in the file, so that a mapped array is aligned for every type
_HEADER_LIMIT: Final = 10_000  # characters; NumPy has the same limit, because it uses Python's parser
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
_OWN_NAMES: Final = frozenset("?bhilBHILefdFD")  # type characters whose description gives back exactly the same type


def pack_array(value: np.ndarray[Any, Any]) -> tuple[bytes, memoryview]:
    """Return the header and the raw bytes of an array; the bytes are copied only if its elements are not contiguous."""
    described = _describe(value.dtype)
    backwards = value.flags.f_contiguous and not value.flags.c_contiguous
    ordered = value.T if backwards else _whole(value) if value.flags.c_contiguous else _whole(value).copy("C")
    shape = repr(tuple(map(int, value.shape)))
    header = f"{{'descr': {described!r}, 'fortran_order': {backwards}, 'shape': {shape}, }}"
    data: Any = ordered.reshape(-1).view(np.uint8) if value.size else b""
    return _head(header), memoryview(data)


def _whole(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """View structures as raw bytes, gaps included: a copy of the structures would have old memory in its gaps."""
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


def _describe(dtype: np.dtype[Any]) -> Any:
    """Return a type's description in a header; raise NotSerializable if that would not give back the same type."""
    if dtype.char in _OWN_NAMES and dtype.metadata is None:
        return dtype.str
    if dtype.hasobject or not dtype.itemsize or _has_metadata(dtype):
        raise NotSerializable(f"NumPy's {dtype!r} is not serializable: it has objects, metadata or no width")
    try:
        described = _description(dtype)
        again = _type_of(ast.literal_eval(repr(described)))
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise NotSerializable(f"NumPy's {dtype!r} is not serializable: {error}") from error
    if not _same(again, dtype) or len(repr(described)) > _HEADER_LIMIT // 2:
        raise NotSerializable(f"NumPy's {dtype!r} is not serializable: it would come back as {again!r}")
    return described


def _description(dtype: np.dtype[Any]) -> Any:
    """Return the description of a type; raise ValueError for a structure whose fields overlap."""
    if dtype.subdtype is not None:
        return _description(dtype.subdtype[0]), dtype.subdtype[1]
    if dtype.names is None:
        by_character = dtype.char in "qQ" and np.dtype(dtype.str).char != dtype.char
        return dtype.str[0] + dtype.char if by_character else dtype.str
    fields: list[tuple[Any, ...]] = [_ALIGNED] if dtype.isalignedstruct else []
    end = 0
    assert dtype.fields is not None  # which has them by their titles, too
    own = [(name, dtype.fields[name]) for name in dtype.names]
    for name, (kind, start, *title) in sorted(own, key=lambda field: field[1][1]):
        if start < end:
            raise ValueError("its fields overlap")
        fields += [("", f"|V{start - end}")] if start > end else []
        described = _description(kind)
        fields.append(((title[0], name) if title else name, *(described if type(described) is tuple else (described,))))
        end = start + kind.itemsize
    return [*fields, ("", f"|V{dtype.itemsize - end}")] if end < dtype.itemsize else fields


def _has_metadata(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _has_metadata(dtype.subdtype[0])
    return dtype.metadata is not None or any(_has_metadata(dtype[name]) for name in dtype.names or ())


def _same(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Compare two types, including what their `==` ignores."""
    if one != other or type(one) is not type(other) or one.type is not other.type:
        return False
    if one.isalignedstruct != other.isalignedstruct:
        return False
    if one.subdtype is not None and other.subdtype is not None:
        return _same(one.subdtype[0], other.subdtype[0])
    return all(_same(one[name], other[name]) for name in one.names or ())


def _type_of(described: Any) -> np.dtype[Any]:
    """Return the type that a header describes; raise DecodeError for an unknown type or one with objects."""
    _check_description(described, _DEPTH_LIMIT)
    dtype = _built(described)
    if dtype.hasobject or not dtype.itemsize:
        raise DecodeError(f"dtype {dtype} does not consist of plain bytes")
    return dtype


def _built(described: Any) -> np.dtype[Any]:
    if isinstance(described, str):
        return np.dtype(described)
    if type(described) is tuple:
        return np.dtype((_built(described[0]), described[1]))
    parts: dict[str, list[Any]] = {"names": [], "formats": [], "offsets": [], "titles": []}
    end = 0
    for name, kind, *shape in described:
        dtype = _built((kind, *shape)) if shape else _built(kind)
        if name != "" or type(kind) is not str or not kind.startswith("|V"):  # else it fills a gap
            title, name = name if type(name) is tuple else (None, name)
            for part, value in zip(parts, (name, dtype, end, title), strict=True):
                parts[part].append(value)
        end += dtype.itemsize
    structure: Any = {**parts, "itemsize": end}
    made: np.dtype[Any] = np.dtype(structure, align=described[:1] == [_ALIGNED])
    return made


def _check_description(described: Any, depth: int) -> None:
    if isinstance(described, str):
        if not _SIMPLE.fullmatch(described):
            raise DecodeError(f"{described[:40]!r} is not a dtype of plain bytes")
    elif type(described) is tuple and len(described) == 2 and depth:
        _check_description(described[0], depth - 1)
    elif (
        type(described) is list and depth and all(type(field) is tuple and len(field) in (2, 3) for field in described)
    ):
        for field in described:
            _check_description(field[1], depth - 1)
    else:
        raise DecodeError("the header of an array does not name a dtype")


def read_array(content: Any, copy: bool) -> np.ndarray[Any, Any]:
    """Return the array that `pack_array` wrote, as a writable copy or as a view that is as writable as `content`.

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
        reraise_signal(error)
        raise DecodeError(f"not an array: {error}") from error


def memory(size: int) -> memoryview:
    """Return memory of an array of bytes."""
    return np.empty(size, np.uint8).data


def check_text(array: np.ndarray[Any, Any]) -> None:
    """Raise DecodeError for text with characters that do not exist, since reading such an element would fail."""
    if array.dtype.kind == "U" and array.size:
        points = array.reshape(-1).view(np.uint8).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if int(points.max()) > _LAST_CHARACTER:
            raise DecodeError("an array of text has characters that do not exist")


def _read_header(content: memoryview) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the type, the order, the shape, and where the raw bytes begin."""
    if bytes(content[:6]) != _MAGIC or content[6] not in _LENGTH or content[7]:
        raise DecodeError("an array does not begin with the header of one")
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
    described, backwards, lengths = found.groups()
    return (
        _read_type(described),
        backwards == "True",
        tuple(map(int, filter(None, lengths.replace(" ", "").split(",")))),
    )


def _read_type(text: str) -> np.dtype[Any]:
    if _SIMPLE.fullmatch(text[1:-1]):
        dtype = np.dtype(text[1:-1])
        if dtype.itemsize:
            return dtype
    # Only without operators, because Python's parser runs out of memory on a long row of them.
    if len(text) > _HEADER_LIMIT or _TEXTS.sub("", text).translate(_BRACKETS):
        raise DecodeError("the header of an array does not name a dtype")
    return _type_of(ast.literal_eval(text))


def pack_scalar(value: np.generic) -> bytes:
    """Return the bytes of a scalar; raise NotSerializable if it would not come back unchanged."""
    dtype = value.dtype if value.dtype.itemsize else np.dtype(value.dtype.kind + "1")  # "" is one NUL, as in arrays
    described = repr(_describe(dtype)).encode()
    if len(described) > 255 or type(value) is not dtype.type:
        raise NotSerializable(f"a scalar of type {type(value).__qualname__} and dtype {dtype} is not serializable")
    data = bytes((len(described),)) + described + (value.tobytes() or bytes(dtype.itemsize))
    if value.dtype.kind in "SU" and read_scalar(data) != value:  # NumPy pads with NULs at the end
        raise NotSerializable("NumPy text that ends in NUL is not serializable")
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
        reraise_signal(error)
        raise DecodeError(f"not a scalar: {error}") from error
