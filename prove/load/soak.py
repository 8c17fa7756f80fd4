"""Soak: eight who write and four who read for as long as is asked for, at a pace and as fast as they can; nothing grows."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.usage import usage_of
from diskcache_like import Cache
from tests.support.workers import Crew, Link, Worker, ready

from ..children import Stage, Words, opened, played, soundness
from ..proof import Trial, repeated
from .calls import content
from .everything_at_once import LONGEST_TURN, LONGEST_WAIT, MIB, Pulse, held

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

Times = Counter[int]  # how many calls took about so long, in steps


def step_of(seconds: float) -> int:
    """Return the measure of a time: memory stays constant, however many there are."""
    return int(STEPS * math.log2(max(1e6 * seconds, 1.0)))


def within(times: Times, part: float) -> float:
    """Return the milliseconds that this part of the calls took at most, to a twelfth."""
    steps = sorted(times)
    ends = accumulate(times[step] for step in steps)
    step = next((step for step, end in zip(steps, ends, strict=True) if end >= part * times.total()), 0)
    return float(2.0 ** ((step + 1) / STEPS) / 1e3)


def write(link: Link, number: int, directory: Path, words: Words) -> tuple[Times, Times]:
    """Replace entries of its own until the end; return how long that took at a pace, small values only, and without."""
    draw, pulse, version = random.Random(number), Pulse(words), 0
    paced, saturated = Times(), Times()
    with opened("Cache", directory, **SETTINGS) as cache:
        ready(link)
        while pulse.goes_on():
            is_saturated, is_large, version = words[SATURATED], draw.randrange(FEW) == 0, version + 1
            key = (number, draw.randrange(KEYS))
            value = version, content((*key, version), LARGE if is_large else SMALL)
            began = time.perf_counter()
            cache.set(key, value, retry=True)
            took = step_of(time.perf_counter() - began)
            if is_saturated or words[SATURATED]:
                saturated[took] += 1
            elif not is_large:
                paced[took] += 1
            if not words[SATURATED]:
                time.sleep(PAUSE)
    return paced, saturated


def read(link: Link, number: int, directory: Path, words: Words) -> int:
    """Read entries of all writers until the end, none of which is ever older than before; return how many."""
    draw, pulse, seen, reads = random.Random(-number), Pulse(words), dict[tuple[int, int], int](), 0
    with opened("Cache", directory, **SETTINGS) as cache:
        ready(link)
        while pulse.goes_on():
            for _ in range(BATCH):
                key = (draw.randrange(WRITERS), draw.randrange(KEYS))
                version, value = cache[key]
                assert value == content((*key, version), len(value)), f"a torn value of {key}"
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


class Thirds:
    """The most that each process had, in each third of a run."""

    def __init__(self, everyone: Sequence[Worker], directory: Path) -> None:
        self._everyone, self._directory = everyone, directory
        self.descriptors = [[0] * 3 for _ in everyone]
        self.memory = [[0] * 3 for _ in everyone]

    def look(self, third: int) -> None:
        for worker, descriptors, memory in zip(self._everyone, self.descriptors, self.memory, strict=True):
            descriptors[third] = max(descriptors[third], held(self._directory, worker.pid)[0])
            memory[third] = max(memory[third], usage_of(worker.pid).resident)

    def judge(self, trial: Trial) -> None:
        """Compare the last third with the first."""
        descriptors, memory = (max(last - first for first, _, last in each) for each in (self.descriptors, self.memory))
        trial.most("most descriptors for the cache", max(map(max, self.descriptors)))
        trial.most("more descriptors in the last third than in the first", descriptors)
        trial.most("more memory", memory / MIB, " MiB")
        assert descriptors <= MORE_DESCRIPTORS, f"a process has {descriptors} descriptors more than it had"
        assert memory <= MORE_MEMORY, f"a process grew by {memory / MIB:.1f} MiB"


@repeated(
    "load-soak",
    5,
    f"{WRITERS} processes write, at a pace and for a fifth of the time as fast as they can, and {READERS} read: the WAL"
    f" is within {WAL_BOUND // MIB} MiB; in the last third nobody has {MORE_MEMORY // MIB} MiB or"
    f" {MORE_DESCRIPTORS} descriptors more than in the first",
)
def soak(trial: Trial, _: random.Random) -> None:
    directory, words = trial.fresh(), Words(3)
    played(partial(prepare, directory))
    with Stage() as stage:
        play: list[tuple[Callable[..., object], int]] = [(write, number) for number in range(WRITERS)]
        play += [(read, number) for number in range(READERS)]
        everyone = [stage.play(partial(work, number=number, directory=directory, words=words)) for work, number in play]
        Crew.together(everyone)
        thirds, largest, wal = Thirds(everyone, directory), 0, directory / "cache.db-wal"
        seconds = max(trial.left - AROUND, LEAST)
        cycle, began = min(CYCLE, seconds / CYCLES), time.monotonic()
        while (since := time.monotonic() - began) < seconds and not any(worker.link.asked() for worker in everyone):
            words[SATURATED] = since % cycle >= (1 - CRUSH) * cycle
            Pulse.give(words)
            thirds.look(int(3 * since / seconds))
            largest = max(largest, wal.stat().st_size if wal.exists() else 0)
            time.sleep(min(LOOK, CRUSH * cycle / 2))
        words[END] = 1
        results = Crew.results(everyone)
    paced, saturated = (sum((each[which] for each in results[:WRITERS]), Times()) for which in (0, 1))
    trial.count("sets at a steady pace", paced.total())
    trial.count("as fast as possible", saturated.total())
    trial.count("reads", sum(results[WRITERS:]))
    for what, part in (("median of a set", 0.5), ("p99 of a set", 0.99), ("longest set", 1.0)):
        trial.most(f"{what} at a steady pace", within(paced, part), " ms")
    trial.most("longest set when saturated", within(saturated, 1.0), " ms")
    longest = max(within(paced, 1.0), within(saturated, 1.0)) / 1e3
    assert longest <= LONGEST_WAIT + LONGEST_TURN * WRITERS, f"a writer starved: a set took {longest:.1f} s"
    thirds.judge(trial)
    trial.most("largest WAL", largest / MIB, " MiB")
    assert largest <= WAL_BOUND, f"the WAL was {largest / MIB:.1f} MiB long"
    played(partial(soundness, "Cache", directory))


@repeated("load-soak-hoarded", 5, "a writer leaks memory", share=0.3, finds="AssertionError: a process grew by ")
def hoard(trial: Trial, chance: random.Random) -> None:
    """Do the same where the first writer keeps something in memory, ten times a second at most."""
    hoarded: dict[float, bytes] = {}
    replace = Cache.set

    def kept(cache: Cache, key: tuple[int, int], *arguments: Any, **options: Any) -> bool:
        if key[0] == 0 and time.monotonic() > max(hoarded, default=0.0) + 0.1:
            hoarded[time.monotonic()] = b"x" * HOARD
        return replace(cache, key, *arguments, **options)

    with mock.patch.object(Cache, "set", kept):
        soak(trial, chance)
