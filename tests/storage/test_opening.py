"""Opening a cache while another thread, or another process, has the lock that opening needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import Timeout
from diskcache_like.storage.opening.identity import LOCK
from diskcache_like.storage.opening.mutex import Holding, holding, mutex, under_mutex

PATIENCE = 60.0  # seconds after which a thread gives up; no test waits for it to pass
BUFFERED: dict[str, Any] = {"write_buffer": 1 << 20}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a thread waits for a lock."""
    waits = threading.Event()
    pause = WriteLock._pause

    def note(lock: WriteLock, seconds: float, wake: int) -> bool:
        waits.set()
        return pause(lock, seconds, wake)

    monkeypatch.setattr(WriteLock, "_pause", note)
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
    path = tmp_path / LOCK
    holder, mine, third = WriteLock(path), WriteLock(path), WriteLock(path)
    tries: list[str] = []

    def step(waited: Holding | None) -> int:
        tries.append("begun")
        with (waited or partial(holding, mine))():
            with pytest.raises(Timeout):
                third.acquire(0)
            tries.append("held")
        return 7

    holder.acquire()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(under_mutex, step, str(path), PATIENCE, shared=False)
        assert waits.wait(PATIENCE)
        with mutex():  # which it has not got
            holder.release()
        assert running.result(PATIENCE) == 7
    third.acquire(0)
    assert tries == ["begun", "begun", "held"]


def test_what_a_step_raises_else_is_raised_at_once(tmp_path: Path) -> None:
    def step(_: Holding | None) -> None:
        raise Timeout("of another lock")

    with pytest.raises(Timeout, match="of another lock"):
        under_mutex(step, str(tmp_path / LOCK), PATIENCE, shared=False)
    assert not (tmp_path / LOCK).exists()
