"""The tests that py-key-value has for every store, and one more, on `integrations.key_value`."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.integrations.key_value import KeyValueStore

base: Any = importlib.import_module("tests.stores.base")  # the project's

SIZE_LIMIT = 100 * 1024  # as in the tests of its disk store


class TestDiskStore(base.ContextManagerStoreTestMixin, base.BaseStoreTests):
    """It has the name of the project's class, whose place it takes, so that failures can be compared."""

    @pytest.fixture
    async def store(self, per_test_temp_dir: Path) -> KeyValueStore:
        return KeyValueStore(per_test_temp_dir, size_limit=SIZE_LIMIT)

    async def test_other_protocols(self, store: KeyValueStore) -> None:
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
async def memory_store(tmp_path: Path) -> AsyncIterator[KeyValueStore]:
    """Stand in for the project's store in memory, where it tests its wrappers."""
    async with KeyValueStore(tmp_path / "cache", size_limit=SIZE_LIMIT) as store:
        yield store
