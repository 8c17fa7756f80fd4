"""An encrypted cache: what it asks of secret and disk, its keys attached to its stores, and its rows.

How bytes are sealed is in `sealing`, with which keys in `keyring`; what changes the keys is `storage.rekeying`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from . import files, signing
from .disk import KEEP_NOT, Disk
from .errors import CorruptDatabaseWarning, KeyringError, SecretError, SettingError
from .keyring import Keyring, Master, Sealer
from .record import Record
from .storage import check, rekeying, succession
from .storage.layout import Config
from .storage.shards import Shards
from .storage.store import Row, Store
from .value_files import Stored


def master_of(secret: bytes | str | None, namespace: str, directory: str) -> Master:
    """Return what a keyring is opened with; raise SecretError where no secret is given."""
    given = signing.given_secret(secret, os.environ)
    if given is None:
        raise SecretError(
            f"{directory!r}: an encrypted cache needs its secret: pass secret= or set {signing.SECRET_VARIABLE}"
        )
    return Master(given, namespace)


def refuse_own_contract(disk: type[Disk]) -> None:
    """Raise SettingError for a Disk that would see, or name, what is to be sealed."""
    if not disk.may_be_sealed():
        raise SettingError(f"encrypt=True works with Disk, not with {disk.__qualname__}, which encodes by itself")


def attach(stores: Sequence[Store], master: Master, directory: str) -> Sealer:
    """Have the stores' disks seal what they store with the keys that the secret opens; return the first's."""
    refuse_own_contract(type(stores[0].disk))
    sealers = _sealers(stores, master)
    if len({sealer.keyring.blinding for sealer in sealers}) > 1:
        raise KeyringError(f"{directory!r}: the keyrings of its shards do not belong together; put back a copy of it")
    for store, sealer in zip(stores, sealers, strict=True):
        store.disk.sealer = sealer
        sealer.siblings = tuple(other for other in sealers if other is not sealer)
    return sealers[0]


def _sealers(stores: Sequence[Store], master: Master) -> list[Sealer]:
    """Return what seals in each store.

    A shard whose keyring is damaged gets that of another, if the cache may go on with less than it had: entries there
    that were sealed with a key which the other shard has not are missing then. Where none is left it begins anew, if it
    must be encrypted.
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


def _sealer_or_problem(store: Store, master: Master) -> Sealer | KeyringError:
    try:
        return _sealer(store, master)
    except KeyringError as problem:
        return problem


def _keyring_problem(store: Store, master: Master) -> KeyringError | None:
    found = _sealer_or_problem(store, master)
    return found if isinstance(found, KeyringError) else None


def _mended(store: Store, master: Master, problem: KeyringError, keyring: Keyring | None) -> Sealer:
    """Return what seals in a shard that got another's keyring in place of its own; raise its problem if none did."""
    if keyring is None:
        raise KeyringError(f"{problem}; put back a copy of the directory, or open it with encrypt=True to begin anew")
    rekeying.replace_keyring(store, keyring, store.config.timeout)
    sealer = _sealer(store, master)
    # Last: where warnings are errors, the next opening finds it mended.
    warnings.warn(f"{problem}: it goes on with the keyring of another shard", CorruptDatabaseWarning, stacklevel=2)
    return sealer


def _begun_anew(stores: Sequence[Store], master: Master) -> list[Sealer]:
    """Return what seals in the databases that take the places of those whose keyrings are damaged."""
    sealers: list[Sealer] = []
    keyring = Keyring.new(master)
    for store in stores:
        succession.set_keys_aside(store, keyring.sealed(), partial(_keyring_problem, store, master))
        sealers.append(_sealer(store, master))
        keyring = sealers[0].keyring  # another one, if another process was first
    return sealers


def _sealer(store: Store, master: Master) -> Sealer:
    return Sealer(master, store.directory, store.keyring, store.keys_version)


def sealed_row(disk: Disk, key: Any, stored: bytes, encoded: Stored, expire: float | None, tag: bytes | None) -> Row:
    """Return the row of an entry: nothing in it tells key, value or tag."""
    sealer = disk.sealer
    assert sealer is not None
    mode, payload, file, size = encoded
    blob = sealer.seal(stored, Record(mode, payload, expire, tag, file, size))
    column = None if file is None else files.to_column(file)
    blind = None if tag is None else sealer.blind_tag(tag)
    return Row(blob, expire, blind, size, column, disk.spelling(key, stored))


def kept_hot(
    store: Store, stored: bytes, record: Record, blob: bytes | None
) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return what is kept hot where that must be encrypted: the record as it is stored, and how a hit opens it."""
    if blob is None or record.file is not None or store.displaced:
        return KEEP_NOT, None
    return blob, partial(_opened, store.disk, stored)


def check_without_secret(directory: str) -> list[warnings.WarningMessage]:
    """Return what can be found wrong with a cache whose secret is not known, and what could not be looked at."""
    config = Config({}, {}, 60.0, time.time, implementation="off", recover=False, keyless=True)
    shards = Shards(os.path.abspath(directory), 1, config, Disk)
    try:
        return [found for store in shards.stores for found in check.check_without_secret(store)]
    finally:
        shards.close(None)


def _opened(disk: Disk, stored: bytes, blob: bytes) -> Any:
    assert disk.sealer is not None
    return disk.load(disk.sealer.open(stored, blob), False)[0]
