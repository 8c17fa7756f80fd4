"""Load servers over Unix sockets: `diskcache-like serve`, Redis and Memcached. `python -m benchmarks.serving`.

One process is all clients. It sends requests that it has made before, and compares what comes back with what it has to
be. All servers are loaded in turn, round after round.

Exit status: 0 good; 2 a server is missing or the command line is wrong; 3 a server failed or answered wrongly; 130
interrupted.
"""

from __future__ import annotations

import argparse
import random
import selectors
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import page
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
from benchmarks.peers.servers import running, served, version
from benchmarks.peers.spec import BenchmarkError, MissingSubject
from benchmarks.report.machine import machine_facts
from benchmarks.report.text import Table, duration
from benchmarks.workspace import Workspace, workspace

ROOT = Path(__file__).parent.parent
MARK = "serving"
KEYS = 1_000
VALUE = 100  # bytes
VARIANTS = 50  # values of a key, so that a set changes something
PATIENCE = 60.0  # seconds for an answer
CLIENTS = (1, 8, 64)
AT_ONCE = (1, 16)  # requests that a client sends before it reads the answers
CALLS = ("get", "set")
WORKERS = (1, 2)


class Call(NamedTuple):
    """What is sent, and what has to come back."""

    request: bytes
    answer: bytes


def resp_set(key: bytes, value: bytes) -> Call:
    return Call(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value), b"+OK\r\n")


def resp_get(key: bytes, value: bytes) -> Call:
    return Call(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key), b"$%d\r\n%b\r\n" % (len(value), value))


def memcached_set(key: bytes, value: bytes) -> Call:
    return Call(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value), b"STORED\r\n")


def memcached_get(key: bytes, value: bytes) -> Call:
    return Call(b"get %b\r\n" % key, b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(value), value))


PROTOCOLS = {"resp": (resp_get, resp_set), "memcached": (memcached_get, memcached_set)}


@dataclass(frozen=True)
class Amounts:
    """How much is measured."""

    rounds: int = amount(3, "rounds of each server")
    seconds: float = amount(1.0, "seconds of each load in a round")


class Load(NamedTuple):
    """What clients do at the same time."""

    call: str
    clients: int
    at_once: int


class Served(NamedTuple):
    """A server that runs."""

    label: str
    path: Path
    protocol: str


@dataclass
class Results:
    """What was measured: for each load and server the requests per second and times of each round."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    absences: list[str] = field(default_factory=list)


class Client:
    """A connection that sends some requests at once, and again when all answers have come."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path))
        self._expected = b""
        self._found = bytearray()
        self.begun = 0

    def send(self, calls: Sequence[Call]) -> None:
        """Send requests together."""
        self._expected = b"".join(call.answer for call in calls)
        self._found.clear()
        request = b"".join(call.request for call in calls)
        self.begun = clock()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Read what is there; tell whether all answers have come. Raises BenchmarkError for a wrong one."""
        self._found += self.socket.recv(1 << 16)
        if len(self._found) < len(self._expected) and self._found:
            return False
        if self._found != self._expected:
            raise BenchmarkError(f"expected {self._expected[:100]!r}, but {bytes(self._found[:100])!r} came")
        return True


def calls_of(protocol: str) -> dict[str, list[Call]]:
    """Return the requests; the first `KEYS` of those that set store what those that get expect."""
    chance = random.Random(1)
    get, put = PROTOCOLS[protocol]
    keys = [b"key:%d" % number for number in range(KEYS)]
    stored = {key: chance.randbytes(VALUE) for key in keys}
    others = [put(key, chance.randbytes(VALUE)) for _ in range(VARIANTS) for key in keys]
    return {
        "get": [get(key, value) for key, value in stored.items()],
        "store": [put(key, value) for key, value in stored.items()],
        "set": others,
    }


def loaded(server: Served, load: Load, calls: dict[str, list[Call]], seconds: float) -> dict[str, float]:
    """Load a server for so many seconds, and return what was measured."""
    clients = [Client(server.path) for _ in range(load.clients)]
    times: list[int] = []
    try:
        clients[0].send(calls["store"])
        while not clients[0].receive():
            pass
        wanted, chance = calls[load.call], random.Random(load.clients)
        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client.socket, selectors.EVENT_READ, client)
            began = clock()
            deadline = began + int(seconds * 1e9)
            for client in clients:
                client.send(chance.choices(wanted, k=load.at_once))
            left = len(clients)
            while left:
                ready = selector.select(PATIENCE)
                if not ready:
                    raise BenchmarkError(f"{server.label} gave no answer for {PATIENCE:.0f} s")
                for key, _ in ready:
                    client = key.data
                    if client.receive():
                        now = clock()
                        times.append(now - client.begun)
                        if now < deadline:
                            client.send(chance.choices(wanted, k=load.at_once))
                        else:
                            left -= 1
            elapsed = (clock() - began) / 1e9
    finally:
        for client in clients:
            client.socket.close()
    ordered = sorted(times)
    measured = {"p50": percentile(ordered, 500), "p99": percentile(ordered, 990)}
    return {"per_second": len(times) * load.at_once / elapsed, **measured}


def start(stack: ExitStack, space: Workspace, results: Results) -> list[Served]:
    """Start every server that can be had."""
    servers = []
    for workers in WORKERS:
        path = space.fresh(f"served by {workers}") / "socket"
        command = [sys.executable, "-m", "diskcache_like", "serve", str(space.fresh("cache") / "cache")]
        command += ["--resp", str(path), "--workers", str(workers)]
        stack.enter_context(served("diskcache-like", command, path, PATIENCE, PYTHONPATH=str(ROOT)))
        told = "1 worker" if workers == 1 else f"{workers} workers"
        servers.append(Served(f"diskcache_like, {told}", path, "resp"))
    for name, protocol in (("redis", "resp"), ("memcached", "memcached")):
        try:
            path = stack.enter_context(running(name, space.fresh(name))).socket
            servers.append(Served(f"{name.capitalize()} {version(name)}", path, protocol))
        except MissingSubject as missing:
            results.absences.append(str(missing))
    results.labels = [server.label for server in servers]
    return servers


def measure(amounts: Amounts, space: Workspace, note: Callable[[str, float], None] = lambda *_: None) -> Results:
    """Start the servers, and load them in turn."""
    results = Results()
    loads = [Load(*one) for one in ((call, count, some) for some in AT_ONCE for call in CALLS for count in CLIENTS)]
    requests = {protocol: calls_of(protocol) for protocol in PROTOCOLS}
    with ExitStack() as stack:
        servers = {server.label: server for server in start(stack, space, results)}
        for place, load in enumerate(loads):
            for number, label in alternate(amounts.rounds, list(servers)):
                note(f"{load.call}, {load.clients} clients, {label}", (place + number / amounts.rounds) / len(loads))
                server = servers[label]
                found = loaded(server, load, requests[server.protocol], amounts.seconds)
                results.rounds.setdefault(name_of(load, label), []).append(found)
    return results


def name_of(load: Load, label: str) -> str:
    """Return the name of what was measured of a server."""
    return f"{load.call}, {load.clients} clients, {load.at_once} at once: {label}"


def tables(results: Results, amounts: Amounts) -> list[Table]:
    """Return the requests per second, and the times of requests that are sent one by one."""

    def of(load: Load, label: str, part: str) -> float:
        return median(one[part] for one in results.rounds[name_of(load, label)])

    rates = Table("Requests per second", ("call", "clients", "at once", *results.labels))
    for at_once in AT_ONCE:
        for call in CALLS:
            for clients in CLIENTS:
                load = Load(call, clients, at_once)
                cells = (f"{of(load, label, 'per_second'):,.0f}" for label in results.labels)
                rates.rows.append((call, str(clients), str(at_once), *cells))
    rates.notes.append(
        f"Medians of {amounts.rounds} interleaved rounds of {amounts.seconds:g} s; values of {VALUE} bytes, {KEYS:,} "
        "keys, Unix sockets of one machine. All clients are one process of Python, which is the limit where a server "
        "is faster than that."
    )
    rates.notes += [f"Left out: {why}" for why in results.absences]
    times = Table("p50 and p99 of requests one by one", ("call", "clients", *results.labels))
    for call in CALLS:
        for clients in CLIENTS:
            load = Load(call, clients, 1)
            pairs = ((of(load, label, "p50"), of(load, label, "p99")) for label in results.labels)
            times.rows.append((call, str(clients), *(f"{duration(p50)}, {duration(p99)}" for p50, p99 in pairs)))
    return [rates, times]


def options() -> argparse.ArgumentParser:
    made = parser("benchmarks.serving", __doc__, "directory", "json", "docs")
    add_amounts(made, Amounts())
    return made


def run(asked: argparse.Namespace) -> int:
    """Do what the command line asks for."""
    amounts = amounts_of(asked, Amounts())
    with workspace(asked.directory) as space, progress() as note:
        facts = machine_facts(space.root.parent, measure_costs())
        results = measure(amounts, space, note)
    print_facts(facts)
    found = tables(results, amounts)
    for table in found:
        print(table.text())
    if asked.json:
        write_json(asked.json, {"machine": facts, "amounts": asdict(amounts), **asdict(results)})
    if asked.docs:
        page.put(asked.docs, MARK, "\n\n".join(table.markdown().partition("\n\n")[2] for table in found))
    return GOOD


main = follows(options, run, MissingSubject, MARK)


if __name__ == "__main__":
    run_as_command(main)
