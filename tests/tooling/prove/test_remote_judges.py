"""The judges of histories over several machines: what they must let pass, and what they must find."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from prove.remote.judges import (
    BACK,
    INEXACT,
    NEVER,
    OPEN,
    SECOND,
    STALE,
    UNSEEN,
    UNWRITTEN,
    History,
    Kind,
    Loss,
    Operation,
    violations,
)

STALENESS = 10  # seconds


def op(process: int, kind: Kind, value: int | None, begin: float, end: float, **more: Any) -> Operation:
    """Return an operation on "k"; processes 0 to 9 are on machine 0, the next ten on machine 1; times are seconds."""
    end = end if end == NEVER else end * SECOND
    return Operation(process, process // 10, kind, "k", value, begin * SECOND, end, **more)


def lost(begin: float, end: float) -> Loss:
    return Loss(begin * SECOND, end * SECOND)


def found(*events: Operation | Loss, excuse_missing: bool = False) -> list[str]:
    operations = [each for each in events if isinstance(each, Operation)]
    losses = [each for each in events if isinstance(each, Loss)]
    return [each.what for each in violations(History(operations, losses), STALENESS, excuse_missing)]


SET_1, SET_2 = op(0, "set", 1, 0, 1), op(0, "set", 2, 5, 6)
UNKNOWN_1 = op(0, "set", 1, 0, 1, outcome="unknown")
KILLED_1 = op(0, "set", 1, 0, NEVER, outcome="unknown")
DELETE = op(0, "delete", None, 5, 6)
AT_ONCE = op(1, "set", 1, 0, 5), op(11, "set", 2, 0, 6)

GOOD: dict[str, tuple[Operation | Loss, ...]] = {
    "nothing": (),
    "nothing is read where nothing was written": (op(0, "get", None, 0, 1),),
    "the newest value": (SET_1, SET_2, op(10, "get", 2, 7, 8)),
    "an older value within the bound": (SET_1, SET_2, op(10, "get", 1, 15.9, 30)),
    "an older value at the bound": (SET_1, SET_2, op(10, "get", 1, 16, 30)),
    "nothing within the bound": (SET_1, op(10, "get", None, 10, 30)),
    "a value that is being written": (op(0, "set", 1, 0, 9), op(1, "get", 1, 1, 2)),
    "the value before one that is being written": (SET_1, op(0, "set", 2, 5, 90), op(1, "get", 1, 80, 81)),
    "a removed value within the bound": (SET_1, DELETE, op(10, "get", 1, 15, 16)),
    "nothing after a removal": (SET_1, DELETE, op(10, "get", None, 30, 31), op(0, "get", None, 6, 7)),
    "nothing after a loss": (SET_1, lost(5, 6), op(0, "get", None, 7, 8), op(10, "get", None, 30, 31)),
    "a value within the bound after a loss": (SET_1, lost(5, 6), op(0, "get", 1, 15, 16)),
    "a value written while everything was lost": (op(0, "set", 1, 5, 6), lost(5, 7), op(0, "get", 1, 50, 51)),
    "the value of a write of unknown outcome": (UNKNOWN_1, op(10, "get", 1, 50, 51)),
    "nothing after a write of unknown outcome": (UNKNOWN_1, op(0, "get", None, 50, 51)),
    "a write of unknown outcome that takes effect late": (UNKNOWN_1, SET_2, op(10, "get", 1, 50, 51)),
    "the value of a process that was killed": (KILLED_1, SET_2, op(10, "get", 1, 50, 51)),
    "nothing after a removal of unknown outcome": (
        op(0, "delete", None, 0, 1, outcome="unknown"), SET_2, op(10, "get", None, 50, 51),
    ),
    "a value after a removal of unknown outcome": (
        SET_1, op(0, "delete", None, 5, 6, outcome="unknown"), op(0, "get", 1, 50, 51),
    ),
    "either of two writes at once, by everybody": (*AT_ONCE, op(0, "get", 1, 50, 51), op(10, "get", 1, 50, 51)),
    "one of two writes at once, then the other within the bound": (
        *AT_ONCE, op(2, "get", 1, 7, 8), op(12, "get", 2, 7, 8), op(2, "get", 2, 30, 31),
    ),
    "a read that raised": (SET_1, SET_2, op(10, "get", None, 50, 51, outcome="unknown")),
    "counts": (
        op(0, "incr", 101, 0, 5, start=100), op(10, "incr", 102, 0, 5, start=200), op(1, "get", 102, 6, 7),
    ),
    "counts from another beginning after a loss": (
        op(0, "incr", 101, 0, 1, start=100), lost(2, 3), op(10, "incr", 201, 4, 5, start=200),
    ),
    "counts, one of unknown outcome": (
        op(0, "incr", 101, 0, 1, start=100),
        op(0, "incr", None, 2, 3, start=150, outcome="unknown"),
        op(10, "incr", 103, 4, 5, start=200),
        op(11, "get", 102, 5, 6),
    ),
    "one of two adds": (op(0, "add", 1, 0, 5), op(10, "add", 2, 0, 5, changed=False), op(1, "get", 1, 6, 7)),
    "an add after a removal": (SET_1, DELETE, op(10, "add", 2, 7, 8), op(10, "get", 2, 9, 10)),
}  # fmt: skip

BAD: dict[str, tuple[set[str], tuple[Operation | Loss, ...]]] = {
    "a value that nobody wrote": ({UNWRITTEN}, (SET_1, op(10, "get", 3, 2, 3))),
    "a value before it was written": ({UNWRITTEN}, (op(0, "set", 1, 5, 6), op(10, "get", 1, 2, 3))),
    "an older value beyond the bound": ({STALE}, (SET_1, SET_2, op(10, "get", 1, 16.1, 17))),
    "nothing beyond the bound": ({STALE}, (SET_1, op(10, "get", None, 11.1, 12))),
    "a removed value beyond the bound": ({STALE}, (SET_1, DELETE, op(10, "get", 1, 16.1, 17))),
    "a lost value beyond the bound": ({STALE}, (SET_1, lost(5, 6), op(10, "get", 1, 16.1, 17))),
    "nothing, when everything was lost before": (
        {STALE, UNSEEN}, (lost(5, 6), op(0, "set", 1, 7, 8), op(0, "get", None, 18.1, 19)),
    ),
    "a write that comes back": (
        {STALE}, (UNKNOWN_1, op(10, "get", 1, 2, 3), SET_2, op(11, "get", 1, 50, 51)),
    ),
    "an older value on the machine of the newer": ({UNSEEN}, (SET_1, SET_2, op(1, "get", 1, 6.1, 7))),
    "another machine's older value on the machine of the newer": (
        {UNSEEN}, (op(10, "set", 1, 0, 1), SET_2, op(1, "get", 1, 6.1, 7)),
    ),
    "nothing on the machine of a write": ({UNSEEN}, (SET_1, op(1, "get", None, 1.1, 2))),
    "a value that was removed on the same machine": ({UNSEEN}, (SET_1, DELETE, op(1, "get", 1, 6.1, 7))),
    "two machines that keep to either of two writes at once": (
        {STALE}, (*AT_ONCE, op(2, "get", 1, 30, 31), op(12, "get", 2, 30, 31)),
    ),
    "two processes of a machine that keep to either of two writes at once": (
        {UNSEEN}, (op(1, "set", 1, 0, 5), op(2, "set", 2, 0, 6), op(3, "get", 1, 7, 8), op(4, "get", 2, 7, 8)),
    ),
    "a process that goes back": ({BACK}, (SET_1, SET_2, op(10, "get", 2, 7, 8), op(10, "get", 1, 9, 10))),
    "a process that goes back to nothing": ({BACK}, (SET_1, op(10, "get", 1, 2, 3), op(10, "get", None, 4, 5))),
    "a process that goes back beyond a write of unknown outcome": (
        {BACK},
        (SET_1, op(0, "set", 2, 5, 6, outcome="unknown"), op(10, "get", 2, 7, 8), op(10, "get", 1, 9, 10)),
    ),
    "two counts that come to one": (
        {INEXACT}, (op(0, "incr", 101, 0, 5, start=100), op(10, "incr", 101, 0, 5, start=100)),
    ),
    "a count that is left out": (
        {INEXACT}, (op(0, "incr", 101, 0, 1, start=100), op(10, "incr", 103, 2, 3, start=200)),
    ),
    "a count of unknown outcome that counts twice": (
        {INEXACT},
        (
            op(0, "incr", 101, 0, 1, start=100),
            op(0, "incr", None, 2, 3, start=150, outcome="unknown"),
            op(10, "incr", 104, 4, 5, start=200),
        ),
    ),
    "a count that forgets": (
        {INEXACT}, (op(0, "incr", 101, 0, 1, start=100), op(10, "incr", 201, 2, 3, start=200)),
    ),
    "two adds": ({INEXACT}, (op(0, "add", 1, 0, 5), op(10, "add", 2, 0, 5))),
    "an add that finds nothing and stores nothing": ({INEXACT}, (op(0, "add", 1, 0, 5, changed=False),)),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_passes(name: str) -> None:
    assert found(*GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_what_must_not_be_is_found(name: str) -> None:
    wanted, events = BAD[name]
    assert {*found(*events)} == wanted


@pytest.mark.parametrize("machine", [0, 10])
def test_nothing_is_excused_where_an_error_counts_as_a_miss_and_older_values_are_not(machine: int) -> None:
    assert found(SET_1, op(machine, "get", None, 50, 51), excuse_missing=True) == []
    assert STALE in found(SET_1, SET_2, op(machine, "get", 1, 50, 51), excuse_missing=True)
    assert STALE in found(SET_1, DELETE, op(machine, "get", 1, 50, 51), excuse_missing=True)


def test_a_violation_tells_what_was_read_whose_it_was_and_what_is_newer() -> None:
    (only,) = violations(History([SET_1, SET_2, op(10, "get", 1, 50, 51)]), STALENESS)
    first, second, third = str(only).splitlines()
    assert first.startswith("stale across machines: 50.000000 to 51.000000 process 10 of machine 1: get k 1")
    assert "it saw: 0.000000 to 1.000000 process 0 of machine 0: set k 1 acknowledged" in second
    assert "before: 5.000000 to 6.000000" in third


def test_keys_are_judged_each_by_itself() -> None:
    other = op(0, "set", 2, 5, 6)._replace(key="l")
    assert violations(History([SET_1, other, op(10, "get", 1, 50, 51)]), STALENESS) == []


def test_a_key_with_many_writes_of_unknown_outcome_is_still_looked_at_for_numbers_that_come_twice() -> None:
    unknown = [op(0, "incr", None, 0, 1, outcome="unknown") for _ in range(OPEN + 1)]
    counted = op(0, "incr", 900, 2, 3)
    assert found(*unknown, counted) == []
    assert found(*unknown, counted, counted) == [INEXACT]


# -- a model ----------------------------------------------------------------------------------------------------------


class Model:
    """Machines that are as stale as they may be, played by one thread: what they do must pass, and no more."""

    def __init__(self, source: random.Random, staleness: float) -> None:
        self._random, self._staleness = source, staleness * SECOND
        self._states: list[tuple[float, int | None]] = [(-1.0, None)]  # of the server: since when, what
        self._seen = [-1.0] * 4  # of each process: since when there was what it read last
        self._own = [-1.0] * 2  # of each machine: since when there is what it wrote last
        self._now = 0.0
        self.operations: list[Operation] = []
        self.losses: list[Loss] = []

    def play(self, steps: int) -> History:
        for number in range(1, steps + 1):
            begin, at, end = (self._later() for _ in range(3))
            self._step(number, begin, at, end)
            if self._random.random() < 0.6:  # the next begins before this one has ended
                self._now = at
        return History(self.operations, self.losses)

    def _later(self) -> float:
        self._now += self._random.random() * SECOND
        return self._now

    def _step(self, number: int, begin: float, at: float, end: float) -> None:
        process = self._random.randrange(4)
        machine = process // 2
        draw = self._random.random()
        if draw < 0.5:
            value = self._read(process, machine, begin, at)
            self.operations.append(Operation(process, machine, "get", "k", value, begin, end))
        elif draw < 0.55:
            self.losses.append(Loss(begin, end))
            self._states.append((at, None))
        elif draw < 0.7 and self._unknown(process, machine, number, begin, at, end):
            pass
        else:
            kind: Kind = "delete" if draw < 0.75 else "set"
            value = None if kind == "delete" else number
            self.operations.append(Operation(process, machine, kind, "k", value, begin, end))
            self._states.append((at, value))
            self._own[machine] = max(self._own[machine], at)

    def _unknown(self, process: int, machine: int, number: int, begin: float, at: float, end: float) -> bool:
        self.operations.append(Operation(process, machine, "set", "k", number, begin, NEVER, "unknown"))
        if self._random.random() < 0.5:
            self._states.append((at, number))
        return True

    def _read(self, process: int, machine: int, begin: float, at: float) -> int | None:
        """Return a state that the read may see: not ended before the bound, what its machine wrote, or what it saw."""
        states = sorted(self._states, key=lambda each: each[0])
        ends = [*(since for since, _ in states[1:]), NEVER]
        oldest = max(begin - self._staleness, self._own[machine], self._seen[process])
        known = [state for state, end in zip(states, ends, strict=True) if end > oldest and state[0] <= at]
        since, value = self._random.choice(known[:1] * 3 + known)
        self._seen[process] = max(self._seen[process], since)
        return value


@pytest.mark.parametrize("seed", range(40))
def test_machines_that_are_as_stale_as_they_may_be_pass(seed: int) -> None:
    history = Model(random.Random(seed), STALENESS).play(120)
    assert [str(each) for each in violations(history, STALENESS)] == []


def test_machines_that_are_staler_than_they_may_be_are_found() -> None:
    kinds: set[str] = set()
    for seed in range(40):
        history = Model(random.Random(seed), 5 * STALENESS).play(120)
        kinds |= {each.what for each in violations(history, STALENESS)}
    assert kinds == {STALE}


def test_what_one_process_or_machine_forgets_is_found() -> None:
    forgets: dict[str, Callable[[Model], None]] = {
        UNSEEN: lambda model: setattr(model, "_own", _Forgetful([-1.0] * 2)),
        BACK: lambda model: setattr(model, "_seen", _Forgetful([-1.0] * 4)),
    }
    for what, forget in forgets.items():
        kinds: set[str] = set()
        for seed in range(40):
            model = Model(random.Random(seed), STALENESS)
            forget(model)
            kinds |= {each.what for each in violations(model.play(120), STALENESS)}
        assert what in kinds


class _Forgetful(list[float]):
    """A list that keeps nothing."""

    def __setitem__(self, *_: Any) -> None:
        pass
