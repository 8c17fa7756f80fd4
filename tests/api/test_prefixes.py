"""Entries by the text of their keys: a prefix or a glob, in listings, counts and evictions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from diskcache_like import Cache, TagError
from diskcache_like.encoding.globs import pattern_of
from diskcache_like.storage.shard.reader import Reader

from ..support.cache_kinds import Clock, Opener, exact, few, one
from ..support.inspection import problems

TEXTS = [
    *(
        "user:1",
        "user:2",
        "user:10:name",
        "page:1",
        "user",
        "",
        "us",
        "xuser:1",
        "User:1",
        "us*r",
        "naïve:猫",
        "naïve:2",
    ),
    *("user:" + "x" * size for size in (20, 26, 27, 250, 251, 300, 5000)),
]


def test_text_that_begins_with_a_prefix(cache: Cache) -> None:
    for number, text in enumerate(TEXTS):
        cache.set(text, number, tags=["even"] if number % 2 == 0 else None)
    space = cache.namespace("user:")
    space["user:9"] = "elsewhere"
    cache.flush()
    cache.set("user:late", 1)  # which waits in the write buffer
    for prefix in ("", "u", "user:", "user:1", "user:xxxx", "naïve:", "naïve:猫", "no", "x" * 6000):
        wanted = sorted(text for text in [*TEXTS, "user:late"] if text.startswith(prefix))
        assert sorted(cache.keys(prefix=prefix)) == wanted
        assert cache.count(prefix=prefix) == len(wanted)
        assert sorted(key for key, _ in cache.items(prefix=prefix)) == wanted
        tagged = sorted(text for text in TEXTS[::2] if text.startswith(prefix))
        assert sorted(cache.keys(tags=["even"], prefix=prefix)) == tagged
    for glob in ("*", "user:*", "us*r", r"us\*r", "*:1", "?ser:[^1]*", "naïve:?"):
        wanted = sorted(text for text in [*TEXTS, "user:late"] if pattern_of(glob).match(text))
        assert sorted(cache.keys(glob=glob)) == wanted
        assert cache.count(glob=glob, prefix="us") == sum(text.startswith("us") for text in wanted)
        assert dict(cache.items(glob=glob)) == {text: cache[text] for text in wanted}
    assert list(space.keys(glob="*:9")) == list(space.keys(prefix="user")) == ["user:9"]


@exact
def test_only_keys_that_are_text_have_a_prefix(cache: Cache, clock: Clock) -> None:
    for key in (b"user:1", ("user:1",), 5, "user:1", (b"\xa6", "user:")):
        cache[key] = 1
    cache.push("item", prefix="user:")
    cache.set("user:expired", 1, 5)
    clock.advance(5)
    assert list(cache.keys(prefix="user:")) == list(cache.keys(glob="*:*")) == ["user:1"]
    assert cache.evict(prefix="user:") == 1
    assert cache.pull(prefix="user:")[1] == "item"
    assert b"user:1" in cache


def test_pages_of_a_prefix(cache: Cache) -> None:
    keys = {f"{kind}:{number}" for kind in ("a", "b") for number in range(700)}
    cache.set_many(dict.fromkeys(keys, 1))
    for options in ({"prefix": "b:"}, {"glob": "b:*"}):
        found: list[Any] = []
        after: dict[str, Any] = {}
        while page := [key for key, _ in zip(cache.keys(**options, **after), range(300), strict=False)]:
            found += page
            after = {"after": found[-1]}
        assert sorted(found) == sorted(key for key in keys if key[0] == "b")


@pytest.mark.parametrize("size", [1, 40_000])
def test_entries_are_evicted_by_their_keys(cache: Cache, clock: Clock, size: int) -> None:
    space = cache.namespace("n")
    chance = random.Random(3)
    for number in range(60):
        for target in (cache, space):
            target.set(f"{'ab'[number % 2]}:{number}", "x" * size, tags=["t", "u"][: chance.randrange(3)])
    before = set(cache)
    assert (space.evict(prefix="a:1"), len(space)) == (5, 55)
    tagged = set(cache.keys(tags=["u"], glob="b:*"))
    assert cache.evict("u", glob="b:*") == len(tagged)
    assert before - set(cache) == tagged | {key for key in before if getattr(key, "key", "").startswith("a:1")}
    assert cache.evict(prefix="a:", glob="*1?") == 5
    assert cache.evict(tags=[], prefix="a:") == 0
    left = cache.count(prefix="a:")
    cache.set("a:gone", 1, 1)
    clock.advance(1)
    assert cache.evict(prefix="a:") == left
    assert cache.get_many([f"a:{number}" for number in range(60)]) == {}
    assert space.count(prefix="a:") == 25
    assert cache.evict(prefix="a:") == 0
    assert problems(cache) == []


@few
def test_what_can_be_had_stale_stays(cache: Cache) -> None:
    cache.get_or_set("a:1", lambda: 1, 60, stale_if_error=60)
    cache.set("a:2", 1)
    assert cache.evict(prefix="a:", soft=True) == 2
    assert cache.get_entry("a:1", stale=True).stale
    assert "a:2" not in cache


@few
def test_a_handle_sees_what_another_one_evicts(open_cache: Opener) -> None:
    one_, other = open_cache(), open_cache()
    one_["a:1"] = one_["b:1"] = 1
    assert other["a:1"] == 1
    assert one_.evict(prefix="a") == 1
    assert "a:1" not in other


@one
def test_no_other_record_is_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.set_many({f"{'ab'[number % 100 == 0]}:{number}": number for number in range(3000)})
    read: list[int] = []
    rows_at = Reader.rows_at

    def counting(self: Reader, places: Any) -> Any:
        read.extend(places)
        return rows_at(self, places)

    cache._shards.stores[0].rows_at = counting.__get__(cache._shards.stores[0].reader)
    assert cache.count(prefix="b:") == cache.count(glob="b*0") == 30
    assert len(read) == 60


@one
def test_a_prefix_is_text(cache: Cache) -> None:
    wrong: Any
    for wrong in (b"a", 5, ["a"]):
        for call in (cache.keys, cache.items, cache.count, cache.evict):
            with pytest.raises(TypeError, match=r"prefix is .*, expected text or None"):
                call(prefix=wrong)
            with pytest.raises(TypeError, match=r"glob is .*, expected text or None"):
                call(glob=wrong)
    with pytest.raises(TagError, match="match is"):
        cache.evict(prefix="a", match="some")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument 'pattern'"):
        cache.evict(pattern="a")  # type: ignore[call-arg]
    assert cache.evict() == 0
