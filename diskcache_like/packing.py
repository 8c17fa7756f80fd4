"""Packing: how keys and values become rows, and what a row has to prove before it counts.

`Packing` is the part of `Cache` that knows where a key lives and makes and verifies records.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from zlib import crc32

from . import encryption, files, keys
from .errors import DecodeError, ExpiryError, KeyEncodeError, SignatureError, SignatureWarning
from .handle import Handle
from .record import FULL, MODE_PICKLE, MODE_RAW, SIGNED, SIMPLE_HEAD, Record, pack, unpack
from .storage.store import Row, Store
from .value_files import Stored

SELF_SPELLED = frozenset({str, bytes, int})  # exact types that are their own spelling, hot key, and immutable value
_QUEUE_KEYS = frozenset({keys.QueueKey, keys.PrefixedQueueKey})
_number = int.from_bytes

Expiry = float | timedelta  # from now: seconds, or a timedelta


class Target(NamedTuple):
    """Where a key lives."""

    key: Any
    stored: bytes
    h: int
    store: Store


class Packing(Handle):
    """Turn keys and values into rows, and rows into verified records."""

    def _locate(self, key: Any) -> tuple[bytes, int, Store]:
        """Return the stored key, its hash and the store it lives in."""
        stored = self._stored_key(key)
        if len(stored) <= keys.SHORT:  # key_hash, without the call
            h = (_number(stored, "big") % self._modulus) << 2
        else:
            h = keys.key_hash(stored, self._modulus)
        if self._one is not None:
            return stored, h, self._one
        if type(key) in _QUEUE_KEYS:
            return stored, h, self._queue_store(key.prefix)
        return stored, h, self._shards.of(h)

    def _target(self, key: Any) -> Target:
        return Target(key, *self._locate(key))

    def _queue_store(self, prefix: str | None) -> Store:
        """Return the store of a queue; all its entries share one, so that their order is one index."""
        if not isinstance(prefix, str | None):
            raise KeyEncodeError(f"prefix is {prefix!r}, expected text or None")
        return self._shards.of(keys.key_hash(self._queue_column(prefix), self._modulus))

    def _queue_column(self, prefix: str | None) -> bytes:
        """Return what the rows of a queue hold of its prefix."""
        column = keys.encode_key(prefix)
        return column if self._sealer is None else self._sealer.blind_queue(column)

    def _tag_column(self, tag: bytes | None) -> bytes | None:
        """Return what a row holds of an encoded tag."""
        return tag if self._sealer is None or tag is None else self._sealer.blind_tag(tag)

    def _pack(self, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> bytes:
        mode, payload, file, size = encoded
        record = Record(mode, payload, expire, tag, file, size)
        signed = self._signs_all or (mode == MODE_PICKLE and self._pickle_policy == "signed")
        return pack(stored, record, self._secret.signer if signed else None)

    def _row(self, key: Any, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> bytes | Row:
        """Return what the store writes: the record alone where the row has nothing else."""
        mode, payload, file, size = encoded
        if type(key) in SELF_SPELLED:
            spelling = None
        elif isinstance(key, keys.QueueKey | keys.PrefixedQueueKey):
            return self._queue_row(key, stored, encoded, expire, tag)
        elif self._sealer is not None:
            spelling = None
        else:
            spelling = self._disk.spelling(key, stored)
        if expire is None and tag is None and file is None and mode == MODE_RAW and not self._signs_all:
            body = SIMPLE_HEAD + payload
            blob = body + crc32(body, crc32(stored)).to_bytes(4, "little")
            return blob if spelling is None else Row(blob, spelling=spelling)
        if self._sealer is not None:
            store = self._one or self._shards.of(keys.key_hash(stored, self._modulus))
            return encryption.sealed_row(store.disk, key, stored, encoded, expire, tag)
        blob = self._pack(stored, encoded, expire, tag)
        return Row(blob, expire, tag, size, None if file is None else files.to_column(file), spelling)

    def _queue_row(
        self,
        key: keys.QueueKey | keys.PrefixedQueueKey,
        stored: bytes,
        encoded: Stored,
        expire: float | None,
        tag: bytes | None,
    ) -> Row:
        """Return the row of a queue's item, whether it is pushed or put back under its key."""
        if self._sealer is not None:
            disk = self._queue_store(key.prefix).disk
            sealed = encryption.sealed_row(disk, key, stored, encoded, expire, tag)
            return sealed._replace(queue=self._queue_column(key.prefix), num=key.number)
        _, _, file, size = encoded
        column = None if file is None else files.to_column(file)
        queue = keys.encode_key(key.prefix)
        return Row(self._pack(stored, encoded, expire, tag), expire, tag, size, column, None, queue, key.number)

    def _repacked(self, target: Target, record: Record) -> bytes:
        """Return the BLOB for a record whose value stays what it is."""
        sealer = target.store.disk.sealer
        if sealer is not None:
            return sealer.seal(target.stored, record)
        return pack(target.stored, record, self._secret.signer if record.signed else None)

    def _encode_again(self, store: Store, value: Any, read: bool, key: Any) -> Stored:
        """Encode once more after DiskFull if files that nothing refers to could be removed; else raise it.

        Call in an except block only. A file object has been read by then, and cannot be read again.
        """
        if read or not store.relieved(self._timeout, for_file=True):
            raise  # noqa: PLE0704
        return store.disk.encode(value, read, key)

    def _expiry(self, expire: Any) -> float | None:
        """Return the absolute expiry for `expire` seconds (or a timedelta) from now; None means never."""
        if expire is None:
            return None
        seconds = expire.total_seconds() if isinstance(expire, timedelta) else expire
        try:
            seconds = math.nan if isinstance(seconds, str | bytes | bytearray) else float(seconds)
        except (TypeError, ValueError, OverflowError):
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now or None") from None
        if math.isnan(seconds) or seconds < 0:
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now, 0 or more")
        return None if math.isinf(seconds) else self._clock() + seconds

    def _is_live(self, record: Record) -> bool:
        return record.expire is None or record.expire > self._clock()

    def _is_oversize(self, row: bytes | Row) -> bool:
        """Tell whether the value alone would exceed the size limit of its shard."""
        return (len(row) if isinstance(row, bytes) else len(row.v) + row.size) > self._share

    def _verified(self, target: Target, blob: bytes | None) -> Record | None:
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
                return self._unpacked(store, stored, blob)
            except DecodeError:
                # Either damage, or the row belongs to another key with the same hash.
                again = store.find(h, stored)
                if again is None:
                    return None
                return self._unpacked(store, stored, again)
        except DecodeError as error:
            self._distrust(error, key)
            return None

    def _unpacked(self, store: Store, stored: bytes, blob: bytes) -> Record:
        """Return the record in `blob` after verifying it; the per-user secret is not read for one without a tag."""
        if not self._signs_all:
            signed = type(blob) is bytes and len(blob) > 2 and blob[0] == FULL and blob[1] & SIGNED
            return unpack(stored, blob, self._secret.verifier if signed else None)
        sealer = store.disk.sealer
        if sealer is not None:
            return sealer.open(stored, blob)
        return unpack(stored, blob, self._secret.verifier, True)

    def _distrust(self, error: DecodeError, key: Any) -> None:
        """Count an entry that cannot be trusted; raise in strict mode, else it reads as missing."""
        if isinstance(error, SignatureError):
            self.metrics.unauthenticated += 1
            if not self._warned and not self._options.strict:
                self._warned = True
                message = f"{self._directory!r}: key {key!r}: {error}; such entries read as missing (said once)"
                warnings.warn(message, SignatureWarning, stacklevel=4)
        else:
            self.metrics.damaged += 1
        if self._options.strict:
            raise type(error)(f"{self._directory!r}: key {key!r}: {error}") from error

    def _lost_file(self, key: Any) -> None:
        """Count an entry whose value file is gone; raise in strict mode, else it reads as missing."""
        self.metrics.missing_files += 1
        if self._options.strict:
            raise DecodeError(f"{self._directory!r}: key {key!r}: its value file is gone")

    def _verified_here(self, target: Target, blob: bytes | None) -> Record | None:
        """Return the record for a `decide` function: the row is known to be the key's, so only damage can be wrong."""
        if blob is None:
            return None
        try:
            return self._unpacked(target.store, target.stored, blob)
        except DecodeError as error:
            self._distrust(error, target.key)
            return None

    def _distrusting(self, key: Any) -> _Distrusting:
        """Return a context that counts what cannot be decoded in its body, or in strict mode raises it."""
        return _Distrusting(self, key)

    def _check_place(self, h: int, stored: bytes) -> None:
        """Raise DecodeError for a key that is not where it belongs: one of the two was changed."""
        if type(stored) is not bytes or keys.key_hash(stored, self._modulus) != h & ~3:
            raise DecodeError("the key does not belong to its place")

    def _check_record(self, store: Store, h: int, stored: bytes, blob: bytes) -> Record:
        """Return the record; raise DecodeError or FileNotFoundError for an entry that would not read."""
        self._check_place(h, stored)
        record = self._unpacked(store, stored, blob)
        if record.file is not None:
            store.disk.verify_file(record)
        return record

    def _records(self, store: Store) -> Iterator[Record]:
        """Yield the records of a shard that this handle can verify, expired ones among them."""
        for stored, blob in store.blobs():
            with contextlib.suppress(DecodeError):
                yield self._unpacked(store, stored, blob)


class _Distrusting:
    __slots__ = ("_entries", "_key")

    def __init__(self, entries: Packing, key: Any) -> None:
        self._entries = entries
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, DecodeError):
            self._entries._distrust(error, self._key)
            return True
        return False


def tag_of(record: Record) -> Any:
    """Return the tag of a record as the user gave it, None if it has none."""
    return None if record.tag is None else keys.decode_key(record.tag)


def metadata(record: Record | None, expire_time: bool, tag: bool) -> tuple[Any, ...]:
    """Return expiry and tag as far as they are asked for; None stands for a record without either."""
    expiry = None if record is None else record.expire
    return (
        *((expiry,) if expire_time else ()),
        *((None if record is None else tag_of(record),) if tag else ()),
    )


def with_metadata(value: Any, record: Record | None, expire_time: bool, tag: bool) -> Any:
    """Return the value alone, or a tuple of it and what is asked for."""
    return (value, *metadata(record, expire_time, tag)) if expire_time or tag else value
