"""Coherence between processes: generations in shared memory, the write lock, and what both need.

`words` decides how 64-bit words are read and written, `generations` lays them out in a file, `lock` lets one writer at
a time change them, `forks` tells a child from its parent, `sleepers` waits for a word to change, `native` loads the
optional C helper that `native_build` makes.
"""

from __future__ import annotations

from diskcache_like.coherence.forks import process_token
from diskcache_like.coherence.generations import DEFAULT_SLOTS, NEVER, GenerationFile, Header
from diskcache_like.coherence.lock import WriteLock
from diskcache_like.coherence.words import Implementation, Words, choose_implementation, fill

__all__ = [
    "DEFAULT_SLOTS",
    "NEVER",
    "GenerationFile",
    "Header",
    "Implementation",
    "Words",
    "WriteLock",
    "choose_implementation",
    "fill",
    "process_token",
]
