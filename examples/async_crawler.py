"""A crawler on asyncio: each page is fetched once, however many tasks ask, and revalidated by its ETag."""

from __future__ import annotations

import asyncio
import tempfile

from diskcache_like import AsyncCache, Computing

PAGES = {"/": b"<a href=/a><a href=/b>", "/a": b"<a href=/b>", "/b": b"nothing"}
requests: list[str] = []


async def fetch(path: str, etag: bytes) -> tuple[int, bytes, bytes]:
    """Stand for an HTTP client: return status, ETag and body."""
    requests.append(path)
    await asyncio.sleep(0)
    current = f"etag of {path}".encode()
    return (304, current, b"") if etag == current else (200, current, PAGES[path])


async def page(cache: AsyncCache, path: str, expire: float) -> bytes:
    """Return a page that is no older than `expire` seconds."""

    async def load(context: Computing) -> bytes:
        status, context.etag, body = await fetch(path, context.etag)
        return context.not_modified() if status == 304 else body

    found: bytes = await cache.get_or_set(("page", path), load, expire=expire, stale_if_error="1d")
    return found


async def main() -> None:
    """Crawl twice."""
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncCache(directory) as cache:
            wanted = [path for path in PAGES for _ in range(10)]
            bodies = await asyncio.gather(*(page(cache, path, 60) for path in wanted))
            print(f"{len(bodies)} pages asked for, {len(requests)} fetched")


if __name__ == "__main__":
    asyncio.run(main())
