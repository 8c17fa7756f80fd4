"""Opening a shard: find it, make it, repair what a crash or a stranger left, set a damaged database aside.

Opening a sound shard takes no lock and writes nothing. Everything else happens under the shard's write lock, after a
second look, so that of several processes that come at once one does the work.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..coherence.board import Board
from ..coherence.generations import NEVER, UNKNOWN, GenerationFile, Header, boot_stamp, check_private
from ..coherence.lock import WriteLock
from ..coherence.words import Implementation
from ..errors import (
    CacheError,
    CorruptDatabase,
    CorruptDatabaseWarning,
    ForeignDatabase,
    KeyringError,
    SettingError,
    refused,
)
from ..keyring import is_whole
from ..keys import is_prime
from ..settings import DEFAULT_SETTINGS, HANDLE_ONLY, MAX_SHARDS, checked_all
from . import schema
from . import statements as sql
from .connection import FAILURES, connect, corrupt, look, mapped, prepare_file
from .journal import UNKNOWN_STATE, first_mark

if TYPE_CHECKING:
    from .holding import Holder
    from .shard import Shard

DATABASE, GENERATIONS, BOARD, LOCK = "cache.db", "cache.gen", "cache.board", "cache.lock"
_NUMBERED = re.compile(r"cache\.(\d{1,9})\.db")

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
UNSAID = {"serializer": "msgpack", "compressor": "none"}
"""What a cache is that says nothing about it: one made before there was a choice, or without making one."""

_RANGES = {"modulus": (1 << 20, 1 << 61), "shards": (1, MAX_SHARDS), "displaced": (0, 1), "sealed": (0, 1 << 62)}
_OPTIONAL = frozenset({"shards", "displaced", "sealed"})
MAX_EPOCH = 999_999_999  # databases are numbered with up to nine digits
MAX_COUNTED = 1 << 62
_COUNTED = (
    Header.TICK,
    Header.SETTLED,
    Header.WRITTEN,
    Header.CHECKPOINTED,
    Header.MARK,
    Header.HITS,
    Header.MISSES,
)

_unclosed: deque[Callable[[], None]] = deque()


@dataclass
class Config:
    """What a handle was opened with; shared by its shards."""

    given: dict[str, Any]
    identity: dict[str, Any]  # for a database that is made now
    timeout: float
    clock: Callable[[], float]
    implementation: Implementation
    slots: int = 1 << 16
    recover: bool = True  # set a corrupt database aside and go on empty, instead of raising
    shared: bool = False  # files may belong to, and be written by, others
    claimed: Callable[[], None] = field(default=lambda: None)  # called under the lock before a database is made
    on_write: Callable[[Holder], None] | None = None  # called with the lock held when it was taken for a write
    encrypt: bool | None = None  # whether the cache must be encrypted, or must not be; None: as it was made
    keyless: bool = False  # for a look at what needs no secret: it is not compared

    @property
    def syncs(self) -> bool:
        """Tell whether what is made for this handle has to outlast a power loss."""
        return self.given.get("durability") == "power"


class Opened(NamedTuple):
    """A shard that is ready: its mapped generations, effective settings, database path and epoch."""

    generations: GenerationFile
    settings: dict[str, Any]
    identity: dict[str, Any]
    path: str
    epoch: int
    connection: sqlite3.Connection


# One opening at a time in a process, so that two threads never open the same store twice. A forked child gets a new
# mutex, because a thread that does not exist there may have held the old one.
_mutex = threading.RLock()


def mutex() -> threading.RLock:
    """Return the lock that guards opening and reopening of stores in this process."""
    return _mutex


def _renew_mutex() -> None:
    global _mutex
    _mutex = threading.RLock()


os.register_at_fork(after_in_child=_renew_mutex)


def new_lock(directory: str, config: Config) -> WriteLock:
    """Return the write lock of a shard's directory, for this process."""
    return WriteLock(os.path.join(directory, LOCK), shared=config.shared)


def close_later(close: Callable[[], None]) -> None:
    """Have `close` called again with the next opening of a store in this process."""
    _unclosed.append(close)


def close_leftovers() -> None:
    """Close what could not be closed when it was dropped; the caller has the mutex."""
    for close in [_unclosed.popleft() for _ in range(len(_unclosed))]:
        close()


def database_path(directory: str, epoch: int) -> str:
    """Return the path of the database with that number."""
    return os.path.join(directory, f"cache.{epoch}.db" if epoch else DATABASE)


def names_in(directory: str) -> list[str]:
    """Return the names in a directory of the cache, which may have been removed in the meantime."""
    try:
        return os.listdir(directory)
    except OSError as error:
        raise refused(error, directory) from error


def newest_epoch(directory: str) -> int:
    """Return the highest number of a database in the directory, 0 if there is none."""
    numbers = (_NUMBERED.fullmatch(name) for name in names_in(directory))
    return max((int(match[1]) for match in numbers if match), default=0)


def open_shard(store: Shard) -> Opened:
    """Return the shard of `store.directory`, made or repaired first where that is needed."""
    generations = _existing(store)
    if generations is None or not generations.is_current_boot():
        generations = _under_lock(store)
    try:
        return _open_with(store, generations)
    except BaseException:
        generations.close()
        raise


def _open_with(store: Shard, generations: GenerationFile) -> Opened:
    config = store.config
    for _ in range(3):
        epoch = generations.header[Header.EPOCH]
        path = database_path(store.directory, epoch)
        if not _is_there(path, config.shared):
            problem = CorruptDatabase(f"{path!r}: the database is gone or empty")
            _after_failure(store, generations, epoch, problem)
            continue
        try:
            connection = connect(path, {**DEFAULT_SETTINGS, **config.given}, config.timeout, reader=True)
            identity, stored = _read_verified(connection, path)
        except FAILURES as error:
            _after_failure(store, generations, epoch, mapped(error, path))
            continue
        except CorruptDatabase as damage:
            _after_failure(store, generations, epoch, damage)
            continue
        settings = {**DEFAULT_SETTINGS, **stored, **config.given}
        if generations.header[Header.MODULUS] != identity["modulus"]:
            generations.header[Header.MODULUS] = identity["modulus"]
        if "keyring" in identity and not generations.header[Header.KEYS]:
            generations.header[Header.KEYS] = 2
        store.attach_lock(generations)
        return Opened(generations, settings, identity, path, epoch, connection)
    raise CorruptDatabase(f"{store.directory!r}: three databases in a row could not be opened")


def words_of(config: Config) -> Implementation:
    """Return how generations are accessed; without a hot layer they are still written for the other processes."""
    return "python" if config.implementation == "off" else config.implementation


def _is_there(path: str, shared: bool) -> bool:
    """Tell whether there is a database with anything in it; refuse one that others own, may write, or linked here."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    check_private(status, path, shared)
    return status.st_size > 0


def refuse_foreign(directory: str, named: str) -> None:
    """Raise ForeignDatabase for a database of another make, before anything is written into its directory.

    A directory with generations is ours, and is verified when it is opened. `named`: what the message calls it.
    """
    path = os.path.join(directory, DATABASE)
    if os.path.exists(os.path.join(directory, GENERATIONS)) or not _is_there(path, True):
        return
    connection = look(path)
    try:
        schema.refuse_foreign(connection, path, named)
    except FAILURES:
        return  # not a database at all, or a damaged one: it is set aside
    finally:
        connection.close()


def _existing(store: Shard) -> GenerationFile | None:
    """Return the generations if they are whole; with numbers that nobody can have counted to they are not.

    Nor are they if the last write counted is not the last: iteration would end before what was written since.
    """
    found = GenerationFile.open_existing(_generation_path(store), words_of(store.config), shared=store.config.shared)
    if found is None:
        return None
    header = found.header
    settled = header[Header.SETTLED]  # before the tick, which a writer at work counts first
    behind = header[Header.TICK] < settled
    if behind or header[Header.EPOCH] > MAX_EPOCH or any(header[word] > MAX_COUNTED for word in _COUNTED):
        found.close()
        return None
    return found


def open_board(store: Shard) -> Board | None:
    """Return the shard's board; None where the hot layer is off or the CPU does not order what it needs."""
    if store.config.implementation != "python":
        return None
    return Board.open(os.path.join(store.directory, BOARD), store.config.shared)


def _generation_path(store: Shard) -> str:
    return os.path.join(store.directory, GENERATIONS)


def _after_failure(store: Shard, generations: GenerationFile, epoch: int, problem: CacheError) -> None:
    """Set a corrupt or missing database aside; raise for every other failure.

    A missing one is not made anew under its name: whoever still has it open would go on with the unlinked file.
    """
    if not isinstance(problem, CorruptDatabase) or not store.config.recover:
        raise problem
    if generations.header[Header.KEYS] and "keyring" not in store.config.identity:
        raise CorruptDatabase(
            f"{problem}; it was encrypted, so that the cache goes on empty only if it is opened with encrypt=True"
        )
    low, high = _RANGES["modulus"]
    modulus = generations.header[Header.MODULUS]
    identity = {**store.config.identity, **({"modulus": modulus} if low <= modulus <= high else {})}
    store.lock.acquire(store.config.timeout)
    try:
        if not _is_sound(database_path(store.directory, epoch), store.config):
            _next_database(store, generations, epoch, problem, {**store.config.given}, identity)
    finally:
        store.lock.release()


def _read_verified(connection: sqlite3.Connection, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with corrupt_if_damaged(connection, path):
            if schema.verify(connection, path) < schema.VERSION:
                raise ForeignDatabase(f"{path!r} has an older format and could not be migrated")
            return read_settings(connection, path)
    except BaseException:
        connection.close()
        raise


@contextlib.contextmanager
def corrupt_if_damaged(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """Raise CorruptDatabase where the body refuses the database as foreign, and SQLite finds it damaged.

    Without syncs a power loss may leave some of its pages as they were, or never were, and what then looks altered
    was not altered by anybody.
    """
    try:
        yield
    except ForeignDatabase as refusal:
        ((found,),) = connection.execute(f"{sql.INTEGRITY_CHECK}(1)").fetchall()
        if found == "ok":
            raise
        raise corrupt(f"{path!r}: {found}", path) from refusal


def read_settings(connection: sqlite3.Connection, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (identity, settings) as stored, every value checked by type and range."""
    identity: dict[str, Any] = dict(UNSAID)
    settings: dict[str, Any] = {}
    for name, value in connection.execute(sql.SELECT_SETTINGS).fetchall():
        if name in IDENTITY:
            if type(value) is not IDENTITY[name]:
                raise ForeignDatabase(f"{path!r}: setting {name!r} holds a {type(value).__name__}")
            identity[name] = value
        elif isinstance(name, str) and name not in HANDLE_ONLY:
            settings[name] = value
    for name, (low, high) in _RANGES.items():
        if not low <= identity.get(name, low if name in _OPTIONAL else -1) <= high:
            raise ForeignDatabase(f"{path!r}: setting {name!r} is missing or out of range; the cache is not opened")
    if not is_prime(identity["modulus"]):  # with another one nothing would be found, of no shard
        raise corrupt(f"{path!r}: setting 'modulus' is no prime, as it was when it was written", path)
    try:
        return identity, checked_all(settings)
    except SettingError as error:
        raise ForeignDatabase(f"{path!r} holds a setting that no cache writes, and is not opened: {error}") from error


def _under_lock(store: Shard) -> GenerationFile:
    """Make or repair the shard under its write lock and return the generations."""
    store.lock.acquire(store.config.timeout)
    try:
        generations = _existing(store)
        epoch = generations.header[Header.EPOCH] if generations else 0
        if generations is None or not generations.is_current_boot():
            # The header is never synced, so that a power loss may undo that a database was set aside.
            epoch = max(epoch, newest_epoch(store.directory))
        path = database_path(store.directory, epoch)
        known = generations is not None and not _is_there(path, store.config.shared)
        displaced = 1 if known else _ensure_database(store, path)  # opening sets aside what is known and not there
        if generations is None:
            generations = GenerationFile.create(
                _generation_path(store),
                store.config.slots,
                words_of(store.config),
                epoch=epoch,
                shared=store.config.shared,
            )
        board = open_board(store)
        if board is not None:
            board.clear()
            board.close()
        _renew(generations, epoch, displaced, store.config.identity.get("shards", 1) > 1)
        return generations
    finally:
        store.lock.release()


def _ensure_database(store: Shard, path: str) -> int:
    """Make the database if it is missing or empty, migrate it if it is old.

    Returns whether keys may live beside their home place.
    """
    config = store.config
    if not _is_there(path, config.shared):
        config.claimed()
    settings = {**DEFAULT_SETTINGS, **config.given}
    try:
        connection = _connect_or_prepare(path, settings, config)
        try:
            if schema.is_empty(connection):
                schema.create(connection, {**_storable(settings), **config.identity, **first_mark(config.identity)})
            with corrupt_if_damaged(connection, path):
                version = schema.verify(connection, path)
                if version < schema.VERSION:
                    schema.migrate(connection, path, version)
                identity, _ = read_settings(connection, path)
            return int(identity.get("displaced", 0))
        finally:
            connection.close()
    except CorruptDatabase:
        return 1  # the generations are made all the same; opening then sets the database aside through them
    except FAILURES as error:
        problem = mapped(error, path)
        if isinstance(problem, CorruptDatabase):
            return 1
        raise problem from error


def _connect_or_prepare(path: str, settings: dict[str, Any], config: Config) -> sqlite3.Connection:
    """Return a connection to the database, made first where it is missing or its maker died before it held anything.

    An empty one is made again from the start, since its journal mode may not have been set.
    """
    if _is_there(path, config.shared):
        connection = connect(path, settings, config.timeout)
        try:
            if not schema.is_empty(connection):
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
    return prepare_file(path, settings, config.timeout)


def _storable(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in HANDLE_ONLY}


def _renew(generations: GenerationFile, epoch: int, displaced: int, joint: bool) -> None:
    """Bring the header in line with the database after a reboot, a repair or at creation; the lock is held.

    Every slot gets a new even number: whatever a crash left odd or unwritten is settled, and no stamp of before counts.
    """
    header = generations.header
    tick = max(generations.next_tick(), time.time_ns() // 1000)  # microseconds: no count of writes overtakes them
    header[Header.TICK] = tick
    header[Header.COUNT] = UNKNOWN
    header[Header.NEXT_EXPIRE] = 0  # the next write looks for the real one
    header[Header.MARK] = header[Header.CLAIM] = 0
    header[Header.CHECKPOINTED] = header[Header.WRITTEN]
    header[Header.FILES] = 1
    header[Header.OPENER] = header[Header.SHARED] = 0
    header[Header.DISPLACED] = displaced
    if joint and not header[Header.JOINT]:
        header[Header.JOINT] = UNKNOWN_STATE
    generations.begin_all(tick)
    header[Header.EPOCH] = epoch
    generations.settle_all(tick)
    header[Header.SETTLED] = tick  # after that: where it is missing, the next holder settles what was left odd
    header[Header.BOOT] = boot_stamp()


def set_aside(store: Shard, problem: CorruptDatabase) -> None:
    """Leave a database where it is and go on with the next numbered one, once for all processes and threads.

    Not one that can be read after all.

    Renaming or unlinking would leave other holders writing into a file that nobody reads any more.
    """

    def look() -> CorruptDatabase | None:
        if problem.path not in (None, store.path) or _is_sound(store.path, store.config):
            return None
        if "keyring" in store.identity and _is_there(store.path, store.config.shared):
            _note_keyring(store)
        return problem

    _begin_anew(store, store.identity, look)


def _note_keyring(store: Shard) -> None:
    """Note the keyring as it is now, if it can be read: under that of before a rotation the old secret would open."""
    with contextlib.suppress(CacheError, *FAILURES):
        with contextlib.closing(connect(store.path, DEFAULT_SETTINGS, store.config.timeout, reader=True)) as connection:
            rows = connection.execute(sql.SELECT_SETTING, ("keyring",)).fetchall()
        if rows and type(rows[0][0]) is bytes and is_whole(rows[0][0]):
            store.identity["keyring"] = rows[0][0]


def set_keys_aside(store: Shard, keyring: bytes, look: Callable[[], KeyringError | None]) -> None:
    """Do what `set_aside` does if `look` returns what is wrong with the keyring, and go on with this one."""
    _begin_anew(store, {**store.identity, "keyring": keyring, "sealed": 0}, look)


def _begin_anew(store: Shard, identity: dict[str, Any], look: Callable[[], CacheError | None]) -> None:
    """Go on with the next database if `look`, under the lock, says what is wrong with this one."""
    store.lock.acquire(store.config.timeout)
    try:
        if store.header[Header.EPOCH] == store.epoch and (problem := look()):
            stored = {name: value for name, value in store.settings.items() if name not in HANDLE_ONLY}
            _next_database(store, store.generations, store.epoch, problem, stored, identity)
    finally:
        store.lock.release()
    store.follow()


def _is_sound(path: str, config: Config) -> bool:
    """Tell whether all of a database can be read after all: SQLite calls it damaged when the disk fails for a moment.

    The write lock is held. That this takes its time is the price of not giving up all entries for one failed read.
    """
    if not _is_there(path, config.shared):
        return False
    try:
        with contextlib.closing(connect(path, DEFAULT_SETTINGS, config.timeout, reader=True)) as connection:
            schema.verify(connection, path)
            with contextlib.suppress(ForeignDatabase):  # which is no damage
                read_settings(connection, path)
            return bool(connection.execute(sql.INTEGRITY_CHECK).fetchall() == [("ok",)])
    except (*FAILURES, CacheError):
        return False


def _next_database(
    store: Shard,
    generations: GenerationFile,
    epoch: int,
    problem: CacheError,
    settings: dict[str, Any],
    identity: dict[str, Any],
) -> None:
    """Make the next database and point the header at it; the write lock is held."""
    header = generations.header
    if header[Header.EPOCH] != epoch:
        return  # another process was first
    following = max(epoch, newest_epoch(store.directory)) + 1
    path = database_path(store.directory, following)
    settings = {**DEFAULT_SETTINGS, **settings}
    try:
        with contextlib.closing(prepare_file(path, settings, store.config.timeout)) as connection:
            schema.create(connection, {**_storable(settings), **identity, **first_mark(identity)})
    except BaseException as error:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)  # nobody knows it yet
        if isinstance(error, FAILURES):
            raise mapped(error, path) from error
        raise
    tick = generations.next_tick()
    generations.begin_all(tick)
    header[Header.EPOCH] = following  # from here on every operation of every process follows to the new database
    header[Header.NEXT_EXPIRE] = NEVER
    header[Header.MARK] = 0
    header[Header.COUNT] = 0
    generations.settle_all(tick)
    header[Header.SETTLED] = tick
    warnings.warn(
        f"{problem}; the database stays where it is and the cache goes on empty in {path!r}",
        CorruptDatabaseWarning,
        stacklevel=2,
    )


def prime_below(number: int) -> int:
    """Return the largest prime that is not above `number` (at least 2)."""
    for candidate in range(number, 2, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    return 2
