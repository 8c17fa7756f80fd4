"""Where the hot layer of a cache with `remote=` looks: the words of entries on a server, in place of generations.

The number of a key comes from the name of its entry on the server, and is the same on every machine, so that its slot
among the words can be told from the server's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..coherence import counts
from ..coherence.generations import Marks, Words
from ..entries.hot import HotLayer
from .state import SLOTS, TierState, boot_seconds


class Place(int):
    """The place of a key: a number made from the name of its entry, with what else a request needs."""

    stored_key: bytes
    digest: bytes
    canonical: bytes
    key: Any
    home: int  # the place in this machine's database
    index: int  # of the word of the entry
    # What was found last: the words that it depends on, and their stamp, None if it must not be kept.
    indices: frozenset[int]
    stamp: int | None = None
    tick: int = 0  # the version of the row here when it was looked at
    was_asked: bool = False  # whether the server has said what there is

    @property
    def number(self) -> int:
        """Return the part of the digest that a cell has."""
        return int.from_bytes(self.digest[8:], "big")


class SharedWords:
    """The words of all machines' entries, which a hit or a load looks at as at the slots of an open shard."""

    slot_prime = SLOTS

    def __init__(self, state: TierState, ready: Callable[[], None], marks: Marks) -> None:
        self._state = state
        self.marks = marks  # which only count: the keys of the database's eviction are others
        self.ready = ready  # opens the shard that has the copies

    @property
    def slots(self) -> Words:
        """Return the words."""
        return self._state.words

    def slot_of(self, home: int) -> int:
        """Return the index of the word of a place."""
        return home % SLOTS


class _WordsOfTags:
    """The words of an entry with tags, as an open shard has its slots: one number, which changes with any of them."""

    __slots__ = ("_indices", "_state", "marks")
    slot_prime = SLOTS

    def __init__(self, state: TierState, indices: frozenset[int], marks: Marks) -> None:
        self._state = state
        self.marks = marks
        self._indices = indices

    @property
    def shard(self) -> _WordsOfTags:
        """Return what has the slots."""
        return self

    slots = shard

    def __getitem__(self, _: int, /) -> int:
        return self._state.stamp(self._indices)

    def __setitem__(self, _: int, __: int, /) -> None:
        raise TypeError("these words are only read")

    def __len__(self) -> int:
        return SLOTS


class TierHotLayer(HotLayer):
    """A hot layer whose entries count until the lease ends, by a clock that goes on while the machine is suspended."""

    def __init__(
        self,
        state: TierState,
        lease_ends: Callable[[], float],
        clock: Callable[[], float],
        limit: int,
    ) -> None:
        super().__init__(limit, boot_seconds)
        self._state = state
        self._lease_ends = lease_ends
        self._cache_clock = clock

    def count_read(self, found: bool, location: Any) -> None:
        """Count a read as a hit or a miss; a hit may be one of the server's."""
        stored_key, place, store = location
        if found and place.was_asked:
            store.shard.marks.of(stored_key)[place] = counts.ASKED
        else:
            super().count_read(found, location)

    def keep(
        self,
        key: Any,
        location: Any,
        stamp: int,
        expire: float | None,
        loaded: Any,
        size: int,
        is_plain: bool = False,
    ) -> None:
        """Keep what was found at a place, if its stamp could be told, until it expires or the lease ends."""
        _, place, store = location
        if type(place) is not Place or place.stamp is None:
            return
        until = self._lease_ends()
        if expire is not None:
            until = min(until, boot_seconds() + expire - self._cache_clock())
        if len(place.indices) > 1:
            store = _WordsOfTags(self._state, place.indices, store.shard.marks)
        super().keep(key, (place.stored_key, place, store), place.stamp, until, loaded, size, is_plain)
