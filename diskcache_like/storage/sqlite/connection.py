"""Open connections, and say SQLite's errors in the package's words.

Foreign errors are mapped here and nowhere else, by code and never by text.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import sqlite3
import stat
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from ...coherence.contexts import context
from ...errors import (
    CacheError,
    CorruptDatabase,
    DirectoryError,
    DiskFull,
    StorageError,
    Timeout,
    UnsafeDirectory,
    file_error,
)
from ...system import paths
from ...system.signals import reraise_signal, suppress
from . import statements as sql

SQLITE_VERSION = sqlite3.sqlite_version
CACHED_STATEMENTS = 64  # more than there are statements in this package, so that each is prepared once
JOURNAL_SIZE_LIMIT = 16 << 20  # bytes the -wal file keeps after a reset
# Bytes: docs/decisions/page-size.md. With 2,048, two rows of 1,000 bytes do not fit into a page.
PAGE_SIZE = 4096
FRAME = PAGE_SIZE + 24  # bytes of a page in the WAL, with its frame's header
NORMAL, FULL = 1, 2  # values of PRAGMA synchronous
# What FULL is to a -wal file: where there is a rollback journal, FULL does not sync its removal, and a power loss that
# brings the journal back undoes the last commit.
EXTRA = 3
READER_CACHE_KIB = 4096
CONNECTION_FILES = 3  # database, -wal, and for the first connection of a process -shm
SUPER_TAIL = 16  # bytes at least at the end of a journal that names a super-journal
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
SPARE = 1 << 20  # bytes; where so much is left, a page that found no place was none that a sound database asks for
# Of SQLite's machine, between two looks whether it has gone on for too long: ten times what the dearest statement of
# this package takes for a page full of the smallest rows.
STEPS = 1 << 14
SCHEMA_LOOKS = 4  # for thousands of tables, where a cache has four
FOREIGN_LOOKS = 16
SHORT_LOOKS = 32  # a tenth of a second or so

# Extended codes, which not every interpreter names: SQLITE_IOERR and a number of its own above the low byte.
_IOERR_SHORT_READ, _IOERR_SHMOPEN, _IOERR_SHMSIZE = (10 | number << 8 for number in (2, 18, 19))
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FULL = frozenset({sqlite3.SQLITE_FULL, _IOERR_SHMSIZE, _IOERR_SHMOPEN})
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})


Failure = sqlite3.Error | UnicodeDecodeError
FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What a statement of ours may raise; the second where SQLite quotes a damaged schema that Python cannot read."""


def mapped(error: Failure, path: str, reads: bool = False) -> CacheError:
    """Return the package's error for an error of SQLite.

    `reads`: nothing was to be written, so a value that SQLite finds too long is damage.
    """
    if isinstance(error, UnicodeDecodeError):
        return corrupt(f"{path!r}: malformed database schema", path)
    extended = getattr(error, "sqlite_errorcode", None) or 0
    code = extended & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return corrupt(f"{path!r}: more is read than there is room for: pages lead to one page several times", path)
    text = f"{path!r}: {error}"
    damaged = code in _CORRUPT or (reads and code == sqlite3.SQLITE_TOOBIG)
    if damaged or extended == _IOERR_SHORT_READ or _is_emptied(code, path):
        return corrupt(text, path)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Timeout(f"{path!r} is locked by a program that does not use the cache's own lock ({error})")
    if code == sqlite3.SQLITE_FULL or extended in _FULL:
        return DiskFull(f"no room on the disk ({error}); the write was not made, what is stored stays readable", path)
    if code == sqlite3.SQLITE_CANTOPEN and (shortage := _shortage()) is not None:
        return file_error(shortage, path)
    if code in _READ_ONLY:
        return DirectoryError(errno.EACCES, f"the database cannot be opened or written ({error})", path)
    return StorageError(text)


def _shortage() -> OSError | None:
    """Return the system's error if this process has not enough descriptors left for a connection.

    SQLite does not say why it cannot open a file, and what it had open it has closed by now.
    """
    opened: list[int] = []
    try:
        while len(opened) < CONNECTION_FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        reraise_signal(error)
        return error if error.errno in (errno.EMFILE, errno.ENFILE) else None
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return None


def integrity_error(connection: sqlite3.Connection, path: str) -> str | None:
    """Return the first flaw that SQLite finds in a database, None if there is none or it cannot be read now."""
    try:
        ((found,),) = connection.execute(f"{sql.INTEGRITY_CHECK}(1)").fetchall()
    except FAILURES as error:
        return str(error) if isinstance(mapped(error, path, reads=True), CorruptDatabase) else None
    return None if found == "ok" else str(found)


def is_unexplained(error: Failure, writer: sqlite3.Connection, path: str) -> bool:
    """Tell whether damage may be behind an error: a full database that has room to grow, or something too long.

    Too long may be what was to be written, or a row whose size is damaged.
    """
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_TOOBIG:
        return True
    if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
        return False
    try:
        disk = os.statvfs(os.path.dirname(path))
        (pages,), (most,) = writer.execute(sql.PAGE_COUNT).fetchone(), writer.execute(sql.MOST_PAGES).fetchone()
    except (OSError, *FAILURES) as error:
        reraise_signal(error)
        return False
    return min(disk.f_bavail * disk.f_frsize, (int(most) - int(pages)) * PAGE_SIZE) >= SPARE


def bound(connection: sqlite3.Connection, looks: int) -> None:
    """Interrupt every statement that takes more than `looks` times `STEPS`, until the handler is removed.

    Damaged pages that lead to one page several times, which SQLite does not notice, have rows without end.
    """
    connection.set_progress_handler(_counting(looks), STEPS)


def _counting(looks: int) -> Callable[[], int]:
    # Not a Python function: a signal handler would run in it, and SQLite would swallow what that raises.
    return functools.partial(next, itertools.chain(itertools.repeat(0, looks), itertools.repeat(1)))


def walked(connection: sqlite3.Connection, path: str, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
    """Run a statement that reads all of a table or an index; interrupt it if damage makes that endless."""
    if statement.startswith("SELECT"):  # most are short, and so their end comes before the sizes of files are read
        try:
            return _bounded(connection, SHORT_LOOKS, statement, parameters)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_INTERRUPT:
                raise
    return _bounded(connection, SCHEMA_LOOKS + _most_pages(connection, path), statement, parameters)


def _bounded(connection: sqlite3.Connection, looks: int, statement: str, parameters: Sequence[object]) -> list[Any]:
    limit = _counting(looks)
    on_progress = connection.set_progress_handler  # no call in Python, in which a handler may raise, between these two
    try:
        on_progress(limit, STEPS)
        return connection.execute(statement, parameters).fetchall()
    finally:
        on_progress(None, 0)


def _most_pages(connection: sqlite3.Connection, path: str) -> int:
    """Return how many pages the files have room for, plus those that an open transaction may keep in memory.

    What the database says of itself, which a damaged -wal file may make any number, counts only if the file is gone.
    """
    size = 0
    for name in (path, f"{path}-wal"):
        with suppress(OSError):
            size += os.stat(name).st_size
    if not size:
        return int(connection.execute(sql.PAGE_COUNT).fetchone()[0])
    return size // PAGE_SIZE + (abs(connection.total_changes) if connection.in_transaction else 0)


def corrupt(text: str, path: str) -> CorruptDatabase:
    """Return the error for a damaged database."""
    problem = CorruptDatabase(text)
    problem.path = path
    return problem


def _is_emptied(code: int, path: str) -> bool:
    """Tell whether a table is missing because the file was cut to nothing, which SQLite takes for a new database."""
    try:
        return code == sqlite3.SQLITE_ERROR and os.stat(path).st_size == 0
    except FileNotFoundError:
        return False  # unlinked, but the open descriptor still leads to it


def connect(path: str, settings: dict[str, Any], timeout: float, reader: bool = False) -> sqlite3.Connection:
    """Open a connection with the pragmas that every connection to a cache has.

    `timeout` (seconds) bounds the wait for locks that are not ours, such as a foreign program's.
    Raises UnsafeDirectory for a link, which would lead SQLite out of the directory.
    """
    _refuse_links(path)
    connection = sqlite3.connect(
        path,
        timeout=min(timeout, 60.0),
        isolation_level=None,
        check_same_thread=False,  # the pool and the write lock give a connection to one thread at a time
        cached_statements=CACHED_STATEMENTS,
    )
    connection.text_factory = _text
    with closed_on_error(connection):
        bound(connection, SCHEMA_LOOKS)  # with the first of them SQLite reads the schema
        for statement in _pragmas(settings, reader):
            connection.execute(statement).fetchall()
        connection.set_progress_handler(None, 0)
    return connection


@context
def closed_on_error(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """Close the connection if the body raises."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def connect_writer(path: str, settings: dict[str, Any], timeout: float) -> sqlite3.Connection:
    """Open a connection that can write; the caller holds the write lock.

    If a file cannot be opened for writing, be it for a moment only, SQLite opens it for reading and leaves it so.
    """
    connection = connect(path, settings, timeout)
    with closed_on_error(connection):
        connection.execute(sql.CHANGE_NOTHING)
    return connection


def is_read_only(error: Failure) -> bool:
    """Tell whether SQLite would not write because it has a file open for reading only."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_READONLY


def _refuse_links(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise file_error(error, name) from error
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise UnsafeDirectory("is a link or not a regular file, so it is not opened as a database; remove it", name)
        if name.endswith("-journal") and status.st_size >= SUPER_TAIL:
            with contextlib.suppress(FileNotFoundError):  # where journals are in use, a commit removes them
                _refuse_super_journal(name, status.st_size)


def _refuse_super_journal(name: str, size: int) -> None:
    """Refuse a journal that names a super-journal: rolling it back, SQLite would remove the file of that name.

    None of this package's transactions spans two databases, so such a journal was planted. No lock lies on a journal.
    """
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        file.seek(max(0, size - len(_JOURNAL_MAGIC)))
        if file.read() == _JOURNAL_MAGIC:
            raise UnsafeDirectory("names a file outside the cache, which SQLite would remove; remove the journal", name)


def open_immutable(path: str) -> sqlite3.Connection:
    """Open a database that may be somebody else's, without taking a lock or writing into it or beside it.

    What is in its -wal file is not seen. If this process has the file open already, it is opened for reading like any
    other (see `is_open_here`), which needs the -shm file that it has.
    """
    _refuse_links(path)
    how = "mode=ro" if is_open_here(path) else "mode=ro&immutable=1"
    uri = f"{pathlib.Path(path).absolute().as_uri()}?{how}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    return connection


def is_open_here(path: str) -> bool:
    """Tell whether this process has the file open; closing a second descriptor of it would drop SQLite's locks."""
    wanted = os.stat(path)
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError as error:  # the descriptor that listed the directory
            reraise_signal(error)
            continue
        if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
            return True
    return False


def _text(data: bytes) -> str | bytes:
    """Return a TEXT column's text, or bytes, for the caller to refuse, if it is not UTF-8 and so was planted."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def synchronous(setting: int) -> str:
    """Return the statement that makes commits as durable as the setting `sqlite_synchronous` says."""
    return f"PRAGMA synchronous = {EXTRA if setting == FULL else setting}"


def _pragmas(settings: dict[str, Any], reader: bool) -> tuple[str, ...]:
    cache_size = settings["sqlite_cache_size"]
    if reader and not -READER_CACHE_KIB <= cache_size <= READER_CACHE_KIB * 1024 // PAGE_SIZE:
        cache_size = -READER_CACHE_KIB  # a pool of readers shall not multiply the writer's memory
    return (
        "PRAGMA trusted_schema = OFF",
        "PRAGMA cell_size_check = ON",
        "PRAGMA mmap_size = 0",
        "PRAGMA temp_store = MEMORY",
        "PRAGMA secure_delete = OFF",
        "PRAGMA wal_autocheckpoint = 0",  # checkpoints are explicit, after the slots are settled, under the write lock
        f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT}",
        synchronous(settings["sqlite_synchronous"]),
        *(("PRAGMA fullfsync = ON",) if paths.FULL_SYNC is not None else ()),
        f"PRAGMA cache_size = {cache_size}",
    )


def prepare_file(path: str, settings: dict[str, Any], timeout: float, shared: bool) -> sqlite3.Connection:
    """Create the database file if it is missing and return a connection in the configured journal mode.

    Its mode is 0600, or 0660 if it is `shared`; SQLite gives the same to the files beside it. The caller holds the
    write lock. Creating with O_EXCL is the one time that the file is opened by path: no other connection of this
    process can exist to a file that did not, so closing the descriptor drops nobody's locks.
    """
    try:
        descriptor = os.open(
            path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, paths.PRIVATE_FILE
        )
        try:
            if shared:
                paths.set_mode(descriptor, paths.SHARED_FILE)
        finally:
            os.close(descriptor)
        # Left by a removed database of that name. This process may still have it mapped, and SQLite, which knows no
        # locks between two databases of one process, would cut the -shm file short under it: a SIGBUS.
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
    except FileExistsError:
        pass
    except OSError as error:
        raise file_error(error, path) from error
    connection = connect(path, settings, timeout)
    with closed_on_error(connection):
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute(f"PRAGMA auto_vacuum = {settings['sqlite_auto_vacuum']}")
        connection.execute(f"PRAGMA journal_mode = {settings['sqlite_journal_mode']}").fetchall()
    return connection
