"""What one handle wrote last is what every other one reads and computes with, from the write buffer or the row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.encoding.keys import encode_key

LARGE = 1 << 16  # bytes of a value that the write buffer does not take


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Cache, Cache]]:
    """Return two handles on one cache that behave as if they were in two processes."""
    writer, reader = Cache(tmp_path / "cache"), Cache(tmp_path / "cache")
    yield writer, reader
    writer.close()
    reader.close()


def store(cache: Cache) -> Any:
    return cache._shards.stores[0]


def _located(shard: Any, place: int, key: str) -> tuple[bytes, int, Any]:
    return encode_key(key), place, shard


def without_database(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the database was asked")

    pool = store(cache).shard.pool
    pool.free.clear()
    monkeypatch.setattr(pool, "take", refuse)


@pytest.mark.parametrize("flushed", [False, True])
def test_another_process_reads_what_was_just_written_without_the_database(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    writer, reader = pair
    without_database(reader, monkeypatch)
    for number in range(100):
        writer.set("k", {"number": number})
        if flushed:
            writer.flush()
        assert reader.get("k") == {"number": number}


def test_expiry_and_tag_are_read_without_the_database_as_well(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = pair
    writer.set("k", 1, expire=1000, tag="t")
    without_database(reader, monkeypatch)
    value, expiry, tag = reader.get("k", expire_time=True, tag=True)
    assert (value, tag) == (1, "t")
    assert expiry == writer.get("k", expire_time=True)[1]


@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop])
def test_a_removal_is_read_without_the_database_too(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, remove: Callable[[Cache, str], object]
) -> None:
    writer, reader = pair
    writer.set("k", 1)
    assert reader.get("k") == 1
    without_database(reader, monkeypatch)
    assert remove(writer, "k")
    assert reader.get("k") is None
    assert reader.get("k", "default") == "default"
    writer.set("k", 2)
    assert reader.get("k") == 2


@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop])
def test_a_removed_neighbour_hides_no_displaced_key(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, remove: Callable[[Cache, str], object]
) -> None:
    writer, reader = pair
    for cache in pair:
        place = cache._rows.locate("a")[1]
        monkeypatch.setattr(cache._rows, "locate", partial(_located, store(cache), place))
    writer.set("a", 1)
    writer.set("b", 2)
    assert remove(writer, "a")
    assert reader.get("a") is None
    assert reader.get("b") == 2


CHANGES = ["delete", "pop", "set large", "transact", "rolled back", "clear", "touch", "cull"]
LEFT: dict[str, Any] = {"set large": 1 << 8 * LARGE, "transact": 5, "rolled back": 2}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_without_the_buffer_is_never_read_from_it(pair: tuple[Cache, Cache], change: str) -> None:
    writer, reader = pair
    writer.set("k", 2)
    assert reader.get("k") == 2
    _change(writer, change)
    assert reader.get("k") == LEFT.get(change)


COMPUTATIONS: dict[str, Callable[[Cache], object]] = {
    "incr": lambda cache: cache.incr("k", 10),
    "add": lambda cache: cache.add("k", 11),
    "pop": lambda cache: cache.pop("k", "nothing"),
    "touch": lambda cache: cache.touch("k", 100),
}


@pytest.mark.parametrize("computation", [name for name in COMPUTATIONS if name != "touch"])
def test_what_another_process_wrote_is_computed_with_and_no_row_read(
    pair: tuple[Cache, Cache], monkeypatch: pytest.MonkeyPatch, computation: str
) -> None:
    writer, other = pair
    without_database(other, monkeypatch)
    for number in range(3):
        writer.set("k", number)
        expected = {"incr": number + 10, "add": False, "pop": number}[computation]
        assert COMPUTATIONS[computation](other) == expected
        assert writer.get("k") == {"incr": number + 10, "pop": None}.get(computation, number)


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_without_the_buffer_is_not_computed_with(
    pair: tuple[Cache, Cache], change: str, computation: str
) -> None:
    writer, other = pair
    for _ in range(2):
        writer.incr("k")
    _change(other, change)
    left = LEFT.get(change)
    if left is None:
        expected: object = {"incr": 10, "add": True, "pop": "nothing", "touch": False}[computation]
    else:
        expected = {"incr": left + 10, "add": False, "pop": left, "touch": True}[computation]
    assert COMPUTATIONS[computation](writer) == expected


def _change(cache: Cache, change: str) -> None:
    if change == "touch":
        cache.touch("k", expire=0)
    elif change == "cull":
        cache.set("k", 3, expire=0)
        cache.expire()
    elif change == "set large":
        cache.set("k", 1 << 8 * LARGE)
    elif change in ("transact", "rolled back"):
        with contextlib.suppress(ZeroDivisionError), cache.transact():
            cache.incr("k", 3)
            assert change == "transact" or 1 // 0
    else:
        getattr(cache, change)(*(() if change == "clear" else ("k",)))


def test_within_a_transaction_its_own_writes_are_computed_with(pair: tuple[Cache, Cache]) -> None:
    writer, _ = pair
    writer.incr("k")
    with writer.transact():
        assert writer.incr("k") == 2
        assert writer.pop("k") == 2
        assert writer.incr("k", default=10) == 11
    assert writer.incr("k") == 12


def test_the_record_of_another_key_at_the_same_place_is_not_computed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "cache", strict=True) as cache:
        place = cache._rows.locate("a")[1]
        monkeypatch.setattr(cache._rows, "locate", partial(_located, store(cache), place))
        assert [cache.incr("a", 5), cache.incr("a", 5)] == [5, 10]
        assert cache.incr("b") == 1
        assert [cache.get("a"), cache.get("b"), cache.incr("a"), cache.incr("b")] == [10, 1, 11, 2]


def test_a_slot_left_odd_by_a_writer_that_died_is_read_and_not_kept(pair: tuple[Cache, Cache]) -> None:
    writer, reader = pair
    writer.set("k", "true")
    shard = store(writer)
    slot = shard.shard.slot_of(writer._rows.locate("k")[1])
    shard.shard.slots[slot] += 1
    assert reader.get("k") == "true"
    shard.shard.slots[slot] += 1
    writer.set("k", "newer")
    assert reader.get("k") == "newer"
