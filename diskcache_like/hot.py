"""The hot layer: entries kept in this process, each valid only while its slot still has the generation it was read at.

A hit takes no lock. Eviction is SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024): a hit sets a mark; the
hand sweeps from the oldest entry to the newest, clears marks, and removes the first entry without one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final

from .coherence.generations import WORD
from .coherence.words import Words

OVERHEAD = 350  # bytes that an entry costs beside key and value: objects, dictionary slot, order
FRACTION = 64  # no value above limit / FRACTION is admitted

# What a hit notes beside SIEVE's mark: nothing, the time for LRU, a hit for the statistics, a use for LFU, or several.
# `Cache.get` writes these numbers out: looking up a name costs it more than what it then does.
NO_MARKS, RECENCY, COUNTED, FREQUENCY, SEVERAL = range(5)


# An entry as a hit needs it, a plain tuple because it is made with every write and taken apart with every hit:
#   slots   words of the shard's generations
#   slot    index of the key's slot
#   stamp   generation of the slot when the value was read or written; always even
#   expire  seconds since 1970, or None
#   value   the value itself if immutable, else its payload
#   decode  makes a fresh value of the payload for each hit; None for an immutable value
#   visited SIEVE's mark: a list whose first number is 0 for not visited, the entry's only mutable part
#   uses    words of the shard's use marks
#   header  words of the shard's header
#   cost    bytes that the entry is charged with
HotEntry = tuple[Words, int, int, float | None, Any, Callable[[Any], Any] | None, list[int], Words, Words, int]
VISITED: Final = 6
COST: Final = 9


def note_often(visited: list[int], uses: Words, slot: int) -> None:
    """Note that an entry was hit as often as its interval says, and begin the next: an eighth of its uses, 1 to 64.

    SIEVE's mark counts the interval down, so most hits write nothing shared. Hits of an interval that eviction or the
    sweeping hand cut short are not counted, hence the small share.
    """
    if len(visited) == 1:
        visited.append(1)
    uses[slot] = noted = (uses[slot] + (visited[1] if visited[0] == 1 else 1)) & WORD
    visited[0] = visited[1] = 1 if noted < 16 else noted >> 3 if noted < 512 else 64


class HotLayer:
    """Bounded map from hot key to `HotEntry`.

    `_lock` guards the order, the hand and the size; `entries` is a plain dictionary whose single get and set are
    atomic, so readers need no lock and at worst see an entry that has just been replaced, whose stamp decides.
    """

    def __init__(self, limit: int) -> None:
        self.entries: dict[Hashable, HotEntry] = {}
        self.limit = limit
        self.admits = limit // FRACTION
        self.size = 0
        self._order: list[Hashable] = []
        self._hand = 0
        self._lock = threading.RLock()  # because such a lock knows its owner
        _layers.add(self)

    def put(self, key: Hashable, entry: HotEntry) -> None:
        """Keep an entry, evicting others until the limit holds; one that is too large is dropped instead."""
        entries = self.entries
        cost = entry[COST]
        old = entries.get(key)
        if old is not None and old[COST] == cost:
            # No lock: if the key is evicted just now it comes back without a place in the order, which `_compact`
            # gives it, and its cost is counted again there.
            entries[key] = entry
        elif cost > self.admits:
            self.discard(key)
        else:
            lock = self._lock
            if lock._is_owned():  # type: ignore[attr-defined]  # a signal handler interrupts an insertion
                return
            try:
                if lock.acquire(False):  # another thread is inserting: not keeping an entry is always right
                    self._insert(key, entry)
            finally:
                if lock._is_owned():  # type: ignore[attr-defined]  # however a signal handler ended this
                    lock.release()

    def _insert(self, key: Hashable, entry: HotEntry) -> None:
        entries = self.entries
        old = entries.get(key)
        entries[key] = entry
        self.size += entry[COST]
        if old is not None:
            self.size -= old[COST]
        else:
            self._order.append(key)
            if len(self._order) > 2 * len(entries) + 64:
                self._compact()
        if self.size > self.limit:
            self._evict()

    def discard(self, key: Hashable) -> None:
        """Forget one entry."""
        lock = self._lock
        if key not in self.entries or lock._is_owned():  # type: ignore[attr-defined]  # as in `put`
            return
        try:
            if lock.acquire(False):
                old = self.entries.pop(key, None)
                if old is not None:
                    self.size -= old[COST]
        finally:
            if lock._is_owned():  # type: ignore[attr-defined]
                lock.release()

    def resize(self, limit: int) -> None:
        """Change the limit, evicting what is above it."""
        with self._lock:
            self.limit = limit
            self.admits = limit // FRACTION
            self._evict()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._order.clear()
            self._hand = 0
            self.size = 0
            self.entries.clear()

    def renew_lock(self) -> None:
        """Replace the lock; for a forked child, where a thread that no longer exists may have held the old one."""
        self._lock = threading.RLock()
        self._order = list(self.entries)
        self._hand = 0
        self.size = sum(entry[COST] for entry in self.entries.values())

    def _evict(self) -> None:
        """Move the hand until the size is within the limit. Keys that were discarded leave holes, which it skips."""
        entries, order = self.entries, self._order
        hand = self._hand
        while self.size > self.limit and entries:
            if hand >= len(order):
                self._hand = len(order)
                self._compact()
                order, hand = self._order, 0
            key = order[hand]
            hand += 1
            entry = entries.get(key)
            if entry is None:
                continue
            if entry[VISITED][0]:
                entry[VISITED][0] = 0
                continue
            order[hand - 1] = _HOLE
            del entries[key]
            self.size -= entry[COST]
        self._hand = hand

    def _compact(self) -> None:
        """Drop holes and repeated keys, keeping the age order and the hand's place in it; count the size afresh."""
        entries = self.entries
        ahead = dict.fromkeys(key for key in self._order[self._hand :] if key in entries)
        behind = dict.fromkeys(key for key in self._order[: self._hand] if key in entries and key not in ahead)
        lost = [key for key in list(entries) if key not in ahead and key not in behind]
        self._order = [*behind, *ahead, *lost]
        self._hand = len(behind)
        self.size = sum(entry[COST] for entry in list(entries.values()))


_HOLE = object()
_layers: weakref.WeakSet[HotLayer] = weakref.WeakSet()


def _after_fork() -> None:
    for layer in list(_layers):
        layer.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
