"""Fixtures for pytest: a cache in a directory of the test's own, and the clock by which its entries expire.

pytest imports this module wherever the package is installed, so it is no part of the package, and imports that late.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from diskcache_like import Cache


class Clock:
    """Tell the time that a test has set: seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1_767_225_600.0  # the beginning of 2026

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def diskcache_clock() -> Clock:
    """Return the clock of the fixture `diskcache`, and of other caches that get it as `clock=`."""
    return Clock()


@pytest.fixture
def diskcache(tmp_path: Path, diskcache_clock: Clock) -> Iterator[Cache]:
    """Return an empty cache in a temporary directory, where time passes only by `diskcache_clock.advance(seconds)`."""
    from diskcache_like import Cache

    with Cache(tmp_path / "diskcache", clock=diskcache_clock, durability="process") as cache:
        yield cache
