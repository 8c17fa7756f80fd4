"""Eviction policies: which entry is evicted first.

Every entry has a `rank`, and the entry with the lowest rank goes first. The policy decides what the rank is: twice the
tick at the last store; the same at the last use, plus one, so that a use lies between two writes; or the number of
uses and, where that is equal, the tick at the last store. A hit leaves a mark in the word of the key's slot, and an
entry gets its true rank when it would have to go. Only `second-chance` has no ranks (storage/upkeep/second_chance.py).
"""

from __future__ import annotations

from typing import Final

from ..errors import SettingError

NO_MARKS, RECENCY, FREQUENCY = 0, 1, 3  # what a hit leaves: nothing, twice the tick plus one, or one more
MOST: Final = 2**63 - 2  # the highest rank
USE: Final = 43  # bits below a use in a rank: of entries that were used equally often, the one stored first goes first


class Policy:
    """Evict entries in the order of their ranks, which the marks of hits may change; or none."""

    def __init__(self, name: str, marks: int = NO_MARKS, evicts: bool = True, ranks: bool = True) -> None:
        self.name = name
        self.marks = marks
        self.counts_uses = marks == FREQUENCY  # whether a row says how many uses were counted when it was stored
        self.ranks = ranks  # whether entries are evicted by rank
        self.evicts = evicts  # whether live entries are ever removed to make room

    def rank_now(self, rank: int, base: int, mark: int) -> tuple[int, int] | None:
        """Return the columns `rank` and `base` that an entry should have; None if it has them.

        `mark`: what the hits on its slot have left, `MOST` at most.
        """
        if self.marks == RECENCY and mark > rank:
            return mark, 0
        if self.counts_uses and mark > base:
            return min(rank + (mark - base << USE), MOST), mark
        return None


EVICTION_POLICY: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", evicts=False),
        Policy("least-recently-stored"),
        Policy("least-recently-used", RECENCY),
        Policy("least-frequently-used", FREQUENCY),
        Policy("second-chance", RECENCY, ranks=False),
    )
}


def policy_named(name: object) -> Policy:
    """Return the policy called `name`, or raise a SettingError that lists the known ones."""
    policy = EVICTION_POLICY.get(name) if isinstance(name, str) else None
    if not isinstance(policy, Policy):  # a program may have added its own SQL, which DiskCache allows
        raise SettingError(f"eviction_policy is {name!r}, expected one of {', '.join(EVICTION_POLICY)}")
    return policy
