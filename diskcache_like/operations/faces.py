"""The asynchronous face: the operations of a cache, a deque or an index for coroutines, by the same names.

Nothing is spelled again. The tables say which methods there are and how each is called: on the event loop where that
does not block it (`system/blocking`), else in a thread. The face has the handle, and so the memory, of what is behind.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn, Self, TypeVar

from ..encoding.values import is_small
from ..misuse import Spelled
from ..settings import DEFAULT_SETTINGS
from ..system.threads import OwnThread, Threads

CALLS_ON_LOOPS = True  # for `may_block`

PAGE = 100  # items that an iterator takes from a thread at once

T = TypeVar("T")

# Called on the loop, since they read one entry. In a thread if its value is in a file.
READS = ("get", "read", "get_entry", "peekleft")
# Called on the loop if the arguments are small. In a thread if others hold the lock, or upkeep is due: each is one
# transaction, which is rolled back then, or calls `may_block` before the first of several.
WRITES = (
    *("set", "add", "incr", "decr", "touch", "retag", "pop", "delete", "push", "pull", "peek", "peekitem"),
    *("get_many", "set_many", "append", "appendleft", "popleft", "setdefault", "popitem"),
    *("extend", "extendleft"),
)
# Called in a thread: they are about many entries, or could not begin anew, since they are several transactions.
BULK = (
    *("delete_many", "update"),
    *("clear", "evict", "expire", "cull", "flush", "check", "stats", "reset", "rotate", "train", "copy_to"),
    *("create_tag_index", "drop_tag_index", "insert", "remove", "reverse"),
)
# The same, but they wait for the lock only to flush the write buffer.
BULK_READS = ("count", "index", "tags", "volume")
ITERATORS = ("keys", "values", "items", "iterkeys", "iterqueue")
# What a program writes as an operator has a name here: that of the function in the module `operator`.
OPERATORS = {
    "getitem": ("__getitem__", READS),
    "contains": ("__contains__", READS),
    "setitem": ("__setitem__", WRITES),
    "delitem": ("__delitem__", WRITES),
    "length": ("__len__", BULK_READS),
}


def _refused(what: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: Face, *_: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no {what}, since that cannot be awaited: {instead}")

    return refuse


class Face(Spelled):
    """What all faces have."""

    _ASSIGNED = dict.fromkeys(DEFAULT_SETTINGS, "assign to .sync.{name}, or await reset()")

    def __init__(self, sync: Any) -> None:
        self._adopt(sync)

    def _adopt(self, sync: Any) -> None:
        self._sync = sync
        session = getattr(sync, "_cache", sync)._session  # a deque and an index have a cache
        self._threads: Threads = session.threads
        self._transactions = self._threads.transactions
        self._writes_slowly = session.writes_slowly

    @property
    def sync(self) -> Any:
        """Return the synchronous cache behind this one; both use one handle."""
        return self._sync

    @property
    def directory(self) -> str:
        """Return the absolute path of the directory."""
        directory: str = self._sync.directory
        return directory

    def _read(self, function: Callable[[], T]) -> Awaitable[T]:
        return self._threads.attempt(function, False)

    def transact(self, *args: Any, **kwargs: Any) -> AbstractAsyncContextManager[None]:
        """Make the body one transaction of the running task, as `Cache.transact` does; it has a thread of its own.

        While it lasts, other tasks may read; those that write wait. Do not await in the body what another task writes.
        A cancelled body is rolled back.
        """
        return OwnThread(self._threads, partial(self._sync.transact, *args, **kwargs))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._pages(lambda: iter(self._sync))

    async def _pages(self, begin: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
        """Yield what an iterator yields, a page at a time from a thread."""
        call = self._threads.call
        items: Iterator[T] = await call(lambda: iter(begin()), False)
        while page := await call(lambda: list(itertools.islice(items, PAGE)), False):
            for item in page:
                yield item

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


def _reading(name: str) -> Callable[..., Any]:
    method = attrgetter(name)

    async def call(self: Face, *args: Any, **kwargs: Any) -> Any:
        return await self._read(partial(method(self._sync), *args, **kwargs))

    return call


def _writing(name: str) -> Callable[..., Any]:
    method = attrgetter(name)

    async def call(self: Face, *args: Any, **kwargs: Any) -> Any:
        function = partial(method(self._sync), *args, **kwargs)
        threads = self._threads
        if self._writes_slowly() or not (is_small(args) and is_small(kwargs)):
            return await threads.call(function)
        return await threads.attempt(function)

    return call


def _in_bulk(name: str, waits: bool = True) -> Callable[..., Any]:
    method = attrgetter(name)

    async def call(self: Face, *args: Any, **kwargs: Any) -> Any:
        return await self._threads.call(partial(method(self._sync), *args, **kwargs), waits)

    return call


def _iterating(name: str) -> Callable[..., Any]:
    method = attrgetter(name)

    def iterate(self: Face, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return self._pages(partial(method(self._sync), *args, **kwargs))

    return iterate


_MAKERS: dict[tuple[str, ...], Callable[[str], Callable[..., Any]]] = {
    READS: _reading,
    WRITES: _writing,
    BULK: _in_bulk,
    BULK_READS: partial(_in_bulk, waits=False),
    ITERATORS: _iterating,
}


def face_of(sync: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator that gives a face the methods of a class."""

    def decorate(face: type[T]) -> type[T]:
        named = {name: (name, kind) for kind in _MAKERS for name in kind} | OPERATORS
        for name, (method, kind) in named.items():
            original = getattr(sync, method, None)
            if original is None or name in vars(face):
                continue
            made = _MAKERS[kind](method)
            functools.update_wrapper(made, original)
            made.__name__, made.__qualname__ = name, f"{face.__name__}.{name}"
            setattr(face, name, made)
        return face

    return decorate
