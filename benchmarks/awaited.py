"""What an awaited call costs, beside the synchronous one and beside other caches for asyncio, in one run, interleaved.

``python -m benchmarks.awaited`` prints percentiles of reads and writes of 100 bytes, and how late a ticker of 1 ms is
on a loop that writes while eight processes write, too. ``--docs PAGE.md`` puts both tables into that page.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import page
from benchmarks.measure import percentile
from diskcache_like import AsyncCache, Cache

MARK = "awaited"
CALLS, ROUNDS = 400, 25
KEYS = 2000
WRITERS, SECONDS, PARTS = 8, 2.0, 6
TICK = 0.001

WRITER = """
import itertools, os, sys
from diskcache_like import Cache
cache = Cache(sys.argv[1])
for number in itertools.count():
    cache.set((os.getpid(), number % 1000), os.urandom(100))
"""


class Subject(NamedTuple):
    """A cache with its reads and its writes; what they return is awaited unless `sync`."""

    name: str
    get: Callable[[str], Any]
    set: Callable[[str, bytes], Any]
    cool: Callable[[], Any] | None  # forget what is in memory; None where nothing is, or nothing else is
    close: Callable[[], Any]
    sync: bool = False


async def subjects(directory: str) -> list[Subject]:
    """Return what is measured."""
    cache = AsyncCache(f"{directory}/ours")
    await cache.__aenter__()
    sync = cache.sync
    cool = sync._hot.clear
    in_thread: Callable[..., Any] = asyncio.to_thread
    found = [
        Subject("Cache, not awaited", sync.get, sync.set, cool, lambda: None, sync=True),
        Subject("AsyncCache", cache.get, cache.set, cool, cache.aclose),
        Subject(
            "Cache in asyncio.to_thread",
            partial(in_thread, sync.get),
            partial(in_thread, sync.set),
            cool,
            lambda: None,
        ),
    ]
    return found + [made for make in (_cashews, _key_value, _aiosqlite, _aiocache) for made in await make(directory)]


async def _cashews(directory: str) -> list[Subject]:
    from cashews import Cache as Cashews

    cache = Cashews()
    cache.setup(f"disk://?directory={directory}/cashews&shards=0")
    await cache.init()
    return [Subject("cashews, on DiskCache", cache.get, cache.set, None, cache.close)]


async def _key_value(directory: str) -> list[Subject]:
    from key_value.aio.stores.disk import DiskStore

    store = DiskStore(directory=f"{directory}/key_value")

    async def put(key: str, value: bytes) -> None:
        await store.put(key=key, value={"value": value.hex()})

    return [Subject("py-key-value, on DiskCache", lambda key: store.get(key=key), put, None, store.close)]


async def _aiosqlite(directory: str) -> list[Subject]:
    import aiosqlite

    database = await aiosqlite.connect(f"{directory}/table.db", isolation_level=None)
    await database.execute("PRAGMA journal_mode = WAL")
    await database.execute("PRAGMA synchronous = NORMAL")
    await database.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    async def get(key: str) -> Any:
        async with database.execute("SELECT value FROM entry WHERE key = ?", (key,)) as cursor:
            return await cursor.fetchone()

    async def put(key: str, value: bytes) -> None:
        await database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (key, value))

    return [Subject("aiosqlite, a table", get, put, None, database.close)]


async def _aiocache(directory: str) -> list[Subject]:
    from aiocache import SimpleMemoryCache

    cache = SimpleMemoryCache()
    return [Subject("aiocache, memory of one process", cache.get, cache.set, None, cache.close)]


async def timed(subject: Subject, call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[float]:
    """Return the microseconds of each call."""
    times, clock = [], time.perf_counter
    if subject.sync:
        for each in arguments:
            start = clock()
            call(*each)
            times.append(clock() - start)
    else:
        for each in arguments:
            start = clock()
            await call(*each)
            times.append(clock() - start)
    cost = -clock() + clock()
    return [max(seconds - cost, 0) * 1e6 for seconds in times]


async def calls(directory: str) -> list[tuple[str, dict[str, list[float]]]]:
    """Return what each subject's calls took: of reads in memory, of reads from the disk, and of writes."""
    found: dict[str, dict[str, list[float]]] = {}
    everyone = await subjects(directory)
    keys = [f"key {number}" for number in range(KEYS)]
    for subject in everyone:
        for key in keys:
            result = subject.set(key, os.urandom(100))
            if not subject.sync:
                await result
    for turn in range(ROUNDS):
        some = [keys[(turn * CALLS + number) % KEYS] for number in range(CALLS)]
        reads = [(key,) for key in some]
        for subject in everyone:
            mine = found.setdefault(subject.name, {"hot": [], "cold": [], "set": []})
            if subject.cool is not None:
                subject.cool()
            mine["cold"] += await timed(subject, subject.get, reads)
            mine["hot"] += await timed(subject, subject.get, reads)
            mine["set"] += await timed(subject, subject.set, [(key, os.urandom(100)) for key in some])
    for subject in everyone:
        closing = subject.close()
        if isinstance(closing, Awaitable):
            await closing
    return list(found.items())


def calls_table(found: list[tuple[str, dict[str, list[float]]]]) -> str:
    """Return a table of percentiles, in microseconds."""
    lines = [
        "| | get, in memory: p50 | p99 | get, cold: p50 | p99 | set: p50 | p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, times in found:
        cells = [
            f"{percentile(sorted(times[kind]), mille):.3g}" for kind in ("hot", "cold", "set") for mille in (500, 990)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


async def lateness(directory: str, way: str, seconds: float) -> list[float]:
    """Return by how many milliseconds each tick was late on a loop that writes in one of the ways meanwhile."""
    late: list[float] = []
    ends = False
    async with AsyncCache(directory) as cache:

        async def write(number: int) -> None:
            while not ends:
                key, value = (number, len(late) % 1000), os.urandom(100)
                if way == "AsyncCache":
                    await cache.set(key, value)
                elif way == "asyncio.to_thread":
                    await asyncio.to_thread(cache.sync.set, key, value)
                elif way == "Cache, blocking":
                    cache.sync.set(key, value)
                await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(write(number)) for number in range(4)]
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            await asyncio.sleep(TICK)
            late.append((time.perf_counter() - now - TICK) * 1e3)
        ends = True
        await asyncio.gather(*tasks)
    return late


def lateness_table(directory: str) -> str:
    """Return a table of how late ticks are beside processes that write without pause."""
    Cache(directory).close()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, directory]) for _ in range(WRITERS)]
    found: dict[str, list[float]] = {"no cache": [], "AsyncCache": [], "asyncio.to_thread": [], "Cache, blocking": []}
    try:
        time.sleep(1)
        for _ in range(PARTS):
            for way, late in found.items():
                late += asyncio.run(lateness(directory, way, SECONDS))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    lines = ["| the loop writes with | p50 | p99 | p99.9 | ticks |", "|---|---|---|---|---|"]
    for way, late in found.items():
        cells = [f"{percentile(sorted(late), mille):.2f}" for mille in (500, 990, 999)]
        lines.append(f"| {way} | {' | '.join(cells)} | {len(late):,} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE.md", help="put the tables into the marked place of this page"
    )
    options = parser.parse_args()
    if options.docs:
        page.marked(options.docs, MARK)
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(calls(directory))
        times = dict(found)
        sync, face = times["Cache, not awaited"], times["AsyncCache"]
        ratio = {kind: statistics.median(face[kind]) / statistics.median(sync[kind]) for kind in sync}
        text = (
            f"Microseconds of a call with 100 bytes:\n\n{calls_table(found)}\n\n"
            f"Awaited over not awaited: {', '.join(f'{kind} {value:.2f}' for kind, value in ratio.items())}.\n\n"
            f"Milliseconds by which a ticker of 1 ms is late beside {WRITERS} processes that write without pause:\n\n"
            f"{lateness_table(f'{directory}/shared')}\n"
        )
    print(text)
    if options.docs:
        page.put(options.docs, MARK, text)


if __name__ == "__main__":
    main()
