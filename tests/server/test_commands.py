"""What commands mean: compared with Redis itself, and beside it what a cache has that Redis has not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.connection import UnixDomainSocketConnection

from diskcache_like import Cache, FanoutCache
from diskcache_like.server.commands import COMMANDS

from ..support.redis_servers import PATIENCE, RedisServer
from .doors import OpenDoor, open_door

BIG = 2**63 - 1
FAR = 4_000_000_000

# Sent in this order to both servers, on one connection each, and after FLUSHALL.
SCRIPT = """
SET a 1 | GET a | SET a 2 NX | SET b 2 NX | SET a 3 XX | SET c 3 XX | GET a | GET b | GET c
SET a 4 GET | SET new 5 GET | SET a 6 NX GET | SET none 6 XX GET | GET a | GET none | SET none 7 NX GET | GET none
SET a 1 EX 100 | TTL a | SET a 2 KEEPTTL | TTL a | SET a 3 | TTL a | SET a 1 PX 100000 | TTL a | SET a 1 GET KEEPTTL
TTL a | SET a 1 EXAT FAR | EXPIRETIME a | PEXPIRETIME a | SET a 1 PXAT FAR000 | EXPIRETIME a | SET a 1 EXAT 1 | GET a
SET a 1 EX | SET a 1 EX x | SET a 1 EX 0 | SET a 1 EX -1 | SET a 1 PX 0 | SET a 1 EXAT 0 | SET a 1 EX BIG | GET a
SET a 1 EX 10 PX 10 | SET a 1 EX 10 KEEPTTL | SET a 1 NX XX | SET a 1 bogus | SET a | SET | SET a 1 PERSIST
SET a 1 EX 9223372036854775 | SET a 1 EX 9223370000000000 | SET a 1 PX BIG | SET a 1 ex 10 | TTL a | sEt a 2 nX
SETNX a 9 | SETNX s 1 | GET s | SETNX s | SETEX e 100 v | TTL e | GET e | SETEX e 0 v | SETEX e x v | SETEX e -1 v
SETEX e BIG v | PSETEX e 100000 w | GET e | TTL e | PSETEX e 0 v | SETEX e 1 | GETSET e x | TTL e | GETSET miss y
GET miss | GETSET miss | MSET k1 1 k2 2 k1 3 | MGET k1 k2 k3 | MSET k1 | MSET k1 1 k2 | MSET | MGET | GETDEL k1
GETDEL k1 | GETDEL | GETEX k2 | TTL k2 | GETEX k2 EX 100 | TTL k2 | GETEX k2 PERSIST | TTL k2 | GETEX k2 EXAT FAR
EXPIRETIME k2 | GETEX k2 PERSIST EX 10 | GETEX k2 EX 0 | GETEX k2 EX | GETEX k2 NX | GETEX k2 KEEPTTL | GETEX nope EX 5
GETEX k2 EXAT 1 | EXISTS k2 | GETEX
APPEND ap foo | APPEND ap bar | GET ap | STRLEN ap | STRLEN nope | APPEND ap | STRLEN | SET ap x EX 100 | APPEND ap y
TTL ap | GET ap | INCR n | INCR n | INCRBY n 10 | DECR n | DECRBY n 5 | GET n | DECRBY n -3 | INCRBY n x | INCRBY n 1.5
INCRBY n | INCR | INCR ap | SET n 007 | INCR n | SET n +5 | INCR n | INCRBY m +5 | SET n -0 | INCR n | INCRBY n 05
SET n BIG | INCR n | GET n | DECR n | SET n -9223372036854775808 | DECR n | INCR n | SET n 9223372036854775808 | INCR n
INCRBY n BIG | SET n 1 | INCRBY n BIG | DECRBY n -9223372036854775808 | DECRBY n -9223372036854775807 | GET n
INCRBY n 9223372036854775808 | SET n 5 EX 100 | INCR n | TTL n | DECRBY zero 0 | GET zero | STRLEN n | APPEND n 0 | INCR n
TTL n | INCRBYFLOAT f 1.5 | INCRBYFLOAT f 1.5 | GET f | INCR f | INCRBYFLOAT f 0.1 | GET f | INCRBYFLOAT f -3.1 | GET f
INCRBYFLOAT f 5.0e3 | INCRBYFLOAT f x | INCRBYFLOAT f inf | INCRBYFLOAT f nan | INCRBYFLOAT f -INFINITY
INCRBYFLOAT f infi |  SET f ten | INCRBYFLOAT f 1
SET f 10.50 | INCRBYFLOAT f 0.1 | INCRBYFLOAT f | SET f 5.0e3 | INCRBYFLOAT f 2.0e2 | SET f 17179869184
INCRBYFLOAT f 1.5 | INCRBYFLOAT f .5 | INCRBYFLOAT f 1. | SET f 3 EX 100 | INCRBYFLOAT f 1.1 | TTL f | STRLEN f
EXISTS a b nope a | EXISTS | DEL a b nope a | DEL | UNLINK n f | EXISTS n f | TYPE ap | TYPE nope | TYPE
SET t v | EXPIRE t 100 | TTL t | EXPIRE t 200 NX | TTL t | EXPIRE t 50 XX | TTL t | EXPIRE t 60 GT | TTL t
EXPIRE t 55 GT | TTL t | EXPIRE t 40 LT | TTL t | EXPIRE t 45 LT | TTL t | PERSIST t | TTL t | PERSIST t | PERSIST nope
EXPIRE t 100 GT | TTL t | EXPIRE t 100 XX | EXPIRE t 100 LT | TTL t | EXPIRE t 10 NX XX | EXPIRE t 10 NX GT
EXPIRE t 10 GT LT | EXPIRE t 10 XX GT | EXPIRE t 300 XX GT | TTL t | EXPIRE t 10 bogus | EXPIRE t x | EXPIRE t
EXPIRE nope 10 | PEXPIRE t 100000 | TTL t | EXPIREAT t FAR | EXPIRETIME t | PEXPIREAT t FAR123 | PEXPIRETIME t
EXPIRE t BIG | EXPIRE t -BIG | EXPIRE t 9223372036854775807 | PEXPIRE t BIG | EXPIREAT t BIG | PEXPIREAT t BIG
TTL nope | PTTL nope | EXPIRETIME nope | PEXPIRETIME nope | SET t v | PTTL t | EXPIRETIME t | EXPIRE t 0 | GET t
SET t v | EXPIRE t -1 | EXISTS t | SET t v | EXPIREAT t 1 | EXISTS t | SET t v | PEXPIREAT t 0 GT | EXISTS t | TTL
SET t v EX 100 | EXPIRE t -5 LT | EXISTS t | SET t v | EXPIRE t -5 XX | EXISTS t
DBSIZE | FLUSHDB | DBSIZE | FLUSHDB ASYNC | FLUSHALL SYNC | FLUSHALL bogus | FLUSHDB a b
MSET h:1 1 h:2 2 x*y 3 h?1 4 h[1 5 | KEYS * | KEYS h:* | KEYS h?1 | KEYS h\\?1 | KEYS h:[12] | KEYS h:[^1] | KEYS x\\*y
KEYS | KEYS none* | KEYS h\\[1 | KEYS [a-h]:[0-1] | SCAN x | SCAN 0 COUNT 0 | SCAN 0 COUNT x | SCAN 0 MATCH | SCAN
SCAN 0 BOGUS 1 | SCAN 0 MATCH h:* COUNT 1000 | SCAN 0 TYPE list COUNT 1000 | SCAN 0 COUNT 1000 TYPE string
PING | PING hello | PING a b | ECHO x | ECHO | SELECT 0 | SELECT x | SELECT 99 | SELECT -1 | CLIENT GETNAME
CLIENT SETNAME me | CLIENT GETNAME | CLIENT | CLIENT BOGUS | CLIENT SETNAME | CLIENT ID x
CONFIG | CONFIG BOGUS | CONFIG GET save | CONFIG GET appendonly | CONFIG GET | CONFIG GET nothing | COMMAND BOGUS
nonsense | nonsense a b | HELLO 9 | HELLO x | HELLO 3 SETNAME | CLIENT GETNAME | AUTH x | AUTH a b c | AUTH other x
AUTH default x | RESET x | CLIENT TRACKING | CLIENT TRACKING MAYBE | CLIENT TRACKING OFF | CLIENT TRACKING ON BOGUS
"""


def commands_of(script: str) -> list[list[bytes]]:
    """Return the commands of a script."""
    script = script.replace("BIG", str(BIG)).replace("FAR", str(FAR))
    lines = (each.strip() for line in script.splitlines() for each in line.split("|"))
    return [each.encode().split() for each in lines if each]


class Peer:
    """A server that is asked command by command."""

    def __init__(self, path: Path, version: int) -> None:
        kind: Any = UnixDomainSocketConnection
        self._connection = kind(path=str(path), protocol=version, socket_timeout=PATIENCE)
        self._connection.connect()

    def ask(self, words: list[bytes]) -> Any:
        """Return the reply, an error as its text."""
        self._connection.send_packed_command(self._connection.pack_command(*words))
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.RedisError as error:
            return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


def in_order(words: list[bytes], reply: Any) -> Any:
    """Return a reply of which nothing is left to chance."""
    name = words[0].upper()
    if name == b"KEYS" and isinstance(reply, list):
        return sorted(reply)
    if name == b"SCAN" and isinstance(reply, list):
        return [reply[0], sorted(reply[1])]
    if name in (b"TTL", b"PTTL") and isinstance(reply, int) and reply > 0:
        return round(reply / (10 if name == b"TTL" else 10_000))  # they are asked one after the other
    return reply


def differences(mine: Path, theirs: Path, version: int, commands: list[list[bytes]]) -> list[str]:
    """Return how two servers answer otherwise."""
    found = []
    peers = [Peer(path, version) for path in (mine, theirs)]
    try:
        for words in commands:
            one, other = (in_order(words, peer.ask(words)) for peer in peers)
            if one != other:
                found.append(f"{b' '.join(words).decode()}: {one!r} instead of {other!r}")
    finally:
        for peer in peers:
            peer.close()
    return found


@pytest.mark.parametrize("version", [2, 3])
def test_replies_are_those_of_redis(door: OpenDoor, server: RedisServer, version: int) -> None:
    assert differences(door.path, server.socket, version, commands_of(SCRIPT)) == []


KEYS = [b"a", b"b", b"\xff\x00", b"k\xc3\xa9"]
VALUES = [b"", b"0", b"1", b"-7", b"12.5", b"text", b"\r\n\x00", str(BIG).encode(), b"1e3"]
TIMES = [b"100", b"-1", b"0", b"5000", b"x"]


def a_command(chance: random.Random) -> list[bytes]:
    key, other = chance.choice(KEYS), chance.choice(KEYS)
    value, moment = chance.choice(VALUES), chance.choice(TIMES)
    options = [b"NX", b"XX", b"GET", b"KEEPTTL", b"EX 1000", b"EXAT %d" % FAR, b"PERSIST"]
    words = b" ".join(chance.sample(options, chance.choice((0, 0, 1, 1, 2)))).split()
    unit = chance.choice([b"NX", b"XX", b"GT", b"LT"])
    return chance.choice(
        [
            [b"GET", key],
            [b"SET", key, value, *words],
            [b"GETEX", key, *words],
            [b"MSET", key, value, other, b"m"],
            [b"MGET", key, other, b"none"],
            [b"DEL", key, other, key],
            [b"EXISTS", key, other],
            [b"GETDEL", key],
            [b"GETSET", key, value],
            [b"SETNX", key, value],
            [b"APPEND", key, value],
            [b"STRLEN", key],
            [b"INCR", key],
            [b"DECRBY", key, chance.choice([b"3", b"-3", b"x", str(BIG).encode()])],
            [b"EXPIRE", key, moment, *([unit] if chance.random() < 0.5 else [])],
            [b"EXPIREAT", key, b"%d" % (FAR + chance.randrange(3))],
            [b"EXPIRETIME", key],
            [b"TTL", key],
            [b"PERSIST", key],
            [b"TYPE", key],
            [b"KEYS", b"*"],
            [b"DBSIZE"],
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_replies_are_those_of_redis_at_random(door: OpenDoor, server: RedisServer, seed: int) -> None:
    chance = random.Random(seed)
    commands = [a_command(chance) for _ in range(400)]
    assert differences(door.path, server.socket, 2, commands) == []


# -- what Redis has not -----------------------------------------------------------------------------------------------


def test_tags_are_those_of_the_cache(door: OpenDoor, cache: Cache) -> None:
    with door.client() as client:
        assert client.execute_command("DL.SET", "one", "1", "TAGS", "red", "blå") == b"OK"
        assert client.execute_command("DL.SET", "two", "2", "EX", 100, "TAGS", "red") == b"OK"
        assert cache.get("one", tag=True) == (b"1", ("blå", "red"))
        assert client.execute_command("DL.TAGS", "one") == ["blå".encode(), b"red"]
        assert client.execute_command("DL.TAGS", "none") is None
        assert client.execute_command("DL.EVICT", "ALL", "red", "blå") == 1
        assert client.execute_command("DL.EVICT", "ANY", "red", "none") == 1
        assert client.execute_command("DL.EVICT", "ANY", "red") == 0
        cache.set("mine", 1, tag=5)
        assert client.execute_command("DL.TAGS", "mine") == [b"5"]
        for command in (("DL.EVICT", "SOME", "red"), ("DL.EVICT", "ANY"), ("DL.SET", "k", "v", "TAGS", b"\xff")):
            with pytest.raises(redis.ResponseError):
                client.execute_command(*command)


def test_clients_see_what_python_stored(door: OpenDoor, cache: Cache) -> None:
    stored = {"text": "blå", "number": 5, "part": 2.5, "list": [1, {"a": None}], "none": None, "true": True}
    cache.set_many(stored)
    cache.set("object", {1, 2}, expire=100)
    cache.set(b"text", b"the same name as a text, and not its key")
    cache.namespace("tenant")["text"] = "hidden"
    with door.client() as client:
        wanted = ["blå".encode(), b"5", b"2.5", b'[1,{"a":null}]', b"null", b"true"]
        assert client.mget(*stored) == wanted
        assert [client.get(name) for name in stored] == wanted
        assert sorted(client.keys("*")) == sorted([*(name.encode() for name in stored), b"object"])
        assert client.mget("object") == [None]
        for name in ("GET", "GETDEL", "STRLEN", "INCR"):
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                client.execute_command(name, "object")
        assert client.exists("object")
        assert client.set("object", "plain", keepttl=True)
        assert 0 < client.ttl("object") <= 100


def test_numbers_are_numbers_to_python(door: OpenDoor, cache: Cache) -> None:
    with door.client() as client:
        client.incr("n", 5)
        client.set("text", "41")
        client.incr("text")
        client.incrbyfloat("f", 2.5)
        client.incrbyfloat("whole", 2.0)
        cache["big"] = 1 << 70
        cache["true"] = True
        for name in ("big", "true"):
            with pytest.raises(redis.ResponseError, match="not an integer"):
                client.incr(name)
    assert [cache[name] for name in ("n", "text", "f", "whole", "big")] == [5, 42, 2.5, 2, 1 << 70]
    assert [type(cache[name]) for name in ("n", "f", "whole", "true")] == [int, float, int, bool]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_scan_finds_what_is_there_all_the_time(tmp_path: Path, shards: int) -> None:
    with FanoutCache(tmp_path / "cache", shards=shards) as cache, open_door(cache, tmp_path) as door:
        stays = {f"stays {number}".encode() for number in range(500)}
        cache.set_many((name.decode(), b"v") for name in stays)
        with door.client() as client:
            found, cursor, calls = set(), 0, 0
            while calls == 0 or cursor != 0:
                cursor, page = client.scan(cursor, count=30)
                assert 0 <= cursor < 1 << 64
                found.update(page)
                client.set(f"comes {calls}", "v")
                client.delete(f"comes {calls - 1}")
                calls += 1
                assert calls < 100
            assert stays <= found
            assert {*client.scan_iter(match="stays 1?", count=7)} == {f"stays 1{digit}".encode() for digit in range(10)}


def test_an_error_of_the_cache_is_a_reply(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache", timeout=0.01) as cache, open_door(cache, tmp_path) as door, door.client() as client:
        with Cache(tmp_path / "cache") as other, other.transact():
            other["k"] = 1
            with pytest.raises(redis.ResponseError, match="Timeout"):
                client.set("k", "v")
        assert client.set("k", "v")
        with pytest.raises(redis.ResponseError, match="TagError"):
            client.execute_command("DL.SET", "k", "w", "TAGS", *map(str, range(65)))
        with pytest.raises(redis.ResponseError, match="Key"):
            client.set("k" * 100_000, "v")
        assert client.get("k") == b"v"


def test_a_value_that_can_never_fit_is_refused(tmp_path: Path) -> None:
    limited = Cache(tmp_path / "cache", size_limit=10 << 20)
    with limited as cache, open_door(cache, tmp_path) as door, door.client() as client:
        client.set("a", b"x" * (6 << 20))
        for command in (("SET", "k", b"x" * (11 << 20)), ("APPEND", "a", b"x" * (6 << 20))):
            with pytest.raises(redis.ResponseError, match="maximum allowed size"):
                client.execute_command(*command)
        assert client.strlen("a") == 6 << 20


def test_an_unexpected_exception_is_logged_and_not_told(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inside")

    monkeypatch.setitem(COMMANDS, b"ECHO", COMMANDS[b"ECHO"]._replace(function=fail))
    with door.client() as client:
        with pytest.raises(redis.ResponseError, match="internal error") as told:
            client.echo("x")
        assert "inside" not in str(told.value)
        assert client.ping()
    assert "inside" in caplog.text


def test_info_and_commands_are_told(door: OpenDoor) -> None:
    with door.client(client_name="me") as client:
        client.set("a", 1)
        client.get("a")
        told = client.info()
        assert told["redis_version"]
        assert told["connected_clients"] == 1
        assert told["db0"]["keys"] == 1
        assert told["keyspace_hits"] >= 1
        assert list(client.info("memory")) == ["used_memory", "maxmemory"]
        commands = client.command()
        assert commands["mset"]["first_key_pos"] == 1
        assert commands["mset"]["step_count"] == 2
        assert client.command_count() == len(commands)
        assert client.config_get("max*")["maxmemory-policy"] == "allkeys-lru"
        (mine,) = client.client_list()
        assert mine["name"] == "me"
        assert mine["lib-name"].startswith("redis-py")
        assert mine["resp"] == "3"
        assert client.client_id() == int(mine["id"])


def test_transactions_are_refused(door: OpenDoor) -> None:
    with door.client() as client:
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.pipeline().set("a", 1).execute()
        assert client.pipeline(transaction=False).set("a", 1).get("a").execute() == [True, b"1"]
