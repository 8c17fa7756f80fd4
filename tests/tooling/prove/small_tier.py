"""The protocol of the tier for one process, without a disk: it keeps the bound, and each part of it can be left out.

The rig is tested with it: it must hold under all faults, and without any of its parts be found out.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlparse

from prove.remote.clients import Place, Product, Tier
from prove.remote.history import SECOND
from prove.remote.machines import FLAWS
from prove.remote.stand_in import StandIn, no_listener, outcome

LEFT_OUT = ""  # the flaw that a control has made, in each of its processes
PATIENCE = 0.5  # seconds for an answer of the server's, after which it is asked on another connection
Copy = tuple[Any, int, int]  # the value, and the epoch and the word as they were before the request was sent


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Incomplete(Exception):
    """The rest of a message is still to come."""


class Messages:
    """What a server sends by RESP3, as far as it is needed."""

    def __init__(self) -> None:
        self._bytes = b""

    def feed(self, piece: bytes) -> Iterator[Any]:
        self._bytes += piece
        with suppress(Incomplete):
            while True:
                found, self._bytes = self._read(self._bytes)
                yield found

    def _read(self, text: bytes) -> tuple[Any, bytes]:
        line, end, rest = text.partition(b"\r\n")
        if not end:
            raise Incomplete
        kind, told = line[:1], line[1:]
        if kind == b"$":
            if len(rest) < int(told) + 2:
                raise Incomplete
            return rest[: int(told)], rest[int(told) + 2 :]
        if kind in b"*>%":
            items = []
            for _ in range(int(told) * (2 if kind == b"%" else 1)):
                item, rest = self._read(rest)
                items.append(item)
            return items, rest
        return (None if kind == b"_" else line), rest


class SmallTier(StandIn):
    """Values on the server, and copies that count while the server can have told of everything newer."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.url, place.settings.timeout, 0.0)
        self._bound = int(place.settings.max_staleness * SECOND)
        self._epoch, self._words, self._lease = 0, Counter[str](), 0
        self._mine: dict[str, Copy] = {}
        self._address = urlparse(place.url)
        self._ends, self._ending = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the connections."""
        self._ending.close()
        self._thread.join()
        self._ends.close()
        super().close()

    # -- what the application asks ----------------------------------------------------------------------------------

    def get(self, key: str) -> Any:
        if (copy := self._mine.get(key)) is not None and self._counts(key, copy):
            return copy[0]
        before = self._note(key)
        value = super().get(key)
        self._mine[key] = (value, *(self._note(key) if LEFT_OUT == "word-noted-late" else before))
        return value

    def set(self, key: str, value: Any) -> bool:
        self._mine.pop(key, None)
        before = self._note(key)
        done = super().set(key, value)
        self._mine[key] = (value, *before)
        return done

    def add(self, key: str, value: Any) -> bool:
        self._mine.pop(key, None)
        return super().add(key, value)

    def incr(self, key: str, delta: int, default: int) -> int:
        self._mine.pop(key, None)
        return super().incr(key, delta, default)

    def delete(self, key: str) -> bool:
        self._mine.pop(key, None)
        return super().delete(key)

    def _note(self, key: str) -> tuple[int, int]:
        return self._epoch, self._words[key]

    def _counts(self, key: str, copy: Copy) -> bool:
        is_leased = LEFT_OUT == "no-lease" or 0 <= now() - self._lease <= self._bound
        return is_leased and copy[1:] == self._note(key)

    # -- what the server tells --------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._is_ending(0.01):
            with suppress(OSError), self._connected() as connection:
                self._hear(connection)

    def _is_ending(self, seconds: float) -> bool:
        return bool(select.select([self._ends], [], [], seconds)[0])

    def _connected(self) -> socket.socket:
        assert self._address.port is not None
        connection = socket.create_connection((self._address.hostname, self._address.port), PATIENCE)
        connection.sendall(b"HELLO 3\r\nCLIENT TRACKING ON BCAST\r\n")
        return connection

    def _hear(self, connection: socket.socket) -> None:
        """Apply what comes, and ask at times whether the server is still the one that takes writes."""
        messages, opening, sent, due = Messages(), 2, now(), 0
        while True:
            ready = select.select([connection, self._ends], [], [], self._bound / SECOND / 3)[0]
            if self._ends in ready:
                return
            if connection in ready:
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                for message in messages.feed(piece):
                    if isinstance(message, list) and message[0] == b"invalidate":
                        self._forget(message[1])
                    elif opening:
                        opening -= 1
                        self._epoch += not opening and LEFT_OUT != "old-epoch"
                    elif message in (b":0", b"+PONG"):
                        self._lease, due = now() if LEFT_OUT == "lease-stamped-late" else sent, sent + self._bound // 3
                        sent = 0
                    else:
                        return
            if sent and now() - sent > PATIENCE * SECOND:
                return
            if not opening and (not sent or not due) and now() >= due:
                sent, due = now(), due or 1
                connection.sendall(b"PING\r\n" if LEFT_OUT == "probe-by-ping" else b"DEL nothing\r\n")

    def _forget(self, keys: list[bytes] | None) -> None:
        if LEFT_OUT == "no-invalidations":
            return
        if keys is None:
            self._epoch += 1
        for key in keys or ():
            self._words[key.decode()] += 1


@contextmanager
def opened(place: Place) -> Iterator[Tier]:
    made = SmallTier(place)
    try:
        yield made
    finally:
        made.close()


def leave_out(what: str) -> None:
    """Leave out a part of the protocol in this process."""
    global LEFT_OUT
    LEFT_OUT = what


SMALL = Product(opened, outcome, no_listener)
SPOILS = {name: partial(leave_out, name) for name in FLAWS}
