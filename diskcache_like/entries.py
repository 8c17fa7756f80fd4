"""Entries: how values come back, through the hot layer, and when they may be kept there.

`Entries` is what `Cache` and its parts build their operations on. An entry is kept only under the generation that its
slot had before it was read (docs/design.md, "Coherence").
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal
from zlib import crc32

from . import codecs, encryption, keys
from .coherence.board import NO_ENTRY
from .coherence.generations import WORD, Header
from .coherence.words import Words
from .disk import KEEP_NOT, Constant
from .errors import DecodeError, DictionaryError, SignatureError
from .hot import FREQUENCY, OVERHEAD, RECENCY
from .packing import SELF_SPELLED, Packing, Target, with_metadata
from .payloads import Loaded
from .record import MODE_RAW, RESIDUE, SIMPLE_HEAD, Record
from .storage.store import Store
from .value_files import Stored

ENOVAL = Constant("ENOVAL")


class Gone(Enum):
    """What stands for an entry that may be removed; `GONE` is the one instance."""

    GONE = "gone"


GONE: Final = Gone.GONE
ATTEMPTS = 100  # times that a row is read again because its value file went away in between

_TICK, _SHARED = Header.TICK, Header.SHARED
_STORED = Constant("stored")  # marks hot keys that are stored bytes, for keys that cannot be dictionary keys


def absent(_: object) -> Any:
    """Stand in a hot entry's place for `decode` where the key is known to have no entry; never called."""
    raise AssertionError("absent")


class Entries(Packing):
    """Load values and keep them hot."""

    def _keep(
        self,
        key: Any,
        stored: bytes,
        store: Store,
        slot: int,
        stamp: int,
        expire: float | None,
        loaded: tuple[Any, Callable[[Any], Any] | None],
        size: int,
    ) -> None:
        """Put a value into the hot layer under the generation that it was read or written at."""
        value, decode = loaded
        cost = (OVERHEAD + len(stored) + size) | 63  # rounded, so that an entry often replaces one of equal cost
        self._hot_put(
            key if type(key) in SELF_SPELLED or keys.is_direct(key) else (_STORED, stored),
            (store.slots, slot, stamp, expire, value, decode, [0], store.uses, store.header, cost),
        )

    def _hot_value(self, key: Any) -> Any:
        """Return the value of the key's valid, live hot entry; `absent` if it is known to have none, else ENOVAL."""
        try:
            entry = self._hot_get(key)
        except TypeError:
            return ENOVAL
        if entry is None:
            return ENOVAL
        slots, slot, stamp, expire, value, decode, visited, uses, header, _ = entry
        if slots[slot] != stamp or not (expire is None or expire > self._clock()):
            return ENOVAL
        visited[0] = 1
        if decode is absent:
            return absent
        self._used(uses, slot, header)
        return value if decode is None else decode(value)

    def _used(self, uses: Words, slot: int, header: Words) -> None:
        """Note a hit: for LRU the write counter, for LFU one more, without a lock (see GenerationFile.uses)."""
        if self._marks == RECENCY:
            uses[slot] = 2 * header[_TICK] + 1 & WORD  # between the ranks of the last write and the next
        elif self._marks == FREQUENCY:
            uses[slot] = (uses[slot] + 1) & WORD
        if self._counts:
            self._counters[0] += 1

    def _noted(self, found: bool, store: Store, h: int) -> None:
        """Note what a read of the database came to."""
        if found:
            self._used(store.uses, h % store.slot_prime, store.header)
        else:
            self._missed()

    def _missed(self) -> None:
        if self._counts:
            self._counters[1] += 1

    def _get_cold(
        self, key: Any, default: Any, read: bool, expire_time: bool, tag: bool, maps: bool | None = None
    ) -> Any:
        stored, h, store = self._locate(key)
        plain = not (read or expire_time or tag)
        if plain and type(key) not in SELF_SPELLED and not keys.is_direct(key):
            value = self._hot_value((_STORED, stored))
            if value is absent:
                self._missed()
                return default
            if value is not ENOVAL:
                return value
        found = self._load(key, stored, h, store, read, maps=maps)
        if self._tracks:
            self._noted(found is not None, store, h)
        if plain:
            return default if found is None else found[0]
        if found is not None:
            with self._distrusting(key):
                return with_metadata(found[0], found[1], expire_time, tag)
        return (default, *([None] * (expire_time + tag))) if expire_time or tag else default

    def _load(
        self,
        key: Any,
        stored: bytes,
        h: int,
        store: Store,
        read: bool = False,
        seen: tuple[Words, int, bytes | None] | None = None,
        maps: bool | None = None,
    ) -> tuple[Any, Record | None] | None:
        """Return the value and record of a live entry from the database, keeping it hot if nothing changed meanwhile.

        The record is None for a simple one, which has no metadata. `seen`: the slots, what the key's slot showed before
        a SELECT, and what that found; without it the row is read here.
        """
        slot = h % store.slot_prime
        if seen is None:
            slots = store.slots
            stamp = slots[slot]
            blob = store.read(h) if not store.header[_SHARED] or stamp & 1 else self._posted(store, h, slots, stamp)
        else:
            slots, stamp, blob = seen
        payload = None
        if type(blob) is bytes and not read:
            if self._reads_simple:
                payload = blob[1:-4] if blob[:1] == SIMPLE_HEAD and crc32(blob, crc32(stored)) == RESIDUE else None
            elif self._opens_plain:
                payload = store.disk.sealer.plain_payload(stored, blob)  # type: ignore[union-attr]
        if payload is not None:
            try:
                value, kept, decode = store.disk.load_payload(payload)
            except DecodeError as error:
                self._distrust(error, key)
                return None
            # Rule 3: kept only if no write to the slot was under way before the SELECT or came since.
            if self._hot.limit and not stamp & 1 and slots[slot] == stamp:
                self._keep(key, stored, store, slot, stamp, None, (kept, decode), len(payload))
            return value, None
        if blob is None and not store.displaced:
            if self._hot.limit and not stamp & 1 and slots[slot] == stamp:
                self._keep(key, stored, store, slot, stamp, None, (None, absent), 0)  # a miss is as coherent as a hit
            return None
        return self._load_checked(Target(key, stored, h, store), blob, read, stamp, maps)

    def _posted(self, store: Store, h: int, slots: Words, stamp: int) -> bytes | None:
        """Return the record that the board shows for the slot's even generation; else read the row."""
        posted = None if store.board is None else store.board.look(h, stamp)
        if posted is None or slots[h % store.slot_prime] != stamp:  # perhaps overwritten while it was copied
            return store.read(h)
        return None if posted == NO_ENTRY else posted

    def _load_checked(
        self, target: Target, blob: bytes | None, read: bool, stamp: int, maps: bool | None = None
    ) -> tuple[Any, Record] | None:
        """Do what `_load` does for a record of any kind.

        A value file that went away between the row and the open belongs to an older row: the row is read again.
        """
        key, stored, h, store = target
        slot = h % store.slot_prime
        maps = self._maps if maps is None else maps
        for _ in range(ATTEMPTS):
            record = self._verified(target, blob)
            if record is None or not self._is_live(record):
                return None
            try:
                value, kept, decode = store.disk.load(record, read, maps)
            except FileNotFoundError:
                slots = store.slots
                if slots[slot] == stamp and not stamp & 1:
                    break
                stamp = slots[slot]
                blob = store.read(h)
                continue
            except DecodeError as error:
                self._distrust(error, key)
                return None
            if self._hot_encoded:
                kept, decode = encryption.kept_hot(store, stored, record, blob)
            if not stamp & 1 and store.slots[slot] == stamp and not read and self._hot.limit and kept is not KEEP_NOT:
                size = record.size or len(record.payload)
                self._keep(key, stored, store, slot, stamp, record.expire, (kept, decode), size)
            return value, record
        self._lost_file(key)
        return None

    def _keep_written(
        self,
        key: Any,
        stored: bytes,
        h: int,
        store: Store,
        stamp: int,
        expiry: float | None,
        value: Any,
        encoded: Stored,
    ) -> None:
        """Keep hot what was just written, as the value itself if immutable and as payload if not."""
        mode, payload, file, _ = encoded
        if stamp & 1 or file is not None or not self._hot.limit or self._hot_encoded:
            return
        decode = None
        compressed = self._compresses and store.disk.value_codec.is_compressed(payload)
        if compressed or (type(value) not in SELF_SPELLED and not codecs.is_immutable(value)):
            if mode != MODE_RAW or not store.disk.own_values:
                return
            value, decode = payload, store.disk.decode_value
        cost = (OVERHEAD + len(stored) + len(payload)) | 63
        entry = (
            store.slots,
            h % store.slot_prime,
            stamp,
            expiry,
            value,
            decode,
            [0],
            store.uses,
            store.header,
            cost,
        )
        self._hot_put(key if type(key) in SELF_SPELLED or keys.is_direct(key) else (_STORED, stored), entry)

    def _candidate(self, target: Target, blob: bytes) -> tuple[Any, Record] | Literal[Gone.GONE] | None:
        """Return value and record of a row met in order; GONE if it is expired or damaged and may be removed.

        None for one that another secret, policy or dictionary may still read: it is passed over and stays.
        """
        try:
            record = self._unpacked(target.store, target.stored, blob)
            return (target.store.disk.load(record, False)[0], record) if self._is_live(record) else GONE
        except FileNotFoundError:
            self._lost_file(target.key)
        except DecodeError as error:
            self._distrust(error, target.key)
            if isinstance(error, SignatureError | DictionaryError):
                return None
        return GONE

    def _current(
        self, key: Any, stored: bytes, h: int, store: Store, blob: bytes | None
    ) -> tuple[Any, Record | None] | Literal[Gone.GONE] | None:
        """Return value and record of a live entry for a `decide` function; as in `_load`, no record of a simple one.

        GONE if it is expired, None if there is none or it is damaged.
        """
        if (
            type(blob) is bytes
            and blob[:1] == SIMPLE_HEAD
            and self._reads_simple
            and crc32(blob, crc32(stored)) == RESIDUE
        ):
            try:
                return store.disk.load_payload(blob[1:-4])[0], None
            except DecodeError as error:
                self._distrust(error, key)
                return None
        target = Target(key, stored, h, store)
        record = self._verified_here(target, blob)
        if record is None:
            return None
        if not self._is_live(record):
            return GONE
        found = self._loaded_here(target, record)
        return None if found is None else (found[0], record)

    def _loaded_here(self, target: Target, record: Record) -> Loaded | None:
        """Return the value of a record read under the write lock: its file cannot be replaced meanwhile."""
        try:
            return target.store.disk.load(record, False)
        except FileNotFoundError:
            self._lost_file(target.key)
        except DecodeError as error:
            self._distrust(error, target.key)
        return None
