"""A ring and words that somebody planted: nothing outside of their memory is touched, whatever they say.

A write outside ends a process here and there; `make sanitize` has each one, and each read, end it at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

import pytest

from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import prime_below
from diskcache_like.coherence.ring import PAGE, Word

from ..support.rings import HEADER, SMALLEST

CAPACITY = 1 << 12
KEYS = 6  # each its own hash
SLOTS = 3  # little memory behind the content that a record could reach into
WORDS = (Word.RESERVED, Word.LAST, Word.HEAD, Word.FLUSHED, Word.FLUSHED_LAST, Word.FLOOR)
SIZES = (0, 1, 7, 8, SMALLEST, CAPACITY - SMALLEST, CAPACITY, 1 << 31, (1 << 32) - 1)
OFFSETS = (0, 1, CAPACITY - 1, CAPACITY, 1 << 32, _native.FARTHEST, (1 << 63) - 8, (1 << 64) - 1)
SIGNED = (-1, -(1 << 31), (1 << 31) - 1, *SIZES[:7])


class Planted:
    """A ring in memory of just its size, and the same dice for all that is done to it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.memory = bytearray(PAGE + CAPACITY + 8 * SLOTS)
        self.words = _native.Words(self.memory, 0, PAGE // 8)
        self.table = _native.Words(self.memory, (PAGE + CAPACITY) // 8, SLOTS)
        self.core = _native.Ring(self.memory, PAGE, CAPACITY, SLOTS, prime_below(SLOTS))
        self.begin()

    def begin(self) -> None:
        """Let it be a sound ring in which nothing waits."""
        start = 2 * CAPACITY + 8 * self.dice.randrange(CAPACITY // 8)
        for word in WORDS:
            self.words[word] = start
        self.table.fill(0)

    def offset(self) -> int:
        """Return an offset: a likely one, or one that no ring comes to."""
        dice = self.dice
        near = self.words[dice.choice(WORDS)] + dice.choice((-CAPACITY, -8, -1, 0, 1, 8, CAPACITY))
        return dice.choice((near & (1 << 64) - 1, near & (1 << 32) - 1, dice.choice(OFFSETS), self.words[Word.FLUSHED]))

    def plant_word(self) -> None:
        words, index = self.dice.choice(
            ((self.words, self.dice.choice(WORDS)), (self.table, self.dice.randrange(SLOTS)))
        )
        words[index] = self.offset()

    def plant_bit(self) -> None:
        self.memory[self.dice.randrange(PAGE, len(self.memory))] ^= 1 << self.dice.randrange(8)

    def plant_header(self) -> None:
        """Write a header whose checksums are right, and perhaps let the table lead to it."""
        dice, offset, h = self.dice, self.offset(), self.dice.randrange(KEYS)
        place = PAGE + offset % CAPACITY
        if place + SMALLEST > PAGE + CAPACITY:
            return
        key, v, original, tags = (dice.choice((1, 2, 9, 40)) for _ in range(4))
        if dice.random() < 0.5:
            key, v, original, tags = (dice.choice(sizes) for sizes in (SIZES, SIZES, SIGNED, SIGNED))
        sizes = key, dice.randrange(256), dice.randrange(4), v, original, tags
        body = crc32(self.memory[place + SMALLEST :][: key + v + max(original, 0) + max(tags, 0)])
        last = dice.choice((self.words[Word.FLUSHED_LAST], self.words[Word.LAST])) >> 32
        fields = offset, dice.choice((1, -1, -(1 << 63))), h, self.offset(), 1, *sizes, 1.0, -1.0, body, last, 0
        header = HEADER.pack(*fields)[:-4]
        self.memory[place : place + SMALLEST] = header + crc32(header).to_bytes(4, "little")
        if dice.random() < 0.5:
            self.table[h % prime_below(SLOTS)] = offset

    def append(self) -> None:
        """Append a record as a writer does."""
        h, v = self.dice.randrange(KEYS), self.dice.choice((None, bytes(self.dice.randrange(200))))
        tags, original = self.dice.choice(((None, None), ("tag", b"spelled"), ("", b"")))
        self.core.append(1, 1, h, self.stored(h), v if tags is None else (v, None, 2.5, tags, 0, None, original))

    def stored(self, h: int) -> bytes:
        """Return a key with a hash: one that other records have, too, or a long one."""
        return self.dice.choice((b"%d" % h, b"%d" % h, bytes(self.dice.choice((0, 1, 9, 400)))))

    def ask(self) -> None:
        """Have the core look at what is there, or change it."""
        dice, core = self.dice, self.core
        h = dice.randrange(KEYS)
        calls: tuple[Callable[[], object], ...] = (
            lambda: core.find(h, self.stored(h)),
            lambda: core.find(h, self.stored(h)),
            lambda: core.read(h, self.stored(h)),
            core.is_sound,
            core.newest_tick,
            lambda: core.gather(dice.choice((0, 1, 100))),
            lambda: core.mend(self.offset(), dice.choice((0, self.words[Word.FLUSHED_LAST] >> 32))),
            lambda: core.take_over(self.offset(), dice.choice((0, self.words[Word.FLUSHED_LAST] >> 32))),
        )
        dice.choice(calls)()


@pytest.mark.parametrize("seed", range(20))
def test_no_planted_ring_leads_outside(seed: int) -> None:
    planted = Planted(seed)
    steps = planted.plant_word, planted.plant_bit, planted.plant_header, planted.append
    for _ in range(150):
        for _ in range(planted.dice.randrange(1, 12)):
            planted.dice.choice(steps)()
            planted.ask()
        planted.begin()


@pytest.mark.parametrize(
    ("page", "capacity", "slots", "prime"),
    [(PAGE, CAPACITY, SLOTS + 1, SLOTS), (PAGE, CAPACITY + 8, SLOTS, SLOTS), (0, CAPACITY, SLOTS, SLOTS)]
    + [(PAGE, CAPACITY, SLOTS, prime) for prime in (0, SLOTS + 1)]
    + [
        (-8, CAPACITY, SLOTS, SLOTS),
        (PAGE, 1 << 63, SLOTS, SLOTS),
        (PAGE, CAPACITY, 1 << 61, 1),
        (8 * Word.FLOOR, CAPACITY, SLOTS, SLOTS),
    ],
)
def test_no_ring_lies_outside_of_its_memory(page: int, capacity: int, slots: int, prime: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _native.Ring(bytearray(PAGE + CAPACITY + 8 * SLOTS), page, capacity, slots, prime)


def test_no_ring_lies_across_words_of_the_memory() -> None:
    memory = memoryview(bytearray(PAGE + CAPACITY + 8 * SLOTS + 1))
    with pytest.raises(ValueError, match="across"):
        _native.Ring(memory[1:], PAGE, CAPACITY, SLOTS, SLOTS)
