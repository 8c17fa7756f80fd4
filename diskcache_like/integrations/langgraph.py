"""A cache of what nodes and tasks of LangGraph returned."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from .hosts import Given, host, opened, tag_of

with host("langgraph.cache", "langgraph"):
    from langgraph.cache.base import BaseCache

Key = tuple[tuple[str, ...], str]


class LangGraphCache(BaseCache[Any]):
    """Results of nodes: `graph.compile(cache=LangGraphCache(...))`; each node's `CachePolicy` says for how long.

    `cache`: a directory, or a Cache, FanoutCache or namespace, or the `aio` of one; `settings`: for the cache in a
    directory. Results are encoded as the cache's values are, so they are signed where they are no plain data; with
    `serde` as that does it, and then it decides what is made of the bytes that it reads.
    """

    def __init__(self, cache: Given, *, serde: Any = None, **settings: Any) -> None:
        super().__init__(serde=serde)
        self.cache = opened(cache, **settings)
        self._has_serde = serde is not None

    def get(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return those of the keys that have a result."""
        return self._loaded(self.cache.get_many(keys))

    def set(self, pairs: Mapping[Key, tuple[Any, int | None]]) -> None:
        """Store results, each with the seconds that it is kept, or None."""
        for key, (value, seconds) in pairs.items():
            self.cache.set(key, self._dumped(value), seconds, retry=True, tag=_tag(key[0]))

    def clear(self, namespaces: Sequence[tuple[str, ...]] | None = None) -> None:
        """Remove the results of some namespaces, or all."""
        if namespaces is None:
            self.cache.clear(retry=True)
        elif namespaces:
            self.cache.evict(tags=map(_tag, namespaces), retry=True)

    async def aget(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Do what `get` does."""
        return self._loaded(await self.cache.aio.get_many(keys))

    async def aset(self, pairs: Mapping[Key, tuple[Any, int | None]]) -> None:
        """Do what `set` does."""
        for key, (value, seconds) in pairs.items():
            await self.cache.aio.set(key, self._dumped(value), seconds, retry=True, tag=_tag(key[0]))

    async def aclear(self, namespaces: Sequence[tuple[str, ...]] | None = None) -> None:
        """Do what `clear` does."""
        if namespaces is None:
            await self.cache.aio.clear(retry=True)
        elif namespaces:
            await self.cache.aio.evict(tags=map(_tag, namespaces), retry=True)

    def _dumped(self, value: Any) -> Any:
        if self._has_serde:
            return self.serde.dumps_typed(value)
        return tuple(value) if isinstance(value, deque) else value  # what a node wrote: plain data if each write is

    def _loaded(self, found: dict[Key, Any]) -> dict[Key, Any]:
        return {key: self.serde.loads_typed(value) for key, value in found.items()} if self._has_serde else found


def _tag(namespace: tuple[str, ...]) -> str:
    """Return the tag by which the results of a namespace are found; namespaces that share one are cleared together."""
    return tag_of(":".join(("langgraph", *namespace)))
