"""What an attacker, a bad disk or a careless program does to a cache directory, and how to see what came of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import sqlite3
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache
from diskcache_like.crypto.signing import Signer
from diskcache_like.encoding.record import MODE_PICKLE, Metadata, Record, pack
from diskcache_like.errors import CacheError

Snapshot = dict[str, tuple[object, ...]]


def snapshot(directory: Path) -> Snapshot:
    """Return name, kind, mode, owner, time of change and content of everything in a directory, and of itself."""
    found: Snapshot = {}
    for path in (directory, *directory.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


def value_files(directory: Path) -> list[Path]:
    """Return the value files below a directory."""
    return sorted(directory.rglob("*.val"))


@contextlib.contextmanager
def database(directory: Path, name: str = "cache.db") -> Iterator[sqlite3.Connection]:
    """Open the database of a closed cache as a program of somebody else's does.

    The write buffer goes: readers would find whole records there of what is changed.
    """
    (directory / "cache.buffer").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(directory / name, isolation_level=None)) as connection:
        yield connection


def plant(directory: Path, statement: str, *parameters: object) -> None:
    """Run a statement in the database of a closed cache."""
    with database(directory) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, parameters)


def rewrite_schema(directory: Path, statement: str) -> None:
    """Run a statement on sqlite_master, which only somebody who is up to something does."""
    with database(directory) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)


def stored_of(cache: Cache, key: object) -> bytes:
    """Return the bytes under which the database holds a key."""
    return cache.disk.stored_key(key)


TREES = (
    "entry",
    "entry_place",
    "entry_expire",
    "entry_queue",
    "entry_file",
    "tagged",
    "trash",
    "setting",
    "totals",
)
INDEX_LEAF, TABLE_LEAF = 10, 13  # the first byte of such a page


def make_endless(directory: Path, tree: str) -> None:
    """Put pages above the last leaf of a table or an index that all lead to one page, hundreds of times.

    They are sound to SQLite, and have more rows than could be read in a lifetime.
    """
    path = directory / "cache.db"
    with database(directory) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        roots = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchall()
    content = bytearray(path.read_bytes())
    assert roots or tree == "sqlite_schema", f"there is no {tree}"
    number, head = (roots[0][0], 0) if roots else (1, 100)
    while content[(number - 1) * size + head] in (2, 5):
        (number,) = struct.unpack_from(">I", content, (number - 1) * size + head + 8)
        head = 0
    place = slice((number - 1) * size, number * size)
    page = bytes(content[place])
    kind, _, cells = struct.unpack_from(">BHH", page, head)
    assert cells, f"{tree} is empty"
    leaf = page[head : head + 8 + 2 * cells].ljust(head + 8 + 2 * cells, b"\0") + page[head + 8 + 2 * cells :]
    levels = [
        leaf,
        *(_fork(b"", len(content) // size + 1 + n, _last_key(page, head), kind - 8, size) for n in range(7)),
    ]
    top = _fork(page[:head], len(content) // size + len(levels), _last_key(page, head), kind - 8, size)
    content[place] = top
    content += b"".join(levels)
    content[28:32] = (len(content) // size).to_bytes(4, "big")
    path.write_bytes(content)
    for name in ("cache.gen", "cache.buffer"):
        (directory / name).unlink(missing_ok=True)


def _last_key(page: bytes, head: int) -> bytes:
    """Return what a page above a leaf would have of its last row: the number, or for an index all of it."""
    kind, _, cells = struct.unpack_from(">BHH", page, head)
    (begin,) = struct.unpack_from(">H", page, head + 8 + 2 * (cells - 1))
    if kind == INDEX_LEAF:
        return page[begin : begin + 1 + page[begin]]
    begin += _varint(page, begin)
    return page[begin : begin + _varint(page, begin)]


def _varint(page: bytes, at: int) -> int:
    """Return the length of the number that begins there."""
    return next(length for length in range(1, 10) if length == 9 or page[at + length - 1] < 0x80)


def _fork(head: bytes, child: int, key: bytes, kind: int, size: int) -> bytes:
    """Return a page whose cells, of one key, all lead to one child; `head` comes before it."""
    page, place, cells = bytearray(size), size - 4 - len(key), 300
    begin = len(head)
    page[:begin] = head
    page[begin : begin + 12] = struct.pack(">BHHHBI", kind, 0, cells, place, 0, child)
    page[begin + 12 : begin + 12 + 2 * cells] = struct.pack(">H", place) * cells
    page[place:] = child.to_bytes(4, "big") + key
    return bytes(page)


class Bomb:
    """An object whose pickle makes a directory when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def bomb(marker: Path) -> bytes:
    """Return a pickle that makes the directory `marker` when it is loaded."""
    return pickle.dumps(Bomb(marker))


def forged(
    stored: bytes, payload: bytes, signer: Signer | None = None, mode: int = MODE_PICKLE, **fields: Any
) -> bytes:
    """Return a record that is consistent in itself: with the right checksum, or a tag of the forger's own secret."""
    told = {name: fields.pop(name) for name in Metadata._fields if name in fields}
    return pack(stored, Record(mode, payload, Metadata(**told), **fields), signer)


# -- damage to a file -----------------------------------------------------------------------------------------------


def _random_header(data: bytes) -> bytes:
    return random.Random(1).randbytes(100) + data[100:]


def _random_pages(data: bytes) -> bytes:
    return data[:4096] + random.Random(2).randbytes(len(data) - 4096)


def _claims(data: bytes) -> bytes:
    """Have each row claim to be longer than SQLite takes any."""
    size = int.from_bytes(data[16:18], "big")
    shortest = (size - 12) * 32 // 255 - 23  # of what a page keeps of a row that goes on elsewhere
    length = shortest + 2_000_000_000 // (size - 4) * (size - 4)
    content = length - 6
    claim, column = _as_varint(length), b"\6" + _as_varint(12 + 2 * content)
    rows = {INDEX_LEAF: claim + column, TABLE_LEAF: claim + b"\1" + column}
    pages = [bytearray(data[begin : begin + size]) for begin in range(0, len(data), size)]
    for page in pages[1:]:
        row = rows.get(page[0])
        if row is not None:
            begin = size - shortest - 16
            cells = int.from_bytes(page[3:5], "big")
            page[8 : 8 + 2 * cells] = begin.to_bytes(2, "big") * cells
            page[begin : begin + len(row)] = row
    return b"".join(pages)


def _as_varint(number: int) -> bytes:
    """Return a number as SQLite writes it, seven bits a byte, the highest first."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F | 0x80)
    return bytes(reversed(groups))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "header": _random_header,
    "everything": lambda data: random.Random(3).randbytes(len(data)),
    "pages": _random_pages,
    "zeroed pages": lambda data: data[:4096] + bytes(len(data) - 4096),
    "cut to nothing": lambda _: b"",
    "cut in the header": lambda data: data[:100],
    "cut to one page": lambda data: data[:4096],
    "claims of length": _claims,
    "cut in a page": lambda data: data[: len(data) // 2 // 4096 * 4096 + 77],
}


def damage(path: Path, how: str) -> None:
    """Damage a file in place, as everybody who has it open will see."""
    data = DAMAGE[how](path.read_bytes())
    with path.open("r+b") as file:
        file.write(data)
        file.truncate(len(data))


# -- every operation there is ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """An operation of a cache, as a test runs it."""

    name: str
    run: Callable[[Cache], object]


def _drain(found: Sequence[Any]) -> int:
    for reader in found:
        if hasattr(reader, "close"):
            reader.close()
    return len(found)


NAMES = ("a", "b", "file", "tagged", "number")

STEPS = (
    Step("get", lambda cache: [cache.get(key) for key in NAMES]),
    Step("get with metadata", lambda cache: [cache.get(key, expire_time=True, tag=True) for key in NAMES]),
    Step("read", lambda cache: _drain([cache.get(key, read=True) for key in NAMES])),
    Step("contains", lambda cache: [key in cache for key in NAMES]),
    Step("get_entry", lambda cache: [cache.get_entry(key) for key in NAMES]),
    Step("get_many", lambda cache: cache.get_many(NAMES)),
    Step("iteration", list),
    Step("reversed", lambda cache: list(reversed(cache))),
    Step("iterkeys", lambda cache: list(cache.iterkeys())),
    Step("len", len),
    Step("peekitem", lambda cache: (cache.peekitem(), cache.peekitem(last=False))),
    Step("peek", lambda cache: (cache.peek(), cache.peek(prefix="p"))),
    Step("check", lambda cache: cache.check()),
    Step("volume", lambda cache: cache.volume()),
    Step("stats", lambda cache: cache.stats()),
    Step("touch", lambda cache: cache.touch("tagged", 1e5)),
    Step("add", lambda cache: cache.add("a", "added")),
    Step("incr", lambda cache: cache.incr("number")),
    Step("push", lambda cache: (cache.push("pushed"), cache.push("pushed", prefix="p"))),
    Step("pull", lambda cache: (cache.pull(), cache.pull(prefix="p"), cache.pull(side="back"))),
    Step("set", lambda cache: [cache.set(key, "set") for key in ("a", "file", "new")]),
    Step("set_many", lambda cache: cache.set_many({"b": "set", "tagged": "set"})),
    Step("pop", lambda cache: cache.pop("b")),
    Step("delete", lambda cache: cache.delete("a")),
    Step("delete_many", lambda cache: cache.delete_many(["a", "new"])),
    Step("expire", lambda cache: cache.expire()),
    Step("cull", lambda cache: cache.cull()),
    Step("evict", lambda cache: cache.evict("tag")),
    Step("tag index", lambda cache: (cache.create_tag_index(), cache.drop_tag_index())),  # type: ignore[func-returns-value]
    Step("reset", lambda cache: cache.reset("eviction_policy", "least-recently-used")),
    Step("eviction", lambda cache: (cache.reset("size_limit", 30_000), cache.set("c", "x" * 20_000), cache.cull())),
    Step("other eviction", lambda cache: (cache.reset("eviction_policy", "least-frequently-used"), cache.cull())),
    Step("no eviction", lambda cache: cache.reset("size_limit", 1 << 30)),
    Step("check that mends", lambda cache: cache.check(fix=True)),
    Step("clear", lambda cache: cache.clear()),
)


ENTRIES = 109


def fill(cache: Cache) -> None:
    """Store `ENTRIES` entries, some of every sort, for `STEPS` to meet."""
    cache["a"] = "text"
    cache["b"] = {"some": ["nested", "data"]}
    cache["file"] = b"x" * 50_000
    cache.set("tagged", 1.5, expire=1e6, tag="tag")
    cache["number"] = 1
    cache["replaced"] = b"y" * 50_000
    cache["replaced"] = "by text"
    cache[1.0] = "a key with a spelling"
    cache.push("item")
    cache.push("item", prefix="p")
    for number in range(100):
        cache[number + 10] = f"{number} " * 20


def run_steps(cache: Cache) -> list[str]:
    """Run every operation and return what went wrong otherwise than by an error of the package."""
    wrong = []
    for step in STEPS:
        try:
            step.run(cache)
        except (CacheError, KeyError):
            continue
        except Exception as error:
            wrong.append(f"{step.name}: {error!r}")
    return wrong


__all__ = [
    "DAMAGE",
    "ENTRIES",
    "INDEX_LEAF",
    "NAMES",
    "STEPS",
    "TABLE_LEAF",
    "TREES",
    "Bomb",
    "Snapshot",
    "Step",
    "bomb",
    "damage",
    "database",
    "fill",
    "forged",
    "make_endless",
    "plant",
    "rewrite_schema",
    "run_steps",
    "snapshot",
    "stored_of",
    "value_files",
]
