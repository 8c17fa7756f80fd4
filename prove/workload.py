"""A cache at work: operations of every kind, what each entry may be by now, and how errors are judged."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import Cache
from diskcache_like.coherence.generations import Header
from diskcache_like.errors import (
    CacheError,
    DirectoryError,
    DiskFull,
    StorageError,
    Timeout,
    UnreadableFileWarning,
    UnsafeDirectory,
)
from diskcache_like.storage.opening import opener
from tests.support.cache_kinds import Clock
from tests.support.inspection import cache_descriptors, problems
from tests.support.sample_writes import MISSING

KEYS = tuple(f"key {number}" for number in range(20)) + tuple((number, b"pair") for number in range(4))
TAGGED = 6  # of the keys, which are always stored with the lane's tag

State = dict[Any, Any]  # values by key


class Lane(NamedTuple):
    """What one process writes, and no other."""

    keys: tuple[Any, ...] = KEYS
    counters: tuple[str, ...] = ("hits", "misses")
    queue: str = "the queue"  # stands for all of its items, in order
    prefix: str | None = None  # of the queue
    tag: str = "tagged"
    stream: str = "the stream"  # a key whose value is written piece by piece

    @property
    def every(self) -> tuple[Any, ...]:
        """All keys, but for the queue."""
        return (*self.keys, *self.counters, self.stream)

    @property
    def tagged(self) -> tuple[Any, ...]:
        """The keys that have the tag."""
        return self.keys[:TAGGED]


OTHERS = tuple(f"other {key}" for key in KEYS)
LANES = (Lane(), Lane(OTHERS, ("others",), "the other queue", "other", "other tag", "the other stream"))


class Wrong(AssertionError):
    """What a cache did is not what it promises."""


class Work:
    """A cache at work, with what a reader may find of each key: one value, or several where a call failed.

    The operations draw what they do by `random` alone, so that the same calls are made each time.
    """

    evicts = False  # the cache is too small for what it is given
    # A write whose last sync fails is not made; but if no other write takes its place in the WAL, and that cannot be
    # emptied either, SQLite finds it there, whole, when it opens the database the next time.
    doubtful = False

    def __init__(self, make: Callable[[], Cache], random: Random, sizes: Sequence[int], lane: Lane = LANES[0]) -> None:
        self.make, self.random, self.sizes, self.lane = make, random, sizes, lane
        self.may_be: dict[Any, list[Any]] = {lane.queue: [()]}
        self.ever: dict[Any, list[Any]] = {}  # every value that was to be stored
        self.written = self.attempted = 0
        self.cache = make()

    @property
    def state(self) -> State:
        """What is there, where nothing has failed."""
        return {key: values[0] for key, values in self.may_be.items() if values != [MISSING]}

    def value(self, key: Any, size: int | None = None) -> Any:
        """Return a value that the key never had, of `size` bytes or of any of the sizes."""
        self.written += 1
        text = f"{key} for the {self.written}th time; "
        size = self.random.choice(self.sizes) if size is None else size
        return (text * (size // len(text) + 1))[:size].encode() if size >= 300 else text

    def attempt(self, name: str, do: Callable[[Cache], Any]) -> Any:
        """Do something and return what it returns, or the error that may come of it."""
        self.attempted += 1
        return do(self.cache)

    def change(self, name: str, do: Callable[[Cache], Any], after: Mapping[Any, Any], whole: bool = True) -> Any:
        """Do a write that makes entries `after`; where it is not `whole`, some of them may be so after a failure."""
        found = self.attempt(f"{name} of {list(after)}", do)
        for key, value in after.items():
            self.ever.setdefault(key, []).append(value)
            before = self.may_be.setdefault(key, [MISSING])
            if not isinstance(found, CacheError) and not (self.doubtful and value is MISSING):
                self.may_be[key] = [value]
            elif not whole or self.doubtful:
                before.append(value)
        return found

    def become(self, key: Any, after: list[Any], found: Any) -> None:
        """Have a key be what it may be after a call that found this; both that and what it was, if it is in doubt."""
        self.ever.setdefault(key, []).extend(after)
        if not isinstance(found, CacheError):
            self.may_be[key] = after
        elif self.doubtful:
            self.may_be[key] = [*self.may_be.get(key, [MISSING]), *after]

    def read(self, cache: Cache, key: Any) -> Any:
        """Return what is there of a key."""
        if key == self.lane.queue:
            return tuple(item for _, item in cache.iterqueue(self.lane.prefix))
        return cache.get(key, MISSING)

    def compare(self, key: Any, found: Any) -> None:
        """Raise Wrong if an entry is not what it may be."""
        expected = self.may_be.get(key, [MISSING])
        if found not in expected and not self.evicts:
            raise Wrong(f"{key!r} is {_short(found)}, expected {' or '.join(map(_short, expected))}")

    # -- operations ---------------------------------------------------------------------------------------------------

    def put(self, key: Any, value: Any) -> None:
        tag = self.lane.tag if key in self.lane.tagged else None
        self.change("set", lambda cache: cache.set(key, value, tag=tag), {key: value})

    def set(self) -> None:
        key = self.random.choice(self.lane.keys)
        self.put(key, self.value(key))

    def look(self) -> None:
        key = self.random.choice([*self.lane.keys, *self.lane.counters])
        found = self.attempt(f"get of {key!r}", lambda cache: self.read(cache, key))
        if not isinstance(found, CacheError):
            self.compare(key, found)

    def look_at_all(self) -> None:
        """Read everything by one call, and the queue."""
        keys = [key for key in self.may_be if key != self.lane.queue]
        found = self.attempt("get_many", lambda cache: cache.get_many(keys))
        items = self.attempt("iterqueue", lambda cache: self.read(cache, self.lane.queue))
        for key in keys if not isinstance(found, CacheError) else ():
            self.compare(key, found.get(key, MISSING))
        if not isinstance(items, CacheError):
            self.compare(self.lane.queue, items)

    def stream(self) -> None:
        """Write a value piece by piece, and read it so."""
        key = self.lane.stream
        value = self.value(key, max(self.sizes[-1], 2_500))

        def write(cache: Cache) -> None:
            with cache.open(key, "wb") as stream:
                for start in range(0, len(value), 1_500):
                    stream.write(value[start : start + 1_500])

        def read(cache: Cache) -> Any:
            with cache.open(key) as stream:
                return stream.read()

        self.change("open", write, {key: value})
        with suppress(KeyError):
            found = self.attempt("open", read)
            if not isinstance(found, CacheError):
                self.compare(key, found)

    def delete(self) -> None:
        key = self.random.choice(self.lane.keys)
        # If the disk has no room even for a removal, the value file may be gone, since it goes before the row.
        self.change("delete", lambda cache: cache.delete(key), {key: MISSING}, whole=False)

    def pop(self) -> None:
        key = self.random.choice(self.lane.keys)
        before = list(self.may_be.get(key, [MISSING]))
        found = self.change("pop", lambda cache: cache.pop(key, MISSING), {key: MISSING})
        if not isinstance(found, CacheError) and found not in before and not self.evicts:
            raise Wrong(f"pop of {key!r} returned {_short(found)}, expected {' or '.join(map(_short, before))}")

    def add(self) -> None:
        key = self.random.choice(self.lane.keys[TAGGED:])
        value, before = self.value(key), self.may_be.get(key, [MISSING])
        found = self.attempt(f"add of {key!r}", lambda cache: cache.add(key, value))
        self.become(key, [each for each in before if each != MISSING] if found is False else [value], found)
        unlikely = not self.may_be.get(key, [MISSING]) or (found is True and MISSING not in before)
        if unlikely and not self.evicts:
            raise Wrong(f"add of {key!r} returned {found}, there was {' or '.join(map(_short, before))}")
        self.may_be[key] = self.may_be.get(key) or before

    def incr(self) -> None:
        key = self.random.choice(self.lane.counters)
        after = [1 if number == MISSING else number + 1 for number in self.may_be.get(key, [MISSING])]
        found = self.attempt("incr", lambda cache: cache.incr(key))
        self.become(key, after, found)
        if not isinstance(found, CacheError):
            self.compare(key, found)
            self.become(key, [found], found)

    def touch(self) -> None:
        key = self.random.choice(self.lane.keys)
        self.attempt("touch", lambda cache: cache.touch(key, 1e6))

    def push(self) -> None:
        self.written += 1
        item, queue = f"item {self.written}", self.lane.queue
        found = self.attempt("push", lambda cache: cache.push(item, self.lane.prefix))
        self.become(queue, [(*items, item) for items in self.may_be[queue]], found)

    def pull(self) -> None:
        before, queue = self.may_be[self.lane.queue], self.lane.queue
        found = self.attempt("pull", lambda cache: cache.pull(self.lane.prefix))
        if isinstance(found, CacheError):
            self.become(queue, [items[1:] for items in before], found)
            return
        self.become(queue, [items[1:] for items in before if (items[0] if items else None) == found[1]], found)
        if not self.may_be[queue] and not self.evicts:
            raise Wrong(f"pull returned {_short(found[1])}, expected the first of {' or '.join(map(_short, before))}")
        self.may_be[queue] = self.may_be[queue] or [()]

    def transact(self) -> None:
        """Change several keys in one transaction, perhaps nested, perhaps undone."""
        after: State = {}
        steps: list[Callable[[Cache], object]] = []
        for _ in range(self.random.randint(1, 4)):
            key, kind = (
                self.random.choice(self.lane.keys[TAGGED:]),
                self.random.choice(("set", "set", "delete", "count")),
            )
            if kind == "count":
                key = self.random.choice(self.lane.counters)
                numbers = [after[key]] if key in after else self.may_be.get(key, [MISSING])
                if len(numbers) == 1:
                    after[key] = 1 if numbers[0] == MISSING else numbers[0] + 1
                    steps.append(partial(Cache.incr, key=key))
            elif kind == "delete":
                after[key] = MISSING
                steps.append(partial(Cache.delete, key=key))
            else:
                after[key] = self.value(key)
                steps.append(partial(Cache.set, key=key, value=after[key]))
        undone, nested = self.random.random() < 0.2, self.random.random() < 0.3

        def do(cache: Cache) -> None:
            with suppress(ZeroDivisionError), cache.transact():
                with cache.transact() if nested else nullcontext():
                    for step in steps:
                        step(cache)
                if undone:
                    raise ZeroDivisionError

        self.change("transact", do, {} if undone else after)

    def set_many(self) -> None:
        keys = self.random.sample(self.lane.keys[TAGGED:], self.random.randint(1, 12))
        many = {key: self.value(key) for key in keys}
        self.change("set_many", lambda cache: cache.set_many(many), many, whole=self.is_one_shard)

    def delete_many(self) -> None:
        keys = self.random.sample(self.lane.keys, 6)
        self.change("delete_many", lambda cache: cache.delete_many(keys), dict.fromkeys(keys, MISSING), whole=False)

    def evict(self) -> None:
        gone = dict.fromkeys(self.lane.tagged, MISSING)
        self.change("evict", lambda cache: cache.evict(self.lane.tag), gone, whole=False)

    def clear(self) -> None:
        self.change("clear", Cache.clear, {**dict.fromkeys(self.may_be, MISSING), self.lane.queue: ()}, whole=False)

    def check(self) -> None:
        self.attempt("check", lambda cache: cache.check(fix=True))

    def sync(self) -> None:
        self.attempt("sync", Cache.sync)

    def reopen(self) -> None:
        self.cache.close()
        self.cache = self.make()

    @property
    def is_one_shard(self) -> bool:
        """Whether a batch is one transaction."""
        return len(self.cache._shards.stores) == 1


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 30 else f"{text[:20]}... ({len(text)} characters)"


# -- work in which anything may fail ----------------------------------------------------------------------------------

LARGE = 40_000  # bytes that go to a value file
SIZES = (0, 0, 3_000, LARGE)
OPTIONS: dict[str, Any] = {
    "generation_slots": 16,
    "eviction_policy": "none",
    "durability": "process",
    "timeout": 0.02,
    "hot_size_limit": 0,
    "write_buffer": 0,  # so that each write calls the disk
}
SCRIPT = {  # how often each operation is done, in an order that is always the same
    "set": 20,
    "look": 24,
    "add": 3,
    "incr": 4,
    "touch": 2,
    "delete": 3,
    "pop": 3,
    "push": 4,
    "pull": 3,
    "transact": 6,
    "set_many": 1,
    "delete_many": 1,
    "evict": 1,
    "stream": 2,
    "expire": 1,
    "upkeep": 2,
    "reopen": 3,
    "look_at_all": 2,
    "check": 1,
}
OPERATIONS = 107  # of the script: what is attempted
# A prime of which no flipped bit makes another, instead of one drawn anew: the same keys share pages and slots each time.
MODULUS = (1 << 59) + 1_133
# Of a failed write its file may stay. On a full disk the files of a removal go first, since even a DELETE needs room; the
# row may then stay. No total or count of what is there may be wrong.
MENDABLE = re.compile(r"unknown file: |empty directory: |entry .+ in .*: .*file not found$")


class Session(Work):
    """One run of the script: the cache, what its entries may be by now, and what was refused."""

    def __init__(self, directory: Path, options: Mapping[str, Any] = OPTIONS) -> None:
        self.directory, self.options, self.clock = directory, options, Clock()
        self.refused: Counter[str] = Counter()
        self.errors: tuple[type[CacheError], ...] = (DiskFull, DirectoryError)  # that may come, beside StorageError
        self.old: list[Cache] = []  # handles that were to be closed
        self.at = -1  # the number of the operation before which something happens
        self.meanwhile: Callable[[], object] = lambda: None
        super().__init__(lambda: Cache(directory, clock=self.clock, **options), Random(3), SIZES)

    def attempt(self, name: str, do: Callable[[Cache], Any]) -> Any:
        """Do something; return what it returns or an error, of which only those of the documented kinds may come."""
        if self.attempted == self.at:
            self.meanwhile()
        try:
            return super().attempt(name, do)
        except CacheError as error:
            self.judge(name, error)
            self.refused[type(error).__name__] += 1
            return error
        except UnreadableFileWarning as warning:  # raised, where warnings are errors: the entry reads as missing
            self.cache._rows._warned_of_file = False  # so that the next one is told of, too
            self.refused[type(warning).__name__] += 1
            return StorageError(str(warning))

    def judge(self, name: str, error: CacheError) -> None:
        """Take only an error that says what failed, and where."""
        fine = isinstance(error, self.errors) or type(error) is StorageError
        if not fine or isinstance(error, UnsafeDirectory):
            raise Wrong(f"{name} raised {type(error).__name__}") from error
        counts = isinstance(error, Timeout) and isinstance(error.args[0], int)  # as DiskCache's does for batches
        if not counts and str(self.directory) not in str(error):
            raise Wrong(f"{name} raised an error that does not say where: {error}") from error

    def expire(self) -> None:
        """Store what expires, and let it."""
        for number in range(3):
            key = ("expiring", number)
            value = self.value(key, SIZES[-number])
            self.change("set", partial(Cache.set, key=key, value=value, expire=10), {key: value})
        self.attempt("touch", lambda cache: cache.touch(("expiring", 0), 1e6, retry=True))
        self.clock.advance(20)
        for number in range(3):
            self.may_be["expiring", number].append(MISSING)
        self.attempt("cull", Cache.cull)

    def upkeep(self) -> None:
        """Write when all upkeep is due, and ask for it."""
        for store in self.cache._shards.stores:
            store.shard.header[Header.CHECKPOINTED] = 0  # the next write finds that a checkpoint is due
            store.shard.header[Header.VOLUME_DUE] = 0
            store.shard.header[Header.WRITTEN] += 1 << 40
        self.put("due", self.value("due"))
        for name, ask in (("expire", Cache.expire), ("volume", Cache.volume), ("len", len), ("iterate", list)):
            self.attempt(name, ask)

    def close(self) -> None:
        """Close the handle; the next operation opens it again."""
        self.attempt("close", Cache.close)

    def reopen(self) -> None:
        """Close the handle and open another; where that fails the old one goes on."""
        self.close()
        opened = self.attempt("open", lambda _: self.make())
        if not isinstance(opened, CacheError):
            self.old.append(self.cache)
            self.cache = opened

    def end(self) -> None:
        """Close all handles, with nothing in the way."""
        for handle in (*self.old, self.cache):
            handle.close()


def script(session: Session) -> None:
    """Do one of everything, and some of it often, so that files and pages are there to be replaced."""
    names = [*Counter(SCRIPT).elements()]
    Random(1).shuffle(names)
    for name in names:
        getattr(session, name)()
    session.close()
    session.put("last", session.value("last"))


@contextmanager
def one_layout() -> Iterator[None]:
    """Give all caches one modulus, so that every run of the script makes the same calls."""
    with mock.patch.object(opener, "new_modulus", return_value=MODULUS):
        yield


def recover(session: Session) -> None:
    """See that the handle works, that another finds what was acknowledged, and that nothing is left of failures."""
    cache, value = session.cache, session.value("recovered", LARGE)
    cache["recovered"] = value
    session.may_be["recovered"] = [value]
    for key in session.may_be:
        session.compare(key, session.read(cache, key))
    with closing(session.make()) as fresh:
        for key in session.may_be:
            session.compare(key, session.read(fresh, key))
        if left := [text for text in problems(fresh, fix=True) if not MENDABLE.match(text)]:
            raise Wrong(f"check finds {left}")
        if left := problems(fresh):
            raise Wrong(f"check still finds {left} after fix=True")
        if len(fresh) != sum(1 for _ in fresh):
            raise Wrong(f"len is {len(fresh)}, there are {sum(1 for _ in fresh)} entries")
    session.end()
    gc.collect()  # the traceback of an error may hold what was open
    if left := cache_descriptors(session.directory):
        raise Wrong(f"descriptors are left open: {left}")
