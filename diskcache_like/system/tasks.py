"""Find the running asyncio task without importing asyncio."""

from __future__ import annotations

import sys


def current_task() -> object | None:
    """Return the running asyncio task, or None."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        task: object | None = asyncio.current_task()
    except RuntimeError:  # no running event loop in this thread
        return None
    return task
