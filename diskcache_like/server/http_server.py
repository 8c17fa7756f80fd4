"""The HTTP application behind uvicorn, with the limits on connections that uvicorn does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ..cache import Cache
from ..errors import missing_dependency
from .access import Access, Limits
from .guard import LOOPBACK
from .http import application
from .sockets import GOODBYE, Place

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing_dependency("uvicorn", "serve", "the HTTP server") from error


class HttpConnection(H11Protocol):
    """A connection that ends if no whole request comes, or its client reads nothing, for `patience` seconds or two."""

    def __init__(self, limits: Limits, **parts: Any) -> None:
        super().__init__(**parts)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin with a client, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.clients:
            transport.abort()
        else:
            self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End once what has been asked is answered; an idle client under TLS does not answer that it ends."""
        super().shutdown()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.loop.call_later(GOODBYE, self.transport.abort)

    def _look_again(self) -> None:
        now = self.cycle, self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self._limits.patience, self._look, now)

    def _look(self, before: tuple[Any, int]) -> None:
        cycle: Any = self.cycle  # None before the first request
        is_waiting = cycle is None or cycle.response_complete or self.flow.write_paused
        if is_waiting and before == (cycle, self.transport.get_write_buffer_size()):
            self.transport.abort()
        else:
            self._look_again()


@asynccontextmanager
async def http_server(cache: Cache, access: Access, place: Place, tls: Any, grace: float) -> AsyncIterator[None]:
    """Serve a cache over HTTP during a with-block."""
    is_private = place.address.path is not None or not access.is_open
    app = application(cache, access, None if is_private else {*LOOPBACK, place.address.host})
    config = uvicorn.Config(
        app,
        http=partial(HttpConnection, access.limits),  # type: ignore[arg-type]  # all it does is to call it
        ws="none",
        log_level="error",  # or whoever sends what is no request would fill the log
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=access.limits.clients,
        timeout_graceful_shutdown=int(grace),
    )
    config.load()
    config.ssl = None if place.address.path else tls
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    sockets = [place.listener()]
    await server.startup(sockets)  # these three are `Server.serve` without its signal handlers
    running = asyncio.ensure_future(server.main_loop())
    try:
        yield
    finally:
        app.state.stopping.set()  # or it would wait for streams of events
        server.should_exit = True
        await running
        await server.shutdown(sockets)
