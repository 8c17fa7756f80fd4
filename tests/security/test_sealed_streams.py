"""Streams, arrays and tables in an encrypted cache: nothing legible on the disk, nothing mapped, everything verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from diskcache_like import Cache
from diskcache_like.crypto.aead import CHUNK, ChunkSealer
from diskcache_like.disk import file_io
from diskcache_like.errors import DiskFull, SignatureError

from ..support.cache_kinds import QUICK
from ..support.sample_arrays import assert_same
from ..support.tampering import value_files

OPTIONS: dict[str, Any] = {**QUICK, "secret": "a secret of some length", "encrypt": True}
LEGIBLE = b"legible " * 8


@pytest.mark.parametrize("size", [0, 5, 40_000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 1_000_001])
@pytest.mark.parametrize("step", [1_000, CHUNK, 5_000_000])
def test_a_stream_is_sealed_as_it_is_written(tmp_path: Path, size: int, step: int) -> None:
    content = (LEGIBLE * (size // len(LEGIBLE) + 1))[:size]
    with Cache(tmp_path, **OPTIONS) as cache:
        with cache.open("key", "wb", tag="t", expire=60) as writer:
            for start in range(0, size, step):
                writer.write(content[start : start + step])
        assert cache.get("key", tag=True) == (content, "t")
        with cache.open("key") as reader:
            assert reader.read() == content
            reader.seek(size // 2)
            assert reader.read(10) == content[size // 2 : size // 2 + 10]
        assert cache.check() == []
    assert not any(LEGIBLE in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_file_without_a_name_is_sealed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "_open_unnamed", lambda _: -1)
    with Cache(tmp_path, **OPTIONS) as cache, cache.open("key", "wb") as writer:
        writer.write(LEGIBLE * 10_000)
        (file,) = value_files(tmp_path)
        assert LEGIBLE not in file.read_bytes()
        writer.discard()
        assert value_files(tmp_path) == []


def test_a_piece_that_did_not_fit_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [DiskFull("no room", "there")] * 3
    write = file_io.NewFile.write

    def fail(self: file_io.NewFile, piece: file_io.Buffer) -> None:
        if failures and len(piece):
            raise failures.pop()
        write(self, piece)
        failures[:] = [DiskFull("no room", "there")] if self.size < 2_000_000 else []

    with Cache(tmp_path, **OPTIONS) as cache:
        failures[:] = failures[:1]
        monkeypatch.setattr(file_io.NewFile, "write", fail)
        monkeypatch.setattr(cache._shards.stores[0].recovery, "reclaim_when_locked", lambda *_, **__: True)
        with cache.open("key", "wb") as writer:
            for _ in range(10):
                writer.write(LEGIBLE * 10_000)
            failures.clear()
        monkeypatch.undo()
        assert cache["key"] == LEGIBLE * 100_000


@pytest.mark.parametrize("value", [np.arange(100_000), pd.DataFrame({"a": ["text"] * 50_000})], ids=["array", "frame"])
def test_arrays_and_frames_are_sealed_and_read_whole(tmp_path: Path, value: Any) -> None:
    with Cache(tmp_path, mmap=True, strict=True, **OPTIONS) as cache:
        cache["key"], cache["small"] = value, np.arange(3)
        assert_same(value, cache["key"])
        assert_same(value, cache.get("key", mmap=True))
        assert_same(np.arange(3), cache["small"])
        (file,) = value_files(tmp_path)
        assert not any(magic in file.read_bytes() for magic in (b"NUMPY", b"ARROW1", b"text"))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        cache._hot.clear()
        with pytest.raises(SignatureError):
            cache.get("key", mmap=True)


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
