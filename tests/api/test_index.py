"""Index: a mapping on disk, compared with `OrderedDict`; between processes: prove/linearizability."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskcache_like import Cache, Index
from diskcache_like.errors import ValueEncodeError

from ..support.cache_kinds import Clock
from .test_deque_and_index import discard

BIG = "x" * 100_000  # goes to a value file
PAIRS = [("a", 1), ("b", 2), ("c", BIG)]


@pytest.fixture
def entries(tmp_path: Path) -> Iterator[Index]:
    """Return an empty index."""
    found = Index(tmp_path / "index")
    yield found
    assert [str(problem.message) for problem in found.cache.check()] == []
    found.cache.close()


# -- what a mapping does ----------------------------------------------------------------------------------------------


def test_the_order_is_that_of_insertion(entries: Index) -> None:
    entries.update({"c": 1, "a": 2, 0: 3})
    entries["c"] = 4
    entries["b"] = 5
    assert list(entries) == ["c", "a", 0, "b"]
    assert list(reversed(entries)) == ["b", 0, "a", "c"]
    del entries["c"]
    entries["c"] = 6
    assert list(entries.items()) == [("a", 2), (0, 3), ("b", 5), ("c", 6)]
    assert list(reversed(entries.items())) == [("c", 6), ("b", 5), (0, 3), ("a", 2)]  # type: ignore[call-overload]
    assert list(reversed(entries.values())) == [6, 5, 3, 2]  # type: ignore[call-overload]
    assert list(reversed(entries.keys())) == ["c", "b", 0, "a"]  # type: ignore[call-overload]
    assert (entries.peekitem(), entries.peekitem(last=False)) == (("c", 6), ("a", 2))
    assert (entries.popitem(), entries.popitem(last=False)) == (("c", 6), ("a", 2))
    assert list(entries) == [0, "b"]
    assert (entries.pop("z", None), entries.pop("b", None)) == (None, 5)


def test_a_default_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with closing(Cache(tmp_path / "cache", size_limit=1000)) as cache:
        found = Index.fromcache(cache)
        with pytest.raises(ValueError, match="size_limit"):
            found.setdefault("a", BIG)
        with pytest.raises(ValueError, match="size_limit"):
            found.update({"b": 1, "a": BIG})
        assert len(found) == 0


class Keyed:
    """What `dict.update` takes for a mapping."""

    def keys(self) -> list[str]:
        return ["a", "b"]

    def __getitem__(self, key: str) -> str:
        return key * 2


def test_update_takes_what_dict_takes(entries: Index) -> None:
    uses: list[Callable[[Any], Any]] = [
        lambda each: each.update(),
        lambda each: each.update(x=1, other=2, self=3),
        lambda each: each.update({"a": 1}, b=2),
        lambda each: each.update(Keyed()),
        lambda each: each.update(iter(PAIRS)),
        lambda each: each.update(UserDict(PAIRS)),
        lambda each: each.update(["kv", ("k", 2)]),
        lambda each: each.update(()),
    ]
    model: dict[Any, Any] = {}
    for use in uses:
        use(entries)
        use(model)
        assert list(entries.items()) == list(model.items())
    entries.update(entries)
    assert list(entries.items()) == list(model.items())


@pytest.mark.parametrize("other", [3, None, ["abc"], [("a",)], [1], "abc"])
def test_update_refuses_what_dict_refuses(entries: Index, other: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        entries.update(other)
    with pytest.raises(TypeError):
        entries.update({}, {})  # type: ignore[call-arg]
    assert len(entries) == 0


def test_a_collection_is_stored_whole_or_not_at_all(entries: Index) -> None:
    with pytest.raises(ValueEncodeError):
        entries.update({"a": 1, "b": lambda: None})
    assert len(entries) == 0


def test_views(entries: Index) -> None:
    entries.update(a=1, b=2)
    keys, values, items = entries.keys(), entries.values(), entries.items()
    entries["c"] = 3
    assert (len(keys), len(values), len(items)) == (3, 3, 3)
    assert keys & {"a", "z"} == {"a"}
    assert keys | {"z"} == {"a", "b", "c", "z"}
    assert keys - {"a"} == {"b", "c"}
    assert keys ^ {"a", "z"} == {"b", "c", "z"}
    assert keys == {"a", "b", "c"}
    assert keys <= {"a", "b", "c", "d"}
    assert keys.isdisjoint({"z"})
    assert items & {("a", 1), ("b", 1)} == {("a", 1)}
    assert items == {"a": 1, "b": 2, "c": 3}.items()
    assert (("a", 1) in items, ("a", 2) in items, ("z", 1) in items) == (True, False, False)
    assert (2 in values, 4 in values) == (True, False)
    assert list(values) == [1, 2, 3]


def test_what_goes_during_a_walk_is_left_out(entries: Index) -> None:
    for walk in (entries.values, entries.items, entries.keys):
        entries.update({number: number for number in range(250)})
        seen = 0
        for _ in walk():
            seen += 1
            if seen == 1:
                for number in range(100, 250):
                    del entries[number]
                entries["new"] = 1
        assert seen == 100
        entries.clear()


def test_a_value_is_looked_for_in_what_is_there(tmp_path: Path) -> None:
    clock = Clock()
    with Cache(tmp_path / "cache", clock=clock) as cache:
        cache.set("a", 1, expire=5)
        entries = Index.fromcache(cache, b=2)
        clock.advance(10)
        assert (1 in entries.values(), 2 in entries.values()) == (False, True)

        class Removing:
            def __eq__(self, other: object) -> bool:
                entries.pop("c", None)  # as another process may
                return False

            __hash__ = None  # type: ignore[assignment]

        entries["c"] = 3
        assert Removing() not in entries.values()
        assert list(entries.values()) == [2]


def test_comparison(entries: Index) -> None:
    pairs = [("a", 1), ("b", 2)]
    entries.update(pairs)
    other = Index(dict(reversed(pairs)))
    assert entries == OrderedDict(pairs)
    assert entries != OrderedDict(reversed(pairs))
    assert entries == dict(reversed(pairs))
    assert entries != other
    assert other != entries
    assert entries == Index.fromcache(entries.cache)
    assert entries == UserDict(pairs)
    for different in ({"a": 1}, {"a": 1, "b": 3}, {"a": 1, "c": 2}, [], 3, None, pairs):
        assert entries != different
        assert (entries == different) is False
    with pytest.raises(TypeError):
        hash(entries)
    entries[["b"]] = entries.pop("b")
    assert entries != dict(pairs), "no dictionary has such a key"
    discard(other)


def test_queues_have_keys_of_their_own(entries: Index) -> None:
    key = entries.push("a")
    assert entries[key] == "a"
    entries.push("b", prefix="p")
    entries.push("first", prefix="p", side="front")
    assert entries.pull(prefix="p")[1] == "first"
    assert entries.pull(prefix="p", side="back")[1] == "b"
    assert (entries.pull(), entries.pull(), entries.pull(default=0)) == ((key, "a"), (None, None), 0)


def test_memoize(entries: Index) -> None:
    calls = []

    @entries.memoize("square", typed=True, ignore={"note"})
    def square(number: int, note: str = "") -> int:
        calls.append(number)
        return number * number

    assert [square(3), square(3, note="again"), square(3.0)] == [9, 9, 9.0]  # type: ignore[arg-type]
    assert calls == [3, 3.0]
    assert entries[square.__cache_key__(3)] == 9
    with pytest.raises(TypeError, match="parentheses"):
        entries.memoize(square)  # type: ignore[arg-type]


def test_transact(entries: Index) -> None:
    entries.update(PAIRS)
    with pytest.raises(ZeroDivisionError), entries.transact():
        entries.popitem()
        entries.update(z=1)
        entries["a"] = 2
        raise ZeroDivisionError
    assert list(entries.items()) == PAIRS
    with entries.transact():
        entries["a"] += 1
    assert entries["a"] == 2


# -- handles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spell", [str, bytes, Path])
def test_the_first_argument_may_be_a_directory(tmp_path: Path, spell: Callable[[Any], Any]) -> None:
    directory = str(tmp_path / "index")
    spelled = directory.encode() if spell is bytes else spell(directory)
    found = Index(spelled, PAIRS, d=4)
    assert (found.directory, len(found)) == (directory, 4)
    assert repr(found) == f"Index({directory!r})"
    found.cache.close()
    found = Index(spelled)
    assert list(found.items()) == [*PAIRS, ("d", 4)]
    found.cache.close()


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    refused: list[tuple[Any, ...]] = [({}, {}), (tmp_path / "index", {}, {}), (3,)]
    for arguments in refused:
        with pytest.raises(TypeError):
            Index(*arguments)


# -- against the model ------------------------------------------------------------------------------------------------

KEYS = st.one_of(st.integers(0, 6), st.sampled_from(["a", "b", (1, "x"), 1.5, None, b"a"]))
VALUES = st.one_of(st.integers(0, 3), st.none(), st.just("x").map(lambda x: x * 100_000), st.lists(st.integers()))


class IndexMachine(RuleBasedStateMachine):
    """Do the same to an Index and to an OrderedDict, and see the same."""

    entries: Index
    model: OrderedDict[Any, Any]

    @initialize(given=st.dictionaries(KEYS, VALUES, max_size=6))
    def start(self, given: dict[Any, Any]) -> None:
        self.entries = Index(given)
        self.model = OrderedDict(given)

    def both(self, do: Callable[[Any], Any]) -> None:
        answers: list[Any] = []
        for each in (self.entries, self.model):
            try:
                answers.append(do(each))
            except KeyError as error:
                answers.append(type(error))
        assert answers[0] == answers[1]

    @rule(key=KEYS, value=VALUES)
    def put(self, key: Any, value: Any) -> None:
        self.both(lambda each: each.__setitem__(key, value))

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        self.both(lambda each: each.__delitem__(key))

    @rule(key=KEYS, default=VALUES)
    def look(self, key: Any, default: Any) -> None:
        self.both(lambda each: (each.get(key, default), key in each))
        self.both(lambda each: each[key])

    @rule(key=KEYS, default=VALUES)
    def setdefault(self, key: Any, default: Any) -> None:
        self.both(lambda each: each.setdefault(key, default))

    @rule(key=KEYS, default=st.lists(VALUES, max_size=1))
    def pop(self, key: Any, default: list[Any]) -> None:
        self.both(lambda each: each.pop(key, *default))

    @rule(last=st.booleans())
    def popitem(self, last: bool) -> None:
        self.both(lambda each: each.popitem(last))

    @rule(given=st.dictionaries(KEYS, VALUES, max_size=4), lazily=st.booleans())
    def update(self, given: dict[Any, Any], lazily: bool) -> None:
        self.both(lambda each: each.update(iter(given.items()) if lazily else given))

    @rule()
    def clear(self) -> None:
        self.both(lambda each: each.clear())

    @rule()
    def reopen(self) -> None:
        self.entries.cache.close()
        self.entries = Index(self.entries.directory)

    @invariant()
    def agrees(self) -> None:
        assert list(self.entries.items()) == list(self.model.items())
        assert list(reversed(self.entries)) == list(reversed(self.model))
        assert list(self.entries.values()) == list(self.model.values())
        assert self.entries == self.model
        assert len(self.entries) == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "entries"):
            assert self.entries.cache.check() == []
            discard(self.entries)


IndexMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestIndexMachine = IndexMachine.TestCase
