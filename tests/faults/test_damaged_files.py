"""Damaged files beside the database: value files, generations and the write buffer. Each costs at most its own entry."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
import warnings
from array import array
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import EVICTION_POLICY, Cache, FanoutCache, Index
from diskcache_like.coherence.generations import MAX_WORD, Header
from diskcache_like.errors import CorruptDatabaseWarning, DecodeError

from ..support.integrity import mend
from ..support.tampering import ENTRIES, plant, value_files

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}
MAKERS = pytest.mark.parametrize("make", [Cache, FanoutCache])


def _link(path: Path, target: str | None = None) -> None:
    moved = path.rename(path.with_name(f"moved-{path.name}"))
    path.symlink_to(target or moved.name)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FILES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "missing with its directory": lambda path: shutil.rmtree(path.parent),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"!"),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"y"),
    "link": _link,
    "dangling link": lambda path: _link(path, "nowhere"),
    "second name": lambda path: path.with_name("second").hardlink_to(path),
    "directory": _directory,
    "FIFO": _fifo,
    "linked directory": lambda path: _link(path.parent),
}


USES: dict[str, Callable[[Cache], object]] = {
    "evict": lambda cache: cache.evict("a tag"),
    "expire": Cache.expire,
    "clear": Cache.clear,
    "cull": Cache.cull,
    "iterate": list,
    "pull": lambda cache: cache.pull(prefix="queue"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("make", [Cache, partial(FanoutCache, shards=2)], ids=["Cache", "FanoutCache"])
def test_a_schema_damaged_in_use_so_that_rows_have_no_place(
    tmp_path: Path, make: Callable[..., Cache], use: Callable[[Cache], object]
) -> None:
    with closing(make(tmp_path, cull_limit=0, **QUICK)) as cache:
        for number in range(30):
            cache.set(number, bytes(1000), tag="a tag", expire=0)
            cache.push(number, prefix="queue")
        assert list(cache)
        cache.reset("size_limit", 20_000)
        for path in tmp_path.rglob("cache.db"):
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                ((version,),) = other.execute("PRAGMA schema_version")
                other.execute("PRAGMA writable_schema = ON")
                other.execute("UPDATE sqlite_master SET sql = replace(sql, 'id INTEGER', 'id INTEGAR')")
                other.execute(f"PRAGMA schema_version = {version + 1}")
        with pytest.warns(CorruptDatabaseWarning):
            use(cache)
        with warnings.catch_warnings(action="ignore", category=CorruptDatabaseWarning):  # of a shard not used above
            cache["key"] = "value"
            assert "key" in list(cache)
        mend(cache)


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("value", [b"x" * 50_000, "x" * 50_000], ids=["bytes", "text"])
def test_a_value_file_that_is_not_as_written(tmp_path: Path, how: str, value: object) -> None:
    directory = tmp_path / "cache"
    with closing(Cache(directory, hot_size_limit=0, **QUICK)) as cache:
        cache["a"] = value
        (path,) = value_files(directory)
        while {each.parent for each in value_files(directory)} == {path.parent}:  # what goes with it is not of "b"
            cache["b"] = value
        FILES[how](path)
        assert cache.get("a", "missing") == "missing"
        assert cache.get("a", "missing", read=True) == "missing"
        assert cache.pop("a", "missing") == "missing"
        missing = how in ("missing", "missing with its directory")
        assert (cache.metrics().missing_files, cache.metrics().damaged) == ((3, 0) if missing else (0, 3))
        assert cache["b"] == value
        problems = [str(problem.message) for problem in cache.check()]
        assert any(str(directory) in problem and "entry" in problem for problem in problems)
        assert cache.get("a") is None  # looking alone has mended nothing
        cache.check(fix=True)
        cache.check(fix=True)  # what an odd thing left behind when its entry went
        assert cache.check() == []
        assert list(cache) == ["b"]
        assert cache["b"] == value
        cache["a"] = value
        assert cache["a"] == value


WAYS_TO_FILL: dict[str, Callable[[Cache], object]] = {
    "add": lambda cache: cache.add("key", 1),
    "set": lambda cache: cache.set("key", 1, if_version=None),
    "incr": lambda cache: cache.incr("key"),
    "setdefault": lambda cache: Index.fromcache(cache).setdefault("key", 1),
    "get_or_set": lambda cache: cache.get_or_set("key", lambda: 1),
    "memoize": lambda cache: cache.memoize(name="f")(lambda: 1)(),
}


@pytest.mark.parametrize("hot", [0, 1 << 20])
@pytest.mark.parametrize("way", WAYS_TO_FILL)
def test_an_entry_whose_value_file_is_gone_is_missing_for_every_way_to_fill_it(
    tmp_path: Path, way: str, hot: int
) -> None:
    with closing(Cache(tmp_path / "cache", hot_size_limit=hot, **QUICK)) as cache:
        key = "key" if way != "memoize" else cache.memoize(name="f")(lambda: 1).__cache_key__()
        cache[key] = b"x" * 50_000
        (path,) = value_files(tmp_path / "cache")
        path.unlink()
        with closing(Cache(tmp_path / "cache", hot_size_limit=hot, **QUICK)) as other:
            assert [key in other, other.touch(key, 60), other.get(key)] == [False, False, None]
            assert WAYS_TO_FILL[way](other) in (True, 1)
            assert [key in other, other.get(key), cache.get(key)] == [True, 1, 1]


def test_an_inline_value_is_looked_for_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Cache(tmp_path / "cache", hot_size_limit=0, **QUICK)) as cache:
        cache["key"] = 1
        monkeypatch.setattr("diskcache_like.disk.value_files.mode_of", None)
        assert ["key" in cache, cache.add("key", 2), cache.add("other", 2), cache.touch("key")] == [
            True,
            False,
            True,
            True,
        ]


def test_a_damaged_value_file_can_be_replaced_and_deleted(tmp_path: Path) -> None:
    for number, (name, change) in enumerate(FILES.items()):
        with closing(Cache(tmp_path / f"{number}", **QUICK)) as cache:
            cache["a"], cache["b"] = b"x" * 50_000, b"y" * 50_000
            for path in value_files(tmp_path / f"{number}"):
                if path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
                    change(path)  # unless that went with the other file: their random names may begin alike
            cache["a"] = "new"
            assert cache["a"] == "new", name
            assert cache.delete("b") is True, name
            assert list(cache) == ["a"], name


def test_strict_raises_for_a_damaged_file(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache", strict=True, hot_size_limit=0)) as cache:
        cache["a"] = b"x" * 50_000
        (path,) = value_files(tmp_path)
        FILES["flipped"](path)
        with pytest.raises(DecodeError, match=r"'a'.*does not match its checksum"):
            cache.get("a")


# -- generations and the write buffer ---------------------------------------------------------------------------------


def with_header(words: dict[int, int], slots: int | None = None) -> Callable[[bytes], bytes]:
    """Return a change of words in the header of a generation file, and of all slots if that is given."""

    def change(data: bytes) -> bytes:
        content = memoryview(bytearray(data)).cast("Q")
        for place, value in words.items():
            content[place] = value
        if slots is not None:
            for place in range(512, len(content)):
                content[place] = slots
        return content.tobytes()

    return change


GENERATIONS: dict[str, Callable[[bytes], bytes] | None] = {
    "deleted": None,
    "cut to nothing": lambda _: b"",
    "cut to an odd size": lambda data: data[:4097],
    "cut to the header": lambda data: data[:4096],
    "cut in half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + bytes(4096),
    "zeros": lambda data: bytes(len(data)),
    "all ones": lambda data: b"\xff" * len(data),
    "noise": lambda data: bytes(number * 7 % 251 for number in range(len(data))),
    "all odd": with_header({}, 12345),
    "all odd and huge": with_header({}, 2**64 - 1),
    "all even and huge": with_header({}, 2**64 - 2),
    "impossible epoch": with_header({4: 2**63}),
    "huge tick": with_header({16: 2**64 - 1, 26: 2**64 - 1}),
    "other boot": with_header({3: 1}),
    "false count": with_header({25: 7}),
    "died in between": with_header({16: 10, 17: 10, 26: 9}),
    "no room left": with_header({20: 0, 21: 2**63, 24: 2**63}),
    "false modulus": with_header(dict.fromkeys(range(34, 64), 2**60 + 1)),
}


@MAKERS
@pytest.mark.parametrize("how", GENERATIONS)
def test_generations_that_are_not_as_written_lose_nothing(tmp_path: Path, make: type[Cache], how: str) -> None:
    stored = {number: f"value {number}" for number in range(50)}
    with closing(make(tmp_path / "cache", **QUICK)) as cache:
        cache.set_many(stored)
    change = GENERATIONS[how]
    for path in (tmp_path / "cache").rglob("cache.gen"):
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
    with closing(make(tmp_path / "cache")) as cache, closing(make(tmp_path / "cache")) as other:
        assert cache.get_many(stored) == other.get_many(stored) == stored
        for number in range(50):
            cache[number] = number
            assert other[number] == number
        assert cache.check(fix=True) is not None  # a count that was false is reported
        assert len(cache) == len(other) == 50
        assert cache.check() == []


@MAKERS
def test_generations_made_anew_after_the_clock_was_ahead_count_on_from_the_entries(
    tmp_path: Path, make: type[Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time_ns
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: right() + 10 * 86_400 * 10**9)
        with closing(make(tmp_path / "cache", **QUICK)) as cache:
            cache.set_many(dict.fromkeys(range(50)))
    for path in (tmp_path / "cache").rglob("cache.gen"):
        path.unlink()
    with closing(make(tmp_path / "cache")) as cache:
        assert sorted(cache) == list(range(50))
        for number in range(50, 100):
            cache[number] = None
        assert cache.check(fix=True) == []
        assert sorted(cache) == list(range(100))
        assert cache.peekitem(last=True)[0] >= 50 > cache.peekitem(last=False)[0]


def test_generations_made_anew_do_not_count_on_from_a_damaged_entry(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "cache.db")) as database, database:
        database.execute("UPDATE entry SET id = id | (1 << 61) WHERE h = (SELECT max(h) FROM entry)")
    (directory / "cache.gen").unlink()
    with closing(Cache(directory)) as cache:
        assert len(list(cache)) == ENTRIES - 1
        assert any("order of insertion" in str(problem.message) for problem in cache.check())


def change_word(path: Path, word: int, change: Callable[[int], int]) -> None:
    """Change a number in the header of a generation file, in place."""
    with path.open("r+b") as file:
        file.seek(8 * word)
        number = int.from_bytes(file.read(8), sys.byteorder)
        file.seek(8 * word)
        file.write(change(number).to_bytes(8, sys.byteorder))


@pytest.mark.parametrize("count", [3, 1 << 48, 1 << 63], ids=["too low", "more than there is room for", "too high"])
def test_a_count_of_entries_that_is_wrong_hinders_nobody(directory: Path, count: int) -> None:
    change_word(directory / "cache.gen", Header.COUNT, lambda _: count)
    with closing(Cache(directory)) as cache:
        assert len(cache) in (3, ENTRIES)
        with cache.transact():
            for number in range(10, 15):
                assert cache.delete(number)
            assert len(cache) == ENTRIES - 5
            for number in range(10, 15):
                cache[number] = number
        for number in range(100):
            assert cache.delete(number + 10)
        cache.check(fix=True)
        assert len(cache) == ENTRIES - 100


def test_a_number_of_writes_that_was_set_back_hides_no_entry(directory: Path) -> None:
    change_word(directory / "cache.gen", Header.TICK, lambda tick: tick - 1000)
    with closing(Cache(directory)) as cache:
        assert len(list(cache)) == ENTRIES


def test_a_number_of_writes_that_is_lost_costs_no_entry(directory: Path) -> None:
    for word in (Header.TICK, Header.SETTLED):
        change_word(directory / "cache.gen", word, lambda _: 10)
    with closing(Cache(directory)) as cache:
        assert any("writes were counted" in str(problem.message) for problem in cache.check(fix=True))
        assert cache.check() == []
        assert len(list(cache)) == ENTRIES


def test_an_entry_moved_beyond_the_last_write_is_found(directory: Path) -> None:
    plant(directory, "UPDATE entry SET id = version + 100 WHERE version = (SELECT max(version) FROM entry)")
    with closing(Cache(directory)) as cache:
        assert len(list(cache)) < ENTRIES
        assert any("writes were counted" in str(problem.message) for problem in cache.check(fix=True))
        assert cache.check() == []
        assert len(list(cache)) == ENTRIES


def test_a_number_of_writes_that_is_too_large_hinders_no_reader(directory: Path) -> None:
    with closing(Cache(directory, eviction_policy="least-recently-used")) as cache:
        assert cache["a"] == "text"
        change_word(directory / "cache.gen", Header.TICK, lambda tick: tick | 1 << 63)
        assert cache["a"] == "text"  # hot
        assert cache["b"] == {"some": ["nested", "data"]}
        assert len(list(cache)) == ENTRIES


@pytest.mark.parametrize("change", [lambda tick: tick - 1000, lambda tick: tick | 1 << 63], ids=["back", "too far"])
def test_a_number_of_writes_that_changes_in_use_is_mended_by_the_next_write(
    directory: Path, change: Callable[[int], int]
) -> None:
    with closing(Cache(directory)) as cache, closing(Cache(directory)) as other:
        assert cache["a"] == other["a"] == "text"
        change_word(directory / "cache.gen", Header.TICK, change)
        cache["a"] = "new"
        assert cache["a"] == other["a"] == "new"
        assert len(list(cache)) == len(list(other)) == ENTRIES
        cache["more"] = 1
        assert list(other)[-1] == "more"


@pytest.mark.parametrize("policy", EVICTION_POLICY)
def test_a_number_of_writes_that_ends_in_use_begins_anew(tmp_path: Path, policy: str) -> None:
    for before in range(7):
        with closing(Cache(tmp_path / str(before), eviction_policy=policy)) as cache:
            cache["a"] = 1
            cache._shards.stores[0].shard.header[Header.TICK] = (1 << 62) - before
            for number in range(4):
                cache[number] = number
                assert cache[number] == cache.get_many([number])[number] == number
                assert cache.incr("n", default=number) > number
                assert cache.push(number)
            cache.set_many({"a": 2, "b": 3})
            assert (cache["a"], cache["b"]) == (2, 3)


COUNTS = (
    "TICK",
    "WRITTEN",
    "CHECKPOINTED",
    "VOLUME_DUE",
    "COUNT",
    "EVICTED",
    "INTERNAL",
    "GROWTH",
    "RESERVATION",
)
LIMITS: dict[str, Any] = {"size_limit": 1 << 18, "statistics": True, "hot_size_limit": 0}


def use_at_the_end(cache: Cache, spoil: Callable[[], object]) -> None:
    """Do what adds to a count, each time after that was spoiled; none of it fails."""
    for number in range(40):
        spoil()
        cache[number % 7] = "x" * 4000
    spoil()
    cache.set_many({number: number for number in range(50, 60)})
    spoil()
    assert cache.incr("counter") == 1
    assert cache["counter"] == 1
    spoil()
    assert cache.touch("counter", 60)
    spoil()
    assert cache.pop("counter") == 1
    with cache.transact():
        spoil()
        cache["inside"] = "y" * 4000
        cache["beside"] = 1
        del cache["beside"]
        spoil()
    spoil()
    cache.set("tagged", 1, tag="tag")
    spoil()
    assert cache.evict("tag") == 1
    for call in (cache.cull, cache.expire, cache.stats, cache.volume, lambda: cache.check(fix=True)):
        spoil()
        call()
    assert cache.get("inside") == "y" * 4000
    assert cache.check() == []
    cache.clear()


RANKING = ("TICK", ("TICK", "SETTLED"), "cells")  # what eviction by each policy goes by


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        *((word, "least-recently-stored") for word in (*COUNTS, *RANKING[1:])),
        *((word, policy) for word in RANKING for policy in ("least-recently-used", "least-frequently-used")),
        *((word, "second-chance") for word in (*RANKING, "BOUNDARY", "UNMOVED", "MARKS", "EVICTED")),
    ],
    ids=str,
)
def test_a_count_that_is_at_its_end_fails_no_call(tmp_path: Path, word: str | tuple[str, ...], policy: str) -> None:
    def spoil(number: int) -> None:
        if word == "cells":
            store.shard.generations._cells.cast("Q")[:2_000] = array("Q", [number] * 2_000)
        else:
            for name in (word,) if isinstance(word, str) else word:
                store.shard.header[getattr(Header, name)] = number

    with closing(Cache(tmp_path / "cache", eviction_policy=policy, **QUICK, **LIMITS)) as cache:
        (store,) = cache._shards.stores
        for number in (MAX_WORD, MAX_WORD - 1, 1 << 63):
            use_at_the_end(cache, partial(spoil, number))


def test_a_keyring_changes_where_its_count_is_at_its_end(tmp_path: Path) -> None:
    secrets = ["the first of many secrets", "the other of the secrets"]
    with (
        closing(Cache(tmp_path / "cache", secret=secrets[0], encrypt=True, **QUICK)) as cache,
        closing(Cache(tmp_path / "cache", secret=secrets[0], encrypt=True, **QUICK)) as other,
    ):
        for number in (MAX_WORD, MAX_WORD - 1):
            cache["a"] = other["b"] = number
            cache._shards.stores[0].shard.header[Header.KEYS] = number
            cache.rotate(secrets[1])
            assert cache._shards.stores[0].shard.header[Header.KEYS] not in (0, number)
            assert cache["b"] == number
            secrets.reverse()
            other.close()
            other = Cache(tmp_path / "cache", secret=secrets[0], encrypt=True, **QUICK)
            assert other["a"] == number
        other.close()


def test_a_wal_is_emptied_again_after_its_count_was_at_its_end(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache", **QUICK, hot_size_limit=0, disk_min_file_size=1 << 20)) as cache:
        (store,) = cache._shards.stores
        store.shard.header[Header.WRITTEN] = store.shard.header[Header.CHECKPOINTED] = store.shard.header[
            Header.VOLUME_DUE
        ] = MAX_WORD - 5000
        for number in range(100):
            cache[number % 5] = bytes(500_000)
        assert os.path.getsize(tmp_path / "cache" / "cache.db-wal") < 25 << 20


MARKS = {
    "mark far ahead": {Header.VOLUME_DUE: 1 << 60},
    "mark at its end": {Header.VOLUME_DUE: MAX_WORD},
    "nothing written": {Header.WRITTEN: 0},
    "nothing written since a checkpoint far ahead": {Header.WRITTEN: 1 << 30, Header.CHECKPOINTED: 1 << 60},
}
WRITES: dict[str, Callable[[Cache, int], object]] = {
    "set": lambda cache, number: cache.set(number, bytes(20_000)),
    "set_many": lambda cache, number: cache.set_many({(number, part): bytes(10_000) for part in range(2)}),
    "delete": lambda cache, number: cache.set(number, bytes(20_000)) and cache.delete(number),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("damage", MARKS)
def test_the_limit_and_the_wal_hold_whatever_the_counts_say(tmp_path: Path, damage: str, write: str) -> None:
    limit = 4 << 20
    with closing(Cache(tmp_path / "cache", **QUICK, size_limit=limit, disk_min_file_size=1 << 20)) as cache:
        (store,) = cache._shards.stores
        for number in range(2_000):
            if number % 1_000 == 500:
                store.shard.header[Header.WRITTEN] += 1 << 40
                store.shard.header[Header.CHECKPOINTED] = store.shard.header[Header.WRITTEN]
                store.shard.header[Header.VOLUME_DUE] = store.shard.header[Header.WRITTEN] + 10_000
                for word, value in MARKS[damage].items():
                    store.shard.header[word] = value
            WRITES[write](cache, number)
            if not number % 10:
                assert cache.volume() <= limit * 1.01
        assert os.path.getsize(tmp_path / "cache" / "cache.db-wal") < 25 << 20


@pytest.mark.parametrize("how", ["deleted", "cut to nothing", "cut to an odd size", "longer", "all ones", "noise"])
def test_a_write_buffer_that_is_not_as_written_changes_no_answer_about_what_was_flushed(
    directory: Path, how: str
) -> None:
    change, path = GENERATIONS[how], directory / "cache.buffer"
    if not path.exists():
        pytest.skip("this machine has no write buffer")
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with closing(Cache(directory)) as cache, closing(Cache(directory)) as other:
        assert cache["a"] == "text"
        cache["a"] = "new"
        assert other["a"] == "new"
        assert len(cache) == ENTRIES
