"""The hot layer: entries kept in this process, each valid only while its slot still has the generation it was read at.

A hit takes no lock. Eviction is SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024): a hit sets a mark; the
hand sweeps from the oldest entry to the newest, clears marks, and removes the first entry without one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

from ..coherence.counts import HIT, MISS, READ, STALE
from ..coherence.generations import Marks, Words
from ..disk.payloads import How, Kept, fresh
from ..encoding import keys
from ..settings.policies import Policy
from ..storage.interface import EntryStore
from ..system.forks import told_of_forks

OVERHEAD = 350  # bytes that an entry costs beside key and value: objects, dictionary slot, order
FRACTION = 64  # no value above limit / FRACTION is admitted

PLAIN_TYPES = frozenset({str, bytes, int})  # exact types: such a key is its own hot key, such a value is immutable


def _no_entry(_: object) -> Any:
    raise AssertionError("the hot layer knows that there is no entry")


NEGATIVE_HIT: Final = _no_entry
"""Stands for `decode` in the hot entry of a key that is known to have no entry; never called."""
_NEGATIVE: Final = None, NEGATIVE_HIT


# An entry as a hit needs it, a plain tuple because it is made with every write and taken apart with every hit:
#   slots   words of the shard's generations
#   slot    index of the key's slot
#   stamp   generation of the slot when the value was read or written; always even
#   expire  seconds since 1970, or None
#   value   the value itself if immutable, else its payload, or what keeps it (`disk.payloads.Kept`)
#   decode  makes a fresh value of that for each hit; None for an immutable value
#   visited the entry's only mutable part: SIEVE's mark, 0 for not visited; of two bytes if it is known that the entry
#           has neither expiry nor tags, nor any other metadata (`is_plain`)
#   home    hash of the key
#   marks   the shard's marks, which count for the space of the key
#   cost    bytes that the entry is charged with
#   kind    type that the key of a hit has to have, `keys.COMPOUND` if its members count, too
# The garbage collector leaves out a tuple of which no part concerns it, such as a plain value under a plain key. With a
# list in each, it took 25 ms to look at 50,000.
HotEntry = tuple[Words, int, int, float | None, Any, Callable[[Any], Any] | None, bytearray, int, Marks, int, type]
STAMP: Final = 2
VALUE: Final = 4
VISITED: Final = 6
COST: Final = 9
KIND: Final = 10


class HotLayer:
    """Bounded map from hot key to `HotEntry`, and what hits and misses leave for eviction and metrics.

    `_lock` guards the hand, and what removes entries or counts the size; `entries` is a plain dictionary whose single
    get and set are atomic, so readers need no lock and at worst see an entry that has just been replaced, whose stamp
    decides.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.entries: dict[Hashable, HotEntry] = {}
        self._get = self.entries.get
        self.limit = limit
        self.admits = limit // FRACTION
        self.size = 0
        self.hit_kind = HIT  # what a hit leaves: a mark for the eviction policy, and one more to a counter
        self.read_kind = READ  # the same of a hit that this process's memory did not have
        self._clock = clock
        self._order: list[Hashable] = []
        self._hand = 0
        self._lock = threading.RLock()  # because such a lock knows its owner
        self._me = weakref.ref(self)  # for values, which must not keep alive what keeps them
        self.by_bytes = False  # whether every key is kept by its stored bytes, since a subclass of Disk makes them
        _layers.add(self)

    # -- hits and misses ------------------------------------------------------------------------------------------

    def probe(self, key: Any) -> HotEntry | None:
        """Return the entry of `key` if it is valid and has not expired. Marks nothing."""
        try:
            entry = self._get(key)
        except TypeError:  # an unhashable key, which is kept by its stored bytes
            return None
        # Not written since: rule 2 of the coherence rules.
        if (
            entry is not None
            and entry[0][entry[1]] == entry[2]
            and (entry[3] is None or entry[3] > self._clock())
            and (entry[KIND] is type(key) or keys.is_of_kind(key, entry[KIND]))
        ):
            return entry
        return None

    def hit(self, entry: HotEntry) -> Any:
        """Count a hit, or a miss, on a valid entry; return its value, NEGATIVE_HIT if it says that there is none."""
        _, _, _, _, value, decode, visited, home, marks, _, _ = entry
        visited[0] = 1
        if decode is NEGATIVE_HIT:
            marks[home] = MISS
            return NEGATIVE_HIT
        marks[home] = self.hit_kind
        return value if decode is None else decode(value)

    def count_read(self, found: bool, location: tuple[bytes, int, EntryStore]) -> None:
        """Count a read of the database as a hit or a miss."""
        stored_key, home, store = location
        store.shard.marks.of(stored_key)[home] = self.read_kind if found else MISS

    def count_expired(self, location: tuple[bytes, int, EntryStore]) -> None:
        """Count an entry that was found and had expired; the read is counted as a miss as well."""
        stored_key, home, store = location
        store.shard.marks.of(stored_key)[home] = STALE

    def mark_for(self, policy: Policy) -> None:
        """Make hits leave the marks that an eviction policy needs."""
        self.hit_kind, self.read_kind = policy.marks | HIT, policy.marks | READ

    # -- what is kept ---------------------------------------------------------------------------------------------

    def keep(
        self,
        key: Any,
        location: tuple[bytes, int, EntryStore],
        stamp: int,
        expire: float | None,
        loaded: tuple[Any, Callable[[Any], Any] | None],
        size: int,
        is_plain: bool = False,
    ) -> None:
        """Keep a value under the even generation `stamp`, at which it was read or written; evict others if need be.

        `loaded`: what is kept, and how a hit makes a value of it. `size`: the bytes that it is charged with.
        `is_plain`: it is known that the entry has no metadata. What is too large is not kept. With a limit of 0 nothing
        is kept; who looks at that first saves the call.

        No lock: if another thread evicts the key or compacts just now, it may be there without a place in the order,
        and without the GIL a cost may be lost. `_compact`, once in each sweep, mends both.
        """
        stored_key, home, store = location
        shard, entries = store.shard, self.entries
        value, decode = loaded
        cost = (OVERHEAD + len(stored_key) + size) | 63  # rounded, so that an entry often replaces one of equal cost
        if type(key) in PLAIN_TYPES and not self.by_bytes:
            kind = type(key)
        else:
            if self.by_bytes or not keys.hashes_like_stored_key(key):
                key = keys.EncodedKey(stored_key)
            kind = keys.kind_of(key)
        if cost > self.admits:
            self.discard(key)
            return
        if decode is fresh:
            value.admit = partial(_charge, self._me, key)
        slot = home % shard.slot_prime
        home = +home  # a plain number, since a `Place` keeps more (tier/words.py)
        marks, old = shard.marks.of(stored_key), self._get(key)
        visited = bytearray(2 if is_plain else 1)
        entries[key] = shard.slots, slot, stamp, expire, value, decode, visited, home, marks, cost, kind
        if old is None:
            self._order.append(key)
            self.size += cost
        elif old[COST] == cost:
            return
        else:
            self.size += cost - old[COST]
        if self.size > self.limit or len(self._order) > 2 * len(entries) + 64:
            self._if_free(self._evict)

    def charge(self, key: Hashable, value: Kept, size: int, how: How) -> bool:
        """Charge an entry for a value that it keeps decoded from now on, once; return False if there is no room."""
        self._if_free(self._charge_more, key, value, size, how)
        return value.how is how

    def _charge_more(self, key: Hashable, value: Kept, size: int, how: How) -> None:
        entry = self.entries.get(key)
        is_there = entry is not None and entry[VALUE] is value and value.how[0] is None
        if entry is not None and is_there and entry[COST] + size <= self.admits:
            value.how = how
            self.entries[key] = (*entry[:COST], entry[COST] + size, entry[KIND])
            self.size += size
            if self.size > self.limit:
                self._evict()

    def keep_missing(self, key: Any, location: tuple[bytes, int, EntryStore], stamp: int) -> None:
        """Remember that the key has no entry, under the same rules of coherence as an entry."""
        self.keep(key, location, stamp, None, _NEGATIVE, 0)

    def _if_free(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step under the lock, or none if the lock is held: to keep or forget nothing is always right."""
        lock = self._lock
        if lock._is_owned():  # type: ignore[attr-defined]  # in a signal handler that interrupts such a step
            return
        try:
            if lock.acquire(False):
                step(*arguments)
        finally:
            if lock._is_owned():  # type: ignore[attr-defined]  # however a signal handler ended this
                lock.release()

    def discard(self, key: Hashable) -> None:
        """Forget one entry."""
        if key in self.entries:
            self._if_free(self._remove, key)

    def _remove(self, key: Hashable) -> None:
        old = self.entries.pop(key, None)
        if old is not None:
            self.size -= old[COST]

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
        """Replace the lock in a forked child, where the thread that may hold the old one does not exist."""
        self._lock = threading.RLock()
        self._order = list(self.entries)
        self._hand = 0
        self.size = sum(entry[COST] for entry in self.entries.values())

    def _evict(self) -> None:
        """Move the hand until the size is within the limit. Keys that were discarded leave holes, which it skips."""
        entries = self.entries
        if len(self._order) > 2 * len(entries) + 64:
            self._compact()
        order, hand = self._order, self._hand
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
            self.size -= entries.pop(key)[COST]
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


def is_plain(entry: HotEntry) -> bool:
    """Tell whether the entry is known to have no metadata."""
    return len(entry[VISITED]) == 2


def _charge(layer: weakref.ref[HotLayer], key: Hashable, value: Kept, size: int, how: How) -> bool:
    found = layer()
    return found is not None and found.charge(key, value, size, how)


_HOLE = object()
_layers: weakref.WeakSet[HotLayer] = told_of_forks(lambda layer: layer.renew_lock())
