"""Fairness: who writes now and then gets the lock soon, beside those who take it again as soon as they have let it go."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import NamedTuple
from unittest import mock

from diskcache_like import Cache, Timeout
from diskcache_like.coherence import _native
from diskcache_like.coherence.write_lock import WriteLock
from tests.support.workers import Crew, Link, ready

from ..children import KINDS, Stage, Words, opened, played, told
from ..proof import Trial, repeated
from .calls import Caller
from .everything_at_once import LONG, Crowd, run

WAIT = 1.0  # seconds that a polite writer may have to wait for the lock beside a hog
CROWDED = 5.0  # seconds that any of many writers may have to wait who all write as fast as they can
ROUNDS = 15  # writes of the polite one in a case
PAUSE = 0.004  # seconds between them at most
HOLDS = (0.0, 0.0005, 0.002, 0.005)  # seconds for which a hog holds the lock each time
SWITCH = 1e-4  # seconds; less than every hold but none
CROWD, SMALL_CROWD = 64, 8
TURNS = 3
LOOK = 0.005  # seconds between two looks of one who stands back
IMPATIENT = 1.0  # seconds in place of `CROWDED` where one gets no turn at all


# -- a hog and a polite one -------------------------------------------------------------------------------------------


class Meeting(NamedTuple):
    """Who meets at one lock: where the hog is, and what it does."""

    kind: str
    hold: float  # seconds each time
    writes: bool  # not only holds the lock
    within: bool  # is a thread of the same process
    crowds: bool  # is on the same processor, and not interrupted when the polite one could go on

    @classmethod
    def drawn(cls, chance: random.Random) -> Meeting:
        kind, hold, writes = chance.choice(KINDS), chance.choice(HOLDS), chance.random() < 0.5
        within, crowds = chance.choice(((True, False), (False, False), (False, True), (False, True)))
        return cls(kind, hold, writes, within, crowds)

    @contextmanager
    def opened(self, directory: Path, who: int) -> Iterator[Cache]:
        """Open the handle of the hog (0) or of the polite one (1), which does not wait for longer than it may."""
        if self.crowds:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        if self.crowds and who:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with opened(self.kind, directory, timeout=WAIT) as cache:
            yield cache

    def hog(self, cache: Cache, end: Words) -> int:
        """Take the lock and take it again until the end; return how often."""
        bare: Callable[[], AbstractContextManager[object]] = partial(cache._shards.stores[0].locked, None)
        hold = partial(cache.transact, retry=True) if self.writes else bare
        turns = 0
        while not end[0]:
            with hold():
                if self.writes:
                    cache.set("key", turns, retry=True)
                until = time.perf_counter() + self.hold
                while time.perf_counter() < until:
                    pass
            turns += 1
        return turns


WORST = Meeting("Cache", HOLDS[-1], writes=False, within=False, crowds=True)


def be_hog(link: Link, meeting: Meeting, directory: Path, end: Words) -> int:
    """Be the hog in a process of its own."""
    with meeting.opened(directory, 0) as cache:
        ready(link)
        return meeting.hog(cache, end)


def be_polite(link: Link, meeting: Meeting, directory: Path, end: Words, seed: int) -> tuple[float, int]:
    """Write now and then; return the longest wait, and how often a hog in this process took the lock."""
    chance, turns = random.Random(seed), [0]
    # A thread asks for the GIL when nobody has let it go for this long. A hog that let it go more often, but for a
    # microsecond only, would keep it from a thread that does not even wait for the lock.
    sys.setswitchinterval(SWITCH)
    with meeting.opened(directory, 1) as cache:
        beside = Thread(target=lambda: turns.append(meeting.hog(cache, end)))
        ready(link)
        if meeting.within:
            beside.start()
        try:
            longest = max(timed_write(cache, chance) for _ in range(ROUNDS))
        finally:
            end[0] = 1
            if meeting.within:
                beside.join()
    return longest, turns[-1]


def timed_write(cache: Cache, chance: random.Random) -> float:
    """Write once, after a pause; return the seconds that it took."""
    time.sleep(chance.uniform(0.0, PAUSE))
    began = time.perf_counter()
    try:
        with cache.transact(retry=False):  # which of a FanoutCache too raises Timeout
            cache.set("key", "polite", retry=True)
    except Timeout as late:
        raise AssertionError(f"a writer starved: it waited for more than {WAIT} s beside a hog") from late
    return time.perf_counter() - began


def meet(trial: Trial, meeting: Meeting, seed: int) -> None:
    """Have a hog and a polite writer meet."""
    directory, end = trial.fresh(), Words(1)
    played(lambda: opened(meeting.kind, directory).close())
    with Stage() as stage, told(str(meeting)):
        polite = stage.play(partial(be_polite, meeting=meeting, directory=directory, end=end, seed=seed))
        hogs = [] if meeting.within else [stage.play(partial(be_hog, meeting=meeting, directory=directory, end=end))]
        Crew.together([polite, *hogs])
        longest, turns = polite.result()
        trial.count("turns of the one that does not pause", turns + sum(each.result() for each in hogs))
    trial.count("writes by the one that pauses", ROUNDS)
    trial.most("longest wait", 1e3 * longest, " ms")


@repeated(
    "fairness-hog",
    5,
    f"a writer that pauses beside one that takes the lock again at once, in another process or thread: waits {WAIT:.0f}"
    " s at most",
)
def polite_beside_hog(trial: Trial, chance: random.Random) -> None:
    meet(trial, Meeting.drawn(chance), chance.getrandbits(40))


def greedy(lock: WriteLock, timeout: float | None = None) -> None:
    """Take a lock that is free, whoever has claimed a turn."""
    if lock.core.try_acquire(True) != _native.TAKEN and (
        timeout == 0 or lock.core.wait(timeout, lambda: None) != _native.TAKEN
    ):
        raise Timeout(f"write lock {lock.path} was not free within {timeout} s")


@repeated(
    "fairness-no-turns", 5, "nobody heeds a fairness claim", share=0.5, finds="AssertionError: a writer starved: "
)
def beside_greed(trial: Trial, chance: random.Random) -> None:
    with mock.patch.object(WriteLock, "acquire", greedy):
        meet(trial, WORST, chance.getrandbits(40))


# -- a crowd ----------------------------------------------------------------------------------------------------------


def set_one(caller: Caller) -> None:
    """Write to the one key that all write to."""
    caller.kept.set("key", caller.name, retry=True)


@repeated(
    "fairness-crowd",
    5,
    f"{CROWD} processes ({SMALL_CROWD} in a short run) write as fast as they can until each had {TURNS} turns: none"
    f" is without a turn for {CROWDED:.0f} s",
    bulk=2.0,
)
def crowded(trial: Trial, chance: random.Random) -> None:
    processes = CROWD if trial.seconds >= LONG else SMALL_CROWD
    run(trial, Crowd(chance.choice(KINDS), processes, weights={set_one: 1}, readers=0, least=TURNS, longest=CROWDED))


def stand_back(number: int, words: Words) -> None:
    """Have the first writer let the others go first, who never stop."""
    acquire = WriteLock.acquire

    def wait(lock: WriteLock, timeout: float | None = None) -> None:
        while not words[0] and any(words.words[2:-1]):
            time.sleep(LOOK)
        acquire(lock, timeout)

    if number == 0:
        WriteLock.acquire = wait  # type: ignore[method-assign, assignment]


@repeated(
    "fairness-left-out",
    5,
    "one process gets the lock only when the others are done",
    share=0.5,
    finds="AssertionError: a writer of .* starved: ",
)
def leaving_one_out(trial: Trial, _: random.Random) -> None:
    crowd = Crowd(KINDS[0], SMALL_CROWD, weights={set_one: 1}, readers=0, least=TURNS, longest=IMPATIENT)
    run(trial, crowd._replace(spoil=stand_back))
