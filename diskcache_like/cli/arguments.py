"""What arguments of commands may be; argparse names the argument where one of these raises ValueError."""

from __future__ import annotations

from typing import Any

LONGEST_INTERVAL = 86_400.0  # seconds


def positive(text: str) -> int:
    """Return the positive integer that `text` spells."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def interval(text: str) -> float:
    """Return the seconds that `text` spells, more than none and a day at most."""
    seconds = float(text)
    if not 0 < seconds <= LONGEST_INTERVAL:  # nor NaN
        raise ValueError(text)
    return seconds


def setting(text: str) -> tuple[Any]:
    """Return, as the only member of a tuple, the value of a setting that `text` spells: a number, None, or text."""
    if text == "null":
        return (None,)
    for kind in (int, float):
        try:
            return (kind(text),)
        except ValueError:
            continue
    return (text,)
