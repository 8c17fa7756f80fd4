"""Every call of the API, what is stored before it, and what must be stored after it if it came to its end."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskcache_like import Cache

from ..children import opened

LARGE = 40_000  # bytes: a file of its own
OLD, NEW = b"o" * LARGE, b"n" * LARGE


@dataclass(frozen=True)
class Call:
    """A call, what is stored before it, and what must be stored after it if it came to its end."""

    run: Callable[[Cache], object]
    before: dict[Any, Any] = field(default_factory=dict)
    after: dict[Any, Any] | None = None  # None: as before
    atomic: bool = False  # over one shard: all or nothing
    whole: bool = False  # over several shards too
    tags: tuple[str, ...] = ()
    reads: bool = False  # neither writes nor opens anything
    handlers: str = "raises and uses"  # what one that interrupts it may do

    @property
    def ends(self) -> list[dict[Any, Any]]:
        """Return what may be there when it was interrupted: all of before or all of after, or anything of either."""
        return [self.before, self.before if self.after is None else self.after]


def prepare(call: Call, cache: Cache) -> None:
    """Put what the call begins with."""
    for key in {key for end in call.ends for key in end}:
        if key in call.before:
            cache.set(key, call.before[key], tags=call.tags, retry=True)
        else:
            cache.delete(key, retry=True)
    while cache.pull("queue", retry=True) != (None, None):
        pass
    cache.push("old", "queue", retry=True)


def in_transaction(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        cache.set("right", NEW, retry=True)


def nested(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        with cache.transact(retry=True):
            cache.set("right", NEW, retry=True)


def failing(cache: Cache) -> None:
    with suppress(LookupError), cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        cache.set("right", NEW, retry=True)
        raise LookupError


def failing_inside(cache: Cache) -> None:
    with cache.transact(retry=True):
        cache.set("left", 2, retry=True)
        failing(cache)
        cache.set("left", 1, retry=True)


def cold(cache: Cache) -> None:
    cache._hot.clear()
    assert cache.get("left") == 1


def stream(cache: Cache) -> None:
    with cache.read("left") as reader:
        assert reader.read(10) == OLD[:10]


def remember(cache: Cache) -> None:
    @cache.memoize("remembered")
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == double(4) == 8


def unchanged(cache: Cache) -> None:
    assert cache.set("left", 2, if_version=cache.get_entry("left").version, retry=True)


def compute(cache: Cache) -> None:
    """Be the one who computes."""
    assert cache.get_or_set("left", lambda: NEW, tags=["tag"]) == NEW


def fork(cache: Cache) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def open_another(cache: Cache) -> None:
    with opened("Cache" if type(cache) is Cache else "FanoutCache", Path(cache.directory)) as other:
        assert other.get("left") == 1


def open_new(cache: Cache) -> None:
    directory = Path(cache.directory).parent / f"new {random.getrandbits(60)}"
    with opened("Cache" if type(cache) is Cache else "FanoutCache", directory) as other:
        other.set("left", 1, retry=True)


def close(cache: Cache) -> None:
    cache.close()
    assert cache.get("left") == 1


THREE = {"a": 1, "b": 2, "c": 3}
CALLS: dict[str, Call] = {
    "set": Call(lambda cache: cache.set("left", 2, retry=True), {"left": 1}, {"left": 2}),
    "set of a new key": Call(lambda cache: cache.set("left", 2, retry=True), {}, {"left": 2}),
    "set with expiry": Call(lambda cache: cache.set("left", 2, expire=1000, retry=True), {"left": 1}, {"left": 2}),
    "set of a file": Call(lambda cache: cache.set("left", NEW, retry=True), {"left": OLD}, {"left": NEW}),
    "cold get": Call(cold, {"left": 1}, reads=True),
    "hot get": Call(lambda cache: cache.get("left"), {"left": 1}),
    "get of a file": Call(lambda cache: cache.get("left"), {"left": OLD}, reads=True),
    "a stream": Call(stream, {"left": OLD}, reads=True),
    "add": Call(lambda cache: cache.add("left", NEW, retry=True), {}, {"left": NEW}),
    "incr": Call(lambda cache: cache.incr("left", retry=True), {"left": 1}, {"left": 2}),
    "touch": Call(lambda cache: cache.touch("left", 1000, retry=True), {"left": 1}),
    "delete": Call(lambda cache: cache.delete("left", retry=True), {"left": OLD}, {}),
    "pop": Call(lambda cache: cache.pop("left", retry=True), {"left": OLD}, {}),
    "push": Call(lambda cache: cache.push("new", "queue", retry=True)),
    "pull": Call(lambda cache: cache.pull("queue", retry=True)),
    "set_many": Call(
        lambda cache: cache.set_many({**THREE, "b": NEW}, retry=True), {}, {**THREE, "b": NEW}, atomic=True
    ),
    "get_many": Call(lambda cache: cache.get_many(list(THREE)), THREE, reads=True),
    "delete_many": Call(lambda cache: cache.delete_many(list(THREE), retry=True), THREE, {}, atomic=True),
    "evict": Call(lambda cache: cache.evict("tag", retry=True), {**THREE, "b": OLD}, {}, atomic=True, tags=("tag",)),
    "set with tags": Call(
        lambda cache: cache.set("left", NEW, tags=["tag", "another"], retry=True),
        {"left": OLD},
        {"left": NEW},
        tags=("tag", "old"),
    ),
    "set if unchanged": Call(unchanged, {"left": 1}, {"left": 2}),
    "retag": Call(lambda cache: cache.retag("left", ["new"], ["tag"], retry=True), {"left": OLD}, tags=("tag",)),
    "evict of tags": Call(
        lambda cache: cache.evict(tags=["tag", "other"], match="all", retry=True),
        {**THREE, "b": OLD},
        {},
        atomic=True,
        tags=("tag", "other"),
    ),
    "soft evict": Call(
        lambda cache: cache.evict(tags=["tag"], soft=True, retry=True),
        {**THREE, "b": OLD},
        {},
        atomic=True,
        tags=("tag",),
    ),
    "get_or_set": Call(compute, {}, {"left": NEW}),
    "clear": Call(lambda cache: cache.clear(retry=True), {**THREE, "b": OLD}, {}, atomic=True, handlers="raises"),
    "expire": Call(lambda cache: cache.expire(retry=True), THREE),
    "cull": Call(lambda cache: cache.cull(retry=True), THREE),
    "transact": Call(in_transaction, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, whole=True),
    "nested transact": Call(nested, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, whole=True),
    "failing transact": Call(failing, {"left": 1, "right": OLD}, whole=True, handlers="raises"),
    "failing nested transact": Call(failing_inside, {"left": 1, "right": OLD}, whole=True, handlers="raises"),
    "iteration": Call(lambda cache: list(cache), THREE, reads=True),
    "len": Call(len, THREE),
    "memoize": Call(remember),
    "check": Call(lambda cache: cache.check(retry=True), {"left": OLD}),
    "check with fix": Call(lambda cache: cache.check(fix=True, retry=True), {"left": OLD}),
    "stats and reset": Call(lambda cache: (cache.stats(), cache.reset("cull_limit", 10)), {"left": 1}),
    "close": Call(close, {"left": 1}),
    "opening": Call(open_another, {"left": 1}, handlers="raises"),
    "opening a new one": Call(open_new, {"left": 1}, handlers="raises"),
    "a fork": Call(fork, {"left": 1}, handlers="uses"),
}
