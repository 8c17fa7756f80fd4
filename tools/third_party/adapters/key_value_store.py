"""A store of py-key-value on `AsyncCache`, and its tests: those that the project has for all stores, and one more."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from key_value.aio._utils.managed_entry import ManagedEntry
from key_value.aio._utils.sanitization import HashExcessLengthStrategy
from key_value.aio.stores.base import (
    BaseContextManagerStore,
    BaseCullStore,
    BaseDestroyCollectionStore,
    BaseDestroyStore,
    BaseEnumerateCollectionsStore,
    BaseEnumerateKeysStore,
)

from diskcache_like import AsyncCache

base: Any = importlib.import_module("tests.stores.base")  # the project's

SIZE_LIMIT = 100 * 1024  # as in the tests of its disk store
TAG_LIMIT = 200


class AsyncCacheStore(
    BaseContextManagerStore,
    BaseCullStore,
    BaseDestroyCollectionStore,
    BaseDestroyStore,
    BaseEnumerateCollectionsStore,
    BaseEnumerateKeysStore,
):
    """A collection is what has its name for a tag; of a name that is too long for a tag, the project makes a shorter one."""

    def __init__(self, directory: Path, size_limit: int) -> None:
        self._cache = AsyncCache(directory, size_limit=size_limit)
        shorten = HashExcessLengthStrategy(max_length=TAG_LIMIT)
        super().__init__(collection_sanitization_strategy=shorten, stable_api=True)

    async def _setup(self) -> None:
        await self._exit_stack.enter_async_context(self._cache)

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        text, expires = await self._cache.get((collection, key), expire_time=True)
        if text is None:
            return None
        entry = self._serialization_adapter.load_json(json_str=text)
        if expires is not None:
            entry.expires_at = datetime.fromtimestamp(expires, tz=UTC)
        return entry

    async def _put_managed_entry(self, *, collection: str, key: str, managed_entry: ManagedEntry) -> None:
        text = self._serialization_adapter.dump_json(entry=managed_entry, key=key, collection=collection)
        tag = self._sanitize_collection(collection)
        await self._cache.set((collection, key), text, managed_entry.ttl, tag=tag, retry=True)

    async def _delete_managed_entry(self, *, key: str, collection: str) -> bool:
        return await self._cache.delete((collection, key), retry=True)

    async def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        return [key async for _, key in self._cache.keys(tags=[self._sanitize_collection(collection)])][:limit]

    async def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        return [usage.name for usage in await self._cache.tags()][:limit]

    async def _delete_collection(self, *, collection: str) -> bool:
        return bool(await self._cache.evict(self._sanitize_collection(collection), retry=True))

    async def _delete_store(self) -> bool:
        return bool(await self._cache.clear(retry=True))

    async def _cull(self) -> None:
        await self._cache.expire(retry=True)
        await self._cache.cull(retry=True)


class TestDiskStore(base.ContextManagerStoreTestMixin, base.BaseStoreTests):
    """It has the name of the project's class, whose place it takes, so that failures can be compared."""

    @pytest.fixture
    async def store(self, per_test_temp_dir: Path) -> AsyncCacheStore:
        return AsyncCacheStore(per_test_temp_dir, SIZE_LIMIT)

    async def test_other_protocols(self, store: AsyncCacheStore) -> None:
        for number in range(3):
            await store.put(f"key {number}", {"is": number}, collection=f"of {number % 2}")
        assert sorted(await store.keys("of 0")) == ["key 0", "key 2"]
        assert len(await store.keys("of 0", limit=1)) == 1
        assert await store.collections() == ["of 0", "of 1"]
        assert await store.destroy_collection("of 0")
        assert await store.get("key 0", collection="of 0") is None
        await store.cull()
        assert await store.get("key 1", collection="of 1") == {"is": 1}
        assert await store.destroy()
        assert await store.collections() == []


@pytest.fixture
async def memory_store(tmp_path: Path) -> AsyncIterator[AsyncCacheStore]:
    """Stand in for the project's store in memory, where it tests its wrappers."""
    async with AsyncCacheStore(tmp_path / "cache", SIZE_LIMIT) as store:
        yield store
