"""Dying at a chosen step: of SQL, of the shared words, of files, of the write lock."""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
import sqlite3
from collections.abc import Callable
from struct import Struct
from typing import Any, NoReturn

from diskcache_like.coherence import atomics, generations, ring
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.disk import file_io
from diskcache_like.storage.opening import opener
from diskcache_like.storage.write_buffer import WriteBuffer

WHOLE_RECORD = "<I packed into the ring"  # the checksum of a record's header, which comes last


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


class MortalWords:
    """Shared words whose every change is a step, but for the hundreds of zeros that a new header starts with."""

    def __init__(self, real: Any, name: str) -> None:
        self.real = real
        self.name = name

    def __getitem__(self, index: int) -> int:
        return int(self.real[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.real[index] = value
        if value:
            death(f"after {self.name}[{index}]")

    def __len__(self) -> int:
        return len(self.real)


class MortalBytes:
    """Shared bytes that are written in two halves, each of them a step."""

    def __init__(self, real: memoryview) -> None:
        self.real = real

    def __getitem__(self, part: slice) -> memoryview:
        return self.real[part]

    def __setitem__(self, part: slice, content: bytes) -> None:
        start, half = part.start, len(content) // 2
        self.real[start : start + half] = content[:half]
        death("half of the content of the ring")
        self.real[start + half : part.stop] = content[half:]
        death("the content of the ring")

    def __len__(self) -> int:
        return len(self.real)


class MortalStruct:
    """A format of which each packing is a step."""

    def __init__(self, real: Struct) -> None:
        self.real = real
        self.unpack = real.unpack
        self.size = real.size

    def pack(self, *values: Any) -> bytes:
        return self.real.pack(*values)

    def pack_into(self, target: Any, *args: Any) -> None:
        self.real.pack_into(_real(target), *args)
        death(f"{self.real.format} packed into the ring")

    def unpack_from(self, target: Any, *args: Any) -> Any:
        return self.real.unpack_from(_real(target), *args)


class MortalRing(ring.Ring):
    """A ring of which each change of a word is a step, and each half of a record."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.words = MortalWords(self.words, "ring")  # type: ignore[assignment]
        self._table = MortalWords(self._table, "table")  # type: ignore[assignment]
        self._bytes = MortalBytes(self._bytes)  # type: ignore[assignment]


def _real(target: Any) -> Any:
    return getattr(target, "real", target)


def make_mortal(at: int, announce: Callable[[], object]) -> Death:
    """Have this process die at its n-th step once `counts` is set: of SQL, of shared words, of files, of the lock."""
    global death
    death = Death(at, announce)
    raw, fill, write_all = atomics.raw, atomics.fill, file_io._write_all
    names = itertools.cycle(("header", "slot"))

    def mortal_fill(target: Any, value: int) -> None:
        real = raw(_real(target))
        for index in range(len(real) // 2):
            real[index] = value
        death("half filled")
        fill(real, value)
        death("filled")

    def half_and_half(descriptor: int, chunk: bytes) -> int:
        done = write_all(descriptor, chunk[: len(chunk) // 2])
        death("half a value file")
        return done + write_all(descriptor, chunk[len(chunk) // 2 :])

    patches: list[tuple[Any, str, Any]] = [
        (sqlite3, "connect", functools.partial(sqlite3.connect, factory=MortalConnection)),
        (atomics, "over", lambda view, _: MortalWords(view, next(names))),
        (atomics, "raw", lambda target: raw(_real(target))),
        (atomics, "fill", mortal_fill),
        (file_io, "_write_all", half_and_half),
        (opener, "Ring", MortalRing),
        *((ring, name, MortalStruct(getattr(ring, name))) for name in ("_HEADER", "_OFFSET", "_CHECK")),
        (WriteBuffer, "uses_helper", False),  # its steps are the same, but nobody can stop between them
    ]
    for owner, name in (
        (file_io, "create"),
        (file_io, "remove"),
        (WriteLock, "release"),
        (WriteLock, "release_and_close"),
        (generations, "open_control_file"),
        (generations, "_allocate"),
        (generations, "_map"),
        (file_io, "link_unnamed"),
        (os, "makedirs"),
        (os, "unlink"),
    ):
        patches.append((owner, name, death.around(name, getattr(owner, name))))
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    return death


__all__ = ["Death", "make_mortal"]
