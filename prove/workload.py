"""A workload that does one of everything, knows what each entry may be, and judges errors, whatever the disk does."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
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
from diskcache_like.storage import shards
from tests.support.cache_kinds import Clock
from tests.support.inspection import cache_descriptors, problems
from tests.support.sample_writes import FAR, MISSING

OPERATIONS = 105  # of the script
LARGE = 40_000  # bytes that go to a value file
# A prime of which no flipped bit makes another, instead of one drawn anew: the same keys share pages and slots each time.
MODULUS = (1 << 59) + 1_133
OPTIONS: dict[str, Any] = {
    "generation_slots": 16,
    "eviction_policy": "none",
    "durability": "process",
    "timeout": 0.02,
    "hot_size_limit": 0,
    "write_buffer": 0,  # so that each write calls the disk
}


# Of a failed write its file may stay. On a full disk the files of a removal go first, since even a DELETE needs room; the
# row may then stay. No total or count of what is there may be wrong.
MENDABLE = re.compile(r"unknown file: |empty directory: |entry .+ in .*: .*file not found$")


class Wrong(AssertionError):
    """What a cache did is not what it promises."""


@dataclass
class Session:
    """One run of the script: the cache, what its entries may be by now, and what was refused."""

    directory: Path
    options: dict[str, Any] = field(default_factory=lambda: dict(OPTIONS))
    clock: Clock = field(default_factory=Clock)
    may_be: dict[Any, list[Any]] = field(default_factory=dict)  # key: values that a reader may find, in order
    ever: dict[Any, list[Any]] = field(default_factory=dict)  # key: every value that was to be stored
    refused: Counter[str] = field(default_factory=Counter)
    written: int = 0
    attempted: int = 0
    errors: tuple[type[CacheError], ...] = (DiskFull, DirectoryError)  # that may come, beside StorageError
    # A write whose last sync fails is not made; but if no other write takes its place in the WAL, and that cannot be
    # emptied either, SQLite finds it there, whole, when it opens the database the next time.
    doubtful: bool = False
    old: list[Cache] = field(default_factory=list)  # handles that were to be closed

    def __post_init__(self) -> None:
        self.cache = Cache(self.directory, clock=self.clock, **self.options)

    def new(self, size: int = 0) -> bytes:
        """Return a value that no other write has."""
        self.written += 1
        return b"%06d" % self.written * max(1, size // 6)

    def attempt(self, name: str, do: Callable[[Cache], Any]) -> Any:
        """Do something; return what it returns, `Wrong` never; raise only what is no error of the documented kinds."""
        self.attempted += 1
        try:
            return do(self.cache)
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

    def change(self, name: str, do: Callable[[Cache], Any], after: Mapping[Any, Any], whole: bool = True) -> None:
        """Do a write that makes entries `after`; where it is not `whole`, some of them may be so after a failure."""
        found = self.attempt(f"{name} of {list(after)}", do)
        for key, value in after.items():
            self.ever.setdefault(key, []).append(value)
            if not isinstance(found, CacheError) and not (self.doubtful and value is MISSING):
                self.may_be[key] = [value]
            elif not whole or self.doubtful:
                self.may_be.setdefault(key, [MISSING]).append(value)
            else:
                self.may_be.setdefault(key, [MISSING])

    def put(self, key: Any, size: int, **how: Any) -> None:
        """Store a new value of about `size` bytes."""
        value = self.new(size)
        self.change("set", lambda cache: cache.set(key, value, **how), {key: value})

    def count(self) -> None:
        """Add one to a number."""
        before = self.may_be.get("number", [MISSING])
        after = [1 if number == MISSING else number + 1 for number in before]
        self.ever.setdefault("number", []).extend(after)
        found = self.attempt("incr", lambda cache: cache.incr("number"))
        if not isinstance(found, CacheError):
            self.may_be["number"] = after
            self.compare("number", found)
            self.may_be["number"] = [found]
        else:
            self.may_be["number"] = [*before, *after] if self.doubtful else before

    def look(self, key: Any) -> None:
        """Read an entry; it must be what it may be, or the read fail."""
        found = self.attempt(f"get of {key!r}", lambda cache: cache.get(key, MISSING))
        if not isinstance(found, CacheError):
            self.compare(key, found)

    def compare(self, key: Any, found: Any) -> None:
        """Raise Wrong if an entry is not what it may be."""
        expected = self.may_be.get(key, [MISSING])
        if found not in expected:
            raise Wrong(f"{key!r} is {_short(found)}, expected {' or '.join(map(_short, expected))}")

    def look_at_all(self) -> None:
        """Read everything by one call."""
        found = self.attempt("get_many", lambda cache: cache.get_many(self.may_be))
        if not isinstance(found, CacheError):
            for key in self.may_be:
                self.compare(key, found.get(key, MISSING))

    def close(self) -> None:
        """Close the handle; the next operation opens it again."""
        self.attempt("close", Cache.close)

    def end(self) -> None:
        """Close all handles, with nothing in the way."""
        for handle in (*self.old, self.cache):
            handle.close()

    def reopen(self) -> None:
        """Close the handle and open another; where that fails the old one goes on."""
        self.close()
        opened = self.attempt("open", lambda _: Cache(self.directory, clock=self.clock, **self.options))
        if not isinstance(opened, CacheError):
            self.old.append(self.cache)
            self.cache = opened


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 30 else f"{text[:20]}... ({len(text)} characters)"


def script(session: Session) -> None:
    """Do one of everything, and some of it twice, so that files and pages are there to be replaced."""
    for size in (0, 3_000, LARGE):
        for key in ("a", "b"):
            session.put((key, size), size)
            session.look((key, size))
    _replace(session)
    _in_transactions(session)
    session.reopen()
    session.look_at_all()
    _queue(session)
    _expire(session)
    _upkeep(session)
    session.reopen()
    for key in list(session.may_be):
        session.look(key)
    _stream(session)
    session.attempt("check", lambda cache: cache.check(fix=True))
    session.look_at_all()
    session.close()
    session.put("last", 0)


def _replace(session: Session) -> None:
    for key, size, wanted in (("a", 0, 0), ("a", 3_000, 3_000), ("a", LARGE, LARGE), ("b", LARGE, 0)):
        session.put((key, size), wanted)
        session.look((key, size))
    session.change("delete", lambda cache: cache.delete(("b", 3_000)), {("b", 3_000): MISSING})
    value = session.new()
    session.change("add", lambda cache: cache.add("added", value), {"added": value})
    for number in range(3):
        session.count()
        session.look("number")
        session.put("file", LARGE + number)
    session.change("pop", lambda cache: cache.pop(("b", 0)), {("b", 0): MISSING})


def _in_transactions(session: Session) -> None:
    for size in (0, LARGE):
        values = {"one": session.new(size), "two": session.new()}
        session.change("transact", partial(_nest, values=values), values)
        session.look("one")
        session.look("two")
    many = {("many", number): session.new(2_000) for number in range(12)}
    session.change("set_many", lambda cache: cache.set_many(many), many)
    gone = {("many", number): MISSING for number in range(4)}
    session.change("delete_many", lambda cache: cache.delete_many(list(gone)), gone, whole=False)


def _nest(cache: Cache, values: Mapping[str, bytes]) -> None:
    with cache.transact():
        cache["one"] = values["one"]
        with cache.transact():
            cache["two"] = values["two"]


def _queue(session: Session) -> None:
    for size in (0, LARGE):
        value = session.new(size)
        pushed = session.attempt("push", partial(Cache.push, value=value, prefix="q"))
        if not isinstance(pushed, CacheError):
            session.may_be[pushed] = [value]
            session.ever.setdefault(pushed, []).append(value)
            session.look(pushed)
    pulled = session.attempt("pull", lambda cache: cache.pull(prefix="q"))
    if not isinstance(pulled, CacheError) and pulled[0] is not None:
        session.compare(pulled[0], pulled[1])
        session.may_be[pulled[0]] = [MISSING]


def _expire(session: Session) -> None:
    for number in range(3):
        session.put(("e", number), LARGE if number == 1 else 0, expire=10, tag="t")
    session.attempt("touch", lambda cache: cache.touch(("e", 0), FAR, retry=True))
    for number in range(3):
        session.put(("t", number), LARGE if number == 1 else 0, tag="gone")
    tagged = {("t", number): MISSING for number in range(3)}
    session.change("evict", lambda cache: cache.evict("gone"), tagged, whole=False)
    session.clock.advance(20)
    for number in range(3):
        session.may_be.setdefault(("e", number), []).append(MISSING)
    session.look(("e", 0))
    session.attempt("cull", Cache.cull)


def _upkeep(session: Session) -> None:
    for store in session.cache._shards.stores:
        store.session.header[Header.CHECKPOINTED] = 0  # the next write finds that a checkpoint is due
        store.session.header[Header.VOLUME_DUE] = 0
        store.session.header[Header.WRITTEN] += 1 << 40
    value = session.new()
    session.change("set", lambda cache: cache.set("due", value), {"due": value})
    session.attempt("check", lambda cache: cache.check(fix=True))
    session.attempt("expire", Cache.expire)
    session.attempt("volume", Cache.volume)
    session.attempt("len", len)
    session.attempt("iterate", list)


def _stream(session: Session) -> None:
    value = session.new(LARGE)

    def write(cache: Cache) -> None:
        with cache.open("stream", "wb") as stream:
            stream.write(value[:-10])
            stream.write(value[-10:])

    session.change("open", write, {"stream": value})

    def read(cache: Cache) -> Any:
        with cache.open("stream") as stream:
            return stream.read()

    with suppress(KeyError):
        found = session.attempt("open", read)
        if not isinstance(found, CacheError):
            session.compare("stream", found)
    session.look("stream")


@contextmanager
def one_layout() -> Iterator[None]:
    """Give all caches one modulus, so that every run of the script makes the same calls."""
    with mock.patch.object(shards, "new_modulus", return_value=MODULUS):
        yield


def recover(session: Session) -> None:
    """See that the handle works, that another finds what was acknowledged, and that nothing is left of failures."""
    cache, value = session.cache, session.new(LARGE)
    cache["recovered"] = value
    session.may_be["recovered"] = [value]
    for key in session.may_be:
        session.compare(key, cache.get(key, MISSING))
    with closing(Cache(session.directory, clock=session.clock, **session.options)) as fresh:
        for key in session.may_be:
            session.compare(key, fresh.get(key, MISSING))
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
