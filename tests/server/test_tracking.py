"""Tracking: clients are told of every change, whoever makes it."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.cache import CacheConfig

from diskcache_like import Cache
from diskcache_like.coherence.generations import Header
from diskcache_like.server import tracking
from diskcache_like.server.access import Access, Limits
from diskcache_like.server.tracking import Tracking

from .doors import PATIENCE, OpenDoor, exchange, open_door, received
from .test_connection import awaited
from .test_resp import packed

ALL = b">2\r\n$10\r\ninvalidate\r\n_\r\n"


def told(*names: bytes) -> bytes:
    """Return what a client is told of keys that have changed."""
    return b">2\r\n$10\r\ninvalidate\r\n" + packed(list(names))


@contextmanager
def tracked(door: OpenDoor, *options: bytes) -> Iterator[socket.socket]:
    """Connect a client that is told of changes."""
    with door.connect() as plain:
        plain.sendall(packed([b"HELLO", b"3"]) + packed([b"CLIENT", b"TRACKING", b"ON", *options]) + b"ECHO begun\r\n")
        found = b""
        while not found.endswith(b"$5\r\nbegun\r\n"):
            found += received(plain, 1)
        yield plain


def read(plain: socket.socket, name: bytes) -> None:
    """Let a client read a key that is missing, or a value of one byte."""
    plain.sendall(packed([b"STRLEN", name]))
    assert received(plain, 4)[:1] == b":"


CHANGES: dict[str, Callable[[Cache], object]] = {
    "set": lambda cache: cache.set("k", b"2"),
    "large": lambda cache: cache.set("k", b"x" * 100_000),
    "delete": lambda cache: cache.delete("k"),
    "incr": lambda cache: cache.set("k", 1) and cache.incr("k"),
    "touch": lambda cache: cache.touch("k", 100),
    "many": lambda cache: cache.set_many({"k": b"2", "other": b"3"}),
    "evict": lambda cache: cache.evict("tag"),
    "clear": lambda cache: cache.clear(),
    "pop": lambda cache: cache.pop("k"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [(), (b"BCAST",), (b"BCAST", b"PREFIX", b"k", b"PREFIX", b"j")])
def test_every_change_is_told(door: OpenDoor, cache: Cache, change: str, options: tuple[bytes, ...]) -> None:
    cache.set("k", b"1", tag="tag")
    cache.set("unrelated", b"1")
    with tracked(door, *options) as plain, Cache(cache.directory) as other:
        read(plain, b"k")
        CHANGES[change](other)
        found = received(plain, len(ALL))
        if found != ALL:
            assert found.startswith(b">2\r\n$10\r\ninvalidate\r\n*")
            found += received(plain, len(told(b"k")) - len(found))
            assert b"$1\r\nk\r\n" in found or b"other" in found
        read(plain, b"k")  # nothing else is sent in between, or is sent again


def test_what_was_not_read_is_not_told(door: OpenDoor, cache: Cache) -> None:
    cache.set_many({f"k{number}": b"1" for number in range(100)})
    with tracked(door) as plain:
        read(plain, b"k1")
        for _ in range(2):  # only once for each read
            cache["k1"] = b"2"
            cache["k2"] = b"2"
            door.call(door.door.tracking._look)
            door.call(door.door.tracking.deliver)
        assert exchange(plain, b"PING\r\n", len(told(b"k1")) + 7) == told(b"k1") + b"+PONG\r\n"


def test_broadcasts_name_keys_with_a_prefix_that_nobody_knew(door: OpenDoor, cache: Cache) -> None:
    with tracked(door, b"BCAST", b"PREFIX", b"user:") as plain, Cache(cache.directory) as other:
        other["user:0"] = b"1"  # the first after all was flushed might have gone to the database
        assert received(plain, len(ALL)) == ALL
        other["page:1"] = b"1"
        other["user:1"] = b"1"
        other.delete("user:1")
        assert received(plain, len(told(b"user:1"))) == told(b"user:1")
        other.touch("user:0", 100)
        assert received(plain, len(told(b"user:0"))) == told(b"user:0")
        other["page:2"] = b"1"
        other.set("user:large", b"x" * 100_000)  # it goes to the database
        assert received(plain, len(ALL)) == ALL


def small(cache: Cache, chance: random.Random, name: str) -> None:
    cache[name] = b"1"


WRITES: list[Callable[[Cache, random.Random, str], object]] = [
    small,
    small,
    small,
    lambda cache, chance, name: cache.delete(name),
    lambda cache, chance, name: cache.touch(name, chance.randrange(50, 100)),
    lambda cache, chance, name: cache.set(name, b"x" * 20_000),
    lambda cache, chance, name: cache.set(name, b"x" * 50_000),
    lambda cache, chance, name: cache.set(name, b"1", tag="tag"),
    lambda cache, chance, name: cache.evict("tag"),
    lambda cache, chance, name: cache.set_many({name: b"1", f"{name}{name}": b"2"}),
    lambda cache, chance, name: cache.flush(),
    lambda cache, chance, name: list(cache),
    lambda cache, chance, name: cache.pop(name),
    lambda cache, chance, name: cache.set("n", 1) and cache.incr("n"),
]


@pytest.mark.parametrize("seed", range(20))
def test_broadcasts_leave_nothing_out(tmp_path: Path, seed: int) -> None:
    """Whatever two handles do between two looks, each key that changed is named, or all are."""
    chance = random.Random(seed)
    names = [f"k{number}" for number in range(6)]
    every = [*names, *(name * 2 for name in names), "n"]

    async def run() -> int:
        with Cache(tmp_path) as cache, Cache(tmp_path) as other:
            seen, found = tracking._Shard(), Tracking(cache)
            store = cache._shards.stores[0]
            found._written(store, seen)
            named = 0
            for _ in range(300):
                before = {name: other.get_entry(name) for name in every}
                for _ in range(chance.choice((1, 1, 1, 2, 3))):
                    chance.choice(WRITES)(chance.choice((cache, other)), chance, chance.choice(names))
                changed = {name.encode() for name in every if other.get_entry(name) != before[name]}
                told_of = found._written(store, seen)
                assert told_of is None or changed <= set(told_of)
                named += bool(changed) and told_of is not None
            return named

    assert asyncio.run(run()) > 20


@pytest.mark.parametrize(
    ("floor", "flushed", "internal", "known"),
    [
        (100, 100, 1, True),
        (100, 100, 2, False),  # an eviction, while something waited, leaves FLOOR as it was
        (90, 100, 2, True),  # a flush
        (90, 201, 2, False),  # what was written before it is not in the ring any more
        (200, 100, 1, False),
    ],
)
def test_what_a_broadcast_must_know(floor: int, flushed: int, internal: int, known: bool) -> None:
    ring, before = object(), tracking._Moment(None, floor, 1, 100, 200, 5)
    now = tracking._Moment(ring, floor, internal, flushed)
    assert tracking._is_known(before._replace(ring=ring), now) is known
    assert not tracking._is_known(before._replace(ring=object()), now)
    assert not tracking._is_known(before._replace(ring=ring, floor=floor - 1), now)


def test_a_broadcast_that_meets_a_write_half_done_is_completed(tmp_path: Path) -> None:
    async def run() -> None:
        with Cache(tmp_path) as cache:
            seen, found = tracking._Shard(), Tracking(cache)
            store = cache._shards.stores[0]
            cache["before"] = b"1"
            found._written(store, seen)
            store.shard.header[Header.TICK] += 1  # the tick is counted first,
            found._written(store, seen)
            store.shard.header[Header.TICK] -= 1
            cache["k"] = b"1"  # and the record is there later
            told_of = found._written(store, seen)
            assert told_of is None or b"k" in told_of

    asyncio.run(run())


def test_another_process_is_heard(door: OpenDoor, cache: Cache) -> None:
    cache["k"] = b"1"
    with tracked(door) as reads, tracked(door, b"BCAST") as listens:
        read(reads, b"k")
        script = "import sys; from diskcache_like import Cache; Cache(sys.argv[1])['k'] = b'2'"
        subprocess.run([sys.executable, "-c", script, cache.directory], check=True, timeout=PATIENCE)
        assert received(reads, len(told(b"k"))) == told(b"k")
        assert received(listens, 24) in (told(b"k")[:24], ALL)


def test_an_expiry_is_told(door: OpenDoor, cache: Cache) -> None:
    cache.set("k", b"1", expire=0.05)
    with tracked(door) as plain:
        read(plain, b"k")
        assert received(plain, len(told(b"k"))) == told(b"k")


def test_a_change_by_a_client_is_told_with_the_reply(door: OpenDoor, cache: Cache) -> None:
    with tracked(door) as plain:
        read(plain, b"k")
        (client,) = door.door.clients
        written: list[bytes] = []
        write = client._write
        client._write = lambda data: (written.append(data), write(data))[1]  # type: ignore[method-assign, func-returns-value]
        plain.sendall(packed([b"SET", b"k", b"1"]))
        assert received(plain, 5 + len(told(b"k"))) == b"+OK\r\n" + told(b"k")
        assert len(written) == 1  # or the client could read the one, and use what it has before the other comes


def test_a_read_that_races_a_write_is_told(door: OpenDoor, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write comes after the value was read and before the reply was sent."""
    cache["k"] = b"1"
    get: Any = cache.get

    def racing(*arguments: object) -> object:
        value = get(*arguments)
        with Cache(cache.directory) as other:
            other["k"] = b"2"
        return value

    with tracked(door) as plain:
        monkeypatch.setattr(cache, "get", racing)
        plain.sendall(packed([b"GET", b"k"]))
        assert received(plain, 7) == b"$1\r\n1\r\n"
        assert received(plain, len(told(b"k"))) == told(b"k")


def test_a_write_that_a_look_meets_half_done_is_looked_at_again(door: OpenDoor, cache: Cache) -> None:
    with tracked(door) as plain:
        read(plain, b"k")
        shard = cache._shards.stores[0].shard
        _, home, _ = cache._rows.locate("k")
        look, header, slot = door.door.tracking._look, shard.header, shard.slot_of(home)

        def write_in_two_steps() -> None:  # what a writer does, the look in between included
            tick = header[Header.TICK] = header[Header.TICK] + 1
            look()
            shard.slots[slot] = 2 * tick + 2
            header[Header.SETTLED] = tick
            look()
            door.door.tracking.deliver()

        door.call(write_in_two_steps)
        assert received(plain, len(told(b"k"))) == told(b"k")


def test_a_client_that_left_is_not_remembered(door: OpenDoor, cache: Cache) -> None:
    with tracked(door) as stays:
        read(stays, b"other")
        for _ in range(3):
            with tracked(door) as plain:
                read(plain, b"k")
        awaited(lambda: len(door.door.tracking._modes) == 1)
        assert {
            type(each)
            for shard in door.door.tracking._shards.values()
            for watch in shard.watched.values()
            for readers in watch.readers.values()
            for each in readers
        } == {int}
        cache["k"] = b"1"
        cache["other"] = b"1"
        assert received(stays, len(told(b"other"))) == told(b"other")


def test_a_look_that_fails_is_told_as_all(door: OpenDoor, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked(door) as plain, tracked(door, b"BCAST") as listens:
        read(plain, b"k")

        def fail() -> None:
            monkeypatch.undo()
            raise IndexError

        monkeypatch.setattr(door.door.tracking, "_look", fail)
        assert received(plain, len(ALL)) == received(listens, len(ALL)) == ALL


def test_a_client_that_does_not_read_what_it_is_told_is_dropped(cache: Cache, tmp_path: Path) -> None:
    limited = open_door(cache, tmp_path, Access(limits=Limits(output=1 << 16)))
    with limited as door, tracked(door, b"BCAST"), door.client() as client:
        names = [f"{number}".rjust(1000, "x") for number in range(1000)]

        def is_dropped() -> bool:
            for name in names:
                client.set(name, b"1")
            return not door.door.tracking._modes

        awaited(is_dropped)


def test_nobody_is_told_any_more(door: OpenDoor, cache: Cache) -> None:
    with tracked(door) as plain:
        read(plain, b"k")
        assert exchange(plain, b"CLIENT TRACKING OFF\r\n", 5) == b"+OK\r\n"
        cache["k"] = b"1"
        awaited(lambda: door.door.tracking._task is None)  # it costs nothing then
        assert exchange(plain, b"PING\r\n", 7) == b"+PONG\r\n"
    with tracked(door) as plain:
        read(plain, b"k")
    awaited(lambda: not door.door.tracking._modes)
    assert not any(shard.watched for shard in door.door.tracking._shards.values())


@pytest.mark.parametrize("names", [[b"%d" % number for number in range(11)], [b"k", b"x" * 10 * tracking.LONG]])
def test_too_many_keys_are_told_as_all(
    door: OpenDoor, cache: Cache, monkeypatch: pytest.MonkeyPatch, names: list[bytes]
) -> None:
    monkeypatch.setattr(tracking, "MOST", 10)
    with tracked(door) as plain:
        plain.sendall(b"".join(packed([b"STRLEN", name]) for name in names))
        replies = b":0\r\n" * len(names) + ALL
        assert received(plain, len(replies)) == replies
        assert door.door.tracking._watches == 0


def test_an_idle_look_compares_nothing(door: OpenDoor, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with tracked(door) as plain:
        read(plain, b"k")
        door.call(door.door.tracking._look)
        compared = []
        monkeypatch.setattr(door.door.tracking, "_compare", lambda *each: compared.append(each))
        door.call(door.door.tracking._look)
        assert not compared


def test_what_cannot_be_tracked_is_refused(door: OpenDoor) -> None:
    with door.client(protocol=2) as client, pytest.raises(redis.ResponseError, match="RESP 3"):
        client.execute_command("CLIENT", "TRACKING", "ON")
    with door.client() as client:
        for options in (("REDIRECT", "1"), ("OPTIN",), ("OPTOUT",), ("PREFIX", "a"), ("NONE",)):
            with pytest.raises(redis.ResponseError):
                client.execute_command("CLIENT", "TRACKING", "ON", *options)
        client.execute_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "a", "NOLOOP")
        with pytest.raises(redis.ResponseError, match="switch BCAST"):
            client.execute_command("CLIENT", "TRACKING", "ON")


def test_the_cache_of_redis_py_is_coherent(door: OpenDoor, cache: Cache) -> None:
    with redis.Redis(port=door.port, protocol=3, cache_config=CacheConfig()) as client:
        for number in range(50):
            client.set("k", number)
            assert client.get("k") == client.get("k") == b"%d" % number
        assert client.get_cache().size == 1
        cache["k"] = b"new"
        awaited(lambda: client.get("k") == b"new")


def test_another_database_file_is_noticed(tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache, open_door(cache, tmp_path) as door, tracked(door) as plain:
        read(plain, b"k")
        door.call(door.door.tracking._look)
        door.call(cache.close)
        with Cache(tmp_path / "cache") as other:
            other["k"] = b"1"
        assert received(plain, 22) in (ALL[:22], told(b"k")[:22])
