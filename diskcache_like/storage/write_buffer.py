"""The write buffer of one shard: small writes are appended to its ring, and flushed to the database in batches.

Any other write carries what waits: it becomes part of its transaction (`carriable`, `carry`), or is flushed before if
it is too much. So the rest of the package knows the database alone. Readers of one key look into the ring, then at the
row. Iteration and counts do so, too, while little waits; other readers of many rows flush everything first.

With any other commit, readers stop looking at records that the database has (`Invalidation`, `Ring.carried`). It, or
the first append after it, stores a mark in the database: where the chain of records continues. So after a power loss,
records that followed a lost commit are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import inf
from operator import itemgetter

from ..coherence import _native
from ..coherence.generations import MAX_WORD, NEVER, TICK_LIMIT, Header
from ..coherence.ring import Mark, Ring, Word
from ..errors import CorruptDatabaseWarning, DecodeError, DiskFull
from ..system.blocking import may_block
from ..system.callers import warn
from ..system.forks import token_word
from ..system.signals import suppress
from .opening.identity import BUFFER_MARK
from .opening.opener import ROOM, mark_in, take_over
from .rows import OPEN, Rows, with_queue
from .shard.invalidation import WRITE_COST
from .shard.open_shard import Appender, OpenShard
from .shard.ownership import Transaction
from .shard.row import Row
from .shard.transactions import Carried
from .sqlite import statements as sql
from .sqlite.connection import FAILURES
from .upkeep.checkpoints import CHECKPOINT_BYTES, is_due
from .upkeep.maintenance import Maintenance
from .upkeep.quota import FEW

CARRIED: int = 1 << 16  # bytes that a transaction of another kind takes along
BATCH: int = 1 << 14  # keys that one transaction flushes at most
SLICE: int = 640  # keys that one append flushes at most; fewer, and more than one in a hundred would flush
LONGEST: int = 1 << 14  # bytes of a record that is appended
FULL_PART: int = 4  # of the ring: the most that one record may take, so that it always has room, and what may wait
LITTLE: int = 1 << 18  # bytes that may wait in a ring where a quarter is less, if they fit into half of it
LIMIT_PART: int = 200  # the ring may hold 1/200 of the size limit: what is written between two volume checks

_BUFFER, _DISPLACED, _NEXT_EXPIRE = Header.BUFFER, Header.DISPLACED, Header.NEXT_EXPIRE
_TICK, _WRITTEN = Header.TICK, Header.WRITTEN
_FILES, _SWEEP, _SINCE = Header.FILES, Header.SWEEP, Header.SINCE


class WriteBuffer:
    """Append to the ring of one shard, and flush what waits there; the write lock is held, but for `append_alone`."""

    def __init__(self, maintenance: Maintenance, rows: Rows) -> None:
        self._maintenance = maintenance
        self._transactions = maintenance.transactions
        self._shard: OpenShard = maintenance.transactions.shard
        self._connection = self._shard.connection
        self._rows = rows
        self._is_tight = False

    # -- appending ----------------------------------------------------------------------------------------------------

    def append_alone(
        self, home: int, stored_key: bytes, row: Row | bytes | None, expected: int = 0, version: int = 0
    ) -> int:
        """Append the newest write of a key in one call that takes and releases the write lock; return as `write` does.

        Returns 0, and writes nothing, if the lock is busy, anything else is due, or the slot's generation is not the
        `expected` one, where one is named: an odd one is that during the write, which tells its number. `version`: that
        of the entry if it keeps it, else 0.
        """
        shard = self._shard
        header = shard.header
        if (
            token_word[0] != shard.token
            or self._connection.txn is not None
            or (header[_FILES] and header[_SWEEP] == NEVER)  # `write` expects one first
            or (header[_NEXT_EXPIRE] != NEVER and shard.removal_is_due())
        ):
            return 0
        if isinstance(row, Row) and (
            row.file is not None
            or (row.num is not None and abs(row.num) > header[_TICK] + 1)  # `put` goes beyond that number before
        ):
            return 0
        appender = shard.appender
        if appender is None or appender.lock is not shard.lock or appender.ring is not shard.ring:
            return 0
        return appender.append(expected, version, home, stored_key, row)

    def takes(self, stored_key: bytes, row: Row | bytes | None) -> bool:
        """Tell whether a write can be appended: a small row without a file, None for a removal."""
        shard = self._shard
        ring = shard.ring
        if ring is None or not shard.appends:
            return False
        if not ring.is_marked():  # nothing was appended since the last write of another kind
            self._mark_if_tight(self._maintenance.recovery.checkpointer.measure())
        if self._is_tight and (row is not None or not ring.waiting()):
            return False  # a removal joins what waits: the database would first need room for all of that
        longest = self._longest(ring)
        if not isinstance(row, Row):
            return len(stored_key) + len(row or b"") <= longest
        packed, _, _, tags, _, file, original_key, queue, _ = row
        return (
            file is None
            and (queue is None or shard.disk.sealer is None)  # a flush tells the queue by the key, if that is readable
            and len(stored_key) + len(packed) + len(tags or "") + len(original_key or b"") <= longest
        )

    def write(self, home: int, stored_key: bytes, row: Row | bytes | None, version: int = 0) -> int:
        """Append the newest write of a key, None for a removal; return the slot's new generation.

        `version`: that of the entry if it keeps it, else 0.
        """
        shard = self._shard
        ring = shard.ring
        assert ring is not None
        if not ring.is_sound():
            self._mend(ring)
        self._maintenance.trash.expect()  # what this replaces may have a file, which goes there once this is flushed
        try:
            self._keep_up(ring)
        except DiskFull:
            if row is not None or not ring.is_marked():
                raise  # a removal may still be appended, while the ring has room
        if not ring.is_marked():
            self._put_mark(ring)
        self._prepare_appender(ring)
        slots, slot, next_tick = shard.slots, home % shard.slot_prime, shard.generations.next_tick
        while True:
            tick = next_tick()
            slots[slot] = 2 * tick + 1  # odd before the record happens: no hit on what it replaces from here on
            appended = ring.core.append(tick, version or tick, home, stored_key, row)
            slots[slot] = 2 * tick + 2
            if appended:
                return 2 * tick + 2
            self.flush()
            ring.hide_flushed()
            self._put_mark(ring)

    def _prepare_appender(self, ring: Ring) -> None:
        """Have the next append made in one call, if nothing has to be sealed under the lock.

        This handle appends, and the disk has room; where that ends, so does the appender.
        """
        shard = self._shard
        lock, generations = shard.lock, shard.generations
        if shard.appender is not None and shard.appender.lock is lock and shard.appender.ring is ring:
            return
        shard.appender = None
        slots = generations.slots
        if not self._is_tight and shard.disk.sealer is None and len(slots):  # none where they were closed just now
            core = _native.Shard(
                lock.core,
                generations.header,
                slots,
                shard.slot_prime,
                ring.core,
                shard.limit_word(),
                TICK_LIMIT,
                CHECKPOINT_BYTES,
                self._bound(ring),
                self._longest(ring),
                shard.most,
            )
            shard.appender = Appender(lock, ring, core.append)

    def _bound(self, ring: Ring) -> int:
        """Return the bytes that may wait."""
        part = max(ring.capacity // FULL_PART, min(ring.capacity // 2, LITTLE))
        return min(part, self._shard.limit // LIMIT_PART)

    def _longest(self, ring: Ring) -> int:
        """Return the bytes that a record may have: so few that what waits is never much more than its bound."""
        return min(LONGEST, ring.capacity // FULL_PART, self._shard.limit // LIMIT_PART // 4)

    def _put_mark(self, ring: Ring) -> None:
        """Have the database say what the next record follows."""
        mark = self._new_mark(ring)
        self._connection.put_setting(BUFFER_MARK, mark.packed())
        ring.follow(mark)

    @staticmethod
    def _new_mark(ring: Ring) -> Mark:
        """Return a mark at HEAD with a new random checksum, so that no older record follows it."""
        return ring.mark()._replace(last=int.from_bytes(os.urandom(4), "little"))

    def _mark_if_tight(self, left: int) -> None:
        """Note whether the bytes that the disk has left suffice for what may wait; if not, nothing is appended."""
        self._is_tight = left < ROOM
        if self._is_tight:
            self._shard.appender = None

    # -- flushing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush everything to the database; within a transaction nothing waits."""
        ring = self._shard.ring
        if ring is not None and self._connection.txn is None:
            if not ring.is_sound():
                self._mend(ring)
            if ring.waiting():
                may_block()
                self._shard.refuse_removed()
                while ring.waiting():
                    self._flush(ring, BATCH)
                self._shard.header[_SINCE] = self._shard.header[_TICK]

    def carriable(self) -> Carried | None:
        """Return what waits, and a new mark, if a transaction about to begin can take it along; else it is flushed."""
        ring = self._shard.ring
        if ring is None or not ring.is_sound() or ring.waiting() > CARRIED:
            return None
        if ring.waiting():  # else everything was flushed just now
            self._mark_if_tight(self._maintenance.recovery.checkpointer.left_on_disk())
        if self._is_tight:
            return None
        if self._shard.appends:
            self._prepare_appender(ring)  # for a handle that only pulls: its next call may be an append
        try:
            net = ring.gather(BATCH)[0] if ring.waiting() else {}
        except DecodeError:  # `flush` says so
            return None
        return Carried(net, self._new_mark(ring))

    def carry(self, txn: Transaction, carried: Carried) -> None:
        """Write what `carriable` has returned as a part of a transaction that has just begun."""
        self._write_net(carried.net, carried.mark)
        txn.carried, txn.carried_added = carried.mark, txn.added
        self._rows.has_deleted = False  # nothing of it is found once this is committed

    def mend(self) -> None:
        """Mend what a holder of the write lock left half done."""
        ring = self._shard.ring
        if ring is not None and ring.words[Word.CARRYING]:
            self._mend(ring)  # the database alone knows whether the transaction was committed
        elif ring is not None:
            ring.mend()

    def discard(self, shrink: bool = False) -> int:
        """Remove every entry, and forget what waits; return how many entries the database had.

        `shrink`: the same transaction cuts their pages off, so that on a full disk the WAL needs room only for what
        is left. That takes seconds where there are many.
        """
        ring, checkpointer = self._shard.ring, self._maintenance.recovery.checkpointer
        mark: Mark | None = None
        if ring is not None:
            ring.mend()
            mark = ring.mark()  # what comes next follows it, whether the records before it are dropped or not
        with self._transactions.batch():
            removed = self._maintenance.remover.delete_all()
            if mark is not None:  # else what was dropped would be taken over again after a restart
                self._connection.put_setting(BUFFER_MARK, mark.packed())
            if shrink:
                checkpointer.vacuum_within()
        if ring is not None and mark is not None:
            self._while_all_odd(partial(ring.drop, mark))
        if shrink:
            with suppress(DiskFull):
                checkpointer.fit(shrink=True)
        return removed

    def wipe(self) -> None:
        """Overwrite what was flushed, which may be sealed with a data key that is about to go; nothing waits."""
        if self._shard.ring is not None:
            self._while_all_odd(self._shard.ring.wipe)

    def _while_all_odd(self, step: Callable[[], None]) -> None:
        """Take a step that changes what readers find in the ring; what was read before or meanwhile is not kept hot."""
        generations = self._shard.generations
        tick = generations.internal_tick()
        generations.begin_all(tick)
        try:
            step()
        finally:
            generations.settle_all(tick)

    def _mend(self, ring: Ring) -> None:
        """Take the ring over as after a restart: its words cannot be true."""
        self._while_all_odd(partial(self._take_over, ring))

    def _take_over(self, ring: Ring) -> None:
        shard = self._shard
        rows = self._connection.select(sql.SELECT_SETTING, (BUFFER_MARK,))
        # The ring keeps its number. To follow to a new one, this handle would leave its connection, which may be about
        # to begin a transaction.
        shard.header[_BUFFER] = take_over(ring, mark_in(rows), shard.epoch, shard.buffer)

    def _keep_up(self, ring: Ring) -> None:
        """Do one part of what is due by now, so that no append waits for all of it: either upkeep, or a flush.

        The appends that come next do the rest. The ring has room for more than what may wait.
        """
        header = self._shard.header
        if is_due(self._shard, header[_WRITTEN]):
            may_block()
            if header[_FILES]:  # of which some may be for the trash, once what waits is flushed
                self.flush()
            checkpointer = self._maintenance.recovery.checkpointer
            self._maintenance.run(0, makes_room=checkpointer.blocked or not checkpointer.is_due())
        elif (waiting := ring.waiting()) > self._bound(ring):
            may_block()
            quota = self._maintenance.evictor.quota
            self._flush(ring, FEW if quota.is_used_up() and quota.holds_few(waiting) else SLICE)

    def _flush(self, ring: Ring, most: int) -> None:
        """Flush records that are about `most` keys, from the oldest on."""
        try:
            self._flush_batch(ring, most)
        finally:
            if self._rows.has_deleted:  # and the ring must not show what was
                self._while_all_odd(ring.hide_flushed)
                self._rows.has_deleted = False

    def _flush_batch(self, ring: Ring, most: int) -> None:
        """Do what `_flush` does, in one transaction."""
        try:
            net, mark = ring.gather(most)
        except DecodeError:  # nobody can tell which entries have newer values
            self.discard()
            warn(
                f"{self._shard.directory!r}: a record in the write buffer is damaged, and nobody can tell which"
                " entries have newer values there; so every entry was removed",
                CorruptDatabaseWarning,
            )
            return
        if mark is None:
            return
        with self._transactions.batch():
            self._write_net(net, mark)
        ring.flushed(mark)
        checkpointer = self._maintenance.recovery.checkpointer
        self._mark_if_tight(checkpointer.left_on_disk())
        checkpointer.write_back_if_due()

    def _write_net(self, net: dict[bytes | int, _native.Net], mark: Mark) -> None:
        """Write what the records of each key come to, and the mark behind them, in the open transaction."""
        shard = self._shard
        assert shard.ring is not None
        cost = mark.flushed - shard.ring.words[Word.FLUSHED] + WRITE_COST * len(net)
        shard.header[_WRITTEN] = shard.header[_WRITTEN] + cost & MAX_WORD
        # So that the next holder finds out if this one is killed between the commit and the count.
        shard.generations.internal_tick()
        try:
            self._write(net)
        except FAILURES as error:  # of SQLite: whoever flushes expects those of the package
            self._connection.fail(error)
        self._connection.put_setting(BUFFER_MARK, mark.packed())

    def _write(self, net: dict[bytes | int, _native.Net]) -> None:
        """Write what the records of each key come to."""
        rows = self._rows
        for key, (_, _, home, _, was_removed) in net.items():
            if was_removed and isinstance(key, bytes):
                rows.delete(home, 0, (key, -inf))
            elif was_removed:
                rows.delete_all_of(home)
        written = [
            with_queue(key, row) if len(row) == OPEN and isinstance(key, bytes) else row
            for key, (_, _, _, row, _) in net.items()
            if row is not None
        ]
        written.sort(key=itemgetter(4))  # new rows are appended to the table
        if self._shard.header[_DISPLACED] or not rows.put_many(written):
            for row in written:
                rows.put_small(row)
