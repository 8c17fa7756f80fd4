"""Beside hishel's tests: what they get for its storages in SQLite is on `integrations.hishel`."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any

import hishel
import pytest
from hishel._core._storages import _async_sqlite, _sync_sqlite
from hishel.httpx import _async as httpx_async
from hishel.httpx import _sync as httpx_sync

from diskcache_like import Cache
from diskcache_like.integrations.hishel import AsyncHishelStorage, HishelStorage


def cache_for(storage: Any, connection: Any, path: Any) -> Cache:
    """Return a cache by the clock that the tests set: beside the path, or in a directory that goes with the storage."""
    storage.connection = connection
    storage.temporary = tempfile.TemporaryDirectory(prefix="hishel-")
    storage.cache = Cache(storage.temporary.name if path is None else f"{path}.cache", clock=time.time)
    return storage.cache  # type: ignore[no-any-return]


class SqliteStorage(HishelStorage):
    def __init__(self, connection: Any = None, database_path: Any = None, **options: Any) -> None:
        super().__init__(cache_for(self, connection, database_path), **options)

    def close(self) -> None:
        self.cache.close()
        if self.connection is not None:
            self.connection.close()


class AsyncSqliteStorage(AsyncHishelStorage):
    def __init__(self, connection: Any = None, database_path: Any = None, **options: Any) -> None:
        super().__init__(cache_for(self, connection, database_path), **options)

    async def close(self) -> None:
        self.cache.close()
        if self.connection is not None:
            await self.connection.close()


for module in (hishel, _sync_sqlite, httpx_sync):
    vars(module)["SqliteStorage"] = SqliteStorage
for module in (hishel, _async_sqlite, httpx_async):
    vars(module)["AsyncSqliteStorage"] = AsyncSqliteStorage


def count(storage: Any, kind: str) -> int:
    """Return how many heads or bodies of responses there are, which the tests count in SQLite."""
    storage.cache.expire()
    return sum(key[0] == kind for key in storage.cache)


async def counted(storage: Any, kind: str) -> int:
    return count(storage, kind)


@pytest.fixture(autouse=True)
def _counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    function = counted if "_async" in str(request.path) else count
    monkeypatch.setattr(request.module, "rows", partial(function, kind="head"), raising=False)
    monkeypatch.setattr(request.module, "chunk_rows", partial(function, kind="body"), raising=False)
