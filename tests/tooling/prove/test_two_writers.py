"""How the rig judges what a power loss has left of two processes' work, and where its images begin."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from prove.power.disk_images import Disk
from prove.power.judging import JudgeOfTwo
from prove.power.recorded_work import Mark, Recording
from prove.workload import LANES, State

ONE, OTHER = (lane.keys[0] for lane in LANES)
QUEUES: State = {lane.queue: () for lane in LANES}


def judge_of(began: int, durability: str = "system") -> JudgeOfTwo:
    """Return a judge of two writes: the first was acknowledged at 10, the second began at `began`, and was at 20."""
    recordings = []
    for lane, key, end, start in zip(LANES, (ONE, OTHER), (10, 20), (1, began), strict=True):
        mark = Mark(end, {key: "new", lane.queue: ()}, "set", began=start)
        shards = {key: 0, lane.queue: 0}
        recordings.append(Recording("one", Disk(""), [], [mark], {key: ["new"]}, shards, {}, was_damaged=False))
    return JudgeOfTwo(durability, recordings, 20, {"cache": None}, random.Random(0))


def test_a_later_write_is_not_there_without_an_earlier_one_of_the_other_process() -> None:
    with pytest.raises(AssertionError, match="without an earlier"):
        judge_of(began=11).judge({**QUEUES, OTHER: "new"})


@pytest.mark.parametrize("seen", [{}, {ONE: "new"}, {ONE: "new", OTHER: "new"}])
def test_the_end_of_what_both_did_may_be_lost(seen: State) -> None:
    judge_of(began=11).judge({**QUEUES, **seen})


def test_of_two_writes_at_once_either_may_be_there_alone() -> None:
    judge_of(began=9).judge({**QUEUES, OTHER: "new"})
    judge_of(began=9).judge({**QUEUES, ONE: "new"})


def test_what_one_process_was_promised_is_there_whatever_became_of_the_others() -> None:
    with pytest.raises(AssertionError, match="none of its states"):
        judge_of(began=9, durability="power").judge({**QUEUES, OTHER: "new"})


def test_a_disk_begins_with_what_is_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"content")
    disk = Disk.holding(tmp_path)
    expected = {"inner": None, "inner/file": b"content"}
    assert disk.complete() == expected
    assert all(disk.image(random.Random(number)) == expected for number in range(20))
