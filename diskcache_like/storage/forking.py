"""Fork: bring every shard to rest before it, and rid the child of the connections that it inherited.

SQLite counts its file locks per process and file. Fork copies the counts, while the locks stay with the parent: a
child that opens the database beside inherited connections believes to hold locks that it does not have, and the last
close in the parent then deletes the WAL that the child writes to (measured: all of the child's writes lost). So the
child closes what it inherited, at once and before it opens anything.

Closing is harmless where a connection does nothing: the kernel keeps the parent's locks for the parent, there is
nothing to roll back, and those same locks keep it from being the last one, which would checkpoint. A connection that
another thread uses can be neither closed nor used, so the fork waits until no thread is inside SQLite. Where that
cannot be, as within a transaction, the connections are kept and the child refuses to open that directory: better than
to lose what it writes there.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from ..errors import Timeout, TransactionError
from . import opening

if TYPE_CHECKING:
    from ..coherence.lock import WriteLock
    from .connection import ReaderPool
    from .shard import Shard

PATIENCE = 5.0  # seconds that a fork waits for transactions of other threads to end


class _Fork(threading.local):
    """What the forking thread holds from before the fork until after it."""

    def __init__(self) -> None:
        self.mutex: threading.RLock | None = None
        self.alone = False  # no other thread is opening anything
        self.resting: list[WriteLock | ReaderPool] = []


# By age, the order in which a transaction over several shards takes their locks.
_shards: weakref.WeakValueDictionary[int, Shard] = weakref.WeakValueDictionary()
_ages = itertools.count()
_fork = _Fork()
_refused: set[str] = set()
_kept: list[object] = []


def watch(shard: Shard) -> None:
    """Have a shard brought to rest before each fork from now on."""
    with opening.mutex():
        _shards[next(_ages)] = shard


def refuse_inherited(directory: str) -> None:
    """Raise TransactionError in a child that cannot use this directory."""
    if _refused and os.path.realpath(directory) in _refused:
        raise TransactionError(
            f"{directory!r}: this process was forked while its parent, or another thread of it, was within a "
            "transaction on it, and cannot use it: fork outside of transact(), or start the process by 'spawn' or "
            "'forkserver'"
        )


def give_up(directory: str, connections: list[object]) -> None:
    """Refuse the directory in this process and keep what it inherited from ever being closed, even at its exit."""
    import ctypes

    _refused.add(os.path.realpath(directory))
    _kept.extend(connections)
    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


# Whatever a signal handler raises in one of these, Python prints it and forks, or goes on, all the same. So what is
# taken is noted first, and what gives it back does nothing where there is nothing to give.


def _before() -> None:
    if not _shards:
        return
    try:
        _fork.mutex = opening.mutex()  # nobody is opening a connection either
        _fork.alone = _fork.mutex.acquire(timeout=PATIENCE)
        _rest_all(time.monotonic() + PATIENCE)
    except BaseException:
        _resume()
        raise


def _rest_all(deadline: float) -> None:
    while time.monotonic() < deadline:
        try:
            for _, shard in sorted(_shards.items()):
                shard.rest(_fork.resting)
            return
        except Timeout:
            _resume()  # another thread may need one of these to let go of the other
            time.sleep(1e-3)


def _resume() -> None:
    while _fork.resting:
        _fork.resting[-1].resume()
        _fork.resting.pop()


def _after_in_parent() -> None:
    _resume()
    mutex = _fork.mutex
    if mutex is not None and mutex._is_owned():  # type: ignore[attr-defined]  # as in `lock`
        _fork.mutex = None
        mutex.release()
    _fork.mutex, _fork.alone = None, False


def _after_in_child() -> None:
    complete, _fork.mutex, _fork.alone = _fork.alone, None, False
    for _, shard in sorted(_shards.items()):
        shard.after_fork(complete)
    _fork.resting.clear()  # or the next fork would resume what only the parent has to


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
os.register_at_fork(after_in_parent=_after_in_parent)  # the first one may have been ended by what a handler raised
