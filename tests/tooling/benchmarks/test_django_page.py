"""The Django page under gunicorn: a short run, and what a broken site or a wrong answer does to it."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import django_page, page
from benchmarks.django_page import Amounts, Load, Results, right
from benchmarks.peers.spec import BenchmarkError


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


def test_a_load_ends_with_its_requests_or_its_time(server: Path) -> None:
    load = Load(server, 2, 10, 60, lambda body, number: body == b"hello")
    assert load.run() > 0
    assert len(load.times) == 10
    assert min(load.times) > 0
    brief = Load(server, 1, 1_000_000, 1e-9, lambda body, number: True)
    brief.run()
    assert len(brief.times) == 1


def test_a_wrong_answer_and_none_are_errors(server: Path) -> None:
    with pytest.raises(BenchmarkError, match="hello"):
        Load(server, 1, 10, 60, right).run()
    with pytest.raises(BenchmarkError, match="FileNotFoundError"):
        Load(server.with_name("nowhere"), 1, 10, 60, right).run()


def test_a_page_is_right_with_all_its_fragments_and_the_visits_of_its_session() -> None:
    body = b"<section>" * 20 + b"visits of this session: 3, of the page: 9"
    assert right(body, 3)
    assert not right(body, 4)
    assert not right(body.replace(b"<section>", b"", 1), 3)


def test_short_run(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    written, filled = tmp_path / "found.json", tmp_path / "page.md"
    filled.write_text("{}\n{}\n".format(*page.marks(django_page.MARK)))
    few = ["--rounds", "1", "--requests", "12", "--clients", "2", "--workers", "2"]
    both = ["--backend", "diskcache_like", "--backend", "diskcache"]
    files = ["--directory", str(tmp_path), "--json", str(written), "--docs", str(filled)]
    assert django_page.main([*few, *both, *files]) == 0
    found = json.loads(written.read_text())["rounds"]
    assert {name: [one["requests"] for one in rounds] for name, rounds in found.items()} == {
        "diskcache_like": [12],
        "diskcache": [12],
    }
    assert "requests/s" in filled.read_text()


def test_a_site_that_cannot_start_is_an_error_with_its_last_word(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    broken = {"BACKEND": "no.such.Backend", "LOCATION": str(tmp_path)}
    with pytest.raises(BenchmarkError), django_page.site(broken, tmp_path / "site", 1) as started:
        Load(started.socket, 1, 1, 10, right).run()


def test_a_table_names_who_is_missing() -> None:
    one = {"requests": 10, "per_second": 123.4, "p50": 2e6, "p99": 9e6, "max": 1e7}
    made = django_page.table(Results({"diskcache_like": [one]}, {"redis": "no redis-server here"}), Amounts()).text()
    assert "diskcache_like         123  2.00 ms  9.00 ms" in made
    assert "Redis left out: no redis-server here" in made
