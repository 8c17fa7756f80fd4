"""The tests that cachelib has for every cache, on `integrations.cachelib`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from diskcache_like.integrations.cachelib import CachelibCache

clear: Any = importlib.import_module("clear")  # these are the project's
common: Any = importlib.import_module("common")
has: Any = importlib.import_module("has")


@pytest.fixture(autouse=True)
def cache_factory(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.cls.cache_factory = lambda self, *args, **kwargs: CachelibCache(tmp_path / "cache", *args, **kwargs)


class TestSimpleCache(common.CommonTests, clear.ClearTests, has.HasTests):
    """It has the name of the project's class, so that failures can be compared."""
