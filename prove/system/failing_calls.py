"""Refused calls: whatever call on a file fails, and however, only what the documentation names comes of it."""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like.entries.loading import Loader
from diskcache_like.errors import DirectoryError, DiskFull, StorageError, Timeout
from diskcache_like.storage.writer import Writer

from ..proof import Trial, proof
from ..shim import Call, Shim, build
from ..workload import OPTIONS, Session, Wrong, one_layout, recover, script

ERRORS: dict[Call, tuple[int, ...]] = {
    Call.OPEN: (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.EINTR),
    Call.READ: (errno.EIO, errno.ENOMEM, errno.EINTR),
    Call.WRITE: (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR),
    Call.TRUNCATE: (errno.ENOSPC, errno.EIO, errno.EINTR),
    Call.SYNC: (errno.EIO, errno.ENOSPC),
    Call.LOCK: (errno.ENOLCK, errno.EIO, errno.EACCES, errno.EINTR),
    Call.MAP: (errno.ENOMEM, errno.EACCES),
    Call.UNLINK: (errno.EIO, errno.EACCES),
    Call.RENAME: (errno.EIO, errno.ENOSPC),
    Call.MKDIR: (errno.ENOSPC, errno.EACCES, errno.EMLINK),
    Call.LINK: (errno.EIO, errno.ENOSPC),
}
SHORT = (500, 50)  # thousandths of a write that are written
BUFFER = 1 << 14  # bytes of the smallest write buffer, which is flushed a few times in a run


WRONG = rf"{re.escape(Wrong.__module__)}\.{Wrong.__qualname__}: "


class Refusal(NamedTuple):
    """One fault: the `at`-th call of a class is refused, or with `sticky` all from then on."""

    call: Call
    error: int
    at: int
    sticky: bool
    part: int = 0
    buffer: int = 0  # bytes of the write buffer

    def __str__(self) -> str:
        how = f"cut to {self.part} thousandths" if self.part else f"refused with {errno.errorcode[self.error]}"
        buffer = ", with a write buffer" if self.buffer else ""
        return f"{self.call.name} {self.at}{' and all after it' if self.sticky else ''} {how}{buffer}"


def refusals(calls: Mapping[Call, int], buffer: int) -> list[Refusal]:
    """Return every fault there is in a run that makes so many calls of each class."""
    found = []
    for call, number in calls.items():
        for error, at, sticky in product(ERRORS[call], range(1, number + 1), (False, True)):
            if not (sticky and error == errno.EINTR):  # who is interrupted tries again, for ever
                found.append(Refusal(call, error, at, sticky, buffer=buffer))
    writes = range(1, calls[Call.WRITE] + 1)
    return found + [Refusal(Call.WRITE, 0, *one, buffer) for one in product(writes, (False, True), SHORT)]


def run(directory: Path, refusal: Refusal) -> tuple[Session, Mapping[Call, int]]:
    """Run the script, refusing what is said; return the session and how many calls of each class there were."""
    call, error, at, sticky, part, buffer = refusal
    shim = Shim(directory.parent)
    # Syncing takes most of the time, and is done only where that is what fails.
    durability = "power" if call is Call.SYNC else "process"
    session = Session(directory, {**OPTIONS, "durability": durability, "write_buffer": buffer})
    session.doubtful = call is Call.SYNC
    if call is Call.LOCK:
        session.errors = (DiskFull, DirectoryError, Timeout)
    try:
        with shim.refusing(call, at, error, sticky=sticky, part=part):
            script(session)
            calls = {each: shim.calls(each) for each in Call}
        recover(session)
    finally:
        session.end()
    return session, calls


def _counted(trial: Trial, buffer: int) -> dict[Call, int]:
    """Return how many calls of each class the script makes when nothing is refused."""
    _, calls = run(trial.fresh().resolve(), Refusal(Call.OPEN, 0, 0, False, buffer=buffer))
    _, synced = run(trial.fresh().resolve(), Refusal(Call.SYNC, 0, 0, False, buffer=buffer))
    return {**calls, Call.SYNC: synced[Call.SYNC]}


@contextmanager
def _steady() -> Iterator[None]:
    """Have every run be like the others, and a database that is quarantined for a call that failed be a violation."""
    with one_layout(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _try(trial: Trial, refusal: Refusal) -> None:
    try:
        session, _ = run(trial.fresh().resolve(), refusal)
    except Exception as error:
        raise Wrong(f"{refusal}: {error}") from error
    trial.count("operations refused", sum(session.refused.values()))


@proof(
    "disk-refusals",
    6,
    "the n-th call, or all from it on, to open, read, write, sync, lock, map, unlink or link a file refused, or a"
    " write cut short, in a workload of a hundred operations",
    share=3,
    bulk=6,
    preload=build,
    parallel=True,
)
def _refuse(trial: Trial) -> None:
    with _steady():
        faults = [fault for buffer in (0, BUFFER) for fault in refusals(_counted(trial, buffer), buffer)]
        trial.each(faults, partial(_try, trial), "faults")


# -- controls ---------------------------------------------------------------------------------------------------------


def _refuse_all(trial: Trial, call: Call, error: int) -> None:
    """Refuse all calls of a class from an early one on."""
    trial.repeat(lambda chance: _try(trial, Refusal(call, error, chance.randrange(1, 100), True)))


@proof(
    "disk-control-commits",
    6,
    "a write that the disk refused is taken as done",
    share=0.5,
    finds=rf"{WRONG}WRITE .* refused with ENOSPC: .* is .*, expected ",
    preload=build,
)
def _swallow_commits(trial: Trial) -> None:
    real = Writer.put

    def put(*arguments: Any, **more: Any) -> int:
        try:
            return real(*arguments, **more)
        except (DiskFull, StorageError):
            return 1

    with mock.patch.object(Writer, "put", put), _steady():
        _refuse_all(trial, Call.WRITE, errno.ENOSPC)


@proof(
    "disk-control-reads",
    6,
    "a read that the disk refused is taken as a value",
    share=0.5,
    finds=rf"{WRONG}READ .* refused with ENOMEM: .* is b'', expected ",
    preload=build,
)
def _believe_reads(trial: Trial) -> None:
    real = Loader.get

    def get(*arguments: Any) -> Any:
        try:
            return real(*arguments)
        except StorageError:
            return b""

    with mock.patch.object(Loader, "get", get), _steady():
        _refuse_all(trial, Call.READ, errno.ENOMEM)
