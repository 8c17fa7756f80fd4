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

BRIEF = 0.03  # seconds
DELAYS = (0.0, 0.005, 0.03, 0.09, 0.2)  # seconds

# What happens at its beginning, and after each yield, which come at equal times.
Fault = Callable[[Grounds, random.Random, float], Iterator[None]]


class Fate(NamedTuple):
    """A fault that is to come."""

    name: str
    lane: str
    seconds: float  # that each of its parts lasts
    run: Fault


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
    """Have everything arrive late, on some connections more than on others."""
    machine.proxy.delay(source.choice(DELAYS), source.choice(DELAYS), uneven=source.choice((0.0, 1.0)))
    yield
    machine.proxy.delay()


def race(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have what the server sends arrive late on some connections only, so that something later overtakes it."""
    machine.proxy.delay(0.0, source.choice(DELAYS[-3:]), uneven=1.0)
    yield
    machine.proxy.delay()


def stall(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have everything arrive late, and then nothing, what is on its way included."""
    machine.proxy.delay(source.choice(DELAYS), source.choice(DELAYS))
    yield
    machine.proxy.freeze()
    yield
    if source.random() < 0.3:
        machine.proxy.cut()
    machine.proxy.delay()
    machine.proxy.thaw()


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
    "races": (2, race),
    "freezes": (3, freeze),
    "stalls": (2, stall),
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
    found: dict[str, dict[str, tuple[int, Fault]]] = {
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
    grounds: Grounds, source: random.Random, seconds: float, allowed: frozenset[str], longest: float, gap: float
) -> Iterator[str]:
    """Begin and end faults for so many seconds, and yield their names.

    Each part of a fault lasts `longest` seconds at the most, and so does the `gap` to the next in its lane.
    """
    agenda = Agenda(time.monotonic() + seconds)
    known = lanes(grounds, allowed)
    for lane in known:
        agenda.put(source.uniform(0.0, gap), lane)
    try:
        while (task := agenda.next()) is not None:
            lane, running = task
            if running is None:
                fate = drawn(source, known[lane], lane, longest)
                running = fate, fate.run(grounds, source, fate.seconds)
                yield fate.name
            fate, parts = running
            if next(parts, END) is END:
                agenda.put(source.uniform(0.0, gap), lane)
            else:
                agenda.put(fate.seconds, lane, running)
    finally:
        agenda.finish()


END = object()
Running = tuple[Fate, Iterator[None]]


class Agenda:
    """What is due when: the next part of a fault that runs, or a new one in a lane where none does."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._ticket = count()
        self._due: list[tuple[float, int, str, Running | None]] = []

    def put(self, seconds: float, lane: str, running: Running | None = None) -> None:
        """Have a lane's turn come after so many seconds."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._ticket), lane, running))

    def next(self) -> tuple[str, Running | None] | None:
        """Wait for what is due next, and return it; at the end nothing new, and all the rest at once."""
        while self._due:
            moment, _, lane, running = heapq.heappop(self._due)
            if running is None and moment >= self._end:
                continue
            time.sleep(max(0.0, min(moment, self._end) - time.monotonic()))
            return lane, running
        return None

    def finish(self) -> None:
        """End what still runs because something was raised, as far as that goes."""
        for *_, running in self._due:
            if running is not None:
                with suppress(Exception):
                    while next(running[1], END) is not END:
                        pass


@contextmanager
def calm_after(grounds: Grounds) -> Iterator[None]:
    """End all faults of the network and of processes at the end of a with-block."""
    try:
        yield
    finally:
        grounds.calm()
