"""What a handle allows a shard to hold: bytes, and entries."""

from __future__ import annotations

from typing import Any

from ...coherence.generations import MAX_WORD, GenerationFile, Header, Words
from ...coherence.ring import Ring
from ..opening.identity import evicts

_COUNT, _TICK, _SINCE = Header.COUNT, Header.TICK, Header.SINCE


class Limits:
    """The limits of an open shard, by the settings that are in force in this handle."""

    settings: dict[str, Any]
    identity: dict[str, Any]
    header: Words
    generations: GenerationFile
    ring: Ring | None
    most = MAX_WORD  # entries that this handle allows; set by `set_most`

    @property
    def limit(self) -> int:
        """Return the bytes that this shard may use: its even part of `size_limit`."""
        return int(self.settings["size_limit"]) // int(self.identity.get("shards", 1))

    @property
    def evicts(self) -> bool:
        """Tell whether this handle removes live entries for room at all."""
        return evicts(self.settings)

    @property
    def control_bytes(self) -> int:
        """Return the bytes of the generations and the ring that count as used.

        That is a quarter of the limit at most: one that was lowered leaves room for entries. The disk reserve does not
        count, as it is room that is kept free.
        """
        ring = self.ring
        return min(self.generations.allocated + (ring.allocated if ring else 0), self.limit // 4)

    def set_most(self) -> None:
        """Take over how many entries this shard may have: its even part of `max_entries`, and one at least."""
        given = self.settings["max_entries"]
        limits = given is not None and self.evicts
        self.most = max(int(given) // int(self.identity.get("shards", 1)), 1) if limits else MAX_WORD

    def may_have_too_many(self, more: int = 0) -> bool:
        """Tell whether there may be too many entries once `more` are written; a write may also be an overwrite."""
        if self.most == MAX_WORD:
            return False
        header = self.header
        return header[_COUNT] + (header[_TICK] - header[_SINCE] & MAX_WORD) + more > self.most

    def limit_word(self) -> int:
        """Return what this handle's marks in `Header.VOLUME_DUE` go by: see `Header.LIMIT`."""
        return min(int(self.settings["size_limit"]), MAX_WORD) if self.evicts else MAX_WORD
