"""The servers that the tests start: each kind is what it says, and nothing of it is left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import redis

from ..support.redis_servers import RedisServer, Unready, awaited, redis_pair, redis_sentinel, redis_server
from ..support.workers import Crew, Link


def test_a_server_answers_on_tcp_and_on_its_socket(server: RedisServer) -> None:
    for url in (server.url, server.unix_url):
        with redis.Redis.from_url(url, protocol=3) as client:
            assert client.ping()
            client.incr("count")
    assert server.ask("GET", "count") == b"2"


def test_nothing_is_left_of_a_server() -> None:
    with redis_server() as server:
        pid, directory = server.pid, server.directory
        assert directory.exists()
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_was_stopped_or_killed_before_the_end_leaves_nothing_either() -> None:
    with redis_server() as stopped, redis_server() as killed:
        stopped.stop()
        killed.kill()
    assert not stopped.directory.exists()
    assert not killed.directory.exists()


def test_a_stopped_server_stands_still_until_it_goes_on(server: RedisServer) -> None:
    for _ in range(2):
        server.stop()
        assert " T " in Path(f"/proc/{server.pid}/stat").read_text()
        with server.client(socket_timeout=0.01, retry=None) as client, pytest.raises(redis.TimeoutError):
            client.ping()
        server.go_on()
        assert server.ask("PING")


def test_a_restarted_server_is_empty_and_at_the_same_place(server: RedisServer) -> None:
    server.ask("SET", "key", "value")
    url, pid, run = server.url, server.pid, server.info("server")["run_id"]
    server.restart()
    assert (server.url, server.ask("GET", "key")) == (url, None)
    assert server.pid != pid
    assert server.info("server")["run_id"] != run
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_a_server_that_followed_another_one_is_empty_when_it_is_restarted() -> None:
    with redis_server() as primary, redis_server() as replica:
        primary.ask("SET", "key", "value")  # before the first copy
        replica.follow(primary)
        replica.promote()
        replica.restart()
        assert replica.ask("DBSIZE") == 0


def test_a_server_takes_options() -> None:
    with redis_server({"maxmemory": "10mb", "tracking-table-max-keys": "10"}) as server:
        assert server.ask("CONFIG", "GET", "maxmemory") == {b"maxmemory": str(10 << 20).encode()}
        assert server.ask("CONFIG", "GET", "tracking-table-max-keys") == {b"tracking-table-max-keys": b"10"}
        assert server.ask("DEBUG", "SLEEP", "0")


def test_an_option_that_the_server_refuses_is_told_at_once() -> None:
    with pytest.raises(Unready, match="ended at once"), redis_server({"maxmemory": "plenty"}):
        pass


def test_a_port_that_was_taken_meanwhile_is_told(server: RedisServer) -> None:
    with redis_server() as other:
        other.kill()
        other.port = server.port
        with pytest.raises(Unready, match="in use"):
            other.start()


def test_a_server_with_tls_refuses_who_does_not_trust_its_authority() -> None:
    with redis_server(tls=True) as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        bare = server.url.partition("?")[0]
        for url, why in ((bare, "CERTIFICATE_VERIFY_FAILED"), (bare.replace("rediss:", "redis:"), ".")):
            with redis.Redis.from_url(url, retry=None) as client, pytest.raises(redis.ConnectionError, match=why):
                client.ping()
        assert server.ask("PING")


def test_a_server_with_users_lets_each_do_what_it_may() -> None:
    users = {"app": "on >secret ~dl:* +@all", "default": "off"}
    with redis_server(users=users) as server:
        with redis.Redis.from_url(server.url_for("app", "secret")) as client:
            client.set("dl:key", 1)
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.set("other", 1)
        for user, password in (("app", "wrong"), ("", "")):
            url = server.url_for(user, password)
            with redis.Redis.from_url(url) as client, pytest.raises(redis.AuthenticationError):
                client.ping()
        assert server.ask("GET", "dl:key") == b"1"


def test_clients_can_be_dropped(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        number = client.client_id()
        assert server.drop_clients() == 1
        assert awaited(client.client_id, "a new connection") != number


def test_a_replica_has_what_the_primary_has_and_can_take_its_place() -> None:
    with redis_pair() as (primary, replica):
        primary.ask("SET", "key", "value")
        awaited(lambda: replica.has_caught_up(primary), "a replica that has caught up")
        assert replica.ask("GET", "key") == b"value"
        with pytest.raises(redis.ReadOnlyError):
            replica.ask("DEL", "key")
        replica.promote()
        primary.follow_nobody_there()
        assert replica.ask("SET", "key", "newer")
        with pytest.raises(redis.ReadOnlyError):
            primary.ask("DEL", "nothing")
        assert primary.ask("PING"), "although it is no primary any more"
        assert primary.ask("GET", "key") == b"value"


def test_a_replica_has_caught_up_only_with_its_primary_as_it_is_now() -> None:
    with redis_pair() as (primary, replica), redis_server() as other:
        primary.ask("SET", "key", "value")
        awaited(lambda: replica.has_caught_up(primary), "a replica that has caught up")
        assert not replica.has_caught_up(other), "although that has done less"
        primary.restart()
        replica.follow(primary)
        assert replica.ask("DBSIZE") == 0


def test_a_sentinel_promotes_the_replica_when_told() -> None:
    with redis_sentinel() as watched:
        old = watched.primary
        new = watched.fail_over()
        assert new is not old
        assert new is watched.primary
        assert new.ask("SET", "key", "value")


def test_a_sentinel_promotes_the_replica_when_the_primary_is_dead() -> None:
    with redis_sentinel() as watched:
        old = watched.primary
        old.kill()
        new = watched.successor_of(old)
        assert new.ask("SET", "key", "value")
        with watched.client() as client:
            assert client.get("key") == b"value"


def test_what_is_waited_for_and_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.redis_servers.PATIENCE", 0.01)
    with pytest.raises(Unready, match="a miracle"):
        awaited(lambda: None, "a miracle")


def test_a_server_does_not_outlive_a_process_that_is_killed() -> None:
    with Crew() as crew:
        worker = crew.start(_with_a_server)
        pid, directory = worker.hear()
        worker.kill()
        awaited(lambda: not _is_alive(pid), "the server's end")
    shutil.rmtree(directory)  # which nobody was there to remove


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def _with_a_server(link: Link) -> None:
    with redis_server() as server:
        assert server.pid != os.getpid()
        link.tell((server.pid, server.directory))
        link.hear()
