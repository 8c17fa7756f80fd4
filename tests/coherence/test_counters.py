"""Counters of the core: they count where they are told to, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from diskcache_like.coherence._native import SPACE_COUNTERS, SPACES, Counters, Marks
from diskcache_like.coherence.counts import DELETE, HIT, MISS, SET
from diskcache_like.coherence.generations import HEADER_WORDS, LEAST_MARKS, PAGE, unread_marks
from diskcache_like.encoding.keys import encode_key
from diskcache_like.settings.policies import FREQUENCY, RECENCY


def counting(length: int = SPACES * SPACE_COUNTERS) -> tuple[Counters, memoryview]:
    row = bytearray(8 * length)
    counters = Counters()
    counters.attach(row, 0, length)
    return counters, memoryview(row).cast("Q")


def test_counters_without_words_count_nothing() -> None:
    Counters().add(0, 1)
    Counters().observe(0, 1)


def test_what_lies_beyond_the_words_is_not_counted() -> None:
    row = bytearray(8 * 10)
    counters = Counters()
    counters.attach(row, 2, 4)
    for index in (0, 3, 4, 7, 2**63, 2**64 - 1):
        counters.add(index, 2)
    assert list(memoryview(row).cast("Q")) == [0, 0, 2, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("arguments", [(-1, 1), (0, -1), (0, 11), (11, 0), (5, 6), (2**62, 1), (1, 2**62)])
def test_words_outside_of_the_buffer_are_refused(arguments: tuple[int, int]) -> None:
    counters, row = counting()
    with pytest.raises(ValueError, match="outside of the buffer"):
        counters.attach(bytearray(80), *arguments)
    counters.add(0, 1)
    assert row[0] == 1, "the words before still count"


@pytest.mark.parametrize("buffer", [b"12345678", "text", memoryview(bytearray(17))[1:]])
def test_what_cannot_be_counted_in_is_refused(buffer: Any) -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        Counters().attach(buffer, 0, 1)


def test_words_that_were_left_are_free() -> None:
    counters, _ = counting()
    row = bytearray(80)
    counters.attach(row, 0, 10)
    counters.attach(bytearray(80), 0, 10)
    row.append(1)  # which a buffer in use refuses


def test_words_that_are_left_are_released_when_others_count() -> None:
    counters = Counters()

    class Row(bytearray):
        def __del__(self) -> None:
            counters.add(0, 1)

    row = bytearray(80)
    counters.attach(Row(80), 0, 10)
    counters.attach(row, 0, 10)
    assert row[0] == 1, "whoever counts while memory is unmapped does not count in it"


def test_marks_count_for_the_space_of_a_key() -> None:
    counters, row = counting()
    spaces = {b"": 0, b"a": 3, b"b": 63}
    marks = Marks(bytearray(PAGE + 4 * LEAST_MARKS), PAGE, 7)
    assert marks.of(b"anything") is marks, "they count nothing yet"
    marks.count_in(counters, spaces)
    for key, kind in (("a:1", HIT | RECENCY), ("b:1", MISS), ("a:2", HIT), (1, SET), ("a:1", DELETE | FREQUENCY)):
        marks.of(encode_key(key))[4] = kind
    marks[4] = RECENCY  # a mark alone
    counted = {divmod(index, SPACE_COUNTERS): count for index, count in enumerate(row) if count}
    assert counted == {(3, HIT >> 2): 2, (63, MISS >> 2): 1, (0, SET >> 2): 1, (3, DELETE >> 2): 1}


@pytest.mark.parametrize("kind", [1 << 2 + 3, 1 << 40, -1 << 10, 2**63 - 1])
def test_a_counter_that_is_not_there_is_not_counted(kind: int) -> None:
    counters, row = counting()
    marks = unread_marks()
    marks.count_in(counters, {b"": 0})
    marks.of(b"\x01")[0] = kind
    assert not any(row)


def test_an_unknown_number_counts_as_no_space_and_an_error_is_raised() -> None:
    counters, row = counting()
    marks = unread_marks()
    marks.count_in(counters, {b"a": SPACES})
    marks.of(encode_key("a:1"))[0] = SET
    assert row[SET >> 2] == 1
    with pytest.raises(KeyError):
        marks.of(encode_key("b:1"))
    with pytest.raises(TypeError):
        marks.of("b:1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="once"):
        marks.count_in(counters, {})
    with pytest.raises(TypeError):
        unread_marks().count_in(object(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["a:1", ("a", 2), ("a:b", 2), "x" * 40, b"a:1", (), None])
def test_every_beginning_of_a_stored_key_is_in_some_space(key: Any) -> None:
    stored = encode_key(key)
    asked = []

    class Spaces(dict[bytes, int]):
        def __missing__(self, start: bytes) -> int:
            asked.append(start)
            return 0

    counters, _ = counting()
    marks = unread_marks()
    marks.count_in(counters, Spaces())
    for length in range(len(stored) + 1):
        marks.of(stored[:length])
        marks.of(b"\xc1" + stored[:length])
    assert all(start == b"" or start in stored or start[:1] == b"\xc1" for start in asked)
    assert HEADER_WORDS * 8 == PAGE
