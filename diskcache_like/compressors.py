"""Compress payloads, and expand them again within a bound.

A cache that compresses writes one byte before each payload: `STORED` before one that was left as it is because it is
short or does not shrink, `COMPRESSED` before the others. Nothing else of a stored entry says how it is read. What
follows `COMPRESSED`:

    zlib    a raw deflate stream
    zstd    one frame without the magic number, with the size of its content and the number of its dictionary, if any
    lz4     the size of the content, 4 bytes little-endian, and one block

Each compressor keeps its contexts in a list that threads take them from: one context serves one thread at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from .errors import DecodeError, SettingError, missing

STORED: Final = b"\x00"
COMPRESSED: Final = b"\x01"
EXPANDED_LIMIT: Final = 1 << 30
"""Bytes that a payload may expand to; a longer one is stored as it is."""
LEVELS: Final[dict[str, tuple[int, int]]] = {"zlib": (0, 9), "zstd": (-5, 19), "lz4": (-64, 12)}
"""The lowest and highest `compress_level` of each compressor."""
_DEFAULT_LEVELS: Final = {"zlib": 1, "zstd": 1, "lz4": 0}
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER: Final = 18  # bytes that the header of a frame has at most
_LZ4_RATIO: Final = 255  # no block expands to more than this many times its length


class Compressor(Protocol):
    """What a codec needs of a compressor."""

    def compress(self, data: bytes) -> bytes:
        """Return the compressed form of `data`."""
        ...

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return what `compress` was given; raise for anything else, and for more than `limit` bytes."""
        ...


class Zlib:
    """Compress with the standard library's zlib."""

    def __init__(self, level: int) -> None:
        self._level = level

    def compress(self, data: bytes) -> bytes:
        """Return a raw deflate stream; the record has a checksum of its own."""
        return zlib.compress(data, self._level, -zlib.MAX_WBITS)

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of the stream, never allocating more than `limit` bytes for it."""
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        content = stream.decompress(data, limit + 1)
        if len(content) > limit or not stream.eof or stream.unused_data:
            raise DecodeError(f"a compressed value is cut off, too long, or expands to more than {limit} bytes")
        return content


class Lz4:
    """Compress with LZ4 blocks."""

    def __init__(self, level: int) -> None:
        try:
            from lz4 import block
        except ImportError as error:
            raise missing("lz4", "lz4", "compressor='lz4'") from error
        self._compress = block.compress
        self._decompress = block.decompress
        if level > 0:
            self._options: dict[str, Any] = {"mode": "high_compression", "compression": level}
        else:
            self._options = {"mode": "fast", "acceleration": 1 - level}

    def compress(self, data: bytes) -> bytes:
        """Return the size of `data` and its block."""
        block: bytes = self._compress(data, store_size=False, **self._options)
        return len(data).to_bytes(4, "little") + block

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of the block, allocating its stated size once that is plausible."""
        size = int.from_bytes(data[:4], "little")
        if len(data) < 5 or size > min(limit, _LZ4_RATIO * len(data)):
            raise DecodeError(f"a compressed value states a size of {size} bytes, which it cannot have")
        content: bytes = self._decompress(data[4:], uncompressed_size=size)
        if len(content) != size:
            raise DecodeError("a compressed value does not have its stated size")
        return content


class Zstd:
    """Compress with Zstandard, using the dictionary that `current` numbers (0: none); `find` returns one by number."""

    def __init__(
        self, level: int, current: Callable[[], int] = lambda: 0, find: Callable[[int], bytes | None] = lambda _: None
    ) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise missing("zstandard", "zstd", "compressor='zstd'") from error
        self._zstd = zstandard
        self._level = level
        self._current = current
        self._find = find
        self._dictionaries: dict[int, Any] = {0: None}
        self._compressors: dict[int, list[Any]] = {}
        self._expanders: dict[int, list[Any]] = {}

    def compress(self, data: bytes) -> bytes:
        """Return a frame, made with the current dictionary."""
        version = self._current()
        pool = self._compressors.setdefault(version, [])
        try:
            context = pool.pop()
        except IndexError:
            context = self._compressor(version)
        frame: bytes = context.compress(data)
        pool.append(context)
        return frame

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of a frame of at most `limit` bytes; a frame that does not state its size is refused."""
        head = self._zstd.get_frame_parameters(_ZSTD_MAGIC + bytes(data[:_ZSTD_HEADER]))
        if head.content_size > limit:  # an unknown size is the largest number there is
            raise DecodeError(f"a compressed value states no size, or one of more than {limit} bytes")
        if head.content_size == 0:
            raise DecodeError("a compressed value states that it is empty, which none is")
        pool = self._expanders.setdefault(head.dict_id, [])
        try:
            context = pool.pop()
        except IndexError:
            context = self._expander(head.dict_id)
        content: bytes = context.decompress(data, allow_extra_data=False)
        pool.append(context)
        return content

    def _compressor(self, version: int) -> Any:
        zstd = self._zstd
        dictionary = self._dictionary(version)
        parameters = zstd.ZstdCompressionParameters.from_level(
            self._level,
            format=zstd.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=True,
            write_dict_id=True,
            write_checksum=False,
        )
        return zstd.ZstdCompressor(dict_data=dictionary, compression_params=parameters)

    def _expander(self, version: int) -> Any:
        return self._zstd.ZstdDecompressor(
            dict_data=self._dictionary(version), format=self._zstd.FORMAT_ZSTD1_MAGICLESS
        )

    def _dictionary(self, version: int) -> Any:
        if version not in self._dictionaries:
            content = self._find(version)
            if content is None:
                raise DecodeError(f"the compression dictionary {version} is missing or damaged")
            self._dictionaries[version] = self._zstd.ZstdCompressionDict(content)
        return self._dictionaries[version]


class Packing:
    """Compress what is long enough, keep the result where it pays, and say which of the two it was."""

    def __init__(self, compressor: Compressor, min_size: int, limit: int = EXPANDED_LIMIT) -> None:
        self._compressor = compressor
        self.min_size = min_size
        self._limit = limit

    def pack(self, data: bytes) -> bytes:
        """Return `data` marked and, if that saves an eighth of it, compressed."""
        size = len(data)
        if self.min_size <= size <= self._limit:
            compressed = self._compressor.compress(data)
            if len(compressed) < size - (size >> 3):
                return COMPRESSED + compressed
        return STORED + data

    def unpack(self, payload: bytes) -> bytes:
        """Return what `pack` was given; raise DecodeError for anything else, and nothing else."""
        mark = payload[:1]
        if mark == STORED:
            return payload[1:]
        if mark != COMPRESSED:
            raise DecodeError("a payload says neither that it is compressed nor that it is stored as it is")
        try:
            return self._compressor.expand(memoryview(payload)[1:], self._limit)
        except (DecodeError, MemoryError):
            raise
        except Exception as error:
            raise DecodeError(f"a compressed value of {len(payload)} bytes cannot be expanded: {error}") from error


def new_compressor(name: str, level: int | None, **dictionaries: Any) -> Compressor | None:
    """Return the compressor called `name`, None for "none"; raise SettingError for a level that it does not have."""
    if name == "none":  # a level that was stored for a later compressor has no effect
        return None
    low, high = LEVELS[name]
    effective = _DEFAULT_LEVELS[name] if level is None else level
    if not low <= effective <= high:
        raise SettingError(f"compress_level is {level}, expected {low} to {high} for compressor={name!r}")
    if name == "zstd":
        return Zstd(effective, **dictionaries)
    return Zlib(effective) if name == "zlib" else Lz4(effective)
