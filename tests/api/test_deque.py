"""Deque: a sequence on disk, compared with `collections.deque`; between processes: prove/linearizability."""

from __future__ import annotations

import copy
import math
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskcache_like import Cache, Deque, SettingError
from diskcache_like.errors import ValueEncodeError

from .test_deque_and_index import CACHES, discard


@pytest.fixture
def items(tmp_path: Path) -> Iterator[Deque]:
    """Return an empty deque."""
    found = Deque(directory=tmp_path / "deque")
    yield found
    assert [str(problem.message) for problem in found.cache.check()] == []
    found.cache.close()


def again(items: Deque) -> Deque:
    """Return another handle on the same directory."""
    return Deque(directory=items.directory)


# -- what a deque does ------------------------------------------------------------------------------------------------


def test_what_is_no_position_is_refused(items: Deque) -> None:
    items.extend([1, 2])
    uses: list[Callable[[Any], Any]] = [items.__getitem__, items.__delitem__, lambda at: items.__setitem__(at, 0)]
    for use in uses:
        for place in (1 << 70, -(1 << 70)):
            with pytest.raises(IndexError, match="out of range"):
                use(place)
        for wrong in (1.0, "1", None, slice(0, 1)):
            with pytest.raises(TypeError):
                use(wrong)
    assert list(items) == [1, 2]
    items.clear()
    for empty in (items.pop, items.popleft, items.peek, items.peekleft):
        with pytest.raises(IndexError, match="empty deque"):
            empty()


@pytest.mark.parametrize("maxlen", [1100, 1800])
def test_extending_by_itself_is_what_it_is_for_collections_deque(items: Deque, maxlen: int) -> None:
    items.maxlen = maxlen
    model = deque(range(1100), maxlen)
    items.extend(range(1100))
    items.extend(again(items))
    model.extend(model)
    assert list(items) == list(model)
    items.extendleft(items)
    model.extendleft(model)
    assert list(items) == list(model)


def test_appending_while_iterating_ends(items: Deque) -> None:
    items.extend(range(250))
    for seen, value in enumerate(items):
        assert value == seen
        items.append("later")
        items.appendleft("before")
    assert len(items) == 750
    for _ in reversed(items):
        items.appendleft("before")
    assert len(items) == 1500


def test_values_of_an_iterator_are_there_at_once(items: Deque) -> None:
    def lengths() -> Iterator[int]:
        for _ in range(3):
            yield len(again(items))

    items.extend(lengths())
    assert list(items) == [0, 1, 2]


def test_a_collection_is_added_whole_or_not_at_all(items: Deque) -> None:
    items.append("first")
    for use in (items.extend, items.extendleft):
        with pytest.raises(ValueEncodeError):
            use([1, 2, lambda: None, 3])
    with pytest.raises(ValueEncodeError):
        items.append(lambda: None)
    assert list(items) == ["first"]


def test_multiplied_in_place(items: Deque) -> None:
    items.extend([1, 2])
    items *= 1
    assert list(items) == [1, 2]
    items *= 3
    assert list(items) == [1, 2] * 3
    with pytest.raises(TypeError):
        items *= 1.5  # type: ignore[arg-type]
    items *= -1
    assert list(items) == []
    items *= 1 << 40
    assert list(items) == []


def test_remove_index_count(items: Deque) -> None:
    items.extend([1, 2, 1.0, "1", None, 2])
    assert (items.count(1), items.count(2), items.count(3)) == (2, 2, 0)
    assert (items.index(2), items.index(2, 2), items.index(None, -2), items.index(1, 1, -1)) == (1, 5, 4, 2)
    for bounds in [(2, 2, 5), (3,), (1, 3), (2, -4, -1)]:
        with pytest.raises(ValueError, match="not in the deque"):
            items.index(*bounds)
    items.remove(1)
    items.remove(2)
    assert list(items) == [1.0, "1", None, 2]
    with pytest.raises(ValueError, match="'absent' is not in the deque"):
        items.remove("absent")


def test_values_are_copies(items: Deque) -> None:
    items.append([1])
    items[0].append(2)
    assert items[0] == [1]
    items[0] += [2]
    assert items[0] == [1, 2]


def test_gaps_in_the_queue_are_no_items(items: Deque) -> None:
    items.extend(range(10))
    keys = [key for key, _ in items.cache.iterqueue()]
    for place in (0, 3, 4, 9):
        assert items.cache.delete(keys[place])
    model = [1, 2, 5, 6, 7, 8]
    assert list(items) == model
    assert [items[place] for place in range(-6, 6)] == model + model
    items.insert(2, "x")
    items.rotate(3)
    items.reverse()
    assert list(items) == [5, "x", 2, 1, 8, 7, 6]


def test_a_queue_of_the_cache_is_a_deque(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache")) as cache:
        cache.push("b")
        cache.push("a", side="front")
        items = Deque.fromcache(cache, ["c"])
        assert list(items) == ["a", "b", "c"]
        assert items.cache is cache
        assert cache.pull()[1] == "a"
        assert len(items) == 2


def test_transact(items: Deque) -> None:
    items.extend([1, 2])
    with pytest.raises(ZeroDivisionError), items.transact():
        items.append(items.popleft())
        items.rotate()
        items.maxlen = 1
        raise ZeroDivisionError
    assert list(items) == [1, 2]
    assert items.maxlen == math.inf


# -- the length limit -------------------------------------------------------------------------------------------------


def test_the_limit_is_no_item(items: Deque) -> None:
    items.maxlen = 3
    assert len(items) == len(items.cache) == 0
    assert list(items) == list(items.cache) == []


def test_a_limit_given_on_opening_is_the_new_one(items: Deque) -> None:
    items.extend(range(5))
    with closing(Deque(directory=items.directory, maxlen=3).cache):
        assert list(items) == [2, 3, 4]
    with closing(Deque(directory=items.directory, maxlen=math.inf).cache):
        assert items.maxlen == math.inf


def test_every_handle_follows_the_limit(items: Deque) -> None:
    other = again(items)
    items.maxlen = 2
    other.extend(range(5))
    assert list(items) == [3, 4]
    other.maxlen = None
    items.append(5)
    assert list(other) == [3, 4, 5]
    other.cache.close()


@pytest.mark.parametrize("maxlen", [-1, 1.5, "3", True, math.nan, 1 << 63])
def test_other_limits_are_refused(tmp_path: Path, maxlen: Any) -> None:
    with pytest.raises(SettingError, match="deque_maxlen"):
        Deque(directory=tmp_path / "deque", maxlen=maxlen)
    assert not (tmp_path / "deque").exists()
    items = Deque([1, 2], tmp_path / "deque")
    with pytest.raises(SettingError, match="deque_maxlen"):
        items.maxlen = maxlen
    assert (items.maxlen, list(items)) == (math.inf, [1, 2])
    with pytest.raises(SettingError, match="deque_maxlen"):
        Deque.fromcache(items.cache, maxlen=maxlen)
    items.cache.close()


# -- handles ----------------------------------------------------------------------------------------------------------


def test_copies_are_other_objects_for_the_same_deque(items: Deque) -> None:
    items.maxlen = 3
    items.append(1)
    for other in (items.copy(), copy.copy(items)):
        assert other is not items
        other.append(2)
    assert list(items) == [1, 2, 2]
    deep = copy.deepcopy(items)
    assert deep == items
    assert deep.directory == items.directory
    deep.cache.close()


@pytest.mark.parametrize("iterable", [3, None])
def test_what_is_no_iterable_is_refused(tmp_path: Path, iterable: Any) -> None:
    items = Deque(directory=tmp_path / "deque")
    for use in (items.extend, items.extendleft, items.__iadd__):
        with pytest.raises(TypeError, match=f"iterable is {iterable}, expected values to add"):
            use(iterable)
    with pytest.raises(TypeError):
        items.rotate(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        items.insert("1", 1)  # type: ignore[arg-type]
    assert len(items) == 0
    items.cache.close()


# -- against the model ------------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.integers(0, 5),
    st.none(),
    st.text(max_size=3),
    st.just("x").map(lambda x: x * 100_000),  # a large value, which hypothesis need not print
    st.lists(st.integers(), max_size=2),
)
PLACES = st.integers(-12, 12)


class DequeMachine(RuleBasedStateMachine):
    """Do the same to a Deque and to a `collections.deque`, and see the same."""

    items: Deque
    model: deque[Any]

    @initialize(
        kind=st.sampled_from(list(CACHES)), maxlen=st.none() | st.integers(0, 8), values=st.lists(VALUES, max_size=12)
    )
    def start(self, kind: str, maxlen: int | None, values: list[Any]) -> None:
        self.open_cache = CACHES[kind]
        self.items = Deque.fromcache(self.open_cache(Path(tempfile.mkdtemp())), values, maxlen)
        self.model = deque(values, maxlen)

    def both(self, do: Callable[[Any], Any]) -> None:
        answers: list[Any] = []
        for each in (self.items, self.model):
            try:
                answers.append(do(each))
            except (IndexError, ValueError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]

    @rule(value=VALUES, left=st.booleans())
    def append(self, value: Any, left: bool) -> None:
        self.both(lambda each: each.appendleft(value) if left else each.append(value))

    @rule(values=st.lists(VALUES, max_size=5), left=st.booleans(), lazily=st.booleans())
    def extend(self, values: list[Any], left: bool, lazily: bool) -> None:
        def do(each: Any) -> None:
            (each.extendleft if left else each.extend)(iter(values) if lazily else values)

        self.both(do)

    @rule(left=st.booleans())
    def extend_by_itself(self, left: bool) -> None:
        if len(self.model) < 25:
            self.both(lambda each: (each.extendleft if left else each.extend)(each))

    @rule(left=st.booleans())
    def pop(self, left: bool) -> None:
        self.both(lambda each: each.popleft() if left else each.pop())

    @rule(place=PLACES, value=VALUES)
    def put(self, place: int, value: Any) -> None:
        self.both(lambda each: each.__setitem__(place, value))

    @rule(place=PLACES)
    def delete(self, place: int) -> None:
        self.both(lambda each: each.__delitem__(place))

    @rule(place=PLACES, value=VALUES)
    def insert(self, place: int, value: Any) -> None:
        self.both(lambda each: each.insert(place, value))

    @rule(steps=st.integers(-30, 30))
    def rotate(self, steps: int) -> None:
        self.both(lambda each: each.rotate(steps))

    @rule(value=VALUES)
    def remove(self, value: Any) -> None:
        self.both(lambda each: each.remove(value))

    @rule(value=VALUES, start=PLACES, stop=PLACES)
    def look(self, value: Any, start: int, stop: int) -> None:
        self.both(lambda each: (each.count(value), value in each))
        self.both(lambda each: each.index(value, start, stop))

    @rule()
    def turn(self) -> None:
        self.both(lambda each: each.reverse())

    @rule(times=st.integers(-1, 2))
    def multiply(self, times: int) -> None:
        if len(self.model) * max(times, 0) < 50:
            self.items *= times
            self.model *= times

    @rule()
    def clear(self) -> None:
        self.both(lambda each: each.clear())

    @rule(maxlen=st.none() | st.integers(0, 8))
    def limit(self, maxlen: int | None) -> None:
        self.items.maxlen = maxlen
        self.model = deque(self.model, maxlen)

    @rule()
    def reopen(self) -> None:
        self.items.cache.close()
        self.items = Deque.fromcache(self.open_cache(Path(self.items.directory)))

    @invariant()
    def agrees(self) -> None:
        expected = list(self.model)
        assert list(self.items) == expected
        assert list(reversed(self.items)) == expected[::-1]
        assert [self.items.peekleft(), self.items.peek()] == [expected[0], expected[-1]] if expected else not self.items
        assert [self.items[place] for place in range(len(expected))] == expected
        assert len(self.items) == len(expected)
        assert self.items == self.model
        assert self.items.maxlen == (math.inf if self.model.maxlen is None else self.model.maxlen)

    def teardown(self) -> None:
        if hasattr(self, "items"):
            assert self.items.cache.check() == []
            discard(self.items)


DequeMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestDequeMachine = DequeMachine.TestCase


@given(one=st.lists(st.integers(0, 2), max_size=4), other=st.lists(st.integers(0, 2), max_size=4))
@settings(max_examples=25, deadline=None)
def test_order_is_that_of_lists(one: list[int], other: list[int]) -> None:
    items = Deque(one)
    assert (items < other, items <= other, items == other) == (one < other, one <= other, one == other)
    assert (items > other, items >= other, items != other) == (one > other, one >= other, one != other)
    assert items != set(one)
    assert items != 3
    with pytest.raises(TypeError):
        assert items < {"a"}
    with pytest.raises(TypeError):
        hash(items)
    discard(items)
