"""What is encoded: values of four kinds in six sizes, the same in every run.

A size is what msgpack makes of the value, uncompressed. Small sizes come as several values, so that none is learnt by
heart by the processor.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import msgpack

SIZES: Mapping[str, int] = MappingProxyType(
    {"50B": 50, "500B": 500, "1KB": 1_000, "10KB": 10_000, "100KB": 100_000, "1MB": 1_000_000}
)
SAMPLES = 16
SAMPLE_BYTES = 64_000
CONSONANTS, VOWELS = "bdklmnrs", "aeio"
FLOAT_BYTES = 9
ZIPF = 1.0  # the exponent that words of natural languages have, about


def plain_size(value: object) -> int:
    """Return the bytes that msgpack makes of a value."""
    return len(msgpack.packb(value))


def unit_apart(size: str) -> str:
    """Write the name of a size with a space before the unit."""
    return re.sub(r"(?<=\d)(?=\D)", " ", size)


def samples(kind: str, size: int) -> list[Any]:
    """Return values of a kind and about a size: one of a large size, several of a small one."""
    dice = random.Random(f"{kind} {size}")
    return [KINDS[kind](dice, size) for _ in range(min(max(SAMPLE_BYTES // size, 1), SAMPLES))]


def records(dice: random.Random, size: int) -> dict[str, Any] | list[Any]:
    """Return what an interface of a service answers: one small record, one with a list in it, or a list of them."""
    if size < 200:
        return {"id": dice.randrange(10**6), "name": _name(dice), "active": dice.random() < 0.9, "level": dice.random()}
    if size < 1_000:
        account = _account(dice)
        account["orders"] = _grown(lambda: _order(dice), size - plain_size(account))
        return account
    return _grown(lambda: _account(dice), size)


def text(dice: random.Random, size: int) -> str:
    """Return sentences of invented words, the common ones as much more common as in a language."""
    words = dice.choices(VOCABULARY, cum_weights=FREQUENCIES, k=size // 4 + 4)
    for place in range(0, len(words) - 1, 12):
        words[place] = words[place].capitalize()
        words[place - 1] += "."
    return " ".join(words).ljust(size, ".")[:size]


def floats(dice: random.Random, size: int) -> list[float]:
    """Return measurements in full precision."""
    return [dice.gauss(20, 5) for _ in range(max(size // FLOAT_BYTES, 1))]


def incompressible(dice: random.Random, size: int) -> bytes:
    """Return bytes without any pattern, as in an image or an archive."""
    return dice.randbytes(size)


KINDS: Mapping[str, Callable[[random.Random, int], Any]] = MappingProxyType(
    {"records": records, "text": text, "floats": floats, "bytes": incompressible}
)


def _grown(make: Callable[[], Any], size: int) -> list[Any]:
    """Return as many of what `make` makes as come nearest to `size`."""
    items: list[Any] = []
    while size > 0:
        item = make()
        if items and plain_size(item) > 2 * size:
            break
        items.append(item)
        size -= plain_size(item)
    return items


def _name(dice: random.Random) -> str:
    return f"{dice.choice(VOCABULARY).capitalize()} {dice.choice(VOCABULARY).capitalize()}"


def _day(dice: random.Random) -> str:
    return f"20{dice.randrange(18, 26)}-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"


def _order(dice: random.Random) -> dict[str, Any]:
    sku = f"{dice.choice('ABCDEF')}-{dice.randrange(10**5):05}"
    return {"sku": sku, "quantity": dice.randrange(1, 9), "price": round(dice.uniform(1, 500), 2), "date": _day(dice)}


def _account(dice: random.Random) -> dict[str, Any]:
    name = _name(dice)
    return {
        "id": dice.randrange(10**9),
        "name": name,
        "email": f"{name.lower().replace(' ', '.')}@example.com",
        "active": dice.random() < 0.9,
        "balance": round(dice.uniform(-100, 5_000), 2),
        "address": {"street": f"{_name(dice)} {dice.randrange(200)}", "city": dice.choice(VOCABULARY), "floor": None},
        "roles": dice.sample(("reader", "writer", "editor", "owner"), dice.randrange(1, 3)),
        "created": f"{_day(dice)}T{dice.randrange(24):02}:{dice.randrange(60):02}:00Z",
    }


def _vocabulary(dice: random.Random) -> list[str]:
    def word() -> str:
        return "".join(dice.choice(CONSONANTS) + dice.choice(VOWELS) for _ in range(dice.choice((1, 2, 2, 3, 3, 4))))

    return list(dict.fromkeys(word() for _ in range(6_000)))


VOCABULARY = _vocabulary(random.Random("vocabulary"))
FREQUENCIES = list(accumulate(1 / (place + 1) ** ZIPF for place in range(len(VOCABULARY))))
