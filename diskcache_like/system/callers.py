"""Callers: warnings are about the line of the program that called the package, not about one within it."""

from __future__ import annotations

import math
import sys
import time
import warnings

PAUSE = 60.0  # seconds in which one line of a kind is logged
_PACKAGE = __name__.partition(".")[0]
_BETWEEN = ("contextlib", "functools")  # of Python's own, through which the package calls itself
_logged: dict[type[Warning], float] = {}  # when a line of each kind was logged


def warn(message: str, category: type[Warning]) -> None:
    """Warn about the line that called the package, however deep within it this is called; log it once a minute."""
    _log(message, category)
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and _is_within(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


def _log(message: str, category: type[Warning]) -> None:
    """Log a message, unless one of the same kind was logged within a minute."""
    now = time.monotonic()
    if now - _logged.get(category, -math.inf) < PAUSE:
        return
    _logged[category] = now
    import logging  # late: most programs never get here

    package = logging.getLogger(_PACKAGE)
    if not package.handlers:
        package.addHandler(logging.NullHandler())  # or Python prints what the program does not want logged
    package.getChild(category.__name__).warning("%s", message)


def _is_within(module: str) -> bool:
    return module in _BETWEEN or module.partition(".")[0] == _PACKAGE
