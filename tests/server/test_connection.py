"""Connections: order, limits, who may come in, who is slow, and the end."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from diskcache_like import Cache
from diskcache_like.server import commands
from diskcache_like.server.access import Access, Limits
from diskcache_like.server.connection import BATCH

from .doors import OpenDoor, exchange, open_door, received, until_closed
from .test_resp import packed

PONG = b"+PONG\r\n"


@pytest.fixture(scope="session", autouse=True)
def what_uvloop_keeps() -> None:
    """Let uvloop open what it keeps for good, before leaks are looked for."""
    with suppress(ImportError):
        importlib.import_module("uvloop").new_event_loop().close()


@pytest.fixture(params=["asyncio", "uvloop"])
def door(cache: Cache, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OpenDoor]:
    """Return a door on either kind of loop."""
    loop_of = pytest.importorskip(request.param).new_event_loop
    with open_door(cache, tmp_path, loop_of=loop_of) as opened:
        yield opened


@pytest.mark.parametrize("version", [2, 3])
def test_a_pipeline_is_answered_in_order(door: OpenDoor, version: int) -> None:
    many = 5 * BATCH
    with door.client(protocol=version) as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(many):
            pipeline.set(f"k{number}", "x" * (number % 100)).get(f"k{number}").incr("n")
        found = pipeline.execute()
        wanted: list[Any] = []
        for number in range(many):
            wanted += [True, b"x" * (number % 100), number + 1]
        assert found == wanted


def test_what_would_block_goes_to_a_thread_and_keeps_its_order(door: OpenDoor, cache: Cache) -> None:
    large = b"x" * 200_000  # in a file, which is neither written nor read on the loop
    with door.client() as client, door.connect() as other:
        pipeline = client.pipeline(transaction=False)
        for number in range(20):
            pipeline.set("k", large + b"%d" % number).get("k").echo(str(number)).scan(0, count=1).mget("k", "none")
        found = pipeline.execute()
        for number in range(20):
            assert found[5 * number + 1] == large + b"%d" % number
            assert found[5 * number + 2] == b"%d" % number
            assert found[5 * number + 4] == [large + b"%d" % number, None]
        assert exchange(other, b"PING\r\n", len(PONG)) == PONG


def test_a_command_that_waits_holds_up_nobody_else(tmp_path: Path) -> None:
    caches = [Cache(tmp_path / "cache") for _ in range(2)]
    with caches[0], caches[1] as writer, open_door(caches[0], tmp_path) as door, door.connect() as waits:
        with writer.transact(), door.connect() as other:
            writer["k"] = b"before"
            waits.sendall(packed([b"SET", b"k", b"after"]) + packed([b"GET", b"k"]))
            for _ in range(100):
                assert exchange(other, b"PING\r\n", len(PONG)) == PONG
            client = awaited(lambda: next((each for each in door.door.clients if each._task), None))
            assert not door.call(client._transport.is_reading)
            door.call(lambda: client.data_received(b"PING\r\n"))  # TLS may bring it all the same
        assert received(waits, 5 + 11 + 7) == b"+OK\r\n$5\r\nafter\r\n" + PONG


def test_nothing_is_read_while_a_client_has_to_read(door: OpenDoor) -> None:
    with door.connect() as plain:
        assert exchange(plain, b"PING\r\n", len(PONG)) == PONG
        (client,) = door.door.clients
        door.call(client.pause_writing)
        assert not door.call(client._transport.is_reading)
        door.call(client.resume_writing)
        assert exchange(plain, b"PING\r\n", len(PONG)) == PONG


def test_others_have_their_turn_during_a_long_pipeline(door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second client is answered while the first one's commands are not all carried out."""
    seen: list[bytes] = []
    reading: list[bool] = []

    def echo(client: Any, words: Sequence[bytes]) -> bytes:
        seen.append(words[1])
        reading.append(client._transport.is_reading())
        return words[1]

    monkeypatch.setitem(commands.COMMANDS, b"ECHO", commands.COMMANDS[b"ECHO"]._replace(function=echo))
    with door.connect() as first, door.connect() as second:

        async def both_at_once() -> None:  # so both have arrived when the loop looks
            first.sendall(packed([b"ECHO", b"first"]) * (4 * BATCH))
            second.sendall(packed([b"ECHO", b"second"]))

        door.run(both_at_once())
        received(first, 4 * BATCH * 11)
        received(second, 12)
    place = seen.index(b"second")
    assert place < 2 * BATCH + 1
    del seen[place], reading[place]
    assert not any(reading[BATCH:])  # or more and more would be kept


def test_a_client_that_does_not_read_stops_being_served(cache: Cache, tmp_path: Path) -> None:
    value = b"v" * 100_000
    cache["k"] = value
    limited = open_door(cache, tmp_path, Access(limits=Limits(output=4 << 20)))
    with limited as door, door.connect() as slow, door.connect() as other:
        slow.setblocking(False)
        sent = 0
        request = packed([b"GET", b"k"]) * 1000
        with pytest.raises(BlockingIOError):
            while sent < 100 << 20:  # which the kernel has no room for: the door reads no more
                sent += slow.send(request)
        assert exchange(other, b"PING\r\n", len(PONG)) == PONG
        client = awaited(lambda: next((each for each in door.door.clients if each._is_full), None))
        waits = door.call(lambda: client._transport.get_write_buffer_size())
        assert waits < 3 << 20
        assert not door.call(client._transport.is_reading)
        slow.settimeout(60)
        reply = b"$100000\r\n" + value + b"\r\n"
        assert received(slow, 50 * len(reply)) == reply * 50  # it goes on when it is read


def test_a_client_that_never_reads_is_dropped(cache: Cache, tmp_path: Path) -> None:
    cache["k"] = b"v" * 1_000_000
    with open_door(cache, tmp_path, Access(limits=Limits(patience=0.05))) as door, door.connect() as slow:
        slow.sendall(packed([b"GET", b"k"]) * 100)
        assert received(slow, 1) == b"$"
        awaited(lambda: not door.door.clients)


def test_a_client_that_reads_slowly_is_not_dropped(cache: Cache, tmp_path: Path) -> None:
    cache["k"] = b"v" * 1_000_000
    with open_door(cache, tmp_path, Access(limits=Limits(patience=0.2))) as door, door.connect() as slow:
        slow.sendall(packed([b"GET", b"k"]) * 20)
        client = awaited(lambda: next((each for each in door.door.clients if each._stuck), None))
        for _ in range(3):  # each look finds less than the one before
            timer = client._timer
            received(slow, 700_000)
            awaited(lambda timer=timer: client._timer is not timer)
        assert door.door.clients


def test_there_are_only_so_many_clients(cache: Cache, tmp_path: Path) -> None:
    with open_door(cache, tmp_path, Access(limits=Limits(clients=2))) as door, ExitStack() as stack:
        one, two, three = (stack.enter_context(door.connect()) for _ in range(3))
        assert exchange(one, b"PING\r\n", len(PONG)) == exchange(two, b"PING\r\n", len(PONG)) == PONG
        assert until_closed(three) == b"-ERR max number of clients reached\r\n"
        one.close()
        awaited(lambda: len(door.door.clients) < 2)
        with door.connect() as four:
            assert exchange(four, b"PING\r\n", len(PONG)) == PONG


class TestAuthentication:
    """Who has not given the password."""

    def test_may_do_nothing_else(self, cache: Cache, tmp_path: Path) -> None:
        with open_door(cache, tmp_path, Access(b"secret")) as door, door.connect() as plain:
            for name, known in commands.COMMANDS.items():
                if known.is_free or not name:
                    continue
                reply = exchange(plain, packed([name, *[b"x"] * (abs(known.arity) - 1)]), 34)
                assert reply == b"-NOAUTH Authentication required.\r\n", name
                plain.setblocking(False)
                with pytest.raises(BlockingIOError):
                    plain.recv(100)
                plain.settimeout(60)

    @pytest.mark.parametrize("version", [2, 3])
    def test_is_let_in_by_it(self, cache: Cache, tmp_path: Path, version: int) -> None:
        with open_door(cache, tmp_path, Access(b"secret")) as door:
            with door.client(password="secret", protocol=version) as client:
                assert client.set("a", 1)
                client.execute_command("RESET")
            with door.client(username="default", password="secret", protocol=version) as client:
                assert client.get("a") == b"1"
            for wrong in ({"password": "Secret"}, {"username": "root", "password": "secret"}, {}):
                with door.client(protocol=version, **wrong) as client, pytest.raises(redis.AuthenticationError):
                    client.get("a")

    def test_may_send_little(self, cache: Cache, tmp_path: Path) -> None:
        with open_door(cache, tmp_path, Access(b"secret")) as door:
            for request in (b"*11\r\n", b"*2\r\n$4\r\nAUTH\r\n$16385\r\n"):
                with door.connect() as plain:
                    assert exchange(plain, request, 20) == b"-ERR Protocol error: "[:20]
            with door.connect() as plain:  # from the moment on at which the password is right, not before or later
                large = packed([b"SET", b"k", b"x" * 20_000])
                plain.sendall(packed([b"AUTH", b"secret"]) + large)
                assert received(plain, 10) == b"+OK\r\n+OK\r\n"
                assert exchange(plain, b"RESET\r\n", 8) == b"+RESET\r\n"
                assert exchange(plain, large, 20) == b"-ERR Protocol error: "[:20]

    def test_is_dropped_in_the_end(self, cache: Cache, tmp_path: Path) -> None:
        with open_door(cache, tmp_path, Access(b"secret", Limits(patience=0.05))) as door:
            with door.connect() as stranger:
                assert until_closed(stranger) == b""
            with door.connect() as known:
                assert exchange(known, b"AUTH secret\r\n", 5) == b"+OK\r\n"
                client = next(iter(door.door.clients))
                timer = client._timer
                awaited(lambda: client._timer is not timer)
                assert exchange(known, b"PING\r\n", len(PONG)) == PONG


def test_protocol_errors_are_told_and_end_the_connection(door: OpenDoor) -> None:
    for request, told in ((b"*-x\r\n", b"invalid multibulk length"), (b"*1\r\n:1\r\n", b"expected '$', got ':'")):
        with door.connect() as plain:
            plain.sendall(b"PING\r\n" + request + b"PING\r\n")
            assert until_closed(plain) == PONG + b"-ERR Protocol error: " + told + b"\r\n"


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"GET /x HTTP/1.1\r\n"])
def test_a_page_of_a_browser_cannot_send_commands(door: OpenDoor, cache: Cache, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), 60) as plain:
        plain.sendall(line + b"Host: localhost\r\nContent-Length: 30\r\n\r\nSET a b\r\n" + packed([b"SET", b"a", b"b"]))
        assert until_closed(plain) == b""
    assert "a" not in cache


def test_quit_and_the_end_of_the_input_are_answered_first(door: OpenDoor) -> None:
    with door.connect() as plain:
        plain.sendall(b"PING\r\nQUIT\r\nPING\r\n")
        assert until_closed(plain) == PONG + b"+OK\r\n"
    with door.connect() as plain:
        plain.sendall(packed([b"SET", b"k", b"x" * 100_000]) + b"PING\r\n" * 1000)
        plain.shutdown(socket.SHUT_WR)
        assert until_closed(plain) == b"+OK\r\n" + PONG * 1000


class TestStop:
    """The end of a door."""

    def test_answers_what_has_arrived(self, cache: Cache, tmp_path: Path) -> None:
        with open_door(cache, tmp_path) as door, door.connect() as plain, door.connect() as idle:
            plain.sendall(packed([b"SET", b"k", b"x" * 100_000]) * 50)
            assert received(plain, 5) == b"+OK\r\n"
            door.run(door.door.stop(60))
            found = until_closed(plain)
            assert found == b"+OK\r\n" * (len(found) // 5)
            assert until_closed(idle) == b""
            assert not door.door.clients

    def test_drops_what_takes_too_long(self, tmp_path: Path) -> None:
        with Cache(tmp_path / "cache") as cache, open_door(cache, tmp_path) as door, door.connect() as plain:
            with Cache(tmp_path / "cache") as writer, writer.transact():
                writer["k"] = 1
                plain.sendall(packed([b"SET", b"k", b"v"]))
                awaited(lambda: any(client._task for client in door.door.clients))
                door.run(door.door.stop(0.01))
                assert until_closed(plain) == b""
            assert cache["k"] == 1


def test_a_client_that_leaves_is_forgotten(door: OpenDoor, cache: Cache) -> None:
    with door.connect() as plain:
        plain.sendall(packed([b"SET", b"k", b"x" * 100_000]) * 20)
        received(plain, 5)
        (client,) = door.door.clients
    awaited(lambda: not door.door.clients)
    requests: Any = client._parser._requests
    assert requests.gi_frame is None  # so it keeps nothing, garbage collected or not
    awaited(lambda: client._task is None)
    assert len(cache["k"]) == 100_000


def awaited(look: Any) -> Any:
    """Return what `look` finds, as soon as that is something true."""
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found
