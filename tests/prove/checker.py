"""Whether a history of operations that ran at once can be put in an order: linearizability, by Wing and Gong's search.

An operation may be placed next if none that is still to be placed had returned before it was called (Wing and Gong,
"Testing and verifying concurrent objects", 1993). What has been placed and the state that it leads to are a
configuration; none is looked at twice (Lowe, "Testing for linearizability", 2017). An operation that, by its answer,
changes nothing in any state is placed as soon as the state agrees with it: whatever order has it later, also exists
with it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

State = tuple[Any, ...]  # hashable
Effect = Callable[[State], Iterable[tuple[State, bool]]]


class Operation(NamedTuple):
    """One operation of a history: the interval in which it took effect, and how."""

    called: int
    returned: int
    effect: Effect  # the states that it may lead to with the answer it gave, each with whether it is complete then
    changes: bool = True  # False: no state is ever another after it, the answer being what it is


class Refutation(NamedTuple):
    """How far the search came in the history that has no order: what was placed at most, and the state then."""

    placed: frozenset[int]
    state: State


def refuted(operations: Sequence[Operation], initial: State) -> Refutation | None:
    """Return None if the operations have an order that explains all answers; else where the search ended."""
    order = sorted(range(len(operations)), key=lambda index: operations[index].called)
    search = _Search([operations[index] for index in order])
    furthest = search.run(initial)
    if furthest is None:
        return None
    done, state = furthest
    return Refutation(frozenset(index for bit, index in enumerate(order) if done >> bit & 1), state)


class _Search:
    """Depth first, over operations sorted by the time of their call; those placed are the bits of an integer."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    def run(self, initial: State) -> tuple[int, State] | None:
        """Return None if everything can be placed, else the configuration with the most operations placed."""
        everything = (1 << len(self._operations)) - 1
        furthest = start = (0, initial)
        seen, stack = {start}, [start]
        while stack:
            configuration = stack.pop()
            done, state = configuration
            if done == everything:
                return None
            if done.bit_count() > furthest[0].bit_count():
                furthest = configuration
            for following in self._following(done, state):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return furthest

    def _following(self, done: int, state: State) -> list[tuple[int, State]]:
        found: list[tuple[int, State]] = []
        for index, operation in self._next(done):
            for after, complete in operation.effect(state):
                placed = (done | 1 << index if complete else done, after)
                if not operation.changes:
                    return [placed]
                found.append(placed)
        return found

    def _next(self, done: int) -> Iterator[tuple[int, Operation]]:
        """Yield the operations that may be placed next, with their numbers."""
        operations = self._operations
        index = (~done & (done + 1)).bit_length() - 1  # the first that is not placed
        deadline = operations[index].returned
        while index < len(operations):
            operation = operations[index]
            if operation.called > deadline:
                return
            if not done >> index & 1:
                yield index, operation
                deadline = min(deadline, operation.returned)
            index += 1
