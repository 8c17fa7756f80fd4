"""What a history of several machines must not contain: reads that are too old, go back, or see what is not there.

All times are nanoseconds of CLOCK_BOOTTIME, which the machines of a test share. The value of each write to a key is
another one, so that a read tells whose write it saw.

Nobody knows in which order the server has made two writes that ran at once. Of two that did not, the one that ended
first came first; and a read that began so late that it had to see another write, but returned this one's value, shows
that this one came later. If the order must be both ways round, a read was too old. Longer circles need not be looked
for: the one of them that ended first precedes all others, so it is in a circle of two.

A write whose outcome is unknown may take effect at any time after it began, or never; once its value was read it has. A
write takes effect once: one that comes back because a request was sent twice is found as a read that is too old.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, Self

from ..linearizability.checker import Operation as Step
from ..linearizability.checker import State, refuted

STALE = "stale across machines"
UNSEEN = "stale on one machine"
BACK = "one process went back"
UNWRITTEN = "nobody wrote that"
INEXACT = "no order explains what was done on the server"
TOO_OLD = f"{STALE}|{UNSEEN}|{BACK}"  # what a control has to find
OPEN = 6  # writes of unknown outcome, beyond which the orders of a key's writes are too many to be tried


Kind = Literal["get", "set", "add", "incr", "delete"]
Outcome = Literal["acknowledged", "unknown"]

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
        return self.kind != "get" and self.changed

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


class Violation(NamedTuple):
    """A read, or another operation, that should not have come to what it did."""

    what: str
    operation: Operation
    source: Operation | Loss | None = None  # whose state it saw
    newer: Operation | Loss | None = None  # what it should have seen instead, or something newer still
    other: Operation | None = None  # a read by which the order of these two would be the other way round

    def __str__(self) -> str:
        lines = [f"{self.what}: {self.operation}"]
        lines += [f"  it saw: {self.source}"] * (self.source is not None)
        lines += [f"  but before: {self.newer}"] * (self.newer is not None)
        lines += [f"  of which this saw the other one: {self.other}"] * (self.other is not None)
        return "\n".join(lines)


@dataclass(eq=False)
class _Change:
    """A write, or a loss, of one key."""

    cause: Operation | Loss | None  # None: the beginning, at which there was nothing
    begin: float
    end: float  # of its acknowledgement; NEVER if there was none
    done: float = field(init=False)  # when it had taken effect at the latest
    late: float = -math.inf  # the beginning of the last of the reads that are looked at which saw it
    witness: Operation | None = None  # that read

    def __post_init__(self) -> None:
        self.done = self.end

    def seen_by(self, read: Operation) -> None:
        if read.begin > self.late:
            self.late, self.witness = read.begin, read


class _Key:
    """The changes and the reads of one key."""

    def __init__(self, part: History) -> None:
        self.reads = [each for each in part.operations if each.kind == "get" and each.outcome == "acknowledged"]
        self._writers: dict[int | None, _Change] = {
            each.value: _Change(each, each.begin, each.end if each.outcome == "acknowledged" else NEVER)
            for each in part.operations
            if each.writes and each.kind != "delete" and each.value is not None
        }
        self._unknown = [each for each in part.operations if each.kind == "incr" and each.outcome == "unknown"]
        deletions = [each for each in part.operations if each.writes and each.kind == "delete"]
        self.removals = [
            _Change(None, -math.inf, -math.inf),
            *(_Change(each, *each[:2]) for each in part.losses),
            *(_Change(each, each.begin, each.end if each.outcome == "acknowledged" else NEVER) for each in deletions),
        ]
        self.strays = [each for each in self.reads if each.value is not None and not self._ascribe(each)]
        self.removals.sort(key=lambda change: change.begin)
        self._begins = [change.begin for change in self.removals]
        self._latest_done = list(accumulate((change.done for change in self.removals), max))

    def _ascribe(self, read: Operation) -> bool:
        """Find out whose value was read, and that this write has taken effect by then; tell whether there is any."""
        change = self.source(read)
        if change is None:
            # An incr that was never answered may have made any number.
            begun = [each for each in self._unknown if each.begin < read.end]
            if not begun:
                return False
            change = self._writers[read.value] = _Change(begun[0], min(each.begin for each in begun), NEVER)
        change.done = min(change.done, read.end)
        return change.begin < read.end

    def source(self, read: Operation) -> _Change | None:
        """Return the write whose value was read; None if nothing was."""
        return self._writers.get(read.value) if read.value is not None else None

    @property
    def writes(self) -> list[_Change]:
        """What has stored something."""
        return list(self._writers.values())

    def missing_since(self, read: Operation) -> float:
        """Return when all that may have been the reason why nothing was read had taken effect."""
        return self._latest_done[bisect_left(self._begins, read.end) - 1]

    def look(self, reads: Iterable[Operation]) -> None:
        """Note by which of these reads each write was seen last."""
        for change in self._writers.values():
            change.late, change.witness = -math.inf, None
        for read in reads:
            if (source := self.source(read)) is not None:
                source.seen_by(read)


def _too_old(
    what: str, key: _Key, reads: Sequence[Operation], must_see: Callable[[_Change], bool], lag: float, excuse: bool
) -> Iterator[Violation]:
    """Yield the last read of each value that it cannot have returned if it saw all that ended `lag` before it began."""
    key.look(reads)
    known = [change for change in [*key.writes, *key.removals[1:]] if must_see(change) and change.end != NEVER]
    for change in key.writes:
        before = [each for each in known if each is not change and each.end < change.late - lag]
        if change.witness is None or not before:
            continue
        newer, other = max(before, key=lambda each: each.begin), max(before, key=lambda each: each.late)
        if newer.begin > change.done:
            yield Violation(what, change.witness, change.cause, newer.cause)
        # If this one began when the other had ended, it is the read of the other that was too old.
        elif must_see(change) and other.late - lag > change.end and other.done >= change.begin:
            yield Violation(what, change.witness, change.cause, other.cause, other.witness)
    if excuse:
        return
    stored = sorted((each for each in key.writes if each in known), key=lambda change: change.end, reverse=True)
    latest: _Change | None = None
    for read in sorted((each for each in reads if each.value is None), key=lambda each: each.begin):
        while stored and stored[-1].end < read.begin - lag:
            latest = max(latest or stored[-1], stored.pop(), key=lambda change: change.begin)
        if latest is not None and latest.begin > key.missing_since(read):
            yield Violation(what, read, None, latest.cause)


def stale_across_machines(history: History, max_staleness: float, excuse_missing: bool = False) -> Iterator[Violation]:
    """Yield reads whose value had been overwritten, removed or lost more than `max_staleness` seconds before.

    `excuse_missing`: they may find nothing at any time, as where an error counts as a miss.
    """
    for part in history.by_key():
        key = _Key(part)
        yield from (Violation(UNWRITTEN, read) for read in key.strays)
        yield from _too_old(STALE, key, key.reads, lambda change: True, max_staleness * SECOND, excuse_missing)


def stale_on_one_machine(history: History, excuse_missing: bool = False) -> Iterator[Violation]:
    """Yield reads that did not see what had been acknowledged on their own machine before they began."""
    for part in history.by_key():
        key = _Key(part)
        for machine in sorted({read.machine for read in key.reads}):
            reads = [read for read in key.reads if read.machine == machine]

            def own(change: _Change, machine: int = machine) -> bool:
                return isinstance(change.cause, Operation) and change.cause.machine == machine

            yield from _too_old(UNSEEN, key, reads, own, 0, excuse_missing)


def gone_back(history: History, excuse_missing: bool = False) -> Iterator[Violation]:
    """Yield reads that returned something older than what their process had read before."""
    for part in history.by_key():
        key = _Key(part)
        newest: dict[int, _Change] = {}
        for read in sorted(key.reads, key=lambda each: each.begin):
            change, before = key.source(read), newest.get(read.process)
            if change is None and excuse_missing:
                continue
            done = key.missing_since(read) if change is None else change.done
            if before is not None and done < before.begin:
                yield Violation(BACK, read, change.cause if change else None, before.cause)
            elif change is not None and (before is None or change.begin > before.begin):
                newest[read.process] = change


# -- what is done on the server ---------------------------------------------------------------------------------------


def inexact(history: History) -> Iterator[Violation]:
    """Yield the first operation of each key that cannot have come to what it did, whatever the order was.

    `incr`, `add`, `set` and `delete` are one step each, on the server. Keys with more than `OPEN` writes of unknown
    outcome are only looked at for two `incr` that came to one number.
    """
    for part in history.by_key():
        steps = [each for each in part.operations if each.kind != "get"]
        yield from _counted_twice(steps)
        if is_exact(part):
            begun = sorted(steps, key=lambda each: each.begin)
            found = refuted([*map(_step, begun), *map(_lost, part.losses)], (None,))
            if found is not None:
                yield Violation(INEXACT, next(each for number, each in enumerate(begun) if number not in found.placed))


def is_exact(part: History) -> bool:
    """Tell whether the order of a key's writes can be looked for: few of them have an unknown outcome."""
    unknown = [each for each in part.operations if each.kind != "get" and each.outcome == "unknown"]
    return len(unknown) <= OPEN


def _counted_twice(steps: Iterable[Operation]) -> Iterator[Violation]:
    known: dict[int | None, Operation] = {}
    for each in steps:
        if each.kind == "incr" and each.outcome == "acknowledged":
            if each.value in known:
                yield Violation(INEXACT, each, known[each.value])
            known[each.value] = each


def _step(operation: Operation) -> Step:
    def effect(state: State) -> list[tuple[State, bool]]:
        found = _after(operation, state[0])
        return [((found[0],), True)] if found else []

    closed = None if operation.outcome == "acknowledged" else frozenset[int]()
    # The checker counts in whole numbers; what was never answered may come last.
    return Step(int(operation.begin), int(min(operation.end, 1 << 62)), effect, operation.changed, closed)


def _after(operation: Operation, before: int | None) -> tuple[int | None] | None:
    """Return what is there after an operation; None if it cannot have come to what it did."""
    known = operation.outcome == "acknowledged"
    if operation.kind == "delete":
        return (None,)
    if operation.kind == "set":
        return (operation.value,)
    if operation.kind == "add":
        if known and (before is None) != operation.changed:
            return None
        return (operation.value if before is None else before,)
    total = (operation.start if before is None else before) + 1
    return None if known and total != operation.value else (total,)


def _lost(loss: Loss) -> Step:
    return Step(int(loss.begin), int(loss.end), lambda state: [((None,), True)])


def violations(history: History, max_staleness: float, excuse_missing: bool = False) -> list[Violation]:
    """Return all that is wrong with a history, a few of each kind."""
    return [
        *stale_across_machines(history, max_staleness, excuse_missing),
        *stale_on_one_machine(history, excuse_missing),
        *gone_back(history, excuse_missing),
        *inexact(history),
    ]
