"""Kill a process at every step of everything that it can be in the middle of.

A step is a statement of SQL that may write, a change of a shared word, an operation on files or the write lock
(tests/support/crash_points.py); what is done meanwhile is a deed (tests/support/crash_scenarios.py). Each death has a directory of its own.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache, SecretError
from diskcache_like.coherence.ring import Ring
from diskcache_like.compat.migration.copy import Migration
from diskcache_like.errors import CorruptDatabaseWarning
from diskcache_like.storage import store
from diskcache_like.storage.redo_log import RedoLog
from diskcache_like.storage.shard import transactions
from tests.support import shard_transactions
from tests.support.crash_points import WHOLE_RECORD
from tests.support.crash_scenarios import (
    AFTER_A_DEATH,
    ALL_MARKING,
    APPENDED,
    DEED_WRITES,
    DEEDS,
    FILLERS,
    LAP_ENDS,
    MARKING_ALL,
    NEW,
    OLD,
    SYNCING,
    UPKEEP,
    cut_off,
    die,
    nurse,
)
from tests.support.integrity import mend, opened
from tests.support.recovery_checks import BYSTANDERS, look_after, look_after_making_room, look_after_opening, prepare
from tests.support.sample_writes import LARGE, MISSING, Write
from tests.support.workers import Worker, fork_worker

from ..proof import WHOLE, CannotRun, Trial, proof
from ..workload import one_layout

Steps = list[str] | None  # of the victim that outlived its deed; None of one that died
Judge = Callable[["Death"], Steps]
NEWEST = b"newest" * 30  # so long that it begins another lap of the ring where what was cut off did not
SUPERSEDE: list[Callable[[Cache, Any], object]] = [
    lambda cache, key: cache.set(key, NEWEST),
    lambda cache, key: cache.set_many({key: NEWEST, "other": 0}),
    lambda cache, key: (cache.clear(), cache.set_many({key: NEWEST, **BYSTANDERS})),
]  # by an append, by a commit of another kind, and by one that forgets what waits
AT_FIRST = 3  # deaths per deed before the next deed has its turn
LEAST = 1 + AT_FIRST  # cases, however short the time
MOST_STEPS = 100_000


class Deed(NamedTuple):
    """What to die at: a deed's name, the flavour of cache, and who prepares it, has it done and judges."""

    name: str
    kind: str
    judge: Judge


class Death(NamedTuple):
    """One death: at the n-th step of a deed, or after all of them if n is -1."""

    trial: Trial
    nurse: Worker
    deed: Deed
    at: int
    directory: Path

    def happen(self) -> Steps:
        steps = die(self.nurse, self.directory, self.deed.kind, self.deed.name, self.at)
        self.trial.count("kills", steps is None)
        return steps


# -- judges -----------------------------------------------------------------------------------------------------------


def judge_write(write: Write, death: Death) -> Steps:
    """See that a write was made or was not, and nothing else changed."""
    directory, kind, name = death.directory, death.deed.kind, death.deed.name
    with opened(directory, kind) as hot, opened(directory, kind, hot_size_limit=0) as cold:
        hot.set_many(BYSTANDERS)
        prepare(hot, write)
        steps = death.happen()
        for shard in hot._shards.stores:
            with shard.locked(0):
                pass  # or Timeout
        if steps is not None:
            assert hot.get(write.key, MISSING) == cold.get(write.key, MISSING) == write.new
        look_after(hot, cold, write, name)
    with opened(directory, kind, strict=True) as again:
        assert again.get("k") == "next"
        assert again.get_many(BYSTANDERS) == BYSTANDERS or name.startswith("cull")
    return steps


def judge_superseded(write: Write, supersede: Callable[[Cache, Any], object], death: Death) -> Steps:
    """See that what replaces a write cut off stays, also in a copy, which believes only what the database points to."""
    directory, kind, key = death.directory, death.deed.kind, write.key
    with opened(directory, kind) as hot:
        hot.set_many(BYSTANDERS)
        prepare(hot, write)
        steps = death.happen()
        assert hot.get(key, MISSING) in ((write.old, write.new) if steps is None else (write.new,))
        supersede(hot, key)
        for number in range(3):
            copied = directory.with_name(f"copy {number}")
            shutil.copytree(directory, copied)
            with opened(copied, kind, strict=True) as copy:
                assert copy.get(key, MISSING) == NEWEST, "a write that was cut off is back in a copy"
                assert copy.get_many(BYSTANDERS) == BYSTANDERS
                mend(copy)
            hot.set("other", number)
        mend(hot)
    return steps


def judge_room(death: Death) -> Steps:
    """See that what was evicted is gone, and the rest whole."""
    directory, kind = death.directory, death.deed.kind
    with opened(directory, kind) as hot, opened(directory, kind, hot_size_limit=0) as cold:
        hot.set_many(FILLERS)
        assert hot.get_many(FILLERS) == FILLERS
        steps = death.happen()
        look_after_making_room(hot, cold, {"k": 2, **FILLERS})
    return steps


def judge_opening(death: Death) -> Steps:
    """See that the next who comes can open what was half opened, and use it."""
    directory, kind, name = death.directory / str(death.at), death.deed.kind, death.deed.name
    death.directory.mkdir(0o700)
    steps = death.happen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptDatabaseWarning)
        with opened(directory, kind) as cache, opened(directory, kind) as other:
            look_after_opening(cache, other, keeps=name == "open again")
    return steps


def judge_across(death: Death) -> Steps:
    """See that a transaction over several shards was made or was not, once anything has been done with the cache."""
    directory, kind = death.directory, death.deed.kind
    with opened(directory, kind) as hot, opened(directory, kind, hot_size_limit=0) as cold:
        shard_transactions.prepare(hot)
        steps = death.happen()
        if death.at % 2:
            completing = [*shard_transactions.COMPLETE.values()]
            completing[death.at // 2 % len(completing)](hot)
        else:
            opened(directory, kind).close()
        state = shard_transactions.found(cold)
        assert shard_transactions.is_whole(state), "half of a transaction"
        assert shard_transactions.found(hot) == state
        assert steps is None or state == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        mend(hot)
    return steps


def judge_completing(death: Death) -> Steps:
    """See that a transaction which was cut off after its decision is whole, though completing it was cut off as well."""
    death.directory.mkdir(0o700)
    cut_off(death.nurse, death.directory / "template", death.deed.kind)
    steps = death.happen()
    with opened(death.directory / str(death.at), death.deed.kind, strict=True) as cache:
        assert shard_transactions.found(cache) == (shard_transactions.AFTER, shard_transactions.REQUEUED)
        mend(cache)
    return steps


def judge_taking_over(death: Death) -> Steps:
    """See that a copy made in use has what waited in the write buffer, though taking that over was cut off."""
    death.directory.mkdir(0o700)
    with opened(death.directory / "template", death.deed.kind) as cache:
        cache.set_many({**BYSTANDERS, "removed": 1})
        for number in range(30):
            cache.set(("small", number % 8), number)
        cache.delete("removed")
        wanted = {key: cache[key] for key in cache.get_many(BYSTANDERS)}
        cache.set(("small", 0), wanted["small", 0])  # so that something waits after the reading
        steps = death.happen()
    with opened(death.directory / str(death.at), death.deed.kind, strict=True) as copy:
        assert copy.get_many([*wanted, "removed"]) == wanted, "a copy lacks what waited in the write buffer"
        assert len(copy) == len(wanted)
        mend(copy)
    return steps


def judge_rotation(death: Death) -> Steps:
    """See that one of the two secrets opens everything, and that the rotation can be finished."""
    directory, kind = death.directory / str(death.at), death.deed.kind
    values: dict[Any, Any] = {("sample", number): ["a sample", number] for number in range(5)}
    values["large"] = LARGE
    with opened(death.directory / "template", kind, secret=OLD) as cache:
        cache.set_many(values)
    steps = death.happen()
    secrets = []
    for secret in (OLD, NEW):
        with suppress(SecretError), opened(directory, kind, secret=secret) as cache:
            assert cache.get_many(values) == values
            assert cache.set("written", secret)
            secrets.append(secret)
    assert secrets, "neither secret opens the cache"
    assert steps is None or secrets == [NEW], "a rotation that came to its end leaves the old secret"
    with opened(directory, kind, secret=secrets[-1]) as cache:
        mend(cache)
        cache.rotate(NEW)
    with suppress(SecretError), opened(directory, kind, secret=OLD):
        raise AssertionError("the old secret opens the cache")
    with opened(directory, kind, secret=NEW, strict=True) as cache:
        assert cache.get_many(values) == values
        assert cache.get("written") == secrets[-1]
        mend(cache)
    return steps


def judge_migration(death: Death) -> Steps:
    """See that the copy goes on, each entry there once, and the old directory as it was."""
    import diskcache

    old, new = death.directory / "old", death.directory / "new"
    wanted: dict[Any, Any] = {
        **{f"key {number}": number for number in range(5)},
        ("a", 1): "x" * 50_000,
        b"b": bytes(50_000),
    }
    with diskcache.Cache(old) as theirs:
        for key, value in wanted.items():
            theirs.set(key, value, tag="tag")
    steps = death.happen()
    if _is_unfinished(new):
        assert steps is None, "the copy is not finished"
        with Migration(old, new) as running:
            summary = running.run()
        assert (summary.copied + summary.present, summary.skipped) == (len(wanted), [])
    with opened(new, death.deed.kind, strict=True) as ours:
        assert {key: ours[key] for key in ours} == wanted
        assert list(ours) == list(wanted)
        mend(ours)
    with diskcache.Cache(old) as theirs:
        assert {key: theirs[key] for key in theirs} == wanted
    return steps


def _is_unfinished(new: Path) -> bool:
    """Tell whether a migration can go on here: nothing of it is there, or its mark still is."""
    begun = {path.name for path in new.iterdir()} if new.exists() else set()
    return begun <= {"migration"} or (new / "migration" / "state.json").exists()


# -- every step -------------------------------------------------------------------------------------------------------

WRITING = [
    *(Deed(name, "one", partial(judge_write, write)) for name, write in {**DEED_WRITES, **UPKEEP}.items()),
    *(Deed(name + MARKING_ALL, "one", partial(judge_write, DEED_WRITES[name])) for name in ALL_MARKING),
    *(
        Deed(name, kind, partial(judge_write, DEED_WRITES[name]))
        for kind in ("fanout", "sealed")
        for name in (
            *("set to a file", "set from a file", "transact", "delete_many", "set in a queue", "pull"),
            *("set with tags", "retag", "evict of several tags"),
        )
    ),
    Deed("make room", "one", judge_room),
    Deed("make room", "sealed", judge_room),
    *(
        Deed(name + SYNCING, "one", partial(judge_write, DEED_WRITES[name]))
        for name in ("set to a file", "set from a file", "transact")
    ),
    *(Deed("across shards", kind, judge_across) for kind in ("fanout", "sealed fanout")),
    Deed("across shards" + SYNCING, "fanout", judge_across),
    *(Deed("open a copy", kind, judge_completing) for kind in ("fanout", "sealed fanout")),
]
OPENING = [
    *(
        Deed(name, kind, judge_opening)
        for name in ("open", "open again")
        for kind in ("one", "fanout", "sealed", "buffered")
    ),
    *(Deed("open a copy", kind, judge_taking_over) for kind in ("buffered", "sealed")),
    Deed("quarantine", "one", judge_opening),
]
APPENDING = [
    *(Deed(name, "buffered", partial(judge_write, write)) for name, write in {**DEED_WRITES, **UPKEEP}.items()),
    *(
        Deed(name + where, "buffered", partial(judge_superseded, DEED_WRITES[name], supersede))
        for name in APPENDED
        for where in ("", *LAP_ENDS)
        for supersede in SUPERSEDE
    ),
    *(
        Deed("set" + where + AFTER_A_DEATH, "buffered", partial(judge_superseded, DEED_WRITES["set"], supersede))
        for where in ("", *LAP_ENDS)
        for supersede in SUPERSEDE
    ),
]
LENGTHY = [
    *(Deed("rotate", kind, judge_rotation) for kind in ("sealed", "sealed fanout")),
    Deed("migrate", "one", judge_migration),
]


class Round:
    """All the deaths there are, those of a deed being known when it was outlived once."""

    def __init__(self, trial: Trial, deeds: Sequence[Deed], only: str) -> None:
        self._trial, self._deeds, self._only = trial, deeds, only
        self._nurse = fork_worker(nurse)
        self._chance = random.Random(trial.seed)
        self.known = self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nurse.dismiss()

    def die(self, number: int, at: int) -> Steps:
        deed = self._deeds[number]
        steps: Steps = None
        # All deaths of a deed have the same grace, and so the same steps.
        with self._trial.judged(number * MOST_STEPS + at + 1, alike=f"deed {number}"):
            steps = deed.judge(Death(self._trial, self._nurse, deed, at, self._trial.fresh()))
        return steps  # noqa: RET504 - `judged` swallows what the judge raises

    def _is_over(self) -> bool:
        findings = self._trial.findings
        return self._trial.over and (findings.cases >= LEAST or bool(findings.violations))

    def deaths(self, number: int) -> Iterator[None]:
        """Outlive a deed, then die at each of its steps."""
        steps = self.die(number, -1) or []
        all_ = [at for at, step in enumerate(steps) if step.startswith(self._only)]
        chosen = list(self._trial.share_of(random.Random(self._trial.seed).sample(all_, len(all_))))
        self.known += len(chosen)
        yield
        for at in chosen:
            self.die(number, at)
            self.done += 1
            yield

    def run(self) -> None:
        """Take a few deaths of each deed, then the others in turn."""
        turns = [self.deaths(number) for number in self._chance.sample(range(len(self._deeds)), len(self._deeds))]
        for pace in itertools.chain([1 + AT_FIRST], itertools.repeat(1)):
            for turn in list(turns):
                for _ in range(pace):
                    if self._is_over():
                        return
                    if next(turn, turn) is turn:
                        turns.remove(turn)
                        break
            if not turns:
                return


def everywhere(trial: Trial, deeds: Sequence[Deed], only: str = "") -> None:
    """Die at every step of the deeds whose name begins with `only`, as far as time permits."""
    with Round(trial, deeds, only) as round_:
        if trial.only is not None:
            number, at = divmod(trial.only, MOST_STEPS)
            round_.die(number, at - 1)
            return
        round_.run()
        if round_.known:
            trial.reach("steps tried", round_.done, round_.known)
        elif trial.part == WHOLE and not trial.findings.violations:  # a part may have none
            trial.violation("nothing has a step to die at")


def lengthy(trial: Trial) -> None:
    """Die at every step of what takes many transactions."""
    if importlib.util.find_spec("diskcache") is None:
        raise CannotRun("diskcache is not installed, to migrate from: pip install diskcache")
    everywhere(trial, LENGTHY)


@proof(
    "crash-control-settling",
    3,
    "nobody checks whether the last holder of the lock died",
    share=0.3,
    finds=r"AssertionError: .*: count says \d+ entries, there are ",
)
def unsettled(trial: Trial) -> None:
    for module in (transactions, store):
        module._SETTLED = module._TICK  # type: ignore[attr-defined]
    everywhere(trial, [deed for deed in WRITING if deed.name == "add"], "after INSERT")


@proof(
    "crash-control-append",
    3,
    "nobody ends the append that a dead writer began",
    share=0.3,
    finds="AssertionError: a write that was cut off is back in a copy",
)
def forgetful(trial: Trial) -> None:
    Ring.mend = lambda self: None  # type: ignore[method-assign]
    everywhere(trial, [deed for deed in APPENDING if deed.name == "set"], WHOLE_RECORD)


@proof(
    "crash-control-redo-log",
    3,
    "a transaction over several shards is committed without a redo log",
    share=0.3,
    finds="AssertionError: half of a transaction",
)
def undecided(trial: Trial) -> None:
    RedoLog.decide = lambda self, txns: []  # type: ignore[method-assign]
    deeds = [deed for deed in WRITING if deed.name == "across shards" and deed.kind == "fanout"]
    with one_layout():  # so that each time it has the same steps
        everywhere(trial, deeds, "after COMMIT")


@proof(
    "crash-control-fault",
    3,
    "writers die of an error of their own before they are killed",
    share=0.3,
    finds="AssertionError: a victim failed: it ended by SIGSEGV before its time",
)
def fault_prone(trial: Trial) -> None:

    def die_of_a_fault(*_: object) -> list[str]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
        return []

    DEEDS["add"] = die_of_a_fault
    everywhere(trial, [deed for deed in WRITING if deed.name == "add"])


proof(
    "crash-everywhere",
    3,
    "kill -9 before and after each step of each kind of write, of upkeep and of closing",
    share=3.0,
    bulk=14.5,
    parallel=True,
)(partial(everywhere, deeds=WRITING))
proof(
    "crash-appending",
    3,
    "the same in the write buffer, also where a lap of its ring ends and after the death of another writer there;"
    " then the key is written once more, and what a restart would find is looked at",
    share=2.0,
    bulk=6.0,
    parallel=True,
)(partial(everywhere, deeds=APPENDING))
proof(
    "crash-opening",
    3,
    "the same while a cache is made, is opened after a restart of the machine or as a copy that takes over what"
    " waited, or has its damaged database quarantined",
    bulk=3.0,
    parallel=True,
)(partial(everywhere, deeds=OPENING))
proof(
    "crash-lengthy",
    3,
    "the same in rotate() and a migration, which are then resumed",
    share=1.5,
    bulk=2.5,
    parallel=True,
)(lengthy)
