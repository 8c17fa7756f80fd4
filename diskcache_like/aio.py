"""The asynchronous classes: caches, deques and indexes whose operations are awaited (`operations/faces`)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from .cache import Cache
from .fanout import FanoutCache
from .operations.call_keys import decorated
from .operations.faces import Face, face_of
from .persistent import Deque, Index
from .system.blocking import WouldBlock, block
from .system.threads import MAX_THREADS, Threads, in_new_thread

if TYPE_CHECKING:
    from .tier.tier import Tier

CALLS_ON_LOOPS = True  # for `may_block`


@face_of(Cache)
class AsyncCache(Face):
    """A cache for coroutines: the operations of `Cache`, awaited, none of which blocks the event loop.

    Arguments as for `Cache`, and `max_threads`: how many threads readers, writers and functions that compute may each
    have, 4 by default; `executor`: where all of them run instead. `async with` opens it in a thread and closes it;
    without that its first use opens it, and blocks. `cache.aio` is that of an open cache. A cancelled call has happened
    or has not when CancelledError is raised; a timeout is the cache's. Raises what `Cache` raises.
    """

    _KIND: type[Cache] = Cache

    def __init__(
        self, *args: Any, max_threads: int = MAX_THREADS, executor: Executor | None = None, **settings: Any
    ) -> None:
        self._opened = partial(self._KIND, *args, **settings)
        self._max_threads, self._executor = max_threads, executor

    def __getattr__(self, name: str) -> Any:
        if name not in ("_sync", "_threads", "_transactions", "_writes_slowly", "_get"):
            hint = "; the cache behind it has: use .sync" if hasattr(self._KIND, name) else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}", name=name, obj=self)
        self._take(block(self._opened))  # used before `async with` has opened it
        return getattr(self, name)

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

    @classmethod
    def of(cls, cache: Cache) -> Self:
        """Return the face of an open cache."""
        face = cls.__new__(cls)
        face._adopt(cache)
        return face

    async def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
        *,
        mmap: bool | None = None,
    ) -> Any:
        """Do what `Cache.get` does."""  # the hot path: a method that the table makes takes half as long again
        if not self._transactions:
            try:
                return self._get(key, default, read, expire_time, tag, retry, mmap=mmap)
            except WouldBlock:
                pass
        return await self._read(partial(self._get, key, default, read, expire_time, tag, retry, mmap=mmap))

    @property
    def remote(self) -> Tier:
        """Return the server's side of a cache with `remote=`; see `Cache.remote`."""
        found: Tier = self._sync.remote
        return found

    def namespace(self, name: str) -> Self:
        """Return the face of a namespace; see `Cache.namespace`."""
        return type(self).of(self._sync.namespace(name))

    def get_or_set(self, key: Any, compute: Callable[..., Any], *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        """Do what `Cache.get_or_set` does; a function that is no coroutine function is called in a thread."""
        found: Coroutine[Any, Any, Any] = self._sync.get_or_set(key, self._awaitable(compute), *args, **options)
        return found

    def memoize(self, *args: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """Do what `Cache.memoize` does; a function that is no coroutine function becomes one, called in a thread."""
        decorate = self._sync.memoize(*args, **options)
        return lambda function: decorate(self._awaitable(function))

    def _awaitable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function) or inspect.iscoroutinefunction(function):
            return function
        threads = self._threads

        @functools.wraps(function)
        async def called(*args: Any, **kwargs: Any) -> Any:
            found = await threads.run(partial(function, *args, **kwargs))
            return await found if inspect.isawaitable(found) else found  # of a lambda, say, that calls such a function

        decorated.add(called)
        return called

    def open(self, *args: Any, **kwargs: Any) -> AbstractAsyncContextManager[AsyncStream]:
        """Open the bytes of a key as a stream, as `Cache.open` does; `async with`, then `await` its methods."""
        return AsyncStream(self._threads, partial(self._sync.open, *args, **kwargs))


@face_of(FanoutCache)
class AsyncFanoutCache(AsyncCache):
    """A `FanoutCache` for coroutines; arguments as for `FanoutCache` and `AsyncCache`."""

    _KIND = FanoutCache

    async def cache(self, *args: Any, **settings: Any) -> AsyncCache:
        """Return the face of a named cache; see `FanoutCache.cache`."""
        return AsyncCache.of(await self._threads.call(partial(self._sync.cache, *args, **settings)))

    async def deque(self, *args: Any, **settings: Any) -> AsyncDeque:
        """Return the face of a named deque; see `FanoutCache.deque`."""
        return AsyncDeque(await self._threads.call(partial(self._sync.deque, *args, **settings)))

    async def index(self, name: str) -> AsyncIndex:
        """Return the face of a named index; see `FanoutCache.index`."""
        return AsyncIndex(await self._threads.call(partial(self._sync.index, name)))


@face_of(Deque)
class AsyncDeque(Face):
    """A deque for coroutines: `deque.aio`."""


@face_of(Index)
class AsyncIndex(Face):
    """An index for coroutines: `index.aio`."""


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
