"""What a cache opened on any image that the disk may be left with holds, as its `durability` promises.

power    every acknowledged write is there, value files included, and of an unfinished operation all or nothing
system   each shard is as it was after one of its operations, none of those before the last closing missing; of a value
         in a file of its own the file may be missing or not whole, which makes the entry missing
process  anything may be missing, and a damaged database is quarantined

Under all of them no key has a value that it never had, the cache can be used, `check(fix=True)` finds nothing that may
not be there and leaves nothing to find, and what is written afterwards stays. Of two processes each finds its own. What
is lost is the end of what both did: no write is there that began after another, which is not, had been acknowledged.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from diskcache_like import Cache, EmptyDirWarning, UnknownFileWarning
from diskcache_like.errors import CorruptDatabaseWarning, SecretError
from tests.support.sample_writes import MISSING

from ..workload import LANES, Lane, State
from .disk_images import Image
from .recorded_work import PLACE, SECRETS, Mark, Recording, is_in_file, open_cache

LITTER = (UnknownFileWarning, EmptyDirWarning)


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
                queue = self.lanes[0].queue
                wanted.append({queue: wanted[0][queue]} if queue in wanted[0] else {})
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
    keys = ["after", *(key for lane in lanes for key in lane.every)]
    found = {key: cache.get(key, MISSING) for key in keys}
    seen = {key: value for key, value in found.items() if value != MISSING}
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
