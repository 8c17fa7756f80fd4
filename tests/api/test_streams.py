"""`open`: values that are bytes, read and written in pieces, whole or not at all."""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.disk import file_io
from diskcache_like.errors import DiskFull, ExpiryError, Timeout, ValueTooLarge

from ..support.cache_kinds import QUICK, Clock, Opener, exact
from ..support.small_disks import Disk
from ..support.tampering import value_files

PIECE = bytes(range(256)) * 256


def pieces(count: int) -> bytes:
    return PIECE * count


@exact
@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 200_000, 3_000_000])
def test_what_is_written_is_read(cache: Cache, size: int) -> None:
    content = (PIECE * (size // len(PIECE) + 1))[:size]
    with cache.open("key", "wb") as writer:
        for start in range(0, size, 7_777):
            assert writer.write(content[start : start + 7_777]) == len(content[start : start + 7_777])
        assert writer.tell() == size
        assert "key" not in cache
    assert cache["key"] == content
    with cache.open("key") as reader:
        assert reader.read() == content
    assert cache.check() == []


def test_a_json_cache_streams_too(tmp_path: Path) -> None:
    from diskcache_like import JSONDisk

    with Cache(tmp_path, disk=JSONDisk, **QUICK) as cache:
        for size in (0, 5, 2_000_000):
            with cache.open(size, "wb") as writer:
                writer.write(b"x" * size)
            with cache.open(size) as reader:
                assert reader.read() == b"x" * size
        with pytest.raises(ZeroDivisionError), cache.open("key", "wb") as writer:
            writer.write(pieces(20))
            raise ZeroDivisionError
        assert cache.check() == []


@exact
def test_a_reader_is_seekable_and_binary(cache: Cache) -> None:
    cache["large"], cache["small"] = pieces(4), b"0123456789"
    with cache.open("large", "rb") as reader:
        assert reader.seekable()
        assert reader.readable()
        assert not reader.writable()
        assert reader.seek(-10, io.SEEK_END) == 4 * len(PIECE) - 10
        assert reader.read() == PIECE[-10:]
        reader.seek(256)
        buffer = bytearray(5)
        assert reader.readinto(buffer) == 5  # type: ignore[attr-defined]
        assert buffer == PIECE[:5]
        assert reader.tell() == 261
    with cache.open("small") as reader:
        reader.seek(5)
        assert reader.read(2) == b"56"
        assert reader.readinto(buffer) == 3  # type: ignore[attr-defined]


@exact
def test_a_reader_reads_on_when_the_entry_is_gone(cache: Cache) -> None:
    cache["key"] = pieces(4)
    with cache.open("key") as reader:
        assert reader.read(256) == PIECE[:256]
        del cache["key"]
        cache.check(fix=True)
        assert reader.read() == pieces(4)[256:]


@exact
def test_open_says_what_it_cannot_read(cache: Cache) -> None:
    with pytest.raises(KeyError, match="missing"):
        cache.open("missing")
    cache["number"] = 5
    cache["array"] = np.arange(100_000)
    for key, kind in (("number", "int"), ("array", "ndarray")):
        with pytest.raises(TypeError, match=f"value of key '{key}' is a {kind}, expected bytes"):
            cache.open(key)
    for mode in ("a", "r+", "x", ""):
        with pytest.raises(ValueError, match="expected 'rb' or 'wb'"):
            cache.open("number", mode)  # type: ignore[call-overload]


@exact
def test_a_writer_knows_expiry_and_tag(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache()
    with cache.open("key", "wb", expire=10, tag="t") as writer:
        clock.advance(100)  # the time until it is closed does not count
        writer.write(pieces(4))
    assert cache.get("key", expire_time=True, tag=True) == (pieces(4), clock.now + 10, "t")
    clock.advance(11)
    with pytest.raises(KeyError):
        cache.open("key")
    with cache.open("other", "wb", expire=timedelta(seconds=1), tag=5) as writer:
        writer.write(b"x")
    assert cache.evict(5) == 1
    with pytest.raises(ExpiryError):
        cache.open("key", "wb", expire=-1)


@exact
def test_an_exception_discards(cache: Cache, tmp_path: Path) -> None:
    cache["key"] = b"before"
    for size in (1, 20):
        with pytest.raises(ZeroDivisionError), cache.open("key", "wb") as writer:
            writer.write(pieces(size))
            raise ZeroDivisionError
        assert writer.closed
        assert cache["key"] == b"before"
    assert value_files(tmp_path) == []
    assert cache.check() == []


def test_a_writer_that_is_discarded_or_forgotten_stores_nothing(cache: Cache, tmp_path: Path) -> None:
    writer = cache.open("key", "wb")
    writer.write(pieces(20))
    writer.discard()
    writer.discard()
    writer.close()
    for use in (lambda: writer.write(b"x"), writer.tell, writer.__enter__):
        with pytest.raises(ValueError, match="closed"):
            use()
    forgotten = cache.open("key", "wb")
    forgotten.write(pieces(20))
    del forgotten
    gc.collect()
    assert "key" not in cache
    assert value_files(tmp_path) == []


def test_there_is_no_file_until_it_is_whole(cache: Cache, tmp_path: Path) -> None:
    with cache.open("key", "wb") as writer:
        writer.write(pieces(20))
        assert value_files(tmp_path) == []
        assert cache.check(fix=True) == []
    assert len(value_files(tmp_path)) >= 1
    assert cache.check() == []


@exact
def test_the_last_to_close_wins(cache: Cache) -> None:
    with cache.open("key", "wb") as one:
        one.write(pieces(3))
        with cache.open("key", "wb") as other:
            other.write(pieces(5))
        assert cache["key"] == pieces(5)
        cache["key"] = 5
    assert cache["key"] == pieces(3)
    assert cache.check(fix=True) == []


@exact
def test_other_libraries_write_to_it(cache: Cache) -> None:
    with cache.open("zip", "wb") as writer, zipfile.ZipFile(writer, "w") as archive:
        archive.writestr("name", PIECE)
    with cache.open("zip") as reader, zipfile.ZipFile(reader) as archive:
        assert archive.read("name") == PIECE
    with cache.open("array", "wb") as writer:
        np.save(writer, np.arange(50_000))
    with cache.open("array") as reader:
        assert (np.load(reader) == np.arange(50_000)).all()
    with cache.open("copy", "wb") as writer, cache.open("array") as reader:
        shutil.copyfileobj(reader, writer)
    assert cache["copy"] == cache["array"]
    with cache.open("views", "wb") as writer:
        writer.write(np.arange(3, dtype="i4").data)
        writer.write(memoryview(b"abc"))
    assert cache["views"] == np.arange(3, dtype="i4").tobytes() + b"abc"


def test_a_value_that_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=1 << 20, **QUICK) as cache:
        cache["key"] = b"before"
        writer = cache.open("key", "wb")
        with pytest.raises(ValueTooLarge, match="'key'"):
            for _ in range(100):
                writer.write(PIECE)
        assert writer.closed
        assert cache["key"] == b"before"
        assert value_files(tmp_path) == []


@pytest.mark.parametrize("make", [Cache, FanoutCache])
def test_closing_waits_for_the_lock(tmp_path: Path, make: Any) -> None:
    with make(tmp_path, timeout=0.01, **QUICK) as cache, Cache(tmp_path, timeout=0.01, **QUICK) as other:
        writer = cache.open("key", "wb")
        writer.write(pieces(20))
        if make is Cache:
            with other.transact(), pytest.raises(Timeout):
                writer.close()
            assert writer.closed
            assert "key" not in cache
            assert value_files(tmp_path) == []
        else:
            writer.close()
            assert "key" in cache


def test_a_write_belongs_to_the_callers_transaction(cache: Cache) -> None:
    with pytest.raises(ZeroDivisionError), cache.transact():
        with cache.open("key", "wb") as writer:
            writer.write(pieces(20))
        assert "key" in cache
        raise ZeroDivisionError
    assert "key" not in cache
    assert cache.check(fix=True) == []


def test_a_forked_child_neither_writes_nor_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path, **QUICK) as cache:
        for named in (False, True):
            if named:
                monkeypatch.setattr(file_io, "_open_unnamed", lambda _: -1)
            with cache.open("key", "wb") as writer:
                writer.write(pieces(20))
                child = os.fork()
                if not child:
                    try:
                        writer.write(b"x")
                    except ValueError:
                        writer.discard()
                        os._exit(0)
                    os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
            assert cache["key"] == pieces(20)


def test_a_file_system_without_unnamed_files_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "_UNNAMED", os.O_WRONLY)  # on a directory: EISDIR, as of a kernel that knows no better
    with Cache(tmp_path, durability="power") as cache:
        with pytest.raises(ZeroDivisionError), cache.open("key", "wb") as writer:
            writer.write(pieces(20))
            assert len(value_files(tmp_path)) == 1
            raise ZeroDivisionError
        assert value_files(tmp_path) == []
        with cache.open("key", "wb") as writer:
            writer.write(pieces(20))
        assert cache["key"] == pieces(20)
        assert cache.check() == []


KILLED = """
import os, signal, sys
from diskcache_like import Cache
cache = Cache(sys.argv[1])
cache["before"] = b"b" * 100_000
writer = cache.open("key", "wb")
writer.write(b"x" * 5_000_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_writer_that_was_killed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(value_files(tmp_path)) == 1
    with Cache(tmp_path) as cache:
        assert "key" not in cache
        assert cache.check() == []
        assert cache["before"] == b"b" * 100_000


def test_a_full_disk_discards(disk: Disk) -> None:
    with Cache(disk.path, generation_slots=16, eviction_policy="none", hot_size_limit=0) as cache:
        cache["key"] = b"before"
        disk.fill(leave=500_000)
        writer = cache.open("key", "wb")
        with pytest.raises(DiskFull, match="no room") as caught:
            for _ in range(20):
                writer.write(PIECE)
        assert str(disk.path) in str(caught.value)
        assert writer.closed
        assert cache["key"] == b"before"
        disk.empty()
        with cache.open("key", "wb") as writer:
            writer.write(pieces(20))
        assert cache["key"] == pieces(20)
        assert cache.check() == []


def test_room_is_made_on_a_full_disk(disk: Disk) -> None:
    """Files that nothing refers to any more go first, and the piece that did not fit is written again."""
    with Cache(disk.path, generation_slots=16, eviction_policy="none", hot_size_limit=0) as cache:
        cache["old"] = pieces(15)
        with cache.open("key", "wb") as writer:
            writer.write(PIECE)
            del cache["old"]
            disk.fill(leave=300_000)
            for _ in range(9):
                writer.write(PIECE)
        assert cache["key"] == pieces(10)
        disk.empty()
        assert cache.check() == []


MEMORY = """
import sys, resource
from diskcache_like import Cache
mebibytes = int(sys.argv[2])
piece = bytes(1 << 20)
with Cache(sys.argv[1], size_limit=1 << 40) as cache:
    with cache.open("warm", "wb") as writer:
        writer.write(piece)
    with cache.open("warm") as reader:
        reader.read(1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with cache.open("key", "wb") as writer:
        for _ in range(mebibytes):
            writer.write(piece)
    total = 0
    with cache.open("key") as reader:
        while data := reader.read(1 << 20):
            total += len(data)
    assert total == mebibytes << 20
    cache.set("again", cache.open("key"), read=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_value_takes_little_memory(tmp_path: Path) -> None:
    """64 MiB written and read with less than 32 MB more than before, which a copy of it would exceed."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path), "64"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) << 10 < 32_000_000
