"""Queues, and the entries at either end of a cache: push, pull, peek, peekitem and iterqueue.

A queue is a run of numbered keys of its own kind, all in one shard, so its order is an index's, and both ends are found
without reading what lies between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from . import keys
from .disk import UNKNOWN
from .entries import GONE, Entries
from .errors import CacheError, DecodeError, DiskFull, Timeout, ValueTooLarge
from .interrupts import suppress
from .packing import Expiry, Target, metadata
from .record import Record
from .storage.reading import QUEUE_BOUND
from .storage.store import Store
from .value_files import Stored

QUEUE_START = 500_000_000_000_000  # number of the first entry of a queue; it grows both ways from there
QUEUE_PAGE = 100  # items of a queue per SELECT while iterating

Side = Literal["back", "front"]


class Queues(Entries):
    """The operations on queues."""

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: Side = "back",
        expire: Expiry | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Append `value` to one side of the queue called `prefix` and return its key. Atomic.

        Queue keys are equal to no key of the user's. Returns None where a Timeout is not raised (FanoutCache).
        """
        store = self._queue_store(prefix)
        queue = self._queue_column(prefix)
        expiry = self._expiry(expire)
        last = _is_back(side)
        try:
            encoded = store.disk.encode(value, read, UNKNOWN)
        except DiskFull:
            encoded = self._encode_again(store, value, read, UNKNOWN)
        try:
            for attempt in store.attempts():
                with attempt, store.transaction(self._wait(retry)):
                    found = store.queue_end(queue, last)
                    number = QUEUE_START if found is None else found[1] + (1 if last else -1)
                    key = keys.queue_key(prefix, number)
                    stored = self._stored_key(key)
                    row = self._row(key, stored, encoded, expiry, keys.encode_tag(tag))
                    if self._evicts and self._is_oversize(row):
                        raise ValueTooLarge(f"value for queue {prefix!r} is larger than size_limit allows")
                    store.upsert(keys.key_hash(stored, self._modulus), stored, row, None)
        except Timeout:
            discard(store, encoded)
            return self._timed_out(None)
        except BaseException:
            discard(store, encoded)
            raise
        return key

    def pull(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: Side = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Remove and return the (key, value) at one side of the queue, or `default` if it is empty. Atomic."""
        return self._queue_item(prefix, default, side, expire_time, tag, retry, remove=True)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: Side = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Return the (key, value) at one side of the queue without removing it, or `default` if it is empty.

        Expired items in front of it are removed.
        """
        return self._queue_item(prefix, default, side, expire_time, tag, retry, remove=False)

    def _queue_item(
        self, prefix: str | None, default: Any, side: Side, expire_time: bool, tag: bool, retry: bool, remove: bool
    ) -> Any:
        store = self._queue_store(prefix)
        last = _is_back(side)
        try:
            for attempt in store.attempts(removes=True):
                with attempt, store.transaction(self._wait(retry)):
                    for key, item in self._queue_items(store, prefix, last, remove):
                        with self._distrusting(key):
                            return self._item(key, *item, expire_time, tag)
        except Timeout:
            return self._timed_out(default)
        return default

    def _queue_items(
        self, store: Store, prefix: str | None, last: bool, remove: bool
    ) -> Iterator[tuple[Any, tuple[Any, Record]]]:
        """Yield key, value and record from one side of a queue, removing what is yielded if asked, and what is gone."""
        queue = self._queue_column(prefix)
        skip = 0
        while (found := store.queue_end(queue, last, skip)) is not None:
            stored, number, h, blob = found
            key = keys.queue_key(prefix, number)
            item = self._candidate(Target(key, stored, h, store), blob)
            if item is not GONE and self._stored_key(key) != stored:
                self._distrust(DecodeError("the number of a queue's item is not its key's"), key)
                item = None
            if item is GONE or (remove and item is not None):
                store.remove_places([h])
            else:
                skip += 1
            if isinstance(item, tuple):
                yield key, item

    def iterqueue(self, prefix: str | None = None, side: Side = "front", skip: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the (key, value) pairs of a queue from one side, behind `skip` others, and remove nothing.

        Never waits for a writer. What is pushed behind the last item meanwhile is left out, and so is what is removed.
        The first pair is found and read in one step; to skip costs time in proportion, but reads no values.
        """
        return self._iterate_queue(self._queue_store(prefix), prefix, _is_back(side), min(skip, QUEUE_BOUND))

    def _iterate_queue(self, store: Store, prefix: str | None, last: bool, skip: int) -> Iterator[tuple[Any, Any]]:
        queue = self._queue_column(prefix)
        low, high = -QUEUE_BOUND, QUEUE_BOUND
        rows = store.queue_page(queue, last, low, high, 1, skip)
        if rows:
            end = store.queue_end(queue, not last)
            number = rows[0][2] if end is None else end[1]  # None where all has been removed since
            low, high = (number, high) if last else (low, number)
        while rows:
            for h, stored, number, blob in rows:
                key = keys.queue_key(prefix, number)
                if self._stored_key(key) != stored:
                    self._distrust(DecodeError("the number of a queue's item is not its key's"), key)
                    continue
                # The slot was not looked at before the SELECT, so 1 stands for its generation: nothing is kept hot.
                found = self._load(key, stored, h & ~3, store, False, (store.slots, 1, blob))
                if found is not None:
                    yield key, found[0]
            low, high = (low, number - 1) if last else (number + 1, high)
            rows = store.queue_page(queue, last, low, high, QUEUE_PAGE)

    @staticmethod
    def _item(key: Any, value: Any, record: Record, expire_time: bool, tag: bool) -> Any:
        if not (expire_time or tag):
            return key, value
        return (key, value), *metadata(record, expire_time, tag)

    def peekitem(self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False) -> Any:
        """Return the (key, value) inserted last, or first; raise KeyError if the cache is empty.

        Expired entries in its way are removed. Over several shards, the last shard that has one answers.
        """
        stores = self._shards.stores
        for store in reversed(stores) if last else stores:
            for attempt in store.attempts(removes=True):
                with attempt, store.transaction(self._wait(retry)):
                    for stored, spelling, item in self._end_items(store, last):
                        with self._distrusting(stored):
                            return self._item(store.disk.user_key(stored, spelling), *item, expire_time, tag)
        raise KeyError("cache is empty")

    def _end_items(self, store: Store, last: bool) -> Iterator[tuple[bytes, bytes | None, tuple[Any, Record]]]:
        """Yield stored key, spelling, value and record from one end, removing what is gone on the way."""
        skip = 0
        while (found := store.end(last, skip)) is not None:
            h, stored, spelling, blob = found
            item = self._candidate(Target(stored, stored, h, store), blob)
            if item is GONE:
                store.remove_places([h])
            else:
                skip += 1
            if isinstance(item, tuple):
                yield stored, spelling, item


def discard(store: Store, encoded: Stored) -> None:
    """Remove the value file of a write that was not made; call it while the error that says why is raised.

    A signal handler may raise just after the write was made: then the file is the entry's.
    """
    file = encoded[2]
    if file is not None:
        with suppress(OSError, CacheError):  # it stays, an unknown file to `check`
            if not store.refers_to(file):
                store.disk.remove(file)


def _is_back(side: str) -> bool:
    if side not in ("back", "front"):
        raise ValueError(f"side is {side!r}, expected 'back' or 'front'")
    return side == "back"
