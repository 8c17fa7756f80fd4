"""Memoize: a function's results kept in a cache, each under the key of its call (`call_keys`)."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sized
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast, overload

from ..coherence.futex import pauses
from ..encoding.tags import pack_tags
from ..entries.atomic_key import AtomicKey
from ..entries.row_codec import Expiry, seconds_of
from ..errors import Timeout
from .call_keys import CallKey, CallKeys, decorated

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

_MISSING = object()

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")


class Results(Sized, Protocol):
    """What memoizing needs of a cache."""

    @property
    def get(self) -> Callable[..., Any]:
        """Return `Cache.get`."""

    def set(self, key: Any, value: Any, expire: Expiry | None, *, tag: Any, retry: bool) -> bool:
        """Store a result."""

    def delete(self, key: Any, retry: bool) -> bool:
        """Remove a result."""


class CacheInfo(NamedTuple):
    """What `cache_info` returns."""

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class Memoized(Protocol[P, R_co]):
    """What the decorator returns: a function with the same signature, and more."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """Return the function itself."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the cached result, or call the function and keep what it returns."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self: Memoized[Concatenate[S, Q], T], instance: S, owner: type | None = None, /) -> Memoized[Q, T]: ...

    def __cache_key__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the key under which the result of a call with these arguments is kept."""

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the result of a call with these arguments; return whether there was one. Atomic."""

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, maxsize and currsize, as `functools.lru_cache` names them.

        Hits and misses are the calls of this one wrapper in this process. `maxsize` is None, since no number of entries
        is the limit; `currsize` is the number of entries in the whole cache, of all functions and processes.
        """


class MemoizedMethod(functools.partial[Any]):
    """A memoized function whose first parameter is `self`, as its class sees it.

    Functions stay plain functions, which are called faster; only attributes of a method can be bound no other way.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundMethod(self.func, instance)

    def __reduce__(self) -> Any:
        return self.func.__qualname__  # as a function is pickled: by name


class BoundMethod(functools.partial[Any]):
    """A memoized method of an object; what it offers takes the arguments of a call on that object."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # the function's, not that of this class
        return self.func.__doc__

    @property
    def __module__(self) -> str:  # type: ignore[override]
        return self.func.__module__

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return types.MethodType(self.func.__wrapped__, *self.args)  # type: ignore[attr-defined]

    def __cache_key__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func.__cache_key__(*self.args, *args, **kwargs)  # type: ignore[attr-defined]

    def invalidate(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the result of a call with these arguments, as `Memoized.invalidate` does."""
        return bool(self.func.invalidate(*self.args, *args, **kwargs))  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        """Compare as bound methods do: the same function of the same object."""
        return isinstance(other, BoundMethod) and self.func is other.func and self.args[0] is other.args[0]

    def __hash__(self) -> int:
        return hash((self.func, id(self.args[0])))

    def __repr__(self) -> str:
        return f"<memoized method {self.func.__qualname__} of {self.args[0]!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.args[0], self.func.__name__)  # as a bound method is pickled


def check_lifetime(expire: Any, tag: Any) -> None:
    """Raise ExpiryError or KeyEncodeError where a function is decorated, as storing a result would."""
    seconds_of(expire)
    pack_tags(tag)


def memoize(
    cache: Results, call_keys: CallKeys, expire: Expiry | None, tag: Any, atomic_key: Callable[[Any], AtomicKey]
) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator that keeps a function's results, but no exceptions, in `cache`; see `Cache.memoize`."""
    if callable(call_keys.name):
        raise TypeError("name cannot be a function: write @cache.memoize() with parentheses")
    check_lifetime(expire, tag)
    keeps = seconds_of(expire) > 0

    def keep(key: Any, result: Any) -> None:
        if keeps:
            cache.set(key, result, expire, tag=tag, retry=True)

    def decorate(function: Callable[P, R]) -> Memoized[P, R]:
        call_key, compute = call_keys.of(function), cast("Callable[..., Any]", function)
        get = cache.get
        hits = misses = 0

        @functools.wraps(function)
        def calling(*args: Any, **kwargs: Any) -> Any:
            nonlocal hits, misses
            key = call_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is not _MISSING:
                hits += 1
                return result
            misses += 1
            result = compute(*args, **kwargs)
            keep(key, result)
            return result

        @functools.wraps(function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            nonlocal hits, misses
            key = call_key(*args, **kwargs)
            result = get(key, _MISSING)
            if result is not _MISSING:
                hits += 1
                return result
            misses += 1
            result = await compute(*args, **kwargs)
            await when_free(atomic_key(key), lambda: keep(key, result))
            return result

        wrapper = awaiting if inspect.iscoroutinefunction(function) else calling
        return as_memoized(wrapper, cache, call_key, lambda: (hits, misses))

    return decorate


async def when_free(key: AtomicKey, write: Callable[[], object]) -> None:
    """Run `write` as a transaction on the key's shard as soon as that is free.

    If `write` itself waited, it would block the event loop for as long as another process holds the lock.
    """
    import asyncio

    for seconds in pauses():
        try:
            with key.transaction(0):
                write()
            return
        except Timeout:
            await asyncio.sleep(seconds)


def as_memoized(
    wrapper: Any, cache: Results, call_key: CallKey, counts: Callable[[], tuple[int, int]]
) -> Memoized[P, R]:
    """Give a wrapper, made with functools.wraps, what `Memoized` promises; `counts` returns hits and misses."""

    def cache_info() -> CacheInfo:
        return CacheInfo(*counts(), None, len(cache))

    def invalidate(*args: Any, **kwargs: Any) -> bool:
        return cache.delete(call_key(*args, **kwargs), retry=True)

    wrapper.__cache_key__, wrapper.cache_info, wrapper.invalidate = call_key, cache_info, invalidate
    memoized = wrapper
    if _is_method(wrapper.__wrapped__):
        memoized = MemoizedMethod(wrapper)
        memoized.__dict__ = wrapper.__dict__  # one dictionary: bound methods see what is set on the unbound one
        functools.update_wrapper(memoized, wrapper.__wrapped__)
    decorated.add(memoized)
    return cast("Memoized[P, R]", memoized)


def _is_method(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount][:1] == ("self",)
