"""Linearizability: several processes work on few keys at once, and their answers must have one order.

Each history has keys of its own. Its clients, threads or tasks of several processes, begin together; what they call is
drawn beforehand, and every value is another one. The handles of the processes differ: with a hot layer or without,
generations read at times slowly. All are on one directory.

Where processes are killed, what a killed client was not answered may have taken effect or not. When the others are done
a handle that was opened then looks at everything, and after it each survivor, whose hot layer must show nothing older.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache
from tests.support.inspection import problems
from tests.support.workers import PATIENCE, Crew, Forked, Silence, fork_worker

from ..proof import Trial, proof
from . import controls, structures
from .calls import ENTRIES, EVERYDAY, LENGTH, WHOLE, Draw, DrawLooked, History, Pairs, Raised, Weights, play
from .checker import Undecided
from .clients import (
    CLIENTS,
    NOW,
    PHASES,
    THREADS,
    End,
    Handle,
    Look,
    Role,
    Service,
    Together,
    diary_of,
    in_tasks,
    in_threads,
    opened,
    recorded,
)
from .histories import NO_ORDER, PENDING, Call, Place, Recorded, violations

ALIVE, MORTAL = (3, 3), (4, 8)  # processes of a history, at least and at most
BATCH, FEW_HISTORIES = 10, 6  # histories of a case; where processes are killed
LONG = (250, 400)  # operations of a client in a long history
KILLED = (6, 20)  # and where processes are killed
FANOUT = 3  # shards
EVERYWHERE = ("slots", "slots", "slots", "few", "few", "files", "buffered", "buffered", "buffered")
STEPS: dict[str, Sequence[int]] = {  # 0: as it begins; else before and after changes of generations and commits in it
    "transact": (*range(13), *(6, 7, 8, 9) * 3),  # most of these are between the commits of two shards
    **dict.fromkeys(("set_many", "clear", "evict", "soft"), range(9)),
}
FEW = range(5)  # of any other call
LURE = {  # how often a client is killed in such a call
    **dict.fromkeys(("get", "look", "entry", "get_many", "peek"), 1),
    "touch": 2,
    "transact": 12,
}
USUAL = 4  # in any other
LATEST = 4  # the longest delay of a kill is 10 ** LATEST turns of an empty loop
FRESH = -1  # stands for the client whose handle was opened when all were done


class Death(NamedTuple):
    """Which processes are killed when one of them tells its moment."""

    processes: tuple[int, ...]  # the first of them tells it
    end: End
    delay: int  # turns of an empty loop


class Crowd:
    """The processes of a proof, each replaced when it was killed."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
        self.directory = services[0].directory
        self.workers: list[Forked] = []

    def __enter__(self) -> Self:
        self.workers += [fork_worker(service.live) for service in self._services]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.dismiss()

    def play(self, roles: Mapping[int, Role], deaths: Sequence[Death]) -> dict[int, int]:
        """Have processes play their roles; return the moments at which the dead ones were gone."""
        for process, role in roles.items():
            self.workers[process].tell(role)
        Crew.together([self.workers[process] for process in roles])
        told = {self.workers[process].link.connection: process for process in roles}
        gone: dict[int, int] = {}
        while told:
            ready = wait(list(told), PATIENCE)
            if not ready:
                raise Silence(f"processes said nothing for {PATIENCE:.0f} s: {sorted(told.values())}")
            for connection in ready:
                process = told.pop(connection, None)  # type: ignore[call-overload]
                if process is not None and self.workers[process].hear() == NOW:
                    (death,) = [each for each in deaths if each.processes[0] == process]
                    gone |= self._kill(death)
                    told = {each: number for each, number in told.items() if number not in gone}
        return gone

    def _kill(self, death: Death) -> dict[int, int]:
        for _ in range(death.delay):
            pass
        for process in death.processes:
            self.workers[process].strike()
        for process in death.processes:
            self.workers[process].fall()
        return dict.fromkeys(death.processes, time.monotonic_ns())

    def replace(self, dead: Iterable[int]) -> None:
        """Start processes in the place of dead ones."""
        for process in dead:
            self.workers[process].dismiss()
            self.workers[process] = fork_worker(self._services[process].live)

    def look(self, handles: Mapping[int, Handle], calls: Sequence[Call]) -> list[Recorded]:
        """Have processes make the same calls, each with its handle."""
        for process, handle in handles.items():
            self.workers[process].tell(Look(handle, calls))
        found = []
        for process in handles:
            answers = self.workers[process].hear()
            found += [Recorded(CLIENTS * process, call, *each) for call, each in zip(calls, answers, strict=True)]
        return found


class Cast(NamedTuple):
    """Who takes part in the histories of a case."""

    place: str  # the directory
    handles: dict[int, Handle]  # of each process
    clients: tuple[int, ...]  # of all processes

    def own(self, process: int) -> list[int]:
        """Return the positions of a process' clients."""
        return [position for position, client in enumerate(self.clients) if client // CLIENTS == process]

    def roles(self, moment: int, histories: Sequence[History], deaths: Sequence[Death]) -> dict[int, Role]:
        """Return what each process does in some histories."""
        ends = {death.processes[0]: death.end for death in deaths}
        parts = [
            (
                history.clears or not number,  # what the histories before have left goes
                {client: history.phases(position) for position, client in enumerate(self.clients)},
            )
            for number, history in enumerate(histories)
        ]
        return {
            process: Role(
                handle,
                moment,
                self.clients,
                tuple(self.clients[position] for position in self.own(process)),
                parts,
                ends.get(process),
            )
            for process, handle in self.handles.items()
        }

    def recorded(self, directory: Path, histories: Sequence[History], gone: Mapping[int, int]) -> list[list[Recorded]]:
        """Return the operations of all clients in each history, as their diaries have them."""
        found: list[list[Recorded]] = [[] for _ in histories]
        for position, client in enumerate(self.clients):
            calls = [[*itertools.chain(*history.phases(position))] for history in histories]
            told = recorded(
                diary_of(directory, client), client, itertools.chain(*calls), gone.get(client // CLIENTS, 0)
            )
            for mine, each in zip(calls, found, strict=True):
                each += itertools.islice(told, len(mine))
        return found


@dataclass(frozen=True)
class Linearizability:
    """Draws histories, has them played, and judges them."""

    weights: Weights
    shards: int = 1
    spoil: Callable[[Cache], None] = lambda cache: None
    spoiled: int = MORTAL[1]  # processes whose handles are
    places: tuple[str, ...] = EVERYWHERE  # to choose from, each as often as it is named
    least: int = 1  # cases, however short the time
    batch: int = BATCH  # histories of a case
    length: tuple[int, int] = LENGTH  # operations of a client
    draw: Callable[[random.Random, str, Weights, tuple[int, int]], Any] = Draw
    find: Callable[[Sequence[Recorded], Mapping[Place, int]], list[str]] = violations
    together: Together = in_threads
    numbers: tuple[int, ...] = (1, 1, THREADS)  # of clients in a process, to choose from
    kills: bool = False  # some processes in each history
    slow: bool = False  # all handles linger at generations, not some, so that every call may be cut off there

    def __call__(self, trial: Trial) -> None:
        moments = itertools.count(1, PHASES * self.batch)
        service = Service(trial.kept, self.shards, self.spoil, self.together, self.kills)
        well = service._replace(spoil=lambda cache: None)
        processes = (MORTAL if self.kills else ALIVE)[1]
        with Crowd([service if number < self.spoiled else well for number in range(processes)]) as crowd:
            trial.repeat(partial(self._case, trial, crowd, moments), self.least)

    def _case(self, trial: Trial, crowd: Crowd, moments: Iterator[int], source: random.Random) -> None:
        """Have a batch of histories played, judge each, and see that the cache is whole."""
        cast = self.drawn_cast(source)
        draws = [self.draw(source, f"{trial.case}-{number}", self.weights, self.length) for number in range(self.batch)]
        try:
            for some in [[each] for each in draws] if self.kills else [draws]:
                self._play(trial, crowd, cast, some, next(moments), source)
        except BaseException:
            crowd.replace(range(len(crowd.workers)))  # whatever they are at
            raise
        if self.kills:
            with opened(crowd.directory, Handle(cast.place, False), self.shards) as cache:
                problems(cache, fix=True)
                assert problems(cache) == [], "not all was mended by fix=True"

    def drawn_cast(self, source: random.Random) -> Cast:
        """Draw who takes part; a process that may be killed has the same kind of handle in every case."""
        place = source.choice(self.places)
        processes = source.sample(range(MORTAL[1]), source.randint(*MORTAL)) if self.kills else range(ALIVE[1])
        handles = {
            process: Handle(place, process < 6, self.slow or process % 4 < 2)
            if self.kills
            else Handle(place, source.random() < 0.8, source.random() < 0.4)
            for process in processes
        }
        clients = (CLIENTS * each + one for each in processes for one in range(source.choice(self.numbers)))
        return Cast(place, handles, tuple(clients))

    def _play(
        self, trial: Trial, crowd: Crowd, cast: Cast, draws: Sequence[Any], moment: int, source: random.Random
    ) -> None:
        """Have some histories played, or one with kills, and judge each."""
        histories = [draw.history(len(cast.clients)) for draw in draws]
        deaths = drawn_deaths(source, cast, histories[0]) if self.kills else []
        gone = crowd.play(cast.roles(moment, histories, deaths), deaths)
        found = cast.recorded(crowd.directory, histories, gone)
        if self.kills or self.shards > 1:
            with opened(crowd.directory, Handle(cast.place, self.kills), self.shards) as cache:
                places = [places_of(cache, draw) for draw in draws]
                if self.kills:
                    found[0] += self._aftermath(trial, crowd, cast, draws[0], cache, found[0], gone)
        else:
            places = [dict.fromkeys((*draw.keys, draw.queue), 0) for draw in draws]
        for each, where in zip(found, places, strict=True):
            judge(trial, each, where, [*cast.handles.values()], self.find)

    @staticmethod
    def _aftermath(
        trial: Trial, crowd: Crowd, cast: Cast, draw: Any, cache: Cache, found: Sequence[Recorded], gone: dict[int, int]
    ) -> list[Recorded]:
        """Return what a new handle has read after the kills, and the survivors after it; clear the cache."""
        pending = [one for one in found if one.answer is PENDING]
        survivors = {process: handle for process, handle in cast.handles.items() if process not in gone}
        look = [*(("get", key) for key in draw.keys), *(("peek", draw.queue, side) for side in ("front", "back"))]
        seen = looked(play(cache, look), look, pending)
        seen += crowd.look(survivors, look)
        seen += drained(cache, draw.queue)
        cache.clear(retry=True)
        crowd.replace(gone)
        trial.count("kills", len(gone))
        trial.count("of them during an operation", len({one.client // CLIENTS for one in pending}))
        return seen


def drawn_deaths(source: random.Random, cast: Cast, history: History) -> list[Death]:
    """Draw one or two processes that are killed, and when; two of them at once or each at its own time."""
    victims = source.sample([*cast.handles], source.choice((1, 1, 2)))
    groups = [tuple(victims)] if source.random() < 0.5 else [(victim,) for victim in victims]
    return [
        Death(group, drawn_end(source, cast, history, group[0]), int(10 ** source.uniform(0, LATEST)))
        for group in groups
    ]


def drawn_end(source: random.Random, cast: Cast, history: History, process: int) -> End:
    """Draw when a process tells that it may be killed."""
    position = source.choice(cast.own(process))
    before, calls, *_ = history.phases(position)
    (number,) = source.choices(range(len(calls)), [LURE.get(call[0], USUAL) for call in calls])
    step = source.choice(STEPS.get(calls[number][0], FEW)) if cast.handles[process].slow else 0
    return End(cast.clients[position], len(before) + number, step)


def looked(
    answers: Sequence[tuple[int, object, int]], calls: Sequence[Call], pending: Sequence[Recorded]
) -> list[Recorded]:
    """Return what a fresh handle has read; what a pending transaction concerns is one reading.

    Opening the handle has completed what was cut off, and nobody writes any more, so no half of one is to be seen.
    """
    whole = {call[1] for one in pending if one.call[0] == "transact" for call in one.call[1]}
    found = [Recorded(FRESH, call, *each) for call, each in zip(calls, answers, strict=True)]
    together = [one for one in found if one.call[1] in whole]
    if not together:
        return found
    reads, read = tuple(one.call for one in together), tuple(one.answer for one in together)
    one = Recorded(FRESH, ("transact", reads, False), together[0].called, read, together[-1].returned)
    return [*(one for one in found if one not in together), one]


def drained(cache: Cache, queue: str) -> list[Recorded]:
    """Pull all that is in a queue."""
    found: list[Recorded] = []
    call = ("pull", queue, "front")
    while not found or found[-1].answer is not None:
        found += [Recorded(FRESH, call, *each) for each in play(cache, [call])]
    return found


def places_of(cache: Cache, draw: Draw) -> dict[Place, int]:
    """Return the shard of each place of a history."""
    stores = cache._shards.stores
    places: dict[Place, int] = {key: stores.index(cache._shards.of(cache._rows.locate(key)[1])) for key in draw.keys}
    return {**places, draw.queue: stores.index(cache._rows.queue_store(draw.queue))}


def judge(
    trial: Trial,
    recorded: Sequence[Recorded],
    places: Mapping[Place, int],
    handles: Sequence[Handle],
    find: Callable[[Sequence[Recorded], Mapping[Place, int]], list[str]] = violations,
) -> None:
    """Count a history, and note in which of its pieces there is no order."""
    ordered = sorted(recorded, key=lambda each: each.called)
    ended = itertools.accumulate((each.returned for each in ordered), max)
    trial.count("histories")
    trial.count("operations", len(recorded))
    trial.count(
        "of them begun while another ran",
        sum(later.called < latest for latest, later in zip(ended, ordered[1:], strict=False)),
    )
    if cancelled := sum(each.cancelled for each in recorded):
        trial.count("cancellations", cancelled)
    texts = [f"{each.call} raised {each.answer.error}" for each in recorded if isinstance(each.answer, Raised)]
    try:
        texts = texts or find(recorded, places)
    except Undecided:
        trial.count("histories with too many orders to try all")
    for text in texts:
        trial.violation(f"{text}\nhandles: {', '.join(map(str, handles))}\nshards: {dict(places)}")


# -- the proofs -------------------------------------------------------------------------------------------------------


def _proof(name: str, promise: int, what: str, run: Linearizability, share: float, bulk: float) -> None:
    proof(f"linearizability-{name}", promise, what, share=share, bulk=bulk)(run)


def _control(name: str, promise: int, what: str, run: Linearizability, share: float = 0.5) -> None:
    proof(f"linearizability-{name}", promise, what, share=share, finds=NO_ORDER)(run)


_ALL = "all operations are linearizable"
_WHO = "3 to 6 clients in 3 processes at once, hot and cold"
_proof("cache", 1, f"{_WHO}: the operations on each key and queue are linearizable", Linearizability(EVERYDAY), 3, 4)
_proof("transactions", 2, f"{_WHO}, with transact, set_many, evict and clear: {_ALL}", Linearizability(WHOLE), 3, 4)
_proof("fanout", 1, f"{_WHO}, over {FANOUT} shards: {_ALL}", Linearizability(WHOLE, FANOUT), 3, 4)
_LONG = Linearizability(EVERYDAY, batch=1, length=LONG)
_proof("long", 1, f"{_WHO}: the same in histories of more than a thousand operations", _LONG, 1.5, 17)

_STRUCTURE = partial(
    Linearizability, length=structures.LENGTH, draw=structures.DrawStructure, find=structures.violations
)
_proof("deque", 2, f"{_WHO}, on one Deque, with and without maxlen: {_ALL}", _STRUCTURE(structures.DEQUE), 1, 2)
_proof("index", 2, f"{_WHO}, on one Index: {_ALL}", _STRUCTURE(structures.INDEX), 1, 2)

_WHO = "one or two of 4 to 8 processes killed in each history, mostly during an operation"
_KILLS = partial(Linearizability, kills=True, length=KILLED, batch=FEW_HISTORIES, numbers=(1, 1, 1, THREADS))
_proof("kills", 2, f"{_WHO}: {_ALL}, and an interrupted one has happened or has not", _KILLS(WHOLE), 1.5, 8)
_proof("kills-fanout", 3, f"{_WHO}, over {FANOUT} shards", _KILLS(WHOLE, FANOUT), 1.5, 8)

_WHO = "3 to 9 asyncio tasks in 3 processes at once, whose calls are cancelled now and then"
_ASYNC = partial(Linearizability, draw=DrawLooked, together=in_tasks, numbers=(1, 2, CLIENTS))
_proof("async", 2, f"{_WHO}: {_ALL}, and a cancelled one has happened by then or never does", _ASYNC(WHOLE), 1.5, 4)
_proof("async-fanout", 2, f"{_WHO}, over {FANOUT} shards", _ASYNC(WHOLE, FANOUT), 1, 4)

_FLIGHTS: Weights = {"look": 4, "compute": 30, "delete": 8, "touch": 1}
_EVICTIONS: Weights = {**ENTRIES, "retag": 12, "evict": 12}
_TORN: Weights = {**WHOLE, "undone": 0}  # without what shows a torn transaction even to one client
_FOUND = "records in the write buffer are found"
_FLUSHED: Weights = {"get": 30, "set": 20, "evict": 20, "set_many": 20}  # often nothing waits before a commit
_CARRIES = controls.ask_nobody, {"get": 60, "set": 30, "set_many": 20}
_COMPUTED: Weights = {"look": 10, "compute": 30, "delete": 20, "set": 30}
_COUNTS: Weights = {"get": 10, "incr": 40, "set": 10}
_QUEUES: Weights = {"push": 30, "pull": 30, "set": 10}
for _name, _promise, _what, _spoil, _weights in (
    ("kept-walks", 1, f"{_FOUND} after a commit of another kind", controls.keep_walks, _FLUSHED),
    ("late-floor", 1, f"{_FOUND} until some time after a commit of another kind", controls.end_walks_late, _FLUSHED),
    ("kept-carried", 1, f"{_FOUND} after a commit that carries them", controls.keep_carried, WHOLE),
    ("unasked-carry", 2, f"{_FOUND} while a commit carries them, and nobody asks which is newer", *_CARRIES),
    ("numbers-alike", 2, "a push or pull ignores what was written since it looked", controls.number_alike, _QUEUES),
    ("blind-compute", 2, "a computed value is stored whatever was written meanwhile", controls.keep_blindly, _COMPUTED),
    ("blind-counts", 2, "incr ignores what was written since it looked", controls.count_blindly, _COUNTS),
    ("late-generation", 1, "generations change only after the commit", controls.bump_late, EVERYDAY),
    ("unchecked-hit", 1, "hits do not check their generation", controls.trust_hits, EVERYDAY),
    ("two-step-incr", 2, "incr reads and writes in two steps", controls.count_in_two_steps, EVERYDAY),
    ("ignored-version", 2, "set does not look at the version", controls.ignore_versions, EVERYDAY),
    ("shared-flight", 2, "several compute a value at once", controls.share_flights, _FLIGHTS),
    ("two-step-evict", 2, "evict looks for tags and removes in two steps", controls.evict_in_two_steps, _EVICTIONS),
    ("torn-transaction", 2, "transact commits each write separately", controls.tear_transactions, _TORN),
):
    _control(_name, _promise, _what, Linearizability(_weights, spoil=_spoil, least=30))
_BELIEVED = Linearizability(
    {"get": 40, "set": 60, "incr": 20},
    spoil=controls.believe_copies,
    spoiled=1,  # the others go around the ring while it walks
    places=("buffered",),
    least=10,
    batch=1,
    length=LONG,
)
_control(
    "believed-copies", 1, "readers of the write buffer do not look whether what they copied was overwritten", _BELIEVED
)
_TORN_DEQUE = _STRUCTURE(structures.DEQUE, spoil=controls.tear_transactions, least=30)
_control("torn-deque", 2, "transactions of a Deque commit each write separately", _TORN_DEQUE)
_ENDS: Weights = {"index.popitem": 30, "index.put": 30, "index.drop": 10}
_TAKEN = _STRUCTURE(_ENDS, spoil=controls.number_alike, least=30)
_control("ends-alike", 2, "the popitem of an Index ignores what was written since it looked", _TAKEN)
_WRITES: Weights = {"get": 10, "set": 20, "incr": 10, "delete": 5, "push": 5, "pull": 5}
_LEFT = _ASYNC(_WRITES, spoil=controls.leave_cancelled_calls, least=30)
_control("async-left", 2, "a cancelled call returns while its thread still writes", _LEFT)

_CUT_OFF = partial(_KILLS, batch=2, least=30)
_control(
    "kills-late-generation",
    1,
    "generations change only after the commit, and writers are killed between them",
    _CUT_OFF(WHOLE, spoil=partial(controls.bump_late, pause=0.0), slow=True),
    0.3,
)
_control(
    "kills-early-flush",
    2,
    "the write buffer says that records are in the database before the commit, and writers are killed between them",
    _CUT_OFF(WHOLE, spoil=controls.note_flushes_early),
)
_control(
    "kills-no-redo-log",
    3,
    "transactions over several shards have no redo log, and are killed between their commits",
    _CUT_OFF({"get": 20, "transact": 60}, FANOUT, controls.keep_no_redo_log, draw=Pairs, slow=True),
    0.3,
)
