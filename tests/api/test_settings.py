"""Settings, handles and their life: defaults, reset, statistics, close and reopening, pickling, other processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import (
    DEFAULT_SETTINGS,
    ENOVAL,
    EVICTION_POLICY,
    UNKNOWN,
    Cache,
    Deque,
    DirectoryError,
    Disk,
    FanoutCache,
    Index,
    JSONDisk,
    SettingError,
)
from diskcache_like.entries.options import Arguments, Options
from diskcache_like.settings.definitions import Setting, Settings, SettingsInForce

from ..support.cache_kinds import NEEDS_CIPHER, SECRET, Kind, Opener, few, one, only

picklable = only(lambda kind: kind.name in ("plain", "few-slots", "json", "fanout-3"))  # a pickle carries no secret


def test_settings_are_attributes_with_their_defaults(cache: Cache, tmp_path: Path) -> None:
    assert set(DEFAULT_SETTINGS) >= {
        "statistics", "tag_index", "eviction_policy", "size_limit", "cull_limit", "sqlite_auto_vacuum",
        "sqlite_cache_size", "sqlite_journal_mode", "sqlite_mmap_size", "sqlite_synchronous", "disk_min_file_size",
        "disk_pickle_protocol",
    }  # fmt: skip
    for name in DEFAULT_SETTINGS:
        assert cache.reset(name) == getattr(cache, name)
    assert (cache.size_limit, cache.cull_limit, cache.statistics) == (1 << 30, 10, 0)
    assert cache.directory == str(tmp_path / "cache")
    assert cache.timeout == 60


def test_reset_stores_a_setting_for_those_who_open_later(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    assert cache.reset("size_limit", 12345) == 12345
    assert cache.reset("eviction_policy", "least-recently-used") == "least-recently-used"
    assert cache.reset("cull_limit", 3, update=False) == 3
    assert (cache.size_limit, cache.cull_limit) == (12345, 3)
    assert (other.size_limit, other.cull_limit) == (1 << 30, 10)
    assert other.reset("size_limit") == 12345
    assert other.size_limit == 12345
    later = open_cache()
    assert (later.size_limit, later.cull_limit) == (12345, 10)
    assert later.eviction_policy == "least-recently-used"
    cache.close()
    assert cache.reset("size_limit") == 12345


@one
def test_settings_of_the_constructor_are_the_handles_own(open_cache: Opener) -> None:
    first = open_cache(size_limit=1 << 20, cull_limit=5)
    second = open_cache(cull_limit=7)
    assert (second.size_limit, second.cull_limit) == (1 << 20, 7)
    assert first.reset("cull_limit") == 5


@few
@pytest.mark.parametrize(
    ("name", "value", "in_force"),
    [
        ("size_limit", 54_321_000.0, 54_321_000), ("cull_limit", 0, 0), ("eviction_policy", "none", "none"),
        ("statistics", True, 1), ("durability", "power", "power"), ("hot_size_limit", 0, 0), ("sqlite_cache_size", 9, 9),
        ("sqlite_synchronous", 2, 2), ("compress_min_size", 9, 9), ("disk_min_file_size", 77, 77),
        ("disk_pickle_protocol", 2, 2), ("compress_level", 3, 3),
    ],
)  # fmt: skip
def test_an_assigned_setting_is_in_force_in_this_handle_alone(
    open_cache: Opener, name: str, value: Any, in_force: Any
) -> None:
    cache, other = open_cache(), open_cache()
    before = getattr(other, name)
    assert before != in_force
    for _ in range(2):
        setattr(cache, name, value)
        assert getattr(cache, name) == in_force
        assert type(getattr(cache, name)) is type(in_force)
        assert {store.shard.settings[name] for store in cache._shards.stores} == {in_force}
        cache.close()  # the next operation opens the handle again, which keeps what was assigned
        cache["key"] = 1
        assert {store.shard.settings[name] for store in cache._shards.stores} == {in_force}
        assert getattr(cache, name) == in_force
    assert getattr(other, name) == getattr(open_cache(), name) == other.reset(name) == before
    if name != "hot_size_limit":  # that is the handle's own, so nothing is stored
        assert cache.reset(name) == getattr(cache, name) == before


@one
def test_what_is_assigned_takes_effect(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    cache.statistics = 1
    assert cache.get("missing") is None
    assert cache.stats() == (0, 1)
    cache.size_limit, cache.cull_limit = 300_000, 10
    for number in range(20):
        cache[number] = bytes(60_000)
    assert cache.volume() <= 300_000
    cache.eviction_policy = "none"
    for number in range(20):
        cache[number] = bytes(60_000)
    assert len(cache) == 20
    cache.size_limit = 200_000
    cache.eviction_policy = "least-recently-used"
    cache["key"] = bytes(60_000)
    assert cache.volume() <= 200_000
    other.disk_min_file_size = 10
    assert other.disk.min_file_size == 10
    with pytest.raises(KeyError), cache.transact():
        cache.cull_limit = 7  # not stored, so that a rollback takes nothing back
        raise KeyError
    assert cache.cull_limit == 7


@few
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eviction_policy", "LRU", "expected one of none, least-recently-stored"), ("size_limit", "1 GB", "an integer"),
        ("statistics", 2, "from 0 to 1"), ("cull_limit", -1, "an integer from 0"), ("durability", "hope", "'process'"),
        ("disk_pickle_protocol", 99, "an integer"), ("compress_level", "high", "an integer"),
        ("tag_index", 1, r"create_tag_index\(\)"), ("sqlite_journal_mode", "delete", "when the cache is made"),
        ("sqlite_auto_vacuum", 0, "when the cache is made"), ("deque_maxlen", 3, "maxlen of the Deque"),
    ],
)  # fmt: skip
def test_an_impossible_setting_cannot_be_assigned(cache: Cache, name: str, value: Any, message: str) -> None:
    before = getattr(cache, name, None)
    with pytest.raises(SettingError, match=f"^{name} .*{message}"):
        setattr(cache, name, value)
    assert getattr(cache, name, None) == before == cache.reset(name)


def test_other_attributes_are_free(cache: Cache) -> None:
    for name in ("label", "limit", "durable", "ttl", "disk_usage", "compressor", "_size_limt"):
        setattr(cache, name, "anything")
        assert getattr(cache, name) == "anything"


class Labelled(Cache):
    """A subclass with attributes of its own, one of which looks like a setting."""

    size_limits: tuple[int, int] = (0, 0)

    def __init__(self, directory: Path) -> None:
        self.label = "set before the cache is open"
        super().__init__(directory)
        self.size_limits = (1, 2)


def test_an_attribute_that_is_nearly_a_setting_is_refused(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache, FanoutCache(tmp_path / "fanout", shards=1) as fanout:
        deque, index = Deque(directory=tmp_path / "deque"), Index(tmp_path / "index")
        misspelt = [
            *(
                (each, name)
                for each in (cache, fanout, cache.namespace("n"))
                for name in ("size_limt", "evicton_policy")
            ),
            *((each, name) for each in (deque, index, cache.aio, fanout.aio) for name in ("size_limt", "size_limit")),
            (deque, "max_len"),
        ]
        for each, name in misspelt:
            with pytest.raises(SettingError, match=rf"{type(each).__name__} has no attribute '{name}' to assign: .*"):
                setattr(each, name, 5)
            assert name == "size_limit" or not hasattr(each, name)
    with Labelled(tmp_path / "labelled") as own:
        assert (own.label, own.size_limits) == ("set before the cache is open", (1, 2))


class Odd(Disk):
    """A disk with an argument whose name is nearly that of a setting."""

    def __init__(self, directory: str, min_file_sizes: int = 1, **settings: Any) -> None:
        super().__init__(directory, **settings)


def test_a_setting_of_a_disk_may_be_called_nearly_like_another(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"disk": Odd, "disk_min_file_sizes": 3}
    with Cache(tmp_path / "cache", **odd) as cache:
        cache.disk_min_file_sizes = 4  # type: ignore[attr-defined]
        assert cache.disk_min_file_sizes == 4  # type: ignore[attr-defined]


def test_settings_of_every_kind_of_handle_are_assigned(tmp_path: Path) -> None:
    index, deque = Index(tmp_path / "index"), Deque(directory=tmp_path / "deque", maxlen=3)
    index.cache.cull_limit = deque.cache.cull_limit = 4
    assert (index.cache.cull_limit, deque.cache.cull_limit, deque.cache.deque_maxlen) == (4, 4, 3)
    with Cache(tmp_path / "json", disk=JSONDisk, disk_compress_level=3) as cache:
        cache.disk_compress_level = 9
        assert (cache.disk_compress_level, cache.disk.compress_level) == (9, 9)  # type: ignore[attr-defined]
    with FanoutCache(tmp_path / "fanout", shards=2) as fanout:
        fanout.cache("child").size_limit = 1 << 20
        assert (fanout.cache("child").size_limit, fanout.size_limit) == (1 << 20, 1 << 30)
        assert not hasattr(fanout, "deque_maxlen")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("compression", "compressor"), ("serialiser", "serializer"), ("secrets", "secret"), ("size_limt", "size_limit")],
)
def test_an_unknown_name_is_refused_with_the_nearest_and_all_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.chdir(tmp_path)
    misspelt: dict[str, Any] = {name: 1}
    with FanoutCache("parent", shards=1) as parent:
        for make in (Cache, FanoutCache, parent.cache):
            with pytest.raises(SettingError, match=rf"unknown setting '{name}': did you mean '{nearest}'\?") as raised:
                make("new", **misspelt)
            named = set(re.findall(r"\w+", str(raised.value)))
            assert named >= {*DEFAULT_SETTINGS, *Arguments.__annotations__} - {"disk_compress_level"}
    assert os.listdir() == ["parent"]
    assert not (tmp_path / "parent" / "cache").exists()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("maxsize", ": did you mean 'max_entries'?"),
        ("max_size", ": did you mean 'size_limit'?"),
        ("policy", ": did you mean 'eviction_policy'?"),
        ("path", ": did you mean 'directory'?"),
        ("ttl", ": give expire= to set, memoize or another operation that writes, or default_expire= for all of them;"),
        (
            "expire",
            ": give expire= to set, memoize or another operation that writes, or default_expire= for all of them;",
        ),
        ("shards", ": use FanoutCache(directory, shards=...);"),
        ("maxlen", ": use Deque(directory=..., maxlen=...);"),
    ],
)
def test_what_other_caches_call_it_is_understood(tmp_path: Path, name: str, advice: str) -> None:
    given: dict[str, Any] = {name: 4}
    with pytest.raises(SettingError, match=re.escape(f"unknown setting {name!r}{advice} expected one of")):
        Cache(tmp_path / "cache", **given)


def test_a_name_like_no_other_is_refused_with_all_names(cache: Cache) -> None:
    with pytest.raises(SettingError, match=r"unknown setting 'xyzzy', expected one of statistics, .* disk_"):
        cache.reset("xyzzy")


def test_type_checkers_know_every_argument() -> None:
    options = {field.name for field in dataclasses.fields(Options)}
    assert set(Arguments.__annotations__) - set(Settings.__annotations__) == options
    assert set(Settings.__annotations__) == {*DEFAULT_SETTINGS, "deque_maxlen", "disk_compress_level"}


@few
def test_a_setting_of_the_disk_takes_effect(cache: Cache) -> None:
    cache.reset("disk_min_file_size", 100)
    assert cache.disk_min_file_size == cache.disk.min_file_size == 100
    cache["key"] = "x" * 200
    assert len(list(Path(cache.directory).rglob("*.val"))) == 1
    cache.reset("disk_min_file_size", 1000)
    cache["other"] = "x" * 200
    assert len(list(Path(cache.directory).rglob("*.val"))) == 1
    assert cache["key"] == cache["other"]


@few
def test_turning_the_hot_layer_off_and_on_changes_no_answer(open_cache: Opener) -> None:
    cache, other = open_cache(), open_cache()
    for limit in (0, 1 << 20, 0):
        cache.reset("hot_size_limit", limit)
        other["key"] = limit
        assert cache["key"] == cache["key"] == limit
    assert open_cache().hot_size_limit != 0  # a limit on memory is nobody else's


def test_statistics_count_hits_and_misses_of_all_handles(open_cache: Opener) -> None:
    cache = open_cache()
    assert cache.stats() == (0, 0)
    cache["key"] = 1
    for _ in range(5):
        assert cache["key"] == 1
    assert cache.get("missing") is None
    with pytest.raises(KeyError):
        cache["missing"]
    assert cache.stats() == (5, 2)
    other = open_cache()
    assert other.statistics == 1
    assert other["key"] == 1
    other["another"] = 1
    assert cache.stats(reset=True) == (6, 2)
    assert cache.stats(enable=False) == (0, 0)
    assert cache["key"] == 1
    assert cache.stats(enable=False) == (0, 0)


@few
def test_a_handle_that_closes_adds_its_counts(open_cache: Opener) -> None:
    cache = open_cache(statistics=1)
    cache["key"] = 1
    other = open_cache(statistics=1)
    assert other["key"] == 1
    assert other.get("missing") is None
    other.close()
    assert cache.stats() == (1, 1)


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "its like": ({}, {}),
    "signed": ({}, {"secret": SECRET}),
    "compressed": ({}, {"compressor": "zlib"}),
    "of another disk": ({}, {"disk": JSONDisk}),
    "of several shards": ({"shards": 1}, {"shards": 3}),
    "of one shard": ({"shards": 3}, {"shards": 1}),
    "of more shards": ({"shards": 3}, {"shards": 5}),
    "encrypted": ({}, {"encrypt": True, "secret": SECRET}),
}


@pytest.mark.parametrize(
    "other", [pytest.param(name, marks=NEEDS_CIPHER if name == "encrypted" else ()) for name in OTHERS]
)
def test_a_closed_handle_does_not_go_on_in_another_cache(tmp_path: Path, other: str) -> None:
    """Its keys would lie where nobody looks for them, and its values there as the other cache does not allow."""
    given, theirs = OTHERS[other]
    old = FanoutCache(tmp_path / "cache", **{"shards": 1, **given})
    old["key"] = 1
    old.close()
    shutil.rmtree(tmp_path / "cache")
    with FanoutCache(tmp_path / "cache", **{"shards": 1, **theirs}) as new:
        new["key"] = 2
        operations: tuple[Callable[[], object], ...] = (
            lambda: old.set("key", 3),
            lambda: old.set("key", "in a file" * 10_000),
            lambda: old.push("in a file" * 10_000),
            lambda: old.get("key"),
            lambda: list(old),
            lambda: len(old),
        )
        for operation in operations:
            with pytest.raises(DirectoryError):
                operation()
        old.close()
        assert {key: new[key] for key in new} == {"key": 2}
        assert list((tmp_path / "cache").rglob("*.val")) == []
        new.check(fix=True)  # directories of value files that were not stored
        assert new.check() == []


@pytest.mark.parametrize("given", [{}, {"compressor": "zlib"}, {"serializer": "json"}])
def test_a_closed_handle_makes_its_own_cache_anew(tmp_path: Path, given: dict[str, Any]) -> None:
    directory = tmp_path / "cache"
    Cache(directory, **given).close()
    with Cache(directory) as cache, Cache(directory) as other:  # not those who made it
        cache["key"] = 1
        other.close()
        cache.close()
        shutil.rmtree(directory)
        directory.mkdir(0o700)
        assert cache.get("key") is None
        cache["key"] = 2
        assert other["key"] == 2
        with Cache(directory) as new:
            assert new["key"] == 2


@pytest.mark.parametrize("make", [Cache, FanoutCache])
def test_a_handle_that_counts_is_closed_again_where_its_directory_is_gone(tmp_path: Path, make: type[Cache]) -> None:
    cache = make(tmp_path / "cache", statistics=1)
    assert cache.get("missing") is None
    cache.close()
    shutil.rmtree(cache.directory)
    cache.close()
    assert not Path(cache.directory).exists()


@picklable
def test_a_pickled_handle_opens_the_same_cache(open_cache: Opener, kind: Kind) -> None:
    settings: dict[str, Any] = {"size_limit": 40_000_000, "cull_limit": 7, "statistics": 1, "timeout": 5}
    cache = open_cache(eviction_policy="least-recently-used", **settings)
    cache["key"] = "value"
    cache.hot_size_limit = 1 << 20
    with pickle.loads(pickle.dumps(cache)) as copy:
        assert type(copy) is type(cache)
        assert copy["key"] == "value"
        copy["key"] = "changed"
        assert cache["key"] == "changed"
        for name in ("directory", "eviction_policy", "hot_size_limit", *settings):
            assert getattr(copy, name) == getattr(cache, name)
        assert type(copy.disk) is type(cache.disk)


def count_up(cache: Cache) -> None:
    for _ in range(50):
        cache.incr("counter", retry=True)
    cache.close()


@only(lambda kind: kind.name in ("plain", "fanout-3"))
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_handle_goes_to_another_process(open_cache: Opener, method: str) -> None:
    cache = open_cache()
    cache["counter"] = 0
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=count_up, args=(cache,))
    child.start()
    count_up(cache)
    child.join()
    assert child.exitcode == 0
    assert cache["counter"] == 100


def test_a_handle_knows_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", "there")
    monkeypatch.chdir(tmp_path)
    for given, expected in (("~/a", "a"), ("$WHERE/b", "there/b"), ("c/../d", "d"), (Path("e"), "e")):
        with Cache(given) as cache:
            assert cache.directory == str(tmp_path / expected)
            assert repr(cache) == f"Cache({cache.directory!r})"
            assert stat.S_IMODE(Path(cache.directory).stat().st_mode) == 0o700
    with Cache() as cache:
        assert Path(cache.directory).is_dir()
    shutil.rmtree(cache.directory)


def test_a_disk_is_shown_by_class_and_directory(cache: Cache) -> None:
    assert repr(cache._shards.stores[0].disk) == f"{type(cache.disk).__name__}({cache._shards.stores[0].directory!r})"
    assert SECRET not in repr(cache.disk)


def test_constants_keep_their_identity_on_their_way_to_another_process() -> None:
    for constant in (ENOVAL, UNKNOWN):
        assert pickle.loads(pickle.dumps(constant)) == constant
    assert ENOVAL != UNKNOWN
    assert repr(ENOVAL) == "ENOVAL"
    assert set(EVICTION_POLICY) == {
        "none",
        "least-recently-stored",
        "least-recently-used",
        "least-frequently-used",
        "second-chance",
    }


def synchronous(cache: Cache) -> set[int]:
    """Return what the writing connections of all shards have for PRAGMA synchronous."""
    for number in range(50):
        cache.set(("a key in each shard", number), 1)
    return {store.connection.open().execute("PRAGMA synchronous").fetchone()[0] for store in cache._shards.stores}


@few
def test_durability_that_is_reset_within_a_transaction_is_in_force_after_it(open_cache: Opener) -> None:
    cache = open_cache(durability="system")
    assert synchronous(cache) == {1}
    with cache.transact():
        cache.reset("durability", "power")
        cache["key"] = 1
    assert synchronous(cache) == {3}
    with cache.transact(), cache.transact():
        cache.reset("durability", "process", update=False)
    assert synchronous(cache) == {0}
    assert open_cache().reset("durability") == "power"


@few
def test_a_setting_whose_transaction_is_rolled_back_is_what_it_was(open_cache: Opener) -> None:
    cache = open_cache(durability="system")
    before = {name: getattr(cache, name) for name in DEFAULT_SETTINGS}
    with pytest.raises(KeyError), cache.transact():
        cache.reset("cull_limit", 0)
        cache.reset("durability", "power")
        cache.reset("eviction_policy", "least-frequently-used")
        assert (cache.reset("cull_limit"), cache.durability) == (0, "power")
        raise KeyError
    assert {name: getattr(cache, name) for name in DEFAULT_SETTINGS} == before
    assert {name: cache.reset(name) for name in DEFAULT_SETTINGS} == before
    assert synchronous(cache) == {1}
    for store in cache._shards.stores:
        assert {name: store.shard.settings[name] for name in before} == before
        assert store.shard.policy.name == "second-chance"


@few
def test_a_setting_is_what_the_transaction_round_one_that_was_rolled_back_made_it(open_cache: Opener) -> None:
    cache = open_cache(cull_limit=7)  # this handle's; 10 is stored, or 7 where it makes the cache
    with cache.transact():
        cache.reset("size_limit", 1 << 20)
        with pytest.raises(KeyError), cache.transact():
            cache.reset("size_limit", 1 << 25)
            cache.reset("cull_limit", 3)
            raise KeyError
    assert (cache.size_limit, cache.cull_limit) == (1 << 20, 7)
    assert cache.reset("size_limit") == 1 << 20


def test_every_setting_is_an_attribute() -> None:
    """An assignment to anything else would be ignored."""
    assert {name for name in DEFAULT_SETTINGS if not isinstance(vars(SettingsInForce).get(name), Setting)} == set()


def test_the_write_buffer_can_be_switched_off_and_on_by_an_assignment(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = 1
        (store,) = cache._shards.stores
        for size, waits in ((0, False), (1 << 20, True)):
            cache.write_buffer = size
            cache["key"] = size
            assert cache.write_buffer == size
            assert bool(store.shard.ring and store.shard.ring.waiting()) == waits
        assert cache["key"] == 1 << 20
