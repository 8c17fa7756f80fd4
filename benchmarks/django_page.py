"""Serve one Django page from several cache backends and load it: `python -m benchmarks.django_page`.

The page has 20 cached fragments, a session and a counter. Gunicorn serves it with four workers on a Unix socket, once
for each backend, and the sites are loaded in turn, round after round.

Exit status: 0 good; 2 a package is missing or the command line is wrong; 3 a site failed or answered wrongly; 130
interrupted.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import importlib.util
import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import django_site, page
from benchmarks.command import (
    GOOD,
    add_amounts,
    amounts_of,
    follows,
    parser,
    print_facts,
    progress,
    run_as_command,
    write_json,
)
from benchmarks.measure import alternate, amount, clock, measure_costs, percentile
from benchmarks.peers.adapters import client
from benchmarks.peers.catalogue import SUBJECTS
from benchmarks.peers.servers import Running, running, served
from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.report.machine import machine_facts
from benchmarks.report.text import Table, duration
from benchmarks.workspace import Workspace, workspace

ROOT = Path(__file__).parent.parent
MARK = "django"
PATIENCE = 60.0  # seconds for an answer, and for gunicorn to listen, which first imports Django
WARM_UP = 20  # requests of each client before the first round
TITLE = "A Django page with 20 cached fragments, a session and a counter"
BACKEND = "django.core.cache.backends"


@dataclass(frozen=True)
class Amounts:
    """How much is measured; a round of a site ends after `requests` or `seconds`, whichever comes first."""

    rounds: int = amount(5, "rounds of each site")
    seconds: float = amount(8.0, "most seconds of a round of a site")
    requests: int = amount(100_000, "most requests in a round of a site")
    clients: int = amount(8, "clients at once")
    workers: int = amount(4, "worker processes of each site")


def _memcached(path: str) -> dict[str, Any]:
    """Use pylibmc, which is the faster client, or else pymemcache."""
    if importlib.util.find_spec("pylibmc"):
        return {"BACKEND": f"{BACKEND}.memcached.PyLibMCCache", "LOCATION": path, "OPTIONS": {"binary": True}}
    client("pymemcache")
    return {"BACKEND": f"{BACKEND}.memcached.PyMemcacheCache", "LOCATION": f"unix:{path}"}


@dataclass(frozen=True)
class Backend:
    """A cache backend of Django: its entry in CACHES for a directory or a server's socket, and what it needs."""

    subject: str
    cache: Callable[[str], dict[str, Any]]
    needs: tuple[str, ...] = ()
    server: str = ""


BACKENDS = {
    "diskcache_like": Backend("cache", lambda path: {"BACKEND": "diskcache_like.DjangoCache", "LOCATION": path}),
    "memcached": Backend("memcached", _memcached, server="memcached"),
    "redis": Backend(
        "redis",
        lambda path: {"BACKEND": f"{BACKEND}.redis.RedisCache", "LOCATION": f"unix://{path}"},
        ("redis", "hiredis"),
        "redis",
    ),
    # With its 10 ms, DiskCache drops writes without a word when the machine is busy, and the page is wrong.
    "diskcache": Backend(
        "diskcache",
        lambda path: {"BACKEND": "diskcache.DjangoCache", "LOCATION": path, "DATABASE_TIMEOUT": 60},
        ("diskcache",),
    ),
}


@dataclass
class Results:
    """What was measured: for each backend the numbers of each round, and why a backend was left out."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    absences: dict[str, str] = field(default_factory=dict)


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
                if answer.status != HTTPStatus.OK or not self.right(body, number):
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


def right(body: bytes, number: int) -> bool:
    """Tell whether a client's page is: all fragments are there, and its session has counted its visits."""
    whole = body.count(b"<section>") == django_site.FRAGMENTS
    return whole and f"visits of this session: {number},".encode() in body


def site(cache: Mapping[str, Any], directory: Path, workers: int) -> AbstractContextManager[Running]:
    """Serve the page for a `with` block; the first request then waits for a worker."""
    path = directory / "web"
    command = [sys.executable, "-m", "gunicorn", "--workers", str(workers), "--bind", f"unix:{path}"]
    command += ["--log-level", "warning", "--no-control-socket", "benchmarks.django_site:application"]
    here = {"PYTHONPATH": str(ROOT), django_site.ENVIRONMENT: json.dumps(cache)}
    return served("gunicorn", command, path, PATIENCE, **here)


def measure(
    amounts: Amounts, chosen: Sequence[str], space: Workspace, note: Callable[[str, float], None] = lambda *_: None
) -> Results:
    """Serve the page from every backend that can be had, and load the sites in turn."""
    for module in ("gunicorn", "django"):
        client(module)
    results = Results()
    with ExitStack() as stack:
        sites: dict[str, Path] = {}
        for name in chosen:
            try:
                sites[name] = _start(BACKENDS[name], stack, amounts, space)
            except MissingSubject as missing:
                results.absences[name] = str(missing)
        for path in sites.values():
            Load(path, amounts.clients, WARM_UP * amounts.clients, amounts.seconds, right).run()
        results.rounds = {name: [] for name in sites}
        for turn, (number, name) in enumerate(alternate(amounts.rounds, list(sites))):
            note(f"{name}, round {number + 1} of {amounts.rounds}", turn / (amounts.rounds * len(sites)))
            load = Load(sites[name], amounts.clients, amounts.requests, amounts.seconds, right)
            rate, ordered = load.run(), sorted(load.times)
            times = {"p50": percentile(ordered, 500), "p99": percentile(ordered, 990), "max": ordered[-1]}
            results.rounds[name].append({"requests": len(ordered), "per_second": rate, **times})
    return results


def _start(backend: Backend, stack: ExitStack, amounts: Amounts, space: Workspace) -> Path:
    for module in backend.needs:
        client(module)
    location = space.fresh(backend.subject)
    if backend.server:
        location = stack.enter_context(running(backend.server, location)).socket
    return stack.enter_context(site(backend.cache(str(location)), space.fresh("site"), amounts.workers)).socket


def table(results: Results, amounts: Amounts) -> Table:
    """Return one row for each backend."""
    made = Table(TITLE, ("cache", "requests/s", "p50", "p99"))
    for name, rounds in results.rounds.items():
        rate, p50, p99 = (median(one[part] for one in rounds) for part in ("per_second", "p50", "p99"))
        made.rows.append((SUBJECTS[BACKENDS[name].subject].label, f"{rate:,.0f}", duration(p50), duration(p99)))
    made.notes.append(
        f"Gunicorn with {amounts.workers} workers, {amounts.clients} clients, medians of {amounts.rounds} interleaved "
        "rounds; servers and sites on Unix sockets of one machine, which also runs the clients."
    )
    left_out = results.absences.items()
    made.notes += [f"{SUBJECTS[BACKENDS[name].subject].title} left out: {why}" for name, why in left_out]
    return made


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.django_page", __doc__, "directory", "json", "docs")
    told = "only this backend (may be repeated)"
    made.add_argument("--backend", choices=list(BACKENDS), action="append", help=told)
    add_amounts(made, Amounts())
    return made


def run(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    amounts = amounts_of(asked, Amounts())
    chosen = [name for name in BACKENDS if name in (asked.backend or BACKENDS)]
    with workspace(asked.directory) as space, progress() as note:
        facts = machine_facts(space.root.parent, measure_costs())
        results = measure(amounts, chosen, space, note)
    facts |= {name: importlib.metadata.version(name) for name in ("django", "gunicorn")}
    print_facts(facts)
    print(table(results, amounts).text())
    if asked.json:
        write_json(asked.json, {"machine": facts, "amounts": asdict(amounts), **asdict(results)})
    if asked.docs:
        page.put(asked.docs, MARK, table(results, amounts).markdown().partition("\n\n")[2])
    return GOOD


main = follows(options, run, MissingSubject, MARK)


if __name__ == "__main__":
    run_as_command(main)
