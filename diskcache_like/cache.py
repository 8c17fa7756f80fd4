"""Cache: every operation of the API, spelled once.

An operation encodes its key, asks the shards for the key's store, and is a decision on top of what a store offers.
Reads go to the hot layer first: an entry counts there only while its slot still has the generation it was read at
(docs/design.md, "Coherence").
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, Self, TypeVar, overload

from . import keys, rotation
from . import memoize as memoizing
from .coherence.generations import WORD, Header
from .dictionaries import Training, train
from .disk import Disk
from .entries import ENOVAL, GONE, absent
from .errors import CacheError, DecodeError, DiskFull, ExpiryError, SettingError, Timeout, ValueTooLarge
from .hot import note_often
from .packing import Expiry, Target, tag_of, with_metadata
from .queues import Queues, discard
from .record import MODE_RAW, Record
from .settings import DEFAULT_SETTINGS, OPTIONAL_SETTINGS, checked, checked_all
from .storage.check import check_whole
from .storage.shards import new_disk
from .storage.store import REMOVE, Change, Row, Store, Touch
from .streams import Streams
from .value_files import Stored

MOMENTS = 1e300  # seconds; a moment farther away is a mistake
SET_MANY_BATCH = 1000  # entries per transaction of set_many and delete_many
_TICK = Header.TICK
P = ParamSpec("P")
R = TypeVar("R")


class Entry(NamedTuple):
    """What `get_entry` returns: a value with its metadata."""

    value: Any
    expire_time: float | None
    tag: Any
    size: int


class Cache(Queues, Streams):
    """A persistent cache in a directory, shared by threads and processes.

    Behaves like a dictionary; keys that are equal are one entry. Values come back equal and of the same type. Every
    operation is atomic. One that writes waits up to `timeout` seconds for the write lock and then raises Timeout;
    with `retry=True` it waits without limit. Reads never wait for writers.

    `directory`: made if missing, a temporary one if None. `disk`: how keys and values are stored. `settings`: see
    `DEFAULT_SETTINGS`; stored when the cache is made, this handle's afterwards. `pickle`: 'signed', 'never' or
    'trusted', for values that are not plain data. `secret`: authenticates every entry (bytes or text, 16 or more).
    `encrypt`: seal everything with keys that the secret opens, `namespace`: and that are others than elsewhere;
    `hot_encoded`: in memory too.
    `strict`: raise for entries that fail authentication or are damaged instead of treating them as missing. `shared`:
    accept a directory that others can write. `coherence`: 'auto', 'python' or 'native'. `clock`: seconds since 1970.
    `serializer`: 'msgpack', 'json' or 'pickle', and `compressor`: 'none', 'zlib', 'zstd' or 'lz4', recorded when the
    cache is made. `allow`: classes whose objects are data in this cache, beside those given to `register`.

    Raises DirectoryError, UnsafeDirectory, ForeignDatabase, DiskCacheDirectory, NewerFormat, SettingError, SecretError,
    MissingDependency.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        **settings: Any,
    ) -> None:
        self._open(directory, 1, timeout, disk, settings)

    # -- reading --------------------------------------------------------------------------------------------------

    @overload
    def get(
        self,
        key: Any,
        default: Any = ...,
        read: bool = ...,
        expire_time: Literal[False] = ...,
        tag: Literal[False] = ...,
        retry: bool = ...,
        *,
        mmap: bool | None = ...,
    ) -> Any: ...
    @overload
    def get(
        self,
        key: Any,
        default: Any = ...,
        read: bool = ...,
        *,
        expire_time: Literal[True],
        tag: Literal[False] = ...,
        retry: bool = ...,
        mmap: bool | None = ...,
    ) -> tuple[Any, float | None]: ...
    @overload
    def get(
        self,
        key: Any,
        default: Any = ...,
        read: bool = ...,
        expire_time: Literal[False] = ...,
        *,
        tag: Literal[True],
        retry: bool = ...,
        mmap: bool | None = ...,
    ) -> tuple[Any, Any]: ...
    @overload
    def get(
        self,
        key: Any,
        default: Any = ...,
        read: bool = ...,
        *,
        expire_time: Literal[True],
        tag: Literal[True],
        retry: bool = ...,
        mmap: bool | None = ...,
    ) -> tuple[Any, float | None, Any]: ...
    @overload
    def get(
        self,
        key: Any,
        default: Any = ...,
        read: bool = ...,
        expire_time: bool = ...,
        tag: bool = ...,
        retry: bool = ...,
        *,
        mmap: bool | None = ...,
    ) -> Any: ...
    def get(  # noqa: C901 - the hot path, spelled out: a call more would cost a third of it
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
        *,
        mmap: bool | None = None,
    ) -> Any:
        """Return the value of `key`, or `default` if it is missing or expired.

        With `read` a value that is bytes comes as a binary file object, which the caller closes. With `expire_time` or
        `tag` the result is a tuple of the value and what was asked for. With `mmap` (default: the handle's) an array or
        table in a file of its own comes read-only on that file, unread and so unverified. Never waits for a writer.
        """
        try:
            entry = self._hot_get(key)
        except TypeError:  # an unhashable key; the cold path knows it by its stored bytes
            entry = None
        if entry is not None:
            slots, slot, stamp, expire, value, decode, visited, uses, header, _ = entry
            if (
                slots[slot] == stamp  # not written since: rule 2 of the coherence rules
                and (expire is None or expire > self._clock())
                and not (read or expire_time or tag)
            ):
                tracks = self._tracks
                if not tracks:
                    visited[0] = 1
                elif tracks == 1:  # RECENCY; from here on `_used`, without the call
                    tick = header[_TICK]
                    if visited[0] != tick:  # the mark is the same until somebody writes
                        visited[0] = tick
                        uses[slot] = 2 * tick + 1 & WORD
                elif tracks == 2:  # COUNTED
                    visited[0] = 1
                    if decode is None:
                        self._counters[0] += 1
                        return value
                    if decode is not absent:
                        self._counters[0] += 1
                elif tracks == 3:  # FREQUENCY
                    left = visited[0] - 1
                    if left > 0:
                        visited[0] = left
                    else:
                        note_often(visited, uses, slot)
                else:
                    visited[0] = 1
                    if decode is not absent:
                        self._used(uses, slot, header)
                if decode is None:
                    return value
                if decode is not absent:
                    return self._mapped(key, default) if mmap else decode(value)
                self._missed()
                return default
        return self._get_cold(key, default, read, expire_time, tag, mmap)

    def __getitem__(self, key: Any) -> Any:
        """Return the value of `key`; raise KeyError if it is missing or expired."""
        value = self.get(key, ENOVAL)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def read(self, key: Any, retry: bool = False) -> Any:
        """Return a binary file object over the value of `key`; raise KeyError if it is missing or expired."""
        handle = self.get(key, ENOVAL, read=True, retry=retry)
        if handle is ENOVAL:
            raise KeyError(key)
        return handle

    def __contains__(self, key: Any) -> bool:
        """Tell whether `key` has a live entry."""
        try:
            entry = self._hot_get(key)
        except TypeError:
            entry = None
        if entry is not None and entry[0][entry[1]] == entry[2] and (entry[3] is None or entry[3] > self._clock()):
            return entry[5] is not absent
        target = self._target(key)
        record = self._verified(target, target.store.read(target.h))
        return record is not None and self._is_live(record)

    def get_entry(self, key: Any, default: Any = None) -> Any:
        """Return an `Entry` (value, expire_time, tag, size in bytes) for `key`, or `default`."""
        target = self._target(key)
        stamp = target.store.slots[target.store.slot_of(target.h)]
        found = self._load_checked(target, target.store.read(target.h), False, stamp)
        if found is not None:
            value, record = found
            with self._distrusting(key):
                return Entry(value, record.expire, tag_of(record), record.size or len(record.payload))
        return default

    def get_many(self, keys_: Iterable[Any]) -> dict[Any, Any]:
        """Return a dictionary of the live entries among the keys; the rest is left out.

        Each entry is read atomically, not all of them together.
        """
        found: dict[Any, Any] = {}
        cold: dict[Store, list[tuple[Any, bytes, int, int]]] = {store: [] for store in self._shards.stores}
        for store in cold:
            store.ready()
        hot = bool(self._hot.entries)
        for key in keys_:
            value = self._hot_value(key) if hot else ENOVAL
            if value is ENOVAL:
                stored, h, store = self._locate(key)
                cold[store].append((key, stored, h, store.slots[h % store.slot_prime]))
            elif value is absent:
                self._missed()
            else:
                found[key] = value
        for store, wanted in cold.items():
            slots = store.slots
            blobs = store.read_many([h for _, _, h, _ in wanted])
            for key, stored, h, stamp in wanted:
                one = self._load(key, stored, h, store, False, (slots, stamp, blobs.get(h)))
                if one is not None:
                    found[key] = one[0]
                if self._tracks:
                    self._noted(one is not None, store, h)
        return found

    # -- writing --------------------------------------------------------------------------------------------------

    def set(
        self,
        key: Any,
        value: Any,
        expire: Expiry | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Store `value` under `key`, replacing what was there; return False if it can never fit the size limit.

        `expire`: seconds from now, None for never. `read`: `value` is a binary file object, read to its end. `tag`: for
        `evict`. Atomic. Raises Timeout, ExpiryError, KeyEncodeError, ValueEncodeError, DiskFull; nothing changes then.
        """
        stored, h, store = self._locate(key)
        expiry = None if expire is None else self._expiry(expire)
        try:
            encoded = store.disk.encode(value, read, key)
        except DiskFull:
            encoded = self._encode_again(store, value, read, key)
        try:
            row = self._row(key, stored, encoded, expiry, None if tag is None else keys.encode_tag(tag))
            if self._evicts and self._is_oversize(row):
                discard(store, encoded)
                return False
            entry = self._hot_get(key) if type(key) is str else None
            known = entry is not None and entry[0][entry[1]] == entry[2] and entry[5] is not absent
            stamp = store.upsert(h, stored, row, None if retry else self._timeout, known)
        except Timeout:
            discard(store, encoded)
            return self._timed_out(False)
        except BaseException:
            discard(store, encoded)
            raise
        self._keep_written(key, stored, h, store, stamp, expiry, value, encoded)
        return True

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store `value` under `key`; raise ValueTooLarge if it can never fit the size limit."""
        if not self.set(key, value, retry=True):
            raise ValueTooLarge(f"value of key {key!r} is larger than size_limit allows ({self._share} bytes)")

    def set_many(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        expire: Expiry | None = None,
        tag: Any = None,
        retry: bool = False,
    ) -> int:
        """Store all items and return how many were stored; those that can never fit the size limit are left out.

        Each batch of 1,000 per shard is atomic.
        """
        expiry = self._expiry(expire)
        encoded_tag = keys.encode_tag(tag)
        pairs = items.items() if isinstance(items, Mapping) else items
        stored = 0
        for batch in _batches(pairs, SET_MANY_BATCH):
            try:
                stored += self._set_batch(batch, expiry, encoded_tag, self._wait(retry))
            except Timeout as error:
                return self._timed_out(stored + getattr(error, "count", 0))
        return stored

    def _set_batch(
        self, pairs: list[tuple[Any, Any]], expiry: float | None, tag: bytes | None, wait: float | None
    ) -> int:
        rows: dict[Store, list[tuple[int, bytes, bytes | Row]]] = {}
        written: list[tuple[Store, Stored]] = []
        count = 0
        try:
            for key, value in pairs:
                stored_key, h, store = self._locate(key)
                try:
                    encoded = store.disk.encode(value, False, key)
                except DiskFull:
                    encoded = self._encode_again(store, value, False, key)
                written.append((store, encoded))
                row = self._row(key, stored_key, encoded, expiry, tag)
                if self._evicts and self._is_oversize(row):
                    discard(*written.pop())
                    continue
                rows.setdefault(store, []).append((h, stored_key, row))
            for store, wanted in rows.items():
                for attempt in store.attempts():
                    with attempt, store.transaction(wait):
                        store.upsert_many(wanted)
                written = [pair for pair in written if pair[0] is not store]
                count += len(wanted)
        except BaseException as error:
            for store, encoded in written:
                discard(store, encoded)
            error.count = count  # type: ignore[attr-defined]  # what other shards have stored by now
            raise
        return count

    def add(
        self,
        key: Any,
        value: Any,
        expire: Expiry | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> bool:
        """Store `value` if `key` has no live entry; return whether it was stored. Atomic; arguments as for `set`."""
        if not read and key in self:
            return False
        target = self._target(key)
        expiry = self._expiry(expire)
        try:
            encoded = target.store.disk.encode(value, read, key)
        except DiskFull:
            encoded = self._encode_again(target.store, value, read, key)
        added = False

        def decide(blob: bytes | None) -> Change:
            nonlocal added
            record = self._verified_here(target, blob)
            added = record is None or not self._is_live(record)
            return row if added else None

        try:
            row = self._row(key, target.stored, encoded, expiry, keys.encode_tag(tag))
            if not (self._evicts and self._is_oversize(row)):
                stamp = target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            discard(target.store, encoded)
            return self._timed_out(False)
        except BaseException:
            discard(target.store, encoded)
            raise
        if not added:
            discard(target.store, encoded)
            return False
        self._keep_written(key, target.stored, target.h, target.store, stamp, expiry, value, encoded)
        return True

    def incr(self, key: Any, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Add `delta` to the number under `key` and return the sum. Atomic; expiry and tag stay.

        A missing or expired key counts as `default`; with `default=None` it raises KeyError. Raises TypeError when the
        value is not a number.
        """
        stored, h, store = self._locate(key)
        result: Any = None
        expiry: float | None = None
        encoded: Stored = (MODE_RAW, b"", None, 0)

        def decide(blob: bytes | None) -> Change:
            nonlocal result, encoded, expiry
            found = self._current(key, stored, h, store, blob)
            expiry = tag = None
            if found is not None and found is not GONE:
                current, record = found
                if type(current) is not int and (
                    isinstance(current, bool) or not isinstance(current, int | float | complex)
                ):
                    raise TypeError(f"value of key {key!r} is a {type(current).__name__}, expected a number")
                result = current + delta
                if record is not None:
                    expiry, tag = record.expire, record.tag
            elif default is None:
                raise KeyError(key)
            else:
                result = default + delta
            if encoded[2] is not None:
                discard(store, encoded)  # of an attempt that failed
            encoded = store.disk.encode(result, False, key)
            return self._row(key, stored, encoded, expiry, tag)

        try:
            stamp = store.compute(h, stored, decide, None if retry else self._timeout)
        except Timeout:
            return self._timed_out(None)
        except BaseException:
            discard(store, encoded)  # an integer may be large enough for a file
            raise
        self._keep_written(key, stored, h, store, stamp, expiry, result, encoded)
        return result

    def decr(self, key: Any, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Subtract `delta` from the number under `key` and return the difference; otherwise like `incr`."""
        return self.incr(key, -delta, default, retry)

    def touch(self, key: Any, expire: Expiry | None = None, retry: bool = False) -> bool:
        """Give a live entry a new expiry (seconds from now, None for never); return whether there was one. Atomic."""
        target = self._target(key)
        expiry = self._expiry(expire)
        touched = False

        def decide(blob: bytes | None) -> Change:
            nonlocal touched
            touched = False  # this may be the second try, and the entry have been removed since the first
            record = self._verified_here(target, blob)
            if record is None or not self._is_live(record):
                return None
            touched = True
            mode, payload, _, tag, file, size, signed = record
            return Touch(expiry, self._repacked(target, Record(mode, payload, expiry, tag, file, size, signed)))

        try:
            target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            return self._timed_out(False)
        return touched

    @overload
    def pop(
        self,
        key: Any,
        default: Any = ...,
        expire_time: Literal[False] = ...,
        tag: Literal[False] = ...,
        retry: bool = ...,
    ) -> Any: ...
    @overload
    def pop(
        self, key: Any, default: Any = ..., *, expire_time: Literal[True], tag: Literal[False] = ..., retry: bool = ...
    ) -> tuple[Any, float | None]: ...
    @overload
    def pop(
        self, key: Any, default: Any = ..., expire_time: Literal[False] = ..., *, tag: Literal[True], retry: bool = ...
    ) -> tuple[Any, Any]: ...
    @overload
    def pop(
        self, key: Any, default: Any = ..., *, expire_time: Literal[True], tag: Literal[True], retry: bool = ...
    ) -> tuple[Any, float | None, Any]: ...
    @overload
    def pop(self, key: Any, default: Any = ..., expire_time: bool = ..., tag: bool = ..., retry: bool = ...) -> Any: ...
    def pop(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """Remove the entry of `key` and return its value, or `default` if it is missing or expired. Atomic.

        With `expire_time` or `tag` the result is a tuple, as for `get`.
        """
        target = self._target(key)
        missing = (default, *([None] * (expire_time + tag))) if expire_time or tag else default
        result = missing

        def decide(blob: bytes | None) -> Change:
            nonlocal result
            result = missing  # this may be the second try, and the entry have been popped since the first
            found = self._current(*target, blob)
            if found is None:
                return None
            if found is GONE:
                return REMOVE  # so that it does not come back when the clock is set back
            with self._distrusting(key):
                result = with_metadata(*found, expire_time, tag)
                return REMOVE
            return None

        try:
            target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            return self._timed_out(missing)
        return result

    def delete(self, key: Any, retry: bool = False) -> bool:
        """Remove the entry of `key`; return whether there was a live one. Atomic."""
        stored, h, store = self._locate(key)
        try:
            stamp = store.remove(h, stored, None if retry else self._timeout)
        except Timeout:
            return self._timed_out(False)
        if stamp > 1 and self._hot.limit:
            self._keep(key, stored, store, h % store.slot_prime, stamp, None, (None, absent), 0)
        return stamp > 0

    def __delitem__(self, key: Any, retry: bool = True) -> None:
        """Remove the entry of `key`; raise KeyError if there is no live one."""
        if not self.delete(key, retry=retry):
            raise KeyError(key)

    def delete_many(self, keys_: Iterable[Any], retry: bool = False) -> int:
        """Remove the entries of the keys and return how many there were.

        Each batch of 1,000 per shard is atomic; on a full disk, where a batch does not fit, each entry is.
        """
        removed = 0
        wait = self._wait(retry)
        for batch in _batches(keys_, SET_MANY_BATCH):
            groups: dict[Store, list[Target]] = {}
            for key in batch:
                target = self._target(key)
                groups.setdefault(target.store, []).append(target)
            try:
                for store, targets in groups.items():
                    removed += _remove_all(store, targets, wait)
            except Timeout:
                return self._timed_out(removed)
        return removed

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in order of insertion, the expired ones among them; entries added meanwhile are left out."""
        return self._iterate(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        """Yield the keys from the newest to the oldest, otherwise like iteration."""
        return self._iterate(reverse=True)

    def _iterate(self, reverse: bool) -> Iterator[Any]:
        stores = self._shards.stores
        scans = [(store, store.scan(reverse)) for store in (reversed(stores) if reverse else stores)]
        for store, scan in scans:
            for h, stored, spelling in scan:
                try:
                    self._check_place(h, stored)
                    yield store.disk.user_key(stored, spelling)
                except DecodeError as error:
                    self._distrust(error, stored)

    def iterkeys(self, reverse: bool = False) -> Iterator[Any]:
        """Yield the keys in sorted order: numbers, then text, then bytes, then the rest.

        Holds all keys in memory while it runs.
        """
        yield from sorted(self._iterate(reverse=False), key=keys.sort_token, reverse=reverse)

    def __len__(self) -> int:
        """Return the number of entries, the expired ones that were not removed yet among them."""
        return sum(store.count() for store in self._shards.stores)

    # -- many entries at once -------------------------------------------------------------------------------------

    def _remove_from_all(self, remove: Callable[[Store], int]) -> int:
        removed = 0
        for store in self._shards.stores:
            try:
                removed += remove(store)
            except Timeout as error:
                error.args = (removed + getattr(error, "count", 0),)
                return self._timed_out(removed)
        return removed

    def clear(self, retry: bool = False) -> int:
        """Remove every entry and return how many there were. Goes in batches; a Timeout carries the count so far."""
        removed = self._remove_from_all(lambda store: store.remove_selected("any", (), self._wait_for_all(retry)))
        self._hot.clear()
        return removed

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Remove every entry with this tag and return how many there were; in batches, like `clear`."""
        column = self._tag_column(keys.encode_tag(tag))
        if column is None:
            return 0
        wait = self._wait_for_all(retry)
        return self._remove_from_all(lambda store: store.remove_selected("tagged", (column,), wait))

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Remove every entry that is expired at `now` (default: the present) and return how many; in batches."""
        moment: Any = self._clock() if now is None else now
        if isinstance(moment, bool) or not isinstance(moment, int | float) or not abs(moment) <= MOMENTS:
            raise ExpiryError(f"now is {now!r}, expected seconds since 1970 or None")
        wait = self._wait_for_all(retry)
        return self._remove_from_all(lambda store: store.remove_selected("expired", (moment,), wait))

    def cull(self, retry: bool = False) -> int:
        """Remove expired entries, then live ones by policy until the size limit holds; return how many went."""
        return self._remove_from_all(lambda store: store.cull(self._wait_for_all(retry)))

    def transact(self, retry: bool = False) -> contextlib.AbstractContextManager[None]:
        """Make the body one transaction: other tasks see all of its writes or none, and wait to write.

        Nested, the inner one is rolled back alone. It belongs to the task that opened it. Over several shards it is all
        or nothing as well, also if the process is killed, but for readers, who never wait: they may meet one part
        before another. Raises Timeout, TransactionError.
        """
        return self._shards.transaction(self._wait(retry))

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: Expiry | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
        *,
        key: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, R]], memoizing.Memoized[P, R]]:
        """Return a decorator that caches a function's results; see `diskcache_like.memoize`."""
        return memoizing.memoize(self, name, typed, expire, tag, ignore, key)

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def check(self, fix: bool = False, retry: bool = False) -> list[Any]:
        """Compare database, value files and totals, and return a list of warnings; with `fix`, mend what is wrong.

        Runs no stored code and touches no file outside the directory. It may run beside writers: the file of a large
        value whose entry is not committed yet is reported as an unknown one, and with `fix` that write stores nothing
        and raises StorageError; it may be tried again.
        """
        problems: list[Any] = []
        for store in self._shards.stores:
            problems += check_whole(store, self._check_record, fix, self._wait(retry))
        return problems

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Return (hits, misses) of all processes that flushed theirs, and switch statistics on or off.

        A process adds its counts with its next write, at its own `stats` and on closing.
        """
        hits = misses = 0
        for store in self._shards.stores:
            for attempt in store.attempts():
                with attempt, store.locked(self._timeout):
                    if store is self._shards.stores[0]:
                        self._flush_counts(store)
                    one, other = store.counters(reset)
                    hits, misses = hits + one, misses + other
        self.reset("statistics", int(enable))
        return hits, misses

    def volume(self) -> int:
        """Return the bytes in use on disk: database pages that hold something, and value files."""
        return sum(store.volume() for store in self._shards.stores)

    def rotate(self, new_secret: bytes | str, progress: Callable[[int, int], object] | None = None) -> None:
        """Give an encrypted cache another secret, and seal every entry anew with another key.

        Others may go on using it: those with the old secret until this is done. If it is interrupted, either secret
        opens the cache, and to call it again goes on. `progress(done, total)` is called after each 100 entries. Waits
        for the write lock without limit. Raises SettingError for a cache that is not encrypted.
        """
        rotation.rotate(self, new_secret, progress)

    def train(self, size: int = 64 << 10, retry: bool = False) -> Training:
        """Make a compression dictionary of about `size` bytes from the entries there are, for those written later.

        For compressor='zstd'. Older dictionaries stay until no entry needs them. Reads every entry once.
        Raises TrainingError where there are too few entries.
        """
        return train(list(self._dictionaries.values()), self._records, size, self._wait_for_all(retry))

    def create_tag_index(self) -> None:
        """Make the index that lets `evict` find a tag without reading every entry."""
        for store in self._shards.stores:
            store.index_tags(True, None)
        self.reset("tag_index", 1)

    def drop_tag_index(self) -> None:
        """Drop the tag index; `evict` goes on working, by reading every entry."""
        for store in self._shards.stores:
            store.index_tags(False, None)
        self.reset("tag_index", 0)

    def reset(self, key: str, value: Any = ENOVAL, update: bool = True) -> Any:
        """Return a setting as stored, or store `value` for it; with `update=False` change this handle only."""
        if key not in DEFAULT_SETTINGS and key not in OPTIONAL_SETTINGS and not str(key).startswith("disk_"):
            raise SettingError(f"unknown setting {key!r}, expected one of {', '.join(DEFAULT_SETTINGS)} or disk_*")
        first = self._shards.stores[0]
        if value is ENOVAL:
            value, update = first.stored_setting(key), False
        else:
            new_disk(type(self._disk), self._directory, {**first.settings, key: checked(key, value)})
            self._codec_of(first, {key: checked(key, value)})  # raises for a level that the compressor does not have
        changed = checked_all({key: value})  # durability and sqlite_synchronous go together
        for name, effective in changed.items():
            if update or effective != first.settings.get(name):
                for store in self._shards.stores:
                    store.change_setting(name, effective, update, None, self._apply)
            self._apply(name, effective)
        return changed[key]

    def close(self) -> None:
        """Close every file; the next operation opens them again."""
        self._hot.clear()
        self._shards.close(max(self._timeout, 1.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What ended the body is not hidden by what could not be closed, which goes with the handle's last reference.
        with contextlib.suppress(*(() if kind is None else (CacheError,))):
            self.close()

    def __reduce__(self) -> Any:
        # The secret is left out: a pickle is not the place for it. Give it in DISKCACHE_LIKE_SECRET, or open anew.
        return _unopened, (type(self), {**self._given, **self._options.to_pass_on()}), self.__getstate__()

    def __getstate__(self) -> Any:
        """Return the positional arguments to make a handle like this one; a subclass may add those of its own."""
        return (self.directory, self.timeout, type(self.disk))

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]  # so that a subclass gets what it added

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"


def _unopened(kind: type[Cache], options: dict[str, Any]) -> Cache:
    """Return a handle that opens with these settings and options when its state is set."""
    cache = kind.__new__(kind)
    cache._unpickled = options
    return cache


def _remove_all(store: Store, targets: Sequence[Target], wait: float | None) -> int:
    """Remove what is there of `targets`, which live in `store`, and return how many there were."""
    removed = 0
    try:
        for attempt in store.attempts():
            with attempt, store.transaction(wait):
                removed = sum(store.remove(target.h, target.stored, wait) > 0 for target in targets)
    except DiskFull:
        # A single removal unlinks the value file first, and so makes the room that the next one needs.
        removed = sum(store.remove(target.h, target.stored, wait) > 0 for target in targets)
    return removed


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
