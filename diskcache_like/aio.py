"""The asynchronous classes: caches, deques and indexes whose operations are awaited (`operations/faces`)."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from .cache import Cache
from .disk.contract import Disk
from .entries.options import Arguments
from .memoizing.computed import ComputingOptions, KeepingOptions
from .memoizing.identities import decorated
from .memoizing.memoize import Memoized
from .memoizing.rules import Lifetime
from .operations.faces import (
    Awaited,
    Face,
    Method,
    called_as,
    in_bulk,
    iterates,
    like,
    reads,
    reads_in_bulk,
    transacts,
    writes,
)
from .structures.deque import Deque
from .structures.fanout import FanoutCache
from .structures.index import Index
from .system.blocking import WouldBlock, block
from .system.generics import K, OfKeysAndValues, T, V
from .system.threads import MAX_THREADS, Threads, in_new_thread

if TYPE_CHECKING:
    from .tier.tier import Tier

CALLS_ON_LOOPS = True  # for `may_block`

P = ParamSpec("P")
Key = TypeVar("Key")
R = TypeVar("R")
S = TypeVar("S")


class AsyncStream:
    """A stream whose calls are made in a thread."""

    def __init__(self, threads: Threads, begin: Callable[[], Any]) -> None:
        self._threads = threads
        self._begin = begin
        self._stream: Any = None

    async def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, or all that is left."""
        data: bytes = await self._threads.call(partial(self._stream.read, size), False)
        return data

    async def write(self, data: bytes) -> int:
        """Append bytes."""
        written: int = await self._threads.call(partial(self._stream.write, data))
        return written

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read(1 << 20):
            yield piece

    async def __aenter__(self) -> Self:
        self._stream = await self._threads.call(self._begin, False)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._threads.call(partial(self._stream.__exit__, *error), self._stream.writable())


class Memoizing(Protocol):
    """What `AsyncCache.memoize` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Memoized[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Memoized[P, Coroutine[Any, Any, R]]: ...


def _gets(method: Method[S, P, R]) -> Awaited[P, R]:
    """Return the hot path; what `reads` returns takes half as long again."""

    async def get(
        self: AsyncCache,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
        *,
        mmap: bool | None = None,
        copy: bool = True,
    ) -> Any:
        if not self._transactions:
            try:
                return self._get(key, default, read, expire_time, tag, retry, mmap, copy)
            except WouldBlock:
                pass
        again = partial(self._get, key, default, read, expire_time, tag, retry, mmap=mmap, copy=copy)
        return await self._threads.attempt(again, False)

    awaited: Awaited[P, R] = called_as(method, get)
    return awaited


def _opens(method: Method[S, P, Any]) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[AsyncStream]]:
    def open(self: AsyncCache, *args: Any, **kwargs: Any) -> AsyncStream:
        """Open the bytes of a key as a stream, as `Cache.open` does; `async with`, then `await` its methods."""
        return AsyncStream(self._threads, partial(self._sync.open, *args, **kwargs))

    return like(method)(open)


class _Later:
    """An attribute of an open cache; before that is open, a look at it opens it, and blocks.

    With `__getattr__` instead, every attribute of the face takes 40 ns longer, a tenth of an awaited hit.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, face: Any, owner: type) -> Any:
        if face is None:
            return self
        face._take(block(face._opened))
        return getattr(face, self._name)


class AsyncCache(OfKeysAndValues[K, V], Face[Cache[K, V]]):
    """A cache for coroutines: the operations of `Cache`, awaited, none of which blocks the event loop.

    Arguments as for `Cache`, and `max_threads`: how many threads readers, writers and functions that compute may each
    have, 4 by default; `executor`: where all of them run instead. `async with` opens it in a thread and closes it;
    without that its first use opens it, and blocks. `cache.aio` is that of an open cache. A cancelled call has happened
    or has not when CancelledError is raised; a timeout is the cache's. Raises what `Cache` raises.
    """

    _KIND: type[Cache] = Cache

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        *,
        max_threads: int = MAX_THREADS,
        executor: Executor | None = None,
        **settings: Unpack[Arguments],
    ) -> None:
        self._open_later(max_threads, executor, directory, timeout, disk, **settings)

    def _open_later(self, max_threads: int, executor: Executor | None, *args: Any, **settings: Any) -> None:
        self._opened = partial(self._KIND, *args, **settings)
        self._max_threads, self._executor = max_threads, executor

    if TYPE_CHECKING:

        def __aiter__(self) -> AsyncIterator[K]: ...

    else:  # type checkers would take them for attributes of the face
        _sync, _threads, _transactions, _writes_slowly, _get = (_Later() for _ in range(5))

    def _adopt(self, sync: Any) -> None:
        super()._adopt(sync)
        self._get = sync.get

    def _take(self, cache: Cache) -> None:
        self._adopt(cache)
        self._threads.max_threads = self._max_threads
        self._threads.executor = self._executor

    def __reduce__(self) -> Any:
        return type(self).of, (self._sync,)

    async def __aenter__(self) -> Self:
        if "_sync" not in vars(self):
            self._take(await in_new_thread(self._opened))
        return self

    get = _gets(Cache[K, V].get)
    get_and_touch = writes(Cache[K, V].get_and_touch)
    read = reads(Cache[K, V].read)
    get_entry = reads(Cache[K, V].get_entry)
    why = reads(Cache.why)
    getitem = reads(Cache[K, V].__getitem__)
    contains = reads(Cache.__contains__)
    set = writes(Cache[K, V].set)
    setitem = writes(Cache[K, V].__setitem__)
    add = writes(Cache[K, V].add)
    incr = writes(Cache[K, V].incr)
    decr = writes(Cache[K, V].decr)
    touch = writes(Cache[K, V].touch)
    touch_many = in_bulk(Cache[K, V].touch_many)
    incr_many = in_bulk(Cache[K, V].incr_many)
    retag = writes(Cache[K, V].retag)
    pop = writes(Cache[K, V].pop)
    delete = writes(Cache[K, V].delete)
    delitem = writes(Cache[K, V].__delitem__)
    push = writes(Cache.push)
    pull = writes(Cache.pull)
    peek = writes(Cache.peek)
    peekitem = writes(Cache.peekitem)
    get_many = writes(Cache[K, V].get_many)
    set_many = writes(Cache[K, V].set_many)
    delete_many = in_bulk(Cache[K, V].delete_many)
    clear = in_bulk(Cache.clear)
    evict = in_bulk(Cache.evict)
    expire = in_bulk(Cache.expire)
    cull = in_bulk(Cache.cull)
    flush = in_bulk(Cache.flush)
    check = in_bulk(Cache.check)
    metrics = in_bulk(Cache.metrics)
    stats = in_bulk(Cache.stats)
    reset = in_bulk(Cache.reset)
    rotate = in_bulk(Cache.rotate)
    copy_to = in_bulk(Cache.copy_to)
    create_tag_index = in_bulk(Cache.create_tag_index)
    drop_tag_index = in_bulk(Cache.drop_tag_index)
    count = reads_in_bulk(Cache.count)
    tags = reads_in_bulk(Cache.tags)
    volume = reads_in_bulk(Cache.volume)
    length = reads_in_bulk(Cache.__len__)
    keys = iterates(Cache.keys)
    values = iterates(Cache.values)
    items = iterates(Cache.items)
    iterkeys = iterates(Cache.iterkeys)
    iterqueue = iterates(Cache.iterqueue)
    transact = transacts(Cache.transact)
    open = _opens(Cache.open)

    @property
    def remote(self) -> Tier:
        """Return the server's side of a cache with `remote=`; see `Cache.remote`."""
        found: Tier = self._sync.remote
        return found

    def namespace(self, name: str) -> Self:
        """Return the face of a namespace; see `Cache.namespace`."""
        return type(self).of(self._sync.namespace(name))

    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., Coroutine[Any, Any, R]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[ComputingOptions],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., R],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[ComputingOptions],
    ) -> Coroutine[Any, Any, R]: ...
    def get_or_set(self, key: Any, compute: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do what `Cache.get_or_set` does; a function that is no coroutine function is called in a thread."""
        return self._sync.get_or_set(key, self._awaitable(compute), *args, **options)

    @overload
    def get_or_set_many(
        self,
        keys_: Iterable[Key],
        compute_missing: Callable[[list[Key]], Coroutine[Any, Any, Mapping[Key, R]]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[KeepingOptions],
    ) -> Coroutine[Any, Any, dict[Key, R]]: ...
    @overload
    def get_or_set_many(
        self,
        keys_: Iterable[Key],
        compute_missing: Callable[[list[Key]], Mapping[Key, R]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[KeepingOptions],
    ) -> Coroutine[Any, Any, dict[Key, R]]: ...
    def get_or_set_many(self, keys_: Iterable[Any], compute_missing: Any, *args: Any, **options: Any) -> Any:
        """Do what `Cache.get_or_set_many` does; a function that is no coroutine function is called in a thread."""
        return self._sync.get_or_set_many(keys_, self._awaitable(compute_missing), *args, **options)

    @like(Cache.memoize)
    def memoize(self, *args: Any, **options: Any) -> Memoizing:
        """Do what `Cache.memoize` does; a function that is no coroutine function becomes one, called in a thread."""
        decorate = self._sync.memoize(*args, **options)
        return cast("Memoizing", lambda function: decorate(self._awaitable(function)))

    def _awaitable(self, function: Any) -> Any:
        if not callable(function) or inspect.iscoroutinefunction(function):
            return function
        threads = self._threads

        @functools.wraps(function)
        async def called(*args: Any, **kwargs: Any) -> Any:
            found = await threads.run(partial(function, *args, **kwargs))
            return await found if inspect.isawaitable(found) else found  # of a lambda, say, that calls such a function

        decorated.add(called)
        return called


class AsyncDeque(Face[Deque[T]]):
    """A deque for coroutines: `deque.aio`."""

    getitem = reads(Deque[T].__getitem__)
    contains = reads(Deque.__contains__)
    peekleft = reads(Deque[T].peekleft)
    setitem = writes(Deque[T].__setitem__)
    delitem = writes(Deque.__delitem__)
    pop = writes(Deque[T].pop)
    peek = writes(Deque[T].peek)
    popleft = writes(Deque[T].popleft)
    append = writes(Deque[T].append)
    appendleft = writes(Deque[T].appendleft)
    extend = writes(Deque[T].extend)
    extendleft = writes(Deque[T].extendleft)
    insert = in_bulk(Deque[T].insert)
    remove = in_bulk(Deque[T].remove)
    rotate = in_bulk(Deque.rotate)
    reverse = in_bulk(Deque.reverse)
    clear = in_bulk(Deque.clear)
    count = reads_in_bulk(Deque.count)
    index = reads_in_bulk(Deque.index)
    length = reads_in_bulk(Deque.__len__)
    transact = transacts(Deque.transact)


class AsyncIndex(OfKeysAndValues[K, V], Face[Index[K, V]]):
    """An index for coroutines: `index.aio`."""

    get = reads(Index[K, V].get)
    getitem = reads(Index[K, V].__getitem__)
    contains = reads(Index.__contains__)
    setitem = writes(Index[K, V].__setitem__)
    delitem = writes(Index[K, V].__delitem__)
    setdefault = writes(Index[K, V].setdefault)
    pop = writes(Index[K, V].pop)
    popitem = writes(Index[K, V].popitem)
    peekitem = writes(Index[K, V].peekitem)
    push = writes(Index.push)
    pull = writes(Index.pull)
    update = in_bulk(Index.update)
    clear = in_bulk(Index.clear)
    length = reads_in_bulk(Index.__len__)
    keys = iterates(Index[K, V].keys)
    values = iterates(Index[K, V].values)
    items = iterates(Index[K, V].items)
    transact = transacts(Index.transact)


class AsyncFanoutCache(AsyncCache[K, V]):
    """A `FanoutCache` for coroutines; arguments as for `FanoutCache` and `AsyncCache`."""

    _KIND = FanoutCache

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        shards: int = 8,
        timeout: float = 0.010,
        disk: type[Disk] = Disk,
        *,
        max_threads: int = MAX_THREADS,
        executor: Executor | None = None,
        **settings: Unpack[Arguments],
    ) -> None:
        self._open_later(max_threads, executor, directory, shards, timeout, disk, **settings)

    @property
    def sync(self) -> FanoutCache[K, V]:
        """Return the cache behind this face; both use one handle."""
        found: FanoutCache[K, V] = self._sync
        return found

    @like(FanoutCache.cache)
    async def cache(self, *args: Any, **settings: Any) -> AsyncCache:
        """Return the face of a named cache; see `FanoutCache.cache`."""
        return AsyncCache.of(await self._threads.call(partial(self._sync.cache, *args, **settings)))

    @like(FanoutCache.deque)
    async def deque(self, *args: Any, **settings: Any) -> AsyncDeque:
        """Return the face of a named deque; see `FanoutCache.deque`."""
        return AsyncDeque(await self._threads.call(partial(self._sync.deque, *args, **settings)))

    @like(FanoutCache.index)
    async def index(self, name: str) -> AsyncIndex:
        """Return the face of a named index; see `FanoutCache.index`."""
        return AsyncIndex(await self._threads.call(partial(self._sync.index, name)))
