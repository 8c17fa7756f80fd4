"""Queues, and the entries at either end of a cache: push, pull, peek, peekitem and iterqueue.

A queue is a run of numbered keys of a type of their own, all in one shard. So one index holds its order, and finds both
ends without reading what lies between. An item has the number of the write that pushed it, negative if that was at the
front: so it needs no look at the queue's end, and can wait in the write buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, Unpack

from ..coherence.counts import DELETE
from ..disk.contract import UNKNOWN
from ..encoding import keys
from ..encoding.made_keys import is_flight
from ..encoding.record import Metadata, Record
from ..encoding.tags import pack_tags
from ..entries.loading import ENOVAL, EXPIRED
from ..entries.row_codec import discard, with_metadata
from ..errors import DecodeError, DirectoryError, Timeout, ValueTooLarge
from ..settings.lifetimes import Expiry
from ..settings.misuse import NoOthers, unexpected, whole
from ..storage.shard.ownership import HOME
from ..storage.shard.reader import QUEUE_BOUND
from ..storage.store import Row, Store
from .parts import Parts

TRIES = 3  # to take an item without the lock
QUEUE_PAGE = 100  # items of a queue per SELECT while iterating

Side = Literal["back", "front"]

# What a look without the lock finds: the number of the write that may follow, and key, place, stored key and record of
# an entry, None for none.
Found = tuple[int, tuple[Any, int, bytes, bytes] | None]


class Queues(Parts):
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
        *,
        tags: Iterable[Any] | None = None,
        **others: Unpack[NoOthers],
    ) -> Any:
        """Append `value` to one side of the queue called `prefix` and return its key. Atomic.

        `side`: 'back' or 'front'. Other arguments as for `set`. Queue keys are equal to no key of the user's; their
        numbers grow from front to back, with gaps. Raises ValueTooLarge if the value can never fit the size limit, and
        Timeout, instead of which a FanoutCache returns None.
        """
        if others:
            raise unexpected(Queues.push, others)
        return self._push((value, read), prefix, side, self._rows.metadata(expire, pack_tags(tag, tags)), retry)

    def _push(
        self,
        given: tuple[Any, bool],
        prefix: str | None,
        side: Side,
        metadata: Metadata,
        retry: bool,
        check: Callable[[], object] = lambda: None,
    ) -> Any:
        """Do what `push` does for a value, and whether it is a file to `read`.

        `check` may raise an error instead. Nobody writes between that and the push.
        """
        rows = self._rows
        store = rows.queue_store(prefix)
        sign = 1 if _is_back(side) else -1
        encoded = rows.encode(store, *given, UNKNOWN)
        key: Any = None

        def make(number: int) -> tuple[int, bytes, Row]:
            nonlocal key
            check()
            key = keys.queue_key(prefix, sign * number)
            location = rows.locate(key)
            row = rows.row(key, location, encoded, metadata)
            assert isinstance(row, Row)
            if rows.is_oversize(row):
                raise ValueTooLarge(f"value for queue {prefix!r} is larger than size_limit allows")
            return location[1], location[0], row

        try:
            store.push(make, self._wait(retry))
        except BaseException:
            discard(store, encoded)
            return self._failed(None)
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
        return self._queue_item(prefix, default, side, (expire_time, tag), retry, remove=True)

    def peek(
        self,
        prefix: str | None = None,
        default: Any = (None, None),
        side: Side = "front",
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Return the (key, value) at one side of the queue, or `default`, removing only expired items before it."""
        return self._queue_item(prefix, default, side, (expire_time, tag), retry, remove=False)

    def _queue_item(
        self, prefix: str | None, default: Any, side: Side, asked: tuple[bool, bool], retry: bool, remove: bool
    ) -> Any:
        """Do what `pull` or `peek` does; `asked`: whether expiry and tag are wanted."""
        store = self._rows.queue_store(prefix)
        last = _is_back(side)
        try:
            alone = self._alone(store, partial(self._item_alone, store, prefix, last), remove)
            if alone is not None:
                return default if alone[1] is None else with_metadata(*alone, *asked)
            for attempt in store.attempts(removes=True):
                with attempt, store.transaction(self._wait(retry)):
                    for key, (value, record) in self._queue_items(store, prefix, last, remove):
                        with self._rows.reporting(key):
                            return with_metadata((key, value), record, *asked)
        except Timeout:
            return self._failed(default)
        return default

    def _alone(self, store: Store, look: Callable[[], Found | None], remove: bool) -> tuple[Any, Record | None] | None:
        """Return the (key, value) that `look` finds and its record, removed in one append with `remove`.

        None for the record: there is nothing. None: somebody else writes all the time, or only a transaction can tell,
        as where an entry has expired, or is damaged.
        """
        for _ in range(0 if store.in_transaction() else TRIES):
            found = look()
            if found is None:
                continue
            write, first = found
            if first is None:
                return (None, None), None
            key, place, stored_key, packed = first
            try:
                item = self._loader.live((stored_key, place, store), packed)
            except (DecodeError, DirectoryError, FileNotFoundError):
                return None  # only under the lock is it known to be damaged, or lost and not taken; and it is said once
            if item is None:
                return None
            if not remove or store.remove_at(place & HOME, stored_key, write):
                return (key, item[0]), item[1]
        return None

    def _item_alone(self, store: Store, prefix: str | None, last: bool) -> Found | None:
        rows = self._rows
        key_start = rows.stored_key(keys.queue_key(prefix, 0))[:-8]
        found = store.queue_end_alone(rows.queue_column(prefix), key_start, last)
        if found is None or found[1] is None:
            return found and (found[0], None)
        write, (stored_key, number, place, packed) = found[0], found[1]
        key = keys.queue_key(prefix, number)
        return (write, (key, place, stored_key, packed)) if rows.stored_key(key) == stored_key else None

    def _queue_items(
        self, store: Store, prefix: str | None, last: bool, remove: bool
    ) -> Iterator[tuple[Any, tuple[Any, Record]]]:
        """Yield key, value and record from one side of a queue; remove expired items, and with `remove` yielded ones.

        Damaged items are removed too; those that another handle may be able to read are skipped.
        """
        queue = self._rows.queue_column(prefix)
        skip = 0
        while (found := store.queue_end(queue, last, skip)) is not None:
            stored_key, number, place, packed = found
            key = keys.queue_key(prefix, number)
            item = self._loader.candidate(key, (stored_key, place, store), packed)
            if item is not EXPIRED and not self._is_own_key(key, stored_key):
                item = None
            if item is EXPIRED or (remove and item is not None):
                _remove(store, place, stored_key, item)
            else:
                skip += 1
            if isinstance(item, tuple):
                yield key, item

    def _is_own_key(self, key: Any, stored_key: bytes) -> bool:
        """Tell whether a queue's item is stored under its own key; if not, report it as corrupt."""
        if self._rows.stored_key(key) == stored_key:
            return True
        self._rows.report_corrupt(DecodeError("the number of a queue's item is not its key's"), key)
        return False

    def iterqueue(self, prefix: str | None = None, side: Side = "front", skip: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield the (key, value) pairs of a queue from one side, behind `skip` others, and remove nothing.

        First flushes the write buffer. Leaves out items that are removed meanwhile, or pushed behind the last one.
        One step finds and reads the first pair; skipping takes time in proportion, but reads no values.
        """
        what = "how many pairs to leave out, 0 or more"
        if whole("skip", skip, what) < 0:
            raise ValueError(f"skip is {skip!r}, expected {what}")
        return self._iterate_queue(self._rows.queue_store(prefix), prefix, _is_back(side), min(skip, QUEUE_BOUND))

    def _iterate_queue(self, store: Store, prefix: str | None, last: bool, skip: int) -> Iterator[tuple[Any, Any]]:
        queue = self._rows.queue_column(prefix)
        low, high = -QUEUE_BOUND, QUEUE_BOUND
        rows = store.queue_page(queue, last, low, high, 1, skip)
        if rows:
            end = store.queue_end(queue, not last)
            number = rows[0][2] if end is None else end[1]  # None where all has been removed since
            low, high = (number, high) if last else (low, number)
        while rows:
            for place, stored_key, number, packed in rows:
                key = keys.queue_key(prefix, number)
                if not self._is_own_key(key, stored_key):
                    continue
                # The slot was not looked at before the SELECT, so 1 stands for its generation: nothing is kept hot.
                value = self._loader.load(key, (stored_key, place & ~3, store), (store.shard.slots, 1, packed))
                if value is not ENOVAL:
                    yield key, value
            low, high = (low, number - 1) if last else (number + 1, high)
            rows = store.queue_page(queue, last, low, high, QUEUE_PAGE)

    def peekitem(self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False) -> Any:
        """Return the (key, value) inserted last, or first; raise KeyError if the cache is empty.

        It removes expired entries that it meets. Of several shards, the last one that has an entry answers.
        """
        return self._end_item(last, (expire_time, tag), retry, remove=False)

    def _end_item(self, last: bool, asked: tuple[bool, bool], retry: bool, remove: bool) -> Any:
        """Do what `peekitem` does, and with `remove` take the entry away in the same step."""
        stores = self._shards.stores
        for store in reversed(stores) if last else stores:
            alone = self._alone(store, partial(self._end_alone, store, last), remove)
            if alone is not None:
                if alone[1] is None:
                    continue
                return with_metadata(*alone, *asked)
            for attempt in store.attempts(removes=True):
                with attempt, store.transaction(self._wait(retry)):
                    for key, (place, stored_key), (value, record) in self._end_items(store, last):
                        with self._rows.reporting(key):
                            found = with_metadata((key, value), record, *asked)
                            if remove:
                                _remove(store, place, stored_key, value)
                            return found
        raise KeyError("cache is empty")

    def _end_alone(self, store: Store, last: bool) -> Found | None:
        found = store.end_alone(last)
        if found is None or found[1] is None:
            return found and (found[0], None)
        write, (place, stored_key, original, packed) = found[0], found[1]
        try:
            key = self._rows.key_at(store, place, stored_key, original)
        except DecodeError:
            return None
        return None if is_flight(key) else (write, (key, place, stored_key, packed))

    def _end_items(self, store: Store, last: bool) -> Iterator[tuple[Any, tuple[int, bytes], tuple[Any, Record]]]:
        """Yield each key, where it is stored, value and record from one end, without damaged ones; remove expired ones.

        A key is stored at a place, under its stored key.
        """
        skip = 0
        while (found := store.end(last, skip)) is not None:
            place, stored_key, original, packed = found
            skip += 1
            with self._rows.reporting(stored_key):
                key = self._rows.key_at(store, place, stored_key, original)
                if is_flight(key):
                    continue
                item = self._loader.candidate(stored_key, (stored_key, place, store), packed)
                if item is EXPIRED:
                    _remove(store, place, stored_key, item)
                    skip -= 1
                elif item is not None:
                    yield key, (place, stored_key), item


def _remove(store: Store, place: int, stored_key: bytes, item: Any) -> None:
    """Remove an entry that was taken, or had expired, within a transaction, and count that."""
    store.remove_places([place])
    if item is EXPIRED:
        store.shard.count("evicted_expired")
    else:
        store.shard.marks.of(stored_key)[place & HOME] = DELETE


def _is_back(side: str) -> bool:
    if side not in ("back", "front"):
        raise ValueError(f"side is {side!r}, expected 'back' or 'front'")
    return side == "back"
