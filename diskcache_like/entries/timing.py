"""Timing: with `metrics_level="full"` the calls below the hot layer are timed, and one in 61 of the hits in it.

A call is timed by putting another function in the place of a method of the object that has it, so that nothing costs
anything where times are not wanted.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from ..coherence.counts import FULL, TIMES_AT, Counts
from .hot import NEGATIVE_HIT, HotLayer
from .loading import Loader

SAMPLE: Final = 61  # a prime, so that it does not fall in step with a loop of the program
_CALLS: Final = {"put": "set", "put_many": "set", "push": "set", "update": "set", "remove": "delete"}  # of a store

Call = Callable[..., Any]


def time_calls(counts: Counts, loader: Loader, hot: HotLayer, stores: Any, locks: Any) -> Callable[[Any], Any]:
    """Time the calls of a cache's parts, or stop that, as the level says; return the `get` of its hot entries.

    `stores` have the calls that write, `locks` those that take the write lock.
    """
    is_wanted = counts.level == FULL
    for owner, name, kind in (
        *((store, name, kind) for store in stores for name, kind in _CALLS.items() if hasattr(store, name)),
        *((lock, "acquire", "lock") for lock in locks),
    ):
        _replace(owner, name, functools.partial(_timed, counts, kind) if is_wanted else None)
    _replace(loader, "get", functools.partial(_timed_get, counts, hot) if is_wanted else None)
    return _sampled(hot.entries.get) if is_wanted else hot.entries.get


def _replace(owner: Any, name: str, wrap: Callable[[Call], Call] | None) -> None:
    if hasattr(type(owner), name):
        vars(owner).pop(name, None)
        if wrap is not None:
            setattr(owner, name, wrap(_weakly(getattr(owner, name))))
        return
    call = getattr(owner, name)
    plain = getattr(call, "__wrapped__", call)
    setattr(owner, name, plain if wrap is None else functools.wraps(plain)(wrap(plain)))


def _weakly(method: Call) -> Call:
    """Return a call of a method that does not keep its object alive, since the object will have it as an attribute."""
    find = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = find()
        assert found is not None  # the caller has the object
        return found(*args, **kwargs)

    return call


def _timed(counts: Counts, kind: str, call: Call) -> Call:
    observe, first = counts.counters.observe, TIMES_AT[kind]

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            observe(first, perf_counter_ns() - start)

    return timed


def _timed_get(counts: Counts, hot: HotLayer, get: Call) -> Call:
    """Time a look-up, which may be one of a key that is hot (`_sampled`)."""
    slow, observe, first = _timed(counts, "get", get), counts.counters.observe, TIMES_AT["hot"]

    def timed(key: Any, default: Any, read: bool, expire_time: bool, tag: bool, maps: bool | None, *place: Any) -> Any:
        start = perf_counter_ns()
        entry = None if read or expire_time or tag or maps else hot.probe(key)
        if entry is None:
            return slow(key, default, read, expire_time, tag, maps, *place)
        value = hot.hit(entry)
        observe(first, perf_counter_ns() - start)
        return default if value is NEGATIVE_HIT else value

    return timed


def _sampled(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `get` that finds nothing once in SAMPLE times, so that the loader is asked."""
    turns = itertools.count(1).__next__

    def sampled(key: Any) -> Any:
        return get(key) if turns() % SAMPLE else None

    return sampled
