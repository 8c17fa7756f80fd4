"""Memoize: a function's results kept in a cache, each under the key of its call (`call_keys`)."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sized
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast, overload

from ..entries.loading import ENOVAL
from ..settings.lifetimes import Expiry
from ..settings.misuse import called
from .call_keys import CallKey, CallKeys
from .computing import Computation
from .identities import decorated
from .rules import Computing, Rules, StoredError, hidden_tag
from .steps import take, take_async
from .templates import template
from .why import Why

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

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function with these arguments, whatever there is, and keep its result."""

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the result that is there for these arguments, or None, without calling the function."""

    def why(self, *args: P.args, **kwargs: P.kwargs) -> Why:
        """Tell why a call with these arguments has no result, as `Cache.why` does, and which call is most similar.

        Up to 1,000 results of the function are compared.
        """

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return what `__cache_key__` does."""

    def cache_clear(self) -> int:
        """Remove all results of this function, those of other processes too; return how many there were."""

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

    def refresh(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method anew, as `Memoized.refresh` does."""
        return self.func.refresh(*self.args, *args, **kwargs)  # type: ignore[attr-defined]

    def peek(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result that is there, as `Memoized.peek` does."""
        return self.func.peek(*self.args, *args, **kwargs)  # type: ignore[attr-defined]

    def why(self, *args: Any, **kwargs: Any) -> Why:
        """Tell why a call has no result, as `Memoized.why` does."""
        return cast("Why", self.func.why(*self.args, *args, **kwargs))  # type: ignore[attr-defined]

    key = __cache_key__

    def __eq__(self, other: object) -> bool:
        """Compare as bound methods do: the same function of the same object."""
        return isinstance(other, BoundMethod) and self.func is other.func and self.args[0] is other.args[0]

    def __hash__(self) -> int:
        return hash((self.func, id(self.args[0])))

    def __repr__(self) -> str:
        return f"<memoized method {self.func.__qualname__} of {self.args[0]!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.args[0], self.func.__name__)  # as a bound method is pickled


class _Calls:
    """The calls of a memoized function: their keys, and how what is missing is computed.

    The function's name is known at the first call: its module has it under that name only after it was decorated.
    """

    def __init__(self, cache: Any, function: Callable[..., Any], call_keys: CallKeys, rules: Rules) -> None:
        self._cache = cache
        self._name_of, self._make = call_keys.name_of(function), call_keys.of(function, cache._fixed)
        self._parameters = partial(call_keys.parameters, function)  # not called before `why` is
        self._compute = _with_tags(function, rules.tags)
        self._take = take_async if inspect.iscoroutinefunction(function) else take
        self.computation = Computation(cache, replace(rules, tags=rules.tags if callable(rules.tags) else None))
        self.key: CallKey = self._first_key
        self.hits = 0

    def _first_key(self, *args: Any, **kwargs: Any) -> Any:
        self.begin()
        return self.key(*args, **kwargs)

    def begin(self) -> bytes:
        """Name the function, if that is not done yet, and return the hidden tag of its results."""
        computation = self.computation
        if not computation.scope:
            scope = self._name_of()
            computation.rules = replace(computation.rules, hidden=hidden_tag(scope))
            self.key, computation.scope = self._make(scope), scope
        return computation.rules.hidden

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Computing], Any]:
        """Return what computes the result of a call."""
        return partial(self._compute, args, kwargs)

    def extras(self) -> dict[str, Callable[..., Any]]:
        """Return what a memoized function has beside being called."""

        def refresh(*args: Any, **kwargs: Any) -> Any:
            key = self.key(*args, **kwargs)
            return self._take(self.computation.refresh(key, self.call(args, kwargs)))

        def peek(*args: Any, **kwargs: Any) -> Any:
            return self.computation.peek(self.key(*args, **kwargs))

        def why(*args: Any, **kwargs: Any) -> Why:
            hidden = self.begin()
            return cast("Why", self._cache._why(self.key(*args, **kwargs), hidden, self._parameters()))

        def key(*args: Any, **kwargs: Any) -> Any:
            return self.key(*args, **kwargs)

        def cache_clear() -> int:
            return cast("int", self._cache._evict_hidden(self.begin()))

        return {"refresh": refresh, "peek": peek, "why": why, "key": key, "cache_clear": cache_clear}


def memoize(cache: Any, call_keys: CallKeys, rules: Rules) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator that keeps a function's results in `cache`; see `Cache.memoize`."""
    if callable(call_keys.name):
        raise TypeError("name cannot be a function: write @cache.memoize() with parentheses")

    def decorate(function: Callable[P, R]) -> Memoized[P, R]:
        _check_function(function)
        calls = _Calls(cache, function, call_keys, rules)
        wrapper: Any = (_awaiting if inspect.iscoroutinefunction(function) else _calling)(function, calls, cache)
        extras, computation = calls.extras(), calls.computation
        return as_memoized(
            wrapper, cache, extras["key"], lambda: (calls.hits + computation.hits, computation.misses), extras
        )

    return decorate


def _nothing(_: Any) -> Any:
    return ENOVAL


def _calling(function: Callable[..., Any], calls: _Calls, cache: Any) -> Callable[..., Any]:
    computation = calls.computation
    hot = _nothing if computation.rules.looks_at_hits else cache._hot_value

    @functools.wraps(function)
    def calling(*args: Any, **kwargs: Any) -> Any:
        key = calls.key(*args, **kwargs)
        result = hot(key)
        if result is ENOVAL or type(result) is StoredError:
            result, place = computation.look(key)
            if result is ENOVAL or type(result) is StoredError:
                return computation.compute(key, calls.call(args, kwargs), place)
        calls.hits += 1
        return result

    return calling


def _awaiting(function: Callable[..., Any], calls: _Calls, cache: Any) -> Callable[..., Any]:
    computation = calls.computation
    hot = _nothing if computation.rules.looks_at_hits else cache._hot_value

    @functools.wraps(function)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        key = calls.key(*args, **kwargs)
        result = hot(key)
        if result is ENOVAL or type(result) is StoredError:
            result = await computation.find_async(key)
            if result is ENOVAL:
                return await take_async(computation.steps(key, calls.call(args, kwargs)))
        calls.hits += 1
        return result

    return awaiting


def _check_function(function: Any) -> None:
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise TypeError(f"memoize got a {kind}: write @{kind} above it, so that it gets the function")
    called("function", function, "a function to decorate")


def _with_tags(function: Callable[..., Any], tags: Any) -> Callable[..., Any]:
    """Return a function of a call's arguments and its `Computing`, which gets the tags that the arguments make."""
    if tags is None or callable(tags):
        return lambda args, kwargs, _: function(*args, **kwargs)
    made = [template(function, tag) if isinstance(tag, str) and "{" in tag else tag for tag in tags]
    if not any(map(callable, made)):
        fixed = list(tags)

        def with_fixed(args: Any, kwargs: Any, context: Computing) -> Any:
            context.tags = fixed
            return function(*args, **kwargs)

        return with_fixed

    def with_made(args: Any, kwargs: Any, context: Computing) -> Any:
        context.tags = [tag(*args, **kwargs) if callable(tag) else tag for tag in made]
        return function(*args, **kwargs)

    return with_made


def as_memoized(
    wrapper: Any,
    cache: Results,
    call_key: CallKey,
    counts: Callable[[], tuple[int, int]],
    extras: dict[str, Callable[..., Any]],
) -> Memoized[P, R]:
    """Give a wrapper, made with functools.wraps, what `Memoized` promises; `counts` returns hits and misses."""

    def cache_info() -> CacheInfo:
        return CacheInfo(*counts(), None, len(cache))

    def invalidate(*args: Any, **kwargs: Any) -> bool:
        return cache.delete(call_key(*args, **kwargs), retry=True)

    wrapper.__cache_key__, wrapper.cache_info, wrapper.invalidate = call_key, cache_info, invalidate
    wrapper.__dict__.update(extras)
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
