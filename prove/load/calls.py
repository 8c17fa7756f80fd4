"""Every call of the API, mixed at random, with accounts of what must come of them.

Two caches are used side by side. In the one that is **kept** nothing is evicted: its counters, queue, accounts and the
entries that belong to one caller are exact. The **limited** one is filled over and over; what is found in it must be
what was stored.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest import mock

from diskcache_like import Averager, BoundedSemaphore, Cache, Lock, RLock
from diskcache_like.coherence.write_lock import WriteLock

from ..children import Words
from ..workload import Lane, Work

COUNTERS = 4
ACCOUNTS = 6
EACH = 1000  # what is in an account to begin with
OWN_KEYS = 18  # of one caller
OWN = (
    "set",
    "set",
    "set",
    "add",
    "delete",
    "pop",
    "set_many",
    "delete_many",
    "touch",
    "transact",
    "stream",
    "push",
    "pull",
)
SIZES = (0, 0, 0, 300, 40_000)  # bytes of a caller's own values
LIMITED = 3000  # keys in the limited cache
SMALL, LARGE = 200, 40_000  # bytes; the large ones are files
TAGS = ("red", "blue")
GUARDED = ("guarded", "twice guarded", "rationed")  # numbers, each changed under a lock of its kind

Accounts = Counter[Any]


def prepare(kept: Cache) -> None:
    """Store what the callers share."""
    kept.set_many({("account", number): EACH for number in range(ACCOUNTS)}, retry=True)
    for key in GUARDED:
        kept.set(key, 0, retry=True)


def fill_up(limited: Cache, size_limit: int) -> None:
    """Store as much as there is room for."""
    number = size_limit // (3 * SMALL)
    limited.set_many(((key, content(key, 3 * SMALL)) for key in range(number)), tag=TAGS[0], retry=True)


def content(key: Any, size: int) -> bytes:
    """Return bytes by which it can be told that they were stored under `key`, whole."""
    head = f"{key}:{size}:".encode()
    return head + bytes([sum(head) % 251]) * (size - len(head))


class Caller:
    """One thread that calls; `accounts` says what it did that others see the sum of."""

    def __init__(self, kept: Cache, limited: Cache, name: object, draw: random.Random, weights: Weights) -> None:
        self.kept, self.limited, self.name, self.draw = kept, limited, name, draw
        self.accounts: Accounts = Counter()
        self.longest = 0.0  # seconds that a call took
        self.slowest = ""  # which one
        keys = tuple((name, number) for number in range(OWN_KEYS))
        lane = Lane(keys, (f"counter of {name}",), f"queue of {name}", f"{name}", f"tag of {name}", f"stream of {name}")
        self._work = Work(lambda: kept, draw, SIZES, lane)
        self._open: list[Iterator[Any]] = []
        self._calls = [call for call, weight in weights.items() for _ in range(weight)]
        self._memoized = kept.memoize(name="square")(lambda number: [number * number])

    def step(self) -> None:
        """Make one call, or a few that belong together."""
        call = self.draw.choice(self._calls)
        began = time.perf_counter()
        call(self)
        took = time.perf_counter() - began
        self.accounts["calls"] += 1
        self.accounts["writes"] += call not in READS
        if took > self.longest:
            self.longest, self.slowest = took, call.__name__

    def count(self) -> None:
        key, delta = ("counter", self.draw.randrange(COUNTERS)), self.draw.choice((1, 2, 5))
        up = self.draw.random() < 0.7
        (self.kept.incr if up else self.kept.decr)(key, delta, retry=True)
        self.accounts[key] += delta if up else -delta

    def transfer(self) -> None:
        one, other = (("account", number) for number in self.draw.sample(range(ACCOUNTS), 2))
        amount = self.draw.randrange(1, 50)
        with self.kept.transact(retry=True):
            self.kept.set(one, self.kept[one] - amount, retry=True)
            self.kept.incr(other, amount, retry=True)

    def queue(self) -> None:
        if self.draw.random() < 0.5:
            number = self.draw.randrange(1 << 30)
            self.kept.push(number, "queue", side=self.draw.choice(("front", "back")), retry=True)
            self.accounts["queued"] += number
            self.accounts["in the queue"] += 1
        else:
            key, number = self.kept.pull("queue", (None, 0), side=self.draw.choice(("front", "back")), retry=True)
            self.accounts["queued"] -= number
            self.accounts["in the queue"] -= key is not None

    def own(self) -> None:
        """Change what nobody else does."""
        getattr(self._work, self.draw.choice(OWN))()
        self._work.ever.clear()  # it would grow as long as the run does, and nothing here reads it

    def look_at_own(self) -> None:
        self._work.look()

    def lock(self) -> None:
        """Add one to a number in steps that are not atomic by themselves."""
        make, key = self.draw.choice(list(zip((Lock, RLock, BoundedSemaphore), GUARDED, strict=True)))
        with make(self.kept, ("lock of", key)):
            number = self.kept[key]
            if make is RLock:
                with make(self.kept, ("lock of", key)):
                    number = self.kept[key]
            self.kept.set(key, number + 1, retry=True)
        self.accounts[key] += 1

    def average(self) -> None:
        Averager(self.kept, "average").add(2)
        self.accounts["averaged"] += 1

    def look(self) -> None:
        """Begin an iteration and leave it open; go on with one that was begun before."""
        begin, cache = self.draw.choice(
            ((iter, self.limited), (reversed, self.limited), (iter, self.kept), (Cache.iterkeys, self.kept))
        )
        self._open.append(begin(cache))
        iterator = self.draw.choice(self._open)
        for _, _ in zip(range(20), iterator, strict=False):
            pass
        if len(self._open) > 3:
            self._open.pop(0)
        assert len(self.kept) >= ACCOUNTS
        with suppress(KeyError):  # the queue's last item may go between two calls
            self.kept.peekitem()
        self.kept.peek("queue")
        self.kept.stats()

    def recall(self) -> None:
        number = self.draw.randrange(30)
        assert self._memoized(number) == [number * number]

    def fill(self) -> None:
        key = self.draw.randrange(LIMITED)
        size = LARGE if self.draw.random() < 0.05 else self.draw.randrange(SMALL, 4 * SMALL)
        expire = self.draw.choice((None, None, 0.05, 1e6))
        assert self.limited.set(key, content(key, size), expire=expire, tag=self.draw.choice(TAGS), retry=True)

    def flood(self) -> None:
        """Store a new entry, most likely in place of others."""
        key = self.draw.getrandbits(128).to_bytes(16, "big").hex()
        sizes = (self.draw.randrange(SMALL, 3 * SMALL), 5 * SMALL, LARGE // 2, self.draw.randrange(LARGE, 4 * LARGE))
        size = self.draw.choices(sizes, (20, 5, 1, 1))[0]
        assert self.limited.set(key, content(key, size), tag=TAGS[0], retry=True)
        found = self.limited.get(key, content(key, SMALL))
        assert found == content(key, len(found)), f"{key!r} reads as {found[:40]!r}..."

    def find(self) -> None:
        keys = [self.draw.randrange(LIMITED) for _ in range(10)]
        found = self.limited.get_many(keys)
        found[keys[0]] = self.limited.get(keys[0], b"")
        for key, value in found.items():
            assert not value or value == content(key, len(value)), f"{key!r} reads as {value[:40]!r}..."

    def thin(self) -> None:
        limited = self.limited
        removals: tuple[Callable[[], int], ...] = (
            lambda: limited.expire(retry=True),
            lambda: limited.cull(retry=True),
            lambda: limited.evict(self.draw.choice(TAGS), retry=True),
            lambda: limited.clear(retry=True),
        )
        self.draw.choices(removals, (50, 50, 2, 1))[0]()


Weights = dict[Callable[[Caller], None], int]
EVERYTHING: Weights = {
    Caller.count: 10,
    Caller.transfer: 5,
    Caller.queue: 8,
    Caller.own: 16,
    Caller.look_at_own: 12,
    Caller.lock: 2,
    Caller.average: 2,
    Caller.look: 1,
    Caller.recall: 4,
    Caller.fill: 25,
    Caller.find: 12,
    Caller.thin: 1,
}
FLOOD: Weights = {Caller.flood: 9, Caller.fill: 9, Caller.find: 1, Caller.count: 1}
READS = frozenset({Caller.look_at_own, Caller.look, Caller.recall, Caller.find})


def audit(kept: Cache, accounts: Accounts) -> None:
    """Compare what is in the cache with what all callers together did."""
    for number in range(COUNTERS):
        key = ("counter", number)
        assert kept.get(key, 0) == accounts[key], f"{key} is {kept.get(key)}, and {accounts[key]} was counted"
    for name in GUARDED:
        assert kept[name] == accounts[name], f"{name} is {kept[name]}, and {accounts[name]} was counted under the lock"
    total = sum(kept[("account", number)] for number in range(ACCOUNTS))
    assert total == ACCOUNTS * EACH, f"the accounts hold {total} together, and nothing was paid in or out"
    assert kept.get("average", (0, 0)) == (2 * accounts["averaged"], accounts["averaged"])
    left = [kept.pull("queue", retry=True)[1] for _ in range(accounts["in the queue"])]
    assert kept.pull("queue", retry=True) == (None, None), "there is more in the queue than was put there"
    assert sum(left) == accounts["queued"], "what came out of the queue is not what was put in"
    for key in kept:
        assert not (isinstance(key, tuple) and key[0] == "lock of"), f"{key} is still held"


# -- how long one waits -----------------------------------------------------------------------------------------------


class Waits:
    """How long the threads of this process waited for a write lock: in seconds, and in turns of each other."""

    def __init__(self) -> None:
        self._longest: dict[int, float] = {}  # of each thread, which alone changes it
        self._passed: dict[int, int] = {}
        self._turns: Counter[Path] = Counter()  # of each lock, whose owner alone changes it
        self._told: dict[int, tuple[Words, int]] = {}  # where the turns of each thread are told to others

    @property
    def longest(self) -> float:
        """The longest wait in seconds."""
        return max(self._longest.values(), default=0.0)

    @property
    def passed(self) -> int:
        """The most turns that other threads had in one wait."""
        return max(self._passed.values(), default=0)

    def forget(self) -> None:
        """Begin anew."""
        self._longest.clear()
        self._passed.clear()
        self._told.clear()

    def tell(self, words: Words, number: int) -> None:
        """Count the turns of the calling thread in a word that others see."""
        self._told[get_ident()] = words, number

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note every wait of this process and of the children that are forked meanwhile, each for itself."""
        acquire, turns = WriteLock.acquire, self._turns

        def timed(lock: WriteLock, timeout: float | None = None) -> None:
            me, before, began = get_ident(), turns[lock.path], time.perf_counter()
            try:
                acquire(lock, timeout)
            finally:
                self._longest[me] = max(self._longest.get(me, 0.0), time.perf_counter() - began)
            self._passed[me] = max(self._passed.get(me, 0), turns[lock.path] - before)
            turns[lock.path] += 1
            if me in self._told:
                words, number = self._told[me]
                words[number] += 1

        with mock.patch.object(WriteLock, "acquire", timed):
            yield


WAITS = Waits()
