"""Forks in which a signal handler raises: Python prints that and forks all the same, and nobody waits for ever."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import diskcache_like
from diskcache_like import Cache, FanoutCache

from ..support.workers import PATIENCE, Crew, Link

PACKAGE = str(Path(diskcache_like.__file__).parent)


def fork_interrupted_at(number: int) -> bool:
    """Fork, and raise in the parent at the `number`-th place of the package's hooks; return whether there is one.

    A place is the beginning of a function or the return from one written in C: there CPython runs signal handlers.
    """
    places, parent, before = count(1), os.getpid(), sys.getprofile()
    raised = False

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal raised
        is_place = event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE)
        if is_place and os.getpid() == parent and next(places) == number:
            raised = True
            sys.setprofile(before)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    child = os.fork()
    if not child:
        os._exit(0)
    sys.setprofile(before)
    assert os.waitpid(child, 0)[1] == 0
    return raised


def ends_in_another_thread(work: Callable[[], object]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def fork_everywhere(_: Link, directory: Path, make: Callable[[Path], Cache]) -> int:
    """Fork once for each place, and raise there; return the number of places."""
    ignored: list[Any] = []
    sys.unraisablehook = lambda what: ignored.append(what.exc_type)
    with make(directory / "cache") as cache:
        cache["key"] = 0
        numbers = 0

        def go_on(number: int) -> None:
            cache["key"] = number
            assert cache.get(("cold", number)) is None
            make(directory / "another").close()

        while fork_interrupted_at(numbers + 1):
            numbers += 1
            assert ends_in_another_thread(partial(go_on, numbers)), f"they wait after place {numbers}"
            assert cache["key"] == numbers
            assert cache.set("key", -numbers)
    assert ignored.count(KeyboardInterrupt) == numbers
    return numbers


# In a process of its own, since a fork costs what the process has in memory: pytest's is fifty times as slow.
@pytest.mark.parametrize("make", [Cache, partial(FanoutCache, shards=2)], ids=["Cache", "FanoutCache"])
def test_other_threads_go_on_wherever_a_handler_raises(tmp_path: Path, make: Callable[[Path], Cache]) -> None:
    with Crew() as crew:
        assert crew.start(fork_everywhere, tmp_path, make).result() > 20
