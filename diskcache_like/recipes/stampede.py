"""Memoize without stampedes: one computation at a time per key, and a new one before the old result expires.

Many callers want the same result at once when it is missing and when it expires. Single flight solves the first: the
caller who finds it missing computes it while holding a lock on the key, and the others wait for that. Early
recomputation solves the second: each caller decides by chance whether to have the result recomputed ahead of time, more
likely the nearer the expiry and the longer the computation (A. Vattani, F. Chierichetti, K. Lowenstein: "Optimal
Probabilistic Cache Stampede Prevention", VLDB 2015).
"""

from __future__ import annotations

import functools
import inspect
import math
import random
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..cache import Cache, atomic_key, clock_of
from ..coherence.futex import pauses, slices
from ..entries.loading import ENOVAL
from ..entries.row_codec import Expiry, seconds_of
from ..errors import Timeout
from ..operations.call_keys import CallKey, CallKeys
from ..operations.memoize import Memoized, as_memoized, check_lifetime, when_free
from ..system.signals import reraise_signal
from .locks import Lock
from .owners import Owner, current_owner

RUNS_CALLERS_CODE = True  # for `interrupts_a_call` of system/signal_safe.py

P = ParamSpec("P")
R = TypeVar("R")

RENEWAL = "diskcache_like renewal"  # name of a thread that recomputes a result
PATIENCE = 60.0  # seconds to wait for a computation at least, if its process runs; `expire`, if that is longer


class Found(NamedTuple):
    """A stored result."""

    value: Any
    cost: float  # seconds that it took to compute
    until: float  # when it expires


class SingleFlight(Lock):
    """The lock of the one caller who computes a result; it is free, too, once the process that held it has ended.

    Its token names the owner and the presence of its process in the shard, which is there before the token is stored:
    so a presence that others find ended never belongs to a computation that has just begun.
    """

    _noun = "computation"

    def __init__(self, cache: Cache, key: Any, expire: Expiry, owner: Owner) -> None:
        super().__init__(cache, key, expire)
        self._owner = owner

    def _new_token(self, owner: Owner) -> str:
        return f"{owner.name} {self._atomic.presence().name}"

    def _is_free(self, found: Any) -> bool:
        return found is ENOVAL or self._atomic.presence().has_ended(str(found).partition(" ")[2])

    def begin(self, wait: float | None) -> bool:
        """Begin to compute if nobody else does; raise Timeout after `wait` seconds for the shard's write lock."""
        return self._take(self._owner, wait)

    def is_no_use(self) -> bool:
        """Tell whether waiting would never end: in a transaction, which sees no new results, or in a recursive call."""
        if self._atomic.in_transaction():
            return True
        return str(self._cache.get(self._key)).partition(" ")[0] == self._owner.name

    def generation(self) -> int:
        """Return the generation to sleep on."""
        return self._atomic.generation()

    def sleep(self, generation: int, seconds: float) -> None:
        """Sleep until the computation has ended, `seconds` at most."""
        self._atomic.sleep(generation, seconds)

    def finish(self) -> None:
        """End the computation; it is no error if it took so long that others stopped waiting."""
        self._give(self._pop(self._owner), None)
        self._atomic.wake()

    def abandon(self) -> None:
        """End a computation that never began; do nothing if it began, for then it has ended itself."""
        if self._last(self._owner) is not None:
            self.finish()

    async def afinish(self) -> None:
        """Do what `finish` does, without blocking the event loop."""
        await self._give_async(self._pop(self._owner))
        self._atomic.wake()


class _Results:
    """The results of one function in a cache, and how many calls of this process hit or missed."""

    def __init__(
        self, function: Callable[..., Any], cache: Cache, expire: Expiry | None, tag: Any, beta: float
    ) -> None:
        self.function = function
        self.hits = self.misses = 0
        self.cache = cache
        self._seconds = seconds = seconds_of(expire)
        self.keeps = seconds > 0
        self._patience = PATIENCE if math.isinf(seconds) else max(seconds, PATIENCE)
        self._tag = tag
        self._beta = beta
        self.now = clock_of(cache)

    def find(self, key: Any) -> Found | None:
        """Return the stored result, or None."""
        found = self.cache.get(key)
        return None if found is None else Found(*found)

    def met(self, key: Any) -> Found | None:
        """Return the stored result and count it as a hit, or return None."""
        found = self.find(key)
        self.hits += found is not None
        return found

    def keep(self, key: Any, value: Any, started: float) -> None:
        """Store a result and what it cost to compute."""
        if self.keeps:
            # The value holds the expiry, because the hot layer serves values without their metadata.
            now = self.now()
            found = (value, max(now - started, 0.0), now + self._seconds)
            self.cache.set(key, found, expire=self._seconds, tag=self._tag, retry=True)

    def is_due(self, found: Found) -> bool:
        """Decide by chance whether to recompute a result ahead of time."""
        # 1 - random() is never 0, which has no logarithm.
        return found.until - self.now() <= -found.cost * self._beta * math.log(1.0 - random.random())

    def flight(self, key: Any, owner: Owner) -> SingleFlight:
        """Return the lock for the computation of a result."""
        return SingleFlight(self.cache, (*key, "flight"), self._patience, owner)

    def early(self, key: Any, found: Found) -> SingleFlight | None:
        """Begin to recompute a result, unless somebody is doing so or has done so since `found`."""
        flight = self.flight(key, Owner())
        try:
            if not flight.begin(0):
                return None
        except Timeout:  # somebody else is writing; a later call will do it
            return None
        present = self.find(key)
        if present is not None and present.until > found.until:
            flight.finish()
            return None
        return flight


class _Threads(_Results):
    """Calls of a function, each waiting in its thread."""

    def wrapper(self, call_key: CallKey) -> Callable[..., Any]:
        """Return the function that callers get instead."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = call_key(*args, **kwargs)
            found = self.find(key)
            if found is None:
                return self._wait(key, args, kwargs)
            self.hits += 1
            if self.is_due(found) and (flight := self.early(key, found)):
                self._start(key, args, kwargs, flight)
            return found.value

        return wrapper

    def _start(self, key: Any, args: Any, kwargs: Any, flight: SingleFlight) -> None:
        """Recompute a result in the background; if no thread can start, report that and leave it to a later call."""
        try:
            call = (key, args, kwargs, flight, True)
            threading.Thread(target=self._compute_alone, args=call, name=RENEWAL, daemon=True).start()
        except Exception as error:
            flight.finish()
            reraise_signal(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))

    def _wait(self, key: Any, args: Any, kwargs: Any) -> Any:
        """Return the result that was missing: somebody else's, or a new one."""
        flight = self.flight(key, current_owner())
        if not self.keeps or flight.is_no_use():
            self.misses += 1
            return self._compute(key, args, kwargs)
        for seconds in slices():
            generation = flight.generation()
            if flight.begin(None):
                return self._compute_alone(key, args, kwargs, flight)
            flight.sleep(generation, seconds)
            if (found := self.met(key)) is not None:
                return found.value
        raise AssertionError("slices never end")

    def _compute_alone(self, key: Any, args: Any, kwargs: Any, flight: SingleFlight, renews: bool = False) -> Any:
        try:
            if not renews:
                # Whoever computed before us stored the result before they finished, and we began after that.
                if (found := self.met(key)) is not None:
                    return found.value
                self.misses += 1
            return self._compute(key, args, kwargs)
        finally:
            flight.finish()

    def _compute(self, key: Any, args: Any, kwargs: Any) -> Any:
        started = self.now()
        value = self.function(*args, **kwargs)
        self.keep(key, value, started)
        return value


class _Tasks(_Results):
    """Calls of a coroutine function, which wait without blocking the event loop; otherwise like `_Threads`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._renewing: set[object] = set()  # tasks; the event loop holds them only weakly

    def wrapper(self, call_key: CallKey) -> Callable[..., Any]:
        """Return the function that callers get instead."""
        import asyncio

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = call_key(*args, **kwargs)
            found = self.find(key)
            if found is None:
                return await self._wait(key, args, kwargs)
            self.hits += 1
            if self.is_due(found) and (flight := self.early(key, found)):
                task = asyncio.ensure_future(self._compute_alone(key, args, kwargs, flight, True))
                self._renewing.add(task)
                task.add_done_callback(functools.partial(self._ended, flight))
            return found.value

        return wrapper

    def _ended(self, flight: SingleFlight, task: object) -> None:
        self._renewing.discard(task)
        flight.abandon()  # a task that is cancelled before its first step never begins

    async def _wait(self, key: Any, args: Any, kwargs: Any) -> Any:
        import asyncio

        flight = self.flight(key, current_owner())
        if not self.keeps or flight.is_no_use():
            self.misses += 1
            return await self._compute(key, args, kwargs)
        for seconds in pauses():
            try:
                begun = flight.begin(0)
            except Timeout:  # somebody else is writing
                begun = False
            if begun:
                return await self._compute_alone(key, args, kwargs, flight)
            await asyncio.sleep(seconds)
            if (found := self.met(key)) is not None:
                return found.value
        raise AssertionError("pauses never end")

    async def _compute_alone(self, key: Any, args: Any, kwargs: Any, flight: SingleFlight, renews: bool = False) -> Any:
        try:
            if not renews:
                if (found := self.met(key)) is not None:
                    return found.value
                self.misses += 1
            return await self._compute(key, args, kwargs)
        finally:
            await flight.afinish()

    async def _compute(self, key: Any, args: Any, kwargs: Any) -> Any:
        started = self.now()
        value = await self.function(*args, **kwargs)
        await when_free(atomic_key(self.cache, key), lambda: self.keep(key, value, started))
        return value


def memoize_stampede(
    cache: Cache,
    expire: Expiry | None,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Iterable[int | str] = (),
    *,
    version: Any = None,
) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator like `Cache.memoize` under which results are neither missed nor renewed by many at once.

    All callers who miss one result, in any thread or process, wait for the first of them; if that one raises or dies,
    the next one computes. A result is recomputed in the background before it expires: `beta` above 1 does so earlier,
    below 1 later, 0 never; an error there goes to `threading.excepthook` or the event loop's handler. Nobody waits for
    a computation that takes longer than both `expire` and a minute. `expire`: seconds, None for never; 0 keeps nothing.
    Works on coroutine functions too, without blocking the event loop. `version`: as for `Cache.memoize`.
    """
    check_lifetime(expire, tag)

    def decorate(function: Callable[P, R]) -> Memoized[P, R]:
        make = CallKeys(name, typed, ignore, version=version).of(function)

        def call_key(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            # Another key than `memoize` makes: both may decorate one function, and they store different things.
            return (*make(*args, **kwargs), "stampede")

        kind = _Tasks if inspect.iscoroutinefunction(function) else _Threads
        results = kind(function, cache, expire, tag, beta)
        wrapper = functools.wraps(function)(results.wrapper(call_key))
        return as_memoized(wrapper, cache, call_key, lambda: (results.hits, results.misses))

    return decorate
