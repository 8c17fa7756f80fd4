"""A store for py-key-value, and so for FastMCP: the collections of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..aio import AsyncCache
from .hosts import Given, host, is_directory, opened, tag_of

with host("key_value", "key-value"):
    from key_value.aio.stores.base import (
        BaseContextManagerStore,
        BaseCullStore,
        BaseDestroyCollectionStore,
        BaseDestroyStore,
        BaseEnumerateCollectionsStore,
        BaseEnumerateKeysStore,
        ManagedEntry,
    )


class KeyValueStore(
    BaseContextManagerStore,
    BaseCullStore,
    BaseDestroyCollectionStore,
    BaseDestroyStore,
    BaseEnumerateCollectionsStore,
    BaseEnumerateKeysStore,
):
    """A store whose collections are the tags of a cache; `async with` closes one that it opened.

    `cache`: a directory, or a Cache, FanoutCache or namespace, or the `aio` of one, for this store alone; `settings`:
    for the cache in a directory. Entries are evicted, as from any cache, unless that has `eviction_policy="none"`. A
    collection whose name takes more than 200 bytes is listed by a digest of it.
    """

    def __init__(
        self, cache: Given, *, default_collection: str | None = None, seed: Any = None, **settings: Any
    ) -> None:
        self._owns = is_directory(cache)
        self._cache = AsyncCache(cache, **settings) if self._owns else opened(cache, **settings).aio
        super().__init__(default_collection=default_collection, seed=seed, stable_api=True)

    async def _setup(self) -> None:
        if self._owns:
            await self._exit_stack.enter_async_context(self._cache)

    async def _get_managed_entries(self, *, collection: str, keys: Sequence[str]) -> list[ManagedEntry | None]:
        found = await self._cache.get_many([(collection, key) for key in keys])
        texts = [found.get((collection, key)) for key in keys]
        return [text and self._serialization_adapter.load_json(json_str=text) for text in texts]

    async def _get_managed_entry(self, *, collection: str, key: str) -> ManagedEntry | None:
        text = await self._cache.get((collection, key))
        return text and self._serialization_adapter.load_json(json_str=text)

    async def _put_managed_entry(self, *, collection: str, key: str, managed_entry: ManagedEntry) -> None:
        text = self._serialization_adapter.dump_json(entry=managed_entry, key=key, collection=collection)
        await self._cache.set((collection, key), text, managed_entry.ttl, tag=tag_of(collection), retry=True)

    async def _delete_managed_entry(self, *, key: str, collection: str) -> bool:
        return await self._cache.delete((collection, key), retry=True)

    async def _delete_managed_entries(self, *, keys: Sequence[str], collection: str) -> int:
        return await self._cache.delete_many([(collection, key) for key in keys], retry=True)

    async def _get_collection_keys(self, *, collection: str, limit: int | None = None) -> list[str]:
        return [key async for _, key in self._cache.keys(tags=[tag_of(collection)])][:limit]

    async def _get_collection_names(self, *, limit: int | None = None) -> list[str]:
        return [usage.name for usage in await self._cache.tags()][:limit]

    async def _delete_collection(self, *, collection: str) -> bool:
        return bool(await self._cache.evict(tag_of(collection), retry=True))

    async def _delete_store(self) -> bool:
        return bool(await self._cache.clear(retry=True))

    async def _cull(self) -> None:
        await self._cache.expire(retry=True)
        await self._cache.cull(retry=True)
