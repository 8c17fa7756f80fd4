"""What callers of get_or_set and memoize get while the cache itself fails: the value, and one warning."""

from __future__ import annotations

import asyncio
import errno
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import (
    Breaker,
    Cache,
    CorruptDatabase,
    DiskFull,
    FanoutCache,
    NotKeptWarning,
    Timeout,
    ValueEncodeError,
    ValueTooLarge,
)
from diskcache_like.errors import DirectoryError

from ..support.workers import Crew, Link


class Opaque:
    """Something that is not plain data."""


def by_get_or_set(cache: Cache, compute: Callable[[], Any], **options: Any) -> Any:
    return cache.get_or_set("key", compute, **options)


def by_memoize(cache: Cache, compute: Callable[[], Any], **options: Any) -> Any:
    return cache.memoize(name="f", **options)(lambda: compute())()


def by_coroutine(cache: Cache, compute: Callable[[], Any], **options: Any) -> Any:
    async def computed() -> Any:
        return compute()

    return asyncio.run(cache.memoize(name="g", **options)(computed)())


WAYS = pytest.mark.parametrize("way", [by_get_or_set, by_memoize, by_coroutine])


def expect_value(cache: Cache, way: Any, value: Any, error: type[Exception], **options: Any) -> None:
    """Expect a value twice, one warning at the line of the caller, and the error where that is asked for."""
    with pytest.warns(NotKeptWarning) as said:
        assert [way(cache, lambda: value, **options) for _ in range(2)] == [value, value]
    assert len(said) == 1
    assert cache.metrics().not_kept >= 2
    with pytest.raises(error):
        way(cache, lambda: value, on_error="raise", **options)


@WAYS
def test_a_value_that_cannot_be_stored_is_returned(tmp_path: Path, way: Any) -> None:
    with Cache(tmp_path / "never", pickle="never") as cache:
        expect_value(cache, way, Opaque(), ValueEncodeError)
    for kind in (Cache, FanoutCache):
        with kind(tmp_path / kind.__name__, size_limit=100_000) as cache:
            expect_value(cache, way, b"x" * 1_000_000, ValueTooLarge)


@WAYS
@pytest.mark.parametrize("method", ["update", "read"])
@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (DiskFull, ("no room", "path")),
        (CorruptDatabase, ("damaged",)),
        (DirectoryError, (errno.EIO, "broken", "path")),
        (Timeout, ("taken",)),
    ],
)
def test_a_store_that_fails_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Any, method: str, error: Any, arguments: Any
) -> None:
    with Cache(tmp_path, hot_size_limit=0) as cache:

        def fail(*_: Any, **__: Any) -> Any:
            raise error(*arguments)

        with monkeypatch.context() as patch:
            for store in cache._shards.stores:
                patch.setattr(store, method, fail)
            expect_value(cache, way, "value", error)
        kept = "value" if method == "read" else "later"
        assert way(cache, lambda: "later") == kept
        assert way(cache, lambda: "not called") == kept


def hold(link: Link, directory: str, kind: type[Cache]) -> None:
    with kind(directory) as cache, cache.transact(retry=True):
        for number in range(32):  # in every shard
            cache[number] = True
        link.tell()
        link.hear()


@WAYS
@pytest.mark.parametrize("kind", [Cache, FanoutCache])
def test_nobody_waits_for_a_stuck_writer_longer_than_the_timeout(tmp_path: Path, way: Any, kind: Any) -> None:
    with kind(tmp_path, timeout=0.01) as cache, Crew() as crew:
        holder = crew.start(hold, cache.directory, kind)
        holder.hear()
        expect_value(cache, way, "value", Timeout)
        expect_value_with_rules(cache, way)
        holder.tell()


def expect_value_with_rules(cache: Cache, way: Any) -> None:
    def fails() -> Any:
        raise LookupError("no such thing")

    options: dict[str, Any] = {"cache_errors": LookupError, "expire": 60, "breaker": Breaker(), "max_concurrent": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotKeptWarning)
        with pytest.raises(LookupError):
            way(cache, fails, **options)
        assert way(cache, lambda: 7, stale_if_error=60, **options) == 7


def test_what_is_wrong_with_the_call_is_still_an_error(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        with pytest.raises(TypeError, match=r"cannot be part of a key|no stable form"):
            cache.memoize(name="f")(lambda given: given)(object())
        with pytest.raises(ValueError, match="on_error is 'ignore', expected 'warn' or 'raise'"):
            cache.memoize(on_error="ignore")  # type: ignore[arg-type]
        assert cache.metrics().not_kept == 0


@WAYS
def test_a_value_whose_file_is_lost_is_computed_and_stored_again(tmp_path: Path, way: Any) -> None:
    large = bytes(100_000)
    with Cache(tmp_path, hot_size_limit=0) as cache:
        way(cache, lambda: large)
        for path in tmp_path.rglob("*.val"):
            path.unlink()
        assert way(cache, lambda: large + b"2") == large + b"2"
        assert way(cache, lambda: None) == large + b"2", "it is stored again"
