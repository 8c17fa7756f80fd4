"""Adapters: other caches and stores behind the methods of a subject, each the fastest way that its client documents.

Each imports its client when it is made, and stores bytes as bytes. A call whose name, arguments and answer fit is the
client's own bound method, which costs nothing; `None` is what a missing key gives everywhere.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.spec import MissingFeature, MissingSubject, Spec

PIP = f"{sys.executable} -m pip install"
PYLIBMC = "pylibmc"
if sys.version_info >= (3, 12):  # for which it publishes no wheels
    PYLIBMC += " after apt-get install gcc python3-dev libmemcached-dev zlib1g-dev"
ENTRIES = 100_000_000  # where a limit on entries has to be given: more than are ever stored
MAP_SIZE = 1 << 36  # of addresses; the file is as large as what it holds
QUEUE = "benchmark:queue"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def client(module: str, package: str = "") -> Any:
    """Import a client, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f"{PIP} {package or module}"
        raise MissingSubject(f"cannot import {module} ({error}); install it with: {install}") from error


def as_bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


def as_text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def lend(adapter: object, made: object, *names: str, **renamed: str) -> None:
    """Give the adapter a client's own methods, some under the name that subjects have for them."""
    for ours, theirs in {**{name: name for name in names}, **renamed}.items():
        setattr(adapter, ours, getattr(made, theirs))


def serialise(subject: Any, dumps: Callable[[Any], Any], loads: Callable[[Any], Any]) -> None:
    """Make a store of bytes one of objects, the way its users do: by serialising around each call."""
    get, put = subject.get, subject.set

    def read(key: Any, /) -> Any:
        stored = get(key)
        return None if stored is None else loads(stored)

    subject.get, subject.set = read, lambda key, value: put(key, dumps(value))
    if hasattr(subject, "get_many"):
        get_many, set_many = subject.get_many, subject.set_many
        subject.get_many = lambda keys: {key: loads(stored) for key, stored in get_many(keys).items()}
        subject.set_many = lambda items: set_many({key: dumps(value) for key, value in items.items()})


pickled = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


class Memcached:
    """Memcached through pylibmc, in its binary protocol, over a Unix socket; pylibmc pickles what is not bytes."""

    def __init__(self, directory: str, socket: str) -> None:
        module = client("pylibmc", PYLIBMC)
        self._client = module.Client([socket], binary=True)
        self._missing = module.NotFound
        lend(self, self._client, "get", "set", "delete", get_many="get_multi", set_many="set_multi")
        lend(self, self._client, clear="flush_all", close="disconnect_all")

    def incr(self, key: Any, /) -> Any:
        """Count up; the first one adds the counter, unless another process has just done so."""
        try:
            return self._client.incr(key)
        except self._missing:
            return 1 if self._client.add(key, 1) else self._client.incr(key)


class Redis:
    """Redis through redis-py with hiredis, over a Unix socket, on one connection without a time limit per call."""

    def __init__(self, directory: str, socket: str, objects: bool = False) -> None:
        package = "'redis[hiredis]'"
        client("hiredis", package)
        made = client("redis", package).Redis
        self._client = made(unix_socket_path=socket, single_connection_client=True, socket_timeout=None)
        lend(self, self._client, "get", "set", "delete", "incr", "close", set_many="mset", clear="flushall")
        if objects:
            serialise(self, pickled, pickle.loads)

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Read many keys in one command."""
        answers = zip(keys, self._client.mget(keys), strict=True)
        return {key: value for key, value in answers if value is not None}

    def push(self, value: Any) -> Any:
        return self._client.rpush(QUEUE, value)

    def pull(self) -> tuple[None, Any]:
        """Take the first of the list; its items have no key."""
        return None, self._client.lpop(QUEUE)


class Lmdb:
    """LMDB, committing without a sync, as the caches here do by default; every page of it has the same definition.

    Each call is a transaction of its own. With `writemap` it writes into its memory map, where a stray store of the
    process can damage what is there.
    """

    def __init__(self, directory: str, objects: bool = False, writemap: bool = False) -> None:
        Path(directory).mkdir(exist_ok=True)
        made = client("lmdb").open
        self._environment = made(directory, map_size=MAP_SIZE, sync=False, writemap=writemap, max_dbs=0)
        lend(self, self._environment, "close")
        if objects:
            serialise(self, pickled, pickle.loads)

    def get(self, key: Any, /) -> Any:
        with self._environment.begin() as transaction:
            return transaction.get(as_bytes(key))

    def set(self, key: Any, value: Any, /) -> Any:
        with self._environment.begin(write=True) as transaction:
            return transaction.put(as_bytes(key), value)

    def delete(self, key: Any, /) -> Any:
        with self._environment.begin(write=True) as transaction:
            return transaction.delete(as_bytes(key))

    def get_many(self, keys: Sequence[Any]) -> dict[Any, Any]:
        with self._environment.begin() as transaction:
            return {key: value for key in keys if (value := transaction.get(as_bytes(key))) is not None}

    def set_many(self, items: Mapping[Any, Any]) -> Any:
        with self._environment.begin(write=True) as transaction:
            return transaction.cursor().putmulti((as_bytes(key), value) for key, value in items.items())

    def incr(self, key: Any, /) -> int:
        with self._environment.begin(write=True) as transaction:
            count = int(transaction.get(as_bytes(key), b"0")) + 1
            transaction.put(as_bytes(key), b"%d" % count)
            return count

    def clear(self) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.drop(self._environment.open_db(None, transaction), delete=False)


class SqliteDict:
    """sqlitedict with a commit after each write; bytes are stored unpickled, objects as it does by itself."""

    def __init__(self, directory: str, objects: bool = False) -> None:
        Path(directory).mkdir(exist_ok=True)
        kept = {} if objects else {"encode": bytes, "decode": bytes}
        made = client("sqlitedict").SqliteDict
        self._dict = made(f"{directory}/dict.sqlite", autocommit=True, journal_mode="WAL", **kept)
        lend(self, self._dict, "clear", "close")

    def get(self, key: Any, /) -> Any:
        return self._dict.get(as_text(key))

    def set(self, key: Any, value: Any, /) -> Any:
        """Write one row; the writing thread commits it later."""
        self._dict[as_text(key)] = value

    def delete(self, key: Any, /) -> Any:
        """Delete one row; sqlitedict raises for one that is missing, and looks and deletes in two steps."""
        with suppress(KeyError):
            del self._dict[as_text(key)]

    def set_many(self, items: Mapping[Any, Any]) -> Any:
        """Write many rows in one statement."""
        self._dict.update({as_text(key): value for key, value in items.items()})


class _TextKeys:
    """What a store that knows text keys only does with its own three calls."""

    def _lend(self, store: Any) -> None:
        self._get, self._set, self._delete = store.get, store.set, store.delete

    def get(self, key: Any, /) -> Any:
        return self._get(as_text(key))

    def set(self, key: Any, value: Any, /) -> Any:
        return self._set(as_text(key), value)

    def delete(self, key: Any, /) -> Any:
        return self._delete(as_text(key))

    def close(self) -> None:
        """Nothing is open between calls."""


class DiskCacheRs(_TextKeys):
    """diskcache_rs, which drops what is stored under a key that is not text, and limits the number of entries."""

    def __init__(self, directory: str, **settings: Any) -> None:
        made = client("diskcache_rs", "diskcache_rs==0.4.10").Cache
        cache = made(directory, count_limit=ENTRIES, **settings)
        self._lend(cache)
        self._incr, self._set_many = cache.incr, cache.set_many
        lend(self, cache, "push", "pull", "evict", "clear", "memoize", "transact", "close")

    def set(self, key: Any, value: Any, /, tag: str | None = None) -> Any:
        return self._set(as_text(key), value, None, False, tag)

    def incr(self, key: Any, /) -> Any:
        """Count up, reading and writing in two steps as it does."""
        return self._incr(as_text(key))

    def set_many(self, items: Mapping[Any, Any]) -> Any:
        return self._set_many({as_text(key): value for key, value in items.items()})


class SciQLop:
    """pysciqlop_cache, which pickles every value; its own `evict` is about size, not tags."""

    def __init__(self, directory: str, **settings: Any) -> None:
        cache = client("pysciqlop_cache", "pysciqlop-cache==0.3.6").Cache(directory, **settings)
        lend(self, cache, "get", "set", "delete", "incr", "clear", "memoize", "transact", "close", evict="evict_tag")


class CacheKit(_TextKeys):
    """cachekit's file backend, which knows text keys and bytes; objects go through its own serializer."""

    def __init__(self, directory: str, objects: bool = False) -> None:
        module = client("cachekit.backends.file", "cachekit")
        # The most that it allows; it evicts from nine tenths of it on.
        config = module.FileBackendConfig(cache_dir=directory, max_entry_count=1_000_000, max_size_mb=1_000_000)
        self._backend = module.FileBackend(config)
        self._lend(self._backend)
        if objects:
            serializer = client("cachekit.serializers", "cachekit").StandardSerializer()
            serialise(self, lambda value: serializer.serialize(value)[0], serializer.deserialize)

    def memoize(self) -> Decorator:
        """Return its decorator in the fastest of its presets, which has a tier in memory before the files."""
        made: Decorator = client("cachekit").cache.minimal(backend=self._backend, ttl=None)
        return made


class _Django(_TextKeys):
    """One of Django's own backends, with pickle, as it is."""

    module = kind = ""

    def __init__(self, directory: str) -> None:
        settings = client("django.conf", "django").settings
        if not settings.configured:
            settings.configure()
        made = getattr(client(f"django.core.cache.backends.{self.module}", "django"), self.kind)
        self._cache = made(directory, {"timeout": None, "max_entries": ENTRIES})
        self._lend(self._cache)
        lend(self, self._cache, "get_many", "set_many", "clear")

    def incr(self, key: Any, /) -> Any:
        """Count up; the first one adds the counter."""
        try:
            return self._cache.incr(as_text(key))
        except ValueError:
            return 1 if self._cache.add(as_text(key), 1) else self._cache.incr(as_text(key))


class DjangoFile(_Django):
    """Django's file backend."""

    module, kind = "filebased", "FileBasedCache"


class DjangoMemory(_Django):
    """Django's local-memory backend, which no other process sees."""

    module, kind = "locmem", "LocMemCache"

    def close(self) -> None:
        """Forget everything, which would stay in memory under the cache's name."""
        self._cache.clear()


class LruCache:
    """functools.lru_cache, in this process's memory: a hit is a call of a cached function, and nothing can be changed.

    `set_many` fills what the function computes from, and calls it for every key.
    """

    def __init__(self, directory: str) -> None:
        self._source: dict[Any, Any] = {}
        self.get = functools.lru_cache(maxsize=ENTRIES)(self._source.get)
        lend(self, self, close="clear")

    def set(self, key: Any, value: Any, /) -> Any:
        raise MissingFeature("functools.lru_cache has no set(); fill it with set_many()")

    def delete(self, key: Any, /) -> Any:
        raise MissingFeature("functools.lru_cache has no delete()")

    def set_many(self, items: Mapping[Any, Any]) -> None:
        """Fill it; what it already knows, misses among it, would stay."""
        self._source.update(items)
        self.get.cache_clear()
        for key in self._source:
            self.get(key)

    def memoize(self) -> Decorator:
        return functools.lru_cache(maxsize=ENTRIES)

    def clear(self) -> None:
        self.get.cache_clear()
        self._source.clear()


class CacheBox:
    """cachebox's LRU cache in this process's memory."""

    def __init__(self, directory: str, entries: int = ENTRIES) -> None:
        self._module = client("cachebox")
        self._cache = self._module.LRUCache(entries)
        lend(self, self._cache, "get", "clear", set="insert", set_many="update", close="clear")

    def delete(self, key: Any, /) -> Any:
        return self._cache.pop(key, None)

    def memoize(self) -> Decorator:
        made: Decorator = self._module.cached(self._module.LRUCache(ENTRIES))
        return made


def adapted(name: str, kind: str, **for_objects: Any) -> Spec:
    """Return the spec of an adapter in this module."""
    return Spec(name, __name__, f"{PIP} '.[peers]'", kind, for_objects=tuple(for_objects.items()))
