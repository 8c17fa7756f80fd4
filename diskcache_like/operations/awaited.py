"""The one door to the asynchronous classes, which are above what they await, and are imported when first wanted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..aio import AsyncCache as AsyncCache
    from ..aio import AsyncDeque as AsyncDeque
    from ..aio import AsyncFanoutCache as AsyncFanoutCache
    from ..aio import AsyncIndex as AsyncIndex


def face(kind: str, behind: Any) -> Any:
    """Return the face of this `kind`, a class of the module `aio`, of a cache, a deque or an index."""
    return getattr(importlib.import_module("..aio", __package__), kind).of(behind)  # late: asyncio takes long to import
