"""Recipes: averages and locks between processes, kept in a cache.

A lock is an entry that names its owner by a token. Only the owner's token releases it, so a release that comes too late
cannot free the next owner.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any

from .cache import Cache
from .errors import NotOwner

FIRST_PAUSE = 0.0005  # seconds between attempts, doubled each time up to the longest
LONGEST_PAUSE = 0.05


class Averager:
    """Keep a running average under one key of a cache."""

    def __init__(self, cache: Cache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag

    def add(self, value: float) -> None:
        """Count `value` in. Atomic."""
        with self._cache.transact(retry=True):
            total, count = self._cache.get(self._key, default=(0.0, 0))
            self._cache.set(self._key, (total + value, count + 1), expire=self._expire, tag=self._tag, retry=True)

    def get(self) -> float | None:
        """Return the average, or None if nothing was counted."""
        total, count = self._cache.get(self._key, default=(0.0, 0), retry=True)
        return None if count == 0 else total / count

    def pop(self) -> float | None:
        """Return the average and start again."""
        total, count = self._cache.pop(self._key, default=(0.0, 0), retry=True)
        return None if count == 0 else total / count


class Lock:
    """A lock between threads and processes under one key of a cache.

    With `expire` (seconds) it is a lease: it frees itself when the owner does not release in time, and the owner's
    release then raises NotOwner.
    """

    def __init__(self, cache: Cache, key: Any, expire: float | None = None, tag: Any = None) -> None:
        self._cache = cache
        self._key = key
        self._expire = expire
        self._tag = tag
        self._held = threading.local()  # the token belongs to the thread that acquired

    def acquire(self) -> None:
        """Take the lock, waiting as long as it takes."""
        token = os.urandom(16)
        pause = FIRST_PAUSE
        while not self._cache.add(self._key, token, expire=self._expire, tag=self._tag, retry=True):
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._held.token = token

    def release(self) -> None:
        """Free the lock; raise NotOwner if the calling thread does not hold it, or no longer does."""
        token = getattr(self._held, "token", None)
        self._held.token = None
        with self._cache.transact(retry=True):
            if token is None or self._cache.get(self._key) != token:
                raise NotOwner(f"lock {self._key!r} is not held by this thread; its lease may have run out")
            self._cache.delete(self._key, retry=True)

    def locked(self) -> bool:
        """Tell whether anyone holds the lock."""
        return self._key in self._cache

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
