"""Two interpreters in one process: they share SQLite's locks, and none of Python's objects."""

from __future__ import annotations

import importlib
import pickle
import sys
import textwrap
import threading

from diskcache_like import Cache

from ..children import BRIEF
from .scenes import LARGE, SHORTLY, UNDONE, Scene, joined

TURNS = 20
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


def share_a_process(scene: Scene, cache: Cache) -> None:
    """Use a cache in two interpreters of one process, until one of them ends in the middle of things."""
    interpreters = importlib.import_module("_xxsubinterpreters")
    other, account = interpreters.create(), scene.accounts[0]

    def run(text: str) -> None:
        interpreters.run_string(other, textwrap.dedent(text))

    with scene.open(timeout=SHORTLY) as hasty:
        run(f"import sys; sys.path[:] = {sys.path!r}")
        run(f"import pickle; cache, hasty = pickle.loads({pickle.dumps((cache, hasty))!r})")
        with cache.transact(retry=True):
            account.count(cache)
            cache.set(UNDONE, 1)
            run(KEPT_OUT)
            cache.delete(UNDONE)
        thread = threading.Thread(target=run, args=(COUNT,))
        thread.start()
        for _ in range(TURNS):
            account.use(cache)
        joined(thread)
        assert cache.get("travelled") == cache.get("as often") == TURNS
        run(LEAVE)
        interpreters.destroy(other)
        with scene.open(timeout=BRIEF) as patient, patient.transact(retry=False):
            account.count(patient)
        account.use(cache)
