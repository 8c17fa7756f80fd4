"""Shards: which store holds this key, and how the stores of one cache are laid out on disk.

One shard lives in the cache directory itself, several in ``000``, ``001``, … below it. The stored count wins: a
directory is opened with the shards that it was made with, whatever the caller asks for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from .. import files
from ..coherence.lock import WriteLock
from ..disk import Disk
from ..errors import (
    CacheError,
    DirectoryError,
    DiskFull,
    SecretError,
    SettingError,
    StorageError,
    UnsafeDirectory,
    refused,
)
from ..interrupts import let_through
from ..keys import new_modulus
from ..settings import DEFAULT_SETTINGS
from . import journal, room, schema
from .connection import FAILURES, connect
from .holding import Holder
from .layout import (
    DATABASE,
    GENERATIONS,
    INHERITED,
    LOCK,
    UNSAID,
    Config,
    database_path,
    has_database,
    names_in,
    newest_epoch,
    read_settings,
    replaced,
)
from .opening import refuse_foreign
from .scopes import scope
from .store import Store
from .transaction import Transaction

_PEEKING = {"sqlite_cache_size": 10, "sqlite_synchronous": 1}
_SHARD_NAME = re.compile(r"(?!999)[0-9]{3}")
_PATIENCE = 0.1  # seconds at most that opening waits for the end of a transaction over several shards
_SHARD_PRIME = 1_000_003  # keys with regular hashes still spread over the shards


class _LayoutChanged(Exception):
    """Another process made the other kind of layout in the meantime."""


def ensure_directory(path: str, shared: bool, sync: bool = False) -> None:
    """Make the directory and its parents (0700) where missing, and refuse one that others could tamper with.

    With `sync` what is made is on stable storage when this returns.
    Raises DirectoryError for what is not a usable directory and UnsafeDirectory for a foreign or writable one, unless
    `shared`, and for one that a link of somebody else's leads to.
    """
    _refuse_links(path)
    try:
        _make_private(path, sync)
    except FileExistsError as error:
        raise DirectoryError(errno.ENOTDIR, "the cache directory is a file; choose another path", path) from error
    except NotADirectoryError as error:
        raise DirectoryError(errno.ENOTDIR, "a parent of the cache directory is a file", path) from error
    except OSError as error:
        let_through(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("no room to make the cache directory", path) from error
        raise DirectoryError(
            error.errno or errno.EIO, f"cannot make the cache directory ({error.strerror})", path
        ) from error
    try:
        status = os.stat(path)
    except OSError as error:
        raise refused(error, path) from error
    if not shared:
        _refuse_unsafe(path, status)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DirectoryError(errno.EACCES, "the cache directory must be readable and writable for this user", path)


def _make_private(path: str, sync: bool) -> None:
    """Make a directory, and the missing ones above it, each 0700; `os.makedirs` gives that mode to the last only."""
    parent = os.path.dirname(path)
    if not files.mode_of(parent, follow=False):
        _make_private(parent, sync)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # perhaps another process made it just now
        if not files.is_directory(path):
            raise
        return
    if sync:
        files.sync_directory(parent)


def _refuse_links(path: str) -> None:
    """Refuse a path through a link that neither this user nor the system's administrator made."""
    part = path
    while part != os.path.dirname(part):
        try:
            status = os.lstat(part)
        except OSError as error:  # not there yet, or not to be seen: making the directory will tell
            let_through(error)
        else:
            if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.geteuid(), 0):
                raise UnsafeDirectory(f"the cache directory is reached by a link of user {status.st_uid}", part)
        part = os.path.dirname(part)


def refuse_link(path: str) -> None:
    """Refuse a link within a cache directory, whoever made it: one that came in an archive may lead anywhere."""
    if files.is_link(path):
        raise UnsafeDirectory("is a symbolic link within a cache directory; replace it by what it leads to", path)


def _refuse_unsafe(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(f"the cache directory belongs to user {status.st_uid}; pass shared=True to use it", path)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeDirectory(
            f"the cache directory can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "chmod it to 0700 or pass shared=True",
            path,
        )


class Shards:
    """The stores of one cache."""

    def __init__(self, directory: str, wanted: int, config: Config, disk: type[Disk]) -> None:
        self.directory = directory
        self._config = config
        new_disk(disk, directory, {**DEFAULT_SETTINGS, **config.given})  # before any of it is stored
        config.identity.setdefault("codec", disk.codec_name())
        asked = dict(config.identity)
        for _ in range(10):
            try:
                self.stores = self._open(wanted, asked)
                break
            except _LayoutChanged:
                continue
        else:
            raise DirectoryError(errno.EBUSY, "two layouts are being made at once", directory)
        identity = self.stores[0].identity
        self.modulus: int = identity["modulus"]
        try:
            self._compare(identity, asked)
            # Where all is removed under this handle it makes the same cache anew, as others that had it open would.
            config.identity.update({name: identity[name] for name in INHERITED if name in identity})
            for store in self.stores:
                store.siblings = tuple(other for other in self.stores if other is not store)
                store.disk = new_disk(disk, store.directory, store.settings)
        except BaseException:
            self.close_soon()
            raise
        if len(self.stores) > 1 and journal.is_due(self.stores):
            # If that fails a transaction is at work, or who writes next is told why.
            with contextlib.suppress(CacheError):
                journal.complete(self.stores, _PATIENCE)
        for store in self.stores if len(self.stores) > 1 else ():
            store.be_one_of(len(self.stores))

    def _open(self, wanted: int, asked: dict[str, Any]) -> list[Store]:
        layout = self._stored_layout()
        if layout is None:
            layout = self._claim(wanted)
        identity = self._config.identity
        known = self._known_identity() if layout > 1 else {}
        if known:  # a shard that has to be made anew must be like the others: who asks for another kind makes none
            self._compare(known, asked)
        identity.update({name: known[name] for name in UNSAID if name in known})
        _share_identity(identity, known)
        identity.setdefault("modulus", new_modulus())
        identity["shards"] = layout
        if layout == 1:
            return [Store(self.directory, replace(self._config, claimed=self._refuse_other_layout))]
        stores: list[Store] = []
        try:
            for number in range(layout):
                path = self._path(number)
                ensure_directory(path, self._config.shared, self._config.syncs)
                stores.append(Store(path, self._config))
                _share_identity(identity, stores[0].identity)
        except BaseException:
            for store in stores:
                store.close_soon()
            raise
        return stores

    def _path(self, number: int) -> str:
        return os.path.join(self.directory, f"{number:03d}")

    def _stored_layout(self) -> int | None:
        """Return the number of shards that the directory was made with, None where there is no cache yet."""
        if files.mode_of(os.path.join(self.directory, GENERATIONS)) or has_database(self.directory):
            return 1
        present = self._numbers()
        for number in present:
            refuse_link(self._path(number))
        made = [number for number in present if has_database(self._path(number))]
        if not made or (made == [0] and _is_unfinished(self._path(0))):
            return None
        for number in made:
            refuse_foreign(self._path(number), self.directory)
        return self._most_likely_layout(present)

    def _most_likely_layout(self, present: Sequence[int]) -> int:
        """Return the number of shards, of which those in `present` are there, though one may have it damaged.

        With another number every key would be looked for in another shard. So what one says has to agree with what is
        there, or with another one, since some may not have been made yet.
        """
        said: Counter[int] = Counter()
        for number in present:
            identity = _peek(self._path(number))
            if identity is not None:
                layout = int(identity.get("shards", 1))  # one, where it is a cache by itself
                said[layout] += 1
                if layout == len(present) or said[layout] > 1:
                    return layout
        return max(said, key=lambda layout: (layout > present[-1], -layout), default=max(present[-1] + 1, 2))

    def _known_identity(self) -> dict[str, Any]:
        """Return what the first shard that can be read says it is; nothing where none can."""
        for number in self._numbers():
            identity = _peek(self._path(number))
            if identity is not None:
                return identity
        return {}

    def _numbers(self) -> list[int]:
        """Return the numbers of the shards whose directories are there; after a power loss any may be missing."""
        numbers = sorted(int(name) for name in names_in(self.directory) if _SHARD_NAME.fullmatch(name))
        return [number for number in numbers if files.is_directory(self._path(number))]

    def _claim(self, wanted: int) -> int:
        """Decide the layout of a new cache. The directory's lock makes it one process's decision."""
        if wanted == 1:
            return 1
        lock = WriteLock(os.path.join(self.directory, LOCK))
        lock.acquire(self._config.timeout)
        try:
            layout = self._stored_layout()
            if layout is None:
                layout = wanted
                ensure_directory(self._path(0), self._config.shared, self._config.syncs)
                identity = {**self._config.identity, "shards": wanted, "modulus": new_modulus()}
                # Not `close`: another process may have found the shard by now, and be busy with it.
                Store(self._path(0), replace(self._config, identity=identity)).close_soon()
            return layout
        finally:
            lock.release()
            lock.close()

    def _refuse_other_layout(self) -> None:
        if self._stored_layout() not in (None, 1):
            raise replaced(self.directory) if hasattr(self, "stores") else _LayoutChanged

    def _compare(self, identity: dict[str, Any], given: dict[str, Any]) -> None:
        """Refuse a handle whose disk class, codec or secret is not the cache's."""
        stored, asked = identity.get("codec"), given["codec"]
        sealed, encrypt = "keyring" in identity, self._config.encrypt
        if stored != asked:
            raise SettingError(
                f"{self.directory!r} was made with codec {stored!r} and opened with {asked!r}: pass the same disk class"
            )
        if other := [name for name in UNSAID if given.get(name, identity[name]) != identity[name]]:
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

    def of(self, h: int) -> Store:
        """Return the store that holds the key with this hash."""
        stores = self.stores
        return stores[(h >> 2) % _SHARD_PRIME % len(stores)]

    def transaction(self, timeout: float | None) -> contextlib.AbstractContextManager[None]:
        """Make the body one transaction of the calling task over all shards; nested, a savepoint of it.

        Its parts are committed one after the other, and by nobody else in between: all of them, or none.
        """
        return self.stores[0].transaction(timeout) if len(self.stores) == 1 else self._joint_transaction(timeout)

    @scope
    def _joint_transaction(self, timeout: float | None) -> Generator[None, None, None]:
        decided: list[Holder] = []
        turns: list[int] = []
        outer: list[tuple[Transaction, int]] = []
        ends = False
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with contextlib.ExitStack() as locks:
                # Always in the same order, so that no two can wait for each other.
                taken = [store for store in self.stores if locks.enter_context(store.held(journal.left(deadline)))]
                turns += (store.lock.recoveries for store in self.stores)
                nested = [store for store in self.stores if store not in taken]
                outer += ((store.txn, store.txn.depth) for store in nested if store.txn is not None)
                with contextlib.ExitStack() as bodies:
                    for store in nested:
                        bodies.enter_context(store.savepoint())
                    txns = [bodies.enter_context(store.batch()) for store in taken]
                    with _under_way(txns):
                        yield
                    ends = True
                    if not any(store.inherited() for store in taken):
                        decided = journal.decide(taken)
                if decided:
                    journal.forget(decided)
                for store, txn in zip(taken, txns, strict=True):
                    if txn.evicted:
                        room.unlink_removed(store)
        except BaseException as error:
            for txn, depth in outer:  # what ended in one shard may not have ended in another
                txn.break_below(-1 if ends else depth)
            self._let_go(turns)
            if not decided:
                raise
            self._make_whole(error)

    def _let_go(self, turns: Sequence[int]) -> None:
        """End what a signal handler kept from its end within an ExitStack, which keeps it and the exception alive.

        `turns` are the recoveries of each lock when all were taken; it is empty if that was not done.
        """
        for store, turn in zip(self.stores, turns, strict=False):
            if turn == store.lock.recoveries:
                store.let_go()

    def _make_whole(self, error: BaseException) -> None:
        """Complete a transaction that is decided and was cut off; if that fails, say what becomes of it.

        Raises what cut it off unless that was an error of the cache's own.
        """
        try:
            journal.complete(self.stores, 0)
        except CacheError:
            text = (
                "a shard could not commit its part of a transaction whose other parts are committed; the transaction is"
                f" completed when that shard is written again ({error})"
            )
            if isinstance(error, DiskFull):
                raise DiskFull(text, self.directory) from error
            if isinstance(error, CacheError):
                raise StorageError(f"{self.directory!r}: {text}") from error
        if not isinstance(error, CacheError):
            raise error

    def close(self, timeout: float | None) -> None:
        """Close every store; wait for the locks of all together for `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        close_each(partial(store.close, journal.left(deadline)) for store in self.stores)

    def close_soon(self) -> None:
        """Close every store without waiting for anyone, for caches that were refused, or dropped without `close`."""
        for store in self.stores:
            store.close_soon()


def close_each(steps: Iterable[Callable[[], object]]) -> None:
    """Take steps that close something, those after one that raises too; its error is told when all are taken."""
    left = iter(steps)
    try:
        for step in left:
            step()
    except CacheError:
        for step in left:
            with contextlib.suppress(CacheError):
                step()
        raise


@scope
def _under_way(txns: Sequence[Transaction]) -> Generator[None, None, None]:
    """Let the calling task use the transactions while the body runs."""
    for txn in txns:
        txn.homes = set()
        txn.entered, txn.stepping = True, False
    try:
        yield
    finally:
        for txn in txns:
            txn.entered, txn.stepping = False, True


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


def _is_unfinished(directory: str) -> bool:
    """Tell whether the first shard of a new cache is still being made, or its maker was killed or met a full disk."""
    path = os.path.join(directory, DATABASE)
    if files.mode_of(os.path.join(directory, GENERATIONS)) or newest_epoch(directory):
        return False
    try:
        if os.stat(path).st_size == 0:
            return True
        with contextlib.closing(connect(path, _PEEKING, 1.0)) as connection:
            return schema.is_empty(connection)
    except (*FAILURES, CacheError, OSError) as error:
        let_through(error)
        return False


def _peek(directory: str) -> dict[str, Any] | None:
    """Return the identity of the newest readable database of a shard, None if it cannot be read."""
    try:
        path = database_path(directory, newest_epoch(directory))
        if not files.mode_of(path):
            return None
        connection = connect(path, _PEEKING, 1.0)
        try:
            schema.verify(connection, path)
            return read_settings(connection, path)[0]
        finally:
            connection.close()
    except (*FAILURES, CacheError, OSError) as error:
        let_through(error)
        return None
