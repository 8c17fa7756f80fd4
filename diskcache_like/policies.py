"""Eviction policies: which entry goes first when room is needed.

Every entry has a `rank`; the entry of lowest rank is evicted first. What a rank means is the policy's: twice the write
counter at the last store, that and one at the last use (so that a use lies between two writes), or the number of uses.
"""

from __future__ import annotations

from typing import NamedTuple

from .errors import SettingError


class Policy(NamedTuple):
    """How ranks are kept under one eviction policy."""

    name: str
    evicts: bool  # whether live entries are ever removed for room
    marks_recency: bool  # a hit notes the write counter in the shared use word of the key's slot
    marks_frequency: bool  # a hit adds one to the shared use word of the key's slot

    @property
    def marks(self) -> bool:
        """Tell whether hits are noted at all."""
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
    """Return the policy called `name`, or raise SettingError that lists the known ones."""
    policy = EVICTION_POLICY.get(name) if isinstance(name, str) else None
    if not isinstance(policy, Policy):  # a program may have added SQL of its own, as DiskCache lets it
        raise SettingError(f"eviction_policy is {name!r}, expected one of {', '.join(EVICTION_POLICY)}")
    return policy
