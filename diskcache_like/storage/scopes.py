"""With-blocks and calls that signal handlers may end anywhere: what they began has to be ended all the same.

CPython runs a handler after every call of something written in C and at the beginning of every function, so also at the
beginning of the very function that was to give a lock back. Hence two nets. What raises goes through a second
`except` outside the `finally` (`Holder.let_go`); and where there is no outside, as at the end of a with-block, the next
call of the thread finds the lock its own although no call is under way (`left_over`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ContextDecorator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from .holding import Holder

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = __name__.split(".", 1)[0]
_RUNS_OTHERS = frozenset(
    f"{_PACKAGE}.{name}" for name in ("memoize", "stampede", "recipes", "locks", "compat", "cli", "demo", "__main__")
)


class _Scope(ContextDecorator, Generic[T]):
    """A generator as a context manager, like contextlib's; it is ended if something is raised on the way to the body.

    Its `__exit__` calls nothing before the generator, which goes on within its own `try`.
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


def scope(function: Callable[P, Generator[T, None, None]]) -> Callable[P, AbstractContextManager[T]]:
    """Make a context manager of a generator that yields once and lets every error of the body pass, or maps it."""

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return _Scope(functools.partial(function, *args, **kwargs))

    return made


def interrupts() -> bool:
    """Tell whether the present call may come from a signal handler that interrupts another call of the package.

    Any other counts, whatever it is about: one about all shards holds locks of stores that none of its frames names.
    Only what runs functions of the caller's does not, since these may be all of a program.
    """
    frame: FrameType | None = sys._getframe(1)
    outside = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == _PACKAGE:
            if outside and module not in _RUNS_OTHERS:
                return True
        elif not module.startswith("contextlib"):
            outside = True
        frame = frame.f_back
    return False


def left_over(store: Holder) -> bool:
    """Tell whether the write lock is the calling thread's although no call, fork or transaction of it is under way."""
    lock = store.lock
    return store.txn is None and lock.locked_by_me() and not lock.is_resting() and not interrupts()
