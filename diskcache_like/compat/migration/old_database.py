"""Read a database of DiskCache 5 without writing to it or beside it, and without running anything in it.

Anyone may have made it. It is opened as an immutable file or, if its -wal file holds commits, as a private copy. Each
statement names one plain table, and an authorizer refuses anything else that the schema could make it do (views,
triggers, generated columns, functions).
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import shutil
import sqlite3
import stat
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

from ...errors import CacheError, CorruptDatabase, DirectoryError, DiskFull, ForeignDatabase, StorageError
from ...storage.sqlite.connection import is_open_here, mapped
from ...storage.sqlite.schema import APPLICATION_ID
from ...system import paths

DATABASE = "cache.db"
QUEUE_SPAN = 10**12  # a number at most this far from QUEUE_START may belong to an item of a queue
QUEUE_START = 500_000_000_000_000
_TABLES = {
    "Cache": (
        *("rowid", "key", "raw", "store_time", "expire_time", "access_time", "access_count"),
        *("tag", "size", "mode", "filename", "value"),
    ),
    "Settings": ("key", "value"),
}
_ROWS = """SELECT rowid, key, raw, expire_time, tag, size, mode, filename, value
    FROM Cache NOT INDEXED ORDER BY rowid"""
_ROW = _ROWS.replace("ORDER BY rowid", "WHERE rowid = ?")
_ROWIDS_BACKWARDS = "SELECT rowid FROM Cache NOT INDEXED WHERE rowid > ? ORDER BY rowid DESC"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM Cache NOT INDEXED LIMIT ?)"
_SMALLEST_ROW = 6  # bytes that a row takes at least in a page of SQLite
_OTHER_THAN_ITEMS = """SELECT 1 FROM Cache NOT INDEXED
    WHERE typeof(key) <> 'integer' OR key NOT BETWEEN ? AND ? OR raw <> 1 LIMIT 1"""
_PRAGMAS = ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "query_only = ON", "temp_store = MEMORY")
_HOT_JOURNAL = bytes.fromhex("d9d505f920a163d7")
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock
_LOCK_BYTES = 0x40000000, 512  # where SQLite's locks on a database lie


class OldRow(NamedTuple):
    """A row of the table of entries as it is stored; nothing in it has been checked."""

    rowid: Any
    key: Any
    raw: Any
    expire_time: Any
    tag: Any
    size: Any
    mode: Any
    filename: Any
    value: Any


class OldDatabase:
    """One database of DiskCache 5, in `directory`. `scratch`: where to create a directory if a copy is needed.

    Raises FileNotFoundError, ForeignDatabase, CorruptDatabase, StorageError, DirectoryError, DiskFull.
    """

    def __init__(self, directory: str, scratch: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, DATABASE)
        self._scratch = scratch
        self._state = self._file_state()
        self._opened = self._copy() if self._state[f"{self.path}-wal"][0] > 0 else None
        self.settings: dict[str, Any] = {}
        try:
            with closing(self._connect()) as connection:
                self._verify(connection)
                connection.set_authorizer(_authorize)
                self.settings = dict(connection.execute("SELECT key, value FROM Settings LIMIT 1000").fetchall())
                self._count(connection)
        except UnicodeDecodeError as error:  # SQLite quotes a damaged schema in its message
            raise CorruptDatabase(f"{self.path!r} is damaged: its schema cannot be read") from error
        except sqlite3.Error as error:
            raise self._mapped(error) from error

    def _count(self, connection: sqlite3.Connection) -> None:
        """Count the rows, and find out whether all of them are items of the queue without a prefix."""
        self.count, self.holds_queue_only = 0, False
        try:
            # If pages lead to the same page many times, which SQLite does not notice, there are rows without end.
            most = sum(size for size, _ in self._state.values()) // _SMALLEST_ROW
            (self.count,) = connection.execute(_COUNT, (most + 1,)).fetchone()
            if self.count > most:
                raise CorruptDatabase(f"{self.path!r} is damaged: it has more rows than room for them")
            outside = connection.execute(_OTHER_THAN_ITEMS, (QUEUE_START - QUEUE_SPAN, QUEUE_START + QUEUE_SPAN))
            self.holds_queue_only = self.count > 0 and outside.fetchone() is None
        except sqlite3.DatabaseError as error:
            if not isinstance(self._mapped(error), CorruptDatabase):
                raise
            stored = self.settings.get("count")  # good enough to show progress; what can be read will be read
            self.count = stored if isinstance(stored, int) and 0 <= stored < 1 << 40 else 0

    def rows(self) -> Iterator[OldRow]:
        """Yield the rows in order of insertion; at the end, raise CorruptDatabase if some could not be read."""
        last = -(1 << 63)
        try:
            with closing(self._connect()) as connection:
                connection.set_authorizer(_authorize)
                try:
                    for row in connection.execute(_ROWS):
                        if type(row[0]) is not int or row[0] <= last:
                            raise sqlite3.DatabaseError("its rows are out of order")
                        last = row[0]
                        yield OldRow(*row)
                except sqlite3.DatabaseError:
                    yield from _rows_after_damage(connection, last)
                    raise
        except sqlite3.Error as error:
            raise self._mapped(error) from error
        if self._file_state() != self._state:
            raise StorageError(f"{self.path!r} changed while it was read: stop what uses it, then migrate again")

    def _mapped(self, error: sqlite3.Error) -> CacheError:
        """Return the package's error for SQLite's; it names the user's file even if a copy was read."""
        found = mapped(error, self.path)
        if type(found) is StorageError or isinstance(found, CorruptDatabase):
            return CorruptDatabase(f"{self.path!r} is damaged or cut off: {error}")
        return found

    def _file_state(self) -> dict[str, tuple[int, int]]:
        """Check that the database's files may be opened, and return the size and modification time of each."""
        if paths.is_link(self.directory):
            raise DirectoryError(errno.ELOOP, "is a link; nothing outside the old directory is read", self.directory)
        state = {}
        for name in (self.path, f"{self.path}-wal", f"{self.path}-journal"):
            try:
                status = os.lstat(name)
            except FileNotFoundError:
                if name == self.path:
                    raise
                state[name] = (0, 0)
                continue
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise DirectoryError(errno.ELOOP, "is a link or not a regular file, and is not opened", name)
            state[name] = (status.st_size, status.st_mtime_ns)
        if is_open_here(self.path):
            raise StorageError(f"{self.path!r} is open in this process: close it, then migrate")
        _refuse_users(self.path)
        _refuse_journal(f"{self.path}-journal")
        return state

    def _copy(self) -> str:
        """Copy the database and its -wal file into the scratch directory and return the path of the copy."""
        copy = os.path.join(self._scratch, DATABASE)
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os.makedirs(self._scratch, 0o700)
            for suffix in ("", "-wal"):
                with open(_descriptor(self.path + suffix), "rb") as source, open(copy + suffix, "xb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull("no room for a copy of a database that has commits in its -wal file", copy) from error
            raise
        if self._file_state() != self._state:
            raise StorageError(f"{self.path!r} changed while it was copied: stop what uses it, then migrate again")
        return copy

    def _connect(self) -> sqlite3.Connection:
        how = "?mode=ro&immutable=1" if self._opened is None else ""
        uri = pathlib.Path(self._opened or self.path).absolute().as_uri() + how
        connection = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            connection.text_factory = _text
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _verify(self, connection: sqlite3.Connection) -> None:
        """Raise ForeignDatabase unless there are the two plain tables of DiskCache 5 with their columns."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application == APPLICATION_ID:
            raise ForeignDatabase(f"{self.directory!r} is a cache of diskcache_like already: open it as it is")
        master = connection.execute("SELECT type, name, rootpage FROM sqlite_master").fetchall()
        for table, expected in _TABLES.items():
            found = [(kind, page) for kind, name, page in master if name == table]
            if not found:
                raise ForeignDatabase(f"{self.directory!r} holds no cache of DiskCache 5: {self.path!r} has no {table}")
            if [kind for kind, _ in found] != ["table"] or not found[0][1]:
                raise ForeignDatabase(f"{self.path!r}: {table} is not a plain table; somebody else altered it")
            columns = connection.execute(f"PRAGMA table_xinfo({table})").fetchall()
            names = tuple(column[1] for column in columns)
            if names != expected or any(column[6] for column in columns):
                raise ForeignDatabase(
                    f"{self.path!r}: the table {table} has the columns {', '.join(map(str, names))}, and not those of"
                    " DiskCache 5: another version made it, or somebody altered it"
                )


def _rows_after_damage(connection: sqlite3.Connection, last: int) -> Iterator[OldRow]:
    """Yield the rows beyond a damaged page, which are found by reading backwards from the end."""
    found: list[int] = []
    with suppress(sqlite3.DatabaseError):
        for (rowid,) in connection.execute(_ROWIDS_BACKWARDS, (last,)):
            if type(rowid) is not int or (found and rowid >= found[-1]):
                break
            found.append(rowid)
    for rowid in reversed(found):
        with suppress(sqlite3.DatabaseError):
            yield from map(OldRow._make, connection.execute(_ROW, (rowid,)).fetchall())


def _authorize(action: int, first: str | None, second: str | None, _: str | None, inner: str | None) -> int:
    """Allow a statement to read the two tables and nothing else; `inner` names the view or trigger that it runs in."""
    allowed = inner is None and (
        action == sqlite3.SQLITE_SELECT
        or (action == sqlite3.SQLITE_READ and first in _TABLES)
        or (action == sqlite3.SQLITE_FUNCTION and second in ("count", "typeof"))
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _text(data: bytes) -> str:
    """Decode text; bytes that are not UTF-8 become lone surrogates, by which the caller can tell."""
    return data.decode("utf-8", "surrogateescape")


def _descriptor(path: str) -> int:
    """Open a file for reading it ourselves; there may be a link or a FIFO by now."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _refuse_users(path: str) -> None:
    """Raise StorageError if another process has the database open, and so could change it while it is read.

    Closing this descriptor drops no lock of ours, since this process has no other descriptor of the file.
    """
    with open(_descriptor(path), "rb") as file:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *_LOCK_BYTES, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    if kind != fcntl.F_UNLCK:
        raise StorageError(f"{path!r} is in use by process {process}: stop it, then migrate again")


def _refuse_journal(path: str) -> None:
    """Refuse an interrupted transaction: to roll it back, SQLite would follow file names in the journal."""
    try:
        with open(_descriptor(path), "rb") as file:
            head = file.read(len(_HOT_JOURNAL))
    except FileNotFoundError:
        return
    if head == _HOT_JOURNAL:
        raise StorageError(
            f"{path!r} holds a transaction that was cut off: open the old directory with DiskCache once, which rolls it"
            " back, then migrate again"
        )
