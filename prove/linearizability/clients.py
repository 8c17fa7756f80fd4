"""What the processes of a linearizability proof do: calls, handles on one cache that differ, and beginning together."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence import _native, ring
from diskcache_like.coherence.generations import Words
from diskcache_like.encoding.made_keys import NamespacedKey
from tests.support.broken_writers import in_python
from tests.support.sample_writes import FAR
from tests.support.workers import JUDGING, PATIENCE, Link

from . import structure_calls
from .histories import Call, Tags

THREADS = 2  # of a process, at most
PHASES = 3  # of a history, at most: what one client calls before, what all call at once, and what they look at then
HANDLES = 6  # that a process has open
TRIES = 10_000  # to store on condition of a version
LINGER = 0.0001  # seconds
LOOK = 0.00005  # seconds between two looks at whether the others have come


# -- calls on a cache or on its face ----------------------------------------------------------------------------------


@types.coroutine
def told(answer: Any) -> Generator[Any, Any, Any]:
    """Wait for the answer of a face; that of a cache is there already."""
    return (yield from answer.__await__()) if isinstance(answer, Coroutine) else answer


def at_once(answer: Any) -> Any:
    """Return the answer of a cache, or of something written for both."""
    if not isinstance(answer, types.CoroutineType):
        return answer
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for an event loop")


@contextlib.asynccontextmanager
async def _within(transaction: Any) -> AsyncIterator[None]:
    if isinstance(transaction, contextlib.AbstractAsyncContextManager):
        async with transaction:
            yield
    else:
        with transaction:
            yield


class Undo(Exception):
    """Raised in a transaction to have it rolled back."""


async def _transact(cache: Any, calls: Sequence[Call], undone: bool) -> tuple[Any, ...]:
    answers = []
    with contextlib.suppress(Undo):
        async with _within(cache.transact(retry=True)):
            for name, *arguments in calls:
                answers.append(await told(RUN[name](cache, *arguments)))
            if undone:
                raise Undo
    return tuple(answers)


async def _push(cache: Any, queue: str, value: int, side: str, tags: Tags) -> Any:
    return (await told(cache.push(value, queue, side, tags=tags, retry=True))).number


async def _item(found: Any) -> tuple[Any, Any]:
    """Return (number, value) for what a queue answers."""
    key, value = await told(found)
    return (None if key is None else key.number), value


async def _entry(cache: Any, key: Any) -> Any:
    found = await told(cache.get_entry(key))
    return None if found is None else (found.value, found.tags)


async def _swap(cache: Any, key: Any, value: int, tags: Tags) -> Any:
    """Store a value if nobody has written since the entry was read, again and again; return what it replaced."""
    for _ in range(TRIES):
        found = await told(cache.get_entry(key))
        version = None if found is None else found.version
        if await told(cache.set(key, value, tags=tags, retry=True, if_version=version)):
            return None if found is None else found.value
    raise TimeoutError(f"{TRIES} times somebody else was faster, or was said to be")


def _compute(cache: Any, key: Any, value: int, tags: Tags) -> Any:
    async def awaited() -> int:
        return value

    plain = isinstance(cache, Cache) or value % 20_000
    return cache.get_or_set(key, (lambda: value) if plain else awaited, tags=tags)


async def _soft(cache: Any, _: Any, tags: Tags, match: Any) -> None:
    await told(cache.evict(tags=tags, match=match, soft=True, retry=True))


def _inside(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation on a key that makes it in the namespace of the key, where it has one."""

    def run(cache: Any, key: Any, *arguments: Any) -> Any:
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
    "push": _push,
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


class Cancelled(NamedTuple):
    """The answer of an operation whose task was cancelled."""


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
        return at_once(RUN[name](cache, *arguments))
    except Exception as error:
        return Raised(repr(error))


# -- handles ----------------------------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """Which handle a process uses."""

    place: str  # directory, one of `PLACES`
    hot: bool
    slow: bool = False  # lingers at generations


RING = ring.PAGE  # bytes of a write buffer that a few dozen writes fill, a quarter of the least that a user may have
PLACES: dict[str, dict[str, Any]] = {
    "slots": {"generation_slots": 1 << 10},
    "few": {"generation_slots": 16, "write_buffer": 0},  # keys share slots
    "buffered": {"generation_slots": 16, "write_buffer": RING},
    "files": {"generation_slots": 1 << 10, "disk_min_file_size": 0},  # each value in a file
}


def opened(directory: Path, handle: Handle, shards: int) -> Cache:
    """Open a handle, whose clock never goes back."""
    ring.LEAST_CAPACITY = RING
    settings = {**PLACES[handle.place], "clock": time.monotonic}
    settings |= {"durability": "process"} | ({} if handle.hot else {"hot_size_limit": 0})
    if shards > 1:
        cache: Cache = FanoutCache(directory / handle.place, shards, 60, **settings)
    else:
        cache = Cache(directory / handle.place, 60, **settings)
    for store in cache._shards.stores if handle.slow else []:
        slots: Any = Lingering(store.session.slots)
        store.session.slots = store.session.generations.slots = slots
        in_python(store)
        _native.watch_steps(partial(linger, slots))  # of all handles of this process
    return cache


def linger(words: Lingering, _: str) -> None:
    """Take a while after a change of a ring, or not."""
    words.linger(0.5)


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
        self._words: Any = words
        self._random = random.Random(os.getpid())

    def __getitem__(self, index: int, /) -> int:
        value = int(self._words[index])
        self.linger(0.2)
        return value

    def __setitem__(self, index: int, value: int, /) -> None:
        self.linger(0.5)
        self._words[index] = value
        self.linger(0.5)

    def __len__(self) -> int:
        return len(self._words)

    def fill(self, value: int, /) -> None:
        self._words.fill(value)

    def linger(self, often: float) -> None:
        """Take a while, or not."""
        if self._random.random() < often:
            time.sleep(LINGER)


class Gate:
    """Lets the clients of a history begin together, by words in a file that all processes map."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self._mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._words = memoryview(self._mapping).cast("Q")

    async def wait(self, client: int, moment: int, others: Sequence[int], sleep: Callable[[float], Any]) -> None:
        """Say that this client has come to a moment, and return when all have; sleep as the caller does."""
        words = self._words
        words[client] = moment
        patience = time.monotonic() + PATIENCE
        while any(words[other] < moment for other in others):
            await told(sleep(LOOK))
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
    mine: tuple[int, ...]  # of this one
    histories: list[tuple[bool, dict[int, list[list[Call]]]]]  # whether it clears; what each client calls, by phases


Together = Callable[[Cache, Gate, Batch], list[list[list[Answered]]]]  # returns what each client was answered
Play = Callable[[Sequence[Call]], Any]  # returns what was answered, or awaits it


def serve(link: Link, directory: Path, shards: int, spoil: Callable[[Cache], None], together: Together) -> None:
    """Take part in histories until the other side ends, with the handles that it names; `spoil` them on opening."""
    handles = Handles(directory, shards, spoil)
    with contextlib.closing(Gate(directory / "gate")) as gate:
        link.tell("ready")
        while (batch := link.hear(JUDGING)) is not None:
            link.tell(together(handles[batch.handle], gate, batch))
    handles.close()


def in_threads(cache: Cache, gate: Gate, batch: Batch) -> list[list[list[Answered]]]:
    """Play the parts of this process, each in a thread."""

    def part(client: int) -> list[list[Answered]]:
        found: list[list[Answered]] = at_once(take_part(cache, gate, batch, client, partial(play, cache), time.sleep))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(part, batch.mine))


async def take_part(
    cache: Any, gate: Gate, batch: Batch, client: int, play: Play, sleep: Callable[[float], Any]
) -> list[list[Answered]]:
    """Play one client's part of each history."""
    found = []
    moment = batch.first
    cleared = False
    for clears, calls in batch.histories:
        if clears or cleared:
            await gate.wait(client, moment, batch.clients, sleep)  # the one before this has ended
        if clears and client == batch.clients[0]:
            await told(cache.clear(retry=True))
        cleared = clears
        first, *others = calls[client]
        answers = await told(play(first))
        for number, phase in enumerate(others, 1):
            await gate.wait(client, moment + number, batch.clients, sleep)
            answers += await told(play(phase))
        found.append(answers)
        moment += PHASES
    return found
