"""How a soak measures: times in constant memory, growth from the first third to the last; and what kills are told by."""

from __future__ import annotations

from pathlib import Path

import pytest

from prove.children import Words
from prove.crashes.any_moment import SCENES
from prove.load.everything_at_once import Pulse
from prove.load.soak import MORE_DESCRIPTORS, MORE_MEMORY, Thirds, Times
from prove.proof import Trial

from ...support.workers import PATIENCE


def test_times_tell_what_a_part_of_the_calls_took_at_most_and_the_longest() -> None:
    times, more = Times(), Times()
    for number in range(1, 1000):
        times.add(number / 1e6)
    more.add(60.0)
    times.take(more)
    assert times.number == 1000
    assert times.longest == 60.0
    for part in (0.5, 0.9, 0.99):
        assert part * 1e-3 <= times.within(part) <= part * 1.1e-3
    assert times.within(1.0) >= 60.0


def test_a_time_beyond_all_measure_is_noted_all_the_same() -> None:
    times = Times()
    times.add(0.0)
    times.add(1e9)
    assert times.number == 2
    assert times.longest == 1e9


def test_who_works_stays_while_the_proof_goes_on_and_ends_soon_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alarms: list[int] = []
    monkeypatch.setattr("signal.alarm", alarms.append)
    words = Words(3)
    pulse = Pulse(words)
    pulse.follow()
    assert alarms == []
    Pulse.give(words)
    pulse.follow()
    pulse.follow()
    assert alarms == [2 * PATIENCE]
    assert list(words.words[:2]) == [0, 0]


@pytest.mark.parametrize(
    ("descriptors", "memory", "problem"),
    [
        ([5, 9, 5 + MORE_DESCRIPTORS], [1, 1 << 40, 1 + MORE_MEMORY], None),
        ([5, 5, 6 + MORE_DESCRIPTORS], [1, 1, 1], "descriptors more than it had"),
        ([5, 5, 5], [1, 1, 2 + MORE_MEMORY], "grew by"),
    ],
)
def test_what_is_more_in_the_last_third_than_in_the_first_has_grown(
    descriptors: list[int], memory: list[int], problem: str | None
) -> None:
    thirds = Thirds([], Path("cache"))
    thirds.descriptors, thirds.memory = [[1, 1, 1], descriptors], [[1, 1, 1], memory]
    with Trial(1, 1) as trial:
        if problem is None:
            thirds.judge(trial)
        else:
            with pytest.raises(AssertionError, match=problem):
                thirds.judge(trial)


def test_writers_are_killed_under_each_durability() -> None:
    assert {scene.durability for scene in SCENES} == {"process", "system", "power"}
