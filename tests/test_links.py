"""Links within a cache directory: our own, too, are refused, since an archive may bring one that leads anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from diskcache_like import Cache, FanoutCache, UnsafeDirectory


@pytest.mark.parametrize("make", [Cache, FanoutCache])
@pytest.mark.parametrize("content", ["nothing", "a shard"])
def test_a_shard_that_is_a_link_leads_nowhere(tmp_path: Path, make: type[Cache], content: str) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    FanoutCache(directory, shards=2).close()
    (directory / "001").rename(elsewhere)
    if content == "nothing":
        for path in elsewhere.iterdir():
            path.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()}
    (directory / "001").symlink_to(elsewhere)
    with pytest.raises(UnsafeDirectory, match="001"):
        make(directory)
    assert {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


@pytest.mark.parametrize("link", ["cache", "cache/a", "cache/a/b"])
def test_a_named_cache_that_is_a_link_leads_nowhere(tmp_path: Path, link: str) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with FanoutCache(directory, shards=2) as cache:
        (directory / link).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / link).symlink_to(elsewhere)
        with pytest.raises(UnsafeDirectory, match="symbolic link"):
            cache.cache("a/b")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_stands_where_value_files_belong_is_named_and_nothing_is_lost(tmp_path: Path, planted: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Cache(tmp_path / "cache") as cache:
        cache["key"] = "old"
        for number in range(256):
            path = tmp_path / "cache" / f"{number:02x}"
            path.symlink_to(elsewhere) if planted == "link" else path.write_bytes(b"")
        with pytest.raises(UnsafeDirectory, match="value files belong"):
            cache["key"] = "x" * 100_000
        assert cache["key"] == "old"
    assert list(elsewhere.iterdir()) == []
