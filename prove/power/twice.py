"""The power goes, and goes again while what it left is being opened: the same holds as if it had gone once.

An image of the disk is opened under the recorder, read, at times checked and closed; then images are drawn of that.
Nothing is stored meanwhile, so the second loss may take nothing that the first one had to leave.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock

from diskcache_like.system import boot as system_boot

from ..proof import Trial, proof
from ..shim import Shim, build
from .disk_images import Disk, Event, Image, mapped, parse, read, write
from .one_writer import BOOTS, HARM, MEMORY, WHAT, Judge, drawn, explained, look
from .recorded_work import ON_FILES, PLACE, is_mapped, record, verify

FIRST, SECOND = 8, 4  # images drawn of each recording, and of each opening


def power_goes_twice(trial: Trial, durabilities: Sequence[str] = tuple(WHAT), opened_as: str = "") -> None:
    """Record, open images under the recorder, judge images of those openings; `opened_as` another durability, if it is given."""

    def case(random: Random) -> None:
        durability = random.choice(durabilities)
        memory = MEMORY if MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="prove-", dir=memory) as space:
            recording = record(random, Path(space, "recorded"), durability, ON_FILES if opened_as else None)
            boot = Path(space, "boot_id")
            with mock.patch.object(system_boot, "_BOOT_ID", boot):
                for number, (end, image) in enumerate(drawn(recording, random, FIRST)):
                    point = recording.point(end)
                    place = Path(space, str(number))
                    place.mkdir()
                    with explained(recording, point, image):
                        judge = Judge(durability, recording, point, image, random)
                        again = Again(place, boot, opened_as or durability, random)
                        again.judge_all(trial, judge, image)

    trial.repeat(case)


class Again:
    """An image that is opened while the power goes again."""

    def __init__(self, place: Path, boot: Path, durability: str, random: Random) -> None:
        self._place, self._boot, self._durability, self._random = place, boot, durability, random

    def judge_all(self, trial: Trial, judge: Judge, image: Image) -> None:
        """Open an image, draw images of those openings, and judge them."""
        root = self._place / "disk"
        write(image, root)
        disk, before, events = self._recorded(judge, root)
        trial.count("images opened while recording")
        seen = (before, read(root))
        for number, again in enumerate(self._drawn(disk, events, seen)):
            directory = self._place / str(number)
            write(again, directory)
            self._boot.write_text(BOOTS[1])
            try:
                judge(directory / PLACE)
            except Exception as error:
                error.add_note(f"and, with durability={self._durability!r}, went again; second image: {_sizes(again)}")
                raise
            trial.count("images of those openings")
            trial.count("of them different from the acknowledged state", int(judge.has_lost))

    def _recorded(self, judge: Judge, root: Path) -> tuple[Disk, Image, list[Event]]:
        """Open and read the cache; return the disk and what was in it before, and what was done to it."""
        self._boot.write_text(BOOTS[0])
        disk, copy, before = Disk.holding(root), Disk.holding(root), read(root)
        log = self._place / "log"
        with (
            warnings.catch_warnings(action="ignore"),
            Shim(root).recording(log),
            judge.opened(root / PLACE, self._durability) as cache,
        ):
            look(cache)
            if self._random.random() < 0.5:
                cache.check(fix=True)
        events = [*parse(log.read_bytes())] if log.exists() else []
        verify(root, copy, events)
        return disk, before, events

    def _drawn(self, disk: Disk, events: Sequence[Event], seen: Sequence[Image]) -> Iterator[Image]:
        """Yield images of the disk; what is mapped has any of the contents that were seen there."""
        done = 0
        for point in sorted(self._random.randint(0, len(events)) for _ in range(SECOND)):
            for event in events[done:point]:
                disk.apply(event)
            done = point
            image = disk.image(self._random)
            for path, content in image.items():
                if content is not None and is_mapped(path):
                    contents = [each[path] for each in seen if each.get(path)]
                    image[path] = mapped(len(content), [one for one in contents if one is not None], self._random)
            yield image


def _sizes(image: Image) -> dict[str, int | None]:
    return {path: None if content is None else len(content) for path, content in image.items()}


proof(
    "power-twice",
    3,
    "a second power loss while what the first one left is opened, read and repaired",
    preload=build,
    parallel=True,
)(power_goes_twice)
proof(
    "power-twice-unsynced",
    3,
    "a second power loss, with nothing synced on opening",
    share=0.5,
    finds=HARM,
    preload=build,
)(partial(power_goes_twice, durabilities=("power",), opened_as="process"))
