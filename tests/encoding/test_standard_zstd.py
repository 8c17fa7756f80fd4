"""The Zstandard of Python 3.14, or its backport: it reads what the package writes, and the other way round."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diskcache_like import Cache, DecodeError, MissingDependency
from diskcache_like.encoding.compressors import COMPRESSED, PayloadCompressor, StandardZstd, Zstd, new_compressor

from ..support.cache_kinds import QUICK

DATA = [b"x", b"piece " * 1000, bytes(range(256)) * 300]


@pytest.fixture
def standard(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 14):
        monkeypatch.setitem(sys.modules, "compression.zstd", pytest.importorskip("backports.zstd"))


@pytest.mark.usefixtures("standard")
@pytest.mark.parametrize("level", [-5, 3, 19])
def test_both_write_the_same_format(level: int) -> None:
    pytest.importorskip("zstandard")
    package, own = Zstd(level), StandardZstd(level)
    for data in DATA:
        for one, other in ((package, own), (own, package), (own, own)):
            assert other.expand(memoryview(one.compress(data)), 1 << 20) == data


@pytest.mark.usefixtures("standard")
def test_nothing_is_expanded_beyond_the_limit() -> None:
    own = StandardZstd(3)
    frame = own.compress(bytes(1 << 20))
    packed = PayloadCompressor(own, 16, 1 << 19)
    for payload in (frame, frame[:-1], frame[:9], b"", b"\xff" * 30):
        with pytest.raises(DecodeError):
            packed.unpack(COMPRESSED + payload)
    small = PayloadCompressor(own, 16)
    assert small.unpack(COMPRESSED + own.compress(b"x" * 50)) == b"x" * 50
    for payload in (own.compress(b"x" * 50) + b"y", own.compress(b"x" * 50)[:-1]):
        with pytest.raises(DecodeError):
            small.unpack(COMPRESSED + payload)


@pytest.mark.usefixtures("standard")
def test_it_is_used_where_the_package_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cache(tmp_path, compressor="zstd", **QUICK) as cache:
        cache["text"] = "text " * 1000
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert type(new_compressor("zstd", None)) is StandardZstd
    with Cache(tmp_path, **QUICK) as cache:
        assert cache["text"] == "text " * 1000


def test_without_either_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    with pytest.raises(MissingDependency, match=r"diskcache-like\[zstd\]"):
        new_compressor("zstd", 3)
