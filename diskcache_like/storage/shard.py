"""A shard as a process holds it: its mapped generations, its lock, its connections, and when they are opened anew."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from time import monotonic
from typing import Any, Never

from ..coherence import native
from ..coherence.forks import process_token
from ..coherence.generations import GenerationFile, Header
from ..coherence.lock import WriteLock
from ..coherence.words import Words
from ..disk import Disk
from ..errors import CorruptDatabase, DirectoryError, KeyringError
from ..policies import policy_named
from . import checkpoints, forking, opening, succession
from .connection import (
    FAILURES,
    Failure,
    ReaderPool,
    connect_writer,
    corrupt,
    flaw_in,
    is_read_only,
    is_unexplained,
    mapped,
)
from .layout import Config, essence, replaced
from .transaction import Transaction


class Closed:
    """Words of a closed store: every generation is odd, so nothing read meanwhile is kept."""

    def __getitem__(self, index: int) -> int:
        return (1 << 63) | 1

    def __setitem__(self, index: int, value: int) -> None:
        return

    def __len__(self) -> int:
        return 1


CLOSED = Closed()
NOT_OPEN = -1  # equal to no process token, and not to the 0 that a wiped page shows


class Shard:
    """Hold what a process needs to use one shard."""

    def __init__(self, directory: str, config: Config) -> None:
        self.directory = directory
        self.config = config
        self.settings: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.policy = policy_named("none")
        self.has_rank_index = False
        self.wal_bytes = checkpoints.CHECKPOINT_BYTES  # what there may be of WAL between two checkpoints, as measured
        self.cramped = False  # what is in the WAL found no room in the database, the last time that this was tried
        self.starved = False  # a transaction that removed more than it added met a full disk, and has come to nothing
        self.doomed: list[object] = []  # columns of trashed files to unlink after the lock is released
        self.unlinked: set[object] = set()  # columns of trashed files that are unlinked; their rows go next round
        self.txn: Transaction | None = None
        self.unsettled: Callable[[], None] | None = None  # for the end of a transaction in which settings were changed
        self.slot_prime = 1
        self.siblings: tuple[Any, ...] = ()  # the other shards of the cache, set by the shards once all are open
        self.disk: Disk  # set by the shards once the settings are known, and the cache is seen to be the handle's
        self._token = NOT_OPEN  # of the process that opened
        self._writer: sqlite3.Connection | None = None
        self.lock: WriteLock
        forking.watch(self)
        self.open()

    def open(self) -> None:
        """Open the shard, creating or repairing what has to be; waits for the write lock only in those cases."""
        with opening.mutex():
            if self._token == process_token():
                return  # another thread was first
            if self._token != NOT_OPEN:
                self._abandon()
            opening.close_leftovers()
            forking.refuse_inherited(self.directory)
            opening.refuse_foreign(self.directory, self.directory)
            self.lock = opening.new_lock(self.directory, self.config)
            try:
                self._load()
            except BaseException:
                self.lock.close()
                raise
            self._token = process_token()

    def _load(self) -> None:
        opened = opening.open_shard(self)
        self._refuse_another(opened)
        self.generations: GenerationFile = opened.generations
        self.settings = opened.settings
        self.unsettled = None
        self.identity = opened.identity
        self.policy = policy_named(self.settings["eviction_policy"])
        # The rowid that the writer inserted last. SQLite tells an insert from an update by nothing else: after an
        # upsert of `h` it is another than before exactly if `h` was inserted, unless it was `h` before.
        self._inserted = 0
        self._cursor: sqlite3.Cursor | None = None  # of the writer, for the statement that matters most
        self._special = self.policy.marks_frequency  # rows need more than the plain upsert writes
        self.has_rank_index = self._has_seq_index = False
        self.path = opened.path
        self.slot_prime = opening.prime_below(len(opened.generations.slots))
        self._pool = ReaderPool(self.path, self.settings, self.config.timeout, opened.connection)
        self._writer = None
        self._flaw: str | None = None  # of the database, when SQLite last called it full though there was room
        self._look_again = 0.0
        self.header = opened.generations.header
        self.slots = opened.generations.slots
        self.uses = opened.generations.uses
        self.epoch = opened.epoch
        self.board = opening.open_board(self)
        self._sign_in()

    def has_disk(self) -> bool:
        """Tell whether value files can be reached: not during the first opening, nor after one that was refused."""
        return hasattr(self, "disk")

    def _refuse_another(self, opened: opening.Opened) -> None:
        """Raise where the database is not one of the cache that this handle was opened on, and do not keep it open."""
        problem = self._other_keys(opened.identity) or self._other_cache(opened.identity)
        if problem is not None:
            opened.connection.close()
            opened.generations.close()
            raise problem

    def _other_keys(self, found: dict[str, Any]) -> KeyringError | None:
        """Return an error where the cache has begun anew, and keys are blinded otherwise than in this handle."""
        sealer = self.disk.sealer if self.has_disk() else None
        if sealer is None or sealer.belongs_to(found.get("keyring")):
            return None
        return KeyringError(
            f"{self.directory!r}: its database was damaged, and another process has made it anew under other keys than"
            " those of this handle; open it again"
        )

    def _other_cache(self, found: dict[str, Any]) -> DirectoryError | None:
        """Return an error where keys are placed, or entries written, otherwise than this handle does.

        It would find nothing of what others store, and they nothing of its own, which might have to be encrypted.
        """
        if not self.identity or essence(found) == essence(self.identity):
            return None
        return replaced(self.directory)

    def rest(self, resting: list[WriteLock | ReaderPool]) -> None:
        """Keep other threads out of SQLite for the time of a fork; what has to be resumed after it goes to `resting`.

        It does so before it is brought to rest, for a signal handler may raise just after that. Raises Timeout soon if
        that is not possible now.
        """
        if not self.inherited():
            lock, pool = self.lock, self._pool
            if not lock.locked_by_me():
                resting.append(lock)
                lock.rest()
            resting.append(pool)
            pool.rest()

    def after_fork(self, complete: bool) -> None:
        """Rid the child of what is open; `complete` says that no thread was opening anything just then."""
        if self._token != NOT_OPEN:
            self._abandon()
        elif not complete:
            forking.give_up(self.directory, [])

    def _sign_in(self) -> None:
        """Note that this process uses the shard, and if another did before, that it is shared.

        Two that come at the same instant may miss each other: that costs cold reads, and the next one notes it.
        """
        header, me = self.header, os.getpid()
        if header[Header.OPENER] not in (0, me):
            header[Header.SHARED] = 1
        header[Header.OPENER] = me

    def _abandon(self) -> None:
        """Rid a forked child of what it inherited (see `forking`)."""
        self.lock.abandon()
        connections, idle = self._pool.inherited()
        if self._writer is not None:
            connections.append(self._writer)
            idle = idle and not self._writer.in_transaction
        self._writer = self._cursor = None
        self.txn = self.unsettled = None
        self._token = NOT_OPEN
        if idle and not self.lock.torn:
            for connection in connections:
                connection.close()
        else:
            forking.give_up(self.directory, [*connections, self._pool])

    def inherited(self) -> bool:
        """Tell whether this is a forked child that came with what is open: nothing of that is its own."""
        return self._token != process_token()

    def is_open_with(self, lock: WriteLock) -> bool:
        """Tell whether the store is open and `lock` its write lock; if not, another thread has closed it."""
        return self.lock is lock and not self.inherited()

    def ready(self) -> None:
        """Reopen after `close`, and after a fork in the child; otherwise do nothing."""
        if self._token != process_token():
            self.open()

    def present_header(self) -> Words:
        """Return the header, for those who hold no lock: open, and of the database in use."""
        self.ready()
        header = self.header
        while header[Header.EPOCH] != self.epoch:
            self.follow()
            header = self.header
        return header

    def follow(self) -> None:
        """Go to the database that the generation file names now, after another process set the old one aside.

        The old connections are closed by nobody but us and to a file nobody else writes any more.
        """
        with opening.mutex():
            if self.header is CLOSED:
                self.open()  # another thread has closed it just now, or is at it
            elif self.header[Header.EPOCH] != self.epoch:
                self._leave_connections()
                self.generations.close()
                if self.board is not None:
                    self.board.close()
                self._load()

    @property
    def writer(self) -> sqlite3.Connection:
        """Return the writing connection; the caller holds the write lock."""
        return self._writer or self._open_writer()

    def _open_writer(self) -> sqlite3.Connection:
        try:
            try:
                self._writer = connect_writer(self.path, self.settings, self.config.timeout)
            except FAILURES as error:
                if not is_read_only(error):
                    raise
                # The -shm file is shared by all connections of a process: it is open for writing after the next
                # opening only if none is left that has it open for reading.
                self._pool.drain()
                self._writer = connect_writer(self.path, self.settings, self.config.timeout)
        except FAILURES as error:
            self.failed(error, reads=True)
        self._inserted = 0
        self._cursor = None
        return self._writer

    def _open_cursor(self) -> sqlite3.Cursor:
        self._cursor = cursor = self.writer.cursor()
        return cursor

    def _close_connections(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._cursor = None
        self._pool.close()

    def _leave_connections(self) -> None:
        """Do what `_close_connections` does without the write lock: a thread that writes keeps its connection.

        That happens where somebody removed the lock's file, so that another handle got a lock of its own: to close a
        connection that another thread uses would crash the interpreter. It is closed when that thread lets go of it.
        """
        if not self.lock.idle_here():
            self._writer = self._cursor = None
            self._pool.close()
            return
        try:
            self._close_connections()
        finally:
            self.lock.resume()

    def attach_lock(self, generations: GenerationFile) -> None:
        """Let waiters on the write lock be woken through the header, where the helper is there."""
        self.lock.attach(generations.header, native.load())

    @property
    def limit(self) -> int:
        """Return the bytes that this shard may use: its even share of `size_limit`."""
        return int(self.settings["size_limit"]) // int(self.identity.get("shards", 1))

    def slot_of(self, h: int) -> int:
        """Return the generation slot of a key hash; modulo a prime, since short keys have regular hashes."""
        return h % self.slot_prime

    def now(self) -> float:
        """Return the present time in seconds since the Unix epoch, from the configured clock."""
        return self.config.clock()

    def failed(self, error: Failure, reads: bool = False) -> Never:
        """Raise the package's error for an error of SQLite; `reads`: nothing was to be written."""
        raise self._damage_behind(error) or mapped(error, self.path, reads) from error

    def _damage_behind(self, error: Failure) -> CorruptDatabase | None:
        """Return the damage, if there is any, for which SQLite calls a database full that is not, or a value too long.

        A page that a damaged one refers to may have a number that is too high, which is what SQLite then says. To look
        takes as long as the database is large, so the answer stands for a hundred times as long: who tries again and
        again spends a hundredth of the time on it.
        """
        writer = self._writer
        if writer is None or not self.lock.locked_by_me() or not is_unexplained(error, writer, self.path):
            return None
        began = monotonic()
        if began >= self._look_again:
            self._flaw = flaw_in(writer, self.path)
            ended = monotonic()
            self._look_again = ended + 100 * (ended - began)
        return None if self._flaw is None else corrupt(f"{self.path!r}: {error}: {self._flaw}", self.path)

    def recovered(self, error: CorruptDatabase) -> bool:
        """Set a database aside if it is corrupt and that is configured; tell whether the operation may be tried again.

        Not while the caller holds the lock, for a transaction or by itself: that has to end with the error first.
        """
        if not self.config.recover or self.lock.locked_by_me():
            return False
        succession.set_aside(self, error)
        return True
