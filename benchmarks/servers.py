"""Start Memcached and Redis for one run, on Unix sockets in the run's own directory, and stop them afterwards.

No port is opened, nothing is written to disk, and a server that is already running on this machine is not touched.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.subjects import BenchmarkError, MissingSubject
from benchmarks.workspace import signals_held

PATIENCE = 10.0  # seconds for a server to answer, and to end
POLL = 0.01
MEGABYTES = "512"


@dataclass(frozen=True)
class Server:
    """How a server program is started on a socket."""

    program: str
    package: str
    arguments: Callable[[Path], list[str]]


SERVERS = {
    "memcached": Server(
        "memcached", "memcached", lambda path: ["-s", str(path), "-m", MEGABYTES, "-t", "2", "-u", getpass.getuser()]
    ),
    "redis": Server(
        "redis-server",
        "redis-server",
        lambda path: ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"],
    ),
}


@contextmanager
def running(name: str, directory: Path) -> Iterator[Path]:
    """Run a server for a `with` block and give the path of its socket."""
    server = SERVERS[name]
    program = shutil.which(server.program)
    if program is None:
        raise MissingSubject(f"{server.program} is not installed; install it with: apt-get install {server.package}")
    directory.mkdir(mode=0o700)
    path = directory / "socket"
    with signals_held():  # Ctrl-C is for the benchmark, which then ends the server
        process = subprocess.Popen(
            [program, *server.arguments(path)], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        _wait_for(process, path, server.program)
        yield path
    finally:
        with signals_held():
            _end(process)


def _wait_for(process: subprocess.Popen[bytes], path: Path, program: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchmarkError(f"{program} ended at once with status {process.returncode}")
        with socket.socket(socket.AF_UNIX) as probe:
            if path.exists() and probe.connect_ex(str(path)) == 0:
                return
        time.sleep(POLL)
    raise BenchmarkError(f"{program} did not answer on {path} within {PATIENCE:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
