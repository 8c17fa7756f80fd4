"""What Deque and Index have in common: handles on a directory, nothing evicted, and damage that raises and stays."""

from __future__ import annotations

import math
import pickle
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, Deque, FanoutCache, Index, JSONDisk, SettingError, UnsafeDirectory
from diskcache_like.errors import CacheError, CorruptDatabase, DecodeError

from ..support.cache_kinds import SECRET
from ..support.statement_hooks import is_change, watch
from ..support.tampering import DAMAGE, damage, plant, snapshot, value_files

BIG = "x" * 100_000  # goes to a value file
CACHES: dict[str, Callable[[Path], Cache]] = {
    "plain": Cache,
    "files": lambda path: Cache(path, disk_min_file_size=0),
    "json": lambda path: Cache(path, disk=JSONDisk),
    "signed": lambda path: Cache(path, secret=SECRET),
    "fanout": lambda path: FanoutCache(path, shards=3),
}
both = pytest.mark.parametrize("kind", [Deque, Index])
Structure = Deque | Index


def made(kind: type[Structure], directory: Path, values: Any = ()) -> Any:
    """Return a structure with some values; in an Index they have their positions, as text, for keys."""
    if kind is Deque:
        return Deque(values, directory)
    return Index(directory, {str(place): value for place, value in enumerate(values)})


def again(kind: type[Structure], directory: Path) -> Structure:
    """Return another handle on a directory."""
    return Deque(directory=directory) if kind is Deque else Index(directory)


def values_of(found: Structure) -> list[Any]:
    """Return all values in their order."""
    return list(found) if isinstance(found, Deque) else list(found.values())


def discard(found: Structure) -> None:
    """Close what was made without a directory, and remove the one that it made."""
    found.cache.close()
    shutil.rmtree(found.directory)


# -- handles ----------------------------------------------------------------------------------------------------------


@both
def test_nothing_is_evicted(tmp_path: Path, kind: type[Structure]) -> None:
    found = made(kind, tmp_path, [1])
    with closing(found.cache):
        found.cache.reset("size_limit", 1)
        found.extend([BIG] * 3) if kind is Deque else found.update({number: BIG for number in range(3)})
        found.cache.cull()
        assert len(found) == 4
        assert found.cache.reset("eviction_policy") == "none"


@both
@pytest.mark.parametrize("name", CACHES)
def test_a_pickle_is_the_directory(
    tmp_path: Path, kind: type[Structure], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "signed":
        monkeypatch.setenv("DISKCACHE_LIKE_SECRET", SECRET)  # a pickle carries none
    with closing(CACHES[name](tmp_path)) as cache:
        one: Any = kind.fromcache(cache)
        one.append(BIG) if kind is Deque else one.update(a=BIG)
        pickled = pickle.dumps(one)
        assert len(pickled) < 2000
        one.append("b") if kind is Deque else one.update(b="b")
        other = pickle.loads(pickled)
        with closing(other.cache):
            assert sorted(values_of(other)) == ["b", BIG]
            assert (type(other), type(other.cache)) == (kind, type(cache))
            assert type(other.cache.disk) is type(cache.disk)
            del other[0 if kind is Deque else "a"]
        assert values_of(one) == ["b"]
        assert cache.check() == []


@both
def test_each_shows_its_directory_and_without_one_has_its_own(kind: type[Structure]) -> None:
    first, second = kind(["ab"]), kind()
    assert first.directory != second.directory
    assert (len(first), len(second)) == (1, 0)
    for found in (first, second):
        assert Path(found.directory).is_dir()
        assert found.directory in repr(found)
        discard(found)


def test_an_index_is_no_sequence() -> None:
    deque, index = Deque(), Index()
    assert deque != index
    discard(deque)
    discard(index)


@both
def test_named_children_of_a_fanout_cache(tmp_path: Path, kind: type[Structure]) -> None:
    name = kind.__name__.lower()
    with closing(FanoutCache(tmp_path, shards=2, disk=JSONDisk, secret=SECRET)) as cache:
        child = getattr(cache, name)
        found = child("name")
        assert found is child("name")
        assert type(found.cache.disk) is JSONDisk
        found.append("value") if kind is Deque else found.update(key="value")
        assert child("other/name").directory == str(tmp_path / name / "other" / "name")
        assert len(cache) == 0
        for wrong in ("", "..", "a/../b", "/etc", "a//b", "a\0b"):
            with pytest.raises(SettingError, match=f"{name} name"):
                child(wrong)
        (tmp_path / name / "link").symlink_to(tmp_path)
        with pytest.raises(UnsafeDirectory):
            child("link")
    with closing(FanoutCache(tmp_path, disk=JSONDisk, secret=SECRET)) as cache:
        found = getattr(cache, name)("name")
        assert values_of(found) == ["value"]
        assert found.cache.reset("eviction_policy") == "none"
        assert cache.check() == []


def test_a_named_deque_takes_another_length(tmp_path: Path) -> None:
    with closing(FanoutCache(tmp_path, shards=2)) as cache:
        items = cache.deque("name", maxlen=2)
        items.extend([1, 2, 3])
        assert list(cache.deque("name")) == [2, 3]
        assert cache.deque("name", 1) is items
        assert (list(items), items.maxlen) == ([3], 1)
    with closing(FanoutCache(tmp_path)) as cache:
        assert cache.deque("name").maxlen == 1


# How long the deque may be, at which change to an entry it fails, and what is done.
SEVERAL_WRITES: dict[str, tuple[type[Structure], float | None, int, Callable[[Any], object]]] = {
    "reverse": (Deque, None, 2, Deque.reverse),
    "rotate": (Deque, None, 2, lambda deque: deque.rotate(2)),
    "append": (Deque, 6, 2, lambda deque: deque.append(7)),
    "extendleft": (Deque, 6, 2, lambda deque: deque.extendleft([7, 8])),
    "multiply": (Deque, None, 2, lambda deque: deque.__imul__(3)),
    "shorten": (Deque, 6, 2, lambda deque: setattr(deque, "maxlen", 2)),
    "insert": (Deque, None, 2, lambda deque: deque.insert(2, "x")),
    "popitem": (Index, None, 1, Index.popitem),
    "setdefault": (Index, None, 1, lambda index: index.setdefault("new", 1)),
    "update": (Index, None, 2, lambda index: index.update({"0": "x", "1": "y"})),
}


@pytest.mark.parametrize("name", SEVERAL_WRITES)
def test_an_operation_of_several_writes_that_fails_changes_nothing(tmp_path: Path, name: str) -> None:
    kind, maxlen, left, operation = SEVERAL_WRITES[name]
    found = made(kind, tmp_path, range(6))
    if maxlen is not None:
        found.maxlen = maxlen

    def fail(statement: str) -> None:
        nonlocal left
        left -= is_change(statement)
        if is_change(statement) and left == 0:
            raise ZeroDivisionError

    watch(found.cache, before=fail)
    with pytest.raises(ZeroDivisionError):
        operation(found)
    found.cache.close()
    assert values_of(found) == list(range(6))
    assert kind is Index or found.maxlen == (maxlen or math.inf)
    found.cache.close()


# -- damage -----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", DAMAGE)
def test_a_corrupt_database_raises_and_stays(tmp_path: Path, kind: type[Structure], how: str) -> None:
    name = kind.__name__.lower()
    directory = tmp_path / "cache" / name / "name"
    made(kind, directory, [*range(1000), BIG]).cache.close()
    damage(directory / "cache.db", how)
    content = snapshot(directory)[str(directory / "cache.db")]
    with closing(FanoutCache(tmp_path / "cache", shards=1)) as cache:
        for opened in (lambda: again(kind, directory), lambda: getattr(cache, name)("name")):
            with pytest.raises(CacheError) as caught:
                values_of(opened())
            assert isinstance(caught.value, CorruptDatabase | DecodeError), caught.value
    assert snapshot(directory)[str(directory / "cache.db")] == content
    assert not (directory / "cache.1.db").exists()


@both
def test_a_database_that_is_gone_is_not_made_again(tmp_path: Path, kind: type[Structure]) -> None:
    made(kind, tmp_path, [1]).cache.close()
    (tmp_path / "cache.db").unlink()
    with pytest.raises(CorruptDatabase, match="gone"):
        again(kind, tmp_path)
    assert not list(tmp_path.glob("*.db"))


@both
def test_a_database_that_turns_corrupt_in_use_raises(tmp_path: Path, kind: type[Structure]) -> None:
    found = made(kind, tmp_path, range(1000))
    found.cache.close()
    damage(tmp_path / "cache.db", "zeroed pages")
    of_a_deque: list[Callable[[], Any]] = [lambda: found.append(1), lambda: found.pop(), lambda: found.peek()]
    of_an_index: list[Callable[[], Any]] = [lambda: found["a"], lambda: found.update(a=1), lambda: found.popitem()]
    uses = of_a_deque if kind is Deque else of_an_index
    uses += [lambda: values_of(found), lambda: found.clear()]
    for use in uses:
        with pytest.raises(CorruptDatabase):
            use()
    found.cache.close()
    assert not (tmp_path / "cache.1.db").exists()


@both
@pytest.mark.parametrize("harm", ["row", "file"])
def test_a_damaged_value_raises_until_a_check_removes_it(tmp_path: Path, kind: type[Structure], harm: str) -> None:
    found = made(kind, tmp_path, [BIG, "b", "c"])
    found.cache.close()
    if harm == "row":
        first = "(SELECT h FROM entry ORDER BY id LIMIT 1)"
        plant(tmp_path, f"UPDATE entry SET v = substr(v, 1, length(v) - 1) || X'00' WHERE h = {first}")
    else:
        (file,) = value_files(tmp_path)
        file.unlink()
    of_a_deque: list[Callable[[], Any]] = [
        lambda: found[0],
        lambda: found.popleft(),
        lambda: found.peekleft(),
        lambda: found.reverse(),
    ]
    of_an_index: list[Callable[[], Any]] = [
        lambda: found["0"],
        lambda: found.get("0"),
        lambda: found.pop("0"),
        lambda: found.popitem(last=False),
        lambda: found.setdefault("0", 5),
    ]
    uses = of_a_deque if kind is Deque else of_an_index
    uses.append(lambda: values_of(found))
    for use in uses:
        with pytest.raises(DecodeError, match="file is gone" if harm == "file" else "key"):
            use()
    assert (len(found), found[1 if kind is Deque else "1"]) == (3, "b")
    found.cache.check(fix=True)
    assert values_of(found) == ["b", "c"]
    found.cache.close()


def test_an_index_of_a_namespace_takes_no_item_of_the_whole_cache(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["outside"] = 1
        index = Index.fromcache(cache.namespace("inside"))
        index["key"] = 2
        for refused in (index.popitem, index.peekitem):
            with pytest.raises(CacheError, match="not there in a namespace"):
                refused()
        assert (cache["outside"], index["key"]) == (1, 2)
