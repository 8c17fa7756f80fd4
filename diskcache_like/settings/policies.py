"""Eviction policies: which entry is evicted first, and what a hit leaves for that (storage/upkeep/victims.py)."""

from __future__ import annotations

from ..errors import SettingError

# What a hit leaves: nothing, its time, or one more. The core reads the bits (coherence/_marks_type.c).
NO_MARKS, RECENCY, FREQUENCY = 0, 1, 3


class Policy:
    """Say what marks hits leave, and which entries may go."""

    def __init__(self, name: str, marks: int = NO_MARKS, evicts: bool = True, tries: bool = False) -> None:
        self.name = name
        self.marks = marks
        self.evicts = evicts  # whether live entries are ever removed to make room
        self.tries = tries  # whether a new entry is on probation


EVICTION_POLICY: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", evicts=False),
        Policy("least-recently-stored"),
        Policy("least-recently-used", RECENCY),
        Policy("least-frequently-used", FREQUENCY),
        Policy("second-chance", RECENCY, tries=True),
    )
}


def policy_named(name: object) -> Policy:
    """Return the policy called `name`, or raise a SettingError that lists the known ones."""
    policy = EVICTION_POLICY.get(name) if isinstance(name, str) else None
    if not isinstance(policy, Policy):  # a program may have added its own SQL, which DiskCache allows
        raise SettingError(f"eviction_policy is {name!r}, expected one of {', '.join(EVICTION_POLICY)}")
    return policy
