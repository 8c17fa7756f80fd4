"""What is measured: every serializer with every compressor at several levels, as a cache opened so has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from diskcache_like import Cache
from diskcache_like.errors import MissingDependency

# Serializers for values of every kind here; "arrow" is for tables, which none of them is.
SERIALIZERS: Mapping[str, str] = MappingProxyType(
    {"msgpack": "typed data", "json": "for other programs", "pickle": "any object"}
)
COMPRESSORS: Mapping[str, tuple[int | None, ...]] = MappingProxyType(
    {"none": (None,), "lz4": (0, 9), "zlib": (1, 6, 9), "zstd": (-5, 1, 3, 9, 19)}
)  # with the levels that are measured
NEVER_A_FILE = 1 << 30


@dataclass(frozen=True)
class Subject:
    """One codec."""

    serializer: str
    compressor: str = "none"
    level: int | None = None

    @property
    def label(self) -> str:
        """Return how it is shown."""
        compressor = "" if self.compressor == "none" else f" + {self.compressor} {self.level}"
        return f"{self.serializer}{compressor}"

    @property
    def arguments(self) -> dict[str, Any]:
        """Return what a cache is opened with, as far as it differs from the default."""
        found: dict[str, Any] = {} if self.serializer == "msgpack" else {"serializer": self.serializer}
        if self.compressor != "none":
            found |= {"compressor": self.compressor, "compress_level": self.level}
        return found


def subjects(serializers: Collection[str], compressors: Collection[str]) -> Iterator[Subject]:
    """Yield the codecs made of these, in the order in which they are shown."""
    for serializer in serializers:
        for compressor in compressors:
            for level in COMPRESSORS[compressor]:
                yield Subject(serializer, compressor, level)


class Opened:
    """A subject's cache, whose own disk object turns values into payloads and back.

    Payloads stay out of value files, for which the time of the file system would be measured.
    """

    def __init__(self, subject: Subject, directory: Path) -> None:
        self.cache = Cache(
            directory,
            serializer=subject.serializer,
            compressor=subject.compressor,
            compress_level=subject.level,
            pickle="trusted",
            disk_min_file_size=NEVER_A_FILE,
        )
        disk = self.cache.disk
        self.encoder: Callable[[Any], Any] = lambda value: disk.encode(value, False, None)
        self.decoder: Callable[[Any], Any] = lambda stored: disk.fetch(stored[0], None, stored[1], False)


def open_all(
    wanted: Collection[Subject], fresh: Callable[[str], Path]
) -> tuple[dict[Subject, Opened], dict[str, list[str]]]:
    """Open every subject; return those that open, and by reason the labels of others, for want of a package."""
    opened: dict[Subject, Opened] = {}
    skipped: dict[str, list[str]] = {}
    for subject in wanted:
        try:
            opened[subject] = Opened(subject, fresh("codec"))
        except MissingDependency as error:
            skipped.setdefault(str(error), []).append(subject.label)
    return opened, skipped
