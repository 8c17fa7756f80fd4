"""Crash: `kill -9` at any instant loses nothing that was acknowledged, tears nothing, and hinders nobody.

Two kinds of test. In the first a process dies at every single step of a write, an opening or an upkeep, one after the
other, while handles in this process look on. In the second three processes work as fast as they can and are killed
whenever it pleases; each has written down outside the cache, before and after every call, what it was about to do.

DISKCACHE_LIKE_KILLS is the number of kills of the second kind (60).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import signal
import sqlite3
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, EmptyDirWarning, FanoutCache, UnknownFileWarning, files
from diskcache_like.coherence import board, generations, words
from diskcache_like.coherence.lock import WriteLock
from diskcache_like.errors import CorruptDatabaseWarning
from diskcache_like.storage import connection, room, shards, writing

from .processes import LARGE, MISSING, WRITES, Crew, Link, Worker, Write, ready

KILLS = int(os.environ.get("DISKCACHE_LIKE_KILLS", "60"))
SMALL = {"durability": "process", "generation_slots": 16}
BYSTANDERS = {**{("small", number): number for number in range(20)}, ("large", 1): LARGE, ("large", 2): LARGE}


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


def opened(directory: Path, kind: str = "one", **settings: Any) -> Cache:
    if kind == "fanout":
        return FanoutCache(directory, shards=2, timeout=5, **{**SMALL, **settings})
    return Cache(directory, timeout=5, **{**SMALL, **settings})


def value_files(directory: Path) -> set[str]:
    """Return every value file in the directory, as names relative to their shard."""
    return {name for name, _ in files.walk(str(directory)) if name.endswith(files.SUFFIX)}


def known_files(cache: Cache) -> set[str]:
    """Return every value file that a row or the trash knows."""
    found = set()
    for store in cache._shards.stores:
        prefix = "" if store.directory == cache.directory else f"{Path(store.directory).name}/"
        for (column,) in store.select("SELECT file FROM entry WHERE file IS NOT NULL UNION SELECT file FROM trash"):
            found.add(prefix + files.from_column(column))
    return found


def mend(cache: Cache) -> None:
    """Check and fix; nothing but leftover files may be wrong, and nothing may be afterwards."""
    for problem in cache.check(fix=True):
        assert problem.category in (UnknownFileWarning, EmptyDirWarning), problem.message
    assert [str(problem.message) for problem in cache.check()] == []
    assert value_files(Path(cache.directory)) == known_files(cache)
    assert len(cache) == len(list(cache))


# -- dying at each step -----------------------------------------------------------------------------------------------


class Death:
    """Kill this process at its n-th step; `steps` tells which there were."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.steps: list[str] = []
        self.counts = False

    def __call__(self, step: str) -> None:
        if self.counts:
            if len(self.steps) == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps.append(step)

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

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        return _mortal(super().execute, statement, *args)

    def executemany(self, statement: str, *args: Any) -> sqlite3.Cursor:
        return _mortal(super().executemany, statement, *args)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(MortalCursor)

    def close(self) -> None:
        death("before close of a connection")
        super().close()


class MortalCursor(sqlite3.Cursor):
    """A cursor likewise."""

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
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


def make_mortal(at: int) -> Death:
    """Have this process die at its n-th step once `counts` is set: of SQL, of shared words, of files, of the lock."""
    global death
    death = Death(at)
    raw, fill, write_all = words.raw, words.fill, files._write_all
    names = itertools.cycle(("header", "slot"))

    def mortal_fill(target: Any, value: int) -> None:
        real = raw(getattr(target, "real", target))
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
        (connection.sqlite3, "connect", functools.partial(sqlite3.connect, factory=MortalConnection)),
        (words, "over", lambda view, _: MortalWords(view, next(names))),
        (words, "raw", lambda target: raw(getattr(target, "real", target))),
        (words, "fill", mortal_fill),
        (files, "_write_all", half_and_half),
    ]
    for owner, name in (
        (files, "create"),
        (files, "remove"),
        (board.Board, "post"),
        (board.Board, "clear"),
        (WriteLock, "release"),
        (WriteLock, "retire"),
        (generations, "open_private"),
        (generations, "_allocate"),
        (generations, "_map"),
        (shards.os, "makedirs"),
    ):
        patches.append((owner, name, death.around(name, getattr(owner, name))))
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    return death


def nurse(link: Link) -> None:
    """Fork victims: hear what each is to do and when to die, tell None if it died, else the steps that it took."""
    while (task := link.hear()) is not None:
        directory, kind, name, at = task
        reading, writing_ = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.write(writing_, "\n".join(DEEDS[name](directory, kind, make_mortal(at))).encode())
                status = 0
            except BaseException as error:
                os.write(writing_, repr(error).encode())
            finally:
                os._exit(status)
        os.close(writing_)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            link.tell(None)
        elif status:
            link.tell(told)
        else:
            link.tell(told.splitlines())


def victims(nurse_: Worker, directory: Path, kind: str, name: str) -> Iterator[int]:
    """Yield after each death: at the first step, at the second, … until a victim has outlived the deed."""
    for at in itertools.count():
        nurse_.tell((directory, kind, name, at))
        steps = nurse_.hear()
        if steps is not None:
            assert isinstance(steps, list), f"a victim failed: {steps}"
            assert len(steps) == at > 2, "the deed has no steps to die at"
            return
        yield at


Deed = Callable[[Path, str, Death], list[str]]
DEEDS: dict[str, Deed] = {}


def deed(name: str) -> Callable[[Deed], Deed]:
    """Register something that victims do; it returns the steps it took."""

    def register(function: Deed) -> Deed:
        DEEDS[name] = function
        return function

    return register


def _write(write: Write, all_slots: bool, directory: Path, kind: str, dying: Death) -> list[str]:
    if all_slots:
        writing.ALL_SLOTS = -1  # every change marks all slots, as one of thousands of keys does
    cache = opened(directory, kind)
    cache.get("anything")
    dying.counts = True
    with contextlib.suppress(ZeroDivisionError):
        write.do(cache)
    dying.counts = False
    cache.close()
    return dying.steps


for _name, _each in WRITES.items():
    DEEDS[_name] = functools.partial(_write, _each, False)
    DEEDS[f"{_name}, marking all slots"] = functools.partial(_write, _each, True)

ALL_MARKING = ["delete", "touch", "evict", "clear", "delete_many", "set_many"]


@deed("checkpoint")
def do_checkpoint(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    room.CHECKPOINT_BYTES = -1
    room.WAL_LIMIT = -1
    for store in cache._shards.stores:
        store.header[generations.Header.MARK] = 0
    dying.counts = True
    cache.set("k", 2)
    assert any("checkpoint" in step for step in dying.steps)
    return dying.steps


@deed("sweep")
def do_sweep(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    cache.set(("large", "replaced"), LARGE)
    cache.set(("large", "replaced"), 1)
    room.GRACE = -1.0
    dying.counts = True
    for number in (2, 2, 2):  # one round dates and unlinks, the next drops the row
        for store in cache._shards.stores:
            store.header[generations.Header.MARK] = 0
        cache.set("k", number)
    assert "after remove" in dying.steps
    return dying.steps


@deed("flush")
def do_flush(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    cache.set(("large", "replaced"), LARGE)
    cache.set(("large", "replaced"), 1)
    room.GRACE = -1.0
    dying.counts = True
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
        store.header[generations.Header.NEXT_EXPIRE] = 0
    dying.counts = True
    cache.set("k", 2)
    return dying.steps


def survive(nurse_: Worker, directory: Path, kind: str, name: str, write: Write) -> int:
    """Let victims do `name` and die at each step; after each death all must be well. Returns the number of deaths."""
    deaths = 0
    with opened(directory, kind) as hot, opened(directory, kind, hot_size_limit=0) as cold:
        hot.set_many(BYSTANDERS)
        steps = victims(nurse_, directory, kind, name)
        while True:
            hot.delete(write.key)
            write.prepare(hot)
            for _ in range(2):
                assert hot.get(write.key, MISSING) == write.old
                assert hot.get_many(BYSTANDERS) == BYSTANDERS
            if next(steps, None) is None:
                break
            deaths += 1
            look_after(hot, cold, write, spares_nobody=name.startswith(("clear", "cull")))
        assert hot.get(write.key, MISSING) == write.new
    with opened(directory, kind, strict=True) as again:
        assert again.get(write.key, MISSING) == write.new
    return deaths


def look_after(hot: Cache, cold: Cache, write: Write, spares_nobody: bool) -> None:
    """See that nothing is stale, torn, locked or left over after a death."""
    value = cold.get(write.key, MISSING)
    assert value in (write.old, write.new)
    for cache in (hot, hot, cold):
        assert cache.get(write.key, MISSING) == value
        found = cache.get_many(BYSTANDERS)
        assert found.items() <= BYSTANDERS.items() if spares_nobody else found == BYSTANDERS
    hot.set("k", "next")  # the lock is free, and the slot settles
    assert cold.get("k") == hot.get("k") == "next"
    store = hot._shards.of(hot._locate("k")[1])
    assert not store.slots[hot._locate("k")[1] % store.slot_prime] & 1
    hot.set_many(BYSTANDERS)
    mend(hot)


@pytest.fixture(scope="module")
def nurse_() -> Iterator[Worker]:
    with Crew() as crew:
        yield crew.start(nurse)


@pytest.mark.parametrize("name", [*WRITES, *(f"{each}, marking all slots" for each in ALL_MARKING)])
def test_a_writer_may_die_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    write = WRITES[name.removesuffix(", marking all slots")]
    assert survive(nurse_, tmp_path / "cache", "one", name, write) >= 5


@pytest.mark.parametrize("name", ["set to a file", "transact", "delete_many"])
def test_a_writer_of_several_shards_may_die_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "fanout", name, WRITES[name]) >= 5


UPKEEP = {
    "checkpoint": WRITES["set"],
    "sweep": WRITES["set"],
    "flush": WRITES["set"],
    "close": WRITES["set"],
    "expired entries go with a write": WRITES["set"]._replace(
        prepare=lambda cache: [cache.set("k", 1), cache.set(("large", "expiring"), LARGE, expire=500)]
    ),
}


@pytest.mark.parametrize("name", UPKEEP)
def test_upkeep_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path, name: str) -> None:
    assert survive(nurse_, tmp_path / "cache", "one", name, UPKEEP[name]) >= 4


# -- making room ------------------------------------------------------------------------------------------------------

FILLERS = [("filler", number) for number in range(30)]


@deed("make room")
def do_make_room(directory: Path, kind: str, dying: Death) -> list[str]:
    cache = opened(directory, kind)
    cache.reset("size_limit", cache.volume() // 2, update=False)
    dying.counts = True
    cache.set("k", 2)
    return dying.steps


def test_making_room_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path) -> None:
    """Any entry may be evicted; none may be torn or stale, and what is left is what the count says."""
    with opened(tmp_path / "cache") as hot, opened(tmp_path / "cache", hot_size_limit=0) as cold:
        fillers = {key: LARGE if key[1] % 3 == 0 else key[1] for key in FILLERS}
        hot.set_many(fillers)
        for _ in victims(nurse_, tmp_path / "cache", "one", "make room"):
            for key in ("k", *FILLERS):
                value = cold.get(key)
                assert hot.get(key) == value == hot.get(key)
                assert value in (None, fillers.get(key, 2))
            assert hot.set("after", 1)
            mend(hot)
            hot.set_many(fillers)
            hot.delete("k")
            assert hot.get_many(FILLERS) == fillers


# -- opening ----------------------------------------------------------------------------------------------------------


@deed("open")
def do_open(directory: Path, kind: str, dying: Death) -> list[str]:
    dying.counts = True
    opened(directory / str(dying._at), kind).set("k", 1)
    return dying.steps


@deed("open again")
def do_open_again(directory: Path, kind: str, dying: Death) -> list[str]:
    """Open a directory from before the machine was started again, whose generations have to be renewed."""
    directory /= str(dying._at)
    cache = opened(directory, kind)
    cache.set("k", 1)
    for store in cache._shards.stores:
        store.header[generations.Header.BOOT] = 1
    cache.close()
    dying.counts = True
    opened(directory, kind).set("other", 1)
    return dying.steps


@deed("set aside")
def do_set_aside(directory: Path, kind: str, dying: Death) -> list[str]:
    """Meet a garbled database."""
    directory /= str(dying._at)
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


@pytest.mark.parametrize(
    ("kind", "name"),
    [("one", "open"), ("one", "open again"), ("one", "set aside"), ("fanout", "open"), ("fanout", "open again")],
)
def test_opening_may_be_cut_short_at_any_step(nurse_: Worker, tmp_path: Path, kind: str, name: str) -> None:
    deaths = 0
    for at in victims(nurse_, tmp_path, kind, name):
        deaths += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CorruptDatabaseWarning)
            with opened(tmp_path / str(at), kind) as cache, opened(tmp_path / str(at), kind) as other:
                assert len(cache._shards.stores) == (2 if kind == "fanout" else 1)
                if name == "open again":
                    assert cache.get("k") == 1
                assert cache.get("k") in (None, 1)
                cache.set("k", 2)
                assert other.get("k") == cache.get("k") == 2
                assert other.incr("k") == 3 == cache.get("k")
                for store in cache._shards.stores:
                    ((mode,),) = store.select("PRAGMA journal_mode")
                    ((vacuum,),) = store.select("PRAGMA auto_vacuum")
                    assert (mode, vacuum) == ("wal", 2)
                mend(cache)
                for store in cache._shards.stores:
                    odd = sum(generation & 1 for generation in store.slots)
                    assert odd <= 1, "slots stay odd that nobody is writing"
    assert deaths >= 12


# -- dying at any moment ----------------------------------------------------------------------------------------------

VALUE = re.compile(rb"(\d+) (\d+) (\d+) (\d+) ")
KEYS = 12


def make_value(owner: int, key: int, version: int) -> bytes:
    """Return a value that says whose it is and which version, of a size that differs, with a checksum at its end."""
    size = (20, 300, 5_000, 33_000, 120_000)[(version + key) % 5]
    body = b"%d %d %d %d " % (owner, key, version, size) + bytes((version + each) & 0xFF for each in range(64)) * (
        size // 64
    )
    return body + zlib.crc32(body).to_bytes(4, "little")


def version_of(value: bytes | None, owner: int, key: int) -> int:
    """Return the version of a value, 0 for none; fail for one that is torn or another key's."""
    if value is None:
        return 0
    found = VALUE.match(value)
    assert found, f"not a value of ours: {value[:40]!r}"
    assert (int(found[1]), int(found[2])) == (owner, key)
    assert value == make_value(owner, key, int(found[3])), "a torn value"
    return int(found[3])


State = dict[int, int]  # version of each key that exists


class Diary:
    """What a worker was about to do and what was acknowledged, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def intend(self, changes: State) -> None:
        """Write down the versions (0: gone) that a call is about to give to keys."""
        os.write(self._descriptor, " ".join(f"{key}:{version}" for key, version in changes.items()).encode() + b"\n")

    def acknowledge(self, done: bool = True) -> None:
        """Write down that the call has returned; or that it was to change nothing."""
        os.write(self._descriptor, b"done\n" if done else b"undone\n")


def read_diary(path: Path) -> tuple[State, State]:
    """Return what has to be there, and what the one call that was not acknowledged may have changed."""
    state: State = {}
    intended: State = {}
    for line in path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n"):
            break
        if line == "done\n":
            state.update(intended)
            intended = {}
        elif line == "undone\n":
            intended = {}
        else:
            intended = {int(key): int(version) for key, _, version in (each.partition(":") for each in line.split())}
    return state, intended


def work(
    link: Link, owner: int, seed: int, directory: Path, kind: str, diary_path: Path, settings: dict[str, Any]
) -> None:
    """Change the owner's keys in every way until killed; one word to the test for every few changes."""
    room.CHECKPOINT_BYTES = 300_000  # so that there are checkpoints to be killed in
    room.GRACE = 0.001
    chance = random.Random(seed)
    diary = Diary(diary_path)
    state, unsure = read_diary(diary_path)
    versions = itertools.count(max([0, *state.values(), *unsure.values()]) + 1)
    with opened(directory, kind, **settings) as cache:
        ready(link)
        for count in itertools.count(1):
            some = chance.sample(range(KEYS), chance.choice((1, 1, 1, 2, 5)))
            CHANGES[chance.randrange(len(CHANGES))](cache, diary, owner, some, next(versions))
            if count % 5 == 0:
                link.tell(count)


Change = Callable[[Cache, Diary, int, list[int], int], None]


def change_set(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        diary.intend({key: version})
        assert cache.set((owner, key), make_value(owner, key, version), retry=True)
        diary.acknowledge()


def change_set_tagged(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        diary.intend({key: version})
        cache.set((owner, key), make_value(owner, key, version), tag=f"{owner} {key}", expire=1e6, retry=True)
        diary.acknowledge()
    diary.intend({some[0]: 0})
    cache.evict(f"{owner} {some[0]}", retry=True)
    diary.acknowledge()


def change_delete(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        diary.intend({key: 0})
        cache.delete((owner, key), retry=True)
        diary.acknowledge()


def change_pop(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        diary.intend({key: 0})
        version_of(cache.pop((owner, key), retry=True), owner, key)
        diary.acknowledge()


def change_touch(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        diary.intend({key: 0})
        cache.touch((owner, key), 0, retry=True)
        diary.acknowledge()


def change_add(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        before = (owner, key) in cache
        diary.intend({key: version})
        added = cache.add((owner, key), make_value(owner, key, version), retry=True)
        diary.acknowledge(added)
        assert added is not before or cache.reset("eviction_policy") != "none", "nobody else has this key"


def change_many(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    one_shard = some if len(cache._shards.stores) == 1 else some[:1]  # a batch is atomic in each shard
    diary.intend(dict.fromkeys(one_shard, version))
    cache.set_many({(owner, key): make_value(owner, key, version) for key in one_shard}, retry=True)
    diary.acknowledge()
    diary.intend(dict.fromkeys(one_shard[:2], 0))
    cache.delete_many([(owner, key) for key in one_shard[:2]], retry=True)
    diary.acknowledge()


def change_in_transaction(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    one_shard = some if len(cache._shards.stores) == 1 else some[:1]
    for undo in (version % 2 == 0, version % 3 == 0):
        diary.intend({} if undo else {**dict.fromkeys(one_shard, version), one_shard[0]: 0})
        with contextlib.suppress(ZeroDivisionError), cache.transact(retry=True):
            for key in one_shard:
                cache.set((owner, key), make_value(owner, key, version))
            del cache[owner, one_shard[0]]
            if undo:
                raise ZeroDivisionError
        diary.acknowledge(not undo)


CHANGES: tuple[Change, ...] = (
    change_set,
    change_set,
    change_set_tagged,
    change_delete,
    change_pop,
    change_touch,
    change_add,
    change_many,
    change_in_transaction,
)


def verify(cache: Cache, owner: int, diary_path: Path, evicting: bool) -> None:
    """Compare what is in the cache with a diary."""
    state, unsure = read_diary(diary_path)
    found = {key: version_of(cache.get((owner, key)), owner, key) for key in range(KEYS)}
    before = {key: state.get(key, 0) for key in range(KEYS)}
    after = {**before, **unsure}
    if evicting:
        for key in range(KEYS):
            assert found[key] in (0, before[key], after[key]), f"key {key} of {owner}"
    else:
        assert found in (before, after), f"keys of {owner}: neither before nor after the call that was killed"
    # What turned out to be so is so from now on: a change that was made does not come undone.
    diary = Diary(diary_path)
    diary.intend(found)
    diary.acknowledge()
    os.close(diary._descriptor)


def kill_again_and_again(
    crew: Crew, tmp_path: Path, kind: str, kills: int, settings: dict[str, Any], evicting: bool = False
) -> None:
    """Kill workers one by one, three a round, while the others go on; verify after each round."""
    chance = random.Random(kills)
    directory, diaries = tmp_path / "cache", [tmp_path / f"diary {owner}" for owner in range(3)]
    with opened(directory, kind, **settings) as bystander:
        for round_ in range(-(-kills // 3)):
            workers = [
                crew.start(work, owner, 3 * round_ + owner, directory, kind, diaries[owner], settings)
                for owner in range(3)
            ]
            crew.together(workers)
            chance.shuffle(workers)
            for worker in workers:
                for _ in range(chance.randrange(1, 20)):
                    worker.hear()
                for _ in range(chance.randrange(2_000)):  # some moment within the next few changes
                    worker.link.asked()
                worker.kill()
            assert bystander.set("lock is free", round_)
            with opened(directory, kind, strict=True, **settings) as cache:
                for owner, diary in enumerate(diaries):
                    for each in (bystander, cache):
                        verify(each, owner, diary, evicting)
                mend(cache)
                assert cache.get("lock is free") == round_ or evicting
            for worker in workers:
                worker.dismiss()
                crew.workers.remove(worker)


@pytest.mark.parametrize("kind", ["one", "fanout"])
@pytest.mark.parametrize("durability", ["process", "system"])
def test_kills_lose_nothing(crew: Crew, tmp_path: Path, kind: str, durability: str) -> None:
    kill_again_and_again(crew, tmp_path, kind, KILLS // 6, {"eviction_policy": "none", "durability": durability})


@pytest.mark.parametrize("policy", ["least-recently-stored", "least-recently-used"])
def test_kills_under_a_full_size_limit_lose_only_what_is_evicted(crew: Crew, tmp_path: Path, policy: str) -> None:
    settings = {"eviction_policy": policy, "size_limit": 700_000}
    kill_again_and_again(crew, tmp_path, "one", KILLS // 6, settings, evicting=True)
