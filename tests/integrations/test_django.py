"""DjangoCache: what it adds to a FanoutCache, beside what Django's own tests say of it (tools/django_suite.py)."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("django")

from asgiref.sync import ThreadSensitiveContext
from django.core.cache import CacheHandler, CacheKeyWarning
from django.core.cache.backends.base import BaseCache, memcache_key_warnings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started

from diskcache_like import (
    DEFAULT_SETTINGS,
    KEEP,
    Breaker,
    BreakerOpen,
    Cache,
    Deque,
    DjangoCache,
    FanoutCache,
    Index,
    SettingError,
)
from diskcache_like.djangocache import handles

from ..support.cache_kinds import QUICK, Clock
from ..support.contention import held
from ..support.leaks import open_descriptors
from ..support.workers import in_thread

Maker = Callable[..., DjangoCache]


@pytest.fixture(autouse=True)
def _not_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "serving", False)


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Iterator[Maker]:
    """Return a function that makes backends on one directory; at the end it is sound, and they are closed."""
    made: list[DjangoCache] = []

    def backend(directory: str = "cache", options: dict[str, Any] | None = None, **params: Any) -> DjangoCache:
        options = {"clock": clock, **QUICK, **(options or {})}
        made.append(DjangoCache(tmp_path / directory, {"SHARDS": 3, "OPTIONS": options, **params}))
        return made[-1]

    yield backend
    try:
        for each in made:
            assert [str(problem.message) for problem in each._cache.check()] == []
    finally:
        handles.serving = False
        for each in made:
            each.close()


@pytest.fixture
def django(make: Maker) -> DjangoCache:
    return make()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as Django's ASGI handler runs a request: with a thread for the synchronous code of its own."""

    async def within() -> Any:
        async with ThreadSensitiveContext():
            return await coroutine

    return asyncio.run(within())


# -- settings -----------------------------------------------------------------------------------------------------


def test_django_makes_it_from_its_settings(tmp_path: Path) -> None:
    setting = {
        "BACKEND": "diskcache_like.DjangoCache",
        "LOCATION": tmp_path / "cache",
        "TIMEOUT": 60,
        "SHARDS": 2,
        "DATABASE_TIMEOUT": 0.5,
        "KEY_PREFIX": "site",
        "VERSION": 3,
        "KEY_FUNCTION": lambda key, prefix, version: f"{version}/{prefix}/{key}",
        "OPTIONS": {"size_limit": 2**25, **QUICK},
    }
    cache: Any = CacheHandler({"default": setting})["default"]
    try:
        assert type(cache) is DjangoCache
        assert isinstance(cache, BaseCache)
        assert cache.directory == str(tmp_path / "cache")
        assert type(cache._cache) is FanoutCache
        assert (cache.default_timeout, cache._cache.timeout, cache._cache.reset("size_limit")) == (60, 0.5, 2**25)
        assert len([path for path in (tmp_path / "cache").iterdir() if path.name.isdigit()]) == 2
        cache.set("key", "value")
        assert list(cache._cache) == ["3/site/key"]
    finally:
        cache.close()


def test_shards_and_lock_timeout_have_the_defaults_of_a_fanout_cache(tmp_path: Path) -> None:
    cache = DjangoCache(tmp_path, {})
    assert (len(cache._cache._shards.stores), cache._cache.timeout) == (8, 0.01)
    cache.close()


def test_no_location_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="LOCATION"):
        DjangoCache("", {})


def test_a_limit_on_entries_holds_and_unknown_options_are_refused(make: Maker) -> None:
    cache = make(options={"MAX_ENTRIES": 80, "CULL_FREQUENCY": 2})
    assert cache.max_entries == 80
    for number in range(200):
        cache.set(f"key-{number}", number)
        assert len(cache._cache) <= 80
    assert cache.get("key-199") == 199
    with pytest.raises(SettingError, match="size_limt"):
        make(options={"size_limt": 1})


def test_settings_are_attributes_that_are_in_force_when_they_are_assigned(make: Maker) -> None:
    one, other = make(), make()
    with pytest.raises(SettingError, match="eviction_policy is 'LRU'"):
        one.eviction_policy = "LRU"
    one.cull_limit, one.eviction_policy = 3, "least-recently-used"
    assert other.cull_limit == other._cache.cull_limit == 3, "they share a cache"
    one.close()
    assert (one.cull_limit, one.eviction_policy) == (3, "least-recently-used"), "it opens again with what was assigned"
    assert (other.cull_limit, make().cull_limit) == (10, 10), "nothing was stored"


# -- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [(10, 10), (0.5, 0.5), (timedelta(minutes=1), 60), (timedelta(-1), 0), (None, None), (0, 0), (-1, 0), (-0.1, 0)],
)
def test_a_timeout_is_seconds_from_now(django: DjangoCache, clock: Clock, timeout: Any, seconds: float | None) -> None:
    wanted = "value" if seconds is None or seconds > 0 else None
    django.set("before", "value")
    assert django.set("before", "value", timeout)
    assert django.add("added", "value", timeout)
    assert django.set_many({"many": "value"}, timeout) == []
    django.set("touched", "value")
    assert django.touch("touched", timeout)
    keys = ["before", "added", "many", "touched"]
    assert [django.get(key) for key in keys] == [wanted] * 4
    clock.advance(10**9 if seconds is None else seconds)
    assert [django.get(key) for key in keys] == ["value" if seconds is None else None] * 4


@pytest.mark.parametrize(("params", "seconds"), [({}, 300), ({"TIMEOUT": 5}, 5), ({"TIMEOUT": None}, None)])
def test_without_a_timeout_it_is_that_of_the_setting(make: Maker, params: Any, seconds: float | None) -> None:
    cache = make(**params)
    cache.set("key", 1)
    expires = cache.get("key", expire_time=True)[1]
    assert expires == (None if seconds is None else 1_700_000_000 + seconds)


def test_a_timeout_may_be_a_moment_or_stay(django: DjangoCache, clock: Clock) -> None:
    django.set("key", 1, datetime.fromtimestamp(clock.now + 60, UTC))
    assert django.get("key", expire_time=True) == (1, clock.now + 60)
    django.set("key", 2, KEEP)
    assert django.get("key", expire_time=True) == (2, clock.now + 60)


def test_the_timeout_of_a_number_outlasts_incr(django: DjangoCache, clock: Clock) -> None:
    django.set("number", 1, 10)
    assert django.incr("number") == 2
    assert django.decr("number", 5) == -3
    clock.advance(10)
    with pytest.raises(ValueError, match="'number' not found"):
        django.incr("number")
    assert django.incr("number", default=40) == 41
    assert django.decr("other", 2, default=40) == 38


# -- what DiskCache's backend has beside Django's interface ---------------------------------------------------------


def test_tags_expiry_files_and_removal(django: DjangoCache, clock: Clock) -> None:
    django.create_tag_index()
    assert django.set("a", "value", 10, tag="t")
    assert django.add("b", io.BytesIO(b"bytes"), None, read=True, tag="t")
    assert django.get("a", expire_time=True, tag=True) == ("value", clock() + 10, "t")
    for opened in (django.read("b"), django.get("b", read=True)):
        with opened as file:
            assert file.read() == b"bytes"
    with pytest.raises(KeyError):
        django.read("missing")
    assert django.pop("a", tag=True) == ("value", "t")
    assert django.pop("a", "default") == "default"
    assert (django.evict("other"), django.evict("t")) == (0, 1)
    django.drop_tag_index()
    assert django.evict("t") == 0
    django.set("c", 1, 10)
    clock.advance(10)
    assert (django.expire(), django.cull(), django.clear()) == (1, 0, 0)


def test_several_tags(django: DjangoCache, clock: Clock) -> None:
    django.set("a", 1, 10, tags=["x", "y"])
    django.add("b", 2, tags=["x"])
    django.set_many({"c": 3, "d": 4}, tags=["y", "z"])
    assert django.get("a", tag=True) == (1, ("x", "y"))
    assert django.retag("a", add=["v"], remove=["x"])
    assert not django.retag("a", add=["v"], version=2)
    assert django.get("a", expire_time=True, tag=True) == (1, clock() + 10, ("v", "y"))
    assert django.evict(tags=["y", "z"], match="all") == 2
    assert django.evict(tags=["x", "v"], soft=True) == 2
    assert run(django.aset("e", 5, tags=["x"]))
    assert run(django.aretag("e", remove=["x"]))
    assert run(django.aevict("x")) == 0
    assert django.get("e", tag=True) == (5, None)


def test_statistics(django: DjangoCache) -> None:
    assert django.stats() == (0, 0)
    django.set("a", 1)
    django.get("a")
    django.get("b")
    assert django.stats(enable=False, reset=True) == (1, 1)
    assert django.stats(enable=False) == (0, 0)


def test_named_children(django: DjangoCache) -> None:
    cache, deque, index = django.cache("c"), django.deque("d", maxlen=2), django.index("i")
    assert isinstance(cache, Cache)
    assert isinstance(deque, Deque)
    assert isinstance(index, Index)
    deque.extend([1, 2, 3])
    index["key"] = "value"
    cache["key"] = "other"
    assert (list(deque), dict(index), django.get("key")) == ([2, 3], {"key": "value"}, None)
    assert django.cache("c") is cache
    assert Path(cache.directory).is_relative_to(django.directory)


def test_its_methods_take_what_those_of_diskcache_take(diskcache: ModuleType) -> None:
    theirs = diskcache.DjangoCache
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if name.startswith("_") or getattr(BaseCache, name, None) is method:
            continue
        wanted = [(each.name, each.default) for each in inspect.signature(method).parameters.values()]
        found = [
            (each.name, each.default) for each in inspect.signature(getattr(DjangoCache, name)).parameters.values()
        ]
        same = found[: len(wanted)] == wanted or name in ("__init__", "close")
        assert same or name == "evict", name  # its tag may be left out, for several


def test_a_write_that_may_not_wait_is_given_up(make: Maker) -> None:
    cache = make(DATABASE_TIMEOUT=0)
    cache.set("key", 1)
    with held(cache._cache):
        assert not cache.set("key", 2, retry=False)
        assert not cache.add("new", 2, retry=False)
        assert not cache.touch("key", retry=False)
        assert not cache.delete("key", retry=False)
        assert cache.incr("key", retry=False) is None
        assert cache.pop("key", "default", retry=False) == "default"
        assert cache.get("key") == 1


# -- many entries, versions, keys -------------------------------------------------------------------------------------


def test_many_entries_at_once(make: Maker) -> None:
    cache = make(options={"size_limit": 300_000})
    assert cache.set_many({"a": 1, "large": b"x" * 400_000, "none": None}) == ["large"]
    assert cache.get_many(iter(["a", "large", "none", "missing"])) == {"a": 1, "none": None}
    assert cache.get_many(["a"], version=2) == {}
    cache.delete_many(iter(["a", "missing"]))
    assert cache.get_many(["a", "none"]) == {"none": None}
    assert cache.get_or_set("made", lambda: 5) == cache.get_or_set("made", 6) == 5


def test_many_timeouts_and_numbers_at_once(django: DjangoCache, clock: Clock) -> None:
    django.set_many({"a": 1, "b": 2}, 10)
    assert django.touch_many(iter(["a", "b", "missing"]), 50) == 2
    assert django.touch_many(["a"], version=2) == 0
    assert django.get("a", expire_time=True) == (1, clock() + 50)
    assert run(django.atouch_many(["b"])) == 1
    assert django.get("b", expire_time=True) == (2, clock() + 300)
    assert django.incr_many({"a": 5, "b": -1}) == {"a": 6, "b": 1}
    assert run(django.aincr_many({"a": 1, "new": 1}, version=2, default=0)) == {"a": 1, "new": 1}
    assert django.get("a", expire_time=True) == (6, clock() + 50)
    with pytest.raises(ValueError, match=r"^Key 'new' not found$"):
        django.incr_many({"new": 1})


def test_many_values_are_computed_with_one_call(django: DjangoCache, clock: Clock) -> None:
    calls: list[list[Any]] = []

    def lengths(keys: list[Any], added: int = 0) -> dict[Any, int]:
        calls.append(keys)
        return {key: len(str(key)) + added for key in keys if key != "unknown"}

    django.set("aa", 20)
    assert django.get_or_set_many(["b", "aa", "unknown", 333], lengths, 60, tags=["t"]) == {"b": 1, "aa": 20, 333: 3}
    assert calls == [["b", "unknown", 333]]
    assert django.get("b", expire_time=True, tag=True) == (1, clock() + 60, "t")
    assert run(django.aget_or_set_many(iter(["b", "aa"]), partial(lengths, added=1), version=2)) == {"b": 2, "aa": 3}
    assert django.get("aa", version=2, expire_time=True) == (3, clock() + 300)
    with pytest.raises(TypeError, match="what compute_missing returned is 5, expected a mapping"):
        django.get_or_set_many(["c"], lambda keys: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="compute_missing is 5"):
        django.get_or_set_many(["b"], 5)  # type: ignore[arg-type]


def test_functions_within_partial_ones_have_breakers_of_their_own(django: DjangoCache) -> None:
    def divide(by: int, keys: list[str]) -> dict[str, int]:
        return dict.fromkeys(keys, 1 // by)

    def multiply(by: int, keys: list[str]) -> dict[str, int]:
        return dict.fromkeys(keys, by)

    careful = Breaker(errors=1)
    with pytest.raises(ZeroDivisionError):
        django.get_or_set_many(["a"], partial(divide, 0), breaker=careful)
    assert django.get_or_set_many(["a"], partial(multiply, 5), breaker=careful) == {"a": 5}
    with pytest.raises(BreakerOpen):
        django.get_or_set_many(["b"], partial(divide, 1), breaker=careful)


def test_a_new_version_appears_as_the_old_one_goes(django: DjangoCache) -> None:
    django.set("key", "value")
    with held(django._cache) as end:
        moved = threading.Thread(target=django.incr_version, args=("key", 2))
        moved.start()
        assert (django.get("key"), django.get("key", version=3)) == ("value", None)
        end.set()
        moved.join()
    assert (django.get("key"), django.get("key", version=3)) == (None, "value")
    assert django.decr_version("key", 2, version=3) == 1
    assert django.get("key") == "value"
    with pytest.raises(ValueError, match="missing"):
        django.incr_version("missing")


def test_a_move_that_fails_halfway_leaves_the_entry(django: DjangoCache, monkeypatch: pytest.MonkeyPatch) -> None:
    django.set("key", "value")
    with monkeypatch.context() as patched:
        patched.setattr(DjangoCache, "delete", lambda *arguments, **named: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            django.incr_version("key")
    assert (django.get("key"), django.get("key", version=2)) == ("value", None)


@pytest.mark.parametrize(
    "operation",
    [
        lambda cache, key: cache.set(key, 1),
        lambda cache, key: cache.add(key, 1),
        lambda cache, key: cache.get(key),
        lambda cache, key: cache.read(key),
        lambda cache, key: cache.touch(key),
        lambda cache, key: cache.pop(key),
        lambda cache, key: cache.delete(key),
        lambda cache, key: cache.incr(key),
        lambda cache, key: cache.has_key(key),
        lambda cache, key: cache.get_many([key]),
        lambda cache, key: cache.set_many({key: 1}),
        lambda cache, key: cache.delete_many([key]),
    ],
)
def test_keys_that_memcached_would_refuse_are_warned_of(
    django: DjangoCache, operation: Callable[[DjangoCache, str], Any]
) -> None:
    with pytest.warns(CacheKeyWarning, match="characters"):
        operation(make_present(django, "a b"), "a b")
    with pytest.warns(CacheKeyWarning, match="longer than 250"):
        operation(make_present(django, "x" * 250), "x" * 250)


def test_each_character_is_warned_of_where_django_warns_of_it(django: DjangoCache) -> None:
    for character in (*map(chr, range(0x300)), "\u2028", "\ud800", "\U0001f600"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            django.validate_key(f"a{character}b")
        assert [str(one.message) for one in caught] == list(memcache_key_warnings(f"a{character}b"))


def make_present(cache: DjangoCache, key: str) -> DjangoCache:
    cache._cache.set(cache.make_key(key), 1)
    return cache


def test_a_subclass_may_take_any_key(tmp_path: Path) -> None:
    class Liberal(DjangoCache):
        def validate_key(self, key: str) -> None:
            pass

    cache = Liberal(tmp_path, {})
    assert cache.set("a b" * 200, 1)
    assert cache.get("a b" * 200) == 1
    cache.close()


def test_what_cannot_be_pickled_raises_a_pickling_error(django: DjangoCache) -> None:
    with pytest.raises(pickle.PicklingError, match="lock"):
        django.set("key", threading.Lock())
    assert "key" not in django


# -- memoize ------------------------------------------------------------------------------------------------------


def test_memoize_knows_prefix_version_and_timeout(make: Maker, clock: Clock) -> None:
    calls: list[Any] = []

    def double(x: int, y: int = 0) -> int:
        calls.append(x)
        return 2 * x

    plain, prefixed = make(), make(KEY_PREFIX="p")
    first = plain.memoize(timeout=10)(double)
    others = [plain.memoize(version=2)(double), prefixed.memoize()(double), plain.memoize("name")(double)]
    assert [first(1), first(1, 0), first(x=1)] == [2, 2, 2]
    assert calls == [1]
    assert [each(1) for each in others] == [2, 2, 2]
    assert len(calls) == 4
    clock.advance(10)
    assert first(1) == 2
    assert len(calls) == 5


def test_the_key_of_a_memoized_call_is_a_key_for_every_operation(django: DjangoCache) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheKeyWarning)
        memoized: Any = django.memoize(version=7, tag="t")(lambda text: text.upper())
        assert memoized("a b") == "A B"
        key = memoized.__cache_key__("a b")
        assert django.get(memoized.key("a b")) == "A B"
        assert django.get(key, tag=True) == ("A B", "t")
        assert django.get_many([key]) == {key: "A B"}
        assert key in django
        assert django.set(key, "other")
        assert memoized("a b") == "other"
        assert django.delete(key)
        assert memoized("a b") == "A B"


def test_a_memoize_timeout_of_zero_keeps_nothing(django: DjangoCache) -> None:
    calls: list[int] = []
    memoized = django.memoize(timeout=0)(calls.append)
    memoized(1)
    memoized(1)
    assert calls == [1, 1]


def test_memoize_without_parentheses_is_a_mistake(django: DjangoCache) -> None:
    with pytest.raises(TypeError, match="parentheses"):
        django.memoize(len)  # type: ignore[arg-type]


def test_memoize_a_coroutine_function(django: DjangoCache) -> None:
    calls: list[int] = []

    @django.memoize()
    async def double(x: int) -> int:
        calls.append(x)
        return 2 * x

    async def twice() -> list[int]:
        return [await double(1), await double(1)]

    assert run(twice()) == [2, 2]
    assert calls == [1]


# -- asynchronous -------------------------------------------------------------------------------------------------


def test_every_operation_has_an_asynchronous_twin() -> None:
    made_here = {"cache", "deque", "index", "memoize", "directory", "get_backend_timeout", "make_key", "validate_key"}
    operations = {
        name
        for name, member in inspect.getmembers(DjangoCache)
        if not name.startswith("_") and not inspect.iscoroutinefunction(member)
    } - (made_here | {"make_and_validate_key", *DEFAULT_SETTINGS})
    assert len(operations) > 20
    assert {name for name in operations if not inspect.iscoroutinefunction(getattr(DjangoCache, f"a{name}"))} == set()


def test_asynchronous_twins_do_what_the_methods_do(django: DjangoCache) -> None:
    async def work() -> None:
        assert await django.aset("a", 1, None, 2, tag="t")
        assert await django.aget("a", version=2, tag=True) == (1, "t")
        assert not await django.aadd("a", 2, version=2)
        assert await django.aincr("a", 2, version=2) == 3
        assert await django.adecr("a", version=2) == 2
        assert await django.aincr_version("a", version=2) == 3
        assert await django.adecr_version("a", 2, version=3) == 1
        assert await django.ahas_key("a")
        assert await django.atouch("a", 10)
        assert await django.aset_many({"b": 2, "c": 3}, 10) == []
        assert await django.aget_many(["a", "b"]) == {"a": 2, "b": 2}
        assert await django.aget_or_set("d", lambda: 4) == 4
        assert await django.apop("d") == 4
        await django.adelete_many(["a"])
        assert await django.adelete("b")
        with (await django.aread("e")) if await django.aset("e", io.BytesIO(b"x"), read=True) else io.BytesIO() as file:
            assert file.read() == b"x"
        assert await django.aclear() == 2
        await django.aclose()

    run(work())
    assert descriptors(django) == []


def test_an_override_is_what_the_twin_calls(tmp_path: Path) -> None:
    class Loud(DjangoCache):
        def get(self, key: Any, *arguments: Any, **named: Any) -> Any:
            return f"{key}!"

    cache = Loud(tmp_path, {})
    assert run(cache.aget("key")) == "key!"
    cache.close()


def test_a_write_that_waits_does_not_block_the_event_loop(django: DjangoCache) -> None:
    async def work() -> None:
        writing = asyncio.create_task(django.aset("key", "value"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not writing.done()
        end.set()
        assert await writing

    with held(django._cache) as end:
        run(work())
    assert django.get("key") == "value"


# -- open files ---------------------------------------------------------------------------------------------------


def descriptors(cache: DjangoCache) -> list[str]:
    names = open_descriptors().values()  # before the cache is asked for its directory, which opens it
    return [name for name in names if name.startswith(cache.directory)]


class NoKey(Clock):
    """An option that nothing can be told equal to."""

    __hash__ = None  # type: ignore[assignment]


def test_backends_with_the_same_settings_share_their_files(make: Maker) -> None:
    first = make()
    assert make(KEY_PREFIX="p", TIMEOUT=1)._cache is first._cache
    assert make(options={"size_limit": 2**25})._cache is not first._cache
    assert make("other")._cache is not first._cache
    assert make(options={"clock": NoKey()})._cache is not make(options={"clock": NoKey()})._cache
    assert in_thread(make)._cache is first._cache


def test_a_directory_that_was_removed_is_another_cache(tmp_path: Path) -> None:
    removed = DjangoCache(tmp_path / "cache", {})
    removed.set("key", "old")
    shutil.rmtree(tmp_path / "cache")
    made = DjangoCache(tmp_path / "cache", {})
    assert made.get("key") is None
    assert made.set("key", "new")
    assert removed.get("key") == "new"
    made.close()


def test_a_backend_that_was_closed_goes_on_in_what_others_made_of_its_directory(tmp_path: Path) -> None:
    backend = DjangoCache(tmp_path / "cache", {})
    backend.set("key", "old")
    backend.close()
    shutil.rmtree(tmp_path / "cache")
    with FanoutCache(tmp_path / "cache", shards=3) as made:  # in another process
        made["key"] = "of nobody's"
    assert backend.get("key") is None
    assert backend.set("key", "new")
    assert DjangoCache(tmp_path / "cache", {}).get("key") == "new"
    backend.close()


def test_a_directory_that_was_removed_while_it_is_in_use_concerns_no_other(tmp_path: Path) -> None:
    removed = DjangoCache(tmp_path / "cache", {})
    with removed._cache.transact():
        removed.set("key", 1)
        shutil.rmtree(tmp_path / "cache")
        other = DjangoCache(tmp_path / "other", {})
    assert other.set("key", "value")
    removed._cache.close()
    other._cache.close()


def test_close_closes_the_files_and_the_next_operation_opens_them(django: DjangoCache) -> None:
    django.set("key", "value")
    assert descriptors(django) != []
    django.close()
    assert descriptors(django) == []
    assert django.get("key") == "value"


def test_the_end_of_a_request_closes_nothing(django: DjangoCache) -> None:
    django.set("key", "value")
    request_started.send(sender=None)
    django.close()
    assert descriptors(django) != []
    handles.serving = False
    django.close()
    assert descriptors(django) == []


def test_a_child_forked_while_a_cache_is_being_opened_can_open_one(tmp_path: Path) -> None:
    with handles._lock:  # as another thread would hold it
        child = os.fork()
        if child == 0:
            lock_is_free = handles._lock.acquire(timeout=30)
            os._exit(0 if lock_is_free else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- importing ----------------------------------------------------------------------------------------------------


def test_without_django_the_import_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['django'] = None\n"
        "import diskcache_like\n"
        "assert 'DjangoCache' not in dir(diskcache_like) and not hasattr(diskcache_like, 'NoSuchName')\n"
        "from diskcache_like import *\n"
        "try: from diskcache_like import DjangoCache\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "DjangoCache needs Django; install it: pip install 'diskcache-like[django]'\n"


def test_only_asking_for_the_backend_imports_django() -> None:
    program = (
        "import sys, diskcache_like; assert 'django' not in sys.modules\n"
        "diskcache_like.DjangoCache; assert 'django' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
