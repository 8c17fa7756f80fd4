"""Tell what a signal handler raised from an error of the call that it interrupted.

A handler runs between two instructions of any code. If it raises, as an alarm does that limits the time, its exception
looks like an error of that code. The package may replace or ignore errors of its own calls, but never a handler's.
"""

from __future__ import annotations

import contextlib
from types import TracebackType


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
    """Raise the error again if a signal handler raised it, or raise the cause of the error that a handler raised."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and not any(cause is before for before in seen):
        if is_from_signal_handler(cause):
            raise cause
        seen.append(cause)
        cause = cause.__cause__


class suppress(contextlib.suppress):  # noqa: N801 - named like the standard library's
    """Ignore errors of the given types, unless a signal handler raised them."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Tell whether to ignore what ended the body."""
        return (
            bool(super().__exit__(kind, error, traceback)) and error is not None and not is_from_signal_handler(error)
        )
