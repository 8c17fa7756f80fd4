"""Carried writes, touches that wait and queues without a lock, where damage, a power loss or a signal meets them."""

from __future__ import annotations

import random
import shutil
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, CorruptDatabaseWarning, Deque, FanoutCache, Index
from diskcache_like.coherence.generations import Header
from diskcache_like.encoding.keys import queue_key
from diskcache_like.storage.opening import opener
from diskcache_like.storage.shard.writer_connection import WriterConnection

from ..support.cache_kinds import NEEDS_CIPHER, SECRET
from ..support.tampering import plant
from .test_write_buffer import SMALL, killed, lose_the_last_record_but_one, ring_of


@pytest.mark.parametrize(
    "again",
    [
        lambda cache: cache.retag("kept", add=["tag"]),
        lambda cache: cache.touch("kept"),
        lambda cache: cache.set("x", 1),
    ],
    ids=["retag", "touch", "set"],
)
def test_what_a_power_loss_took_does_not_come_back_when_a_touch_is_made_again(
    tmp_path: Path, again: Callable[[Cache], object]
) -> None:
    saved, place = tmp_path / "saved", tmp_path / "cache"

    def work() -> Cache:
        cache = Cache(place, **SMALL)
        cache["victim"] = "new"
        cache["kept"] = 1
        shutil.copytree(place, saved)
        cache.flush()  # this is lost, and of what follows all but the last record
        assert again(cache)
        assert cache.delete("victim")
        return cache

    def write_again() -> Cache:
        cache = Cache(place, **SMALL)
        assert cache["victim"] == "new"
        assert again(cache)
        return cache

    killed(work)
    lose_the_last_record_but_one(place, saved)
    killed(write_again)
    Path(place, "cache.gen").unlink()
    with Cache(place, **SMALL) as cache:
        assert cache.get("victim") == "new"


def test_a_signal_handler_reads_what_waits_while_a_transaction_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, **SMALL) as cache, Cache(tmp_path, **SMALL) as other:
        other["key"] = "waits"
        roll_back = WriterConnection.roll_back
        seen: list[Any] = []

        def rolled_back(self: WriterConnection) -> None:
            roll_back(self)
            seen.append(cache.get("key"))  # as a handler that runs here does

        with monkeypatch.context() as patch:
            patch.setattr(WriterConnection, "roll_back", rolled_back)
            with pytest.raises(KeyError), cache._shards.stores[0].transaction(None):
                raise KeyError
        assert (seen, cache.get("key")) == (["waits"], "waits")


@pytest.mark.parametrize("spelling", ["'text'", "5", "1.5", "x'00'"])
def test_a_touch_of_a_row_with_a_planted_spelling_is_no_error_of_python(tmp_path: Path, spelling: str) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        cache["key"] = 1
    plant(tmp_path, f"UPDATE entry SET spelling = {spelling}")
    with Cache(tmp_path, **SMALL) as cache:
        cache["other"] = 1
        assert cache.touch("key", 100)
        assert cache.retag("key", add=["tag"])
        assert cache["key"] == 1


def test_a_damaged_item_is_counted_once(tmp_path: Path) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        cache.push("item")
    plant(tmp_path, "UPDATE entry SET v = zeroblob(20)")
    with Cache(tmp_path, **SMALL) as cache:
        cache["other"] = 1
        assert cache.pull() == (None, None)
        assert cache.metrics().damaged == 1


def test_large_and_small_writes_in_turn_notice_that_the_disk_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        cache["small"] = 0
        assert ring_of(cache).waiting() > 0
        monkeypatch.setattr(cache._shards.stores[0].checkpointer, "left_on_disk", lambda: opener.ROOM - 1)
        for number in range(20):
            cache["large"] = bytes(20_000)
            cache["small"] = number
        assert ring_of(cache).waiting() == 0, "no write waits below 64 MiB of free disk"


@pytest.mark.parametrize("take", [Cache.pull, Cache.peek], ids=["pull", "peek"])
def test_a_queue_in_a_damaged_database_goes_on_in_the_next_one(tmp_path: Path, take: Callable[[Cache], Any]) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        for number in range(2_000):
            cache.push(number)
    with Cache(tmp_path, **SMALL) as cache:
        cache["waits"] = 1
        path = tmp_path / "cache.db"
        content = bytearray(path.read_bytes())
        content[4096 * 3 :] = b"\xff" * (len(content) - 4096 * 3)
        path.write_bytes(content)
        with pytest.warns(CorruptDatabaseWarning):
            assert take(cache) == (None, None)
        assert cache["waits"] == 1


@NEEDS_CIPHER
@pytest.mark.parametrize("spelling", ["NULL", "x'00'", "5", "'text'"])
def test_a_touch_of_a_sealed_row_with_a_planted_spelling_is_no_error(tmp_path: Path, spelling: str) -> None:
    sealed: dict[str, Any] = {"secret": SECRET, "encrypt": True, **SMALL}
    with Cache(tmp_path, **sealed) as cache:
        cache["key"] = 1
    plant(tmp_path, f"UPDATE entry SET spelling = {spelling}")
    with Cache(tmp_path, **sealed) as cache:
        cache["other"] = 1
        assert cache["key"] == 1
        assert cache.touch("key", 100)
        assert cache["key"] == 1


def test_an_item_with_a_number_from_elsewhere_is_one_write(tmp_path: Path) -> None:
    with Cache(tmp_path, **SMALL) as cache:
        store = cache._shards.stores[0]
        cache["key"] = 1
        for write in (
            lambda: cache.set(queue_key(None, store.shard.header[Header.TICK] + 1_000_000), "item"),
            lambda: cache.push("small"),
            lambda: cache.push(bytes(20_000)),
        ):
            before = store.work_counts()[0]
            write()
            assert store.work_counts()[0] == before + 1


def test_a_deque_never_has_more_items_than_a_limit_that_somebody_sets_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deque, other = Deque([1], tmp_path), Deque((), tmp_path)
    with closing(deque.cache) as cache, closing(other.cache):
        deque.append(2)  # from here on this handle appends without the lock
        locate, met = cache._rows.locate, list[float]()

        def overtaken(key: Any) -> Any:
            if not met:
                other.maxlen = 2
            met.append(other.maxlen)
            assert len(other) == 2
            return locate(key)

        monkeypatch.setattr(cache._rows, "locate", overtaken)
        deque.append(3)
        assert met
        assert list(other) == [2, 3]


def test_a_push_overwrites_nothing_after_a_power_loss_with_a_clock_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a clock of its own comes up in 1970; the database may be newer than the count of writes."""

    def work() -> Cache:
        cache = Cache(tmp_path, **SMALL)
        header = cache._shards.stores[0].shard.header
        before = header[Header.TICK]
        for number in range(5):
            cache.push(number)
        cache.sync()
        header[Header.TICK] = header[Header.SETTLED] = before  # what the disk had of it
        header[Header.BOOT] = 1
        return cache

    killed(work)
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_000)
    with Cache(tmp_path, **SMALL) as cache:
        for number in range(5, 10):
            cache.push(number)
        assert [value for _, value in cache.iterqueue()] == [*range(10)]


def test_the_number_of_entries_is_right_while_some_of_them_wait(tmp_path: Path) -> None:
    draw, expected, asked = random.Random(4), dict[str, int](), 0
    with Cache(tmp_path) as cache, Cache(tmp_path) as other:
        cache["0"] = other["0"] = 0
        expected["0"] = 0
        for number in range(600):
            handle, key = draw.choice((cache, other)), str(draw.randrange(30))
            match draw.choice(("set", "set", "delete", "touch", "incr", "flush" if number % 7 == 0 else "set")):
                case "set":
                    handle[key] = expected[key] = number
                case "delete":
                    assert handle.delete(key) == (expected.pop(key, None) is not None)
                case "touch":
                    assert handle.touch(key, 1000) == (key in expected)
                case "incr":
                    expected[key] = handle.incr(key, 1)
                case "flush":
                    handle.flush()
            assert len(other) == len(expected)
            asked += ring_of(cache).waiting() > 0
        assert asked > 300, "to count them does not flush them each time"
        assert (len(list(cache)), cache.check()) == (len(expected), [])


def test_the_order_is_right_while_some_entries_wait(tmp_path: Path) -> None:
    draw, expected, asked = random.Random(5), OrderedDict[str, int](), 0
    with Cache(tmp_path) as cache, Cache(tmp_path) as other:
        indexes = Index.fromcache(cache), Index.fromcache(other)
        for index in indexes:
            index["0"] = expected["0"] = 0
            assert index.peekitem() == ("0", 0)  # makes the index that the order is read by
        for number in range(1500):
            index, key = draw.choice(indexes), str(draw.randrange(30))
            match draw.choice(("set", "set", "set", "delete", "pop", "flush" if number % 7 == 0 else "set")):
                case "set":
                    index[key] = expected[key] = number
                case "delete":
                    assert index.pop(key, None) == expected.pop(key, None)
                case "pop" if expected:
                    last = draw.random() < 0.5
                    assert index.popitem(last) == expected.popitem(last)
                case "flush":
                    cache.flush()
            asked += ring_of(cache).waiting() > 0
            index = draw.choice(indexes)
            if draw.random() < 0.5:
                assert [*reversed(index)] == [*reversed(expected)]
            else:
                assert [*iter(index)] == [*expected]
            if expected:
                last = draw.random() < 0.5
                key = next(reversed(expected) if last else iter(expected))
                assert index.peekitem(last) == (key, expected[key])
        assert asked > 1000, "to read the order does not flush each time"
        assert cache.check() == []


@pytest.mark.parametrize("order", [iter, reversed])
@pytest.mark.parametrize("more", [0, 300])
def test_what_waits_comes_once_though_it_is_flushed_meanwhile(
    tmp_path: Path, order: Callable[[Cache], Any], more: int
) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path) as other:
        cache.set_many(dict.fromkeys(range(more), 1))
        assert [*cache] == [*range(more)]  # makes the index, where there are many
        for key in ("new", "again", "gone", "kept"):
            cache[key] = 1
        cache.flush()
        del cache["gone"], cache["again"]
        cache["again"] = cache["kept"] = cache["newest"] = 2
        expected = [*order([*range(more), "new", "kept", "again", "newest"])]  # type: ignore[arg-type]
        for stop in 1, 2, 3:
            found = order(cache)
            seen = [next(found) for _ in range(stop)]
            if stop == 2:
                assert ring_of(cache).waiting() > 0
                other.flush()
            cache["later"] = 1
            assert [*seen, *found] == expected
            del cache["later"]


def test_an_end_is_taken_by_one_append(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        index = Index.fromcache(cache)
        index.update((number, number) for number in range(5))
        assert index.peekitem() == (4, 4)
        index["new"] = 5
        index[2] = "changed"
        for last, item in (True, ("new", 5)), (True, (4, 4)), (False, (0, 0)), (False, (1, 1)), (False, (2, "changed")):
            assert index.popitem(last) == item
            assert ring_of(cache).waiting() > 0, "nothing was flushed"
        assert [*index.items()] == [(3, 3)]


def test_an_entry_that_waits_is_taken_without_a_look_at_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path) as cache:
        index = Index.fromcache(cache)
        index.update((number, number) for number in range(5))
        index["new"] = 5
        monkeypatch.setattr(type(cache._shards.stores[0].reader), "_select_placed", None)
        assert index.popitem() == ("new", 5)
        monkeypatch.undo()
        assert index.popitem() == (4, 4)


@pytest.mark.parametrize("again", [False, True])
def test_the_only_one_that_waits_is_last_unless_it_has_a_row(tmp_path: Path, again: bool) -> None:
    with Cache(tmp_path) as cache:
        index = Index.fromcache(cache)
        index.update((number, number) for number in range(3))
        cache.flush()
        if again:
            del index[0]
        index[0] = "changed"
        assert index.popitem() == ((0, "changed") if again else (2, 2))
        assert index.popitem() == ((2, 2) if again else (1, 1))
        assert ring_of(cache).waiting() > 0, "nothing was flushed"


def test_what_was_asked_of_an_older_moment_is_not_remembered(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, shards=2) as cache:
        keys = [
            next(key for key in range(100) if cache._rows.locate(key)[2] is store) for store in cache._shards.stores
        ]
        assert len(cache) == 0  # or else the iteration, which does not know that there are few, makes an index
        for _ in range(2):
            cache[keys[0]] = cache[keys[1]] = 1
        found = iter(cache)
        next(found)
        cache.flush()
        assert [*found] == [keys[1]]
        cache.clear()
        cache[keys[1]] = 2
        assert [*cache] == [keys[1]]
        assert len(cache) == 1


@pytest.mark.parametrize("value", [1, bytes(20_000)])
def test_rows_that_come_and_go_by_other_commits_are_counted(tmp_path: Path, value: Any) -> None:
    draw, expected = random.Random(6), OrderedDict[str, Any]()
    with Cache(tmp_path) as cache, Cache(tmp_path) as other:
        for handle in cache, other:
            handle["0"] = expected["0"] = 0
        assert cache.peekitem() == ("0", 0)
        for number in range(400):
            handle, key = draw.choice((cache, other)), str(draw.randrange(8))
            match draw.choice(
                ("set", "set", "other", "delete", "transact", "flush", "clear" if number % 9 == 0 else "set")
            ):
                case "set":
                    handle[key] = expected[key] = number
                case "other":
                    handle[key] = expected[key] = value
                case "delete":
                    assert handle.delete(key) == (expected.pop(key, None) is not None)
                case "transact":
                    with handle.transact():
                        handle.delete(key)
                    expected.pop(key, None)
                case "flush":
                    handle.flush()
                case "clear":
                    handle.clear()
                    expected.clear()
            assert (len(other), [*iter(cache)], [*reversed(other)]) == (
                len(expected),
                [*expected],
                [*reversed(expected)],
            )


def test_a_handle_that_only_pulls_appends(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path) as worker:
        for number in range(10):
            cache.push(number)
        assert worker.pull()[1] == 0
        for number in range(1, 6):
            cache.push(number + 10)
            assert worker.pull()[1] == number
            assert ring_of(cache).waiting() > 0, "nothing was flushed"


def test_a_handle_that_only_reads_flushes_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path) as reader:
        assert len(cache) == 0
        cache["key"] = 1
        assert ([*iter(reader)], len(reader)) == (["key"], 1)
        assert ring_of(cache).waiting() > 0


def test_what_waited_and_is_removed_during_the_iteration_is_left_out(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.set_many(dict.fromkeys(range(300), 1))
        assert len([*cache]) == 300
        cache["waits"] = 1
        found = iter(cache)
        next(found)
        del cache["waits"]
        assert "waits" not in [*found]


def test_a_push_that_has_looked_before_a_limit_was_set_appends_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        tick = Header.TICK
        header = cache._shards.stores[0].shard.header
        with cache.transact():
            before = header[tick]
            cache.reset("deque_maxlen", 5)
            assert header[tick] > before, "whoever dies after the commit leaves it so"
