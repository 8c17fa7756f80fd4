"""Delete rows by their places, whatever room there is for that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...coherence.generations import UNCOUNTED, Header
from ...errors import DiskFull
from ...system.signals import suppress
from ..shard.reader import places_of, usage
from ..sqlite import schema
from ..sqlite import statements as sql
from ..sqlite.connection import corrupt
from .recovery import Recovery

BATCH = 1000  # rows removed per transaction, so that nobody waits long for the lock
SMALL_BATCH = 20  # the same where the disk is full and little WAL fits


class Remover:
    """Delete rows of one shard."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self._transactions = recovery.transactions
        self._invalidation = recovery.transactions.invalidation
        self._shard = recovery.transactions.shard
        self._connection = self._shard.connection
        self._checkpointer = recovery.checkpointer

    def delete_in_transaction(self, places: Sequence[int]) -> None:
        """Delete rows by place in the open transaction, their slots odd until it has ended.

        They were found under the lock that is held. If none can be deleted the database is damaged, and a caller that
        deletes until nothing more is found would never end.
        """
        self.recovery.trash.expect()
        with self._invalidation.commit_many(places, autocommit=False):
            removed = self._connection.execute(sql.DELETE_PLACES, (json.dumps(places),)).rowcount
            if places and not removed:
                path = self._shard.path
                raise corrupt(f"{path!r}: rows that are found cannot be deleted", path)
            self._invalidation.count(-removed)

    def delete_all(self) -> int:
        """Delete every row in the open transaction, their slots odd until it has ended; return how many there were.

        The triggers that a deletion fires would have SQLite take each row by itself, twenty times as slow. So they are
        dropped and made again in the same transaction, in which their work is done for all rows.
        """
        self.recovery.trash.expect()
        execute = self._connection.execute
        with self._invalidation.commit_many(range(0, 4 * len(self._shard.slots), 4), autocommit=False):
            for name in schema.ON_EACH_DELETE:
                execute(f"DROP TRIGGER {name}")
            self._connection.walk(sql.TRASH_ALL)
            self._connection.put_file_total(0)
            execute(sql.UNTAG_ALL)
            removed = execute(sql.DELETE_ALL).rowcount
            for trigger in schema.ON_EACH_DELETE.values():
                execute(trigger)
            self._invalidation.count(-removed)
        return removed

    def delete(
        self, places: Sequence[int], locked: bool, everything: Callable[[], Sequence[int]] | None = None
    ) -> Sequence[int]:
        """Delete rows by place in a transaction of their own, if `locked`, else in the caller's; return which went.

        On a full disk, delete them in several transactions; if not even that helps, since more is in the WAL than the
        database has room for, delete all that `everything` returns.
        """
        if not locked:
            self.delete_in_transaction(places)
            return places
        try:
            self._delete_in_one(places)
            return places
        except DiskFull:
            if not self.recovery.reclaim_space(self._files_of(places), removes=True) and everything is None:
                raise
        if everything is None or self._checkpointer.fits():
            try:
                self._delete_few_by_few(places)
                return places
            except DiskFull:
                if everything is None:
                    raise
        left = everything()
        if 2 * len(left) >= self.known_count():  # else the reserve might be used up without giving room
            self._shard.lock.drop_disk_reserve()
        self._delete_and_shrink(left)
        return [*set(places).difference(left), *left]

    def _delete_in_one(self, places: Sequence[int]) -> None:
        with self._transactions.batch():
            self.delete_in_transaction(places)

    def _delete_few_by_few(self, places: Sequence[int]) -> None:
        """Delete rows where little WAL fits, with a checkpoint after each few, so that it begins anew if it can."""
        start, few = 0, SMALL_BATCH
        while start < len(places):
            try:
                self._delete_in_one(places[start : start + few])
            except DiskFull:
                if few == 1:
                    raise
                few = 1
                continue
            start += few
            with suppress(DiskFull):
                self._checkpointer.fit()

    def _delete_and_shrink(self, places: Sequence[int]) -> None:
        """Delete rows in one transaction that also cuts off their pages: the WAL needs room only for what is left."""
        with self._transactions.batch():
            self.delete_in_transaction(places)
            self._checkpointer.vacuum_within()
        with suppress(DiskFull):
            self._checkpointer.fit(shrink=True)

    def _files_of(self, places: Sequence[int]) -> list[object]:
        """Return the file columns of the rows at `places`."""
        select = self._connection.select
        return [column for batch in sql.batches(places) for (column,) in select(sql.SELECT_FILES, batch)]

    def select(self, statement: str, parameters: Sequence[object] = (), most: int | None = None) -> list[int]:
        """Return the places that a SELECT with a limit finds: a batch, or `most`, -1 for all. The lock is held."""
        return places_of(self.rows(statement, parameters, most), self._shard.path)

    def rows(self, statement: str, parameters: Sequence[object] = (), most: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows that `select` finds, whose first column is the place."""
        return self._connection.select(statement, (*parameters, BATCH if most is None else most))

    def known_count(self) -> int:
        """Return the number of entries, counting them if the header does not know; the lock is held."""
        header, in_transaction = self._shard.header, self._connection.txn is not None
        if in_transaction or header[Header.COUNT] == UNCOUNTED:
            ((number,),) = self._connection.select(sql.COUNT)
            if not in_transaction:
                header[Header.COUNT] = number
            return int(number)
        return header[Header.COUNT]

    def entries_in(self, size: int, volume: int) -> int:
        """Return how many entries take about so many bytes, if all take `volume`; 0 for none."""
        if size <= 0:
            return 0
        return size * self.known_count() // max(volume - self._shard.control_bytes, 1) + 1

    def live_volume(self) -> int:
        """Return the bytes in use, seen through the writing connection."""
        used, trash = usage(self._shard, self._connection.select)
        return used + (0 if self._connection.txn is not None else trash)
