"""JSONDisk: keys and values as compressed JSON, as DiskCache has it."""

from __future__ import annotations

import json
import zlib
from typing import Any

from .disk import UNKNOWN, Disk
from .errors import DecodeError, ValueEncodeError

JSON_LIMIT = 1 << 30  # bytes that a JSON value may decompress to


class JSONDisk(Disk):
    """Store keys and values as compressed JSON.

    `compress_level`: of zlib, 0 to 9. Other arguments as for `Disk`.
    """

    def __init__(self, directory: str, compress_level: int = 1, **kwargs: Any) -> None:
        self.compress_level = compress_level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> tuple[Any, bool]:
        """Return (database key, raw) for a key that JSON can express."""
        return super().put(self._squeeze(key, sort_keys=True))

    def get(self, key: Any, raw: bool) -> Any:
        """Return the key that `put` gave (key, raw) for."""
        return expand_json(super().get(key, raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, str | None, Any]:
        """Return (file size, mode, file name, database value); raise ValueEncodeError for what JSON cannot express."""
        return super().store(value if read else self._squeeze(value), read, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        """Return the value, or with `read` the compressed JSON as a binary file object."""
        data = super().fetch(mode, filename, value, read)
        return data if read else expand_json(data)

    def _squeeze(self, value: Any, sort_keys: bool = False) -> bytes:
        try:
            text = json.dumps(value, sort_keys=sort_keys)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueEncodeError(f"JSON cannot express a {type(value).__qualname__}: {error}") from error
        return zlib.compress(text.encode(), self.compress_level)


def expand_json(data: Any) -> Any:
    """Return the JSON in compressed `data`, refusing more than `JSON_LIMIT` bytes of it."""
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(data, JSON_LIMIT)
        if stream.unconsumed_tail or not stream.eof:
            raise DecodeError("compressed JSON is cut off or larger than the limit")
        return json.loads(text)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"not compressed JSON: {error}") from error
