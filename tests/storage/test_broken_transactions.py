"""Transactions that cannot be committed as a whole: nothing of them is stored, and who began them is told."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.generations import UNCOUNTED, Header
from diskcache_like.errors import CacheError, DiskFull, StorageError, TransactionError
from diskcache_like.storage.shard.transactions import Transactions
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.store import Store
from diskcache_like.storage.upkeep.quota import Quota
from diskcache_like.storage.upkeep.trash import Trash

KEYS = range(40)  # some in each shard


@pytest.fixture(params=[1, 3])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    with FanoutCache(tmp_path, shards=3) if request.param > 1 else Cache(tmp_path) as made:
        made.set_many(dict.fromkeys(KEYS, "old"))
        yield made


def stored(cache: Cache) -> dict[Any, Any]:
    """Return what another handle finds."""
    kind = FanoutCache if len(cache._shards.stores) > 1 else Cache
    with kind(cache.directory) as other:
        assert other.check() == []
        return {key: other.get(key) for key in other}


@contextmanager
def refusing(store: Store) -> Iterator[None]:
    """Have SQLite give up in the next change of a shard, and roll back as it does when a page cannot be read."""
    store.connection.open().set_progress_handler(lambda: 1, 1)
    try:
        yield
    finally:
        store.connection.open().set_progress_handler(None, 1)


def give_up(store: Store, *_: object) -> int:
    """Be told that the disk is full, by SQLite too."""
    with refusing(store), suppress(CacheError):
        store.connection.execute("UPDATE totals SET files = files")
    raise DiskFull("no room", store.path)


def write(cache: Cache, value: object) -> None:
    for key in KEYS:
        cache[key] = value


def test_nothing_is_stored_of_a_transaction_that_sqlite_has_ended_whatever_the_body_lets_pass(cache: Cache) -> None:
    told: list[CacheError] = []

    def change() -> None:
        with cache.transact():
            write(cache, "new")
            with refusing(cache._shards.of(cache._rows.locate(KEYS[0])[1])), suppress(StorageError):
                cache[KEYS[0]] = "refused"
            try:
                cache[KEYS[0]] = "alone"
            except StorageError as error:
                told.append(error)
            with suppress(StorageError), cache.transact():
                write(cache, "newer")

    with pytest.raises(StorageError, match="has rolled this transaction back"):
        change()
    assert told, "a step after it is refused, since it would be committed by itself"
    assert stored(cache) == {key: cache.get(key) for key in KEYS} == dict.fromkeys(KEYS, "old")
    write(cache, "after")
    assert stored(cache) == dict.fromkeys(KEYS, "after")


def test_a_failure_to_make_room_does_not_end_a_transaction_unseen(cache: Cache) -> None:
    store = cache._shards.of(cache._rows.locate(KEYS[0])[1])

    def change() -> None:
        with cache.transact():
            write(cache, "new")
            with mock.patch.object(store.evictor, "look_at_volume", partial(give_up, store)):
                store.maintenance.run(0)

    with pytest.raises(DiskFull):
        change()
    assert stored(cache) == dict.fromkeys(KEYS, "old")


def test_room_that_another_shard_could_not_give_does_not_end_a_transaction_unseen(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        cache.set_many(dict.fromkeys(KEYS, "old"))
        one, other = cache._shards.stores

        def change() -> None:
            with cache.transact():
                write(cache, "new")
                with (
                    mock.patch.object(other.evictor, "give_room", partial(give_up, other)),
                    mock.patch.object(Quota, "reserved", return_value=1 << 60),
                ):
                    one.evictor.take_back(1)

        with pytest.raises(DiskFull):
            change()
        assert stored(cache) == dict.fromkeys(KEYS, "old")


def interrupting(statement: str, number: int, after: bool) -> Any:
    """Have a signal handler raise before or after a statement is run for the `number`-th time."""
    execute, seen = WriterConnection.execute, 0

    def executed(connection: WriterConnection, text: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        nonlocal seen
        if not text.startswith(statement):
            return execute(connection, text, parameters)
        seen += 1
        if seen == number and not after:
            raise KeyboardInterrupt
        cursor = execute(connection, text, parameters)
        if seen == number and after:
            raise KeyboardInterrupt
        return cursor

    return mock.patch.object(WriterConnection, "execute", executed)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_nested_transaction_that_was_interrupted_as_it_ended_is_no_half_of_its_outer_one(
    cache: Cache, number: int, after: bool
) -> None:
    shards = len(cache._shards.stores)
    if number > shards:
        pytest.skip(f"there are {shards} shards")

    def change() -> None:
        with cache.transact():
            write(cache, "outer")
            with interrupting("RELEASE", number, after), suppress(KeyboardInterrupt), cache.transact():
                write(cache, "inner")

    if number == 1 and not after:  # no shard has released it, so that it is taken back alone
        change()
        expected = "outer"
    else:
        with pytest.raises(TransactionError, match="nested transaction was interrupted"):
            change()
        expected = "old"
    assert stored(cache) == {key: cache.get(key) for key in KEYS} == dict.fromkeys(KEYS, expected)


def fail_after(change: Callable[[], None]) -> None:
    change()
    raise LookupError


@pytest.mark.parametrize("after", [False, True])
def test_a_rollback_that_is_interrupted_is_made_all_the_same(cache: Cache, after: bool) -> None:
    with interrupting("ROLLBACK", 1, after), pytest.raises(KeyboardInterrupt), cache.transact():
        fail_after(lambda: write(cache, "new"))
    assert stored(cache) == dict.fromkeys(KEYS, "old")
    write(cache, "after")
    assert stored(cache) == dict.fromkeys(KEYS, "after"), "what is acknowledged is committed, and no lock is held"


class Failing:
    """A writing connection on a disk that fails as a transaction is rolled back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "ROLLBACK":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_rollback_that_the_disk_refuses_leaves_neither_lock_nor_transaction(cache: Cache) -> None:
    def change() -> None:
        write(cache, "new")
        for store in cache._shards.stores:
            store.connection.raw = Failing(store.connection.open())  # type: ignore[assignment]
        raise LookupError

    with pytest.raises(LookupError), cache.transact():
        change()
    assert not any(store.shard.lock.is_mine() for store in cache._shards.stores)
    assert stored(cache) == dict.fromkeys(KEYS, "old")
    write(cache, "after")
    assert stored(cache) == dict.fromkeys(KEYS, "after")


def test_no_count_is_noted_while_the_last_commit_is_in_doubt(cache: Cache) -> None:
    """SQLite may find it in the WAL at the next opening, though its sync failed."""
    execute = WriterConnection.execute

    def failing(connection: WriterConnection, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        if statement == "COMMIT":
            raise StorageError("input/output error")
        return execute(connection, statement, parameters)

    assert len(cache) == len(KEYS)
    with mock.patch.object(WriterConnection, "execute", failing), pytest.raises(StorageError), cache.transact():
        cache.set("new", 1)
    assert len(cache) == len(KEYS)
    assert all(store.shard.header[Header.COUNT] == UNCOUNTED for store in cache._shards.stores)
    with cache.transact():
        for key in KEYS:
            cache[key] = "newer"
    assert len(cache) == len(KEYS)
    assert all(store.shard.header[Header.COUNT] != UNCOUNTED for store in cache._shards.stores)


def test_files_that_an_eviction_cannot_remove_do_not_make_a_commit_fail(cache: Cache) -> None:
    with mock.patch.object(Trash, "empty", side_effect=StorageError("input/output error")), cache.transact():
        cache[0] = "new"
        for store in cache._shards.stores:
            store.connection.txn.evicted = True  # type: ignore[union-attr]
    assert stored(cache)[0] == "new"


def test_a_timeout_is_one_deadline_for_all_shards(tmp_path: Path) -> None:
    now, given = 0.0, []

    def take(transactions: Transactions, timeout: float | None, removes_expired: bool = True) -> None:
        nonlocal now
        given.append(timeout)
        now += 1
        taken(transactions, timeout, removes_expired)

    taken = Transactions.take
    with FanoutCache(tmp_path, shards=3, timeout=10) as cache:
        clock = mock.Mock(side_effect=lambda: now)
        with mock.patch.object(time, "monotonic", clock), mock.patch.object(Transactions, "take", take):
            with cache.transact(retry=False):
                pass
            assert given == [10, 9, 8]
