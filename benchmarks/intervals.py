"""How sure a median is: confidence intervals that assume nothing about how the repetitions are distributed.

Each of n independent repetitions lies below the true median with probability 1/2, so the number of those that do is
binomial. The r-th smallest and the r-th largest of them therefore enclose the median with probability

    coverage(n, r) = 1 - 2 * sum(C(n, i) for i in 0 .. r-1) / 2**n        (at least, if values are tied)

W. J. Conover, Practical Nonparametric Statistics, 3rd edition, Wiley 1999, section 3.2; the method is older:
W. R. Thompson, Annals of Mathematical Statistics 7 (1936), pages 122-128. Five repetitions reach 93.75 % at best, from
the lowest to the highest; six are the fewest that reach 95 %.

Repetitions of a benchmark are not quite independent: they share a machine that may be slow for a while. The intervals
are right for what varies from one repetition to the next, and know nothing of what was the same in all.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction
from math import comb
from typing import NamedTuple

from benchmarks.measure import ratios

WANTED = 0.95


class Interval(NamedTuple):
    """Two bounds and the probability that they enclose the true median."""

    low: float
    high: float
    coverage: float


class Spread(NamedTuple):
    """The median of some repetitions, with its interval and their number."""

    median: float
    interval: Interval
    repetitions: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise one value per repetition."""
        interval = median_interval(values)
        return cls(statistics.median(values), interval, len(values))


def coverage(count: int, rank: int) -> float:
    """Return how probably the `rank`-th smallest and the `rank`-th largest of `count` values enclose the median."""
    if not 1 <= rank <= (count + 1) // 2:
        raise ValueError(f"rank {rank} of {count} values: expected 1 to {(count + 1) // 2}")
    outside = 2 * sum(comb(count, below) for below in range(rank))
    return 1 - float(Fraction(outside, 2**count))


def ranks(count: int, wanted: float = WANTED) -> tuple[int, float]:
    """Return the innermost rank whose coverage is at least `wanted`, or else rank 1, and its true coverage."""
    enough = [rank for rank in range(1, (count + 1) // 2 + 1) if coverage(count, rank) >= wanted]
    rank = max(enough, default=1)
    return rank, max(coverage(count, rank), 0)


def median_interval(values: Sequence[float], wanted: float = WANTED) -> Interval:
    """Return the narrowest symmetric interval of the median that covers `wanted`, or else the whole range."""
    if not values:
        raise ValueError("no repetitions, so no interval; expected at least one value")
    ordered = sorted(values)
    rank, probability = ranks(len(ordered), wanted)
    return Interval(ordered[rank - 1], ordered[-rank], probability)


def ratio_spread(top: Sequence[float], bottom: Sequence[float]) -> Spread:
    """Return the median of `top / bottom` with its interval, each repetition divided by the one it took turns with.

    What slows a machine down for a while slows both down, and cancels; dividing two medians would not cancel it.
    """
    return Spread.of(ratios(top, bottom))
