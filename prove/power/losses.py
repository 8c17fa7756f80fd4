"""The power goes: random work on a small cache is recorded with all that it does to its files, by one process or two.

Images of the disk are drawn at random points of the record (disk_images.py says which), opened as after a restart of the
machine, and judged. Or the power goes again while an image is being opened, read, and at times checked: nothing is
stored meanwhile, so the second loss may take nothing that the first one had to leave.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

from diskcache_like.coherence import ring
from diskcache_like.coherence.ring import Ring
from diskcache_like.disk import file_io
from diskcache_like.disk.value_files import _Digest
from diskcache_like.storage.redo_log import RedoLog
from diskcache_like.storage.sqlite import connection
from diskcache_like.system import boot as system_boot
from tests.support.rings import HEADER, content_of, place_of, record_at
from tests.support.workers import Crew, Link, forked, ready

from ..proof import Trial, proof
from ..shim import Shim, build
from ..workload import LANES
from .disk_images import Disk, Image, mapped, parse, read, write
from .judging import Judge, JudgeOfTwo, look
from .recorded_work import (
    ON_BUFFER,
    ON_FILES,
    ON_TRANSACTIONS,
    PLACE,
    SIZES,
    Focus,
    Mark,
    RecordedWork,
    Recording,
    drawn_kind,
    fitted,
    is_mapped,
    maps_in,
    record,
    shards_of,
    verify,
)

IMAGES = 32  # drawn of each recording
FIRST, SECOND = 8, 4  # where the power goes twice: of each recording, and of each opening
MEMORY = Path("/dev/shm")  # where files cost least
Broken = Callable[[], contextlib.AbstractContextManager[Any]]
NOTHING: Broken = contextlib.nullcontext
BOOTS = (
    "5eed0002-5eed-5eed-5eed-5eed5eed5eed",
    "5eed0003-5eed-5eed-5eed-5eed5eed5eed",
)  # of the second start and the third


def each_image(
    recording: Recording, random: Random, space: Path, number: int, judge: Callable[[int, Image, Path], None], boot: str
) -> None:
    """Draw images of the disk, write each below `space`, and judge it by the log's length, the image and its place."""
    space.mkdir(exist_ok=True)
    (space / "boot_id").write_text(boot)
    with mock.patch.object(system_boot, "_BOOT_ID", space / "boot_id"):
        for count, (end, image) in enumerate(drawn(recording, random, number)):
            directory = space / str(count)
            write(image, directory)
            with explained(recording, recording.point(end), image):
                judge(end, image, directory)


def drawn(recording: Recording, random: Random, number: int = IMAGES) -> Iterator[tuple[int, Image]]:
    """Yield images of the disk, each with how long the log was by then."""
    points = sorted(random.randint(0, len(recording.events)) for _ in range(number))
    done = 0
    for point in points:
        for event in recording.events[done:point]:
            recording.disk.apply(event)
        done = point
        end = recording.events[point - 1].end if point else 0
        image = recording.disk.image(random)
        for path, content in image.items():
            if content is not None and is_mapped(path):
                seen = [seen for when, seen in recording.maps.get(path, ()) if when <= end]
                image[path] = mapped(len(content), seen, random)
        yield end, image


@contextlib.contextmanager
def explained(recording: Recording, point: int, image: Image) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        damaged = ", one database was damaged before" if recording.was_damaged else ""
        error.add_note(f"kind {recording.kind!r}{damaged}, the power went {_where(recording.marks, point)}")
        sizes = {path: None if content is None else len(content) for path, content in image.items()}
        error.add_note(f"image: {sizes}")
        raise


def _where(marks: list[Mark], point: int) -> str:
    after = f"after operation {point} ({marks[point - 1].name})" if point else "at the very beginning"
    return f"{after}, within {marks[point].name}" if point < len(marks) else after


def at_once(recordings: Sequence[Recording]) -> int:
    """Return how many operations of the second process began while one of the first ran."""
    first, second = (each.marks for each in recordings)
    return sum(any(mark.began <= other.began < mark.end for mark in first) for other in second)


def be_one(link: Link, make: Callable[[], RecordedWork], random: Random) -> Recording:
    """Do the work of one process; return what it knows of the recording."""
    with mock.patch.object(os, "urandom", random.randbytes):
        ready(link)
        work = make()
        work.do()
        shards = shards_of(work.cache, work.lane)
    return Recording(work.kind, Disk(""), [], work.marks, work.ever, shards, work.maps, was_damaged=False)


def record_two(random: Random, space: Path, durability: str) -> list[Recording]:
    """Have two processes work below `space` at once; return what was recorded, as each of them knows it."""
    root, log, kind = space / "disk", space / "log", drawn_kind(random)
    root.mkdir(parents=True)
    with fitted(random), Shim(root).recording(log), ExitStack() as stack:
        workers = []
        for lane in LANES:
            own = Random(random.random())
            make = partial(RecordedWork, kind, space, own, {"durability": durability}, SIZES, lane, alone=False)
            workers.append(stack.enter_context(forked(partial(be_one, make=make, random=own))))
        Crew.together(workers)
        found: list[Recording] = Crew.results(workers)
    events = [*parse(log.read_bytes())]
    verify(root, Disk(str(root.resolve()), root.stat().st_ino), events)
    first, second = (each.maps for each in found)
    maps = {path: sorted(first.get(path, []) + second.get(path, [])) for path in {*first, *second}}
    disk = Disk(str(root.resolve()), root.stat().st_ino)
    return [replace(each, disk=disk, events=events, maps={**maps, **maps_in(root)}) for each in found]


@contextlib.contextmanager
def somewhere(broken: Broken) -> Iterator[Path]:
    """Yield a place for recordings and images, with the cache `broken`."""
    memory = MEMORY if MEMORY.is_dir() else None
    with broken(), tempfile.TemporaryDirectory(prefix="prove-", dir=memory) as space:
        yield Path(space)


def power_goes(
    trial: Trial, durability: str, random: Random, broken: Broken = NOTHING, focus: Focus | None = None
) -> None:
    """Record, draw images and judge them, with a `focus` on work that shows soon that the cache is `broken`."""
    with somewhere(broken) as space:
        recording = record(random, space / "recorded", durability, focus)
        trial.count("operations", len(recording.marks))

        def judge(end: int, image: Image, directory: Path) -> None:
            judge = Judge(durability, recording, recording.point(end), image, random)
            judge(directory / PLACE)
            trial.count("images")
            trial.count("images that differ from the acknowledged state", int(judge.has_lost))

        each_image(recording, random, space, IMAGES, judge, BOOTS[0])


def power_goes_for_two(trial: Trial, durability: str, random: Random, broken: Broken = NOTHING) -> None:
    """Do the same while two processes work."""
    with somewhere(broken) as space:
        recordings = record_two(random, space / "recorded", durability)
        trial.count("operations", sum(len(each.marks) for each in recordings))
        trial.count("of them begun while another ran", at_once(recordings))

        def judge(end: int, image: Image, directory: Path) -> None:
            JudgeOfTwo(durability, recordings, end, image, random)(directory / PLACE)
            trial.count("images")

        each_image(recordings[0], random, space, IMAGES, judge, BOOTS[0])


def power_goes_twice(trial: Trial, durability: str, random: Random, opened_as: str = "") -> None:
    """Open images under the recorder, perhaps `opened_as` another durability, and judge images of the openings."""
    with somewhere(NOTHING) as space:
        recording = record(random, space / "recorded", durability, ON_FILES if opened_as else None)

        def open_again(end: int, image: Image, root: Path) -> None:
            judge = Judge(durability, recording, recording.point(end), image, random)
            disk, copy, before, log = Disk.holding(root), Disk.holding(root), read(root), root.with_name("log")
            with (
                warnings.catch_warnings(action="ignore"),
                Shim(root).recording(log),
                judge.opened(root / PLACE, opened_as or durability) as cache,
            ):
                look(cache)
                if random.random() < 0.5:
                    cache.check(fix=True)
            events = [*parse(log.read_bytes())] if log.exists() else []
            log.unlink(missing_ok=True)
            verify(root, copy, events)
            trial.count("images opened while recording")
            maps = {
                path: [(0, seen) for seen in (before.get(path), content) if seen]
                for path, content in read(root).items()
            }
            opening = replace(recording, disk=disk, events=events, marks=[], maps=maps)

            def judge_again(_: int, again: Image, directory: Path) -> None:
                judge(directory / PLACE)
                trial.count("images of those openings")
                trial.count("of them different from the acknowledged state", int(judge.has_lost))

            each_image(opening, random, root.with_name(f"{root.name} again"), SECOND, judge_again, BOOTS[1])

        each_image(recording, random, space, FIRST, open_again, BOOTS[0])


# -- the proofs -------------------------------------------------------------------------------------------------------

WHAT = {
    "power": 'power loss under durability="power"; unsynced writes and directory entries are lost, reordered or torn',
    "system": 'the same under durability="system"',
    "process": 'the same under durability="process"',
}

# What a loss of power does where it can do harm, however that comes to light.
HARM = (
    r"AssertionError: (half of a transaction|shard . is in none of its states |check\(fix=True\) changes what is there"
    r"|.*(database disk image is malformed|file is not a database|the database is gone or empty|missing from index"
    r"|\*\*\* in database main|value file .* does not |: file not found))"
)


_begin = Ring.begin


def begin_with_anything(self: Ring, mark: ring.Mark | None, epoch: int, anew: int) -> int:
    """Take for the next record whatever verifies by itself, of any lap: what the chain is there to rule out."""
    known = mark if self.holds(mark) else None
    if known is not None:
        content, offset, last = content_of(self), known.flushed, known.last
        limit = offset + self.capacity
        while True:
            for start in (offset, (offset // self.capacity + 1) * self.capacity):
                at = place_of(self, start)
                found, _ = record_at(self, int.from_bytes(content[at : at + 8], "little"))
                if found is not None and found.offset % self.capacity == start % self.capacity:
                    break
            else:
                break
            offset = start + found.size
            if offset > limit:
                break
            header = HEADER.pack(*found._replace(offset=start, last=last))[:-4]
            last = crc32(header)
            content[at : at + len(header) + 4] = header + last.to_bytes(4, "little")
    return _begin(self, mark, epoch, anew)


class Sabotage(NamedTuple):
    """How the cache is broken for a control."""

    durability: str
    what: str
    broken: Broken
    finds: str = HARM  # what has to come of it
    focus: Focus = ON_FILES


BROKEN = {
    "commits": Sabotage("power", "commits not synced", partial(mock.patch.object, connection, "EXTRA", 0)),
    "files": Sabotage("power", "value files not synced", partial(mock.patch.object, os, "fdatasync")),
    "directories": Sabotage("power", "directories not synced", partial(mock.patch.object, os, "fsync")),
    "sync": Sabotage("system", "value files that sync() leaves out", partial(mock.patch.object, file_io, "sync")),
    "journal": Sabotage(
        "power",
        "transactions over several shards that have no redo log",
        partial(mock.patch.object, RedoLog, "decide", return_value=[]),
        focus=ON_TRANSACTIONS,
    ),
    "checksums": Sabotage(
        "system",
        "value files not verified",
        partial(mock.patch.object, _Digest, "value", return_value=bytes(4)),
        "AssertionError: values that were never there: ",
    ),
    "chain": Sabotage(
        "system",
        "records of the write buffer whose offset and chain nobody checks",
        partial(mock.patch.object, Ring, "begin", begin_with_anything),
        focus=ON_BUFFER,
    ),
}


Case = Callable[[Trial, str, Random], None]


def _register(name: str, what: str, case: Case, durabilities: Sequence[str] = tuple(WHAT), **how: Any) -> None:
    """Register a case, which takes one of the durabilities."""

    def run(trial: Trial) -> None:
        trial.repeat(lambda random: case(trial, random.choice(durabilities), random))

    proof(f"power-{name}", 3, what, preload=build, **how)(run)


for _name, _what in WHAT.items():
    _register(_name, _what, power_goes, [_name], share=2.0, bulk=9.0, parallel=True)
for _name, _how in BROKEN.items():
    _case = partial(power_goes, broken=_how.broken, focus=_how.focus)
    _register(f"no-{_name}", f"power loss, with {_how.what}", _case, [_how.durability], share=0.5, finds=_how.finds)
_register(
    "twice",
    "a second power loss while what the first one left is opened, read and repaired",
    power_goes_twice,
    parallel=True,
)
_register(
    "twice-unsynced",
    "a second power loss, with nothing synced on opening",
    partial(power_goes_twice, opened_as="process"),
    ["power"],
    share=0.5,
    finds=HARM,
)
_register("two", "power loss while two processes write at once", power_goes_for_two)
_register(
    "two-no-commits",
    "power loss while two processes write at once, with commits not synced",
    partial(power_goes_for_two, broken=BROKEN["commits"].broken),
    ["power"],
    share=0.5,
    finds=HARM,
)
