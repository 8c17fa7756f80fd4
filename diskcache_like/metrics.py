"""Counters of what a handle did: hits, misses, and entries that could not be trusted."""

from __future__ import annotations


class Metrics:
    """Counts of one handle in this process.

    They are plain integers: in a build with the global interpreter lock nothing runs between the load and the store of
    an augmented assignment, and elsewhere a lost count harms nobody.
    """

    __slots__ = ("counters", "damaged", "missing_files", "unauthenticated")

    def __init__(self) -> None:
        self.counters = [0, 0]  # hits and misses that were not added to the shared ones yet; in a list for speed
        self.damaged = 0  # entries that did not match their checksum or could not be decoded
        self.unauthenticated = 0  # entries whose authentication failed or was missing
        self.missing_files = 0  # rows whose value file was gone
