"""The tests that requests-cache has for every storage and backend, on `integrations.requests_cache`."""

from __future__ import annotations

import importlib
from typing import Any

from diskcache_like.integrations.requests_cache import RequestsCache, RequestsStorage

caches: Any = importlib.import_module("tests.integration.base_cache_test")  # these are the project's
storages: Any = importlib.import_module("tests.integration.base_storage_test")


class TestMemoryDict(storages.BaseStorageTest):
    """It has the name of the project's class, so that failures can be compared."""

    storage_class = RequestsStorage


class TestMemoryCache(caches.BaseCacheTest):
    """Likewise."""

    backend_class = RequestsCache
