"""Scenes: what a process does in one life, what it has to account for, and what must be found after its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache
from tests.support.workers import PATIENCE, hear_unraisable

from ..children import KINDS, Words, opened, played, soundness, told
from ..proof import Trial

ACTORS = 8
LARGE = 40_000  # bytes: a file of its own
SHORTLY = 0.05  # seconds
UNDONE = "undone"  # a key that is only ever written in transactions that must not come to their end
_WORDS = 4  # of each actor: counts and pairs of counts, begun and done


class Account:
    """What one thread, task or process counts up in the cache, in memory that outlives it."""

    def __init__(self, words: Words, actor: int) -> None:
        self._words, self._first, self.actor = words, actor * _WORDS, actor

    def _note(self, which: int) -> None:
        self._words[self._first + which] += 1

    def count(self, cache: Cache) -> None:
        """Add one to a number."""
        self._note(0)
        cache.incr(("count", self.actor), retry=True)
        self._note(1)

    def pair(self, cache: Cache) -> None:
        """Add one to two numbers in one transaction."""
        self._note(2)
        with cache.transact(retry=True):
            cache.incr(("left", self.actor), retry=True)
            cache.incr(("right", self.actor), retry=True)
        self._note(3)

    def use(self, cache: Cache) -> None:
        """Use a cache in every way."""
        key, large = ("key", self.actor), bytes([self.actor]) * LARGE
        self.count(cache)
        cache.set(key, self.actor, retry=True)
        assert cache.get(key) == cache.get(key) == self.actor
        self.pair(cache)
        cache.set(("large", self.actor), large, retry=True)
        assert cache[("large", self.actor)] == large
        cache.push(self.actor, f"queue {self.actor}", retry=True)
        assert cache.pull(f"queue {self.actor}", retry=True)[1] == self.actor
        assert key in list(cache)
        assert cache.delete(key, retry=True)
        assert cache.get(key) is None

    def verify(self, cache: Cache) -> None:
        """Assert that all that was done is there, and nothing that was not begun."""
        counted, left, right = (cache.get((name, self.actor), 0) for name in ("count", "left", "right"))
        begun, done, pairs_begun, pairs_done = (self._words[self._first + each] for each in range(_WORDS))
        assert done <= counted <= begun, f"actor {self.actor} counted {counted}: {begun} begun, {done} done"
        assert left == right, f"actor {self.actor}: half of a transaction, {left} and {right}"
        assert pairs_done <= left <= pairs_begun, f"actor {self.actor}: {pairs_done} to {pairs_begun}, not {left}"


class Scene:
    """The place of one life: a cache of one kind, accounts, and what is random in it."""

    def __init__(self, kind: str, directory: Path, draw: random.Random) -> None:
        self.kind, self.directory, self.draw = kind, directory, draw
        words = Words(ACTORS * _WORDS)
        self.accounts = [Account(words, actor) for actor in range(ACTORS)]

    def open(self, **settings: Any) -> Cache:
        return opened(self.kind, self.directory, **settings)

    def prepare(self) -> None:
        with self.open() as cache:
            cache.set("of the parent", "value", retry=True)

    def live(self, life: Life) -> Any:
        """Live a life, of which nothing may go wrong where Python can only print it."""
        hear_unraisable()
        handle: Any = self.open() if life.opens else nullcontext()
        with handle as cache:
            return life.live(self, cache)

    def verify(self) -> None:
        """Assert that the cache is sound, and that what was counted is there."""
        with self.open() as cache:
            assert cache.get("of the parent") == "value"
            assert cache.get(UNDONE) is None, "a transaction that did not end was committed"
            for account in self.accounts:
                account.verify(cache)
            locks = [key for key in cache if isinstance(key, tuple) and key[0] == "lock"]
            assert locks == [], f"{locks} are still held"


Live = Callable[..., Any]  # of a scene and a handle


class Life(NamedTuple):
    """One life, by name; `live` runs in a process of its own, and may return how often it did what it does."""

    name: str
    live: Live
    abrupt: bool = False  # a process is killed in it, or ends itself as if it were
    opens: bool = True  # begins with an open handle


class Lives(list[Life]):
    """The lives of a proof, which register here."""

    def add(self, name: str, **how: bool) -> Callable[[Live], Live]:

        def register(live: Live) -> Live:
            self.append(Life(name, live, **how))
            return live

        return register


def run_threads(*works: Callable[[], object]) -> None:
    """Run each in a thread; what they raise is told by the process, which fails by it."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    joined(*threads)


def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread does not end"


def live(trial: Trial, life: Life, kind: str, draw: random.Random) -> None:
    """Live one life in a process of its own; look at what it left in another."""
    scene = Scene(kind, trial.fresh(), draw)
    with told(f"{life.name}, {kind}"):
        played(scene.prepare)
        done = played(partial(scene.live, life)) or {}
        played(scene.verify)
        played(partial(soundness, kind, scene.directory, life.abrupt))
    for what, number in done.items():
        trial.count(what, number)


def live_all(trial: Trial, lives: Sequence[Life]) -> None:
    """Live every life with each kind of cache, then any of them, drawn from the number of the case, until the end."""
    items = [(life, kind) for life in lives for kind in KINDS]
    if trial.only is None or trial.only < len(items):
        trial.each(items, lambda item: live(trial, *item, random.Random(trial.case)), "kinds of life tried")
    if not trial.over and (trial.only is None or trial.only >= len(items)):
        trial.repeat(lambda draw: live(trial, *draw.choice(items), draw))
