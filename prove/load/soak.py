"""Soak: eight who write and four who read for as long as is asked for, at a pace and as fast as they can; nothing grows."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.usage import usage_of
from diskcache_like import Cache
from tests.support.workers import Crew, Link, Worker, ready

from ..children import Stage, Words, opened, played, soundness
from ..proof import Proof, Trial
from .calls import content, is_content
from .everything_at_once import LONGEST_TURN, LONGEST_WAIT, MIB, Pulse
from .footprint import Held

WRITERS, READERS = 8, 4
KEYS = 50  # of each writer
SMALL, LARGE = 200, 40_000  # bytes; the large ones are files
FEW = 50  # one in so many sets is large
PAUSE = 0.002  # seconds between two sets, or between two batches of reads
BATCH = 20  # reads
END, SATURATED = 0, 1  # words that all share, beside the beat
CYCLE, CYCLES = 10.0, 4  # seconds until the pace changes again; and how often it does so at least
CRUSH = 0.2  # of a cycle in which writers do not pause
LEAST, AROUND = 1.5, 0.5  # seconds of a run, and for its end
LOOK = 0.1  # seconds between two looks at the processes
WAL_BOUND = 64 * MIB
# What a process may have more in the last third of a run than it had in the first: files that it reads just then, and
# what an allocator keeps. Its hot layer and page caches are full by then, as there are few entries.
MORE_DESCRIPTORS, MORE_MEMORY = 3, 8 * MIB
HOARD = 4 * MIB  # that are kept at once where a cache is broken thus
STEPS = 8  # of a time's measure, between it and the double of it
SETTINGS: dict[str, Any] = {"eviction_policy": "none", "durability": "system", "disk_min_file_size": LARGE // 2}


class Times:
    """How long calls took, in constant memory: how many took about that long, and the longest."""

    def __init__(self) -> None:
        self._numbers = [0] * (STEPS * 30)
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Note one."""
        step = int(STEPS * math.log2(max(1e6 * seconds, 1.0)))
        self._numbers[min(step, len(self._numbers) - 1)] += 1
        self.longest = max(self.longest, seconds)

    def take(self, other: Times) -> None:
        """Add those of another."""
        self._numbers = [mine + theirs for mine, theirs in zip(self._numbers, other._numbers, strict=True)]
        self.longest = max(self.longest, other.longest)

    @property
    def number(self) -> int:
        """How many there were."""
        return sum(self._numbers)

    def within(self, part: float) -> float:
        """Return the seconds that this part of them took at most, to a twelfth."""
        step = next(step for step, number in enumerate(accumulate(self._numbers)) if number >= part * self.number)
        return float(2.0 ** ((step + 1) / STEPS) / 1e6)


@dataclass
class Sets:
    """What a writer did."""

    paced: Times = field(default_factory=Times)  # of small values
    saturated: Times = field(default_factory=Times)


def version_of(key: tuple[int, int], found: Any) -> int:
    """Return the version of a value, which has to be there, whole."""
    assert found is not None, f"{key} is missing"
    version, value = found
    assert is_content((*key, version), value), f"a torn value of {key}"
    return int(version)


def write(link: Link, number: int, directory: Path, words: Words) -> Sets:
    """Replace entries of its own until the end."""
    draw, pulse, sets, version = random.Random(number), Pulse(words), Sets(), 0
    with opened("Cache", directory, **SETTINGS) as cache:
        ready(link)
        while not words[END]:
            pulse.follow()
            is_saturated, is_large, version = words[SATURATED], draw.randrange(FEW) == 0, version + 1
            key = (number, draw.randrange(KEYS))
            value = version, content((*key, version), LARGE if is_large else SMALL)
            began = time.perf_counter()
            cache.set(key, value, retry=True)
            took = time.perf_counter() - began
            if is_saturated or words[SATURATED]:
                sets.saturated.add(took)
            elif not is_large:
                sets.paced.add(took)
            if not words[SATURATED]:
                time.sleep(PAUSE)
    return sets


def read(link: Link, number: int, directory: Path, words: Words) -> int:
    """Read entries of all writers until the end, none of which is ever older than before; return how many."""
    draw, pulse, seen, reads = random.Random(-number), Pulse(words), dict[tuple[int, int], int](), 0
    with opened("Cache", directory, **SETTINGS) as cache:
        ready(link)
        while not words[END]:
            pulse.follow()
            for _ in range(BATCH):
                key = (draw.randrange(WRITERS), draw.randrange(KEYS))
                version = version_of(key, cache.get(key))
                assert version >= seen.get(key, 0), f"{key}: version {version} after {seen[key]}"
                seen[key] = version
            reads += BATCH
            time.sleep(PAUSE)
    return reads


def prepare(directory: Path) -> None:
    """Make the cache with all its entries."""
    with opened("Cache", directory, **SETTINGS) as cache:
        keys = [(writer, key) for writer in range(WRITERS) for key in range(KEYS)]
        cache.set_many({key: (0, content((*key, 0), SMALL)) for key in keys}, retry=True)


# -- a run ------------------------------------------------------------------------------------------------------------


class Thirds:
    """The most that each process had, in each third of a run."""

    def __init__(self, everyone: Sequence[Worker], directory: Path) -> None:
        self._everyone, self._directory = everyone, directory
        self.descriptors = [[0] * 3 for _ in everyone]
        self.memory = [[0] * 3 for _ in everyone]

    def look(self, third: int) -> None:
        """Look at all of them."""
        for worker, descriptors, memory in zip(self._everyone, self.descriptors, self.memory, strict=True):
            descriptors[third] = max(descriptors[third], Held.of(self._directory, worker.pid).descriptors)
            memory[third] = max(memory[third], usage_of(worker.pid).resident)

    def judge(self, trial: Trial) -> None:
        """Compare the last third with the first."""
        descriptors, memory = (max(last - first for first, _, last in each) for each in (self.descriptors, self.memory))
        trial.most("most descriptors for the cache", max(map(max, self.descriptors)))
        trial.most("more descriptors in the last third than in the first", descriptors)
        trial.most("more memory", memory / MIB, " MiB")
        assert descriptors <= MORE_DESCRIPTORS, f"a process has {descriptors} descriptors more than it had"
        assert memory <= MORE_MEMORY, f"a process grew by {memory / MIB:.1f} MiB"


def watch(everyone: Sequence[Worker], directory: Path, words: Words, seconds: float) -> tuple[Thirds, int]:
    """Set the pace, and look at the processes and the WAL, for as long as nobody fails; return the largest WAL too."""
    thirds, largest, wal = Thirds(everyone, directory), 0, directory / "cache.db-wal"
    cycle, began = min(CYCLE, seconds / CYCLES), time.monotonic()
    while (since := time.monotonic() - began) < seconds and not any(worker.link.asked() for worker in everyone):
        words[SATURATED] = since % cycle >= (1 - CRUSH) * cycle
        Pulse.give(words)
        thirds.look(int(3 * since / seconds))
        largest = max(largest, wal.stat().st_size if wal.exists() else 0)
        time.sleep(min(LOOK, CRUSH * cycle / 2))
    words[END] = 1
    return thirds, largest


def run(trial: Trial, chance: random.Random) -> None:
    """Let all work for the time that is left."""
    directory, words = trial.fresh(), Words(3)
    played(partial(prepare, directory))
    with Stage() as stage:
        play: list[tuple[Callable[..., object], int]] = [(write, number) for number in range(WRITERS)]
        play += [(read, number) for number in range(READERS)]
        everyone = [stage.play(partial(work, number=number, directory=directory, words=words)) for work, number in play]
        Crew.together(everyone)
        thirds, wal = watch(everyone, directory, words, max(trial.left - AROUND, LEAST))
        results = Crew.results(everyone)
    sets = Sets()
    for each in results[:WRITERS]:
        sets.paced.take(each.paced)
        sets.saturated.take(each.saturated)
    tell(trial, sets, sum(results[WRITERS:]))
    thirds.judge(trial)
    trial.most("largest WAL", wal / MIB, " MiB")
    assert wal <= WAL_BOUND, f"the WAL was {wal / MIB:.1f} MiB long"
    played(partial(soundness, "Cache", directory))


def tell(trial: Trial, sets: Sets, reads: int) -> None:
    """Tell how long sets took, and see that no writer starved."""
    trial.count("sets at a steady pace", sets.paced.number)
    trial.count("as fast as possible", sets.saturated.number)
    trial.count("reads", reads)
    trial.most("median of a set at a steady pace", 1e3 * sets.paced.within(0.5), " ms")
    trial.most("p99 of a set at a steady pace", 1e3 * sets.paced.within(0.99), " ms")
    trial.most("longest set at a steady pace", 1e3 * sets.paced.longest, " ms")
    trial.most("longest set when saturated", 1e3 * sets.saturated.longest, " ms")
    longest = max(sets.paced.longest, sets.saturated.longest)
    assert longest <= LONGEST_WAIT + LONGEST_TURN * WRITERS, f"a writer starved: a set took {longest:.1f} s"


def soak(trial: Trial) -> None:
    """Work for all of the time."""
    trial.repeat(partial(run, trial))


def hoard(trial: Trial) -> None:
    """Do the same where the first writer keeps something in memory, ten times a second at most."""
    hoarded: dict[float, bytes] = {}
    replace = Cache.set

    def kept(cache: Cache, key: tuple[int, int], *arguments: Any, **options: Any) -> bool:
        if key[0] == 0 and time.monotonic() > max(hoarded, default=0.0) + 0.1:
            hoarded[time.monotonic()] = b"x" * HOARD
        return replace(cache, key, *arguments, **options)

    with mock.patch.object(Cache, "set", kept):
        trial.repeat(partial(run, trial))


PROOFS: dict[str, Proof] = {
    "load-soak": Proof(
        5,
        f"{WRITERS} processes write, at a pace and for a fifth of the time as fast as they can, and {READERS} read: the WAL"
        f" is within {WAL_BOUND // MIB} MiB; in the last third nobody has {MORE_MEMORY // MIB} MiB or"
        f" {MORE_DESCRIPTORS} descriptors more than in the first",
        soak,
    ),
    "load-soak-hoarded": Proof(
        5, "a writer leaks memory", hoard, share=0.3, finds="AssertionError: a process grew by "
    ),
}
