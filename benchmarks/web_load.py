"""A load generator for one page of the loopback: clients that each keep a connection and a session of their own.

It is bounded twice, by a number of requests and by a time, and checks each answer.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import clock
from benchmarks.subjects import BenchmarkError

PATIENCE = 60.0  # seconds for one answer
GOOD = 200


@dataclass
class Load:
    """What the clients saw: nanoseconds of each request, and how long all of them took together."""

    times: list[int] = field(default_factory=list)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return requests per second."""
        return len(self.times) / self.seconds if self.seconds else 0.0


class Connection(http.client.HTTPConnection):
    """A connection over a Unix socket, which no other machine can reach."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket in place of a port."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def load(path: Path, clients: int, requests: int, seconds: float, right: Callable[[bytes, int], bool]) -> Load:
    """Ask for the page by `clients` at once, in all at most `requests` times and for `seconds`.

    `right` tells whether a body is the right answer to a client's request of that number, which begins at 1. Raise
    BenchmarkError if any is wrong, refused or late.
    """
    found, each = Load(), -(-requests // clients)
    barrier = threading.Barrier(clients + 1)
    crowd = [threading.Thread(target=_visit, args=(path, barrier, each, seconds, right, found)) for _ in range(clients)]
    for one in crowd:
        one.start()
    barrier.wait()
    began = clock()
    for one in crowd:
        one.join()
    found.seconds = (clock() - began) / 1e9
    if found.failures:
        raise BenchmarkError(f"{len(found.failures)} clients failed; the first: {found.failures[0]}")
    return found


def _visit(
    path: Path,
    barrier: threading.Barrier,
    requests: int,
    seconds: float,
    right: Callable[[bytes, int], bool],
    found: Load,
) -> None:
    """Be one client."""
    connection, times = Connection(path), []
    barrier.wait()
    deadline, cookie = clock() + int(seconds * 1e9), ""
    try:
        for number in range(1, requests + 1):
            start = clock()
            connection.request("GET", "/", headers={"Cookie": cookie} if cookie else {})
            answer = connection.getresponse()
            body = answer.read()
            stop = clock()
            if answer.status != GOOD or not right(body, number):
                raise BenchmarkError(f"status {answer.status}: {body[:200]!r}")
            cookie = (answer.getheader("Set-Cookie") or cookie).partition(";")[0]
            times.append(stop - start)
            if stop >= deadline:
                break
    except (OSError, http.client.HTTPException, BenchmarkError) as error:
        found.failures.append(f"{type(error).__name__}: {error}")
    finally:
        connection.close()
        found.times += times  # a list grows by another at once, whatever the other threads do
