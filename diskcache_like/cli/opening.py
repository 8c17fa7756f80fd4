"""Open a cache that is there: a command never makes one by mistake, and one that only looks needs no right to write."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..cache import Cache
from ..disk.contract import Disk
from ..disk.json_disk import JSONDisk
from ..entries.handle import Opening
from ..errors import CacheError, DirectoryError, SettingError
from ..storage.opening.identity import is_database
from ..storage.opening.shard_layout import ShardLayout
from ..system.paths import files_below, is_directory, mode_of
from ..system.signals import reraise_signal
from .terminal import shown

COPIES = 5  # attempts at a copy of a directory that others write to


class WithoutRecovery(Cache):
    """A cache that keeps using a damaged database: quarantining it would leave a `Deque` or `Index` empty."""

    _OPENING = Opening(recover=False)


def add_opening(command: argparse.ArgumentParser) -> None:
    """Add the options that `opened` reads: what a cache may have been made with and its directory does not tell."""
    command.add_argument("--shared", action="store_true", help="use a directory that others own or can write")
    command.add_argument("--key-context", default="", metavar="TEXT", help="key_context of an encrypted cache")


def opened(options: argparse.Namespace, directory: str, kind: Callable[..., Cache] = Cache, **settings: Any) -> Cache:
    """Open the cache in `directory`, or make it.

    That its group shares it, and that JSONDisk writes it, is taken from the directory.
    """
    settings["shared"] = is_shared(options, directory)
    settings["key_context"] = options.key_context
    try:
        return kind(directory, **settings)
    except SettingError as error:
        identity = ShardLayout(directory).known_identity() if is_directory(directory) else {}
        codec = identity.get("codec", Disk.codec)
        if codec == Disk.codec:
            raise
        if "disk" in settings or codec != JSONDisk.codec_name():
            raise SettingError(f"its disk class is {codec!r}: open it with a program that has that class") from error
        return kind(directory, disk=JSONDisk, **settings)


def is_shared(options: argparse.Namespace, directory: str) -> bool:
    """Tell whether a cache is to be opened as `shared`: if so asked, or if its directory has the mode of such a one."""
    mode = mode_of(directory)
    return options.shared or bool(mode & stat.S_ISGID and mode & stat.S_IWGRP and not mode & stat.S_IWOTH)


def existing(options: argparse.Namespace, kind: Callable[..., Cache] = Cache, directory: str | None = None) -> Cache:
    """Open the cache that the options name, or one in `directory`; raise FileNotFoundError rather than create one."""
    directory = directory or options.directory
    path = Path(directory)
    if not path.exists():
        raise FileNotFoundError(2, "no such directory", directory)
    # Not just any database: beside another program's database, or above a cache, opening would create a new cache.
    databases = (name for each in (path, *path.glob("[0-9][0-9][0-9]")) for name in each.glob("cache*.db"))
    if path.is_dir() and not any(is_database(name.name) for name in databases):
        raise FileNotFoundError(2, "no cache in this directory", directory)
    return opened(options, directory, kind)


def add_namespace(command: argparse.ArgumentParser) -> None:
    """Add the option that `namespace_of` reads."""
    text = "what is in this namespace; repeat it for one within that"
    command.add_argument("--namespace", action="append", default=[], metavar="NAME", help=text)


def namespace_of(cache: Cache, options: argparse.Namespace) -> Cache:
    """Return the namespace that the options name, or the cache itself."""
    for name in options.namespace:
        cache = cache.namespace(name)
    return cache


@contextmanager
def to_look_at(options: argparse.Namespace, values: bool = True, **settings: Any) -> Iterator[Cache]:
    """Open a cache that the body only reads, or a temporary copy of it; see `readable`."""
    with readable(options, values) as path, existing(options, partial(WithoutRecovery, **settings), path) as cache:
        yield cache


@contextmanager
def readable(options: argparse.Namespace, values: bool = True) -> Iterator[str]:
    """Yield a directory with what the cache's holds: itself, or a temporary copy if it cannot be written or is foreign.

    SQLite writes beside a database in order to read it, and so do the generations, so a copy is the way to read a
    volume that is mounted read-only, or somebody else's cache, whose files must stay that user's also if root looks.
    Errors name the original. `values`: the body reads value files too. Raises DirectoryError if somebody writes faster
    than the copy is made.
    """
    directory = options.directory
    if not is_directory(directory) or _is_at_hand(options):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="diskcache-") as folder:
        why = "cannot be written" if not os.access(directory, os.W_OK) else "belongs to another user"
        print(shown(f"{directory}: {why}, so this looks at a temporary copy"), file=sys.stderr)
        copy = os.path.join(folder, "cache")
        _copy_settled(os.path.realpath(directory), copy, values)
        try:
            yield copy
        except (CacheError, OSError) as error:
            original = os.path.abspath(directory)
            error.args = tuple(part.replace(copy, original) if isinstance(part, str) else part for part in error.args)
            if isinstance(error, OSError) and isinstance(error.filename, str):
                error.filename = error.filename.replace(copy, original)
            raise


def _is_at_hand(options: argparse.Namespace) -> bool:
    """Tell whether a directory can be used as it is: it can be written, and is this user's, or shared."""
    directory = options.directory
    is_ours = os.stat(directory).st_uid == os.geteuid() or is_shared(options, directory)
    return is_ours and os.access(directory, os.W_OK)


def _copy_settled(directory: str, copy: str, values: bool) -> None:
    """Copy a directory until no database in it changed meanwhile: one copied in pieces of two times is damaged."""
    for _ in range(COPIES):
        before = _states(directory)
        _copy(directory, copy, values)
        if _states(directory) == before:
            return
        shutil.rmtree(copy)
    raise DirectoryError(errno.EBUSY, "is written to faster than it can be copied; try again later", directory)


def _states(directory: str) -> dict[str, tuple[int, int, int]]:
    """Return what changes when a database or its log is written, by path."""
    found = {}
    for name in files_below(directory):
        if name.endswith((".db", ".db-wal")):
            with suppress(FileNotFoundError):  # the log is removed when the last process closes the cache
                status = os.lstat(os.path.join(directory, name))
                found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _copy(directory: str, copy: str, values: bool) -> None:
    """Copy directories and regular files, for this user alone; a cache reads nothing through a link or a pipe."""
    for path, _, names, handle in os.fwalk(directory, onerror=_raise):
        folder = os.path.join(copy, os.path.relpath(path, directory))
        os.makedirs(folder, 0o700, exist_ok=True)
        for name in names:
            if not values and name.endswith(".val"):
                continue
            # Looked at once it is open, and by its name in the open directory: its owner may put a link there any time.
            try:
                source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            except OSError as error:
                reraise_signal(error)
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT):  # a link, a socket, or gone
                    continue
                raise DirectoryError(error.errno or errno.EIO, "cannot be read", os.path.join(path, name)) from error
            with open(source, "rb") as reader:
                if stat.S_ISREG(os.fstat(source).st_mode):
                    with open(os.path.join(folder, name), "xb", opener=partial(os.open, mode=0o600)) as writer:
                        shutil.copyfileobj(reader, writer)


def _raise(error: OSError) -> None:
    raise error
