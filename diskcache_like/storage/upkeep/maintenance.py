"""What rides on writes: checkpoints, eviction, expiry and the trash, each when it is due."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...coherence.generations import MAX_WORD, NEVER, Header, microseconds
from ...errors import CacheError, CorruptDatabase, DiskFull
from ...system.blocking import may_block
from ...system.signals import suppress
from ..shard.ownership import Transaction
from ..shard.transactions import Carried, Flushable
from ..sqlite import statements as sql
from .checkpoints import LATE_RESERVE, RESERVE, is_due
from .data_keys import DataKeys
from .eviction import Evictor

EXPIRY_PAUSE = 0.1  # seconds until the next look for expired entries, unless many expire; each look flushes what waits
# Bytes that may wait and still get part of the disk reserve: the database grows by twice that at most.
LITTLE = RESERVE // 8
_WRITTEN = Header.WRITTEN  # for the hot path


class Maintenance:
    """Do what is due before a write, before a transaction, and after the write lock was released."""

    buffer: Flushable  # set by the writer

    def __init__(self, evictor: Evictor, data_keys: DataKeys) -> None:
        self.evictor = evictor
        self.data_keys = data_keys
        self.remover = evictor.remover
        self.recovery = recovery = evictor.remover.recovery
        self.trash = trash = recovery.trash
        self.unlink_unused, self.after_eviction = trash.unlink_unused, trash.empty_if_possible  # as `Upkeep` says
        self.transactions = recovery.transactions
        self._shard = recovery.transactions.shard
        self._connection = self._shard.connection
        self._checkpointer = recovery.checkpointer

    def before_write(self, size: int, incoming: int) -> None:
        """Count `size` bytes into the WAL, and do what is due before a write that adds `incoming` bytes."""
        header = self._shard.header
        written = header[_WRITTEN] + size
        header[_WRITTEN] = written & MAX_WORD
        if is_due(self._shard, written):
            self.run(incoming)

    def run(self, incoming: int, makes_room: bool = True) -> None:
        """Checkpoint, sweep and make room, as far as each is due, before a write of `incoming` bytes.

        If the disk is full the write itself will fail. But if what is in the WAL has no room in the database, DiskFull
        refuses a write that adds something: it would take the part of the WAL that removals need.
        """
        may_block()
        checkpointer = self._checkpointer
        checkpointer.measure()
        refusal = self._unless_full(self._checkpoint_and_sweep)
        if makes_room:
            self._unless_full(lambda: self.evictor.look_at_volume(incoming))
        if checkpointer.blocked and incoming:
            path = self._shard.path
            raise refusal or DiskFull("no room for what is in the -wal file, so nothing is added", path)
        if makes_room:
            self._unblock_for_removal()

    def _unless_full(self, step: Callable[[], object]) -> DiskFull | None:
        """Take a step; return the error if there is no room for it, and the caller's transaction goes on."""
        try:
            step()
        except DiskFull as problem:
            self._connection.verify_open(problem)
            return problem
        return None

    def _checkpoint_and_sweep(self) -> None:
        if self._connection.txn is None:
            self._checkpointer.checkpoint_if_due()
            if self._shard.header[Header.FILES]:
                self.trash.sweep()

    def _unblock_for_removal(self) -> None:
        """Give the disk reserve to a checkpoint that found no room, outside a transaction: a removal makes room."""
        if self._checkpointer.blocked and self._connection.txn is None:
            self.recovery.reclaim_space(removes=True)

    def run_if_due(self, removes: bool = False) -> None:
        """Run if the WAL has grown enough, before writes that do not call `run`; no transaction is open.

        Neither a checkpoint nor a sweep is possible within a transaction, so the next one begins with what is due. The
        write may be one that `removes` an entry.
        """
        if self._checkpointer.is_due():
            self.run(0, makes_room=False)
            if removes:
                self._unblock_for_removal()
        else:
            self._checkpointer.unblock()

    def flush_buffer(self) -> None:
        """Flush the write buffer to the database; the lock is held.

        Whoever removes anything has to flush first. So on a full disk what waits gets part of the reserve, if it is so
        little that the rest suffices to remove something. If more waits it stays: removals can be appended to it.
        """
        ring = self._shard.ring
        if ring is None or (ring.is_sound() and not ring.waiting()):
            return
        self.recovery.run(self.buffer.flush, removes=ring.waiting() <= LITTLE, kept=LATE_RESERVE)

    def empty_buffer(self, timeout: float | None) -> int:
        """Flush the write buffer before a `clear`; if the disk has no room for that, remove every entry here.

        Returns how many entries the database had in that case, else 0.
        """
        ring = self._shard.ring
        if ring is None or not ring.waiting():
            return 0
        with self.transactions.locked(timeout, flushes=False) as locked:
            if locked:
                try:
                    self.flush_buffer()
                except DiskFull:
                    self._shard.lock.drop_disk_reserve()  # all of it: removing everything gives more room
                    removed = self.recovery.run(partial(self.buffer.discard, shrink=True), removes=True)
                    self.after_eviction()
                    return removed
        return 0

    def remove_expired_if_due(self) -> None:
        """Remove at most `cull_limit` entries if some may have expired, and sweep if that may be due.

        The limit keeps a write short. What is chosen in the trash is unlinked after the release.
        """
        shard = self._shard
        header, limit, now = shard.header, shard.settings["cull_limit"], shard.now()
        if limit == 0 or now * 1e6 < header[Header.NEXT_EXPIRE]:
            return
        self.flush_buffer()
        places = self.remover.select(sql.SELECT_EXPIRED, (now,), limit)
        if places:
            shard.count("evicted_expired", len(self.remover.delete(places, locked=True)))
        ((earliest,),) = self._connection.select(sql.MIN_EXPIRE)
        next_sweep = self.trash.sweep_if_due(now)
        next_expiry = NEVER if earliest is None else microseconds(earliest)
        if len(places) < limit:
            next_expiry = max(next_expiry, microseconds(now + EXPIRY_PAUSE))
        header[Header.NEXT_EXPIRE] = min(next_expiry, next_sweep)

    def keep_to_number(self) -> None:
        """Evict what is more than `max_entries` allows; the lock is held, and no transaction is open.

        The caller's write is done, and must not be made again because this fails: the next write tries it, and is told.
        """
        with suppress(CacheError):
            self.flush_buffer()
            self.evictor.keep_to_number()

    def before_transaction(self, carries: bool = True) -> Carried | None:
        """Do what cannot be done within a transaction; the lock is held, and one is about to begin.

        What waits in the write buffer is flushed, or, if the transaction `carries`, returned. Where it is flushed, a
        mark is returned alone.
        """
        ring = self._shard.ring
        waits = ring is not None and ring.waiting() > 0
        if waits:
            may_block()
        carried = self.buffer.carriable() if carries and waits else None
        if carried is None:
            self.flush_buffer()
            carried = self.buffer.carriable() if waits else None  # a mark alone, since more will be appended soon
        self.run_if_due()
        self.recovery.reclaim_if_needed()
        self.data_keys.reserve_seals()
        return carried

    def rolled_back(self, txn: Transaction, error: BaseException) -> None:
        """Unlink the files of a transaction that this error has ended, and note whether removals need the reserve."""
        # Files of a damaged database stay, for a second try in the next one.
        if not txn.decided and not isinstance(error, CorruptDatabase):
            self.trash.unlink_unused(txn.files)
        self.recovery.mark_rolled_back(txn, error)
