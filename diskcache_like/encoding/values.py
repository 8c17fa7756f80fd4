"""Serialise values as data: canonical bytes that are read back without running any code.

The format is msgpack plus the extension codes below. A value is written only if it comes back equal and of exactly the
same type, all the way down. Anything else, subclasses included, raises `NotSerializable`, and the caller may pickle it.

    code  type                  form
    ----  --------------------  --------------------------------------------------------------------------
       1  tuple                 array: [mark, *members]
       2  set                   array: [mark, *members]
       3  frozenset             array: [mark, *members]
       4  range                 array: [mark, start, stop, step]
       5  fractions.Fraction    array: [mark, numerator, denominator]
       6  registered objects    array: [mark, name of the class, state]; see `classes`
      16  int beyond 64 bits    two's complement, big endian
      17  complex               two doubles
      18  decimal.Decimal       text, ASCII
      19  datetime.datetime     year u16, month, day, hour, minute, second u8, microsecond u32, fold u8, zone
      20  datetime.date         year u16, month, day u8
      21  datetime.time         hour, minute, second u8, microsecond u32, fold u8, zone
      22  datetime.timedelta    days, seconds, microseconds i32
      23  uuid.UUID             16 bytes, then the value of `is_safe` as i8 unless unknown
      24  bytearray             the bytes
      25  Ellipsis              nothing

A mark is an empty extension that is the first item of an array; unlike an extension with content, it makes nesting cost
no copies. A zone is empty for a naive time; or `O` and the offset in microseconds as i64, then `=` and the zone's name
if it has one (`datetime.timezone`); or `Z` and the name of a `zoneinfo.ZoneInfo`. The msgpack timestamp (code -1) is
not part of the format.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import partial
from typing import Any, Final
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

from msgpack import ExtType, Packer

from ..coherence import _native
from ..errors import DecodeError
from ..system.signals import reraise_signal
from .msgpack_reader import (
    MAX_DEPTH,
    MISENCODED,
    ArrayMark,
    Format,
    Marks,
    Scalars,
    check_structure,
    decoder,
    is_plain,
    kinds_in,
)

TUPLE, SET, FROZENSET, RANGE, FRACTION = range(1, 6)
INT, COMPLEX, DECIMAL, DATETIME, DATE, TIME, TIMEDELTA, UUID_CODE, BYTEARRAY, ELLIPSIS = range(16, 26)

BIN_HEADS: Final[tuple[bytes, ...]] = tuple(bytes((0xC4, n)) for n in range(256))
"""The head of a byte string of less than 256 bytes, by length."""
STR_HEADS: Final[tuple[bytes, ...]] = tuple(bytes((0xA0 | n,)) if n < 32 else bytes((0xD9, n)) for n in range(256))
"""The head of a text of less than 256 bytes, by its length in UTF-8."""
SMALL_INTS: Final = tuple(bytes((n,)) for n in range(128))
"""The whole encoding of the integers from 0 to 127."""

FRACTION_BITS: Final = 8192  # reducing a fraction takes quadratic time, so hostile bytes must not ask for a large one
_POOLED_SIZE: Final = 1 << 18  # a packer keeps its buffer, so it is dropped if that has grown beyond this


class NotSerializable(TypeError):
    """A value, or something inside it, has no exact form in the format."""


# ExtType.__new__ checks its arguments in Python, which takes five times as long as making the tuple.
_extension: Callable[[tuple[int, bytes]], ExtType] = partial(tuple.__new__, ExtType)
_MARKS: Final = {code: ExtType(code, b"") for code in (TUPLE, SET, FROZENSET, RANGE, FRACTION)}
_TUPLE_MARK: Final = _MARKS[TUPLE]

_DATETIME = struct.Struct(">HBBBBBIB")
_DATE = struct.Struct(">HBB")
_TIME = struct.Struct(">BBBIB")
_TIMEDELTA = struct.Struct(">iii")
_COMPLEX = struct.Struct(">dd")
_OFFSET = struct.Struct(">q")
_MICROSECOND = timedelta(microseconds=1)
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}", re.ASCII)


def int_to_bytes(number: int) -> bytes:
    """Encode an integer in the fewest bytes of two's complement, big endian."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)


int_from_bytes: Final = partial(int.from_bytes, byteorder="big", signed=True)


def _pack_zone(zone: tzinfo | None) -> bytes:
    if zone is None:
        return b""
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if name and type(name[0]) is not str:
            raise NotSerializable(f"a time zone named by {type(name[0])!r} is not serializable")
        packed = b"O" + _OFFSET.pack(offset // _MICROSECOND)
        return packed + b"=" + name[0].encode("utf-8", "surrogatepass") if name else packed
    if type(zone) is ZoneInfo and _is_by_name(zone):
        return b"Z" + zone.key.encode()
    raise NotSerializable(f"a time zone of type {_name(type(zone))} is not one that its name leads to")


def _is_by_name(zone: ZoneInfo) -> bool:
    """Tell whether the name leads to this very object, as it does not for one from `no_cache` or `from_file`."""
    try:
        return bool(_ZONE_NAME.fullmatch(zone.key)) and ZoneInfo(zone.key) is zone
    except (TypeError, LookupError, ValueError, OSError) as error:
        reraise_signal(error)
        return False


def _write_datetime(value: datetime) -> ExtType:
    fields = _DATETIME.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold
    )
    return _extension((DATETIME, fields + _pack_zone(value.tzinfo)))


def _write_time(value: time) -> ExtType:
    fields = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return _extension((TIME, fields + _pack_zone(value.tzinfo)))


def _write_uuid(value: UUID) -> ExtType:
    safe = value.is_safe.value
    return _extension((UUID_CODE, value.bytes if safe is None else value.bytes + (safe & 0xFF).to_bytes(1, "big")))


def _write_fraction(value: Fraction) -> list[Any]:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > FRACTION_BITS:
        raise NotSerializable(f"a fraction of more than {FRACTION_BITS} bits is not serializable")
    return [_MARKS[FRACTION], value.numerator, value.denominator]


# A context of our own: how Decimal reads and writes text depends on the capitals and traps of the thread's context.
_DECIMALS = Context(capitals=1, traps=[InvalidOperation])

_EXTENSIONS: Final[dict[type, Callable[[Any], Any]]] = {
    tuple: lambda value: [_TUPLE_MARK, *value],
    set: lambda value: [_MARKS[SET], *value],
    frozenset: lambda value: [_MARKS[FROZENSET], *value],
    range: lambda value: [_MARKS[RANGE], value.start, value.stop, value.step],
    Fraction: _write_fraction,
    int: lambda value: _extension((INT, int_to_bytes(value))),
    complex: lambda value: _extension((COMPLEX, _COMPLEX.pack(value.real, value.imag))),
    Decimal: lambda value: _extension((DECIMAL, _DECIMALS.to_sci_string(value).encode("ascii"))),
    datetime: _write_datetime,
    date: lambda value: _extension((DATE, _DATE.pack(value.year, value.month, value.day))),
    time: _write_time,
    timedelta: lambda value: _extension((TIMEDELTA, _TIMEDELTA.pack(value.days, value.seconds, value.microseconds))),
    UUID: _write_uuid,
    bytearray: lambda value: _extension((BYTEARRAY, bytes(value))),
    type(...): lambda value: _extension((ELLIPSIS, b"")),
}
_PLAIN: Final = frozenset((str, bytes, int, float, bool, type(None)))
_DATA: Final = _PLAIN.union((list, dict), _EXTENSIONS)


def extension_of(value: Any) -> Any:
    """Return what msgpack should pack for a value whose type it does not know, or raise `NotSerializable`."""
    if type(value) is tuple:
        return [_TUPLE_MARK, *value]
    write = _EXTENSIONS.get(type(value))
    if write is None:
        raise _not_serializable(type(value))
    return write(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _packer(default: Callable[[Any], Any]) -> Packer:
    return Packer(default=default, strict_types=True, use_bin_type=True, unicode_errors="surrogatepass")


def packing_with(default: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    """Return a function that packs; no two threads or nested calls ever share a packer."""
    packers: list[Packer] = []

    def pack(value: Any) -> bytes:
        try:
            packer = packers.pop()
        except IndexError:
            packer = _packer(default)
        data: bytes = packer.pack(value)
        if len(data) < _POOLED_SIZE:
            packers.append(packer)
        return data

    return pack


_pack: Final = packing_with(extension_of)


def encode_value(value: Any) -> bytes:
    """Encode a value; raise `NotSerializable` if it would not come back equal and of the same type."""
    plain = _native.write_plain(value)
    if plain is not NotImplemented:
        return plain  # type: ignore[no-any-return]
    kind = type(value)
    try:
        if kind in _PLAIN:
            return _pack(value)
        if kind is tuple and _PLAIN.issuperset(map(type, value)):  # nothing in it needs to be verified
            return _pack([_TUPLE_MARK, *value])
        return _verify(value, _pack(value if kind in _DATA else extension_of(value)))
    except NotSerializable:
        raise
    except (ValueError, OverflowError, RecursionError) as exc:
        reraise_signal(exc)
        raise _too_large(kind) from exc


def _too_large(kind: type) -> NotSerializable:
    return NotSerializable(f"a {_name(kind)} is too large or nested too deeply, or contains itself")


def encode_with(
    value: Any, pack: Callable[[Any], bytes], default: Callable[[Any], Any], is_known: Callable[[type], bool]
) -> bytes:
    """Encode a value that may contain types of extensions: `default` turns them into msgpack, `pack` packs with it."""
    plain = _native.write_plain(value)
    if plain is not NotImplemented:
        return plain  # type: ignore[no-any-return]
    try:
        return _verify(value, pack(value if type(value) in _DATA else default(value)), pack, is_known)
    except NotSerializable:
        raise
    except (ValueError, OverflowError, RecursionError) as exc:
        reraise_signal(exc)
        raise _too_large(type(value)) from exc


def _no_other(_kind: type) -> bool:
    return False


def _verify(
    value: Any, data: bytes, pack: Callable[[Any], bytes] = _pack, is_known: Callable[[type], bool] = _no_other
) -> bytes:
    """Correct or refuse what msgpack packed in a form of its own, and refuse what could not be read again."""
    if not is_plain(value):
        data = _repair(value, data, pack, is_known)
    if len(data) > MAX_DEPTH:
        check_structure(data)
    return data


# msgpack packs bytearray, memoryview, ExtType and Timestamp in forms of its own, even with strict types, so that they
# would come back as something else; from Python 3.15 on frozendict, too.
_SURE: Final = _DATA - {bytearray}


def _not_serializable(*kinds: type) -> NotSerializable:
    return NotSerializable(f"a value of type {', '.join(sorted(map(_name, kinds)))} is not serializable")


def _repair(value: Any, data: bytes, pack: Callable[[Any], bytes], is_known: Callable[[type], bool]) -> bytes:
    """Pack again with bytearrays in our form; refuse any other type that msgpack packed in a form of its own."""
    foreign = {kind for kind in kinds_in(value) - _SURE if not is_known(kind)}
    if not foreign:
        return data
    if foreign != {bytearray}:
        raise _not_serializable(*foreign)
    return pack(_wrap_bytearrays(value))


def without_misencoded(value: Any) -> Any:
    """Return a part of a marked array with nothing left in it that msgpack would pack in a form of its own."""
    if is_plain(value):
        return value
    misencoded = MISENCODED.intersection(kinds_in(value))
    if misencoded - {bytearray}:
        raise _not_serializable(*misencoded - {bytearray})
    return _wrap_bytearrays(value) if misencoded else value


def _wrap_bytearrays(value: Any) -> Any:
    kind = type(value)
    if kind is bytearray:
        return _EXTENSIONS[bytearray](value)
    if kind is list or kind is tuple:
        return kind(map(_wrap_bytearrays, value))
    if kind is dict:  # its keys, like the members of sets, are hashable and so contain no bytearray
        return {key: _wrap_bytearrays(member) for key, member in value.items()}
    return value


def _read_zone(data: bytes) -> tzinfo | None:
    if not data:
        return None
    if data[:1] == b"Z":
        name = data[1:].decode("ascii")
        if not _ZONE_NAME.fullmatch(name):  # ZoneInfo opens a file of that name
            raise DecodeError(f"{name!r} is not the name of a time zone")
        return ZoneInfo(name)
    if data[:1] != b"O" or data[9:10] not in (b"", b"="):
        raise DecodeError("unknown form of time zone")
    offset = timedelta(microseconds=_OFFSET.unpack(data[1:9])[0])
    if len(data) == 9:
        return timezone(offset)
    return timezone(offset, data[10:].decode("utf-8", "surrogatepass"))


def _read_datetime(data: bytes) -> datetime:
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack(data[:12])
    return datetime(year, month, day, hour, minute, second, microsecond, _read_zone(data[12:]), fold=fold)


def _read_time(data: bytes) -> time:
    hour, minute, second, microsecond, fold = _TIME.unpack(data[:8])
    return time(hour, minute, second, microsecond, _read_zone(data[8:]), fold=fold)


def _read_uuid(data: bytes) -> UUID:
    if len(data) == 16:
        return UUID(bytes=data)
    (safe,) = struct.unpack(">b", data[16:])
    return UUID(bytes=data[:16], is_safe=SafeUUID(safe))


def _read_set(kind: type[set[Any] | frozenset[Any]], items: list[Any]) -> Any:
    members = kind(items[1:])
    if len(members) != len(items) - 1:
        raise DecodeError("a set has the same member twice")
    return members


def _read_range(items: list[Any]) -> range:
    _, start, stop, step = items
    return range(start, stop, step)


def _read_fraction(items: list[Any]) -> Fraction:
    _, numerator, denominator = items
    if max(numerator.bit_length(), denominator.bit_length()) > FRACTION_BITS:
        raise DecodeError("a fraction is too large")
    return Fraction(numerator, denominator)


SCALARS: Final[Scalars] = {
    INT: int_from_bytes,
    COMPLEX: lambda data: complex(*_COMPLEX.unpack(data)),
    DECIMAL: lambda data: Decimal(data.decode("ascii"), _DECIMALS),
    DATETIME: _read_datetime,
    DATE: lambda data: date(*_DATE.unpack(data)),
    TIME: _read_time,
    TIMEDELTA: lambda data: timedelta(*_TIMEDELTA.unpack(data)),
    UUID_CODE: _read_uuid,
    BYTEARRAY: bytearray,
    ELLIPSIS: lambda _data: ...,
}
MARKS: Final[Marks] = {
    TUPLE: ArrayMark(lambda items: tuple(items[1:])),
    SET: ArrayMark(partial(_read_set, set)),
    FROZENSET: ArrayMark(partial(_read_set, frozenset)),
    RANGE: ArrayMark(_read_range),
    FRACTION: ArrayMark(_read_fraction),
}


decode_value: Final = decoder(Format(SCALARS, MARKS))
"""Decode what `encode_value` wrote."""


_IMMUTABLE: Final = frozenset(
    (str, bytes, int, float, bool, type(None), complex, Decimal, UUID, Fraction, range, date, timedelta, type(...))
)
_ZONED: Final = frozenset((datetime, time))
_ZONES: Final = frozenset((type(None), timezone, ZoneInfo))
_EXAMINED: Final = 64
_CONTAINERS: Final = frozenset((list, tuple, set, frozenset, range))
_MEMBERS: Final = 128  # of a small value


def is_immutable(value: object) -> bool:
    """Tell whether several callers may share one object; False for one with more than 64 members."""
    if type(value) in _IMMUTABLE:
        return True
    pending = [value]
    examined = 0
    while pending:
        member: Any = pending.pop()
        kind = type(member)
        if kind is tuple or kind is frozenset:
            examined += len(member)
            if examined > _EXAMINED:
                return False
            pending.extend(member)
        elif kind not in _IMMUTABLE and not (kind in _ZONED and type(member.tzinfo) in _ZONES):
            return False
    return True


def is_small(value: object) -> bool:
    """Tell whether a value surely takes little time to encode: plain data of a hundred members or so.

    Text and byte strings count as a member for each 256 items.
    """
    left = _MEMBERS
    pending = [value]
    while pending:
        member: Any = pending.pop()
        kind = type(member)
        if kind is str or kind is bytes or kind is bytearray:
            left -= 1 + (len(member) >> 8)
        elif kind is dict:
            left -= len(member)
            if left >= 0:
                pending += member
                pending += member.values()
        elif kind in _CONTAINERS:
            left -= len(member)
            if left >= 0:
                pending += member
        elif kind in _IMMUTABLE or kind in _ZONED:
            left -= 1
        else:
            return False
        if left < 0:
            return False
    return True
