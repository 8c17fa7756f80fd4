"""The database schema: every table, index and trigger, and its version.

The invariants that must survive any crash live here, not in Python: the bytes in value files are counted, and the file
of a row that goes or changes is in the trash, from the same commit on. Rows without a file pay nothing for that.
"""

from __future__ import annotations

import os
import re
import sqlite3

from ...errors import CorruptDatabase, DiskCacheDirectory, ForeignDatabase, NewerFormat, OlderFormat

# Of a row: `id` and `version` are the writes (ticks) that inserted it and that wrote its value last. So the table is in
# the order of insertion: a new row goes to the last page, old rows are neighbours, and iteration needs no index. Where
# eviction has spared a row and moved it behind others of that kind, `id` is the tick of that less MOVED_BACK, and so
# negative. `h` is the row's place, its key's hash. `expire` is when it goes, `fresh` when it expires, where it is kept
# after that. `spelling` holds what the code calls the original key: the pickle of a key that its stored key does not
# give back.
APPLICATION_ID = 0x64636C6B  # "dclk"
MOVED_BACK = 1 << 62  # more than any tick
VERSION = 4

ENTRY = """CREATE TABLE entry (
    id INTEGER PRIMARY KEY,
    h INTEGER NOT NULL CHECK (typeof(h) = 'integer'),
    k BLOB NOT NULL,
    version INTEGER NOT NULL,
    expire REAL,
    fresh REAL,
    tags TEXT,
    size INTEGER NOT NULL DEFAULT 0,
    file,
    spelling BLOB,
    queue BLOB,
    num INTEGER,
    v BLOB NOT NULL)"""
TOTALS = "CREATE TABLE totals (id INTEGER PRIMARY KEY CHECK (id = 1), files INTEGER NOT NULL)"
TRASH = "CREATE TABLE trash (file PRIMARY KEY, size INTEGER NOT NULL, at REAL) WITHOUT ROWID"
SETTING = "CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID"
PLACE_INDEX = "CREATE UNIQUE INDEX entry_place ON entry (h)"
EXPIRE_INDEX = "CREATE INDEX entry_expire ON entry (expire) WHERE expire IS NOT NULL"
QUEUE_INDEX = "CREATE UNIQUE INDEX entry_queue ON entry (queue, num) WHERE queue IS NOT NULL"
FILE_INDEX = "CREATE INDEX entry_file ON entry (file) WHERE file IS NOT NULL"
# The names of an entry's tags (encoding/tags.py), which is the index for `evict`, and for listing by tag.
TAGGED = "CREATE TABLE tagged (tag TEXT, place INTEGER, PRIMARY KEY (tag, place)) WITHOUT ROWID"
# No OR REPLACE in a trigger: the conflict clause of the statement that fires it wins over it.
ON_INSERT = """CREATE TRIGGER entry_insert AFTER INSERT ON entry WHEN new.file IS NOT NULL BEGIN
    UPDATE totals SET files = files + new.size WHERE id = 1;
END"""
ON_DELETE = """CREATE TRIGGER entry_delete AFTER DELETE ON entry WHEN old.file IS NOT NULL BEGIN
    UPDATE totals SET files = files - old.size WHERE id = 1;
    INSERT INTO trash SELECT old.file, old.size, NULL WHERE NOT EXISTS (SELECT 1 FROM trash WHERE file = old.file);
END"""
ON_UPDATE = """CREATE TRIGGER entry_update AFTER UPDATE OF file ON entry WHEN old.file IS NOT new.file BEGIN
    UPDATE totals SET files = files - old.size + new.size WHERE id = 1;
    INSERT INTO trash SELECT old.file, old.size, NULL
        WHERE old.file IS NOT NULL AND NOT EXISTS (SELECT 1 FROM trash WHERE file = old.file);
END"""


_IS_WHOLE = "length({0}) = length(CAST({0} AS BLOB))"  # no NUL ends it early
_HAS_ONE = "typeof({0}) = 'text' AND {0} NOT GLOB '*[^0-9a-f]*' AND " + _IS_WHOLE
_HAS_SEVERAL = "{0} IS NOT NULL AND NOT (" + _HAS_ONE + ")"


def each_name(tags: str) -> str:
    """Return SQL for a table whose column `value` has the names that a column of tags lists.

    What somebody planted there may be anything. Then there are none, since an error in a trigger would keep the entry
    from being removed; `json_valid` must not be used in a trigger of a schema that is not trusted.
    """
    is_list = f"{tags} NOT GLOB '*[^0-9a-f ]*' AND {_IS_WHOLE.format(tags)}"
    made = f"""'["' || replace({tags}, ' ', '","') || '"]'"""
    return f"json_each(CASE WHEN typeof({tags}) = 'text' AND {is_list} THEN {made} ELSE '[]' END)"


_ADD_TAGS = f"INSERT OR IGNORE INTO tagged SELECT value, new.h FROM {each_name('new.tags')};"  # noqa: S608 - made of constants
_DROP_TAGS = f"DELETE FROM tagged WHERE tag IN (SELECT value FROM {each_name('old.tags')}) AND place = old.h;"  # noqa: S608 - made of constants
# Most rows that have tags have one, whose name is the whole column: they fire triggers of their own, which are faster.
ON_TAGGED_INSERT = f"""CREATE TRIGGER entry_tagged AFTER INSERT ON entry WHEN {_HAS_SEVERAL.format("new.tags")} BEGIN
    {_ADD_TAGS}
END"""
ON_TAGGED_DELETE = f"""CREATE TRIGGER entry_untagged AFTER DELETE ON entry WHEN {_HAS_SEVERAL.format("old.tags")} BEGIN
    {_DROP_TAGS}
END"""
ON_TAG_INSERT = f"""CREATE TRIGGER entry_tag AFTER INSERT ON entry WHEN {_HAS_ONE.format("new.tags")} BEGIN
    INSERT OR IGNORE INTO tagged VALUES (new.tags, new.h);
END"""  # noqa: S608 - made of constants
ON_TAG_DELETE = f"""CREATE TRIGGER entry_untag AFTER DELETE ON entry WHEN {_HAS_ONE.format("old.tags")} BEGIN
    DELETE FROM tagged WHERE tag = old.tags AND place = old.h;
END"""  # noqa: S608 - made of constants
ON_TAGGED_UPDATE = f"""CREATE TRIGGER entry_retagged AFTER UPDATE OF tags ON entry WHEN old.tags IS NOT new.tags BEGIN
    {_DROP_TAGS}
    {_ADD_TAGS}
END"""

REQUIRED = (ENTRY, TOTALS, TRASH, SETTING, PLACE_INDEX, EXPIRE_INDEX, QUEUE_INDEX, FILE_INDEX, TAGGED)
_ON_TAGS = (ON_TAG_INSERT, ON_TAG_DELETE, ON_TAGGED_INSERT, ON_TAGGED_DELETE, ON_TAGGED_UPDATE)
TRIGGERS = (ON_INSERT, ON_DELETE, ON_UPDATE, *_ON_TAGS)
ON_EACH_DELETE = {
    "entry_delete": ON_DELETE,
    "entry_untag": ON_TAG_DELETE,
    "entry_untagged": ON_TAGGED_DELETE,
}  # by name
# What ANALYZE leaves, which SQLite's tools run. It only helps SQLite to choose between plans, whatever lies there.
STATISTICS = (
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
)
EXPECTED = frozenset((*REQUIRED, *TRIGGERS, *STATISTICS))
SchemaRow = tuple[str, str, str | bytes | None]  # a row of SELECT_SCHEMA; text that is not UTF-8 is read as bytes

MOST = 1000  # rows of a schema that are looked at: more than a cache has, since pages may have no end
SELECT_SCHEMA = f"SELECT type, name, sql FROM sqlite_master LIMIT {MOST}"  # noqa: S608 - made of constants
_EVALUATED = re.compile(r"\b(as|index|virtual)\b", re.IGNORECASE)
INSERT_TOTALS = "INSERT INTO totals (id, files) VALUES (1, 0)"


def create(connection: sqlite3.Connection, settings: dict[str, object]) -> None:
    """Make the whole schema and store `settings` in one transaction; the caller holds the write lock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in (*REQUIRED, *TRIGGERS, INSERT_TOTALS):
            connection.execute(statement)
        connection.executemany("INSERT INTO setting (name, value) VALUES (?, ?)", settings.items())
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # else a signal handler raised just after the commit
            connection.execute("ROLLBACK")
        raise


def is_empty(connection: sqlite3.Connection) -> bool:
    """Tell whether the database holds nothing at all, as when its creator was killed before the first commit."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def verify(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database of another version or make, or whose schema is not the expected one.

    Raises DiskCacheDirectory, NewerFormat, OlderFormat, ForeignDatabase or CorruptDatabase. Nothing planted is run:
    reading sqlite_master executes no trigger and no view, and `trusted_schema` is off on every connection.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    rows = connection.execute(SELECT_SCHEMA).fetchall()
    names = {name for kind, name, _ in rows if kind == "table"}
    if application != APPLICATION_ID:
        _refuse_foreign(path, names, os.path.dirname(path))
    if version > VERSION:
        raise NewerFormat(
            f"{path!r} has format {version}, this version of diskcache_like reads only {VERSION}: upgrade the package"
        )
    if version < 1:
        raise ForeignDatabase(f"{path!r} claims format {version}, which never existed")
    if version < VERSION:
        raise OlderFormat(
            f"{path!r} has format {version}, this version of diskcache_like reads only {VERSION}: delete the directory,"
            " or export it with the version that wrote it and import that"
        )
    if encoding != "UTF-8":
        raise CorruptDatabase(f"{path!r} stores text as {encoding}, but the schema requires UTF-8")
    _compare(path, rows)


def refuse_foreign(connection: sqlite3.Connection, path: str, directory: str) -> None:
    """Raise ForeignDatabase for a database of another make; one that is ours, or empty, is left to `verify`."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    names = {name for kind, name, _ in connection.execute(SELECT_SCHEMA).fetchall() if kind == "table"}
    if application != APPLICATION_ID and names:
        _refuse_foreign(path, names, directory)


def _refuse_foreign(path: str, names: set[str], directory: str) -> None:
    if {"Cache", "Settings"} <= names:
        raise DiskCacheDirectory(
            f"{directory!r} was written by DiskCache 5 and is left untouched; copy it with "
            f"'python -m diskcache_like migrate {directory} NEW_DIRECTORY' and open the copy"
        )
    raise ForeignDatabase(f"{path!r} is an SQLite database that diskcache_like did not make; choose another directory")


def _compare(path: str, rows: list[SchemaRow]) -> None:
    """Refuse anything that is missing from, or was added to, the expected schema.

    What is only missing, is there twice, or differs in one byte is damage: a power loss may leave one page of the
    schema new and another old, each of them sound, and a disk may flip a bit.
    """
    statements = [sql for _, _, sql in rows if sql is not None]
    if len(set(statements)) < len(statements):
        raise CorruptDatabase(f"{path!r}: the schema holds something twice")
    if difference := difference_of(rows):
        if all(map(_differs_in_a_byte, _unexpected(rows))):
            raise CorruptDatabase(f"{path!r} {difference}")
        raise ForeignDatabase(f"{path!r} {difference}; it was altered by someone else and is not opened")


def difference_of(rows: list[SchemaRow]) -> str | None:
    """Describe how the rows of SELECT_SCHEMA differ from the expected ones; None if they do not."""
    missing = {*REQUIRED, *TRIGGERS} - {sql for _, _, sql in rows}
    unexpected = sorted(str(name) for _, name, _ in _unexpected(rows))  # damage may have made it bytes
    if missing or unexpected:
        return (
            f"does not have the schema of diskcache_like (unexpected: {unexpected[:9] or 'nothing'}, "
            f"missing: {len(missing)})"
        )
    return None


def _unexpected(rows: list[SchemaRow]) -> list[SchemaRow]:
    """Return what was added to the expected schema, or altered."""
    return [row for row in rows if row[2] not in EXPECTED]


def _differs_in_a_byte(row: SchemaRow) -> bool:
    """Tell whether a statement is an expected one with exactly one byte changed."""
    sql = row[2]
    if sql is None:
        return False
    found = sql if isinstance(sql, bytes) else sql.encode("utf-8", "surrogatepass")
    return any(
        len(found) == len(each) and sum(one != other for one, other in zip(found, each, strict=True)) == 1
        for each in map(str.encode, EXPECTED)
    )


def runs_nothing(rows: list[SchemaRow]) -> bool:
    """Tell whether SQLite's check of a database evaluates no expression but those of the expected schema.

    It evaluates those of indexes and of generated columns, but of no trigger, and of a CHECK only if it is to. One call
    of a function may take forever, and nothing interrupts it.
    """
    return len(rows) < MOST and all(
        type(sql) is str and (sql.startswith("CREATE TRIGGER ") or not _EVALUATED.search(sql))
        for _, _, sql in _unexpected(rows)
        if sql is not None
    )
