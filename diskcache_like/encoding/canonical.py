"""Canonical bytes of keys: equal keys have equal bytes in every process, and unequal keys have different bytes.

The format is msgpack, so no encoding is a prefix of another. Lengths take one byte or four, never two. An array that
stands for something else begins with a mark, an empty extension. The extension codes are below.

Equal numbers share one form: an integer if possible, else a double, else a decimal, else a fraction, else a complex
number. All NaNs are one key. A subclass that keeps the equality of its base is encoded as its base: a StrEnum as text,
a namedtuple as a tuple, a defaultdict as a dict. Sets and dicts are sorted, but no OrderedDict is, since two of them in
another order are not equal; as a key it equals no dict. Aware datetimes are encoded as instants. A dataclass or attrs
object is encoded as its class and the fields that its `==` compares.
Any other instance is encoded as its class and what pickle would store, so its bytes identify it but cannot rebuild it.
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
from functools import partial
from itertools import chain
from pathlib import PurePath, PureWindowsPath
from typing import Any, Final
from uuid import UUID

from ..errors import CacheError, KeyEncodeError, KeyTooLarge
from ..system.signals import reraise_signal
from .classes import full_name
from .made_keys import NamespacedKey, PrefixedQueueKey, QueueKey
from .values import BIN_HEADS, SMALL_INTS, STR_HEADS, int_to_bytes

KEY_SIZE_LIMIT: Final = 64 * 1024
"""Bytes that a stored key may take."""
KEY_DEPTH: Final = 100
"""How deeply the containers in a key may be nested."""
_LONG_KEY_MEMBERS: Final = 10_000_000  # a bound on members that each contain the next one twice, over and over

INT, COMPLEX, DATE, DATETIME, INSTANT, TIME, ZONED_TIME, TIMEDELTA, UUID_CODE, ELLIPSIS = range(1, 11)
NAME, QUEUE, PREFIXED, POSIX_PATH, WINDOWS_PATH = range(16, 21)
TUPLE, SET, RANGE, DECIMAL, FRACTION, ENUM, DATACLASS, INSTANCE, ORDERED = range(32, 41)

_U32 = struct.Struct(">BI").pack
_I64 = struct.Struct(">Bq").pack
_F64 = struct.Struct(">Bd").pack
WORD = struct.Struct(">q")
BIASED = struct.Struct(">Q")
PAIR = struct.Struct(">dd")
DAYS = struct.Struct(">iii")
MICROSECOND = dt.timedelta(microseconds=1)
_MARK_HEADS = {mark: bytes((0xC7, 0, mark)) for mark in range(TUPLE, ORDERED + 1)}
_ARRAY_HEADS = tuple(bytes((0x90 | count,)) for count in range(16))
_NAN = _F64(0xCB, math.nan)
EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_KNOWN_TYPES = 512  # an encoder keeps its class alive, and a program may make classes without end
_MAX_DIGITS = 4096  # of a Decimal or Fraction; KEY_SIZE_LIMIT alone bounds integers

_Encoder = Callable[[Any, "_Walk"], bytes]
_Number = int | float | Decimal | Fraction | complex


def encode_key(key: Any) -> bytes:
    """Encode a key canonically, or raise `KeyEncodeError` or `KeyTooLarge`."""
    kind = type(key)
    data: bytes
    try:
        if kind is str:
            data = key.encode()
            return STR_HEADS[len(data)] + data
        if kind is int and 0 <= key < 1 << 32:
            return SMALL_INTS[key] if key < 128 else _U32(0xCE, key)
        if kind is bytes:
            data = BIN_HEADS[len(key)] + key
            return data
    except (IndexError, UnicodeEncodeError):  # too long for the tables, or with lone surrogates
        pass
    data = _encode(key, KEY_SIZE_LIMIT)
    if len(data) > KEY_SIZE_LIMIT:
        raise KeyTooLarge(f"a key takes {len(data)} bytes; the limit is {KEY_SIZE_LIMIT} bytes")
    return data


def encode_unbounded(key: Any, named: list[Any] | None = None) -> bytes:
    """Encode a key that may be longer than a stored key, for example to take a digest of it.

    `named`: gets each function and class that is encoded as its name.
    """
    return _encode(key, _LONG_KEY_MEMBERS, named)


def _encode(key: Any, room: int, named: list[Any] | None = None) -> bytes:
    try:
        return _ENCODERS[type(key)](key, _Walk(room, named))
    except RecursionError as exc:
        reraise_signal(exc)
        raise KeyEncodeError(
            f"a key of type {full_name(type(key))} is nested more than {KEY_DEPTH} deep or contains itself"
        ) from exc


class _Walk:
    """One encoding with its bounds: how deep it is, and how many members it may still have."""

    __slots__ = ("depth", "named", "room")

    def __init__(self, room: int, named: list[Any] | None) -> None:
        self.depth = 0
        self.room = room
        self.named = named

    def encode(self, values: Iterable[Any]) -> list[bytes]:
        """Encode the members of one container."""
        self.depth += 1
        if self.depth > KEY_DEPTH:
            raise RecursionError
        parts = [_ENCODERS[type(value)](value, self) for value in values]
        self.depth -= 1
        self.room -= len(parts)  # each takes at least a byte; a shared member counts every time
        if self.room < 0:
            raise KeyTooLarge(f"a key has too many members to fit the limit of {KEY_SIZE_LIMIT} bytes")
        return parts


def _extension(code: int, data: bytes) -> bytes:
    size = len(data)
    if size < 256:
        return bytes((0xC7, size, code)) + data
    return b"\xc9" + size.to_bytes(4, "big") + bytes((code,)) + data


def _array(mark: int, parts: list[bytes]) -> bytes:
    """Join encoded members into an array; `mark` is 0 for a list."""
    if mark:
        parts.insert(0, _MARK_HEADS[mark])
    count = len(parts)
    parts.insert(0, _ARRAY_HEADS[count] if count < 16 else b"\xdd" + count.to_bytes(4, "big"))
    return b"".join(parts)


def _members(mark: int, values: Iterable[Any], walk: _Walk) -> bytes:
    return _array(mark, walk.encode(values))


def _set(value: Iterable[Any], walk: _Walk) -> bytes:
    return _array(SET, sorted(walk.encode(value)))


def _dict(value: Iterable[Any], walk: _Walk) -> bytes:
    parts = iter(walk.encode(chain.from_iterable(value.items() if isinstance(value, dict) else value)))
    pairs = sorted(key + member for key, member in zip(parts, parts, strict=True))
    count = len(pairs)
    return (bytes((0x80 | count,)) if count < 16 else b"\xdf" + count.to_bytes(4, "big")) + b"".join(pairs)


def _ordered(value: Any, walk: _Walk) -> bytes:
    return _members(ORDERED, chain.from_iterable(value.items()), walk)


def _str(value: str, _walk: _Walk) -> bytes:
    try:
        data = str.encode(value)
    except UnicodeEncodeError:
        data = str.encode(value, "utf-8", "surrogatepass")
    size = len(data)
    return (STR_HEADS[size] if size < 256 else b"\xdb" + size.to_bytes(4, "big")) + data


def _bytes(value: bytes | bytearray, _walk: _Walk) -> bytes:
    size = len(value)
    value = bytes(value)
    return (BIN_HEADS[size] if size < 256 else b"\xc6" + size.to_bytes(4, "big")) + value


def _memoryview(value: memoryview, walk: _Walk) -> bytes:
    if value.format != "B" or value.ndim != 1:
        raise KeyEncodeError("only a memoryview of plain bytes has a stable form as a key; use tobytes()")
    return _bytes(value.tobytes(), walk)


def _simplest(number: _Number) -> _Number:
    """Return an equal number of the first type that has one, of int, float, Decimal, Fraction, complex."""
    if isinstance(number, int):
        return int.__int__(number)
    if isinstance(number, float):
        return int(number) if float.is_integer(number) else float.__float__(number)
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
    """Refuse numbers so long that hostile bytes could make us spend quadratic time on them again and again."""
    if count > _MAX_DIGITS:
        raise KeyTooLarge(f"a key is a decimal or fraction of {count} digits; the limit is {_MAX_DIGITS} digits")


def _int(value: int, _walk: _Walk) -> bytes:
    if 0 <= value < 128:
        return SMALL_INTS[value]
    if 0 <= value < 1 << 32:
        return _U32(0xCE, value)
    if -(1 << 63) <= value < 1 << 63:
        return _I64(0xD3, value)
    return _extension(INT, int_to_bytes(value))


def _number(value: _Number, walk: _Walk) -> bytes:
    value = _simplest(value)
    if isinstance(value, int):
        return _int(value, walk)
    if isinstance(value, float):
        return _NAN if value != value else _F64(0xCB, value)
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        return _members(DECIMAL, (int(value.scaleb(-exponent, EXACT)), exponent), walk)
    if isinstance(value, Fraction):
        return _members(FRACTION, (value.numerator, value.denominator), walk)
    # Adding zero turns -0.0 into the equal 0.0.
    parts = (math.nan if part != part else part + 0.0 for part in (value.real, value.imag))
    return _extension(COMPLEX, PAIR.pack(*parts))


# Times. A naive datetime never equals an aware one, so the two have different codes; equality ignores the fold.


def _datetime(value: dt.datetime, _walk: _Walk) -> bytes:
    offset = value.utcoffset()
    moment = (value.toordinal() * 86400 + _seconds(value)) * 1_000_000 + value.microsecond
    code, shift = (DATETIME, 0) if offset is None else (INSTANT, offset // MICROSECOND)
    return _extension(code, WORD.pack(moment - shift))


def _time(value: dt.time, _walk: _Walk) -> bytes:
    offset = value.utcoffset()
    moment = _seconds(value) * 1_000_000 + value.microsecond
    code, shift = (TIME, 0) if offset is None else (ZONED_TIME, offset // MICROSECOND)
    return _extension(code, WORD.pack(moment - shift))


def _seconds(value: dt.datetime | dt.time) -> int:
    return (value.hour * 60 + value.minute) * 60 + value.second


def _range(value: range, walk: _Walk) -> bytes:
    length = max(0, -((value.start - value.stop) // value.step))
    if length < 2:
        return _members(RANGE, (value.start,) * length, walk)
    return _members(RANGE, (value.start, value.start + length * value.step, value.step), walk)


def _path(value: PurePath, _walk: _Walk) -> bytes:
    code, text = (WINDOWS_PATH, str(value).lower()) if isinstance(value, PureWindowsPath) else (POSIX_PATH, str(value))
    return _extension(code, text.encode("utf-8", "surrogatepass"))


def _queue(value: QueueKey | PrefixedQueueKey, _walk: _Walk) -> bytes:
    if not -(1 << 63) <= value.number < 1 << 63:
        raise KeyEncodeError("the number of a queue key needs more than 64 bits")
    number = BIASED.pack(value.number + (1 << 63))  # biased, so that the bytes sort like the numbers
    if value.prefix is None:
        return _extension(QUEUE, number)
    return _extension(PREFIXED, value.prefix.encode("utf-8", "surrogatepass") + number)


def _namespaced(value: NamespacedKey, walk: _Walk) -> bytes:
    start: bytes = value.path.start
    return start + encode_key(value.key)


# Keys that are identified by their name, or by what pickle would store.


def _named(value: Any, walk: _Walk) -> bytes:
    """Encode a class or function as 'module:qualname' if that name leads to it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, types.BuiltinFunctionType) and module is None:  # bound to an instance
        return _instance(value, walk)
    if not isinstance(module, str) or not isinstance(name, str) or not _leads_to(module, name, value):
        raise KeyEncodeError(
            f"{value!r} has no stable form as a key: {module}:{name} does not lead to it (lambdas, nested functions and"
            f" classes, and wrapped functions have no name of their own); use its name or another plain value instead"
        )
    if walk.named is not None:
        walk.named.append(value)
    return _extension(NAME, f"{module}:{name}".encode("utf-8", "surrogatepass"))


def _leads_to(module: str, name: str, value: object) -> bool:
    if module == "builtins" and isinstance(value, type):  # some built-in types, such as type(None), have no name there
        return True
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _enum(value: Enum, walk: _Walk) -> bytes:
    # A combination of flags has a name only in some versions of Python.
    return _members(ENUM, (type(value), value.value if isinstance(value, Flag) else value.name), walk)


def _compared_fields(kind: type[Any]) -> list[tuple[str, Callable[[Any], Any] | None]] | None:
    """Return the fields that a class's `==` compares, and what each is turned into first; None if nothing tells.

    The `==` of a dataclass or attrs class compares the fields of the class that it was generated for, and a subclass
    may inherit it. What `attrs.cmp_using` compares has no form that equal values share, and is taken as it is.
    """
    owner: Any = next(each for each in kind.__mro__ if "__eq__" in vars(each))
    code = getattr(owner.__eq__, "__code__", None)
    if "__dataclass_params__" in vars(owner) and getattr(code, "co_qualname", "").startswith("__create_fn__"):
        return [(field.name, None) for field in dataclasses.fields(owner) if field.compare]
    if "__attrs_attrs__" not in vars(owner) or not getattr(code, "co_filename", "").startswith("<attrs generated"):
        return None
    found = [(field.name, field.eq_key) for field in owner.__attrs_attrs__ if field.eq]
    return [(name, None if hasattr(convert, "_requirements") else convert) for name, convert in found]


def _fields(compared: list[tuple[str, Callable[[Any], Any] | None]], value: Any, walk: _Walk) -> bytes:
    kind = type(value)
    members: list[Any] = [kind]
    try:
        for name, convert in compared:
            member = getattr(value, name)
            members += name, member if convert is None else convert(member)
    except (AttributeError, TypeError) as exc:
        raise KeyEncodeError(
            f"a key of type {full_name(kind)} has a field {name!r} that its == cannot compare ({exc}); give it a value"
        ) from exc
    return _members(DATACLASS, members, walk)


def _numpy(value: Any, walk: _Walk) -> bytes:
    item = value.item()
    return _ENCODERS[type(item)](item, walk) if type(item) in _PYTHON_ITEMS else _instance(value, walk)


_PYTHON_ITEMS: Final = frozenset((bool, int, float, complex, str, bytes))  # NumPy's scalars are equal to these
_NOT_PYTHON: Final = frozenset(("datetime64", "timedelta64", "void"))  # item() may be an int or bytes, but they are not


# What is equal has equal bytes, however it came about: arrays in another order of memory, frames whose columns are
# grouped otherwise or whose labels are a range, models that were given a default. Libraries are known by their names,
# since none is imported here.


def _ndarray(value: Any, walk: _Walk) -> bytes:
    return _instance(value if value.flags.c_contiguous else value.copy("C"), walk)


def _frame(value: Any, walk: _Walk) -> bytes:
    columns = [value.iloc[:, number] for number in range(value.shape[1])]
    parts = [_labels(value.columns), _labels(value.index), *map(_column, columns)]
    return _members(DATACLASS, (type(value), value.attrs, *parts), walk)


def _series(value: Any, walk: _Walk) -> bytes:
    return _members(DATACLASS, (type(value), value.attrs, value.name, _labels(value.index), _column(value)), walk)


def _labels(index: Any) -> Any:
    is_plain = type(index).__name__ in ("Index", "RangeIndex") and index.dtype.kind in "biufc"
    return (list(index.names), index.to_numpy()) if is_plain else index


def _column(series: Any) -> Any:
    kind = series.dtype.kind
    if kind == "O" and str(series.dtype) in ("object", "str", "string"):
        return str(series.dtype), series.tolist()
    return series.to_numpy() if type(series.array).__name__ == "NumpyExtensionArray" else series.array


def _model(value: Any, walk: _Walk) -> bytes:
    """Encode what pydantic compares: the fields, and not which of them were given."""
    extra = value.__pydantic_extra__ or {}, value.__pydantic_private__ or {}
    return _members(DATACLASS, (type(value), vars(value), *extra), walk)


_BY_NAME: Final = {
    ("numpy", "ndarray"): _ndarray,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
}


def _instance(value: Any, walk: _Walk) -> bytes:
    """Encode an instance as the call that would rebuild it."""
    reduced = _reduce(value)
    if isinstance(reduced, str):  # the name of a global
        if walk.named is not None:
            walk.named.append(value if hasattr(value, "__qualname__") else type(value))
        return _extension(NAME, f"{getattr(value, '__module__', type(value).__module__)}:{reduced}".encode())
    function, arguments, state, items, pairs, setter = (*reduced, *(None,) * 6)[:6]
    parts = walk.encode((function, arguments, state, setter))
    parts += _members(0, items or (), walk), _dict(pairs or (), walk)
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
        reraise_signal(exc)
        raise KeyEncodeError(
            f"a key of type {full_name(kind)} has no stable form ({exc}); use text, bytes, a number or a tuple of these"
            f" that identifies it, or define its __reduce__"
        ) from exc


class _Encoders(dict[type[Any], _Encoder]):
    """The encoder for each type; that of a subclass is chosen when the subclass is first met."""

    def __missing__(self, kind: type[Any]) -> _Encoder:
        encoder = _of_library(kind) or _of_subclass(kind) or _of_its_own(kind)
        if len(self) < _KNOWN_TYPES:
            self[kind] = encoder
        return encoder


_ENCODERS: Final = _Encoders(
    {
        str: _str,
        bytes: _bytes,
        int: _int,
        type(None): lambda _value, _walk: b"\xc0",
        tuple: partial(_members, TUPLE),
        bool: _number,
        float: _number,
        list: partial(_members, 0),
        dict: _dict,
        frozenset: _set,
        set: _set,
        QueueKey: _queue,
        PrefixedQueueKey: _queue,
        NamespacedKey: _namespaced,
        bytearray: _bytes,
        memoryview: _memoryview,
        complex: _number,
        Decimal: _number,
        Fraction: _number,
        dt.datetime: _datetime,
        dt.date: lambda value, _walk: _extension(DATE, value.toordinal().to_bytes(3, "big")),
        dt.time: _time,
        dt.timedelta: lambda value, _walk: _extension(
            TIMEDELTA, DAYS.pack(value.days, value.seconds, value.microseconds)
        ),
        UUID: lambda value, _walk: _extension(UUID_CODE, value.bytes),
        range: _range,
        type(...): lambda _value, _walk: _extension(ELLIPSIS, b""),
    }
)
_SUBCLASSED: Final = (
    *(str, int, float, complex, bytes, bytearray, tuple, list, dict, set, frozenset, Decimal, Fraction, UUID),
    *(dt.datetime, dt.date, dt.time, dt.timedelta),
)


_ORDERED_EQUALITY: Final[Any] = OrderedDict.__eq__
_COUNTED_EQUALITY: Final[Any] = Counter.__eq__


def _of_library(kind: type[Any]) -> _Encoder | None:
    named = _BY_NAME.get((kind.__module__.partition(".")[0], kind.__name__))
    if named is not None:
        return named
    if any(parent.__module__ == "pydantic.main" and kind.__eq__ is parent.__eq__ for parent in kind.__mro__):
        return _model
    if any(parent.__module__ == "numpy" and parent.__name__ == "generic" for parent in kind.__mro__):
        return _instance if kind.__name__ in _NOT_PYTHON else _numpy
    return None


def _of_subclass(kind: type[Any]) -> _Encoder | None:
    """Return the encoder of the built-in type whose equality a subclass has kept."""
    base: Any = next((base for base in _SUBCLASSED if issubclass(kind, base)), None)
    if base is dict and kind.__eq__ is _ORDERED_EQUALITY:
        return _ordered
    if base is not None:
        same = kind.__eq__ is base.__eq__ and (kind.__hash__ is base.__hash__ or base.__hash__ is None)
        if same or (base is dict and kind.__eq__ is _COUNTED_EQUALITY):  # which differs from dict's only among Counters
            return _number if base is int else _ENCODERS[base]
    return None


def _of_its_own(kind: type[Any]) -> _Encoder:
    if issubclass(kind, Enum):
        return _enum
    if issubclass(kind, type | types.FunctionType | types.BuiltinFunctionType):
        return _named
    if issubclass(kind, PurePath) and kind.__eq__ is PurePath.__eq__:
        return _path
    compared = _compared_fields(kind)
    return _instance if compared is None else partial(_fields, compared)


def encode_as_is(kind: type[bytes]) -> None:
    """Let keys of a class be their own canonical bytes."""
    _ENCODERS[kind] = lambda value, _walk: bytes(value)
