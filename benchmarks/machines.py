"""What machines that share a Redis server pay for it, beside other clients of that server, in one run, interleaved.

``python -m benchmarks.machines`` starts a server, and eight processes on two "machines", each a directory of its own.
It prints percentiles of calls, how soon one machine's write is seen on the other, how long a reader stalls when 1,000
entries change at once, and whether the demands on all this are met. ``--docs PAGE.md`` puts that into that page.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import adapters
from benchmarks.awaited import Subject, finished, timed
from benchmarks.command import run_as_command
from benchmarks.crew import Crew, Gate
from benchmarks.measure import BLOCK, clock, percentile, ratios, summarise
from benchmarks.part import Part
from benchmarks.report import Table, duration
from benchmarks.section import Findings, Options, Run
from benchmarks.servers import running
from benchmarks.subjects import BenchmarkError, MissingSubject
from diskcache_like import Cache, Remote

OPTIONS = Options(repeats=7, operations=2_000)
PROCESSES = 8  # the first half on one machine, the rest on the other
CACHE, FIRST, PLAIN, CLIENT_SIDE, IDLE = (
    "Cache, remote=",
    "Cache, remote=, first read on this machine",
    "redis-py",
    "redis-py, client-side cache",
    "nothing is written",
)
SIZES = 100, 1_000  # bytes
LARGE, LARGE_KEYS = 100_000, 20
AT_ONCE = 1_000  # entries that change at once
CHANGED = "changed"
CHANGES = 200  # of one entry, one after the other
PAUSE = 0.003  # seconds between them, on average
GLANCE = 0.0002  # seconds between two reads: a reader without pauses would take the processor from the others
PATIENCE = 60.0
KINDS = {"hot": "get, hot", "cold": "get, cold", "set": "set", "incr": "incr"}
OLDEST_TRACKING = "6.0.0"
ATTEMPTS = 20  # ports that are tried

Times = dict[str, dict[str, list[int]]]  # by subject and kind of call


class Place(NamedTuple):
    """Where a process is: its machine's directory, that of a cache of its own, and the server's port."""

    directory: Path
    own: Path
    port: int


def client(port: int, client_side: bool = False) -> Any:
    """Return redis-py's client of the server."""
    import redis

    if not client_side:
        return redis.Redis(port=port)
    from redis.cache import CacheConfig
    from redis.connection import CacheProxyConnection

    # It refuses servers before 7.4 "to maximize compatibility"; the server has what it uses since 6.0.
    CacheProxyConnection.MIN_ALLOWED_VERSION = OLDEST_TRACKING
    return redis.Redis(port=port, protocol=3, cache_config=CacheConfig(max_size=10 * AT_ONCE))


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
        self.plain = client(place.port)
        self.client_side = client(place.port, client_side=True)

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


class Listening(BenchmarkError):
    """The processes that should listen do not, or others do."""


# -- calls of one process, while the others rest ----------------------------------------------------------------------


def hits(_: Gate, count: int) -> tuple[float, float] | None:
    """Return the nanoseconds of a hit with `remote` and of one without, in turns of a block of calls."""
    if not count:
        return None
    mine = _process[0]
    keys = [f"hit {number}" for number in range(BLOCK)]
    samples: tuple[list[float], list[float]] = ([], [])
    with Cache(mine.place.own) as own:
        gets = mine.cache.get, own.get
        for key in keys:
            mine.cache.set(key, key)
            own.set(key, key)
        for _turn in range(max(count // BLOCK, 2)):
            for get, found in zip(gets, samples, strict=True):
                for key in keys:
                    get(key)  # what is kept in memory counts for a second, and is then kept anew
                began = clock()
                for key in keys:
                    get(key)
                found.append((clock() - began) / BLOCK)
    remote, local = map(statistics.median, samples)
    return remote, local


def sets(_: Gate, count: int) -> dict[int, tuple[float, float]]:
    """Return by size the nanoseconds of a set of ours and of redis-py's, called in turn with fresh bytes."""
    found = {}
    mine = _process[0]
    for size in SIZES if count else ():
        samples: tuple[list[int], list[int]] = ([], [])
        for number in range(count):
            for call, times in zip((mine.cache.set, mine.plain.set), samples, strict=True):
                key, value = f"set {number % AT_ONCE}", os.urandom(size)
                began = clock()
                call(key, value)
                times.append(clock() - began)
        found[size] = statistics.median(samples[0]), statistics.median(samples[1])
    return found


def large(_: Gate, count: int) -> tuple[float, float] | None:
    """Return the nanoseconds of a read of 100 KB from this machine's disk, and by redis-py, in turn."""
    if not count:
        return None
    mine = _process[0]
    keys = [f"large {number}" for number in range(LARGE_KEYS)]
    samples: tuple[list[int], list[int]] = ([], [])
    with cache_of(mine.place.directory, mine.place.port, hot_size_limit=0) as cache:
        for key in keys:
            value = os.urandom(LARGE)
            cache.set(key, value)
            mine.plain.set(key, value)
        for number in range(count):
            for get, times in zip((cache.get, mine.plain.get), samples, strict=True):
                key = keys[number % LARGE_KEYS]
                began = clock()
                value = get(key)
                times.append(clock() - began)
                if len(value) != LARGE:
                    raise BenchmarkError(f"{key} has {len(value)} bytes, expected {LARGE}")
    return statistics.median(samples[0]), statistics.median(samples[1])


# -- what one machine does to the other -------------------------------------------------------------------------------


class Task(NamedTuple):
    """What a process does, of a subject: write, read, or nothing."""

    name: str = ""
    role: str = ""
    amount: int = 0
    first: int = 0  # number of the first change: they go on from repetition to repetition


def changes(gate: Gate, task: Task) -> dict[int, int]:
    """Change one entry again and again, and return when each write returned; or when a read first began to see it."""
    mine, found = _process[0], {}
    last = task.first + task.amount - 1
    if task.role == "write":
        _write(mine, task.name, task.first)
        gate.wait()
        for number in range(task.first + 1, last + 1):
            time.sleep(random.uniform(PAUSE / 2, 3 * PAUSE / 2))
            _write(mine, task.name, number)
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


def _write(mine: Process, name: str, number: int) -> None:
    value = str(number).encode()
    if name == CLIENT_SIDE:
        mine.plain.set(CHANGED, value)
    else:
        mine.cache.set(CHANGED, value)


def delays(found: Sequence[dict[int, int]], writer: int) -> list[float]:
    """Return the milliseconds from each return of a write until the read began that saw it, at least 0."""
    readers = found[PROCESSES // 2 :]
    return sorted(max(reader[number] - when, 0) / 1e6 for reader in readers for number, when in found[writer].items())


def stalls(gate: Gate, task: Task) -> float:
    """Write many entries at once, or read them meanwhile; return the milliseconds of the longest read."""
    mine, longest = _process[0], 0
    keys = [f"at once {number}" for number in range(task.amount)]
    name = CACHE if task.name == IDLE else task.name
    if task.role == "write":
        mine.put(name)({key: os.urandom(100) for key in keys})
    gate.wait()
    get = mine.get(name)
    if task.role == "read":
        for key in keys:
            get(key)
    gate.wait()
    if task.role == "write" and task.name != IDLE:
        mine.put(name)({key: os.urandom(100) for key in keys})
    elif task.role == "read":
        for key in keys:
            began = clock()
            get(key)
            longest = max(longest, clock() - began)
            time.sleep(GLANCE)
    return longest / 1e6


def tasks(writer: int, name: str, amount: int, first: int = 0) -> list[Task]:
    """Return what each process does: one writes on one machine, all of the other read."""
    half = PROCESSES // 2
    roles = ["write" if place == writer else "" for place in range(half)] + ["read"] * (PROCESSES - half)
    return [Task(name if role else "", role, amount, first) for role in roles]


# -- calls beside peers -----------------------------------------------------------------------------------------------


class Peer(NamedTuple):
    """A subject, with what adds one to a counter."""

    subject: Subject
    incr: Callable[[str], Any] | None


async def _redis_py(place: Place) -> list[Peer]:
    plain, cached = client(place.port), client(place.port, client_side=True)
    cool = cached.get_cache().flush
    return [
        Peer(Subject(PLAIN, plain.get, plain.set, plain.close, sync=True), plain.incr),
        Peer(Subject(CLIENT_SIDE, cached.get, cached.set, cached.close, cool, sync=True), cached.incr),
    ]


async def _cashews(place: Place) -> list[Peer]:
    from cashews import Cache as Cashews

    cache = Cashews()
    backend = cache.setup(f"redis://127.0.0.1:{place.port}/0", client_side=True)
    await cache.init()
    local: Any = backend
    subject = Subject("cashews, client-side cache", cache.get, cache.set, cache.close, local._local_cache.clear)
    return [Peer(subject, cache.incr)]


async def _cachekit(place: Place) -> list[Peer]:
    from cachekit.backends.redis import RedisBackend

    backend = RedisBackend(f"redis://127.0.0.1:{place.port}/0")
    return [Peer(Subject("cachekit, its Redis backend", backend.get, backend.set, lambda: None, sync=True), None)]


async def _aiocache(place: Place) -> list[Peer]:
    from aiocache import RedisCache
    from aiocache.serializers import NullSerializer

    cache = RedisCache(endpoint="127.0.0.1", port=place.port, serializer=NullSerializer(encoding=None))
    return [Peer(Subject("aiocache, Redis", cache.get, cache.set, cache.close), cache.increment)]


PEERS: dict[str, Callable[[Place], Coroutine[Any, Any, list[Peer]]]] = {
    "redis-py": _redis_py,
    "cashews": _cashews,
    "cachekit": _cachekit,
    "aiocache": _aiocache,
}


def peer_calls(_: Gate, count: int) -> tuple[Times, list[str]]:
    """Return the times of the calls of ours and of every peer that is installed, and what is not."""
    return asyncio.run(_peer_calls(count)) if count else ({}, [])


async def _peer_calls(count: int) -> tuple[Times, list[str]]:
    mine, skipped = _process[0], []
    cache = mine.cache
    peers = [Peer(Subject(CACHE, cache.get, cache.set, lambda: None, cache._hot.clear, sync=True), cache.incr)]
    for name, make in PEERS.items():
        try:
            peers += await make(mine.place)
        except ImportError as error:
            skipped.append(f"{name} skipped: {error}; install it with: make .venv/.installed-to-compare")
    names = [peer.subject.name for peer in peers]
    times: Times = {name: {kind: [] for kind in KINDS} for name in [names[0], FIRST, *names[1:]]}
    with cache_of(mine.place.own.with_suffix(".other"), mine.place.port) as elsewhere:
        for start in range(0, count, BLOCK):
            for peer in peers:
                keys = [f"{peer.subject.name} {number}" for number in range(start, min(start + BLOCK, count))]
                await _calls_of(peer, keys, times[peer.subject.name])
            keys = [f"{FIRST} {number}" for number in range(start, min(start + BLOCK, count))]  # never seen here
            elsewhere.set_many({key: os.urandom(SIZES[0]) for key in keys})
            times[FIRST]["cold"] += await timed(peers[0].subject, cache.get, [(key,) for key in keys])
    for peer in peers:
        await finished(peer.subject.close)
    return times, skipped


async def _calls_of(peer: Peer, keys: Sequence[str], times: dict[str, list[int]]) -> None:
    subject, reads = peer.subject, [(key,) for key in keys]
    times["set"] += await timed(subject, subject.set, [(key, os.urandom(SIZES[0])) for key in keys])
    if subject.cool is not None:
        await finished(subject.cool)
    times["cold"] += await timed(subject, subject.get, reads)
    times["hot"] += await timed(subject, subject.get, reads)
    if peer.incr is not None:
        times["incr"] += await timed(subject, peer.incr, [(f"{subject.name}, a counter",) for _ in keys])


def calls_table(times: Mapping[str, Mapping[str, Sequence[int]]], cost: float) -> Table:
    """Return a table of percentiles: for each subject a row."""
    columns = [column for title in KINDS.values() for column in (f"{title}: p50", "p99")]
    table = Table("Calls with values of 100 bytes, beside other clients of the same server", ("client", *columns))
    for name, mine in times.items():
        cells = []
        for kind in KINDS:
            found = summarise(mine[kind], cost)
            cells += [duration(found.p50), duration(found.p99)] if found.count else ["-", "-"]
        table.rows.append((name, *cells))
    table.notes.append(
        "Cold: not in this process's memory. Ours is on this machine's disk, and asks the server if it is current."
    )
    return table


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
    findings = Findings(details={"skipped": []})
    try:
        _measure_all(run, findings)
    except MissingSubject as error:
        findings.details["skipped"].append(str(error))
    return findings


def _measure_all(run: Run, findings: Findings) -> None:
    with loopback(run.workspace.fresh("r")) as port, Crew(PROCESSES) as crew:
        directories = [run.workspace.fresh("machine") for _ in range(2)]
        places = [
            Place(directories[number * 2 // PROCESSES], run.workspace.fresh("own"), port) for number in range(PROCESSES)
        ]
        listens = crew.run(open_process, places, PATIENCE)
        Measuring(run, crew, findings, listens).all()


class Measuring:
    """One measurement of the processes of a crew."""

    def __init__(self, run: Run, crew: Crew, findings: Findings, listens: list[bool]) -> None:
        self.run = run
        self.crew = crew
        self.findings = findings
        half = listens[: PROCESSES // 2]
        if sum(half) != 1 or sum(listens) != 2:
            raise Listening(f"one process of each machine must listen; these do: {listens}")
        self.listener = half.index(True)
        self.writer = (self.listener + 1) % len(half)

    def all(self) -> None:
        """Measure the demands in each repetition, then the peers."""
        self._single()
        self._seen()
        self._stalls()
        if not self.run.alone:
            found = self._one(peer_calls, self.writer, min(self.run.options.operations, OPTIONS.operations))
            times, skipped = found
            self.findings.details["skipped"] += skipped
            self.findings.tables.insert(0, calls_table(times, self.run.costs.clock))

    @property
    def _names(self) -> list[str]:
        return [CACHE] if self.run.alone else [CACHE, CLIENT_SIDE]

    def _one(self, job: Callable[[Gate, int], Any], process: int, count: int) -> Any:
        """Return what one process finds while the others rest."""
        amounts = [count if number == process else 0 for number in range(PROCESSES)]
        return self.crew.run(job, amounts, PATIENCE)[process]

    def _add(self, key: str, value: float) -> None:
        self.findings.measured.setdefault(key, []).append(value)

    def _single(self) -> None:
        count = self.run.options.operations
        rows: dict[str, list[tuple[float, float]]] = {}
        for turn in range(self.run.options.repeats):
            self.run.note(f"calls, round {turn + 1}", turn / self.run.options.repeats / 2)
            hot = self._one(hits, self.writer, count * 5)
            rows.setdefault("hot get, vs a plain Cache", []).append(hot)
            self._add("machines_hot", ratios([hot[0]], [hot[1]])[0])
            for key, who, process in (
                ("machines_set", "not the listener", self.writer),
                ("machines_set_listener", "the listener", self.listener),
            ):
                found = self._one(sets, process, count)
                for size, pair in found.items():
                    rows.setdefault(f"set of {size} bytes, {who}, vs redis-py", []).append(pair)
                self._add(key, max(ours / theirs for ours, theirs in found.values()))
            local = self._one(large, self.writer, max(count // 10, LARGE_KEYS))
            rows.setdefault("get of 100 KB from the disk, vs redis-py", []).append(local)
            self._add("machines_large", ratios([local[1]], [local[0]])[0])
        table = Table("Calls in turn with their peer's, medians", ("call", "with remote=", "peer", "ratio"))
        for title, pairs in rows.items():
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(mine / other for mine, other in pairs)
            table.rows.append((title, duration(ours), duration(theirs), f"{ratio:.2f}"))
        self.findings.tables.append(table)

    def _seen(self) -> None:
        amount = min(self.run.options.operations, CHANGES)
        found: dict[str, list[list[float]]] = {name: [] for name in self._names}
        for turn, name in self.run.rounds(self.run.options.repeats, self._names, "changes, "):
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
        for _, name in self.run.rounds(self.run.options.repeats, names, "stalls, "):
            found[name].append(max(self.crew.run(stalls, tasks(self.writer, name, amount), PATIENCE * 2)))
        table = Table(
            f"Longest read, in milliseconds, while the other machine writes {amount:,} entries at once",
            ("client", "median of the repetitions", "longest"),
        )
        for name, longest in found.items():
            table.rows.append((name, f"{statistics.median(longest):.2f}", f"{max(longest):.2f}"))
        self.findings.tables.append(table)
        for one in found[CACHE]:
            self._add("machines_stall", one)


PART = Part("machines", __doc__, OPTIONS, machines)

if __name__ == "__main__":
    run_as_command(PART.main)
