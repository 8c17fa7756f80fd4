"""Servers of caches, as `diskcache-like serve` starts them, for one test each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

PATIENCE = 60  # seconds


@dataclass
class CacheServer:
    """A server that listens."""

    process: subprocess.Popen[str]
    said: str  # its first line
    directory: Path

    @property
    def path(self) -> str:
        """Return the Unix socket that it listens at by default."""
        return f"{self.directory}.sock"

    def port(self, name: str) -> int:
        """Return the TCP port of `resp` or `http`."""
        found = re.search(rf"{name} at \S*:(\d+)", self.said)
        assert found is not None, self.said
        return int(found[1])

    def client(self, **options: object) -> redis.Redis:
        """Return a client, which has a connection of its own."""
        where = {"unix_socket_path": self.path} if "port" not in options else {}
        return redis.Redis(**where, single_connection_client=True, **options)  # type: ignore[arg-type]

    def workers(self) -> set[int]:
        """Return the processes that serve."""
        told = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(pid) for pid in told.split()}

    def next_line(self) -> str:
        """Wait for the next line that the server says."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def stop(self) -> int:
        """Stop it as systemd does, and return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


def serve_command(directory: Path, *arguments: str) -> list[str]:
    """Return the command that serves a directory."""
    return [sys.executable, "-m", "diskcache_like", "serve", str(directory), *arguments]


def started(directory: Path, *arguments: str, **environment: str) -> CacheServer:
    """Start a server and return it when it listens; raise AssertionError with what it said if it does not."""
    process = subprocess.Popen(
        serve_command(directory, *arguments),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    if not said.startswith("serving"):
        _, rest = process.communicate(timeout=PATIENCE)
        raise AssertionError(said + rest)
    return CacheServer(process, said, directory)


@contextmanager
def serving(directory: Path, *arguments: str, **environment: str) -> Iterator[CacheServer]:
    """Serve a directory during a `with` block."""
    server = started(directory, *arguments, **environment)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        _kill_group(server.process.pid)
        server.process.communicate()


def _kill_group(leader: int) -> None:
    """Kill workers that a killed server has left."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
