"""Signals whose handlers raise, as Ctrl-C does, or use the cache: wherever CPython runs them, and at any time."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from diskcache_like import Cache, TransactionError
from diskcache_like.coherence import contexts
from diskcache_like.storage import writer
from diskcache_like.storage.shard import transactions
from tests.support.integrity import mend

from ..children import BRIEF, KINDS, Stage, Words, opened, played, soundness, told
from ..proof import Trial, proof, repeated
from .calls import CALLS, NEW, OLD, Call, prepare
from .stepping import RAISED, interrupted, places_in

PARTS = 32  # of the places of one call, each a case
MOST = 20  # interruptions in one case
SIGNALS = 200  # at any time, in one case
SHORTEST, LONGEST = 20e-6, 3e-3  # seconds before each
AGAIN = 1.0  # seconds after which it comes again: Python ignores what a handler raises within a finalizer
PATIENCE = 3.0  # seconds after which a handler that waits for the call it interrupts gives up, which is a violation


def stored(cache: Cache, keys: Iterable[Any]) -> dict[Any, Any]:
    """Return what a handle reads of some keys."""
    found = {key: cache.get(key) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def judge(call: Call, cache: Cache, other: Cache) -> None:
    """Assert that both handles can write, and read the same: what was there before, or what was to be there."""
    other.set("of another", 1)  # a Timeout if the lock is held
    before, after = call.ends
    keys = {*before, *after}
    found = stored(cache, keys)
    if call.whole or (call.atomic and type(cache) is Cache):
        assert found in (before, after), f"half of it is done: {sorted(found)}"
    for key in keys:
        assert found.get(key) in (before.get(key), after.get(key)), f"{key!r} is {str(found.get(key))[:20]!r}"
    assert cache.set("of this", 1) is True
    assert stored(other, keys) == found, "the handles differ"
    with other.transact(retry=False):  # over all shards; a Timeout if one lock is held
        other.delete("of this")
    assert cache.get("of this") is None
    with cache.transact(retry=False):
        cache.set("of this", 2)
    assert other["of this"] == 2
    assert len(other) == len(list(other)), f"{len(list(other))} entries are counted as {len(other)}"
    queue = [other.peek("queue")[1], other.peek("queue", side="back")[1]]
    assert queue in (["old", "old"], ["old", "new"], [None, None]), queue
    judge_flights(cache, other)


def judge_flights(cache: Cache, other: Cache) -> None:
    """Assert that nobody holds the flight of a key, and that both handles can compute what was to be computed."""
    for handle in (cache, other):
        for store in handle._shards.stores:
            assert not store.shard.byte_locks._held, "a flight is held"
    for number, handle in enumerate((cache, other)):
        handle.delete("left", retry=True)
        assert handle.get_or_set("left", lambda number=number: number) == number


def interrupt_part(call: Call, kind: str, directory: Path, part: int, draw: random.Random) -> int:
    """Interrupt a call at every `PARTS`-th place, from the one numbered `part`, or at `MOST` of them; say how often."""
    done = 0
    with opened(kind, directory, timeout=BRIEF) as cache, opened(kind, directory, timeout=0) as other:
        for number, places in places_of(call, cache, part, draw):
            prepare(call, cache)
            raised, where = draw.choice(RAISED), ""
            try:
                where = str(interrupted(lambda: call.run(cache), number, raised))  # without the traceback
                judge(call, cache, other)
            except BaseException as problem:
                problem.add_note(f"{raised.__name__} at place {number} of {places}, {where}")
                raise
            done += 1
        mend(cache)
    return done


def places_of(call: Call, cache: Cache, part: int, draw: random.Random) -> list[tuple[int, int]]:
    """Return the places of a part at which a call is interrupted, each with how many there are in all."""
    for _ in range(2):  # what is done only the first time, such as opening the writer, comes first
        prepare(call, cache)
        call.run(cache)
    prepare(call, cache)
    places = places_in(lambda: call.run(cache))
    numbers = range(1 + part, places + 1, PARTS)
    return [(number, places) for number in sorted(draw.sample(numbers, min(len(numbers), MOST)))]


# -- handlers that use the cache --------------------------------------------------------------------------------------


class Handler:
    """What a signal handler does with the cache: it is done, or it is refused by TransactionError.

    It always finds what `other`, another handle of the cache, wrote last.
    """

    def __init__(self, cache: Cache, other: Cache) -> None:
        self._cache, self._other = cache, other
        self.newest = self.calls = self.refused = self.counted = 0
        self.errors: list[BaseException] = []
        self._process = os.getpid()
        other.set("steady", "value", retry=True)
        self.write()

    def write(self) -> None:
        """Have the other handle write, so that something waits in the write buffer; no handler may run meanwhile."""
        self.newest += 1
        self._other.set("newest", self.newest, retry=True)

    def __call__(self, where: object) -> None:
        """Read and write, but in no child that is forked just now; note what went wrong, with the place."""
        try:
            if os.getpid() == self._process:
                self._use()
        except BaseException as error:
            error.add_note(f"in a handler that interrupted {where}")
            self.errors.append(error)

    def _use(self) -> None:
        cache = self._cache
        self.calls += 1
        cache._hot.discard("steady")  # the next read is of the database
        assert cache.get("steady") == "value"
        assert cache.get("newest") == self.newest
        try:
            kept = cache.set(("by a handler", self.calls % 7), self.calls) or "a set was given up"
            with cache.transact(retry=False):
                cache.incr("counted", retry=True)
            self.counted += 1
        except TransactionError:
            self.refused += 1
        else:
            assert kept is True, kept

    def judge(self, cache: Cache) -> None:
        """Raise what went wrong, and see that the cache reads and counts its entries rightly."""
        if self.errors:
            raise self.errors[0]
        assert cache["newest"] == self.newest
        assert cache.get("counted", 0) == self.counted
        assert len(cache) == len(list(cache)), f"{len(list(cache))} entries are counted as {len(cache)}"


def use_in_part(call: Call, kind: str, directory: Path, part: int, draw: random.Random) -> tuple[int, int]:
    """Do as `interrupt_part` with a handler that uses the cache; say how often, and how often it was refused."""
    with opened(kind, directory, timeout=PATIENCE) as cache, opened(kind, directory) as other:
        handler = Handler(cache, other)
        for number, places in places_of(call, cache, part, draw):
            prepare(call, cache)
            if call.reads:
                cache.flush()  # else a read of all entries is one that writes
            else:
                handler.write()
            interrupted(lambda: call.run(cache), number, instead=handler)
            try:
                handler.judge(cache)
                assert stored(cache, {*call.ends[0], *call.ends[1]}) == call.ends[1], "the call was not completed"
            except BaseException as problem:
                problem.add_note(f"a handler at place {number} of {places}")
                raise
            assert not (call.reads and handler.refused), "a handler that interrupts a read is refused a write"
        mend(cache)
    return handler.calls, handler.refused


def use_at_any_time(kind: str, directory: Path, draw: random.Random) -> tuple[int, int]:
    """Make all the calls, while signals come at random."""
    with opened(kind, directory, timeout=PATIENCE) as cache, opened(kind, directory) as other:
        handler = Handler(cache, other)

        def handle(number: int, frame: FrameType | None) -> None:
            handler(frame)
            if handler.calls < SIGNALS:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(SHORTEST, LONGEST))

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, SHORTEST)
        while handler.calls < SIGNALS and not handler.errors:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            handler.write()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            call = draw.choice([each for each in CALLS.values() if "uses" in each.handlers])
            prepare(call, cache)
            call.run(cache)
        signal.setitimer(signal.ITIMER_REAL, 0)
        handler.judge(cache)
    return handler.calls, handler.refused


# -- at any time ------------------------------------------------------------------------------------------------------


def interrupt_at_any_time(kind: str, directory: Path, draw: random.Random) -> int:
    """Count up while signals come at random, whose handler raises, and another process writes; return how often."""
    words = Words(2)
    with Stage() as stage, opened(kind, directory, timeout=BRIEF) as cache:
        neighbour = stage.play(lambda link: write_until(words, kind, directory))
        write(cache, 0)
        before = signal.signal(signal.SIGALRM, partial(_raise, draw))
        begun = done = cache["count"]
        hit = 0
        try:
            while hit < SIGNALS:
                seconds = draw.uniform(SHORTEST, LONGEST)
                try:
                    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
                    while True:
                        begun += 1
                        write(cache, begun)
                        done += 1
                except RAISED:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    hit += 1
                assert done <= cache["count"] <= begun, f"{cache['count']} is counted: {begun} begun, {done} done"
                done = begun = cache["count"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            words[0] = 1
        assert neighbour.result() > 0, "the other process never got its turn"
        with cache.transact(retry=True):  # a reader may meet a part of one that was cut off, until somebody writes
            pass
        assert cache["pair", 0] == cache["pair", 1]
        assert len(cache) == len(list(cache)), f"{len(list(cache))} entries are counted as {len(cache)}"
    return hit


def write(cache: Cache, number: int) -> None:
    """Write in several ways, one of them to be counted."""
    cache.incr("count", retry=True)
    with cache.transact(retry=True):
        cache.set(("pair", 0), number)
        cache.set(("pair", 1), number)
    cache.set("large", NEW if number % 2 else OLD, retry=True)
    assert cache["large"] in (OLD, NEW)


def write_until(words: Words, kind: str, directory: Path) -> int:
    """Write until told to end, and return how often; a lock that the other process has left behind is a Timeout."""
    with opened(kind, directory, timeout=BRIEF) as cache:
        number = 0
        while not (words[0] and number):
            number += 1
            cache.incr("another", retry=False)
            with cache.transact(retry=False):
                pass
        assert cache["another"] == number
        return number


def _raise(draw: random.Random, number: int, frame: FrameType | None) -> None:
    raise draw.choice(RAISED)


# -- the proofs -------------------------------------------------------------------------------------------------------


def part_of(trial: Trial, uses: bool, item: tuple[str, str, int]) -> None:
    """Interrupt a part of the places of one call, in a process of its own."""
    name, kind, number = item
    draw = random.Random(f"{trial.seed} {trial.case}")
    with told(f"{name}, {kind}, part {number} of {PARTS}"):
        directory = trial.fresh()
        arguments = (CALLS[name], kind, directory, number, draw)
        if uses:
            count_uses(trial, played(partial(use_in_part, *arguments)))
        else:
            trial.count("interruptions", played(partial(interrupt_part, *arguments)))
        played(partial(soundness, kind, directory))


def count_uses(trial: Trial, uses: tuple[int, int]) -> None:
    trial.count("interruptions", uses[0])
    trial.count("refused by TransactionError", uses[1])


def everywhere(trial: Trial, uses: bool) -> None:
    names = [name for name, call in CALLS.items() if ("uses" if uses else "raises") in call.handlers]
    items = [(name, kind, number) for name in names for kind in KINDS for number in range(PARTS)]
    trial.each(items, partial(part_of, trial, uses), "parts of calls")


proof(
    "lives-signals",
    6,
    "signal handlers use the cache at every point of every call where CPython runs them",
    share=0.7,
    bulk=4.0,
    parallel=True,
)(partial(everywhere, uses=True))
proof(
    "raising",
    6,
    "Ctrl-C or an alarm at every point of every call where CPython can raise it",
    share=2.0,
    bulk=8.0,
    parallel=True,
)(partial(everywhere, uses=False))


@repeated("lives-signals-any-time", 6, "signal handlers use the cache at random moments", share=0.3)
def using_at_any_time(trial: Trial, draw: random.Random) -> None:
    kind, directory = draw.choice(KINDS), trial.fresh()
    with told(kind):
        count_uses(trial, played(partial(use_at_any_time, kind, directory, draw)))
        played(partial(soundness, kind, directory))


@repeated("raising-any-time", 6, "Ctrl-C or an alarm at random moments, in a process that writes beside another")
def raising_at_any_time(trial: Trial, draw: random.Random) -> None:
    kind, directory = draw.choice(KINDS), trial.fresh()
    with told(kind):
        trial.count("interruptions", played(partial(interrupt_at_any_time, kind, directory, draw)))
        played(partial(soundness, kind, directory, True))


# The next write of the same thread is refused, or that of another does not get the lock.
@proof(
    "control-raising",
    6,
    "nothing releases what an interrupted call holds",
    share=0.5,
    finds=r".*(TransactionError|Timeout): ",
)
def releasing_nothing(trial: Trial) -> None:
    """Leave what an interrupted call holds as it is."""

    def unless_interrupted(*given: Any) -> None:
        if sys.exc_info()[0] is None:
            contexts.end(*given)

    with patch.object(writer, "end", unless_interrupted), patch.object(transactions, "end", unless_interrupted):
        parts = [("set_many", "Cache", number) for number in range(PARTS)]
        trial.each(parts, partial(part_of, trial, False), "parts of calls")
