"""The processes of a linearizability proof: they begin together, on handles that differ, and write down what they do.

What each client called and was answered is in a file outside of its process, which may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence import _native, ring
from diskcache_like.coherence.generations import Words
from tests.support.broken_writers import in_python
from tests.support.statement_hooks import watch
from tests.support.workers import JUDGING, PATIENCE, Link

from .calls import RUN, Cancelled, Raised, answer_of, at_once, play, told
from .histories import PENDING, Call, Recorded

THREADS = 2  # of a process, at most
CLIENTS = 3  # of a process, at most: threads or tasks
PHASES = 3  # of a history, at most: what one client calls before, what all call at once, and what they look at then
HANDLES = 6  # that a process has open
LINGER = 0.0001  # seconds
LOOK = 0.00005  # seconds between two looks at whether the others have come
READY, NOW, DONE = "ready", "now", "done"  # what a process tells: it can begin; it may be killed; it is at the end
OFTEN = 0.35  # part of the calls of tasks that are cancelled unless they have returned by then
DELAYS = (-5, -2.5)  # seconds until then, as powers of ten

# -- handles ----------------------------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """Which handle a process uses."""

    place: str  # directory, one of `PLACES`
    hot: bool
    slow: bool = False  # lingers at generations


RING = ring.PAGE  # bytes of a write buffer that a few dozen writes fill, a quarter of the least that a user may have
PLACES: dict[str, dict[str, Any]] = {
    "slots": {"generation_slots": 1 << 10},
    "few": {"generation_slots": 16, "write_buffer": 0},  # keys share slots
    "buffered": {"generation_slots": 16, "write_buffer": RING},
    "files": {"generation_slots": 1 << 10, "disk_min_file_size": 0},  # each value in a file
}


def opened(directory: Path, handle: Handle, shards: int) -> Cache:
    """Open a handle, whose clock never goes back."""
    ring.LEAST_CAPACITY = RING
    settings = {**PLACES[handle.place], "clock": time.monotonic, "durability": "process"}
    settings |= {} if handle.hot else {"hot_size_limit": 0}
    if shards > 1:
        cache: Cache = FanoutCache(directory / handle.place, shards, 60, **settings)
    else:
        cache = Cache(directory / handle.place, 60, **settings)
    if handle.slow:
        source = random.Random(os.getpid())
        use_words(cache, lambda words: Around(words, partial(linger, source, 0.5), partial(linger, source, 0.2)))
        for store in cache._shards.stores:
            in_python(store)
        _native.watch_steps(lambda _: linger(source, 0.5))  # of all handles of this process
    return cache


def linger(source: random.Random, often: float) -> None:
    """Take a while, or not, so that others come in between two steps."""
    if source.random() < often:
        time.sleep(LINGER)


class Around:
    """Words with something done before and after each is changed, and after it is read."""

    def __init__(
        self, words: Words, changing: Callable[[], object], reading: Callable[[], object] = lambda: None
    ) -> None:
        self._words: Any = words
        self._changing, self._reading = changing, reading

    def __getitem__(self, index: int, /) -> int:
        value = int(self._words[index])
        self._reading()
        return value

    def __setitem__(self, index: int, value: int, /) -> None:
        self._changing()
        self._words[index] = value
        self._changing()

    def __len__(self) -> int:
        return len(self._words)

    def fill(self, value: int, /) -> None:
        self._words.fill(value)


def use_words(cache: Cache, around: Callable[[Words], Around]) -> None:
    """Have a handle use its generations through something."""
    for store in cache._shards.stores:
        slots: Any = around(store.shard.slots)
        store.shard.slots = store.shard.generations.slots = slots


class Gate:
    """Lets the clients of a history begin together, by words in a file that all processes map."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(mmap.PAGESIZE)
            self._mapping = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._words = memoryview(self._mapping).cast("Q")

    async def wait(self, client: int, moment: int, others: Sequence[int], sleep: Callable[[float], Any]) -> None:
        """Say that this client has come to a moment, and return when all have; sleep as the caller does."""
        words = self._words
        words[client] = moment
        patience = time.monotonic() + PATIENCE
        while any(words[other] < moment for other in others):
            await told(sleep(LOOK))
            if time.monotonic() > patience:
                raise TimeoutError(f"client {client} waited {PATIENCE:.0f} s for the others")

    def close(self) -> None:
        self._words.release()
        self._mapping.close()


# -- what is written down ---------------------------------------------------------------------------------------------


class Diary:
    """What a client called and was answered, each written down as it happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def note(self, what: object) -> None:
        """Write down the moment of a call, or (answer, moment of return)."""
        self._file.write(pickle.dumps(what))

    def close(self) -> None:
        self._file.close()


def diary_of(directory: Path, client: int) -> Path:
    """Return the path of a client's diary of what is played now."""
    return directory / f"diary {client}"


def notes(path: Path) -> Iterator[Any]:
    """Yield what was written down, but for what a kill has cut off."""
    with path.open("rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(file)


def recorded(path: Path, client: int, calls: Iterable[Call], gone: int) -> Iterator[Recorded]:
    """Yield the calls of a client that are in its diary; the last is pending if it was `gone` before that returned."""
    found = notes(path)
    for call, called in zip(calls, found, strict=False):
        answer, returned = next(found, (PENDING, gone))
        is_cancelled = isinstance(answer, Cancelled)
        yield Recorded(client, call, called, PENDING if is_cancelled else answer, returned, is_cancelled)


# -- when to be killed ------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """When a process tells that it may be killed."""

    client: int
    call: int  # of that client
    step: int  # 0: just before it is made; else before (odd) or after (even) a change of a generation or a COMMIT in it


class Fuse:
    """Tells once that the process may be killed; at a step it waits there for that."""

    def __init__(self, tell: Callable[[], None], wait: Callable[[], None]) -> None:
        self._tell, self._wait = tell, wait
        self._steps = 0  # that are left

    def light(self, steps: int) -> None:
        """Tell now, or at such a step from here."""
        self._steps = steps
        if not steps:
            self._tell()

    def step(self) -> None:
        """Count a step, and tell if it is the one."""
        self._steps -= 1
        if self._steps == 0:
            self._tell()
            self._wait()

    def commit(self, statement: str) -> None:
        if statement == "COMMIT":
            self.step()

    def out(self) -> None:
        """Tell unless it is done: there were fewer steps."""
        if self._steps > 0:
            self._steps = 0
            self._tell()


# -- processes --------------------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """What one process does in some histories."""

    handle: Handle
    moment: int  # of the first gate
    clients: tuple[int, ...]  # of all processes
    mine: tuple[int, ...]  # of this one
    histories: list[tuple[bool, dict[int, list[list[Call]]]]]  # whether it clears; what each client calls, by phases
    end: End | None = None

    @property
    def moments(self) -> Iterator[int]:
        """The moment at which each history begins."""
        return iter(range(self.moment, self.moment + PHASES * len(self.histories), PHASES))


class Look(NamedTuple):
    """Calls that one process makes by itself, whose answers it tells."""

    handle: Handle
    calls: Sequence[Call]


class Client:
    """One client, as a thread: it makes calls and writes each of them down."""

    def __init__(self, cache: Any, directory: Path, role: Role, number: int, fuse: Fuse) -> None:
        self._cache, self._role, self._number, self._fuse = cache, role, number, fuse
        self._diary = Diary(diary_of(directory, number))
        self._made = 0
        self.close = self._diary.close

    def play(self, calls: Sequence[Call]) -> Any:
        for call in calls:
            self._begin()
            self._end(answer_of(self._cache, call))

    def _begin(self) -> None:
        self._diary.note(time.monotonic_ns())
        if self._is_last:
            self._fuse.light(self._role.end.step)  # type: ignore[union-attr]

    def _end(self, answer: Any) -> None:
        self._diary.note((answer, time.monotonic_ns()))
        if self._is_last:
            self._fuse.out()
        self._made += 1

    @property
    def _is_last(self) -> bool:
        """Whether it is in this call that the process may be killed."""
        return self._role.end is not None and self._role.end[:2] == (self._number, self._made)

    async def take_part(self, gate: Gate, sleep: Callable[[float], Any]) -> None:
        """Play one client's part of each history."""
        me, clients, cleared = self._number, self._role.clients, False
        for (clears, calls), moment in zip(self._role.histories, self._role.moments, strict=True):
            if clears or cleared:
                await gate.wait(me, moment, clients, sleep)  # the one before this has ended
            if clears and me == clients[0]:
                await told(self._cache.clear(retry=True))
            cleared = clears
            first, *others = calls[me]
            await told(self.play(first))
            for number, phase in enumerate(others, 1):
                await gate.wait(me, moment + number, clients, sleep)
                await told(self.play(phase))


class Task(Client):
    """A client that is an asyncio task, and is cancelled in some of its calls."""

    async def play(self, calls: Sequence[Call]) -> None:
        """Make the calls, in turns with the other tasks."""
        cancelled = delays(f"{self._number} {self._role.histories}")
        for call in calls:
            await asyncio.sleep(0)
            self._begin()
            self._end(await answer_of_task(self._cache, call, next(cancelled)))


def delays(seed: str) -> Iterator[list[float]]:
    """Yield for each call after how many seconds its task is cancelled: never, once, or more than once."""
    source = random.Random(seed)
    while True:
        number = source.choice((1, 1, 2, 3)) if source.random() < OFTEN else 0
        yield [source.choice((0.0, 10 ** source.uniform(*DELAYS))) for _ in range(number)]


async def answer_of_task(face: Any, call: Call, cancelled: Sequence[float]) -> Any:
    """Make a call and return its answer; cancel this task meanwhile, after so many seconds."""
    name, *arguments = call
    try:
        with cancelling(cancelled) as task:
            answer = await told(RUN[name](face, *arguments))
            return Raised("no CancelledError, though it was cancelled") if task.cancelling() else answer
    except asyncio.CancelledError:
        return Cancelled()
    except Exception as error:
        return Raised(repr(error))


@contextlib.contextmanager
def cancelling(seconds: Sequence[float]) -> Iterator[asyncio.Task[Any]]:
    """Cancel this task after so many seconds, unless the body has ended by then."""
    task = asyncio.current_task()
    assert task is not None
    timers = [asyncio.get_running_loop().call_later(each, task.cancel) for each in seconds]
    try:
        yield task
    finally:
        for timer in timers:
            timer.cancel()
        while task.cancelling():
            task.uncancel()


Together = Callable[[Cache, Path, Gate, Role, Fuse], None]  # plays the parts of one process


def in_threads(cache: Cache, directory: Path, gate: Gate, role: Role, fuse: Fuse) -> None:

    def play_part(number: int) -> None:
        with contextlib.closing(Client(cache, directory, role, number, fuse)) as client:
            at_once(client.take_part(gate, time.sleep))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(play_part, role.mine))


def in_tasks(cache: Cache, directory: Path, gate: Gate, role: Role, fuse: Fuse) -> None:
    """Play each part in a task of one event loop."""

    async def play_all() -> None:
        with contextlib.ExitStack() as stack:
            tasks = [Task(cache.aio, directory, role, number, fuse) for number in role.mine]
            for task in tasks:
                stack.callback(task.close)
            await asyncio.gather(*(task.take_part(gate, asyncio.sleep) for task in tasks))

    asyncio.run(play_all())


class Service(NamedTuple):
    """How all processes of a proof take part: where, on how many shards, and what each handle is when it was opened."""

    directory: Path
    shards: int
    spoil: Callable[[Cache], None]
    together: Together
    mortal: bool  # may be killed

    def live(self, link: Link) -> None:
        """Play roles, and look, until the other side ends or this process is killed."""
        fuse = Fuse(partial(link.tell, NOW), partial(time.sleep, PATIENCE))
        handles: dict[Handle, Cache] = {}
        with contextlib.closing(Gate(self.directory / "gate")) as gate:
            while (task := link.hear(JUDGING)) is not None:
                if task.handle not in handles:
                    if len(handles) == HANDLES:
                        handles.pop(next(iter(handles))).close()
                    handles[task.handle] = self._opened(task.handle, fuse)
                cache = handles[task.handle]
                if isinstance(task, Look):
                    link.tell(play(cache, task.calls))
                    continue
                link.tell(READY)
                link.hear()  # while others open a handle, nobody keeps a processor busy at the gate
                self.together(cache, self.directory, gate, task, fuse)
                link.tell(DONE)
        for cache in handles.values():
            cache.close()

    def _opened(self, handle: Handle, fuse: Fuse) -> Cache:
        """Open a handle; if it lingers at changes of generations, have these and commits burn the fuse."""
        cache = opened(self.directory, handle, self.shards)
        self.spoil(cache)
        if handle.slow and self.mortal:
            watch(cache, fuse.commit, fuse.commit)
            use_words(cache, lambda words: Around(words, fuse.step))
        return cache
