"""Renewals: of all processes that meet a stale value one computes it anew behind its caller, or the next if that dies."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from diskcache_like import Cache
from diskcache_like.entries.atomic_key import AtomicKey
from diskcache_like.memoizing.steps import RENEWAL
from tests.support.workers import PATIENCE, Link

from ..children import KINDS, Stage, Words, opened, played, soundness
from ..proof import Trial, proof

PROCESSES = 8
SURVIVORS = 3
KEYS = 100  # that the processes of a case meet at
WINDOW = 1000  # seconds, more than a case takes
SLOW = 0.002  # seconds
OLD, NEW = "old", "new"


def make_stale(kind: str, directory: Path, keys: int) -> None:
    """Store values that have expired a moment ago."""
    with opened(kind, directory, clock=lambda: time.time() - 5) as cache:
        for key in range(keys):
            assert cache.get_or_set(key, lambda: OLD, 1, stale_while_revalidate=WINDOW) == OLD


def ask(cache: Cache, key: int, compute: Callable[[], str], coroutine: bool) -> str:
    """Return what a caller gets, once what it began behind that has ended."""
    found: str

    async def compute_async() -> str:
        return compute()

    async def main() -> str:
        found = await cache.get_or_set(key, compute_async, WINDOW, stale_while_revalidate=WINDOW)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        return found

    if coroutine:
        return asyncio.run(main())
    found = cache.get_or_set(key, compute, WINDOW, stale_while_revalidate=WINDOW)
    for thread in threading.enumerate():
        if thread.name == RENEWAL:
            thread.join(PATIENCE)
    return found


class Meeting:
    """Processes that ask for the same stale values at the same time, one value after the other."""

    def __init__(self, kind: str, directory: Path, draw: random.Random) -> None:
        self._kind, self._directory = kind, directory
        self._coroutine = [draw.random() < 0.3 for _ in range(PROCESSES)]
        self._slow = [draw.random() < 0.5 for _ in range(KEYS)]
        self._arrived = Words(PROCESSES)  # how many keys each process has come to
        self._computed = Words(PROCESSES * KEYS)

    def attend(self, number: int, _: Link) -> None:
        with opened(self._kind, self._directory) as cache:
            for key in range(KEYS):
                self._arrive(number, key)
                found = ask(cache, key, partial(self._compute, number, key), self._coroutine[number])
                assert found in (OLD, NEW), f"key {key}: {found!r}"

    def _arrive(self, number: int, key: int) -> None:
        self._arrived[number] = key + 1
        until = time.monotonic() + PATIENCE
        while min(self._arrived[each] for each in range(PROCESSES)) <= key:
            time.sleep(0)
            assert time.monotonic() < until, "another process does not come"

    def _compute(self, number: int, key: int) -> str:
        self._computed[number * KEYS + key] += 1
        until = time.perf_counter() + SLOW * self._slow[key]
        while time.perf_counter() < until:
            pass
        return NEW

    def verify(self) -> None:
        for key in range(KEYS):
            times = sum(self._computed[number * KEYS + key] for number in range(PROCESSES))
            assert times == 1, f"key {key} was computed {times} times"
        with opened(self._kind, self._directory) as cache:
            assert all(cache[key] == NEW for key in range(KEYS))


def meet(trial: Trial, kind: str, draw: random.Random) -> None:
    directory = trial.fresh()
    played(partial(make_stale, kind, directory, KEYS))
    meeting = Meeting(kind, directory, draw)
    with Stage() as stage:
        for worker in [stage.play(partial(meeting.attend, number)) for number in range(PROCESSES)]:
            worker.result()
    played(meeting.verify)
    played(partial(soundness, kind, directory))
    trial.count("values renewed by one of eight processes", KEYS)


def begin_and_hang(kind: str, directory: Path, coroutine: bool, link: Link) -> None:
    """Compute without end, and tell of it."""

    def compute() -> str:
        link.tell("computing")
        link.hear()
        return NEW

    with opened(kind, directory) as cache:
        ask(cache, 0, compute, coroutine)


def survive(kind: str, directory: Path, coroutine: bool, link: Link) -> None:
    """Ask whenever told to; tell what was found, and how often it was computed here."""
    calls: list[int] = []

    def compute() -> str:
        calls.append(1)
        return NEW

    with opened(kind, directory) as cache:
        while link.hear():
            link.tell((ask(cache, 0, compute, coroutine), len(calls)))


def kill(trial: Trial, kind: str, draw: random.Random) -> None:
    directory = trial.fresh()
    played(partial(make_stale, kind, directory, 1))
    with Stage() as stage:
        victim = stage.play(partial(begin_and_hang, kind, directory, draw.random() < 0.3))
        assert victim.hear() == "computing"
        others = [stage.play(partial(survive, kind, directory, draw.random() < 0.3)) for _ in range(SURVIVORS)]
        for killed in (False, True):
            if killed:
                victim.kill()
            for other in others:
                other.tell(True)
            found: list[Any] = [other.hear() for other in others]
            assert killed or {value for value, _ in found} == {OLD}, f"beside the one that computes: {found}"
            times = sum(calls for _, calls in found)
            assert times == killed, f"key 0 was computed {times} times {'after the' if killed else 'without a'} kill"
        for other in others:
            other.tell(False)
            other.result()
    played(partial(soundness, kind, directory, True))
    trial.count("processes killed that computed")


@proof(
    "renewals",
    2,
    "8 processes meet at stale values, with functions and coroutine functions, and one is killed while it"
    " computes: one computes behind its caller, and after a kill the next caller",
)
def renew(trial: Trial) -> None:
    trial.repeat(lambda draw: draw.choice((meet, meet, meet, kill))(trial, draw.choice(KINDS), draw), least=2)


@proof("renewals-unheld", 2, "nobody holds what is computed", finds=r"AssertionError: key \d+ was computed [2-8] times")
def renew_together(trial: Trial) -> None:
    with mock.patch.object(AtomicKey, "hold", return_value=True):
        trial.repeat(lambda draw: meet(trial, draw.choice(KINDS), draw))
