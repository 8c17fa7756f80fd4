"""Databases that an attacker wrote: whatever lies in them, opening and using them runs nothing of it."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, Disk, FanoutCache
from diskcache_like.errors import (
    CacheError,
    CorruptDatabaseWarning,
    ForeignDatabase,
    NewerFormat,
    OlderFormat,
    SettingError,
    SignatureWarning,
)
from diskcache_like.storage.upkeep import bulk_removal

from ..support.hostile_content import BAD_SETTINGS, TAMPERED
from ..support.tampering import (
    ENTRIES,
    STEPS,
    TREES,
    bomb,
    database,
    fill,
    make_endless,
    plant,
    rewrite_schema,
    snapshot,
    stored_of,
)
from ..support.workers import Crew, Link

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}


@pytest.fixture(autouse=True)
def own_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DISKCACHE_LIKE_PICKLE", raising=False)
    monkeypatch.delenv("DISKCACHE_LIKE_SECRET", raising=False)


def database_of(directory: Path) -> tuple[object, ...]:
    """Return kind, mode, owner, time of change and content of a database."""
    return snapshot(directory)[str(directory / "cache.db")]


# -- the schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "planted", [(), ("entry", None, "1 1"), ("entry", "entry_place", "0 0 0 sz=0 unordered"), (b"\xff", 1, 2.5)]
)
def test_what_analyze_leaves_is_harmless_whatever_it_says(directory: Path, planted: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(directory / "cache.db", isolation_level=None)) as connection:
        connection.execute("ANALYZE")
        if planted:
            connection.execute("DELETE FROM sqlite_stat1")
            connection.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", [planted] * 100)
    with Cache(directory, eviction_policy="least-recently-used") as cache:
        before = len(cache)
        assert before == len(list(cache)) > 0
        cache["new"] = 1
        cache.reset("size_limit", cache.volume() // 2)
        cache["newer"] = bytes(10_000)
        assert cache.cull() >= 0
        assert not cache.check()


@pytest.mark.parametrize("how", TAMPERED)
def test_a_schema_that_was_tampered_with(directory: Path, how: str) -> None:
    plant(directory, TAMPERED[how])
    before = database_of(directory)
    with pytest.raises(ForeignDatabase, match=rf"{directory}/cache\.db.*schema.*altered by someone else"):
        Cache(directory)
    assert database_of(directory) == before  # nothing was run or written
    with database(directory) as connection:
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (ENTRIES,)


def test_the_error_names_what_was_planted(directory: Path) -> None:
    plant(directory, TAMPERED["trigger"])
    with pytest.raises(ForeignDatabase, match=r"unexpected: \['evil'\]"):
        Cache(directory)


def test_a_schema_rewritten_under_a_known_name(directory: Path) -> None:
    rewrite_schema(
        directory, "UPDATE sqlite_master SET sql = replace(sql, 'new.size', '0') WHERE name = 'entry_insert'"
    )
    with pytest.raises(ForeignDatabase, match=r"unexpected: \['entry_insert'\]"):
        Cache(directory)


@pytest.mark.parametrize("bit", [0, 5, 7])  # another letter, another case, and no text at all
def test_a_schema_with_a_flipped_bit_is_damage(directory: Path, tmp_path: Path, bit: int) -> None:
    with database(directory) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        statements = dict(connection.execute("SELECT name, sql FROM sqlite_master"))
    content = (directory / "cache.db").read_bytes()
    for name, statement in statements.items():
        flipped = bytearray(statement, "utf-8")
        flipped[len(flipped) // 2] ^= 1 << bit
        copy = tmp_path / name
        copy.mkdir()
        # Everywhere: a page may hold an older copy of the text as well.
        (copy / "cache.db").write_bytes(content.replace(statement.encode(), flipped))
        (copy / "cache.db").chmod(0o600)
        with pytest.warns(CorruptDatabaseWarning):
            cache = Cache(copy)
        with closing(cache):
            cache["new"] = 1
            assert list(cache) == ["new"]


@pytest.mark.parametrize("planted", ["trigger", "index"])
def test_nothing_hides_behind_rows_of_a_schema_that_mean_nothing(directory: Path, planted: str) -> None:
    with database(directory) as connection:
        connection.execute("CREATE TABLE evil (x)")
        connection.execute("CREATE INDEX evil_x ON evil (x)")
        connection.execute("INSERT INTO evil VALUES (1)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany(
            "INSERT INTO sqlite_master SELECT ?, 'sqlite_autoindex_setting_1', name, rootpage, NULL FROM sqlite_master"
            " WHERE name = 'setting'",
            [(f"index {number}",) for number in range(1000)],
        )
        if planted == "trigger":
            connection.execute(
                "INSERT INTO sqlite_master VALUES ('trigger', 'evil', 'entry', 0, ?)", (TAMPERED["trigger"],)
            )
        else:  # its entries are not what SQLite's check would find
            connection.execute(
                "INSERT INTO sqlite_master SELECT type, name, tbl_name, rootpage, 'CREATE INDEX evil_x ON evil (-x)'"
                " FROM sqlite_master WHERE name = 'evil_x'"
            )
            connection.execute("DELETE FROM sqlite_master WHERE sql = 'CREATE INDEX evil_x ON evil (x)'")
    with pytest.raises(ForeignDatabase, match="altered by someone else"):
        Cache(directory)


@pytest.mark.parametrize(
    ("made", "altered"),
    [
        ("CREATE TABLE evil (x CHECK (x > 1))", ""),
        ("CREATE TABLE evil (x, y AS (nullif(x, 0)))", "CREATE TABLE evil (x, y AS (nullif(x, 0)) NOT NULL)"),
        ("CREATE TABLE evil (x); CREATE INDEX evil_x ON evil (abs(x))", "CREATE INDEX evil_x ON evil (abs(x + 1))"),
    ],
    ids=["check", "generated column", "index"],
)
def test_no_planted_expression_is_evaluated_to_tell_damage_from_an_altered_schema(
    directory: Path, made: str, altered: str
) -> None:
    """SQLite's check would find each of these false, and a function call in one may take forever."""
    with database(directory) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(f"{made}; INSERT INTO evil (x) VALUES (0)")
    if altered:
        name = altered.split()[2]
        rewrite_schema(directory, f"UPDATE sqlite_master SET sql = '{altered}' WHERE name = '{name}'")
    with pytest.raises(ForeignDatabase, match="altered by someone else"):
        Cache(directory)


@pytest.mark.parametrize("kind", ["trigger", "view", "table", "index"])
def test_a_schema_that_sqlite_cannot_read_is_damage(directory: Path, kind: str) -> None:
    rewrite_schema(directory, f"INSERT INTO sqlite_master VALUES ('{kind}', 'evil', 'entry', 0, 'CREATE {kind} evil')")
    before = database_of(directory)
    with pytest.warns(CorruptDatabaseWarning, match="malformed"):
        cache = Cache(directory)
    with closing(cache):
        cache["new"] = 1
        assert list(cache) == ["new"]
    assert database_of(directory) == before


def test_a_planted_shard(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=3)) as cache:
        cache["a"] = 1
    plant(tmp_path / "cache" / "001", TAMPERED["trigger"])
    with pytest.raises(ForeignDatabase, match=r"001/cache\.db"):
        FanoutCache(tmp_path / "cache")


@pytest.mark.parametrize("version", [5, 99, 2**31 - 1])
def test_a_database_of_a_newer_version(directory: Path, version: int) -> None:
    plant(directory, f"PRAGMA user_version = {version}")
    before = database_of(directory)
    with pytest.raises(NewerFormat, match=rf"cache\.db.*format {version}.*reads only 4: upgrade"):
        Cache(directory)
    assert database_of(directory) == before
    plant(directory, "PRAGMA user_version = 4")
    with closing(Cache(directory)) as cache:
        assert cache["a"] == "text"
        assert cache.check() == []


@pytest.mark.parametrize(
    ("planted", "error", "words"),
    [
        ("PRAGMA user_version = 1", OlderFormat, "format 1.*reads only 4: delete the directory, or export"),
        (
            "INSERT INTO setting VALUES ('dictionary.1', x'00')",
            OlderFormat,
            "compression dictionaries.*: delete the directory, or export",
        ),
        *(
            (f"PRAGMA {name}", ForeignDatabase, "")
            for name in ("user_version = 0", "user_version = -1", "application_id = 0", "application_id = 7")
        ),
    ],
)
def test_a_database_of_an_older_version_or_with_a_false_name(
    directory: Path, planted: str, error: type[CacheError], words: str
) -> None:
    plant(directory, planted)
    before = database_of(directory)
    with pytest.raises(error, match=rf"cache\.db.*{words}"):
        Cache(directory)
    assert database_of(directory) == before


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_of_a_wrong_type_or_range(directory: Path, tmp_path: Path) -> None:
    for number, (name, value) in enumerate(BAD_SETTINGS):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(directory, copy)
        plant(copy, "INSERT OR REPLACE INTO setting VALUES (?, ?)", name, value)
        with pytest.raises((ForeignDatabase, SettingError), match=rf"{copy}.*{name.removeprefix('disk_')}"):
            Cache(copy)
        with database(copy) as connection:
            assert connection.execute("SELECT count(*) FROM entry").fetchone() == (ENTRIES,)


def test_settings_that_are_missing(directory: Path) -> None:
    plant(directory, "DELETE FROM setting WHERE name != 'modulus'")
    with pytest.raises(SettingError, match="codec"):
        Cache(directory)
    plant(directory, "DELETE FROM setting")
    with pytest.raises(ForeignDatabase, match="modulus"):
        Cache(directory)


def test_a_name_that_is_no_text_is_nobodys(directory: Path, tmp_path: Path) -> None:
    for name in (b"size_limit", bomb(tmp_path / "marker")):
        plant(directory, "INSERT INTO setting VALUES (?, 'x')", name)
    with closing(Cache(directory)) as cache:
        assert cache["a"] == "text"
        assert cache.size_limit == 1 << 30
    assert not (tmp_path / "marker").exists()


def test_a_number_of_shards_that_makes_no_directories(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=2)) as cache:
        cache["a"] = 1
    before = {path.name for path in (tmp_path / "cache").iterdir()}
    for number in (0, -1, 1000, 10**9):
        for shard in ("000", "001"):
            plant(tmp_path / "cache" / shard, "UPDATE setting SET value = ? WHERE name = 'shards'", number)
        with pytest.raises(ForeignDatabase, match="shards"):
            FanoutCache(tmp_path / "cache")
        assert {path.name for path in (tmp_path / "cache").iterdir()} == before


class AnyDisk(Disk):
    """A Disk that swallows every argument, as some subclasses do."""

    def __init__(self, directory: str, **settings: Any) -> None:
        self.level = settings.pop("level", 1)
        super().__init__(directory)


def test_stored_settings_cannot_reach_into_the_disk(tmp_path: Path) -> None:
    level: dict[str, Any] = {"disk_level": 3}  # of this disk only, so that type checkers do not know it
    with closing(Cache(tmp_path / "cache", disk=AnyDisk, **level)) as cache:
        cache["a"] = 1
    for name, value in (("disk_pickle_policy", "trusted"), ("disk_authenticates", 0), ("disk_fetch", 1)):
        plant(tmp_path / "cache", "INSERT OR REPLACE INTO setting VALUES (?, ?)", name, value)
        with pytest.raises(SettingError, match=name):
            Cache(tmp_path / "cache", disk=AnyDisk)
        plant(tmp_path / "cache", "DELETE FROM setting WHERE name = ?", name)
    with closing(Cache(tmp_path / "cache", disk=AnyDisk)) as cache:
        assert cache.disk.level == 3  # type: ignore[attr-defined]
        assert cache["a"] == 1


# -- any value in any column ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x''", "''", "'text'", "5", "4611686018427387904", "1.5", "CAST(x'ff' AS TEXT)"])
def test_a_record_that_is_none_reads_as_missing_and_is_mended(directory: Path, value: str) -> None:
    plant(directory, f"UPDATE entry SET v = {value}")
    with closing(Cache(directory)) as cache:
        assert cache.get("a", "missing") == "missing"
        assert "a" not in cache
        assert cache.get_many(["a", "b"]) == {}
        assert cache.metrics().damaged > 0
        assert len(cache.check()) == ENTRIES
        cache.check(fix=True)
        assert cache.check() == []
        assert len(cache) == 0


def test_columns_that_say_something_else_than_the_record_are_reported_and_mended(directory: Path) -> None:
    for change in ("expire = 5e9", "tags = x'01'", "fresh = 5", "size = 7", "spelling = 5", "num = 3"):
        plant(directory, f"UPDATE entry SET {change} WHERE k = ?", b"\xa1a")
        with closing(Cache(directory)) as cache:
            (problem,) = cache.check()
            assert str(directory) in str(problem.message)
            assert cache["a"] == "text"  # the record counts
            cache.check(fix=True)
            assert cache.check() == []
            cache["a"] = "text"


@pytest.mark.parametrize("remove", [Cache.delete, Cache.pop, Cache.touch, Cache.incr])
@pytest.mark.parametrize("column", ["expire", "fresh"])
@pytest.mark.parametrize("value", ["'soon'", "x'00'", "''", "1e400", "-1e400", "CAST(x'ff' AS TEXT)"])
def test_an_expiry_that_is_no_number_blocks_no_operation(
    directory: Path, remove: Callable[[Cache, str], object], column: str, value: str
) -> None:
    plant(directory, f"UPDATE entry SET {column} = {value}")
    with closing(Cache(directory)) as cache:
        if remove is Cache.delete:  # what is no number is later than any
            assert cache.delete("a") == (value != "-1e400")
        with suppress(KeyError, TypeError if remove is Cache.incr else KeyError):  # of a text
            remove(cache, "a")
        assert cache.set("a", 1)
        assert cache.delete("a")
        cache.check(fix=True)
        assert cache.check() == []


@pytest.mark.parametrize(
    "policy", ["least-recently-used", "least-frequently-used", "least-recently-stored", "second-chance"]
)
def test_a_row_without_a_version_is_evicted_as_others_are(directory: Path, policy: str) -> None:
    """Damage may make any column NULL: its kind is a byte in the row."""
    with database(directory) as connection:
        (made,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'entry'").fetchone()
    for not_null in ("", "NOT NULL"):
        other = made.replace("NOT NULL", not_null).replace("'", "''")
        rewrite_schema(directory, f"UPDATE sqlite_master SET sql = '{other}' WHERE name = 'entry'")
        if not not_null:
            plant(directory, "UPDATE entry SET version = NULL")
    with closing(Cache(directory, eviction_policy=policy, size_limit=100_000)) as cache:
        for number in range(20):
            cache.set(number, bytes(2000))
        cache.cull()
        assert cache.volume() <= 100_000


def test_sizes_without_an_end_in_the_trash_stop_nothing(directory: Path) -> None:
    plant(directory, "INSERT INTO trash VALUES ('one', 9e999, NULL), ('two', -9e999, NULL)")
    with closing(Cache(directory, size_limit=1 << 20)) as cache:
        assert cache.volume() > 0
        for number in range(100):
            cache[number] = bytes(20_000)
        cache.check(fix=True)
        assert cache.check() == []


def test_trash_that_is_there_already_does_not_stop_a_write(directory: Path) -> None:
    with database(directory) as connection:
        (file,) = connection.execute("SELECT file FROM entry WHERE file IS NOT NULL").fetchone()
        connection.execute("INSERT OR REPLACE INTO trash VALUES (?, 1, NULL)", (file,))
    with closing(Cache(directory)) as cache:
        cache["file"] = "replaced"
        assert cache["file"] == "replaced"
        assert cache.delete("file")


@pytest.mark.parametrize("files", ["'x'", "1e400", "-1", "9223372036854775807", "x'00'"])
def test_a_false_total_is_reported_and_mended(directory: Path, files: str) -> None:
    plant(directory, f"UPDATE totals SET files = {files}")
    with closing(Cache(directory)) as cache:
        assert len(cache.check(fix=True)) == 1
        assert cache.check() == []
        assert cache["file"] == b"x" * 50_000


def test_missing_totals_are_reported_and_mended(directory: Path) -> None:
    plant(directory, "DELETE FROM totals")
    with closing(Cache(directory)) as cache:
        cache["new"] = b"y" * 50_000
        assert len(cache.check(fix=True)) == 1
        assert cache.check() == []
        assert cache.volume() > 100_000


def test_one_damaged_item_does_not_block_a_queue(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache")) as cache:
        keys = [cache.push(number) for number in range(5)]
        stored = [stored_of(cache, key) for key in keys]
    plant(tmp_path / "cache", "UPDATE entry SET v = x'00' WHERE k = ?", stored[0])
    plant(tmp_path / "cache", "UPDATE entry SET num = 'last' WHERE k = ?", stored[4])
    plant(tmp_path / "cache", "UPDATE entry SET num = 1.5 WHERE k = ?", stored[1])
    with closing(Cache(tmp_path / "cache")) as cache:
        assert cache.pull() == (keys[2], 2)
        assert int(cache.push("more")) > int(keys[4])
        assert [cache.pull()[1], cache.pull()[1], cache.pull()] == [3, "more", (None, None)]


def test_an_item_that_another_policy_may_read_stays(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache")) as cache:
        cache.push(complex)  # a class: pickled and signed
        cache.push("plain")
        cache["first"] = 1
        cache["last"] = complex
    with closing(Cache(tmp_path / "cache", pickle="never")) as cache:
        with pytest.warns(SignatureWarning, match="pickle='never'"):
            assert cache.peek()[1] == "plain"
        assert cache.pull()[1] == "plain"
        assert cache.pull() == (None, None)
        assert cache.peekitem(last=True) == ("first", 1)
    with closing(Cache(tmp_path / "cache")) as cache:
        assert cache["last"] is complex
        assert cache.pull()[1] is complex


# -- pages that lead to one page several times ------------------------------------------------------------------------


def use_endless(link: Link, directory: Path, scratch: Path) -> None:
    """Run each operation on a copy of its own, with little memory, and tell what went wrong with it."""
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    warnings.simplefilter("ignore", CorruptDatabaseWarning)
    bulk_removal.MANY = 0  # `clear` would empty the table in one step, if it could be trusted
    for step in STEPS:
        copy = scratch / step.name
        shutil.copytree(directory, copy)
        problem = ""
        try:
            with closing(Cache(copy)) as cache:
                step.run(cache)
        except (CacheError, KeyError):
            pass
        except Exception as error:
            problem = repr(error)
        link.tell((step.name, problem))


@pytest.mark.parametrize("tree", TREES)
def test_no_operation_reads_rows_without_end(tmp_path: Path, tree: str) -> None:
    """A few levels of pages that lead to one page hundreds of times have more rows than are read in a lifetime."""
    directory = tmp_path / "cache"
    with closing(Cache(directory, eviction_policy="least-recently-used", tag_index=True, **QUICK)) as cache:
        fill(cache)
        cache.reset("size_limit", 1)
        cache.cull()
        cache.reset("size_limit", 1 << 30)
        fill(cache)
        cache["file"] = b"z" * 50_000  # so that there is trash
    make_endless(directory, tree)
    with Crew() as crew:
        worker = crew.start(use_endless, directory, tmp_path / "copies")
        found = dict(worker.hear() for _ in STEPS)
    assert set(found) == {step.name for step in STEPS}
    assert {name: problem for name, problem in found.items() if problem} == {}


@pytest.mark.parametrize("tree", ["entry_place", "setting", "sqlite_schema"])
def test_what_is_read_without_end_is_damage(directory: Path, tree: str) -> None:
    make_endless(directory, tree)
    with pytest.warns(CorruptDatabaseWarning), closing(Cache(directory)) as cache:
        assert list(cache) == []
    with closing(Cache(directory)) as cache:
        cache["new"] = 1
    with closing(Cache(directory)) as cache:
        assert list(cache) == ["new"]


def test_a_schema_that_names_an_index_without_end_is_damage(directory: Path) -> None:
    """SQLite takes rows for an index that it knows as often as they come, and reads them before any statement."""
    rewrite_schema(
        directory,
        """WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 99)
        INSERT INTO sqlite_schema SELECT type, name, tbl_name, rootpage, NULL FROM sqlite_schema, number
        WHERE name = 'entry_place'""",
    )
    make_endless(directory, "sqlite_schema")
    with pytest.warns(CorruptDatabaseWarning), closing(Cache(directory)) as cache:
        assert len(cache) == 0


def test_a_schema_with_something_twice_is_damage(directory: Path) -> None:
    rewrite_schema(directory, "INSERT INTO sqlite_schema SELECT * FROM sqlite_schema WHERE name = 'entry_update'")
    with pytest.warns(CorruptDatabaseWarning), closing(Cache(directory)) as cache:
        assert len(cache) == 0


def test_what_is_still_in_memory_is_read_to_its_end(tmp_path: Path) -> None:
    """Rows of a transaction that fit into SQLite's own memory are in no file yet."""
    with closing(Cache(tmp_path, sqlite_cache_size=1 << 16, **QUICK)) as cache, cache.transact():
        for number in range(20_000):
            cache[number] = number
        assert list(cache) == list(range(20_000))
