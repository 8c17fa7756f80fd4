"""Streams, arrays and mapped reads of an encrypted cache: the same values, and nothing legible on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from diskcache_like import Cache, FanoutCache
from diskcache_like.errors import DiskFull
from diskcache_like.sealing import CHUNK, ChunkSealer

SECRET = "one secret of sixteen"
NEEDLE = b"legible and long enough to be found "


@pytest.fixture(params=[Cache, FanoutCache])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    with request.param(str(tmp_path / "cache"), secret=SECRET, encrypt=True, durability="process") as made:
        yield made


def legible(cache: Cache, needle: bytes = NEEDLE) -> list[str]:
    return [str(path) for path in Path(cache.directory).rglob("*") if path.is_file() and needle in path.read_bytes()]


@pytest.mark.parametrize("size", [0, 10, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK, 5 * CHUNK + 7])
@pytest.mark.parametrize("step", [1000, CHUNK, 3 * CHUNK + 1])
def test_a_stream_comes_back_and_is_sealed(cache: Cache, size: int, step: int) -> None:
    content = (NEEDLE * (size // len(NEEDLE) + 1))[:size]
    with cache.open("key", "wb") as writer:
        for start in range(0, size, step):
            writer.write(content[start : start + step])
    assert cache["key"] == content
    with cache.open("key") as reader:
        assert reader.read() == content
        assert reader.seek(size // 2) == size // 2
        assert reader.read(5) == content[size // 2 :][:5]
    assert cache.check() == []
    assert legible(cache) == []


def test_an_unfinished_stream_leaves_nothing_legible(cache: Cache) -> None:
    writer = cache.open("key", "wb")
    writer.write(NEEDLE * 10_000)
    assert legible(cache) == []
    writer.discard()
    assert "key" not in cache


def test_a_piece_that_had_no_room_is_sealed_again_as_it_was(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    content = NEEDLE * 20_000
    with cache.open("key", "wb") as writer:
        writer.write(content)
        file = writer._file._file
        write, failures = file.write, iter([True])

        def full(piece: bytes) -> None:
            if next(failures, False):
                raise DiskFull("no room", "here")
            write(piece)

        monkeypatch.setattr(file, "write", full)
        monkeypatch.setattr(type(writer._store), "relieved", lambda *_, **__: True)
        writer.write(content)
    assert cache["key"] == content * 2


def test_the_last_chunk_is_known_by_its_nonce() -> None:
    class Cipher:
        def __init__(self) -> None:
            self.nonces: list[bytes] = []

        def encrypt(self, nonce: bytes, data: bytes, _: None) -> bytes:
            self.nonces.append(nonce)
            return data

    cipher = Cipher()
    sealer = ChunkSealer(cipher)  # type: ignore[arg-type]
    assert b"".join(sealer.seal(bytes(2 * CHUNK))) == bytes(CHUNK)
    assert sealer.finish() == bytes(CHUNK)
    assert [nonce[-5:] for nonce in cipher.nonces] == [b"\0\0\0\0\0", b"\0\0\0\1\1"]


def test_arrays_are_sealed_and_read_where_they_would_be_mapped(cache: Cache) -> None:
    array = np.frombuffer(NEEDLE * 4096, dtype="u1").reshape(-1, 4)
    cache["array"] = array
    for found in (cache["array"], cache.get("array", mmap=True)):
        assert type(found) is np.ndarray
        assert found.dtype == array.dtype
        assert (found == array).all()
    assert legible(cache) == []
