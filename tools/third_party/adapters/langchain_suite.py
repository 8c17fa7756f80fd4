"""The tests that LangChain has for every cache and store, on `integrations.langchain`."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests
from langchain_tests.integration_tests.cache import AsyncCacheTestSuite, SyncCacheTestSuite

from diskcache_like.integrations.langchain import LangChainCache, LangChainStore


class OfCache:
    @pytest.fixture
    def cache(self, tmp_path: Path) -> LangChainCache:
        return LangChainCache(tmp_path)


class OfStore:
    @pytest.fixture
    def three_values(self) -> tuple[str, str, str]:
        return "foo", "bar", "buzz"

    @pytest.fixture
    def kv_store(self, tmp_path: Path) -> LangChainStore[str]:
        return LangChainStore(tmp_path)


class TestInMemoryCache(OfCache, SyncCacheTestSuite):
    """These have the names of the project's classes, so that failures can be compared."""


class TestInMemoryCacheAsync(OfCache, AsyncCacheTestSuite):
    pass


class TestInMemoryStore(OfStore, BaseStoreSyncTests[str]):
    pass


class TestInMemoryStoreAsync(OfStore, BaseStoreAsyncTests[str]):
    pass
