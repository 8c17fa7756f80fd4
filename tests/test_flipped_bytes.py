"""Bad disks: with any one byte of the database changed, a key reads as its value or as missing, never as another."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.errors import CacheError

from .processes import Crew, Link

PAGE = 4096
VALUES: dict[Any, Any] = {
    **{f"key {number}": f"value {number} " * 3 for number in range(20)},
    "number": 12345.5,
    "nested": {"a": [1, 2, {"b": None}]},
    ("a", 1): b"bytes" * 20,
    "large": "x" * 40_000,
}
METADATA = {"dated": (1.5, 4e9, None), "tagged": ("value", None, "tag")}


def make(directory: Path, **options: Any) -> bytes:
    """Make and close a small cache; return the bytes of its database."""
    with closing(Cache(directory, durability="process", generation_slots=16, **options)) as cache:
        cache.set_many(VALUES)
        cache.set("dated", 1.5, expire=4e9 - cache._clock())
        cache.set("tagged", "value", tag="tag")
        cache.push("item", prefix="p")
    return (directory / "cache.db").read_bytes()


def look(directory: Path, options: dict[str, Any]) -> tuple[str, object]:
    """Open the cache and read everything in it; return what came of it, and what is wrong."""
    with closing(Cache(directory, **options)) as cache:
        found = cache.get_many(VALUES)
        wrong = [(key, value) for key, value in found.items() if value != VALUES[key]]
        for key, whole in METADATA.items():
            value = cache.get(key, expire_time=True, tag=True)
            if value not in (whole, (None, None, None)):
                wrong.append((key, value))
        keys = set(cache)
        wrong += [("key", key) for key in keys if key not in VALUES and key not in METADATA and "p-" not in str(key)]
        item = cache.peek(prefix="p")[1]
        wrong += [] if item in ("item", None) else [("item", item)]
        return ("all there" if len(found) == len(VALUES) else "some missing"), wrong


def flip(link: Link, directory: Path, offsets: list[int], options: dict[str, Any]) -> tuple[Counter[str], list[object]]:
    """Change each byte in turn and look; return how often what came of it, and what was wrong."""
    original = make(directory, **options)
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
        outcomes[outcome] += 1
        if found:
            wrong.append((offset, changed[offset], found))
    return outcomes, wrong


def whole_pages(content: bytes) -> Iterable[int]:
    """Return the offsets of the header and of a page with entries, all of them."""
    page = content.index(b"value 7 value 7") // PAGE
    return [*range(100), *range(page * PAGE, (page + 1) * PAGE)]


@pytest.mark.parametrize("options", [{}, {"secret": "a secret for tests"}], ids=["checksum", "secret"])
def test_no_changed_byte_gives_a_wrong_value(tmp_path: Path, options: dict[str, Any]) -> None:
    content = make(tmp_path / "sample", **options)
    sampled = random.Random(7).sample(range(len(content)), 500)
    chosen = [*whole_pages(content), *sampled] if not options else sampled
    with Crew() as crew:
        workers = [crew.start(quiet_flip, tmp_path / str(number), chosen[number::2], options) for number in range(2)]
        results = crew.results(workers)
    outcomes: Counter[str] = sum((counted for counted, _ in results), Counter())
    assert [wrong for _, found in results for wrong in found] == []
    assert outcomes.total() == len(chosen)
    assert outcomes["all there"] > 50  # free space, mostly
    assert outcomes["some missing"] > 50
    assert set(outcomes) <= {
        "all there",
        "some missing",
        "ForeignDatabase",
        "NewerFormat",
        "SettingError",
        "SecretError",
    }


def quiet_flip(link: Link, directory: Path, offsets: list[int], options: dict[str, Any]) -> object:
    """Do `flip` without the warnings that it gives a thousand times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flip(link, directory, offsets, options)
