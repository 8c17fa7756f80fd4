"""Loader: load values from the database, and decide which of them are kept hot.

An entry is kept only under the generation that its slot had before it was read (docs/coherence.md).
"""

from __future__ import annotations

import math
import random
from enum import Enum
from typing import Any, Final, Literal

from ..coherence.generations import Words
from ..coherence.ring import new_tuple
from ..disk.contract import NOT_KEPT, Constant
from ..disk.value_files import Encoded
from ..encoding import keys, values
from ..encoding.checksum import crc32
from ..encoding.record import (
    CRC_SIZE,
    MODE_RAW,
    NO_METADATA,
    RESIDUE,
    SIMPLE_HEAD,
    SMALLEST,
    Metadata,
    Record,
    open_plain,
    plain_payload,
)
from ..errors import DecodeError, DirectoryError, SignatureError
from ..storage.interface import EntryStore
from . import encryption
from .handle import Handle
from .hot import NEGATIVE_HIT, PLAIN_TYPES, HotLayer
from .row_codec import Location, RowCodec, with_metadata

ENOVAL = Constant("ENOVAL")


class Removable(Enum):
    """The type of `EXPIRED`, which stands for an entry that may be removed."""

    EXPIRED = "expired"


EXPIRED: Final = Removable.EXPIRED
ATTEMPTS = 100  # times to read a row again because its value file was removed in between


class Loader:
    """Load values, from the hot layer where a key is kept there by its stored bytes, and keep them hot."""

    def __init__(self, handle: Handle, rows: RowCodec, hot: HotLayer) -> None:
        self._rows = rows
        self._hot = hot
        self._maps = handle.options.mmap
        self._hot_encoded = handle.options.hot_encoded and handle.sealer is not None
        self._opens_plain = handle.sealer is not None and not self._hot_encoded
        self._reads_plain = not handle.signs_all and handle.disk.own_values
        self._opens_bare = self._reads_plain and handle.disk.value_codec.is_plain
        self._compresses = handle.disk.value_codec.compresses

    def look(self, key: Any) -> tuple[Any, Location, int]:
        """Do what `get` does; return the value or ENOVAL, where the key lives, and the generation of its slot before.

        The generation is 0 if the slot was odd.
        """
        _, home, store = location = self._rows.locate(key)
        stamp = store.shard.slots[home % store.shard.slot_prime]
        return self.get(key, ENOVAL, False, False, False, None, location), location, 0 if stamp & 1 else stamp

    def get(
        self,
        key: Any,
        default: Any,
        read: bool,
        expire_time: bool,
        tag: bool,
        maps: bool | None,
        location: Location | None = None,
    ) -> Any:
        """Do what `Cache.get` does for a key that has no valid hot entry.

        `location`: where it lives, if that is known; that there is no entry is not kept hot then, since the caller is
        about to store one.
        """
        keeps_missing = location is None
        location = location or self._rows.locate(key)
        plain = not (read or expire_time or tag)
        hot = self._hot
        if plain and (hot.by_bytes or (type(key) not in PLAIN_TYPES and not keys.hashes_like_stored_key(key))):
            entry = hot.probe(keys.EncodedKey(location[0]))
            if entry is not None:
                value = hot.hit(entry)
                return default if value is NEGATIVE_HIT else value
        stored_key, home, store = location
        if plain:
            value = self.load(key, location, None, maps, counts=True, keeps_missing=keeps_missing)
            hot.count_read(value is not ENOVAL, location)
            return default if value is ENOVAL else value
        stamp = store.shard.slots[home % store.shard.slot_prime]
        found = self.load_checked(key, location, (stamp, store.read(home, stored_key)), read, maps, counts=True)
        hot.count_read(found is not None, location)
        if found is not None:
            with self._rows.reporting(key):
                return with_metadata(found[0], found[1], expire_time, tag)
        return with_metadata(default, None, expire_time, tag)

    def load(
        self,
        key: Any,
        location: Location,
        seen: tuple[Words, int, bytes | None] | None = None,
        maps: bool | None = None,
        counts: bool = False,
        keeps_missing: bool = True,
    ) -> Any:
        """Return the value of a live entry from the database, ENOVAL if there is none; keep hot what did not change.

        `seen`: the slots, the generation of the key's slot before a SELECT, and what that found; without it the row is
        read here. `counts`: the caller counts a hit or a miss, so an entry that has expired is counted here.
        """
        stored_key, home, store = location
        shard = store.shard
        slot = home % shard.slot_prime
        if seen is None:
            slots = shard.slots
            stamp = slots[slot]
            packed = store.read(home, stored_key)
        else:
            slots, stamp, packed = seen
        if packed is None and not store.displaced:
            if keeps_missing and self._hot.limit and not stamp & 1 and slots[slot] == stamp:
                self._hot.keep_missing(key, location, stamp)
            return ENOVAL
        opened = open_plain(stored_key, packed) if self._opens_bare else None
        if opened is None:
            return self._load_other(key, location, (slots, slot, stamp, packed), maps, counts)
        value, expire = opened
        if expire is not None and not expire > self._rows.clock():
            if counts:
                self._hot.count_expired(location)
            return ENOVAL
        # Rule 3: kept only if no write to the slot was under way before the SELECT or came since.
        if self._hot.limit and not stamp & 1 and slots[slot] == stamp:
            self._hot.keep(key, location, stamp, expire, (value, None), len(packed), expire is None)
        return value

    def _load_other(
        self, key: Any, location: Location, seen: tuple[Words, int, int, bytes | None], maps: bool | None, counts: bool
    ) -> Any:
        """Do what `load` does for a record that is large, or has more than a plain value and an expiry."""
        stored_key, _, store = location
        slots, slot, stamp, packed = seen
        payload, expire = self.plain(store, stored_key, packed)
        if payload is None:
            found = self.load_checked(key, location, (stamp, packed), maps=maps, counts=counts)
            return ENOVAL if found is None else found[0]
        if expire is not None and not expire > self._rows.clock():
            if counts:
                self._hot.count_expired(location)
            return ENOVAL
        try:
            value, kept, decode = store.disk.load_payload(payload)
        except DecodeError as error:
            self._rows.report_corrupt(error, key)
            return ENOVAL
        if self._hot.limit and not stamp & 1 and slots[slot] == stamp:  # rule 3
            is_plain = packed is not None and packed[:1] == SIMPLE_HEAD
            self._hot.keep(key, location, stamp, expire, (kept, decode), len(payload), is_plain)
        return value

    def plain(self, store: EntryStore, stored_key: bytes, packed: bytes | None) -> tuple[bytes | None, float | None]:
        """Return payload and expiry of most records, quickly; None for one that `load_checked` has to look at."""
        if type(packed) is bytes and len(packed) > CRC_SIZE:
            if self._reads_plain:
                if crc32(packed, crc32(stored_key)) == RESIDUE:
                    return (packed[1:-4], None) if packed[:1] == SIMPLE_HEAD else plain_payload(packed)
            elif self._opens_plain:
                return store.disk.sealer.plain_payload(stored_key, packed), None  # type: ignore[union-attr]
        return None, None

    def plain_entry(self, store: EntryStore, stored_key: bytes, packed: bytes | None) -> tuple[bytes, Metadata] | None:
        """Return payload and metadata of most records, live or not, quickly; None for one that has to be unpacked."""
        payload, expire = self.plain(store, stored_key, packed) if self._reads_plain else (None, None)
        if payload is None or packed is None:
            return None
        tags = packed[SMALLEST : -CRC_SIZE - len(payload)]  # b"" of a simple record: it ends before they would begin
        is_bare = expire is None and not tags
        return payload, NO_METADATA if is_bare else new_tuple(Metadata, (expire, tags, *NO_METADATA[2:]))

    def load_recorded(self, key: Any, location: Location, stale: bool = False) -> tuple[Any, Record, int] | None:
        """Return the value of an entry, its record, and the version of its row when the three were together."""
        stored_key, home, store = location
        for _ in range(ATTEMPTS):
            stamp = store.shard.slots[store.shard.slot_of(home)]
            packed, version = store.read_versioned(home, stored_key)
            found = self.load_checked(key, location, (stamp, packed), stale=stale)
            if found is None:
                return None
            # A value in a file may be that of a later row, if the file that the first one names was gone.
            if found[1].file is None or store.read_versioned(home, stored_key)[1] == version:
                return *found, version
        return None

    def load_checked(
        self,
        key: Any,
        location: Location,
        seen: tuple[int, bytes | None],
        read: bool = False,
        maps: bool | None = None,
        stale: bool = False,
        counts: bool = False,
    ) -> tuple[Any, Record] | None:
        """Return the value and record of a live entry; with `stale` also of one that is kept after its expiry.

        `seen`: the generation of the key's slot before a SELECT, and what that found. If the value file is gone when it
        is opened, the row is an older one, and is read again.
        """
        stored_key, home, store = location
        stamp, packed = seen
        slot = home % store.shard.slot_prime
        maps = self._maps if maps is None else maps
        for _ in range(ATTEMPTS):
            record = self._rows.verified(key, location, packed)
            if record is None or not self._may_be_served(record, location, stale, counts):
                return None
            try:
                keeps = bool(self._hot.limit) and not read and record.size <= self._hot.admits
                value, kept, decode = store.disk.load(record, read, maps, keeps)
            except FileNotFoundError:
                slots = store.shard.slots
                if slots[slot] == stamp and not stamp & 1:
                    break
                stamp = slots[slot]
                packed = store.read(home, stored_key)
                continue
            except DecodeError as error:
                self._rows.report_corrupt(error, key)
                return None
            except DirectoryError as error:
                self._rows.report_unreadable(error, key)
                return None
            if self._hot_encoded:
                kept, decode = encryption.kept_hot(store, stored_key, record, packed)
            if keeps and kept is not NOT_KEPT and not stamp & 1 and store.shard.slots[slot] == stamp:
                size = record.size or len(record.payload)
                self._hot.keep(key, location, stamp, hot_expiry(record.metadata), (kept, decode), size)
            return value, record
        self._rows.report_lost_file(key)
        return None

    def _may_be_served(self, record: Record, location: Location, stale: bool, counts: bool) -> bool:
        """Tell whether an entry has not expired, or is kept for those who ask for it; count the others."""
        if self._rows.is_live(record) or (stale and self._rows.is_kept(record)):
            return True
        if counts:
            self._hot.count_expired(location)
        return False

    def keep_written(
        self, key: Any, location: Location, stamp: int, metadata: Metadata, value: Any, encoded: Encoded
    ) -> None:
        """Keep hot what was just written: the value itself if it is immutable, else its payload."""
        mode, payload, file, _ = encoded
        disk = location[2].disk
        if stamp & 1 or file is not None or not self._hot.limit or self._hot_encoded or not disk.own_values:
            return  # what a subclass's `fetch` makes of a value is known only once it was asked
        decode = None
        compressed = self._compresses and disk.value_codec.is_compressed(payload)
        if compressed or (type(value) not in PLAIN_TYPES and not values.is_immutable(value)):
            if mode != MODE_RAW:
                return
            value, decode = (payload, disk.decode_value) if compressed else disk.kept(payload)
        is_plain = metadata is NO_METADATA
        expiry = None if is_plain else hot_expiry(metadata)
        self._hot.keep(key, location, stamp, expiry, (value, decode), len(payload), is_plain)

    def keep_removed(self, key: Any, location: Location, stamp: int) -> None:
        """Remember that a key has no entry any more, unless it was removed within a transaction."""
        if stamp > 1 and self._hot.limit:
            self._hot.keep_missing(key, location, stamp)

    def live(self, location: Location, packed: bytes) -> tuple[Any, Record] | None:
        """Return value and record of a row, None if it has expired; raise what keeps it from being read."""
        stored_key, _, store = location
        record = self._rows.unpacked(store, stored_key, packed)
        return (store.disk.load(record, False)[0], record) if self._rows.is_live(record) else None

    def candidate(
        self, key: Any, location: Location, packed: bytes
    ) -> tuple[Any, Record] | Literal[Removable.EXPIRED] | None:
        """Return value and record of a row found by its order; EXPIRED if it has expired or is damaged, to be removed.

        None for one that another user, secret or policy may still read: the caller skips it, and it stays.
        """
        try:
            return self.live(location, packed) or EXPIRED
        except FileNotFoundError:
            self._rows.report_lost_file(key)
        except DecodeError as error:
            self._rows.report_corrupt(error, key)
            if isinstance(error, SignatureError):
                return None
        except DirectoryError as error:
            self._rows.report_unreadable(error, key)
            return None
        return EXPIRED

    def current(
        self, key: Any, location: Location, packed: bytes | None
    ) -> tuple[Any, Record | None] | Literal[Removable.EXPIRED] | None:
        """Return value and record of a live entry for a `decide` function; no record of a simple one.

        EXPIRED if it has expired, None if there is none, or it is damaged or not to be read by this user.
        """
        stored_key, _, store = location
        plain = self.plain_entry(store, stored_key, packed)
        if plain is not None:
            payload, metadata = plain
            if metadata.expire is not None and not metadata.expire > self._rows.clock():
                return EXPIRED
            record = None if metadata is NO_METADATA else Record(MODE_RAW, payload, metadata)
            try:
                return store.disk.load_payload(payload)[0], record
            except DecodeError as error:
                self._rows.report_corrupt(error, key)
                return None
        record = self._rows.verified_own(key, location, packed)
        if record is None:
            return None
        if not self._rows.is_live(record):
            return EXPIRED
        try:
            return store.disk.load(record, False)[0], record
        except FileNotFoundError:  # lost, not replaced: the write lock is held
            self._rows.report_lost_file(key)
        except DecodeError as error:
            self._rows.report_corrupt(error, key)
        except DirectoryError as error:
            self._rows.report_unreadable(error, key)
        return None


def hot_expiry(metadata: Metadata) -> float | None:
    """Return until when a value is served from memory without a look at its record.

    For one that is computed anew ahead of time that is a moment drawn by chance, after which a reader decides: it is
    the earlier, the longer the computation takes (see `recipes/stampede.py`).
    """
    expire, cost = metadata.expire, metadata.cost
    return expire + cost * math.log(1.0 - random.random()) if cost and expire is not None else expire
