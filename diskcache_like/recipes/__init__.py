"""Recipes on top of the operations of a cache.

- `locks`: locks, semaphores and their leases; `owners`: who holds one
- `throttling`: functions called not too often, or not at once; `averager`: a shared running average
- `stampede`: results computed once, and early
"""

from __future__ import annotations

from .averager import Averager
from .locks import BoundedSemaphore, Lock, RLock
from .stampede import memoize_stampede
from .throttling import barrier, throttle

__all__ = ["Averager", "BoundedSemaphore", "Lock", "RLock", "barrier", "memoize_stampede", "throttle"]
