"""Stop a writer exactly between two of its statements, or hear of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from diskcache_like import Cache


class Watched:
    """A writing connection that calls `before` and `after` round every statement that changes an entry.

    Put in a store's place for its writer, it stops a writer exactly between two steps: `before` runs when the slot is
    odd and nothing is committed, `after` when the statement is done and the slot not yet even.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        before: Callable[[str], object],
        after: Callable[[str], object],
    ) -> None:
        self._connection = connection
        self._before = before
        self._after = after

    def _surrounded(self, run: Callable[..., Any], statement: str, arguments: tuple[Any, ...]) -> Any:
        self._before(statement)
        done = run(statement, *arguments)
        self._after(statement)
        return done

    def execute(self, statement: str, *arguments: Any) -> Any:
        return self._surrounded(self._connection.execute, statement, arguments)

    def executemany(self, statement: str, *arguments: Any) -> Any:
        return self._surrounded(self._connection.executemany, statement, arguments)

    def cursor(self) -> Any:
        return self  # a cursor of ours only ever executes; what `execute` returns is a real one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def nothing(_: str) -> None:
    """Do nothing before or after a statement."""


def watch(cache: Cache, before: Callable[[str], object] = nothing, after: Callable[[str], object] = nothing) -> None:
    """Have `before` and `after` called round every statement of the cache's writers in this process."""
    for store in cache._shards.stores:
        watched: Any = Watched(store.connection.open(), before, after)
        store.connection.raw = watched
        store.connection.cursor = None


def is_change(statement: str) -> bool:
    """Tell whether a statement changes entries, or commits what did."""
    return statement.split(None, 1)[0] in ("INSERT", "UPDATE", "DELETE")
