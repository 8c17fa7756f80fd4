"""How a soak measures: times in constant memory, growth from the first third to the last; and what kills are told by."""

from __future__ import annotations

from pathlib import Path

import pytest

from prove.children import Words
from prove.crashes.any_moment import SCENES
from prove.load.everything_at_once import Pulse
from prove.load.soak import MORE_DESCRIPTORS, MORE_MEMORY, Thirds, Times, step_of, within
from prove.proof import Trial

from ...support.workers import PATIENCE


def test_times_tell_what_a_part_of_the_calls_took_at_most() -> None:
    times = Times(step_of(number / 1e6) for number in range(1, 1000)) + Times([step_of(60.0), step_of(0.0)])
    for part in (0.5, 0.9, 0.99):
        assert part <= within(times, part) <= part * 1.1
    assert 60e3 <= within(times, 1.0) <= 66e3
    assert within(Times(), 0.5) < 0.01


def test_who_works_stays_while_the_proof_goes_on_and_ends_soon_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alarms: list[int] = []
    monkeypatch.setattr("signal.alarm", alarms.append)
    words = Words(3)
    pulse = Pulse(words)
    assert pulse.goes_on()
    assert alarms == []
    Pulse.give(words)
    assert pulse.goes_on()
    assert pulse.goes_on()
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
