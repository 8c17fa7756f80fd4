"""The HTTP door: keys, conditions, tags, bulk, metrics, and who may not use it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from diskcache_like import Cache
from diskcache_like.errors import DiskFull, Timeout
from diskcache_like.operations import inspection
from diskcache_like.server import http
from diskcache_like.server.access import Access, Limits
from diskcache_like.server.guard import LOOPBACK
from diskcache_like.server.http import application

from ..support.cache_kinds import QUICK, Clock
from ..support.contention import held
from ..support.http_server import PATIENCE, Asker, serving

LIMITS = Limits(value=1_000)
PASSWORD = "a pässword"


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> Iterator[Cache]:
    with closing(Cache(tmp_path / "cache", pickle="never", clock=clock, **QUICK)) as made:
        yield made


@pytest.fixture
def ask(cache: Cache) -> Asker:
    return Asker(application(cache, Access(limits=LIMITS), LOOPBACK))


@pytest.fixture
def locked(cache: Cache) -> Asker:
    """Ask an application that has a password."""
    return Asker(application(cache, Access(PASSWORD.encode(), LIMITS)))


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"detail"}
    return str(response.json()["detail"])


# -- one key ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        ("Köln", "text/plain; charset=utf-8", "Köln".encode()),
        ({"a": [1, 2.5, None, True]}, "application/json", b'{"a":[1,2.5,null,true]}'),
        (7, "application/json", b"7"),
        (b"", "application/octet-stream", b""),
        (b"x" * 100_000, "application/octet-stream", b"x" * 100_000),
    ],
)
def test_what_python_stored_is_read(cache: Cache, ask: Asker, value: Any, kind: str, body: bytes) -> None:
    cache["key"] = value
    found = ask("GET", "/keys/key")
    assert (found.status_code, found.headers["content-type"], found.content) == (200, kind, body)
    assert found.headers["x-content-type-options"] == "nosniff"
    assert ask("HEAD", "/keys/key").headers["content-length"] == str(len(body))


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("application/octet-stream", b"\x00\xff", b"\x00\xff"),
        ("", b"raw", b"raw"),
        ("image/png", b"\x89", b"\x89"),
        ("text/plain; charset=utf-8", "Köln".encode(), "Köln"),
        ("Application/JSON ; charset=utf-8", b'{"a": [1, null]}', {"a": [1, None]}),
        ("application/json", b"123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_what_is_stored_is_what_python_reads(cache: Cache, ask: Asker, kind: str, body: bytes, value: Any) -> None:
    assert ask("PUT", "/keys/key", content=body, headers={"Content-Type": kind} if kind else {}).status_code == 204
    assert cache.get("key") == value
    assert type(cache.get("key")) is type(value)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), "\ud800", 1 + 2j, {"a": b"bytes"}])
def test_an_object_of_python_is_not_acceptable(cache: Cache, ask: Asker, value: Any) -> None:
    cache["key"] = value
    assert type(value).__name__ in error_of(ask("GET", "/keys/key"), 406)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("plain", "plain"),
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("a/b/", "a/b/"),
        ("a//b", "a//b"),
        ("", ""),
        ("K%C3%B6ln%20%3F%23%25", "Köln ?#%"),
        ("line%0Afeed%0A", "line\nfeed\n"),
        ("%FF%00", b"\xff\x00"),
        ("bulk/get", "bulk/get"),
        ("x/incr", "x/incr"),
        ("a+b", "a+b"),
    ],
)
def test_a_key_is_the_rest_of_the_path(cache: Cache, ask: Asker, path: str, key: str | bytes) -> None:
    assert ask("PUT", f"/keys/{path}", content=b"1").status_code == 204
    assert list(cache) == [key]
    assert ask("GET", f"/keys/{path}").content == b"1"
    assert ask("DELETE", f"/keys/{path}").status_code == 204
    assert list(cache) == []
    assert ask("POST", f"/keys/{path}/incr", json={}).json() == {"value": 1}
    assert dict(cache.items()) == {key: 1}


def test_a_missing_key(cache: Cache, ask: Asker) -> None:
    assert error_of(ask("GET", "/keys/key"), 404) == "there is no such key"
    error_of(ask("DELETE", "/keys/key"), 404)
    error_of(ask("POST", "/keys/key/touch", json={"expire": 5}), 404)
    error_of(ask("POST", "/keys/key/incr", json={"default": None}), 404)
    assert (cache.metrics().hits, cache.metrics().misses) == (0, 1)


@pytest.mark.parametrize("value", ["hot", b"x" * 100_000])
def test_a_read_is_counted_once(cache: Cache, ask: Asker, value: Any) -> None:
    cache["key"] = value
    ask("GET", "/keys/key")
    assert (cache.metrics().hits, cache.metrics().misses) == (1, 0)


def test_expiry(cache: Cache, ask: Asker, clock: Clock) -> None:
    assert ask("PUT", "/keys/key?expire=10.5", content=b"1").status_code == 204
    assert ask("GET", "/keys/key").headers["cache-control"] == "private, max-age=10"
    clock.advance(5)
    assert ask("GET", "/keys/key").headers["cache-control"] == "private, max-age=5"
    assert ask("POST", "/keys/key/touch", json={"expire": 100}).status_code == 204
    assert ask("GET", "/keys/key").headers["cache-control"] == "private, max-age=100"
    assert ask("POST", "/keys/key/touch", json={"expire": None}).status_code == 204
    assert ask("GET", "/keys/key").headers["cache-control"] == "private, no-cache"
    ask("PUT", "/keys/key?expire=10", content=b"1")
    clock.advance(11)
    error_of(ask("GET", "/keys/key"), 404)
    for wrong, status in {
        "expire=soon": 422,
        "expire=": 422,
        "expire=-1": 400,
        "expire=nan": 400,
        "expires=5": 422,
    }.items():
        error_of(ask("PUT", f"/keys/key?{wrong}", content=b"1"), status)
    assert list(cache.keys()) == []


# -- conditions -------------------------------------------------------------------------------------------------------


def test_a_value_that_the_client_has_is_not_sent_again(cache: Cache, ask: Asker) -> None:
    cache.set("key", "old", tag="t")
    etag = ask("GET", "/keys/key").headers["etag"]
    assert etag == f'"{cache.get_entry("key").version}"'
    for known in (etag, f'"1", W/{etag}', "*"):
        found = ask("GET", "/keys/key", headers={"If-None-Match": known})
        assert (found.status_code, found.content, found.headers["etag"]) == (304, b"", etag)
    cache["key"] = "new"
    assert ask("GET", "/keys/key", headers={"If-None-Match": etag}).text == "new"
    error_of(ask("GET", "/keys/key", headers={"If-Match": etag}), 412)


def test_a_write_on_the_condition_of_a_version(cache: Cache, ask: Asker) -> None:
    def put(value: bytes, **headers: str) -> int:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return ask("PUT", "/keys/key", content=value, headers=named).status_code

    assert put(b"0", If_Match="*") == 412
    assert put(b"1", If_None_Match="*") == 201
    assert put(b"2", If_None_Match="*") == 412
    etag = ask("GET", "/keys/key").headers["etag"]
    assert put(b"3", If_Match=f'"7", {etag}') == 204
    assert put(b"4", If_Match=etag) == 412
    assert put(b"5", If_Match=f"W/{ask('GET', '/keys/key').headers['etag']}") == 412
    assert put(b"6", If_None_Match=etag) == 204
    assert put(b"7", If_None_Match=ask("GET", "/keys/key").headers["etag"]) == 412
    assert cache["key"] == b"6"
    assert ask("DELETE", "/keys/key", headers={"If-Match": etag}).status_code == 412
    assert ask("DELETE", "/keys/key", headers={"If-Match": ask("GET", "/keys/key").headers["etag"]}).status_code == 204
    assert ask("DELETE", "/keys/key", headers={"If-Match": "*"}).status_code == 412


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_write_between_the_look_and_the_write_is_seen(
    cache: Cache, ask: Asker, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache["key"] = "old"
    etag = ask("GET", "/keys/key").headers["etag"]
    looked = http.Door._version

    async def late(door: http.Door, key: Any) -> int | None:
        found = await looked(door, key)
        cache["key"] = "new"
        return found

    monkeypatch.setattr(http.Door, "_version", late)
    error_of(ask(method, "/keys/key", content=b"mine", headers={"If-Match": etag}), 412)
    assert cache["key"] == "new"


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_counting(cache: Cache, ask: Asker) -> None:
    assert ask("POST", "/keys/n/incr", json={"delta": 5, "default": 10}).json() == {"value": 15}
    assert ask("POST", "/keys/n/incr", json={"delta": -0.5}).json() == {"value": 14.5}
    cache["text"] = "x"
    assert "expected a number" in error_of(ask("POST", "/keys/text/incr", json={}), 409)
    cache["large"] = 10**400
    error_of(ask("POST", "/keys/large/incr", json={"delta": 0.5}), 409)
    wrong: Any
    for wrong in ({"delta": "1"}, {"delta": True}, {"delta": None}, {"by": 1}, [], 1):
        error_of(ask("POST", "/keys/n/incr", json=wrong), 422)
    assert cache["n"] == 14.5


# -- tags and listing -------------------------------------------------------------------------------------------------


def test_tags(cache: Cache, ask: Asker) -> None:
    ask("PUT", "/keys/a?tag=x&tag=%C3%B6,%20%25", content=b"1")
    assert cache.get_entry("a").tags == ("x", "ö, %")
    told = ask("GET", "/keys/a").headers["cache-tag"]
    assert told == "x,%C3%B6%2C%20%25"
    ask("PUT", "/keys/b", content=b"2", headers={"Cache-Tag": told.replace(",", ", ")})
    assert cache.get_entry("b").tags == ("x", "ö, %")
    ask("PUT", "/keys/c?tag=x", content=b"3")
    cache.set("d", 1, tag=5)
    assert "cache-tag" not in ask("GET", "/keys/d").headers
    found = ask("GET", "/tags").json()["tags"]
    assert [(one["name"], one["entries"]) for one in found] == [("x", 3), ("ö, %", 2)]
    assert ask("POST", "/invalidate", json={"tags": ["x", "ö, %"], "match": "all"}).json() == {"removed": 2}
    assert ask("POST", "/invalidate", json={"tags": ["x", "nothing"]}).json() == {"removed": 1}
    assert ask("POST", "/invalidate", json={"tags": []}).json() == {"removed": 0}
    assert "match" in error_of(ask("POST", "/invalidate", json={"tags": ["x"], "match": "some"}), 422)
    assert "string" in error_of(ask("POST", "/invalidate", json={"tags": [5]}), 422)
    assert list(cache) == ["d"]
    error_of(ask("PUT", "/keys/e?tag=" + "y" * 500, content=b""), 400)


def pages(ask: Asker, query: str) -> Iterator[list[Any]]:
    after = ""
    while True:
        found = ask("GET", f"/keys?limit=3{query}{after}").json()
        yield found["keys"]
        if found["next"] is None:
            return
        after = str(httpx.QueryParams({"after": found["next"]})).join(("&", ""))


def test_keys_page_by_page(cache: Cache, ask: Asker) -> None:
    keys = ["a:1", "a:2", "ä ?&#%\n", "b:1", "b:2", "", "%41", "+"]
    for key in [*keys, b"\xff%", b"utf-8", 5, ("tuple",)]:
        cache.set(key, 1, tags=["all", "a"] if str(key).startswith("a") else ["all"])
    found = list(pages(ask, ""))
    assert [len(page) for page in found] == [3, 3, 3, 0]
    assert sorted(map(str, sum(found, []))) == sorted(map(str, [*keys, {"base64": "/yU="}]))
    assert sorted(sum(pages(ask, "&prefix=a:"), [])) == ["a:1", "a:2"]
    assert sorted(sum(pages(ask, "&glob=?:1"), [])) == ["a:1", "b:1"]
    assert sorted(sum(pages(ask, "&tag=a&tag=all&match=all"), [])) == ["a:1", "a:2"]
    assert len(sum(pages(ask, "&tag=a&tag=all&match=any"), [])) == 9
    for wrong in ("limit=0", "limit=100001", "limit=x", "limit=" + "9" * 5_000, "match=some&tag=a", "tags=a"):
        error_of(ask("GET", f"/keys?{wrong}"), 422)


# -- bulk -------------------------------------------------------------------------------------------------------------


def test_several_keys_at_once(cache: Cache, ask: Asker, clock: Clock) -> None:
    items = [
        {"key": "a", "value": {"x": [1]}},
        {"key": "b", "base64": "AP8="},
        {"key": {"base64": "/w=="}, "value": "t"},
    ]
    assert ask("POST", "/keys/bulk/set", json={"items": items, "expire": 10, "tags": ["t"]}).json() == {"stored": 3}
    assert dict(cache.items()) == {"a": {"x": [1]}, "b": b"\x00\xff", b"\xff": "t"}
    assert cache.get_entry("b").tags == ("t",)
    cache["c"] = {1, 2}
    asked = ["a", {"base64": "/w=="}, "nothing", {"base64": "Yg=="}, "c"]
    found = ask("POST", "/keys/bulk/get", json={"keys": asked}).json()["items"]
    assert [one for one in found if "error" not in one] == [items[0], items[2], items[1]]
    assert [one["key"] for one in found if "error" in one] == ["c"]
    assert ask("POST", "/keys/bulk/delete", json={"keys": asked}).json() == {"removed": 4}
    assert list(cache) == []
    ask("POST", "/keys/bulk/set", json={"items": items[:1], "expire": 10})
    clock.advance(11)
    assert ask("POST", "/keys/bulk/get", json={"keys": ["a"]}).json() == {"items": []}


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"keys": "a"},
        {"keys": [1]},
        {"keys": [None]},
        {"keys": [{"base64": "?"}]},
        {"keys": [{"base64": 1}]},
        {"keys": [{"base64": "", "more": 1}]},
        {"keys": [], "more": 1},
    ],
)
@pytest.mark.parametrize("verb", ["get", "delete"])
def test_keys_that_are_none(ask: Asker, verb: str, body: Any) -> None:
    error_of(ask("POST", f"/keys/bulk/{verb}", json=body), 422)


@pytest.mark.parametrize(
    "item", [1, {}, {"key": "a"}, {"key": 1, "value": 1}, {"key": "a", "base64": "?"}, {"key": "a", "value": 1, "x": 1}]
)
def test_items_that_are_none_store_nothing(cache: Cache, ask: Asker, item: Any) -> None:
    error_of(ask("POST", "/keys/bulk/set", json={"items": [{"key": "good", "value": 1}, item]}), 422)
    assert list(cache) == []


def test_what_is_wrong_is_told_briefly(ask: Asker) -> None:
    found = ask("POST", "/keys/bulk/get", json={"keys": [["sent"] * 2] * 50})
    error_of(found, 422)
    assert len(found.json()["detail"]) == http.TOLD
    assert "sent" not in found.text
    assert "0x" not in found.text, "the address of an object"


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_long_is_refused_before_it_is_read(cache: Cache, ask: Asker) -> None:
    read = list[int]()

    async def endless() -> Any:
        for number in range(1_000):
            read.append(number)
            yield b"x" * 100

    assert ask("PUT", "/keys/key", content=b"x" * 1_000).status_code == 204
    for options in ({"content": b"x" * 1_001}, {"content": endless(), "headers": {"Content-Length": "1001"}}):
        assert "1,000 bytes" in error_of(ask("PUT", "/keys/key", **options), 413)
    assert read == []
    assert "1,000 bytes" in error_of(ask("PUT", "/keys/key", content=endless()), 413)
    assert len(read) <= 12
    assert cache["key"] == b"x" * 1_000
    error_of(ask("POST", "/keys/bulk/get", json={"keys": ["x" * 1_001]}), 413)


@pytest.mark.parametrize(("path", "field"), [("/keys/bulk/delete", "keys"), ("/invalidate", "tags")])
def test_a_list_that_is_too_long(cache: Cache, path: str, field: str) -> None:
    ask = Asker(application(cache, Access()))
    assert ask("POST", path, json={field: [""] * http.MOST}).json() == {"removed": 0}
    assert "at most 100000" in error_of(ask("POST", path, json={field: [""] * (http.MOST + 1)}), 422)


@pytest.mark.parametrize("begun", [[], [b"{"]])
def test_a_body_that_does_not_come(cache: Cache, begun: list[bytes]) -> None:
    async def silent() -> Any:
        for part in begun:
            yield part
        await asyncio.sleep(PATIENCE)

    ask = Asker(application(cache, Access(limits=LIMITS._replace(patience=0.01))))
    error_of(ask("PUT", "/keys/key", content=silent()), 408)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'"\\ud800"',
        b'"\xff"',
        b"[" * 500,
        b"1 2",
    ],
)
def test_what_is_not_json_is_refused(cache: Cache, ask: Asker, body: bytes) -> None:
    typed = {"Content-Type": "application/json"}
    error_of(ask("PUT", "/keys/key", content=body, headers=typed), 400)
    for around in (b"%b", b'{"items": [{"key": "a", "value": %b}]}', b'{"items": [{"key": %b, "value": 1}]}'):
        assert ask("POST", "/keys/bulk/set", content=around % body, headers=typed).is_client_error
    assert list(cache) == []


@pytest.mark.parametrize("depth", [100, 900, 1_100, 100_000])
def test_json_that_is_nested_deeply_is_stored_or_refused(cache: Cache, depth: int) -> None:
    ask, typed = Asker(application(cache, Access())), {"Content-Type": "application/json"}
    body = b"[" * depth + b"]" * depth
    stored = ask("PUT", "/keys/key", content=body, headers=typed).status_code
    assert stored == (204 if depth == 100 else 400)
    assert ask("GET", "/keys/key").content == (body if depth == 100 else b'{"detail":"there is no such key"}')
    assert ask("POST", "/keys/bulk/get", content=body, headers=typed).is_client_error


def test_what_would_not_come_back_as_it_was_meant_is_refused(cache: Cache, ask: Asker) -> None:
    error_of(ask("PUT", "/keys/key", content=b"\xff", headers={"Content-Type": "text/plain"}), 400)
    error_of(ask("PUT", "/keys/key", content=b"x", headers={"Content-Type": "text/plain; charset=latin-1"}), 415)
    error_of(ask("PUT", "/keys/key", content=b"x", headers={"Content-Encoding": "gzip"}), 415)
    assert list(cache) == []
    quoted = {"Content-Type": 'text/plain; charset="UTF-8"'}
    assert ask("PUT", "/keys/key", content=b"x", headers=quoted).status_code == 204


def test_a_value_that_can_never_fit(tmp_path: Path) -> None:
    with Cache(tmp_path / "small", pickle="never", size_limit=1 << 16, **QUICK) as cache:
        ask = Asker(application(cache, Access()))
        for headers in ({}, {"If-None-Match": "*"}):
            error_of(ask("PUT", "/keys/key", content=b"x" * (1 << 20), headers=headers), 507)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (DiskFull("no room", "/secret/path"), 507, "the disk of the cache is full"),
        (Timeout("gave up"), 503, "others hold the write lock; try again"),
        (ZeroDivisionError("/secret"), 500, "internal error; the server's log says more"),
    ],
)
def test_errors_tell_what_is_wrong_and_nothing_else(
    cache: Cache,
    ask: Asker,
    error: Exception,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(type(cache), "set", fail)
    found = ask("PUT", "/keys/key", content=b"1")
    assert error_of(found, status) == told
    assert ("retry-after" in found.headers) == (status == 503)
    assert [record.exc_info is not None for record in caplog.records] == [True] * (status == 500)


def test_an_answer_that_has_begun_is_broken_off(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(inspection, "activity", fail)
    with pytest.raises(ZeroDivisionError):
        ask("GET", "/events")


def test_a_write_lock_that_is_held(cache: Cache, ask: Asker) -> None:
    cache._handle.timeout = 0.01
    with held(cache):
        assert error_of(ask("PUT", "/keys/key", content=b"1"), 503)


# -- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/keys", "/keys/key", "/stats", "/metrics", "/events", "/openapi.json", "/nothing", "/health/", "/%68ealth"],
)
@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {PASSWORD}", PASSWORD, f"Bearer {PASSWORD}x"])
def test_the_password_is_needed(cache: Cache, locked: Asker, path: str, given: str) -> None:
    cache["key"] = "secret"
    found = locked("GET", path, headers={"Authorization": given.encode()} if given else {})
    assert "password" in error_of(found, 401)
    assert found.headers["www-authenticate"].startswith("Bearer")
    assert "secret" not in found.text


def test_the_password_lets_in(cache: Cache, locked: Asker) -> None:
    cache["key"] = "secret"
    for scheme in ("Bearer", "bearer"):
        assert locked("GET", "/keys/key", headers={"Authorization": f"{scheme} {PASSWORD}".encode()}).text == "secret"
    assert locked("GET", "/").status_code == 200


def test_nothing_changes_without_the_password(cache: Cache, locked: Asker) -> None:
    cache["key"] = 1
    for method, path in (("PUT", "/keys/key"), ("DELETE", "/keys/key"), ("POST", "/keys/key/incr")):
        error_of(locked(method, path, json={}), 401)
    assert cache["key"] == 1


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "[::1]"])
def test_the_hosts_that_are_answered(cache: Cache, ask: Asker, host: str) -> None:
    cache["key"] = "found"
    assert ask("GET", "/keys/key", headers={"Host": host, "Origin": f"http://{host}"}).text == "found"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:80", "", "127.0.0.1.evil", "::1"]
)
@pytest.mark.parametrize("path", ["/keys/key", "/", "/health"])
def test_another_name_for_this_machine_is_refused(ask: Asker, cache: Cache, host: str, path: str) -> None:
    cache["key"] = "secret"
    error_of(ask("GET", path, headers={"Host": host}), 421)


def test_without_hosts_any_name_will_do(cache: Cache) -> None:
    assert Asker(application(cache, Access()))("GET", "/health", headers={"Host": "any.example"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:81", "http://localhost.evil", ""])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_pages_of_others_are_refused(cache: Cache, ask: Asker, origin: str, method: str) -> None:
    cache["key"] = 1
    path = "/keys/key/incr" if method == "POST" else "/keys/key"
    error_of(ask(method, path, headers={"Origin": origin}, **({} if method == "GET" else {"json": {}})), 403)
    assert cache["key"] == 1


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_page_may_send_without_asking_changes_nothing(cache: Cache, ask: Asker, kind: str) -> None:
    cache.set("key", 1, tag="t")
    body = b'{"tags": ["t"]}'
    error_of(ask("POST", "/invalidate", content=body, headers={"Content-Type": kind} if kind else {}), 415)
    assert "access-control-allow-origin" not in ask("OPTIONS", "/keys/key").headers
    assert cache["key"] == 1


def test_what_is_not_there(ask: Asker) -> None:
    error_of(ask("GET", "/nothing"), 404)
    error_of(ask("GET", "/stats/"), 404)
    found = ask("PATCH", "/keys/key")
    error_of(found, 405)
    assert {*found.headers["allow"].split(", ")} == {"GET", "HEAD", "PUT", "DELETE"}
    error_of(ask("DELETE", "/stats"), 405)
    error_of(ask("POST", "/keys/key", json={}), 405)


# -- the whole cache --------------------------------------------------------------------------------------------------


def test_stats(cache: Cache, ask: Asker) -> None:
    assert ask("GET", "/stats").json()["hit_rate"] is None
    cache["users:1"] = 1
    assert (cache.get("users:1"), cache.get("users:2")) == (1, None)
    found = ask("GET", "/stats").json()
    assert (found["hits"], found["misses"], found["writes"], found["entries"], found["hit_rate"]) == (1, 1, 1, 1, 0.5)
    assert found["spaces"]["users"]["sets"] == 1
    assert found["size_limit"] == cache.size_limit
    assert [ask("HEAD", path).status_code for path in ("/stats", "/nothing")] == [200, 404]


def test_the_page_of_prometheus(cache: Cache, ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    cache["users:1"] = 1
    found = ask("GET", "/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=")
    assert 'cache_puts_total{cache="cache",space="users"} 1.0' in found.text
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    assert "pip install 'diskcache-like[prometheus]'" in error_of(ask("GET", "/metrics"), 501)


def test_health(cache: Cache, ask: Asker, locked: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locked("GET", "/health").json() == {"ok": True}
    assert locked("GET", "/health", headers={"Authorization": f"Bearer {PASSWORD}".encode()}).json()["looks"]
    found = ask("GET", "/health")
    assert found.status_code == 200
    assert {one["look"] for one in found.json()["looks"]} >= {"volume", "disk", "entries", "write lock"}
    monkeypatch.setattr(inspection, "PATIENCE", 0.01)
    with held(cache):
        assert ask("GET", "/health").status_code == 200, "it looks once a second, however many ask"
        monkeypatch.setattr(http, "INTERVAL", 0)
        found = ask("GET", "/health")
        assert (found.status_code, found.json()["ok"]) == (503, False)
        assert [one["look"] for one in found.json()["looks"]] == ["write lock"]
        assert locked("GET", "/health").json() == {"ok": False}
    assert ask("GET", "/health").status_code == 200

    def fail(*_: Any) -> None:
        raise OSError("/secret/path")

    monkeypatch.setattr(inspection, "looks_at", fail)
    found = ask("GET", "/health")
    assert found.status_code == 503
    assert "secret" not in found.text


def test_the_description_is_that_of_the_routes(ask: Asker) -> None:
    found = ask("GET", "/openapi.json").json()
    validate(found)
    described = {(path, method.upper()) for path, methods in found["paths"].items() for method in methods}
    served = {
        (route.path.replace(":path", ""), method) for route in ask.app.routes for method in route.methods - {"HEAD"}
    }
    assert described == served - {("/openapi.json", "GET")}
    assert found["components"]["schemas"]["Sum"]["properties"].keys() == {"delta", "default"}
    assert all(one["description"] for methods in found["paths"].values() for one in methods.values())


def test_the_page_may_run_its_own_script_only(ask: Asker) -> None:
    found = ask("GET", "/")
    assert found.headers["content-type"].startswith("text/html")
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "unsafe" not in policy
    assert found.headers["x-frame-options"] == "DENY"
    assert "http" not in found.text.replace("http://www.w3.org/2000/svg", "").lower(), "nothing comes from elsewhere"


# -- behind a real server ---------------------------------------------------------------------------------------------


@contextmanager
def served(cache: Cache, path: Path, limits: Limits = LIMITS) -> Iterator[httpx.Client]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    transport = httpx.HTTPTransport(uds=str(path))
    with (
        serving(application(cache, Access(limits=limits)), listener),
        httpx.Client(transport=transport, base_url="http://any", timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture
def client(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(http, "INTERVAL", 0.01)
    with served(cache, tmp_path / "socket") as made:
        yield made


def test_keys_over_a_unix_socket(cache: Cache, client: httpx.Client) -> None:
    assert client.put("/keys/a%2F%FF%0A/b", content=b"\x00" * 900).status_code == 204
    assert list(cache) == [b"a/\xff\n/b"]
    assert client.get("/keys/a/%ff%0a/b").content == b"\x00" * 900
    assert client.head("/keys/a/%ff%0a/b").headers["content-length"] == "900"
    assert client.get("/keys/a/%ff%0a/b", headers={"If-None-Match": "*"}).status_code == 304
    error_of(client.put("/keys/key", content=b"x" * 1_001), 413)
    error_of(client.put("/keys/key", content=iter([b"x" * 600] * 2)), 413)
    error_of(client.get("/keys/none"), 404)


def test_a_write_that_waits_for_the_lock_keeps_nobody_waiting(cache: Cache, client: httpx.Client) -> None:
    cache["key"] = "old"
    with held(cache) as done, ThreadPoolExecutor(1) as others:
        written = others.submit(client.put, "/keys/key", content=b"new")
        for _ in range(20):
            assert client.get("/keys/key").text == "old"
        done.set()
        assert written.result(PATIENCE).status_code == 204
    assert client.get("/keys/key").content == b"new"


def test_events_tell_what_was_done_since_the_last(cache: Cache, client: httpx.Client) -> None:
    with client.stream("GET", "/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)
        first = next(lines)
        assert (first["seconds"] < 1, first["hits"], first["entries"]) == (True, 0, 0)
        cache["users:1"] = 1
        for expected in (1, 2):
            for _ in range(expected):
                assert cache.get("users:1") == 1
            found = next(one for one in lines if one["hits"])
            while found["hits"] < expected:
                found["hits"] += next(lines)["hits"]
            assert found["hits"] == expected
            assert (found["entries"], found["seconds"] > 0) == (1, True)


def test_a_stream_may_last_longer_than_a_body_may_be_awaited(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "INTERVAL", 0.01)
    served_here = served(cache, tmp_path / "socket", LIMITS._replace(patience=0.001))
    with served_here as client, client.stream("GET", "/events") as response:
        lines = response.iter_lines()
        assert [next(lines)[:5] for _ in range(10)] == ["data:", ""] * 5


def test_events_end_when_the_server_stops(cache: Cache, tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(tmp_path / "socket")), timeout=PATIENCE) as client:
        with serving(application(cache, Access()), listener):
            response = client.send(client.build_request("GET", "http://any/events"), stream=True)
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
        assert list(lines) == [""]
