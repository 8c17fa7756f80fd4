"""The HTTP door: the operations on one cache, as an application for an ASGI server.

A key is the rest of a path, slashes included. Verbs are POST, so a key may end like one: `GET /keys/a/incr` reads the
key 'a/incr', and `POST /keys/a/incr` counts at 'a'.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Collection
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, unquote_to_bytes

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import from_json
from starlette.middleware import Middleware
from starlette.routing import Match, Route

from .. import __version__
from ..cache import ANY_VERSION, Cache
from ..entries.loading import ENOVAL
from ..operations import inspection
from ..operations.tagging import Selection
from ..system.signals import reraise_signal
from .access import Access, Limits
from .guard import Guard, log
from .values import BYTES, JSON, NotPlain, content_of, key_of, name_of

INTERVAL: Final = 1.0  # seconds between two events
READ: Final = 100  # entries that `health` reads
MOST: Final = Limits().arguments  # members of a list
TOLD: Final = 10  # faults of one request
TAGS: Final = "Cache-Tag"  # as content delivery networks call it: percent-encoded names between commas
_UTF_8: Final = ("", "charset=utf-8", 'charset="utf-8')
_VALUE: Final[dict[str, Any]] = {"content": {kind: {} for kind in (BYTES, "text/plain", JSON)}}
_missing: Final = partial(HTTPException, 404, "there is no such key")
_changed: Final = partial(HTTPException, 412, "the entry is not the one that was asked for")


def _key(sent: str) -> Any:
    return key_of(unquote_to_bytes(sent))


def _plain(value: Any) -> Any:
    """Return what came as JSON; raise NotPlain if it could not be sent back, as a number that is not finite."""
    content_of(value)
    return value


KeyInPath = Annotated[str, AfterValidator(_key)]  # or bytes, once it is checked
Base64 = Annotated[str, AfterValidator(partial(b64decode, validate=True))]  # bytes, once it is checked
Names = Annotated[list[str], Field(max_length=MOST)]
Wanted = Literal["any", "all"]


class Strict(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    """What is asked in JSON: nothing unknown, nothing converted, no number that is not finite."""


class Name(Strict):
    """A key that is not UTF-8."""

    base64: Base64


Key = Annotated[str | Name, AfterValidator(lambda key: key_of(key.encode() if isinstance(key, str) else key.base64))]


class Keys(Strict):
    """Several keys."""

    keys: list[Key] = Field(max_length=MOST)


class DataItem(Strict):
    """A text, or other plain data."""

    key: Key
    value: Annotated[Any, AfterValidator(_plain)]


class BytesItem(Strict):
    """Bytes."""

    key: Key
    base64: Base64


class Items(Strict):
    """What to store."""

    items: list[DataItem | BytesItem] = Field(max_length=MOST)
    expire: float | None = None
    tags: Names | None = None


class Sum(Strict):
    """What to add, and what a missing key counts as; with null it is an error."""

    delta: int | float = 1
    default: int | float | None = 0


class Expiry(Strict):
    """Seconds from now; null for never."""

    expire: float | None


class Tags(Strict):
    """Whose entries to remove."""

    tags: Names
    match: Wanted = "any"


class Kept(BaseModel, extra="forbid"):
    """How to store a value."""

    expire: float | None = None
    tag: list[str] = []


class Filter(BaseModel, extra="forbid"):
    """Which keys to list, and the "next" of the page before."""

    tag: list[str] = []
    match: Wanted = "any"
    prefix: str | None = None
    glob: str | None = None
    after: str | None = None
    limit: int = Field(100, ge=1, le=MOST)


def application(cache: Cache, access: Access, hosts: Collection[str] | None = None) -> FastAPI:
    """Return the application for an open cache.

    `hosts`: the names, without ports, by which it may be reached, such as `guard.LOOPBACK`; None for any, which is safe
    on a Unix socket or with a password. Set `state.stopping` of it, an asyncio.Event, to end the streams of events.
    """
    door = Door(cache)
    app = FastAPI(
        title="diskcache_like",
        version=__version__,
        docs_url=None,  # they would run scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a slash at the end is part of a key
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(HTTPBearer(auto_error=False))],  # for the description: the guard asks for the password
        routes=[Route("/keys/{key:path}", door.read_at_once)],
        middleware=[Middleware(Guard, access=access, hosts=hosts)],
        exception_handlers={RequestValidationError: _unfit, 405: _unknown_method},
    )
    app.state.stopping = door.stopping
    operations: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("GET", "/keys/{key:path}", door.read, {"response_class": Response, "responses": {200: _VALUE}}),
        ("PUT", "/keys/{key:path}", door.store, {"status_code": 204, "openapi_extra": {"requestBody": _VALUE}}),
        ("DELETE", "/keys/{key:path}", door.delete, {"status_code": 204}),
        ("GET", "/keys", door.find, {}),
        ("POST", "/keys/bulk/get", door.get_many, {}),
        ("POST", "/keys/bulk/set", door.set_many, {}),
        ("POST", "/keys/bulk/delete", door.delete_many, {}),
        ("POST", "/keys/{key:path}/incr", door.incr, {}),
        ("POST", "/keys/{key:path}/touch", door.touch, {"status_code": 204}),
        ("POST", "/invalidate", door.invalidate, {}),
        ("GET", "/tags", door.tags, {}),
        ("GET", "/stats", door.stats, {}),
        ("GET", "/metrics", door.metrics, {"response_class": PlainTextResponse}),
        ("GET", "/events", door.events, {"response_class": StreamingResponse}),
        ("GET", "/health", door.health, {}),
        ("GET", "/", door.page, {"response_class": HTMLResponse}),
    ]
    for method, path, operation, options in operations:
        app.add_api_route(path, operation, methods=[method], **options)
    return app


async def _unfit(_: Request, error: Any) -> Response:
    """Tell what is wrong with a request, but not what was sent: that may be long, and need not be JSON."""
    told = [{name: one[name] for name in ("type", "loc", "msg")} for one in error.errors()[:TOLD]]
    return JSONResponse({"detail": told}, 422)


async def _unknown_method(request: Request, error: Any) -> Response:
    """Name the methods of all routes of the path; FastAPI names those of the first one."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    methods = ", ".join({method for route in routes for method in route.methods})
    return JSONResponse({"detail": error.detail}, 405, {"Allow": methods})


class Door:
    """The operations on one cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._cached, self._call = cache, cache.aio, cache._handle.threads.call
        self._looking, self._looked, self._found = asyncio.Lock(), float("-inf"), list[dict[str, Any]]()
        self._page, self._policy = _page()
        self.stopping = asyncio.Event()

    # -- one key ------------------------------------------------------------------------------------------------------

    async def read_at_once(self, request: Request) -> Response:
        """Read without FastAPI's steps, which take longer than the read."""
        return await self.read(_key(request.path_params["key"]), request)

    async def read(self, key: KeyInPath, request: Request) -> Response:
        """Return the value of a key: bytes, text or JSON."""
        entry, asked = None, request.headers
        if await self._cached.get(key, ENOVAL, copy=False) is not ENOVAL:  # which counts and times it, as any read
            entry = await self._cached.get_entry(key)
        if entry is None:
            raise _missing()
        if not _names(asked.get("if-match", "*"), entry.version):
            raise _changed()
        # A client may keep a value until it expires, as its writer meant it. One that does not expire is to be asked
        # for each time, with If-None-Match: nobody has said how long it holds.
        left = None if entry.expire_time is None else max(0, int(entry.expire_time - self._cache._clock()))
        age = "no-cache" if left is None else f"max-age={left}"
        headers = {"ETag": f'"{entry.version}"', "Cache-Control": f"private, {age}"}
        if tags := [name for name in map(name_of, entry.tags) if name is not None]:
            headers[TAGS] = ",".join(map(quote, tags))
        if _names(asked.get("if-none-match", ""), entry.version, weakly=True):
            return Response(status_code=304, headers=headers)
        content = content_of(entry.value)
        return Response(content.data, media_type=content.media_type, headers=headers)

    async def store(self, key: KeyInPath, asked: Annotated[Kept, Query()], request: Request) -> Response:
        """Store a value: JSON and text as such, anything else as bytes."""
        value, condition = _value(request, await request.body()), await self._condition(request, key)
        tags = [*asked.tag, *map(_key, re.findall("[^, ]+", request.headers.get(TAGS, "")))]
        if await self._cached.set(key, value, asked.expire, tags=tags, if_version=condition):
            return Response(status_code=201 if condition is None else 204)
        if condition in (ANY_VERSION, await self._version(key)):
            raise HTTPException(507, "the value can never fit into the cache")
        raise _changed()

    async def delete(self, key: KeyInPath, request: Request) -> Response:
        """Remove a key."""
        condition = await self._condition(request, key)
        if condition is not None and await self._cached.delete(key, if_version=condition):
            return Response(status_code=204)
        raise _missing() if condition in (None, ANY_VERSION) else _changed()

    async def _version(self, key: str) -> int | None:
        entry = await self._cached.get_entry(key)
        return None if entry is None else entry.version

    async def _condition(self, request: Request, key: str) -> Any:
        """Return the version at which a write is wanted, None for no entry; raise if it cannot be met now."""
        match, unless = request.headers.get("if-match"), request.headers.get("if-none-match")
        if match is None and unless is None:
            return ANY_VERSION
        version = await self._version(key)
        if (match is not None and not _names(match, version)) or _names(unless or "", version, weakly=True):
            raise _changed()
        return version

    async def incr(self, key: KeyInPath, asked: Sum) -> Response:
        """Add to a number, and return the sum."""
        try:
            return _json({"value": await self._cached.incr(key, asked.delta, asked.default)})  # type: ignore[arg-type]
        except KeyError:
            raise _missing() from None
        except (TypeError, OverflowError) as error:
            raise HTTPException(409, str(error)) from None

    async def touch(self, key: KeyInPath, asked: Expiry) -> Response:
        """Give a key another expiry."""
        if not await self._cached.touch(key, asked.expire):
            raise _missing()
        return Response(status_code=204)

    # -- several keys -------------------------------------------------------------------------------------------------

    async def get_many(self, asked: Keys) -> Response:
        """Return the values of those keys that are there."""
        found = await self._cached.get_many(asked.keys)
        return _json({"items": [_told_item(*item) for item in found.items()]})

    async def set_many(self, asked: Items) -> Response:
        """Store values, and return how many there was room for."""
        items = [(one.key, one.value if isinstance(one, DataItem) else one.base64) for one in asked.items]
        return _json({"stored": await self._cached.set_many(items, asked.expire, tags=asked.tags)})

    async def delete_many(self, asked: Keys) -> Response:
        """Remove keys, and return how many there were."""
        return _json({"removed": await self._cached.delete_many(asked.keys)})

    async def find(self, asked: Annotated[Filter, Query()]) -> Response:
        """Return keys, those with tags, a prefix or a pattern, page by page."""
        after = ENOVAL if asked.after is None else _key(asked.after)
        wanted = Selection.of(asked.tag or None, asked.match, asked.prefix, asked.glob)

        def page() -> list[bytes]:
            names = (name_of(found.key) for found in self._cache._select(wanted, after))
            return list(itertools.islice((name for name in names if name is not None), asked.limit))

        names = await self._call(page, False)
        follows = quote(names[-1]) if len(names) == asked.limit else None
        return _json({"keys": [_told(key_of(name)) for name in names], "next": follows})

    async def invalidate(self, asked: Tags) -> Response:
        """Remove all keys with any or all of some tags, and return how many there were."""
        return _json({"removed": await self._cached.evict(tags=asked.tags, match=asked.match)})

    async def tags(self) -> Response:
        """Return each tag with the number and the bytes of its entries."""
        return _json({"tags": [one._asdict() for one in await self._cached.tags() if isinstance(one.name, str)]})

    # -- the whole cache ----------------------------------------------------------------------------------------------

    async def stats(self) -> Response:
        """Return what all processes of the machine have counted."""
        return _json(inspection.activity(await self._cached.metrics()))

    async def metrics(self) -> Response:
        """Return the same for Prometheus."""
        from ..integrations.prometheus import exposition  # late: few need it

        text, media_type = await self._call(partial(exposition, self._cache), False)
        return Response(text, media_type=media_type)

    async def events(self, request: Request) -> Response:
        """Return a stream of server-sent events: each second, what was counted since the last one."""
        events = self._events(request.scope["is_head"])
        return StreamingResponse(events, headers={"Cache-Control": "no-store"}, media_type="text/event-stream")

    async def _events(self, is_head: bool) -> AsyncIterator[str]:
        last, before = time.monotonic(), await self._cached.metrics()
        while not (is_head or self.stopping.is_set()):
            now, found = time.monotonic(), await self._cached.metrics()
            told = {"seconds": now - last, **inspection.activity(found.since(before))}
            yield f"data: {json.dumps(told, allow_nan=False)}\n\n"
            last, before = now, found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), INTERVAL)

    async def health(self, request: Request) -> Response:
        """Tell whether the cache can be read and written; what was found, only with the password."""
        async with self._looking:  # once a second, however many ask: it takes the write lock, and needs no password
            if time.monotonic() - self._looked >= INTERVAL:
                self._found, self._looked = await self._call(self._look), time.monotonic()
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
            log.error("the cache cannot be used", exc_info=error)
            found = [("cache", False, "it cannot be used; the server's log says more")]
        return [{"look": look, "ok": ok, "found": told} for look, ok, told in found]

    async def page(self) -> Response:
        """Return a page that shows what the cache does; the page asks for the password."""
        headers = {"Content-Security-Policy": self._policy, "X-Frame-Options": "DENY", "Cache-Control": "no-cache"}
        return HTMLResponse(self._page, headers=headers)


def _page() -> tuple[str, str]:
    """Return the page, and the policy that lets it run its own script and style, and reach its own server."""
    with open(os.path.join(os.path.dirname(__file__), "page.html"), encoding="utf-8") as file:
        page = file.read()
    parts = ["default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"]
    for kind in ("script", "style"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        parts.append(f"{kind}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
    return page, "; ".join((*parts, "frame-ancestors 'none'"))


# -- values as bodies and as JSON, and versions in headers ------------------------------------------------------------


def _value(request: Request, body: bytes) -> Any:
    """Return the value that a body means by its type."""
    kind, _, charset = request.headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if "content-encoding" in request.headers or (kind == "text/plain" and charset.strip(' "') not in _UTF_8):
        raise HTTPException(415, "the body must not be compressed, and text must be UTF-8")
    try:
        if kind == JSON:
            return _plain(from_json(body, allow_inf_nan=False))
        return body.decode() if kind == "text/plain" else body
    except ValueError:
        raise HTTPException(400, f"the body is not {kind}, or has a number that is not finite") from None


def _names(header: str, version: int | None, weakly: bool = False) -> bool:
    """Tell whether a header names the version of an entry; None is that of no entry."""
    named = re.findall(r'(?:W/)?"[^"]*"', header)
    is_named = f'"{version}"' in named or (weakly and f'W/"{version}"' in named)
    return version is not None and (header.strip() == "*" or is_named)


def _json(found: Any, status: int = 200) -> Response:
    return Response(json.dumps(found, allow_nan=False, separators=(",", ":")), status, media_type=JSON)


def _told(plain: Any) -> Any:
    return {"base64": b64encode(plain).decode()} if isinstance(plain, bytes) else plain


def _told_item(key: Any, value: Any) -> dict[str, Any]:
    try:
        content_of(value)
    except NotPlain as error:
        return {"key": _told(key), "error": f"the value is a Python object ({error})"}
    return {"key": _told(key), **(_told(value) if isinstance(value, bytes) else {"value": value})}
