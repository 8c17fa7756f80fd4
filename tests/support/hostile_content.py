"""What an attacker puts into the schema, the settings, the columns and the payloads of a cache."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import lz4.block
import zstandard

from .tampering import bomb, forged

MB = 1 << 20

# -- the schema -------------------------------------------------------------------------------------------------------

TAMPERED = {
    "trigger": "CREATE TRIGGER evil AFTER INSERT ON entry BEGIN DELETE FROM entry; END",
    "trigger on settings": "CREATE TRIGGER evil BEFORE UPDATE ON setting BEGIN DELETE FROM entry; END",
    "view": "CREATE VIEW evil AS SELECT * FROM entry",
    "table": "CREATE TABLE evil (a)",
    "virtual table": "CREATE VIRTUAL TABLE evil USING fts5(a)",
    "index": "CREATE INDEX evil ON entry (v)",
    "index on an expression": "CREATE INDEX evil ON entry (hex(v))",
    "unique index": "CREATE UNIQUE INDEX evil ON entry (num)",
    "column": "ALTER TABLE entry ADD COLUMN evil TEXT",
    "generated column": "ALTER TABLE entry ADD COLUMN evil AS (hex(v))",
    "another table": "ALTER TABLE totals RENAME TO other",
}

# -- settings ---------------------------------------------------------------------------------------------------------

BAD_SETTINGS: list[tuple[str, object]] = [
    ("size_limit", "x"),
    ("size_limit", -1),
    ("size_limit", 1.5),
    ("size_limit", None),
    ("size_limit", b"\x80"),
    ("cull_limit", "10; DROP TABLE entry"),
    ("eviction_policy", "random"),
    ("statistics", 7),
    ("durability", "x"),
    ("sqlite_journal_mode", "off"),
    ("sqlite_journal_mode", "wal; DROP TABLE entry"),
    ("sqlite_synchronous", 3),
    ("sqlite_cache_size", 1 << 40),
    ("disk_min_file_size", -5),
    ("disk_pickle_protocol", 200),
    ("disk_evil", 1),
    ("disk_pickle_policy", "trusted"),
    ("disk_secret", None),
    ("disk_fetch", "x"),
    ("disk__directory", "/etc"),
    ("no_such_setting", 1),
    ("", 1),
    ("modulus", 0),
    ("modulus", 1),
    ("modulus", -5),
    ("modulus", 1 << 62),
    ("modulus", "x"),
    ("modulus", 1.5),
    ("shards", 0),
    ("shards", -1),
    ("shards", 10**9),
    ("shards", "8"),
    ("displaced", -1),
    ("displaced", 1 << 62),
    ("codec", 5),
    ("codec", b"msgpack"),
    ("key_check", "x"),
]

# -- columns and file names ------------------------------------------------------------------------------------------

COLUMNS = {
    "entry": (
        "k",
        "h",
        "version",
        "expire",
        "fresh",
        "tags",
        "size",
        "file",
        "spelling",
        "queue",
        "num",
        "v",
    ),
    "totals": ("files",),
    "trash": ("file", "size", "at"),
    "tagged": ("tag", "place"),
}
PLACES = [(table, column) for table, columns in COLUMNS.items() for column in columns]


def values(marker: Path) -> list[object]:
    """Return values of every type that SQLite has, and what decoders may stumble over."""
    return [
        bomb(marker),
        b"\x01" + bomb(marker),
        forged(b"k", bomb(marker)),
        b"",
        b"\x00",
        b"\x01",
        b"\x02" + bytes(40),
        "",
        "../../marker",
        str(marker),
        "cache.db",
        "NULL",
        5,
        0,
        -1,
        2**62,
        2**63 - 1,
        -(2**63),
        1.5,
        math.inf,
        -math.inf,
    ]


NAMES = [
    "../outside",
    "../../outside",
    "a/../../outside",
    "/etc/passwd",
    "//etc/passwd",
    "./cache.db",
    "cache.db",
    "CACHE.DB",
    "cache.db-wal",
    "cache.gen",
    "cache.lock",
    "cache.buffer",
    "cache.1.db",
    "sub/cache.db",
    "",
    ".",
    "..",
    "/",
    "a//b",
    "a/",
    "~/x",
    "nul\0byte",
    "back\\..\\slash",
    "line\nbreak",
    "long" * 2000,
    "d/" * 50 + "deep",
    "link/outside",
    "link",
    "fifo",
    "dir",
]

# -- payloads ---------------------------------------------------------------------------------------------------------


def zlib_bomb(size: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join([stream.compress(bytes(MB)) for _ in range(size // MB)]) + stream.flush()


def zstd_bomb(size: int, states_size: bool = True) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        19, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=states_size
    )
    frame: bytes = zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(size))
    return frame


def lz4_bomb(size: int) -> bytes:
    block: bytes = lz4.block.compress(bytes(size), store_size=False)
    return size.to_bytes(4, "little") + block


NESTED = {
    "arrays": b"\x91" * 100_000 + b"\xc0",
    "maps": b"\x81\xa1a" * 100_000 + b"\xc0",
    "keys": b"\x81" * 100_000 + b"\xc0" * 100_001,
    "tuples": b"\x92\xc7\x00\x01" * 50_000 + b"\xc0",
    "objects": (b"\x93\xc7\x00\x06\xd9\x22tests.support.sample_objects.Point\x82\xa1x\xc0\xa1y") * 5_000 + b"\xc0",
}
CLAIMS = {
    "array32": b"\xdd\xff\xff\xff\xff",
    "map32": b"\xdf\xff\xff\xff\xff",
    "str32": b"\xdb\xff\xff\xff\xffabc",
    "bin32": b"\xc6\xff\xff\xff\xffabc",
    "ext32": b"\xc9\xff\xff\xff\xff\x10abc",
    "arrays in arrays": b"\xdd\x00\x10\x00\x00" * 300,
    "array in an object": b"\x93\xc7\x00\x06\xd9\x22tests.support.sample_objects.Point\xdd\x7f\xff\xff\xff",
}
UNKNOWN = [
    head + b"\xc7" + bytes((len(data), code & 0xFF)) + data
    for code in (0, 15, 99, 127, -1, -2, -128)
    for data in (b"", b"x", bytes(200))
    for head in (b"", b"\x91")
]


def npy(descr: str, shape: str = "(1,)", data: bytes = bytes(8), fortran: str = "False", version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes((version, 0)) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + data


HOSTILE_ARRAYS = {
    "objects": npy("'|O'"), "objects by another name": npy("'O'"), "objects in a structure": npy("[('a', '|O')]"),
    "objects in an array": npy("('|O', (1,))"), "a pickle": b"\x80\x05" + bomb(Path("unused")), "a name": npy("'object'"),
    "too few bytes": npy("'<f8'", "(2,)"), "too many bytes": npy("'<f8'", "()", bytes(16)), "huge": npy("'<f8'", "(9999999999999999999,)"),
    "huge product": npy("'<f8'", "(4294967296, 4294967296)"), "product of 2**64": npy("'|u1'", "(4294967296, 4294967296, 1)", b""),
    "negative": npy("'<f8'", "(-1,)"), "an expression": npy("'<f8'", "(10**10,)"), "a call": npy("__import__('os').getpid()"),
    "no width": npy("'|V0'", "(99999999,)", b""), "text of no width": npy("'<U0'", "(99999999,)", b""), "empty structure": npy("[]", "(99999999,)", b""),
    "wide": npy("'|V999999999'"), "wider": npy("'|V99999999999'"), "deep": npy("[('a', " * 40 + "'<f8'" + ")]" * 40), "deeper": npy("(" * 4000),
    "minus": npy("-" * 9000 + "1"), "array of arrays": npy("('<f8', (99999, 99999, 99999))"), "unknown version": npy("'<f8'", version=4),
    "dates of a strange unit": npy("'<M8[parsec]'"), "dates of no number": npy("'<M8[0s]'"), "a number for a type": npy("5"), "null": npy("None"), "too many dimensions": npy("'<f8'", "(" + "1, " * 65 + ")"),
    "long header": b"\x93NUMPY\x02\0" + (1 << 31).to_bytes(4, "little") + b"x", "nothing": b"", "half a magic": b"\x93NUM", "not UTF-8": npy("'<f8'", version=3).replace(b"descr", b"\xff\xfe\xff\xff\xff"),
    "no such character": npy("'<U2'", "(1,)", b"\xff\xff\xff\xff" * 2), "same field twice": npy("[('a', '<f4'), ('a', '<f4')]"), "name is a number": npy("[(1, '<f8')]"),
    "digits without end": npy("'<f8'", "(" + "2" * 600), "many digits": npy("'<f8'", "(" + "2" * 600 + ")"), "digits and blanks": npy("'<f8'", "(" + "2 " * 600 + "x)"),
    "aligned as it cannot be": npy("[('', '|V0'), ('a', '|i1'), ('b', '<f8')]", data=bytes(9)), "aligned without fields": npy("[('', '|V0')]"), "a character": npy("'<l'"), "objects by their character": npy("'<O'"),
}  # fmt: skip
