"""Metrics: a handle's counts of hits, misses, and entries that could not be trusted."""

from __future__ import annotations

from collections.abc import Callable

COUNTS = ("damaged", "unauthenticated", "missing_files", "failed_renewals", "not_kept")


class Metrics:
    """Counts of one handle in this process.

    They are plain integers: with the global interpreter lock nothing runs between the load and the store of an
    augmented assignment, and without it a lost count harms nobody.
    """

    __slots__ = ("counters", *COUNTS)

    def __init__(self) -> None:
        self.counters = [0, 0]  # hits and misses that were not added to the shared ones yet; in a list for speed
        self.damaged = 0  # entries that did not match their checksum or could not be decoded
        self.unauthenticated = 0  # entries whose authentication failed or was missing
        self.missing_files = 0  # rows whose value file was gone, or not to be read by this user
        self.failed_renewals = 0  # computations in the background that raised an error
        self.not_kept = 0  # times that the cache failed where a value was computed, and the caller was not told

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in COUNTS)
        return f"{type(self).__name__}({counts})"

    def flush(self, count_uses: Callable[[int, int], None]) -> None:
        """Add the hits and misses to the counts of all processes; the write lock is held."""
        hits, misses = self.counters
        if hits or misses:
            self.counters[:] = [0, 0]
            count_uses(hits, misses)
