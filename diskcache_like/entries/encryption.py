"""Encryption: the keys of an encrypted cache's stores, and its rows.

`crypto.aead` seals bytes, `crypto.keyring` holds the keys, `storage.rekeying` changes them.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..crypto.keyring import Keyring, MasterKey, Sealer
from ..disk.contract import NOT_KEPT, Disk
from ..encoding import file_names
from ..encoding.record import Record
from ..encoding.tags import tags_column
from ..errors import CorruptDatabaseWarning, KeyringError, SettingError
from ..storage import check
from ..storage.interface import EntryStore
from ..storage.opening.identity import Config
from ..storage.shards import ShardSet
from ..storage.store import Row, Store
from ..system.callers import warn


def refuse_own_contract(disk: type[Disk]) -> None:
    """Raise SettingError for a Disk that encodes by itself: it would see, or name, what the cache seals."""
    if not disk.may_be_sealed():
        raise SettingError(f"encrypt=True works with Disk, not with {disk.__qualname__}, which encodes by itself")


def attach(stores: Sequence[Store], master: MasterKey, directory: str) -> Sealer:
    """Make the stores' disks seal with the keys that the secret opens; return the first store's sealer."""
    refuse_own_contract(type(stores[0].disk))
    sealers = _sealers(stores, master)
    if len({sealer.keyring.blinding for sealer in sealers}) > 1:
        raise KeyringError(f"{directory!r}: the keyrings of its shards do not belong together; put back a copy of it")
    for store, sealer in zip(stores, sealers, strict=True):
        store.disk.sealer = sealer
        sealer.siblings = tuple(other for other in sealers if other is not sealer)
    return sealers[0]


def _sealers(stores: Sequence[Store], master: MasterKey) -> list[Sealer]:
    """Return the sealer of each store.

    A shard whose keyring is damaged gets that of another shard, if the cache may go on with less than it had: its
    entries that were sealed with a key which the other shard lacks are then missing. If no keyring is left, the cache
    begins anew, provided that the caller asked for encryption.
    """
    config = stores[0].config
    found = [_sealer_or_problem(store, master) for store in stores]
    sound = next((each.keyring for each in found if isinstance(each, Sealer)), None)
    if sound is None and config.recover and config.encrypt:
        return _begun_anew(stores, master)
    return [
        each if isinstance(each, Sealer) else _mended(store, master, each, sound if config.recover else None)
        for store, each in zip(stores, found, strict=True)
    ]


def _sealer_or_problem(store: Store, master: MasterKey) -> Sealer | KeyringError:
    try:
        return _sealer(store, master)
    except KeyringError as problem:
        return problem


def _keyring_problem(store: Store, master: MasterKey) -> KeyringError | None:
    found = _sealer_or_problem(store, master)
    return found if isinstance(found, KeyringError) else None


def _mended(store: Store, master: MasterKey, problem: KeyringError, keyring: Keyring | None) -> Sealer:
    """Give a shard the keyring of another one and return its sealer; raise `problem` if there is none to give."""
    if keyring is None:
        raise KeyringError(f"{problem}; put back a copy of the directory, or open it with encrypt=True to begin anew")
    store.replace_keyring(keyring, store.config.timeout)
    sealer = _sealer(store, master)
    # Last: if warnings are errors, the next opening finds the shard mended.
    warn(f"{problem}: it goes on with the keyring of another shard", CorruptDatabaseWarning)
    return sealer


def _begun_anew(stores: Sequence[Store], master: MasterKey) -> list[Sealer]:
    """Replace the databases, whose keyrings are all damaged, and return the sealers of the new ones."""
    sealers: list[Sealer] = []
    keyring = Keyring.new(master)
    for store in stores:
        store.quarantine_keys(keyring.sealed(), partial(_keyring_problem, store, master))
        sealers.append(_sealer(store, master))
        keyring = sealers[0].keyring  # another one, if another process was first
    return sealers


def _sealer(store: Store, master: MasterKey) -> Sealer:
    return Sealer(master, store.directory, store.keyring, store.keyring_version)


def sealed_row(disk: Disk, key: Any, stored_key: bytes, record: Record) -> Row:
    """Return the row of an entry; it reveals neither key nor value nor tag."""
    sealer = disk.sealer
    assert sealer is not None
    column = None if record.file is None else file_names.to_column(record.file)
    tags = tags_column(record.metadata.tags, sealer.blind_tag)
    packed, expiries = sealer.seal(stored_key, record), Row.expiries(record.metadata)
    return Row(packed, *expiries, tags, record.size, column, disk.original_key(key, stored_key))


def kept_hot(
    store: EntryStore, stored_key: bytes, record: Record, packed: bytes | None
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return what an encrypted hot layer keeps: the record as it is stored, and how a hit opens it."""
    if packed is None or record.file is not None or store.displaced:
        return NOT_KEPT, None
    return packed, partial(_opened, store.disk, stored_key)


def check_without_secret(directory: str, shared: bool = False) -> list[warnings.WarningMessage]:
    """Return what is wrong with a cache as far as that shows without its secret, and what could not be checked."""
    config = Config({}, {}, 60.0, time.time, recover=False, keyless=True, shared=shared)
    shards = ShardSet(os.path.abspath(directory), 1, config, Disk)
    try:
        return [found for store in shards.stores for found in check.check_without_secret(store)]
    finally:
        shards.close(None)


def _opened(disk: Disk, stored_key: bytes, packed: bytes) -> Any:
    assert disk.sealer is not None
    return disk.load(disk.sealer.open(stored_key, packed), False)[0]
