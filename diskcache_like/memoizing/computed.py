"""Computed values: `get_or_set` and `memoize`, two spellings of one operation (`computing`)."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from ..encoding.record import Metadata
from ..entries.atomic_key import AtomicKey
from ..entries.hot import NEGATIVE_HIT, PLAIN_TYPES, HotEntry
from ..entries.loading import ENOVAL
from ..entries.row_codec import Location
from ..operations.tagging import Selection, Tagging
from ..settings.misuse import called, several, unexpected, wrong
from ..system.signals import suppress
from .call_keys import CallKeys
from .computing import FAILURES, NOTHING, Computation, Place, Replaces
from .identities import plain_name
from .memoize import Memoized, memoize
from .rules import Breaker, Computing, Lifetime, Rules, StoredError
from .steps import take, take_async
from .why import Why

LOOKING = {"beta", "sliding", "valid"}  # options for which a value in memory is not just returned
MOST_OTHERS = 1000  # results of a function that `why` compares a call with

P = ParamSpec("P")
K = TypeVar("K")
R = TypeVar("R")


class KeepingOptions(TypedDict, total=False):
    """The options of `get_or_set_many`."""

    jitter: float
    when: Callable[[Any], bool] | None
    none_expire: Lifetime
    max_concurrent: int | None
    breaker: Breaker | None
    on_error: Literal["warn", "raise"]


class ComputingOptions(KeepingOptions, total=False):
    """The options of `get_or_set` and `memoize`."""

    stale_while_revalidate: Lifetime
    stale_if_error: Lifetime
    soft_timeout: float | None
    hard_timeout: float | None
    beta: float | None
    cache_errors: type[Exception] | tuple[type[Exception], ...]
    error_expire: Lifetime | None
    admit: Literal["always", "second-miss"]
    sliding: bool
    valid: Callable[[Any], bool] | None


class Computed(Tagging):
    """The operations that compute what is missing."""

    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., Coroutine[Any, Any, R]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[ComputingOptions],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., R],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[ComputingOptions],
    ) -> R: ...
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., Any],
        expire: Any = None,
        *,
        tag: Any = None,
        tags: Any = None,
        **options: Unpack[ComputingOptions],
    ) -> Any:
        """Return the value of `key`, or what `compute()` returns, which is stored.

        Of all threads and processes that want it one computes it, and the others wait; if that one fails or dies, the
        next one computes. A coroutine function is awaited, and so is what this returns then. A function with a
        parameter gets a `Computing`.

        `expire`: seconds, a timedelta, text such as '2h5m', or a function of the result. `tags`: or a function of it.
        `stale_while_revalidate`: for so long after the expiry return the old value at once, and renew it in the
        background. `stale_if_error`: for so long return it if the computation raises an error, takes longer than
        `soft_timeout` seconds, or is refused. `hard_timeout`: seconds after which ComputeTimeout is raised; the
        computation goes on. `beta`: renew it in the background before it expires, 1 for the usual chance. `jitter`: a
        part by which a lifetime may be shorter. `when`: whether to store a result; `none_expire`: how long None is.
        `cache_errors`: which errors to store, for `error_expire`. `max_concurrent`: calls at a time in all processes;
        beyond it, Overloaded after the cache's timeout. `breaker`: see `Breaker`; while it is open, BreakerOpen.
        `on_error`: what happens if the cache itself fails, because the disk is full, the value cannot be stored, or the
        write lock is not free within the cache's timeout. With 'warn' the value is returned all the same, and a handle
        gives one NotKeptWarning and counts in `metrics().not_kept`; with 'raise' the error is raised. `admit`: with
        'second-miss' a result is stored only if the key was missed, or its entry evicted, a short while ago; an error
        is stored at once. `sliding`: each hit renews the expiry, as `get_and_touch` does.
        `valid`: whether a stored value may be used; one that it refuses is removed, and computed anew.

        In a transaction it computes without waiting for others. Raises what `compute` raises, and CacheError if that
        wants the same key. The words of stale values are those of RFC 5861.
        """
        if not callable(compute):
            raise wrong("compute", compute, "a function that returns the value")
        if options and not options.keys() <= ComputingOptions.__annotations__.keys():
            raise unexpected(Computed.get_or_set, options, ComputingOptions.__annotations__)
        is_coroutine = inspect.iscoroutinefunction(compute)
        if type(key) not in PLAIN_TYPES or self._hot.by_bytes:
            key = self._fixed(key)
        known = place = None
        if not is_coroutine and not (options.keys() & LOOKING):
            known = found = self._hot_value(key)
            if found is ENOVAL:
                known = None
                with suppress(*FAILURES):  # `find` below meets it again, and does what `on_error` says
                    found, place = self._look(key)
                    known = found
            if found is not ENOVAL and type(found) is not StoredError:
                return found
        call, asks = _with_context(compute)
        rules = rules_of(expire, tag, tags, {**options, "asks": asks})
        computation = Computation(self, rules, _scope(compute))
        if is_coroutine:
            return _get_async(computation, key, call)
        value = computation.find(key) if known is None else computation.checked(known)
        return computation.compute(key, call, place) if value is ENOVAL else value

    @overload
    def get_or_set_many(
        self,
        keys_: Iterable[K],
        compute_missing: Callable[[list[K]], Coroutine[Any, Any, Mapping[K, R]]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[KeepingOptions],
    ) -> Coroutine[Any, Any, dict[K, R]]: ...
    @overload
    def get_or_set_many(
        self,
        keys_: Iterable[K],
        compute_missing: Callable[[list[K]], Mapping[K, R]],
        expire: Lifetime | Callable[[R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[R], Iterable[Any]] | None = ...,
        **options: Unpack[KeepingOptions],
    ) -> dict[K, R]: ...
    def get_or_set_many(
        self,
        keys_: Iterable[Any],
        compute_missing: Callable[[list[Any]], Any],
        expire: Any = None,
        *,
        tag: Any = None,
        tags: Any = None,
        **options: Unpack[KeepingOptions],
    ) -> Any:
        """Return a dictionary of the values of keys; those that are missing come from one call, and are stored.

        `compute_missing` gets the list of the missing keys, and returns a mapping; a key that it leaves out is not in
        the result. Keys that somebody else computes just now are not in the list: this waits for each of them, and
        calls it for that key alone if the other one fails. A coroutine function is awaited. Other arguments as for
        `get_or_set`. Each key is stored by itself.
        """
        called("compute_missing", compute_missing, "a function of a list of keys")
        if not options.keys() <= KeepingOptions.__annotations__.keys():
            raise unexpected(Computed.get_or_set_many, options, KeepingOptions.__annotations__)
        wanted = list(dict.fromkeys(several("keys_", keys_, "a list of keys")))
        from .many import steps_for  # late: few need it

        computation = Computation(self, rules_of(expire, tag, tags, {**options}), _scope(compute_missing))

        def begun() -> tuple[dict[Any, Any], list[Any]]:
            found = {key: value for key, value in self.get_many(wanted).items() if type(value) is not StoredError}
            return found, [key for key in wanted if key not in found]

        async def awaited() -> dict[Any, Any]:
            found, missing = await self._handle.threads.attempt(begun, False)
            return {**found, **(await take_async(steps_for(computation, missing, compute_missing)) if missing else {})}

        if inspect.iscoroutinefunction(compute_missing):
            return awaited()
        found, missing = begun()
        return {**found, **(take(steps_for(computation, missing, compute_missing)) if missing else {})}

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: Lifetime | Callable[[Any], Any] | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
        *,
        key: Callable[..., Any] | str | None = None,
        version: Any = None,
        tags: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        **options: Unpack[ComputingOptions],
    ) -> Callable[[Callable[P, R]], Memoized[P, R]]:
        """Return a decorator that caches a function's results; see `Memoized` for what the decorated function offers.

        `name`: instead of the function's own; a partial has none. `typed`: arguments of different types are different.
        `expire`: seconds, a timedelta, text such as '2h5m', or a function of the result; 0 keeps nothing. `tag` or
        `tags`: for `evict`; text may name arguments, as in 'user:{user.id}'. `ignore`: positions and names of arguments
        that do not count. `key`, instead of `typed` and `ignore`: such text, or a function of the call's arguments,
        that makes the key's variable part. `version`: change it with the function's body, so that results of the old
        one are not used. Other options are those of `get_or_set`. Works on coroutine functions too.
        """
        if not options.keys() <= ComputingOptions.__annotations__.keys():
            raise unexpected(Computed.memoize, options, ComputingOptions.__annotations__)
        if callable(name):
            raise TypeError("name cannot be a function: write the decorator with its arguments in parentheses")
        first: tuple[Any, Any] = name, typed
        if not isinstance(first[0], str | None) or first[1] not in (True, False):
            raise TypeError(
                f"name is {name!r} and typed is {typed!r}, expected text, and True or False; an expiry is given as"
                " memoize(expire=...)"
            )
        if not isinstance(key, str | None):
            called("key", key, "a function of the call's arguments, or text that names them")
        call_keys = CallKeys(name, typed, ignore, key, version)
        return memoize(self, call_keys, rules_of(expire, tag, tags, {**options}))

    def why(self, key: Any) -> Why:
        """Tell why a look-up of `key` finds nothing now, or that it finds something; count it as no use.

        The reason is 'present', 'expired' (with the moment), 'evicted', 'damaged' or 'absent'. Each eviction leaves a
        fingerprint for about as many evictions as there are entries, so a few keys are said to be evicted that never
        were there, and so are those that `admit='second-miss'` has seen. Under `second-chance`, entries that are
        evicted after their probation leave none. The value is read. `str` of the result is a sentence.
        """
        location = stored_key, home, store = self._rows.locate(key)
        packed, version = store.read_versioned(home, stored_key)
        if not version:
            return Why("evicted" if store.was_evicted(home) else "absent")
        record = self._rows.verified(key, location, packed)
        if record is not None and not self._rows.is_live(record):
            return Why("expired", record.metadata.expire)
        return Why("damaged" if record is None or self._uncounted(key) is ENOVAL else "present")

    def _why(self, key: Any, hidden: bytes, names: Sequence[str]) -> Why:
        """Tell why a call has no result, and which of the first of those that have one is most similar."""
        found = self.why(key)
        if found.reason == "present":
            return found
        others = itertools.islice(self._select(Selection(frozenset({hidden}))), MOST_OTHERS)
        return found.beside(key, (other.key for other in others), names)

    # -- what computing needs of a cache ------------------------------------------------------------------------------

    get: Callable[..., Any]
    get_many: Callable[[Iterable[Any]], dict[Any, Any]]
    _hot_get: Callable[[Any], HotEntry | None]
    _hot_clock: Callable[[], float]
    _store_if: Callable[..., bool]

    def _atomic_key(self, key: Any, location: Location | None = None) -> AtomicKey:
        """Return the key with what recipes need; `location`: where it lives, if that is known."""
        return AtomicKey(self._rows, self._loader, key, location)

    def _look(self, key: Any) -> tuple[Any, Place]:
        """Return the value of a key, counted as `get` does, ENOVAL if there is none, and where the key lives."""
        value, location, stamp = self._loader.look(key)
        return value, (location, stamp)

    def _put(
        self, key: Any, value: Any, metadata: Metadata, replaces: Replaces | None, place: Place | None = None
    ) -> bool:
        """Store a value with its metadata; raise Timeout, or whatever else keeps it from being stored.

        `place`: where the key lives, if that is known. `replaces`: what must be there; None for anything. An error that
        was stored instead of a value is nothing.
        """

        def may_be_stored(record: Any) -> bool:
            if replaces is None:
                return True
            if replaces is NOTHING:
                found = None if record is None else self._recorded(key)
                return found is None or type(found[0]) is StoredError  # None where its value cannot be read, too
            version, until = replaces
            stored_key, home, store = self._rows.locate(key)
            found = store.version(home, stored_key)
            return found == version or (not found and until is not None and until <= self._rows.clock())

        early = replaces is None or replaces is NOTHING  # a version is known under the lock alone
        return self._store_if(key, value, False, metadata, self._handle.timeout, may_be_stored, early, place)

    def _recorded(self, key: Any, stale: bool = False) -> Any:
        """Return (value, record, version) of an entry, None if there is none."""
        return self._loader.load_recorded(key, self._rows.locate(key), stale)

    def _fixed(self, key: Any) -> Any:
        """Return a key that stays what it is, whatever becomes of this one, and that no other key is taken for."""
        return self._handle.disk.fixed_key(key)

    def _hot_value(self, key: Any) -> Any:
        """Return the value of a fixed key if it is in memory and valid, else ENOVAL; count a hit, but no miss."""
        entry = self._hot_get(key)
        if entry is None:
            return ENOVAL
        slots, slot, stamp, expire, value, decode, visited, home, marks, _, _ = entry
        if decode is NEGATIVE_HIT or slots[slot] != stamp or (expire is not None and expire <= self._hot_clock()):
            return ENOVAL
        visited[0] = 1
        marks[home] = self._hot.hit_kind
        return value if decode is None else decode(value)

    def _uncounted(self, key: Any) -> Any:
        """Return the value of a key, ENOVAL if there is none; count neither a hit nor a miss."""
        entry = self._hot.probe(key)
        if entry is not None:
            value, decode = entry[4], entry[5]
            if decode is NEGATIVE_HIT:
                return ENOVAL
            return value if decode is None else decode(value)
        return self._loader.load(key, self._rows.locate(key))

    def _evict_hidden(self, *tags: bytes, retry: bool = True) -> int:
        """Remove every entry with one of these hidden tags, of this namespace if it is one."""
        selection, wait = Selection(frozenset(tags), within=self._within), self._wait_for_all(retry)
        if self._tier is not None:
            self._tier.evict(selection.tags, b"" if self._within is None else self._within.within)
        return self._remove_from_all(lambda store: self._remove_tagged(store, selection, wait))


def rules_of(expire: Any, tag: Any, tags: Any, options: dict[str, Any]) -> Rules:
    """Return the rules that these arguments of `get_or_set` and `memoize` mean."""
    if tag is not None and tags is not None:
        raise TypeError(f"tag={tag!r} and tags= are both given: put all of them into tags")
    return Rules(expire=expire, tags=tags if tag is None else [tag], **options)


def _scope(compute: Callable[..., Any]) -> str:
    """Return the name of a function, under which its concurrent calls and its errors are counted."""
    return plain_name(origin_of(compute))


def origin_of(compute: Callable[..., Any]) -> Any:
    """Return what has the name of a function: the function within a partial one, or the class of an object."""
    while isinstance(compute, functools.partial):
        compute = compute.func
    return compute if hasattr(compute, "__qualname__") else type(compute)


def _with_context(compute: Callable[..., Any]) -> tuple[Callable[[Computing], Any], bool]:
    """Return the function as one that takes a `Computing`, and whether it wants that."""
    try:
        parameters = inspect.signature(compute).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    if any(
        each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        for each in parameters
    ):
        return compute, True
    return lambda _: compute(), False


async def _get_async(computation: Computation, key: Any, call: Callable[[Computing], Any]) -> Any:
    value = await computation.find_async(key)
    return await take_async(computation.steps(key, call)) if value is ENOVAL else value
