"""Handles of another kind that meet damage first: they are refused, and leave the cache to those whose it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, FanoutCache, JSONDisk
from diskcache_like.coherence.generations import Header
from diskcache_like.errors import CacheError, CorruptDatabaseWarning, SecretError, SettingError

from ..support.cache_kinds import NEEDS_CIPHER
from ..support.tampering import damage, snapshot

QUICK: dict[str, Any] = {"durability": "process", "generation_slots": 1 << 10}
SECRET, OTHER_SECRET = "a secret for tests", "another secret for tests"
ENTRIES = {f"key {number}": number for number in range(20)}
SHARDED = [pytest.param(Cache, "cache.db", id="Cache"), pytest.param(FanoutCache, "000/cache.db", id="FanoutCache")]
OTHERS: list[Any] = [
    pytest.param({}, {"disk": JSONDisk}, SettingError, id="disk"),
    pytest.param({"secret": SECRET}, {"secret": OTHER_SECRET}, (SecretError, SettingError), id="secret"),
    pytest.param({"secret": SECRET}, {}, (SecretError, SettingError), id="no secret"),
    pytest.param({}, {"secret": SECRET}, (SecretError, SettingError), id="secret for none"),
    pytest.param({"compressor": "zlib"}, {"compressor": "none"}, SettingError, id="compressor"),
    pytest.param({"serializer": "json"}, {"serializer": "msgpack"}, SettingError, id="serializer"),
    pytest.param({}, {"encrypt": True, "secret": SECRET}, SettingError, id="encrypt", marks=NEEDS_CIPHER),
    pytest.param(
        {"secret": SECRET}, {"encrypt": True, "secret": SECRET}, SettingError, id="encrypt signed", marks=NEEDS_CIPHER
    ),
]


@contextmanager
def quietly() -> Iterator[None]:
    """Let a database be quarantined without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptDatabaseWarning)
        yield


def made(kind: type[Cache], directory: Path, options: dict[str, Any]) -> Cache:
    """Make a cache with entries, and return a second handle on it."""
    with closing(kind(directory, **QUICK, **options)) as cache:
        cache.set_many(ENTRIES)
    return kind(directory, **options)


@pytest.mark.parametrize(("kind", "first"), SHARDED)
@pytest.mark.parametrize(("options", "other", "error"), OTHERS)
def test_a_damaged_cache_stays_of_its_kind(
    kind: type[Cache],
    first: str,
    options: dict[str, Any],
    other: dict[str, Any],
    error: type[CacheError] | tuple[type[CacheError], ...],
    tmp_path: Path,
) -> None:
    directory = tmp_path / "cache"
    with quietly(), closing(made(kind, directory, options)) as live:
        damage(directory / first, "everything")
        with pytest.raises(error):
            kind(directory, **other)
        live["key"] = "after"
        assert live["key"] == "after"
        with closing(kind(directory, **options)) as again:
            assert again["key"] == "after"
            assert {key: again[key] for key in ENTRIES if key in again}.items() <= ENTRIES.items()
            assert len(again) > 1 or kind is Cache, "what lay in the other shards is there"
        assert live["key"] == "after"


@pytest.mark.parametrize(("kind", "first"), SHARDED)
@pytest.mark.parametrize(("options", "other", "error"), [*OTHERS[:4], *OTHERS[6:]])
def test_who_is_refused_makes_nothing(
    kind: type[Cache], first: str, options: dict[str, Any], other: dict[str, Any], error: Any, tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    made(kind, directory, options).close()
    damage(directory / first, "everything")
    before = {name for name in snapshot(directory) if ".db" in name}
    with pytest.raises(error):
        kind(directory, **other)
    assert {name for name in snapshot(directory) if ".db" in name} - {f"{first}-wal", f"{first}-shm"} == before


@pytest.mark.parametrize(("kind", "first"), SHARDED)
@pytest.mark.parametrize("options", [{"compressor": "zlib"}, {"serializer": "json"}], ids=str)
def test_who_leaves_out_how_a_damaged_cache_was_made_goes_on_with_that(
    kind: type[Cache], first: str, options: dict[str, Any], tmp_path: Path
) -> None:
    directory = tmp_path / "cache"
    with quietly(), closing(made(kind, directory, options)) as live:
        damage(directory / first, "everything")
        with closing(kind(directory)) as other:
            other.set_many(ENTRIES)
            for store in other._shards.stores:
                assert options.items() <= store.shard.identity.items()
        assert {key: live[key] for key in ENTRIES} == ENTRIES


@pytest.mark.parametrize("noted", [0, 5, 1 << 61, (1 << 64) - 1], ids=["nothing", "another", "too much", "all ones"])
def test_what_the_header_says_of_the_kind_is_put_right_by_a_sound_database(noted: int, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(made(Cache, directory, {"compressor": "zlib"})) as live:
        header = live._shards.stores[0].shard.header
        known, header[Header.FINGERPRINT] = header[Header.FINGERPRINT], noted
        with closing(Cache(directory)) as other:
            assert other["key 1"] == 1
        assert header[Header.FINGERPRINT] == known


@pytest.mark.parametrize("noted", [0, 1 << 61, (1 << 64) - 1], ids=["nothing", "too much", "all ones"])
def test_without_a_note_of_its_kind_a_damaged_cache_is_what_is_asked_for(noted: int, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with quietly(), closing(made(Cache, directory, {})) as live:
        live._shards.stores[0].shard.header[Header.FINGERPRINT] = noted
        damage(directory / "cache.db", "everything")
        with closing(Cache(directory, compressor="zlib")) as other:
            other["a"] = 1
            assert other._shards.stores[0].shard.identity["compressor"] == "zlib"


@pytest.mark.parametrize(
    "options", [{"compressor": "none"}, pytest.param({"secret": SECRET, "encrypt": True}, marks=NEEDS_CIPHER)]
)
def test_a_cache_is_not_of_the_kind_of_one_below_it(options: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(made(Cache, directory / "000", {"compressor": "zlib"})) as below:
        with closing(Cache(directory, **options)) as cache:
            cache["a"] = 1
        with closing(Cache(directory, **options)) as cache:
            assert cache["a"] == 1
            assert cache._shards.stores[0].shard.identity["compressor"] == "none"
        assert below["key 1"] == 1
