"""Many values at once: `get_or_set_many` computes with one call what is missing, each of it once for all who want it.

A call holds the flights of what it computes, and of nothing else while it waits for others, so no two wait for each
other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..entries.atomic_key import AtomicKey
from ..entries.loading import ENOVAL
from ..settings.misuse import wrong
from .computing import NOTHING, Computation
from .flights import Flight
from .rules import Computing
from .steps import Steps

Call = Callable[[list[Any]], Any]  # returns a mapping of some of the keys to their values, or an awaitable of one


def steps_for(computation: Computation, keys: list[Any], call: Call) -> Steps:
    """Compute the values of keys: with one call those that nobody else computes, then the others; return what there is.

    In a transaction, and where nothing is kept, all of them with one, without waiting for others.
    """
    found: dict[Any, Any] = {}
    flights: dict[Any, Flight] = {}
    try:
        alone = not computation.rules.keeps or (
            yield computation._do(computation.flight(keys[0]).atomic.in_transaction)
        )
        for key in keys:
            flight = computation.flight(key)
            if alone or (yield computation._begin(flight, True)):
                flights[key] = flight
                # Whoever computed it before stored it before they finished, and this began after that.
                found[key] = yield computation._do(computation._present, key)
        missing = {key: flight.atomic for key, flight in flights.items() if found[key] is ENOVAL}
        if missing:
            found |= yield from _computed(computation, missing, call)
    finally:
        for flight in flights.values():
            yield computation._try(flight.finish)
    for key in keys:
        if key not in flights:
            found[key] = yield from computation._wait(key, _only(key, call), None)
    return {key: value for key, value in found.items() if value is not ENOVAL}


def _computed(computation: Computation, missing: dict[Any, AtomicKey], call: Call) -> Steps:
    """Call the function, and store what it returns where nobody has stored anything meanwhile."""
    started, context = computation._now(), Computing(None, None, b"")
    values = checked(missing, (yield from computation._within(missing.values(), call, list(missing))))
    for key, value in values.items():
        metadata = computation._metadata(value, context, started)
        if metadata is not None:
            yield computation._try(computation.cache._put, key, value, metadata, NOTHING)
    return values


def _only(key: Any, call: Call) -> Callable[[Computing], Any]:
    """Return what computes one value; ENOVAL, which is not stored, if the function leaves it out."""

    def kept(context: Computing, values: Any) -> Any:
        value = checked([key], values).get(key, ENOVAL)
        context.store = value is not ENOVAL
        return value

    async def awaited(context: Computing) -> Any:
        return kept(context, await call([key]))

    return awaited if inspect.iscoroutinefunction(call) else lambda context: kept(context, call([key]))


def checked(keys: Iterable[Any], values: Any) -> dict[Any, Any]:
    """Return the values of those keys that a function was asked for; raise TypeError if it returned no mapping."""
    if not isinstance(values, Mapping):
        raise wrong("what compute_missing returned", values, "a mapping of keys to values")
    return {key: values[key] for key in keys if key in values}
