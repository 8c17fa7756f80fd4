"""The children of a proof: forked from a process that never opened a cache, and what they share with it.

A proof that forks must hold no cache itself, so each part is played by a child, and the last of them looks at what the
others left behind.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from diskcache_like import Cache, FanoutCache
from tests.support.inspection import problems
from tests.support.integrity import mend
from tests.support.workers import Link, Worker, forked

KINDS = ("Cache", "FanoutCache")
SHARDS = 4
TIMEOUT = 60.0  # seconds; nothing here holds a lock for nearly as long
BRIEF = 5.0  # seconds in which a lock that nobody holds is got, on the busiest machine


def opened(kind: str, directory: Path, **settings: Any) -> Cache:
    """Open a handle; few slots, so that a directory is made quickly and keys share them."""
    options: dict[str, Any] = {"timeout": TIMEOUT, "durability": "process", "generation_slots": 1 << 10, **settings}
    return Cache(directory, **options) if kind == "Cache" else FanoutCache(directory, **{"shards": SHARDS, **options})


class Words:
    """Numbers in memory that a process shares with the children it forks; each has one writer at a time."""

    def __init__(self, number: int) -> None:
        self._page = mmap.mmap(-1, 8 * number)
        self.words = memoryview(self._page).cast("q")

    def __getitem__(self, index: int) -> int:
        return self.words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value


class Stage(ExitStack):
    """Children that are gone when the with-block ends."""

    def play(self, work: Callable[[Link], object]) -> Worker:
        """Have a child run `work(link)`."""
        return self.enter_context(forked(work))


@contextmanager
def told(name: str) -> Iterator[None]:
    """Put the name of what was tried on whatever is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in {name!r}")
        raise


def played(work: Callable[[], object]) -> Any:
    """Run `work()` in a child of its own, and return what it returns."""
    with forked(lambda link: work()) as child:
        return child.result()


def soundness(kind: str, directory: Path, abrupt: bool = False, **settings: Any) -> None:
    """Assert, in a process that has nothing to do with what happened, that a cache works and nobody holds a lock.

    `abrupt`: a process was killed, which may leave what `mend` takes away, and nothing else that is wrong.
    """
    with opened(kind, directory, **{**settings, "timeout": BRIEF}) as cache:
        with cache.transact(retry=False):  # Timeout, if anybody holds a lock of any shard
            cache.set("sound", 1)
        assert cache.incr("sound", retry=True) == cache["sound"] == 2
        assert cache.delete("sound", retry=True)
        if abrupt:
            mend(cache)
        found = problems(cache)
        assert found == [], f"check() finds {found}"
