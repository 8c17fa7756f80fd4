"""The stored form of an entry: one BLOB with its value, its metadata and a proof that both are intact.

Two layouts, little-endian:

* simple: ``01`` payload crc32 — a value in the row, without metadata, not authenticated;
* full: ``02`` fields trailer.

The fields, which a sealed record holds too: flags mode(i32) expire(f64) size(u64) tags-length(u16) file-length(u16),
then those that a flag announces: retain-until(f64); created(f64) cost(f64); etag-length(u8) etag; version(16 bytes);
then tags file payload.

The trailer is a CRC-32 or, if the flag SIGNED is set, a 16-byte keyed BLAKE2b tag. Both cover the stored key too, so a
record that was moved to another key does not verify. If the value is in a file, the payload is the digest of the file's
content, so that the cost of `touch` does not depend on the size of the value. Two bits of the flags name the checksum
of files, for one that may be added; all that is written today has 0.

The CRC of a message that is followed by its own CRC is a constant, the residue, whatever the initial value. So one call
over the whole record verifies it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, Protocol

from ..coherence import _native
from ..errors import DecodeError, SignatureError
from .checksum import crc32

SIMPLE = 1
SIMPLE_HEAD = b"\x01"
FULL = 2
SIGNED = 1  # flag: the trailer is a keyed tag, not a CRC
HAS_EXPIRE = 2  # flag: the field `expire` is used
HAS_RETAIN = 4  # flag: the entry can be had stale until `retain_until`
HAS_CREATED = 8  # flag: the record says when the value was computed, and how long that took
HAS_ETAG = 16  # flag: the record has an etag
HAS_VERSION = 32  # flag: the record says which version of the entry on a server it is a copy of
UNKNOWN_FLAGS = 0xC0  # for the checksum of files
RESIDUE = 0x2144DF1C  # CRC-32 of any message followed by its own CRC-32
CRC_SIZE = 4
TAG_SIZE = 16
_FIELDS = struct.Struct("<BidQHH")
_HEAD = struct.Struct("<BBidQHH")  # the same with the first byte
SMALLEST = _HEAD.size  # bytes of a full record before its tags
_MOMENT = struct.Struct("<d")
_MOMENT_AND_COST = struct.Struct("<dd")
ETAG_LIMIT = 64  # bytes
VERSION_SIZE = 16
_CACHED = 4096  # sets of tags whose fields are kept, since few sets serve many entries
_CRC = struct.Struct("<I")

open_plain = _native.open_plain  # quickly, value and expiry of most small records
pack_plain = _native.pack_plain  # quickly, what `pack` does for a value in the row with only an expiry and tags

MODE_NONE = 0
MODE_RAW = 1  # payload of the configured codec
MODE_BINARY = 2  # a byte string as it is, in a file
MODE_TEXT = 3
MODE_PICKLE = 4  # a pickle; decoded only if it is authenticated or trusted
MODE_BYTES = 5  # a byte string, in the row or a file; compressed if the cache compresses
MODE_ARRAY = 6  # a NumPy array in NumPy's file format
MODE_ARROW = 7  # a table or data frame in Arrow's file format


class Authenticator(Protocol):
    """What a record needs from a signer."""

    def tag(self, *parts: bytes) -> bytes:
        """Return the 16-byte tag over `parts`."""
        ...

    def verify(self, tag: bytes, *parts: bytes) -> bool:
        """Tell in constant time whether `tag` belongs to `parts`."""
        ...


class Metadata(NamedTuple):
    """What is stored of an entry beside its value."""

    expire: float | None = None  # when it expires
    tags: bytes = b""  # as `tags.py` packs them
    retain_until: float | None = None  # until when it can be had stale, which is later than `expire`
    created: float | None = None  # when the value was computed, if that is known
    cost: float = 0.0  # seconds that this took
    etag: bytes = b""
    version: bytes = b""  # on a server that several machines share

    @property
    def remove_at(self) -> float | None:
        """Return when the entry may be removed."""
        return self.expire if self.retain_until is None else self.retain_until

    def ending_by(self, end: float) -> Metadata:
        """Return the metadata of an entry that is there until then at most."""
        expire = end if self.expire is None else min(self.expire, end)
        retain_until = None if self.retain_until is None or expire == end else min(self.retain_until, end)
        return self._replace(expire=expire, retain_until=retain_until)

    def age(self, now: float) -> float | None:
        """Return the seconds since the value was computed, None if that is not known."""
        return None if self.created is None else max(now - self.created, 0.0)


NO_METADATA = Metadata()


class Record(NamedTuple):
    """An entry as it is stored, without its key."""

    mode: int
    payload: bytes
    metadata: Metadata = NO_METADATA
    file: str | None = None
    size: int = 0  # bytes of the value file; 0 for a value in the row
    signed: bool = False

    @property
    def expire(self) -> float | None:
        """Return when the entry expires, None for never."""
        return self.metadata.expire

    @property
    def value_size(self) -> int:
        """Return the bytes that the value takes up as stored, in its file or in the row."""
        return self.size or len(self.payload)

    def is_simple(self) -> bool:
        """Tell whether there is nothing but a value in the row."""
        return self.mode == MODE_RAW and self.file is None and self.metadata == NO_METADATA


def pack_simple(stored_key: bytes, payload: bytes) -> bytes:
    """Return the BLOB of a value in the row without metadata."""
    return pack_plain(stored_key, payload, None, b"")


def pack(stored_key: bytes, record: Record, signer: Authenticator | None = None) -> bytes:
    """Return the BLOB of a record under its stored key; authenticated if a signer is given."""
    if signer is None:
        return pack_simple(stored_key, record.payload) if record.is_simple() else pack_full(stored_key, record)
    body = b"\x02" + pack_fields(record, SIGNED)
    return body + signer.tag(stored_key, body)


def pack_full(stored_key: bytes, record: Record) -> bytes:
    """Return the BLOB of a record with metadata or in a file, not authenticated."""
    body = b"\x02" + pack_fields(record)
    return body + crc32(body, crc32(stored_key)).to_bytes(4, "little")


def pack_fields(record: Record, flags: int = 0) -> bytes:
    """Return the fields of a record, the payload last."""
    mode, payload, (expire, tags, retain_until, created, cost, etag, version), file, size, _ = record
    if expire is None:
        expire = 0.0
    else:
        flags |= HAS_EXPIRE
    more = b""
    if retain_until is not None:
        flags |= HAS_RETAIN
        more = _MOMENT.pack(retain_until)
    if created is not None:
        flags |= HAS_CREATED
        more += _MOMENT_AND_COST.pack(created, cost)
    if etag:
        flags |= HAS_ETAG
        more += bytes((len(etag),)) + etag
    if version:
        flags |= HAS_VERSION
        more += version
    if file is None:
        return _FIELDS.pack(flags, mode, expire, size, len(tags), 0) + more + tags + payload
    return b"".join((_FIELDS.pack(flags, mode, expire, size, len(tags), len(file)), more, tags, file.encode(), payload))


def unpack(stored_key: bytes, packed: object, signer: Authenticator | None = None, required: bool = False) -> Record:
    """Verify `packed` against the stored key and return its record.

    `signer` verifies authenticated records; without it they cannot be read. `required`: refuse records that are not
    authenticated. Raises DecodeError for damage, SignatureError for a failed or missing authentication.
    """
    if type(packed) is not bytes or len(packed) <= CRC_SIZE or type(stored_key) is not bytes:
        raise DecodeError("key and record must be BLOBs, the record of at least 5 bytes")
    if packed[0] == SIMPLE:
        if crc32(packed, crc32(stored_key)) != RESIDUE:
            raise DecodeError("record does not match its checksum")
        if required:
            raise SignatureError("entry is not authenticated, but this cache requires it")
        return Record(MODE_RAW, packed[1:-4])
    if packed[0] != FULL or len(packed) < SMALLEST + 4:
        raise DecodeError(f"record starts with byte {packed[0]}, expected {SIMPLE} or {FULL}")
    signed = bool(packed[1] & SIGNED)
    _verify(stored_key, packed, signed, signer)
    if required and not signed:
        raise SignatureError("entry is not authenticated, but this cache requires it")
    return unpack_fields(packed[1 : -TAG_SIZE if signed else -4], signed)


def plain_payload(packed: bytes) -> tuple[bytes | None, float | None]:
    """Return payload and expiry of an intact full record, quickly; None for one that only `unpack` can read.

    That is one that is signed, has a file or is not of the configured codec, or has more metadata than tags and expiry.
    """
    try:
        layout, flags, mode, expire, size, tags_length, name_length = _HEAD.unpack_from(packed)
    except struct.error:
        return None, None
    end = SMALLEST + tags_length
    is_plain = layout == FULL and not flags & ~HAS_EXPIRE and mode == MODE_RAW and not size and not name_length
    if not is_plain or end + 4 > len(packed) or (tags_length and not _are_tags(packed[SMALLEST:end])):
        return None, None
    return packed[end:-4], expire if flags else None


def unpack_fields(fields: bytes, signed: bool) -> Record:
    """Return the record that has these fields, which are known to be intact; raise DecodeError for other bytes."""
    try:
        flags, mode, expire, size, tags_length, name_length = _FIELDS.unpack_from(fields)
        start, metadata = _metadata(fields, flags, expire, tags_length)
        end = start + name_length
        file = fields[start:end].decode("ascii") if name_length else None
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"record does not have the layout of one ({error})") from error
    if end > len(fields) or flags & UNKNOWN_FLAGS or not _are_tags(metadata.tags):
        raise DecodeError("record does not have the lengths that it says, or has flags of a later version")
    return Record(mode, fields[end:], metadata, file, size, signed)


def _metadata(fields: bytes, flags: int, expire: float, tags_length: int) -> tuple[int, Metadata]:
    """Return where the metadata ends, and what it is."""
    start = _FIELDS.size
    retain_until: float | None = None
    created: float | None = None
    cost, etag, version = 0.0, b"", b""
    if flags & HAS_RETAIN:
        (retain_until,) = _MOMENT.unpack_from(fields, start)
        start += _MOMENT.size
    if flags & HAS_CREATED:
        created, cost = _MOMENT_AND_COST.unpack_from(fields, start)
        start += _MOMENT_AND_COST.size
    if flags & HAS_ETAG:
        end = start + 1 + fields[start]
        start, etag = end, fields[start + 1 : end]
    if flags & HAS_VERSION:
        end = start + VERSION_SIZE
        start, version = end, fields[start:end]
    end = start + tags_length
    kept = expire if flags & HAS_EXPIRE else None
    return end, Metadata(kept, fields[start:end], retain_until, created, cost, etag, version)


@lru_cache(_CACHED)
def _are_tags(packed: bytes) -> bool:
    """Tell whether bytes are tags, each behind its length, which is not 0."""
    start = 0
    while start < len(packed) and packed[start]:
        start += 1 + packed[start]
    return start == len(packed)


def _verify(stored_key: bytes, packed: bytes, signed: bool, signer: Authenticator | None) -> None:
    if not signed:
        if crc32(packed, crc32(stored_key)) != RESIDUE:
            raise DecodeError("record does not match its checksum")
    elif signer is None:
        raise SignatureError("entry is authenticated, but this handle has no secret")
    elif len(packed) < SMALLEST + TAG_SIZE or not signer.verify(packed[-TAG_SIZE:], stored_key, packed[:-TAG_SIZE]):
        raise SignatureError("entry was changed, or authenticated with a different secret")
