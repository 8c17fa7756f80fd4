"""Remove everything that is of a kind: one batch per hold of the write lock, so that nobody waits long for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Literal

from ...errors import DiskFull, Timeout
from ..sqlite import statements as sql
from .maintenance import Maintenance

VACUUMED = 512  # removed entries from which on free pages are given back
Selection = Literal["any", "tagged", "expired"]
_SELECTIONS = {"any": sql.SELECT_ANY, "tagged": sql.SELECT_TAGGED, "expired": sql.SELECT_EXPIRED}


class BulkRemoval:
    """Remove entries of one shard by the thousand."""

    def __init__(self, maintenance: Maintenance) -> None:
        self._maintenance = maintenance
        self._transactions = maintenance.transactions
        self._session = maintenance.transactions.session
        self._evictor, self._remover = maintenance.evictor, maintenance.remover
        self._recovery = maintenance.recovery

    def remove(self, which: Selection, parameters: tuple[object, ...], timeout: float | None) -> int:
        """Remove all entries of a kind in batches, each an atomic step; return how many went.

        A Timeout between batches carries the number so far in `count`.
        """
        removed = 0
        for attempt in self._recovery.attempts():
            with attempt:
                removed = self._remove_selected(_SELECTIONS[which], parameters, timeout)
        if removed > VACUUMED:
            # What is removed is removed, though nobody can give the room back just now: its pages take the next rows.
            with contextlib.suppress(Timeout, DiskFull), self._transactions.locked(timeout) as locked:
                if locked:
                    self._recovery.checkpointer.vacuum()
        return removed

    def _remove_selected(self, select: str, parameters: tuple[object, ...], timeout: float | None) -> int:
        """Remove everything that `select` finds; return how many entries went."""
        remover, removed = self._remover, 0
        while True:
            try:
                with self._transactions.locked(timeout) as locked:
                    if locked:
                        self._maintenance.run_if_due()
                    places: Sequence[int] = remover.select(select, parameters)
                    if not places:
                        if removed:
                            self._evictor.give_up_reservation()
                        return removed
                    places = remover.delete(places, locked, partial(remover.select, select, parameters, -1))
                    if locked:
                        self._maintenance.after_eviction()  # who removes that much wants the room
            except Exception as error:
                error.count = removed  # type: ignore[attr-defined]
                raise
            removed += len(places)

    def cull(self, timeout: float | None) -> int:
        """Remove expired entries and, above the size limit, live ones by rank; return how many went."""
        removed = 0
        for attempt in self._recovery.attempts():
            with attempt:
                removed = self._cull(timeout)
        return removed

    def _cull(self, timeout: float | None) -> int:
        removed = self._remove_selected(sql.SELECT_EXPIRED, (self._session.now(),), timeout)
        try:
            while self._session.policy.evicts and (evicted := self._evict_excess(timeout)):
                removed += evicted
        except Exception as error:
            error.count = removed  # type: ignore[attr-defined]
            raise
        return removed

    def _evict_excess(self, timeout: float | None) -> int:
        with self._transactions.locked(timeout) as locked:
            if locked:
                self._maintenance.after_eviction()
            return self._evictor.evict_excess()
