"""What programs do that say `import diskcache`; `test_compat` runs these in a process where that is this package.

DiskCache is installed as well, which shows that it is not the one that is imported.
"""

from __future__ import annotations

import collections.abc
import importlib
import importlib.util
import json
import os
import pickle
import sqlite3
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import diskcache as dc
import diskcache.core
import pytest

import diskcache_like
from diskcache_like import compat


@pytest.fixture
def cache() -> Iterator[Any]:
    with dc.Cache() as made:
        yield made


def test_django_is_imported_when_it_is_asked_for() -> None:  # here, before another test asks for it
    assert "django" not in sys.modules
    pytest.importorskip("django")
    from diskcache.djangocache import DjangoCache

    assert dc.DjangoCache is DjangoCache
    assert issubclass(DjangoCache, diskcache_like.DjangoCache)


def test_the_package_is_this_one(cache: Any) -> None:
    assert issubclass(dc.Cache, diskcache_like.Cache)
    assert issubclass(dc.FanoutCache, diskcache_like.FanoutCache)
    assert dc.Index is diskcache_like.Index
    assert (dc.__version__, dc.__name__) == ("5.6.3", "diskcache")
    cache["key"] = "value"
    assert cache["key"] == "value"
    assert os.path.exists(os.path.join(cache.directory, dc.core.DBNAME))


@pytest.mark.parametrize("name", ["cli", "core", "fanout", "persistent", "recipes"])
def test_a_submodule_is_found_in_every_way(name: str) -> None:
    module = getattr(dc, name)  # before anything imports it
    assert importlib.util.find_spec(f"diskcache.{name}") is not None
    assert module is importlib.import_module(f"diskcache.{name}") is sys.modules[f"diskcache.{name}"]
    space: dict[str, Any] = {}
    exec(f"import diskcache.{name} as one; from diskcache import {name} as other", space)
    assert space["one"] is space["other"] is module
    assert os.path.dirname(module.__file__ or "") == os.path.dirname(diskcache_like.__file__)


def test_modules_of_the_standard_library_are_reached_through_core() -> None:
    assert (dc.core.sqlite3, dc.core.op) == (sqlite3, os.path)
    with mock.patch("diskcache.core.time.time", return_value=5.0):
        assert time.time() == 5.0


def test_a_name_that_diskcache_does_not_have_is_an_attribute_error() -> None:
    assert not any(hasattr(module, "nothing") for module in (dc, dc.core))
    with pytest.raises(ImportError, match="nothing"):
        exec("from diskcache import nothing")
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("diskcache.nothing")
    assert raised.value.name == "diskcache.nothing"


def test_a_star_import_brings_the_public_names() -> None:
    space: dict[str, Any] = {}
    exec("from diskcache import *", space)
    assert {"Averager", "Cache", "Deque", "Disk", "Index", "RLock", "Timeout", "throttle"} <= space.keys()


def test_names_of_core_are_those_of_diskcache() -> None:
    assert dc.core.Constant("ENOVAL") == dc.core.ENOVAL
    assert repr(dc.core.UNKNOWN) == "UNKNOWN"
    assert dc.core.full_name(os.path.join) == "posixpath.join"


class Compressed(dc.Disk):  # type: ignore[misc]
    """A disk of one's own, as DiskCache's documentation has it."""

    def __init__(self, directory: Any, level: int = 1, **kwargs: Any) -> None:
        self.level = level
        super().__init__(directory, **kwargs)

    def put(self, key: Any) -> Any:
        return super().put(zlib.compress(json.dumps(key).encode(), self.level))

    def get(self, key: Any, raw: bool) -> Any:
        return json.loads(zlib.decompress(super().get(key, raw)))

    def store(self, value: Any, read: bool, key: Any = dc.UNKNOWN) -> Any:
        if not read:
            value = zlib.compress(json.dumps(value).encode(), self.level)
        return super().store(value, read, key=key)

    def fetch(self, mode: int, filename: Any, value: Any, read: bool) -> Any:
        data = super().fetch(mode, filename, value, read)
        return data if read else json.loads(zlib.decompress(data))


@pytest.mark.parametrize("kind", [dc.Cache, dc.FanoutCache])
def test_a_disk_of_ones_own_is_used(kind: Any, tmp_path: Path) -> None:
    with kind(tmp_path, disk=Compressed, disk_level=6) as cache:
        cache[["a", 1]] = {"big": "x" * 100_000}
        assert cache.disk.level == 6
    with kind(tmp_path, disk=Compressed) as cache:
        assert cache[["a", 1]] == {"big": "x" * 100_000}
        assert list(cache) == [["a", 1]]
        assert cache.check() == []


class Named(dc.Cache):  # type: ignore[misc]
    """A cache of one's own, with an argument more."""

    def __init__(
        self, directory: Any = None, timeout: float = 60, disk: Any = dc.Disk, label: Any = None, **settings: Any
    ) -> None:
        super().__init__(directory, timeout, disk, **settings)
        self.label = label

    def __getstate__(self) -> Any:
        return (*super().__getstate__(), self.label)


def test_a_cache_of_ones_own_comes_back_from_a_pickle() -> None:
    with Named(label="mine", hot_size_limit=5_000_000, timeout=7) as cache:
        cache["key"] = "value"
        with pickle.loads(pickle.dumps(cache)) as other:
            assert (other.label, other.timeout, other.hot_size_limit) == ("mine", 7, 5_000_000)
            assert (other["key"], other.directory) == ("value", cache.directory)
    with dc.FanoutCache(shards=3, timeout=2, disk=dc.JSONDisk) as cache:
        cache["key"] = "value"
        with pickle.loads(pickle.dumps(cache)) as other:
            assert (other["key"], other.timeout, type(other.disk)) == ("value", 2, dc.JSONDisk)


def test_a_reader_has_the_path_of_its_file_as_its_name(cache: Any) -> None:
    cache["key"] = b"x" * 100_000
    with cache.read("key") as reader, open(reader.name, "rb") as again:
        assert again.read() == reader.read() == b"x" * 100_000


def test_pickles_that_name_diskcache_are_read() -> None:
    names = "diskcache\nCache", "diskcache.core\nDisk", "diskcache.core\nTimeout", "diskcache.fanout\nFanoutCache"
    found = [pickle.loads(f"c{name}\n.".encode()) for name in names]
    assert found == [dc.Cache, diskcache_like.Disk, diskcache_like.Timeout, dc.FanoutCache]


def test_unknown_settings_are_ignored_with_one_warning_for_each_name(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for number in range(2):
            fanout = dc.FanoutCache(tmp_path / "f", 2, suppress=True)
            with dc.Cache(tmp_path / f"{number}", suppress=False) as cache, fanout:
                fanout.cache("child", compresion=1)["key"] = 1
                assert pickle.loads(pickle.dumps(cache)).directory == cache.directory
    assert [(problem.category, problem.filename) for problem in found] == [(UserWarning, __file__)] * 2
    first, second = (str(problem.message) for problem in found)
    assert first.startswith("unknown setting 'suppress', expected one of pickle, secret, ")
    assert first.endswith("; it is ignored")
    assert second.startswith("unknown setting 'compresion': did you mean 'compressor'? ")
    kinds: list[Any] = [diskcache_like.Cache, diskcache_like.FanoutCache]  # whose own interface is strict
    for kind in kinds:
        with pytest.raises(diskcache_like.SettingError):
            kind(tmp_path / "own", suppress=False)
    with pytest.raises(diskcache_like.SettingError):  # and of a known setting the value is checked
        dc.Cache(tmp_path / "0", size_limit="big")


def test_the_options_of_a_django_cache_are_as_lenient(tmp_path: Path) -> None:
    pytest.importorskip("django")
    parameters = {"OPTIONS": {"suppress_all": False, "size_limit": 5_000_000}}
    with pytest.warns(UserWarning, match="'suppress_all'"):
        backend = dc.DjangoCache(str(tmp_path), parameters)
    assert backend._cache.size_limit == 5_000_000
    with pytest.raises(diskcache_like.SettingError):
        diskcache_like.DjangoCache(str(tmp_path), parameters)
    backend.close()


def test_caches_of_both_names_are_instances_of_each_other() -> None:
    class Mapped(dc.Cache, collections.abc.MutableMapping):  # type: ignore[misc, type-arg]
        """A cache of a program's own."""

    with diskcache_like.Cache() as ours, dc.Cache() as theirs, dc.FanoutCache(shards=2) as fanout, Mapped() as mapped:
        for cache in (ours, theirs, fanout, mapped):
            assert isinstance(cache, dc.Cache)
            assert isinstance(cache, diskcache_like.Cache)
            assert isinstance(cache, Mapped) is (cache is mapped)
            assert isinstance(cache, dc.FanoutCache) is (cache is fanout)
        assert isinstance(fanout.cache("child"), dc.Cache)
        assert not isinstance(5, dc.Cache)
        assert type(pickle.loads(pickle.dumps(theirs))) is dc.Cache
        assert repr(theirs) == f"Cache({theirs.directory!r})"
        mapped["key"] = 1
        assert dict(mapped.items()) == {"key": 1}


def test_installing_twice_is_installing_once() -> None:
    before = list(sys.meta_path)
    compat.install()
    assert sys.meta_path == before
    assert sys.modules["diskcache"] is dc
    assert compat.installed()
