"""Recipes: averages, and functions that are called not too often, not at once, or ahead of time.

The locks are in `locks`, `memoize_stampede` is in `stampede`; DiskCache has all of them in a module of this name.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from .cache import Cache
from .coherence.sleepers import pauses
from .errors import Timeout
from .locks import BoundedSemaphore, Lock, RLock
from .memoize import function_name
from .packing import Expiry
from .places import Place
from .stampede import memoize_stampede

P = ParamSpec("P")
R = TypeVar("R")

MOMENT = 1e-6  # seconds; waits below this are over, since clocks cannot tell them


class Averager:
    """Keep a running average under one key of a cache."""

    def __init__(self, cache: Cache, key: Any, expire: Expiry | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def add(self, value: float) -> None:
        """Count `value` in. Atomic."""
        with Place(self._cache, self._key).atomic(None):
            total, count = self._cache.get(self._key, default=(0.0, 0))
            self._cache.set(self._key, (total + value, count + 1), expire=self._expire, tag=self._tag, retry=True)

    def get(self) -> float | None:
        """Return the average, or None if nothing was counted."""
        return _average(*self._cache.get(self._key, default=(0.0, 0), retry=True))

    def pop(self) -> float | None:
        """Return the average and start again. Atomic."""
        return _average(*self._cache.pop(self._key, default=(0.0, 0), retry=True))


def _average(total: float, count: int) -> float | None:
    return None if count == 0 else total / count


class _Bucket:
    """Tokens that flow in at a steady rate and are taken out one per call, kept as [moment, number of tokens]."""

    def __init__(
        self, place: Place, count: float, seconds: float, expire: Expiry | None, tag: Any, now: Callable[[], float]
    ) -> None:
        self._place = place
        self._count = count
        self._rate = count / seconds
        self._expire = expire
        self._tag = tag
        self._now = now

    def take(self, wait: float | None) -> float:
        """Take a token and return 0, or return the seconds until there is one; Timeout after `wait` seconds."""
        cache, key = self._place.cache, self._place.key
        with self._place.atomic(wait):
            now = self._now()
            found: tuple[float, float] = cache.get(key, (now, self._count))
            last, tokens = found
            # A clock that was set back, or counts from another moment now, must not make anybody wait for years.
            tokens = min(self._count, tokens + max(now - last, 0.0) * self._rate)
            delay = max(1 - tokens, 0.0) / self._rate
            if delay >= MOMENT:
                if now < last:
                    cache.set(key, (now, tokens), expire=self._expire, tag=self._tag, retry=True)
                return delay
            cache.set(key, (now, max(tokens - 1, 0.0)), expire=self._expire, tag=self._tag, retry=True)
            return 0.0


def throttle(
    cache: Cache,
    count: float,
    seconds: float,
    name: str | None = None,
    expire: Expiry | None = None,
    tag: Any = None,
    time_func: Callable[[], float] = time.time,
    sleep_func: Callable[[float], Any] = time.sleep,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function be called `count` times in `seconds` seconds, in all processes together.

    A call that comes too early waits with `sleep_func`; after a pause, up to `count` calls may follow at once.
    `time_func` must tell the same time in all processes. `name`: key instead of one made from the function's name.
    `expire` and `tag` are the entry's. Coroutine functions wait with `asyncio.sleep`, or with a `sleep_func` of their
    own, which may be one too. Raises ValueError unless `count` is 1 or more and `seconds` more than 0 and finite.
    """
    if not (count >= 1 and 0 < seconds < math.inf):
        raise ValueError(
            f"count is {count!r} and seconds is {seconds!r}, expected 1 or more, and more than 0 and finite"
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        key = (function_name(function), "throttle") if name is None else name
        bucket = _Bucket(Place(cache, key), count, seconds, expire, tag, time_func)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                await _pass(bucket, sleep_func)
                return await function(*args, **kwargs)

            return cast("Callable[P, R]", asynchronous)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            while delay := bucket.take(None):
                sleep_func(delay)
            return function(*args, **kwargs)

        return wrapper

    return decorate


async def _pass(bucket: _Bucket, sleep: Callable[[float], Any]) -> None:
    """Take a token out of a bucket without blocking the event loop."""
    import asyncio

    for pause in pauses():
        try:
            delay = bucket.take(0)
        except Timeout:  # another one writes just now
            await asyncio.sleep(pause)
            continue
        if not delay:
            return
        waited = (asyncio.sleep if sleep is time.sleep else sleep)(delay)
        if inspect.isawaitable(waited):
            await waited


def barrier(
    cache: Cache,
    lock_factory: Callable[..., Any],
    name: str | None = None,
    expire: Expiry | None = None,
    tag: Any = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets calls of a function run one after another, in all processes together.

    `lock_factory`: Lock, RLock, BoundedSemaphore or what is called like them, as `lock_factory(cache, key, expire=...,
    tag=...)`. `name`: key instead of one made from the function's name. With `expire`, a call that took longer raises
    LeaseLost at its end. For coroutine functions the lock must have `async with`, or TypeError is raised.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        key = (function_name(function), "barrier") if name is None else name
        lock = lock_factory(cache, key, expire=expire, tag=tag)

        if inspect.iscoroutinefunction(function):
            if not hasattr(lock, "__aenter__"):
                raise TypeError(f"{lock_factory!r} makes locks without `async with`, which a coroutine function needs")

            @functools.wraps(function)
            async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with lock:
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", asynchronous)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock:
                return function(*args, **kwargs)

        return wrapper

    return decorate


__all__ = ["Averager", "BoundedSemaphore", "Lock", "RLock", "barrier", "memoize_stampede", "throttle"]
