"""Handles that travel: pickled, to processes that are started in every way, to threads, and to other interpreters."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from diskcache_like import Cache, Deque, FanoutCache, Index, Lock
from tests.support.inspection import problems
from tests.support.workers import PATIENCE

from ..children import BRIEF
from .scenes import LARGE, UNDONE, Life, Scene, joined

SENDER = 0  # who counts up what in the process that sends
STARTED = 2  # processes
TURNS = 20
SHORTLY = 0.05  # seconds


class Handles(NamedTuple):
    """One of each kind of handle."""

    cache: Cache
    lock: Lock
    deque: Deque
    mapping: Index
    within: Cache | None  # a fanout cache


def handles_of(cache: Cache) -> Handles:
    """Return handles of a cache and of what is kept beside it or within it."""
    lock, beside = Lock(cache, ("lock", 0)), Path(cache.directory).parent
    if isinstance(cache, FanoutCache):
        return Handles(cache, lock, cache.deque("deque"), cache.index("index"), cache.cache("within"))
    return Handles(cache, lock, Deque(directory=beside / "deque"), Index(str(beside / "index")), None)


def use_handles(handles: Handles, number: int) -> None:
    """Use what came from another process; `number` tells this one from the others."""
    cache, lock, deque, mapping, within = handles
    assert cache.get("of the parent") == "value"
    with lock:
        cache.set("guarded", cache.get("guarded", 0) + 1, retry=True)
    with cache.transact(retry=True):
        cache.incr("travelled", retry=True)
    cache.set(("large", number), b"x" * LARGE, retry=True)
    assert deque[0] == "of the parent" == mapping["first"]
    deque.append(number)
    mapping[number] = number
    with mapping.transact():
        mapping["travelled"] += 1
    if within is not None:
        within.incr("travelled", retry=True)


def start_by(method: str, scene: Scene) -> None:
    """Send handles to processes that are started by one method, while this one goes on."""
    context: Any = multiprocessing.get_context(method)
    with scene.open() as cache:
        handles = handles_of(cache)
        handles.deque.append("of the parent")
        handles.mapping.update({"first": "of the parent", "travelled": 0})
        scene.accounts[SENDER].use(cache)
        started = [context.Process(target=use_handles, args=(handles, each)) for each in range(STARTED)]
        for process in started:
            process.start()
        scene.accounts[SENDER].use(cache)
        for process in started:
            process.join(PATIENCE)
            assert process.exitcode == 0, f"a process started by {method!r} ended with {process.exitcode}"
        look_at(handles)


def look_at(handles: Handles) -> None:
    """Assert that all that was sent wrote to the same places as here."""
    cache, _, deque, mapping, within = handles
    numbers = list(range(STARTED))
    assert cache.get("travelled") == cache.get("guarded") == STARTED
    assert deque.popleft() == "of the parent"
    assert sorted(deque) == numbers
    stored: dict[object, object] = {"first": "of the parent", "travelled": STARTED}
    assert mapping == stored | {number: number for number in numbers}
    for each in (deque.cache, mapping.cache, *([] if within is None else [within])):
        assert problems(each) == []
    assert within is None or within["travelled"] == STARTED


def travel_between_threads(scene: Scene) -> None:
    """Give threads the handle itself, and copies that were pickled: before, and within a transaction of the sender."""
    with scene.open() as cache:
        copies = [pickle.loads(pickle.dumps(cache)) for _ in range(2)]
        with cache.transact(retry=True):
            copies.append(pickle.loads(pickle.dumps(cache)))
            scene.accounts[SENDER].count(cache)

        def use(number: int, handle: Cache) -> None:
            for _ in range(5):
                scene.accounts[number].use(handle)
            handle.close()

        threads = [
            threading.Thread(target=use, args=(number, handle))
            for number, handle in enumerate([cache, cache, *copies], 1)
        ]
        for thread in threads:
            thread.start()
        joined(*threads)


# -- other interpreters in the same process: they share SQLite's locks, and none of Python's objects ------------------


class Interpreter:
    """An interpreter that has `cache` and `hasty`, copies of handles of this one."""

    def __init__(self, cache: Cache, hasty: Cache) -> None:
        self._module = importlib.import_module("_xxsubinterpreters")
        self._number = self._module.create()
        self.run(f"import sys; sys.path[:] = {sys.path!r}")
        self.run(f"import pickle; cache, hasty = pickle.loads({pickle.dumps((cache, hasty))!r})")

    def run(self, text: str) -> None:
        """Run a program there; raise if it does."""
        self._module.run_string(self._number, textwrap.dedent(text))

    def end(self) -> None:
        """End the interpreter, with all that is going on in it."""
        self._module.destroy(self._number)


KEPT_OUT = f"""
    from diskcache_like import Timeout
    try:
        with hasty.transact(retry=False):
            raise AssertionError("an interpreter writes within the transaction of another")
    except Timeout:
        assert cache.get({UNDONE!r}) is None and cache.get("of the parent") == "value"
"""
COUNT = f"""
    for _ in range({TURNS}):
        with cache.transact(retry=True):
            cache.incr("travelled", retry=True)
            cache.incr("as often", retry=True)
        assert cache.set("large", b"x" * {LARGE}, retry=True)
"""
LEAVE = f"""
    iterator, file = iter(cache), cache.read("large")
    next(iterator), file.read(10)
    transaction = cache.transact(retry=True)
    transaction.__enter__()
    cache.set({UNDONE!r}, 1)
"""


def share_a_process(scene: Scene) -> None:
    """Use a cache in two interpreters of one process, until one of them ends in the middle of things."""
    with scene.open() as cache, scene.open(timeout=SHORTLY) as hasty:
        other = Interpreter(cache, hasty)
        with cache.transact(retry=True):
            scene.accounts[SENDER].count(cache)
            cache.set(UNDONE, 1)
            other.run(KEPT_OUT)
            cache.delete(UNDONE)
        thread = threading.Thread(target=other.run, args=(COUNT,))
        thread.start()
        for _ in range(TURNS):
            scene.accounts[SENDER].use(cache)
        joined(thread)
        assert cache.get("travelled") == cache.get("as often") == TURNS
        other.run(LEAVE)
        other.end()
        with scene.open(timeout=BRIEF) as patient:
            scene.accounts[SENDER].try_to_count(patient)
        scene.accounts[SENDER].use(cache)


LIVES = [
    *(Life(f"started by {method}", partial(start_by, method)) for method in ("fork", "forkserver", "spawn")),
    Life("handles sent to threads", travel_between_threads),
]
if sys.version_info[:2] == (3, 11):  # later versions have interpreters under other names, and with locks of their own
    LIVES.append(Life("two interpreters in one process", share_a_process))
