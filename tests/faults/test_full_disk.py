"""Full disks: a write that has no room fails with its own error and changes nothing, and works once there is room."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, Deque, FanoutCache, Index
from diskcache_like.errors import CorruptDatabaseWarning, DiskFull
from diskcache_like.storage.upkeep import bulk_removal, checkpoints

from ..support.small_disks import MEBIBYTE, Disk
from ..support.tampering import damage, value_files

OPTIONS: dict[str, Any] = {"generation_slots": 16, "hot_size_limit": 0, "eviction_policy": "none"}
FILE = b"f" * 50_000
ROW = b"r" * 3_000


def assert_full(error: DiskFull, disk: Disk) -> None:
    """Assert that the error is one of the operating system's too, and says where there was no room."""
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert str(disk.path) in str(error)
    assert "no room" in str(error)


WRITES: list[tuple[str, Callable[[Cache, int], object], Callable[[dict[Any, Any], int], object]]] = [
    ("set", lambda cache, n: cache.set(("row", n), ROW), lambda model, n: model.__setitem__(("row", n), ROW)),
    ("file", lambda cache, n: cache.set(("file", n), FILE), lambda model, n: model.__setitem__(("file", n), FILE)),
    ("over", lambda cache, n: cache.set("row", [n]), lambda model, n: model.__setitem__("row", [n])),
    ("over file", lambda cache, n: cache.set("file", FILE * (n + 1)), lambda model, n: model.update(file=FILE * (n + 1))),
    ("add", lambda cache, n: cache.add(("add", n), ROW), lambda model, n: model.__setitem__(("add", n), ROW)),
    ("incr", lambda cache, _: cache.incr("number"), lambda model, _: model.update(number=model["number"] + 1)),
    ("many", lambda cache, n: cache.set_many({("m", n, i): ROW for i in range(9)}),
     lambda model, n: model.update({("m", n, i): ROW for i in range(9)})),
    ("read", lambda cache, n: cache.set(("read", n), io.BytesIO(FILE), read=True),
     lambda model, n: model.__setitem__(("read", n), FILE)),
    ("touch", lambda cache, _: cache.touch("row", 1e6), lambda _model, _n: None),
    ("push", lambda cache, _: cache.push(FILE, prefix="q"), lambda _model, _n: None),
    ("transaction", lambda cache, n: in_a_transaction(cache, n), lambda model, n: model.update(t=n, u=(n, ROW))),
    ("pop", lambda cache, n: cache.pop(("row", n)), lambda model, n: model.pop(("row", n), None)),
]  # fmt: skip


def in_a_transaction(cache: Cache, number: int) -> None:
    with cache.transact():
        cache["t"] = number
        with cache.transact():
            cache["u"] = (number, ROW)


def contents(cache: Cache, model: dict[Any, Any]) -> dict[Any, Any]:
    return {key: cache[key] for key in model}


def write_until_full(cache: Cache, model: dict[Any, Any], disk: Disk) -> int:
    """Do writes of every kind, noting what was acknowledged; return how many were refused."""
    refused = 0
    for number in range(2):
        for _, write, note in WRITES:
            try:
                write(cache, number)
            except DiskFull as error:
                assert_full(error, disk)
                refused += 1
            else:
                note(model, number)
    return refused


def test_whatever_room_is_left_nothing_is_lost(disk: Disk) -> None:
    refusals = set()
    for left in (*range(0, 40_000, 4096), *range(40_000, 400_000, 20_000), MEBIBYTE, 2 * MEBIBYTE):
        directory = disk.path / str(left)
        model: dict[Any, Any] = {"row": "value", "file": FILE, "number": 1, **{number: ROW for number in range(20)}}
        with closing(Cache(directory, **OPTIONS)) as cache:
            cache.set_many(model)
            disk.fill(left)
            refusals.add(write_until_full(cache, model, disk))
            assert contents(cache, model) == model
            assert len(cache) >= len(model)
            assert [str(problem.message) for problem in cache.check()] == []  # no file is left of what failed
            disk.empty()
            assert write_until_full(cache, model, disk) == 0
            assert contents(cache, model) == model
        with closing(Cache(directory, **OPTIONS)) as cache:
            assert contents(cache, model) == model
            assert cache.check() == []
            cache.clear()
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert min(refusals) == 0
    assert max(refusals) > 15


@pytest.mark.parametrize("size", [200, 3_000, 30_000, 50_000, 300_000])
def test_a_cache_that_fills_the_disk(disk: Disk, size: int) -> None:
    stored: dict[int, bytes] = {}
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        with pytest.raises(DiskFull) as caught:
            for number in range(100_000):
                cache[number] = number.to_bytes(4, "big") * (size // 4)
                stored[number] = number.to_bytes(4, "big") * (size // 4)
        assert_full(caught.value, disk)
        assert len(stored) * (size + 8192) > 1.9 * MEBIBYTE
        for _ in range(3):
            with pytest.raises(DiskFull):
                cache.set("more", b"x" * 400_000)
            with pytest.raises(DiskFull):
                cache.push(b"x" * 400_000)
            with pytest.raises(DiskFull):
                cache.add("more", b"x" * 400_000)
        assert cache.get_many(stored) == stored
        assert len(value_files(disk.path)) == (len(stored) if size > 32_768 else 0)
        assert cache.check() == []
        with closing(Cache(disk.path / "cache", **OPTIONS)) as other:  # the -shm file is there: it can be read
            assert other.get_many(stored) == stored
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        assert cache.get_many(stored) == stored


def test_an_insert_that_failed_is_no_entry(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        for number in range(10):
            cache[number] = "old"
        disk.fill()
        for number in range(1000):
            with suppress(DiskFull):
                cache.set(("new", number), ROW)
                continue
            break
        disk.empty()
        before = len(cache)
        for number in range(10):
            cache[number] = "new"
        assert len(cache) == before
        assert cache.check() == []


def full_of(disk: Disk, size: int, **options: Any) -> Cache:
    """Return a cache whose rows, or files, have filled the disk to the last page."""
    cache = Cache(disk.path / "cache", **{**OPTIONS, **options})
    with suppress(DiskFull):
        for number in range(100_000):
            cache.set(number, bytes([number % 256]) * size, tag="tag", expire=1e6)
    disk.fill()
    return cache


REMOVALS: dict[str, Callable[[Cache], object]] = {
    "delete": lambda cache: [cache.delete(number) for number in range(10)],
    "del": lambda cache: [cache.__delitem__(number) for number in range(10)],  # type: ignore[func-returns-value]
    "delete_many": lambda cache: cache.delete_many(range(20)),
    "clear": lambda cache: cache.clear(),
    "evict": lambda cache: cache.evict("tag"),
    "expire": lambda cache: cache.expire(1e12),
    "check": lambda cache: [cache.delete(0), cache.check(fix=True)],
}


def test_files_that_were_replaced_go_before_a_write_is_refused(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        for number in range(50):
            cache["a"] = b"%04d" % number * 150_000  # two of these fit beside each other, and readers' grace is seconds
            cache.delete("b")
            cache["b"] = b"%04d" % number * 100_000
        assert cache["a"] == b"0049" * 150_000
        assert cache.check() == []


def test_a_file_object_is_not_read_twice(disk: Disk) -> None:
    with closing(full_of(disk, len(FILE))) as cache:
        cache.delete_many(range(5))  # whose files go when a write needs their room
        disk.fill()
        files = value_files(disk.path)
        with pytest.raises(DiskFull) as caught:
            cache.set("new", io.BytesIO(b"x" * 30_000), read=True)
        assert_full(caught.value, disk)
        assert value_files(disk.path) == files
        assert "new" not in cache
        cache["new"] = b"x" * 30_000
        assert cache["new"] == b"x" * 30_000


@pytest.mark.parametrize("make", [Cache, partial(FanoutCache, shards=2)], ids=["one", "fanout"])
def test_opening_on_a_full_disk(disk: Disk, make: Callable[..., Cache]) -> None:
    with closing(make(disk.path / "old", **OPTIONS)) as cache:
        cache["a"] = FILE
        cache.set_many({number: ROW for number in range(20)})
    for left in (0, 5_000, 20_000) * 5:  # closing gives back what opening took, else the last could not open
        disk.empty()
        disk.fill(left)
        with closing(make(disk.path / "old", **OPTIONS)) as cache:
            assert [cache["a"], *(cache[number] for number in range(20)), len(cache)] == [FILE, *[ROW] * 20, 21]
        disk.fill(left)
        with pytest.raises(DiskFull) as caught:
            make(disk.path / "new", **OPTIONS)
        assert_full(caught.value, disk)
    with closing(make(disk.path / "old", **OPTIONS)) as cache:
        assert [cache.delete(number) for number in range(20)] == [True] * 20
        assert len(cache) == 1
    disk.empty()
    for name in ("old", "new"):
        with closing(make(disk.path / name, **OPTIONS)) as cache:
            assert cache.get("a") == (FILE if name == "old" else None)
            cache["b"] = FILE
            assert cache["b"] == FILE
            assert cache.check() == []


def test_opening_where_others_took_all_room_says_so(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        cache["a"] = 1
    os.truncate(disk.path / "cache" / "cache.lock", 0)
    disk.fill()
    with pytest.raises(DiskFull, match="no room to open the cache, which takes 32 KiB") as caught:
        Cache(disk.path / "cache", **OPTIONS)
    assert_full(caught.value, disk)
    disk.empty()
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        assert cache["a"] == 1


def test_closing_on_a_full_disk(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        cache.set_many({number: ROW for number in range(100)})
        cache["file"] = FILE
        cache["file"] = "replaced"
        disk.fill()
    disk.empty()
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        assert len(cache) == 101
        assert cache["file"] == "replaced"
        cache.check(fix=True)
        assert cache.check() == []


def test_a_damaged_database_on_a_full_disk(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        cache["a"] = 1
    damage(disk.path / "cache" / "cache.db", "header")
    before = (disk.path / "cache" / "cache.db").read_bytes()
    disk.fill()
    for _ in range(2):
        with pytest.raises(DiskFull) as caught:
            Cache(disk.path / "cache", **OPTIONS)
        assert_full(caught.value, disk)
        assert sorted(path.name for path in (disk.path / "cache").glob("*.db")) == ["cache.db"]
    disk.empty()
    with pytest.warns(CorruptDatabaseWarning):
        cache = Cache(disk.path / "cache", **OPTIONS)
    with closing(cache):
        cache["a"] = 2
        assert cache["a"] == 2
    assert (disk.path / "cache" / "cache.db").read_bytes() == before
    assert (disk.path / "cache" / "cache.1.db").exists()


def test_shards_fail_one_by_one(disk: Disk) -> None:
    with closing(FanoutCache(disk.path / "cache", shards=2, timeout=10, **OPTIONS)) as cache:
        stored = set()
        with suppress(DiskFull):
            for number in range(1000):
                cache[number] = FILE
                stored.add(number)
        disk.fill()
        assert cache.clear() >= len(stored)
        assert len(cache) == 0
        cache["a"] = FILE
        assert cache["a"] == FILE


SIZES = pytest.mark.parametrize("size", [1_000, 3_000, 30_000])
ALL_SIZES = (1_000, 3_000, 30_000, len(FILE))  # the last in files
GENTLE: dict[str, Callable[[Cache], object]] = {
    **REMOVALS,
    "pop": lambda cache: [cache.pop(number) for number in range(10)],
    "transact": lambda cache: in_one_transaction(cache, 20),
}


def in_one_transaction(cache: Cache, number: int) -> None:
    with cache.transact():
        for key in range(number):
            del cache[key]


@pytest.mark.parametrize(
    ("removal", "size"),
    # A transaction that removes files is made the second time, once the disk reserve was given to it.
    [(removal, size) for removal in GENTLE for size in ALL_SIZES if (removal, size) != ("transact", len(FILE))],
)
def test_what_fills_a_disk_can_be_removed(disk: Disk, removal: str, size: int) -> None:
    with closing(full_of(disk, size)) as cache:
        before = len(cache)
        with pytest.raises(DiskFull):
            cache["new"] = b"n" * 60_000
        GENTLE[removal](cache)
        assert len(cache) <= before - (1 if removal == "check" else 10)
        assert 0 not in cache
        for number in range(1 if removal == "check" else 3):
            cache["new", number] = b"n" * (size // 2)  # in the room of what is removed
        assert cache["new", 0] == b"n" * (size // 2)
        assert all(cache[number] == bytes([number % 256]) * size for number in cache if isinstance(number, int))
        assert [str(problem.message) for problem in cache.check()] == []


@pytest.mark.parametrize("size", ALL_SIZES)
def test_eviction_makes_room_on_a_full_disk(disk: Disk, size: int) -> None:
    with closing(full_of(disk, size, eviction_policy="least-recently-stored", size_limit=8 * MEBIBYTE)) as cache:
        before = len(cache)
        cache.reset("size_limit", cache.volume() // 2, update=False)
        assert cache.cull() > before // 4
        assert cache.volume() <= cache.size_limit
        for number in range(100):
            cache["new", number] = b"n" * size
        assert cache["new", 99] == b"n" * size
        assert cache.volume() <= 1.01 * cache.size_limit
        assert cache.check() == []


def fill_by_others(disk: Disk, cache: Cache, size: int) -> None:
    """Fill the disk while all rows of the cache are in the WAL, which then finds no room in the database."""
    for number in range(200_000 // size):
        cache.set(number, bytes(size), tag="tag", expire=1e6)
    disk.fill()


@SIZES
@pytest.mark.parametrize("removal", ["clear", "evict", "expire"])
def test_a_disk_that_others_fill_can_be_relieved(disk: Disk, removal: str, size: int) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        fill_by_others(disk, cache, size)
        with pytest.raises(DiskFull):
            for number in range(1000):
                cache["new", number] = bytes(size)
        before = disk.free()
        REMOVALS[removal](cache)
        assert len([number for number in cache if isinstance(number, int)]) == 0
        assert disk.free() > before + 200_000
        cache["new"] = bytes(size)
        assert cache.check() == []


def test_room_is_kept_for_removals_again_once_there_is_some(disk: Disk) -> None:
    with closing(full_of(disk, 3_000)) as cache:
        held = (disk.path / "cache" / "cache.lock").stat
        lock = cache._shards.stores[0].shard.lock
        with cache._shards.stores[0].transactions.locked(None):
            assert lock.drop_disk_reserve()
            assert not lock.drop_disk_reserve()
        assert held().st_blocks == 0
        cache.clear()
        disk.empty()
        cache.reset("size_limit", cache.size_limit)  # has the next write look
        cache["a"] = 1
        assert held().st_blocks * 512 >= checkpoints.RESERVE
        disk.fill()
        assert cache.clear() == 1


def test_a_disk_is_used_to_the_last_part(disk: Disk) -> None:
    with closing(full_of(disk, 200)) as cache:
        assert cache.volume() > 0.4 * 2 * MEBIBYTE  # what the control files leave; the WAL of before has its share
        assert len(cache) > 3_000


SINGLE: dict[str, Callable[[Cache, int], object]] = {
    "delete": lambda cache, number: cache.delete(number),
    "pop": lambda cache, number: cache.pop(number),
    "delete_many": lambda cache, number: cache.delete_many([number]),
    "transact": lambda cache, number: in_one_transaction(cache, number + 1),
}


@pytest.mark.parametrize("size", [200, 30_000])
@pytest.mark.parametrize("single", SINGLE)
@pytest.mark.parametrize("removal", ["clear", "evict", "expire"])
def test_everything_can_be_removed_where_no_more_can_be_removed_singly(
    disk: Disk, removal: str, single: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", 0)
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        fill_by_others(disk, cache, size)
        with suppress(DiskFull, KeyError):
            for number in range(1000):
                SINGLE[single](cache, number)
        with suppress(DiskFull):
            cache.cull()
        REMOVALS[removal](cache)
        assert len(cache) == 0
        cache["new"] = bytes(size)
        assert cache.check() == []


@SIZES
@pytest.mark.parametrize("many", [0, bulk_removal.MANY])
def test_what_is_cleared_where_others_have_filled_the_disk_is_counted(
    disk: Disk, size: int, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", many)
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        fill_by_others(disk, cache, size)
        before = len(cache)
        assert cache.clear() == before


@SIZES
def test_items_can_be_taken_where_others_have_filled_the_disk(disk: Disk, size: int) -> None:
    deque = Deque.fromcache(Cache(disk.path / "deque", **OPTIONS))
    index = Index.fromcache(Cache(disk.path / "index", **OPTIONS))
    with closing(deque.cache), closing(index.cache):
        for number in range(20):
            deque.append(bytes([number]) * size)
            index[number] = bytes([number]) * size
        disk.fill()
        assert deque.popleft() == bytes([0]) * size
        assert deque.pop() == bytes([19]) * size
        assert index.popitem() == (19, bytes([19]) * size)
        assert index.popitem(last=False) == (0, bytes([0]) * size)
        assert (len(deque), len(index)) == (18, 18)


def test_a_transaction_that_only_removes_is_made_the_second_time(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", **OPTIONS)) as cache:
        fill_by_others(disk, cache, 3_000)
        with suppress(DiskFull):
            in_one_transaction(cache, 5)
        if 0 in cache:
            in_one_transaction(cache, 5)
        assert 0 not in cache


def test_a_database_that_cannot_get_shorter_is_emptied_all_the_same(disk: Disk) -> None:
    with closing(Cache(disk.path / "cache", sqlite_auto_vacuum=0, **OPTIONS)) as cache:
        cache["a"] = 1
    with closing(Cache(disk.path / "cache", sqlite_auto_vacuum=2, **OPTIONS)) as cache:
        fill_by_others(disk, cache, 3_000)
        with suppress(DiskFull):
            cache.clear()
        with suppress(DiskFull):
            cache.pop("a", None)
            cache.delete(1)
        disk.empty()
        cache.clear()
        cache["b"] = 1
        assert cache["b"] == 1


def test_a_small_disk_is_for_entries_rather_than_for_ballast(disk: Disk) -> None:
    with closing(FanoutCache(disk.path / "cache", shards=2, **OPTIONS)) as cache:
        cache["a"] = 1
        cache["b"] = 2
        taken = [os.stat(Path(store.directory) / "cache.lock").st_blocks * 512 for store in cache._shards.stores]
        assert 0 < sum(taken) * checkpoints.RESERVE_PART <= disk.free() + sum(taken)


def test_a_disk_that_does_not_say_how_large_it_is_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: unknown)
    with closing(Cache(tmp_path, **OPTIONS)) as cache:
        cache.set_many({"a": 1, "b": 2})  # to the database, for which the disk is looked at
        store = cache._shards.stores[0]
        assert store.checkpointer.wal_bytes > checkpoints.CHECKPOINT_BYTES
        assert not store.checkpointer.is_tight()
