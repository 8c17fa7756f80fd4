"""What one append does of what is due: a slice, so that no caller waits for all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import NEVER, Header
from diskcache_like.storage import write_buffer
from diskcache_like.storage.upkeep import checkpoints, eviction, quota
from diskcache_like.storage.upkeep.removal import Remover
from diskcache_like.storage.write_buffer import WriteBuffer

from ..support.cache_kinds import Clock

LIMIT = 2 << 20
VALUE = b"v" * 200


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path, size_limit=LIMIT, hot_size_limit=0) as opened:
        yield opened


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many keys each flush has written, as they come."""
    found, write_net = list[int](), WriteBuffer._write_net

    def watched(buffer: WriteBuffer, net: dict[bytes | int, _native.Net], mark: object) -> None:
        found.append(len(net))
        write_net(buffer, net, mark)  # type: ignore[arg-type]

    monkeypatch.setattr(WriteBuffer, "_write_net", watched)
    return found


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many rows each round of eviction has removed, as they come."""
    found, delete = list[int](), Remover.delete_in_transaction

    def watched(remover: Remover, places: list[int]) -> None:
        found.append(len(places))
        delete(remover, places)

    monkeypatch.setattr(Remover, "delete_in_transaction", watched)
    return found


def fill(cache: Cache, value: bytes = VALUE) -> int:
    """Set new keys until many have been evicted; return how many were set."""
    header, number = cache._shards.stores[0].shard.header, 0
    while header[Header.EVICTED] < 1000:
        cache[number] = value
        number += 1
    return number


@pytest.mark.parametrize("size", [50, 200, 1000, 8000])
def test_in_a_full_cache_no_append_does_more_than_a_slice(
    cache: Cache, flushed: list[int], removed: list[int], size: int
) -> None:
    number = fill(cache)
    for each in range(number, number + 2000):
        flushed.clear()
        removed.clear()
        cache[each] = bytes(size)
        assert sum(flushed) <= quota.FEW
        assert sum(removed) <= eviction.SLICE or size == 8000  # which many smaller ones make room for
        assert not (flushed and removed) or size == 8000  # which do not wait


@pytest.mark.parametrize("size", [50, 1000, 8000])
def test_the_limit_holds_although_larger_entries_than_before_come_in(cache: Cache, size: int) -> None:
    number = fill(cache)
    for each in range(number, number + 1500):
        cache[each] = bytes(size)
        assert cache.volume() <= 1.01 * LIMIT  # what waits is flushed for that


def test_in_other_caches_an_append_flushes_a_longer_slice(tmp_path: Path, flushed: list[int]) -> None:
    with Cache(tmp_path, size_limit=1 << 30) as cache:
        for number in range(5000):
            cache[number] = b""
            assert len(flushed) <= 1
            assert sum(flushed) in (0, write_buffer.SLICE)
            flushed.clear()


def test_no_round_of_eviction_is_longer_than_a_slice(
    cache: Cache, removed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "SLICE", quota.RARE)
    number = fill(cache, b"")  # half a percent of the limit is more entries than that
    removed.clear()  # the first one had to make room for the index on ranks, too
    for each in range(number, number + 2000):
        cache[each] = b""
    assert max(removed) == quota.RARE


def test_what_is_evicted_beside_waiting_records_is_gone_at_once(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=LIMIT // 4, hot_size_limit=0) as cache:  # the ring has more entries than that
        number = fill(cache)
        ring = cache._shards.stores[0].shard.ring
        assert ring is not None
        assert ring.waiting()
        assert sum(each in cache for each in range(number)) == len(cache)
        cache.flush()
        assert sum(each in cache for each in range(number)) == len(cache)


def test_a_record_that_waits_outlives_the_eviction_of_the_row_before_it(cache: Cache, removed: list[int]) -> None:
    number = fill(cache)
    oldest = next(iter(cache))
    removed.clear()
    cache[oldest] = "new"
    while not removed:  # an eviction that does not flush what waits
        cache[number] = VALUE
        number += 1
    assert cache[oldest] == "new"
    cache.flush()
    assert cache[oldest] == "new"


def test_a_limit_that_was_lowered_holds_from_the_next_append_on(cache: Cache) -> None:
    fill(cache)
    cache.reset("size_limit", LIMIT // 2)
    cache["key"] = VALUE
    assert cache.volume() <= LIMIT // 2
    assert cache["key"] == VALUE


def test_expired_entries_go_before_others(tmp_path: Path, clock: Clock) -> None:
    with Cache(tmp_path, size_limit=LIMIT, clock=clock) as cache:
        header = cache._shards.stores[0].shard.header
        for number in range(1500):
            cache.set(-number - 1, VALUE, expire=1)
        clock.advance(2)
        for number in range(5500):
            header[Header.NEXT_EXPIRE] = NEVER  # or each write would remove some
            cache[number] = VALUE
        cache.flush()
        rows = len(cache)
        assert header[Header.EVICTED] == 0
        assert 5500 <= rows < 7000


@pytest.mark.parametrize(("durability", "is_asked"), [("system", True), ("process", False)])
def test_the_kernel_writes_the_wal_before_a_checkpoint_has_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, is_asked: bool
) -> None:
    asked = list[int]()
    monkeypatch.setattr(_native, "write_back", asked.append)
    with Cache(tmp_path, durability=durability) as cache:
        written = cache._shards.stores[0].shard.header
        for number in range(3000):
            cache[number] = VALUE
        assert written[Header.WRITTEN] >> checkpoints.WRITE_BACK_BITS
    assert bool(asked) == is_asked


def test_who_cannot_have_the_wal_written_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "WAL", "-none")
    with Cache(tmp_path) as cache:
        for number in range(3000):
            cache[number] = VALUE
        assert len(cache) == 3000
    _native.write_back(-1)  # no file
    with pytest.raises(OverflowError):
        _native.write_back(1 << 70)
