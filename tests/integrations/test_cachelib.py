"""What cachelib's own tests, which `make third-party` runs, do not ask of the adapter."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.integrations.cachelib import CachelibCache

from ..support.cache_kinds import Clock


def test_timeouts_are_seconds_and_zero_is_for_ever(cache: Cache, clock: Clock) -> None:
    adapter = CachelibCache(cache, default_timeout=10)
    adapter.set("default", 1)
    adapter.set_many({"longer": 2}, timeout=20)
    adapter.set("forever", 3, timeout=0)
    clock.now += 10
    assert adapter.get_many("default", "longer", "forever") == [None, 2, 3]
    assert adapter.add("default", 4)
    assert not adapter.add("longer", 5)
    clock.now += 10
    assert adapter.get_dict("default", "longer", "forever") == {"default": None, "longer": None, "forever": 3}


def test_what_is_over_is_not_kept(cache: Cache) -> None:
    adapter = CachelibCache(cache)
    adapter.set("token", 1, timeout=-1)
    adapter.set_many({"other": 1}, timeout=timedelta(seconds=-5))
    assert adapter.get_many("token", "other") == [None, None]
    assert adapter.add("token", 2, timeout=-1)
    assert not adapter.has("token")


def test_a_counter_keeps_its_timeout(cache: Cache, clock: Clock) -> None:
    adapter = CachelibCache(cache)
    adapter.set("count", 1, timeout=5)
    assert adapter.inc("count", 2) == 3
    assert adapter.dec("count") == 2
    clock.now += 5
    assert adapter.inc("count") == 1


def test_a_namespace_is_cleared_alone(cache: Cache) -> None:
    cache["mine"] = 1
    adapter = CachelibCache(cache.namespace("flask"))
    adapter.set("theirs", 2)
    assert adapter.has("theirs")
    assert not adapter.has("mine")
    assert adapter.clear()
    assert (adapter.get("theirs"), cache["mine"]) == (None, 1)


def test_settings_are_for_a_directory(cache: Cache, tmp_path: Path) -> None:
    with CachelibCache(tmp_path / "other", max_entries=5).cache as other:
        assert other.max_entries == 5
    with pytest.raises(TypeError, match="max_entries"):
        CachelibCache(cache, max_entries=5)
