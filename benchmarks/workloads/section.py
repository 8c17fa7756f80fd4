"""What every section gets and gives: the run that it is part of, and the tables and numbers that it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

from benchmarks.measure import Calls, Costs, alternate
from benchmarks.peers.spec import Spec
from benchmarks.report.text import PERCENTILES, Table, duration
from benchmarks.workspace import Workspace

Thing = TypeVar("Thing")
Rounds = dict[str, dict[str, list[Calls]]]  # by subject and kind of call: each round's


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

    @property
    def cold(self) -> dict[str, Spec]:
        """Return the two without a hot layer, which a peer does not have."""
        return {"ours": self.ours.having(hot_size_limit=0), "peer": self.peer}

    def turns(self, rounds: int, names: Sequence[str], text: str = "") -> Iterator[tuple[int, str]]:
        """Yield every name in every round, in turning order, and show how far it is."""
        for step, (number, name) in enumerate(alternate(rounds, names)):
            self.note(f"{text}{name}, round {number + 1} of {rounds}", step / (rounds * len(names)))
            yield number, name

    def rounds(
        self,
        rounds: int,
        subjects: Mapping[str, Thing],
        measure: Callable[[Thing, int], Mapping[str, Sequence[float]]],
        text: str = "",
    ) -> Rounds:
        """Let subjects take turns, and summarise what `measure` returns in each: net nanoseconds by kind of call."""
        found: Rounds = {name: {} for name in subjects}
        for number, name in self.turns(rounds, list(subjects), text):
            for call, samples in measure(subjects[name], number).items():
                found[name].setdefault(call, []).append(Calls.of(samples))
        return found


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


def p50(rounds: Sequence[Calls]) -> list[float]:
    """Return the median of each round."""
    return [one.p50 for one in rounds]


def percentile_cells(rounds: Sequence[Calls]) -> list[str]:
    """Return how many calls there were, medians over the rounds of each percentile, and the largest of all."""
    times = [median(getattr(one, name) for one in rounds) for name in ("p50", "p90", "p99", "p999")]
    return [f"{sum(one.count for one in rounds):,}", *map(duration, times), duration(max(one.max for one in rounds))]


def rounds_table(title: str, found: Rounds, labels: Mapping[str, str], calls: Mapping[str, str]) -> Table:
    """Show the percentiles of some calls of every subject."""
    table = Table(title, ("subject", "call", "calls", *PERCENTILES), left=2)
    for name, label in labels.items():
        table.rows += [(label, told, *percentile_cells(found[name][call])) for call, told in calls.items()]
    table.notes.append(
        "p50 to p99.9: medians over the rounds of each round's, clock subtracted; max: the largest of all"
    )
    return table


def details(found: Rounds) -> dict[str, Any]:
    """Return each round's percentiles for JSON, without the curves."""
    kept = ("count", "p50", "p90", "p99", "p999", "max", "tail")
    return {
        name: {call: [{part: getattr(one, part) for part in kept} for one in rounds] for call, rounds in calls.items()}
        for name, calls in found.items()
    }
