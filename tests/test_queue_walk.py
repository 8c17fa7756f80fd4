"""Cache.iterqueue: a walk over a queue that removes nothing and waits for nobody."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.errors import KeyEncodeError

from .conftest import Opener
from .kinds import Clock, one

BIG = "x" * 100_000


def test_a_walk_shows_the_queue_from_either_side(cache: Cache) -> None:
    keys = [cache.push(value, prefix="q") for value in range(250)]
    cache.push("another queue")
    pairs = list(zip(keys, range(250), strict=True))
    assert list(cache.iterqueue("q")) == pairs
    assert list(cache.iterqueue("q", side="back")) == pairs[::-1]
    assert [value for _, value in cache.iterqueue()] == ["another queue"]
    assert list(cache.iterqueue("none")) == []
    assert len(cache) == 251


@pytest.mark.parametrize("skip", [0, 1, 2, 99, 100, 101, 249, 250, 1 << 80])
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
    shard = cache._shards.stores[0]
    find_end = shard.queue_end

    def pull_all(*arguments: Any) -> Any:
        monkeypatch.setattr(shard, "queue_end", find_end)
        while cache.pull() != (None, None):
            pass
        return find_end(*arguments)

    monkeypatch.setattr(shard, "queue_end", pull_all)
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


@one
def test_a_walk_refuses_what_other_uses_of_queues_refuse(cache: Cache) -> None:
    for side in ("left", None):
        with pytest.raises(ValueError, match="'back' or 'front'"):
            cache.iterqueue(side=side)  # type: ignore[arg-type]
    with pytest.raises(KeyEncodeError, match="prefix"):
        cache.iterqueue(prefix=3)  # type: ignore[arg-type]
