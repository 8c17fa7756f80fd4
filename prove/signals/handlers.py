"""Signals whose handlers use the cache in the middle of a call: at every line of the package, and at any time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import diskcache_like
from diskcache_like import Cache, TransactionError

from ..lives.scenes import LARGE, Account, Life, Scene, live_all
from ..proof import Proof, Trial

MAIN, HANDLER = 0, 1  # who counts up what
PACKAGE = os.path.dirname(diskcache_like.__file__)
PATIENCE = 3.0  # seconds after which a handler that waits for the call it interrupts gives up, which is a violation
PARTS = 16  # of the lines of one call, each a life
SIGNALS = 150  # at any time, in one life
SHORTEST, LONGEST = 20e-6, 2e-3  # seconds between them


class Handler:
    """What a signal handler does with the cache: it is done, or it is refused by TransactionError.

    It always finds what `other`, another handle of the cache, wrote last.
    """

    def __init__(self, cache: Cache, other: Cache, account: Account) -> None:
        self._cache, self._other, self._account = cache, other, account
        self.newest = self.calls = self.refused = 0
        self.errors: list[BaseException] = []
        self.write()

    def write(self) -> None:
        """Have the other handle write, so that something waits in the write buffer; no handler may run meanwhile."""
        self.newest += 1
        self._other.set("newest", self.newest, retry=True)

    def __call__(self, *where: object) -> None:
        """Read and write; note what went wrong, with the place."""
        try:
            self._use()
        except BaseException as error:
            error.add_note(f"in a handler that interrupted {where}")
            self.errors.append(error)

    def told(self) -> dict[str, int]:
        """Return how often it was called and refused."""
        return {"interruptions": self.calls, "refused by TransactionError": self.refused}

    def _use(self) -> None:
        cache = self._cache
        self.calls += 1
        assert cache.get("of the parent") == "value"
        assert cache.get("newest") == self.newest
        cache._hot.discard("of the parent")  # the next one reads it from the database
        try:
            kept = cache.set(("by a handler", self.calls % 7), self.calls) or "a set was given up"
            self._account.try_to_count(cache)
        except TransactionError:
            self.refused += 1
        else:
            assert kept is True, kept


class AtLine:
    """Call a handler at the `number`-th line that is run in the package."""

    def __init__(self, number: int, handler: Handler) -> None:
        self._number, self._handler = number, handler
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._number:
                sys.settrace(None)
                self._handler(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        return self._line


@contextmanager
def traced(tracer: AtLine) -> Iterator[None]:
    """Have `tracer` called at every line."""
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(None)


# -- what is interrupted ----------------------------------------------------------------------------------------------


def set_large(cache: Cache, account: Account) -> None:
    cache.set("large", b"x" * LARGE, retry=True)
    assert cache["large"] == b"x" * LARGE


def read_cold(cache: Cache, account: Account) -> None:
    cache._hot.clear()
    assert cache.get("of the parent") == "value"
    assert cache.get_many(["of the parent", "missing"]) == {"of the parent": "value"}


def remove(cache: Cache, account: Account) -> None:
    assert cache.add("removed", 1, retry=True)
    assert cache.delete("removed", retry=True)
    assert cache.pop("removed", 7, retry=True) == 7


def queue(cache: Cache, account: Account) -> None:
    cache.push(1, "queue", retry=True)
    assert cache.pull("queue", retry=True)[1] == 1


def many(cache: Cache, account: Account) -> None:
    assert cache.set_many(dict.fromkeys("abc", 1), tag="many", retry=True) == 3
    assert cache.evict("many", retry=True) == 3


def tag(cache: Cache, account: Account) -> None:
    assert cache.set("tagged", 1, tags=["one", "two"], retry=True)
    assert cache.retag("tagged", ["three"], ["one"], retry=True)
    assert list(cache.keys(tags=["three"])) == ["tagged"]
    assert cache.set("tagged", 2, tags=["two"], if_version=cache.get_entry("tagged").version, retry=True)
    assert cache.evict(tags=["two", "three"], retry=True) == 1


def compute(cache: Cache, account: Account) -> None:
    cache.delete("computed", retry=True)
    assert cache.get_or_set("computed", lambda: 3, tags=["computed"]) == 3
    assert cache.evict(tags=["computed"], soft=True, retry=True) == 1


def iterate(cache: Cache, account: Account) -> None:
    assert "of the parent" in list(cache)
    assert len(cache) >= 1


def open_again(cache: Cache, account: Account) -> None:
    cache.close()
    assert cache.get("of the parent") == "value"


def fork(cache: Cache, account: Account) -> None:
    pid = os.fork()
    if pid == 0:
        sys.settrace(None)
        os._exit(0)
    os.waitpid(pid, 0)


CALLS: dict[str, Callable[[Cache, Account], None]] = {
    "incr": lambda cache, account: account.count(cache),
    "transact": lambda cache, account: account.pair(cache),
    "set of a file": set_large,
    "cold reads": read_cold,
    "add, delete and pop": remove,
    "push and pull": queue,
    "set_many and evict": many,
    "tags": tag,
    "get_or_set": compute,
    "iteration": iterate,
    "close and reopening": open_again,
    "a fork": fork,
}


READS = ("cold reads", "iteration")  # calls that neither write nor open anything: no handler is ever refused


def judge(cache: Cache, handler: Handler) -> None:
    """Raise what went wrong in the handler, and see that the cache still reads and counts its entries rightly."""
    if handler.errors:
        raise handler.errors[0]
    assert cache["newest"] == handler.newest
    assert len(cache) == len(list(cache)), f"{len(list(cache))} entries are counted as {len(cache)}"


def interrupt_everywhere(name: str, part: int, scene: Scene) -> dict[str, int]:
    """Interrupt a call at every `PARTS`-th line, from that numbered `part` on."""
    call = CALLS[name]
    with scene.open(timeout=PATIENCE) as cache, scene.open() as other:
        handler = Handler(cache, other, scene.accounts[HANDLER])
        call(cache, scene.accounts[MAIN])
        for number in count(1 + part, PARTS):
            if name not in READS:
                handler.write()
            tracer = AtLine(number, handler)
            with traced(tracer):
                call(cache, scene.accounts[MAIN])
            judge(cache, handler)
            assert name not in READS or not handler.refused, "a handler that interrupts a read is refused a write"
            if tracer.lines < number:
                break
    return handler.told()


def interrupt_at_any_time(scene: Scene) -> dict[str, int]:
    """Make all the calls, while signals come at random."""
    with scene.open(timeout=PATIENCE) as cache, scene.open() as other:
        handler = Handler(cache, other, scene.accounts[HANDLER])

        def handle(number: int, frame: FrameType | None) -> None:
            handler(frame)
            if handler.calls < SIGNALS:
                signal.setitimer(signal.ITIMER_REAL, scene.draw.uniform(SHORTEST, LONGEST))

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, SHORTEST)
        while handler.calls < SIGNALS and not handler.errors:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            handler.write()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            scene.draw.choice(list(CALLS.values()))(cache, scene.accounts[MAIN])
        signal.setitimer(signal.ITIMER_REAL, 0)
        judge(cache, handler)
    return handler.told()


LIVES = [
    Life(f"{name} interrupted at every line, part {part} of {PARTS}", partial(interrupt_everywhere, name, part))
    for name in CALLS
    for part in range(PARTS)
]


def interrupt(trial: Trial) -> None:
    """Interrupt every call at every line."""
    live_all(trial, LIVES)


def at_any_time(trial: Trial) -> None:
    """Interrupt calls at random."""
    live_all(trial, [Life("calls interrupted at any time", interrupt_at_any_time)])


PROOFS: dict[str, Proof] = {
    "lives-signals": Proof(
        6, "signal handlers use the cache at every line of every call", interrupt, share=0.7, bulk=4.0, parallel=True
    ),
    "lives-signals-any-time": Proof(6, "the same at random moments", at_any_time, share=0.3),
}
