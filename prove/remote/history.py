"""What several machines did at once, with the times at which each operation began and ended.

All times are nanoseconds of CLOCK_BOOTTIME, which the machines of a test share. The value of each write to a key is
another one, so that a read tells whose write it saw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

Kind = Literal["get", "set", "add", "incr", "delete"]
Outcome = Literal["acknowledged", "refused", "unknown"]

SECOND = 1_000_000_000
NEVER = math.inf  # when an operation ends whose process was killed


class Operation(NamedTuple):
    """One call of one process, and what came of it."""

    process: int
    machine: int
    kind: Kind
    key: str
    value: int | None  # that it wrote; of a get what it read, of an incr its result; None: missing, or not known
    begin: float
    end: float
    outcome: Outcome = "acknowledged"
    changed: bool = True  # False of an add that found a value
    start: int = 0  # of an incr: what it counts from where there is nothing

    @property
    def writes(self) -> bool:
        """Whether it has changed what there is of its key, or may have, or may do so yet."""
        return self.kind != "get" and self.outcome != "refused" and self.changed

    def __str__(self) -> str:
        began, ended = self.begin / SECOND, self.end / SECOND
        where = f"process {self.process} of machine {self.machine}"
        return f"{began:.6f} to {ended:.6f} {where}: {self.kind} {self.key} {self.value} {self.outcome}"


class Loss(NamedTuple):
    """When the server has lost all that it had, at some moment between two."""

    begin: float
    end: float
    how: str = "FLUSHALL"

    def __str__(self) -> str:
        return f"{self.begin / SECOND:.6f} to {self.end / SECOND:.6f} the server lost everything by {self.how}"


@dataclass(frozen=True)
class History:
    """All that was done to some keys, and when all of them were lost."""

    operations: Sequence[Operation]
    losses: Sequence[Loss] = ()

    def by_key(self) -> Iterator[Self]:
        """Yield the part of each key."""
        parts: dict[str, list[Operation]] = {}
        for operation in self.operations:
            parts.setdefault(operation.key, []).append(operation)
        for part in parts.values():
            yield type(self)(part, self.losses)
