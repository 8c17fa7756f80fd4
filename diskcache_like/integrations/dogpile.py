"""A backend of dogpile.cache, "diskcache_like", whose regions share values and locks with other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import LeaseLost
from ..recipes.locks import Lock
from ..recipes.owners import Owner
from ..system.signals import suppress
from .hosts import host, opened

with host("dogpile.cache", "dogpile"):
    from dogpile.cache.api import NO_VALUE, CacheBackend, CachedValue

LEASE = 60  # seconds


class Mutex(Lock):
    """The right to create one value, between threads and processes; it ends with its lease if its owner dies."""

    def release(self) -> None:
        """Give the right up; if its lease ran out, two have created the same value, and nothing worse has happened."""
        with suppress(LeaseLost):
            super().release()

    def _releaser(self) -> Owner:
        # A region with an `async_creation_runner` acquires it in one thread, and has another one release it.
        return self._held[0][0] if self._held else super()._releaser()


class DogpileBackend(CacheBackend):
    """A backend for `make_region().configure("diskcache_like", arguments={"cache": ...})`.

    `arguments`: `cache`, a directory, or a Cache, FanoutCache or namespace, or else `directory`, for configuration
    files; `lock_timeout`, the seconds after which another may create a value that one is still creating (60); `expire`,
    the seconds that entries are kept, which should be longer than the region's `expiration_time`. Others are passed
    over, as dogpile.cache wants it: for settings, give a `cache`. Values are encoded as the cache's are; a region with
    a `serializer` stores its bytes.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.cache = opened(arguments["cache"] if "cache" in arguments else arguments["directory"])
        self.expire = arguments.get("expire")
        self.lock_timeout = arguments.get("lock_timeout", LEASE)

    def has_lock_timeout(self) -> bool:
        """Tell whether others may create a value after some time."""
        return self.lock_timeout is not None

    def get_mutex(self, key: str) -> Mutex:
        """Return a lock under a key that is no key of a region's."""
        return Mutex(self.cache, ("dogpile.cache", key), expire=self.lock_timeout)

    def get(self, key: str) -> Any:
        """Return the value with its metadata, or NO_VALUE."""
        return _value(self.cache.get(key))

    def get_multi(self, keys: Iterable[str]) -> list[Any]:
        """Return what `get` returns, for each of the keys."""
        return self._all(keys, _value)

    def get_serialized(self, key: str) -> Any:
        """Return the bytes that a region with a serializer has stored, or NO_VALUE."""
        return _bytes(self.cache.get(key))

    def get_serialized_multi(self, keys: Iterable[str]) -> list[Any]:
        """Return what `get_serialized` returns, for each of the keys."""
        return self._all(keys, _bytes)

    def _all(self, keys: Iterable[str], read: Callable[[Any], Any]) -> list[Any]:
        wanted = list(keys)
        return [read(found) for found in map(self.cache.get_many(wanted).get, wanted)]

    def set(self, key: str, value: Any) -> None:
        """Store a value with its metadata."""
        self.cache.set(key, _plain(value), self.expire, retry=True)

    def set_multi(self, mapping: Mapping[str, Any]) -> None:
        """Store all of them."""
        self.cache.set_many([(key, _plain(value)) for key, value in mapping.items()], self.expire, retry=True)

    set_serialized, set_serialized_multi = set, set_multi  # of bytes, which the cache stores as they are

    def delete(self, key: str) -> None:
        """Remove a value, if it is there."""
        self.cache.delete(key, retry=True)

    def delete_multi(self, keys: Iterable[str]) -> None:
        """Remove those that are there."""
        self.cache.delete_many(keys, retry=True)


def _plain(value: Any) -> Any:
    """Return what is stored: plain data as far as the payload is that, not the class that has it."""
    return tuple(value) if isinstance(value, CachedValue) else value


def _value(found: Any) -> Any:
    match found:
        case (payload, dict() as metadata):
            return CachedValue(payload, metadata)
    return NO_VALUE  # or what a region of another kind has stored


def _bytes(found: Any) -> Any:
    return found if isinstance(found, bytes) else NO_VALUE
