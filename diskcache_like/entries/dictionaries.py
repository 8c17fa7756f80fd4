"""Compression dictionaries: train them from a cache's entries, prove that they are whole, retire those unused.

Small values that resemble each other shrink little one by one, since compression finds only what repeats within each.
A dictionary holds what they have in common. Each frame names the version that it was made with; old versions stay until
no entry names them.

A dictionary decides what the entries made with it expand to, so it carries a proof as they do: a checksum, or a tag in
a cache that authenticates its entries. Pickles are compressed without one, because they may be authenticated in a cache
where nothing else is.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

from ..disk.codec import Codec
from ..encoding.compressors import DICTIONARY_REACH, make_dictionary
from ..encoding.record import MODE_RAW, Authenticator, Record
from ..errors import DecodeError, TrainingError, TransactionError
from ..storage import dictionaries as rows
from ..storage.store import Store

SIZES: Final = (1 << 10, 1 << 20)  # bytes of the smallest and of the largest dictionary
SAMPLES: Final = 10_000  # entries that a dictionary is made from, at most
SAMPLE_BYTES: Final = 16 << 20  # and their bytes
FEWEST: Final = 32  # entries that a dictionary is made from, at least
GRACE: Final = 3600.0  # seconds that a version stays after a newer one, because older writes may still be going on
_CREATED = struct.Struct("<d")


class Training(NamedTuple):
    """What `train` did: the version in use now, how many entries it saw, and their bytes compressed before and after.

    `before` and `after` count entries that the dictionary was not made from. It is used only if it makes them smaller;
    otherwise `version` stays what it was, 0 for none.
    """

    version: int
    samples: int
    before: int
    after: int


class ShardDictionaries:
    """The versions of one shard, as a handle sees them."""

    def __init__(self, store: Store, signer: Authenticator | None) -> None:
        self.store = store
        self._signer = signer
        self._seen: object = None
        self._current = 0

    def current(self) -> int:
        """Return the newest undamaged version, 0 for none; look it up again if any process has changed the versions."""
        seen = rows.mark(self.store)
        if seen != self._seen:
            self._current = next((one for one in reversed(rows.versions(self.store)) if self.find(one)), 0)
            self._seen = seen
        return self._current

    def find(self, version: int) -> bytes | None:
        """Return a version's dictionary, None if it is missing or damaged."""
        try:
            return self._opened(version)[1]
        except DecodeError:
            return None

    def add(self, version: int, dictionary: bytes, timeout: float | None) -> bool:
        """Store a version unless that number is taken."""
        content = _CREATED.pack(self.store.session.now()) + dictionary
        return rows.add(self.store, version, self._proof(version, content) + content, timeout)

    def retire(self, used: set[int], timeout: float | None) -> list[int]:
        """Remove every version that is not in `used` and was replaced long enough ago; return their numbers."""
        present = rows.versions(self.store)
        gone = []
        for version, successor in pairwise(present):
            if version not in used and self._age(successor) > GRACE:
                rows.remove(self.store, version, timeout)
                gone.append(version)
        return gone

    def _age(self, version: int) -> float:
        try:
            return self.store.session.now() - self._opened(version)[0]
        except DecodeError:
            return 0.0

    def _opened(self, version: int) -> tuple[float, bytes]:
        blob = rows.read(self.store, version)
        size = 4 if self._signer is None else 16
        if type(blob) is not bytes or len(blob) <= size + _CREATED.size:
            raise DecodeError(f"there is no compression dictionary {version}")
        content = blob[size:]
        if self._signer is None:
            whole = self._proof(version, content) == blob[:size]
        else:
            whole = self._signer.verify(blob[:size], *_parts(version, content))
        if not whole:
            raise DecodeError(f"the compression dictionary {version} is damaged")
        return _CREATED.unpack_from(content)[0], content[_CREATED.size :]

    def _proof(self, version: int, content: bytes) -> bytes:
        parts = _parts(version, content)
        return crc32(b"".join(parts)).to_bytes(4, "little") if self._signer is None else self._signer.tag(*parts)


def _parts(version: int, content: bytes) -> tuple[bytes, bytes, bytes]:
    return b"dictionary", version.to_bytes(4, "little"), content


Records = Callable[[Store], Iterator[Record]]


def train(shards: list[ShardDictionaries], records: Records, size: int, wait: float | None) -> Training:
    """Make a dictionary from entries of all shards and put it into use in each; see `Cache.train`."""
    if not shards:
        raise TrainingError("train() makes dictionaries for compressor='zstd', and this cache has another or none")
    if type(size) is not int or not SIZES[0] <= size <= SIZES[1]:
        raise TrainingError(f"size is {size!r}, expected {SIZES[0]} to {SIZES[1]} bytes")
    if any(shard.store.connection.txn is not None and shard.store.connection.txn.reads_here() for shard in shards):
        raise TransactionError("train() cannot be part of a transaction, which might undo it")
    payloads, used = _look_through(shards, records)
    samples = _unpacked(payloads)
    if len(samples) < FEWEST:
        raise TrainingError(
            f"{len(samples)} entries of up to {DICTIONARY_REACH} bytes are too few to train from: it takes {FEWEST}"
        )
    version = max(rows.next_version(shard.store) for shard in shards)
    if version > rows.MAX_VERSION:
        raise TrainingError(f"this cache has had {version - 1} dictionaries, and no more can be numbered")
    before, after, dictionary = _tried(shards[0].store.disk.value_codec, samples, version, size)
    for shard in shards:
        if after < before:
            shard.add(version, dictionary, wait)
        shard.retire(used[shard], wait)
    return Training(shards[0].current(), len(samples), before, after)


def _tried(codec: Codec, samples: list[bytes], version: int, size: int) -> tuple[int, int, bytes]:
    """Train on three of every four samples; return the size of the others before and after, and the dictionary."""
    learnt = [sample for place, sample in enumerate(samples) if place % 4]
    dictionary = make_dictionary(size, learnt, version)
    then = codec.with_dictionary(version, dictionary)
    before = sum(len(codec.pack(sample)) for sample in samples[::4])
    return before, sum(len(then.pack(sample)) for sample in samples[::4]), dictionary


def _look_through(
    shards: list[ShardDictionaries], records: Records
) -> tuple[list[tuple[Codec, bytes]], dict[ShardDictionaries, set[int]]]:
    """Return the payloads of entries chosen at random, and the versions that each shard's entries use."""
    chosen: list[tuple[Codec, bytes]] = []
    used: dict[ShardDictionaries, set[int]] = {}
    dice = random.Random(len(shards))
    seen = 0
    for shard in shards:
        disk = shard.store.disk
        versions = used.setdefault(shard, set())
        for record in records(shard.store):
            versions.add(disk.dictionary_of(record))
            if record.mode != MODE_RAW or record.file is not None or len(record.payload) > DICTIONARY_REACH:
                continue
            seen += 1
            place = len(chosen) if len(chosen) < SAMPLES else dice.randrange(seen)
            if place < SAMPLES:
                chosen[place : place + 1] = [(disk.value_codec, record.payload)]
    return chosen, used


def _unpacked(payloads: list[tuple[Codec, bytes]]) -> list[bytes]:
    """Return what the payloads were made from, without what is too long, up to SAMPLE_BYTES in all."""
    samples: list[bytes] = []
    left = SAMPLE_BYTES
    for codec, payload in payloads:
        with suppress(DecodeError):
            data = codec.unpack(payload)
            if 0 < len(data) <= min(DICTIONARY_REACH, left):
                left -= len(data)
                samples.append(data)
    return samples
