"""Those who work on caches all at once."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

import pytest

from prove.children import KINDS
from prove.load.everything_at_once import Crowd


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_gives_up_its_wait_and_answers_false(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        caches = Crowd(kind, 1, places=(tmp_path / "kept", tmp_path / "limited")).open(stack)
        assert [cache.timeout for cache in caches] == [math.inf, math.inf]
