"""The Django page under gunicorn: a short run, and what a broken site or a wrong answer does to it."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import django_page
from benchmarks.django_page import Amounts, Results, right
from benchmarks.subjects import BenchmarkError
from benchmarks.web_load import load
from benchmarks.workspace import Workspace

SHORT = Amounts(rounds=1, seconds=30, requests=12, clients=2, workers=2)


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers every request alike."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "a client"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """Serve one word on a Unix socket."""
    path = tmp_path / "socket"
    with socketserver.UnixStreamServer(str(path), Answer) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield path
        made.shutdown()
        thread.join()


def test_a_load_ends_with_its_requests(server: Path) -> None:
    found = load(server, 2, 10, 60, lambda body, number: body == b"hello")
    assert len(found.times) == 10
    assert found.rate > 0
    assert min(found.times) > 0


def test_a_load_ends_with_its_time(server: Path) -> None:
    found = load(server, 1, 1_000_000, 1e-9, lambda body, number: True)
    assert len(found.times) == 1


def test_a_wrong_answer_is_an_error(server: Path) -> None:
    with pytest.raises(BenchmarkError, match="hello"):
        load(server, 1, 10, 60, right)


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="FileNotFoundError"):
        load(tmp_path / "nowhere", 1, 10, 60, right)


def test_a_page_is_right_with_all_its_fragments_and_the_visits_of_its_session() -> None:
    body = b"<section>" * 20 + b"visits of this session: 3, of the page: 9"
    assert right(body, 3)
    assert not right(body, 4)
    assert not right(body.replace(b"<section>", b"", 1), 3)


def test_a_short_run_serves_the_page_from_both_caches(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    results = django_page.measure(SHORT, ["diskcache_like", "diskcache"], Workspace(tmp_path))
    assert {name: [one["requests"] for one in rounds] for name, rounds in results.rounds.items()} == {
        "diskcache_like": [12],
        "diskcache": [12],
    }
    assert "requests/s" in django_page.table(results, SHORT).markdown()


def test_a_site_that_cannot_start_is_an_error_with_its_last_word(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    broken = {"BACKEND": "no.such.Backend", "LOCATION": str(tmp_path)}
    with django_page.site(broken, tmp_path / "site", 1) as path, pytest.raises(BenchmarkError):
        load(path, 1, 1, 10, right)


def test_a_table_names_who_is_missing() -> None:
    one = {"requests": 10, "per_second": 123.4, "p50": 2e6, "p99": 9e6, "max": 1e7}
    made = django_page.table(Results({"diskcache_like": [one]}, {"redis": "no redis-server here"}), SHORT).text()
    assert "diskcache_like         123  2.00 ms  9.00 ms" in made
    assert "Redis left out: no redis-server here" in made
    json.dumps(one)
