"""Values that tests of codecs are made of: what each serializer takes, as hypothesis strategies."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
ANY_TEXT = st.text(st.characters(), max_size=40)  # lone surrogates too
FLOATS = st.floats(allow_nan=False, allow_infinity=False)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=25,
)
"""What JSON says exactly."""

HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | FLOATS
    | ANY_TEXT
    | st.binary(max_size=40)
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.fractions(max_denominator=1000)
    | st.complex_numbers(allow_nan=False)
)
DATA = st.recursive(
    HASHABLE | st.binary(max_size=40).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=5)
        | st.sets(HASHABLE, max_size=5)
        | st.frozensets(HASHABLE, max_size=5)
    ),
    max_leaves=20,
)
"""What the default serializer takes."""


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal and of exactly the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return bool(one == other) and {type(member) for member in one} == {type(member) for member in other}
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


RECORDS: list[Any] = [
    {
        "id": number,
        "name": f"user{number * 7919 % 100003}",
        "email": f"u{number * 104729 % 100003}@example.com",
        "active": bool(number % 3),
        "roles": ["admin", "editor", "viewer"][: number % 4],
        "balance": number * 31337 % 1000003 / 100,
        "created": f"2024-{number % 12 + 1:02d}-{number % 28 + 1:02d}T12:{number % 60:02d}:00Z",
        "address": {"city": ("Paris", "London", "Berlin", "Oslo")[number % 4], "zip": f"{number * 17 % 99999:05d}"},
    }
    for number in range(1500)
]
"""Small records that resemble each other."""
MIXED: list[Any] = [
    None,
    (1, "two", b"three"),
    {"a": {1, 2}, "b": [Decimal("1.5"), uuid.UUID(int=7), dt.datetime(2024, 5, 6, 7, 8)]},
    "x" * 3000,
    bytes(3000),
    list(range(2000)),
]
