"""Memoize without stampedes: `memoize` with a new result before the old one expires, as DiskCache names it.

Many callers want the same result at once when it is missing and when it expires. That one of them computes it while the
others wait is what `memoize` does. Early recomputation solves the second: a caller decides by chance whether to have
the result recomputed ahead of time, more likely the nearer the expiry and the longer the computation (A. Vattani, F.
Chierichetti, K. Lowenstein: "Optimal Probabilistic Cache Stampede Prevention", VLDB 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, Unpack

from ..cache import Cache, without_face
from ..memoizing.memoize import Memoized
from ..memoizing.rules import Lifetime
from ..settings.misuse import NoOthers, unexpected

P = ParamSpec("P")
R = TypeVar("R")


def memoize_stampede(
    cache: Cache,
    expire: Lifetime | None,
    name: str | None = None,
    typed: bool = False,
    tag: Any = None,
    beta: float = 1,
    ignore: Iterable[int | str] = (),
    *,
    version: Any = None,
    **others: Unpack[NoOthers],
) -> Callable[[Callable[P, R]], Memoized[P, R]]:
    """Return a decorator like `Cache.memoize` under which a result is computed anew before it expires.

    That is done in the background: `beta` above 1 does so earlier, below 1 later, 0 never; an error there goes to
    `threading.excepthook` or the event loop's handler. Nobody waits for a computation that takes longer than both
    `expire` and a minute. Other arguments as for `Cache.memoize`.
    """
    if others:
        raise unexpected(memoize_stampede, others)
    without_face(cache)  # raises for what is no cache; the face's own memoize takes coroutine functions
    return cache.memoize(name, typed, expire, tag, ignore, version=version, beta=beta)
