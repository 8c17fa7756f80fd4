"""Canonical bytes of keys: equal keys have equal bytes in every process, unequal keys never.

The form is msgpack, so no encoding is the beginning of another. Lengths take one byte or four, never two; an array
that stands for something else opens with a mark, an empty extension. The extension codes are below.

Numbers that are equal share one form: an integer if it is one, else a double if it is one, else a decimal, else a
fraction, else complex. NaN is one key. Subclasses that keep the equality of their base are their base: a StrEnum is
its text, a namedtuple a tuple, an OrderedDict a dict. Sets and dicts are sorted. Aware datetimes are instants. An
instance has no such form: it is its class and what it would be pickled as, so its bytes identify it but cannot
rebuild it.
"""

from __future__ import annotations

import copyreg
import dataclasses
import datetime as dt
import math
import struct
import sys
import types
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import PurePath, PureWindowsPath
from typing import Any, Final, Self
from uuid import UUID

from .codecs import BIN_HEADS, SMALL_INTS, STR_HEADS, int_to_bytes
from .errors import CacheError, KeyEncodeError, KeyTooLarge

KEY_SIZE_LIMIT: Final = 64 * 1024
"""Bytes that a stored key may take."""
KEY_DEPTH: Final = 100
"""Containers within containers that a key may have."""
_PART_LIMIT: Final = 1 << 28

INT, COMPLEX, DATE, DATETIME, INSTANT, TIME, ZONED_TIME, TIMEDELTA, UUID_CODE, ELLIPSIS = range(1, 11)
NAME, QUEUE, PREFIXED, POSIX_PATH, WINDOWS_PATH = range(16, 21)
TUPLE, SET, RANGE, DECIMAL, FRACTION, ENUM, DATACLASS, INSTANCE = range(32, 40)

_U32 = struct.Struct(">BI").pack
_I64 = struct.Struct(">Bq").pack
_F64 = struct.Struct(">Bd").pack
WORD = struct.Struct(">q")
BIASED = struct.Struct(">Q")
PAIR = struct.Struct(">dd")
DAYS = struct.Struct(">iii")
MICROSECOND = dt.timedelta(microseconds=1)
_NAN = _F64(0xCB, math.nan)
EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_MAX_DIGITS = 4096  # of a Decimal or Fraction; integers are bounded by KEY_SIZE_LIMIT alone

_Encoder = Callable[[Any, int], bytes]
_Number = int | float | Decimal | Fraction | complex


class QueueKey(int):
    """Name an item of the queue without prefix; equal to no integer, only to the same queue key."""

    __slots__ = ()

    prefix: Final = None

    @property
    def number(self) -> int:
        """Return the position in the queue."""
        return int.__int__(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is QueueKey and int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((QueueKey, int.__int__(self)))

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (int.__int__(self),)


class PrefixedQueueKey(str):
    """Name an item of the queue called `prefix`; equal to no text, only to the same queue key."""

    __slots__ = ("number", "prefix")

    prefix: str
    number: int

    def __new__(cls, prefix: str, number: int) -> Self:
        """Make the key of item `number`."""
        self = super().__new__(cls, f"{prefix}-{number:015d}")
        self.prefix = prefix
        self.number = number
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is PrefixedQueueKey and self.number == other.number and self.prefix == other.prefix

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((PrefixedQueueKey, self.prefix, self.number))

    def __reduce__(self) -> tuple[type[Self], tuple[str, int]]:
        return type(self), (self.prefix, self.number)


def queue_key(prefix: str | None, number: int) -> QueueKey | PrefixedQueueKey:
    """Make the key of an item in a queue."""
    return QueueKey(number) if prefix is None else PrefixedQueueKey(prefix, number)


# ---------------------------------------------------------------------------------------------------- encoding


def encode_key(key: Any) -> bytes:
    """Encode a key canonically, or raise `KeyEncodeError` or `KeyTooLarge`."""
    kind = type(key)
    data: bytes
    try:
        if kind is str:
            data = key.encode()
            return STR_HEADS[len(data)] + data
        if kind is int and 0 <= key < 128:
            data = SMALL_INTS[key]
            return data
        if kind is bytes:
            data = BIN_HEADS[len(key)] + key
            return data
    except (IndexError, UnicodeEncodeError):  # longer than the tables, or with lone surrogates
        pass
    data = encode_long(key)
    if len(data) > KEY_SIZE_LIMIT:
        raise _too_large(len(data), KEY_SIZE_LIMIT)
    return data


def encode_long(key: Any) -> bytes:
    """Encode a key canonically though it may be longer than a stored key, as for taking a digest of it."""
    try:
        return _member(key, 0)
    except RecursionError as exc:
        raise _too_deep(key) from exc


def _too_large(size: int, limit: int) -> KeyTooLarge:
    return KeyTooLarge(f"a key takes {size} bytes; the limit is {limit} bytes")


def _bounded(data: bytes) -> bytes:
    if len(data) > _PART_LIMIT:
        raise _too_large(len(data), KEY_SIZE_LIMIT)
    return data


def _too_deep(key: object) -> KeyEncodeError:
    return KeyEncodeError(f"a key of type {_name_of(type(key))} is nested over {KEY_DEPTH} deep or contains itself")


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _member(value: Any, depth: int) -> bytes:
    if depth > KEY_DEPTH:
        raise _too_deep(value)
    kind = type(value)
    return (_ENCODERS.get(kind) or _encoder_for(kind))(value, depth)  # type: ignore[arg-type]  # classes are hashable


def _extension(code: int, data: bytes) -> bytes:
    size = len(data)
    if size < 256:
        return bytes((0xC7, size, code)) + data
    return b"\xc9" + len(_bounded(data)).to_bytes(4, "big") + bytes((code,)) + data


def _container(small: int, large: bytes, parts: list[bytes], count: int) -> bytes:
    # Bounding every level keeps members that are shared from growing without limit on the way up.
    return _bounded((bytes((small | count,)) if count < 16 else large + count.to_bytes(4, "big")) + b"".join(parts))


def _array(mark: int, parts: list[bytes]) -> bytes:
    """Join encoded members, behind a mark unless the array is a list."""
    if mark:
        parts.insert(0, _extension(mark, b""))
    return _container(0x90, b"\xdd", parts, len(parts))


def _members(mark: int, values: Iterable[Any], depth: int) -> bytes:
    return _array(mark, [_member(value, depth + 1) for value in values])


def _set(value: Iterable[Any], depth: int) -> bytes:
    return _array(SET, sorted([_member(member, depth + 1) for member in value]))


def _dict(value: Iterable[Any], depth: int) -> bytes:
    pairs = value.items() if isinstance(value, dict) else value
    parts = sorted([_member(key, depth + 1) + _member(member, depth + 1) for key, member in pairs])
    return _container(0x80, b"\xdf", parts, len(parts))


def _str(value: str, _depth: int) -> bytes:
    data = str.encode(value, "utf-8", "surrogatepass")
    size = len(data)
    return (STR_HEADS[size] if size < 256 else b"\xdb" + len(_bounded(data)).to_bytes(4, "big")) + data


def _bytes(value: bytes | bytearray, _depth: int) -> bytes:
    size = len(value)
    value = bytes(value)
    return (BIN_HEADS[size] if size < 256 else b"\xc6" + len(_bounded(value)).to_bytes(4, "big")) + value


def _memoryview(value: memoryview, depth: int) -> bytes:
    if value.format != "B" or value.ndim != 1:
        raise KeyEncodeError("a memoryview of anything but plain bytes has no stable form as a key; use tobytes()")
    return _bytes(value.tobytes(), depth)


# Numbers.


def _simplest(number: _Number) -> _Number:
    """Return the equal number of the first of these types that has one: int, float, Decimal, Fraction, complex."""
    if isinstance(number, int):
        return int.__int__(number)
    if isinstance(number, float):
        number = float.__float__(number)
        return int(number) if number.is_integer() else number
    if isinstance(number, Decimal):
        return _simplest_decimal(number)
    if isinstance(number, Fraction):
        return _simplest_fraction(number.numerator, number.denominator)
    return number if number.imag else _simplest(number.real)


def _simplest_decimal(number: Decimal) -> _Number:
    if not number.is_finite():
        return math.nan if number.is_nan() else math.copysign(math.inf, number)
    number = number.normalize(EXACT)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    check_digits(len(digits) + max(exponent, 0))
    if exponent >= 0:
        return int(number)
    double = float(number)
    # Not Decimal(double), which raises where the thread's context traps FloatOperation.
    return double if math.isfinite(double) and Decimal.from_float(double) == number else number  # noqa: FURB164


def _simplest_fraction(numerator: int, denominator: int) -> _Number:
    if denominator == 1:
        return numerator
    check_digits(max(digits_of(numerator), digits_of(denominator)))
    twos = (denominator & -denominator).bit_length() - 1
    rest = denominator >> twos
    if rest == 1 and _is_double(numerator, denominator):
        return numerator / denominator
    fives = round((rest.bit_length() - 1) / math.log2(5))
    if 5**fives != rest:
        return Fraction(numerator, denominator)
    places = max(twos, fives)
    coefficient = numerator * 10**places // denominator
    check_digits(digits_of(coefficient))
    return Decimal(coefficient).scaleb(-places, EXACT)


def _is_double(numerator: int, denominator: int) -> bool:
    try:
        return (numerator / denominator).as_integer_ratio() == (numerator, denominator)
    except OverflowError:
        return False


def digits_of(number: int) -> int:
    """Count the decimal digits of an integer, or one more."""
    return math.ceil(number.bit_length() / math.log2(10))


def check_digits(count: int) -> None:
    """Refuse what would take quadratic time, which hostile bytes could ask for again and again."""
    if count > _MAX_DIGITS:
        raise KeyTooLarge(f"a decimal or fraction of {count} digits as a key; the limit is {_MAX_DIGITS}")


def _int(value: int, _depth: int) -> bytes:
    if 0 <= value < 128:
        return SMALL_INTS[value]
    if 0 <= value < 1 << 32:
        return _U32(0xCE, value)
    if -(1 << 63) <= value < 1 << 63:
        return _I64(0xD3, value)
    return _extension(INT, int_to_bytes(value))


def _number(value: _Number, depth: int) -> bytes:
    value = _simplest(value)
    if isinstance(value, int):
        return _int(value, depth)
    if isinstance(value, float):
        return _NAN if value != value else _F64(0xCB, value)
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        return _members(DECIMAL, (int(value.scaleb(-exponent, EXACT)), exponent), depth)
    if isinstance(value, Fraction):
        return _members(FRACTION, (value.numerator, value.denominator), depth)
    # Adding zero turns -0.0 into the equal 0.0.
    parts = (math.nan if part != part else part + 0.0 for part in (value.real, value.imag))
    return _extension(COMPLEX, PAIR.pack(*parts))


# Times. A naive datetime is no instant, so the two kinds never meet; the fold plays no part in equality.


def _datetime(value: dt.datetime, _depth: int) -> bytes:
    offset = value.utcoffset()
    moment = (value.toordinal() * 86400 + _seconds(value)) * 1_000_000 + value.microsecond
    if offset is None:
        return _extension(DATETIME, WORD.pack(moment))
    return _extension(INSTANT, WORD.pack(moment - offset // MICROSECOND))


def _time(value: dt.time, _depth: int) -> bytes:
    offset = value.utcoffset()
    moment = _seconds(value) * 1_000_000 + value.microsecond
    if offset is None:
        return _extension(TIME, WORD.pack(moment))
    return _extension(ZONED_TIME, WORD.pack(moment - offset // MICROSECOND))


def _seconds(value: dt.datetime | dt.time) -> int:
    return (value.hour * 60 + value.minute) * 60 + value.second


def _timedelta(value: dt.timedelta, _depth: int) -> bytes:
    return _extension(TIMEDELTA, DAYS.pack(value.days, value.seconds, value.microseconds))


def _range(value: range, depth: int) -> bytes:
    length = max(0, -((value.start - value.stop) // value.step))
    if length < 2:
        return _members(RANGE, (value.start,) * length, depth)
    return _members(RANGE, (value.start, value.start + length * value.step, value.step), depth)


def _path(value: PurePath, _depth: int) -> bytes:
    if isinstance(value, PureWindowsPath):
        return _extension(WINDOWS_PATH, str(value).lower().encode("utf-8", "surrogatepass"))
    return _extension(POSIX_PATH, str(value).encode("utf-8", "surrogatepass"))


def _queue(value: QueueKey | PrefixedQueueKey, _depth: int) -> bytes:
    if not -(1 << 63) <= value.number < 1 << 63:
        raise KeyEncodeError(f"queue key {value!r} is out of range")
    number = BIASED.pack(value.number + (1 << 63))  # biased, so that the bytes sort like the numbers
    if value.prefix is None:
        return _extension(QUEUE, number)
    return _extension(PREFIXED, value.prefix.encode("utf-8", "surrogatepass") + number)


# What is known by its name or by what it would be pickled as.


def _named(value: Any, depth: int) -> bytes:
    """Encode a class or function as 'module:qualname', if that name leads back to it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, types.BuiltinFunctionType) and module is None:  # bound to an instance
        return _instance(value, depth)
    if not isinstance(module, str) or not isinstance(name, str) or not _leads_to(module, name, value):
        raise KeyEncodeError(
            f"{value!r} has no stable form as a key: {module}:{name} does not lead to it (lambdas, nested functions and"
            f" classes, and wrapped functions have no name of their own); use a name or another plain value instead"
        )
    return _extension(NAME, f"{module}:{name}".encode("utf-8", "surrogatepass"))


def _leads_to(module: str, name: str, value: object) -> bool:
    if module == "builtins" and isinstance(value, type):  # type(None) and others are built in but bound to no name
        return True
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _enum(value: Enum, depth: int) -> bytes:
    # A combination of flags has a name in some versions of Python only.
    member = value.value if isinstance(value, Flag) else value.name
    return _array(ENUM, [_named(type(value), depth), _member(member, depth + 1)])


def _dataclass(value: Any, depth: int) -> bytes:
    """Encode the fields that equality compares, so that cached properties and the like play no part."""
    parts = [_named(type(value), depth)]
    for field in dataclasses.fields(value):
        if field.compare:
            parts += (_str(field.name, depth), _member(getattr(value, field.name), depth + 1))
    return _array(DATACLASS, parts)


def _numpy(value: Any, depth: int) -> bytes:
    item = value.item()  # of a type that numpy made equal to Python's, unless it has no such type
    return _member(item, depth + 1) if type(item) in _PYTHON_ITEMS else _instance(value, depth)


_PYTHON_ITEMS = frozenset((bool, int, float, complex, str, bytes))


def _instance(value: Any, depth: int) -> bytes:
    """Encode an instance as the call that would rebuild it."""
    reduced = _reduce(value)
    if isinstance(reduced, str):  # the name of a global
        return _extension(NAME, f"{getattr(value, '__module__', type(value).__module__)}:{reduced}".encode())
    function, arguments, state, items, pairs, setter = (*reduced, *(None,) * 6)[:6]
    depth += 1
    parts = [_member(part, depth) for part in (function, arguments, state)]
    parts.append(_members(0, () if items is None else items, depth))
    parts.append(_dict(() if pairs is None else pairs, depth))
    if setter is not None:
        parts.append(_member(setter, depth))
    return _array(INSTANCE, parts)


def _reduce(value: Any) -> Any:
    kind = type(value)
    try:
        if kind is object:
            raise TypeError("nothing distinguishes it from another object()")
        registered = copyreg.dispatch_table.get(kind)
        return registered(value) if registered else value.__reduce_ex__(4)
    except (MemoryError, RecursionError, CacheError):
        raise
    except Exception as exc:
        raise KeyEncodeError(
            f"a key of type {_name_of(kind)} has no stable form ({exc}); use text, bytes, a number or a tuple of such"
            f" that identifies it, or define its __reduce__"
        ) from exc


_ENCODERS: Final[dict[type, _Encoder]] = {
    str: _str,
    bytes: _bytes,
    int: _int,
    type(None): lambda _value, _depth: b"\xc0",
    tuple: partial(_members, TUPLE),
    bool: _number,
    float: _number,
    list: partial(_members, 0),
    dict: _dict,
    frozenset: _set,
    set: _set,
    QueueKey: _queue,
    PrefixedQueueKey: _queue,
    bytearray: _bytes,
    memoryview: _memoryview,
    complex: _number,
    Decimal: _number,
    Fraction: _number,
    dt.datetime: _datetime,
    dt.date: lambda value, _depth: _extension(DATE, value.toordinal().to_bytes(3, "big")),
    dt.time: _time,
    dt.timedelta: _timedelta,
    UUID: lambda value, _depth: _extension(UUID_CODE, value.bytes),
    range: _range,
    type(...): lambda _value, _depth: _extension(ELLIPSIS, b""),
}
_SUBCLASSED: Final = (
    *(str, int, float, complex, bytes, bytearray, tuple, list, dict, set, frozenset, Decimal, Fraction, UUID),
    *(dt.datetime, dt.date, dt.time, dt.timedelta),
)
_DICT_EQUALITY: Final = (OrderedDict.__eq__, Counter.__eq__)  # dicts to anyone but their own kind


@lru_cache(maxsize=256)
def _encoder_for(kind: type[Any]) -> _Encoder:
    if any(parent.__module__ == "numpy" and parent.__name__ == "generic" for parent in kind.__mro__):
        return _numpy
    for base in _SUBCLASSED:
        if issubclass(kind, base):
            same = kind.__eq__ is base.__eq__ and (kind.__hash__ is base.__hash__ or base.__hash__ is None)
            if same or (base is dict and kind.__eq__ in _DICT_EQUALITY):
                return _number if base is int else _ENCODERS[base]
            break
    if issubclass(kind, Enum):
        return _enum
    if issubclass(kind, type | types.FunctionType | types.BuiltinFunctionType):
        return _named
    if issubclass(kind, PurePath) and kind.__eq__ is PurePath.__eq__:
        return _path
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.eq:  # type: ignore[attr-defined]
        return _dataclass
    return _instance
