"""What a proof is, and what it runs with: time, seeds, scratch directories, and a place for what it finds.

A proof puts one promise to the test in **cases**, each with a number from which everything random in it is drawn. A
failed assertion, or any other exception that leaves a case, is a **violation**; the case's number repeats it. A proof
that is a **control** breaks the cache on purpose, and must find a violation of the kind that this leads to, and no other.
"""

from __future__ import annotations

import math
import random
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from unittest.mock import patch

from diskcache_like.storage.upkeep import bulk_removal, trash

ENOUGH = 3  # violations after which a proof goes no further
LINES = 40  # of a traceback
HOUR = 3600.0
NO_GRACE = -1.0  # seconds: what was replaced just now is due
HEAD = "Traceback (most recent call last):\n"

Item = TypeVar("Item")


class CannotRun(Exception):
    """What a proof needs is not to be had on this machine; the text says what, and how to get it."""


class Unreachable(CannotRun):
    """What others publish, and nothing here installs, cannot be reached; which is no failure in CI either."""


@dataclass(frozen=True)
class Proof:
    """One row of the table: the promise (its number in docs/reliability.md), what is done to it, and how."""

    promise: int
    what: str
    run: Callable[[Trial], object]
    share: float = 1.0  # of the time, relative to the others
    bulk: float = 0.0  # what is added to that in a run of an hour, to come to the amounts of docs/reliability.md
    finds: str = ""  # of a control: a pattern for the start of the line that tells the violation which it must find
    # Of a control: seconds for which it goes on until it finds something, however short the run. The slowest takes 15 on
    # average, at random, so that it fails to find anything in one of many thousand runs.
    patience: float = 180.0
    preload: Callable[[Path], Path] | None = None  # makes the library, there if need be, that its process preloads
    parallel: bool = False  # a case takes one processor or less, and is judged by no time: each processor runs a part

    def weight(self, seconds: float) -> float:
        """Return the share that it has of a run that takes so many seconds altogether."""
        return self.share + self.bulk * min(seconds / HOUR, 1.0)

    @property
    def control(self) -> bool:
        """Tell whether it breaks the cache on purpose."""
        return bool(self.finds)

    def sought(self, text: str) -> bool:
        """Tell whether a violation is of the kind that this control must find.

        Of an exception only the last one's own words count, also if another process raised it: neither what led to it
        nor the lines of code that its traceback quotes, which are indented.
        """
        words = text.rpartition(HEAD)[2].splitlines()
        return self.control and any(re.match(self.finds, line) for line in words)


Run = TypeVar("Run", bound="Callable[[Trial], object]")
Case = TypeVar("Case", bound="Callable[[Trial, random.Random], object]")
PROOFS: dict[str, Proof] = {}  # all that were registered, by name


def proof(name: str, promise: int, what: str, **how: Any) -> Callable[[Run], Run]:
    """Register a run as a proof; `how`: the other fields of it."""

    def register(run: Run) -> Run:
        PROOFS[name] = Proof(promise, what, run, **how)
        return run

    return register


def repeated(name: str, promise: int, what: str, **how: Any) -> Callable[[Case], Case]:
    """Register a case as a proof, which runs it until its time is up."""

    def register(case: Case) -> Case:
        proof(name, promise, what, **how)(lambda trial: trial.repeat(partial(case, trial)))
        return case

    return register


class Part(NamedTuple):
    """Which of those that share a proof's cases this is: machines or nights, and the processes of each."""

    number: int = 0
    of: int = 1

    def split(self, number: int, of: int) -> Part:
        """Return one of `of` parts of this part; together they are what it is."""
        return Part(self.number + self.of * number, self.of * of)

    def __str__(self) -> str:
        """Return it as it is asked for: K/N."""
        return f"{self.number + 1}/{self.of}"


WHOLE = Part()


@dataclass
class Findings:
    """What came of a proof so far."""

    cases: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    reached: dict[str, tuple[int, int]] = field(default_factory=dict)  # of what can be counted: how many of how many
    largest: dict[str, tuple[float, str]] = field(default_factory=dict)  # (the number, as it is told)
    figures: dict[str, str] = field(default_factory=dict)
    violations: list[tuple[int, str]] = field(default_factory=list)  # (case, what happened)

    def add(self, other: Findings) -> None:
        """Take in what another part of the same proof found."""
        self.cases += other.cases
        for what, number in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + number
        for what, (done, known) in other.reached.items():
            before, known_before = self.reached.get(what, (0, 0))
            self.reached[what] = before + done, known_before + known
        for what, measured in other.largest.items():
            self.largest[what] = max(self.largest.get(what, measured), measured)
        self.figures.update(other.figures)
        self.violations.extend(other.violations)


class Trial:
    """One run of one proof."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        only: int | None = None,
        part: Part = WHOLE,
        note: Callable[[int, Findings], None] = lambda case, findings: None,
    ) -> None:
        """Take `seconds` or so for cases drawn from `seed`, or run the case `only`; `note` hears of each beforehand.

        Of several that share them each has its `part`.
        """
        self.part = part
        self.seed, self.seconds, self.only = seed, seconds, only
        self.patience = 0.0  # seconds for which cases are begun at least, until a violation is found
        self.sought: Callable[[str], bool] | None = None  # of a control: tells the violation with which it is done
        self.findings = Findings()
        self.case = 0
        self._note = note
        self._began = time.monotonic()
        self._space = Path(tempfile.mkdtemp(prefix="prove-"))
        self.kept = Path(tempfile.mkdtemp(dir=self._space))  # a scratch directory that outlives the cases

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._space, ignore_errors=True)

    @property
    def left(self) -> float:
        """Seconds that are left, 0 if none."""
        return max(0.0, self._began + self.seconds - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether no further case should begin."""
        return self._has_found or (not self.left and time.monotonic() >= self._began + self.patience)

    @property
    def _has_found(self) -> bool:
        violations = self.findings.violations
        return len(violations) >= ENOUGH or (
            self.sought is not None and any(self.sought(text) for _, text in violations)
        )

    def repeat(self, case: Callable[[random.Random], None], least: int = 1) -> None:
        """Run cases until the time is up, `least` of them however long they take."""
        numbers = random.Random(f"{self.seed} {self.part.number}" if self.part.number else self.seed)
        while self.findings.cases < least or not self.over:
            if self._has_found:
                return
            number = numbers.getrandbits(40) if self.only is None else self.only
            with self.judged(number):
                case(random.Random(number))
            if self.only is not None:
                return

    def each(
        self, items: Sequence[Item], case: Callable[[Item], None], what: str, least: int = 1, first: int = 0
    ) -> None:
        """Run a case for each item of this part, scattered as the seed has it, until the time is up; say how many.

        `least` of them are run however long they take. The `first` so many, those of one cache, come before the others,
        and are told of by themselves: so a run that has no time for all has gone through something to its end.
        """
        done = [0, 0]
        ordered = chain(
            scattered(first, self.seed), (first + other for other in scattered(len(items) - first, self.seed))
        )
        for number in self.share_of(ordered) if self.only is None else [self.only]:
            if self.over and self.only is None and sum(done) >= least:
                break
            with self.judged(number):
                case(items[number])
            done[number >= first] += 1
        if first:
            self.reach(f"{what} of one of the caches", done[0], self._number_of(first))
        self.reach(what, sum(done), self._number_of(len(items)))

    def _number_of(self, known: int) -> int:
        return sum(1 for _ in self.share_of(range(known)))

    def share_of(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield those of the items that are this part's."""
        return islice(items, self.part.number, None, self.part.of)

    @contextmanager
    def judged(self, number: int, alike: str = "") -> Iterator[None]:
        """Take whatever is raised inside for a violation in case `number`; its scratch directories go at its end.

        In every other case value files are unlinked as soon as they are replaced, and in every other `clear` empties the
        table in one step, however few entries there are; in all of those with the same `alike` or in none.
        """
        self.case = number
        self._note(number, self.findings)
        try:
            chance = random.Random(f"grace {self.seed} {alike or number}")
            grace, many = chance.choice((trash.GRACE, NO_GRACE)), chance.choice((bulk_removal.MANY, 0))
            with patch.object(trash, "GRACE", grace), patch.object(bulk_removal, "MANY", many):
                yield
        except CannotRun:
            raise
        except Exception as error:
            self.violation(_told(error))
        finally:
            self.findings.cases += 1
            for made in self._space.iterdir():
                if made != self.kept:
                    shutil.rmtree(made, ignore_errors=True)

    def fresh(self, name: str = "cache") -> Path:
        """Return a path for a directory that is not there yet; it goes with the case."""
        return Path(tempfile.mkdtemp(dir=self._space)) / name

    def count(self, what: str, number: int = 1) -> None:
        """Add to the number of things that were done, such as operations or kills."""
        self.findings.counts[what] = self.findings.counts.get(what, 0) + number

    def reach(self, what: str, done: int, known: int) -> None:
        """Note how many were done of all that are known of something that can be counted."""
        self.findings.reached[what] = done, known

    def most(self, name: str, value: float, unit: str = "") -> None:
        """Note something measured, such as the longest wait; the largest value stands, with what was told of it."""
        told = f"{value:,.{0 if isinstance(value, int) else 1}f}{unit}"
        self.findings.largest[name] = max(self.findings.largest.get(name, (value, told)), (value, told))

    def figure(self, name: str, value: object) -> None:
        """Note something else; the last value stands."""
        self.findings.figures[name] = str(value)

    def violation(self, text: str) -> None:
        """Note that a promise was broken in the present case."""
        self.findings.violations.append((self.case, text))
        self._note(self.case, self.findings)


def scattered(number: int, seed: int) -> Iterator[int]:
    """Yield each number below `number` once, far from the one before; a hundred thousand are not worth shuffling."""
    if not number:
        return
    chance = random.Random(seed)
    step, start = chance.randrange(number) + 1, chance.randrange(number)
    while math.gcd(step, number) > 1:
        step += 1
    yield from ((start + step * turn) % number for turn in range(number))


def _told(error: Exception) -> str:
    """Return the error with the end of its traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-LINES:])
