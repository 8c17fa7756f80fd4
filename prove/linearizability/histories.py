"""What operations on a cache may answer: its sequential behaviour, for the checker.

The state is a tuple of cells: one for each place, which is a key or a queue, and a few for operations that take more
than one step. Modelled is what is promised, step by step:

- An operation on one key or queue is one step, and so is a `transact` within one shard, and each shard's part of a
  `set_many`. A `get_many` reads each key by itself.
- `clear` and `evict` remove what they find in one shard after the other, a batch at a time. The histories are far below
  a batch, so each step removes all that is there, and the last one in each shard finds nothing. To evict any of
  several tags is to evict one after the other in each shard. A soft `evict` decides about each key by itself.
- `get_or_set` that computes has the key's flight from before it finds nothing until it has stored its value, unless
  there is one by then; nobody else computes in that time. Else it is a read.
- To store on condition of a version, again until it succeeds, is one step that returns what it replaced.
- A `transact` over several shards has all their locks when it begins, and commits shard by shard: a reader without a
  transaction may meet one part before another, a writer or another transaction may not.

An operation that is `PENDING` was called by a client who was killed before it answered. Each of its parts takes effect
or does not: a transaction as a whole, of `clear` and `evict` as many steps as were made. What was committed may be seen
late, if the client died between a commit and what makes it known, but not after somebody else has written to the same
shard: that takes its place. So a write that is called when the client is gone closes what is pending in its shard. One
whose task was cancelled has taken effect by the time at which that task goes on, or it never does: whatever is called
later closes it. But a computation that somebody else waited for meanwhile goes on, and may store its value at any time.

An entry is (value, tags), with `EXPIRED` for the value of one that is there but dead: nobody sees it, except that
`clear` may count it. A queue is a tuple of items (value, tags), and answers with values alone, of which no two are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from diskcache_like.encoding.made_keys import NamespacedKey

from .checker import Effect, Operation, State, refuted

Cell = Any
Outcome = tuple[Any, Cell]  # what an operation answers on one place, and what is there then
Call = tuple[Any, ...]  # name and arguments; the first argument is the place, where there is one
Place = str | NamespacedKey  # a key or a queue
Tags = tuple[str, ...]  # sorted

EXPIRED = -1
WRONG = "wrong"  # stands for the cell after an operation that cannot have answered what it did
PENDING = "pending"  # stands for the answer that never came


class Recorded(NamedTuple):
    """An operation as it was recorded."""

    client: int
    call: Call
    called: int
    answer: Any
    returned: int  # of one that is pending: when its client was known to be gone
    cancelled: bool = False  # of one that is pending: its client went on, and by then it had taken effect or never does


# -- one place --------------------------------------------------------------------------------------------------------


def _value(entry: Cell) -> int | None:
    return None if entry is None or entry[0] == EXPIRED else entry[0]


def _set(entry: Cell, value: int, tags: Tags) -> Outcome:
    return True, (value, tags)


def _incr(entry: Cell, delta: int, default: int) -> Outcome:
    value = _value(entry)
    total, tags = (default + delta, ()) if value is None else (value + delta, entry[1])
    return total, (total, tags)


def _retag(entry: Cell, add: Tags, remove: Tags) -> Outcome:
    return True, (entry[0], tuple(sorted({*entry[1]} - {*remove} | {*add})))


def _has(tags: Tags, wanted: Tags, match: str) -> bool:
    return {*wanted} <= {*tags} if match == "all" else not {*wanted}.isdisjoint(tags)


def _push(queue: Cell, value: int, side: str, tags: Tags) -> Outcome:
    item = (value, tags)
    return True, (*queue, item) if side == "back" else (item, *queue)


def _first(queue: Cell, side: str) -> Any:
    return queue[0 if side == "front" else -1][0] if queue else None


def _where_there(rule: Callable[..., Outcome], missing: Any = False) -> Callable[..., Outcome]:
    """Return a rule that answers `missing`, and changes nothing, where nothing is there."""
    return lambda entry, *arguments: (missing, entry) if _value(entry) is None else rule(entry, *arguments)


RULES: dict[str, Callable[..., Outcome]] = {
    "get": lambda entry: (_value(entry), entry),
    "look": lambda entry: (_value(entry), entry),
    "entry": _where_there(lambda entry: (entry, entry), None),
    "set": _set,
    "swap": lambda entry, value, tags: (_value(entry), (value, tags)),
    "add": lambda entry, value, tags: (True, (value, tags)) if _value(entry) is None else (False, entry),
    "incr": _incr,
    "decr": lambda entry, delta, default: _incr(entry, -delta, default),
    "pop": _where_there(lambda entry: (entry[0], None), None),
    "delete": _where_there(lambda entry: (True, None)),
    "touch": _where_there(lambda entry: (True, entry)),
    "expire": _where_there(lambda entry: (True, (EXPIRED, entry[1]))),
    "retag": _where_there(_retag),
    "drop": lambda entry, tags, match: (
        None,
        None if _value(entry) is not None and _has(entry[1], tags, match) else entry,
    ),
    "push": _push,
    "pull": lambda queue, side: (_first(queue, side), queue[1:] if side == "front" else queue[:-1]),
    "peek": lambda queue, side: (_first(queue, side), queue),
}
_READS = ("get", "look", "entry", "peek", "touch")
_NO_CHANGE: dict[str, Any] = {
    **dict.fromkeys(("add", "delete", "expire", "retag"), False),
    "pop": None,
    "pull": None,
}


def followed(cell: Cell, call: Call, answer: Any) -> Cell:
    """Return a place after an operation, `WRONG` if that cannot have given this answer."""
    right, changed = RULES[call[0]](cell, *call[2:])
    return changed if answer is PENDING or (answer == right and type(answer) is type(right)) else WRONG


def changes(call: Call, answer: Any) -> bool:
    """Tell whether an operation on one place, having given this answer or none, may change that place."""
    name = call[0]
    return name not in _READS and not (name in _NO_CHANGE and answer == _NO_CHANGE[name])


# -- parts of operations ----------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What takes effect by itself of a recorded operation, and the places that it concerns."""

    whole: Recorded
    places: tuple[Place, ...]
    steps: tuple[tuple[Call, Any], ...] = ()  # operations on one place each, with their answers
    removes: bool = False  # removes entries from all places instead
    computes: bool = False  # finds nothing, and makes its step before anybody else computes
    undone: bool = False  # rolled back after its steps

    @property
    def changed(self) -> set[Place]:
        """The places that it may change by its steps."""
        return set() if self.undone else {call[1] for call, answer in self.steps if changes(call, answer)}

    @property
    def changes(self) -> bool:
        """Tell whether any state is another after this part."""
        return self.removes or bool(self.changed)

    @property
    def pending(self) -> bool:
        """Tell whether it was never answered."""
        return self.whole.answer is PENDING


def parts(recorded: Recorded, shards: Mapping[Place, int]) -> Iterator[Part]:
    """Yield the parts of an operation on a cache that has the places in these shards."""
    (name, *arguments), answer = recorded.call, recorded.answer
    pending = answer is PENDING
    if name == "get_many":
        for key in arguments[0]:
            yield Part(recorded, (key,), ((("get", key), PENDING if pending else answer.get(key)),))
    elif name == "set_many":
        items, tags = arguments
        for shard in sorted({shards[key] for key in items}):
            mine = [key for key in items if shards[key] == shard]
            done = PENDING if pending else answer == len(items)
            steps = tuple((("set", key, items[key], tags), done) for key in mine)
            yield Part(recorded, tuple(mine), steps)
    elif name == "transact":
        calls, undone = arguments
        places = tuple(dict.fromkeys(call[1] for call in calls))
        answers = [PENDING] * len(calls) if pending else answer
        yield Part(recorded, places, tuple(zip(calls, answers, strict=True)), undone=undone)
    elif name in ("clear", "evict"):
        yield Part(recorded, tuple(shards), removes=True)
    elif name == "soft":
        keys, tags, match = arguments
        for key in keys:
            yield Part(recorded, (key,), ((("drop", key, tags, match), answer),))
    elif name == "compute":
        key, value, tags = arguments
        if pending or answer == value:
            step = (("set", key, value, tags), PENDING if pending else True)
            yield Part(recorded, (key,), (step,), computes=not pending)
        else:
            yield Part(recorded, (key,), ((("get", key), answer),))
    else:
        yield Part(recorded, (arguments[0],), ((recorded.call, answer),))


# -- pieces -----------------------------------------------------------------------------------------------------------


NO_ORDER = "no order explains these operations"


class Piece:
    """Parts of operations that concern the same places: a history that can be checked by itself.

    After the cells of its places comes `held`, the shards in which a transaction is still to commit (a bit each), then
    the places whose flight somebody has (likewise), and then one cell for the progress of each part that takes several
    steps.
    """

    def __init__(self, places: Sequence[Place], shards: Mapping[Place, int]) -> None:
        self.parts: list[Part] = []
        self._shards = {place: shards[place] for place in places}
        self._index = {place: index for index, place in enumerate(places)}
        self._held = len(places)
        self._flights = self._held + 1

    def judged(self) -> list[str] | None:
        """Return None if the history is linearizable, else a text of it."""
        progress = first = self._flights + 1
        operations = []
        for part in self.parts:
            several = len({self._shards[place] for place in part.places}) > 1
            if part.removes:
                effect = self._removal(part, progress)
            elif part.computes:
                effect = self._computation(part, progress)
            elif several and part.changes:
                effect = self._transaction(part, progress)
            else:
                effect = self._step(part, alone=several or part.whole.call[0] == "transact")
            returned, closed_by = part.whole.returned, None
            if part.whole.cancelled:
                effect, returned = self._or_none(part, effect, progress), self._decided(part.whole)
            elif part.pending:
                closed_by = self._closing(part)
            progress += part.removes or part.computes or several
            operations.append(Operation(part.whole.called, returned, effect, part.changes, closed_by))
        queues = {call[1] for part in self.parts for call, _ in part.steps if call[0] in ("push", "pull", "peek")}
        cells = [() if place in queues else None for place in self._index]
        refutation = refuted(operations, (*cells, 0, 0, *([None] * (progress - first))))
        return None if refutation is None else self._told(refutation.placed, refutation.state)

    def _closing(self, pending: Part) -> frozenset[int]:
        """Return the parts after which a pending one takes no effect.

        The last commit of a removal may be to any of its shards, so only where there is one it is closed at all.
        """
        mine = {self._shards[place] for place in (pending.places if pending.removes else pending.changed)}
        if pending.removes and len(mine) > 1:
            return frozenset()
        return frozenset(
            index
            for index, part in enumerate(self.parts)
            if not part.pending
            and part.whole.called > pending.whole.returned
            and not mine.isdisjoint(self._shards[place] for place in part.changed)
        )

    def _decided(self, cancelled: Recorded) -> int:
        """Return when a cancelled operation had taken effect, if it ever did."""
        others = [part.whole for part in self.parts if part.whole is not cancelled]
        shared = cancelled.call[0] == "compute" and any(
            other.call[:2] == cancelled.call[:2]
            and other.called <= cancelled.returned
            and other.returned >= cancelled.called
            for other in others
        )
        return max(other.returned for other in others) if shared else cancelled.returned

    def _or_none(self, part: Part, effect: Effect, progress: int) -> Effect:
        """Return the effect of a cancelled part, which may have none, and of a removal a part."""
        in_steps = progress if len({self._shards[place] for place in part.places}) > 1 and not part.removes else None

        def perhaps(state: State) -> Iterator[tuple[State, bool]]:
            if in_steps is None or state[in_steps] is None:
                yield state, True
            yield from effect(state)

        return perhaps

    def _applied(self, part: Part) -> Callable[[State], State | None]:
        """Return what turns a state into the one after all steps of a part, or into None where an answer is wrong."""
        steps = [(self._index[call[1]], call, answer) for call, answer in part.steps]

        def apply(state: State) -> State | None:
            cells = list(state)
            for index, call, answer in steps:
                cells[index] = followed(cells[index], call, answer)
                if cells[index] is WRONG:
                    return None
            return tuple(cells)

        return apply

    def _step(self, part: Part, alone: bool) -> Effect:
        """Return the effect of a part that is one step; `alone`: it takes the locks of all shards."""
        apply, held = self._applied(part), self._held
        needs = -1 if alone else (1 << self._shards[part.places[0]] if part.changes else 0)

        def effect(state: State) -> Iterable[tuple[State, bool]]:
            if state[held] & needs:
                return ()
            after = apply(state)
            if after is None:
                return ()
            return ((state if part.undone else after, True),)

        return effect

    def _transaction(self, part: Part, progress: int) -> Effect:
        """Return the effect of a transaction over several shards: under all locks, then a commit for each shard."""
        apply, held, shards = self._applied(part), self._held, list(self._shards.values())

        def begin(state: State) -> Iterator[tuple[State, bool]]:
            after = None if state[held] else apply(state)
            if after is None:
                return
            new = [(index, after[index]) for index in range(held) if after[index] != state[index]]
            waiting = sum({1 << shards[index] for index, _ in new})
            yield (*state[:held], waiting, *state[held + 1 : progress], tuple(new), *state[progress + 1 :]), not new

        def commit(state: State, shard: int) -> tuple[State, bool]:
            cells = list(state)
            for index, cell in state[progress]:
                if shards[index] == shard:
                    cells[index] = cell
            cells[held] &= ~(1 << shard)
            cells[progress] = tuple((index, cell) for index, cell in state[progress] if shards[index] != shard)
            return tuple(cells), not cells[progress]

        def effect(state: State) -> Iterable[tuple[State, bool]]:
            if state[progress] is None:
                return begin(state)
            return [commit(state, shard) for shard in sorted({shards[index] for index, _ in state[progress]})]

        return effect

    def _computation(self, part: Part, progress: int) -> Effect:
        """Return the effect of a computation: it takes the flight when nothing is there, and stores where nothing is."""
        ((call, _),) = part.steps
        place, held, flights = self._index[call[1]], self._held, self._flights
        shard, flight = 1 << self._shards[call[1]], 1 << place

        def effect(state: State) -> Iterable[tuple[State, bool]]:
            cells, stores = list(state), state[progress] is not None
            if stores and _value(state[place]) is None:
                cells[place] = call[2:]
            cells[flights] ^= flight
            cells[progress] = None if stores else "computes"
            is_possible = (
                not state[held] & shard if stores else cells[flights] & flight and _value(state[place]) is None
            )
            return ((tuple(cells), stores),) if is_possible else ()

        return effect

    def _removal(self, part: Part, progress: int) -> Effect:
        """Return the effect of `clear` and `evict`: shard by shard, until nothing is found in it."""
        tags, match = part.whole.call[1:] or ((), "all")
        counts_expired = not tags
        total, held = part.whole.answer, self._held
        wanted = [tags] if match == "all" else [(tag,) for tag in tags]
        order = [(shard, each) for shard in sorted(set(self._shards.values())) for each in wanted]
        places = [[self._index[place] for place, its in self._shards.items() if its == shard] for shard, _ in order]

        def effect(state: State) -> Iterable[tuple[State, bool]]:
            turn, removed = state[progress] or (0, 0)
            if state[held] & 1 << order[turn][0]:
                return
            cells, live, dead = list(state), 0, 0
            for index in places[turn]:
                cells[index], here, expired = _without(cells[index], order[turn][1])
                live, dead = live + here, dead + expired
            # `clear` counts who expired, unless they were removed for that before; `evict` counts none of them.
            for found in (
                range(max(live, 1), live + dead + 1) if counts_expired else range(live, live + bool(live or dead))
            ):
                if total is PENDING or removed + found <= total:
                    cells[progress] = (turn, 0 if total is PENDING else removed + found)
                    yield tuple(cells), False
            if not live:
                last = turn + 1 == len(order)
                if not last:
                    yield (*state[:progress], (turn + 1, removed), *state[progress + 1 :]), False
                elif removed == total:  # one that is pending need not end
                    yield state, True

        return effect

    def _told(self, placed: frozenset[int], state: State) -> list[str]:
        shown = []
        for part in self.parts:
            text = ", ".join(f"{_spelled(call)} = {answer}" for call, answer in part.steps)
            if not part.steps:
                text = f"{_spelled(part.whole.call)} = {part.whole.answer}"
            text = f"transact({text})" if part.whole.call[0] == "transact" else text
            shown.append((part.whole, text + " undone" * part.undone, part.pending))
        return told(placed, shown, dict(zip(self._index, state, strict=False)))


def told(placed: frozenset[int], shown: Sequence[tuple[Recorded, str, bool]], state: object) -> list[str]:
    """Return a history as lines: each operation, its text, and whether it is pending.

    ">" marks what could not be placed where the search came furthest, "?" what is pending and has no effect there.
    """
    start = min(whole.called for whole, _, _ in shown)
    answered = {index for index, (_, _, pending) in enumerate(shown) if not pending}
    lines = [f"{NO_ORDER}; at most {len(placed & answered)} of {len(answered)} (µs, client):"]
    for index, (whole, text, pending) in sorted(enumerate(shown), key=lambda each: each[1][0].called):
        mark = " " if index in placed else "?" if pending else ">"
        began, ended = ((moment - start) / 1000 for moment in (whole.called, whole.returned))
        lines.append(f"{mark} {began:9.1f} {ended:9.1f}  {whole.client}  {text}")
    return [*lines, f"state: {state}"]


def _spelled(call: Call) -> str:
    return f"{call[0]}({', '.join(map(str, call[1:]))})"


def _without(cell: Cell, tags: Tags) -> tuple[Cell, int, int]:
    """Return a cell without entries that have all of the tags, and how many went, live and dead."""
    if cell is None:
        return cell, 0, 0
    if cell and not isinstance(cell[0], tuple):
        if not _has(cell[1], tags, "all"):
            return cell, 0, 0
        return None, int(cell[0] != EXPIRED), int(cell[0] == EXPIRED)
    kept = tuple(item for item in cell if not _has(item[1], tags, "all"))
    return kept, len(cell) - len(kept), 0


def pieces(history: Sequence[Recorded], shards: Mapping[Place, int]) -> list[Piece]:
    """Split a history by places that no operation connects: it is linearizable if each of them is.

    That linearizability is local, operation by operation, is P-compositionality (Horn and Kroening, 2015).
    """
    root = {place: place for place in shards}

    def find(place: Place) -> Place:
        while root[place] != place:
            place = root[place]
        return place

    found = [part for recorded in history for part in parts(recorded, shards) if part.changes or not part.pending]
    for part in found:
        for place in part.places:
            root[find(place)] = find(part.places[0])
    made: dict[Place, Piece] = {}
    for top in {find(place) for place in shards}:
        made[top] = Piece([place for place in shards if find(place) == top], shards)
    for part in found:
        made[find(part.places[0])].parts.append(part)
    return [piece for piece in made.values() if piece.parts]


def violations(history: Sequence[Recorded], shards: Mapping[Place, int]) -> list[str]:
    """Return a text for each piece of the history that is not linearizable."""
    told = (piece.judged() for piece in pieces(history, shards))
    return ["\n".join(lines) for lines in told if lines is not None]
