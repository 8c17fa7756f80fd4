"""Fork and exit: a child works with what it inherited, on connections of its own, and no ending of a process harms."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, TransactionError
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.storage.shard.open_shard import OpenShard

from ..support.inspection import cache_descriptors, posix_locks, problems
from ..support.interpreter_exits import ABRUPT, ENDINGS, end
from ..support.workers import PATIENCE, Crew, Link, Worker, forked

LARGE = b"x" * 40_000
Look = Callable[[], None]


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.fixture(params=["one", "fanout"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(directory: Path, kind: str = "one", **settings: Any) -> Cache:
    if kind == "fanout":
        return FanoutCache(directory, shards=3, timeout=60, durability="process", **settings)
    return Cache(directory, durability="process", **settings)


@contextmanager
def busy_threads(cache: Cache, number: int = 4) -> Iterator[list[int]]:
    """Have threads write, read, and run transactions; yields how many rounds each has done."""
    end = threading.Event()
    rounds = [0] * number
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for count in itertools.count(1):
                if end.is_set():
                    return
                cache.set(("busy", index), LARGE if count % 8 == 0 else count, retry=True)
                cache.get(("busy", (index + 1) % number))
                with cache.transact(retry=True):
                    cache.incr(("left", index), retry=True)
                    cache.incr(("right", index), retry=True)
                rounds[index] = count
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        end.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert errors == []
    for index in range(number):
        assert cache.get(("left", index)) == cache.get(("right", index)) == rounds[index]


def go_through_everything(cache: Cache, me: int) -> None:
    """Use an inherited handle in every way."""
    assert cache.get("of the parent") == "value"
    cache.set(("child", me), me, retry=True)
    assert cache.get(("child", me)) == me
    cache.incr("forks", retry=True)
    with cache.transact(retry=True):
        cache.incr("forks in transactions", retry=True)
        cache.set(("large", me), LARGE)
    assert cache[("large", me)] == LARGE
    assert ("child", me) in list(cache)
    cache.push(me, "queue", retry=True)


def test_a_fork_lets_a_transaction_open_another_cache_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork waits for the end of the transaction, and that for the mutex of opening."""
    begun, forking = threading.Event(), threading.Event()
    quiesce = WriteLock.quiesce

    def note(lock: WriteLock) -> bool:
        forking.set()
        return quiesce(lock)

    def transact() -> None:
        with cache.transact():
            begun.set()
            assert forking.wait(PATIENCE)
            Cache(tmp_path / "another").close()
            cache["of the transaction"] = 1

    monkeypatch.setattr(WriteLock, "quiesce", note)
    with opened(tmp_path / "cache") as cache:
        thread = threading.Thread(target=transact)
        thread.start()
        assert begun.wait(PATIENCE)
        with forked(lambda link: cache["of the transaction"]) as child:
            assert child.result() == 1, "the fork came first, and so the child must not use the cache"
        thread.join()


def test_children_of_a_process_whose_threads_write_work_at_once(tmp_path: Path, kind: str) -> None:
    forks = 12
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("of the parent", "value", retry=True)
        with busy_threads(cache) as rounds:
            for me in range(forks):
                with forked(lambda link, me=me: go_through_everything(cache, me)) as child:  # type: ignore[misc]
                    child.result()
                    assert cache.get(("child", me)) == me, "the parent sees the child's write at once"
            done = list(rounds)
            while min(rounds) < min(done) + 3:  # the threads go on
                cache.get("of the parent")
        assert cache["forks"] == cache["forks in transactions"] == forks
        assert sorted(cache.pull("queue")[1] for _ in range(forks)) == list(range(forks))
        assert problems(cache) == []


def test_a_fork_gets_through_to_readers_that_never_pause(tmp_path: Path, kind: str) -> None:
    """A reader that lets others run only while it is inside SQLite is never seen without a connection by chance."""
    with opened(tmp_path / "cache", kind, hot_size_limit=0, write_buffer=0) as cache:  # which would answer the reads
        cache.set("key", 1)
        reading, end = threading.Event(), threading.Event()

        def read() -> None:
            while not end.is_set():
                assert cache.get("key") == 1
                reading.set()

        thread = threading.Thread(target=read)
        interval = sys.getswitchinterval()
        thread.start()
        try:
            assert reading.wait(PATIENCE)
            sys.setswitchinterval(PATIENCE)  # now threads take turns where they release the interpreter themselves
            with forked(lambda link: cache.incr("child")) as child:
                assert child.result() == 1
        finally:
            sys.setswitchinterval(interval)
            end.set()
            thread.join(PATIENCE)


def test_a_signal_handler_reads_while_its_thread_forks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiesce, read = OpenShard.quiesce, []

    def interrupted(shard: OpenShard, quiesced: list[Any]) -> None:
        quiesce(shard, quiesced)
        read.append([cache.get(key) for key in range(20)])

    with opened(tmp_path / "cache", kind, hot_size_limit=0) as cache:
        cache.set_many({key: key for key in range(20)}, retry=True)
        monkeypatch.setattr(OpenShard, "quiesce", interrupted)
        with forked(lambda link: cache.incr("child")) as child:
            assert child.result() == 1
        assert len(read) >= len(cache._shards.stores)
        assert all(found == list(range(20)) for found in read)


def test_a_child_has_connections_of_its_own(tmp_path: Path, kind: str) -> None:
    """SQLite counts its locks per process and file, and would believe to have those that stayed with the parent."""
    directory = tmp_path / "cache"
    with opened(directory, kind) as cache:
        cache.set("key", 1)
        databases = [Path(store.path) for store in cache._shards.stores]

        def use(link: Link) -> list[bool]:
            for number in range(50):
                cache.set(number, number, retry=True)
                cache.get(number + 1)
            return [bool(posix_locks(os.getpid(), path)) for path in databases]

        with forked(use) as child:
            assert child.result() == [True] * len(databases)


def test_what_a_child_writes_survives_the_parents_closing(tmp_path: Path, kind: str) -> None:
    """The parent is the last to close as far as it knows, and deletes the WAL that the child goes on writing to."""
    directory = tmp_path / "cache"
    cache = opened(directory, kind)
    cache.set("key", 1)

    def use(link: Link) -> None:
        assert cache.get("key") == 1
        cache.set("before", 1)
        link.tell()
        link.hear()
        for number in range(100):
            cache.set(number, number)
        link.tell()
        link.hear()  # killed here, so that no closing of the child's helps

    with forked(use) as child:
        child.hear()
        cache.close()
        child.tell()
        child.hear()
        child.kill()
    with opened(directory, kind) as again:
        assert [again.get(number) for number in range(100)] == list(range(100))
        assert problems(again) == []


def test_a_childs_end_leaves_the_parent_its_locks(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("key", 1)
        databases = [Path(store.path) for store in cache._shards.stores]
        before = [posix_locks(os.getpid(), path) for path in databases]
        assert all(before)

        def use(link: Link) -> None:
            cache.set("key", 2)
            cache.close()

        with forked(use) as child:
            child.result()
        assert [posix_locks(os.getpid(), path) for path in databases] == before
        assert cache.get("key") == 2


def test_a_child_that_does_not_use_the_cache_leaves_it_alone(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache, busy_threads(cache):
        for _ in range(10):
            with forked(lambda link: None) as child:
                child.result()


def test_children_of_children_work_too(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("depth", 0)

        def descend(link: Link, depth: int = 1) -> None:
            assert cache.incr("depth", retry=True) == depth
            if depth < 4:
                with forked(lambda link: descend(link, depth + 1)) as grandchild:
                    grandchild.result()
            assert cache.get("depth") == 4

        with forked(descend) as child:
            child.result()
        assert cache.get("depth") == 4


def test_parent_and_child_see_each_other_through_hot_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "cache") as cache:
        cache.set("key", 0)
        assert cache.get("key") == 0

        def use(link: Link) -> None:
            for number in range(1, 50, 2):
                assert cache.get("key") == number - 1
                cache.set("key", number)
                link.tell()
                link.hear()
                assert cache.get("key") == number + 1

        with forked(use) as child:
            for number in range(1, 50, 2):
                child.hear()
                assert cache.get("key") == number
                cache.set("key", number + 1)
                child.tell()
            child.result()


def test_a_closed_handle_opens_in_the_child(tmp_path: Path, kind: str) -> None:
    cache = opened(tmp_path / "cache", kind)
    cache.set("key", 1)
    cache.close()

    def use(link: Link) -> list[str]:
        cache.incr("key")
        return cache_descriptors(tmp_path / "cache")

    with forked(use) as child:
        assert child.result() != []
    assert cache_descriptors(tmp_path / "cache") == []
    assert cache.get("key") == 2
    cache.close()


# -- transactions -----------------------------------------------------------------------------------------------------


def leave_normally(cache: Cache) -> None:
    return


def leave_by_exception(cache: Cache) -> None:
    raise ZeroDivisionError


def leave_after_writing(cache: Cache) -> None:
    cache.set("of the child", 1)


def leave_in_the_child(cache: Cache, depth: int, link: Link, leave: Callable[[Cache], None], look: Look) -> str:
    """Fork within a transaction; let the child leave it as `leave` says, then look in the parent and commit.

    Runs to its end twice: in the child it returns how the with-blocks were left.
    """
    try:
        with ExitStack() as stack:
            for _ in range(depth):
                stack.enter_context(cache.transact())
            cache.set("one", LARGE)
            if os.fork() == 0:
                link.hear()
                leave(cache)
            else:
                look()
                cache.set("other", 2)
    except (TransactionError, ZeroDivisionError) as error:
        return type(error).__name__
    return "left as if nothing had happened"


@pytest.mark.parametrize("leave", [leave_normally, leave_by_exception, leave_after_writing])
@pytest.mark.parametrize("depth", [1, 2], ids=["outer", "nested"])
def test_a_child_does_not_end_its_parents_transaction(
    tmp_path: Path, kind: str, leave: Callable[[Cache], None], depth: int
) -> None:
    """The child leaves the with-block, too; the parent's transaction must neither be committed nor undone by that."""
    parent = os.getpid()
    mine, theirs = multiprocessing.Pipe()
    with opened(tmp_path / "cache", kind) as cache, opened(tmp_path / "cache", kind) as other:
        cache.set_many({"one": 1, "other": 1}, retry=True)
        assert other.get("one") == 1

        def look() -> None:
            mine.send("leave")
            assert mine.poll(PATIENCE)
            assert mine.recv() == ("ZeroDivisionError" if leave is leave_by_exception else "TransactionError")
            # What the child did on its way out has not made the transaction visible, nor settled its slots.
            assert other.get("one") == 1
            assert cache.get("one") == LARGE

        outcome = "something else was raised"
        try:
            outcome = leave_in_the_child(cache, depth, Link(theirs), leave, look)
        finally:
            if os.getpid() != parent:
                theirs.send(outcome)
                os._exit(0)
        os.wait()
        assert outcome == "left as if nothing had happened"
        assert other.get("one") == LARGE
        assert other.get("other") == 2
        assert other.get("of the child") is None
        assert problems(cache) == []
    mine.close()
    theirs.close()


def test_a_child_of_a_transaction_is_told_that_it_cannot_use_the_cache(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with opened(directory) as cache:
        cache.set("key", 1)

        def use(link: Link) -> list[str]:
            found = []
            for attempt in (lambda: cache.set("key", 3), lambda: cache.delete("key"), lambda: opened(directory)):
                try:
                    attempt()
                except TransactionError as error:
                    found.append(str(error))
            return found

        with cache.transact():
            cache.set("key", 2)
            with forked(use) as child:
                errors = child.result()
        assert len(errors) == 3
        assert all(str(directory) in error and "fork" in error for error in errors)
        assert cache.get("key") == 2
        with forked(lambda link: cache.get("key")) as child:  # outside the transaction all is well
            assert child.result() == 2


def test_fork_waits_for_another_threads_transaction(tmp_path: Path) -> None:
    """The thread is between two statements of its transaction, so that the child would inherit that half done."""
    with opened(tmp_path / "cache") as cache:
        inside, forking = threading.Event(), threading.Event()

        def transact() -> None:
            with cache.transact():
                cache.set("one", 1)
                inside.set()
                assert forking.wait(PATIENCE)
                for number in range(200):  # the fork is asked for now, and comes when these are through
                    cache.set(number, number)
                cache.set("other", 1)

        thread = threading.Thread(target=transact)
        thread.start()
        assert inside.wait(PATIENCE)
        forking.set()
        with forked(lambda link: (cache.get("one"), cache.incr("other"))) as child:
            assert child.result() in [(1, 2), (None, 1)]
        thread.join(PATIENCE)
        assert cache.get("one") == 1
        assert problems(cache) == []


# -- forks made from C ------------------------------------------------------------------------------------------------


def fork_from_c(link: Link, directory: Path, kind: str) -> list[Any]:
    """Fork as an application server written in C does, so that no hook of Python's runs; the child uses the handle."""
    with opened(directory, kind) as cache:
        cache.set("key", 1)
        assert cache.get("key") == 1
        databases = [Path(store.path) for store in cache._shards.stores]
        reading, writing = os.pipe()
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            try:
                assert cache.get("key") == 1
                for number in range(20):
                    cache.set(number, number, retry=True)
                found: object = [bool(posix_locks(os.getpid(), path)) for path in databases]
            except BaseException as error:
                found = repr(error)
            os.write(writing, pickle.dumps(found))
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            answer: list[Any] = pickle.load(pipe)
        os.waitpid(pid, 0)
        assert [cache.get(number) for number in range(20)] == list(range(20))
        return answer


def test_a_fork_from_c_is_noticed(crew: Crew, tmp_path: Path, kind: str) -> None:
    answer = crew.start(fork_from_c, tmp_path / "cache", kind).result()
    assert set(answer) == {True}, answer


# -- handles that travel ----------------------------------------------------------------------------------------------


def use_handle(cache: Cache, name: str) -> None:
    assert cache.get("key") == "value"
    cache.set(name, (name, cache.timeout), retry=True)
    with cache.transact(retry=True):
        cache.incr("used", retry=True)
    cache.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_handles_travel_to_processes_of_every_start_method(tmp_path: Path, kind: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    with opened(tmp_path / "cache", kind, size_limit=1 << 26) as cache:
        cache.set("key", "value")
        process = context.Process(target=use_handle, args=(cache, method))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 0
        assert cache.get(method) == (method, cache.timeout)
        assert cache.get("used") == 1
        process.close()


def test_a_pool_shares_a_handle(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path / "cache", kind) as cache:
        cache.set("key", "value")
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pool.starmap(use_handle, [(cache, f"task {number}") for number in range(12)])
            pool.close()
            pool.join()
        assert cache.get("used") == 12
        assert cache.get("task 11") == ("task 11", cache.timeout)


# -- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interpreter_ends_quietly(tmp_path: Path, kind: str, ending: str) -> None:
    directory = tmp_path / "cache"
    done = end(ending, directory, kind, PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with opened(directory, kind) as cache:
        assert cache.get("undone") is None
        cache.set("afterwards", 1)
        if ending == "with threads still writing":
            assert len(cache) == 801
        problems(cache, fix=ending in ABRUPT)
        assert problems(cache) == []


def keep_handle(link: Link, directory: Path, kind: str) -> None:
    cache = opened(directory, kind)
    cache.set("key", 1)
    link.tell()
    link.hear()


def test_the_last_of_two_processes_to_end_leaves_everything(crew: Crew, tmp_path: Path, kind: str) -> None:
    workers: list[Worker] = [crew.start(keep_handle, tmp_path / "cache", kind) for _ in range(2)]
    for worker in workers:
        worker.hear()
    for worker in workers:
        worker.tell()
        worker.result()
    with opened(tmp_path / "cache", kind) as cache:
        assert cache.get("key") == 1
