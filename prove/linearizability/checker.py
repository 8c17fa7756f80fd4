"""Whether a history of operations that ran at once can be put in an order: linearizability, by Wing and Gong's search.

An operation may be placed next if none that is still to be placed had returned before it was called (Wing and Gong,
"Testing and verifying concurrent objects", 1993). What has been placed and the state that it leads to are a
configuration; none is looked at twice (Lowe, "Testing for linearizability", 2017). An operation that, by its answer,
changes nothing in any state is placed as soon as the state agrees with it: whatever order has it later, also exists
with it here.

An operation is pending whose client was killed before it returned. It may be placed anywhere after its call, or
nowhere, or stay incomplete; but not after certain operations that began when its client was gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

State = tuple[Any, ...]  # hashable
MOST: int = 2_000_000  # configurations that are looked at; the search is exponential at worst
Effect = Callable[[State], Iterable[tuple[State, bool]]]


class Undecided(Exception):
    """A history has too many orders to try them all, and none of those tried explains it."""


class Operation(NamedTuple):
    """One operation of a history: the interval in which it took effect, and how."""

    called: int
    returned: int
    effect: Effect  # the states that it may lead to with the answer it gave, each with whether it is complete then
    changes: bool = True  # False: no state is ever another after it, the answer being what it is
    closed_by: frozenset[int] | None = None  # of one that is pending: the operations after which it takes no effect


class Refutation(NamedTuple):
    """How far the search came in the history that has no order: what was placed at most, and the state then."""

    placed: frozenset[int]
    state: State


def refuted(operations: Sequence[Operation], initial: State) -> Refutation | None:
    """Return None if the operations have an order that explains all answers; else where the search ended.

    Raises Undecided after `MOST` configurations.
    """
    order = sorted(range(len(operations)), key=lambda index: (_is_pending(operations[index]), operations[index].called))
    bits = {index: 1 << bit for bit, index in enumerate(order)}
    closing = [sum(bits[index] for index in operations[each].closed_by or ()) for each in order]
    furthest = _Search([operations[index] for index in order], closing).run(initial)
    if furthest is None:
        return None
    done, state = furthest
    return Refutation(frozenset(index for bit, index in enumerate(order) if done >> bit & 1), state)


def _is_pending(operation: Operation) -> bool:
    return operation.closed_by is not None


class _Search:
    """Depth first, over operations sorted by the time of their call, those that are pending behind all others.

    Those placed are the bits of an integer, as are those that close each of the pending ones.
    """

    def __init__(self, operations: Sequence[Operation], closing: Sequence[int]) -> None:
        self._operations = operations
        self._closing = closing
        self._answered = sum(not _is_pending(operation) for operation in operations)

    def run(self, initial: State) -> tuple[int, State] | None:
        """Return None if all that was answered can be placed, else the configuration with the most of it placed."""
        everything = (1 << self._answered) - 1
        furthest = start = (0, initial)
        seen, stack = {start}, [start]
        while stack:
            configuration = stack.pop()
            done, state = configuration
            if done & everything == everything:
                return None
            if len(seen) > MOST:
                raise Undecided
            if (done & everything).bit_count() > (furthest[0] & everything).bit_count():
                furthest = configuration
            for following in self._following(done, state):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        return furthest

    def _following(self, done: int, state: State) -> list[tuple[int, State]]:
        """Return what may come next, the likeliest last."""
        found: list[tuple[int, State]] = []
        for index, operation in self._next(done):
            for after, complete in operation.effect(state):
                placed = (done | 1 << index if complete else done, after)
                if not operation.changes:
                    return [placed]
                found.append(placed)
        return found if self._answered == len(self._operations) else found[::-1]

    def _next(self, done: int) -> Iterator[tuple[int, Operation]]:
        """Yield the operations that may be placed next, with their numbers."""
        operations = self._operations
        index = (~done & (done + 1)).bit_length() - 1  # the first that is not placed
        deadline = operations[index].returned
        while index < self._answered:
            operation = operations[index]
            if operation.called > deadline:
                break
            if not done >> index & 1:
                yield index, operation
                deadline = min(deadline, operation.returned)
            index += 1
        for index in range(self._answered, len(operations)):
            if not done & (1 << index | self._closing[index]) and operations[index].called <= deadline:
                yield index, operations[index]
