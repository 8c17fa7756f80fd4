"""Dying at a chosen step: of SQL, of the shared words, of files, of the write lock."""

from __future__ import annotations

import functools
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from diskcache_like.coherence import _native, generations, ring
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.disk import file_io
from diskcache_like.storage import redo_log, store, writer
from diskcache_like.storage.shard import transactions

from .rings import WHOLE

WHOLE_RECORD = f"after {WHOLE} in the ring"


class Death:
    """Kill this process at its n-th step, after a word about it; `steps` tells which there were."""

    def __init__(self, at: int, announce: Callable[[], object] = lambda: None) -> None:
        self.at = at
        self._announce = announce
        self._last = ""
        self.steps: list[str] = []
        self.counts = False

    def __call__(self, step: str) -> None:
        if self.counts:
            if len(self.steps) == self.at or step == self._last:
                self.die()
            self.steps.append(step)

    def dies_before_head(self) -> None:
        """Have this process die without a word when a record is whole that HEAD does not include yet."""
        self.at, self._last, self._announce = -1, WHOLE_RECORD, lambda: None

    def die(self) -> NoReturn:
        """Kill this process."""
        self._announce()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with a step before and a step after it."""

        @functools.wraps(function)
        def surrounded(*args: Any, **kwargs: Any) -> Any:
            self(f"before {name}")
            result = function(*args, **kwargs)
            self(f"after {name}")
            return result

        return surrounded


death = Death(-1)  # this process's own; replaced in a victim


# Statements that write nothing; of the pragmas, those that a connection gets for itself.
HARMLESS = re.compile(
    r"SELECT|BEGIN|SAVEPOINT|RELEASE|PRAGMA (trusted|cell_|mmap|temp_|secure|wal_auto|journal_size|synchronous|cache_)"
)


class MortalConnection(sqlite3.Connection):
    """A connection on which each statement that may write is two steps."""

    def execute(self, statement: str, *args: Any) -> Any:
        return _mortal(super().execute, statement, *args)

    def executemany(self, statement: str, *args: Any) -> Any:
        return _mortal(super().executemany, statement, *args)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(MortalCursor)

    def close(self) -> None:
        death("before close of a connection")
        super().close()


class MortalCursor(sqlite3.Cursor):
    """A cursor likewise."""

    def execute(self, statement: str, *args: Any) -> Any:
        return _mortal(super().execute, statement, *args)


def _mortal(execute: Callable[..., Any], statement: str, *args: Any) -> Any:
    if HARMLESS.match(statement):
        return execute(statement, *args)
    name = " ".join(statement.split()[:3])
    death(f"before {name}")
    result = execute(statement, *args)
    death(f"after {name}")
    return result


class MortalWords(_native.Words):
    """Shared words whose every change by Python is a step, but for the hundreds of zeros that a header starts with."""

    def __setitem__(self, index: int, value: int, /) -> None:
        super().__setitem__(index, value)
        if value:
            death(f"after word[{index}]")

    def fill(self, value: int, /) -> None:
        """Set the first half, then all."""
        for index in range(len(self) // 2):
            super().__setitem__(index, value)
        death("half filled")
        super().fill(value)
        death("filled")


def make_mortal(at: int, announce: Callable[[], object]) -> Death:
    """Have this process die at its n-th step once `counts` is set: of SQL, of shared words, of files, of the lock."""
    global death
    death = Death(at, announce)
    write_all = file_io._write_all

    def half_and_half(descriptor: int, chunk: bytes) -> int:
        done = write_all(descriptor, chunk[: len(chunk) // 2])
        death("half a value file")
        return done + write_all(descriptor, chunk[len(chunk) // 2 :])

    patches: list[tuple[Any, str, Any]] = [
        (sqlite3, "connect", functools.partial(sqlite3.connect, factory=MortalConnection)),
        *(
            (module, "_native", SimpleNamespace(**{**vars(_native), "Words": MortalWords}))
            for module in (generations, ring)
        ),
        (file_io, "_write_all", half_and_half),
    ]
    for owner, name in (
        (file_io, "create"),
        (file_io, "remove"),
        *((module, "end") for module in (redo_log, store, transactions, writer)),
        (WriteLock, "release_and_close"),
        (generations, "open_control_file"),
        (generations, "_allocate"),
        (generations, "GenerationFile"),
        (file_io, "link_unnamed"),
        (os, "makedirs"),
        (os, "unlink"),
    ):
        patches.append((owner, name, death.around(name, getattr(owner, name))))
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    _native.watch_steps(lambda changed: death(f"after {changed} in the ring"))
    return death


__all__ = ["Death", "make_mortal"]
