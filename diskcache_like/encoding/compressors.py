"""Compress payloads, and expand them again within a bound.

A cache that compresses writes one byte before each payload: `STORED` if the payload was left as it is, because it is
short or does not shrink, else `COMPRESSED`. Nothing else in an entry says how to read it. What follows `COMPRESSED`:

    zlib    a raw deflate stream
    zstd    one frame without the magic number, with the size of its content
    lz4     the size of the content, 4 bytes little-endian, and one block

A context serves one thread at a time, so each compressor keeps a list of contexts for threads to take from.
"""

from __future__ import annotations

import importlib
import zlib
from contextlib import suppress
from typing import Any, Final

from ..errors import DecodeError, MissingDependency, SettingError, missing_dependency
from ..system.signals import reraise_signal

STORED: Final = b"\x00"
COMPRESSED: Final = b"\x01"
EXPANDED_LIMIT: Final = 1 << 30
"""Bytes that a payload may expand to; longer data is not compressed."""
LEVELS: Final[dict[str, tuple[int, int]]] = {"zlib": (0, 9), "zstd": (-5, 19), "lz4": (-64, 12)}
"""The lowest and highest `compress_level` of each compressor."""
COMPRESSORS: Final = ("none", *LEVELS)
_DEFAULT_LEVELS: Final = {"zlib": 1, "zstd": 3, "lz4": 0}
_POOLED_SIZE: Final = 1 << 20  # a context keeps its tables, which take up to 100 MB for longer data at high levels
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER: Final = 18  # bytes that the header of a frame has at most
_LZ4_RATIO: Final = 255  # no block expands to more than this many times its length


class Zlib:
    """Compress with the standard library's zlib."""

    def __init__(self, level: int) -> None:
        self._level = level

    def compress(self, data: bytes) -> bytes:
        """Return a raw deflate stream, without a checksum, because the record has one."""
        return zlib.compress(data, self._level, -zlib.MAX_WBITS)

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of the stream, never allocating more than `limit` bytes for it."""
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        content = stream.decompress(data, limit + 1)
        if len(content) > limit or not stream.eof or stream.unused_data:
            raise DecodeError(f"a compressed value is truncated, too long, or expands to more than {limit} bytes")
        return content


class Lz4:
    """Compress with LZ4 blocks."""

    def __init__(self, level: int) -> None:
        try:
            from lz4 import block
        except ImportError as error:
            raise missing_dependency("lz4", "lz4", "compressor='lz4'") from error
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
        """Return the content of the block; its stated size is allocated only if it is plausible."""
        size = int.from_bytes(data[:4], "little")
        if len(data) < 5 or size > min(limit, _LZ4_RATIO * len(data)):
            raise DecodeError(f"a compressed value states a size of {size} bytes, which it cannot have")
        content: bytes = self._decompress(data[4:], uncompressed_size=size)
        if len(content) != size:
            raise DecodeError("a compressed value does not have its stated size")
        return content


class Zstd:
    """Compress with Zstandard."""

    def __init__(self, level: int) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise missing_dependency("zstandard", "zstd", "compressor='zstd'") from error
        self._zstd = zstandard
        self._level = level
        self._compressors: list[Any] = []
        self._expanders: list[Any] = []

    def compress(self, data: bytes) -> bytes:
        """Return a frame."""
        try:
            context = self._compressors.pop()
        except IndexError:
            context = self._compressor()
        frame: bytes = context.compress(data)
        if len(data) <= _POOLED_SIZE:
            self._compressors.append(context)
        return frame

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of a frame, at most `limit` bytes; refuse a frame that does not state its size."""
        head = self._zstd.get_frame_parameters(_ZSTD_MAGIC + bytes(data[:_ZSTD_HEADER]))
        if not 0 < head.content_size <= limit:  # an unknown size is given as the largest number
            raise DecodeError(f"a compressed value states no size, or one that is not from 1 to {limit} bytes")
        try:
            context = self._expanders.pop()
        except IndexError:
            context = self._zstd.ZstdDecompressor(format=self._zstd.FORMAT_ZSTD1_MAGICLESS)
        content: bytes = context.decompress(data, allow_extra_data=False)
        self._expanders.append(context)
        return content

    def _compressor(self) -> Any:
        zstd = self._zstd
        parameters = zstd.ZstdCompressionParameters.from_level(
            self._level, format=zstd.FORMAT_ZSTD1_MAGICLESS, write_content_size=True, write_checksum=False
        )
        return zstd.ZstdCompressor(compression_params=parameters)


class StandardZstd:
    """Compress with the Zstandard of Python 3.14, whose frames are those of `Zstd`, behind a magic number."""

    def __init__(self, level: int) -> None:
        self._zstd = importlib.import_module("compression.zstd")  # ImportError before Python 3.14
        self._level = level

    def compress(self, data: bytes) -> bytes:
        """Return a frame."""
        frame: bytes = self._zstd.compress(data, self._level)
        return frame[len(_ZSTD_MAGIC) :]

    def expand(self, data: memoryview, limit: int) -> bytes:
        """Return the content of a frame, at most `limit` bytes; refuse a frame that does not state its size."""
        frame = _ZSTD_MAGIC + bytes(data)
        size = self._zstd.get_frame_info(frame).decompressed_size
        if size is None or not 0 < size <= limit:
            raise DecodeError(f"a compressed value states no size, or one that is not from 1 to {limit} bytes")
        expander = self._zstd.ZstdDecompressor()
        content: bytes = expander.decompress(frame, size)
        if len(content) != size or not expander.eof or expander.unused_data:
            raise DecodeError("a compressed value does not have its stated size")
        return content


def _zstd(level: int) -> Zstd | StandardZstd:
    """Return what compresses with Zstandard: the package, or where it is not installed, Python's own."""
    try:
        return Zstd(level)
    except MissingDependency:
        with suppress(ImportError):
            return StandardZstd(level)
        raise


Compressor = (
    Zlib | Lz4 | Zstd | StandardZstd
)  # each expands nothing to more than a limit, and raises for what it did not compress


class PayloadCompressor:
    """Compress what is long enough, keep the result if it is worth it, and mark the payload accordingly."""

    def __init__(self, compressor: Compressor, min_size: int, limit: int = EXPANDED_LIMIT) -> None:
        self._compressor = compressor
        self.min_size = min_size
        self._limit = limit

    def pack(self, data: bytes) -> bytes:
        """Return `data` with its mark, and compressed if that saves an eighth of it."""
        size = len(data)
        if self.min_size <= size <= self._limit:
            compressed = self._compressor.compress(data)
            if len(compressed) < size - (size >> 3):
                return COMPRESSED + compressed
        return STORED + data

    def unpack(self, payload: bytes) -> bytes:
        """Return what `pack` was given; raise DecodeError, and no other error, for anything that it did not make."""
        mark = payload[:1]
        if mark == STORED:
            return payload[1:]
        if mark != COMPRESSED:
            raise DecodeError("a payload is marked neither as compressed nor as stored as it is")
        try:
            return self._compressor.expand(memoryview(payload)[1:], self._limit)
        except (DecodeError, MemoryError):
            raise
        except Exception as error:
            reraise_signal(error)
            raise DecodeError(f"a compressed value of {len(payload)} bytes cannot be expanded: {error}") from error


def new_compressor(name: str, level: int | None) -> Compressor | None:
    """Return the compressor called `name`, None for "none"; raise SettingError for an unknown name or level."""
    if name not in COMPRESSORS:
        raise SettingError(f"compressor is {name!r}, expected one of {', '.join(map(repr, COMPRESSORS))}")
    if name == "none":  # whatever the level: it may have been stored for another compressor
        return None
    low, high = LEVELS[name]
    effective = _DEFAULT_LEVELS[name] if level is None else level
    if not low <= effective <= high:
        raise SettingError(f"compress_level is {level}, expected {low} to {high} for compressor={name!r}")
    if name == "zstd":
        return _zstd(effective)
    return Zlib(effective) if name == "zlib" else Lz4(effective)
