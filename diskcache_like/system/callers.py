"""Callers: warnings are about the line of the program that called the package, not about one within it."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]
_BETWEEN = ("contextlib", "functools")  # of Python's own, through which the package calls itself


def warn(message: str, category: type[Warning]) -> None:
    """Warn about the line that called the package, however deep within it this is called."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and _is_within(frame.f_globals.get("__name__", "")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


def _is_within(module: str) -> bool:
    return module in _BETWEEN or module.partition(".")[0] == _PACKAGE
