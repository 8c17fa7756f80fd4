"""Adapters: other caches and stores behind the four methods of a subject, each the fastest way its client offers.

Each imports its client when it is made, and stores bytes as bytes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.subjects import MissingSubject, Spec

PIP = f"{sys.executable} -m pip install"


def client(module: str, package: str) -> Any:
    """Import a client, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingSubject(f"cannot import {module} ({error}); install it with: {PIP} {package}") from error


def as_bytes(key: str | bytes) -> bytes:
    """Return a key for a store that knows bytes only."""
    return key if isinstance(key, bytes) else key.encode()


def as_text(key: str | bytes) -> str:
    """Return a key for a store that knows text only."""
    return key if isinstance(key, str) else key.decode()


class Memcached:
    """Memcached through pylibmc, in its binary protocol, over a Unix socket."""

    def __init__(self, directory: str, socket: str) -> None:
        self._client = client("pylibmc", "pylibmc").Client([socket], binary=True, behaviors={"tcp_nodelay": True})
        self.get: Callable[[Any], Any] = self._client.get
        self.set: Callable[[Any, Any], Any] = self._client.set
        self.delete: Callable[[Any], Any] = self._client.delete

    def close(self) -> None:
        """Close the connection."""
        self._client.disconnect_all()


class Redis:
    """Redis through redis-py with hiredis, over a Unix socket."""

    def __init__(self, directory: str, socket: str) -> None:
        client("hiredis", "'redis[hiredis]'")
        self._client = client("redis", "'redis[hiredis]'").Redis(unix_socket_path=socket)
        self.get: Callable[[Any], Any] = self._client.get
        self.set: Callable[[Any, Any], Any] = self._client.set
        self.delete: Callable[[Any], Any] = self._client.delete

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Lmdb:
    """LMDB, committing without a sync, as the caches here do by default."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(exist_ok=True)
        self._environment = client("lmdb", "lmdb").open(directory, map_size=1 << 30, sync=False, max_dbs=0)

    def get(self, key: Any, /) -> Any:
        """Read in a transaction of its own."""
        with self._environment.begin() as transaction:
            return transaction.get(as_bytes(key))

    def set(self, key: Any, value: Any, /) -> Any:
        """Write in a transaction of its own."""
        with self._environment.begin(write=True) as transaction:
            return transaction.put(as_bytes(key), value)

    def delete(self, key: Any, /) -> Any:
        """Delete in a transaction of its own."""
        with self._environment.begin(write=True) as transaction:
            return transaction.delete(as_bytes(key))

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()


class SqliteDict:
    """sqlitedict with a commit after each write; bytes are stored unpickled."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(exist_ok=True)
        kept = {"encode": bytes, "decode": bytes}
        made = client("sqlitedict", "sqlitedict").SqliteDict
        self._dict = made(f"{directory}/dict.sqlite", autocommit=True, journal_mode="WAL", **kept)

    def get(self, key: Any, /) -> Any:
        """Read one row."""
        return self._dict.get(as_text(key))

    def set(self, key: Any, value: Any, /) -> Any:
        """Write one row; the writing thread commits it later."""
        self._dict[as_text(key)] = value

    def delete(self, key: Any, /) -> Any:
        """Delete one row; sqlitedict raises for one that is missing, and looks and deletes in two steps."""
        with suppress(KeyError):
            del self._dict[as_text(key)]

    def close(self) -> None:
        """Wait for the writing thread and close."""
        self._dict.close()


class _Django:
    """One of Django's own backends, with pickle, as it is."""

    module = kind = ""

    def __init__(self, directory: str) -> None:
        settings = client("django.conf", "django").settings
        if not settings.configured:
            settings.configure()
        made = getattr(client(self.module, "django"), self.kind)
        cache = made(directory, {"timeout": None, "MAX_ENTRIES": 1_000_000})
        self._get, self._set, self._delete = cache.get, cache.set, cache.delete

    def get(self, key: Any, /) -> Any:
        """Read one entry."""
        return self._get(as_text(key))

    def set(self, key: Any, value: Any, /) -> Any:
        """Write one entry."""
        return self._set(as_text(key), value)

    def delete(self, key: Any, /) -> Any:
        """Delete one entry."""
        return self._delete(as_text(key))

    def close(self) -> None:
        """Nothing is open between calls."""


class DjangoFile(_Django):
    """Django's file backend."""

    module, kind = "django.core.cache.backends.filebased", "FileBasedCache"


class DjangoMemory(_Django):
    """Django's local-memory backend, which no other process sees."""

    module, kind = "django.core.cache.backends.locmem", "LocMemCache"


class CacheBox:
    """cachebox's LRU cache in this process's memory: what no shared cache can be faster than."""

    def __init__(self, directory: str) -> None:
        self._cache = client("cachebox", "cachebox").LRUCache(1_000_000)
        self.get: Callable[[Any], Any] = self._cache.get
        self.set: Callable[[Any, Any], Any] = self._cache.insert

    def delete(self, key: Any, /) -> Any:
        """Remove one entry."""
        return self._cache.pop(key, None)

    def close(self) -> None:
        """Forget everything."""
        self._cache.clear()


def adapted(name: str, kind: str, install: str, **settings: Any) -> Spec:
    """Return the spec of an adapter in this module."""
    return Spec(name, __name__, install, kind, tuple(settings.items()))


EMBEDDED = {
    "lmdb": adapted("LMDB", "Lmdb", f"{PIP} lmdb"),
    "sqlitedict": adapted("sqlitedict", "SqliteDict", f"{PIP} sqlitedict"),
    "django-file": adapted("Django, files", "DjangoFile", f"{PIP} django"),
}
IN_MEMORY = {
    "django-memory": adapted("Django, memory", "DjangoMemory", f"{PIP} django"),
    "cachebox": adapted("cachebox", "CacheBox", f"{PIP} cachebox"),
}
CLIENTS = {
    "memcached": adapted("Memcached", "Memcached", f"{PIP} pylibmc"),
    "redis": adapted("Redis", "Redis", f"{PIP} 'redis[hiredis]'"),
}
