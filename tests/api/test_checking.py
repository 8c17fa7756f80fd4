"""check and volume, the tag index, and the bounds of the hot layer."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, CorruptDatabaseWarning, EmptyDirWarning, StorageError, UnknownFileWarning
from diskcache_like.coherence.generations import Header
from diskcache_like.entries.hot import COST
from diskcache_like.storage import check as checking
from diskcache_like.storage.sqlite.schema import ENTRY, ON_TAGGED_UPDATE, difference_of
from diskcache_like.storage.upkeep.trash import GRACE, Trash

from ..support.cache_kinds import Clock, Opener, exact, one, only
from ..support.inspection import problems

BIG = "x" * 50_000


def tamper(cache: Cache, statement: str, *parameters: Any) -> None:
    """Change the database behind the back of the closed cache."""
    cache.close()
    connection = sqlite3.connect(Path(cache.directory, "cache.db"))
    assert connection.execute(statement, parameters).rowcount
    connection.commit()
    connection.close()


def value_files(cache: Cache) -> list[Path]:
    return sorted(Path(cache.directory).rglob("*.val"))


@one
def test_damage_under_a_number_that_is_too_long_to_show_is_named_and_mended(open_cache: Opener) -> None:
    cache = open_cache()
    huge = 10**5000
    cache.set_many({huge: 1, (huge, 1): 2})
    tamper(cache, "UPDATE entry SET v = x'00'")
    assert cache.get(huge) is None
    assert sorted(text.partition(" (at")[0] for text in problems(cache, fix=True)) == [
        "entry <int with an integer too long to show>",
        "entry <tuple with an integer too long to show>",
    ]
    assert cache.check() == []


@one
def test_each_kind_of_damage_is_found_and_mended(open_cache: Opener) -> None:
    cache = open_cache()
    cache.set_many({"one": BIG, "two": BIG, "three": "small", "four": "small"})
    first, second = value_files(cache)
    first.unlink()
    empty = 1 + (first.parent.name not in (second.parent.name, "ab"))  # their names are random
    second.write_bytes(b"y" + second.read_bytes()[1:])
    tamper(cache, "UPDATE entry SET v = substr(v, 1, 3) || x'ff' || substr(v, 5) WHERE k = ?", b"\xa5three")
    Path(cache.directory, "ab").mkdir(exist_ok=True)
    Path(cache.directory, "ab", f"{'0' * 30}.val").write_bytes(b"nobody's")
    Path(cache.directory, "stray.txt").write_text("stray")
    Path(cache.directory, "empty").mkdir()
    assert cache.get_many(["one", "two", "three", "four"]) == {"four": "small"}
    assert (cache.metrics().damaged, cache.metrics().missing_files) == (2, 1)
    found = cache.check()
    assert len(found) == 5 + empty
    assert any("entry 'three' (at " in str(problem.message) for problem in found), "damaged entries are named"
    assert sum(problem.category is UnknownFileWarning for problem in found) == 2
    assert sum(problem.category is EmptyDirWarning for problem in found) == empty, "one where a file was lost"
    assert len(cache.check(fix=True)) >= 4 + empty
    assert problems(cache) == []
    assert list(cache) == ["four"]
    assert value_files(cache) == []


def test_a_name_in_the_schema_that_is_bytes_is_a_difference() -> None:
    """As a flipped bit in the type of a column makes it."""
    rows: list[Any] = [("table", "entry", ENTRY), ("index", b"entry_expire", None)]
    assert "unexpected: [\"b'entry_expire'\"]" in str(difference_of(rows))


@one
def test_a_trigger_that_is_altered_while_the_cache_is_in_use(open_cache: Opener) -> None:
    """As by a flipped bit: all that SQLite checks is right."""
    cache, other = open_cache(), open_cache()
    cache.set("key", 1, tags=["t"])
    (store,) = cache._shards.stores
    altered = ON_TAGGED_UPDATE.replace("' '", "'0'")
    with store.locked(None):
        store.connection.open().execute("DROP TRIGGER entry_retagged")
        store.connection.open().execute(altered)
    (found,) = problems(cache)
    assert "does not have the schema of diskcache_like (unexpected: ['entry_retagged'], missing: 1)" in found
    with pytest.warns(CorruptDatabaseWarning, match="goes on empty"):
        cache.check(fix=True)
    for each in (cache, other):
        assert problems(each) == []
        each["key"] = 1
        each.set("key", 2, tags=["a", "p"])
        assert list(each.keys(tags=["a"])) == list(each.keys(tags=["p"])) == ["key"]


@one
def test_after_a_check_that_mends_nobody_misses_what_damage_had_hidden(open_cache: Opener) -> None:
    cache, other = open_cache(write_buffer=0), open_cache()
    cache["key"] = 1
    (store,) = cache._shards.stores
    with store.locked(None):  # as pages out of order hide a row, and SQLite may put them in order with any write
        store.connection.open().execute("CREATE TEMP TABLE hidden AS SELECT * FROM entry")
        store.connection.open().execute("DELETE FROM entry")
    assert other.get("key") is None
    with store.locked(None):
        store.connection.open().execute("INSERT INTO entry SELECT * FROM hidden")
    assert cache.check(fix=True) == []
    assert other.get("key") == cache.get("key") == 1


@one
def test_a_file_that_an_entry_has_is_taken_out_of_the_trash(open_cache: Opener) -> None:
    cache = open_cache()
    cache["big"] = BIG
    tamper(cache, "INSERT INTO trash (file, size) SELECT file, size FROM entry")
    with open_cache() as cache:
        assert any("in the trash" in message for message in problems(cache))
        problems(cache, fix=True)
        assert problems(cache) == []
        assert cache["big"] == BIG


@pytest.mark.parametrize("mends", [False, True], ids=["used", "used and checked"])
@one
def test_a_file_that_an_entry_has_is_never_unlinked(
    open_cache: Opener, clock: Clock, monkeypatch: pytest.MonkeyPatch, mends: bool
) -> None:
    monkeypatch.setattr(
        Trash.unlink_pending, "__defaults__", (0,)
    )  # what a write chose to unlink stays chosen for a while
    with open_cache(hot_size_limit=0) as cache, open_cache(hot_size_limit=0) as other:
        cache["big"] = BIG
        tamper(cache, "INSERT INTO trash (file, size, at) SELECT file, size, 0 FROM entry")
        for handle in (cache, other):
            write_with_upkeep(handle)
        if mends:
            cache.check(fix=True)
            assert problems(cache) == []
        monkeypatch.undo()
        for handle in (cache, other):
            write_with_upkeep(handle)
        cache.reset("size_limit", 1)
        cache.reset("size_limit", 1 << 30)
        assert other["big"] == cache["big"] == BIG
    with open_cache() as cache:
        assert cache["big"] == BIG
        problems(cache, fix=True)


@one
def test_what_was_replaced_before_the_clock_was_set_back_is_unlinked_in_time(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache()
    clock.advance(1e6)
    cache["big"] = BIG
    cache["big"] = 1
    write_with_upkeep(cache)
    clock.advance(-1e6)
    write_with_upkeep(cache)
    assert len(value_files(cache)) == 1
    clock.advance(2 * GRACE)
    write_with_upkeep(cache)
    assert value_files(cache) == []


def write_with_upkeep(cache: Cache) -> None:
    """Write, housekeeping being due, which does not flush what waits."""
    cache.flush()
    for store in cache._shards.stores:
        store.shard.header[Header.VOLUME_DUE] = 0
    cache["small"] = 1


@only(lambda kind: kind.name in ("plain", "fanout-3"))
def test_check_runs_beside_writers_and_harms_none(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            cache[f"key {number % 7}"] = "small" * (number % 11)
            cache.pop(f"key {number % 5}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            assert problems(other) == []
    finally:
        stop.set()
        thread.join()


@one
def test_no_write_is_acknowledged_whose_file_a_check_took_for_nobodys(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = open_cache(), open_cache()
    cache["key"] = "before"
    store = cache._shards.stores[0]
    put = store.put

    def interrupted(*arguments: Any) -> int:
        assert "unknown file" in problems(other, fix=True)[0]
        return put(*arguments)

    monkeypatch.setattr(store, "put", interrupted)
    with pytest.raises(StorageError, match="check removed"):
        cache["key"] = BIG
    assert cache["key"] == "before"


def test_the_tag_index_of_diskcache_changes_no_answer(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache.set_many({"a": 1, "b": 2}, tag="before")
    for _ in range(2):
        cache.create_tag_index()
    assert cache.tag_index == 1
    cache.set_many({"c": 3, "d": 4}, tag="after")
    assert other.evict("before") == 2
    for _ in range(2):
        cache.drop_tag_index()
    assert cache.tag_index == 0
    assert other.evict("after") == 2
    assert open_cache().tag_index == 0


@exact
def test_the_hot_layer_keeps_to_its_bound(open_cache: Opener) -> None:
    limit = 200_000
    cache = open_cache(hot_size_limit=limit)
    hot = cache._hot
    for number in range(800):
        cache[number] = "x" * (number % 2_000)
        assert hot.size <= limit
    for number in range(800):
        assert cache[number] == "x" * (number % 2_000)
        assert hot.size <= limit
    for number in range(800, 1_600):
        assert cache.get(number) is None, "and what is known to be missing counts too"
        assert hot.size <= limit
    assert len(hot.entries) < limit // 350
    assert 0 < sum(entry[COST] for entry in hot.entries.values()) == hot.size
    cache.clear()
    assert hot.size == len(hot.entries) == 0


@one
def test_what_is_read_often_stays_hot(open_cache: Opener) -> None:
    cache = open_cache(hot_size_limit=100_000)
    cache["often"] = 1
    for number in range(5_000):
        cache[number] = number
        if number % 20 == 0:
            assert cache["often"] == 1
        assert "often" in cache._hot.entries


@one
def test_a_large_value_does_not_flood_the_hot_layer(open_cache: Opener) -> None:
    cache = open_cache(hot_size_limit=1_000_000)
    cache.set_many(dict.fromkeys(range(100), "x" * 1000))
    assert len(cache.get_many(range(100))) == 100
    cache["large"] = "x" * 30_000
    assert cache["large"] == cache["large"] == "x" * 30_000
    assert "large" not in cache._hot.entries
    assert len(cache._hot.entries) == 100


@one
def test_mending_removes_nothing_behind_a_link_that_was_put_there_meanwhile(
    open_cache: Opener, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    outside = tmp_path_factory.mktemp("outside")
    Path(outside, "inner").mkdir()
    Path(outside, "file").write_text("somebody else's")
    found = Path(cache.directory, "found")
    Path(found, "inner").mkdir(parents=True)
    Path(found, "file").write_text("unknown")

    def swap() -> bool:
        if not found.is_symlink():
            found.rename(found.with_name("moved"))
            found.symlink_to(outside)
        return False

    is_known, listdir = checking._is_known, os.listdir
    monkeypatch.setattr(checking, "_is_known", lambda store, name: is_known(store, name) or swap())
    cache.check(fix=True)
    assert Path(outside, "file").exists()
    found.unlink()
    found.with_name("moved").rename(found)
    Path(found, "inner").mkdir(exist_ok=True)
    monkeypatch.setattr(checking, "_is_known", is_known)

    def listed(path: str) -> list[str]:
        names = listdir(path)
        if str(path) == str(found / "inner"):
            swap()
        return names

    monkeypatch.setattr(os, "listdir", listed)
    cache.check(fix=True)
    assert found.is_symlink()
    assert Path(outside, "inner").is_dir()
    monkeypatch.undo()
    cache.check(fix=True)


@one
def test_directories_deeper_than_a_path_can_say_are_looked_at_as_far_as_it_can(open_cache: Opener) -> None:
    cache = open_cache()
    part, handle = "x" * 250, os.open(cache.directory, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(part, dir_fd=handle)
        inner = os.open(part, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        os.close(os.open("f" * 250, os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        handle = inner
    os.close(handle)
    while found := problems(cache, fix=True):  # each round reaches what the one before could not
        assert any("unknown file" in message for message in found)
        shutil.rmtree(Path(cache.directory, part))
