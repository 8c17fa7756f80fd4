"""What goes wrong while machines share a server: drawn beforehand, begun and ended at their times.

Faults of one lane come one after the other, those of different lanes at once: the server, each machine's network, and
the processes. A fault is a generator: what happens at its beginning, and after each yield, which come at equal times.
"""

from __future__ import annotations

import heapq
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count

from tests.support.flaky_proxy import DIRECTIONS
from tests.support.redis_servers import awaited

from .machines import Grounds, Machine

BRIEF = 0.03  # seconds
DELAYS = (0.0, 0.005, 0.03, 0.09, 0.2)  # seconds
Fault = Callable[[Grounds, random.Random, float], Iterator[None]]


def once(act: Callable[[], object]) -> Iterator[None]:
    """Do something at the beginning only."""
    act()
    yield


def between(begin: Callable[[], object], *end: Callable[[], object]) -> Iterator[None]:
    """Begin something, and end it."""
    begin()
    yield
    for act in end:
        act()


# -- the network of a machine -----------------------------------------------------------------------------------------


def cut_off(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Cut its connections, and let no new ones in."""
    machine.proxy.refuse()
    machine.proxy.cut()
    yield
    machine.proxy.accept()


def delay(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have everything arrive late, on some connections more than on others."""
    late = partial(machine.proxy.delay, source.choice(DELAYS), source.choice(DELAYS), uneven=source.choice((0.0, 1.0)))
    return between(late, machine.proxy.delay)


def race(machine: Machine, grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have what the server sends arrive late on some connections only, so that something later overtakes it."""
    late = partial(machine.proxy.delay, 0.0, source.choice(DELAYS[-3:]), uneven=1.0)
    return between(late, machine.proxy.delay)


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


# -- processes and the server -----------------------------------------------------------------------------------------


def _victim(grounds: Grounds, source: random.Random) -> tuple[Machine, int]:
    """Choose a process, often the one that listens for its machine."""
    machine = source.choice([each for each in grounds.machines if each.clients])
    listener = machine.listener()
    if listener is not None and source.random() < 0.5:
        return machine, machine.clients.index(listener)
    return machine, source.randrange(len(machine.clients))


def kill(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Kill a process; another takes its place."""
    machine, number = _victim(grounds, source)
    grounds.kill(machine.clients[number])
    successor = grounds.start(machine)
    yield
    grounds.join_in(successor)


def stop(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    machine, number = _victim(grounds, source)
    client = machine.clients[number]
    return between(partial(grounds.stop, client), partial(grounds.go_on, client))


def pause(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server put off writes, or everything."""
    what = source.choice(("WRITE", "ALL"))
    ask = partial(grounds.server.ask, "CLIENT", "PAUSE", int(seconds * 1000) + 1, what)
    return between(ask, partial(_wait_for_answer, grounds))


def sleep(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the server do nothing else for a while."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(grounds.server.socket))
        connection.sendall(f"DEBUG SLEEP {seconds:.3f}\r\n".encode())
        yield
    _wait_for_answer(grounds)


def demote(grounds: Grounds, source: random.Random, seconds: float) -> Iterator[None]:
    """Have the standby take over, while one machine still reaches the old server, and perhaps nothing tells it so."""
    return between(partial(grounds.demote, [source.choice(grounds.machines)]), grounds.follow)


def _wait_for_answer(grounds: Grounds) -> None:
    awaited(lambda: grounds.server.ask("PING"), "the server's answer")


# -- what comes when --------------------------------------------------------------------------------------------------

Faults = dict[str, tuple[int, Fault]]  # by name, with how often each is drawn
NETWORK: dict[str, tuple[int, Callable[[Machine, Grounds, random.Random, float], Iterator[None]]]] = {
    "cuts": (2, lambda machine, *_: once(machine.proxy.cut)),
    "partitions": (2, cut_off),
    "delays": (2, delay),
    "races": (2, race),
    "freezes": (3, freeze),
    "stalls": (2, stall),
}
PROCESSES: Faults = {"kills": (2, kill), "stopped processes": (2, stop)}
SERVER: Faults = {
    "dropped clients": (3, lambda grounds, *_: once(grounds.server.drop_clients)),
    "FLUSHALL": (2, lambda grounds, *_: once(grounds.flush)),
    "restarts": (1, lambda grounds, _, seconds: once(partial(grounds.restart, min(seconds, BRIEF)))),
    "stopped servers": (
        1,
        lambda grounds, *_: between(grounds.server.stop, grounds.server.go_on, partial(_wait_for_answer, grounds)),
    ),
    "CLIENT PAUSE": (2, pause),
    "DEBUG SLEEP": (1, sleep),
    "failovers": (3, demote),
}
ALL = frozenset((*NETWORK, *PROCESSES, *SERVER))


def lanes(grounds: Grounds, allowed: frozenset[str]) -> dict[str, Faults]:
    """Return what may happen in each lane."""
    found: dict[str, Faults] = {"processes": PROCESSES, "server": SERVER}
    for machine in grounds.machines:
        found[f"network {machine.number}"] = {
            name: (weight, partial(fault, machine)) for name, (weight, fault) in NETWORK.items()
        }
    chosen = {lane: {name: faults[name] for name in faults if name in allowed} for lane, faults in found.items()}
    return {lane: faults for lane, faults in chosen.items() if faults}


END = object()
Running = tuple[float, Iterator[None]]  # seconds that each part of a fault lasts, and the rest of it


def let_happen(
    grounds: Grounds, source: random.Random, seconds: float, allowed: frozenset[str], longest: float, gap: float
) -> Iterator[str]:
    """Begin and end faults for so many seconds, and yield their names.

    Each part of a fault lasts `longest` seconds at the most, and so does the `gap` to the next in its lane.
    """
    end, tickets = time.monotonic() + seconds, count()
    due: list[tuple[float, int, str, Running | None]] = []

    def put(after: float, lane: str, running: Running | None = None) -> None:
        heapq.heappush(due, (time.monotonic() + after, next(tickets), lane, running))

    known = lanes(grounds, allowed)
    for lane in known:
        put(source.uniform(0.0, gap), lane)
    try:
        while due:
            moment, _, lane, running = heapq.heappop(due)
            if running is None and moment >= end:  # nothing new, and all the rest at once
                continue
            time.sleep(max(0.0, min(moment, end) - time.monotonic()))
            if running is None:
                faults = known[lane]
                (name,) = source.choices(list(faults), [weight for weight, _ in faults.values()])
                each = source.uniform(0.0, longest)
                running = each, faults[name][1](grounds, source, each)
                yield name
            if next(running[1], END) is END:
                put(source.uniform(0.0, gap), lane)
            else:
                put(running[0], lane, running)
    finally:
        for *_, running in due:  # what still runs because something was raised
            if running is not None:
                with suppress(Exception):
                    for _part in running[1]:
                        pass
