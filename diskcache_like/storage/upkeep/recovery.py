"""A full disk or a damaged database: mend what can be mended, and take the step that failed once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ...errors import CacheError, CorruptDatabase, DiskFull
from ...system.blocking import may_block
from ...system.signals import suppress
from ..shard.ownership import Transaction
from ..shard.transactions import Transactions
from ..sqlite import statements as sql
from .checkpoints import LATE_RESERVE, Checkpointer
from .trash import Trash

T = TypeVar("T")


class Recovery:
    """Take a step a second time after what made it fail has been mended.

    A corrupt database is quarantined, and the step is taken on the next one. On a full disk, files that nothing refers
    to go first, then a checkpoint is tried; a step that removes something also gets the disk reserve.
    """

    def __init__(self, transactions: Transactions, trash: Trash, checkpointer: Checkpointer) -> None:
        self._shard = transactions.shard
        self.transactions = transactions
        self.trash = trash
        self.checkpointer = checkpointer
        # The next transaction gets the disk reserve: it removes something where a checkpoint found no room, or it may
        # repeat one that removed more than it added and was rolled back on a full disk.
        self.needs_reserve = False

    def run(self, step: Callable[[], T], removes: bool = False, kept: int = 0) -> T:
        """Take a step under the lock that is held, outside a transaction; once more if the disk was full.

        For a step that `removes`, `kept` bytes of the disk reserve stay, LATE_RESERVE at most.
        """
        try:
            return step()
        except DiskFull:
            if not self.reclaim_space(removes=removes, kept=kept):
                raise
        return step()

    def mend(self, error: CacheError, timeout: float | None, removed: tuple[int, bytes] | None = None) -> None:
        """Mend what made a step fail with `error` outside the lock, so that it can be taken again, or raise `error`.

        `removed`: place and stored key of an entry that the step removes, whose file can go first.
        """
        may_block()
        if isinstance(error, CorruptDatabase):
            mended = self._shard.recover(error)
        else:
            mended = self.reclaim_when_locked(timeout, removed)
        if not mended:
            raise error

    def reclaim_when_locked(
        self, timeout: float | None, removed: tuple[int, bytes] | None = None, for_file: bool = False
    ) -> bool:
        """Take the lock and make room on a full disk without touching live entries; tell whether to try again.

        `removed` is as for `mend`. `for_file`: it is a value file that did not fit.
        """
        with self.transactions.locked(timeout, flushes=False) as locked:
            if not locked:
                return False
            with suppress(DiskFull):  # then what waits stays there, and what it removes keeps its file
                self.transactions.upkeep.flush_buffer()
            rows = []
            if removed is not None:
                home, stored_key = removed
                rows = self._shard.connection.select(sql.SELECT_FILE, (home, home + 3, stored_key))
            return self.reclaim_space([column for (column,) in rows], for_file, removes=removed is not None)

    def attempts(self, removes: bool = False) -> Iterator[Attempt]:
        """Yield a context once, and a second time if its body failed and may be run once more.

        That is after a corrupt database, quarantined by then, and after a full disk if the body `removes` something in
        a transaction, which then gets the disk reserve; at once if a checkpoint found no room the last time.
        """

        def mend(error: CacheError) -> bool:
            if isinstance(error, CorruptDatabase):
                return self._shard.recover(error)
            return removes and self.needs_reserve

        if removes and self.checkpointer.blocked and self._shard.connection.callers_transaction() is None:
            self.needs_reserve = True
        first = Attempt(mend)
        yield first
        if first.may_be_repeated:
            yield Attempt(lambda _: False)

    def mark_rolled_back(self, txn: Transaction, error: BaseException) -> None:
        """Note whether this error ended a transaction that removes more than it adds for want of room."""
        self.needs_reserve = isinstance(error, DiskFull) and txn.added < txn.carried_added

    def reclaim_if_needed(self) -> None:
        """Reclaim space, the disk reserve included, for the transaction that `needs_reserve` is about."""
        if self.needs_reserve:
            self.needs_reserve = False
            self.reclaim_space(removes=True)

    def reclaim_space(
        self, columns: Sequence[object] = (), for_file: bool = False, removes: bool = False, kept: int = 0
    ) -> bool:
        """Unlink the files in the trash and those of rows about to go, and more; tell whether a write may fit now.

        Even a DELETE needs room in the WAL, so files go first: until its row has gone, an entry without its file reads
        as missing. A step that `removes` also gets the disk reserve but for `kept` bytes, and all but the last of it if
        all would not suffice. A checkpoint lets the WAL start anew in the room that it has, or give that room to a
        value file; it is not tried if it would only use up what a removal has got. The lock is held, no transaction is
        open.
        """
        checkpointer, lock = self.checkpointer, self._shard.lock
        gained = self.trash.unlink_now(columns)
        if removes:
            enough = checkpointer.fits(lock.disk_reserve())
            gained = lock.drop_disk_reserve(kept if enough else LATE_RESERVE) or gained
            if gained and not checkpointer.fits():
                return True
        try:
            checkpointer.fit(shrink=for_file)
        except DiskFull:
            return gained
        checkpointer.shorten(shrink=for_file)
        if not removes:
            checkpointer.measure()
        return True


class Attempt:
    """Swallow the error of a body that may be run once more, as `mend` says."""

    def __init__(self, mend: Callable[[CacheError], bool]) -> None:
        self._mend = mend
        self.may_be_repeated = False

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self.may_be_repeated = isinstance(error, CorruptDatabase | DiskFull) and self._mend(error)
        return self.may_be_repeated
