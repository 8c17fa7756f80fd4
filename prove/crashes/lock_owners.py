"""Owners of the write lock that die or freeze, and those who wait for it."""

from __future__ import annotations

import mmap
import os
import random
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from diskcache_like import Cache, Timeout
from diskcache_like.coherence.generations import GenerationFile
from diskcache_like.coherence.write_lock import WriteLock
from tests.support.integrity import mend, opened
from tests.support.workers import PATIENCE, Forked, Link, Worker, fork_worker

from ..proof import Trial, repeated

CONTENDERS = 4
ROUNDS = 12
APART = 0.0003  # seconds between two kills at most
OWNER, BREACHES, DEAD_OWNERS, TURNS = 0, 1, 2, 8  # words that the contenders share
STALL = 10.0  # seconds for which a death may keep others waiting on a machine with much else to do


# -- survivors --------------------------------------------------------------------------------------------------------


def hear_from(worker: Worker, who: str) -> Any:
    """Return the next word of one who must not wait for long."""
    assert worker.link.connection.poll(STALL), f"{who} has said nothing for {STALL:.0f} s"
    return worker.hear()


def go_on(worker: Worker, who: str) -> None:
    """Wait until one has done more than it had: until the second word from now, for the first may be of before."""
    while worker.link.asked():
        worker.hear()
    for _ in range(2):
        hear_from(worker, who)


# -- dead -------------------------------------------------------------------------------------------------------------


def contend(link: Link, path: Path, mode: str, number: int, words: memoryview[int]) -> None:
    """Take the lock and give it back until killed; note who has it, and whether anybody else ever had it too."""
    lock = WriteLock(path)
    if mode != "bare":
        generations = GenerationFile.open_existing(path.with_name("cache.gen"))
        assert generations is not None
        lock.attach(generations.header)
    chance, me = random.Random(number), os.getpid()
    link.tell()
    while True:
        lock.acquire(PATIENCE / 2)
        words[DEAD_OWNERS] += words[OWNER] != 0
        words[OWNER] = me
        for _ in range(chance.randrange(500)):
            words[BREACHES] += words[OWNER] != me
        words[OWNER] = 0
        words[TURNS + number] += 1
        lock.release()
        for _ in range(chance.randrange(2_000)):
            pass  # whoever waits in its sleep is to have a chance


class Contenders:
    """Processes that want one lock."""

    def __init__(self, path: Path, mode: str) -> None:
        self.words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._path, self._mode = path, mode
        GenerationFile.create(path.with_name("cache.gen"), 16).close()
        self._workers: dict[int, Forked] = {}

    def fill(self) -> None:
        missing = [number for number in range(CONTENDERS) if number not in self._workers]
        for number in missing:
            work = partial(contend, path=self._path, mode=self._mode, number=number, words=self.words)
            self._workers[number] = fork_worker(work)
        for number in missing:
            self._workers[number].hear()

    def kill_two(self, chance: random.Random) -> None:
        """Kill the one who has the lock, or had it a moment ago, and soon after another."""
        deadline, pids = time.monotonic() + STALL, {worker.pid for worker in self._workers.values()}
        while (owner := self.words[OWNER]) not in pids:
            assert time.monotonic() < deadline, f"nobody gets the lock, for {STALL:.0f} s now"
            os.sched_yield()
        numbers = chance.sample(sorted(self._workers), CONTENDERS)
        numbers = sorted(numbers, key=lambda number: self._workers[number].pid != owner)[:2]
        victims = [self._workers.pop(number) for number in numbers]
        victims[0].strike()
        until = time.perf_counter() + chance.random() * APART
        while time.perf_counter() < until:
            pass
        victims[1].strike()
        for victim in victims:
            victim.fall()
            victim.dismiss()

    def all_get_turns(self) -> float:
        """Wait until everybody who lives has had the lock again; return how many seconds that took."""
        before = list(self.words)
        began = time.monotonic()
        for number, worker in self._workers.items():
            while self.words[TURNS + number] == before[TURNS + number]:
                if worker.link.asked():
                    worker.hear()  # which fails, since it tells only of failures
                waited = time.monotonic() - began
                assert waited < STALL, f"contender {number} waits for the lock, for {STALL:.0f} s now"
                os.sched_yield()
        assert not self.words[BREACHES], "two had the lock at once"
        return time.monotonic() - began

    def dismiss(self) -> None:
        for worker in self._workers.values():
            worker.dismiss()


@repeated(
    "crash-dead-owners",
    3,
    "kill -9 of the write lock's owner and of a contender within 0.3 ms: the others go on",
    bulk=11.0,
)
def dead_owners(trial: Trial, chance: random.Random) -> None:
    directory = trial.fresh()
    directory.mkdir(0o700)
    contenders = Contenders(directory / "cache.lock", chance.choice(["bare", "attached"]))
    try:
        for _ in range(ROUNDS):
            contenders.fill()
            contenders.kill_two(chance)
            trial.count("kills", 2)
            trial.most("longest until all survivors had their turns", 1000 * contenders.all_get_turns(), " ms")
        trial.count("dead owners", contenders.words[DEAD_OWNERS])
        trial.count("turns", sum(contenders.words[TURNS : TURNS + CONTENDERS]))
    finally:
        contenders.dismiss()


# -- frozen -----------------------------------------------------------------------------------------------------------

SLOWEST = 2.0  # seconds that a timeout may come late on a machine with much else to do
SLOWEST_READ = 1.0  # seconds that a read may take on such a machine: it waits for nothing
ENOUGH = 20  # reads while the owner is frozen


def hold(link: Link, directory: Path, kind: str) -> None:
    """Write pairs of equal numbers, one pair per transaction, and be in one most of the time."""
    with opened(directory, kind) as cache:
        while True:
            with cache.transact(retry=True):
                number = cache.incr("one", retry=True)
                if select.select([], [link.connection], [], 0)[1]:  # who waited for a listener would keep the lock
                    link.tell(number)
                for _ in range(200):
                    cache.get("one")
                cache.set("two", number)


def wait_for_turns(link: Link, directory: Path, kind: str, name: str) -> None:
    """Count, waiting for the lock without limit."""
    with opened(directory, kind) as cache:
        while True:
            link.tell(cache.incr(name, retry=True))


class Onlookers:
    """Handles of this process on a cache whose writer is frozen."""

    def __init__(self, trial: Trial, directory: Path, kind: str, timeout: float, stack: ExitStack) -> None:
        self._trial, self._timeout = trial, timeout
        self.hot = stack.enter_context(opened(directory, kind))
        self._cold = stack.enter_context(opened(directory, kind, hot_size_limit=0))
        self._hasty = stack.enter_context(opened(directory, kind, timeout=timeout))
        self._patient = stack.enter_context(opened(directory, kind, timeout=STALL))
        self._apart = 0 if kind == "one" else 1  # in several shards a transaction is committed in several steps
        self.hot.set_many({"one": 0, "two": 0})

    def readers_answer(self) -> None:
        """Read from everywhere, without waiting for the lock."""
        for _ in range(ENOUGH):
            for cache in (self.hot, self._cold):
                pair = self._read(cache, "one"), self._read(cache, "two")
                assert abs(pair[0] - pair[1]) <= self._apart, f"half a transaction: {pair}"
                self._trial.count("reads during the stops", 2)
        assert self.hot.get("one") == self._cold.get("one"), "a stale value"

    def _read(self, cache: Cache, key: str) -> int:
        began = time.monotonic()
        value: int = cache.get(key)
        took = time.monotonic() - began
        self._trial.most("longest read", 1000 * took, " ms")
        assert took <= SLOWEST_READ, f"a read took {took:.3f} s, as if it had waited for the lock"
        return value

    def writers_go_on(self) -> None:
        """Write, however often the owner takes the lock anew just when it has given it back."""
        began = time.monotonic()
        assert self._patient.set("one more", 2)
        self._trial.most("longest wait for the lock afterwards", 1000 * (time.monotonic() - began), " ms")

    def writers_time_out(self) -> float:
        """Write with a timeout; return how many seconds late it came, 0 if the lock was free after all."""
        began = time.monotonic()
        try:
            stored = self._hasty.set("one more", 1)
        except Timeout:
            stored = False
        late = time.monotonic() - began - self._timeout
        if stored:
            return 0.0
        self._trial.count("timeouts")
        assert -0.001 <= late <= SLOWEST, f"the timeout of {self._timeout:.3f} s came {late:.3f} s after its time"
        return late


def _stop(owner: Worker, chance: random.Random) -> None:
    """Stop the owner at some moment after it has said that it is in a transaction."""
    owner.hear()
    for _ in range(chance.randrange(300)):
        owner.link.asked()
    owner.stop()


def _freeze(trial: Trial, chance: random.Random, stack: ExitStack) -> float:
    """Do one case; return how late the timeout came."""
    directory, kind = trial.fresh(), chance.choice(["one", "fanout"])
    onlookers = Onlookers(trial, directory, kind, chance.uniform(0.0, 0.05), stack)
    works: list[Callable[..., object]] = [hold, *(partial(wait_for_turns, name=name) for name in ("patient", "doomed"))]
    owner, patient, doomed = workers = [fork_worker(partial(work, directory=directory, kind=kind)) for work in works]
    for worker in workers:
        stack.callback(worker.dismiss)
    _stop(owner, chance)
    trial.count("stops")
    onlookers.readers_answer()
    late = onlookers.writers_time_out()
    doomed.kill()
    if chance.random() < 0.3:
        owner.kill()
    else:
        owner.go_on()
        go_on(owner, "the owner that was stopped")
    go_on(patient, "one who waited for the lock")
    onlookers.writers_go_on()
    for worker in workers:
        worker.dismiss()
    onlookers.readers_answer()  # two reads are not one: while somebody writes they may be of two moments
    mend(onlookers.hot)
    return late


@repeated("crash-frozen-owner", 3, "SIGSTOP of the write lock's owner: reads return, writes time out, then all go on")
def frozen_owner(trial: Trial, chance: random.Random) -> None:
    with ExitStack() as stack:
        trial.most("latest timeout", 1000 * _freeze(trial, chance, stack), " ms late")
