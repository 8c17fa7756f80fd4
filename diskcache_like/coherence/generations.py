"""The generation file: how processes tell each other, through shared memory, that an entry may have changed.

Layout, all in 64-bit words of the machine's byte order (the file never leaves the machine): a header of one page, one
generation per slot, one use mark per slot. Odd generation = a write to this slot may be committing; even = settled.

The mapping is MAP_SHARED: it stays valid, and the same memory, in a forked child, who may go on reading and, under a
write lock of its own, writing it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from diskcache_like.coherence import words
from diskcache_like.coherence.words import Implementation, Words
from diskcache_like.errors import DirectoryError, UnsafeDirectory, refused

from ..interrupts import let_through

PAGE: Final = 4096
HEADER_WORDS: Final = PAGE // 8
MIN_SLOTS: Final = 2**4
MAX_SLOTS: Final = 2**20
DEFAULT_SLOTS: Final = 2**16

NEVER: Final = 2**63 - 1
UNKNOWN: Final = 2**64 - 1
WORD: Final = 2**64 - 1
"""The largest number that a word holds; masked with it, what damage left in one cannot run over."""

# Another layout must take another file name: two layouts in one file would not see each other's generations.
_FORMAT: Final = 1
_MAGIC: Final = int.from_bytes(b"dcl-gen\0", "big")
_READY: Final = int.from_bytes(b"complete", "big")

# A tick this large was never counted, only read from a damaged file; 2 * tick, a rank, must stay below 2**63.
TICK_LIMIT: Final = 2**62 - 1

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Header:
    """Name the header's words.

    Read-mostly words, words that every writer changes, and the lock's words lie 128 bytes apart, so that a reader's
    look at the epoch does not wait for a cache line that writers keep taking.
    """

    # Written by `create` only, under the write lock. Readers compare them once, when they open.
    MAGIC: Final = 0
    FORMAT: Final = 1
    SLOTS: Final = 2
    # Hash of the boot id. From another boot means: no process that ever mapped this file is alive. Write lock.
    BOOT: Final = 3
    # Number of the database in use. Write lock; readers compare it with theirs before they trust anything else, and one
    # word cannot be half changed. A reader that looked just before the change is as if it had been a moment earlier.
    EPOCH: Final = 4
    # Not 0 if any row may lie beside the place its hash names. Write lock, and set before the commit that needs it.
    DISPLACED: Final = 6
    # The prime that decides the places of keys, 0 if not noted yet: whoever replaces an unreadable database must take
    # the same, or it and those who have the cache open would look for a key in different places.
    MODULUS: Final = 8
    # Says how entries are written: with which disk class, serializer, compressor and signing secret, or encrypted
    # (`kind_of` in storage/layout.py); 0 if not noted yet. As with MODULUS, the next database must be of the same kind.
    # All who write the two have verified the same database, so that they write the same.
    KIND: Final = 11
    # Another number after every change to the compression dictionaries. Write lock; readers compare it before they
    # compress, and one that looked just before the change uses an older dictionary, which stays for such cases.
    DICTIONARY: Final = 9
    # Changed before and after every change of the keyring; 0 where nothing is encrypted. Write lock, but for the first
    # time. Who seals compares it under that lock; the page is here and not in the database because that costs nothing.
    KEYS: Final = 10

    # When the trash is looked at again: microseconds since the Unix epoch, NEVER where there is none. Write lock. It
    # changes once in some seconds, so that it does not disturb the readers of its neighbours.
    SWEEP: Final = 12

    # All of these: read and written under the write lock only, so plain read-modify-write is enough.
    TICK: Final = 16  # number of the last write
    UNSETTLED: Final = 17  # not 0 between begin_all and settle_all: if seen by a new holder, the last one died there
    NEXT_EXPIRE: Final = 18  # no entry expires, and SWEEP is not, before this; in the same form. Too early costs a look
    WRITTEN: Final = 19  # bytes written into the WAL, an estimate that only grows
    COUNT: Final = 25  # entries in the database, UNKNOWN if they must be counted
    SETTLED: Final = 26  # TICK as the last holder left it; another TICK: it died in between, and COUNT may be wrong
    OPENER: Final = 27  # process id of the last one to open the shard
    SHARED: Final = 28  # not 0 once a second process has opened it: writers then use the board. A hint, so no lock.
    GROWTH: Final = 29  # sixteenths of a byte by which the WAL grew per byte of WRITTEN, when last seen; 0: not yet
    # Bytes that the shard may use before it looks at its volume again, 0 if not known. Write lock, but for the first
    # time; the other shards of the cache read it without (storage/share.py says why that suffices).
    CLAIM: Final = 30
    # Not 0 from before the first commit of a transaction over several shards until all of them are made: if seen by a
    # new holder, one of them may be missing (storage/journal.py).
    JOINT: Final = 31
    MARK: Final = 24  # value of WRITTEN at which the volume is looked at again
    FILES: Final = 20  # not 0 if value files may exist
    CHECKPOINTED: Final = 21  # value of WRITTEN at the last checkpoint
    HITS: Final = 22
    MISSES: Final = 23

    # Belong to lock.py and are touched without the lock: WAKE by atomic addition, WAITERS and TURN as hints (lock.py
    # says why that suffices).
    WAKE: Final = 32
    WAITERS: Final = 33
    TURN: Final = 34  # microseconds of the monotonic clock until which newcomers queue

    # Stored last by `create`: without it the file is half made. Write lock.
    READY: Final = HEADER_WORDS - 1


class GenerationFile:
    """Map a shard's generations.

    `header`, `slots` and `uses` are words; a key's slot is `slots[hash & mask]`. After `close` all three are empty.
    Readers index them without any lock. Only the holder of the shard's write lock calls the methods that write.
    """

    __slots__ = ("_mapping", "header", "mask", "path", "slots", "uses")

    def __init__(self, path: Path, mapping: mmap.mmap, implementation: Implementation) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = mapping
        count = _slots_in(len(mapping))
        assert count is not None
        view = memoryview(mapping).cast("Q")
        self.mask = count - 1
        self.header: Words = words.over(view[:HEADER_WORDS], implementation)
        self.slots: Words = words.over(view[HEADER_WORDS : HEADER_WORDS + count], implementation)
        # Marks of recency and frequency. Written by anyone without a lock: a lost or late mark makes an eviction
        # slightly worse, never a value wrong. So plain words do on every CPU.
        self.uses: Words = view[HEADER_WORDS + count :]

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        slots: int = DEFAULT_SLOTS,
        implementation: Implementation = "python",
        *,
        tick: int | None = None,
        epoch: int = 0,
        shared: bool = False,
    ) -> GenerationFile:
        """Open the file, or make or mend it. The caller holds the shard's write lock."""
        found = cls.open_existing(path, implementation, shared=shared)
        return found or cls.create(path, slots, implementation, tick=tick, epoch=epoch, shared=shared)

    @classmethod
    def open_existing(
        cls, path: str | os.PathLike[str], implementation: Implementation = "python", *, shared: bool = False
    ) -> GenerationFile | None:
        """Open a whole file, or return None if it is missing, half made or damaged and must be made under the lock.

        No lock is needed: READY is stored last and taken away first, and whoever maps the file a moment before a repair
        sees the repair's larger generations like any other writer's.
        """
        place = Path(path)
        try:
            descriptor = open_private(place, create=False, shared=shared)
        except DirectoryError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        try:
            size = os.fstat(descriptor).st_size
            if _slots_in(size) is None:
                return None
            _fill_holes(descriptor, size, place)
            mapping = _map(descriptor, size, place)
        finally:
            os.close(descriptor)
        file = cls(place, mapping, implementation)
        if file.is_intact():
            return file
        file.close()
        return None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        slots: int = DEFAULT_SLOTS,
        implementation: Implementation = "python",
        *,
        tick: int | None = None,
        epoch: int = 0,
        shared: bool = False,
    ) -> GenerationFile:
        """Make the file, or mend it in place. The caller holds the shard's write lock.

        The inode stays, because processes may have it mapped, and every slot ends on `2 * tick + 2` for the first tick
        that is beyond everything found in the file and at least `tick` (default: the microseconds since 1970, which no
        count of writes overtakes). A slot count that the file has, by its size or its header, wins over `slots`. The
        other words start as what makes a writer look for itself: anything may exist, or be due.
        """
        _check_slots(slots)
        place = Path(path)
        mapping, existed = _map_for_writing(place, slots, shared)
        file = cls(place, mapping, implementation)
        tick = time.time_ns() // 1000 if tick is None else tick
        if existed:
            tick = file._outdo(tick)
        file._initialise(tick, epoch)
        return file

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
        """Tell whether the file was made since the machine started; if that cannot be known, it was not."""
        return self.header[Header.BOOT] == boot_stamp() != 0

    def next_tick(self) -> int:
        """Count one more write. The caller holds the write lock, so nobody else counts."""
        # Stored before any slot is marked with it: a holder that is killed leaves a number that is never used again.
        tick = self.header[Header.TICK] + 1
        if tick > TICK_LIMIT:
            self.count_on()
            tick = self.header[Header.TICK] + 1
        self.header[Header.TICK] = tick
        return tick

    def latest(self) -> int:
        """Return a number that no write can have gone beyond, though the count of them may have been damaged."""
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
        words.fill(self.slots, 2 * tick + 1)

    def settle_all(self, tick: int) -> None:
        """Mark every slot as settled: after COMMIT or ROLLBACK, still under the write lock."""
        words.fill(self.slots, 2 * tick + 2)
        self.header[Header.UNSETTLED] = 0

    def recover(self) -> bool:
        """Settle every slot if the last holder died between begin_all and settle_all.

        Call it right after the write lock was got, never inside a write of one's own. One dead slot costs little and
        heals with the next write to it; all of them odd would turn every hot layer off until each was written again.
        That the lock was free proves that the dead writer's transaction is over, one way or the other.
        """
        if not self.header[Header.UNSETTLED]:
            return False
        self.settle_all(self.next_tick())
        return True

    def count_on(self) -> None:
        """Correct a count that no holder can have left, so that no number is given to a second write.

        Only damage to the file leaves one behind the last that was settled, or beyond all counting. The write lock is
        held.
        """
        header = self.header
        counted = [tick for tick in (header[Header.TICK], header[Header.SETTLED]) if tick < TICK_LIMIT]
        header[Header.TICK] = max(counted, default=time.time_ns() // 1000)

    def close(self) -> None:
        """Let go of the mapping; it is unmapped when nobody uses its words any more.

        The views are dropped, not released: a reader in another thread that is about to index one must not meet a
        released view. If one is still held, the mapping is left to the garbage collector.
        """
        mapping, self._mapping = self._mapping, None
        self.header = self.slots = self.uses = _EMPTY
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def _outdo(self, tick: int) -> int:
        """Make a file that was there ready for `_initialise`, and return a tick beyond what it shows."""
        self.header[Header.READY] = 0
        words.fill(self.uses, 0)
        return max(tick, _tick_beyond(self.header[Header.TICK], words.raw(self.slots)))

    def _initialise(self, tick: int, epoch: int) -> None:
        # Slots first: if this process dies in between, the next repair finds them and goes beyond.
        words.fill(self.slots, 2 * tick + 2)
        header = self.header
        values = {
            Header.MAGIC: _MAGIC,
            Header.FORMAT: _FORMAT,
            Header.SLOTS: self.mask + 1,
            Header.BOOT: boot_stamp(),
            Header.EPOCH: epoch,
            Header.DISPLACED: 1,
            Header.TICK: tick,
            Header.FILES: 1,
            Header.COUNT: UNKNOWN,
            Header.SETTLED: tick,
            Header.JOINT: UNKNOWN,
        }
        for index in range(Header.READY):
            header[index] = values.get(index, 0)
        header[Header.READY] = _READY


_EMPTY: Final = memoryview(array("Q"))


def microseconds(expire: float) -> int:
    """Return an expiry as NEXT_EXPIRE holds it: microseconds since the Unix epoch, below NEVER."""
    return int(max(0.0, min(expire, 9e12)) * 1e6)


def boot_stamp() -> int:
    """Return a number that is another after each start of the machine, or 0 if the system does not tell."""
    try:
        return int(_BOOT_ID.read_text(encoding="ascii").replace("-", "").strip()[:16], 16)
    except (OSError, ValueError) as error:
        let_through(error)
        return 0


def open_private(path: Path, *, create: bool, shared: bool = False) -> int:
    """Open one of the cache's own control files and return the descriptor, or refuse.

    It must be a regular file with one name, ours and writable by nobody else; `shared` waives the last two.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    try:
        descriptor = os.open(path, flags, 0o660 if shared else 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise UnsafeDirectory("is a symbolic link, not a file of the cache; remove it", path) from error
        raise refused(error, path) from error
    try:
        check_private(os.fstat(descriptor), path, shared)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_private(status: os.stat_result, path: str | os.PathLike[str], shared: bool) -> None:
    """Refuse what is not a regular file with one name, ours and writable by nobody else; `shared` waives the last two.

    Raises UnsafeDirectory. `status` comes from fstat or lstat.
    """
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise UnsafeDirectory(f"is {kind}, not a file of the cache; remove it", path)
    if status.st_nlink > 1:
        raise UnsafeDirectory("has a second name elsewhere, so writing it would change another directory", path)
    if shared:
        return
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(f"belongs to user {status.st_uid}, not to us", path)
    if status.st_mode & 0o022:
        raise UnsafeDirectory("can be written by other users", path)


def _layout(slots: int) -> int:
    return PAGE + 16 * slots


def _slots_in(size: int) -> int | None:
    """Return the slot count of a file of `size` bytes, or None if no layout has that size."""
    slots = (size - PAGE) // 16
    fits = MIN_SLOTS <= slots <= MAX_SLOTS and slots & (slots - 1) == 0 and _layout(slots) == size
    return slots if fits else None


def _check_slots(slots: int) -> None:
    if _slots_in(_layout(slots)) is None:
        raise ValueError(f"slots must be a power of two from {MIN_SLOTS} to {MAX_SLOTS}, not {slots!r}")


def _slots_to_make(descriptor: int, size: int, wanted: int) -> int:
    """Return the slot count that a repair must use.

    Who has the file mapped masks hashes with the count it had, so that count has to be found again: the size says it,
    else the header, else the file was cut and had at least what its size needs. Never smaller: a mapping that reaches
    beyond the end is SIGBUS.
    """
    if size == 0:
        return wanted
    exact = _slots_in(size)
    if exact is not None:
        return exact
    least = min(MAX_SLOTS, max(MIN_SLOTS, 1 << (max(0, size - PAGE - 1) // 16).bit_length()))
    head = array("Q")
    head.frombytes(os.pread(descriptor, 8 * (Header.SLOTS + 1), 0).ljust(8 * (Header.SLOTS + 1), b"\0"))
    noted = head[Header.SLOTS]
    if head[Header.MAGIC] == _MAGIC and noted >= least and _slots_in(_layout(noted)) == noted:
        return noted
    return max(wanted, least)


def _map_for_writing(path: Path, slots: int, shared: bool) -> tuple[mmap.mmap, bool]:
    """Map the file in the size that it must have; tell whether it had anything in it before."""
    descriptor = open_private(path, create=True, shared=shared)
    try:
        found = os.fstat(descriptor).st_size
        size = _layout(_slots_to_make(descriptor, found, slots))
        if found > size:
            # Only a file larger than any layout gets here, so nobody has the part that goes mapped.
            os.ftruncate(descriptor, size)
        _allocate(descriptor, size, path)
        return _map(descriptor, size, path), found > 0
    finally:
        os.close(descriptor)


def _allocate(descriptor: int, size: int, path: Path) -> None:
    """Give the file real blocks: storing into a hole on a full disk kills the process with SIGBUS."""
    try:
        if not _allocate_in_advance(descriptor, size):
            _rewrite(descriptor, size)
    except OSError as error:
        raise refused(error, path) from error


def _fill_holes(descriptor: int, size: int, path: Path) -> None:
    """Give blocks to a copy that was made with holes.

    Without the lock nothing may be written back that somebody may be changing, so where the file system cannot allocate
    in advance the holes stay.
    """
    try:
        if os.fstat(descriptor).st_blocks * 512 < size:
            _allocate_in_advance(descriptor, size)
    except OSError as error:
        raise refused(error, path) from error


def _allocate_in_advance(descriptor: int, size: int) -> bool:
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        return False
    return True


def _rewrite(descriptor: int, size: int) -> None:
    """Write every page back as it reads, zeros beyond the end. The caller holds the write lock."""
    # Generations cannot change meanwhile; a use mark or a wake-up lost here costs a worse guess or a slice of waiting.
    for offset in range(0, size, PAGE):
        length = min(PAGE, size - offset)
        os.pwrite(descriptor, os.pread(descriptor, length, offset).ljust(length, b"\0"), offset)


def _map(descriptor: int, size: int, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise refused(error, path) from error


def _tick_beyond(counted: int, slots: memoryview[int]) -> int:
    """Return the least tick whose generation is larger than any that the file shows."""
    highest = max(slots)
    if highest >= 2 * TICK_LIMIT:
        highest = max((slot for slot in slots if slot < 2 * TICK_LIMIT), default=0)
    return max(highest // 2, counted + 1 if 0 < counted < TICK_LIMIT else 0)
