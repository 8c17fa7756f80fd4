"""Do the same work in every thread of several processes at once; hold the write lock; wait for what goes on behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskcache_like import Cache, FanoutCache
from diskcache_like.memoizing.steps import RENEWAL
from diskcache_like.storage.store import Store

from .workers import PATIENCE, Crew, Link, in_threads, ready

PROCESSES = 8
THREADED = (2, 8)  # processes, and threads in each
Work = Callable[[Cache, int], Any]


def opened(directory: Path, kind: str, **settings: Any) -> Cache:
    """Open a handle; its writes wait for as long as another test might still be at work."""
    if kind == "fanout":
        return FanoutCache(directory, shards=4, timeout=60, durability="process", **settings)
    return Cache(directory, durability="process", **settings)


def run_threads(link: Link, number: int, directory: Path, kind: str, threads: int, work: Work) -> list[Any]:
    """Run `work(cache, thread's number)` in threads on one handle; return what each returned."""
    with opened(directory, kind) as cache:
        ready(link)
        return in_threads(threads, lambda index: work(cache, number * threads + index))


def everywhere(crew: Crew, directory: Path, kind: str, layout: tuple[int, int], work: Work) -> list[Any]:
    """Run `work` in every thread of every process at once; return what all of them returned."""
    processes, threads = layout
    workers = crew.start_many(processes, run_threads, directory, kind, threads, work)
    crew.together(workers)
    return sum(crew.results(workers), [])


@contextmanager
def held(cache: Cache, store: Store | None = None) -> Iterator[threading.Event]:
    """Hold the cache's write locks, or that of a shard, in another thread until the body ends, or sets the event."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache.transact(retry=True) if store is None else store.transaction(None):
            begun.set()
            assert done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield done
    finally:
        done.set()
        thread.join()


def finish_renewals() -> None:
    """Wait until what is computed in threads, behind who asked for it, is there."""
    for thread in threading.enumerate():
        if thread.name == RENEWAL:
            thread.join(PATIENCE)
