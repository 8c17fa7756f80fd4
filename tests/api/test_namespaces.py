"""Namespaces: key spaces of their own in one cache, found by the index, cleared and counted without the rest."""

from __future__ import annotations

import contextlib
import inspect
import io
import pickle
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Averager, Breaker, Cache, CacheError, FanoutCache, KeyEncodeError, Lock, Timeout, barrier
from diskcache_like.encoding import made_keys
from diskcache_like.encoding.made_keys import NamespacedKey, path_of
from diskcache_like.settings.definitions import SettingsInForce

from ..support.cache_kinds import QUICK, Clock, Kind, Opener, few, one
from ..support.inspection import problems
from .test_checking import tamper

KEYS: list[Any] = ["text", "", 1, 2.5, None, "x" * 300, True]


def test_each_has_its_own_keys(cache: Cache, kind: Kind) -> None:
    users, pages = cache.namespace("users"), cache.namespace("pages")
    for number, key in enumerate(KEYS[:-1]):
        cache[key], users[key], pages[key] = number, -number, str(number)
    for number, key in enumerate(KEYS[:-1]):
        assert (cache[key], users[key], pages[key]) == (number, -number, str(number))
        assert users.get_entry(key).value == -number
    if not kind.json:  # whose JSON tells these apart
        assert users[1.0] == users[True] == users[1]
    assert set(users) == set(KEYS[:-1])
    assert len(users) == len(pages) == len(KEYS) - 1
    assert len(cache) == 3 * len(users)
    del users["text"]
    assert "text" not in users
    assert cache["text"] == 0
    assert pages["text"] == "0"
    assert problems(cache) == []


# What each public name of a cache means in a namespace, besides the operations whose first parameter is a key, or keys,
# or items. Whoever adds one decides.
OF_ITS_OWN = {
    *("clear", "copy_to", "count", "evict", "items", "iterkeys", "keys", "memoize", "metrics", "namespace", "tags"),
    "values",
}
OF_THE_CACHE = {
    *("aio", "check", "close", "create_tag_index", "directory", "disk", "drop_tag_index", "flush", "remote"),
    *("reset", "rotate", "sync", "timeout", "transact"),
    *("cache", "deque", "index"),  # of a FanoutCache, which have names of their own
    *(name for name in dir(SettingsInForce) if not name.startswith("_")),
}
REFUSED = {"cull", "expire", "iterqueue", "peek", "peekitem", "pull", "push", "stats", "volume"}
ARGUMENTS = {
    "key": "key",
    "expire": 5,
    "keys_": ["key"],
    "items": {"key": 1},
    "value": 1,
    "compute": lambda: 1,
    "compute_missing": dict.fromkeys,
}


def takes_keys(name: str) -> bool:
    method = getattr(Cache, name, None)
    first = [*inspect.signature(method).parameters][1:2] if callable(method) else []
    return name not in OF_THE_CACHE and first in (["key"], ["keys_"], ["items"])


PUBLIC = sorted(name for name in dir(FanoutCache) if not name.startswith("_"))
TAKE_KEYS = [*filter(takes_keys, PUBLIC), *("__getitem__", "__setitem__", "__delitem__", "__contains__")]


def test_every_public_name_is_known_to_mean_a_namespace_or_the_cache() -> None:
    assert len(TAKE_KEYS) > 15
    assert sorted({*TAKE_KEYS, *OF_ITS_OWN, *OF_THE_CACHE, *REFUSED} & set(PUBLIC)) == PUBLIC


@few
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("name", TAKE_KEYS)
def test_what_takes_keys_leaves_the_cache_around_as_it_is(name: str, is_there: bool, cache: Cache) -> None:
    space = cache.namespace("space")
    cache.set("key", b"around", expire=1000, tag="t")
    if is_there:
        space["key"] = 5
    before = cache.get_entry("key")
    method = getattr(space, name)
    needed = [
        ARGUMENTS[parameter.name]
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    answer: Any = None
    with contextlib.suppress(KeyError, TypeError):  # there is none, or it is no stream
        answer = method(*needed)
    if isinstance(answer, io.IOBase):
        answer = answer.read()
    assert b"around" not in (answer, *(answer.values() if isinstance(answer, dict) else ()))
    assert cache.get_entry("key") == before
    assert set(cache) <= {"key", NamespacedKey(path_of(("space",)), "key")}


@few
def test_what_is_refused_says_where_it_is(cache: Cache) -> None:
    space = cache.namespace("space")
    for name in sorted(REFUSED):
        with pytest.raises(CacheError, match=f"^{name}.*call that of the cache"):
            getattr(space, name)()
    with pytest.raises(CacheError, match="call that of the cache"):
        space.expire(now=1e12)
    assert cache.stats() == (0, 0)


def test_tags_within_a_namespace(cache: Cache) -> None:
    users, pages = cache.namespace("users"), cache.namespace("pages")
    for space in (cache, users, pages):
        for number in range(4):
            space.set(f"k:{number}", number, tags=["all", f"n{number % 2}"])
    assert sorted(users.keys(tags=["n0"])) == ["k:0", "k:2"]
    assert users.count(tags=["all", "n1"], match="all") == 2
    assert users.count(prefix="k:") == 4
    assert {usage.name: usage.entries for usage in users.tags()} == {"all": 4, "n0": 2, "n1": 2}
    assert cache.count(tags=["all"]) == 12
    assert users.get_entry("k:1").tags == ("all", "n1")
    assert users.evict("n1") == 2
    assert users.evict(tags=["all", "n0"], match="all") == 2
    assert len(users) == 0
    assert (len(pages), len(cache)) == (4, 8)
    assert cache.evict(tags=["n0", "n1"]) == 8
    assert problems(cache) == []


def test_nested_ones_are_cleared_with_the_outer(cache: Cache) -> None:
    outer = cache.namespace("a")
    inner = outer.namespace("b").namespace("c")
    for space in (cache, outer, inner, cache.namespace("b")):
        space["key"] = 1
    assert len(outer) == len(inner) == 1
    assert list(outer) == ["key"], "that of the inner one is not its own"
    assert inner.clear() == 1
    inner["key"] = 1
    assert outer.clear() == 2
    assert "key" not in inner
    assert len(cache) == 2


def test_a_page_begins_behind_a_key(cache: Cache) -> None:
    space = cache.namespace("space")
    space.set_many({number: number for number in range(50)})
    cache.set_many({number: number for number in range(50)})
    keys = list(space)
    assert sorted(keys) == list(range(50))
    assert list(space.keys(after=keys[19])) == keys[20:]


@few
def test_recipes_and_memoize_work_in_one(cache: Cache) -> None:
    space = cache.namespace("space")
    calls: list[int] = []

    @space.memoize()
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    assert [double(2), double(2)] == [4, 4]
    assert calls == [2]
    with Lock(space, "lock"):
        assert space["lock"]
        assert "lock" not in cache
    averager = Averager(space, "latency")
    averager.add(2)
    averager.add(4)
    assert averager.get() == 3
    barrier(space, Lock)(double)(3)
    assert space.clear() >= 2
    assert double(2) == 4
    assert calls == [2, 3, 2]


@few
def test_handles_share_it_and_pickles_bring_it_back(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    space = cache.namespace("a").namespace("b")
    space["key"] = 1
    assert other.namespace("a").namespace("b")["key"] == 1
    key = next(iter(other))
    assert pickle.loads(pickle.dumps(key)) == key
    assert "'a/b'" in repr(space)


@one
def test_a_pickled_namespace_opens_its_cache(cache: Cache) -> None:
    cache.namespace("a")["key"] = 1
    again = pickle.loads(pickle.dumps(cache.namespace("a")))
    assert again["key"] == 1
    again.close()


@one
def test_what_is_none(cache: Cache) -> None:
    for name in ("", 5, None, "x" * 300):
        with pytest.raises(KeyEncodeError, match="namespace"):
            cache.namespace(name)  # type: ignore[arg-type]
    space = cache.namespace("space")
    for call in (space.pull, space.peek, space.peekitem, space.iterqueue):
        with pytest.raises(CacheError, match="not there in a namespace"):
            call()
    space[[1, 2]] = "an unhashable key"
    assert space[[1, 2]] == "an unhashable key"


@one
def test_keys_that_only_look_like_it(cache: Cache) -> None:
    cache["key"] = 1
    cache.namespace("space")["key"] = 2
    for planted in ("x'c1'", "x'c105'", "x'c10391a161'", "x'c10391a161c10391a162a163'", "x'c10190a161'"):
        tamper(cache, f"UPDATE entry SET k = {planted} WHERE h = (SELECT max(h) FROM entry)")
        assert len(list(cache)) <= 2
        assert problems(cache)
    problems(cache, fix=True)
    assert problems(cache) == []


@few
def test_what_computing_notes_is_not_in_a_namespace(open_cache: Opener, clock: Clock) -> None:
    cache = open_cache(strict=True)
    space = cache.namespace("space")

    def fail() -> int:
        raise ZeroDivisionError

    assert space.get_or_set("key", lambda: 1, 10, stale_if_error=100) == 1
    clock.advance(11)
    assert space.get_or_set("key", fail, 10, stale_if_error=100, breaker=Breaker(9)) == 1
    clock.advance(-11)
    assert (list(space), len(space)) == (["key"], 1)
    list(cache)
    assert cache.metrics().damaged == 0


@few
def test_results_of_one_function_in_several(cache: Cache) -> None:
    def double(number: int) -> int:
        return 2 * number

    here, there = (cache.namespace(name).memoize()(double) for name in "ab")
    assert [here(1), there(1)] == [2, 2]
    assert here.cache_clear() == 1
    assert (here.peek(1), there.peek(1)) == (None, 2)
    assert cache.memoize()(double).cache_clear() == 1


@few
def test_a_cache_is_copied_into_one(cache: Cache, tmp_path: Path) -> None:
    with Cache(tmp_path / "source", **QUICK) as source:
        source["key"] = 1
        source.namespace("inner")["key"] = 2
        space = cache.namespace("space")
        assert source.copy_to(space) == 2
    assert list(space) == ["key"]
    assert (space["key"], space.namespace("inner")["key"]) == (1, 2)
    assert "key" not in cache


class InSteps(weakref.WeakValueDictionary[Any, Any]):
    """Does what such a dictionary does in several steps, with time for another thread between them."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return what is there by now, or else put the default there."""
        found = self.get(key)
        time.sleep(0.01)
        if found is None:
            self[key] = found = default
        return found


@few
def test_results_that_are_copied_out_of_one_are_still_those_of_their_function(cache: Cache, tmp_path: Path) -> None:
    def double(number: int) -> int:
        return 2 * number

    space = cache.namespace("space")
    space.memoize(tags=["a"])(double)(1)
    with Cache(tmp_path / "target", **QUICK) as target:
        assert space.copy_to(target) == 1
        assert target.count(tags=["a"]) == 1
        assert target.memoize()(double).peek(1) == 2
        assert len(target.namespace("space")) == 0
        assert target.memoize()(double).cache_clear() == 1


def test_threads_get_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace finds the keys whose path is its own object."""
    monkeypatch.setattr(made_keys, "_known", InSteps())
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(path_of, [("space",)] * 2)
    assert first is second


def test_named_caches_are_those_of_the_cache_around(tmp_path: Path) -> None:
    with FanoutCache(tmp_path, **QUICK) as cache:
        assert cache.namespace("space").cache("child") is cache.cache("child")
        assert not hasattr(cache.namespace("space"), "nothing")


@one
def test_a_timeout_of_clear_carries_the_count_of_what_has_gone(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    space = cache.namespace("space")
    space.set_many(dict.fromkeys(range(5)))
    space.namespace("inner").set_many(dict.fromkeys(range(3)))
    store = cache._shards.stores[0]
    remove = store.remove_selected
    calls: list[object] = []

    def remove_once(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) > 1:
            raise Timeout("others hold the lock")
        return remove(*arguments)

    monkeypatch.setattr(store, "remove_selected", remove_once)
    with pytest.raises(Timeout) as raised:
        space.clear()
    assert raised.value.args == (8 - len(cache),)
