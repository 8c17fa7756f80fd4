"""Fork: quiesce every shard before it, and rid the child of the connections that it inherited.

SQLite counts its file locks per process and file. Fork copies the counts, while the locks stay with the parent: a
child that opens the database beside inherited connections believes that it holds locks which it does not have, and
the last close in the parent then deletes the WAL that the child writes to (measured: all of the child's writes lost).
So the child closes what it inherited, at once and before it opens anything.

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
from typing import Protocol

from ...coherence.write_lock import WriteLock
from ...errors import Timeout, TransactionError
from ..opening.mutex import mutex
from ..sqlite.reader_pool import ReaderPool

Resumable = WriteLock | ReaderPool  # what is quiesced before a fork and resumed after it


class Forkable(Protocol):
    """What a fork needs of an open shard."""

    def quiesce(self, quiesced: list[Resumable]) -> None:
        """Keep other threads out of SQLite, and note what has to be resumed; raise Timeout if that cannot be."""

    def after_fork(self, complete: bool) -> None:
        """Rid the child of what is open; `complete` says that no thread was opening anything just then."""


PATIENCE = 5.0  # seconds that a fork waits for transactions of other threads to end


class _Fork(threading.local):
    """What the forking thread holds from before the fork until after it."""

    def __init__(self) -> None:
        self.mutex: threading.RLock | None = None
        self.alone = False  # no other thread is opening anything
        self.quiesced: list[Resumable] = []


# By age, the order in which a transaction over several shards takes their locks.
_shards: weakref.WeakValueDictionary[int, Forkable] = weakref.WeakValueDictionary()
_ages = itertools.count()
_fork = _Fork()
_refused: set[str] = set()
_kept: list[object] = []


def watch(shard: Forkable) -> None:
    """Quiesce a shard before each fork from now on."""
    with mutex():
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


# Whatever a signal handler raises in one of these, Python prints it and goes on with the fork. So what is taken is
# noted first, and giving it back does nothing if there is nothing to give back.


def _before() -> None:
    if not _shards:
        return
    deadline = time.monotonic() + PATIENCE
    try:
        while not _quiesce_all(deadline):
            time.sleep(1e-3)
    except BaseException:
        _resume()
        raise


def _quiesce_all(deadline: float) -> bool:
    """Take the mutex, so that nobody is opening a connection either, and quiesce every shard; give up at the deadline.

    Returns False, with nothing taken, if it is worth another try.
    """
    _fork.mutex = mutex()
    _fork.alone = _fork.mutex.acquire(timeout=max(deadline - time.monotonic(), 0))
    try:
        for _, shard in sorted(_shards.items()):
            shard.quiesce(_fork.quiesced)
    except Timeout:
        _resume()  # another thread may need one of these, or the mutex, to release the other
        if time.monotonic() < deadline:
            _release_mutex()
            return False
    return True


def _resume() -> None:
    while _fork.quiesced:
        _fork.quiesced[-1].resume()
        _fork.quiesced.pop()


def _release_mutex() -> None:
    held = _fork.mutex
    if held is not None and held._is_owned():  # type: ignore[attr-defined]  # as in `lock`
        _fork.mutex = None
        held.release()
    _fork.mutex, _fork.alone = None, False


def _after_in_parent() -> None:
    _resume()
    _release_mutex()


def _after_in_child() -> None:
    complete, _fork.mutex, _fork.alone = _fork.alone, None, False
    for _, shard in sorted(_shards.items()):
        shard.after_fork(complete)
    _fork.quiesced.clear()  # or the next fork would resume what only the parent has to


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
os.register_at_fork(after_in_parent=_after_in_parent)  # the first one may have been ended by what a handler raised
