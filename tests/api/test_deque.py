"""Deque: a sequence on disk, compared with `collections.deque`, over reopening, between processes, and under damage."""

from __future__ import annotations

import copy
import math
import pickle
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from diskcache_like import Cache, Deque, FanoutCache, Index, JSONDisk, SettingError
from diskcache_like.errors import CacheError, CorruptDatabase, DecodeError, ValueEncodeError

from ..support.cache_kinds import SECRET
from ..support.statement_hooks import is_change, watch
from ..support.tampering import DAMAGE, damage, plant, snapshot, value_files
from ..support.workers import Crew, Link, ready

BIG = "x" * 100_000  # goes to a value file
LENGTH_LIMITS = (None, math.inf, 0, 1, 3, 1000)
CACHES: dict[str, Callable[[Path], Cache]] = {
    "plain": Cache,
    "files": lambda path: Cache(path, disk_min_file_size=0),
    "json": lambda path: Cache(path, disk=JSONDisk),
    "signed": lambda path: Cache(path, secret=SECRET),
    "fanout": lambda path: FanoutCache(path, shards=3),
}


@pytest.fixture
def items(tmp_path: Path) -> Iterator[Deque]:
    """Return an empty deque."""
    found = Deque(directory=tmp_path / "deque")
    yield found
    assert [str(problem.message) for problem in found.cache.check()] == []
    found.cache.close()


@pytest.fixture(params=CACHES)
def any_items(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deque]:
    """Return a deque in each kind of cache."""
    with closing(CACHES[request.param](tmp_path / "cache")) as cache:
        yield Deque.fromcache(cache)
        assert [str(problem.message) for problem in cache.check()] == []


def again(items: Deque) -> Deque:
    """Return another handle on the same directory."""
    return Deque(directory=items.directory)


def discard(found: Deque | Index) -> None:
    """Close what was made without a directory, and remove the one that it made."""
    found.cache.close()
    shutil.rmtree(found.directory)


# -- what a deque does ------------------------------------------------------------------------------------------------


def test_both_ends(any_items: Deque) -> None:
    any_items.append("b")
    any_items.appendleft("a")
    any_items.append(BIG)
    assert (any_items.peekleft(), any_items.peek(), len(any_items)) == ("a", BIG, 3)
    assert [any_items.pop(), any_items.popleft(), any_items.popleft()] == [BIG, "a", "b"]
    for use in (any_items.pop, any_items.popleft, any_items.peek, any_items.peekleft):
        with pytest.raises(IndexError, match="empty deque"):
            use()


def test_positions(any_items: Deque) -> None:
    any_items.extend(["a", "b", "c"])
    assert [any_items[place] for place in (0, 1, 2, -1, -2, -3)] == ["a", "b", "c", "c", "b", "a"]
    any_items[1] = "B"
    any_items[-1] = BIG
    del any_items[0]
    assert list(any_items) == ["B", BIG]
    del any_items[-1]
    assert list(any_items) == ["B"]


def test_there_are_no_other_positions(any_items: Deque) -> None:
    any_items.extend([1, 2])
    uses: list[Callable[[Any], Any]] = [
        any_items.__getitem__,
        any_items.__delitem__,
        lambda place: any_items.__setitem__(place, 0),
    ]
    for use in uses:
        for place in (2, -3, 1 << 70, -(1 << 70)):
            with pytest.raises(IndexError, match="out of range"):
                use(place)
        for wrong in (1.0, "1", None, slice(0, 1)):
            with pytest.raises(TypeError):
                use(wrong)
    assert list(any_items) == [1, 2]


@pytest.mark.parametrize("place", [*range(-6, 7), 1 << 62, -(1 << 62)])
def test_insert(items: Deque, place: int) -> None:
    items.extend(range(4))
    model: deque[Any] = deque(range(4))
    for value in "ab":
        items.insert(place, value)
        model.insert(place, value)
    assert list(items) == list(model)


def test_a_full_deque_takes_no_insert(items: Deque) -> None:
    items.maxlen = 2
    items.extend([1, 2])
    with pytest.raises(IndexError, match="maximum size"):
        items.insert(1, "x")
    assert list(items) == [1, 2]


def test_extending_by_itself_ends(any_items: Deque) -> None:
    any_items.extend([1, 2, 3])
    any_items.extend(any_items)
    assert list(any_items) == [1, 2, 3] * 2
    any_items.extendleft(any_items)
    assert list(any_items) == [3, 2, 1] * 2 + [1, 2, 3] * 2
    any_items += any_items
    assert len(any_items) == 24


@pytest.mark.parametrize("maxlen", [2500, 4000])
def test_extending_by_itself_is_what_it_is_for_collections_deque(items: Deque, maxlen: int) -> None:
    items.maxlen = maxlen
    model = deque(range(2500), maxlen)
    items.extend(range(2500))
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
    assert None in items
    assert "absent" not in items


def test_comparison_is_that_of_sequences(items: Deque) -> None:
    items.extend("abc")
    others: list[Sequence[str]] = [list("abc"), tuple("abd"), deque("ab"), "abb", [], list("abcd")]
    for other in others:
        theirs = list(other)
        mine = list("abc")
        assert (items == other) is (mine == theirs)
        assert (items != other) is (mine != theirs)
        assert (items < other) is (mine < theirs)
        assert (items <= other) is (mine <= theirs)
        assert (items > other) is (mine > theirs)
        assert (items >= other) is (mine >= theirs)
    assert items == again(items)
    assert items != {"a", "b", "c"}
    assert items != 3
    with pytest.raises(TypeError):
        assert items < {"a"}
    with pytest.raises(TypeError):
        hash(items)


def test_values_are_copies(items: Deque) -> None:
    items.append([1])
    items[0].append(2)
    assert items[0] == [1]
    items[0] += [2]
    assert items[0] == [1, 2]


def test_gaps_in_the_queue_are_no_items(any_items: Deque) -> None:
    any_items.extend(range(10))
    keys = [key for key, _ in any_items.cache.iterqueue()]
    for place in (0, 3, 4, 9):
        assert any_items.cache.delete(keys[place])
    model = [1, 2, 5, 6, 7, 8]
    assert list(any_items) == model
    assert [any_items[place] for place in range(-6, 6)] == model + model
    any_items.insert(2, "x")
    any_items.rotate(3)
    any_items.reverse()
    assert list(any_items) == [5, "x", 2, 1, 8, 7, 6]


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


def test_a_failed_step_leaves_all_as_it_was(items: Deque) -> None:
    """Each operation of several writes is one transaction: it fails at any of its statements, and nothing is changed."""
    items.extend(range(6))
    items.maxlen = 6
    operations: list[Callable[[], Any]] = [
        items.reverse,
        lambda: items.rotate(2),
        lambda: items.append(7),
        lambda: items.extendleft([7, 8]),
        lambda: items.__imul__(3),
        lambda: setattr(items, "maxlen", 2),
        lambda: [setattr(items, "maxlen", 9), items.insert(2, "x")],  # type: ignore[func-returns-value]
    ]
    for operation in operations:
        seen = 0

        def fail(statement: str) -> None:
            nonlocal seen
            if is_change(statement):
                seen += 1
                if seen == 2:
                    raise ZeroDivisionError

        watch(items.cache, before=fail)
        with pytest.raises(ZeroDivisionError), items.transact():
            operation()
        items.cache.close()
        assert (list(items), items.maxlen) == (list(range(6)), 6)


# -- the length limit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maxlen", LENGTH_LIMITS)
def test_the_limit_is_kept(tmp_path: Path, maxlen: float | None) -> None:
    length = math.inf if maxlen is None else maxlen
    items = Deque(range(5), tmp_path / "deque", maxlen)
    model: deque[Any] = deque(range(5), None if length == math.inf else int(length))
    assert items.maxlen == length
    items.appendleft("left")
    model.appendleft("left")
    assert list(items) == list(model)
    items.cache.close()
    items = Deque(directory=tmp_path / "deque")
    assert items.maxlen == length
    items.extend("ab")
    model.extend("ab")
    assert list(items) == list(model)
    items.clear()
    assert items.maxlen == length
    items.cache.close()


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


def test_nothing_is_evicted(tmp_path: Path) -> None:
    items = Deque(directory=tmp_path / "deque")
    items.cache.reset("size_limit", 1)
    items.extend([BIG] * 3)
    items.cache.cull()
    assert len(items) == 3
    assert items.cache.reset("eviction_policy") == "none"
    items.cache.close()


def test_a_pickle_is_the_directory(any_items: Deque, monkeypatch: pytest.MonkeyPatch) -> None:
    if any_items.cache._session.signs_all:
        monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)
    any_items.extend(["a", BIG])
    any_items.maxlen = 2
    pickled = pickle.dumps(any_items)
    assert len(pickled) < 2000
    any_items.append("b")
    found = pickle.loads(pickled)
    assert (list(found), found.maxlen, type(found.cache)) == ([BIG, "b"], 2, type(any_items.cache))
    assert type(found.cache.disk) is type(any_items.cache.disk)
    found.cache.close()


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


def test_repr_names_the_directory(items: Deque) -> None:
    assert repr(items) == f"Deque(directory={items.directory!r})"


def test_a_deque_without_a_directory_has_one_of_its_own() -> None:
    first, second = Deque([1]), Deque()
    assert first.directory != second.directory
    assert Path(first.directory).is_dir()
    for each in (first, second):
        discard(each)


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


def test_named_deques_of_a_fanout_cache(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path / "cache", shards=2, secret=SECRET)) as cache:
        items = cache.deque("name", maxlen=2)
        assert items is cache.deque("name")
        items.extend([1, 2, 3])
        assert list(cache.deque("name")) == [2, 3]
        assert cache.deque("name", 1) is items
        assert (list(items), items.maxlen) == ([3], 1)
        assert cache.deque("other/name").directory == str(tmp_path / "cache" / "deque" / "other" / "name")
        assert len(cache) == 0
        for wrong in ("", "..", "a/../b", "/etc", "a//b", "a\0b"):
            with pytest.raises(SettingError, match="deque name"):
                cache.deque(wrong)
    with closing(FanoutCache(tmp_path / "cache", secret=SECRET)) as cache:
        assert (list(cache.deque("name")), cache.deque("name").maxlen) == ([3], 1)
        assert cache.deque("name").cache.reset("eviction_policy") == "none"
        assert cache.check() == []


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", DAMAGE)
def test_a_corrupt_database_raises_and_stays(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "cache" / "deque" / "name"
    Deque([*range(3000), BIG], directory).cache.close()
    damage(directory / "cache.db", how)
    content = snapshot(directory)[str(directory / "cache.db")]
    with closing(FanoutCache(tmp_path / "cache", shards=1)) as cache:
        ways: list[Callable[[], Deque]] = [lambda: Deque(directory=directory), lambda: cache.deque("name")]
        for opened in ways:
            with pytest.raises(CacheError) as caught:
                list(opened())
            assert isinstance(caught.value, CorruptDatabase | DecodeError), caught.value
    assert snapshot(directory)[str(directory / "cache.db")] == content
    assert not (directory / "cache.1.db").exists()


def test_a_database_that_turns_corrupt_in_use_raises(tmp_path: Path) -> None:
    items = Deque(range(5000), tmp_path / "deque")
    items.cache.close()
    damage(tmp_path / "deque" / "cache.db", "zeroed pages")
    uses: list[Callable[[], Any]] = [lambda: list(items), lambda: items.append(1), items.pop, items.peek, items.clear]
    for use in uses:
        with pytest.raises(CorruptDatabase):
            use()
    items.cache.close()
    assert not (tmp_path / "deque" / "cache.1.db").exists()


def test_a_damaged_item_raises_until_a_check_removes_it(tmp_path: Path) -> None:
    items = Deque(["a", "b", "c"], tmp_path / "deque")
    items.cache.close()
    plant(tmp_path / "deque", "UPDATE entry SET v = substr(v, 1, length(v) - 1) || X'00' WHERE num = 500000000000000")
    uses: list[Callable[[], Any]] = [lambda: items[0], items.popleft, items.peekleft, lambda: list(items)]
    for use in (*uses, items.reverse):
        with pytest.raises(DecodeError):
            use()
    assert len(items) == 3
    assert (items[1], items.peek()) == ("b", "c")
    items.cache.check(fix=True)
    assert list(items) == ["b", "c"]
    items.cache.close()


def test_an_item_whose_file_is_gone_raises_until_a_check_removes_it(tmp_path: Path) -> None:
    items = Deque([BIG, "b"], tmp_path / "deque")
    items.cache.close()
    (file,) = value_files(tmp_path / "deque")
    file.unlink()
    uses: list[Callable[[], Any]] = [lambda: items[0], items.popleft, items.peekleft, lambda: list(items)]
    for use in uses:
        with pytest.raises(DecodeError, match="file is gone"):
            use()
    assert (len(items), items[1]) == (2, "b")
    items.cache.check(fix=True)
    assert list(items) == ["b"]
    items.cache.close()


# -- several processes ------------------------------------------------------------------------------------------------

EACH = 150


def worker_turns(link: Link, number: int, directory: Path) -> tuple[list[Any], int]:
    """Add and take items at both ends, and return what was taken, and how often the limit was seen broken."""
    items = Deque(directory=directory)
    taken, broken = [], 0
    ready(link)
    for turn in range(EACH):
        (items.append if turn % 2 else items.appendleft)((number, turn))
        broken += len(items) > items.maxlen
        if turn % 3 == 0:
            taken.append(items.pop() if turn % 2 else items.popleft())
    items.cache.close()
    return taken, broken


def test_no_item_is_lost_or_taken_twice(tmp_path: Path) -> None:
    with Crew() as crew:
        workers = crew.start_many(3, worker_turns, tmp_path / "deque")
        crew.together(workers)
        results = crew.results(workers)
    items = Deque(directory=tmp_path / "deque")
    found = [*items, *(item for taken, _ in results for item in taken)]
    assert sorted(found) == [(number, turn) for number in range(3) for turn in range(EACH)]
    items.cache.close()


def test_nobody_sees_more_than_the_limit(tmp_path: Path) -> None:
    Deque(range(5), tmp_path / "deque", 5).cache.close()
    with Crew() as crew:
        workers = crew.start_many(3, worker_turns, tmp_path / "deque")
        crew.together(workers)
        assert [broken for _, broken in crew.results(workers)] == [0] * 3
    items = Deque(directory=tmp_path / "deque")
    assert (items.maxlen, len(items) <= 5) == (5, True)
    items.cache.close()


def worker_edits(link: Link, number: int, directory: Path) -> None:
    """Remove, replace or insert items by their position."""
    items = Deque(directory=directory)
    ready(link)
    for _ in range(EACH):
        if number < 2:
            del items[0]
        elif number == 2:
            items[0] = "replaced"
        else:
            items.insert(1, "inserted")
    items.cache.close()


def test_positions_hold_between_processes(tmp_path: Path) -> None:
    Deque(range(3 * EACH), tmp_path / "deque").cache.close()
    with Crew() as crew:
        workers = crew.start_many(4, worker_edits, tmp_path / "deque")
        crew.together(workers)
        crew.results(workers)
    items = Deque(directory=tmp_path / "deque")
    assert len(items) == 2 * EACH, "two deleted, one inserted, and no item was brought back"
    items.cache.close()


def worker_rotates(link: Link, number: int, directory: Path) -> None:
    """Change the order, never the items."""
    items = Deque(directory=directory)
    ready(link)
    for turn in range(EACH // 2):
        items.rotate(1 + number) if turn % 5 else items.reverse()
    items.cache.close()


def test_what_is_turned_is_always_whole(tmp_path: Path) -> None:
    items = Deque(range(7), tmp_path / "deque")
    with Crew() as crew:
        workers = crew.start_many(2, worker_rotates, tmp_path / "deque")
        crew.together(workers)
        for _ in range(EACH):
            assert len(items) == 7
            assert {items[6], items[-7]} <= set(range(7)), "there always are seven"
            with items.transact():
                seen = list(items)
            assert sorted(seen) == list(range(7))
        crew.results(workers)
    assert sorted(items) == list(range(7))
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

    @initialize(maxlen=st.none() | st.integers(0, 8), values=st.lists(VALUES, max_size=12))
    def start(self, maxlen: int | None, values: list[Any]) -> None:
        self.items = Deque(values, maxlen=maxlen)
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
        self.items = Deque(directory=self.items.directory)

    @invariant()
    def agrees(self) -> None:
        expected = list(self.model)
        assert list(self.items) == expected
        assert list(reversed(self.items)) == expected[::-1]
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
    discard(items)


def test_an_index_is_no_sequence(items: Deque) -> None:
    found = Index()
    assert items != found
    discard(found)
