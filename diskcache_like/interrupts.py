"""Tell what a signal handler has raised from an error of the call that it interrupted.

Handlers run between two instructions of whatever is being done, and what one raises, as an alarm that limits the time
does, looks like an error of what was being done. Only such an error may be replaced by one of the package, or ignored.
"""

from __future__ import annotations

import contextlib
from types import TracebackType


def is_interruption(error: BaseException) -> bool:
    """Tell whether an error was raised by a signal handler: a function that was given the frame it came from."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        interrupted, entry = entry.tb_frame, entry.tb_next
        for value in entry.tb_frame.f_locals.values():
            if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
                return True
    return False


def let_through(error: BaseException) -> None:
    """Raise what a signal handler raised, be it the error itself or what another library took for its cause."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and not any(cause is before for before in seen):
        if is_interruption(cause):
            raise cause
        seen.append(cause)
        cause = cause.__cause__


class suppress(contextlib.suppress):  # noqa: N801 - like the one of the standard library
    """Ignore errors of these kinds, unless a signal handler raised them."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Tell whether to ignore what ended the body."""
        return bool(super().__exit__(kind, error, traceback)) and error is not None and not is_interruption(error)
