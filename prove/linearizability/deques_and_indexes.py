"""Linearizability of `Deque` and `Index`: several processes and threads work on one, and their answers have one order.

Each history has the structure for itself, since all its operations concern all of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..proof import Proof
from .caches import History, Linearizability, Weights, tear_transactions
from .checker import Effect, Operation, State, refuted
from .histories import NO_ORDER, Call, Recorded
from .structure_calls import STRUCTURES, changes

LENGTH = (5, 8)  # operations of a client
KEYS = ("a", "b", "c", "d")

DEQUE: Weights = {
    "append": 12,
    "appendleft": 8,
    "extend": 4,
    "extendleft": 3,
    "pop": 8,
    "popleft": 10,
    "at": 10,
    "put": 4,
    "drop": 3,
    "insert": 5,
    "remove": 3,
    "rotate": 3,
    "reverse": 2,
    "times": 1,
    "len": 5,
    "turn": 3,
    "ends": 3,
}
INDEX: Weights = {
    "get": 14,
    "at": 4,
    "in": 4,
    "put": 12,
    "drop": 5,
    "setdefault": 8,
    "update": 5,
    "pop": 5,
    "popitem": 6,
    "peekitem": 6,
    "len": 6,
    "move": 6,
}


class DrawStructure:
    """Draws the calls of one history on a structure."""

    keys = KEYS
    queue = ""

    def __init__(self, source: random.Random, name: str, weights: Weights, length: tuple[int, int]) -> None:
        self._random, self._weights, self._length = source, weights, length
        self._kind = "deque" if "rotate" in weights else "index"
        self._number = 0

    def history(self, clients: int) -> History:
        """Return all calls for so many clients."""
        before: list[Call] = []
        if self._kind == "deque":
            before = [("deque.limit", self._random.choice((None, None, 3, 1 << 10)))]
        before += self._calls(3)
        calls = [self._calls(self._random.randint(*self._length)) for _ in range(clients)]
        return History(before, calls, True)

    def _calls(self, length: int) -> list[Call]:
        names = self._random.choices(list(self._weights), list(self._weights.values()), k=length)
        draw = self._deque if self._kind == "deque" else self._index
        return [(f"{self._kind}.{name}", *draw(name)) for name in names]

    def _value(self) -> int:
        self._number += 1
        return self._number

    def _deque(self, name: str) -> tuple[Any, ...]:
        place = self._random.choice((0, -1, 0, -1, 1, -2, 2, 5))
        if name in ("append", "appendleft"):
            return (self._value(),)
        if name in ("extend", "extendleft"):
            return ([self._value() for _ in range(self._random.randint(0, 3))],)
        if name in ("at", "drop"):
            return (place,)
        if name in ("put", "insert"):
            return place, self._value()
        if name == "remove":
            return (self._random.randint(1, self._number + 1),)
        if name == "rotate":
            return (self._random.randint(-2, 2),)
        if name == "times":
            return (self._random.choice((1, 2)),)
        return ()

    def _index(self, name: str) -> tuple[Any, ...]:
        key, other = self._random.sample(KEYS, 2)
        if name in ("popitem", "peekitem"):
            return (self._random.random() < 0.5,)
        if name == "len":
            return ()
        if name in ("put", "setdefault"):
            return key, self._value()
        if name == "update":
            return ({key: self._value(), other: self._value()},)
        return (key, other) if name == "move" else (key,)


# -- the judge --------------------------------------------------------------------------------------------------------


def violations(history: Sequence[Recorded], _: Mapping[Any, int]) -> list[str]:
    """Return a text if no order explains what was answered on a structure, which was empty before."""
    kind = history[0].call[0].partition(".")[0]
    started = [each for each in history if each.call[0] != "deque.limit"]
    limit = [each.call[1] for each in history if each.call[0] == "deque.limit"]
    initial: State = (*limit, ()) if kind == "deque" else ()
    operations = [
        Operation(each.called, each.returned, _effect(kind, each), changes(_name(each), each.answer))
        for each in started
    ]
    refutation = refuted(operations, initial)
    if refutation is None:
        return []
    lines = [f"{NO_ORDER}; at most {len(refutation.placed)} of {len(started)} (ns, client):"]
    begin = min(each.called for each in started)
    for index in sorted(range(len(started)), key=lambda index: started[index].called):
        each = started[index]
        times = f"{each.called - begin:10} {each.returned - begin:10}"
        lines.append(
            f"{' ' if index in refutation.placed else '>'} {times}  {each.client}  {each.call} = {each.answer}"
        )
    return ["\n".join([*lines, f"state: {refutation.state}"])]


def _name(recorded: Recorded) -> str:
    return str(recorded.call[0].partition(".")[2])


def _effect(kind: str, recorded: Recorded) -> Effect:
    structure, name, arguments, answer = STRUCTURES[kind], _name(recorded), recorded.call[1:], recorded.answer

    def effect(state: State) -> Iterator[tuple[State, bool]]:
        right, after = structure.followed(state, name, *arguments)
        if answer == right and type(answer) is type(right):
            yield after, True

    return effect


_WHO = "3 to 6 clients in 3 processes at once, hot and cold, on"
_ON = partial(Linearizability, length=LENGTH, draw=DrawStructure, find=violations)
PROOFS: dict[str, Proof] = {
    "linearizability-deque": Proof(
        2, f"{_WHO} one Deque, with and without maxlen: all operations are linearizable", _ON(DEQUE), bulk=2.0
    ),
    "linearizability-index": Proof(2, f"{_WHO} one Index: all operations are linearizable", _ON(INDEX), bulk=2.0),
    "linearizability-torn-deque": Proof(
        2,
        "transactions of a Deque commit each write separately",
        _ON(DEQUE, spoil=tear_transactions, least=30),
        share=0.5,
        finds=NO_ORDER,
    ),
}
