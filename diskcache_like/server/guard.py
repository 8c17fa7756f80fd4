"""The guard before the HTTP application: who is let in, what browsers can be made to send, and how every error ends.

A page of anybody's can make a browser send requests to a server on its machine. Such a page is told apart by the name
under which it reached the server (`Host`, after its DNS was changed to say loopback) and by where it came from
(`Origin`). What it may send without asking first is no POST of JSON, no PUT and no DELETE.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any, Final
from urllib.parse import quote

from .. import errors
from ..system.signals import reraise_signal
from .access import Access
from .values import NotPlain

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN: Final = ("/", "/health")  # for which no password is needed: they tell nothing of what is in the cache

# Headers of every response.
_SAFE: Final = (b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")
# What a request asks for that cannot be.
_WRONG: Final = errors.KeyEncodeError, errors.KeyTooLarge, errors.TagError, errors.ExpiryError, errors.ValueEncodeError
_PORT: Final = re.compile(r":\d*$")
_log: Final = logging.getLogger(__package__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Refused(Exception):
    """A request that gets an error: its status, what is wrong, and headers."""

    def __init__(self, status: int, told: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(told)
        self.status, self.told, self.headers = status, told, headers or {}


def _refusal(error: Exception) -> Refused:
    """Return what a client is told of an error: nothing of one that nobody has foreseen, which is logged."""
    match error:
        case Refused():
            return error
        case NotPlain():
            return Refused(406, f"the value is a Python object ({error}), which has no form that other programs read")
        case errors.Timeout():
            return Refused(503, "others hold the write lock; try again", {"Retry-After": "1"})
        case errors.DiskFull():
            return Refused(507, "the disk of the cache is full")
        case errors.ValueTooLarge():
            return Refused(507, str(error))
        case errors.MissingDependency():
            return Refused(501, str(error))
        case _ if isinstance(error, _WRONG):
            return Refused(400, str(error))
    _log.error("a request failed", exc_info=error)
    kind = "the cache cannot be used" if isinstance(error, errors.CacheError) else "internal error"
    return Refused(500, f"{kind}; the server's log says more")


class Guard:
    """Let an ASGI application see only the requests that it may answer, and answer the others and its errors."""

    def __init__(self, app: Callable[..., Awaitable[None]], access: Access, hosts: Collection[str] | None) -> None:
        self._app, self._access = app, access
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def safely(message: Any) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun, message["headers"] = True, [*message["headers"], *_SAFE]
            await send(message)

        try:
            # The path as it was sent, since an encoded slash or line feed is part of a key.
            sent = scope.get("raw_path") or quote(scope["path"]).encode()
            asked = {**scope, "path": sent.decode("latin-1")}
            asked["is_admitted"] = self._admitted(asked)
            await self._app(asked, receive, safely)
        except Exception as error:
            reraise_signal(error)
            if is_begun:
                raise
            await _send_error(_refusal(error), safely)

    def _admitted(self, scope: Scope) -> bool:
        """Tell whether the password came with a request, or there is none; raise Refused for one not to be answered."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _PORT.sub("", host) not in self._hosts:
            raise Refused(421, f"this server does not answer for the host {host!r}")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise Refused(403, "pages of another origin may not use this server")
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        is_admitted = self._access.is_open or (scheme.lower() == b"bearer" and self._access.admits(given.strip()))
        if not is_admitted and scope["path"] not in OPEN:
            wanted = "give the password as 'Authorization: Bearer PASSWORD'"
            raise Refused(401, wanted, {"WWW-Authenticate": 'Bearer realm="cache"'})
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            raise Refused(415, "the body must be JSON, with 'Content-Type: application/json'")
        return is_admitted


async def _send_error(error: Refused, send: Send) -> None:
    body = json.dumps({"error": error.told}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    packed = [(name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": packed})
    await send({"type": "http.response.body", "body": body})
