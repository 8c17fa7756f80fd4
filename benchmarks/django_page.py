"""Serve one Django page from several cache backends and load it: `python -m benchmarks.django_page`.

The page has 20 cached fragments, a session and a counter. Gunicorn serves it with four workers on a Unix socket, once
for each backend, and the sites are loaded in turn, round after round.

Exit status: 0 good; 2 a package is missing or the command line is wrong; 3 a site failed or answered wrongly; 130
interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import django_site, page
from benchmarks.adapters import client
from benchmarks.catalogue import SUBJECTS
from benchmarks.command import GOOD, explained, positive, progress, refuse_lost, run_as_command, seconds
from benchmarks.intervals import Spread
from benchmarks.measure import alternate, measure_costs, percentile
from benchmarks.report import Table, duration, machine_facts
from benchmarks.servers import POLL, dying_with_us, running
from benchmarks.subjects import BenchmarkError, MissingSubject
from benchmarks.web_load import Load, load
from benchmarks.workspace import Workspace, signals_held, workspace

ROOT = Path(__file__).parent.parent
MARK = "django"
PATIENCE = 60.0  # seconds for gunicorn to listen, which first imports Django
WARM_UP = 20  # requests of each client before the first round
TITLE = "A Django page with 20 cached fragments, a session and a counter"


@dataclass(frozen=True)
class Amounts:
    """How much is measured; a round of a site ends after `requests` or `seconds`, whichever comes first."""

    rounds: int = 5
    seconds: float = 8.0
    requests: int = 100_000
    clients: int = 8
    workers: int = 4


@dataclass(frozen=True)
class Backend:
    """A cache backend of Django: its entry in CACHES for a directory or a server's socket, and what it needs."""

    subject: str
    cache: Callable[[str], dict[str, Any]]
    needs: tuple[str, ...] = ()
    server: str = ""


def _memcached(path: str) -> dict[str, Any]:
    """Use pylibmc, which is the faster client, or else pymemcache."""
    backends = "django.core.cache.backends.memcached"
    if importlib.util.find_spec("pylibmc"):
        return {"BACKEND": f"{backends}.PyLibMCCache", "LOCATION": path, "OPTIONS": {"binary": True}}
    client("pymemcache")
    return {"BACKEND": f"{backends}.PyMemcacheCache", "LOCATION": f"unix:{path}"}


def _redis(path: str) -> dict[str, Any]:
    return {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": f"unix://{path}"}


def _directory(backend: str, **options: Any) -> Callable[[str], dict[str, Any]]:
    return lambda path: {"BACKEND": backend, "LOCATION": path, **options}


BACKENDS = {
    "diskcache_like": Backend("cache", _directory("diskcache_like.DjangoCache")),
    "memcached": Backend("memcached", _memcached, server="memcached"),
    "redis": Backend("redis", _redis, ("redis", "hiredis"), "redis"),
    # With its 10 ms, DiskCache drops writes without a word when the machine is busy, and the page is wrong.
    "diskcache": Backend("diskcache", _directory("diskcache.DjangoCache", DATABASE_TIMEOUT=60), ("diskcache",)),
}


@dataclass
class Results:
    """What was measured: for each backend one load per round, and why a backend was left out."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    absences: dict[str, str] = field(default_factory=dict)


def right(body: bytes, number: int) -> bool:
    """Tell whether a client's page is: all fragments are there, and its session has counted its visits."""
    whole = body.count(b"<section>") == django_site.FRAGMENTS
    return whole and f"visits of this session: {number},".encode() in body


@contextmanager
def site(cache: Mapping[str, Any], directory: Path, workers: int) -> Iterator[Path]:
    """Serve the page for a `with` block, and yield the socket; nothing of it outlives the block."""
    directory.mkdir(mode=0o700)
    path, log = directory / "web", directory / "log"
    command = [sys.executable, "-m", "gunicorn", "--workers", str(workers), "--bind", f"unix:{path}"]
    command += ["--log-level", "warning", "--no-control-socket", "benchmarks.django_site:application"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), django_site.ENVIRONMENT: json.dumps(cache)}
    with log.open("wb") as output, signals_held():  # Ctrl-C is for the benchmark, which then ends the site
        process = subprocess.Popen(
            [*dying_with_us(), *command],
            cwd=directory,
            env=environment,
            start_new_session=True,  # so that the workers can be ended with their master
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_for(path, process, log)
        yield path
    finally:
        with signals_held():
            os.killpg(process.pid, signal.SIGKILL)  # it has nothing to save
            process.wait()


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until gunicorn listens; the first request then waits for a worker."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing was said"]
            raise BenchmarkError(f"gunicorn ended with status {process.returncode}: {lines[-1]}")
        with socket.socket(socket.AF_UNIX) as probe:
            if path.exists() and probe.connect_ex(str(path)) == 0:
                return
        time.sleep(POLL)
    raise BenchmarkError(f"gunicorn did not answer on {path} within {PATIENCE:.0f} s")


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
            load(path, amounts.clients, WARM_UP * amounts.clients, amounts.seconds, right)
        results.rounds = {name: [] for name in sites}
        for turn, (number, name) in enumerate(alternate(amounts.rounds, list(sites))):
            note(f"{name}, round {number + 1} of {amounts.rounds}", turn / (amounts.rounds * len(sites)))
            found = load(sites[name], amounts.clients, amounts.requests, amounts.seconds, right)
            results.rounds[name].append(summary(found))
    return results


def _start(backend: Backend, stack: ExitStack, amounts: Amounts, space: Workspace) -> Path:
    for module in backend.needs:
        client(module)
    location = space.fresh(backend.subject)
    if backend.server:
        location = stack.enter_context(running(backend.server, location)).socket
    return stack.enter_context(site(backend.cache(str(location)), space.fresh("site"), amounts.workers))


def summary(found: Load) -> dict[str, float]:
    """Return what a round of a site comes to, times in nanoseconds."""
    ordered = sorted(found.times)
    p50, p99 = (float(percentile(ordered, milli)) for milli in (500, 990))
    return {"requests": len(ordered), "per_second": found.rate, "p50": p50, "p99": p99, "max": float(ordered[-1])}


def table(results: Results, amounts: Amounts) -> Table:
    """Return one row for each backend."""
    made = Table(TITLE, ("cache", "requests/s", "p50", "p99"))
    for name, rounds in results.rounds.items():
        rate, p50, p99 = (Spread.of([one[part] for one in rounds]).median for part in ("per_second", "p50", "p99"))
        made.rows.append((SUBJECTS[BACKENDS[name].subject].label, f"{rate:,.0f}", duration(p50), duration(p99)))
    made.notes.append(
        f"Gunicorn with {amounts.workers} workers, {amounts.clients} clients, medians of {amounts.rounds} interleaved "
        "rounds; servers and sites on Unix sockets of one machine, which also runs the clients."
    )
    made.notes += [
        f"{SUBJECTS[BACKENDS[name].subject].title} left out: {why}" for name, why in results.absences.items()
    ]
    return made


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser("python -m benchmarks.django_page", description=(__doc__ or "").partition(":")[0])
    add, usual = made.add_argument, Amounts()
    add("--backend", choices=list(BACKENDS), action="append", help="only this backend (may be repeated)")
    add("--seconds", type=seconds, default=usual.seconds, help="most seconds of a round of a site (%(default)s)")
    for name, meaning in (
        ("rounds", "rounds of each site"),
        ("requests", "most requests in a round of a site"),
        ("clients", "clients at once"),
        ("workers", "worker processes of each site"),
    ):
        add(f"--{name}", type=positive, default=getattr(usual, name), help=f"{meaning} (%(default)s)")
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where caches are made (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write everything that was measured to FILE")
    add("--docs", type=Path, metavar="PAGE.md", help="put the table into the marked place of this page")
    return made


def run(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    if asked.docs:
        page.marked(asked.docs, MARK)
    amounts = Amounts(**{name: getattr(asked, name) for name in Amounts.__dataclass_fields__})
    chosen = [name for name in BACKENDS if name in (asked.backend or BACKENDS)]
    with workspace(asked.directory) as space, progress({"django": 1}) as show:
        facts = machine_facts(space.root.parent, measure_costs())
        results = measure(amounts, chosen, space, show("django"))
    facts |= {name: importlib.metadata.version(name) for name in ("django", "gunicorn")}
    print(*(f"{name}: {fact}" for name, fact in facts.items()), "", sep="\n")
    print(table(results, amounts).text())
    if asked.json:
        told = {"machine": facts, "amounts": asdict(amounts), **asdict(results)}
        asked.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.docs:
        page.put(asked.docs, MARK, table(results, amounts).markdown().partition("\n\n")[2])
    return GOOD


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and explain what prevents it."""
    made = parser()
    asked = made.parse_args(arguments)
    refuse_lost(made, asked.directory, asked.json)
    return explained(made, lambda: run(asked), MissingSubject)


if __name__ == "__main__":
    run_as_command(main)
