"""What an awaited call costs, beside the synchronous one and beside other caches for asyncio, in one run, interleaved.

``python -m benchmarks.awaited`` prints percentiles of reads and writes of 100 bytes, how late a ticker of 1 ms is on a
loop that writes while eight processes write, too, and whether the demands on both are met. ``--docs PAGE.md`` puts that
into that page. Two ways that must miss a demand are measured as well: a thread hop for every call, and calls that block
the loop. If neither did, the measurement could tell nothing, and fails.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.budgets import BUDGETS, MISSED, assess
from benchmarks.command import run_as_command
from benchmarks.measure import BLOCK, clock, percentile, ratios, summarise
from benchmarks.part import Part
from benchmarks.report import Table, duration
from benchmarks.section import Findings, Options, Run
from diskcache_like import AsyncCache, Cache

SECTION = "awaited"
OPTIONS = Options(repeats=9, operations=2_000)  # with nine, one repetition on either side may be out of line
SYNC, FACE, HOPPING, BLOCKING, IDLE = (
    "Cache, not awaited",
    "AsyncCache",
    "Cache in asyncio.to_thread",
    "Cache, blocking the loop",
    "no cache",
)
KINDS = {"hot": "get, in memory", "cold": "get, cold", "set": "set"}
SHOWN = {"p50": 500, "p99": 990, "p99.9": 999}
WRITERS, WARMING = 8, 1.0
TICK = 1_000_000  # nanoseconds
PAUSE = 0.002  # seconds between the writes of each of the four tasks

WRITER = """
import itertools, os, sys
from diskcache_like import Cache
cache = Cache(sys.argv[1])
for number in itertools.count():
    cache.set((os.getpid(), number % 1000), os.urandom(100))
"""

Times = dict[str, dict[str, list[list[int]]]]  # by subject and kind of call: the times of each repetition


class Subject(NamedTuple):
    """A cache with its reads and its writes; what they return is awaited unless `sync`."""

    name: str
    get: Callable[[str], Any]
    set: Callable[[str, bytes], Any]
    close: Callable[[], Any]
    cool: Callable[[], Any] | None = None  # forget what is in memory; None where nothing is, or nothing else is
    sync: bool = False


async def _ours(directory: Path) -> list[Subject]:
    cache = await AsyncCache(directory).__aenter__()
    sync, cool = cache.sync, cache.sync._hot.clear
    in_thread: Callable[..., Any] = asyncio.to_thread
    get, put = partial(in_thread, sync.get), partial(in_thread, sync.set)
    return [
        Subject(SYNC, sync.get, sync.set, lambda: None, cool, sync=True),
        Subject(FACE, cache.get, cache.set, cache.aclose, cool),
        Subject(HOPPING, get, put, lambda: None, cool),
    ]


async def _cashews(directory: Path) -> list[Subject]:
    from cashews import Cache as Cashews

    cache = Cashews()
    cache.setup(f"disk://?directory={directory}&shards=0")
    await cache.init()
    return [Subject("cashews, on DiskCache", cache.get, cache.set, cache.close)]


async def _key_value(directory: Path) -> list[Subject]:
    from key_value.aio.stores.disk import DiskStore

    store = DiskStore(directory=directory)

    async def put(key: str, value: bytes) -> None:
        await store.put(key=key, value={"value": value.hex()})

    return [Subject("py-key-value, on DiskCache", lambda key: store.get(key=key), put, store.close)]


async def _aiosqlite(directory: Path) -> list[Subject]:
    import aiosqlite

    database = await aiosqlite.connect(directory.with_suffix(".db"), isolation_level=None)
    await database.execute("PRAGMA journal_mode = WAL")
    await database.execute("PRAGMA synchronous = NORMAL")
    await database.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    async def get(key: str) -> Any:
        async with database.execute("SELECT value FROM entry WHERE key = ?", (key,)) as cursor:
            return await cursor.fetchone()

    async def put(key: str, value: bytes) -> None:
        await database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (key, value))

    return [Subject("aiosqlite, a table", get, put, database.close)]


async def _aiocache(directory: Path) -> list[Subject]:
    from aiocache import SimpleMemoryCache

    cache = SimpleMemoryCache()
    return [Subject("aiocache, memory of one process", cache.get, cache.set, cache.close)]


PEERS = {"cashews": _cashews, "py-key-value": _key_value, "aiosqlite": _aiosqlite, "aiocache": _aiocache}


@asynccontextmanager
async def subjects(run: Run, skipped: list[str]) -> AsyncIterator[list[Subject]]:
    """Open what is measured; name the peers that are not installed in `skipped`."""
    found = await _ours(run.workspace.fresh("ours"))
    for name, make in {} if run.alone else PEERS.items():
        try:
            found += await make(run.workspace.fresh(name))
        except ImportError as error:
            skipped.append(f"{name} skipped: {error}; install it with: make .venv/.installed-to-compare")
    async with AsyncExitStack() as stack:
        for subject in found:
            stack.push_async_callback(finished, subject.close)
        yield found


async def finished(call: Callable[[], Any]) -> None:
    """Call, and wait for what is awaited."""
    result = call()
    if isinstance(result, Awaitable):
        await result


async def timed(subject: Subject, call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[int]:
    """Return the nanoseconds of each call, with the clock's."""
    times = []
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
    return times


async def calls(run: Run, skipped: list[str]) -> tuple[Times, dict[str, list[float]]]:
    """Return what each subject's calls took, and what was measured of our own hits in blocks of calls."""
    blocks: dict[str, list[float]] = {}
    keys = [f"key {number}" for number in range(min(run.options.operations, OPTIONS.operations))]
    async with subjects(run, skipped) as everyone:
        times: Times = {subject.name: {kind: [] for kind in KINDS} for subject in everyone}
        for turn in range(run.options.repeats):
            run.note(f"calls, round {turn + 1}", turn / run.options.repeats / 2)
            for parts in (part for mine in times.values() for part in mine.values()):
                parts.append([])
            for start in range(0, len(keys), BLOCK):  # turns are short, so that what slows one down slows all
                for subject in everyone:
                    await _calls_of(subject, keys[start : start + BLOCK], times[subject.name])
            for name, value in (await _hits(run, everyone, keys)).items():
                blocks.setdefault(name, []).append(value)
    return times, blocks


async def _calls_of(subject: Subject, keys: Sequence[str], times: dict[str, list[list[int]]]) -> None:
    """Time the calls of a subject on some keys, and add them to those of the repetition."""
    reads = [(key,) for key in keys]
    times["set"][-1] += await timed(subject, subject.set, [(key, os.urandom(100)) for key in keys])
    if subject.cool is not None:
        subject.cool()
    times["cold"][-1] += await timed(subject, subject.get, reads)
    times["hot"][-1] += await timed(subject, subject.get, reads)


async def _nothing(key: str) -> None:
    """Cost what a coroutine costs."""


async def _hits(run: Run, everyone: Sequence[Subject], keys: list[str]) -> dict[str, float]:
    """Return the nanoseconds of a hit of ours, of an awaited one, and of a coroutine that does nothing."""
    sync, face, *_ = everyone
    samples: dict[str, list[float]] = {SYNC: [], FACE: [], IDLE: []}
    for start in range(0, len(keys), BLOCK):
        block = keys[start : start + BLOCK]
        for key in block:
            sync.get(key)  # so that all of them are hits
        for name, get in ((SYNC, sync.get), (FACE, face.get), (IDLE, _nothing)):
            began = clock()
            if name == SYNC:
                for key in block:
                    get(key)
            else:
                for key in block:
                    await get(key)
            samples[name].append((clock() - began - run.costs.clock) / len(block) - run.costs.loop)
    # The fastest block: a hit does the same each time, so whatever else the machine does can only add to it.
    return {name: min(found) for name, found in samples.items()}


def calls_table(times: Times, cost: float) -> Table:
    """Return a table of percentiles: for each subject a row."""
    columns = [f"{title}: {shown}" if shown == "p50" else shown for title in KINDS.values() for shown in SHOWN]
    table = Table("Calls with values of 100 bytes", ("cache", *columns))
    for name, mine in times.items():
        summaries = [summarise((one for each in mine[kind] for one in each), cost) for kind in KINDS]
        cells = [duration(value) for found in summaries for value in (found.p50, found.p99, found.p999)]
        table.rows.append((name, *cells))
    return table


async def lateness(directory: Path, way: str, seconds: float) -> list[float]:
    """Return by how many milliseconds each tick was late on a loop that writes in one of the ways meanwhile."""
    late: list[float] = []
    ends = False
    async with AsyncCache(directory) as cache:

        async def write(number: int) -> None:
            while not ends:
                key, value = (number, len(late) % 1000), os.urandom(100)
                if way == FACE:
                    await cache.set(key, value)
                elif way == HOPPING:
                    await asyncio.to_thread(cache.sync.set, key, value)
                elif way == BLOCKING:
                    cache.sync.set(key, value)
                await asyncio.sleep(PAUSE)

        tasks = [asyncio.create_task(write(number)) for number in range(4)]
        end = clock() + seconds * 1e9
        while (now := clock()) < end:
            await asyncio.sleep(TICK / 1e9)
            late.append((clock() - now - TICK) / 1e6)
        ends = True
        await asyncio.gather(*tasks)
    return late


def ticks(run: Run) -> dict[str, list[list[float]]]:
    """Return by how much ticks were late beside processes that write without pause: by way, of each repetition."""
    directory = run.workspace.fresh("shared")
    Cache(directory).close()
    found: dict[str, list[list[float]]] = {way: [] for way in (IDLE, FACE, HOPPING, BLOCKING)}
    seconds = min(run.options.operations, OPTIONS.operations) / 1000
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(directory)]) for _ in range(WRITERS)]
    try:
        time.sleep(WARMING)
        for turn, way in run.rounds(run.options.repeats, list(found), "ticks, "):
            assert len(found[way]) == turn
            found[way].append(asyncio.run(lateness(directory, way, seconds)))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return found


def ticks_table(found: Mapping[str, list[list[float]]]) -> Table:
    """Return a table of how late ticks are."""
    title = f"How late a ticker of 1 ms is, in milliseconds, beside {WRITERS} processes that write without pause"
    table = Table(title, ("the loop writes with", *SHOWN, "ticks"))
    for way, parts in found.items():
        late = sorted(one for part in parts for one in part)
        table.rows.append((way, *(f"{percentile(late, mille):.2f}" for mille in SHOWN.values()), f"{len(late):,}"))
    return table


def demanded(times: Times, late: Mapping[str, list[list[float]]], way: str) -> dict[str, list[float]]:
    """Return what the budgets are about, of one way to call a cache, each repetition by that of its neighbour."""
    found: dict[str, list[float]] = {}
    if way in times:
        for kind in KINDS:
            medians = [[statistics.median(part) for part in times[name][kind]] for name in (way, SYNC)]
            found[f"awaited_{kind}"] = ratios(*medians)
    tails = [[percentile(sorted(part), SHOWN["p99.9"]) for part in late[name]] for name in (way, IDLE)]
    found["awaited_late"] = [mine - others for mine, others in zip(*tails, strict=True)]
    return found


def awaited(run: Run) -> Findings:
    """Measure calls and ticks, and make sure that the ways which must not do are found."""
    skipped: list[str] = []
    times, blocks = asyncio.run(calls(run, skipped))
    late = ticks(run)
    findings = Findings([calls_table(times, run.costs.clock), ticks_table(late)], details={"skipped": skipped})
    findings.measured = demanded(times, late, FACE)
    findings.measured["awaited_hot"] = ratios(blocks[FACE], blocks[SYNC])
    over = [(mine - coroutine) / 1e3 for mine, coroutine in zip(blocks[FACE], blocks[IDLE], strict=True)]
    findings.measured["awaited_hot_over"] = over
    for control in (HOPPING, BLOCKING):
        if not is_found(demanded(times, late, control)):
            findings.problems.append(f"{control!r} misses no demand, so this run cannot tell good from bad")
    return findings


def is_found(measured: Mapping[str, Sequence[float]]) -> bool:
    """Tell whether a way of calling misses one of the demands."""
    mine = [budget for budget in BUDGETS if budget.section == SECTION]
    return any(outcome.verdict == MISSED for outcome in assess(measured, mine))


PART = Part(SECTION, __doc__, OPTIONS, awaited)

if __name__ == "__main__":
    run_as_command(PART.main)
