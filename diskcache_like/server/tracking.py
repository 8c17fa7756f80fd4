"""Tracking: tell clients which keys have changed, so that they can keep values in memories of their own.

Whoever changes an entry, in this process or another one, changes the generation of its slot (docs/coherence.md). So
nobody has to tell the server; it looks, every few milliseconds while there is somebody to tell:

- A client in the default mode is told of the keys that it has read. The generation of each was taken before the read.
  If the slot has another one now, the entry may have changed since. If not, the read gave the present value: each write
  leaves a number in its slot that was never there before, and leaves it odd while a read might find either value.
- A client in the broadcasting mode is told of all keys with its prefixes. Those that changed lately are in the write
  buffer, and their slots have higher numbers than the last write before the last look. Where writes went to the
  database itself (large values, transactions, evictions), nobody knows their keys, and the client is told that any key
  may have changed. FLOOR tells: every such write sets it to FLUSHED, and a flush, which changes nothing, does not.
- A look is left out if no write was counted since the last one, and none was under way then: each is counted before it
  changes anything, and said to be settled after its slot has its new number.

A slot that two keys share, or a look that meets a write under way, may cause one message too many, and never one too
few. An entry that has expired counts as changed in the default mode; in the broadcasting mode once it is removed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from ..cache import Cache
from ..coherence.generations import Header, Words
from ..coherence.ring import Word
from ..errors import DecodeError
from ..storage.rows import original_key_in
from ..storage.store import Store
from ..system.signals import reraise_signal
from .resp import Failed, Push, encode
from .values import key_of, name_of

PERIOD: Final = 0.02  # seconds between looks
SHARE: Final = 10  # looks take one part in so many of the time, at most
ATTEMPTS: Final = 10  # to read the write buffer while nobody writes
MOST: Final = 1_000_000  # keys that are remembered, each once for each client that has read it, and
LONG: Final = 256  # bytes of a key that count as one more
MANY: Final = 1 << 30
_log: Final = logging.getLogger(__name__)


class Listener:
    """A client that can be told of changes, and is while `is_tracking`."""

    number: int  # which no other client of the server has
    is_tracking: bool

    def is_busy(self) -> bool:
        """Tell whether commands are being carried out whose replies are written later."""
        raise NotImplementedError

    def push(self, message: bytes) -> None:
        """Send a message that answers no command."""
        raise NotImplementedError


class _Watch:
    """What was read of one slot."""

    __slots__ = ("expire", "readers", "stamp")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp  # before the first of these reads
        self.expire = math.inf  # when the first of the entries expires
        self.readers: dict[bytes, set[int]] = {}  # the numbers of clients, some of which may be gone


class _Moment(NamedTuple):
    """What tells, at two moments, which writes between them can be named."""

    ring: Any = None
    floor: int = 0
    internal: int = 0
    flushed: int = 0
    head: int = 0
    last: int = -1  # the tick of the last write, -1 if one was under way


class _Shard:
    """What the last look at a shard has found."""

    def __init__(self) -> None:
        self.watched: dict[int, _Watch] = {}  # by slot
        self.slots: Words | None = None  # which these are in
        self.tick: int | None = None  # of the last write, None if one was under way
        self.moment = _Moment()  # of the last broadcast


class Tracking:
    """Who is told of what; the tables are guarded by a lock, as commands may run in threads."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        # By number of the client: those that are told, and the prefixes of those that broadcasts go to.
        self._modes: dict[int, tuple[Listener, list[bytes] | None]] = {}
        self._pending: dict[Listener, set[bytes] | None] = {}  # None for all keys
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._forget_all()

    # -- who is told --------------------------------------------------------------------------------------------------

    def start(self, client: Listener, prefixes: list[bytes] | None) -> None:
        """Tell a client of keys with these prefixes from now on, or of those that it reads."""
        if self._cache._tier is not None:
            raise Failed("ERR a cache whose entries several machines share cannot be tracked")
        before = self._modes[client.number][1] if client.is_tracking else None
        if client.is_tracking and (prefixes is None) != (before is None):
            raise Failed("ERR You can't switch BCAST mode on/off before disabling tracking for this client")
        with self._lock:
            if not self._broadcasts():
                for store, seen in self._shards.items():
                    self._written(store, seen)  # what is written from here on is new
            self._modes[client.number] = client, None if prefixes is None else [*(before or []), *prefixes]
        client.is_tracking = True
        self._loop.call_soon_threadsafe(self._begin)

    def stop(self, client: Listener) -> None:
        """Tell a client nothing any more."""
        with self._lock:
            client.is_tracking = False
            self._modes.pop(client.number, None)
            self._pending.pop(client, None)
            if not self._modes:
                self._forget_all()

    def _broadcasts(self) -> list[tuple[Listener, tuple[bytes, ...]]]:
        """Return who is told of all keys with which prefixes."""
        return [(client, tuple(prefixes)) for client, prefixes in self._modes.values() if prefixes is not None]

    def _forget_all(self) -> None:
        """Keep nothing, mapped files included."""
        self._shards = {store: _Shard() for store in self._cache._shards.stores}
        self._watches, self._soonest = 0, math.inf  # as MOST counts; and when the first of these entries expires

    # -- what was read ------------------------------------------------------------------------------------------------

    def watch(self, client: Listener, names: Iterable[bytes]) -> None:
        """Note what a client is about to read."""
        mode = self._modes.get(client.number)
        if mode is None or mode[1] is not None:  # it has left, or is told of all keys with a prefix
            return
        for name in names:
            store, slot = self._place(name)
            store.shard.ready()
            stamp = store.shard.slots[slot]
            with self._lock:
                watch = self._shards[store].watched.setdefault(slot, _Watch(stamp))
                readers = watch.readers.setdefault(name, set())
                self._watches += 0 if client.number in readers else _weight(name)
                readers.add(client.number)
        if self._watches > MOST:
            with self._lock:
                self._tell_all_readers()
            self._loop.call_soon_threadsafe(self.deliver)

    def note_expiry(self, name: bytes, expire: float) -> None:
        """Note when an entry that was read expires."""
        store, slot = self._place(name)
        with self._lock:
            watch = self._shards[store].watched.get(slot)
            if watch is not None:
                watch.expire = min(watch.expire, expire)
                self._soonest = min(self._soonest, expire)

    def _place(self, name: bytes) -> tuple[Store, int]:
        store: Any
        _, home, store = self._cache._rows.locate(key_of(name))
        return store, home % store.shard.slot_prime

    # -- what has changed ---------------------------------------------------------------------------------------------

    def wrote(self, names: Iterable[bytes]) -> None:
        """Look at keys that a client of this worker has just written, so that none is told later than by its reply."""
        if not self._modes:
            return
        with self._lock:
            for store, slot in map(self._place, names):
                self._compare(store, self._shards[store], (slot,), -math.inf)

    def _look(self) -> None:
        """Find out what has changed since the last look."""
        stores = self._cache._shards.stores
        headers = [store.shard.present_header() for store in stores]  # which may raise WouldBlock, so first
        now = self._cache._clock()
        with self._lock:
            is_due, self._soonest = now >= self._soonest, math.inf if now >= self._soonest else self._soonest
            for store, header in zip(stores, headers, strict=True):
                seen = self._shards[store]
                tick = header[Header.TICK]
                is_settled = header[Header.SETTLED] == tick  # before the slots are looked at
                if tick == seen.tick and store.shard.slots is seen.slots and not is_due:
                    continue
                if store.shard.slots is not seen.slots and seen.slots is not None:
                    self._tell_all_readers()  # the file is another one
                seen.slots, seen.tick = store.shard.slots, tick if is_settled else None
                self._compare(store, seen, list(seen.watched), now)
                if self._broadcasts():
                    self._broadcast(self._written(store, seen))

    def _compare(self, store: Store, seen: _Shard, numbers: Iterable[int], now: float) -> None:
        """Tell of the keys of those slots that have changed."""
        slots = store.shard.slots
        for number in numbers:
            watch = seen.watched.get(number)
            if watch is None:
                continue
            if slots[number] == watch.stamp and watch.expire > now:
                self._soonest = min(self._soonest, watch.expire)
                continue
            del seen.watched[number]
            for name, readers in watch.readers.items():
                self._watches -= len(readers) * _weight(name)
                for reader in readers & self._modes.keys():
                    self._tell(self._modes[reader][0], (name,))

    def _written(self, store: Store, seen: _Shard) -> list[bytes] | None:
        """Return the keys that were written since the last call, None if they cannot be named."""
        shard, ring = store.shard, store.shard.ring
        header, before = shard.header, seen.moment
        if ring is None or shard.disk.sealer is not None:
            return None
        for _ in range(ATTEMPTS):
            tick = header[Header.TICK]
            last = tick if header[Header.SETTLED] == tick else -1  # else this write may not be in the ring yet
            words = ring.words
            floor, internal, flushed = words[Word.FLOOR], header[Header.INTERNAL], words[Word.FLUSHED]
            seen.moment = _Moment(words, floor, internal, flushed, words[Word.HEAD], last)
            if last == tick == before.last:
                return []
            if not _is_known(before, seen.moment):
                return None
            try:
                net = ring.gather(MANY)[0]
                keys = [
                    shard.disk.user_key(key, original_key_in(what))  # type: ignore[arg-type]
                    for key, (_, _, home, what, *_) in net.items()  # a key that is a number raises DecodeError
                    if shard.slots[home % shard.slot_prime] > 2 * before.last + 2
                ]
            except DecodeError:
                return None
            if header[Header.TICK] == tick == header[Header.SETTLED]:
                return [name for name in map(name_of, keys) if name is not None]
        seen.moment = _Moment()  # others write all the time: nothing is known at the next look, either
        return None

    def _broadcast(self, names: list[bytes] | None) -> None:
        for client, prefixes in self._broadcasts():
            self._tell(client, names and [name for name in names if name.startswith(prefixes)])

    def _tell(self, client: Listener, names: Iterable[bytes] | None) -> None:
        """Note what a client is to be told; None for all keys."""
        if names is None:
            self._pending[client] = None
        elif names:
            pending = self._pending.setdefault(client, set())
            if pending is not None:
                pending.update(names)

    def _tell_all_readers(self) -> None:
        for seen in self._shards.values():
            seen.watched.clear()
        self._watches, self._soonest = 0, math.inf
        for client, prefixes in self._modes.values():
            if prefixes is None:
                self._tell(client, None)

    # -- telling ------------------------------------------------------------------------------------------------------

    def message(self, client: Listener) -> bytes:
        """Return what a client is to be told, for the end of its replies; nothing if there is nothing."""
        with self._lock:
            names = self._pending.pop(client, ())
        return b"" if names == () else _invalidation(names)

    def deliver(self) -> None:
        """Send what clients are to be told; on the loop, between replies.

        A busy client gets its message behind its replies: one of them may hold what a key was before.
        """
        if not self._pending:
            return
        with self._lock:
            waiting = [client for client in self._pending if not client.is_busy()]
        for client in waiting:
            message = self.message(client)
            if message:
                client.push(message)

    def _begin(self) -> None:
        if self._task is None and self._modes:
            self._task = self._loop.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        threads = self._cache._handle.threads
        while self._modes:
            began = self._loop.time()
            try:
                await threads.attempt(self._look, False)
            except Exception as error:
                reraise_signal(error)
                _log.exception("looking for changed keys failed")
                with self._lock:
                    self._tell_all_readers()
                    self._broadcast(None)
            self.deliver()
            await asyncio.sleep(max(PERIOD, SHARE * (self._loop.time() - began)))
        self._task = None

    async def end(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _weight(name: bytes) -> int:
    return 1 + len(name) // LONG


def _invalidation(names: Collection[bytes] | None) -> bytes:
    return encode(Push(["invalidate", None if names is None else list(names)]), 3)


def _is_known(before: _Moment, now: _Moment) -> bool:
    """Tell whether all writes between two looks were appended to the ring, and still wait there."""
    if before.ring is None or before.ring is not now.ring or before.floor != now.floor or now.flushed > before.head:
        return False
    # Where FLOOR was FLUSHED already, a write to the database does not change it. It is counted as one of no key, or
    # was made where nothing waited.
    return before.floor < before.flushed or (before.floor < before.head and before.internal == now.internal)
