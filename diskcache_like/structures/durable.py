"""What a deque and an index have in common: each keeps its items in a cache.

They cannot be computed again, as a cached value can. So nothing is evicted, and damage is an error.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any, Final, Unpack

from ..cache import Cache
from ..disk.contract import Constant, Disk
from ..entries.handle import Opening
from ..entries.options import Arguments
from ..settings.definitions import DEFAULT_SETTINGS
from ..settings.misuse import Spelled

BATCH: Final = 1000  # items per transaction when many are added at once
END = Constant("END")


class DurableCache(Cache):
    """A cache of what cannot be computed again: it raises CorruptDatabase or DecodeError for damage."""

    _OPENING = Opening(recover=False)

    def __init__(
        self,
        directory: str | bytes | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        **options: Unpack[Arguments],
    ) -> None:
        given = os.fsdecode(directory) if isinstance(directory, bytes) else directory
        durable: Arguments = {"eviction_policy": "none", "strict": True, **options}
        super().__init__(given, timeout, disk, **durable)


class InCache(Spelled):
    """A collection that keeps its items in a cache."""

    _ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "a setting is assigned to its cache, as in x.cache.{name} = ...")
    _cache: Cache

    @property
    def cache(self) -> Cache:
        """Return the cache that holds the items."""
        return self._cache

    @property
    def directory(self) -> str:
        """Return the absolute path of the directory."""
        return self._cache.directory

    def transact(self) -> AbstractContextManager[None]:
        """Make the body one transaction: others see all of its writes or none, and wait to write; see `Cache`."""
        return self._cache.transact(retry=True)

    def __getstate__(self) -> Any:
        return self._cache  # by directory: the items stay where they are

    def __setstate__(self, state: Any) -> None:
        self._cache = state
