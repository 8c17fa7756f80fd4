"""A running average that all processes share."""

from __future__ import annotations

from typing import Any

from ..cache import Cache, atomic_key
from ..entries.row_codec import Expiry


class Averager:
    """Keep a running average under one key of a cache."""

    def __init__(self, cache: Cache, key: Any, expire: Expiry | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key!r})"

    def add(self, value: float) -> None:
        """Add `value` to the average. Atomic."""
        with atomic_key(self._cache, self._key).transaction(None):
            total, count = self._cache.get(self._key, default=(0.0, 0))
            self._cache.set(self._key, (total + value, count + 1), expire=self._expire, tag=self._tag, retry=True)

    def get(self) -> float | None:
        """Return the average, or None if nothing was counted."""
        return _average(*self._cache.get(self._key, default=(0.0, 0), retry=True))

    def pop(self) -> float | None:
        """Return the average and start again. Atomic."""
        return _average(*self._cache.pop(self._key, default=(0.0, 0), retry=True))


def _average(total: float, count: int) -> float | None:
    return None if count == 0 else total / count
