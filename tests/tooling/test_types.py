"""What type checkers know of decorated functions; `make lint` checks this file, and running it checks the objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, assert_type

import pytest

from diskcache_like import (
    AsyncCache,
    AsyncDeque,
    AsyncFanoutCache,
    AsyncIndex,
    Cache,
    Deque,
    FanoutCache,
    Index,
    Lock,
    barrier,
    memoize_stampede,
    throttle,
)
from diskcache_like.aio import AsyncStream
from diskcache_like.memoizing.memoize import CacheInfo

from ..support.cache_kinds import one


def add(number: int, text: str = "", *, flag: bool = False) -> list[str]:
    return [text] * (number + flag)


async def fetch(number: int) -> str:
    return str(number)


@one
def test_a_memoized_function_keeps_its_types(cache: Cache) -> None:
    for memoized in (cache.memoize()(add), memoize_stampede(cache, 60)(add)):
        assert_type(memoized(1, "x", flag=True), list[str])
        assert_type(memoized.__wrapped__(1), list[str])
        assert_type(memoized.invalidate(1, text="x", flag=True), bool)
        assert_type(memoized.cache_info(), CacheInfo)
        memoized.__cache_key__(1, "x")
    assert memoized.__wrapped__ is add
    if memoized.__name__ != "add":  # not run: what follows is refused by type checkers
        memoized("1")  # type: ignore[arg-type]
        memoized(1, flags=True)  # type: ignore[call-arg]
        memoized.invalidate()  # type: ignore[call-arg]
        memoized.__cache_key__(None)  # type: ignore[arg-type]


@one
def test_a_memoized_coroutine_function_keeps_its_types(cache: Cache) -> None:
    async def main() -> None:
        for memoized in (cache.memoize(expire=5)(fetch), memoize_stampede(cache, 60)(fetch)):
            call: Callable[[int], Coroutine[Any, Any, str]] = memoized
            assert call is memoized
            assert_type(await memoized(number=1), str)
            assert_type(memoized.invalidate(1), bool)
        if memoized.__name__ != "fetch":
            await memoized("1")  # type: ignore[arg-type]

    asyncio.run(main())


@one
def test_a_memoized_method_is_bound(cache: Cache) -> None:
    class Scaled(tuple[int]):
        __slots__ = ()

        @cache.memoize(name="by")
        def by(self, number: int) -> float:
            return float(self[0] * number)

        @staticmethod
        @memoize_stampede(cache, 60)
        def double(number: int) -> int:
            return 2 * number

    two = Scaled((2,))
    assert_type(two.by(3), float)
    assert_type(Scaled.by(two, 3), float)
    assert_type(Scaled.by.invalidate(two, 3), bool)
    assert_type(Scaled.double(3), int)


@one
def test_throttled_and_fenced_functions_keep_their_types(cache: Cache) -> None:
    for limit in (throttle(cache, 100, 1), barrier(cache, Lock)):
        assert_type(limit(add)(1, flag=True), list[str])
        assert_type(asyncio.run(limit(fetch)(1)), str)
    if cache.directory == "":
        throttle(cache, 1, 1)(add)("1")  # type: ignore[arg-type]
        barrier(cache, Lock)(fetch)()  # type: ignore[call-arg, unused-coroutine]


def arguments(directory: str, options: dict[str, Any]) -> None:
    """Show that misspelt and mistyped arguments of a cache are refused; never called."""
    assert_type(Cache(directory, size_limit=1e9, secret="a secret for tests only", compressor="zlib"), Cache)
    with FanoutCache(directory, shards=2, eviction_policy="none", allow=[int], disk_min_file_size=1) as fanout:
        fanout.cache("name", durability="power")
        fanout.cache("name", durabilty="power")  # type: ignore[call-arg]
    Cache(directory, compresor="zlib")  # type: ignore[call-arg]
    FanoutCache(directory, compresor="zlib")  # type: ignore[call-arg]
    Cache(directory, size_limit="1 GB")  # type: ignore[arg-type]
    Cache(directory, 60, **options)


def fanout_too(cache: FanoutCache) -> None:
    """Show that what holds for Cache holds for its subclass; never called."""
    assert_type(cache.memoize("name", True, 5, "tag", {0, "text"})(add)(1), list[str])


async def faces(cache: Cache, fanout: FanoutCache, deque: Deque, index: Index) -> None:
    """Show that an awaited operation has the overloads of the one that it awaits; never called."""
    face = cache.aio
    assert_type(face, AsyncCache)
    assert_type(face.sync, Cache)
    assert_type(await face.get("k", expire_time=True), tuple[Any, float | None])
    assert_type(cache.get("k", expire_time=True), tuple[Any, float | None])
    assert_type(await face.get("k", tag=True, expire_time=True), tuple[Any, float | None, Any])
    assert_type(await face.pop("k", tag=True), tuple[Any, Any])
    assert_type(await face.set("k", 1, expire=5, tags=["t"]), bool)
    assert_type(await face.get_many(["k"]), dict[Any, Any])
    assert_type(face.items(prefix="k"), AsyncIterator[tuple[Any, Any]])
    assert_type(await face.get_or_set("k", lambda: 1), int)
    assert_type(await face.get_or_set("k", lambda: fetch(1)), str)
    assert_type(await face.memoize(expire=5)(fetch)(number=1), str)
    assert_type(await face.memoize()(add)(1, flag=True), list[str])
    assert_type(face.memoize()(fetch).invalidate(1), bool)
    async with face.open("k", "wb") as stream, face.transact(), Lock(face, "lock"):
        assert_type(stream, AsyncStream)
        assert_type(await stream.write(b"x"), int)
    assert_type(fanout.aio, AsyncFanoutCache)
    assert_type(await fanout.aio.cache("name"), AsyncCache)
    assert_type(await fanout.aio.deque("name"), AsyncDeque)
    assert_type(await deque.aio.length(), int)
    assert_type(index.aio, AsyncIndex)
    async with AsyncCache("directory", size_limit=1e9) as opened:
        assert_type(opened, AsyncCache)
    AsyncCache("directory", compresor="zlib")  # type: ignore[call-arg]
    await face.set("k")  # type: ignore[call-arg]
    await face.get("k", expires=True)  # type: ignore[call-overload]
    await face.memoize()(fetch)("1")  # type: ignore[arg-type]
    face["k"]  # type: ignore[index]
    for _ in face:  # type: ignore[attr-defined]
        pass


@one
def test_keys_and_values_of_the_asynchronous_classes_may_have_types(cache: Cache, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncCache[str, int](tmp_path / "typed") as typed:
            await typed.set("a", 1)
            assert_type(typed.sync, Cache[str, int])
            assert_type(await typed.getitem("a"), int)
            assert_type(await typed.get_many(["a"]), dict[str, int])
            assert_type(await typed.get("a", expire_time=True), tuple[Any, float | None])
            assert_type([key async for key in typed], list[str])
            assert_type(await typed.get_or_set_many(["b"], lambda keys: {"b": "c"}), dict[str, str])
            assert_type(typed.namespace("n"), AsyncCache[str, int])
            if await typed.length() > 5:  # not run: what follows is refused by type checkers
                await typed.getitem(5)  # type: ignore[arg-type]
                await typed.set("a", "text")  # type: ignore[arg-type]
        async with AsyncFanoutCache[str, bytes](tmp_path / "fanout", shards=2) as fanout:
            assert_type(await fanout.get_many([]), dict[str, bytes])
            assert_type(fanout.sync, FanoutCache[str, bytes])
        index, deque = Index[str, int](tmp_path / "index").aio, Deque[int]([1, 2]).aio
        await index.setitem("a", 1)
        assert_type(await index.getitem("a"), int)
        assert_type(await deque.pop(), int)
        assert_type(await cache.aio.getitem(await cache.aio.push(5)), Any)  # without types everything is Any

    asyncio.run(main())


@one
def test_keys_and_values_may_have_types(cache: Cache, tmp_path: Path) -> None:
    typed: Cache[str, int] = Cache[str, int](tmp_path / "typed")
    typed["a"] = 1
    assert_type(typed["a"], int)
    assert_type(typed.get_many(["a"]), dict[str, int])
    assert_type(list(typed), list[str])
    assert type(typed) is Cache
    found = typed.get("a")
    assert found is not None
    assert_type(cache.get("a"), Any)  # without types everything is Any
    cache.namespace("n")[5] = "any"
    fanout = FanoutCache[str, bytes](tmp_path / "fanout", shards=2)
    fanout.set("a", b"")
    with pytest.raises(TypeError):
        assert_type(fanout.get_many([]), dict[str, bytes]) + 1  # type: ignore[operator]
    index: Index[str, int] = Index[str, int](tmp_path / "index")
    index["a"] = 1
    assert_type(index["a"], int)
    assert_type([*index.items()], list[tuple[str, int]])
    deque: Deque[int] = Deque[int]([1, 2])
    assert_type(deque.pop(), int)
    assert_type([*deque], list[int])
    if len(index) > 5:  # not run: what follows is refused by type checkers
        typed[5] = 1  # type: ignore[index]
        typed["a"] = "text"  # type: ignore[assignment]
        typed.set("a", "text")  # type: ignore[arg-type]
        typed.get("a").upper()  # type: ignore[union-attr]
        typed.get_many([5])  # type: ignore[list-item]
        fanout.incr(5)  # type: ignore[arg-type]
        index[5] = 1  # type: ignore[index]
        deque.append("text")  # type: ignore[arg-type]
    for each in (typed, fanout, index.cache, deque.cache):
        each.close()
