"""Beside LangGraph's tests of its cache in Redis: what they get for that is on `integrations.langgraph`."""

from __future__ import annotations

import tempfile
from typing import Any

import redis
from langgraph.cache import redis as module

from diskcache_like.integrations.langgraph import LangGraphCache


class Redis:
    """A server without anything, which is always there."""

    def __init__(self, **options: Any) -> None:
        pass

    def ping(self) -> bool:
        return True

    def flushdb(self) -> None:
        pass


class RedisCache(LangGraphCache):
    """A cache in a temporary directory."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="langgraph-")
        super().__init__(self._directory.name)


vars(redis)["Redis"] = Redis
vars(module)["RedisCache"] = RedisCache
