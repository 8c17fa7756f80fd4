"""The trash: value files of replaced and removed entries, unlinked after a grace period.

A file's row goes into the trash in the transaction that removes its entry. It stays for a while, so that a reader that
holds the entry's row can still open it; a reader whose file is gone all the same reads the row again.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...coherence.generations import NEVER, Header, microseconds
from ...encoding import file_names
from ...errors import CacheError, DecodeError
from ...system.signals import suppress
from ..shard.reader import Reader
from ..shard.transactions import Transactions
from ..sqlite import statements as sql

# Seconds that a replaced file stays for readers that hold its row. Whoever writes large values without a pause fills
# fresh memory for so long, which is slower than to fill what a removed file has just given back.
GRACE = 1.0
SWEEP_FILES = 4096  # files chosen per round: more than writes can add between two rounds
UNLINK_FILES = 16  # files unlinked after one write, so that no caller waits long
_FILES, _SWEEP, _NEXT_EXPIRE = Header.FILES, Header.SWEEP, Header.NEXT_EXPIRE


class Trash:
    """Choose and unlink the files that nothing refers to any more."""

    def __init__(self, transactions: Transactions, reader: Reader) -> None:
        self._shard = transactions.shard
        self._connection = transactions.shard.connection
        self._transactions = transactions
        self.reader = reader
        self.pending_unlinks: list[object] = []  # columns of files to unlink after the lock is released
        self.unlinked: set[object] = set()  # columns of files that are unlinked; their rows go with the next round

    def expect(self) -> None:
        """Schedule a sweep for when the grace of what the next commit may put into the trash is over."""
        header = self._shard.header
        if header[_SWEEP] == NEVER and header[_FILES]:
            header[_SWEEP] = due = microseconds(self._shard.now() + GRACE)
            header[_NEXT_EXPIRE] = min(header[_NEXT_EXPIRE], due)

    def sweep(self) -> None:
        """Look into the trash: date what is new, forget what was unlinked, choose what to unlink after the release."""
        connection, now = self._connection, self._shard.now()
        if connection.select(sql.HAS_UNDATED, (now,)):
            connection.walk(sql.DATE_TRASH, (now, now))
        rows = [column for (column,) in connection.select(sql.SELECT_TRASH, (now - GRACE, SWEEP_FILES))]
        gone = [column for column in rows if column in self.unlinked]
        self.pending_unlinks = [column for column in rows if column not in self.unlinked]
        self._transactions.after_release = self.unlink_pending if self.pending_unlinks else None
        if gone:
            connection.execute_many(sql.DELETE_TRASH, [(column, column) for column in gone])
        self.unlinked.clear()  # also of those whose rows others have dropped, or every file would be remembered

    def sweep_if_due(self, now: float) -> int:
        """Sweep if the grace of something in the trash is over; return when to look again, in microseconds."""
        header = self._shard.header
        if header[_FILES] and header[_SWEEP] <= now * 1e6:
            self.sweep()
            if self._connection.select(sql.HAS_TRASH):
                header[_SWEEP] = microseconds(now + GRACE)
            else:
                header[_SWEEP] = NEVER
                header[_FILES] = bool(self._connection.select(sql.HAS_FILE))  # whoever sets it holds the lock too
        return header[_SWEEP]

    def unlink_pending(self, most: int = UNLINK_FILES) -> None:
        """Unlink files chosen by `sweep`. Runs without the lock: nothing refers to them any more."""
        pending = self.pending_unlinks
        self.pending_unlinks = pending[most:]
        if not self.pending_unlinks:
            self._transactions.after_release = None  # if another thread has just swept, its rows are found once more
        for column in pending[:most]:
            with suppress(OSError):  # the write is committed; the row in the trash has it tried again
                self._unlink(column)
                self.unlinked.add(column)

    def unlink_unused(self, columns: Iterable[object]) -> None:
        """Unlink value files unless a row refers to them, after a rollback; where that fails `check` finds them.

        A signal handler may have raised just after the commit, so that what looks like a rollback is none.
        """
        for column in columns:
            with suppress(OSError, CacheError):
                if not self.reader.refers_to_column(column):
                    self._unlink(column)

    def unlink_now(self, columns: Iterable[object]) -> bool:
        """Unlink these files and all that is in the trash, at once; tell whether there were any."""
        every = [*columns, *(column for (column,) in self._connection.select(sql.SELECT_ALL_TRASH))]
        for column in every:
            self._unlink(column)
        return bool(every)

    def _unlink(self, column: object) -> None:
        try:
            self._shard.disk.remove(file_names.from_column(column))
        except DecodeError:
            return  # a planted name: the row is dropped, no file is touched

    def empty(self) -> None:
        """Unlink every file in the trash now, since room is needed; no transaction is open."""
        if not self._is_reachable():
            return
        rows = self._connection.select(sql.SELECT_ALL_TRASH)
        for (column,) in rows:
            self._unlink(column)
        self._forget(rows)

    def empty_old(self) -> None:
        """Unlink the files in the trash whose grace is over, before the shard is closed; no transaction is open."""
        if not (self._is_reachable() and self._shard.header[_FILES]):
            return
        self.sweep()
        self.unlink_pending(SWEEP_FILES)
        self._forget([(column,) for column in list(self.unlinked)])  # list: another thread may be adding to it

    def _is_reachable(self) -> bool:
        """Tell whether the files are this shard's.

        They are not if this handle cannot follow to the next database, or was refused as it opened.
        """
        shard = self._shard
        return shard.has_disk() and shard.header[Header.EPOCH] == shard.epoch

    def _forget(self, rows: list[tuple[object]]) -> None:
        """Remove rows of the trash whose files are unlinked."""
        if rows:
            with self._transactions.batch():
                self._connection.execute_many(sql.DELETE_TRASH, [(column, column) for (column,) in rows])
        self.unlinked.clear()

    def empty_if_possible(self) -> None:
        """Unlink the files of entries whose removal is committed; if that fails, the removal still holds."""
        with suppress(OSError, CacheError):
            self.empty()
