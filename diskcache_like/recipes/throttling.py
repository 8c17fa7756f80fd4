"""Limit how often functions are called, or how many at once, in all processes together."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

from ..cache import Cache, atomic_key, refuse_in_transaction_of_face, without_face
from ..coherence.futex import pauses
from ..encoding.record import Metadata
from ..entries.atomic_key import Decision
from ..entries.loading import ENOVAL
from ..errors import Timeout, foreign
from ..memoizing.identities import function_name
from ..settings.lifetimes import Expiry
from ..settings.misuse import NoOthers, called, unexpected
from ..system.tasks import sleep

if TYPE_CHECKING:
    from ..aio import AsyncCache


P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 1e300  # seconds; no throttle stored a later moment
MOMENT = 1e-6  # seconds; a shorter wait counts as over, since clocks cannot measure it


class _Bucket:
    """Tokens that flow in at a steady rate and are taken out one per call, kept as [moment, number of tokens]."""

    def __init__(
        self, cache: Cache | AsyncCache, key: Any, expire: Expiry | None, tag: Any, rate: tuple[float, float]
    ) -> None:
        self._cache = without_face(cache)
        self._key = key
        self._expire = expire
        self._tag = tag
        count, seconds = rate
        self._count = float(count)
        self._rate = self._count / seconds
        self._atomic = atomic_key(self._cache, key)

    def take(self, now: Callable[[], float], wait: float | None) -> float:
        """Take a token and return 0, or return the seconds until there is one; raise Timeout after `wait` seconds."""
        delay = 0.0

        def decide(found: Any, _: Metadata) -> Decision:
            nonlocal delay
            moment = float(now())
            last, tokens = (moment, self._count) if found is ENOVAL else self._kept(found)
            # A clock that was set back, or that counts from another moment, must not make anybody wait for years.
            tokens = min(self._count, max(tokens, 0.0) + max(moment - last, 0.0) * self._rate)
            delay = max(1 - tokens, 0.0) / self._rate
            if delay < MOMENT:
                delay, tokens = 0.0, max(tokens - 1, 0.0)
            elif moment >= last:
                return None
            return (moment, tokens), self._atomic.metadata(self._expire, self._tag)

        self._atomic.update(decide, wait)
        return delay

    def _kept(self, found: Any) -> tuple[float, float]:
        """Return the moment and the tokens that an entry keeps."""
        match found:
            case [Real() as last, Real() as tokens]:
                with suppress(OverflowError):
                    kept = float(last), float(tokens)
                    if abs(kept[0]) < LARGEST:
                        return kept
        raise foreign("throttle", self._key, found)

    async def take_async(self, now: Callable[[], float]) -> float:
        """Do what `take` does, without blocking the event loop."""
        for pause in pauses():
            try:
                return self.take(now, 0)
            except Timeout:  # somebody else is writing
                refuse_in_transaction_of_face(self._cache, f"throttle {self._key!r}")
                await sleep(pause)
        raise AssertionError("pauses never end")


def throttle(
    cache: Cache | AsyncCache,
    count: float,
    seconds: float,
    name: str | None = None,
    expire: Expiry | None = None,
    tag: Any = None,
    time_func: Callable[[], float] = time.time,
    sleep_func: Callable[[float], Any] = time.sleep,
    **others: Unpack[NoOthers],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function be called `count` times in `seconds` seconds, in all processes together.

    A call that comes too early waits with `sleep_func`; after a pause, up to `count` calls may follow at once.
    `time_func` must tell the same time in all processes, and must not use the cache. `name`: key instead of one made
    from the function's name. `expire` and `tag` are the entry's. Coroutine functions wait with `asyncio.sleep`, or with
    a `sleep_func` of their own, which may be one too. Raises ValueError unless `count` is 1 or more and `seconds` more
    than 0 and finite.
    """
    if others:
        raise unexpected(throttle, others)
    called("time_func", time_func, "a function that returns seconds")
    called("sleep_func", sleep_func, "a function that waits for the seconds that it gets")
    given: tuple[Any, Any] = count, seconds
    if not (all(isinstance(each, Real) for each in given) and count >= 1 and 0 < seconds < math.inf):
        raise ValueError(
            f"count is {count!r} and seconds is {seconds!r}, expected a number from 1, and one above 0 that is finite"
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        called("function", function, "a function to decorate")
        key = (function_name(function), "throttle") if name is None else name
        bucket = _Bucket(cache, key, expire, tag, (count, seconds))
        return _throttled(function, bucket, time_func, sleep_func)

    return decorate


def _throttled(
    function: Callable[P, R], bucket: _Bucket, time_func: Callable[[], float], sleep_func: Callable[[float], Any]
) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
            while delay := await bucket.take_async(time_func):
                waited = (sleep if sleep_func is time.sleep else sleep_func)(delay)
                if inspect.isawaitable(waited):
                    await waited
            return await function(*args, **kwargs)

        return cast("Callable[P, R]", asynchronous)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        while delay := bucket.take(time_func, None):
            sleep_func(delay)
        return function(*args, **kwargs)

    return wrapper


def barrier(
    cache: Cache | AsyncCache,
    lock_factory: Callable[..., Any],
    name: str | None = None,
    expire: Expiry | None = None,
    tag: Any = None,
    **others: Unpack[NoOthers],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets calls of a function run one after another, in all processes together.

    `lock_factory`: Lock, RLock, BoundedSemaphore or what is called like them, as `lock_factory(cache, key, expire=...,
    tag=...)`. `name`: key instead of one made from the function's name. With `expire`, a call that took longer raises
    LeaseLost at its end. For coroutine functions the lock must have `async with`, or TypeError is raised.
    """
    if others:
        raise unexpected(barrier, others)
    called("lock_factory", lock_factory, "Lock, RLock, BoundedSemaphore or a function that makes a lock like them")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        called("function", function, "a function to decorate")
        key = (function_name(function), "barrier") if name is None else name
        return _locked(function, lock_factory(cache, key, expire=expire, tag=tag))

    return decorate


def _locked(function: Callable[P, R], lock: Any) -> Callable[P, R]:
    if inspect.iscoroutinefunction(function):
        if not hasattr(lock, "__aenter__"):
            raise TypeError(f"{lock!r} is a lock without `async with`, which a coroutine function needs")

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
