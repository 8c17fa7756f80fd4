"""Tell what a signal handler raised, or the depth of the caller's stack, from an error of the call itself.

A handler runs between two instructions of any code. If it raises, as an alarm does that limits the time, its exception
looks like an error of that code. The package may replace or ignore errors of its own calls, but never a handler's. Nor
is a value damaged or too deep because the program that reads or writes it has recursed almost to Python's limit.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType, TracebackType
from typing import Final

ROOM: Final = 300  # frames that what the package encodes and decodes may need


def is_from_signal_handler(error: BaseException) -> bool:
    """Tell whether a signal handler raised it: a function that was passed the frame below it in the traceback."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        interrupted, entry = entry.tb_frame, entry.tb_next
        for value in entry.tb_frame.f_locals.values():
            if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
                return True
    return False


def reraise_signal(error: BaseException) -> None:
    """Raise the error again if a signal handler raised it, or the caller's stack has no room; or its cause likewise."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and not any(cause is before for before in seen):
        if is_from_signal_handler(cause) or (isinstance(cause, RecursionError) and not _has_room()):
            raise cause
        seen.append(cause)
        cause = cause.__cause__


def _has_room() -> bool:
    """Tell whether the caller's stack left room for the package."""
    frame: FrameType | None = sys._getframe()
    left = sys.getrecursionlimit()
    while frame is not None:
        frame, left = frame.f_back, left - 1
    return left > ROOM


class suppress(contextlib.suppress):  # noqa: N801 - named like the standard library's
    """Ignore errors of the given types, unless a signal handler raised them."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Tell whether to ignore what ended the body."""
        return (
            bool(super().__exit__(kind, error, traceback)) and error is not None and not is_from_signal_handler(error)
        )
