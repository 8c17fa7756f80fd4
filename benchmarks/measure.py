"""How it is measured: the clock and its cost, single calls and blocks of calls, percentiles, paired repetitions.

Two ways of timing. *Single calls* read the clock around each call: right for percentiles of what takes microseconds.
*Blocks* read it around 100 calls and divide: right for what takes about as long as reading the clock. The cost of the
clock (and, for blocks, of the loop) is measured at the start of a run, subtracted, and stated in the output.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

clock = time.perf_counter_ns

BLOCK = 100
MILLION = 1_000_000
# Shares of calls, as calls in a million that are slower: 50 % down to one in a million, on a logarithmic axis.
CURVE: tuple[int, ...] = (1_000_000, 900_000, 750_000, 500_000, 250_000, 100_000, 50_000, 20_000, 10_000, 5_000, 2_000)
CURVE += (1_000, 500, 200, 100, 50, 20, 10, 5, 2, 1, 0)


def amount(usual: float, meaning: str) -> Any:
    """Return a field of a dataclass that says how much is measured, for an option of a command."""
    return field(default=usual, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Costs:
    """What measuring itself costs, in nanoseconds: one pair of clock readings, one turn of the loop of a block."""

    clock: float
    loop: float


@dataclass(frozen=True)
class Calls:
    """One kind of call in one repetition, in nanoseconds per call.

    `curve` has what a share of `CURVE` is slower than, `total` the sum, and `tail` the mean of the slowest hundredth.
    """

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    curve: tuple[float, ...]
    total: float
    tail: float = 0.0

    @classmethod
    def of(cls, samples: Iterable[float], cost: float = 0) -> Self:
        """Summarise samples, `cost` subtracted from each; no samples are all zeros."""
        ordered = sorted(max(sample - cost, 0) for sample in samples)
        if not ordered:
            return cls(0, 0, 0, 0, 0, 0, (), 0)
        p50, p90, p99, p999 = (percentile(ordered, milli) for milli in (500, 900, 990, 999))
        curve = tuple(ordered[_rank(len(ordered), slower)] for slower in CURVE)
        tail = statistics.fmean(ordered[-max(len(ordered) // 100, 1) :])
        return cls(len(ordered), p50, p90, p99, p999, ordered[-1], curve, sum(ordered), tail)


def _rank(count: int, slower: int) -> int:
    """Return the index of the smallest of `count` ordered samples that at most `slower` in a million exceed."""
    return max(-(-count * (MILLION - slower) // MILLION) - 1, 0)


def percentile(ordered: Sequence[float], per_mille: int) -> float:
    """Return the nearest-rank percentile: the smallest sample that `per_mille` of all samples do not exceed."""
    return ordered[max(-(-len(ordered) * per_mille // 1000), 1) - 1]


IDLE = """
import os, sys
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == int(sys.argv[1]):
        pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """Keep every processor from sleeping while the body runs, with processes that any other one interrupts at once.

    A server that waits for a request lets its processor sleep, and waking it takes as long as the call, or several
    times as long, depending on the machine. Where many requests are served it does not sleep.
    """
    idlers = [subprocess.Popen([sys.executable, "-c", IDLE, str(os.getpid())]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for idler in idlers:
            idler.kill()
            idler.wait()


def measure_costs(rounds: int = 20_000) -> Costs:
    """Measure what a pair of clock readings costs, and a turn of a loop."""
    pairs = array("q")
    for _ in range(rounds):
        start = clock()
        pairs.append(clock() - start)
    pair = statistics.median(pairs)
    keys = range(BLOCK)
    loops = []
    for _ in range(max(rounds // BLOCK, 10)):
        start = clock()
        for _key in keys:
            pass
        loops.append(clock() - start)
    return Costs(pair, max(statistics.median(loops) - pair, 0) / BLOCK)


def time_once(function: Callable[[], Any]) -> tuple[int, Any]:
    """Time one call and return its nanoseconds and its result."""
    start = clock()
    result = function()
    return clock() - start, result


def alternate(rounds: int, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield every name once per round, in turning order, so that none always runs on a warm or a tired machine.

    Garbage is collected between rounds, not inside them: a collection empties the processor's caches.
    """
    for number in range(rounds):
        gc.collect()
        for place in range(len(names)):
            yield number, names[(number + place) % len(names)]


def ratios(slower: Sequence[float], faster: Sequence[float]) -> list[float]:
    """Return `slower / faster` for each repetition; a quotient by zero is infinite."""
    return [top / bottom if bottom else float("inf") for top, bottom in zip(slower, faster, strict=True)]
