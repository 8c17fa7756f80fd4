"""The settings of one shard: what is in force in this handle, and what is stored for those that open it later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from ..coherence.generations import Header
from ..errors import CacheError
from ..settings.definitions import DURABILITY, HANDLE_ONLY, OPTIONAL_SETTINGS, checked
from ..settings.policies import policy_named
from .opening.opener import appends
from .shard.invalidation import WRITE_COST
from .shard.reader import Reader
from .sqlite import statements as sql
from .upkeep.maintenance import Maintenance

OnChange = Callable[[str, Any], None]
_OF_THE_WRITER = ("durability", "sqlite_synchronous", "sqlite_cache_size")


class ShardSettings:
    """Change settings, also within a transaction, whose rollback takes them back."""

    def __init__(self, reader: Reader, maintenance: Maintenance) -> None:
        self._reader = reader
        self._maintenance = maintenance
        self._transactions = maintenance.transactions
        self._shard = maintenance.transactions.shard
        self._connection = self._shard.connection
        self._tried: list[tuple[str, Any]] = []  # stored in the open transaction, in that order

    def as_stored(self, name: str) -> Any:
        """Return a setting as it is stored now; one that no row holds, as this handle has it."""
        rows = self._reader.select(sql.SELECT_SETTING, (name,))
        if rows:
            return checked(name, rows[0][0])
        return None if name in OPTIONAL_SETTINGS else self._shard.settings.get(name)

    def change(self, name: str, value: Any, update: bool, timeout: float | None, on_change: OnChange) -> None:
        """Make a setting effective for this handle and, with `update`, store it for those that open later.

        `on_change` is called with name and value of each setting that a rollback takes back.
        """
        for attempt in self._maintenance.recovery.attempts():
            with attempt, self._transactions.locked(timeout) as locked:
                if locked:
                    self._transactions.invalidation.count_written(WRITE_COST)
                    self._maintenance.run_if_due()
                self._change(name, value, update, on_change)

    def _change(self, name: str, value: Any, update: bool, on_change: OnChange) -> None:
        connection, settings = self._connection, self._shard.settings
        before = settings.get(name)
        stored = update and name not in HANDLE_ONLY
        if connection.txn is not None:
            if connection.at_end is None:
                self._tried = []
                connection.at_end = partial(self._settle, {**settings}, on_change)
            self._tried += [(name, value)] if stored else []
        if stored:
            self._shard.generations.internal_tick()  # before the commit: whoever has looked before appends nothing
            connection.put_setting(name, value)
        self._apply(name, value)
        if name == "eviction_policy" and update and before != value:
            self._shard.generations.forget_uses()
        if connection.txn is None and name in _OF_THE_WRITER:
            connection.close()

    def _apply(self, name: str, value: Any) -> None:
        """Make a setting effective for this handle, but for those of the writing connection."""
        shard = self._shard
        shard.settings[name] = value
        shard.header[Header.VOLUME_DUE] = 0  # limits may have changed: the next write looks at the volume
        if name == "size_limit":
            shard.header[Header.RESERVATION] = 0  # what the old limit allowed may leave the others nothing
        elif name == "eviction_policy":
            shard.policy = policy_named(value)
        elif name == "durability":
            shard.settings["sqlite_synchronous"] = DURABILITY[value]
        shard.set_most()
        shard.appends = shard.ring is not None and appends(shard.settings)
        shard.appender = None  # how much may wait depends on the size limit; the next append makes another

    def _settle(self, before: dict[str, Any], on_change: OnChange) -> None:
        """Apply what an ended transaction changed to the writing connection, and take back what was rolled back.

        The write lock is held.
        """
        connection, settings = self._connection, self._shard.settings
        tried, self._tried, connection.at_end = self._tried, [], None
        present = {**settings}  # one of them may bring another with it
        with contextlib.suppress(CacheError):  # the database is damaged: the next one to use it is told
            for name in dict(tried):
                stored = connection.select(sql.SELECT_SETTING, (name,))
                kept = [value for other, value in tried if other == name and [(value,)] == stored]
                value = kept[-1] if kept else before.get(name)
                if value != present.get(name):
                    self._apply(name, value)
                    on_change(name, value)
        if any(before[name] != settings[name] for name in _OF_THE_WRITER):
            connection.close()

    def set_shards(self, shards: int) -> None:
        """Store how many shards the cache has if this one, being damaged, says another number."""
        identity = self._shard.identity
        if identity.get("shards") == shards:
            return
        identity["shards"] = shards
        with contextlib.suppress(CacheError), self._transactions.locked(0):  # else the next opening does it
            self._connection.put_setting("shards", shards)
