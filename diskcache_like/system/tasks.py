"""The running task, of asyncio or trio, found without importing either."""

from __future__ import annotations

import sys


def current_task() -> object | None:
    """Return the running task, or None."""
    task: object | None
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running event loop in this thread
        return _trio_task()
    return task


def _trio_task() -> object | None:
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_run():
        return None
    task: object = trio.lowlevel.current_task()
    return task


async def sleep(seconds: float) -> None:
    """Let other tasks run for some seconds."""
    if _trio_task() is not None:
        await sys.modules["trio"].sleep(seconds)
        return
    import asyncio

    await asyncio.sleep(seconds)
