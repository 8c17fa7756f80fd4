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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ..cache import SET_MANY_BATCH, Cache, atomic_key
from ..encoding.globs import pattern_of
from ..encoding.record import Metadata
from ..encoding.tags import pack_tags, tags_of
from ..entries.atomic_key import REMOVE, Decision
from ..entries.loading import ENOVAL
from ..entries.row_codec import KEEP, with_expiry
from ..errors import CacheError
from ..system.blocking import may_block
from ..system.signals import reraise_signal
from .access import Access
from .resp import OK, Failed, Simple, encode
from .tracking import Tracking
from .values import NotPlain, content_of, key_of, name_of

VERSION: Final = "7.4.0"  # of Redis; clients take it for what a server can do, such as tracking for redis-py
SMALL: Final = 16 << 10  # bytes of values that are written, and
FEW: Final = 50  # keys that are read, on an event loop
LARGEST: Final = (1 << 63) - 1
LATEST: Final = LARGEST // 1000  # seconds
_INTEGER: Final = re.compile(rb"(?:0|-?[1-9][0-9]{0,18})\Z")
_FLOAT: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?\Z")
_NAME: Final = re.compile(rb"[!-~]*\Z")
_STARTED: Final = time.time()
_UNITS: Final = {b"EX": (1, False), b"PX": (1000, False), b"EXAT": (1, True), b"PXAT": (1000, True)}
_log: Final = logging.getLogger(__name__)

SYNTAX: Final = "ERR syntax error"
NO_INTEGER: Final = "ERR value is not an integer or out of range"
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
WRONG_PASSWORD: Final = "WRONGPASS invalid username-password pair or user is disabled."  # noqa: S105 - no password


class Client:
    """One client, as commands see it."""

    def __init__(self, cache: Cache, access: Access, others: Collection[Client], tracking: Tracking) -> None:
        self.cache = cache
        self.access = access
        self.others = others  # all clients of the door, this one among them
        self.tracking = tracking
        self.number: int = next(_ids)
        self.began = time.monotonic()
        self.peer: object = ""
        self.libraries: dict[str, str] = {}
        self.commands = 0
        self.ends = False  # once it has said so
        self.start_over()

    def start_over(self) -> None:
        """Be as after connecting."""
        self.version = 2
        self.name = b""
        self.is_admitted = self.access.is_open
        self.is_tracking = False

    def push(self, message: bytes) -> None:
        """Send what the client has not asked for just now."""
        raise NotImplementedError

    def described(self) -> str:
        """Return the client's line of CLIENT LIST."""
        libraries = " ".join(f"{name}={self.libraries.get(name, '')}" for name in ("lib-name", "lib-ver"))
        age, flags = int(time.monotonic() - self.began), "t" if self.is_tracking else "N"
        return (
            f"id={self.number} name={self.name.decode()} age={age} idle=0"
            f" flags={flags} db=0 user=default {libraries} resp={self.version} tot-cmds={self.commands}"
        )


def _numbers() -> Iterator[int]:
    """Yield numbers for clients, which differ between the workers of a server."""
    number = os.getpid() << 32
    while True:
        number += 1
        yield number


_ids: Final = _numbers()

Words = Sequence[bytes]
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
_CONTAINERS: Final[dict[bytes, dict[bytes, Command]]] = {b"CLIENT": {}, b"COMMAND": {}, b"CONFIG": {}}
ONE, ALL, PAIRS = (1, 1, 1), (1, -1, 1), (1, -1, 2)


def command(names: str, arity: int, *others: Any, **options: Any) -> Callable[[Function], Function]:
    """Enter a function into the table, for each of the names; `name|word` if the first argument has to be that word."""

    def enter(function: Function) -> Function:
        for name in names.split():
            first, bar, word = name.upper().encode().partition(b"|")
            table, entry = (_CONTAINERS[first], word) if bar else (COMMANDS, first)
            table[entry] = Command(name.rstrip("|"), function, arity, *others, **options)
        return function

    return enter


# -- carrying out -----------------------------------------------------------------------------------------------------


def carry_out(client: Client, words: Words) -> bytes:
    """Do what a command says, and return the reply. Raises WouldBlock on an event loop."""
    try:
        found = COMMANDS.get(words[0]) or _command_of(words)
        if len(words) != found.arity and (found.arity > 0 or len(words) < -found.arity):
            raise Failed(f"ERR wrong number of arguments for '{found.name}' command")
        if not client.is_admitted and not found.is_free:
            raise Failed("NOAUTH Authentication required.")
        if found.writes and client.cache._handle.writes_slowly():
            may_block()
        if client.is_tracking and found.keys[0] and not found.writes:
            client.tracking.watch(client, found.keys_in(words))  # before it is read
            reply = encode(found.function(client, words), client.version)
            _note_expiry(client, found.keys_in(words))
        else:
            reply = encode(found.function(client, words), client.version)
            if found.writes:
                client.tracking.wrote(found.keys_in(words))
    except Failed as error:
        reply = encode(error, client.version)
    except NotPlain:
        reply = encode(Failed(WRONG_TYPE), client.version)
    except CacheError as error:
        reply = encode(Failed(f"ERR {type(error).__name__}: {error}"), client.version)
    except Exception as error:
        reraise_signal(error)
        _log.exception("a command failed: %r", words[0])
        reply = encode(Failed("ERR internal error; the server's log has it"), client.version)
    client.commands += 1
    return reply


def is_write(words: Words) -> bool:
    """Tell whether a command may have to wait for the write lock."""
    found = COMMANDS.get(words[0].upper())
    return found is not None and found.writes


def _command_of(words: Words) -> Command:
    name = words[0].upper()
    if name in _CONTAINERS:
        found = _CONTAINERS[name].get(words[1].upper() if len(words) > 1 else b"")
        if found is None and len(words) == 1:
            raise Failed(f"ERR wrong number of arguments for '{_text(name).lower()}' command")
        if found is None:
            raise Failed(f"ERR unknown subcommand '{_text(words[1][:128])}'. Try {_text(name)} HELP.")
        return found
    found = COMMANDS.get(name)
    if found is None:
        shown = "".join(f"'{_text(word[:128])}' " for word in words[1:20])
        raise Failed(f"ERR unknown command '{_text(words[0][:128])}', with args beginning with: {shown[:128]}")
    return found


def _text(word: bytes) -> str:
    return word.decode(errors="replace")


def integer(word: bytes, problem: str = NO_INTEGER) -> int:
    """Return the number of 64 bits that a word is; raise Failed for anything else."""
    number = int(word) if _INTEGER.match(word) else LARGEST + 1
    if not -LARGEST - 1 <= number <= LARGEST:
        raise Failed(problem)
    return number


# -- the connection ---------------------------------------------------------------------------------------------------


@command("hello", -1, is_free=True)
def _hello(client: Client, words: Words) -> Any:
    version = client.version
    if len(words) > 1:
        version = integer(words[1], "ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            raise Failed("NOPROTO unsupported protocol version")
    name, rest = client.name, list(words[2:])
    while rest:
        word = rest.pop(0)
        option = word.upper()
        if option == b"AUTH" and len(rest) >= 2:
            _authenticate(client, rest.pop(0), rest.pop(0))
        elif option == b"SETNAME" and rest:
            name = _checked_name(rest.pop(0), "names")
        else:
            raise Failed(f"ERR Syntax error in HELLO option '{_text(word)}'")
    if not client.is_admitted:
        raise Failed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user>"
            " <pass> option can be used to authenticate the client and select the RESP protocol version at the same"
            " time"
        )
    client.version, client.name = version, name
    return {
        "server": "redis",
        "version": VERSION,
        "proto": version,
        "id": client.number,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }


@command("auth", -2, is_free=True)
def _auth(client: Client, words: Words) -> Any:
    if len(words) > 3:
        raise Failed(SYNTAX)
    if len(words) == 2 and client.access.is_open:
        raise Failed(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your"
            " configuration is correct?"
        )
    _authenticate(client, words[1] if len(words) > 2 else b"default", words[-1])
    return OK


def _authenticate(client: Client, user: bytes, password: bytes) -> None:
    if user != b"default" or not (client.access.is_open or client.access.admits(password)):
        raise Failed(WRONG_PASSWORD)
    client.is_admitted = True


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
        raise Failed("ERR wrong number of arguments for 'ping' command")
    return words[1] if len(words) > 1 else Simple(b"PONG")


@command("select", 2)
def _select(_: Client, words: Words) -> Any:
    if integer(words[1], NO_INTEGER) != 0:
        raise Failed("ERR DB index is out of range")
    return OK


command("echo", 2)(lambda _, words: words[1])
command("client|id", 2)(lambda client, _: int(client.number))
command("client|getname", 2)(lambda client, _: client.name or None)
command("client|no-evict client|no-touch", 3)(lambda _, __: OK)  # nothing is done to a client, or by it
command("client|info", 2)(lambda client, _: f"{client.described()}\n")


@command("client|setname", 3)
def _client_setname(client: Client, words: Words) -> Any:
    client.name = _checked_name(words[2], "names")
    return OK


@command("client|setinfo", 4)
def _client_setinfo(client: Client, words: Words) -> Any:
    option = _text(words[2]).lower()
    if option not in ("lib-name", "lib-ver"):
        raise Failed(f"ERR Unrecognized option '{_text(words[2])}'")
    client.libraries[option] = _checked_name(words[3], option).decode()
    return OK


def _checked_name(name: bytes, what: str) -> bytes:
    if not _NAME.match(name):
        raise Failed(f"ERR Client {what} cannot contain spaces, newlines or special characters.")
    return name


@command("client|list", -2)
def _client_list(client: Client, _: Words) -> Any:
    return "".join(f"{other.described()}\n" for other in sorted(client.others, key=lambda other: other.number))


@command("client|tracking", -3)
def _client_tracking(client: Client, words: Words) -> Any:
    switch, rest = words[2].upper(), list(words[3:])
    prefixes, options = [], set()
    while rest:
        option = rest.pop(0).upper()
        if option == b"PREFIX" and rest:
            prefixes.append(rest.pop(0))
        elif option in (b"BCAST", b"NOLOOP"):  # a client is told of its own changes all the same: nobody knows whose
            options.add(option)
        elif option in (b"REDIRECT", b"OPTIN", b"OPTOUT"):
            raise Failed(f"ERR {_text(option)} is not supported: use RESP 3 and the default mode, or BCAST")
        else:
            raise Failed(SYNTAX)
    if switch == b"OFF":
        client.tracking.stop(client)
        return OK
    if switch != b"ON":
        raise Failed(SYNTAX)
    if client.version < 3:
        raise Failed("ERR tracking needs RESP 3: say HELLO 3 before")
    if prefixes and b"BCAST" not in options:
        raise Failed("ERR PREFIX option requires BCAST mode to be enabled")
    client.tracking.start(client, (prefixes or [b""]) if b"BCAST" in options else None)
    return OK


@command("client|trackinginfo", 2)
def _client_trackinginfo(client: Client, _: Words) -> Any:
    prefixes = client.tracking.prefixes(client)
    flags = ["on" if client.is_tracking else "off", *([] if prefixes is None else ["bcast"])]
    return {"flags": flags, "redirect": 0 if client.is_tracking else -1, "prefixes": prefixes or []}


# -- the server -------------------------------------------------------------------------------------------------------


@command("command|", -1)
def _command(_: Client, __: Words) -> Any:
    return [_told(each) for each in COMMANDS.values()]


command("command|count", 2)(lambda _, __: len(COMMANDS))
command("command|docs", -2)(lambda _, __: {})


@command("command|info", -2)
def _command_info(_: Client, words: Words) -> Any:
    found = [COMMANDS.get(name.upper()) for name in words[2:] or COMMANDS]
    return [None if each is None else _told(each) for each in found]


def _told(of: Command) -> list[Any]:
    flags = ["write"] if of.writes else ["readonly"] if of.keys[0] else ["no_auth"] if of.is_free else []
    return [of.name, of.arity, [Simple(flag.encode()) for flag in flags], *of.keys, [], [], [], []]


@command("config|get", -3)
def _config_get(client: Client, words: Words) -> Any:
    settings = client.cache._handle.settings
    policies = {"none": "noeviction", "least-frequently-used": "allkeys-lfu"}
    values = {
        "appendonly": "no",
        "databases": "1",
        "maxclients": str(client.access.limits.clients),
        "maxmemory": str(settings["size_limit"]),
        "maxmemory-policy": policies.get(settings["eviction_policy"], "allkeys-lru"),
        "proto-max-bulk-len": str(client.access.limits.value),
        "save": "",
        "timeout": "0",
    }
    patterns = [pattern_of(_text(word).lower()) for word in words[2:]]
    return {name: value for name, value in values.items() if any(pattern.match(name) for pattern in patterns)}


@command("info", -1)
def _info(client: Client, words: Words) -> Any:
    may_block()
    metrics = client.cache.metrics()
    sections: dict[str, dict[str, Any]] = {
        "server": {
            "redis_version": VERSION,
            "redis_mode": "standalone",
            "process_id": os.getpid(),
            "uptime_in_seconds": int(time.time() - _STARTED),
        },
        "clients": {"connected_clients": len(client.others), "maxclients": client.access.limits.clients},
        "memory": {"used_memory": metrics.bytes, "maxmemory": metrics.size_limit},
        "persistence": {"loading": 0},
        "stats": {
            "keyspace_hits": metrics.hits,
            "keyspace_misses": metrics.misses,
            "expired_keys": metrics.evicted["expiry"],
            "evicted_keys": metrics.evicted["room"],
        },
        "replication": {"role": "master", "connected_slaves": 0},
        "keyspace": {"db0": f"keys={metrics.entries},expires=0,avg_ttl=0"} if metrics.entries else {},
    }
    wanted = {_text(word).lower() for word in words[1:]}
    everything = not wanted or wanted & {"all", "default", "everything"}
    return "\r\n".join(
        "".join([f"# {name.title()}\r\n", *(f"{field}:{value}\r\n" for field, value in fields.items())])
        for name, fields in sections.items()
        if everything or name in wanted
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


def _change(client: Client, name: bytes, decide: Callable[[Any, Metadata], Decision]) -> None:
    """Let `decide` say what becomes of an entry; what it raises changes nothing."""
    atomic_key(client.cache, key_of(name)).update(decide, client.cache.timeout)


def _admitted(client: Client, value: bytes) -> bytes:
    """Return a value that may be stored; a large one is not written on an event loop."""
    if len(value) > SMALL:
        may_block()
        if len(value) > min(client.access.limits.value, client.cache._handle.value_limit):
            raise Failed("ERR string exceeds maximum allowed size")
    return value


@command("get", 2, ONE)
def _get(client: Client, words: Words) -> Any:
    value = client.cache.get(key_of(words[1]), ENOVAL)
    return value if type(value) is bytes else _seen(value)


@command("mget", -2, ALL)
def _mget(client: Client, words: Words) -> Any:
    if len(words) > FEW:
        may_block()
    keys = [key_of(name) for name in words[1:]]
    found = client.cache.get_many(keys)
    return [_plain_or_none(found.get(key, ENOVAL)) for key in keys]


def _plain_or_none(value: Any) -> bytes | None:
    try:
        return _seen(value)
    except NotPlain:
        return None


command("strlen", 2, ONE)(lambda client, words: len(_get(client, words) or b""))


class _Options(NamedTuple):
    """What SET and GETEX were asked for."""

    words: frozenset[bytes]
    expire: float | None = None  # seconds from now
    tags: list[str] | None = None

    @classmethod
    def of(cls, client: Client, name: str, words: Words, allowed: Collection[bytes]) -> _Options:
        found: dict[bytes, bytes] = {}
        tags: list[str] | None = None
        rest = list(reversed(words))
        while rest:
            option = rest.pop().upper()
            if option == b"TAGS" in allowed:
                tags, rest = _texts(reversed(rest)), []
            elif option not in allowed or option in found or (option in _UNITS and not rest):
                raise Failed(SYNTAX)
            else:
                found[option] = rest.pop() if option in _UNITS else b""
        units = [option for option in found if option in _UNITS]
        if len([*units, *({b"KEEPTTL", b"PERSIST"} & found.keys())]) > 1 or {b"NX", b"XX"} <= found.keys():
            raise Failed(SYNTAX)
        expire = _seconds(client, units[0], integer(found[units[0]]), name) if units else None
        return cls(frozenset(found), expire, tags)


def _texts(words: Iterable[bytes]) -> list[str]:
    try:
        return [word.decode() for word in words]
    except UnicodeDecodeError:
        raise Failed("ERR a tag is not UTF-8") from None


def _seconds(client: Client, unit: bytes, number: int, name: str) -> float:
    """Return the seconds from now until an expiry that has to be in the future; 0 for a moment that has passed."""
    scale, is_moment = _UNITS[unit]
    now = client.cache._clock()
    if number <= 0 or number // scale > LATEST - (0 if is_moment else int(now)):
        raise Failed(f"ERR invalid expire time in '{name}' command")
    return max(0.0, number / scale - now) if is_moment else number / scale


_SETS: Final = frozenset({*_UNITS, b"NX", b"XX", b"KEEPTTL", b"GET"})


@command("set dl.set", -3, ONE, writes=True)
def _set(client: Client, words: Words) -> Any:
    if len(words) == 3:
        return _store(client, words[1], words[2], _NO_OPTIONS)
    name = _text(words[0]).lower()
    allowed = _SETS if name == "set" else {*_SETS, b"TAGS"}
    return _store(client, words[1], words[2], _Options.of(client, name, words[3:], allowed))


_NO_OPTIONS: Final = _Options(frozenset())


def _store(client: Client, name: bytes, value: bytes, options: _Options) -> Any:
    cache, wanted = client.cache, options.words
    _admitted(client, value)
    if wanted.isdisjoint((b"NX", b"XX", b"GET")):
        expire: Any = KEEP if b"KEEPTTL" in wanted else options.expire
        if not cache.set(key_of(name), value, expire, tags=options.tags):
            raise Failed("ERR string exceeds maximum allowed size")
        return OK
    old: bytes | None = None
    is_met, new = False, cache._rows.metadata(options.expire, pack_tags(tags=options.tags))

    def decide(current: Any, metadata: Metadata) -> Decision:
        nonlocal old, is_met
        old = _seen(current) if b"GET" in wanted else None
        is_met = not (b"NX" in wanted and current is not ENOVAL) and not (b"XX" in wanted and current is ENOVAL)
        if not is_met:
            return None
        keeps = b"KEEPTTL" in wanted and current is not ENOVAL
        return value, with_expiry(new, metadata.expire) if keeps else new

    _change(client, name, decide)
    return old if b"GET" in wanted else OK if is_met else None


@command("setnx", 3, ONE, writes=True)
def _setnx(client: Client, words: Words) -> Any:
    return int(_store(client, words[1], words[2], _Options(frozenset({b"NX"}))) is not None)


@command("setex psetex", 4, ONE, writes=True)
def _setex(client: Client, words: Words) -> Any:
    name = _text(words[0]).lower()
    expire = _seconds(client, b"EX" if name == "setex" else b"PX", integer(words[2]), name)
    return _store(client, words[1], words[3], _Options(frozenset(), expire))


@command("getset", 3, ONE, writes=True)
def _getset(client: Client, words: Words) -> Any:
    return _store(client, words[1], words[2], _Options(frozenset({b"GET"})))


@command("mset", -3, PAIRS, writes=True)
def _mset(client: Client, words: Words) -> Any:
    if len(words) % 2 == 0:
        raise Failed("ERR wrong number of arguments for 'mset' command")
    cache, values = client.cache, words[2::2]
    if sum(map(len, values)) > SMALL:
        may_block()
    pairs = [(key_of(name), _admitted(client, value)) for name, value in zip(words[1::2], values, strict=True)]
    if len(pairs) > SET_MANY_BATCH or len(cache._shards.stores) > 1:
        may_block()
        with cache.transact():
            stored = cache.set_many(pairs)
    else:
        stored = cache.set_many(pairs)
    if stored < len(pairs):
        raise Failed("ERR string exceeds maximum allowed size")
    return OK


@command("getdel", 2, ONE, writes=True)
def _getdel(client: Client, words: Words) -> Any:
    old: bytes | None = None

    def decide(current: Any, _: Metadata) -> Decision:
        nonlocal old
        old = _seen(current)
        return REMOVE

    _change(client, words[1], decide)
    return old


@command("getex", -2, ONE, writes=True)
def _getex(client: Client, words: Words) -> Any:
    options = _Options.of(client, "getex", words[2:], {*_UNITS, b"PERSIST"})
    if not options.words:
        return _get(client, words)
    rows = client.cache._rows
    expiry, old = rows.expiry(options.expire), None

    def decide(current: Any, metadata: Metadata) -> Decision:
        nonlocal old
        old = _seen(current)
        return None if current is ENOVAL else (current, rows.limited(with_expiry(metadata, expiry)))

    _change(client, words[1], decide)
    return old


@command("append", 3, ONE, writes=True)
def _append(client: Client, words: Words) -> Any:
    length, new = 0, client.cache._rows.metadata(None, b"")

    def decide(current: Any, metadata: Metadata) -> Decision:
        nonlocal length
        value = _admitted(client, (_seen(current) or b"") + words[2])
        length = len(value)
        return value, new if current is ENOVAL else metadata

    _change(client, words[1], decide)
    return length


# -- numbers ----------------------------------------------------------------------------------------------------------


def _add(client: Client, name: bytes, add: Callable[[Any], Any]) -> Any:
    """Replace a value, 0 if there is none, by what `add` makes of it, and return that; its expiry stays."""
    result: Any = None
    new = client.cache._rows.metadata(None, b"")

    def decide(current: Any, metadata: Metadata) -> Decision:
        nonlocal result
        result = add(0 if current is ENOVAL else current)
        return result, new if current is ENOVAL else metadata

    _change(client, name, decide)
    return result


def _incr_by(client: Client, name: bytes, delta: int) -> int:
    def add(current: Any) -> int:
        total = (current if type(current) is int else integer(content_of(current).data)) + delta
        if abs(total - delta) > LARGEST + 1:
            raise Failed(NO_INTEGER)
        if not -LARGEST - 1 <= total <= LARGEST:
            raise Failed("ERR increment or decrement would overflow")
        return total

    return int(_add(client, name, add))


@command("incr decr", 2, ONE, writes=True)
@command("incrby decrby", 3, ONE, writes=True)
def _incr(client: Client, words: Words) -> Any:
    delta = integer(words[2]) if len(words) > 2 else 1
    if words[0][:1] in b"Dd":
        if delta < -LARGEST:
            raise Failed("ERR decrement would overflow")
        delta = -delta
    return _incr_by(client, words[1], delta)


@command("incrbyfloat", 3, ONE, writes=True)
def _incrbyfloat(client: Client, words: Words) -> Any:
    delta = _decimal(words[2])

    def add(current: Any) -> int | float:
        total = float(_decimal(content_of(current).data) + delta)
        if not math.isfinite(total):
            raise Failed("ERR increment would produce NaN or Infinity")
        return int(total) if total.is_integer() and abs(total) <= LARGEST else total

    return content_of(_add(client, words[1], add)).data


def _decimal(word: bytes) -> Decimal:
    """Return the number that a word is; not in binary, or 1.1 + 2.2 would be 3.3000000000000003."""
    number = float(word) if _FLOAT.match(word) else math.inf
    if not math.isfinite(number):
        raise Failed("ERR value is not a valid float")
    return Decimal(repr(number))


# -- keys -------------------------------------------------------------------------------------------------------------


@command("exists", -2, ALL)
def _exists(client: Client, words: Words) -> Any:
    if len(words) > FEW:
        may_block()
    return sum(key_of(name) in client.cache for name in words[1:])


@command("type", 2, ONE)
def _type(client: Client, words: Words) -> Any:
    return Simple(b"string" if key_of(words[1]) in client.cache else b"none")


@command("del unlink", -2, ALL, writes=True)
def _del(client: Client, words: Words) -> Any:
    if len(words) == 2:
        return int(client.cache.delete(key_of(words[1])))
    may_block()  # which tells how many there were only once
    return client.cache.delete_many([key_of(name) for name in words[1:]])


def _metadata(client: Client, name: bytes) -> Metadata | None:
    """Return the metadata of a live entry; that is no use of it, and its value is not read."""
    key, rows = key_of(name), client.cache._rows
    stored_key, home, store = location = rows.locate(key)
    record = rows.verified(key, location, store.read(home, stored_key))
    return None if record is None or not rows.is_live(record) else record.metadata


def _note_expiry(client: Client, names: Words) -> None:
    """Tell the tracking when what was read expires: nothing else changes then."""
    for name in names:
        entry = client.cache._hot.probe(key_of(name))
        metadata = entry or _metadata(client, name)
        expire = metadata.expire if isinstance(metadata, Metadata) else metadata and metadata[3]
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


@command("expire pexpire expireat pexpireat", -3, ONE, writes=True)
def _expire(client: Client, words: Words) -> Any:
    conditions = {word.upper() for word in words[3:]}
    number, name = integer(words[2]), _text(words[0]).lower()
    scale, is_moment = 1000 if name[0] == "p" else 1, name.endswith("at")
    if unknown := conditions - {b"NX", b"XX", b"GT", b"LT"}:
        raise Failed(f"ERR Unsupported option {_text(next(word for word in words[3:] if word.upper() in unknown))}")
    if b"NX" in conditions and len(conditions) > 1:
        raise Failed("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= conditions:
        raise Failed("ERR GT and LT options at the same time are not compatible")
    cache = client.cache
    now = cache._clock()
    if abs(number) // scale > LATEST - (0 if is_moment else int(now)):
        raise Failed(f"ERR invalid expire time in '{name}' command")
    expiry = number / scale + (0.0 if is_moment else now)
    is_met = False

    def changed(old: Metadata) -> Metadata | None:
        nonlocal is_met
        before = math.inf if old.expire is None else old.expire
        is_met = not (
            (b"NX" in conditions and old.expire is not None)
            or (b"XX" in conditions and old.expire is None)
            or (b"GT" in conditions and expiry <= before)
            or (b"LT" in conditions and expiry >= before)
        )
        return cache._rows.limited(with_expiry(old, expiry)) if is_met else None

    if expiry > now:
        return int(cache._change(key_of(words[1]), changed, False))
    _change(client, words[1], lambda current, old: REMOVE if current is not ENOVAL and changed(old) else None)
    return int(is_met)


@command("persist", 2, ONE, writes=True)
def _persist(client: Client, words: Words) -> Any:
    def changed(old: Metadata) -> Metadata | None:
        return None if old.expire is None else client.cache._rows.limited(with_expiry(old, None))

    return int(client.cache._change(key_of(words[1]), changed, False))


def _matching(keys: Iterable[Any], glob: bytes | None) -> list[bytes]:
    """Return the names of those keys that clients can name, and that match a glob, byte by byte."""
    names = [name for name in map(name_of, keys) if name is not None]
    if glob is None or glob == b"*":
        return names
    pattern = pattern_of(glob.decode("latin-1"))
    return [name for name in names if pattern.match(name.decode("latin-1"))]


@command("scan", -2)
def _scan(client: Client, words: Words) -> Any:
    cursor = int(words[1]) if re.fullmatch(rb"[0-9]{1,20}", words[1]) else 1 << 64
    if cursor >= 1 << 64:
        raise Failed("ERR invalid cursor")
    options = {b"COUNT": b"10", b"TYPE": b"string"}
    if len(words) % 2:
        raise Failed(SYNTAX)
    for option, value in zip(words[2::2], words[3::2], strict=True):
        if option.upper() not in (b"COUNT", b"MATCH", b"TYPE"):
            raise Failed(SYNTAX)
        options[option.upper()] = value
    count = integer(options[b"COUNT"])
    if count < 1:
        raise Failed(SYNTAX)
    may_block()
    keys, after = client.cache._page(min(cursor, LARGEST) - 1, min(count, client.access.limits.arguments))
    is_wanted = options[b"TYPE"].lower() == b"string"
    return [str(0 if after is None else after + 1), _matching(keys if is_wanted else (), options.get(b"MATCH"))]


@command("keys", 2)
def _keys(client: Client, words: Words) -> Any:
    may_block()
    found: list[bytes] = []
    after: int | None = -1
    while after is not None:
        keys, after = client.cache._page(after, 1000)
        found += _matching(keys, words[1])
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
    return client.cache.evict(tags=_texts(words[2:]), match="all" if match == b"ALL" else "any")
