"""What requests-cache's own tests, which `make third-party` runs, do not ask of the adapter."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import patch

import pytest
from requests_cache import CachedResponse, CachedSession
from requests_cache.policy.expiration import utcnow

from diskcache_like import Cache
from diskcache_like.integrations.requests_cache import RequestsCache

from ..support.cache_kinds import Clock
from ..support.leaks import open_descriptors


def test_responses_are_plain_data(cache: Cache) -> None:
    backend = RequestsCache(cache)
    backend.responses["key"] = CachedResponse(content=b"body", headers={"ETag": "1"}, url="https://example.com")
    stored = cache.namespace("responses")["key"]
    assert type(stored) is dict
    with Cache(cache.directory, pickle="never") as other:
        found = RequestsCache(other).responses["key"]
    assert (found.content, found.headers["etag"], found.cache_key) == (b"body", "1", "key")


@pytest.mark.parametrize(("expires", "kept"), [(60, 3660), (-60, 3600), (-9000, 3600), (None, None)])
def test_a_response_is_kept_an_hour_longer_than_it_is_fresh(
    cache: Cache, clock: Clock, expires: int | None, kept: int | None
) -> None:
    moment = None if expires is None else utcnow() + timedelta(seconds=expires)
    RequestsCache(cache).responses["key"] = CachedResponse(expires=moment)
    until = cache.namespace("responses").get("key", expire_time=True)[1]
    assert (None if until is None else until - clock.now) == (kept if kept is None else pytest.approx(kept, abs=1))


def test_a_session_closes_what_it_opened(cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.mktemp("own")
    with CachedSession(backend=RequestsCache(own)) as session:
        session.cache.redirects["a"] = "b"
        assert any(name.startswith(str(own)) for name in open_descriptors().values())
    assert not any(name.startswith(str(own)) for name in open_descriptors().values())
    with patch.object(Cache, "close", side_effect=AssertionError), CachedSession(backend=RequestsCache(cache)):
        pass


def test_only_its_own_entries_are_cleared(cache: Cache) -> None:
    cache["mine"] = 1
    backend = RequestsCache(cache)
    backend.responses["key"], backend.redirects["other"] = CachedResponse(), "key"
    assert backend.contains("other")
    backend.clear()
    assert (len(backend.responses), len(backend.redirects), cache["mine"]) == (0, 0, 1)
