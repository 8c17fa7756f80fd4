"""What lies in a shard's directory, what its database says about itself, and what a handle was opened with."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ...coherence.control_files import check_control_file
from ...coherence.counts import Counts
from ...coherence.generations import DEFAULT_SLOTS
from ...coherence.ring import LEAST_CAPACITY, PAGE
from ...encoding.keys import is_prime
from ...errors import DirectoryError, ForeignDatabase, OlderFormat, SettingError, file_error
from ...settings.definitions import DEFAULT_SETTINGS, HANDLE_ONLY, MAX_SHARDS, checked_all
from ...settings.policies import policy_named
from ...system import paths
from ..sqlite import schema
from ..sqlite import statements as sql
from ..sqlite.connection import corrupt

DATABASE, GENERATIONS, LOCK = "cache.db", "cache.gen", "cache.lock"
BUFFER = "cache.buffer"
_NUMBERED = re.compile(r"cache\.([0-9]{1,9})\.db")

# What a database says about itself beside the settings: name -> accepted type.
IDENTITY: dict[str, type] = {
    "modulus": int,
    "shards": int,
    "codec": str,
    "serializer": str,
    "compressor": str,
    "key_check": bytes,
    "displaced": int,
    "keyring": bytes,
    "sealed": int,
}
# For a cache that says nothing about these: one made before there was a choice, or without making one.
IDENTITY_DEFAULTS = {"serializer": "msgpack", "compressor": "none"}
# What all databases of a cache have in common, beside whether there is a keyring, which may be rotated.
INHERITED = ("modulus", "codec", "key_check", *IDENTITY_DEFAULTS)
FINGERPRINTS = 1 << 61
MODULUS_RANGE = (1 << 20, 1 << 61)
_RANGES = {"modulus": MODULUS_RANGE, "shards": (1, MAX_SHARDS), "displaced": (0, 1), "sealed": (0, 1 << 62)}
_OPTIONAL = frozenset({"shards", "displaced", "sealed"})
_BESIDE = ("joint.", "buffer.")  # what begins so lies beside the settings
# What `Header.CROSS_SHARD` says of a shard: its part of a cross-shard transaction may be missing, or its last commit be
# seen late; or its header is new, so that only its database can tell.
COMMITTING, UNKNOWN_STATE = 1, 2
BUFFER_MARK = "buffer.mark"  # up to where the database has what was written into the buffer
LAST_TRANSACTION = "joint.mark"  # names the last cross-shard transaction that the shard has its part of
TRANSACTION_SIZE = 16
BUFFER_PART = 100  # of the size limit: 1/200 of it may wait, and a ring has twice the room
SLOTS_PART = 128  # of the size limit: the generations of all slots take no more
LEAST_SLOTS = 1 << 10
MAX_EPOCH = 999_999_999  # databases are numbered with up to nine digits


@dataclass
class Config:
    """What a handle was opened with; shared by its shards."""

    given: dict[str, Any]
    identity: dict[str, Any]  # for a database that is made now
    timeout: float
    clock: Callable[[], float]
    slots: int | None = None  # None: by the size limit
    recover: bool = True  # set a corrupt database aside and go on empty, instead of raising
    shared: bool = False  # files may belong to, and be written by, others
    claimed: Callable[[], None] = field(default=lambda: None)  # called under the lock before a database is made
    counts: Counts | None = None  # of all shards
    counts_keys: bool = True  # whether what is done with keys is counted here, and not where a server's entries are
    encrypt: bool | None = None  # whether the cache must be encrypted, or must not be; None: as it was made
    keyless: bool = False  # for a look at what needs no secret: it is not compared

    @property
    def syncs(self) -> bool:
        """Tell whether what is made for this handle has to outlast a power loss."""
        return self.given.get("durability") == "power"


def identity_of(identity: dict[str, Any]) -> list[object]:
    """Return what never changes in a cache and decides where its entries are and how they are written."""
    return ["keyring" in identity, *map(identity.get, INHERITED)]


def format_fingerprint(identity: Mapping[str, Any]) -> int:
    """Return the number, 1 to FINGERPRINTS - 1, that says in every process how a cache's entries are written."""
    sealed = "keyring" in identity
    secret = None if sealed else identity.get("key_check")  # the keyring recognises its own secret
    kind = [
        identity.get("codec"),
        *({**IDENTITY_DEFAULTS, **identity}[name] for name in IDENTITY_DEFAULTS),
        secret,
        sealed,
    ]
    return 1 + int.from_bytes(blake2b(repr(kind).encode(), digest_size=8).digest(), "big") % (FINGERPRINTS - 1)


def cache_replaced(directory: str) -> DirectoryError:
    """Return the error for a handle that finds another cache where its own was."""
    return DirectoryError(
        errno.ESTALE, "the directory holds another cache than when this handle was opened; make a new handle", directory
    )


def database_path(directory: str, epoch: int) -> str:
    """Return the path of the database with that number."""
    return os.path.join(directory, f"cache.{epoch}.db" if epoch else DATABASE)


def is_database(name: str) -> bool:
    """Tell whether a file of that name is, or was, the database of a shard."""
    return name == DATABASE or _NUMBERED.fullmatch(name) is not None


def names_in(directory: str) -> list[str]:
    """Return the names in a directory of the cache, which may have been removed in the meantime."""
    try:
        return os.listdir(directory)
    except OSError as error:
        raise file_error(error, directory) from error


def newest_epoch(directory: str) -> int:
    """Return the highest number of a database in the directory, 0 if there is none."""
    numbers = (_NUMBERED.fullmatch(name) for name in names_in(directory))
    return max((int(match[1]) for match in numbers if match), default=0)


def has_database(directory: str) -> bool:
    """Tell whether a shard was made in a directory; the databases that were quarantined may have been removed since."""
    return paths.mode_of(os.path.join(directory, DATABASE)) != 0 or newest_epoch(directory) > 0


def is_there(path: str, shared: bool) -> bool:
    """Tell whether there is a database with anything in it; refuse one that others own, may write, or linked here."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    check_control_file(status, path, shared)
    return status.st_size > 0


def read_settings(connection: sqlite3.Connection, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (identity, settings) as stored, every value checked by type and range."""
    identity: dict[str, Any] = dict(IDENTITY_DEFAULTS)
    settings: dict[str, Any] = {}
    seen: set[object] = set()
    with contextlib.closing(connection.execute(sql.SELECT_SETTINGS)) as rows:
        for name, value in rows:
            if name in seen:  # damaged pages that lead to one page several times give rows without end
                raise corrupt(f"{path!r}: setting {name!r} is there twice", path)
            seen.add(name)
            if name in IDENTITY:
                if type(value) is not IDENTITY[name]:
                    raise ForeignDatabase(f"{path!r}: setting {name!r} holds a {type(value).__name__}")
                identity[name] = value
            elif isinstance(name, str) and name not in HANDLE_ONLY and not name.startswith(_BESIDE):
                settings[name] = value
    _refuse_dictionaries(seen, path)
    for name, (low, high) in _RANGES.items():
        if not low <= identity.get(name, low if name in _OPTIONAL else -1) <= high:
            raise ForeignDatabase(f"{path!r}: setting {name!r} is missing or out of range; the cache is not opened")
    if not is_prime(identity["modulus"]):  # with another one nothing would be found, of no shard
        raise corrupt(f"{path!r}: setting 'modulus' is no prime, as it was when it was written", path)
    try:
        return identity, checked_all(settings)
    except SettingError as error:
        raise ForeignDatabase(f"{path!r} holds a setting that no cache writes, and is not opened: {error}") from error


def _refuse_dictionaries(names: set[object], path: str) -> None:
    """Refuse a cache with compression dictionaries: without them its entries would read as missing, one by one."""
    if any(isinstance(name, str) and name.startswith("dictionary.") for name in names):
        raise OlderFormat(
            f"{path!r} has compression dictionaries, which this version of diskcache_like does not read: delete the"
            " directory, or export it with the version that wrote it and import that"
        )


@contextlib.contextmanager
def corrupt_if_damaged(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """Raise CorruptDatabase if the body refuses the database as foreign but SQLite finds it damaged.

    Without syncs a power loss may leave pages old or torn, and what then looks altered was altered by nobody.
    """
    try:
        yield
    except ForeignDatabase as refusal:
        if not schema.runs_nothing(connection.execute(schema.SELECT_SCHEMA).fetchall()):
            raise
        connection.execute("PRAGMA ignore_check_constraints = ON")
        ((found,),) = connection.execute(f"{sql.INTEGRITY_CHECK}(1)").fetchall()
        if found == "ok":
            raise
        raise corrupt(f"{path!r}: {found}", path) from refusal


def first_transaction(identity: dict[str, Any]) -> dict[str, object]:
    """Return what a new database has beside its settings, so that no earlier redo log applies to it."""
    return {LAST_TRANSACTION: os.urandom(TRANSACTION_SIZE)} if identity.get("shards", 1) > 1 else {}


def evicts(settings: Mapping[str, Any]) -> bool:
    """Tell whether live entries are removed for room at all, so that the limits are in force."""
    return policy_named(settings["eviction_policy"]).evicts and settings["cull_limit"] > 0


def settings_of_new(given: Mapping[str, Any], shards: int) -> dict[str, Any]:
    """Return the settings of a new database: the write buffer is as large as the size limit can use, unless given."""
    settings = {**DEFAULT_SETTINGS, **given}
    if "write_buffer" not in given and evicts(settings):
        useful = settings["size_limit"] // shards // BUFFER_PART // PAGE * PAGE
        settings["write_buffer"] = min(settings["write_buffer"], max(useful, LEAST_CAPACITY))
    return settings


def slots_for(settings: Mapping[str, Any], shards: int) -> int:
    """Return how many slots a new generation file gets, a power of two, so that they take little of the size limit."""
    if not evicts(settings):
        return DEFAULT_SLOTS
    most = int(settings["size_limit"]) // shards // SLOTS_PART // 8
    return 1 << max(LEAST_SLOTS, min(most, DEFAULT_SLOTS)).bit_length() - 1


def storable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are stored in the database; the others belong to a handle."""
    return {name: value for name, value in settings.items() if name not in HANDLE_ONLY}
