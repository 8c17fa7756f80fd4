"""Arrays and tables read on a mapping of their file: at once, read-only, and whatever becomes of the entry."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.disk.columnar import arrow
from diskcache_like.errors import DecodeError, SettingError

from ..support.cache_kinds import QUICK
from ..support.sample_arrays import assert_same
from ..support.tampering import value_files

ARRAY = np.arange(100_000.0)
FRAME = pd.DataFrame({"a": np.arange(50_000), "b": np.ones(50_000), "c": ["x"] * 50_000})
TABLE = pa.table({"a": range(50_000), "b": np.ones(50_000)})
TEXTS = pa.table({"a": ["text"] * 50_000})
POLARS = pl.DataFrame({"a": range(50_000)})
VALUES = [ARRAY, FRAME, TABLE, TEXTS, POLARS, POLARS["a"], FRAME["b"]]


def mappings(directory: Path) -> int:
    """Return how many mappings of value files of the cache this process has."""
    with open("/proc/self/maps") as file:
        return sum(str(directory) in line and ".val" in line for line in file)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__module__}.{type(value).__name__}")
@pytest.mark.parametrize("options", [{}, {"hot_size_limit": 0}, {"secret": "s" * 16}], ids=["hot", "cold", "secret"])
def test_a_value_is_the_same_on_its_file(tmp_path: Path, value: Any, options: dict[str, Any]) -> None:
    with Cache(tmp_path, **QUICK, **options) as cache:
        cache["key"] = value
        cache["key"]
        found = cache.get("key", mmap=True)
        assert mappings(tmp_path) == 1
        assert_same(value, found)
        del found
        gc.collect()
        assert mappings(tmp_path) == 0
        assert_same(value, cache["key"])
        assert mappings(tmp_path) == 0


def test_a_mapped_value_is_read_only(tmp_path: Path) -> None:
    with Cache(tmp_path, mmap=True, **QUICK) as cache:
        cache["array"], cache["frame"], cache["table"] = ARRAY, FRAME, TABLE
        array = cache["array"]
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        numbers = cache["frame"]["b"].to_numpy()
        assert not numbers.flags.writeable
        table = cache["table"]
        assert not table.column("b").chunk(0).buffers()[1].is_mutable
        assert not table.column("b").chunk(0).to_numpy().flags.writeable
        assert_same(ARRAY, cache.get("array"))


def test_the_file_is_not_read(tmp_path: Path) -> None:
    """Only the header is looked at, so that the time does not depend on the size."""
    size = 32 << 20
    with Cache(tmp_path, size_limit=1 << 40, **QUICK) as cache:
        cache["key"] = np.broadcast_to(np.zeros((), "u1"), (size,))
        cache["table"] = pa.table({"a": np.zeros(size // 8)})
        dropped = [os.open(file, os.O_RDONLY) for file in value_files(tmp_path)]
        try:
            for descriptor in dropped:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            for descriptor in dropped:
                os.close(descriptor)
        before = bytes_read()
        array, table = cache.get("key", mmap=True), cache.get("table", mmap=True)
        assert array.shape == (size,)
        assert table.num_rows == size // 8
        assert bytes_read() - before < size // 16
        assert resident(tmp_path) < size // 16
        cache.get("key")
        assert bytes_read() - before >= size // 2


def bytes_read() -> int:
    """Return the bytes that this process has read by calls: a mapping reads none, and the kernel may read ahead."""
    with open("/proc/self/io") as file:
        counts = dict(line.split(": ") for line in file.read().splitlines())
    return int(counts["rchar"])


def resident(directory: Path) -> int:
    """Return the bytes of mapped value files that are in the memory of this process."""
    counted, total = False, 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if "-" in line.split(" ")[0]:
                counted = str(directory) in line and ".val" in line
            elif counted and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
    return total


@pytest.mark.parametrize("value", VALUES[:4], ids=lambda value: f"{type(value).__module__}.{type(value).__name__}")
def test_a_mapped_value_outlives_its_entry(tmp_path: Path, value: Any) -> None:
    with Cache(tmp_path, mmap=True, **QUICK) as cache:
        for gone in (
            lambda: cache.set("key", 1),
            lambda: cache.delete("key"),
            lambda: cache.pop("key"),
            lambda: cache.clear(),
            lambda: cache.set("key", value),
        ):
            cache["key"] = value
            found = cache["key"]
            gone()
            cache.check(fix=True)  # unlinks what was replaced
            assert_same(value, found)
        cache.clear()
        cache.check(fix=True)
        assert value_files(tmp_path) == []
        cache["key"] = value
        found = cache["key"]
    assert_same(value, found)  # the cache is closed


def test_a_mapped_value_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    with Cache(tmp_path, mmap=True, **QUICK) as cache:
        cache["array"], cache["table"] = ARRAY, TEXTS
        array, table = cache["array"], cache["table"]
        cache.clear()
        child = os.fork()
        if not child:
            sound = bool((array == ARRAY).all()) and table.equals(TEXTS)
            os._exit(0 if sound else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert_same(ARRAY, array)


def test_small_values_and_all_others_come_as_always(tmp_path: Path) -> None:
    with Cache(tmp_path, mmap=True, **QUICK) as cache:
        cache["small"], cache["text"], cache["inside"] = np.arange(3), "x" * 100_000, [ARRAY]
        cache["objects"] = np.array([{1: 2}] * 10_000, object)
        assert cache["small"].flags.writeable
        assert cache["text"] == "x" * 100_000
        assert_same([ARRAY], cache["inside"])
        assert cache["objects"][0] == {1: 2}
        assert cache.get("missing", 5) == 5
        assert cache.get("missing", 5, mmap=True) == 5
    with Cache(tmp_path / "packed", mmap=True, compressor="zlib", **QUICK) as cache:
        cache["key"] = ARRAY * 0
        assert_same(ARRAY * 0, cache["key"])
        noise = np.random.default_rng(1).bytes(1 << 20)
        cache["noise"] = np.frombuffer(noise, "u1")  # not worth compressing, so it is a file of its own
        assert not cache["noise"].flags.writeable
        assert cache["noise"].tobytes() == noise


def test_get_says_otherwise_than_the_handle(tmp_path: Path) -> None:
    with Cache(tmp_path, mmap=True, **QUICK) as cache:
        cache["key"] = ARRAY
        assert not cache["key"].flags.writeable
        assert not cache.get_entry("key").value.flags.writeable
        assert not cache.get_many(["key"])["key"].flags.writeable
        assert cache.get("key", mmap=False).flags.writeable
        value, tag = cache.get("key", tag=True, mmap=True)
        assert not value.flags.writeable
        assert tag is None


def test_uses_are_counted_once(tmp_path: Path) -> None:
    with Cache(tmp_path, statistics=1, **QUICK) as cache:
        cache["key"] = ARRAY
        cache["key"]  # which keeps it hot
        for _ in range(3):
            cache.get("key", mmap=True)
        assert cache.stats() == (4, 0)


def test_shards_and_pickled_handles_map_too(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, mmap=True, timeout=60, **QUICK) as cache:
        for number in range(4):
            cache[number] = ARRAY + number
        for number in range(4):
            assert not cache[number].flags.writeable
            assert_same(ARRAY + number, cache[number])
        child = cache.cache("child")
        child["key"] = ARRAY
        assert not child["key"].flags.writeable


def test_mmap_has_to_be_a_truth_value(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="mmap is 'yes', expected True or False"):
        Cache(tmp_path, mmap="yes")  # type: ignore[arg-type]


def test_a_mapped_value_is_not_verified_but_check_does(tmp_path: Path) -> None:
    with Cache(tmp_path, hot_size_limit=0, **QUICK) as cache:
        cache["key"] = ARRAY
        (file,) = value_files(tmp_path)
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        assert cache.get("key") is None
        assert cache.get("key", mmap=True).shape == ARRAY.shape
        assert any("checksum" in str(warning.message) for warning in cache.check())


def test_a_file_of_another_length_is_not_mapped(tmp_path: Path) -> None:
    with Cache(tmp_path, strict=True, mmap=True, **QUICK) as cache:
        cache["key"] = ARRAY
        (file,) = value_files(tmp_path)
        os.truncate(file, file.stat().st_size - 8)
        with pytest.raises(DecodeError, match="does not have"):
            cache.get("key")


def test_text_is_looked_through_when_it_is_first_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted: list[bool] = []
    read = arrow.read

    def note(content: Any, trust: bool) -> Any:
        trusted.append(trust)
        return read(content, trust)

    with Cache(tmp_path, mmap=True, hot_size_limit=0, **QUICK) as cache:
        cache["key"] = TEXTS
        monkeypatch.setattr(arrow, "read", note)
        for _ in range(3):
            assert_same(TEXTS, cache["key"])
        assert trusted == [False, True, True]
        (file,) = value_files(tmp_path)
        content = bytearray(file.read_bytes())
        place = content.index((4).to_bytes(4, "little") + (8).to_bytes(4, "little"))  # among the offsets of the text
        content[place : place + 4] = (1 << 30).to_bytes(4, "little")
        file.write_bytes(content)
        assert cache.get("key") is None
        assert cache.metrics().damaged == 1
