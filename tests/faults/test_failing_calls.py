"""Calls that the system refuses for a while: the error names the file, nothing is lost, and it works again afterwards."""

from __future__ import annotations

import errno
import io
import os
import resource
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.coherence import _native
from diskcache_like.disk import file_io
from diskcache_like.errors import CorruptDatabaseWarning, DirectoryError, StorageError
from diskcache_like.storage.upkeep.trash import GRACE

from ..support.cache_kinds import QUICK, Clock
from ..support.inspection import problems
from ..support.sample_writes import LARGE
from ..support.statement_hooks import watch
from ..support.tampering import damage, value_files

COLD: dict[str, Any] = {**QUICK, "hot_size_limit": 0, "eviction_policy": "none"}


class Refusing:
    """Stand in for a function of `os` and refuse its calls with an errno for as long as `on` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
        self.on = False
        self._real: Callable[..., Any] = getattr(os, name)
        self._code = code
        monkeypatch.setattr(os, name, self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.on:
            raise OSError(self._code, os.strerror(self._code))
        return self._real(*arguments, **options)


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with closing(Cache(tmp_path / "cache", **COLD)) as cache:
        yield cache


@pytest.mark.parametrize(("name", "code"), [("write", errno.EIO), ("open", errno.EMFILE), ("mkdir", errno.EACCES)])
def test_a_value_file_that_cannot_be_written_is_named(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    refusing = Refusing(monkeypatch, name, code)
    refusing.on = True
    with pytest.raises(DirectoryError) as caught:
        cache["k"] = LARGE
    refusing.on = False
    assert caught.value.errno == code
    assert cache.directory in str(caught.value)
    assert "k" not in cache
    assert problems(cache) == []
    cache["k"] = LARGE
    assert cache["k"] == LARGE


def test_a_value_file_for_which_no_descriptor_is_left_is_named(cache: Cache) -> None:
    cache["k"] = LARGE
    cache.get("k")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest:
        number = lowest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, limits[1]))
    try:
        with pytest.raises(DirectoryError, match="close files") as caught:
            cache.get("k")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
    assert caught.value.filename == str(value_files(Path(cache.directory))[0])
    assert cache["k"] == LARGE


def test_a_value_file_whose_disk_fails_is_named(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["k"] = LARGE
    monkeypatch.setattr(_native, "read_file", lambda *_: None)  # as after any error
    assert cache["k"] == LARGE
    monkeypatch.setattr(file_io, "_open_value", lambda *_: os.open("/proc/self/mem", os.O_RDONLY))
    with pytest.raises(DirectoryError, match="Input/output") as caught:
        cache.get("k")
    assert caught.value.filename == str(value_files(Path(cache.directory))[0])
    monkeypatch.undo()
    assert cache["k"] == LARGE


@pytest.mark.parametrize("is_open", [False, True])
def test_a_value_file_that_is_cut_while_it_is_read_is_damaged(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    cache["k"] = LARGE
    (path,) = value_files(Path(cache.directory))
    real = file_io._open_value

    def cut(*arguments: Any) -> Any:
        found = real(*arguments) if is_open else None
        os.truncate(path, len(LARGE) // 2)
        return found

    monkeypatch.setattr(_native, "read_file", cut if not is_open else lambda *_: None)
    if is_open:
        monkeypatch.setattr(file_io, "_open_value", cut)
    assert cache.get("k", "missing") == "missing"
    assert cache.metrics().damaged == 1


def test_a_value_file_that_cannot_be_read_is_named() -> None:
    with open("/proc/self/mem", "rb") as unreadable, pytest.raises(OSError, match="Input/output"):
        unreadable.read(1)  # its first page is never there
    for length in (1, -1):
        named = io.BufferedReader(file_io._NamedFile("/proc/self/mem", "rb"))
        with named, pytest.raises(DirectoryError, match="/proc/self/mem"):
            named.read(length)


def test_the_error_of_a_file_that_is_to_be_stored_is_left_alone(cache: Cache) -> None:
    with open("/proc/self/mem", "rb") as unreadable, pytest.raises(OSError, match="Input/output") as caught:
        cache.set("k", unreadable, read=True)
    assert not isinstance(caught.value, DirectoryError)
    assert value_files(Path(cache.directory)) == []


def test_check_keeps_an_entry_that_cannot_be_read_now(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["k"] = LARGE
    real = file_io.open_read
    monkeypatch.setattr(file_io, "open_read", lambda root, name, size: _refuse(os.path.join(root, name)))
    assert "Input/output" in problems(cache, fix=True)[0]
    monkeypatch.setattr(file_io, "open_read", real)
    assert problems(cache) == []
    assert cache["k"] == LARGE


def _refuse(path: str) -> Any:
    raise DirectoryError(errno.EIO, os.strerror(errno.EIO), path)


def test_a_file_that_cannot_be_unlinked_is_unlinked_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Cache(tmp_path / "cache", clock=clock, **COLD)) as cache:
        cache["k"] = LARGE
        (old,) = value_files(tmp_path)
        cache["k"] = LARGE[1:]
        refusing = Refusing(monkeypatch, "unlink", errno.EIO)
        for refusing.on in (True, False):
            for _ in range(3):
                clock.advance(2 * GRACE)
                (store,) = cache._shards.stores
                with store.locked(None):
                    store.trash.sweep()
            assert old.exists() == refusing.on
        assert cache["k"] == LARGE[1:]
        assert problems(cache) == []


def _corrupt(*_: object) -> Any:
    """Raise what SQLite makes of an error of the disk while it reads."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    raise error


class Failing:
    """A cursor whose first statement fails as if the disk did."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.connection = cursor.connection
        self.execute = _corrupt
        self.close = cursor.close


@pytest.mark.parametrize("read", [lambda cache: cache.get("k"), lambda cache: cache.get_many(["k"])["k"]])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_read_that_fails_for_a_moment_costs_no_entry(
    cache: Cache, read: Callable[[Cache], object], damaged: bool
) -> None:
    cache.set_many({"k": "value", "l": 1})  # past the write buffer, so that it is read from the database
    free = cache._shards.stores[0].shard.pool.free
    cursor: Any = Failing(free.pop())
    free.append(cursor)
    if not damaged:
        assert read(cache) == "value"
        assert cursor not in free
        assert not Path(cache.directory, "cache.1.db").exists()
        return
    damage(Path(cache.directory) / "cache.db", "header")
    with pytest.warns(CorruptDatabaseWarning):
        assert cache.get("k") is None


@pytest.mark.parametrize("size", [0, QUICK["write_buffer"]], ids=["direct", "buffered"])
def test_a_write_that_fails_for_a_moment_costs_no_entry(tmp_path: Path, size: int) -> None:
    with closing(Cache(tmp_path, **{**COLD, "write_buffer": size})) as cache:
        cache["k"] = "value"
        failures = [1]
        watch(cache, before=lambda _: _corrupt() if failures and failures.pop() else None)
        cache["k"] = "other"
        cache.flush()
        assert failures == []
        assert cache["k"] == "other"
        assert list(cache) == ["k"]
        assert not Path(cache.directory, "cache.1.db").exists()


@pytest.mark.parametrize(
    ("write", "statement"),
    [(lambda cache: cache.set("k", LARGE), "INSERT"), (lambda cache: _in_transaction(cache), "COMMIT")],
    ids=["set", "transact"],
)
def test_the_file_of_a_commit_that_may_be_in_the_wal_stays(cache: Cache, write: Any, statement: str) -> None:
    cache["k"] = "value"
    cache.flush()
    failures = [1]
    watch(cache, before=lambda text: _fail_to_sync() if text.startswith(statement) and failures else None)
    with pytest.raises(StorageError, match="disk I/O error"):
        write(cache)
    assert len(value_files(Path(cache.directory))) == 1
    failures.clear()
    assert cache["k"] == "value"
    cache.set_many({"other": 1})  # takes its place in the WAL
    assert problems(cache, fix=True)
    assert value_files(Path(cache.directory)) == []


def _in_transaction(cache: Cache) -> None:
    with cache.transact():
        cache["k"] = LARGE


def _fail_to_sync() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    raise error


@pytest.mark.parametrize("times", [1, 2])
def test_a_database_that_could_be_opened_for_reading_only_is_opened_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    cache["k"] = 1
    cache.close()
    assert cache["k"] == 1
    real: Callable[..., sqlite3.Connection] = sqlite3.connect
    left = [True] * times

    def connect(path: str, **options: Any) -> sqlite3.Connection:
        """Do what SQLite does where it may not open a file for writing."""
        if left and left.pop():
            return real(f"{Path(path).as_uri()}?mode=ro", uri=True, **options)
        return real(path, **options)

    monkeypatch.setattr(sqlite3, "connect", connect)
    if times > 1:
        with pytest.raises(DirectoryError, match="readonly"):
            cache.set_many({"k": 2, "other": 2})
    cache.set_many({"k": 3, "other": 3})
    assert cache.get_many(["k", "other"]) == {"k": 3, "other": 3}


@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop, lambda cache, key: cache.delete_many([key])])
def test_an_expired_entry_that_was_removed_does_not_come_back_when_the_clock_is_set_back(
    tmp_path: Path, clock: Clock, remove: Callable[[Cache, str], object]
) -> None:
    with closing(Cache(tmp_path / "cache", clock=clock, cull_limit=0, **COLD)) as cache:
        cache.set("k", 1, expire=5)
        clock.advance(10)
        assert not remove(cache, "k")
        clock.advance(-10)
        assert "k" not in cache
        assert len(cache) == 0
        assert problems(cache) == []


def test_a_writer_keeps_its_connection_while_another_thread_follows(cache: Cache) -> None:
    store = cache._shards.stores[0]
    writer = store.connection.open()
    store.shard.lock.acquire()
    try:
        following = threading.Thread(target=store.shard._leave_connections, args=(False,))
        following.start()
        following.join()
        assert writer.execute("SELECT 1").fetchone() == (1,)
        writer.close()
    finally:
        store.shard.lock.release()
    cache.close()
    assert len(cache) == 0
    writer = store.connection.open()
    store.shard._leave_connections(holds_lock=False)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writer.execute("SELECT 1")
    cache.close()


def test_a_new_database_shares_no_memory_with_a_removed_one(cache: Cache) -> None:
    cache["k"] = "old"
    shared = Path(cache.directory, "cache.db-shm")
    before = shared.stat().st_ino
    for name in ("cache.db", "cache.gen", "cache.lock"):
        Path(cache.directory, name).unlink()
    with closing(Cache(cache.directory, **COLD)) as other:
        other["k"] = "new"
        assert shared.stat().st_ino != before
        assert cache["k"] == "old"
        assert other["k"] == "new"


def test_a_directory_that_goes_away_while_it_is_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "listdir", lambda path: _refuse_listing(path))
    with pytest.raises(DirectoryError, match="removed while it was in use") as caught:
        Cache(tmp_path / "cache", **COLD)
    assert caught.value.filename == str(tmp_path / "cache")


def _refuse_listing(path: str) -> list[str]:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
