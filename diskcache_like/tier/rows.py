"""The row codec of a cache with `remote=`, which gives each key its place on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..encoding import keys
from ..encoding.record import Record
from ..entries.handle import Handle
from ..entries.row_codec import Location, RowCodec
from ..errors import SettingError, refused_with_remote
from ..settings.remote import Remote
from ..storage.interface import EntryStore
from ..storage.store import Store
from .state import SLOTS
from .store import TieredStore
from .tier import Tier
from .words import Place, TierHotLayer

_QUEUE_KEYS: Final = keys.QueueKey, keys.PrefixedQueueKey


class TieredRows(RowCodec):
    """Rows whose keys have places of the server's, and whose records may come from there, verified."""

    keeps_versions = True

    def __init__(self, handle: Handle, tier: Tier) -> None:
        super().__init__(handle)
        self._digest = tier.wire.digest
        self._tiered: dict[EntryStore, EntryStore] = {
            store: TieredStore(store, self, tier) for store in handle.shards.stores
        }

    @property
    def stores(self) -> Sequence[EntryStore]:
        """Return what reads and writes the shards."""
        return list(self._tiered.values())

    def local(self, key: Any) -> Location:
        """Return where the key lives on this machine."""
        return super().locate(key)

    def locate(self, key: Any) -> Location:
        """Return the stored key, its place, and the store that it lives in."""
        if isinstance(key, _QUEUE_KEYS):
            raise refused_with_remote("a queue")
        stored_key, home, store = super().locate(key)
        canonical = stored_key if self._sealer is None else keys.encode_key(key)
        digest = self._digest(canonical)
        place = Place(int.from_bytes(digest[:8], "big"))
        place.key, place.canonical, place.digest = key, canonical, digest
        place.stored_key, place.home = stored_key, home
        place.index = index = place % SLOTS  # `index_of(digest)`
        place.indices = frozenset((index,))
        return stored_key, place, self._tiered[store]

    def queue_store(self, prefix: str | None) -> Store:
        """Refuse: a queue's order is one index of one database."""
        raise refused_with_remote("a queue")

    def unpacked(self, store: EntryStore, stored_key: bytes, packed: Any) -> Record:
        """Return a record that was verified already, or do what `RowCodec.unpacked` does."""
        return packed if type(packed) is Record else super().unpacked(store, stored_key, packed)


def parts_of(remote: Any, handle: Handle) -> tuple[Tier, TieredRows, TierHotLayer]:
    """Return the tier of a cache, its row codec and its hot layer."""
    if not isinstance(remote, Remote):
        raise SettingError(f"remote is {remote!r}, expected a Remote")
    tier = Tier(remote, handle)
    hot = TierHotLayer(tier.state, tier.lease_ends, handle.clock, handle.hot_limit)
    return tier, TieredRows(handle, tier), hot
