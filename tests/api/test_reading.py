"""Reading: get, [], in, read, get_many, get_entry; values come back exact, and nobody's copy is anybody else's."""

from __future__ import annotations

import datetime as dt
import io
import math
import pickle
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import EVICTION_POLICY, Cache, Entry
from diskcache_like.storage.shard.ownership import Transaction
from diskcache_like.storage.shard.writer_connection import WriterConnection

from ..support.cache_kinds import Clock, Opener, exact

NESTED: list[Any] = []
for _ in range(50):
    NESTED = [NESTED, {"depth": len(NESTED)}]

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 1.0, 1e-320, math.inf, -math.inf, math.nan,
    1j, complex(-0.0, math.nan), "", "text", "\ud800 lone \udfff", "\0", "é" * 20_000, "line\r\nline\rline\n" * 7000,
    b"", b"\xff\0\r\n", b"\r\n" * 60_000, bytearray(b"mutable"), (), (1,), [], [1, [2.0, "3"], (4, b"5")], {}, ...,
    {"a": 1, 2: "b", (3, 4): None, b"5": [6]}, set(), {1, "two"}, frozenset({1.5}), range(3, 30, 4), NESTED,
    dt.date(1, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 999_999), dt.datetime(2024, 6, 1, tzinfo=dt.UTC),
    dt.time(1, 2, 3, fold=1), dt.timedelta(days=-1, microseconds=1), Decimal("1.10"), Decimal("-0"), Fraction(1, 3),
    uuid.UUID(int=5), OrderedDict(b=1, a=2), int, [dt.timezone(dt.timedelta(hours=2), "here")],
]  # fmt: skip


def identical(one: Any, other: Any) -> bool:
    """Tell whether two values are of one type and equal, all the way down; NaN is NaN and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        return identical(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return identical(sorted(one, key=repr), sorted(other, key=repr))
    return repr(one) == repr(other)


def test_a_missing_key_gives_the_default(cache: Cache) -> None:
    assert cache.get("key") is None
    assert cache.get("key", 5) == 5
    assert cache.get("key", 5, expire_time=True) == (5, None)
    assert cache.get("key", tag=True) == (None, None)
    assert cache.get("key", expire_time=True, tag=True) == (None, None, None)
    assert "key" not in cache
    with pytest.raises(KeyError, match="key"):
        cache["key"]


def test_every_hit_gives_the_value_that_was_set(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        for number, value in enumerate(VALUES):
            cache.set(number, value)
            for _ in range(5):
                assert identical(cache.get(number), value)


def test_who_changes_what_a_hit_gave_changes_it_for_nobody_else(cache: Cache) -> None:
    value = {"rows": [{"a": 1}, {"a": 2}], "deep": {"list": [[1], [2]]}}
    cache.set("key", value)
    for _ in range(5):
        found = cache.get("key")
        assert found == value
        found["rows"][0]["a"] = 5
        found["deep"]["list"][1].append(3)
        found["rows"].append({})
        found["more"] = 1
    assert cache.get_many(["key"]) == {"key": value}


def test_parts_that_pickle_shares_are_shared_at_every_hit(tmp_path: Path) -> None:
    part = [1]
    with Cache(tmp_path, serializer="pickle", pickle="trusted") as cache:
        cache["key"] = [part, part]
        for _ in range(5):
            found = cache["key"]
            assert found == [[1], [1]]
            assert found[0] is found[1]


def test_what_was_set_is_got_with_its_expiry_and_tag(cache: Cache, clock: Clock) -> None:
    cache.set("key", "value", expire=10, tag="tag")
    expiry = clock.now + 10
    for _ in range(2):
        assert cache.get("key") == cache["key"] == "value"
        assert cache.get("key", expire_time=True) == ("value", expiry)
        assert cache.get("key", tag=True) == ("value", "tag")
        assert cache.get("key", expire_time=True, tag=True) == ("value", expiry, "tag")
        assert "key" in cache
        cache.close()  # the second round reads from the database


def test_a_stored_none_is_not_a_missing_key(cache: Cache) -> None:
    cache["key"] = None
    for _ in range(2):
        assert cache.get("key", "default") is None
        assert cache["key"] is None
        assert "key" in cache
        cache.close()


def test_an_entry_expires_to_the_fraction_of_a_second(cache: Cache, clock: Clock) -> None:
    cache.set("key", "value", expire=0.5)
    cache["forever"] = "value"
    clock.advance(0.25)
    assert cache.get("key") == "value"
    assert "key" in cache
    clock.advance(0.25)
    assert cache.get("key") is None
    assert cache.get("key", "default", expire_time=True) == ("default", None)
    assert "key" not in cache
    assert cache.get_entry("key") is None
    assert cache.get_many(["key", "forever"]) == {"forever": "value"}
    with pytest.raises(KeyError):
        cache["key"]


@exact
def test_no_kind_of_value_changes_on_its_way(cache: Cache) -> None:
    for number, value in enumerate(VALUES):
        cache[number] = value
    for state in ("hot", "cold", "hot again"):
        changed = [value for number, value in enumerate(VALUES) if not identical(cache[number], value)]
        assert not changed, f"{state}: {changed!r:.200}"
        if state == "hot":
            cache.close()


@exact
def test_nobody_shares_a_mutable_value(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    value: dict[str, Any] = {"list": [1], "set": {1}}
    holder = ([2], "tuple")
    cache["key"], cache["holder"] = value, holder
    for handle in (cache, cache, other, other):
        got = handle["key"]
        assert got == {"list": [1], "set": {1}}
        assert handle["holder"] == ([2], "tuple")
        got["list"].append(2)
        got["set"].clear()
        handle["holder"][0].clear()
        handle.get_many(["key"])["key"].clear()
        value["list"].append(3)


@exact
def test_keys_that_python_cannot_hash_work(cache: Cache) -> None:
    for key in ([1, [2]], {"a": [1]}, bytearray(b"key"), {1, 2}):
        assert key not in cache
        assert cache.add(key, "value")
        assert cache.get(key) == cache[key] == "value"
        assert cache.get_entry(key).value == "value"
        assert cache.touch(key)
        assert cache.pop(key) == "value"
        assert not cache.delete(key)


def test_get_many_finds_the_live_ones_among_many(cache: Cache, clock: Clock) -> None:
    assert cache.get_many([]) == {}
    cache.set_many({f"key {number}": number for number in range(250)})
    cache.set_many({"short": 1}, expire=1)
    wanted = [f"key {number}" for number in range(0, 250, 2)]
    assert cache.get_many(["short", "short", "missing"]) == {"short": 1}
    clock.advance(1)
    cache.close()
    for _ in range(2):
        found = cache.get_many(iter([*wanted, "missing", "short", wanted[0]]))
        assert found == {key: int(key.split()[1]) for key in wanted}


def test_get_many_finds_what_waits_in_a_write_buffer_and_what_does_not(cache: Cache) -> None:
    cache.set_many({number: "old" for number in range(250)})
    cache.flush()
    cache[1], cache[249] = "new", ""
    del cache[2]
    expected = {0: "old", 1: "new", 3: "old", 249: ""}
    for _ in range(2):
        cache._hot.clear()
        assert cache.get_many([249, 0, 2, 1, 3, 250]) == expected
        with cache.transact():
            cache._hot.clear()
            assert cache.get_many([249, 0, 2, 1, 3, 250]) == expected
        cache.flush()


def test_get_entry_tells_all_about_an_entry(cache: Cache, clock: Clock) -> None:
    assert cache.get_entry("key") is None
    assert cache.get_entry("key", "default") == "default"
    cache.set("key", "v" * 1000, expire=5, tag="a")
    entry = cache.get_entry("key")
    assert isinstance(entry, Entry)
    assert entry[:3] == ("v" * 1000, clock.now + 5, "a")
    assert entry.size > 0
    cache["key"] = 1
    assert cache.get_entry("key")[:3] == (1, None, None)


@exact
@pytest.mark.parametrize("size", [0, 10, 200_000])
def test_bytes_are_read_from_a_file_object(cache: Cache, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    cache["key"] = content
    with cache.read("key") as reader:
        assert reader.read(10) == content[:10]
        assert reader.read() == content[10:]
    with cache.get("key", read=True) as reader:
        cache["key"] = b"another"
        cache.delete("key")
        assert reader.read() == content, "an open value outlives its entry"
    cache["text"] = "t" * size
    assert cache.get("text", read=True) == "t" * size, "only bytes are read from a file"
    with pytest.raises(KeyError, match="missing"):
        cache.read("missing")


@exact
def test_read_gives_expiry_and_tag_too(cache: Cache, clock: Clock) -> None:
    cache.set("key", io.BytesIO(b"content"), expire=3, read=True, tag=7)
    reader, expiry, tag = cache.get("key", read=True, expire_time=True, tag=True)
    with reader:
        assert (reader.read(), expiry, tag) == (b"content", clock.now + 3, 7)


def test_every_hit_is_counted_whatever_else_it_notes(tmp_path: Path) -> None:
    for policy in EVICTION_POLICY:
        with Cache(tmp_path / policy, eviction_policy=policy, statistics=True) as cache:
            cache["text"] = "value"
            cache["list"] = [1]
            for _ in range(20):
                assert (cache["text"], cache["list"], cache.get("absent")) == ("value", [1], None)
            assert cache.stats() == (40, 20)


def test_a_replaced_time_is_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache.set("key", "value", expire=100)
        assert cache["key"] == "value"
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 101)
        assert cache.get("key") is None
        assert cache.expire() == 1
    with pickle.loads(pickle.dumps(cache)) as copy:
        assert copy.get("key") is None


def there_once(transactions: list[Transaction]) -> property:
    """Return an attribute that is a transaction when it is looked at first, and None from then on."""
    seen = iter(transactions)
    return property(lambda _: next(seen, None))


def test_a_read_does_not_stumble_over_a_transaction_that_another_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "cache", hot_size_limit=0) as cache:
        cache["key"] = "value"
        cache.flush()
        others: list[Transaction] = []
        thread = threading.Thread(target=lambda: others.append(Transaction()))
        thread.start()
        thread.join()
        reads: list[Callable[[], object]] = [lambda: cache["key"], lambda: list(cache), lambda: len(cache)]
        for read in reads:
            with monkeypatch.context() as patch:
                patch.setattr(WriterConnection, "txn", there_once(others), raising=False)
                assert read() in ("value", ["key"], 1)


@pytest.mark.parametrize("value", [{"a": [1, 2]}, [1.5] * 300, [{"deep": [bytearray(b"x")]}], {1: [{2}] * 300}])
def test_those_who_change_nothing_may_share_a_value(tmp_path: Path, value: Any) -> None:
    with Cache(tmp_path) as cache, Cache(tmp_path) as other:
        cache["key"] = value
        assert other.get("key", copy=False) == value
        one = other.get("key", copy=False)
        assert one == value
        assert one is other.get("key", copy=False)
        own = other["key"]
        assert own == value
        assert own is not one
        own.clear()
        assert other["key"] == value
        cache["key"] = "changed"
        assert other.get("key", copy=False) == "changed"
        assert other.get("missing", 5, copy=False) == 5
