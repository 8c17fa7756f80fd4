"""Streams: values that are bytes, read and written in pieces."""

from __future__ import annotations

import io
import os
import tempfile
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, overload

from . import keys
from .entries import ENOVAL, Entries
from .errors import DiskFull, ValueTooLarge
from .files import CHUNK
from .packing import Expiry
from .queues import discard
from .value_files import Stored

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from .storage.store import Store

SPOOLED = 1 << 20  # bytes that a stream for another kind of Disk keeps in memory


class Streams(Entries):
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
    ) -> StreamWriter: ...
    def open(
        self, key: Any, mode: str = "rb", expire: Expiry | None = None, tag: Any = None, retry: bool = False
    ) -> BinaryIO | StreamWriter:
        """Open the bytes of `key` as a binary stream, for reading ("rb") or for writing ("wb").

        A reader is seekable and reads what was there when it was opened, whatever becomes of the entry; its content has
        been verified. Raises KeyError if the key is missing or expired, TypeError if its value is not bytes.

        A writer stores what is written to it when it is closed; `expire` counts from then. Left by an exception,
        discarded or forgotten, it stores nothing and leaves nothing behind. Closing waits for the write lock as `set`
        does, where a cache would give up a write silently (FanoutCache) without limit.
        """
        if mode in ("w", "wb"):
            self._expiry(expire)
            return StreamWriter(self, key, expire, keys.encode_tag(tag), retry)
        if mode not in ("r", "rb"):
            raise ValueError(f"mode is {mode!r}, expected 'rb' or 'wb'; to append, read and write again")
        found = self._get_cold(key, ENOVAL, True, False, False)
        if found is ENOVAL:
            raise KeyError(key)
        if not hasattr(found, "readinto"):
            raise TypeError(f"value of key {key!r} is a {type(found).__qualname__}, expected bytes, which `open` reads")
        stream: BinaryIO = found
        return stream

    def _mapped(self, key: Any, default: Any) -> Any:
        """Return the value of `key` on a mapping of its file if it has one; its use is noted already."""
        found = self._load(key, *self._locate(key), maps=True)
        return default if found is None else found[0]

    def _put_stream(self, writer: StreamWriter, encoded: Stored) -> None:
        """Store what a stream wrote under its key."""
        stored, h, store = self._locate(writer.key)
        try:
            row = self._row(writer.key, stored, encoded, self._expiry(writer.expire), writer.tag)
            if self._evicts and self._is_oversize(row):
                raise self._too_large(writer.key)
            store.upsert(h, stored, row, self._wait_for_all(writer.retry))
        except BaseException:
            discard(store, encoded)
            raise

    def _too_large(self, key: Any) -> ValueTooLarge:
        return ValueTooLarge(f"value of key {key!r} is larger than size_limit allows ({self._share} bytes)")


class StreamWriter(io.BufferedIOBase):
    """What `open(key, "wb")` returns: a binary stream whose content becomes the value of the key on closing."""

    def __init__(self, cache: Streams, key: Any, expire: Expiry | None, tag: bytes | None, retry: bool) -> None:
        self.key = key
        self.expire = expire
        self.tag = tag
        self.retry = retry
        self._cache = cache
        self._store: Store = cache._locate(key)[2]
        self._process = os.getpid()
        self._size = 0
        self._start = bytearray()  # until it is clear that the value is for a file
        self._file: Any = None if self._store.disk.own_values else _Spool(self._store, key)

    def writable(self) -> bool:
        """Tell that this can be written to."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        self._check_open()
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        """Append bytes; raise DiskFull or ValueTooLarge, and discard the stream, where there is no room for them."""
        self._check_open()
        piece = memoryview(data).cast("B")
        self._size += len(piece)
        try:
            if self._cache._evicts and self._size > self._cache._share:
                raise self._cache._too_large(self.key)
            if self._file is not None:
                self._append(piece)
            elif self._size < self._store.disk.min_file_size:
                self._start += piece
            else:
                self._file = self._store.disk.new_file()
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
                if not self._store.relieved(self._cache.timeout, for_file=True):
                    raise
                self._file.write(piece)

    def close(self) -> None:
        """Store what was written; on any failure nothing is stored, and nothing left."""
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
        # Not the base class's, which closes, and would so store a part of what was meant to be written.
        if hasattr(self, "_file"):
            self.discard()


class _Spool:
    """A temporary file, for a Disk that makes something of its own of what it is given to read."""

    def __init__(self, store: Store, key: Any) -> None:
        self._disk = store.disk
        self._key = key
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOLED, dir=store.directory)  # noqa: SIM115

    def write(self, piece: bytes) -> None:
        self._file.write(piece)

    def finish(self, sync: bool) -> Stored:
        self._file.seek(0)
        return self._disk.encode(self._file, True, self._key)

    def discard(self) -> None:
        self._file.close()
