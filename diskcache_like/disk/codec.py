"""Codec: a serializer, then perhaps a compressor. The configuration chooses both; nothing in a row does.

    value ── serializer.encode ──> data ── compressor.pack ──> payload

Without a compressor, data and payload are the same bytes. With one, the payload begins with a byte that says only
whether it is compressed (see `encoding/compressors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgpack import packb

from ..encoding.compressors import COMPRESSED, PayloadCompressor, new_compressor
from ..encoding.pickling import PicklePolicy
from ..errors import SettingError
from .columnar.registry import COLUMNAR_TYPES, Packed, Tables, as_extension
from .serializers import Extensions, Msgpack, Serializer, new_serializer


class Codec:
    """Turn values into payloads and back."""

    def __init__(self, serializer: Serializer, compressor: PayloadCompressor | None = None) -> None:
        self.serializer = serializer
        self.compresses = compressor is not None
        self.is_plain = type(serializer) is Msgpack and compressor is None
        """Whether the payload of plain data is exactly what `encode_value` returns."""
        self.writes_bytes = compressor is not None or not serializer.takes_bytes
        """Whether byte strings may be payloads without going through the serializer."""
        self.packs_columnar = isinstance(serializer, Msgpack | Tables)
        """Whether arrays and tables of other libraries are data; a large one becomes a value file in its own format."""
        self._compressor = compressor
        read = serializer.decode
        self.decode: Callable[[bytes], Any]
        self.decode = read if compressor is None else lambda payload: read(compressor.unpack(payload))
        """Return the value of a payload; raise DecodeError for anything that this codec did not write."""

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`, or raise `NotSerializable`."""
        return self.pack(self.serializer.encode(value))

    def encode_packed(self, packed: Packed) -> bytes:
        """Return the payload of an array or table that is packed already."""
        if isinstance(self.serializer, Tables):
            return self.pack(self.serializer.payload(packed))
        return self.pack(packb(as_extension(packed)))

    def pack(self, data: bytes) -> bytes:
        """Return the payload that the compressor makes of any bytes."""
        return data if self._compressor is None else self._compressor.pack(data)

    def unpack(self, payload: bytes) -> bytes:
        """Return the bytes that a payload was made from; raise DecodeError for anything else."""
        return payload if self._compressor is None else self._compressor.unpack(payload)

    def is_compressed(self, payload: bytes) -> bool:
        """Tell whether a payload of this codec is compressed."""
        return self.compresses and payload[:1] == COMPRESSED


def new_codec(
    serializer: str,
    compressor: str,
    settings: Mapping[str, Any],
    policy: PicklePolicy,
    extensions: Sequence[Extensions] = (),
) -> Codec:
    """Return the codec of a serializer and a compressor, given by name, under a cache's settings and pickle policy.

    Raises SettingError if one does not exist or they do not fit together, MissingDependency if one is not installed.
    """
    if serializer == "pickle" and policy == "never":
        raise SettingError("serializer='pickle' needs pickle='signed' or 'trusted', but pickle='never' is in force")
    made = new_serializer(serializer, (COLUMNAR_TYPES, *extensions))
    inner = new_compressor(compressor, settings["compress_level"])
    return Codec(made, None if inner is None else PayloadCompressor(inner, settings["compress_min_size"]))
