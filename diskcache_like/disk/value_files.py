"""Value files: the part of `Disk` that writes files with their digests, and verifies a file before anything is read.

In an encrypted cache each value file is sealed with a key of its own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from io import RawIOBase
from typing import BinaryIO

from ..crypto.aead import CHUNK, ChunkSealer, SealedFile, sealed_pieces
from ..crypto.keyring import Sealer
from ..encoding import file_names
from ..encoding.checksum import crc32
from ..encoding.record import MODE_BINARY, MODE_PICKLE, Record
from ..errors import DecodeError, SignatureError
from ..system.paths import mode_of
from . import file_io

DIGEST_SIZE = 32  # bytes of the BLAKE2b over a file whose record is authenticated; the record's tag covers the digest

# An encoded value: (mode, payload of the record, name of the value file that was written or None, size of that file).
Encoded = tuple[int, bytes, str | None, int]


class _Digest:
    """The digest of a file's content: CRC-32, or BLAKE2b if the record is authenticated."""

    def __init__(self, strong: bool) -> None:
        self._strong = blake2b(digest_size=DIGEST_SIZE) if strong else None
        self._crc = 0

    def update(self, piece: file_io.Buffer) -> None:
        """Add the next piece of the content."""
        if self._strong is not None:
            self._strong.update(piece)
        else:
            self._crc = crc32(piece, self._crc)

    def digesting(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces unchanged, and digest them meanwhile."""
        for piece in pieces:
            self.update(piece)
            yield piece

    def value(self) -> bytes:
        return self._crc.to_bytes(4, "little") if self._strong is None else self._strong.digest()


def _digest_of(pieces: Iterable[file_io.Buffer], strong: bool) -> bytes:
    digest = _Digest(strong)
    for piece in pieces:
        digest.update(piece)
    return digest.value()


class NewValue:
    """Bytes that are being written to a value file, and digested meanwhile."""

    def __init__(self, file: file_io.NewFile, strong: bool) -> None:
        self._file = file
        self._digest = _Digest(strong)

    def write(self, piece: file_io.Buffer) -> None:
        """Append a piece; after DiskFull nothing of it was written, and the caller may try again."""
        self._file.write(piece)
        self._digest.update(piece)

    def finish(self, sync: bool) -> Encoded:
        """Give the file its name and return the encoded value."""
        self._file.finish(sync)
        return MODE_BINARY, self._digest.value(), self._file.name, self._file.size

    def discard(self) -> None:
        """Delete what was written."""
        self._file.discard()


class _SealedValue(NewValue):
    """Bytes that are being written to a sealed value file, whose key is derived from its name."""

    def __init__(self, directory: str, sealer: Sealer) -> None:
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        self._file = file_io.NewFile(directory, name)
        self._epoch = data_key.epoch
        self._sealer = ChunkSealer(cipher)

    def write(self, piece: file_io.Buffer) -> None:
        """Append a piece; after DiskFull nothing of it was written, and the caller may try again, but only with it."""
        mark = self._sealer.mark()
        try:
            self._file.write(b"".join(self._sealer.seal(piece)))
        except BaseException:
            self._sealer.back_to(mark)
            raise

    def finish(self, sync: bool) -> Encoded:
        """Write the last chunk, give the file its name and return the encoded value."""
        self._file.write(self._sealer.finish())
        self._file.finish(sync)
        return MODE_BINARY, self._epoch, self._file.name, self._file.size


class ValueFiles:
    """Write and verify the value files of a directory."""

    sealer: Sealer | None = None  # seals everything that is stored, in an encrypted cache

    def __init__(self, directory: str) -> None:
        self._directory = str(directory)
        self.authenticates = False  # every record is signed, not only pickles
        self.sync = False  # value files reach stable storage before their row is committed

    def write_file(self, mode: int, pieces: Iterable[bytes], name: str) -> Encoded:
        """Write a value file under a new name, and return the encoded value."""
        digest = _Digest(self._strong(mode))
        size = file_io.write(self._directory, name, digest.digesting(pieces), self.sync)
        return mode, digest.value(), name, size

    def write_sealed(self, mode: int, pieces: Iterable[bytes], sealer: Sealer) -> Encoded:
        """Write a value file sealed with a key of its own; the payload is the epoch of the data key behind that."""
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        size = file_io.write(self._directory, name, sealed_pieces(cipher, pieces), self.sync)
        return mode, data_key.epoch, name, size

    def sealed_file(self, record: Record) -> SealedFile:
        """Open the sealed value file of a record; its content is verified as it is read."""
        assert record.file is not None
        assert self.sealer is not None
        identifier = file_names.to_column(record.file)
        if not isinstance(identifier, bytes):
            raise DecodeError(f"value file {record.file!r} of an encrypted entry has no name made from an id")
        cipher = self.sealer.key_of(record.payload).file_cipher(identifier)
        reader = self._opened(record)
        try:
            return SealedFile(reader, cipher, record.size)
        except BaseException:
            reader.close()
            raise

    def _content(self, record: Record) -> RawIOBase | BinaryIO:
        """Open the value file of a record, sealed or not, without verifying anything yet."""
        assert record.file is not None
        return file_io.open_read(self._directory, record.file) if self.sealer is None else self.sealed_file(record)

    def new_file(self, name: str) -> NewValue:
        """Begin a value file of this name that is written piece by piece, for a value that is a byte string.

        In an encrypted cache it is named after its key instead.
        """
        if self.sealer is not None:
            return _SealedValue(self._directory, self.sealer)
        return NewValue(file_io.NewFile(self._directory, name), self._strong(MODE_BINARY))

    def _digest_of(self, filename: str, strong: bool) -> bytes:
        with file_io.open_read(self._directory, filename) as reader:
            return _digest_of(file_io.chunks(reader), strong)

    def _opened(self, record: Record) -> BinaryIO:
        """Open the value file of a record and compare its size."""
        return file_io.open_read(self._directory, self._name(record), record.size)

    def _name(self, record: Record) -> str:
        """Return the name of the record's value file, of which the record proves as much as the cache demands."""
        assert record.file is not None
        if record.signed and len(record.payload) != DIGEST_SIZE and self.sealer is None:
            raise SignatureError("value file of an authenticated entry has no authenticated digest")
        return record.file

    def _compare(self, record: Record, pieces: Iterable[file_io.Buffer]) -> None:
        if _digest_of(pieces, len(record.payload) == DIGEST_SIZE) != record.payload:
            raise DecodeError(f"value file {record.file!r} does not match its checksum")

    def _verified_reader(self, record: Record) -> BinaryIO:
        """Open the value file of a record and compare its size and digest."""
        if self.sealer is not None:
            return self._verified_sealed_reader(record)
        reader = self._opened(record)
        try:
            self._compare(record, file_io.chunks(reader))
            reader.seek(0)
        except BaseException:
            reader.close()
            raise
        return reader

    def _verified_sealed_reader(self, record: Record) -> BinaryIO:
        """Return a reader of a sealed file's content; all of it was verified here, and is again as it is read."""
        content = self.sealed_file(record)
        try:
            for _ in content.chunks():
                pass
        except BaseException:
            content.close()
            raise
        return io.BufferedReader(content, CHUNK)

    def _verified_memory(self, record: Record, into: int | memoryview) -> bytes | memoryview:
        """Read an unsealed value file once, and verify its content; `into` is as in `file_io.read`."""
        content = file_io.read(self._directory, self._name(record), into)
        self._compare(record, (content,))
        return content

    def _verified_content(self, record: Record) -> bytes:
        """Read the content of the value file once and verify it, so that what is decoded is what was verified."""
        if self.sealer is not None:
            with self.sealed_file(record) as sealed:
                return b"".join(sealed.chunks())
        return self._verified_memory(record, record.size)  # type: ignore[return-value]

    def has_file(self, record: Record) -> bool:
        """Tell whether the record has its value file, or needs none."""
        return record.file is None or mode_of(os.path.join(self._directory, record.file)) != 0

    def verify_file(self, record: Record) -> None:
        """Raise FileNotFoundError or DecodeError if the record's value file is missing or was changed."""
        self._verified_reader(record).close()

    def _strong(self, mode: int) -> bool:
        return self.authenticates or mode == MODE_PICKLE
