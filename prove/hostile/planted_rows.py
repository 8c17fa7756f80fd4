"""A hostile database: planted pickles, names, numbers, types and payloads in every column, and a schema with tricks."""

from __future__ import annotations

import importlib
import math
import os
import random
import resource
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

from diskcache_like import Disk
from diskcache_like.encoding import record
from diskcache_like.encoding.compressors import COMPRESSED
from diskcache_like.encoding.record import (
    MODE_ARRAY,
    MODE_ARROW,
    MODE_BINARY,
    MODE_PICKLE,
    MODE_RAW,
    Record,
    pack_simple,
)
from diskcache_like.errors import CacheError
from tests.support.audit_hooks import Outside, Watch
from tests.support.hostile_content import (
    BAD_SETTINGS,
    CLAIMS,
    COLUMNS,
    HOSTILE_ARRAYS,
    MB,
    NAMES,
    NESTED,
    TAMPERED,
    UNKNOWN,
    lz4_bomb,
    values,
    zlib_bomb,
    zstd_bomb,
)
from tests.support.tampering import bomb, database, forged

from ..proof import Trial
from .samples import DATED, TAGGED, VALUES, Judge, Refused, Sample, Tries, Workbench, deadline, make, tried

WATCH = Watch()
MEMORY = 1 << 30  # bytes that a case may make this process take at most; a bomb here wants more
MODES = (-1, 0, *range(1, 9), 99, 1 << 30)
PRECIOUS = b"precious"
SAMPLES = ("plain", "signed", "sealed", "packed")


# -- what is planted ---------------------------------------------------------------------------------------------------


class Around(NamedTuple):
    """What a payload may lead to: the file that exists as soon as code has run, and one outside the cache."""

    marker: Path
    outside: Path


Payload = Callable[[Around, bytes], object]  # for a stored key


def _plain_values() -> dict[str, Payload]:
    """Return values of every type that SQLite has."""
    made: dict[str, Any] = {}  # payloads
    for number in range(len(values(Path("unused")))):
        made[f"value {number}"] = lambda around, _, number=number: values(around.marker)[number]
    for name in NAMES:
        made[f"name {name[:40]!r}"] = lambda _, __, name=name: name
        made[f"bytes of name {name[:40]!r}"] = lambda _, __, name=name: name.encode()
    made |= {
        "NULL": lambda _, __: None,
        "not a number": lambda _, __: math.nan,
        "the path of a file outside": lambda around, _: str(around.outside),
        "the relative path of a file outside": lambda around, _: f"../outside/{around.outside.name}",
        "4 MB of zeros": lambda _, __: bytes(4 * MB),
        "2 MB of text": lambda _, __: "x" * (2 * MB),
        "an id of no file": lambda _, __: bytes(16),
        "text with NUL": lambda _, __: "cache\0.db",
    }
    return made


@cache
def _contents() -> dict[str, Callable[[], bytes]]:
    """Return payloads that no cache writes, for a record to carry."""
    fixed: dict[str, bytes] = {
        **{f"nesting: {name}": content for name, content in NESTED.items()},
        **{f"claim: {name}": content for name, content in CLAIMS.items()},
        **{f"extension {content[:8].hex()}": content for content in UNKNOWN},
        **{f"array: {name}": content for name, content in HOSTILE_ARRAYS.items()},
        "a frame of no dictionary": COMPRESSED + b"\xff" * 40,
        "nothing": b"",
        "noise": random.Random(1).randbytes(200),
    }
    made = {name: lambda content=content: content for name, content in fixed.items()}
    bombs: dict[str, Callable[[], bytes]] = {  # made when their turn comes, since that takes long
        "zlib bomb": cache(lambda: COMPRESSED + zlib_bomb(16 * MB)),
        "zstd bomb": cache(lambda: COMPRESSED + zstd_bomb(16 * MB)),
        "zstd bomb that states no size": cache(lambda: COMPRESSED + zstd_bomb(16 * MB, False)),
        "LZ4 that lies": cache(lambda: COMPRESSED + (MEMORY - 1).to_bytes(4, "little") + lz4_bomb(MB)[4:]),
    }
    return {**made, **bombs}


def _records() -> dict[str, Payload]:
    """Return records that are consistent in themselves, as the checksum of who has no secret makes them."""
    made: dict[str, Any] = {}  # payloads
    for mode in MODES:
        made[f"mode {mode}: pickle"] = lambda around, of, mode=mode: forged(of, bomb(around.marker), mode=mode)
    for name, content in _contents().items():
        made[f"simple record: {name}"] = lambda _, of, content=content: pack_simple(of, content())
        for mode in (MODE_RAW, MODE_ARRAY, MODE_ARROW):
            made[f"mode {mode}: {name}"] = lambda _, of, content=content, mode=mode: forged(of, content(), mode=mode)
    for name in NAMES:
        if len(name) < 60_000:
            for mode in (MODE_BINARY, MODE_RAW, MODE_PICKLE, MODE_ARRAY):
                made[f"mode {mode} in the file {name[:40]!r}"] = partial(_elsewhere, name=name, mode=mode)
    for field, numbers in {
        "expire": (math.nan, math.inf, -math.inf, -1.0, 1e308, 0.0),
        "size": (1, 2**63, 2**64 - 1),
        "tags": (b"\x00", b"\x01\xc1", b"\x05\xdd\xff\xff\xff\xff", b"\x03\x80\x04.", b"\x91" * 1000),
        "retain_until": (math.nan, math.inf, -1.0),
        "created": (math.nan, math.inf, 1e308),
        "etag": (b"", b"\xff" * 255),
    }.items():
        for number in numbers:
            given: dict[str, Any] = {"mode": MODE_RAW, field: number}
            made[f"{field} {str(number)[:30]}"] = lambda _, of, given=given: forged(of, b"\xa5wrong", **given)
    for flags in range(256):
        made[f"flags {flags}"] = partial(_with_flags, flags=flags)
    return made


def _with_flags(_: Around, stored: bytes, flags: int) -> bytes:
    whole = forged(stored, b"\x05", mode=MODE_RAW, tags=b"\x02\xa1t")
    return _sealed(stored, whole[:1] + bytes((flags,)) + whole[2:-4])


def _sealed(stored: bytes, body: bytes) -> bytes:
    return body + crc32(body, crc32(stored)).to_bytes(4, "little")


def _elsewhere(_: Around, stored: bytes, name: str, mode: int) -> bytes:
    """Return a record of a value that lies in a file of that name, with the size and digest of what lies outside."""
    encoded = name.encode("utf-8", "surrogatepass")
    head = record._FIELDS.pack(0, mode, 0.0, len(PRECIOUS), 0, len(encoded))
    return _sealed(stored, b"\x02" + head + encoded + crc32(PRECIOUS).to_bytes(4, "little"))


class Item(NamedTuple):
    """A payload and where it goes: into all rows of a table or one of them."""

    sample: Sample
    table: str
    column: str
    payload: str
    everywhere: bool


def items(made: Sequence[Sample]) -> list[Item]:
    plain, records = list(_plain_values()), list(_records())
    columns = {**COLUMNS, "entry": ("h", *COLUMNS["entry"]), "setting": ("name", "value")}
    found = []
    for sample in made:
        for table, names in columns.items():
            for column in names:
                payloads = [*plain, *(records if column in ("v", "spelling", "tags") else ())]
                found += [Item(sample, table, column, payload, both) for payload in payloads for both in (False, True)]
    return found


# -- one case ----------------------------------------------------------------------------------------------------------


def try_item(payloads: dict[str, Payload], trial: Trial, bench: Workbench, item: Item) -> None:
    """Plant it in a closed cache, use that in every way, and see that nothing came of it."""
    with bench.copy(item.sample) as directory:
        outside, around = _surround(directory)
        with deadline():
            changed = _plant(item, directory, payloads[item.payload], around)
            trial.count("rows changed", changed)
            if not changed:
                trial.count("plants that SQLite does not take as a row")
                return
            judge = Judge(_forgeable(item), keys=item.table != "entry" or item.column not in ("k", "spelling", "v"))
            _use(trial, item.sample, directory, judge)
        what = f"{item.payload!r} as {item.table}.{item.column} of {item.sample.name}"
        assert not os.path.lexists(around.marker), f"{what}: code was run"
        _assert_well(trial, what, judge, outside)


def _surround(directory: Path) -> tuple[Outside, Around]:
    """Put things beside and into the cache directory that must not be touched."""
    outside = Outside(directory.parent / "outside")
    around = Around(directory.parent / "outside" / "marker", outside.file("file", PRECIOUS))
    (directory / "link").symlink_to(outside.directory)
    os.mkfifo(directory / "fifo")
    (directory / "dir").mkdir()
    (directory / "dir" / "file").touch()
    outside.settle()
    return outside, around


def _forgeable(item: Item) -> frozenset[Any]:
    """Return the keys whose entries an attacker without a secret may forge as plain data, which is no violation."""
    if item.sample.proved or item.column not in ("v", "k", "h"):
        return frozenset()
    return frozenset({*VALUES, DATED[0], TAGGED[0], "item"})


def _plant(item: Item, directory: Path, payload: Payload, around: Around) -> int:
    """Put the payload into the column of the rows, as far as SQLite takes it; return how many rows that changed."""
    changed = 0
    key = {"entry": "h", "totals": "id", "trash": "file", "tagged": "place", "setting": "name"}[item.table]
    with database(directory) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        if item.table == "trash":
            connection.execute("INSERT INTO trash VALUES (x'00112233445566778899aabbccddeeff', 5, NULL)")
        stored = "k" if item.table == "entry" else "x'a0'"
        rows = connection.execute(f"SELECT {key}, {stored} FROM {item.table} ORDER BY 1").fetchall()
        if not item.everywhere:
            rows = [random.Random(item.payload).choice(rows)]
        for row, of in rows:
            with suppress(sqlite3.IntegrityError, OverflowError):  # a row's place is always a number
                statement = f"UPDATE OR IGNORE {item.table} SET {item.column} = ? WHERE {key} = ?"
                changed += connection.execute(statement, (payload(around, of), row)).rowcount
        connection.execute("COMMIT")
    return changed


def _use(trial: Trial, sample: Sample, directory: Path, judge: Judge) -> None:
    """Do everything with the cache, watched."""
    try:
        with WATCH.watching(directory), sample.open(directory, hot_size_limit=0) as handle:
            judge.everything(handle)
    except Refused:
        trial.count("refused in use")
    except CacheError:
        trial.count("refused at opening")


def _assert_well(trial: Trial, what: str, judge: Judge, outside: Outside) -> None:
    changes = outside.changes()
    assert not changes, f"{what}: {changes}"
    assert not judge.wrong, f"{what}: {judge.wrong}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    trial.most("most memory", peak >> 20, " MB")
    assert peak < MEMORY, f"{what}: the process takes {peak >> 20} MB"


@tried(
    "planted-columns",
    4,
    "pickles, foreign paths, huge numbers, wrong types, bombs, nesting and false lengths planted in every column of"
    " every table, with right checksums (plain, signed, encrypted, compressed)",
    "plants",
    share=2.0,
    bulk=21.5,
    parallel=True,
)
def plant_columns(place: Path, bench: Workbench) -> Tries:
    made = _settled(bench, [make(name, place) for name in SAMPLES])
    yield partial(try_item, {**_plain_values(), **_records()}), items(made)


def _settled(bench: Workbench, made: list[Sample]) -> list[Sample]:
    """Return samples when all is imported."""
    for module in ("pyarrow", "lz4.block", "zstandard", "numpy.lib.format"):
        with suppress(ImportError):
            importlib.import_module(module)
    bench.warm_up(made)
    return made


# -- the schema --------------------------------------------------------------------------------------------------------


def _rewritten(what: str) -> str:
    return f"UPDATE sqlite_master SET {what}"


def _added(kind: str, sql: str, root: int = 0) -> str:
    return f"INSERT INTO sqlite_master VALUES ('{kind}', 'evil', 'entry', {root}, '{sql}')"


EVIL = "load_extension(''/tmp/evil.so'')"
SCHEMAS: dict[str, tuple[str, ...]] = {
    **{name: (statement,) for name, statement in TAMPERED.items()},
    **{
        f"trigger {when} on {table}": (
            f"CREATE TRIGGER evil {when} ON {table} BEGIN SELECT load_extension('evil'); END",
        )
        for when in ("BEFORE INSERT", "AFTER UPDATE", "BEFORE DELETE")
        for table in ("entry", "totals", "trash", "setting")
    },
    **{
        f"view in place of {table}": (
            f"DROP TABLE {table}",
            f"CREATE VIEW {table} AS SELECT load_extension('evil') AS name, 1",
        )
        for table in ("entry", "totals", "trash", "setting")
    },
    **{
        f"virtual table in place of {table}": (f"DROP TABLE {table}", f"CREATE VIRTUAL TABLE {table} USING {module}")
        for table in ("entry", "setting")
        for module in ("fts5(name, value)", "fts4(name, value)", "rtree(id, a, b)")
    },
    "default": (_rewritten("sql = replace(sql, 'expire REAL', 'expire REAL DEFAULT (load_extension(''evil''))')"),),
    "check": (_rewritten("sql = replace(sql, 'v BLOB NOT NULL', 'v BLOB NOT NULL CHECK (load_extension(''evil''))')"),),
    "check of totals": (_rewritten("sql = replace(sql, 'CHECK (id = 1)', 'CHECK (load_extension(''evil''))')"),),
    "generated": (_rewritten("sql = replace(sql, 'tag BLOB', 'tag BLOB AS (load_extension(''evil''))')"),),
    "collation": (_rewritten("sql = replace(sql, 'name TEXT', 'name TEXT COLLATE evil')"),),
    "where of an index": (
        _rewritten("sql = replace(sql, 'WHERE tag IS', 'WHERE hex(tag) IS')"),
        "CREATE INDEX x ON entry(v)",
    ),
    "table on the page of another": (
        _rewritten("rootpage = (SELECT max(rootpage) FROM sqlite_master) WHERE name = 'entry'"),
    ),
    "table on the first page": (_rewritten("rootpage = 1 WHERE name = 'setting'"),),
    "table beyond the end": (_rewritten("rootpage = 99999 WHERE name = 'entry'"),),
    "negative page": (_rewritten("rootpage = -1 WHERE name = 'entry'"),),
    "huge schema": (_added("view", f"CREATE VIEW evil AS SELECT {'1,' * 400_000}1"),),
    "deep schema": (_added("view", f"CREATE VIEW evil AS SELECT {'(' * 5_000}1{')' * 5_000}"),),
    "no SQL": (_rewritten("sql = NULL WHERE name = 'entry'"),),
    "a number for SQL": (_rewritten("sql = 5 WHERE name = 'entry'"),),
    "SQL that is no text": (_rewritten("sql = CAST(x'ff80' AS TEXT) WHERE name = 'entry'"),),
    "a trigger that is a table": (_rewritten("type = 'table' WHERE name = 'entry_insert'"),),
    "names exchanged": (_rewritten("name = 'totals', tbl_name = 'totals' WHERE name = 'entry'"),),
    "attach": (_added("trigger", "CREATE TRIGGER evil AFTER INSERT ON entry BEGIN ATTACH ''/tmp/evil'' AS evil; END"),),
    "pragma function": (_added("view", f"CREATE VIEW evil AS SELECT {EVIL}, * FROM pragma_writable_schema"),),
    "two of a name": (_added("table", "CREATE TABLE entry (h)", 3),),
    **{f"setting {name} is {str(value)[:30]!r}": () for name, value in BAD_SETTINGS},
    **{
        f"{pragma} = {number}": (f"PRAGMA {pragma} = {number}",)
        for pragma in ("user_version", "application_id", "schema_version", "encoding", "journal_mode")
        for number in ("0", "-1", "2147483647", "'UTF-16le'", "'DELETE'", "'MEMORY'")
    },
}


def try_schema(trial: Trial, bench: Workbench, item: tuple[Sample, str]) -> None:
    """Plant it, and see that opening refuses it or nothing comes of it."""
    sample, name = item
    with bench.copy(sample) as directory:
        outside, around = _surround(directory)
        judge = Judge()
        with deadline():
            _tamper(directory, name)
            _use(trial, sample, directory, judge)
        assert not os.path.lexists(around.marker)
        _assert_well(trial, f"{name} in {sample.name}", judge, outside)


def _tamper(directory: Path, name: str) -> None:
    with database(directory) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in SCHEMAS[name]:
            with suppress(sqlite3.Error):  # where this SQLite has not got it
                connection.execute(statement)
        for setting, value in BAD_SETTINGS:
            if name == f"setting {setting} is {str(value)[:30]!r}":
                connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (setting, value))


@tried(
    "planted-schema",
    4,
    "triggers, views, virtual tables, expressions, false pages and settings planted in the schema",
    "schemas and settings",
)
def plant_schemas(place: Path, bench: Workbench) -> Tries:
    made = _settled(bench, [make(name, place) for name in ("plain", "sealed")])
    yield try_schema, [(sample, name) for sample in made for name in SCHEMAS]


# -- the control -------------------------------------------------------------------------------------------------------


@tried(
    "control-pickles",
    4,
    "planted pickles are believed",
    "plants",
    share=0.5,
    finds=r"AssertionError: (\[\"pickle\.find_class|.*: code was run)",
)
def believing_pickles(place: Path, bench: Workbench) -> Tries:
    made, load = _settled(bench, [make("plain", place)]), Disk.load

    def believe(disk: Disk, record: Record, read: bool, maps: bool = False, keeps: bool = False) -> Any:
        """Believe any pickle, as if its tag had been right."""
        return load(disk, record._replace(signed=True) if record.mode == MODE_PICKLE else record, read, maps, keeps)

    with mock.patch.object(Disk, "load", believe):
        planted = [item for item in items(made) if item.column == "v" and item.payload == f"mode {MODE_PICKLE}: pickle"]
        yield partial(try_item, _records()), planted
