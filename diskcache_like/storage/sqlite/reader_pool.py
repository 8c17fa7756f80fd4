"""A bounded pool of reading connections."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import weakref
from collections import deque
from typing import Any

from ...errors import Timeout
from .connection import connect

MAX_READERS = 8
QUIESCE_SECONDS = 0.05  # that `quiesce` waits for a connection in use


class ReaderPool:
    """At most `MAX_READERS` reading connections, handed to one thread at a time, most recently used first."""

    def __init__(self, path: str, settings: dict[str, Any], timeout: float, first: sqlite3.Connection) -> None:
        self.path = path
        self._settings = settings
        self._timeout = timeout
        # append and pop of a deque are atomic: the uncontended path takes no lock
        self.free: deque[sqlite3.Cursor] = deque([first.cursor()])
        # Guards what is below. Reentrant, since a signal handler may read while its thread is in here; taken as a lock
        # and not as a condition, whose way in and out is Python that a signal handler may end half-way.
        self._guard = threading.RLock()
        self._room = threading.Condition(self._guard)
        # Those that live: one that a signal handler kept its reader from giving back dies with what was raised.
        self._made: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet([self.free[0]])
        self._making: list[None] = []  # one for each that is being opened; its append and pop are atomic
        self._waiting = 0
        self._closed = False
        self._quiescer = 0  # the thread that keeps the others away while it forks
        self._quiesced: list[sqlite3.Cursor] = []  # out of use meanwhile
        self.watched = False  # someone waits for a connection, or the pool is closed: call `settle` after a give

    def take(self) -> sqlite3.Cursor:
        """Return a cursor on a connection that nobody else uses until it is given back.

        The quick way, spelled out where it matters: ``free.pop()``, and ``take`` when that is empty.
        """
        try:
            return self.free.pop()
        except IndexError:
            return self._make_or_wait()

    def _make_or_wait(self) -> sqlite3.Cursor:
        making = False
        try:
            with self._guard:
                if self._quiesced:  # a signal handler reads while its thread forks: all others wait outside
                    return self._quiesced.pop()
                while len(self._made) + len(self._making) >= MAX_READERS:
                    if (free := self._wait_for_free()) is not None:
                        return free
                making = True  # before, since a signal handler may raise after it
                self._making.append(None)
            cursor = connect(self.path, self._settings, self._timeout, reader=True).cursor()
            self._made.add(cursor)
            return cursor
        finally:
            if making:
                self._making.pop()
                with self._guard:
                    self._room.notify()

    def _wait_for_free(self) -> sqlite3.Cursor | None:
        """Return a cursor that is free now, or None after a moment; the guard is held."""
        self._waiting += 1
        self.watched = True
        try:
            if self.free:
                return self.free.pop()
            # A reader holds its connection for one statement; the slice only guards against a lost wake-up
            # between the unlocked append in `give` and the count above.
            self._room.wait(0.01)
        except IndexError:
            pass
        finally:
            self._waiting -= 1
            self.watched = self._waiting > 0 or self._closed
        return None

    def give(self, cursor: sqlite3.Cursor) -> None:
        """Give a cursor back; its statement has run to the end, so no read transaction stays open."""
        self.free.append(cursor)
        if self.watched:
            self.settle()

    def settle(self) -> None:
        """Wake a thread that waits for a connection; in a closed pool, close what was given back."""
        if self._closed:
            self.close()
        with self._guard:
            self._room.notify()

    def discard(self, cursor: sqlite3.Cursor) -> None:
        """Close a connection that met an error instead of giving it back."""
        connection = cursor.connection
        cursor.close()  # an unfinished statement, held by a traceback, would keep the files open
        connection.close()
        self._forget(cursor)

    def _forget(self, cursor: sqlite3.Cursor) -> None:
        """Make room for another connection in the place of one that has left the pool."""
        with self._guard:
            self._made.discard(cursor)
            self._room.notify()

    def hand_over(self) -> sqlite3.Connection | None:
        """Return a connection that is free now, which leaves the pool for good; None if there is none."""
        try:
            cursor = self.free.pop()
        except IndexError:
            return None
        self._forget(cursor)
        return cursor.connection

    def drain(self) -> None:
        """Close the connections that are free now; others are opened in their place when they are needed."""
        with contextlib.suppress(IndexError):
            while True:
                self.discard(self.free.pop())

    def close(self) -> None:
        """Close the connections that are free now, and those in use when they are given back."""
        with self._guard:
            self._closed = True
            self.watched = True
        self.drain()

    def quiesce(self) -> None:
        """Take every connection out of use until `resume`, while this process forks; raise Timeout if one is in use."""
        me, inside = threading.get_ident(), self._is_mine()  # inside: it is a signal handler that forks
        try:
            if not self._guard.acquire(timeout=QUIESCE_SECONDS):
                raise Timeout(f"{self.path!r} is being opened by another thread")
            self._quiescer = me
            self._take_all()
        except BaseException:
            if self._quiescer == me:
                self.resume()
            elif not inside and self._is_mine():
                self._guard.release()
            raise

    def _take_all(self) -> None:
        self.watched = True  # who gives a connection back comes to `settle`, and there waits for the end of the fork
        deadline = time.monotonic() + QUIESCE_SECONDS
        while len(self._quiesced) < len(self._made) + len(self._making):
            if self.free:
                self._quiesced.append(self.free.pop())
            elif time.monotonic() > deadline:
                raise Timeout(f"{self.path!r} is being read by another thread")
            else:
                time.sleep(50e-6)  # a reader has its connection for one statement only

    def _is_mine(self) -> bool:
        owned: bool = self._guard._is_owned()  # type: ignore[attr-defined]  # of CPython's, for its Condition
        return owned

    def resume(self) -> None:
        """Put the connections that `quiesce` took back into use; do nothing if this thread took none."""
        if self._quiescer != threading.get_ident():
            return
        # No look whether there is one: a signal handler that came after it might take the last.
        with contextlib.suppress(IndexError):
            while True:
                self.free.append(self._quiesced.pop())
        self.watched = self._waiting > 0 or self._closed
        self._room.notify_all()
        self._quiescer = 0
        self._guard.release()

    def inherited(self) -> tuple[list[sqlite3.Connection], bool]:
        """Return, in a forked child, the connections that no thread was using, and whether these are all."""
        connections = [cursor.connection for cursor in (*self._quiesced, *self.free)]
        return connections, len(connections) == len(self._made) + len(self._making)
