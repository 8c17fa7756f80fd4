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
from benchmarks.peers.spec import BenchmarkError

PATIENCE = 60.0  # seconds for one answer
GOOD = 200


class Connection(http.client.HTTPConnection):
    """A connection over a Unix socket, which no other machine can reach."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass
class Load:
    """Clients that ask for a page at the same time, in all at most `requests` times and for `seconds`.

    `right` tells whether a body is the right answer to a client's request of that number, which begins at 1. `times`
    are nanoseconds of each request.
    """

    path: Path
    clients: int
    requests: int
    seconds: float
    right: Callable[[bytes, int], bool]
    times: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self) -> float:
        """Ask, and return the requests per second; raise BenchmarkError if an answer is wrong, refused or late."""
        barrier = threading.Barrier(self.clients + 1)
        crowd = [threading.Thread(target=self._visit, args=(barrier,)) for _ in range(self.clients)]
        for one in crowd:
            one.start()
        barrier.wait()
        began = clock()
        for one in crowd:
            one.join()
        elapsed = (clock() - began) / 1e9
        if self.failures:
            raise BenchmarkError(f"{len(self.failures)} clients failed; the first: {self.failures[0]}")
        return len(self.times) / elapsed

    def _visit(self, barrier: threading.Barrier) -> None:
        """Be one client."""
        connection, times = Connection(self.path), []
        barrier.wait()
        deadline, cookie = clock() + int(self.seconds * 1e9), ""
        try:
            for number in range(1, -(-self.requests // self.clients) + 1):
                start = clock()
                connection.request("GET", "/", headers={"Cookie": cookie} if cookie else {})
                answer = connection.getresponse()
                body = answer.read()
                stop = clock()
                if answer.status != GOOD or not self.right(body, number):
                    raise BenchmarkError(f"status {answer.status}: {body[:200]!r}")
                cookie = (answer.getheader("Set-Cookie") or cookie).partition(";")[0]
                times.append(stop - start)
                if stop >= deadline:
                    break
        except (OSError, http.client.HTTPException, BenchmarkError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()
            self.times += times  # a list grows by another at once, whatever the other threads do
