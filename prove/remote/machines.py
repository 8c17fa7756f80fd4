"""Machines that share one server: each a directory, a way to the server that can be disturbed, and processes.

What a process does is written down as it happens, for it may be killed.
"""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache, Remote, RemoteError, RemoteWarning, Timeout
from diskcache_like.tier import state
from tests.support.flaky_proxy import FlakyProxy, flaky_proxy
from tests.support.redis_servers import MissingServer, RedisServer, awaited, redis_server
from tests.support.workers import JUDGING, Crew, Link, Worker

from ..linearizability.clients import Diary, notes
from ..proof import CannotRun
from .judges import NEVER, History, Kind, Loss, Operation, Outcome

NAMESPACE = "prove"
SECRET = "a secret of several machines"
PAUSE = 200_000_000  # nanoseconds; with the default, a case would end before its requests go on
LISTENER_LOCK = "cache.remote-*"  # the files in a cache's directory whose lock makes a process the one that listens
READY, CALM, DONE, LOST = "ready", "calm", "done", "lost"
PATIENCE = 40.0  # seconds in which a process must have a write acknowledged when nothing is wrong any more
CALM_TURNS = 1.5  # reads go on for this many times the bound after that
NUMBERS = 100_000  # writes of one process, and counts from one beginning, at the most
KINDS: dict[Kind, int] = {"get": 60, "set": 22, "add": 5, "delete": 6}
COUNTS: dict[Kind, int] = {"get": 55, "incr": 45}
# So many of the keys are written now and then only, so that what was stored too late stays for others to see.
QUIET = (0.4, 0.7, 1.0)
RARELY = 0.015  # of the calls of a quiet key are writes
AGAIN = (0, 1, 1, 2)  # more writes that follow one of a quiet key, while others fetch what the first has stored
SOON = 0.04  # seconds at the most between these
SIZES = (0, 0, 0, 200, 5_000, 60_000)  # bytes behind a value's number: in a row, in a file
AFTER_ERROR = 0.02  # seconds; one that fails at once would otherwise do nothing else
PAUSES = (0.0, 0.0005, 0.002, 0.006)  # seconds between two calls at the most, of one process in one case
FAILOVER = 10_000  # milliseconds, far longer than a planned failover takes


def now() -> int:
    """Return the moment, as all machines have it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def nothing() -> None:
    """Leave the tier as it is."""


# -- what a process does ----------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """What all processes of a case ask of the tier."""

    max_staleness: float  # seconds
    timeout: float  # of a call to the server, in seconds
    on_error: str  # "raise", "local" or "miss"


class Part(NamedTuple):
    """What one process does in one case: where, with which keys, the last of them a number that is counted."""

    directory: Path  # of its machine
    url: str  # of its machine's way to the server
    settings: Settings
    keys: tuple[str, ...]
    seed: int
    diary: Path


@contextmanager
def opened(part: Part) -> Iterator[Cache]:
    """Open a cache with the tier."""
    vars(state)["PAUSE"] = PAUSE
    settings: dict[str, Any] = part.settings._asdict()  # named as the arguments are
    remote = Remote(part.url, namespace=NAMESPACE, secret=SECRET, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RemoteWarning)  # the server may be away just now
        cache = Cache(part.directory, durability="process", remote=remote)
    with cache:
        yield cache


def live(link: Link, process: int, spoil: Callable[[], None]) -> None:
    """Play one part after the other, until the other side ends or this process is killed; `spoil()` the tier first."""
    spoil()
    number = 0
    while (part := link.hear(JUDGING)) is not None:
        with closing(Diary(part.diary)) as diary, opened(part) as cache:
            player = Player(cache, part, process * NUMBERS + number, diary)
            link.tell(READY)
            link.hear()
            while not link.asked():
                player.step()
            link.hear()
            told = DONE if player.calm_down() else LOST
            number += player.written
        link.tell(told)


class Player:
    """Calls a cache, and writes down each call before it is made, and what came of it."""

    def __init__(self, cache: Cache, part: Part, first: int, diary: Diary) -> None:
        self._cache, self._part, self._diary = cache, part, diary
        self._random = random.Random(part.seed)
        self._pause = self._random.choice(PAUSES)
        self._quiet = self._random.choice(QUIET) * len(part.keys)
        self._first, self.written = first, 0

    def step(self) -> None:
        """Make one call, or a few."""
        number = self._random.randrange(len(self._part.keys))
        key = self._part.keys[number]
        kinds = COUNTS if key == self._part.keys[-1] else KINDS
        (kind,) = self._random.choices(list(kinds), list(kinds.values()))
        if number >= self._quiet:
            self._wait(self._pause if self.call(kind, key) == "acknowledged" else AFTER_ERROR)
        elif self._random.random() > RARELY:
            self._wait(self._pause if self.call("get", key) == "acknowledged" else AFTER_ERROR)
        else:
            self.call(kind, key)
            for _ in range(self._random.choice(AGAIN)):
                self._wait(SOON)
                self.call(kind, key)

    def _wait(self, seconds: float) -> None:
        if seconds:
            time.sleep(self._random.uniform(0, seconds))

    def calm_down(self) -> bool:
        """Go on until a write is acknowledged, and a while longer; tell whether one was."""
        deadline = time.monotonic() + PATIENCE
        while self.call("set", self._part.keys[0]) != "acknowledged":
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        end = time.monotonic() + CALM_TURNS * self._part.settings.max_staleness + 0.05
        while time.monotonic() < end:
            for key in self._part.keys:
                self.call("get", key)
            time.sleep(0.005)
        return True

    def call(self, kind: Kind, key: str) -> Outcome:
        """Make one call of a kind."""
        number = 0
        if kind != "get":
            self.written += 1
            number = self._first + self.written
        self._diary.note((kind, key, number, now()))
        answer: Any = None
        outcome: Outcome = "unknown"
        try:
            answer = self._answer(kind, key, number)
            outcome = "unknown" if answer is False and kind == "set" else "acknowledged"
        except (RemoteError, Timeout):
            pass
        self._diary.note((answer, outcome, now()))
        return outcome

    def _answer(self, kind: Kind, key: str, number: int) -> Any:
        if kind == "get":
            value = self._cache.get(key)
            return int(value.partition(b":")[0]) if isinstance(value, bytes) else value
        if kind == "incr":
            return self._cache.incr(key, 1, number * NUMBERS)
        if kind == "delete":
            return self._cache.delete(key)
        return getattr(self._cache, kind)(key, b"%d:" % number + b"x" * self._random.choice(SIZES))


def recorded(diary: Path, process: int, machine: int) -> Iterator[Operation]:
    """Yield the operations of a process; the last has not ended if it was killed then."""
    found = notes(diary)
    for kind, key, number, begin in found:
        ended: tuple[Any, Outcome, float] = next(found, (None, "unknown", NEVER))
        answer, outcome, end = ended
        known = outcome == "acknowledged"
        value = answer if kind in ("get", "incr") else None if kind == "delete" else number
        changed = not (known and kind == "add" and not answer)
        yield Operation(process, machine, kind, key, value, begin, end, outcome, changed, start=number * NUMBERS)


# -- machines ---------------------------------------------------------------------------------------------------------


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

    def listener(self) -> Client | None:
        """Return the process that listens to the server: who has the lock for that, as the system knows it."""
        files = {path.stat().st_ino for path in self.directory.glob(LISTENER_LOCK)}
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # who waits has an arrow behind the number
            if words[1] == "FLOCK" and int(words[5].split(":")[2]) in files:
                return next((client for client in self.clients if client.worker.pid == int(words[4])), None)
        return None


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

    def __init__(self, directory: Path, machines: int, processes: int, spoil: Callable[[], None] = nothing) -> None:
        self.directory = directory
        self._work = partial(live, spoil=spoil)
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
        found: list[Operation] = []
        for client in [*self.clients, *self._gone]:
            if client.diary is not None and client.diary.exists():
                found += recorded(client.diary, client.number, client.machine.number)
                client.diary.unlink()
        assert not late, f"no write of these processes was acknowledged after all faults: {late}"
        return History(found, self._losses)

    def start_over(self) -> None:
        """Replace all processes, whatever they are at, and end all faults."""
        for client in self.clients:
            self._dismiss(client)
        self.calm()

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> Client:
        number = next(self._numbers)
        client = Client(number, machine, self._crew.start(self._work, number))
        machine.clients.append(client)
        return client

    def _tell(self, client: Client) -> None:
        assert self._case is not None
        case, machine = self._case, client.machine
        client.diary = self.directory / f"diary {case.name} {client.number}"
        seed = case.source.getrandbits(32)
        client.worker.tell(Part(machine.directory, machine.proxy.url, case.settings, case.keys, seed, client.diary))

    def kill(self, client: Client) -> None:
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
        client.worker.stop()
        client.is_stopped = True

    def go_on(self, client: Client) -> None:
        """Thaw a process, if it is still there."""
        if client.is_stopped and client in client.machine.clients:
            client.worker.go_on()
        client.is_stopped = False

    def calm(self) -> None:
        """End all faults of the network and of processes; those of the server end by themselves."""
        for machine in self.machines:
            machine.proxy.pass_everything()
        for client in self.clients:
            self.go_on(client)

    # -- the server ---------------------------------------------------------------------------------------------------

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
        self.standby.follow(self.server)

    def demote(self, left_behind: Sequence[Machine]) -> None:
        """Have the standby take over without a loss; some machines still reach the old one, which is cut off from it.

        They can read there, and it answers PING. `follow` ends that.
        """
        self.server.ask("CLIENT", "PAUSE", FAILOVER, "WRITE")
        awaited(lambda: self.standby.has_caught_up(self.server), "a standby that has caught up")
        self.standby.promote()
        self.server.follow_nobody_there()
        self.server.ask("CLIENT", "UNPAUSE")
        self.server, self.standby = self.standby, self.server
        self._lead(machine for machine in self.machines if machine not in left_behind)

    def follow(self) -> None:
        """Have all machines reach the server that takes writes, and the other one follow it."""
        self._lead(self.machines)
        self.standby.follow(self.server)

    def _lead(self, machines: Iterable[Machine]) -> None:
        for machine in machines:
            machine.proxy.lead_to(self.server.address)
            machine.proxy.cut()
