"""RowCodec: which store holds a key, how keys and values become rows, and how rows are verified."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ..coherence.ring import new_tuple
from ..disk.contract import Constant
from ..disk.value_files import Encoded
from ..encoding import file_names, keys
from ..encoding.record import (
    FULL,
    MODE_PICKLE,
    MODE_RAW,
    NO_METADATA,
    SIGNED,
    Metadata,
    Record,
    pack,
    pack_full,
    pack_plain,
    unpack,
)
from ..encoding.tags import tag_or_tags, tags_column, tags_of, with_hidden
from ..errors import (
    CacheError,
    DecodeError,
    DirectoryError,
    DiskFull,
    ExpiryError,
    KeyEncodeError,
    SignatureError,
    SignatureWarning,
    UnreadableFileWarning,
    ValueTooLarge,
    named,
)
from ..settings.lifetimes import Lifetimes, moment_of, seconds_of
from ..storage.interface import EntryStore
from ..storage.store import Decide, Row, Store, Touch
from ..system.callers import warn
from ..system.signals import suppress
from . import encryption
from .handle import Handle
from .hot import PLAIN_TYPES

_QUEUE_KEYS = frozenset({keys.QueueKey, keys.PrefixedQueueKey})
_FAR = 1e300  # seconds; what is below is a float, and finite
key_at, located = keys.key_at, keys.located
_NO_MORE = NO_METADATA[2:]  # metadata beside expiry and tags

_column = functools.lru_cache(maxsize=64, typed=True)(keys.encode_key)
KEEP: Any = Constant("KEEP")  # as the expiry of a write: that of the entry which it replaces
Location = tuple[bytes, int, EntryStore]  # of a key: its stored key, the hash of that, and the store that it lives in


class RowCodec:
    """Turn keys and values into rows, and rows into verified records."""

    keeps_versions = False  # a row is a copy of an entry on a server

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._shards = handle.shards
        self._one = handle.shards.stores[0] if len(handle.shards.stores) == 1 else None
        self._sealer = handle.sealer
        self._tells_keys = handle.sealer is None and handle.disk.own_keys  # whether a stored key has the key in it
        self.blind = None if handle.sealer is None else handle.sealer.blind_tag
        self._signs_all = handle.signs_all
        self._signs_pickles = handle.pickle_policy == "signed"
        self.clock = handle.clock
        self._warned = self._warned_of_file = False
        self.modulus = handle.shards.modulus
        self.stored_key = handle.disk.key_encoder()
        self._encodes_keys = self.stored_key is keys.encode_key
        self.lifetimes: Lifetimes | None = None  # None: entries live as long as those who write them say

    # -- where a key lives ----------------------------------------------------------------------------------------

    def locate(self, key: Any) -> Location:
        """Return the stored key, its hash and the store that it lives in."""
        if self._encodes_keys and (found := located(key, self.modulus, self._shards.stores)) is not None:
            return found
        stored_key = self.stored_key(key)
        home = keys.key_hash(stored_key, self.modulus)
        if self._one is not None:
            return stored_key, home, self._one
        if type(key) in _QUEUE_KEYS:
            return stored_key, home, self.queue_store(key.prefix)
        return stored_key, home, self._shards.of(home)

    @property
    def stores(self) -> Sequence[EntryStore]:
        """Return what reads and writes the shards."""
        return self._shards.stores

    def local(self, key: Any) -> Location:
        """Return where the key lives on this machine."""
        return self.locate(key)

    def queue_store(self, prefix: str | None) -> Store:
        """Return the store of a queue: one store holds all its entries, so that one index holds their order."""
        if not isinstance(prefix, str | None):
            raise KeyEncodeError(f"prefix is {prefix!r}, expected text or None")
        return self._shards.of(keys.key_hash(self.queue_column(prefix), self.modulus))

    def queue_column(self, prefix: str | None) -> bytes:
        """Return the queue column for a prefix: its encoded form, blinded if the cache is encrypted."""
        column = _column(prefix)
        return column if self._sealer is None else self._sealer.blind_queue(column)

    def check_place(self, place: int, stored_key: bytes) -> None:
        """Raise DecodeError for a key that does not belong to its hash: one of the two was changed."""
        home = keys.key_hash(stored_key, self.modulus) if type(stored_key) is bytes else -1
        if home != place & ~3:
            raise DecodeError("the key does not belong to its place")

    def key_at(self, store: Store, place: int, stored_key: bytes, original: bytes | None) -> Any:
        """Return the user's key of a row; raise DecodeError if it belongs elsewhere, or if it cannot be rebuilt."""
        if self._tells_keys and original is None and (key := key_at(place, stored_key, self.modulus)) is not None:
            return key
        self.check_place(place, stored_key)
        return store.disk.user_key(stored_key, original)

    # -- values become rows ---------------------------------------------------------------------------------------

    def encode(self, store: EntryStore, value: Any, read: bool, key: Any) -> Encoded:
        """Return the encoded value, after writing its value file if it needs one.

        On a full disk, remove unreferenced files and try again, but not for a file object: it can be read only once.
        """
        try:
            return store.disk.encode(value, read, key)
        except DiskFull:
            if read or not store.make_room(self._handle.timeout):
                raise
        return store.disk.encode(value, read, key)

    def keeping(self, key: Any, location: Location, encoded: Encoded, metadata: Metadata) -> Decide:
        """Return what stores a value and leaves the entry its expiry."""

        def decide(packed: bytes | None) -> bytes | Row:
            return self.row(key, location, encoded, self.kept(metadata, self.live_own(key, location, packed)))

        return decide

    def row(self, key: Any, location: Location, encoded: Encoded, metadata: Metadata) -> bytes | Row:
        """Return what the store writes: a whole row, or only the record if the row has nothing else."""
        stored_key, _, store = location
        mode, payload, file, size = encoded
        if type(key) in PLAIN_TYPES:
            original = None
        elif isinstance(key, keys.QueueKey | keys.PrefixedQueueKey):
            return self._queue_row(key, location, Record(mode, payload, metadata, file, size))
        else:
            original = None if self._sealer is not None else store.disk.original_key(key, stored_key)
            if type(key) is keys.NamespacedKey:
                metadata = metadata._replace(tags=with_hidden(metadata.tags, key.path))
        if metadata.version and not self.keeps_versions:
            metadata = without_version(metadata)
        if file is None and mode == MODE_RAW and not self._signs_all:
            if metadata is NO_METADATA:
                packed = pack_plain(stored_key, payload, None, b"")
                return packed if original is None else Row(packed, original_key=original)
            if metadata[2:] == _NO_MORE:
                expire, tags = metadata.expire, metadata.tags
                packed, column = pack_plain(stored_key, payload, expire, tags), tags_column(tags) if tags else None
                return new_tuple(Row, (packed, expire, None, column, 0, None, original, None, None))
        record = Record(mode, payload, metadata, file, size)
        if self._sealer is not None:
            return encryption.sealed_row(store.disk, key, stored_key, record)
        return self._open_row(stored_key, record, original)

    def signs(self, mode: int) -> bool:
        """Tell whether a row whose value has this mode is authenticated on this machine, if it is not sealed."""
        return self._signs_all or (mode == MODE_PICKLE and self._signs_pickles)

    def _open_row(
        self,
        stored_key: bytes,
        record: Record,
        original: bytes | None,
        queue: bytes | None = None,
        num: int | None = None,
    ) -> Row:
        """Return the row of an entry that is not sealed."""
        mode, _, metadata, file, size, _ = record
        if self.signs(mode):
            packed = pack(stored_key, record, self._handle.secret.signer)
        else:
            packed = (pack if metadata is NO_METADATA else pack_full)(stored_key, record)
        expire, tags, retain_until = metadata[:3]
        fresh = None if retain_until is None else expire
        column = None if file is None else file_names.to_column(file)
        return Row(
            packed,
            expire if fresh is None else retain_until,
            fresh,
            tags_column(tags),
            size,
            column,
            original,
            queue,
            num,
        )

    def _queue_row(self, key: keys.QueueKey | keys.PrefixedQueueKey, location: Location, record: Record) -> Row:
        """Return the row of a queue's item, whether it is pushed or put back under its key."""
        stored_key, _, store = location
        queue = self.queue_column(key.prefix)
        if self._sealer is not None:
            return encryption.sealed_row(store.disk, key, stored_key, record)._replace(queue=queue, num=key.number)
        return self._open_row(stored_key, record, None, queue, key.number)

    def repacked(self, location: Location, record: Record) -> bytes:
        """Return the packed record of an entry whose value stays the same."""
        stored_key, _, store = location
        sealer = store.disk.sealer
        if sealer is not None:
            return sealer.seal(stored_key, record)
        return pack(stored_key, record, self._handle.secret.signer if record.signed else None)

    def changed(self, location: Location, record: Record, metadata: Metadata) -> Touch:
        """Return what gives an entry other metadata, and leaves its value."""
        if metadata.version and not self.keeps_versions:
            metadata = without_version(metadata)
        packed = self.repacked(location, record._replace(metadata=metadata))
        return Touch(packed, *Row.expiries(metadata), tags_column(metadata.tags, self.blind))

    @staticmethod
    def changed_plain(stored_key: bytes, payload: bytes, metadata: Metadata) -> Touch:
        """Return, quickly, what `changed` does for an entry that has no more metadata than an expiry and tags."""
        expire, tags, *_ = metadata
        packed = pack_plain(stored_key, payload, expire, tags)
        return new_tuple(Touch, (packed, expire, None, tags_column(tags) if tags else None))

    def is_oversize(self, row: bytes | Row) -> bool:
        """Tell whether the value alone would exceed the size limit of its shard."""
        return (len(row) if isinstance(row, bytes) else len(row.packed) + row.size) > self._handle.value_limit

    def too_large(self, key: Any) -> ValueTooLarge:
        """Return the error for a value that the size limit can never hold."""
        limit = self._handle.value_limit
        return ValueTooLarge(f"value of key {named(key)} is larger than size_limit allows ({limit} bytes)")

    def metadata(self, expire: Any, packed_tags: bytes) -> Metadata:
        """Return the metadata of an entry that is written now and expires after `expire`, or as the settings say."""
        if self.lifetimes is not None:
            found = self.limited(Metadata(self.expiry_or_default(expire), packed_tags))
            return NO_METADATA if found == NO_METADATA else found
        expiry = None if expire is None else self.expiry(expire)
        if expiry is None and not packed_tags:
            return NO_METADATA
        return new_tuple(Metadata, (expiry, packed_tags, *_NO_MORE))

    def metadata_or_keep(self, expire: Any, packed_tags: bytes) -> Metadata:
        """Do the same for a write that may keep an entry's expiry: for KEEP that is KEEP, which `kept` replaces."""
        return Metadata(KEEP, packed_tags) if expire is KEEP else self.metadata(expire, packed_tags)

    def kept(self, metadata: Metadata, record: Record | None) -> Metadata:
        """Return the metadata, with the expiry of the live record that it replaces if that is to stay."""
        if metadata.expire is not KEEP:
            return metadata
        if record is None:
            return self.metadata(None, metadata.tags)
        return self.limited(metadata._replace(expire=record.metadata.expire))

    def limited(self, metadata: Metadata) -> Metadata:
        """Return the metadata of what is stored or touched now, so that no value outlives the cache's `max_age`."""
        longest = None if self.lifetimes is None else self.lifetimes.longest
        if longest is None:
            return metadata
        created = self.clock() if metadata.created is None else metadata.created
        return metadata._replace(created=created).ending_by(created + longest)

    def expiry_or_default(self, expire: Any) -> float | None:
        """Return the absolute expiry for `expire`, or that of the cache's `default_expire` where none is given."""
        default = None if self.lifetimes is None else self.lifetimes.default
        return self.expiry(default if expire is None else expire)

    def expiry(self, expire: Any) -> float | None:
        """Return the absolute expiry for `expire` seconds (or a timedelta) from now; None means never."""
        if expire is None:
            return None
        if (type(expire) is int or type(expire) is float) and 0 <= expire < _FAR:
            return self.clock() + expire
        if isinstance(expire, datetime):
            return moment_of(expire)
        seconds = seconds_of(expire)
        if seconds < 0:
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now, 0 or more")
        return None if math.isinf(seconds) else self.clock() + seconds

    # -- rows become records --------------------------------------------------------------------------------------

    def verified(self, key: Any, location: Location, packed: bytes | None) -> Record | None:
        """Return the live or expired record of the key, or None if it is missing or cannot be trusted.

        `packed`: the record found by the key's hash, which may be another key's.
        """
        stored_key, home, store = location
        if packed is None:
            return (
                self.verified_own(key, location, store.read_versioned(home, stored_key)[0]) if store.displaced else None
            )
        try:
            return self.unpacked(store, stored_key, packed)
        except DecodeError:
            # Either damage, or the row belongs to another key with the same hash.
            return self.verified_own(key, location, store.read_versioned(home, stored_key)[0])

    def verified_own(self, key: Any, location: Location, packed: bytes | None) -> Record | None:
        """Return the record in `packed`, which is known to be the key's, so that a failure means damage."""
        if packed is None:
            return None
        try:
            return self.unpacked(location[2], location[0], packed)
        except DecodeError as error:
            self.report_corrupt(error, key)
            return None

    def live_own(self, key: Any, location: Location, packed: bytes | None) -> Record | None:
        """Return what `verified_own` does if the entry has not expired and has its value file, or needs none."""
        record = self.verified_own(key, location, packed)
        if record is None or not self.is_live(record):
            return None
        if not location[2].disk.has_file(record):
            self.report_lost_file(key)
            return None
        return record

    def unpacked(self, store: EntryStore, stored_key: bytes, packed: bytes) -> Record:
        """Verify the record in `packed` and return it; raise DecodeError for damage."""
        if not self._signs_all:
            # The secret is not read for a record without a tag: it may be the user's, in a file that need not exist.
            signed = type(packed) is bytes and len(packed) > 2 and packed[0] == FULL and packed[1] & SIGNED
            return unpack(stored_key, packed, self._handle.secret.verifier if signed else None)
        sealer = store.disk.sealer
        if sealer is not None:
            return sealer.open(stored_key, packed)
        return unpack(stored_key, packed, self._handle.secret.verifier, True)

    def is_live(self, record: Record) -> bool:
        """Tell whether a record has not expired."""
        expire = record.metadata.expire
        return expire is None or expire > self.clock()

    def is_kept(self, record: Record) -> bool:
        """Tell whether a record may be had stale, or has not even expired."""
        until = record.metadata.remove_at
        return until is None or until > self.clock()

    def check_record(self, store: Store, place: int, stored_key: bytes, packed: bytes) -> Record:
        """Return the record; raise DecodeError or FileNotFoundError for an entry that would not read."""
        self.check_place(place, stored_key)
        record = self.unpacked(store, stored_key, packed)
        tags_of(record.metadata.tags)  # raises for what cannot be a tag
        if record.file is not None:
            store.disk.verify_file(record)
        return record

    # -- what cannot be trusted -----------------------------------------------------------------------------------

    def report_corrupt(self, error: DecodeError, key: Any) -> None:
        """Count an entry that cannot be trusted, and raise in strict mode; otherwise it reads as missing."""
        handle = self._handle
        if isinstance(error, SignatureError):
            handle.counts.add("unauthenticated")
            if not self._warned and not handle.options.strict:
                self._warned = True
                message = f"{handle.directory!r}: key {named(key)}: {error}; such entries read as missing (said once)"
                warn(message, SignatureWarning)
        else:
            handle.counts.add("damaged")
        if handle.options.strict:
            raise type(error)(f"{handle.directory!r}: key {named(key)}: {error}") from error

    def report_lost_file(self, key: Any) -> None:
        """Count an entry whose value file is gone, and raise in strict mode; otherwise it reads as missing."""
        self._handle.counts.add("missing_files")
        if self._handle.options.strict:
            raise DecodeError(f"{self._handle.directory!r}: key {named(key)}: its value file is gone")

    def report_unreadable(self, error: DirectoryError, key: Any) -> None:
        """Count an entry whose value file this user may not read, and warn once; raise any other error.

        In strict mode this one is raised, too; otherwise the entry reads as missing.
        """
        handle = self._handle
        if error.errno not in (errno.EACCES, errno.EPERM) or handle.options.strict:
            raise error
        handle.counts.add("missing_files")
        if not self._warned_of_file:
            self._warned_of_file = True
            message = f"{handle.directory!r}: key {named(key)}: {error}; such entries read as missing (said once)"
            warn(message, UnreadableFileWarning)

    @contextlib.contextmanager
    def reporting(self, key: Any) -> Iterator[None]:
        """Report as corrupt what cannot be decoded in the body, which then ends there."""
        try:
            yield
        except DecodeError as error:
            self.report_corrupt(error, key)


def without_version(metadata: Metadata) -> Metadata:
    """Return the metadata of what is no copy of an entry on a server."""
    metadata = metadata._replace(version=b"")
    return NO_METADATA if metadata == NO_METADATA else metadata


def discard(store: EntryStore, encoded: Encoded) -> None:
    """Remove the value file of a write that failed; call it in the except block.

    A signal handler may raise just after the write was committed: then an entry refers to the file, and it stays.
    """
    file = encoded[2]
    if file is not None:
        with suppress(OSError, CacheError):  # if this fails, `check` finds it as an unknown file
            if not store.refers_to(file):
                store.disk.remove(file)


def with_expiry(metadata: Metadata, expiry: float | None) -> Metadata:
    """Return the metadata with another expiry; the time for which the entry is kept after it stays the same."""
    if metadata.retain_until is None:
        return new_tuple(Metadata, (expiry, *metadata[1:]))
    retain_until = None
    if expiry is not None and metadata.expire is not None:
        retain_until = expiry + (metadata.retain_until - metadata.expire)
    return metadata._replace(expire=expiry, retain_until=retain_until)


def with_metadata(value: Any, record: Record | None, expire_time: bool, tag: bool) -> Any:
    """Return the value alone, or a tuple of it and what is asked for; None stands for a record without either."""
    if not (expire_time or tag):
        return value
    expiry = (None if record is None else record.expire,) if expire_time else ()
    label = (None if record is None else tag_or_tags(record.metadata.tags),) if tag else ()
    return (value, *expiry, *label)
