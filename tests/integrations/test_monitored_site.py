"""A site under gunicorn: its page for Prometheus is right, whichever of its workers answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from benchmarks.django_page import Connection
from benchmarks.peers.servers import served

from ..support.monitored_site import DIRECTORY
from ..support.project import ROOT
from .test_prometheus import number, parsed

WORKERS = 4
PATIENCE = 60.0  # seconds that gunicorn may take to listen


@pytest.fixture(params=[(), ("--preload",)], ids=["", "preloaded"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Serve the site; return its socket."""
    (folder := tmp_path / "counters").mkdir()
    path = tmp_path / "site" / "web"
    command = [sys.executable, "-m", "gunicorn", *request.param, "--workers", str(WORKERS), "--bind", f"unix:{path}"]
    command += ["--log-level", "warning", "--no-control-socket", "tests.support.monitored_site:application"]
    where = {DIRECTORY: str(tmp_path / "cache"), "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    with served("gunicorn", command, path, PATIENCE, **where):
        yield path


def ask(path: Path, pages: Sequence[str]) -> list[tuple[str, str]]:
    """Ask for pages over connections that are open at once, so several workers answer; return (pid, body) of each."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(Connection(path))) for _ in pages]
        for connection in connections:
            connection.connect()  # a worker that takes it waits for what is asked
        found = []
        for connection, page in zip(connections, pages, strict=True):
            connection.request("GET", page)
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200, body
            found.append((answer.headers["Pid"], body))
        return found


def test_the_page_is_right_whichever_worker_answers(site: Path) -> None:
    asked, workers = 0, set[str]()
    while len(workers) < 2:
        pages = [
            f"/{action}/{space}:{asked}" for action, space in (("set", "a"), ("get", "a"), ("get", "b"), ("get", "b"))
        ]
        answers = ask(site, pages)
        assert [body for _, body in answers] == ["True", "'value'", "None", "None"]
        workers |= {pid for pid, _ in answers}
        asked += 1
    answered = set[str]()
    while len(answered) < 2:
        for pid, body in ask(site, ["/metrics"] * WORKERS):
            found = parsed(body)
            assert number(found, "cache_puts_total", cache="cache", space="a") == asked
            assert number(found, "cache_gets_total", cache="cache", space="a", result="hit") == asked
            assert number(found, "cache_gets_total", cache="cache", space="b", result="miss") == 2 * asked
            assert number(found, "cache_gets_total") == 3 * asked
            assert number(found, "cache_entries") == asked
            assert number(found, "requests_total") == 4 * asked, "what the library's own mode counts is there, too"
            answered.add(pid)
