"""The one connection of a shard that writes, and the transaction that is open on it.

It is used under the shard's write lock only, which makes one thread at a time its user.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Never

from ...coherence.write_lock import WriteLock
from ...errors import CacheError, CorruptDatabase, StorageError, TransactionError
from ..sqlite import statements as sql
from ..sqlite.connection import (
    FAILURES,
    Failure,
    connect_writer,
    corrupt,
    integrity_error,
    is_read_only,
    is_unexplained,
    mapped,
    walked,
)
from ..sqlite.reader_pool import ReaderPool
from .ownership import Transaction


class WriterConnection:
    """Open the writing connection when it is first needed, run statements on it, and map their errors."""

    def __init__(self) -> None:
        self.path = ""
        self.txn: Transaction | None = None
        self.cut_off: Transaction | None = None  # that a signal handler kept from its end; `_native.end` rolled it back
        # What is to be done, under the lock, once the transaction has ended one way or the other.
        self.at_end: Callable[[], None] | None = None
        self.cursor: sqlite3.Cursor | None = None  # for the statements that matter most; None while closed
        # Whether the last commit failed. Until another one takes its place in the WAL, SQLite may find it there, whole,
        # at the next opening; so no count of entries is noted until then.
        self.in_doubt = False
        self.disk_failed = False  # whether the last write that failed did so for an error of the disk
        self.raw: sqlite3.Connection | None = None
        self._settings: dict[str, Any] = {}
        self._timeout = 0.0
        self._pool: ReaderPool
        self._lock: WriteLock
        self._flaw: str | None = None  # of the database, when SQLite last called it full though there was room
        self._look_again = 0.0

    def attach(self, path: str, settings: dict[str, Any], timeout: float, pool: ReaderPool, lock: WriteLock) -> None:
        """Use this database from the next statement on; the connection to the one before is closed or left by then."""
        self.path = path
        self._settings, self._timeout = settings, timeout
        self._pool, self._lock = pool, lock
        self.forget()
        self.at_end = self.cut_off = None
        self._flaw = None
        self._look_again = 0.0

    def open(self) -> sqlite3.Connection:
        """Return the connection, opened if it is not; the caller holds the write lock."""
        return self.raw or self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            try:
                self.raw = connect_writer(self.path, self._settings, self._timeout)
            except FAILURES as error:
                if not is_read_only(error):
                    raise
                # The -shm file is shared by all connections of a process: it is open for writing after the next
                # opening only if none is left that has it open for reading.
                self._pool.drain()
                self.raw = connect_writer(self.path, self._settings, self._timeout)
        except FAILURES as error:
            self.fail(error, reads=True)
        self.cursor = None
        return self.raw

    def take_over_reader(self) -> None:
        """Write through a free reader's connection, if no other is open: before closing, that saves opening one."""
        connection = self._pool.hand_over() if self.raw is None else None
        if connection is not None:
            try:
                connection.execute(sql.CHANGE_NOTHING)
            except BaseException as error:
                connection.close()
                if not isinstance(error, FAILURES):  # else the next statement opens another one, or says what is wrong
                    raise
            else:
                self.raw = connection

    def open_cursor(self) -> sqlite3.Cursor:
        """Return the cursor for the statements that matter most, and keep it."""
        self.cursor = cursor = self.open().cursor()
        return cursor

    def close(self) -> None:
        """Close the connection; the next statement opens another, with the settings that are in force then."""
        if self.raw is not None:
            self.raw.close()
        self.forget()

    def forget(self) -> None:
        """Drop the connection without closing it: another thread, or the parent process, may be using it."""
        self.raw = self.cursor = None

    def in_transaction(self) -> bool:
        """Tell whether SQLite has a transaction open; it ends one by itself after some errors."""
        return self.raw is not None and self.raw.in_transaction

    def select(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end."""
        try:
            if statement in sql.WALKS:
                return walked(self.open(), self.path, statement, parameters)
            return self.open().execute(statement, parameters).fetchall()
        except FAILURES as error:
            self.fail(error, reads=True)

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement that changes something."""
        try:
            return self.open().execute(statement, parameters)
        except FAILURES as error:
            self.fail(error)

    def execute_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> sqlite3.Cursor:
        """Run a statement once for each row of parameters."""
        try:
            return self.open().executemany(statement, rows)
        except FAILURES as error:
            self.fail(error)

    def walk(self, statement: str, parameters: Sequence[object] = ()) -> None:
        """Run a statement that changes, or reads, all of a table or an index."""
        try:
            walked(self.open(), self.path, statement, parameters)
        except FAILURES as error:
            self.fail(error)

    def setting(self, name: str) -> object:
        """Return the value of a row beside the settings, None if there is none."""
        rows = self.select(sql.SELECT_SETTING, (name,))
        return rows[0][0] if rows else None

    def put_setting(self, name: str, value: object) -> None:
        """Store a row of the table `setting`."""
        if self.txn is not None:
            self.txn.names.add(name)
        self.execute(sql.SET_SETTING, (name, value))

    def drop_setting(self, name: str) -> None:
        """Remove a row beside the settings."""
        if self.txn is not None:
            self.txn.names.add(name)
        self.execute(sql.DROP_SETTING, (name,))

    def put_file_total(self, size: int) -> None:
        """Store how many bytes all value files have."""
        self.execute(sql.SET_FILES, (size,))

    def begin(self, txn: Transaction) -> None:
        """Run BEGIN IMMEDIATE for a transaction."""
        self.execute("BEGIN IMMEDIATE")
        self.txn = txn

    def commit(self, txn: Transaction) -> None:
        """Commit the open transaction; what is left for its end is to settle the slots."""
        self.verify_whole(txn)
        self.execute("COMMIT")
        txn.committed, self.in_doubt = True, False

    def roll_back(self) -> None:
        """End SQLite's transaction, if there is one."""
        raw = self.raw
        try:
            if raw is not None and raw.in_transaction:
                self.execute("ROLLBACK")
        except CacheError:  # as where the directory is gone; closing ends it too, and the next write opens another
            self.forget()
            assert raw is not None
            raw.close()

    def run_at_end(self) -> None:
        """Do what was left for the end of the transaction."""
        if self.at_end is not None:
            self.at_end()

    def callers_transaction(self) -> Transaction | None:
        """Return the open transaction if reads of the calling task belong to it."""
        txn = self.txn  # once: another thread may end it at any time
        return txn if txn is not None and txn.reads_here() else None

    def verify_open(self, error: CacheError | None = None) -> None:
        """Raise if the calling task's transaction is open no more, or must not be committed; `error`, if that ended it.

        SQLite rolls one back by itself after some errors, such as a full disk or a failed read, and would then
        autocommit whatever is written next. The body, or what makes room on the way, may ignore such an error; so this
        is called before each step and before the commit.
        """
        txn = self.txn
        if txn is None or txn.committed or not txn.reads_here():  # another thread's is being committed, perhaps
            return
        if not self.in_transaction():
            raise error or StorageError(
                f"{self.path!r}: SQLite has rolled this transaction back after an earlier error, which was ignored; "
                "nothing of it is stored, run it again"
            )

    def verify_whole(self, txn: Transaction, depth: int = 1) -> None:
        """Raise if a transaction, or the nested one at this depth, must not be committed."""
        self.verify_open()
        if txn.depth != depth:
            raise TransactionError(
                f"{self.path!r}: a nested transaction was interrupted while it ended, so nothing of the one around it "
                "can be stored; run it again"
            )

    def fail(self, error: Failure, reads: bool = False) -> Never:
        """Raise the package's error for an error of SQLite; `reads`: nothing was to be written."""
        problem = self._damage_behind(error) or mapped(error, self.path, reads)
        if not reads:
            self.disk_failed = isinstance(problem, StorageError)
        raise problem from error

    def _damage_behind(self, error: Failure) -> CorruptDatabase | None:
        """Return the damage, if any, for which SQLite calls a database full that is not, or a value too long.

        SQLite says so of a damaged page that refers to a page with too high a number. The check takes as long as the
        database is large, so its answer stands for a hundred times as long: repeated tries spend a hundredth on it.
        """
        raw = self.raw
        if raw is None or not self._lock.is_mine() or not is_unexplained(error, raw, self.path):
            return None
        began = monotonic()
        if began >= self._look_again:
            self._flaw = integrity_error(raw, self.path)
            ended = monotonic()
            self._look_again = ended + 100 * (ended - began)
        return None if self._flaw is None else corrupt(f"{self.path!r}: {error}: {self._flaw}", self.path)
