"""Read msgpack within bounds: nesting, claimed lengths, and which extensions there are.

A `Format` says what extensions mean. Whatever bytes it is given, it either returns a value or raises, with no more
memory than the bytes can account for.
"""

from __future__ import annotations

import builtins
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from gc import get_referents
from itertools import compress
from typing import Any, Final, NamedTuple

from msgpack import ExtType, Timestamp, Unpacker, unpackb

from .errors import DecodeError, MissingDependency
from .interrupts import let_through

MAX_DEPTH: Final = 400
"""Containers within containers: a deeper value is `NotData`, a deeper payload a `DecodeError`."""
_BIN8, _EXT8 = 0xC4, 0xC7
_MAP_HEADS: Final = {0xDE: 3, 0xDF: 5}  # bytes of the heads of maps of 16 and more pairs
_FEW_PAIRS: Final = 64
_CONTAINERS: Final = frozenset((list, dict, tuple, set, frozenset))

Buffer = bytes | memoryview
Scalars = Mapping[int, Callable[[bytes], Any]]


SLIPS: Final = frozenset((bytearray, memoryview, ExtType, Timestamp, getattr(builtins, "frozendict", bytearray)))
"""The types that msgpack packs, or reads, by itself as something that is not in the format."""


class Mark(NamedTuple):
    """Open an array that stands for another container; `build` gets the array with the mark still in front."""

    build: Callable[[list[Any]], Any]


Marks = Mapping[int, Mark]


def kinds_in(value: Any) -> set[type]:
    """Collect the exact types found in a value, level by level at the speed of C."""
    kinds: set[type] = set()
    level = [value]
    while level:
        here = list(map(type, level))
        kinds.update(here)
        if kinds.isdisjoint(_CONTAINERS):
            break
        level = get_referents(*compress(level, map(_CONTAINERS.__contains__, here)))
    return kinds


class _StrangerError(Exception):
    """Something is not of a type that pickle writes without asking."""


class _Nowhere:
    """A file that keeps nothing."""

    write = staticmethod(len)


class _Walker(pickle.Pickler):
    """Walk through a value at the speed of C, by writing it nowhere, and stop at the first stranger.

    Exactly None, booleans, integers, floats, text, bytes, lists, tuples, dictionaries and sets are written without
    asking. In this protocol bytearrays are not: they are written as a call of their type, about which it asks.
    """

    def reducer_override(self, _: Any) -> Any:
        raise _StrangerError


def _new_walker() -> _Walker:
    walker = _Walker(_Nowhere(), 4)
    walker.fast = True  # remembers no object, which would take as long again
    return walker


_walkers: list[_Walker] = []


def _is_plain(value: Any) -> bool:
    try:
        walker, used = _walkers.pop(), True
    except IndexError:  # all others are in use, by threads and outer calls
        walker, used = _new_walker(), False
    try:
        walker.dump(value)
        plain = True
    except _StrangerError:
        plain = False
    except Exception as error:  # such as one of too much depth, after which a walker still counts itself as that deep
        let_through(error)
        return used and _is_plain(value)  # CPython's also does so after some fifty frozensets, one for each
    _walkers.append(walker)
    return plain


# Another pickle than CPython's of today may write one of them without asking; then nothing is known to be plain.
_WALKS: Final = not any(map(_is_plain, ([bytearray()], [memoryview(b"")], [ExtType(0, b"")], [Timestamp(0)]))) and not (
    hasattr(builtins, "frozendict") and _is_plain([builtins.frozendict()])
)


def is_plain(value: Any) -> bool:
    """Tell that a value holds nothing but plain scalars and built-in containers; False may also mean "not known"."""
    return _WALKS and _is_plain(value)


def check_structure(payload: Buffer) -> None:
    """Prove that every claimed length is really there and that nesting is bounded, allocating one copy at most.

    Lists are allocated at their claimed length, so without this a few nested claims would ask for gigabytes.
    """
    size = len(_DEPTH_FILLER) + len(payload)
    unpacker = Unpacker(None, max_buffer_size=size)
    unpacker.feed(_DEPTH_FILLER)
    unpacker.feed(payload)
    unpacker.skip()


def _depth_filler() -> bytes:
    """Fill msgpack's stack until room for `MAX_DEPTH` is left, so that its own check enforces our bound."""
    low, high = MAX_DEPTH, 1 << 14
    if Unpacker.__module__ == "msgpack.fallback":
        return b""  # pure Python recurses: its bound is the interpreter's
    while low + 1 < high:
        middle = (low + high) // 2
        unpacker = Unpacker(None)
        unpacker.feed(b"\x91" * middle + b"\xc0")
        try:
            unpacker.skip()
            low = middle
        except ValueError:
            high = middle
    return b"\x91" * (low - MAX_DEPTH)


_DEPTH_FILLER: Final = _depth_filler()
NESTED: Final = frozenset((*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), *range(0xDC, 0xE0)))
"""First bytes of containers and extensions, which a `Format` decodes; all others begin a plain value."""
_TIMESTAMP: Final = re.compile(rb"\xff(?<=[\x04\x08\x0c\xd6\xd7]\xff)")  # every head of one ends so


_AS_ARRAY: Final = struct.Struct(">BIB")  # the head of an array and one nil


def _unpack(
    payload: Buffer, extension: Callable[[int, bytes], Any], array: Callable[[list[Any]], Any] | None = None
) -> Any:
    """Unpack with these hooks; a map of many pairs as the array of its keys and values, behind a nil.

    msgpack interns every key of a map, which takes longer than all else if there are many. A map within another is left
    to it: the keys of records are few, and found again. The nil keeps the array from opening with a mark.
    """
    head = _MAP_HEADS.get(payload[0], 0)
    count = int.from_bytes(payload[1:head], "big")
    is_array = count > _FEW_PAIRS
    if is_array:
        payload = b"".join((_AS_ARRAY.pack(0xDD, 2 * count + 1, 0xC0), memoryview(payload)[head:]))
    value = unpackb(payload, ext_hook=extension, list_hook=array, strict_map_key=False, unicode_errors="surrogatepass")
    if not is_array:
        return value
    members = iter(value)
    next(members)
    return dict(zip(members, members, strict=True))


class Format:
    """Decode containers and extensions by two tables: of extensions that are values, and of marks."""

    __slots__ = ("_marks", "_scalars")

    def __init__(self, scalars: Scalars, marks: Marks) -> None:
        self._scalars = scalars
        self._marks = marks

    def unpack(self, payload: Buffer) -> Any:
        """Decode a payload; whatever goes wrong, errors of msgpack included, is raised."""
        if len(payload) > MAX_DEPTH:  # a shorter one can neither be too deep nor claim much
            check_structure(payload)
        if type(payload) is not bytes or _EXT8 in payload:  # with which every mark begins
            value = self._unpack_marked(payload)
        else:
            value = _unpack(payload, self._scalar)
            if 0xFF not in payload:
                return value
        # msgpack reads its own timestamps without asking.
        if _TIMESTAMP.search(payload) and not is_plain(value) and Timestamp in kinds_in(value):
            raise DecodeError("unknown extension -1")
        return value

    def _scalar(self, code: int, data: bytes) -> Any:
        read = self._scalars.get(code)
        if read is None:
            raise DecodeError(f"unknown extension {code}")
        return read(data)

    def _unpack_marked(self, payload: Buffer) -> Any:
        opened = 0  # marks that have not met their array

        def extension(code: int, data: bytes) -> Any:
            nonlocal opened
            if code in self._marks and not data:
                opened += 1
                return self._marks[code]
            return self._scalar(code, data)

        def array(items: list[Any]) -> Any:
            nonlocal opened
            if items and type(items[0]) is Mark:
                opened -= 1
                return items[0].build(items)
            return items

        value = _unpack(payload, extension, array)
        if opened:
            raise DecodeError("a mark stands where no array begins")
        return value


def decoder(form: Format) -> Callable[[Buffer], Any]:
    """Return the function that decodes payloads of a format; anything else raises `DecodeError` and nothing else."""

    def decode(payload: Buffer) -> Any:
        try:
            first = payload[0]
            if first == _BIN8 and type(payload) is bytes and len(payload) == payload[1] + 2:
                return payload[2:]
            if first in NESTED:
                return form.unpack(payload)
            try:
                return unpackb(payload)
            except UnicodeDecodeError:  # perhaps because of lone surrogates
                return unpackb(payload, unicode_errors="surrogatepass")
        except (DecodeError, MemoryError, MissingDependency):
            raise
        except Exception as exc:
            let_through(exc)
            raise DecodeError(f"a stored value of {len(payload)} bytes cannot be decoded: {exc}") from exc

    return decode
