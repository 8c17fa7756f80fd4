"""What goes wrong while machines share a server: drawn beforehand, begun and ended at their times.

Faults of one lane come one after the other, those of different lanes at once: the server, each machine's network, and
the processes.
"""

from __future__ import annotations

import heapq
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import NamedTuple

from tests.support.flaky_proxy import DIRECTIONS
from tests.support.redis_servers import awaited

from .grounds import Client, Grounds, Machine

GAP = 0.4  # seconds between the faults of one lane at the most
BRIEF = 0.03  # seconds

Fault = Callable[[Grounds, random.Random, float], Iterator[None]]  # a context: what happens before and after its yield


class Fate(NamedTuple):
    """A fault that is to come."""

    name: str
    lane: str
    seconds: float  # that it lasts
    run: Callable[[Grounds, random.Random, float], Iterator[None]]


# -- the network of a machine -----------------------------------------------------------------------------------------


def cut(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Cut its connections."""
    machine.proxy.cut()
    yield


def cut_off(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Cut its connections, and let no new ones in."""
    machine.proxy.refuse()
    machine.proxy.cut()
    yield
    machine.proxy.accept()


def delay(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have everything arrive late."""
    machine.proxy.delay(*(source.choice((0.0, 0.005, 0.04, 0.3)) for _ in DIRECTIONS))
    yield
    machine.proxy.delay()


def freeze(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have nothing arrive, in one direction or in either; what was sent arrives in the end, unless that is cut."""
    machine.proxy.freeze(*source.choice((DIRECTIONS, DIRECTIONS[:1], DIRECTIONS[1:])))
    yield
    if source.random() < 0.3:
        machine.proxy.cut()
    machine.proxy.thaw()


# -- processes --------------------------------------------------------------------------------------------------------


def victim(grounds: Grounds, source: random.Random) -> Client:
    """Choose a process, often the one that listens for its machine."""
    machine = source.choice([each for each in grounds.machines if each.clients])
    listener = grounds.listener(machine)
    return listener if listener is not None and source.random() < 0.5 else source.choice(machine.clients)


def kill(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Kill a process; another takes its place."""
    client = victim(grounds, source)
    grounds.kill(client)
    successor = grounds.start(client.machine)
    yield
    grounds.join_in(successor)


def stop(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Freeze a process."""
    client = victim(grounds, source)
    grounds.stop(client)
    yield
    grounds.go_on(client)


# -- the server -------------------------------------------------------------------------------------------------------


def drop_clients(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server cut all ordinary connections."""
    grounds.server.drop_clients()
    yield


def flush(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server lose everything and say so."""
    grounds.flush()
    yield


def restart(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Kill the server, and start it empty."""
    grounds.restart(min(seconds, BRIEF))
    yield


def stop_server(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Freeze the server."""
    grounds.server.stop()
    yield
    grounds.server.go_on()
    _wait_for_answer(grounds)


def pause(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server put off writes, or everything."""
    grounds.server.ask("CLIENT", "PAUSE", int(seconds * 1000) + 1, source.choice(("WRITE", "ALL")))
    yield
    _wait_for_answer(grounds)


def sleep(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server do nothing else for a while."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(grounds.server.socket))
        connection.sendall(f"DEBUG SLEEP {seconds:.3f}\r\n".encode())
        yield
    _wait_for_answer(grounds)


def demote(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the standby take over, while one machine still reaches the old server, and perhaps nothing tells it so."""
    grounds.demote([source.choice(grounds.machines)])
    yield
    grounds.follow()


def _wait_for_answer(grounds: Grounds) -> None:
    awaited(lambda: grounds.server.ask("PING"), "the server's answer")


# -- what comes when --------------------------------------------------------------------------------------------------

NETWORK: Mapping[str, tuple[int, Callable[[Machine, Grounds, random.Random, float], Iterator[None]]]] = {
    "cuts": (2, cut),
    "partitions": (2, cut_off),
    "delays": (2, delay),
    "freezes": (3, freeze),
}
PROCESSES: Mapping[str, tuple[int, Fault]] = {"kills": (2, kill), "stopped processes": (2, stop)}
SERVER: Mapping[str, tuple[int, Fault]] = {
    "dropped clients": (3, drop_clients),
    "FLUSHALL": (2, flush),
    "restarts": (1, restart),
    "stopped servers": (1, stop_server),
    "CLIENT PAUSE": (2, pause),
    "DEBUG SLEEP": (1, sleep),
    "failovers": (3, demote),
}
ALL = frozenset((*NETWORK, *PROCESSES, *SERVER))


def lanes(grounds: Grounds, allowed: frozenset[str]) -> dict[str, dict[str, tuple[int, Fault]]]:
    """Return what may happen in each lane, with its weight."""
    found = {
        f"network {machine.number}": {
            name: (weight, partial(fault, machine)) for name, (weight, fault) in NETWORK.items() if name in allowed
        }
        for machine in grounds.machines
    }
    found["processes"] = {name: each for name, each in PROCESSES.items() if name in allowed}
    found["server"] = {name: each for name, each in SERVER.items() if name in allowed}
    return {lane: faults for lane, faults in found.items() if faults}


def drawn(source: random.Random, faults: Mapping[str, tuple[int, Fault]], lane: str, longest: float) -> Fate:
    """Draw a fault of a lane."""
    (name,) = source.choices(list(faults), [weight for weight, _ in faults.values()])
    return Fate(name, lane, source.uniform(0.0, longest), faults[name][1])


def let_happen(
    grounds: Grounds, source: random.Random, seconds: float, allowed: frozenset[str], longest: float
) -> Iterator[str]:
    """Begin and end faults for so many seconds, each lasting `longest` seconds at the most; yield their names."""
    ticket = count()
    now = time.monotonic()
    end = now + seconds
    known = lanes(grounds, allowed)
    due: list[tuple[float, int, str, Iterator[None] | None]] = []
    for lane in known:
        heapq.heappush(due, (now + source.uniform(0.0, GAP), next(ticket), lane, None))
    try:
        while due:
            moment, _, lane, running = heapq.heappop(due)
            if running is None and moment >= end:
                continue
            time.sleep(max(0.0, min(moment, end) - time.monotonic()))
            if running is None:
                fate = drawn(source, known[lane], lane, longest)
                running = fate.run(grounds, source, fate.seconds)
                next(running)
                yield fate.name
                heapq.heappush(due, (time.monotonic() + fate.seconds, next(ticket), lane, running))
            else:
                next(running, None)
                heapq.heappush(due, (time.monotonic() + source.uniform(0.0, GAP), next(ticket), lane, None))
    finally:
        for *_, running in due:
            if running is not None:
                with suppress(Exception):  # another has been raised already
                    next(running, None)


@contextmanager
def calm_after(grounds: Grounds) -> Iterator[None]:
    """End all faults of the network and of processes at the end of a with-block."""
    try:
        yield
    finally:
        grounds.calm()
