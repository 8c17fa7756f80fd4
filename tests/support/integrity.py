"""Whether a cache is whole: nothing wrong that `check` cannot mend, and no value file that nobody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diskcache_like import Cache, EmptyDirWarning, FanoutCache, UnknownFileWarning
from diskcache_like.encoding import file_names
from diskcache_like.system import paths

SECRET = "a secret of those who die"
SMALL = {"durability": "process", "generation_slots": 16, "write_buffer": 0}
FLAVOURS: dict[str, dict[str, Any]] = {
    "one": {},
    "fanout": {"shards": 2},
    "sealed": {"secret": SECRET, "encrypt": True, "write_buffer": 1 << 14},
    "sealed fanout": {"shards": 2, "secret": SECRET, "encrypt": True},
    "packed": {"compressor": "zlib"},
    "buffered": {"write_buffer": 1 << 14},
}


def opened(directory: Path, kind: str = "one", **settings: Any) -> Cache:
    """Open a cache of one of the `FLAVOURS`."""
    given = {"timeout": 5, **SMALL, **FLAVOURS[kind], **settings}
    return FanoutCache(directory, **given) if "shards" in given else Cache(directory, **given)


def value_files(directory: Path) -> set[str]:
    """Return every value file in the directory, as names relative to their shard."""
    return {name for name in paths.files_below(str(directory)) if name.endswith(file_names.SUFFIX)}


def known_files(cache: Cache) -> set[str]:
    """Return every value file that a row or the trash knows."""
    found = set()
    for store in cache._shards.stores:
        prefix = "" if store.directory == cache.directory else f"{Path(store.directory).name}/"
        for (column,) in store.select("SELECT file FROM entry WHERE file IS NOT NULL UNION SELECT file FROM trash"):
            found.add(prefix + file_names.from_column(column))
    return found


def mend(cache: Cache) -> None:
    """Check and fix; nothing but leftover files may be wrong, and nothing may be afterwards."""
    for problem in cache.check(fix=True):
        assert problem.category in (UnknownFileWarning, EmptyDirWarning), problem.message
    assert [str(problem.message) for problem in cache.check()] == []
    assert value_files(Path(cache.directory)) == known_files(cache)
    assert len(cache) == len(list(cache))


__all__ = ["FLAVOURS", "SECRET", "SMALL", "known_files", "mend", "opened", "value_files"]
