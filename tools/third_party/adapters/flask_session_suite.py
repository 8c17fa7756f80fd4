"""Beside Flask-Session's tests: what they get for cachelib's FileSystemCache is on `integrations.cachelib`."""

from __future__ import annotations

import tempfile
from typing import Any

import cachelib.file

from diskcache_like.integrations.cachelib import CachelibCache


class FileSystemCache(CachelibCache):
    """A cache in a temporary directory."""

    def __init__(self, cache_dir: str, threshold: int = 500, **options: Any) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="flask-session-")
        super().__init__(self._directory.name, **options)


cachelib.file.FileSystemCache = FileSystemCache
