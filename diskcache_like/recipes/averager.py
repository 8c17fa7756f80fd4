"""A running average that all processes share."""

from __future__ import annotations

from typing import Any, Unpack

from ..cache import Cache, atomic_key, without_face
from ..encoding.record import Metadata
from ..entries.atomic_key import REMOVE, Decision
from ..entries.loading import ENOVAL
from ..errors import foreign
from ..settings.lifetimes import Expiry
from ..settings.misuse import NoOthers, unexpected, wrong

_NO_SUM = (str, bytes, list, tuple, dict, set, type(None))  # what values cannot add up to; they may be arrays


class Averager:
    """Keep a running average under one key of a cache.

    `expire`: seconds from the last `add` until the average begins anew, None for never. Writes wait for the lock
    without limit.
    """

    def __init__(
        self, cache: Cache, key: Any, expire: Expiry | None = None, tag: Any = None, **others: Unpack[NoOthers]
    ) -> None:
        if others:
            raise unexpected(Averager, others)
        self._cache = without_face(cache)
        self._key = key
        self._expire = expire
        self._tag = tag

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key!r})"

    def add(self, value: float) -> None:
        """Add `value` to the average. Atomic."""
        atomic = atomic_key(self._cache, self._key)

        def decide(found: Any, _: Metadata) -> Decision:
            total, count = self._sum(found)
            try:
                total = total + value
            except TypeError:
                raise wrong("value", value, "a number, or what can be added to those before") from None
            return (total, count + 1), atomic.metadata(self._expire, self._tag)

        atomic.update(decide, None)

    def get(self) -> float | None:
        """Return the average, or None if nothing was counted."""
        return self._average(self._cache.get(self._key, default=ENOVAL, retry=True))

    def pop(self) -> float | None:
        """Return the average and start again. Atomic."""
        average: float | None = None

        def decide(found: Any, _: Metadata) -> Decision:
            nonlocal average
            average = self._average(found)
            return None if found is ENOVAL else REMOVE

        atomic_key(self._cache, self._key).update(decide, None)
        return average

    def _average(self, found: Any) -> float | None:
        total, count = self._sum(found)
        try:
            return total / count if count else None
        except (TypeError, ArithmeticError):
            raise foreign("running average", self._key, found) from None

    def _sum(self, found: Any) -> tuple[Any, int]:
        """Return the sum that an entry keeps, and how many values it is of."""
        if found is ENOVAL:
            return 0.0, 0
        match found:
            case [total, int() as count] if count >= 0 and not isinstance(total, _NO_SUM):
                return total, count
        raise foreign("running average", self._key, found)
