"""Codec: a serializer, then a compressor. Configuration chooses both; no row does.

    value ── serializer.encode ──> data ── packing.pack ──> payload

Without a compressor data and payload are the same bytes. With one the payload begins with a byte that says whether
it is compressed (`compressors`), and with no other choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .compressors import COMPRESSED, LEVELS, Dictionaries, Packing, new_compressor
from .errors import SettingError
from .pickles import PicklePolicy
from .serializers import Extensions, Msgpack, Serializer, new_serializer

COMPRESSORS: Final = ("none", *LEVELS)


class Codec:
    """Turn values into payloads and back."""

    def __init__(self, serializer: Serializer, packing: Packing | None = None) -> None:
        self.serializer = serializer
        self.compresses = packing is not None
        self.is_plain = type(serializer) is Msgpack and packing is None
        """Whether payloads of plain data are exactly what `codecs.encode_value` returns."""
        self.writes_bytes = packing is not None or not serializer.takes_bytes
        """Whether byte strings may be payloads of their own, beside those of the serializer."""
        self._packing = packing
        self._read = serializer.decode
        self.decode: Callable[[bytes], Any] = self._read if packing is None else self._expand_and_read
        """Return the value of a payload; raise DecodeError for anything that was not written so."""

    def encode(self, value: Any) -> bytes:
        """Return the payload of `value`, or raise `NotData`."""
        return self.pack(self.serializer.encode(value))

    def pack(self, data: bytes, shared: bool = True) -> bytes:
        """Return data of any kind as the payload that the compressor makes of it.

        `shared`: whether a dictionary may be used, which is not proved by what proves a pickle.
        """
        return data if self._packing is None else self._packing.pack(data, shared)

    def unpack(self, payload: bytes, shared: bool = True) -> bytes:
        """Return the data that a payload was made from; raise DecodeError for anything else."""
        return payload if self._packing is None else self._packing.unpack(payload, shared)

    def dictionary_of(self, head: bytes) -> int:
        """Return the version of the dictionary that a payload was made with, by its first bytes; 0 for none."""
        return 0 if self._packing is None else self._packing.dictionary_of(head)

    def with_dictionary(self, version: int, content: bytes) -> Codec:
        """Return one that is the same but for its dictionary."""
        assert self._packing is not None
        return Codec(self.serializer, self._packing.with_dictionary(version, content))

    def is_compressed(self, payload: bytes) -> bool:
        """Tell whether a payload of this codec may stand for more bytes than it has."""
        return self.compresses and payload[:1] == COMPRESSED

    def _expand_and_read(self, payload: bytes) -> Any:
        assert self._packing is not None
        return self._read(self._packing.unpack(payload))


def check_compressor(name: object) -> str:
    """Return the name of a compressor, or raise SettingError that lists the known ones."""
    if not isinstance(name, str) or name not in COMPRESSORS:
        raise SettingError(f"compressor is {name!r}, expected one of {', '.join(map(repr, COMPRESSORS))}")
    return name


def new_codec(
    serializer: str,
    compressor: str,
    settings: Mapping[str, Any],
    policy: PicklePolicy,
    extensions: Sequence[Extensions] = (),
    dictionaries: Dictionaries | None = None,
) -> Codec:
    """Return the codec of a serializer and a compressor, given by name, with a cache's settings and pickle policy.

    Raises SettingError for what does not exist or does not go together, MissingDependency for what is not installed.
    """
    if serializer == "pickle" and policy == "never":
        raise SettingError("serializer='pickle' needs pickle='signed' or 'trusted', but pickle='never' is in force")
    made = new_serializer(serializer, extensions)
    packer = new_compressor(check_compressor(compressor), settings["compress_level"], dictionaries)
    return Codec(made, None if packer is None else Packing(packer, settings["compress_min_size"]))
