"""Steps: what waits or calls the user's function while something is computed, and the drivers that take them.

A procedure is a generator that yields its steps. `take` takes them in the calling thread, `take_async` in the running
event loop.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Self, TypeVar

from ..entries.atomic_key import AtomicKey
from ..system.signals import reraise_signal
from ..system.tasks import current_loop, has_ended, sleep, spawn, wait_for_end
from .flights import Flight

RENEWAL = "diskcache_like renewal"  # name of a thread that computes in the background
# A list for each computation that the caller is inside of, with its name and that of the place that it has, and empty
# once it has ended: a task that was started inside of one keeps this for ever.
under_way: contextvars.ContextVar[tuple[list[Any], ...]] = contextvars.ContextVar("under_way", default=())

T = TypeVar("T")
Steps = Generator["Step", Any, Any]


class Call(NamedTuple):
    """Call the user's function."""

    function: Callable[[], Any]

    def run(self) -> Any:
        """Call a function; raise Stopped where it raises StopIteration, which would end a generator."""
        try:
            return self.function()
        except StopIteration as error:
            raise Stopped(error) from error

    async def arun(self) -> Any:
        """Await what a coroutine function returns."""
        return await self.function()


class Stopped(Exception):
    """The user's function has raised StopIteration."""


class Do(NamedTuple):
    """Use the cache, which may wait for the write lock or read a file: in a loop, do so in a thread.

    `begins` is the flight that this may take.
    """

    cache: Any
    act: Callable[[], Any]
    begins: Flight | None = None

    def run(self) -> Any:
        """Do it."""
        return self.act()

    async def arun(self) -> Any:
        """Do it without blocking the event loop."""
        return await self.cache._handle.threads.attempt(self.act)


class Job:
    """A computation in a task of its own, for all its callers in one event loop: the last one cancelled cancels it."""

    __slots__ = ("task", "waiters")

    def __init__(self, steps: Steps) -> None:
        self.task = spawn(take_async(steps))
        self.waiters = 0


_jobs: dict[tuple[object, Any], Job] = {}  # those under way, by event loop and name; each loop changes its own alone


class Waiting:
    """Count one caller among those who wait for a computation with some name, until the body has ended."""

    __slots__ = ("_job", "_name")

    def __init__(self, name: Any) -> None:
        self._name = name
        self._job: Job | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.leave(kind is not None and not issubclass(kind, Exception))

    def leave(self, is_cancelled: bool) -> None:
        """Stop waiting; cancel the job if the caller is cancelled and was the last one."""
        job, self._job = self._job, None
        if job is not None:
            job.waiters -= 1
            if is_cancelled and not job.waiters:
                job.task.cancel()

    def start(self, steps: Steps) -> Job:
        """Begin a job that this waits for."""
        place = current_loop(), self._name
        self._job = job = _jobs[place] = Job(steps)
        job.waiters += 1
        job.task.add_done_callback(lambda _: _jobs.pop(place, None) if _jobs.get(place) is job else None)
        return job

    def join(self) -> None:
        """Wait for the job that computes this now in the running loop, if there is one."""
        job = _jobs.get((current_loop(), self._name))
        if job is not self._job:
            self.leave(False)
            self._job = job
            if job is not None:
                job.waiters += 1

    async def wait(self, awaited: Awaitable[T]) -> T:
        """Await something; if that cancels the last caller, and so the job, wait until the job has ended."""
        job = self._job
        try:
            return await awaited
        except BaseException:
            self.leave(True)
            if job is not None and not job.waiters:
                await wait_for_end(job.task)
            raise


class Rest(NamedTuple):
    """Wait until a flight may have changed since `generation`, at most some seconds."""

    atomic: AtomicKey
    generation: int
    most: float
    pause: float
    slice: float
    waiting: Waiting

    def run(self) -> None:
        """Sleep until somebody wakes the sleepers."""
        self.atomic.sleep(self.generation, min(self.most, self.slice))

    async def arun(self) -> None:
        """Sleep for a moment."""
        self.waiting.join()
        await self.waiting.wait(sleep(min(self.most, self.pause)))


class Within(NamedTuple):
    """Take steps elsewhere and return their outcome, which has `result()`, if they end within some seconds; else None.

    They go on to their end in any case, unless they are taken in an event loop and all who wait for them are cancelled.
    A thread that would wait without an end gets the steps back, to take them itself.
    """

    name: Any
    steps: Steps
    seconds: float

    def run(self) -> Any:
        """Take them in a thread, or return them."""
        if self.seconds == math.inf:
            return self.steps
        outcome: Future[Any] = Future()
        _start(self.steps, outcome)
        return outcome if wait([outcome], min(self.seconds, threading.TIMEOUT_MAX)).done else None

    async def arun(self) -> Any:
        """Take them in a task."""
        with Waiting(self.name) as waiting:
            job = waiting.start(self.steps)
            if await waiting.wait(has_ended(job.task, self.seconds)):
                return job.task
            job.waiters += 1  # for good, so that it goes on whoever is cancelled
        return None


class InBackground(NamedTuple):
    """Begin to take steps elsewhere; `ended` is called if they cannot begin."""

    steps: Steps
    ended: Callable[[], None]

    def run(self) -> None:
        """Begin them in a thread; if none can start, report that."""
        try:
            _start(self.steps, None)
        except BaseException as error:
            if inspect.getgeneratorstate(self.steps) == inspect.GEN_CREATED:  # `threading` may refer to it for ever
                self.ended()
            if not isinstance(error, Exception):
                raise
            reraise_signal(error)
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), None)))

    async def arun(self) -> None:
        """Begin them in a task."""
        spawn(take_async(self.steps)).add_done_callback(lambda _: self.ended())


Step = Call | Do | Rest | Within | InBackground  # what takes time: `run` in a thread, or await `arun`


def _start(steps: Steps, outcome: Future[Any] | None) -> None:
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_take_into, steps, outcome), name=RENEWAL, daemon=True).start()


def _take_into(steps: Steps, outcome: Future[Any] | None) -> None:
    try:
        value = take(steps)
    except BaseException as error:
        if outcome is None:
            raise
        outcome.set_exception(Stopped(error) if isinstance(error, StopIteration) else error)
    else:
        if outcome is not None:
            outcome.set_result(value)


def take(steps: Steps) -> Any:
    """Take all steps in this thread, and return what they come to.

    A signal handler may raise between two steps, or in the very step that was to free a flight. If the steps end
    with an exception, this frees once more what they took. Few frames are between the caller and the user's function,
    so that a recursive function can go deep.
    """
    begun: dict[Flight, Do] = {}
    around = under_way.get()
    try:
        try:
            step = next(steps)
            while True:
                _mark_begun(begun, step, in_a_loop=False)
                try:
                    found = step.run()
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as end:
            return end.value
    except BaseException as error:
        _end(steps)
        for flight in begun:
            flight.finish()
        under_way.set(around)
        if type(error) is Stopped:
            raise error.args[0] from None
        raise


def _mark_begun(begun: dict[Flight, Do], step: Step, in_a_loop: bool) -> None:
    """Note the flight that a step may take; forget all flights where steps that are taken elsewhere free them."""
    if type(step) is Do and step.begins is not None:
        begun[step.begins] = step
    elif type(step) is InBackground or (type(step) is Within and (in_a_loop or step.seconds < math.inf)):
        begun.clear()


class _Left(BaseException):
    """Ends steps that were left in the middle; with GeneratorExit they could take none on their way out."""


def _end(steps: Steps) -> None:
    """Have steps give back what they hold, if they have not come to their end."""
    try:
        step = steps.throw(_Left())
        while True:
            step.run()
            step = next(steps)
    except (_Left, StopIteration):
        pass


async def take_async(steps: Steps) -> Any:
    """Take all steps in the running event loop, and return what they come to.

    The task may be cancelled in the very step that takes a flight. If the steps end with an exception, this frees once
    more what they took.
    """
    begun: dict[Flight, Do] = {}
    try:
        try:
            step = next(steps)
            while True:
                _mark_begun(begun, step, in_a_loop=True)
                try:
                    found = await step.arun()
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(found)
        except StopIteration as end:
            return end.value
    except BaseException:
        for flight, step in begun.items():
            await step._replace(act=flight.finish).arun()
        raise
