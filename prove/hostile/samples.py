"""Small caches of every sort for others to damage, and how to see what is wrong with what is left of one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import numpy as np

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.ring import LEAST_CAPACITY, Ring, Word
from diskcache_like.encoding import file_names
from diskcache_like.errors import CacheError
from diskcache_like.storage.sqlite import connection
from tests.support.cache_kinds import Clock
from tests.support.inspection import problems

from ..proof import Trial, proof

clock = Clock()  # that does not go on
PAGE = 512  # bytes of a database page here: a quarter of the usual, so that there is little to damage
CASE_SECONDS = 30.0  # after which a case counts as hung
SECRET = "a secret for the rig's samples"
MISSING = "nothing is there"

SMALL: dict[str, Any] = {
    "durability": "process",
    "generation_slots": 16,
    "disk_min_file_size": 200,
    "write_buffer": 0,  # so that everything is in the database, but for one sample
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "signed": {"secret": SECRET},
    "sealed": {"secret": SECRET, "encrypt": True},
    "packed": {"compressor": "zstd", "compress_min_size": 32},
    "fanout": {"shards": 2},
    "buffered": {"write_buffer": LEAST_CAPACITY},
}
BUFFER = "cache.buffer"
ROUNDS = 14  # of writes, which go around its ring more than once

VALUES: dict[Any, Any] = {
    "text": "some text that is easily found",
    "number": 12345.5,
    "nested": {"a": [1, 2, {"b": None}], "c": True},
    ("a", 1): b"bytes, bytes",
    "array": np.arange(5, dtype="<i4"),
    "words": "a word and a word and another word " * 5,
    "file": "y" * 210,
    "array in a file": np.arange(60, dtype="<f4"),
    "twice": "the second value",
}
OLDER: dict[Any, Any] = {"twice": "the first value"}  # what was overwritten is still authentic
OLDS = {"with older values": OLDER}
DATED, TAGGED = ("dated", 1.5, 4e9, None), ("tagged", "value", None, "a tag")
METADATA: dict[Any, tuple[Any, Any, Any]] = {DATED[0]: DATED[1:], TAGGED[0]: TAGGED[1:]}  # value, expiry, tag
PREFIX, ITEM = "queue", "an item"
MORE = "one more tag"

Answer = TypeVar("Answer")


class Entry(NamedTuple):
    """Where an entry of a sample lies."""

    shard: str  # what the names of its files begin with
    file: str  # that of its value, "" if that lies in the record
    record: bytes


@dataclass(frozen=True)
class Sample:
    """The files of a small cache."""

    name: str
    options: dict[str, Any]
    files: dict[str, bytes] = field(repr=False)
    entries: dict[Any, Entry] = field(repr=False)  # by key; the queue's item by its prefix
    is_copied: bool = False  # the words of its write buffer are not believed, since they were made for another file

    @property
    def proved(self) -> bool:
        """Whether every entry is authenticated, so that nobody without the secret can forge one."""
        return "secret" in self.options

    def lay(self, directory: Path) -> Path:
        """Write the files into a new directory, and return it."""
        directory.mkdir(mode=0o700)
        for name, content in self.files.items():
            path = directory / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
                file.write(content)
            if path.name == BUFFER and not self.is_copied:
                believe(path)
        return directory

    def open(self, directory: Path, **more: Any) -> Cache:
        """Return a handle on a copy of the cache."""
        options = {name: value for name, value in self.options.items() if name != "shards"}
        kind = FanoutCache if "shards" in self.options else Cache
        return kind(directory, clock=clock, timeout=60, durability="process", **{**options, **more})


def believe(buffer: Path) -> None:
    """Have a write buffer be one that was made in this very file, so that its words are believed."""
    ring = Ring.open(str(buffer), 1, LEAST_CAPACITY)
    if ring is not None:
        ring.words[Word.FILE] = ring.file
        ring.close()


@contextmanager
def own_surroundings() -> Iterator[Path]:
    """Have this process use small pages, no secret of the user's, and no warnings; it does nothing else any more.

    Yield a scratch directory, in memory where there is such a place, since what takes the time is making files.
    """
    connection.PAGE_SIZE = PAGE
    with warnings.catch_warnings(), _in_memory() as place:
        os.environ["XDG_CONFIG_HOME"] = str(place / "config")
        for name in ("DISKCACHE_LIKE_SECRET", "DISKCACHE_LIKE_PICKLE"):
            os.environ.pop(name, None)
        warnings.simplefilter("ignore")
        yield place


@contextmanager
def _in_memory() -> Iterator[Path]:
    """Yield a new directory; a child of its own removes it when this process ends, however it does."""
    memory = "/dev/shm"
    place = tempfile.mkdtemp(prefix="prove-", dir=memory if os.access(memory, os.W_OK) else None)
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.setsid()  # not in the group that is killed when the proof is over
        os.dup2(ours, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        os.read(0, 1)  # returns when the other end is closed
        shutil.rmtree(place, ignore_errors=True)
        os._exit(0)
    os.close(ours)
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(theirs)


class Workbench:
    """Makes copies of samples below a directory, one after the other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._numbers = count()

    @contextmanager
    def copy(self, sample: Sample) -> Iterator[Path]:
        """Yield the directory of a copy; it, and what lies beside it, is gone afterwards."""
        around = self.place / f"case-{next(self._numbers)}"
        around.mkdir()
        try:
            yield sample.lay(around / "cache")
        finally:
            shutil.rmtree(around, ignore_errors=True)

    def warm_up(self, samples: Sequence[Sample]) -> None:
        """Import what is imported late: it is no code of the directory's, but cannot be told from it."""
        for sample in samples:
            with self.copy(sample) as directory, sample.open(directory) as cache:
                Judge().everything(cache)


def leading(items: Sequence[Any]) -> int:
    """Return how many items are of the sample of the first one, 0 if all are."""
    return next((number for number, item in enumerate(items) if item[0] is not items[0][0]), 0)


Tries = Iterator[tuple[Callable[..., None], Sequence[Any]]]
Prepare = Callable[[Path, Workbench], Tries]


def tried(name: str, promise: int, what: str, items: str, **how: Any) -> Callable[[Prepare], Prepare]:
    """Register a proof that tries items on small caches; `prepare` yields how, and all of them."""

    def register(prepare: Prepare) -> Prepare:
        def run(trial: Trial) -> None:
            with own_surroundings() as place:
                bench = Workbench(place)
                with contextmanager(prepare)(place, bench) as (try_one, all_):
                    trial.each(all_, partial(try_one, trial, bench), items, first=leading(all_))

        proof(name, promise, what, **how)(run)
        return prepare

    return register


def make(name: str, place: Path, live: bool = False) -> Sample:
    """Make a sample of that name; a live one as it lies there while a process has it open, with its -wal file."""
    options, directory = OPTIONS[name], place / f"{name}{' in use' if live else ''}"
    with the_same_names(name):
        cache = new(directory, options)
        try:
            fill(cache, {**VALUES, **METADATA}, OLDER)
            found, entries = files_of(directory), entries_of(cache)
        finally:
            cache.close()
    return Sample(directory.name, options, found if live else files_of(directory), entries)


def new(directory: Path, options: dict[str, Any]) -> Cache:
    """Make a new cache of samples' size."""
    kind: Callable[..., Cache] = FanoutCache if "shards" in options else Cache
    return kind(directory, clock=clock, **{**SMALL, **options})


@contextmanager
def the_same_names(seed: str) -> Iterator[None]:
    """Have file names, keys and nonces be the same each time."""
    same = random.Random(seed).randbytes
    with mock.patch("os.urandom", same), mock.patch("random._urandom", same):
        yield


def fill(cache: Cache, content: Mapping[Any, Any], older: Mapping[Any, Any]) -> None:
    """Store what is in a sample, having stored what is `older`."""
    put_all(cache, older)
    put_all(cache, content)
    cache.push(ITEM, prefix=PREFIX)
    let_wait(cache, content, older)


def let_wait(cache: Cache, content: Mapping[Any, Any], older: Mapping[Any, Any]) -> None:
    """Have all that is small wait in the write buffer, if there is one, with flushed records in the rest of it."""
    small = {key: value for key, value in content.items() if "file" not in key}
    for _ in range(ROUNDS if cache._shards.stores[0].shard.ring is not None else 0):
        put_all(cache, older)
        cache.flush()
        put_all(cache, small)


def put_all(cache: Cache, content: Mapping[Any, Any]) -> None:
    """Store values, those of some keys with an expiry or a tag."""
    for key, value in content.items():
        if key in METADATA:
            whole, expire, tag = value
            cache.set(key, whole, expire=None if expire is None else expire - clock.now, tag=tag)
        else:
            cache[key] = value


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the content of all files by their names."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def entries_of(cache: Cache, content: Mapping[Any, Any] = VALUES) -> dict[Any, Entry]:
    """Return where the entries of a sample lie."""
    known = {cache._rows.locate(key)[0]: key for key in {*content, *METADATA}}
    found = {}
    for store in cache._shards.stores:
        shard = "" if store.directory == cache.directory else f"{Path(store.directory).name}/"
        for stored, record, file in store.select("SELECT k, v, file FROM entry"):
            name = "" if file is None else shard + file_names.from_column(file)
            found[known.get(stored, PREFIX)] = Entry(shard, name, record)
    assert found.keys() == {*known.values(), PREFIX}
    return found


# -- what is there -----------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The cache cannot be used any more, and says so with an error of the package's own."""


def attempt(call: Callable[[], Answer]) -> Answer | None:
    """Return the answer of a call, None where it fails as the package says that calls fail."""
    try:
        return call()
    except (CacheError, KeyError):
        return None


def same(one: object, other: object) -> bool:
    """Tell whether two values are equal and of the same type."""
    if isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


class Judge:
    """Reads all of a cache and remembers what was not as it was stored, but neither missing nor an error."""

    def __init__(
        self,
        spared: frozenset[Any] = frozenset(),
        keys: bool = True,
        disorder: bool = False,
        values: Mapping[Any, Any] = VALUES,
        olds: Mapping[str, Mapping[Any, Any]] = OLDS,
    ) -> None:
        """Say nothing of the keys `spared`, whose entries may be forged, and with `keys=False` of keys listed.

        With `disorder` rows may not be where SQLite looks for them: one that was missing when its key was written
        anew may be found later, until the database has been mended.
        Instead of `values` others of the same key that are as authentic may be found, which are counted: those of
        `olds`, by what they are called.
        """
        self.spared, self.keys, self.disorder = spared, keys, disorder
        self._values, self._olds = values, olds
        self.back: set[Any] = set()  # keys whose row of before the damage was found after a change
        self.wrong: list[str] = []
        self.lost: set[Any] = set()  # keys that `look` did not find in some way
        self.older: Counter[str] = Counter()

    def everything(self, cache: Cache) -> None:
        """Read, change and mend a cache."""
        self.look(cache)
        self.changed(cache)
        self.mended(cache)

    def look(self, cache: Cache) -> None:
        """Read everything in every way there is."""
        for key, value in self._values.items():
            self._expect(key, attempt(partial(cache.get, key, MISSING)), value)
        self._metadata(cache)
        self._removed(cache)
        together = attempt(lambda: cache.get_many(self._values)) or {}
        for key, value in self._values.items():
            self._expect(key, together.get(key), value)
        self._readers(cache)
        self._listed(cache)
        self._tagged(cache)
        for call in (cache.volume, cache.stats, partial(len, cache)):
            attempt(call)

    def changed(self, cache: Cache) -> None:
        """Change something in every way there is; what was changed must read as that, or as missing."""
        for key in ("text", "file", "new"):
            if attempt(partial(cache.set, key, f"new {key}")):
                self._changed(cache, key, f"new {key}")
        if attempt(lambda: cache.set_many({"number": 5, "large": "z" * 250})) == 2:  # a planted limit refuses some
            self._changed(cache, "number", 5)
            self._changed(cache, "large", "z" * 250)
        counted = attempt(lambda: cache.incr("counter", 7))
        if counted is not None:
            self._is("incr", counted, 7)
        if attempt(lambda: cache.delete("twice")) is not None:
            self._changed(cache, "twice", MISSING)
        if attempt(lambda: cache.push("pushed", prefix=PREFIX)) is not None:
            pulled = (attempt(lambda: cache.pull(prefix=PREFIX)) or (None, None))[1]
            if "item" not in self.spared:
                self._is("pull", pulled, ITEM, "pushed")
        for call in (lambda: cache.touch(DATED[0], 60), lambda: cache.pop("nested"), cache.expire, cache.cull):
            attempt(call)
        if attempt(lambda: cache.retag(TAGGED[0], [MORE], [TAGGED[3]])) and not self.disorder:
            entry = attempt(lambda: cache.get_entry(TAGGED[0]))
            if entry is not None and MORE not in entry.tags:
                self.wrong.append(f"after retag the tags are {entry.tags}")
        attempt(lambda: cache.evict(tags=[TAGGED[3], MORE]))

    def mended(self, cache: Cache) -> None:
        """Mend the cache, and see that it can be used as any other; raise Refused if the package refuses to."""
        try:
            left = problems(cache, fix=True) and problems(cache)
            if left:  # such as what an odd thing left behind when its entry went
                left = problems(cache, fix=True) and problems(cache)
            self._fresh(cache)
        except CacheError as error:
            raise Refused from error
        if left:
            self.wrong.append(f"check(fix=True) leaves {left}")

    def _fresh(self, cache: Cache) -> None:
        for key, value in (("text", "fresh"), ("file", "f" * 300), ("fresh", [1, 2])):
            cache[key] = value
            self._is(key, cache[key], value)
        if not {"text", "file", "fresh"} <= set(cache):
            self.wrong.append(f"after check(fix=True) the keys are {list(cache)}")
        cache.set("fresh", 2, tags=[TAGGED[3], MORE])
        for tag in (TAGGED[3], MORE):
            bearers = [key for key in cache if tag in getattr(cache.get_entry(key), "tags", ())]
            if set(cache.keys(tags=[tag])) != {*bearers}:
                self.wrong.append(f"after check(fix=True) {tag!r} lists {list(cache.keys(tags=[tag]))}, not {bearers}")

    def _expect(self, key: Any, found: Any, value: Any) -> None:
        if found is None or same(found, MISSING):
            self.lost.add(key)
        elif self._is_old(key, found):
            self.older.update(name for name, old in self._olds.items() if key in old and same(found, old[key]))
        elif key not in self.spared and not same(found, value):
            self.wrong.append(f"{key!r} reads as {found!r}")

    def _is_old(self, key: Any, found: Any) -> bool:
        return any(key in old and same(found, old[key]) for old in self._olds.values())

    def _is(self, what: str, found: Any, *allowed: Any) -> None:
        if found is not None and not any(same(found, one) for one in (*allowed, MISSING)):
            self.wrong.append(f"{what}: {found!r} instead of {allowed}")

    def _changed(self, cache: Cache, key: Any, value: Any) -> None:
        found = attempt(partial(cache.get, key, MISSING))
        if self.disorder and key in self._values and (same(found, self._values[key]) or self._is_old(key, found)):
            self.back.add(key)
        else:
            self._is(key, found, value)

    def _metadata(self, cache: Cache) -> None:
        for key, whole in METADATA.items():
            found = attempt(partial(cache.get, key, MISSING, expire_time=True, tag=True))
            self._expect(key, None if found == (MISSING, None, None) else found, whole)
        item = (attempt(lambda: cache.peek(prefix=PREFIX)) or (None, None))[1]
        if item is None:
            self.lost.add(PREFIX)
        if "item" not in self.spared:
            self._is("peek", item, ITEM)

    def _removed(self, cache: Cache) -> None:
        for key in {key for old in self._olds.values() for key in old} - self._values.keys() - METADATA.keys():
            found = attempt(partial(cache.get, key, MISSING))
            if not same(found, MISSING):
                self._expect(key, found, MISSING)
                self.lost.discard(key)

    def _readers(self, cache: Cache) -> None:
        for key in ("file", "text"):
            self._expect(key, attempt(partial(self._read, cache, key)), self._values[key])

    @staticmethod
    def _read(cache: Cache, key: str) -> str | None:
        found: Any = cache.get(key, read=True)
        if not hasattr(found, "read"):
            return None if found is None else str(found)
        with found:
            content = found.read()
        return content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)

    def _listed(self, cache: Cache) -> None:
        known = {*self._values, *METADATA, *(key for old in self._olds.values() for key in old)}
        for listed in (cache.__iter__, cache.__reversed__, cache.iterkeys):
            keys: list[Any] = attempt(partial(list, listed())) or []
            for key in keys:
                queued = isinstance(key, str) and key.startswith(f"{PREFIX}-")
                if self.keys and not queued and key not in known:
                    self.wrong.append(f"the key {key!r} is listed")
        last: Any = attempt(cache.peekitem)
        if last is not None and last[0] in self._values:
            self._expect(last[0], last[1], self._values[last[0]])

    def _tagged(self, cache: Cache) -> None:
        """Look at what the index of tags leads to, which the records decide about."""
        keys: list[Any] = attempt(lambda: list(cache.keys(tags=[TAGGED[3]]))) or []
        names = [usage.name for usage in attempt(cache.tags) or []]
        if TAGGED[0] in self.spared or not self.keys:
            return
        self.wrong += [f"{key!r} is listed by a tag that it has not" for key in keys if key != TAGGED[0]]
        known = {TAGGED[3], *(old[TAGGED[0]][2] for old in self._olds.values() if TAGGED[0] in old)}
        self.wrong += [f"the tag {name!r} is listed" for name in names if name not in known]


class Late(BaseException):
    """A case took too long. No `except Exception` of the package may take it for an error of its own."""


@contextmanager
def deadline(seconds: float = CASE_SECONDS) -> Iterator[None]:
    """Fail if the body takes longer than that."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except Late as hang:
        raise AssertionError(f"not done within {seconds} s") from hang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
