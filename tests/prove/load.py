"""Load: far more processes and threads than processors, every call mixed, and limits that are looked at all the time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.usage import usage_of
from diskcache_like import EVICTION_POLICY, Cache
from diskcache_like.hot import COST
from diskcache_like.storage import room
from diskcache_like.storage.connection import MAX_READERS, PAGE_SIZE

from ..processes import Crew, Link, Worker, cache_descriptors, ready
from . import calls
from .fairness import WAITS
from .footprint import Footprint
from .proof import Proof, Trial
from .stage import KINDS, SHARDS, Stage, Words, opened, played, soundness

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
LONGEST_WAIT = 5.0  # seconds that a write may wait for its lock, however many processes want it
# What each thread of a process adds to that: one that reads without a pause keeps the interpreter for 5 ms each time, and
# a write asks for it again after each of the twenty calls that give it away.
LONGEST_TURN = 0.1
GROWTH = 96 * MIB  # by which a process may grow from its first calls on: connections' page caches, hot layers, buffers
FAIR = 0.02  # of the average number of writes is what the slowest writer must have made
LONG = 10.0  # seconds from which on a run is a long one, with all processes and threads
# Database and WAL for each of the readers and the writer; -shm, the lock, the mapped generations and board; and two
# directories that are looked through, or made durable.
DESCRIPTORS = 2 * (MAX_READERS + 1) + 4 + 2
AROUND, LEAST = 0.3, 1.0  # seconds for the end of a run, and for the run itself at least
PACE = 0.002  # seconds between two looks, which hold up the writers


class Crowd(NamedTuple):
    """Who works on two caches at once, and at what."""

    kind: str
    processes: int
    threads: int = 1
    policy: str = "least-recently-used"
    weights: calls.Weights = calls.EVERYTHING
    readers: int = 2
    least: int = 0  # calls of each process, however long they take


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
        mock.patch.object(room, "CHECKPOINT_BYTES", CHECKPOINT),
        mock.patch.object(room, "WAL_LIMIT", 4 * CHECKPOINT // PAGE_SIZE),
    ):
        yield


# -- what the children do ---------------------------------------------------------------------------------------------


def work(link: Link, number: int, crowd: Crowd, places: Places, seed: str, words: Words) -> list[dict[str, Any]]:
    """Call at random in `crowd.threads` threads until the end; return each caller's accounts."""
    kept, limited = places.open(crowd)
    callers = [
        calls.Caller(kept, limited, (number, each), random.Random(f"{seed} {number} {each}"), crowd.weights)
        for each in range(crowd.threads)
    ]

    def look(each: int) -> None:
        words[1 + number] = callers[0].accounts["calls"]
        if callers[each].accounts["calls"] % 50 == 0:
            for cache in (kept, limited):
                look_at_hot_layer(cache)

    with kept, limited:
        ready(link)
        WAITS.longest = 0.0
        calls.call_in_threads(callers, lambda: not words[0], look)
    return [
        {"accounts": each.accounts, "longest": (each.longest, each.slowest), "wait": WAITS.longest} for each in callers
    ]


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
    reads = 0
    with ExitStack() as stack:
        caches = [stack.enter_context(cache) for cache in places.open(crowd, hot_size_limit=0)]
        held: list[Iterator[Any]] = []
        ready(link)
        while not words[0]:
            for cache in caches:
                cache.get_many(range(100))
                held.append(iter(cache))
                next(held[-1], None)
                reads += 100
            for iterator in held[:-6]:
                reads += len(list(iterator))
            del held[:-6]
    return reads


@dataclass
class Largest:
    """The most that was seen of everything that has a limit."""

    looks: int = 0
    volume: int = 0
    disk: Footprint = field(default_factory=Footprint)
    wal: int = 0


def watch(link: Link, crowd: Crowd, places: Places, words: Words) -> Largest:
    """Look at the size of the limited cache, and of all WALs, again and again; at the volume between two writes."""
    seen = Largest()
    kept, limited = places.open(crowd, hot_size_limit=0)
    wals = [Path(f"{store.path}-wal") for cache in (kept, limited) for store in cache._shards.stores]
    with kept, limited:
        ready(link)
        while not words[0]:
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
    places, words = Places(trial.fresh("kept"), trial.fresh("limited")), Words(1 + crowd.processes)  # the end; calls
    seed = f"{trial.seed} {crowd.kind} {crowd.policy}"
    control = played(partial(found, crowd, places))
    with short_logs(), WAITS.noted(), Stage() as stage:
        workers = [
            stage.play(partial(work, number=number, crowd=crowd, places=places, seed=seed, words=words))
            for number in range(crowd.processes)
        ]
        looking = [stage.play(partial(read, crowd=crowd, places=places, words=words)) for _ in range(crowd.readers)]
        everyone = [*workers, *looking, stage.play(partial(watch, crowd=crowd, places=places, words=words))]
        Crew.together(everyone)
        deadline = max(deadline, time.monotonic() + LEAST)
        guard(trial, everyone, places, lambda: time.monotonic() < deadline or min(words.words[1:]) < crowd.least)
        words[0] = 1
        *results, seen = Crew.results(everyone)
    callers = [caller for result in results[: len(workers)] for caller in result]
    trial.count("reads without a pause", sum(results[len(workers) :]))
    judge(trial, crowd, callers, seen)
    judge_disk(trial, seen, control)
    played(partial(close_books, crowd, places, callers))


def found(crowd: Crowd, places: Places) -> int:
    """Make both caches; return the bytes of the second one's control files."""
    kept, limited = places.open(crowd)
    with kept, limited:
        calls.prepare(kept)
        calls.fill_up(limited, LIMIT)
        return Footprint.of(places.limited).control


def guard(trial: Trial, everyone: list[Worker], places: Places, goes_on: Callable[[], bool]) -> None:
    """While it goes on and nobody fails, see that no process holds or takes up too much."""
    first = {worker.pid: usage_of(worker.pid).resident for worker in everyone}
    most, growth = 0, 0
    while goes_on() and not any(worker.link.asked() for worker in everyone):
        for worker in everyone:
            for directory in places:
                held = len([name for name in cache_descriptors(directory, worker.pid) if ".val" not in name])
                stores = SHARDS if (directory / "000").exists() else 1
                most = max(most, held)
                assert held <= DESCRIPTORS * stores, f"a process has {held} descriptors for {stores} shards"
            growth = max(growth, usage_of(worker.pid).resident - first[worker.pid])
            assert growth <= GROWTH, f"a process grew by {growth / MIB:.0f} MiB"
        time.sleep(0.02)
    trial.most("most descriptors for a cache", most)
    trial.most("most memory gained", growth / MIB, " MiB")


def judge(trial: Trial, crowd: Crowd, callers: list[dict[str, Any]], seen: Largest) -> None:
    """Compare what was seen with the limits, and each writer's share with the others'."""
    trial.count("calls", sum(caller["accounts"]["calls"] for caller in callers))
    trial.count("looks at the size", seen.looks)
    longest, call = max(caller["longest"] for caller in callers)
    trial.most("longest call", longest * 1e3, f" ms ({call})")
    writes = [caller["accounts"]["writes"] for caller in callers]
    fair = sum(writes) / len(writes)
    trial.count("writes", sum(writes))
    trial.most("largest volume", 100 * seen.volume / LIMIT, " % of the limit")
    wait = max(caller["wait"] for caller in callers)
    trial.most("longest wait for a lock", wait * 1e3, " ms")
    trial.figure("fewest writes of one", f"{min(writes):,} of {fair:,.0f} on average")
    assert min(writes) >= FAIR * fair - 1, f"a writer starved: {min(writes)} writes, and {fair:.0f} on average"
    longest = LONGEST_WAIT + LONGEST_TURN * (crowd.threads - 1)
    assert wait <= longest, f"a writer starved: it waited {wait:.1f} s for the lock"


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
    with mock.patch.object(room, "evicts", return_value=False):
        evicting(trial)


def store_file(caller: calls.Caller) -> None:
    """Store a new entry that has a file, most likely in place of others."""
    key = caller.draw.getrandbits(64)
    assert caller.limited.set(key, calls.content(key, 4 * calls.LARGE), retry=True)


def unlinking_nothing(trial: Trial) -> None:
    """Store files where those of what is removed stay."""
    with mock.patch.object(room, "_unlink"):
        trial.repeat(lambda chance: run(trial, Crowd(KINDS[0], 2, weights={store_file: 1}, readers=0, least=40), 1.0))


def store_batch(caller: calls.Caller) -> None:
    """Replace many entries at once."""
    key = caller.draw.getrandbits(64)
    caller.kept.set_many({number: calls.content(key, 3 * calls.SMALL) for number in range(500)}, retry=True)


def checkpointing_nothing(trial: Trial) -> None:
    """Write much where no checkpoint is ever due."""
    with mock.patch.object(room, "checkpoint_is_due", return_value=False):
        trial.repeat(lambda chance: run(trial, Crowd(KINDS[0], 2, weights={store_batch: 1}, readers=0, least=60), 1.0))


PROOFS: dict[str, Proof] = {
    "load-processes": Proof(
        5,
        "every call mixed in 64 processes (8 in a short run), beside readers that never pause",
        many_processes,
        bulk=8,
    ),
    "load-threads": Proof(
        5, "every call mixed in 256 threads of one process (32 in a short run)", many_threads, bulk=8
    ),
    "load-eviction": Proof(5, "several processes fill a full cache with large and small values", evicting, bulk=3),
    "load-limit-ignored": Proof(
        5, "nothing is evicted", evicting_nothing, share=0.5, finds="AssertionError: the volume was "
    ),
    "load-files-kept": Proof(
        5,
        "value files stay of what is removed",
        unlinking_nothing,
        share=0.5,
        finds="AssertionError: the files took ",
    ),
    "load-no-checkpoint": Proof(
        5, "no checkpoint is made", checkpointing_nothing, share=0.5, finds="AssertionError: a WAL was "
    ),
}
