"""Setting a database aside that is damaged or gone: the cache goes on with the next one, for all processes at once.

Everything here happens under the shard's write lock, after a second look: the first failure of a disk that fails for a
moment must not cost all entries, and of several processes that meet the damage one makes the successor.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any

from ..coherence.generations import NEVER, GenerationFile, Header
from ..errors import (
    CacheError,
    CorruptDatabase,
    CorruptDatabaseWarning,
    ForeignDatabase,
    KeyringError,
    SettingError,
)
from ..keyring import is_whole
from ..pipeline import COMPRESSORS
from ..serializers import SERIALIZERS
from ..settings import DEFAULT_SETTINGS, HANDLE_ONLY
from . import schema
from . import statements as sql
from .connection import FAILURES, connect, mapped, prepare_file
from .journal import first_mark
from .layout import (
    KINDS,
    MODULUS_RANGE,
    UNSAID,
    Config,
    database_path,
    is_there,
    kind_of,
    newest_epoch,
    read_settings,
    storable,
)

if TYPE_CHECKING:
    from .shard import Shard


def replace_unreadable(store: Shard, generations: GenerationFile, epoch: int, problem: CacheError) -> None:
    """Set a corrupt or missing database aside; raise for every other failure.

    A missing one is not made anew under its name: whoever still has it open would go on with the unlinked file.
    """
    if not isinstance(problem, CorruptDatabase) or not store.config.recover:
        raise problem
    if generations.header[Header.KEYS] and "keyring" not in store.config.identity:
        raise CorruptDatabase(
            f"{problem}; it was encrypted, so that the cache goes on empty only if it is opened with encrypt=True"
        )
    identity = _as_noted(store, generations)
    store.lock.acquire(store.config.timeout)
    try:
        if not _is_sound(database_path(store.directory, epoch), store.config):
            _next_database(store, generations, epoch, problem, {**store.config.given}, identity)
    finally:
        store.lock.release()


def _as_noted(store: Shard, generations: GenerationFile) -> dict[str, Any]:
    """Return the identity of the next database: what this handle asks for, in the kind that the header has noted.

    Raises SettingError where that kind needs another disk class or secret than this handle's, or no encryption: in
    place of the damaged database it would leave one that nobody can use who could use the cache.
    """
    low, high = MODULUS_RANGE
    modulus, kind = generations.header[Header.MODULUS], generations.header[Header.KIND]
    identity = {**store.config.identity, **({"modulus": modulus} if low <= modulus <= high else {})}
    if not 0 < kind < KINDS:
        return identity
    for named in product(SERIALIZERS, COMPRESSORS):
        candidate = {**identity, **dict(zip(UNSAID, named, strict=True))}
        if kind_of(candidate) == kind:
            return candidate
    raise SettingError(
        f"{store.directory!r}: the database is damaged or gone, and the cache was made with another disk class,"
        " secret or encrypt than given: open it with those first, so that it goes on empty, or remove the directory"
    )


def set_aside(store: Shard, problem: CorruptDatabase) -> None:
    """Leave a database where it is and go on with the next numbered one, once for all processes and threads.

    Not one that can be read after all.

    Renaming or unlinking would leave other holders writing into a file that nobody reads any more.
    """

    def look() -> CorruptDatabase | None:
        if problem.path not in (None, store.path) or _is_sound(store.path, store.config):
            return None
        if "keyring" in store.identity and is_there(store.path, store.config.shared):
            _note_keyring(store)
        return problem

    _begin_anew(store, store.identity, look)


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


def _note_keyring(store: Shard) -> None:
    """Note the keyring as it is now, if it can be read: under that of before a rotation the old secret would open."""
    with contextlib.suppress(CacheError, *FAILURES):
        with contextlib.closing(connect(store.path, DEFAULT_SETTINGS, store.config.timeout, reader=True)) as connection:
            rows = connection.execute(sql.SELECT_SETTING, ("keyring",)).fetchall()
        if rows and type(rows[0][0]) is bytes and is_whole(rows[0][0]):
            store.identity["keyring"] = rows[0][0]


def _is_sound(path: str, config: Config) -> bool:
    """Tell whether all of a database can be read after all: SQLite calls it damaged when the disk fails for a moment.

    The write lock is held. That this takes its time is the price of not giving up all entries for one failed read.
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
            schema.create(connection, {**storable(settings), **identity, **first_mark(identity)})
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
    header[Header.NEXT_EXPIRE] = header[Header.SWEEP] = NEVER
    header[Header.MARK] = 0
    header[Header.COUNT] = 0
    generations.settle_all(tick)
    header[Header.SETTLED] = tick
    warnings.warn(
        f"{problem}; the database stays where it is and the cache goes on empty in {path!r}",
        CorruptDatabaseWarning,
        stacklevel=2,
    )
