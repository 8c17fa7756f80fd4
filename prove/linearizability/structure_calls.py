"""What is called on a deque and an index, and what it must answer: what `collections.deque` and `OrderedDict` answer.

Each operation is spelled once, and played on the structure by the clients, on the model by the checker.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from diskcache_like import Cache, Deque, Index

ERRORS = (IndexError, KeyError, ValueError)  # that are answers

Operation = Callable[..., Any]


class ModelDeque(deque[Any]):
    """A `collections.deque` with what only a Deque has."""

    def transact(self) -> AbstractContextManager[None]:
        """Make the body one step, as all here is."""
        return nullcontext()


class ModelIndex(OrderedDict[Any, Any]):
    """An OrderedDict with what only an Index has."""

    def peekitem(self, last: bool = True) -> tuple[Any, Any]:
        """Return the item inserted last, or first."""
        for key in reversed(self) if last else self:
            return key, self[key]
        raise KeyError("empty")

    transact = ModelDeque.transact


def _put(items: Any, place: Any, value: Any) -> None:
    items[place] = value


def _drop(items: Any, place: Any) -> None:
    del items[place]


def _turned(items: Any) -> Any:
    """Move the item in front to the back, and return it."""
    with items.transact():
        value = items.popleft()
        items.append(value)
        return value


def _ends(items: Any) -> Any:
    """Return what is at both ends at one time, and how much there is."""
    with items.transact():
        return items[0], items[-1], len(items)


def _moved(items: Any, key: Any, other: Any) -> Any:
    """Move a value from one key to another, and return what was there, and how much is left."""
    with items.transact():
        value, there = items.pop(key), items.get(other)
        items[other] = value
        return there, len(items)


def _multiplied(items: Any, times: int) -> None:
    items *= times


DEQUE: dict[str, Operation] = {
    "append": lambda items, value: items.append(value),
    "appendleft": lambda items, value: items.appendleft(value),
    "extend": lambda items, values: items.extend(values),
    "extendleft": lambda items, values: items.extendleft(values),
    "pop": lambda items: items.pop(),
    "popleft": lambda items: items.popleft(),
    "at": lambda items, place: items[place],
    "put": _put,
    "drop": _drop,
    "insert": lambda items, place, value: items.insert(place, value),
    "remove": lambda items, value: items.remove(value),
    "rotate": lambda items, steps: items.rotate(steps),
    "reverse": lambda items: items.reverse(),
    "times": _multiplied,
    "len": len,
    "turn": _turned,
    "ends": _ends,
}
INDEX: dict[str, Operation] = {
    "get": lambda items, key: items.get(key),
    "at": lambda items, key: items[key],
    "in": lambda items, key: key in items,
    "put": _put,
    "drop": _drop,
    "setdefault": lambda items, key, value: items.setdefault(key, value),
    "update": lambda items, pairs: items.update(pairs),
    "pop": lambda items, key: items.pop(key),
    "popitem": lambda items, last: items.popitem(last=last),
    "peekitem": lambda items, last: items.peekitem(last=last),
    "len": len,
    "move": _moved,
}
READS = {"at", "get", "in", "peekitem", "len", "ends"}


def told(operation: Operation, items: Any, *arguments: Any) -> Any:
    """Return what an operation answers; the name of an error is an answer too."""
    try:
        return operation(items, *arguments)
    except ERRORS as error:
        return type(error).__name__


def changes(name: str, answer: Any) -> bool:
    """Tell whether an operation that gave this answer may change anything."""
    return name not in READS and answer not in [error.__name__ for error in ERRORS]


class Structure(NamedTuple):
    """A kind of structure: how it is made of a cache, its operations, and what they do to a state of it."""

    made: Callable[[Cache], Any]
    operations: dict[str, Operation]
    model: Callable[[Any], Any]  # of a state
    state: Callable[[Any], Hashable]  # of a model

    def run(self, name: str, cache: Cache, *arguments: Any) -> Any:
        """Do an operation on the structure in a cache."""
        return told(self.operations[name], self.made(cache), *arguments)

    def followed(self, state: Any, name: str, *arguments: Any) -> tuple[Any, Any]:
        """Return what an operation answers in a state, and the state after it."""
        model = self.model(state)
        answer = told(self.operations[name], model, *arguments)
        return answer, self.state(model)


def _limited(cache: Cache, limit: int | None) -> None:
    Deque.fromcache(cache).maxlen = limit  # None is none, as in collections.deque


STRUCTURES = {
    "deque": Structure(
        Deque.fromcache,
        DEQUE,
        lambda state: ModelDeque(state[1], state[0]),
        lambda model: (model.maxlen, tuple(model)),
    ),
    "index": Structure(Index.fromcache, INDEX, ModelIndex, lambda model: tuple(model.items())),
}
RUN: dict[str, Operation] = {
    "deque.limit": _limited,
    **{
        f"{kind}.{name}": partial(structure.run, name)
        for kind, structure in STRUCTURES.items()
        for name in structure.operations
    },
}
