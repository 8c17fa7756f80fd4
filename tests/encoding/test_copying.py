"""Copies of decoded values: equal, of the same types, and without a mutable part that two of them share."""

from __future__ import annotations

import datetime as dt
import gc
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like.encoding.copying import copier_of, size_of
from diskcache_like.encoding.values import decode_value, encode_value

ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
)
LEAVES = st.one_of(
    ATOMS, st.dates(), st.decimals(allow_nan=False), st.tuples(ATOMS, ATOMS), st.frozensets(ATOMS, max_size=3)
)
KEYS = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=3)))
TREES = st.recursive(
    st.one_of(LEAVES, st.sets(ATOMS, max_size=3)),
    lambda members: st.one_of(st.lists(members, max_size=6), st.dictionaries(KEYS, members, max_size=6)),
    max_leaves=30,
)
MUTABLE = (list, dict, set)


def shape(value: Any) -> Any:
    """Return a value with the types of all of its parts."""
    if type(value) is list:
        return list, [shape(member) for member in value]
    if type(value) is dict:
        return dict, [(shape(key), shape(member)) for key, member in value.items()]
    return type(value), value


def mutable_parts(value: Any) -> list[Any]:
    """Return everything mutable in a value, itself included."""
    members = value if type(value) is list else value.values() if type(value) is dict else ()
    own = [value] if type(value) in MUTABLE else []
    return own + [part for member in members for part in mutable_parts(member)]


@given(TREES)
def test_copies_are_equal_and_share_nothing_mutable(value: Any) -> None:
    decoded = decode_value(encode_value(value))
    copy, _ = copier_of(decoded)
    if copy is None:
        assert type(decoded) not in MUTABLE
        return
    first, second = copy(decoded), copy(decoded)
    assert shape(first) == shape(second) == shape(decoded)
    parts = [id(part) for tree in (decoded, first, second) for part in mutable_parts(tree)]
    assert len(parts) == len(set(parts))


class Subclass(list[int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Subclass([1]),
        [Subclass([1])],
        {"a": bytearray(b"1")},
        [([1],)],
        {"a": range(3), "b": [range(3)], "c": bytearray()},
        "text",
        1,
        (1, [2]),
        b"",
    ],
    ids=repr,
)
def test_what_is_no_tree_of_known_types_is_decoded_anew(value: Any) -> None:
    assert copier_of(value) == (None, 0)


def test_deep_and_many_sided_values_are_decoded_anew() -> None:
    deep: Any = [[]]
    for _ in range(1000):
        deep = [deep]
    assert copier_of(deep) == (None, 0)
    assert copier_of([{"a": [1]} for _ in range(1000)]) == (None, 0)


@pytest.mark.parametrize(
    "value",
    [
        *([], {}, {1, 2}, [{}], [[]], [{"a": 1}, {}], [[1], []], [1, "a", None, [2]], {(1, 2): [3]}),
        *({"a": {"b": [1, {"c": set()}]}}, {"price": [Decimal(1)]}),
        [dt.date(2026, 1, 1), {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}],
    ],
    ids=repr,
)
def test_usual_values_are_copied(value: Any) -> None:
    copy, _ = copier_of(value)
    assert copy is not None
    assert copy(value) == value
    assert copy(value) is not value


def test_the_size_counts_every_member() -> None:
    assert size_of([]) < size_of([[]]) < size_of([[], []])
    assert size_of({"a": "x" * 1000}) > 1000
    assert size_of([{"a": {"b": ["x" * 1000]}}, ("y" * 1000,)]) > 2000
    assert size_of([1.5] * 1000) > 30_000


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else [1]


@pytest.mark.parametrize(
    "value",
    [nested(14), [nested(13) for _ in range(15)], [{"id": number, "tags": ["a"]} for number in range(100)]],
    ids=["deep", "deep ones", "rows with a list"],
)
def test_the_size_counts_what_the_copier_takes(value: Any) -> None:
    payload = encode_value(value)
    tracemalloc.start()
    try:
        kept = decode_value(payload)
        copy, size = copier_of(kept)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert copy is not None
    assert taken <= size < 3 * taken
