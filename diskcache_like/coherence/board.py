"""The board: the newest small records in shared memory, so that one process's write is no cold read in all others.

A cell holds one record with the generation that its slot settled on after the record's commit. The writer fills it
under the write lock, after the commit and before it makes the slot even; a reader takes a record from it only if the
slot shows exactly that even generation before and after copying. So what is taken is what the last commit to that slot
wrote, and a slot that was written since, is being written, or was left odd by a writer that died sends the reader to
SQLite as always. Records verify themselves (checksum or tag over key and content), on the board as in a row.

Copying is not atomic. A cell that is overwritten meanwhile, be it for another key, is noticed by a second look at its
generation: the writer takes the generation away before it touches the rest and puts the new one in last, and no two
records have the same. On x86-64 that suffices, because neither loads nor stores are reordered among themselves there.
Elsewhere there is no board.

Whoever holds the write lock, so that no slot changes, may take a record from here as the newest in the same way.

The content never has to survive anything. The file is made without a lock, because every state of it is a valid one.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from diskcache_like.coherence.generations import open_private
from diskcache_like.errors import DirectoryError, DiskFull, UnsafeDirectory

from ..interrupts import let_through

CELL: Final = 256  # bytes
CELLS: Final = 2039  # a prime: short keys have regular hashes
SIZE: Final = CELL * 2048
ROOM: Final = CELL - 24  # bytes that a record may have, behind three words: generation, hash of the key, length
NO_ENTRY: Final = b"\0"  # put up in place of a record: the commit removed the entry. Wiped cells do not say that.
_TAKEN_AWAY: Final = 1  # odd, so no reader asks for it


class Board:
    """Map the board of one shard."""

    __slots__ = ("_bytes", "_mapping", "_words")

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._bytes = memoryview(mapping)
        self._words = self._bytes.cast("Q")

    @classmethod
    def open(cls, path: str, shared: bool = False) -> Board | None:
        """Open the board, making or completing its file; None where that cannot be, since a cache works without it."""
        try:
            descriptor = open_private(Path(path), create=True, shared=shared)
        except (DirectoryError, DiskFull, UnsafeDirectory):
            return None
        try:
            # Allocated, not only sized: storing into a hole on a full disk kills the process.
            os.posix_fallocate(descriptor, 0, SIZE)
            return cls(mmap.mmap(descriptor, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        except OSError as error:
            let_through(error)
            return None
        finally:
            os.close(descriptor)

    def post(self, h: int, generation: int, record: bytes) -> None:
        """Put up a record that is committed; the caller holds the write lock and settles the slot afterwards."""
        words, cell = self._words, h % CELLS * (CELL // 8)
        words[cell] = _TAKEN_AWAY
        start = cell * 8 + 24
        self._bytes[start : start + len(record)] = record
        words[cell + 1] = h
        words[cell + 2] = len(record)
        words[cell] = generation

    def look(self, h: int, generation: int) -> bytes | None:
        """Return what was put up for this hash and generation; the caller looks at the slot before and after it."""
        words, cell = self._words, h % CELLS * (CELL // 8)
        if words[cell] != generation or words[cell + 1] != h:
            return None
        start = cell * 8 + 24
        record = bytes(self._bytes[start : start + min(words[cell + 2], ROOM)])
        return record if words[cell] == generation else None

    def clear(self) -> None:
        """Wipe every cell; under the write lock, when generations begin anew and old ones might come again."""
        self._bytes[:] = bytes(SIZE)

    def close(self) -> None:
        """Let go of the mapping; a reader that is at it keeps it until it is done."""
        self._bytes = memoryview(bytearray(SIZE))  # a writer may be about to post
        self._words = self._bytes.cast("Q")
        try:
            self._mapping.close()
        except BufferError:
            return  # unmapped when the last view is gone
