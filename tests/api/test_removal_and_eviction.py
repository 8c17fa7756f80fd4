"""Removal: expire, evict, clear and cull, what writes remove on the way, and room under a size limit by each policy."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DiskFull
from diskcache_like.storage.opening import opener
from diskcache_like.storage.upkeep import bulk_removal, eviction
from diskcache_like.storage.upkeep.removal import Remover
from diskcache_like.storage.upkeep.trash import Trash

from ..support.cache_kinds import Clock, Kind, Opener, few, one, only
from ..support.inspection import bytes_on_disk

BIG = "x" * 50_000
POLICIES = ["least-recently-stored", "least-recently-used", "least-frequently-used", "second-chance", "none"]
EVICTING = POLICIES[:4]
every_policy = pytest.mark.parametrize("policy", POLICIES)


def value_files(directory: str) -> list[Path]:
    return list(Path(directory).rglob("*.val"))


def test_expire_removes_what_is_expired(cache: Cache, clock: Clock) -> None:
    cache.reset("cull_limit", 0)
    for number in range(30):
        cache.set(f"key {number}", BIG if number % 2 else 1, expire=None if number >= 20 else 1 + number % 2)
    assert cache.expire() == 0
    clock.advance(1)
    assert len(cache) == 30
    assert cache.expire() == 10
    assert cache.expire() == 0
    assert cache.expire(now=clock.now + 1) == 10, "at the given time"
    assert len(cache) == 10
    assert cache.expire(now=clock.now + 1e9) == 0


@pytest.mark.parametrize("index", [False, True], ids=["scanned", "indexed"])
def test_evict_removes_what_has_the_tag(cache: Cache, index: bool) -> None:
    if index:
        cache.create_tag_index()
    cache.set_many({f"a {number}": number for number in range(1100)}, tag="a")
    cache.set_many({f"b {number}": BIG for number in range(5)}, tag="b")
    cache.set_many({f"none {number}": number for number in range(5)})
    cache.set("was a", 1, tag="a")
    cache["was a"] = 2
    assert cache.evict("c") == cache.evict(None) == 0
    assert cache.evict("a") == 1100
    assert cache.evict("a") == 0
    assert cache.get_many(["a 1", "b 1", "none 1", "was a"]) == {"b 1": BIG, "none 1": 1, "was a": 2}
    assert cache.evict("b") == 5
    assert len(cache) == 6


@pytest.mark.parametrize("many", [0, bulk_removal.MANY])
def test_clear_removes_everything(open_cache: Opener, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", many)
    cache, other = open_cache(), open_cache()
    assert cache.clear() == 0
    cache.set_many({f"key {number}": number for number in range(2100)})
    cache.set_many({f"big {number}": BIG for number in range(10)}, expire=100, tag="tag")
    cache.push("item")
    assert other["key 7"] == 7
    assert cache.clear() == 2111
    assert len(cache) == len(other) == 0
    assert list(cache) == []
    assert other.get_many(["key 7", "big 1"]) == {}
    assert cache.pull() == (None, None)
    cache.check(fix=True)  # the files of what was removed wait there for readers
    assert value_files(cache.directory) == []


@one
def test_emptying_the_table_leaves_nothing_and_all_that_is_no_entry(
    cache: Cache, open_cache: Opener, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", 0)
    (store,) = cache._shards.stores
    deleted = []
    monkeypatch.setattr(type(store.remover), "delete", lambda *_: deleted.append(1))  # the way of batches
    for _ in range(2):
        cache.set_many({number: BIG if number % 3 else number for number in range(30)}, expire=100, tag="t")
        cache.push("item")
        cache["old"] = BIG
        cache["old"] = 1  # its file is in the trash already
        other = open_cache()
        assert other[0] == 0
        schema, settings = database_of(cache)
        assert cache.clear() == 32
        assert 0 not in other
        assert (len(cache), len(other), list(cache), cache.tags()) == (0, 0, [], [])
        assert database_of(cache) == (schema, settings)
        assert cache.check() == []
        clock.advance(100)
        cache["one"] = BIG
        assert len(value_files(cache.directory)) == 1, "the triggers are there again"
        assert cache.clear() == 1
        assert value_files(cache.directory) == []
    assert deleted == []


def database_of(cache: Cache) -> tuple[set[Any], set[Any]]:
    """Return the schema, and the rows beside the entries."""
    (store,) = cache._shards.stores
    select = store.select
    return set(select("SELECT name, sql FROM sqlite_master")), set(select("SELECT name, value FROM setting"))


@one
def test_clear_in_a_transaction_can_be_rolled_back(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", 0)
    cache.set_many({number: BIG if number % 3 else number for number in range(30)}, tag="t")
    with contextlib.suppress(ZeroDivisionError), cache.transact():
        assert cache.clear() == 30
        assert 0 / 0
    assert len(cache) == 30
    assert cache[1] == BIG
    assert cache.check() == []


def test_writes_remove_what_is_expired_a_few_at_a_time(cache: Cache, clock: Clock, kind: Kind) -> None:
    cache.set_many({f"short {number}": BIG for number in range(50)}, expire=1)
    clock.advance(1)
    before = len(cache)
    cache["lasting 0"] = 1
    assert before + 1 - 10 * kind.shards <= len(cache) <= before
    for number in range(100):
        cache[f"lasting {number}"] = 1
    assert len(cache) == 100


@few
def test_a_cull_limit_of_nothing_turns_that_off(cache: Cache, clock: Clock, kind: Kind) -> None:
    cache.reset("cull_limit", 0)
    cache.set_many({f"short {number}": BIG for number in range(20)}, expire=1)
    clock.advance(1)
    cache.reset("size_limit", kind.shards * 100_000)
    cache.set_many({f"lasting {number}": BIG for number in range(20)})
    assert len(cache) == 40


@few
@pytest.mark.parametrize("policy", EVICTING)
def test_no_live_entry_goes_for_room_before_the_last_batch_of_expired_ones(
    open_cache: Opener, clock: Clock, kind: Kind, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "BATCH", 4)
    monkeypatch.setattr(Remover.select, "__defaults__", ((), 4))
    cache = open_cache(size_limit=kind.shards * 3_000_000, eviction_policy=policy, cull_limit=1)
    live = {f"live {number}": BIG for number in range(5)}
    cache.set_many(live)
    cache.set_many({f"expiring {number}": BIG for number in range(40 * kind.shards)}, expire=1)
    clock.advance(1)
    cache["large"] = b"x" * 2_000_000
    assert cache.get_many(live) == live


@few
@every_policy
def test_cull_removes_the_expired_and_makes_room_only_where_the_policy_does(
    cache: Cache, clock: Clock, kind: Kind, policy: str
) -> None:
    cache.reset("eviction_policy", policy)
    cache.set_many({f"short {number}": BIG for number in range(30)}, expire=1)
    cache.set_many({f"lasting {number}": BIG for number in range(60)})
    clock.advance(1)
    assert cache.cull() == 30
    assert cache.cull() == 0
    limit = kind.shards * 1_000_000
    cache.reset("size_limit", limit)
    removed = cache.cull()
    if policy == "none":
        assert removed == 0
        assert len(cache) == 60
    else:
        assert removed == 60 - len(cache) > 0
        assert cache.volume() <= limit
        assert len(cache) > 5, "no more than needed"


def fill_to_the_limit(cache: Cache, prefix: str, count: int = 100) -> None:
    """Write more than the limit allows."""
    for number in range(count):
        cache[f"{prefix} {number}"] = BIG


@only(lambda kind: not kind.json and kind.name not in ("fanout-8", "sealed-fanout"))
@every_policy
def test_the_size_limit_holds_at_every_moment(open_cache: Opener, kind: Kind, policy: str) -> None:
    limit = kind.shards * 1_500_000
    cache = open_cache(size_limit=limit, eviction_policy=policy)
    sizes = [100, 3_000, 40_000, 700_000, 10, 200_000]
    most = 0
    for number in range(90 * kind.shards):
        size = sizes[number % 6]
        assert cache.set(f"key {number}", bytes([number % 256]) * size)
        most = max(most, cache.volume())
    if policy == "none":
        assert len(cache) == 90 * kind.shards
        assert most > limit
    else:
        assert most <= limit * 1.01
        assert most > limit * 0.3, "the room is used"


@only(lambda kind: kind.name in ("plain", "fanout-3"))
def test_the_size_limit_holds_on_disk_when_files_take_the_place_of_rows(open_cache: Opener, kind: Kind) -> None:
    limit = kind.shards * 2_000_000
    cache = open_cache(size_limit=limit)
    most = 0
    for phase, size in enumerate((12_000, 80_000, 12_000)):
        for number in range(2_500_000 * kind.shards // size):
            cache.set((phase, number), random.Random(number).randbytes(size))
            if number % 5 == 0:
                most = max(most, bytes_on_disk(cache))
    assert limit * 0.9 < most <= limit * 1.01


@few
def test_the_size_limit_holds_for_batches_queues_and_counters(open_cache: Opener, kind: Kind) -> None:
    limit = kind.shards * 2_000_000
    cache = open_cache(size_limit=limit)
    for number in range(12):
        cache.set_many({f"key {number} {part}": BIG for part in range(20)}, expire=1000)
        assert cache.volume() <= limit * 1.01
        cache.push(BIG * 4)
        cache.add(f"added {number}", BIG * 3)
        cache.incr(f"counter {number}", 10**4000)
        assert cache.volume() <= limit * 1.01


@one
@pytest.mark.parametrize("removal", ["evict", "clear", "cull"])
def test_a_removal_is_made_though_a_full_disk_cannot_note_which_files_went(
    cache: Cache, clock: Clock, removal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.set_many({number: BIG for number in range(3)}, tag="t", expire=1)
    clock.advance(1)

    def full(trash: Trash) -> None:
        raise DiskFull("no room on the disk", cache.directory)

    monkeypatch.setattr(Trash, "empty", full)
    went = {"evict": lambda: cache.evict("t"), "clear": cache.clear, "cull": cache.cull}[removal]()
    assert went == (0 if removal == "evict" else 3), "evict counts live entries only"
    assert len(cache) == 0


@one
def test_a_new_size_limit_holds_from_the_next_write_on(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    fill_to_the_limit(cache, "key")
    cache.reset("size_limit", 1_000_000)
    assert len(cache) == 100
    cache["one more"] = 1
    assert cache.volume() <= 1_010_000
    assert cache["one more"] == 1
    assert open_cache().size_limit == 1_000_000
    del other


@pytest.fixture
def crowd(open_cache: Opener, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Cache, Cache]:
    """Return two handles on a cache of twenty values of 50 KB under the policy of the test, room for 40 or so.

    The hash is always the same one, so that no two of these keys share a mark at random.
    """
    monkeypatch.setattr(opener, "new_modulus", lambda: 787300256890745729)
    cache = open_cache(size_limit=2_250_000, eviction_policy=request.node.callspec.params["policy"])
    other = open_cache(eviction_policy=request.node.callspec.params["policy"], size_limit=2_250_000)
    for number in range(20):
        cache[f"key {number}"] = BIG
    return cache, other


def survivors(cache: Cache) -> set[int]:
    return {int(key.split()[1]) for key in cache if key.startswith("key")}


@one
@pytest.mark.parametrize("policy", ["least-recently-stored"])
def test_what_was_stored_first_goes_first(crowd: tuple[Cache, Cache], policy: str) -> None:
    cache, other = crowd
    cache["key 0"] = BIG
    for _ in range(5):
        assert cache["key 1"] == other["key 1"] == BIG  # reading does not count
    cache.incr("counter")
    fill_to_the_limit(cache, "new", 28)
    left = survivors(cache)
    assert 0 in left
    assert 1 not in left
    assert left - {0} == set(range(20 - len(left) + 1, 20)), "the rest in order"
    assert 2 < len(left) < 19


@one
@pytest.mark.parametrize("policy", ["least-recently-used"])
def test_what_was_used_last_stays(crowd: tuple[Cache, Cache], policy: str) -> None:
    cache, other = crowd
    assert cache["key 3"] == cache["key 2"] == BIG  # from the database
    cache["tick"] = 1
    assert cache["key 2"] == BIG  # from the hot layer
    cache["tick"] = 2
    assert other["key 1"] == BIG  # by another handle, from the database
    other["tick"] = 3
    assert other.get_many(["key 0"]) == {"key 0": BIG}
    fill_to_the_limit(other, "new", 34)
    left = survivors(cache)
    assert {0, 1, 2, 3} <= left
    assert 4 not in left
    assert left - {0, 1, 2, 3} == set(range(20 - len(left) + 4, 20)), "the rest in order"
    fill_to_the_limit(cache, "newer", 9)
    assert survivors(cache) in ({0, 1, 2, 3}, {0, 1, 2}, {0, 1}, {0}, set()), "and those in order of use"


@one
@pytest.mark.parametrize("policy", ["least-recently-used"])
def test_a_use_after_the_last_write_makes_an_entry_younger_than_that(crowd: tuple[Cache, Cache], policy: str) -> None:
    cache, _ = crowd
    assert len(cache.get_many(f"key {number}" for number in range(20))) == 20  # all are hot now
    cache["key 19"] = BIG
    for number in range(19):
        assert cache[f"key {number}"] == BIG  # all but the one stored last, with no write in between
    while len(left := survivors(cache)) == 20:
        cache[f"new {len(cache)}"] = BIG
    assert 19 not in left


@one
@pytest.mark.parametrize("policy", ["least-frequently-used"])
def test_what_was_used_most_stays(crowd: tuple[Cache, Cache], policy: str) -> None:
    cache, other = crowd
    for number in range(20):
        for use in range(19 - number):  # the oldest most
            assert (cache, other)[use % 2][f"key {number}"] == BIG
    for number in range(28):
        cache[f"new {number}"] = BIG
        assert cache.get_many([f"new {number}"])
        for _ in range(9):
            assert cache[f"new {number}"] == BIG
    left = survivors(cache)
    assert 2 < len(left) < 18
    assert len(left ^ set(range(len(left)))) <= 2, "but for one that shares its mark with another"


def use_elsewhere(directory: str, policy: str, keys: list[str]) -> None:
    with Cache(directory, eviction_policy=policy) as cache:
        for _ in range(30):
            for key in keys:
                assert cache[key] == BIG


@one
@pytest.mark.parametrize("policy", ["least-recently-used", "least-frequently-used"])
def test_uses_by_another_process_count(crowd: tuple[Cache, Cache], policy: str) -> None:
    cache, _ = crowd
    child = multiprocessing.get_context("fork").Process(
        target=use_elsewhere, args=(cache.directory, policy, ["key 0", "key 1"])
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    fill_to_the_limit(cache, "new", 30)
    left = survivors(cache)
    assert {0, 1} <= left
    assert len(left) < 19


@few
@pytest.mark.parametrize("remove", ["clear", "evict", "expire", "cull", "delete_many", "pop"])
def test_no_value_file_outlives_its_entry(cache: Cache, clock: Clock, remove: str) -> None:
    actions: dict[str, Callable[[], object]] = {
        "clear": cache.clear,
        "evict": lambda: cache.evict("tag"),
        "expire": lambda: cache.expire(clock.now + 1),
        "cull": lambda: [cache.reset("size_limit", 0), cache.cull()],
        "delete_many": lambda: cache.delete_many(list(cache)),
        "pop": lambda: [cache.pop(key) for key in cache],
    }
    cache.set_many({f"key {number}": BIG for number in range(20)}, expire=1, tag="tag")
    assert len(value_files(cache.directory)) == 20
    before = cache.volume()
    actions[remove]()
    assert len(cache) == 0
    if remove in ("delete_many", "pop"):  # after the removal of many they go at once
        for _ in range(2):
            assert len(cache) == 0  # opens every shard
            cache.close()
            clock.advance(60)  # longer than a file is kept for readers that have just read its row
        assert len(cache) == 0
        cache.close()
    assert value_files(cache.directory) == []
    assert cache.volume() < before - 19 * len(BIG)


@few
@pytest.mark.parametrize("remove", ["del", "pop", "delete", "overwrite", "evict", "clear"])
def test_the_volume_falls_as_soon_as_something_is_removed(cache: Cache, remove: str) -> None:
    empty = cache.volume()
    cache.set_many({number: bytes(200_000) for number in range(40)}, tag="tag")
    assert cache.volume() >= empty + 8_000_000
    for number in range(30) if remove not in ("evict", "clear") else ():
        match remove:
            case "del":
                del cache[number]
            case "pop":
                cache.pop(number)
            case "delete":
                cache.delete(number)
            case _:
                cache[number] = "small"
    if remove == "evict":
        cache.evict("tag")
    elif remove == "clear":
        cache.clear()
    assert cache.volume() < empty + 10 * 200_000 + 1_000_000


@one
def test_of_entries_that_are_used_equally_often_the_oldest_go(open_cache: Opener) -> None:
    cache = open_cache(eviction_policy="least-frequently-used", size_limit=2_250_000)
    for number in range(60):
        cache[number] = number.to_bytes(1, "big") * 30_000
    for number in (0, 3, 5):
        for _ in range(3):
            assert cache.get(number)
    for number in range(60, 120):
        cache[number] = number.to_bytes(1, "big") * 30_000
    left = sorted(cache)
    assert {0, 3, 5} <= set(left)
    newest = [number for number in left if number not in (0, 3, 5)]
    assert newest == list(range(120 - len(newest), 120))


@one
@pytest.mark.parametrize("size", [4_000, 40_000])
def test_no_handle_goes_by_the_limit_of_another_one(open_cache: Opener, size: int) -> None:
    limit = 2 << 20
    with open_cache(size_limit=limit):
        pass
    larger, cache = open_cache(size_limit=1 << 30), open_cache()
    for number in range(3 * limit // (size + 200)):
        if number % 50 == 0:
            larger["of the larger one"] = bytes(size)
        cache[number] = number.to_bytes(4, "big") * (size // 4)
        assert number % 100 or cache.volume() <= 1.01 * limit + 2 * size
    assert cache.volume() <= 1.01 * limit + 2 * size


@one
def test_handles_with_different_limits_do_not_make_each_other_look(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = eviction.Evictor.look_at_volume

    def counted(self: eviction.Evictor, incoming: int) -> None:
        looks.append(incoming)
        look(self, incoming)

    monkeypatch.setattr(eviction.Evictor, "look_at_volume", counted)
    one_handle, other = open_cache(size_limit=1 << 30), open_cache(size_limit=1 << 28)
    for number in range(300):
        one_handle[number % 7] = other[number % 5] = number
    assert len(looks) < 10
