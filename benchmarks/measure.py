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
from dataclasses import asdict, dataclass
from typing import Any

clock = time.perf_counter_ns

BLOCK = 100
MILLI = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}


@dataclass(frozen=True)
class Costs:
    """What measuring itself costs, in nanoseconds: one pair of clock readings, one turn of the loop of a block."""

    clock: float
    loop: float


@dataclass(frozen=True)
class Summary:
    """Percentiles of one set of samples, in nanoseconds per call."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    tail: float = 0  # mean of the slowest hundredth

    def as_dict(self) -> dict[str, float]:
        """Return the fields by name."""
        return asdict(self)


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


IDLE = """
import os, sys
if hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == int(sys.argv[1]):
        pass
"""


def percentile(ordered: Sequence[float], per_mille: int) -> float:
    """Return the nearest-rank percentile: the smallest sample that `per_mille` of all samples do not exceed."""
    if not ordered:
        raise ValueError("no samples")
    if not 0 <= per_mille <= 1000:
        raise ValueError(f"per mille out of range: {per_mille}")
    rank = -(-len(ordered) * per_mille // 1000)
    return ordered[max(rank, 1) - 1]


def summarise(samples: Iterable[float], cost: float = 0) -> Summary:
    """Return the percentiles of `samples`, `cost` subtracted from each; no samples are all zeros."""
    ordered = sorted(max(sample - cost, 0) for sample in samples)
    if not ordered:
        return Summary(0, 0, 0, 0, 0, 0)
    picked = {name: percentile(ordered, milli) for name, milli in MILLI.items()}
    slowest = ordered[-max(len(ordered) // 100, 1) :]
    return Summary(len(ordered), **picked, max=ordered[-1], tail=statistics.fmean(slowest))


def combine(summaries: Sequence[Summary]) -> Summary:
    """Return one summary of several repetitions: medians of the percentiles, sum of counts, largest maximum."""
    picked = {name: statistics.median(getattr(summary, name) for summary in summaries) for name in MILLI}
    return Summary(sum(s.count for s in summaries), **picked, max=max(s.max for s in summaries))


def measure_costs(rounds: int = 20_000) -> Costs:
    """Measure the clock and the loop the way `time_calls` and `time_blocks` use them."""
    pairs = array("q")
    for _ in range(rounds):
        start = clock()
        pairs.append(clock() - start)
    pair = statistics.median(pairs)
    block = [str(number) for number in range(BLOCK)]
    loops = array("q")
    for _ in range(max(rounds // BLOCK, 10)):
        start = clock()
        for _key in block:
            pass
        loops.append(clock() - start)
    return Costs(pair, max(statistics.median(loops) - pair, 0) / BLOCK)


def time_calls(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> array[int]:
    """Time each call by itself; the samples still contain the clock."""
    samples = array("q")
    keep = samples.append
    for args in arguments:
        start = clock()
        function(*args)
        keep(clock() - start)
    return samples


def time_keys(function: Callable[[Any], Any], keys: Iterable[Any]) -> array[int]:
    """Time each call on one key by itself; the samples still contain the clock."""
    samples = array("q")
    keep = samples.append
    for key in keys:
        start = clock()
        function(key)
        keep(clock() - start)
    return samples


def time_blocks(function: Callable[[Any], Any], blocks: Iterable[Sequence[Any]], costs: Costs) -> list[float]:
    """Time whole blocks of calls and return nanoseconds per call, clock and loop subtracted."""
    samples = []
    for block in blocks:
        start = clock()
        for key in block:
            function(key)
        elapsed = clock() - start
        samples.append(max((elapsed - costs.clock) / len(block) - costs.loop, 0))
    return samples


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
