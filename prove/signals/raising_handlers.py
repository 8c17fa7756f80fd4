"""Signal handlers that raise, as Ctrl-C does, in the middle of every call: at every place where one can, and any time."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from diskcache_like import Cache
from diskcache_like.coherence import contexts
from diskcache_like.storage import writer
from diskcache_like.storage.shard import transactions
from tests.support.integrity import mend

from ..children import BRIEF, KINDS, Stage, Words, opened, played, soundness
from ..lives.scenes import LARGE, told
from ..proof import Proof, Trial
from .stepping import RAISED, interrupted, places_in

PARTS = 32  # of the places of one call, each a case
OLD, NEW = b"o" * LARGE, b"n" * LARGE
MOST = 20  # interruptions in one case
SIGNALS = 200  # at any time, in one case
SHORTEST, LONGEST = 20e-6, 3e-3  # seconds before each
AGAIN = 1.0  # seconds after which it comes again: Python ignores what a handler raises within a finalizer


@dataclass(frozen=True)
class Call:
    """A call, what is stored before it, and what must be stored after it if it came to its end."""

    run: Callable[[Cache], object]
    before: dict[Any, Any] = field(default_factory=dict)
    after: dict[Any, Any] | None = None  # None: as before
    atomic: bool = False  # over one shard: all or nothing
    whole: bool = False  # over several shards too
    tags: tuple[str, ...] = ()

    @property
    def ends(self) -> list[dict[Any, Any]]:
        """Return what may be there when it was interrupted: all of before or all of after, or anything of either."""
        return [self.before, self.before if self.after is None else self.after]


def prepare(call: Call, cache: Cache) -> None:
    """Put what the call begins with."""
    for key in {key for end in call.ends for key in end}:
        if key in call.before:
            cache.set(key, call.before[key], tags=call.tags, retry=True)
        else:
            cache.delete(key, retry=True)
    while cache.pull("queue", retry=True) != (None, None):
        pass
    cache.push("old", "queue", retry=True)


def in_transaction(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        cache.set("right", NEW, retry=True)


def nested(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        with cache.transact(retry=True):
            cache.set("right", NEW, retry=True)


def failing(cache: Cache) -> None:
    with suppress(LookupError), cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        cache.set("right", NEW, retry=True)
        raise LookupError


def failing_inside(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        failing(cache)
        cache.set("left", 1, retry=True)


def cold(cache: Cache) -> None:
    cache._hot.clear()
    assert cache.get("left") == 1


def stream(cache: Cache) -> None:
    with cache.read("left") as reader:
        assert reader.read(10) == OLD[:10]


def remember(cache: Cache) -> None:
    @cache.memoize("remembered")
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == double(4) == 8


def unchanged(cache: Cache) -> None:
    assert cache.set("left", 2, if_version=cache.get_entry("left").version, retry=True)


def compute(cache: Cache) -> None:
    """Be the one who computes."""
    assert cache.get_or_set("left", lambda: NEW, tags=["tag"]) == NEW


def open_another(cache: Cache) -> None:
    with opened("Cache" if type(cache) is Cache else "FanoutCache", Path(cache.directory)) as other:
        assert other.get("left") == 1


def open_new(cache: Cache) -> None:
    directory = Path(cache.directory).parent / f"new {random.getrandbits(60)}"
    with opened("Cache" if type(cache) is Cache else "FanoutCache", directory) as other:
        other.set("left", 1, retry=True)


def close(cache: Cache) -> None:
    cache.close()
    assert cache.get("left") == 1


THREE = {"a": 1, "b": 2, "c": 3}
CALLS: dict[str, Call] = {
    "set": Call(lambda cache: cache.set("left", 2, retry=True), {"left": 1}, {"left": 2}),
    "set of a new key": Call(lambda cache: cache.set("left", 2, retry=True), {}, {"left": 2}),
    "set with expiry": Call(lambda cache: cache.set("left", 2, expire=1000, retry=True), {"left": 1}, {"left": 2}),
    "set of a file": Call(lambda cache: cache.set("left", NEW, retry=True), {"left": OLD}, {"left": NEW}),
    "cold get": Call(cold, {"left": 1}),
    "hot get": Call(lambda cache: cache.get("left"), {"left": 1}),
    "get of a file": Call(lambda cache: cache.get("left"), {"left": OLD}),
    "a stream": Call(stream, {"left": OLD}),
    "add": Call(lambda cache: cache.add("left", NEW, retry=True), {}, {"left": NEW}),
    "incr": Call(lambda cache: cache.incr("left", retry=True), {"left": 1}, {"left": 2}),
    "touch": Call(lambda cache: cache.touch("left", 1000, retry=True), {"left": 1}),
    "delete": Call(lambda cache: cache.delete("left", retry=True), {"left": OLD}, {}),
    "pop": Call(lambda cache: cache.pop("left", retry=True), {"left": OLD}, {}),
    "push": Call(lambda cache: cache.push("new", "queue", retry=True)),
    "pull": Call(lambda cache: cache.pull("queue", retry=True)),
    "set_many": Call(
        lambda cache: cache.set_many({**THREE, "b": NEW}, retry=True), {}, {**THREE, "b": NEW}, atomic=True
    ),
    "get_many": Call(lambda cache: cache.get_many(list(THREE)), THREE),
    "delete_many": Call(lambda cache: cache.delete_many(list(THREE), retry=True), THREE, {}, atomic=True),
    "evict": Call(lambda cache: cache.evict("tag", retry=True), {**THREE, "b": OLD}, {}, atomic=True, tags=("tag",)),
    "set with tags": Call(
        lambda cache: cache.set("left", NEW, tags=["tag", "another"], retry=True),
        {"left": OLD},
        {"left": NEW},
        tags=("tag", "old"),
    ),
    "set if unchanged": Call(unchanged, {"left": 1}, {"left": 2}),
    "retag": Call(lambda cache: cache.retag("left", ["new"], ["tag"], retry=True), {"left": OLD}, tags=("tag",)),
    "evict of tags": Call(
        lambda cache: cache.evict(tags=["tag", "other"], match="all", retry=True),
        {**THREE, "b": OLD},
        {},
        atomic=True,
        tags=("tag", "other"),
    ),
    "soft evict": Call(
        lambda cache: cache.evict(tags=["tag"], soft=True, retry=True),
        {**THREE, "b": OLD},
        {},
        atomic=True,
        tags=("tag",),
    ),
    "get_or_set": Call(compute, {}, {"left": NEW}),
    "clear": Call(lambda cache: cache.clear(retry=True), {**THREE, "b": OLD}, {}, atomic=True),
    "expire": Call(lambda cache: cache.expire(retry=True), THREE),
    "cull": Call(lambda cache: cache.cull(retry=True), THREE),
    "transact": Call(in_transaction, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, whole=True),
    "nested transact": Call(nested, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, whole=True),
    "failing transact": Call(failing, {"left": 1, "right": OLD}, whole=True),
    "failing nested transact": Call(failing_inside, {"left": 1, "right": OLD}, whole=True),
    "iteration": Call(lambda cache: list(cache), THREE),
    "len": Call(len, THREE),
    "memoize": Call(remember),
    "check": Call(lambda cache: cache.check(retry=True), {"left": OLD}),
    "check with fix": Call(lambda cache: cache.check(fix=True, retry=True), {"left": OLD}),
    "stats and reset": Call(lambda cache: (cache.stats(), cache.reset("cull_limit", 10)), {"left": 1}),
    "close": Call(close, {"left": 1}),
    "opening": Call(open_another, {"left": 1}),
    "opening a new one": Call(open_new, {"left": 1}),
}


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
            assert not store.session.byte_locks()._held, "a flight is held"
    for number, handle in enumerate((cache, other)):
        handle.delete("left", retry=True)
        assert handle.get_or_set("left", lambda number=number: number) == number


def interrupt_part(call: Call, kind: str, directory: Path, part: int, draw: random.Random) -> int:
    """Interrupt a call at every `PARTS`-th place, from the one numbered `part`, or at `MOST` of them; say how often."""
    done = 0
    with opened(kind, directory, timeout=BRIEF) as cache, opened(kind, directory, timeout=0) as other:
        for _ in range(2):  # what is done only the first time, such as opening the writer, comes first
            prepare(call, cache)
            call.run(cache)
        prepare(call, cache)
        places = places_in(lambda: call.run(cache))
        numbers = range(1 + part, places + 1, PARTS)
        for number in sorted(draw.sample(numbers, min(len(numbers), MOST))):
            prepare(call, cache)
            raised, where = draw.choice(RAISED), ""
            try:
                where = str(
                    interrupted(lambda: call.run(cache), number, raised)
                )  # without the traceback, as of `except`
                judge(call, cache, other)
            except BaseException as problem:
                problem.add_note(f"{raised.__name__} at place {number} of {places}, {where}")
                raise
            done += 1
        mend(cache)
    return done


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


# -- proofs -----------------------------------------------------------------------------------------------------------


def part(trial: Trial, item: tuple[str, str, int]) -> None:
    """Interrupt a part of the places of one call, in a process of its own."""
    name, kind, number = item
    draw = random.Random(f"{trial.seed} {trial.case}")
    with told(f"{name}, {kind}, part {number} of {PARTS}"):
        directory = trial.fresh()
        trial.count("interruptions", played(partial(interrupt_part, CALLS[name], kind, directory, number, draw)))
        played(partial(soundness, kind, directory))


def everywhere(trial: Trial) -> None:
    """Interrupt every call at every place."""
    items = [(name, kind, number) for name in CALLS for kind in KINDS for number in range(PARTS)]
    trial.each(items, partial(part, trial), "parts of calls")


def at_any_time(trial: Trial) -> None:
    """Interrupt writes at random."""

    def case(draw: random.Random) -> None:
        kind, directory = draw.choice(KINDS), trial.fresh()
        with told(kind):
            trial.count("interruptions", played(partial(interrupt_at_any_time, kind, directory, draw)))
            played(partial(soundness, kind, directory, True))

    trial.repeat(case)


def forgetful(trial: Trial) -> None:
    """Do without what gives back what an interrupted call has kept."""

    def unless_interrupted(*given: Any) -> None:
        if sys.exc_info()[0] is None:
            contexts.end(*given)

    with patch.object(writer, "end", unless_interrupted), patch.object(transactions, "end", unless_interrupted):
        trial.each([("set", "Cache", number) for number in range(PARTS)], partial(part, trial), "parts of calls")


# The next write of the same thread is refused, or that of another does not get the lock.
KEPT = r".*(TransactionError|Timeout): "

PROOFS: dict[str, Proof] = {
    "raising": Proof(
        6,
        "Ctrl-C or an alarm at every point of every call where CPython can raise it",
        everywhere,
        share=2.0,
        bulk=8.0,
        parallel=True,
    ),
    "raising-any-time": Proof(6, "the same at random moments, in a process that writes beside another", at_any_time),
    "control-raising": Proof(6, "nothing releases what an interrupted call holds", forgetful, share=0.5, finds=KEPT),
}
