"""Signal handlers that raise, as Ctrl-C does: the call that they interrupt leaves nothing behind that hinders the next.

`prove/signals/proofs.py` interrupts every call at every place; here are samples of that, and what it found.
"""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import random
import re
import signal
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

import diskcache_like
from diskcache_like import Cache, Deque, EmptyDirWarning, FanoutCache, UnknownFileWarning
from diskcache_like.coherence.generations import GenerationFile
from diskcache_like.coherence.write_lock import WriteLock
from diskcache_like.errors import DecodeError, KeyEncodeError, TransactionError
from diskcache_like.storage.shard import forking, invalidation
from diskcache_like.storage.shard.ownership import Transaction
from diskcache_like.storage.shard.transactions import Transactions
from diskcache_like.storage.shard.writer_connection import WriterConnection
from diskcache_like.storage.sqlite import schema
from diskcache_like.storage.sqlite.reader_pool import MAX_READERS
from diskcache_like.system.signals import is_from_signal_handler, reraise_signal, suppress
from prove.children import KINDS, opened, played
from prove.signals.calls import CALLS
from prove.signals.proofs import interrupt_part
from prove.signals.stepping import Alarm, Interrupted, Late, interrupted, places_in

from ..support.cache_kinds import NEEDS_CIPHER, SECRET
from ..support.sample_objects import Point

LARGE = b"x" * 40_000
PLACES = 100  # at most, of one call


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


@pytest.mark.parametrize(
    "name", ["set", "incr", "delete", "transact", "evict", "set with tags", "evict of tags", "get_or_set", "close"]
)
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
        if lock.is_mine():
            lock.release()  # the acquisition came to its end
        other.acquire(0)
        other.release()
    lock.close()
    other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_transaction_holds_is_given_back_also_while_the_exception_lives(tmp_path: Path, kind: str) -> None:
    with opened(kind, tmp_path, timeout=5) as cache, opened(kind, tmp_path, timeout=0) as other:

        def change() -> None:
            with cache.transact(), cache.transact():
                cache.set("left", 1)
                cache.set("right", 1)

        change()
        places = places_in(change)
        for number in range(1, places + 1, places // PLACES + 1):
            error = interrupted(change, number)
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
    return mock.patch.object(Transactions, "settle", side_effect=KeyboardInterrupt)


def test_an_interrupted_computation_gives_back_its_flight_also_while_the_exception_lives(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:

        def compute() -> None:
            assert cache.get_or_set("key", lambda: 1) == 1

        compute()
        del cache["key"]
        for number in range(1, places_in(compute) + 1):
            cache.delete("key")
            error = interrupted(compute, number, (Interrupted, Alarm, Late)[number % 3])
            assert not cache._shards.stores[0].shard.byte_locks._held, (number, error)
            cache.delete("key")
            compute()  # which would wait for itself, if this thread seemed to be computing the value
            del error


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


def test_connections_that_were_lost_are_replaced(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0, write_buffer=0) as cache:
        cache["key"] = 1
        for _ in range(2 * MAX_READERS):
            assert cache["key"] == 1
            cache._shards.stores[0].shard.pool.free.pop()  # and a handler raises before it is given a name


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
        cache.flush()
        settle = GenerationFile.settle
        with (
            mock.patch.object(GenerationFile, "settle", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            cache.set("key", 1)  # which first removes what has expired, in a transaction of its own
        assert GenerationFile.settle is settle
        assert cache.set("key", 2)
        assert cache.check() == []


def test_the_lock_of_a_listing_that_merges_shards_is_given_back_at_once(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        for number in range(20):
            cache.set(number, number, tags=["tag"])
        with interrupt_leaving(), pytest.raises(KeyboardInterrupt):
            list(cache.keys(tags=["tag"]))
        assert [store.shard.lock.is_mine() for store in cache._shards.stores] == [False, False]
        assert len(list(cache.keys(tags=["tag"]))) == 20


# -- what a handler raises is not taken for an error of what it interrupts --------------------------------------------


def interrupt(call: Any, kinds: tuple[type[BaseException], ...] = (Alarm, Late)) -> None:
    """Interrupt a call at many of its places, by each kind of exception; nothing else comes out of it."""
    call()
    places = places_in(call)
    for number in range(1, places + 1, places // PLACES + 1):
        for kind in kinds:
            interrupted(call, number, kind)


def values() -> Iterator[Any]:
    yield pytest.param((1, [2.5, "three"], {dt.datetime(2026, 1, 1), None}), {}, id="containers")
    yield pytest.param((1, [2.5, "three"]), {"write_buffer": 0}, id="in the database")
    yield pytest.param({n: (n, str(n)) for n in range(40)}, {}, id="a map of many pairs")
    yield pytest.param("text\ud800", {}, id="lone surrogates")
    yield pytest.param([str(n) for n in range(3000)], {"compressor": "zlib"}, id="compressed")
    yield pytest.param({"a": [1, 2]}, {"serializer": "json"}, id="json")
    yield pytest.param({"a": (1, 2)}, {"serializer": "pickle", "pickle": "trusted"}, id="pickled")
    yield pytest.param((1, 2), {"secret": SECRET, "encrypt": True}, id="encrypted", marks=NEEDS_CIPHER)
    for library in ("numpy", "pandas", "polars", "pyarrow"):
        needed = pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")
        yield pytest.param(library, {}, id=library, marks=needed)


def of_library(name: str) -> Any:
    """Return a value of a library."""
    column = {"column": ["a", None, "c"], "number": [1, 2, 3]}
    if name == "numpy":
        return pytest.importorskip(name).array(["a", "bc"])
    return pytest.importorskip(name).table(column) if name == "pyarrow" else pytest.importorskip(name).DataFrame(column)


@pytest.mark.parametrize(("value", "settings"), list(values()))
def test_a_key_that_exists_is_never_missing_where_a_handler_raises(
    tmp_path: Path, value: Any, settings: dict[str, Any]
) -> None:
    stored = of_library(value) if type(value) is str and find_spec(value) else value
    with Cache(tmp_path, hot_size_limit=0, **settings) as cache:
        cache[1, "key"] = stored

        def get() -> None:
            assert cache.get((1, "key")) is not None
            assert len(cache.get_many([(1, "key")])) == 1
            assert list(cache) == [(1, "key")]

        interrupt(get)
        assert type(cache[1, "key"]) is type(stored)


def test_an_item_of_a_deque_is_not_called_damaged_where_a_handler_raises(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:
        deque = Deque.fromcache(cache, [(1, 2), (3, 4)])

        def read() -> None:
            assert deque[0] == (1, 2)
            assert list(deque) == [(1, 2), (3, 4)]

        interrupt(read)


def test_a_key_is_not_refused_where_a_handler_raises(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:
        cache[Point(1, 2)] = 1

        def get() -> None:
            assert cache.get(Point(1, 2)) == 1

        interrupt(get)


@pytest.mark.parametrize("value", [1, LARGE])
def test_a_directory_is_not_called_unusable_where_a_handler_raises(tmp_path: Path, value: Any) -> None:
    def write() -> None:
        with Cache(tmp_path) as cache:
            cache["key"] = value
            cache.delete("key")
            found = {warning.category for warning in cache.check(fix=True)}
            assert found <= {UnknownFileWarning, EmptyDirWarning}  # which a call may leave, as if it was killed there

    played(partial(interrupt, write, (Late,)))  # in a process of its own, since opening may leave a descriptor open


def raise_alarm(number: int, frame: FrameType | None, kind: type[BaseException] = Alarm) -> None:
    raise kind


class Callable:
    def __call__(self, *signal_and_frame: Any) -> None:
        raise_alarm(0, None)

    def method(self, number: int, frame: FrameType | None) -> None:
        self()


@pytest.mark.parametrize(
    "handler",
    [raise_alarm, Callable(), Callable().method, partial(raise_alarm, kind=Late), lambda *_: Callable()()],
    ids=["function", "object", "method", "partial", "lambda"],
)
def test_what_a_handler_raises_is_told_from_other_errors_however_it_is_written(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises((Alarm, Late)) as raised:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert is_from_signal_handler(raised.value)
    with pytest.raises((Alarm, Late)), suppress(Exception):
        raise raised.value
    try:
        raise DecodeError("of a library") from raised.value
    except DecodeError as error:
        with pytest.raises((Alarm, Late)):
            reraise_signal(error)


def test_other_errors_are_no_interruptions() -> None:
    with suppress(Exception):
        Callable()()
    error = Alarm()
    error.__cause__ = error
    reraise_signal(error)


def test_a_call_in_the_answer_to_an_alarm_is_not_interrupted_by_it(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> str:
            raise ValueError

    before = signal.signal(signal.SIGUSR1, raise_alarm)
    try:
        with Cache(tmp_path) as cache:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Alarm:
                with pytest.raises(KeyEncodeError):
                    cache.get(Bad())
    finally:
        signal.signal(signal.SIGUSR1, before)


BROAD = {"Exception", "OSError", "TimeoutError"}
ASKS = {"reraise_signal", "file_error", "_cannot_lock"}  # whether a handler raised it
FORGETFUL = {"os.walk", *(f"os.path.{name}" for name in ("exists", "lexists", "isdir", "isfile", "islink"))}
COMMANDS = {"main.py", "terminal.py", "serving.py"}  # whose processes are their own,
SERVER = "server"  # as are those of this folder


def named(node: ast.AST) -> set[str]:
    """Return the names in a node."""
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def called(node: ast.AST) -> set[str]:
    """Return the names of the functions and methods that are called in a node."""
    return {ast.unparse(found.func).rpartition(".")[2] for found in ast.walk(node) if isinstance(found, ast.Call)}


def takes_unasked(node: ast.AST, ours: bool) -> bool:
    """Tell whether code takes errors of any kind, or of the system, and neither raises them again nor asks whose."""
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        again = any(isinstance(found, ast.Raise) and found.exc is None for found in ast.walk(node))
        return bool(BROAD & named(node.type)) and not again and not ASKS & called(node)
    if not isinstance(node, ast.Call):
        return False
    function = ast.unparse(node.func)
    ignores = function == "contextlib.suppress" or (function == "suppress" and not ours)
    return function in FORGETFUL or (ignores and any(BROAD & named(kind) for kind in node.args))


def test_whatever_catches_errors_of_any_kind_asks_whether_a_handler_raised_them() -> None:
    package = Path(diskcache_like.__file__).parent
    unasked = []
    for path in package.rglob("*.py"):
        text = path.read_text()
        ours = re.search(r"^from \.+(?:system\.)?signals import .*suppress$", text, re.MULTILINE) is not None
        lines = [node.lineno for node in ast.walk(ast.parse(text)) if takes_unasked(node, ours)]  # type: ignore[attr-defined]
        is_own = path.name in COMMANDS or path.parent.name == SERVER
        unasked += [f"{path.relative_to(package)}:{line}" for line in lines if not is_own]
    assert unasked == []


# -- what an error of a handler must not be taken for ------------------------------------------------------------------


@contextlib.contextmanager
def handler_that_raises(error: Exception) -> Iterator[None]:
    def handle(_: int, __: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_of_a_handlers_is_not_taken_for_the_deciding_commits(tmp_path: Path, when: str) -> None:
    commit, done = WriterConnection.commit, list[Transaction]()

    def interrupted_once(connection: WriterConnection, txn: Transaction) -> None:
        if when == "after" or done:
            commit(connection, txn)
        if not done:
            done.append(txn)
            signal.raise_signal(signal.SIGUSR1)

    with FanoutCache(tmp_path, shards=2) as cache:
        with (
            handler_that_raises(TransactionError("of the handler")),
            mock.patch.object(WriterConnection, "commit", interrupted_once),
            pytest.raises(TransactionError, match="of the handler"),
            cache.transact(),
        ):
            for number in range(10):
                cache[number] = LARGE
        assert [cache.get(number) for number in range(10)] == [LARGE if when == "after" else None] * 10
        assert cache.check() == []


def test_a_clear_that_is_interrupted_leaves_the_hot_layers_on(tmp_path: Path) -> None:
    begin_all = GenerationFile.begin_all

    def begun(generations: GenerationFile, tick: int) -> None:
        begin_all(generations, tick)
        raise KeyboardInterrupt

    with Cache(tmp_path) as cache, mock.patch.object(invalidation, "ALL_SLOTS", 10):
        cache.set_many({number: number for number in range(100)})
        with mock.patch.object(GenerationFile, "begin_all", begun), pytest.raises(KeyboardInterrupt):
            cache.clear()
        assert [slot for slot in cache._shards.stores[0].shard.slots if slot & 1] == []  # type: ignore[attr-defined]
        cache.clear()
        assert [slot for slot in cache._shards.stores[0].shard.slots if slot & 1] == []  # type: ignore[attr-defined]


def test_a_savepoint_that_is_left_over_takes_nothing_back(tmp_path: Path) -> None:
    """Two interruptions: after SAVEPOINT, and after the RELEASE of another one of that name."""
    execute, after = WriterConnection.execute, list[str]()

    def executed(connection: WriterConnection, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        cursor = execute(connection, statement, parameters)
        if after and statement.startswith(after[0]):
            del after[0]
            raise KeyboardInterrupt
        return cursor

    with Cache(tmp_path) as cache, mock.patch.object(WriterConnection, "execute", executed):
        with contextlib.suppress(TransactionError), cache.transact():
            after[:] = ["SAVEPOINT", "RELEASE"]
            with contextlib.suppress(KeyboardInterrupt), cache.transact():
                pass
            cache["outer"] = 1
            with contextlib.suppress(KeyboardInterrupt), cache.transact():
                cache["inner"] = 1
            cache["last"] = 1
        assert ("outer" in cache) == ("last" in cache), "a part of the transaction was taken back"
        assert len(cache) == len(list(cache))


def test_what_was_cut_off_is_mended_though_the_mending_is_interrupted(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        roll_back = mock.patch.object(Transactions, "roll_back", side_effect=KeyboardInterrupt)
        with roll_back, pytest.raises(KeyboardInterrupt), cache.transact():
            cache["key"] = LARGE
            raise ValueError
        upkeep = cache._shards.stores[0].transactions.upkeep
        unlink = mock.patch.object(upkeep, "unlink_unused", side_effect=KeyboardInterrupt)
        with unlink, pytest.raises(KeyboardInterrupt):
            cache["other"] = 1
        cache["other"] = 2
        assert cache.check() == []


# -- handlers that write, beside what raises --------------------------------------------------------------------------


def test_a_handler_takes_no_lock_from_a_call_about_all_shards(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache, FanoutCache(tmp_path, shards=2, timeout=0) as other:
        first, second = cache._shards.stores
        key = next(key for key in range(100) if cache._rows.locate(key)[2] is first)
        told: list[object] = []
        take = Transactions.take

        def taken(transactions: Transactions, timeout: float | None, removes_expired: bool = True) -> None:
            if transactions is second.transactions and not told:
                told.append("interrupted")
                signal.raise_signal(signal.SIGUSR1)
            take(transactions, timeout, removes_expired)

        def write(*_: object) -> None:
            with pytest.raises(TransactionError):
                cache.set(key, "of the handler")
            told.append("refused")

        before = signal.signal(signal.SIGUSR1, write)
        try:
            with mock.patch.object(Transactions, "take", taken), cache.transact():
                assert told == ["interrupted", "refused"]
                assert first.shard.lock.is_mine()
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
