"""Tasks of asyncio, which is imported when a coroutine first needs it: it takes long, and most programs have none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from .signals import suppress

if TYPE_CHECKING:
    import asyncio


def current_task() -> object | None:
    """Return the running task, or None."""
    # Another thread may be importing the module, which has no such function yet. No loop of it runs then.
    running: Callable[[], object | None] | None = getattr(sys.modules.get("asyncio"), "current_task", None)
    if running is None:
        return None
    try:
        return running()
    except RuntimeError:  # no running event loop in this thread
        return None


def current_loop() -> object:
    """Return the running event loop."""
    import asyncio

    return asyncio.get_running_loop()


async def sleep(seconds: float) -> None:
    """Let other tasks run for some seconds."""
    import asyncio

    await asyncio.sleep(seconds)


_tasks: set[asyncio.Task[Any]] = set()  # those under way; an event loop holds its tasks only weakly


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin to run a coroutine in a task of its own, whose errors are reported if nobody waits for it."""
    import asyncio

    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def has_ended(task: asyncio.Task[Any], seconds: float) -> bool:
    """Wait for a task for some seconds, and return whether it has ended."""
    import asyncio

    if seconds == float("inf"):
        with suppress(Exception):  # the task's own
            await asyncio.shield(task)
        return True
    done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


async def wait_for_end(task: asyncio.Task[Any]) -> None:
    """Wait until a task that was cancelled has ended, however often the caller is cancelled meanwhile."""
    import asyncio

    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
