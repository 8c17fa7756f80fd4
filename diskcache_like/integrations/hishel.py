"""Storages for hishel 2, for synchronous and for asynchronous clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from .hosts import Given, host, is_directory, opened
from .responses import Head, Responses, Saving

with host("hishel", "hishel"):
    from hishel import AsyncBaseStorage, BaseStorage, Entry, Headers, Request, Response

PIECE = 1 << 17  # bytes


class _Storage:
    _limits: Any  # hishel's: when a response expires at the latest, and how long it may be idle

    def __init__(self, cache: Given, **options: Any) -> None:
        super().__init__(**options)
        self._owns = is_directory(cache)
        self._responses = Responses(opened(cache), options.get("max_stream_size"))

    def _begin(self, id: uuid.UUID, request: Request, response: Response, key: str, ttl: Any, tti: Any) -> Saving:
        asked = (request.method, request.url, _plain(request.headers))
        told = (*asked, response.status_code, _plain(response.headers))
        deadline, idle = self._limits(ttl, tti, time.time())
        return Saving(self._responses, id.bytes, key, Head(deadline, idle, told))

    def _found(self, key: str) -> list[Entry]:
        return self._responses.find(key, self._entry)

    def _entry(self, id: bytes, method: str, url: str, asked: Any, status: int, answered: Any) -> Entry:
        body = self._read(id)  # type: ignore[attr-defined]
        return Entry(
            uuid.UUID(bytes=id), Request(method, url, Headers(asked)), Response(status, Headers(answered), body)
        )

    def _update(self, id: uuid.UUID, headers: Headers) -> None:
        self._responses.change(id.bytes, lambda told: (*told[:-1], _plain(headers)))

    def _remove(self, id: uuid.UUID) -> None:
        self._responses.remove(id.bytes)

    def _close(self) -> None:
        if self._owns:
            self._responses.cache.close()


class HishelStorage(_Storage, BaseStorage):
    """A storage for synchronous clients and transports.

    `cache`: a directory, or a Cache, FanoutCache or namespace, or the `aio` of one, for this storage alone; `options`:
    hishel's `default_ttl`, `default_tti` and `max_stream_size`. How much is kept is up to the cache's `size_limit`.
    """

    def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: Any = None, tti: Any = None
    ) -> Entry:
        """Return an entry whose stream saves the body as it is read."""
        id = uuid.uuid4()
        saving = self._begin(id, request, response, key, ttl, tti)
        return Entry(id, request, replace(response, stream=self._saved(response.stream or (), saving)))

    def _saved(self, stream: Any, saving: Saving) -> Iterator[bytes]:
        with contextlib.closing(saving):
            for piece in stream:
                saving.write(piece)
                yield piece
            saving.finish()

    def _read(self, id: bytes) -> Iterator[bytes]:
        with self._responses.open(id) as file:
            yield from iter(partial(file.read, PIECE), b"")

    def get_entries(self, key: str) -> list[Entry]:
        """Return the complete responses under `key`."""
        return self._found(key)

    def update_headers(self, id: uuid.UUID, headers: Headers) -> None:
        """Replace the headers of a response."""
        self._update(id, headers)

    def remove_entry(self, id: uuid.UUID) -> None:
        """Remove a response; whoever is reading it goes on."""
        self._remove(id)

    def close(self) -> None:
        """Close the files of a cache that it opened; the next operation opens them again."""
        self._close()


class AsyncHishelStorage(_Storage, AsyncBaseStorage):
    """A storage for asynchronous clients on asyncio, which waits for the cache in threads; see `HishelStorage`."""

    async def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: Any = None, tti: Any = None
    ) -> Entry:
        """Return an entry whose stream saves the body as it is read."""
        id = uuid.uuid4()
        saving = await asyncio.to_thread(self._begin, id, request, response, key, ttl, tti)
        return Entry(id, request, replace(response, stream=self._saved(response.stream, saving)))

    async def _saved(self, stream: Any, saving: Saving) -> AsyncIterator[bytes]:
        try:
            if stream is not None:
                async for piece in stream:
                    await asyncio.to_thread(saving.write, piece)
                    yield piece
            await asyncio.to_thread(saving.finish)
        finally:
            await asyncio.to_thread(saving.close)

    async def _read(self, id: bytes) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(self._responses.open, id) as file:
            while piece := await asyncio.to_thread(file.read, PIECE):
                yield piece

    async def get_entries(self, key: str) -> list[Entry]:
        """Return the complete responses under `key`."""
        return await asyncio.to_thread(self._found, key)

    async def update_headers(self, id: uuid.UUID, headers: Headers) -> None:
        """Replace the headers of a response."""
        await asyncio.to_thread(self._update, id, headers)

    async def remove_entry(self, id: uuid.UUID) -> None:
        """Remove a response; whoever is reading it goes on."""
        await asyncio.to_thread(self._remove, id)

    async def close(self) -> None:
        """Close the files of a cache that it opened; the next operation opens them again."""
        await asyncio.to_thread(self._close)


def _plain(headers: Headers) -> dict[str, list[str]]:
    return {name: list(headers.get_list(name) or ()) for name in headers}
