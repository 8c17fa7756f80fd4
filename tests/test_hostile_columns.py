"""Columns of which somebody changed what those who use them rely on: refused, for they would end the process."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import polars as pl
import pytest

from diskcache_like import bulk


def content_of(value: Any) -> bytes:
    pack = bulk.packer(type(value))
    assert pack is not None
    return pack(value).content()


LIES = """
import sys
from diskcache_like import bulk
from diskcache_like.record import MODE_ARROW
from tests.test_hostile_columns import lying
try:
    frame = bulk.unpack(MODE_ARROW, lying(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
else:
    frame["a"].drop_nulls()
"""
HALF = 50_000


def lying(kind: str) -> bytes:
    """Return a frame of polars whose one column claims nearly all of its values to be nulls."""
    half = [None, {"numbers": 5, "booleans": True, "text": "x"}[kind]] * HALF
    content = content_of(pl.DataFrame({"a": half}))
    claim, lie = (struct.pack("<qq", 2 * HALF, nulls) for nulls in (HALF, 2 * HALF - 1))
    assert claim in content
    return content.replace(claim, lie)


@pytest.mark.parametrize("kind", ["numbers", "booleans", "text"])
def test_a_false_number_of_nulls_is_refused(kind: str) -> None:
    """For which polars would make room, and write beyond it."""
    command = [sys.executable, "-c", LIES, kind]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("DecodeError")
    assert "null" in done.stdout.lower()
