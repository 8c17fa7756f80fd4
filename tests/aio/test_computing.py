"""What is computed by way of a face: names, keys, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from diskcache_like import Cache

from ..support.cache_kinds import one
from ..support.workers import PATIENCE

T = TypeVar("T")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function in an event loop of its own, which it must not outlast."""
    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


class Adding:
    """A callable without a name."""

    def __init__(self, addend: int) -> None:
        self.addend = addend

    def __call__(self, number: int) -> int:
        return number + self.addend


@one
def test_what_has_no_name_is_memoized_only_under_a_given_one(cache: Cache) -> None:
    for nameless in (Adding(1), partial(pow, 2)):
        for decorate in (cache.memoize(), cache.aio.memoize()):
            with pytest.raises(TypeError, match="name="):
                decorate(nameless)

    async def main() -> None:
        adding = [cache.aio.memoize(f"adding {addend}")(Adding(addend)) for addend in (1, 2)]
        assert [await add(5) for add in adding] == [6, 7]

    run(main)
