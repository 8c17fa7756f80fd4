"""What dogpile.cache's own tests, which `make third-party` runs, do not ask of the adapter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dogpile.cache import make_region
from dogpile.cache.api import NO_VALUE

from diskcache_like import Cache
from diskcache_like.integrations.dogpile import DogpileBackend

from ..support.cache_kinds import Clock
from ..support.project import ROOT
from ..support.workers import in_thread


def region(cache: Cache, options: Any = None, **arguments: Any) -> Any:
    made = make_region(**options or {})
    made.configure("diskcache_like", arguments={"cache": cache, **arguments})
    return made


@pytest.fixture(autouse=True)
def _registered() -> None:
    from dogpile.cache.backends import register_backend

    entry = 'diskcache_like = "diskcache_like.integrations.dogpile:DogpileBackend"'
    assert f'[project.entry-points."dogpile.cache"]\n{entry}' in (ROOT / "pyproject.toml").read_text()
    register_backend("diskcache_like", DogpileBackend.__module__, DogpileBackend.__name__)


def test_values_are_plain_data_where_their_payloads_are(cache: Cache) -> None:
    region(cache).set_multi({"key": {"a": [1]}, "other": 2})
    with Cache(cache.directory, pickle="never") as other:
        assert region(other).get_multi(["key", "other"]) == [{"a": [1]}, 2]


def test_a_region_may_have_a_serializer_of_its_own(cache: Cache) -> None:
    options = {"serializer": lambda value: json.dumps(value).encode(), "deserializer": json.loads}
    region(cache, options).set("key", [1])
    assert cache["key"].endswith(b"|[1]")
    assert region(cache, options).get("key") == [1]


def test_regions_do_not_read_what_those_of_another_kind_have_stored(cache: Cache) -> None:
    options = {"serializer": lambda value: json.dumps(value).encode(), "deserializer": json.loads}
    region(cache).set("plain", 1)
    region(cache, options).set("bytes", 2)
    cache["foreign"] = (1, 2, 3)
    for key in ("bytes", "foreign"):
        assert region(cache).get(key) is NO_VALUE
        assert region(cache).get_multi([key]) == [NO_VALUE]
    for key in ("plain", "foreign"):
        assert region(cache, options).get(key) is NO_VALUE
        assert region(cache, options).get_multi([key]) == [NO_VALUE]


def test_entries_are_kept_as_long_as_the_region_says(cache: Cache, clock: Clock) -> None:
    region(cache, expire=10).set("key", 1)
    clock.now += 10
    assert not region(cache).get("key")


def test_another_thread_may_release_what_it_creates_a_value_under(cache: Cache, clock: Clock) -> None:
    def run(made: Any, key: str, create: Any, mutex: Any) -> None:
        def work() -> None:
            made.set(key, create())
            mutex.release()

        in_thread(work)

    made = region(cache, {"async_creation_runner": run})
    made.set("key", "old")
    found = made.get_or_create("key", lambda: "new", expiration_time=0)
    assert (found, made.get("key")) == ("old", "new")
    assert not made.backend.get_mutex("key").locked()


def test_one_at_a_time_may_create_a_value_until_its_lease_ends(cache: Cache, clock: Clock) -> None:
    first, second = (region(cache, lock_timeout=30).backend for _ in range(2))
    mutex = first.get_mutex("key")
    assert mutex.acquire()
    assert first.has_lock_timeout()
    assert not second.get_mutex("key").acquire(False)
    assert second.get_mutex("other").acquire(False)
    clock.now += 30
    assert second.get_mutex("key").acquire(False)
    mutex.release()  # the lease is another's by now, and stays that
    assert second.get_mutex("key").locked()
