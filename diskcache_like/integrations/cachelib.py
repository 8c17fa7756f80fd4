"""A cache for cachelib, and so for Flask-Caching and Flask-Session, which take one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .hosts import Given, host, opened

with host("cachelib", "cachelib"):
    from cachelib import BaseCache


class CachelibCache(BaseCache):
    """A cache as cachelib has it: with a timeout of 0 entries never expire, and a missing key reads as None.

    `cache`: a directory, or a Cache, FanoutCache or namespace; `settings`: for the cache in a directory. `clear`
    removes all that is in it, so an application that shares one gives a namespace. Numbers are counted atomically, and
    keep their timeout; a new one has none. Raises what `Cache` raises.
    """

    def __init__(
        self,
        cache: Given,
        default_timeout: int | timedelta = 300,
        ignore_delete_many_errors: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(default_timeout=default_timeout)
        self.ignore_delete_many_errors = ignore_delete_many_errors  # an argument of newer versions only
        self.cache = opened(cache, **settings)

    def _expire(self, timeout: int | timedelta | None) -> int | None:
        """Return seconds from now, 0 for a moment that is past, or None for never."""
        seconds: int = self._normalize_timeout(timeout)
        return max(seconds, 0) if seconds else None

    def get(self, key: str) -> Any:
        """Return the value of `key`, or None."""
        return self.cache.get(key)

    def get_many(self, *keys: str) -> list[Any]:
        """Return the values of the keys, or None, in their order."""
        return list(map(self.cache.get_many(keys).get, keys))

    def has(self, key: str) -> bool:
        """Tell whether `key` has a live entry."""
        return key in self.cache

    def set(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        """Store `value`; return False if it can never fit the size limit."""
        return self.cache.set(key, value, self._expire(timeout), retry=True)

    def add(self, key: str, value: Any, timeout: int | timedelta | None = None) -> bool:
        """Store `value` if `key` has no live entry, and return whether it was stored. Atomic."""
        return self.cache.add(key, value, self._expire(timeout), retry=True)

    def delete(self, key: str) -> bool:
        """Remove the entry of `key`; return whether there was a live one."""
        return self.cache.delete(key, retry=True)

    def delete_many(self, *keys: str) -> list[str]:
        """Remove the entries of the keys, and return the keys."""
        self.cache.delete_many(keys, retry=True)
        return list(keys)

    def clear(self) -> bool:
        """Remove every entry."""
        self.cache.clear(retry=True)
        return True

    def inc(self, key: str, delta: int = 1) -> int:
        """Add `delta` to the number under `key`, which counts as 0 if it is missing, and return the sum. Atomic."""
        total: int = self.cache.incr(key, delta, retry=True)
        return total

    def dec(self, key: str, delta: int = 1) -> int:
        """Subtract `delta`; otherwise like `inc`."""
        return self.inc(key, -delta)
