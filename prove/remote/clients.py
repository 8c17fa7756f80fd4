"""What the processes of a machine do, and how it is written down as it happens, for one of them may be killed."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from tests.support.workers import JUDGING, Link

from ..linearizability.killed_clients import Diary
from .history import NEVER, Kind, Operation, Outcome

READY, CALM, DONE, LOST = "ready", "calm", "done", "lost"
PATIENCE = 40.0  # seconds in which a process must have a write acknowledged when nothing is wrong any more
CALM_TURNS = 1.5  # reads go on for this many times the bound after that
NUMBERS = 100_000  # writes of one process, and counts from one beginning, at the most
KINDS: dict[Kind, int] = {"get": 60, "set": 22, "add": 5, "delete": 6}
COUNTS: dict[Kind, int] = {"get": 55, "incr": 45}
# So many of the keys are written now and then only, so that what was stored too late stays for others to see.
QUIET = (0.4, 0.7, 1.0)
RARELY = 0.015  # of the calls of a quiet key are writes
AGAIN = (0, 1, 1, 2)  # more writes that follow one of a quiet key, while others fetch what the first has stored
SOON = 0.04  # seconds at the most between these
SIZES = (0, 0, 0, 200, 5_000, 60_000)  # bytes behind a value's number: in a row, in a file
AFTER_ERROR = 0.02  # seconds; one that fails at once would otherwise do nothing else
PAUSES = (0.0, 0.0005, 0.002, 0.006)  # seconds between two calls at the most, of one process in one case


class Tier(Protocol):
    """What is asked of a cache that is beyond one machine; arguments as those of `Cache`."""

    def get(self, key: str, /) -> Any:
        """Return the value or None."""

    def set(self, key: str, value: Any, /) -> bool:
        """Store a value; False if that may not have happened."""

    def add(self, key: str, value: Any, /) -> bool:
        """Store a value where there is none."""

    def incr(self, key: str, delta: int, default: int, /) -> int:
        """Add to a number, and return the sum."""

    def delete(self, key: str, /) -> object:
        """Remove what there is."""


class Settings(NamedTuple):
    """What all processes of a case ask of the tier."""

    max_staleness: float  # seconds
    timeout: float  # of a call to the server, in seconds
    on_error: str  # "raise", "local" or "miss"


class Place(NamedTuple):
    """Where a process opens the cache."""

    directory: Path  # of its machine
    url: str  # of its machine's way to the server
    settings: Settings


def nothing() -> None:
    """Leave everything as it is."""


class Product(NamedTuple):
    """A tier that is put to the test, or a spoiled one; functions of modules, since they go to other processes."""

    open: Callable[[Place], AbstractContextManager[Tier]]
    outcome: Callable[[Exception], Outcome | None]  # of a call that raised this; None: nothing should raise it
    listener: Callable[[Path], int | None]  # the process that listens to the server for a directory, if any does
    spoil: Callable[[], None] = nothing  # called once in each process, before anything is opened


class Part(NamedTuple):
    """What one process does in one case."""

    place: Place
    keys: tuple[str, ...]  # of values; the last of them is a number that is counted
    seed: int
    diary: Path


def live(link: Link, process: int, product: Product) -> None:
    """Play one part after the other, until the other side ends or this process is killed."""
    product.spoil()
    number = 0
    while (part := link.hear(JUDGING)) is not None:
        with closing(Diary(part.diary)) as diary, product.open(part.place) as tier:
            player = Player(tier, product, part, process * NUMBERS + number, diary)
            link.tell(READY)
            link.hear()
            while not link.asked():
                player.step()
            link.hear()
            told = DONE if player.calm_down() else LOST
            number += player.written
        link.tell(told)


class Player:
    """Calls a tier, and writes down each call before it is made, and what came of it."""

    def __init__(self, tier: Tier, product: Product, part: Part, first: int, diary: Diary) -> None:
        self._tier, self._outcome, self._part, self._diary = tier, product.outcome, part, diary
        self._random = random.Random(part.seed)
        self._pause = self._random.choice(PAUSES)
        self._quiet = self._random.choice(QUIET) * len(part.keys)
        self._first, self.written = first, 0

    def step(self) -> None:
        """Make one call, or a few."""
        number = self._random.randrange(len(self._part.keys))
        key = self._part.keys[number]
        kinds = COUNTS if key == self._part.keys[-1] else KINDS
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        if number < self._quiet:
            self._step_quietly(key, kind)
            return
        outcome = self.call(kind, key)
        self._wait(self._pause if outcome == "acknowledged" else AFTER_ERROR)

    def _step_quietly(self, key: str, kind: Kind) -> None:
        if self._random.random() > RARELY:
            self._wait(self._pause if self.call("get", key) == "acknowledged" else AFTER_ERROR)
            return
        self.call(kind, key)
        for _ in range(self._random.choice(AGAIN)):
            self._wait(SOON)
            self.call(kind, key)

    def _wait(self, seconds: float) -> None:
        if seconds:
            time.sleep(self._random.uniform(0, seconds))

    def calm_down(self) -> bool:
        """Go on until a write is acknowledged, and a while longer; tell whether one was."""
        deadline = time.monotonic() + PATIENCE
        while self.call("set", self._part.keys[0]) != "acknowledged":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        end = time.monotonic() + CALM_TURNS * self._part.place.settings.max_staleness + 0.05
        while time.monotonic() < end:
            for key in self._part.keys:
                self.call("get", key)
            time.sleep(0.005)
        return True

    def call(self, kind: Kind, key: str) -> Outcome:
        """Make one call of a kind."""
        number = 0
        if kind != "get":
            self.written += 1
            number = self._first + self.written
        begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._diary.note((kind, key, number, begin))
        try:
            answer = getattr(self, f"_{kind}")(key, number)
            outcome: Outcome = "unknown" if answer is False and kind == "set" else "acknowledged"
        except Exception as error:
            known = self._outcome(error)
            if known is None:
                raise
            answer, outcome = None, known
        self._diary.note((answer, outcome, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
        return outcome

    def _get(self, key: str, _: int) -> int | None:
        value = self._tier.get(key)
        return int(value.partition(b":")[0]) if isinstance(value, bytes) else value

    def _set(self, key: str, number: int) -> bool:
        return self._tier.set(key, self._value(number))

    def _add(self, key: str, number: int) -> bool:
        return self._tier.add(key, self._value(number))

    def _incr(self, key: str, number: int) -> int:
        return self._tier.incr(key, 1, number * NUMBERS)

    def _delete(self, key: str, _: int) -> bool:
        return bool(self._tier.delete(key))

    def _value(self, number: int) -> bytes:
        return b"%d:" % number + b"x" * self._random.choice(SIZES)


def recorded(diary: Path, process: int, machine: int) -> Iterator[Operation]:
    """Yield the operations of a process; the last has not ended if it was killed then."""
    with diary.open("rb") as file:
        while (called := _next(file)) is not None:
            kind, key, number, begin = called
            answer, outcome, end = cast("tuple[Any, Outcome, float]", _next(file) or (None, "unknown", NEVER))
            known = outcome == "acknowledged"
            value = answer if kind in ("get", "incr") else None if kind == "delete" else number
            yield Operation(
                process,
                machine,
                kind,
                key,
                value,
                begin,
                end,
                outcome,
                changed=not (known and kind == "add" and not answer),
                start=number * NUMBERS,
            )


def _next(file: Any) -> Any:
    try:
        return pickle.load(file)
    except (EOFError, pickle.UnpicklingError):  # a kill may have cut it off
        return None
