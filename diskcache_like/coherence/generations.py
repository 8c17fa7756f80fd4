"""The generation file: shared memory in which processes tell each other that an entry may have changed.

The file consists of 64-bit words in the machine's byte order (it never leaves the machine): a header of one page, then
one generation per slot, then what eviction remembers. An odd generation means that a write to this slot may be
committing; an even one means that the slot is settled.

What eviction remembers lies in cells of one word: two marks of 16 bits, which hits leave for the entries whose hashes
lead there, and a ghost of 32 bits: a fingerprint of a key whose entry was evicted, or not admitted, and when that was.
Four ghosts lie beside each other, the newest first, and a new one replaces the oldest. Anyone writes marks and ghosts
without a lock. If any of this is lost, late or damaged, other entries are evicted, and nothing else happens.

The cells are the sparse end of the file. As the number of entries grows, more cells are used; their blocks are
allocated first, and they begin as copies of those before them.

The mapping is MAP_SHARED, so a forked child sees the same memory. The child may go on reading it, and may write it
under a write lock of its own.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from ..errors import DirectoryError, file_error
from ..system.boot import boot_id
from ..system.signals import suppress
from . import _native
from .control_files import allocate, fill_holes, open_control_file

PAGE: Final = 4096
HEADER_WORDS: Final = PAGE // 8
LEAST_MARKS: Final = 2 * _native.LEAST_CELLS
MOST_MARKS: Final = 2**21
_REGION: Final = 4 * MOST_MARKS  # bytes of all cells
MIN_SLOTS: Final = 2**4
MAX_SLOTS: Final = 2**20
DEFAULT_SLOTS: Final = 2**16

NEVER: Final = 2**63 - 1
UNCOUNTED: Final = 2**64 - 1
MAX_WORD: Final = 2**64 - 1
"""The largest number that a word holds. Mask sums with it, since a damaged word may hold any number."""

# Another layout must use another file name: processes with different layouts in one file would not see each other's
# generations.
_FORMAT: Final = 3
_MAGIC: Final = int.from_bytes(b"dcl-gen\0", "big")
_READY: Final = int.from_bytes(b"complete", "big")

# No count of writes gets this far, so a larger tick comes from a damaged file. It is less than MOVED_BACK, so that the
# number of a row that was moved is negative.
TICK_LIMIT: Final = 2**62 - 1
FARTHEST: Final = 2**53  # microseconds from 1970 to 2255: no clock was that far ahead, so an entry from then is damaged


class Words(Protocol):
    """Index unsigned numbers of one size; `_native.Words` are some of 64 bits."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...

    def __len__(self) -> int: ...


Marks = _native.Marks


class Header:
    """Name the header's words, and say who may change each.

    Words that are mostly read, words that every writer changes, and the lock's words lie 128 bytes apart, so that a
    reader of EPOCH does not wait for a cache line that writers keep taking.
    """

    # Only `create` writes these, under the write lock. Readers compare them once, when they open the file.
    MAGIC: Final = 0
    FORMAT: Final = 1
    SLOTS: Final = 2
    # Boot id of the machine. If it is another one, no process that ever mapped this file is alive. Write lock.
    BOOT: Final = 3
    # Number of the database in use. Write lock. Readers compare it with theirs before they trust anything else; that
    # suffices because one word cannot be half changed, and a reader that looked just before the change is in the same
    # position as one that read a moment earlier.
    EPOCH: Final = _native.EPOCH
    # Not 0 if a row may lie in another place than its hash names. Write lock; set before the commit that needs it.
    DISPLACED: Final = 6
    # The prime that maps keys to places, 0 if not recorded yet. Whoever replaces an unreadable database must use the
    # same prime, or it and the handles that have the cache open would look for a key in different places.
    MODULUS: Final = 8
    # Fingerprint of the format: disk class, serializer, compressor, signing secret, encryption
    # (`format_fingerprint` in storage/opening/identity.py); 0 if not recorded yet. A new database must have the same.
    # Several processes may write this word and MODULUS without a lock: they have all verified the same database, so
    # they write the same values.
    FINGERPRINT: Final = 11
    # Changes before and after every change of the keyring; 0 where nothing is encrypted. Write lock, except the first
    # time. Whoever seals compares it under that lock. It is here rather than in the database because a look costs
    # nothing here.
    KEYS: Final = 10

    # When the trash is due to be emptied: microseconds since the Unix epoch, NEVER if there is none. Write lock. It
    # changes only every few seconds, so it does not disturb those who read the words beside it.
    SWEEP: Final = 12

    # All of these are changed only under the write lock, unless it says otherwise beside them, so plain
    # read-modify-write is enough. Who reads them without it says there why that suffices.
    TICK: Final = _native.TICK  # number of the last write
    UNSETTLED: Final = 17  # not 0 between begin_all and settle_all: a new holder that sees it knows that the last died
    NEXT_EXPIRE: Final = 18  # time before which writes remove neither entries nor files; too early costs a useless look
    WRITTEN: Final = _native.WRITTEN  # bytes written into the WAL, an estimate that only grows
    COUNT: Final = _native.COUNT  # entries in the database, or UNCOUNTED
    # TICK as the last holder left it; if TICK differs, the holder was killed or interrupted, and COUNT may be wrong.
    SETTLED: Final = _native.SETTLED
    GROWTH: Final = 29  # sixteenths of a byte by which the WAL grew per byte of WRITTEN, when last measured; 0: not yet
    # Bytes that the shard may use before it measures its volume again, 0 if not known. Write lock, except the first
    # time. The cache's other shards read it without the lock (storage/upkeep/quota.py says why that suffices).
    RESERVATION: Final = 30
    # Not 0 from before the first commit of a cross-shard transaction until its last commit. A new holder that sees it
    # knows that a commit may be missing (storage/redo_log.py).
    CROSS_SHARD: Final = _native.CROSS_SHARD
    VOLUME_DUE: Final = _native.VOLUME_DUE  # value of WRITTEN at which the volume is measured again
    FILES: Final = 20  # not 0 if a row or the trash may have a value file
    CHECKPOINTED: Final = 21  # value of WRITTEN at the last checkpoint

    # These belong to _lock.c, which changes them without holding the lock: WAKE by atomic addition, the other two as
    # hints. It says why that suffices.
    WAKE: Final = _native.WAKE
    WAITERS: Final = _native.WAITERS
    FAIRNESS_CLAIM: Final = (
        _native.FAIRNESS_CLAIM
    )  # time until which newcomers queue, in microseconds of the monotonic clock

    # Number of the write buffer in use (coherence/ring.py): 0 not known yet, 1 none. Write lock. Whoever uses the
    # buffer compares it, so that nobody goes on with a file that others do not use any more.
    BUFFER: Final = _native.BUFFER

    # Live entries that were removed for room, a count that only grows. Write lock.
    EVICTED: Final = _native.EVICTED

    # How many numbers of TICK went to no write of a key, but to flushes, ends of transactions, removals of many entries
    # and repairs, a count that only grows. Write lock.
    INTERNAL: Final = 49

    # The size limit by which VOLUME_DUE was set, MAX_WORD where nothing is evicted. Write lock. A handle with a lower
    # limit looks at the volume at once: the mark may be further ahead than its own limit allows. One with a higher
    # limit keeps to the mark, so that two handles that take turns look no more often than each would alone.
    LIMIT: Final = _native.LIMIT

    # TICK when nothing waited in the write buffer, 0 if not known. Each write since may have added an entry to COUNT,
    # so that the two bound the number of entries. Write lock.
    SINCE: Final = _native.SINCE

    # The number of the newest row when the cache was first full; and about how many rows behind it were never moved
    # (storage/upkeep/victims.py). Write lock.
    BOUNDARY: Final = 51
    UNMOVED: Final = 52
    # How often the number of cells in use was doubled; and how many bits of a tick a mark leaves out, so that 16 bits
    # tell some 50 times as many writes from each other as there are entries. Write lock; stored after the cells are
    # there. Hits read it without the lock. That suffices: with an earlier number of cells a hit marks another entry,
    # and nothing else happens.
    MARKS: Final = _native.MARKS

    # `create` stores this last: without it the file is incomplete. Write lock.
    READY: Final = HEADER_WORDS - 1


class GenerationFile:
    """Map a shard's generations.

    `header` and `slots` are words; a key's slot is its hash modulo the largest prime that is not above the number of
    slots. After `close` both are empty.
    Readers index them without a lock. Only the holder of the shard's write lock may call the methods that write.
    """

    __slots__ = ("_cells", "_identity", "header", "marks", "mask", "path", "slots")

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        """Map the file, which has `size` bytes."""
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.path = path
        self._identity = _identity_of(os.fstat(descriptor))
        count = _slots_in(size)
        assert count is not None
        self.mask = count - 1
        self.header = _native.Words(mapping, 0, HEADER_WORDS)
        self.slots = _native.Words(mapping, HEADER_WORDS, count)
        self._cells = memoryview(mapping)[PAGE + 8 * count :]
        self.marks = _native.Marks(mapping, PAGE + 8 * count, prime_below(count))

    @classmethod
    def open_existing(cls, path: str | os.PathLike[str], *, shared: bool = False) -> GenerationFile | None:
        """Open a complete file; return None for a missing, incomplete or damaged one, which `create` must make.

        This needs no lock: READY is stored last and cleared first, and whoever maps the file just before a repair sees
        the repair's larger generations as it sees any writer's.
        """
        place = Path(path)
        try:
            descriptor = open_control_file(place, create=False, shared=shared)
        except DirectoryError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        try:
            size = os.fstat(descriptor).st_size
            if _slots_in(size) is None:
                return None
            with _errors_of(place):
                fill_holes(descriptor, _allocated(descriptor, size))
                file = cls(place, descriptor, size)
        finally:
            os.close(descriptor)
        if file.is_intact():
            return file
        file.close()
        return None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        slots: int = DEFAULT_SLOTS,
        *,
        tick: int | None = None,
        epoch: int = 0,
        shared: bool = False,
    ) -> GenerationFile:
        """Create the file, or repair it in place. The caller holds the shard's write lock.

        A repair keeps the inode, because processes may have it mapped. Every slot ends on `2 * tick + 2` for the first
        tick that is beyond everything in the file and at least `tick` (default: the microseconds since 1970, which no
        count of writes overtakes). If the file's size or header tells a slot count, that count wins over `slots`. The
        other words start at values that make a writer look for itself: anything may exist, or be due.
        """
        if _slots_in(_size_of(slots)) is None:
            raise ValueError(f"slots must be a power of two from {MIN_SLOTS} to {MAX_SLOTS}, not {slots!r}")
        place = Path(path)
        file, existed = cls._map_for_writing(place, slots, shared)
        tick = time.time_ns() // 1000 if tick is None else tick
        if existed:
            tick = file._begin_repair(tick)
        file._initialise(tick, epoch)
        return file

    @classmethod
    def _map_for_writing(cls, path: Path, slots: int, shared: bool) -> tuple[GenerationFile, bool]:
        """Map the file at its proper size; also return whether it had any content before."""
        descriptor = open_control_file(path, create=True, shared=shared)
        try:
            found = os.fstat(descriptor).st_size
            size = _size_of(_slots_for_repair(descriptor, found, slots))
            with _errors_of(path):
                _allocate(descriptor, _allocated(descriptor, size))
                os.ftruncate(descriptor, size)  # what is cut off was larger than any slot count needs, so not mapped
                return cls(path, descriptor, size), found > 0
        finally:
            os.close(descriptor)

    @property
    def allocated(self) -> int:
        """Return the bytes that the file takes on the disk, with few marks if another thread has closed it just now."""
        header = self.header
        return _taken(self.mask + 1, 0 if header is _EMPTY else header[Header.MARKS])

    def grow_marks(self, entries: int, are_times: bool) -> None:
        """Use more marks and ghosts if there are fewer than two for each entry and the disk has room for them.

        The caller holds the write lock. `entries` may be UNCOUNTED. `are_times`: the marks tell times, not counts.
        """
        header = self.header
        while entries != UNCOUNTED and _marks_for(header[Header.MARKS]) < min(2 * entries, MOST_MARKS):
            if not self._allocate_marks((header[Header.MARKS] & 15) + 1) or not self.marks.grow(are_times):
                break

    def _allocate_marks(self, index: int) -> bool:
        """Allocate the blocks for this value of MARKS; return False if the file was replaced or the disk is full."""
        with suppress(OSError):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _identity_of(os.fstat(descriptor)) == self._identity:
                    _allocate(descriptor, _taken(self.mask + 1, index))
                    return True
            finally:
                os.close(descriptor)
        return False

    def forget_uses(self) -> None:
        """Clear the marks and ghosts that are in use."""
        size = 4 * _marks_for(self.header[Header.MARKS])
        self._cells[:size] = bytes(size)

    def is_intact(self) -> bool:
        """Tell whether the header is complete and describes this mapping."""
        header = self.header
        return (
            header[Header.READY] == _READY
            and header[Header.MAGIC] == _MAGIC
            and header[Header.FORMAT] == _FORMAT
            and header[Header.SLOTS] == self.mask + 1
        )

    def is_current_boot(self) -> bool:
        """Tell whether the file was made since the machine started; False if that cannot be known."""
        return self.header[Header.BOOT] == boot_id() != 0

    def next_tick(self) -> int:
        """Count one more write. The caller holds the write lock, so nobody else counts."""
        # Stored before it is written to any slot, so that no later holder uses the number of a holder that was killed.
        tick = self.header[Header.TICK] + 1
        if tick > TICK_LIMIT:
            self.correct_tick()
            tick = self.header[Header.TICK] + 1
        self.header[Header.TICK] = tick
        return tick

    def internal_tick(self) -> int:
        """Count one more write that is not one of a key."""
        self.header[Header.INTERNAL] = self.header[Header.INTERNAL] + 1 & MAX_WORD
        return self.next_tick()

    def highest_tick(self) -> int:
        """Return a number that no write's tick exceeds, even if the stored count was damaged."""
        return max(min(self.header[Header.TICK], TICK_LIMIT), time.time_ns() // 1000)

    def begin(self, slot_indices: Iterable[int], tick: int) -> None:
        """Mark slots as being written: before COMMIT, under the write lock."""
        slots, odd = self.slots, 2 * tick + 1
        for index in slot_indices:
            slots[index] = odd

    def settle(self, slot_indices: Iterable[int], tick: int) -> None:
        """Mark slots as settled: after COMMIT or ROLLBACK, still under the write lock."""
        slots, even = self.slots, 2 * tick + 2
        for index in slot_indices:
            slots[index] = even

    def begin_all(self, tick: int) -> None:
        """Mark every slot as being written: before COMMIT, under the write lock."""
        self.header[Header.UNSETTLED] = tick
        self.slots.fill(2 * tick + 1)

    def settle_all(self, tick: int) -> None:
        """Mark every slot as settled: after COMMIT or ROLLBACK, still under the write lock."""
        self.slots.fill(2 * tick + 2)
        self.header[Header.UNSETTLED] = 0

    def settle_unsettled(self) -> bool:
        """Settle every slot if something lies between begin_all and settle_all; tell whether that was so.

        Call it at the end of a transaction, or right after taking the write lock: since that was free, the transaction
        of a writer that died is over, one way or the other. One slot left odd costs little, and the next write to it
        settles it; if all were left odd, every hot layer would be off until each had been written.
        """
        if not self.header[Header.UNSETTLED]:
            return False
        self.settle_all(self.internal_tick())
        return True

    def correct_tick(self) -> None:
        """Correct a TICK that no holder can have left, so that no two writes get the same number.

        Only damage to the file puts it below the last settled one, or above TICK_LIMIT. The caller holds the write
        lock.
        """
        header = self.header
        counted = [tick for tick in (header[Header.TICK], header[Header.SETTLED]) if tick < TICK_LIMIT]
        header[Header.TICK] = max(counted, default=time.time_ns() // 1000)

    def close(self) -> None:
        """Drop the mapping; it is unmapped when nobody uses its words any more."""
        self.header = self.slots = _EMPTY
        self.marks, self._cells = UNREAD_MARKS, memoryview(b"")

    def _begin_repair(self, tick: int) -> int:
        """Prepare an existing file for `_initialise`; return a tick beyond every one in it."""
        self.header[Header.READY] = 0
        return max(tick, _tick_beyond(self.header[Header.TICK], self.slots))

    def _initialise(self, tick: int, epoch: int) -> None:
        # Slots first: if this process dies before the header is written, the next repair goes beyond them.
        self.slots.fill(2 * tick + 2)
        header = self.header
        values = {
            Header.MAGIC: _MAGIC,
            Header.FORMAT: _FORMAT,
            Header.SLOTS: self.mask + 1,
            Header.BOOT: boot_id(),
            Header.EPOCH: epoch,
            Header.DISPLACED: 1,
            Header.TICK: tick,
            Header.FILES: 1,
            Header.COUNT: UNCOUNTED,
            Header.SETTLED: tick,
            Header.CROSS_SHARD: UNCOUNTED,
        }
        for index in range(Header.READY):
            header[index] = values.get(index, 0)
        header[Header.READY] = _READY


_EMPTY: Final = _native.Words(bytearray(8), 0, 0)


def unread_marks() -> Marks:
    """Return what takes marks that nobody reads."""
    return _native.Marks(bytearray(PAGE + 64), PAGE, 1)


UNREAD_MARKS: Final = unread_marks()


def microseconds(expire: float) -> int:
    """Convert an expiry to the form of NEXT_EXPIRE: microseconds since the Unix epoch, below NEVER."""
    return int(max(0.0, min(expire, 9e12)) * 1e6)


def _marks_for(index: int) -> int:
    """Return how many marks are in use for a value of MARKS, which damage may have made any number."""
    return min(LEAST_MARKS << (index & 15), MOST_MARKS)


def _size_of(slots: int) -> int:
    return PAGE + 8 * slots + _REGION


def _slots_in(size: int) -> int | None:
    """Return the slot count of a file of `size` bytes, or None if no slot count gives that size."""
    slots = (size - PAGE - _REGION) // 8
    fits = MIN_SLOTS <= slots <= MAX_SLOTS and slots & (slots - 1) == 0 and _size_of(slots) == size
    return slots if fits else None


def _slots_for_repair(descriptor: int, size: int, wanted: int) -> int:
    """Return the slot count that a repair must use.

    Processes that have the file mapped place slots by its old count, so a repair must find that count: from the
    size, else from the header; else the file was cut, and had at least the slots that its size needs. The count must
    never be too small: using a mapping beyond the end of its file is a SIGBUS.
    """
    if size == 0:
        return wanted
    exact = _slots_in(size)
    if exact is not None:
        return exact
    least = min(MAX_SLOTS, max(MIN_SLOTS, 1 << (max(0, size - PAGE - _REGION - 1) // 8).bit_length()))
    head = array("Q")
    head.frombytes(os.pread(descriptor, 8 * (Header.SLOTS + 1), 0).ljust(8 * (Header.SLOTS + 1), b"\0"))
    recorded = head[Header.SLOTS]
    if head[Header.MAGIC] == _MAGIC and recorded >= least and _slots_in(_size_of(recorded)) == recorded:
        return recorded
    return max(wanted, least)


def _taken(slots: int, marks: int) -> int:
    """Return the bytes that a file with so many slots, and this value of MARKS, takes on the disk."""
    return PAGE + 8 * slots + 4 * _marks_for(marks)


def _allocated(descriptor: int, size: int) -> int:
    """Return the bytes that have to be allocated of a file of `size` bytes before it is mapped."""
    slots = _slots_in(size)
    assert slots is not None
    return _taken(slots, int.from_bytes(os.pread(descriptor, 8, 8 * Header.MARKS), sys.byteorder))


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise file_error(error, path) from error


def _identity_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def _allocate(descriptor: int, size: int) -> None:
    """Allocate the blocks of the first bytes, by writing where that is the only way."""
    if not allocate(descriptor, size):
        _rewrite(descriptor, size)


def _rewrite(descriptor: int, size: int) -> None:
    """Write every page back unchanged, and zeros beyond the end. The caller holds the write lock."""
    # Under the lock no generation changes meanwhile. A use mark lost here makes an eviction slightly worse, and a lost
    # wake-up costs one slice of waiting.
    for offset in range(0, size, PAGE):
        length = min(PAGE, size - offset)
        os.pwrite(descriptor, os.pread(descriptor, length, offset).ljust(length, b"\0"), offset)


def _tick_beyond(counted: int, slots: Iterable[int]) -> int:
    """Return the smallest tick whose generation is larger than any in the file."""
    highest = max(slots)
    if highest >= 2 * TICK_LIMIT:
        highest = max((slot for slot in slots if slot < 2 * TICK_LIMIT), default=0)
    return max(highest // 2, counted + 1 if 0 < counted < TICK_LIMIT else 0)


@functools.cache
def prime_below(number: int) -> int:
    """Return the largest prime that is not above `number` (at least 2)."""
    for candidate in range(number, 2, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    return 2
