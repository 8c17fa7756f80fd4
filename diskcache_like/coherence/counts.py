"""What all processes of a machine count: a mapped file in which each handle has a row, to which it alone adds.

A row belongs to the handle that has the kernel's lock on its byte (byte_locks.py), which ends with the process. So a
count needs no atomic addition, and none is lost when a process is killed: whoever takes the row next goes on counting
in it. What all have counted is the sum of all rows. Nothing has to be wiped, and the file does not grow with the number
of processes that there ever were.

The file consists of 64-bit words in the machine's byte order:

* a page of header, and four pages with the names of spaces, 256 bytes each;
* a row that says at which counts somebody has begun anew (`reset`), and the rows;
* a row has 8 counters for each of 64 spaces, then those of events, then histograms. Their blocks are allocated when the
  row is taken; histograms only where times are measured, so that a row takes 8 KiB without them and 24 KiB with them.

A **space** is what is counted apart: the keys of a namespace, or those that begin with the same text up to a colon. Its
number is its place among the names, which are only ever added, under a lock on a byte.

A histogram is log-linear: 16 buckets for each octave, from 64 ns to two minutes, so that a time is known to within 6 %.

Where there is no room, all rows are taken, or the system has no such locks, a handle counts in memory of its own, and
nobody else sees its counts. Damage makes counts wrong, and nothing else.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Any, Final

from ..errors import DirectoryError, DiskFull, file_error
from ..system.forks import process_token, told_of_forks
from ..system.signals import reraise_signal, suppress
from . import _native
from .byte_locks import ByteLocks
from .control_files import allocate

NAME: Final = "cache.metrics"  # of the file
OFF, COUNTS, FULL = LEVELS = ("off", "counts", "full")  # how much is counted, as the setting `metrics_level` says

SPACES: Final = _native.SPACES
SPACE_COUNTERS: Final = _native.SPACE_COUNTERS
HOT, DISK, REMOTE, MISSES, EXPIRED, SETS, DELETES = range(1, SPACE_COUNTERS)  # the counters of a space
COUNTER: Final = 2  # bits of a kind of mark that are below the number of a counter
# What `Marks` are given to count, which leaves no mark; a hit is added to the bits of the mark that it leaves.
HIT, READ, ASKED, MISS, STALE, SET, DELETE = (counter << COUNTER for counter in range(1, SPACE_COUNTERS))
PLAIN, OTHER, HIDDEN = range(3)  # spaces: keys without one, those beyond the last name, and the package's own
FIRST_NAME: Final = 3

INCIDENTS: Final = (
    *("damaged", "unauthenticated", "missing_files", "not_kept"),
    *("stale_served", "renewals", "failed_renewals", "flights_waited", "lock_waits", "timeouts"),
)
EVENTS: Final = (
    *("handles", "evicted_for_room", "evicted_expired", "evicted_by_tag", "evicted_by_clear"),
    *INCIDENTS,
)
"""What is counted for the whole cache: `handles` is how often a row was taken; `Metrics` tells what the others are."""
TIMED: Final = ("hot", "get", "set", "delete", "lock")
PARTS: Final = 16  # buckets of an octave
BUCKETS: Final = 31 * PARTS
LEAST_OCTAVE: Final = 6

_EVENTS_AT: Final = SPACES * SPACE_COUNTERS
_AT: Final = {name: _EVENTS_AT + index for index, name in enumerate(EVENTS)}
_TIMES_AT: Final = _EVENTS_AT + 32
TIMES_AT: Final = {name: _TIMES_AT + BUCKETS * index for index, name in enumerate(TIMED)}
_LENGTH: Final = 6 * 512  # words of a row
_ROWS: Final = 128
_PAGE: Final = 4096
_NAME_SIZE: Final = 256  # as long as the name of any namespace, with a byte that says how long it is
_BASE: Final = _PAGE + _NAME_SIZE * SPACES  # offset of the row that says where counting began anew
MAX_WORD: Final = 2**64 - 1
_SIZE: Final = _BASE + 8 * _LENGTH * (1 + _ROWS)
_UNUSED: Final = array("Q", bytes(8 * _LENGTH))  # a row
_MAGIC: Final = int.from_bytes(b"dclcount", "little")
_NAMES_LOCK, _BASE_LOCK = _ROWS, _ROWS + 1  # numbers of bytes, after those of the rows
_NAMES: Final = SPACES - FIRST_NAME
_TRIES, _PAUSE = 100, 0.0002  # seconds, to add a name while others do
_KNOWN: Final = 16 * SPACES  # starts whose spaces a process keeps
# A map needs no descriptor of its own, which would hold the lock of the row for as long as the memory is mapped.
_MAP: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class Word:
    """Indices of words of the header."""

    MAGIC, NAMES = range(2)
    # What `stats` tells: whether it counts, what hits and misses were when it began, and what it had counted before.
    STATS_ON, STATS_FROM, STATS_BEFORE = 2, 3, 5


class _Spaces(dict[bytes, int]):
    """The numbers of spaces, by how the stored keys in them begin; those that are not known yet are asked for."""

    def __init__(self, number_of: Callable[[bytes], int]) -> None:
        super().__init__()
        self._number_of = number_of

    def __missing__(self, start: bytes) -> int:
        return self._number_of(start)


class Counts:
    """Count for one handle, and tell what all handles have counted.

    `counters` and `spaces` are for `Marks.count_in`. Any thread may count.
    """

    def __init__(self, directory: str, name_of: Callable[[bytes], str | None], shared: bool = False) -> None:
        """Begin in memory of the handle's own; `name_of` tells the name of a space, None for one that is not shown."""
        self.counters = _native.Counters()
        self.spaces: Mapping[bytes, int] = (spaces := _Spaces(self._number_of))
        self._known = spaces
        self._numbers: dict[bytes, int] = {}  # of spaces, by the names that the file was seen to have
        self.level = OFF
        self.hides_names = False  # set where they are nobody's business
        self._path = Path(directory, NAME)
        self._name_of = name_of
        self._shared = shared
        self._locks: ByteLocks | None = None  # held: this handle's row
        self._token = -1
        self._lock = threading.RLock()  # its holder uses the descriptor of the file, or opens or closes it
        self._head, self._base = array("Q", bytes(_PAGE)), array("Q", bytes(8 * _LENGTH))  # where there is no file
        self._own = bytearray()
        self._leave_row()
        _all.add(self)

    # -- the row ------------------------------------------------------------------------------------------------------

    def open(self, level: str) -> None:
        """Count in a row of the file, if this process does not yet and the level asks for it.

        Raises UnsafeDirectory for a file that others may control, and DirectoryError for one that cannot be opened.
        """
        if self._token == process_token() and self.level == level:
            return
        if self._is_interrupted():
            return  # this very opening, by a signal handler
        with self._lock:
            self._open(level)

    def _open(self, level: str) -> None:
        if self._token != process_token() or self.level != level:
            self._leave_row()
            self.level, self._token = level, process_token()
            if level != OFF:
                self._take_row()

    def close(self, waits: bool = True) -> None:
        """Leave the row to others; later counts go to the next row.

        Without `waits`, which the garbage collector must not, nothing is done if another thread uses this just now.
        """
        if self._is_interrupted():
            return
        try:
            if self._lock.acquire(waits):
                self._leave_row()
        finally:
            if self._is_interrupted():  # that is, held, however a signal handler ended this
                self._lock.release()

    def _is_interrupted(self) -> bool:
        """Tell whether this thread has the lock, so that the caller is a signal handler."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]  # of CPython's, for its Condition
        return owned

    def _take_row(self) -> None:
        try:
            locks = ByteLocks(self._path, shared=self._shared, create=True)
        except (DiskFull, DirectoryError) as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                return
            raise
        self._locks = locks
        has_row = False
        try:
            row = next((row for row in range(_ROWS) if locks.hold(row, self)), None) if locks.available else None
            has_row = row is not None and self._count_in(locks, row)
        finally:
            if not has_row:
                token = self._token
                self._leave_row()
                self._token = token  # else each opening of a shard would try again

    def _count_in(self, locks: ByteLocks, row: int) -> bool:
        """Count in a row from now on; return False if there is no room for it."""
        descriptor = locks.descriptor
        length = _LENGTH if self.level == FULL else _TIMES_AT  # what lies behind is not allocated
        offset = _offset_of(row)
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                os.ftruncate(descriptor, _SIZE)
            size = -(-8 * length // _PAGE) * _PAGE
            if not allocate(descriptor, offset + size, offset):
                os.pwrite(descriptor, os.pread(descriptor, size, offset).ljust(size, b"\0"), offset)
            with _held(locks, _NAMES_LOCK) as held:
                if held and _word(descriptor, Word.MAGIC) != _MAGIC:  # the file is new, or damaged
                    _write(descriptor, 8 * Word.MAGIC, [_MAGIC, 0])
            access = mmap.PROT_READ | mmap.PROT_WRITE
            mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, access, offset=offset, **_MAP)
        except OSError as error:
            reraise_signal(error)
            return False
        own, self._own = self._own, bytearray()  # empty before a row is attached, and until it no longer is
        self.counters.attach(mapping, 0, length)
        self._numbers = {}  # the file may be another one
        self._known.clear()
        self.add("handles")
        if own != bytes(len(own)):  # nobody adds to these any more
            for index, count in enumerate(memoryview(own).cast("Q")):
                self.counters.add(index, count)
        return True

    def _leave_row(self) -> None:
        """Count in memory of this process's own from now on, and only then let others have the row."""
        locks, is_parents = self._locks, self._token != process_token()
        self._token = -1
        if not self._own:
            own = bytearray(8 * _LENGTH)
            self.counters.attach(own, 0, _LENGTH)
            self._own = own
        if locks is not None:
            if not is_parents:
                locks.let_go_of_all(self)  # also while a mapping, which has a descriptor of its own, is not gone yet
            locks.close()
            self._locks = None  # last, so that whoever calls this next ends what a signal handler has cut short

    def forked(self) -> None:
        """Leave the row, and what was not added to one yet, to the parent; the child has one thread as yet."""
        self._lock = threading.RLock()
        self._own = bytearray()
        self._leave_row()

    # -- counting -----------------------------------------------------------------------------------------------------

    def add(self, event: str, number: int = 1) -> None:
        """Count an event of the whole cache."""
        self.counters.add(_AT[event], number)

    def _number_of(self, start: bytes) -> int:
        """Return the number of the space whose stored keys begin like this."""
        locks = self._locks
        name = "" if self.hides_names or not start else self._name_of(start)
        number: int | None = HIDDEN
        if name is not None:
            number = self._number_named(name.encode("utf-8", "replace")) if name else PLAIN
        if number is None:
            return PLAIN  # the next look will find it, or add it
        if len(self._known) >= _KNOWN:
            self._known.clear()
        if locks is self._locks:  # else it was that of another file, or of none
            self._known[start] = number
        return number

    def _number_named(self, name: bytes) -> int | None:
        """Return the number of a name, having added it if there is room; None where that cannot be done just now.

        Who adds a name holds the lock for some microseconds; if it has been stopped meanwhile, nobody waits for it.
        """
        if self._locks is None:
            return PLAIN
        if name not in self._numbers and len(self._numbers) < _NAMES:
            tries = 1
            while not self._add_name(name) and tries < _TRIES:
                tries += 1
                time.sleep(_PAUSE)
        return self._numbers.get(name, OTHER if len(self._numbers) == _NAMES else None)

    def _add_name(self, name: bytes) -> bool:
        """Look for a name, and add it if there is room; return False if another process adds one just now."""
        with self._lock, suppress(OSError):  # of a full disk
            locks = self._locks
            self._numbers = self._read_names()
            if locks is None or name in self._numbers:
                return True
            with _held(locks, _NAMES_LOCK) as held:
                if not held:
                    return False
                self._numbers = self._read_names()
                if name not in self._numbers and (count := len(self._numbers)) < _NAMES:
                    entry = (bytes((len(name),)) + name).ljust(_NAME_SIZE, b"\0")
                    os.pwrite(locks.descriptor, entry, _PAGE + _NAME_SIZE * (FIRST_NAME + count))
                    _write(locks.descriptor, 8 * Word.NAMES, [count + 1])  # last, so that nobody sees half a name
                    self._numbers[name] = FIRST_NAME + count
        return True

    def _read_names(self) -> dict[bytes, int]:
        """Return the numbers of the names in the file; of those that are equal, which damage has made, one counts."""
        descriptor = self._descriptor
        if descriptor < 0:
            return {}
        count = min(_word(descriptor, Word.NAMES), _NAMES)
        data = os.pread(descriptor, _NAME_SIZE * count, _PAGE + _NAME_SIZE * FIRST_NAME)
        starts = range(0, len(data), _NAME_SIZE)
        return {data[at + 1 : at + 1 + data[at]]: FIRST_NAME + at // _NAME_SIZE for at in starts}

    # -- what was counted ---------------------------------------------------------------------------------------------

    def totals(self, anew: bool = True) -> Totals:
        """Return what all handles have counted, since it began anew or, without `anew`, since the file was made."""
        with self._lock:
            self._open(self.level)  # another thread may just have closed this
            descriptor = self._descriptor
            names = {number: name.decode("utf-8", "replace") for name, number in self._read_names().items()}
            if descriptor < 0:
                rows, base = [array("Q", bytes(self._own))], self._base
            else:
                rows = [row for row in (_read(descriptor, _offset_of(each)) for each in range(_ROWS)) if row != _UNUSED]
                base = _read(descriptor, _BASE)
        names |= {PLAIN: "", OTHER: "(other)"}
        sums = [0] * _LENGTH
        for row in rows:
            sums = list(map(add, sums, row))
        if not anew:
            return Totals([count & MAX_WORD for count in sums], names)
        return Totals([_grown(count, since) for count, since in zip(sums, base, strict=True)], names)

    def begin_anew(self) -> None:
        """Let `totals` begin at 0 again; nobody's count is lost, since only where it begins is stored.

        Raises DiskFull if there is no room to store that.
        """
        base = array("Q", self.totals(anew=False).words)
        with self._lock:
            locks = self._locks
            if locks is None:
                self._base = base
                return
            with _held(locks, _BASE_LOCK) as held:
                if held:  # else another process does the same just now
                    self._write(_BASE, base.tobytes())

    def stats(self, wanted: bool, reset: bool) -> tuple[int, int]:
        """Return the hits and misses that were counted while DiskCache would count, and count on or stop.

        `reset`: begin again at 0.
        """
        now = self.totals(anew=False).uses()
        with self._lock:
            head = self._read_head()
            hits, misses = head[Word.STATS_BEFORE], head[Word.STATS_BEFORE + 1]
            if head[Word.STATS_ON]:
                hits += _grown(now[0], head[Word.STATS_FROM])
                misses += _grown(now[1], head[Word.STATS_FROM + 1])
            told = (int(wanted), *now, *((0, 0) if reset else (hits, misses)))
            words = array("Q", [word & MAX_WORD for word in told])  # damage may have made them any number
            if self._locks is None:
                self._head[Word.STATS_ON : Word.STATS_ON + len(words)] = words
            else:
                self._write(8 * Word.STATS_ON, words.tobytes())
        return hits, misses

    def switch_stats(self, wanted: bool) -> None:
        """Let `stats` count on or stop, if it does not yet."""
        with self._lock:
            self._open(self.level)
            is_on = bool(self._read_head()[Word.STATS_ON])
        if is_on != wanted:
            self.stats(wanted, reset=False)

    def _read_head(self) -> array[int]:
        return self._head if self._locks is None else _read(self._descriptor, 0, _PAGE // 8)

    @property
    def _descriptor(self) -> int:
        """Return the descriptor of the file, -1 if there is none; it stays open while the caller has the lock."""
        return -1 if self._locks is None else self._locks.descriptor

    def _write(self, offset: int, data: bytes) -> None:
        try:
            os.pwrite(self._descriptor, data, offset)
        except OSError as error:
            raise file_error(error, self._path) from error


class Totals:
    """The sums of all rows, and the names of spaces by their numbers."""

    def __init__(self, words: list[int], names: dict[int, str]) -> None:
        self.words, self.names = words, names

    def space(self, number: int) -> list[int]:
        """Return the counters of a space, HOT to DELETES."""
        first = number * SPACE_COUNTERS
        return self.words[first + 1 : first + SPACE_COUNTERS]

    def event(self, name: str) -> int:
        """Return how often something has happened to the whole cache."""
        return self.words[_AT[name]]

    def times(self, name: str) -> list[int]:
        """Return the buckets of a histogram."""
        return self.words[TIMES_AT[name] : TIMES_AT[name] + BUCKETS]

    def uses(self) -> tuple[int, int]:
        """Return hits and misses of all keys but the package's own."""
        spaces = [self.space(number) for number in range(SPACES) if number != HIDDEN]
        return sum(sum(space[HOT - 1 : REMOTE]) for space in spaces), sum(space[MISSES - 1] for space in spaces)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the times in nanoseconds between which a bucket counts; the first one begins at 0."""
    octave, part = divmod(bucket, PARTS)
    least, width = (PARTS + part) << octave + LEAST_OCTAVE - 4, 1 << octave + LEAST_OCTAVE - 4
    return least if bucket else 0, least + width


@contextmanager
def _held(locks: ByteLocks, number: int) -> Iterator[bool]:
    """Hold the lock of a number in the body, whose value tells whether it was free."""
    owner = object()  # one for each thread
    try:
        yield locks.hold(number, owner)
    finally:
        locks.let_go(number, owner)


def _grown(count: int, since: int) -> int:
    """Return by how much a counter has grown, 0 if it has been taken back; damage may have made it any number."""
    grown = count - since & MAX_WORD
    return grown if grown >> 63 == 0 else 0


def _offset_of(row: int) -> int:
    return _BASE + 8 * _LENGTH * (1 + row)


def _read(descriptor: int, offset: int, words: int = _LENGTH) -> array[int]:
    """Read words, zeros beyond the end. A carry that is under way just then may be seen in part."""
    found = array("Q")
    found.frombytes(os.pread(descriptor, 8 * words, offset).ljust(8 * words, b"\0"))
    return found


def _word(descriptor: int, index: int) -> int:
    return _read(descriptor, 8 * index, 1)[0]


def _write(descriptor: int, offset: int, words: list[int]) -> None:
    """Write words by a call that fails on a full disk; a store into a map would kill the process."""
    os.pwrite(descriptor, array("Q", words).tobytes(), offset)


_all = told_of_forks(Counts.forked)
