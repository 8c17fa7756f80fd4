"""Beside Flask-Caching's tests: what they get for its SimpleCache is on `integrations.cachelib`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import cachelib.simple
import pytest
from flask_caching import backends
from flask_caching.backends import simplecache

from diskcache_like.integrations.cachelib import CachelibCache

made: list[SimpleCache] = []


class SimpleCache(CachelibCache, backends.BaseCache):
    """A cache in a temporary directory, by the clock that the tests set."""

    def __init__(self, threshold: int = 500, **options: Any) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="flask-caching-")
        super().__init__(self.directory.name, **options, clock=lambda: cachelib.simple.time())
        made.append(self)

    @classmethod
    def factory(cls, app: Any, config: Any, args: list[Any], kwargs: dict[str, Any]) -> SimpleCache:
        return cls(*args, **kwargs)


backends.SimpleCache = simplecache.SimpleCache = SimpleCache


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while made:
        one = made.pop()
        one.cache.close()
        one.directory.cleanup()
