"""What the clients of a linearizability proof call; each operation is spelled once for a cache and its asyncio face."""

from __future__ import annotations

import contextlib
import random
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from diskcache_like import Cache
from diskcache_like.encoding.made_keys import NamespacedKey, path_of
from tests.support.sample_writes import FAR

from .histories import Call, Place, Tags

LENGTH = (6, 10)  # operations of a client
TRIES = 10_000  # to store on condition of a version
NAMESPACE = path_of(("namespace",))


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
    return (await told(cache.push(value, queue, side, tags=tags, retry=True))) is not None


async def _item(found: Any) -> Any:
    _, value = await told(found)
    return value


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
    name, *arguments = call
    try:
        return at_once(RUN[name](cache, *arguments))
    except Exception as error:
        return Raised(repr(error))


# -- drawing ----------------------------------------------------------------------------------------------------------

Weights = Mapping[str, int]

ENTRIES = {"get": 30, "set": 14, "add": 6, "incr": 6, "decr": 2, "pop": 4, "delete": 5, "touch": 2, "expire": 2}
_LATER = {"look": 8, "entry": 4, "retag": 4, "swap": 5, "compute": 8}
EVERYDAY: Weights = {**ENTRIES, **_LATER, "push": 4, "pull": 4, "peek": 2, "get_many": 5}
WHOLE: Weights = {**EVERYDAY, "transact": 10, "undone": 2, "set_many": 4, "evict": 3, "soft": 2, "clear": 1}


class History(NamedTuple):
    """What the clients of one history call."""

    before: list[Call]  # by the first client, ahead of all
    clients: list[list[Call]]
    clears: bool  # needs the cache for itself
    look: Sequence[list[Call]] = ()  # by each client, when all are done

    def phases(self, position: int) -> list[list[Call]]:
        """Return what a client calls before, at once with the others, and afterwards."""
        before = [] if position else self.before
        return [before, self.clients[position], *self.look[position : position + 1]]


class Draw:
    """Draws the calls of one history, whose keys, queue, tags and values occur in no other."""

    def __init__(self, source: random.Random, name: str, weights: Weights, length: tuple[int, int] = LENGTH) -> None:
        self._random, self._weights, self._length = source, weights, length
        self._number = 0
        self._queue_tags = (f"t{name}", f"u{name}")
        self._tags = (f"s{name}", *self._queue_tags)
        self.keys: list[Place] = [f"{letter}{name}" for letter in "abc"[: source.randint(1, 3)]]
        if source.random() < 0.5:
            self.keys[-1] = NamespacedKey(NAMESPACE, self.keys[-1])
        self.queue = f"q{name}"

    def history(self, clients: int) -> History:
        clears = self._random.random() < 0.5  # one that has none need not wait for the others
        weights = self._weights if clears else {**self._weights, "clear": 0}
        before = [self._call("set", key) for key in self.keys if self._random.random() < 0.7]
        calls = [self._calls(weights) for _ in range(clients)]
        return History(before, calls, any(call[0] == "clear" for each in calls for call in each))

    def _calls(self, weights: Weights) -> list[Call]:
        warming = [("get", key) for key in self.keys]
        length = self._random.randint(*self._length)
        names = self._random.choices(list(weights), list(weights.values()), k=length)
        if self._random.random() < 0.25:  # looks on while others write: that costs little, and sees what goes back
            names = ["get"] * 3 * length
        return [*warming, *(self._call(name, self._random.choice(self.keys)) for name in names)]

    def _call(self, name: str, key: Place) -> Call:
        self._number += 1
        value, tags = self._number * 10_000, self._drawn_tags(self._tags)
        side, match = self._random.choice(("front", "back")), self._random.choice(("any", "all"))
        match name:
            case "set" | "add" | "swap" | "compute":
                return name, key, value, tags
            case "retag":
                return name, key, tags, self._drawn_tags(self._tags)
            case "incr" | "decr":
                return name, key, self._number, value
            case "push":
                return name, self.queue, value, side, self._drawn_tags(self._queue_tags)
            case "pull" | "peek":
                return name, self.queue, side
            case "get_many":
                return name, tuple(self.keys)
            case "set_many":
                return name, {each: value + index for index, each in enumerate(self.keys)}, tags
            case "evict":
                return name, tags or self._tags[1:2], match
            case "soft":  # with a tag that no item of the queue has, which its transactions take as they find it
                return name, tuple(self.keys), self._tags[:1], match
            case "clear":
                return (name,)
            case "transact" | "undone":
                return "transact", self._transaction(), name == "undone"
        return name, key

    def _drawn_tags(self, known: Tags) -> Tags:
        return tuple(tag for tag in known if self._random.random() < 0.4)

    def _transaction(self) -> tuple[Call, ...]:
        """Return the calls of a transaction over two keys, or one key and the queue: reads, writes, perhaps a read."""
        places = self._random.sample([*self.keys, self.queue], 2)
        keys = [place for place in places if place != self.queue]
        kinds = ("set", "incr", "pop", "add", "delete", "get", "retag")
        calls = [("get", key) for key in keys]
        calls += [self._call(self._random.choice(kinds), key) for key in keys]
        if self.queue in places:
            calls.append(self._call(self._random.choice(("push", "pull")), self.queue))
        if self._random.random() < 0.5:
            calls.append(("get", self._random.choice(keys)))  # a write of its own
        return tuple(calls)


class DrawLooked(Draw):
    """Draws histories at whose end all clients look at everything, one of them in a transaction."""

    def history(self, clients: int) -> History:
        reads: list[Call] = [*(("get", key) for key in self.keys), ("peek", self.queue, "front")]
        whole: Call = ("transact", (*reads, ("peek", self.queue, "back")), False)
        return super().history(clients)._replace(look=[[whole, *reads], *([reads] * (clients - 1))])


class Pairs(Draw):
    """Draws transactions that count in a key and in a queue, so that no other hides a half of one."""

    def _transaction(self) -> tuple[Call, ...]:
        return self._call("incr", self.keys[0]), self._call("push", self.keys[0])
