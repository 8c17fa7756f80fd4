"""Bounded staleness: machines share a server while everything goes wrong, and no read is older than was promised.

In each case two or three processes on each of two or three machines work on a dozen keys for a second or two, as
settings that are drawn have it, while connections are cut, delayed and frozen, processes are killed and stopped, and the
server sleeps, forgets, restarts or is replaced. All that was done is judged afterwards, key by key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..proof import Proof, Trial
from .clients import Product, Settings
from .faults import ALL, calm_after, let_happen
from .grounds import Case, Grounds
from .history import SECOND, History
from .judges import TOO_OLD, is_exact, violations

KEYS = 12
TOLD = 3  # violations of a case
BOUNDS = (0.0, 0.15, 0.3, 0.6)  # seconds, to choose from
TIMEOUTS = (0.05, 0.1, 0.25)
ON_ERROR = ("raise", "raise", "local", "miss")


@dataclass(frozen=True)
class SharedServer:
    """Has machines work on keys that they share, and judges what they did."""

    product: Product
    machines: int = 2
    processes: int = 3  # on each machine
    seconds: float = 1.5  # of a case, before it calms down
    faults: frozenset[str] = ALL
    longest: float = 1.0  # seconds of each part of a fault
    gap: float = 0.4  # seconds between two faults of one sort at the most
    bounds: Sequence[float] = BOUNDS
    timeouts: Sequence[float] = TIMEOUTS
    on_error: Sequence[str] = ON_ERROR
    least: int = 1  # cases, however short the time

    def __call__(self, trial: Trial) -> None:
        """Run the proof."""
        with Grounds(trial.kept, self.product, self.machines, self.processes) as grounds:
            trial.repeat(partial(self._case, trial, grounds), self.least)

    def _case(self, trial: Trial, grounds: Grounds, source: random.Random) -> None:
        settings = Settings(source.choice(self.bounds), source.choice(self.timeouts), source.choice(self.on_error))
        name = str(trial.case)
        case = Case(name, tuple(f"k{name}-{number}" for number in range(KEYS)), settings, source)
        happened: list[str] = []
        try:
            grounds.begin(case)
            with calm_after(grounds):
                for fault in let_happen(grounds, source, self.seconds, self.faults, self.longest, self.gap):
                    trial.count(fault)
                    happened.append(fault)
            history = grounds.end()
        except BaseException:
            grounds.start_over()
            raise
        judge(trial, history, settings, happened)


def judge(trial: Trial, history: History, settings: Settings, happened: Sequence[str]) -> None:
    """Count what was done, and note what is wrong with it."""
    parts = list(history.by_key())
    operations = history.operations
    trial.count("histories", len(parts))
    trial.count("of them with exact orders", sum(map(is_exact, parts)))
    trial.count("operations", len(operations))
    trial.count("of unknown outcome", sum(each.outcome == "unknown" for each in operations))
    ended = [each.end - each.begin for each in operations if each.outcome != "unknown"]
    if ended:
        trial.most("longest call", max(ended) / SECOND, " s")
    found = violations(history, settings.max_staleness, excuse_missing=settings.on_error != "raise")
    for each in found[:TOLD]:
        trial.violation(f"{each}\n{settings}\nfaults: {', '.join(happened) or 'none'}")


# -- what must be found -----------------------------------------------------------------------------------------------


class Flaw(NamedTuple):
    """A part of the protocol that is left out, and what then shows that it is."""

    what: str
    faults: frozenset[str]
    bound: float = 0.15
    longest: float = 1.0
    gap: float = 0.4


FLAWS = {
    "word-noted-late": Flaw("the word is noted after the reply", frozenset({"races"}), 0.05, gap=0.1),
    "lease-stamped-late": Flaw(
        "the lease begins when the probe is answered", frozenset({"stalls"}), 0.05, longest=0.15, gap=0.3
    ),
    "no-lease": Flaw("entries count without a lease", frozenset({"freezes", "partitions"})),
    "probe-by-ping": Flaw("the probe is a PING, which a demoted node answers", frozenset({"failovers"})),
    "no-invalidations": Flaw("invalidations are not applied", frozenset({"cuts"})),
    "old-epoch": Flaw("the epoch stays when the listener connects again", frozenset({"cuts", "partitions"})),
}


def flawed(product: Product, spoils: Mapping[str, Callable[[], None]], promise: int) -> dict[str, Proof]:
    """Return a control for each flaw that somebody knows how to make, by a function called in each process."""
    return {
        f"remote-{name}": Proof(
            promise,
            FLAWS[name].what,
            SharedServer(
                product._replace(spoil=spoil),
                faults=FLAWS[name].faults,
                longest=FLAWS[name].longest,
                gap=FLAWS[name].gap,
                bounds=(FLAWS[name].bound,),
                on_error=("raise",),
            ),
            share=0.3,
            finds=TOO_OLD,
        )
        for name, spoil in spoils.items()
    }
