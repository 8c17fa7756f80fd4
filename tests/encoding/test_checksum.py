"""Checksums: the fast implementation and the standard library's give the same number, and either may be missing."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like import Cache
from diskcache_like.encoding.checksum import SOURCE, crc32

LARGE = bytes(range(256)) * 400
BLOCKED = """
import sys
sys.modules["zlib_ng"] = None
from diskcache_like import Cache
from diskcache_like.encoding.checksum import SOURCE
assert SOURCE == "zlib"
with Cache(sys.argv[1]) as cache:
    {body}
"""


def run_without_zlib_ng(path: Path, body: str) -> None:
    subprocess.run([sys.executable, "-c", BLOCKED.format(body=body), str(path)], check=True, timeout=60)


def test_zlib_ng_is_used_where_it_is_installed() -> None:
    pytest.importorskip("zlib_ng")
    assert SOURCE == "zlib_ng"


@given(st.binary(max_size=3000), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_both_implementations_give_the_same_number(data: bytes, times: int, start: int) -> None:
    whole = data * times
    assert crc32(whole, start) == zlib.crc32(whole, start)
    assert crc32(memoryview(whole)[1:], crc32(whole[:1])) == zlib.crc32(whole)


def test_what_was_written_with_zlib_ng_is_read_without(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache["large"] = LARGE
    run_without_zlib_ng(tmp_path / "cache", "assert cache['large'] == bytes(range(256)) * 400 and not cache.check()")
