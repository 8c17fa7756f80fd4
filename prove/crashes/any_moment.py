"""Kill processes at any moment: what was acknowledged is there, whole, and nobody is hindered.

The same writers, unharmed, show that commits and checkpoints are kept apart: a commit that meets a checkpoint in SQLite
before 3.51.3 may undo what was committed earlier, and there they meet in a SQLite in which that window was widened.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache, CorruptDatabaseWarning
from diskcache_like.disk import file_io
from diskcache_like.storage.shard.transactions import Transactions
from diskcache_like.storage.upkeep import checkpoints
from diskcache_like.storage.upkeep.checkpoints import Checkpointer
from tests.support.integrity import SMALL, known_files, mend, opened, value_files
from tests.support.oracle_logs import KEYS, Change, change_set, look, verify, version_of, work
from tests.support.workers import Forked, Link, fork_worker, forked

from ..children import Words
from ..proof import CannotRun, Trial, proof, repeated
from ..sqlite_builds import MARK, library
from .lock_owners import STALL, go_on, hear_from

LEAST, KILLS = 3, 12  # in a case, beside the last ones
BURST = 100  # reads of the one who reads all the time, before
PAUSE = 0.0005  # seconds of leaving the processor to the writers
LARGEST = 3 << 20  # bytes of an emptied database and its WAL, however often its writers were killed
BETWEEN = 300_000  # bytes of WAL between two checkpoints
VERSION = "3.51.1"  # of SQLite, the last one here that has the WAL-reset bug
MEETING = (1.0, 20.0)  # seconds that commits and checkpoints of a case meet, at least and at most
BLIND = 10.0  # seconds that the control may search


class Scene(NamedTuple):
    """What is written to: the flavour of cache, its settings, and how many write."""

    kind: str
    settings: dict[str, Any]
    writers: int = 4
    changes: Sequence[Change] = ()  # all
    breakage: Callable[[], None] = lambda: None  # what is wrong with the writers' cache
    between: int = BETWEEN

    @property
    def evicting(self) -> bool:
        """Whether entries may go for room."""
        return bool(self.settings["eviction_policy"] != "none")

    @property
    def durability(self) -> str:
        """What its writes survive."""
        return str({**SMALL, **self.settings}["durability"])

    def open(self, directory: Path, **settings: Any) -> Cache:
        return opened(directory, self.kind, **{**self.settings, **settings})


KEEPS: dict[str, Any] = {"eviction_policy": "none"}
FULL: dict[str, Any] = {"eviction_policy": "least-recently-used", "size_limit": 700_000}
SCENES = [
    Scene("one", KEEPS),
    *(
        Scene(kind, {**KEEPS, "durability": durability}, writers=3)
        for kind in ("one", "fanout")
        for durability in ("system", "power")
    ),
    Scene("fanout", KEEPS),
    Scene("one", FULL),
    Scene("fanout", {**FULL, "eviction_policy": "least-recently-stored"}),
]
CODED_SCENES = [Scene(kind, settings) for kind in ("sealed", "sealed fanout", "packed") for settings in (KEEPS, FULL)]


class Crowd:
    """Writers who are killed and replaced while others look on: this process, and one that reads all the time."""

    def __init__(self, trial: Trial, chance: random.Random, scene: Scene) -> None:
        self._trial, self._chance, self._scene = trial, chance, scene
        self.directory = trial.fresh()
        self._diaries = [self.directory.with_name(f"diary {owner}") for owner in range(scene.writers)]
        self._reader = fork_worker(partial(read_on, scene=scene, directory=self.directory))
        self._bystander = scene.open(self.directory, timeout=STALL)
        self.writers: dict[int, Forked] = {}

    def __enter__(self) -> Self:
        self._reader.hear()
        for owner in range(self._scene.writers):
            self.start(owner)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._reader, *self.writers.values()):
            worker.dismiss()
        self._bystander.close()

    def start(self, owner: int) -> None:
        """Start a writer, the first one or in a dead one's place."""
        seed, scene = self._chance.getrandbits(40), self._scene
        arguments = (owner, seed, self.directory, scene.kind, self._diaries[owner], scene.settings, scene.changes)

        def write(link: Link) -> None:
            scene.breakage()
            work(link, *arguments, scene.between)

        self.writers[owner] = worker = fork_worker(write)
        worker.tell()  # not to wait for anybody else when it is ready

    def kill(self, owners: Sequence[int]) -> None:
        """Kill writers at once, at some moment within their next few changes, and see that nothing is amiss."""
        workers = [self.writers.pop(owner) for owner in owners]
        try:
            for _ in range(self._chance.randrange(4)):  # with none it may be killed while it opens the cache
                hear_from(workers[0], f"writer {owners[0]}")
            for _ in range(self._chance.randrange(100)):
                workers[0].link.asked()
            for worker in workers:
                worker.strike()
            for worker in workers:
                worker.fall()
        finally:
            for worker in workers:
                worker.dismiss()
        self._trial.count("kills", len(workers))
        self._trial.count(f"kills under {self._scene.durability}", len(workers))
        if len(self._bystander._shards.stores) > 1:
            with self._bystander.transact():
                pass  # who takes the locks completes what was cut off
        if self._chance.random() < 0.25:  # else the next are killed while they come upon what these have left
            self._all_go_on()
        for owner in owners:
            self._verify(owner, look(self._bystander, owner))
            self._reader.tell(owner)
            self._verify(owner, hear_from(self._reader, "the reader"))

    def _all_go_on(self) -> None:
        began = time.monotonic()
        for owner, worker in self.writers.items():
            go_on(worker, f"writer {owner}")
        self._trial.most("longest until all survivors went on", 1000 * (time.monotonic() - began), " ms")

    def _verify(self, owner: int, found: dict[int, int]) -> None:
        calls = verify(found, owner, self._diaries[owner], self._scene.evicting)
        self._trial.count("acknowledged", calls)

    def end(self) -> int:
        """Kill all who are left and see that the cache is as good as one that nobody was killed at.

        Returns the bytes that its databases take when it has been emptied.
        """
        self._all_go_on()
        self.kill([*self.writers])
        with self._scene.open(self.directory, strict=True, timeout=0) as cache:
            assert cache.set("the lock", "is free")
            for owner in range(self._scene.writers):
                self._verify(owner, look(cache, owner))
            mend(cache)
            assert cache.get("the lock") == self._bystander.get("the lock")
            self._reader.tell()
            self._trial.count("reads of survivors", self._reader.result())
            cache.clear()
            cache.check(fix=True)
            assert value_files(self.directory) == known_files(cache) == set(), "value files stay of an emptied cache"
        return sum(path.stat().st_size for path in self.directory.rglob("cache*.db*"))


def read_on(link: Link, scene: Scene, directory: Path) -> int:
    """Read everything all the time, and what an owner has when told to; return how often.

    A version that was seen is never followed by an older one.
    """
    chance = random.Random(0)
    seen: dict[tuple[int, int], int] = {}
    reads = 0
    with scene.open(directory) as cache:
        link.tell()
        while True:
            if link.connection.poll(PAUSE if reads % BURST == 0 else 0):
                asked = link.hear()
                if asked is None:
                    return reads
                link.tell(look(cache, asked))
            owner, key = chance.randrange(scene.writers), chance.randrange(KEYS)
            for _ in range(2):
                version = version_of(cache.get((owner, key)), owner, key)
                assert version == 0 or version >= seen.get((owner, key), 0), f"a stale version of {owner, key}"
                seen[owner, key] = max(version, seen.get((owner, key), 0))
                reads += 1


def kill_anywhen(trial: Trial, scenes: Sequence[Scene], chance: random.Random, least: int = LEAST) -> None:
    """Kill one writer, or two at once, again and again; `least` times, however short the time."""
    checkpoints.CHECKPOINT_BYTES = BETWEEN
    durability = chance.choice(sorted({scene.durability for scene in scenes}))  # each as likely as the others
    with Crowd(trial, chance, chance.choice([scene for scene in scenes if scene.durability == durability])) as crowd:
        for number in range(KILLS):
            if number >= least and trial.over and trial.only is None:
                break
            owners = chance.sample(sorted(crowd.writers), min(chance.choice((1, 1, 1, 2)), len(crowd.writers)))
            crowd.kill(owners)
            for owner in owners:
                crowd.start(owner)
        left = crowd.end()
        assert left <= LARGEST, f"the emptied databases take {left:,} bytes"
        trial.most("largest emptied database in bytes", left)


@repeated(
    "crash-anywhen",
    3,
    "kill -9 of one or two of 3 to 4 writers at random moments, Cache and FanoutCache: nothing lost, torn, stale"
    " or leaked",
    share=3.0,
    bulk=17.0,
)
def anywhen(trial: Trial, chance: random.Random) -> None:
    kill_anywhen(trial, SCENES, chance)


@repeated("crash-anywhen-coded", 3, "the same, encrypted or compressed", share=2.0, bulk=5.0)
def anywhen_coded(trial: Trial, chance: random.Random) -> None:
    kill_anywhen(trial, CODED_SCENES, chance)


# -- commits that meet checkpoints ------------------------------------------------------------------------------------


def keep_house(link: Link, scene: Scene, directory: Path, words: Words) -> None:
    """Checkpoint all the time, and close now and then, which checkpoints if nobody else is there."""
    scene.breakage()
    chance = random.Random(0)
    while not words[0]:
        with scene.open(directory) as cache:
            for _ in range(chance.randrange(20)):
                for store in cache._shards.stores:
                    with store.locked(None):
                        store.checkpointer.checkpoint(shrink=chance.random() < 0.5)
                    words[1] += 1


def meet(trial: Trial, scene: Scene, chance: random.Random, least: float = MEETING[0]) -> None:
    """Let processes commit, checkpoint and close as often as they can."""
    with sqlite3.connect(":memory:") as connection:
        ((used,),) = connection.execute("SELECT sqlite_source_id()")
    connection.close()
    if not used.startswith(MARK):
        raise CannotRun(
            f"needs a Python whose sqlite3 module loads a shared library: this one has SQLite {sqlite3.sqlite_version}"
            " in it, or was not started through python -m prove"
        )
    words = Words(2)  # the end, and how many checkpoints were made
    with Crowd(trial, chance, scene) as crowd:
        house = partial(keep_house, scene=scene, directory=crowd.directory, words=words)
        with forked(house) as first, forked(house) as second:
            deadline = time.monotonic() + max(min(trial.left, MEETING[1]), least)
            while time.monotonic() < deadline:
                for worker in (first, second, *crowd.writers.values()):
                    while worker.link.asked():
                        worker.hear()
                time.sleep(0.01)
            words[0] = 1
            for worker in (first, second):
                worker.result()
        trial.count("checkpoints", words[1])
        crowd.end()


def widened(_: Path) -> Path:
    return library(VERSION, widened=True)


@repeated(
    "wal-reset",
    3,
    f"processes commit, checkpoint and close with SQLite {VERSION} in which the window of its WAL-reset bug is wider",
    preload=widened,
)
def meeting(trial: Trial, chance: random.Random) -> None:
    meet(trial, Scene(chance.choice(("one", "fanout")), KEEPS, between=chance.choice((1, 40_000, BETWEEN))), chance)


# -- broken on purpose ------------------------------------------------------------------------------------------------


def commit_late() -> None:
    """Commit with every seventh write only."""
    take, settle, checkpoint = Transactions.take, Transactions.settle, Checkpointer.checkpoint
    writes = iter(range(1 << 60))

    def taken(self: Transactions, timeout: float | None, removes_expired: bool = True) -> None:
        take(self, timeout, removes_expired)
        connection = self.connection.open()
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")

    def settled(self: Transactions) -> None:
        if next(writes) % 7 == 6:
            self.connection.open().commit()
        settle(self)

    def committed_first(self: Checkpointer, shrink: bool = False) -> None:
        self._connection.open().commit()
        checkpoint(self, shrink)

    Transactions.take, Transactions.settle = taken, settled  # type: ignore[method-assign]
    Checkpointer.checkpoint = committed_first  # type: ignore[method-assign]


def fill_files_late() -> None:
    """Make a value file empty before its row is written, and fill it when the next one is made."""
    pending: list[tuple[str, bytes]] = []

    def write(root: str, name: str, chunks: Any, sync: bool) -> int:
        for path, content in pending:
            Path(path).write_bytes(content)
        content = b"".join(chunks)
        pending[:] = [(os.path.join(root, name), content)]
        file_io.create(root, name).close()
        return len(content)

    file_io.write = write


def checkpoint_without_lock() -> None:
    """Give the write lock back for the time of each checkpoint."""
    warnings.simplefilter("ignore", CorruptDatabaseWarning)
    checkpoint = Checkpointer.checkpoint

    def unlocked(self: Checkpointer, shrink: bool = False) -> None:
        self._shard.lock.release()
        try:
            checkpoint(self, shrink)
        finally:
            self._shard.lock.acquire()

    Checkpointer.checkpoint = unlocked  # type: ignore[method-assign]


LOST = "AssertionError: keys of 0: neither before nor after the call that was killed"
for _name, _what, _breakage in (
    ("commit", "writes acknowledged before they are committed", commit_late),
    ("files", "rows committed before their value files are whole", fill_files_late),
):
    _scene = Scene("one", KEEPS, 1, (change_set,), _breakage)
    proof(f"crash-control-{_name}", 3, _what, share=0.3, finds=LOST)(
        lambda trial, scene=_scene: trial.repeat(partial(kill_anywhen, trial, [scene], least=KILLS))
    )


# What the bug does: commits are undone, or SQLite meets pages that do not belong together.
@repeated(
    "wal-reset-unlocked",
    3,
    "the same with checkpoints made without the write lock",
    share=0.3,
    finds=r"AssertionError: (keys of |a torn value|a stale version|nobody else |an entry is found|the queue of )"
    r"|.*CorruptDatabase: ",
    preload=widened,
)
def meeting_unlocked(trial: Trial, chance: random.Random) -> None:
    scene = Scene("one", KEEPS, breakage=checkpoint_without_lock, between=chance.choice((40_000, BETWEEN)))
    meet(trial, scene, chance, BLIND)
