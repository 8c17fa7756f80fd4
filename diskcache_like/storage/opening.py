"""Opening a shard: find it, make it, repair what a crash or a stranger left.

Opening a sound shard takes no lock and writes nothing. Everything else happens under the shard's write lock, after a
second look, so that of several processes that come at once one does the work.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import files
from ..coherence.board import Board
from ..coherence.generations import UNKNOWN, GenerationFile, Header, boot_stamp
from ..coherence.lock import WriteLock
from ..coherence.words import Implementation
from ..errors import CorruptDatabase, ForeignDatabase
from ..interrupts import suppress
from ..settings import DEFAULT_SETTINGS
from . import schema
from . import statements as sql
from .connection import FAILURES, FOREIGN_LOOKS, bound, connect, look, mapped, prepare_file, walked
from .journal import UNKNOWN_STATE, first_mark
from .layout import (
    BOARD,
    DATABASE,
    GENERATIONS,
    LOCK,
    MAX_EPOCH,
    Config,
    corrupt_if_damaged,
    database_path,
    is_there,
    kind_of,
    newest_epoch,
    read_settings,
    storable,
)
from .succession import replace_unreadable

if TYPE_CHECKING:
    from .shard import Shard

MAX_COUNTED = 1 << 62
FARTHEST = 1 << 53  # microseconds from 1970 to 2255: no clock was that far ahead, so an entry from then is damaged
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
    """Close what could not be closed when it was dropped; the caller has the mutex.

    What fails, as for a clock that raises or a directory that is gone, is none of the opening's that is under way.
    """
    for close in [_unclosed.popleft() for _ in range(len(_unclosed))]:
        with suppress(Exception):
            close()


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
        if not is_there(path, config.shared):
            problem = CorruptDatabase(f"{path!r}: the database is gone or empty")
            replace_unreadable(store, generations, epoch, problem)
            continue
        try:
            connection = connect(path, {**DEFAULT_SETTINGS, **config.given}, config.timeout, reader=True)
            identity, stored = _read_verified(connection, path)
        except FAILURES as error:
            replace_unreadable(store, generations, epoch, mapped(error, path, reads=True))
            continue
        except CorruptDatabase as damage:
            replace_unreadable(store, generations, epoch, damage)
            continue
        settings = {**DEFAULT_SETTINGS, **stored, **config.given}
        for word, known in ((Header.MODULUS, identity["modulus"]), (Header.KIND, kind_of(identity))):
            if generations.header[word] != known:
                generations.header[word] = known
        if "keyring" in identity and not generations.header[Header.KEYS]:
            generations.header[Header.KEYS] = 2
        store.attach_lock(generations)
        return Opened(generations, settings, identity, path, epoch, connection)
    raise CorruptDatabase(f"{store.directory!r}: three databases in a row could not be opened")


def words_of(config: Config) -> Implementation:
    """Return how generations are accessed; without a hot layer they are still written for the other processes."""
    return "python" if config.implementation == "off" else config.implementation


def refuse_foreign(directory: str, named: str) -> None:
    """Raise ForeignDatabase for a database of another make, before anything is written into its directory.

    A directory with generations is ours, and is verified when it is opened. `named`: what the message calls it.
    """
    path = os.path.join(directory, DATABASE)
    if files.mode_of(os.path.join(directory, GENERATIONS)) or not is_there(path, True):
        return
    connection = look(path)
    try:
        bound(connection, FOREIGN_LOOKS)
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


def _read_verified(connection: sqlite3.Connection, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with corrupt_if_damaged(connection, path):
            if schema.verify(connection, path) < schema.VERSION:
                raise ForeignDatabase(f"{path!r} has an older format and could not be migrated")
            return read_settings(connection, path)
    except BaseException:
        connection.close()
        raise


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
        known = generations is not None and not is_there(path, store.config.shared)
        lost = generations is None
        displaced, last = (1, 0) if known else _ensure_database(store, path, lost)  # opening sets aside what is missing
        if generations is None:
            generations = GenerationFile.create(
                _generation_path(store),
                store.config.slots,
                words_of(store.config),
                tick=max(last + 1, time.time_ns() // 1000),  # the clock may have been ahead once, or be behind now
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


def _ensure_database(store: Shard, path: str, lost: bool) -> tuple[int, int]:
    """Make the database if it is missing or empty, migrate it if it is old.

    Returns whether keys may live beside their home place, and where the count of writes is `lost` the last of those
    that left an entry: to count from before it would put what is written next in front of what is there.
    """
    config = store.config
    if not is_there(path, config.shared):
        config.claimed()
    settings = {**DEFAULT_SETTINGS, **config.given}
    try:
        connection = _connect_or_prepare(path, settings, config)
        try:
            if schema.is_empty(connection):
                schema.create(connection, {**storable(settings), **config.identity, **first_mark(config.identity)})
            with corrupt_if_damaged(connection, path):
                version = schema.verify(connection, path)
                if version < schema.VERSION:
                    schema.migrate(connection, path, version)
                identity, _ = read_settings(connection, path)
            displaced = int(identity.get("displaced", 0))
            return displaced, walked(connection, path, sql.LAST_SEQ, (FARTHEST,))[0][0] if lost else 0
        finally:
            connection.close()
    except CorruptDatabase:
        return 1, 0  # the generations are made all the same; opening then sets the database aside through them
    except FAILURES as error:
        problem = mapped(error, path, reads=True)  # of values it writes none that is long
        if isinstance(problem, CorruptDatabase):
            return 1, 0
        raise problem from error


def _connect_or_prepare(path: str, settings: dict[str, Any], config: Config) -> sqlite3.Connection:
    """Return a connection to the database, made first where it is missing or its maker died before it held anything.

    An empty one is made again from the start, since its journal mode may not have been set.
    """
    if is_there(path, config.shared):
        connection = connect(path, settings, config.timeout)
        try:
            if not schema.is_empty(connection):
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
    return prepare_file(path, settings, config.timeout)


def _renew(generations: GenerationFile, epoch: int, displaced: int, joint: bool) -> None:
    """Bring the header in line with the database after a reboot, a repair or at creation; the lock is held.

    Every slot gets a new even number: whatever a crash left odd or unwritten is settled, and no stamp of before counts.
    """
    header = generations.header
    tick = max(generations.next_tick(), time.time_ns() // 1000)  # microseconds: no count of writes overtakes them
    header[Header.TICK] = tick
    header[Header.COUNT] = UNKNOWN
    header[Header.NEXT_EXPIRE] = header[Header.SWEEP] = 0  # the next write looks for the real ones
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


def prime_below(number: int) -> int:
    """Return the largest prime that is not above `number` (at least 2)."""
    for candidate in range(number, 2, -1):
        if all(candidate % divisor for divisor in range(2, int(candidate**0.5) + 1)):
            return candidate
    return 2
