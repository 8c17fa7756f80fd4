"""Bad disks: with any one byte of the database changed, a key reads as its value or as missing, never as another."""

from __future__ import annotations

import random
import sqlite3
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.errors import CacheError
from diskcache_like.storage.sqlite import connection

from ..support.workers import Crew, Link

PAGE = 512  # bytes; smaller than what a cache uses, so that whole pages can be tried
NOW = 1_700_000_000.0
PARTS = 2  # processes
# Errors of opening; the second where a byte of the header tells SQLite that it may only read.
CLEAN = {
    "ForeignDatabase",
    "DirectoryError",
    "NewerFormat",
    "OlderFormat",
    "SettingError",
    "SecretError",
    "StorageError",
}
VALUES: dict[Any, Any] = {
    **{f"key {number}": f"value {number} " * 3 for number in range(20)},
    "number": 12345.5,
    "nested": {"a": [1, 2, {"b": None}]},
    ("a", 1): b"bytes" * 20,
    "large": "x" * 40_000,
}
METADATA = {
    "dated": (1.5, 4e9, None),
    "tagged": ("value", None, "tag"),
    "several": ("value", None, ("one", "other", "tag")),
}
TAGS = {"tag": {"tagged", "several"}, "one": {"several"}, "other": {"several"}}  # with the keys that have them


def clock() -> float:
    """Tell a time that does not pass."""
    return NOW


def make(directory: Path, options: dict[str, Any]) -> bytes:
    """Make and close a small cache with small pages; return the bytes of its database."""
    connection.PAGE_SIZE = PAGE  # in this process, which does nothing else
    with closing(Cache(directory, durability="process", generation_slots=16, clock=clock, **options)) as cache:
        cache.set_many(VALUES)
        cache.set("dated", 1.5, expire=4e9 - NOW)
        cache.set("tagged", "value", tag="tag")
        cache.set("several", "value", tags=["tag", "one", "other"])
        cache.push("item", prefix="p")
    return (directory / "cache.db").read_bytes()


def look(directory: Path, options: dict[str, Any]) -> tuple[str, object]:
    """Open the cache and read everything in it; return what came of it, and what is wrong."""
    with closing(Cache(directory, clock=clock, **options)) as cache:
        found = cache.get_many(VALUES)
        wrong = [(key, value) for key, value in found.items() if value != VALUES[key]]
        for key, whole in METADATA.items():
            value = cache.get(key, expire_time=True, tag=True)
            if value not in (whole, (None, None, None)):
                wrong.append((key, value))
        wrong += [(tag, key) for tag, tagged in TAGS.items() for key in cache.keys(tags=[tag]) if key not in tagged]
        wrong += [("tag", usage.name) for usage in cache.tags() if usage.name not in TAGS]
        keys = set(cache)
        wrong += [("key", key) for key in keys if key not in VALUES and key not in METADATA and "p-" not in str(key)]
        item = cache.peek(prefix="p")[1]
        wrong += [] if item in ("item", None) else [("item", item)]
        return ("all there" if len(found) == len(VALUES) else "some missing"), wrong


def flip(directory: Path, part: int, options: dict[str, Any]) -> tuple[Counter[str], list[object]]:
    """Change bytes one at a time and look; return how often what came of it, and what was wrong."""
    original = make(directory, options)
    offsets = list(chosen(original))[part::PARTS]
    kept = {name: (directory / name).read_bytes() for name in ("cache.db", "cache.gen")}
    kept |= {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.val")}
    outcomes: Counter[str] = Counter()
    wrong: list[object] = []
    chance = random.Random(len(offsets))
    for offset in offsets:
        changed = bytearray(original)
        changed[offset] ^= 1 << chance.randrange(8) if chance.random() < 0.8 else 0xFF
        for path in directory.rglob("*"):
            if path.is_file() and str(path.relative_to(directory)) not in kept:
                path.unlink()
        (directory / "cache.db").write_bytes(changed)
        (directory / "cache.gen").write_bytes(kept["cache.gen"])
        try:
            outcome, found = look(directory, options)
        except CacheError as error:
            outcome, found = type(error).__name__, []
            if outcome not in CLEAN:
                found = [repr(error)]
        outcomes[outcome] += 1
        if found:
            wrong.append((offset, changed[offset], found))
    return outcomes, wrong


def chosen(content: bytes) -> Iterable[int]:
    """Return the offsets to try: the header, pages with entries, their parents and tags whole, and some of all others."""
    assert len(content) % PAGE == 0
    leaves = {content.index(text) // PAGE for text in (b"value 7 value 7", b"value 15 value 15")}
    parents = {page for page in range(1, len(content) // PAGE) if content[page * PAGE] == 5}  # of a table's pages
    offsets = set(range(100)) | {
        page * PAGE + byte for page in leaves | parents | of_tags(content) for byte in range(PAGE)
    }
    return sorted(offsets | set(random.Random(7).sample(range(len(content)), 600)))


def of_tags(content: bytes) -> set[int]:
    """Return the pages of the index of tags, which is small."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(content[:18] + b"\x01\x01" + content[20:])  # without a WAL
        return {
            page - 1 for (page,) in database.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'tagged'")
        }


@pytest.mark.parametrize("options", [{}, {"secret": "a secret for tests"}], ids=["checksum", "secret"])
def test_no_changed_byte_gives_a_wrong_value(tmp_path: Path, options: dict[str, Any]) -> None:
    with Crew() as crew:
        workers = [crew.start(quiet_flip, tmp_path / str(part), part, options) for part in range(PARTS)]
        results = crew.results(workers)
    outcomes: Counter[str] = sum((counted for counted, _ in results), Counter())
    assert [wrong for _, found in results for wrong in found] == []
    assert outcomes["all there"] > 50  # free space, mostly
    assert outcomes["some missing"] > 50
    assert set(outcomes) - {"all there", "some missing"} <= CLEAN


def quiet_flip(_: Link, directory: Path, part: int, options: dict[str, Any]) -> object:
    """Do `flip` without the warnings that it gives a thousand times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flip(directory, part, options)
