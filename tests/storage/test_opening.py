"""Opening a cache while another thread, or another process, has the lock that opening needs."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence import write_lock
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import CacheError, CorruptDatabaseWarning, DirectoryError, Timeout, TransactionError
from diskcache_like.storage.opening import opener
from diskcache_like.storage.opening.identity import LOCK
from diskcache_like.storage.opening.mutex import holding, mutex, under_mutex
from diskcache_like.storage.shard.open_shard import OpenShard

PATIENCE = 60.0  # seconds after which a thread gives up; no test waits for it to pass
BUFFERED: dict[str, Any] = {"write_buffer": 1 << 20}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a thread waits for a lock."""
    waits = threading.Event()

    def note() -> None:
        waits.set()

    monkeypatch.setattr(write_lock, "may_block", note)
    return waits


@pytest.fixture
def unbuffered(tmp_path: Path) -> Iterator[Cache]:
    """Return a cache whose lock an opening with `BUFFERED` needs, to make the write buffer."""
    with Cache(tmp_path / "unbuffered", write_buffer=0) as cache:
        yield cache


def test_a_transaction_opens_another_cache_while_a_thread_waits_for_its_end(
    unbuffered: Cache, waits: threading.Event, tmp_path: Path
) -> None:
    def opened() -> object:
        with Cache(unbuffered.directory, timeout=PATIENCE, **BUFFERED) as cache:
            cache["k"] = "stored later"
            return cache["k"]

    with ThreadPoolExecutor() as pool:
        with unbuffered.transact():
            opening = pool.submit(opened)
            assert waits.wait(PATIENCE)
            with Cache(tmp_path / "another") as another:
                another["k"] = "stored at once"
            assert not opening.done(), "the other thread gave up, and only that let this one go on"
        assert opening.result(PATIENCE) == "stored later"


@pytest.mark.parametrize("timeout", [0, 0.001, 0.2])
def test_who_opens_gives_up_after_its_timeout(unbuffered: Cache, timeout: float) -> None:
    def opened() -> None:
        Cache(unbuffered.directory, timeout=timeout, **BUFFERED)

    with ThreadPoolExecutor() as pool, unbuffered.transact(), pytest.raises(Timeout, match="was not free within"):
        pool.submit(opened).result(PATIENCE)
    with Cache(unbuffered.directory, timeout=timeout, **BUFFERED) as cache:
        cache["k"] = "v"


def test_a_step_that_finds_its_lock_taken_has_it_the_second_time(tmp_path: Path, waits: threading.Event) -> None:
    holder, mine, third = (WriteLock(tmp_path / LOCK) for _ in range(3))
    tries: list[str] = []

    def step(waited: WriteLock | None) -> int:
        tries.append("begun")
        with holding(mine) if waited is None else nullcontext():
            assert mine.is_mine()
            with pytest.raises(Timeout):
                third.acquire(0)
            tries.append("held")
        return 7

    holder.acquire()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(under_mutex, step, PATIENCE)
        assert waits.wait(PATIENCE)
        with mutex():  # which it has not got
            holder.release()
        assert running.result(PATIENCE) == 7
    third.acquire(0)
    assert tries == ["begun", "begun", "held"]


def test_who_waits_for_a_lock_that_another_thread_closes_begins_anew(tmp_path: Path, waits: threading.Event) -> None:
    holder = WriteLock(tmp_path / LOCK)
    mine = [WriteLock(tmp_path / LOCK), WriteLock(tmp_path / "another")]

    def step(waited: WriteLock | None) -> int:
        with holding(mine[0]) if waited is None else nullcontext():
            return 7

    holder.acquire()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(under_mutex, step, PATIENCE)
        assert waits.wait(PATIENCE)
        mine.pop(0).close()
        assert running.result(PATIENCE) == 7


@pytest.mark.parametrize("problem", [Timeout("of another lock"), DirectoryError(errno.EIO, "of the disk", "file")])
def test_what_a_step_raises_else_is_raised_at_once(problem: CacheError) -> None:
    def step(_: WriteLock | None) -> None:
        raise problem

    with pytest.raises(type(problem), match="of "):
        under_mutex(step, PATIENCE)


def test_a_handler_that_interrupts_an_opening_with_the_lock_is_refused_a_write_at_once(
    unbuffered: Cache, waits: threading.Event, tmp_path: Path
) -> None:
    """The thread has the lock itself, and would wait for itself."""
    store = unbuffered._shards.stores[0]
    refused: list[BaseException] = []

    def step(waited: WriteLock | None) -> None:
        with holding(store.shard.lock) if waited is None else nullcontext():
            if waited is not None:
                with pytest.raises(TransactionError, match="already holds") as caught:
                    unbuffered["k"] = "of a handler"
                refused.append(caught.value)

    holder = WriteLock(tmp_path / "unbuffered" / LOCK)
    holder.acquire()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(under_mutex, step, PATIENCE)
        assert waits.wait(PATIENCE)
        holder.release()
        running.result(PATIENCE)
    assert refused


def test_an_opening_in_a_handler_that_interrupts_another_one_stays(
    unbuffered: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = unbuffered._shards.stores[0].shard
    unbuffered.close()
    open_files, locks = OpenShard._open_files, list[WriteLock]()

    def interrupted(shard: OpenShard, *given: Any) -> Any:
        monkeypatch.undo()
        found = open_files(shard, *given)
        shard.open()
        locks.append(shard.lock)
        return found

    monkeypatch.setattr(OpenShard, "_open_files", interrupted)
    unbuffered["k"] = "v"
    assert [shard.lock] == locks
    assert unbuffered["k"] == "v"


def test_a_warning_is_about_the_line_that_called(tmp_path: Path) -> None:
    """However deep in the package it is found, as where a damaged database is replaced."""
    Cache(tmp_path / "cache").close()
    (tmp_path / "cache" / "cache.db").write_bytes(b"damage" * 1000)
    with pytest.warns(CorruptDatabaseWarning) as said, Cache(tmp_path / "cache") as cache:
        cache["a"] = 1
    assert {warning.filename for warning in said} == {__file__}


@pytest.mark.parametrize("shards", [1, 4])
def test_only_a_new_cache_chooses_a_modulus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    def opened() -> FanoutCache:
        return FanoutCache(tmp_path, shards=shards)

    with opened() as cache:
        cache["key"] = 1
    monkeypatch.setattr(opener, "new_modulus", lambda: pytest.fail("this takes a millisecond"))
    with opened() as cache:
        assert cache["key"] == 1
