"""Linearizability with kills: in each history one or two of the processes are killed, and the others go on.

What a killed client had called and was not answered may have taken effect or not; all else must be there. When the
others are done a handle that was opened then looks at everything, and after it each of the survivors, whose hot layers
must not show anything older. Who was killed is replaced before the next history.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple, Self

from diskcache_like import Cache
from diskcache_like.coherence import _native
from diskcache_like.coherence.ring import Mark, Ring
from diskcache_like.storage.redo_log import RedoLog
from tests.support.broken_writers import sabotage
from tests.support.inspection import problems
from tests.support.workers import PATIENCE, Crew, Forked, Silence, fork_worker

from ..proof import Proof, Trial
from .caches import EVERYWHERE, FANOUT, PAUSE, WHOLE, Draw, History, Weights, judge, places_of, unspoiled
from .clients import THREADS, Handle, opened, play
from .histories import NO_ORDER, NOTHING, PENDING, Call, Recorded
from .killed_clients import NOW, End, Look, Role, diary_of, live, recorded

PROCESSES = (4, 8)
BATCH = 6  # histories of a case
LENGTH = (6, 20)  # operations of a client
STEPS: dict[str, Sequence[int]] = {  # 0: as it begins; else before and after changes of generations and commits in it
    "transact": (*range(13), *(6, 7, 8, 9) * 3),  # most of these are between the commits of two shards
    "set_many": range(9),
    "clear": range(9),
    "evict": range(9),
    "soft": range(9),
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

    def __init__(self, directory: Path, shards: int, spoil: Callable[[Cache], None]) -> None:
        self.directory = directory
        self._work = partial(live, directory=directory, shards=shards, spoil=spoil)
        self.workers: list[Forked] = []

    def __enter__(self) -> Self:
        self.workers += [fork_worker(self._work) for _ in range(PROCESSES[1])]
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
            self.workers[process] = fork_worker(self._work)

    def restart(self) -> None:
        """Replace all processes, whatever they are at."""
        self.replace(range(len(self.workers)))

    def look(self, handles: Mapping[int, Handle], calls: Sequence[Call]) -> list[Recorded]:
        """Have processes make the same calls, each with its handle."""
        for process, handle in handles.items():
            self.workers[process].tell(Look(handle, calls))
        found = []
        for process in handles:
            answers = self.workers[process].hear()
            found += [Recorded(THREADS * process, call, *each) for call, each in zip(calls, answers, strict=True)]
        return found


class Cast(NamedTuple):
    """Who takes part in the histories of a case."""

    place: str  # the directory
    handles: dict[int, Handle]  # of each process
    clients: tuple[int, ...]  # of all processes

    def own(self, process: int) -> list[int]:
        """Return the positions of a process' clients."""
        return [position for position, client in enumerate(self.clients) if client // THREADS == process]

    def roles(self, moment: int, history: History, deaths: Sequence[Death]) -> dict[int, Role]:
        """Return what each process does in a history."""
        ends = {death.processes[0]: death.end for death in deaths}
        return {
            process: Role(
                handle,
                moment,
                self.clients,
                {
                    self.clients[position]: ([] if position else history.before, history.clients[position])
                    for position in self.own(process)
                },
                ends.get(process),
            )
            for process, handle in self.handles.items()
        }

    def recorded(self, directory: Path, history: History, gone: Mapping[int, int]) -> list[Recorded]:
        """Return the operations of all clients, as their diaries have them."""
        found: list[Recorded] = []
        for position, client in enumerate(self.clients):
            calls = [*([] if position else history.before), *history.clients[position]]
            found += recorded(diary_of(directory, client), client, calls, gone.get(client // THREADS, 0))
        return found


@dataclass(frozen=True)
class LinearizabilityWithKills:
    """Draws histories and kills, has them played, and judges them."""

    shards: int = 1
    weights: Weights = field(default_factory=lambda: WHOLE)
    spoil: Callable[[Cache], None] = unspoiled
    slow: bool = False  # all handles linger at generations, not half of them, so that every call may be cut off there
    batch: int = BATCH  # histories of a case
    draw: type[Draw] = Draw
    least: int = 1  # cases, however short the time

    def __call__(self, trial: Trial) -> None:
        """Run the proof."""
        moments = itertools.count(1)
        with Crowd(trial.kept, self.shards, self.spoil) as crowd:
            trial.repeat(partial(self._case, trial, crowd, moments), self.least)

    def _case(self, trial: Trial, crowd: Crowd, moments: Iterator[int], source: random.Random) -> None:
        """Have a batch of histories played, judge each, and see that the cache is whole."""
        cast = drawn_cast(source, self.slow)
        try:
            for number in range(self.batch):
                draw = self.draw(source, f"{trial.case}-{number}", self.weights, LENGTH)
                self._history(trial, crowd, cast, draw, next(moments), source)
        except BaseException:
            crowd.restart()
            raise
        with opened(crowd.directory, Handle(cast.place, False), self.shards) as cache:
            problems(cache, fix=True)
            assert problems(cache) == [], "not all was mended by fix=True"

    def _history(self, trial: Trial, crowd: Crowd, cast: Cast, draw: Draw, moment: int, source: random.Random) -> None:
        history = draw.history(len(cast.clients))
        deaths = drawn_deaths(source, cast, history)
        gone = crowd.play(cast.roles(moment, history, deaths), deaths)
        found = cast.recorded(crowd.directory, history, gone)
        pending = [one for one in found if one.answer is PENDING]
        survivors = {process: handle for process, handle in cast.handles.items() if process not in gone}
        look = [*(("get", key) for key in draw.keys), *(("peek", draw.queue, side) for side in ("front", "back"))]
        with opened(crowd.directory, Handle(cast.place, True), self.shards) as cache:
            places = places_of(cache, draw)
            found += looked(play(cache, look), look, pending)
            found += crowd.look(survivors, look)
            found += drained(cache, draw.queue)
            cache.clear(retry=True)
        crowd.replace(gone)
        trial.count("kills", len(gone))
        trial.count("of them during an operation", len({one.client // THREADS for one in pending}))
        judge(trial, found, places, [*cast.handles.values()])


def drawn_cast(source: random.Random, slow: bool) -> Cast:
    """Draw who takes part; each process has the same kind of handle in every case, so that it need not open many."""
    place = source.choice(EVERYWHERE)
    processes = source.sample(range(PROCESSES[1]), source.randint(*PROCESSES))
    handles = {process: handle_of(process, place, slow) for process in processes}
    threads = [source.choice((1, 1, 1, THREADS)) for _ in processes]
    clients = (THREADS * each + one for each, number in zip(processes, threads, strict=True) for one in range(number))
    return Cast(place, handles, tuple(clients))


def handle_of(process: int, place: str, slow: bool) -> Handle:
    """Return the handle of a process: six of eight hot, every other pair lingering."""
    return Handle(place, hot=process < 6, slow=slow or process % 4 < 2)


def drawn_deaths(source: random.Random, cast: Cast, history: History) -> list[Death]:
    """Draw one or two processes that are killed, and when; two of them at once or each at its own time."""
    victims = source.sample([*cast.handles], source.choice((1, 1, 2)))
    groups = [tuple(victims)] if source.random() < 0.5 else [(victim,) for victim in victims]
    return [Death(group, drawn_end(source, cast, history, group[0]), delay(source)) for group in groups]


def drawn_end(source: random.Random, cast: Cast, history: History, process: int) -> End:
    """Draw when a process tells that it may be killed."""
    position = source.choice(cast.own(process))
    calls = history.clients[position]
    (number,) = source.choices(range(len(calls)), [LURE.get(call[0], USUAL) for call in calls])
    step = source.choice(STEPS.get(calls[number][0], FEW)) if cast.handles[process].slow else 0
    return End(cast.clients[position], number, step)


def delay(source: random.Random) -> int:
    """Draw how many turns of an empty loop a kill is late."""
    return int(10 ** source.uniform(0, LATEST))


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
    while not found or found[-1].answer != NOTHING:
        found += [Recorded(FRESH, call, *each) for each in play(cache, [call])]
    return found


# -- controls ---------------------------------------------------------------------------------------------------------


def bump_late(cache: Cache) -> None:
    """Change the generation after the commit only."""
    sabotage(cache, "late")


def note_flushes_early(cache: Cache) -> None:
    """Say in the write buffer that records are in the database before the commit that takes them there."""
    for store in cache._shards.stores:
        buffer = store.writer.buffer
        buffer._gather = partial(_gather_and_note, buffer._gather)  # type: ignore[method-assign]


def _gather_and_note(
    gather: Callable[[Ring], tuple[dict[bytes | int, _native.Net], Mark | None]], ring: Ring
) -> tuple[dict[bytes | int, _native.Net], Mark | None]:
    net, mark = gather(ring)
    if mark is not None:
        ring.flushed(mark)
        time.sleep(PAUSE)
    return net, mark


class Pairs(Draw):
    """Draws transactions that count in a key and in a queue, so that no other hides a half of one."""

    def _transaction(self) -> tuple[Call, ...]:
        return self._call("incr", self.keys[0]), self._call("push", self.keys[0])


def keep_no_redo_log(_: Cache) -> None:
    """Commit a transaction over several shards shard by shard, with nothing that would complete it."""
    RedoLog.decide = lambda self, txns: []  # type: ignore[method-assign]


_WHO = "one or two of 4 to 8 processes killed in each history, mostly during an operation"
PROOFS: dict[str, Proof] = {
    "linearizability-kills": Proof(
        2,
        f"{_WHO}: all operations are linearizable, and an interrupted one has happened or has not",
        LinearizabilityWithKills(),
        share=1.5,
        bulk=8.0,
    ),
    "linearizability-kills-fanout": Proof(
        3, f"{_WHO}, over {FANOUT} shards", LinearizabilityWithKills(FANOUT), share=1.5, bulk=8.0
    ),
    "linearizability-kills-late-generation": Proof(
        1,
        "generations change only after the commit, and writers are killed between them",
        LinearizabilityWithKills(spoil=bump_late, slow=True, batch=2, least=30),
        share=0.3,
        finds=NO_ORDER,
    ),
    "linearizability-kills-early-flush": Proof(
        2,
        "the write buffer says that records are in the database before the commit, and writers are killed between them",
        LinearizabilityWithKills(spoil=note_flushes_early, batch=2, least=30),
        share=0.5,
        finds=NO_ORDER,
    ),
    "linearizability-kills-no-redo-log": Proof(
        3,
        "transactions over several shards have no redo log, and are killed between their commits",
        LinearizabilityWithKills(FANOUT, {"get": 20, "transact": 60}, keep_no_redo_log, True, 2, Pairs, least=30),
        share=0.3,
        finds=NO_ORDER,
    ),
}
