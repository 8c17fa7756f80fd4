"""Computing: an entry is read, decided on and written as one atomic step, under one hold of the write lock."""

from __future__ import annotations

from zlib import crc32

from ..coherence.board import NO_ENTRY, ROOM
from ..coherence.generations import TICK_LIMIT, UNKNOWN, Header, microseconds
from ..errors import CorruptDatabase, DiskFull
from ..record import RESIDUE
from . import rekeying, room
from . import statements as sql
from .connection import FAILURES
from .holding import WRITE_COST
from .rows import Decide, Remove, Row, Touch
from .writing import Writer

_TICK, _COUNT = Header.TICK, Header.COUNT  # for the hot path
_DISPLACED, _NEXT_EXPIRE = Header.DISPLACED, Header.NEXT_EXPIRE


class Computer(Writer):
    """Read and write one shard in one step."""

    def compute(self, h: int, stored: bytes, decide: Decide, timeout: float | None, again: bool = False) -> int:
        """Read the entry, let `decide` say what becomes of it, and write that, as one atomic step.

        `decide` gets the record or None and returns a Row, Touch, REMOVE or None (leave as it is). It runs under the
        write lock and must not use the cache. Returns the slot's new generation, or 1 if nothing may be kept hot.
        """
        try:
            return self._compute_locked(h, stored, decide, timeout)
        except (CorruptDatabase, DiskFull) as error:
            if again:
                raise
            self._make_good(error, timeout)
        except BaseException:
            self.let_go()
            raise
        return self.compute(h, stored, decide, timeout, again=True)

    def _compute_locked(self, h: int, stored: bytes, decide: Decide, timeout: float | None) -> int:
        locked = self.enter(timeout)
        try:
            place = h
            v = None
            if self.board is not None and not self.header[_DISPLACED]:
                # Under the lock what the board shows for the slot's generation is what stands in the row. That it is
                # this key's is seen by the checksum; a record that is authenticated by other means is read.
                v = self.board.look(h, self.slots[h % self.slot_prime])
                if v is not None and v != NO_ENTRY and crc32(v, crc32(stored)) != RESIDUE:
                    v = None
            if v is None:
                place, v = self._newest(h, stored, locked)
            elif v == NO_ENTRY:
                v = None
            change = decide(v)
            if change is None:
                return 1
            if type(change) is bytes or type(change) is Row:
                return self._upsert(h, stored, change, locked, v is not None, v is not None)
            if locked and type(change) is Remove:
                return self._removed(h, place, change)
            return self._change(h, place, change, locked)  # type: ignore[arg-type]
        finally:
            if locked:
                self.leave()
            else:
                self.leave_step()

    def _newest(self, h: int, stored: bytes, locked: bool) -> tuple[int, bytes | None]:
        """Return place and record of the key from its row; the lock is held."""
        rows = self.select_writer(sql.SELECT_PROBES, (h,))
        for place, key, v in rows:
            if key == stored:
                return place, v
        if rows:
            with self.changing([h], locked):
                self._sound(rows)
        return h, None

    def _removed(self, h: int, place: int, change: Remove) -> int:
        """Do `_change` for a removal, on a full disk once more with the room that is kept for removals."""
        try:
            return self._change(h, place, change, True)
        except DiskFull:
            if not room.relieve(self, [], removal=True):
                raise
        return self._change(h, place, change, True)

    def _change(self, h: int, place: int, change: Touch | Remove, locked: bool) -> int:
        """Give the entry at `place` another expiry, or remove it; return what `compute` does."""
        if locked:
            self.tidy()
        header = self.header
        self.note_written(2 * WRITE_COST)
        tick = header[_TICK] + 1
        if tick > TICK_LIMIT:
            tick = self.generations.next_tick()
        header[_TICK] = tick
        slot = h % self.slot_prime
        self.slots[slot] = 2 * tick + 1  # odd before, even after the commit, as in _upsert
        try:
            if type(change) is Touch:
                self._touch(place, change)
                if locked and len(change.v) <= ROOM and self.board is not None:
                    self.board.post(h, 2 * tick + 2, change.v)
            else:
                self.note_trash()
                self._count(-self.writer.execute(sql.DELETE_H, (place,)).rowcount)
        except BaseException as error:
            header[_COUNT] = UNKNOWN  # whether the statement was committed is not known here
            if isinstance(error, FAILURES):
                self.failed(error)
            raise
        finally:
            if locked:
                self.slots[slot] = 2 * tick + 2
            else:
                self.txn.touch(slot, h)  # type: ignore[union-attr]
        return 2 * tick + 2 if locked else 1

    def _touch(self, place: int, change: Touch) -> None:
        if self.disk.sealer is not None:
            rekeying.reserve(self, self.disk.sealer)
        if change.expire is not None:
            self.header[_NEXT_EXPIRE] = min(self.header[_NEXT_EXPIRE], microseconds(change.expire))
        self.writer.execute(sql.UPDATE_EXPIRE, (change.expire, change.v, place))
