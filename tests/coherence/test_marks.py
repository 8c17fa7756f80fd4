"""Marks and ghosts in C: what a hit leaves, and what eviction reads of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diskcache_like.coherence._native import LEAST_CELLS, Marks, Words
from diskcache_like.coherence.generations import HEADER_WORDS, MAX_WORD, PAGE, Header
from diskcache_like.settings.policies import FREQUENCY, NO_MARKS, RECENCY

PRIME = 65_521
HOMES = [4 * number * 0x9E3779B97F4A7C15 & (1 << 63) - 4 for number in range(1, 3_000)]


def make(cells: int = LEAST_CELLS) -> tuple[Words, Marks]:
    memory = bytearray(PAGE + 8 * cells)
    return Words(memory, 0, HEADER_WORDS), Marks(memory, PAGE, PRIME)


@pytest.mark.parametrize("doubled", [0, 3, 9])
@pytest.mark.parametrize("tick", [600, 65_535, 65_537 * 512, (1 << 40) + (1 << 20)])
def test_a_mark_tells_the_time_of_the_last_use(tick: int, doubled: int) -> None:
    header, marks = make(LEAST_CELLS << doubled)
    header[Header.MARKS], header[Header.TICK] = doubled, tick
    home, since = HOMES[0], max(tick - 5, 1)
    assert marks.last_use(home, since, since) == 0
    marks[home] = RECENCY
    header[Header.TICK] = tick + 7
    last = marks.last_use(home, since, since)
    assert last % 2 == 1
    assert since <= last // 2 <= tick + (1 << doubled)
    assert marks.last_use(home, tick + (4 << doubled), since) == 2 * (tick + (4 << doubled))  # a later write
    assert marks.last_use(home, 1, tick + (4 << doubled)) == 0  # of the entry before it


def test_marks_and_ghosts_are_the_same_when_more_cells_are_used() -> None:
    header, marks = make(4 * LEAST_CELLS)
    for number, home in enumerate(HOMES[:100]):
        header[Header.TICK] = 1_000 + number
        marks[home] = RECENCY
        marks.leave(home)
    for doubled in (1, 2):
        assert marks.grow(True)
        assert header[Header.MARKS] == doubled
        for number, home in enumerate(HOMES[:100]):
            assert 0 <= 1_000 + number - marks.last_use(home, 1, 1) // 2 < 1 << doubled
            assert marks.knows(home, 1_000)
    assert not marks.grow(True)
    assert header[Header.MARKS] == 2
    header, marks = make(2 * LEAST_CELLS)
    marks.put(HOMES[0], 77)
    assert marks.grow(False)
    assert marks[HOMES[0]] == 77


def test_a_place_beside_its_home_has_the_mark_of_its_home() -> None:
    header, marks = make()
    header[Header.TICK] = 3
    marks[HOMES[0] + 2] = RECENCY
    assert [marks[HOMES[0] + beside] for beside in range(4)] == [3] * 4


def test_no_mark_is_left_where_the_policy_needs_none() -> None:
    header, marks = make()
    header[Header.TICK] = 3
    marks[HOMES[0]] = NO_MARKS
    marks[HOMES[0]] = NO_MARKS | 4
    assert marks[HOMES[0]] == 0


def test_few_uses_are_counted_exactly_and_many_nearly() -> None:
    _, marks = make()
    seen = []
    for _ in range(32):
        marks[HOMES[0]] = FREQUENCY
        seen.append(marks[HOMES[0]])
    assert seen == list(range(1, 33))
    for uses in (100, 1_000, 20_000):
        counts = []
        for home in HOMES[:20]:
            marks.put(home, 0)
            for _ in range(uses):
                marks[home] = FREQUENCY
            counts.append(marks[home])
        assert 0.8 < sum(counts) / len(counts) / uses < 1.25
    for _ in range(200_000):
        marks[HOMES[0]] = FREQUENCY
    assert marks[HOMES[0]] == 65_535
    marks.put(HOMES[0], MAX_WORD)
    assert marks[HOMES[0]] == 65_535


def test_ghosts_are_known_until_as_many_were_evicted_as_there_are_entries() -> None:
    header, marks = make()
    assert not any(marks.knows(home, 1_000) for home in HOMES)
    for home in HOMES[:500]:
        marks.leave(home)
    assert sum(marks.knows(home, 1_000) for home in HOMES[:500]) > 490
    assert sum(marks.knows(home, 1_000) for home in HOMES[500:]) < 5
    header[Header.EVICTED] = 1_000
    assert marks.knows(HOMES[499], 1_000)
    header[Header.EVICTED] = 1_300
    assert not marks.knows(HOMES[499], 1_000)
    assert marks.knows(HOMES[499], MAX_WORD)


def test_the_oldest_of_four_ghosts_goes() -> None:
    _, marks = make(4)
    for number, home in enumerate(HOMES[:50]):
        marks.leave(home)
        known = [marks.knows(each, 0) for each in HOMES[: number + 1]]
        assert known[-4:] == [True] * min(number + 1, 4)
        assert not any(known[:-4])


def test_any_bytes_are_marks_and_ghosts() -> None:
    draw = random.Random(5)
    memory = bytearray(draw.randbytes(PAGE + 8 * LEAST_CELLS + 24))
    header, marks = Words(memory, 0, HEADER_WORDS), Marks(memory, PAGE, PRIME)
    for home in HOMES:
        for word in (Header.MARKS, Header.TICK, Header.EVICTED):
            header[word] = draw.choice((0, 1, 15, 1 << 63, MAX_WORD, draw.getrandbits(64)))
        marks[home] = draw.choice((NO_MARKS, RECENCY, FREQUENCY, -1, 1 << 40))
        written, since = (draw.choice((0, -1, 1 << 62, (1 << 63) - 1, -1 << 63, draw.getrandbits(40))) for _ in "ab")
        assert 0 <= marks.last_use(home, written, since) <= MAX_WORD
        assert marks.knows(home, draw.getrandbits(64)) in (False, True)
        marks.leave(home)
        marks.put(home, draw.getrandbits(64))
        assert 0 <= marks[home] <= 65_535
    assert len(memory) == PAGE + 8 * LEAST_CELLS + 24


@pytest.mark.parametrize("home", [-4, 0, 1 << 63, 1 << 200, True])
def test_any_number_is_a_home(home: int) -> None:
    _, marks = make()
    marks.put(home, 9)
    assert marks[home] == 9


@pytest.mark.parametrize(
    "misuse",
    [
        lambda marks: marks["key"],
        lambda marks: marks.__setitem__("key", 1),
        lambda marks: marks.__setitem__(4, "kind"),
        lambda marks: marks.__delitem__(4),
        lambda marks: marks.put(4),
        lambda marks: marks.put("key", 1),
        lambda marks: marks.last_use(4, 1),
        lambda marks: marks.last_use(4, None, 1),
        lambda marks: marks.last_use(4, 1, None),
        lambda marks: marks.knows(4),
        lambda marks: marks.knows(4, "many"),
        lambda marks: marks.leave(None),
    ],
)
def test_what_is_no_home_is_refused(misuse: Any) -> None:
    _, marks = make()
    with pytest.raises(TypeError):
        misuse(marks)
    with pytest.raises(OverflowError):
        marks.put(4, -1)


@pytest.mark.parametrize(
    ("size", "offset", "prime"),
    [(PAGE + 31, PAGE, 1), (PAGE + 32, PAGE + 4, 1), (PAGE + 32, 8, 1), (PAGE + 32, PAGE, 0), (0, 0, 1), (64, -8, 1)],
)
def test_cells_outside_of_the_buffer_are_refused(size: int, offset: int, prime: int) -> None:
    with pytest.raises(ValueError, match="outside of the buffer"):
        Marks(bytearray(size), offset, prime)
    with pytest.raises(BufferError):
        Marks(bytes(PAGE + 64), PAGE, 1)
