"""The shards of a cache on disk: one lies in the directory itself, several in ``000``, ``001``, … below it."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import CacheError
from ...system import paths
from ...system.signals import reraise_signal
from ..sqlite import schema
from ..sqlite.connection import FAILURES, connect
from .directory import refuse_link
from .identity import DATABASE, GENERATIONS, database_path, has_database, names_in, newest_epoch, read_settings
from .opener import refuse_foreign

_PEEKING = {"sqlite_cache_size": 10, "sqlite_synchronous": 1}
_SHARD_NAME = re.compile(r"(?!999)[0-9]{3}")


class ShardLayout:
    """Look at the shards that a directory holds, before any of them is open."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._said: dict[str, Any] = {}  # the first identity that `stored` read, so that it is not read again

    def path(self, number: int) -> str:
        """Return the directory of one of several shards."""
        return os.path.join(self.directory, f"{number:03d}")

    def stored(self) -> int | None:
        """Return the number of shards that the directory was made with, None where there is no cache yet."""
        self._said = {}
        if paths.mode_of(os.path.join(self.directory, GENERATIONS)) or has_database(self.directory):
            return 1
        present = self._numbers()
        for number in present:
            refuse_link(self.path(number))
        made = [number for number in present if has_database(self.path(number))]
        if not made or (made == [0] and _is_unfinished(self.path(0))):
            return None
        for number in made:
            refuse_foreign(self.path(number), self.directory)
        return self._most_likely_layout(present)

    def _most_likely_layout(self, present: Sequence[int]) -> int:
        """Return the number of shards, though a shard may be damaged; those in `present` are there.

        With a wrong number every key would be looked for in another shard. So what a shard says has to agree with what
        is there or with another shard, since some may not have been made yet.
        """
        said: Counter[int] = Counter()
        for number in present:
            identity = _peek(self.path(number))
            if identity is not None:
                self._said = self._said or identity
                layout = int(identity.get("shards", 1))  # one, where it is a cache by itself
                said[layout] += 1
                if layout == len(present) or said[layout] > 1:
                    return layout
        return max(said, key=lambda layout: (layout > present[-1], -layout), default=max(present[-1] + 1, 2))

    def known_identity(self) -> dict[str, Any]:
        """Return what the first shard that can be read says it is; nothing where none can."""
        if self._said:
            return self._said
        for path in (self.directory, *map(self.path, self._numbers())):
            identity = _peek(path)
            if identity is not None:
                return identity
        return {}

    def _numbers(self) -> list[int]:
        """Return the numbers of the shards whose directories are there; after a power loss any may be missing."""
        numbers = sorted(int(name) for name in names_in(self.directory) if _SHARD_NAME.fullmatch(name))
        return [number for number in numbers if paths.is_directory(self.path(number))]


def _is_unfinished(directory: str) -> bool:
    """Tell whether the first shard of a new cache is being made, or was left unfinished by a kill or a full disk."""
    path = os.path.join(directory, DATABASE)
    if paths.mode_of(os.path.join(directory, GENERATIONS)) or newest_epoch(directory):
        return False
    try:
        if os.stat(path).st_size == 0:
            return True
        with contextlib.closing(connect(path, _PEEKING, 1.0)) as connection:
            return schema.is_empty(connection)
    except (*FAILURES, CacheError, OSError) as error:
        reraise_signal(error)
        return False


def _peek(directory: str) -> dict[str, Any] | None:
    """Return the identity of the newest readable database of a shard, None if it cannot be read."""
    try:
        path = database_path(directory, newest_epoch(directory))
        if not paths.mode_of(path):
            return None
        with contextlib.closing(connect(path, _PEEKING, 1.0)) as connection:
            schema.verify(connection, path)
            return read_settings(connection, path)[0]
    except (*FAILURES, CacheError, OSError) as error:
        reraise_signal(error)
        return None
