"""Generations whose writer breaks the rules, for tests that must notice."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from diskcache_like import Cache
from diskcache_like.coherence.generations import Words


@dataclass(frozen=True, slots=True)
class Sabotaged:
    """Words whose writer breaks the rules.

    'silent' never marks a slot. 'early' makes it even again before the commit. 'late' leaves out the odd step and marks
    it after the commit only, `delay` seconds after it.
    """

    words: Words
    how: str
    delay: float = 0.0

    def __getitem__(self, index: int, /) -> int:
        return self.words[index]

    def __setitem__(self, index: int, value: int, /) -> None:
        if self.how == "early" and value & 1:
            self.words[index] = value + 1
        elif self.how == "late" and not value & 1:
            time.sleep(self.delay)
            self.words[index] = value

    def __len__(self) -> int:
        return len(self.words)

    def fill(self, value: int, /) -> None:
        """Mark all slots as one."""
        for index in range(len(self)):
            self[index] = value


def sabotage(cache: Cache, how: str, delay: float = 0.0) -> None:
    """Have every write of this handle break the rules of the generations, unless `how` is empty."""
    for store in cache._shards.stores if how else []:
        in_python(store)
        slots: Any = Sabotaged(store.shard.slots, how, delay)
        store.shard.slots = store.shard.generations.slots = slots


def in_python(store: Any) -> None:
    """Have every write of this store mark its slot in Python: the core would keep to the rules."""
    store.shard.appender = None
    store.writer.buffer._prepare_appender = lambda ring: None
