"""What recipes need of a cache: who is asking, atomic steps on one key, and waiting for it to change."""

from __future__ import annotations

import secrets
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

from .cache import Cache
from .coherence import process_token
from .storage.transaction import current_task

SHORTEST_SLEEP = 0.001  # seconds to the end of a lease below which it is not worth while to sleep exactly as long


class Holder:
    """Stand for a thread or an asyncio task of this process as the owner of locks."""

    __slots__ = ("__weakref__", "name", "process")

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self.process = process_token()


_of_thread = threading.local()
_of_tasks: weakref.WeakKeyDictionary[object, Holder] = weakref.WeakKeyDictionary()


def current_holder() -> Holder:
    """Return the holder for the calling asyncio task, or thread; a forked child's is never its parent's."""
    task = current_task()
    holder: Holder | None = getattr(_of_thread, "holder", None) if task is None else _of_tasks.get(task)
    if holder is None or holder.process != process_token():
        holder = Holder()
        if task is None:
            _of_thread.holder = holder
        else:
            _of_tasks[task] = holder
    return holder


class Place:
    """One key of a cache, for steps that are atomic and for those who wait until it changes."""

    __slots__ = ("cache", "key")

    def __init__(self, cache: Cache, key: Any) -> None:
        self.cache = cache
        self.key = key

    def atomic(self, wait: float | None) -> AbstractContextManager[None]:
        """Make the body one transaction on the key's own shard; raise Timeout after `wait` seconds (None: never)."""
        return self.cache._locate(self.key)[2].transaction(wait)

    def stamp(self) -> int:
        """Return the generation to sleep on; ask for it before looking at what has to change."""
        _, h, store = self.cache._locate(self.key)
        store.ready()
        return store.slots[store.slot_of(h)]

    def sleep(self, stamp: int, seconds: float) -> None:
        """Sleep until the entry may have changed since `stamp`, `seconds` at most."""
        _, h, store = self.cache._locate(self.key)
        store.sleep_on(h, stamp, seconds)

    def wake(self) -> None:
        """Wake those who sleep, after a change."""
        _, h, store = self.cache._locate(self.key)
        store.wake(h)

    def in_transaction(self) -> bool:
        """Tell whether the caller is inside a transaction, where nothing that others do can become visible."""
        txn = self.cache._locate(self.key)[2].txn
        return txn is not None and txn.reads_here()

    def left(self, until: float | None) -> float:
        """Return the seconds until a moment of the cache's clock; None is never."""
        return float("inf") if until is None else max(until - self.cache._clock(), SHORTEST_SLEEP)
