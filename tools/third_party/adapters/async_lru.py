"""The interface of async-lru on `AsyncCache.memoize`, as far as its tests ask for it: each function has a namespace.

There are no tasks to count or to close. `maxsize` is only reported, since the limit of a cache is in bytes.
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import tempfile
from collections.abc import Callable
from functools import _CacheInfo
from typing import Any, Generic, TypedDict, TypeVar

from diskcache_like import Cache

_R = TypeVar("_R")

directory = tempfile.TemporaryDirectory(prefix="async-lru-")
cache = Cache(directory.name)
names = itertools.count()
atexit.register(cache.close)


class _LRUCacheWrapper(Generic[_R]):
    """The tests name it in annotations."""


class AlruCacheLoopResetWarning(UserWarning):
    """It is never given: a result may be used in any event loop."""


class _CacheParameters(TypedDict):
    typed: bool
    maxsize: int | None
    tasks: int
    closed: bool


def alru_cache(
    maxsize: Any = 128, typed: bool = False, *, ttl: float | None = None, key: Callable[..., Any] | None = None
) -> Any:
    """Return a decorator, or the decorated function if that is given first."""
    if maxsize is not None and not isinstance(maxsize, int):
        if not callable(maxsize) and not hasattr(maxsize, "func"):
            raise NotImplementedError(f"{maxsize!r} is no function")
        return alru_cache(typed=typed, ttl=ttl, key=key)(maxsize)

    def decorate(function: Any) -> Any:
        if not inspect.iscoroutinefunction(getattr(function, "func", function)):
            raise RuntimeError(f"{function!r} is no coroutine function")
        return _decorated(function, maxsize, typed, ttl, key)

    return decorate


def _decorated(
    function: Any, maxsize: int | None, typed: bool, ttl: float | None, key: Callable[..., Any] | None
) -> Any:
    face = cache.aio.namespace(str(next(names)))
    space = face.sync
    name = None if hasattr(function, "__qualname__") else "function"  # a partial has none
    memoized: Any = face.memoize(name, typed, ttl, key=key)(function)
    counts = memoized.cache_info
    before = [0, 0]

    def cache_info() -> _CacheInfo:
        info = counts()
        return _CacheInfo(info.hits - before[0], info.misses - before[1], maxsize, sum(1 for _ in space))

    def cache_clear() -> None:
        space.clear()
        before[:] = counts()[:2]

    def cache_contains(*args: Any, **kwargs: Any) -> bool:
        return memoized.__cache_key__(*args, **kwargs) in space

    memoized.cache_info, memoized.cache_clear, memoized.cache_contains = cache_info, cache_clear, cache_contains
    memoized.cache_invalidate = memoized.invalidate
    memoized.cache_parameters = lambda: _CacheParameters(typed=typed, maxsize=maxsize, tasks=0, closed=False)
    return memoized
