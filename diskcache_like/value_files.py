"""Value files: written, digested as they pass, and compared with their records before anything is read from them.

`ValueFiles` is the part of `Disk` that knows no values. In an encrypted cache each is sealed with a key of its own.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from io import RawIOBase
from typing import BinaryIO, TypeVar

from . import files
from .errors import DecodeError, SignatureError
from .keyring import Sealer
from .record import MODE_BINARY, MODE_PICKLE, Record
from .sealing import CHUNK, ChunkSealer, SealedFile, sealed_pieces

DIGEST_SIZE = 32  # bytes of a keyless BLAKE2b over a file whose record is authenticated

# An encoded value: (mode, payload for the record, value file that was written or None, size of that file).
Stored = tuple[int, bytes, str | None, int]

Piece = TypeVar("Piece", bound=files.Buffer)


class _Digest:
    """The digest of a file's content: CRC-32, or BLAKE2b where the record is authenticated."""

    def __init__(self, strong: bool) -> None:
        self._strong = blake2b(digest_size=DIGEST_SIZE) if strong else None
        self._crc = 0

    def passing(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield `pieces` unchanged while digesting them."""
        for piece in pieces:
            if self._strong is not None:
                self._strong.update(piece)
            else:
                self._crc = zlib.crc32(piece, self._crc)
            yield piece

    def value(self) -> bytes:
        return self._crc.to_bytes(4, "little") if self._strong is None else self._strong.digest()


class NewValue:
    """Bytes on their way into a value file, digested as they pass."""

    def __init__(self, file: files.NewFile, strong: bool) -> None:
        self._file = file
        self._digest = _Digest(strong)

    def write(self, piece: files.Buffer) -> None:
        """Append a piece; on DiskFull nothing of it is there, and it may be tried again."""
        self._file.write(piece)
        for _ in self._digest.passing((piece,)):
            pass

    def finish(self, sync: bool) -> Stored:
        """Return the encoded value, its file having its name."""
        self._file.finish(sync)
        return MODE_BINARY, self._digest.value(), self._file.name, self._file.size

    def discard(self) -> None:
        """Drop what was written."""
        self._file.discard()


class _SealedValue(NewValue):
    """Bytes on their way into a sealed value file, whose content key is derived from its name."""

    def __init__(self, directory: str, sealer: Sealer) -> None:
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        self._file = files.NewFile(directory, name)
        self._epoch = data_key.epoch
        self._sealer = ChunkSealer(cipher)

    def write(self, piece: files.Buffer) -> None:
        """Append a piece; on DiskFull nothing of it is there, and it alone may be tried again."""
        mark = self._sealer.mark()
        try:
            self._file.write(b"".join(self._sealer.seal(piece)))
        except BaseException:
            self._sealer.back_to(mark)
            raise

    def finish(self, sync: bool) -> Stored:
        """Return the encoded value, its file having its name."""
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

    def write_file(self, mode: int, pieces: Iterable[bytes], name: str) -> Stored:
        """Write a value file under a name that is new."""
        digest = _Digest(self._strong(mode))
        size = files.write(self._directory, name, digest.passing(pieces), self.sync)
        return mode, digest.value(), name, size

    def write_sealed(self, mode: int, pieces: Iterable[bytes], sealer: Sealer) -> Stored:
        """Write a value file under a key of its own; the payload is the epoch of the key that this is derived from."""
        data_key = sealer.current()
        name, cipher = data_key.new_file()
        size = files.write(self._directory, name, sealed_pieces(cipher, pieces), self.sync)
        return mode, data_key.epoch, name, size

    def sealed_file(self, record: Record) -> SealedFile:
        """Return the open value file of a record as its content, which is verified as it is read."""
        assert record.file is not None
        assert self.sealer is not None
        identifier = files.to_column(record.file)
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
        """Return the open value file of a record as its content, of which nothing was verified yet."""
        assert record.file is not None
        return files.open_read(self._directory, record.file) if self.sealer is None else self.sealed_file(record)

    def new_file(self) -> NewValue:
        """Return a value file to be written piece by piece, whose content will be the bytes of a value."""
        if self.sealer is not None:
            return _SealedValue(self._directory, self.sealer)
        return NewValue(files.NewFile(self._directory, files.new_name()), self._strong(MODE_BINARY))

    def _digest_of(self, filename: str, strong: bool) -> bytes:
        digest = _Digest(strong)
        with files.open_read(self._directory, filename) as reader:
            for _ in digest.passing(files.chunks(reader)):
                pass
        return digest.value()

    def _opened(self, record: Record) -> BinaryIO:
        """Return the open value file after comparing its size with the record."""
        assert record.file is not None
        if record.signed and len(record.payload) != DIGEST_SIZE and self.sealer is None:
            raise SignatureError("value file of an authenticated entry has no authenticated digest")
        reader = files.open_read(self._directory, record.file)
        if os.fstat(reader.fileno()).st_size != record.size:
            reader.close()
            raise DecodeError(f"value file {record.file!r} does not have the {record.size} bytes of its entry")
        return reader

    def _compare(self, record: Record, pieces: Iterable[bytes]) -> None:
        digest = _Digest(len(record.payload) == DIGEST_SIZE)
        for _ in digest.passing(pieces):
            pass
        if digest.value() != record.payload:
            raise DecodeError(f"value file {record.file!r} does not match its checksum")

    def _verified_reader(self, record: Record) -> BinaryIO:
        """Return the open value file after comparing its size and digest with the record."""
        if self.sealer is not None:
            return self._verified_sealed_reader(record)
        reader = self._opened(record)
        try:
            self._compare(record, files.chunks(reader))
            reader.seek(0)
        except BaseException:
            reader.close()
            raise
        return reader

    def _verified_sealed_reader(self, record: Record) -> BinaryIO:
        """Return a reader of the content, all of which was verified once, and is again as it is read."""
        content = self.sealed_file(record)
        try:
            content.verify()
        except BaseException:
            content.close()
            raise
        return io.BufferedReader(content, CHUNK)

    def _verified_content(self, record: Record) -> bytes:
        """Return the content of the value file, read once: what is decoded is what was compared."""
        if self.sealer is not None:
            with self.sealed_file(record) as sealed:
                return b"".join(sealed.chunks())
        with self._opened(record) as reader:
            content = reader.read(record.size)
        self._compare(record, (content,))
        return content

    def verify_file(self, record: Record) -> None:
        """Raise FileNotFoundError or DecodeError if the record's value file is missing or not as written."""
        self._verified_reader(record).close()

    def _strong(self, mode: int) -> bool:
        return self.authenticates or mode == MODE_PICKLE
