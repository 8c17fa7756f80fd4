"""A backend of requests-cache: responses in a namespace of a cache, redirects in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..cache import Cache
from .hosts import Given, host, is_directory, opened

with host("requests_cache", "requests-cache"):
    from requests_cache.backends import BaseCache, BaseStorage
    from requests_cache.serializers import dict_serializer

STALE = 3600  # seconds that a response is kept after it has expired, to be asked for again by its ETag


class RequestsStorage(BaseStorage):
    """A mapping in the namespace `name` of a cache, or of the cache in a directory."""

    def __init__(
        self, cache: Given, name: str, serializer: Any = dict_serializer, stale: float = STALE, **options: Any
    ) -> None:
        super().__init__(serializer=serializer, **options)
        self._stale = stale
        self._owns = is_directory(cache)
        self._space: Cache = opened(cache).namespace(name)

    def __getitem__(self, key: str) -> Any:
        return self.deserialize(key, self._space[key])

    def __setitem__(self, key: str, value: Any) -> None:
        seconds = getattr(value, "expires_delta", None)  # of a response; None for never
        expire = None if seconds is None else max(seconds, 0) + self._stale
        self._space.set(key, self.serialize(value), expire, retry=True)

    def __delitem__(self, key: str) -> None:
        del self._space[key]

    def __contains__(self, key: object) -> bool:
        return key in self._space

    def __iter__(self) -> Iterator[str]:
        return iter(self._space.keys())

    def __len__(self) -> int:
        return len(self._space)

    def bulk_delete(self, keys: Iterable[str]) -> None:
        """Remove the entries of the keys; those that have none are passed over."""
        self._space.delete_many(keys, retry=True)

    def clear(self) -> None:
        """Remove every entry of the namespace."""
        self._space.clear(retry=True)

    def close(self) -> None:
        """Close the files of a cache that it opened; the next operation opens them again."""
        if self._owns:
            self._space.close()


class RequestsCache(BaseCache):
    """A backend for `CachedSession(backend=RequestsCache(...))`.

    `cache`: a directory, or a Cache, FanoutCache or namespace. Responses are stored as plain data, with their expiry
    and `stale` more seconds. `serializer`: one of requests-cache's own instead, which says how far what it reads can be
    trusted: "pickle" runs what a writer of the directory put there. Other options are those of requests-cache.
    """

    def __init__(
        self, cache: Given = "http_cache", serializer: Any = None, stale: float = STALE, **options: Any
    ) -> None:
        shared = opened(cache)
        super().__init__(cache_name=shared.directory, **options)
        self.responses = RequestsStorage(shared, "responses", serializer or dict_serializer, stale, **options)
        self.redirects = RequestsStorage(shared, "redirects", **options)
        self.responses._owns = is_directory(cache)  # for both
