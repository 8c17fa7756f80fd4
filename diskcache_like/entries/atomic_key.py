"""AtomicKey: one key of a cache, for atomic changes of its entry and for waiting until that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..disk.value_files import Encoded
from ..encoding.record import MODE_RAW, NO_METADATA, Metadata
from ..encoding.tags import pack_tags
from ..settings.lifetimes import Expiry
from ..storage.store import REMOVE, Change, Remove, Store
from .loading import ENOVAL, EXPIRED, Loader
from .row_codec import Location, RowCodec, discard

SHORTEST_SLEEP = 0.001  # seconds; a shorter sleep is not worthwhile, even if a lease ends sooner

# What becomes of an entry: this value with this metadata is stored, REMOVE takes it away, None leaves it as it is.
Decision = tuple[Any, Metadata] | Remove | None
DecideValue = Callable[[Any, Metadata], Decision]
_NOT_ENCODED: Encoded = (MODE_RAW, b"", None, 0)


class AtomicKey:
    """What recipes need of a cache beside its operations: a change that depends on the entry, sleeping and waking.

    What they keep is no cached value, so the cache's `default_expire` and `max_age` do not apply: a lock that expired
    early would have two owners.
    """

    __slots__ = ("_key", "_loader", "_location", "_rows", "now")

    def __init__(self, rows: RowCodec, loader: Loader, key: Any, location: Location | None = None) -> None:
        self._rows = rows
        self._loader = loader
        self._key = key
        self._location = location
        self.now: Callable[[], float] = rows.clock  # by the cache's clock

    def location(self) -> Location:
        """Return where the key lives, which is looked for once."""
        if self._location is None:
            self._location = self._rows.locate(self._key)
        return self._location

    @property
    def stored_key(self) -> bytes:
        """Return the stored key."""
        return self.location()[0]

    def update(self, decide: DecideValue, wait: float | None) -> bool:
        """Do what `update` of this module does for this key."""
        return update(self._rows, self._loader, (self._key, self.location()), decide, wait)

    def metadata(self, expire: Expiry | None, tag: Any = None) -> Metadata:
        """Return the metadata of an entry that expires `expire` seconds from now, None for never, and has a tag."""
        if expire is None and tag is None:
            return NO_METADATA
        return Metadata(self._rows.expiry(expire), pack_tags(tag, key=self._key))

    def in_transaction(self) -> bool:
        """Tell whether the caller is inside a transaction, where it cannot see what others write."""
        return self.location()[2].in_transaction()

    def generation(self) -> int:
        """Return the generation to sleep on; read it before looking at the entry."""
        _, home, store = self.location()
        return store.generation(home)

    def sleep(self, generation: int, seconds: float) -> None:
        """Sleep until the entry may have changed since `generation`, `seconds` at most."""
        _, home, store = self.location()
        store.sleep(home, generation, seconds)

    def was_missed(self) -> bool:
        """Tell whether this was called for the key, or its entry was evicted, a short while ago, as far as is known."""
        _, home, store = self.location()
        return store.was_missed(home)

    def wake(self) -> None:
        """Wake the sleepers; call it after a change."""
        _, home, store = self.location()
        store.wake(home)

    def hold(self, owner: object) -> bool | None:
        """Hold the key if nobody does, until `let_go` or the end of the process; None where that is not possible."""
        _, home, store = self.location()
        return store.hold(home, owner)

    def let_go(self, owner: object) -> None:
        """Let go of a key if this owner holds it."""
        _, home, store = self.location()
        store.let_go(home, owner)

    def left(self, until: float | None) -> float:
        """Return the seconds to sleep until a moment by the cache's clock; None means never."""
        return float("inf") if until is None else max(until - self.now(), SHORTEST_SLEEP)

    def expiry(self, expire: Expiry | None) -> float | None:
        """Return the moment that is `expire` seconds from now by the cache's clock; None means never."""
        return self._rows.expiry(expire)


def update(
    rows: RowCodec, loader: Loader, place: tuple[Any, Location], decide: DecideValue, wait: float | None
) -> bool:
    """Let `decide` say what becomes of the entry of a key, and do that; return whether that is a change. Atomic.

    `place`: the key, and where it lives. `decide` gets the live value and its metadata, or ENOVAL and NO_METADATA if
    there is none. It may be called more than once, so it must have no effect that cannot be repeated, and it must not
    use the cache. What it raises is raised, and changes nothing. `wait`: seconds to wait for the write lock, None for
    no limit. Raises Timeout, ValueEncodeError, DiskFull.
    """
    key, location = place
    stored_key, home, store = location
    current_of, row = loader.current, rows.row
    encoded = _NOT_ENCODED
    decision: Decision = None

    def change(packed: bytes | None) -> Change:
        nonlocal encoded, decision
        found = current_of(key, location, packed)
        if found is None or found is EXPIRED:
            decision = decide(ENOVAL, NO_METADATA)
        else:
            decision = decide(found[0], NO_METADATA if found[1] is None else found[1].metadata)
        if encoded[2] is not None:
            discard(store, encoded)  # the file of an attempt that failed
        if type(decision) is not tuple:
            return decision if packed is not None else None  # type: ignore[return-value]
        encoded = store.disk.encode(decision[0], False, key)
        return row(key, location, encoded, decision[1])

    try:
        stamp = store.update(home, stored_key, change, wait, early=True)
    except BaseException:
        discard(store, encoded)
        raise
    if isinstance(decision, tuple):
        value, metadata = decision
        loader.keep_written(key, location, stamp, metadata, value, encoded)
    elif decision is not None:
        loader.keep_removed(key, location, stamp)
    return decision is not None


def replace(rows: RowCodec, loader: Loader, place: tuple[Any, Location], seen: int, value: Any) -> bool:
    """Store another value for an entry without metadata, in one append; return False, with nothing changed, otherwise.

    `place`: the key, and where it lives. `seen`: the generation of its slot at which the caller has seen the value that
    this one follows; if it has another one by now, nothing is stored.
    """
    key, location = place
    stored_key, home, store = location
    if not isinstance(store, Store) or store.shard.appender is None:  # a server has the entry, or nothing waits
        return False
    encoded = store.disk.encode(value, False, key)
    stamp = 0
    try:
        stamp = store.replace(home, stored_key, rows.row(key, location, encoded, NO_METADATA), seen)
    finally:
        if not stamp:
            discard(store, encoded)
    if stamp:
        loader.keep_written(key, location, stamp, NO_METADATA, value, encoded)
    return stamp != 0


__all__ = ["REMOVE", "AtomicKey", "DecideValue", "Decision"]
