"""A cache with `max_entries` never has more after a write, and not many less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import AsyncCache, Cache, Deque, FanoutCache, SettingError
from diskcache_like.coherence.generations import UNCOUNTED, Header
from diskcache_like.errors import CacheError, CorruptDatabase, DiskFull, StorageError
from diskcache_like.settings.policies import EVICTION_POLICY

from ..support.cache_kinds import Opener, only

every_policy = pytest.mark.parametrize("policy", EVICTION_POLICY)
evicting = only(lambda kind: kind.name in ("plain", "direct", "files", "fanout-3"))


def least(most: int) -> int:
    """Return how many entries a full cache keeps at least."""
    return most - max(most // 200, min(16, most // 16))


def header(cache: Cache) -> Any:
    return cache._shards.stores[0].shard.header


@every_policy
@pytest.mark.parametrize("most", [1, 3, 10, 100, 1_000])
def test_there_are_never_more_and_not_many_less(tmp_path: Path, policy: str, most: int) -> None:
    with Cache(tmp_path, max_entries=most, eviction_policy=policy) as cache:
        for number in range(2 * most + 50):
            cache[number] = number
            found = len(cache)
            if policy != "none":
                assert min(number + 1, least(most)) <= found <= most
                assert cache.get(number) == number, "the newest stays"
        if policy == "none":
            assert len(cache) == 2 * most + 50


def test_overwrites_evict_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path, max_entries=3) as cache:
        for number in range(100):
            cache["abc"[number % 3]] = number
        assert sorted(cache) == ["a", "b", "c"]


@evicting
@pytest.mark.parametrize("way", ["set", "add", "incr", "push", "set_many", "transact", "get_or_set"])
def test_every_write_keeps_to_it(open_cache: Opener, way: str) -> None:
    cache, most = open_cache(max_entries=30), 30
    for number in range(100):
        match way:
            case "set_many":
                cache.set_many({(number, each): each for each in range(7)})
            case "transact":
                with cache.transact():
                    for each in range(7):
                        cache[number, each] = bytes(100)
            case "push":
                cache.push(number)
            case "incr":
                cache.incr(number)
            case "get_or_set":
                cache.get_or_set(number, lambda: b"value")
            case _:
                getattr(cache, way)(number, b"value")
        assert len(cache) <= most
        assert len(list(cache)) <= most
    assert len(cache) >= (9 if way == "push" else 15), "a queue is in one shard"


def test_two_handles_keep_to_the_number_together_and_each_to_its_own(tmp_path: Path) -> None:
    with Cache(tmp_path, max_entries=1_000) as one, Cache(tmp_path) as other, Cache(tmp_path, max_entries=50) as few:
        for number in range(3_000):
            (one, other)[number % 2][number] = number
            assert len(one) <= 1_000
        few["one more"] = 1
        assert len(one) <= 50
        few.max_entries = None
        one.max_entries = None
        one.set_many(dict.fromkeys(range(2_000), 1))
        assert len(few) >= 2_000


def test_many_that_one_handle_stored_count_for_another(tmp_path: Path) -> None:
    with Cache(tmp_path, max_entries=100) as limited, Cache(tmp_path) as other:
        other.max_entries = None
        limited["first"] = 1
        other.set_many(dict.fromkeys(range(99), 1))
        for number in range(200):
            limited["x", number] = 1
            assert len(limited) <= 100


@pytest.mark.parametrize("change", [lambda cache: cache.reset("max_entries", 5), lambda cache: cache.cull()])
def test_a_lower_number_is_in_force_at_once(tmp_path: Path, change: Callable[[Cache], object]) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path, max_entries=5) as other:
        cache.set_many(dict.fromkeys(range(3_000), 1))
        removed = change(other)
        assert removed in (5, 2_995)
        assert len(cache) == 5
        cache["six"] = 6
        assert len(cache) == 6, "the other handle has none"


def test_the_number_is_stored_and_none_is_no_limit(tmp_path: Path) -> None:
    with Cache(tmp_path, max_entries=7.0) as cache:
        assert cache.max_entries == 7
        cache.set_many(dict.fromkeys(range(20), 1))
    with Cache(tmp_path) as cache:
        assert cache.max_entries == cache.reset("max_entries") == 7
        cache["another"] = 1
        assert len(cache) == 7
        assert cache.reset("max_entries", None) is None
        cache.set_many(dict.fromkeys(range(20), 1))
        assert len(cache) >= 20
    assert Cache(tmp_path).max_entries is None


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", 1 << 63])
def test_other_numbers_are_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(SettingError, match=f"max_entries is {wrong!r}"):
        Cache(tmp_path, max_entries=wrong)


def test_the_names_of_other_caches_lead_here(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'max_entries'"):
        Cache(tmp_path, maxsize=10)  # type: ignore[call-arg]


def test_nothing_goes_where_writes_do_not_cull(tmp_path: Path) -> None:
    with Cache(tmp_path, max_entries=3, cull_limit=0) as cache:
        cache.set_many(dict.fromkeys(range(20), 1))
        assert len(cache) == 20
        cache.cull_limit = 10
        cache["one more"] = 1
        assert len(cache) == 3
    deque = Deque(range(20), directory=tmp_path / "deque")
    deque.cache.max_entries = 3
    deque.append(20)
    assert len(deque) == 21
    deque.cache.close()


def test_what_has_expired_goes_first(tmp_path: Path) -> None:
    now = 1_000.0
    with Cache(tmp_path, max_entries=10, clock=lambda: now) as cache:
        for number in range(5):
            cache.set(number, number)
            cache.set(("short", number), number, expire=1)
        now += 2
        for number in range(5):
            cache.set(("new", number), number)
        assert all(number in cache and ("new", number) in cache for number in range(5))


@pytest.mark.parametrize("words", [{Header.COUNT: UNCOUNTED}, {Header.SINCE: 0}, {Header.SINCE: 1 << 63}])
def test_counts_that_are_lost_are_made_anew(tmp_path: Path, words: dict[int, int]) -> None:
    with Cache(tmp_path, max_entries=100) as cache:
        for number in range(300):
            cache[number] = number
            if number % 40 == 0:
                for word, value in words.items():
                    header(cache)[word] = value
            assert len(cache) <= 100
        assert len(cache) >= least(100)


@pytest.mark.parametrize("kind", [CorruptDatabase, StorageError, DiskFull])
def test_a_write_is_made_once_though_nothing_can_be_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., CacheError]
) -> None:
    def fail(*_: object) -> int:
        raise kind("of no use", tmp_path)

    with Cache(tmp_path, max_entries=3) as cache:
        cache.set_many({"a": 1, "b": 2, "c": 3})
        with monkeypatch.context() as patched:
            patched.setattr(cache._shards.stores[0].evictor, "_evict", fail)
            assert [cache.incr("d") for _ in range(3)] == [1, 2, 3]
            assert len(cache) == 4
        cache["e"] = 5
        assert sorted(cache) == ["c", "d", "e"]


def test_a_fanout_cache_divides_it_among_its_shards(tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "many", shards=4, max_entries=40, timeout=10) as cache:
        for number in range(500):
            cache[number] = number
            assert len(cache) <= 40
        assert len(cache) >= 36
    with FanoutCache(tmp_path / "few", shards=4, max_entries=3, timeout=10) as cache:
        cache.set_many(dict.fromkeys(range(500), 1))
        assert len(cache) == 4, "one in each shard"


def test_a_full_cache_does_not_look_at_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path, max_entries=2_000) as cache:
        cache.set_many(dict.fromkeys(range(2_000), 1))
        for number in range(100):
            cache["new", number] = 1
        evictor, looks = cache._shards.stores[0].evictor, list[int]()
        keep = evictor.keep_to_number

        def look() -> None:
            looks.append(len(looks))
            keep()

        monkeypatch.setattr(evictor, "keep_to_number", look)
        for number in range(1_000):
            cache["newer", number % 50] = 1  # new ones at first, then overwrites
        assert 0 < len(looks) < 1_000 // 5 + 10


async def _fill(cache: AsyncCache) -> int:
    for number in range(50):
        await cache.set(number, number)
    return await cache.length()


def test_an_awaited_cache_has_it_too(tmp_path: Path) -> None:
    async def run() -> int:
        async with AsyncCache(tmp_path, max_entries=10) as cache:
            return await _fill(cache)

    assert asyncio.run(run()) == 10
