"""Queues: push, pull, peek, peekitem and iterqueue at both sides, with prefixes, and the key space that is theirs alone."""

from __future__ import annotations

import io
import pickle
import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.encoding.keys import queue_key
from diskcache_like.storage.shard.writer_connection import WriterConnection

from ..support.cache_kinds import Clock, Opener, exact, few, one, ordered

BIG = "x" * 100_000


def test_what_is_pushed_behind_is_pulled_in_front(cache: Cache) -> None:
    keys = [cache.push(value) for value in ("a", BIG, None)]
    assert keys == sorted(keys)
    assert len(cache) == 3
    assert [cache.pull() for _ in range(4)] == [*zip(keys, ("a", BIG, None), strict=True), (None, None)]
    assert len(cache) == 0


def test_queues_with_different_prefixes_are_different(cache: Cache) -> None:
    cache.push("none")
    cache.push("a", prefix="a")
    cache.push("b", prefix="b")
    cache.push("a-5", prefix="a-5")
    assert cache.pull(prefix="c") == (None, None)
    assert cache.pull(prefix="a")[1] == "a"
    assert cache.pull(prefix="a") == (None, None)
    assert cache.peek()[1] == "none"
    assert cache.peek(prefix="b")[1] == "b"
    assert cache.peek(prefix="a-5")[1] == "a-5"


def test_keys_of_queues_look_like_numbers_that_grow_from_front_to_back(cache: Cache) -> None:
    keys = [cache.push(1), cache.push(2), cache.push(3), cache.push(0, side="front")]
    assert [cache.peek(), cache.peek(side="back")] == [(keys[3], 0), (keys[2], 3)]
    assert keys[3] < keys[0] < keys[1] < keys[2]
    assert [str(key) for key in keys] == [str(key.number) for key in keys]
    prefixed = cache.push(1, prefix="prefix")
    assert str(prefixed) == f"prefix-{prefixed.number}"


def test_keys_of_queues_are_nobody_elses(cache: Cache) -> None:
    mine = {500_000_000_000_000: "int", "500000000000000": "text", "prefix-500000000000000": "prefixed", 7: "seven"}
    cache.set_many(mine)
    plain, prefixed = cache.push("plain item"), cache.push("prefixed item", prefix="prefix")
    assert cache.get_many(mine) == mine
    assert (cache[plain], cache[prefixed]) == ("plain item", "prefixed item")
    assert plain != 500_000_000_000_000
    assert prefixed != "prefix-500000000000000"
    assert cache.pull() == (plain, "plain item")
    assert cache.pull(prefix="prefix") == (prefixed, "prefixed item")
    assert cache.pull() == cache.pull(prefix="prefix") == (None, None), "the user's keys are in no queue"
    assert cache.get_many(mine) == mine


def test_an_item_is_an_entry_under_its_key(cache: Cache, clock: Clock) -> None:
    keys = [cache.push(number, prefix="q", expire=5, tag="tag") for number in range(4)]
    assert sorted(cache, key=keys.index) == keys
    assert cache.get(keys[1], expire_time=True, tag=True) == (1, clock.now + 5, "tag")
    assert cache.delete(keys[0])
    assert cache.pop(keys[2]) == 2
    assert pickle.loads(pickle.dumps(keys[3])) == keys[3]
    cache.set(keys[1], "changed")
    assert [cache.pull(prefix="q"), cache.pull(prefix="q")] == [(keys[1], "changed"), (keys[3], 3)]


def test_an_item_that_is_put_back_under_its_key_is_in_its_queue_again(cache: Cache) -> None:
    keys = [cache.push(number) for number in range(4)]
    for key, value in (cache.pull(), cache.pull()):
        cache[key] = value
    assert cache.pop(keys[2]) == 2
    assert cache.add(keys[2], "added")
    assert [cache.pull() for _ in range(5)] == [*zip(keys, (0, 1, "added", 3), strict=True), (None, None)]


def test_expired_items_are_passed_over_and_removed(cache: Cache, clock: Clock) -> None:
    cache.reset("cull_limit", 0)  # nobody else removes them
    for number in range(3):
        cache.push(number, expire=1)
        cache.push(number, side="front", expire=1)
    lasting = cache.push("lasting", side="front")
    cache.push("expired", side="front", expire=1)
    clock.advance(1)
    assert cache.peek() == (lasting, "lasting")
    assert cache.peek(side="back") == (lasting, "lasting")
    assert len(cache) == 1
    cache.push("expired", expire=0)
    assert cache.pull(side="back") == (lasting, "lasting")
    assert cache.pull() == (None, None)
    assert len(cache) == 0


def test_pull_and_peek_tell_expiry_and_tag(cache: Cache, clock: Clock) -> None:
    key = cache.push("value", expire=3, tag="tag")
    expiry = clock.now + 3
    assert cache.peek(expire_time=True) == ((key, "value"), expiry)
    assert cache.peek(tag=True) == ((key, "value"), "tag")
    assert cache.pull(expire_time=True, tag=True) == ((key, "value"), expiry, "tag")
    assert cache.pull(expire_time=True, tag=True) == (None, None)


@exact
def test_push_reads_from_a_file_object(cache: Cache) -> None:
    content = bytes(range(256)) * 500
    key = cache.push(io.BytesIO(content), read=True, prefix="files")
    assert cache.pull(prefix="files") == (key, content)


def test_peekitem_shows_the_entry_inserted_last_or_first(cache: Cache, clock: Clock) -> None:
    with pytest.raises(KeyError, match="empty"):
        cache.peekitem()
    cache.set("key", BIG, expire=5, tag="tag")
    for last in (True, False):
        assert cache.peekitem(last=last) == ("key", BIG)
        assert cache.peekitem(last, expire_time=True, tag=True) == (("key", BIG), clock.now + 5, "tag")
        assert cache.peekitem(last, tag=True) == (("key", BIG), "tag")
    assert len(cache) == 1


@ordered
def test_peekitem_follows_the_order_of_insertion(cache: Cache, clock: Clock) -> None:
    for number in range(5):
        cache[f"key {number}"] = number
    cache["key 2"] = "overwritten"
    assert cache.peekitem() == ("key 4", 4)
    assert cache.peekitem(last=False) == ("key 0", 0)
    del cache["key 0"]
    del cache["key 4"]
    cache.set("short", 1, expire=1)
    clock.advance(1)
    assert cache.peekitem() == ("key 3", 3)
    assert cache.peekitem(last=False) == ("key 1", 1)
    cache.clear()
    with pytest.raises(KeyError):
        cache.peekitem(last=False)


# -- a walk over a queue, which removes nothing and waits for nobody ---------------------------------------------------


def test_a_walk_shows_the_queue_from_either_side(cache: Cache) -> None:
    keys = [cache.push(value, prefix="q") for value in range(250)]
    cache.push("another queue")
    pairs = list(zip(keys, range(250), strict=True))
    assert list(cache.iterqueue("q")) == pairs
    assert list(cache.iterqueue("q", side="back")) == pairs[::-1]
    assert [value for _, value in cache.iterqueue()] == ["another queue"]
    assert list(cache.iterqueue("none")) == []
    assert len(cache) == 251


@few
@pytest.mark.parametrize("skip", [0, 1, 99, 100, 101, 249, 250, 1 << 80])
def test_a_walk_may_begin_behind_others(cache: Cache, skip: int) -> None:
    for value in range(250):
        cache.push(value)
    assert [value for _, value in cache.iterqueue(skip=skip)] == list(range(250))[skip:]
    assert [value for _, value in cache.iterqueue(side="back", skip=skip)] == list(range(250))[::-1][skip:]


def test_what_is_pushed_or_pulled_meanwhile_is_left_out(cache: Cache) -> None:
    for value in range(250):
        cache.push(value)
    walk = cache.iterqueue()
    assert next(walk)[1] == 0
    cache.push("new")
    for _ in range(150):
        cache.pull()
    assert [value for _, value in walk] == list(range(150, 250))


@one
def test_a_walk_ends_though_all_was_pulled_as_it_began(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        cache.push(number)
    store = cache._shards.stores[0]
    find_end = store.queue_end

    def pull_all(*arguments: Any) -> Any:
        monkeypatch.setattr(store, "queue_end", find_end)
        while cache.pull() != (None, None):
            pass
        return find_end(*arguments)

    monkeypatch.setattr(store, "queue_end", pull_all)
    seen = []
    for _, value in islice(cache.iterqueue(side="back"), 10):
        seen.append(value)
        cache.push(value, side="front")
    assert seen == [2]


def test_expired_items_are_left_out_and_stay(cache: Cache, clock: Clock) -> None:
    cache.reset("cull_limit", 0)
    for value in range(4):
        cache.push(value, expire=1 if value % 2 else None)
    clock.advance(1)
    assert [value for _, value in cache.iterqueue()] == [0, 2]
    assert len(cache) == 4


def test_values_in_files_are_read(cache: Cache) -> None:
    cache.push(BIG)
    cache.push(BIG)
    first = next(cache.iterqueue())
    assert first[1] == BIG
    cache[first[0]] = "small"
    assert [value for _, value in cache.iterqueue()] == ["small", BIG]


def test_a_walk_waits_for_no_writer(open_cache: Opener) -> None:
    writer, reader = open_cache(), open_cache(timeout=0)
    writer.push("before")
    found: list[Any] = []
    with writer.transact(retry=True):
        writer.push("in the transaction")
        thread = threading.Thread(target=lambda: found.extend(reader.iterqueue()))
        thread.start()
        thread.join()
        assert [value for _, value in writer.iterqueue()] == ["before", "in the transaction"]
    assert [value for _, value in found] == ["before"]


def test_an_item_with_a_number_from_elsewhere_is_neither_overwritten_nor_overtaken(cache: Cache) -> None:
    near = cache.push("near")
    ahead = queue_key(None, near.number + 3)
    cache[ahead] = "ahead"
    keys = [near, ahead, *(cache.push(number) for number in range(6))]
    assert [key for key, _ in cache.iterqueue()] == keys
    assert [cache.pull()[1] for _ in range(9)] == ["near", "ahead", *range(6), None]


@pytest.mark.parametrize("side", ["front", "back"])
def test_items_that_are_pushed_at_once_are_all_there(tmp_path: Path, side: Any) -> None:
    with Cache(tmp_path) as cache, ThreadPoolExecutor(4) as pool:
        pushed = list(pool.map(lambda number: cache.push(number, side=side), range(400)))
        assert len(set(pushed)) == 400
        found = dict(cache.iterqueue())
        assert {found[key] for key in pushed} == set(range(400))


def test_a_push_that_another_write_comes_before_takes_a_new_number(tmp_path: Path, monkeypatch: Any) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache, Cache(tmp_path) as other:
        cache.push("first")
        theirs: list[Any] = []
        locate = cache._rows.locate

        def overtaken(key: Any) -> Any:
            if len(theirs) < 2:
                theirs.append(other.push(f"theirs {len(theirs)}"))
            return locate(key)

        monkeypatch.setattr(cache._rows, "locate", overtaken)
        assert cache.push("mine") not in theirs
        monkeypatch.undo()
        values = [value for _, value in cache.iterqueue()]
        assert sorted(values) == sorted(["first", "mine", *(f"theirs {number}" for number in range(len(theirs)))])


def test_a_queue_whose_items_wait_and_lie_in_the_database_is_one_queue(tmp_path: Path) -> None:
    """Pushes, pulls, touches, deletions and flushes at random, beside a list of what should be there."""
    for seed in range(8):
        draw, expected = random.Random(seed), deque[tuple[Any, int]]()
        with Cache(tmp_path / str(seed)) as cache, Cache(tmp_path / str(seed)) as other:
            for number in range(400):
                handle, front = draw.choice((cache, other)), draw.random() < 0.5
                side: Any = "front" if front else "back"
                match draw.choice(("push", "push", "pull", "pull", "peek", "touch", "delete", "flush", "set")):
                    case "push":
                        item = (handle.push(number, "q", side), number)
                        (expected.appendleft if front else expected.append)(item)
                    case "pull":
                        wanted = (None, None) if not expected else expected.popleft() if front else expected.pop()
                        assert handle.pull("q", side=side) == wanted
                    case "peek":
                        wanted = (None, None) if not expected else expected[0 if front else -1]
                        assert handle.peek("q", side=side) == wanted
                    case "touch" if expected:
                        assert handle.touch(draw.choice(expected)[0], 1000)
                    case "delete" if expected:
                        place = draw.randrange(len(expected))
                        assert handle.delete(expected[place][0])
                        del expected[place]
                    case "flush":
                        handle.flush()
                    case "set":
                        handle.set(number % 5, number)
                        handle.push(number, "another")
            assert list(other.iterqueue("q")) == list(expected)
            assert cache.check() == []


def test_an_item_is_pulled_in_one_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path) as cache:
        keys = [cache.push(number) for number in range(4)]
        cache.flush()
        keys += [cache.push(number) for number in range(4, 6)]
        monkeypatch.setattr(WriterConnection, "execute", None)
        assert [cache.pull() for _ in range(7)] == [*zip(keys, range(6), strict=True), (None, None)]
        monkeypatch.undo()
        assert (len(cache), cache.check()) == (0, [])
