"""A state machine: every kind of cache does what a dictionary with expiry would, through two handles at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from diskcache_like import Cache, CacheError, FanoutCache

from ..support.awaited import awaited
from ..support.cache_kinds import QUICK, SECRET, Clock

KEYS: list[Any] = [1, 2, 3, "one", "two", b"one", None, (1, "a"), (1, "b"), 2.5, frozenset({1, 2}), "x" * 100]
SPELLINGS: dict[Any, list[Any]] = {1: [1, 1.0, True], 2: [2, 2.0], (1, "a"): [(1, "a"), (1.0, "a")]}
BIG = "x" * 3_000

keys = st.sampled_from(KEYS).flatmap(lambda key: st.sampled_from(SPELLINGS.get(key, [key])))
values = st.integers(-5, 5) | st.sampled_from([None, 1.5, "text", b"bytes", [1, [2]], {"a": (1,)}, BIG, BIG + "y", {3}])
expiries = st.none() | st.sampled_from([0.5, 1, 2.5, 1000])
tags = st.sets(st.sampled_from(["a", "b", 3]))
handles = st.integers(0, 1)
matches: Any = st.sampled_from(["any", "all"])


class Entry(NamedTuple):
    """What the model knows of an entry."""

    value: Any
    expire: float | None
    tags: frozenset[Any]

    @property
    def tag(self) -> Any:
        """Return what `get(tag=True)` answers."""
        if len(self.tags) < 2:
            return next(iter(self.tags), None)
        return tuple(tag for tag in (3, "a", "b") if tag in self.tags)


class RolledBack(Exception):
    """Raised to roll a transaction back."""


def colliding(directory: str, **settings: Any) -> Cache:
    """Return a cache where two to four of `KEYS` share each hash, so that most of them live beside their place."""
    cache = Cache(directory, **settings)
    cache._rows.modulus = 4
    return cache


def namespaced(directory: str, **settings: Any) -> Cache:
    """Return a namespace of a cache."""
    return Cache(directory, **settings).namespace("space")


def through_the_face(make: Callable[..., Cache], directory: str, anew: bool = False, **settings: Any) -> Cache:
    """Return a cache whose operations are awaited; `anew`: in an event loop for each."""
    return awaited(make(directory, **settings), anew)


MODELLED: dict[str, Callable[..., Cache]] = {
    "plain": partial(Cache, **QUICK),
    "direct": partial(Cache, hot_size_limit=0, **{**QUICK, "write_buffer": 0}),
    "few-slots": partial(Cache, durability="process", generation_slots=16),
    "sealed": partial(Cache, secret=SECRET, encrypt=True, **QUICK),
    "files": partial(Cache, disk_min_file_size=0, **QUICK),
    "signed": partial(Cache, secret=SECRET, disk_min_file_size=1000, **QUICK),
    "colliding": partial(colliding, disk_min_file_size=1000, **QUICK),
    "colliding-few-slots": partial(colliding, durability="process", generation_slots=16),
    "namespace": partial(namespaced, disk_min_file_size=1000, **QUICK),
    "fanout": partial(FanoutCache, shards=3, timeout=60, disk_min_file_size=1000, **QUICK),
}
MODELLED |= {f"{name}-awaited": partial(through_the_face, MODELLED[name]) for name in ("signed", "namespace", "fanout")}
MODELLED["signed-awaited-anew"] = partial(through_the_face, MODELLED["signed"], anew=True)


class Model(RuleBasedStateMachine):
    """Compare two handles on one cache with a dictionary."""

    make: Callable[..., Cache]
    queues = True

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="model-")
        self.clock = Clock()
        self.entries: dict[Any, Entry] = {}
        self.queue: list[tuple[Any, Entry]] = []
        self.saved: list[tuple[dict[Any, Entry], list[tuple[Any, Entry]]]] = []
        self.open: list[Any] = []  # transactions, the innermost last
        self.owner = 0
        self.handles: list[Cache] = []

    @initialize(cull_limit=st.sampled_from([0, 2, 10]))
    def start(self, cull_limit: int) -> None:
        # The first handle's own reads fill a hot layer that the second one's writes must invalidate, and vice versa.
        self.handles = [type(self).make(self.directory, clock=self.clock, cull_limit=cull_limit) for _ in range(2)]

    def teardown(self) -> None:
        try:
            while self.open:
                self.commit()
            if self.handles:
                assert [str(problem.message) for problem in self.handles[0].check()] == []
        finally:
            for handle in self.handles:
                handle.close()
            shutil.rmtree(self.directory)

    # -- the model ------------------------------------------------------------------------------------------------

    def writer(self, handle: int) -> Cache:
        """Return the handle to write with: in a transaction its owner, since the other one would wait for ever."""
        return self.handles[self.owner if self.open else handle]

    def live(self, key: Any) -> Entry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and (entry.expire is None or entry.expire > self.clock.now) else None

    def expected(self, handle: int, key: Any) -> Entry | None:
        """Return what a read through the handle must find: outside a transaction, what was committed."""
        if not self.open or handle == self.owner:
            return self.live(key)
        entry = self.saved[0][0].get(key)
        return entry if entry is not None and (entry.expire is None or entry.expire > self.clock.now) else None

    def moment(self, expire: float | None) -> float | None:
        return None if expire is None else self.clock.now + expire

    # -- reading --------------------------------------------------------------------------------------------------

    @rule(handle=handles, key=keys)
    def get(self, handle: int, key: Any) -> None:
        entry = self.expected(handle, key)
        cache = self.handles[handle]
        assert cache.get(key, "missing") == ("missing" if entry is None else entry.value)
        assert (key in cache) == (entry is not None)

    @rule(handle=handles, key=keys)
    def get_with_metadata(self, handle: int, key: Any) -> None:
        entry = self.expected(handle, key)
        found = self.handles[handle].get(key, "missing", expire_time=True, tag=True)
        assert found == (("missing", None, None) if entry is None else (entry.value, entry.expire, entry.tag))

    @rule(handle=handles, wanted=st.lists(keys, max_size=6))
    def get_many(self, handle: int, wanted: list[Any]) -> None:
        entries = {key: self.expected(handle, key) for key in wanted}
        expected = {key: entry.value for key, entry in entries.items() if entry is not None}
        assert self.handles[handle].get_many(wanted) == expected

    @rule(handle=handles)
    def read_all(self, handle: int) -> None:
        for key in KEYS:
            entry = self.expected(handle, key)
            assert self.handles[handle].get(key, "missing") == ("missing" if entry is None else entry.value), key

    # -- writing --------------------------------------------------------------------------------------------------

    @rule(handle=handles, key=keys, value=values, expire=expiries, tags=tags)
    def set(self, handle: int, key: Any, value: Any, expire: float | None, tags: AbstractSet[Any]) -> None:
        assert self.writer(handle).set(key, value, expire=expire, tags=tags)
        self.entries[key] = Entry(value, self.moment(expire), frozenset(tags))

    @rule(handle=handles, items=st.dictionaries(st.sampled_from(KEYS), values, max_size=5), expire=expiries, tags=tags)
    def set_many(self, handle: int, items: dict[Any, Any], expire: float | None, tags: AbstractSet[Any]) -> None:
        assert self.writer(handle).set_many(items, expire=expire, tags=tags) == len(items)
        self.entries.update({key: Entry(value, self.moment(expire), frozenset(tags)) for key, value in items.items()})

    @rule(handle=handles, key=keys, value=values, expire=expiries, tags=tags)
    def add(self, handle: int, key: Any, value: Any, expire: float | None, tags: AbstractSet[Any]) -> None:
        missing = self.live(key) is None
        assert self.writer(handle).add(key, value, expire=expire, tags=tags) == missing
        if missing:
            self.entries[key] = Entry(value, self.moment(expire), frozenset(tags))

    @rule(handle=handles, key=keys, delta=st.integers(-3, 3))
    def incr(self, handle: int, key: Any, delta: int) -> None:
        entry = self.live(key)
        if entry is not None and not isinstance(entry.value, int | float):
            with pytest.raises(TypeError):
                self.writer(handle).incr(key, delta)
            return
        value, expire, tags = entry or Entry(10, None, frozenset())
        assert self.writer(handle).incr(key, delta, default=10) == value + delta
        self.entries[key] = Entry(value + delta, expire, tags)

    @rule(handle=handles, key=keys)
    def pop(self, handle: int, key: Any) -> None:
        entry = self.live(key)
        found = self.writer(handle).pop(key, "missing", expire_time=True, tag=True)
        assert found == (("missing", None, None) if entry is None else (entry.value, entry.expire, entry.tag))
        if entry is not None:
            del self.entries[key]

    @rule(handle=handles, key=keys)
    def delete(self, handle: int, key: Any) -> None:
        entry = self.live(key)
        assert self.writer(handle).delete(key) == (entry is not None)
        if entry is not None:
            del self.entries[key]

    @rule(handle=handles, doomed=st.lists(st.sampled_from(KEYS), max_size=4, unique=True))
    def delete_many(self, handle: int, doomed: list[Any]) -> None:
        present = [key for key in doomed if self.live(key) is not None]
        assert self.writer(handle).delete_many(doomed) == len(present)
        for key in present:
            del self.entries[key]

    @rule(handle=handles, key=keys, expire=expiries)
    def touch(self, handle: int, key: Any, expire: float | None) -> None:
        entry = self.live(key)
        assert self.writer(handle).touch(key, expire) == (entry is not None)
        if entry is not None:
            self.entries[key] = entry._replace(expire=self.moment(expire))

    @precondition(lambda self: self.queues)
    @rule(handle=handles, value=values, expire=expiries, back=st.booleans())
    def push(self, handle: int, value: Any, expire: float | None, back: bool) -> None:
        key = self.writer(handle).push(value, side="back" if back else "front", expire=expire)
        self.queue.insert(len(self.queue) if back else 0, (key, Entry(value, self.moment(expire), frozenset())))

    @precondition(lambda self: self.queues)
    @rule(handle=handles, back=st.booleans(), remove=st.booleans())
    def pull_or_peek(self, handle: int, back: bool, remove: bool) -> None:
        place = -1 if back else 0
        while self.queue and (expire := self.queue[place][1].expire) is not None and expire <= self.clock.now:
            del self.queue[place]
        expected = (self.queue[place][0], self.queue[place][1].value) if self.queue else (None, None)
        cache = self.writer(handle)
        side: Literal["back", "front"] = "back" if back else "front"
        assert (cache.pull(side=side) if remove else cache.peek(side=side)) == expected
        if remove and self.queue:
            del self.queue[place]

    # -- removal and time -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.25, 0.5, 1, 5]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(handle=handles)
    def expire(self, handle: int) -> None:
        with self.refusing():
            assert self.writer(handle).expire() <= len(self.entries) + len(self.queue)
            self.forget_expired()

    @rule(handle=handles, wanted=st.sets(st.sampled_from(["a", "b", 3]), min_size=1), match=matches)
    def evict(self, handle: int, wanted: AbstractSet[Any], match: Literal["any", "all"]) -> None:
        tagged = self.tagged(wanted, match)
        live = sum(self.live(key) is not None for key in tagged)
        assert self.writer(handle).evict(tags=wanted, match=match) == live
        for key in tagged:
            del self.entries[key]

    @rule(handle=handles, wanted=st.sets(st.sampled_from(["a", "b", 3]), min_size=1), match=matches)
    def list_by_tag(self, handle: int, wanted: AbstractSet[Any], match: Literal["any", "all"]) -> None:
        live = {key for key in self.tagged(wanted, match) if self.live(key) is not None}
        cache = self.writer(handle)
        assert set(cache.keys(tags=wanted, match=match)) == live
        assert cache.count(tags=wanted, match=match) == len(live)

    @rule(handle=handles, key=keys, add=tags, remove=tags)
    def retag(self, handle: int, key: Any, add: AbstractSet[Any], remove: AbstractSet[Any]) -> None:
        entry = self.live(key)
        assert self.writer(handle).retag(key, add, remove) == (entry is not None)
        if entry is not None:
            self.entries[key] = entry._replace(tags=entry.tags - remove | add)

    @rule(handle=handles, key=keys, value=values)
    def set_if_version(self, handle: int, key: Any, value: Any) -> None:
        entry, cache = self.live(key), self.writer(handle)
        found = cache.get_entry(key)
        assert (found is None) == (entry is None)
        assert not cache.set(key, value, if_version=-1 if found is None else found.version - 1)
        assert cache.set(key, value, if_version=None if found is None else found.version)
        self.entries[key] = Entry(value, None, frozenset())

    def tagged(self, wanted: AbstractSet[Any], match: Literal["any", "all"]) -> list[Any]:
        """Return the keys, of expired entries too, that have any or all of some tags."""
        test = any if match == "any" else all
        return [key for key, entry in self.entries.items() if test(tag in entry.tags for tag in wanted)]

    @rule(handle=handles)
    def clear(self, handle: int) -> None:
        self.writer(handle).clear()
        self.entries.clear()
        self.queue.clear()

    @rule(handle=handles)
    def cull(self, handle: int) -> None:
        with self.refusing():
            self.writer(handle).cull()
            self.forget_expired()

    def refusing(self) -> AbstractContextManager[None]:
        """Ignore the error with which a namespace refuses what is about the whole cache."""
        return suppress(CacheError) if "namespace" in type(self).__name__ else nullcontext()

    def forget_expired(self) -> None:
        self.entries = {key: entry for key, entry in self.entries.items() if self.live(key) is not None}
        self.queue = [
            (key, entry) for key, entry in self.queue if entry.expire is None or entry.expire > self.clock.now
        ]  # fmt: skip

    # -- transactions and handles ---------------------------------------------------------------------------------

    @rule(handle=handles)
    def begin(self, handle: int) -> None:
        if len(self.open) < 3:
            if not self.open:
                self.owner = handle
            transaction = self.handles[self.owner].transact()
            transaction.__enter__()
            self.open.append(transaction)
            self.saved.append((dict(self.entries), list(self.queue)))

    @precondition(lambda self: self.open)
    @rule()
    def commit(self) -> None:
        self.open.pop().__exit__(None, None, None)
        self.saved.pop()

    @precondition(lambda self: self.open)
    @rule()
    def roll_back(self) -> None:
        assert not self.open.pop().__exit__(RolledBack, RolledBack(), None), "what ends it goes on"
        self.entries, self.queue = self.saved.pop()

    @precondition(lambda self: not self.open)
    @rule(handle=handles, anew=st.booleans())
    def close_and_reopen(self, handle: int, anew: bool) -> None:
        self.handles[handle].close()
        if anew:
            self.handles[handle] = type(self).make(self.directory, clock=self.clock)

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def every_live_key_is_there_once(self) -> None:
        if not self.handles:
            return
        cache = self.handles[self.owner]
        found = [key for key in cache if key in KEYS]
        assert len(found) == len(set(found))
        live = {key for key in KEYS if self.live(key) is not None}
        assert live <= set(found) <= set(self.entries), "expired ones may be there or not"
        assert len(live) <= len(cache) <= len(self.entries) + len(self.queue)


@pytest.mark.parametrize("name", MODELLED)
def test_a_cache_is_a_dictionary_with_expiry(name: str) -> None:
    # A fifth key with one hash would take the place of the first; a namespace has no queues.
    queues = not name.startswith(("colliding", "namespace"))
    machine = type(f"Model_{name}", (Model,), {"make": staticmethod(MODELLED[name]), "queues": queues})
    limits = settings(
        max_examples=settings().max_examples // (18 if name.endswith("anew") else 6),  # an event loop for each step
        stateful_step_count=40,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes, and the steps are printed
    )
    run_state_machine_as_test(machine, settings=limits)
