"""What travels proves itself: whatever a server makes of it is a miss that is counted, and runs no code."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diskcache_like import Cache, DecodeError, RemoteError, SettingError, SignatureError
from diskcache_like.tier.scripts import TAG_SIZE, TAGS_START

from ..support.cache_kinds import NEEDS_CIPHER, QUICK
from ..support.redis_servers import RedisServer
from .machines import SECRET, Machines, counted, remote_of

DAMAGE = (DecodeError, SignatureError)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Pass over the warning that there are entries which cannot be trusted; the counts are looked at instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def name_of(server: RedisServer) -> bytes:
    """Return the name of the only entry on a server."""
    (name,) = server.ask("KEYS", "dl:*:e*")
    return bytes(name)


def is_refused(reader: Cache, key: object = "k") -> bool:
    """Tell whether a key reads as missing because what is there cannot be trusted."""
    before = counted(reader, "unverifiable")
    return reader.get(key) is None and key not in reader and counted(reader, "unverifiable") > before


@pytest.mark.parametrize("encrypt", [False, pytest.param(True, marks=NEEDS_CIPHER)])
def test_any_flipped_byte_of_a_record_is_found(server: RedisServer, tmp_path: Path, encrypt: bool) -> None:
    caches = [
        Cache(tmp_path / name, secret=SECRET, encrypt=encrypt, remote=remote_of(server.url), **QUICK) for name in "ab"
    ]
    writer, reader = caches
    try:
        writer.set("k", "value", expire=1000, tag="t")
        name = name_of(server)
        content = server.ask("GET", name)
        left = server.ask("PTTL", name)
        for at in range(TAGS_START + TAG_SIZE, len(content)):
            changed = bytearray(content)
            changed[at] ^= 1 + at % 255
            server.ask("SET", name, bytes(changed), "PX", left)
            assert is_refused(reader), f"byte {at} of {len(content)}"
        server.ask("SET", name, content, "PX", left)
        assert reader["k"] == "value"
    finally:
        for cache in caches:
            cache.close()


def test_any_flipped_byte_of_the_head_gives_a_miss_or_the_value(machines: Machines, server: RedisServer) -> None:
    writer, reader = machines.pair()
    writer.set("k", "value", tag="t")
    name = name_of(server)
    content = server.ask("GET", name)
    for at in range(TAGS_START + TAG_SIZE):
        changed = bytearray(content)
        changed[at] ^= 0xFF
        server.ask("SET", name, bytes(changed))
        assert reader.get("k") in (None, "value"), at


@pytest.mark.parametrize("size", [0, 1, 2, 17, 18, 30, 60])
def test_a_shortened_value_is_a_miss(machines: Machines, server: RedisServer, size: int) -> None:
    writer, reader = machines.pair()
    writer.set("k", "value", tag="t")
    name = name_of(server)
    server.ask("SET", name, server.ask("GET", name)[:size])
    assert reader.get("k") is None
    assert reader.get_many(["k"]) == {}


@pytest.mark.parametrize("content", [b"", b"\1", b"\1" * 18, b"\1\377" + b"x" * 16, b"text", b"\1\0" + b"x" * 10_000])
def test_foreign_bytes_are_a_miss_and_can_be_replaced(machines: Machines, server: RedisServer, content: bytes) -> None:
    writer, reader = machines.pair()
    writer["k"] = 1
    server.ask("SET", name_of(server), content)
    assert reader.get("k") is None
    assert reader.incr("k") == 1
    assert reader.get("k") == 1
    server.ask("SET", name_of(server), content)
    assert reader.pop("k", "missing") in ("missing", 1)


def test_another_type_under_the_name_of_an_entry_is_an_error_or_a_miss(machines: Machines, server: RedisServer) -> None:
    writer, reader = machines.pair(on_error="raise")
    writer["k"] = 1
    name = name_of(server)
    server.ask("DEL", name)
    server.ask("LPUSH", name, "x")
    with pytest.raises(RemoteError):
        reader.get("k")


def test_swapped_names_are_found(machines: Machines, server: RedisServer) -> None:
    writer, reader = machines.pair()
    writer["one"] = 1
    name = name_of(server)
    first = server.ask("GET", name)
    writer["two"] = 2
    (other,) = set(server.ask("KEYS", "dl:*:e*")) - {name}
    server.ask("SET", other, first)
    assert is_refused(reader, "two")
    assert reader["one"] == 1


def _moved(machines: Machines, server: RedisServer, ours: dict[str, Any], theirs: dict[str, Any]) -> Cache:
    """Store an entry by a cache with some options, give it the name that one with others looks for; return that."""
    writer, reader = machines.open("a", **ours), machines.open("b", **theirs)
    writer["k"] = "value"
    name = name_of(server)
    content = server.ask("GET", name)
    server.ask("DEL", name)
    reader["k"] = "other"
    server.ask("SET", name_of(server), content)
    fresh: Cache = machines.open("c", **theirs)
    return fresh


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"namespace": "one"}, {"namespace": "two"}),
        ({"secret": "another secret of 16"}, {}),
        ({"compressor": "zlib"}, {}),
        ({"serializer": "json"}, {}),
        ({"secret": None, "pickle": "never"}, {}),
    ],
    ids=["namespace", "secret", "compressor", "serializer", "unsigned"],
)
def test_what_was_made_for_others_is_found(
    machines: Machines, server: RedisServer, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    assert is_refused(_moved(machines, server, ours, theirs))


@pytest.mark.parametrize("theirs", [{"secret": "another secret of 16"}, {"namespace": "another"}])
def test_other_secrets_and_namespaces_have_other_names(machines: Machines, theirs: dict[str, Any]) -> None:
    here, there = machines.open("a"), machines.open("b", **theirs)
    here["k"] = 1
    assert there.get("k") is None
    assert counted(there, "unverifiable") == 0


@pytest.mark.parametrize("change", ["dropped", "replaced", "added"])
def test_wrong_tags_are_found(machines: Machines, server: RedisServer, change: str) -> None:
    """Else an eviction by a tag would pass the entry over."""
    writer, reader = machines.pair()
    writer.set("other", 1, tag="u")
    other = server.ask("GET", name_of(server))
    writer.delete("other")
    writer.set("k", "value", tag="t")
    name = name_of(server)
    content = server.ask("GET", name)
    head, tag, rest = content[1:18], content[TAGS_START : TAGS_START + TAG_SIZE], content[TAGS_START + TAG_SIZE :]
    foreign = other[TAGS_START : TAGS_START + TAG_SIZE]
    tags = {"dropped": b"", "replaced": foreign, "added": tag + foreign}[change]
    server.ask("SET", name, content[:1] + bytes((len(tags) // TAG_SIZE,)) + head[1:] + tags + rest)
    assert is_refused(reader)


def test_in_strict_mode_it_is_an_error(machines: Machines, server: RedisServer) -> None:
    writer, reader = machines.open("a"), machines.open("b", strict=True)
    writer["k"] = "value"
    name = name_of(server)
    content = server.ask("GET", name)
    server.ask("SET", name, content[:-1] + bytes((content[-1] ^ 1,)))
    for read in (reader.get, reader.__contains__, reader.get_entry, reader.pop, reader.incr):
        with pytest.raises(DAMAGE, match="'k'"):
            read("k")
    assert counted(reader, "unverifiable") == 5


def test_an_older_record_of_the_same_key_may_come_back_and_no_other(machines: Machines, server: RedisServer) -> None:
    """That a server may do: it cannot be told from a copy that is late. It is what `max_staleness` cannot bound."""
    writer, reader = machines.pair()
    writer["k"] = "old"
    name = name_of(server)
    old = server.ask("GET", name)
    writer["k"] = "new"
    server.ask("SET", name, old)
    assert reader["k"] == "old"


def test_names_reveal_nothing(machines: Machines, server: RedisServer) -> None:
    here, _ = machines.pair()
    here.set("customer-name", 1, tag="customer-tag")
    here.namespace("customer-space")["customer-name"] = 1
    here.get_or_set("customer-computed", lambda: 1, 60)
    names = b"".join(server.ask("KEYS", "*"))
    assert b"customer" not in names
    other = machines.open("c", secret="another secret of 16")
    other.set("customer-name", 1, tag="customer-tag")
    assert len(server.ask("KEYS", "dl:shop:e*")) == 4
    assert all(len(name) == len("dl:shop:e") + 16 for name in server.ask("KEYS", "*"))


class Canary:
    """An object whose unpickling is noticed."""

    sung = 0

    def __reduce__(self) -> Any:
        return _sing, ()


def _sing() -> Canary:
    Canary.sung += 1
    return Canary()


def _forged(machines: Machines, name: str, secret: str | None, **options: Any) -> Callable[[RedisServer], bytes]:
    def make(server: RedisServer) -> bytes:
        forger = machines.open(name, secret=secret, **options)
        forger["k"] = Canary()
        return bytes(server.ask("GET", name_of(server)))

    return make


def test_nothing_is_unpickled_without_the_secret(machines: Machines, server: RedisServer) -> None:
    reader = machines.open("b")
    content = _forged(machines, "forger", "another secret of 16")(server)
    server.ask("DEL", name_of(server))
    reader["k"] = 1
    name = name_of(server)
    fresh = machines.open("c")
    Canary.sung = 0
    for planted in (
        content,
        content[:TAGS_START] + pickle.dumps(Canary()),
        b"\1\0" + b"v" * 16 + pickle.dumps(Canary()),
    ):
        server.ask("SET", name, planted)
        assert fresh.get("k") is None
        assert fresh.get_many(["k"]) == {}
        assert fresh.pop("k") is None
        assert list(fresh.values()) == []
    assert Canary.sung == 0
    reader["k"] = Canary()
    assert isinstance(fresh["k"], Canary)
    assert Canary.sung > 0


def test_pickles_need_a_secret(machines: Machines) -> None:
    with pytest.raises(SettingError, match="needs a secret"):
        machines.open("a", secret=None)
    here, there = (machines.open(name, secret=None, pickle="never") for name in "ab")
    here["k"] = [1, 2]
    assert there["k"] == [1, 2]


@pytest.mark.parametrize("secret", ["short", b"short"])
def test_a_short_secret_is_refused(machines: Machines, secret: Any) -> None:
    from diskcache_like import SecretError

    with pytest.raises((SettingError, SecretError)):
        machines.open("a", secret=secret)
