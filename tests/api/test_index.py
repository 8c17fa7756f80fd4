"""Index: a mapping on disk, compared with `OrderedDict`, over reopening, between processes, and under damage."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskcache_like import Cache, Deque, FanoutCache, Index, JSONDisk, SettingError, UnsafeDirectory
from diskcache_like.errors import CacheError, CorruptDatabase, DecodeError, KeyEncodeError, ValueEncodeError

from ..support.cache_kinds import SECRET, Clock
from ..support.statement_hooks import is_change, watch
from ..support.tampering import DAMAGE, damage, plant, snapshot
from ..support.workers import Crew, Link, ready

BIG = "x" * 100_000  # goes to a value file
PAIRS = [("a", 1), ("b", 2), ("c", BIG)]
CACHES: dict[str, Callable[[Path], Cache]] = {
    "plain": Cache,
    "files": lambda path: Cache(path, disk_min_file_size=0),
    "json": lambda path: Cache(path, disk=JSONDisk),
    "signed": lambda path: Cache(path, secret=SECRET),
    "fanout": lambda path: FanoutCache(path, shards=3),
}


@pytest.fixture
def entries(tmp_path: Path) -> Iterator[Index]:
    """Return an empty index."""
    found = Index(tmp_path / "index")
    yield found
    assert [str(problem.message) for problem in found.cache.check()] == []
    found.cache.close()


@pytest.fixture(params=CACHES)
def any_entries(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index]:
    """Return an index in each kind of cache."""
    with closing(CACHES[request.param](tmp_path / "cache")) as cache:
        yield Index.fromcache(cache)
        assert [str(problem.message) for problem in cache.check()] == []


def discard(found: Index) -> None:
    """Close what was made without a directory, and remove the one that it made."""
    found.cache.close()
    shutil.rmtree(found.directory)


# -- what a mapping does ----------------------------------------------------------------------------------------------


def test_a_mapping(any_entries: Index) -> None:
    any_entries.update(PAIRS)
    assert dict(any_entries) == dict(PAIRS)
    assert any_entries == dict(PAIRS)
    assert ("a" in any_entries, "z" in any_entries, len(any_entries)) == (True, False, 3)
    assert (any_entries.get("a"), any_entries.get("z"), any_entries.get("z", 0)) == (1, None, 0)
    any_entries["a"] = 5
    del any_entries["b"]
    assert sorted(any_entries) == ["a", "c"]
    assert (any_entries.pop("a"), any_entries.pop("a", 7), any_entries.pop("a", None)) == (5, 7, None)
    uses: list[Callable[[], Any]] = [
        lambda: any_entries["a"],
        lambda: any_entries.pop("a"),
        lambda: any_entries.__delitem__("a"),
    ]
    for use in uses:
        with pytest.raises(KeyError, match="'a'"):
            use()
    any_entries.clear()
    assert (len(any_entries), bool(any_entries), list(any_entries)) == (0, False, [])


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


def test_an_empty_index_has_no_items(entries: Index) -> None:
    uses: list[Callable[[], Any]] = [entries.popitem, entries.peekitem, lambda: entries.popitem(last=False)]
    for use in uses:
        with pytest.raises(KeyError):
            use()


def test_setdefault(any_entries: Index) -> None:
    assert any_entries.setdefault("a", [1]) == [1]
    assert any_entries.setdefault("a", 2) == [1]
    assert any_entries.setdefault("none") is None
    assert any_entries.setdefault("none", 3) is None
    assert dict(any_entries) == {"a": [1], "none": None}


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


def test_keys_that_are_equal_are_one_entry(entries: Index) -> None:
    entries.update([(1, "int"), (1.0, "float"), ((1, "x"), "tuple"), ([1], "list")])
    assert (len(entries), entries[True], entries[1, "x"], entries[[1]]) == (3, "float", "tuple", "list")
    with pytest.raises(KeyEncodeError):
        entries[lambda: None] = 1


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


def test_a_failed_step_leaves_all_as_it_was(entries: Index) -> None:
    entries.update(PAIRS)
    operations: list[tuple[int, Callable[[], Any]]] = [
        (1, entries.popitem),
        (1, lambda: entries.setdefault("new", 1)),
        (2, lambda: entries.update({"a": 0, "b": 0})),
    ]
    for number, operation in operations:
        left = number

        def fail(statement: str) -> None:
            nonlocal left
            left -= is_change(statement)
            if is_change(statement) and left == 0:
                raise ZeroDivisionError

        watch(entries.cache, before=fail)
        with pytest.raises(ZeroDivisionError):
            operation()
        entries.cache.close()
        assert list(entries.items()) == PAIRS


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


def test_without_a_directory_it_is_a_temporary_one() -> None:
    made = [Index(), Index({"a": 1}), Index(None, {"a": 1}), Index([("a", 1)], b=2), Index(None)]
    assert [len(each) for each in made] == [0, 1, 1, 2, 0]
    assert len({each.directory for each in made}) == 5
    for each in made:
        discard(each)


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    refused: list[tuple[Any, ...]] = [({}, {}), (tmp_path / "index", {}, {}), (3,)]
    for arguments in refused:
        with pytest.raises(TypeError):
            Index(*arguments)


def test_nothing_is_evicted(entries: Index) -> None:
    entries.cache.reset("size_limit", 1)
    entries.update({number: BIG for number in range(3)})
    entries.cache.cull()
    assert len(entries) == 3
    assert entries.cache.reset("eviction_policy") == "none"


def test_a_pickle_is_the_directory(any_entries: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    if any_entries.cache._session.signs_all:
        monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    any_entries["a"] = BIG
    pickled = pickle.dumps(any_entries)
    assert len(pickled) < 2000
    any_entries["b"] = 1
    found = pickle.loads(pickled)
    assert dict(found) == {"a": BIG, "b": 1}
    assert type(found.cache) is type(any_entries.cache)
    found["b"] = 2
    assert any_entries["b"] == 2
    found.cache.close()
    shallow = copy.copy(any_entries)
    assert shallow.cache is any_entries.cache


def test_named_indexes_of_a_fanout_cache(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=2, disk=JSONDisk)) as cache:
        found = cache.index("name")
        assert found is cache.index("name")
        found.update(PAIRS)
        assert found.directory == str(tmp_path / "cache" / "index" / "name")
        assert type(found.cache.disk) is JSONDisk
        assert cache.deque("name").directory != found.directory
        assert len(cache) == 0
        with pytest.raises(SettingError, match="index name"):
            cache.index("../name")
        (tmp_path / "cache" / "index" / "link").symlink_to(tmp_path)
        with pytest.raises(UnsafeDirectory):
            cache.index("link")
    with closing(FanoutCache(tmp_path / "cache", disk=JSONDisk)) as cache:
        assert list(cache.index("name").items()) == PAIRS


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_a_corrupt_database_raises_and_stays(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "cache" / "index" / "name"
    Index(directory, {number: number for number in range(3000)}).cache.close()
    damage(directory / "cache.db", how)
    content = snapshot(directory)[str(directory / "cache.db")]
    with closing(FanoutCache(tmp_path / "cache", shards=1)) as cache:
        ways: list[Callable[[], Index]] = [lambda: Index(directory), lambda: cache.index("name")]
        for opened in ways:
            with pytest.raises(CacheError) as caught:
                list(opened().values())
            assert isinstance(caught.value, CorruptDatabase | DecodeError), caught.value
    assert snapshot(directory)[str(directory / "cache.db")] == content
    assert not (directory / "cache.1.db").exists()


def test_a_database_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    Index(tmp_path / "index", PAIRS).cache.close()
    (tmp_path / "index" / "cache.db").unlink()
    ways: list[Callable[[], object]] = [
        lambda: Index(tmp_path / "index"),
        lambda: Deque(directory=tmp_path / "index"),
    ]
    for open_again in ways:
        with pytest.raises(CorruptDatabase, match="gone"):
            open_again()
    assert not list((tmp_path / "index").glob("*.db"))


def test_a_database_that_turns_corrupt_in_use_raises(tmp_path: Path) -> None:
    entries = Index(tmp_path / "index", {number: number for number in range(5000)})
    entries.cache.close()
    damage(tmp_path / "index" / "cache.db", "zeroed pages")
    uses: list[Callable[[], Any]] = [lambda: entries["a"], lambda: entries.update(a=1), entries.popitem, entries.clear]
    for use in uses:
        with pytest.raises(CorruptDatabase):
            use()
    entries.cache.close()
    assert not (tmp_path / "index" / "cache.1.db").exists()


def test_a_damaged_entry_raises_until_a_check_removes_it(tmp_path: Path) -> None:
    entries = Index(tmp_path / "index", PAIRS)
    entries.cache.close()
    first = "(SELECT h FROM entry ORDER BY seq LIMIT 1)"
    plant(tmp_path / "index", f"UPDATE entry SET v = substr(v, 1, length(v) - 1) || X'00' WHERE h = {first}")
    uses: list[Callable[[], Any]] = [
        lambda: entries["a"],
        lambda: entries.get("a"),
        lambda: entries.pop("a"),
        lambda: entries.popitem(last=False),
        lambda: entries.setdefault("a", 5),
        lambda: dict(entries),
    ]
    for use in uses:
        with pytest.raises(DecodeError):
            use()
    assert (len(entries), entries["b"]) == (3, 2)
    entries.cache.check(fix=True)
    assert list(entries.items()) == PAIRS[1:]
    entries.cache.close()


# -- several processes ------------------------------------------------------------------------------------------------

EACH = 100


def worker_counts(link: Link, number: int, directory: Path) -> list[int]:
    """Count up in transactions, and set defaults; return the defaults that were found."""
    entries = Index(directory)
    ready(link)
    found = []
    for turn in range(EACH):
        with entries.transact():
            entries["count"] = entries.get("count", 0) + 1
        found.append(entries.setdefault(("default", turn), number))
    entries.cache.close()
    return found


def test_processes_count_exactly_and_agree_on_defaults(tmp_path: Path) -> None:
    with Crew() as crew:
        workers = crew.start_many(3, worker_counts, tmp_path / "index")
        crew.together(workers)
        results = crew.results(workers)
    entries = Index(tmp_path / "index")
    assert entries["count"] == 3 * EACH
    assert results[0] == results[1] == results[2] == [entries["default", turn] for turn in range(EACH)]
    entries.cache.close()


def worker_takes(link: Link, number: int, directory: Path) -> list[Any]:
    """Take entries from both ends until there are none, and return them."""
    entries = Index(directory)
    ready(link)
    taken = []
    try:
        while True:
            taken.append(entries.popitem(last=number % 2 == 0))
    except KeyError:
        assert len(entries) == 0, "an error while there are entries means that one was taken by two"
        entries.cache.close()
        return taken


def test_no_entry_is_taken_twice(tmp_path: Path) -> None:
    model = {number: number * 2 for number in range(300)}
    Index(tmp_path / "index", model).cache.close()
    with Crew() as crew:
        workers = crew.start_many(3, worker_takes, tmp_path / "index")
        crew.together(workers)
        taken = [pair for each in crew.results(workers) for pair in each]
    assert sorted(taken) == sorted(model.items())


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

    @rule(key=KEYS, default=st.none() | VALUES)
    def pop(self, key: Any, default: Any) -> None:
        self.both(lambda each: each.pop(key) if default is None else each.pop(key, default))

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
