"""The kinds of cache that every behaviour test runs on, and the clock that they tell the time by.

A kind joins every behaviour test with one line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from diskcache_like import Cache, FanoutCache, JSONDisk

SECRET = "a secret for tests only"
NEEDS_CIPHER = pytest.mark.skipif(find_spec("cryptography") is None, reason="cryptography is not installed")


class Clock:
    """Tell the time that a test has set, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Kind(NamedTuple):
    """One way to make a cache, and what tests have to know of it."""

    name: str
    make: Callable[..., Cache]
    shards: int = 1
    json: bool = False  # holds what JSON can express, and keys by their JSON
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def open(self, directory: Path, **settings: Any) -> Cache:
        """Return a handle on the cache in `directory`."""
        return self.make(directory, **settings)


class Opener(Protocol):
    """Opens handles on the test's one cache."""

    def __call__(self, **settings: Any) -> Cache: ...


# Fewer and smaller pages to write when one is made, and a write buffer that is soon full.
QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10, "write_buffer": 1 << 14}

KINDS = (
    Kind("plain", Cache),
    Kind("direct", partial(Cache, hot_size_limit=0, **{**QUICK, "write_buffer": 0})),
    Kind("small", partial(Cache, **QUICK)),
    Kind("few-slots", partial(Cache, durability="process", generation_slots=16)),
    Kind("files", partial(Cache, disk_min_file_size=0, **QUICK)),
    Kind("signed", partial(Cache, secret=SECRET, **QUICK)),
    Kind("sealed", partial(Cache, secret=SECRET, encrypt=True, **QUICK), marks=(NEEDS_CIPHER,)),
    Kind("json", partial(Cache, disk=JSONDisk, **QUICK), json=True),
    Kind("fanout-8", partial(FanoutCache, timeout=60, **QUICK), shards=8),
    Kind("fanout-3", partial(FanoutCache, shards=3, timeout=60, **QUICK), shards=3),
    Kind(
        "sealed-fanout",
        partial(FanoutCache, shards=3, timeout=60, secret=SECRET, encrypt=True, hot_encoded=True, **QUICK),
        shards=3,
        marks=(NEEDS_CIPHER,),
    ),
)


def parameters(kinds: tuple[Kind, ...]) -> list[Any]:
    """Return the kinds as pytest takes them."""
    return [pytest.param(kind, id=kind.name, marks=kind.marks) for kind in kinds]


def only(choose: Callable[[Kind], bool]) -> pytest.MarkDecorator:
    """Return a decorator for tests that make sense for some kinds only."""
    return pytest.mark.parametrize("kind", parameters(tuple(filter(choose, KINDS))), indirect=True)


exact = only(lambda kind: not kind.json)  # keys and values of any type
ordered = only(lambda kind: kind.shards == 1)  # one order of insertion over all entries
FEW = "plain", "files", "fanout-3"  # the kinds that differ most
few = only(lambda kind: kind.name in FEW)
one = only(lambda kind: kind.name == "plain")

__all__ = ["FEW", "KINDS", "SECRET", "Clock", "Kind", "Opener", "exact", "few", "one", "only", "ordered", "parameters"]
