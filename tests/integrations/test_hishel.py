"""What hishel's own tests, which `make third-party` runs, do not ask of the storages, or ask of SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hishel import Headers, Request, Response

from diskcache_like import Cache, Timeout
from diskcache_like.integrations.hishel import AsyncHishelStorage, HishelStorage

from ..support.cache_kinds import QUICK
from ..support.leaks import open_descriptors

PIECES = [b"x" * 100_000, b"y" * 100_000]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Cache]:
    """Return a cache by the clock that hishel reads, too."""
    with Cache(tmp_path, **QUICK) as cache:
        yield cache
        assert cache.check() == []


def begin(storage: Any, pieces: Any = PIECES, **limits: float) -> Any:
    request = Request("GET", "https://example.com", Headers({"accept": "*"}))
    return storage.create_entry(request, Response(200, Headers({"etag": "1"}), iter(pieces)), "key", **limits)


def read(entry: Any) -> bytes:
    return b"".join(entry.response.stream)


def test_what_was_stored_is_found_by_another_process(live: Cache) -> None:
    read(begin(HishelStorage(live)))
    with Cache(live.directory, pickle="never") as again:
        (found,) = HishelStorage(again).get_entries("key")
        assert (found.request.url, found.response.headers["etag"]) == ("https://example.com", "1")
        assert read(found) == b"".join(PIECES)


@pytest.mark.parametrize("operation", ["set", "open", "get_entry"])
def test_a_failing_cache_fails_no_request(live: Cache, operation: str, caplog: pytest.LogCaptureFixture) -> None:
    storage = HishelStorage(live)
    caplog.set_level(logging.CRITICAL, "diskcache_like.integrations.responses")
    with patch.object(Cache, operation, side_effect=Timeout("busy")):
        assert read(begin(storage)) == b"".join(PIECES)
        assert storage.get_entries("key") == []
    assert storage.get_entries("key") == []


def test_a_disk_that_fails_in_the_middle_does_not_cut_the_response(live: Cache) -> None:
    storage = HishelStorage(live)
    stream = begin(storage).response.stream
    received = [next(stream)]
    with patch("diskcache_like.operations.streams.StreamWriter.write", side_effect=OSError("bad disk")):
        received += stream
    assert received == PIECES
    assert storage.get_entries("key") == []
    assert len(live) == 0


def test_a_cache_without_room_fails_no_request(tmp_path: Path) -> None:
    with Cache(tmp_path, size_limit=1) as tiny:
        storage = HishelStorage(tiny)
        assert read(begin(storage)) == b"".join(PIECES)
        assert storage.get_entries("key") == []


def test_what_is_removed_while_it_is_saved_leaves_nothing(live: Cache) -> None:
    storage = HishelStorage(live)
    entry = begin(storage)
    stream = entry.response.stream
    received = [next(stream)]
    storage.remove_entry(entry.id)
    assert [*received, *stream] == PIECES
    assert storage.get_entries("key") == []
    assert all(live.get(key, expire_time=True)[1] is not None for key in live), "the body would stay for ever"


@pytest.mark.parametrize("head", [5, (1, 2), (None, None, 5), (None, None, (1, 2, 3, 4, 5)), ("a", "b", "c")], ids=str)
def test_a_forged_head_is_passed_over(live: Cache, head: Any, caplog: pytest.LogCaptureFixture) -> None:
    storage = HishelStorage(live)
    read(begin(storage))
    (place,) = (key for key in live if key[0] == "head")
    tags = live.get_entry(place).tags
    live.set(place, head, tags=tags)
    live.set("head", head, tags=tags)
    read(begin(storage))
    caplog.set_level(logging.CRITICAL, "diskcache_like.integrations.responses")
    assert [read(found) for found in storage.get_entries("key")] == [b"".join(PIECES)]


def test_look_ups_write_only_when_half_of_the_idle_time_is_over(live: Cache) -> None:
    storage = HishelStorage(live, default_tti=100)
    read(begin(storage))
    with patch.object(Cache, "touch", side_effect=AssertionError):
        assert len(storage.get_entries("key")) == 1
    now = time.time()
    with patch("time.time", lambda: now + 60):
        storage.get_entries("key")
    (until,) = (live.get(key, expire_time=True)[1] for key in live if key[0] == "head")
    assert until is not None
    assert until > now + 100


def test_a_removed_response_is_read_to_its_end(live: Cache) -> None:
    storage = HishelStorage(live)
    entry = begin(storage)
    read(entry)
    before, during = (storage.get_entries("key")[0] for _ in range(2))
    first = next(during.response.stream)
    storage.remove_entry(entry.id)
    assert storage.get_entries("key") == []
    assert first + read(during) == read(before) == b"".join(PIECES)


def test_headers_are_replaced_and_limits_stay(live: Cache) -> None:
    storage = HishelStorage(live)
    entry = begin(storage, ttl=50)
    read(entry)
    storage.update_headers(entry.id, Headers({"etag": "2"}))
    assert storage.get_entries("key")[0].response.headers["etag"] == "2"
    (until,) = (live.get(key, expire_time=True)[1] for key in live if key[0] == "head")
    assert until is not None
    assert time.time() < until <= time.time() + 50


def test_a_storage_closes_what_it_opened(live: Cache, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.mktemp("own")

    def files() -> list[str]:
        return [name for name in open_descriptors().values() if name.startswith(str(own))]

    async def use() -> None:
        storage = AsyncHishelStorage(own)
        assert len(await storage.get_entries("key")) == 1
        await storage.close()

    storage = HishelStorage(own)
    read(begin(storage))
    assert files()
    storage.close()
    assert not files()
    assert len(storage.get_entries("key")) == 1
    storage.close()
    storage.close()
    asyncio.run(use())
    assert not files()
    with patch.object(Cache, "close", side_effect=AssertionError):
        HishelStorage(live).close()


def test_asynchronous_and_other_clients_share_responses(live: Cache) -> None:
    async def body() -> AsyncIterator[bytes]:
        for piece in PIECES:
            yield piece

    async def use() -> None:
        storage = AsyncHishelStorage(live)
        for count in itertools.count(1):
            entry = await storage.create_entry(
                Request("GET", "https://example.com"), Response(200, stream=body()), "key"
            )
            async with contextlib.aclosing(entry.response.stream) as stream:
                async for _ in stream:
                    if count == 1:
                        break
            if count == 1:
                assert await storage.get_entries("key") == []
                continue
            (found,) = await storage.get_entries("key")
            assert b"".join([piece async for piece in found.response.stream]) == b"".join(PIECES)
            return

    asyncio.run(use())
    (found,) = HishelStorage(live).get_entries("key")
    assert read(found) == b"".join(PIECES)
