"""What the asynchronous classes are made of (`aio`): what they have in common, and how an operation becomes awaited.

An operation is called on the event loop where that does not block it (`system/blocking`), else in a thread. A face has
the handle, and so the memory, of what is behind it. Type checkers see the parameters, the overloads and the result of
the operation that is awaited.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from ..encoding.values import is_small
from ..settings.definitions import DEFAULT_SETTINGS
from ..settings.misuse import Spelled
from ..system.blocking import WouldBlock
from ..system.threads import OwnThread, Threads

CALLS_ON_LOOPS = True  # for `may_block`

PAGE = 100  # items that an iterator takes from a thread at once

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
Method = Callable[Concatenate[S, P], T]
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def _refused(what: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: Face[Any], *_: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no {what}, since that cannot be awaited: {instead}")

    return refuse


class _Elsewhere:
    """An attribute that the cache behind a face has, and the face has not."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, face: Any, owner: type) -> NoReturn:
        text = f"{owner.__name__} has no {self._name!r}; the cache behind it has: use .sync"
        raise AttributeError(text, name=self._name, obj=face)


class Face(Spelled, Generic[T]):
    """What all faces have; each is one of a `T`."""

    _ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "assign to .sync.{name}, or await reset()")

    def __init__(self, sync: T) -> None:
        self._adopt(sync)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, made in vars(cls).items():
            if hasattr(made, "__wrapped__"):  # an operator has another name here
                made.__name__, made.__qualname__ = name, f"{cls.__name__}.{name}"
        for name in dir(getattr(cls, "_KIND", None)):
            if not name.startswith("_") and not hasattr(cls, name):
                setattr(cls, name, _Elsewhere(name))

    @classmethod
    def of(cls, sync: T) -> Self:
        """Return the face of what is open."""
        face = cls.__new__(cls)
        face._adopt(sync)
        return face

    def _adopt(self, sync: Any) -> None:
        self._sync = sync
        handle = getattr(sync, "_cache", sync)._handle  # a deque and an index have a cache
        self._threads: Threads = handle.threads
        self._transactions = self._threads.transactions
        self._writes_slowly = handle.writes_slowly

    @property
    def sync(self) -> T:
        """Return what is behind this face, the synchronous one; both use one handle."""
        found: T = self._sync
        return found

    @property
    def directory(self) -> str:
        """Return the absolute path of the directory."""
        directory: str = self._sync.directory
        return directory

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._pages(lambda: iter(self._sync))

    async def _pages(self, begin: Callable[[], Iterable[Any]]) -> AsyncIterator[Any]:
        """Yield what an iterator yields, a page at a time from a thread."""
        call = self._threads.call
        items: Iterator[Any] = await call(lambda: iter(begin()), False)
        while page := await call(lambda: list(itertools.islice(items, PAGE)), False):
            for item in page:
                yield item

    if not TYPE_CHECKING:  # or type checkers would accept them
        __getitem__ = _refused("subscripts", "await getitem(...)")
        __setitem__ = _refused("subscripts", "await setitem(...)")
        __delitem__ = _refused("subscripts", "await delitem(...)")
        __contains__ = _refused("`in`", "await contains(...)")
        __len__ = _refused("len()", "await length()")
        __iter__ = _refused("plain iteration", "async for ... in")

    def __bool__(self) -> bool:
        return True

    async def aclose(self) -> None:
        """Close every file and end the threads; the next operation opens and makes them again."""
        await self._threads.call(getattr(self._sync, "_cache", self._sync).close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> Any:
        return type(self), (self._sync,)

    def __repr__(self) -> str:
        return f"{self._sync!r}.aio"


def called_as(method: Callable[..., Any], made: Callable[..., Any]) -> Any:
    """Return a function with the name, the documentation and the parameters of a method."""
    return functools.wraps(method)(made)


def reads(method: Method[S, P, T]) -> Awaited[P, T]:
    """Return a read of one entry: called on the loop, or in a thread if its value is in a file."""
    named = attrgetter(method.__name__)

    async def call(self: Face[Any], *args: Any, **kwargs: Any) -> Any:
        return await self._threads.attempt(partial(named(self._sync), *args, **kwargs), False)

    awaited: Awaited[P, T] = called_as(method, call)
    return awaited


def writes(method: Method[S, P, T]) -> Awaited[P, T]:
    """Return a write: called on the loop if its arguments are small, nobody else holds the lock and no upkeep is due.

    Else it is called in a thread. It is one transaction, which is rolled back then, or calls `may_block` before the
    first of several.
    """
    named = attrgetter(method.__name__)

    async def call(self: Face[Any], *args: Any, **kwargs: Any) -> Any:
        function, threads = named(self._sync), self._threads
        is_quick = is_small(args) and (not kwargs or is_small(kwargs)) and not self._writes_slowly()
        if is_quick and (not self._transactions or threads.transaction() is None):
            try:
                return function(*args, **kwargs)  # what `attempt` does, without a coroutine more
            except WouldBlock:
                pass
        return await threads.call(partial(function, *args, **kwargs))

    awaited: Awaited[P, T] = called_as(method, call)
    return awaited


def in_bulk(method: Method[S, P, T], waits: bool = True) -> Awaited[P, T]:
    """Return what is called in a thread: it is about many entries, or is several transactions and cannot begin anew."""
    named = attrgetter(method.__name__)

    async def call(self: Face[Any], *args: Any, **kwargs: Any) -> Any:
        return await self._threads.call(partial(named(self._sync), *args, **kwargs), waits)

    awaited: Awaited[P, T] = called_as(method, call)
    return awaited


def reads_in_bulk(method: Method[S, P, T]) -> Awaited[P, T]:
    """Return what is called in a thread of readers: it waits for the lock only to flush the write buffer."""
    return in_bulk(method, False)


def iterates(method: Method[S, P, Iterable[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return what yields, in pages from a thread, what a method yields."""
    named = attrgetter(method.__name__)

    def iterate(self: Face[Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return self._pages(partial(named(self._sync), *args, **kwargs))

    iterator: Callable[Concatenate[Any, P], AsyncIterator[T]] = called_as(method, iterate)
    return iterator


def transacts(
    method: Method[S, P, AbstractContextManager[Any]],
) -> Callable[Concatenate[Any, P], AbstractAsyncContextManager[None]]:
    """Return what makes the body one transaction of the running task."""

    def transact(self: Face[Any], *args: Any, **kwargs: Any) -> OwnThread:
        """Make the body one transaction of the running task, as `Cache.transact` does; it has a thread of its own.

        While it lasts, other tasks may read; those that write wait. Do not await in the body what another task writes.
        A cancelled body is rolled back.
        """
        return OwnThread(self._threads, partial(self._sync.transact, *args, **kwargs))

    return like(method)(transact)


def like(method: Method[S, P, Any]) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Return a decorator that says that a function has the parameters of a method."""

    def decorate(made: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        return functools.update_wrapper(made, method, assigned=("__annotations__",))

    return decorate
