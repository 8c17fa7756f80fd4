"""What an awaited call costs, beside the synchronous one and beside other caches for asyncio, in one run, interleaved.

Percentiles of reads and writes of 100 bytes, and how late a ticker of 1 ms is on a loop that writes while eight
processes write, too. Two ways that must miss a demand are measured as well: a thread hop for every call, and calls that
block the loop. If neither did, the measurement could tell nothing, and fails.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.budgets import MISSED, assess, of_sections
from benchmarks.measure import BLOCK, clock, percentile, ratios
from benchmarks.peers.clients import FOR_ASYNCIO, Client, finished, made
from benchmarks.report.text import Table
from benchmarks.workloads.section import Findings, Options, Run, calls_table
from diskcache_like import AsyncCache, Cache

OPTIONS = Options(repeats=9, operations=2_000)  # with nine, one repetition on either side may be out of line
SYNC, FACE, HOPPING, BLOCKING, IDLE = (
    "Cache, not awaited",
    "AsyncCache",
    "Cache in asyncio.to_thread",
    "Cache, blocking the loop",
    "no cache",
)
KINDS = {"hot": "get, in memory", "cold": "get, cold", "set": "set"}
PERCENTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9"}
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


async def ours(directory: Path) -> list[Client]:
    """Open our cache, whose calls are made in three ways."""
    cache = await AsyncCache(directory).__aenter__()
    sync, cool = cache.sync, cache.sync._hot.clear
    in_thread: Callable[..., Any] = asyncio.to_thread
    get, put = partial(in_thread, sync.get), partial(in_thread, sync.set)
    return [
        Client(SYNC, sync.get, sync.set, cool=cool, sync=True),
        Client(FACE, cache.get, cache.set, cache.aclose, cool),
        Client(HOPPING, get, put, cool=cool),
    ]


async def calls(run: Run, skipped: list[str]) -> tuple[Times, dict[str, list[float]]]:
    """Return what each subject's calls took, and what was measured of our own hits in blocks of calls."""
    blocks: dict[str, list[float]] = {}
    keys = [f"key {number}" for number in range(min(run.options.operations, OPTIONS.operations))]
    async with AsyncExitStack() as stack:
        mine = await ours(run.workspace.fresh("ours"))
        everyone = mine + await made({} if run.alone else FOR_ASYNCIO, run.workspace.fresh, skipped)
        for one in everyone:
            stack.push_async_callback(finished, one.close)
        times: Times = {one.name: {kind: [] for kind in KINDS} for one in everyone}
        for turn in range(run.options.repeats):
            run.note(f"calls, round {turn + 1}", turn / run.options.repeats / 2)
            for parts in (part for found in times.values() for part in found.values()):
                parts.append([])
            for start in range(0, len(keys), BLOCK):  # turns are short, so that what slows one down slows all
                some = keys[start : start + BLOCK]
                for one in everyone:
                    for kind, found in (await one.all_calls(some, [os.urandom(100) for _ in some])).items():
                        times[one.name][kind][-1] += found
            for name, value in (await _hits(run, mine, keys)).items():
                blocks.setdefault(name, []).append(value)
    return times, blocks


async def _nothing(key: str) -> None:
    """Cost what a coroutine costs."""


async def _hits(run: Run, mine: Sequence[Client], keys: list[str]) -> dict[str, float]:
    """Return the nanoseconds of a hit of ours, of an awaited one, and of a coroutine that does nothing.

    Of the fastest block: a hit does the same each time, so whatever else the machine does can only add to it.
    """
    sync, face, *_ = mine
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
    return {name: min(found) for name, found in samples.items()}


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
        for _, way in run.turns(run.options.repeats, list(found), "ticks, "):
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
    for kind in KINDS if way in times else ():
        found[f"awaited_{kind}"] = ratios(
            *([statistics.median(part) for part in times[name][kind]] for name in (way, SYNC))
        )
    tails = [[percentile(sorted(part), SHOWN["p99.9"]) for part in late[name]] for name in (way, IDLE)]
    found["awaited_late"] = [mine - others for mine, others in zip(*tails, strict=True)]
    return found


def awaited(run: Run) -> Findings:
    """Measure calls and ticks, and make sure that the ways which must not do are found."""
    skipped: list[str] = []
    times, blocks = asyncio.run(calls(run, skipped))
    late = ticks(run)
    every = {name: {kind: chain(*parts) for kind, parts in mine.items()} for name, mine in times.items()}
    table = calls_table("Calls with values of 100 bytes", "cache", every, KINDS, PERCENTILES, run.costs.clock)
    findings = Findings([table, ticks_table(late)], skipped=skipped)
    findings.measured = demanded(times, late, FACE)
    findings.measured["awaited_hot"] = ratios(blocks[FACE], blocks[SYNC])
    over = [(mine - coroutine) / 1e3 for mine, coroutine in zip(blocks[FACE], blocks[IDLE], strict=True)]
    findings.measured["awaited_hot_over"] = over
    for control in (HOPPING, BLOCKING):
        outcomes = assess(demanded(times, late, control), of_sections({"awaited"}))
        if not any(outcome.verdict == MISSED for outcome in outcomes):
            findings.problems.append(f"{control!r} misses no demand, so this run cannot tell good from bad")
    return findings
