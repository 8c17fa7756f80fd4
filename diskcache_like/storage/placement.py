"""Where a key's row lies: at its hash, or in one of the three places after it where other keys have the same hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..coherence.generations import Header
from ..encoding.record import unpack
from ..errors import DecodeError, SignatureError
from .shard.invalidation import Invalidation
from .shard.ownership import HOME
from .shard.session import ShardSession
from .sqlite import statements as sql


class Placement:
    """Find the rows of keys through the writing connection; the write lock is held."""

    def __init__(self, session: ShardSession, invalidation: Invalidation) -> None:
        self._session = session
        self._connection = session.connection
        self._invalidation = invalidation
        self.has_deleted = False  # rows, within a transaction; the write buffer resets it

    def find(self, h: int, stored: bytes, autocommit: bool) -> tuple[int, bytes | None]:
        """Return place and record of a key; remove rows in its way that belong to no key."""
        rows = self._connection.select(sql.SELECT_PROBES, (h, h + 3))
        for place, key, v in rows:
            if key == stored:
                return place, v
        if rows:
            with self._invalidation.around_many([h], autocommit):
                self._sound(rows)
        return h, None

    def find_displaced(self, h: int, stored: bytes) -> int:
        """Return the place of a key that may live beside its hash; its hash if it has no row."""
        rows = self._connection.select(sql.SELECT_PROBES, (h, h + 3))
        return next((place for place, key, _ in rows if key == stored), h)

    def present(self, places: Sequence[int]) -> set[int]:
        """Return those of the places that hold an entry."""
        select = self._connection.select
        return {h for batch in sql.batches(places) for (h,) in select(sql.SELECT_PRESENT, batch)}

    def place(self, h: int, stored: bytes) -> int:
        """Return where the key lives or may live, evicting the first place if all four are taken; the slot is odd."""
        rows = self._sound(self._connection.select(sql.SELECT_PROBES, (h, h + 3)))
        taken: dict[int, bytes] = {place: key for place, key, _ in rows}
        for place, key in taken.items():
            if key == stored:
                return place
        for place in range(h, h + 4):
            if place not in taken:
                if place != h:  # stored each time: an earlier note may have been rolled back
                    self._connection.put_setting("displaced", 1)
                    # Before the upsert commits: readers look at all places from now on.
                    self._session.header[Header.DISPLACED] = 1
                return place
        self._delete(h)
        return h

    def remove_unsound(self, h: int, stored: bytes) -> None:
        """Remove what a deletion of a live entry left, which is expired or damaged; the slot is odd.

        A damaged column may call an entry expired whose record does not.
        """
        for place, key, _ in self._sound(self._connection.select(sql.SELECT_PROBES, (h, h + 3))):
            if key == stored:
                self._delete(place)

    def _sound(self, rows: list[Any]) -> list[Any]:
        """Return the rows whose record belongs to their key, after removing the others; the slot is odd.

        If the key was changed on disk, a reader, who asks for the place alone, still finds the entry, but no write for
        its key would replace or remove it.
        """
        wrong = [h for h, key, v in rows if not self._belongs(key, v)]
        for h in wrong:
            self._delete(h)
        return [row for row in rows if row[0] not in wrong]

    def _delete(self, place: int) -> None:
        txn = self._connection.txn
        if txn is not None:  # where the write buffer is flushed the slot is not odd yet
            slot = (place & HOME) % self._session.slot_prime
            self._session.generations.begin([slot], self._session.header[Header.TICK])
            txn.touch(slot, place)
            self.has_deleted = True
        self._invalidation.count(-self._connection.execute(sql.DELETE_H, (place,)).rowcount)

    def _belongs(self, key: bytes, v: bytes) -> bool:
        disk = self._session.disk
        try:
            if disk.sealer is not None:
                disk.sealer.open(key, v)
            else:
                unpack(key, v, disk.secret.verifier if disk.authenticates and disk.secret is not None else None)
        except SignatureError:
            return not disk.authenticates  # with another secret than the cache's it may be sound
        except DecodeError:
            return False
        return True
