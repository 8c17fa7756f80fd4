"""The stored form of an entry: one BLOB with its value, its metadata and a proof that both are intact.

Two layouts, little-endian:

* simple: ``01`` payload crc32 — a value in the row, without expiry or tag, not authenticated;
* full: ``02`` flags mode(i32) expire(f64) size(u64) tag-length(u32) file-length(u16) tag file payload trailer.

The trailer is a CRC-32 or, if the flag SIGNED is set, a 16-byte keyed BLAKE2b tag. Both cover the stored key too, so a
record that was moved to another key does not verify. If the value is in a file, the payload is the digest of the file's
content, so that the cost of `touch` does not depend on the size of the value.

The CRC of a message that is followed by its own CRC is a constant, the residue, whatever the initial value. So one call
over the whole record verifies it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol
from zlib import crc32

from ..errors import DecodeError, SignatureError

SIMPLE = 1
SIMPLE_HEAD = b"\x01"
FULL = 2
SIGNED = 1  # flag: the trailer is a keyed tag, not a CRC
HAS_EXPIRE = 2  # flag: the field `expire` is used
HAS_TAG = 4  # flag: the field `tag` is used (it is never empty: every encoded tag has at least one byte)
RESIDUE = 0x2144DF1C  # CRC-32 of any message followed by its own CRC-32
TAG_SIZE = 16
_HEAD = struct.Struct("<BBidQIH")
_CRC = struct.Struct("<I")

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


class Record(NamedTuple):
    """An entry as it is stored, without its key."""

    mode: int
    payload: bytes
    expire: float | None = None
    tag: bytes | None = None
    file: str | None = None
    size: int = 0  # bytes of the value file; 0 for a value in the row
    signed: bool = False


def pack_simple(stored: bytes, payload: bytes) -> bytes:
    """Return the BLOB of a value in the row without expiry or tag."""
    body = SIMPLE_HEAD + payload
    return body + crc32(body, crc32(stored)).to_bytes(4, "little")


def pack(stored: bytes, record: Record, signer: Authenticator | None = None) -> bytes:
    """Return the BLOB of a record under its stored key; authenticated if a signer is given."""
    mode, payload, expire, tag, file, size, _ = record
    if signer is None and mode == MODE_RAW and expire is None and tag is None and file is None:
        return pack_simple(stored, payload)
    flags = (SIGNED if signer else 0) | (HAS_EXPIRE if expire is not None else 0) | (HAS_TAG if tag is not None else 0)
    name = file.encode() if file is not None else b""
    head = _HEAD.pack(FULL, flags, mode, 0.0 if expire is None else expire, size, len(tag or b""), len(name))
    body = b"".join((head, tag or b"", name, payload))
    if signer is not None:
        return body + signer.tag(stored, body)
    return body + _CRC.pack(crc32(body, crc32(stored)))


def unpack(stored: bytes, blob: object, signer: Authenticator | None = None, required: bool = False) -> Record:
    """Verify `blob` against the stored key and return its record.

    `signer` verifies authenticated records; without it they cannot be read. `required`: refuse records that are not
    authenticated. Raises DecodeError for damage, SignatureError for a failed or missing authentication.
    """
    if type(blob) is not bytes or len(blob) < 5 or type(stored) is not bytes:
        raise DecodeError("key and record must be BLOBs, the record of at least 5 bytes")
    if blob[0] == SIMPLE:
        if crc32(blob, crc32(stored)) != RESIDUE:
            raise DecodeError("record does not match its checksum")
        if required:
            raise SignatureError("entry is not authenticated, but this cache requires it")
        return Record(MODE_RAW, blob[1:-4])
    if blob[0] != FULL or len(blob) < _HEAD.size + 4:
        raise DecodeError(f"record starts with byte {blob[0]}, expected {SIMPLE} or {FULL}")
    return _unpack_full(stored, blob, signer, required)


def _unpack_full(stored: bytes, blob: bytes, signer: Authenticator | None, required: bool) -> Record:
    _, flags, mode, expire, size, tag_length, name_length = _HEAD.unpack_from(blob)
    signed = bool(flags & SIGNED)
    _verify(stored, blob, signed, signer)
    if required and not signed:
        raise SignatureError("entry is not authenticated, but this cache requires it")
    start = _HEAD.size + tag_length
    end = start + name_length
    last = len(blob) - (TAG_SIZE if signed else 4)
    if end > last:
        raise DecodeError("record is shorter than the lengths in it say")
    try:
        file = blob[start:end].decode("ascii") if name_length else None
    except UnicodeDecodeError as error:
        raise DecodeError("record names its file in bytes that are not ASCII") from error
    return Record(
        mode,
        blob[end:last],
        expire if flags & HAS_EXPIRE else None,
        blob[_HEAD.size : start] if flags & HAS_TAG else None,
        file,
        size,
        signed,
    )


def _verify(stored: bytes, blob: bytes, signed: bool, signer: Authenticator | None) -> None:
    if not signed:
        if crc32(blob, crc32(stored)) != RESIDUE:
            raise DecodeError("record does not match its checksum")
    elif signer is None:
        raise SignatureError("entry is authenticated, but this handle has no secret")
    elif len(blob) < _HEAD.size + TAG_SIZE or not signer.verify(blob[-TAG_SIZE:], stored, blob[:-TAG_SIZE]):
        raise SignatureError("entry was changed, or authenticated with a different secret")
