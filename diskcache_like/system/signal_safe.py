"""Contexts that end what they began wherever a signal handler raises.

CPython runs a handler after every call into C and at the beginning of every function, also of the very function that
was to release a lock. Hence two nets. An exception passes a second `except` outside the `finally`
(`Transactions.abort_interrupted`); and where there is no outside, as at the end of a with-block, the next call of the
thread finds that it holds the lock although no call is under way (`Transactions.acquire`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator
from types import FrameType, TracebackType
from typing import Generic, ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = __name__.split(".", 1)[0]
# Modules of the standard library whose frames may stand between two of one call: `heapq.merge` resumes our generators.
_BETWEEN = ("contextlib", "heapq")


class _SignalSafe(ContextDecorator, Generic[T]):
    """A generator as a context manager, like contextlib's, that is also closed if a handler raises before the body.

    Its `__exit__` calls nothing before it resumes the generator, which is within its own `try`.
    """

    def __init__(self, make: Callable[[], Generator[T, None, None]]) -> None:
        self._make = make
        self._generator = make()

    def _recreate_cm(self) -> Self:  # what ContextDecorator uses for each call
        return type(self)(self._make)

    def __enter__(self) -> T:
        try:
            return next(self._generator)
        except BaseException:
            self._generator.close()
            raise

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            next(self._generator, None)
            return
        try:
            self._generator.throw(error)
        except BaseException as raised:
            if raised is not error and not (isinstance(error, StopIteration) and raised.__cause__ is error):
                raise
            error.__traceback__ = trace


def signal_safe(function: Callable[P, Generator[T, None, None]]) -> Callable[P, AbstractContextManager[T]]:
    """Make a context manager of a generator that yields once and raises every error of the body, perhaps mapped."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _SignalSafe(functools.partial(function, *args, **kwargs))

    return made


def interrupts_a_call() -> bool:
    """Tell whether this call may come from a signal handler that interrupts another call of the package.

    Any other call counts: one about all shards holds locks of stores that none of its frames names. Only modules that
    run the caller's functions do not count, since such a function may be a whole program: `RUNS_CALLERS_CODE` says so.
    """
    frame: FrameType | None = sys._getframe(1)
    outside = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == _PACKAGE:
            if outside and not frame.f_globals.get("RUNS_CALLERS_CODE"):
                return True
        elif module not in _BETWEEN:
            outside = True
        frame = frame.f_back
    return False
