"""SQLite's locks belong to the process: whoever else opens and closes a file of the database there drops them.

Then the next process that closes the cache takes itself for the last one, and unlinks a WAL that is being written.
"""

from __future__ import annotations

import os
import pickle
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest import mock

from diskcache_like import Cache
from diskcache_like.errors import CorruptDatabaseWarning, SecretError
from tests.support.audit_hooks import Openings
from tests.support.crash_scenarios import NEW
from tests.support.inspection import cache_descriptors
from tests.support.integrity import FLAVOURS, SECRET, opened
from tests.support.workers import Link

from ..children import KINDS, SHARDS, Stage, played, soundness
from ..children import opened as staged
from ..proof import Trial, proof
from ..signals.calls import CALLS, prepare

CLOSINGS = 100  # of databases, by another process
PAUSE = 0.001  # seconds after a write, in which the others get the processor


def _use_all(flavour: str, directory: Path, draw: random.Random) -> None:
    """Do everything, in an order drawn, with one of two handles; both are open most of the time."""
    calls = [call for call in CALLS.values() if "raises" in call.handlers]
    draw.shuffle(calls)
    with opened(directory, flavour) as cache, opened(directory, flavour) as other:
        for call in calls:
            prepare(call, draw.choice((cache, other)))
            with suppress(KeyError):
                draw.choice((cache, other)).peekitem()
            with suppress(SecretError):  # of a handle without one
                call.run(draw.choice((cache, other)))
                pickle.loads(pickle.dumps(draw.choice((cache, other)))).close()
        if "encrypt" in FLAVOURS[flavour]:
            cache.rotate(NEW)
            cache.rotate(SECRET)


def _quarantine(flavour: str, directory: Path) -> None:
    """Meet a garbled database with two handles."""
    with opened(directory, flavour) as cache:
        paths = [Path(store.path) for store in cache._shards.stores]
    for path in paths:
        os.truncate(path, 0)
        path.write_bytes(b"\xff" * 8192)
    with opened(directory, flavour) as cache, opened(directory, flavour) as other:
        cache["k"] = 1
        assert other["k"] == 1
        assert {Path(store.path) for store in other._shards.stores}.isdisjoint(paths)


@proof(
    "sqlite-files",
    3,
    "every kind of call and of upkeep, by two handles: nothing else opens a file that SQLite has open",
)
def _open_nothing(trial: Trial) -> None:
    watch = Openings()

    def case(flavour: str) -> None:
        directory = trial.fresh().resolve()
        with watch.watching(), warnings.catch_warnings(action="ignore", category=CorruptDatabaseWarning):
            _use_all(flavour, directory, random.Random(trial.case))
            _quarantine(flavour, directory)

    trial.each(list(FLAVOURS) * 100, case, "runs")


# -- and the WAL stays ------------------------------------------------------------------------------------------------


def _write(kind: str, directory: Path, link: Link) -> None:
    """Write until told to stop, tell how many numbers there are, and close when they were looked at."""
    number = 0
    with staged(kind, directory) as cache:
        cache[number] = number
        link.tell()
        while not link.asked():
            number += 1
            cache[number] = number
            if not number % 64:
                cache.check(fix=True)
            time.sleep(PAUSE)
        link.hear()
        for _ in range(SHARDS * 8):  # in no checkpoint that a closing made
            number += 1
            cache[number] = number
        gone = [name for name in cache_descriptors(directory) if name.endswith(" (deleted)")]
        assert not gone, f"of an open database there were unlinked: {gone}"
        link.tell(number)
        link.hear()


def _open_often(kind: str, directory: Path) -> None:
    for _ in range(CLOSINGS // (SHARDS if kind == "FanoutCache" else 1)):
        with staged(kind, directory) as cache:
            cache.get(0)


def _find_all(kind: str, directory: Path, number: int) -> None:
    with staged(kind, directory) as cache:
        lost = set(range(number + 1)) - cache.get_many(range(number + 1)).keys()
    assert not lost, f"acknowledged and lost: {lost}"


@proof(
    "sqlite-closings",
    3,
    f"{CLOSINGS} times a database is opened and closed beside a process that writes: its WAL stays, with all in it",
)
def _close_beside(trial: Trial) -> None:
    def case(kind: str) -> None:
        directory = trial.fresh().resolve()
        with Stage() as stage:
            writer = stage.play(partial(_write, kind, directory))
            writer.hear()
            played(partial(_open_often, kind, directory))
            writer.tell()
            number = writer.hear()
            played(partial(_find_all, kind, directory, number))
            writer.tell()
            writer.result()
        played(partial(_find_all, kind, directory, number))
        played(partial(soundness, kind, directory))
        trial.count("writes", number)
        trial.count("databases closed beside them", CLOSINGS)

    trial.each(KINDS * 1000, case, "runs")


# -- the controls -----------------------------------------------------------------------------------------------------


@contextmanager
def _looking_at_files() -> Iterator[None]:
    """Have `check` read the files of the database by itself."""
    real = Cache.check

    def check_and_look(cache: Cache, *arguments: bool, **options: bool) -> list[warnings.WarningMessage]:
        for store in cache._shards.stores:
            for suffix in ("", "-shm"):
                with suppress(FileNotFoundError):
                    Path(store.path + suffix).read_bytes()
        return real(cache, *arguments, **options)

    with mock.patch.object(Cache, "check", check_and_look):
        yield


@proof(
    "control-sqlite-files",
    3,
    "the process that has a database open reads its files",
    share=0.5,
    finds=r"AssertionError: .*cache\.db(-shm)? is opened while SQLite has it open",
)
def _control_openings(trial: Trial) -> None:
    with _looking_at_files():
        _open_nothing(trial)


@proof(
    "control-sqlite-closings",
    3,
    "the same, and another process closes the database",
    share=0.5,
    finds=r"AssertionError: .*(of an open database there were unlinked|acknowledged and lost)",
)
def _control_wal(trial: Trial) -> None:
    with _looking_at_files():
        _close_beside(trial)
