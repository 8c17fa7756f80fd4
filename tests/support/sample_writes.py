"""Every kind of write to one key, for one process to do while others look."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from diskcache_like import Cache
from diskcache_like.encoding import keys

MISSING = "missing"
FAR = 1e6  # seconds
QUEUED = keys.queue_key(None, 500_000_000_000_000)  # an item of a queue
LARGE = b"2" * 40_000  # goes to a value file


class Write(NamedTuple):
    """What turns `key` from `old` to `new`, with what makes it `old` first."""

    do: Callable[[Cache], object]
    new: object
    old: object = 1
    prepare: Callable[[Cache], object] = lambda cache: cache.set("k", 1)
    key: object = "k"


def _transact(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("k", 2)
        assert cache.get("k") == 2, "a transaction reads its own writes"
        cache.set("other", 2)


def _undo(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("k", LARGE)
        raise ZeroDivisionError


def _undo_in_a_transaction(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("k", 2)
        with contextlib.suppress(ZeroDivisionError):
            _undo(cache)
        assert cache.get("k") == 2


def _tagged(*tags: str) -> Callable[[Cache], object]:
    return lambda cache: cache.set("k", 1, tags=tags)


def _set_if_unchanged(cache: Cache) -> None:
    assert cache.set("k", 2, if_version=cache.get_entry("k").version)


def _shrink(cache: Cache) -> None:
    cache.reset("size_limit", 1)
    cache.cull()


def _prepare_to_shrink(cache: Cache) -> None:
    cache.reset("size_limit", 1 << 30)
    cache.set("k", 1)


WRITES: dict[str, Write] = {
    "set": Write(lambda cache: cache.set("k", 2), 2),
    "set to a file": Write(lambda cache: cache.set("k", LARGE), LARGE),
    "set from a file": Write(lambda cache: cache.set("k", 2), 2, LARGE, lambda cache: cache.set("k", LARGE)),
    "set with expiry": Write(lambda cache: cache.set("k", 2, expire=FAR), 2),
    "incr": Write(lambda cache: cache.incr("k"), 2),
    "incr of nothing": Write(lambda cache: cache.incr("k", default=1), 2, MISSING, len),
    "add": Write(lambda cache: cache.add("k", 2), 2, MISSING, len),
    "touch": Write(lambda cache: cache.touch("k", 0), MISSING),
    "delete": Write(lambda cache: cache.delete("k"), MISSING),
    "pop": Write(lambda cache: cache.pop("k"), MISSING),
    "evict": Write(lambda cache: cache.evict("t"), MISSING, 1, lambda cache: cache.set("k", 1, tag="t")),
    "set with tags": Write(lambda cache: cache.set("k", 2, tags=["t", "u"]), 2, 1, _tagged("s", "t")),
    "set if unchanged": Write(_set_if_unchanged, 2),
    "retag": Write(lambda cache: cache.retag("k", ["u"], ["t"]), 1, 1, _tagged("s", "t")),
    "evict of several tags": Write(lambda cache: cache.evict(tags=["t", "u"]), MISSING, 1, _tagged("t", "u")),
    "evict of all tags": Write(lambda cache: cache.evict(tags=["t", "u"], match="all"), MISSING, 1, _tagged("t", "u")),
    "soft evict": Write(lambda cache: cache.evict(tags=["t"], soft=True), MISSING, 1, _tagged("t")),
    "get_or_set": Write(lambda cache: cache.get_or_set("k", lambda: 2, tags=["t"]), 2, MISSING, len),
    "expire": Write(
        lambda cache: cache.expire(time.time() + 2 * FAR), MISSING, 1, lambda cache: cache.set("k", 1, expire=FAR)
    ),
    "clear": Write(lambda cache: cache.clear(), MISSING),
    "cull": Write(_shrink, MISSING, 1, _prepare_to_shrink),
    "set_many": Write(lambda cache: cache.set_many({"other": 2, "k": 2}), 2),
    "delete_many": Write(lambda cache: cache.delete_many(["other", "k"]), MISSING),
    "set in a queue": Write(lambda cache: cache.set(QUEUED, 2), 2, MISSING, len, QUEUED),
    "pull": Write(lambda cache: cache.pull(), MISSING, 1, lambda cache: cache.set(QUEUED, 1), QUEUED),
    "transact": Write(_transact, 2),
    "nested rollback": Write(_undo_in_a_transaction, 2),
    "rollback": Write(_undo, 1),
}
