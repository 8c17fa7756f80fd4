"""AtomicKey: one key of a cache, for atomic steps on its entry and for waiting until that changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..coherence.presence import Presence
from .row_codec import Expiry, RowCodec

SHORTEST_SLEEP = 0.001  # seconds; a shorter sleep is not worthwhile, even if a lease ends sooner


class AtomicKey:
    """What recipes need of a cache beside its operations: transactions on one key's shard, sleeping and waking."""

    __slots__ = ("_key", "_rows", "now")

    def __init__(self, rows: RowCodec, key: Any) -> None:
        self._rows = rows
        self._key = key
        self.now: Callable[[], float] = rows.clock  # by the cache's clock

    def transaction(self, wait: float | None) -> AbstractContextManager[None]:
        """Make the body one transaction on the key's own shard; raise Timeout after `wait` seconds (None: never)."""
        return self._rows.locate(self._key)[2].transaction(wait)

    def in_transaction(self) -> bool:
        """Tell whether the caller is inside a transaction, where it cannot see what others write."""
        return self._rows.locate(self._key)[2].in_transaction()

    def generation(self) -> int:
        """Return the generation to sleep on; read it before looking at the entry."""
        _, h, store = self._rows.locate(self._key)
        store.session.ready()
        return store.session.slots[store.session.slot_of(h)]

    def sleep(self, generation: int, seconds: float) -> None:
        """Sleep until the entry may have changed since `generation`, `seconds` at most."""
        _, h, store = self._rows.locate(self._key)
        store.sleep_on(h, generation, seconds)

    def wake(self) -> None:
        """Wake the sleepers; call it after a change."""
        _, h, store = self._rows.locate(self._key)
        store.wake(h)

    def presence(self) -> Presence:
        """Return what shows other processes that this one has the key's shard open."""
        return self._rows.locate(self._key)[2].session.presence()

    def left(self, until: float | None) -> float:
        """Return the seconds to sleep until a moment by the cache's clock; None means never."""
        return float("inf") if until is None else max(until - self.now(), SHORTEST_SLEEP)

    def expiry(self, expire: Expiry | None) -> float | None:
        """Return the moment that is `expire` seconds from now by the cache's clock; None means never."""
        return self._rows.expiry(expire)
