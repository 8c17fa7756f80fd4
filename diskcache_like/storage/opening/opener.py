"""Opening a shard: find it, make it, repair what a crash or a stranger left.

Opening a sound shard takes no lock and writes nothing. Everything else happens under the shard's write lock, after a
second look, so that of several processes that come at once one does the work.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...coherence.generations import FARTHEST, UNCOUNTED, GenerationFile, Header
from ...coherence.ring import LEAST_CAPACITY, Mark, Ring
from ...encoding.keys import new_modulus
from ...errors import CorruptDatabase
from ...settings.definitions import DEFAULT_SETTINGS
from ...system import paths
from ...system.boot import boot_id
from ...system.signals import suppress
from ..sqlite import schema
from ..sqlite import statements as sql
from ..sqlite.connection import (
    FAILURES,
    FOREIGN_LOOKS,
    FULL,
    bound,
    closed_on_error,
    connect,
    mapped,
    open_immutable,
    prepare_file,
    walked,
)
from .identity import (
    BUFFER,
    BUFFER_MARK,
    DATABASE,
    GENERATIONS,
    MAX_EPOCH,
    UNKNOWN_STATE,
    Config,
    corrupt_if_damaged,
    database_path,
    first_transaction,
    format_fingerprint,
    is_there,
    newest_epoch,
    read_settings,
    settings_of_new,
    slots_for,
    storable,
)
from .mutex import Holding
from .replacement import replace_unreadable

ROOM: int = 64 << 20  # bytes of free disk below which no write waits
LEAST_RECORD = 32  # bytes of the ring for each of its slots; records are longer, so most slots are empty
NO_RING = 1  # as the number of a write buffer: there is none
BEGINNING = (1 << 64) - 1  # the number while one is being begun; no handle has it, so each looks again
MAX_COUNTED = 1 << 62
TAKEN_BACK = 60_000_000  # writes whose count a power loss may take back: those of a minute, after which it is on disk
_COUNTED = (
    Header.TICK,
    Header.SETTLED,
    Header.WRITTEN,
    Header.CHECKPOINTED,
    Header.VOLUME_DUE,
    Header.EVICTED,
    Header.INTERNAL,
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


def close_later(close: Callable[[], None]) -> None:
    """Have `close` called again with the next opening of a store in this process."""
    _unclosed.append(close)


def close_leftovers() -> None:
    """Close what could not be closed when it was dropped, whether or not that succeeds; the caller has the mutex."""
    for close in [_unclosed.popleft() for _ in range(len(_unclosed))]:
        with suppress(Exception):
            close()


def open_shard(directory: str, config: Config, holding: Holding) -> Opened:
    """Return the shard of a directory, made or repaired first, `holding` its write lock, where that is needed."""
    generations = _existing(directory, config)
    if generations is None or not generations.is_current_boot():
        with holding():
            generations = _made_or_repaired(directory, config)
    try:
        return _open_with(directory, config, holding, generations)
    except BaseException:
        generations.close()
        raise


def _open_with(directory: str, config: Config, holding: Holding, generations: GenerationFile) -> Opened:
    unreadable = partial(replace_unreadable, directory, config, holding, generations)
    for _ in range(3):
        epoch = generations.header[Header.EPOCH]
        path = database_path(directory, epoch)
        try:
            if not is_there(path, config.shared):
                raise CorruptDatabase(f"{path!r}: the database is gone or empty")
            connection = connect(path, {**DEFAULT_SETTINGS, **config.given}, config.timeout, reader=True)
            with closed_on_error(connection), corrupt_if_damaged(connection, path):
                schema.verify(connection, path)
                identity, stored = read_settings(connection, path)
        except (CorruptDatabase, *FAILURES) as error:
            unreadable(epoch, error if isinstance(error, CorruptDatabase) else mapped(error, path, reads=True))
            continue
        settings = {**DEFAULT_SETTINGS, **stored, **config.given}
        for word, known in ((Header.MODULUS, identity["modulus"]), (Header.FINGERPRINT, format_fingerprint(identity))):
            if generations.header[word] != known:
                generations.header[word] = known
        if "keyring" in identity and not generations.header[Header.KEYS]:
            generations.header[Header.KEYS] = 2
        return Opened(generations, settings, identity, path, epoch, connection)
    raise CorruptDatabase(f"{directory!r}: three databases in a row could not be opened")


def refuse_foreign(directory: str, named: str) -> None:
    """Raise ForeignDatabase for a database of another make, before anything is written into its directory.

    A directory with generations is ours, and is verified when it is opened. `named`: what the message calls it.
    """
    path = os.path.join(directory, DATABASE)
    if paths.mode_of(os.path.join(directory, GENERATIONS)) or not is_there(path, True):
        return
    connection = open_immutable(path)
    try:
        bound(connection, FOREIGN_LOOKS)
        schema.refuse_foreign(connection, path, named)
    except FAILURES:
        return  # not a database at all, or a damaged one: opening quarantines it
    finally:
        connection.close()


def _existing(directory: str, config: Config) -> GenerationFile | None:
    """Return the generations if they are whole: no number is one that nobody can have counted to.

    Nor may the tick be behind the last settled write: iteration would end before what was written since.
    """
    found = GenerationFile.open_existing(os.path.join(directory, GENERATIONS), shared=config.shared)
    if found is None:
        return None
    header = found.header
    settled = header[Header.SETTLED]  # before the tick, which a writer at work counts first
    behind = header[Header.TICK] < settled
    if behind or header[Header.EPOCH] > MAX_EPOCH or any(header[word] > MAX_COUNTED for word in _COUNTED):
        found.close()
        return None
    return found


def open_ring(directory: str, config: Config, holding: Holding, opened: Opened) -> tuple[Ring | None, int] | None:
    """Return the ring of the shard's write buffer, None where there is none, and the number that it was found under.

    Another process may have begun another ring since: then BUFFER is not that number any more. Returns None where the
    database was replaced, which has to be opened first.

    A handle that does not append to it, by its settings, reads what others have appended. The words of a ring are
    believed if they were made on this boot, in this file, for this database, and say of what waits what its mark says;
    else what it has is taken over as far as the mark proves it.
    """
    generations, settings = opened.generations, opened.settings
    header = generations.header
    path = os.path.join(directory, BUFFER)
    number = header[Header.BUFFER]
    exists = bool(paths.mode_of(path, follow=False))
    if number == NO_RING or not (appends(settings) or number or exists):
        return None, number
    slots, capacity = _ring_sizes(generations, settings)
    ring = Ring.open(path, slots, capacity, config.shared, may_grow=False) if exists else None
    if ring is not None and _is_believed(ring, number, opened):
        return ring, number
    if ring is not None:
        ring.close()
    with holding():
        if header[Header.EPOCH] != opened.epoch:  # changed under this lock only
            return None
        has_room = paths.mode_of(path, follow=False) or paths.left_on_disk(directory) >= ROOM
        ring = Ring.open(path, slots, capacity, config.shared) if has_room else None
        if ring is not None and not _is_believed(ring, header[Header.BUFFER], opened):
            ring = _begun(ring, path, config, opened)
        if ring is None:
            header[Header.BUFFER] = NO_RING
        return ring, header[Header.BUFFER]


def _ring_sizes(generations: GenerationFile, settings: dict[str, Any]) -> tuple[int, int]:
    """Return the slots and the capacity of a new ring; more slots than records would be wasted."""
    capacity = settings["write_buffer"] or LEAST_CAPACITY
    return min(len(generations.slots), capacity // LEAST_RECORD), capacity


def _is_believed(ring: Ring, number: int, opened: Opened) -> bool:
    """Tell whether the ring's words can be believed; without the lock, a flush may make it look as if they could not.

    They cannot if an older database was restored beside them: then its mark says something else.
    """
    if not ring.belongs_to(number, opened.epoch):
        return False
    return not ring.is_marked() or _stored_mark(opened) == ring.flushed_mark()


def _stored_mark(opened: Opened) -> Mark | None:
    try:
        return mark_in(opened.connection.execute(sql.SELECT_SETTING, (BUFFER_MARK,)).fetchall())
    except FAILURES as error:
        raise mapped(error, opened.path, reads=True) from error


def _begun(ring: Ring, path: str, config: Config, opened: Opened) -> Ring | None:
    """Return the ring with words that can be believed, in another file if this one is another database's.

    The write lock is held. Returns None where there is no room for another file.
    """
    generations = opened.generations
    header = generations.header
    mark = _stored_mark(opened)
    header[Header.BUFFER] = BEGINNING
    header[Header.SINCE] = 0  # what is taken over was written before
    was_settled = header[Header.SETTLED] == header[Header.TICK]
    tick = generations.internal_tick()
    generations.begin_all(tick)  # what others keep hot may be from a ring that is gone
    begun: Ring | None = ring
    if not (ring.is_new() or ring.holds(mark)):
        # A handle whose database was removed goes on with the ring of that, under another lock.
        slots, capacity = _ring_sizes(generations, opened.settings)
        ring.close()
        with suppress(OSError):
            os.unlink(path)
        begun = Ring.open(path, slots, capacity, config.shared)
    if begun is not None:
        number = take_over(begun, mark, opened.epoch)
        newest = begun.newest_tick()
        if tick < newest + begun.capacity and newest < FARTHEST:
            # The clock was ahead when that was written, and the count of writes is lost. No write is made again with
            # its number: the record would be the same, and lead to those that followed it and were lost, too.
            header[Header.TICK] = tick = newest + begun.capacity + secrets.randbits(32)
        header[Header.BUFFER] = number
    generations.settle_all(tick)
    if was_settled:  # else the next holder mends what one that died has left
        header[Header.SETTLED] = tick
    return begun


def take_over(ring: Ring, mark: Mark | None, epoch: int, anew: int = 0) -> int:
    """Begin a ring with what it has and the database has not, by the rows of its mark; return the ring's number.

    `anew`: the number that it gets where there is nothing to take over, 0 for a random one.
    """
    return ring.begin(mark, epoch, anew or 2 + secrets.randbits(62))


def mark_in(rows: list[Any]) -> Mark | None:
    """Return the mark that the rows of its setting hold."""
    return Mark.of(rows[0][0]) if rows else None


def appends(settings: dict[str, Any]) -> bool:
    """Tell whether writes go into the write buffer with these settings."""
    return bool(
        settings["write_buffer"] and settings["sqlite_synchronous"] < FULL and settings["sqlite_journal_mode"] == "wal"
    )


def _made_or_repaired(directory: str, config: Config) -> GenerationFile:
    """Make or repair the shard, whose write lock is held, and return the generations."""
    generations = _existing(directory, config)
    if generations is not None and generations.is_current_boot():
        return generations  # another process was first, and what it may have left is mended by the next writer
    epoch = generations.header[Header.EPOCH] if generations else 0
    epoch = max(epoch, newest_epoch(directory))  # the header is never synced, so a power loss may undo a quarantine
    path = database_path(directory, epoch)
    known = generations is not None and not is_there(path, config.shared)
    # Or it may be one that the database is ahead of: a power loss took it back, and the clock does not say more.
    lost = generations is None or generations.header[Header.TICK] + TAKEN_BACK > time.time_ns() // 1000
    shards = config.identity.get("shards", 1)
    settings = settings_of_new(config.given, shards)
    # Where it is known, opening replaces what is missing.
    displaced, last = (1, 0) if known else _ensure_database(config, path, settings, lost)
    if generations is None:
        generations = GenerationFile.create(
            os.path.join(directory, GENERATIONS),
            config.slots or slots_for(settings, shards),
            tick=max(last + 1, time.time_ns() // 1000),  # the clock may have been ahead once, or be behind now
            epoch=epoch,
            shared=config.shared,
        )
    _renew(generations, epoch, displaced, shards > 1, last)
    return generations


def _ensure_database(config: Config, path: str, settings: dict[str, Any], lost: bool) -> tuple[int, int]:
    """Make the database if it is missing or empty; else `settings` become those that it has stored.

    Returns whether keys may live beside their home place and, if the count of writes is `lost`, the last write that
    left an entry: counting from before it would put what is written next in front of what is there.
    """
    if not is_there(path, config.shared):
        config.claimed()
    try:
        connection = _connect_or_prepare(path, settings, config)
        try:
            if schema.is_empty(connection):
                config.identity.setdefault("modulus", new_modulus())  # now, since choosing it takes a millisecond
                schema.create(
                    connection, {**storable(settings), **config.identity, **first_transaction(config.identity)}
                )
            with corrupt_if_damaged(connection, path):
                schema.verify(connection, path)
                identity, stored = read_settings(connection, path)
            settings.update({**stored, **config.given})
            displaced = int(identity.get("displaced", 0))
            return displaced, walked(connection, path, sql.LAST_WRITE, (FARTHEST,))[0][0] if lost else 0
        finally:
            connection.close()
    except (CorruptDatabase, *FAILURES) as error:  # `reads`: it writes no long value
        problem = error if isinstance(error, CorruptDatabase) else mapped(error, path, reads=True)
        if not isinstance(problem, CorruptDatabase):
            raise problem from error
        return 1, 0  # the generations are made all the same; opening then quarantines the database through them


def _connect_or_prepare(path: str, settings: dict[str, Any], config: Config) -> sqlite3.Connection:
    """Return a connection to the database, made first if it is missing or empty: its maker may have died.

    An empty one is made again from the start, since its journal mode may not have been set.
    """
    if is_there(path, config.shared):
        connection = connect(path, settings, config.timeout)
        with closed_on_error(connection):
            if not schema.is_empty(connection):
                return connection
        connection.close()
    return prepare_file(path, settings, config.timeout, config.shared)


def _renew(generations: GenerationFile, epoch: int, displaced: int, has_siblings: bool, last: int) -> None:
    """Bring the header in line with the database after a reboot, a repair or at creation; the lock is held.

    `last`: as `_ensure_database` returns it.

    Every slot gets a new even number: what a crash left odd or unwritten is settled, and no earlier stamp counts.
    """
    header = generations.header
    # Microseconds: no count of writes overtakes them.
    tick = max(generations.internal_tick(), time.time_ns() // 1000, last + 1)
    header[Header.TICK] = tick
    header[Header.COUNT] = UNCOUNTED
    header[Header.NEXT_EXPIRE] = header[Header.SWEEP] = 0  # the next write looks for the real ones
    if header[Header.BUFFER] == NO_RING:
        header[Header.BUFFER] = 0  # there may be room for one by now
    header[Header.VOLUME_DUE] = header[Header.RESERVATION] = header[Header.SINCE] = 0
    header[Header.CHECKPOINTED] = header[Header.WRITTEN]
    header[Header.FILES] = 1
    header[Header.DISPLACED] = displaced
    if has_siblings and not header[Header.CROSS_SHARD]:
        header[Header.CROSS_SHARD] = UNKNOWN_STATE
    generations.begin_all(tick)
    header[Header.EPOCH] = epoch
    generations.settle_all(tick)
    header[Header.SETTLED] = tick  # after that: where it is missing, the next holder settles what was left odd
    header[Header.BOOT] = boot_id()
