"""The command `serve`: processes, sockets, signals, and who may connect."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from diskcache_like import Cache
from diskcache_like.server.sockets import Address

from ..support.cache_servers import CacheServer, serve_command, serving, started
from ..support.certificates import self_signed

PASSWORD = "correct horse battery staple"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "shop"


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.touch(0o600)
    path.write_text(PASSWORD + "\n")
    return str(path)


@pytest.fixture
def server(directory: Path) -> Iterator[CacheServer]:
    with serving(directory, "--workers", "2") as running:
        yield running


def refusal(directory: Path, *arguments: str) -> str:
    """Return what a server says that does not begin."""
    done = subprocess.run(serve_command(directory, *arguments), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    return done.stderr


def of_both_workers(server: CacheServer) -> list[redis.Redis]:
    """Return a client of each of two workers."""
    found: dict[int, redis.Redis] = {}
    for _ in range(1000):
        client = server.client()
        if found.setdefault(client.info("server")["process_id"], client) is not client:
            client.close()
        if len(found) == 2:
            return list(found.values())
    raise AssertionError("one worker takes all connections")


def test_clients_and_python_see_the_same_entries(server: CacheServer) -> None:
    with server.client() as client, Cache(server.directory) as cache:
        client.set("greeting", "hello", ex=60)
        assert cache.get("greeting") == b"hello"
        cache["greeting"] = "good morning"
        assert client.get("greeting") == b"good morning"


def test_what_one_worker_stores_the_next_request_to_another_reads(server: CacheServer) -> None:
    one, other = of_both_workers(server)
    with one, other:
        for number in range(200):
            one.set("key", number)
            assert other.get("key") == b"%d" % number
            other.delete("key")
            assert one.get("key") is None


def test_its_socket_is_for_this_user_alone_and_goes_with_it(server: CacheServer) -> None:
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    assert server.stop() == 0
    assert not os.path.exists(server.path)


def test_the_group_of_a_shared_directory_may_connect(directory: Path) -> None:
    with serving(directory, "--shared", "--workers", "1") as server:
        assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o660


def test_a_killed_worker_is_replaced_and_loses_nothing(server: CacheServer) -> None:
    acknowledged = {}
    threads = []
    client = server.client()
    for number in range(600):
        if number % 200 == 100:  # while further entries are stored
            threads.append(threading.Thread(target=os.kill, args=(client.info("server")["process_id"], signal.SIGKILL)))
            threads[-1].start()
        try:
            assert client.set(f"key:{number}", number)
            acknowledged[f"key:{number}"] = number
        except redis.ConnectionError:
            client.close()
            client = server.client()
    client.close()
    for thread in threads:
        thread.join()
        assert "another one begins" in server.next_line()
    with Cache(server.directory) as cache:
        assert len(acknowledged) > 500
        assert {key: int(cache[key]) for key in acknowledged} == acknowledged
        assert cache.check() == []


def test_what_has_arrived_is_answered_when_it_stops(server: CacheServer) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.path)
        commands = b"".join(b"*3\r\n$3\r\nSET\r\n$6\r\n%06d\r\n$1\r\nx\r\n" % number for number in range(5000))
        client.sendall(commands)
        found = client.recv(5)  # so it has begun
        assert server.stop() == 0
        while piece := client.recv(1 << 16):
            found += piece
    with Cache(server.directory) as cache:
        assert len(found) % 5 == 0
        assert found == b"+OK\r\n" * len(cache)


def test_workers_end_with_the_first_process(server: CacheServer) -> None:
    with server.client() as client:
        assert client.ping()
        server.process.kill()
        server.process.wait()
        connection = client.connection
        assert connection is not None
        with pytest.raises(redis.ConnectionError):
            while True:  # until the worker has noticed
                client.execute_command("PING")


def test_a_socket_that_a_killed_server_left_is_replaced(directory: Path) -> None:
    server = started(directory, "--workers", "1")
    server.process.kill()
    server.process.communicate()
    assert os.path.exists(server.path)
    with serving(directory, "--workers", "1") as other, other.client() as client:
        assert client.ping()


def test_a_second_server_does_not_take_the_socket(server: CacheServer) -> None:
    assert server.path in refusal(server.directory)
    with server.client() as client:
        assert client.ping()


def test_a_file_in_the_place_of_the_socket_stays(directory: Path) -> None:
    path = Path(f"{directory}.sock")
    path.write_text("mine")
    assert str(path) in refusal(directory)
    assert path.read_text() == "mine"


def test_systemd_is_told_when_it_listens(directory: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        with serving(directory, "--workers", "1", NOTIFY_SOCKET=str(tmp_path / "notify")):
            assert systemd.recv(100) == b"READY=1"


def test_resp_and_http_on_ports(directory: Path) -> None:
    import httpx

    with serving(directory, "--resp", "0", "--http", "0", "--workers", "2") as server:
        with server.client(port=server.port("resp")) as client:
            client.set("key", "value")
        url = f"http://127.0.0.1:{server.port('http')}/keys/key"
        assert httpx.get(url).content == b"value"
        assert httpx.put(url, content=b"other").is_success
        with Cache(directory) as cache:
            assert cache["key"] == b"other"


def test_http_on_a_unix_socket(directory: Path) -> None:
    import httpx

    path = f"{directory}.http"
    with (
        serving(directory, "--resp", "", "--http", path, "--workers", "1"),
        httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://cache") as client,
    ):
        assert client.put("/keys/a", content=b"1").is_success
        assert client.get("/keys/a").content == b"1"


def test_a_password(directory: Path, password_file: str) -> None:
    with serving(directory, "--password-file", password_file, "--workers", "1") as server:
        with pytest.raises(redis.AuthenticationError), server.client() as client:
            client.get("key")
        with server.client(password=PASSWORD) as client:
            assert client.set("key", "value")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_password_that_others_may_read_is_refused(directory: Path, password_file: str, mode: int) -> None:
    os.chmod(password_file, mode)
    assert "0600" in refusal(directory, "--password-file", password_file)


def test_a_short_password_is_refused(directory: Path, password_file: str) -> None:
    Path(password_file).write_text("short\n")
    assert "16" in refusal(directory, "--password-file", password_file)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "shop.example"])
def test_other_machines_need_a_password_and_tls(directory: Path, password_file: str, host: str) -> None:
    for given in ([], ["--password-file", password_file]):
        said = refusal(directory, "--resp", f"{host}:0", *given)
        assert "--password-file and --certificate" in said
    assert not directory.exists()


def test_tls(directory: Path, tmp_path: Path, password_file: str) -> None:
    import httpx

    certificate, key = self_signed(tmp_path)
    given = ["--certificate", certificate, "--private-key", key, "--password-file", password_file, "--workers", "1"]
    with serving(directory, "--resp", "0.0.0.0:0", "--http", "localhost:0", *given) as server:
        port = server.port("resp")
        with server.client(port=port, password=PASSWORD, ssl=True, ssl_ca_certs=certificate) as client:
            assert client.set("key", "value")
        trusted = ssl.create_default_context(cafile=certificate)
        headers = {"Authorization": f"Bearer {PASSWORD}"}
        found = httpx.get(f"https://localhost:{server.port('http')}/keys/key", verify=trusted, headers=headers)
        assert found.content == b"value"
        with pytest.raises(redis.ConnectionError), server.client(port=port, password=PASSWORD) as client:
            client.ping()


def test_a_hostile_directory_is_refused(directory: Path) -> None:
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    assert str(directory) in refusal(directory)
    assert not os.path.exists(f"{directory}.sock")


def test_nothing_to_serve(directory: Path) -> None:
    assert "--resp or --http" in refusal(directory, "--resp", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6379", Address(None, "127.0.0.1", 6379)),
        ("localhost:6379", Address(None, "localhost", 6379)),
        ("[::1]:80", Address(None, "::1", 80)),
        ("/run/cache.sock", Address("/run/cache.sock")),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert Address.of(text) == expected
    assert expected.is_local


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "localhost", "localhost:", "localhost:x", "٣"])
def test_what_is_no_address(directory: Path, text: str) -> None:
    assert "expected PORT" in refusal(directory, "--http", text or "x")
