"""A backend of aiocache on `AsyncCache`, and the fixtures by which aiocache's acceptance tests ask for a cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiocache import caches
from aiocache.base import BaseCache
from aiocache.serializers import NullSerializer

from diskcache_like import AsyncCache


class AsyncCacheBackend(BaseCache):
    """Values are kept as they are, unless another serializer is given; no lifetime or 0 is for ever."""

    NAME = "diskcache_like"

    def __init__(self, directory: Path, serializer: Any = None, **options: Any) -> None:
        super().__init__(serializer=serializer or NullSerializer(), **options)
        self._face = AsyncCache(directory)
        self._adding = asyncio.Lock()

    async def _get(self, key: str, encoding: str | None = "utf-8", _conn: Any = None) -> Any:
        return await self._face.get(key)

    _gets = _get

    async def _multi_get(self, keys: Iterable[str], encoding: str | None = "utf-8", _conn: Any = None) -> list[Any]:
        found = await self._face.get_many(keys)
        return [found.get(key) for key in keys]

    async def _set(
        self, key: str, value: Any, ttl: float | None = None, _cas_token: Any = None, _conn: Any = None
    ) -> bool:
        if _cas_token is None:
            return await self._face.set(key, value, ttl or None, retry=True)
        async with self._face.transact(retry=True):
            return await self._face.get(key) == _cas_token and await self._face.set(key, value, ttl or None)

    async def _multi_set(self, pairs: Iterable[Any], ttl: float | None = None, _conn: Any = None) -> bool:
        await self._face.set_many(map(tuple, pairs), ttl or None, retry=True)
        return True

    async def _add(self, key: str, value: Any, ttl: float | None = None, _conn: Any = None) -> bool:
        # Of calls at the same time any may end first, but aiocache's RedLock lets through who is refused before the one
        # that got the lock has been told.
        async with self._adding:
            if not await self._face.add(key, value, ttl or None, retry=True):
                raise ValueError(f"{key!r} is there already")
        return True

    async def _exists(self, key: str, _conn: Any = None) -> bool:
        return await self._face.contains(key)

    async def _increment(self, key: str, delta: int, _conn: Any = None) -> Any:
        return await self._face.incr(key, delta, retry=True)

    async def _expire(self, key: str, ttl: float, _conn: Any = None) -> bool:
        return await self._face.touch(key, ttl or None, retry=True)

    async def _delete(self, key: str, _conn: Any = None) -> int:
        return int(await self._face.delete(key, retry=True))

    async def _clear(self, namespace: str | None = None, _conn: Any = None) -> bool:
        if namespace:
            await self._face.delete_many([key async for key in self._face.keys(prefix=namespace)], retry=True)
        else:
            await self._face.clear(retry=True)
        return True

    async def _raw(
        self, command: str, *args: Any, encoding: str | None = "utf-8", _conn: Any = None, **kwargs: Any
    ) -> Any:
        return await getattr(self._face, command)(*args, **kwargs)

    async def _redlock_release(self, key: str, value: Any) -> int:
        async with self._face.transact(retry=True):
            return int(await self._face.get(key) == value and await self._face.delete(key))

    async def _close(self, *args: Any, _conn: Any = None, **kwargs: Any) -> None:
        await self._face.aclose()


@pytest.fixture(autouse=True)
def _default_settings() -> None:
    caches.set_config({"default": {"cache": "aiocache.SimpleMemoryCache"}})


@pytest.fixture
async def memory_cache(tmp_path: Path) -> AsyncIterator[AsyncCacheBackend]:
    async with AsyncCacheBackend(tmp_path / "cache", namespace="test") as made:
        yield made


@pytest.fixture(params=["memory_cache"])  # as the project names the test of its own backend
def cache(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)
