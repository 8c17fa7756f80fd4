"""Memoize without stampedes: one computation at a time per key, and a new one before the old result expires.

Two things send many callers after one result at once: that it is missing, and that it expires. The first is met by
single flight: who finds it missing computes it while holding a lock on the key, and the others wait for that. The
second by early recomputation: each caller decides by chance, the more likely the nearer the expiry and the longer the
computation, to have the result made anew ahead of time (A. Vattani, F. Chierichetti, K. Lowenstein: "Optimal
Probabilistic Cache Stampede Prevention", VLDB 2015).
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .cache import Cache
from .coherence import process_token
from .coherence.generations import boot_stamp
from .coherence.sleepers import pauses, slices
from .entries import ENOVAL
from .errors import Timeout
from .files import mode_of
from .interrupts import let_through
from .locks import Lock
from .memoize import Memoized, call_key, finish, seconds_of, when_free
from .packing import Expiry
from .places import Holder, current_holder

P = ParamSpec("P")
R = TypeVar("R")

RENEWAL = "diskcache_like renewal"  # name of a thread that makes a result anew
PATIENCE = 60.0  # seconds that a computation is waited for at least, if its process lives; `expire`, if that is longer


class Found(NamedTuple):
    """A stored result."""

    value: Any
    cost: float  # seconds that it took to compute
    until: float  # when it expires


class Flight(Lock):
    """The lock of the one who computes; it is free, too, when the process that holds it has died."""

    _noun = "computation"

    def _new_token(self, holder: Holder) -> str:
        return f"{holder.name} {_process(process_token())}"

    def _is_free(self, found: Any) -> bool:
        return found is ENOVAL or _has_died(str(found).partition(" ")[2])

    def take(self, holder: Holder, wait: float | None) -> bool:
        """Begin to compute if nobody else does; raise Timeout after `wait` seconds for the shard's write lock."""
        return self._take(holder, wait)

    def is_no_use(self, holder: Holder) -> bool:
        """Tell whether waiting would never end.

        The function calls itself with arguments that make the same key, or the caller is in a transaction, to which
        nothing that others store becomes visible.
        """
        if self._place.in_transaction():
            return True
        return str(self._cache.get(self._key)).partition(" ")[0] == holder.name

    def sleep(self, stamp: int, seconds: float) -> None:
        """Sleep until the computation has ended, `seconds` at most."""
        self._place.sleep(stamp, seconds)

    def stamp(self) -> int:
        """Return the generation to sleep on."""
        return self._place.stamp()

    def land(self, holder: Holder) -> None:
        """End the computation; that it took too long to be waited for is nobody's error."""
        self._give(self._pop(holder), None)
        self._place.wake()

    def abandon(self, holder: Holder) -> None:
        """End a computation that was never begun; of one that was, this has been done."""
        if self._last(holder) is not None:
            self.land(holder)

    async def aland(self, holder: Holder) -> None:
        """Like `land`, without blocking the event loop."""
        await self._give_async(self._pop(holder))
        self._place.wake()


@functools.lru_cache(maxsize=1)
def _process(token: int) -> str:
    """Return words that name this process and no other: boot, name space of process ids, id, moment of its start.

    `token` is the process's own, so that a forked child does not go by its parent's name.
    """
    pid = os.getpid()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError as error:
        let_through(error)
        namespace = "unknown"
    return f"{boot_stamp()} {namespace} {pid} {_start_of(pid)}"


def _has_died(process: str) -> bool:
    """Tell whether a process has certainly ended: False if it is in another container and cannot be seen from here."""
    here = _process(process_token()).split(" ")
    try:
        boot, namespace, pid, start = process.split(" ")
        if int(boot) != int(here[0]):
            return True
        return namespace == here[1] and _start_of(int(pid)) != start
    except ValueError:
        return False


def _start_of(pid: int) -> str:
    """Return when a process was started, in ticks since boot; '' if it has ended, also if nobody has noted that yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except OSError as error:
        let_through(error)
        return "" if mode_of("/proc/self/stat") else "unknown"
    return "" if state in "ZX" else rest[18]


class _Results:
    """The results of one function in a cache, and how many calls of this process met one or did not."""

    def __init__(
        self, function: Callable[..., Any], cache: Cache, expire: Expiry | None, tag: Any, beta: float
    ) -> None:
        self.function = function
        self.hits = self.misses = 0
        seconds = seconds_of(expire)
        self.cache = cache
        self.keeps = seconds > 0
        self._seconds = seconds
        self._patience = PATIENCE if math.isinf(seconds) else max(seconds, PATIENCE)
        self._tag = tag
        self._beta = beta
        self.now: Callable[[], float] = cache._clock

    def find(self, key: Any) -> Found | None:
        """Return the stored result, or None."""
        found = self.cache.get(key)
        return None if found is None else Found(*found)

    def met(self, key: Any) -> Found | None:
        """Return the stored result, counting it as a hit, or None."""
        found = self.find(key)
        if found is not None:
            self.hits += 1
        return found

    def keep(self, key: Any, value: Any, started: float) -> None:
        """Store a result with what it cost."""
        if self.keeps:
            # The expiry is part of the value, because a value alone is read from the hot layer.
            now = self.now()
            found = (value, max(now - started, 0.0), now + self._seconds)
            self.cache.set(key, found, expire=self._seconds, tag=self._tag, retry=True)

    def is_due(self, found: Found) -> bool:
        """Decide by chance whether a result is to be made anew ahead of time."""
        # 1 - random() is never 0, whose logarithm there is not.
        return found.until - self.now() <= -found.cost * self._beta * math.log(1.0 - random.random())

    def flight(self, key: Any) -> Flight:
        """Return the lock for the computation of a result."""
        return Flight(self.cache, (*key, "flight"), expire=self._patience)

    def early(self, key: Any, found: Found) -> tuple[Flight, Holder] | None:
        """Begin to make a result anew, unless somebody is at it or has done it since `found`."""
        flight, holder = self.flight(key), Holder()
        try:
            if not flight.take(holder, 0):
                return None
        except Timeout:  # somebody writes just now; another call will do it
            return None
        present = self.find(key)
        if present is not None and present.until > found.until:
            flight.land(holder)
            return None
        return flight, holder


class _Threads(_Results):
    """Calls of a function, which wait in their threads."""

    def wrapper(self, cache_key: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called instead of the function."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = cache_key(*args, **kwargs)
            found = self.find(key)
            if found is None:
                return self._wait(key, args, kwargs)
            self.hits += 1
            if self.is_due(found) and (begun := self.early(key, found)):
                self._start(key, args, kwargs, *begun)
            return found.value

        return wrapper

    def _start(self, key: Any, args: Any, kwargs: Any, flight: Flight, holder: Holder) -> None:
        """Make a result anew in the background; where no thread can be started, say so, and let another call do it."""
        try:
            threading.Thread(
                target=self._renew, args=(key, args, kwargs, flight, holder), name=RENEWAL, daemon=True
            ).start()
        except Exception as error:
            flight.land(holder)
            let_through(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))

    def _wait(self, key: Any, args: Any, kwargs: Any) -> Any:
        """Return the result that was missing: somebody else's, or a new one."""
        flight, holder = self.flight(key), current_holder()
        if not self.keeps or flight.is_no_use(holder):
            self.misses += 1
            return self._compute(key, args, kwargs)
        for seconds in slices():
            stamp = flight.stamp()
            if flight.take(holder, None):
                return self._fly(key, args, kwargs, flight, holder)
            flight.sleep(stamp, seconds)
            if (found := self.met(key)) is not None:
                return found.value
        raise AssertionError("slices never end")

    def _fly(self, key: Any, args: Any, kwargs: Any, flight: Flight, holder: Holder) -> Any:
        try:
            # Who computed before us stored the result before landing, and we began after that: it is not missed here.
            if (found := self.met(key)) is not None:
                return found.value
            self.misses += 1
            return self._compute(key, args, kwargs)
        finally:
            flight.land(holder)

    def _renew(self, key: Any, args: Any, kwargs: Any, flight: Flight, holder: Holder) -> None:
        try:
            self._compute(key, args, kwargs)
        finally:
            flight.land(holder)

    def _compute(self, key: Any, args: Any, kwargs: Any) -> Any:
        started = self.now()
        value = self.function(*args, **kwargs)
        self.keep(key, value, started)
        return value


class _Tasks(_Results):
    """Calls of a coroutine function, which wait without blocking the event loop; otherwise like `_Threads`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._renewing: set[object] = set()  # tasks, which the event loop itself would forget

    def wrapper(self, cache_key: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called instead of the function."""
        import asyncio

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = cache_key(*args, **kwargs)
            found = self.find(key)
            if found is None:
                return await self._wait(key, args, kwargs)
            self.hits += 1
            if self.is_due(found) and (begun := self.early(key, found)):
                task = asyncio.ensure_future(self._renew(key, args, kwargs, *begun))
                self._renewing.add(task)
                task.add_done_callback(functools.partial(self._ended, *begun))
            return found.value

        return wrapper

    def _ended(self, flight: Flight, holder: Holder, task: object) -> None:
        self._renewing.discard(task)
        flight.abandon(holder)  # a task that is cancelled before its first step does not even begin

    async def _wait(self, key: Any, args: Any, kwargs: Any) -> Any:
        import asyncio

        flight, holder = self.flight(key), current_holder()
        if not self.keeps or flight.is_no_use(holder):
            self.misses += 1
            return await self._compute(key, args, kwargs)
        for seconds in pauses():
            try:
                begun = flight.take(holder, 0)
            except Timeout:  # another one writes just now
                begun = False
            if begun:
                return await self._fly(key, args, kwargs, flight, holder)
            await asyncio.sleep(seconds)
            if (found := self.met(key)) is not None:
                return found.value
        raise AssertionError("pauses never end")

    async def _fly(self, key: Any, args: Any, kwargs: Any, flight: Flight, holder: Holder) -> Any:
        try:
            if (found := self.met(key)) is not None:
                return found.value
            self.misses += 1
            return await self._compute(key, args, kwargs)
        finally:
            await flight.aland(holder)

    async def _renew(self, key: Any, args: Any, kwargs: Any, flight: Flight, holder: Holder) -> None:
        try:
            await self._compute(key, args, kwargs)
        finally:
            await flight.aland(holder)

    async def _compute(self, key: Any, args: Any, kwargs: Any) -> Any:
        started = self.now()
        value = await self.function(*args, **kwargs)
        await when_free(self.cache, key, lambda: self.keep(key, value, started))
        return value


def memoize_stampede(
    cache: Cache,
    expire: Expiry | None,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Iterable[int | str] = (),
) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator like `Cache.memoize` under which results are neither missed nor renewed by many at once.

    Callers in all threads and processes who miss one result wait for the first of them; if that one raises or dies, the
    next one computes. A result is made anew in the background before it expires: `beta` above 1 does so earlier, below
    1 later, 0 never; what that raises goes to `threading.excepthook` or the event loop's handler. One that takes longer
    than `expire`, and than a minute, is no longer waited for. `expire`: seconds, None for never; 0 keeps nothing. Works
    on coroutine functions too, without blocking the event loop.
    """

    def decorate(function: Callable[P, R]) -> Memoized[P, R]:
        make = call_key(function, name, typed, ignore, None)

        def cache_key(*args: Any, **kwargs: Any) -> Any:
            # Not what `memoize` makes: both may be applied to one function, and what they store differs.
            return (*make(*args, **kwargs), "stampede")

        kind = _Tasks if inspect.iscoroutinefunction(function) else _Threads
        results = kind(function, cache, expire, tag, beta)
        wrapper = functools.wraps(function)(results.wrapper(cache_key))
        return finish(wrapper, cache, cache_key, lambda: (results.hits, results.misses))

    return decorate
