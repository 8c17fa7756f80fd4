"""Clients whose process may be killed at any moment: what they called and were answered is in a file outside of it."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from diskcache_like import Cache
from diskcache_like.coherence.generations import Words
from tests.support.statement_hooks import watch
from tests.support.workers import JUDGING, PATIENCE, Link

from .clients import THREADS, Gate, Handle, Handles, Lingering, answer_of, at_once, play
from .histories import PENDING, Call, Recorded

READY, NOW, DONE = "ready", "now", "done"  # what a process tells: it can begin; it may be killed; it is at the end


# -- diaries ----------------------------------------------------------------------------------------------------------


class Diary:
    """What a client called and was answered, each written down as it happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def note(self, what: object) -> None:
        """Write down the moment of a call, or (answer, moment of return)."""
        self._file.write(pickle.dumps(what))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def recorded(path: Path, client: int, calls: Sequence[Call], gone: int) -> Iterator[Recorded]:
    """Yield the calls of a client that are in its diary; the last is pending if it was `gone` before that returned.

    A note that a kill has cut off was not made: that call had not begun, or was not acknowledged.
    """
    with path.open("rb") as file:
        for call in calls:
            called = _next(file)
            if called is None:
                return
            answer, returned = _next(file) or (PENDING, gone)
            yield Recorded(client, call, called, answer, returned)


def _next(file: Any) -> Any:
    try:
        return pickle.load(file)
    except (EOFError, pickle.UnpicklingError):
        return None


# -- when to be killed ------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """When a process tells that it may be killed."""

    client: int
    call: int  # of that client
    step: int  # 0: just before it is made; else before (odd) or after (even) a change of a generation or a COMMIT in it


class Fuse:
    """Tells once that the process may be killed; at a step it waits there for that."""

    def __init__(self, tell: Callable[[], None], wait: Callable[[], None]) -> None:
        self._tell, self._wait = tell, wait
        self._steps = 0  # that are left

    def light(self, steps: int) -> None:
        """Tell now, or at such a step from here."""
        self._steps = steps
        if not steps:
            self._tell()

    def step(self) -> None:
        """Count a step, and tell if it is the one."""
        self._steps -= 1
        if self._steps == 0:
            self._tell()
            self._wait()

    def commit(self, statement: str) -> None:
        """Count a COMMIT."""
        if statement == "COMMIT":
            self.step()

    def out(self) -> None:
        """Tell unless it is done: there were fewer steps."""
        if self._steps > 0:
            self._steps = 0
            self._tell()


class Stepped:
    """Words whose changes are steps of a fuse."""

    def __init__(self, words: Words, fuse: Fuse) -> None:
        self._words: Any = words
        self._fuse = fuse

    def __getitem__(self, index: int, /) -> int:
        return int(self._words[index])

    def __setitem__(self, index: int, value: int, /) -> None:
        self._fuse.step()
        self._words[index] = value
        self._fuse.step()

    def __len__(self) -> int:
        return len(self._words)

    def fill(self, value: int, /) -> None:
        self._words.fill(value)


# -- processes --------------------------------------------------------------------------------------------------------


def nothing() -> None:
    """Do nothing between the note of a call and the call."""


class Role(NamedTuple):
    """What one process does in one history."""

    handle: Handle
    moment: int  # of the gate
    clients: tuple[int, ...]  # of all processes
    calls: Mapping[int, tuple[list[Call], list[Call]]]  # of its own clients: what comes before, and then
    end: End | None = None


class Look(NamedTuple):
    """Calls that one process makes by itself, whose answers it tells."""

    handle: Handle
    calls: Sequence[Call]


def diary_of(directory: Path, client: int) -> Path:
    """Return the path of a client's diary of the present history."""
    return directory / f"diary {client}"


def live(link: Link, directory: Path, shards: int, spoil: Callable[[Cache], None]) -> None:
    """Play roles, and look, until the other side ends or this process is killed."""
    fuse = Fuse(partial(link.tell, NOW), partial(time.sleep, PATIENCE))

    handles = Handles(directory, shards, partial(prepare, spoil=spoil, fuse=fuse))
    with contextlib.closing(Gate(directory / "gate")) as gate, ThreadPoolExecutor(THREADS) as pool:
        while (told := link.hear(JUDGING)) is not None:
            cache = handles[told.handle]
            if isinstance(told, Look):
                link.tell(play(cache, told.calls))
                continue
            with contextlib.ExitStack() as stack:
                parts = [stack.enter_context(Part(cache, directory, told, client, fuse)) for client in told.calls]
                link.tell(READY)
                link.hear()  # while others open a handle, nobody keeps a processor busy at the gate
                for played in [pool.submit(part.play, gate) for part in parts]:
                    played.result()
            link.tell(DONE)
    handles.close()


def prepare(cache: Cache, spoil: Callable[[Cache], None], fuse: Fuse) -> None:
    """Spoil a handle; if it lingers at changes of generations, have these and commits burn the fuse."""
    lingers = isinstance(cache._shards.stores[0].session.slots, Lingering)
    spoil(cache)
    if lingers:
        watch(cache, fuse.commit, fuse.commit)
        for store in cache._shards.stores:
            slots: Any = Stepped(store.session.slots, fuse)
            store.session.slots = store.session.generations.slots = slots


class Part:
    """One client's part of a history, written down in its diary."""

    def __init__(self, cache: Cache, directory: Path, role: Role, client: int, fuse: Fuse) -> None:
        self._cache, self._role, self._client, self._fuse = cache, role, client, fuse
        self._diary = Diary(diary_of(directory, client))
        before, self._calls = role.calls[client]
        for call in before:
            self._note(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._diary.close()

    def play(self, gate: Gate) -> None:
        """Make the calls, as soon as all clients are at the gate."""
        at_once(gate.wait(self._client, self._role.moment, self._role.clients, time.sleep))
        for number, call in enumerate(self._calls):
            end = self._role.end
            if end is None or end[:2] != (self._client, number):
                self._note(call)
            else:
                self._note(call, partial(self._fuse.light, end.step))
                self._fuse.out()

    def _note(self, call: Call, begin: Callable[[], None] = nothing) -> None:
        self._diary.note(time.monotonic_ns())
        begin()
        answer = answer_of(self._cache, call)
        self._diary.note((answer, time.monotonic_ns()))
