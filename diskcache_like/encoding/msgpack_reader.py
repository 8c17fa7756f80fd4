"""Read msgpack within bounds on nesting, claimed lengths and extensions.

A `Format` says what the extensions mean. Given any bytes, it either returns a value or raises an error, and uses no
more memory than the bytes can account for.
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

from ..coherence import _native
from ..errors import DecodeError, MissingDependency
from ..system.signals import reraise_signal

MAX_DEPTH: Final = 400
"""How deeply containers may be nested; a deeper value is `NotSerializable`, a deeper payload a `DecodeError`."""
_BIN8, _EXT8 = 0xC4, 0xC7
_MAP_HEADS: Final = {0xDE: 3, 0xDF: 5}  # length of the head of a map of 16 or more pairs, by its first byte
_FEW_PAIRS: Final = 64
_CONTAINERS: Final = frozenset((list, dict, tuple, set, frozenset))

Buffer = bytes | memoryview
Scalars = Mapping[int, Callable[[bytes], Any]]


MISENCODED: Final = frozenset((bytearray, memoryview, ExtType, Timestamp, getattr(builtins, "frozendict", bytearray)))
"""The types that msgpack packs or reads in a form of its own, which is not part of ours."""


class ArrayMark(NamedTuple):
    """The first item of an array that stands for something else; `build` is called with the array, mark included."""

    build: Callable[[list[Any]], Any]


Marks = Mapping[int, ArrayMark]


def kinds_in(value: Any) -> set[type]:
    """Collect the exact types in a value, level by level and at the speed of C."""
    kinds: set[type] = set()
    level = [value]
    while level:
        here = list(map(type, level))
        kinds.update(here)
        if kinds.isdisjoint(_CONTAINERS):
            break
        level = get_referents(*compress(level, map(_CONTAINERS.__contains__, here)))
    return kinds


class _NotPlainError(Exception):
    """A part of the value is of a type for which pickle calls `reducer_override`."""


class _NullFile:
    """A file that discards what is written to it."""

    write = staticmethod(len)


class _Walker(pickle.Pickler):
    """Walk through a value at the speed of C by pickling it to nowhere, and stop at the first part that is not plain.

    Pickle writes exactly None, booleans, integers, floats, text, bytes, lists, tuples, dictionaries and sets without
    calling `reducer_override`. It does call it for a bytearray, which protocol 4 writes as a call of the type.
    """

    def reducer_override(self, _: Any) -> Any:
        raise _NotPlainError


def _new_walker() -> _Walker:
    walker = _Walker(_NullFile(), 4)
    walker.fast = True  # do not remember objects, which would double the time
    return walker


_walkers: list[_Walker] = []


def _is_plain(value: Any) -> bool:
    try:
        walker, used = _walkers.pop(), True
    except IndexError:  # all others are in use, by threads or outer calls
        walker, used = _new_walker(), False
    try:
        walker.dump(value)
        plain = True
    except _NotPlainError:
        plain = False
    except Exception as error:  # such as too much depth, after which the walker never counts its depth down again
        reraise_signal(error)
        return used and _is_plain(value)  # so try a new one; CPython's also miscounts by one for each frozenset
    _walkers.append(walker)
    return plain


# A different pickle than today's CPython has may write one of these types without asking; then nothing counts as plain.
_WALKS: Final = not any(map(_is_plain, ([bytearray()], [memoryview(b"")], [ExtType(0, b"")], [Timestamp(0)]))) and not (
    hasattr(builtins, "frozendict") and _is_plain([builtins.frozendict()])
)


def is_plain(value: Any) -> bool:
    """Tell whether a value consists of plain scalars and built-in containers only; False may also mean "not known"."""
    return _WALKS and _is_plain(value)


def check_structure(payload: Buffer) -> None:
    """Verify that the payload is as long as it claims and not nested too deeply; this allocates one copy at most.

    msgpack allocates a list at its claimed length, so without this check a few nested claims would take gigabytes.
    """
    size = len(_DEPTH_FILLER) + len(payload)
    unpacker = Unpacker(None, max_buffer_size=size)
    unpacker.feed(_DEPTH_FILLER)
    unpacker.feed(payload)
    unpacker.skip()


def _depth_filler() -> bytes:
    """Return bytes that leave `MAX_DEPTH` levels of msgpack's stack free, so that its own check enforces our bound."""
    low, high = MAX_DEPTH, 1 << 14
    if Unpacker.__module__ == "msgpack.fallback":
        return b""  # pure Python recurses, so the interpreter's limit applies
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
"""First bytes of containers and extensions, which a `Format` decodes; any other byte begins a plain value."""
_TIMESTAMP: Final = re.compile(rb"\xff(?<=[\x04\x08\x0c\xd6\xd7]\xff)")  # the end of every head of a timestamp
_AS_ARRAY: Final = struct.Struct(">BIB")  # the head of an array, and one nil


def _unpack(
    payload: Buffer, extension: Callable[[int, bytes], Any], array: Callable[[list[Any]], Any] | None = None
) -> Any:
    """Unpack with these hooks; read a map of many pairs as an array of a nil and then its keys and values.

    msgpack interns every key of a map, and for many keys that takes longer than everything else. Inner maps are left to
    msgpack: they are mostly records with the same few keys. The nil prevents the array from beginning with a mark.
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
    """Decode containers and extensions by two tables: one of extensions that are values, one of marks."""

    __slots__ = ("_marks", "_scalars")

    def __init__(self, scalars: Scalars, marks: Marks) -> None:
        self._scalars = scalars
        self._marks = marks

    def unpack(self, payload: Buffer) -> Any:
        """Decode a payload; errors of msgpack are raised as they are."""
        plain = _native.read_plain(payload)
        if plain is not NotImplemented:
            return plain
        if len(payload) > MAX_DEPTH:  # a shorter one can neither be too deep nor claim much
            check_structure(payload)
        if type(payload) is not bytes or _EXT8 in payload:  # every mark begins with this byte
            value = self._unpack_marked(payload)
        else:
            value = _unpack(payload, self._scalar)
            if 0xFF not in payload:
                return value
        # msgpack reads its timestamps without calling the hook.
        if _TIMESTAMP.search(payload) and not is_plain(value) and Timestamp in kinds_in(value):
            raise DecodeError("unknown extension -1")
        return value

    def _scalar(self, code: int, data: bytes) -> Any:
        read = self._scalars.get(code)
        if read is None:
            raise DecodeError(f"unknown extension {code}")
        return read(data)

    def _unpack_marked(self, payload: Buffer) -> Any:
        opened = 0  # marks whose array has not been completed

        def extension(code: int, data: bytes) -> Any:
            nonlocal opened
            if code in self._marks and not data:
                opened += 1
                return self._marks[code]
            return self._scalar(code, data)

        def array(items: list[Any]) -> Any:
            nonlocal opened
            if items and type(items[0]) is ArrayMark:
                opened -= 1
                return items[0].build(items)
            return items

        value = _unpack(payload, extension, array)
        if opened:
            raise DecodeError("a mark is not the first item of an array")
        return value


def decoder(form: Format) -> Callable[[Buffer], Any]:
    """Return a function that decodes payloads of a format, and raises `DecodeError` for anything else."""

    def decode(payload: Buffer) -> Any:
        try:
            first = payload[0]
            if first == _BIN8 and type(payload) is bytes and len(payload) == payload[1] + 2:
                return payload[2:]
            if first in NESTED:
                return form.unpack(payload)
            try:
                return unpackb(payload)
            except UnicodeDecodeError:  # it may have lone surrogates
                return unpackb(payload, unicode_errors="surrogatepass")
        except (DecodeError, MemoryError, MissingDependency):
            raise
        except Exception as exc:
            reraise_signal(exc)
            raise DecodeError(f"a stored value of {len(payload)} bytes cannot be decoded: {exc}") from exc

    return decode
