"""Where this package deliberately differs from DiskCache 5.6.3 at work: waiting, processes, writes and handles.

Each test shows both sides if DiskCache is installed; `test_differences` has those about values, keys and room.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sqlite3
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diskcache_like import (
    Cache,
    DirectoryError,
    EmptyDirWarning,
    FanoutCache,
    JSONDisk,
    Timeout,
    TransactionError,
    ValueEncodeError,
)

from ..support.cache_kinds import QUICK, Clock
from ..support.leaks import open_descriptors

BIG = "x" * 50_000


# -- waiting ------------------------------------------------------------------------------------------------------


def test_opening_does_not_wait_for_a_writer(cache: Cache, clock: Clock) -> None:
    cache["key"] = "before"
    with cache.transact():
        cache["key"] = "after"
        other = Cache(cache.directory, timeout=0, clock=clock)
        assert other["key"] == "before"
        with pytest.raises(Timeout):
            other.set("key", "other")
    with other:
        assert cache["key"] == other["key"] == "after"


def test_opening_honours_its_timeout_where_it_has_to_wait(tmp_path: Path) -> None:
    with Cache(tmp_path) as holder:
        store = holder._shards.stores[0]
        store.session.lock.acquire(0)
        try:
            (tmp_path / "cache.gen").unlink()  # so that opening has to write
            with pytest.raises(Timeout):
                Cache(tmp_path, timeout=0)
        finally:
            store.session.lock.release()


def test_retry_waits_for_the_lock_and_for_nothing_else(cache: Cache) -> None:
    cache = Cache(cache.directory, write_buffer=0)
    cache["key"] = 1
    cache._shards.stores[0].connection.open().execute("PRAGMA query_only = ON")
    for write in (
        lambda: cache.set("key", BIG, retry=True),
        lambda: cache.delete("key", retry=True),
        lambda: cache.incr("key", retry=True),
        lambda: cache.__setitem__("key", 2),
    ):
        with pytest.raises(DirectoryError, match="readonly"):
            write()
    cache.close()
    assert cache.incr("key") == 2


# -- processes, threads and tasks ---------------------------------------------------------------------------------


def test_a_child_forked_while_threads_write_can_use_the_cache(tmp_path: Path) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        cache["counter"] = 0
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                cache["noise"] = BIG

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a child that hangs is killed
                try:
                    cache.incr("counter", retry=True)
                    cache.close()
                finally:
                    os._exit(0)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        stop.set()
        for thread in threads:
            thread.join()
        assert codes == [0] * 5
        assert cache["counter"] == 5


def descriptors_for_threads(cache: Any, number: int) -> int:
    """Return how many descriptors are open once so many threads have used the cache and are still there."""
    barrier = threading.Barrier(number + 1)

    def work() -> None:
        cache.set(threading.get_ident(), 1)
        cache.get(threading.get_ident())
        barrier.wait(60)
        barrier.wait(60)

    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    barrier.wait(60)
    count = sum(cache.directory in name for name in open_descriptors().values())
    barrier.wait(60)
    for thread in threads:
        thread.join()
    return count


def test_threads_share_a_bounded_number_of_descriptors(cache: Cache) -> None:
    assert descriptors_for_threads(cache, 50) <= 40


def test_each_thread_has_descriptors_of_its_own_in_diskcache(theirs: Any) -> None:
    assert descriptors_for_threads(theirs, 30) > 40


def test_tasks_do_not_join_each_others_transaction(cache: Cache) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def owner() -> None:
            with cache.transact():
                cache["owner"] = 1
                inside.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                raise RuntimeError("roll back")

        async def other() -> None:
            await inside.wait()
            with pytest.raises(TransactionError, match="task"):
                cache["other"] = 1

        results = await asyncio.gather(owner(), other(), return_exceptions=True)
        assert [type(result) for result in results] == [RuntimeError, type(None)]

    asyncio.run(main())
    assert list(cache) == []


def test_tasks_join_each_others_transaction_in_diskcache(theirs: Any) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def owner() -> None:
            with theirs.transact():
                inside.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                raise RuntimeError("roll back")

        async def other() -> None:
            await inside.wait()
            theirs["other"] = "acknowledged"

        await asyncio.gather(owner(), other(), return_exceptions=True)

    asyncio.run(main())
    assert theirs.get("other") is None, "acknowledged, and rolled back by a stranger"


# -- writes -------------------------------------------------------------------------------------------------------


def value_files(cache: Any) -> list[Path]:
    return list(Path(cache.directory).rglob("*.val"))


def test_a_failed_write_leaves_no_file(cache: Cache) -> None:
    cache.reset("disk_min_file_size", 1000)
    with pytest.raises(ValueEncodeError):
        cache.set("key", [BIG, lambda: None])
    with pytest.raises(TypeError):
        cache.set("key", BIG, tag=lambda: None)
    cache._shards.stores[0].connection.open().execute("PRAGMA query_only = ON")
    for write in (
        lambda: cache.set("key", BIG),
        lambda: cache.add("key", BIG),
        lambda: cache.incr("key", 10**4000),
        lambda: cache.push(BIG),
        lambda: cache.set_many({1: BIG, 2: BIG}),
    ):
        with pytest.raises(DirectoryError):
            write()
    assert value_files(cache) == []
    cache.close()


def test_a_failed_write_leaves_its_file_in_diskcache(theirs: Any) -> None:
    with pytest.raises(sqlite3.Error):
        theirs.set("key", BIG, tag=object())
    assert len(value_files(theirs)) == 1


@pytest.mark.parametrize("setting", ["least-recently-used", "least-frequently-used", "statistics"])
def test_a_read_writes_nothing_to_the_disk(tmp_path: Path, setting: str) -> None:
    settings = {"statistics": 1} if setting == "statistics" else {"eviction_policy": setting}
    with Cache(tmp_path, **settings) as cache:
        cache["key"] = cache["other"] = 1
        cache.flush()
        written = (tmp_path / "cache.db-wal").stat().st_size
        with Cache(tmp_path, timeout=0, **settings) as other, cache.transact():  # nor does it need the lock
            for _ in range(20):
                assert (cache["key"], other["key"], other.get("missing")) == (1, 1, None)
        assert (tmp_path / "cache.db-wal").stat().st_size == written


@pytest.mark.parametrize("setting", ["least-recently-used", "least-frequently-used", "statistics"])
def test_a_read_writes_to_the_disk_in_diskcache(diskcache: ModuleType, tmp_path: Path, setting: str) -> None:
    settings = {"statistics": 1} if setting == "statistics" else {"eviction_policy": setting}
    with diskcache.Cache(tmp_path, **settings) as cache:
        cache["key"] = 1
        written = (tmp_path / "cache.db-wal").stat().st_size
        for _ in range(20):
            assert cache["key"] == 1
        assert (tmp_path / "cache.db-wal").stat().st_size > written


# -- handles ------------------------------------------------------------------------------------------------------


def test_a_pickled_fanout_cache_keeps_its_limits(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, size_limit=40_000_000) as cache, pickle.loads(pickle.dumps(cache)) as copy:
        assert copy.size_limit == cache.size_limit == 40_000_000


def test_a_pickled_fanout_cache_forgets_its_limits_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path, shards=2, size_limit=40_000_000) as cache:
        limit = cache.size_limit
        with pickle.loads(pickle.dumps(cache)) as copy:
            assert copy.size_limit != limit


def test_a_named_cache_has_the_disk_that_was_asked_for(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        assert type(cache.cache("name", disk=JSONDisk).disk) is JSONDisk


def test_a_named_cache_ignores_the_disk_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path, shards=2) as cache:
        named = cache.cache("name", disk=diskcache.JSONDisk)
        assert type(named.disk) is diskcache.Disk
        named.close()


def findings(cache: Any) -> list[type[Warning]]:
    Path(cache.directory, "empty").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [problem.category for problem in cache.check()]


def test_check_tells_whatever_the_warning_filters_say(cache: Cache) -> None:
    assert findings(cache) == [EmptyDirWarning]
    cache.check(fix=True)


def test_check_is_silent_under_ignore_in_diskcache(theirs: Any) -> None:
    assert findings(theirs) == []
