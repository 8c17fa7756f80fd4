"""What an attacker, or bad luck, once broke."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from diskcache_like import Cache
from diskcache_like.encoding.globs import pattern_of
from diskcache_like.server import commands
from diskcache_like.server.access import Access, Limits
from diskcache_like.server.http_server import http_server
from diskcache_like.server.sockets import Address, Place

from ..support.cache_servers import serve_command, serving
from ..support.certificates import self_signed
from .doors import PATIENCE, OpenDoor, exchange, open_door, received, until_closed
from .test_resp import packed
from .test_tracking import told, tracked


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "shop"


def refusal(directory: Path, *arguments: str) -> str:
    """Return what a server says that does not begin."""
    done = subprocess.run(serve_command(directory, *arguments), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    return done.stderr


# -- processes --------------------------------------------------------------------------------------------------------


def test_a_second_server_does_not_share_a_port(directory: Path, tmp_path: Path) -> None:
    with serving(directory, "--resp", "0", "--workers", "1") as server:
        said = refusal(tmp_path / "other", "--resp", str(server.port("resp")))
        assert os.strerror(errno.EADDRINUSE) in said


def test_a_port_can_be_taken_again_at_once(directory: Path) -> None:
    with (
        serving(directory, "--resp", "0", "--workers", "1") as server,
        server.client(port=server.port("resp")) as client,
    ):
        assert client.ping()
        assert server.stop() == 0  # the server ends this connection, whose port waits for late segments
        with serving(directory, "--resp", str(server.port("resp")), "--workers", "1") as next_one:
            assert next_one.port("resp") == server.port("resp")


def test_a_server_that_is_told_to_stop_twice_ends_as_usual(directory: Path) -> None:
    with serving(directory, "--workers", "1") as server:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            server.process.send_signal(number)
        assert server.stop() == 0
        assert not os.path.exists(server.path)


def test_a_worker_may_open_as_many_files_as_the_system_lets_it(directory: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
    try:
        with serving(directory, "--workers", "1") as server:
            (worker,) = server.workers()
            assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_serves_though_nobody_listens_whom_it_tells_so(directory: Path, tmp_path: Path) -> None:
    with (
        serving(directory, "--workers", "1", NOTIFY_SOCKET=str(tmp_path / "gone")) as server,
        server.client() as client,
    ):
        assert client.ping()


@pytest.mark.parametrize("arguments", [("--certificate", "FILE"), ("--private-key", "FILE")])
def test_what_is_no_certificate_is_named(directory: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for named in (file, tmp_path, tmp_path / "missing"):
        said = refusal(directory, *(str(named) if word == "FILE" else word for word in arguments))
        assert str(named) in said or "--certificate" in said


def test_it_makes_the_directories_that_are_missing(tmp_path: Path) -> None:
    with serving(tmp_path / "missing" / "shop", "--workers", "1") as server, server.client() as client:
        assert client.ping()


def test_why_it_cannot_listen_is_told(tmp_path: Path) -> None:
    assert "too long" in refusal(tmp_path / ("x" * 120))
    assert os.strerror(errno.ENOENT) in refusal(tmp_path / "cache", "--resp", str(tmp_path / "missing" / "socket"))


def test_a_worker_that_replaced_another_one_stops_as_usual(directory: Path) -> None:
    with serving(directory, "--workers", "1") as server:
        with server.client() as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        assert "another one begins" in server.next_line()
        with server.client() as client:
            assert client.ping()
        assert server.stop() == 0
        assert server.next_line() == ""


@pytest.mark.parametrize(
    ("name", "request_"), [("resp", b"PING\r\n"), ("http", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")]
)
def test_an_idle_client_under_tls_does_not_keep_it_from_stopping(
    directory: Path, tmp_path: Path, name: str, request_: bytes
) -> None:
    certificate, key = self_signed(tmp_path)
    arguments = ["--resp", "0", "--http", "0", "--certificate", certificate, "--private-key", key, "--grace", "60"]
    trusted = ssl.create_default_context(cafile=certificate)
    trusted.check_hostname = False
    with (
        serving(directory, *arguments, "--workers", "1") as server,
        socket.create_connection(("127.0.0.1", server.port(name)), PATIENCE) as plain,
        trusted.wrap_socket(plain) as idle,
    ):
        idle.sendall(request_)
        assert idle.recv(1)
        server.process.terminate()
        assert server.process.wait(20) == 0  # the end of TLS has 30 seconds, unless it is told otherwise


# -- HTTP -------------------------------------------------------------------------------------------------------------

HALVES = {
    "nothing": b"",
    "half a head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
    "a body that never ends": b"POST /invalidate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    "half a head after a request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
}


@contextmanager
def http(cache: Cache, access: Access) -> Iterator[tuple[str, int]]:
    """Serve a cache over HTTP, in a thread."""
    place = Place(Address.of("127.0.0.1:0"))
    loop, is_over = asyncio.new_event_loop(), asyncio.Event()
    is_ready = threading.Event()

    async def serve() -> None:
        async with http_server(cache, access, place, None, 0):
            is_ready.set()
            await is_over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_ready.wait(PATIENCE)
        yield place.address.host, place.address.port
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(PATIENCE)
        loop.close()
        place.close()


@pytest.mark.parametrize("half", HALVES)
def test_a_request_that_never_comes_ends_the_connection(cache: Cache, half: str) -> None:
    access = Access(b"x" * 16, Limits(patience=0.05))
    with http(cache, access) as address, socket.create_connection(address, PATIENCE) as plain:
        plain.sendall(HALVES[half])
        until_closed(plain)


def test_a_client_of_http_that_reads_nothing_is_dropped(cache: Cache) -> None:
    cache["k"] = b"x" * (16 << 20)
    access = Access(None, Limits(clients=2, patience=0.05))
    with http(cache, access) as address, socket.create_connection(address, PATIENCE) as slow:
        slow.sendall(b"GET /keys/k HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(1)
        status = b"503"
        while status == b"503":  # as long as there are two
            with socket.create_connection(address, PATIENCE) as other:
                status = exchange(other, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 12)[9:]
        assert status == b"200"


def test_more_clients_of_http_than_allowed_are_dropped(cache: Cache) -> None:
    with http(cache, Access(None, Limits(clients=3))) as address, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(address, PATIENCE))
        with socket.create_connection(address, PATIENCE) as one_more:
            assert until_closed(one_more) == b""


# -- RESP and tracking -----------------------------------------------------------------------------------------------


@contextmanager
def paused_listings(cache: Cache) -> Iterator[threading.Event]:
    """Let KEYS wait until the with-block ends; what is returned is set once one does."""
    is_waiting, goes_on = threading.Event(), threading.Event()
    page = cache._page

    def paused(*arguments: Any) -> Any:
        is_waiting.set()
        assert goes_on.wait(PATIENCE)
        return page(*arguments)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(cache, "_page", paused)
        try:
            yield is_waiting
        finally:
            goes_on.set()


def test_a_change_is_told_after_the_replies_that_were_read_before_it(door: OpenDoor, cache: Cache) -> None:
    cache["k"] = b"old"
    with tracked(door) as plain, Cache(cache.directory) as other:
        with paused_listings(cache) as is_waiting:
            plain.sendall(packed([b"GET", b"k"]) + packed([b"KEYS", b"none"]))
            assert is_waiting.wait(PATIENCE)
            other["k"] = b"new"
            door.call(door.door.tracking._look)
            door.call(door.door.tracking.deliver)
        wanted = b"$3\r\nold\r\n*0\r\n" + told(b"k")
        assert received(plain, len(wanted)) == wanted  # else a client that goes by the order would keep "old"


def test_what_expires_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    with Cache(tmp_path / "cache", pickle="never", clock=lambda: now[0], hot_size_limit=0) as cache:
        cache.set("k", b"1", expire=10)
        get = cache.get

        def slow(*arguments: Any) -> Any:
            found = get(*arguments)
            now[0] += 100
            return found

        monkeypatch.setattr(cache, "get", slow)
        with open_door(cache, tmp_path) as door, tracked(door) as plain:
            plain.sendall(packed([b"GET", b"k"]))
            wanted = b"$1\r\n1\r\n" + told(b"k")
            plain.settimeout(5)
            assert received(plain, len(wanted)) == wanted


def test_commands_that_only_read_do_not_keep_other_clients_from_writing(door: OpenDoor, cache: Cache) -> None:
    with door.connect() as greedy, door.connect() as other, paused_listings(cache) as is_waiting:
        greedy.sendall(packed([b"FLUSHDB"]) + packed([b"KEYS", b"none"]) * 200)
        assert is_waiting.wait(PATIENCE)
        other.settimeout(5)
        assert exchange(other, packed([b"SET", b"k", b"1"]), 5) == b"+OK\r\n"


def test_clients_do_not_wait_for_the_lock_one_after_the_other(cache: Cache, tmp_path: Path) -> None:
    with (
        Cache(cache.directory, pickle="never", timeout=1.0) as served,
        open_door(served, tmp_path) as door,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(door.connect()) for _ in range(10)]
        began = time.monotonic()
        with cache.transact():
            for client in clients:
                client.sendall(packed([b"SET", b"k", b"1"]))
            assert {received(client, 12) for client in clients} == {b"-ERR Timeout"}
        assert time.monotonic() - began < len(clients) * served.timeout / 2


def test_a_client_whose_writes_all_wait_for_the_lock_gives_its_turn_to_others(cache: Cache, tmp_path: Path) -> None:
    with (
        Cache(cache.directory, pickle="never", timeout=0.2) as served,
        open_door(served, tmp_path) as door,
        door.connect() as greedy,
        door.connect() as other,
        cache.transact(),
    ):
        greedy.sendall(packed([b"SET", b"k", b"1"]) * 200)
        assert received(greedy, 12) == b"-ERR Timeout"
        began = time.monotonic()
        assert exchange(other, packed([b"SET", b"k", b"1"]), 12) == b"-ERR Timeout"
        assert time.monotonic() - began < 200 * served.timeout / 2


def test_a_client_that_is_dropped_before_its_thread_begins_does_not_keep_others_from_writing(door: OpenDoor) -> None:
    with door.connect() as dropped, door.client() as other:
        assert exchange(dropped, b"PING\r\n", 7) == b"+PONG\r\n"

        def drop() -> None:
            (client,) = door.door.clients
            client.data_received(packed([b"SET", b"k", b"x" * 20_000]))
            client.drop()

        door.call(drop)
        assert other.set("k", "1")
        assert until_closed(dropped) == b""


def test_a_client_that_vanishes_while_a_thread_works_for_it_is_waited_for(door: OpenDoor, cache: Cache) -> None:
    with paused_listings(cache) as is_waiting:
        with door.connect() as plain:
            plain.sendall(packed([b"KEYS", b"none"]) * 3)
            assert is_waiting.wait(PATIENCE)
            (client,) = door.door.clients
        with door.client() as other:
            assert other.ping()
        assert client in door.door.clients
    door.run(asyncio.wait_for(door.door.is_empty.wait(), PATIENCE))


def test_keys_that_are_asked_for_again_and_again_make_no_reply_of_any_size(cache: Cache, tmp_path: Path) -> None:
    cache["k"] = b"x" * 10_000
    with open_door(cache, tmp_path, Access(None, Limits(output=100_000))) as door, door.connect() as plain:
        assert exchange(plain, packed([b"MGET", *[b"k"] * 1000]), 4) == b"-ERR"


@pytest.mark.parametrize("command", [[b"KEYS"], [b"SCAN", b"0", b"MATCH"]])
def test_a_glob_has_a_limit(door: OpenDoor, command: list[bytes]) -> None:
    with door.client() as client, pytest.raises(redis.ResponseError, match="too long"):
        client.execute_command(*command, b"a*" * 40_000)


def test_a_glob_is_compiled_once(door: OpenDoor, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(glob: str) -> re.Pattern[str]:
        compiled.append(glob)
        return pattern_of(glob)

    monkeypatch.setattr(commands, "pattern_of", counted)
    cache.set_many((str(number), b"x") for number in range(2500))
    with door.client() as client:
        assert len(client.keys("1*")) == 1111
    assert compiled == ["1*"]


def test_a_page_cannot_have_a_browser_send_commands_by_the_first_message_of_tls(door: OpenDoor, cache: Cache) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # a server chooses the session's name that is sent later
    with door.connect() as plain:
        plain.sendall(hello + b"\r\nSET k 1\r\n")
        plain.shutdown(socket.SHUT_WR)
        until_closed(plain)
    assert "k" not in cache


def test_a_head_of_events_ends(cache: Cache) -> None:
    with http(cache, Access()) as address, socket.create_connection(address, PATIENCE) as plain:
        plain.settimeout(5)
        plain.sendall(b"HEAD /events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        until_closed(plain)


def test_a_client_that_goes_back_to_version_2_is_sent_nothing_of_version_3(door: OpenDoor, cache: Cache) -> None:
    with tracked(door) as plain, Cache(cache.directory) as other:
        plain.sendall(packed([b"GET", b"k"]) + packed([b"HELLO", b"2"]) + packed([b"ECHO", b"begun"]))
        found = b""
        while not found.endswith(b"begun\r\n"):
            found += received(plain, 1)
        other["k"] = b"1"
        door.call(door.door.tracking._look)
        door.call(door.door.tracking.deliver)
        assert exchange(plain, b"PING\r\n", 7) == b"+PONG\r\n"
