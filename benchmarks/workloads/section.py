"""What every section gets and gives: the run that it is part of, and the tables and numbers that it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import Calls, Costs, alternate, amount
from benchmarks.peers.spec import Spec
from benchmarks.report.text import NOTHING, Table, duration
from benchmarks.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """How much is measured."""

    operations: int = amount(20_000, "operations per process")
    repeats: int = amount(3, "repetitions per subject")
    processes: int = amount(8, "processes of the contended runs")
    entries: int = amount(100_000, "entries of the large cache")
    writes: int = amount(20_000, "writes under a full size_limit")


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


@dataclass
class Findings:
    """What a section found.

    Tables to print, values for the budgets (one per repetition), everything else for JSON, problems (what makes the
    numbers worthless, such as wrong values), and what could not be measured.
    """

    tables: list[Table] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def calls_table(
    title: str,
    first: str,
    times: Mapping[str, Mapping[str, Iterable[float]]],
    kinds: Mapping[str, str],
    shown: Mapping[str, str],
    cost: float,
) -> Table:
    """Show percentiles of some kinds of calls, `cost` subtracted, with a row for each subject."""
    heads = [
        f"{kind}: {name}" if not place else name for kind in kinds.values() for place, name in enumerate(shown.values())
    ]
    table = Table(title, (first, *heads))
    for name, mine in times.items():
        found = [Calls.of(mine[kind], cost) for kind in kinds]
        cells = [duration(getattr(one, each)) if one.count else NOTHING for one in found for each in shown]
        table.rows.append((name, *cells))
    return table
