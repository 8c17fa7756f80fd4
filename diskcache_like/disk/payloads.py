"""Payloads: the part of `Disk` that turns values into bytes with a cache's codec, and back; it knows no files."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from ..encoding import values
from ..encoding.copying import copier_of, size_of
from ..encoding.pickling import dumps_pickle, loads_pickle
from ..encoding.record import MODE_BINARY, MODE_BYTES, MODE_PICKLE, MODE_RAW
from ..encoding.values import NotSerializable
from ..errors import DecodeError, ValueEncodeError
from .codec import Codec
from .columnar import registry
from .serializers import Msgpack

SMALLEST_FILE = 16  # bytes; a shorter payload always stays in the row, whatever min_file_size says

# A decoded value: (value, what the hot layer may keep, how to make a new value from that, or None if it is immutable).
Loaded = tuple[Any, Any, Callable[[Any], Any] | None]

_DEFAULT_CODEC = Codec(Msgpack((registry.COLUMNAR_TYPES,)))
_PLAIN = frozenset({str, bytes, int})


class Payloads:
    """Turn values into payloads and back."""

    own_values: bool  # no subclass encodes values

    def __init__(self, min_file_size: int, pickle_protocol: int) -> None:
        self.min_file_size = min_file_size
        self.pickle_protocol = pickle_protocol
        self.pickle_policy = "signed"
        self.value_codec = _DEFAULT_CODEC

    @property
    def min_file_size(self) -> int:
        """Return the size in bytes from which a value goes to a file."""
        return self._min_file_size

    @min_file_size.setter
    def min_file_size(self, size: int) -> None:
        self._min_file_size = size
        self._file_floor = max(size, SMALLEST_FILE)  # a payload this long or longer goes to a file

    @property
    def value_codec(self) -> Codec:
        """Return the codec; the cache sets it once it knows its identity."""
        return self._value_codec

    @value_codec.setter
    def value_codec(self, codec: Codec) -> None:
        self._value_codec = codec
        self._plain_values = self.own_values and codec.is_plain
        self._makes_trees = type(codec.serializer) is Msgpack  # pickle also makes values whose parts are shared
        load = _loader(codec.decode, self.kept)
        self.load_payload = _compressed_loader(codec, load) if codec.compresses else load
        self.decode_value = codec.decode

    def kept(self, payload: bytes) -> tuple[Any, Callable[[Any], Any]]:
        """Return what the hot layer keeps of a mutable value, and what makes a value of that for each hit."""
        return (Kept(payload, self.decode_value), fresh) if self._makes_trees else (payload, self.decode_value)

    def _payload(self, value: Any) -> tuple[int, bytes]:
        codec = self._value_codec
        if type(value) is bytes:
            if len(value) >= self._file_floor and not codec.compresses:
                return MODE_BINARY, value
            if len(value) >= self._file_floor or not codec.serializer.takes_bytes:
                return self._bytes_payload(value)
        try:
            return MODE_RAW, codec.encode(value)
        except NotSerializable as reason:
            if self.pickle_policy == "never":
                raise ValueEncodeError(
                    f"value of type {type(value).__qualname__} is not plain data ({reason}) and pickle='never' is in "
                    "force; convert it to plain data, or name the class to register() or allow= if it is a dataclass,"
                    " an enum, a named tuple, or of attrs or pydantic, or open the cache with pickle='signed' or a Disk"
                    " of your own"
                ) from None
            return MODE_PICKLE, codec.pack(dumps_pickle(value, self.pickle_protocol))

    def _bytes_payload(self, value: bytes) -> tuple[int, bytes]:
        """Return mode and payload for bytes; without the compressor's mark if a file will hold them as they are."""
        payload = self._value_codec.pack(value)
        if len(payload) >= self._file_floor and not self._value_codec.is_compressed(payload):
            return MODE_BINARY, value
        return MODE_BYTES, payload

    def _decode(self, mode: int, payload: bytes) -> Any:
        if mode == MODE_RAW:
            return self.decode_value(payload)
        if mode == MODE_PICKLE:
            return self._load_pickle(payload)
        if mode == MODE_BYTES and self._value_codec.writes_bytes:
            return self._value_codec.unpack(payload)
        raise DecodeError(f"record has mode {mode}, which this codec does not write")

    def _load_pickle(self, payload: bytes) -> Any:
        return loads_pickle(self._value_codec.unpack(payload))

    def _loaded(self, mode: int, payload: bytes, read: bool) -> Loaded:
        if mode == MODE_RAW:
            value, kept, decode = self.load_payload(payload)
            return readable(value, read), kept, decode
        value = self._decode(mode, payload)
        if mode == MODE_BYTES:
            return readable(value, read), payload, self._value_codec.unpack
        return value, payload, self._load_pickle


HITS = 8  # until a value is kept decoded: finding out how to copy it takes as long as decoding it a dozen times
# What makes a value, None if that is not decided, and of what. Both in one object, since hits read it without a lock.
How = tuple[Callable[[Any], Any] | None, Any]


class Kept:
    """A mutable value in memory: its payload, and after some hits the value itself, which nobody else has."""

    __slots__ = ("_decode", "_hits", "admit", "how")

    def __init__(self, payload: bytes, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode
        self._hits = 0
        # Asks for so many bytes of memory, and sets `how` if it gets them; the hot layer provides it.
        self.admit: Callable[[Kept, int, How], bool] = _refuse
        self.how: How = None, payload

    def decoded(self, payload: bytes) -> Any:
        """Return the decoded value; at hit number `HITS` keep one to copy, if it can be copied and there is room."""
        value = self._decode(payload)
        self._hits += 1  # threads at once may lose some
        if self._hits < HITS:
            return value
        copy, size = copier_of(value)
        if copy is not None and self.admit(self, size, (copy, value)):
            return copy(value)
        if self.how[0] is None:  # else another thread has just got the room
            self.how = self._decode, payload
        return value

    def kept(self, payload: bytes) -> Any:
        """Return the decoded value, which is the one that is kept from now on, if there is room."""
        value = self._decode(payload)
        copy, size = copier_of(value)
        if copy is None:
            copy, size = lambda _: self._decode(payload), size_of(value) + len(payload)
        self.admit(self, size, (copy, value))
        return value


def _refuse(*_: object) -> bool:
    return False


def fresh(kept: Kept) -> Any:
    """Return a value of the caller's own."""
    make, source = kept.how
    return kept.decoded(source) if make is None else make(source)


def shared(kept: Kept) -> Any:
    """Return the value that is kept itself, where there is room for one: the caller must not change it."""
    make, source = kept.how
    return kept.kept(source) if make is None else source if make is not kept._decode else make(source)


def _loader(
    decode: Callable[[bytes], Any], kept: Callable[[bytes], tuple[Any, Callable[[Any], Any]]]
) -> Callable[[bytes], Loaded]:
    """Return the function that loads a payload from the row; a method would take a tenth longer to look up."""

    def load(payload: bytes) -> Loaded:
        value = decode(payload)
        if type(value) in _PLAIN or values.is_immutable(value):
            return value, value, None
        return value, *kept(payload)

    return load


def _compressed_loader(codec: Codec, load_stored: Callable[[bytes], Loaded]) -> Callable[[bytes], Loaded]:
    """Return a loader that keeps even immutable values compressed: the hot layer counts the compressed bytes."""

    def load(payload: bytes) -> Loaded:
        if codec.is_compressed(payload):
            return codec.decode(payload), payload, codec.decode
        return load_stored(payload)

    return load


def readable(value: Any, read: bool) -> Any:
    """Return bytes as a file object if `read`, and anything else as it is."""
    return io.BytesIO(value) if read and type(value) is bytes else value
