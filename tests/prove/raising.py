"""Signal handlers that raise, as Ctrl-C does, in the middle of every call: at every place where one can, and any time."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskcache_like import Cache, Lock

from ..processes import problems
from .scene import LARGE
from .stage import KINDS, opened
from .stepping import Interrupted, interrupted, places_in

PARTS = 8  # of the places of one call, each a case
OLD, NEW = b"o" * LARGE, b"n" * LARGE
SECRET, NEXT_SECRET = "the secret of before", "the secret of after"


@dataclass(frozen=True)
class Call:
    """A call, what is stored before it, and what must be stored after it if it came to its end."""

    run: Callable[[Cache], object]
    before: dict[Any, Any] = field(default_factory=dict)
    after: dict[Any, Any] | None = None  # None: as before
    atomic: bool = False  # over one shard: all or nothing
    tag: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = KINDS

    @property
    def ends(self) -> list[dict[Any, Any]]:
        """Return what may be there when it was interrupted: all of before or all of after, or anything of either."""
        return [self.before, self.before if self.after is None else self.after]


def prepare(call: Call, cache: Cache) -> None:
    """Put what the call begins with."""
    for key in {key for end in call.ends for key in end}:
        if key in call.before:
            cache.set(key, call.before[key], tag=call.tag, retry=True)
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


def going_on(cache: Cache) -> None:
    """Catch within the transaction what interrupts a write of it, and go on."""
    try:
        with cache.transact(retry=True):
            try:
                cache.set("left", 1, retry=True)
                cache.incr("left", retry=True)
            except Interrupted:
                cache.set("left", 2, retry=True)
                raise
            cache.set("right", 2, retry=True)
    finally:
        pass


def in_lock(cache: Cache) -> None:
    with Lock(cache, "lock"):
        cache.set("left", 2, retry=True)


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
    "cold get": Call(cold, {"left": 1}),
    "hot get": Call(lambda cache: cache.get("left"), {"left": 1}),
    "get of a file": Call(lambda cache: cache.get("left"), {"left": OLD}),
    "a stream": Call(stream, {"left": OLD}),
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
    "get_many": Call(lambda cache: cache.get_many(list(THREE)), THREE),
    "delete_many": Call(lambda cache: cache.delete_many(list(THREE), retry=True), THREE, {}, atomic=True),
    "evict": Call(lambda cache: cache.evict("tag", retry=True), {**THREE, "b": OLD}, {}, atomic=True, tag="tag"),
    "clear": Call(lambda cache: cache.clear(retry=True), {**THREE, "b": OLD}, {}, atomic=True),
    "expire": Call(lambda cache: cache.expire(retry=True), THREE),
    "cull": Call(lambda cache: cache.cull(retry=True), THREE),
    "transact": Call(in_transaction, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, atomic=True),
    "nested transact": Call(nested, {"left": 1, "right": OLD}, {"left": 2, "right": NEW}, atomic=True),
    "iteration": Call(lambda cache: list(cache), THREE),
    "len": Call(len, THREE),
    "memoize": Call(remember),
    "a lock": Call(in_lock, {"left": 1}, {"left": 2}),
    "check": Call(lambda cache: cache.check(retry=True), {"left": OLD}),
    "check with fix": Call(lambda cache: cache.check(fix=True, retry=True), {"left": OLD}),
    "stats and reset": Call(lambda cache: (cache.stats(), cache.reset("cull_limit", 10)), {"left": 1}),
    "close": Call(close, {"left": 1}),
    "opening": Call(open_another, {"left": 1}),
    "opening a new one": Call(open_new, {"left": 1}),
}


def stored(cache: Cache, keys: Iterable[Any]) -> dict[Any, Any]:
    """Return what a handle reads of some keys."""
    found = {key: cache.get(key) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def judge(call: Call, cache: Cache, other: Cache) -> None:
    """Assert that both handles can write, and read the same: what was there before, or what was to be there."""
    other.set("of another", 1)  # a Timeout if the lock is held
    before, after = call.ends
    keys = {*before, *after}
    found = stored(cache, keys)
    if call.atomic and type(cache) is Cache:
        assert found in (before, after), f"half of it is done: {sorted(found)}"
    for key in keys:
        assert found.get(key) in (before.get(key), after.get(key)), f"{key!r} is {str(found.get(key))[:20]!r}"
    assert cache.set("of this", 1) is True
    assert stored(other, keys) == found, "the handles differ"
    with other.transact():  # over all shards
        other.delete("of this")
    assert cache.get("of this") is None
    with cache.transact():
        cache.set("of this", 2)
    assert other["of this"] == 2
    assert len(other) == len(list(other)), f"{len(list(other))} entries are counted as {len(other)}"
    queue = [other.peek("queue")[1], other.peek("queue", side="back")[1]]
    assert queue in (["old", "old"], ["old", "new"], [None, None]), queue


def open_files(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        found += [target] if target.startswith(str(directory)) else []
    return found


def interrupt_part(call: Call, kind: str, directory: Path, part: int) -> int:
    """Interrupt a call at every `PARTS`-th place, from the one numbered `part`; return how often."""
    done = 0
    with opened(kind, directory, timeout=5) as cache, opened(kind, directory, timeout=0) as other:
        prepare(call, cache)
        call.run(cache)
        prepare(call, cache)
        places = places_in(lambda: call.run(cache))
        for number in range(1 + part, places + 100, PARTS):
            prepare(call, cache)
            error = interrupted(lambda: call.run(cache), number)
            if error is None:
                break
            done += 1
            try:
                judge(call, cache, other)
            except BaseException as problem:
                problem.add_note(f"interrupted at place {number} of {places}, {error}")
                raise
            del error
        problems(cache, fix=True)
        found = problems(cache)
        assert found == [], f"check() finds {found}"
    gc.collect()
    left = open_files(directory.parent)
    assert left == [], f"still open: {left}"
    return done
