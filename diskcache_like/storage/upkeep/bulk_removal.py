"""Remove everything that is of a kind: one batch per hold of the write lock, so that nobody waits long for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from ...coherence.generations import UNCOUNTED, Header
from ...errors import DiskFull, Timeout
from ..shard.reader import places_of
from ..sqlite import statements as sql
from .maintenance import Maintenance

MANY = 10_000  # entries from which on `clear` empties the table in one step
VACUUMED = 512  # removed entries from which on free pages are given back
Selection = Literal["any", "tagged", "expired"]
Parameters = Callable[[], tuple[object, ...]]
_SELECTIONS = {"any": sql.SELECT_ANY, "tagged": sql.SELECT_TAGGED, "expired": sql.SELECT_EXPIRED}
_EVENTS = {"any": "evicted_by_clear", "tagged": "evicted_by_tag", "expired": "evicted_expired"}


class BulkRemoval:
    """Remove entries of one shard by the thousand."""

    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance
        self._transactions = maintenance.transactions
        self._shard = maintenance.transactions.shard
        self._evictor, self._remover = maintenance.evictor, maintenance.remover
        self._recovery = maintenance.recovery

    def remove(self, which: Selection, parameters: Parameters, timeout: float | None) -> int:
        """Remove all entries of a kind in batches, each an atomic step; return how many went, of tagged ones the live.

        `parameters` are asked for anew under each hold of the lock, so a moment among them is that of the batch.
        A Timeout between batches carries the number so far in `count`.
        """
        removed = 0
        for attempt in self._recovery.attempts():
            with attempt:
                removed = 0
                if which == "any":
                    removed = self._maintenance.empty_buffer(timeout) or self._remove_all(timeout)
                removed = self._remove_selected(_SELECTIONS[which], parameters, timeout, removed)
        self._shard.count(_EVENTS[which], removed)
        if removed > VACUUMED:
            # What is removed is removed, though nobody can give the room back just now: its pages take the next rows.
            with contextlib.suppress(Timeout, DiskFull), self._transactions.locked(timeout) as locked:
                if locked:
                    self._recovery.checkpointer.vacuum()
        return removed

    def _remove_all(self, timeout: float | None) -> int:
        """Remove many entries in one step; return how many went, 0 if it is better or only possible to remove batches.

        Not in a transaction, which others wait for, nor where there is no room for it. And not in a damaged database:
        where pages lead to one page several times, nothing would stop SQLite on its way through them.
        """
        shard, transactions = self._shard, self._transactions
        if shard.connection.callers_transaction() is not None:
            return 0
        select, count = self._maintenance.trash.reader.select, shard.header[Header.COUNT]
        if count == UNCOUNTED:
            ((count,),) = select(sql.COUNT)
        if count < MANY or select(sql.QUICK_CHECK) != [("ok",)]:
            return 0
        with transactions.locked(timeout):
            self._maintenance.run_if_due()
            try:
                with transactions.batch():
                    removed = self._remover.delete_all()
            except DiskFull:
                return 0
            self._maintenance.after_eviction()
        return removed

    def _remove_selected(self, select: str, parameters: Parameters, timeout: float | None, removed: int = 0) -> int:
        """Remove everything that `select` finds; return how many entries went, without those that it calls not live.

        They are added to those `removed` before.
        """
        remover = self._remover
        expired = set[int]()

        def find(most: int | None = None) -> list[int]:
            rows = remover.rows(select, parameters(), most)
            expired.update(row[0] for row in rows if row[1:] == (0,))
            return places_of(rows, self._shard.path)

        while True:
            try:
                with self._transactions.locked(timeout) as locked:
                    if locked:
                        self._maintenance.run_if_due()
                    expired.clear()
                    places: Sequence[int] = find()
                    if not places:
                        if removed:
                            self._evictor.give_up_reservation()
                        return removed
                    places = remover.delete(places, locked, partial(find, -1))
                    if locked:
                        self._maintenance.after_eviction()  # who removes that much wants the room
            except Exception as error:
                error.count = removed  # type: ignore[attr-defined]
                raise
            removed += len(places) - len(expired)

    def cull(self, timeout: float | None) -> int:
        """Remove expired entries and, above the limits, live ones; return how many went."""
        removed = 0
        for attempt in self._recovery.attempts():
            with attempt:
                removed = self._cull(timeout)
        return removed

    def _cull(self, timeout: float | None) -> int:
        before = self._evictor.evicted
        removed = self._remove_selected(sql.SELECT_EXPIRED, lambda: (self._shard.now(),), timeout)
        self._shard.count("evicted_expired", removed)
        try:
            while self._shard.policy.evicts and self._evict_excess(timeout):
                pass
        except Exception as error:
            error.count = removed + self._evictor.evicted - before  # type: ignore[attr-defined]
            raise
        return removed + self._evictor.evicted - before

    def _evict_excess(self, timeout: float | None) -> int:
        with self._transactions.locked(timeout) as locked:
            if locked:
                self._maintenance.after_eviction()
            return self._evictor.evict_excess()
