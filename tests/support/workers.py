"""Other processes and threads for tests: start, instruct, stop and kill them, and hear what they found.

Worker processes come from a fork server, so that they share nothing with the test's process, and quickly. A worker's
function gets a `Link` to the test first; it fails by what it raises, and by what any thread of its process raises that
nobody catches. Nothing here waits without a deadline: one that passes fails the test.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, TypeVar

PATIENCE = 60.0  # seconds after which a test gives up on another process; no test waits for it to pass
JUDGING = 600.0  # seconds that a worker waits for its next task while the last one is judged

CONTEXT = multiprocessing.get_context("forkserver")
_SUPPORT = [f"tests.support.{name}" for name in ("other_systems", "cache_kinds", "workers")]  # the first before all
CONTEXT.set_forkserver_preload(["pytest", *_SUPPORT])


class Silence(AssertionError):
    """The other side said nothing for too long."""


class Gone(AssertionError):
    """The other side has ended."""


LOST = (EOFError, BrokenPipeError, ConnectionResetError)  # what a pipe says when nobody has its other end


class Link:
    """One end of the pipe between a test and a worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def tell(self, message: object = None) -> None:
        """Send a message; its arrival lets a `hear` of the other side go on."""
        self.connection.send(message)

    def hear(self, patience: float = PATIENCE) -> Any:
        """Wait for a message, so many seconds at most, and return it."""
        if not self.connection.poll(patience):
            raise Silence(f"the other process said nothing for {patience:.0f} s")
        return self.connection.recv()

    def asked(self) -> bool:
        """Tell whether a message is waiting, without waiting for one."""
        return self.connection.poll(0)


class Worker:
    """A process that runs `work(link, *arguments)`; what that returns is what `result` returns."""

    def __init__(self, work: Callable[..., object], arguments: Iterable[object]) -> None:
        ours, theirs = CONTEXT.Pipe()
        self.link = Link(ours)
        self.process = CONTEXT.Process(target=_run, args=(theirs, work, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        assert self.process.pid is not None
        self.pid: int = self.process.pid

    def tell(self, message: object = None) -> None:
        """Send a message to the worker; fail as `hear` does if it has ended."""
        try:
            self.link.tell(message)
        except LOST:
            while True:
                self.hear()

    def hear(self) -> Any:
        """Return the worker's next message; fail with its traceback if it failed instead."""
        try:
            kind, message = self.link.hear()
        except LOST:
            raise Gone(f"worker {self.pid} ended without a word") from None
        if kind == "failed":
            raise AssertionError(f"worker {self.pid} failed:\n{message}")
        return message

    def result(self) -> Any:
        """Return what the worker's function returned, after its process has ended."""
        found = self.hear()
        self.join()
        return found

    def kill(self) -> None:
        """Kill the process as `kill -9` does, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.join()

    def stop(self) -> None:
        """Freeze the process; `go_on` thaws it."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Thaw the process."""
        os.kill(self.pid, signal.SIGCONT)

    def join(self) -> None:
        """Wait until the process has ended."""
        self.process.join(PATIENCE)
        if self.process.is_alive():
            raise Silence(f"worker {self.pid} did not end within {PATIENCE:.0f} s")

    def dismiss(self) -> None:
        """Kill the process if it is still there, and free what it held here."""
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself, and the fork server knows
                self.kill()
            self.join()
        self.link.connection.close()
        self.process.close()


class Crew:
    """The workers of one test; all of them are gone when its with-block ends."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def start(self, work: Callable[..., object], *arguments: object) -> Worker:
        """Start a worker that runs `work(link, *arguments)`; `work` is a function of a module."""
        self.workers.append(Worker(work, arguments))
        return self.workers[-1]

    def start_many(self, number: int, work: Callable[..., object], *arguments: object) -> list[Worker]:
        """Start workers that each run `work(link, its own number, *arguments)`."""
        return [self.start(work, each, *arguments) for each in range(number)]

    @staticmethod
    def together(workers: Sequence[Worker]) -> None:
        """Wait until every worker has said that it is ready, then let all of them go on at once."""
        for worker in workers:
            worker.hear()
        for worker in workers:
            worker.tell()

    @staticmethod
    def results(workers: Sequence[Worker]) -> list[Any]:
        """Return what the workers return, in their order; the first failure is told as soon as it is known."""
        found: dict[Worker, Any] = {}
        waiting = {worker.link.connection: worker for worker in workers}
        while waiting:
            ready = wait(list(waiting), PATIENCE)
            if not ready:
                raise Silence(f"workers said nothing for {PATIENCE:.0f} s: {[each.pid for each in waiting.values()]}")
            for connection in ready:
                assert isinstance(connection, Connection)
                worker = waiting.pop(connection)
                found[worker] = worker.result()
        return [found[worker] for worker in workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.dismiss()


class _TestEnded(Exception):
    """The test that a worker works for has ended; not what the work itself raises of another pipe, or of a file."""


class _WorkerLink(Link):
    """The worker's end: what it tells is marked as a message, so that a failure can be told from one."""

    def tell(self, message: object = None) -> None:
        try:
            super().tell(("message", message))
        except LOST:
            raise _TestEnded from None

    def hear(self, patience: float = PATIENCE) -> Any:
        signal.alarm(int(patience + PATIENCE))
        try:
            return super().hear(patience)
        except LOST:
            raise _TestEnded from None

    def fail(self, error: BaseException | None) -> None:
        """Have the next `hear` of the other side fail with an error."""
        with contextlib.suppress(BrokenPipeError):
            super().tell(("failed", "".join(traceback.format_exception(error))))


def ready(link: Link) -> None:
    """Say that this worker is ready and wait until all others are; the test calls `Crew.together`."""
    link.tell("ready")
    link.hear()


_links: list[_WorkerLink] = []  # the last is that of this process, the others came by fork


def _fail_by(raised: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    """Fail at once by what a thread has raised: the work may end by a kill."""
    _links[-1].fail(raised.exc_value)


def hear_unraisable() -> None:
    """Have this process, and those that it forks, fail also by what Python only prints: errors in finalizers and hooks."""
    sys.unraisablehook = _fail_by


def _run(connection: Connection, work: Callable[..., object], *arguments: object) -> None:
    signal.alarm(int(2 * PATIENCE))  # a worker whose test was killed must not stay
    link = _WorkerLink(connection)
    _links.append(link)
    threading.excepthook = _fail_by
    try:
        found = work(link, *arguments)
    except _TestEnded:
        return
    except BaseException as error:
        link.fail(error)
    else:
        Link.tell(link, ("done", found))


Found = TypeVar("Found")


def in_thread(work: Callable[[], Found]) -> Found:
    """Run `work()` in a thread that ends with it; return what it returns, raise what it raises."""
    (found,) = in_threads(1, lambda _: work())
    return found


def in_threads(number: int, work: Callable[[int], Found]) -> list[Found]:
    """Run `work(0)`, `work(1)` and so on at once, each in a thread; return what they return, raise what one raises."""
    barrier = threading.Barrier(number)

    def run(each: int) -> Found:
        barrier.wait(PATIENCE)
        return work(each)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number), timeout=PATIENCE))


@contextlib.contextmanager
def forked(work: Callable[[Link], object]) -> Iterator[Forked]:
    """Run `work` in a child made by `os.fork` from here, with all that this process has open; dismiss it at the end."""
    child = fork_worker(work)
    try:
        yield child
    finally:
        child.dismiss()


def fork_worker(work: Callable[[Link], object]) -> Forked:
    """Do as `forked` does, for a caller who dismisses the child."""
    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _run(theirs, work)
        finally:
            os._exit(0)
    theirs.close()
    return Forked(ours, pid)


class Forked(Worker):
    """A worker that was made by `os.fork`."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self.link = Link(connection)
        self.pid = pid
        self.status: int | None = None  # once it has ended; below 0 the signal that killed it
        self._is_struck = False

    def _has_ended(self) -> bool:
        if self.status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if ended else None
        return self.status is not None

    def kill(self) -> None:
        """Kill the process as `kill -9` does, and wait until it is gone; fail if anything else has ended it."""
        self.strike()
        self.fall()

    def strike(self) -> None:
        """Kill the process without waiting until it is gone, as `fall` does."""
        self._is_struck = not self._has_ended()
        if self._is_struck:
            os.kill(self.pid, signal.SIGKILL)

    def fall(self) -> None:
        """Wait until the process is gone that was struck; fail if it failed before, or if anything else has ended it."""
        self.join()
        with contextlib.suppress(Gone):
            while self.link.asked():
                self.hear()
        if not self._is_struck or self.status != -signal.SIGKILL:
            raise Gone(f"worker {self.pid} has ended by itself, with status {self.status}")

    def join(self) -> None:
        """Wait until the process has ended; what it told can still be heard."""
        if self._has_ended():
            return
        descriptor = os.pidfd_open(self.pid)
        try:
            if not wait([descriptor], PATIENCE):
                raise Silence(f"forked child {self.pid} did not end within {PATIENCE:.0f} s")
        finally:
            os.close(descriptor)
        assert self._has_ended()

    def dismiss(self) -> None:
        """Kill the process if it is still there, and free what it held here."""
        if not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            self.join()
        self.link.connection.close()


__all__ = [
    "JUDGING",
    "PATIENCE",
    "Crew",
    "Forked",
    "Gone",
    "Link",
    "Silence",
    "Worker",
    "fork_worker",
    "forked",
    "hear_unraisable",
    "in_thread",
    "in_threads",
    "ready",
]
