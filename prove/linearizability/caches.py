"""Linearizability: several processes and threads work on few keys at once, and their answers must have one order.

Each history has keys of its own. Its clients, one to two threads in each of three processes, begin together; what they
call is drawn beforehand, every value is another one, and the times of call and return come from one clock. The handles
of the processes differ: with hot layer or without, generations read at times slowly, so that
others come in between two steps. All are on one directory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache
from diskcache_like.coherence.generations import prime_below
from diskcache_like.coherence.ring import Ring, Word, Written
from diskcache_like.encoding.made_keys import NamespacedKey, path_of
from diskcache_like.entries.atomic_key import AtomicKey
from tests.support.broken_writers import sabotage
from tests.support.rings import record_at, table_of
from tests.support.workers import Crew, Worker

from ..proof import Proof, Trial
from .checker import Undecided
from .clients import (
    PHASES,
    THREADS,
    Answered,
    Batch,
    Cancelled,
    Handle,
    Raised,
    Together,
    in_threads,
    opened,
    serve,
)
from .histories import NO_ORDER, PENDING, Call, Place, Recorded, Tags, violations

PROCESSES = 3
BATCH = 10  # histories of a case
LENGTH = (6, 10)  # operations of a client
LONG = (250, 400)  # the same of one in a long history
FANOUT = 3  # shards
NAMESPACE = path_of(("namespace",))
EVERYWHERE = ("slots", "slots", "slots", "few", "few", "files", "buffered", "buffered", "buffered")


# -- what is called ---------------------------------------------------------------------------------------------------

Weights = Mapping[str, int]

_ENTRIES = {"get": 30, "set": 14, "add": 6, "incr": 6, "decr": 2, "pop": 4, "delete": 5, "touch": 2, "expire": 2}
_LATER = {"look": 8, "entry": 4, "retag": 4, "swap": 5, "compute": 8}
EVERYDAY: Weights = {**_ENTRIES, **_LATER, "push": 4, "pull": 4, "peek": 2, "get_many": 5}
WHOLE: Weights = {**EVERYDAY, "transact": 10, "undone": 2, "set_many": 4, "evict": 3, "soft": 2, "clear": 1}
TORN: Weights = {**WHOLE, "undone": 0}  # without what shows a torn transaction even to one client


class History(NamedTuple):
    """What the clients of one history call."""

    before: list[Call]  # by the first client, ahead of all
    clients: list[list[Call]]
    clears: bool  # needs the cache for itself
    look: Sequence[list[Call]] = ()  # by each client, when all are done

    def phases(self, position: int) -> list[list[Call]]:
        """Return what a client calls before, at once with the others, and afterwards."""
        before = [] if position else self.before
        return [before, self.clients[position], *self.look[position : position + 1]]


class Draw:
    """Draws the calls of one history, whose keys, queue, tags and values occur in no other."""

    def __init__(self, source: random.Random, name: str, weights: Weights, length: tuple[int, int] = LENGTH) -> None:
        self._random = source
        self._weights = weights
        self._length = length
        self._number = 0
        self._queue_tags = (f"t{name}", f"u{name}")
        self._tags = (f"s{name}", *self._queue_tags)
        self.keys: list[Place] = [f"{letter}{name}" for letter in "abc"[: source.randint(1, 3)]]
        if source.random() < 0.5:
            self.keys[-1] = NamespacedKey(NAMESPACE, self.keys[-1])
        self.queue = f"q{name}"

    def history(self, clients: int) -> History:
        """Return all calls for so many clients."""
        clears = self._random.random() < 0.5  # one that has none need not wait for the others
        weights = self._weights if clears else {**self._weights, "clear": 0}
        before = [self._call("set", key) for key in self.keys if self._random.random() < 0.7]
        calls = [self._calls(weights) for _ in range(clients)]
        return History(before, calls, any(call[0] == "clear" for each in calls for call in each))

    def _calls(self, weights: Weights) -> list[Call]:
        warming = [("get", key) for key in self.keys]
        length = self._random.randint(*self._length)
        names = self._random.choices(list(weights), list(weights.values()), k=length)
        if self._random.random() < 0.25:  # looks on while others write: that costs little, and sees what goes back
            names = ["get"] * 3 * length
        return [*warming, *(self._call(name, self._random.choice(self.keys)) for name in names)]

    def _call(self, name: str, key: Place) -> Call:
        self._number += 1
        value, tags = self._number * 10_000, self._drawn_tags(self._tags)
        side, match = self._random.choice(("front", "back")), self._random.choice(("any", "all"))
        if name in ("set", "add", "swap", "compute"):
            return name, key, value, tags
        if name == "retag":
            return name, key, tags, self._drawn_tags(self._tags)
        if name in ("incr", "decr"):
            return name, key, self._number, value
        if name == "push":
            return name, self.queue, value, side, self._drawn_tags(self._queue_tags)
        if name in ("pull", "peek"):
            return name, self.queue, side
        if name == "get_many":
            return name, tuple(self.keys)
        if name == "set_many":
            return name, {each: value + index for index, each in enumerate(self.keys)}, tags
        if name == "evict":
            return name, tags or self._tags[1:2], match
        if name == "soft":  # with a tag that no item of the queue has, which its transactions take as they find it
            return name, tuple(self.keys), self._tags[:1], match
        if name == "clear":
            return (name,)
        if name in ("transact", "undone"):
            return "transact", self._transaction(), name == "undone"
        return name, key

    def _drawn_tags(self, known: Tags) -> Tags:
        return tuple(tag for tag in known if self._random.random() < 0.4)

    def _transaction(self) -> tuple[Call, ...]:
        """Return the calls of a transaction over two keys, or one key and the queue: reads, writes, perhaps a read."""
        places = self._random.sample([*self.keys, self.queue], 2)
        keys = [place for place in places if place != self.queue]
        kinds = ("set", "incr", "pop", "add", "delete", "get", "retag")
        calls = [("get", key) for key in keys]
        calls += [self._call(self._random.choice(kinds), key) for key in keys]
        if self.queue in places:
            calls.append(self._call(self._random.choice(("push", "pull")), self.queue))
        if self._random.random() < 0.5:
            calls.append(("get", self._random.choice(keys)))  # a write of its own
        return tuple(calls)


# -- the proofs -------------------------------------------------------------------------------------------------------


Where = Callable[[str], Callable[[Draw], Mapping[Place, int]]]  # directory, then history: the shards of its places


Finder = Callable[[Sequence[Recorded], Mapping[Place, int]], list[str]]


def unspoiled(_: Cache) -> None:
    """Leave a handle as it is."""


@dataclass(frozen=True)
class Linearizability:
    """Draws histories, has them played, and judges them."""

    weights: Weights
    shards: int = 1
    spoil: Callable[[Cache], None] = unspoiled
    spoiled: int = PROCESSES  # processes whose handles are
    places: tuple[str, ...] = EVERYWHERE  # to choose from, each as often as it is named
    least: int = 1  # cases, however short the time
    batch: int = BATCH  # histories of a case
    length: tuple[int, int] = LENGTH  # operations of a client
    draw: Callable[[random.Random, str, Weights, tuple[int, int]], Any] = Draw
    find: Finder = violations
    together: Together = in_threads
    numbers: tuple[int, ...] = (1, 1, THREADS)  # of clients in a process, to choose from

    def __call__(self, trial: Trial) -> None:
        """Run the proof."""
        with Crew() as crew, contextlib.ExitStack() as stack:
            where = functools.cache(partial(self._where, trial.kept, stack))
            workers = [
                crew.start(
                    serve, trial.kept, self.shards, self.spoil if number < self.spoiled else unspoiled, self.together
                )
                for number in range(PROCESSES)
            ]
            for worker in workers:
                worker.hear()
            trial.repeat(
                partial(self._case, trial, workers, where, itertools.count(1, PHASES * self.batch)), self.least
            )
            for worker in workers:
                worker.tell(None)
            crew.results(workers)

    def _case(
        self, trial: Trial, workers: Sequence[Worker], where: Where, moments: Iterator[int], source: random.Random
    ) -> None:
        """Have a batch of histories played, and judge each."""
        place = source.choice(self.places)
        handles = [Handle(place, source.random() < 0.8, source.random() < 0.4) for _ in workers]
        most = max(self.numbers)
        mine = [[most * process + each for each in range(source.choice(self.numbers))] for process in range(PROCESSES)]
        clients = [*itertools.chain(*mine)]
        draws = [self.draw(source, f"{trial.case}-{number}", self.weights, self.length) for number in range(self.batch)]
        histories = [draw.history(len(clients)) for draw in draws]
        answers = played(workers, batched(handles, next(moments), mine, histories))
        for number, (draw, history) in enumerate(zip(draws, histories, strict=True)):
            recorded = put_together(history, clients, [each[number] for each in answers])
            judge(trial, recorded, where(place)(draw), handles, self.find)

    def _where(self, directory: Path, stack: contextlib.ExitStack, place: str) -> Callable[[Draw], dict[Place, int]]:
        """Return what tells the shards of a history's places in one of the directories."""
        if self.shards == 1:
            return lambda draw: dict.fromkeys((*draw.keys, draw.queue), 0)
        cache = stack.enter_context(opened(directory, Handle(place, False), self.shards))
        return partial(places_of, cache)


def batched(
    handles: Sequence[Handle], first: int, mine: Sequence[Sequence[int]], histories: Sequence[History]
) -> list[Batch]:
    """Return what each process is told."""
    clients = tuple(itertools.chain(*mine))
    parts = [
        (
            history.clears or not number,  # what the histories before have left goes
            {client: history.phases(position) for position, client in enumerate(clients)},
        )
        for number, history in enumerate(histories)
    ]
    return [Batch(handle, first, clients, tuple(own), parts) for handle, own in zip(handles, mine, strict=True)]


def played(workers: Sequence[Worker], batches: Sequence[Batch]) -> list[list[list[Answered]]]:
    """Have the batches played, and return what each client was answered in each history."""
    for worker, batch in zip(workers, batches, strict=True):
        worker.tell(batch)
    return [client for worker in workers for client in worker.hear()]


def put_together(history: History, clients: Sequence[int], answers: Sequence[Sequence[Answered]]) -> list[Recorded]:
    """Return the operations of all clients with what they were answered."""
    found = []
    for position, client in enumerate(clients):
        calls = itertools.chain(*history.phases(position))
        found += [recorded(client, call, *answer) for call, answer in zip(calls, answers[position], strict=True)]
    return found


def recorded(client: int, call: Call, called: int, answer: Any, returned: int) -> Recorded:
    """Return an operation with what a client was answered."""
    if isinstance(answer, Cancelled):
        return Recorded(client, call, called, PENDING, returned, cancelled=True)
    return Recorded(client, call, called, answer, returned)


def places_of(cache: Cache, draw: Draw) -> dict[Place, int]:
    """Return the shard of each place of a history."""
    stores = cache._shards.stores
    places: dict[Place, int] = {key: stores.index(cache._rows.locate(key)[2]) for key in draw.keys}
    return {**places, draw.queue: stores.index(cache._rows.queue_store(draw.queue))}


def at_once(recorded: Sequence[Recorded]) -> int:
    """Return how many operations were called while one of another client was running."""
    ordered = sorted(recorded, key=lambda each: each.called)
    ended = itertools.accumulate((each.returned for each in ordered), max)
    return sum(later.called < latest for latest, later in zip(ended, ordered[1:], strict=False))


def judge(
    trial: Trial,
    recorded: Sequence[Recorded],
    places: Mapping[Place, int],
    handles: Sequence[Handle],
    find: Finder = violations,
) -> None:
    """Count a history, and note in which of its pieces there is no order."""
    trial.count("histories")
    trial.count("operations", len(recorded))
    trial.count("of them begun while another ran", at_once(recorded))
    if cancelled := sum(each.cancelled for each in recorded):
        trial.count("cancellations", cancelled)
    texts = [f"{each.call} raised {each.answer.error}" for each in recorded if isinstance(each.answer, Raised)]
    try:
        texts = texts or find(recorded, places)
    except Undecided:
        trial.count("histories with too many orders to try all")
    for text in texts:
        trial.violation(f"{text}\nhandles: {', '.join(map(str, handles))}\nshards: {dict(places)}")


# -- controls ---------------------------------------------------------------------------------------------------------

PAUSE = 0.001  # seconds by which a control widens the gap that it opens


def bump_late(cache: Cache) -> None:
    """Leave out the odd step, and change the generation some time after the commit only."""
    sabotage(cache, "late", PAUSE)


class Always:
    """Words that show whatever generation one looks for."""

    def __getitem__(self, _: int, /) -> Any:
        return self

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def trust_hits(cache: Cache) -> None:
    """Take what is in the hot layer without a look at its slot."""
    hot = cache._hot
    put = hot.put
    hot.put = lambda key, entry: put(key, (Always(), *entry[1:]))  # type: ignore[method-assign, arg-type]


def keep_walks(cache: Cache) -> None:
    """Let readers find in the write buffer what was there before a commit of another kind."""
    for store in cache._shards.stores:
        store.invalidation.end_walks = lambda: None  # type: ignore[method-assign]


def end_walks_late(cache: Cache) -> None:
    """Let readers find in the write buffer what was there before a commit of another kind, until some time after it."""
    for store in cache._shards.stores:
        around, end_walks = store.writer._around, store.invalidation.end_walks

        def late(*arguments: Any, around: Any = around, end_walks: Any = end_walks) -> int:
            try:
                return int(around(*arguments))
            finally:
                time.sleep(PAUSE)
                end_walks()

        store.invalidation.end_walks = lambda: None  # type: ignore[method-assign]
        store.writer._around = late  # type: ignore[assignment]


def _copied(self: Ring, h: int, stored: bytes) -> Written | None:
    """Find the newest record of a key as `Ring.find` does, but slowly, and believe what is overwritten meanwhile."""
    offset = table_of(self)[h % prime_below(self.slots)]
    while offset and offset >= self.words[Word.FLOOR]:
        time.sleep(5 * PAUSE)  # in which the others go around the ring
        header, body = record_at(self, offset)
        if header is None:
            return None
        if body.startswith(stored) and header.h == h:
            return Written(header.tick, h, stored, body[len(stored) :] if header.kind else None)
        offset = header.previous
    return None


def believe_copies(cache: Cache) -> None:
    """Let readers take what they copied from the ring, though it may have been overwritten."""
    Ring.find = _copied  # type: ignore[method-assign]


def count_in_two_steps(cache: Cache) -> None:
    """Have `incr` read first and write later."""

    def incr(key: Any, delta: int = 1, default: int = 0, retry: bool = False) -> int:
        value = cache.get(key)
        time.sleep(PAUSE)
        total = (default if value is None else value) + delta
        cache.set(key, total, retry=retry)
        return int(total)

    cache.incr = incr  # type: ignore[method-assign, assignment]


def tear_transactions(cache: Cache) -> None:
    """Have each write in a transaction be one by itself."""

    @contextlib.contextmanager
    def transact(retry: bool = False) -> Iterator[None]:
        yield

    cache.transact = transact  # type: ignore[method-assign]


def ignore_versions(cache: Cache) -> None:
    """Store on any condition of a version."""
    cache._has_version = lambda *_: True  # type: ignore[method-assign]


def share_flights(_: Cache) -> None:
    """Let everybody have a flight who wants it."""

    def hold(self: AtomicKey, owner: object) -> bool:
        time.sleep(PAUSE)
        return True

    AtomicKey.hold = hold  # type: ignore[method-assign]


def evict_in_two_steps(cache: Cache) -> None:
    """Have `evict` remove what had the tags when it looked, whatever became of that."""

    def evict(*_: Any, tags: Tags, match: Any, retry: bool, soft: bool = False) -> int:
        keys = list(cache.keys(tags=tags, match=match))
        time.sleep(PAUSE)
        return sum(cache.delete(key, retry=retry) for key in keys)

    cache.evict = evict  # type: ignore[method-assign, assignment]


def _control(spoil: Callable[[Cache], None], promise: int, what: str, weights: Weights = EVERYDAY) -> Proof:
    return Proof(promise, what, Linearizability(weights, spoil=spoil, least=30), share=0.5, finds=NO_ORDER)


_WHO = "3 to 6 clients in 3 processes at once, hot and cold"
PROOFS: dict[str, Proof] = {
    "linearizability-cache": Proof(
        1, f"{_WHO}: the operations on each key and queue are linearizable", Linearizability(EVERYDAY), share=3, bulk=4
    ),
    "linearizability-transactions": Proof(
        2,
        f"{_WHO}, with transact, set_many, evict and clear: all operations are linearizable",
        Linearizability(WHOLE),
        share=3,
        bulk=4,
    ),
    "linearizability-fanout": Proof(
        1,
        f"{_WHO}, over {FANOUT} shards: all operations are linearizable",
        Linearizability(WHOLE, FANOUT),
        share=3,
        bulk=4,
    ),
    "linearizability-long": Proof(
        1,
        f"{_WHO}: the same in histories of more than a thousand operations",
        Linearizability(EVERYDAY, batch=1, length=LONG),
        share=1.5,
        bulk=17.0,
    ),
    "linearizability-kept-walks": _control(
        keep_walks, 1, "records in the write buffer are found after a commit of another kind"
    ),
    "linearizability-late-floor": _control(
        end_walks_late, 1, "records in the write buffer are found until some time after a commit of another kind"
    ),
    "linearizability-believed-copies": Proof(
        1,
        "readers of the write buffer do not look whether what they copied was overwritten",
        Linearizability(
            {"get": 40, "set": 60, "incr": 20},
            spoil=believe_copies,
            spoiled=1,  # the others go around the ring while it walks
            places=("buffered",),
            least=10,
            batch=1,
            length=LONG,
        ),
        share=0.5,
        finds=NO_ORDER,
    ),
    "linearizability-late-generation": _control(bump_late, 1, "generations change only after the commit"),
    "linearizability-unchecked-hit": _control(trust_hits, 1, "hits do not check their generation"),
    "linearizability-two-step-incr": _control(count_in_two_steps, 2, "incr reads and writes in two steps"),
    "linearizability-ignored-version": _control(ignore_versions, 2, "set does not look at the version"),
    "linearizability-shared-flight": _control(
        share_flights, 2, "several compute a value at once", {"look": 4, "compute": 30, "delete": 8, "touch": 1}
    ),
    "linearizability-two-step-evict": _control(
        evict_in_two_steps, 2, "evict looks for tags and removes in two steps", {**_ENTRIES, "retag": 12, "evict": 12}
    ),
    "linearizability-torn-transaction": _control(tear_transactions, 2, "transact commits each write separately", TORN),
}
