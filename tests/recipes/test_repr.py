"""Recipes say which key they use, and metrics what they count."""

from __future__ import annotations

from pathlib import Path

from diskcache_like import Averager, BoundedSemaphore, Cache, Lock, RLock


def test_locks_and_averagers_name_their_key(tmp_path: Path) -> None:
    with Cache(str(tmp_path / "cache")) as cache:
        made = [kind(cache, "jobs") for kind in (Lock, RLock, BoundedSemaphore, Averager)]
        assert list(map(repr, made)) == [
            "Lock('jobs')",
            "RLock('jobs')",
            "BoundedSemaphore('jobs')",
            "Averager('jobs')",
        ]


def test_metrics_name_what_they_count(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        assert (
            repr(cache.metrics)
            == "Metrics(damaged=0, unauthenticated=0, missing_files=0, failed_renewals=0, not_kept=0)"
        )
