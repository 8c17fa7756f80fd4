"""Clocks that jump: what expires, what waits and what is evicted stay sensible whatever the time is said to be."""

from __future__ import annotations

import random
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskcache_like import Cache, Lock, throttle
from diskcache_like.errors import LeaseLost
from tests.support.cache_kinds import Clock
from tests.support.inspection import problems
from tests.support.sample_writes import MISSING
from tests.support.tampering import value_files

from ..proof import Trial, repeated
from ..workload import LARGE, Wrong

STEPS = 150
KEYS = 6
MOMENTS = (0.0, 1.0, 1_000_000_000.0, 1_700_000_000.0, 1_700_003_600.0, 4_000_000_000.0, 100_000_000_000.0)
LEASE = 10.0
RATE = 0.5  # seconds between throttled calls
LIMIT = 1 << 18  # bytes


@dataclass
class Known:
    """What is known of an entry: its value, when it expires, and the latest time that was shown since it was stored."""

    value: Any
    expire: float | None
    latest: float

    def is_certain(self) -> bool:
        """Tell whether nobody can ever have found it expired, and so removed it."""
        return self.expire is None or self.latest < self.expire

    def is_possible(self, now: float) -> bool:
        """Tell whether it may be found now."""
        return self.expire is None or self.expire > now


class Jumping:
    """A cache whose clock jumps, beside what is known of its entries."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.chance = chance
        self.clock = Clock()
        self.clock.now = chance.choice(MOMENTS)
        self.known: dict[Any, Known] = {}
        self.written = 0
        self.cache = Cache(
            directory,
            clock=self.clock,
            generation_slots=1 << 8,
            durability="process",
            eviction_policy="none",
            hot_size_limit=chance.choice((0, 1 << 20)),
            cull_limit=chance.choice((0, 1, 10)),
            timeout=1,
        )

    def jump(self) -> None:
        """Go on a little, or to another time altogether."""
        draw = self.chance.random()
        now = self.clock.now
        if draw < 0.5:
            now += self.chance.choice((0.0, 0.1, 1.0, 5.0, 20.0))
        elif draw < 0.8:
            now += self.chance.choice((-1.0, -30.0, -3600.0, 3600.0))
        else:
            now = self.chance.choice(MOMENTS)
        self.clock.now = max(now, 0.0)
        for known in self.known.values():
            known.latest = max(known.latest, self.clock.now)

    def value(self) -> bytes:
        """Return a value that no other write has, now and then one for a file."""
        self.written += 1
        return b"%06d" % self.written * (LARGE // 6 if self.chance.random() < 0.1 else 1)

    def note(self, key: Any, value: Any, expire: float | None) -> None:
        """Note what was stored just now."""
        now = self.clock.now
        self.known[key] = Known(value, None if expire is None else now + expire, now)

    def see(self, key: Any, found: Any, how: str) -> None:
        """Compare what was found with what is known, and learn from it."""
        known = self.known.get(key)
        if found is MISSING or found == MISSING:
            if known is not None and known.is_certain():
                raise Wrong(f"{how}: {key!r} is missing, but was never expired")
            if known is not None and known.is_possible(self.clock.now):
                del self.known[key]  # removed meanwhile: it must not come back
        elif known is None or found != known.value or not known.is_possible(self.clock.now):
            raise Wrong(f"{how}: {key!r} is {found!r:.40} at {self.clock.now}, known is {known!r:.120}")

    def step(self) -> None:
        key = self.chance.randrange(KEYS)
        expire = self.chance.choice((None, 0.05, 3.0, 60.0, 7200.0))
        getattr(self, self.chance.choice(OPERATIONS))(key, expire)

    def set(self, key: Any, expire: float | None) -> None:
        value = self.value()
        if not self.cache.set(key, value, expire=expire):
            raise Wrong("set returned False")
        self.note(key, value, expire)

    def add(self, key: Any, expire: float | None) -> None:
        """Store a value where there is none."""
        value = self.value()
        if self.cache.add(key, value, expire=expire):
            self.see(key, MISSING, "add")
            self.note(key, value, expire)
        elif key not in self.known or not self.known[key].is_possible(self.clock.now):
            raise Wrong(f"add found {key!r}, known is {self.known.get(key)!r:.120}")

    def touch(self, key: Any, expire: float | None) -> None:
        """Give an entry another expiry."""
        if not self.cache.touch(key, expire):
            self.see(key, MISSING, "touch")
        elif key not in self.known or not self.known[key].is_possible(self.clock.now):
            raise Wrong(f"touch found {key!r}, known is {self.known.get(key)!r:.120}")
        else:
            self.note(key, self.known[key].value, expire)

    def pop(self, key: Any, _: float | None) -> None:
        self.see(key, self.cache.pop(key, MISSING), "pop")
        self.known.pop(key, None)

    def delete(self, key: Any, _: float | None) -> None:
        if not self.cache.delete(key):
            self.see(key, MISSING, "delete")
        self.known.pop(key, None)

    def get(self, key: Any, _: float | None) -> None:
        self.see(key, self.cache.get(key, MISSING), "get")

    def get_expiry(self, key: Any, _: float | None) -> None:
        found, expire = self.cache.get(key, MISSING, expire_time=True)
        self.see(key, found, "get")
        if key in self.known and found != MISSING and expire != self.known[key].expire:
            raise Wrong(f"{key!r} expires at {expire}, not {self.known[key].expire}")

    def get_many(self, _: Any, __: float | None) -> None:
        found = self.cache.get_many(range(KEYS))
        for key in range(KEYS):
            self.see(key, found.get(key, MISSING), "get_many")

    def cull(self, _: Any, __: float | None) -> None:
        self.cache.cull()

    def check(self, _: Any, __: float | None) -> None:
        if left := problems(self.cache):
            raise Wrong(f"check finds {left}")


OPERATIONS = ("set", "set", "add", "touch", "pop", "delete", "get", "get", "get_expiry", "get_many", "cull", "check")


def _expire(jumping: Jumping) -> None:
    for _ in range(STEPS):
        jumping.jump()
        jumping.step()
    jumping.get_many(None, None)
    jumping.cache.check(fix=True)
    if left := problems(jumping.cache):
        raise Wrong(f"check still finds {left} after fix=True")
    files, entries = len(value_files(Path(jumping.cache.directory))), len(jumping.cache)
    if files > entries:
        raise Wrong(f"{files} value files are left of {entries} entries")


def _lease(jumping: Jumping) -> None:
    """Have two owners take and free a lock, by leases that the clock cuts short or draws out."""
    owners = [Lock(jumping.cache, "lock", expire=LEASE) for _ in range(2)]
    taken = [False, False]
    for _ in range(STEPS // 5):
        jumping.jump()
        me = jumping.chance.randrange(2)
        if not taken[me]:
            if owners[me].try_acquire():
                jumping.see("lock", MISSING, "acquire")
                jumping.note("lock", me, LEASE)
                taken[me] = True
            elif "lock" not in jumping.known or not jumping.known["lock"].is_possible(jumping.clock.now):
                raise Wrong("a lock that nobody holds was not got")
            continue
        taken[me] = False
        try:
            owners[me].release()
        except LeaseLost:
            if "lock" in jumping.known and jumping.known["lock"].value == me:
                jumping.see("lock", MISSING, "release")
        else:
            jumping.see("lock", me, "release")
            jumping.known.pop("lock", None)


def _throttle(jumping: Jumping) -> None:
    """Have a throttled function wait no longer than its rate, however often the clock jumps."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        jumping.clock.advance(seconds)
        if len(slept) == 1:
            jumping.jump()

    limited = throttle(jumping.cache, 1, RATE, name="limited", time_func=jumping.clock, sleep_func=sleep)(lambda: None)
    for _ in range(STEPS // 5):
        jumping.jump()
        slept.clear()
        limited()
        if len(slept) > 3 or sum(slept) > 3.01 * RATE:
            raise Wrong(f"a call that may come every {RATE} s waited {slept}")


def _evict(trial: Trial, chance: random.Random) -> None:
    """Have the entry that is used all the time stay, and the size limit hold."""
    clock = Clock()
    options: dict[str, Any] = {"eviction_policy": "least-recently-used", "size_limit": LIMIT, "durability": "process"}
    with closing(Cache(trial.fresh(), clock=clock, generation_slots=1 << 10, **options)) as cache:
        cache["used"] = "all the time"
        for number in range(60):
            clock.now = chance.choice(MOMENTS)
            cache.set(number, bytes(8_000), expire=chance.choice((None, 5.0)))
            if cache.get("used") != "all the time":
                raise Wrong(f"the entry that was used last was evicted after {number} others")
            if cache.volume() > LIMIT * 1.01:
                raise Wrong(f"the volume is {cache.volume()}, the limit {LIMIT}")
        if cache.get(59) is None and clock.now < 5:
            raise Wrong("the entry that was stored last is gone")


@repeated(
    "clock-jumps",
    3,
    "a clock that jumps by seconds and decades before each operation, lock, throttled call and eviction",
)
def jump(trial: Trial, chance: random.Random) -> None:
    with warnings.catch_warnings(action="error"):
        jumping = Jumping(trial.fresh(), chance)
        with closing(jumping.cache):
            _expire(jumping)
            _lease(jumping)
            _throttle(jumping)
        _evict(trial, chance)
    trial.count("jumps", STEPS + 2 * (STEPS // 5) + 60)
