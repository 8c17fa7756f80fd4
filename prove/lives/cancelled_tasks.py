"""Cancel an asyncio task at each of its awaits in turn: nothing is held afterwards, and others go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import BoundedSemaphore, Cache, Lock, RLock, Timeout, barrier, memoize_stampede, throttle
from diskcache_like.coherence.futex import pauses
from diskcache_like.recipes import locks
from tests.support.workers import PATIENCE

from ..children import BRIEF
from ..proof import Trial, proof
from .scenes import Life, Scene, joined, live_all

LOCK = ("lock", "cancelled")
GLANCE = 0.005  # seconds
STEPS = 5  # awaits for which whoever is in the way stays there
MANY = 60  # awaits that nothing here needs

AtEach = Callable[[int], object]


class Cancelled:
    """Await a coroutine, and have the task that does so cancelled at its `first`-th await; `again` at all later ones.

    `at_each` is called with the number of each await, before it.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], first: int, again: bool, at_each: AtEach) -> None:
        self._work, self._first, self._again, self._at_each = work, first, again, at_each
        self.awaits = 0

    def _step(self) -> None:
        self.awaits += 1
        self._at_each(self.awaits)
        if self.awaits == self._first or (self._again and self.awaits > self._first):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            answer, error = None, None
            self._step()
            try:
                answer = yield waited
            except BaseException as raised:
                error = raised


# -- what is cancelled ------------------------------------------------------------------------------------------------

Work = Callable[[Cache], Coroutine[Any, Any, Any]]


class Cancellable(NamedTuple):
    """Work that is cancelled, and what makes the lock that it is under, if there is one."""

    name: str
    work: Work
    lock: Callable[..., Any] | None = None


WORKS: list[Cancellable] = []


def cancellable(name: str, lock: Callable[..., Any] | None = None) -> Callable[[Work], Work]:

    def register(work: Work) -> Work:
        WORKS.append(Cancellable(name, work, lock))
        return work

    return register


async def _with_lock(make: Callable[..., Any], cache: Cache) -> None:
    async with make(cache, LOCK):
        await asyncio.sleep(0)


for _make in (Lock, RLock, BoundedSemaphore):
    cancellable(_make.__name__, _make)(partial(_with_lock, _make))


@cancellable("RLock, twice", RLock)
async def lock_twice(cache: Cache) -> None:
    lock = RLock(cache, LOCK)
    async with lock, lock:
        await asyncio.sleep(0)


@cancellable("a lease that is extended", Lock)
async def extend(cache: Cache) -> None:
    lock = Lock(cache, LOCK, expire=60)
    async with lock:
        await lock.aextend()


@cancellable("barrier", Lock)
async def in_a_barrier(cache: Cache) -> None:
    @barrier(cache, Lock, name=LOCK)  # type: ignore[arg-type]  # any key will do
    async def work() -> None:
        await asyncio.sleep(0)

    await work()


@cancellable("throttle")
async def throttled(cache: Cache) -> None:
    @throttle(cache, count=1, seconds=0.001, name="throttled")
    async def work() -> None:
        await asyncio.sleep(0)

    for _ in range(2):
        await work()


async def _memoized(decorate: Callable[[Cache], Any], cache: Cache) -> None:
    """Call a coroutine function whose result is not there yet."""

    @decorate(cache)  # type: ignore[untyped-decorator]
    async def compute(number: int) -> list[int]:
        await asyncio.sleep(0)
        return [number]

    assert await compute(5) == [5]


cancellable("memoize")(partial(_memoized, lambda cache: cache.memoize(name="memoized")))
cancellable("memoize_stampede")(partial(_memoized, lambda cache: memoize_stampede(cache, expire=60, name="flown")))


# -- who is in the way ------------------------------------------------------------------------------------------------


class Hindrance(NamedTuple):
    """What a thread holds that the task needs, from one await of the task on, for `STEPS` of them at most."""

    name: str
    hold: Callable[[Cache, Cancellable], Any] | None
    begin: int = 0


HINDRANCES = (
    Hindrance("nobody is in the way", None),
    Hindrance("somebody writes", lambda cache, what: cache.transact(retry=True)),
    Hindrance("somebody writes at its first await", lambda cache, what: cache.transact(retry=True), 1),
    Hindrance("somebody writes at its second await", lambda cache, what: cache.transact(retry=True), 2),
    Hindrance("somebody has the lock", lambda cache, what: what.lock and what.lock(cache, LOCK)),
)


def _is_waited_for(cache: Cache) -> bool:
    """Tell whether a thread waits for a write lock: the task awaits that thread then, once, until it has the lock."""
    return any(store.shard.lock.core.waiting() for store in cache._shards.stores)


@contextmanager
def hindered(cache: Cache, what: Cancellable, hindrance: Hindrance) -> Iterator[AtEach]:
    """Have a thread in the way; yields what is to be told of each await, and a number below 0 when it is to go."""
    may_begin, inside, may_go = threading.Event(), threading.Event(), threading.Event()
    ended = False

    def be_in_the_way() -> None:
        assert may_begin.wait(PATIENCE)
        held = None if hindrance.hold is None or ended else hindrance.hold(cache, what)
        if held is None:
            inside.set()
            return
        with held:
            inside.set()
            while not may_go.wait(GLANCE) and not _is_waited_for(cache):
                pass

    def at_each(number: int) -> None:
        if number == hindrance.begin:
            may_begin.set()
            assert inside.wait(PATIENCE)
        if number < 0 or number >= hindrance.begin + STEPS:
            may_go.set()

    thread = threading.Thread(target=be_in_the_way)
    thread.start()
    try:
        at_each(0)
        yield at_each
    finally:
        ended = True
        may_begin.set()
        may_go.set()
        joined(thread)


# -- a life -----------------------------------------------------------------------------------------------------------


async def cancel_at(cache: Cache, what: Cancellable, number: int, again: bool, at_each: AtEach) -> bool:
    """Cancel the work at its `number`-th await; return False if it has not so many."""

    def before_each(awaits: int) -> None:
        at_each(awaits)
        if awaits >= number:
            at_each(-1)  # a task that is cancelled waits for the write lock in earnest

    work = Cancelled(what.work(cache), number, again, before_each)

    async def run() -> None:
        await work

    try:
        await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    assert work.awaits < number, f"cancelled at await {number} of {work.awaits}, it went on as if nothing had happened"
    return False


def look_around(scene: Scene, cache: Cache, what: Cancellable) -> None:
    """Assert that nothing is held, and that another task gets through."""
    held = [key for key in cache if isinstance(key, tuple) and (key == LOCK or key[-1] == "flight")]
    assert held == [], f"{held} are still held"
    with scene.open(timeout=BRIEF) as other, other.transact():
        other.set("others", "go on")

    async def again() -> None:
        async with asyncio.timeout(PATIENCE):
            await what.work(cache)

    asyncio.run(again())
    if what.lock is not None:
        lock = what.lock(cache, LOCK)
        assert lock.try_acquire(), f"{what.name} cannot be acquired"
        lock.release()


def cancel_everywhere(what: Cancellable, hindrance: Hindrance, scene: Scene, cache: Cache) -> dict[str, int]:
    """Cancel a task at its first await, at its second, and so on; once, and at each later await again."""
    cancelled = 0
    for again in (False, True):
        for number in range(1, MANY):
            with hindered(cache, what, hindrance) as at_each:
                more = asyncio.run(cancel_at(cache, what, number, again, at_each))
            look_around(scene, cache, what)
            cache.clear(retry=True)
            cache.set("of the parent", "value", retry=True)
            if not more:
                break
            cancelled += 1
        else:
            raise AssertionError(f"{what.name} has no end")
    return {"cancellations": cancelled}


LIVES = [
    Life(f"{what.name} cancelled at every await, while {hindrance.name}", partial(cancel_everywhere, what, hindrance))
    for what in WORKS
    for hindrance in HINDRANCES
    if what.lock is not None or hindrance is not HINDRANCES[-1]
]
proof("lives-cancellation", 6, "asyncio tasks are cancelled at every single await", share=1.5, bulk=1.5)(
    partial(live_all, lives=LIVES)
)


async def release_once(self: locks._Shared) -> None:
    """Release a lock unless the task is cancelled meanwhile."""
    owner = self._releaser()
    for seconds in pauses():
        try:
            self._release(owner, 0)
            return
        except Timeout:
            await asyncio.sleep(seconds)


@proof(
    "lives-lock-kept", 6, "a cancelled task keeps its lock", share=0.5, finds=r"AssertionError: \[.*\] are still held"
)
def keep_locks(trial: Trial) -> None:
    chosen = [life for life in LIVES if life.name.startswith(("Lock", "barrier")) and "first await" in life.name]
    with mock.patch.object(locks._Shared, "arelease", release_once):
        live_all(trial, chosen)
