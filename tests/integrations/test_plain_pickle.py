"""Reading pickles of plain data: every protocol gives back what was pickled. `test_migrate_hostile` has the others."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import pickletools
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskcache_like.compat.migration import plain_pickle
from diskcache_like.compat.migration.plain_pickle import NotPlain, loads_plain

SHARED = ["shared"]
VALUES: list[Any] = [
    *(None, True, False, 0, 255, 256, 65_536, -1, 2**31, -(2**63), 2**70, -(2**3000), 0.5, float("inf"), ...),
    *("", "a", "ü\ud800\U0001f600", "x" * 300, b"", b"\xff\x00", b"x" * 300, bytearray(), bytearray(b"abc")),
    *(
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        [],
        [1, [2, [3]]],
        {},
        {"a": {1: [2]}},
        set(),
        {1, 2},
        frozenset([(1,)]),
    ),
    *(1 + 2j, range(3), range(1, 9, 2), Decimal("1.50"), Decimal("-Infinity"), Fraction(-1, 3)),
    *(dt.date(2020, 2, 29), dt.time(1, 2, 3, 4, fold=1), dt.timedelta(-1, 2, 3), dt.datetime(2020, 1, 2, 3, 4, 5, 6)),
    *(dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, fold=1), dt.timezone(dt.timedelta(hours=1), "X")),
    dt.datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")),
    *(uuid.UUID(int=5), [uuid.UUID(int=5)] * 2, {uuid.UUID(int=6): 1}),
    *(
        OrderedDict(b=1, a=2),
        defaultdict(list, {1: [2]}),
        defaultdict(None),
        deque([1, 2], maxlen=5),
        deque(),
        Counter("aab"),
    ),
    [SHARED, SHARED],
    {f"key {number}": [number] * 3 for number in range(2000)},
]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    for form in (data, pickletools.optimize(data)):
        found = loads_plain(form)
        assert found == value
        assert type(found) is type(value)
        assert repr(found) == repr(pickle.loads(form))  # which has no fold below protocol 4


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPERATIONS", 100)
    with pytest.raises(NotPlain, match="operations"):
        loads_plain(pickle.dumps(list(range(100))))
    monkeypatch.setattr(plain_pickle, "MAX_EXPANDED", 1000)
    many: Any = "x" * 100
    for _ in range(5):
        many = [many, many]
    with pytest.raises(NotPlain, match="huge"):
        loads_plain(pickle.dumps(many))


@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_an_error(data: bytes) -> None:
    with contextlib.suppress(NotPlain):
        loads_plain(b"\x80\x04" + data + b".")


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_is_data_or_an_error(place: int, byte: int) -> None:
    data = bytearray(pickle.dumps(VALUES[:-1], 4))
    data[place % len(data)] = byte
    with contextlib.suppress(NotPlain):
        loads_plain(bytes(data))
