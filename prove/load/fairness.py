"""Fairness: who writes now and then gets the lock soon, beside those who take it again as soon as they have let it go."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread, get_ident
from typing import NamedTuple
from unittest import mock

from diskcache_like import Cache, Timeout
from diskcache_like.coherence import _native
from diskcache_like.coherence.write_lock import WriteLock
from tests.support.workers import Crew, Link, Worker, ready

from ..children import KINDS, Stage, Words, opened, played
from ..proof import Proof, Trial

WAIT = 1.0  # seconds that a polite writer may have to wait for the lock beside a hog
CROWDED = 5.0  # seconds that any of many writers may have to wait who all write as fast as they can
ROUNDS = 15  # writes of the polite one in a case
PAUSE = 0.004  # seconds between them at most
HOLDS = (0.0, 0.0005, 0.002, 0.005)  # seconds for which a hog holds the lock each time
SWITCH = 1e-4  # seconds; less than every hold but none
LONG = 10.0  # seconds from which on a run is a long one, with all processes
CROWD, SMALL_CROWD = 64, 8
SPELL = 0.5  # seconds that a crowd works, and longer until each has had its turns
TURNS = 3
LOOK = 0.005  # seconds between two looks at who had a turn
IMPATIENT = 1.0  # seconds in place of `CROWDED` where one gets no turn at all


# -- how long one waits -----------------------------------------------------------------------------------------------


class Waits:
    """How long the threads of this process waited for a write lock: in seconds, and in turns of each other."""

    def __init__(self) -> None:
        self._longest: dict[int, float] = {}  # of each thread, which alone changes it
        self._passed: dict[int, int] = {}
        self._turns: Counter[Path] = Counter()  # of each lock, whose owner alone changes it
        self._told: dict[int, tuple[Words, int]] = {}  # where the turns of each thread are told to others

    @property
    def longest(self) -> float:
        """The longest wait in seconds."""
        return max(self._longest.values(), default=0.0)

    @property
    def passed(self) -> int:
        """The most turns that other threads had in one wait."""
        return max(self._passed.values(), default=0)

    def forget(self) -> None:
        """Begin anew."""
        self._longest.clear()
        self._passed.clear()
        self._told.clear()

    def tell(self, words: Words, number: int) -> None:
        """Count the turns of the calling thread in a word that others see."""
        self._told[get_ident()] = words, number

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note every wait of this process and of the children that are forked meanwhile, each for itself."""
        acquire, turns = WriteLock.acquire, self._turns

        def timed(lock: WriteLock, timeout: float | None = None) -> None:
            me, before, began = get_ident(), turns[lock.path], time.perf_counter()
            try:
                acquire(lock, timeout)
            finally:
                self._longest[me] = max(self._longest.get(me, 0.0), time.perf_counter() - began)
            self._passed[me] = max(self._passed.get(me, 0), turns[lock.path] - before)
            turns[lock.path] += 1
            if me in self._told:
                words, number = self._told[me]
                words[number] += 1

        with mock.patch.object(WriteLock, "acquire", timed):
            yield


WAITS = Waits()


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
        """Draw a meeting."""
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


def meet(trial: Trial, meeting: Meeting, seed: int) -> float:
    """Have a hog and a polite writer meet; return the polite one's longest wait."""
    directory, end = trial.fresh(), Words(1)
    played(lambda: opened(meeting.kind, directory).close())
    with Stage() as stage:
        polite = stage.play(partial(be_polite, meeting=meeting, directory=directory, end=end, seed=seed))
        hogs = [] if meeting.within else [stage.play(partial(be_hog, meeting=meeting, directory=directory, end=end))]
        Crew.together([polite, *hogs])
        try:
            longest, turns = polite.result()
        except AssertionError as error:
            error.add_note(str(meeting))
            raise
        trial.count("turns of the one that does not pause", turns + sum(each.result() for each in hogs))
    trial.count("writes by the one that pauses", ROUNDS)
    return float(longest)


def polite_beside_hog(trial: Trial, draw: Callable[[random.Random], Meeting] = Meeting.drawn) -> None:
    """Let one writer be polite beside another that is not."""

    def case(chance: random.Random) -> None:
        trial.most("longest wait", 1e3 * meet(trial, draw(chance), chance.getrandbits(40)), " ms")

    trial.repeat(case)


def greedy(lock: WriteLock, timeout: float | None = None) -> None:
    """Take a lock that is free, whoever has claimed a turn."""
    if lock.core.try_acquire(True) != _native.TAKEN and (
        timeout == 0 or lock.core.wait(timeout, lambda: None) != _native.TAKEN
    ):
        raise Timeout(f"write lock {lock.path} was not free within {timeout} s")


def without_turns(trial: Trial) -> None:
    """Do the same where nobody heeds a claim of those who have waited for long, and the worst that can meet does."""
    with mock.patch.object(WriteLock, "acquire", greedy):
        polite_beside_hog(trial, lambda chance: WORST)


# -- a crowd ----------------------------------------------------------------------------------------------------------


def crowd_in(link: Link, number: int, kind: str, directory: Path, words: Words) -> float:
    """Write as fast as possible until the end; return the longest wait for the lock."""
    with opened(kind, directory) as cache:
        ready(link)
        WAITS.forget()
        while not words[0]:
            cache.set("key", number, retry=True)
            words[1 + number] += 1
    return WAITS.longest


def stand_back(link: Link, number: int, kind: str, directory: Path, words: Words) -> float:
    """Do the same, but let the others go first, who never stop; the first writer only."""
    acquire = WriteLock.acquire

    def wait(lock: WriteLock, timeout: float | None = None) -> None:
        while not words[0] and any(words.words[1:]):
            time.sleep(LOOK)
        acquire(lock, timeout)

    with ExitStack() as stack:
        if number == 0:
            stack.enter_context(mock.patch.object(WriteLock, "acquire", wait))
        return crowd_in(link, number, kind, directory, words)


def await_turns(words: Words, everyone: Sequence[Worker], longest: float) -> None:
    """Wait for the end of a spell, in which each has its turns; fail if one has none for longer than it may."""
    began = now = time.monotonic()
    had, since = [0] * len(everyone), [began] * len(everyone)
    while (now < began + SPELL or min(had) < TURNS) and not any(worker.link.asked() for worker in everyone):
        time.sleep(LOOK)
        before, had, now = had, list(words.words[1:]), time.monotonic()
        since = [since[each] if had[each] == before[each] else now for each in range(len(had))]
        waited = now - min(since)
        if waited > longest:
            own, average = had[since.index(min(since))], sum(had) / len(had)
            raise AssertionError(
                f"a writer of {len(had)} starved: no turn for {waited:.1f} s ({own} before, and {average:.0f} on average)"
            )


def crowded(trial: Trial, member: Callable[..., float] = crowd_in, longest: float = CROWDED) -> None:
    """Let many processes write as fast as they can."""
    processes = CROWD if trial.seconds >= LONG else SMALL_CROWD

    def case(chance: random.Random) -> None:
        kind, directory, words = chance.choice(KINDS), trial.fresh(), Words(1 + processes)  # the end; turns of each
        played(lambda: opened(kind, directory).close())
        with WAITS.noted(), Stage() as stage:
            everyone = [
                stage.play(partial(member, number=number, kind=kind, directory=directory, words=words))
                for number in range(processes)
            ]
            Crew.together(everyone)
            await_turns(words, everyone, longest)
            words[0] = 1
            longest_wait = max(Crew.results(everyone))
        trial.count("writes", sum(words.words[1:]))
        trial.most(f"longest wait of {processes}", 1e3 * longest_wait, " ms")
        assert longest_wait <= longest, f"a writer of {processes} waited {longest_wait:.1f} s for the lock"

    trial.repeat(case)


def without_one(trial: Trial) -> None:
    """Do the same where one process gets the lock only when the others are done."""
    crowded(trial, stand_back, IMPATIENT)


PROOFS: dict[str, Proof] = {
    "fairness-hog": Proof(
        5,
        f"a writer that pauses beside one that takes the lock again at once, in another process or thread: waits {WAIT:.0f}"
        " s at most",
        polite_beside_hog,
    ),
    "fairness-crowd": Proof(
        5,
        f"{CROWD} processes ({SMALL_CROWD} in a short run) write as fast as they can until each had {TURNS} turns: none"
        f" is without a turn for {CROWDED:.0f} s",
        crowded,
        bulk=2.0,
    ),
    "fairness-no-turns": Proof(
        5,
        "nobody heeds a fairness claim",
        without_turns,
        share=0.5,
        finds="AssertionError: a writer starved: ",
    ),
    "fairness-left-out": Proof(
        5,
        "one process gets the lock only when the others are done",
        without_one,
        share=0.5,
        finds="AssertionError: a writer of .* starved: ",
    ),
}
