"""How sure a median is: confidence intervals from order statistics, which assume no distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return low, high and coverage of the narrowest interval that holds the true median in 95 % of all runs.

    Too few values for that give the lowest and the highest, and the lower coverage that these have.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    ordered = sorted(values)
    outside = _tail(len(ordered), 0)
    left_out = 0
    while left_out + 1 < len(ordered) - left_out - 1:
        wider = outside + _tail(len(ordered), left_out + 1)
        if 1 - 2 * wider < CONFIDENCE:
            break
        outside, left_out = wider, left_out + 1
    return ordered[left_out], ordered[-1 - left_out], max(1 - 2 * outside, 0.0)


def _tail(count: int, below: int) -> float:
    """Return the probability that exactly `below` of `count` values lie below the median."""
    return math.comb(count, below) / (1 << count)
