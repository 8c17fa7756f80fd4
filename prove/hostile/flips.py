"""Bad disks: any byte of any file flipped, a file cut anywhere, a sector gone, at rest and under an open handle."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

from diskcache_like.coherence._native import LEAST_CELLS
from diskcache_like.coherence.generations import Header
from diskcache_like.coherence.ring import LEAST_CAPACITY, PAGE, Ring, Word
from diskcache_like.encoding import file_names, record
from diskcache_like.entries import loading
from diskcache_like.errors import CacheError
from tests.support.rings import find_unchecked, finding

from ..proof import Trial
from .samples import (
    BUFFER,
    OPTIONS,
    VALUES,
    Judge,
    Refused,
    Sample,
    Tries,
    Workbench,
    attempt,
    deadline,
    make,
    tried,
)

SECTOR = 512
SPARSE = 1_500  # bytes tried of a file that is nearly all zeros: those in use first, then any
NEARLY_EMPTY = ("-shm", "cache.lock", "cache.metrics")
WHOLE_BYTES, SPARSELY = 1 << 10, 8  # cut in use at each byte if smaller than that, else at each so manieth
LIVE = ("plain", "sealed", "buffered")  # samples that are taken also as they lie while in use
MAPPED = (
    "cache.gen",
    "cache.metrics",
    BUFFER,
    "-shm",
)  # cutting one ends who has it mapped: planted_links.py tries that


class Place(NamedTuple):
    """Where a sample is damaged, and how: flipped, cut or zeroed."""

    sample: Sample
    file: str
    number: int
    how: str
    open: bool  # while a handle is open

    def offset(self) -> int:
        """Return the byte where the damage is, or begins."""
        content = self.sample.files[self.file]
        if not self.file.endswith(NEARLY_EMPTY):
            return self.number
        used = _used(content)
        return used[self.number] if self.number < len(used) else random.Random(self.number).randrange(len(content))

    def __str__(self) -> str:
        return f"{self.sample.name}, {self.file} at {self.offset()}, {self.how}"

    def do(self, directory: Path, descriptors: Mapping[str, int]) -> None:
        descriptor, content, offset = descriptors[self.file], self.sample.files[self.file], self.offset()
        if self.how == "cut":
            os.ftruncate(descriptor, offset)
        elif self.how == "zero":
            os.pwrite(descriptor, bytes(min(SECTOR, len(content) - offset)), offset)
        else:
            os.pwrite(descriptor, bytes((content[offset] ^ 1 << self.bit(),)), offset)

    def judge(self) -> Judge:
        # Rows may be out of order, which SQLite does not notice (docs/reliability.md).
        disorder = not self.file.endswith("cache.gen") and self.may_empty() and len(self.may_cost()) > 1
        return Judge(disorder=disorder)

    def look_anew(self, _: Path) -> None:
        """Look at nothing more: what was open is what is there."""

    def tell(self, trial: Trial, judge: Judge) -> None:
        """Count what was found, and assert that no overwritten value is back that may not be."""
        trial.count("values from before the damage came back", len(judge.back))
        if judge.older and (where := self.may_age()):
            trial.count(where)
        else:
            assert not judge.older, f"{self}: an overwritten value is back"

    def may_cost(self) -> set[Any]:
        """Return the keys whose entries may be missing then."""
        entries, content = self.sample.entries, self.sample.files[self.file]
        if self.file.endswith(file_names.SUFFIX):
            return {key for key, entry in entries.items() if entry.file == self.file}
        if self.is_ignored() or (not self.may_empty() and self.file != BUFFER):
            return set()
        there = {key for key, entry in entries.items() if self.file.startswith(entry.shard)}
        if self.how == "flip" and self.file.endswith(".db"):
            for key in there:
                if 0 <= self.offset() - content.find(entries[key].record) < len(entries[key].record):
                    return {key}
        if self.part() == "a record" and self.how == "flip":
            for key in there:
                record, end = entries[key].record, self.offset() + len(entries[key].record)
                if 0 <= content.rfind(record, 0, end) > end - 2 * len(record):
                    return {key}  # what the header in front of it says is as it was
        return there

    def part(self) -> str:
        """Return what is hit of a write buffer: the words of its header, the table, or a record; else nothing."""
        if self.file != BUFFER:
            return ""
        content, offset = self.sample.files[BUFFER], self.offset()
        capacity = int.from_bytes(content[8 * Word.CAPACITY :][:8], "little")
        return "a word" if offset < PAGE else "a record" if offset < PAGE + capacity else "the table"

    def is_ignored(self) -> bool:
        """Tell whether it hits one of those words of a write buffer that say what waits, in a copy: none is believed."""
        is_word = self.file == BUFFER and self.offset() // 8 in range(Word.RESERVED, Word.FLOOR + 1)
        return is_word and self.sample.is_copied and self.how == "flip" and not self.open

    def may_age(self) -> str:
        """Return in which respect an overwritten value may be read, if it may.

        Commits behind a damaged one have not been made. Nor have writes behind a damaged one in a write buffer whose
        words are not believed, nor those that its words or its table do not lead to: no checksum guards these, which
        each write changes. They are counted by themselves, and may do nothing worse.
        """
        if self.file.endswith(("-wal", "-shm")):
            return "with older values"
        if self.is_ignored():
            return ""
        if self.file == BUFFER and (self.sample.is_copied or self.how == "cut") and not self.open:
            return "with older values behind the end of the write buffer"
        if self.part() in ("a word", "the table"):
            return f"with older values after damage to {self.part()} of the write buffer"
        return ""

    def may_empty(self) -> bool:
        """Tell whether it may have the database refused or quarantined, with all entries of its shard."""
        if self.file.endswith("cache.gen"):  # without a whole header the files tell which database is the newest
            return self.how == "flip" and self.offset() // 8 == Header.EPOCH
        return self.file.endswith((".db", "-wal")) or (self.open and self.file.endswith("-shm"))  # else made anew

    def may_refuse(self) -> bool:
        """Return False: no handle refuses to go on for damage."""
        return False

    def bit(self) -> int:
        """Return the number of the bit to flip."""
        return random.Random(f"{self.sample.name} {self.file} {self.offset()}").randrange(8)


@cache
def _used(content: bytes) -> list[int]:
    return [found.start() for found in re.finditer(rb"[^\0]", content)]


def samples(place: Path) -> list[Sample]:
    return [make(name, place) for name in OPTIONS] + [make(name, place, live=True) for name in LIVE]


def bytes_of(sample: Sample, file: str) -> Sequence[int]:
    """Return the numbers of the bytes that are tried of a file: all that mean something."""
    size = len(sample.files[file])
    if file.endswith("cache.gen"):
        slots = int.from_bytes(sample.files[file][8 * Header.SLOTS :][:8], sys.byteorder)
        # The words of the header, the slots behind its page, and the marks and ghosts in use.
        return [*range(512), *range(PAGE - 8, PAGE + 8 * (slots + LEAST_CELLS))]
    if file == BUFFER:
        return [*range(8 * (Word.FLOOR + 1)), *range(PAGE, size)]
    return range(min(size, SPARSE) if file.endswith(NEARLY_EMPTY) else size)


def flips(made: Sequence[Sample], is_open: bool) -> list[Place]:
    """Return every place where a bit can be flipped."""
    return [
        Place(sample, file, number, "flip", is_open)
        for sample in made
        for file in sorted(sample.files)
        for number in bytes_of(sample, file)
    ]


def cuts(made: Sequence[Sample]) -> list[Place]:
    """Return every place where a file can be cut, and every sector of one."""
    return [
        place
        for number, sample in enumerate(made)
        for file in sorted(sample.files)
        for place in cuts_of(sample, file, number % SPARSELY)
    ]


def cuts_of(sample: Sample, file: str, first: int) -> Iterator[Place]:
    """Yield the places of a file; in use a large one is cut from its byte `first` on, another one in each sample."""
    size, numbers = len(sample.files[file]), bytes_of(sample, file)
    in_use: Sequence[int] = () if file.endswith(MAPPED) else numbers if size < WHOLE_BYTES else numbers[first::SPARSELY]
    for is_open, cut_at in ((False, numbers), (True, in_use)):
        yield from (Place(sample, file, at, "zero", is_open) for at in range(0, min(size, 1 << 15), SECTOR))
        yield from (Place(sample, file, at, "cut", is_open) for at in cut_at)


@contextmanager
def held(sample: Sample, directory: Path) -> Iterator[dict[str, int]]:
    """Open every file for writing as somebody else would, before the cache does, and close them after it.

    Closing one any sooner would drop SQLite's locks, which belong to the process.
    """
    with ExitStack() as stack:
        found = {}
        for name in sample.files:
            found[name] = os.open(directory / name, os.O_RDWR)
            stack.callback(os.close, found[name])
        yield found


# -- one case ---------------------------------------------------------------------------------------------------------


class Damage(Protocol):
    """What is done to a sample."""

    @property
    def sample(self) -> Sample: ...

    @property
    def open(self) -> bool:
        """Whether it is done while a handle is open."""

    def do(self, directory: Path, descriptors: Mapping[str, int]) -> None:
        """Do it to a copy of the sample; `descriptors`: of its files, opened before the cache was."""

    def judge(self) -> Judge:
        """Return who reads the cache then."""

    def look_anew(self, directory: Path) -> None:
        """Look at what is left behind, if what was open is something else."""

    def tell(self, trial: Trial, judge: Judge) -> None:
        """Count what was found of other times and caches, or fail by it."""

    def may_cost(self) -> set[Any]:
        """Return the keys whose entries may be missing then: those of one record or file, or of one shard."""

    def may_empty(self) -> bool:
        """Tell whether it may have the database refused or quarantined, with all entries of its shard."""

    def may_refuse(self) -> bool:
        """Tell whether a handle may refuse to go on, though nothing is lost."""


def try_damage(trial: Trial, bench: Workbench, damage: Damage) -> None:
    """Damage a copy of the sample, use it in every way, and see that nothing wrong was read, and little lost."""
    chance, refused, judge = random.Random(str(damage)), "", damage.judge()
    more = {} if chance.random() < 0.5 else {"hot_size_limit": 0}
    with bench.copy(damage.sample) as directory, held(damage.sample, directory) as descriptors, deadline():
        harm = partial(damage.do, directory, descriptors)
        if not damage.open:
            harm()
        try:
            with damage.sample.open(directory, **more) as handle:
                attempt(lambda: handle.get_many([key for key in VALUES if chance.random() < 0.5]))
                if damage.open:
                    harm()
                judge.everything(handle)
        except Refused:
            refused = "refused in use"
            with suppress(Refused, CacheError), damage.sample.open(directory) as handle:
                judge.mended(handle)  # what is then opened has to work
        except CacheError:
            refused = "refused at opening"
        damage.look_anew(directory)
        aside = len(list(directory.rglob("cache.*.db")))
    trial.count(refused or ("with entries missing" if judge.lost else "complete"))
    trial.count("databases quarantined", aside)
    damage.tell(trial, judge)
    assert not judge.wrong, f"{damage}: {judge.wrong}"
    cost = damage.may_cost()
    assert judge.lost <= cost, f"{damage}: entries that were not hit are missing: {judge.lost - cost}"
    empties = damage.may_empty() and len(cost) > 1
    assert aside <= empties, f"{damage}: {aside} databases were quarantined"
    assert empties or damage.may_refuse() or not refused, f"{damage}: {refused}"


FILES = "of a small cache's files (plain, signed, encrypted, compressed, FanoutCache, with -wal)"


@tried(
    "flipped-bytes",
    3,
    f"a bit flipped in every byte {FILES}; read, written, mended",
    "bytes",
    share=2.0,
    bulk=12.0,
    parallel=True,
)
def flip_closed(place: Path, _: Workbench) -> Tries:
    yield try_damage, flips(samples(place), False)


@tried(
    "flipped-bytes-open",
    3,
    f"a bit flipped in every byte {FILES} while it is in use",
    "bytes",
    share=2.0,
    bulk=15.0,
    parallel=True,
)
def flip_open(place: Path, _: Workbench) -> Tries:
    yield try_damage, flips(samples(place), True)


@tried(
    "cut-files",
    3,
    f"every file {FILES} cut at every byte at rest and at every eighth in use, every sector zeroed",
    "places",
    bulk=26.0,
    parallel=True,
)
def cut(place: Path, _: Workbench) -> Tries:
    yield try_damage, cuts(samples(place))


def buffered_samples(place: Path) -> list[Sample]:
    """Make a cache whose writes wait, the same as a copy has it, and one where nothing waits any more."""
    live = make("buffered", place, live=True)
    return [live, Sample("buffered, copied", live.options, live.files, live.entries, True), make("buffered", place)]


@tried(
    "buffer-damage",
    3,
    "a bit flipped in every byte of a small write buffer, at rest, in a copy and in use; it is cut at every byte at"
    " rest, and every sector zeroed",
    "places",
    bulk=10.0,
    parallel=True,
)
def damage_buffers(place: Path, _: Workbench) -> Tries:
    yield (
        try_damage,
        [
            damage
            for sample in buffered_samples(place)
            for damage in (
                *(
                    Place(sample, BUFFER, at, "flip", is_open)
                    for is_open in (False, True)
                    for at in bytes_of(sample, BUFFER)
                ),
                *cuts_of(sample, BUFFER, 0),
            )
        ],
    )


# -- the controls -----------------------------------------------------------------------------------------------------

KEY_SIZE = range(40, 44)  # bytes of a record's header in the write buffer


class _Anything:
    """Equals whatever it is compared with."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@tried(
    "control-checksum",
    3,
    "a bit flipped in a value, with the checksum not compared",
    "bytes",
    share=0.5,
    finds=r"AssertionError: plain, cache\.db at .* reads as ",
)
def comparing_no_checksum(place: Path, _: Workbench) -> Tries:
    sample = make("plain", place)
    where = sample.files["cache.db"].rindex(b"some text")
    places = [Place(sample, "cache.db", where + number, "flip", False) for number in range(len("some text that is"))]
    items = [item for item in places if item.bit() < 7]  # of ASCII: what is no text is noticed without a checksum
    with mock.patch.object(loading, "RESIDUE", _Anything()), mock.patch.object(record, "RESIDUE", _Anything()):
        yield try_damage, items


@tried(
    "control-buffer",
    3,
    "a bit flipped in the header of a record in the write buffer, with its checksum not compared",
    "bytes",
    share=0.3,
    finds=r"AssertionError: buffered in use, cache\.buffer at .*: an overwritten value is back",
)
def comparing_no_header(place: Path, _: Workbench) -> Tries:
    sample = make("buffered", place, live=True)
    content, stored = sample.files[BUFFER], sample.entries["twice"].record
    waiting = memoryview(content[:PAGE]).cast("Q")[Word.FLUSHED] % LEAST_CAPACITY
    inside = content.index(stored, PAGE + waiting)
    begin = next(  # of the record's header
        at
        for at in range(inside // 8 * 8, PAGE - 8, -8)
        if int.from_bytes(content[at : at + 8], "little") % LEAST_CAPACITY == at - PAGE
    )
    items = [Place(sample, BUFFER, begin + number, "flip", False) for number in KEY_SIZE]
    with finding(find_unchecked):
        yield try_damage, items


@tried(
    "control-buffer-words",
    3,
    "a bit flipped in a copied write buffer, in the word that says where walks end, and the words are believed",
    "bytes",
    share=0.3,
    finds=r"AssertionError: buffered, copied, cache\.buffer at .*: an overwritten value is back",
)
def believing_words(place: Path, _: Workbench) -> Tries:
    sample = buffered_samples(place)[1]
    items = [Place(sample, BUFFER, 8 * Word.FLOOR + number, "flip", False) for number in range(8)]
    with mock.patch.object(Ring, "belongs_to", return_value=True):
        yield try_damage, items
