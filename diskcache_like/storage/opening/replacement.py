"""Replace a database that is damaged or gone by the next one, for all processes at once; a damaged one is quarantined.

A quarantined database stays where it is under its number, and nobody uses it any more. Everything here happens under
the shard's write lock, after a second look: a disk that fails for a moment must not cost all entries, and of several
processes that meet the damage one makes the next database.
"""

from __future__ import annotations

import contextlib
import os
from itertools import product
from typing import Any, NamedTuple

from ...coherence.generations import NEVER, GenerationFile, Header, Words
from ...coherence.ring import LEAST_CAPACITY, LEAST_SLOTS, Mark, Ring
from ...crypto.keyring import is_whole
from ...disk.serializers import SERIALIZERS
from ...encoding.compressors import COMPRESSORS
from ...encoding.keys import new_modulus
from ...errors import CacheError, CorruptDatabase, CorruptDatabaseWarning, ForeignDatabase, SettingError, StorageError
from ...settings.definitions import DEFAULT_SETTINGS
from ...system import paths
from ...system.callers import warn
from ..sqlite import schema
from ..sqlite import statements as sql
from ..sqlite.connection import FAILURES, connect, mapped, prepare_file
from .identity import (
    BUFFER,
    BUFFER_MARK,
    FINGERPRINTS,
    IDENTITY_DEFAULTS,
    MAX_EPOCH,
    MODULUS_RANGE,
    Config,
    database_path,
    first_transaction,
    format_fingerprint,
    is_there,
    newest_epoch,
    read_settings,
    settings_of_new,
    storable,
)
from .mutex import Holding


def replace_unreadable(
    directory: str, config: Config, holding: Holding, generations: GenerationFile, epoch: int, problem: CacheError
) -> None:
    """Replace a corrupt or missing database by the next one; raise for every other failure.

    A missing one is not made anew under its name: whoever still has it open would go on with the unlinked file.
    """
    if not isinstance(problem, CorruptDatabase) or not config.recover:
        raise problem
    if generations.header[Header.KEYS] and "keyring" not in config.identity:
        raise CorruptDatabase(
            f"{problem}; it was encrypted, so that the cache goes on empty only if it is opened with encrypt=True"
        )
    identity = _identity_of_next(directory, config, generations)
    with holding():
        if not is_sound(database_path(directory, epoch), config):
            make_next(directory, config, generations, problem, Next(epoch, config.given, identity))


def _identity_of_next(directory: str, config: Config, generations: GenerationFile) -> dict[str, Any]:
    """Return the identity of the next database: what this handle asks for, in the format that the header has noted.

    Raises SettingError if that format needs another disk class or secret than this handle's, or no encryption: those
    who could use the cache could not use the next database.
    """
    low, high = MODULUS_RANGE
    modulus, fingerprint = generations.header[Header.MODULUS], generations.header[Header.FINGERPRINT]
    identity = dict(config.identity)
    if low <= modulus <= high:
        identity["modulus"] = modulus
    elif "modulus" not in identity:
        identity["modulus"] = new_modulus()
    if not 0 < fingerprint < FINGERPRINTS:
        return identity
    for named in product(SERIALIZERS, COMPRESSORS):
        candidate = {**identity, **dict(zip(IDENTITY_DEFAULTS, named, strict=True))}
        if format_fingerprint(candidate) == fingerprint:
            return candidate
    raise SettingError(
        f"{directory!r}: the database is damaged or gone, and the cache was made with another disk class,"
        " secret or encrypt than given: open it with those first, so that it goes on empty, or remove the directory"
    )


def keyring_in(path: str, config: Config) -> bytes | None:
    """Return the keyring as it is now, None if it cannot be read; the old secret would open one from before a rotation.

    The write lock is held.
    """
    with contextlib.suppress(CacheError, *FAILURES):
        if is_there(path, config.shared):
            with contextlib.closing(connect(path, DEFAULT_SETTINGS, config.timeout, reader=True)) as connection:
                rows = connection.execute(sql.SELECT_SETTING, ("keyring",)).fetchall()
            if rows and type(rows[0][0]) is bytes and is_whole(rows[0][0]):
                return rows[0][0]
    return None


def is_sound(path: str, config: Config) -> bool:
    """Tell whether all of a database can be read after all: SQLite calls it damaged when the disk fails for a moment.

    The write lock is held. This takes time, so that one failed read does not cost all entries.
    """
    if not is_there(path, config.shared):
        return False
    try:
        with contextlib.closing(connect(path, DEFAULT_SETTINGS, config.timeout, reader=True)) as connection:
            schema.verify(connection, path)
            with contextlib.suppress(ForeignDatabase):  # which is no damage
                read_settings(connection, path)
            return bool(connection.execute(sql.INTEGRITY_CHECK).fetchall() == [("ok",)])
    except (*FAILURES, CacheError):
        return False


class Next(NamedTuple):
    """What the next database gets, and the epoch of the one that it replaces."""

    epoch: int
    settings: dict[str, Any]
    identity: dict[str, Any]


def make_next(directory: str, config: Config, generations: GenerationFile, problem: CacheError, wanted: Next) -> None:
    """Make the next database and point the header at it; the write lock is held.

    The one before stays where it is: if it were renamed or unlinked, others would write into a file that nobody reads.
    """
    header = generations.header
    if header[Header.EPOCH] != wanted.epoch:
        return  # another process was first
    following = max(wanted.epoch, newest_epoch(directory)) + 1
    path = database_path(directory, following)
    if following > MAX_EPOCH:
        last = database_path(directory, MAX_EPOCH)
        raise StorageError(f"{last!r} leaves no number for the next database: remove that file")
    settings = settings_of_new(wanted.settings, wanted.identity.get("shards", 1))
    mark = _mark_of_waiting(directory, config, header, wanted)
    content = {**storable(settings), **wanted.identity, **first_transaction(wanted.identity)}
    try:
        with contextlib.closing(prepare_file(path, settings, config.timeout, config.shared)) as connection:
            schema.create(connection, content if mark is None else {**content, BUFFER_MARK: mark.packed()})
    except BaseException as error:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)  # nobody knows it yet
        if isinstance(error, FAILURES):
            raise mapped(error, path) from error
        raise
    tick = generations.internal_tick()
    generations.begin_all(tick)
    header[Header.EPOCH] = following  # from here on every operation of every process follows to this database
    header[Header.NEXT_EXPIRE] = header[Header.SWEEP] = NEVER
    header[Header.VOLUME_DUE] = 0
    header[Header.COUNT] = 0
    generations.settle_all(tick)
    header[Header.SETTLED] = tick
    warn(
        f"{problem}; the database stays where it is and the cache goes on empty in {path!r}"
        + ("" if mark is None else ", but for what waits in the write buffer"),
        CorruptDatabaseWarning,
    )


def _mark_of_waiting(directory: str, config: Config, header: Words, wanted: Next) -> Mark | None:
    """Return the mark with which the next database takes over what waits in the write buffer; None for nothing.

    What waits is newer than any row, and each record is complete. But nobody could read or find it in a cache with
    other data keys, or with another modulus.
    """
    path = os.path.join(directory, BUFFER)
    is_readable = "keyring" not in wanted.identity
    is_placed = header[Header.MODULUS] == wanted.identity.get("modulus")
    if not (is_readable and is_placed and paths.mode_of(path, follow=False)):
        return None
    ring = Ring.open(path, LEAST_SLOTS, LEAST_CAPACITY, config.shared)
    if ring is None:
        return None
    try:
        is_ours = ring.belongs_to(header[Header.BUFFER], wanted.epoch) and ring.is_sound()
        return ring.flushed_mark() if is_ours and ring.waiting() else None
    finally:
        ring.close()
