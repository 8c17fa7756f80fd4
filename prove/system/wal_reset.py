"""The WAL-reset bug: a commit that meets a checkpoint in SQLite before 3.51.3 may undo what was committed earlier.

The write lock keeps the two apart (docs/design.md). Here processes work with a SQLite in which the bug's window was
widened, so that they would meet in it all the time.
"""

from __future__ import annotations

import random
import sqlite3
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache, CorruptDatabaseWarning
from diskcache_like.storage.upkeep import checkpoints
from diskcache_like.storage.upkeep.checkpoints import Checkpointer
from tests.support.integrity import mend
from tests.support.workers import Crew, Link, ready

from ..children import KINDS, Stage, Words, opened, played
from ..proof import CannotRun, Proof, Trial
from .sqlite_builds import MARK, library

VERSION = "3.51.1"  # the last one here that has the bug
WRITERS = 4
KEYS = 40  # of each
SIZES = (20, 200, 2_000, 9_000, 30_000)  # bytes of values, so that commits are of one page and of ten
CASE = 20.0  # seconds of one case
LEAST, MOST_BLIND = 1.0, 10.0  # seconds that a case takes at least; and that a control may search
END, COMMITS, CHECKPOINTS = 0, 1, 1 + WRITERS  # words that all share: counts of each writer
SETTINGS: dict[str, Any] = {"eviction_policy": "none", "hot_size_limit": 0, "disk_min_file_size": 1 << 20}


class Plot(NamedTuple):
    """Where processes work, on what, until which word is set, and what is wrong with their cache."""

    directory: Path
    kind: str
    between: int  # bytes of WAL between two checkpoints
    words: Words
    breakage: Callable[[], None]

    def open(self) -> Cache:
        """Open the cache."""
        return opened(self.kind, self.directory, **SETTINGS)


def widened(_: Path) -> Path:
    """Return the library with the widened window."""
    return library(VERSION, widened=True)


def refuse_another() -> None:
    """Raise CannotRun if the sqlite3 module did not load that library."""
    with sqlite3.connect(":memory:") as connection:
        ((used,),) = connection.execute("SELECT sqlite_source_id()")
    connection.close()
    if not used.startswith(MARK):
        raise CannotRun(
            f"needs a Python whose sqlite3 module loads a shared library: this one has SQLite {sqlite3.sqlite_version}"
            " in it, or was not started through python -m prove"
        )


# -- what the processes do ----------------------------------------------------------------------------------------------


def value(version: int) -> tuple[int, bytes]:
    """Return a value of a size that differs."""
    return version, bytes(SIZES[version % len(SIZES)])


def version_of(found: tuple[int, bytes] | None) -> int:
    """Return the version of a value, 0 for none."""
    if found is None:
        return 0
    assert found == value(found[0]), f"a torn value of version {found[0]}"
    return found[0]


class Writer:
    """One process: it writes keys of its own, and reads them again, so that it knows what must be there."""

    def __init__(self, number: int, plot: Plot, chance: random.Random) -> None:
        self._number, self._plot, self._chance = number, plot, chance
        self._cache = plot.open()
        self._version = 0
        self.state: dict[int, int] = {}  # newest version of each key

    def step(self) -> None:
        """Write, read, or close and open again; the first one keeps house most of the time."""
        if self._number == 0 and self._chance.random() < 0.9:
            self._keep_house()
            return
        what = self._chance.random()
        if what < 0.6:
            self._set()
        elif what < 0.7:
            with self._cache.transact(retry=True):
                for _ in range(3):
                    self._set()
        elif what < 0.8:
            key = self._chance.randrange(KEYS)
            assert self._cache.delete((self._number, key), retry=True) == (self.state.pop(key, 0) > 0), "lost"
        elif what < 0.99:
            self._look(self._chance.randrange(KEYS))
        else:
            self._cache.close()  # which checkpoints, if nobody else is there
            self._cache = self._plot.open()

    def end(self) -> dict[int, int]:
        """Read everything, close, and return what must be there."""
        for key in range(KEYS):
            self._look(key)
        self._cache.close()
        return self.state

    def _set(self) -> None:
        key = self._chance.randrange(KEYS)
        self._version += 1
        self._cache.set((self._number, key), value(self._version), retry=True)
        self.state[key] = self._version
        self._plot.words[COMMITS + self._number] += 1

    def _look(self, key: int) -> None:
        found = version_of(self._cache.get((self._number, key)))
        assert found == self.state.get(key, 0), f"version {found} of {self._number, key}, not {self.state.get(key, 0)}"

    def _keep_house(self) -> None:
        for store in self._cache._shards.stores:
            with store.locked(None):
                store.checkpointer.checkpoint(shrink=self._chance.random() < 0.5)


def work(link: Link, number: int, plot: Plot, seed: int) -> dict[int, int]:
    """Write until the end; return the newest version of each key."""
    plot.breakage()
    checkpoints.CHECKPOINT_BYTES = plot.between
    checkpoint = Checkpointer.checkpoint

    def counted(self: Checkpointer, shrink: bool = False) -> None:
        checkpoint(self, shrink)
        plot.words[CHECKPOINTS + number] += 1

    Checkpointer.checkpoint = counted  # type: ignore[method-assign]
    writer = Writer(number, plot, random.Random(f"{seed} {number}"))
    ready(link)
    while not plot.words[END]:
        writer.step()
    return writer.end()


def audit(plot: Plot, states: list[dict[int, int]]) -> None:
    """Assert that everything that was acknowledged is there, and nothing else, and that the cache is whole."""
    with plot.open() as cache:
        found = {key: version_of(cache.get(key)) for key in cache}
        expected = {(number, key): version for number, state in enumerate(states) for key, version in state.items()}
        assert found == expected, f"not what was acknowledged: {sorted(found.items() ^ expected.items())}"
        mend(cache)


# -- a case -------------------------------------------------------------------------------------------------------------


class Meeting(NamedTuple):
    """Which caches processes meet at, how many bytes of WAL apart they checkpoint, and what a case takes at least."""

    kinds: Sequence[str] = KINDS
    between: Sequence[int] = (1, 40_000, 300_000)
    breakage: Callable[[], None] = lambda: None
    least: float = LEAST


def meet(trial: Trial, meeting: Meeting) -> None:
    """Let processes commit, checkpoint and close as often as they can."""
    refuse_another()
    worked = 0.0  # seconds in all cases

    def case(chance: random.Random) -> None:
        nonlocal worked
        words = Words(1 + 2 * WRITERS)
        kind, between = chance.choice(meeting.kinds), chance.choice(meeting.between)
        plot = Plot(trial.fresh(), kind, between, words, meeting.breakage)
        seed = chance.getrandbits(40)
        played(lambda: plot.open().close())
        try:
            with Stage() as stage:
                workers = [stage.play(partial(work, number=number, plot=plot, seed=seed)) for number in range(WRITERS)]
                Crew.together(workers)
                began = time.monotonic()
                deadline = began + max(min(trial.left, CASE), meeting.least)
                while time.monotonic() < deadline and not any(worker.link.asked() for worker in workers):
                    time.sleep(0.01)
                words[END] = 1
                worked += time.monotonic() - began
                states = Crew.results(workers)
            played(partial(audit, plot, states))
        finally:
            trial.count("commits", sum(words.words[COMMITS:CHECKPOINTS]))
            trial.count("checkpoints", sum(words.words[CHECKPOINTS:]))
            trial.figure(f"time that {WRITERS} processes worked at once", f"{worked:.0f} s")

    trial.repeat(case)


def checkpoint_without_lock() -> None:
    """Give the write lock back for the time of each checkpoint."""
    warnings.simplefilter("ignore", CorruptDatabaseWarning)
    checkpoint = Checkpointer.checkpoint

    def unlocked(self: Checkpointer, shrink: bool = False) -> None:
        self._session.lock.release()
        try:
            checkpoint(self, shrink)
        finally:
            self._session.lock.acquire()

    Checkpointer.checkpoint = unlocked  # type: ignore[method-assign]


# Nothing is spread over shards, and there is something to copy and something to lose: found in a second or so.
UNLOCKED = Meeting(("Cache",), (40_000, 300_000), checkpoint_without_lock, MOST_BLIND)

# What the bug does: commits are undone, or SQLite meets pages that do not belong together.
DAMAGE = r"AssertionError: (version |lost|a torn value|not what was acknowledged)|.*CorruptDatabase: "

PROOFS: dict[str, Proof] = {
    "wal-reset": Proof(
        3,
        f"processes commit, checkpoint and close with SQLite {VERSION} in which the window of its WAL-reset bug is wider",
        partial(meet, meeting=Meeting()),
        preload=widened,
    ),
    "wal-reset-unlocked": Proof(
        3,
        "the same with checkpoints made without the write lock",
        partial(meet, meeting=UNLOCKED),
        share=0.3,
        finds=DAMAGE,
        preload=widened,
    ),
}
