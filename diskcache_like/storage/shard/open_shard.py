"""A shard as one process has it open: its mapped generations, lock and connections, and when they are opened anew."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...coherence.byte_locks import ByteLocks
from ...coherence.generations import GenerationFile, Header, Marks, Words, prime_below, unread_marks
from ...coherence.ring import Ring, Written, file_number
from ...coherence.write_lock import WriteLock
from ...crypto.keyring import Sealer
from ...disk.contract import Disk
from ...errors import (
    CacheError,
    CorruptDatabase,
    DecodeError,
    DirectoryError,
    DiskFull,
    KeyringError,
    TransactionError,
    file_error,
)
from ...settings.policies import policy_named
from ...system.blocking import may_block
from ...system.forks import process_token
from ..opening import opener, replacement
from ..opening.identity import BUFFER, GENERATIONS, LOCK, Config, cache_replaced, identity_of
from ..opening.mutex import LockTaken, holding, under_mutex
from ..sqlite.reader_pool import ReaderPool
from . import forking
from .forking import Resumable
from .limits import Limits
from .writer_connection import WriterConnection


class ClosedWords:
    """Words of a closed shard: every generation is odd, so nothing read meanwhile is kept."""

    def __getitem__(self, index: int) -> int:
        return (1 << 63) | 1

    def __setitem__(self, index: int, value: int) -> None:
        return

    def __len__(self) -> int:
        return 1


CLOSED = ClosedWords()
Result = TypeVar("Result")


NO_NUMBER = -1  # equal to no number of a write buffer
NOT_OPEN = -1  # equal to no process token, and not to the 0 that a wiped page shows

SHARED_MEMORY = 32 << 10  # bytes of the -shm file, which SQLite makes for the first connection to a database


class Appender(NamedTuple):
    """Append to the ring of a shard as it is open with this lock and ring, in one call that takes the lock itself."""

    lock: WriteLock
    ring: Ring
    append: Callable[..., int]


class OpenShard(Limits):
    """Own what a process has open of one shard."""

    def __init__(self, directory: str, config: Config) -> None:
        self.directory = directory
        self.config = config
        self.settings: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.policy = policy_named("none")
        self.slot_prime = 1
        self.disk: Disk  # set by the shard set once the settings are known, and the cache is seen to be the handle's
        self.connection = WriterConnection()
        self.token = NOT_OPEN  # of the process that opened
        self.lock: WriteLock
        self._opening: WriteLock | None = None  # the lock of the opening under way
        self.byte_locks: ByteLocks  # closed with the shard
        self.pool: ReaderPool
        self.generations: GenerationFile
        self.header: Words
        self.slots: Words
        self.marks: Marks
        self._closed_marks = self._counting(unread_marks())  # for a thread that has not counted yet what it has done
        self.ring: Ring | None = None
        self.appender: Appender | None = None  # made by the first write that finds nothing due
        self.buffer = 0  # its number
        self.appends = False  # whether this handle's small writes go there
        self._borrowed = 0  # bytes of the disk reserve that opening took on a full disk
        self.epoch = 0
        self.looked = 0  # at how many bytes written it was last seen that the directory is there
        self.path = ""
        forking.watch(self)
        self.open()

    def open(self) -> None:
        """Open the shard, creating or repairing what has to be; waits for the write lock only in those cases."""
        self._under_mutex(self._open)
        if self.config.counts is not None:
            self.config.counts.open(self.settings["metrics_level"])

    def count(self, event: str, number: int = 1) -> None:
        """Count an event of the cache (coherence/counts.py)."""
        if self.config.counts is not None:
            self.config.counts.add(event, number)

    def _counting(self, marks: Marks) -> Marks:
        """Let marks count what is done with keys, if that is counted here."""
        counts = self.config.counts
        if counts is not None and self.config.counts_keys:
            marks.count_in(counts.counters, counts.spaces)
        return marks

    def _under_mutex(self, step: Callable[[WriteLock | None], Result]) -> Result:
        may_block()
        return under_mutex(step, self.config.timeout)

    def _open(self, waited: WriteLock | None) -> None:
        if self.token == process_token():
            return  # another thread was first
        if self.token != NOT_OPEN:
            self._abandon()
        opener.close_leftovers()
        forking.refuse_inherited(self.directory)
        opener.refuse_foreign(self.directory, self.directory)
        lock = waited or WriteLock(os.path.join(self.directory, LOCK), shared=self.config.shared)
        around, self._opening = self._opening, lock
        try:
            found = self._open_files(lock, waited)
            try:
                byte_locks = ByteLocks(Path(self.directory, GENERATIONS), shared=self.config.shared)
            except BaseException:
                _close_files(found[0])
                _close_maps(found[1])
                raise
            if self.token == process_token():  # a signal handler that interrupted this was first
                byte_locks.close()
                _close_files(found[0])
                _close_maps(found[1])
                lock.close()
                return
            self.lock = lock
            self._use(*found)
            self.byte_locks = byte_locks  # last: if `_use` raises, others do not see an open handle
        except LockTaken:
            self._opening = around
            self.refuse_opener()
            raise  # with the lock, for which this thread now waits
        except BaseException:
            lock.close()
            raise
        finally:
            self._opening = around
        self.token = process_token()

    def refuse_opener(self) -> None:
        """Raise TransactionError in a signal handler that interrupts the opening of the shard under its lock.

        The handler has opened the shard with another lock, and would wait for itself for ever.
        """
        opening = self._opening
        if opening is not None and opening.is_mine():
            raise TransactionError(f"{self.directory!r} is being opened by the call that this handler interrupts")

    def _use(self, opened: opener.Opened, ring: Ring | None, buffer: int) -> None:
        generations, self.settings, self.identity, self.path, epoch, first_reader = opened
        header, slots, marks = generations.header, generations.slots, generations.marks
        self._counting(marks)
        self.slot_prime = prime_below(len(slots))
        # At once, since a signal handler that reads may come here, too, and close what was assigned before.
        self.generations, self.header, self.slots, self.marks = generations, header, slots, marks
        self.ring = ring
        self.policy = policy_named(self.settings["eviction_policy"])
        self.set_most()
        self.pool = ReaderPool(self.path, self.settings, self.config.timeout, first_reader)
        self.connection.attach(self.path, self.settings, self.config.timeout, self.pool, self.lock)
        self.appends = self.ring is not None and opener.appends(self.settings)
        self.lock.attach(generations.header)  # so that waiters can be woken
        self.buffer, self.epoch = buffer, epoch  # last: another thread that sees them uses all of the above

    def _open_files(self, lock: WriteLock, waited: WriteLock | None) -> tuple[opener.Opened, Ring | None, int]:
        """Return the database in use, and the ring of its write buffer with the number that it has."""
        hold = partial(holding, lock) if waited is None else nullcontext
        while True:
            try:
                opened = opener.open_shard(self.directory, self.config, hold)
            except DiskFull as error:
                with hold():
                    if not self._borrow(lock):
                        text = f"no room to open the cache, which takes {SHARED_MEMORY >> 10} KiB; what is stored stays"
                        raise DiskFull(text, self.directory) from error
                continue
            try:
                self._refuse_another(opened)
                found = opener.open_ring(self.directory, self.config, hold, opened)
                if found is not None:
                    return opened, *found
            except BaseException:
                _close_files(opened)
                raise
            _close_files(opened)  # the database was replaced just now

    def _borrow(self, lock: WriteLock) -> bool:
        """Free that part of the disk reserve which an open database takes; if it was in vain, undo that.

        The lock is held. Returns whether to try again.
        """
        if self._borrowed:
            self._give_back(lock)
            return False
        reserve = lock.disk_reserve()
        self._borrowed = min(SHARED_MEMORY, reserve)
        return lock.drop_disk_reserve(reserve - self._borrowed)

    def _give_back(self, lock: WriteLock) -> None:
        if self._borrowed:
            lock.keep_disk_reserve(lock.disk_reserve() + self._borrowed)
            self._borrowed = 0

    def _refuse_another(self, opened: opener.Opened) -> None:
        """Raise where the database is not one of the cache that this handle was opened on, and do not keep it open.

        The handle would find nothing of what others store, and they nothing of its own, which might have to be
        encrypted: it would place or blind keys, or write entries, in another way.
        """
        found, sealer = opened.identity, self.sealer
        problem: CacheError
        if sealer is not None and not sealer.belongs_to(found.get("keyring")):
            problem = KeyringError(
                f"{self.directory!r}: its database was damaged, and another process has made it anew under other keys"
                " than those of this handle; open it again"
            )
        elif self.identity and identity_of(found) != identity_of(self.identity):
            problem = cache_replaced(self.directory)
        else:
            return
        raise problem

    @property
    def sealer(self) -> Sealer | None:
        """Return what seals an encrypted cache's entries; None where it is not encrypted, or not known yet."""
        return self.disk.sealer if self.has_disk() else None

    def has_disk(self) -> bool:
        """Tell whether value files can be reached: not before the first opening has ended, nor if it was refused."""
        return hasattr(self, "disk")

    def ready(self) -> None:
        """Reopen after `close`, and after a fork in the child; otherwise do nothing."""
        if self.token != process_token():
            self.open()

    def is_open_with(self, lock: WriteLock) -> bool:
        """Tell whether the shard is open and `lock` its write lock; if not, another thread has closed it.

        In this order: a shard that is open again has got its new lock before its token.
        """
        return not self.inherited() and self.lock is lock

    def close(self) -> None:
        """Close everything, and release the write lock, which the caller holds."""
        lock, generations, ring = self.lock, self.generations, self.ring
        try:
            self.byte_locks.leave()
            self._close_connections()
            self._give_back(lock)
            self.appender = None
            # A reader on its way finds odd slots and another epoch.
            self.header = self.slots = CLOSED
            self.marks = self._closed_marks
            lock.release_and_close(self._mark_closed)
        except BaseException:  # the next call opens it anew; what is still open goes with the last reference to it
            self.token = NOT_OPEN
            lock.close()
            raise
        # Last: who finds the ring closed opens the shard again. Until then it has what could not be flushed.
        _close_maps(generations, ring)

    def _mark_closed(self) -> None:
        self.token = NOT_OPEN  # from here on another thread may open the shard again

    def _close_connections(self) -> None:
        self.connection.close()
        self.pool.close()

    def reopen_if_replaced(self) -> None:
        """Open the shard if it is closed, and go to the database and the write buffer in use."""
        self.ready()
        if not self.is_current():
            self.reopen()  # once: a signal handler that interrupts the closing of the shard can still read

    def present_header(self) -> Words:
        """Return the header, for those who hold no lock: open, and of the database in use.

        Raises TransactionError in a signal handler that interrupts the closing of the shard, which cannot go on before.
        """
        self.ready()
        header = self.header
        while not self.is_current():
            if header is CLOSED and self.lock.is_mine():
                raise TransactionError(f"{self.directory!r} is being closed by the call that this handler interrupts")
            self.reopen()
            header = self.header
        return header

    def is_current(self) -> bool:
        """Tell whether the database and the write buffer that are open here are those in use."""
        return self.header[Header.EPOCH] == self.epoch and self.header[Header.BUFFER] == self.buffer

    def reopen(self) -> None:
        """Go to the database, and the write buffer, that the generation file names now.

        Another process has quarantined the old one, or taken the buffer over anew.

        Only this process closes its old connections, to a file that nobody writes any more.
        """
        self._under_mutex(self._reopen)

    def _reopen(self, waited: WriteLock | None) -> None:
        if self.header is CLOSED:
            self._open(waited)  # another thread has closed it just now, or is closing it
        elif not self.is_current():
            self.buffer = NO_NUMBER  # until all is changed: what is named now may be named again by then
            found = self._open_files(self.lock, waited)  # first: nobody meets a shard that is half open
            left = self.generations, self.ring
            self._leave_connections(waited is self.lock)
            self.appender = None
            self._use(*found)
            _close_maps(*left)

    def _leave_connections(self, holds_lock: bool) -> None:
        """Do what `_close_connections` does, also without the write lock: a thread that writes keeps its connection.

        A thread may be writing if somebody removed the lock's file, so that another handle got a lock of its own.
        Closing the connection that it uses would crash the interpreter; it is closed when that thread drops it.
        """
        if holds_lock:
            self._close_connections()
            return
        if not self.lock.idle_here():
            self.connection.forget()
            self.pool.close()
            return
        try:
            self._close_connections()
        finally:
            self.lock.resume()

    def recover(self, error: CorruptDatabase) -> bool:
        """Quarantine a corrupt database if that is configured; tell whether the operation may be tried again.

        It may not while the caller holds the lock, for a transaction or a step: that has to end with the error first.
        """
        if not self.config.recover or self.lock.is_mine():
            return False
        self.quarantine(error)
        return True

    def quarantine(self, problem: CorruptDatabase) -> None:
        """Go on with the next database, once for all processes and threads, unless this one can be read after all."""

        def look() -> CorruptDatabase | None:
            if problem.path not in (None, self.path) or replacement.is_sound(self.path, self.config):
                return None
            if "keyring" in self.identity and (keyring := replacement.keyring_in(self.path, self.config)):
                self.identity["keyring"] = keyring
            return problem

        self._begin_anew(self.identity, look)

    def quarantine_keys(self, keyring: bytes, look: Callable[[], KeyringError | None]) -> None:
        """Quarantine the database if `look` returns what is wrong with its keyring, and go on with this keyring."""
        self._begin_anew({**self.identity, "keyring": keyring, "sealed": 0}, look)

    def _begin_anew(self, identity: dict[str, Any], look: Callable[[], CacheError | None]) -> None:
        """Go on with the next database if `look`, under the lock, says what is wrong with this one."""
        lock = self.lock
        lock.refuse_holder()
        try:
            lock.acquire(self.config.timeout)
            if self.header[Header.EPOCH] == self.epoch and (problem := look()):
                wanted = replacement.Next(self.epoch, self.settings, identity)
                replacement.make_next(self.directory, self.config, self.generations, problem, wanted)
        finally:
            lock.release()
        self.reopen()

    def quiesce(self, quiesced: list[Resumable]) -> None:
        """Keep other threads out of SQLite while this process forks; raise Timeout soon if that is not possible now.

        What has to be resumed goes to `quiesced` first, since a signal handler may raise just after it is quiesced.
        """
        if not self.inherited():
            lock, pool = self.lock, self.pool
            if not lock.is_mine():
                quiesced.append(lock)
                lock.quiesce()
            quiesced.append(pool)
            pool.quiesce()

    def after_fork(self, complete: bool) -> None:
        """Rid the child of what is open; `complete` says that no thread was opening anything just then."""
        if self.token != NOT_OPEN:
            self._abandon()
        elif not complete:
            forking.give_up(self.directory, [])

    def _abandon(self) -> None:
        """Rid a forked child of what it inherited (see `forking`)."""
        self.lock.abandon()
        self.byte_locks.close()
        connections, idle = self.pool.inherited()
        connection = self.connection
        if connection.raw is not None:
            connections.append(connection.raw)
            idle = idle and not connection.in_transaction()
        connection.forget()
        connection.txn = connection.cut_off = connection.at_end = None
        self.token = NOT_OPEN
        self._borrowed = 0  # the parent gives it back
        if idle and not self.lock.torn:
            for inherited in connections:
                inherited.close()
        else:
            forking.give_up(self.directory, [*connections, self.pool])

    def abandon_if_inherited(self) -> bool:
        """Rid a forked child of what it inherited; tell whether there is nothing left to close."""
        if self.token != NOT_OPEN and self.inherited():
            self._abandon()
        return self.token == NOT_OPEN

    def inherited(self) -> bool:
        """Tell whether this is a forked child that inherited what is open: none of it is its own."""
        return self.token != process_token()

    def refuse_removed(self) -> None:
        """Raise DirectoryError if the directory was removed, or replaced by another one, while it is open.

        What is written goes into files then that no new handle sees. One that was removed, or replaced, alone is no
        sign of that, so two are looked at.
        """
        ring, problem = self.ring, None
        for name, held in (LOCK, file_number(os.fstat(self.lock.core.fileno()))), (BUFFER, ring.file if ring else 0):
            try:
                if file_number(os.stat(os.path.join(self.directory, name))) == held:
                    return
            except OSError as error:
                problem = file_error(error, self.directory)
        raise problem or DirectoryError(
            errno.ESTALE, "the directory was replaced while it was in use; open the cache again", self.directory
        )

    def buffered(self, home: int, stored_key: bytes) -> Written | None:
        """Return the newest write of a key if the write buffer has it; for a damaged one, a record that is damaged.

        So whoever unpacks it counts the damage, or raises an error where the cache is strict.
        """
        ring = self.ring
        if ring is None:
            return None
        try:
            found = ring.find(home, stored_key)
            if found is None and ring.is_closed():
                self.reopen()  # waits until the other thread has opened the ring in use, which may have it
                found = self.ring.find(home, stored_key) if self.ring is not None else None
            return found
        except DecodeError:
            return Written(0, home, stored_key, b"")

    def removal_is_due(self) -> bool:
        """Tell whether entries may have expired, or a sweep is due, and this handle removes anything by itself."""
        return self.header[Header.NEXT_EXPIRE] <= self.config.clock() * 1e6 and bool(self.settings["cull_limit"])

    def slot_of(self, home: int) -> int:
        """Return the generation slot of a key hash; modulo a prime, since short keys have regular hashes."""
        return home % self.slot_prime

    def now(self) -> float:
        """Return the present time in seconds since the Unix epoch, from the configured clock."""
        return self.config.clock()


def _close_maps(*maps: GenerationFile | Ring | None) -> None:
    for mapped in maps:
        if mapped is not None:
            mapped.close()


def _close_files(opened: opener.Opened) -> None:
    opened.connection.close()
    opened.generations.close()
