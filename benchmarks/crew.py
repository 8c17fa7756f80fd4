"""Worker processes that start their jobs together, report back, and never outlive the benchmark."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Self, TypeVar

from benchmarks.peers.spec import BenchmarkError
from benchmarks.workspace import signals_held

Argument = TypeVar("Argument")
Result = TypeVar("Result")

WAITING, DONE, FAILED = "waiting", "done", "failed"
PR_SET_PDEATHSIG = 1
PATIENCE = 10.0
# Long enough for the word to reach every worker before the first one starts and takes the processor.
NOTICE = 20_000_000


class WorkerError(BenchmarkError):
    """A worker process failed or died."""


class Abandoned(BaseException):
    """Another worker failed, so the job will not go on."""


class Gate:
    """A barrier: the parent opens it once every worker is there, and knows when one never will be."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait(self) -> None:
        """Wait for all the other workers and go on at the same time."""
        self._pipe.send((WAITING, None))
        start = self._pipe.recv()
        if start is None:
            raise Abandoned
        time.sleep(max(start - time.perf_counter_ns(), 0) / 1e9)


class Crew:
    """Keep `size` worker processes for several jobs, so that a repetition does not pay for starting them.

    Spawned workers share nothing with this process; forked ones start in milliseconds and find what it has imported
    and made, which must then have neither threads nor open databases.
    """

    def __init__(self, size: int, method: Literal["spawn", "fork"] = "spawn") -> None:
        self._context: Any = multiprocessing.get_context(method)
        self._size = size
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        try:
            # Workers inherit the blocked signals: Ctrl-C is for the parent alone, which then ends them.
            with signals_held():
                for _ in range(self._size):
                    ours, theirs = self._context.Pipe()
                    process = self._context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
                    process.start()
                    theirs.close()
                    self._workers.append((process, ours))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for _, pipe in self._workers:
            pipe.close()
        for process, _ in self._workers:
            process.kill()
            process.join(PATIENCE)
            if process.exitcode is not None:
                process.close()

    def run(
        self, job: Callable[[Gate, Argument], Result], arguments: Sequence[Argument], patience: float | None = None
    ) -> list[Result]:
        """Run `job` with one argument per worker and return the results in that order.

        Raise a worker's BenchmarkError as it is, and WorkerError if a worker fails otherwise or dies, or if none has
        had anything to say for `patience` seconds.
        """
        pipes = [pipe for _, pipe in self._workers]
        for pipe, argument in zip(pipes, arguments, strict=True):
            pipe.send((job, argument))
        told: dict[int, tuple[str, Any]] = {}
        while busy := [number for number in range(self._size) if number not in told or told[number][0] == WAITING]:
            listening = [number for number in busy if number not in told]
            if listening:
                ready = connection.wait([pipes[number] for number in listening], patience)
                if not ready:
                    raise WorkerError(f"no worker has answered for {patience:.0f} s")
                told |= {number: self._hear(number) for number in listening if pipes[number] in ready}
                continue
            # They go on together, or give up if some have ended without coming to the gate.
            start = time.perf_counter_ns() + NOTICE if len(busy) == self._size else None
            for number in busy:
                pipes[number].send(start)
                del told[number]
        failures = [answer for word, answer in told.values() if word == FAILED and answer]
        if failures:
            raise failures[0] if isinstance(failures[0], BenchmarkError) else WorkerError(failures[0])
        return [told[number][1] for number in range(self._size)]

    def _hear(self, number: int) -> tuple[str, Any]:
        """Receive what one worker has to say; one that died has failed."""
        process, pipe = self._workers[number]
        try:
            word, answer = pipe.recv()
        except (EOFError, ConnectionError):
            process.join(PATIENCE)
            return FAILED, f"worker {number} died with exit code {process.exitcode}"
        return str(word), answer


def _work(pipe: Connection, parent: int) -> None:
    """Do jobs until the pipe closes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGINT})
    if sys.platform == "linux":  # this process ends with its parent, which may be killed without a chance to say so
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    while True:
        try:
            job, argument = pipe.recv()
        except (EOFError, ConnectionError):
            return
        answer: tuple[str, object]
        try:
            answer = (DONE, job(Gate(pipe), argument))
        except Abandoned:
            answer = (FAILED, "")
        except BenchmarkError as error:
            answer = (FAILED, error)
        except Exception:
            answer = (FAILED, traceback.format_exc())
        pipe.send(answer)
