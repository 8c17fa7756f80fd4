"""What the files of a cache come to, kind by kind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KINDS = {"-wal": "logs", "-shm": "indexes", ".val": "values", ".db": "databases"}  # by the end of a name
CONTROL = ("cache.gen", "cache.board", "cache.lock")


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


def _kind(name: str) -> str:
    if name in CONTROL:
        return "control"
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), "others")
