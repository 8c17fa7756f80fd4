"""Copying a cache into another one: `copy_to`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DirectoryError, FanoutCache
from tests.support.cache_kinds import Clock, Opener


def test_entries_keep_value_expiry_tag_and_order(open_cache: Opener, clock: Clock, tmp_path: Path) -> None:
    source = open_cache()
    items = {"late": 1, "large": "x" * 100_000, "list": [1, None, "two"], "early": 2.5}
    for number, (key, value) in enumerate(items.items()):
        source.set(key, value, expire=100 + number, tag="odd" if number % 2 else None)
    source["for ever"] = True
    with Cache(tmp_path / "target", clock=clock) as target:
        assert source.copy_to(target) == 5
        assert list(target) == list(source)
        for key in source:
            assert target.get(key, expire_time=True, tag=True) == source.get(key, expire_time=True, tag=True)
            assert type(target[key]) is type(source[key])
        assert not target.check()


def test_an_expired_entry_does_not_come_back(open_cache: Opener, clock: Clock, tmp_path: Path) -> None:
    source = open_cache()
    source.set("gone", 1, expire=1)
    source.set("there", 2, expire=9)
    clock.advance(5)
    with Cache(tmp_path / "target", clock=clock) as target:
        assert source.copy_to(target) == 1
        assert list(target) == ["there"]
        clock.advance(5)
        assert "there" not in target


def test_another_codec_and_other_shards(open_cache: Opener, tmp_path: Path) -> None:
    source = open_cache()
    source.set_many({str(number): "text " * number for number in range(50)})
    with FanoutCache(tmp_path / "target", shards=3, serializer="json", compressor="zlib") as target:
        assert source.copy_to(target) == 50
        assert {key: target[key] for key in target} == {key: source[key] for key in source}


def test_what_the_target_has_stays_unless_its_key_is_copied(open_cache: Opener, tmp_path: Path) -> None:
    source = open_cache()
    source["both"] = "source"
    with Cache(tmp_path / "target") as target:
        target.set("both", "target", expire=9, tag="old")
        target["mine"] = 1
        assert source.copy_to(target) == 1
        assert target.get("both", expire_time=True, tag=True) == ("source", None, None)
        assert target["mine"] == 1


def test_items_of_queues_stay_in_their_queue(tmp_path: Path) -> None:
    with Cache(tmp_path / "source") as source, Cache(tmp_path / "target") as target:
        for value in "abc":
            source.push(value, prefix="jobs")
        assert source.copy_to(target) == 3
        assert [target.pull(prefix="jobs")[1] for _ in range(3)] == ["a", "b", "c"]


def test_what_never_fits_is_left_out(open_cache: Opener, tmp_path: Path) -> None:
    source = open_cache()
    source["small"] = 1
    source["huge"] = "x" * 200_000
    with Cache(tmp_path / "target", size_limit=150_000) as target:
        assert source.copy_to(target) == 1
        assert list(target) == ["small"]
        assert not target.check()


def test_a_cache_is_not_copied_to_itself(open_cache: Opener) -> None:
    source = open_cache()
    source["key"] = 1
    with pytest.raises(DirectoryError, match="itself"):
        source.copy_to(source)
    assert source["key"] == 1


def test_an_entry_that_goes_meanwhile_is_left_out(
    open_cache: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_cache()
    source.set_many({str(number): number for number in range(4)})
    load_recorded = source._loader.load_recorded

    def load_and_lose(*arguments: Any) -> object:
        found = load_recorded(*arguments)
        source.clear()
        return found

    monkeypatch.setattr(source._loader, "load_recorded", load_and_lose)
    with Cache(tmp_path / "target") as target:
        assert source.copy_to(target) == 1
        assert len(target) == 1


def test_only_a_cache_can_be_copied_into(open_cache: Opener, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"target is '{str(tmp_path)[:60]}.*, expected a Cache"):
        open_cache().copy_to(str(tmp_path))  # type: ignore[arg-type]
