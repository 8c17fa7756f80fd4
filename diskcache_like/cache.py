"""Cache: every operation of the API, spelled once.

An operation encodes its key, asks the shards for the key's store, and is a decision on top of what a store offers.
Reads go to the hot layer first: an entry counts there only while its slot still has the generation it was read at
(docs/design.md, "Coherence").
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Self, TypeVar
from zlib import crc32

from . import codecs, files, keys, signing
from . import memoize as memoizing
from .coherence.generations import Header
from .coherence.words import Words, choose_implementation
from .disk import KEEP_NOT, UNKNOWN, Constant, Disk, Loaded, Stored
from .errors import (
    DecodeError,
    ExpiryError,
    SettingError,
    SignatureError,
    SignatureWarning,
    Timeout,
    ValueTooLarge,
)
from .hot import OVERHEAD, HotLayer
from .metrics import Metrics
from .policies import policy_named
from .record import MODE_PICKLE, MODE_RAW, RESIDUE, SIMPLE, SIMPLE_HEAD, Record, pack, unpack
from .settings import DEFAULT_SETTINGS, checked, checked_all
from .storage import room
from .storage.check import check_store
from .storage.opening import Config
from .storage.shards import Shards, ensure_directory
from .storage.store import REMOVE, Change, Row, Store, Touch

ENOVAL = Constant("ENOVAL")
QUEUE_START = 500_000_000_000_000  # number of the first entry of a queue; it grows both ways from there
SET_MANY_BATCH = 1000  # entries per transaction of set_many and delete_many
ATTEMPTS = 100  # times that a row is read again because its value file went away in between
_TICK = Header.TICK
_number = int.from_bytes
_SELF_SPELLED = frozenset({str, bytes, int})  # exact types that are their own spelling, hot key, and immutable value
_STORED = Constant("stored")  # marks hot keys that are stored bytes, for keys that cannot be dictionary keys

Side = Literal["back", "front"]
T = TypeVar("T")


class Entry(NamedTuple):
    """What `get_entry` returns: a value with its metadata."""

    value: Any
    expire_time: float | None
    tag: Any
    size: int


class _Target(NamedTuple):
    """Where a key lives."""

    key: Any
    stored: bytes
    h: int
    store: Store


class Cache:
    """A persistent cache in a directory, shared by threads and processes.

    Behaves like a dictionary; keys that are equal are one entry. Values come back equal and of the same type. Every
    operation is atomic. One that writes waits up to `timeout` seconds for the write lock and then raises Timeout;
    with `retry=True` it waits without limit. Reads never wait for writers.

    `directory`: made if missing, a temporary one if None. `disk`: how keys and values are stored. `settings`: see
    `DEFAULT_SETTINGS`; stored when the cache is made, this handle's afterwards. `pickle`: 'signed', 'never' or
    'trusted', for values that are not plain data. `secret`: authenticates every entry (bytes or text, 16 or more).
    `strict`: raise for entries that fail authentication or are damaged instead of treating them as missing. `shared`:
    accept a directory that others can write. `coherence`: 'auto', 'python' or 'native'. `clock`: seconds since 1970.

    Raises DirectoryError, UnsafeDirectory, ForeignDatabase, DiskCacheDirectory, NewerFormat, SettingError, SecretError.
    """

    _SHARDS = 1
    _RECOVER = True  # a corrupt database is set aside and the cache goes on empty

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        *,
        pickle: str | None = None,
        secret: bytes | str | None = None,
        strict: bool = False,
        shared: bool = False,
        coherence: str | None = None,
        generation_slots: int = 1 << 16,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self._open(
            directory, self._SHARDS, timeout, disk, pickle, secret, strict, shared, coherence, generation_slots, clock, settings
        )

    def _open(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        pickle: str | None,
        secret: bytes | str | None,
        strict: bool,
        shared: bool,
        coherence: str | None,
        generation_slots: int,
        clock: Callable[[], float],
        settings: dict[str, Any],
    ) -> None:
        if not (isinstance(disk, type) and issubclass(disk, Disk)):
            raise SettingError(f"disk is {disk!r}, expected Disk or a subclass of it")
        if directory is None:
            directory = tempfile.mkdtemp(prefix="diskcache-")
        self._directory = os.path.abspath(os.path.expandvars(os.path.expanduser(os.fspath(directory))))
        self._timeout = timeout
        self._clock = clock
        self._strict = strict
        self._warned = False
        self._marks = 0  # 1: note recency, 2: note frequency with each hit
        self._counts = False  # count hits and misses
        self._tracks = False  # either of the two
        self.metrics = Metrics()
        given = checked_all(settings)
        self._options = {
            **given,
            "pickle": pickle, "strict": strict, "shared": shared, "coherence": coherence,
            "generation_slots": generation_slots,
        }  # fmt: skip
        self._pickle_policy = signing.resolve_pickle_policy(pickle)
        self._secret = signing.load_secret(secret, os.environ)
        self._signs_all = self._secret.explicit
        identity = {"key_check": self._secret.signer.key_check()} if self._signs_all else {}
        self._implementation = choose_implementation(coherence)
        config = Config(
            given, identity, timeout, clock, self._implementation, generation_slots, self._RECOVER, shared=shared
        )
        ensure_directory(self._directory, shared)
        self._shards = Shards(self._directory, shards, config, disk)
        self._config = config
        self._modulus = self._shards.modulus
        self._one = self._shards.stores[0] if len(self._shards.stores) == 1 else None
        for store in self._shards.stores:
            self._configure(store.disk)
        self._disk = self._shards.stores[0].disk
        self._reads_simple = not self._signs_all and self._disk.plain_values
        self._stored_key = self._disk.stored_key
        effective = self._shards.stores[0].settings
        self._hot = HotLayer(0 if self._implementation == "off" else effective["hot_size_limit"])
        self._hot_get = self._hot.entries.get
        self._hot_put = self._hot.put
        for name, value in effective.items():
            self._apply(name, value)
        self._finalizer = weakref.finalize(self, _finish, self._shards)

    def _configure(self, disk: Disk) -> None:
        disk.pickle_policy = self._pickle_policy
        disk.signer = self._signer
        disk.authenticates = self._signs_all
        disk.sync = self._shards.stores[0].settings["durability"] == "power"

    def _signer(self) -> signing.Signer:
        return self._secret.signer

    # -- where a key lives, and what its record says --------------------------------------------------------------

    @property
    def directory(self) -> str:
        """Return the absolute path of the cache directory."""
        return self._directory

    @property
    def timeout(self) -> float:
        """Return the seconds that an operation waits for the write lock."""
        return self._timeout

    @property
    def disk(self) -> Disk:
        """Return the object that encodes keys and values."""
        return self._disk

    def _locate(self, key: Any) -> tuple[bytes, int, Store]:
        """Return the stored key, its hash and the store it lives in."""
        stored = self._stored_key(key)
        if len(stored) <= keys.SHORT:  # key_hash, without the call
            h = (_number(stored, "big") % self._modulus) << 2
        else:
            h = keys.key_hash(stored, self._modulus)
        if self._one is not None:
            return stored, h, self._one
        if isinstance(key, keys.QueueKey | keys.PrefixedQueueKey):
            return stored, h, self._queue_store(key.prefix)
        return stored, h, self._shards.of(h)

    def _target(self, key: Any) -> _Target:
        return _Target(key, *self._locate(key))

    def _queue_store(self, prefix: str | None) -> Store:
        """Return the store of a queue; all its entries share one, so that their order is one index."""
        return self._shards.of(keys.key_hash(keys.encode_key(prefix), self._modulus))

    def _wait(self, retry: bool) -> float | None:
        return None if retry else self._timeout

    def _timed_out(self, answer: T) -> T:
        """Decide what a Timeout becomes: here it is raised. Call in an except block only."""
        raise  # noqa: PLE0704

    def _verified(self, target: _Target, blob: bytes | None) -> Record | None:
        """Return the live-or-expired record of the key in `blob`, or None for a missing or untrustworthy one."""
        key, stored, h, store = target
        if blob is None:
            if not store.displaced:
                return None
            blob = store.find(h, stored)
            if blob is None:
                return None
        try:
            try:
                return unpack(stored, blob, self._verifier(blob), self._signs_all)
            except DecodeError:
                # Either damage, or the row belongs to another key with the same hash.
                again = store.find(h, stored)
                if again is None:
                    return None
                return unpack(stored, again, self._verifier(again), self._signs_all)
        except DecodeError as error:
            self._distrust(error, key)
            return None

    def _verifier(self, blob: bytes) -> signing.Signer | None:
        """Return the signer if the record says that it is signed; the per-user secret is not made for any other."""
        return self._secret.signer if self._signs_all or (len(blob) > 2 and blob[0] == 2 and blob[1] & 1) else None

    def _distrust(self, error: DecodeError, key: Any) -> None:
        """Count an entry that cannot be trusted; raise in strict mode, else it reads as missing."""
        if isinstance(error, SignatureError):
            self.metrics.unauthenticated += 1
            if not self._warned and not self._strict:
                self._warned = True
                message = f"{self._directory!r}: key {key!r}: {error}; such entries read as missing (said once)"
                warnings.warn(message, SignatureWarning, stacklevel=4)
        else:
            self.metrics.damaged += 1
        if self._strict:
            raise type(error)(f"{self._directory!r}: key {key!r}: {error}") from error

    def _pack(self, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> bytes:
        mode, payload, file, size = encoded
        record = Record(mode, payload, expire, tag, file, size)
        signed = self._signs_all or (mode == MODE_PICKLE and self._pickle_policy == "signed")
        return pack(stored, record, self._secret.signer if signed else None)

    def _row(
        self, key: Any, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None
    ) -> bytes | Row:
        """Return what the store writes: the record alone where the row has nothing else."""
        mode, payload, file, size = encoded
        spelling = None if type(key) in _SELF_SPELLED else self._disk.spelling(key, stored)
        if expire is None and tag is None and file is None and mode == MODE_RAW and not self._signs_all:
            body = SIMPLE_HEAD + payload
            blob = body + crc32(body, crc32(stored)).to_bytes(4, "little")
            return blob if spelling is None else Row(blob, spelling=spelling)
        blob = self._pack(stored, encoded, expire, tag)
        return Row(blob, expire, tag, size, None if file is None else files.to_column(file), spelling)

    def _expiry(self, expire: Any) -> float | None:
        """Return the absolute expiry for `expire` seconds (or a timedelta) from now; None means never."""
        if expire is None:
            return None
        seconds = expire.total_seconds() if isinstance(expire, timedelta) else expire
        try:
            seconds = float(seconds)
        except (TypeError, ValueError, OverflowError):
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now or None") from None
        if math.isnan(seconds) or seconds < 0:
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now, 0 or more")
        return None if math.isinf(seconds) else self._clock() + seconds

    def _is_live(self, record: Record) -> bool:
        return record.expire is None or record.expire > self._clock()

    # -- the hot layer --------------------------------------------------------------------------------------------

    def _keep(
        self,
        key: Any,
        stored: bytes,
        store: Store,
        slot: int,
        stamp: int,
        expire: float | None,
        loaded: tuple[Any, Callable[[Any], Any] | None],
        size: int,
    ) -> None:
        """Put a value into the hot layer under the generation that it was read or written at."""
        value, decode = loaded
        cost = (OVERHEAD + len(stored) + size) | 63  # rounded, so that an entry often replaces one of equal cost
        self._hot_put(
            key if type(key) in _SELF_SPELLED or keys.is_direct(key) else (_STORED, stored),
            (store.slots, slot, stamp, expire, value, decode, [False], store.uses, store.header, cost),
        )

    def _hot_value(self, key: Any) -> Any:
        """Return the value of the key's valid, live hot entry, or ENOVAL."""
        try:
            entry = self._hot_get(key)
        except TypeError:
            return ENOVAL
        if entry is None:
            return ENOVAL
        slots, slot, stamp, expire, value, decode, visited, uses, header, _ = entry
        if slots[slot] != stamp or not (expire is None or expire > self._clock()):
            return ENOVAL
        visited[0] = True
        self._used(uses, slot, header)
        return value if decode is None else decode(value)

    def _used(self, uses: Words, slot: int, header: Words) -> None:
        """Note a hit: for LRU the write counter, for LFU one more, without a lock (see GenerationFile.uses)."""
        if self._marks == 1:
            uses[slot] = header[_TICK]
        elif self._marks:
            uses[slot] += 1
        if self._counts:
            self.metrics.hits += 1

    # -- reading --------------------------------------------------------------------------------------------------

    def get(
        self,
        key: Any,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
    ) -> Any:
        """Return the value of `key`, or `default` if it is missing or expired.

        With `read` a value that is bytes comes as a binary file object, which the caller closes. With `expire_time` or
        `tag` the result is a tuple of the value and what was asked for. Never waits for a writer.
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
                visited[0] = True
                if self._tracks:
                    self._used(uses, slot, header)
                return value if decode is None else decode(value)
        return self._get_cold(key, default, read, expire_time, tag)

    def _get_cold(self, key: Any, default: Any, read: bool, expire_time: bool, tag: bool) -> Any:
        stored, h, store = self._locate(key)
        plain = not (read or expire_time or tag)
        if plain and type(key) not in _SELF_SPELLED and not keys.is_direct(key):
            value = self._hot_value((_STORED, stored))
            if value is not ENOVAL:
                return value
        found = self._load(key, stored, h, store, read)
        if self._tracks:
            if found is not None:
                self._used(store.uses, h % store.slot_prime, store.header)
            elif self._counts:
                self.metrics.misses += 1
        if plain:
            return default if found is None else found[0]
        if found is None:
            return (default, *([None] * (expire_time + tag))) if expire_time or tag else default
        return _with_metadata(found[0], found[1], expire_time, tag)

    def _load(
        self, key: Any, stored: bytes, h: int, store: Store, read: bool = False
    ) -> tuple[Any, Record | None] | None:
        """Return the value and record of a live entry from the database, keeping it hot if nothing changed meanwhile.

        The record is None for a simple one, which has no metadata.
        """
        slots = store.slots
        slot = h % store.slot_prime
        stamp = slots[slot]
        blob = store.read(h)
        if blob is None and not store.displaced:
            return None
        if not (
            blob is not None
            and blob[0] == SIMPLE
            and self._reads_simple
            and not read
            and crc32(blob, crc32(stored)) == RESIDUE
        ):
            return self._load_checked(_Target(key, stored, h, store), blob, read, stamp)
        try:
            loaded = store.disk.load_payload(blob[1:-4])
        except DecodeError as error:
            return self._distrust(error, key)
        value, kept, decode = loaded
        # Rule 3: kept only if no write to the slot was under way before the SELECT or came since.
        if not stamp & 1 and slots[slot] == stamp and self._hot.limit:
            self._keep(key, stored, store, slot, stamp, None, (kept, decode), len(blob))
        return value, None

    def _load_checked(
        self, target: _Target, blob: bytes | None, read: bool, stamp: int
    ) -> tuple[Any, Record] | None:
        """Do what `_load` does for a record of any kind.

        A value file that went away between the row and the open belongs to an older row: the row is read again.
        """
        key, stored, h, store = target
        slot = h % store.slot_prime
        for _ in range(ATTEMPTS):
            record = self._verified(target, blob)
            if record is None or not self._is_live(record):
                return None
            try:
                value, kept, decode = store.disk.load(record, read)
            except FileNotFoundError:
                slots = store.slots
                if slots[slot] == stamp and not stamp & 1:
                    break
                stamp = slots[slot]
                blob = store.read(h)
                continue
            except DecodeError as error:
                return self._distrust(error, key)
            if not stamp & 1 and store.slots[slot] == stamp and not read and self._hot.limit and kept is not KEEP_NOT:
                size = record.size or len(record.payload)
                self._keep(key, stored, store, slot, stamp, record.expire, (kept, decode), size)
            return value, record
        self.metrics.missing_files += 1
        return None

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
            return True
        target = self._target(key)
        record = self._verified(target, target.store.read(target.h))
        return record is not None and self._is_live(record)

    def get_entry(self, key: Any, default: Any = None) -> Any:
        """Return an `Entry` (value, expire_time, tag, size in bytes) for `key`, or `default`."""
        target = self._target(key)
        stamp = target.store.slots[target.store.slot_of(target.h)]
        found = self._load_checked(target, target.store.read(target.h), False, stamp)
        if found is None:
            return default
        value, record = found
        return Entry(value, record.expire, _tag_of(record), record.size or len(record.payload))

    def get_many(self, keys_: Iterable[Any]) -> dict[Any, Any]:
        """Return a dictionary of the live entries among the keys; the rest is left out.

        Each entry is read atomically, not all of them together.
        """
        found: dict[Any, Any] = {}
        cold: dict[Store, list[tuple[_Target, int]]] = {}
        for key in keys_:
            value = self._hot_value(key)
            if value is not ENOVAL:
                found[key] = value
                continue
            target = self._target(key)
            target.store.ready()
            cold.setdefault(target.store, []).append((target, target.store.slots[target.store.slot_of(target.h)]))
        for store, wanted in cold.items():
            blobs = store.read_many([target.h for target, _ in wanted])
            for target, stamp in wanted:
                one = self._load_checked(target, blobs.get(target.h), False, stamp)
                if one is not None:
                    found[target.key] = one[0]
        return found

    # -- writing --------------------------------------------------------------------------------------------------

    def set(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """Store `value` under `key`, replacing what was there; return False if it can never fit the size limit.

        `expire`: seconds from now, None for never. `read`: `value` is a binary file object, read to its end. `tag`: for
        `evict`. Atomic. Raises Timeout, ExpiryError, KeyEncodeError, ValueEncodeError, DiskFull; nothing is changed then.
        """
        stored, h, store = self._locate(key)
        expiry = None if expire is None else self._expiry(expire)
        encoded = store.disk.encode(value, read, key)
        try:
            row = self._row(key, stored, encoded, expiry, None if tag is None else keys.encode_tag(tag))
            if self._evicts and self._is_oversize(row):
                _discard(store, encoded)
                return False
            stamp = store.upsert(h, stored, row, None if retry else self._timeout)
        except Timeout:
            _discard(store, encoded)
            return self._timed_out(False)
        except BaseException:
            _discard(store, encoded)
            raise
        self._keep_written(key, stored, h, store, stamp, expiry, value, encoded)
        return True

    def _keep_written(
        self, key: Any, stored: bytes, h: int, store: Store, stamp: int, expiry: float | None, value: Any, encoded: Stored
    ) -> None:
        """Keep hot what was just written, as the value itself if immutable and as payload if not."""
        mode, payload, file, _ = encoded
        if stamp & 1 or file is not None or not self._hot.limit:
            return
        decode = None
        if type(value) not in _SELF_SPELLED and not codecs.is_immutable(value):
            if mode != MODE_RAW or not store.disk.plain_values:
                return
            value, decode = payload, codecs.decode_value
        cost = (OVERHEAD + len(stored) + len(payload)) | 63
        entry = (store.slots, h % store.slot_prime, stamp, expiry, value, decode, [False], store.uses, store.header, cost)
        self._hot_put(key if type(key) in _SELF_SPELLED or keys.is_direct(key) else (_STORED, stored), entry)

    def _is_oversize(self, row: bytes | Row) -> bool:
        """Tell whether the value alone would exceed the size limit of its shard."""
        return (len(row) if isinstance(row, bytes) else len(row.v) + row.size) > self._share

    def __setitem__(self, key: Any, value: Any) -> None:
        """Store `value` under `key`; raise ValueTooLarge if it can never fit the size limit."""
        if not self.set(key, value, retry=True):
            raise ValueTooLarge(f"value of key {key!r} is larger than size_limit allows ({self._share} bytes)")

    def set_many(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]], expire: float | None = None, tag: Any = None, retry: bool = False) -> int:
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
            except Timeout:
                return self._timed_out(stored)
        return stored

    def _set_batch(self, pairs: list[tuple[Any, Any]], expiry: float | None, tag: bytes | None, wait: float | None) -> int:
        rows: dict[Store, list[tuple[_Target, bytes | Row]]] = {}
        written: list[tuple[Store, Stored]] = []
        count = 0
        try:
            for key, value in pairs:
                target = self._target(key)
                encoded = target.store.disk.encode(value, False, key)
                written.append((target.store, encoded))
                row = self._row(key, target.stored, encoded, expiry, tag)
                if self._evicts and self._is_oversize(row):
                    _discard(*written.pop())
                    continue
                rows.setdefault(target.store, []).append((target, row))
            for store, wanted in rows.items():
                with store.transaction(wait):
                    for target, row in wanted:
                        store.upsert(target.h, target.stored, row, wait)
                written = [pair for pair in written if pair[0] is not store]
                count += len(wanted)
        except BaseException:
            for store, encoded in written:
                _discard(store, encoded)
            raise
        return count

    def add(
        self, key: Any, value: Any, expire: float | None = None, read: bool = False, tag: Any = None, retry: bool = False
    ) -> bool:
        """Store `value` only if `key` has no live entry; return whether it was stored. Atomic; arguments as for `set`."""
        if not read and key in self:
            return False
        target = self._target(key)
        expiry = self._expiry(expire)
        encoded = target.store.disk.encode(value, read, key)
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
            _discard(target.store, encoded)
            return self._timed_out(False)
        except BaseException:
            _discard(target.store, encoded)
            raise
        if not added:
            _discard(target.store, encoded)
            return False
        self._keep_written(key, target.stored, target.h, target.store, stamp, expiry, value, encoded)
        return True

    def _verified_here(self, target: _Target, blob: bytes | None) -> Record | None:
        """Return the record for a `decide` function: the row is known to be the key's, so only damage can be wrong."""
        if blob is None:
            return None
        try:
            return unpack(target.stored, blob, self._verifier(blob), self._signs_all)
        except DecodeError as error:
            self._distrust(error, target.key)
            return None

    def incr(self, key: Any, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Add `delta` to the number under `key` and return the sum. Atomic; expiry and tag stay.

        A missing or expired key counts as `default`; with `default=None` it raises KeyError. Raises TypeError when the
        value is not a number.
        """
        target = self._target(key)
        result: Any = None
        expiry: float | None = None
        encoded: Stored = (MODE_RAW, b"", None, 0)

        def decide(blob: bytes | None) -> Change:
            nonlocal result, encoded, expiry
            record = self._verified_here(target, blob)
            tag = None
            if record is not None and self._is_live(record):
                current = target.store.disk.load(record, False)[0]
                if isinstance(current, bool) or not isinstance(current, int | float | complex):
                    raise TypeError(f"value of key {key!r} is a {type(current).__name__}, expected a number")
                result, expiry, tag = current + delta, record.expire, record.tag
            elif default is None:
                raise KeyError(key)
            else:
                result = default + delta
            encoded = target.store.disk.encode(result, False, key)
            return self._row(key, target.stored, encoded, expiry, tag)

        try:
            stamp = target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            return self._timed_out(None)
        self._keep_written(key, target.stored, target.h, target.store, stamp, expiry, result, encoded)
        return result

    def decr(self, key: Any, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Subtract `delta` from the number under `key` and return the difference; otherwise like `incr`."""
        return self.incr(key, -delta, default, retry)

    def touch(self, key: Any, expire: float | None = None, retry: bool = False) -> bool:
        """Give a live entry a new expiry (seconds from now, None for never); return whether there was one. Atomic."""
        target = self._target(key)
        expiry = self._expiry(expire)
        touched = False

        def decide(blob: bytes | None) -> Change:
            nonlocal touched
            record = self._verified_here(target, blob)
            if record is None or not self._is_live(record):
                return None
            touched = True
            signer = self._secret.signer if record.signed else None
            return Touch(expiry, pack(target.stored, record._replace(expire=expiry), signer))

        try:
            target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            return self._timed_out(False)
        return touched

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
            record = self._verified_here(target, blob)
            if record is None or not self._is_live(record):
                return None
            found = self._loaded_here(target, record)
            if found is None:
                return None
            result = _with_metadata(found[0], record, expire_time, tag)
            return REMOVE

        try:
            target.store.compute(target.h, target.stored, decide, self._wait(retry))
        except Timeout:
            return self._timed_out(missing)
        return result

    def _loaded_here(self, target: _Target, record: Record) -> Loaded | None:
        """Return the value of a record read under the write lock: its file cannot be replaced meanwhile."""
        try:
            return target.store.disk.load(record, False)
        except FileNotFoundError:
            self.metrics.missing_files += 1
        except DecodeError as error:
            self._distrust(error, target.key)
        return None

    def delete(self, key: Any, retry: bool = False) -> bool:
        """Remove the entry of `key`; return whether there was a live one. Atomic."""
        stored, h, store = self._locate(key)
        try:
            return store.remove(h, stored, None if retry else self._timeout)
        except Timeout:
            return self._timed_out(False)

    def __delitem__(self, key: Any, retry: bool = True) -> None:
        """Remove the entry of `key`; raise KeyError if there is no live one."""
        if not self.delete(key, retry=retry):
            raise KeyError(key)

    def delete_many(self, keys_: Iterable[Any], retry: bool = False) -> int:
        """Remove the entries of the keys and return how many there were. Each batch of 1,000 per shard is atomic."""
        removed = 0
        wait = self._wait(retry)
        for batch in _batches(keys_, SET_MANY_BATCH):
            groups: dict[Store, list[_Target]] = {}
            for key in batch:
                target = self._target(key)
                groups.setdefault(target.store, []).append(target)
            try:
                for store, targets in groups.items():
                    with store.transaction(wait):
                        removed += sum(store.remove(target.h, target.stored, wait) for target in targets)
            except Timeout:
                return self._timed_out(removed)
        return removed

    # -- queues ---------------------------------------------------------------------------------------------------

    def push(
        self,
        value: Any,
        prefix: str | None = None,
        side: Side = "back",
        expire: float | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
    ) -> Any:
        """Append `value` to one side of the queue called `prefix` and return its key. Atomic.

        Queue keys are equal to no key of the user's. Returns None where a Timeout is not raised (FanoutCache).
        """
        store = self._queue_store(prefix)
        queue = keys.encode_key(prefix)
        expiry = self._expiry(expire)
        encoded = store.disk.encode(value, read, UNKNOWN)
        last = _is_back(side)
        try:
            with store.transaction(self._wait(retry)):
                found = store.queue_end(queue, last)
                number = QUEUE_START if found is None else found[1] + (1 if last else -1)
                key = keys.queue_key(prefix, number)
                stored = self._stored_key(key)
                row = self._row(key, stored, encoded, expiry, keys.encode_tag(tag))
                if self._evicts and self._is_oversize(row):
                    raise ValueTooLarge(f"value for queue {prefix!r} is larger than size_limit allows")
                row = Row(row) if isinstance(row, bytes) else row
                store.upsert(keys.key_hash(stored, self._modulus), stored, row._replace(queue=queue, num=number), None)
        except Timeout:
            _discard(store, encoded)
            return self._timed_out(None)
        except BaseException:
            _discard(store, encoded)
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
        queue = keys.encode_key(prefix)
        last = _is_back(side)
        try:
            with store.transaction(self._wait(retry)):
                while (found := store.queue_end(queue, last)) is not None:
                    stored, number, h, blob = found
                    target = _Target(keys.queue_key(prefix, number), stored, h, store)
                    record = self._verified_here(target, blob)
                    live = record is not None and self._is_live(record)
                    loaded = self._loaded_here(target, record) if live and record is not None else None
                    if loaded is None or remove:
                        store.remove_places([h])
                    if loaded is not None and record is not None:
                        return self._item(target.key, loaded[0], record, expire_time, tag)
        except Timeout:
            return self._timed_out(default)
        return default

    @staticmethod
    def _item(key: Any, value: Any, record: Record, expire_time: bool, tag: bool) -> Any:
        if not (expire_time or tag):
            return key, value
        return (key, value), *_metadata(record, expire_time, tag)

    def peekitem(self, last: bool = True, expire_time: bool = False, tag: bool = False, retry: bool = False) -> Any:
        """Return the (key, value) inserted last, or first; raise KeyError if the cache is empty.

        Expired entries in its way are removed. Over several shards, the last shard that has one answers.
        """
        stores = self._shards.stores
        for store in reversed(stores) if last else stores:
            with store.transaction(self._wait(retry)):
                while (found := store.end(last)) is not None:
                    h, stored, spelling, blob = found
                    target = _Target(None, stored, h, store)
                    record = self._verified_here(target, blob)
                    loaded = self._loaded_here(target, record) if record is not None and self._is_live(record) else None
                    if loaded is None or record is None:
                        store.remove_places([h])
                        continue
                    return self._item(store.disk.user_key(stored, spelling), loaded[0], record, expire_time, tag)
        raise KeyError("cache is empty")

    # -- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys in order of insertion, the expired ones among them; entries added meanwhile are left out."""
        return self._iterate(reverse=False)

    def __reversed__(self) -> Iterator[Any]:
        """Yield the keys from the newest to the oldest, otherwise like iteration."""
        return self._iterate(reverse=True)

    def _iterate(self, reverse: bool) -> Iterator[Any]:
        stores = self._shards.stores
        for store in reversed(stores) if reverse else stores:
            for _, stored, spelling in store.scan(reverse):
                try:
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
        removed = self._remove_from_all(lambda store: store.remove_selected("any", (), self._wait(retry)))
        self._hot.clear()
        return removed

    def evict(self, tag: Any, retry: bool = False) -> int:
        """Remove every entry with this tag and return how many there were; in batches, like `clear`."""
        column = keys.encode_tag(tag)
        if column is None:
            return 0
        return self._remove_from_all(lambda store: store.remove_selected("tagged", (column,), self._wait(retry)))

    def expire(self, now: float | None = None, retry: bool = False) -> int:
        """Remove every entry that is expired at `now` (default: the present) and return how many; in batches."""
        moment = self._clock() if now is None else now
        return self._remove_from_all(lambda store: store.remove_selected("expired", (moment,), self._wait(retry)))

    def cull(self, retry: bool = False) -> int:
        """Remove expired entries, then live ones by policy until the size limit holds; return how many went."""
        return self._remove_from_all(lambda store: room.cull(store, self._wait(retry)))

    @contextlib.contextmanager
    def transact(self, retry: bool = False) -> Iterator[None]:
        """Make the body one transaction: other tasks see all of its writes or none, and wait to write.

        Nested, the inner one is rolled back alone. It belongs to the task that opened it. Over several shards, each
        shard's part is atomic by itself if the machine fails during the commit. Raises Timeout, TransactionError.
        """
        with contextlib.ExitStack() as stack:
            for store in self._shards.stores:  # always in the same order, so that no two can wait for each other
                stack.enter_context(store.transaction(self._wait(retry)))
            yield

    def memoize(
        self,
        name: str | None = None,
        typed: bool = False,
        expire: float | None = None,
        tag: Any = None,
        ignore: Iterable[int | str] = (),
        *,
        key: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that caches a function's results; see `diskcache_like.memoize`."""
        return memoizing.memoize(self, name, typed, expire, tag, ignore, key)

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def check(self, fix: bool = False, retry: bool = False) -> list[Any]:
        """Compare database, value files and totals, and return a list of warnings; with `fix`, mend what is wrong.

        Runs no stored code and touches no file outside the directory.
        """
        problems: list[Any] = []
        for store in self._shards.stores:
            problems += check_store(store, self._check_record, fix, self._wait(retry))
        return problems

    def _check_record(self, store: Store, stored: bytes, blob: bytes) -> None:
        """Raise DecodeError or FileNotFoundError for an entry that would not read."""
        record = unpack(stored, blob, self._verifier(blob), self._signs_all)
        if record.file is not None:
            store.disk.verify_file(record)

    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Return (hits, misses) of all processes that flushed theirs, and switch statistics on or off.

        A process adds its counts with its next write, at its own `stats` and on closing.
        """
        hits = misses = 0
        for store in self._shards.stores:
            with store.locked(self._timeout):
                if store is self._shards.stores[0]:
                    self._flush_counts(store)
                one, other = store.counters(reset)
                hits, misses = hits + one, misses + other
        self.reset("statistics", int(enable))
        return hits, misses

    def _flush_counts(self, store: Store) -> None:
        """Add this handle's counts to the shared ones; the write lock is held."""
        metrics = self.metrics
        if metrics.hits or metrics.misses:
            store.count_uses(metrics.hits, metrics.misses)
            metrics.hits = metrics.misses = 0

    def volume(self) -> int:
        """Return the bytes in use on disk: database pages that hold something, and value files."""
        return sum(store.volume() for store in self._shards.stores)

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
        if key not in DEFAULT_SETTINGS and not key.startswith("disk_"):
            raise SettingError(f"unknown setting {key!r}, expected one of {', '.join(DEFAULT_SETTINGS)} or disk_*")
        if value is ENOVAL:
            value = self._shards.stores[0].stored_setting(key)
        else:
            value = checked(key, value)
            for store in self._shards.stores:
                store.change_setting(key, value, update, None)
        self._apply(key, value)
        return value

    def _apply(self, name: str, value: Any) -> None:
        """Make a setting effective in this handle."""
        setattr(self, name, value)
        if name == "eviction_policy":
            policy = policy_named(value)
            self._marks = 1 if policy.marks_recency else 2 if policy.marks_frequency else 0
            self._tracks = bool(self._marks or self._counts)
        elif name == "statistics":
            self._counts = bool(value)
            self._tracks = bool(self._marks or self._counts)
            self._config.on_write = self._flush_counts if value else None
        elif name == "hot_size_limit" and hasattr(self, "_hot"):
            self._hot.resize(0 if self._implementation == "off" else value)
        elif name.startswith("disk_"):
            for store in self._shards.stores:
                setattr(store.disk, name[5:], value)
        settings = self._shards.stores[0].settings
        self._evicts = policy_named(settings["eviction_policy"]).evicts and settings["cull_limit"] > 0
        self._share = settings["size_limit"] // len(self._shards.stores)

    def close(self) -> None:
        """Close every file; the next operation opens them again."""
        self._hot.clear()
        if self._counts:
            with contextlib.suppress(Timeout):
                store = self._shards.stores[0]
                with store.locked(self._timeout):
                    self._flush_counts(store)
        self._shards.close(max(self._timeout, 1.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        # The secret is left out: a pickle is not the place for it. Give it in DISKCACHE_LIKE_SECRET, or open anew.
        return (self.directory, self.timeout, type(self.disk), self._options)

    def __setstate__(self, state: Any) -> None:
        directory, timeout, disk, options = state
        self.__init__(directory, timeout, disk, **options)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"


def _tag_of(record: Record) -> Any:
    return None if record.tag is None else keys.decode_key(record.tag)


def _metadata(record: Record, expire_time: bool, tag: bool) -> tuple[Any, ...]:
    return (*((record.expire,) if expire_time else ()), *((_tag_of(record),) if tag else ()))


def _with_metadata(value: Any, record: Record, expire_time: bool, tag: bool) -> Any:
    return (value, *_metadata(record, expire_time, tag)) if expire_time or tag else value


def _discard(store: Store, encoded: Stored) -> None:
    """Remove the value file of a write that was not made."""
    file = encoded[2]
    if file is not None:
        store.disk.remove(file)


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _is_back(side: str) -> bool:
    if side not in ("back", "front"):
        raise ValueError(f"side is {side!r}, expected 'back' or 'front'")
    return side == "back"


def _finish(shards: Shards) -> None:
    """Close the stores of a cache that was dropped without `close`, without waiting for anyone."""
    for store in shards.stores:
        store.close_soon()
