"""Rows that an attacker or a bad disk wrote, with right checksums: no operation fails by an error of Python's own."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Averager, BoundedSemaphore, Breaker, Cache, Deque, Disk, JSONDisk, throttle
from diskcache_like.encoding import file_names, keys
from diskcache_like.encoding.record import MODE_RAW, Metadata, Record, pack
from diskcache_like.encoding.tags import tags_column
from diskcache_like.errors import BreakerOpen, CacheError, CorruptDatabaseWarning
from diskcache_like.memoizing.flights import flight_key
from diskcache_like.memoizing.rules import StoredError

from ..support.tampering import database, plant, stored_of

DIRECT: dict[str, Any] = {"write_buffer": 0, "generation_slots": 1 << 10}
NO_VERSION = ["'text'", "x'00'", "9e999", "1.5"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the directory of a closed cache with the entries "a", "b" and "big"."""
    with closing(Cache(tmp_path / "cache", **DIRECT)) as cache:
        cache["a"], cache["b"], cache["big"] = 1, 2, "y" * 100_000
    return tmp_path / "cache"


def test_peekitem_skips_a_misplaced_entry(place: Path) -> None:
    with closing(Cache(place, **DIRECT)) as cache:
        del cache["big"]
        stored = stored_of(cache, "b")
    plant(place, "UPDATE entry SET h = h + 4 WHERE k = ?", stored)
    with closing(Cache(place, **DIRECT)) as cache:
        assert cache.peekitem() == ("a", 1)
        assert cache.metrics().damaged == 1


def test_peekitem_skips_the_state_of_computations(place: Path) -> None:
    with closing(Cache(place, **DIRECT)) as cache:
        del cache["big"]
        atomic = cache._atomic_key(flight_key(("breaker", "name")))
        atomic.update(lambda _found, _metadata: ((), atomic.metadata(60.0)), None)
        assert cache.peekitem() == ("b", 2)


def test_a_trash_row_with_another_spelling_removes_no_file(place: Path) -> None:
    with database(place) as connection:
        (column,) = connection.execute("SELECT file FROM entry WHERE file IS NOT NULL").fetchone()
        connection.execute("INSERT INTO trash VALUES (?, 5, 1.0)", (file_names.from_column(column),))
    with closing(Cache(place, **DIRECT)) as cache:
        cache.check(fix=True)
        assert cache.check() == []
        assert len(cache["big"]) == 100_000


def test_a_database_whose_text_is_utf_16_is_damaged(place: Path) -> None:
    with database(place) as connection:
        lines = list(connection.iterdump())
        pragmas = [f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]}" for name in NUMBERS]
    for path in place.glob("cache.db*"):
        path.unlink()
    with closing(sqlite3.connect(place / "cache.db", isolation_level=None)) as connection:
        for statement in ("PRAGMA encoding = 'UTF-16le'", *pragmas, "PRAGMA journal_mode = WAL"):
            connection.execute(statement)
        connection.executescript("\n".join(lines))
    (place / "cache.db").chmod(0o600)
    with pytest.warns(CorruptDatabaseWarning, match="UTF-16"):
        cache = Cache(place, **DIRECT)
    with closing(cache):
        cache.set("key", 1, tag="tag")
        assert cache.evict("tag") == 1


NUMBERS = ("user_version", "application_id", "page_size", "auto_vacuum")


@pytest.mark.parametrize("sizes", [("9e999", "-9e999"), ("9e999", "9e999"), ("'x'", "x'00'"), ("5", "9e999")])
@pytest.mark.parametrize("total", ["files", "9e999", "-9e999"])
def test_sizes_that_have_no_sum_are_mended(tmp_path: Path, sizes: tuple[str, str], total: str) -> None:
    with closing(Cache(tmp_path, **DIRECT)) as cache:
        cache["one"] = cache["two"] = "y" * 100_000
        places = [cache._rows.locate(key)[1] for key in ("one", "two")]
    for h, size in zip(places, sizes, strict=True):
        plant(tmp_path, f"UPDATE entry SET size = {size} WHERE h = ?", h)
    plant(tmp_path, f"UPDATE totals SET files = {total}")
    with closing(Cache(tmp_path, **DIRECT)) as cache:
        cache.check(fix=True)
        assert cache.check() == []
        cache["one"] = "z" * 100_000
        assert cache.clear() == 1


def test_a_row_in_the_first_place_of_all_is_found_and_removed(place: Path) -> None:
    plant(place, "UPDATE entry SET h = ? WHERE h = (SELECT min(h) FROM entry)", -(1 << 63))
    with closing(Cache(place, **DIRECT)) as cache:
        assert len(cache.check(fix=True)) >= 1
        assert cache.check() == []
        assert len(cache) == len(list(cache)) == 2


@pytest.mark.parametrize(("number", "side"), [(1 << 62, "back"), (-(1 << 62), "front")])
def test_an_item_beyond_all_numbers_of_a_queue_stays_at_its_end(tmp_path: Path, number: int, side: Any) -> None:
    with closing(Cache(tmp_path, **DIRECT)) as cache:
        key = keys.queue_key(None, number)
        stored, h, store = cache._rows.locate(key)
        row = cache._rows.row(key, (stored, h, store), cache._rows.encode(store, "evil", False, key), Metadata())
        with store.transaction(None):
            store.put(h, stored, row, None)
        more = cache.push("more", side=side)
        found = [(more, "more"), (key, "evil")]
        assert [cache.pull() for _ in range(3)] == [*(found if side == "back" else found[::-1]), (None, None)]


def test_an_item_that_the_index_of_a_queue_lacks_is_not_overwritten(tmp_path: Path) -> None:
    with closing(Deque([10, 20, 30, 40], tmp_path).cache) as cache:
        last, _ = cache.peek(side="back")
    (tmp_path / "cache.buffer").unlink(missing_ok=True)
    content = (tmp_path / "cache.db").read_bytes()
    spelled = last.number.to_bytes(8, "big")
    found = [at for at in range(len(content)) if content.startswith(spelled, at)]
    assert found
    for at in found:
        flipped = bytearray(content)
        flipped[at] ^= 0x80
        (tmp_path / "cache.db").write_bytes(flipped)
        (tmp_path / "cache.gen").unlink(missing_ok=True)
        with suppress(CacheError):
            deque = Deque((), tmp_path)
            with closing(deque.cache), suppress(CacheError):
                deque.append(50)
                assert len(deque) == 5


def test_a_deque_beside_other_entries_is_reversed(tmp_path: Path) -> None:
    deque = Deque([1, 2, 3], tmp_path)
    with closing(deque.cache):
        deque.cache.set_many({"a": 1, "b": 2, "c": 3})
        deque.reverse()
        assert [deque[number] for number in range(3)] == [3, 2, 1]


@pytest.mark.parametrize("version", NO_VERSION)
def test_a_version_that_is_no_number_matches_no_write(place: Path, version: str) -> None:
    plant(place, f"UPDATE entry SET version = {version}")
    with closing(Cache(place, **DIRECT)) as cache:
        assert not cache.set("a", 3, if_version=5)
        assert cache.set("a", 3)


class OwnDisk(JSONDisk):
    """A disk class of the user's."""


def test_a_payload_that_the_disk_class_never_writes(tmp_path: Path) -> None:
    with closing(Cache(tmp_path, disk=OwnDisk, **DIRECT)) as cache:
        stored, h, _ = cache._rows.locate("key")
    for payload in (b"\x05", b"\xc0", b"\x81\xa1a\x01"):
        blob = pack(stored, Record(MODE_RAW, payload, Metadata()), None)
        plant(tmp_path, "INSERT OR REPLACE INTO entry (h, k, version, v) VALUES (?, ?, 1, ?)", h, stored, blob)
        with closing(Cache(tmp_path, disk=OwnDisk, **DIRECT)) as cache:
            assert cache.get("key") is None
            for look in (list, lambda cache: cache.get_entry("key"), lambda cache: cache.peekitem()):
                with suppress(CacheError, KeyError):
                    look(cache)


@pytest.mark.parametrize("arguments", [5, None, "text"])
def test_a_kept_error_with_other_arguments_is_computed_anew(tmp_path: Path, arguments: object) -> None:
    with closing(Cache(tmp_path)) as cache:
        cache["key"] = StoredError("builtins.ValueError", arguments)  # type: ignore[arg-type]
        assert cache.get_or_set("key", lambda: 5, cache_errors=ValueError) == 5


STATES: list[Any] = [
    5,
    None,
    "ab",
    (1,),
    ("a", "b"),
    (("a",), None),
    (None, None),
    (10**400, 1),
    [],
    {},
    (0.0, -1e300),
    (1, 10**400),
]


@pytest.mark.parametrize("state", STATES, ids=[str(number) for number in range(len(STATES))])
@pytest.mark.parametrize(
    "use",
    [
        lambda cache: Averager(cache, "key").add(1),
        lambda cache: Averager(cache, "key").get(),
        lambda cache: Averager(cache, "key").pop(),
        lambda cache: BoundedSemaphore(cache, "key", 5, expire=3).acquire(False),
        lambda cache: throttle(cache, 5, 1, "key", sleep_func=_never)(lambda: None)(),
    ],
    ids=["add", "get", "pop", "semaphore", "throttle"],
)
def test_a_foreign_value_under_the_key_of_a_recipe_is_reported(
    tmp_path: Path, use: Callable[[Cache], object], state: object
) -> None:
    with closing(Cache(tmp_path)) as cache:
        cache["key"] = state
        try:
            use(cache)
        except TypeError as error:
            assert "use another key for one of the two" in str(error)  # noqa: PT017 - some of them may be used


def _never(seconds: float) -> None:
    raise AssertionError(f"waits {seconds} s")


def test_expire_takes_any_moment(tmp_path: Path) -> None:
    with closing(Cache(tmp_path)) as cache:
        cache.set("key", 1, expire=60)
        assert cache.expire(now=10**25) == 1


@pytest.mark.parametrize("planted", [b"\x01\xc0", b"\x01\x90", b"\x01\xd9", b"\x05\xdd\xff\xff\xff\xff"])
def test_a_planted_tag_keeps_no_other_from_being_listed(tmp_path: Path, planted: bytes) -> None:
    with closing(Cache(tmp_path, **DIRECT)) as cache:
        cache.set("good", 1, tag="tag")
        cache.set("bad", 1, tag="tag")
        stored, h, _ = cache._rows.locate("bad")
    blob = pack(stored, Record(MODE_RAW, b"\x01", Metadata(tags=planted)), None)
    plant(tmp_path, "UPDATE entry SET v = ?, tags = ? WHERE h = ?", blob, tags_column(planted), h)
    with closing(Cache(tmp_path, **DIRECT)) as cache:
        assert [usage.name for usage in cache.tags()] == ["tag"]
        assert cache.metrics().damaged == 1
        assert len(cache.check(fix=True)) == 1
        assert cache.check() == []


class ListingDisk(Disk):
    """A disk class that hands on other bytes than it was given."""

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        return super().fetch(mode, filename, value if value is None else bytearray(value), read)

    def get(self, key: Any, raw: bool) -> Any:
        return super().get(memoryview(key), raw)


def test_a_disk_class_may_hand_on_any_bytes(tmp_path: Path) -> None:
    with closing(Cache(tmp_path, disk=ListingDisk)) as cache:
        cache["key"] = [1, 2]
        cache.close()
        assert cache["key"] == [1, 2]
        assert cache.peekitem() == ("key", [1, 2])


def test_a_value_that_pop_refuses_stays(tmp_path: Path) -> None:
    with closing(Cache(tmp_path)) as cache:
        cache["key"] = {"important": 1}
        with pytest.raises(TypeError, match="running average"):
            Averager(cache, "key").pop()
        assert cache["key"] == {"important": 1}
        del cache["key"]
        assert Averager(cache, "key").pop() is None


@pytest.mark.parametrize("disk", [Disk, JSONDisk])
@pytest.mark.parametrize("count", [math.inf, 1e300, Fraction(5), 5])
def test_a_throttle_takes_any_real_number(tmp_path: Path, disk: type[Disk], count: Any) -> None:
    with closing(Cache(tmp_path, disk=disk)) as cache:
        limited = throttle(cache, count, 1, "key", time_func=lambda: Fraction(1), sleep_func=_never)(lambda: 1)  # type: ignore[arg-type,return-value]
        assert [limited(), limited(), limited()] == [1, 1, 1]


@pytest.mark.parametrize("disk", [Disk, JSONDisk])
def test_an_average_is_kept_by_each_disk_class(tmp_path: Path, disk: type[Disk]) -> None:
    with closing(Cache(tmp_path, disk=disk)) as cache:
        average = Averager(cache, "key")
        for value in (1, 2.5, Fraction(1, 2)):
            average.add(value)  # type: ignore[arg-type]
        assert average.get() == pytest.approx(4 / 3)
        assert average.pop() == pytest.approx(4 / 3)
        assert average.get() is None


@pytest.mark.parametrize("disk", [Disk, JSONDisk])
def test_a_breaker_opens_with_each_disk_class(tmp_path: Path, disk: type[Disk]) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("always")

    with closing(Cache(tmp_path, disk=disk)) as cache:
        failing = cache.memoize(breaker=Breaker(errors=2, window=60, open=60))(fail)
        for _ in range(5):
            with pytest.raises((ValueError, BreakerOpen)):
                failing()
    assert len(calls) == 2
