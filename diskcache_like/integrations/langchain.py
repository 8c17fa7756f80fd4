"""A cache of model answers and a key-value store for LangChain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeVar

from .hosts import Given, host, opened

with host("langchain_core", "langchain"):
    from langchain_core.caches import BaseCache
    from langchain_core.stores import BaseStore

V = TypeVar("V")


class LangChainCache(BaseCache):
    """Answers of models, by prompt and parameters: `set_llm_cache(LangChainCache(...))`.

    `cache`: a directory, or a Cache, FanoutCache or namespace, or the `aio` of one; `expire`: how long an answer is
    kept, None for as long as there is room; `settings`: for the cache in a directory. Answers are encoded as the
    cache's values are, so they are signed where they are no plain data. `clear` removes all that is in the cache.
    """

    def __init__(self, cache: Given, expire: Any = None, **settings: Any) -> None:
        self.cache = opened(cache, **settings)
        self.expire = expire

    def lookup(self, prompt: str, llm_string: str) -> Sequence[Any] | None:
        """Return the answer, or None."""
        found: Sequence[Any] | None = self.cache.get((prompt, llm_string))
        return found

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Any]) -> None:
        """Store an answer."""
        self.cache.set((prompt, llm_string), return_val, self.expire, retry=True)

    def clear(self, **kwargs: Any) -> None:
        """Remove every entry of the cache."""
        self.cache.clear(retry=True)

    async def alookup(self, prompt: str, llm_string: str) -> Sequence[Any] | None:
        """Do what `lookup` does."""
        found: Sequence[Any] | None = await self.cache.aio.get((prompt, llm_string))
        return found

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Any]) -> None:
        """Do what `update` does."""
        await self.cache.aio.set((prompt, llm_string), return_val, self.expire, retry=True)

    async def aclear(self, **kwargs: Any) -> None:
        """Do what `clear` does."""
        await self.cache.aio.clear(retry=True)


class LangChainStore(BaseStore[str, V]):
    """Values under text, for `CacheBackedEmbeddings` and retrievers; arguments as for `LangChainCache`."""

    def __init__(self, cache: Given, expire: Any = None, **settings: Any) -> None:
        self.cache = opened(cache, **settings)
        self.expire = expire

    def mget(self, keys: Sequence[str]) -> list[V | None]:
        """Return the values of the keys, or None, in their order."""
        return list(map(self.cache.get_many(keys).get, keys))

    def mset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Store all values."""
        self.cache.set_many(key_value_pairs, self.expire, retry=True)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Remove the values of the keys."""
        self.cache.delete_many(keys, retry=True)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys, or those that begin with a prefix, for which it reads all of them."""
        yield from self.cache.keys(prefix=prefix)

    async def amget(self, keys: Sequence[str]) -> list[V | None]:
        """Do what `mget` does."""
        return list(map((await self.cache.aio.get_many(keys)).get, keys))

    async def amset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Do what `mset` does."""
        await self.cache.aio.set_many(key_value_pairs, self.expire, retry=True)

    async def amdelete(self, keys: Sequence[str]) -> None:
        """Do what `mdelete` does."""
        await self.cache.aio.delete_many(keys, retry=True)

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Do what `yield_keys` does."""
        async for key in self.cache.aio.keys(prefix=prefix):
            yield key
