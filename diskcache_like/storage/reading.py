"""Reading a shard: every SELECT runs to its end on a connection of the pool, without any lock of ours."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import files
from ..coherence.forks import token_word
from ..coherence.generations import NEVER, Header
from ..errors import CorruptDatabase, DirectoryError, KeyringError
from . import statements as sql
from .connection import FAILURES, PAGE_SIZE, Failure, corrupt, mapped, walked
from .shard import Shard

QUEUE_BOUND = 1 << 62  # of the numbers of a queue; what is beyond, or no number, was planted and is passed over
_EPOCH, _TICK = Header.EPOCH, Header.TICK  # for the hot path


class Reader(Shard):
    """Read one shard."""

    def read(self, h: int) -> bytes | None:
        """Return the record at `h`; the caller verifies that it belongs to its key and calls `find` if not."""
        if token_word[0] != self._token:
            self.open()
        if self.header[_EPOCH] != self.epoch:
            self.follow()
        txn = self.txn  # once: another thread may end it at any time
        if txn is not None and txn.reads_here():
            rows = self.select_writer(sql.SELECT_V, (h,))
            return rows[0][0] if rows else None
        pool = self._pool
        try:
            cursor = pool.free.pop()
        except IndexError:
            try:
                cursor = pool.take()
            except FAILURES as error:
                return self._read_again(h, error, pool.path)
        try:
            row = cursor.execute(sql.SELECT_V, (h,)).fetchone()
        except FAILURES as error:
            pool.discard(cursor)
            return self._read_again(h, error, pool.path)
        except BaseException:
            pool.discard(cursor)
            raise
        pool.free.append(cursor)
        if pool.watched:
            pool.settle()
        return None if row is None else row[0]

    def _read_again(self, h: int, error: Failure, path: str) -> bytes | None:
        """Do what `read` does once more if the database was corrupt and is replaced, or can be read after all.

        `path` is the database that was read: another thread may have replaced it by now.
        """
        problem = mapped(error, path, reads=True)
        if not isinstance(problem, CorruptDatabase) or not self.recovered(problem):
            raise problem from error
        rows = self._selected(sql.SELECT_V, (h,))
        return rows[0][0] if rows else None

    def select(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end on a reader, or on the writer within the caller's transaction."""
        try:
            return self._selected(statement, parameters)
        except CorruptDatabase as problem:
            if not self.recovered(problem):
                raise
        return self._selected(statement, parameters)

    def _selected(self, statement: str, parameters: Sequence[object]) -> list[Any]:
        self.ready()
        if self.header[Header.EPOCH] != self.epoch:
            self.follow()
        txn = self.txn  # as in `read`
        if txn is not None and txn.reads_here():
            return self.select_writer(statement, parameters)
        pool = self._pool
        try:
            cursor = pool.take()
        except FAILURES as error:
            raise mapped(error, pool.path, reads=True) from error
        try:
            if statement in sql.WALKS:
                rows = walked(cursor.connection, pool.path, statement, parameters)
            else:
                rows = cursor.execute(statement, parameters).fetchall()
        except FAILURES as error:
            pool.discard(cursor)
            raise mapped(error, pool.path, reads=True) from error
        except BaseException:
            pool.discard(cursor)
            raise
        pool.give(cursor)
        return rows

    def select_writer(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Run a SELECT to its end on the writing connection; the caller holds the write lock."""
        try:
            if statement in sql.WALKS:
                return walked(self.writer, self.path, statement, parameters)
            return self.writer.execute(statement, parameters).fetchall()
        except FAILURES as error:
            self.failed(error, reads=True)

    def pages(self, statement: str, size: int) -> Iterator[list[Any]]:
        """Yield rows in order of their places, so many at a time, so that no read transaction stays open between."""
        position = -(1 << 63)
        while rows := self.select(statement, (position, size)):
            if rows[-1][0] <= position:
                raise corrupt(f"{self.path!r}: rows are not in the order of their places", self.path)
            position = rows[-1][0]
            yield rows

    def _select_placed(self, statement: str, parameters: Sequence[object]) -> list[Any]:
        """Do `select` for rows that begin with their place, and set the database aside where one has none."""
        rows = self.select(statement, parameters)
        try:
            self.places(rows)
        except CorruptDatabase as problem:
            if not self.recovered(problem):
                raise
            rows = self.select(statement, parameters)
        return rows

    def places(self, rows: Sequence[Sequence[Any]]) -> list[int]:
        """Return the places of rows, their first column; raise CorruptDatabase where one is no number.

        So it is where damage to the schema, under a handle that is open, makes an ordinary column of `h`.
        """
        found = [row[0] for row in rows]
        if not all(type(place) is int for place in found):
            raise corrupt(f"{self.path!r}: a row has no number for its place", self.path)
        return found

    def find(self, h: int, stored: bytes) -> bytes | None:
        """Return the record of the key, looking at every place that a hash collision may have sent it to."""
        for _, key, v in self.select(sql.SELECT_PROBES, (h,)):
            if key == stored:
                return v  # type: ignore[no-any-return]  # whoever unpacks it refuses what is no BLOB
        return None

    def read_many(self, hashes: Sequence[int]) -> dict[int, bytes]:
        """Return the records at `hashes` that exist, `MANY` per statement."""
        found: dict[int, bytes] = {}
        for start in range(0, len(hashes), sql.MANY):
            batch = list(hashes[start : start + sql.MANY])
            batch += batch[-1:] * (sql.MANY - len(batch))
            found.update(self.select(sql.SELECT_MANY, batch))
        return found

    def scan(self, reverse: bool = False) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Return an iterator of (h, stored key, spelling) in order of insertion, without what is inserted after this.

        The places (8 bytes each) are read at once, the rows in pages as the iteration comes to them, so that no read
        transaction stays open between steps. What is removed meanwhile is left out.
        """
        last = min(self.present_header()[_TICK], NEVER)  # more is damage, and nothing that SQLite could compare with
        return self._rows(sql.IN_REVERSE if reverse else sql.IN_ORDER, last)

    def _rows(self, order: str, last: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        places = array("q", (h for (h,) in self._select_placed(order, (last,))))
        for start in range(0, len(places), sql.MANY):
            page = list(places[start : start + sql.MANY])
            padded = page + page[-1:] * (sql.MANY - len(page))
            rows = {h: (stored, spelling) for h, stored, spelling in self.select(sql.SELECT_KEYS, padded)}
            for h in page:
                if h in rows:
                    yield h, *rows[h]

    def queue_end(self, queue: bytes, last: bool, skip: int = 0) -> tuple[bytes, int, int, bytes] | None:
        """Return (stored key, number, place, record) at one end of a queue, behind `skip` others."""
        rows = self.queue_page(queue, last, -QUEUE_BOUND, QUEUE_BOUND, 1, skip)
        return (rows[0][1], rows[0][2], rows[0][0], rows[0][3]) if rows else None

    def queue_page(
        self, queue: bytes, last: bool, low: int, high: int, limit: int, skip: int = 0
    ) -> list[tuple[int, bytes, int, bytes]]:
        """Return (place, stored key, number, record) of items numbered `low` to `high`, from one end of a queue."""
        return self._select_placed(sql.QUEUE_BACKWARD if last else sql.QUEUE_FORWARD, (queue, low, high, limit, skip))

    def refers_to(self, file: str) -> bool:
        """Tell whether an entry, or the trash, has this value file."""
        return self.refers_to_column(files.to_column(file))

    def refers_to_column(self, column: object) -> bool:
        """Do the same for a file as rows spell it."""
        try:
            return bool(self.select(sql.KNOWN_FILE, (column,)))
        except (KeyringError, DirectoryError) as error:
            if isinstance(error, DirectoryError) and error.errno != errno.ESTALE:
                raise
            return False  # the handle cannot follow to the next database, or cache, which has no row for it

    @property
    def displaced(self) -> bool:
        """Tell whether any key lives beside its home place."""
        return self.header[Header.DISPLACED] != 0

    def volume(self) -> int:
        """Return the bytes in use: database pages that hold something, value files, and files in the trash."""
        return sum(self.usage(self.select))

    @staticmethod
    def usage(select: Callable[[str], list[Any]]) -> tuple[int, int]:
        """Return the bytes in database pages and value files, and those in the trash, as `select` sees them."""
        ((pages,),) = select(sql.PAGE_COUNT)
        ((free,),) = select(sql.FREE_PAGES)
        ((file_bytes, trash),) = select(sql.FILE_TOTALS)
        return (int(pages) - int(free)) * PAGE_SIZE + int(file_bytes), int(trash)
