"""Writes that are tried again, on a disk that was full or a database that is damaged: nothing of the first try is left."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from diskcache_like import Cache, Index
from diskcache_like.cache import atomic_key
from diskcache_like.encoding.record import NO_METADATA, Metadata
from diskcache_like.entries.atomic_key import REMOVE, Decision
from diskcache_like.entries.loading import ENOVAL
from diskcache_like.errors import CorruptDatabase, CorruptDatabaseWarning, DiskFull
from diskcache_like.storage.opening import replacement
from diskcache_like.storage.shard import writer_connection
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.sqlite import statements as sql
from diskcache_like.storage.upkeep.recovery import Recovery
from diskcache_like.storage.writer import Writer

from ..support.cache_kinds import Opener, few
from ..support.tampering import plant


@contextmanager
def full_once(cache: Cache, meanwhile: Callable[[], object], times: int = 1) -> Iterator[None]:
    """Refuse the next change so many times; `meanwhile` is called when the lock is free for another try."""
    change, mend = Writer._change, Recovery.mend
    refusals = iter([DiskFull("no room", cache.directory) for _ in range(times)])

    def refused(writer: Writer, *arguments: Any) -> int:
        for error in refusals:
            raise error
        return change(writer, *arguments)

    def mended(recovery: Recovery, *arguments: Any) -> None:
        mend(recovery, *arguments)
        meanwhile()

    with mock.patch.object(Writer, "_change", refused), mock.patch.object(Recovery, "mend", mended):
        yield
    assert next(refusals, None) is None


@few
def test_pop_returns_nothing_that_another_has_popped(open_cache: Opener) -> None:
    cache, other = open_cache(write_buffer=0), open_cache()
    cache["key"] = "value"
    popped: list[Any] = []
    with full_once(cache, lambda: popped.append(other.pop("key")), times=2):
        assert cache.pop("key", "none", tag=True) == ("none", None)
    assert popped == ["value"]


@few
def test_touch_does_not_answer_for_an_entry_that_was_removed(open_cache: Opener) -> None:
    cache, other = open_cache(write_buffer=0), open_cache()
    cache["key"] = "value"
    with full_once(cache, lambda: other.delete("key")):
        assert cache.touch("key", 5) is False
    assert "key" not in other


@few
def test_what_becomes_of_an_entry_is_decided_anew(open_cache: Opener) -> None:
    cache, other = open_cache(write_buffer=0), open_cache()
    cache["key"] = "value"
    found: list[Any] = []

    def decide(value: Any, _: Metadata) -> Decision:
        found.append(value)
        return None if value is ENOVAL else REMOVE

    with full_once(cache, lambda: other.delete("key"), times=2):
        assert not atomic_key(cache, "key").update(decide, None)
    assert found == ["value", ENOVAL]


LARGE = b"large" * 50_000


@few
def test_the_value_file_of_a_first_try_goes(open_cache: Opener) -> None:
    cache = open_cache()
    put, refusals = Writer._put, iter([DiskFull("no room", cache.directory)])

    def refused(writer: Writer, *arguments: Any) -> int:
        for error in refusals:
            raise error
        return put(writer, *arguments)

    with mock.patch.object(Writer, "_put", refused), mock.patch.object(Recovery, "mend"):
        assert atomic_key(cache, "key").update(lambda *_: (LARGE, NO_METADATA), None)
    assert next(refusals, None) is None
    assert cache["key"] == LARGE
    assert cache.check() == []


@few
def test_a_value_file_is_kept_for_the_database_that_takes_the_place_of_a_damaged_one(open_cache: Opener) -> None:
    cache = open_cache()
    commit, damages = WriterConnection.commit, iter([1])

    def committed(connection: WriterConnection, *arguments: Any) -> None:
        for _ in damages:
            raise CorruptDatabase("damaged")
        commit(connection, *arguments)

    with (
        mock.patch.object(replacement, "is_sound", return_value=False),
        mock.patch.object(WriterConnection, "commit", committed),
        pytest.warns(CorruptDatabaseWarning),
    ):
        assert cache.set_many(dict.fromkeys("abcdefghijkl", LARGE)) == 12
    assert {cache[key] for key in cache} == {LARGE}
    assert cache.check() == []


# -- a database that calls the disk full because it is damaged ----------------------------------------------------------

ROW = b"r" * 4950  # with four of them the root page has no room for another one
BEYOND = struct.pack(">I", 0xF0000000)
MOST = 0x3FFFFFFF  # pages of a database before SQLite 3.45, which calls one full that refers to a page beyond


@pytest.fixture(params=["wal", "delete"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a cache whose rows go on in pages that are not there, so that their page cannot be divided.

    They are in front of the next rows, which would else have a page of their own.
    """
    with closing(Cache(tmp_path / "cache", sqlite_journal_mode=request.param)) as cache:
        cache.set_many({number: ROW for number in range(4)})
    plant(tmp_path / "cache", "UPDATE entry SET id = id + (1 << 60)")
    path = tmp_path / "cache" / "cache.db"
    damaged, number = re.subn(rb"(?<=rrrr)\0\0\0[^\0]", BEYOND, path.read_bytes())
    assert number == 4
    path.write_bytes(damaged)
    return tmp_path / "cache"


def with_few_pages(cache: Cache) -> Cache:
    """Return a cache whose database may have as many pages as those of old versions of SQLite."""
    (store,) = cache._shards.stores
    store.connection.open().execute(f"PRAGMA max_page_count = {MOST}")
    return cache


WRITES: dict[str, Callable[[Cache], object]] = {
    "set": lambda cache: cache.set("key", ROW),
    "add": lambda cache: cache.add("key", ROW),
    "set_many": lambda cache: cache.set_many({"key": ROW}),
    "push": lambda cache: cache.push(ROW),
    "set with tag": lambda cache: cache.set("key", ROW, tag="tag", expire=60),
}


def write_through(cache: Cache, write: str) -> None:
    WRITES[write](cache)
    cache.flush()


@pytest.mark.parametrize("write", WRITES)
def test_a_damaged_database_that_says_full_is_quarantined(directory: Path, write: str) -> None:
    with closing(with_few_pages(Cache(directory))) as cache:
        with pytest.warns(CorruptDatabaseWarning, match=r"(?s)cache\.db.*database or disk is full.*goes on empty"):
            write_through(cache, write)
        assert [cache[key] for key in cache] == [ROW]
        WRITES[write](cache)
        assert cache.check() == []
    assert BEYOND in (directory / "cache.db").read_bytes()


def test_a_transaction_on_a_damaged_database_that_says_full_ends_with_that(directory: Path) -> None:
    with closing(with_few_pages(Cache(directory))) as cache:
        with pytest.warns(CorruptDatabaseWarning), pytest.raises(CorruptDatabase), cache.transact():
            cache["key"] = ROW
        with cache.transact():
            cache["key"] = ROW
        assert cache["key"] == ROW


@pytest.mark.parametrize("write", [lambda kept: kept.update({"key": ROW}), lambda kept: kept.setdefault("key", ROW)])
def test_who_does_not_want_an_empty_cache_is_told_of_the_damage(
    directory: Path, write: Callable[[Index], object]
) -> None:
    index = Index(directory)
    with closing(with_few_pages(index.cache)):
        for _ in range(2):
            with pytest.raises(CorruptDatabase, match=r"cache\.db"):
                write(index)
    assert not (directory / "cache.1.db").exists()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Cache]:
    """Return a cache with an entry."""
    with closing(Cache(tmp_path / "cache")) as cache:
        cache["key"] = "value"
        yield cache


@contextmanager
def limited(cache: Cache) -> Iterator[list[str]]:
    """Let the database of a cache grow no more; yield the statements that its writer runs."""
    statements: list[str] = []
    (store,) = cache._shards.stores
    ((pages,),) = store.connection.select("PRAGMA page_count")
    store.connection.open().execute(f"PRAGMA max_page_count = {pages}")
    store.connection.open().set_trace_callback(statements.append)
    yield statements
    store.connection.open().set_trace_callback(None)
    assert not list(Path(cache.directory).glob("cache.*.db"))


def looks(statements: list[str]) -> int:
    """Return how often a database was looked through."""
    return sum("integrity_check" in statement for statement in statements)


def test_a_database_is_not_looked_through_for_its_own_limit(one: Cache) -> None:
    with limited(one) as statements, pytest.raises(DiskFull):
        one["other"] = b"other" * 5000
    assert looks(statements) == 0
    assert one["key"] == "value"


def test_a_full_disk_is_not_looked_at(one: Cache) -> None:
    full = mock.Mock(f_bavail=1, f_frsize=4096)
    with (
        mock.patch.object(sql, "MOST_PAGES", "SELECT 1 << 30"),
        mock.patch.object(os, "statvfs", return_value=full),
        limited(one) as statements,
        pytest.raises(DiskFull),
    ):
        one["other"] = b"other" * 5000
    assert looks(statements) == 0


def test_a_sound_database_that_says_full_is_looked_through_a_hundredth_of_the_time(one: Cache) -> None:
    with (
        mock.patch.object(sql, "MOST_PAGES", "SELECT 1 << 30"),
        mock.patch.object(writer_connection, "monotonic", side_effect=count()),  # a second for each look at the clock
        limited(one) as statements,
    ):
        for _ in range(100):
            with pytest.raises(DiskFull):
                one["other"] = b"other" * 5000
    assert 1 < looks(statements) < 5
    assert one["key"] == "value"
