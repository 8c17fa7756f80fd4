"""Logs to judge a cache by: what workers were about to do to it and what was acknowledged, in diaries outside of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache
from diskcache_like.storage.upkeep import checkpoints, trash

from .integrity import opened
from .workers import Link, ready

VALUE = re.compile(rb"(\d+) (\d+) (\d+) (\d+) ")
KEYS = 12
ITEM = 1_000_000
"""The item that was pushed as version v is noted as if it were key ITEM + v."""
_LATEST = -1  # the key under which a diary that begins anew notes the latest version of the one before
NOISE = random.Random("noise").randbytes(1 << 16)

State = dict[int, int]  # version of each key that exists


def make_value(owner: int, key: int, version: int) -> bytes:
    """Return a value that says whose it is and which version, of a size that differs, with a checksum at its end.

    Half of it does not shrink when it is compressed.
    """
    size = (20, 300, 5_000, 33_000, 120_000)[(version + key) % 5]
    start = (version * 4099 + key) % 4096
    body = (
        b"%d %d %d %d " % (owner, key, version, size)
        + bytes((version + each) & 0xFF for each in range(64)) * (size // 128)
        + NOISE[start : start + size // 2]
    )
    return body + zlib.crc32(body).to_bytes(4, "little")


def version_of(value: bytes | None, owner: int, key: int) -> int:
    """Return the version of a value, 0 for none; fail for one that is torn or another key's."""
    if value is None:
        return 0
    found = VALUE.match(value)
    assert found, f"not a value of ours: {value[:40]!r}"
    assert (int(found[1]), int(found[2])) == (owner, key)
    assert value == make_value(owner, key, int(found[3])), "a torn value"
    return int(found[3])


class Diary:
    """What a worker was about to do and what was acknowledged, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def intend(self, changes: State) -> None:
        """Write down the versions (0: gone) that a call is about to give to keys."""
        os.write(self._descriptor, " ".join(f"{key}:{version}" for key, version in changes.items()).encode() + b"\n")

    @contextlib.contextmanager
    def changing(self, changes: State) -> Iterator[None]:
        """Write down what the body is about to change, and that it has, if it ends without an error."""
        self.intend(changes)
        yield
        self.acknowledge()

    def acknowledge(self, done: bool = True) -> None:
        """Write down that the call has returned; or that it was to change nothing."""
        os.write(self._descriptor, b"done\n" if done else b"undone\n")


class Account(NamedTuple):
    """What a diary says: what has to be there, what the call that was not acknowledged may have changed, and more."""

    state: State
    unsure: State
    latest: int  # version that was ever written down
    calls: int  # that were acknowledged since it began

    @classmethod
    def read(cls, path: Path) -> Account:
        """Read a diary, whose last line may be half written."""
        state: State = {}
        intended: State = {}
        latest = calls = 0
        for line in path.read_text(encoding="ascii").splitlines(keepends=True) if path.exists() else []:
            if not line.endswith("\n"):
                break
            if line == "done\n":
                state.update(intended)
                intended = {}
                calls += 1
            elif line == "undone\n":
                intended = {}
            else:
                intended = {
                    int(key): int(version) for key, _, version in (pair.partition(":") for pair in line.split())
                }
                latest = max([latest, *intended.values()])
        state.pop(_LATEST, None)
        return cls(state, intended, latest, calls)

    def begin_anew(self, path: Path, found: State) -> None:
        """Replace a diary by one that says what turned out to be so: it is so from now on, and does not come undone."""
        lines = ({_LATEST: self.latest}, found)
        text = "".join(" ".join(f"{key}:{version}" for key, version in line.items()) + "\ndone\n" for line in lines)
        path.write_text(text, encoding="ascii")


def look(cache: Cache, owner: int) -> State:
    """Return the versions of all the owner's keys (0: gone), and the items in the owner's queue."""
    found = {key: version_of(cache.get((owner, key)), owner, key) for key in range(KEYS)}
    items = [value for _, value in cache.iterqueue(_queue(owner))]
    versions = [int(VALUE.match(value)[3]) for value in items]  # type: ignore[index]
    assert versions == sorted(versions), f"the queue of {owner} is out of order: {versions}"
    for version, value in zip(versions, items, strict=True):
        found[ITEM + version_of(value, owner, ITEM + version)] = version
    return found


def verify(found: State, owner: int, diary: Path, evicting: bool) -> int:
    """Compare what was found in the cache with a diary, which begins anew with it; the owner is dead.

    Returns the number of calls that the diary says were acknowledged.
    """
    account = Account.read(diary)
    keys = {*range(KEYS), *account.state, *account.unsure, *found}
    before = {key: account.state.get(key, 0) for key in keys}
    after = {**before, **account.unsure}
    found = {key: found.get(key, 0) for key in keys}
    if evicting:
        for key in keys:
            assert found[key] in (0, before[key], after[key]), f"key {key} of {owner}: {_difference(found, before)}"
    else:
        assert found in (before, after), (
            f"keys of {owner}: neither before nor after the call that was killed;"
            f" not as before: {_difference(found, before)}, not as after: {_difference(found, after)}"
        )
    account.begin_anew(diary, {key: version for key, version in found.items() if version})
    return account.calls


def _difference(found: State, expected: State) -> str:
    return ", ".join(f"{key}: {found[key]} for {expected[key]}" for key in found if found[key] != expected[key])


def work(
    link: Link,
    owner: int,
    seed: int,
    directory: Path,
    kind: str,
    diary_path: Path,
    settings: dict[str, Any],
    changes: Sequence[Change] = (),
    checkpoint_bytes: int = 300_000,  # so that there are checkpoints to be killed in
) -> None:
    """Change the owner's keys in every way until killed; one word to the test for every few changes."""
    checkpoints.CHECKPOINT_BYTES = checkpoint_bytes
    trash.GRACE = 0.001
    chance = random.Random(seed)
    versions = itertools.count(Account.read(diary_path).latest + 1)
    diary = Diary(diary_path)
    with opened(directory, kind, **settings) as cache:
        ready(link)
        for count in itertools.count(1):
            some = chance.sample(range(KEYS), chance.choice((1, 1, 1, 2, 5)))
            chance.choice(changes or CHANGES)(cache, diary, owner, some, next(versions))
            if count % 5 == 0:
                link.tell(count)


Change = Callable[[Cache, Diary, int, list[int], int], None]


def change_set(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        with diary.changing({key: version}):
            assert cache.set((owner, key), make_value(owner, key, version), retry=True)


def change_set_tagged(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        with diary.changing({key: version}):
            cache.set((owner, key), make_value(owner, key, version), tag=f"{owner} {key}", expire=1e6, retry=True)
    with diary.changing({some[0]: 0}):
        cache.evict(f"{owner} {some[0]}", retry=True)


def change_retagged(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    """Give keys other tags, and evict one of them by two that it has; the tags that it had find nothing."""
    old, new, all_ = f"old {owner} {version}", f"new {owner} {version}", f"all {owner}"
    for key in some:
        with diary.changing({key: version}):
            cache.set((owner, key), make_value(owner, key, version), tags=[old, all_], retry=True)
        with diary.changing({}):
            retagged = cache.retag((owner, key), [f"{new} {key}"], [old], retry=True)
        assert retagged or cache.reset("eviction_policy") != "none", "nobody else has this key"
    assert cache.evict(old, retry=True) == 0, "an entry is found by a tag that was taken away"
    with diary.changing({some[0]: 0}):
        cache.evict(tags=[f"{new} {some[0]}", all_], match="all", retry=True)


def change_removed(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    """Delete keys, pop them or let them expire."""
    for key in some:
        with diary.changing({key: 0}):
            if version % 3 == 0:
                cache.delete((owner, key), retry=True)
            elif version % 3 == 1:
                version_of(cache.pop((owner, key), retry=True), owner, key)
            else:
                cache.touch((owner, key), 0, retry=True)


def change_add(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for key in some:
        before = (owner, key) in cache
        diary.intend({key: version})
        added = cache.add((owner, key), make_value(owner, key, version), retry=True)
        diary.acknowledge(added)
        assert added is not before or cache.reset("eviction_policy") != "none", "nobody else has this key"


def change_many(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    one_shard = some if len(cache._shards.stores) == 1 else some[:1]  # a batch is atomic in each shard
    with diary.changing(dict.fromkeys(one_shard, version)):
        cache.set_many({(owner, key): make_value(owner, key, version) for key in one_shard}, retry=True)
    with diary.changing(dict.fromkeys(one_shard[:2], 0)):
        cache.delete_many([(owner, key) for key in one_shard[:2]], retry=True)


def change_in_transaction(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    for undo in (version % 2 == 0, version % 3 == 0):
        diary.intend({} if undo else {**dict.fromkeys(some, version), some[0]: 0})
        with contextlib.suppress(ZeroDivisionError), cache.transact(retry=True):
            for key in some:
                cache.set((owner, key), make_value(owner, key, version))
            cache.delete((owner, some[0]))
            if undo:
                raise ZeroDivisionError
        diary.acknowledge(not undo)


def change_queue(cache: Cache, diary: Diary, owner: int, some: list[int], version: int) -> None:
    prefix = _queue(owner)
    with diary.changing({ITEM + version: version}):
        cache.push(make_value(owner, ITEM + version, version), prefix, retry=True)
    if len(some) > 1:
        return
    for _ in range(2):  # so that the queue stays short
        _, value = cache.peek(prefix, retry=True)
        if value is not None:
            first = ITEM + int(VALUE.match(value)[3])  # type: ignore[index]
            with diary.changing({first: 0}):
                _, pulled = cache.pull(prefix, retry=True)
            assert pulled == value or cache.reset("eviction_policy") != "none", "nobody else pulls from this queue"


def _queue(owner: int) -> str:
    return f"queue {owner}"


CHANGES: tuple[Change, ...] = (
    *[change_set] * 2,
    change_set_tagged,
    change_retagged,
    *[change_removed] * 3,
    change_add,
    change_many,
    change_in_transaction,
    change_queue,
)
