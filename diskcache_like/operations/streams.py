"""Streams: values that are bytes, read and written in pieces."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, Unpack, overload

from ..disk.file_io import CHUNK
from ..disk.value_files import Encoded
from ..encoding.tags import pack_tags
from ..entries.loading import ENOVAL
from ..entries.row_codec import KEEP, discard
from ..errors import DiskFull, named
from ..settings.lifetimes import Expiry
from ..settings.misuse import NoOthers, unexpected
from .parts import Parts

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ..storage.interface import EntryStore

SPOOLED = 1 << 20  # bytes that a stream keeps in memory for a Disk that encodes values itself


class Streams(Parts):
    """The operations on values that are too large to be held whole."""

    @overload
    def open(self, key: Any, mode: Literal["r", "rb"] = ..., *, retry: bool = ...) -> BinaryIO: ...
    @overload
    def open(
        self,
        key: Any,
        mode: Literal["w", "wb"],
        expire: Expiry | None = ...,
        tag: Any = ...,
        retry: bool = ...,
        *,
        tags: Iterable[Any] | None = ...,
    ) -> StreamWriter: ...
    def open(
        self,
        key: Any,
        mode: str = "rb",
        expire: Expiry | None = None,
        tag: Any = None,
        retry: bool = False,
        *,
        tags: Iterable[Any] | None = None,
        **others: Unpack[NoOthers],
    ) -> BinaryIO | StreamWriter:
        """Open the bytes of `key` as a binary stream, for reading ("rb") or for writing ("wb").

        A reader is seekable and reads what was there when it was opened, whatever happens to the entry; the content has
        been verified. Raises KeyError if the key is missing or expired, TypeError if its value is not bytes.

        A writer stores what was written to it when it is closed; `expire` counts from then. If an exception ends its
        with-block, or if it is discarded or forgotten, it stores nothing and leaves nothing behind. Closing waits for
        the write lock as `set` does, or without limit in a cache that would give up silently (FanoutCache).
        """
        if others:
            raise unexpected(Streams.open, others)
        if mode in ("w", "wb"):
            self._rows.metadata_or_keep(expire, b"")  # raises for an expiry that cannot be
            return StreamWriter(self, key, expire, pack_tags(tag, tags, key), retry)
        if mode not in ("r", "rb"):
            raise ValueError(f"mode is {mode!r}, expected 'rb' or 'wb'; to append, read and write again")
        found = self._loader.get(key, ENOVAL, True, False, False, None)
        if found is ENOVAL:
            raise KeyError(key)
        if not hasattr(found, "readinto"):
            raise TypeError(
                f"value of key {named(key)} is a {type(found).__qualname__}, expected bytes, which `open` reads"
            )
        stream: BinaryIO = found
        return stream

    def _put_stream(self, writer: StreamWriter, encoded: Encoded) -> None:
        """Store what a stream wrote under its key."""
        rows = self._rows
        stored_key, home, store = location = rows.locate(writer.key)
        wait = self._wait_for_all(writer.retry)
        try:
            metadata = rows.metadata_or_keep(writer.expire, writer.tags)
            row = rows.row(writer.key, location, encoded, rows.kept(metadata, None))
            if rows.is_oversize(row):
                raise rows.too_large(writer.key)
            if metadata.expire is KEEP:
                store.update(home, stored_key, rows.keeping(writer.key, location, encoded, metadata), wait)
            else:
                store.put(home, stored_key, row, wait)
        except BaseException:
            discard(store, encoded)
            raise


class StreamWriter(io.BufferedIOBase):
    """What `open(key, "wb")` returns: a binary stream whose content becomes the value of the key on closing."""

    def __init__(self, cache: Streams, key: Any, expire: Expiry | None, tags: bytes, retry: bool) -> None:
        self.key = key
        self.expire = expire
        self.tags = tags
        self.retry = retry
        self._cache = cache
        self._store: EntryStore = cache._rows.locate(key)[2]
        self._process = os.getpid()
        self._size = 0
        self._start = bytearray()  # until the value is large enough for a file
        self._file: Any = None if self._store.disk.own_values else _Spool(self._store, key)

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        self._check_open()
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        """Append bytes; discard the stream and raise DiskFull or ValueTooLarge if there is no room for them."""
        self._check_open()
        piece = memoryview(data).cast("B")
        self._size += len(piece)
        try:
            if self._size > self._cache._handle.value_limit:
                raise self._cache._rows.too_large(self.key)
            if self._file is not None:
                self._append(piece)
            elif self._size < self._store.disk.min_file_size:
                self._start += piece
            else:
                disk = self._store.disk
                self._file = disk.new_file(disk.filename(self.key)[0])
                self._append(self._start)
                self._append(piece)
                self._start = bytearray()
        except BaseException:
            self.discard()
            raise
        return len(piece)

    def _append(self, data: bytearray | memoryview) -> None:
        for start in range(0, len(data), CHUNK):
            piece = memoryview(data)[start : start + CHUNK]
            try:
                self._file.write(piece)
            except DiskFull:
                if not self._store.make_room(self._cache._handle.timeout):
                    raise
                self._file.write(piece)

    def close(self) -> None:
        """Store what was written; a failure stores nothing and leaves nothing behind."""
        if self.closed:
            return
        try:
            self._check_open()
            if self._file is None:
                encoded = self._store.disk.encode(bytes(self._start), False, self.key)
            else:
                encoded = self._file.finish(self._store.disk.sync)
            self._cache._put_stream(self, encoded)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the stream and store nothing."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the stream is closed")
        if self._process != os.getpid():
            raise ValueError("the stream belongs to the process that this one was forked from, which will store it")

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The base class's would close the stream, and so store only a part of what the caller meant to write.
        if hasattr(self, "_file"):
            self.discard()


class _Spool:
    """A temporary file, for a Disk that encodes by itself what it reads."""

    def __init__(self, store: EntryStore, key: Any) -> None:
        self._disk = store.disk
        self._key = key
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOLED, dir=store.directory)  # noqa: SIM115

    def write(self, piece: bytes) -> None:
        self._file.write(piece)

    def finish(self, sync: bool) -> Encoded:
        self._file.seek(0)
        return self._disk.encode(self._file, True, self._key)

    def discard(self) -> None:
        self._file.close()
