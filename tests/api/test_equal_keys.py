"""Keys that are equal in Python and stored under different bytes: none is ever taken for another one."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings

from diskcache_like import Cache, Disk, JSONDisk

from ..support.cache_kinds import QUICK, few, one


class Alike:
    """Equal to a plain key, with its hash, and another key all the same."""

    def __init__(self, key: Any) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return bool(self.key == (other.key if isinstance(other, Alike) else other))

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return Alike, (self.key,)


MOMENT = dt.datetime(2020, 1, 1)
PAIRS = [
    (pd.Timestamp(MOMENT), MOMENT),
    (np.longdouble(0.5), 0.5),
    (np.datetime64(MOMENT), MOMENT),
    *((Alike(key), key) for key in ("text", 7, b"bytes", 0.5, None, ("a", 1), ("a", (MOMENT, 2)))),
]
PLACES: list[Callable[[Any], Any]] = [
    lambda key: key,
    lambda key: ("a", key),
    lambda key: ("a", ("b", key)),
    lambda key: frozenset((key, "b")),
]


def reads(cache: Any, key: Any) -> list[Any]:
    """Return what every way of reading says of a key."""
    found = cache.get_many([key])
    entry = cache.get_entry(key)
    return [
        *(cache.get(key, "none") for _ in range(2)),
        key in cache,
        next(iter(found.values()), "none"),
        None if entry is None else entry.value,
        cache.get(key, "none", expire_time=True)[0],
    ]


@one
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("odd", "plain"), PAIRS, ids=lambda key: type(key).__name__)
def test_an_equal_key_of_another_type_is_another_entry(cache: Cache, place: Any, odd: Any, plain: Any) -> None:
    assert odd == plain
    odd, plain = place(odd), place(plain)
    with type(cache)(cache.directory) as other:
        for first, second in ((odd, plain), (plain, odd)):
            cache.clear()
            missing = reads(cache, second)
            assert missing == ["none", "none", False, "none", None, "none"]
            cache[first] = "first"
            kept = ["first", "first", True, "first", "first", "first"]
            for handle in (cache, other, cache.namespace("in")):
                if handle is not cache and handle is not other:
                    handle[first] = "first"
                assert reads(handle, first) == kept
                assert reads(handle, second) == missing
                assert reads(handle, first) == kept
                assert handle.get_or_set(second, lambda: "second") == "second"
                assert handle.get_or_set(first, lambda: "wrong") == "first"
                assert handle.incr(("n", second)) == 1
                assert handle.pop(second) == "second"
                assert not handle.delete(second)
                assert handle.pop(("n", second)) == 1
                assert reads(handle, first) == kept


@one
@pytest.mark.parametrize(("odd", "plain"), PAIRS, ids=lambda key: type(key).__name__)
def test_a_memoized_function_takes_no_argument_for_an_equal_one(cache: Cache, odd: Any, plain: Any) -> None:
    @cache.memoize()
    def kind(argument: Any, *more: Any) -> str:
        return type(argument).__name__

    for _ in range(2):
        for argument in (odd, plain):
            assert kind(argument) == type(argument).__name__
            assert kind(argument, "more") == type(argument).__name__


keys = st.recursive(
    st.sampled_from(["text", 7, True, 1, 1.0, 0.5, None, b"b", MOMENT, dt.date(2020, 1, 1)]).flatmap(
        lambda key: st.sampled_from([key, Alike(key)])
    ),
    lambda inner: st.tuples(inner, inner) | st.lists(inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.tuples(keys, st.integers(0, 3), st.integers()), max_size=12))
def test_the_hot_layer_changes_no_answer(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    answers: list[list[Any]] = []
    for limit in (0, 1 << 20):
        said: list[Any] = []
        with Cache(tmp_path_factory.mktemp("cache"), hot_size_limit=limit, **QUICK) as cache:
            for key, step, value in steps:
                match step:
                    case 0:
                        said.append(cache.set(key, value))
                    case 1:
                        said.append(cache.delete(key))
                    case 2:
                        said.append(cache.add(key, value))
                    case _:
                        said.append(cache.get_or_set(key, lambda value=value: value))
                said += [[cache.get(each), each in cache] for each, _, _ in steps]
        answers.append(said)
    assert answers[0] == answers[1]


@few
def test_ordered_dictionaries_in_another_order_are_other_keys(cache: Cache) -> None:
    @cache.memoize()
    def names(given: Any) -> list[str]:
        return list(given)

    there, back = OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)
    assert [names(there), names(back)] == [["a", "b"], ["b", "a"]]
    cache[there] = "there"
    assert [cache.get(there), cache.get(back), cache.get(OrderedDict(there))] == ["there", None, "there"]
    assert there in list(cache)


@few
def test_a_key_of_a_namespace_stays_one_in_the_cache_around_it(cache: Cache) -> None:
    space = cache.namespace("in")
    space[["odd"]] = 1
    (key,) = list(cache)
    cache.delete(key)
    assert cache.get_or_set(key, lambda: 2) == 2
    assert list(space) == [["odd"]]
    assert [space[["odd"]], len(space)] == [2, 1]


class Model(pydantic.BaseModel):
    """A model with a default."""

    size: int = 1
    name: str = "x"


def frames() -> list[pd.DataFrame]:
    """Return equal frames that came about in different ways."""
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "t": ["x", "y", "z"]})
    added = pd.DataFrame({"a": [1, 2, 3]})
    added["b"], added["t"] = [4, 5, 6], ["x", "y", "z"]
    longer = pd.concat([frame.iloc[:1], frame])
    filtered = longer.iloc[1:].reset_index(drop=True)
    labelled = frame.copy()
    labelled.index = pd.Index([0, 1, 2])
    return [frame, added, pd.concat([frame[:1], frame[1:]]), filtered, labelled]


@one
@pytest.mark.parametrize(
    "equal",
    [
        frames(),
        [frame["a"] for frame in frames()],
        [
            np.arange(6).reshape(2, 3),
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.arange(12).reshape(2, 6)[:, ::2] // 2,
        ],
        [Model(), Model(size=1), Model(size=1, name="x")],
    ],
    ids=["frames", "series", "arrays", "models"],
)
def test_equal_arguments_are_one_call(cache: Cache, equal: list[Any]) -> None:
    calls: list[Any] = []

    @cache.memoize(name="f")
    def count(argument: Any) -> int:
        calls.append(argument)
        return len(calls)

    for argument in equal[1:]:
        assert np.all(argument == equal[0]) if not isinstance(argument, pd.DataFrame) else argument.equals(equal[0])
    assert {count(argument) for argument in equal} == {1}


@few
def test_a_counter_is_a_number_that_the_next_incr_takes(cache: Cache) -> None:
    deltas: list[Any] = [np.int64(3), True, np.uint8(3), 3, 1.5, 2j, np.float64(1.5)]
    for number, delta in enumerate(deltas):
        first = cache.incr(number, delta)
        assert type(cache[number]) in (int, float, complex, np.float64)
        assert cache.incr(number) == first + 1
        assert cache.decr(number, delta) == 1
        assert cache.incr(("default", number), 1, default=delta) == delta + 1
    for refused in (Decimal(3), Fraction(3, 2), np.float32(1.5)):
        with pytest.raises(TypeError, match=f"delta for key 'rows' is a {type(refused).__name__}, expected an int"):
            cache.incr("rows", refused)  # type: ignore[arg-type]
        assert "rows" not in cache


class Tenants(Disk):
    """Keys of the tenant who asks."""

    tenant = "a"

    def put(self, key: Any) -> tuple[Any, bool]:
        return tuple(super().put((self.tenant, key)))


READS: list[Callable[[Cache, Any], Any]] = [
    lambda cache, key: cache.get(key),
    lambda cache, key: cache.get_many([key]).get(key),
    lambda cache, key: cache.get_or_set(key, lambda: None),
    lambda cache, key: cache.get(key, None) if key in cache else None,
]


@pytest.mark.parametrize("read", READS)
def test_keys_that_a_disk_tells_apart_share_no_place(tmp_path: Path, read: Callable[[Cache, Any], Any]) -> None:
    alike: list[list[Any]] = [[1, True, 1.0], [(1,), (True,)], [("a", 1), ("a", True), ("a", 1.0)]]
    with Cache(tmp_path, disk=JSONDisk) as cache:
        for keys in alike:
            for key in keys:
                cache[key] = repr(key)
        for _ in range(2):
            for keys in alike:
                assert [read(cache, key) for key in keys] == [repr(key) for key in keys]


@pytest.mark.parametrize("read", READS)
def test_a_disk_whose_keys_depend_on_more_is_asked_each_time(
    tmp_path: Path, read: Callable[[Cache, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path, disk=Tenants) as cache:
        cache["k"] = "of a"
        assert [read(cache, "k") for _ in range(2)] == ["of a"] * 2
        monkeypatch.setattr(Tenants, "tenant", "b")
        assert read(cache, "k") is None
        cache["k"] = "of b"
        assert [read(cache, "k") for _ in range(2)] == ["of b"] * 2
        monkeypatch.setattr(Tenants, "tenant", "a")
        assert read(cache, "k") == "of a"


@dataclass
class Counted:
    """A dataclass with an `==` of its own."""

    name: str

    def __post_init__(self) -> None:
        self.count = 0

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def test_an_eq_of_a_dataclass_own_decides_what_is_one_key(tmp_path: Path) -> None:
    one_key, other = Counted("a"), Counted("a")
    other.count = 5
    with Cache(tmp_path) as cache:
        cache[one_key] = 1
        assert cache.get(other) is None
        assert cache[Counted("a")] == 1
