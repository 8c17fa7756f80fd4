"""Load: far more processes and threads than processors, every call mixed, and limits that are looked at all the time."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

from benchmarks.usage import usage_of
from diskcache_like import EVICTION_POLICY, Cache
from diskcache_like.disk import file_io
from diskcache_like.entries.hot import COST
from diskcache_like.storage.sqlite.connection import PAGE_SIZE
from diskcache_like.storage.sqlite.reader_pool import MAX_READERS
from diskcache_like.storage.upkeep import checkpoints
from diskcache_like.storage.upkeep.checkpoints import Checkpointer
from diskcache_like.storage.upkeep.eviction import Evictor
from diskcache_like.storage.upkeep.trash import Trash
from tests.support.workers import PATIENCE, Crew, Link, Worker, ready

from ..children import KINDS, SHARDS, Stage, Words, opened, played, soundness
from ..proof import Proof, Trial
from . import calls
from .fairness import WAITS
from .footprint import Footprint, Held

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
LONG = 10.0  # seconds from which on a run is a long one, with all processes and threads
# Database and WAL for each of the readers and the writer; -shm, the lock, the mapped generations and write buffer; and two
# directories that are looked through, or made durable.
DESCRIPTORS = 2 * (MAX_READERS + 1) + 4 + 2
STREAMS = 3  # what a call has open beside that: a new file, and the two directories between which it finds its place
AROUND, LEAST = 0.3, 1.0  # seconds for the end of a run, and for the run itself at least
PACE = 0.002  # seconds between two looks, which hold up the writers
PACED = 0.01  # seconds between two writes of one that has time


class Crowd(NamedTuple):
    """Who works on two caches at once, and at what."""

    kind: str
    processes: int
    threads: int = 1
    policy: str = "least-recently-used"
    weights: calls.Weights = calls.EVERYTHING
    readers: int = 2
    least: int = 0  # calls of each caller, however long they take

    @property
    def callers(self) -> int:
        """How many threads call, in all processes together."""
        return self.processes * self.threads

    @property
    def unnamed(self) -> int:
        """The bytes in files without a name that are open at one time: one for everybody who reads or writes one."""
        return (self.callers + self.readers + 1) * calls.largest(self.weights)


class Places(NamedTuple):
    """Where the two caches are."""

    kept: Path
    limited: Path

    def open(self, crowd: Crowd, **settings: Any) -> tuple[Cache, Cache]:
        """Open both, with a hot layer that is soon full."""
        options = {"hot_size_limit": HOT_LIMIT, **settings}
        return (
            opened(crowd.kind, self.kept, eviction_policy="none", **options),
            opened(crowd.kind, self.limited, eviction_policy=crowd.policy, size_limit=LIMIT, **options),
        )


@contextmanager
def short_logs() -> Iterator[None]:
    """Have the children that are forked meanwhile checkpoint often."""
    with (
        mock.patch.object(checkpoints, "CHECKPOINT_BYTES", CHECKPOINT),
        mock.patch.object(checkpoints, "WAL_LIMIT", 4 * CHECKPOINT // PAGE_SIZE),
    ):
        yield


class Pulse:
    """Keeps a child for as long as the proof goes on: of itself it ends soon, lest it outlive one that was killed."""

    def __init__(self, words: Words) -> None:
        self._words, self._beat = words, 0

    @staticmethod
    def give(words: Words) -> None:
        """Tell the children, by the last of their words, that the proof goes on."""
        words[-1] += 1

    def follow(self) -> None:
        """Stay for another while if there was a beat."""
        if self._words[-1] != self._beat:
            self._beat = self._words[-1]
            signal.alarm(int(2 * PATIENCE))


# -- what the children do ---------------------------------------------------------------------------------------------


def work(link: Link, number: int, crowd: Crowd, places: Places, seed: str, words: Words) -> list[dict[str, Any]]:
    """Call at random in `crowd.threads` threads until the end; return each caller's accounts."""
    kept, limited = places.open(crowd)
    callers = [
        calls.Caller(kept, limited, (number, each), random.Random(f"{seed} {number} {each}"), crowd.weights)
        for each in range(crowd.threads)
    ]

    first, pulse = 1 + number * crowd.threads, Pulse(words)

    def look(each: int) -> None:
        pulse.follow()
        words[first + each + crowd.callers] = callers[each].accounts["calls"]
        if callers[each].accounts["calls"] % 50 == 0:
            for cache in (kept, limited):
                look_at_hot_layer(cache)

    with kept, limited:
        ready(link)
        WAITS.forget()
        calls.call_in_threads(callers, lambda: not words[0], look, lambda each: WAITS.tell(words, first + each))
        waits = {"wait": WAITS.longest, "passed": WAITS.passed}
    gc.collect()  # what maps a file may be part of a cycle, such as an exception's
    for directory in places:
        left = Held.of(directory).descriptors
        assert not left, f"{left} descriptors are left when everything is closed"
    return [{"accounts": each.accounts, "longest": (each.longest, each.slowest), **waits} for each in callers]


def look_at_hot_layer(cache: Cache) -> None:
    """Assert that what the hot layer holds is within its limit."""
    hot = cache._hot
    with hot._lock:
        size = sum(entry[COST] for entry in list(hot.entries.values()))
    # A thread may put an entry anew while another evicts it: each has at most one such in its hands.
    most = hot.limit + threading.active_count() * hot.admits
    assert size <= most, f"the hot layer holds {size:,} bytes of {hot.limit:,}"


def read(link: Link, crowd: Crowd, places: Places, words: Words) -> int:
    """Read without a pause, always with iterators open; return how many reads there were."""
    reads, pulse = 0, Pulse(words)
    with ExitStack() as stack:
        caches = [stack.enter_context(cache) for cache in places.open(crowd, hot_size_limit=0)]
        held: list[Iterator[Any]] = []
        ready(link)
        while not words[0]:
            pulse.follow()
            for cache in caches:
                cache.get_many(range(100))
                held.append(iter(cache))
                next(held[-1], None)
                reads += 100
            for iterator in held[:-6]:
                reads += len(list(iterator))
            del held[:-6]
    return reads


def pace(link: Link, crowd: Crowd, places: Places, words: Words) -> float:
    """Write to the full cache now and then; return the seconds that 99 of 100 writes took at most."""
    took: list[float] = []
    pulse = Pulse(words)
    kept, limited = places.open(crowd)
    with kept, limited:
        ready(link)
        while not (words[0] and took):
            pulse.follow()
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
    disk: Footprint = field(default_factory=Footprint)
    wal: int = 0


def watch(link: Link, crowd: Crowd, places: Places, words: Words) -> Largest:
    """Look at the size of the limited cache, and of all WALs, again and again; at the volume between two writes."""
    seen, pulse = Largest(), Pulse(words)
    kept, limited = places.open(crowd, hot_size_limit=0)
    wals = [Path(f"{store.path}-wal") for cache in (kept, limited) for store in cache._shards.stores]
    with kept, limited:
        ready(link)
        while not words[0]:
            pulse.follow()
            with limited.transact(retry=True):  # so that nothing moves from one shard to another under the sum
                volume = limited.volume()
            seen.volume = max(seen.volume, volume)
            seen.wal = max(seen.wal, *(wal.stat().st_size for wal in wals if wal.exists()))
            if seen.looks % 4 == 0:
                seen.disk = seen.disk.widest(Footprint.of(places.limited))
            seen.looks += 1
            time.sleep(PACE)
    return seen


# -- a run ------------------------------------------------------------------------------------------------------------


def run(trial: Trial, crowd: Crowd, share: float) -> None:
    """Let a crowd work for its share of the time, watch its processes meanwhile, and audit what it has done."""
    deadline = time.monotonic() + trial.seconds * share - AROUND
    places = Places(trial.fresh("kept"), trial.fresh("limited"))
    words = Words(2 + 2 * crowd.callers)  # the end; the turns of each at a lock; the calls of each; the beat
    seed = f"{trial.seed} {crowd.kind} {crowd.policy}"
    control = played(partial(found, crowd, places))
    with short_logs(), WAITS.noted(), Stage() as stage:
        workers = [
            stage.play(partial(work, number=number, crowd=crowd, places=places, seed=seed, words=words))
            for number in range(crowd.processes)
        ]
        others = [*[read] * crowd.readers, pace, watch]
        looking = [stage.play(partial(other, crowd=crowd, places=places, words=words)) for other in others]
        everyone = [*workers, *looking]
        Crew.together(everyone)
        began = time.monotonic()
        deadline = max(deadline, began + LEAST)
        guard(trial, crowd, everyone, places, words, partial(goes_on, crowd, words, deadline, began + LATEST))
        turns = list(words.words[1 : 1 + crowd.callers])
        words[0] = 1
        *results, paced, seen = Crew.results(everyone)
    callers = [caller for result in results[: len(workers)] for caller in result]
    trial.count("reads without a pause", sum(results[len(workers) :]))
    trial.most(f"p99 of one set each {1e3 * PACED:.0f} ms", 1e3 * paced, " ms")
    judge(trial, crowd, callers, turns)
    trial.count("checks of the size", seen.looks)
    judge_disk(trial, seen, control)
    played(partial(close_books, crowd, places, callers))


def goes_on(crowd: Crowd, words: Words, deadline: float, latest: float) -> bool:
    """Tell whether a run goes on: until the deadline, and until the latest for those who had no turn yet."""
    now, turns, made = time.monotonic(), words.words[1 : 1 + crowd.callers], words.words[1 + crowd.callers : -1]
    return now < deadline or min(made) < crowd.least or (now < latest and not all(turns))


def found(crowd: Crowd, places: Places) -> int:
    """Make both caches; return the bytes of the second one's control files."""
    kept, limited = places.open(crowd)
    with kept, limited:
        calls.prepare(kept)
        calls.fill_up(limited, LIMIT)
        return Footprint.of(places.limited).control


def guard(
    trial: Trial, crowd: Crowd, everyone: list[Worker], places: Places, words: Words, goes_on: Callable[[], bool]
) -> None:
    """While it goes on and nobody fails, see that no process holds or takes up too much."""
    first = {worker.pid: usage_of(worker.pid).resident for worker in everyone}
    most, unnamed, growth = 0, 0, 0
    bound = DESCRIPTORS * (1 if crowd.kind == "Cache" else SHARDS) + STREAMS * crowd.threads
    larger = GROWTH + STACK * (crowd.threads - 1)
    while goes_on() and not any(worker.link.asked() for worker in everyone):
        Pulse.give(words)
        for directory in places:
            held = [Held.of(directory, worker.pid) for worker in everyone]
            most = max(most, *(each.descriptors for each in held))
            unnamed = max(unnamed, sum(Held.together(held).values()))
            assert most <= bound, f"a process has {most} descriptors, more than {bound}"
            assert unnamed <= crowd.unnamed, f"files without a name take {unnamed:,} bytes"
        for worker in everyone:
            growth = max(growth, usage_of(worker.pid).resident - first[worker.pid])
            assert growth <= larger, f"a process grew by {growth / MIB:.0f} MiB"
        time.sleep(0.02)
    trial.most("most descriptors for a cache", most)
    trial.most("bytes in files without a name", unnamed)
    trial.most("most memory gained", growth / MIB, " MiB")


def judge(trial: Trial, crowd: Crowd, callers: list[dict[str, Any]], turns: Sequence[int]) -> None:
    """Compare each caller's turns at the locks with the others', and what it waited for them with the limits."""
    trial.count("calls", sum(caller["accounts"]["calls"] for caller in callers))
    trial.count("writes", sum(caller["accounts"]["writes"] for caller in callers))
    longest, call = max(caller["longest"] for caller in callers)
    trial.most("longest call", longest * 1e3, f" ms ({call})")
    wait, passed = (max(caller[what] for caller in callers) for what in ("wait", "passed"))
    trial.most("longest wait for a lock", wait * 1e3, " ms")
    if crowd.threads > 1:
        trial.most("most turns of other threads in a wait", passed)
    fair, none = sum(turns) / len(turns), list(turns).count(0)
    trial.figure("fewest turns of one caller", f"{min(turns):,} of {fair:,.0f} on average")
    assert not none, f"a writer starved: {none} of {len(turns)} had no turn at all, and {fair:.0f} is the average"
    assert min(turns) >= FAIR * fair - 1, f"a writer starved: {min(turns)} turns, and {fair:.0f} on average"
    if crowd.threads == 1:
        assert wait <= LONGEST_WAIT + LONGEST_TURN * (crowd.processes - 1), (
            f"a writer starved: it waited {wait:.1f} s for the lock"
        )
    most = PASSED * crowd.threads
    assert passed <= most, f"a writer starved: the other {crowd.threads - 1} had {passed:,} turns while it waited"


def judge_disk(trial: Trial, seen: Largest, control: int) -> None:
    """Compare the files that were seen with what each kind may come to; the `control` files never change their size."""
    disk = seen.disk
    trial.most("largest volume", 100 * seen.volume / LIMIT, " % of the limit")
    trial.most("databases and value files", 100 * disk.content / LIMIT, " % of it")
    trial.most("their WALs", 100 * disk.logs / LIMIT, " %")
    trial.most("control files", 100 * (disk.control + disk.indexes) / LIMIT, " %")
    trial.most("largest WAL", seen.wal / MIB, " MiB")
    assert seen.volume <= OVER * LIMIT, f"the volume was {seen.volume:,} bytes, {seen.volume / LIMIT:.1%} of the limit"
    assert disk.content <= OVER * LIMIT + PENDING, (
        f"the files took {disk.databases:,} and {disk.values:,} bytes at most, {disk.content / LIMIT:.1%} of the limit"
    )
    assert seen.wal <= WAL_BOUND, f"a WAL was {seen.wal / MIB:.1f} MiB long"
    assert disk.control <= control, f"the control files grew from {control:,} to {disk.control:,} bytes"
    most = SHARDS * LOG_INDEX * (2 + WAL_BOUND // (4096 * PAGE_SIZE))
    assert disk.indexes <= most, f"the indexes of the WALs took {disk.indexes:,} bytes"
    assert not disk.others, f"{disk.others:,} bytes are in files that nobody knows"


def close_books(crowd: Crowd, places: Places, callers: list[dict[str, Any]]) -> None:
    """Audit the kept cache, and see that both are sound."""
    accounts = calls.Accounts()
    for caller in callers:
        accounts.update(caller["accounts"])
    kept, limited = places.open(crowd)
    with kept, limited:
        calls.audit(kept, accounts)
    for directory in places:
        soundness(crowd.kind, directory)


# -- the proofs -------------------------------------------------------------------------------------------------------


def many_processes(trial: Trial) -> None:
    """Mix all calls in many processes."""
    processes = 64 if trial.seconds >= LONG else 8
    share = 1 / len(KINDS)
    trial.each(KINDS, lambda kind: run(trial, Crowd(kind, processes), share), f"kinds, {processes} processes")


def many_threads(trial: Trial) -> None:
    """Mix all calls in many threads of one process."""
    threads = 256 if trial.seconds >= LONG else 32
    share = 1 / len(KINDS)
    trial.each(KINDS, lambda kind: run(trial, Crowd(kind, 1, threads), share), f"kinds, {threads} threads")


POLICIES = [policy.name for policy in EVICTION_POLICY.values() if policy.evicts]


def evicting(trial: Trial, kinds: Sequence[str] = KINDS) -> None:
    """Have several processes fill what is full already."""
    processes = 8 if trial.seconds >= LONG else 3
    crowds = [
        Crowd(kind, processes, policy=policy, weights=calls.FLOOD, readers=1) for policy in POLICIES for kind in kinds
    ]
    trial.each(crowds, lambda crowd: run(trial, crowd, 1 / len(crowds)), "kinds and policies")


def evicting_nothing(trial: Trial) -> None:
    """Do the same where the limit is ignored."""
    with mock.patch.object(Evictor, "evicts", False):
        evicting(trial)


def store_file(caller: calls.Caller) -> None:
    """Store a new entry that has a file, most likely in place of others."""
    key = caller.draw.getrandbits(64)
    assert caller.limited.set(key, calls.content(key, 4 * calls.LARGE), retry=True)


def unlinking_nothing(trial: Trial) -> None:
    """Store files where those of what is removed stay."""
    with mock.patch.object(Trash, "_unlink"):
        trial.repeat(lambda chance: run(trial, Crowd(KINDS[0], 2, weights={store_file: 1}, readers=0, least=40), 1.0))


def read_file(caller: calls.Caller) -> None:
    """Read an entry that has a file, and remove it."""
    key, kept = ("file", caller.name), caller.kept
    kept.set(key, calls.content(key, calls.LARGE), retry=True)
    with kept.read(key) as file:
        assert file.read() == calls.content(key, calls.LARGE)
    kept.delete(key, retry=True)


def closing_nothing(trial: Trial) -> None:
    """Read files where a descriptor of each stays open."""

    def dup(root: str, name: str, size: int | None = None) -> BinaryIO:
        reader = open_read(root, name, size)
        os.dup(reader.fileno())
        return reader

    open_read = file_io.open_read
    with mock.patch.object(file_io, "open_read", dup):
        trial.repeat(lambda chance: run(trial, Crowd(KINDS[0], 2, weights={read_file: 1}, readers=0, least=40), 1.0))


def store_batch(caller: calls.Caller) -> None:
    """Replace many entries at once."""
    key = caller.draw.getrandbits(64)
    caller.kept.set_many({number: calls.content(key, 3 * calls.SMALL) for number in range(500)}, retry=True)


def checkpointing_nothing(trial: Trial) -> None:
    """Write much where no checkpoint is ever due."""
    with mock.patch.object(Checkpointer, "is_due", return_value=False):
        trial.repeat(lambda chance: run(trial, Crowd(KINDS[0], 2, weights={store_batch: 1}, readers=0, least=60), 1.0))


PROOFS: dict[str, Proof] = {
    "load-processes": Proof(
        5,
        "every call mixed in 64 processes (8 in a short run), beside readers that never pause, until each had its turn: no"
        f" wait for a lock above {LONGEST_WAIT:.0f} s and {LONGEST_TURN} s for each other",
        many_processes,
        bulk=8,
    ),
    "load-threads": Proof(
        5,
        "every call mixed in 256 threads of one process (32 in a short run), until each had its turn: none waits for a"
        f" lock while the others have more than {PASSED} turns each",
        many_threads,
        bulk=8,
    ),
    "load-eviction": Proof(5, "several processes fill a full cache with large and small values", evicting, bulk=3),
    "load-limit-ignored": Proof(
        5, "nothing is evicted", evicting_nothing, share=0.5, finds="AssertionError: the volume was "
    ),
    "load-files-kept": Proof(
        5,
        "value files of removed entries stay",
        unlinking_nothing,
        share=0.5,
        finds="AssertionError: the files took ",
    ),
    "load-files-open": Proof(
        5,
        "what was read stays open",
        closing_nothing,
        share=0.5,
        finds="AssertionError: (a process has .* descriptors|files without a name take |.* descriptors are left )",
    ),
    "load-no-checkpoint": Proof(
        5, "no checkpoint is made", checkpointing_nothing, share=0.5, finds="AssertionError: a WAL was "
    ),
}
