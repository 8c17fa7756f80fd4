"""What the processes of a linearizability proof do: calls, handles on one cache that differ, and beginning together."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.atomics import Words
from diskcache_like.encoding.made_keys import NamespacedKey
from tests.support.sample_writes import FAR
from tests.support.workers import PATIENCE, Link

from . import structure_calls
from .histories import Call, Tags

THREADS = 2  # of a process, at most
HANDLES = 6  # that a process has open
TRIES = 10_000  # to store on condition of a version
LINGER = 0.0001  # seconds
LOOK = 0.00005  # seconds between two looks at whether the others have come


class Undo(Exception):
    """Raised in a transaction to have it rolled back."""


def _transact(cache: Cache, calls: Sequence[Call], undone: bool) -> tuple[Any, ...]:
    answers = []
    with contextlib.suppress(Undo), cache.transact(retry=True):
        for name, *arguments in calls:
            answers.append(RUN[name](cache, *arguments))
        if undone:
            raise Undo
    return tuple(answers)


def _item(found: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return (number, value) for what a queue answers."""
    key, value = found
    return (None if key is None else key.number), value


def _entry(cache: Cache, key: Any) -> Any:
    found = cache.get_entry(key)
    return None if found is None else (found.value, found.tags)


def _swap(cache: Cache, key: Any, value: int, tags: Tags) -> Any:
    """Store a value if nobody has written since the entry was read, again and again; return what it replaced."""
    for _ in range(TRIES):
        found = cache.get_entry(key)
        version = None if found is None else found.version
        if cache.set(key, value, tags=tags, retry=True, if_version=version):
            return None if found is None else found.value
    raise TimeoutError(f"{TRIES} times somebody else was faster, or was said to be")


def _compute(cache: Cache, key: Any, value: int, tags: Tags) -> Any:
    return cache.get_or_set(key, lambda: value, tags=tags)


def _soft(cache: Cache, _: Any, tags: Tags, match: Any) -> None:
    cache.evict(tags=tags, match=match, soft=True, retry=True)


def _inside(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation on a key that makes it in the namespace of the key, where it has one."""

    def run(cache: Cache, key: Any, *arguments: Any) -> Any:
        if isinstance(key, NamespacedKey):
            (name,) = key.path.names
            return operation(cache.namespace(name), key.key, *arguments)
        return operation(cache, key, *arguments)

    return run


_KEYED: dict[str, Callable[..., Any]] = {
    "look": lambda cache, key: cache.get(key),
    "entry": _entry,
    "set": lambda cache, key, value, tags: cache.set(key, value, tags=tags, retry=True),
    "swap": _swap,
    "compute": _compute,
    "add": lambda cache, key, value, tags: cache.add(key, value, tags=tags, retry=True),
    "incr": lambda cache, key, delta, default: cache.incr(key, delta, default, retry=True),
    "decr": lambda cache, key, delta, default: cache.decr(key, delta, default, retry=True),
    "pop": lambda cache, key: cache.pop(key, retry=True),
    "delete": lambda cache, key: cache.delete(key, retry=True),
    "touch": lambda cache, key: cache.touch(key, FAR, retry=True),
    "expire": lambda cache, key: cache.touch(key, 0, retry=True),
    "retag": lambda cache, key, add, remove: cache.retag(key, add, remove, retry=True),
}
RUN: dict[str, Callable[..., Any]] = {
    **{name: _inside(operation) for name, operation in _KEYED.items()},
    "get": lambda cache, key: cache.get(key),  # by the key that it has in the cache around the namespace
    "push": lambda cache, queue, value, side, tags: cache.push(value, queue, side, tags=tags, retry=True).number,
    "pull": lambda cache, queue, side: _item(cache.pull(queue, side=side, retry=True)),
    "peek": lambda cache, queue, side: _item(cache.peek(queue, side=side, retry=True)),
    "get_many": lambda cache, keys: cache.get_many(keys),
    "set_many": lambda cache, items, tags: cache.set_many(items, tags=tags, retry=True),
    "evict": lambda cache, tags, match: cache.evict(tags=tags, match=match, retry=True),
    "soft": _soft,
    "clear": lambda cache: cache.clear(retry=True),
    "transact": _transact,
    **structure_calls.RUN,
}


class Raised(NamedTuple):
    """The answer of an operation that raised an exception, which none should."""

    error: str


Answered = tuple[int, Any, int]  # when it was called, what it answered, when it returned


def play(cache: Cache, calls: Sequence[Call]) -> list[Answered]:
    """Make the calls and return what came of each; an exception is an answer too."""
    clock, found = time.monotonic_ns, []
    for call in calls:
        called = clock()
        found.append((called, answer_of(cache, call), clock()))
    return found


def answer_of(cache: Cache, call: Call) -> Any:
    """Make a call and return its answer."""
    name, *arguments = call
    try:
        return RUN[name](cache, *arguments)
    except Exception as error:
        return Raised(repr(error))


# -- handles ----------------------------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """Which handle a process uses."""

    place: str  # directory: "slots", "few" or "files"
    implementation: str
    hot: bool
    slow: bool = False  # lingers at generations


PLACES: dict[str, dict[str, Any]] = {
    "slots": {"generation_slots": 1 << 10},
    "few": {"generation_slots": 16},  # keys share slots
    "files": {"generation_slots": 1 << 10, "disk_min_file_size": 0},  # each value in a file
}


def opened(directory: Path, handle: Handle, shards: int) -> Cache:
    """Open a handle, whose clock never goes back."""
    settings = {**PLACES[handle.place], "coherence": handle.implementation, "clock": time.monotonic}
    settings |= {"durability": "process"} | ({} if handle.hot else {"hot_size_limit": 0})
    if shards > 1:
        cache: Cache = FanoutCache(directory / handle.place, shards, 60, **settings)
    else:
        cache = Cache(directory / handle.place, 60, **settings)
    for store in cache._shards.stores if handle.slow else []:
        store.session.slots = store.session.generations.slots = Lingering(store.session.slots)
    return cache


class Handles:
    """The handles that a process has open, on the directories of one proof; each is `spoil`ed when it is opened."""

    def __init__(self, directory: Path, shards: int, spoil: Callable[[Cache], None]) -> None:
        self._directory, self._shards, self._spoil = directory, shards, spoil
        self._open: dict[Handle, Cache] = {}

    def __getitem__(self, handle: Handle) -> Cache:
        if handle not in self._open:
            if len(self._open) == HANDLES:
                self._open.pop(next(iter(self._open))).close()
            self._open[handle] = opened(self._directory, handle, self._shards)
            self._spoil(self._open[handle])
        return self._open[handle]

    def close(self) -> None:
        """Close all of them."""
        for cache in self._open.values():
            cache.close()


class Lingering:
    """Words that are now and then read or written late, so that others come in between two steps."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._random = random.Random(os.getpid())

    def __getitem__(self, index: int, /) -> int:
        value = self._words[index]
        self._linger(0.2)
        return value

    def __setitem__(self, index: int, value: int, /) -> None:
        self._linger(0.5)
        self._words[index] = value
        self._linger(0.5)

    def __len__(self) -> int:
        return len(self._words)

    def _linger(self, often: float) -> None:
        if self._random.random() < often:
            time.sleep(LINGER)


class Gate:
    """Lets the clients of a history begin together, by words in a file that all processes map."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self._mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._words = memoryview(self._mapping).cast("Q")

    def wait(self, client: int, moment: int, others: Sequence[int]) -> None:
        """Say that this client has come to a moment, and return when all have."""
        words = self._words
        words[client] = moment
        patience = time.monotonic() + PATIENCE
        while any(words[other] < moment for other in others):
            time.sleep(LOOK)
            if time.monotonic() > patience:
                raise TimeoutError(f"client {client} waited {PATIENCE:.0f} s for the others")

    def close(self) -> None:
        """Unmap the words."""
        self._words.release()
        self._mapping.close()


# -- processes --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Histories that one process takes part in."""

    handle: Handle
    first: int  # moment of the first gate
    clients: tuple[int, ...]  # of all processes
    histories: list[
        tuple[bool, dict[int, list[list[Call]]]]
    ]  # whether it clears; per client what comes before, and then


def serve(link: Link, number: int, directory: Path, shards: int, spoil: Callable[[Cache], None]) -> None:
    """Take part in histories until the other side ends, with the handles that it names; `spoil` them on opening."""
    handles = Handles(directory, shards, spoil)
    with contextlib.closing(Gate(directory / "gate")) as gate, ThreadPoolExecutor(THREADS) as pool:
        link.tell("ready")
        while (batch := link.hear()) is not None:
            cache = handles[batch.handle]
            mine = [client for client in batch.clients if client // THREADS == number]
            link.tell(list(pool.map(partial(take_part, cache, gate, batch), mine)))
    handles.close()


def take_part(cache: Cache, gate: Gate, batch: Batch, client: int) -> list[list[Answered]]:
    """Play one client's part of each history."""
    found = []
    moment = batch.first
    cleared = False
    for clears, calls in batch.histories:
        before, after = calls[client]
        if clears or cleared:
            gate.wait(client, moment, batch.clients)  # the one before this has ended
        if clears and client == batch.clients[0]:
            cache.clear(retry=True)
        cleared = clears
        done = play(cache, before)
        gate.wait(client, moment + 1, batch.clients)
        found.append(done + play(cache, after))
        moment += 2
    return found
