"""FanoutCache: what shards change, and what they must not."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, JSONDisk, SettingError, Timeout
from diskcache_like.coherence.generations import Header
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.storage.opening.opener import close_leftovers
from diskcache_like.storage.store import Store

from ..support.cache_kinds import QUICK, SECRET, Clock
from ..support.inspection import bytes_on_disk

BIG = "x" * 60_000
KEYS = [f"key {number}" for number in range(60)]


@pytest.fixture
def fanout(tmp_path: Path, clock: Clock) -> Iterator[FanoutCache]:
    with FanoutCache(tmp_path / "cache", shards=4, clock=clock, **QUICK) as cache:
        yield cache
        assert [str(problem.message) for problem in cache.check()] == []


@contextmanager
def locked(cache: Cache, shard: int | None = None) -> Iterator[None]:
    """Have another thread hold the write lock of one shard, or of every one."""
    ready, end = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.transact(retry=True) if shard is None else cache._shards.stores[shard].transaction(None):
            ready.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        end.set()
        thread.join()


def shard_directories(cache: Cache) -> list[str]:
    return sorted(path.name for path in Path(cache.directory).iterdir() if path.name.isdigit())


def test_its_defaults_are_eight_shards_and_a_short_timeout(tmp_path: Path) -> None:
    with FanoutCache(tmp_path) as cache:
        assert cache.timeout == 0.01
        assert len(shard_directories(cache)) == 8


def test_a_cache_and_a_fanout_cache_open_each_others_directories(
    fanout: FanoutCache, tmp_path: Path, clock: Clock
) -> None:
    fanout["key"] = BIG
    with Cache(fanout.directory, clock=clock) as cache:
        assert cache["key"] == BIG
        cache["key"] = 2
    assert fanout["key"] == 2
    with Cache(tmp_path / "one", clock=clock) as cache:
        cache["key"] = 1
        with FanoutCache(cache.directory, shards=4, clock=clock) as other:
            assert other["key"] == 1
            assert shard_directories(other) == []


@pytest.mark.parametrize("shards", [0, -1, 1000, 2.0, "8", None, True])
def test_an_impossible_number_of_shards_is_refused(tmp_path: Path, shards: Any) -> None:
    with pytest.raises(SettingError, match="shards"):
        FanoutCache(tmp_path / "cache", shards=shards)


def test_a_write_that_meets_a_lock_answers_instead_of_raising(fanout: FanoutCache) -> None:
    fanout.set("key", 5, tag="tag")
    fanout.push("item")
    with locked(fanout):
        assert fanout.set("key", BIG) is False
        assert fanout.set("new", BIG) is False
        assert fanout.add("new", BIG) is False
        assert fanout.touch("key", 10) is False
        assert fanout.incr("key") is None
        assert fanout.decr("key") is None
        assert fanout.pop("key", "default") == "default"
        assert fanout.pop("key", 0, expire_time=True, tag=True) == (0, None, None)
        assert fanout.delete("key") is False
        assert fanout.set_many({"new": BIG}) == 0
        assert fanout.delete_many(["key"]) == 0
        assert fanout.push(BIG) is None
        assert fanout.pull() == (None, None)
        assert fanout.peek(default="default") == "default"
    assert fanout.get("key", tag=True) == (5, "tag")
    assert fanout.peek()[1] == "item"
    assert len(fanout) == 2


def test_a_transaction_that_may_not_wait_says_so(fanout: FanoutCache) -> None:
    with locked(fanout), pytest.raises(Timeout), fanout.transact(retry=False):
        raise AssertionError("not reached")
    fanout["key"] = 1
    assert fanout["key"] == 1


def test_reads_are_never_refused(fanout: FanoutCache, tmp_path: Path, clock: Clock) -> None:
    fanout.set_many(dict.fromkeys(KEYS, BIG), tag="tag")
    with FanoutCache(fanout.directory, timeout=0, clock=clock) as other, locked(fanout):
        for cache in (other, fanout):
            assert cache.get_many(KEYS) == dict.fromkeys(KEYS, BIG)
            assert all(cache[key] == BIG for key in KEYS)
            assert cache.get("key 1", tag=True) == (BIG, "tag")
            assert "key 1" in cache
            assert cache.get("missing", "default") == "default"
            assert cache.get_entry("key 1").value == BIG
            assert len(cache) == len(KEYS)
            assert sorted(cache) == sorted(KEYS)
            assert cache.volume() > 0


@pytest.mark.parametrize("busy", range(4))
def test_a_batch_that_meets_one_lock_counts_what_went_through(fanout: FanoutCache, busy: int) -> None:
    with locked(fanout, busy):
        assert fanout.set_many(dict.fromkeys(KEYS, BIG)) == len(fanout.get_many(KEYS)) < len(KEYS)
        assert len(fanout) == len(fanout.get_many(KEYS))
        present = len(fanout.get_many(KEYS))
        assert fanout.delete_many(KEYS) == present - len(fanout.get_many(KEYS))


def test_what_has_no_answer_for_a_timeout_waits(fanout: FanoutCache) -> None:
    fanout.set_many(dict.fromkeys(KEYS, BIG), tag="tag")
    results: list[Any] = []
    operations: list[Callable[[], Any]] = [
        lambda: fanout.set("key 1", 1, retry=True), lambda: fanout.__setitem__("key 2", 2),
        lambda: fanout.__delitem__("key 3"), lambda: fanout.incr("key 1", retry=True), lambda: fanout.evict("tag"),
    ]  # fmt: skip

    def work() -> None:
        results.extend(operation() for operation in operations)

    thread = threading.Thread(target=work)
    with locked(fanout):
        thread.start()
        results.append("locked")
    thread.join()
    assert results == ["locked", True, None, None, 2, len(KEYS) - 3]
    assert fanout.get_many(KEYS) == {"key 1": 2, "key 2": 2}


def test_who_uses_the_first_shard_at_once_does_not_disturb_its_maker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[WriteLock] = []

    class Busy(Store):
        def __init__(self, directory: str, config: Any) -> None:
            super().__init__(directory, config)
            if not held:
                held.append(WriteLock(Path(directory) / "cache.lock"))
                held[0].acquire(0)

    monkeypatch.setattr("diskcache_like.storage.shards.Store", Busy)
    with FanoutCache(tmp_path / "cache", shards=2, timeout=0.01, **QUICK) as cache:
        held[0].release()
        held[0].close()
        cache["key"] = 1
        assert cache["key"] == 1
    close_leftovers()


def of_shard(cache: FanoutCache, shard: int, count: int) -> list[str]:
    """Return `count` keys that live in one shard."""
    store = cache._shards.stores[shard]
    keys = (f"{shard} {number}" for number in itertools.count())
    return list(itertools.islice((key for key in keys if cache._rows.locate(key)[2] is store), count))


LIMIT = 8_000_000


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[FanoutCache]:
    options = {"eviction_policy": "least-recently-stored", "disk_min_file_size": 1 << 20, **QUICK}
    with FanoutCache(tmp_path, shards=4, size_limit=LIMIT, timeout=60, **options) as cache:
        yield cache


def test_a_shard_that_is_written_more_uses_what_the_others_leave(limited: FanoutCache) -> None:
    keys = of_shard(limited, 0, 300)
    for key in keys:
        limited[key] = BIG
        assert limited.volume() <= LIMIT * 1.01
    assert len(limited) * len(BIG) > 0.85 * LIMIT, "nearly all of the limit"


def test_a_shard_that_gives_room_to_another_gives_it_back_on_disk(limited: FanoutCache) -> None:
    for key in of_shard(limited, 0, 300):
        limited[key] = BIG
    for key in of_shard(limited, 1, 8):
        limited[key] = b"f" * (3 << 19)  # to a file
        assert bytes_on_disk(limited) <= LIMIT * 1.01


def test_each_shard_gets_its_even_share_when_it_needs_it(limited: FanoutCache) -> None:
    for shard in range(4):
        for key in of_shard(limited, shard, 300):
            limited[key] = BIG
            assert limited.volume() <= LIMIT * 1.01
    for shard in range(4):
        assert sum(key in limited for key in of_shard(limited, shard, 300)) * len(BIG) > 0.85 * LIMIT / 4
    assert all(of_shard(limited, 3, 300)[-1] in limited for _ in range(2)), "the newest stays"


def test_room_that_is_locked_is_not_waited_for(limited: FanoutCache) -> None:
    for key in of_shard(limited, 0, 300):
        limited[key] = BIG
    held = limited._shards.stores[0].shard.lock
    small = of_shard(limited, 1, 20)
    results: list[bool] = []
    held.acquire(0)
    try:
        thread = threading.Thread(target=lambda: results.extend(limited.set(key, "x" * 1000) for key in small))
        thread.start()
        thread.join()
    finally:
        held.release()
    assert results == [True] * 20
    assert limited.volume() <= LIMIT * 1.01
    for key in small:
        limited[key] = BIG
    assert all(limited[key] == BIG for key in small[-5:])


def test_what_is_there_counts_after_a_restart_of_the_machine(limited: FanoutCache) -> None:
    for shard in range(4):
        for key in of_shard(limited, shard, 38):
            limited[key] = BIG
    for store in limited._shards.stores:
        store.shard.header[Header.RESERVATION] = 0  # as in a new file of generations
        store.shard.header[Header.VOLUME_DUE] = 0
    for key in of_shard(limited, 0, 300):
        limited[key] = BIG
        assert limited.volume() <= LIMIT * 1.01


@pytest.mark.parametrize("removal", ["evict", "expire", "cull"])
def test_room_given_up_is_there_for_all(limited: FanoutCache, removal: str) -> None:
    for key, other in zip(of_shard(limited, 0, 60), of_shard(limited, 1, 60), strict=True):
        limited.set(key, BIG, tag="going", expire=1000)
        limited[other] = BIG
    if removal == "evict":
        assert limited.evict("going") == 60
    elif removal == "expire":
        assert limited.expire(now=time.time() + 2000) == 60
    else:
        limited.reset("size_limit", LIMIT // 4)
        assert limited.cull() > 60
        limited.reset("size_limit", LIMIT)
    for other in of_shard(limited, 1, 125):
        limited[other] = BIG
    assert sum(other in limited for other in of_shard(limited, 1, 125)) >= 116


def test_a_lower_limit_takes_from_those_above_their_share(limited: FanoutCache) -> None:
    for key in of_shard(limited, 3, 120):
        limited[key] = BIG
    others = [key for shard in (0, 1, 2) for key in of_shard(limited, shard, 10)]
    for key in others:
        limited[key] = BIG
    limited.reset("size_limit", LIMIT // 2)
    assert limited.cull() > 0
    assert limited.volume() <= LIMIT // 2 * 1.01
    assert all(key in limited for key in others), "these are below their share"


def test_in_a_transaction_over_all_shards_the_limit_holds_too(limited: FanoutCache) -> None:
    for key in of_shard(limited, 0, 150):
        limited[key] = BIG
    with limited.transact():
        for key in of_shard(limited, 1, 60):
            limited[key] = BIG
    limited["one more"] = BIG
    assert limited.volume() <= LIMIT * 1.01
    assert of_shard(limited, 1, 60)[-1] in limited


def test_named_caches_live_inside(fanout: FanoutCache) -> None:
    one, other = fanout.cache("one"), fanout.cache("deep/er")
    assert type(one) is Cache
    assert fanout.cache("one") is one
    one["key"] = 1
    other["key"] = BIG
    fanout["key"] = 3
    assert (one["key"], other["key"], fanout["key"]) == (1, BIG, 3)
    assert one.directory == str(Path(fanout.directory, "cache", "one"))
    assert fanout.clear() == 1
    assert (one["key"], other["key"]) == (1, BIG)
    assert one.check() == other.check() == fanout.check() == []
    fanout.close()
    assert one["key"] == 1
    one.close()


def test_named_caches_take_settings_and_a_disk(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, disk=JSONDisk, secret=SECRET) as cache:
        plain = cache.cache("own", disk=JSONDisk, timeout=5, size_limit=1 << 20)
        assert (type(plain.disk), plain.timeout, plain.size_limit) == (JSONDisk, 5, 1 << 20)
        inherited = cache.cache("inherited")
        assert (type(inherited.disk), inherited.timeout) == (JSONDisk, 60)
        inherited["key"] = 1
        directory = inherited.directory
    with Cache(directory, disk=JSONDisk, secret=SECRET) as again:
        assert again["key"] == 1, "it has the secret of the cache that it was made by"


@pytest.mark.parametrize("kind", ["cache", "deque", "index"])
def test_threads_that_ask_for_one_child_get_the_same(fanout: FanoutCache, kind: str) -> None:
    barrier = threading.Barrier(8)
    found: list[Any] = []

    def ask() -> None:
        barrier.wait(60)
        found.append(getattr(fanout, kind)("child"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(child is found[0] for child in found)
