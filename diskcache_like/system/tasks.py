"""Tasks of asyncio or trio, whichever runs, without importing either before it is used."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

from .signals import reraise_signal, suppress


def current_task() -> object | None:
    """Return the running task, or None."""
    # Another thread may be importing the module, which has no such function yet. No loop of it runs then.
    running: Callable[[], object | None] | None = getattr(sys.modules.get("asyncio"), "current_task", None)
    if running is not None:
        try:
            return running()
        except RuntimeError:  # no running event loop in this thread
            pass
    return _trio_task()


def current_loop() -> object:
    """Return what tells the running event loop from others."""
    trio = _running_trio()
    if trio is not None:
        root: object = trio.lowlevel.current_root_task()
        return root
    import asyncio

    return asyncio.get_running_loop()


def _trio_task() -> object | None:
    trio = _running_trio()
    if trio is None:
        return None
    task: object = trio.lowlevel.current_task()
    return task


def _running_trio() -> Any:
    """Return the module trio if it runs in this thread, else None."""
    trio = sys.modules.get("trio")
    lowlevel: Any = getattr(trio, "lowlevel", None)  # None while another thread imports it
    return trio if lowlevel is not None and lowlevel.in_trio_run() else None


async def sleep(seconds: float) -> None:
    """Let other tasks run for some seconds."""
    trio = _running_trio()
    if trio is not None:
        await trio.sleep(seconds)
        return
    import asyncio

    await asyncio.sleep(seconds)


class Task(Protocol):
    """What `spawn` returns."""

    def result(self) -> Any:
        """Return what the coroutine has returned, or raise what it has raised."""

    def cancel(self) -> object:
        """Cancel the coroutine."""

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Call a function with this task once it has ended."""


_tasks: set[Task] = set()  # those under way; an event loop holds its tasks only weakly


def spawn(coroutine: Coroutine[Any, Any, Any]) -> Task:
    """Begin to run a coroutine in a task of its own, whose errors are reported if nobody waits for it."""
    if _running_trio() is not None:
        return TrioTask(coroutine)
    import asyncio

    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def has_ended(task: Task, seconds: float) -> bool:
    """Wait for a task for some seconds, and return whether it has ended."""
    if isinstance(task, TrioTask):
        return await task.has_ended(seconds)
    import asyncio

    if seconds == float("inf"):
        with suppress(Exception):  # the task's own
            await asyncio.shield(task)  # type: ignore[arg-type]
        return True
    done, _ = await asyncio.wait({task}, timeout=seconds)  # type: ignore[type-var]
    return bool(done)


async def wait_for_end(task: Task) -> None:
    """Wait until a task that was cancelled has ended, however often the caller is cancelled meanwhile."""
    if isinstance(task, TrioTask):
        await task.has_ended(float("inf"), shielded=True)
        return
    import asyncio

    while not task.done():  # type: ignore[attr-defined]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})  # type: ignore[type-var]


class TrioTask:
    """A coroutine in a system task of trio's, which ends with its run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        trio = _running_trio()
        self._outcome: Future[Any] = Future()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._is_awaited = False
        trio.lowlevel.spawn_system_task(self._run, coroutine, context=contextvars.copy_context())
        self.result = self._outcome.result

    async def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            with self._scope:
                self._outcome.set_result(await coroutine)
        except Exception as error:
            reraise_signal(error)
            self._outcome.set_exception(error)
            if not self._is_awaited:
                logging.getLogger(__package__).exception("a task in the background failed")
        finally:
            if not self._outcome.done():
                self._outcome.cancel()
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the coroutine."""
        self._scope.cancel()

    def add_done_callback(self, call: Callable[[Any], object], /) -> None:
        """Call a function with the outcome once there is one."""
        self._outcome.add_done_callback(call)

    async def has_ended(self, seconds: float, shielded: bool = False) -> bool:
        """Wait for some seconds, and return whether this has ended."""
        trio = _running_trio()
        self._is_awaited = True
        with trio.move_on_after(seconds, shield=shielded):
            await self._ended.wait()
        return bool(self._ended.is_set())
