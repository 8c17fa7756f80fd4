"""Commands of Redis, done by a cache: what they mean, their errors and their edge cases.

A command is a function of the client and of the words that it sent. It returns its reply, or raises Failed. On an event
loop it may raise WouldBlock before it has changed anything, and is then called again in a thread.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from ..cache import SET_MANY_BATCH, Cache, atomic_key
from ..encoding.globs import pattern_of
from ..encoding.record import Metadata, Record
from ..encoding.tags import pack_tags, tags_of
from ..entries.atomic_key import REMOVE, Decision
from ..entries.loading import ENOVAL
from ..entries.row_codec import with_expiry
from ..errors import CacheError
from ..system.blocking import may_block
from ..system.signals import reraise_signal
from .access import Access
from .resp import LINE, OK, Failed, Simple, encode
from .tracking import Listener, Tracking
from .values import NotPlain, content_of, key_of, name_of

VERSION: Final = "7.4.0"  # of Redis; clients take it for what a server can do, such as tracking for redis-py
SMALL: Final = 16 << 10  # bytes of values that are written, and
FEW: Final = 50  # keys that are read, on an event loop
LARGEST: Final = (1 << 63) - 1
LATEST: Final = LARGEST // 1000  # seconds
_INTEGER: Final = re.compile(rb"(?:0|-?[1-9][0-9]{0,18})\Z")
_FLOAT: Final = re.compile(rb"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d{1,9})?|inf(inity)?)\Z", re.IGNORECASE)
_NAME: Final = re.compile(rb"[!-~]*\Z")
_STARTED: Final = time.time()
_UNITS: Final = frozenset((b"EX", b"PX", b"EXAT", b"PXAT"))
_LIFETIMES: Final = _UNITS | {b"KEEPTTL", b"PERSIST"}
_log: Final = logging.getLogger(__name__)

SYNTAX: Final = "ERR syntax error"
NO_INTEGER: Final = "ERR value is not an integer or out of range"
NO_PASSWORD: Final = "NOAUTH Authentication required."  # noqa: S105 - no password
TOO_LARGE: Final = "ERR string exceeds maximum allowed size"

Words = Sequence[bytes]


class Client(Listener):
    """What commands know of a client: what it has said, and what all clients of the server share."""

    version: int  # of the protocol
    name: bytes
    is_admitted: bool
    ends: bool  # once it has said so, or nobody is there

    def __init__(self, cache: Cache, access: Access, tracking: Tracking, clients: Collection[Client]) -> None:
        self.cache = cache
        self.access = access
        self.tracking = tracking
        self.clients = clients  # all of them
        self.peer: object = None
        self.libraries: dict[str, str] = {}
        self.ends = False
        self.start_over()

    def start_over(self) -> None:
        """Be as after connecting."""
        self.version = 2
        self.name = b""
        self.is_admitted = self.access.is_open
        self.is_tracking = False


Function = Callable[[Client, Words], Any]


class Command(NamedTuple):
    """What is known of a command."""

    name: str
    function: Function
    arity: int  # its words, itself included; negative for at least so many
    keys: tuple[int, int, int] = (0, 0, 0)  # the first and the last word that is a key, and the step between them
    writes: bool = False
    is_free: bool = False  # allowed before the client is authenticated

    def keys_in(self, words: Words) -> Words:
        """Return those words that are keys."""
        first, last, step = self.keys
        return words[first : last + 1 if last > 0 else None : step] if first else ()


COMMANDS: Final[dict[bytes, Command]] = {}
ONE, ALL, PAIRS = (1, 1, 1), (1, -1, 1), (1, -1, 2)


def command(names: str, arity: int, *others: Any, **options: Any) -> Callable[[Function], Function]:
    """Enter a function into the table, for each of the names."""

    def enter(function: Function) -> Function:
        for name in names.split():
            COMMANDS[name.upper().encode()] = Command(name, function, arity, *others, **options)
        return function

    return enter


_writes: Final = partial(command, keys=ONE, writes=True)


# -- carrying out -----------------------------------------------------------------------------------------------------


def carry_out(client: Client, words: Words) -> bytes:
    """Do what a command says, and return the reply. Raises WouldBlock on an event loop."""
    reply: Any
    try:
        found = COMMANDS.get(words[0]) or _command_of(words)
        if len(words) != found.arity and not len(words) >= -found.arity > 0:
            raise _wrong_number(found.name)
        if not client.is_admitted and not found.is_free:
            raise Failed(NO_PASSWORD)
        if found.writes:
            if client.cache._handle.writes_slowly():
                may_block()
            reply = found.function(client, words)
            client.tracking.wrote(found.keys_in(words))
        elif client.is_tracking and found.keys[0]:
            client.tracking.watch(client, found.keys_in(words))  # before it is read
            reply = found.function(client, words)
            _note_expiry(client, found.keys_in(words))
        else:
            reply = found.function(client, words)
    except Failed as error:
        reply = error
    except NotPlain:
        reply = Failed("WRONGTYPE Operation against a key holding the wrong kind of value")
    except CacheError as error:
        reply = Failed(f"ERR {type(error).__name__}: {error}")
    except Exception as error:
        reraise_signal(error)
        _log.exception("a command failed: %r", words[0])
        reply = Failed("ERR internal error; the server's log has it")
    return encode(reply, client.version)


def is_write(words: Words) -> bool:
    """Tell whether a command may have to wait for the write lock."""
    found = COMMANDS.get(words[0].upper())
    return found is not None and found.writes


def _command_of(words: Words) -> Command:
    found = COMMANDS.get(words[0].upper())
    if found is None:
        shown = "".join(f"'{_text(word)}' " for word in words[1:20])
        raise Failed(f"ERR unknown command '{_text(words[0])}', with args beginning with: {shown[:128]}")
    return found


def _wrong_number(name: str) -> Failed:
    return Failed(f"ERR wrong number of arguments for '{name}' command")


def _wrong_subcommand(words: Words, *known: bytes) -> Failed:
    name, second = _text(words[0]), _text(words[1])
    if words[1].upper() in known:
        return _wrong_number(f"{name}|{second}".lower())
    return Failed(f"ERR unknown subcommand '{second}'. Try {name.upper()} HELP.")


def _text(word: bytes) -> str:
    return word[:128].decode(errors="replace")


def integer(word: bytes, problem: str = NO_INTEGER) -> int:
    """Return the number of 64 bits that a word is; raise Failed for anything else."""
    number = int(word) if _INTEGER.match(word) else LARGEST + 1
    if not -LARGEST - 1 <= number <= LARGEST:
        raise Failed(problem)
    return number


def options_in(words: Words, known: Mapping[bytes, int], problem: str = SYNTAX) -> dict[bytes, list[bytes]]:
    """Return which options there are, with all their values; `known`: how many values follow each option."""
    found: dict[bytes, list[bytes]] = {}
    at = 0
    while at < len(words):
        option = words[at].upper()
        end = at + 1 + known.get(option, len(words))
        if end > len(words):
            raise Failed(problem.format(_text(words[at])))
        found.setdefault(option, []).extend(words[at + 1 : end])
        at = end
    return found


# -- the connection ---------------------------------------------------------------------------------------------------


@command("hello", -1, is_free=True)
def _hello(client: Client, words: Words) -> Any:
    problem = "ERR Protocol version is not an integer or out of range"
    version = integer(words[1], problem) if len(words) > 1 else client.version
    if version not in (2, 3):
        raise Failed("NOPROTO unsupported protocol version")
    options = options_in(words[2:], {b"AUTH": 2, b"SETNAME": 1}, "ERR Syntax error in HELLO option '{}'")
    if b"AUTH" in options:
        _auth(client, [b"AUTH", *options[b"AUTH"][-2:]])
    if not client.is_admitted:
        raise Failed(NO_PASSWORD)
    client.name = _checked_name(options.get(b"SETNAME", [client.name])[-1])
    client.version = version
    if version < 3:
        client.tracking.stop(client)  # it would not understand
    about = {"server": "redis", "version": VERSION, "proto": version, "id": client.number}
    return {**about, "mode": "standalone", "role": "master", "modules": []}


@command("auth", -2, is_free=True)
def _auth(client: Client, words: Words) -> Any:
    if len(words) > 3:
        raise Failed(SYNTAX)
    if len(words) == 2 and client.access.is_open:
        raise Failed(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your"
            " configuration is correct?"
        )
    user, password = words[-2] if len(words) > 2 else b"default", words[-1]
    if user != b"default" or not (client.access.is_open or client.access.admits(password)):
        raise Failed("WRONGPASS invalid username-password pair or user is disabled.")
    client.is_admitted = True
    return OK


@command("quit", -1, is_free=True)
def _quit(client: Client, _: Words) -> Any:
    client.ends = True
    return OK


@command("reset", 1, is_free=True)
def _reset(client: Client, _: Words) -> Any:
    client.tracking.stop(client)
    client.start_over()
    return Simple(b"RESET")


@command("ping", -1)
def _ping(_: Client, words: Words) -> Any:
    if len(words) > 2:
        raise _wrong_number("ping")
    return words[1] if len(words) > 1 else Simple(b"PONG")


@command("select", 2)
def _select(_: Client, words: Words) -> Any:
    if integer(words[1]) != 0:
        raise Failed("ERR DB index is out of range")
    return OK


command("echo", 2)(lambda _, words: words[1])


@command("client", -2)
def _client(client: Client, words: Words) -> Any:
    match [words[1].upper(), *words[2:]]:
        case [b"ID"]:
            return client.number
        case [b"GETNAME"]:
            return client.name or None
        case [b"SETNAME", name]:
            client.name = _checked_name(name)
        case [b"SETINFO", option, value]:
            what = _text(option).lower()
            if what not in ("lib-name", "lib-ver"):
                raise Failed(f"ERR Unrecognized option '{_text(option)}'")
            client.libraries[what] = _checked_name(value, what).decode()
        case [b"LIST", *_]:
            return "".join(map(_line_of, sorted(client.clients, key=lambda other: other.number)))
        case [b"TRACKING", switch, *options]:
            _track(client, switch.upper(), options)
        case _:
            raise _wrong_subcommand(words, b"ID", b"GETNAME", b"SETNAME", b"SETINFO", b"TRACKING")
    return OK


def _checked_name(name: bytes, what: str = "names") -> bytes:
    if not _NAME.match(name):
        raise Failed(f"ERR Client {what} cannot contain spaces, newlines or special characters.")
    return name


def _line_of(client: Client) -> str:
    peer = ":".join(map(str, client.peer[:2])) if isinstance(client.peer, tuple) else ""
    libraries = "".join(f" {name}={value}" for name, value in client.libraries.items())
    return f"id={client.number} addr={peer} name={client.name.decode()} db=0{libraries} resp={client.version}\n"


def _track(client: Client, switch: bytes, words: Words) -> None:
    # NOLOOP changes nothing: a client is told of its own changes all the same, as nobody knows whose they are.
    options = options_in(words, {b"PREFIX": 1, b"BCAST": 0, b"NOLOOP": 0})
    prefixes = options.get(b"PREFIX")
    if switch not in (b"ON", b"OFF"):
        raise Failed(SYNTAX)
    if switch == b"OFF":
        client.tracking.stop(client)
    elif client.version < 3:
        raise Failed("ERR tracking needs RESP 3: say HELLO 3 before")
    elif prefixes and b"BCAST" not in options:
        raise Failed("ERR PREFIX option requires BCAST mode to be enabled")
    else:
        client.tracking.start(client, (prefixes or [b""]) if b"BCAST" in options else None)


# -- the server -------------------------------------------------------------------------------------------------------


@command("command", -1)
def _command(_: Client, words: Words) -> Any:
    match [word.upper() for word in words[1:]]:
        case [b"COUNT"]:
            return len(COMMANDS)
        case [b"DOCS", *_]:
            return {}
        case [_, *_]:
            raise _wrong_subcommand(words, b"COUNT")
    told = []
    for each in COMMANDS.values():
        flags = [b"write"] if each.writes else [b"readonly"] if each.keys[0] else [b"no_auth"] if each.is_free else []
        told.append([each.name, each.arity, list(map(Simple, flags)), *each.keys, [], [], [], []])
    return told


@command("config", -2)
def _config(client: Client, words: Words) -> Any:
    if words[1].upper() != b"GET" or len(words) < 3:
        raise _wrong_subcommand(words, b"GET")
    settings, limits = client.cache._handle.settings, client.access.limits
    policies = {"none": "noeviction", "least-frequently-used": "allkeys-lfu"}
    values = {"appendonly": "no", "databases": "1", "maxclients": str(limits.clients), "save": "", "timeout": "0"}
    values["maxmemory"] = str(settings["size_limit"])
    values["maxmemory-policy"] = policies.get(settings["eviction_policy"], "allkeys-lru")
    values["proto-max-bulk-len"] = str(limits.value)
    patterns = [pattern_of(_text(word).lower()) for word in words[2:]]
    return {name: value for name, value in values.items() if any(pattern.match(name) for pattern in patterns)}


@command("info", -1)
def _info(client: Client, words: Words) -> Any:
    may_block()
    metrics, version, seconds = client.cache.metrics(), f"redis_version:{VERSION}", int(time.time() - _STARTED)
    about = {
        "server": f"{version} redis_mode:standalone process_id:{os.getpid()} uptime_in_seconds:{seconds}",
        "clients": f"connected_clients:{len(client.clients)} maxclients:{client.access.limits.clients}",
        "memory": f"used_memory:{metrics.bytes} maxmemory:{metrics.size_limit}",
        "persistence": "loading:0",
        "stats": f"keyspace_hits:{metrics.hits} keyspace_misses:{metrics.misses}"
        f" expired_keys:{metrics.evicted['expiry']} evicted_keys:{metrics.evicted['room']}",
        "replication": "role:master connected_slaves:0",
        "keyspace": f"db0:keys={metrics.entries},expires=0,avg_ttl=0" if metrics.entries else "",
    }
    wanted = {_text(word).lower() for word in words[1:]} or {"all"}
    return "\r\n".join(
        "".join(f"{line}\r\n" for line in [f"# {name.title()}", *lines.split()])
        for name, lines in about.items()
        if wanted & {name, "all", "default", "everything"}
    )


command("dbsize", 1)(lambda client, _: len(client.cache))


@command("flushdb flushall", -1, writes=True)
def _flush(client: Client, words: Words) -> Any:
    if len(words) > 2 or (len(words) == 2 and words[1].upper() not in (b"ASYNC", b"SYNC")):
        raise Failed(SYNTAX)
    may_block()
    client.cache.clear()
    return OK


# -- values -----------------------------------------------------------------------------------------------------------


def _seen(value: Any) -> bytes | None:
    """Return a value as clients see it, None if there is none."""
    return None if value is ENOVAL else content_of(value).data


def _change(client: Client, name: bytes, decide: Callable[[Any, Metadata], tuple[Decision, Any]]) -> Any:
    """Let `decide` say what becomes of an entry, and return what it replies; what it raises changes nothing.

    It gets the value and the metadata, or ENOVAL and those of a new entry, and may be called more than once.
    """
    reply, new = None, client.cache._rows.metadata(None, b"")

    def decide_both(current: Any, metadata: Metadata) -> Decision:
        nonlocal reply
        decision, reply = decide(current, new if current is ENOVAL else metadata)
        return decision

    atomic_key(client.cache, key_of(name)).update(decide_both, client.cache.timeout)
    return reply


def _admitted(client: Client, value: bytes) -> bytes:
    """Return a value that may be stored; a large one is not written on an event loop."""
    if len(value) > SMALL:
        may_block()
        if len(value) > min(client.access.limits.value, client.cache._handle.value_limit):
            raise Failed(TOO_LARGE)
    return value


@command("get", 2, ONE)
def _get(client: Client, words: Words) -> Any:
    value = client.cache.get(key_of(words[1]), ENOVAL)
    return value if type(value) is bytes else _seen(value)


@command("mget", -2, ALL)
def _mget(client: Client, words: Words) -> Any:
    if len(words) > FEW:
        may_block()
    replies: list[bytes | None] = []
    room = client.access.limits.output  # which a few words could exceed by far, as they may name one key often
    for at in range(1, len(words), FEW):
        keys = [key_of(name) for name in words[at : at + FEW]]
        found = client.cache.get_many(keys)
        for key in keys:
            try:
                reply = _seen(found.get(key, ENOVAL))
            except NotPlain:
                reply = None
            room -= len(reply or b"")
            if room < 0:
                raise Failed("ERR the values are too large for one reply: ask for fewer keys")
            replies.append(reply)
    return replies


command("strlen", 2, ONE)(lambda client, words: len(_get(client, words) or b""))


def _moment(client: Client, words: Words, unit: bytes, number: int) -> float:
    """Return when an entry is to expire; a unit that begins with P is of milliseconds, one that ends in AT absolute."""
    now = 0.0 if unit.endswith(b"AT") else client.cache._clock()
    scale = 1000 if unit.startswith(b"P") else 1
    if abs(number) // scale > LATEST - int(now):
        raise Failed(f"ERR invalid expire time in '{_text(words[0]).lower()}' command")
    return now + number / scale


def _lifetime(client: Client, words: Words, options: Mapping[bytes, list[bytes]]) -> float | None:
    """Return for how many seconds an entry is to live, 0 if that has passed, None if the options do not say."""
    given = options.keys() & _LIFETIMES
    if len(given) > 1 or {b"NX", b"XX"} <= options.keys():
        raise Failed(SYNTAX)
    for unit in given & _UNITS:
        number = integer(options[unit][-1])
        moment = _moment(client, words, unit, number if number > 0 else LARGEST * 1000)
        return max(0.0, moment - client.cache._clock())
    return None


_SET: Final = {**dict.fromkeys(_UNITS, 1), b"NX": 0, b"XX": 0, b"KEEPTTL": 0, b"GET": 0}
_GETEX: Final = {**dict.fromkeys(_UNITS, 1), b"PERSIST": 0}


def _store(client: Client, words: Words, tags: Sequence[str] | None = None) -> Any:
    cache, value = client.cache, _admitted(client, words[2])
    options = options_in(words[3:], _SET) if len(words) > 3 else {}
    lifetime = _lifetime(client, words, options) if options else None
    if not options or options.keys() <= _UNITS:
        if not cache.set(key_of(words[1]), value, lifetime, tags=tags):
            raise Failed(TOO_LARGE)
        return OK
    new = cache._rows.metadata(lifetime, pack_tags(tags=tags))

    def decide(current: Any, metadata: Metadata) -> tuple[Decision, Any]:
        old = _seen(current) if b"GET" in options else None
        if (b"NX" if current is not ENOVAL else b"XX") in options:
            return None, old
        kept = with_expiry(new, metadata.expire) if b"KEEPTTL" in options else new
        return (value, kept), old if b"GET" in options else OK

    return _change(client, words[1], decide)


# What may be said in words of SET is said so.
_writes("set", -3)(_store)
_writes("setnx", 3)(lambda client, words: _store(client, [*words, b"NX"]) is OK)
_writes("setex", 4)(lambda client, words: _store(client, [*words[:2], words[3], b"EX", words[2]]))
_writes("psetex", 4)(lambda client, words: _store(client, [*words[:2], words[3], b"PX", words[2]]))
_writes("getset", 3)(lambda client, words: _store(client, [*words, b"GET"]))


@_writes("dl.set", -3)
def _dl_set(client: Client, words: Words) -> Any:
    end = next((at for at in range(3, len(words)) if words[at].upper() == b"TAGS"), len(words))
    return _store(client, words[:end], _tags(words[end + 1 :]))


def _tags(words: Words) -> list[str]:
    try:
        return [word.decode() for word in words]
    except UnicodeDecodeError:
        raise Failed("ERR a tag is not UTF-8") from None


@command("mset", -3, PAIRS, writes=True)
def _mset(client: Client, words: Words) -> Any:
    if len(words) % 2 == 0:
        raise _wrong_number("mset")
    cache, values = client.cache, words[2::2]
    if sum(map(len, values)) > SMALL:
        may_block()
    pairs = [(key_of(name), _admitted(client, value)) for name, value in zip(words[1::2], values, strict=True)]
    is_one = len(pairs) <= SET_MANY_BATCH and len(cache._shards.stores) == 1
    if not is_one:
        may_block()
    with nullcontext() if is_one else cache.transact():
        if cache.set_many(pairs) < len(pairs):
            raise Failed(TOO_LARGE)
    return OK


_writes("getdel", 2)(lambda client, words: _change(client, words[1], lambda current, _: (REMOVE, _seen(current))))


@_writes("getex", -2)
def _getex(client: Client, words: Words) -> Any:
    options, rows = options_in(words[2:], _GETEX), client.cache._rows
    expiry = rows.expiry(_lifetime(client, words, options))

    def decide(current: Any, metadata: Metadata) -> tuple[Decision, Any]:
        changed = (current, rows.limited(with_expiry(metadata, expiry)))
        return None if current is ENOVAL else changed, _seen(current)

    return _change(client, words[1], decide) if options else _get(client, words)


@_writes("append", 3)
def _append(client: Client, words: Words) -> Any:
    def decide(current: Any, metadata: Metadata) -> tuple[Decision, Any]:
        value = _admitted(client, (_seen(current) or b"") + words[2])
        return (value, metadata), len(value)

    return _change(client, words[1], decide)


# -- numbers ----------------------------------------------------------------------------------------------------------


@_writes("incr decr", 2)
@_writes("incrby decrby", 3)
def _incr(client: Client, words: Words) -> Any:
    delta = integer(words[2]) if len(words) > 2 else 1
    if words[0][:1] in b"Dd":
        if delta < -LARGEST:
            raise Failed("ERR decrement would overflow")
        delta = -delta

    def decide(current: Any, metadata: Metadata) -> tuple[Decision, Any]:
        total = delta + (0 if current is ENOVAL else _integer_in(current))
        if not -LARGEST - 1 <= total <= LARGEST:
            raise Failed("ERR increment or decrement would overflow")
        return (total, metadata), total

    return _change(client, words[1], decide)


def _integer_in(value: Any) -> int:
    return value if type(value) is int and abs(value) <= LARGEST else integer(content_of(value).data)


@_writes("incrbyfloat", 3)
def _incrbyfloat(client: Client, words: Words) -> Any:
    delta = _decimal(words[2])

    def decide(current: Any, metadata: Metadata) -> tuple[Decision, Any]:
        total = _finite(float(delta + (0 if current is ENOVAL else _decimal(content_of(current).data))))
        number = int(total) if total.is_integer() and abs(total) <= LARGEST else total
        return (number, metadata), content_of(number).data

    return _change(client, words[1], decide)


def _decimal(word: bytes) -> Decimal:
    """Return the number that a word is; not in binary, or 1.1 + 2.2 would be 3.3000000000000003."""
    if not _FLOAT.match(word):
        raise Failed("ERR value is not a valid float")
    return Decimal(repr(_finite(float(word))))


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise Failed("ERR increment would produce NaN or Infinity")
    return number


# -- keys -------------------------------------------------------------------------------------------------------------


@command("exists", -2, ALL)
def _exists(client: Client, words: Words) -> Any:
    if len(words) > FEW:
        may_block()
    return sum(key_of(name) in client.cache for name in words[1:])


command("type", 2, ONE)(lambda client, words: Simple(b"string" if key_of(words[1]) in client.cache else b"none"))


@command("del unlink", -2, ALL, writes=True)
def _del(client: Client, words: Words) -> Any:
    if len(words) == 2:
        return client.cache.delete(key_of(words[1]))
    may_block()  # which tells how many there were only once
    return client.cache.delete_many([key_of(name) for name in words[1:]])


def _metadata(client: Client, name: bytes) -> Metadata | None:
    """Return the metadata of an entry, None if it is missing or has expired; that is no use of it."""
    record = _record(client, key_of(name))
    return None if record is None or not client.cache._rows.is_live(record) else record.metadata


def _record(client: Client, key: str | bytes) -> Record | None:
    """Return what is stored of an entry, be it expired; its value is not read."""
    rows = client.cache._rows
    stored_key, home, store = location = rows.locate(key)
    return rows.verified(key, location, store.read(home, stored_key))


def _note_expiry(client: Client, names: Words) -> None:
    """Tell the tracking when what was read expires: nothing else changes then."""
    for name in names:
        key = key_of(name)
        entry = client.cache._hot.probe(key)
        record = None if entry else _record(client, key)  # which may have expired since it was read
        expire = entry[3] if entry else record and record.metadata.expire
        if expire is not None:
            client.tracking.note_expiry(name, expire)


@command("ttl pttl expiretime pexpiretime", 2, ONE)
def _ttl(client: Client, words: Words) -> Any:
    name = words[0].upper()
    metadata = _metadata(client, words[1])
    if metadata is None or metadata.expire is None:
        return -2 if metadata is None else -1
    since = client.cache._clock() if name.endswith(b"TTL") else 0.0
    return max(0, math.floor((metadata.expire - since) * (1000 if name[:1] == b"P" else 1) + 0.5))


_CONDITIONS: Final[dict[bytes, Callable[[float, float], bool]]] = {  # of the expiry before, and after
    b"NX": lambda before, _: before == math.inf,
    b"XX": lambda before, _: before != math.inf,
    b"GT": lambda before, after: after > before,
    b"LT": lambda before, after: after < before,
}


@_writes("expire pexpire expireat pexpireat", -3)
def _expire(client: Client, words: Words) -> Any:
    conditions = options_in(words[3:], dict.fromkeys(_CONDITIONS, 0), "ERR Unsupported option {}")
    if b"NX" in conditions and len(conditions) > 1:
        raise Failed("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= conditions.keys():
        raise Failed("ERR GT and LT options at the same time are not compatible")
    return _retime(client, words[1], _moment(client, words, words[0].upper(), integer(words[2])), conditions)


_writes("persist", 2)(lambda client, words: _retime(client, words[1], math.inf, (b"XX",)))


def _retime(client: Client, name: bytes, after: float, conditions: Iterable[bytes]) -> Any:
    """Let an entry expire at another moment, if that and the one before meet all conditions."""

    def changed(old: Metadata) -> Metadata | None:
        before = math.inf if old.expire is None else old.expire
        is_met = all(_CONDITIONS[each](before, after) for each in conditions)
        return client.cache._rows.limited(with_expiry(old, None if after == math.inf else after)) if is_met else None

    def decide(current: Any, old: Metadata) -> tuple[Decision, Any]:
        is_met = current is not ENOVAL and changed(old) is not None
        return REMOVE if is_met else None, is_met

    if after > client.cache._clock():
        return client.cache._change(key_of(name), changed, False)
    return _change(client, name, decide)


def _filter(glob: bytes) -> Callable[[Iterable[Any]], list[bytes]]:
    """Return what tells the names of those keys that clients can name, and that match a glob, byte by byte."""
    if len(glob) > LINE:
        raise Failed("ERR the pattern is too long")
    pattern = None if glob == b"*" else pattern_of(glob.decode("latin-1"))

    def matching(keys: Iterable[Any]) -> list[bytes]:
        names = [name for name in map(name_of, keys) if name is not None]
        return names if pattern is None else [name for name in names if pattern.match(name.decode("latin-1"))]

    return matching


@command("scan", -2)
def _scan(client: Client, words: Words) -> Any:
    cursor = int(words[1]) if re.fullmatch(rb"[0-9]{1,20}", words[1]) else 1 << 64
    if cursor >= 1 << 64:
        raise Failed("ERR invalid cursor")
    options = options_in(words[2:], {b"COUNT": 1, b"MATCH": 1, b"TYPE": 1})
    count = integer(options.get(b"COUNT", [b"10"])[-1])
    if count < 1:
        raise Failed(SYNTAX)
    may_block()
    keys, after = client.cache._page(min(cursor, LARGEST) - 1, min(count, client.access.limits.arguments))
    is_wanted = options.get(b"TYPE", [b"string"])[-1].lower() == b"string"
    matching = _filter(options.get(b"MATCH", [b"*"])[-1])
    return [str(0 if after is None else after + 1), matching(keys if is_wanted else ())]


@command("keys", 2)
def _keys(client: Client, words: Words) -> Any:
    may_block()
    matching, found = _filter(words[1]), list[bytes]()
    after: int | None = -1
    while after is not None:
        keys, after = client.cache._page(after, 1000)
        found += matching(keys)
    return found


# -- tags -------------------------------------------------------------------------------------------------------------


@command("dl.tags", 2, ONE)
def _dl_tags(client: Client, words: Words) -> Any:
    metadata = _metadata(client, words[1])
    return None if metadata is None else [content_of(tag).data for tag in tags_of(metadata.tags)]


@command("dl.evict", -3, writes=True)
def _dl_evict(client: Client, words: Words) -> Any:
    match = words[1].upper()
    if match not in (b"ANY", b"ALL"):
        raise Failed(SYNTAX)
    may_block()
    return client.cache.evict(tags=_tags(words[2:]), match="all" if match == b"ALL" else "any")
