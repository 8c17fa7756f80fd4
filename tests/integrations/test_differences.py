"""Where this package deliberately differs from DiskCache 5.6.3, as far as a line in docs/migrating.md cannot show it.

`test_migrating_page` runs those lines on both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DirectoryError, Disk, ValueEncodeError

from ..support.tampering import value_files

BIG = "x" * 50_000


def test_a_value_file_replaced_under_a_reader_is_no_miss(tmp_path: Path) -> None:
    class Racing(Disk):
        codec = Disk.codec
        before_load: Callable[[], object] | None = None

        def load(self, record: Any, read: bool, maps: bool = False, keeps: bool = False) -> Any:
            race, Racing.before_load = Racing.before_load, None
            if race is not None:
                race()
            return super().load(record, read, maps, keeps)

    def replace() -> None:
        other["key"] = "b" * 50_000
        assert other.check(fix=True) == []  # unlinks the file whose row the reader has

    with Cache(tmp_path, disk=Racing, hot_size_limit=0) as cache, Cache(tmp_path, disk=Racing) as other:
        cache["key"] = "a" * 50_000
        Racing.before_load = replace
        assert cache.get("key") == "b" * 50_000
        assert Racing.before_load is None


def test_a_failed_write_leaves_no_file(cache: Cache) -> None:
    cache.reset("disk_min_file_size", 1000)
    with pytest.raises(ValueEncodeError):
        cache.set("key", [BIG, lambda: None])
    with pytest.raises(TypeError):
        cache.set("key", BIG, tag=lambda: None)
    cache._shards.stores[0].connection.open().execute("PRAGMA query_only = ON")
    for write in (
        lambda: cache.set("key", BIG),
        lambda: cache.add("key", BIG),
        lambda: cache.incr("key", 10**4000),
        lambda: cache.push(BIG),
        lambda: cache.set_many({1: BIG, 2: BIG}),
    ):
        with pytest.raises(DirectoryError):
            write()
    assert value_files(Path(cache.directory)) == []
    cache.close()


@pytest.mark.parametrize("setting", ["least-recently-used", "least-frequently-used", "statistics"])
def test_a_read_writes_nothing_to_the_disk(tmp_path: Path, setting: str) -> None:
    settings = {"statistics": 1} if setting == "statistics" else {"eviction_policy": setting}
    with Cache(tmp_path, **settings) as cache:
        cache["key"] = cache["other"] = 1
        cache.flush()
        written = (tmp_path / "cache.db-wal").stat().st_size
        with Cache(tmp_path, timeout=0, **settings) as other, cache.transact():  # nor does it need the lock
            for _ in range(20):
                assert (cache["key"], other["key"], other.get("missing")) == (1, 1, None)
        assert (tmp_path / "cache.db-wal").stat().st_size == written


def test_the_pickle_protocol_plays_no_part_in_keys(tmp_path: Path) -> None:
    with Cache(tmp_path, disk_pickle_protocol=2) as cache:
        cache[1, "a"] = "value"
    with Cache(tmp_path, disk_pickle_protocol=5) as cache:
        assert cache[1, "a"] == "value"
