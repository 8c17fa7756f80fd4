"""A transaction over several shards that does all that one can, and what the cache holds before and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from diskcache_like import Cache

from .sample_writes import LARGE

State = tuple[dict[Any, Any], list[Any]]
MANY = range(6)
OTHER = LARGE[::-1]
"""A value that has a file as well."""
BEFORE: dict[Any, Any] = {
    **{("number", number): number for number in MANY},
    **{("gone", number): LARGE if number % 2 else number for number in MANY},
    **{("to a file", number): number for number in MANY},
    **{("from a file", number): LARGE for number in MANY},
    **{("tagged", number): number for number in MANY},
    ("untouched",): LARGE,
}
AFTER: dict[Any, Any] = {
    **{("number", number): number + 1 for number in MANY},
    **{("to a file", number): LARGE for number in MANY},
    **{("from a file", number): number for number in MANY},
    **{("new", number): OTHER if number % 2 else number for number in MANY},
    ("untouched",): LARGE,
}
QUEUED, REQUEUED = ["first", "second"], ["second", "third"]


def prepare(cache: Cache) -> None:
    """Have the cache hold what is there before."""
    cache.clear()
    while cache.pull() != (None, None):
        pass
    for key, value in BEFORE.items():
        cache.set(key, value, tag="t" if key[0] == "tagged" else None)
    for value in QUEUED:
        cache.push(value)
    assert found(cache) == (BEFORE, QUEUED)


def change(cache: Cache) -> None:
    """Make everything other than it was, in one transaction."""
    with cache.transact(retry=True):
        for number in MANY:
            cache.incr(("number", number))
            cache.set(("to a file", number), OTHER)
            cache.set(("to a file", number), LARGE)
            cache.set(("from a file", number), number)
            cache.set(("new", number), OTHER if number % 2 else number, expire=1e6)
        assert cache.delete_many([("gone", number) for number in MANY]) == len(MANY)
        assert cache.evict("t") == len(MANY)
        with contextlib.suppress(ZeroDivisionError), cache.transact(retry=True):
            cache.set(("undone",), LARGE)
            cache.delete(("untouched",))
            raise ZeroDivisionError
        assert cache.pull()[1] == "first"
        cache.push("third")


def found(cache: Cache) -> State:
    """Return what a cache holds."""
    return {key: cache[key] for key in cache if isinstance(key, tuple)}, [value for _, value in cache.iterqueue()]


def is_whole(state: State) -> bool:
    """Tell whether all of the transaction is there, or nothing of it."""
    return state in ((BEFORE, QUEUED), (AFTER, REQUEUED))


COMPLETE: dict[str, Callable[[Cache], object]] = {
    "a write to the first shard": lambda cache: _write_to(cache, 0),
    "a write to the last shard": lambda cache: _write_to(cache, -1),
    "a transaction": lambda cache: _empty_transaction(cache),
    "a count": len,
    "a check": lambda cache: cache.check(fix=True),
    "a removal of all that is expired": lambda cache: cache.expire(0),
}
"""What completes a transaction that was cut off, on a handle that was open before."""


def _write_to(cache: Cache, shard: int) -> None:
    wanted = cache._shards.stores[shard]
    key = next(key for key in map(str, range(100)) if cache._rows.locate(key)[2] is wanted)
    cache.set(key, 1)
    cache.delete(key)


def _empty_transaction(cache: Cache) -> None:
    with cache.transact(retry=True):
        pass
