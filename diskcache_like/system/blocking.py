"""Keep an event loop from blocking: what is about to wait, or to take long, says so first.

The asynchronous face of a cache calls an operation on the event loop itself, since most take less time than a thread
needs to wake. `may_block` stands wherever one may wait for a lock, open files or do much work, and nothing has changed
yet. There it ends a call that the face makes on a loop, and the face makes it again in a thread. Nobody else notices:
without a face it is one test, and the call stack tells a face's call from a program's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_PACKAGE = __name__.split(".", 1)[0]


class WouldBlock(BaseException):
    """A call on an event loop would block it. No Exception, so that nothing takes it for an error of the cache."""


class Abandoned(BaseException):
    """A call in a thread was about to wait, and its caller has been cancelled."""


class Hop:
    """A call that a face makes in a thread; others may set `cancelled`, a word that only ever becomes true."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False


loops: list[object] = []  # not empty once a cache is used by an event loop of this process
_hops: dict[int, Hop] = {}  # those under way, by thread; each thread changes its own item alone


def may_block() -> None:
    """End a call that must not block: raise WouldBlock on an event loop, Abandoned in a thread if it was cancelled.

    To be called where nothing has been changed, or where an exception undoes it.
    """
    if not loops:
        return
    hop = _hops.get(get_ident())
    if hop is None:
        if _is_on_a_loop():
            raise WouldBlock
    elif hop.cancelled:
        raise Abandoned


def _is_on_a_loop() -> bool:
    """Tell whether a face made this call, which runs in no thread of a face's: no foreign function lies between."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == _PACKAGE:
            if frame.f_code is block.__code__:
                return False
            if frame.f_globals.get("CALLS_ON_LOOPS"):
                return True
        elif not module.startswith("contextlib"):
            return False
        frame = frame.f_back
    return False


def block(function: Callable[[], T]) -> T:
    """Call a function that may block whoever calls it."""
    return function()


def call_in_thread(hop: Hop, function: Callable[[], T]) -> T:
    """Call a function in this thread, as the call of a hop."""
    _hops[get_ident()] = hop
    try:
        return function()
    finally:
        _hops.pop(get_ident(), None)
