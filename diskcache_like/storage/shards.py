"""The shards of one cache: which of them holds this key, and transactions over all of them.

The stored count wins: a directory is opened with the shards that it was made with, whatever the caller asks for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from ..coherence import _native
from ..coherence.write_lock import WriteLock
from ..disk.contract import Disk
from ..errors import CacheError, DirectoryError, SecretError, SettingError, too_few_descriptors
from ..settings.definitions import DEFAULT_SETTINGS
from .opening.directory import ensure_directory
from .opening.identity import IDENTITY_DEFAULTS, INHERITED, LOCK, Config, cache_replaced
from .opening.shard_layout import ShardLayout
from .redo_log import RedoLog
from .shard.transactions import left, transaction
from .sqlite.reader_pool import MAX_READERS
from .store import Store

_PATIENCE = 0.1  # seconds at most that opening waits for the end of a cross-shard transaction
# Of each shard: the lock, the byte locks, the mapped generations and write buffer, -shm, and database and -wal for each
# connection.
LEAST_DESCRIPTORS, MOST_DESCRIPTORS = (5 + 2 * connections for connections in (2, MAX_READERS + 1))
OWN_DESCRIPTORS = 2  # of the cache: the counts, which it has open and mapped


class _LayoutChanged(Exception):
    """Another process made the other kind of layout in the meantime."""


class ShardSet:
    """The stores of one cache, and the redo log of transactions over several of them."""

    def __init__(self, directory: str, wanted: int, config: Config, disk: type[Disk]) -> None:
        self.directory = directory
        self._config = config
        self._layout = ShardLayout(directory)
        new_disk(disk, directory, {**DEFAULT_SETTINGS, **config.given})  # refuses settings before they are stored
        config.identity.setdefault("codec", disk.codec_name())
        asked = dict(config.identity)
        for _ in range(10):
            try:
                self.stores = self._open(wanted, asked)
                break
            except _LayoutChanged:
                continue
            except DirectoryError as error:
                if error.errno != errno.EMFILE:
                    raise
                shards = config.identity.get("shards", wanted)
                least, most = (shards * each + OWN_DESCRIPTORS for each in (LEAST_DESCRIPTORS, MOST_DESCRIPTORS))
                raise too_few_descriptors(directory, shards, least, most) from error
        else:
            raise DirectoryError(errno.EBUSY, "two layouts are being made at once", directory)
        identity = self.stores[0].shard.identity
        self.modulus: int = identity["modulus"]
        try:
            self._refuse_mismatch(identity, asked)
            # If everything is removed under this handle, it makes the same cache anew, as other open handles would.
            config.identity.update({name: identity[name] for name in INHERITED if name in identity})
            for store in self.stores:
                store.encode_with(new_disk(disk, store.directory, store.shard.settings))
        except BaseException:
            self.close_soon()
            raise
        self._redo_log = RedoLog(directory, self.stores)
        self._parts = [store.transactions for store in self.stores]
        if len(self.stores) > 1:
            self._join()

    def _join(self) -> None:
        """Let the stores share the size limit and the disk, and roll forward what was cut off between them."""
        for store in self.stores:
            others = [other for other in self.stores if other is not store]
            store.quota.others = [other.quota for other in others]
            store.evictor.others = [other.evictor for other in others]
            store.checkpointer.shards = len(self.stores)
            store.transactions.roll_forward = self._redo_log.roll_forward
        if self._redo_log.is_due():
            # If this fails, a transaction is under way, or the next writer is told why.
            with contextlib.suppress(CacheError):
                self._redo_log.roll_forward(_PATIENCE)
        for store in self.stores:
            store.set_shards(len(self.stores))

    def _open(self, wanted: int, asked: dict[str, Any]) -> list[Store]:
        layout = self._layout.stored()
        if layout is None:
            layout = self._claim(wanted)
        identity = self._config.identity
        known = self._layout.known_identity() if layout > 1 else {}
        if known:  # a shard that has to be made anew must be like the others, whatever format this handle asks for
            self._refuse_mismatch(known, asked)
        identity.update({name: known[name] for name in IDENTITY_DEFAULTS if name in known})
        _share_identity(identity, known)
        identity["shards"] = layout
        if layout == 1:
            return [Store(self.directory, replace(self._config, claimed=self._refuse_other_layout))]
        stores: list[Store] = []
        try:
            for number in range(layout):
                path = self._layout.path(number)
                ensure_directory(path, self._config.shared, self._config.syncs)
                stores.append(Store(path, self._config))
                _share_identity(identity, stores[0].shard.identity)
        except BaseException:
            for store in stores:
                store.close_soon()
            raise
        return stores

    def _claim(self, wanted: int) -> int:
        """Decide the layout of a new cache. The directory's lock makes it one process's decision."""
        if wanted == 1:
            return 1
        lock = WriteLock(os.path.join(self.directory, LOCK), shared=self._config.shared)
        try:
            lock.acquire(self._config.timeout)
            layout = self._layout.stored()
            if layout is None:
                layout = wanted
                ensure_directory(self._layout.path(0), self._config.shared, self._config.syncs)
                identity = {**self._config.identity, "shards": wanted}
                # Not `close`: another process may have found the shard by now, and be busy with it.
                Store(self._layout.path(0), replace(self._config, identity=identity)).close_soon()
            return layout
        finally:
            lock.release()
            lock.close()

    def _refuse_other_layout(self) -> None:
        if self._layout.stored() not in (None, 1):
            raise cache_replaced(self.directory) if hasattr(self, "stores") else _LayoutChanged

    def _refuse_mismatch(self, identity: dict[str, Any], given: dict[str, Any]) -> None:
        """Refuse a handle whose disk class, codec or secret is not the cache's."""
        stored, asked = identity.get("codec"), given["codec"]
        sealed, encrypt = "keyring" in identity, self._config.encrypt
        if stored != asked:
            raise SettingError(
                f"{self.directory!r} was made with codec {stored!r} and opened with {asked!r}: pass the same disk class"
            )
        if other := [name for name in IDENTITY_DEFAULTS if given.get(name, identity[name]) != identity[name]]:
            name = other[0]
            raise SettingError(
                f"{self.directory!r} was made with {name}={identity[name]!r} and opened with {name}={given[name]!r}: "
                f"leave {name} out to use the cache's own, or make a new cache and copy the entries"
            )
        if encrypt is not None and encrypt != sealed:
            made, hint = ("encrypted", "leave encrypt out") if sealed else ("without encryption", "make a new cache")
            raise SettingError(f"{self.directory!r} was made {made} and opened with encrypt={encrypt}: {hint}")
        if not sealed and not self._config.keyless and identity.get("key_check") != given.get("key_check"):
            hint = "it was made without one" if "key_check" not in identity else "it was made with another"
            if "key_check" not in given:
                hint = "it needs one: pass secret= or set DISKCACHE_LIKE_SECRET"
            raise SecretError(f"{self.directory!r} cannot be opened with this secret; {hint}")

    def of(self, home: int) -> Store:
        """Return the store that holds the key with this hash."""
        stores = self.stores
        return stores[(home >> 2) % _native.SHARD_PRIME % len(stores)]

    def transaction(self, timeout: float | None) -> contextlib.AbstractContextManager[None]:
        """Make the body one transaction of the calling task over all shards; nested, a savepoint of it.

        Either all of its parts are committed or none, and nobody else commits in between. What waits in the write
        buffer is flushed before, so that nobody who lists entries has to wait for the end of the body.
        """
        log = self._redo_log if len(self.stores) > 1 else None
        return transaction(self._parts, timeout, log)

    def close(self, timeout: float | None) -> None:
        """Close every store; wait for the locks of all together for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        close_each(partial(store.close, left(deadline)) for store in self.stores)

    def close_soon(self) -> None:
        """Close every store without waiting for anyone, for caches that were refused, or dropped without `close`."""
        for store in self.stores:
            store.close_soon()


def close_each(steps: Iterable[Callable[[], object]]) -> None:
    """Take all steps, which close something, and then raise the error of the first one that failed."""
    left = iter(steps)
    try:
        for step in left:
            step()
    except CacheError:
        for step in left:
            with contextlib.suppress(CacheError):
                step()
        raise


def _share_identity(mine: dict[str, Any], other: dict[str, Any]) -> None:
    """Take over what all shards of a cache have in common."""
    for name in ("modulus", "keyring"):
        if name in other:
            mine[name] = other[name]
        elif other:
            mine.pop(name, None)
    if "keyring" in mine:
        mine.pop("key_check", None)  # the keyring recognises the secret


def new_disk(kind: type[Disk], directory: str, settings: dict[str, Any]) -> Disk:
    """Return a Disk whose arguments are the ``disk_*`` settings; raise SettingError for what it does not take."""
    arguments = {name[5:]: value for name, value in settings.items() if name.startswith("disk_")}
    reserved = [name for name in arguments if not kind.accepts(name)]
    try:
        if reserved:
            raise TypeError(f"disk_{reserved[0]} is not a setting")
        return kind(directory, **arguments)
    except TypeError as error:
        raise SettingError(f"{directory!r}: a disk_* setting does not fit {kind.__qualname__}: {error}") from error
