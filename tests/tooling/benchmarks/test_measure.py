"""The arithmetic of the benchmarks: percentiles, costs, intervals, verdicts, and how numbers are written."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import measure
from benchmarks.budgets import AIM, BUDGETS, MISSED, MUST, UNCLEAR, UNMEASURED, Budget, assess, cost, speed
from benchmarks.intervals import WANTED, Interval, Spread, coverage, median_interval, ranks, ratio_spread
from benchmarks.measure import Calls
from benchmarks.report.summaries import confidence
from benchmarks.report.text import Table, duration, objectives_table, size
from benchmarks.workloads.sections import SECTIONS

SPEED = speed("set", "operations", "set, p50", 2.5, 4)
COST = cost("open", "growth", "open | get", 5, None, " ms")


@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(1, 1000))
def test_a_percentile_is_the_smallest_sample_not_exceeded_by_enough(samples: list[int], per_mille: int) -> None:
    enough = [one for one in samples if sum(other <= one for other in samples) * 1000 >= per_mille * len(samples)]
    assert measure.percentile(sorted(samples), per_mille) == min(enough)


def test_a_summary_subtracts_the_cost_and_never_goes_below_zero() -> None:
    found = Calls.of([30, 5, 20], cost=10)
    assert (found.count, found.p50, found.p90, found.max, found.total, found.tail) == (3, 10, 20, 20, 30, 20)
    assert found.curve[0] == 0
    assert found.curve[-1] == 20
    assert Calls.of(range(200)).tail == 198.5, "the mean of the slowest hundredth"


def test_costs_are_measured() -> None:
    costs = measure.measure_costs(200)
    assert costs.clock > 0
    assert costs.loop >= 0


def test_every_name_starts_a_round_in_turn() -> None:
    assert list(measure.alternate(2, ["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


@pytest.mark.parametrize(
    ("count", "rank", "probability"),
    # As in published tables of intervals of the median.
    [(1, 1, 0), (2, 1, 0.5), (5, 1, 0.9375), (6, 1, 0.96875), (8, 1, 0.9921875), (9, 2, 0.9609375), (20, 6, 0.9586)],
)
def test_ranks_are_those_of_the_binomial_distribution(count: int, rank: int, probability: float) -> None:
    found, covered = ranks(count)
    assert found == rank
    assert covered == pytest.approx(probability, abs=5e-5)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60))
def test_the_median_lies_inside(some: list[float]) -> None:
    low, high, probability = median_interval(some)
    assert min(some) <= low <= statistics.median(some) <= high <= max(some)
    assert 0 <= probability <= 1


@given(st.integers(6, 300))
def test_no_narrower_interval_would_do(count: int) -> None:
    rank, probability = ranks(count)
    assert probability == coverage(count, rank) >= WANTED
    assert rank + 1 > (count + 1) // 2 or coverage(count, rank + 1) < WANTED


def test_a_ratio_is_taken_within_each_repetition() -> None:
    assert ratio_spread([10, 200, 30], [5, 100, 10]) == Spread(2, Interval(2, 3, 0.75), 3)
    assert ratio_spread([1], [0]).median == math.inf


def test_no_repetitions_and_no_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="no repetitions"):
        Spread.of([])
    with pytest.raises(ValueError, match="rank"):
        coverage(3, 3)


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


@pytest.mark.parametrize(
    ("values", "budget", "verdict"),
    [
        ([4.0] * 6, SPEED, AIM),
        ([math.inf] * 6, SPEED, AIM),
        ([3.9] + [9.0] * 5, SPEED, MUST),  # of six values, all belong to the interval
        ([2.4] + [9.0] * 5, SPEED, UNCLEAR),
        ([2.4] * 5 + [2.5], SPEED, UNCLEAR),
        ([2.4] * 6, SPEED, MISSED),
        ([2.4] * 8 + [9.0], SPEED, MISSED),  # of nine, the lowest and the highest do not
        ([1.0] + [2.5] * 8, SPEED, MUST),
        ([9.0, math.nan, 9.0], SPEED, MISSED),
        ([], SPEED, UNMEASURED),
        ([5.0] * 6, COST, MUST),
        ([5.1] + [1.0] * 5, COST, UNCLEAR),
        ([5.1], COST, MISSED),
    ],
)
def test_a_row_is_met_or_missed_only_if_the_whole_interval_is(
    values: list[float], budget: Budget, verdict: str
) -> None:
    for some in (values, values[::-1]):
        assert assess({budget.key: some}, [budget])[0].verdict == verdict


def test_every_section_has_its_rows_and_repetitions_enough_for_an_interval() -> None:
    assert {budget.section for budget in BUDGETS} == set(SECTIONS)
    assert len({budget.key for budget in BUDGETS}) == len(BUDGETS)
    efforts = {name: section.effort for name, section in SECTIONS.items()}
    assert all(effort.repeats >= 6 for effort in efforts.values())
    assert (efforts["growth"].entries, efforts["limit"].writes) == (1_000_000, 100_000)


def test_the_table_of_objectives_shows_intervals_and_units() -> None:
    outcomes = assess({"set": [2.0] * 3 + [3.0] * 3, "open": [7.0]}, [SPEED, COST, speed("x", "x", "no", 25, None)])
    assert [list(row) for row in objectives_table(outcomes).rows] == [
        ["set, p50", "2.50x", "2x..3x", "96.9%", "2.50x", "4x", UNCLEAR],
        ["open | get", "7 ms", "one value", "-", "5 ms", "-", MISSED],
        ["no", "-", "-", "-", "25x", "-", UNMEASURED],
    ]
    assert Budget("k", "s", "l", 1, None, " %", False).show(7.5) == "+7.50 %"


def test_a_table_is_aligned_and_as_markdown_has_as_many_cells_in_every_row() -> None:
    table = Table("Title", ("name", "count"), [("a|b", "1"), ("long name", "1,000")], ["one", "two"])
    rows = ["name       count", "---------  -----", "a|b            1", "long name  1,000"]
    assert table.text().splitlines() == ["Title", "", *rows, "  one", "  two"]
    rows = ["| name | count |", "| :-- | --: |", r"| a\|b | 1 |", "| long name | 1,000 |"]
    assert table.markdown().splitlines() == ["### Title", "", *rows, "", "one two"]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0.00 ns"), (160, "160 ns"), (999.7, "1.00 µs"), (9_998, "10.0 µs"), (99_960, "100 µs"), (12.9e9, "12.9 s")],
)
def test_durations_have_three_digits(nanoseconds: float, text: str) -> None:
    assert duration(nanoseconds) == text


def test_sizes_have_binary_units() -> None:
    assert [size(count) for count in (5, 2048, 3 << 20, 1 << 31)] == ["5 B", "2.0 KiB", "3.0 MiB", "2.00 GiB"]
