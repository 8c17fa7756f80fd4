"""What machines that share a Redis server pay for it, beside other clients of that server, in one run, interleaved.

A server on the loopback interface, and eight processes on two "machines", each a directory of its own. Measured are
percentiles of calls, how soon one machine's write is seen on the other, and how long a reader stalls when 1,000 entries
change at once.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.crew import Crew, Gate
from benchmarks.measure import BLOCK, clock, percentile
from benchmarks.peers import adapters
from benchmarks.peers.clients import CLIENT_SIDE, OF_REDIS, Client, finished, made, redis_py
from benchmarks.peers.servers import running
from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.report.text import Table, duration
from benchmarks.workloads.section import Findings, Options, Run, calls_table
from diskcache_like import Cache, Remote

OPTIONS = Options(repeats=7, operations=2_000)
PROCESSES = 8  # the first half on one machine, the rest on the other
HALF = PROCESSES // 2
CACHE, FIRST, IDLE = "Cache, remote=", "Cache, remote=, first read on this machine", "nothing is written"
SIZES = 100, 1_000  # bytes
LARGE, LARGE_KEYS = 100_000, 20
AT_ONCE = 1_000  # entries that change at once
CHANGED = "changed"
CHANGES = 200  # of one entry, one after the other
PAUSE = 0.003  # seconds between them, on average
GLANCE = 0.0002  # seconds between two reads: a reader without pauses would take the processor from the others
PATIENCE = 60.0
KINDS = {"hot": "get, hot", "cold": "get, cold", "set": "set", "incr": "incr"}
ATTEMPTS = 20  # ports that are tried


class Place(NamedTuple):
    """Where a process is: its machine's directory, that of a cache of its own, and the server's port."""

    directory: Path
    own: Path
    port: int


def cache_of(directory: Path, port: int, **options: Any) -> Cache:
    """Return a machine's cache; time limits are wide, because a busy benchmark is not a failing server."""
    remote = Remote(
        f"redis://127.0.0.1:{port}/0", namespace="bench", secret="of the benchmark only", timeout=5, connect_timeout=5
    )
    return Cache(directory, remote=remote, **options)


class Process:
    """What a worker process has open."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.cache = cache_of(place.directory, place.port)
        self.plain = redis_py(place.port)
        self.client_side = redis_py(place.port, client_side=True)

    def get(self, name: str) -> Callable[[str], Any]:
        """Return the reads of a subject."""
        return self.client_side.get if name == CLIENT_SIDE else self.cache.get

    def put(self, name: str) -> Callable[[dict[str, bytes]], Any]:
        """Return how a subject writes many entries at once."""
        return self.plain.mset if name == CLIENT_SIDE else self.cache.set_many


_process: list[Process] = []  # in a worker: its one


def open_process(gate: Gate, place: Place) -> bool:
    """Open what a process needs, and tell whether it is the machine's listener."""
    _process[:] = [Process(place)]
    cache = _process[0].cache
    deadline = time.monotonic() + PATIENCE
    while cache.remote.stats().state != "up":
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{place.directory} hears nothing from the server")
        time.sleep(GLANCE)
    return cache.remote.listener._descriptor is not None


# -- calls of one process, while the others rest ----------------------------------------------------------------------

Pair = Sequence[Callable[..., Any]]  # a call of ours and the other one


def in_turn(calls: Pair, arguments: Iterable[tuple[Any, ...]], warm: bool = False) -> tuple[float, float]:
    """Return the median nanoseconds of two calls that take turns; a warm one is made once more before it is timed."""
    samples: tuple[list[int], list[int]] = ([], [])
    for one in arguments:
        for call, times in zip(calls, samples, strict=True):
            if warm:
                call(*one)
            began = clock()
            call(*one)
            times.append(clock() - began)
    return statistics.median(samples[0]), statistics.median(samples[1])


def hits(mine: Process, count: int) -> tuple[float, float]:
    """Measure a hit with `remote` and one without, in turns of a block of calls."""
    keys = [f"hit {number}" for number in range(BLOCK)]
    with Cache(mine.place.own) as own:
        for cache in (mine.cache, own):
            cache.set_many({key: key for key in keys})
        # What is kept in memory counts for a second, and is then kept anew.
        blocks = [partial(read_each, cache.get) for cache in (mine.cache, own)]
        remote, local = in_turn(blocks, [(keys,)] * max(count // BLOCK, 2), warm=True)
    return remote / BLOCK, local / BLOCK


def read_each(get: Callable[[str], Any], keys: Iterable[str]) -> None:
    for key in keys:
        get(key)


def sets(mine: Process, count: int) -> dict[int, tuple[float, float]]:
    """Measure by size a set of ours and of redis-py's, with fresh bytes."""
    pair = mine.cache.set, mine.plain.set
    return {
        size: in_turn(pair, ((f"set {number % AT_ONCE}", os.urandom(size)) for number in range(count)))
        for size in SIZES
    }


def large(mine: Process, count: int) -> tuple[float, float]:
    """Measure a read of 100 KB from this machine's disk, and by redis-py."""
    keys = [f"large {number}" for number in range(LARGE_KEYS)]
    with cache_of(mine.place.directory, mine.place.port, hot_size_limit=0) as cache:
        for key in keys:
            value = os.urandom(LARGE)
            cache.set(key, value)
            mine.plain.set(key, value)
            if cache.get(key) != value or mine.plain.get(key) != value:
                raise BenchmarkError(f"{key} came back as another value")
        arguments = ((keys[number % LARGE_KEYS],) for number in range(max(count // 10, LARGE_KEYS)))
        return in_turn((cache.get, mine.plain.get), arguments)


def peer_calls(mine: Process, count: int) -> tuple[dict[str, dict[str, list[int]]], list[str]]:
    """Return the times of the calls of ours and of every peer that is installed, and what is not."""
    return asyncio.run(_peer_calls(mine, min(count, OPTIONS.operations)))


async def _peer_calls(mine: Process, count: int) -> tuple[dict[str, dict[str, list[int]]], list[str]]:
    cache, skipped = mine.cache, list[str]()
    ours = Client(CACHE, cache.get, cache.set, cool=cache._hot.clear, sync=True, incr=cache.incr)
    everyone = [ours, *await made(OF_REDIS, lambda name: mine.place.port, skipped)]
    order = [CACHE, FIRST, *(one.name for one in everyone[1:])]
    times: dict[str, dict[str, list[int]]] = {name: {kind: [] for kind in KINDS} for name in order}
    with cache_of(mine.place.own.with_suffix(".other"), mine.place.port) as elsewhere:
        for start in range(0, count, BLOCK):
            numbers = range(start, min(start + BLOCK, count))
            for one in everyone:
                values = [os.urandom(SIZES[0]) for _ in numbers]
                for kind, found in (
                    await one.all_calls([f"{one.name} {number}" for number in numbers], values)
                ).items():
                    times[one.name][kind] += found
            keys = [f"{FIRST} {number}" for number in numbers]  # never seen here
            elsewhere.set_many({key: os.urandom(SIZES[0]) for key in keys})
            times[FIRST]["cold"] += await ours.timed(cache.get, [(key,) for key in keys])
    for one in everyone:
        await finished(one.close)
    return times, skipped


def single(_: Gate, job: tuple[Callable[[Process, int], Any], int]) -> Any:
    """Measure in this process, or rest if the amount is 0."""
    measure, amount = job
    return measure(_process[0], amount) if amount else None


# -- what one machine does to the other -------------------------------------------------------------------------------


class Task(NamedTuple):
    """What a process does, of a subject: write, read, or nothing."""

    name: str = ""
    role: str = ""
    amount: int = 0
    first: int = 0  # number of the first change: they go on from repetition to repetition


def tasks(writer: int, name: str, amount: int, first: int = 0) -> list[Task]:
    """Return what each process does: one writes on one machine, all of the other read."""
    roles = ["write" if place == writer else "" for place in range(HALF)] + ["read"] * HALF
    return [Task(name if role else "", role, amount, first) for role in roles]


def changes(gate: Gate, task: Task) -> dict[int, int]:
    """Change one entry again and again, and return when each write returned; or when a read first began to see it."""
    mine, found = _process[0], {}
    last = task.first + task.amount - 1
    if task.role == "write":
        put = mine.plain.set if task.name == CLIENT_SIDE else mine.cache.set
        put(CHANGED, str(task.first).encode())
        gate.wait()
        for number in range(task.first + 1, last + 1):
            time.sleep(random.uniform(PAUSE / 2, 3 * PAUSE / 2))
            put(CHANGED, str(number).encode())
            found[number] = time.monotonic_ns()
        return found
    gate.wait()
    get, seen = mine.get(task.name), task.first
    deadline = time.monotonic() + PATIENCE
    while task.role and seen < last:
        time.sleep(GLANCE)
        began = time.monotonic_ns()
        value = get(CHANGED)
        now = int(value) if value else task.first
        for number in range(seen + 1, now + 1):  # what was overwritten before it was seen is no longer returned either
            found[number] = began
        seen = max(seen, now)
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{task.name}: change {last} was not seen within {PATIENCE:.0f} s")
    return found


def delays(found: Sequence[dict[int, int]], writer: int) -> list[float]:
    """Return the milliseconds from each return of a write until the read began that saw it, at least 0."""
    return sorted(
        max(reader[number] - when, 0) / 1e6 for reader in found[HALF:] for number, when in found[writer].items()
    )


def stalls(gate: Gate, task: Task) -> float:
    """Write many entries at once, or read them meanwhile; return the milliseconds of the longest read."""
    mine, longest = _process[0], 0
    keys = [f"at once {number}" for number in range(task.amount)]
    name = CACHE if task.name == IDLE else task.name
    get, put = mine.get(name), mine.put(name)
    if task.role == "write":
        put({key: os.urandom(100) for key in keys})
    gate.wait()
    if task.role == "read":
        for key in keys:
            get(key)
    gate.wait()
    if task.role == "write" and task.name != IDLE:
        put({key: os.urandom(100) for key in keys})
    elif task.role == "read":
        for key in keys:
            began = clock()
            get(key)
            longest = max(longest, clock() - began)
            time.sleep(GLANCE)
    return longest / 1e6


# -- the whole --------------------------------------------------------------------------------------------------------


@contextmanager
def loopback(directory: Path) -> Iterator[int]:
    """Run a server and yield its port on the loopback interface."""
    with running("redis", directory) as server:
        redis = adapters.client("redis", "'redis[hiredis]'")
        with redis.Redis(unix_socket_path=str(server.socket)) as admin:
            admin.config_set("bind", "127.0.0.1")
            for _ in range(ATTEMPTS):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = int(probe.getsockname()[1])
                with suppress(redis.ResponseError):  # taken meanwhile
                    admin.config_set("port", port)
                    break
            else:
                raise BenchmarkError("the server opens no port; it has to be Redis 7 or newer")
        yield port


def machines(run: Run) -> Findings:
    """Measure everything; without a server, or its client, nothing."""
    findings = Findings()
    try:
        with loopback(run.workspace.fresh("r")) as port, Crew(PROCESSES) as crew:
            directories = [run.workspace.fresh("machine") for _ in range(2)]
            places = [
                Place(directories[number // HALF], run.workspace.fresh("own"), port) for number in range(PROCESSES)
            ]
            listener = listener_of(crew.run(open_process, places, PATIENCE))
            Measuring(run, crew, findings, listener, (listener + 1) % HALF).all()
    except MissingSubject as error:
        findings.skipped.append(str(error))
    return findings


def listener_of(listens: Sequence[bool]) -> int:
    """Return which process of the first machine listens; there must be one on each."""
    if sum(listens[:HALF]) != 1 or sum(listens) != 2:
        raise BenchmarkError(f"one process of each machine must listen; these do: {listens}")
    return listens.index(True)


@dataclass
class Measuring:
    """One measurement of the processes of a crew."""

    run: Run
    crew: Crew
    findings: Findings
    listener: int
    writer: int

    def all(self) -> None:
        """Measure the demands in each repetition, then the peers."""
        self._calls()
        self._seen()
        self._stalls()
        if not self.run.alone:
            times, skipped = self._one(peer_calls, self.writer)
            self.findings.skipped += skipped
            title = "Calls with values of 100 bytes, beside other clients of the same server"
            table = calls_table(title, "client", times, KINDS, {"p50": "p50", "p99": "p99"}, self.run.costs.clock)
            table.notes.append(
                "Cold: not in this process's memory. Ours is on this machine's disk, "
                "and asks the server if it is current."
            )
            self.findings.tables.insert(0, table)

    @property
    def _names(self) -> list[str]:
        return [CACHE] if self.run.alone else [CACHE, CLIENT_SIDE]

    def _one(self, measure: Callable[[Process, int], Any], process: int, times: int = 1) -> Any:
        """Return what one process finds while the others rest."""
        count = self.run.options.operations * times
        jobs = [(measure, count if number == process else 0) for number in range(PROCESSES)]
        return self.crew.run(single, jobs, PATIENCE)[process]

    def _add(self, key: str, value: float) -> None:
        self.findings.measured.setdefault(key, []).append(value)

    def _calls(self) -> None:
        rows: dict[str, list[tuple[float, float]]] = {}
        for turn in range(self.run.options.repeats):
            self.run.note(f"calls, round {turn + 1}", turn / self.run.options.repeats / 2)
            hot, local = self._one(hits, self.writer, 5), self._one(large, self.writer)
            rows.setdefault("hot get, vs a plain Cache", []).append(hot)
            for key, who, process in (
                ("machines_set", "not the listener", self.writer),
                ("machines_set_listener", "the listener", self.listener),
            ):
                found = self._one(sets, process)
                for size, pair in found.items():
                    rows.setdefault(f"set of {size} bytes, {who}, vs redis-py", []).append(pair)
                self._add(key, max(ours / theirs for ours, theirs in found.values()))
            rows.setdefault("get of 100 KB from the disk, vs redis-py", []).append(local)
            self._add("machines_hot", hot[0] / hot[1])
            self._add("machines_large", local[1] / local[0])
        table = Table("Calls in turn with their peer's, medians", ("call", "with remote=", "peer", "ratio"))
        for title, pairs in rows.items():
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(mine / other for mine, other in pairs)
            table.rows.append((title, duration(ours), duration(theirs), f"{ratio:.2f}"))
        self.findings.tables.append(table)

    def _seen(self) -> None:
        amount = min(self.run.options.operations, CHANGES)
        found: dict[str, list[list[float]]] = {name: [] for name in self._names}
        for turn, name in self.run.turns(self.run.options.repeats, self._names, "changes, "):
            parts = self.crew.run(changes, tasks(self.writer, name, amount, turn * amount + 1), PATIENCE * 2)
            found[name].append(delays(parts, self.writer))
        table = Table(
            "Milliseconds from the return of a write until the other machine's processes do not return the old value",
            ("client", "p50", "p99", "max", "reads"),
        )
        for name, repetitions in found.items():
            every = sorted(one for part in repetitions for one in part)
            cells = [f"{percentile(every, mille):.2f}" for mille in (500, 990, 1000)]
            table.rows.append((name, *cells, f"{len(every):,}"))
        table.notes.append(f"Four processes look every {GLANCE * 1e6:.0f} µs, which is part of what is shown.")
        self.findings.tables.append(table)
        for part in found[CACHE]:
            self._add("machines_seen_p50", percentile(part, 500))
            self._add("machines_seen_p99", percentile(part, 990))

    def _stalls(self) -> None:
        names = [*self._names, IDLE]
        amount = min(self.run.options.operations, AT_ONCE)
        found: dict[str, list[float]] = {name: [] for name in names}
        for _, name in self.run.turns(self.run.options.repeats, names, "stalls, "):
            found[name].append(max(self.crew.run(stalls, tasks(self.writer, name, amount), PATIENCE * 2)))
        table = Table(
            f"Longest read, in milliseconds, while the other machine writes {amount:,} entries at once",
            ("client", "median of the repetitions", "longest"),
        )
        for name, longest in found.items():
            table.rows.append((name, f"{statistics.median(longest):.2f}", f"{max(longest):.2f}"))
        self.findings.tables.append(table)
        self.findings.measured["machines_stall"] = found[CACHE]
