"""Why a look-up finds nothing, or why the call of a memoized function has no result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

Reason = Literal["present", "expired", "evicted", "damaged", "absent"]
_SAID = {
    "present": "there is a live entry",
    "evicted": "its entry was evicted, or not admitted, a short while ago",
    "damaged": "there is an entry that cannot be read here; see the warnings",
    "absent": "it was never stored, or was removed, or went long ago",
}


class Why(NamedTuple):
    """What `why` returns; as text it is a sentence."""

    reason: Reason
    moment: float | None = None  # when it expired, in seconds since 1970
    nearest: Any = None  # of a call: the key of the most similar one whose result is there
    differs: tuple[str, ...] = ()  # the parameters in which that one differs

    def __str__(self) -> str:
        said = _SAID.get(self.reason, "")
        if self.moment is not None:
            said = f"it expired at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.moment))}"
        if self.nearest is None:
            return said
        return f"{said}; the nearest call that is there differs in {' and '.join(self.differs)}: {self.nearest!r}"

    def beside(self, key: Any, others: Iterable[Any], names: Sequence[str]) -> Why:
        """Return this with the most similar of some other keys of calls; `names`: of the parameters in a key."""
        best = self
        for other in others:
            differs = _differing(key, other, names)
            if differs and (not best.differs or len(differs) < len(best.differs)):
                best = self._replace(nearest=other, differs=differs)
        return best


def _differing(key: Any, other: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return in which parameters two keys of calls differ; none if they are not made of parameters."""
    pair = [each[1] for each in (key, other) if isinstance(each, tuple) and len(each) > 1 and type(each[1]) is tuple]
    if len(pair) != 2 or [len(parts) for parts in pair] != [len(names)] * 2:
        return ()
    found = tuple(name for name, one, two in zip(names, *pair, strict=True) if one != two)
    return found or ("the types of the arguments",)
