"""A cache to work on, and a shell that runs commands on it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from diskcache_like import Cache

from ..support.command_line import Shell


@pytest.fixture
def stocked(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache") as made:
        made.set("user:1", {"name": "Ada"}, tag="users")
        made.set("user:2", "Grace\x1b[2J", tag="users", expire=3600)
        made[3] = b"\x00\xff"
        made["day"] = date(2026, 1, 2)
        yield made


@pytest.fixture
def shell(stocked: Cache, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(Path(stocked.directory), capsys)
