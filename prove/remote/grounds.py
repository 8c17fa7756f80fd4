"""Machines that share one server: each a directory, a way to the server that can be disturbed, and processes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.flaky_proxy import FlakyProxy, flaky_proxy
from tests.support.redis_servers import MissingServer, RedisServer, awaited, redis_server
from tests.support.workers import Crew, Worker

from ..proof import CannotRun
from .clients import CALM, DONE, READY, Part, Place, Product, Settings, live, recorded
from .history import History, Loss, Operation

PAUSE = 10_000  # milliseconds, far longer than a planned failover takes


def now() -> int:
    """Return the moment, as all machines have it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass
class Client:
    """One process of a machine."""

    number: int
    machine: Machine
    worker: Worker
    is_stopped: bool = False
    diary: Path | None = None


@dataclass(eq=False)
class Machine:
    """A directory with a way to the server of its own, and the processes that use them."""

    number: int
    directory: Path
    proxy: FlakyProxy
    clients: list[Client] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """What all processes have in common for the time of a case."""

    name: str
    keys: tuple[str, ...]
    settings: Settings
    source: random.Random


class Grounds:
    """The server, a standby that follows it, and the machines; all are gone at the end of the with-block.

    Faults are made by one thread, one after the other.
    """

    def __init__(self, directory: Path, product: Product, machines: int, processes: int) -> None:
        self.directory, self.product = directory, product
        self._numbers = itertools.count(1)
        self._shape = machines, processes
        self._stack = ExitStack()
        self.machines: list[Machine] = []
        self.server: RedisServer
        self.standby: RedisServer
        self._crew: Crew
        self._case: Case | None = None
        self._gone: list[Client] = []
        self._losses: list[Loss] = []

    def __enter__(self) -> Self:
        with self._stack:
            try:
                self.server = self._stack.enter_context(redis_server())
            except MissingServer as reason:
                raise CannotRun(str(reason)) from None
            self.standby = self._stack.enter_context(redis_server())
            self.standby.follow(self.server)
            self._crew = self._stack.enter_context(Crew())
            for number in range(self._shape[0]):
                place = self.directory / f"machine {number}"
                proxy = self._stack.enter_context(flaky_proxy(self.server.address))
                self.machines.append(Machine(number, place, proxy))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def clients(self) -> list[Client]:
        """All processes that are there."""
        return [client for machine in self.machines for client in machine.clients]

    # -- a case -----------------------------------------------------------------------------------------------------

    def begin(self, case: Case) -> None:
        """Have all processes open the cache, and begin at once."""
        self._case, self._gone, self._losses = case, [], []
        for machine in self.machines:
            while len(machine.clients) < self._shape[1]:
                self.start(machine)
        for client in self.clients:
            self._tell(client)
        for client in self.clients:
            assert client.worker.hear() == READY
        for client in self.clients:
            client.worker.tell()

    def end(self) -> History:
        """Have all processes come to an end, all faults being over; return what they did."""
        for client in self.clients:
            client.worker.tell(CALM)
        late = [client.number for client in self.clients if client.worker.hear() != DONE]
        history = self._history()
        assert not late, f"no write of these processes was acknowledged after all faults: {late}"
        return history

    def _history(self) -> History:
        found: list[Operation] = []
        for client in [*self.clients, *self._gone]:
            assert client.diary is not None
            if client.diary.exists():
                found += recorded(client.diary, client.number, client.machine.number)
                client.diary.unlink()
        return History(found, self._losses)

    def start_over(self) -> None:
        """Replace all processes, whatever they are at, and end all faults."""
        for client in self.clients:
            self._dismiss(client)
        self.calm()

    # -- processes --------------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> Client:
        """Start a process."""
        number = next(self._numbers)
        client = Client(number, machine, self._crew.start(live, number, self.product))
        machine.clients.append(client)
        return client

    def _tell(self, client: Client) -> None:
        assert self._case is not None
        client.diary = self.directory / f"diary {self._case.name} {client.number}"
        place = Place(client.machine.directory, client.machine.proxy.url, self._case.settings)
        client.worker.tell(Part(place, self._case.keys, self._case.source.getrandbits(32), client.diary))

    def kill(self, client: Client) -> None:
        """Kill a process."""
        client.worker.kill()
        self._gone.append(client)
        self._dismiss(client)

    def _dismiss(self, client: Client) -> None:
        client.machine.clients.remove(client)
        client.worker.dismiss()
        self._crew.workers.remove(client.worker)

    def join_in(self, client: Client) -> None:
        """Have a process that was started meanwhile take part."""
        self._tell(client)
        assert client.worker.hear() == READY
        client.worker.tell()

    def stop(self, client: Client) -> None:
        """Freeze a process."""
        client.worker.stop()
        client.is_stopped = True

    def go_on(self, client: Client) -> None:
        """Thaw a process, if it is still there."""
        if client.is_stopped and client in client.machine.clients:
            client.worker.go_on()
        client.is_stopped = False

    def listener(self, machine: Machine) -> Client | None:
        """Return the process that listens to the server for a machine, if it is known."""
        pid = self.product.listener(machine.directory)
        return next((client for client in machine.clients if client.worker.pid == pid), None)

    # -- the server -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Have the server lose everything, and tell who follows it."""
        begin = now()
        self.server.ask("FLUSHALL")
        self._losses.append(Loss(begin, now()))

    def restart(self, seconds: float) -> None:
        """Kill the server, and start it again after a while with nothing in it."""
        begin = now()
        self.server.kill()
        time.sleep(seconds)
        self.server.start()
        self._losses.append(Loss(begin, now(), "a restart"))
        self._settle()

    def demote(self, left_behind: Sequence[Machine]) -> None:
        """Have the standby take over without a loss; some machines still reach the old one, which is cut off from it.

        They can read there, and it answers PING. `follow` ends that.
        """
        self.server.ask("CLIENT", "PAUSE", PAUSE, "WRITE")
        awaited(lambda: self.standby.has_caught_up(self.server), "a standby that has caught up")
        self.standby.promote()
        self.server.follow_nobody_there()
        self.server.ask("CLIENT", "UNPAUSE")
        self.server, self.standby = self.standby, self.server
        self._lead(machine for machine in self.machines if machine not in left_behind)

    def follow(self) -> None:
        """Have all machines reach the server that takes writes, and the other one follow it."""
        self._lead(self.machines)
        self._settle()

    def _lead(self, machines: Iterable[Machine]) -> None:
        for machine in machines:
            machine.proxy.lead_to(self.server.address)
            machine.proxy.cut()

    def _settle(self) -> None:
        self.standby.follow(self.server)

    # -- the end of faults ------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """End all faults of the network and of processes; those of the server end by themselves."""
        for machine in self.machines:
            machine.proxy.pass_everything()
        for client in self.clients:
            self.go_on(client)
