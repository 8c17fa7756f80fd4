"""why: the reason for which a look-up finds nothing, and which call of a function is most similar."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache
from diskcache_like.aio import AsyncCache

from ..support.cache_kinds import Clock, few, one
from ..support.tampering import database


@few
def test_the_reason_is_told(cache: Cache, clock: Clock) -> None:
    cache.set("key", 1, expire=10, retry=True)
    assert cache.why("key") == ("present", None, None, ())
    assert str(cache.why("key")) == "there is a live entry"
    clock.now += 10
    found = cache.why("key")
    assert found == ("expired", clock.now, None, ())
    assert str(found).startswith("it expired at ")
    cache.delete("key", retry=True)
    assert cache.why("key").reason == cache.why(["never", "there"]).reason == "absent"
    inner = cache.namespace("inner")
    inner.set("key", 1, retry=True)
    assert (inner.why("key").reason, cache.why("key").reason) == ("present", "absent")


@one
def test_it_counts_as_no_use(cache: Cache) -> None:
    cache.stats(enable=True)
    cache["key"] = 1
    marks = cache._shards.stores[0].shard.marks
    home = cache._rows.locate("key")[1]
    before = marks[home], cache.stats()
    cache.why("key")
    cache.why("absent")
    assert (marks[home], cache.stats()) == before


@pytest.mark.parametrize(
    "policy", ["second-chance", "least-recently-used", "least-frequently-used", "least-recently-stored"]
)
def test_what_was_evicted_is_known_for_a_while(tmp_path: Path, policy: str) -> None:
    with Cache(tmp_path, eviction_policy=policy, size_limit=1_000_000) as cache:
        for number in range(2_000):
            cache[number] = "x" * 1_000
        evicted = [number for number in range(2_000) if number not in cache]
        told = [cache.why(number).reason for number in evicted[-200:]]
        assert told.count("evicted") > 100
        assert sum(cache.why(("never", number)).reason == "evicted" for number in range(1_000)) < 20


def test_damage_is_told(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = "value" * 100
    with database(tmp_path) as connection:
        connection.execute("UPDATE entry SET v = zeroblob(length(v))")
    with Cache(tmp_path) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.why("key").reason == "damaged"
        cache["large"] = b"x" * 100_000
    next(tmp_path.rglob("*.val")).unlink()
    with Cache(tmp_path) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.why("large").reason == "damaged"


@few
def test_of_a_call_the_most_similar_one_is_named(cache: Cache) -> None:
    @cache.memoize(name="price", ignore={"timeout"})
    def price(item: str, currency: str = "EUR", *, tax: float = 0.0, timeout: float = 1.0) -> float:
        return 1.0

    assert price.why("pen") == ("absent", None, None, ())
    price("pen")
    price("ink", "USD", tax=0.2)
    assert price.why("pen", timeout=9).reason == "present"
    found = price.why("pen", "USD")
    assert (found.reason, found.differs, found.nearest) == ("absent", ("currency",), price.key("pen"))
    assert str(found).endswith(f"; the nearest call that is there differs in currency: {price.key('pen')!r}")
    assert price.why("ink", "USD", tax=0.3).differs == ("tax",)


@one
def test_of_a_method_and_of_a_key_of_ones_own(cache: Cache) -> None:
    class Client:
        @cache.memoize(name="fetch", ignore={"self"})
        def fetch(self, page: int) -> int:
            return page

        @cache.memoize(name="own", key=lambda self, page: page)
        def own(self, page: int) -> int:
            return page

    client = Client()
    client.fetch(1)
    client.own(1)
    assert client.fetch.why(2).differs == ("page",)
    assert client.own.why(2) == ("absent", None, None, ())

    @cache.memoize(name="typed", typed=True)
    def typed(number: float) -> float:
        return number

    typed(1)
    assert typed.why(1.0).differs == ("the types of the arguments",)


def test_it_is_awaited(tmp_path: Path) -> None:
    async def main() -> Any:
        async with AsyncCache(tmp_path) as cache:
            await cache.set("key", 1)
            return (await cache.why("key")).reason, (await cache.why("absent")).reason

    assert asyncio.run(main()) == ("present", "absent")
