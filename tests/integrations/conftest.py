"""What the tests beside other libraries share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diskcache_like import Cache

from ..support.cache_kinds import QUICK, Clock


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> Iterator[Cache]:
    """Return one cache of this package, to be held beside that of another (`theirs`); at the end it is sound."""
    with Cache(tmp_path / "ours", clock=clock, **QUICK) as cache:
        yield cache
        assert [str(problem.message) for problem in cache.check()] == []
