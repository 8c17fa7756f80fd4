"""Seal bytes with AES-256-GCM: records, the original keys of entries, and value files in chunks.

A data key has an epoch, four random bytes with which everything sealed by the key begins, so that the reader knows
which key opens it. A record or key is sealed in one piece under a random nonce of 96 bits. Its associated data is the
stored key, so that it does not open in the place of another entry. Nonces are random and not counted: processes would
have to share a counter, it would have to survive crashes, and a counter restored from a copy of the directory would
repeat nonces, which is fatal for GCM. `keyring` sees to it that no data key seals so much that nonces could collide.

A value file is sealed by the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár 2015) with a key of its own,
which is derived from the random 128-bit id that names the file. The nonce of a chunk is its number and whether it is
the last, so nobody can swap chunks or leave one out, and each can be opened alone.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, BinaryIO, Final

from ..encoding import file_names
from ..encoding.record import MODE_RAW, Record, pack_fields, unpack_fields
from ..errors import DecodeError, SignatureError, missing_dependency
from ..system.signals import reraise_signal

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE: Final = 32
EPOCH_SIZE: Final = 4
NONCE_SIZE: Final = 12
TAG_SIZE: Final = 16
CHUNK: Final = 64 << 10  # bytes of a file's content that are sealed in one piece

SEALED_PLAIN: Final = 3  # first byte of a sealed record: a value in the row without metadata
SEALED: Final = 4  # the same for every other record
_START: Final = 1 + EPOCH_SIZE  # where the nonce begins in a sealed record
_BODY: Final = _START + NONCE_SIZE
_SMALLEST: Final = _BODY + TAG_SIZE
_LENGTH: Final = struct.Struct("<I")
_CHUNK_NONCE: Final = struct.Struct(">7xIB")  # number of the chunk, 1 for the last
_SEALED_CHUNK: Final = CHUNK + TAG_SIZE


def new_cipher(key: bytes) -> AESGCM:
    """Return AES-256-GCM with `key`; raise MissingDependency if `cryptography` is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise missing_dependency("cryptography", "encryption", "encrypt=True") from error
    return AESGCM(key)


def hkdf_extract(secret: bytes) -> bytes:
    """Return what HKDF-SHA256 extracts from a secret; `hkdf_expand` needs only this, not the secret."""
    new_cipher(bytes(KEY_SIZE))  # to raise its MissingDependency
    import hmac

    return hmac.digest(b"diskcache_like encryption 1", secret, "sha256")


def hkdf_expand(extract: bytes, *purpose: bytes, size: int = KEY_SIZE) -> bytes:
    """Return the HKDF-SHA256 key for a purpose; each part goes in with its length, so parts cannot be confused."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = b"".join(_LENGTH.pack(len(part)) + part for part in purpose)
    return HKDFExpand(SHA256(), size, info).derive(extract)


def encrypt(cipher: AESGCM, plain: bytes, associated: bytes) -> bytes:
    """Return a new nonce followed by the sealed bytes."""
    nonce = os.urandom(NONCE_SIZE)
    return nonce + cipher.encrypt(nonce, plain, associated)


def decrypt(cipher: AESGCM, sealed: bytes, start: int, associated: bytes) -> bytes:
    """Return the plain bytes of what `encrypt` made, from `start` on; raise SignatureError if it was changed."""
    body = start + NONCE_SIZE
    try:
        return cipher.decrypt(sealed[start:body], sealed[body:], associated)
    except Exception as error:  # InvalidTag, or ValueError if there are too few bytes
        reraise_signal(error)
        raise SignatureError("sealed bytes were changed, or moved here from another place") from error


class DataKey:
    """The ciphers of one epoch."""

    __slots__ = ("_file", "_name", "_record", "_record_head", "decrypt", "epoch", "plain_head")

    def __init__(self, epoch: bytes, key: bytes) -> None:
        self.epoch = epoch
        self._record = new_cipher(hkdf_expand(key, b"record"))
        self.decrypt = self._record.decrypt
        self._name = new_cipher(hkdf_expand(key, b"key"))
        self._file = hkdf_expand(key, b"file")
        self.plain_head = bytes((SEALED_PLAIN,)) + epoch
        self._record_head = bytes((SEALED,)) + epoch

    def seal(self, stored_key: bytes, record: Record) -> bytes:
        """Return the sealed record of the entry with this stored key."""
        simple = record.is_simple()
        head, plain = (self.plain_head, record.payload) if simple else (self._record_head, pack_fields(record))
        nonce = os.urandom(NONCE_SIZE)
        return head + nonce + self._record.encrypt(nonce, plain, head + stored_key)

    def open(self, stored_key: bytes, packed: bytes) -> Record:
        """Return the record; raise SignatureError if it was changed or belongs to another entry."""
        plain = decrypt(self._record, packed, _START, packed[:_START] + stored_key)
        if packed[0] == SEALED_PLAIN:
            return Record(MODE_RAW, plain, signed=True)
        return unpack_fields(plain, signed=True)

    def seal_key(self, stored_key: bytes, canonical: bytes, original: bytes | None) -> bytes:
        """Return the sealed form of a key: its canonical bytes, and the original key if that is needed."""
        plain = _LENGTH.pack(len(canonical)) + canonical + (original or b"")
        return self.epoch + encrypt(self._name, plain, self.epoch + stored_key)

    def open_key(self, stored_key: bytes, sealed: bytes) -> tuple[bytes, bytes | None]:
        """Return the canonical bytes and the original key, if any, in a sealed key."""
        plain = decrypt(self._name, sealed, EPOCH_SIZE, self.epoch + stored_key)
        end = _LENGTH.size + _LENGTH.unpack_from(plain)[0]
        return plain[_LENGTH.size : end], plain[end:] or None

    def new_file(self) -> tuple[str, AESGCM]:
        """Return the name of a new value file and the cipher for its content."""
        identifier = os.urandom(16)
        return file_names.name_of(identifier), self.file_cipher(identifier)

    def file_cipher(self, identifier: bytes) -> AESGCM:
        """Return the cipher of the value file with this id."""
        return new_cipher(blake2b(identifier, key=self._file, person=b"dcl file", digest_size=KEY_SIZE).digest())


def epoch_of(packed: object) -> bytes:
    """Return the epoch of a sealed record; raise for anything else."""
    if type(packed) is not bytes:
        raise DecodeError("record is not a BLOB")
    if len(packed) < _SMALLEST or packed[0] not in (SEALED_PLAIN, SEALED):
        raise SignatureError("entry is not encrypted, but this cache is")
    return packed[1:_START]


def epoch_of_key(sealed: object) -> bytes:
    """Return the epoch of a sealed key; raise DecodeError for anything else."""
    if type(sealed) is not bytes or len(sealed) < EPOCH_SIZE + NONCE_SIZE + TAG_SIZE + _LENGTH.size:
        raise DecodeError("key is not sealed, but this cache is encrypted")
    return sealed[:EPOCH_SIZE]


# ------------------------------------------------------------------------------------------------------- value files


class ChunkSealer:
    """Seal the content of a file, which comes in pieces of any size, chunk by chunk.

    The nonce of a chunk says whether it is the last, so content is kept back until the end is known. The last chunk may
    be shorter than the others; it is empty only if there is no content.
    """

    def __init__(self, cipher: AESGCM) -> None:
        self._cipher = cipher
        self._kept = bytearray()
        self._number = 0

    def seal(self, piece: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Yield the chunks that `piece` completes."""
        view = memoryview(piece)
        while len(self._kept) + len(view) > CHUNK:
            room = CHUNK - len(self._kept)
            self._kept += view[:room]
            yield self._sealed(False)
            view = view[room:]
        self._kept += view

    def finish(self) -> bytes:
        """Return the last chunk."""
        return self._sealed(True)

    def _sealed(self, last: bool) -> bytes:
        sealed = self._cipher.encrypt(_CHUNK_NONCE.pack(self._number, last), bytes(self._kept), None)
        self._kept.clear()
        self._number += 1
        return sealed

    def mark(self) -> tuple[bytes, int]:
        """Return what `back_to` needs."""
        return bytes(self._kept), self._number

    def back_to(self, mark: tuple[bytes, int]) -> None:
        """Undo what was sealed since `mark`; next, seal the same content again: a nonce may serve only one content."""
        self._kept[:], self._number = mark


def sealed_pieces(cipher: AESGCM, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the sealed chunks of content that comes in pieces of any size."""
    sealer = ChunkSealer(cipher)
    for piece in pieces:
        yield from sealer.seal(piece)
    yield sealer.finish()


def plain_size(size: int) -> int:
    """Return the size of the content of a sealed file of `size` bytes; raise DecodeError if no file has that size."""
    chunks, rest = divmod(size, _SEALED_CHUNK)
    if size < TAG_SIZE or 0 < rest < TAG_SIZE or (rest == TAG_SIZE and chunks):
        raise DecodeError(f"a sealed value file cannot have {size} bytes")
    return size - TAG_SIZE * (chunks + (rest > 0))


class SealedFile(io.RawIOBase):
    """A file object for the content of a sealed file; a chunk is opened, and so verified, when it is first read."""

    def __init__(self, file: BinaryIO, cipher: AESGCM, size: int) -> None:
        self._file = file
        self._cipher = cipher
        self._end = plain_size(size)
        self._last = max(self._end - 1, 0) // CHUNK  # number of the last chunk
        self._position = 0
        self._number = -1
        self._chunk = b""

    @property
    def name(self) -> object:
        """Return the path of the file."""
        return self._file.name

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read from any position."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position in the content and return it."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}
        if whence not in starts or starts[whence] + offset < 0:
            raise ValueError(f"cannot seek to {offset!r} with whence {whence!r}")
        self._position = starts[whence] + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read at most the rest of a chunk into a buffer; raise SignatureError if the chunk was changed."""
        if self._position >= self._end:
            return 0
        number, offset = divmod(self._position, CHUNK)
        if number != self._number:
            self._chunk = self._opened(number)
            self._number = number
        view = memoryview(buffer).cast("B")
        piece = self._chunk[offset : offset + len(view)]
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks; raise SignatureError if one was changed."""
        for number in range(self._last + 1):
            yield self._opened(number)

    def _opened(self, number: int) -> bytes:
        self._file.seek(number * _SEALED_CHUNK)
        sealed = self._file.read(_SEALED_CHUNK)
        try:
            return self._cipher.decrypt(_CHUNK_NONCE.pack(number, number == self._last), sealed, None)
        except Exception as error:
            reraise_signal(error)
            raise SignatureError(f"chunk {number} of value file {self.name!r} was changed") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
