"""The write buffer: every handle reads what waits there, no write of another kind comes before it, nothing is lost."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from struct import pack_into, unpack_from
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from diskcache_like import (
    Cache,
    CorruptDatabase,
    CorruptDatabaseWarning,
    DecodeError,
    DirectoryError,
    DiskFull,
    FanoutCache,
    StorageError,
    Timeout,
    TransactionError,
)
from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import Header, prime_below
from diskcache_like.coherence.ring import LEAST_CAPACITY, PAGE, Mark, Ring, Word
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.entries.atomic_key import AtomicKey
from diskcache_like.storage import write_buffer
from diskcache_like.storage.opening import opener, replacement
from diskcache_like.storage.rows import Rows
from diskcache_like.storage.shard import writer_connection
from diskcache_like.storage.shard.open_shard import OpenShard
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.sqlite import statements
from diskcache_like.storage.sqlite.connection import connect_writer, corrupt
from diskcache_like.storage.store import Store
from diskcache_like.storage.upkeep import bulk_removal
from diskcache_like.storage.upkeep.trash import GRACE
from diskcache_like.storage.write_buffer import WriteBuffer
from diskcache_like.system.blocking import WouldBlock

from ..support.broken_writers import in_python
from ..support.cache_kinds import Clock
from ..support.rings import SMALLEST, WHOLE, content_of, records, table_of
from ..support.small_disks import MEBIBYTE, Disk, NotPermitted, mounted
from ..support.workers import Crew, Link, forked

SIZE = 1 << 14
SMALL: dict[str, Any] = {"write_buffer": SIZE, "generation_slots": 16}

may_be_emptied = pytest.mark.filterwarnings("ignore:.*a record in the write buffer is damaged:UserWarning")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache", **SMALL) as cache:
        yield cache


@pytest.fixture
def other(cache: Cache) -> Iterator[Cache]:
    with Cache(cache.directory, hot_size_limit=0, **SMALL) as other:
        yield other


@pytest.fixture
def waiting_disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a small disk on which writes wait all the same."""
    for module in (write_buffer, opener):
        monkeypatch.setattr(module, "ROOM", 0)
    return disk


def ring_of(cache: Cache) -> Ring:
    """Return the ring of a cache of one shard."""
    ring = cache._shards.stores[0].shard.ring
    assert ring is not None
    return ring


def rows_of(cache: Cache) -> int:
    """Return the number of rows that are in the database now, as somebody else sees them."""
    return _rows_in(Path(cache.directory))


def _rows_in(directory: Path) -> int:
    connection = sqlite3.connect(f"file:{directory}/cache.db?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(1) FROM entry").fetchone()[0])
    finally:
        connection.close()


def test_a_write_waits_and_everybody_sees_it(cache: Cache, other: Cache) -> None:
    cache["key"] = 1
    assert rows_of(cache) == 0
    assert other["key"] == cache["key"] == 1
    assert "key" in other
    assert other.get_many(["key", "missing"]) == {"key": 1}
    assert other.get_entry("key").version == cache.get_entry("key").version > 0
    assert other.delete("key")
    assert cache.get("key") is None
    assert "key" not in cache
    assert not cache.delete("key")
    assert rows_of(cache) == 0


@pytest.mark.parametrize(
    "look",
    [
        lambda cache: cache.volume(),
        lambda cache: list(cache.keys(tags=["a"])),
        lambda cache: cache.tags(),
        lambda cache: cache.check(),
        lambda cache: cache.evict("nothing"),
        lambda cache: cache.expire(),
        lambda cache: cache.set("large", bytes(1 << 16)),
        lambda cache: cache.set_many({"more": 1, "still more": 2}),
        lambda cache: cache.flush(),
        lambda cache: cache.sync(),
    ],
)
def test_whoever_needs_the_rows_has_everything_flushed_first(cache: Cache, other: Cache, look: Any) -> None:
    cache.set("key", 1, tag="a")
    assert rows_of(cache) == 0
    look(other)
    assert rows_of(cache) >= 1
    assert cache["key"] == 1
    assert ring_of(cache).waiting() == 0


def test_counters_stay_in_the_buffer(cache: Cache, other: Cache) -> None:
    for number in range(1, 20):
        assert (cache, other)[number % 2].incr("counter") == number
    assert rows_of(cache) == 0
    assert cache.add("counter", 5) is False
    assert other.pop("counter") == 19
    assert cache.add("counter", 5) is True
    assert other["counter"] == 5


@pytest.mark.parametrize("flushed", [False, True])
def test_a_number_in_memory_is_counted_up_without_a_look_at_its_value(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    cache["number"] = 1
    if flushed:
        cache.flush()
        other["more"] = cache["more"] = 1  # or else the ring's first record would be due
    monkeypatch.setattr(cache._shards.stores[0], "update", None)
    assert cache.incr("number") == 2
    assert cache.decr("number", 5) == -3
    assert other["number"] == cache["number"] == -3


@pytest.mark.parametrize("metadata", [{"tag": "a"}, {"expire": 1000}, {"tags": ["a", "b"], "expire": 1000}])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_number_in_memory_keeps_its_metadata(
    alone: Cache, other: Cache, metadata: dict[str, Any], is_read: bool
) -> None:
    (other if is_read else alone).set("number", 1, **metadata)
    assert alone["number"] == 1
    before = other.get_entry("number")
    assert alone.incr("number") == 2
    after = other.get_entry("number")
    assert (after.value, after.tags, after.expire_time) == (2, before.tags, before.expire_time)


@pytest.mark.parametrize("late", [41, "text", None])
def test_a_number_in_memory_counts_only_if_it_is_the_newest(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch, late: object
) -> None:
    cache["number"] = 1
    store = cache._shards.stores[0]
    replace = store.replace

    def late_write(*arguments: Any) -> int:
        other.delete("number") if late is None else other.set("number", late)
        return replace(*arguments)

    monkeypatch.setattr(store, "replace", late_write)
    if late == "text":
        with pytest.raises(TypeError, match="expected a number"):
            cache.incr("number")
    else:
        assert cache.incr("number", default=9) == (10 if late is None else 42)
    assert other["number"] == {41: 42, None: 10, "text": "text"}[late]  # type: ignore[index]


@pytest.mark.parametrize("late", [False, True])
def test_a_key_that_is_known_to_be_missing_is_added_without_a_look(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    other["more"] = cache["more"] = 1  # or else the ring's first record would be due
    assert cache.get("key") is None
    append = cache._shards.stores[0].writer._append_alone

    def late_write(*arguments: Any) -> int:
        if late:
            monkeypatch.undo()
            other["key"] = "first"
        return append(*arguments)

    monkeypatch.setattr(type(cache._shards.stores[0].reader), "read", None)
    monkeypatch.setattr(type(cache._shards.stores[0].writer), "_newest", None)
    monkeypatch.setattr(cache._shards.stores[0].writer, "_append_alone", late_write)
    assert cache.add("key", "second") is not late
    assert other["key"] == cache["key"] == ("first" if late else "second")


def test_a_number_in_memory_whose_sum_has_a_file_leaves_none_behind(tmp_path: Path) -> None:
    with Cache(tmp_path, disk_min_file_size=100, **SMALL) as cache:
        cache["number"] = 1
        assert cache.incr("number", 10**1000) == 10**1000 + 1
        assert len([*tmp_path.rglob("*.val")]) == 1
        assert cache["number"] == 10**1000 + 1


def test_a_touch_keeps_the_version(cache: Cache, other: Cache) -> None:
    cache.set("key", "value", tag="a")
    version = cache.get_entry("key").version
    assert other.touch("key", 1000)
    assert other.retag("key", ["b"])
    assert cache.get_entry("key").version == version
    assert cache.set("key", 2, if_version=version)


@pytest.mark.parametrize("seed", range(5))
def test_two_handles_agree_with_a_dictionary(cache: Cache, other: Cache, seed: int) -> None:
    source = random.Random(seed)
    model: dict[int, Any] = {}
    for number in range(1500):
        one = source.choice((cache, other))
        key = source.randrange(60)
        deed = source.random()
        if deed < 0.5:
            model[key] = number if source.random() < 0.8 else bytes(source.randrange(3000))
            one.set(key, model[key], tag=source.choice((None, "a")), expire=source.choice((None, 1000)))
        elif deed < 0.6:
            assert one.delete(key) == (model.pop(key, None) is not None)
        elif deed < 0.7:
            assert one.pop(key, "none") == model.pop(key, "none")
        elif deed < 0.75:
            with one.transact():
                model[key] = one[key] = number
                model[key + 1] = one[key + 1] = number
        elif deed < 0.8:
            assert one.touch(key, 500) == (key in model)
        elif deed < 0.82:
            assert len(one) == len(model)
            assert {*one} == {*model}
        elif deed < 0.83:
            one.clear()
            model.clear()
        else:
            assert one.get(key, "none") == model.get(key, "none")
    assert dict(cache) == dict(other) == model
    assert cache.check() == []
    assert ring_of(cache).words[Word.HEAD] > 5 * SIZE, "it has wrapped"


def test_entries_keep_the_order_of_their_insertion(cache: Cache, other: Cache) -> None:
    for key in "dacb":
        cache[key] = 1
    other["a"] = 2
    del cache["d"]
    cache["d"] = 3
    cache["e"] = 4
    assert list(other) == ["a", "c", "b", "d", "e"]
    assert other.peekitem() == ("e", 4)


def test_one_more_record_than_a_walk_may_have_is_flushed(cache: Cache, other: Cache) -> None:
    for round_ in range(3):
        for key in range(400):
            cache[key] = (key, round_)
        assert all(other[key] == (key, round_) for key in range(400))


def test_what_is_removed_in_another_way_is_not_found_in_the_buffer(cache: Cache, other: Cache) -> None:
    cache.set("tagged", 1, tag="a")
    cache.set("brief", 1, expire=1e-9)
    cache["key"] = 1
    assert other.evict("a") == 1
    assert cache.get("tagged") is None
    assert other.expire() <= 1
    with other.transact():
        other["key"] = 2
        assert other["key"] == 2
        del other["key"]
    assert cache.get("key") is None
    cache["key"] = 3
    other.clear()
    assert cache.get("key") is None
    assert len(cache) == 0


def test_a_transaction_that_is_rolled_back_leaves_what_waited(cache: Cache, other: Cache) -> None:
    cache["key"] = 1
    with pytest.raises(ZeroDivisionError), other.transact():
        other["key"] = 2
        raise ZeroDivisionError
    assert cache["key"] == other["key"] == 1


def test_a_full_cache_evicts_as_without_a_buffer(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=1 << 20, **SMALL) as cache:
        for number in range(20_000):
            cache[number] = bytes(100)
        assert cache.volume() <= 1 << 20
        assert 1000 < len(cache) < 15_000
        assert cache[19_999] == bytes(100)
        assert cache.check() == []


# -- what outlives a process, and a copy -------------------------------------------------------------------------------


def killed(work: Callable[[], Cache]) -> None:
    """Do something in a forked child, which is killed at its end if it has not been before.

    The work returns its cache, which would be closed, and so flushed, if nobody referred to it any more.
    """

    def work_and_die(_: Link) -> None:
        cache = work()
        die(cache)

    with forked(work_and_die) as child:
        child.join()
        assert child.status == -signal.SIGKILL


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _write_and_wait(link: Link, directory: str, keys: int) -> None:
    cache = Cache(directory, **SMALL)
    for key in range(keys):
        cache[key] = key
    link.tell()
    link.hear()


@pytest.mark.parametrize("keys", [1, 20, 2000])
def test_a_killed_writer_loses_nothing(tmp_path: Path, keys: int) -> None:
    with Crew() as crew:
        worker = crew.start(_write_and_wait, str(tmp_path), keys)
        worker.hear()
        os.kill(worker.pid, signal.SIGKILL)
        with Cache(tmp_path, **SMALL) as cache:
            assert [cache.get(key) for key in range(keys)] == list(range(keys))
            assert len(cache) == keys
            assert cache.check() == []


class DyingAfter:
    """Words of a ring whose writer is killed right after a store to one of them."""

    def __init__(self, words: Any, last: int) -> None:
        self.words = words
        self.last = last

    def __getitem__(self, index: int) -> int:
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value
        if index == self.last:
            die()


@pytest.mark.parametrize("value", ["small", "large" * 4000])
def test_what_a_killed_writer_left_does_not_come_back_in_a_copy(tmp_path: Path, value: str) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path / "cache", **SMALL)
        cache["other"] = 1
        _native.watch_steps(lambda step: die() if step == WHOLE else None)
        cache["key"] = "never acknowledged"
        return cache

    killed(work)
    with Cache(tmp_path / "cache", **SMALL) as cache:
        cache.set_many({"key": value, "more": value})
        cache.sync()
        assert cache["key"] == value
    shutil.copytree(tmp_path / "cache", tmp_path / "copy")
    with Cache(tmp_path / "copy", **SMALL) as copy:
        assert copy["key"] == value
        assert (len(copy), copy.check()) == (3, [])


@pytest.mark.parametrize("shards", [1, 3])
def test_a_copy_made_in_use_has_what_waited(tmp_path: Path, shards: int) -> None:
    def made(place: str) -> Cache:
        return (
            FanoutCache(tmp_path / place, shards, timeout=60, **SMALL)
            if shards > 1
            else Cache(tmp_path / place, **SMALL)
        )

    with made("original") as cache:
        for key in range(30):
            cache[key] = "first"
        cache.flush()
        for key in range(0, 30, 2):
            cache[key] = "second"
        shutil.copytree(tmp_path / "original", tmp_path / "copy")
        for key in range(30):
            cache[key] = "third"
        cache.flush()
        with made("copy") as copy:
            assert [copy[key] for key in range(30)] == ["second", "first"] * 15
            copy["key"] = 1
            assert copy["key"] == 1
            assert copy.check() == []


def copied_with_holes(source: Path, target: Path) -> Path:
    """Copy a directory as `cp --sparse=always` does: with a hole wherever a page is empty."""
    target.mkdir()
    for path in source.iterdir():
        content = path.read_bytes()
        copy = target / path.name
        copy.touch(0o600)
        with copy.open("r+b") as file:
            for start in range(0, len(content), PAGE):
                if content[start : start + PAGE].strip(b"\0"):
                    file.seek(start)
                    file.write(content[start : start + PAGE])
        os.truncate(copy, len(content))
    return target


def test_holes_in_a_copy_are_filled(waiting_disk: Disk) -> None:
    """Storing into one on a full disk would kill the process."""
    with Cache(waiting_disk.path / "cache", generation_slots=16, write_buffer=1 << 16) as cache:
        cache["key"] = "waiting"
        copy = copied_with_holes(Path(cache.directory), waiting_disk.path / "copy")
    has_holes = [path for path in copy.iterdir() if path.stat().st_blocks * 512 < path.stat().st_size]
    assert copy / "cache.buffer" in has_holes
    waiting_disk.fill()
    with pytest.raises(DiskFull, match=str(copy)):
        Cache(copy)
    waiting_disk.empty()
    with Cache(copy) as cache:
        assert cache["key"] == "waiting"
        status = (copy / "cache.buffer").stat()
        assert status.st_blocks * 512 >= status.st_size


def test_a_copy_without_the_buffer_has_what_was_flushed(cache: Cache, tmp_path: Path) -> None:
    cache["key"] = "flushed"
    cache.flush()
    cache["key"] = "waiting"
    shutil.copytree(cache.directory, tmp_path / "copy")
    (tmp_path / "copy" / "cache.buffer").unlink()
    with Cache(tmp_path / "copy", **SMALL) as copy:
        assert copy["key"] == "flushed"
        copy["key"] = "new"
        assert copy["key"] == "new"


@pytest.mark.parametrize("lost", ["cache.gen", "cache.lock"])
def test_what_waited_is_found_without_the_other_control_files(tmp_path: Path, lost: str) -> None:
    with Crew() as crew:
        worker = crew.start(_write_and_wait, str(tmp_path), 20)
        worker.hear()
        os.kill(worker.pid, signal.SIGKILL)
        (tmp_path / lost).unlink(missing_ok=True)
        with Cache(tmp_path, **SMALL) as cache:
            assert [cache.get(key) for key in range(20)] == list(range(20))


def test_what_waited_is_found_with_another_number_of_slots(tmp_path: Path) -> None:
    with Crew() as crew:
        worker = crew.start(_write_and_wait, str(tmp_path), 20)
        worker.hear()
        os.kill(worker.pid, signal.SIGKILL)
        (tmp_path / "cache.gen").unlink()
        with Cache(tmp_path, generation_slots=1 << 10, write_buffer=1 << 20) as cache:
            assert [cache.get(key) for key in range(20)] == list(range(20))


def test_a_new_boot_takes_over_what_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Crew() as crew:
        worker = crew.start(_write_and_wait, str(tmp_path), 20)
        worker.hear()
        os.kill(worker.pid, signal.SIGKILL)
    boot = tmp_path / "boot_id"
    boot.write_text("5eed0002-5eed-5eed-5eed-5eed5eed5eed")
    monkeypatch.setattr("diskcache_like.system.boot._BOOT_ID", boot)
    with Cache(tmp_path, **SMALL) as cache:
        assert [cache.get(key) for key in range(20)] == list(range(20))
        assert cache.check() == [] or all("boot_id" in str(problem.message) for problem in cache.check())


# -- handles that differ ------------------------------------------------------------------------------------------------


def test_a_durable_handle_writes_to_the_database_at_once(cache: Cache) -> None:
    cache["key"] = 1
    with Cache(cache.directory, durability="power") as durable:
        durable["other"] = 2
        assert rows_of(cache) == 2
        assert cache["other"] == 2
        cache["key"] = 3
        assert durable["key"] == 3


def test_durability_may_change_in_use(cache: Cache) -> None:
    cache["key"] = 1
    cache.reset("durability", "power")
    cache["other"] = 2
    assert rows_of(cache) == 2


def test_a_cache_without_a_buffer_has_no_file_for_it(tmp_path: Path) -> None:
    with Cache(tmp_path, write_buffer=0) as cache:
        cache["key"] = 1
        assert rows_of(cache) == 1
        cache.flush()
        assert not (tmp_path / "cache.buffer").exists()


def test_a_nearly_full_disk_has_everything_written_at_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(write_buffer, "ROOM", 1 << 62)
        for number in range(3):
            cache[number] = number
            assert rows_of(cache) == number + 1
    cache[3] = 3
    assert rows_of(cache) == 3, "there is room again"
    assert cache[3] == 3


REMOVALS: dict[str, Callable[[Cache], object]] = {
    "delete": lambda cache: cache.delete("key"),
    "pop": lambda cache: cache.pop("key"),
    "add and delete": lambda cache: (cache.delete("key"), cache.add("key", "new"), cache.delete("key")),
    "set and delete": lambda cache: (cache.set("key", "new"), cache.delete("key")),
}


@pytest.mark.parametrize("remove", REMOVALS)
def test_a_row_whose_key_was_changed_does_not_outlive_a_removal(cache: Cache, other: Cache, remove: str) -> None:
    cache["key"] = "old"
    cache.flush()
    connection = sqlite3.connect(f"{cache.directory}/cache.db")
    with connection:
        connection.execute("UPDATE entry SET k = ? WHERE k = ?", (b"\xa3kez", b"\xa3key"))
    connection.close()
    with cache.transact():
        cache.push("item")  # from here on no reader finds what was appended before
    other.set("bystander", 1)  # the next write is made in one call
    other.set("bystander", 2)
    REMOVALS[remove](other)
    for _ in range(2):
        assert cache.get("key") is None
        assert other.get("key") is None
        cache.push("item")
    assert cache.check() == []


@pytest.mark.parametrize("names", [("cache.db", "cache.gen", "cache.lock"), ("cache.db", "cache.gen")])
def test_a_new_database_shares_no_buffer_with_a_removed_one(cache: Cache, names: tuple[str, ...]) -> None:
    cache["key"] = "old"
    for name in names:
        os.unlink(os.path.join(cache.directory, name))
    with Cache(cache.directory, hot_size_limit=0, **SMALL) as other:
        assert "key" not in other
        other["key"] = "new"
        assert cache["key"] == "old"
        cache["key"] = "newer"
        assert other["key"] == "new"


def test_a_write_that_fails_while_something_waits_leaves_no_file(cache: Cache) -> None:
    cache["key"] = 1
    cache._shards.stores[0].connection.open().execute("PRAGMA query_only = ON")
    for write in (lambda: cache.set("key", bytes(40_000)), lambda: cache.push(bytes(40_000))):
        with pytest.raises(DirectoryError, match="readonly"):
            write()
    cache.close()
    assert cache["key"] == 1
    assert cache.check() == []


def test_what_waits_for_room_on_a_full_disk_is_kept_and_clear_makes_room(waiting_disk: Disk) -> None:
    with Cache(waiting_disk.path / "cache", hot_size_limit=0) as cache:
        cache["in a file"] = bytes(100_000)
    with Cache(waiting_disk.path / "cache", hot_size_limit=0) as cache:
        for key in range(150):
            cache[key] = bytes(1_000)
        waiting_disk.fill()
        with pytest.raises(DiskFull):
            cache.flush()
        with pytest.raises(DiskFull):
            len(cache)
        assert all(cache[key] == bytes(1_000) for key in range(150))
        assert cache.delete(0)
        assert cache.get(0) is None
        assert cache.clear() == 1, "what waited is not counted"
        assert len(cache) == 0
        assert cache.get(1) is None
        cache["key"] = 1
        assert cache.check() == []


def fill_with_writes(cache: Cache) -> None:
    with suppress(DiskFull):
        for number in range(1_000):
            cache["more", number] = "y" * 100


@pytest.mark.parametrize("before", [len, Cache.expire, fill_with_writes, lambda cache: None])
@pytest.mark.parametrize("waiting", [20, 900, 2_500])
def test_entries_can_be_removed_whatever_waits_when_the_disk_fills_up(
    tmp_path: Path, waiting: int, before: Callable[[Cache], Any]
) -> None:
    """The reserve that the disk has for removals is not spent on what waits."""
    try:
        with mounted(tmp_path / "disk", 96 * MEBIBYTE) as disk, Cache(disk.path / "cache") as cache:
            for number in range(waiting):
                cache[number] = f"{number} {'v' * 190}"
            disk.fill()
            with suppress(DiskFull):
                before(cache)
            assert cache.delete(0)
            assert cache.pop(1) is not None
            assert 0 not in cache
            assert 1 not in cache
            assert cache[2] == f"2 {'v' * 190}"
            cache.clear()
            assert len(cache) == 0
            cache["new"] = 1
            assert [*cache] == ["new"]
            assert cache.check() == []
    except NotPermitted as reason:
        pytest.skip(str(reason))


def test_a_removal_waits_with_what_has_no_room(waiting_disk: Disk) -> None:
    """Also where a handle has seen before that the disk has little room, as after a part of a flush."""
    with Cache(waiting_disk.path / "cache") as cache, Cache(waiting_disk.path / "cache", hot_size_limit=0) as other:
        for number in range(700):
            cache[number] = f"{number} {'v' * 190}"
        waiting_disk.fill()
        other._shards.stores[0].writer.buffer._mark_if_tight(-1)
        assert other.delete(0)
        assert 0 not in cache
        waiting_disk.empty()
        assert len(other) == 699


def test_files_of_removals_that_wait_make_room_on_a_full_disk(waiting_disk: Disk) -> None:
    with Cache(waiting_disk.path, eviction_policy="none", hot_size_limit=0, **SMALL) as cache:
        cache["old"] = bytes(1_500_000)
        cache["small"] = 1
        del cache["old"]
        waiting_disk.fill(leave=300_000)
        cache["new"] = bytes(1_200_000)
        assert cache["new"] == bytes(1_200_000)
        assert cache["small"] == 1
        waiting_disk.empty()
        assert cache.check() == []


# -- damage -------------------------------------------------------------------------------------------------------------


@may_be_emptied
def test_a_damaged_record_is_missing_and_does_not_show_an_older_value(cache: Cache, other: Cache) -> None:
    cache["key"] = "old"
    cache["bystander"] = 1
    cache.flush()
    ring = ring_of(cache)
    start = ring.words[Word.HEAD] % ring.capacity + PAGE
    cache["key"] = "new"
    end = ring.words[Word.HEAD] % ring.capacity + PAGE
    content_of(ring)[end - 12] ^= 1
    assert other.get("key") != "old"
    assert other.get("bystander") == 1
    other.flush()
    assert other.get("key") is None
    assert other["bystander"] == 1
    cache["key"] = "newest"
    content_of(ring)[start + (end - start) + 20] ^= 1  # in the header of the newest record
    assert other.get("key") != "new"
    other.flush()
    assert other.get("key") is None
    cache["key"] = "again"
    assert other["key"] == "again"


def test_what_waits_goes_to_the_next_database_when_one_is_quarantined(tmp_path: Path) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        cache.set_many({"flushed": 0, "changed": 0, "removed": 0})
        cache.flush()
        cache.set("changed", 1, expire=100, tag="tag")
        del cache["removed"]
        cache["new"] = 2
        return cache

    killed(work)
    with Path(tmp_path, "cache.db").open("r+b") as file:
        file.write(b"not a database")
    with pytest.warns(UserWarning, match="goes on empty in .*, but for what waits in the write buffer"):
        cache = Cache(tmp_path, **SMALL)
    with cache, Cache(tmp_path, hot_size_limit=0) as other:
        for each in (cache, other):
            assert each.get("changed", expire_time=True, tag=True)[::2] == (1, "tag")
            assert (each.get("new"), each.get("removed"), each.get("flushed")) == (2, None, None)
        cache["new"] = 3
        assert other["new"] == 3
        assert list(other) == ["changed", "new"]
        assert other.check() == []


def test_a_handle_of_a_replaced_database_that_closes_flushes_nothing_of_the_next_one(tmp_path: Path) -> None:
    old = Cache(tmp_path, **SMALL)
    old["before"] = 1
    with Path(tmp_path, "cache.db").open("r+b") as file:
        file.write(b"not a database" * 100)
    with pytest.warns(UserWarning, match="goes on empty"):
        cache = Cache(tmp_path, **SMALL)
    cache["after"] = 2
    old.close()
    with cache:
        cache.push("a commit of another kind")
        assert (cache["before"], cache["after"]) == (1, 2)
        assert cache.check() == []
    with Cache(tmp_path, **SMALL) as cache:
        assert (cache["before"], cache["after"]) == (1, 2)


def test_a_handle_whose_buffer_was_removed_follows_to_the_next_one(cache: Cache) -> None:
    cache["key"] = 0
    cache.flush()
    Path(cache.directory, "cache.buffer").unlink()
    with Cache(cache.directory, **SMALL) as other:
        other["key"] = 1
        cache["key"] = 2
        assert (other["key"], cache["key"]) == (2, 2)
        cache.set("key", bytes(1 << 16))
        assert other["key"] == bytes(1 << 16)
        other["key"] = 3
        assert (other["key"], cache["key"]) == (3, 3)


@pytest.mark.parametrize("read", [Cache.get, Cache.__getitem__, lambda cache, key: cache.get_many([key])[key]])
def test_a_read_while_another_thread_follows_to_the_next_buffer_finds_what_waits(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, read: Callable[[Cache, str], Any]
) -> None:
    cache["key"] = "old"
    cache.flush()
    cache["key"] = "new"
    cache._hot.clear()
    shard = shard_of(cache)
    ring = ring_of(cache)
    core = ring.core

    def follow_at_once(name: str, *arguments: Any) -> Any:
        monkeypatch.undo()
        shard.buffer = 0
        ring.close()
        return getattr(core, name)(*arguments)

    monkeypatch.setattr(ring, "read", partial(follow_at_once, "read"))
    monkeypatch.setattr(ring, "core", SimpleNamespace(find=partial(follow_at_once, "find")))
    assert read(cache, "key") == "new"
    assert ring.is_closed()


def test_a_read_while_another_thread_closes_finds_what_could_not_be_flushed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = "old"
    cache.flush()
    cache["key"] = "new"
    cache._hot.clear()
    found: list[Any] = []
    end = WriteLock.release_and_close

    def read_first(lock: WriteLock, *arguments: Any) -> None:
        reader = threading.Thread(target=lambda: found.append(cache.get("key")))
        reader.start()
        reader.join()
        end(lock, *arguments)

    monkeypatch.setattr(WriteLock, "release_and_close", read_first)
    with monkeypatch.context() as patched:
        patched.setattr(WriteBuffer, "flush", no_room)
        cache.close()
    assert found == ["new"]


def test_a_writer_killed_as_it_notes_a_flush_costs_nothing(tmp_path: Path) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        for key in range(20):
            cache[key] = key
        flushed = Ring.flushed

        def half(self: Ring, mark: Mark) -> None:
            before = self.words[Word.FLUSHED]
            flushed(self, mark)
            self.words[Word.FLUSHED] = before  # which is stored last
            die()

        Ring.flushed = half  # type: ignore[method-assign]
        cache.flush()
        return cache

    killed(work)
    with Cache(tmp_path, **SMALL) as cache:
        cache["another"] = 1
        assert [cache.get(key) for key in range(20)] == list(range(20))
        assert len(cache) == 21
        assert cache.check() == []


def test_who_is_killed_taking_the_buffer_over_leaves_it_for_the_next(tmp_path: Path) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        cache["key"] = "waits"
        return cache

    killed(work)
    Path(tmp_path, "cache.gen").unlink()

    def take_over() -> Cache:
        _native.watch_steps(die)
        return Cache(tmp_path, **SMALL)

    killed(take_over)
    with Cache(tmp_path, **SMALL) as cache:
        assert cache["key"] == "waits"


def no_room(*_: object) -> None:
    raise DiskFull("no room", "here")


def test_what_a_clear_without_room_has_removed_is_not_back_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        cache["flushed"] = 1
        cache.flush()
        cache["waits"] = 2
        monkeypatch.setattr(WriteBuffer, "_flush_batch", no_room)
        cache.clear()
        return cache

    killed(work)
    Path(tmp_path, "cache.gen").unlink()
    with Cache(tmp_path, **SMALL) as cache:
        assert (len(cache), cache.get("waits"), cache.get("flushed")) == (0, None, None)


def test_the_order_of_what_waits_outlives_the_count_of_writes(tmp_path: Path) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        header = shard_of(cache).header
        header[Header.TICK] = header[Header.SETTLED] = header[Header.TICK] + 86_400_000_000  # a clock a day ahead
        cache["one"] = cache["two"] = "waits"
        return cache

    killed(work)
    Path(tmp_path, "cache.gen").unlink()
    with Cache(tmp_path, **SMALL) as cache:
        cache["three"] = "new"
        assert [*cache] == ["one", "two", "three"]
        assert cache.check() == []


@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize("flushed", [False, True])
def test_writes_that_a_power_loss_took_do_not_come_back_when_the_one_before_is_made_again(
    tmp_path: Path, flushed: bool, losses: int
) -> None:
    saved, place = tmp_path / "saved", tmp_path / "cache"

    def write(cache: Cache, *keys: str) -> Cache:
        for key in keys:
            cache[key] = key
        return cache

    def work() -> Cache:
        cache = Cache(place, **SMALL)
        header = shard_of(cache).header
        header[Header.TICK] = header[Header.SETTLED] = header[Header.TICK] + 86_400_000_000  # a clock a day ahead
        write(cache, "first")
        if flushed:
            cache.flush()
        write(cache, "kept")
        shutil.copytree(place, saved)
        cache.flush()  # this is lost, and of what follows all but the last record
        return write(cache, "torn", "lost")

    def write_again(*keys: str) -> Cache:
        return write(Cache(place, **SMALL), *keys)

    killed(work)
    for loss in range(losses):
        lose_the_last_record_but_one(place, saved)
        killed(partial(write_again, *("torn", "lost")[: losses - loss]))
    Path(place, "cache.gen").unlink()
    with Cache(place, **SMALL) as cache:
        assert [*cache] == ["first", "kept", "torn"]


def lose_the_last_record_but_one(place: Path, saved: Path) -> None:
    """Have the power fail: the database is as it was saved, and a record of the write buffer is not there."""
    for path in [*place.glob("cache.db*"), place / "cache.gen"]:
        path.unlink()
    for path in saved.glob("cache.db*"):
        shutil.copy(path, place)
    ring = Ring.open(str(place / "cache.buffer"), 1, 0)
    assert ring is not None
    mark = ring.flushed_mark()
    *_, (lost, _), _ = records(ring, mark.flushed, mark.last)
    start = PAGE + lost.offset % ring.capacity
    content_of(ring)[start : start + SMALLEST] = bytes(SMALLEST)
    ring.close()


def test_a_clear_that_fails_hides_nothing(cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["key"] = "old"
    cache.flush()
    cache["key"] = "new"
    with monkeypatch.context() as patch, pytest.raises(DiskFull):
        patch.setattr(WriteBuffer, "_flush_batch", no_room)
        patch.setattr(WriterConnection, "commit", no_room)
        cache.clear()
    assert (cache["key"], other["key"]) == ("new", "new")
    cache._hot.clear()
    assert cache["key"] == "new"


def test_whatever_is_appended_has_room_once_nothing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush, flushes = WriteBuffer.flush, 0

    def counted(buffer: WriteBuffer) -> None:
        nonlocal flushes
        flushes += 1
        assert flushes < 5, "it waits for room for ever"
        flush(buffer)

    monkeypatch.setattr(WriteBuffer, "flush", counted)
    with Cache(tmp_path, write_buffer=LEAST_CAPACITY, disk_min_file_size=1 << 20) as cache:
        dice = random.Random(1)
        for _ in range(2_000):
            flushes = 0
            cache["key"] = bytes(dice.choice((10, dice.randrange(LEAST_CAPACITY), dice.randrange(8_000, 8_200))))


def test_closing_leaves_nothing_to_mend(cache: Cache) -> None:
    cache["key"] = 1
    assert len(cache) == 1
    with Cache(cache.directory, **SMALL) as other:
        cache["another"] = 1
        cache.close()
        header = other._shards.stores[0].shard.header
        assert header[Header.SETTLED] == header[Header.TICK]
        assert len(other) == 2


def test_closing_leaves_nothing_to_mend_where_it_empties_the_trash(tmp_path: Path) -> None:
    clock = Clock()
    with Cache(tmp_path, clock=clock, **SMALL) as other, Cache(tmp_path, clock=clock, **SMALL) as cache:
        cache["key"] = bytes(100_000)
        cache["key"] = bytes(100_001)
        cache.flush()
        clock.now += 2 * GRACE
        cache._shards.stores[0].recovery.trash.sweep()
        clock.now += 2 * GRACE
        cache.close()
        header = other._shards.stores[0].shard.header
        assert header[Header.SETTLED] == header[Header.TICK]
        assert len(list(tmp_path.rglob("*.val"))) == 1


@pytest.mark.parametrize("given", [{"write_buffer": 0}, {"durability": "power"}])
def test_a_handle_that_was_opened_before_there_was_a_buffer_sees_what_waits_there(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with Cache(tmp_path, **given) as first:
        first["key"] = "old"
        assert first["key"] == "old"
        with Cache(tmp_path, write_buffer=SIZE, durability="system") as second:
            second.set_many({"other": 1, "more": 1})
            second["key"] = "new"
            second["more"] = 1
            assert ring_of(second).waiting()
            assert (first["key"], first.get("more"), "more" in first) == ("new", 1, True)
            assert first.get_many(["key", "more"]) == {"key": "new", "more": 1}
            assert len(first) == len(list(first)) == 3
            second["key"] = "newer"
            assert first.get_entry("key").value == "newer"
            assert first.incr("more") == 2
            assert second["more"] == 2


@pytest.mark.parametrize("flushed", [False, True])
def test_a_removal_takes_what_has_expired_and_is_kept(cache: Cache, other: Cache, flushed: bool) -> None:
    clock = [1_700_000_000.0]
    with Cache(cache.directory, clock=lambda: clock[0], **SMALL) as timed:
        timed.get_or_set("key", lambda: "old", expire=10, stale_while_revalidate=100)
        if flushed:
            timed.flush()
        clock[0] += 20
        assert timed.get_entry("key", stale=True).value == "old"
        assert timed.delete("key") is False
        assert timed.get_entry("key", stale=True) is None
        assert other.get_entry("key", stale=True) is None


@pytest.mark.parametrize(("size", "between"), [(100, 151), (1000, 31)])  # as many as a thirtieth of the limit
def test_what_waits_takes_a_small_cache_past_its_limit_by_a_hundredth_at_most(
    tmp_path: Path, size: int, between: int
) -> None:
    limit = 1 << 20
    with Cache(tmp_path, size_limit=limit, write_buffer=1 << 20) as cache:
        for number in range(2 * limit // size):
            cache[number] = bytes([number % 251]) * size
            if number % between == 0:
                assert cache.volume() <= limit * 1.01


def test_a_new_limit_holds_for_what_waits(tmp_path: Path) -> None:
    with Cache(tmp_path, write_buffer=1 << 20) as cache:
        for number in range(100):  # most of them in one call
            cache[number] = bytes(100)
        cache.reset("size_limit", 1 << 20)
        for number in range(1000):
            cache[number] = bytes(100)
            assert ring_of(cache).waiting() <= (1 << 20) // write_buffer.LIMIT_PART + 400


def test_a_new_limit_holds_from_the_next_write_on(cache: Cache) -> None:
    for number in range(2000):
        cache[number] = bytes(200)
    cache.reset("size_limit", 200_000)
    cache["key"] = 1
    assert cache.volume() <= 1.01 * 200_000
    assert cache["key"] == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda cache: cache.flush(),
        lambda cache: cache.set("file", bytes(40_000)),
    ],
)
def test_a_row_that_finds_no_room_when_it_is_flushed_raises_disk_full(cache: Cache, step: Callable[..., Any]) -> None:
    (store,) = cache._shards.stores
    cache["first"] = bytes(3000)
    cache.flush()
    ((pages,),) = store.connection.select("PRAGMA page_count")
    store.connection.open().execute(f"PRAGMA max_page_count = {pages}")
    cache.set("key", bytes(3000), expire=60)
    for _ in range(2):
        with pytest.raises(DiskFull):
            step(cache)
    assert cache["key"] == bytes(3000)
    cache.close()  # leaves it in the file
    assert cache["key"] == bytes(3000)
    cache.flush()
    assert rows_of(cache) == 2


def test_a_record_longer_than_the_ring_has_room_for_goes_to_the_database(cache: Cache) -> None:
    for number in range(20):
        cache["small"] = number
        for size in (SIZE // 4, SIZE // 2, SIZE - 200):  # from any place in the ring
            cache[size] = bytes([number]) * size
    assert cache["small"] == 19
    assert all(cache[size] == bytes([19]) * size for size in (SIZE // 4, SIZE // 2, SIZE - 200))


def test_a_shard_asks_for_the_volume_of_another_without_its_lock(tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "cache", 2, timeout=0, **SMALL) as cache:
        for key in range(8):
            cache[key] = key
        one, other = cache._shards.stores
        header = other.shard.header
        header[Header.RESERVATION] = 0
        held, asked = threading.Event(), threading.Event()

        def hold() -> None:
            with other.locked(None, flushes=False):
                held.set()
                assert asked.wait(60)

        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(hold)
            assert held.wait(60)
            try:
                with one.locked(None):
                    one.quota.left(0)
            finally:
                asked.set()
            holding.result()
        assert header[Header.RESERVATION] != 0  # else it has waited in vain


# -- the append in one call --------------------------------------------------------------------------------------------


@pytest.fixture
def alone(cache: Cache) -> Cache:
    """Return a cache whose next append is one call."""
    cache["first"] = 0
    assert shard_of(cache).appender is not None
    return cache


def shard_of(cache: Cache) -> OpenShard:
    return cache._shards.stores[0].shard


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_comes_to_what_its_records_say(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with Cache(tmp_path, clock=lambda: 1e9, **SMALL) as cache:
        for number in range(1000):
            key = dice.choice(["a", "b", 3, ("spelled", 4), "e" * 100])
            if dice.random() < 0.2:
                cache.delete(key)
            else:
                expire, tags = dice.choice([None, 1e6]), dice.choice([[], ["x", "y"]])
                cache.set(key, dice.randbytes(dice.randrange(200)), expire, tags=tags)
            ring = ring_of(cache)
            if number % 10 == 0 and ring.waiting():
                net: dict[bytes, tuple[int, int]] = {}
                begin, last = ring.words[Word.FLUSHED], ring.words[Word.FLUSHED_LAST] >> 32
                for header, body in records(ring, begin, last):
                    stored = body[: header.key_size]
                    net[stored] = net.get(stored, (header.tick, 0))[0], header.tick
                found, mark = ring.gather(1000)
                assert mark == ring.mark()
                assert {key: newest for key, (_, newest, *_) in found.items()} == {k: v[1] for k, v in net.items()}
                some, _ = ring.gather(2)
                assert list(some) == list(found)[:2]


def test_one_call_does_nothing_where_the_lock_is_taken_or_more_is_due(alone: Cache, other: Cache) -> None:
    shard = shard_of(alone)
    buffer, header = alone._shards.stores[0].writer.buffer, shard.header
    stored, h, _ = alone._rows.locate("key")
    slot = shard.slot_of(h)
    before = shard.slots[slot]

    def append(expected: int = 0) -> int:
        return buffer.append_alone(h, stored, b"record", expected)

    with other._shards.stores[0].locked(None, flushes=False):
        assert append() == 0
    assert append(expected=before + 2) == 0
    for word, value in (
        (Header.WRITTEN, header[Header.VOLUME_DUE] + 1),
        (Header.EPOCH, header[Header.EPOCH] + 1),
        (Header.SETTLED, header[Header.TICK] - 1),
        (Header.CROSS_SHARD, 1),
        (Header.BUFFER, 1),
        (Header.FAIRNESS_CLAIM, 1),
        (Header.NEXT_EXPIRE, 0),
    ):
        kept, header[word] = header[word], value
        assert append() == 0, word
        header[word] = kept
    with alone.transact():
        assert append() == 0
    assert shard.slots[slot] == before
    alone["another"] = 1  # which sets the mark anew after the transaction
    assert append(expected=shard.slots[slot]) == shard.slots[slot] != before


def test_what_looks_beyond_the_record_decides_under_the_lock(alone: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is read from the writing connection, which is another thread's without the lock."""
    shard = shard_of(alone)
    version = Store.version

    def watched(self: Store, home: int, stored_key: bytes) -> int:
        assert shard.lock.is_mine()
        return version(self, home, stored_key)

    monkeypatch.setattr(Store, "version", watched)
    alone.flush()
    assert alone.set("first", 1, if_version=alone.get_entry("first").version)


def test_a_value_file_that_is_replaced_meanwhile_is_not_missing(
    alone: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone["key"] = b"1" * (1 << 17)
    alone["second"] = 2
    reader = alone._shards.stores[0].reader
    select = reader.select

    def replaced(statement: str, parameters: Any = ()) -> list[Any]:
        rows = select(statement, parameters)
        monkeypatch.undo()
        for path in Path(alone.directory).rglob("*.val"):
            path.unlink()
        other["key"] = b"2" * (1 << 17)
        return rows

    monkeypatch.setattr(reader, "select", replaced)
    assert alone.pop("key", "default") == b"2" * (1 << 17)
    assert alone.metrics().missing_files == 0


def test_what_is_hot_is_deleted_without_a_look_at_the_database(
    alone: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone["key"] = 1
    alone.flush()
    with alone.transact():
        alone.push("item")  # the ring has nothing of the key any more
    alone["first"] = alone["second"] = 2
    assert alone["key"] == 1
    with monkeypatch.context() as patched:
        patched.setattr(alone._shards.stores[0].reader, "select", lambda *_: 1 // 0)
        assert alone.delete("key")
    assert other.get("key") is None
    assert not alone.delete("key")
    alone["key"] = 2
    other["key"] = 3
    assert alone.delete("key")
    assert other.get("key") is None
    alone.set("key", 4, expire=1000)
    assert not other.delete("missing")
    assert alone.delete("key")
    assert len(other) == 3


def test_a_decision_on_what_has_changed_since_is_made_again(
    alone: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = alone._shards.stores[0].writer
    newest = writer._newest

    def late(home: int, stored_key: bytes) -> Any:
        found = newest(home, stored_key)
        monkeypatch.undo()
        other["count"] = 41
        return found

    monkeypatch.setattr(writer, "_newest", late)
    assert alone.incr("count", default=None) == 42  # the first look found nothing, which raises KeyError
    monkeypatch.setattr(writer, "_newest", late)
    assert alone.pop("missing") is None


def test_threads_and_processes_append_together(tmp_path: Path) -> None:
    with Crew() as crew:
        workers = crew.start_many(2, count_in_threads, str(tmp_path / "cache"))
        crew.together(workers)
        crew.results(workers)
    with Cache(tmp_path / "cache", **SMALL) as cache:
        assert cache["all"] == 2 * 3 * COUNTS
        assert [cache[f"{worker} {thread}"] for worker in range(2) for thread in range(3)] == [COUNTS - 1] * 6


COUNTS = 300


def count_in_threads(link: Link, number: int, directory: str) -> None:
    with Cache(directory, **SMALL) as cache:
        link.tell()
        link.hear()

        def count(thread: int) -> None:
            for step in range(COUNTS):
                cache.set(f"{number} {thread}", step, retry=True)
                cache.incr("all", retry=True)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(count, range(3)))


@may_be_emptied
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("word", ["RESERVED", "LAST", "HEAD", "FLUSHED", "FLUSHED_LAST", "FLOOR"])
def test_whatever_a_word_says_writes_go_on_and_are_seen(cache: Cache, other: Cache, word: str, alone: bool) -> None:
    for one in (cache, other) if not alone else ():
        in_python(one._shards.stores[0])
    place = getattr(Word, word)
    for bit in range(64):
        cache["key"] = "old"
        cache.flush()
        cache["key"] = "new"
        ring_of(cache).words[place] ^= 1 << bit
        for number in range(3):
            cache["key"] = f"{number} after bit {bit}"
            assert other["key"] == f"{number} after bit {bit}"
        assert len(other) <= 1
        assert other.get("key") in (None, f"2 after bit {bit}"), "what waits is lost where it cannot be told"


@pytest.mark.parametrize("alone", [False, True])
def test_a_table_that_leads_nowhere_hides_no_write(cache: Cache, other: Cache, alone: bool) -> None:
    if not alone:
        in_python(cache._shards.stores[0])
    for entry in (1, SIZE, 1 << 63, (1 << 64) - SIZE, (1 << 64) - 8):
        cache["key"] = "old"
        table = table_of(ring_of(cache))
        for slot in range(len(table)):
            table[slot] = entry
        cache["key"] = "new"
        assert other["key"] == "new"


@may_be_emptied
@pytest.mark.parametrize("alone", [False, True])
def test_a_damaged_link_never_leads_past_a_newer_value(cache: Cache, other: Cache, alone: bool) -> None:
    if not alone:
        in_python(cache._shards.stores[0])
    ring, locate = ring_of(cache), cache._rows.locate
    one, two = next(
        pair
        for pair in itertools.combinations(range(100), 2)
        if len({locate(key)[1] % prime_below(ring.slots) for key in pair}) == 1
    )
    for bit in range(64):
        cache[one] = "old"
        cache.flush()
        cache[one] = "new"
        head = ring.words[Word.HEAD]
        cache[two] = 1
        offset = int.from_bytes(content_of(ring)[PAGE + head % SIZE :][:8], "little")
        at = head if offset == head else (head // SIZE + 1) * SIZE
        content_of(ring)[PAGE + at % SIZE + 24 + bit // 8] ^= 1 << bit % 8
        cache[two] = 2
        assert other.get(one) in ("new", None), bit
        assert other[two] == 2


@pytest.mark.parametrize("number", [0, (1 << 64) - 1])
def test_words_that_are_all_wrong_lose_what_waits_and_nothing_else(cache: Cache, other: Cache, number: int) -> None:
    cache["flushed"] = 1
    cache.flush()
    cache["key"] = 1
    words = ring_of(cache).words
    for place in range(Word.RESERVED, Word.FLOOR + 1):
        words[place] = number
    cache["key"] = 2
    assert other["key"] == cache["key"] == 2
    assert other["flushed"] == 1
    assert sorted(other) == ["flushed", "key"]


def test_a_transaction_that_finds_the_words_wrong_goes_on(cache: Cache, other: Cache) -> None:
    cache["key"] = 1
    words = ring_of(cache).words
    for index in range(len(words)):
        words[index] = 0x0123456789ABCDEF * (index + 1) & (1 << 64) - 1
    with cache.transact():
        cache["key"] = 2
        assert cache.peek() == (None, None)
        assert len(cache) == 1
    assert other["key"] == 2
    cache["key"] = 3
    assert other["key"] == 3


def test_writes_beside_a_restored_database_are_seen(tmp_path: Path) -> None:
    directory, backup = tmp_path / "cache", tmp_path / "backup"
    with Cache(directory, **SMALL) as cache:
        cache["key"] = "backed up"
    shutil.copytree(directory, backup)
    with Cache(directory, **SMALL) as cache:
        for number in range(1000):
            cache["key"] = number
    shutil.copyfile(backup / "cache.db", directory / "cache.db")
    (directory / "cache.gen").unlink()
    with Cache(directory, **SMALL) as cache, Cache(directory, hot_size_limit=0, **SMALL) as other:
        assert other["key"] == "backed up"
        cache["key"] = "anew"
        assert other["key"] == "anew"


@pytest.mark.parametrize("last", [lambda cache: None, lambda cache: cache.set("large", bytes(40_000))])
def test_a_database_restored_beside_a_buffer_is_read_in_one_way(tmp_path: Path, last: Callable[[Cache], Any]) -> None:
    directory, backup = tmp_path / "cache", tmp_path / "backup"
    with Cache(directory, **SMALL) as cache:
        cache["key"], cache["removed"] = "backed up", 1
    shutil.copytree(directory, backup)
    with Cache(directory, **SMALL) as cache:
        cache["key"], cache["added"] = "newer", 2
        del cache["removed"]
        last(cache)
    shutil.copyfile(backup / "cache.db", directory / "cache.db")
    with Cache(directory, hot_size_limit=0, **SMALL) as cache:
        one_by_one = {key: cache[key] for key in ("key", "removed", "added") if key in cache}
        assert {key: cache[key] for key in cache} == one_by_one
        assert len(cache) == len(one_by_one)
        cache.set("large", bytes(40_000))
        del cache["large"]
        assert {key: cache[key] for key in cache} == one_by_one


def test_a_database_that_cannot_be_read_as_the_buffer_is_opened_is_told_as_an_error_of_the_package(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = 1
    copy = shutil.copytree(cache.directory, tmp_path / "copy")
    monkeypatch.setattr(statements, "SELECT_SETTING", "SELECT v FROM missing WHERE 1 = ?")
    with pytest.raises(StorageError, match="no such table"):
        Cache(copy)


def test_a_buffer_that_lost_its_end_is_taken_over_as_far_as_it_goes(cache: Cache, tmp_path: Path) -> None:
    cache["key"] = "old"
    cache.flush()
    cache["key"] = "new"
    copy = shutil.copytree(cache.directory, tmp_path / "copy")
    path = Path(copy, "cache.buffer")
    ring = Ring.open(str(path), 16, SIZE)
    assert ring is not None
    ring.words[Word.FILE] = ring.file  # as if it were the file that the words were made for
    ring.close()
    os.truncate(path, PAGE + SIZE)
    with Cache(copy, **SMALL) as cut:
        assert cut["key"] == "new"


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("key", ["text", ("a", 1), 1.5, frozenset({1, 2})])
def test_a_touch_waits_and_changes_the_metadata_alone(cache: Cache, other: Cache, key: Any, flushed: bool) -> None:
    cache.set(key, "value", expire=1000, tags=["a", "b"])
    before = cache.get_entry(key)
    if flushed:
        other.flush()
    rows = rows_of(cache)
    assert other.touch(key, 50)
    assert cache.retag(key, add=["c"], remove=["a"])
    assert (rows_of(cache), ring_of(cache).waiting() > 0) == (rows, True)
    for _ in range(2):
        for reader in (cache, other):
            entry = reader.get_entry(key)
            assert (entry.value, entry.version, set(entry.tags)) == ("value", before.version, {"b", "c"})
            assert entry.expire_time < before.expire_time - 900
        cache.flush()
    assert list(cache) == [key]
    assert [list(cache.keys(tags=[tag])) for tag in "abc"] == [[], [key], [key]]
    assert cache.set(key, "new", if_version=before.version)
    assert cache.check() == []


@pytest.mark.parametrize("how", ["renamed over", "removed"])
@pytest.mark.parametrize("name", ["cache.lock", "cache.buffer"])
def test_one_file_that_is_replaced_in_use_is_no_directory_that_is_gone(tmp_path: Path, name: str, how: str) -> None:
    with Cache(tmp_path / "cache", **SMALL) as cache:
        cache["key"] = 1
        if how == "removed":
            (tmp_path / "cache" / name).unlink()
        else:
            (tmp_path / "another").write_bytes(bytes(100))
            (tmp_path / "another").rename(tmp_path / "cache" / name)
        cache.flush()
        cache["large"] = bytes(1 << 16)
        assert (cache["key"], len(cache)) == (1, 2)


@pytest.mark.parametrize("remains", [False, True])
def test_a_directory_that_is_replaced_in_use_is_noticed(tmp_path: Path, remains: bool) -> None:
    with Cache(tmp_path / "cache", **SMALL) as cache:
        cache["key"] = 1
        shutil.move(tmp_path / "cache", tmp_path / "moved")
        if remains:
            Cache(tmp_path / "cache", **SMALL).close()
        with pytest.raises(DirectoryError):
            cache.flush()


def test_a_read_that_fails_as_a_transaction_begins_is_not_called_damage(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = 1

    def fail(*_: object) -> None:
        raise corrupt("database disk image is malformed", cache._shards.stores[0].path)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "put_many", fail)
        with pytest.raises(StorageError, match="is sound") as caught, cache.transact():
            pytest.fail("it began")
    assert type(caught.value) is StorageError
    assert cache["key"] == 1
    cache.flush()
    assert rows_of(cache) == 1


def test_a_failure_of_sqlite_is_told_as_one_of_the_package(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set("key", 1, tag="a")

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "put_many", fail)
        with pytest.raises(StorageError):
            cache.flush()
        cache.close()
    assert cache["key"] == 1


@may_be_emptied
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("hot_size_limit", [0, 1 << 20])
def test_what_was_deleted_in_spite_of_damage_stays_deleted(tmp_path: Path, flushed: bool, hot_size_limit: int) -> None:
    with Cache(tmp_path / "cache", hot_size_limit=hot_size_limit, **SMALL) as cache:
        cache["key"] = 1
        assert cache["key"] == 1
        last = PAGE + ring_of(cache).words[Word.HEAD] % SIZE - 8
        if flushed:
            content_of(ring_of(cache))[last] ^= 1  # in the content
            cache["large"] = bytes(SIZE)
        else:
            content_of(ring_of(cache))[last - 80] ^= 1  # in the header
        cache.delete("key")
        assert cache.get("key") is None
        if not flushed:
            content_of(ring_of(cache))[last - 80] ^= 1
        assert cache.get("key") is None


@may_be_emptied
@pytest.mark.parametrize("planted", ["tick", "tick of a row", "tags", "hash", "hash of damage", "hash beyond rowids"])
def test_a_planted_record_that_sqlite_cannot_take_stops_nothing(cache: Cache, other: Cache, planted: str) -> None:
    cache["a"] = 1
    other["b"] = other["c"] = 1  # so that this one flushes it
    ring = ring_of(cache)
    at = PAGE + ring.words[Word.HEAD] % SIZE
    cache.set("key", 1, tag="a" if planted in ("tick of a row", "tags") else None)
    record = bytearray(content_of(ring)[at : PAGE + ring.words[Word.HEAD] % SIZE])
    key_size, v_size, _, tags_size = (unpack_from("<i", record, place)[0] for place in (40, 48, 52, 56))
    size = SMALLEST + key_size + v_size + max(tags_size, 0)
    if planted == "tags":
        record[size - 1] = 255  # the last byte of the tags
    elif "hash" in planted:
        pack_into("<Q", record, 16, 1 << 63 if planted == "hash beyond rowids" else (1 << 63) - 1)
    else:
        pack_into("<Q", record, 8, (1 << 64) - 1)
        pack_into("<Q", record, 32, (1 << 64) - 1)  # the version
    pack_into("<I", record, 76, crc32(record[SMALLEST:size]) ^ (planted == "hash of damage"))
    pack_into("<I", record, 84, crc32(record[:84]))
    content_of(ring)[at : at + len(record)] = record
    ring.words[Word.LAST] = crc32(record[:84]) << 32 | ring.words[Word.HEAD] & 0xFFFFFFFF
    assert other.get("key") in (None, 1)
    other.flush()
    other["more"] = 2
    assert cache["more"] == 2
    assert "more" in set(cache)


# -- beside the rest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "let_go", [Cache.delete, Cache.pop, lambda cache, key: cache.set(key, 1), lambda cache, key: cache.incr("n")]
)
def test_a_file_goes_soon_though_its_removal_waits(tmp_path: Path, clock: Clock, let_go: Callable[..., Any]) -> None:
    """Whoever writes on in a cache with files has the trash looked into, once the grace is over."""
    with Cache(tmp_path, clock=clock, **SMALL) as cache:
        cache.set("large", b"x" * 100_000)
        for _ in range(3):
            clock.advance(GRACE + 1)
            cache["n"] = 1  # sweeps, and finds nothing
        let_go(cache, "large")
        is_kept = "large" in cache and cache["large"] != 1
        for number in range(4):
            clock.advance(GRACE + 1)
            cache["n"] = number
        assert [path.exists() for path in tmp_path.rglob("*.val")] == [True] * is_kept


@pytest.mark.parametrize("strict", [False, True])
def test_damage_that_waits_is_counted_or_raised(tmp_path: Path, strict: bool) -> None:
    with Cache(tmp_path, strict=strict, hot_size_limit=0, **SMALL) as cache:
        cache["first"] = 1
        head = ring_of(cache).words[Word.HEAD]
        cache.set("key", "value", tag="tag")
        content_of(ring_of(cache))[PAGE + head % SIZE + SMALLEST + 5] ^= 1
        reads: list[Callable[[], Any]] = [lambda: cache.get("key"), lambda: cache.get_many(["key"]).get("key")]
        for read in reads:
            if strict:
                with pytest.raises(DecodeError, match="'key'"):
                    read()
            else:
                assert read() is None
        assert cache.metrics().damaged == 2
        assert cache["first"] == 1


def test_a_cache_that_damage_empties_says_so(cache: Cache) -> None:
    cache["flushed"] = 1
    cache.flush()
    head = ring_of(cache).words[Word.HEAD]
    cache["waits"] = 2
    content_of(ring_of(cache))[PAGE + head % SIZE + 10] ^= 1
    with pytest.warns(CorruptDatabaseWarning, match="every entry was removed"):
        cache.flush()
    assert len(cache) == 0


def test_a_handle_that_removes_nothing_appends_in_one_call(tmp_path: Path) -> None:
    with Cache(tmp_path, cull_limit=0, **SMALL) as cache:
        cache["key"] = 1
        cache.set("expires", 1, expire=0)
        h, stored = cache._rows.locate("key")[1], cache._rows.locate("key")[0]
        assert cache._shards.stores[0].writer.buffer.append_alone(h, stored, b"record")


def test_a_record_that_would_break_a_small_limit_does_not_wait(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=256 << 10, **SMALL) as cache:
        cache["small"] = 1
        assert ring_of(cache).waiting()
        cache["large"] = b"x" * 4000
        assert not ring_of(cache).waiting()


@pytest.mark.parametrize("is_there", [True, False])
def test_keys_of_one_hash_are_told_apart_where_one_waits(tmp_path: Path, is_there: bool) -> None:
    with Cache(tmp_path, hot_size_limit=0, **SMALL) as cache:
        cache._rows.modulus = 1
        cache["a"] = "old"
        if is_there:
            cache["b"] = "other"
        cache.flush()
        for value in ("new", None):
            if value is None:
                del cache["a"]
            else:
                cache["a"] = value
            expected = {"a": value} if value else {}
            expected |= {"b": "other"} if is_there else {}
            assert cache.get_many(["a", "b"]) == cache.get_many(["b", "a"]) == expected


def test_who_could_not_follow_to_a_buffer_tries_again(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = "waits"
    shard = shard_of(cache)
    number = shard.header[Header.BUFFER]

    def refuse(*_: object) -> None:
        shard.header[Header.BUFFER] = number  # whoever took it over has ended
        raise Timeout("the lock is taken")

    shard.header[Header.BUFFER] = 0
    with monkeypatch.context() as patched:
        patched.setattr(opener, "open_ring", refuse)
        with pytest.raises(Timeout):
            cache.set_many({"key": 1, "other": 1})
    cache.set_many({"key": 2, "other": 2})
    assert other["key"] == cache["key"] == 2
    assert cache.check() == []


def test_a_write_that_may_not_block_keeps_the_count(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an event loop, where the write is made again in a thread."""

    def refuse() -> None:
        raise WouldBlock

    with Cache(tmp_path, clock=clock, **SMALL) as cache:
        cache.set("soon", 1, expire=1)
        assert len(cache) == 1
        cache["key"] = 1
        clock.advance(2)
        with monkeypatch.context() as patched:
            patched.setattr(write_buffer, "may_block", refuse)
            with pytest.raises(WouldBlock):
                cache["key"] = 2
        assert shard_of(cache).header[Header.COUNT] == 1
        cache["key"] = 3
        assert (len(cache), cache.check()) == (1, [])


# -- opened while others change what there is ----------------------------------------------------------------------------


def in_another_process(program: str, directory: Path) -> None:
    """Run a program that has a cache here and ends as if it were killed."""
    text = f"import os, sys\nfrom diskcache_like import Cache\ncache = Cache(sys.argv[1], **{SMALL!r})\n{program}\nos._exit(0)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", text, str(directory)], check=True, timeout=60)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_who_opens_without_a_buffer_follows_to_one_that_is_begun_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    real = opener.open_ring

    def raced(*arguments: Any) -> Any:
        monkeypatch.setattr(opener, "open_ring", real)
        found = real(*arguments) if moment == "after" else None
        in_another_process("cache['key'] = 'waits'", tmp_path)
        return found or real(*arguments)

    with Cache(tmp_path, write_buffer=0):
        pass
    monkeypatch.setattr(opener, "open_ring", raced)
    with Cache(tmp_path, write_buffer=0) as cache, Cache(tmp_path, hot_size_limit=0, **SMALL) as other:
        assert cache.get("key") == "waits"
        cache["key"] = "newer"
        assert other["key"] == "newer"
        other.flush()
        assert other["key"] == cache["key"] == "newer"


def test_who_opens_while_the_database_is_replaced_leaves_what_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        cache["key"] = "old"
    (tmp_path / "cache.buffer").unlink()  # so that the next one has to begin another
    with Cache(tmp_path, write_buffer=0):
        pass
    real = opener.open_ring

    def raced(*arguments: Any) -> Any:
        monkeypatch.setattr(opener, "open_ring", real)
        (tmp_path / "cache.db").write_bytes(b"garbage" * 1000)
        in_another_process("cache['key'] = 'waits'", tmp_path)
        return real(*arguments)

    monkeypatch.setattr(opener, "open_ring", raced)
    with Cache(tmp_path, **SMALL) as cache:
        assert cache.get("key") == "waits"
        assert (len(cache), cache.check()) == (1, [])


def test_a_read_that_is_overtaken_by_a_thread_which_follows_uses_the_next_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, hot_size_limit=0, **SMALL) as cache:
        cache["key"] = "old"
        cache.flush()
        shard = shard_of(cache)

        def replace(*_: object) -> None:
            """Do what two other threads do while this one looks into the ring: replace the database, and go there."""
            monkeypatch.undo()
            wanted = replacement.Next(shard.epoch, shard.settings, shard.identity)
            shard.lock.acquire(1)
            with pytest.warns(CorruptDatabaseWarning):
                replacement.make_next(
                    shard.directory, shard.config, shard.generations, CorruptDatabase("it is damaged"), wanted
                )
            shard.lock.release()
            shard.reopen()

        monkeypatch.setattr(ring_of(cache), "read", replace)
        assert cache.get("key") is None
        assert shard.epoch == 1, "it was replaced"


def test_who_finds_the_shard_made_under_the_lock_settles_no_slot_of_a_writer(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one that died in an append, which the next writer ends first."""
    slots = shard_of(cache).slots
    slots[3] |= 1
    real, made_by_another = opener._existing, [None]
    monkeypatch.setattr(opener, "_existing", lambda *given: made_by_another.pop() if made_by_another else real(*given))
    with Cache(cache.directory, **SMALL) as second:
        assert second.get("key") is None
        assert slots[3] & 1
    slots[3] += 1


# -- a signal handler in the middle of a flush ------------------------------------------------------------------------


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Return what has a function called, as a signal handler would, in the middle of each flush."""

    def interrupt(handler: Callable[[], Any]) -> None:
        write = WriteBuffer._write

        def interrupted(self: WriteBuffer, net: Any) -> None:
            handler()
            write(self, net)

        monkeypatch.setattr(WriteBuffer, "_write", interrupted)

    return interrupt


@pytest.mark.parametrize(
    "read",
    [
        Cache.get,
        Cache.__getitem__,
        lambda cache, key: cache.get_entry(key).value,
        lambda cache, key: cache.get_many([key])[key],
    ],
)
def test_a_handler_that_interrupts_a_flush_reads_what_waits(
    cache: Cache, other: Cache, interrupt: Callable[..., None], read: Callable[[Cache, str], Any]
) -> None:
    cache["key"] = "old"
    cache.flush()
    other["key"] = "new"
    cache._hot.clear()
    seen: list[Any] = []
    interrupt(lambda: seen.append(read(cache, "key")))
    cache.flush()
    assert seen == ["new"]
    assert cache["key"] == "new"


@pytest.mark.parametrize("look", [len, list, Cache.volume, lambda cache: list(cache.keys(tags=["a"]))])
def test_a_handler_that_interrupts_a_write_is_refused_what_needs_the_rows(
    cache: Cache, other: Cache, interrupt: Callable[..., None], look: Callable[[Cache], Any]
) -> None:
    """They would be without what waits."""
    other.set("key", "new", tag="a")
    refused: list[BaseException] = []

    def handler() -> None:
        with pytest.raises(TransactionError, match="signal handler") as error:
            look(cache)
        refused.append(error.value)

    interrupt(handler)
    cache.flush()
    assert len(refused) == 1
    assert look(cache)


# -- the count of entries ---------------------------------------------------------------------------------------------


def set_some(cache: Cache) -> None:
    for key in range(3):
        cache.set(key, key, expire=1000)


def test_what_is_overwritten_after_a_clear_of_many_is_not_counted_again(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_removal, "MANY", 0)
    cache["key"] = 1
    cache.clear()
    set_some(other)
    assert len(other) == 3
    set_some(cache)
    assert (len(cache), cache.check()) == (3, [])


def test_what_is_overwritten_after_an_interrupted_flush_is_not_counted_again(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = WriterConnection.execute_many

    def interrupted(self: WriterConnection, statement: str, rows: Any) -> Any:
        done = real(self, statement, rows)
        if statement == statements.UPSERT_RECORD:
            raise KeyboardInterrupt
        return done

    for key in range(9):
        cache[f"plain {key}"] = key
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(WriterConnection, "execute_many", interrupted)
        cache.flush()
    other.flush()
    set_some(other)
    assert len(other) == 12
    set_some(cache)
    assert (len(cache), cache.check()) == (12, [])


# -- rows that are there ----------------------------------------------------------------------------------------------


def touch_all(cache: Cache, keys: int = 4) -> None:
    """Give entries another expiry until the handle expects that rows are there."""
    for _ in range(3):
        for key in range(keys):
            cache.set(key, key, expire=2000)
            assert cache.touch(key, 1000)
        cache.flush()


def test_new_expiries_of_rows_that_are_there_are_written_without_the_columns_that_stay(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, used = WriterConnection.execute_many, list[str]()

    def watched(self: WriterConnection, statement: str, rows: Any) -> Any:
        used.append(statement)
        return real(self, statement, rows)

    touch_all(cache)
    monkeypatch.setattr(WriterConnection, "execute_many", watched)
    for key in range(4):
        cache.touch(key, 3000)
    cache.flush()
    assert used == [statements.UPDATE_EXPIRING]
    found = [cache.get(key, expire_time=True) for key in range(4)]
    assert [value for value, _ in found] == [0, 1, 2, 3]
    expiries = [expiry or 0.0 for _, expiry in found]
    assert (cache.expire(now=expiries[0] - 1), cache.expire(now=expiries[3] + 1), cache.check()) == (0, 4, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.set("new", 1, expire=1000),
        lambda cache: cache.set("new", 1),
        lambda cache: cache.set(1, 1),
        lambda cache: cache.set(1, 1, tag="other"),
        lambda cache: cache.retag(3, remove=["tag"]),
        lambda cache: cache.set("large", 1, expire=1000),
        lambda cache: cache.namespace("space").touch("key", 2000),
        lambda cache: cache.push("second", expire=1000),
    ],
    ids=["new", "new and plain", "plain", "tag", "no tag", "file", "namespace", "queue"],
)
def test_what_has_other_columns_is_flushed_all_the_same(
    cache: Cache, other: Cache, change: Callable[[Cache], object]
) -> None:
    cache.set("large", b"l" * 100_000)
    cache.namespace("space").set("key", 1, expire=1000)
    cache.push("first")
    touch_all(cache)
    cache.set(3, 3, tag="tag")
    cache.flush()
    touch_all(cache, 3)
    cache.touch(0, 3000)
    change(cache)
    before = {key: other.get(key, expire_time=True, tag=True) for key in (*range(4), "new", "large")}
    assert before[0][1] is not None
    ring = cache._shards.stores[0].shard.ring
    assert ring is not None
    assert ring.waiting()
    cache.flush()
    for handle in (cache, other):
        assert {key: handle.get(key, expire_time=True, tag=True) for key in before} == before
        assert (handle.check(), handle.count(["tag"]), handle.count(["other"])) == (
            [],
            *(sum(tag == each for *_, tag in before.values()) for each in ("tag", "other")),
        )
        assert list(handle.namespace("space")) == ["key"]
    queued = len(list(cache.iterqueue()))
    assert [cache.pull()[1] for _ in range(queued)] == ["first", "second"][:queued]


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1.0, 1)])
def test_a_key_that_is_spelled_in_another_way_is_flushed_so(cache: Cache, first: float, second: float) -> None:
    for key in (first, first, second):
        cache.set(key, "value", expire=1000)
        cache.flush()
    assert repr(list(cache)) == repr([second])


# -- who dies between two stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"write_buffer": 0}, {"durability": "power"}])
def test_a_handle_without_a_buffer_sees_what_waits_while_it_is_begun_anew(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        cache["first"] = cache["key"] = "waits"
        write_buffer.BATCH = 1
        Ring.flushed = die  # type: ignore[method-assign,assignment]
        cache.flush()
        return cache

    def begin() -> Cache:
        opener.take_over = die  # type: ignore[assignment]
        return Cache(tmp_path, **SMALL)

    with Cache(tmp_path, **given) as first:
        first["key"] = "old"
        killed(work)
        killed(begin)
        assert first["key"] == "waits"
        first["key"] = "newer"
        with Cache(tmp_path, **SMALL) as second:
            assert second["key"] == "newer"


@pytest.mark.parametrize("word", ["FLOOR", "FLUSHED_LAST", "LAST", "FLUSHED"])
def test_whoever_is_killed_as_a_clear_forgets_what_waited_has_cleared_it(tmp_path: Path, word: str) -> None:
    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        cache["flushed"] = 1
        cache.flush()
        cache["waits"] = 2
        drop = Ring.drop

        def dying(self: Ring, mark: Mark) -> None:
            self.words = DyingAfter(self.words, getattr(Word, word))  # type: ignore[assignment]
            drop(self, mark)

        Ring.drop = dying  # type: ignore[method-assign]
        cache._shards.stores[0].writer.buffer.discard()
        return cache

    with Cache(tmp_path, **SMALL) as cache:
        killed(work)
        cache["another"] = 3
        assert [cache.get(key) for key in ("flushed", "waits", "another")] == [None, None, 3]
        assert (len(cache), list(cache), cache.check()) == (1, ["another"], [])


def test_values_are_compressed_while_others_wait(tmp_path: Path) -> None:
    with ExitStack() as stack:
        caches = [stack.enter_context(Cache(tmp_path, compressor="zstd", **SMALL)) for _ in range(5)]
        for count, cache in enumerate(caches):
            assert cache.incr("large", 10**1000) == 10**1000 * (count + 1)


# -- closing ----------------------------------------------------------------------------------------------------------


def _connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the databases that are opened for writing from now on."""
    opened, connect = list[str](), connect_writer

    def counting(path: str, settings: dict[str, Any], timeout: float) -> sqlite3.Connection:
        opened.append(path)
        return connect(path, settings, timeout)

    monkeypatch.setattr(writer_connection, "connect_writer", counting)
    return opened


def test_the_last_handle_to_close_flushes_what_waits(cache: Cache, other: Cache) -> None:
    cache["key"] = 1
    cache.close()
    assert rows_of(other) == 0
    assert other["key"] == 1
    other.close()
    assert rows_of(cache) == 1


def test_what_the_last_handle_cannot_flush_since_it_is_killed_waits_for_the_next_one(tmp_path: Path) -> None:
    with Crew() as crew:
        with Cache(tmp_path) as cache:
            worker = crew.start(_opened_and_kept, tmp_path)
            worker.hear()
            cache["key"] = 1
        assert rows_of(cache) == 0
        worker.kill()
        worker.join()
    with Cache(tmp_path) as cache:
        assert cache["key"] == 1
    assert rows_of(cache) == 1


def _opened_and_kept(link: Link, directory: Path) -> None:
    with Cache(directory) as cache:
        link.tell(cache.get("key"))
        link.hear()


def test_a_handle_that_closes_is_gone_before_it_releases_the_lock(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, seen = WriteLock.release_and_close, list[bool]()

    def watched(lock: WriteLock, before: Callable[[], object]) -> None:
        seen.append(other._shards.stores[0].shard.byte_locks.are_shared())
        release(lock, before)

    with monkeypatch.context() as patch:
        patch.setattr(WriteLock, "release_and_close", watched)
        cache.close()
    assert seen == [False]


def test_a_handle_that_cannot_be_opened_again_is_none_that_is_open(
    cache: Cache, other: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = 1
    other.close()
    with monkeypatch.context() as patch:
        patch.setattr(OpenShard, "_use", no_room)
        with pytest.raises(DiskFull):
            other.get("key")
    cache.close()
    assert rows_of(cache) == 1


def test_who_computes_in_a_handler_that_interrupts_closing_waits_for_nobody(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, begun = OpenShard._close_connections, list[float]()

    def interrupted(shard: OpenShard) -> None:
        with pytest.raises(TransactionError):
            cache.get_or_set("key", lambda: 1)
        begun.append(1)
        close(shard)

    monkeypatch.setattr(AtomicKey, "sleep", lambda *_: pytest.fail("it sleeps"))
    monkeypatch.setattr(OpenShard, "_close_connections", interrupted)
    cache.close()
    assert begun


@pytest.mark.parametrize("opens", [True, False])
def test_who_writes_in_a_handler_that_interrupts_an_opening_under_the_lock_is_refused(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    believed, begin, refused = opener._is_believed, opener._begun, list[str]()

    def interrupted(ring: Ring, *rest: Any) -> Ring | None:
        monkeypatch.setattr(opener, "_begun", begin)
        if opens:  # the ring that a handler meets is as the interrupted opening found it, or whole by now
            monkeypatch.setattr(opener, "_is_believed", believed)
        with pytest.raises(TransactionError, match="is being opened"):
            cache.set("key", 1, retry=True)
        refused.append("set")
        return begin(ring, *rest)

    cache.close()
    monkeypatch.setattr(opener, "_is_believed", lambda *given: bool(refused) and believed(*given))
    monkeypatch.setattr(opener, "_begun", interrupted)
    cache["key"] = 2
    assert refused
    assert cache["key"] == 2


def test_of_handles_that_close_at_once_one_flushes(tmp_path: Path) -> None:
    number = 4
    start = threading.Barrier(number)

    def close(cache: Cache) -> None:
        start.wait()
        cache.close()

    with ThreadPoolExecutor(number) as pool:
        for turn in range(20):
            caches = [FanoutCache(tmp_path, shards=2) for _ in range(number)]
            for index, cache in enumerate(caches):
                cache[turn, index] = turn
            list(pool.map(close, caches))
            sizes = [_rows_in(tmp_path / f"00{shard}") for shard in range(2)]
            assert sum(sizes) == number * (turn + 1)


def _close_writer(cache: Cache) -> None:
    """Close the connection for writing, as if none had been opened yet."""
    cache._shards.stores[0].connection.close()


def test_closing_flushes_over_the_connection_that_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 0
    opened = _connects(monkeypatch)
    with Cache(tmp_path) as cache:
        assert cache["key"] == 0
        cache["key"] = 1
        opened.clear()  # with the first write it has looked after the limit
        _close_writer(cache)
    assert not opened
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (1,)


def test_closing_opens_the_database_again_where_the_reader_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 0
    opened = _connects(monkeypatch)
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        opened.clear()
        _close_writer(cache)
        cache._shards.stores[0].shard.pool.free[0].execute("PRAGMA query_only = ON")
    assert len(opened) == 1
    with Cache(tmp_path) as cache:
        assert cache["key"] == 1
        assert cache.check() == []
