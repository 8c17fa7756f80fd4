"""Copying a directory that somebody else made: nothing in it is run, and no file outside it is touched."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from diskcache_like import (
    Cache,
    CacheError,
    CorruptDatabase,
    DirectoryError,
    FanoutCache,
    ForeignDatabase,
    StorageError,
)
from diskcache_like.compat.migration.copy import Migration, MigrationOptions

from ..integrations.test_migrate import BIG, migrate, reasons
from ..support.tampering import snapshot

pytest.importorskip("diskcache")


class Planted:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def alter(old: Path, *statements: str, parameters: tuple[Any, ...] = ()) -> None:
    """Change the database as no program of DiskCache's would."""
    connection = sqlite3.connect(old / "cache.db", isolation_level=None)
    try:
        for statement in statements:
            connection.execute(statement, parameters)
    finally:
        connection.close()


AUDIT = """
import sys
watched, seen = sys.argv[1], []

def hook(event, arguments):
    if event in ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen") and armed:
        seen.append(event)
    if event == "open" and armed and isinstance(arguments[0], str) and arguments[0].startswith(watched):
        seen.append(arguments[0])

armed = False
sys.addaudithook(hook)
from diskcache_like.compat.migration.copy import Migration
with Migration(sys.argv[2], sys.argv[3]) as running:
    armed = True
    running.run()
print(seen)
"""


def test_no_code_is_looked_up_and_nothing_outside_is_opened(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * BIG)
    with diskcache.Cache(old) as theirs:
        theirs["pickle"] = Planted(tmp_path / "canary")
        theirs["data"] = [1, {2: "x"}, ("a",)]
        theirs["file"] = b"x" * BIG
    alter(old, "UPDATE Cache SET filename = '../secret' WHERE filename IS NOT NULL")
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, secret, old, new], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "link", "hard", "fifo", "linked/secret", "ab", "cache.db", "", "a\x00b", "x" * 300],
)
def test_a_planted_file_name_leads_nowhere(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * BIG)
    for key, value in (("bytes", bytes(BIG)), ("text", "x" * BIG), ("pickle", ["x" * BIG])):
        with diskcache.Cache(old) as theirs:
            theirs[key] = value
    (old / "link").symlink_to(secret)
    (old / "linked").symlink_to(tmp_path)
    os.link(secret, old / "hard")
    os.mkfifo(old / "fifo")
    (old / "ab").mkdir(exist_ok=True)
    alter(old, "UPDATE Cache SET size = ?, filename = ?", parameters=(BIG, name))
    summary = migrate(old, new)
    assert (summary.copied, len(summary.skipped)) == (0, 3)
    with Cache(new) as ours:
        assert len(ours) == 0
    assert not [path for path in new.rglob("*.val")]


def test_links_in_place_of_parts_of_the_cache_are_refused(tmp_path: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(tmp_path / "victim") as theirs:
        theirs["secret"] = 1
        shutil.copytree(tmp_path / "victim", tmp_path / "walled")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "cache.db").symlink_to(tmp_path / "victim" / "cache.db")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "000").symlink_to(tmp_path / "victim")
    (tmp_path / "walled" / "cache.db-wal").unlink()
    (tmp_path / "walled" / "cache.db-wal").symlink_to(tmp_path / "victim" / "cache.db")
    (tmp_path / "second").mkdir()
    os.link(tmp_path / "victim" / "cache.db", tmp_path / "second" / "cache.db")
    for name in ("alone", "shards", "walled", "second"):
        with pytest.raises(DirectoryError, match="link"):
            Migration(tmp_path / name, new)
    assert not new.exists()


def test_links_in_place_of_named_caches_are_not_followed(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType
) -> None:
    with diskcache.Cache(tmp_path / "victim") as theirs:
        theirs["secret"] = 1
    diskcache.FanoutCache(old, shards=2).close()
    (old / "cache").mkdir()
    (old / "cache" / "name").symlink_to(tmp_path / "victim")
    (old / "deque").symlink_to(tmp_path)
    (old / "index" / "odd").mkdir(parents=True)
    (old / "index" / "odd" / "cache.db").symlink_to(tmp_path / "victim" / "cache.db")
    summary = migrate(old, new)
    assert summary.copied == 0
    assert [*reasons(summary)] == ["index/odd"]
    with FanoutCache(new) as ours:
        assert len(ours) == 0


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE Cache RENAME TO Moved", "CREATE VIEW Cache AS SELECT * FROM Moved"),
        ("DROP TABLE Cache", "CREATE VIRTUAL TABLE Cache USING fts5(key, raw)"),
        ("ALTER TABLE Cache ADD COLUMN more AS (abs(-9223372036854775808))",),
        ("ALTER TABLE Cache ADD COLUMN more",),
        ("ALTER TABLE Cache RENAME COLUMN value TO worth",),
        ("DROP TABLE Settings",),
        ("DROP TABLE Settings", "CREATE VIEW Settings AS SELECT 1 AS key, 2 AS value"),
    ],
)
def test_another_schema_is_refused(old: Path, new: Path, diskcache: ModuleType, statements: tuple[str, ...]) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["key"] = 1
    alter(old, *statements)
    before = snapshot(old)
    with pytest.raises(ForeignDatabase, match=r"Cache|Settings"):
        Migration(old, new)
    assert snapshot(old) == before
    assert not new.exists()


@pytest.mark.parametrize("number", ["'text'", "NULL", "x'00'", "1.5"])
def test_rows_with_something_else_for_a_number_are_damage(
    old: Path, new: Path, diskcache: ModuleType, number: str
) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["key"] = 1
    alter(
        old,
        "CREATE TABLE made AS SELECT * FROM Cache",
        "DROP TABLE Cache",
        "CREATE TABLE Cache AS SELECT rowid AS number, * FROM made",
        f"UPDATE Cache SET number = {number}",
        "ALTER TABLE Cache DROP COLUMN rowid",
        "ALTER TABLE Cache RENAME COLUMN number TO rowid",
    )
    assert reasons(migrate(old, new))["cache.db"].endswith("its rows are out of order")


def test_planted_triggers_views_and_indexes_are_not_run(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["key"] = "value"
    alter(
        old,
        "CREATE TRIGGER planted AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
        "CREATE VIEW planted_view AS SELECT load_extension('x') FROM Cache",
        "CREATE INDEX planted_index ON Cache (abs(rowid)) WHERE raw",
    )
    assert migrate(old, new).copied == 1


def test_a_journal_of_a_cut_off_transaction_is_refused(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType
) -> None:
    # SQLite would roll it back, and remove the file that the journal names as its superior.
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with diskcache.Cache(old, sqlite_journal_mode="delete") as theirs:
        theirs["key"] = 1
    name = os.fsencode(victim)
    head = bytes.fromhex("d9d505f920a163d7") + bytes(20)
    tail = name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + head[:8]
    (old / "cache.db-journal").write_bytes(head.ljust(512, b"\0") + bytes(4) + tail)
    with pytest.raises(StorageError, match="cut off"):
        Migration(old, new)
    assert victim.read_text() == "mine"
    (old / "cache.db-journal").write_bytes(bytes(512))  # as journal_mode=PERSIST leaves it
    assert migrate(old, new).copied == 1


def test_what_no_column_should_hold_is_listed(old: Path, new: Path, diskcache: ModuleType) -> None:
    with diskcache.Cache(old) as theirs:
        for number in range(12):
            theirs[number] = f"value {number}"
    planted = {
        0: "mode = 9",
        1: "mode = 'x'",
        2: "raw = 7",
        3: "raw = 0",
        4: "expire_time = 'soon'",
        5: "value = CAST(x'ff' AS TEXT)",
        6: "key = NULL",
        7: "key = CAST(x'ff' AS TEXT)",
        8: "mode = 4, value = x'8004'",
        9: "mode = 4, value = 5",
        10: "tag = CAST(x'ff' AS TEXT)",
    }
    for number, change in planted.items():
        alter(old, f"UPDATE Cache SET {change} WHERE rowid = {number + 1}")
    alter(old, "UPDATE Settings SET value = 'no policy' WHERE key = 'eviction_policy'")
    alter(old, "UPDATE Settings SET value = -5 WHERE key = 'size_limit'")
    summary = migrate(old, new)
    assert (summary.copied, len(summary.skipped)) == (1, len(planted))
    with Cache(new) as ours:
        assert list(ours) == [11]
        assert (ours.reset("eviction_policy"), ours.reset("size_limit")) == ("second-chance", 1 << 30)


def bytes_of(*parts: bytes | Callable[[], bytes]) -> bytes:
    return b"\x80\x04" + b"".join(part if isinstance(part, bytes) else part() for part in parts) + b"."


BOMBS = {
    "deep": bytes_of(b")" + b"\x85" * 200_000),
    "a deep key": bytes_of(b"})" + b"\x85" * 200_000 + b"K\x01s"),
    "shared parts": bytes_of(b"K\x01" + b"2\x86" * 60),
    "shared parts in a key": bytes_of(b"}K\x01" + b"2\x86" * 60 + b"K\x01s"),
    "itself": bytes_of(b"]\x94h\x00a"),
    "a large buffer": b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.",
    "a large power": b"cfractions\nFraction\n(V1e999999999\ntR.",
    "a long number": b"L" + b"9" * 10_000 + b"L\n.",
    "a length": bytes_of(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc"),
    "an unfinished UUID": b"cuuid\nUUID\n)\x81.",
    "a date of no calendar": b"cdatetime\ndate\n(C\x04\x07\xe4\x02\x63tR.",
    "a class": pickle.dumps(dict),
    "a function": pickle.dumps(print),
    "an attribute": b"cbuiltins\ngetattr\n(cos\n__dict__\nVsystem\ntR.",
    "a persistent id": b"Pname\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a factory": b"ccollections\ndefaultdict\n(cos\nsystem\ntR.",
    "a time zone's path": b"czoneinfo\nZoneInfo._unpickle\n(V../../etc/passwd\nI01\ntR.",
    "state": b"cuuid\nUUID\n)\x81}Vint\nK\x05sVmore\nK\x05sb.",
    "an instance": b"(cos\nsystem\no.",
    "nothing": b"",
    "no end": b"\x80\x04K\x01",
    "no stack": b".",
    "a missing memo": b"\x80\x04h\x07.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_is_not_plain_data_is_listed(old: Path, new: Path, diskcache: ModuleType, name: str) -> None:
    with diskcache.Cache(old) as theirs:
        theirs["value"] = theirs["whole"] = (1,)
        theirs[1, 2] = 1
    alter(old, "UPDATE Cache SET value = ? WHERE key = 'value'", parameters=(BOMBS[name],))
    alter(old, "UPDATE Cache SET key = ? WHERE raw = 0", parameters=(BOMBS[name],))
    summary = migrate(old, new)
    assert (summary.copied, len(summary.skipped)) == (1, 2)


def test_an_unfinished_copy_with_a_planted_link_is_refused(
    old: Path, new: Path, tmp_path: Path, diskcache: ModuleType
) -> None:
    diskcache.Cache(old).close()
    victim = tmp_path / "victim"
    victim.mkdir()
    new.mkdir(mode=0o700)
    (new / "migration").symlink_to(victim)
    with pytest.raises(DirectoryError, match="not empty"):
        Migration(old, new)
    (new / "migration").unlink()
    (new / "migration").mkdir()
    (new / "migration" / "state.json").symlink_to(victim / "state.json")
    with pytest.raises((OSError, CacheError)):
        Migration(old, new)
    assert list(victim.iterdir()) == []


def test_pages_that_lead_to_one_page_many_times_are_damage(tmp_path: Path, new: Path) -> None:
    """Six levels of them have more rows than could be counted in a lifetime."""
    old = tmp_path / "old"
    old.mkdir()
    path = old / "cache.db"
    columns = (
        "key BLOB, raw INTEGER, store_time REAL, expire_time REAL, access_time REAL, access_count INTEGER, tag BLOB"
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE Settings (key TEXT NOT NULL UNIQUE, value)")
        connection.execute(
            f"CREATE TABLE Cache (rowid INTEGER PRIMARY KEY, {columns}, size INTEGER, mode INTEGER, filename TEXT, value)"
        )
        connection.execute("INSERT INTO Cache (rowid, key, raw, mode, value) VALUES (1, 'a', 1, 1, 1)")
        connection.commit()
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'Cache'").fetchone()
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    leaf = slice((root - 1) * size, root * size)
    levels = [bytes(content[leaf])]
    for child in range(len(content) // size + 1, len(content) // size + 7):
        page, place = bytearray(size), size - 8
        page[:12] = struct.pack(">BHHHBI", 5, 0, 600, place, 0, child)
        page[12 : 12 + 2 * 600] = struct.pack(">H", place) * 600
        page[place : place + 5] = struct.pack(">IB", child, 1)
        levels.append(bytes(page))
    content[leaf] = levels.pop()
    content += b"".join(levels)
    content[28:32] = (len(content) // size).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(CorruptDatabase, match="more rows than room"):
        Migration(old, new, MigrationOptions(dry_run=True))
