"""The HTTP door: what the operations of the table in `routes` do, as an application for an ASGI server.

A key is the rest of a path, slashes included. Verbs are POST, so a key may end like one: `GET /keys/a/incr` reads the
key 'a/incr', and `POST /keys/a/incr` counts at 'a'.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from .. import __version__
from ..cache import ANY_VERSION, Cache, Entry
from ..encoding.json import Json
from ..entries.loading import ENOVAL
from ..entries.metrics import Metrics
from ..errors import DecodeError, missing_dependency
from ..operations import inspection
from ..operations.tagging import Selection
from ..system.signals import reraise_signal
from .access import Access
from .guard import Guard, Refused
from .routes import OPERATIONS, Operation, document, fields_of
from .values import JSON, NotPlain, content_of, key_of, name_of

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise missing_dependency("starlette", "serve", "the HTTP server") from error

INTERVAL: Final = 1.0  # seconds between two events
READ: Final = 100  # entries that `health` reads
TAGS: Final = "Cache-Tag"  # as content delivery networks call it: percent-encoded names between commas
_UTF_8: Final = ("", "charset=utf-8", 'charset="utf-8')
_log: Final = logging.getLogger(__package__)

Handler = Callable[..., Awaitable[Response]]
Key = str | bytes


def application(cache: Cache, access: Access, hosts: Collection[str] | None = None) -> Starlette:
    """Return the application for an open cache.

    `hosts`: the names, without ports, by which it may be reached, such as `guard.LOOPBACK`; None for any, which is safe
    on a Unix socket or with a password. Set `state.stopping` of it, an asyncio.Event, to end the streams of events.
    """
    door = Door(cache, access)
    paths: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = door.handler(operation)
    routes = [
        Route(path.replace("{key}", "{key:path}"), _Resource(handlers), methods=list(handlers))
        for path, handlers in paths.items()
    ]
    guard = Middleware(Guard, access=access, hosts=hosts)
    made = Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _refuse})
    made.router.redirect_slashes = False  # a slash at the end is part of a key
    made.state.stopping = door.stopping
    return made


async def _refuse(_: Request, error: Any) -> Response:
    raise Refused(error.status_code, error.detail, error.headers)


class _Resource:
    """A path with its methods, as an ASGI application, which takes less time than a function in its place."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = {"HEAD": handlers["GET"], **handlers} if "GET" in handlers else handlers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(ClientDisconnect):
            response = await self._handlers[scope["method"]](Request(scope, receive))
            await response(scope, receive, send)


class Door:
    """The operations on one cache."""

    def __init__(self, cache: Cache, access: Access) -> None:
        self._cache, self._cached, self._limits = cache, cache.aio, access.limits
        self._call = cache._handle.threads.call
        self._looking, self._looked, self._found = asyncio.Lock(), float("-inf"), list[dict[str, Any]]()
        self._page, self._policy = _page()
        self.stopping = asyncio.Event()

    def handler(self, operation: Operation) -> Handler:
        """Return the function of an operation, which gets the fields of its body as well."""
        function: Handler = getattr(self, operation.name)
        known, most = set(operation.query), self._limits.arguments

        async def handle(request: Request) -> Response:
            if request.scope["query_string"] and not known.issuperset(request.query_params):
                raise Refused(400, f"expected no other parameters than {', '.join(operation.query) or 'none'}")
            if operation.body is None:
                return await function(request)
            fields = fields_of(operation, _plain(await self._body(request)))
            if any(isinstance(field, list) and len(field) > most for field in fields):
                raise Refused(413, f"a list has more than {most:,} members")
            return await function(request, *fields)

        return handle

    async def _body(self, request: Request) -> bytes:
        """Return the body; one that is too long is refused before it is read, or as soon as it is."""
        limits, parts, size = self._limits, list[bytes](), int(request.headers.get("content-length", 0))
        too_long = Refused(413, f"the body has more than {limits.value:,} bytes", {"Connection": "close"})
        if size > limits.value:
            raise too_long
        size, clock = 0, asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(limits.patience) as deadline:
                async for part in request.stream():
                    size += len(part)
                    if size > limits.value:
                        raise too_long
                    parts.append(part)
                    deadline.reschedule(clock() + limits.patience)
        except TimeoutError:
            raise Refused(408, "the body did not come", {"Connection": "close"}) from None
        return b"".join(parts)

    # -- one key ------------------------------------------------------------------------------------------------------

    async def read(self, request: Request) -> Response:
        """Return the value of a key: bytes, text or JSON."""
        key, entry = _key(request), None
        if await self._cached.get(key, ENOVAL, copy=False) is not ENOVAL:  # which counts and times it, as any read
            entry = await self._cached.get_entry(key)
        if entry is None:
            raise _missing()
        asked, headers = request.headers, self._headers(entry)
        if "if-match" in asked and not _names(asked["if-match"], entry.version):
            raise _changed()
        if "if-none-match" in asked and _names(asked["if-none-match"], entry.version, weakly=True):
            return Response(status_code=304, headers=headers)
        content = content_of(entry.value)
        return Response(content.data, media_type=content.media_type, headers=headers)

    def _headers(self, entry: Entry) -> dict[str, str]:
        """Return what is told of an entry.

        A client may keep a value until it expires, as its writer meant it. One that does not expire is to be asked for
        each time, with If-None-Match: nobody has said how long it holds.
        """
        expire, names = entry.expire_time, [name for name in map(name_of, entry.tags) if name is not None]
        age = "no-cache" if expire is None else f"max-age={max(0, int(expire - self._cache._clock()))}"
        headers = {"ETag": f'"{entry.version}"', "Cache-Control": f"private, {age}"}
        return {**headers, TAGS: ",".join(map(quote, names))} if names else headers

    async def store(self, request: Request) -> Response:
        """Store a value: JSON and text as such, anything else as bytes."""
        key, value, asked = _key(request), _value(request.headers, await self._body(request)), request.query_params
        try:
            expire = float(asked["expire"]) if "expire" in asked else None
        except ValueError:
            raise Refused(400, "'expire' must be seconds") from None
        named = filter(None, request.headers.get(TAGS, "").replace(" ", "").split(","))
        tags = [*asked.getlist("tag"), *(key_of(unquote_to_bytes(name)) for name in named)]
        condition = await self._condition(request, key)
        if not await self._cached.set(key, value, expire, tags=tags, if_version=condition):
            if condition in (ANY_VERSION, await self._version(key)):
                raise Refused(507, "the value can never fit into the cache")
            raise _changed()
        return Response(status_code=201 if condition is None else 204)

    async def delete(self, request: Request) -> Response:
        """Remove a key."""
        key = _key(request)
        condition = await self._condition(request, key)
        if condition is not None and await self._cached.delete(key, if_version=condition):
            return Response(status_code=204)
        raise _missing() if condition in (None, ANY_VERSION) else _changed()

    async def _version(self, key: Key) -> int | None:
        entry = await self._cached.get_entry(key)
        return None if entry is None else entry.version

    async def _condition(self, request: Request, key: Key) -> Any:
        """Return the version at which a write is wanted, None for no entry; raise Refused if it cannot be met now."""
        match, unless = request.headers.get("if-match"), request.headers.get("if-none-match")
        if match is None and unless is None:
            return ANY_VERSION
        version = await self._version(key)
        if (match is not None and not _names(match, version)) or (unless is not None and _names(unless, version, True)):
            raise _changed()
        return version

    async def incr(self, request: Request, delta: float, default: float | None) -> Response:
        """Add to a number, and return the sum."""
        try:
            return _json({"value": await self._cached.incr(_key(request), delta, default)})  # type: ignore[arg-type]
        except KeyError:
            raise _missing() from None
        except (TypeError, OverflowError) as error:
            raise Refused(409, str(error)) from None

    async def touch(self, request: Request, expire: float | None) -> Response:
        """Give a key another expiry."""
        if not await self._cached.touch(_key(request), expire):
            raise _missing()
        return Response(status_code=204)

    # -- several keys -------------------------------------------------------------------------------------------------

    async def get_many(self, _: Request, keys: list[Any]) -> Response:
        """Return the values of those keys that are there."""
        found = await self._cached.get_many(list(map(_asked_key, keys)))
        return _json({"items": [_told_item(*item) for item in found.items()]})

    async def set_many(self, _: Request, items: list[Any], expire: float | None, tags: list[str] | None) -> Response:
        """Store values, and return how many there was room for."""
        return _json({"stored": await self._cached.set_many(list(map(_asked_item, items)), expire, tags=tags)})

    async def delete_many(self, _: Request, keys: list[Any]) -> Response:
        """Remove keys, and return how many there were."""
        return _json({"removed": await self._cached.delete_many(list(map(_asked_key, keys)))})

    async def find(self, request: Request) -> Response:
        """Return keys, those with tags, a prefix or a pattern, page by page."""
        asked = request.query_params
        digits = asked.get("limit", "100")
        limit = int(digits) if re.fullmatch("[0-9]{1,9}", digits) else 0
        if not 1 <= limit <= self._limits.arguments:
            raise Refused(400, f"'limit' must be from 1 to {self._limits.arguments:,}")
        after = key_of(unquote_to_bytes(asked["after"])) if "after" in asked else ENOVAL
        match: Any = asked.get("match", "any")
        wanted = Selection.of(asked.getlist("tag") or None, match, asked.get("prefix"), asked.get("glob"))

        def page() -> list[bytes]:
            names = (name_of(found.key) for found in self._cache._select(wanted, after))
            return list(itertools.islice((name for name in names if name is not None), limit))

        names = await self._call(page, False)
        follows = quote(names[-1]) if len(names) == limit else None
        return _json({"keys": [_told_key(key_of(name)) for name in names], "next": follows})

    async def invalidate(self, _: Request, tags: list[str], match: Any) -> Response:
        """Remove all keys with any or all of some tags, and return how many there were."""
        return _json({"removed": await self._cached.evict(tags=tags, match=match)})

    async def tags(self, _: Request) -> Response:
        """Return each tag with the number and the bytes of its entries."""
        found = [one._asdict() for one in await self._cached.tags() if isinstance(one.name, str)]
        return _json({"tags": found})

    # -- the whole cache ----------------------------------------------------------------------------------------------

    async def stats(self, _: Request) -> Response:
        """Return what all processes of the machine have counted."""
        return _json(inspection.activity(await self._cached.metrics()))

    async def metrics(self, _: Request) -> Response:
        """Return the same for Prometheus."""
        from ..integrations.prometheus import exposition  # late: few need it

        text, media_type = await self._call(partial(exposition, self._cache), False)
        return Response(text, media_type=media_type)

    async def events(self, _: Request) -> Response:
        """Return a stream of server-sent events: each second, what was counted since the last one."""
        events, headers = self._events(await self._cached.metrics()), {"Cache-Control": "no-store"}
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def _events(self, before: Metrics) -> AsyncIterator[str]:
        last, now, found = time.monotonic(), time.monotonic(), before
        while True:
            told = {"seconds": now - last, **inspection.activity(found.since(before))}
            yield f"data: {json.dumps(told, allow_nan=False)}\n\n"
            last, before = now, found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), INTERVAL)
                return
            now, found = time.monotonic(), await self._cached.metrics()

    async def health(self, request: Request) -> Response:
        """Tell whether the cache can be read and written; what was found, only with the password."""
        async with self._looking:  # once a second, however many ask: it takes the write lock, and needs no password
            if time.monotonic() - self._looked >= INTERVAL:
                self._found = await self._call(self._look)
                self._looked = time.monotonic()
        is_well = all(one["ok"] for one in self._found)
        told = {"looks": self._found} if request.scope["is_admitted"] else {}
        return _json({"ok": is_well, **told}, 200 if is_well else 503)

    def _look(self) -> list[dict[str, Any]]:
        found = [("write lock", False, "held by others")]
        try:
            if inspection.is_writable(self._cache, inspection.PATIENCE):
                found = list(inspection.looks_at(self._cache, READ))
        except Exception as error:
            reraise_signal(error)
            _log.error("the cache cannot be used", exc_info=error)
            found = [("cache", False, "it cannot be used; the server's log says more")]
        return [{"look": look, "ok": ok, "found": told} for look, ok, told in found]

    async def describe(self, _: Request) -> Response:
        """Return this description of all operations."""
        summaries = {each.name: (getattr(self, each.name).__doc__ or "").strip() for each in OPERATIONS}
        return _json(document(summaries, __version__))

    async def page(self, _: Request) -> Response:
        """Return a page that shows what the cache does; the page asks for the password."""
        headers = {"Content-Security-Policy": self._policy, "X-Frame-Options": "DENY", "Cache-Control": "no-cache"}
        return Response(self._page, media_type="text/html", headers=headers)


def _page() -> tuple[str, str]:
    """Return the page, and the policy that lets it run its own script and style, and reach its own server."""
    with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as file:
        page = file.read()
    parts = ["default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"]
    for kind in ("script", "style"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        parts.append(f"{kind}-src 'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'")
    return page, "; ".join((*parts, "frame-ancestors 'none'"))


def _missing() -> Refused:
    return Refused(404, "there is no such key")


def _changed() -> Refused:
    return Refused(412, "the entry is not the one that was asked for")


# -- keys and values as JSON and in headers -------------------------------------------------------------------------


def _json(found: Any, status: int = 200) -> Response:
    return Response(json.dumps(found, allow_nan=False, separators=(",", ":")), status, media_type=JSON)


def _plain(body: bytes) -> Any:
    try:
        return Json().decode(body)
    except DecodeError as error:
        raise Refused(400, f"the body is not JSON: {error.__cause__}") from None


def _value(headers: Any, body: bytes) -> Any:
    """Return the value that a body means by its type."""
    kind, _, charset = headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if "content-encoding" in headers or (kind == "text/plain" and charset.strip(' "') not in _UTF_8):
        raise Refused(415, "the body must not be compressed, and text must be UTF-8")
    if kind == JSON:
        return _plain(body)
    try:
        return body.decode() if kind == "text/plain" else body
    except UnicodeDecodeError:
        raise Refused(400, "the text is not UTF-8") from None


def _key(request: Request) -> Key:
    return key_of(unquote_to_bytes(request.path_params["key"]))


def _names(header: str, version: int | None, weakly: bool = False) -> bool:
    """Tell whether a header names the version of an entry; None is that of no entry."""
    named = re.findall(r'(?:W/)?"[^"]*"', header)
    tags = [f'"{version}"', f'W/"{version}"'] if weakly else [f'"{version}"']
    return version is not None and (header.strip() == "*" or any(tag in named for tag in tags))


def _told_key(key: Key) -> Any:
    return key if isinstance(key, str) else {"base64": base64.b64encode(key).decode()}


def _asked_key(key: Any) -> Key:
    if isinstance(key, str):
        return key
    if key.keys() != {"base64"}:
        raise Refused(400, 'a key must be text, or {"base64": "…"}')
    return key_of(_bytes(key["base64"]))


def _told_item(key: Key, value: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"key": _told_key(key)}
    try:
        content_of(value)
    except NotPlain as error:
        return {**told, "error": f"the value is a Python object ({error})"}
    how = {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"value": value}
    return {**told, **how}


def _asked_item(item: dict[str, Any]) -> tuple[Key, Any]:
    if item.keys() not in ({"key", "value"}, {"key", "base64"}) or not isinstance(item["key"], str | dict):
        raise Refused(400, 'an item must have a "key", and a "value" or "base64"')
    return _asked_key(item["key"]), _bytes(item["base64"]) if "base64" in item else item["value"]


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise Refused(400, '"base64" must be text in base64') from None
