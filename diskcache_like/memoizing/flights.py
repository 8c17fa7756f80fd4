"""Flights: the right of one call to compute something, among all threads and processes that want the same.

A flight is a kernel lock on the byte that belongs to what is computed, so it costs no write, and ends with its process.
Where the system has no such locks it is an entry, which others respect for some time. On either kind of system an entry
says that the last computation has failed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from ..encoding.made_keys import FLIGHTS, NamespacedKey
from ..entries.atomic_key import AtomicKey

PATIENCE = 60.0  # seconds at least that others wait for a computation whose process runs; then they take it to hang
PAUSED = "paused"


class Entries(Protocol):
    """What a flight needs of a cache."""

    def _uncounted(self, key: Any) -> Any:
        """Return the value of a key, and count neither a hit nor a miss."""

    @property
    def set(self) -> Callable[..., bool]:
        """Return `Cache.set`."""

    def delete(self, key: Any, retry: bool = ...) -> bool:
        """Do what `Cache.delete` does."""


class Flight:
    """The right to compute something; `key`, which is one of `FLIGHTS`, is that of its entry.

    `atomic`: what is computed, whose byte is locked, and on whose slot others sleep: storing the value changes the
    slot, so whoever is about to sleep notices. A computation that stores nothing changes no slot, and is noticed a
    slice later.
    """

    __slots__ = ("_cache", "_mark", "_token", "atomic", "key", "patience")

    def __init__(self, cache: Entries, key: Any, atomic: AtomicKey, patience: float) -> None:
        self.key = key
        self.patience = max(patience, PATIENCE)
        self.atomic = atomic
        self._cache = cache
        self._mark: object | None = None  # the owner of the kernel lock
        self._token: str | None = None  # of the entry instead

    def begin(self, despite_failure: bool = False) -> bool:
        """Take the flight if it is free, and return whether it was.

        `despite_failure`: also if the last computation has failed just now.
        """
        if not despite_failure and self.is_paused():
            return False
        # Set before the lock is taken, so that an interrupted call gives it back. A thread that repeats a call which
        # would have blocked the event loop uses the same one.
        self._mark = self._mark or object()
        held = self.atomic.hold(self._mark)
        if held is not None:
            return held
        token = secrets.token_hex(16)
        if self.is_paused():
            self._cache.delete(self.key)
        if not self._cache.set(self.key, token, self.patience, if_version=None):
            return False
        self._token = token
        return True

    def is_paused(self) -> bool:
        """Tell whether the last computation failed a short time ago."""
        return bool(self._cache._uncounted(self.key) == PAUSED)

    def finish(self) -> None:
        """Free the flight if it is this call's, and wake those who wait for it."""
        if self._mark is not None:
            self.atomic.let_go(self._mark)
            self._mark = None
        if self._token is not None and self._cache._uncounted(self.key) == self._token:
            self._cache.delete(self.key)
        self._token = None  # not before, since on an event loop this may begin anew
        self.atomic.wake()

    def __del__(self) -> None:
        mark = getattr(self, "_mark", None)
        if mark is not None:  # a signal handler raised between two steps
            self.atomic.let_go(mark)

    def pause(self, seconds: float) -> None:
        """Note that the computation has failed: for some seconds nobody begins who has an old value to serve."""
        self._token = None
        self._cache.set(self.key, PAUSED, seconds)


def flight_key(key: Any) -> NamespacedKey:
    """Return the key of the flight for a key of the cache."""
    return NamespacedKey(FLIGHTS, key)
