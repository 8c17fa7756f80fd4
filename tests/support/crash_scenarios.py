"""What a victim does while it is killed, its deed; and a nurse, who forks victims until one has outlived its deed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from diskcache_like import Cache
from diskcache_like.coherence import generations
from diskcache_like.coherence.ring import Word
from diskcache_like.compat.migration import copy
from diskcache_like.compat.migration.copy import Migration
from diskcache_like.errors import CorruptDatabaseWarning
from diskcache_like.storage import redo_log, rekeying
from diskcache_like.storage.redo_log import RedoLog
from diskcache_like.storage.shard import invalidation
from diskcache_like.storage.upkeep import bulk_removal, checkpoints, trash

from . import shard_transactions
from .crash_points import Death, make_mortal
from .integrity import FLAVOURS, opened
from .sample_writes import LARGE, WRITES, Write
from .workers import Link, Worker

Deed = Callable[[Path, str, Death], list[str]]
DEEDS: dict[str, Deed] = {}


def deed(name: str) -> Callable[[Deed], Deed]:
    """Register something that victims do; it returns the steps it took."""

    def register(function: Deed) -> Deed:
        DEEDS[name] = function
        return function

    return register


LAST_WORD = "dies"  # of a victim that dies as planned: not of a fault, nor for want of memory
HANGS = 30  # seconds after which a victim hangs


def nurse(link: Link) -> None:
    """Fork victims: hear what each is to do and when to die, tell None if it died so, else the steps that it took."""
    while (task := link.hear()) is not None:
        reading, writing_ = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_victim(writing_, *task)
        os.close(writing_)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        _, status = os.waitpid(pid, 0)
        link.tell(_outcome(told, os.waitstatus_to_exitcode(status), at=task[-1]))


def _be_victim(pipe: int, directory: Path, kind: str, name: str, at: int) -> NoReturn:
    status = 1
    signal.alarm(HANGS)
    try:
        dying = make_mortal(at, lambda: os.write(pipe, LAST_WORD.encode()))
        os.write(pipe, "\n".join(DEEDS[name](directory, kind, dying)).encode())
        status = 0
    except BaseException as error:
        os.write(pipe, repr(error).encode())
    finally:
        os._exit(status)


def _outcome(told: str, status: int, at: int) -> list[str] | str | None:
    """Return None for a victim that died as planned, its steps for one that outlived the deed, else what is wrong."""
    if status == -signal.SIGKILL and told == LAST_WORD and at >= 0:
        return None
    if status == -signal.SIGALRM:
        return f"it hangs, {HANGS} s now"
    if status < 0:
        return f"it ended by {signal.Signals(-status).name} before its time"
    steps = told.splitlines()
    if status:
        return told
    if not steps:
        return "it has no steps to die at"
    return f"it has outlived step {at} of {len(steps)}" if 0 <= at < len(steps) else steps


def victims(nurse_: Worker, directory: Path, kind: str, name: str) -> Iterator[int]:
    """Yield after each death: at the first step, at the second, … until a victim has outlived the deed.

    A deed in several shards has the same steps in each, so a prime stride goes through them; the rig takes them all.
    """
    for at in itertools.count(step=3 if "shards" in FLAVOURS[kind] else 1):
        steps = die(nurse_, directory, kind, name, at)
        if steps is not None:
            # What there is to do may depend on what deaths before have left: fewer steps than the last time, for one.
            assert len(steps) > 2, "the deed has no steps to die at"
            return
        yield at


def die(nurse_: Worker, directory: Path, kind: str, name: str, at: int) -> list[str] | None:
    """Let a victim do `name` and die at its n-th step; return all of its steps if it has fewer, or `at` is -1."""
    nurse_.tell((directory, kind, name, at))
    steps = nurse_.hear()
    assert steps is None or isinstance(steps, list), f"a victim failed: {steps}"
    return steps


# -- writes and upkeep -------------------------------------------------------------------------------------------------


def _stream(cache: Cache) -> None:
    with cache.open("k", "wb") as writer:
        for start in range(0, len(LARGE), 30_000):
            writer.write(LARGE[start : start + 30_000])


DEED_WRITES = {**WRITES, "set piece by piece": Write(_stream, LARGE)}


Before = Callable[[Cache], object]


def _write(
    write: Write,
    directory: Path,
    kind: str,
    dying: Death,
    all_slots: bool = False,
    before: Before = lambda cache: None,
    **settings: Any,
) -> list[str]:
    if all_slots:
        invalidation.ALL_SLOTS = -1  # type: ignore[attr-defined]  # every change marks all slots, as one of thousands of keys does
        bulk_removal.MANY = 0  # and `clear` empties the table in one step
    cache = opened(directory, kind, **settings)
    cache.get("anything")
    before(cache)
    dying.counts = True
    with contextlib.suppress(ZeroDivisionError):
        write.do(cache)
    dying.counts = False
    cache.close()
    return dying.steps


MARKING_ALL = ", marking all slots"
SYNCING = ", syncing"  # as durability="power" has it

for _name, _each in DEED_WRITES.items():
    DEEDS[_name] = functools.partial(_write, _each)
    DEEDS[_name + MARKING_ALL] = functools.partial(_write, _each, all_slots=True)
    DEEDS[_name + SYNCING] = functools.partial(_write, _each, durability="power")

LAP_ENDS = {", where a lap ends": 88, ", before a lap ends": 176}  # bytes: a small record has room in the second only
APPENDED = ["set", "set with expiry", "incr", "incr of nothing", "add", "delete", "pop", "set if unchanged"]
AFTER_A_DEATH = ", after a death"  # of a writer whose record is whole, and whose append is not


def _fill_lap(cache: Cache, left: int) -> None:
    """Append until the ring has been filled once and only so many bytes are left of the lap; the last ones wait."""
    cache.set("filler", bytes(200))
    ring = cache._shards.stores[0].shard.ring
    assert ring is not None
    words, capacity = ring.words, ring.capacity
    first, extra, rest = words[Word.HEAD], 0, capacity
    while words[Word.HEAD] < first + capacity or rest > 600:
        before = words[Word.HEAD]
        cache.set("filler", bytes(200))
        extra, rest = words[Word.HEAD] - before - 200, -words[Word.HEAD] % capacity
    cache.set("filler", bytes(rest - extra - left))
    assert -words[Word.HEAD] % capacity == left
    assert ring.waiting()


def _write_after_a_death(write: Write, directory: Path, kind: str, dying: Death, before: Before) -> list[str]:
    pid = os.fork()
    if pid == 0:
        dying.dies_before_head()
        _write(write, directory, kind, dying, before=before)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return _write(write, directory, kind, dying)


DEEDS["set" + AFTER_A_DEATH] = functools.partial(_write_after_a_death, WRITES["set"], before=lambda cache: None)
for _where, _left in LAP_ENDS.items():
    _fill = functools.partial(_fill_lap, left=_left)
    for _name in APPENDED:
        DEEDS[_name + _where] = functools.partial(_write, WRITES[_name], before=_fill)
    DEEDS["set" + _where + AFTER_A_DEATH] = functools.partial(_write_after_a_death, WRITES["set"], before=_fill)

ALL_MARKING = ["delete", "touch", "evict", "clear", "delete_many", "set_many"]


@deed("checkpoint")
def do_checkpoint(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    checkpoints.CHECKPOINT_BYTES = -1
    checkpoints.WAL_LIMIT = -1
    for store in cache._shards.stores:
        store.shard.header[generations.Header.VOLUME_DUE] = 0
    dying.counts = True
    cache.set("k", 2)
    assert any("checkpoint" in step for step in dying.steps)
    return dying.steps


def with_trash(directory: Path, kind: str, dying: Death) -> Cache:
    """Replace a value file, whose grace is over at once; from now on steps count."""
    cache = opened(directory, kind)
    cache.set(("large", "replaced"), LARGE)
    cache.set(("large", "replaced"), 1)
    trash.GRACE = -1.0
    dying.counts = True
    return cache


@deed("sweep")
def do_sweep(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = with_trash(directory, kind, dying)
    for number in (2, 2, 2):  # one round dates and unlinks, the next drops the row
        for store in cache._shards.stores:
            store.shard.header[generations.Header.VOLUME_DUE] = 0
        cache.set("k", number)
    assert "after remove" in dying.steps
    return dying.steps


@deed("flush")
def do_flush(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = with_trash(directory, kind, dying)
    cache.set("k", 2)
    cache.check(fix=True)
    assert "after remove" in dying.steps
    return dying.steps


@deed("close")
def do_close(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    cache.set("k", 2)
    dying.counts = True
    cache.close()
    return dying.steps


@deed("expired entries go with a write")
def do_cull_due(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind, clock=lambda: time.time() + 1000)
    for store in cache._shards.stores:
        store.shard.header[generations.Header.NEXT_EXPIRE] = 0
    dying.counts = True
    cache.set("k", 2)
    return dying.steps


UPKEEP = {
    "checkpoint": WRITES["set"],
    "sweep": WRITES["set"],
    "flush": WRITES["set"],
    "close": WRITES["set"],
    "expired entries go with a write": WRITES["set"]._replace(
        prepare=lambda cache: [cache.set("k", 1), cache.set(("large", "expiring"), LARGE, expire=500)]
    ),
}  # with what each of them comes

FILLERS: dict[Any, Any] = {
    ("filler", number): LARGE if number % 3 == 0 else number for number in range(30)
}  # what "make room" may evict


@deed("make room")
def do_make_room(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    cache.reset("size_limit", cache.volume() // 2, update=False)
    dying.counts = True
    cache.set("k", 2)
    return dying.steps


# -- transactions over several shards ------------------------------------------------------------------------------------


def _across_shards(directory: Path, kind: str, dying: Death, **settings: Any) -> list[str]:
    redo_log.CHUNK_BYTES = 300  # so that there are pieces beside its head
    cache = opened(directory, kind, **settings)
    cache.get("anything")
    dying.counts = True
    shard_transactions.change(cache)
    dying.counts = False
    cache.close()
    return dying.steps


DEEDS["across shards"] = _across_shards
DEEDS["across shards" + SYNCING] = functools.partial(_across_shards, durability="power")


@deed("open a copy")
def do_open_a_copy(directory: Path, kind: str, dying: Death) -> list[str]:
    """Open a copy of a cache that has something to complete, or to take over from its write buffer."""
    copy = directory / str(dying.at)
    shutil.copytree(directory / "template", copy)
    dying.counts = True
    cache = opened(copy, kind)
    dying.counts = False
    cache.close()
    return dying.steps


@deed("cut off")
def do_cut_off(directory: Path, kind: str, dying: Death) -> list[str]:
    """Die just after a transaction over several shards is decided."""
    redo_log.CHUNK_BYTES = 300
    decide = RedoLog.decide

    def die_decided(self: RedoLog, txns: Any) -> Any:
        decide(self, txns)
        dying.die()

    RedoLog.decide = die_decided  # type: ignore[method-assign]
    shard_transactions.change(opened(directory, kind))
    return []


def cut_off(nurse_: Worker, directory: Path, kind: str) -> None:
    """Leave a cache whose last transaction was cut off just after it was decided."""
    with opened(directory, kind) as cache:
        shard_transactions.prepare(cache)
    assert die(nurse_, directory, kind, "cut off", 0) is None


# -- opening ----------------------------------------------------------------------------------------------------------


@deed("open")
def do_open(directory: Path, kind: str, dying: Death) -> list[str]:
    dying.counts = True
    opened(directory / str(dying.at), kind).set("k", 1)
    return dying.steps


@deed("open again")
def do_open_again(directory: Path, kind: str, dying: Death) -> list[str]:
    """Open a directory from before the machine was started again, whose generations have to be renewed."""
    directory /= str(dying.at)
    cache = opened(directory, kind)
    cache.set("k", 1)
    for store in cache._shards.stores:
        left = store.shard.generations
        left.begin(range(3), left.next_tick())  # as writers leave them who died with the machine
        store.shard.header[generations.Header.BOOT] = 1
    cache.close()
    dying.counts = True
    opened(directory, kind).set("other", 1)
    return dying.steps


@deed("quarantine")
def do_quarantine(directory: Path, kind: str, dying: Death) -> list[str]:
    """Meet a garbled database."""
    directory /= str(dying.at)
    cache = opened(directory, kind)
    cache.set("k", 1)
    paths = [Path(store.path) for store in cache._shards.stores]
    cache.close()
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    warnings.simplefilter("ignore", CorruptDatabaseWarning)
    dying.counts = True
    cache = opened(directory, kind)
    cache.get("k")
    cache.set("k", 1)
    return dying.steps


# -- what takes many transactions --------------------------------------------------------------------------------------

OLD, NEW = "one secret of sixteen", "the new secret, longer than it"


@deed("rotate")
def do_rotate(directory: Path, kind: str, dying: Death) -> list[str]:
    """Rotate a fresh copy of the cache."""
    rekeying.BATCH = 3
    copy = directory / str(dying.at)
    shutil.copytree(directory / "template", copy)
    cache = opened(copy, kind, secret=OLD)
    dying.counts = True
    cache.rotate(NEW)
    dying.counts = False
    cache.close()
    return dying.steps


@deed("migrate")
def do_migrate(directory: Path, kind: str, dying: Death) -> list[str]:
    """Copy what DiskCache left in `directory / "old"`."""
    copy.BATCH_ENTRIES = 3  # type: ignore[misc]
    for name in ("_claim", "_open_target", "_copy_one", "_finish", "_remove_mark"):
        setattr(Migration, name, dying.around(name, getattr(Migration, name)))
    dying.counts = True
    with Migration(directory / "old", directory / "new") as running:
        running.run()
    return dying.steps
