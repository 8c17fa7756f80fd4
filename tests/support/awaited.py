"""A cache whose every operation is awaited on its face, for tests that know nothing of event loops."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, cast

from diskcache_like import Cache
from diskcache_like.operations.faces import Face


class OneTask:
    """A task that awaits what it is asked for, one after the other, in an event loop that runs only meanwhile."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._asked: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]]] = asyncio.Queue()
        self._task = self._runner.run(self._begin())

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            asked, answer = await self._asked.get()
            try:
                answer.set_result(await asked)
            except Exception as error:
                answer.set_exception(error)

    def run(self, asked: Awaitable[Any]) -> Any:
        """Have the task await something, and return what comes of it."""
        return self._runner.run(self._answer(asked))

    async def _answer(self, asked: Awaitable[Any]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((asked, answer))
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        return self._task.result() if self._task.done() else answer.result()

    def close(self) -> None:
        """End the task, and close the loop."""
        self._runner.close()


class Host:
    """The task, and its event loop, of a cache and its namespaces; `anew`: others each time, but not in a transaction."""

    def __init__(self, anew: bool) -> None:
        self._anew = anew
        self._task: OneTask | None = None
        self.transactions = 0  # that are open, each inside of the one before; they belong to the task

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Return what comes of an awaitable."""
        if self._task is None:
            self._task = OneTask()
        try:
            return self._task.run(awaitable)
        finally:
            if self._anew and not self.transactions:
                self.close()

    def close(self) -> None:
        """End the task, and close the loop; the next call makes others."""
        task, self._task = self._task, None
        if task is not None:
            task.close()


class Awaited:
    """A cache whose operations are awaited, each to its end; what is no operation is the cache's own."""

    def __init__(self, cache: Cache, host: Host) -> None:
        self._cache, self._host = cache, host

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cache.aio, name, None)
        if found is None or name.startswith("_"):
            return getattr(self._cache, name)
        return self._operation(found) if callable(found) else found

    def _operation(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            if inspect.iscoroutine(found):
                return self._host.wait(found)
            if isinstance(found, AsyncIterator):
                return iter(self._host.wait(_listed(found)))
            if isinstance(found, Face):
                return Awaited(found.sync, self._host)
            assert isinstance(found, AbstractAsyncContextManager), f"nobody awaits {found!r}"
            return Transaction(self._host, found)

        return call

    def __iter__(self) -> Iterator[Any]:
        return iter(self._host.wait(_listed(aiter(self._cache.aio))))

    def close(self) -> None:
        """Close the cache and the loop; the next operation opens both again."""
        self._host.wait(self._cache.aio.aclose())
        self._host.close()


def _operator(name: str) -> Callable[..., Any]:
    def call(self: Awaited, *args: Any) -> Any:
        return getattr(self, name)(*args)

    return call


for _name, _method in (
    ("getitem", "__getitem__"),
    ("contains", "__contains__"),
    ("setitem", "__setitem__"),
    ("delitem", "__delitem__"),
    ("length", "__len__"),
):
    setattr(Awaited, _method, _operator(_name))


async def _listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


class Transaction:
    """A transaction of a face, as a context manager."""

    def __init__(self, host: Host, transaction: AbstractAsyncContextManager[None]) -> None:
        self._host, self._transaction = host, transaction

    def __enter__(self) -> Self:
        self._host.transactions += 1
        try:
            self._host.wait(self._transaction.__aenter__())
        except BaseException:
            self._host.transactions -= 1
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._host.transactions -= 1
        return cast("bool | None", self._host.wait(self._transaction.__aexit__(kind, error, trace)))


def awaited(cache: Cache, anew: bool = False) -> Cache:
    """Return what has the operations of a cache, each awaited on its face by one task; `anew`: in a loop of its own."""
    return cast("Cache", Awaited(cache, Host(anew)))
