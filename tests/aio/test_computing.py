"""What is computed by way of a face: names, keys, and what is counted."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from diskcache_like import Breaker, Cache
from diskcache_like.memoizing.computed import ComputingOptions

from ..support.cache_kinds import one
from .test_faces import run


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


async def double(number: int) -> int:
    return 2 * number


@one
@pytest.mark.parametrize("options", [{}, {"beta": 1.0}, {"breaker": Breaker(errors=5, window=60, open=30)}])
def test_what_is_computed_counts_as_one_miss(cache: Cache, options: ComputingOptions) -> None:
    cache.stats(enable=True)

    async def main() -> None:
        for decorate in (cache.memoize(**options), cache.aio.memoize(**options)):
            doubling = decorate(double)
            assert (await doubling(1), await doubling(1)) == (2, 2)
            assert cache.stats(reset=True) == (1, 1)
            cache.clear()
        assert await cache.aio.get_or_set(1, partial(double, 1), 60, **options) == 2
        assert cache.stats(reset=True) == (0, 1)

    run(main)
    assert cache.get_or_set(2, lambda: 4, 60, **options) == 4
    assert cache.stats(reset=True) == (0, 1)


@one
def test_arguments_and_keys_may_be_unhashable(cache: Cache) -> None:
    async def main() -> None:
        @cache.aio.memoize()
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        assert (await asyncio.gather(total([1, 2]), total([1, 2])))[1] == 3
        assert await cache.aio.get_or_set(["a"], partial(double, 1)) == 2

    run(main)
    assert len(cache) == 2
