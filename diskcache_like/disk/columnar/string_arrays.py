"""Arrays of NumPy's `StringDType` as data: their elements are texts of any length, which .npy files cannot hold.

The layout is: magic; length of the header (u32); header (shape, Fortran order, marker for missing elements, `coerce`)
as `encode_value` writes it; length of each element in UTF-8 (i64, -1 for a missing one); the texts.
"""

from __future__ import annotations

import math
import struct
from itertools import accumulate, pairwise
from typing import Any, Final

from ...encoding.values import NotSerializable, decode_value, encode_value
from ...errors import DecodeError
from ...system.signals import reraise_signal
from .numpy_arrays import np

MAGIC: Final = b"\x93STRING\x01"
STRINGS: Final[Any] = getattr(np.dtypes, "StringDType", None)
"""The type, None before NumPy 2."""
_HEAD: Final = struct.Struct("<I")
_LENGTH: Final = np.dtype("<i8")
_NO_MISSING: Final = ""
_MISSING: Final = {"None": None, "nan": math.nan}


def is_strings(value: np.ndarray[Any, Any]) -> bool:
    """Tell whether an array has this type."""
    return STRINGS is not None and type(value.dtype) is STRINGS


def pack_strings(value: np.ndarray[Any, Any]) -> tuple[bytes, bytes, bytes]:
    """Return head, lengths and texts of an array; raise NotSerializable for an unusual marker of missing elements."""
    dtype: Any = value.dtype
    backwards = value.flags.f_contiguous and not value.flags.c_contiguous
    header = encode_value((tuple(map(int, value.shape)), backwards, _missing_marker(dtype), dtype.coerce))
    elements = (value.T if backwards else value).reshape(-1).tolist()
    texts = [one.encode() if type(one) is str else None for one in elements]
    lengths = np.array([-1 if text is None else len(text) for text in texts], _LENGTH)
    return MAGIC + _HEAD.pack(len(header)) + header, lengths.tobytes(), b"".join(filter(None, texts))


def _missing_marker(dtype: Any) -> str:
    if not hasattr(dtype, "na_object"):
        return _NO_MISSING
    if dtype.na_object is None:
        return "None"
    if type(dtype.na_object) is float and math.isnan(dtype.na_object):
        return "nan"
    raise NotSerializable(
        f"NumPy's {dtype!r} is not serializable: what stands for missing elements has to be None or NaN"
    )


def read_strings(content: Any, copy: bool) -> np.ndarray[Any, Any]:
    """Return the array that `pack_strings` wrote, read-only unless `copy`; raise DecodeError for anything else."""
    if STRINGS is None:
        raise DecodeError("an array of texts of any length needs NumPy 2 or newer")
    try:
        array = _read(memoryview(content))
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        reraise_signal(error)
        raise DecodeError(f"not an array of texts: {error}") from error
    array.flags.writeable = copy
    return array


def _read(content: memoryview) -> np.ndarray[Any, Any]:
    start = len(MAGIC) + _HEAD.size
    end = start + _HEAD.unpack_from(content, len(MAGIC))[0]
    shape, backwards, missing, coerce = decode_value(content[start:end])
    marks = {} if missing == _NO_MISSING else {"na_object": _MISSING[missing]}
    if not all(type(flag) is bool for flag in (backwards, coerce)):
        raise DecodeError("the header of an array of texts does not have the form that this version writes")
    elements = _elements(content[end:], math.prod(shape), list(marks.values()))
    array: np.ndarray[Any, Any] = np.array(elements, STRINGS(coerce=coerce, **marks))
    return array.reshape(shape[::-1]).T if backwards else array.reshape(shape)


def _elements(body: memoryview, count: int, mark: list[float | None]) -> list[Any]:
    """Return the texts, with `mark` for missing ones if it has an item; refuse bytes that belong to no text."""
    texts = count * _LENGTH.itemsize
    if not 0 <= texts <= len(body):
        raise DecodeError(f"an array of {count} texts does not have {len(body)} bytes")
    lengths: list[int] = np.frombuffer(body[:texts], _LENGTH).tolist()
    if min(lengths, default=0) < -len(mark):
        raise DecodeError("an array of texts has a text of negative length")
    places = list(accumulate((max(length, 0) for length in lengths), initial=texts))
    if places[-1] != len(body):
        raise DecodeError(f"the texts of an array end at {places[-1]} of {len(body)} bytes")
    return [
        mark[0] if length < 0 else str(body[start:end], "utf-8")
        for length, (start, end) in zip(lengths, pairwise(places), strict=True)
    ]
