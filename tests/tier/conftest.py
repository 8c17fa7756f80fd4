"""Machines for the tests of the tier: directories whose caches share a server of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..remote.conftest import proxy, server, there_is_a_server
from ..support.redis_servers import RedisServer
from .machines import Machines

__all__ = ["proxy", "server", "there_is_a_server"]


@pytest.fixture
def machines(server: RedisServer, tmp_path: Path) -> Iterator[Machines]:
    """Return what opens caches on machines by their names; they are closed at the end."""
    made = Machines(server.url, tmp_path)
    yield made
    made.close()
