"""How caches are broken for the controls of linearizability: each of these spoils a handle as it is opened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from diskcache_like import Cache
from diskcache_like.coherence import _native
from diskcache_like.coherence.generations import prime_below
from diskcache_like.coherence.ring import Mark, Ring, Word, Written
from diskcache_like.entries.atomic_key import AtomicKey
from diskcache_like.storage.redo_log import RedoLog
from diskcache_like.storage.shard.reader import Reader
from diskcache_like.storage.write_buffer import WriteBuffer
from diskcache_like.system import threads
from tests.support.broken_writers import sabotage
from tests.support.rings import SMALLEST, content_of, finding, place_of, record_at, table_of, written_in

from .histories import Tags

PAUSE = 0.001  # seconds by which a control widens the gap that it opens
_until_the_end = contextlib.ExitStack()  # of the process that is spoiled


def bump_late(cache: Cache, pause: float = PAUSE) -> None:
    """Leave out the odd step, and change the generation some time after the commit only."""
    sabotage(cache, "late", pause)


class Always:
    """Words that show whatever generation one looks for."""

    def __getitem__(self, _: int, /) -> Any:
        return self

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Trusted(dict[Any, Any]):
    """Hot entries that show whatever generation one looks for."""

    def __setitem__(self, key: Any, entry: Any) -> None:
        super().__setitem__(key, (Always(), *entry[1:]))


def trust_hits(cache: Cache) -> None:
    hot = cache._hot
    hot.entries = Trusted()
    hot._get = cache._hot_get = hot.entries.get


def keep_walks(cache: Cache) -> None:
    """Let readers find in the write buffer what was there before a commit of another kind."""
    for store in cache._shards.stores:
        store.invalidation.hide_flushed = lambda: None  # type: ignore[method-assign]


def end_walks_late(cache: Cache) -> None:
    """Let readers find in the write buffer what was there before a commit of another kind, until some time after it."""
    for store in cache._shards.stores:
        around, hide_flushed = store.writer._commit_one, store.invalidation.hide_flushed

        def late(*arguments: Any, around: Any = around, hide_flushed: Any = hide_flushed) -> int:
            try:
                return int(around(*arguments))
            finally:
                time.sleep(PAUSE)
                hide_flushed()

        store.invalidation.hide_flushed = lambda: None  # type: ignore[method-assign]
        store.writer._commit_one = late  # type: ignore[assignment]


def keep_carried(_: Cache) -> None:
    """Let readers find in the write buffer what a commit has carried into the database."""
    carried = Ring.carried

    def kept(self: Ring, mark: Mark) -> None:
        floor = self.words[Word.FLOOR]
        carried(self, mark)
        self.words[Word.FLOOR] = floor

    Ring.carried = kept  # type: ignore[method-assign]


def ask_nobody(_: Cache) -> None:
    """Let readers take what they find in the write buffer while a commit carries it."""
    carried = Ring.carried

    def late(self: Ring, mark: Mark) -> None:
        time.sleep(PAUSE)
        carried(self, mark)

    Ring.carried = late  # type: ignore[method-assign]
    Reader._waiting = lambda self, home, stored_key: self._shard.buffered(home, stored_key)  # type: ignore[method-assign]


def number_alike(cache: Cache) -> None:
    """Let a push have a number, and a pull take an item, though somebody has written since it looked."""
    for store in cache._shards.stores:
        writer = store.writer

        def careless(*arguments: Any, expected: int = 0, append: Any = writer._append_alone, **others: int) -> int:
            time.sleep(PAUSE if expected & 1 else 0)
            return int(append(*arguments, **others))

        writer._append_alone = careless  # type: ignore[assignment]


def keep_blindly(cache: Cache) -> None:
    """Store a computed value though its key may have been written since the look that did not find one."""
    for store in cache._shards.stores:
        writer = store.writer

        def careless(home: int, stored_key: bytes, decide: Any, missing: int, writer: Any = writer) -> int:
            if not missing:
                return int(type(writer)._update_alone(writer, home, stored_key, decide, missing))
            time.sleep(PAUSE)
            return int(writer._append_alone(home, stored_key, decide(None)))

        writer._update_alone = careless  # type: ignore[method-assign]


def count_blindly(cache: Cache) -> None:
    """Count on from a number in memory though it may have been written since the look at it."""
    for store in cache._shards.stores:

        def careless(home: int, stored_key: bytes, row: Any, seen: int, writer: Any = store.writer) -> int:
            time.sleep(PAUSE)
            return int(writer._append_alone(home, stored_key, row))

        store.replace = careless


def _copied(self: Ring, home: int, stored_key: bytes) -> Written | None:
    """Find a record as `Ring.find` does, but copy it slowly, and believe what was overwritten meanwhile."""
    offset = table_of(self)[home % prime_below(self.slots)]
    while offset and offset >= self.words[Word.FLOOR]:
        header, body = record_at(self, offset)
        if header is None:
            return None
        if body.startswith(stored_key) and header.h == home:
            time.sleep(20 * PAUSE)  # in which the others go around the ring
            at = place_of(self, offset) + SMALLEST
            written = written_in(header._replace(tags_size=-1), content_of(self)[at : at + header.body_size])
            return written._replace(stored_key=stored_key)
        offset = header.previous
    return None


def believe_copies(cache: Cache) -> None:
    """Let readers take what they copied from the ring, though it may have been overwritten."""
    _until_the_end.enter_context(finding(_copied))


def count_in_two_steps(cache: Cache) -> None:
    """Have `incr` read first and write later."""

    def incr(key: Any, delta: int = 1, default: int = 0, retry: bool = False) -> int:
        value = cache.get(key)
        time.sleep(PAUSE)
        total = (default if value is None else value) + delta
        cache.set(key, total, retry=retry)
        return int(total)

    cache.incr = incr  # type: ignore[method-assign, assignment]


def tear_transactions(cache: Cache) -> None:
    """Have each write in a transaction be one by itself."""

    @contextlib.contextmanager
    def transact(retry: bool = False) -> Iterator[None]:
        yield

    cache.transact = transact  # type: ignore[method-assign]


def ignore_versions(cache: Cache) -> None:
    """Store on any condition of a version."""
    cache._has_version = lambda *_: True  # type: ignore[method-assign]


def share_flights(_: Cache) -> None:
    """Let everybody have a flight who wants it."""

    def hold(self: AtomicKey, owner: object) -> bool:
        time.sleep(PAUSE)
        return True

    AtomicKey.hold = hold  # type: ignore[method-assign]


def evict_in_two_steps(cache: Cache) -> None:
    """Have `evict` remove what had the tags when it looked, whatever became of that."""

    def evict(*_: Any, tags: Tags, match: Any, retry: bool, soft: bool = False) -> int:
        keys = list(cache.keys(tags=tags, match=match))
        time.sleep(PAUSE)
        return sum(cache.delete(key, retry=retry) for key in keys)

    cache.evict = evict  # type: ignore[method-assign, assignment]


def note_flushes_early(cache: Cache) -> None:
    """Say in the write buffer that records are in the database before the commit that takes them there."""
    for store in cache._shards.stores:
        buffer = store.writer.buffer
        buffer._write_net = partial(_note_and_write, buffer)  # type: ignore[method-assign]


def _note_and_write(buffer: WriteBuffer, net: dict[bytes | int, _native.Net], mark: Mark) -> None:
    ring = buffer._shard.ring
    assert ring is not None
    ring.flushed(mark)
    time.sleep(PAUSE)
    WriteBuffer._write_net(buffer, net, mark)


def keep_no_redo_log(_: Cache) -> None:
    """Commit a transaction over several shards shard by shard, with nothing that would complete it."""
    RedoLog.decide = lambda self, txns: []  # type: ignore[method-assign]


def leave_cancelled_calls(_: Cache) -> None:
    """Have a call that is cancelled return at once, whatever goes on in its thread."""
    done = threads._done

    async def leave(future: Future[Any], shielded: bool = False) -> None:
        if not shielded:
            await done(future)

    threads._done = leave
