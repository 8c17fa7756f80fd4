"""Upkeep: what rides on writes happens whatever kind of write it is, and settings and databases change for everyone."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, CorruptDatabaseWarning, FanoutCache, Timeout
from diskcache_like.coherence.generations import NEVER, Header
from diskcache_like.storage.shard.invalidation import WRITE_COST
from diskcache_like.storage.upkeep import bulk_removal, checkpoints, eviction, maintenance, removal
from diskcache_like.storage.upkeep.trash import GRACE

from ..support.cache_kinds import Clock

LARGE = b"x" * 20_000
KEY = "a key that is long enough for its place to depend on the secret prime of the cache"


def transactions(cache: Cache, number: int) -> None:
    with cache.transact():
        cache[number % 10] = b"x" * 3000


def batches(cache: Cache, number: int) -> None:
    cache.set_many({number % 10: b"x" * 3000, number % 10 + 1: b"x" * 3000})


def queues(cache: Cache, number: int) -> None:
    cache.push(b"x" * 3000)
    cache.pull()


def touches(cache: Cache, number: int) -> None:
    cache.touch(number % 10, 1000 + number)


def pops(cache: Cache, number: int) -> None:
    cache.add(number % 10, b"x" * 3000)
    cache.pop(number % 10)


def clearings(cache: Cache, number: int) -> None:
    cache[number % 10] = b"x" * 3000
    cache.clear()


WRITES = [transactions, batches, queues, touches, pops, clearings]


@pytest.mark.parametrize("write", WRITES)
def test_the_wal_is_bounded_whatever_writes(
    write: Callable[[Cache, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 1 << 20)
    with Cache(tmp_path, durability="process") as cache:
        cache.set_many(dict.fromkeys(range(11), b"x" * 3000))
        for number in range(1500):
            write(cache, number)
        assert (tmp_path / "cache.db-wal").stat().st_size < 4 << 20


def replace(cache: Cache, number: int) -> None:
    cache["key"] = LARGE


def queue(cache: Cache, number: int) -> None:
    cache.push(LARGE)
    cache.pull()


@pytest.mark.parametrize("write", [replace, queue])
def test_files_that_nothing_names_go(
    write: Callable[[Cache, int], None], tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 1 << 20)
    settings: dict[str, Any] = {"eviction_policy": "none", "disk_min_file_size": 1000, "durability": "process"}
    with Cache(tmp_path, clock=clock, **settings) as cache:
        for number in range(1000):
            write(cache, number)
            clock.advance(1)
        assert sum(path.is_file() for path in tmp_path.rglob("*.val")) < 200


def shrink(cache: Cache) -> None:
    for key in list(cache):
        cache[key] = "small"


def let_expire(cache: Cache) -> None:
    for key in list(cache):
        cache.touch(key, 1)


REMOVALS: dict[str, Callable[[Cache], object]] = {
    "delete": lambda cache: [cache.delete(key) for key in list(cache)],
    "delete_many": lambda cache: cache.delete_many(list(cache)),
    "pop": lambda cache: [cache.pop(key) for key in list(cache)],
    "pull": lambda cache: [cache.pull() for _ in range(5)],
    "overwrite": shrink,
    "expire": let_expire,
}


@pytest.mark.parametrize("kind", [Cache, partial(FanoutCache, shards=2, timeout=60)], ids=["Cache", "FanoutCache"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_removed_files_go_in_time_however_little_is_written(
    kind: Callable[..., Cache], removal: str, tmp_path: Path, clock: Clock
) -> None:
    with kind(tmp_path, clock=clock, durability="process", disk_min_file_size=1000) as cache:
        for _ in range(5):
            cache.push(LARGE)
        REMOVALS[removal](cache)
        for _ in range(4):
            clock.advance(GRACE + 1)
            for number in range(4):  # some for each shard
                cache[number] = number
        assert not [*tmp_path.rglob("*.val")]
        for store in cache._shards.stores:
            due = store.shard.header[Header.NEXT_EXPIRE]
            assert due in (NEVER, (clock() + GRACE) * 1e6), "only what the last writes may have let go is waited for"


def test_handles_that_take_turns_forget_the_files_that_went(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, clock=clock, durability="process") as one, Cache(tmp_path, clock=clock) as other:
        for number in range(40):
            cache = (one, other)[number % 2]
            cache["key"] = b"x" * 50_000
            clock.advance(2 * GRACE)
            store = cache._shards.stores[0]
            with store.locked(None):
                store.trash.sweep()
        assert sum(path.is_file() for path in tmp_path.rglob("*.val")) < 5
        assert all(len(cache._shards.stores[0].trash.unlinked) < 5 for cache in (one, other))


def test_a_cache_without_value_files_has_nothing_to_sweep(tmp_path: Path, clock: Clock) -> None:
    """So its small writes need not be flushed once a second for the sake of files."""
    with Cache(tmp_path, clock=clock, disk_min_file_size=1000) as cache:
        header = cache._shards.stores[0].shard.header
        cache["key"] = 1
        cache["key"] = 2
        assert (header[Header.FILES], header[Header.NEXT_EXPIRE]) == (0, NEVER)
        cache["key"] = LARGE
        cache["key"] = 3
        cache["other"] = LARGE
        for number in range(5):
            assert header[Header.FILES] == 1
            clock.advance(GRACE + 0.01)
            cache["key"] = number
        cache.flush()
        assert len(list(tmp_path.rglob("*.val"))) == 1, "the file that was replaced went"
        del cache["other"]
        for number in range(5):
            clock.advance(GRACE + 0.01)
            cache["key"] = number
        assert list(tmp_path.rglob("*.val")) == []
        assert (header[Header.FILES], header[Header.NEXT_EXPIRE]) == (0, NEVER)


@pytest.mark.parametrize("keys", [range(1000), range(10**6, 10**6 + 1000), [f"k{n}" for n in range(1000)]])
def test_keys_that_differ_little_spread_over_the_shards(keys: list[object], tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=8, durability="process") as cache:
        cache.set_many((key, 1) for key in keys)
        counts = [store.count() for store in cache._shards.stores]
    assert min(counts) > 50, counts


@pytest.mark.parametrize("name", ["clear", "evict", "expire", "cull"])
def test_removal_of_many_is_whole_though_a_shard_is_busy(name: str, tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache, FanoutCache(tmp_path) as other:
        for number in range(20):
            cache.set(number, number, expire=0 if name in ("expire", "cull") else None, tag="tag", retry=True)
        removed: list[int] = []
        arguments = ["tag"] if name == "evict" else []
        remover = threading.Thread(target=lambda: removed.append(getattr(cache, name)(*arguments)))
        busy = other._shards.stores[1]
        with busy.locked(None):
            before = len(cache)
            remover.start()
            while not busy.shard.lock.contended():
                pass
        remover.join()
        assert len(cache) == 0
        assert removed[0] <= before


@pytest.fixture
def interrupted(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Cache]]:
    """Return a function: a cache of 7 expired entries whose lock is another's from the given time on that it wants it."""
    monkeypatch.setattr(removal, "BATCH", 3)
    monkeypatch.setattr(eviction, "BATCH", 3)
    monkeypatch.setattr(bulk_removal, "VACUUMED", 6)
    with Cache(tmp_path, timeout=0, clock=clock) as cache, Cache(tmp_path) as other, ExitStack() as busy:

        def make(turn: int) -> Cache:
            cache.set_many(((number, number) for number in range(7)), expire=1, tag="tag")
            clock.advance(1)
            transactions, turns = cache._shards.stores[0].transactions, count(1)
            take = transactions.locked

            def take_in_turn(timeout: float | None, flushes: bool = True) -> AbstractContextManager[bool]:
                if next(turns) == turn:
                    busy.enter_context(other._shards.stores[0].locked(None))
                return take(timeout, flushes)

            monkeypatch.setattr(transactions, "locked", take_in_turn)
            return cache

        yield make


@pytest.mark.parametrize(
    ("name", "turn", "removed"), [("clear", 3, 6), ("evict", 2, 3), ("expire", 4, 7), ("cull", 5, 7)]
)
def test_a_timeout_between_two_batches_says_how_many_went(
    name: str, turn: int, removed: int, interrupted: Callable[[int], Cache]
) -> None:
    cache = interrupted(turn)
    with pytest.raises(Timeout) as caught:
        getattr(cache, name)(*["tag"] if name == "evict" else [])
    assert caught.value.args == (0 if name == "evict" else removed,), "evict counts live entries only"
    assert len(cache) == 7 - removed


def test_a_removal_is_whole_though_its_room_cannot_be_given_back_in_time(interrupted: Callable[[int], Cache]) -> None:
    cache = interrupted(5)
    assert cache.clear() == 7
    assert len(cache) == 0


def test_a_setting_read_anew_is_in_force(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=10**9) as one, Cache(tmp_path) as other:
        one.reset("size_limit", 2**20)
        assert other.reset("size_limit") == 2**20
        for number in range(3000):
            other[number] = b"x" * 1000
        assert other.volume() <= 2**20 * 1.01
        one.reset("eviction_policy", "none")
        assert other.reset("eviction_policy") == "none"
        for number in range(3000, 6000):
            other[number] = b"x" * 1000
        assert other.volume() > 3 * 2**20


@pytest.mark.parametrize(
    ("name", "value", "durability", "synchronous"),
    [("sqlite_synchronous", 0, "process", 0), ("durability", "power", "power", 2)],
)
def test_durability_has_two_names(name: str, value: object, durability: str, synchronous: int, tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.reset(name, value)
        seen = [(cache.durability, cache.sqlite_synchronous, cache.disk.sync)]
    with Cache(tmp_path) as cache:
        seen.append((cache.durability, cache.sqlite_synchronous, cache.disk.sync))
    assert seen == [(durability, synchronous, value == "power")] * 2


def test_the_journal_of_an_existing_cache_is_kept_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 1 << 20)
    Cache(tmp_path).close()
    with Cache(tmp_path, sqlite_journal_mode="delete", durability="process") as cache:
        for number in range(2000):
            cache[number % 10] = b"x" * 3000
        assert (tmp_path / "cache.db-wal").stat().st_size < 4 << 20


GARBLE = "import sys; f = open(sys.argv[1], 'r+b'); f.write(bytes(100)); f.close()"
FIND_IT_BROKEN = """
import sys, warnings
from diskcache_like import Cache
warnings.simplefilter("ignore")
with Cache(sys.argv[1]) as cache:
    cache[sys.argv[2]] = "from another process"
"""


def test_who_finds_a_database_broken_and_who_has_it_open_agree(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["before"] = 1
        cache.flush()
        for program, arguments in ((GARBLE, [tmp_path / "cache.db"]), (FIND_IT_BROKEN, [tmp_path, KEY])):
            subprocess.run([sys.executable, "-c", program, *arguments], check=True)  # closing would drop our locks
        assert cache.get(KEY) == "from another process"
        cache[KEY] = "from here"
        assert list(cache) == [KEY]
        with Cache(tmp_path) as other:
            assert other.get(KEY) == "from here"


def test_every_shard_agrees_on_the_places_of_keys(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        cache[KEY] = 1
    for number in range(2):
        subprocess.run([sys.executable, "-c", GARBLE, tmp_path / f"{number:03d}" / "cache.db"], check=True)
    with pytest.warns(CorruptDatabaseWarning):
        cache = FanoutCache(tmp_path)
    with cache:
        assert len({store.shard.identity["modulus"] for store in cache._shards.stores}) == 1
        cache[KEY] = 2
        assert cache.get(KEY) == 2


def test_a_batch_counts_a_page_of_the_wal_once_for_each_entry(tmp_path: Path) -> None:
    with Cache(tmp_path, write_buffer=0) as cache:
        header = cache._shards.stores[0].shard.header
        for _ in range(2):  # new entries, then others in their place
            before = header[Header.WRITTEN]
            cache.set_many(dict.fromkeys(range(1000), b"v" * 100))
            assert 1000 * WRITE_COST < header[Header.WRITTEN] - before < 1000 * (WRITE_COST + 200)


def test_settings_count_for_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 100_000)
    with Cache(tmp_path) as cache:
        for number in range(500):
            cache.reset("cull_limit", number)
        assert (tmp_path / "cache.db-wal").stat().st_size < 400_000


def test_writes_look_for_expired_entries_in_intervals_unless_many_expire(tmp_path: Path, clock: Clock) -> None:
    """Each look has what waits in the write buffer flushed."""
    with Cache(tmp_path, clock=clock) as cache:
        cache.set_many(dict.fromkeys(range(35), 1), expire=1)
        cache.set("late", 1, expire=2 + maintenance.EXPIRY_PAUSE / 2)
        clock.advance(2)
        left = []
        for number in range(5):
            cache["key"] = number
            left.append(len(cache))
        assert left == [27, 17, 7, 2, 2]
        clock.advance(maintenance.EXPIRY_PAUSE / 2)
        assert "late" not in cache
        cache["key"] = "too early to look"
        assert len(cache) == 2
        clock.advance(maintenance.EXPIRY_PAUSE / 2)
        cache["key"] = "time to look"
        assert len(cache) == 1


def test_a_damaged_word_about_files_does_not_evict_everything(tmp_path: Path) -> None:
    with Cache(tmp_path, disk_min_file_size=1000) as cache:
        cache.set_many(dict.fromkeys(range(10), b"x" * 100_000))
        store, target = cache._shards.stores[0], cache.volume() - 500_000
        with store.locked(None):
            store.shard.header[Header.FILES] = 0
            store.evictor.make_room(target)
        assert 3 < len(cache) < 6
