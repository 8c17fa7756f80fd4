"""DjangoCache: the cache as a backend of Django's cache framework.

Each operation makes Django's key out of the caller's (prefix, version, key function), turns Django's timeout into an
expiry, and is then one call of a `FanoutCache`.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.core.cache.backends.base import DEFAULT_TIMEOUT, MEMCACHE_MAX_KEY_LENGTH, BaseCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started

from .cache import Cache
from .encoding.values import is_small
from .errors import CacheError
from .memoizing.call_keys import CallKeys
from .memoizing.computed import ComputingOptions, KeepingOptions, origin_of, rules_of
from .memoizing.memoize import memoize
from .operations.tagging import Match
from .settings.definitions import DEFAULT_SETTINGS
from .settings.misuse import called
from .structures.deque import Deque
from .structures.fanout import FanoutCache
from .structures.index import Index
from .system.signals import reraise_signal, suppress

if TYPE_CHECKING:
    from .entries.metrics import Metrics

P = ParamSpec("P")
T = TypeVar("T")

_NUMBERS = (int, float)
FEW = 100  # items up to which `set_many` stores one by one: a transaction in each shard would take longer
# Options of Django's own backends, and what they are called here.
DJANGO_OPTIONS = {"MAX_ENTRIES": "max_entries", "CULL_FREQUENCY": None}


class Shared:
    """A cache that backends share, and whether they must ask `Handles` for another one before the next operation."""

    def __init__(self, cache: FanoutCache) -> None:
        self.cache = cache
        self.is_stale = False
        self._directory = os.stat(cache.directory)

    def is_there(self) -> bool:
        """Tell whether the directory is still the one that was opened."""
        try:
            return os.path.samestat(os.stat(self.cache.directory), self._directory)
        except OSError as error:
            reraise_signal(error)
            return False


class Handles:
    """The open caches of this process, shared by all backends of the same settings.

    Django makes a backend per thread, and under ASGI one per request. Each having files and a hot layer of its own
    would cost far more than the operations.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Any, Shared] = {}
        self.serving = False  # a request has come, so Django closes its caches after every request

    def get(
        self,
        kind: type[FanoutCache],
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        options: Any,
    ) -> Shared:
        """Return the open cache of this kind with these settings, or open it."""
        if isinstance(options.get("allow"), list):  # as Django's settings spell it
            options = {**options, "allow": tuple(options["allow"])}
        key = None
        if directory is not None:
            key = (kind, os.path.abspath(directory), shards, timeout, *sorted(options.items()))
        try:
            hash(key)
        except TypeError:  # an option that cannot be compared: this backend gets a cache of its own
            key = None
        if key is None:
            return Shared(kind(directory, shards, timeout, **options))
        with self._lock:  # also while opening, so that two threads do not open the same cache twice
            self._forget_removed()
            if key not in self._open:
                self._open[key] = Shared(kind(directory, shards, timeout, **options))
            return self._open[key]

    def _forget_removed(self) -> None:
        """Close the caches whose directories were removed: a new directory at the same path is another cache."""
        for key, shared in tuple(self._open.items()):
            if not shared.is_there():
                shared.is_stale = True  # before closing it, so that the next call of each backend gets another one
                del self._open[key]
                with suppress(CacheError):  # one in use is closed with its last backend
                    shared.cache.close()

    def close(self, shared: Shared) -> None:
        """Close a cache for good: if it opened again, its directory might be one that others made after a removal."""
        with self._lock:
            shared.is_stale = True
            for key in [key for key, known in self._open.items() if known is shared]:
                del self._open[key]
        shared.cache.close()

    def mark_serving(self, **_: Any) -> None:
        """Remember that this process answers requests."""
        self.serving = True

    def after_fork(self) -> None:
        """Give the child a free lock: the thread that may hold the old one exists only in the parent."""
        self._lock = threading.Lock()


handles = Handles()
os.register_at_fork(after_in_child=handles.after_fork)
request_started.connect(handles.mark_serving, dispatch_uid="diskcache_like")


class MadeKey(NamedTuple):
    """A key of a memoized function, which holds prefix and version already."""

    key: Any


async def _in_djangos_thread(function: Callable[[], T]) -> T:
    """Call a function in the thread that Django keeps for synchronous code, as its own backends do.

    Pickling a lazy QuerySet queries the database, and the connection belongs to that thread.
    """
    found: T = await sync_to_async(function, thread_sensitive=True)()
    return found


def _twin(
    method: Callable[Concatenate[Any, P], T], bulk: bool = False
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous twin of a method, which runs on the event loop where it does not block that.

    One that is about many entries (`bulk`) never runs there.
    """
    name = method.__name__

    async def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        function, handle = partial(getattr(self, name), *args, **kwargs), self._cache._handle
        if bulk or handle.writes_slowly() or not (is_small(args) and is_small(kwargs)):
            return await _in_djangos_thread(function)
        found: T = await handle.threads.attempt(function, elsewhere=_in_djangos_thread)
        return found

    twin.__name__, twin.__qualname__ = f"a{name}", f"DjangoCache.a{name}"
    twin.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    twin.__doc__ = f"Do what `{name}` does, without blocking the event loop."
    return twin


def _setting(name: str) -> property:
    """Return a setting as an attribute of a backend: that of its cache."""

    def assign(backend: DjangoCache, value: Any) -> None:
        setattr(backend._cache, name, value)
        backend._made[3][name] = value  # for the next cache, after `close` or when the directory was removed

    return property(lambda backend: getattr(backend._cache, name), assign)


class DjangoCache(BaseCache):  # type: ignore[misc]  # Django has no types
    """A backend for Django's `CACHES` setting that keeps its entries in a `FanoutCache`.

    `directory`: LOCATION. `params`: TIMEOUT, KEY_PREFIX, VERSION and KEY_FUNCTION as for every backend; SHARDS (8) and
    DATABASE_TIMEOUT (0.010 s) as for `FanoutCache`; OPTIONS, the settings and options of a cache.

    Keys are text; `read`, `tag`, `expire_time` and `retry` are those of `Cache`. Every operation has an asynchronous
    twin whose name begins with an a. Writes wait for the write lock without limit, unless `retry=False`: then one that
    did not get it within DATABASE_TIMEOUT is given up.

    Settings are attributes, as of a `Cache`; one that is assigned is in force for all backends of this process that
    have the same parameters, because they share a cache.

    Raises ImproperlyConfigured without LOCATION, and what `FanoutCache` raises.
    """

    _KIND: type[FanoutCache] = FanoutCache

    def __init__(self, directory: str | os.PathLike[str] | None, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        if directory == "":
            raise ImproperlyConfigured("LOCATION of DjangoCache is empty, expected a directory")
        given = params.get("OPTIONS", {})
        named = {DJANGO_OPTIONS.get(name, name): value for name, value in given.items()}
        options = {name: value for name, value in named.items() if name is not None}
        shards, timeout = params.get("SHARDS", 8), params.get("DATABASE_TIMEOUT", 0.010)
        self._made: tuple[Any, int, float, dict[str, Any]] = directory, shards, timeout, options
        self._shared = handles.get(self._KIND, *self._made)

    @property
    def _cache(self) -> FanoutCache:
        if self._shared.is_stale:
            self._shared = handles.get(self._KIND, *self._made)
        return self._shared.cache

    @_cache.setter
    def _cache(self, cache: FanoutCache) -> None:  # for tests that let several backends share one cache
        self._shared, self._made = Shared(cache), (None, *self._made[1:])

    @property
    def directory(self) -> str:
        """Return the absolute path of the cache directory."""
        return self._cache.directory

    def cache(self, name: str) -> Cache:
        """Return the `Cache` called `name` in a subdirectory; prefixes and versions mean nothing there."""
        return self._cache.cache(name)

    def deque(self, name: str, maxlen: int | None = None) -> Deque:
        """Return the `Deque` called `name` in a subdirectory; with `maxlen` it is bounded."""
        return self._cache.deque(name, maxlen=maxlen)

    def index(self, name: str) -> Index:
        """Return the `Index` called `name` in a subdirectory."""
        return self._cache.index(name)

    # -- keys and timeouts ----------------------------------------------------------------------------------------

    def make_key(self, key: Any, version: int | None = None) -> Any:
        """Return the key that is stored; a memoized function's `__cache_key__` is one already."""
        if isinstance(key, MadeKey):
            return key.key
        return self.key_func(key, self.key_prefix, self.version if version is None else version)

    def make_and_validate_key(self, key: Any, version: int | None = None) -> Any:
        """Return the key that is stored, after `validate_key` has warned of what memcached would not take."""
        made = self.make_key(key, version)
        if isinstance(made, str):
            self.validate_key(made)
        return made

    def validate_key(self, key: str) -> None:
        """Warn of a key that memcached would not take."""
        if len(key) > MEMCACHE_MAX_KEY_LENGTH or not key.isprintable() or " " in key:  # Django accepts all others
            super().validate_key(key)

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> Any:
        """Return seconds from now, or None for never; a timeout of 0 or less is over at once."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        return 0 if isinstance(timeout, _NUMBERS) and timeout < 0 else timeout

    # -- one entry ------------------------------------------------------------------------------------------------

    def add(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
        *,
        tags: Iterable[Any] | None = None,
    ) -> bool:
        """Store `value` if `key` has no live entry, and return whether it was stored. Atomic."""
        made = self.make_and_validate_key(key, version)
        return self._cache.add(made, value, self.get_backend_timeout(timeout), read, tag, retry, tags=tags)

    def get(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Return the value of `key`, or `default`; a tuple with `expire_time` or `tag`, a file object with `read`."""
        return self._cache.get(self.make_and_validate_key(key, version), default, read, expire_time, tag, retry)

    def get_and_touch(
        self,
        key: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        default: Any = None,
        version: int | None = None,
        retry: bool = True,
    ) -> Any:
        """Return the value of `key`, or `default`; a live entry gets the timeout anew, as by `Cache.get_and_touch`."""
        made = self.make_and_validate_key(key, version)
        return self._cache.get_and_touch(made, self.get_backend_timeout(timeout), default, retry)

    def read(self, key: Any, version: int | None = None) -> Any:
        """Return what `Cache.read` returns for `key`; raise KeyError if it is missing or expired."""
        return self._cache.read(self.make_and_validate_key(key, version))

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = True,
        *,
        tags: Iterable[Any] | None = None,
    ) -> bool:
        """Store `value` under `key`; return False if it can never fit the size limit. Atomic.

        `timeout`: seconds until it expires, None for never. With `retry=False` it also returns False if the write lock
        is not free in time. Other arguments as for `Cache.set`.
        """
        made = self.make_and_validate_key(key, version)
        return self._cache.set(made, value, self.get_backend_timeout(timeout), read, tag, retry, tags=tags)

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None, retry: bool = True) -> bool:
        """Give a live entry a new timeout and return whether there was one. Atomic."""
        return self._cache.touch(self.make_and_validate_key(key, version), self.get_backend_timeout(timeout), retry)

    def retag(
        self,
        key: Any,
        add: Iterable[Any] = (),
        remove: Iterable[Any] = (),
        version: int | None = None,
        retry: bool = True,
    ) -> bool:
        """Add tags to a live entry, and remove others; return whether there was one. Atomic; the timeout stays."""
        return self._cache.retag(self.make_and_validate_key(key, version), add, remove, retry)

    def pop(
        self,
        key: Any,
        default: Any = None,
        version: int | None = None,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = True,
    ) -> Any:
        """Remove the entry of `key` and return its value, or `default`. Atomic."""
        return self._cache.pop(self.make_and_validate_key(key, version), default, expire_time, tag, retry)

    def delete(self, key: Any, version: int | None = None, retry: bool = True) -> bool:
        """Remove the entry of `key` and return whether there was a live one. Atomic."""
        return self._cache.delete(self.make_and_validate_key(key, version), retry)

    def incr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Add `delta` to the number under `key` and return the sum. Atomic; the timeout stays.

        A missing key counts as `default`; without one it raises ValueError. None if the lock was not got in time.
        """
        made = self.make_and_validate_key(key, version)
        try:
            return self._cache.incr(made, delta, default, retry)
        except KeyError:
            raise ValueError(f"Key {key!r} not found") from None

    def decr(
        self, key: Any, delta: int = 1, version: int | None = None, default: int | None = None, retry: bool = True
    ) -> Any:
        """Subtract `delta` from the number under `key` and return the difference; otherwise like `incr`."""
        return self.incr(key, -delta, version, default, retry)

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Tell whether `key` has a live entry."""
        return self.make_and_validate_key(key, version) in self._cache

    def incr_version(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Move the entry of `key` to the version `delta` higher, with the default timeout; return that version.

        Atomic. Raises ValueError if the key is missing.
        """
        with self._cache.transact():
            moved: int = super().incr_version(key, delta, version)
        return moved

    # -- many entries ---------------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return a dictionary of the live entries among the keys; the rest is left out."""
        made = {key: self.make_and_validate_key(key, version) for key in keys}
        found = self._cache.get_many(made.values())
        return {key: found[stored] for key, stored in made.items() if stored in found}

    def set_many(
        self,
        data: Mapping[Any, Any],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        *,
        tags: Iterable[Any] | None = None,
    ) -> list[Any]:
        """Store all items, and return the keys of those that can never fit the size limit."""
        expire = self.get_backend_timeout(timeout)
        pairs = [(self.make_and_validate_key(key, version), value) for key, value in data.items()]
        if len(pairs) > FEW and self._cache.set_many(pairs, expire, retry=True, tags=tags) == len(pairs):
            return []
        return [
            key
            for key, (made, value) in zip(data, pairs, strict=True)
            if not self._cache.set(made, value, expire, retry=True, tags=tags)
        ]

    def touch_many(self, keys: Iterable[Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> int:
        """Give each of the keys that has a live entry a new timeout; return how many there were."""
        made = [self.make_and_validate_key(key, version) for key in keys]
        return self._cache.touch_many(made, self.get_backend_timeout(timeout), retry=True)

    def incr_many(
        self, data: Mapping[Any, float], version: int | None = None, default: int | None = None
    ) -> dict[Any, Any]:
        """Add a number to the one under each key, as `incr` does, and return a dictionary of the sums.

        Raises ValueError for a missing key, unless there is a default. Each shard's part is atomic.
        """
        made = {key: self.make_and_validate_key(key, version) for key in data}
        try:
            sums = self._cache.incr_many([(made[key], delta) for key, delta in data.items()], default, retry=True)
        except KeyError as error:
            missing = next(key for key, stored in made.items() if stored == error.args[0])
            raise ValueError(f"Key {missing!r} not found") from None
        return {key: sums[stored] for key, stored in made.items()}

    def get_or_set_many(
        self,
        keys: Iterable[Any],
        compute_missing: Callable[[list[Any]], Mapping[Any, Any]],
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        *,
        tags: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        **options: Unpack[KeepingOptions],
    ) -> dict[Any, Any]:
        """Return a dictionary of the values of keys; those that are missing come from one call, and are stored.

        `compute_missing` gets the list of the missing keys, as the caller has them, and returns a mapping; see
        `Cache.get_or_set_many`, also for `options`. No coroutine function: `aget_or_set_many` calls it in a thread.
        """
        called("compute_missing", compute_missing, "a function of a list of keys")
        made = {self.make_and_validate_key(key, version): key for key in keys}

        @functools.wraps(origin_of(compute_missing), updated=())
        def compute(missing: list[Any]) -> Any:
            values: Any = compute_missing([made[stored] for stored in missing])
            if not isinstance(values, Mapping):
                return values  # of which the cache says what is wrong with it
            return {stored: values[made[stored]] for stored in missing if made[stored] in values}

        expire = self.get_backend_timeout(timeout)
        found = self._cache.get_or_set_many(made, compute, expire, tags=tags, **options)
        return {made[stored]: value for stored, value in found.items()}

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Remove the entries of the keys."""
        self._cache.delete_many([self.make_and_validate_key(key, version) for key in keys], retry=True)

    # -- the whole cache ------------------------------------------------------------------------------------------

    def expire(self) -> int:
        """Remove the expired entries and return how many there were."""
        return self._cache.expire()

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Return (hits, misses), and switch statistics on or off; see `Cache.stats`."""
        return self._cache.stats(enable, reset)

    def metrics(self, reset: bool = False) -> Metrics:
        """Return what all processes have counted; see `Cache.metrics`."""
        return self._cache.metrics(reset)

    def create_tag_index(self) -> None:
        """Set `tag_index` to 1, for programs made for DiskCache. It has no effect: tags are always indexed."""
        self._cache.create_tag_index()

    def drop_tag_index(self) -> None:
        """Set `tag_index` to 0, for programs made for DiskCache. It has no effect: tags are always indexed."""
        self._cache.drop_tag_index()

    def evict(
        self,
        tag: Any = None,
        *,
        tags: Iterable[Any] | None = None,
        match: Match = "any",
        soft: bool = False,
        prefix: str | None = None,
        version: int | None = None,
    ) -> int:
        """Remove every entry with this tag, or with any or all of `tags`; as `Cache.evict`.

        Of whatever prefix and version, unless `prefix` is given: then those whose key begins with it, of this backend's
        KEY_PREFIX and of `version`. A KEY_FUNCTION must put the key last then. Returns how many there were.
        """
        made = None if prefix is None else self.make_key(prefix, version)
        return self._cache.evict(tag, tags=tags, match=match, soft=soft, prefix=made)

    def cull(self) -> int:
        """Remove expired entries, then live ones by policy until the size limit holds; return how many went."""
        return self._cache.cull()

    def clear(self) -> int:
        """Remove every entry, of whatever prefix and version, and return how many there were."""
        return self._cache.clear()

    def close(self, /, **kwargs: Any) -> None:
        """Close the files; the next operation opens them again.

        In a process that answers requests they stay open until it ends, for there it is Django that calls this, after
        every request, while other threads are in the middle of theirs.
        """
        if not handles.serving:
            if self._made[0] is None:  # a temporary directory, which nobody else opens, or a cache that a test has set
                self._shared.cache.close()
            else:
                handles.close(self._shared)

    def memoize(
        self,
        name: str | None = None,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        typed: bool = False,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
        *,
        key: Callable[..., Any] | str | None = None,
        tags: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        **options: Unpack[ComputingOptions],
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that caches a function's results; see `Cache.memoize`, also for `options`.

        `timeout` of 0 keeps nothing. Prefix and version are part of the name. What the function's `__cache_key__`
        and `key` return is a key for `get`, `delete` and the like, whatever their `version`.
        """
        if callable(name):
            raise TypeError("name cannot be a function: write @cache.memoize() with parentheses")

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            call_keys = CallKeys(name, typed, ignore, key, spell=partial(self.make_key, version=version))
            rules = rules_of(self.get_backend_timeout(timeout), tag, tags, {**options})
            wrapper: Any = memoize(self._cache, call_keys, rules)(function)
            cache_key = wrapper.__cache_key__
            wrapper.__cache_key__ = functools.wraps(cache_key)(lambda *a, **k: MadeKey(cache_key(*a, **k)))
            wrapper.key = wrapper.__cache_key__
            decorated: Callable[..., Any] = wrapper
            return decorated

        return decorate

    # -- asynchronous ---------------------------------------------------------------------------------------------
    # `aget_or_set` is Django's: it calls `aget` and `aadd`, and the caller's function where Django would.

    aadd = _twin(add)
    aget = _twin(get)
    aget_and_touch = _twin(get_and_touch)
    aread = _twin(read)
    aset = _twin(set)
    atouch = _twin(touch)
    aretag = _twin(retag)
    apop = _twin(pop)
    adelete = _twin(delete)
    aincr = _twin(incr)
    adecr = _twin(decr)
    ahas_key = _twin(has_key)
    aincr_version = _twin(incr_version, bulk=True)
    aget_many = _twin(get_many)
    aset_many = _twin(set_many)
    atouch_many = _twin(touch_many, bulk=True)
    aincr_many = _twin(incr_many, bulk=True)
    aget_or_set_many = _twin(get_or_set_many, bulk=True)
    adelete_many = _twin(delete_many)
    aexpire = _twin(expire, bulk=True)
    astats = _twin(stats, bulk=True)
    ametrics = _twin(metrics, bulk=True)
    acreate_tag_index = _twin(create_tag_index, bulk=True)
    adrop_tag_index = _twin(drop_tag_index, bulk=True)
    aevict = _twin(evict, bulk=True)
    acull = _twin(cull, bulk=True)
    aclear = _twin(clear, bulk=True)
    aclose = _twin(close, bulk=True)


for _name in DEFAULT_SETTINGS:
    setattr(DjangoCache, _name, _setting(_name))
