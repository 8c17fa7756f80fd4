"""What all processes of a machine know about the entries on a server, in a mapped file.

* **Words**: one for each of 65,536 slots of names. Whoever learns that an entry has changed on the server stores a new
  random number in its word: the listener for every message of the server, a writer when its write was answered. Nobody
  reads a word to compute the next, so no lock is needed: of two stores that meet, either leaves a number that no reader
  has noted. A reader notes the word before it sends a request, and what it got counts while the word is the same.
* **The lease**: when the listener's last answered probe was *sent*, by CLOCK_BOOTTIME. It vouches for everything that
  the server acknowledged before. The listener alone stores it.
* **Cells**: for an entry that lies on this machine's disk, the version that it has and the word under which that
  counts, so that what one process has confirmed every process may believe. Any process writes one, without a lock. A
  cell that is torn, or another entry's, does not have its guard, and costs a request.
* **TAGS** is a word for all tags: it changes before the word of any tag does. Which tags an entry has is known only
  after the answer; their words are those of before the request if TAGS is the same.

After a restart of the machine the lease is void, and the first listener renews every word.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ..coherence import _native
from ..coherence.control_files import allocate, extend, open_control_file
from ..encoding.record import VERSION_SIZE
from ..errors import DirectoryError
from ..system.boot import boot_id

SLOTS: Final = 1 << 16
HEADER: Final = 512  # words, one page
SIZE: Final = 8 * (HEADER + SLOTS + 4 * SLOTS)
NAME: Final = 128  # word at which the name of the namespace begins: a byte for its length, then its bytes
FAILURES: Final = 5  # requests in a row without an answer, after which nobody on this machine asks
PAUSE: Final = 5_000_000_000  # nanoseconds, for this long
ABSENT: Final = 0  # as the version in a cell: the server has no such entry

_MAGIC: Final = 0x32304552_4D4C4344  # 'DCLMRE02'
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class Word:
    """Indices of the words of the header."""

    MAGIC, BOOT, FILE, LEASE, TAGS, FAILURES, ASK_AGAIN, MACHINE = range(8)
    # MACHINE and the next: a number of this directory's own
    COUNTERS = 16  # where the counters begin


COUNTERS: Final = (
    *("requests", "errors", "retries", "refused", "stale_served", "unverifiable", "too_large"),
    *("invalidations", "connections", "probes", "local_failures", "conflicts", "confirmed"),
)

_COUNTER_AT: Final = {name: Word.COUNTERS + at for at, name in enumerate(COUNTERS)}


def boottime() -> int:
    """Return the nanoseconds since the machine started, including the time that it was suspended."""
    return time.clock_gettime_ns(_CLOCK)


boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK)
"""Return what `boottime` does, in seconds; each hit calls it, and a function in Python would take 25 ns longer."""


def fresh() -> bytes:
    """Return a version that no entry has had."""
    return os.urandom(VERSION_SIZE)


def unique() -> int:
    """Return an even number that has never been in any word."""
    return int.from_bytes(os.urandom(8), "little") & (_MASK - 1) or 2


class _Mapped(NamedTuple):
    """The parts of the mapped file. It is unmapped when nobody has any of them."""

    name: memoryview
    header: _native.Words
    words: _native.Words
    cells: _native.Words


class TierState:
    """Map the state of one namespace, while it is used."""

    def __init__(self, path: str, shared: bool) -> None:
        self.path = path
        self._shared = shared
        self._mapped: _Mapped | None = None
        self._open()

    def _open(self) -> _Mapped:
        """Map the file; two threads that do so at once map the same memory."""
        descriptor = open_control_file(Path(self.path), create=True, shared=self._shared)
        try:
            if os.fstat(descriptor).st_size < SIZE and not (allocate(descriptor, SIZE) or extend(descriptor, SIZE)):
                raise DirectoryError(0, "no room for the state of the remote tier", self.path)
            file = os.fstat(descriptor).st_ino
            mapping = mmap.mmap(descriptor, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)
        parts = ((0, HEADER), (HEADER, SLOTS), (HEADER + SLOTS, SIZE // 8 - HEADER - SLOTS))
        name = memoryview(mapping)[8 * NAME : 8 * HEADER]
        mapped = _Mapped(name, *(_native.Words(mapping, first, length) for first, length in parts))
        _begin(mapped, file)
        self._mapped = mapped
        return mapped

    def close(self) -> None:
        """Let go of the file; the next use maps it again."""
        self._mapped = None

    @property
    def header(self) -> _native.Words:
        """Return the words of the header."""
        return (self._mapped or self._open()).header

    @property
    def words(self) -> _native.Words:
        """Return the words of the slots."""
        return (self._mapped or self._open()).words

    @property
    def _cells(self) -> _native.Words:
        return (self._mapped or self._open()).cells

    @property
    def machine(self) -> bytes:
        """Return what names this directory on the server: the version of all entries whose values stay here."""
        header = self.header
        return header[Word.MACHINE].to_bytes(8, "big") + header[Word.MACHINE + 1].to_bytes(8, "big")

    # -- words --------------------------------------------------------------------------------------------------------

    def change(self, index: int) -> None:
        """Make nothing count any more that was read from the server under this word."""
        self.words[index] = unique()

    def change_tags(self, indices: list[int]) -> None:
        """Do so for everything that has these tags. TAGS goes first: see the top of this file."""
        self.header[Word.TAGS] = unique()
        for index in indices:
            self.words[index] = unique()

    def change_all(self) -> None:
        """Make nothing count any more."""
        self.header[Word.TAGS] = unique()
        self.words.fill(unique())

    def stamp(self, indices: frozenset[int], index: int = -1, word: int = 0) -> int:
        """Return one number for the words at these indices, which changes when any of them does.

        `word` stands for the one at `index`. For a single index it is the word. Several words are weighted by their
        places: `change_all` stores one number in all of them, and what is left of equal words must change as well.
        """
        if len(indices) == 1:
            (only,) = indices
            return word if only == index else self.words[only]
        return sum((word if at == index else self.words[at]) * (2 * at + 1) for at in indices) & _MASK

    # -- cells --------------------------------------------------------------------------------------------------------

    def note(self, index: int, digest: int, version: int, stamp: int) -> None:
        """Note that an entry has this version while `stamp` is the number of its words."""
        cells, at = self._cells, 4 * index
        cells[at + 3] = 0
        cells[at], cells[at + 1], cells[at + 2] = digest, version, stamp
        cells[at + 3] = _guard(digest, version, stamp)

    def noted(self, index: int, digest: int) -> tuple[int, int] | None:
        """Return the version and the stamp that were noted last for an entry, None if that is not known."""
        cells, at = self._cells, 4 * index
        found, version, stamp = cells[at], cells[at + 1], cells[at + 2]
        if found != digest or cells[at + 3] != _guard(found, version, stamp):
            return None
        return version, stamp

    # -- the lease ----------------------------------------------------------------------------------------------------

    def lease_ends(self, max_staleness: int | None) -> float:
        """Return until when, in seconds by `boot_seconds`, what counts may be believed; `max_staleness` in ns."""
        if max_staleness is None:
            return float("inf")
        sent = self.header[Word.LEASE]
        return 0.0 if not sent or sent > boottime() else (sent + max_staleness) / 1e9

    # -- requests -----------------------------------------------------------------------------------------------------

    def may_ask(self) -> bool:
        """Tell whether the server may be asked now; if a pause is over, one who asks finds out for the others."""
        until, now = self.header[Word.ASK_AGAIN], boottime()
        if now < until <= now + PAUSE:
            return False
        if until:
            self.header[Word.ASK_AGAIN] = now + PAUSE
        return True

    def is_pausing(self) -> bool:
        """Tell whether nobody asks the server for now."""
        return boottime() < self.header[Word.ASK_AGAIN]

    def failed(self) -> None:
        """Count a request without an answer; after several in a row, nobody asks for a while."""
        self.count("errors")
        failures = self.header[Word.FAILURES] = min(self.header[Word.FAILURES], FAILURES) + 1
        if failures >= FAILURES:
            self.header[Word.ASK_AGAIN] = boottime() + PAUSE

    def succeeded(self) -> None:
        """Note that the server has answered."""
        if self.header[Word.FAILURES] or self.header[Word.ASK_AGAIN]:
            self.header[Word.FAILURES] = self.header[Word.ASK_AGAIN] = 0

    # -- what a person may know ----------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """Return the name of the namespace."""
        name = (self._mapped or self._open()).name
        return bytes(name[1 : 1 + name[0]]).decode("utf-8", "replace")

    @namespace.setter
    def namespace(self, name: str) -> None:
        encoded = name.encode("utf-8", "surrogatepass")
        (self._mapped or self._open()).name[: 1 + len(encoded)] = bytes((len(encoded),)) + encoded

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter of all processes. Two that add at the same instant may count as one."""
        at = _COUNTER_AT[name]
        self.header[at] = self.header[at] + number & _MASK

    def counts(self) -> dict[str, int]:
        """Return the counters."""
        return {name: self.header[Word.COUNTERS + at] for at, name in enumerate(COUNTERS)}


def _guard(digest: int, version: int, stamp: int) -> int:
    """Return a number that other triples hardly have, and never 0."""
    return ((digest * _MIX ^ version) * _MIX ^ stamp) * _MIX & _MASK | 1


def _begin(mapped: _Mapped, file: int) -> None:
    """Void what an earlier boot has left, or what was copied; two processes that do so at once do the same."""
    header, boot = mapped.header, boot_id()
    if header[Word.FILE] != file:  # a copy of a directory is another machine's
        header[Word.MACHINE + 1], header[Word.MACHINE] = unique(), unique()
    # Without a number of the boot nothing from before is believed.
    if header[Word.MAGIC] == _MAGIC and header[Word.FILE] == file and header[Word.BOOT] == boot and boot:
        return
    header[Word.LEASE] = header[Word.FAILURES] = header[Word.ASK_AGAIN] = 0
    header[Word.TAGS] = unique()
    mapped.words.fill(unique())
    header[Word.BOOT], header[Word.FILE] = boot, file
    header[Word.MAGIC] = _MAGIC
