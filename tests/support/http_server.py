"""The HTTP application for tests: asked in this process, or run by uvicorn in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

PATIENCE = 60.0  # seconds after which a test gives up on an answer; no test waits for it to pass


class Asker:
    """Ask an application without a server in between; it is called as `httpx.request` is, with the path of a URL."""

    def __init__(self, app: Any, host: str = "localhost") -> None:
        self.app, self.host = app, host

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self.host}") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())


@contextmanager
def serving(app: Starlette, listener: socket.socket) -> Iterator[None]:
    """Run an application for a with-block; `listener` is closed at its end."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", loop="asyncio"))
    loop = asyncio.new_event_loop()

    def stop() -> None:
        app.state.stopping.set()
        server.should_exit = True

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve([listener]))

    listener.listen()  # from now on connections wait until they are accepted
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join(PATIENCE)
        listener.close()
