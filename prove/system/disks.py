"""Disks that fill up, turn read-only or go away while a cache is in use."""

from __future__ import annotations

import gc
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import combinations, count, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from diskcache_like import Cache
from diskcache_like.errors import (
    CacheError,
    CorruptDatabase,
    CorruptDatabaseWarning,
    DirectoryError,
    DiskFull,
    StorageError,
    Timeout,
)
from diskcache_like.storage.upkeep import maintenance
from tests.support.inspection import cache_descriptors, problems
from tests.support.sample_writes import MISSING
from tests.support.small_disks import MEBIBYTE, Disk, NotPermitted, mount_privately, mounted

from ..proof import CannotRun, Trial, proof, repeated
from ..shim import Shim, build
from ..workload import LARGE, OPERATIONS, OPTIONS, Session, Wrong, one_layout, recover, script

STEP = 4096  # bytes that a tmpfs gives out at a time
ENOUGH = 600_000  # bytes with which nothing of the workload is refused
FILES = 8  # large entries that are there before the disk fills up, to be removed when it is full
SIZES = (LARGE, 30_000)  # bytes of these, with a file for each or in rows alone
ROOMY = 96 * MEBIBYTE  # of a disk on which writes wait in the buffer
PATIENCE = 30.0  # seconds for threads that should end at once


@contextmanager
def disk_of(trial: Trial, size: int) -> Iterator[Disk]:
    """Mount a small disk for the length of a with-block; raise CannotRun where that is not permitted."""
    path = trial.fresh("disk").resolve()
    try:
        mount_privately()  # a proof may be killed
        with mounted(path, size) as disk:
            yield disk
    except NotPermitted as reason:
        raise CannotRun(f"{reason}; run it as root") from None


class OpenSession(Session):
    """A run of the script whose handle stays open, and can read whatever the disk does."""

    def attempt(self, name: str, do: Callable[[Cache], Any]) -> Any:
        """Do something; reads must not fail."""
        found = super().attempt(name, do)
        if isinstance(found, CacheError) and name.startswith("get"):
            raise Wrong(f"{name} failed on an open handle: {found}") from found
        return found

    def close(self) -> None:
        """Leave the handle open."""

    def reopen(self) -> None:
        """Open a second handle if the disk lets it, and leave it at that."""
        opened = self.attempt("open", lambda _: Cache(self.directory, clock=self.clock, **self.options))
        if not isinstance(opened, CacheError):
            self.old.append(opened)


# -- full disks -------------------------------------------------------------------------------------------------------


def _delete(session: Session) -> None:
    for number in range(FILES):
        session.cache.delete(("room", number))
        session.may_be["room", number] = [MISSING]


def _clear(session: Session) -> None:
    session.cache.clear()
    session.may_be = {**{key: [MISSING] for key in session.may_be}, session.lane.queue: [()]}


def _evict(session: Session) -> None:
    cache = session.cache
    with suppress(DiskFull):
        cache.reset("eviction_policy", "least-recently-stored", update=False)
    with suppress(DiskFull):
        cache.reset("size_limit", cache.volume() // 3, update=False)
    if not cache.cull():
        raise Wrong("cull evicted nothing from a full disk")
    queue = session.lane.queue
    for key in session.may_be:
        session.may_be[key] = [*session.may_be[key], MISSING]
    items = max(session.may_be.pop(queue)[:-1], key=len)
    session.may_be[queue] = [left for number in range(len(items) + 1) for left in combinations(items, number)]


ROOM: tuple[Callable[[Session], None], ...] = (_delete, _clear, _evict)


def _with_room(trial: Trial, disk: Disk, left: int, make_room: Callable[[Session], None], size: int) -> None:
    """Run the script with `left` bytes of room, and what has to follow.

    `size` is that of the entries that are removed to make room.
    """
    session = OpenSession(disk.path / "cache")
    session.errors = (DiskFull,)
    try:
        for number in range(FILES):
            value = session.value(("room", number), size)
            session.cache["room", number] = value
            session.may_be["room", number] = [value]
        disk.fill(left)
        script(session)
        for key in session.may_be:
            session.compare(key, session.read(session.cache, key))
        disk.fill()
        value = session.value(("room", 0), size)
        try:
            make_room(session)
            session.cache["room", 0] = value
        except DiskFull:
            if size == LARGE:
                raise
            _clear(session)  # which needs less room than to remove a part, if others have filled the disk
            session.cache["room", 0] = value
            trial.count("times only clear made room")
        session.may_be["room", 0] = [value]
        session.compare(("room", 0), session.cache.get(("room", 0), MISSING))
        if make_room is _evict:  # the limit is still that low, and the next entry is larger than the small ones
            session.may_be["room", 0].append(MISSING)
        disk.empty()
        recover(session)
        trial.count("writes refused", sum(session.refused.values()))
    finally:
        disk.empty()
        session.end()


@proof("disk-full", 6, "a disk filled so that its space ends at each page of a workload, then given space again")
def _fill(trial: Trial) -> None:
    def case(item: tuple[int, Callable[[Session], None], int]) -> None:
        with disk_of(trial, 4 * MEBIBYTE) as disk, one_layout(), warnings.catch_warnings(action="error"):
            _with_room(trial, disk, *item)

    ways = [*product(ROOM, SIZES)]
    offsets = range(0, ENOUGH, STEP)
    trial.each(
        [(left, *ways[(number + turn) % len(ways)]) for turn in (0, 3) for number, left in enumerate(offsets)],
        case,
        "offsets",
    )


# -- disks that others fill while writes wait in the buffer -----------------------------------------------------------


class Amounts(NamedTuple):
    """What is drawn from: lengths of values, entries before and after a flush, and writes on the full disk."""

    lengths: tuple[int, ...] = (5, 200, 1_000)
    before: tuple[int, ...] = (1, 20, 900, 2_500)
    after: tuple[int, ...] = (1, 20, 900, 2_500)
    late: tuple[int, ...] = (0, 200)


FEW_WAIT = Amounts((1_000,), (250,), (1,), (200,))  # what `clear` needs is more than what waits


class Waiting:
    """A cache on a disk that others fill, beside what must be in it."""

    def __init__(self, cache: Cache, random: Random, amounts: Amounts) -> None:
        self._cache, self._random, self._model = cache, random, dict[int, str]()
        length = random.choice(amounts.lengths)
        self._values = (f"{number} {'v' * length}" for number in count())

    def write(self, key: int) -> None:
        value = next(self._values)
        self._cache[key] = value
        self._model[key] = value

    def step(self) -> None:
        """Do something that is done whole or raises DiskFull."""
        cache, model, key = self._cache, self._model, self._random.randrange(len(self._model) + 20)
        match self._random.choice(("write", "delete", "delete", "pop", "len", "expire")):
            case "write":
                self.write(key)
            case "delete":
                assert cache.delete(key) == (key in model)
                model.pop(key, None)
            case "pop":
                assert cache.pop(key) == model.get(key)
                model.pop(key, None)
            case "len":
                assert len(cache) == len(model)
            case "expire":
                assert cache.expire() == 0

    def clear(self) -> None:
        self._cache.clear()
        self._model.clear()
        self.write(0)

    def compare(self, keys: Iterable[int]) -> None:
        assert {key: self._cache[key] for key in keys} == self._model, "something else is there"


def _fill_while_writes_wait(trial: Trial, amounts: Amounts, random: Random) -> None:
    """Have writes wait when the disk fills up, go on, and have `clear` make room."""
    with (
        disk_of(trial, ROOMY) as disk,
        warnings.catch_warnings(action="error"),
        closing(Cache(disk.path / "cache")) as cache,
    ):
        waiting = Waiting(cache, random, amounts)
        for key in range(random.choice(amounts.before)):
            waiting.write(key)
        if random.random() < 0.5:
            cache.flush()
        for key in range(random.choice(amounts.after)):
            waiting.write(key)
        disk.fill()
        for _ in range(random.randrange(20)):
            try:
                waiting.step()
            except DiskFull:
                trial.count("steps refused")
        for number in range(random.choice(amounts.late)):
            with suppress(DiskFull):
                waiting.write(number)
        waiting.compare([*waiting._model])
        if random.random() < 0.5:
            waiting.clear()
        disk.empty()
        waiting.compare(cache)
        waiting.write(0)
        assert not problems(cache)


@repeated(
    "disk-full-waiting", 6, "a disk that others fill while writes wait in the buffer, removals then, and space again"
)
def _fill_under(trial: Trial, random: Random) -> None:
    _fill_while_writes_wait(trial, Amounts(), random)


@repeated(
    "disk-control-reserve",
    6,
    "the same, with the disk reserve given to what waits",
    finds=r"diskcache_like\.errors\.DiskFull: ",
)
def _fill_without_reserve(trial: Trial, random: Random) -> None:
    with mock.patch.multiple(maintenance, LITTLE=1 << 30, LATE_RESERVE=0):
        _fill_while_writes_wait(trial, FEW_WAIT, random)


# -- read-only disks --------------------------------------------------------------------------------------------------


def _turn(trial: Trial, at: int) -> None:
    """Make the disk read-only under an open cache before its operation number `at`, and writable again at the end."""
    directory = trial.fresh().resolve()
    session = OpenSession(directory)
    try:
        with ExitStack() as stack:
            session.at, session.meanwhile = at, lambda: stack.enter_context(Shim(directory.parent).read_only())
            script(session)
        trial.count("operations refused", sum(session.refused.values()))
        recover(session)
    finally:
        session.end()


def _remount(trial: Trial) -> None:
    """Make the disk read-only while no file of the cache is open, and try to use it."""
    with disk_of(trial, 4 * MEBIBYTE) as disk:
        session = Session(disk.path / "cache")
        script(session)
        session.end()
        disk.remount("ro")
        try:
            for use in (
                lambda: Cache(session.directory),
                lambda: Cache(session.directory.parent / "new"),
                lambda: session.cache.get("last"),
                lambda: session.cache.set("last", 0),
                lambda: session.cache.set("last", bytes(LARGE)),
            ):
                try:
                    use()
                except DirectoryError as error:
                    if str(session.directory.parent) not in str(error):
                        raise Wrong(f"the error does not say where: {error}") from error
                else:
                    raise Wrong("a closed cache was opened on a read-only disk")
        finally:
            disk.remount("rw")
        recover(session)


@proof(
    "disk-read-only",
    6,
    "a disk made read-only before each operation of a workload, and then writable again",
    preload=build,
)
def _turn_read_only(trial: Trial) -> None:
    with one_layout(), warnings.catch_warnings(action="error"):

        def case(at: int) -> None:
            if at < 0:
                try:
                    _remount(trial)
                except CannotRun as reason:
                    trial.figure("remount", reason)
            else:
                _turn(trial, at)

        trial.each([-1, *range(OPERATIONS)], case, "moments")


# -- directories that go away -----------------------------------------------------------------------------------------

ANOTHERS = "another cache's value"


def _remove_all(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # somebody makes files in it meanwhile
        path.rename(path.with_name("doomed"))
        shutil.rmtree(path.with_name("doomed"), ignore_errors=True)


def _replace(path: Path) -> None:
    _remove_all(path)
    path.mkdir(0o700, exist_ok=True)


def _swap(path: Path) -> None:
    with closing(Cache(path.with_name("other"), **OPTIONS)) as other:
        other["anothers"] = ANOTHERS
    path.rename(path.with_name("moved"))
    while path.with_name("other").exists():
        with suppress(OSError):  # a thread has made the directory anew just now
            path.with_name("other").rename(path)
            return
        _remove_all(path)


def _move(path: Path) -> None:
    path.rename(path.with_name("moved"))


VANISHINGS: tuple[Callable[[Path], None], ...] = (_remove_all, _replace, _swap, _move)


class Vanishing(Session):
    """A run of the script whose directory goes away before one operation."""

    evicts = True  # whatever else was there

    def compare(self, key: Any, found: Any) -> None:
        """Take whatever an entry ever was: an open handle goes on with what it has open, another begins anew."""
        ever = self.ever.get(key, ())
        fine = {*found} <= {item for items in ever for item in items} if key == self.lane.queue else found in ever
        if found != MISSING and not fine:
            raise Wrong(f"{key!r} is {found!r:.40}, which it never was")


def _vanish(trial: Trial, at: int, how: Callable[[Path], None]) -> None:
    """Have the directory go away under the script."""
    directory = trial.fresh().resolve()
    session = Vanishing(directory)
    session.at, session.meanwhile = at, partial(how, directory)
    session.errors = (*session.errors, CorruptDatabase)  # what is read may be of one database, what is written another
    try:
        script(session)
    finally:
        session.end()
    trial.count("operations refused", sum(session.refused.values()))
    assert session.attempted > at, f"the script has no operation {at}: OPERATIONS is {OPERATIONS}"
    _assert_well(directory, how)


def _vanish_at_work(trial: Trial, at: int, how: Callable[[Path], None]) -> None:
    """Have the directory go away under threads that read, write and open handles."""
    directory = trial.fresh().resolve()
    shared, done, wrong = Cache(directory, **OPTIONS), threading.Event(), []

    def work(number: int) -> None:
        try:
            while not done.is_set():
                with suppress(DirectoryError, StorageError, Timeout):
                    _use(shared, directory, number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(at):
        len(shared)
    how(directory)
    for _ in range(20):
        with suppress(DirectoryError, StorageError, Timeout):
            len(shared)
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise Wrong("a thread hangs")
    shared.close()
    if wrong:
        raise wrong[0]
    trial.count("threads", len(threads))
    _assert_well(directory, how)


def _use(shared: Cache, directory: Path, number: int) -> None:
    """Do something; a value found must be one that is written here."""
    if number == 3:
        with closing(Cache(directory, **OPTIONS)) as other:
            other["handle"] = ("handle",)
        return
    value = (str(number) * LARGE) if number else number
    shared[number] = value
    if shared.get(number, value) != value:
        raise Wrong(f"{number} is {shared.get(number)!r:.40}")


def _assert_well(directory: Path, how: Callable[[Path], None]) -> None:
    """Assert that nothing is left open, nothing was written elsewhere, and what is there now can be used."""
    gc.collect()
    if left := cache_descriptors(directory.parent):
        raise Wrong(f"descriptors are left open: {left}")
    if strange := {path.name for path in directory.parent.iterdir()} - {"cache", "moved", "doomed"}:
        raise Wrong(f"{strange} came into being beside the directory")
    for path in (directory, directory.with_name("moved")):
        if path == directory or path.exists():
            with closing(Cache(path, **OPTIONS)) as fresh:
                fresh["new"] = bytes(LARGE)
                fresh.check(fix=True)
                if left := problems(fresh):
                    raise Wrong(f"check still finds {left} after fix=True")
                if fresh["new"] != bytes(LARGE):
                    raise Wrong("a new entry is not what was written")
                if how is _swap and path == directory and fresh.get("anothers") != ANOTHERS:
                    raise Wrong("an entry of the cache that took the place is gone")


@proof(
    "disk-directory-gone",
    6,
    "the directory removed, moved or replaced before each operation of a workload, and under threads",
    parallel=True,
)
def _go_away(trial: Trial) -> None:
    with one_layout(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptDatabaseWarning)  # removed in part, it is taken for damaged

        def case(
            item: tuple[Callable[[Trial, int, Callable[[Path], None]], None], int, Callable[[Path], None]],
        ) -> None:
            run, at, how = item
            run(trial, at, how)

        trial.each(list(product((_vanish, _vanish_at_work), range(OPERATIONS), VANISHINGS)), case, "moments")
