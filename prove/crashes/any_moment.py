"""Kill processes at any moment: what was acknowledged is there, whole, and nobody is hindered."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache
from diskcache_like.disk import file_io
from diskcache_like.storage.shard.transactions import Transactions
from diskcache_like.storage.upkeep import checkpoints
from diskcache_like.storage.upkeep.checkpoints import Checkpointer
from tests.support.integrity import SMALL, known_files, mend, opened, value_files
from tests.support.oracle_logs import KEYS, Change, change_set, look, verify, version_of, work
from tests.support.workers import Forked, Link, fork_worker

from ..proof import Proof, Trial
from .every_step import PROOFS as STEP_PROOFS
from .lock_owners import PROOFS as LOCK_PROOFS
from .lock_owners import STALL, go_on, hear_from

LEAST, KILLS = 3, 12  # in a case, beside the last ones
BURST = 100  # reads of the one who reads all the time, before
PAUSE = 0.0005  # seconds of leaving the processor to the writers
LARGEST = 3 << 20  # bytes of an emptied database and its WAL, however often its writers were killed

Breakage = Callable[[], None]


class Scene(NamedTuple):
    """What is written to: the flavour of cache, its settings, and how many write."""

    kind: str
    settings: dict[str, Any]
    writers: int = 4
    changes: Sequence[Change] = ()  # all
    breakage: Breakage = lambda: None  # what is wrong with the writers' cache

    @property
    def evicting(self) -> bool:
        """Whether entries may go for room."""
        return bool(self.settings["eviction_policy"] != "none")

    @property
    def durability(self) -> str:
        """What its writes survive."""
        return str({**SMALL, **self.settings}["durability"])

    def open(self, directory: Path, **settings: Any) -> Cache:
        """Open the cache."""
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
        self._writers: dict[int, Forked] = {}

    def __enter__(self) -> Self:
        self._reader.hear()
        for owner in range(self._scene.writers):
            self.start(owner)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in (self._reader, *self._writers.values()):
            worker.dismiss()
        self._bystander.close()

    def start(self, owner: int) -> None:
        """Start a writer, the first one or in a dead one's place."""
        seed, scene = self._chance.getrandbits(40), self._scene
        arguments = (owner, seed, self.directory, scene.kind, self._diaries[owner], scene.settings, scene.changes)

        def write(link: Link) -> None:
            scene.breakage()
            work(link, *arguments)

        self._writers[owner] = worker = fork_worker(write)
        worker.tell()  # not to wait for anybody else when it is ready

    def kill(self, owners: Sequence[int]) -> None:
        """Kill writers at once, at some moment within their next few changes, and see that nothing is amiss."""
        workers = [self._writers.pop(owner) for owner in owners]
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
        for owner, worker in self._writers.items():
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
        self.kill([*self._writers])
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


def drawn(chance: random.Random, scenes: Sequence[Scene]) -> Scene:
    """Return one of the scenes; each durability is as likely as the others, however many scenes have it."""
    durability = chance.choice(sorted({scene.durability for scene in scenes}))
    return chance.choice([scene for scene in scenes if scene.durability == durability])


def anywhen(trial: Trial, scenes: Sequence[Scene], least: int = LEAST) -> None:
    """Kill one writer, or two at once, again and again; `least` times in a case, however short the time."""

    def case(chance: random.Random) -> None:
        checkpoints.CHECKPOINT_BYTES = 300_000
        with Crowd(trial, chance, drawn(chance, scenes)) as crowd:
            for number in range(KILLS):
                if number >= least and trial.over and trial.only is None:
                    break
                at_once = min(chance.choice((1, 1, 1, 2)), len(crowd._writers))
                owners = chance.sample(sorted(crowd._writers), at_once)
                crowd.kill(owners)
                for owner in owners:
                    crowd.start(owner)
            left = crowd.end()
            assert left <= LARGEST, f"the emptied databases take {left:,} bytes"
            trial.most("largest emptied database in bytes", left)

    trial.repeat(case)


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


LOST = "AssertionError: keys of 0: neither before nor after the call that was killed"


def broken(breakage: Breakage) -> Callable[[Trial], None]:
    """Return a run against a cache that is broken thus."""
    return partial(anywhen, scenes=[Scene("one", KEEPS, 1, (change_set,), breakage)], least=KILLS)


PROOFS: dict[str, Proof] = {
    "crash-anywhen": Proof(
        3,
        "kill -9 of one or two of 3 to 4 writers at random moments, Cache and FanoutCache: nothing lost, torn, stale or leaked",
        partial(anywhen, scenes=SCENES),
        share=3.0,
        bulk=17.0,
    ),
    "crash-anywhen-coded": Proof(
        3, "the same, encrypted or compressed", partial(anywhen, scenes=CODED_SCENES), share=2.0, bulk=5.0
    ),
    **STEP_PROOFS,
    **LOCK_PROOFS,
    "crash-control-commit": Proof(
        3, "writes acknowledged before they are committed", broken(commit_late), share=0.3, finds=LOST
    ),
    "crash-control-files": Proof(
        3, "rows committed before their value files are whole", broken(fill_files_late), share=0.3, finds=LOST
    ),
}
