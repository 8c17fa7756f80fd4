"""Threads for calls that would block an event loop, and transactions that each have a thread of their own."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from .blocking import Hop, WouldBlock, block, call_in_thread, loops
from .signals import suppress
from .tasks import current_task

CALLS_ON_LOOPS = True  # for `may_block`

T = TypeVar("T")

MAX_THREADS = 4
NAME = "diskcache_like"


class Threads:
    """Call functions without blocking the event loop: on it where that does not block, else in a thread.

    Calls that may wait for a write lock, those that only read, and functions of the user have threads of their own, so
    that none queues behind others that wait. The threads are made when they are first needed, also after `close` and in
    a forked child.
    """

    def __init__(self) -> None:
        self.max_threads = MAX_THREADS
        self.executor: Executor | None = None  # the user's, instead
        self.transactions: dict[object, OwnThread] = {}  # those under way, by task
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._process = os.getpid()
        if not loops:
            loops.append(None)

    def transaction(self) -> OwnThread | None:
        """Return the thread of the running task's transaction, if it has one."""
        return self.transactions.get(current_task()) if self.transactions else None

    async def attempt(
        self,
        function: Callable[[], T],
        waits: bool = True,
        elsewhere: Callable[[Callable[[], T]], Awaitable[T]] | None = None,
    ) -> T:
        """Call a function here if that does not block, else in a thread; it `waits` for the write lock, or only reads.

        Only what calls `may_block` in time, as the operations of a cache do, may be called so. `elsewhere` calls it
        in a thread of the caller's.
        """
        if not self.transactions or self.transaction() is None:
            try:
                return function()
            except WouldBlock:
                pass
        return await (self.call(function, waits) if elsewhere is None else elsewhere(function))

    async def call(self, function: Callable[[], T], waits: bool = True) -> T:
        """Call a function in a thread, that of the task's transaction if it has one.

        If the task is cancelled, a call that waits for a lock ends, and any other one is awaited before CancelledError
        is raised, so that the caller is told when what it began has happened.
        """
        return await _hop(self._submitter("writer" if waits else "reader"), function)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function of the user's in a thread; one that has begun goes on to its end, and is awaited.

        In a transaction of the task it is called in the thread of that, so that what it writes is part of it.
        """
        return await _hop(self._submitter("function"), function, may_be_abandoned=False)

    def _submitter(self, kind: str) -> Callable[..., Future[Any]]:
        own = self.transaction()
        return partial(self._submit, kind) if own is None else own.executor.submit

    def _submit(self, kind: str, *call: Any) -> Future[Any]:
        try:
            return self._pool(kind).submit(*call)
        except RuntimeError:  # another thread has closed the cache just now, and this call opens it again
            return self._pool(kind).submit(*call)

    def _pool(self, kind: str) -> Executor:
        if self.executor is not None:
            return self.executor
        if self._process != os.getpid():
            self._pools, self._process = {}, os.getpid()  # the threads are the parent's
            self.transactions.clear()
        pool = self._pools.get(kind)
        if pool is None:
            made = ThreadPoolExecutor(self.max_threads, f"{NAME} {kind}")
            pool = self._pools.setdefault(kind, made)  # one step: another thread's loop may be first
        return pool

    def close(self) -> None:
        """End the threads that nobody uses, and let the others end with what they do."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False)


class OwnThread:
    """A transaction of one task, in a thread of its own, where its calls run; a nested one shares the outer one's."""

    def __init__(self, threads: Threads, begin: Callable[[], AbstractContextManager[Any]]) -> None:
        self._threads = threads
        self._begin = begin
        self._context: AbstractContextManager[Any] | None = None  # once it is entered
        self._task: object | None = None  # whose it is, if it is not nested
        self.executor: Executor

    def _enter(self) -> None:
        context = self._begin()
        context.__enter__()
        self._context = context

    async def __aenter__(self) -> None:
        outer = self._threads.transaction()
        if outer is None:
            self._task, self.executor = current_task(), ThreadPoolExecutor(1, f"{NAME} transaction")
        else:
            self.executor = outer.executor
        try:
            await _hop(self.executor.submit, self._enter)
        except BaseException as error:
            if self._context is not None:  # cancelled just as it was entered
                await self._exit(type(error), error, None)
            self._end()
            raise
        if self._task is not None:
            self._threads.transactions[self._task] = self

    async def __aexit__(self, *error: object) -> bool | None:
        try:
            return await self._exit(*error)
        finally:
            self._end()

    async def _exit(self, *error: Any) -> bool | None:
        assert self._context is not None
        return await _hop(self.executor.submit, partial(self._context.__exit__, *error), may_be_abandoned=False)

    def _end(self) -> None:
        if self._task is not None:
            self._threads.transactions.pop(self._task, None)
            self.executor.shutdown(wait=False)


async def in_new_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, to its end."""
    executor = ThreadPoolExecutor(1, NAME)
    try:
        return await _hop(executor.submit, function, may_be_abandoned=False)
    finally:
        executor.shutdown(wait=False)


async def _hop(submit: Callable[..., Future[T]], function: Callable[[], T], may_be_abandoned: bool = True) -> T:
    """Call a function in another thread; if the task is cancelled, wait all the same until the call has ended."""
    hop = Hop() if may_be_abandoned else None
    call = partial(block, function) if hop is None else partial(call_in_thread, hop, function)
    future = submit(contextvars.copy_context().run, call)
    try:
        await _done(future)
    except BaseException as error:  # the task is cancelled
        if hop is not None:
            hop.cancelled = True
            future.cancel()  # if it has not begun
        if not isinstance(error, GeneratorExit):  # a coroutine that is dropped, as its loop was, cannot wait
            await _done(future, shielded=True)
        raise
    return future.result()


async def _done(future: Future[Any], shielded: bool = False) -> None:
    """Return when a call has ended; `shielded`: however often the task is cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, since its task was told of the end before
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    while not future.done():
        try:
            await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if not shielded:
                raise
