"""The proxy that stands for a network: what is sent arrives in order, late, or not at all, as it was told."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from ..support.flaky_proxy import FlakyProxy, _Way, flaky_proxy
from ..support.redis_servers import RedisServer, awaited, redis_server

BRIEF = 0.05  # seconds without an answer, after which none is expected
LONG = 30.0


@pytest.fixture
def client(proxy: FlakyProxy) -> Iterator[redis.Redis]:
    """Return a client with one connection that it does not make anew."""
    with redis.Redis.from_url(proxy.url, single_connection_client=True, socket_timeout=LONG, retry=None) as made:
        yield made


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Return the address of a server that sends back what it gets, and ends when the other side does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while piece := connection.recv(1 << 16):
                        connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_bytes_are_in_order_whatever_the_delays(echo: tuple[str, int]) -> None:
    sent = b"".join(number.to_bytes(4, "big") for number in range(100_000))
    found = b""
    with flaky_proxy(echo) as proxy, socket.create_connection(proxy.address, LONG) as connection:

        def send() -> None:
            delays = itertools.cycle((0.0, 0.02, 0.001, 0.0))
            for start in range(0, len(sent), 20_000):
                proxy.delay(next(delays), next(delays))
                connection.sendall(sent[start : start + 20_000])
            connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        while piece := connection.recv(1 << 16):
            found += piece
        thread.join()
    assert found == sent


@pytest.mark.parametrize(("to_server", "to_client"), [(0.2, 0.0), (0.0, 0.2), (0.1, 0.1)])
def test_what_is_sent_arrives_after_the_delay(
    client: redis.Redis, proxy: FlakyProxy, to_server: float, to_client: float
) -> None:
    client.ping()
    proxy.delay(to_server, to_client)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.2


def test_connections_are_delayed_by_luck_which_changes() -> None:
    def delays(uneven: float, turn: int) -> list[float]:
        way = _Way(10.0, uneven, turn)
        return [way.delay_of(number) for number in range(50)]

    assert {*delays(0.0, 1)} == {10.0}
    assert all(5.0 <= each <= 10.0 for each in delays(0.5, 1))
    assert {0.0, 10.0} < {*delays(1.0, 1)}
    assert delays(1.0, 1) == delays(1.0, 1) != delays(1.0, 2)


def test_a_server_that_is_gone_is_told_by_an_end(proxy: FlakyProxy, server: RedisServer) -> None:
    server.kill()
    with redis.Redis.from_url(proxy.url, retry=None) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    server.start()
    with redis.Redis.from_url(proxy.url) as client:
        assert client.ping()


def test_what_is_sent_later_may_arrive_earlier_on_another_connection(
    proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.flaky_proxy._Way.delay_of", lambda way, number: way.delay * (number == 1))
    with socket.create_connection(proxy.address, LONG) as slow:
        slow.sendall(b"PING\r\n")
        assert slow.recv(7) == b"+PONG\r\n"
        with socket.create_connection(proxy.address, LONG) as quick:
            quick.sendall(b"PING\r\n")
            assert quick.recv(7) == b"+PONG\r\n"
            proxy.delay(to_server=0.3, uneven=1.0)
            slow.sendall(b"INCR count\r\n")
            quick.sendall(b"INCR count\r\n")
            assert (slow.recv(4), quick.recv(4)) == (b":2\r\n", b":1\r\n")


def test_an_end_is_held_back_as_well(client: redis.Redis, proxy: FlakyProxy, server: RedisServer) -> None:
    client.ping()
    proxy.freeze()
    client.close()
    assert server.info("clients")["connected_clients"] == 2
    proxy.thaw()
    awaited(lambda: server.info("clients")["connected_clients"] == 1, "the end of a connection")


def test_one_direction_can_be_frozen_alone(proxy: FlakyProxy, server: RedisServer) -> None:
    with socket.create_connection(proxy.address, LONG) as connection:
        connection.sendall(b"INCR count\r\n")
        assert connection.recv(4) == b":1\r\n"
        proxy.freeze("to_client")
        connection.sendall(b"INCR count\r\n")
        awaited(lambda: server.ask("GET", "count") == b"2", "a request")
        connection.settimeout(BRIEF)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.pass_everything()
        connection.settimeout(LONG)
        assert connection.recv(4) == b":2\r\n"


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_cut_is_reset_and_the_next_is_let_in(proxy: FlakyProxy, frozen: bool) -> None:
    with socket.create_connection(proxy.address, LONG) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(7) == b"+PONG\r\n"
        if frozen:
            proxy.freeze()
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    proxy.thaw()
    with redis.Redis.from_url(proxy.url) as client:
        assert client.ping()


def test_new_connections_are_refused_and_old_ones_go_on(client: redis.Redis, proxy: FlakyProxy) -> None:
    client.ping()
    proxy.refuse()
    proxy.refuse()
    assert client.ping()
    with pytest.raises(ConnectionRefusedError), closing(socket.create_connection(proxy.address, LONG)):
        pass
    address = proxy.address
    proxy.accept()
    assert proxy.address == address
    with redis.Redis.from_url(proxy.url) as other:
        assert other.ping()


def test_it_can_lead_to_another_server(client: redis.Redis, proxy: FlakyProxy) -> None:
    client.set("key", "first")
    with redis_server() as other:
        proxy.lead_to(other.address)
        assert client.get("key") == b"first"
        proxy.cut()
        with redis.Redis.from_url(proxy.url) as second:
            assert second.get("key") is None
