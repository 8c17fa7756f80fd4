"""memoize on methods: what a bound method offers knows its object, and it looks like a bound method."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import sys
from typing import Any

import pytest

from diskcache_like import Cache, memoize_stampede

from ..support.cache_kinds import one


class Priced:
    """A class of this module, so that its methods can be pickled."""

    def __init__(self, rate: int) -> None:
        self.rate = rate

    def by(self, number: int) -> int:
        return self.rate * number


@pytest.mark.parametrize("how", ["memoize", "memoize_stampede"])
@one
def test_what_a_bound_method_offers_knows_its_object(cache: Cache, how: str) -> None:
    decorate = cache.memoize() if how == "memoize" else memoize_stampede(cache, 60)

    class Scaled(tuple[int]):
        __slots__ = ()

        @decorate
        def by(self, number: int, *, times: int = 1) -> int:
            """Scale."""
            return self[0] * number * times

    two, three = Scaled((2,)), Scaled((3,))
    assert [two.by(5), three.by(5), two.by(number=5)] == [10, 15, 10]
    assert two.by.__cache_key__(5) == Scaled.by.__cache_key__(two, 5) != three.by.__cache_key__(5)
    assert cache.get(two.by.__cache_key__(5)) is not None
    assert not two.by.invalidate(6)
    assert two.by.invalidate(5)
    assert not two.by.invalidate(5)
    assert Scaled.by.invalidate(three, number=5, times=1)
    assert two.by.cache_info() == Scaled.by.cache_info() == (1, 2, None, len(cache))
    assert two.by.__wrapped__(3) == 6
    assert Scaled.by.__wrapped__(two, 3) == 6


@one
def test_a_bound_method_looks_like_one(cache: Cache) -> None:
    class Scaled(tuple[int]):
        __slots__ = ()

        @cache.memoize()
        def by(self, number: int, *, times: int = 1) -> int:
            """Scale."""
            return self[0] * number * times

        @cache.memoize()
        async def later(self, number: int) -> int:
            return self[0] * number

    two: Any = Scaled((2,))
    assert str(inspect.signature(two.by)) == "(number: 'int', *, times: 'int' = 1) -> 'int'"
    assert str(inspect.signature(Scaled.by)) == "(self, number: 'int', *, times: 'int' = 1) -> 'int'"
    for found in (two.by, Scaled.by):
        assert (found.__name__, found.__doc__, found.__module__) == ("by", "Scale.", __name__)
        assert found.__qualname__.endswith("Scaled.by")
    assert two.by.__self__ is two
    assert not hasattr(Scaled.by, "__self__")
    assert two.by == two.by != Scaled((2,)).by
    assert hash(two.by) == hash(two.by)
    assert two.by != 1
    assert "Scaled.by of (2,)" in repr(two.by)
    assert inspect.iscoroutinefunction(two.later)
    assert inspect.iscoroutinefunction(Scaled.later)
    assert asyncio.run(two.later(3)) == 6
    wrapped: Any = functools.wraps(Scaled.by)(lambda *a: Scaled.by(*a))  # as another decorator does
    assert wrapped.invalidate(two, 4) is False


@one
def test_a_memoized_method_is_pickled_by_name(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = type("Priced", (Priced,), {"by": cache.memoize(ignore="self")(Priced.by), "__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "Priced", made)
    bound: Any = made(3).by
    assert pickle.loads(pickle.dumps(made.by)) is made.by
    again = pickle.loads(pickle.dumps(bound))
    assert again.__self__.rate == 3
    assert again(5) == 15


@one
def test_what_wraps_a_method_is_refused(cache: Cache) -> None:
    for kind in (classmethod, staticmethod):
        with pytest.raises(TypeError, match=f"write @{kind.__name__} above it"):
            cache.memoize()(kind(len))  # type: ignore[arg-type]
