"""Load: far more processes and threads than processors, every call mixed, and limits that are looked at all the time."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

from benchmarks.usage import usage_of
from diskcache_like import EVICTION_POLICY, Cache
from diskcache_like.disk import file_io
from diskcache_like.entries.hot import COST
from diskcache_like.storage.shard.open_shard import OpenShard
from diskcache_like.storage.sqlite.connection import PAGE_SIZE
from diskcache_like.storage.sqlite.reader_pool import MAX_READERS
from diskcache_like.storage.upkeep import checkpoints
from diskcache_like.storage.upkeep.checkpoints import Checkpointer
from diskcache_like.storage.upkeep.trash import Trash
from tests.support.workers import PATIENCE, Crew, Link, Worker, ready

from ..children import KINDS, SHARDS, Stage, Words, opened, played, soundness
from ..proof import Trial, proof, repeated
from . import calls
from .calls import WAITS

MIB = 1 << 20
LIMIT = 4 * MIB  # of the cache that is filled over and over
HOT_LIMIT = MIB // 4
OVER = 1.01  # times its limit that a cache may use
# Bytes between checkpoints here, so that even a short run sees many; and how much longer a WAL may get, as each reader
# that is met in the middle puts its reset off.
CHECKPOINT = MIB
WAL_BOUND = 16 * CHECKPOINT
# Bytes by which the databases and value files of a full cache may be more than what it counts: pages that have become
# free and are cut off by the next checkpoint, and the values of those who wait for the lock to write their rows. It has
# nothing to do with the limit, which is small here.
PENDING = 3 * MIB // 2
LOG_INDEX = 32 << 10  # bytes of a -shm for each 4,096 pages of a WAL
# Seconds that a write may wait for its lock, and how much longer for each other process that wants it. One that has it
# may itself wait for those of other shards.
LONGEST_WAIT = 5.0
LONGEST_TURN = 0.2
# Turns that each other thread of its process may have meanwhile, on average. That bounds no time, for those that read
# keep the interpreter for 5 ms each time. The lock among threads is no queue: each of 256 passes one wait in ten thousand
# five times, and a bound that chance does not reach is a multiple of that.
PASSED = 30
GROWTH = 96 * MIB  # by which a process may grow from its first calls on: connections' page caches, hot layers, buffers
STACK = MIB // 4  # and for each thread that begins then: its stack, and memory that it allocated last
FAIR = 0.02  # of the average number of turns at a lock is what each caller must have had, and one at least
LATEST = 75.0  # seconds from its beginning for which a run goes on for those who had no turn yet
# Database and WAL for each of the readers and the writer; -shm, the lock, the mapped generations and write buffer; and two
# directories that are looked through, or made durable.
DESCRIPTORS = 2 * (MAX_READERS + 1) + 4 + 2
STREAMS = 3  # what a call has open beside that: a new file, and the two directories between which it finds its place
LONG = 10.0  # seconds from which on a run is a long one, with all processes and threads
AROUND, LEAST = 0.3, 1.0  # seconds for the end of a run, and for the run itself at least
PACE = 0.002  # seconds between two looks, which hold up the writers
PACED = 0.01  # seconds between two writes of one that has time
FILES = {"-wal": "logs", "-shm": "indexes", ".val": "values", ".db": "databases"}  # by the end of a name
CONTROL = ("cache.gen", "cache.buffer", "cache.lock", "cache.metrics")


class Crowd(NamedTuple):
    """Who works on two caches at once, and at what: one that is kept, and one that is full."""

    kind: str
    processes: int
    threads: int = 1
    policy: str = "least-recently-used"
    weights: calls.Weights = calls.EVERYTHING
    readers: int = 2
    least: int = 0  # calls of each caller, however long they take
    longest: float = math.inf  # seconds that a caller may be without a turn
    spoil: Callable[[int, Words], None] = lambda number, words: None  # what is wrong with the process of a number
    places: tuple[Path, ...] = ()  # of the two caches

    @property
    def callers(self) -> int:
        """How many threads call, in all processes together."""
        return self.processes * self.threads

    def open(self, stack: ExitStack, **settings: Any) -> tuple[Cache, Cache]:
        """Open both caches, with a hot layer that is soon full.

        Waits are judged at the end, and no call gives up before: that of a FanoutCache would answer as if it had found
        nothing to do.
        """
        kept, limited = self.places
        settings = {"hot_size_limit": HOT_LIMIT, "timeout": math.inf, **settings}
        return (
            stack.enter_context(opened(self.kind, kept, eviction_policy="none", **settings)),
            stack.enter_context(opened(self.kind, limited, eviction_policy=self.policy, size_limit=LIMIT, **settings)),
        )


def footprint(directory: Path) -> Counter[str]:
    """Return the bytes in files by what they are for; what is removed meanwhile counts for nothing."""
    found: Counter[str] = Counter()
    for folder, _, names in os.walk(directory):
        for name in names:
            kind = next((kind for end, kind in FILES.items() if name.endswith(end)), "others")
            with suppress(FileNotFoundError):
                found["control" if name in CONTROL else kind] += os.lstat(os.path.join(folder, name)).st_size
    found["content"] = found["databases"] + found["values"]  # what the size limit is about
    return found


def held(directory: Path, pid: int | str = "self") -> tuple[int, dict[tuple[int, int], int]]:
    """Return how many descriptors a process has in a directory, and the sizes of files there without a name."""
    descriptors, removed = 0, {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{number}"
        with suppress(FileNotFoundError):
            name = os.readlink(link)
            if name == str(directory) or name.startswith(f"{directory}/"):
                descriptors += 1
                if name.endswith(" (deleted)"):
                    status = os.stat(link)
                    removed[status.st_dev, status.st_ino] = status.st_size
    return descriptors, removed


class Pulse:
    """Keeps a child for as long as the proof goes on: of itself it ends soon, lest it outlive one that was killed."""

    def __init__(self, words: Words) -> None:
        self._words, self._beat = words, 0

    @staticmethod
    def give(words: Words) -> None:
        """Tell the children, by the last of their words, that the proof goes on."""
        words[-1] += 1

    def goes_on(self) -> bool:
        """Tell whether the first word says so, and stay for another while if there was a beat."""
        if self._words[-1] != self._beat:
            self._beat = self._words[-1]
            signal.alarm(int(2 * PATIENCE))
        return not self._words[0]


# -- what the children do ---------------------------------------------------------------------------------------------


def work(link: Link, number: int, crowd: Crowd, seed: str, words: Words) -> list[dict[str, Any]]:
    """Call at random in `crowd.threads` threads until the end; return each caller's accounts."""
    first, pulse = 1 + number * crowd.threads, Pulse(words)
    crowd.spoil(number, words)
    with ExitStack() as stack:
        caches = crowd.open(stack)
        callers = [
            calls.Caller(*caches, (number, each), random.Random(f"{seed} {number} {each}"), crowd.weights)
            for each in range(crowd.threads)
        ]
        errors: list[BaseException] = []

        def call(each: int) -> None:
            try:
                WAITS.tell(words, first + each)
                while pulse.goes_on() and not errors:
                    callers[each].step()
                    words[first + each + crowd.callers] = made = callers[each].accounts["calls"]
                    if made % 50 == 0:
                        for cache in caches:
                            look_at_hot_layer(cache)
            except BaseException as error:
                errors.append(error)

        ready(link)
        WAITS.forget()
        with ThreadPoolExecutor(crowd.threads) as pool:
            list(pool.map(call, range(crowd.threads)))
        if errors:
            raise errors[0]
    gc.collect()  # what maps a file may be part of a cycle, such as an exception's
    for directory in crowd.places:
        left, _ = held(directory)
        assert not left, f"{left} descriptors are left when everything is closed"
    waits = {"wait": WAITS.longest, "passed": WAITS.passed}
    return [{"accounts": each.accounts, "longest": (each.longest, each.slowest), **waits} for each in callers]


def look_at_hot_layer(cache: Cache) -> None:
    """Assert that what the hot layer holds is within its limit."""
    hot = cache._hot
    with hot._lock:
        size = sum(entry[COST] for entry in list(hot.entries.values()))
    # A thread may put an entry anew while another evicts it: each has at most one such in its hands.
    most = hot.limit + threading.active_count() * hot.admits
    assert size <= most, f"the hot layer holds {size:,} bytes of {hot.limit:,}"


def read(link: Link, crowd: Crowd, words: Words) -> int:
    """Read without a pause, always with iterators open; return how many reads there were."""
    reads, pulse = 0, Pulse(words)
    open_: list[Iterator[Any]] = []
    with ExitStack() as stack:
        caches = crowd.open(stack, hot_size_limit=0)
        ready(link)
        while pulse.goes_on():
            for cache in caches:
                cache.get_many(range(100))
                open_.append(iter(cache))
                next(open_[-1], None)
                reads += 100
            for iterator in open_[:-6]:
                reads += len(list(iterator))
            del open_[:-6]
    return reads


def pace(link: Link, crowd: Crowd, words: Words) -> float:
    """Write to the full cache now and then; return the seconds that 99 of 100 writes took at most."""
    took: list[float] = []
    pulse = Pulse(words)
    with ExitStack() as stack:
        _, limited = crowd.open(stack)
        ready(link)
        while pulse.goes_on() or not took:
            time.sleep(PACED)
            began = time.perf_counter()
            limited.set("paced", calls.content("paced", calls.SMALL), retry=True)
            took.append(time.perf_counter() - began)
    return sorted(took)[int(0.99 * len(took))]


@dataclass
class Largest:
    """The most that was seen of everything that has a limit."""

    looks: int = 0
    volume: int = 0
    disk: Counter[str] = field(default_factory=Counter)
    wal: int = 0


def watch(link: Link, crowd: Crowd, words: Words) -> Largest:
    """Look at the size of the limited cache, and of all WALs, again and again; at the volume between two writes."""
    seen, pulse = Largest(), Pulse(words)
    with ExitStack() as stack:
        kept, limited = crowd.open(stack, hot_size_limit=0)
        wals = [Path(f"{store.path}-wal") for cache in (kept, limited) for store in cache._shards.stores]
        ready(link)
        while pulse.goes_on():
            with limited.transact(retry=True):  # so that nothing moves from one shard to another under the sum
                seen.volume = max(seen.volume, limited.volume())
            seen.wal = max(seen.wal, *(wal.stat().st_size for wal in wals if wal.exists()))
            if seen.looks % 4 == 0:
                seen.disk |= footprint(crowd.places[1])
            seen.looks += 1
            time.sleep(PACE)
    return seen


# -- a run ------------------------------------------------------------------------------------------------------------


def run(trial: Trial, crowd: Crowd, share: float = 1.0) -> None:
    """Let a crowd work for its share of the time, watch its processes meanwhile, and audit what it has done."""
    deadline = time.monotonic() + trial.seconds * share - AROUND
    crowd = crowd._replace(places=(trial.fresh("kept"), trial.fresh("limited")))
    words = Words(2 + 2 * crowd.callers)  # the end; the turns of each at a lock; the calls of each; the beat
    seed = f"{trial.seed} {crowd.kind} {crowd.policy}"
    control = played(partial(found, crowd))
    with (
        mock.patch.object(checkpoints, "CHECKPOINT_BYTES", CHECKPOINT),
        mock.patch.object(checkpoints, "WAL_LIMIT", 4 * CHECKPOINT // PAGE_SIZE),
        WAITS.noted(),
        Stage() as stage,
    ):
        workers = [
            stage.play(partial(work, number=number, crowd=crowd, seed=seed, words=words))
            for number in range(crowd.processes)
        ]
        others = [*[read] * crowd.readers, pace, watch]
        everyone = [*workers, *(stage.play(partial(other, crowd=crowd, words=words)) for other in others)]
        Crew.together(everyone)
        guard(trial, crowd, everyone, words, deadline)
        turns = words.words[1 : 1 + crowd.callers].tolist()
        words[0] = 1
        *results, paced, seen = Crew.results(everyone)
    callers = [caller for result in results[: len(workers)] for caller in result]
    trial.count("reads without a pause", sum(results[len(workers) :]))
    trial.most(f"p99 of one set each {1e3 * PACED:.0f} ms", 1e3 * paced, " ms")
    judge(trial, crowd, callers, turns)
    judge_disk(trial, seen, control)
    played(partial(close_books, crowd, callers))


def found(crowd: Crowd) -> int:
    """Make both caches; return the bytes of the second one's control files."""
    with ExitStack() as stack:
        kept, limited = crowd.open(stack)
        calls.prepare(kept)
        calls.fill_up(limited, LIMIT)
        return footprint(crowd.places[1])["control"]


def guard(trial: Trial, crowd: Crowd, everyone: list[Worker], words: Words, deadline: float) -> None:
    """See that no process holds or takes up too much until the deadline, or later for those who had no turn yet."""
    began = time.monotonic()
    deadline, turns = max(deadline, began + LEAST), words.words[1 : 1 + crowd.callers]
    first = {worker.pid: usage_of(worker.pid).resident for worker in everyone}
    most, unnamed, growth, had, since = 0, 0, 0, turns.tolist(), [began] * crowd.callers
    bound = DESCRIPTORS * (1 if crowd.kind == "Cache" else SHARDS) + STREAMS * crowd.threads
    larger = GROWTH + STACK * (crowd.threads - 1)
    # One file without a name for everybody who reads or writes one.
    size = (1 if crowd.weights is calls.EVERYTHING else 4) * calls.LARGE + 100
    unnamed_bound = (crowd.callers + crowd.readers + 1) * size
    while not any(worker.link.asked() for worker in everyone):
        now = time.monotonic()
        is_idle = now < began + LATEST and not all(turns)
        if now >= deadline and min(words.words[1 + crowd.callers : -1]) >= crowd.least and not is_idle:
            break
        since = [then if count == before else now for then, count, before in zip(since, turns, had, strict=True)]
        had, waited = turns.tolist(), now - min(since)
        assert waited <= crowd.longest, f"a writer of {len(had)} starved: no turn for {waited:.1f} s, and {had} turns"
        Pulse.give(words)
        for directory in crowd.places:
            looked = [held(directory, worker.pid) for worker in everyone]
            most = max(most, *(descriptors for descriptors, _ in looked))
            removed = {file: size for _, files in looked for file, size in files.items()}
            unnamed = max(unnamed, sum(removed.values()))
            assert most <= bound, f"a process has {most} descriptors, more than {bound}"
            assert unnamed <= unnamed_bound, f"files without a name take {unnamed:,} bytes"
        for worker in everyone:
            growth = max(growth, usage_of(worker.pid).resident - first[worker.pid])
            assert growth <= larger, f"a process grew by {growth / MIB:.0f} MiB"
        time.sleep(0.02)
    trial.most("most descriptors for a cache", most)
    trial.most("bytes in files without a name", unnamed)
    trial.most("most memory gained", growth / MIB, " MiB")


def judge(trial: Trial, crowd: Crowd, callers: list[dict[str, Any]], turns: Sequence[int]) -> None:
    """Compare each caller's turns at the locks with the others', and what it waited for them with the limits."""
    for what in ("calls", "writes"):
        trial.count(what, sum(caller["accounts"][what] for caller in callers))
    longest, call = max(caller["longest"] for caller in callers)
    trial.most("longest call", longest * 1e3, f" ms ({call})")
    wait, passed = (max(caller[what] for caller in callers) for what in ("wait", "passed"))
    trial.most("longest wait for a lock", wait * 1e3, " ms")
    fair, none = sum(turns) / len(turns), list(turns).count(0)
    trial.figure("fewest turns of one caller", f"{min(turns):,} of {fair:,.0f} on average")
    assert not none, f"a writer starved: {none} of {len(turns)} had no turn at all, and {fair:.0f} is the average"
    assert min(turns) >= FAIR * fair - 1, f"a writer starved: {min(turns)} turns, and {fair:.0f} on average"
    if crowd.threads > 1:
        trial.most("most turns of other threads in a wait", passed)
    else:
        most = min(LONGEST_WAIT + LONGEST_TURN * (crowd.processes - 1), crowd.longest)
        assert wait <= most, f"a writer starved: it waited {wait:.1f} s for the lock"
    most = PASSED * crowd.threads
    assert passed <= most, f"a writer starved: the other {crowd.threads - 1} had {passed:,} turns while it waited"


def judge_disk(trial: Trial, seen: Largest, control: int) -> None:
    """Compare the files that were seen with what each kind may come to; the `control` files never change their size."""
    disk = seen.disk
    trial.count("checks of the size", seen.looks)
    trial.most("largest volume", 100 * seen.volume / LIMIT, " % of the limit")
    trial.most("databases and value files", 100 * disk["content"] / LIMIT, " % of it")
    trial.most("their WALs", 100 * disk["logs"] / LIMIT, " %")
    trial.most("control files by their apparent size", 100 * (disk["control"] + disk["indexes"]) / LIMIT, " %")
    trial.most("largest WAL", seen.wal / MIB, " MiB")
    assert seen.volume <= OVER * LIMIT, f"the volume was {seen.volume:,} bytes, {seen.volume / LIMIT:.1%} of the limit"
    assert disk["content"] <= OVER * LIMIT + PENDING, (
        f"the files took {dict(disk)}, {disk['content'] / LIMIT:.1%} of it"
    )
    assert seen.wal <= WAL_BOUND, f"a WAL was {seen.wal / MIB:.1f} MiB long"
    assert disk["control"] <= control, f"the control files grew from {control:,} to {disk['control']:,} bytes"
    most = SHARDS * LOG_INDEX * (2 + WAL_BOUND // (4096 * PAGE_SIZE))
    assert disk["indexes"] <= most, f"the indexes of the WALs took {disk['indexes']:,} bytes"
    assert not disk["others"], f"{disk['others']:,} bytes are in files that nobody knows"


def close_books(crowd: Crowd, callers: list[dict[str, Any]]) -> None:
    """Audit the kept cache, and see that both are sound."""
    accounts = calls.Accounts()
    for caller in callers:
        accounts.update(caller["accounts"])
    with ExitStack() as stack:
        calls.audit(crowd.open(stack)[0], accounts)
    for directory in crowd.places:
        soundness(crowd.kind, directory)


# -- the proofs -------------------------------------------------------------------------------------------------------


@proof(
    "load-processes",
    5,
    "every call mixed in 64 processes (8 in a short run), beside readers that never pause, until each had its turn: no"
    f" wait for a lock above {LONGEST_WAIT:.0f} s and {LONGEST_TURN} s for each other",
    bulk=8,
)
def many_processes(trial: Trial) -> None:
    number = 64 if trial.seconds >= LONG else 8
    trial.each(KINDS, lambda kind: run(trial, Crowd(kind, number), 1 / len(KINDS)), f"kinds, {number} processes")


@proof(
    "load-threads",
    5,
    "every call mixed in 256 threads of one process (32 in a short run), until each had its turn: none waits for a"
    f" lock while the others have more than {PASSED} turns each",
    bulk=8,
)
def many_threads(trial: Trial) -> None:
    number = 256 if trial.seconds >= LONG else 32
    trial.each(KINDS, lambda kind: run(trial, Crowd(kind, 1, number), 1 / len(KINDS)), f"kinds, {number} threads")


@proof("load-eviction", 5, "several processes fill a full cache with large and small values", bulk=3)
def evicting(trial: Trial) -> None:
    processes = 8 if trial.seconds >= LONG else 3
    policies = [policy.name for policy in EVICTION_POLICY.values() if policy.evicts]
    crowds = [
        Crowd(kind, processes, policy=policy, weights=calls.FLOOD, readers=1) for policy in policies for kind in KINDS
    ]
    trial.each(crowds, lambda crowd: run(trial, crowd, 1 / len(crowds)), "kinds and policies")


@proof("load-limit-ignored", 5, "nothing is evicted", share=0.5, finds="AssertionError: the volume was ")
def evicting_nothing(trial: Trial) -> None:
    with mock.patch.object(OpenShard, "evicts", False):
        evicting(trial)


def busy(call: Callable[[calls.Caller], None], least: int = 40) -> Crowd:
    """Return two processes that make one call only."""
    return Crowd(KINDS[0], 2, weights={call: 1}, readers=0, least=least)


def store_file(caller: calls.Caller) -> None:
    """Store a new entry that has a file, most likely in place of others."""
    key = caller.draw.getrandbits(64)
    assert caller.limited.set(key, calls.content(key, 4 * calls.LARGE), retry=True)


@repeated(
    "load-files-kept", 5, "value files of removed entries stay", share=0.5, finds="AssertionError: the files took "
)
def unlinking_nothing(trial: Trial, _: random.Random) -> None:
    with mock.patch.object(Trash, "_unlink"):
        run(trial, busy(store_file))


def read_file(caller: calls.Caller) -> None:
    """Read an entry that has a file, and remove it."""
    key, kept = ("file", caller.name), caller.kept
    kept.set(key, calls.content(key, calls.LARGE), retry=True)
    with kept.read(key) as file:
        assert file.read() == calls.content(key, calls.LARGE)
    kept.delete(key, retry=True)


@repeated(
    "load-files-open",
    5,
    "what was read stays open",
    share=0.5,
    finds="AssertionError: (a process has .* descriptors|files without a name take |.* descriptors are left )",
)
def closing_nothing(trial: Trial, _: random.Random) -> None:
    open_read = file_io.open_read

    def dup(root: str, name: str, size: int | None = None) -> BinaryIO:
        reader = open_read(root, name, size)
        os.dup(reader.fileno())
        return reader

    with mock.patch.object(file_io, "open_read", dup):
        run(trial, busy(read_file))


def store_batch(caller: calls.Caller) -> None:
    """Replace many entries at once."""
    key = caller.draw.getrandbits(64)
    caller.kept.set_many({number: calls.content(key, 3 * calls.SMALL) for number in range(500)}, retry=True)


@repeated("load-no-checkpoint", 5, "no checkpoint is made", share=0.5, finds="AssertionError: a WAL was ")
def checkpointing_nothing(trial: Trial, _: random.Random) -> None:
    with mock.patch.object(Checkpointer, "is_due", return_value=False):
        run(trial, busy(store_batch, 60))
