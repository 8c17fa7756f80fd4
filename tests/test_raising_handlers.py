"""Signal handlers that raise, as Ctrl-C does: the call that they interrupt leaves nothing behind that hinders the next.

`tests/prove/raising.py` interrupts every call at every place; here are samples of that, and what it found.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import signal
import sqlite3
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence import lock
from diskcache_like.coherence.generations import GenerationFile
from diskcache_like.coherence.lock import WriteLock
from diskcache_like.errors import TransactionError
from diskcache_like.storage import forking, schema
from diskcache_like.storage.connection import MAX_READERS
from diskcache_like.storage.holding import Holder
from diskcache_like.storage.scopes import _Scope

from .prove.raising import CALLS, interrupt_part
from .prove.stage import KINDS, opened, played
from .prove.stepping import Stepper, carry_out, interrupted, places_in

LARGE = b"x" * 40_000


def test_handlers_run_where_a_result_would_be_lost() -> None:
    """The method itself: an acquisition whose result nobody gets to see is among the places."""
    lock, got = threading.Lock(), []

    def take() -> None:
        got.append(lock.acquire(False))
        lock.release()

    lost = []
    for number in range(1, places_in(take) + 1):
        got.clear()
        assert interrupted(take, number) is not None
        lost.append(lock.locked() and not got)
        if lock.locked():
            lock.release()
    assert any(lost)
    assert not all(lost)


@pytest.mark.parametrize("name", ["set", "incr", "delete", "transact", "evict", "close"])
def test_a_call_may_be_interrupted_anywhere(tmp_path: Path, name: str) -> None:
    part = partial(interrupt_part, CALLS[name], "Cache", tmp_path / "cache", 3, random.Random(name))
    assert played(part) > 0  # in a process of its own, since one that opens a value file may leave a descriptor open


def test_a_lock_that_an_acquisition_took_is_given_back(tmp_path: Path) -> None:
    lock, other = WriteLock(tmp_path / "lock"), WriteLock(tmp_path / "lock")

    def take() -> None:
        lock.acquire(0)
        lock.release()

    for number in range(1, places_in(take) + 1):
        interrupted(lambda: lock.acquire(0), number)
        if lock.locked_by_me():
            lock.release()  # the acquisition came to its end
        other.acquire(0)
        other.release()
    lock.close()
    other.close()


class _Ends(Stepper):
    """Note which of the places are the beginning of the end of a with-block, and which of them the caller wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []
        self.outside: list[int] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        step = super().__call__(frame, event, argument)
        if frame.f_code is _Scope.__exit__.__code__:
            self.numbers.append(self.places)
            if frame.f_back is not None and frame.f_back.f_code.co_filename == __file__:
                self.outside.append(self.places)
        return step


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_transaction_holds_is_given_back_also_while_the_exception_lives(tmp_path: Path, kind: str) -> None:
    with opened(kind, tmp_path, timeout=5) as cache, opened(kind, tmp_path, timeout=0) as other:

        def change() -> None:
            with cache.transact(), cache.transact():
                cache.set("left", 1)
                cache.set("right", LARGE)

        change()
        ends = _Ends()
        with ends.traced():
            carry_out(ends, change)
        assert len(ends.numbers) > 5
        for number in set(ends.numbers) - {ends.outside[-1]}:  # of the block outside of all nothing is left to end it
            error = interrupted(change, number)
            assert error is not None
            with other.transact(retry=False):  # a Timeout, if a lock is held
                other.set("left", 2)
            assert cache.get("left") == 2
            del error


def test_a_new_database_is_not_rolled_back_after_its_commit(tmp_path: Path) -> None:
    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(statement, *parameters)
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return cursor

    connection = sqlite3.connect(tmp_path / "db", isolation_level=None, factory=Connection)
    with contextlib.closing(connection), pytest.raises(KeyboardInterrupt):
        schema.create(connection, {})


def interrupt_leaving() -> mock._patch[mock.MagicMock]:
    return mock.patch.object(Holder, "leave", side_effect=KeyboardInterrupt)


def test_a_file_stays_whose_write_was_interrupted_after_its_commit(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = b"old" + LARGE
        with interrupt_leaving(), pytest.raises(KeyboardInterrupt):
            cache["key"] = b"new" + LARGE
        assert cache["key"] == b"new" + LARGE
        assert cache.check() == []


def test_an_interrupted_transaction_leaves_neither_lock_nor_transaction(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path, timeout=0) as other:
        cache["key"] = 1

        def change() -> None:
            with cache.transact():
                cache["key"] = 2

        with interrupt_leaving(), pytest.raises(KeyboardInterrupt):
            change()
        assert cache["key"] == other["key"] == 2
        other.set("key", 3)
        assert cache["key"] == 3


def test_a_lock_left_with_its_thread_is_taken_back_by_its_next_call(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path, timeout=0) as other:
        cache._shards.stores[0].lock.acquire(0)
        cache["key"] = 1
        other.set("key", 2)
        assert cache["key"] == 2


def test_connections_that_were_lost_are_replaced(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:
        cache["key"] = 1
        for _ in range(2 * MAX_READERS):
            assert cache["key"] == 1
            cache._shards.stores[0]._pool.free.pop()  # and a handler raises before it is given a name


def test_the_hot_layer_goes_on_after_an_interrupted_insertion(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        order = mock.Mock(append=mock.Mock(side_effect=KeyboardInterrupt))
        with mock.patch.object(cache._hot, "_order", order), pytest.raises(KeyboardInterrupt):
            cache["key"] = 1
        done = threading.Thread(target=cache._hot.clear)  # would wait for ever
        done.start()
        done.join(10)
        assert not done.is_alive()
        cache["key"] = 2
        assert list(cache._hot.entries) == ["key"]


def test_a_transaction_that_a_call_cut_short_was_ending_does_not_outlive_it(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.set("due", 1, expire=0)
        settle = GenerationFile.settle
        with (
            mock.patch.object(GenerationFile, "settle", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            cache.set("key", 1)  # which first removes what has expired, in a transaction of its own
        assert GenerationFile.settle is settle
        assert cache.set("key", 2)
        assert cache.check() == []


# -- handlers that write, beside what raises --------------------------------------------------------------------------


def test_a_handler_takes_no_lock_from_a_call_about_all_shards(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache, FanoutCache(tmp_path, shards=2, timeout=0) as other:
        first, second = cache._shards.stores
        key = next(key for key in range(100) if cache._locate(key)[2] is first)
        told: list[object] = []
        enter = Holder.enter

        def entered(store: Holder, timeout: float | None, culls: bool = True) -> bool:
            if store is second and not told:
                told.append("interrupted")
                signal.raise_signal(signal.SIGUSR1)
            return enter(store, timeout, culls)

        def write(*_: object) -> None:
            with pytest.raises(TransactionError):
                cache.set(key, "of the handler")
            told.append("refused")

        before = signal.signal(signal.SIGUSR1, write)
        try:
            with mock.patch.object(Holder, "enter", entered), cache.transact():
                assert told == ["interrupted", "refused"]
                assert first.lock.locked_by_me()
                assert not other.set(key, "of another")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert other.set(key, "of another")


def test_a_handler_that_writes_before_a_fork_does_not_end_the_rest(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        forking._before()
        try:
            with pytest.raises(TransactionError):
                cache.set("key", 1)
        finally:
            forking._after_in_parent()
        assert cache.set("key", 2)


def test_a_release_that_is_interrupted_before_its_system_call_is_made_all_the_same(tmp_path: Path) -> None:
    """An audit hook written in Python runs before the call, and a signal handler may run in it."""
    mine, other = WriteLock(tmp_path / "lock"), WriteLock(tmp_path / "lock")
    unlock, calls = fcntl.flock, iter([KeyboardInterrupt])

    def audited(descriptor: int, operation: int) -> None:
        for error in calls:
            raise error
        unlock(descriptor, operation)

    mine.acquire(0)
    with mock.patch.object(lock, "flock", audited), pytest.raises(KeyboardInterrupt):
        mine.release()
    other.acquire(0)
    other.release()
    mine.acquire(0)
    mine.close()
    other.close()
