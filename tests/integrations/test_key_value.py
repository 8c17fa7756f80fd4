"""What py-key-value's own tests, which `make third-party` runs, do not ask of the adapter."""

from __future__ import annotations

import asyncio
from pathlib import Path

from diskcache_like import Cache
from diskcache_like.integrations.key_value import KeyValueStore

from ..support.cache_kinds import Clock


def test_a_cache_that_it_was_given_stays_open(cache: Cache) -> None:
    async def use() -> None:
        async with KeyValueStore(cache, default_collection="mine") as store:
            await store.put("key", {"a": [1]}, ttl=60)

    asyncio.run(use())
    assert list(cache) == [("mine", "key")]
    assert [usage.name for usage in cache.tags()] == ["mine"]


def test_a_directory_is_opened_with_settings(tmp_path: Path, clock: Clock) -> None:
    async def use() -> None:
        async with KeyValueStore(tmp_path / "cache", clock=clock, max_entries=7) as store:
            await store.put_many(["a", "b"], [{"n": 1}, {"n": 2}], ttl=60)
            clock.now += 60
            await store.put("c", {"n": 3}, collection="x" * 300)
            assert await store.get_many(["a", "b"]) == [None, None]
            (name,) = await store.collections()
            assert len(name) == 32
            assert await store.keys("x" * 300) == ["c"]
            assert await store.delete_many(["c"], collection="x" * 300) == 1

    asyncio.run(use())
    with Cache(tmp_path / "cache") as made:
        assert made.max_entries == 7
