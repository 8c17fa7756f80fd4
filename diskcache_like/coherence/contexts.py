"""The one rule about signal handlers that raise, and context managers that keep it.

CPython runs handlers after a call into C, at the beginning of a Python function and at a jump back in a loop, and
nowhere else. So a handler cannot keep a `finally` from the first thing that it calls, if that is written in C:

- Whoever takes a write lock calls `end` in a `finally`: it rolls back what is open and releases the lock, if
  the calling thread holds it. Before the `try` it checks that this thread does not hold it already.
- A with-block ends in C, which resumes the generator of its context (`context`).
- What a step leaves half done is what a killed process leaves half done: `Header.SETTLED` stays behind, and the next
  holder of the lock mends it.
- A handler that writes while its own thread holds the lock gets TransactionError at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, Generic, ParamSpec, Self, TypeVar

from . import _native

P = ParamSpec("P")
T = TypeVar("T")

end = _native.end


class Context(_native.Context, ContextDecorator, Generic[T]):
    """A generator as a context manager, like contextlib's, whose end no signal handler can prevent."""

    generator: Generator[T, None, None]

    def __init__(
        self, function: Callable[..., Generator[T, None, None]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._call = function, args, kwargs
        self.generator = function(*args, **kwargs)

    def _recreate_cm(self) -> Self:  # what ContextDecorator uses for each call
        return type(self)(*self._call)

    def __enter__(self) -> T:
        # In Python: CPython 3.14 runs handlers after a call into C that begins a with-block, before it would be ended.
        try:
            return next(self.generator)
        except BaseException:
            self.generator.close()
            raise


def context(function: Callable[P, Generator[T, None, None]]) -> Callable[P, AbstractContextManager[T]]:
    """Make a context manager of a generator that yields once."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return Context(function, args, kwargs)

    return made
