"""Cache: every operation of the API, spelled once.

An operation encodes its key, finds the store that holds it, and is built on what a store offers. Reads go to the hot
layer first: an entry there is valid only while its slot still has the generation it was read at (docs/coherence.md).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, Unpack, overload

from .coherence.counts import MISS
from .disk.contract import Constant, Disk
from .disk.payloads import fresh, shared
from .disk.value_files import Encoded
from .encoding.keys import is_of_kind
from .encoding.made_keys import path_of
from .encoding.record import NO_METADATA, Metadata, Record
from .encoding.tags import join_tags, pack_tags, split_tags, tag_or_tags, tags_of
from .entries.atomic_key import AtomicKey, Decision, replace, update
from .entries.handle import Handle, Opening
from .entries.hot import KIND, NEGATIVE_HIT, PLAIN_TYPES, STAMP, VALUE, HotLayer, is_plain
from .entries.loading import ENOVAL, EXPIRED, Loader
from .entries.options import Arguments
from .entries.row_codec import KEEP, Location, RowCodec, discard, with_expiry, with_metadata
from .errors import CacheError, DirectoryError, DiskFull, Timeout, TransactionError, ValueTooLarge, named
from .memoizing.computed import Computed
from .memoizing.computing import Place
from .operations import awaited, namespaces
from .operations.administration import Administration
from .operations.iteration import Iteration
from .operations.queues import Queues
from .operations.streams import Streams
from .settings.lifetimes import Expiry
from .settings.misuse import NoOthers, in_pairs, several, unexpected, wrong
from .storage.interface import EntryStore
from .storage.store import REMOVE, Change
from .system.blocking import may_block
from .system.generics import K, OfKeysAndValues, V

if TYPE_CHECKING:
    from .operations.awaited import AsyncCache
    from .settings.remote import Remote
    from .tier.tier import Tier

SET_MANY_BATCH = 1000  # entries per transaction of set_many and delete_many
ANY_VERSION: Any = Constant("ANY_VERSION")
Found = TypeVar("Found")


class Entry(NamedTuple):
    """What `get_entry` returns: a value with its metadata."""

    value: Any
    expire_time: float | None
    tag: Any  # the one tag, None, or a tuple of several
    size: int  # bytes that the value takes up as stored
    tags: tuple[Any, ...] = ()
    version: int = 0  # of the write that stored the value, for `set(..., if_version=...)`
    age: float | None = None  # seconds since it was computed, if `get_or_set` or `memoize` stored it
    stale: bool = False  # it has expired, and is kept for those who ask for stale values
    etag: bytes = b""


class Cache(Queues, Streams, Iteration, Computed, Administration, OfKeysAndValues[K, V]):
    """A persistent cache in a directory, shared by threads and processes.

    Behaves like a dictionary; keys that are equal are one entry. Values come back equal and of the same type. Every
    operation on one key is atomic; those on many say what is. One that writes waits up to `timeout` seconds for the
    write lock and then raises Timeout; with `retry=True` it waits without limit. Reads of keys never wait for writers.
    Whatever reads many entries first flushes the write buffer, and may wait for the lock to do so.

    `directory`: made if missing, a temporary one if None. `disk`: how keys and values are stored. `settings`: see
    `DEFAULT_SETTINGS`; stored when the cache is made, and for this handle only afterwards. `pickle`: 'signed', 'never'
    or 'trusted', for values that are not plain data. `secret`: authenticates every entry (bytes or text, 16 or more).
    `encrypt`: seal everything with keys that the secret opens; `key_context`: derive other keys from the same secret;
    `hot_encoded`: seal what is in memory, too. `strict`: raise for entries that fail authentication or are damaged
    instead of treating them as missing. `shared`: share the directory with users of its group. `allow_filesystem`:
    accept one on a network file system or a folder of the host, and do not warn of FUSE. `generation_slots`: how many
    slots the generation file has when it is made. `clock`: seconds since 1970. `mmap`: map arrays that have a file of
    their own. `remote`: a server, by which several machines share entries. `serializer`: 'msgpack', 'json', 'pickle' or
    'arrow', and `compressor`: 'none', 'zlib', 'zstd' or 'lz4', recorded when the cache is made. `allow`: classes whose
    objects count as data in this cache, beside those given to `register`.

    Raises DirectoryError, UnsafeDirectory, ForeignDatabase, DiskCacheDirectory, NewerFormat, OlderFormat, SettingError,
    SecretError, MissingDependency. Operations of a cache with `remote` also raise RemoteError.
    """

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[K]: ...
        def __reversed__(self) -> Iterator[K]: ...

    _OPENING = Opening()
    _unpickled: Mapping[str, Any] = {}  # settings and options that a pickle brought, until the handle is opened

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = 60,
        disk: type[Disk] = Disk,
        **settings: Unpack[Arguments],
    ) -> None:
        self._open(directory, 1, timeout, disk, settings)

    def _open(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        settings: Arguments,
    ) -> None:
        # No look at `__dict__`: from then on CPython 3.11 would find each attribute by a search in it.
        unpickled, self._unpickled = self._unpickled, {}
        handle = self._handle = Handle(directory, shards, timeout, disk, {**settings, **unpickled}, self._OPENING)
        self._shards = handle.shards
        weakref.finalize(self, handle.close_soon)  # no part refers to the cache, so it goes when it is dropped
        self._tier: Tier | None = None
        self._clock = self._hot_clock = handle.clock
        if handle.options.remote is None:
            self._rows = RowCodec(handle)
            self._hot = HotLayer(handle.hot_limit, handle.clock)
        else:
            self._join(handle.options.remote)
        self._hot.by_bytes = not handle.disk.own_keys
        self._loader = Loader(handle, self._rows, self._hot)
        self._hot_get = self._hot.entries.get
        for name, value in handle.settings.items():
            self._take_setting(name, value)

    def _join(self, remote: Remote) -> None:
        """Share entries with other machines."""
        from .tier.rows import parts_of  # late: few need it
        from .tier.state import boot_seconds

        try:
            self._tier, self._rows, self._hot = parts_of(remote, self._handle)
        except BaseException:
            self._shards.close_soon()
            raise
        self._hot_clock = boot_seconds
        weakref.finalize(self, self._tier.listener.stop)

    @property
    def remote(self) -> Tier:
        """Return the server's side of a cache with `remote=`, for its `stats()`; raise CacheError if it has none."""
        if self._tier is None:
            raise CacheError(f"{self.directory!r} was opened without remote=")
        return self._tier

    @property
    def directory(self) -> str:
        """Return the absolute path of the cache directory."""
        return self._handle.directory

    @property
    def timeout(self) -> float:
        """Return the seconds that an operation waits for the write lock."""
        return self._handle.timeout

    @property
    def disk(self) -> Disk:
        """Return the object that encodes keys and values."""
        return self._handle.disk

    # -- reading --------------------------------------------------------------------------------------------------

    @overload
    def get(
        self,
        key: K,
        default: Any = ...,
        read: bool = ...,
        expire_time: Literal[False] = ...,
        tag: Literal[False] = ...,
        retry: bool = ...,
        *,
        mmap: bool | None = ...,
        copy: bool = ...,
    ) -> V | Any: ...
    @overload
    def get(
        self,
        key: K,
        default: Any = ...,
        read: bool = ...,
        *,
        expire_time: Literal[True],
        tag: Literal[False] = ...,
        retry: bool = ...,
        mmap: bool | None = ...,
        copy: bool = ...,
    ) -> tuple[Any, float | None]: ...
    @overload
    def get(
        self,
        key: K,
        default: Any = ...,
        read: bool = ...,
        expire_time: Literal[False] = ...,
        *,
        tag: Literal[True],
        retry: bool = ...,
        mmap: bool | None = ...,
        copy: bool = ...,
    ) -> tuple[Any, Any]: ...
    @overload
    def get(
        self,
        key: K,
        default: Any = ...,
        read: bool = ...,
        *,
        expire_time: Literal[True],
        tag: Literal[True],
        retry: bool = ...,
        mmap: bool | None = ...,
        copy: bool = ...,
    ) -> tuple[Any, float | None, Any]: ...
    @overload
    def get(
        self,
        key: K,
        default: Any = ...,
        read: bool = ...,
        expire_time: bool = ...,
        tag: bool = ...,
        retry: bool = ...,
        *,
        mmap: bool | None = ...,
        copy: bool = ...,
    ) -> Any: ...
    def get(
        self,
        key: K,
        default: Any = None,
        read: bool = False,
        expire_time: bool = False,
        tag: bool = False,
        retry: bool = False,
        mmap: bool | None = None,  # not by keyword alone: each such default costs every call 8 ns
        copy: bool = True,
    ) -> Any:
        """Return the value of `key`, or `default` if it is missing or expired.

        With `read` a value that is bytes comes as a binary file object, which the caller closes. With `expire_time` or
        `tag` the result is a tuple of the value and what was asked for. With `mmap` (default: the handle's) an array or
        table in a file of its own is a read-only map of that file, neither read nor verified. With
        `copy=False` a mutable value may be the very object that memory holds for all who ask so: never change it. It
        waits for no writer, unless the database is damaged and has to be replaced.
        """
        try:
            entry = self._hot_get(key)
        except TypeError:  # an unhashable key, which the hot layer keeps by its stored bytes
            entry = None
        if entry is not None:
            slots, slot, stamp, expire, value, decode, visited, home, marks, _, kind = entry
            if (
                slots[slot] == stamp  # not written since: rule 2 of the coherence rules
                and (kind is type(key) or is_of_kind(key, kind))  # or another key may be equal to it
                and (expire is None or expire > self._hot_clock())
                and not (read or expire_time or tag)
            ):
                visited[0] = 1  # from here on `HotLayer.hit`, without the calls
                if decode is not NEGATIVE_HIT:
                    marks[home] = self._hot.hit_kind
                    if decode is None:
                        return value
                    if mmap:
                        return self._mapped(key, default)
                    return decode(value) if copy or decode is not fresh else shared(value)
                marks[home] = MISS
                return default
        return self._loader.get(key, default, read, expire_time, tag, mmap)

    def get_and_touch(
        self, key: K, expire: Expiry | None, default: Any = None, retry: bool = False, **others: Unpack[NoOthers]
    ) -> V | Any:
        """Return the value of `key`, or `default`; let a live entry expire `expire` from now, so it stays while used.

        The expiry is written only if it changes by more than a tenth of the time that is left then: of 600 seconds, a
        hit within the first 60 writes nothing. It stays as it is if the write lock cannot be had in time, or the disk
        is full: the value is returned all the same.
        """
        if others:
            raise unexpected(Cache.get_and_touch, others)
        expiry = self._rows.expiry_or_default(expire)
        value = self.get(key, ENOVAL)
        if value is ENOVAL:
            return default
        with contextlib.suppress(Timeout, DiskFull):
            self._renew(key, expiry, retry)
        return value

    def _renew(self, key: Any, expiry: float | None, retry: bool = False) -> None:
        """Give an entry that is used another expiry, unless that makes little difference."""
        rows, entry = self._rows, None if self._tier is not None else self._hot.probe(key)
        little = 0.0 if expiry is None else (expiry - rows.clock()) / 10

        def is_due(present: float | None) -> bool:
            return present != expiry if present is None or expiry is None else abs(expiry - present) > little

        def renewed(old: Metadata) -> Metadata | None:
            new = rows.limited(with_expiry(old, expiry))
            return new if is_due(old.expire) and new.expire != old.expire else None

        if entry is None:
            stored_key, home, store = location = rows.locate(key)
            record = rows.verified(key, location, store.read(home, stored_key))
        if is_due(entry[3]) if entry is not None else record is not None and is_due(record.metadata.expire):
            self._change(key, renewed, retry)

    def _mapped(self, key: Any, default: Any) -> Any:
        """Return the value of `key`, mapped if it is in a file of its own; the caller has counted the hit."""
        value = self._loader.load(key, self._rows.locate(key), maps=True)
        return default if value is ENOVAL else value

    def __getitem__(self, key: K) -> V:
        """Return the value of `key`; raise KeyError if it is missing or expired."""
        value: V = self.get(key, ENOVAL)
        if value is ENOVAL:
            raise KeyError(key)
        return value

    def read(self, key: K, retry: bool = False) -> Any:
        """Return a binary file object over the value of `key`, or the value itself if it is not bytes.

        The caller closes the file. Raises KeyError if the key is missing or expired.
        """
        file = self.get(key, ENOVAL, read=True, retry=retry)
        if file is ENOVAL:
            raise KeyError(key)
        return file

    def __contains__(self, key: Any) -> bool:
        """Tell whether `key` has a live entry."""
        try:  # what `HotLayer.probe` does, without the call, which would cost a fifth more
            entry = self._hot_get(key)
        except TypeError:
            entry = None
        if entry is not None and entry[0][entry[1]] == entry[2] and (entry[3] is None or entry[3] > self._hot_clock()):
            kind = entry[KIND]
            if kind is type(key) or is_of_kind(key, kind):
                return entry[5] is not NEGATIVE_HIT
        stored_key, home, store = location = self._rows.locate(key)
        packed = store.read(home, stored_key)
        payload, expire = self._loader.plain(store, stored_key, packed)
        if payload is not None:
            return expire is None or expire > self._clock()
        record = self._rows.verified(key, location, packed)
        if record is None or not self._rows.is_live(record):
            return False
        return store.disk.has_file(record) or self._recorded(key) is not None  # which may be a later row by now

    def get_entry(self, key: K, default: Any = None, *, stale: bool = False) -> Any:
        """Return the `Entry` of `key`, its value with its metadata, or `default` if it is missing or expired.

        With `stale` also one that has expired and is still kept, for the stale windows of `get_or_set`.
        """
        found = self._recorded(key, stale)
        if found is not None:
            value, record, version = found
            expire, tags, *_, etag, _ = record.metadata
            now = self._clock()
            with self._rows.reporting(key):
                size, age = record.value_size, record.metadata.age(now)
                is_stale = expire is not None and expire <= now
                return Entry(value, expire, tag_or_tags(tags), size, tags_of(tags), version, age, is_stale, etag)
        return default

    def get_many(self, keys_: Iterable[K]) -> dict[K, V]:
        """Return a dictionary of those keys that have live entries; each is read atomically, not all together."""
        found: dict[Any, Any] = {}
        cold: dict[EntryStore, list[tuple[Any, Location, int]]] = {store: [] for store in self._rows.stores}
        for store in cold:
            store.shard.ready()
        hot, locate = self._hot, self._rows.locate
        is_warm = bool(hot.entries)
        for key in several("keys_", keys_, "a list of keys"):
            entry = hot.probe(key) if is_warm else None
            if entry is None:
                _, home, store = location = locate(key)
                cold[store].append((key, location, store.shard.slots[home % store.shard.slot_prime]))
                continue
            value = hot.hit(entry)
            if value is not NEGATIVE_HIT:
                found[key] = value
        for store, wanted in cold.items():
            self._load_many(store, wanted, found)
        return found

    def _load_many(self, store: EntryStore, wanted: list[tuple[Any, Location, int]], found: dict[Any, Any]) -> None:
        """Read keys of one shard with one call, and put those that have a live entry into `found`."""
        hot, load, slots = self._hot, self._loader.load, store.shard.slots
        blobs = store.read_many([(location[1], location[0]) for _, location, _ in wanted])
        for key, location, stamp in wanted:
            home = location[1]
            value = load(key, location, (slots, stamp, blobs.get(home)), counts=True)
            if value is not ENOVAL:
                found[key] = value
            hot.count_read(value is not ENOVAL, location)

    # -- writing --------------------------------------------------------------------------------------------------

    def set(
        self,
        key: K,
        value: V | IO[bytes],
        expire: Expiry | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
        *,
        tags: Iterable[Any] | None = None,
        if_version: int | None = ANY_VERSION,
        **others: Unpack[NoOthers],
    ) -> bool:
        """Store `value` under `key`, replacing what was there; return False if it can never fit the size limit.

        `expire`: seconds from now, None for never, KEEP for that of the live entry, if there is one. `read`: `value` is
        a binary file object, read to its end. `tag`, or `tags` for several (64 at most): what `evict` and listings find
        it by. `if_version`: store it, and return True, only if the live entry still has this `Entry.version`; None
        means that there must be none. Atomic. Raises Timeout, ExpiryError, TagError, KeyEncodeError, ValueEncodeError,
        DiskFull; nothing changes then.
        """
        if others:
            raise unexpected(Cache.set, others)
        rows = self._rows
        stored_key, home, store = location = rows.locate(key)
        metadata = NO_METADATA
        if expire is not None or tag is not None or tags is not None or rows.lifetimes is not None:
            metadata = rows.metadata_or_keep(expire, pack_tags(tag, tags, key))
            if expire is KEEP and if_version is ANY_VERSION:
                return self._set_if(key, value, read, metadata, retry, lambda _: True, early=True)
        if if_version is not ANY_VERSION:
            if if_version is not None and type(if_version) is not int:
                raise TypeError(f"if_version is {if_version!r:.80}, expected the version of an Entry, or None")
            return self._set_if(key, value, read, metadata, retry, partial(self._has_version, location, if_version))
        encoded = rows.encode(store, value, read, key)
        try:
            row = rows.row(key, location, encoded, metadata)
            if rows.is_oversize(row):
                discard(store, encoded)
                return False
            entry = self._hot_get(key) if type(key) in PLAIN_TYPES else None  # a hint, whether it is valid or not
            known = entry is not None and entry[5] is not NEGATIVE_HIT
            stamp = store.put(home, stored_key, row, None if retry else self._handle.timeout, known)
        except BaseException:
            discard(store, encoded)
            return self._failed(False)
        self._loader.keep_written(key, location, stamp, metadata, value, encoded)
        return True

    def _has_version(self, location: Location, version: int | None, record: Record | None) -> bool:
        """Tell whether the entry, whose live record is given, has this version; the write lock is held."""
        stored_key, home, store = location
        return (None if record is None else store.version(home, stored_key)) == version

    def _set_if(
        self,
        key: Any,
        value: Any,
        read: bool,
        metadata: Metadata,
        retry: bool,
        condition: Callable[[Record | None], bool],
        early: bool = False,
        place: Place | None = None,
    ) -> bool:
        """Do what `_store_if` does, and return False for a value that can never fit, or where a Timeout is no error."""
        try:
            return self._store_if(key, value, read, metadata, self._wait(retry), condition, early, place)
        except ValueTooLarge:
            return False
        except BaseException:
            return self._failed(False)

    def _store_if(
        self,
        key: Any,
        value: Any,
        read: bool,
        metadata: Metadata,
        wait: float | None,
        condition: Callable[[Record | None], bool],
        early: bool = False,
        place: Place | None = None,
    ) -> bool:
        """Store `value` if the condition holds for the live record of `key`; return whether it was stored. Atomic.

        `wait`: seconds to wait for the lock, None for no limit. `early`: as `Store.update` has it. `place`: where the
        key lives, if that is known.
        """
        rows = self._rows
        location, missing = place or (rows.locate(key), 0)
        stored_key, home, store = location
        encoded = rows.encode(store, value, read, key)
        is_met, final = False, rows.kept(metadata, None)

        def decide(packed: bytes | None) -> Change:
            nonlocal is_met, final
            record = rows.live_own(key, location, packed)
            is_met = condition(record)
            if metadata.expire is not KEEP:
                return row if is_met else None
            final = rows.kept(metadata, record)
            return rows.row(key, location, encoded, final) if is_met else None

        try:
            row = rows.row(key, location, encoded, final)
            if rows.is_oversize(row):
                raise rows.too_large(key)
            stamp = store.update(home, stored_key, decide, wait, early, missing)
        except BaseException:
            discard(store, encoded)
            raise
        if not is_met:
            discard(store, encoded)
            return False
        self._loader.keep_written(key, location, stamp, final, value, encoded)
        return True

    def __setitem__(self, key: K, value: V) -> None:
        """Store `value` under `key`; raise ValueTooLarge if it can never fit the size limit."""
        if not self.set(key, value, retry=True):
            raise self._rows.too_large(key)

    def set_many(
        self,
        items: Mapping[K, V] | Iterable[tuple[K, V]],
        expire: Expiry | None = None,
        tag: Any = None,
        retry: bool = False,
        *,
        tags: Iterable[Any] | None = None,
        **others: Unpack[NoOthers],
    ) -> int:
        """Store all items and return how many were stored; those that can never fit the size limit are left out.

        Arguments as for `set`. Each batch of 1,000 per shard is atomic. After a Timeout the batches before it
        stay stored; it does not tell how many.
        """
        if others:
            raise unexpected(Cache.set_many, others)
        metadata = self._rows.metadata_or_keep(expire, pack_tags(tag, tags))
        pairs = (
            items.items()
            if isinstance(items, Mapping)
            else several("items", items, "a mapping, or an iterable of (key, value) pairs")
        )
        stored = 0
        for batch in batches(pairs, SET_MANY_BATCH):
            try:
                entries = ((key, value, metadata) for key, value in in_pairs("items", batch))
                stored += self._set_batch(entries, self._wait(retry))
            except Timeout as error:
                return self._failed(stored + getattr(error, "count", 0))
        return stored

    def _set_batch(self, items: Iterable[tuple[Any, Any, Metadata]], wait: float | None) -> int:
        """Store (key, value, metadata) of each item, a transaction per shard; return how many fit."""
        rows = self._rows
        groups: dict[EntryStore, list[tuple[int, bytes, Any]]] = {}
        written: list[tuple[EntryStore, Encoded]] = []
        count = 0
        try:
            for key, value, metadata in items:
                stored_key, home, store = location = rows.locate(key)
                encoded = rows.encode(store, value, False, key)
                written.append((store, encoded))
                row = rows.row(key, location, encoded, rows.kept(metadata, None))
                if rows.is_oversize(row):
                    discard(*written.pop())
                    continue
                what = rows.keeping(key, location, encoded, metadata) if metadata.expire is KEEP else row
                groups.setdefault(store, []).append((home, stored_key, what))
            if len(groups) > 1:
                may_block()  # after the first shard it is too late to begin anew: others may have written there since
            for store, wanted in groups.items():
                _write_together(store, wanted, wait)
                written = [pair for pair in written if pair[0] is not store]
                count += len(wanted)
        except BaseException as error:
            for store, encoded in written:
                discard(store, encoded)
            error.count = count  # type: ignore[attr-defined]  # what other shards have stored by now
            raise
        return count

    def copy_to(self, target: Cache | AsyncCache) -> int:
        """Store every live entry in `target`, with its expiry and tags, in order of insertion; return how many.

        `target` may have another codec, other settings, or another number of shards. What it has under the same key is
        replaced. Entries that can never fit its size limit are left out. An entry that is written while this runs may
        be copied as it was before. Named children of a FanoutCache are caches of their own and are not copied. Each
        batch of 1,000 entries per shard is atomic, and waits for the write lock without limit. Raises DirectoryError if
        `target` has this cache's directory.
        """
        target = without_face(target, "target")
        if os.path.realpath(target.directory) == os.path.realpath(self.directory):
            raise DirectoryError(errno.EINVAL, "a cache cannot be copied to itself; give another one", self.directory)
        limited = target._rows.limited
        stored = 0
        for batch in batches(self, SET_MANY_BATCH):
            items = ((key, value, limited(metadata)) for key, value, metadata in self._items(batch))
            stored += target._set_batch(items, None)
        return stored

    def _items(self, keys_: Iterable[Any]) -> Iterator[tuple[Any, Any, Metadata]]:
        """Yield (key, value, metadata) of those keys that have a live entry."""
        for key in keys_:
            found = self._recorded(key)
            if found is not None:
                yield key, found[0], found[1].metadata

    def add(
        self,
        key: K,
        value: V | IO[bytes],
        expire: Expiry | None = None,
        read: bool = False,
        tag: Any = None,
        retry: bool = False,
        *,
        tags: Iterable[Any] | None = None,
        **others: Unpack[NoOthers],
    ) -> bool:
        """Store `value` if `key` has no live entry; return whether it was stored. Atomic; arguments as for `set`."""
        if others:
            raise unexpected(Cache.add, others)
        place = None
        if not read and self._tier is None:  # with a server, that alone knows
            entry = self._hot.probe(key)
            if entry is not None and entry[5] is NEGATIVE_HIT:  # as after a `get`, so it need not be looked for again
                place = self._rows.locate(key), entry[STAMP]
            elif key in self:
                return False
        metadata = self._rows.metadata(expire, pack_tags(tag, tags, key))
        return self._set_if(key, value, read, metadata, retry, lambda record: record is None, early=True, place=place)

    def incr(self, key: K, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Add `delta` to the number under `key` and return the sum. Atomic; expiry and tags stay.

        A missing or expired key counts as `default`; with `default=None` it raises KeyError. Raises TypeError if one of
        them or the value is not an integer, a float or a complex number; NumPy's integers count as integers.
        """
        result: Any = None
        rows = self._rows
        if type(delta) is not int:
            delta = _countable(key, "delta", delta)
        if type(default) is not int and default is not None:
            default = _countable(key, "default", default)

        def decide(current: Any, metadata: Metadata) -> Decision:
            nonlocal result
            if current is ENOVAL:
                if default is None:
                    raise KeyError(key)
                current, metadata = default, rows.metadata(None, b"")
            elif type(current) is not int and (
                isinstance(current, bool) or not isinstance(current, int | float | complex)
            ):
                raise TypeError(f"value of key {named(key)} is a {type(current).__name__}, expected a number")
            result = current + delta
            return result, metadata

        try:
            place = key, rows.locate(key)
            entry = self._hot.probe(key)
            if entry is not None and type(entry[VALUE]) is int and is_plain(entry):
                result = entry[VALUE] + delta
                if replace(rows, self._loader, place, entry[STAMP], result):
                    return result
            update(rows, self._loader, place, decide, None if retry else self._handle.timeout)
        except BaseException:
            return self._failed(None)
        return result

    def decr(self, key: K, delta: int = 1, default: int | None = 0, retry: bool = False) -> Any:
        """Subtract `delta` from the number under `key` and return the difference; otherwise like `incr`."""
        return self.incr(key, -_countable(key, "delta", delta), default, retry)

    def touch(self, key: K, expire: Expiry | None = None, retry: bool = False, **others: Unpack[NoOthers]) -> bool:
        """Give a live entry a new expiry (seconds from now, None for never); return whether there was one. Atomic."""
        if others:
            raise unexpected(Cache.touch, others)
        rows = self._rows
        expiry = rows.expiry_or_default(expire)

        def touched(old: Metadata) -> Metadata:
            return rows.limited(with_expiry(old, expiry))

        return self._change(key, touched, retry)

    def touch_many(
        self, keys_: Iterable[K], expire: Expiry | None = None, retry: bool = False, **others: Unpack[NoOthers]
    ) -> int:
        """Give each of the keys that has a live entry a new expiry, as `touch` does; return how many there were.

        Each batch of 1,000 per shard is atomic.
        """
        if others:
            raise unexpected(Cache.touch_many, others)
        self._rows.expiry_or_default(expire)  # raises for one that cannot be
        keys_ = several("keys_", keys_, "a list of keys")
        return sum(self._for_each(keys_, lambda key: self.touch(key, expire), retry, key_of=lambda key: key))

    def incr_many(
        self,
        items: Mapping[K, float] | Iterable[tuple[K, float]],
        default: int | None = 0,
        retry: bool = False,
        **others: Unpack[NoOthers],
    ) -> dict[K, Any]:
        """Add a number to the one under each key, as `incr` does, and return a dictionary of the sums.

        Each batch of 1,000 per shard is atomic: an error such as a value that is no number changes nothing in its
        batch.
        """
        if others:
            raise unexpected(Cache.incr_many, others)
        pairs = items.items() if isinstance(items, Mapping) else several("items", items, "a mapping, or (key, number)")

        def incr(pair: tuple[Any, Any]) -> tuple[Any, Any]:
            hash(pair[0])  # for the dictionary: here an error still takes the batch back
            return pair[0], self.incr(*pair, default)

        return dict(self._for_each(in_pairs("items", pairs), incr, retry, key_of=operator.itemgetter(0)))

    def _for_each(
        self, items: Iterable[Any], act: Callable[[Any], Found], retry: bool, key_of: Callable[[Any], Any]
    ) -> list[Found]:
        """Return what `act` returns for the items, having changed their entries in batches, one transaction each."""
        wait, locate = self._wait(retry), self._rows.locate
        results: list[Found] = []
        try:
            for batch in batches(items, SET_MANY_BATCH):
                groups: dict[EntryStore, list[Any]] = {}
                for item in batch:
                    groups.setdefault(locate(self._namespaced(key_of(item)))[2], []).append(item)
                for store, own in groups.items():
                    found: list[Found] = []
                    for attempt in store.attempts():
                        with attempt, store.transaction(wait):
                            found = [act(item) for item in own]
                    results += found
        except Timeout:
            return self._failed(results)
        return results

    def retag(self, key: K, add: Iterable[Any] = (), remove: Iterable[Any] = (), retry: bool = False) -> bool:
        """Add tags to a live entry, and remove others; return whether there was one. Atomic; its expiry stays.

        A tag in both is there afterwards. Raises TagError if that would be more than 64.
        """
        more, less = set(split_tags(pack_tags(tags=add, key=key))), set(split_tags(pack_tags(tags=remove, key=key)))

        def retagged(old: Metadata) -> Metadata:
            return old._replace(tags=join_tags({*split_tags(old.tags)} - less | more))

        return self._change(key, retagged, retry)

    def _change(self, key: Any, change: Callable[[Metadata], Metadata | None], retry: bool) -> bool:
        """Give a live entry the metadata that `change` returns, or leave it for None; return whether it has them."""
        rows = self._rows
        stored_key, home, store = location = rows.locate(key)
        changed = False

        def decide(packed: bytes | None) -> Change:
            nonlocal changed
            changed = False  # this may be the second try, and the entry may be gone since the first
            plain = self._loader.plain_entry(store, stored_key, packed)
            if plain is not None:
                payload, metadata = plain
                if metadata.expire is not None and not metadata.expire > rows.clock():
                    return None
                new = change(metadata)
                if new is None or new.created is None:
                    changed = new is not None
                    return None if new is None else rows.changed_plain(stored_key, payload, new)
            record = rows.live_own(key, location, packed)
            new = None if record is None else change(record.metadata)
            if record is None or new is None:
                return None
            touch = rows.changed(location, record, new)
            changed = True
            return touch

        try:
            store.update(home, stored_key, decide, self._wait(retry), early=True)
        except Timeout:
            return self._failed(False)
        return changed

    @overload
    def pop(
        self,
        key: K,
        default: Any = ...,
        expire_time: Literal[False] = ...,
        tag: Literal[False] = ...,
        retry: bool = ...,
    ) -> V | Any: ...
    @overload
    def pop(
        self, key: K, default: Any = ..., *, expire_time: Literal[True], tag: Literal[False] = ..., retry: bool = ...
    ) -> tuple[Any, float | None]: ...
    @overload
    def pop(
        self, key: K, default: Any = ..., expire_time: Literal[False] = ..., *, tag: Literal[True], retry: bool = ...
    ) -> tuple[Any, Any]: ...
    @overload
    def pop(
        self, key: K, default: Any = ..., *, expire_time: Literal[True], tag: Literal[True], retry: bool = ...
    ) -> tuple[Any, float | None, Any]: ...
    @overload
    def pop(self, key: K, default: Any = ..., expire_time: bool = ..., tag: bool = ..., retry: bool = ...) -> Any: ...
    def pop(
        self, key: K, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        """Remove the entry of `key` and return its value, or `default` if it is missing or expired. Atomic.

        With `expire_time` or `tag` the result is a tuple, as for `get`.
        """
        stored_key, home, store = location = self._rows.locate(key)
        result = missing = with_metadata(default, None, expire_time, tag)

        def decide(packed: bytes | None) -> Change:
            nonlocal result
            result = missing  # this may be the second try, and the entry may be gone since the first
            found = self._loader.current(key, location, packed)
            if found is None:
                return None
            if found is EXPIRED:
                return REMOVE  # or it would come back if the clock were set back
            change: Change = None
            with self._rows.reporting(key):
                result, change = with_metadata(*found, expire_time, tag), REMOVE
            return change

        try:
            store.update(home, stored_key, decide, self._wait(retry), early=True)
        except Timeout:
            return self._failed(missing)
        return result

    def delete(self, key: K, retry: bool = False, *, if_version: int = ANY_VERSION) -> bool:
        """Remove the entry of `key`; return whether there was a live one. Atomic.

        `if_version`: only if it still has this `Entry.version`. Raises DiskFull if the disk has no room even for a
        removal; a value in a file may be gone then.
        """
        if if_version is not ANY_VERSION:
            return self._delete_version(key, if_version, self._wait(retry))
        stored_key, home, store = location = self._rows.locate(key)
        entry = self._hot.probe(key) if type(key) in PLAIN_TYPES else None
        seen = 0 if entry is None or entry[5] is NEGATIVE_HIT else entry[STAMP]
        try:
            stamp = store.remove(home, stored_key, None if retry else self._handle.timeout, seen)
        except Timeout:
            return self._failed(False)
        self._loader.keep_removed(key, location, stamp)
        return stamp > 0

    def _delete_version(self, key: Any, version: int, wait: float | None) -> bool:
        if type(version) is not int:
            raise TypeError(f"if_version is {version!r:.80}, expected the version of an Entry")
        stored_key, home, store = location = self._rows.locate(key)
        is_met = False

        def decide(packed: bytes | None) -> Change:
            nonlocal is_met
            record = self._rows.live_own(key, location, packed)
            is_met = record is not None and self._has_version(location, version, record)
            return REMOVE if is_met else None

        try:
            store.update(home, stored_key, decide, wait)
        except Timeout:
            return self._failed(False)
        return is_met

    def __delitem__(self, key: K, retry: bool = True) -> None:
        """Remove the entry of `key`; raise KeyError if there is no live one."""
        if not self.delete(key, retry=retry):
            raise KeyError(key)

    def delete_many(self, keys_: Iterable[K], retry: bool = False) -> int:
        """Remove the entries of the keys and return how many there were.

        Each batch of 1,000 per shard is atomic; on a full disk, where a batch does not fit, each entry is. After a
        Timeout the batches before it stay removed; it does not tell how many.
        """
        removed = 0
        wait = self._wait(retry)
        for batch in batches(several("keys_", keys_, "a list of keys"), SET_MANY_BATCH):
            groups: dict[EntryStore, list[tuple[int, bytes]]] = {}
            for key in batch:
                location = self._rows.locate(key)
                groups.setdefault(location[2], []).append((location[1], location[0]))
            try:
                for store, places in groups.items():
                    removed += store.remove_many(places, wait)
            except Timeout:
                return self._failed(removed)
        return removed

    # -- transactions and namespaces -----------------------------------------------------------------------------------

    def transact(self, retry: bool = False) -> contextlib.AbstractContextManager[None]:
        """Make the body one transaction: other tasks see all of its writes or none, and wait to write.

        A nested one can be rolled back alone. It belongs to the task that opened it. Over several shards it is all or
        nothing as well, even if the process is killed; only reads of keys, which never wait, may see one part before
        another. Raises Timeout, TransactionError.
        """
        self._here_only("transact()")
        return self._shards.transaction(self._wait(retry))

    def namespace(self, name: str) -> Self:
        """Return a view of this cache with a key space of its own, under a name; it has the same memory and limits.

        Operations on keys, listings, `len`, `clear`, `count`, `evict` and `tags` mean its own entries, found by the
        index of tags. Queues, `stats`, `volume`, `expire` and `cull` are not there and raise CacheError. `check`,
        `close`, `flush`, `reset`, `rotate`, `sync` and `transact` are those of this cache, where the view's
        keys are `NamespacedKey`. The names take 200 bytes at most, together with those of the namespaces
        around it; if longer, it raises KeyEncodeError.
        """
        return namespaces.view(self, path_of((name,)))  # type: ignore[no-any-return]  # of this class

    @property
    def aio(self) -> AsyncCache[K, V]:
        """Return this cache for coroutines: the same operations, awaited; see `AsyncCache`."""
        found: AsyncCache[K, V] = awaited.face("AsyncCache", self)
        return found

    # -- the handle -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every file; the next operation opens them again.

        The last handle to close flushes the write buffer, for all processes.

        Raises Timeout if it cannot get the write lock within `timeout` seconds or one second, whichever is longer.
        """
        self._hot.clear()
        if self._tier is not None:
            self._tier.close()
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The error that ended the body matters more than one of closing; what stays open goes with the last reference.
        with contextlib.suppress(*(() if kind is None else (CacheError,))):
            self.close()

    def __reduce__(self) -> Any:
        # Without the secret, which belongs in no pickle: give it in DISKCACHE_LIKE_SECRET, or open the cache again.
        options = {**self._handle.given, **self._handle.options.to_pass_on()}
        return _unopened, (type(self), options), self.__getstate__()

    def __getstate__(self) -> Any:
        """Return the positional arguments to make a handle like this one; a subclass may add those of its own."""
        return (self.directory, self.timeout, type(self.disk))

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]  # so that a subclass gets what it added

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r})"


def _unopened(kind: type[Cache], options: dict[str, Any]) -> Cache:
    """Return a handle that opens with these settings and options when its state is set."""
    cache = kind.__new__(kind)
    cache._unpickled = options
    return cache


def _write_together(store: EntryStore, wanted: list[tuple[int, bytes, Any]], wait: float | None) -> None:
    """Write (place, stored key, row) of each entry in one transaction; a function in place of a row decides on it."""
    decides = callable(wanted[0][2])
    if len(wanted) == 1 and not decides:
        store.put(*wanted[0], wait)  # which is atomic by itself
        return
    for attempt in store.attempts():
        with attempt, store.transaction(wait):
            if not decides:
                store.put_many(wanted)
                continue
            for home, stored_key, decide in wanted:
                store.update(home, stored_key, decide, wait)


def _countable(key: Any, name: str, number: Any) -> Any:
    """Return a number that `incr` can go on with; raise TypeError if it is none."""
    if isinstance(number, float | complex):
        return number
    try:
        return int(operator.index(number))
    except TypeError:
        kind = type(number).__name__
        raise TypeError(
            f"{name} for key {named(key)} is a {kind}, expected an int, a float or a complex: convert it to one"
        ) from None


def without_face(cache: Cache | AsyncCache, name: str = "cache") -> Cache:
    """Return the cache itself, for what may be given its asynchronous face instead."""
    found = cache if isinstance(cache, Cache) else getattr(cache, "sync", None)
    if not isinstance(found, Cache):
        raise wrong(name, cache, "a Cache, FanoutCache or namespace, or the `aio` of one")
    return found


def refuse_in_transaction_of_face(cache: Cache, what: str) -> None:
    """Raise TransactionError if the running task has a transaction of the face's, for which it would wait for ever."""
    handle = cache._handle
    if "threads" in vars(handle) and handle.threads.transaction() is not None:
        raise TransactionError(f"{what} cannot be used within `async with transact()` of the same task: use it outside")


def atomic_key(cache: Cache, key: Any) -> AtomicKey:
    """Return the key with what recipes need: atomic steps on its entry, and waiting until that changes."""
    return cache._atomic_key(key)


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of `size`, the last of which may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
