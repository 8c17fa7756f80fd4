"""Start Memcached and Redis for one run, on Unix sockets in the run's own directory, and stop them afterwards.

No port is opened, nothing is written to disk, and a server that is already running on this machine is not touched.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.usage import Usage, usage_of
from benchmarks.workspace import signals_held

PATIENCE = 10.0  # seconds for a server to answer
POLL = 0.01
MEGABYTES = 512
LONGEST_SOCKET = 107  # bytes of a Unix socket's path


@dataclass(frozen=True)
class Server:
    """How a server program is started on a socket, as large as it likes or with a limit in megabytes."""

    program: str
    package: str
    arguments: Callable[[str, int | None], list[str]]


def _memcached(path: str, megabytes: int | None) -> list[str]:
    limit = str(megabytes or MEGABYTES)  # it has no "unlimited", and by default 64
    return ["-s", path, "-m", limit, "-I", "8m", "-t", "2", "-u", getpass.getuser()]


def _redis(path: str, megabytes: int | None) -> list[str]:
    unsaved = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    limit = [] if megabytes is None else ["--maxmemory", f"{megabytes}mb", "--maxmemory-policy", "allkeys-lru"]
    return unsaved + limit


SERVERS = {
    "memcached": Server("memcached", "memcached", _memcached),
    "redis": Server("redis-server", "redis-server", _redis),
}


@dataclass(frozen=True)
class Running:
    """A server that was started."""

    program: str
    socket: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def ending(self) -> str:
        """Say how the server ended, if it has, and its last word."""
        status = self.process.poll()
        if status is None:
            return ""
        how = f"{self.program} ended with status {status}"
        with suppress(ValueError):
            return f"{how} ({signal.Signals(-status).name})"
        *_, last = ["nothing was said", *self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()]
        return f"{how} ({last})"

    def usage(self) -> Usage:
        """Return what the server has used so far."""
        if self.ending:
            raise BenchmarkError(self.ending)
        return usage_of(self.process.pid)


def version(name: str) -> str:
    """Return the version of a server's program, or nothing if it is not there."""
    program = shutil.which(SERVERS[name].program)
    if program is None:
        return ""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+(\.\d+)+", told)
    return found[0] if found else ""


@contextmanager
def running(name: str, directory: Path, megabytes: int | None = None) -> Iterator[Running]:
    """Run a server for a `with` block; one that ends before the block does is told of, not an error."""
    server = SERVERS[name]
    program = shutil.which(server.program)
    if program is None:
        raise MissingSubject(f"no {server.program} server here; install it with: apt-get install {server.package}")
    path = directory / "socket"
    command = [program, *server.arguments(str(path), megabytes)]
    with served(server.program, command, path) as started:
        yield started
        if started.ending:
            print(f"benchmarks: {started.ending}", file=sys.stderr)


@contextmanager
def served(
    program: str, command: Sequence[str], path: Path, patience: float = PATIENCE, **environment: str
) -> Iterator[Running]:
    """Run a command in a new directory until it listens on a socket there; nothing of it outlives the block."""
    directory = path.parent
    if len(bytes(path)) > LONGEST_SOCKET:
        raise BenchmarkError(f"{path} is too long for a Unix socket; choose a directory with a shorter path")
    directory.mkdir(mode=0o700)
    log = directory / "log"
    with log.open("wb") as output, signals_held():  # Ctrl-C is for the benchmark, which then ends the server
        process = subprocess.Popen(
            [*dying_with_us(), *command],
            cwd=directory,
            env={**os.environ, **environment},
            start_new_session=True,  # so that workers of the server can be ended with it
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    started = Running(program, path, process, log)
    try:
        _wait_for(started, patience)
        yield started
    finally:
        with signals_held(), suppress(ProcessLookupError):
            # Not SIGTERM, which it inherited as held off. It has nothing to save.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def dying_with_us() -> list[str]:
    """Return what to put before a command so that it ends with this process, even if that is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _wait_for(started: Running, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if told := started.ending:
            raise BenchmarkError(f"{told} at once")
        with socket.socket(socket.AF_UNIX) as probe:
            if started.socket.exists() and probe.connect_ex(str(started.socket)) == 0:
                return
        time.sleep(POLL)
    raise BenchmarkError(f"{started.program} did not answer on {started.socket} within {patience:.0f} s")
