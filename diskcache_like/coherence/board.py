"""The board: the newest small records in shared memory, so that a write in one process costs the others no cold read.

A cell holds one record and the generation that its slot settled on after the record's commit. The writer fills the
cell under the write lock, after the commit and before it makes the slot even. A reader takes the record only if the
slot shows exactly that even generation before and after it copies. So it gets what the last commit to that slot wrote.
If the slot was written since, is being written, or was left odd by a writer that died, the reader goes to SQLite as
usual. Records verify themselves (by a checksum or tag over key and content), on the board as in a row.

Copying is not atomic. A reader notices a cell that was overwritten meanwhile, even for another key, because it looks
at the cell's generation again: the writer clears the generation before it changes the rest and stores the new one
last, and no two records have the same. On x86-64 that suffices, because it reorders neither loads with loads nor
stores with stores. On other CPUs there is no board.

The holder of the write lock may take a record from here in the same way: no slot changes meanwhile.

The content need not survive anything. The file may be made without a lock, because every state of it is valid.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from ..errors import DirectoryError, DiskFull, UnsafeDirectory
from ..system.signals import reraise_signal
from .control_files import allocate, extend, open_control_file

CELL: Final = 256  # bytes
CELLS: Final = 2039  # a prime, because the hashes of short keys are regular
SIZE: Final = CELL * 2048
RECORD_LIMIT: Final = CELL - 24  # bytes; three words stand before the record: generation, hash of the key, length
NO_ENTRY: Final = b"\0"  # posted in place of a record: the commit removed the entry. A cleared cell does not say that.
_CLEARED: Final = 1  # odd, so no reader asks for it


class Board:
    """Map the board of one shard."""

    __slots__ = ("_bytes", "_mapping", "_words")

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._bytes = memoryview(mapping)
        self._words = self._bytes.cast("Q")

    @classmethod
    def open(cls, path: str, shared: bool = False, locked: bool = False) -> Board | None:
        """Open the board and make its file if necessary; return None if that fails: a cache works without it.

        If the system cannot allocate in advance, only who holds the write lock (`locked`) can make the file.
        """
        try:
            descriptor = open_control_file(Path(path), create=True, shared=shared)
        except (DirectoryError, DiskFull, UnsafeDirectory):
            return None
        try:
            if not (
                allocate(descriptor, SIZE)
                or os.fstat(descriptor).st_size >= SIZE
                or (locked and extend(descriptor, SIZE))
            ):
                return None
            return cls(mmap.mmap(descriptor, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        except OSError as error:
            reraise_signal(error)
            return None
        finally:
            os.close(descriptor)

    def post(self, h: int, generation: int, record: bytes) -> None:
        """Post a committed record; the caller holds the write lock and settles the slot afterwards."""
        words, cell = self._words, h % CELLS * (CELL // 8)
        words[cell] = _CLEARED
        start = cell * 8 + 24
        self._bytes[start : start + len(record)] = record
        words[cell + 1] = h
        words[cell + 2] = len(record)
        words[cell] = generation

    def find(self, h: int, generation: int) -> bytes | None:
        """Return what was posted for this hash and generation; the caller looks at the slot before and afterwards."""
        words, cell = self._words, h % CELLS * (CELL // 8)
        if words[cell] != generation or words[cell + 1] != h:
            return None
        start = cell * 8 + 24
        record = bytes(self._bytes[start : start + min(words[cell + 2], RECORD_LIMIT)])
        return record if words[cell] == generation else None

    def clear(self) -> None:
        """Clear every cell, under the write lock: generations start anew, so an old one might come up again."""
        self._bytes[:] = bytes(SIZE)

    def close(self) -> None:
        """Drop the mapping; a reader that is using it keeps it until it is done."""
        self._bytes = memoryview(bytearray(SIZE))  # a writer may be about to post
        self._words = self._bytes.cast("Q")
        try:
            self._mapping.close()
        except BufferError:
            return  # it is unmapped when the last view is gone
