"""Where the proofs about bad disks damage a file: what they say of it is what they do."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from prove.hostile.flips import SPARSE, SPARSELY, WHOLE_BYTES, Place, cuts, flips
from prove.hostile.samples import Sample, leading

SMALL, LARGE = WHOLE_BYTES - 1, 5 * WHOLE_BYTES
FILES = {
    "cache.db": bytes(LARGE),
    "cache.db-wal": bytes(WHOLE_BYTES),
    "a.val": bytes(SMALL),
    "cache.db-shm": bytes(LARGE),
    "cache.lock": b"",
}
SAMPLES = [Sample(f"number {number}", {}, FILES, {}) for number in range(7)]


@cache
def all_cuts() -> dict[tuple[str, str, bool], list[int]]:
    """Return the bytes at which each file of each sample is cut, at rest and in use."""
    found: dict[tuple[str, str, bool], list[int]] = defaultdict(list)
    places: list[Place] = list(cuts(SAMPLES))
    for place in places:
        if place.how == "cut":
            found[place.sample.name, place.file, place.open].append(place.number)
    return found


def cut(sample: Sample, file: str, is_open: bool) -> list[int]:
    """Return the bytes at which a file of a sample is cut."""
    return all_cuts()[sample.name, file, is_open]


def test_at_rest_files_are_cut_at_every_byte() -> None:
    for file in ("cache.db", "cache.db-wal", "a.val"):
        assert cut(SAMPLES[2], file, False) == list(range(len(FILES[file])))
    assert len(cut(SAMPLES[2], "cache.db-shm", False)) == SPARSE


def test_in_use_small_files_are_cut_at_every_byte_and_others_at_every_eighth_that_is_another_in_each_sample() -> None:
    assert cut(SAMPLES[3], "a.val", True) == list(range(SMALL))
    assert cut(SAMPLES[3], "cache.db-shm", True) == [], "who has it mapped would end"
    for file in ("cache.db", "cache.db-wal"):
        tried = [cut(sample, file, True) for sample in SAMPLES]
        assert [numbers[0] for numbers in tried] == list(range(len(SAMPLES)))
        assert all(numbers == list(range(numbers[0], len(FILES[file]), SPARSELY)) for numbers in tried)


def test_the_first_sample_is_told_apart() -> None:
    for places in (cuts(SAMPLES), flips(SAMPLES, False)):
        first = leading(places)
        assert 0 < first < len(places)
        assert all((place.sample is SAMPLES[0]) == (number < first) for number, place in enumerate(places))
    assert leading(cuts(SAMPLES[:1])) == leading([]) == 0
