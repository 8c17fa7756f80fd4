"""Crash: `kill -9` at any step of a write, an opening or an upkeep loses nothing that was acknowledged, and hinders nobody.

A process dies at every single step, one after the other, while handles in this process look on. Several processes that
work as fast as they can are killed at any moment by prove/crashes/any_moment.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from diskcache_like.errors import CorruptDatabaseWarning

from ..support.crash_scenarios import ALL_MARKING, DEED_WRITES, FILLERS, MARKING_ALL, UPKEEP, nurse, victims
from ..support.integrity import opened
from ..support.recovery_checks import BYSTANDERS, look_after, look_after_making_room, look_after_opening, prepare
from ..support.sample_writes import MISSING, WRITES, Write
from ..support.workers import Crew, Worker


@pytest.fixture(scope="module")
def nurse_() -> Iterator[Worker]:
    with Crew() as crew:
        yield crew.start(nurse)


def survive(nurse_: Worker, directory: Path, kind: str, name: str, write: Write) -> int:
    """Let victims do `name` and die at each step; after each death all must be well. Returns the number of deaths."""
    deaths = 0
    with opened(directory, kind) as hot, opened(directory, kind, hot_size_limit=0) as cold:
        hot.set_many(BYSTANDERS)
        steps = victims(nurse_, directory, kind, name)
        while True:
            prepare(hot, write)
            if next(steps, None) is None:
                break
            deaths += 1
            look_after(hot, cold, write, name)
        assert hot.get(write.key, MISSING) == write.new
    with opened(directory, kind, strict=True) as again:
        assert again.get(write.key, MISSING) == write.new
    return deaths


@pytest.mark.parametrize("name", [*DEED_WRITES, *(each + MARKING_ALL for each in ALL_MARKING)])
def test_a_writer_may_die_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    write = DEED_WRITES[name.removesuffix(MARKING_ALL)]
    assert survive(nurse_, tmp_path / "cache", "one", name, write) >= 5


@pytest.mark.parametrize("name", ["set", "set to a file", "incr", "delete", "touch", "set_many", "transact", "clear"])
def test_a_writer_with_a_write_buffer_may_die_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "buffered", name, DEED_WRITES[name]) >= 5


@pytest.mark.parametrize("name", ["set to a file", "transact", "delete_many"])
def test_a_writer_of_several_shards_may_die_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "fanout", name, WRITES[name]) >= 5


@pytest.mark.parametrize("name", UPKEEP)
def test_upkeep_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "one", name, UPKEEP[name]) >= 4


@pytest.mark.parametrize("name", ["flush", "close"])
def test_upkeep_with_a_write_buffer_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "buffered", name, UPKEEP[name]) >= 4


def test_making_room_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path) -> None:
    with opened(tmp_path / "cache") as hot, opened(tmp_path / "cache", hot_size_limit=0) as cold:
        hot.set_many(FILLERS)
        for _ in victims(nurse_, tmp_path / "cache", "one", "make room"):
            look_after_making_room(hot, cold, {"k": 2, **FILLERS})
            hot.set_many(FILLERS)
            hot.delete("k")
            assert hot.get_many(FILLERS) == FILLERS


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("one", "open"),
        ("one", "open again"),
        ("one", "quarantine"),
        ("fanout", "open"),
        ("fanout", "open again"),
        ("buffered", "open"),
        ("buffered", "open again"),
    ],
)
def test_opening_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path, kind: str, name: str) -> None:
    deaths = 0
    for at in victims(nurse_, tmp_path, kind, name):
        deaths += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CorruptDatabaseWarning)
            with opened(tmp_path / str(at), kind) as cache, opened(tmp_path / str(at), kind) as other:
                assert len(cache._shards.stores) == (2 if kind == "fanout" else 1)
                look_after_opening(cache, other, keeps=name == "open again")
    assert deaths >= 12
