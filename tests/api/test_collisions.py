"""Keys with one hash: up to four live side by side, and every operation finds its own, hot and cold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diskcache_like import Cache

from ..support.cache_kinds import QUICK, Clock

BIG = "x" * 50_000
KEYS = [f"key {number}" for number in range(4)]


@pytest.fixture
def pair(tmp_path: Path, clock: Clock) -> Iterator[tuple[Cache, Cache]]:
    """Return two handles on a cache where every key has the same hash."""
    with Cache(tmp_path, clock=clock, **QUICK) as cache, Cache(tmp_path, clock=clock, **QUICK) as other:
        cache._rows.modulus = other._rows.modulus = 1
        yield cache, other
        assert [str(problem.message) for problem in cache.check()] == []


def expect(handle: Cache, expected: dict[str, object]) -> None:
    for _ in range(2):  # cold, then hot
        assert {key: handle.get(key) for key in KEYS} == {key: expected.get(key) for key in KEYS}
        assert handle.get_many(KEYS) == expected
        assert {key for key in KEYS if key in handle} == set(expected)


def rolled_back(cache: Cache, key: str) -> None:
    with pytest.raises(ZeroDivisionError), cache.transact():
        del cache[key]
        raise ZeroDivisionError


CHANGES: dict[str, tuple[Callable[[Cache, str], object], object]] = {
    "set": (lambda cache, key: cache.set(key, "new"), "new"),
    "set with a file": (lambda cache, key: cache.set(key, BIG), BIG),
    "set_many": (lambda cache, key: cache.set_many({key: "new"}), "new"),
    "set_many with a tag": (lambda cache, key: cache.set_many({key: "new"}, tag="tag"), "new"),
    "incr": (lambda cache, key: cache.incr(key, 10), 15),
    "touch": (lambda cache, key: cache.touch(key, 0), None),
    "delete": (lambda cache, key: cache.delete(key), None),
    "pop": (lambda cache, key: cache.pop(key), None),
    "delete_many": (lambda cache, key: cache.delete_many([key]), None),
    "expire": (lambda cache, key: [cache.touch(key, 0), cache.expire()], None),
    "evict": (lambda cache, key: [cache.set(key, 1, tag="tag"), cache.evict("tag")], None),
    "rolled back": (rolled_back, 5),
}


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_to_one_leaves_the_others_and_is_seen_by_all(pair: tuple[Cache, Cache], name: str, place: int) -> None:
    cache, other = pair
    change, result = CHANGES[name]
    expected: dict[str, object] = dict.fromkeys(KEYS, 5)
    for key in KEYS:
        assert cache.add(key, 5)
    expect(other, expected)
    expect(cache, expected)
    key = KEYS[place]
    change(cache, key)
    expected[key] = result
    expected = {key: value for key, value in expected.items() if value is not None}
    expect(other, expected)
    expect(cache, expected)
    assert other.set(key, "back")
    expect(cache, {**expected, key: "back"})
    assert len(cache) == 4


def test_what_is_not_there_is_not_there(pair: tuple[Cache, Cache]) -> None:
    cache, other = pair
    cache.set_many(dict.fromkeys(KEYS, 5))
    for handle in pair:
        assert not handle.delete("fifth")
        assert handle.pop("fifth") is None
        assert not handle.touch("fifth", 1)
        assert handle.delete_many(["fifth"]) == 0
        assert "fifth" not in handle
    expect(other, dict.fromkeys(KEYS, 5))


@pytest.mark.parametrize("value", [5, BIG], ids=["in the write buffer first", "in files"])
def test_a_fifth_takes_the_place_of_the_first(pair: tuple[Cache, Cache], value: object) -> None:
    cache, other = pair
    for key in KEYS:
        cache[key] = value
    cache.flush()
    expect(other, dict.fromkeys(KEYS, value))
    cache["fifth"] = 5
    cache.flush()
    for handle in pair:
        expect(handle, dict.fromkeys(KEYS[1:], value))
        assert handle["fifth"] == 5
        assert len(handle) == 4
    cache.close()
    assert sorted(other) == ["fifth", *KEYS[1:]]


def test_what_lives_elsewhere_is_found_after_everything_was_closed(pair: tuple[Cache, Cache]) -> None:
    cache, other = pair
    with pytest.raises(ZeroDivisionError), cache.transact():
        cache.set_many(dict.fromkeys(KEYS, 4))
        raise ZeroDivisionError
    cache.set_many(dict.fromkeys(KEYS, 5))
    cache.delete(KEYS[0])
    cache.close()
    other.close()
    Path(cache.directory, "cache.gen").unlink()  # as after a crash of the machine
    expect(other, dict.fromkeys(KEYS[1:], 5))
    expect(cache, dict.fromkeys(KEYS[1:], 5))


def test_a_touch_whose_flush_evicts_its_key_leaves_the_one_that_took_the_place(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache._rows.modulus = 1
        for key in KEYS:
            cache[key] = "old"
        cache.flush()
        cache[KEYS[0]] = "new"
        cache["fifth"] = "waits"
        cache.touch(KEYS[0], 0)
        assert cache["fifth"] == "waits"
        assert KEYS[0] not in cache
        assert (len(cache), cache.check()) == (4, [])
