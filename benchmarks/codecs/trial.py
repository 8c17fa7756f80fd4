"""How it is measured: every codec on every value in turn, again and again, within the seconds that were asked for.

Each turn times a block of calls of one kind, encoding or decoding, and the number of calls follows from a first look
at how long one takes: what is fast is called more often, and what is slow once, so that the whole takes the time it
was given. Codecs that are compared are measured right after each other, on the same values.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.codecs.matrix import Cell
from benchmarks.codecs.subjects import Opened, Subject
from benchmarks.codecs.values import SIZES, plain_size, samples
from benchmarks.measure import Costs, alternate, clock, time_once

MOST_CALLS = 10_000
LOOKS = 3
QUICK = 1_000_000  # nanoseconds; a slower call needs no second look
HALVINGS = 60
OPERATIONS = ("encode", "decode")


class WrongValueError(Exception):
    """A value did not come back equal and of the same type."""


@dataclass
class Timing:
    """One function on some arguments: how often it is called in a turn, and what each turn took per call."""

    function: Callable[[Any], Any]
    arguments: Sequence[Any]
    cost: float = 0.0
    rounds: int = 1
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cost = self._turn()
        if self.cost < QUICK:
            self.cost = min(self._turn() for _ in range(LOOKS))

    def _turn(self) -> int:
        return time_once(lambda: [self.function(one) for one in self.arguments])[0]

    def measure(self, costs: Costs) -> None:
        """Time one block of calls."""
        function, arguments = self.function, self.arguments
        start = clock()
        for _ in range(self.rounds):
            for one in arguments:
                function(one)
        elapsed = clock() - start
        self.times.append(max((elapsed - costs.clock) / (self.rounds * len(arguments)) - costs.loop, 0.0))


@dataclass
class Place:
    """One cell of the matrix before it is measured."""

    subject: Subject
    kind: str
    size: str
    plain: float
    stored: float
    encode: Timing
    decode: Timing

    def cell(self) -> Cell:
        """Return what was found."""
        times = tuple(self.encode.times), tuple(self.decode.times)
        return Cell(self.subject, self.kind, self.size, self.plain, self.stored, *times)


def prepare(subject: Subject, opened: Opened, kind: str, size: str, values: Sequence[Any]) -> Place:
    """Encode and decode all values once, compare them, and return what is to be timed."""
    stored = [opened.encode(value) for value in values]
    decode = opened.decoder()
    for value, payload in zip(values, stored, strict=True):
        back = decode(payload)
        if type(back) is not type(value) or back != value or repr(back) != repr(value):
            raise WrongValueError(f"{subject.label} on {kind} of {size}: a value came back as another one")
    return Place(
        subject,
        kind,
        size,
        sum(map(plain_size, values)) / len(values),
        sum(len(payload) for _, payload in stored) / len(values),
        Timing(opened.encoder(), values),
        Timing(decode, stored),
    )


def places(
    opened: dict[Subject, Opened], kinds: Collection[str], sizes: Collection[str], note: Callable[[str, float], None]
) -> tuple[list[Place], list[str]]:
    """Prepare every codec on every kind and size; return what can be measured, and what came back wrong."""
    found: list[Place] = []
    wrong: list[str] = []
    for number, kind in enumerate(kinds):
        for size in sizes:
            note(f"{kind} of {size}, prepared", number / len(kinds))
            values = samples(kind, SIZES[size])
            for subject, one in opened.items():
                try:
                    found.append(prepare(subject, one, kind, size, values))
                except WrongValueError as error:
                    wrong.append(str(error))
    return found, wrong


def share_out(timings: Sequence[Timing], budget: float) -> None:
    """Set the calls of a turn so that all timings take `budget` nanoseconds: the same time each, but one call at least.

    What one call of a slow one takes too much is taken from the others.
    """
    low, high = 0.0, budget
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        spent = sum(max(timing.cost, middle) for timing in timings)
        low, high = (low, middle) if spent > budget else (middle, high)
    for timing in timings:
        timing.rounds = min(max(round(low / max(timing.cost, 1)), 1), MOST_CALLS)


def run(
    found: Sequence[Place], seconds: float, repeats: int, costs: Costs, note: Callable[[str, float], None]
) -> list[Cell]:
    """Measure all places in turn, `repeats` times, in about `seconds`; each turn has a call of each at least."""
    timings = {f"{number} {one}": getattr(place, one) for number, place in enumerate(found) for one in OPERATIONS}
    share_out(list(timings.values()), seconds * 1e9 / repeats)
    gc.freeze()  # what is held for the run is not looked through again and again while it decodes
    try:
        for step, (number, name) in enumerate(alternate(repeats, list(timings))):
            if step % 50 == 0:
                note(f"repetition {number + 1} of {repeats}", step / (repeats * len(timings)))
            timings[name].measure(costs)
    finally:
        gc.unfreeze()
    return [place.cell() for place in found]
