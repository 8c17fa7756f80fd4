"""Intervals of medians: they hold the median as surely as they say, whatever the distribution."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import intervals
from benchmarks.intervals import Interval, Spread, coverage, median_interval, ranks, ratio_spread
from benchmarks.repetitions import confidence

values = st.floats(-1e12, 1e12)


def test_five_repetitions_reach_from_lowest_to_highest() -> None:
    assert median_interval([3, 1, 5, 2, 4]) == (1, 5, 0.9375)


@pytest.mark.parametrize(
    ("count", "rank", "probability"),
    # As in published tables of intervals of the median.
    [
        (1, 1, 0),
        (2, 1, 0.5),
        (5, 1, 0.9375),
        (6, 1, 0.96875),
        (8, 1, 0.9921875),
        (9, 2, 0.9609375),
        (20, 6, 0.9586),
    ],
)
def test_ranks_are_those_of_the_binomial_distribution(count: int, rank: int, probability: float) -> None:
    found, covered = ranks(count)
    assert found == rank
    assert covered == pytest.approx(probability, abs=5e-5)


@given(st.lists(values, min_size=1, max_size=60))
def test_the_median_lies_inside(some: list[float]) -> None:
    low, high, probability = median_interval(some)
    assert min(some) <= low <= statistics.median(some) <= high <= max(some)
    assert 0 <= probability <= 1


@given(st.integers(6, 300))
def test_no_narrower_interval_would_do(count: int) -> None:
    rank, probability = ranks(count)
    assert probability == coverage(count, rank) >= intervals.WANTED
    assert rank + 1 > (count + 1) // 2 or coverage(count, rank + 1) < intervals.WANTED


@pytest.mark.parametrize("count", [5, 7, 12])
@pytest.mark.parametrize("kind", ["exponential", "log-normal"])
def test_simulated_coverage_is_the_stated_one(count: int, kind: str) -> None:
    draw, rounds = random.Random(count), 4_000
    exponential = kind == "exponential"
    median = 0.6931471805599453 if exponential else 1.0
    found = [
        median_interval([draw.expovariate(1) if exponential else draw.lognormvariate(0, 2) for _ in range(count)])
        for _ in range(rounds)
    ]
    held = sum(low <= median <= high for low, high, _ in found) / rounds
    assert held == pytest.approx(found[0].coverage, abs=0.015)


def test_a_ratio_is_taken_within_each_repetition() -> None:
    spread = ratio_spread([10, 200, 30], [5, 100, 10])
    assert spread == Spread(2, Interval(2, 3, 0.75), 3)
    assert ratio_spread([1], [0]).median == float("inf")


@pytest.mark.parametrize("wrong", [(3, 0), (3, 3), (0, 1)])
def test_an_impossible_rank_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="rank"):
        coverage(*wrong)


def test_no_repetitions_are_refused() -> None:
    with pytest.raises(ValueError, match="no repetitions"):
        Spread.of([])


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([], "no repetition"),
        ([1, 1], "1 repetition"),
        ([5, 5], "5 repetitions with intervals of 93.75 % confidence"),
        ([5, 2, 3], "2 to 5 repetitions with intervals of up to 93.75 % confidence"),
    ],
)
def test_what_stands_behind_medians_is_said_in_a_line(counts: list[int], said: str) -> None:
    assert confidence([None, *(Spread.of(range(count)) for count in counts)]) == said
