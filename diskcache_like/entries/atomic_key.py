"""AtomicKey: one key of a cache, for atomic steps on its entry and for waiting until that changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..coherence.presence import Presence
from .row_codec import Expiry, Location, RowCodec

SHORTEST_SLEEP = 0.001  # seconds; a shorter sleep is not worthwhile, even if a lease ends sooner


class AtomicKey:
    """What recipes need of a cache beside its operations: transactions on one key's shard, sleeping and waking."""

    __slots__ = ("_key", "_location", "_rows", "now")

    def __init__(self, rows: RowCodec, key: Any) -> None:
        self._rows = rows
        self._key = key
        self._location: Location | None = None
        self.now: Callable[[], float] = rows.clock  # by the cache's clock

    def _found(self) -> Location:
        """Return where the key lives, which is looked for once."""
        if self._location is None:
            self._location = self._rows.locate(self._key)
        return self._location

    @property
    def stored(self) -> bytes:
        """Return the stored key."""
        return self._found()[0]

    def transaction(self, wait: float | None) -> AbstractContextManager[None]:
        """Make the body one transaction on the key's own shard; raise Timeout after `wait` seconds (None: never)."""
        return self._found()[2].transaction(wait)

    def in_transaction(self) -> bool:
        """Tell whether the caller is inside a transaction, where it cannot see what others write."""
        return self._found()[2].in_transaction()

    def generation(self) -> int:
        """Return the generation to sleep on; read it before looking at the entry."""
        _, h, store = self._found()
        store.session.ready()
        return store.session.slots[store.session.slot_of(h)]

    def sleep(self, generation: int, seconds: float) -> None:
        """Sleep until the entry may have changed since `generation`, `seconds` at most."""
        _, h, store = self._found()
        store.sleep_on(h, generation, seconds)

    def wake(self) -> None:
        """Wake the sleepers; call it after a change."""
        _, h, store = self._found()
        store.wake(h)

    def presence(self) -> Presence:
        """Return what shows other processes that this one has the key's shard open."""
        return self._found()[2].session.presence()

    def hold(self, owner: object) -> bool | None:
        """Hold the key if nobody does, until `let_go` or the end of the process; None where that is not possible."""
        _, h, store = self._found()
        presence = store.session.presence()
        return presence.hold(h >> 2, owner) if presence.name else None

    def let_go(self, owner: object) -> None:
        """Let go of a key if this owner holds it."""
        _, h, store = self._found()
        store.session.presence().let_go(h >> 2, owner)

    def left(self, until: float | None) -> float:
        """Return the seconds to sleep until a moment by the cache's clock; None means never."""
        return float("inf") if until is None else max(until - self.now(), SHORTEST_SLEEP)

    def expiry(self, expire: Expiry | None) -> float | None:
        """Return the moment that is `expire` seconds from now by the cache's clock; None means never."""
        return self._rows.expiry(expire)
