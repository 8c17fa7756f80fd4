"""Seeded keys and values, the same for every subject; each value names its key, so that a wrong one is noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

VALUE_SIZE = 100
SEED = 563
RECORDS = 50
FIELDS = 160


def key_of(number: int, prefix: str = "user") -> str:
    return f"{prefix}:{number:08d}:profile"


def keys_of(count: int, prefix: str = "user") -> list[str]:
    """Return `count` text keys."""
    return [key_of(number, prefix) for number in range(count)]


def value_of(key: str, version: int = 0, size: int = VALUE_SIZE) -> bytes:
    """Return a value of `size` bytes that names its key and version."""
    return f"{key}/{version}/".encode().ljust(size, b".")


def items_of(keys: Sequence[str], version: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield every key with its value, in shuffled order."""
    order = list(keys)
    random.Random(SEED).shuffle(order)
    return ((key, value_of(key, version)) for key in order)


@dataclass(frozen=True)
class Bytes:
    """Make byte strings of `size` bytes that start with their key."""

    size: int

    def __call__(self, key: str, version: int) -> bytes:
        return value_of(key, version, self.size)


def dict_of(key: str, version: int) -> dict[str, Any]:
    """Return a dictionary of about 10 KB that names its key: text, numbers, lists, nested dictionaries."""
    draw = random.Random(f"{key}/{version}")
    return {"key": key, "version": version} | {
        f"field_{number:03d}": [draw.randrange(10**6), draw.random(), {"name": f"{draw.getrandbits(64):016x}"}]
        for number in range(FIELDS)
    }


def records_of(key: str, version: int) -> list[dict[str, Any]]:
    """Return a list of small records, as a query of a database gives them, each naming its key."""
    draw = random.Random(f"{key}/{version}")
    return [
        {
            "key": key,
            "id": number,
            "name": f"{draw.getrandbits(64):x}",
            "price": draw.random() * 100,
            "active": draw.random() < 0.5,
        }
        for number in range(RECORDS)
    ]


def names(key: str, value: Any) -> bool:
    """Tell whether a value of one of the makers above names its key."""
    if isinstance(value, list):
        return bool(value) and value[0]["key"] == key
    return bool(value["key"] == key) if isinstance(value, dict) else bool(value.startswith(f"{key}/".encode()))
