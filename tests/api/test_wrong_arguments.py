"""Arguments of a wrong kind: whatever is given for whichever of them, the error names it and says what is expected."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import (
    Averager,
    BoundedSemaphore,
    Cache,
    Deque,
    FanoutCache,
    Index,
    Lock,
    RLock,
    barrier,
    memoize_stampede,
    throttle,
)
from diskcache_like.errors import CacheError

from ..support.cache_kinds import few

WRONG: list[Any] = [None, 5, "x", [1], object(), -1, 1.5, {"a": 1}]
GOOD: dict[str, Any] = {
    "key": "k",
    "value": 1,
    "items": {"a": 1},
    "keys_": ["k"],
    "compute": dict,
    "compute_missing": dict.fromkeys,
    "index": 0,
    "times": 2,
}
ELSEWHERE = {"rotate", "train", "copy_to", "close", "fromcache"}  # what they take is tried in tests of their own
OWN_ERRORS = (CacheError, LookupError)  # these have a meaning, and tests of their own
OPERATORS = {"__getitem__", "__setitem__", "__delitem__", "__imul__", "__iadd__"}
NO_ARGUMENT = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def square(number: int = 1) -> int:
    return number * number


async def later(number: int = 1) -> int:
    return number * number


def try_all(call: Callable[[Any], object], name: str) -> None:
    """Make a call with each of the wrong values; those that it takes are none."""
    for value in WRONG:
        try:
            found = call(value)
            if isinstance(found, Iterator):
                list(found)
            if inspect.iscoroutine(found):
                asyncio.run(found)
        except OWN_ERRORS:
            pass
        except Exception as error:
            explained = rf"\b({name}( for key .*)?|value of key .*) (is|has) .*expected | is not in the deque$"
            if not re.search(explained, str(error)):
                raise AssertionError(f"{name}={value!r}: {error!r}") from error


def methods_of(kind: type) -> Iterator[tuple[str, inspect.Signature]]:
    """Yield each public method, and what it takes; of a FanoutCache only those that it does not have from Cache."""
    for name in dir(kind):
        method = getattr(kind, name)
        if kind is FanoutCache and method is getattr(Cache, name, None):
            continue
        if (name in OPERATORS or not name.startswith("_")) and name not in ELSEWHERE and callable(method):
            yield name, inspect.signature(method)


@pytest.mark.parametrize("make", [Cache, FanoutCache, Deque, Index, None], ids=str)
def test_every_argument_of_every_method(tmp_path: Path, make: Any) -> None:
    given = {} if make is Index else {"directory": tmp_path / "it"}
    with Cache(tmp_path / "cache") as cache:
        made: Any = cache.namespace("n") if make is None else make(*([] if given else [tmp_path / "it"]), **given)
        with made if isinstance(made, Cache) else made.cache:
            for method, signature in methods_of(type(made)):
                for name, parameter in signature.parameters.items():
                    if parameter.kind not in NO_ARGUMENT and name not in ("self", "retry", "default"):
                        try_all(partial(call_with, made, method, signature, name), name)


def call_with(made: Any, method: str, signature: inspect.Signature, name: str, value: Any) -> object:
    """Call a method with the value for one parameter, and good ones for those that it needs."""
    made.clear()
    made.extend([1, 2]) if isinstance(made, Deque) else made.__setitem__("k", 1)
    bound = signature.bind_partial()
    for each in signature.parameters.values():
        if each.name == name:
            bound.arguments[name] = value
        elif each.name == "self":
            bound.arguments["self"] = made
        elif each.default is each.empty and each.kind not in NO_ARGUMENT:
            bound.arguments[each.name] = GOOD.get(each.name, "n")
    found: object = getattr(type(made), method)(*bound.args, **bound.kwargs)
    return found


def test_every_argument_of_a_recipe(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        recipes: dict[Callable[..., Any], dict[str, Any]] = {
            throttle: {"cache": cache, "count": 5, "seconds": 1},
            barrier: {"cache": cache, "lock_factory": RLock},
            memoize_stampede: {"cache": cache, "expire": 5},
            cache.memoize: {},
        }

        def call(recipe: Any, name: str, function: Any, value: Any) -> object:
            cache.clear()
            return recipe(**{**recipes[recipe], name: value})(function)(1)

        for recipe in recipes:
            for name, parameter in inspect.signature(recipe).parameters.items():
                for function in (square, later, 5) if parameter.kind not in NO_ARGUMENT else ():
                    try_all(partial(call, recipe, name, function), f"({name}|count|seconds|function)")
        for make in (Lock, RLock, BoundedSemaphore, Averager):
            for name in ("cache", "expire", "tag"):
                try_all(lambda value, make=make, name=name: make(**{"cache": cache, "key": "k", name: value}), name)  # type: ignore[misc]
        for lock in (Lock(cache, "a"), RLock(cache, "b"), BoundedSemaphore(cache, "c", 9)):
            for wait in (lock.acquire, lock.try_acquire):
                for value in (None, "x", [1]):
                    with pytest.raises(TypeError, match=r"timeout is .*, expected seconds"):
                        wait(timeout=value)  # type: ignore[arg-type]
        try_all(lambda value: Averager(cache, "average").add(value), "value")


MISTAKES: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "iterqueue": (lambda c: c.iterqueue(skip=None), TypeError, "skip is None, expected how many pairs"),
    "iterqueue of fewer": (lambda c: c.iterqueue(skip=-1), ValueError, "skip is -1, expected how many pairs"),
    "stats": (lambda c: c.stats(None), ValueError, "enable is None, expected True or False"),
    "fromcache": (lambda c: Deque.fromcache(5), TypeError, "cache is 5, expected a Cache, FanoutCache or"),  # type: ignore[arg-type]
    "index": (lambda c: Index.fromcache(None), TypeError, "cache is None, expected a Cache"),  # type: ignore[arg-type]
    "update": (lambda c: Index.fromcache(c).update("5"), TypeError, "other is '5', expected a mapping, or"),
    "update in pairs": (lambda c: Index.fromcache(c).update([(1,)]), ValueError, r"other has \(1,\), expected \(key, "),
    "barrier": (lambda c: barrier(c, None), TypeError, "lock_factory is None, expected Lock, RLock"),  # type: ignore[arg-type]
    "throttle": (lambda c: throttle(c, 1, 1, time_func=None), TypeError, "time_func is None, expected a function"),  # type: ignore[arg-type]
    "memoize": (lambda c: c.memoize(key=5), TypeError, "key is 5, expected a function of the call's arguments"),
    "decorate": (lambda c: c.memoize(name="n")(5), TypeError, "function is 5, expected a function to decorate"),
    "stampede": (lambda c: memoize_stampede(None, 5), TypeError, "cache is None, expected a Cache"),  # type: ignore[arg-type]
    "average": (lambda c: Averager(c, "new").add(None), TypeError, "value is None, expected a number"),  # type: ignore[arg-type]
    "average of nothing": (lambda c: Averager(None, "new"), TypeError, "cache is None, expected a Cache"),  # type: ignore[arg-type]
}


@few
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained_and_changes_nothing(cache: Cache, mistake: str) -> None:
    call, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message):
        call(cache)
    assert len(cache) == 0


def test_an_expiry_by_another_name_is_recognised_everywhere(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        takers = [getattr(cache, name) for name, given in methods_of(Cache) if "expire" in given.parameters]
        assert {cache.touch, cache.push, cache.open, cache.set, cache.memoize} <= {*takers}
        for taker in (*takers, Lock, RLock, BoundedSemaphore, Averager, throttle, barrier, memoize_stampede):
            needed = [each.name for each in inspect.signature(taker).parameters.values() if each.default is each.empty]
            given = {name: GOOD.get(name, 1) for name in needed if name not in ("others", "options")}
            with pytest.raises(TypeError, match=rf"^{taker.__name__} has no argument 'ttl': did you mean 'expire'\?"):
                taker(**given, ttl=3)
