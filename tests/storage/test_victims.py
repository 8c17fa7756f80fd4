"""Who stays and who goes under each policy, what moves, and what damage to marks and ghosts may do."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traces.policies import hit_ratio
from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.generations import FARTHEST, MAX_WORD, UNCOUNTED, Header
from diskcache_like.settings.policies import RECENCY
from diskcache_like.storage.opening import opener
from diskcache_like.storage.shard.limits import Limits
from diskcache_like.storage.sqlite import statements as sql
from diskcache_like.storage.sqlite.schema import MOVED_BACK
from diskcache_like.storage.upkeep.victims import Queued

from ..support.tampering import plant

VALUE = "v" * 1_000
LIMIT = 2_000_000
EVICTING = ["least-recently-stored", "least-recently-used", "least-frequently-used", "second-chance"]
SETTINGS: dict[str, Any] = {"eviction_policy": "second-chance", "size_limit": LIMIT, "generation_slots": 1 << 16}


@pytest.fixture(autouse=True)
def _one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the same keys share slots each time: a key may count as used because of another one in its slot."""
    monkeypatch.setattr(opener, "new_modulus", lambda: 787300256890745729)
    monkeypatch.setattr(Limits, "control_bytes", 0)  # the limit is for entries alone


def store(cache: Cache, keys: Iterable[object]) -> None:
    for key in keys:
        cache.set(key, f"{VALUE} of {key}", retry=True)


def fill(cache: Cache) -> int:
    """Store entries until some have to go; return how many there were."""
    number = 0
    while not cache._shards.stores[0].shard.header[Header.EVICTED]:
        store(cache, [("old", number)])
        number += 1
    return number


def test_what_was_used_while_it_was_new_stays_and_the_rest_goes(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        on_probation = fill(cache) * 4 // 10  # half of a small cache may be new
        store(cache, [("used", number) for number in range(5)])
        for turn in range(4):  # half of them while these have been there for half of the time
            store(cache, [("once", turn * on_probation // 4 + number) for number in range(on_probation // 4)])
            assert all(cache.get(("used", number)) for number in range(5) if turn >= 2)
        store(cache, [("more", number) for number in range(2 * on_probation)])
        left = {name for name, _ in cache}
        assert all(("used", number) in cache for number in range(5))
        assert sum(("once", number) in cache for number in range(on_probation)) < 5, "but for marks that are shared"
        assert "old" in left, "new keys took the place of each other"


def test_a_burst_does_not_count(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        many = fill(cache)
        store(cache, ["burst", *range(10)])
        for _ in range(50):
            assert cache["burst"]
        store(cache, range(10, many))
        assert "burst" not in cache


def test_of_the_main_part_what_was_used_stays_and_the_oldest_goes(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        many = fill(cache)
        there = sorted(number for _, number in cache)
        used = there[:20:2]
        for number in used:
            assert cache["old", number]
        for number in range(many):  # each is used when it has been new for a while
            store(cache, [number])
            cache.get(number - many * 3 // 8)
        assert [number for number in there[:20] if ("old", number) in cache] == used


def test_what_comes_back_stays(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        many = fill(cache)
        firsts = [("first", number) for number in range(20)]
        store(cache, [*firsts, *range(many)])
        assert not any(key in cache for key in firsts)
        store(cache, [*firsts, *range(many, 2 * many)])
        assert sum(key in cache for key in firsts) > 10, "but for those whose ghosts made room for others"


def test_an_overwrite_counts_as_a_use(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        many = fill(cache)
        assert ("old", many // 2) in cache
        for turn in range(8):
            store(cache, [("old", many // 2)])
            store(cache, [(turn, number) for number in range(many // 4)])
        assert ("old", many // 2) in cache


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("policy", EVICTING)
def test_who_iterates_sees_each_entry_once_although_others_move_it(tmp_path: Path, policy: str, reverse: bool) -> None:
    """What is there all the time is seen once: not again where it was moved to, and not too late where it was."""
    with Cache(tmp_path, **{**SETTINGS, "eviction_policy": policy}) as cache:
        many = fill(cache)
        stays = [("old", number) for number in range(many // 2, many, 3)]
        seen = []
        for turn, key in enumerate(reversed(cache) if reverse else cache):
            seen.append(key)
            store(cache, [(turn, number) for number in range(5)])
            for name in stays:
                if cache.get(name) is not None and policy == "least-recently-stored" and turn % 20 == 0:
                    store(cache, [name])
        assert len(seen) == len(set(seen))
        assert {name for name in stays if name in cache} <= set(seen)
        (store_,) = cache._shards.stores
        assert store_.connection.select("SELECT 1 FROM entry WHERE id < 0 LIMIT 1"), "nothing was moved"


def test_iteration_is_in_the_order_of_insertion_until_something_is_moved(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        store(cache, range(500))
        store(cache, range(0, 500, 7))
        assert list(cache) == list(range(500)) == list(reversed(list(reversed(cache))))


@pytest.mark.parametrize("policy", EVICTING)
def test_marks_grow_with_the_entries_and_say_the_same(tmp_path: Path, policy: str) -> None:
    with Cache(tmp_path, **{**SETTINGS, "eviction_policy": policy, "size_limit": 1 << 30}) as cache:
        (store_,) = cache._shards.stores
        shard, generations = store_.shard, store_.shard.generations
        before = generations.allocated
        store(cache, range(5_000))
        row = Queued(cache._rows.locate(77)[1], 1, 1, 1)
        for _ in range(3):
            assert cache[77]
        use_of = store_.evictor._victims._use
        for entries in (3_000, 10_000, 40_000):
            used = use_of(row) // (1 if policy == "least-frequently-used" else 2)
            generations.grow_marks(entries, shard.policy.marks == RECENCY)
            again = use_of(row) // (1 if policy == "least-frequently-used" else 2)
            assert abs(used - again) <= 1 << shard.header[Header.MARKS]
        assert generations.allocated > before + 4 * 40_000
        assert cache.check() == []


def test_without_room_for_more_marks_there_are_as_many_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with Cache(tmp_path, **SETTINGS) as cache:
        fill(cache)
        (store_,) = cache._shards.stores
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            store_.shard.generations.grow_marks(1 << 20, are_times=True)
        assert store_.shard.header[Header.MARKS] == 0
        store(cache, range(3_000))
        assert cache.volume() <= 1.01 * LIMIT


def zipf(objects: int, requests: int) -> list[int]:
    weights = accumulate(1 / rank**0.9 for rank in range(1, objects + 1))
    return random.Random(3).choices(range(objects), cum_weights=list(weights), k=requests)


@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_it_hits_as_often_as_the_simulator_says(tmp_path: Path, kind: type[Cache]) -> None:
    keys = zipf(10_000, 20_000)
    with kind(tmp_path, eviction_policy="second-chance", size_limit=1_600_000) as cache:
        hits = 0
        for key in keys:
            found = cache.get(key)
            hits += found is not None
            assert found in (None, f"{VALUE} of {key}")
            if found is None:
                store(cache, [key])
        kept = len(cache)
        assert cache.volume() <= 1_620_000
        assert cache.check() == []
    expected = hit_ratio("second chance", kept, keys)
    assert hits / len(keys) > expected - 0.03
    assert hits / len(keys) > hit_ratio("FIFO", kept, keys) + 0.02


def test_deletions_leave_it_known_how_many_are_on_probation(tmp_path: Path) -> None:
    draw = random.Random(3)
    with Cache(tmp_path, **SETTINGS) as cache:
        many = fill(cache)
        (store_,) = cache._shards.stores
        header, names = store_.shard.header, list[Any](cache)
        for number in range(many, 6 * many):
            index = draw.randrange(len(names))
            cache.delete(names[index])
            names[index] = number
            store(cache, [number])
            names = [name for name in names if name in cache] if number % many == 0 else names
        store_.flush(None)
        statement = "SELECT count(*) FROM entry WHERE id > ?"
        ((unmoved,),) = store_.shard.connection.select(statement, (header[Header.BOUNDARY],))
        assert 0.8 < header[Header.UNMOVED] / unmoved < 1.25

        for turn in range(8):
            with cache.transact():
                store(cache, [(turn, number) for number in range(300)])
        ((unmoved,),) = store_.shard.connection.select(statement, (header[Header.BOUNDARY],))
        assert 0.8 < header[Header.UNMOVED] / unmoved < 1.25

        header[Header.COUNT] = UNCOUNTED
        cache.clear()
        assert header[Header.UNMOVED] == 0


def test_damage_to_its_words_only_lets_others_go(tmp_path: Path) -> None:
    draw = random.Random(11)
    with Cache(tmp_path, **SETTINGS) as cache:
        fill(cache)
        (store_,) = cache._shards.stores
        header, generations = store_.shard.header, store_.shard.generations
        for turn in range(40):
            for word in (Header.BOUNDARY, Header.UNMOVED, Header.MARKS):
                header[word] = draw.choice((0, 1, header[Header.TICK], 1 << 63, MAX_WORD, draw.getrandbits(64)))
            generations._cells[: 1 << 15] = draw.randbytes(1 << 15)
            store(cache, [(turn, number) for number in range(100)])
            assert cache.volume() <= 1.01 * LIMIT
        assert cache.check() == []


def test_rows_with_planted_numbers_are_evicted_like_others(tmp_path: Path) -> None:
    with Cache(tmp_path, **SETTINGS) as cache:
        store(cache, range(500))
        cache.close()
        plant(tmp_path, "UPDATE entry SET id = -id WHERE id <> (SELECT min(id) FROM entry)")
        plant(tmp_path, "UPDATE entry SET id = -9223372036854775808 WHERE id = (SELECT min(id) FROM entry)")
        assert len(cache) == 500
        many = fill(cache)
        for number in range(1_000, 1_000 + many):  # each is used when it has been new for a while
            store(cache, [number])
            cache.get(number - many * 3 // 8)
        assert cache.volume() <= 1.01 * LIMIT


def test_numbers_that_are_taken_stop_no_eviction(tmp_path: Path) -> None:
    """Damage, or a count of writes that went back, may have given them to other rows."""
    with Cache(tmp_path, **{**SETTINGS, "eviction_policy": "least-recently-used"}) as cache:
        many = fill(cache)
        (store_,) = cache._shards.stores
        for turn in range(5):
            assert all(cache.get(("old", number)) for number in range(many - 300, many) if ("old", number) in cache)
            tick = store_.shard.header[Header.TICK] - MOVED_BACK
            numbers = store_.connection.select("SELECT id FROM entry ORDER BY id LIMIT 50")
            with store_.transactions.locked(None), store_.transactions.batch():
                moves = [(tick + 5 * place, number) for place, (number,) in enumerate(numbers)]
                store_.connection.execute_many("UPDATE OR IGNORE entry SET id = ? WHERE id = ?", moves)
            store(cache, [(turn, number) for number in range(200)])
            assert cache.volume() <= 1.01 * LIMIT
        assert cache.check() == []


def test_a_lost_count_of_writes_goes_on_behind_what_was_moved(tmp_path: Path) -> None:
    with Cache(tmp_path, **{**SETTINGS, "eviction_policy": "least-recently-used"}) as cache:
        fill(cache)
        for number in range(300):
            store(cache, [number])
            assert list(cache.get_many([("old", other) for other in range(0, 2_000, 3)])) is not None
        (store_,) = cache._shards.stores
        (last,) = store_.connection.select("SELECT max(id) FROM entry WHERE id < 0")[0]
        assert store_.connection.select(sql.LAST_WRITE, (FARTHEST,)) >= [(last + MOVED_BACK,)]


def test_a_cache_goes_on_from_another_policy_and_back(tmp_path: Path) -> None:
    with Cache(tmp_path, **{**SETTINGS, "eviction_policy": "least-recently-used"}) as cache:
        many = fill(cache)
        for policy in ("second-chance", "least-frequently-used", "second-chance", "least-recently-stored"):
            cache.reset("eviction_policy", policy)
            store(cache, [(policy, number) for number in range(many)])
            assert cache.volume() <= 1.01 * LIMIT
            assert cache.check() == []
