"""Programs that call a cache almost at the end of Python's stack: an error of theirs is no damage of the cache's."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, JSONDisk

from ..support.cache_kinds import few

VALUES: dict[str, Any] = {"k": {"a": [1, [2, [3, 4]]]}, "s": "text", "d": ["x"] * 500}


def at_depth(left: int, call: Callable[[], Any]) -> Any:
    """Make a call with so many frames left, or few more."""
    return call() if left <= 0 else at_depth(left - 1, call)


@pytest.mark.parametrize("settings", [{}, {"hot_size_limit": 0}, {"disk": JSONDisk}, {"serializer": "json"}])
def test_a_read_deep_in_the_stack_gives_the_value_or_a_recursion_error(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with Cache(tmp_path, **settings) as cache:
        cache.set_many(VALUES)
        calls: dict[str, Callable[[str], Any]] = {
            "get": lambda key: cache.get(key, "missing"),
            "get_many": lambda key: cache.get_many([key]).get(key, "missing"),
            "get_or_set": lambda key: cache.get_or_set(key, lambda: "computed"),
        }
        frame, depth = sys._getframe(), 0
        while frame.f_back is not None:
            frame, depth = frame.f_back, depth + 1
        refused = 0
        for spare in range(4, 60, 3):
            for key, value in VALUES.items():
                for call in calls.values():
                    try:
                        found = at_depth(sys.getrecursionlimit() - depth - spare, lambda call=call, key=key: call(key))  # type: ignore[misc]
                    except RecursionError:
                        refused += 1
                    else:
                        assert found == value
        assert refused
        assert cache.metrics().damaged == 0
        assert cache.check() == []


def test_a_key_or_value_is_not_called_too_deep_for_want_of_stack(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        limit = sys.getrecursionlimit()
        for spare in range(10, 120, 5):
            for store in (
                lambda: cache.set(("k", (1, (2, 3))), 1),
                lambda: cache.set("n", [datetime.date(2020, 1, 1), [(1, 2)]]),
            ):
                with contextlib.suppress(RecursionError):
                    at_depth(limit - spare, store)
        deep: Any = 1
        for _ in range(200):
            deep = (deep,)
        with pytest.raises(TypeError, match="nested"):
            cache.set(deep, 1)


@few
@pytest.mark.parametrize("options", [{}, {"expire": 60, "stale_if_error": 60}, {"tag": "fib:{n}"}], ids=str)
def test_a_recursive_function_may_call_itself_150_times(cache: Cache, options: dict[str, Any]) -> None:
    @cache.memoize(**options)
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def get_or_set(n: int) -> int:
        compute = lambda: n if n < 2 else get_or_set(n - 1) + get_or_set(n - 2)  # noqa: E731 - one frame
        return int(cache.get_or_set(n, compute, **({} if "tag" in options else options)))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own
    try:
        with ThreadPoolExecutor(1) as pool:  # whose stack is empty
            assert pool.submit(fib, 150).result() == 9969216677189303386214405760200
            assert pool.submit(get_or_set, 100).result() == 354224848179261915075
    finally:
        sys.setrecursionlimit(limit)
