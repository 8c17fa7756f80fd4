"""What every section gets and gives: the run that it is part of, and the tables and numbers that it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import Costs, alternate
from benchmarks.report import Table
from benchmarks.subjects import Spec
from benchmarks.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    operations: int = 20_000
    repeats: int = 3
    processes: int = 8
    entries: int = 100_000
    writes: int = 20_000


@dataclass
class Run:
    """One run of the benchmark, as its sections see it; `alone` leaves out the peer where no budget needs it."""

    ours: Spec
    peer: Spec
    options: Options
    costs: Costs
    workspace: Workspace
    note: Callable[[str, float], None] = lambda text, fraction: None
    alone: bool = False

    @property
    def pair(self) -> dict[str, Spec]:
        """Return the two subjects by role."""
        return {"ours": self.ours, "peer": self.peer}

    @property
    def wanted(self) -> dict[str, Spec]:
        """Return the subjects of a section whose budgets are about ours alone."""
        return {"ours": self.ours} if self.alone else self.pair

    def rounds(self, rounds: int, names: Sequence[str], text: str = "") -> Iterator[tuple[int, str]]:
        """Yield every name in every round, in turning order, and show how far it is."""
        for step, (number, name) in enumerate(alternate(rounds, names)):
            self.note(f"{text}{name}, round {number + 1} of {rounds}", step / (rounds * len(names)))
            yield number, name


@dataclass
class Findings:
    """What a section found.

    Tables to print, values for the budgets (one per repetition), everything else for JSON, and problems: what makes
    the numbers worthless, such as wrong values.
    """

    tables: list[Table] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
