"""JSONDisk: DiskCache's Disk that stores keys and values as compressed JSON."""

from __future__ import annotations

import json
import zlib
from typing import Any

from ..errors import DecodeError, ValueEncodeError
from ..system.signals import reraise_signal
from .contract import UNKNOWN, Disk

JSON_LIMIT = 1 << 30  # bytes that a JSON value may decompress to


class JSONDisk(Disk):
    """Store keys and values as compressed JSON.

    `compress_level`: zlib's, 0 to 9. The other arguments are those of `Disk`.
    """

    def __init__(self, directory: str, compress_level: int = 1, **kwargs: Any) -> None:
        self.compress_level = compress_level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> tuple[Any, bool]:
        """Return (database key, raw) for a key that JSON can express."""
        return super().put(self._compressed(key, sort_keys=True))

    def get(self, key: Any, raw: bool) -> Any:
        """Return the key for which `put` returned (key, raw)."""
        return expand_json(super().get(key, raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Return (file size, mode, file name, database value); raise ValueEncodeError for what JSON cannot express."""
        return super().store(value if read else self._compressed(value), read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value; with `read`, return the compressed JSON as a binary file object."""
        data = super().fetch(mode, filename, value, read)
        return data if read else expand_json(data)

    def _compressed(self, value: Any, sort_keys: bool = False) -> bytes:
        try:
            text = json.dumps(value, sort_keys=sort_keys)
        except (TypeError, ValueError, RecursionError) as error:
            reraise_signal(error)
            raise ValueEncodeError(f"JSON cannot express a {type(value).__qualname__}: {error}") from error
        return zlib.compress(text.encode(), self.compress_level)


def expand_json(data: Any) -> Any:
    """Return the value of compressed JSON; refuse text of more than `JSON_LIMIT` bytes."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, JSON_LIMIT)
        if stream.unconsumed_tail or not stream.eof:
            raise DecodeError("compressed JSON is truncated or larger than the limit")
        return json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, DecodeError):
            raise
        reraise_signal(error)
        raise DecodeError(f"not compressed JSON: {error}") from error
