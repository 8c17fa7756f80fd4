"""Crash: `kill -9` at any instant loses nothing that was acknowledged, tears nothing, and hinders nobody.

Two kinds of test. In the first a process dies at every single step of a write, an opening or an upkeep, one after the
other, while handles in this process look on. In the second three processes work as fast as they can and are killed
whenever it pleases; each has written down outside the cache, before and after every call, what it was about to do.

DISKCACHE_LIKE_KILLS is the number of kills of the second kind (60).
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.errors import CorruptDatabaseWarning

from ..support.crash_scenarios import ALL_MARKING, DEED_WRITES, FILLERS, MARKING_ALL, UPKEEP, nurse, victims
from ..support.integrity import mend, opened
from ..support.oracle_logs import look, verify, work
from ..support.recovery_checks import BYSTANDERS, look_after, look_after_making_room, look_after_opening, prepare
from ..support.sample_writes import MISSING, WRITES, Write
from ..support.workers import Crew, Worker

KILLS = int(os.environ.get("DISKCACHE_LIKE_KILLS", "60"))


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(scope="module")
def nurse_() -> Iterator[Worker]:
    with Crew() as crew:
        yield crew.start(nurse)


# -- dying at each step -----------------------------------------------------------------------------------------------


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


# -- dying at any moment ----------------------------------------------------------------------------------------------


def kill_again_and_again(
    crew: Crew, tmp_path: Path, kind: str, kills: int, settings: dict[str, Any], evicting: bool = False
) -> None:
    """Kill workers one by one, three a round, while the others go on; verify after each round."""
    chance = random.Random(kills)
    directory, diaries = tmp_path / "cache", [tmp_path / f"diary {owner}" for owner in range(3)]
    with opened(directory, kind, **settings) as bystander:
        for round_ in range(-(-kills // 3)):
            workers = [
                crew.start(work, owner, 3 * round_ + owner, directory, kind, diaries[owner], settings)
                for owner in range(3)
            ]
            crew.together(workers)
            chance.shuffle(workers)
            for worker in workers:
                for _ in range(chance.randrange(1, 20)):
                    worker.hear()
                for _ in range(chance.randrange(2_000)):  # some moment within the next few changes
                    worker.link.asked()
                worker.kill()
            assert bystander.set("lock is free", round_)
            with opened(directory, kind, strict=True, **settings) as cache:
                for owner, diary in enumerate(diaries):
                    for each in (bystander, cache):
                        verify(look(each, owner), owner, diary, evicting)
                mend(cache)
                assert cache.get("lock is free") == round_ or evicting
            for worker in workers:
                worker.dismiss()
                crew.workers.remove(worker)


@pytest.mark.parametrize("kind", ["one", "buffered", "fanout"])
@pytest.mark.parametrize("durability", ["process", "system"])
def test_kills_lose_nothing(crew: Crew, tmp_path: Path, kind: str, durability: str) -> None:
    kill_again_and_again(crew, tmp_path, kind, KILLS // 6, {"eviction_policy": "none", "durability": durability})


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used"])
def test_kills_under_a_full_size_limit_lose_only_what_is_evicted(crew: Crew, tmp_path: Path, policy: str) -> None:
    settings = {"eviction_policy": policy, "size_limit": 700_000}
    kill_again_and_again(crew, tmp_path, "one", KILLS // 6, settings, evicting=True)
