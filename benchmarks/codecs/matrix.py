"""What is found: for every codec, kind and size the times of each repetition and the bytes stored; and how.

Every codec is measured on every value in turn, again and again, within the seconds that were asked for. Each turn
times a block of calls of one kind, encoding or decoding, and the number of calls follows from a first look at how long
one takes. Codecs that are compared are measured right after each other, on the same values.

Times are nanoseconds per value, sizes bytes per value. `plain` is the size without compression, in msgpack: the one
measure that speeds and shares of all codecs are told in.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.codecs.subjects import Opened, Subject
from benchmarks.codecs.values import KINDS, SIZES, plain_size, samples
from benchmarks.intervals import Spread
from benchmarks.measure import Costs, alternate, amount, clock, time_once
from benchmarks.peers.spec import BenchmarkError

MEGABYTE = 1_000_000
NS_PER_SECOND = 1_000_000_000
MOST_CALLS = 10_000
LOOKS = 3
QUICK = 1_000_000  # nanoseconds; a slower call needs no second look
HALVINGS = 60
OPERATIONS = ("encode", "decode")


class WrongValueError(BenchmarkError):
    """A value did not come back equal and of the same type."""


@dataclass(frozen=True)
class Effort:
    """How much is measured, once all is prepared."""

    seconds: float = amount(120.0, "how long to time calls, about")
    repeats: int = amount(6, "repetitions, in each of which all take turns")


@dataclass(frozen=True)
class Cell:
    """One codec on values of one kind and size; a time for each repetition."""

    subject: Subject
    kind: str
    size: str
    plain: float
    stored: float
    encode: tuple[float, ...]
    decode: tuple[float, ...]

    @property
    def share(self) -> float:
        """Return the bytes stored as a share of the plain size."""
        return self.stored / self.plain

    @property
    def both(self) -> tuple[float, ...]:
        """Return the time of encoding and decoding together, for each repetition."""
        return tuple(there + back for there, back in zip(self.encode, self.decode, strict=True))

    def speed(self, operation: str) -> float:
        """Return the megabytes per second of "encode" or "decode", in bytes of the plain size."""
        return self.plain / MEGABYTE / max(Spread.of(getattr(self, operation)).median, 1.0) * NS_PER_SECOND


@dataclass
class Matrix:
    """One whole run; `skipped` has the labels of codecs that were left out, by what to install for them."""

    machine: dict[str, str]
    options: dict[str, Any]
    cells: list[Cell] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def subjects(self) -> list[Subject]:
        """Return the codecs that were measured, in the order of measuring."""
        return list(dict.fromkeys(cell.subject for cell in self.cells))

    def of(self, kind: str, size: str) -> list[Cell]:
        """Return the cells of every codec on one kind and size."""
        return [cell for cell in self.cells if (cell.kind, cell.size) == (kind, size)]

    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if any(cell.kind == kind for cell in self.cells)]

    def sizes(self) -> list[str]:
        return [size for size in SIZES if any(cell.size == size for cell in self.cells)]


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the mean that gives every number the same weight, however large the others are."""
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


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


def alike(value: Any, back: Any) -> bool:
    """Tell whether data came back as it was."""
    return type(back) is type(value) and back == value and repr(back) == repr(value)


@dataclass
class Place:
    """One cell of the matrix before it is measured: all values are encoded and decoded once, and compared."""

    subject: Subject
    kind: str
    size: str
    opened: Opened
    values: Sequence[Any]
    same: Callable[[Any, Any], bool] = alike

    def __post_init__(self) -> None:
        payloads = [self.opened.encoder(value)[:2] for value in self.values]
        for value, payload in zip(self.values, payloads, strict=True):
            if not self.same(value, self.opened.decoder(payload)):
                told = f"{self.subject.label} on {self.kind} of {self.size}"
                raise WrongValueError(f"{told}: a value came back as another one")
        self.stored = sum(len(payload) for _, payload in payloads) / len(payloads)
        self.encode = Timing(self.opened.encoder, self.values)
        self.decode = Timing(self.opened.decoder, payloads)

    def cell(self) -> Cell:
        """Return what was found."""
        plain = sum(map(plain_size, self.values)) / len(self.values)
        times = tuple(self.encode.times), tuple(self.decode.times)
        return Cell(self.subject, self.kind, self.size, plain, self.stored, *times)


def places(
    opened: dict[Subject, Opened], kinds: Collection[str], sizes: Collection[str], note: Callable[[str, float], None]
) -> tuple[list[Place], list[str]]:
    """Prepare every codec on every kind and size; return what can be measured, and what came back wrong."""
    found, wrong = list[Place](), list[str]()
    for number, kind in enumerate(kinds):
        for size in sizes:
            note(f"{kind} of {size}, prepared", number / len(kinds))
            values = samples(kind, SIZES[size])
            for subject, one in opened.items():
                try:
                    found.append(Place(subject, kind, size, one, values))
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


def measure(found: Sequence[Place], effort: Effort, costs: Costs, note: Callable[[str, float], None]) -> None:
    """Measure all places in turn; each turn has a call of each at least."""
    repeats = effort.repeats
    timings = {f"{number} {one}": getattr(place, one) for number, place in enumerate(found) for one in OPERATIONS}
    share_out(list(timings.values()), effort.seconds * 1e9 / repeats)
    gc.freeze()  # what is held for the run is not looked through again and again while it decodes
    try:
        for step, (number, name) in enumerate(alternate(repeats, list(timings))):
            if step % 50 == 0:
                note(f"repetition {number + 1} of {repeats}", step / (repeats * len(timings)))
            timings[name].measure(costs)
    finally:
        gc.unfreeze()
