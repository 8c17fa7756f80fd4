"""The guard before the HTTP application: who is let in, what browsers can be made to send, and how every error ends.

A page of anybody's can make a browser send requests to a server on its machine. Such a page is told apart by the name
under which it reached the server (`Host`, after its DNS was changed to say loopback) and by where it came from
(`Origin`). What it may send without asking first is no POST of JSON, no PUT and no DELETE.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import errors
from ..system.signals import reraise_signal
from .access import Access
from .values import NotPlain

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN: Final = ("/", "/health")  # for which no password is needed: they tell nothing of what is in the cache

# Headers of every response.
_SAFE: Final = (b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")
_CLOSE: Final = {"Connection": "close"}
_PORT: Final = re.compile(r":\d*$")
# The status and what is told of errors that are foreseen.
_FORESEEN: Final[dict[type[Any], tuple[int, str]]] = {
    **dict.fromkeys((errors.KeyEncodeError, errors.KeyTooLarge, errors.ValueEncodeError), (400, "{}")),
    **dict.fromkeys((errors.TagError, errors.ExpiryError), (400, "{}")),
    NotPlain: (406, "the value is a Python object ({}), which has no form that other programs read"),
    errors.MissingDependency: (501, "{}"),
    errors.Timeout: (503, "others hold the write lock; try again"),
    errors.ValueTooLarge: (507, "{}"),
    errors.DiskFull: (507, "the disk of the cache is full"),  # its own text names a path
}
_UNFORESEEN: Final = 500, "internal error; the server's log says more"
log: Final = logging.getLogger(__package__)


def _answer(error: Exception) -> JSONResponse:
    """Return what a client is told of an error: nothing of one that is not foreseen, which is logged."""
    if not isinstance(error, HTTPException):
        status, told = next((_FORESEEN[kind] for kind in type(error).__mro__ if kind in _FORESEEN), _UNFORESEEN)
        if status == 500:
            log.error("a request failed", exc_info=error)
        error = HTTPException(status, told.format(error), {"Retry-After": "1"} if status == 503 else None)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


class Guard:
    """Let an ASGI application see only the requests that it may answer, and answer the others and its errors."""

    def __init__(self, app: ASGIApp, access: Access, hosts: Collection[str] | None) -> None:
        self._app, self._access = app, access
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def safely(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun, message["headers"] = True, [*message["headers"], *_SAFE]
            await send(message)

        # The path as it was sent, since an encoded slash or line feed is part of a key. HEAD is GET to the application:
        # a server sends no body in answer to it.
        sent = scope.get("raw_path") or quote(scope["path"]).encode()
        is_head = scope["method"] == "HEAD"
        asked = {**scope, "path": sent.decode("latin-1"), "method": "GET" if is_head else scope["method"]}
        asked["is_head"] = is_head
        try:
            asked["is_admitted"] = self._admitted(asked)
            await self._app(asked, self._limited(receive), safely)
        except ClientDisconnect:
            pass
        except Exception as error:
            reraise_signal(error)
            if is_begun:
                raise
            await _answer(error)(asked, receive, safely)

    def _admitted(self, scope: Scope) -> bool:
        """Tell whether the password came with a request, or there is none; raise for one that is not to be answered."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _PORT.sub("", host) not in self._hosts:
            raise HTTPException(421, f"this server does not answer for the host {host!r}")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise HTTPException(403, "pages of another origin may not use this server")
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        is_admitted = self._access.is_open or (scheme.lower() == b"bearer" and self._access.admits(given.strip()))
        if not is_admitted and scope["path"] not in OPEN:
            wanted = "give the password as 'Authorization: Bearer PASSWORD'"
            raise HTTPException(401, wanted, {"WWW-Authenticate": 'Bearer realm="cache"'})
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            raise HTTPException(415, "the body must be JSON, with 'Content-Type: application/json'")
        self._fits(int(headers.get(b"content-length", 0)))
        return is_admitted

    def _fits(self, size: int) -> None:
        if size > self._access.limits.value:
            raise HTTPException(413, f"the body has more than {self._access.limits.value:,} bytes", _CLOSE)

    def _limited(self, receive: Receive) -> Receive:
        """Return `receive`, which raises for a body that is too long, or of which nothing more comes."""
        size, is_whole = 0, False

        async def limited() -> Message:
            nonlocal size, is_whole
            try:
                async with asyncio.timeout(None if is_whole else self._access.limits.patience):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not come", _CLOSE) from None
            size, is_whole = size + len(message.get("body", b"")), not message.get("more_body", False)
            self._fits(size)
            return message

        return limited
