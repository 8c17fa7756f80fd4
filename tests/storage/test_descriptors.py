"""Descriptors, threads, the WAL and the lock: what a handle holds is bounded, and nobody who is stuck holds up readers."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, Timeout, TransactionError
from diskcache_like.storage.shards import OWN_DESCRIPTORS
from diskcache_like.storage.sqlite.connection import PAGE_SIZE
from diskcache_like.storage.sqlite.reader_pool import MAX_READERS
from diskcache_like.storage.upkeep import checkpoints

from ..support.inspection import cache_descriptors, problems
from ..support.statement_hooks import watch
from ..support.workers import PATIENCE, Crew, Link, Worker

THREADS = 50
LARGE = bytes(1 << 16)  # goes to a file, and so its row to the database at once
# Database and WAL for each of the readers and the writer; -shm once; the lock; the byte locks; the mapped generations
# and write buffer.
PER_SHARD = 2 * (MAX_READERS + 1) + 1 + 1 + 1 + 2


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(params=["one", "fanout"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(directory: Path, kind: str = "one", **settings: Any) -> Cache:
    if kind == "fanout":
        return FanoutCache(directory, **{"shards": 4, "timeout": 60, "durability": "process", **settings})
    return Cache(directory, **{"durability": "process", **settings})


def bound(kind: str) -> int:
    return PER_SHARD * (4 if kind == "fanout" else 1) + OWN_DESCRIPTORS


def run_threads(number: int, work: Callable[[int], None]) -> None:
    """Run `work(index)` in threads at the same time; raise what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(number)

    def run(index: int) -> None:
        try:
            start.wait(PATIENCE)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]


# -- descriptors ------------------------------------------------------------------------------------------------------


def test_many_threads_share_few_descriptors(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "cache"
    most = 0
    with opened(directory, kind, hot_size_limit=0) as cache:
        cache.set("common", 1)

        def work(index: int) -> None:
            nonlocal most
            for number in range(20):
                cache.set((index, number), number, retry=True)
                assert cache.get((index, number)) == number
                assert cache.get("common") == 1
                assert cache.get_many([(index, each) for each in range(number)]) == {
                    (index, each): each for each in range(number)
                }
                with cache.transact(retry=True):
                    cache.incr("count", retry=True)
                most = max(most, len(cache_descriptors(directory)))

        run_threads(THREADS, work)
        assert cache["count"] == 20 * THREADS
        assert most <= bound(kind)
        assert len(cache_descriptors(directory)) <= bound(kind)
    assert cache_descriptors(directory) == []


def test_the_bound_is_reached_by_readers_that_meet(tmp_path: Path) -> None:
    """As many readers as there may be have connections of their own, and the next one waits for one of theirs."""
    directory = tmp_path / "cache"
    with opened(directory, hot_size_limit=0) as cache:
        cache.set_many({"key": 1, "more": 1})  # in the database at once
        pool = cache._shards.stores[0].shard.pool
        taken = [pool.take() for _ in range(MAX_READERS)]
        assert len(cache_descriptors(directory)) == bound("one")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(cache.get("key")))
        thread.start()
        thread.join(0.05)
        assert found == [], "a reader more than there may be has got a connection"
        for cursor in taken:
            pool.give(cursor)
        thread.join(PATIENCE)
        assert found == [1]


def test_value_files_are_closed(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "cache"
    with opened(directory, kind, disk_min_file_size=16) as cache:
        for number in range(50):
            cache.set(number, b"x" * 1000)
            cache.get(number)
            with cache.read(number) as file:
                assert file.read() == b"x" * 1000
        cache.set("key", b"y" * 1000)
        cache.touch("key", 1000)
        cache.pop("key")
        assert [name for name in cache_descriptors(directory) if ".val" in name] == []


def test_close_closes_everything_and_the_next_operation_opens_it_again(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "cache"
    cache = opened(directory, kind)
    operations: tuple[Callable[[], object], ...] = (
        lambda: cache.set("key", 1),
        lambda: cache.get("key"),
        lambda: "key" in cache,
        lambda: list(cache),
        lambda: len(cache),
        lambda: cache.volume(),
        lambda: cache.incr("key"),
        lambda: cache.get_many(["key"]),
        lambda: cache.set_many({"key": 2}),
        lambda: cache.check(),
        lambda: cache.stats(),
        lambda: cache.expire(),
        lambda: cache.pop("key"),
        lambda: cache.push(1),
        lambda: cache.peek(),
        lambda: cache.pull(),
        lambda: cache.evict("tag"),
        lambda: cache.cull(),
        lambda: cache.clear(),
        lambda: cache.reset("cull_limit"),
        lambda: cache.delete("key"),
    )
    for operation in operations:
        operation()
        assert cache_descriptors(directory) != []
        cache.close()
        assert cache_descriptors(directory) == []
        cache.close()
    with cache.transact():
        cache.set("key", 3)
    assert cache.get("key") == 3
    cache.close()
    assert cache_descriptors(directory) == []


@pytest.mark.parametrize("stuck", ["shard", "child"])
def test_what_cannot_be_closed_keeps_nothing_else_open(tmp_path: Path, stuck: str) -> None:
    directory = tmp_path / "cache"
    cache = opened(directory, "fanout")
    child, index = cache.cache("child"), cache.index("index")  # type: ignore[attr-defined]
    cache.set_many(dict.fromkeys(range(40)))
    child["key"] = index["key"] = 1
    used = cache._shards.stores[0] if stuck == "shard" else child._shards.stores[0]
    with used.transaction(None), pytest.raises(TransactionError):
        cache.close()
    assert cache_descriptors(directory) != []
    assert all(name.startswith(used.directory) for name in cache_descriptors(directory))
    cache.close()
    assert cache_descriptors(directory) == []


def test_what_cannot_be_closed_does_not_hide_what_ended_the_body(tmp_path: Path, kind: str) -> None:
    cache = opened(tmp_path / "cache", kind)
    with cache._shards.stores[0].transaction(None):
        with pytest.raises(KeyError, match="from the body"), cache:
            raise KeyError("from the body")
        with pytest.raises(TransactionError), cache:
            pass
    assert cache.set("key", 1)
    cache.close()
    assert cache_descriptors(tmp_path / "cache") == []


def test_handles_dropped_without_close_are_collected(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "cache"
    for statistics in (0, 1):
        cache = opened(directory, kind, statistics=statistics)
        cache.set("key", 1)
        cache.get("key")
        cache.get("other")
        gone = weakref.ref(cache)
        del cache
        gc.collect()
        assert gone() is None
        assert cache_descriptors(directory) == []


def test_a_dropped_handle_is_collected_while_another_writes(tmp_path: Path) -> None:
    """The collector must not wait for the lock; what it cannot close then is closed with the next opening."""
    directory = tmp_path / "cache"
    with opened(directory) as other:
        cache = opened(directory)
        cache.set("key", 1)
        with other.transact():
            del cache
            gc.collect()
            other.set("key", 2)
        assert other.get("key") == 2
        before = cache_descriptors(directory)
        opened(directory).close()
        assert len(cache_descriptors(directory)) < len(before)


def test_what_a_dropped_handle_cannot_do_hinders_no_opening(tmp_path: Path) -> None:
    broken = False

    def clock() -> float:
        if broken:
            raise ArithmeticError("no time")
        return 1e9

    with opened(tmp_path / "one") as other:
        cache = opened(tmp_path / "one", clock=clock)
        cache.set("file", b"x" * 50_000)
        cache.delete("file")
        with other.transact():
            del cache
            gc.collect()
        broken = True
        opened(tmp_path / "two").close()
    gc.collect()


def test_threads_go_on_while_another_closes(tmp_path: Path, kind: str) -> None:
    """Who shares a handle may be in the middle of something when somebody closes it."""
    directory = tmp_path / "cache"
    cache = opened(directory, kind)
    cache.set("key", 0)

    def work(index: int) -> None:
        for number in range(60):
            if index == 0:
                cache.close()
            elif index % 2:
                cache.incr("count", retry=True)
            else:
                assert cache.get("key") == 0
                cache.set((index, number), number, retry=True)

    run_threads(7, work)
    assert cache.get("count") == 3 * 60
    assert problems(cache) == []
    cache.close()
    assert cache_descriptors(directory) == []


def test_an_iteration_holds_no_connection(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set_many(dict.fromkeys(range(500), 1), retry=True)
        iterators = [iter(cache) for _ in range(3 * MAX_READERS)]
        for iterator in iterators:
            next(iterator)
        assert all(len(list(iterator)) == 499 for iterator in iterators)


def test_a_paused_iteration_keeps_no_file_mapped(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "cache"
    with opened(directory, kind, eviction_policy="least-recently-used") as cache:
        cache.set_many(dict.fromkeys(range(500), 1), retry=True)
        iterator = iter(cache)
        next(iterator)
    assert cache_descriptors(directory) == []
    assert len(list(iterator)) == 499
    cache.close()
    assert cache_descriptors(directory) == []


# -- the WAL ----------------------------------------------------------------------------------------------------------

SMALL = 200_000  # bytes between checkpoints in these tests


@pytest.fixture
def small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", SMALL)
    monkeypatch.setattr(checkpoints, "WAL_LIMIT", 4 * SMALL // PAGE_SIZE)


def largest_wal(cache: Cache, writes: int, after_each: Callable[[int], object] = lambda number: None) -> int:
    """Write `writes` times and return the largest size that the WAL had."""
    wal = Path(f"{cache._shards.stores[0].path}-wal")
    largest = 0
    for number in range(writes):
        cache.set(number % 100, b"%d" % number * 500)
        after_each(number)
        largest = max(largest, wal.stat().st_size)
    return largest


@pytest.mark.usefixtures("small_wal")
@pytest.mark.parametrize("look", ["get", "miss", "get_many", "iteration", "len", "peekitem", "check", "read"])
def test_an_idle_reader_that_has_read_before_does_not_let_the_wal_grow(tmp_path: Path, look: str) -> None:
    looks: dict[str, Callable[[Cache], object]] = {
        "get": lambda cache: cache.get(1),
        "miss": lambda cache: cache.get("nothing"),
        "get_many": lambda cache: cache.get_many(range(5)),
        "iteration": lambda cache: held.append(iter(cache)) or next(held[-1]),  # type: ignore[func-returns-value]
        "len": len,
        "peekitem": lambda cache: cache.peekitem(),
        "check": lambda cache: cache.check(),
        "read": lambda cache: cache.read(1).close(),
    }
    held: list[Any] = []
    with opened(tmp_path / "cache", size_limit=1 << 30) as cache, opened(tmp_path / "cache", hot_size_limit=0) as idle:
        cache.set_many(dict.fromkeys(range(100), b"0"))
        looks[look](idle)  # and then it does nothing any more
        # The first hundred writes make the table: each splits pages and costs several frames, which nobody knows yet.
        assert largest_wal(cache, 1000) < 6 * SMALL


@pytest.mark.usefixtures("small_wal")
def test_writes_of_several_pages_are_taken_for_what_they_cost(tmp_path: Path) -> None:
    with opened(tmp_path / "cache", size_limit=1 << 30) as cache:
        for _ in range(1000):
            cache.push(b"x" * 100)  # changes the row's page and that of the queue's index
        wal = Path(f"{cache._shards.stores[0].path}-wal")
        assert wal.stat().st_size < 3 * SMALL
        # Not with a PRAGMA: a checkpoint behind the checkpointer's back would spoil its next measurement.
        with cache._shards.stores[0].transactions.locked(None):
            cache._shards.stores[0].checkpointer.checkpoint(shrink=True)
        for _ in range(1000):
            cache.push(b"x" * 100)
        assert wal.stat().st_size < 1.5 * SMALL


@pytest.mark.usefixtures("small_wal")
def test_a_large_transaction_is_brought_back_into_bounds(tmp_path: Path) -> None:
    with opened(tmp_path / "cache") as cache:
        with cache.transact():
            for number in range(1000):
                cache.set(number, b"x" * 5000)
        assert largest_wal(cache, 1) > 4_000_000
        assert Path(f"{cache._shards.stores[0].path}-wal").stat().st_size > 0
        largest_wal(cache, 300)
        assert largest_wal(cache, 10) < 8 * SMALL, "the WAL stays as large as it once was"


def read_without_end(link: Link, directory: Path) -> int:
    with opened(directory, hot_size_limit=0) as cache:
        link.tell()
        for number in itertools.count():
            cache.get(number % 100)
            if number % 50 == 0:
                cache.get_many(range(100))
                if link.asked():
                    return number
    raise AssertionError


@pytest.mark.usefixtures("small_wal")
def test_continuous_reads_do_not_let_the_wal_grow(crew: Crew, tmp_path: Path) -> None:
    with opened(tmp_path / "cache", size_limit=1 << 30) as cache:
        cache.set_many(dict.fromkeys(range(100), b"0"))
        readers = [crew.start(read_without_end, tmp_path / "cache") for _ in range(3)]
        for reader in readers:
            reader.hear()
        largest = largest_wal(cache, 3000)
        for reader in readers:
            reader.tell()
            assert reader.result() > 0
        assert largest < 40 * SMALL


# -- the lock ---------------------------------------------------------------------------------------------------------


def hold_the_lock(link: Link, directory: Path, kind: str) -> None:
    """Stop in the middle of a write, on word from the test: between the statement and the end of the lock."""
    with opened(directory, kind) as cache:
        watch(cache, after=lambda statement: (link.tell(statement), link.hear()) if "INSERT" in statement else None)
        cache.set("held", LARGE, retry=True)
        link.tell("written")
        with cache.transact(retry=True):
            link.tell("in a transaction")
            link.hear()
        for store in cache._shards.stores:
            store.connection.raw = None  # nothing is watched any more
            store.connection.cursor = None
        cache.set("done", 1, retry=True)


@pytest.fixture
def handles() -> Iterator[list[Cache]]:
    """Return a list of handles to be closed at the end, when nobody is stopped any more."""
    made: list[Cache] = []
    yield made
    for cache in made:
        cache.close()


def test_a_stopped_writer_holds_up_other_writers_only(
    crew: Crew, handles: list[Cache], tmp_path: Path, kind: str
) -> None:
    def open_handle(**settings: Any) -> Cache:
        handles.append(opened(tmp_path / "cache", kind, timeout=0.2, **settings))
        return handles[-1]

    hot, cold = open_handle(), open_handle(hot_size_limit=0)
    keys = [f"key {number}" for number in range(40)]
    hot.set_many(dict.fromkeys(keys, 1))
    assert hot.get_many(keys) == dict.fromkeys(keys, 1)
    holder = crew.start(hold_the_lock, tmp_path / "cache", kind)

    assert "INSERT" in holder.hear()
    with stopped(holder):
        for cache in (hot, cold, open_handle()):  # opening does not wait for the lock either
            see_that_reads_work(cache, keys)
            see_that_writes_time_out(cache, kind, "held")
    holder.tell()
    assert holder.hear() == "written"
    assert hot.get("held") == cold.get("held") == LARGE

    assert holder.hear() == "in a transaction"
    with stopped(holder):
        for cache in (hot, cold, open_handle()):
            see_that_reads_work(cache, keys)
            see_that_writes_time_out(cache, kind, "key 1")
    holder.tell()
    holder.result()
    assert cold.get("done") == 1
    assert all(cache.get(key) == 1 for cache in handles for key in keys)
    assert hot.set("held", 2)
    assert cold.get("held") == 2
    assert problems(hot) == []


@contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    worker.stop()
    try:
        yield
    finally:
        worker.go_on()


def see_that_reads_work(cache: Cache, keys: list[str]) -> None:
    for _ in range(2):
        assert [cache.get(key) for key in keys] == [1] * len(keys)
        assert cache.get_many(keys) == dict.fromkeys(keys, 1)
    assert "nothing" not in cache
    assert keys[0] in cache
    assert set(keys) <= set(cache)
    assert len(cache) >= len(keys)
    assert cache.volume() > 0


def see_that_writes_time_out(cache: Cache, kind: str, key: str) -> None:
    """Write to the shard that another process has locked: a Cache raises, a FanoutCache gives up and says so."""
    for write in (cache.incr, cache.delete, cache.pop, cache.touch, lambda key: cache.set(key, b"x" * 40_000)):
        if kind == "one":
            with pytest.raises(Timeout, match=r"cache\.lock"):
                write(key)
        else:
            assert not write(key)
    with pytest.raises(Timeout), cache.transact(retry=False):
        pytest.fail("the transaction began")


def test_a_reader_never_waits_for_a_writer_of_its_own_process(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("key", 1)
        inside, leave = threading.Event(), threading.Event()

        def transact() -> None:
            with cache.transact(retry=True):
                cache.set("key", 2)
                inside.set()
                leave.wait(PATIENCE)

        thread = threading.Thread(target=transact)
        thread.start()
        try:
            assert inside.wait(PATIENCE)
            assert cache.get("key") == 1
            assert list(cache) == ["key"]
        finally:
            leave.set()
            thread.join(PATIENCE)
        assert cache.get("key") == 2


def test_workers_are_gone_with_their_crew(tmp_path: Path) -> None:
    with Crew() as crew:
        worker: Worker = crew.start(read_without_end, tmp_path / "cache")
        worker.hear()
    with pytest.raises(ValueError, match="closed"):
        worker.process.is_alive()


def test_no_part_keeps_a_cache_alive(tmp_path: Path) -> None:
    """Dropped without `close`, it goes at once: not when the garbage collector comes by."""
    gc.collect()
    gc.disable()
    try:
        cache = Cache(tmp_path)
        cache["key"] = [1]
        assert cache["key"] == [1]
        seen = weakref.ref(cache)
        del cache
        assert seen() is None
    finally:
        gc.enable()
