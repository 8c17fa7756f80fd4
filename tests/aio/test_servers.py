"""The web applications of the guide, under the servers that they are for, with load."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from ..support.project import ROOT
from ..support.workers import PATIENCE

CLIENTS, REQUESTS = 8, 50

UVICORN = "import uvicorn; uvicorn.run(app, uds=sys.argv[1], log_level='warning')"


class Served(NamedTuple):
    """An application of the guide: the words that its blocks contain, what serves it, and what a page says."""

    words: tuple[str, ...]
    serve: str
    page: bytes


APPLICATIONS = {
    "starlette": Served(("starlette",), UVICORN, b"made once"),
    "fastapi": Served(("starlette", "fastapi"), UVICORN, b'{"text":"made once"}'),
    "aiohttp": Served(("aiohttp",), "web.run_app(app, path=sys.argv[1], print=None)", b"made once"),
}


def program(served: Served) -> str:
    """Return the program that the guide's blocks make."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "asyncio.md").read_text(), re.DOTALL)
    found = [block for word in served.words for block in blocks if word in block]
    assert len(found) == len(served.words)
    return "\n".join(["import sys", "from diskcache_like import AsyncCache", *found, served.serve, ""])


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self._path))


def listens(path: Path) -> bool:
    """Tell whether a server takes connections."""
    with socket.socket(socket.AF_UNIX) as found:
        return found.connect_ex(str(path)) == 0


def ask(path: Path, pages: list[str]) -> list[tuple[int, bytes]]:
    """Ask a server for pages, one after another on one connection."""
    connection = _Connection(path)
    found = []
    for page in pages:
        connection.request("GET", page)
        response = connection.getresponse()
        found.append((response.status, response.read()))
    connection.close()
    return found


@pytest.mark.parametrize("served", APPLICATIONS.values(), ids=list(APPLICATIONS))
def test_the_guides_application_serves_under_load(served: Served, tmp_path: Path) -> None:
    script, path = tmp_path / "program.py", tmp_path / "socket"
    script.write_text(program(served))
    server = subprocess.Popen([sys.executable, str(script), str(path)], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        while not listens(path):
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.01)
                raise AssertionError(server.communicate())
        pages = [f"/{number % 10}" for number in range(REQUESTS)]
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = [answer for each in clients.map(lambda _: ask(path, pages), range(CLIENTS)) for answer in each]
        assert answers == [(200, served.page)] * CLIENTS * REQUESTS
        server.send_signal(signal.SIGINT)
        _, told = server.communicate(timeout=PATIENCE)
        assert b"diskcache_like" not in told, told.decode()
    finally:
        server.kill()
        server.communicate()
    assert (tmp_path / "site").is_dir()
