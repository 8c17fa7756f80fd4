"""Columns of text, lists and categories whose offsets, indices or bytes somebody changed: refused, or safe to use.

Whoever reads a column trusts its offsets without a bound, so an error that is not found ends the process. Large columns
are proved in another way than small ones; here both ways look at the same columns.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import compute

from diskcache_like.disk.columnar import arrow, registry
from diskcache_like.encoding.record import MODE_ARROW
from diskcache_like.errors import DecodeError

WORDS = [None if number % 7 == 3 else f"{number:03}" * (number % 4) for number in range(30)]
ACCENTS = ["é" * (number % 5) for number in range(20)]
CHANGES = (0x01, 0x20, 0x80, 0xFF)
NEVER = 1 << 62


def tables() -> dict[str, Any]:
    """Return tables of one column, each of a type that has offsets, indices, text or nulls."""
    columns = {
        "text": pa.array(WORDS),
        "large text": pa.array(WORDS, pa.large_string()),
        "accents": pa.array(ACCENTS),
        "bytes": pa.array([None if word is None else word.encode() for word in WORDS]),
        "lists": pa.array([[number] * (number % 3) for number in range(20)]),
        "lists of text": pa.array([ACCENTS[: number % 4] for number in range(20)]),
        "categories": pa.array(WORDS).dictionary_encode(),
        "numbers": pa.array([None if number % 7 == 3 else number for number in range(40)]),
        "booleans": pa.array([None if number % 7 == 3 else True for number in range(40)]),
        "pieces": pa.chunked_array([WORDS[:9], [], WORDS[9:]]),
    }
    return {name: pa.table({"a": column}) for name, column in columns.items()}


def frames() -> list[Any]:
    """Return the same for pandas and polars."""
    return [
        pd.DataFrame({"a": pd.array(WORDS, dtype="string[pyarrow]"), "b": pd.Categorical(WORDS)}),
        pd.DataFrame({"a": pd.array(ACCENTS, dtype=pd.ArrowDtype(pa.string()))}),
        pl.DataFrame({"a": WORDS, "b": pl.Series(WORDS, dtype=pl.Categorical), "c": [WORDS[:2]] * len(WORDS)}),
        pl.DataFrame({"a": ACCENTS}),
        pl.DataFrame({"a": [1, None, 3], "b": [1.5, None, 2.5], "c": [True, None, False]}),
    ]


def content_of(value: Any) -> bytes:
    pack = registry.packer(type(value))
    assert pack is not None
    return pack(value).content()


def use(value: Any) -> None:
    """Do with every column what follows its offsets; whatever is raised, the process has to go on."""
    if isinstance(value, pa.Table):
        for column in value.columns:
            for deed in (compute.utf8_upper, compute.utf8_reverse, compute.value_counts, compute.array_sort_indices):
                with suppress(Exception):
                    deed(column)
            column.to_pylist()
            column.take(list(range(len(column)))[::-1]).to_pylist()
    elif isinstance(value, pd.DataFrame):
        for name in value:
            with suppress(Exception):
                value[name].str.upper()
            value[name].tolist()
            value.sort_values(name)
    else:
        for column in value:
            with suppress(Exception, pl.exceptions.PanicException):
                column.str.to_uppercase().str.len_chars().sum()
            with suppress(Exception, pl.exceptions.PanicException):
                column.unique().sort()
            column.to_list()


def try_every_byte(step: int = 1) -> tuple[int, int]:
    """Change each `step`th byte of every table and frame in turn; return how many were taken, and used, and how many refused."""
    taken = refused = 0
    for value in (*tables().values(), *frames()):
        content = content_of(value)
        for place in range(0, len(content), step):
            for change in CHANGES:
                flipped = bytearray(content)
                flipped[place] ^= change
                try:
                    changed = registry.unpack(MODE_ARROW, bytes(flipped))
                except DecodeError:
                    refused += 1
                    continue
                taken += 1
                with suppress(Exception, pl.exceptions.PanicException):
                    use(changed)
    return taken, refused


EVERY_BYTE = """
import sys
from diskcache_like.disk.columnar import arrow
from tests.security.test_hostile_columns import try_every_byte
arrow._LARGE = int(sys.argv[1])
print(*try_every_byte(7))
"""


@pytest.mark.parametrize("large", [0, NEVER])
def test_no_changed_byte_ends_the_process(large: int) -> None:
    command = [sys.executable, "-c", EVERY_BYTE, str(large)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    taken, refused = map(int, done.stdout.split())
    assert min(taken, refused) > 1000


def is_refused(content: bytes, large: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "_LARGE", large)
        try:
            arrow.read(content, trusted=False)
        except DecodeError:
            return True
    return False


@pytest.mark.parametrize("name", tables())
@given(st.data())
def test_large_columns_are_refused_where_small_ones_are(name: str, data: st.DataObject) -> None:
    content = bytearray(content_of(tables()[name]))
    assert not is_refused(bytes(content), 0)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.sampled_from(CHANGES))
    assert is_refused(bytes(content), 0) == is_refused(bytes(content), NEVER)


LIES = """
import sys
from diskcache_like.disk.columnar import registry
from diskcache_like.encoding.record import MODE_ARROW
from tests.security.test_hostile_columns import lying
try:
    frame = registry.unpack(MODE_ARROW, lying(sys.argv[1]))
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


def test_a_slice_is_proved_as_the_part_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_LARGE", 0)
    buffers = [None, pa.array([2, 0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")]
    arrow._check_values(pa.chunked_array([pa.Array.from_buffers(pa.string(), 2, buffers, offset=1)]))
    with pytest.raises(DecodeError, match="offsets that fall"):
        arrow._check_values(pa.chunked_array([pa.Array.from_buffers(pa.string(), 3, buffers)]))
