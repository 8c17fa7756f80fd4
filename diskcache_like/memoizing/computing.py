"""Computing: get a value or compute it and keep it, once for all who want it, as `Rules` say.

The procedure is written once, as generators of steps (`steps.py`), so functions and coroutine functions follow the same
rules.
"""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..coherence.futex import pauses, slices
from ..encoding.record import Metadata
from ..encoding.tags import tags_of
from ..encoding.values import NotSerializable, encode_value
from ..entries.atomic_key import AtomicKey, Decision
from ..entries.loading import ENOVAL, hot_expiry
from ..entries.row_codec import Location
from ..errors import (
    BreakerOpen,
    CacheError,
    ComputeTimeout,
    DirectoryError,
    DiskFull,
    NotKeptWarning,
    Overloaded,
    RemoteError,
    StorageError,
    Timeout,
    ValueEncodeError,
    ValueTooLarge,
    named,
)
from ..system.callers import warn
from ..system.signals import reraise_signal, suppress
from .flights import Flight, flight_key
from .identities import plain_name
from .rules import ERROR_PAUSE, RENEWAL_PAUSE, Computing, Rules, StoredError
from .steps import Call, Do, InBackground, Rest, Steps, Waiting, Within, take, under_way

T = TypeVar("T")
Place = tuple[Location, int]  # of a key, and the generation of its slot at which nothing was found there, 0 for none

# Why a cache may fail that serves a computation: not for an error of the caller's, nor for one that `strict` asks for.
FAILURES = Timeout, DiskFull, DirectoryError, StorageError, RemoteError, ValueTooLarge, ValueEncodeError


class Old(NamedTuple):
    """A value that is there, fresh or stale."""

    value: Any
    metadata: Metadata
    version: int


class Replaces(NamedTuple):
    """The entry that a result may take the place of: it has this version, or was due at `until` and has gone since."""

    version: int
    until: float | None


NOTHING = Replaces(0, None)  # only where no value is


class Computation:
    """Get or compute values of one kind; `scope` names what `max_concurrent` and `breaker` count together."""

    def __init__(self, cache: Any, rules: Rules, scope: str = "") -> None:
        self.cache = cache
        self.rules = rules
        self.hits = self.misses = 0
        self.scope = scope
        self._now: Callable[[], float] = cache._clock

    def find(self, key: Any) -> Any:
        """Return the value that is there and need not be looked at twice, or ENOVAL; raise a stored error."""
        read = self.cache._hot_value if self.rules.beta else partial(self.cache.get, default=ENOVAL)
        value = self._accepted(key, self.checked(self._attempt(read, ENOVAL, key)))
        if self.rules.sliding and value is not ENOVAL:
            self._attempt(self._slide, None, key, value)
        return value

    def _slide(self, key: Any, value: Any) -> None:
        """Renew the expiry of a value that is used."""
        self.cache._renew(key, self.cache._rows.expiry_or_default(self.rules.lifetime_of(value)))

    def look(self, key: Any) -> tuple[Any, Place | None]:
        """Return what `find` does or, where the rules are plain, a stored error, and where the key lives."""
        if self.rules.is_plain:
            return self._attempt(self.cache._look, (ENOVAL, None), key)  # type: ignore[no-any-return]
        return self.find(key), None

    async def find_async(self, key: Any) -> Any:
        """Do what `find` does, without blocking the event loop."""
        return await self.cache._handle.threads.attempt(partial(self.find, key), self.rules.sliding)

    def peek(self, key: Any) -> Any:
        """Return the value that is there, None if there is none or an error instead."""
        value = self.cache.get(key, ENOVAL)
        return None if value is ENOVAL or type(value) is StoredError or not self.rules.accepts(value) else value

    def _present(self, key: Any) -> Any:
        """Return the value that somebody else has stored by now, ENOVAL if nobody has."""
        value = self._accepted(key, self.checked(self._attempt(self.cache._uncounted, ENOVAL, key)))
        self.hits += value is not ENOVAL
        return value

    def _accepted(self, key: Any, value: Any) -> Any:
        """Return a value that is there if the rules let it be used; remove another one, and return ENOVAL."""
        if value is ENOVAL or self.rules.accepts(value):
            return value
        found = self._attempt(self.cache._recorded, None, key)
        if found is not None and type(found[0]) is not StoredError and not self.rules.accepts(found[0]):
            self._attempt(self.cache.delete, None, key, if_version=found[2])
        return ENOVAL

    def checked(self, value: Any) -> Any:
        """Return a value that was found; raise an error that was stored instead of one."""
        if type(value) is StoredError:
            self._raise(value)
            return ENOVAL
        return value

    def compute(self, key: Any, call: Callable[[Computing], Any], place: Place | None) -> Any:
        """Take care of a value that was not found; `place`: where `look` has found none."""
        value = ENOVAL
        if place is not None and place[1] and self.rules.is_plain and self.cache._tier is None:
            value = self._compute_alone(key, call, place)
        return take(self.steps(key, call)) if value is ENOVAL else value

    def _compute_alone(self, key: Any, call: Callable[[Computing], Any], place: Place) -> Any:
        """Do what `steps` does where the rules are plain and nobody else computes: with one look and one append.

        Returns ENOVAL, and computes nothing, where somebody does or has written meanwhile, and within a transaction.
        """
        flight, around = self.flight(key, place[0]), under_way.get()
        if flight.atomic.in_transaction():
            return ENOVAL
        inside = [self._name(flight.atomic)]
        begun = False
        try:
            try:
                begun = self._attempt(flight.begin, True, True)
                # Whoever computed before has stored the value, and so changed the slot, before they finished.
                if not begun or flight.atomic.generation() != place[1]:
                    return ENOVAL
                self.misses += 1
                under_way.set((*around, inside))
                started, context = self._now(), Computing(None, None, b"")
                value = self._watched(call)(context)
                metadata = self._metadata(value, context, started)
                if metadata is not None:
                    self._attempt(self.cache._put, None, key, value, metadata, NOTHING, place)
                return value
            finally:
                inside.clear()
                under_way.set(around)
                if begun:
                    self._attempt(flight.finish, None)
        except BaseException:
            inside.clear()  # once more, since a signal handler may have raised in the very steps above
            under_way.set(around)
            flight.finish()
            raise

    def steps(self, key: Any, call: Callable[[Computing], Any]) -> Steps:
        """Take care of a value that `find` has not found."""
        rules = self.rules
        old = None if rules.is_bare else (yield self._do(self._old, key))
        now = self._now()
        if rules.beta:  # `find` has looked in memory only
            self.cache._hot.count_read(old is not None and not _is_over(old, now, 0), self.cache._rows.locate(key))
        if old is not None and not _is_over(old, now, max(rules.stale_while_revalidate, 0)):
            self.hits += 1
            if _is_due(old, now):
                yield from self._renew(key, call, old)
            if _is_over(old, now, 0):
                self._count("stale_served")
            elif rules.sliding:
                yield self._try(self._slide, key, old.value)
            return old.value
        usable = None if old is None or _is_over(old, now, rules.stale_if_error) else old
        return (yield from self._wait(key, call, usable))

    def refresh(self, key: Any, call: Callable[[Computing], Any]) -> Steps:
        """Compute a value anew, whatever is there."""
        return (yield from self._compute(key, call, None, None))

    def _old(self, key: Any) -> Old | None:
        found = self._attempt(self.cache._recorded, None, key, True)
        if found is None or type(found[0]) is StoredError or not self.rules.accepts(found[0]):
            return None
        return Old(found[0], found[1].metadata, found[2])

    def _do(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Do:
        return Do(self.cache, partial(act, *args, **kwargs))

    def _begin(self, flight: Flight, despite_failure: bool = False) -> Do:
        return Do(self.cache, partial(self._attempt, flight.begin, True, despite_failure), flight)

    def _try(self, act: Callable[..., Any], *args: Any, **kwargs: Any) -> Do:
        """Do something that may fail without harm to the caller."""
        return Do(self.cache, partial(self._attempt, act, None, *args, **kwargs))

    def _attempt(self, act: Callable[..., Any], otherwise: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what a function of the cache returns, or something else if the cache fails, as `on_error` says."""
        try:
            return act(*args, **kwargs)
        except FAILURES as error:
            if self.rules.on_error == "raise":
                raise
            reraise_signal(error)
            handle = self.cache._handle
            handle.counts.add("not_kept")
            if "not_kept" not in handle.said:
                handle.said.add("not_kept")
                warn(f"{self.cache.directory!r}: {error}; values are computed and not kept (said once)", NotKeptWarning)
            return otherwise

    def flight(self, key: Any, location: Location | None = None) -> Flight:
        """Return the flight for a key; `location`: where that lives, if it is known."""
        own = self.cache._namespaced(key)
        return Flight(self.cache, flight_key(own), self.cache._atomic_key(own, location), self.rules.patience)

    # -- in the background --------------------------------------------------------------------------------------------

    def _renew(self, key: Any, call: Callable[[Computing], Any], old: Old) -> Steps:
        """Compute a value anew in the background, unless somebody does so, or has failed just now."""
        flight = self.flight(key)
        if (yield self._do(flight.atomic.in_transaction)):
            return
        if not (yield self._begin(flight)):
            return
        present = yield self._do(self._old, key)
        if present is not None and present.metadata.created != old.metadata.created:
            yield self._try(flight.finish)
            return
        yield InBackground(self._renewal(key, call, old, flight), flight.finish)

    def _renewal(self, key: Any, call: Callable[[Computing], Any], old: Old, flight: Flight) -> Steps:
        under_way.set(())  # in a context of its own: what its caller computes does not wait for this
        self._count("renewals")
        try:
            yield from self._compute(key, call, None, None, old)
        except Exception:
            self._count("failed_renewals")
            yield self._try(flight.pause, RENEWAL_PAUSE)
            raise
        finally:
            yield self._try(flight.finish)

    # -- while the caller waits ---------------------------------------------------------------------------------------

    def _wait(self, key: Any, call: Callable[[Computing], Any], usable: Old | None) -> Steps:
        """Return what somebody else computes, or compute it."""
        rules, flight = self.rules, self.flight(key)
        if not rules.keeps or (yield self._do(flight.atomic.in_transaction)):
            self.misses += 1
            return (yield from self._compute(key, call, usable, None))
        name = self._name(flight.atomic)
        if _is_under_way(name):
            raise CacheError(f"key {named(key)} is computed by a call that needs its value; it would wait for itself")
        limit = rules.hard_timeout if rules.soft_timeout is None or usable is None else rules.soft_timeout
        end = math.inf if limit is None else time.monotonic() + limit
        with Waiting(name) as waiting:
            found = yield from self._join(key, flight, usable, end, waiting)
        if found is not ENOVAL:
            return found
        job = self._alone(key, call, usable, flight)
        try:
            outcome = yield Within(name, job, max(end - time.monotonic(), 0.0))
        except BaseException:
            if inspect.getgeneratorstate(job) == inspect.GEN_CREATED:  # no thread could start
                yield self._try(flight.finish)
            raise
        if outcome is job:
            return (yield from job)
        if outcome is not None:
            return outcome.result()
        if usable is not None:
            return self._serve(usable)
        raise ComputeTimeout(
            f"key {named(key)}: its computation takes more than {limit} s; it goes on and keeps its result"
        )

    def _join(self, key: Any, flight: Flight, usable: Old | None, end: float, waiting: Waiting) -> Steps:
        """Return what somebody else computes, or the old value where there is no waiting for that.

        ENOVAL if the flight is this call's now, or somebody else has had it for too long. Raises ComputeTimeout at the
        end.
        """
        patience, waits = time.monotonic() + flight.patience, False
        for pause, longest in zip(pauses(), slices(), strict=False):
            generation = flight.atomic.generation()
            if (yield self._begin(flight, usable is None)) or time.monotonic() >= patience:
                return ENOVAL
            left = end - time.monotonic()
            if usable is not None and (left <= 0 or (yield self._do(flight.is_paused))):
                return self._serve(usable)
            if left <= 0:
                raise ComputeTimeout(f"key {named(key)} is computed by somebody else, who takes too long")
            if not waits:
                waits = True
                self._count("flights_waited")
            yield Rest(flight.atomic, generation, left, pause, longest, waiting)
            value = yield self._do(self._present, key)
            if value is not ENOVAL:
                return value
        raise AssertionError("slices never end")

    def _count(self, event: str) -> None:
        self.cache._handle.counts.add(event)

    def _serve(self, old: Old) -> Any:
        self.hits += 1
        self._count("stale_served")
        return old.value

    def _alone(self, key: Any, call: Callable[[Computing], Any], usable: Old | None, flight: Flight) -> Steps:
        """Compute a value while holding its flight."""
        try:
            # Whoever computed before stored the value before they finished, and this began after that.
            value = yield self._do(self._present, key)
            if value is not ENOVAL:
                return value
            self.misses += 1
            return (yield from self._compute(key, call, usable, flight))
        finally:
            yield self._try(flight.finish)

    # -- the computation ----------------------------------------------------------------------------------------------

    def _compute(
        self,
        key: Any,
        call: Callable[[Computing], Any],
        usable: Old | None,
        flight: Flight | None,
        renewed: Old | None = None,
    ) -> Steps:
        """Call the function and keep its result; if it fails, return the `usable` old value, where there is one.

        With `renewed` it is kept only in the place of that value, with a flight only where no value is. Whoever wrote
        the entry meanwhile may know more than the function did when it was called.
        """
        rules = self.rules
        replaces = None if flight is None else NOTHING
        if renewed is not None:
            replaces = Replaces(renewed.version, renewed.metadata.remove_at)
        atomic = (flight or self.flight(key)).atomic
        keep = partial(self.cache._put, key, replaces=replaces, place=(atomic.location(), 0))
        started, context = self._now(), Computing(None, None, b"")
        # Read here, so that the function does not get the very object that a caller has, who goes on with it.
        old = (yield self._do(self._old, key)) if rules.asks else None
        if old is not None:
            context = Computing(old.value, old.metadata.age(started), old.metadata.etag)
        try:
            value = yield from self._within([atomic], call, context)
        except Exception as error:
            reraise_signal(error)  # an alarm, say, is no error of the function's
            is_kept = isinstance(error, rules.cache_errors)
            metadata = self._limited(rules.error_metadata, context, self._now()) if is_kept else None
            if metadata is not None:
                yield self._try(keep, _stored(error), metadata)
            elif usable is not None:
                if flight is not None:
                    yield self._try(flight.pause, ERROR_PAUSE)
                self._count("stale_served")
                return usable.value
            raise
        if context.renewed:
            if old is None:
                raise CacheError(f"key {named(key)}: its function called not_modified(), and there is no old value")
            value = old.value
            context.tags = tags_of(old.metadata.tags) if context.tags is None else context.tags
        metadata = self._metadata(value, context, started)
        is_admitted = flight is None or usable is not None or rules.admits_all
        if metadata is not None and (is_admitted or (yield self._do(self._attempt, atomic.was_missed, True))):
            yield self._try(keep, value, metadata)
        return value

    def _within(self, atomics: Iterable[AtomicKey], call: Callable[[T], Any], argument: T) -> Steps:
        """Call the function, within which whoever wants one of these keys would wait for itself."""
        around, inside = under_way.get(), [self._name(atomic) for atomic in atomics]
        try:  # before it is set, so that a signal handler that raises just after that leaves nothing under way
            under_way.set((*around, inside))
            return (yield from self._called(partial(self._watched(call), argument)))
        finally:
            inside.clear()
            under_way.set(around)

    def _watched(self, call: Callable[[T], Any]) -> Callable[[T], Any]:
        """Return the function, within what watches the cache's computations, if anything does."""
        watch = self.cache._handle.watch
        return call if watch is None else watch(self.scope, call)

    def _metadata(self, value: Any, context: Computing, started: float) -> Metadata | None:
        """Return how a result is kept whose computation has ended now, None if it is not."""
        now = self._now()
        return self._limited(self.rules.metadata, value, context, now, max(now - started, 0.0))

    def _limited(self, metadata_of: Callable[..., Metadata | None], *args: Any) -> Metadata | None:
        """Return how something is kept by the rules, within what the cache's settings allow."""
        rows = self.cache._rows
        if rows.lifetimes is None:
            return metadata_of(*args)
        found = metadata_of(*args, rows.lifetimes.default)
        return None if found is None else rows.limited(found)

    def _name(self, atomic: AtomicKey) -> tuple[int, Any]:
        """Return what tells a key from those of other caches. Hashable, unlike some keys."""
        return id(self.cache._shards), atomic.stored_key

    def _called(self, call: Callable[[], Any]) -> Steps:
        """Call the function, if the breaker lets it through, in one of the places for concurrent calls."""
        held: list[Flight] = []
        breaker = self.rules.breaker
        try:
            if breaker is not None:
                yield from self._pass_breaker(held)
            if self.rules.max_concurrent is not None:
                place = self._name(self.cache._atomic_key(flight_key(("place", self.scope))))
                # One that computes within another of the same scope shares its place: the other one waits for it.
                if not _is_under_way(place):
                    yield from self._take_place("place", self.rules.max_concurrent, self.cache.timeout, held)
                    under_way.get()[-1].append(place)
            try:
                value = yield Call(call)
            except Exception:
                if breaker is not None:
                    yield self._try(self._count_error, self._state())
                raise
            if breaker is not None and any(flight.key.key[:1] == ("probe",) for flight in held):
                yield self._try(self.cache.delete, self._state_key)
            return value
        finally:
            for flight in held:
                yield self._try(flight.finish)

    def _take_place(self, kind: str, places: int, patience: float, held: list[Flight]) -> Steps:
        """Take one of some places; raise Overloaded if all stay taken for some seconds."""
        end = time.monotonic() + patience
        numbers, waiting = random.sample(range(places), places), Waiting(None)  # for one of many, which has no name
        for pause, longest in zip(pauses(), slices(), strict=False):
            for number in numbers:
                key = flight_key((kind, self.scope, number))
                flight = Flight(self.cache, key, self.cache._atomic_key(key), self.rules.patience)
                generation = flight.atomic.generation()
                if (yield self._begin(flight, True)):
                    held.append(flight)
                    return
            left = end - time.monotonic()
            if left <= 0:
                raise Overloaded(f"{places} computations of {self.scope} are under way, which is max_concurrent")
            yield Rest(flight.atomic, generation, left, pause, longest, waiting)

    # -- the breaker --------------------------------------------------------------------------------------------------

    @property
    def _state_key(self) -> Any:
        return flight_key(("breaker", self.scope))

    def _state(self) -> AtomicKey:
        atomic: AtomicKey = self.cache._atomic_key(self._state_key)
        return atomic

    def _failures(self) -> Any:
        """Return the moments of the last errors, and until when the breaker is open."""
        return _failures_in(self._attempt(self.cache._uncounted, None, self._state_key))

    def _pass_breaker(self, held: list[Flight]) -> Steps:
        """Raise BreakerOpen if calls fail too often; once the pause is over, let a few through."""
        breaker = self.rules.breaker
        assert breaker is not None
        _, until = yield self._do(self._failures)
        if until is None:
            return
        if self._now() >= until:
            try:
                yield from self._take_place("probe", breaker.probes, 0, held)
                return
            except Overloaded:
                pass
        raise BreakerOpen(f"{self.scope} failed {breaker.errors} times within {breaker.window} s, and is not called")

    def _count_error(self, state: AtomicKey) -> None:
        breaker = self.rules.breaker
        assert breaker is not None
        now, keep = self._now(), max(breaker.window, breaker.open) * 10

        def decide(found: Any, _: Metadata) -> Decision:
            errors, until = _failures_in(found)
            recent = (*(moment for moment in errors if moment > now - breaker.window), now)
            if until is not None or len(recent) >= breaker.errors:
                recent, until = (), now + breaker.open
            return (recent, until), state.metadata(keep)

        state.update(decide, self.cache.timeout)

    def _raise(self, stored: StoredError) -> None:
        """Raise the error that was stored, if it is one of those that may be."""
        for kind in _with_subclasses(self.rules.cache_errors):
            if plain_name(kind) == stored.kind and isinstance(stored.arguments, list | tuple):
                self.hits += 1
                raise _remade(kind, tuple(stored.arguments))


def _failures_in(found: Any) -> Any:
    match found:
        case [list() | tuple() as moments, None | int() | float() as until]:  # lists where JSON made them of tuples
            if all(isinstance(moment, int | float) for moment in moments):
                return tuple(moments), until
    return (), None  # nobody has failed, or something else lies under the key


def _is_under_way(name: Any) -> bool:
    return any(name in each for each in under_way.get())


def _is_due(old: Old, now: float) -> bool:
    """Decide by chance whether to compute a value anew ahead of its expiry; one that has expired is always due."""
    due = hot_expiry(old.metadata)
    return due is not None and due <= now


def _is_over(old: Old, now: float, window: float) -> bool:
    expire = old.metadata.expire
    return expire is not None and now >= expire + window


def _stored(error: Exception) -> StoredError:
    try:
        encode_value(error.args)
        arguments = error.args
    except NotSerializable:
        arguments = (str(error),)
    return StoredError(plain_name(type(error)), arguments)


def _remade(kind: type[Exception], arguments: tuple[Any, ...]) -> Exception:
    """Return an error with these arguments, without its `__init__` if that takes others."""
    with suppress(Exception):
        made = kind(*arguments)
        if made.args == arguments:
            return made
    return kind.__new__(kind, *arguments)


def _with_subclasses(kinds: Iterable[type[Exception]]) -> Iterator[type[Exception]]:
    for kind in kinds:
        yield kind
        yield from _with_subclasses(kind.__subclasses__())
