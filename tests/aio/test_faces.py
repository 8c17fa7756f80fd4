"""The asynchronous classes: what they offer, where their calls run, and what cancellation leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from diskcache_like import AsyncCache, AsyncFanoutCache, Cache, Deque, FanoutCache, Index, Timeout, aio
from diskcache_like.coherence.generations import Header
from diskcache_like.entries import handle
from diskcache_like.entries.atomic_key import AtomicKey
from diskcache_like.memoizing import computing, rules, steps
from diskcache_like.memoizing.flights import Flight
from diskcache_like.settings.definitions import SettingsInForce
from diskcache_like.storage.opening.mutex import mutex
from diskcache_like.system import threads
from diskcache_like.system.blocking import WouldBlock
from diskcache_like.system.tasks import has_ended
from diskcache_like.system.threads import Threads

from ..support.awaited import awaited
from ..support.cache_kinds import few, one
from ..support.contention import held
from ..support.workers import PATIENCE, in_threads

T = TypeVar("T")

LARGE = b"x" * 200_000

uvloop.run(asyncio.sleep(0))  # it keeps a pipe open from its first loop on

# What a face has no method for, and why.
ABSENT = {
    "aio": "it is the face",
    "close": "aclose",
    "directory": "a property of both",
    "disk": "in .sync",
    "timeout": "in .sync",
}


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in an event loop of its own, which it must not outlast."""
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the list of the functions that were called in a thread."""
    found: list[object] = []
    call = Threads.call

    async def note(self: Threads, function: Callable[[], T], waits: bool = True) -> T:
        found.append(function)
        return await call(self, function, waits)

    monkeypatch.setattr(Threads, "call", note)
    return found


async def waiting(cache: Cache) -> None:
    """Return when a thread of the face waits for the write lock of a shard."""
    while not any(store.shard.lock.core.waiting() for store in cache._shards.stores):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


# -- what there is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "face"),
    [(Cache, AsyncCache), (FanoutCache, AsyncFanoutCache), (Deque, aio.AsyncDeque), (Index, aio.AsyncIndex)],
)
def test_a_face_has_every_public_operation(kind: type, face: type) -> None:
    wanted = {
        name for name in dir(kind) if not name.startswith("_") and not hasattr(SettingsInForce, name)
    } - ABSENT.keys()
    if kind in (Deque, Index):
        wanted -= {"cache", "fromcache", "maxlen", "copy", "memoize"}  # the object itself, or its settings
    assert wanted - set(dir(face)) == set()


def test_a_method_has_the_name_the_documentation_and_the_parameters_of_the_one_that_it_awaits() -> None:
    method: Any = vars(AsyncCache)["set"]
    assert method.__qualname__ == "AsyncCache.set"
    assert method.__doc__ == Cache.set.__doc__
    assert inspect.signature(method) == inspect.signature(Cache.set)


@one
def test_what_cannot_be_awaited_says_what_to_write_instead(cache: Cache) -> None:
    face: Any = cache.aio
    with pytest.raises(TypeError, match="await getitem"):
        face["k"]
    with pytest.raises(TypeError, match="await length"):
        len(face)
    with pytest.raises(TypeError, match="await contains"):
        "k" in face  # noqa: B015
    with pytest.raises(TypeError, match="await setitem"):
        face["k"] = 1
    with pytest.raises(TypeError, match="await delitem"):
        del face["k"]
    with pytest.raises(TypeError, match="async for"):
        list(face)
    assert face, "an empty cache is not false"
    with pytest.raises(AttributeError, match=r"AsyncCache.*'nothing'"):
        AsyncCache().nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'size_limit'.*use \.sync"):
        face.size_limit  # noqa: B018


@few
def test_iteration_comes_in_pages(cache: Cache) -> None:
    cache.set_many({f"k{n}": n for n in range(250)}, tag="t")

    async def main() -> None:
        face = cache.aio
        assert [key async for key in face] == list(cache)
        assert sorted([key async for key in face.keys(prefix="k1")]) == sorted(cache.keys(prefix="k1"))
        assert sorted([pair async for pair in face.items()]) == sorted(cache.items())
        assert await face.length() == await face.count() == 250

    run(main)


@one
def test_namespaces_streams_and_errors_pass_through(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        inner = face.namespace("users")
        await inner.set("ada", 1)
        assert (await inner.get("ada"), await face.get("ada"), await inner.length()) == (1, None, 1)
        async with face.open("s", "wb") as writer:
            assert await writer.write(LARGE) == len(LARGE)
        async with face.open("s") as reader:
            assert b"".join([piece async for piece in reader]) == LARGE
        with pytest.raises(RuntimeError):
            async with face.open("s", "wb") as writer:
                await writer.write(b"part")
                raise RuntimeError
        assert await face.get("s") == LARGE
        with pytest.raises(KeyError):
            await face.getitem("missing")
        with pytest.raises(TypeError, match="expected a number"):
            await face.set("text", "x")
            await face.incr("text")

    run(main)


def test_deques_indexes_and_named_children(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncFanoutCache(tmp_path, 2) as face:
            queue = await face.deque("queue", maxlen=3)
            await queue.extend(range(4))
            assert [item async for item in queue] == [1, 2, 3]
            assert (await queue.popleft(), await queue.getitem(0), await queue.length()) == (1, 2, 2)
            assert (await queue.contains(3), await queue.count(3)) == (True, 1)
            index = await face.index("index")
            await index.update({"a": 1, "b": 2})
            assert [pair async for pair in index.items()] == [("a", 1), ("b", 2)]
            assert (await index.setdefault("c", 3), await index.popitem()) == (3, ("c", 3))
            child = await face.cache("child")
            await child.set("k", 1)
            assert child.sync is face.sync.cache("child")
            assert queue.sync.aio.sync is queue.sync

    run(main)


@one
def test_a_face_is_copied_to_another(cache: Cache, tmp_path: Path) -> None:
    cache.set("k", 1, tag="t")

    async def main() -> None:
        async with AsyncCache(tmp_path / "other") as other:
            assert await cache.aio.copy_to(other) == 1
            assert await other.get("k", tag=True) == (1, "t")

    run(main)


# -- where calls run --------------------------------------------------------------------------------------------------


@few
def test_small_calls_stay_on_the_loop(cache: Cache, hops: list[object]) -> None:
    if cache.reset("disk_min_file_size") == 0:
        return  # every value is in a file
    cache.set_many({n: n for n in range(50)})  # which measures the volume of each shard

    async def main() -> None:
        face = cache.aio
        assert await face.set("k", {"a": [1, 2, "three"]}, expire=60, tag="t")
        assert await face.get("k") == {"a": [1, 2, "three"]}
        cache._hot.clear()
        assert await face.get("k") == {"a": [1, 2, "three"]}
        assert await face.get("missing") is None
        assert await face.incr("n") == 1
        assert await face.delete("k")

    run(main)
    assert hops == []


@one
@pytest.mark.parametrize(
    "call",
    [
        lambda face: face.set("k", LARGE),
        lambda face: face.set("k", list(range(1000))),
        lambda face: face.set("k", slice(1)),
        lambda face: face.get("large"),
        lambda face: face.get_many(range(1000)),
        lambda face: face.pop("large"),
        lambda face: face.clear(),
    ],
)
def test_large_ones_go_to_a_thread(cache: Cache, hops: list[object], call: Callable[[Any], Awaitable[Any]]) -> None:
    cache["large"] = LARGE

    async def main() -> None:
        await call(cache.aio)

    run(main)
    assert len(hops) == 1


@one
@pytest.mark.parametrize("anew", [False, True])
def test_what_tests_await_like_a_cache_runs_on_loops_and_in_threads(
    cache: Cache, hops: list[object], anew: bool
) -> None:
    cache["k"] = 0  # which measures the volume
    with contextlib.closing(awaited(cache, anew)) as same:
        same["k"] = 1
        assert same["k"] == same.get("k") == same.incr("n") == 1
        assert ("k" in same, "large" in same, hops) == (True, False, [])
        same.set("large", LARGE)
        assert len(hops) == 1
        assert sorted(same) == sorted(same.keys()) == ["k", "large", "n"]
        with pytest.raises(KeyError), same.transact():
            assert same.namespace("space").add("k", 2)
            with same.transact():
                del same["k"]
            assert (len(same), cache.get("k")) == (3, 1), "another thread sees nothing yet"
            same["missing"]
        assert (len(same), same.get("k")) == (3, 1)
        same.close()
        assert same.get("k") == 1


def test_writes_that_are_synced_go_to_a_thread(tmp_path: Path, hops: list[object]) -> None:
    async def main() -> None:
        async with AsyncCache(tmp_path, durability="power") as face:
            for number in range(2):  # the first one measures the volume, which takes a thread anyway
                await face.set("k", number)
                assert len(hops) == number + 1

    run(main)


def test_writes_go_to_a_thread_while_others_wait_for_a_lock_and_a_little_longer(
    tmp_path: Path, hops: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "LATELY", 1e6)
    with FanoutCache(tmp_path, 2) as cache:
        cache.set_many({key: 0 for key in range(10)})  # which measures the volumes
        lock = cache._shards.stores[0].shard.lock

        async def main() -> None:
            await cache.aio.set("k", 1)
            assert not hops
            with monkeypatch.context() as patch:
                patch.setattr(lock, "contended", lambda: True)
                await cache.aio.set("k", 2)
            await cache.aio.set("k", 3)
            assert len(hops) == 2
            cache._handle._contended_until -= 1e6
            await cache.aio.set("k", 4)
            assert len(hops) == 2

        run(main)
        assert cache["k"] == 4


def test_a_write_within_a_transaction_of_the_task_is_part_of_it_even_if_it_may_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCache(tmp_path, timeout=0) as face:
            with pytest.raises(KeyError):
                async with face.transact():
                    await face.set("k", 1)
                    await face.getitem("missing")
            assert await face.get("k") is None

    run(main)


def test_a_write_that_goes_to_a_thread_has_changed_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FanoutCache(tmp_path, 2, timeout=PATIENCE) as cache:
        last = cache._shards.stores[1]
        first, second = sorted(range(10), key=lambda key: cache._rows.locate(key)[2] is last)[4:6]
        cache.set_many({first: 0, second: 0})  # which measures the volumes
        call = Threads.call

        async def overwrite(self: Threads, function: Callable[[], T], waits: bool = True) -> T:
            assert cache.get(first) == 0, "what begins anew would undo what others write now"
            done.set()
            return await call(self, function, waits)

        monkeypatch.setattr(Threads, "call", overwrite)
        with held(cache, last) as done:

            async def main() -> None:
                assert await cache.aio.set_many({first: 1, second: 1}) == 2

            run(main)
        assert cache.get_many([first, second]) == {first: 1, second: 1}


def test_an_update_of_two_parts_begins_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path, {"first": 0, "second": 0})
    call = Threads.call

    async def look(self: Threads, function: Callable[[], T], *arguments: Any) -> T:
        assert dict(index) == {"first": 0, "second": 0}, "what begins anew would undo what others write now"
        return await call(self, function, *arguments)

    monkeypatch.setattr(Threads, "call", look)
    cache = index.cache
    transact, begun = cache.transact, []

    def checkpoint_between(**options: Any) -> Any:
        begun.append(options)
        if len(begun) == 2:
            cache._shards.stores[0].shard.header[Header.VOLUME_DUE] = 0  # a checkpoint is due
        return transact(**options)

    monkeypatch.setattr(cache, "transact", checkpoint_between)
    run(lambda: index.aio.update({"first": 1}, second=2))
    assert dict(index) == {"first": 1, "second": 2}
    cache.close()


@pytest.mark.parametrize(
    "step",
    [
        lambda face: face.flush(),
        lambda face: face.peekitem(),
        lambda face: face.set("long", bytes(20_000)),
        lambda face: face.set_many({"a": 1, "b": 2}),
    ],
)
def test_the_write_buffer_is_flushed_in_a_thread(
    tmp_path: Path, hops: list[object], step: Callable[[Any], Coroutine[Any, Any, object]]
) -> None:
    with Cache(tmp_path, write_buffer=1 << 20) as cache:
        cache["first"] = bytes(20_000)  # measures the volume

        async def main() -> None:
            for number in range(100):
                await cache.aio.set(number, bytes(100))
            await cache.aio.set("k", 1)
            assert hops == []
            await step(cache.aio)
            assert len(hops) == 1
            await cache.aio.set("long", bytes(20_000))
            assert len(hops) == 1, "nothing waits any more"

        run(main)


def test_a_checkpoint_goes_to_a_thread(tmp_path: Path, hops: list[object]) -> None:
    with Cache(tmp_path) as cache:
        cache["k"] = 1

        async def main() -> None:
            await cache.aio.set("k", 2)
            assert hops == []
            header = cache._shards.stores[0].shard.header
            header[Header.WRITTEN] = header[Header.VOLUME_DUE] + 1  # a checkpoint is due
            await cache.aio.set("k", 3)
            assert len(hops) == 1
            assert await cache.aio.get("k") == 3

        run(main)


@few
def test_the_loop_goes_on_while_a_write_waits_for_the_lock(cache: Cache) -> None:
    cache["there"] = 1

    async def main() -> None:
        face = cache.aio
        with held(cache) as done:
            writing = [asyncio.create_task(face.set(n, n)) for n in range(20)]
            await waiting(cache)
            for _ in range(100):
                assert await face.get("there") == 1
                await asyncio.sleep(0)
            assert not any(task.done() for task in writing)
            done.set()
            assert all(await asyncio.gather(*writing))
        assert await face.get(19) == 19

    run(main)


@one
@pytest.mark.parametrize(
    "read",
    [
        lambda face: face.get("large"),
        lambda face: face.length(),
        lambda face: face.count(),
        lambda face: face.tags(),
        lambda face: face.volume(),
        lambda face: anext(aiter(face)),
        lambda face: read_stream(face),
    ],
)
def test_reads_do_not_queue_behind_writers_that_wait(cache: Cache, read: Callable[[Any], Awaitable[Any]]) -> None:
    cache["large"] = LARGE

    async def main() -> None:
        with held(cache) as done:
            writing = [asyncio.create_task(cache.aio.set(n, n)) for n in range(threads.MAX_THREADS)]
            await waiting(cache)
            reading = asyncio.ensure_future(read(cache.aio))
            await asyncio.wait({reading}, timeout=PATIENCE / 6)
            was_first = reading.done()
            done.set()
            await asyncio.gather(reading, *writing)
            assert was_first

    run(main)


async def read_stream(face: Any) -> None:
    async with face.open("large") as stream:
        assert await stream.read() == LARGE


@one
def test_writes_do_not_queue_behind_functions_that_compute(cache: Cache) -> None:
    async def main() -> None:
        face, may_end, begun = cache.aio, threading.Event(), threading.Semaphore(0)

        def compute() -> bool:
            begun.release()
            return may_end.wait(PATIENCE)

        computing = [asyncio.create_task(face.get_or_set(n, compute)) for n in range(threads.MAX_THREADS)]
        for _ in computing:
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        writing = asyncio.create_task(face.set("large", LARGE))
        await asyncio.wait({writing}, timeout=PATIENCE / 6)
        was_first = writing.done()
        may_end.set()
        await asyncio.gather(writing, *computing)
        assert was_first

    run(main)


@one
def test_a_timeout_is_the_one_of_the_cache(cache: Cache) -> None:
    async def main() -> None:
        with held(cache):
            cache._handle.timeout = 0.01
            with pytest.raises(Timeout):
                await cache.aio.set("k", 1)

    run(main)


@one
def test_a_program_that_blocks_its_loop_by_itself_may_do_so(cache: Cache) -> None:
    cache["large"] = LARGE

    async def compute() -> int:
        cache._hot.clear()
        return len(cache["large"])  # within a call of the face

    async def main() -> None:
        assert await cache.aio.get_or_set("k", compute) == len(LARGE)
        cache._hot.clear()
        assert cache["large"] == LARGE
        cache.aio.sync.set("also large", LARGE)

    run(main)


@one
def test_an_event_loop_within_a_function_that_computes_is_not_blocked_either(cache: Cache, hops: list[object]) -> None:
    cache["large"] = LARGE

    def compute() -> int:
        cache._hot.clear()
        before = len(hops)
        asyncio.run(cache.aio.get("large"))
        return len(hops) - before

    async def main() -> None:
        assert await cache.aio.get_or_set("calls in a thread", compute) == 1

    run(main)


@one
@pytest.mark.parametrize("is_first", [False, True])
def test_the_loop_goes_on_while_another_thread_opens_a_cache(cache: Cache, is_first: bool) -> None:
    opening, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex():
            opening.set()
            may_end.wait(PATIENCE / 6)

    thread = threading.Thread(target=hold)

    async def main() -> None:
        if not is_first:
            assert await cache.aio.get_or_set("before", fetch) == "fetched"
        thread.start()
        assert await asyncio.to_thread(opening.wait, PATIENCE)
        computing = asyncio.create_task(cache.aio.get_or_set("k", fetch))
        await asyncio.sleep(0.01)
        assert thread.is_alive(), "the loop waited for it"
        assert is_first or await computing == "fetched"
        assert thread.is_alive(), "the computation waited for it"
        may_end.set()
        assert await computing == "fetched"

    try:
        run(main)
    finally:
        may_end.set()
        thread.join()


# -- cancellation -----------------------------------------------------------------------------------------------------


@few
def test_a_cancelled_write_that_waits_for_the_lock_does_nothing(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        with held(cache) as done:
            writing = asyncio.create_task(face.set("k", 1))
            await waiting(cache)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing  # though the lock is still held
            done.set()
        assert await face.get("k") is None
        assert await face.set("k", 2), "the lock is free"

    run(main)


@one
def test_a_cancelled_write_that_has_begun_is_awaited(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["first"] = LARGE  # which measures the volume
    began, may_end = threading.Event(), threading.Event()
    store = cache._shards.stores[0]
    put = store.put

    def slow(*arguments: Any) -> int:
        began.set()
        assert may_end.wait(PATIENCE)
        return put(*arguments)

    monkeypatch.setattr(store, "put", slow)

    async def main() -> None:
        writing = asyncio.create_task(cache.aio.set("k", LARGE))
        assert await asyncio.to_thread(began.wait, PATIENCE)
        writing.cancel()
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.sleep(0)
        assert not writing.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await cache.aio.get("k") == LARGE, "the caller is told when what was begun has happened"

    run(main)


@one
@pytest.mark.parametrize("by_entry", [False, True])
def test_a_computation_that_is_cancelled_as_it_takes_its_turn_gives_it_back(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, by_entry: bool
) -> None:
    if by_entry:
        monkeypatch.setattr(AtomicKey, "hold", lambda self, owner: None)  # as where the kernel has no such locks
    began, may_end = threading.Event(), threading.Event()
    begin = Flight.begin

    def slow(flight: Flight, *arguments: Any) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise WouldBlock  # so that it is called in a thread
        found = begin(flight, *arguments)
        began.set()
        assert may_end.wait(PATIENCE)
        return found

    monkeypatch.setattr(Flight, "begin", slow)

    async def main() -> None:
        task = asyncio.create_task(cache.aio.get_or_set("k", fetch))
        assert await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        try:
            await task
        except asyncio.CancelledError:  # which holds the frames that it came through, and so the flight
            other = computing.Computation(cache, rules.Rules(), "scope").flight("k")
            assert begin(other), "another one may compute"
            other.finish()
        else:
            raise AssertionError("it was cancelled")

    run(main)


@one
def test_a_computation_that_is_left_to_somebody_who_gets_another_value_goes_on(cache: Cache) -> None:
    async def main() -> None:
        face, began, may_end = cache.aio, asyncio.Event(), asyncio.Event()

        async def compute() -> str:
            began.set()
            await may_end.wait()
            return "computed"

        first = asyncio.create_task(face.get_or_set("k", compute))
        await began.wait()  # it has looked for a value by then
        other = asyncio.create_task(face.get_or_set("k", compute))
        while [job.waiters for job in steps._jobs.values()] != [2]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (job,) = steps._jobs.values()
        first.cancel()
        await asyncio.wait({first})  # else the other may be gone first, and this be the last that waits
        await face.set("k", "written")
        assert await other == "written"
        await face.delete("k")
        may_end.set()
        assert await has_ended(job.task, PATIENCE)
        assert await face.get("k") == "computed"

    run(main)


@one
def test_a_computation_is_cancelled_with_the_last_who_waits_though_another_got_a_value(cache: Cache) -> None:
    async def main() -> None:
        face, began, ended = cache.aio, asyncio.Event(), asyncio.Event()

        async def compute() -> str:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return "computed"

        first = asyncio.create_task(face.get_or_set("k", compute))
        await began.wait()  # it has looked for a value by then
        other = asyncio.create_task(face.get_or_set("k", compute))
        while [job.waiters for job in steps._jobs.values()] != [2]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await face.set("k", "written")
        assert await other == "written"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ended.is_set()
        assert await face.get("k") == "written"

    run(main)


@few
def test_a_cancelled_transaction_is_rolled_back(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        inside = asyncio.Event()

        async def work() -> None:
            async with face.transact():
                await face.set("k", 1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await face.get("k") is None
        assert await face.set("k", 2)

    run(main)


@few
def test_a_transaction_that_is_cancelled_while_it_waits_holds_nothing(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio

        async def work() -> None:
            async with face.transact(retry=True):
                raise AssertionError("it must not begin")

        with held(cache) as done:
            task = asyncio.create_task(work())
            await waiting(cache)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            done.set()
        assert await face.set("k", 1)

    run(main)


# -- transactions -----------------------------------------------------------------------------------------------------


@few
def test_a_transaction_is_one_tasks_and_others_wait(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        async with face.transact():
            await face.set("a", 1)
            assert await face.get("a") == 1
            assert await face.get_or_set("computed", lambda: 5) == 5
            other = asyncio.create_task(face.set("b", 2))
            assert await asyncio.create_task(face.get("a")) is None, "another task sees nothing yet"
            with pytest.raises(KeyError):
                async with face.transact():
                    await face.set("nested", 1)
                    raise KeyError
            assert await face.get("nested") is None
            assert not other.done()
        assert await other
        assert await face.get_many(["a", "b", "computed", "nested"]) == {"a": 1, "b": 2, "computed": 5}

    run(main)


@few
def test_a_function_that_computes_in_a_transaction_takes_part_in_it(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        cache._handle.timeout = 0.01  # so that it fails, rather than waits, where it does not
        with pytest.raises(KeyError):
            async with face.transact():
                assert await face.get_or_set("k", lambda: cache.incr("n")) == 1
                assert await face.get("n") == 1
                raise KeyError
        assert await face.get_many(["k", "n"]) == {}

    run(main)


# -- loops and processes ----------------------------------------------------------------------------------------------


def test_a_face_is_pickled_with_what_is_behind(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCache(tmp_path / "cache") as face:
            await face.set("k", 1)
            again = pickle.loads(pickle.dumps(face))
            assert type(again) is AsyncCache
            assert await again.get("k") == 1
            await again.aclose()
        deque = pickle.loads(pickle.dumps(Deque([1], tmp_path / "deque").aio))
        assert await deque.popleft() == 1
        await deque.aclose()

    run(main)


@one
def test_uvloop(cache: Cache) -> None:
    async def main() -> None:
        face = cache.aio
        await face.set("large", LARGE)
        async with face.transact():
            await face.set("k", 1)
        assert await face.get_or_set("computed", fetch) == "fetched"
        assert await face.length() == 3

    uvloop.run(main())


async def fetch() -> str:
    return "fetched"


@one
def test_a_call_whose_loop_is_closed_meanwhile_ends_without_another_error(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # which is told of a task that is destroyed
    with held(cache):
        task = loop.create_task(cache.aio.set("k", 1, retry=True))
        loop.run_until_complete(waiting(cache))
        loop.close()
        del task, loop
    for pool in cache._handle.threads._pools.values():
        pool.shutdown()  # which waits for the call, by which the task is still referred to
    gc.collect()
    assert told == []


@one
def test_loops_come_and_go_and_run_side_by_side(cache: Cache) -> None:
    async def main(number: int) -> None:
        for n in range(50):
            await cache.aio.set((number, n), LARGE if n % 10 == 0 else n)
            assert await cache.aio.incr("all") > 0

    for number in range(2):
        asyncio.run(main(number), debug=True)
    in_threads(3, lambda number: asyncio.run(main(number + 2)))
    assert cache["all"] == 250


def test_a_forked_child_has_threads_of_its_own(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:

        async def main() -> None:
            await cache.aio.set("large", LARGE)

        run(main)
        child = os.fork()
        if child == 0:
            try:
                run(main)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_cache_opens_in_a_thread_or_with_its_first_use(tmp_path: Path) -> None:
    async def main() -> None:
        face = AsyncCache(tmp_path, size_limit=2**20)
        assert not os.listdir(tmp_path)
        async with face:
            assert await face.set("k", 1)
        later = AsyncCache(tmp_path)
        assert await later.get("k") == 1
        await later.aclose()

    run(main)


# -- computed values --------------------------------------------------------------------------------------------------


@one
def test_plain_functions_are_called_in_a_thread(cache: Cache) -> None:
    async def main() -> None:
        here = threading.get_ident()
        assert await cache.aio.get_or_set("k", threading.get_ident) != here
        assert await cache.aio.get_or_set("awaited", lambda: fetch()) == "fetched"

        @cache.aio.memoize(expire=60)
        def thread_of(number: int) -> int:
            return threading.get_ident()

        assert await thread_of(1) == await thread_of(1) != here

    run(main)
