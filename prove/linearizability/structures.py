"""Histories of one Deque or Index, and their judge: each answers as `collections.deque` and `OrderedDict` do.

Each history has the structure for itself, since all its operations concern all of it.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from diskcache_like import Cache, Deque, Index

from .calls import RUN, History, Weights
from .checker import Effect, State, refuted
from .checker import Operation as Step
from .histories import Call, Recorded, told

LENGTH = (5, 8)  # operations of a client
KEYS = ("a", "b", "c", "d")
ERRORS = (IndexError, KeyError, ValueError)  # that are answers


class ModelDeque(deque[Any]):
    """A `collections.deque` with what only a Deque has."""

    def transact(self) -> AbstractContextManager[None]:
        """Make the body one step, as all here is."""
        return nullcontext()


class ModelIndex(OrderedDict[Any, Any]):
    """An OrderedDict with what only an Index has."""

    def peekitem(self, last: bool = True) -> tuple[Any, Any]:
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


class Operation(NamedTuple):
    """What is done to a structure and to its model alike, how often, and what its arguments are drawn by."""

    weight: int
    run: Callable[..., Any]
    draw: Callable[[DrawStructure], tuple[Any, ...]] = lambda draw: ()
    reads: bool = False


class DrawStructure:
    """Draws the calls of one history on a structure."""

    keys = KEYS
    queue = ""

    def __init__(self, source: random.Random, name: str, weights: Weights, length: tuple[int, int] = LENGTH) -> None:
        self.random, self._weights, self._length = source, weights, length
        self._is_deque = "deque.rotate" in weights
        self.number = 0

    def history(self, clients: int) -> History:
        before: list[Call] = []
        if self._is_deque:
            before = [("deque.limit", self.random.choice((None, None, 3, 1 << 10)))]
        before += self._calls(3)
        return History(before, [self._calls(self.random.randint(*self._length)) for _ in range(clients)], True)

    def _calls(self, length: int) -> list[Call]:
        names = self.random.choices(list(self._weights), list(self._weights.values()), k=length)
        return [(name, *OPERATIONS[name].draw(self)) for name in names]

    def value(self) -> tuple[int]:
        """Return a value that no other has."""
        self.number += 1
        return (self.number,)

    def values(self) -> tuple[list[int]]:
        return ([self.value()[0] for _ in range(self.random.randint(0, 3))],)

    def place(self) -> tuple[int]:
        return (self.random.choice((0, -1, 0, -1, 1, -2, 2, 5)),)

    def place_and_value(self) -> tuple[int, int]:
        return *self.place(), *self.value()

    def key(self) -> tuple[str]:
        return (self.random.choice(KEYS),)

    def key_and_value(self) -> tuple[str, int]:
        return *self.key(), *self.value()

    def two_keys(self) -> tuple[str, ...]:
        return tuple(self.random.sample(KEYS, 2))

    def pairs(self) -> tuple[dict[str, int]]:
        return ({key: self.value()[0] for key in self.two_keys()},)

    def last(self) -> tuple[bool]:
        return (self.random.random() < 0.5,)


_D = DrawStructure
OPERATIONS: dict[str, Operation] = {
    "deque.append": Operation(12, lambda items, value: items.append(value), _D.value),
    "deque.appendleft": Operation(8, lambda items, value: items.appendleft(value), _D.value),
    "deque.extend": Operation(4, lambda items, values: items.extend(values), _D.values),
    "deque.extendleft": Operation(3, lambda items, values: items.extendleft(values), _D.values),
    "deque.pop": Operation(8, lambda items: items.pop()),
    "deque.popleft": Operation(10, lambda items: items.popleft()),
    "deque.at": Operation(10, lambda items, place: items[place], _D.place, reads=True),
    "deque.put": Operation(4, _put, _D.place_and_value),
    "deque.drop": Operation(3, _drop, _D.place),
    "deque.insert": Operation(5, lambda items, place, value: items.insert(place, value), _D.place_and_value),
    "deque.remove": Operation(
        3, lambda items, value: items.remove(value), lambda draw: (draw.random.randint(1, draw.number + 1),)
    ),
    "deque.rotate": Operation(3, lambda items, steps: items.rotate(steps), lambda draw: (draw.random.randint(-2, 2),)),
    "deque.reverse": Operation(2, lambda items: items.reverse()),
    "deque.times": Operation(1, _multiplied, lambda draw: (draw.random.choice((1, 2)),)),
    "deque.len": Operation(5, len, reads=True),
    "deque.turn": Operation(3, _turned),
    "deque.ends": Operation(3, _ends, reads=True),
    "index.get": Operation(14, lambda items, key: items.get(key), _D.key, reads=True),
    "index.at": Operation(4, lambda items, key: items[key], _D.key, reads=True),
    "index.in": Operation(4, lambda items, key: key in items, _D.key, reads=True),
    "index.put": Operation(12, _put, _D.key_and_value),
    "index.drop": Operation(5, _drop, _D.key),
    "index.setdefault": Operation(8, lambda items, key, value: items.setdefault(key, value), _D.key_and_value),
    "index.update": Operation(5, lambda items, pairs: items.update(pairs), _D.pairs),
    "index.pop": Operation(5, lambda items, key: items.pop(key), _D.key),
    "index.popitem": Operation(6, lambda items, last: items.popitem(last=last), _D.last),
    "index.peekitem": Operation(6, lambda items, last: items.peekitem(last=last), _D.last, reads=True),
    "index.len": Operation(6, len, reads=True),
    "index.move": Operation(6, _moved, _D.two_keys),
}
DEQUE, INDEX = (
    {name: operation.weight for name, operation in OPERATIONS.items() if name.startswith(kind)}
    for kind in ("deque", "index")
)


class Structure(NamedTuple):
    """A kind of structure: how it is made of a cache, a model of a state, and the state of a model."""

    made: Callable[[Cache], Any]
    model: Callable[[Any], Any]
    state: Callable[[Any], Hashable]


STRUCTURES = {
    "deque": Structure(
        Deque.fromcache,
        lambda state: ModelDeque(state[1], state[0]),
        lambda model: (model.maxlen, tuple(model)),
    ),
    "index": Structure(Index.fromcache, ModelIndex, lambda model: tuple(model.items())),
}


def _answer(name: str, items: Any, *arguments: Any) -> Any:
    """Return what an operation answers; the name of an error is an answer too."""
    try:
        return OPERATIONS[name].run(items, *arguments)
    except ERRORS as error:
        return type(error).__name__


def _run(name: str, cache: Cache, *arguments: Any) -> Any:
    return _answer(name, STRUCTURES[name.partition(".")[0]].made(cache), *arguments)


def _limited(cache: Cache, limit: int | None) -> None:
    Deque.fromcache(cache).maxlen = limit  # None is none, as in collections.deque


RUN.update({"deque.limit": _limited, **{name: partial(_run, name) for name in OPERATIONS}})


# -- the judge --------------------------------------------------------------------------------------------------------


def violations(history: Sequence[Recorded], _: Mapping[Any, int]) -> list[str]:
    """Return a text if no order explains what was answered on a structure, which was empty before."""
    structure = STRUCTURES[history[0].call[0].partition(".")[0]]
    done = [each for each in history if each.call[0] != "deque.limit"]
    limit = [each.call[1] for each in history if each.call[0] == "deque.limit"]
    initial: State = (*limit, ()) if structure is STRUCTURES["deque"] else ()
    steps = [Step(each.called, each.returned, _effect(structure, each), _changes(each)) for each in done]
    found = refuted(steps, initial)
    shown = [(each, f"{each.call} = {each.answer}", False) for each in done]
    return [] if found is None else ["\n".join(told(found.placed, shown, found.state))]


def _changes(recorded: Recorded) -> bool:
    """Tell whether an operation that gave this answer may change anything."""
    return not OPERATIONS[recorded.call[0]].reads and recorded.answer not in [error.__name__ for error in ERRORS]


def _effect(structure: Structure, recorded: Recorded) -> Effect:
    (name, *arguments), answer = recorded.call, recorded.answer

    def effect(state: State) -> Iterator[tuple[State, bool]]:
        model = structure.model(state)
        right = _answer(name, model, *arguments)
        if answer == right and type(answer) is type(right):
            yield structure.state(model), True  # type: ignore[misc]

    return effect
