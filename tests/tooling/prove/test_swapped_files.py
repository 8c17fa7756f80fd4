"""What may be read where a file was swapped, and what may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from prove.hostile.samples import METADATA, SECRET, Judge, Sample, same
from prove.hostile.swapped_files import (
    AT_REST,
    ELSEWHERE,
    FORMER,
    NEWEST,
    OTHER_SECRET,
    OVERWRITTEN,
    PAST,
    STRANGE,
    Swap,
    _may_believe,
    _ways,
)

SIGNED, SEALED = {"secret": SECRET}, {"secret": SECRET, "encrypt": True}


def sample(options: dict[str, Any]) -> Sample:
    return Sample("a sample", options, {"cache.gen": bytes(9), "cache.db": bytes(9)}, {})


def test_the_values_of_other_times_and_caches_are_others() -> None:
    for key, value in NEWEST.items():
        assert not same(FORMER[key], value)
        assert not same(ELSEWHERE[key], value)
        assert not same(ELSEWHERE[key], FORMER[key])
        assert type(ELSEWHERE[key]) is type(value)
    assert FORMER.keys() - NEWEST.keys() == {"removed", *METADATA}


@pytest.mark.parametrize(
    ("mine", "theirs", "believed"),
    [
        ({}, {}, True),
        ({}, SIGNED, True),
        (SIGNED, {}, False),
        (SIGNED, SIGNED, True),
        (SIGNED, OTHER_SECRET, False),
        (SEALED, SIGNED, False),
        (SEALED, SEALED, True),
        (SEALED, {**SEALED, **OTHER_SECRET}, False),
    ],
)
def test_entries_of_another_cache_are_believed_without_a_secret_or_with_the_same(
    mine: dict[str, Any], theirs: dict[str, Any], believed: bool
) -> None:
    assert _may_believe(sample(mine), sample(theirs)) is believed


def test_what_is_mapped_is_not_cut_in_use_and_other_generations_show_older_values_in_use_only() -> None:
    shorter = [swap.way for swap in _ways(Swap(sample({}), "cache.gen", "a source", b"short"))]
    assert OVERWRITTEN not in shorter
    as_long = {swap.way: swap.also for swap in _ways(Swap(sample({}), "cache.gen", "a source", b"other gen"))}
    assert as_long[AT_REST] == ()
    assert as_long[OVERWRITTEN] == (PAST,)
    assert list(_ways(Swap(sample({}), "cache.gen", "a source", bytes(9)))) == []


def test_values_that_are_authentic_too_are_counted_and_all_others_are_wrong(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["text"], cache["number"], cache["removed"] = FORMER["text"], ELSEWHERE["number"], FORMER["removed"]
        everything, past = Judge(values=NEWEST, olds={PAST: FORMER, STRANGE: ELSEWHERE}), Judge(values=NEWEST, olds={})
        everything.look(cache)
        past.look(cache)
    assert not everything.wrong
    assert everything.older[PAST] > 1
    assert everything.older[STRANGE] > 1
    assert any("'text' reads as" in text for text in past.wrong)
    assert any("'number' reads as" in text for text in past.wrong)
    assert any("'removed' is listed" in text for text in past.wrong)
