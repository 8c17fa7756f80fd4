"""Eviction policies: which entry is evicted first.

Every entry has a `rank`, and the entry with the lowest rank goes first. The policy decides what the rank is: twice the
tick at the last store; the same at the last use, plus one, so that a use lies between two writes; or the number of
uses and, where that is equal, the tick at the last store. An entry with the tag PINNED is not evicted, and has the
highest rank there is.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import SettingError


class Policy(NamedTuple):
    """One eviction policy, and what a hit must record for it."""

    name: str
    evicts: bool  # whether live entries are ever removed to make room
    marks_recency: bool  # a hit stores the tick in the shared use word of the key's slot
    marks_frequency: bool  # a hit adds one to the shared use word of the key's slot

    @property
    def marks(self) -> bool:
        """Tell whether hits are recorded at all."""
        return self.marks_recency or self.marks_frequency


EVICTION_POLICY: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", False, False, False),
        Policy("least-recently-stored", True, False, False),
        Policy("least-recently-used", True, True, False),
        Policy("least-frequently-used", True, False, True),
    )
}


def policy_named(name: object) -> Policy:
    """Return the policy called `name`, or raise a SettingError that lists the known ones."""
    policy = EVICTION_POLICY.get(name) if isinstance(name, str) else None
    if not isinstance(policy, Policy):  # a program may have added its own SQL, which DiskCache allows
        raise SettingError(f"eviction_policy is {name!r}, expected one of {', '.join(EVICTION_POLICY)}")
    return policy
