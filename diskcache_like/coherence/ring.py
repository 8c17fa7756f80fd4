"""The ring of the write buffer: the newest small writes of a shard, in a mapped file that all processes share.

It is a log that outlives its writer, from which the database is written in batches, and where readers find what is not
there yet. Records lie one behind the other. Each has an absolute offset, which only grows; where it lies is that modulo
the capacity. A table has, for each slot, the offset of its newest record, and a record that of the one before it in its
slot, leaving out earlier ones of its own key: so a walk is as long as there are keys in the slot. `_ring.c` reads and
writes records; this file opens the ring, and says what the database has of it.

Who may change what: only the holder of the write lock writes here, in this order: RESERVED, the content, the header,
LAST, HEAD, the table.

* RESERVED covers what is about to be overwritten, and never goes back. A reader that finds its record covered by it,
  after copying, did not get a whole record; what is overwritten is in the database by then.
* The header makes a record happen, since the content is there by then. A writer that dies before that has written
  nothing. For one that dies after that the next holder ends the append (`mend`): a whole record that HEAD left out
  would stay where the next record may not overwrite it, and be taken for that one. The unsettled tick tells.
* FLUSHED is the offset up to which the database has everything. It is set after the commit that flushes the records: a
  writer that dies in between leaves them to be flushed once more, and nothing newer can be in the database by then.
* FLOOR is where walks end. Whoever writes the database in another way, when everything is flushed, sets it to HEAD
  before the commit: so no reader takes a record for newer than that commit.
* CARRYING is not 0 while a commit is under way that brings what waits into the database, and more beside. FLOOR can be
  raised only after it, so a reader that sees this word before its walk asks the database which of the two is newer. A
  writer that dies leaves it set; then only the database knows what was committed (`WriteBuffer.mend`).

Readers need no lock. They copy a record, then look at RESERVED again, then compare the header's checksum; the content
verifies itself, as in a row. Loads that acquire and stores that release keep that order on every CPU.

Each header has the checksum of the header before it. So what a power loss leaves, pages in any order, counts as far as
the chain holds from the place that the database names, as in SQLite's WAL.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ..errors import DecodeError, DiskFull, file_error
from ..system.boot import boot_id
from ..system.signals import reraise_signal
from . import _native
from .control_files import allocate, extend, fill_holes, open_control_file
from .generations import MAX_SLOTS, prime_below

PAGE: Final = 4096
LEAST_CAPACITY: int = 1 << 14
LEAST_SLOTS: int = 2  # of which the smallest prime is one
MOST_CAPACITY: Final = 1 << 30  # what the setting allows

_HIDDEN: Final = 8  # bytes before HEAD in which no record begins, as each is longer; so all is hidden and yet marked
_MAGIC: Final = int.from_bytes(b"dcl-buf\2", "big")
_LOW: Final = (1 << 32) - 1
_MARK: Final = Struct("<QQI")


class Word:
    """Indices of the words of the first page."""

    MAGIC, SLOTS, CAPACITY, ID, BOOT, FILE, EPOCH = range(7)
    RESERVED: Final = _native.RESERVED
    LAST: Final = _native.LAST
    HEAD: Final = _native.HEAD
    FLUSHED: Final = _native.FLUSHED
    FLUSHED_LAST: Final = _native.FLUSHED_LAST
    FLOOR: Final = _native.FLOOR
    CARRYING: Final = _native.CARRYING


new_tuple: Final = tuple.__new__  # of a named tuple with all its fields: what its own does, in half the time


class Written(NamedTuple):
    """One record: the newest write of a key."""

    tick: int
    home: int
    stored_key: bytes
    packed: bytes | None  # None for a removal
    expire: float | None = None
    fresh: float | None = None
    tags: str | None = None
    original_key: bytes | None = None
    is_plain: bool = True  # a record without further columns

    @property
    def is_damage(self) -> bool:
        """Tell whether it stands for a write that cannot be read: no write has the number 0."""
        return not self.tick


class Mark(NamedTuple):
    """What the database says of the ring: up to where it has everything, and the checksum before the next record."""

    ring: int
    flushed: int
    last: int

    def packed(self) -> bytes:
        """Return it as it is stored."""
        return _MARK.pack(*self)

    @classmethod
    def of(cls, content: object) -> Mark | None:
        """Return what is stored; None for anything else."""
        mark = cls(*_MARK.unpack(content)) if type(content) is bytes and len(content) == _MARK.size else None
        return mark if mark is not None and mark.flushed < _native.FARTHEST else None


class Ring:
    """Map the ring of one shard."""

    __slots__ = ("_mapping", "capacity", "core", "file", "read", "slots", "words")

    def __init__(self, mapping: mmap.mmap, capacity: int, slots: int, file: int) -> None:
        self._mapping: mmap.mmap | None = mapping
        self.words = _native.Words(mapping, 0, PAGE // 8)
        self.core = _native.Ring(mapping, PAGE, capacity, slots, prime_below(slots))
        self.read = self.core.read  # the record of a key alone, in one call
        self.capacity = capacity
        self.slots = slots
        self.file = file

    @property
    def allocated(self) -> int:
        """Return the bytes that the file takes."""
        return PAGE + self.capacity + 8 * self.slots

    @classmethod
    def open(cls, path: str, slots: int, capacity: int, shared: bool = False, may_grow: bool = True) -> Ring | None:
        """Map the file, made or made longer if need be; return None where there is no room for that.

        The slots and the capacity of a file that is there win. Who does not hold the write lock says that the file may
        not grow, since another process may just be making it. A whole file may hold what the database does not have:
        raises DirectoryError if it cannot be mapped, and DiskFull if it is a copy with holes that the disk has no room
        to fill.
        """
        try:
            descriptor = open_control_file(Path(path), create=True, shared=shared)
        except DiskFull:
            return None
        is_short = False
        try:
            status = os.fstat(descriptor)
            capacity, slots = max(capacity, LEAST_CAPACITY) // PAGE * PAGE, max(slots, LEAST_SLOTS)
            slots, capacity = _sizes_in(descriptor, status.st_size) or (slots, capacity)
            size = PAGE + capacity + 8 * slots
            is_short = status.st_size < size
            if is_short and not (may_grow and (allocate(descriptor, size) or extend(descriptor, size))):
                return None
            fill_holes(descriptor, size)
            mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            ring = cls(mapping, capacity, slots, file_number(status))
            if is_short:
                ring.words[Word.FILE] = 0  # what its words are about was cut off
            return ring
        except OSError as error:
            reraise_signal(error)
            problem = file_error(error, path)
            if is_short and isinstance(problem, DiskFull):
                return None
            raise problem from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let nobody find anything here any more; the mapping goes with the last reader that is using it."""
        self.core.close()  # first: a reader that finds nothing asks whether the ring is closed
        self.core, self.read, self.words = _CLOSED, _CLOSED.read, _NO_WORDS
        self._mapping = None

    # -- whose it is --------------------------------------------------------------------------------------------------

    def belongs_to(self, number: int, epoch: int) -> bool:
        """Tell whether the words here can be believed: made on this boot, in this very file, for this database."""
        words = self.words
        return (
            words[Word.ID] == number > 1
            and words[Word.EPOCH] == epoch
            and words[Word.BOOT] == boot_id() != 0
            and words[Word.FILE] == self.file
            and words[Word.MAGIC] == _MAGIC
            and words[Word.CAPACITY] == self.capacity
            and words[Word.SLOTS] == self.slots
        )

    def is_new(self) -> bool:
        """Tell whether nobody has begun with the file."""
        return self.words[Word.MAGIC] == 0

    def holds(self, mark: Mark | None) -> bool:
        """Tell whether this may have what a database with this mark lacks; the write lock is held."""
        words = self.words
        is_ours = words[Word.MAGIC] == _MAGIC and words[Word.CAPACITY] == self.capacity
        return mark is not None and is_ours and mark.ring == words[Word.ID]

    def begin(self, mark: Mark | None, epoch: int, anew: int) -> int:
        """Take over what is here and not in a database whose mark this is; return the ring's number.

        `anew`: the number that it gets where there is nothing to take over. The write lock is held. The words are not
        believed: they may be of another moment than the bytes, or the database.
        """
        words = self.words
        known = mark if self.holds(mark) else None
        words[Word.BOOT] = 0  # nobody believes the words until all of them are whole again; ID stays, for another try
        flushed = self.capacity if mark is None else max(mark.flushed, self.capacity)
        if known is None:
            number, first, reserved = anew, anew & _LOW, 0
            flushed += self.capacity  # nothing that lies here has such an offset
        else:
            number, first, reserved = known.ring, known.last, words[Word.RESERVED]
        head, last = self.core.take_over(flushed, first)
        words[Word.RESERVED] = reserved if head <= reserved <= head + self.capacity else head
        words[Word.LAST] = _joined(last, head)
        words[Word.HEAD] = head
        words[Word.FLUSHED] = words[Word.FLOOR] = flushed
        words[Word.FLUSHED_LAST] = _joined(first, flushed)
        words[Word.CARRYING] = 0
        words[Word.MAGIC], words[Word.CAPACITY], words[Word.SLOTS] = _MAGIC, self.capacity, self.slots
        words[Word.FILE], words[Word.EPOCH], words[Word.ID] = self.file, epoch, number
        words[Word.BOOT] = boot_id()
        return number

    def newest_tick(self) -> int:
        """Return the highest number of the writes that wait, 0 if nothing does; the lock is held."""
        return self.core.newest_tick()

    def follow(self, mark: Mark) -> None:
        """Let the next record follow a mark at HEAD that the database has by now."""
        words = self.words
        words[Word.FLUSHED_LAST] = words[Word.LAST] = _joined(mark.last, mark.flushed)

    def mark(self) -> Mark:
        """Return what the database is to say once everything up to HEAD is in it."""
        words = self.words
        return Mark(words[Word.ID], words[Word.HEAD], words[Word.LAST] >> 32)

    def flushed_mark(self) -> Mark:
        """Return what a database is to say that has everything up to FLUSHED, and lacks what waits.

        FLUSHED_LAST, which is stored before FLUSHED, tells if a writer died between them.
        """
        words = self.words
        flushed, last = words[Word.FLUSHED], words[Word.FLUSHED_LAST]
        ahead = last - flushed & _LOW
        return Mark(words[Word.ID], flushed + (ahead if ahead <= words[Word.HEAD] - flushed else 0), last >> 32)

    # -- writing ------------------------------------------------------------------------------------------------------

    def is_sound(self) -> bool:
        """Tell whether the offsets in the words can be true beside each other; the lock is held."""
        return self.core.is_sound()

    def append(self, what: Written) -> bool:
        """Append a record; return False if everything has to be flushed first, for want of room or of a short walk.

        The write lock is held.
        """
        tick, home, stored_key, packed, expire, fresh, tags, original_key, is_plain = what
        row = packed if is_plain else (packed, expire, fresh, tags, 0, None, original_key)
        return self.core.append(tick, tick, home, stored_key, row)

    def mend(self) -> None:
        """Finish the append or flush that a writer died in, or was interrupted in; the lock is held.

        Damaged content does not end the chain: it costs its key alone, since the next record follows the header.
        """
        mark = self.flushed_mark()
        self.core.mend(mark.flushed, mark.last)

    def waiting(self) -> int:
        """Return the bytes that are not flushed yet."""
        words = self.words
        return words[Word.HEAD] - words[Word.FLUSHED]

    def hide_flushed(self) -> None:
        """Let no reader find what is flushed: the database is about to be written in another way."""
        words = self.words
        words[Word.FLOOR] = words[Word.FLUSHED]

    def is_marked(self) -> bool:
        """Tell whether the database has said, since it was written in another way, what the next record follows."""
        words = self.words
        return words[Word.FLOOR] < words[Word.HEAD]

    def gather(self, most: int) -> tuple[dict[bytes | int, _native.Net], Mark | None]:
        """Return what waiting records come to, from the oldest on until more than `most` keys are among them.

        The mark is that of the last of them, None if nothing waits. A record whose content is damaged counts as a
        removal of every key of its hash. Raises DecodeError for a damaged header. The lock is held, or the
        caller checks by the tick that nothing was written meanwhile.
        """
        found = self.core.gather(most)
        if found is None:
            raise _damaged()
        net, end, last = found
        return net, Mark(self.words[Word.ID], end, last) if net else None

    def flushed(self, mark: Mark) -> None:
        """Note that everything up to a mark is in the database."""
        words = self.words
        words[Word.FLUSHED_LAST] = _joined(mark.last, mark.flushed)
        words[Word.FLUSHED] = mark.flushed

    def carry(self, mark: Mark) -> None:
        """Say that a commit under way brings everything up to a mark at HEAD into the database, and more beside."""
        self.words[Word.CARRYING] = mark.flushed

    def carried(self, mark: Mark) -> None:
        """Let no reader find what such a commit has brought into the database, and the next record follow its mark."""
        words = self.words
        self.follow(mark)
        words[Word.FLUSHED] = mark.flushed
        words[Word.FLOOR] = mark.flushed - _HIDDEN
        words[Word.CARRYING] = 0

    def drop(self, mark: Mark) -> None:
        """Forget everything up to a mark at HEAD that the database has by now; the lock is held.

        FLOOR comes first. Ahead of FLUSHED it is not sound, so if this process dies before the end, the next holder
        takes the ring over by the mark.
        """
        words = self.words
        words[Word.FLOOR] = words[Word.HEAD]
        self.follow(mark)
        words[Word.FLUSHED] = words[Word.HEAD]

    def wipe(self) -> None:
        """Overwrite everything; the lock is held, and everything is flushed."""
        words, capacity = self.words, self.capacity
        words[Word.RESERVED] = words[Word.HEAD] + capacity  # whoever copies a record meanwhile asks the database
        self.hide_flushed()
        mapping = self._mapping
        if mapping is not None:
            mapping[PAGE : PAGE + capacity] = bytes(capacity)
            mapping.flush()

    # -- reading ------------------------------------------------------------------------------------------------------

    def is_closed(self) -> bool:
        """Tell whether `close` has begun: from then on `find` may miss what is here."""
        return self.core.is_closed()

    def find(self, home: int, stored_key: bytes) -> Written | None:
        """Return the newest write of a key if it is here; raise DecodeError for damage. Needs no lock.

        None means that the database has it: everything that is overwritten or below FLOOR is there. A ring that is
        closed has nothing: see `is_closed`.
        """
        found = self.core.find(home, stored_key)
        if found is None:
            return None
        if isinstance(found, bool):
            raise _damaged()
        return new_tuple(Written, found)


_NO_WORDS: Final = _native.Words(bytearray(PAGE), 0, PAGE // 8)
_CLOSED: Final = _native.Ring(bytearray(PAGE + 16), PAGE, 8, 1, 1)
_CLOSED.close()


def file_number(status: os.stat_result) -> int:
    """Return a number that tells a file from others, as long as it is open."""
    return hash((status.st_dev, status.st_ino)) & (1 << 63) - 1


def _sizes_in(descriptor: int, size: int) -> tuple[int, int] | None:
    """Return the slots and the capacity of the ring in a file; None if there is none, or the sizes are impossible."""
    head = os.pread(descriptor, PAGE, 0)
    if len(head) < PAGE:
        return None
    words = memoryview(head).cast("Q")
    slots, capacity = words[Word.SLOTS], words[Word.CAPACITY]
    is_possible = (
        capacity % PAGE == 0 and LEAST_CAPACITY <= capacity <= MOST_CAPACITY and LEAST_SLOTS <= slots <= MAX_SLOTS
    )
    is_whole = words[Word.MAGIC] == _MAGIC and is_possible and PAGE + capacity + 8 * slots <= size
    return (slots, capacity) if is_whole else None


def _damaged() -> DecodeError:
    return DecodeError("a record of the write buffer is damaged")


def _joined(check: int, offset: int) -> int:
    """Return a word with a checksum and the offset that it belongs to, so that both change at once."""
    return check << 32 | offset & _LOW
