"""A result backend for Celery: results and chords of workers on one machine, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..cache import Cache
from .hosts import Given, host, opened

with host("celery", "celery"):
    from celery.backends.base import KeyValueStoreBackend
    from celery.exceptions import BackendStoreError, ImproperlyConfigured

SCHEME = "diskcache-like://"


class CeleryBackend(KeyValueStoreBackend):
    """Results in a directory: `result_backend = "diskcache-like:///var/lib/results"`.

    They are kept for `result_expires`. `result_backend_transport_options` are settings of the cache, such as
    `size_limit`, and `global_keyprefix`. A chord's parts are counted atomically, and its counter is kept for
    `result_chord_expires`. In Python, `cache` may be an open cache. Raises ImproperlyConfigured without a directory.
    """

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    implements_incr = True

    def __init__(self, app: Any, url: str | None = None, expires: Any = None, cache: Given = None, **options: Any):
        super().__init__(app, url=url, **options)
        self.expires = self.prepare_expires(expires, type=int)
        self._given = cache
        self.cache = self._opened(url) if cache is None else opened(cache)

    def _opened(self, url: str | None) -> Cache:
        directory = (url or "").partition("://")[2]
        if not os.path.isabs(directory):
            raise ImproperlyConfigured(f"result_backend is {url!r}, expected {SCHEME} and an absolute directory")
        settings = dict(self.app.conf.get("result_backend_transport_options", {}))
        settings.pop("global_keyprefix", None)
        return opened(directory, **settings)

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        own = {"url": self.url, "expires": self.expires, "cache": self._given}
        return super().__reduce__(args, {**(kwargs or {}), **own})

    def get(self, key: bytes) -> Any:
        """Return what is stored under `key`, or None."""
        return self.cache.get(key)

    def mget(self, keys: Iterable[bytes]) -> list[Any]:
        """Return what `get` returns, for each of the keys."""
        wanted = list(keys)
        return list(map(self.cache.get_many(wanted).get, wanted))

    def set(self, key: bytes, value: Any) -> None:
        """Store a value for as long as results are kept; raise BackendStoreError if it can never fit the size limit."""
        if not self.cache.set(key, value, self.expires or None, retry=True):
            raise BackendStoreError(f"a result of {len(value)} bytes is larger than size_limit allows")

    def delete(self, key: bytes) -> None:
        """Remove a value."""
        self.cache.delete(key, retry=True)

    def incr(self, key: bytes) -> int:
        """Count one more part of a chord, atomically, and return how many there are."""
        count: int = self.cache.incr(key, retry=True)
        return count

    def expire(self, key: bytes, value: int | None) -> None:
        """Keep a value for so many seconds from now; for ever with 0."""
        self.cache.touch(key, value or None, retry=True)

    def cleanup(self) -> None:
        """Remove what has expired, which writes do as well."""
        self.cache.expire(retry=True)
