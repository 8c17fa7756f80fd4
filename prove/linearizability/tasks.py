"""Linearizability of the asyncio face: the clients are tasks, several in each process, and some calls are cancelled.

A cancelled call has taken effect by the time at which its task goes on, or it never does. When all are done, each
client looks at everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from diskcache_like import Cache
from diskcache_like.system import threads

from ..proof import Proof
from .caches import FANOUT, WHOLE, Draw, History, Linearizability, Weights
from .clients import RUN, Answered, Batch, Cancelled, Gate, Raised, take_part, told
from .histories import NO_ORDER, Call

TASKS = (1, 2, 3)  # in a process
OFTEN = 0.35  # part of the calls whose task is cancelled unless they have returned by then
DELAYS = (-5, -2.5)  # seconds until then, as powers of ten


class DrawLooked(Draw):
    """Draws histories at whose end all clients look at everything, one of them in a transaction."""

    def history(self, clients: int) -> History:
        """Return all calls for so many clients."""
        reads: list[Call] = [*(("get", key) for key in self.keys), ("peek", self.queue, "front")]
        whole: Call = ("transact", (*reads, ("peek", self.queue, "back")), False)
        return super().history(clients)._replace(look=[[whole, *reads], *([reads] * (clients - 1))])


# -- in the processes -------------------------------------------------------------------------------------------------


def in_tasks(cache: Cache, gate: Gate, batch: Batch) -> list[list[list[Answered]]]:
    """Play the parts of this process, each in a task of one event loop."""

    async def play_all() -> list[list[list[Answered]]]:
        face = cache.aio
        return await asyncio.gather(
            *(
                take_part(face, gate, batch, client, partial(play, face, delays(batch, client)), asyncio.sleep)
                for client in batch.mine
            )
        )

    return asyncio.run(play_all())


def delays(batch: Batch, client: int) -> Iterator[list[float]]:
    """Yield for each call after how many seconds its task is cancelled: never, once, or more than once."""
    source = random.Random(f"{client} {batch.histories}")
    while True:
        number = source.choice((1, 1, 2, 3)) if source.random() < OFTEN else 0
        yield [source.choice((0.0, 10 ** source.uniform(*DELAYS))) for _ in range(number)]


async def play(face: Any, cancelled: Iterator[list[float]], calls: Sequence[Call]) -> list[Answered]:
    """Make the calls and return what came of each, in turns with the other tasks."""
    clock, found = time.monotonic_ns, []
    for call in calls:
        await asyncio.sleep(0)
        called = clock()
        answer = await answer_of(face, call, next(cancelled))
        found.append((called, answer, clock()))
    return found


async def answer_of(face: Any, call: Call, cancelled: Sequence[float]) -> Any:
    """Make a call and return its answer; cancel this task meanwhile, after so many seconds."""
    name, *arguments = call
    try:
        with cancelling(cancelled) as task:
            answer = await told(RUN[name](face, *arguments))
            return Raised("no CancelledError, though it was cancelled") if task.cancelling() else answer
    except asyncio.CancelledError:
        return Cancelled()
    except Exception as error:
        return Raised(repr(error))


@contextlib.contextmanager
def cancelling(seconds: Sequence[float]) -> Iterator[asyncio.Task[Any]]:
    """Cancel this task after so many seconds, unless the body has ended by then."""
    task = asyncio.current_task()
    assert task is not None
    timers = [asyncio.get_running_loop().call_later(each, task.cancel) for each in seconds]
    try:
        yield task
    finally:
        for timer in timers:
            timer.cancel()
        while task.cancelling():
            task.uncancel()


# -- the proofs -------------------------------------------------------------------------------------------------------


def leave_cancelled_calls(_: Cache) -> None:
    """Have a call that is cancelled return at once, whatever goes on in its thread."""
    done = threads._done

    async def leave(future: Future[Any], shielded: bool = False) -> None:
        if not shielded:
            await done(future)

    threads._done = leave


_ON = partial(Linearizability, draw=DrawLooked, together=in_tasks, numbers=TASKS)
_WRITES: Weights = {"get": 10, "set": 20, "incr": 10, "delete": 5, "push": 5, "pull": 5}
_WHO = "3 to 9 asyncio tasks in 3 processes at once, whose calls are cancelled now and then"
PROOFS: dict[str, Proof] = {
    "linearizability-async": Proof(
        2,
        f"{_WHO}: all operations are linearizable, and a cancelled one has happened by then or never does",
        _ON(WHOLE),
        share=1.5,
        bulk=4,
    ),
    "linearizability-async-fanout": Proof(2, f"{_WHO}, over {FANOUT} shards", _ON(WHOLE, FANOUT), share=1, bulk=4),
    "linearizability-async-left": Proof(
        2,
        "a cancelled call returns while its thread still writes",
        _ON(_WRITES, spoil=leave_cancelled_calls, least=30),
        share=0.5,
        finds=NO_ORDER,
    ),
}
