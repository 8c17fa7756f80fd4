"""Several tags: set, listed, changed, evicted; the index agrees with the records, and the record decides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, KeyEncodeError, TagError
from diskcache_like.operations.tagging import Selection
from diskcache_like.storage.shard.reader import Reader

from ..support.cache_kinds import Clock, Opener, few, one
from ..support.inspection import problems
from .test_checking import tamper

TAGS = ["red", "green", "blue", 5, -7, "ünï\0code"]


def test_an_entry_has_several_tags(cache: Cache) -> None:
    cache.set("key", 1, tags=["b", "a", "b"])
    assert cache.get_entry("key").tags == ("a", "b")
    assert cache.get("key", tag=True) == (1, ("a", "b"))
    cache.set("key", 2, tags=iter(["a"]))
    assert cache.get("key", tag=True) == (2, "a")
    assert cache.get_entry("key").tag == "a"
    cache.set("key", 3, tags=[])
    assert cache.get("key", tag=True) == (3, None)
    assert cache.get_entry("key").tags == ()


def test_every_write_takes_tags(cache: Cache) -> None:
    cache.add("added", 1, tags=["a", "b"])
    cache.set_many({"one": 1, "two": 2}, tags=["a", "b"])
    cache.push("item", tags=["a", "b"])
    with cache.open("stream", "wb", tags=["a", "b"]) as stream:
        stream.write(b"bytes")
    assert cache.count(tags=["a", "b"], match="all") == 5
    assert cache.evict("b") == 5
    assert len(cache) == 0


def test_any_and_all_against_sets(cache: Cache) -> None:
    chosen = random.Random(1)
    own = {number: {tag for tag in TAGS if chosen.random() < 0.4} for number in range(60)}
    for number, tags in own.items():
        cache.set(number, str(number), tags=tags)
    for size in (1, 2):
        for wanted in itertools.combinations(TAGS, size):
            any_, all_ = ({n for n, tags in own.items() if test(w in tags for w in wanted)} for test in (any, all))
            assert sorted(cache.keys(tags=wanted)) == sorted(any_)
            assert sorted(cache.keys(tags=wanted, match="all")) == sorted(all_)
            assert dict(cache.items(tags=wanted, match="all")) == {number: str(number) for number in all_}
            assert cache.count(tags=wanted) == len(any_)
    assert {usage.name: usage.entries for usage in cache.tags()} == {
        tag: sum(tag in tags for tags in own.values()) for tag in TAGS
    }
    gone = {number for number, tags in own.items() if {"red", 5} <= tags}
    assert cache.evict(tags=["red", 5], match="all") == len(gone)
    assert set(cache) == set(own) - gone
    more = {number for number, tags in own.items() if tags & {"green", -7}} - gone
    assert cache.evict(tags=["green", -7]) == len(more)
    assert set(cache) == set(own) - gone - more
    assert problems(cache) == []


def test_retag(cache: Cache, clock: Clock) -> None:
    cache.set("key", [1], expire=10, tags=["a", "b"])
    before = cache.get_entry("key")
    assert cache.retag("key", add=["c"], remove=["a", "never"])
    assert cache.get_entry("key") == before._replace(tags=("b", "c"), tag=("b", "c"))
    assert list(cache.keys(tags=["a"])) == []
    assert list(cache.keys(tags=["c"])) == ["key"]
    assert cache.retag("key", add=["b"], remove=["b", "c"])
    assert cache.get("key", tag=True) == ([1], "b")
    assert not cache.retag("nothing", add=["a"])
    clock.advance(10)
    assert not cache.retag("key", add=["a"])
    assert problems(cache) == []


@pytest.mark.parametrize("window", [0, 100])
def test_the_same_tags_again_with_another_expiry(cache: Cache, clock: Clock, window: int) -> None:
    for expire in (10, None, 20, 5, None):
        assert cache.get_or_set("key", lambda: 1, 10, tags=["t"], stale_if_error=window) in (0, 1)
        cache.set("key", 0, expire, tags=["t"])
        assert cache.get_entry("key").expire_time == (None if expire is None else clock.now + expire)
        assert cache.check() == []
        clock.advance(15)
        alive = expire is None or expire > 15
        assert cache.expire() == (not alive)
        assert cache.count(tags=["t"]) == alive
        cache.delete("key")


def test_expired_entries_are_in_no_answer(cache: Cache, clock: Clock) -> None:
    cache.reset("cull_limit", 0, update=False)
    cache.set("short", 1, expire=1, tags=["a"])
    cache.set("long", 1, expire=9, tags=["a"])
    clock.advance(2)
    assert list(cache.keys(tags=["a"])) == list(cache.keys(prefix="")) == ["long"]
    assert cache.count() == cache.count(tags=["a"]) == cache.tags()[0].entries == 1
    assert list(cache.items(tags=["a"])) == [("long", 1)]
    assert cache.evict("a") == 1
    assert len(cache) == 0, "an expired entry goes as well, but does not count"


def test_by_prefix_and_page_by_page(cache: Cache) -> None:
    wanted = {f"user:{number}" for number in range(250)}
    cache.set_many([*((key, 1) for key in wanted), ("other", 1), (5, 1), ((3, "user:"), 1)], tags=["t"])
    every: list[dict[str, Any]] = [{}, {"tags": ["t"]}]
    for options in every:
        assert sorted(cache.keys(prefix="user:", **options)) == sorted(wanted)
        assert cache.count(prefix="user:", **options) == 250
        seen: list[Any] = []
        page = list(itertools.islice(cache.keys(prefix="user:", **options), 60))
        while page:
            seen += page
            cache.delete(page[-1])
            page = list(itertools.islice(cache.keys(prefix="user:", after=page[-1], **options), 60))
        assert sorted(seen) == sorted(wanted), "each of them once"
        cache.set_many(dict.fromkeys(wanted, 1), tags=["t"])


def test_tags_are_listed_with_what_they_hold(cache: Cache) -> None:
    cache.set("large", random.Random(1).randbytes(5000).hex(), tags=["user:1", "all"])
    cache.set("small", 1, tags=["user:2", "all"])
    usages = {usage.name: usage for usage in cache.tags()}
    assert {name: usage.entries for name, usage in usages.items()} == {"all": 2, "user:1": 1, "user:2": 1}
    assert usages["user:1"].bytes > 5000 > usages["user:2"].bytes > 0
    assert usages["all"].bytes == usages["user:1"].bytes + usages["user:2"].bytes
    assert [usage.name for usage in cache.tags(prefix="user:")] == ["user:1", "user:2"]


@few
def test_a_size_is_the_same_wherever_it_is_told(cache: Cache) -> None:
    for space in (cache, cache.namespace("space")):
        values = {"large": random.Random(1).randbytes(50_000), "small": 1, "text": "x" * 100}
        for key, value in values.items():
            space.set(key, value, expire=1000, tags=["all", key])
        sizes = {key: space.get_entry(key).size for key in values}
        # Those of the namespace are entries of the cache around it, too.
        assert {usage.name: usage.bytes for usage in space.tags()} == {"all": sum(sizes.values()), **sizes}
        space.clear()


@few
def test_a_tag_is_listed_though_one_entry_goes_meanwhile(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set_many(dict.fromkeys(range(9), 1), tags=["red"])
    tagged_places = Reader.tagged_places

    def removing(reader: Reader, except_for: str) -> Any:
        places = tagged_places(reader, except_for)
        for entry in list(cache._select(Selection())):
            if entry.place in places[:1]:
                cache.delete(entry.key)
        return places

    monkeypatch.setattr(Reader, "tagged_places", removing)
    assert [usage.name for usage in cache.tags()] == ["red"]


@few
def test_limits(cache: Cache) -> None:
    cache.set("key", 1, tags=["kept"])
    wrong: dict[str, Callable[[], object]] = {
        "65 tags": lambda: cache.set("key", 2, tags=range(65)),
        "may have 255": lambda: cache.set("key", 2, tag="x" * 300),
        "expected a list": lambda: cache.set("key", 2, tags="text"),
        "too: put all": lambda: cache.set("key", 2, tag="a", tags=["b"]),
        "64": lambda: cache.retag("key", add=range(64)),
        "expected 'any' or 'all'": lambda: cache.evict(tags=["a"], match="some"),  # type: ignore[arg-type]
        "at least one": lambda: cache.keys(tags=[]),
    }
    for message, call in wrong.items():
        with pytest.raises(TagError, match=message):
            call()
    for tag in ([], {}, None, object()):
        with pytest.raises((KeyEncodeError, TagError)):
            cache.set("key", 2, tags=["fine", tag])
    cache.set("key", bytes(70_000), tags=range(64))
    assert len(cache.get_entry("key").tags) == 64
    cache.set("key", 1, tags=["x" * 250, "y"])
    assert cache.evict("x" * 250) == 1
    assert problems(cache) == []


@one
def test_an_index_that_was_damaged_is_found_and_mended(cache: Cache) -> None:
    cache.set("key", 1, tags=["a", "b"])
    cache.set("other", 2, tags=["c"])
    tamper(cache, "DELETE FROM tagged WHERE tag = ?", b"\xa1a".hex())
    tamper(cache, "INSERT INTO tagged SELECT ?, h FROM entry", b"\xa1d".hex())
    tamper(cache, "INSERT INTO tagged VALUES (?, 12345)", b"\xa1a".hex())
    assert list(cache.keys(tags=["d"])) == [], "the record decides"
    assert list(cache.keys(tags=["a"])) == []
    assert [usage.name for usage in cache.tags()] == ["a", "b", "c"]
    assert len(problems(cache, fix=True)) == 4
    assert problems(cache) == []
    assert list(cache.keys(tags=["a"])) == ["key"]


@one
@pytest.mark.parametrize(
    "planted", ["'no names'", "'61 \"'", "x'6100'", "CAST(x'610062' AS TEXT)", "1.5", "'[]'", "''"]
)
def test_what_is_planted_as_tags_keeps_no_entry_from_going(cache: Cache, planted: str) -> None:
    cache.set("key", 1, tags=["a"])
    cache.set("other", 1, tags=["a"])
    tamper(cache, f"UPDATE entry SET tags = {planted}")
    assert cache["key"] == 1
    assert cache.set("key", 2, tags=["b"])
    assert cache.delete("key")
    assert problems(cache, fix=True)
    assert len(cache) == 0
    assert problems(cache) == []


@one
@pytest.mark.parametrize("planted", ["'text'", "x'00'", "1.5", "9e999"])
def test_a_place_in_the_index_that_is_no_number_is_passed_over(cache: Cache, planted: str) -> None:
    cache.set("key", 1, tags=["a"])
    cache.set("other", 1, tags=["a"])
    tamper(cache, f"INSERT INTO tagged SELECT tag, {planted} FROM tagged LIMIT 1")
    assert sorted(cache.keys(tags=["a"])) == ["key", "other"]
    assert cache.count(tags=["a"]) == cache.tags()[0].entries == 2
    assert problems(cache, fix=True)
    assert problems(cache) == []
    assert cache.evict("a") == 2


@one
def test_evict_ends_whatever_the_index_says(cache: Cache) -> None:
    cache.set("key", 1, tags=["a"])
    tamper(cache, "INSERT INTO tagged SELECT ?, h FROM entry", b"\xa1b".hex())
    tamper(
        cache,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
        " INSERT INTO tagged SELECT ?, i FROM n",
        b"\xa1b".hex(),
    )
    assert cache.evict("b") == 0
    assert cache["key"] == 1, "the entry decides"
    assert problems(cache, fix=True)
    assert problems(cache) == []


def test_all_reads_no_more_than_the_smaller_tag(tmp_path: Path) -> None:
    with Cache(tmp_path, durability="process") as cache:
        cache.set_many({number: number for number in range(3000)}, tags=["large"])
        cache.set_many({-number: number for number in range(1, 6)}, tags=["large", "small"])
        reader = cache._shards.stores[0].reader
        names = [b"\xa5large".hex(), b"\xa5small".hex()]
        assert reader.smallest_first(names) == names[::-1]
        assert sorted(cache.keys(tags=["large", "small"], match="all")) == [-5, -4, -3, -2, -1]


@few
def test_a_set_that_depends_on_the_version(open_cache: Opener, clock: Clock) -> None:
    cache, other = open_cache(), open_cache()
    assert cache.set("key", "first", if_version=None)
    assert not cache.set("key", "second", if_version=None), "there is one"
    version = cache.get_entry("key").version
    assert other.get_entry("key").version == version
    assert cache.touch("key", 100)
    assert cache.retag("key", add=["a"])
    assert other.set("key", "second", if_version=version), "its value was not written since"
    assert not cache.set("key", "third", if_version=version)
    assert cache["key"] == "second"
    newest = cache.get_entry("key").version
    assert newest > version
    assert cache.set("key", "second")
    assert not other.set("key", "third", if_version=newest), "the same value, written again"
    wrong: list[Any] = [str(newest), True, cache.get_entry("key")]
    for given in wrong:
        with pytest.raises(TypeError, match="if_version is"):
            cache.set("key", "x", if_version=given)
    other.delete("key")
    assert not cache.set("key", "x", if_version=newest)
    assert cache.set("key", "x" * 5000, expire=1, if_version=None)
    clock.advance(1)
    assert not cache.set("key", "y", if_version=other.get_entry("key", Entryless).version)
    assert cache.set("key", "y", if_version=None)


class Entryless:
    """Stands for an entry that there is not."""

    version = -1


@one
@pytest.mark.parametrize("planted", ["'text'", "x'00'", "9e999", "-9e999"])
def test_a_size_that_is_no_number_keeps_no_tag_from_being_listed(cache: Cache, planted: str) -> None:
    cache.set("key", 1, tags=["a"])
    tamper(cache, f"UPDATE entry SET size = {planted}")
    assert [(usage.name, usage.entries) for usage in cache.tags()] == [("a", 1)]
    assert problems(cache, fix=True)
    assert problems(cache) == []
