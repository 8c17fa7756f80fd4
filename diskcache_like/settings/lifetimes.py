"""Lifetimes: what a caller means who says how long something lives, and what a cache says of all its entries."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from ..errors import ExpiryError

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)

Expiry = float | timedelta | datetime | str  # from now: seconds, a timedelta, text such as "2h5m"; or a moment


class Lifetimes(NamedTuple):
    """The seconds that the entries of a cache live, None for ever."""

    default: float | None  # where no expiry is given
    longest: float | None  # at most, from when the value was stored


def moment_of(expire: datetime) -> float:
    """Return the seconds since 1970 of an expiry; raise ExpiryError for one that no time zone makes a moment."""
    if expire.utcoffset() is None:
        raise ExpiryError(
            f"expire is {expire!r}, expected seconds from now, or a datetime with a time zone: local time gets one by"
            " .astimezone(), and the present has one in datetime.now(timezone.utc)"
        )
    return max(expire.timestamp(), 0.0)


def seconds_of(expire: Any) -> float:
    """Return the seconds of a lifetime, infinity for None; text is numbers with a unit (ms, s, m, h, d, w).

    Raises ExpiryError for what is none.
    """
    if expire is None:
        return math.inf
    if isinstance(expire, str):
        parts = _PART.findall(expire)
        if parts and "".join(number + unit for number, unit in parts) == expire.replace(" ", ""):
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    given = expire.total_seconds() if isinstance(expire, timedelta) else expire
    try:
        seconds = math.nan if isinstance(given, str | bytes | bytearray) else float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise ExpiryError(
            f"expire is {expire!r}, expected seconds from now, a timedelta, text such as '90s', '2h5m' or '1d', a"
            " datetime with a time zone, or None"
        )
    return seconds
