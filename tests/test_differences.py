"""Where this package deliberately differs from DiskCache 5.6.3; each test shows both sides if DiskCache is installed."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diskcache_like import (
    Cache,
    DirectoryError,
    Disk,
    EmptyDirWarning,
    FanoutCache,
    JSONDisk,
    Lock,
    NotOwner,
    Timeout,
    TransactionError,
    ValueEncodeError,
    ValueTooLarge,
)

from .kinds import QUICK, Clock

BIG = "x" * 50_000


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> Iterator[Cache]:
    with Cache(tmp_path / "ours", clock=clock, **QUICK) as cache:
        yield cache
        assert [str(problem.message) for problem in cache.check()] == []


@pytest.fixture
def diskcache() -> ModuleType:
    """Return DiskCache, for the half of a test that shows what it does."""
    module = pytest.importorskip("diskcache")
    assert isinstance(module, ModuleType)
    return module


@pytest.fixture
def theirs(diskcache: ModuleType, tmp_path: Path) -> Iterator[Any]:
    with diskcache.Cache(tmp_path / "theirs") as cache:
        yield cache


# -- values -------------------------------------------------------------------------------------------------------


def test_long_text_keeps_its_carriage_returns(cache: Cache) -> None:
    text = "line\r\nline\rline\n" * 7_000
    cache["text"] = text
    cache.close()
    assert cache["text"] == text


def test_long_text_loses_its_carriage_returns_in_diskcache(theirs: Any) -> None:
    theirs["text"] = "\r\n" * 50_000
    assert theirs["text"] == "\n" * 50_000


def test_a_value_file_replaced_under_a_reader_is_no_miss(tmp_path: Path) -> None:
    class Racing(Disk):
        codec = Disk.codec
        before_load: Callable[[], object] | None = None

        def load(self, record: Any, read: bool) -> Any:
            race, Racing.before_load = Racing.before_load, None
            if race is not None:
                race()
            return super().load(record, read)

    def replace() -> None:
        other["key"] = "b" * 50_000
        assert other.check(fix=True) == []  # unlinks the file whose row the reader has

    with Cache(tmp_path, disk=Racing, hot_size_limit=0) as cache, Cache(tmp_path, disk=Racing) as other:
        cache["key"] = "a" * 50_000
        Racing.before_load = replace
        assert cache.get("key") == "b" * 50_000
        assert Racing.before_load is None


def test_a_value_file_replaced_under_a_reader_is_a_miss_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    class Racing(diskcache.Disk):  # type: ignore[misc,name-defined]
        before_fetch: Callable[[], object] | None = None

        def fetch(self, *arguments: Any) -> Any:
            race, Racing.before_fetch = Racing.before_fetch, None
            if race is not None:
                race()
            return super().fetch(*arguments)

    with diskcache.Cache(tmp_path, disk=Racing) as cache:
        cache["key"] = "a" * 50_000
        Racing.before_fetch = lambda: cache.set("key", "b" * 50_000)
        assert cache.get("key") is None


# -- memoize ------------------------------------------------------------------------------------------------------


def two_lambdas(cache: Any) -> list[int]:
    plus, minus = cache.memoize()(lambda number: number + 1), cache.memoize()(lambda number: number - 1)
    return [plus(5), minus(5)]


def nested_functions(cache: Any) -> list[int]:
    def make(factor: int) -> Callable[[int], int]:
        @cache.memoize()
        def scaled(number: int) -> int:
            return factor * number

        return scaled  # type: ignore[no-any-return]

    return [make(2)(5), make(3)(5)]


def test_functions_of_one_name_do_not_share_results(cache: Cache) -> None:
    assert two_lambdas(cache) == [6, 4]
    assert nested_functions(cache) == [10, 15]


def test_functions_of_one_name_share_results_in_diskcache(theirs: Any) -> None:
    assert two_lambdas(theirs) == [6, 6]
    assert nested_functions(theirs) == [10, 10]


def positional_and_named(cache: Any) -> list[str]:
    @cache.memoize()
    def show(*args: Any, **kwargs: Any) -> str:
        return repr((args, kwargs))

    return [show(1, None, "x"), show(1, x=None)]


def test_positional_and_named_arguments_do_not_collide(cache: Cache) -> None:
    assert positional_and_named(cache) == ["((1, None, 'x'), {})", "((1,), {'x': None})"]


def test_positional_and_named_arguments_collide_in_diskcache(theirs: Any) -> None:
    assert positional_and_named(theirs) == ["((1, None, 'x'), {})"] * 2


def calls_that_bind_alike(cache: Any) -> int:
    calls = []

    @cache.memoize()
    def add(x: int, y: int = 2) -> int:
        calls.append((x, y))
        return x + y

    assert [add(1), add(1, 2), add(x=1), add(y=2, x=1)] == [3, 3, 3, 3]
    return len(calls)


def test_calls_that_bind_alike_are_one_entry(cache: Cache) -> None:
    assert calls_that_bind_alike(cache) == 1


def test_calls_that_bind_alike_are_several_entries_in_diskcache(theirs: Any) -> None:
    assert calls_that_bind_alike(theirs) == 4


def test_ignore_takes_positions_and_names_however_the_argument_is_given(cache: Cache) -> None:
    calls = []

    @cache.memoize(ignore={"log", 2})
    def work(number: int, log: object = None, debug: bool = False) -> int:
        calls.append(number)
        return number

    assert work(1) == work(1, "log") == work(1, log="log") == work(1, None, True) == work(1, debug=True) == 1
    assert len(calls) == 1


def test_a_key_function_makes_the_key(cache: Cache) -> None:
    first = cache.memoize(key=lambda row: row["id"])(lambda row: row["value"])
    assert first({"id": 1, "value": "a"}) == first({"id": 1, "value": "b"}) == "a"


# -- keys ---------------------------------------------------------------------------------------------------------


def equal_keys() -> list[tuple[Any, Any]]:
    text, same = "text" * 5, "".join(["text"] * 5)
    return [
        ((text, text), (text, same)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (frozenset([0, 8]), frozenset([8, 0])),
        ((1, 2.0), (1.0, 2)),
    ]


def test_equal_keys_are_one_entry(cache: Cache) -> None:
    for stored, asked in equal_keys():
        assert stored == asked
        cache[stored] = "value"
        assert cache.get(asked) == "value"
    assert len(cache) == 4


def test_equal_keys_miss_in_diskcache(theirs: Any) -> None:
    for stored, asked in equal_keys():
        theirs[stored] = "value"
        assert theirs.get(asked) is None


def test_the_pickle_protocol_plays_no_part_in_keys(tmp_path: Path) -> None:
    with Cache(tmp_path, disk_pickle_protocol=2) as cache:
        cache[1, "a"] = "value"
    with Cache(tmp_path, disk_pickle_protocol=5) as cache:
        assert cache[1, "a"] == "value"


def test_the_stored_number_of_shards_wins(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=4) as cache:
        cache.set_many({number: number for number in range(20)})
    with FanoutCache(tmp_path, shards=2) as cache:
        assert len(cache.get_many(range(20))) == 20


def test_another_number_of_shards_hides_keys_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path, shards=4) as cache:
        for number in range(20):
            cache[number] = number
    with diskcache.FanoutCache(tmp_path, shards=2) as cache:
        assert sum(number in cache for number in range(20)) < 20


def finds_its_equal(cache: Any) -> list[bool]:
    cache[7] = cache[(2, "a")] = True
    return [cache.get(7.0, False), cache.get((2.0, "a"), False)]


def test_one_rule_of_equality_for_every_cache(cache: Cache, tmp_path: Path) -> None:
    with FanoutCache(tmp_path / "fanout", timeout=60, **QUICK) as fanout:
        assert finds_its_equal(cache) == finds_its_equal(fanout) == [True, True]


def test_cache_and_fanout_cache_disagree_in_diskcache(diskcache: ModuleType, theirs: Any, tmp_path: Path) -> None:
    with diskcache.FanoutCache(tmp_path / "fanout") as fanout:
        assert finds_its_equal(theirs) == [True, False]
        assert finds_its_equal(fanout) == [False, False]


# -- room ---------------------------------------------------------------------------------------------------------


def test_a_value_that_can_never_fit_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=1_000_000) as cache:
        small = {f"key {number}": number for number in range(9)}
        cache.set_many(small)
        assert cache.set("giant", "x" * 1_100_000) is False
        with pytest.raises(ValueTooLarge, match="giant"):
            cache["giant"] = "x" * 1_100_000
        assert cache.get_many([*small, "giant"]) == small


def test_a_value_that_can_never_fit_empties_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.Cache(tmp_path, size_limit=1_000_000) as cache:
        for number in range(9):
            cache[f"key {number}"] = number
        assert cache.set("giant", "x" * 1_100_000) is True
        assert len(cache) == 0


def test_cull_counts_the_expired_under_every_policy(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, eviction_policy="none", clock=clock) as cache:
        cache.set("key", 1, expire=1)
        clock.advance(1)
        assert cache.cull() == 1
        assert len(cache) == 0


def test_cull_does_not_count_the_expired_under_none_in_diskcache(diskcache: ModuleType, tmp_path: Path) -> None:
    with diskcache.Cache(tmp_path, eviction_policy="none") as cache:
        cache.set("key", 1, expire=-1)
        assert cache.cull() == 0
        assert len(cache) == 0


# -- locks and queues ---------------------------------------------------------------------------------------------


def test_a_late_release_does_not_free_the_next_owner(cache: Cache, clock: Clock) -> None:
    late, next_owner = Lock(cache, "lock", expire=1), Lock(cache, "lock", expire=100)
    late.acquire()
    clock.advance(1)
    next_owner.acquire()
    with pytest.raises(NotOwner, match="lock"):
        late.release()
    assert next_owner.locked()
    next_owner.release()
    assert not next_owner.locked()


def test_a_late_release_frees_the_next_owner_in_diskcache(diskcache: ModuleType, theirs: Any) -> None:
    late, next_owner = diskcache.Lock(theirs, "lock", expire=0), diskcache.Lock(theirs, "lock")
    late.acquire()
    next_owner.acquire()
    late.release()
    assert not next_owner.locked()


def test_pull_leaves_the_users_integer_keys_alone(cache: Cache) -> None:
    cache[5] = "mine"
    assert cache.pull() == (None, None)
    cache.push("item")
    assert cache.pull()[1] == "item"
    assert cache[5] == "mine"


def test_pull_takes_the_users_integer_keys_in_diskcache(theirs: Any) -> None:
    theirs[5] = "mine"
    assert theirs.pull() == (5, "mine")


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
        store.lock.acquire(0)
        try:
            os.unlink(tmp_path / "cache.gen")  # so that opening has to write
            with pytest.raises(Timeout):
                Cache(tmp_path, timeout=0)
        finally:
            store.lock.release()


def test_retry_waits_for_the_lock_and_for_nothing_else(cache: Cache) -> None:
    cache["key"] = 1
    cache._shards.stores[0].writer.execute("PRAGMA query_only = ON")
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
    count = sum(cache.directory in os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
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
    with pytest.raises(ValueEncodeError):
        cache.set("key", [BIG, lambda: None])
    with pytest.raises(TypeError):
        cache.set("key", BIG, tag=lambda: None)
    cache._shards.stores[0].writer.execute("PRAGMA query_only = ON")
    for write in (lambda: cache.set("key", BIG), lambda: cache.push(BIG), lambda: cache.set_many({1: BIG, 2: BIG})):
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
        written = os.stat(tmp_path / "cache.db-wal").st_size
        with Cache(tmp_path, timeout=0, **settings) as other, cache.transact():  # nor does it need the lock
            for _ in range(20):
                assert (cache["key"], other["key"], other.get("missing")) == (1, 1, None)
        assert os.stat(tmp_path / "cache.db-wal").st_size == written


@pytest.mark.parametrize("setting", ["least-recently-used", "least-frequently-used", "statistics"])
def test_a_read_writes_to_the_disk_in_diskcache(diskcache: ModuleType, tmp_path: Path, setting: str) -> None:
    settings = {"statistics": 1} if setting == "statistics" else {"eviction_policy": setting}
    with diskcache.Cache(tmp_path, **settings) as cache:
        cache["key"] = 1
        written = os.stat(tmp_path / "cache.db-wal").st_size
        for _ in range(20):
            assert cache["key"] == 1
        assert os.stat(tmp_path / "cache.db-wal").st_size > written


# -- handles ------------------------------------------------------------------------------------------------------


def test_a_pickled_fanout_cache_keeps_its_limits(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2, size_limit=40_000_000) as cache:
        with pickle.loads(pickle.dumps(cache)) as copy:
            assert copy.size_limit == cache.size_limit == 40_000_000  # type: ignore[attr-defined]


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
    os.makedirs(os.path.join(cache.directory, "empty"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [problem.category for problem in cache.check()]


def test_check_tells_whatever_the_warning_filters_say(cache: Cache) -> None:
    assert findings(cache) == [EmptyDirWarning]
    cache.check(fix=True)


def test_check_is_silent_under_ignore_in_diskcache(theirs: Any) -> None:
    assert findings(theirs) == []
