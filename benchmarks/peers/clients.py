"""Other caches for asyncio, and other clients of a Redis server: the fastest calls that each documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measure import clock

Place = TypeVar("Place")
OLDEST_TRACKING = "6.0.0"


@dataclass(frozen=True)
class Client:
    """A cache with its reads and its writes; what they return is awaited unless `sync`.

    `cool` forgets what is in memory; None where nothing is, or nothing else is.
    """

    name: str
    get: Callable[[str], Any]
    set: Callable[[str, bytes], Any]
    close: Callable[[], Any] = lambda: None
    cool: Callable[[], Any] | None = None
    sync: bool = False
    incr: Callable[[str], Any] | None = None

    async def timed(self, call: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[int]:
        """Return the nanoseconds of each call, with the clock's."""
        times = []
        if self.sync:
            for each in arguments:
                start = clock()
                call(*each)
                times.append(clock() - start)
        else:
            for each in arguments:
                start = clock()
                await call(*each)
                times.append(clock() - start)
        return times

    async def all_calls(self, keys: Sequence[str], values: Sequence[bytes]) -> dict[str, list[int]]:
        """Time sets, gets of what is not in memory, gets of what is, and increments if there are any."""
        reads = [(key,) for key in keys]
        times = {"set": await self.timed(self.set, list(zip(keys, values, strict=True)))}
        if self.cool is not None:
            await finished(self.cool)
        times["cold"] = await self.timed(self.get, reads)
        times["hot"] = await self.timed(self.get, reads)
        if self.incr is not None:
            times["incr"] = await self.timed(self.incr, [(f"{self.name}, a counter",) for _ in keys])
        return times


async def finished(call: Callable[[], Any]) -> None:
    """Call, and wait for what is awaited."""
    result = call()
    if isinstance(result, Awaitable):
        await result


Makers = Mapping[str, Callable[[Place], Coroutine[Any, Any, list[Client]]]]


async def made(makers: Makers[Place], place: Callable[[str], Place], skipped: list[str]) -> list[Client]:
    """Open the clients that are installed; name the others in `skipped`."""
    found: list[Client] = []
    for name, make in makers.items():
        try:
            found += await make(place(name))
        except ImportError as error:
            skipped.append(f"{name} skipped: {error}; install it with: make .venv/.installed-to-compare")
    return found


async def _cashews(directory: Path) -> list[Client]:
    from cashews import Cache as Cashews

    cache = Cashews()
    cache.setup(f"disk://?directory={directory}&shards=0")
    await cache.init()
    return [Client("cashews, on DiskCache", cache.get, cache.set, cache.close)]


async def _key_value(directory: Path) -> list[Client]:
    from key_value.aio.stores.disk import DiskStore

    store = DiskStore(directory=directory)

    async def put(key: str, value: bytes) -> None:
        await store.put(key=key, value={"value": value.hex()})

    return [Client("py-key-value, on DiskCache", lambda key: store.get(key=key), put, store.close)]


async def _aiosqlite(directory: Path) -> list[Client]:
    import aiosqlite

    database = await aiosqlite.connect(directory.with_suffix(".db"), isolation_level=None)
    await database.execute("PRAGMA journal_mode = WAL")
    await database.execute("PRAGMA synchronous = NORMAL")
    await database.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")

    async def get(key: str) -> Any:
        async with database.execute("SELECT value FROM entry WHERE key = ?", (key,)) as cursor:
            return await cursor.fetchone()

    async def put(key: str, value: bytes) -> None:
        await database.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (key, value))

    return [Client("aiosqlite, a table", get, put, database.close)]


async def _aiocache(directory: Path) -> list[Client]:
    from aiocache import SimpleMemoryCache

    cache = SimpleMemoryCache()
    return [Client("aiocache, memory of one process", cache.get, cache.set, cache.close)]


FOR_ASYNCIO: Makers[Path] = {
    "cashews": _cashews,
    "py-key-value": _key_value,
    "aiosqlite": _aiosqlite,
    "aiocache": _aiocache,
}


def redis_py(port: int, client_side: bool = False, entries: int = 10_000) -> Any:
    """Return redis-py's client of a server, with a cache of its own or without."""
    import redis

    if not client_side:
        return redis.Redis(port=port)
    from redis.cache import CacheConfig
    from redis.connection import CacheProxyConnection

    # It refuses servers before 7.4 "to maximize compatibility"; the server has what it uses since 6.0.
    CacheProxyConnection.MIN_ALLOWED_VERSION = OLDEST_TRACKING
    return redis.Redis(port=port, protocol=3, cache_config=CacheConfig(max_size=entries))


PLAIN, CLIENT_SIDE = "redis-py", "redis-py, client-side cache"


async def _redis_py(port: int) -> list[Client]:
    plain, cached = redis_py(port), redis_py(port, client_side=True)
    cool = cached.get_cache().flush
    return [
        Client(PLAIN, plain.get, plain.set, plain.close, sync=True, incr=plain.incr),
        Client(CLIENT_SIDE, cached.get, cached.set, cached.close, cool, sync=True, incr=cached.incr),
    ]


async def _cashews_redis(port: int) -> list[Client]:
    from cashews import Cache as Cashews

    cache = Cashews()
    local: Any = cache.setup(f"redis://127.0.0.1:{port}/0", client_side=True)
    await cache.init()
    name, cool = "cashews, client-side cache", local._local_cache.clear
    return [Client(name, cache.get, cache.set, cache.close, cool, incr=cache.incr)]


async def _cachekit_redis(port: int) -> list[Client]:
    from cachekit.backends.redis import RedisBackend

    backend = RedisBackend(f"redis://127.0.0.1:{port}/0")
    return [Client("cachekit, its Redis backend", backend.get, backend.set, sync=True)]


async def _aiocache_redis(port: int) -> list[Client]:
    from aiocache import RedisCache
    from aiocache.serializers import NullSerializer

    cache = RedisCache(endpoint="127.0.0.1", port=port, serializer=NullSerializer(encoding=None))
    return [Client("aiocache, Redis", cache.get, cache.set, cache.close, incr=cache.increment)]


OF_REDIS: Makers[int] = {
    "redis-py": _redis_py,
    "cashews": _cashews_redis,
    "cachekit": _cachekit_redis,
    "aiocache": _aiocache_redis,
}
