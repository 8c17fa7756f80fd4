"""The power goes: a cache opened on any image that the disk may be left with holds what its `durability` promises.

Random work on a small cache is recorded with all that it does to its files; then images of the disk are drawn at random
points of the record (images.py says which), opened as after a restart of the machine, and judged:

power    every acknowledged write is there, value files included, and of an unfinished operation all or nothing
system   each shard is as it was after one of its operations, none of those before the last closing missing; of a value
         in a file of its own the file may be missing or not whole, which makes the entry missing
process  anything may be missing, and a damaged database is quarantined

and under all of them no key has a value that it never had, the cache can be used, `check(fix=True)` finds nothing that
may not be there and leaves nothing to find, and what is written afterwards stays.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

from diskcache_like import Cache, EmptyDirWarning, UnknownFileWarning
from diskcache_like.coherence import ring
from diskcache_like.coherence.ring import Ring
from diskcache_like.disk import file_io
from diskcache_like.disk.value_files import _Digest
from diskcache_like.errors import CorruptDatabaseWarning, SecretError
from diskcache_like.storage.redo_log import RedoLog
from diskcache_like.storage.sqlite import connection
from diskcache_like.system import boot as system_boot
from tests.support.rings import HEADER, content_of, place_of, record_at

from ..proof import Trial, proof
from ..shim import build
from .disk_images import Image, mapped, write
from .recorded_work import (
    LANES,
    ON_BUFFER,
    ON_FILES,
    ON_TRANSACTIONS,
    PLACE,
    QUEUE,
    SECRETS,
    Focus,
    Lane,
    Mark,
    Recording,
    State,
    is_in_file,
    is_mapped,
    open_cache,
    record,
)

IMAGES = 32  # drawn of each recording
MEMORY = Path("/dev/shm")  # where files cost least
MISSING = object()
Broken = Callable[[], contextlib.AbstractContextManager[Any]]
NOTHING: Broken = contextlib.nullcontext
BOOTS = (
    "5eed0002-5eed-5eed-5eed-5eed5eed5eed",
    "5eed0003-5eed-5eed-5eed-5eed5eed5eed",
)  # of the second start and the third
LITTER = (UnknownFileWarning, EmptyDirWarning)


def power_goes(durability: str, trial: Trial, broken: Broken = NOTHING, focus: Focus | None = None) -> None:
    """Record, draw images and judge them, with the cache `broken` and a `focus` on work that shows it soon."""

    def case(random: Random) -> None:
        memory = MEMORY if MEMORY.is_dir() else None
        with broken(), tempfile.TemporaryDirectory(prefix="prove-", dir=memory) as space:
            recording = record(random, Path(space, "recorded"), durability, focus)
            trial.count("operations", len(recording.marks))
            boot = Path(space, "boot_id")
            boot.write_text(BOOTS[0])
            with mock.patch.object(system_boot, "_BOOT_ID", boot):
                for number, (end, image) in enumerate(drawn(recording, random)):
                    point = recording.point(end)
                    judge = Judge(durability, recording, point, image, random)
                    with explained(recording, point, image):
                        directory = Path(space, str(number))
                        write(image, directory)
                        judge(directory / PLACE)
                    trial.count("images")
                    trial.count("images that differ from the acknowledged state", int(judge.has_lost))

    trial.repeat(case)


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


class Judge:
    """Open an image and compare what is there with what was promised; `point`: how many operations were acknowledged."""

    lanes: Sequence[Lane] = LANES[:1]

    def __init__(self, durability: str, recording: Recording, point: int, image: Image, random: Random) -> None:
        self._durability, self._recording, self._image, self._random = durability, recording, image, random
        self._point = point
        self.has_lost = False
        marks = recording.marks
        is_damaged = any(mark.is_loose for mark in marks[max(point - 1, 0) : point + 1])
        # What is quarantined is not for long under `system`: a loss may bring the damaged database back.
        is_damaged = is_damaged or (durability == "system" and recording.was_damaged)
        self._is_excused = durability == "process" or is_damaged

    def __call__(self, directory: Path) -> None:
        """Judge one image."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with self.opened(directory) as cache:
                seen = look(cache, self.lanes)
                self.judge(seen)
                if self._random.random() < 0.3:
                    self._use_unmended(cache)
                self._mend(cache)
                _use(cache)
                left = look(cache, self.lanes)
            assert left.pop("after") == "the restart"
            if not self._is_excused:
                assert left == seen, f"check(fix=True) changes what is there: {_told(left, seen)}"
            if self._random.random() < 0.5:
                with self.opened(directory) as cache:
                    again, wanted = look(cache, self.lanes), {**left, "after": "the restart"}
                assert again == wanted, f"opened once more, other things are there: {_told(again, wanted)}"
        if self._durability != "process" and not self._recording.was_damaged:
            told = [str(warning.message) for warning in warned if warning.category is CorruptDatabaseWarning]
            assert not told, told

    @contextlib.contextmanager
    def opened(self, directory: Path, durability: str = "process") -> Iterator[Cache]:
        """Open with whichever secret fits, without a limit and, unless the power goes again, without syncing."""
        for secret in SECRETS:
            with contextlib.suppress(SecretError):
                cache = open_cache(self._recording.kind, directory, secret, durability=durability, size_limit=1 << 30)
                break
        else:
            raise AssertionError("no secret opens the cache")
        with contextlib.closing(cache):
            yield cache

    def judge(self, seen: State) -> None:
        """Compare what was seen with what was promised."""
        wrong = {key: value for key, value in seen.items() if not self._was(key, value)}
        assert not wrong, f"values that were never there: {wrong}"
        self.has_lost = seen != self.marks[self._point].state
        if self._is_excused:
            return
        latest = self.marks[min(self._point + 1, len(self.marks) - 1)]
        if self._durability == "power" and latest.name == "transact" and not latest.evicts:
            assert seen in (self.marks[self._point].state, latest.state), "half of a transaction"
        for shard in sorted({*self._recording.shards.values()}):
            self.assert_one_state(seen, shard)

    @property
    def marks(self) -> list[Mark]:
        """The states after each operation, before the first one too."""
        return [Mark(0, {self.lanes[0].queue: ()}, "nothing"), *self._recording.marks]

    def _range(self, shard: int) -> range:
        """Return the numbers of the operations up to which a shard may be there."""
        first = self._point if self._durability == "power" else self._floor(self.marks, shard)
        return range(first, min(self._point + 2, len(self.marks)))

    def states(self, seen: State, shard: int) -> Iterator[int]:
        """Yield the numbers of the operations after which, or on the way to which, the shard is what was seen of it."""
        part = {key: value for key, value in seen.items() if self._recording.shards[key] == shard}
        return (index for index in reversed(self._range(shard)) if self._fits(part, shard, self.marks, index))

    def assert_one_state(self, seen: State, shard: int) -> None:
        """Assert that a shard is in one of the states in which it may be."""
        if next(self.states(seen, shard), None) is None:
            part = {key: value for key, value in seen.items() if self._recording.shards[key] == shard}
            wanted, numbers = self._part(self.marks[self._point].state, shard), self._range(shard)
            raise AssertionError(
                f"shard {shard} is in none of its states {numbers[0]} to {numbers[-1]}: " + _told(part, wanted)
            )

    def _floor(self, marks: list[Mark], shard: int) -> int:
        """Return the operation that the last closing made durable, where the directory is there at all."""
        shards = {*self._recording.shards.values()}
        place = f"{PLACE}/{shard:03d}" if len(shards) > 1 else PLACE
        return max(
            (index for index in range(self._point + 1) if marks[index].is_closed and place in self._image), default=0
        )

    def _was(self, key: Any, value: Any) -> bool:
        """Tell whether a key ever had a value; of the queue's items, where damage is allowed, some may be missing."""
        is_queue = key == self.lanes[0].queue
        values = [*self._recording.ever.get(key, ()), *[()] * is_queue]
        if is_queue and self._is_excused:
            return {*value} <= {item for items in values for item in items}
        return value in values

    def _part(self, state: Mapping[Any, Any], shard: int) -> State:
        return {key: value for key, value in state.items() if self._recording.shards[key] == shard}

    def _fits(self, seen: State, shard: int, marks: list[Mark], index: int) -> bool:
        """Tell whether a shard is as operation `index` left it, or as it was on the way there."""
        wanted = [self._part(marks[index].state, shard)]
        if marks[index].in_steps and (index > self._point or self._durability == "system"):
            wanted.append(self._part(marks[index - 1].state, shard))
            if marks[index].evicts:  # perhaps what it then replaces, or has written before
                wanted.append(self._part(marks[index].unevicted, shard))
                wanted.append({QUEUE: wanted[0][QUEUE]} if QUEUE in wanted[0] else {})
        return all(
            any(self._is(key, seen.get(key, MISSING), state.get(key, MISSING)) for state in wanted)
            for key in {*seen, *(key for state in wanted for key in state)}
        )

    def _is(self, key: Any, seen: Any, wanted: Any) -> bool:
        if seen is MISSING and is_in_file(wanted) and self._durability == "system":
            return not self._is_synced(key, wanted)
        return bool(seen == wanted)

    def _is_synced(self, key: Any, value: Any) -> bool:
        """Tell whether the file of a value was synced, and the key not written since: that may unlink it."""
        marks = self.marks
        for index in range(min(self._point + 1, len(marks) - 1), -1, -1):  # the first is perhaps under way
            if marks[index].state.get(key, MISSING) != value or marks[index].name == "rotate":
                return False
            if marks[index].is_synced and index <= self._point:
                return True
        return False

    def _use_unmended(self, cache: Cache) -> None:
        """Use a cache before it is checked; where a database is damaged, what is written may not be found in it."""
        before = _databases(cache)
        try:
            _use(cache)
        except (KeyError, AssertionError):
            self._mend(cache)
            if not self._is_excused or _databases(cache) == before:
                raise

    def _mend(self, cache: Cache) -> None:
        for problem in cache.check(fix=True):
            text = str(problem.message)
            is_file = self._durability == "system" and text.startswith("entry ")
            assert issubclass(problem.category, LITTER) or is_file or self._is_excused, text
        left = [str(problem.message) for problem in cache.check()]
        assert not left, f"check(fix=True) leaves {left}"
        assert len(cache) == len([*cache]), "len() is not what there is"


def look(cache: Cache, lanes: Sequence[Lane] = LANES[:1]) -> State:
    """Return all that can be read of a cache."""
    keys = ["after", *(key for lane in lanes for key in (*lane.keys, *lane.counters))]
    found = {key: cache.get(key, MISSING) for key in keys}
    seen = {key: value for key, value in found.items() if value is not MISSING}
    return {**seen, **{lane.queue: tuple(item for _, item in cache.iterqueue(lane.prefix)) for lane in lanes}}


def _databases(cache: Cache) -> list[str]:
    """Return the databases in use, which are others where some were quarantined."""
    return [store.path for store in cache._shards.stores]


def _use(cache: Cache) -> None:
    """Write and remove something of each kind."""
    cache["after"] = "the restart"
    cache["large"] = large = b"larger" * 300
    assert cache["large"] == large
    del cache["large"]
    assert "large" not in cache
    cache.push("last", prefix="after")
    assert cache.pull("after")[1] == "last"


def _told(seen: State, wanted: State) -> str:
    keys = [key for key in {*seen, *wanted} if seen.get(key, MISSING) != wanted.get(key, MISSING)]
    return "; ".join(f"{key!r} is {_short(seen, key)}, expected {_short(wanted, key)}" for key in sorted(keys, key=str))


def _short(state: State, key: Any) -> str:
    return repr(state[key])[:70] if key in state else "missing"


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


for _name, _what in WHAT.items():
    proof(f"power-{_name}", 3, _what, share=2.0, bulk=9.0, preload=build, parallel=True)(partial(power_goes, _name))
for _name, _how in BROKEN.items():
    _run = partial(power_goes, _how.durability, broken=_how.broken, focus=_how.focus)
    proof(f"power-no-{_name}", 3, f"power loss, with {_how.what}", share=0.5, finds=_how.finds, preload=build)(_run)
