"""The power goes while two processes write: each of them finds what its acknowledged writes were promised.

Both have keys of their own in one cache, and are recorded into one log. Without `durability="power"` what is lost is
the end of what both did: no write may be there that began after another, which is not, had been acknowledged.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from unittest import mock

from diskcache_like.system import boot as system_boot
from tests.support.workers import Crew, Link, forked, ready

from ..proof import Trial, proof
from ..shim import Shim, build
from .disk_images import Disk, Image, parse, write
from .one_writer import BOOTS, BROKEN, HARM, MEMORY, NOTHING, WHAT, Broken, Judge, drawn, explained
from .recorded_work import (
    LANES,
    PLACE,
    SIZES,
    Recording,
    State,
    Work,
    do_work,
    drawn_kind,
    fitted,
    maps_in,
    shards_of,
    verify,
)


def power_goes_for_two(trial: Trial, durabilities: Sequence[str] = tuple(WHAT), broken: Broken = NOTHING) -> None:
    """Record two processes, draw images, judge them; with the cache `broken`."""

    def case(random: Random) -> None:
        durability = random.choice(durabilities)
        memory = MEMORY if MEMORY.is_dir() else None
        with broken(), tempfile.TemporaryDirectory(prefix="prove-", dir=memory) as space:
            recordings = record_two(random, Path(space, "recorded"), durability)
            trial.count("operations", sum(len(each.marks) for each in recordings))
            trial.count("of them begun while another ran", at_once(recordings))
            boot = Path(space, "boot_id")
            boot.write_text(BOOTS[0])
            with mock.patch.object(system_boot, "_BOOT_ID", boot):
                for number, (end, image) in enumerate(drawn(recordings[0], random)):
                    judge, directory = JudgeOfTwo(durability, recordings, end, image, random), Path(space, str(number))
                    write(image, directory)
                    with explained(recordings[0], recordings[0].point(end), image):
                        judge(directory / PLACE)
                    trial.count("images")

    trial.repeat(case)


class JudgeOfTwo(Judge):
    """Compare an image with what two processes were promised."""

    lanes = LANES

    def __init__(
        self, durability: str, recordings: Sequence[Recording], end: int, image: Image, random: Random
    ) -> None:
        super().__init__(durability, recordings[0], recordings[0].point(end), image, random)
        self._each = [OneOfTwo(number, durability, each, end, image, random) for number, each in enumerate(recordings)]

    def judge(self, seen: State) -> None:
        """Compare what was seen with what was promised to each, and to both together."""
        parts = [{key: seen[key] for key in each.keys & seen.keys()} for each in self._each]
        for each, part in zip(self._each, parts, strict=True):
            each.judge(part)
        for shard in {*self._recording.shards.values()} if not self._is_excused else ():
            found = [each.states(part, shard) for each, part in zip(self._each, parts, strict=True)]
            assert any(self._is_one_end(*pair) for pair in product(*found)), (
                f"shard {shard} is in none of its states: of both processes a later write is there without an earlier"
            )

    def _is_one_end(self, *indexes: int) -> bool:
        """Tell whether of neither anything is there that began after something of the other's that is not had ended."""
        for (one, here), (other, there) in zip(
            zip(self._each, indexes, strict=True), reversed([*zip(self._each, indexes, strict=True)]), strict=True
        ):
            lost = other.marks[there + 1 : there + 2]
            if lost and here and lost[0].end <= one.marks[here].began:
                return False
        return True


class OneOfTwo(Judge):
    """Compare an image with what one of two processes was promised."""

    def __init__(
        self, number: int, durability: str, recording: Recording, end: int, image: Image, random: Random
    ) -> None:
        self.lanes = LANES[number : number + 1]
        self.keys = recording.shards.keys()
        super().__init__(durability, recording, recording.point(end), image, random)


def at_once(recordings: Sequence[Recording]) -> int:
    """Return how many operations of the second process began while one of the first ran."""
    first, second = (each.marks for each in recordings)
    return sum(any(mark.began <= other.began < mark.end for mark in first) for other in second)


def be_one(link: Link, work: Work) -> Recording:
    """Do the work of one process; return what it knows of the recording."""
    with mock.patch.object(os, "urandom", work.random.randbytes):
        ready(link)
        do_work(work, {})
        shards = shards_of(work.cache, work.lane)
    return Recording(work.kind, Disk(""), [], work.marks, work.ever, shards, work.maps, was_damaged=False)


def record_two(random: Random, space: Path, durability: str) -> list[Recording]:
    """Have two processes work below `space` at once; return what was recorded, as each of them knows it."""
    root, log, kind = space / "disk", space / "log", drawn_kind(random)
    root.mkdir(parents=True)
    works = [
        Work(kind, root / PLACE, log, Random(random.random()), {"durability": durability}, SIZES, lane, alone=False)
        for lane in LANES
    ]
    with fitted(random), Shim(root).recording(log), ExitStack() as stack:
        workers = [stack.enter_context(forked(partial(be_one, work=work))) for work in works]
        Crew.together(workers)
        found: list[Recording] = Crew.results(workers)
    events = [*parse(log.read_bytes())]
    verify(root, Disk(str(root.resolve()), root.stat().st_ino), events)
    first, second = (each.maps for each in found)
    maps = {path: sorted(first.get(path, []) + second.get(path, [])) for path in {*first, *second}}
    disk = Disk(str(root.resolve()), root.stat().st_ino)
    return [replace(each, disk=disk, events=events, maps={**maps, **maps_in(root)}) for each in found]


proof("power-two", 3, "power loss while two processes write at once", preload=build)(power_goes_for_two)
proof(
    "power-two-no-commits",
    3,
    "power loss while two processes write at once, with commits not synced",
    share=0.5,
    finds=HARM,
    preload=build,
)(partial(power_goes_for_two, durabilities=("power",), broken=BROKEN["commits"].broken))
