"""Readers of traces, each a generator of pairs: a key, and the size of its value or 0 where the trace has none.

A file may be compressed (`OPENERS`); its name says how, and in which format it is (`GUESSES`).
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.peers.adapters import client
from benchmarks.peers.spec import BenchmarkError

Request = tuple[int | str, int]
ORACLE = struct.Struct("<IQIq")  # time, object, size, number of the request that asks for the object next
FURTHEST, NEVER = 2**48, 2**63 - 1  # numbers of requests beyond which a file is another one; also -1 stands for never
CHUNK = 4096  # records of that; also bytes of zstd, which become at most some hundred MB
LONGEST_LINE = 65_536
MOST_BLOCKS = 1_000_000  # that one line of a trace may ask for
KEY_COLUMNS = ("obj_id", "object", "key", "id", "lbn")
SIZE_COLUMNS = ("obj_size", "size")


class TraceError(BenchmarkError):
    """A trace cannot be read."""


@dataclass
class Source:
    """An open file, where its reader is in it, and which columns it takes of a CSV."""

    file: BinaryIO
    key: str | None = None
    size: str | None = None
    place: int = 0
    unit: str = "line"

    def lines(self) -> Iterator[str]:
        """Yield every line."""
        while True:
            self.place += 1
            line = self.file.readline(LONGEST_LINE + 1)
            if len(line) > LONGEST_LINE:
                raise ValueError(f"longer than {LONGEST_LINE} bytes")
            if not line:
                return
            yield line.decode()


def oracle(source: Source) -> Iterator[Request]:
    """Read libCacheSim's oracleGeneral."""
    source.place, source.unit = 0, "byte"
    while chunk := source.file.read(CHUNK * ORACLE.size):
        if len(chunk) % ORACLE.size:
            source.place += len(chunk)
            raise ValueError(f"ends within a record of {ORACLE.size} bytes")
        for _, key, size, following in ORACLE.iter_unpack(chunk):
            if not -1 <= following < FURTHEST and following != NEVER:
                raise ValueError(f"a next request of number {following}")
            yield key, size
            source.place += ORACLE.size


def comma_separated(source: Source) -> Iterator[Request]:
    """Read a CSV with a header; keys are text."""
    rows = csv.reader(source.lines(), skipinitialspace=True, strict=True)
    header = [name.strip("# ").lower() for name in next(rows, [])]
    key = _column(header, source.key, KEY_COLUMNS)
    size = _column(header, source.size, SIZE_COLUMNS)
    if key is None:
        raise ValueError(f"no column {' or '.join(KEY_COLUMNS)}; name one of {', '.join(header)[:200]} with --key")
    for row in filter(None, rows):
        if len(row) != len(header):
            raise ValueError(f"{len(row)} columns instead of {len(header)}")
        yield row[key].strip(), 0 if size is None else number(row[size])


def _column(header: Sequence[str], wanted: str | None, usual: Sequence[str]) -> int | None:
    if wanted and wanted.lower() not in header:
        raise ValueError(f"no column {wanted} among {', '.join(header)[:200]}")
    return next((header.index(name) for name in ([wanted.lower()] if wanted else usual) if name in header), None)


def arc(source: Source) -> Iterator[Request]:
    """Read ranges of blocks: the first one, how many, something else, and the number of the request."""
    for line in source.lines():
        if not line.strip():
            continue
        first, count, *_ = map(number, line.split())
        if count > MOST_BLOCKS:
            raise ValueError(f"more than {MOST_BLOCKS} blocks")
        for block in range(first, first + count):
            yield block, 0


def lirs(source: Source) -> Iterator[Request]:
    """Read numbers of blocks, one in a line; a star is a remark."""
    for line in source.lines():
        if (text := line.strip()) and not text.startswith("*"):
            yield number(text), 0


def plain(source: Source) -> Iterator[Request]:
    """Read keys, one in a line."""
    return ((key, 0) for line in source.lines() if (key := line.strip()))


def number(text: str) -> int:
    """Read a whole number that is not negative."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"not a number: {text[:40]!r}")
    return int(text)


class Zstd(io.RawIOBase):
    """A file that zstd has compressed, in one frame or more; one that was cut off is an error, as with gzip."""

    def __init__(self, path: Path) -> None:
        self._parts = _decompressed(path)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = memoryview(part)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        self._parts.close()
        super().close()


def _decompressed(path: Path) -> Generator[bytes]:
    zstandard, frame = client("zstandard"), None
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            while data:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise ValueError(f"not zstd, or damaged ({error})") from error
                data = frame.unused_data
                frame = None if frame.eof else frame
    if frame:
        raise EOFError("zstd's last frame has no end")


FORMATS: dict[str, Callable[[Source], Iterator[Request]]] = {
    "oracleGeneral": oracle,
    "csv": comma_separated,
    "arc": arc,
    "lirs": lirs,
    "keys": plain,
}
GUESSES = {"oraclegeneral": "oracleGeneral", "bin": "oracleGeneral", "csv": "csv", "arc": "arc", "lis": "arc"}
GUESSES |= {"lirs": "lirs", "trc": "lirs", "trace": "lirs", "keys": "keys", "txt": "keys"}
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".zst": lambda path: io.BufferedReader(Zstd(path)),
}
DAMAGE = (OSError, EOFError, ValueError, csv.Error, zlib.error, lzma.LZMAError)


def requests(path: Path, form: str | None = None, key: str | None = None, size: str | None = None) -> Iterator[Request]:
    """Yield the requests of a file, in a format or in the one that its name tells; `key` and `size` name columns."""
    form = form or next((GUESSES[part] for part in reversed(path.name.lower().split(".")) if part in GUESSES), None)
    if form is None:
        raise TraceError(f"{path}: its name tells no format; give one with --format: {', '.join(FORMATS)}")
    source = None
    try:
        with OPENERS.get(path.suffix, _as_it_is)(path) as file:
            source = Source(file, key, size)
            yield from FORMATS[form](source)
    except DAMAGE as error:
        where = f", {source.unit} {source.place:,}" if source else ""
        raise TraceError(f"{path}{where}: {error}") from error


def _as_it_is(path: Path) -> BinaryIO:
    return path.open("rb")
