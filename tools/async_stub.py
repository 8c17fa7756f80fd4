"""Write `diskcache_like/aio.pyi`, the types of the asynchronous classes, from the signatures of the others.

`python -m tools.async_stub` writes it; a test compares. The methods have the overloads of those that they await.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from diskcache_like import aio
from diskcache_like.cache import Cache
from diskcache_like.fanout import FanoutCache
from diskcache_like.operations.faces import BULK, BULK_READS, ITERATORS, OPERATORS, READS, WRITES
from diskcache_like.persistent import Deque, Index

STUB = Path(aio.__file__).with_suffix(".pyi")

HEAD = """\
# The types of `aio`: written by `python -m tools.async_stub`, from those of the classes behind.

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from .cache import Cache
from .disk.contract import Disk
from .entries.dictionaries import Training
from .entries.options import Arguments
from .entries.row_codec import Expiry
from .fanout import FanoutCache
from .misuse import NoOthers
from .operations.computed import Options
from .operations.memoize import Memoized
from .operations.queues import Side
from .operations.rules import Lifetime
from .operations.tagging import Match, TagUsage
from .persistent import Deque, Index

_P = ParamSpec("_P")
_R = TypeVar("_R")

class AsyncStream:
    async def read(self, size: int = ...) -> bytes: ...
    async def write(self, data: bytes) -> int: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
"""

FACE = """
    @property
    def sync(self) -> {kind}: ...
    @property
    def directory(self) -> str: ...
    def transact(self{retry}) -> AbstractAsyncContextManager[None]: ...
    def __aiter__(self) -> AsyncIterator[Any]: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
"""

MADE = """
    def __init__(
        self,
        directory: str | os.PathLike[str] | None = ...,
        {shards}timeout: float = ...,
        disk: type[Disk] = ...,
        *,
        max_threads: int = ...,
        executor: Executor | None = ...,
        **settings: Unpack[Arguments],
    ) -> None: ...
    @classmethod
    def of(cls, cache: {kind}) -> Self: ...
    def namespace(self, name: str) -> Self: ...
    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., Coroutine[Any, Any, _R]],
        expire: Lifetime | Callable[[_R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[_R], Iterable[Any]] | None = ...,
        **options: Unpack[Options],
    ) -> Coroutine[Any, Any, _R]: ...
    @overload
    def get_or_set(
        self,
        key: Any,
        compute: Callable[..., _R],
        expire: Lifetime | Callable[[_R], Any] | None = ...,
        *,
        tag: Any = ...,
        tags: Iterable[Any] | Callable[[_R], Iterable[Any]] | None = ...,
        **options: Unpack[Options],
    ) -> Coroutine[Any, Any, _R]: ...
    def memoize(
        self,
        name: str | None = ...,
        typed: bool = ...,
        expire: Lifetime | Callable[[Any], Any] | None = ...,
        tag: Any = ...,
        ignore: Iterable[int | str] = ...,
        *,
        key: Callable[..., Any] | str | None = ...,
        version: Any = ...,
        tags: Iterable[Any] | Callable[[Any], Iterable[Any]] | None = ...,
        **options: Unpack[Options],
    ) -> _Memoize: ...
    def open(
        self,
        key: Any,
        mode: Literal["r", "rb", "w", "wb"] = ...,
        expire: Expiry | None = ...,
        tag: Any = ...,
        retry: bool = ...,
        *,
        tags: Iterable[Any] | None = ...,
    ) -> AbstractAsyncContextManager[AsyncStream]: ...
"""

MEMOIZE = """
class _Memoize:
    @overload
    def __call__(self, function: Callable[_P, Coroutine[Any, Any, _R]]) -> Memoized[_P, Coroutine[Any, Any, _R]]: ...
    @overload
    def __call__(self, function: Callable[_P, _R]) -> Memoized[_P, Coroutine[Any, Any, _R]]: ...
"""

CHILDREN = """
    async def cache(
        self, name: str, timeout: float = ..., disk: type[Disk] | None = ..., **settings: Unpack[Arguments]
    ) -> AsyncCache: ...
    async def deque(self, name: str, maxlen: float | None = ...) -> AsyncDeque: ...
    async def index(self, name: str) -> AsyncIndex: ...
"""

DEQUE = """
    def __init__(self, sync: Deque) -> None: ...
    async def contains(self, value: Any) -> bool: ...
    async def count(self, value: Any) -> int: ...
"""

INDEX = """
    def __init__(self, sync: Index) -> None: ...
"""


def _functions(kind: type, name: str) -> list[ast.FunctionDef]:
    """Return the overloads of a method, or the method itself, where it has none."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    if not owner.__module__.startswith("diskcache_like"):
        raise LookupError(name)
    body = next(
        node.body
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[owner.__module__])))
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[:-1] or found


def _signature(function: ast.FunctionDef) -> None:
    """Leave of a function what a stub has."""
    arguments = function.args
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [None if each is None else ast.Constant(...) for each in arguments.kw_defaults]
    function.body = [ast.Expr(ast.Constant(...))]


def _methods(kind: type) -> Iterator[str]:
    """Yield the methods that the tables give a face."""
    plain = {name: name for table in (READS, WRITES, BULK, BULK_READS, ITERATORS) for name in table}
    for name, method in {**plain, **{name: method for name, (method, _) in OPERATORS.items()}}.items():
        if not hasattr(kind, method):
            continue
        try:
            functions = _functions(kind, method)
        except LookupError:
            continue  # of collections.abc, whose types are the standard library's
        for function in functions[-1:] if name in ITERATORS else functions:
            _signature(function)
            function.name = name
            if name in ITERATORS:
                function.decorator_list = []
                item = "tuple[Any, Any]" if name in ("items", "iterqueue") else "Any"
                function.returns = ast.Name(f"AsyncIterator[{item}]")
                yield ast.unparse(function)
            else:
                yield re.sub(r"^def ", "async def ", ast.unparse(function), flags=re.MULTILINE)


def _class(name: str, base: str, kind: type, *, extra: str) -> str:
    shown = f"class {name}({base}):" if base else f"class {name}:"
    retry = ", retry: bool = ..." if issubclass(kind, Cache) else ""
    parts = [shown, FACE.format(kind=kind.__name__, retry=retry).strip("\n"), extra.strip("\n")]
    if not base:
        for method in _methods(kind):
            parts += ["    " + line for line in method.splitlines()]
    return "\n".join(part for part in parts if part)


def stub() -> str:
    """Return the text of the stub."""
    return (
        "\n\n".join(
            (
                HEAD.rstrip(),
                MEMOIZE.strip(),
                _class("AsyncCache", "", Cache, extra=MADE.format(shards="", kind="Cache")),
                _class("AsyncFanoutCache", "AsyncCache", FanoutCache, extra=_constructor() + CHILDREN),
                _class("AsyncDeque", "", Deque, extra=DEQUE),
                _class("AsyncIndex", "", Index, extra=INDEX),
            )
        )
        + "\n"
    )


def _constructor() -> str:
    made = MADE.format(shards="shards: int = ...,\n        ", kind="FanoutCache")
    return made[: made.index("    @classmethod")]


def main() -> None:
    """Write the stub."""
    STUB.write_text(stub())


if __name__ == "__main__":
    main()
