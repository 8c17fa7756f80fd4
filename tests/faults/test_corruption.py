"""Damage: a cache that meets it says so once, goes on without what is lost, and never gives a wrong value."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.coherence.generations import Header
from diskcache_like.entries.handle import Opening
from diskcache_like.errors import CorruptDatabase, CorruptDatabaseWarning, ForeignDatabase
from diskcache_like.storage import check
from diskcache_like.storage.rows import Rows

from ..support.cache_kinds import NEEDS_CIPHER, SECRET
from ..support.tampering import (
    DAMAGE,
    ENTRIES,
    INDEX_LEAF,
    STEPS,
    TABLE_LEAF,
    Step,
    damage,
    database,
    fill,
    plant,
    rewrite_schema,
    snapshot,
    value_files,
)
from ..support.workers import Crew, Link

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same, to be copied."""
    path = tmp_path_factory.mktemp("original") / "cache"
    with closing(Cache(path, **QUICK)) as cache:
        fill(cache)
        cache.create_tag_index()
    return path


@contextmanager
def said_once(directory: Path, epoch: int = 1) -> Iterator[None]:
    """Assert that the body warns once, naming the damaged database and the one that the cache goes on in."""
    old = directory / (f"cache.{epoch - 1}.db" if epoch > 1 else "cache.db")
    new = directory / f"cache.{epoch}.db"
    with pytest.warns(CorruptDatabaseWarning) as caught:
        yield
    (warning,) = caught
    assert str(old) in str(warning.message)
    assert str(new) in str(warning.message)


def state(path: Path) -> tuple[object, ...]:
    """Return what must stay of a file that is quarantined: itself, its content, and its time of change."""
    return path.stat().st_ino, snapshot(path)[str(path)]


# -- at opening -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_database_is_quarantined_at_opening(directory: Path, how: str) -> None:
    for epoch in (1, 2, 3):
        damaged = directory / ("cache.db" if epoch == 1 else f"cache.{epoch - 1}.db")
        damage(damaged, how)
        before = state(damaged)
        with said_once(directory, epoch):
            cache = Cache(directory)
            opened = cache.get("a")
        with closing(cache):
            assert opened is None
            assert len(cache) == 0
            cache["a"] = epoch
            with closing(Cache(directory)) as other:
                assert other["a"] == epoch
        assert state(damaged) == before
    with closing(Cache(directory)) as cache:
        assert dict(cache.get_many(["a", "b"])) == {"a": 3}
        cache.check(fix=True)  # the value files of what was lost
        assert cache.check() == []
    assert value_files(directory) == []


def test_only_the_damaged_shard_is_emptied(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(FanoutCache(directory, shards=4, **QUICK)) as cache:
        for number in range(200):
            cache[number] = number
    damage(directory / "002" / "cache.db", "header")
    with said_once(directory / "002"):
        cache = FanoutCache(directory)
    with closing(cache):
        left = [number for number in range(200) if cache.get(number) == number]
        assert 100 < len(left) < 200
        for number in range(200):
            cache[number] = -number
        assert [cache[number] for number in range(200)] == [-number for number in range(200)]
        assert cache.check() == []


@pytest.mark.parametrize("options", [{}, pytest.param({"secret": SECRET, "encrypt": True}, marks=NEEDS_CIPHER)])
@pytest.mark.parametrize("lost", [[], ["000"]], ids=["all", "not the first"])
def test_shards_are_found_of_which_what_was_quarantined_has_been_removed(
    tmp_path: Path, lost: list[str], options: dict[str, Any]
) -> None:
    directory = tmp_path / "cache"
    FanoutCache(directory, shards=2, **options, **QUICK).close()
    for name in ("000", "001"):
        damage(directory / name / "cache.db", "header")
    with pytest.warns(CorruptDatabaseWarning):
        cache = FanoutCache(directory, **options)
    with closing(cache):
        cache.set_many(dict.fromkeys(range(100), 1))
    for name in ("000", "001"):
        (directory / name / "cache.db").unlink()
    for name in lost:  # as after a power loss
        shutil.rmtree(directory / name)
    with closing(FanoutCache(directory, shards=3, **options)) as cache:
        assert not (directory / "002").exists()
        assert len(cache.get_many(list(range(100)))) == len(cache) >= (20 if lost else 100)
        cache[1] = 2
        assert cache[1] == 2
        assert cache.check() == []


class Strict(Cache):
    """A cache whose entries are not to be replaced by nothing, as Deque and Index are."""

    _OPENING = Opening(recover=False)


def test_a_database_that_was_removed_is_not_made_anew_under_its_name(directory: Path) -> None:
    with closing(Cache(directory)) as holder:
        assert holder["b"] == {"some": ["nested", "data"]}
        for path in directory.glob("cache.db*"):
            path.unlink()
        with said_once(directory), closing(Cache(directory)) as cache:
            cache["a"] = "new"
        assert holder["a"] == "new"  # who had the removed one open has followed
        assert "b" not in holder


# -- in use -----------------------------------------------------------------------------------------------------------


def use_damaged(original: Path, directory: Path, step: Step, how: str) -> None:
    """Damage a database that a handle has open, run an operation, and see that all is well afterwards."""
    shutil.copytree(original, directory)
    with closing(Cache(directory, hot_size_limit=0)) as cache:
        assert cache["a"] == "text"
        damage(directory / "cache.db", how)
        before = state(directory / "cache.db")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                step.run(cache)
            except KeyError:  # "cache is empty"
                assert step.name == "peekitem"
            kept = cache.get_many([number + 10 for number in range(100)])
            cache["after"] = 1
            assert cache["after"] == 1
        assert kept.items() <= {number + 10: f"{number} " * 20 for number in range(100)}.items()
        assert {warning.category for warning in caught} <= {CorruptDatabaseWarning}
        assert len(caught) == 1
        assert state(directory / "cache.db") == before
        assert cache.check(fix=True) is not None
        assert cache.check() == []
    with closing(Cache(directory)) as cache:
        assert cache["after"] == 1


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_operation_goes_on_in_an_empty_cache(original: Path, tmp_path: Path, step: Step) -> None:
    kinds = list(DAMAGE)
    use_damaged(original, tmp_path / "cache", step, kinds[STEPS.index(step) % len(kinds)])


@pytest.mark.parametrize("how", DAMAGE)
def test_every_damage_is_noticed_by_readers_and_writers(original: Path, tmp_path: Path, how: str) -> None:
    for name in ("get", "set", "pull", "iteration", "check"):
        (step,) = (step for step in STEPS if step.name == name)
        use_damaged(original, tmp_path / name, step, how)


def write_and_read(cache: Cache) -> None:
    with cache.transact():
        cache["a"] = "new"
        list(cache)


@pytest.mark.parametrize("due", [False, True], ids=["within", "at its beginning"])
def test_damage_that_a_transaction_meets_ends_it_and_the_next_one_works(directory: Path, due: bool) -> None:
    with closing(Cache(directory)) as cache:
        if due:
            with closing(Cache(directory)) as other:
                other.set("due", 1, expire=0)  # so that it begins with a look at what has expired
        damage(directory / "cache.db", "zeroed pages")
        with said_once(directory), pytest.raises(CorruptDatabase, match=r"cache\.db"):
            write_and_read(cache)
        with cache.transact():
            assert "a" not in cache
            cache["a"] = "newer"
        assert cache["a"] == "newer"


def test_damage_that_is_met_under_the_write_lock_is_told_first_and_quarantined_later(directory: Path) -> None:
    with closing(Cache(directory)) as cache:
        store = cache._shards.stores[0]
        damage(directory / "cache.db", "zeroed pages")
        with pytest.raises(CorruptDatabase, match=r"cache\.db"), store.locked(None):
            store.volume()
        with said_once(directory):
            cache["a"] = "new"
            cache.flush()
        assert cache["a"] == "new"


def test_threads_that_meet_the_same_damage_set_it_aside_once(directory: Path) -> None:
    with closing(Cache(directory, hot_size_limit=0)) as cache:
        cache["warm"] = 1
        cache.flush()  # what waits outlives the database
        start, errors = threading.Barrier(8), []

        def work(number: int) -> None:
            start.wait()
            try:
                for round_ in range(20):
                    cache.get(("other", round_))
                    cache[number, round_] = round_
                    assert cache[number, round_] == round_
            except BaseException as error:
                errors.append(error)

        damage(directory / "cache.db", "everything")
        with said_once(directory):
            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []
        assert len(cache) == 160
        assert cache.check(fix=True) is not None
    assert sorted(path.name for path in directory.glob("*.db")) == ["cache.1.db", "cache.db"]


def other_process(link: Link, directory: Path) -> list[object]:
    """Hold a cache, answer what is asked of it, and return the warnings that were given."""
    with warnings.catch_warnings(record=True) as caught, closing(Cache(directory)) as cache:
        warnings.simplefilter("always")
        while (order := link.hear()) is not None:
            name, *arguments = order
            link.tell(getattr(cache, name)(*arguments))
    return [warning.category.__name__ for warning in caught]


@pytest.mark.parametrize("first", ["here", "there"])
def test_another_process_follows(directory: Path, first: str) -> None:
    with Crew() as crew, closing(Cache(directory)) as cache:
        worker = crew.start(other_process, directory)

        def there(*order: object) -> Any:
            worker.tell(order)
            return worker.hear()

        assert there("get", "a") == cache["a"] == "text"  # hot in both
        damage(directory / "cache.db", "everything")
        if first == "here":
            with said_once(directory):
                cache["met"] = 1
                cache.flush()
        else:
            there("set", "met", 1)
            there("flush")
        assert there("get", "met") == cache["met"] == 1
        assert there("get", "a") is None
        assert "a" not in cache
        there("set", "a", "theirs")
        assert cache["a"] == "theirs"
        cache["a"] = "ours"
        assert there("get", "a") == "ours"
        assert there("incr", "n") == 1
        assert cache.incr("n") == 2
        worker.tell(None)
        assert worker.result() == ([] if first == "here" else ["CorruptDatabaseWarning"])


# -- the database's own structure -------------------------------------------------------------------------------------


def misplace_a_page(directory: Path) -> None:
    """Change what the database notes about the place of a page, which no reading or writing of entries looks at."""
    path = directory / "cache.db"
    data = bytearray(path.read_bytes())
    data[4096 + 4] += 1  # the second page maps those behind it: type and parent of each
    path.write_bytes(data)


def test_check_sets_a_database_aside_whose_structure_is_damaged(directory: Path) -> None:
    misplace_a_page(directory)
    with closing(Cache(directory)) as cache:
        assert cache["a"] == "text"
        assert any("ptr map" in str(problem.message) for problem in cache.check())
        with said_once(directory):
            assert any("ptr map" in str(problem.message) for problem in cache.check(fix=True))
        assert cache.check() == []
        assert len(cache) == 0
        cache["a"] = "new"
        with closing(Cache(directory)) as other:
            assert other["a"] == "new"
    assert value_files(directory) == []


def test_a_schema_that_python_cannot_even_quote_is_damage_in_use_too(directory: Path) -> None:
    path = directory / "cache.db"
    changed = path.read_bytes().replace(b"id = 1;\nEND", b"\xe9d = 1;\nEND")  # in a trigger, and old copies of it
    with closing(Cache(directory)) as cache:
        with path.open("r+b") as file:
            file.write(changed)
        with said_once(directory):
            cache["new"] = 1
            cache.flush()  # the first write to the database here, which opens a connection for it
        assert cache["new"] == 1
        assert "a" not in cache


def put_out_of_order(directory: Path, tree: str) -> None:
    """Reverse the cells of a table that has one page."""
    path = directory / "cache.db"
    with database(directory) as connection:
        ((number,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,)).fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    data = bytearray(path.read_bytes())
    page = (number - 1) * size
    kind, _, cells = struct.unpack_from(">BHH", data, page)
    assert kind in (INDEX_LEAF, TABLE_LEAF)
    assert cells >= 3
    pointers = struct.Struct(f">{cells}H")
    pointers.pack_into(data, page + 8, *reversed(pointers.unpack_from(data, page + 8)))
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("tree", "step"),
    [
        ("tagged", lambda cache: list(cache.keys(tags=["tag"]))),
        ("entry_place", lambda cache: list(cache.keys(prefix="k"))),
        ("entry_place", lambda cache: cache.check()),
    ],
    ids=["keys by tag", "keys by prefix", "check"],
)
def test_rows_out_of_order_are_damage(tmp_path: Path, tree: str, step: Callable[[Cache], object]) -> None:
    directory = tmp_path / "cache"
    for make in (Cache, Strict):
        with closing(make(directory, **QUICK)) as cache:
            for number in range(3):
                cache.set(f"k{number}", number, tag="tag")
        put_out_of_order(directory, tree)
        with closing(make(directory)) as cache:
            if make is Strict:
                with pytest.raises(CorruptDatabase, match="not in their order"):
                    step(cache)
                continue
            with said_once(directory):
                step(cache)
            cache["k0"] = "new"
            assert list(cache) == ["k0"]
            assert cache.check() == []
        shutil.rmtree(directory)


@pytest.mark.parametrize("settings", [{"write_buffer": 0}, {}], ids=["direct", "buffered"])
def test_a_write_whose_place_is_free_and_taken_at_once_ends(
    directory: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    with closing(Cache(directory, **settings)) as cache:
        # As where a flipped bit puts rows out of order, so that a search for one place finds what a search for four
        # does not.
        taken = cache._rows.locate("a")[1]
        with monkeypatch.context() as patch:
            patch.setattr(Rows, "_place", lambda rows, h, stored: taken)
            cache._shards.stores[0].shard.header[Header.DISPLACED] = 1
            with pytest.raises(CorruptDatabase, match=r"cache\.db"):
                cache["new"] = 1
                cache.flush()
        cache["new"] = 1
        assert (cache["new"], cache["a"]) == (1, "text")


def test_a_removal_that_finds_rows_which_are_not_there_ends(directory: Path) -> None:
    with database(directory) as connection:
        (index,) = connection.execute("SELECT * FROM sqlite_master WHERE name = 'entry_expire'")
    rewrite_schema(directory, "DELETE FROM sqlite_master WHERE name = 'entry_expire'")
    plant(directory, "DELETE FROM entry WHERE expire IS NOT NULL")
    with database(directory) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    with closing(Cache(directory)) as cache:
        assert cache["a"] == "text"
        with said_once(directory):
            assert cache.expire(2e9) == 0
        cache["a"] = "new"
        assert cache["a"] == "new"


def test_an_entry_that_iteration_would_leave_out_is_reported_and_mended(directory: Path) -> None:
    plant(directory, "UPDATE entry SET id = ? WHERE k = ?", 1 << 62, b"\xa1a")
    with closing(Cache(directory)) as cache:
        (problem,) = cache.check(fix=True)
        assert "order of insertion" in str(problem.message)
        assert cache.check() == []
        cache["a"] = "new"
        assert "a" in list(cache)


def test_an_entry_that_a_column_calls_expired_is_gone_after_its_deletion(directory: Path) -> None:
    plant(directory, "UPDATE entry SET expire = 1.5 WHERE k = ?", b"\xa1a")
    with closing(Cache(directory)) as cache:
        assert cache["a"] == "text"  # the record counts
        cache.delete("a")
        assert "a" not in cache
        assert len(cache) == ENTRIES - 1


def test_check_ends_where_only_this_handle_finds_the_database_damaged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not quarantined if it can be read anew, such as one that another took the place of under the handle."""
    monkeypatch.setattr(check, "_flaws", lambda store, found: ["a flaw"])
    with Cache(directory) as cache:
        with pytest.raises(CorruptDatabase, match="a flaw"):
            cache.check(fix=True)
        monkeypatch.undo()
        assert cache.check(fix=True) == []
    assert not (directory / "cache.1.db").exists()


def test_check_raises_for_damaged_structure_where_an_empty_cache_is_not_wanted(directory: Path) -> None:
    misplace_a_page(directory)
    with closing(Strict(directory)) as cache:
        with pytest.raises(CorruptDatabase, match=rf"{directory}/cache\.db"):
            cache.check(fix=True)
        assert cache["a"] == "text"
    assert not (directory / "cache.1.db").exists()


# -- keys -------------------------------------------------------------------------------------------------------------


WRITES: dict[str, Callable[[Cache], object]] = {
    "set": lambda cache: cache.set("a", "new"),
    "set with metadata": lambda cache: cache.set("a", "new", tag="t"),
    "set_many": lambda cache: cache.set_many({"a": "new", "b": "new"}),
    "add": lambda cache: cache.delete("a") or cache.add("a", "new"),
    "delete": lambda cache: cache.delete("a"),
    "pop": lambda cache: cache.pop("a"),
    "delete_many": lambda cache: cache.delete_many(["a"]),
    "incr": lambda cache: cache.incr("a"),
    "touch": lambda cache: cache.touch("a"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_key_that_was_changed_does_not_outlive_a_write(directory: Path, write: str) -> None:
    plant(directory, "UPDATE entry SET k = ? WHERE k = ?", b"\xa1z", b"\xa1a")
    with closing(Cache(directory)) as cache, closing(Cache(directory, hot_size_limit=0)) as other:
        assert "z" not in cache
        assert cache.get("a") in ("text", None)  # the record is whole, whatever the key beside it
        assert {"a", "z"}.isdisjoint(cache)
        assert {"a", "z"}.isdisjoint(reversed(cache))
        (problem,) = cache.check()
        assert "place" in str(problem.message)
        WRITES[write](cache)
        for handle in (cache, other):
            assert handle.get("a") == {"incr": 1}.get(write, "new" if "set" in write or write == "add" else None)
        assert cache.check() == []


def test_an_item_of_a_queue_whose_number_was_changed_is_passed_over(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache", **QUICK)) as cache:
        keys = [cache.push(text) for text in ("first", "second", "third")]
    plant(tmp_path / "cache", "UPDATE entry SET num = num - 10 WHERE num = ?", keys[1].number)
    with closing(Cache(tmp_path / "cache")) as cache:
        assert cache.peek() == (keys[0], "first")
        assert len(cache.check()) == 1
        assert [cache.pull(), cache.pull(), cache.pull()] == [(keys[0], "first"), (keys[2], "third"), (None, None)]


@pytest.mark.parametrize("make", [Cache, partial(FanoutCache, shards=2)], ids=["Cache", "FanoutCache"])
def test_a_flipped_bit_in_the_number_that_places_keys_costs_its_own_shard(
    tmp_path: Path, make: Callable[..., Cache]
) -> None:
    with make(tmp_path) as cache:
        cache.set_many({f"a key that is as long as it has to be {number}": number for number in range(40)})
        (path, *_), others = [store.path for store in cache._shards.stores], cache._shards.stores[1:]
        left = sum(store.count() for store in others)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE setting SET value = value + 1 WHERE name = 'modulus'")
        connection.commit()
    with pytest.warns(CorruptDatabaseWarning, match="modulus"):
        cache = make(tmp_path)
    with cache:
        assert len(list(cache)) == len(cache) == left
        assert len(cache.get_many(list(cache))) == left
        assert cache.check() == []


@pytest.mark.parametrize("shards", [2, 3, 8])
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_a_flipped_bit_in_the_number_of_shards_costs_nothing(tmp_path: Path, shards: int, number: int) -> None:
    made = {key: key for key in range(40)}
    with FanoutCache(tmp_path / "cache", shards=shards, **QUICK) as cache:
        cache.set_many(made)
    directory = tmp_path / "cache"
    for flipped in (shards ^ 1 << bit for bit in (0, 1, 6)):
        if flipped == 0:
            continue  # out of range
        plant(directory / f"{number:03d}", "UPDATE setting SET value = ? WHERE name = 'shards'", flipped)
        with FanoutCache(directory) as cache:
            assert cache.get_many(made) == made
            assert len(cache) == len(made)
            assert cache.check() == []
            assert [store.shard.identity["shards"] for store in cache._shards.stores] == [shards] * shards
        assert sorted(path.name for path in directory.glob("[0-9]*")) == [f"{each:03d}" for each in range(shards)]
        with FanoutCache(directory, shards=5) as cache:
            assert cache.get_many(made) == made


def test_a_missing_shard_is_made_again_whatever_one_says_of_their_number(tmp_path: Path) -> None:
    directory, made = tmp_path / "cache", {key: key for key in range(40)}
    with FanoutCache(directory, shards=4, **QUICK) as cache:
        cache.set_many(made)
        lost = set(cache._shards.stores[3].select("SELECT k FROM entry"))
    shutil.rmtree(directory / "003")
    plant(directory / "000", "UPDATE setting SET value = 6 WHERE name = 'shards'")
    with FanoutCache(directory) as cache:
        assert len(cache.get_many(made)) == len(cache) == len(made) - len(lost)
        assert len(cache._shards.stores) == 4


def test_a_shard_that_cannot_be_read_and_is_alone_is_none_of_one(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with FanoutCache(directory, shards=2, **QUICK) as cache:
        cache["a"] = 1
    shutil.rmtree(directory / "001")
    plant(directory / "000", "UPDATE setting SET value = -1 WHERE name = 'shards'")
    with contextlib.suppress(ForeignDatabase), FanoutCache(directory) as cache:
        assert len(cache._shards.stores) == 2
    assert not (directory / "cache.db").exists()
