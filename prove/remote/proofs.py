"""Bounded staleness: machines share a server while everything goes wrong, and no read is older than was promised.

In each case two or three processes on each of two or three machines work on a dozen keys for a second or two, as
settings that are drawn have it, while connections are cut, delayed and frozen, processes are killed and stopped, and the
server sleeps, forgets, restarts or is replaced. All that was done is judged afterwards, key by key.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from diskcache_like.tier import link
from diskcache_like.tier.copies import Copies
from diskcache_like.tier.listener import Listener
from diskcache_like.tier.scripts import READ, script
from diskcache_like.tier.server import Subscription
from diskcache_like.tier.state import TierState, Word, boottime
from diskcache_like.tier.tier import Tier

from ..proof import Trial, proof
from .faults import ALL, let_happen
from .judges import SECOND, TOO_OLD, History, is_exact, violations
from .machines import Case, Grounds, Settings, nothing

PROMISE = 8  # of docs/reliability.md
KEYS = 12
TOLD = 3  # violations of a case
BOUNDS = (0.0, 0.15, 0.3, 0.6)  # seconds, to choose from
TIMEOUTS = (0.05, 0.1, 0.25)
ON_ERROR = ("raise", "raise", "local", "miss")


@dataclass(frozen=True)
class SharedServer:
    """Has machines work on keys that they share, and judges what they did."""

    machines: int = 2
    processes: int = 3  # on each machine
    spoil: Callable[[], None] = nothing  # a function of a module, since it goes to other processes
    seconds: float = 1.5  # of a case, before it calms down
    faults: frozenset[str] = ALL
    longest: float = 1.0  # seconds of each part of a fault
    gap: float = 0.4  # seconds between two faults of one sort at the most
    bounds: Sequence[float] = BOUNDS
    timeouts: Sequence[float] = TIMEOUTS
    on_error: Sequence[str] = ON_ERROR
    least: int = 1  # cases, however short the time

    def __call__(self, trial: Trial) -> None:
        with Grounds(trial.kept, self.machines, self.processes, self.spoil) as grounds:
            trial.repeat(partial(self._case, trial, grounds), self.least)

    def _case(self, trial: Trial, grounds: Grounds, source: random.Random) -> None:
        settings = Settings(source.choice(self.bounds), source.choice(self.timeouts), source.choice(self.on_error))
        name = str(trial.case)
        happened: list[str] = []
        try:
            grounds.begin(Case(name, tuple(f"k{name}-{number}" for number in range(KEYS)), settings, source))
            try:
                for fault in let_happen(grounds, source, self.seconds, self.faults, self.longest, self.gap):
                    trial.count(fault)
                    happened.append(fault)
            finally:
                grounds.calm()
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


_WHO = "processes of 2 or 3 machines, their connections and the server failing"
proof("remote-staleness", PROMISE, f"{_WHO}: no read is older than the bound", share=3, bulk=20, parallel=True)(
    SharedServer()
)
proof("remote-three-machines", PROMISE, f"{_WHO}: the same with three machines", bulk=10, parallel=True)(
    SharedServer(3, 2)
)


def _control(
    name: str, what: str, faults: Sequence[str], bound: float = 0.15, longest: float = 1.0, gap: float = 0.4
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what leaves out a part of the protocol as a control, with the faults that show it."""

    def register(spoil: Callable[[], None]) -> Callable[[], None]:
        run = SharedServer(
            spoil=spoil, faults=frozenset(faults), longest=longest, gap=gap, bounds=(bound,), on_error=("raise",)
        )
        proof(f"remote-{name}", PROMISE, what, share=0.3, finds=TOO_OLD)(run)
        return spoil

    return register


# -- what spoils the tier in a process before it opens anything -------------------------------------------------------


@_control("word-noted-late", "the word is noted after the reply", ["races"], 0.05, gap=0.1)
def note_late() -> None:
    note = Copies.note

    def late(self: Copies, place: Any, record: Any, word: int, tags: int) -> None:
        note(self, place, record, self._state.words[place.index], self._state.header[Word.TAGS])

    Copies.note = late  # type: ignore[method-assign]


@_control("lease-stamped-late", "the lease begins when the probe is answered", ["stalls"], 0.05, longest=0.15, gap=0.3)
def vouch_late() -> None:
    vouch = Listener._vouch
    Listener._vouch = lambda self, sent: vouch(self, boottime())  # type: ignore[method-assign]


@_control("no-lease", "entries count without a lease", ["freezes", "partitions"])
def need_no_lease() -> None:
    Tier.lease_ends = lambda self: float("inf")  # type: ignore[method-assign]


@_control("probe-by-ping", "the probe is a PING, which a demoted node answers", ["failovers"])
def ping() -> None:

    def probe(self: Subscription) -> None:
        self._connection.send_command("PING", check_health=False)

    Subscription.probe = probe  # type: ignore[method-assign]
    vars(link)["READ"] = script(READ.text.decode().replace("redis.call('DEL', prefix .. 'probe')", ""))


@_control("no-invalidations", "invalidations are not applied", ["cuts"])
def apply_nothing() -> None:
    Listener._apply = lambda *_: None  # type: ignore[method-assign]


@_control("old-epoch", "the epoch stays when the listener connects again", ["cuts", "partitions"])
def keep_words() -> None:
    TierState.change_all = lambda self: None  # type: ignore[method-assign]
