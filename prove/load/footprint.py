"""What the files of a cache come to, kind by kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KINDS = {"-wal": "logs", "-shm": "indexes", ".val": "values", ".db": "databases"}  # by the end of a name
CONTROL = ("cache.gen", "cache.buffer", "cache.lock")


class Footprint(NamedTuple):
    """Bytes in files, by what they are for; of all shards together."""

    databases: int = 0
    values: int = 0
    logs: int = 0
    indexes: int = 0  # of the logs
    control: int = 0
    others: int = 0
    content: int = 0  # databases and values: what the size limit is about, free pages and what waits for its row too

    @classmethod
    def of(cls, directory: Path) -> Footprint:
        """Measure a directory; what is removed meanwhile counts for nothing."""
        found = dict.fromkeys(cls._fields, 0)
        for folder, _, names in os.walk(directory):
            for name in names:
                with suppress(FileNotFoundError):
                    found[_kind(name)] += os.lstat(os.path.join(folder, name)).st_size
        return cls(**{**found, "content": found["databases"] + found["values"]})

    def widest(self, other: Footprint) -> Footprint:
        """Return what is the larger of two in each respect."""
        return Footprint(*map(max, self, other))


class Held(NamedTuple):
    """What a process has open in a directory."""

    descriptors: int  # that one of the directory itself included
    removed: dict[tuple[int, int], int]  # bytes of each file that has no name, or none any more, by device and number

    @classmethod
    def of(cls, directory: Path, pid: int | str = "self") -> Held:
        """Look through the descriptors of a process; what it closes meanwhile counts for nothing."""
        descriptors, removed = 0, {}
        for number in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{number}"
            with suppress(FileNotFoundError):
                name = os.readlink(link)
                if name != str(directory) and not name.startswith(f"{directory}/"):
                    continue
                descriptors += 1
                if name.endswith(" (deleted)"):
                    status = os.stat(link)
                    removed[status.st_dev, status.st_ino] = status.st_size
        return cls(descriptors, removed)

    @staticmethod
    def together(held: Iterable[Held]) -> dict[tuple[int, int], int]:
        """Return the files without a name of several processes, each once."""
        return {file: size for each in held for file, size in each.removed.items()}


def _kind(name: str) -> str:
    if name in CONTROL:
        return "control"
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), "others")
