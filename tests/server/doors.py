"""Doors for tests: a cache behind a socket, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from diskcache_like import Cache
from diskcache_like.server.access import Access
from diskcache_like.server.connection import RespDoor

PATIENCE = 60.0  # seconds after which a test gives up; no test waits for it to pass

T = TypeVar("T")


class OpenDoor:
    """A RESP door that listens on a Unix socket and on a port."""

    def __init__(self, cache: Cache, access: Access, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.cache = cache
        self.access = access
        self.path = path
        self.loop = loop

    async def begin(self) -> None:
        """Listen."""
        self.door = RespDoor(self.cache, self.access)
        self.listeners: list[asyncio.Server] = [
            await self.loop.create_unix_server(self.door.protocol, str(self.path)),
            await self.loop.create_server(self.door.protocol, "127.0.0.1", 0),
        ]
        self.port: int = self.listeners[1].sockets[0].getsockname()[1]

    async def end(self, grace: float = PATIENCE) -> None:
        """Close the sockets, then the door."""
        for listener in self.listeners:
            listener.close()
        await self.door.stop(grace)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the door's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the door's loop."""

        async def call() -> T:
            return function()

        return self.run(call())

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of it."""
        usual = {"protocol": 3, "socket_timeout": PATIENCE, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis(unix_socket_path=str(self.path), **{**usual, **options})

    def connect(self) -> socket.socket:
        """Return a plain socket."""
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(PATIENCE)
        plain.connect(str(self.path))
        return plain


@contextmanager
def open_door(
    cache: Cache,
    directory: Path,
    access: Access | None = None,
    loop_of: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Iterator[OpenDoor]:
    """Serve a cache for a with-block."""
    opened = OpenDoor(cache, access or Access(), directory / "door", loop_of())
    thread = threading.Thread(target=opened.loop.run_forever)
    thread.start()
    try:
        opened.run(opened.begin())
        try:
            yield opened
        finally:
            opened.run(opened.end())
    finally:
        opened.loop.call_soon_threadsafe(opened.loop.stop)
        thread.join(PATIENCE)
        opened.loop.close()


def exchange(plain: socket.socket, request: bytes, size: int) -> bytes:
    """Send something, and return so many bytes of the answer, or fewer if the connection ends."""
    plain.sendall(request)
    return received(plain, size)


def received(plain: socket.socket, size: int) -> bytes:
    """Return so many bytes, or fewer if the connection ends."""
    found = b""
    while len(found) < size:
        try:
            piece = plain.recv(min(size - len(found), 1 << 16))
        except ConnectionResetError:
            break
        if not piece:
            break
        found += piece
    return found


def until_closed(plain: socket.socket) -> bytes:
    """Return everything until the connection ends."""
    return received(plain, 1 << 40)
