"""Entries: how keys and values become rows and come back, through the hot layer.

`Entries` is the lower half of `Cache`: it knows where a key lives, what a record has to prove before its value counts,
and when a value may be kept hot. The operations of the API stand in `cache`.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar
from zlib import crc32

from . import codecs, encryption, files, keys, signing
from .coherence.board import NO_ENTRY
from .coherence.generations import MAX_SLOTS, MIN_SLOTS, WORD, Header
from .coherence.words import Words, choose_implementation
from .dictionaries import Dictionaries
from .disk import KEEP_NOT, Constant, Disk, Loaded, Stored
from .errors import (
    DecodeError,
    DictionaryError,
    DirectoryError,
    ExpiryError,
    KeyEncodeError,
    SettingError,
    SignatureError,
    SignatureWarning,
)
from .hot import OVERHEAD, HotLayer
from .keyring import Keyring, Master, Sealer
from .metrics import Metrics
from .objects import allowed
from .pipeline import Codec, new_codec
from .policies import policy_named
from .record import FULL, MODE_PICKLE, MODE_RAW, RESIDUE, SIGNED, SIMPLE_HEAD, Record, pack, unpack
from .settings import DEFAULT_SETTINGS, MAX_SHARDS, checked_all
from .storage.opening import UNSAID, Config
from .storage.shards import Shards, ensure_directory
from .storage.store import Row, Store
from .storage.writing import Writer

ENOVAL = Constant("ENOVAL")


class Gone(Enum):
    """What stands for an entry that may be removed; `GONE` is the one instance."""

    GONE = "gone"


GONE: Final = Gone.GONE
ATTEMPTS = 100  # times that a row is read again because its value file went away in between

# What a hit notes beside SIEVE's mark: nothing, the time for LRU, a hit for the statistics, a use for LFU, or several.
# `Cache.get` writes these numbers out: looking up a name costs it more than what it then does.
NO_MARKS, RECENCY, COUNTED, FREQUENCY, SEVERAL = range(5)
_TICK, _SHARED = Header.TICK, Header.SHARED
_number = int.from_bytes
_SELF_SPELLED = frozenset({str, bytes, int})  # exact types that are their own spelling, hot key, and immutable value
_QUEUE_KEYS = frozenset({keys.QueueKey, keys.PrefixedQueueKey})
_STORED = Constant("stored")  # marks hot keys that are stored bytes, for keys that cannot be dictionary keys

T = TypeVar("T")
Expiry = float | timedelta  # from now: seconds, or a timedelta


def present() -> float:
    """Return the seconds since 1970 by `time.time`, looked up each time, for tests that replace it."""
    return time.time()


@dataclass
class Options:
    """The arguments of a cache that are not settings."""

    pickle: str | None = None
    secret: bytes | str | None = None
    encrypt: bool | None = None
    namespace: str = ""
    hot_encoded: bool = False
    strict: bool = False
    shared: bool = False
    coherence: str | None = None
    generation_slots: int = 1 << 16
    serializer: str | None = None
    compressor: str | None = None
    allow: Iterable[type | str] = ()
    mmap: bool = False
    clock: Callable[[], float] = present

    @classmethod
    def split(cls, arguments: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Return the options among keyword arguments, and the settings, validated."""
        names = {field.name for field in fields(cls)}
        options = cls(**{name: value for name, value in arguments.items() if name in names})
        slots = options.generation_slots
        if type(slots) is not int or not MIN_SLOTS <= slots <= MAX_SLOTS or slots & (slots - 1):
            wanted = f"a power of two from {MIN_SLOTS} to {MAX_SLOTS}"
            raise SettingError(f"generation_slots is {slots!r}, expected {wanted}")
        if not isinstance(options.namespace, str):
            raise SettingError(f"namespace is {options.namespace!r}, expected text")
        if options.encrypt is not None and type(options.encrypt) is not bool:
            raise SettingError(f"encrypt is {options.encrypt!r}, expected True or False")
        if not isinstance(options.mmap, bool):
            raise SettingError(f"mmap is {options.mmap!r}, expected True or False")
        if not callable(options.clock):
            raise SettingError(f"clock is {options.clock!r}, expected a function that returns seconds since 1970")
        if isinstance(options.allow, Iterator | list):
            options.allow = tuple(options.allow)  # read again by other handles
        return options, checked_all({name: value for name, value in arguments.items() if name not in names})

    def to_pass_on(self) -> dict[str, Any]:
        """Return what another handle on the same data needs, without the secret, which belongs in no pickle."""
        kept = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("secret", "clock")
        }
        return kept if self.clock is present else {**kept, "clock": self.clock}


class Target(NamedTuple):
    """Where a key lives."""

    key: Any
    stored: bytes
    h: int
    store: Store


def absent(_: object) -> Any:
    """Stand in a hot entry's place for `decode` where the key is known to have no entry; never called."""
    raise AssertionError("absent")


class Entries:
    """Turn keys and values into rows and back."""

    _RECOVER = True  # a corrupt database is set aside and the cache goes on empty
    _unpickled: dict[str, Any]  # settings and options that a pickle brought, until the handle is opened
    _OPENING = 0.0  # seconds that opening waits for the write lock at least, whatever the timeout of operations

    def _open(
        self,
        directory: str | os.PathLike[str] | None,
        shards: int,
        timeout: float,
        disk: type[Disk],
        settings: dict[str, Any],
    ) -> None:
        _check_arguments(timeout, disk, shards)
        options, given = Options.split({**settings, **self.__dict__.pop("_unpickled", {})})
        self._options = options
        self._given = given
        self._timeout = timeout
        self._clock = options.clock
        self.metrics = Metrics()
        self._counters = self.metrics.counters
        self._warned = False
        self._marks = NO_MARKS
        self._counts = False
        self._tracks = NO_MARKS
        self._pickle_policy = signing.resolve_pickle_policy(options.pickle)
        self._classes = allowed(options.allow)
        self._check_codec(disk, {**DEFAULT_SETTINGS, **given})
        self._secret = signing.load_secret(options.secret, os.environ)
        self._signs_all = self._secret.explicit
        self._sealer: Sealer | None = None
        self._maps = options.mmap
        self._implementation = choose_implementation(options.coherence)
        self._directory = _resolved(directory)
        ensure_directory(self._directory, options.shared)
        self._config = self._configuration(timeout, disk)
        self._shards = Shards(self._directory, shards, self._config, disk)
        try:
            self._adopt(self._shards)
        except BaseException:  # such as a stored codec whose package is not installed here
            self._shards.close(None)
            raise
        self._finalizer = weakref.finalize(self, _finish, self._shards)

    def _configuration(self, timeout: float, disk: type[Disk]) -> Config:
        options = self._options
        identity: dict[str, Any] = {name: value for name, value in self._asked().items() if value is not None}
        if options.encrypt:
            encryption.refuse_own_contract(disk)
            identity["keyring"] = Keyring.new(self._master()).sealed()
        elif self._signs_all:
            identity["key_check"] = self._secret.signer.key_check()
        return Config(
            given=self._given,
            identity=identity,
            timeout=max(timeout, self._OPENING),
            clock=options.clock,
            implementation=self._implementation,
            slots=options.generation_slots,
            recover=self._RECOVER,
            shared=options.shared,
            encrypt=options.encrypt,
        )

    def _adopt(self, shards: Shards) -> None:
        """Take over what the opened shards say: modulus, disk and settings."""
        self._modulus = shards.modulus
        self._one = shards.stores[0] if len(shards.stores) == 1 else None
        for store in shards.stores:
            self._configure(store.disk)
        if "keyring" in shards.stores[0].identity:
            self._sealer = encryption.attach(shards.stores, self._master(), self._directory)
        self._hot_encoded = self._options.hot_encoded and self._sealer is not None
        self._opens_plain = self._sealer is not None and not self._hot_encoded
        self._disk = shards.stores[0].disk
        self._reads_simple = not self._signs_all and self._disk.own_values
        self._set_codecs()
        self._stored_key = self._disk.key_encoder()
        effective = shards.stores[0].settings
        self._hot = HotLayer(0 if self._implementation == "off" else effective["hot_size_limit"])
        self._hot_get = self._hot.entries.get
        self._hot_put = self._hot.put
        for name, value in effective.items():
            self._apply(name, value)

    def _configure(self, disk: Disk) -> None:
        disk.pickle_policy = self._pickle_policy
        disk.secret = self._secret
        disk.authenticates = self._signs_all
        disk.sync = self._shards.stores[0].settings["durability"] == "power"

    def _master(self) -> Master:
        return encryption.master_of(self._options.secret, self._options.namespace, self._directory)

    def _take_secret(self, secret: bytes | str) -> None:
        """Go on with the secret that the cache was given by a rotation."""
        self._options.secret = secret
        self._secret = signing.load_secret(secret, os.environ)
        for store in self._shards.stores:
            store.disk.secret = self._secret

    def _check_codec(self, disk: type[Disk], settings: dict[str, Any]) -> None:
        """Raise for a serializer or compressor that there is not, before anything is made."""
        asked = {name: value for name, value in self._asked().items() if value is not None}
        if asked and (disk.store is not Disk.store or disk.fetch is not Disk.fetch):
            raise SettingError(f"{disk.__qualname__} encodes values itself: leave out {' and '.join(asked)}, or disk")
        if not all(type(name) is str for name in asked.values()):
            raise SettingError(f"serializer and compressor are {asked!r}, expected names")
        if asked:
            self._new_codec({**UNSAID, **asked}, settings)

    def _asked(self) -> dict[str, str | None]:
        return {"serializer": self._options.serializer, "compressor": self._options.compressor}

    def _codec_of(self, store: Store, changed: Mapping[str, Any]) -> Codec:
        """Return the codec that a shard was made with, with the settings in force and those changed now."""
        named = {name: store.identity[name] for name in UNSAID}
        return self._new_codec(named, {**store.settings, **changed}, self._dictionaries.get(store))

    def _new_codec(
        self, named: Mapping[str, str], settings: Mapping[str, Any], dictionaries: Dictionaries | None = None
    ) -> Codec:
        return new_codec(
            **named,
            settings=settings,
            policy=self._pickle_policy,
            extensions=(self._classes,),
            dictionaries=dictionaries,
        )

    def _set_codecs(self) -> None:
        signer = self._secret.signer if self._signs_all and self._sealer is None else None  # sealed ones need no tag
        self._dictionaries = {
            store: Dictionaries(store, signer)
            for store in self._shards.stores
            if store.identity["compressor"] == "zstd" and store.disk.own_values
        }
        for store in self._shards.stores:
            if store.disk.own_values:
                store.disk.value_codec = self._codec_of(store, {})
        self._compresses = self._disk.value_codec.compresses

    @property
    def directory(self) -> str:
        """Return the absolute path of the cache directory."""
        return self._directory

    @property
    def timeout(self) -> float:
        """Return the seconds that an operation waits for the write lock."""
        return self._timeout

    @property
    def disk(self) -> Disk:
        """Return the object that encodes keys and values."""
        return self._disk

    def _locate(self, key: Any) -> tuple[bytes, int, Store]:
        """Return the stored key, its hash and the store it lives in."""
        stored = self._stored_key(key)
        if len(stored) <= keys.SHORT:  # key_hash, without the call
            h = (_number(stored, "big") % self._modulus) << 2
        else:
            h = keys.key_hash(stored, self._modulus)
        if self._one is not None:
            return stored, h, self._one
        if type(key) in _QUEUE_KEYS:
            return stored, h, self._queue_store(key.prefix)
        return stored, h, self._shards.of(h)

    def _target(self, key: Any) -> Target:
        return Target(key, *self._locate(key))

    def _queue_store(self, prefix: str | None) -> Store:
        """Return the store of a queue; all its entries share one, so that their order is one index."""
        if not isinstance(prefix, str | None):
            raise KeyEncodeError(f"prefix is {prefix!r}, expected text or None")
        return self._shards.of(keys.key_hash(self._queue_column(prefix), self._modulus))

    def _queue_column(self, prefix: str | None) -> bytes:
        """Return what the rows of a queue hold of its prefix."""
        column = keys.encode_key(prefix)
        return column if self._sealer is None else self._sealer.blind_queue(column)

    def _tag_column(self, tag: bytes | None) -> bytes | None:
        """Return what a row holds of an encoded tag."""
        return tag if self._sealer is None or tag is None else self._sealer.blind_tag(tag)

    def _wait(self, retry: bool) -> float | None:
        return None if retry else self._timeout

    def _wait_for_all(self, retry: bool) -> float | None:
        """Return the seconds that the removal of many entries waits for each lock."""
        return self._wait(retry)

    def _timed_out(self, answer: T) -> T:
        """Decide what a Timeout becomes: here it is raised. Call in an except block only."""
        raise  # noqa: PLE0704

    def _verified(self, target: Target, blob: bytes | None) -> Record | None:
        """Return the live-or-expired record of the key in `blob`, or None for a missing or untrustworthy one."""
        key, stored, h, store = target
        if blob is None:
            if not store.displaced:
                return None
            blob = store.find(h, stored)
            if blob is None:
                return None
        try:
            try:
                return self._unpacked(store, stored, blob)
            except DecodeError:
                # Either damage, or the row belongs to another key with the same hash.
                again = store.find(h, stored)
                if again is None:
                    return None
                return self._unpacked(store, stored, again)
        except DecodeError as error:
            self._distrust(error, key)
            return None

    def _unpacked(self, store: Store, stored: bytes, blob: bytes) -> Record:
        """Return the record in `blob` after verifying it; the per-user secret is not read for one without a tag."""
        if not self._signs_all:
            signed = type(blob) is bytes and len(blob) > 2 and blob[0] == FULL and blob[1] & SIGNED
            return unpack(stored, blob, self._secret.verifier if signed else None)
        sealer = store.disk.sealer
        if sealer is not None:
            return sealer.open(stored, blob)
        return unpack(stored, blob, self._secret.verifier, True)

    def _distrust(self, error: DecodeError, key: Any) -> None:
        """Count an entry that cannot be trusted; raise in strict mode, else it reads as missing."""
        if isinstance(error, SignatureError):
            self.metrics.unauthenticated += 1
            if not self._warned and not self._options.strict:
                self._warned = True
                message = f"{self._directory!r}: key {key!r}: {error}; such entries read as missing (said once)"
                warnings.warn(message, SignatureWarning, stacklevel=4)
        else:
            self.metrics.damaged += 1
        if self._options.strict:
            raise type(error)(f"{self._directory!r}: key {key!r}: {error}") from error

    def _lost_file(self, key: Any) -> None:
        """Count an entry whose value file is gone; raise in strict mode, else it reads as missing."""
        self.metrics.missing_files += 1
        if self._options.strict:
            raise DecodeError(f"{self._directory!r}: key {key!r}: its value file is gone")

    def _repacked(self, target: Target, record: Record) -> bytes:
        """Return the BLOB for a record whose value stays what it is."""
        sealer = target.store.disk.sealer
        if sealer is not None:
            return sealer.seal(target.stored, record)
        return pack(target.stored, record, self._secret.signer if record.signed else None)

    def _pack(self, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> bytes:
        mode, payload, file, size = encoded
        record = Record(mode, payload, expire, tag, file, size)
        signed = self._signs_all or (mode == MODE_PICKLE and self._pickle_policy == "signed")
        return pack(stored, record, self._secret.signer if signed else None)

    def _row(self, key: Any, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> bytes | Row:
        """Return what the store writes: the record alone where the row has nothing else."""
        mode, payload, file, size = encoded
        if type(key) in _SELF_SPELLED:
            spelling = None
        elif isinstance(key, keys.QueueKey | keys.PrefixedQueueKey):
            return self._queue_row(key, stored, encoded, expire, tag)
        elif self._sealer is not None:
            spelling = None
        else:
            spelling = self._disk.spelling(key, stored)
        if expire is None and tag is None and file is None and mode == MODE_RAW and not self._signs_all:
            body = SIMPLE_HEAD + payload
            blob = body + crc32(body, crc32(stored)).to_bytes(4, "little")
            return blob if spelling is None else Row(blob, spelling=spelling)
        if self._sealer is not None:
            store = self._one or self._shards.of(keys.key_hash(stored, self._modulus))
            return encryption.sealed_row(store.disk, key, stored, encoded, expire, tag)
        blob = self._pack(stored, encoded, expire, tag)
        return Row(blob, expire, tag, size, None if file is None else files.to_column(file), spelling)

    def _queue_row(
        self,
        key: keys.QueueKey | keys.PrefixedQueueKey,
        stored: bytes,
        encoded: Stored,
        expire: float | None,
        tag: bytes | None,
    ) -> Row:
        """Return the row of a queue's item, whether it is pushed or put back under its key."""
        if self._sealer is not None:
            disk = self._queue_store(key.prefix).disk
            sealed = encryption.sealed_row(disk, key, stored, encoded, expire, tag)
            return sealed._replace(queue=self._queue_column(key.prefix), num=key.number)
        _, _, file, size = encoded
        column = None if file is None else files.to_column(file)
        queue = keys.encode_key(key.prefix)
        return Row(self._pack(stored, encoded, expire, tag), expire, tag, size, column, None, queue, key.number)

    def _encode_again(self, store: Store, value: Any, read: bool, key: Any) -> Stored:
        """Encode once more after DiskFull if files that nothing refers to could be removed; else raise it.

        Call in an except block only. A file object has been read by then, and cannot be read again.
        """
        if read or not store.relieved(self._timeout, for_file=True):
            raise  # noqa: PLE0704
        return store.disk.encode(value, read, key)

    def _expiry(self, expire: Any) -> float | None:
        """Return the absolute expiry for `expire` seconds (or a timedelta) from now; None means never."""
        if expire is None:
            return None
        seconds = expire.total_seconds() if isinstance(expire, timedelta) else expire
        try:
            seconds = math.nan if isinstance(seconds, str | bytes | bytearray) else float(seconds)
        except (TypeError, ValueError, OverflowError):
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now or None") from None
        if math.isnan(seconds) or seconds < 0:
            raise ExpiryError(f"expire is {expire!r}, expected seconds from now, 0 or more")
        return None if math.isinf(seconds) else self._clock() + seconds

    def _is_live(self, record: Record) -> bool:
        return record.expire is None or record.expire > self._clock()

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
            key if type(key) in _SELF_SPELLED or keys.is_direct(key) else (_STORED, stored),
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
            uses[slot] += 1
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
        if plain and type(key) not in _SELF_SPELLED and not keys.is_direct(key):
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
        if (
            type(blob) is bytes
            and blob[:1] == SIMPLE_HEAD
            and self._reads_simple
            and not read
            and crc32(blob, crc32(stored)) == RESIDUE
        ):
            try:
                value, kept, decode = store.disk.load_payload(blob[1:-4])
            except DecodeError as error:
                self._distrust(error, key)
                return None
            # Rule 3: kept only if no write to the slot was under way before the SELECT or came since.
            if self._hot.limit and not stamp & 1 and slots[slot] == stamp:
                self._keep(key, stored, store, slot, stamp, None, (kept, decode), len(blob))
            return value, None
        if blob is None and not store.displaced:
            if self._hot.limit and not stamp & 1 and slots[slot] == stamp:
                self._keep(key, stored, store, slot, stamp, None, (None, absent), 0)  # a miss is as coherent as a hit
            return None
        if self._opens_plain and not read:
            payload = store.disk.sealer.plain_payload(stored, blob)  # type: ignore[union-attr]
            if payload is not None:
                return self._load_plain(key, stored, store, slot, stamp, payload)
        return self._load_checked(Target(key, stored, h, store), blob, read, stamp, maps)

    def _load_plain(
        self, key: Any, stored: bytes, store: Store, slot: int, stamp: int, payload: bytes
    ) -> tuple[Any, None] | None:
        """Do what `_load` does for a payload that stood, sealed, in a row without expiry or tag."""
        try:
            value, kept, decode = store.disk.load_payload(payload)
        except DecodeError as error:
            self._distrust(error, key)
            return None
        if self._hot.limit and not stamp & 1 and store.slots[slot] == stamp:
            self._keep(key, stored, store, slot, stamp, None, (kept, decode), len(payload))
        return value, None

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
        if compressed or (type(value) not in _SELF_SPELLED and not codecs.is_immutable(value)):
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
        self._hot_put(key if type(key) in _SELF_SPELLED or keys.is_direct(key) else (_STORED, stored), entry)

    def _is_oversize(self, row: bytes | Row) -> bool:
        """Tell whether the value alone would exceed the size limit of its shard."""
        return (len(row) if isinstance(row, bytes) else len(row.v) + row.size) > self._share

    def _verified_here(self, target: Target, blob: bytes | None) -> Record | None:
        """Return the record for a `decide` function: the row is known to be the key's, so only damage can be wrong."""
        if blob is None:
            return None
        try:
            return self._unpacked(target.store, target.stored, blob)
        except DecodeError as error:
            self._distrust(error, target.key)
            return None

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

    def _distrusting(self, key: Any) -> _Distrusting:
        """Return a context that counts what cannot be decoded in its body, or in strict mode raises it."""
        return _Distrusting(self, key)

    def _loaded_here(self, target: Target, record: Record) -> Loaded | None:
        """Return the value of a record read under the write lock: its file cannot be replaced meanwhile."""
        try:
            return target.store.disk.load(record, False)
        except FileNotFoundError:
            self._lost_file(target.key)
        except DecodeError as error:
            self._distrust(error, target.key)
        return None

    def _check_place(self, h: int, stored: bytes) -> None:
        """Raise DecodeError for a key that is not where it belongs: one of the two was changed."""
        if type(stored) is not bytes or keys.key_hash(stored, self._modulus) != h & ~3:
            raise DecodeError("the key does not belong to its place")

    def _check_record(self, store: Store, h: int, stored: bytes, blob: bytes) -> Record:
        """Return the record; raise DecodeError or FileNotFoundError for an entry that would not read."""
        self._check_place(h, stored)
        record = self._unpacked(store, stored, blob)
        if record.file is not None:
            store.disk.verify_file(record)
        return record

    def _records(self, store: Store) -> Iterator[Record]:
        """Yield the records of a shard that this handle can verify, expired ones among them."""
        for stored, blob in store.blobs():
            with contextlib.suppress(DecodeError):
                yield self._unpacked(store, stored, blob)

    def _flush_counts(self, store: Writer) -> None:
        """Add this handle's counts to the shared ones; the write lock is held."""
        _add_counts(self._counters, store)

    def _tracking(self) -> int:
        if not self._counts:
            return self._marks
        return SEVERAL if self._marks else COUNTED

    def _apply(self, name: str, value: Any) -> None:
        """Make a setting effective in this handle."""
        setattr(self, name, value)
        if name == "eviction_policy":
            policy = policy_named(value)
            self._marks = RECENCY if policy.marks_recency else FREQUENCY if policy.marks_frequency else NO_MARKS
            self._tracks = self._tracking()
        elif name == "statistics":
            self._counts = bool(value)
            self._tracks = self._tracking()
            for store in self._shards.stores:
                # Of the counters only: the stores outlive a cache dropped without `close`, and must not keep it.
                store.config.on_write = partial(_add_counts, self._counters) if value else None
        elif name == "durability":
            for store in self._shards.stores:
                store.disk.sync = value == "power"
        elif name.startswith("compress_"):
            self._set_codecs()
        elif name == "hot_size_limit" and hasattr(self, "_hot"):
            self._hot.resize(0 if self._implementation == "off" else value)
        elif name.startswith("disk_"):
            for store in self._shards.stores:
                setattr(store.disk, name[5:], value)
        settings = self._shards.stores[0].settings
        self._evicts = policy_named(settings["eviction_policy"]).evicts and settings["cull_limit"] > 0
        self._share = self._shards.stores[0].limit


class _Distrusting:
    __slots__ = ("_entries", "_key")

    def __init__(self, entries: Entries, key: Any) -> None:
        self._entries = entries
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, DecodeError):
            self._entries._distrust(error, self._key)
            return True
        return False


def _check_arguments(timeout: object, disk: object, shards: object) -> None:
    if not (isinstance(disk, type) and issubclass(disk, Disk)):
        raise SettingError(f"disk is {disk!r}, expected Disk or a subclass of it")
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise SettingError(f"timeout is {timeout!r}, expected seconds, 0 or more")
    if type(shards) is not int or not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"shards is {shards!r}, expected an integer from 1 to {MAX_SHARDS}")


def _resolved(directory: str | os.PathLike[str] | None) -> str:
    """Return the absolute path for the argument; a fresh temporary directory for None."""
    if directory is None:
        return tempfile.mkdtemp(prefix="diskcache-")
    path = os.fsdecode(directory)
    if "\0" in path:
        raise DirectoryError(errno.EINVAL, "the name of the cache directory contains a NUL", path)
    return os.path.abspath(os.path.expandvars(os.path.expanduser(path)))


def tag_of(record: Record) -> Any:
    """Return the tag of a record as the user gave it, None if it has none."""
    return None if record.tag is None else keys.decode_key(record.tag)


def metadata(record: Record | None, expire_time: bool, tag: bool) -> tuple[Any, ...]:
    """Return expiry and tag as far as they are asked for; None stands for a record without either."""
    expiry = None if record is None else record.expire
    return (
        *((expiry,) if expire_time else ()),
        *((None if record is None else tag_of(record),) if tag else ()),
    )


def with_metadata(value: Any, record: Record | None, expire_time: bool, tag: bool) -> Any:
    """Return the value alone, or a tuple of it and what is asked for."""
    return (value, *metadata(record, expire_time, tag)) if expire_time or tag else value


def _add_counts(counters: list[int], store: Writer) -> None:
    hits, misses = counters
    if hits or misses:
        counters[:] = [0, 0]
        store.count_uses(hits, misses)


def _finish(shards: Shards) -> None:
    """Close the stores of a cache that was dropped without `close`, without waiting for anyone."""
    for store in shards.stores:
        store.close_soon()
