"""A cache behind a door, and a Redis server to compare it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diskcache_like import Cache

from ..remote.conftest import server, there_is_a_server
from .doors import OpenDoor, open_door

__all__ = ["server", "there_is_a_server"]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """Return a cache as a worker has it."""
    with Cache(tmp_path / "cache", pickle="never") as made:
        yield made


@pytest.fixture
def door(cache: Cache, tmp_path: Path) -> Iterator[OpenDoor]:
    """Return the cache's door, which is open to everyone."""
    with open_door(cache, tmp_path) as opened:
        yield opened
