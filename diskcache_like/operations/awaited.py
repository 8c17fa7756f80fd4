"""The door to the asynchronous classes, which are above what they await, and are imported when one is first wanted."""

from __future__ import annotations

import importlib
from typing import Any


def face(kind: str, behind: Any) -> Any:
    """Return the face of this `kind`, a class of the module `aio`, of a cache, a deque or an index."""
    return getattr(importlib.import_module("..aio", __package__), kind).of(behind)  # late: asyncio takes long to import
